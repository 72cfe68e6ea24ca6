"""Data movement: transposes, reshapes, broadcasts, slices and concatenations that cancel or move out of the way."""

from __future__ import annotations

from functools import partial
from typing import Any

from relax_eg.ir.expr import tuple_get
from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet
from relax_eg.shapes import Dim

movement = RuleSet("movement")
_rule = partial(movement.rule, phase="simplify", numerics="exact")

Axes = tuple[int, ...]


@_rule("x: *b", attrs={"p": "permute_dims.axes", "q": "permute_dims.axes"}, tags=("transpose",))
def transpose_of_transpose(x: Any, p: Axes, q: Axes) -> Any:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    if not len(p) == len(q) == x.ndim:
        return None
    both = tuple(p[i] for i in q)
    return op.permute_dims(op.permute_dims(x, p), q), x if both == tuple(range(x.ndim)) else op.permute_dims(x, both)


@_rule("x: *b", attrs={"p": "permute_dims.axes"}, tags=("transpose",))
def identity_transpose(x: Any, p: Axes) -> Any:
    """transpose(x, identity) = x"""
    return (op.permute_dims(x, p), x) if p == tuple(range(x.ndim)) else None


@_rule("x: *b, t: *c", tags=("order",))
def after_is_itself(x: Any, t: Any) -> Any:
    """x, after t has been computed = x"""
    return op.after(x, t), x


@_rule("x: *b", attrs={"m": "annotate_sharding.mesh", "p": "annotate_sharding.placement"}, tags=("placement",))
def placed_twice(x: Any, m: str, p: str) -> Any:
    """x, placed twice in the same way = x, placed once"""
    if "," in m or not (p == "R" or int(p[2:-1]) < x.ndim):
        return None
    once = op.annotate_sharding(x, m, p)
    return op.annotate_sharding(once, m, p), once


@_rule("x: *b", tags=("reshape",))
def reshape_to_itself(x: Any) -> Any:
    """reshape(x, its shape) = x"""
    return op.reshape(x, x.shape), x


@_rule("x: *b", tags=("broadcast",))
def broadcast_to_itself(x: Any) -> Any:
    """broadcast(x, its shape) = x"""
    return op.broadcast_to(x, x.shape), x


@_rule("v:", sizes="*t", tags=("broadcast",))
def full_is_broadcast(v: Any, t: Any) -> Any:
    """full(v, t) = broadcast(v, t)"""
    return op.full(t, v), op.broadcast_to(v, t)


@_rule("x: *b", tags=("slice",))
def slice_of_everything(x: Any) -> Any:
    """x[:] = x"""
    return op.strided_slice(x, (0,) * x.ndim, x.shape), x


@_rule("x: *a n *c, y: *a m *c", attrs={"axis": "concat.axis"}, tags=("slice", "concat"))
def first_slice_of_concat(x: Any, y: Any, axis: int) -> Any:
    """concat(x, y)[:n] = x"""
    zeros = (0,) * x.ndim
    return op.strided_slice(op.concat([x, y], axis), zeros, x.shape), x


@_rule("x: *a n *c, y: *a m *c", attrs={"axis": "concat.axis"}, tags=("slice", "concat"))
def last_slice_of_concat(x: Any, y: Any, axis: int) -> Any:
    """concat(x, y)[n:] = y"""
    both = op.concat([x, y], axis)
    begin = tuple(x.shape[axis] if i == axis else 0 for i in range(x.ndim))
    return op.strided_slice(both, begin, both.shape), y


# --- transposes move towards results, so that they meet ---


@_rule("x: *b, y: *b", attrs={"p": "permute_dims.axes"}, tags=("transpose",), phase="algebra")
def multiply_of_transposes(x: Any, y: Any, p: Axes) -> Any:
    """transpose(x, p) transpose(y, p) = transpose(x y, p): transposes that other rules make"""
    if len(p) != x.ndim:
        return None
    return op.permute_dims(x, p) * op.permute_dims(y, p), op.permute_dims(x * y, p)


# --- reshapes of reshapes: axes put together and taken apart ---


@_rule("x: *a m n *c", when="n >= 1", tags=("reshape",))
def split_of_merged(x: Any) -> Any:
    """reshape(reshape(x, m n), m, n) = x: two neighbouring axes merged and split"""
    at = x.shape.index(Dim.var("m"))
    m, n = x.shape[at : at + 2]
    return op.reshape(op.reshape(x, (*x.shape[:at], m * n, *x.shape[at + 2 :])), x.shape), x


