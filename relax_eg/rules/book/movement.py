"""Data movement: transposes, reshapes, broadcasts, slices and concatenations that cancel or move out of the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relax_eg.ir.expr import tuple_get
from relax_eg.ops import api as op
from relax_eg.rules.rule_set import RuleSet
from relax_eg.shapes import Dim

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


@_rule("x: *b", sizes="*i:b *j:b *k:b *l:b", numerics="exact", tags=("slice",), check=False)
def slice_of_slice(x: Any, i: Any, j: Any, k: Any, l: Any) -> Any:  # noqa: E741
    """x[i:j][k:l] = x[i+k:i+l]"""
    if x.ndim == 0:
        return None
    begin, end = ([a + c for a, c in zip(i, edge, strict=True)] for edge in (k, l))
    return op.strided_slice(op.strided_slice(x, i, j), k, l), op.strided_slice(x, begin, end)


@_rule(
    "x: *b", attrs={"p": "permute_dims.axes"}, sizes="*i:b *j:b", both=True, numerics="exact",
    tags=("slice", "transpose"), check=False,
)  # fmt: skip
def slice_of_transpose(x: Any, p: Axes, i: Any, j: Any) -> Any:
    """transpose(x, p)[i:j] = transpose(x[i':j'], p), with the bounds in the other order"""
    if len(p) != x.ndim:
        return None
    back = [p.index(axis) for axis in range(x.ndim)]
    inner = op.strided_slice(x, [i[a] for a in back], [j[a] for a in back])
    return op.strided_slice(op.permute_dims(x, p), i, j), op.permute_dims(inner, p)


# --- transposes move towards results, so that they meet ---


def _same_way(x: Any, p: Axes) -> bool:
    return len(p) == x.ndim


def _through_transpose(name: str, f: Callable[..., Any], operands: int) -> None:
    def one(x: Any, p: Axes) -> Any:
        return (f(op.permute_dims(x, p)), op.permute_dims(f(x), p)) if _same_way(x, p) else None

    def two(x: Any, y: Any, p: Axes) -> Any:
        if not _same_way(x, p):
            return None
        return f(op.permute_dims(x, p), op.permute_dims(y, p)), op.permute_dims(f(x, y), p)

    function, shapes = (one, "x: *b") if operands == 1 else (two, "x: *b, y: *b")
    _rule(
        shapes, attrs={"p": "permute_dims.axes"}, name=f"{name}_of_transpose" + "s" * (operands - 1),
        doc=f"{name} of transposed operands = the transpose of {name}", numerics="exact",
        tags=("transpose", "variants"),
        check=False,
    )(function)  # fmt: skip


def _through_reshape(name: str, f: Callable[..., Any], operands: int) -> None:
    def one(x: Any) -> Any:
        *b, m, n = x.shape
        return f(op.reshape(x, (*b, m * n))), op.reshape(f(x), (*b, m * n))

    def two(x: Any, y: Any) -> Any:
        *b, m, n = x.shape
        merged = (*b, m * n)
        return f(op.reshape(x, merged), op.reshape(y, merged)), op.reshape(f(x, y), merged)

    function, shapes = (one, "x: *b m n") if operands == 1 else (two, "x: *b m n, y: *b m n")
    _rule(
        shapes, name=f"{name}_of_merged_axes", doc=f"{name} of reshaped operands = the reshape of {name}",
        numerics="exact", tags=("reshape", "variants"), check=False,
    )(function)  # fmt: skip


# given: the operators that stand between transposes, reshapes and slices in real programs. The rules of each further
# one are compiled for every program.
_MOVED = (("negative", 1), ("exp", 1), ("tanh", 1), ("relu", 1), ("add", 2), ("multiply", 2))
for _name, _operands in _MOVED:
    _through_transpose(_name, getattr(op, _name), _operands)
    _through_reshape(_name, getattr(op, _name), _operands)


@_rule("x: *b, s:", attrs={"p": "permute_dims.axes"}, numerics="exact", tags=("transpose",), check=False)
def scaled_transpose(x: Any, s: Any, p: Axes) -> Any:
    """transpose(x) s = transpose(x s)"""
    return (op.permute_dims(x, p) * s, op.permute_dims(x * s, p)) if _same_way(x, p) else None


@_rule("x: m k, y: n k", numerics="exact", tags=("transpose", "concat"), check=False)
def concat_of_transposes(x: Any, y: Any) -> Any:
    """[X', Y'] = [X; Y]'"""
    return op.concat([x.T, y.T], 1), op.concat([x, y], 0).T


@_rule("x: k m, y: k n", numerics="exact", tags=("transpose", "concat"), check=False)
def rows_of_transposes(x: Any, y: Any) -> Any:
    """[X'; Y'] = [X, Y]'"""
    return op.concat([x.T, y.T], 0), op.concat([x, y], 1).T


