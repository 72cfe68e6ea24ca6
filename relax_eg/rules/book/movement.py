"""Data movement: transposes, reshapes, broadcasts, slices and concatenations that cancel or move out of the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules.rule import RuleSet

movement = RuleSet("movement")
_rule = movement.rule

Axes = tuple[int, ...]


@_rule(
    "x: *b",
    attrs={"p": "permute_dims.axes", "q": "permute_dims.axes"},
    phase="simplify",
    numerics="exact",
    tags=("transpose",),
    check=False,
)
def transpose_of_transpose(x: Any, p: Axes, q: Axes) -> Any:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    if not len(p) == len(q) == x.ndim:
        return None
    both = tuple(p[i] for i in q)
    return op.permute_dims(op.permute_dims(x, p), q), x if both == tuple(range(x.ndim)) else op.permute_dims(x, both)


@_rule("x: *b", attrs={"p": "permute_dims.axes"}, phase="simplify", numerics="exact", tags=("transpose",), check=False)
def identity_transpose(x: Any, p: Axes) -> Any:
    """transpose(x, identity) = x"""
    return (op.permute_dims(x, p), x) if p == tuple(range(x.ndim)) else None


@_rule("x: *b", phase="simplify", numerics="exact", tags=("reshape",), check=False)
def reshape_to_itself(x: Any) -> Any:
    """reshape(x, its shape) = x"""
    return op.reshape(x, x.shape), x


@_rule("x: *b", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def broadcast_to_itself(x: Any) -> Any:
    """broadcast(x, its shape) = x"""
    return op.broadcast_to(x, x.shape), x


@_rule("x: *b", attrs={"axes": "expand_dims.axes"}, phase="simplify", numerics="exact", tags=("reshape",), check=False)
def squeeze_of_expand(x: Any, axes: Axes) -> Any:
    """squeeze(expand(x)) = x"""
    return op.squeeze(op.expand_dims(x, axes), axes), x


@_rule("x: *b", sizes="*t", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def broadcast_of_broadcast_scalar(x: Any, t: Any) -> Any:
    """broadcast(broadcast(s, t), ...) of a scalar is one broadcast"""
    return (op.broadcast_to(op.broadcast_to(x, x.shape), t), op.broadcast_to(x, t)) if x.ndim == 0 else None


@_rule("v:", sizes="*t", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def full_is_broadcast(v: Any, t: Any) -> Any:
    """full(v, t) = broadcast(v, t)"""
    return op.full(t, v), op.broadcast_to(v, t)


@_rule("x: *b, v:", phase="simplify", numerics="exact", tags=("pad",), check=False)
def pad_by_nothing(x: Any, v: Any) -> Any:
    """pad(x, 0, 0) = x"""
    if x.ndim == 0:
        return None
    return op.pad(x, [(0, 0)] * x.ndim, v), x


@_rule("x: *b", phase="simplify", numerics="exact", tags=("slice",), check=False)
def slice_of_everything(x: Any) -> Any:
    """x[:] = x"""
    return op.strided_slice(x, (0,) * x.ndim, x.shape), x


@_rule(
    "x: *a n *c, y: *a m *c",
    attrs={"axis": "concat.axis"},
    phase="simplify",
    numerics="exact",
    tags=("slice", "concat"),
    check=False,
)
def first_slice_of_concat(x: Any, y: Any, axis: int) -> Any:
    """concat(x, y)[:n] = x"""
    zeros = (0,) * x.ndim
    return op.strided_slice(op.concat([x, y], axis), zeros, x.shape), x


@_rule(
    "x: *a n *c, y: *a m *c",
    attrs={"axis": "concat.axis"},
    phase="simplify",
    numerics="exact",
    tags=("slice", "concat"),
    check=False,
)
def last_slice_of_concat(x: Any, y: Any, axis: int) -> Any:
    """concat(x, y)[n:] = y"""
    both = op.concat([x, y], axis)
    begin = tuple(x.shape[axis] if i == axis else 0 for i in range(x.ndim))
    return op.strided_slice(both, begin, both.shape), y


@_rule("x: n", sizes="i j k l", numerics="exact", tags=("slice",), check=False)
def slice_of_slice(x: Any, i: Any, j: Any, k: Any, l: Any) -> Any:  # noqa: E741
    """x[i:j][k:l] = x[i+k:i+l]"""
    return op.strided_slice(op.strided_slice(x, (i,), (j,)), (k,), (l,)), op.strided_slice(x, (i + k,), (i + l,))


@_rule("x: m n", sizes="i0 i1 j0 j1", both=True, numerics="exact", tags=("slice", "transpose"), check=False)
def slice_of_transpose(x: Any, i0: Any, i1: Any, j0: Any, j1: Any) -> Any:
    """A'[i0:j0, i1:j1] = (A[i1:j1, i0:j0])'"""
    return op.strided_slice(x.T, (i0, i1), (j0, j1)), op.strided_slice(x, (i1, i0), (j1, j0)).T


def _elementwise_rules(name: str, f: Callable[..., Any]) -> None:
    """A broadcast operand of an elementwise operator need not be broadcast first."""

    def suffix(x: Any, y: Any) -> Any:
        return f(x, op.broadcast_to(y, x.shape)), f(x, y)

    def prefix(x: Any, y: Any) -> Any:
        return f(op.broadcast_to(y, x.shape), x), f(y, x)

    for side, function in (("right", suffix), ("left", prefix)):
        for kind, shapes in (
            ("", "x: *a *c, y: *c"),
            ("_column", "x: *a n, y: *a 1"),
            ("_mask", "x: b h q s, y: b 1 1 s"),
            ("_pair", "x: b s n, y: 1 s n"),
        ):
            _rule(
                shapes,
                name=f"{name}_needs_no_broadcast_{side}{kind}",
                doc=f"{name} broadcasts its operands itself",
                phase="simplify",
                numerics="exact",
                tags=("broadcast",),
                check=False,
            )(function)


for _name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
    _elementwise_rules(_name, getattr(op, _name))


@_rule("c: *b @ bool, x: *b, y:", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def where_needs_no_broadcast_otherwise(c: Any, x: Any, y: Any) -> Any:
    """where(c, x, broadcast(y)) = where(c, x, y)"""
    return op.where(c, x, op.broadcast_to(y, x.shape)), op.where(c, x, y)


@_rule("c: *b @ bool, x:, y: *b", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def where_needs_no_broadcast_then(c: Any, x: Any, y: Any) -> Any:
    """where(c, broadcast(x), y) = where(c, x, y)"""
    return op.where(c, op.broadcast_to(x, y.shape), y), op.where(c, x, y)


@_rule("c: m n @ bool, x: m 1, y: m n", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def where_needs_no_broadcast_column(c: Any, x: Any, y: Any) -> Any:
    """where(c, broadcast(x), y) = where(c, x, y) for a column x"""
    return op.where(c, op.broadcast_to(x, c.shape), y), op.where(c, x, y)


@_rule("c: m n @ bool, x: m 1, y:", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def where_of_column_and_scalar(c: Any, x: Any, y: Any) -> Any:
    """where(c, broadcast(x), broadcast(y)) = where(c, x, y) for a column x and a scalar y"""
    return op.where(c, op.broadcast_to(x, c.shape), op.broadcast_to(y, c.shape)), op.where(c, x, y)


@_rule("x: m 1, y: n", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def outer_needs_no_row(x: Any, y: Any) -> Any:
    """x * y[None, :] = x * y for a column x"""
    return x * op.expand_dims(y, 0), x * y


@_rule("x: m n, y: n", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def product_needs_no_row(x: Any, y: Any) -> Any:
    """X * y[None, :] = X * y"""
    return x * op.expand_dims(y, 0), x * y