@_rule("x: *a m*n *c", sizes="m n", tags=("reshape",))
def merge_of_split(x: Any, m: Any, n: Any) -> Any:
    """reshape(reshape(x, m, n), m n) = x: an axis split and merged"""
    at = x.shape.index(m * n)
    return op.reshape(op.reshape(x, (*x.shape[:at], m, n, *x.shape[at + 1 :])), x.shape), x


# --- slices, paddings and joints that cancel ---


@_rule("x: *a n *c", attrs={"axis": "concat.axis"}, sizes="i j k", tags=("slice", "concat"))
def concat_of_adjacent_slices(x: Any, axis: int, i: Any, j: Any, k: Any) -> Any:
    """[x[i:j], x[j:k]] = x[i:k]"""

    def part(low: Any, high: Any) -> Any:
        begin = [low if a == axis else 0 for a in range(x.ndim)]
        return op.strided_slice(x, begin, [high if a == axis else d for a, d in enumerate(x.shape)])

    if not 0 <= axis < x.ndim:
        return None
    return op.concat([part(i, j), part(j, k)], axis), part(i, k)


@_rule("x: *a n *c, y: *a m *c", attrs={"axis": "concat.axis"}, tags=("concat", "split"))
def split_of_concat(x: Any, y: Any, axis: int) -> Any:
    """split([x, y]) = x, y"""
    parts = op.split(op.concat([x, y], axis), [x.shape[axis]], axis)
    return (tuple_get(parts, 0), tuple_get(parts, 1)), (x, y)


@_rule("x: *a k *c, y: *a m *c, z: *a n *c", attrs={"axis": "concat.axis"}, tags=("concat",), phase="algebra")
def concat_of_three(x: Any, y: Any, z: Any, axis: int) -> Any:
    """[x, y, z] = [[x, y], z]: rules on two operands then apply to three"""
    return op.concat([x, y, z], axis), op.concat([op.concat([x, y], axis), z], axis)


@_rule("x: *b", sizes="*s *t", tags=("broadcast",))
def broadcast_of_broadcast(x: Any, s: Any, t: Any) -> Any:
    """broadcast(broadcast(x)) = broadcast(x) for further axes in front"""
    first = (*s, *x.shape)
    return op.broadcast_to(op.broadcast_to(x, first), (*t, *first)), op.broadcast_to(x, (*t, *first))


# The schema `operands_without_broadcasts` says this of the nodes of the program; these say it of nodes that rules make.


@_rule("x: *a *c, y: *c", attrs={"f": "add | multiply"}, tags=("broadcast", "variants"))
def needs_no_broadcast_right(x: Any, y: Any, f: Any) -> Any:
    """f(x, broadcast(y)) = f(x, y) for sums and products"""
    return f(x, op.broadcast_to(y, x.shape)), f(x, y)


@_rule("x: *a *c, y: *c", attrs={"f": "add | multiply"}, tags=("broadcast", "variants"))
def needs_no_broadcast_left(x: Any, y: Any, f: Any) -> Any:
    """f(broadcast(y), x) = f(y, x) for sums and products"""
    return f(op.broadcast_to(y, x.shape), x), f(y, x)


# By name: the operands of a choice, those of which are broadcast, and what these are.
_CHOICES = {
    "where_needs_no_broadcast_otherwise": ("c: *b @ bool, x: *b, y:", "y", ""),
    "where_needs_no_broadcast_then": ("c: *b @ bool, x:, y: *b", "x", ""),
    "where_needs_no_broadcast_column": ("c: m n @ bool, x: m 1, y: m n", "x", " for a column x"),
    "where_of_column_and_scalar": ("c: m n @ bool, x: m 1, y:", "x y", " for a column x and a scalar y"),
}


def _choice(name: str, shapes: str, spread: str, what: str) -> None:
    def where(c: Any, x: Any, y: Any) -> Any:
        sides = (op.broadcast_to(v, c.shape) if k in spread else v for k, v in (("x", x), ("y", y)))
        return op.where(c, *sides), op.where(c, x, y)

    written = ", ".join(f"broadcast({k})" if k in spread else k for k in "xy")
    _rule(shapes, name=name, tags=("broadcast",), doc=f"where(c, {written}) = where(c, x, y){what}")(where)


for _name, _more in _CHOICES.items():
    _choice(_name, *_more)
