"""Recognitions: operators that no JAX function traces to, read off what JAX traces in their place.

A pattern with such an operator on its left side would match nothing in a traced program. `with_recognitions` adds to a
set of rules the recognitions of the operators that left sides of users' rules name, and of those that these need in
turn. No shipped rule causes one, so a search without users' rules is the same with and without this book.

A tag of a recognition is the operator that it makes. An attribute variable that only its right side has (a diagonal)
ranges over the values that the left sides of other rules give to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import FLOATS, names_where
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value, var
from relax_eg.limits import LARGEST_INT32, MANY_KEPT
from relax_eg.ops import api as op
from relax_eg.ops.reduction import accumulator
from relax_eg.rules.attribute_variables import read_source
from relax_eg.rules.book.elementwise import elementwise
from relax_eg.rules.book.traced import gelu_of_tanh
from relax_eg.rules.checking.certificates import is_shipped
from relax_eg.rules.rule import Rule, instances
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, Trial, schema, trial_of

RECOGNISED = "recognised"  # the tag of all of them


def number_is_size(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a whole number, converted = that size, converted: where sizes are fixed JAX traces a number for a size"""
    if not isinstance(e.annotation, Tensor) or e.shape or e.dtype not in FLOATS:
        return None
    value = float(constant_value(e))
    if not 1 <= value <= LARGEST_INT32 or value != int(value):
        return None
    return op.astype(op.dim_value(int(value)), e.dtype)


def _numbers(rng: np.random.Generator) -> Trial:
    """A program of one number: mostly whole, and at the limits of what a size is."""
    number = rng.choice([0.0, 1.0, 2.0, 7.0, 0.5, -3.0, 1e10, float(rng.integers(1, 4096))])
    node = const(np.asarray(number, "float32"))
    return trial_of((), node, (), "numpy")


def _normal_weighted(x: Expr) -> Expr:
    """`gelu` as jax.nn.gelu traces it."""
    return (0.5 * x) * op.erfc((-x) * math.sqrt(0.5))


def gelu_as_traced(e: Expr, queries: ProgramQueries) -> Expr | None:
    """x times the cdf of the normal distribution, or its approximation, as traced = gelu(x)

    The `gelu` or `gelu_tanh` of which a product is the traced form. Its numbers are rounded to the dtype of the
    program, so a pattern over any dtype cannot state it."""
    first = e.args[0]
    if e.dtype not in FLOATS:
        return None
    if first.op == "multiply" and _normal_weighted(first.args[1]) is e:
        return op.gelu(first.args[1], approximate=False)
    return op.gelu_tanh(first) if gelu_of_tanh(first) is e else None


_TOLERANCE = 1e-5  # chosen: of what the two forms may differ by in float32, which is a few units of the last place


def _weighted(rng: np.random.Generator) -> Trial:
    x = var("x", Tensor("m", "float32"))
    node = (_normal_weighted, gelu_of_tanh)[int(rng.integers(2))](x)
    numbers = rng.standard_normal(int(rng.integers(0, 9))).astype(np.float32)
    return trial_of((x,), node, (numbers,), "numpy", _TOLERANCE)


recognised = RuleSet(
    RECOGNISED,
    schemas=(
        schema(number_is_size, "exact", (RECOGNISED, "dim_value"), (CONSTANT,), (_numbers,)),
        schema(gelu_as_traced, "reassociate", (RECOGNISED, "gelu", "gelu_tanh"), ("multiply",), (_weighted,)),
    ),
)
_rule = recognised.rule
_POSITIONS = names_where(lambda d: d.kind == "i" and d.bits >= 32)  # given: JAX's dtypes of sizes and positions


# --- functions of elements ---


@_rule("x: *b", numerics="exact", tags=(RECOGNISED, "isnan"))
def unequal_to_itself(x: Any) -> Any:
    """x != x = isnan(x)"""
    return op.not_equal(x, x), op.isnan(x)


@_rule("x: *b", tags=(RECOGNISED, "reciprocal"))
def power_of_minus_one(x: Any) -> Any:
    """x ** -1 = reciprocal(x)"""
    return op.integer_pow(x, -1), op.reciprocal(x)


@_rule("x: *b", tags=(RECOGNISED, "reciprocal"))
def one_over_number(x: Any) -> Any:
    """1 / x = reciprocal(x)"""
    return 1.0 / x, op.reciprocal(x)


def _clipped(x: Any, lo: Any, hi: Any) -> Any:
    return op.minimum(hi, op.maximum(lo, x)), op.clip(x, lo, hi)


for _bounds, _name in (("lo:, hi:", "limits_are_clip"), ("lo: *b, hi: *b", "limits_of_elements_are_clip")):
    _rule(f"x: *b, {_bounds}", name=_name, tags=(RECOGNISED, "clip", "variants"),
          doc="min(high, max(low, x)) = clip(x, low, high)")(_clipped)  # fmt: skip


# --- means, matrices and filled tensors; sizes and positions are int32, and int64 in JAX's x64 mode ---


def _mean(kept: bool, counted: str) -> None:
    def mean(x: Any, a: tuple[int, ...]) -> Any:
        wide = accumulator(x.dtype)
        total = op.sum(op.astype(x, wide), a)
        count = op.astype(op.dim_value(math.prod(x.shape[i] for i in a), counted), wide)
        return op.astype((op.expand_dims(total, a) if kept else total) / count, x.dtype), op.mean(x, a, kept)

    _rule(
        "x: *b", attrs={"a": "sum.axes"}, name=f"sum_over_{counted}_count{'_in_place' if kept else ''}",
        doc="sum(x) / number of elements = mean(x); half precision is summed in float32",
        tags=(RECOGNISED, "mean", "variants"),
    )(mean)  # fmt: skip


