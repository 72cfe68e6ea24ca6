"""The books that ship: every rule fires on a program that it is about, alone in its e-graph, and not on one that is
off by one operator, one operand or one fact; and the table of them in the docs is current."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from relax_eg.dtypes import is_float
from relax_eg.egraph import Budget, EGraph
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, TUPLE_GET, VAR, Expr, const, rebuild, tuple_get, var
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call
from relax_eg.rules import Claim, Instance, OriginGuard, Rule, RuleSet, default
from relax_eg.rules.book.attention import row_sums
from relax_eg.rules.book.blocks import diagonal
from relax_eg.rules.book.contraction import eye_mask
from relax_eg.rules.conditions import claims_of
from relax_eg.rules.facts.parameter_facts import DeclaredFacts
from relax_eg.rules.rule import instances
from relax_eg.shapes import Relation, Scope

BUDGET = Budget(nodes=2000, seconds=20)


def fires(rule: Rule, roots: tuple[Expr, ...], instance: Instance, given: DeclaredFacts | None = None) -> bool:
    known = given or DeclaredFacts(claims_of(instance.guards), _weights(instance))
    scope = Scope(assume=[str(g) for g in instance.guards if isinstance(g, Relation)])
    with EGraph(roots, RuleSet("alone", [rule]), scope, declared=known) as egraph:
        egraph.saturate(BUDGET)
        return rule.name in egraph.matches


def _weights(instance: Instance) -> frozenset[str]:
    return frozenset(g.name for g in instance.guards if isinstance(g, OriginGuard))


def smallest(rule: Rule) -> Instance:
    """The instance it is printed with. Merging rules match in one order of inputs, which is that of the program."""
    return next(iter(instances(rule, limit=1)))


# What stands next to an operator: near, and something else.
_SIBLINGS = {
    "add": "multiply", "subtract": "add", "multiply": "add", "divide": "add", "maximum": "add", "minimum": "add",
    "sum": "max", "max": "sum", "min": "max", "exp": "tanh", "log": "exp", "sqrt": "exp", "negative": "exp",
    "abs": "exp", "tanh": "exp", "sigmoid": "tanh", "relu": "tanh", "less": "equal", "greater": "equal",
    "greater_equal": "equal", "less_equal": "equal", "equal": "less", "not_equal": "less", "logical_and": "logical_xor",
    "logical_or": "logical_xor", "floor": "exp", "ceil": "exp", "sign": "exp", "square": "exp", "tril": "triu",
    "triu": "tril", "all": "any", "any": "all",
}  # fmt: skip


def near_misses(instance: Instance) -> Iterator[tuple[Expr, ...]]:
    """The left side with one operator replaced by a sibling, or with one inner value negated."""
    for e in reversed(instance.left_nodes):
        if (other := _SIBLINGS.get(e.op)) and other in TABLE:
            yield _replaced(instance.left, e, lambda args, e=e, o=other: call(o, args, dict(e.attrs)))
    for e in instance.left_nodes:
        if e.op in (CONSTANT, VAR, TUPLE_GET) or e in instance.left or not isinstance(e.annotation, Tensor):
            continue
        if e.dtype == "bool" or is_float(e.dtype) or e.dtype.startswith("int"):
            change = op.logical_not if e.dtype == "bool" else op.sin if is_float(e.dtype) else op.negative
            yield _replaced(instance.left, e, lambda args, e=e, change=change: change(call(e.op, args, dict(e.attrs))))


def _replaced(roots: tuple[Expr, ...], old: Expr, new: Callable[[tuple[Expr, ...]], Expr]) -> tuple[Expr, ...]:
    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e is old:
            return new(args)
        if e.op in (VAR, CONSTANT):
            return e
        return tuple_get(args[0], e.attr("index")) if e.op == TUPLE_GET else call(e.op, args, dict(e.attrs))

    return tuple(rebuild(roots, replace))


@pytest.mark.parametrize("rule", list(default - "library"), ids=lambda r: r.name)
def test_a_rule_fires_on_what_it_is_about(rule: Rule) -> None:
    instance = smallest(rule)
    assert fires(rule, _closed(instance), instance)


def _closed(instance: Instance) -> tuple[Expr, ...]:
    """The left side, with constants for what a rule asks to be constant."""
    asked = {g.name for g in instance.guards if isinstance(g, OriginGuard) and g.word == "is_constant"}

    def replace(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == VAR:
            return const(np.asarray(3.0, e.dtype)) if e.attr("name") in asked else e
        return e if e.op == CONSTANT else call(e.op, args, dict(e.attrs))

    return tuple(rebuild(instance.left, replace)) if asked else instance.left


def indices(x: Expr) -> tuple[Expr, Expr]:
    """The row and the column of each element of a square matrix."""
    shape = (x.shape[0], x.shape[0])
    return op.iota(shape, axis=0), op.iota(shape, axis=1)


def off_diagonal(x: Expr) -> Expr:
    """The places (i, 0) of a square matrix, of which its diagonal is not made."""
    i = op.expand_dims(op.iota((x.shape[0],)), 1)
    return op.concat([i, op.multiply(i, 0)], 1)


def second_of_sort(x: Expr, y: Expr) -> Expr:
    return tuple_get(call("sort", (x, y), {"axis": 0}), 1)


# By hand: where replacing an operator leaves a program that the rule is about as well, where there is nothing to
# replace, and where something else is more easily mistaken.
_MISSES: dict[str, tuple[str, Callable[..., Any]]] = {
    "matmul_merge_parallel": ("a: m k, c: m k, w: k n, v: k p", lambda a, c, w, v: (a @ w, c @ v)),
    "matmul_merge_three": ("a: m k, w: k n, v: k p", lambda a, w, v: (a @ w, a @ v)),
    "product_over_one": ("a: m 2, c: 2 n", lambda a, c: a @ c),
    "conv_merge_parallel": ("x: n 3 8 8, y: n 3 8 8, f: 4 3 2 2, g: 5 3 2 2",
                            lambda x, y, f, g: (op.conv(x, f), op.conv(y, g))),
    "pointwise_conv_is_matmul": ("x: n 3 8 8, f: 4 3 1 2", lambda x, f: op.conv(x, f)),
    "pointwise_conv_is_matmul_channels_first": ("x: n 3 8 8, f: 4 3 1 2", lambda x, f: op.conv(x, f)),
    "pointwise_conv_over_one_axis_is_matmul": ("x: n 3 8, f: 4 3 2", lambda x, f: op.conv(x, f)),
    "conv_of_the_whole_image_is_matmul": ("x: n 3 8 8, f: 4 3 8 7", lambda x, f: op.conv(x, f)),
    "window_sum_of_everything": ("x: n 3 8 8", lambda x: op.reduce_window(x, "sum", (1, 1, 8, 7))),
    "window_max_of_everything": ("x: n 3 8 8", lambda x: op.reduce_window(x, "max", (1, 1, 8, 7))),
    "second_power": ("x: n", lambda x: op.integer_pow(x, 3)),
    "identity_transpose": ("x: m n", lambda x: x.T),
    "reshape_to_itself": ("x: 4 6", lambda x: op.reshape(x, (6, 4))),
    "broadcast_to_itself": ("x: n", lambda x: op.broadcast_to(x, (3, x.shape[0]))),
    "full_is_broadcast": ("v:", lambda v: op.broadcast_to(v, (3,))),
    "slice_of_everything": ("x: 4", lambda x: op.strided_slice(x, (0,), (3,))),
    # Off by one operand, axis or constant: shapes fit, the law does not hold.
    "matmul_associates": ("a: n n, b: n n, c: n n", lambda a, b, c: (a @ b) * c),
    "matmul_right_factor": ("a: n n, b: n n, c: n n", lambda a, b, c: a @ b + b @ c),
    "low_rank_update_times_vector": ("w: n n, u: n n, v: n n, x: n", lambda w, u, v, x: (w * (u @ v)) @ x),
    "low_rank_update_times_matrix": ("w: n n, u: n n, v: n n, x: n n", lambda w, u, v, x: ((w + u @ v) @ x, w)),
    "diagonal_times_matrix": ("d: n, a: n n",
                              lambda d, a: op.where(eye_mask(d.shape[0]), op.expand_dims(d, 1), 1.0) @ a),
    "identity_times_matrix": ("x: n n", lambda x: op.astype(op.not_equal(*indices(x)), x.dtype) @ x),
    "row_scale_commutes": ("x: 1 n, y: n n, z: n n", lambda x, y, z: (x * y) @ z),
    "column_scale_into_weight": ("x: n n, g: n 1, w: n n", lambda x, g, w: (x + g) @ w),
    "matmul_of_transposes": ("a: n n, c: n n", lambda a, c: a.T @ c),
    "rows_sliced_before_matmul": ("a: 8 k, w: k 8", lambda a, w: (a @ w)[:, 2:4]),
    "columns_sliced_before_matmul": ("a: 8 k, w: k 8", lambda a, w: (a @ w)[2:4]),
    "block_product": ("a: m k, c: m k, w: k n, v: k n",
                      lambda a, c, w, v: op.concat([a, c], 0) @ op.concat([w, v], 1)),
    "joined_features_times_weight": ("a: n k, c: m k, w: k p", lambda a, c, w: op.concat([a, c], 0) @ w),
    "dot_product": ("x: n, y: n", lambda x, y: op.sum(x + y, 0)),
    "trace_of_product": ("a: n n, b: n n", lambda a, b: op.sum(op.where(eye_mask(a.shape[0]), a @ b, 1.0), (0, 1))),
    "sum_of_matmul": ("a: m k, b: k n", lambda a, b: op.max(a @ b, (0, 1))),
    "row_sum_of_matmul": ("a: m k, b: k n", lambda a, b: op.sum(a @ b, 0)),
    "diagonal_gathered": ("x: n n", lambda x: diagonal(x, off_diagonal(x))),
    "quotient_of_exponentials": ("x: n n", lambda x: op.exp(x) / op.expand_dims(op.sum(op.exp(x), 0), 1)),
    "log_softmax_as_traced": ("x: n n", lambda x: x - op.log(row_sums(op.exp(x)))),
    "softmax_of_shifted": ("x: n n, c: 1 n", lambda x, c: op.softmax(x + c)),
    "softmax_of_shifted_down": ("x: n n, c: 1 n", lambda x, c: op.softmax(x - c)),
    "log_softmax_of_shifted": ("x: n n, c: 1 n", lambda x, c: op.log_softmax(x + c)),
    "log_softmax_of_shifted_down": ("x: n n, c: 1 n", lambda x, c: op.log_softmax(x - c)),
    "maximum_with_zero_is_relu": ("x: n", lambda x: op.maximum(x, 1.0)),
    "zero_plus_int": ("x: n @ int32", lambda x: 1 + x),
    "one_times_int": ("x: n @ int32", lambda x: 2 * x),
    "times_one": ("x: n", lambda x: x * 2.0),
    "plus_zero": ("x: n", lambda x: x + 1.0),
    "over_one": ("x: n", lambda x: x / 2.0),
    "minus_zero": ("x: n", lambda x: x - 1.0),
    "common_factor": ("x: n, y: n, z: n", lambda x, y, z: x * y + z * z),
    "common_divisor": ("x: n, z: n, y: n", lambda x, z, y: y / x + y / z),
    "where_in_where": ("c: n @ bool, d: n @ bool, x: n, y: n",
                       lambda c, d, x, y: op.where(c, op.where(d, x, y), x)),
    "concat_of_three": ("x: 2 3, y: 2 3", lambda x, y: op.concat([x, y], 1)),
    "concat_of_adjacent_slices": ("x: 8", lambda x: op.concat([x[0:3], x[4:8]], 0)),
    "first_slice_of_concat": ("x: 3, y: 4", lambda x, y: op.concat([x, y], 0)[0:4]),
    "last_slice_of_concat": ("x: 3, y: 4", lambda x, y: op.concat([x, y], 0)[4:7]),
    "sum_of_padded": ("a: n", lambda a: op.sum(op.pad(a, [(1, 2)], 1.0), 0)),
    "split_of_merged": ("x: 4 6", lambda x: op.reshape(op.reshape(x, (24,)), (6, 4))),
    "merge_of_split": ("x: 24", lambda x: op.reshape(op.reshape(x, (4, 6)), (2, 12))),
    "greatest_of_the_greatest": ("x: 4", lambda x: op.min(op.top_k(x, 2, 0)[0], 0)),
    "transformed_and_back": ("x: 8", lambda x: op.fft(op.square(op.fft(x, "rfft", (8,))), "irfft", (8,))),
    "greatest_one": ("x: 4", lambda x: op.top_k(x, 2, 0)),
    "sort_of_one_int32": ("x: 2 @ int32, y: 2 @ int32", second_of_sort),
    "sort_of_one_float32": ("x: 2, y: 2 @ int32", second_of_sort),
    "convs_as_groups": ("x: n 3 8 8, y: n 3 8 8, f: 4 3 2 2, g: 5 3 2 2",
                        lambda x, y, f, g: op.concat([op.conv(x, f), op.conv(y, g)], 1)),
    "reduction_over_one": ("x: n 2", lambda x: op.sum(x, 1)),
    "after_is_itself": ("x: n, t: n", lambda x, t: x + t),
    "placed_twice": ("x: n m", lambda x: op.annotate_sharding(op.annotate_sharding(x, "x=1", "R"), "x=1", "S[0]")),
    "weight_stored_transposed": ("x: b m k, w: b k n", lambda x, w: x @ w),
}  # fmt: skip


@pytest.mark.parametrize("rule", list(default - "library"), ids=lambda r: r.name)
def test_a_rule_does_not_fire_on_a_near_miss(rule: Rule) -> None:
    instance = smallest(rule)
    if rule.name in _MISSES:
        spec, program = _MISSES[rule.name]
        made = program(*tensors(spec))
        assert not fires(rule, made if isinstance(made, tuple) else (made,), instance)
    elif any(isinstance(g, (Claim, OriginGuard)) for g in instance.guards):
        # The same program, of which nothing is known.
        assert not fires(rule, instance.left, instance, DeclaredFacts())
    else:
        misses = list(itertools.islice(near_misses(instance), 12))
        assert not all(fires(rule, roots, instance) for roots in misses), f"it fires on all of {len(misses)}"


def tensors(spec: str) -> list[Expr]:
    """Variables from "A: n n, v: n @ int32"."""
    parts = [p.partition(":") for p in spec.split(",")]
    return [var(name.strip(), Tensor(sizes.strip())) for name, _, sizes in parts]
