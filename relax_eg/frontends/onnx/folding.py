"""Constant folding of ONNX nodes: their results for arrays that are known while the graph is read, such as shapes and
values computed from shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, numpy_dtype
from relax_eg.frontends.onnx.nodes import OnnxNode
from relax_eg.frontends.onnx.values import MOST_KNOWN, MOST_SIZES, Array, KnownArray, is_known, known_value
from relax_eg.ops.sizes import remaining_size
from relax_eg.shapes import Dim


class NotFoldable(Exception):
    """Raised if a node cannot be folded: its result depends on the sizes, or is too large to be computed now. The node
    is then computed when the program runs."""


def fold_node(node: OnnxNode) -> KnownArray | list[KnownArray] | None:
    """The result of a node if all its inputs are known and small and it can be folded; otherwise None, and the program
    computes the node."""
    inputs = [v for v in node.inputs if v is not None]
    if node.kind not in _FOLDS or not inputs:
        return None
    for v in inputs:
        if not isinstance(v, KnownArray) or v.array.size > (MOST_SIZES if v.is_symbolic else MOST_KNOWN):
            return None
    try:
        return _FOLDS[node.kind](node)
    except NotFoldable:
        return None


def _array(n: OnnxNode, i: int) -> Array:
    """Input `i`, an array of integers, sizes or booleans. UndecidedNow for other inputs."""
    found = n.known_array(i, f"input {i}")
    if found is None or found.dtype.kind not in "iubO":
        raise NotFoldable
    return found


def _check_count(count: int, *xs: Array) -> None:
    if count > (MOST_SIZES if any(x.dtype == object for x in xs) else MOST_KNOWN):
        raise NotFoldable


# --- comparisons and arithmetic ---


def _dim(x: Any) -> Dim:
    return x if isinstance(x, Dim) else Dim.of(int(x))


def _equal(a: Any, b: Any) -> bool:
    left, right = _dim(a), _dim(b)
    if left == right:
        return True
    if is_known(left, "!=", right):
        return False
    raise NotFoldable


def _less(a: Any, b: Any) -> bool:
    for relation, answer in (("<", True), (">=", False)):
        if is_known(_dim(a), relation, _dim(b)):
            return answer
    raise NotFoldable


def _size_quotient(a: Any, b: Any) -> Dim:
    """A size divided by another size: the remaining factors if the division is plain, otherwise a floor division."""
    left, right = _dim(a), _dim(b)
    found = remaining_size((left,), (right,))
    return found if found is not None and found * right == left else left // right


def _quotients(a: Array, b: Array) -> Array:
    """Quotients of integers, rounded towards zero."""
    if not b.all():
        raise NotFoldable
    down = a // b
    return down + ((down * b != a) & ((a < 0) != (b < 0))).astype(down.dtype)


def _remainders(a: Array, b: Array) -> Array:
    if not b.all():
        raise NotFoldable
    return np.mod(a, b)


def _binary(
    f: Callable[[Any, Any], Any], plain: Callable[[Array, Array], Any], dtype: str = ""
) -> Callable[[OnnxNode], KnownArray]:
    """The fold of an elementwise operator: `f` for sizes, `plain` for integers. `dtype`: that of the result, if it is
    not the dtype of the operands."""

    def fold(n: OnnxNode) -> KnownArray:
        a, b = _array(n, 0), _array(n, 1)
        if len(n.inputs) != 2 or n.dtype(0) != n.dtype(1) or a.dtype == bool:
            raise NotFoldable
        _check_count(math.prod(np.broadcast_shapes(a.shape, b.shape)), a, b)
        symbolic = a.dtype == object or b.dtype == object
        with np.errstate(all="ignore"):  # integers wrap around
            made = np.frompyfunc(f, 2, 1)(a, b) if symbolic else plain(a, b)
        return known_value(made, dtype or n.dtype(0))

    return fold


def _logical(f: Callable[..., Array], count: int) -> Fold:
    """The fold of an operator on `count` booleans."""

    def fold(n: OnnxNode) -> KnownArray:
        xs = [_array(n, i) for i in range(count)]
        if any(x.dtype != bool for x in xs):
            raise NotFoldable
        _check_count(math.prod(np.broadcast_shapes(*(x.shape for x in xs))), *xs)
        return known_value(f(*xs), "bool")

    return fold


def _mod(n: OnnxNode) -> KnownArray:
    if n.flag("fmod"):
        raise NotFoldable
    return _binary(lambda a, b: _dim(a) % _dim(b), _remainders)(n)


def _neg(n: OnnxNode) -> KnownArray:
    x = _array(n, 0)
    if x.dtype.kind not in "iO":
        raise NotFoldable
    return known_value(-x, n.dtype(0))


def _where(n: OnnxNode) -> KnownArray:
    at, x, y = _array(n, 0), _array(n, 1), _array(n, 2)
    if at.dtype != bool or n.dtype(1) != n.dtype(2):
        raise NotFoldable
    _check_count(math.prod(np.broadcast_shapes(at.shape, x.shape, y.shape)), x, y)
    return known_value(np.where(at, x, y), n.dtype(1))


def _product(n: OnnxNode) -> KnownArray:
    x = _array(n, 0)
    axes = n.integer_list("axes", 1)
    if x.ndim != 1 or axes not in (None, [0], [-1]) or x.dtype == bool:
        raise NotFoldable
    if axes is None and n.flag("noop_with_empty_axes"):
        raise NotFoldable
    with np.errstate(all="ignore"):
        wide = None if x.dtype == object else x.dtype
        return known_value(np.prod(x, keepdims=n.flag("keepdims", 1), dtype=wide), n.dtype(0))


def _cast(n: OnnxNode) -> KnownArray:
    value, to = n.required_input(0), n.at("to")
    assert isinstance(value, KnownArray)
    x = value.array
    n.ignore_attributes("saturate", "round_mode")
    if value.is_symbolic:
        # Sizes are assumed to fit into int32 and int64.
        if to not in ("int32", "int64"):
            raise NotFoldable
        return known_value(x, to)
    kind = numpy_dtype(to)
    if x.dtype.kind not in "iubf" or kind.kind not in "iubf" or (x.dtype.kind == "f" and value.weight is not None):
        raise NotFoldable
    if x.dtype.kind == "f" and kind.kind in "iu":
        held = dtype_of(to)
        if not (np.isfinite(x) & (x >= held.least) & (x <= held.greatest)).all():
            raise NotFoldable
    with np.errstate(all="ignore"):
        return known_value(x.astype(kind), to)


# --- movement ---


def _identity(n: OnnxNode) -> KnownArray:
    value = n.required_input(0)
    assert isinstance(value, KnownArray)
    return value


def _gather(n: OnnxNode) -> KnownArray:
    x, at = _array(n, 0), _array(n, 1)
    axis = n.axis(0, x.ndim)
    if at.dtype.kind not in "iu":
        raise NotFoldable
    _check_count(at.size * math.prod(d for a, d in enumerate(x.shape) if a != axis), x)
    return known_value(np.take(x, at.astype(np.int64), axis=axis), n.dtype(0))


def _concat(n: OnnxNode) -> KnownArray:
    xs = [_array(n, i) for i in range(len(n.inputs))]
    if len({n.dtype(i) for i in range(len(xs))}) > 1:
        raise NotFoldable
    _check_count(sum(x.size for x in xs), *xs)
    axis = n.axis(None, xs[0].ndim)
    wide = object if any(x.dtype == object for x in xs) else xs[0].dtype
    return known_value(np.concatenate([x.astype(wide) for x in xs], axis=axis), n.dtype(0))


def slice_range(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """The first position of a slice of an axis, and the number of its elements, as ONNX defines them."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        first, last = min(max(start, 0), size), min(max(end, 0), size)
        return first, max(-(-(last - first) // step), 0)
    first, last = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return first, max(-(-(first - last) // -step), 0)


def _slice(n: OnnxNode) -> KnownArray:
    x = _array(n, 0)
    starts, ends, axes, steps = (n.sizes(s, i) for i, s in enumerate(("starts", "ends", "axes", "steps"), 1))
    if starts is None or ends is None or any(not d.is_const for d in (*starts, *ends, *(axes or ()), *(steps or ()))):
        raise NotFoldable
    along = range(len(starts)) if axes is None else [d.value for d in axes]
    by = [1] * len(starts) if steps is None else [d.value for d in steps]
    for axis, start, end, step in zip(along, starts, ends, by, strict=True):
        at = n.normal_axis(axis, x.ndim)
        if step == 0:
            raise n.error("a step of 0", "steps other than 0")
        first, count = slice_range(start.value, end.value, step, x.shape[at])
        x = np.take(x, [first + i * step for i in range(count)], axis=at)
    return known_value(x, n.dtype(0))


def _axes(n: OnnxNode) -> tuple[int, ...] | None:
    found = n.integer_list("axes", 1)
    return None if found is None else tuple(found)


def _need_axes(n: OnnxNode) -> tuple[int, ...]:
    return tuple(d.value for d in n.all_sizes("axes", 1))


def _reshape(n: OnnxNode) -> KnownArray:
    x, shape = _array(n, 0), [d.value for d in n.all_sizes("shape", 1)]
    if not n.flag("allowzero"):
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return known_value(x.reshape(shape), n.dtype(0))


def _split(n: OnnxNode) -> list[KnownArray]:
    x, parts = _array(n, 0), n.integer_list("split", 1)
    axis = n.axis(0, x.ndim)
    if parts is None:
        count = n.at("num_outputs", n.output_count)
        each = -(-x.shape[axis] // count)  # the last part is smaller if the parts do not divide the axis
        parts = [max(min(each, x.shape[axis] - i * each), 0) for i in range(count)]
    if len(parts) != n.output_count or sum(parts) != x.shape[axis]:
        raise NotFoldable
    return [known_value(part, n.dtype(0)) for part in np.split(x, np.cumsum(parts)[:-1], axis)]


Fold = Callable[[OnnxNode], KnownArray | list[KnownArray]]

_FOLDS: dict[str, Fold] = {
    "Add": _binary(lambda a, b: a + b, np.add), "Sub": _binary(lambda a, b: a - b, np.subtract),
    "Mul": _binary(lambda a, b: a * b, np.multiply), "Div": _binary(_size_quotient, _quotients), "Mod": _mod,
    "Equal": _binary(_equal, np.equal, "bool"), "Less": _binary(_less, np.less, "bool"),
    "Greater": _binary(lambda a, b: _less(b, a), np.greater, "bool"),
    "Max": _binary(lambda a, b: b if _less(a, b) else a, np.maximum),
    "Min": _binary(lambda a, b: a if _less(a, b) else b, np.minimum),
    "LessOrEqual": _binary(lambda a, b: not _less(b, a), np.less_equal, "bool"),
    "GreaterOrEqual": _binary(lambda a, b: not _less(a, b), np.greater_equal, "bool"),
    "Not": _logical(np.logical_not, 1), "And": _logical(np.logical_and, 2), "Or": _logical(np.logical_or, 2),
    "Xor": _logical(np.logical_xor, 2),
    "Neg": _neg, "Where": _where, "ReduceProd": _product, "Cast": _cast, "Identity": _identity, "Gather": _gather,
    "Concat": _concat, "Split": _split, "Slice": _slice, "Reshape": _reshape,
    "Unsqueeze": lambda n: known_value(np.expand_dims(_array(n, 0), _need_axes(n)), n.dtype(0)),
    "Squeeze": lambda n: known_value(np.squeeze(_array(n, 0), _axes(n)), n.dtype(0)),
    "Transpose": lambda n: known_value(np.transpose(_array(n, 0), n.at("perm")), n.dtype(0)),
}  # fmt: skip