def _triangle(made: str, position: str) -> None:
    low = made == "tril"

    def triangle(x: Any, k: int) -> Any:
        sizes, zeros = x.shape[-2:], op.broadcast_to(const(0.0, x.dtype), x.shape)
        rows, columns = (op.iota(sizes, axis=i, dtype=position) for i in (0, 1))
        mask = op.greater_equal(rows + (k if low else k - 1), columns)
        spread = op.broadcast_to(mask, x.shape) if x.ndim > 2 else mask
        chosen = op.where(spread, x, zeros) if low else op.where(spread, zeros, x)
        return chosen, op.tril(x, k) if low else op.triu(x, k)

    _rule(
        "x: *b m n", attrs={"k": f"{made}.k"}, name=f"{made}_by_{position}", numerics="exact",
        doc=f"where({'row + k >= column, x, 0' if low else 'row + k - 1 >= column, 0, x'}) = {made}(x, k)",
        tags=(RECOGNISED, made, "variants"),
    )(triangle)  # fmt: skip


def _one_hot(indices: str, dtype: str) -> None:
    def one_hot(i: Any, d: str, k: Any) -> Any:
        rank = i.ndim
        index = op.expand_dims(i, rank) if rank else op.broadcast_to(i, (1,))
        return op.astype(op.equal(index, op.iota((*(1,) * rank, k), axis=rank, dtype=dtype)), d), op.one_hot(i, k, d)

    _rule(
        f"i: {indices} @ {dtype}", attrs={"d": "one_hot.dtype"}, sizes="k", numerics="exact",
        name=f"{'index' if indices else 'scalar'}_{dtype}_is_one_hot", tags=(RECOGNISED, "one_hot", "variants"),
        doc="i[..., None] == arange(k), converted = one_hot(i, k)",
    )(one_hot)  # fmt: skip


for _dtype in _POSITIONS:
    for _kept in (False, True):
        _mean(_kept, _dtype)
    for _made in ("tril", "triu"):
        _triangle(_made, _dtype)
    for _indices in ("*b n", ""):
        _one_hot(_indices, _dtype)


@_rule("v:", sizes="*t", numerics="exact", tags=(RECOGNISED, "full"))
def broadcast_is_full(v: Any, t: Any) -> Any:
    """broadcast(v, t) = full(v, t)"""
    return op.broadcast_to(v, t), op.full(t, v)


@_rule("x: *b k, w: n k", numerics="exact", tags=(RECOGNISED, "linear"))
def product_with_transpose(x: Any, w: Any) -> Any:
    """x W' = linear(x, W)"""
    return x @ op.permute_dims(w, (1, 0)), op.linear(x, w)


# --- softmax ---


def _exponentials(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """x less its maximum along an axis, the exponentials of that, and their sum, as jax.nn traces them."""
    peak = op.expand_dims(op.maximum(-math.inf, op.max(x, axes)), axes)
    raised = op.exp(x - peak)
    total = op.expand_dims(op.sum(op.astype(raised, accumulator(x.dtype)), axes), axes)
    return x - peak, raised, op.astype(total, x.dtype)


@_rule("x: *b", attrs={"a": "max.axes"}, tags=(RECOGNISED, "softmax"))
def softmax_as_traced(x: Any, a: tuple[int, ...]) -> Any:
    """exp(x - max(x)) / sum(exp(x - max(x))) = softmax(x), along any axis"""
    if len(a) != 1:
        return None
    _, raised, total = _exponentials(x, a)
    return raised / total, op.softmax(x, a[0])


@_rule("x: *b", attrs={"a": "max.axes"}, tags=(RECOGNISED, "log_softmax"))
def log_softmax_along_axis(x: Any, a: tuple[int, ...]) -> Any:
    """x - max(x) - log(sum(exp(x - max(x)))) = log_softmax(x), along any axis"""
    if len(a) != 1:
        return None
    shifted, _, total = _exponentials(x, a)
    return shifted - op.log(total), op.log_softmax(x, a[0])


# --- which of them a search needs ---

_ALL = (*recognised, elementwise["maximum_with_zero_is_relu"], elementwise["product_with_sigmoid"])


def _asks_for(rule: Rule) -> Iterator[str]:
    """The operators that the left side of a rule names, also as choices of a variable."""
    yield from rule.left_operators
    for source in rule.attributes.values():
        operators, attribute = read_source(source)
        if "|" in source and not attribute:
            yield from operators


def with_recognitions(rules: RuleSet) -> RuleSet:
    """`rules` with the recognitions of the operators that left sides of users' rules name, and of the operators that
    these recognitions need."""
    asked = {o for r in rules if not is_shipped(r) for o in _asks_for(r)}
    found: dict[Rule, None] = {}
    while more := [r for r in _ALL if r.name not in rules and r not in found and r.tags & asked]:
        found |= dict.fromkeys(more)
        asked.update(o for r in more for o in r.left_operators)
    schemas = [s for s in recognised.schemas if s.name not in rules and s.tags & asked]
    return RuleSet(rules.name, (*rules, *found), (*rules.schemas, *schemas)) if found or schemas else rules


_ASKED = 8  # limit: instances of a rule whose left sides are looked at for values of attributes


@lru_cache(MANY_KEPT)
def asked_values(rule: Rule, source: str) -> tuple[Any, ...]:
    """The values of `source`, an attribute of operators, that the left side of a rule names."""
    operators, attribute = read_source(source)
    if rule.left_operators.isdisjoint(operators):
        return ()
    nodes = (e for i in instances(rule, limit=_ASKED) for e in i.left_nodes)
    return tuple(dict.fromkeys(e.attr(attribute) for e in nodes if e.op in operators))