@_rule("x: m n, v:", sizes="a b c d", numerics="exact", tags=("transpose", "pad"), check=False)
def pad_of_transpose(x: Any, v: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """pad(X') = pad(X)', by the widths in the other order"""
    return op.pad(x.T, [(a, b), (c, d)], v), op.pad(x, [(c, d), (a, b)], v).T


# --- reshapes of reshapes: axes put together and taken apart ---


@_rule("x: *a m n *c", phase="simplify", numerics="exact", when="n >= 1", tags=("reshape",), check=False)
def split_of_merged(x: Any) -> Any:
    """reshape(reshape(x, m n), m, n) = x: two neighbouring axes merged and split"""
    at = x.shape.index(Dim.var("m"))
    m, n = x.shape[at : at + 2]
    return op.reshape(op.reshape(x, (*x.shape[:at], m * n, *x.shape[at + 2 :])), x.shape), x


@_rule("x: *a m*n *c", sizes="m n", phase="simplify", numerics="exact", tags=("reshape",), check=False)
def merge_of_split(x: Any, m: Any, n: Any) -> Any:
    """reshape(reshape(x, m, n), m n) = x: an axis split and merged"""
    at = x.shape.index(m * n)
    return op.reshape(op.reshape(x, (*x.shape[:at], m, n, *x.shape[at + 1 :])), x.shape), x


@_rule("x: m n d *c", phase="simplify", numerics="exact", when="n >= 1", tags=("reshape",), check=False)
def flat_of_merged_rows(x: Any) -> Any:
    """reshape(reshape(x, m n, d), m n d) = reshape(x, m n d): rows merged, then all axes"""
    m, n, *rest = x.shape
    elements = math.prod(x.shape, start=Dim.of(1))
    return op.reshape(op.reshape(x, (m * n, *rest)), (elements,)), op.reshape(x, (elements,))


@_rule("x: b s h d", phase="simplify", numerics="exact", when=("d >= 1", "h >= 1"), tags=("reshape",), check=False)
def merge_of_merged(x: Any) -> Any:
    """reshape(reshape(x, b, s, h d), b s, h d) = reshape(x, b s, h d): heads merged, then rows"""
    b, s, h, d = x.shape
    rows = (b * s, h * d)
    return op.reshape(op.reshape(x, (b, s, h * d)), rows), op.reshape(x, rows)


@_rule("x: b*s h*d", sizes="b s h d", phase="simplify", numerics="exact", when=("d >= 1", "h >= 1"),
       tags=("reshape",), check=False)  # fmt: skip
def split_of_split(x: Any, b: Any, s: Any, h: Any, d: Any) -> Any:
    """reshape(reshape(x, b, s, h d), b, s, h, d) = reshape(x, b, s, h, d): rows split, then heads"""
    return op.reshape(op.reshape(x, (b, s, h * d)), (b, s, h, d)), op.reshape(x, (b, s, h, d))


# --- slices, paddings and joints that cancel ---


@_rule("x: *a n *c", attrs={"axis": "concat.axis"}, sizes="i j k", numerics="exact", phase="simplify",
       tags=("slice", "concat"), check=False)  # fmt: skip
def concat_of_adjacent_slices(x: Any, axis: int, i: Any, j: Any, k: Any) -> Any:
    """[x[i:j], x[j:k]] = x[i:k]"""

    def part(low: Any, high: Any) -> Any:
        begin = [low if a == axis else 0 for a in range(x.ndim)]
        return op.strided_slice(x, begin, [high if a == axis else d for a, d in enumerate(x.shape)])

    if not 0 <= axis < x.ndim:
        return None
    return op.concat([part(i, j), part(j, k)], axis), part(i, k)


@_rule("x: *a n *c, y: *a m *c", attrs={"axis": "concat.axis"}, phase="simplify", numerics="exact",
       tags=("concat", "split"), check=False)  # fmt: skip
def split_of_concat(x: Any, y: Any, axis: int) -> Any:
    """split([x, y]) = x, y"""
    parts = op.split(op.concat([x, y], axis), [x.shape[axis]], axis)
    return (tuple_get(parts, 0), tuple_get(parts, 1)), (x, y)


@_rule("x: *a k *c, y: *a m *c, z: *a n *c", attrs={"axis": "concat.axis"}, numerics="exact", tags=("concat",),
       check=False)  # fmt: skip
def concat_of_three(x: Any, y: Any, z: Any, axis: int) -> Any:
    """[x, y, z] = [[x, y], z]: rules on two operands then apply to three"""
    return op.concat([x, y, z], axis), op.concat([op.concat([x, y], axis), z], axis)


@_rule("x: *b, v:", sizes="*l:b *h:b", phase="simplify", numerics="exact", tags=("slice", "pad"), check=False)
def slice_of_padded(x: Any, v: Any, l: Any, h: Any) -> Any:  # noqa: E741
    """pad(x)[where x is] = x"""
    if x.ndim == 0:
        return None
    end = [low + d for low, d in zip(l, x.shape, strict=True)]
    return op.strided_slice(op.pad(x, list(zip(l, h, strict=True)), v), l, end), x


@_rule("x: n, v:", sizes="a b c d", when=("a >= 0", "b >= 0"), numerics="exact", phase="simplify", tags=("pad",),
       check=False)  # fmt: skip
def pad_of_padded(x: Any, v: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """pad(pad(x)) = pad(x) by the sums of the widths, for one value"""
    return op.pad(op.pad(x, [(a, b)], v), [(c, d)], v), op.pad(x, [(a + c, b + d)], v)


@_rule("x: n *c", attrs={"mode": "take.mode"}, sizes="m", when=("m <= n", "n >= 1"), numerics="exact",
       phase="simplify", tags=("take", "slice"), check=False)  # fmt: skip
def rows_in_order(x: Any, m: Any, mode: str) -> Any:
    """x[0, 1, ..., m - 1] = x[:m]"""
    left = op.take(x, op.iota((m,)), 0, mode=mode)
    return left, op.strided_slice(x, (0,) * x.ndim, (m, *x.shape[1:]))


@_rule("x: *c", sizes="n i j", numerics="exact", tags=("slice", "broadcast"), check=False)
def slice_of_copies(x: Any, n: Any, i: Any, j: Any) -> Any:
    """broadcast(x, n)[i:j] = broadcast(x, j - i)"""
    left = op.strided_slice(op.broadcast_to(x, (n, *x.shape)), (i, *(0 for _ in x.shape)), (j, *x.shape))
    return left, op.broadcast_to(x, (j - i, *x.shape))


@_rule("x: *b", attrs={"a": "flip.axes"}, phase="simplify", numerics="exact", tags=("flip",), check=False)
def flip_of_flip(x: Any, a: Axes) -> Any:
    """flip(flip(x)) = x"""
    return op.flip(op.flip(x, a), a), x


# --- slices move towards inputs: less is computed ---


def _sliced(name: str, f: Callable[..., Any], operands: int) -> None:
    def one(x: Any, i: Any, j: Any) -> Any:
        return (op.strided_slice(f(x), i, j), f(op.strided_slice(x, i, j))) if x.ndim else None

    def two(x: Any, y: Any, i: Any, j: Any) -> Any:
        if not x.ndim:
            return None
        return op.strided_slice(f(x, y), i, j), f(op.strided_slice(x, i, j), op.strided_slice(y, i, j))

    function, shapes = (one, "x: *b") if operands == 1 else (two, "x: *b, y: *b")
    _rule(
        shapes, sizes="*i:b *j:b", name=f"slice_of_{name}", doc=f"{name}(x)[i:j] = {name}(x[i:j]): less is computed",
        numerics="exact", tags=("slice", "variants"), check=False,
    )(function)  # fmt: skip


for _name, _operands in _MOVED:
    _sliced(_name, getattr(op, _name), _operands)


@_rule("x: *b", sizes="*s *t", phase="simplify", numerics="exact", tags=("broadcast",), check=False)
def broadcast_of_broadcast(x: Any, s: Any, t: Any) -> Any:
    """broadcast(broadcast(x)) = broadcast(x) for further axes in front"""
    first = (*s, *x.shape)
    return op.broadcast_to(op.broadcast_to(x, first), (*t, *first)), op.broadcast_to(x, (*t, *first))


def _elementwise_rules(name: str, f: Callable[..., Any]) -> None:
    """Adds the rules by which an elementwise operator's operand need not be broadcast first."""

    def suffix(x: Any, y: Any) -> Any:
        return f(x, op.broadcast_to(y, x.shape)), f(x, y)

    def prefix(x: Any, y: Any) -> Any:
        return f(op.broadcast_to(y, x.shape), x), f(y, x)

    # JAX puts axes of size 1 in front of an operand with fewer axes.
    def behind(x: Any, y: Any) -> Any:
        front = tuple(range(x.ndim - y.ndim))
        return (f(x, op.expand_dims(y, front)), f(x, y)) if front else None

    def before(x: Any, y: Any) -> Any:
        front = tuple(range(x.ndim - y.ndim))
        return (f(op.expand_dims(y, front), x), f(y, x)) if front else None

    for side, function in (("right", behind), ("left", before)):
        for kind, shapes in (("", "x: *a *c, y: *c"), ("_image", "x: n k h w, y: k 1 1")):
            _rule(
                shapes,
                name=f"{name}_needs_no_axes_in_front_{side}{kind}",
                doc=f"{name} needs no axes of size 1 in front of an operand",
                phase="simplify",
                numerics="exact",
                tags=("broadcast", "variants"),
                check=False,
            )(function)
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
                doc=f"{name} needs no broadcast of an operand",
                phase="simplify",
                numerics="exact",
                tags=("broadcast", "variants"),
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
