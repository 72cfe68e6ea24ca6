"""Relax's operators by Relax's names and arguments: `R.nn.conv2d(x, w, strides=[1, 1])`.

Each is written with `rx.op`. Module text reads an operator by this table where its own spelling, operands and then
attributes by name, does not fit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax_eg.dtypes import is_float
from relax_eg.errors import OperatorError, UndecidedError
from relax_eg.ir.annotations import Shape, Tensor, Tuple
from relax_eg.ir.expr import Expr, const, shape_value, tuple_, tuple_get
from relax_eg.ir.host_calls import OWN, host_call
from relax_eg.ops import api as op
from relax_eg.ops.upstream_arguments import Axis, axes_tuple, dims_of_shape, plain_number
from relax_eg.ops.upstream_nn import NETWORKS
from relax_eg.shapes import Dim

Sizes = Any  # an expression that is a shape, or a tuple of sizes


def _fields(xs: Any) -> tuple[Expr, ...]:
    if isinstance(xs, Expr) and isinstance(xs.annotation, Tuple):
        return tuple(tuple_get(xs, i) for i in range(len(xs.annotation.fields)))
    return tuple(xs) if isinstance(xs, (tuple, list)) else (xs,)


def _by_host(name: str, args: Sequence[Expr], shape: Expr, dtype: str | None) -> Expr:
    """The call that computes a result whose shape is a value of unknown sizes."""
    assert isinstance(shape.annotation, Shape)
    return host_call(OWN + name, [*args, shape], Tensor(ndim=shape.annotation.ndim, dtype=dtype), pure=True)


# --- elementwise ---


def trunc(x: Expr) -> Expr:
    return op.where(op.less(x, 0.0), op.ceil(x), op.floor(x)) if is_float(x.dtype) else x


def isinf(x: Expr) -> Expr:
    return op.logical_not(op.logical_or(op.isfinite(x), op.isnan(x)))


def floor_divide(x: Expr, y: Expr) -> Expr:
    return op.floor(op.divide(x, y)) if is_float(_dtype(x, y)) else op.divide(op.subtract(x, floor_mod(x, y)), y)


def floor_mod(x: Expr, y: Expr) -> Expr:
    if is_float(_dtype(x, y)):
        return op.subtract(x, op.multiply(op.floor(op.divide(x, y)), y))
    return op.remainder(op.add(op.remainder(x, y), y), y)


def _dtype(*xs: Any) -> str:
    return next((x.dtype for x in xs if isinstance(x, Expr)), "float32")


def clip(x: Expr, min: Any, max: Any) -> Expr:
    return op.clip(x, plain_number(min), plain_number(max))


def ewise_fma(x1: Expr, x2: Expr, x3: Expr) -> Expr:
    return op.add(op.multiply(x1, x2), x3)


# --- reductions ---


def variance(x: Expr, axis: Axis = None, keepdims: bool = False) -> Expr:
    return op.mean(op.square(op.subtract(x, op.mean(x, axes_tuple(axis), True))), axes_tuple(axis), keepdims)


def std(x: Expr, axis: Axis = None, keepdims: bool = False) -> Expr:
    return op.sqrt(variance(x, axis, keepdims))


def collapse_sum_to(data: Expr, shape: Sizes) -> Expr:
    wanted = dims_of_shape(shape) or ()
    lost = data.ndim - len(wanted)
    summed = [i for i in range(data.ndim) if i < lost or (wanted[i - lost] == 1 and data.shape[i] != 1)]
    return op.reshape(op.sum(data, tuple(summed), True), wanted) if summed else data


def collapse_sum_like(data: Expr, collapse_target: Expr) -> Expr:
    return collapse_sum_to(data, collapse_target.shape)


def _cumulated(name: str) -> Callable[..., Expr]:
    def scan(data: Expr, axis: int | None = None, dtype: str | None = None, exclusive: bool = False) -> Expr:
        x = flatten(data) if axis is None else data
        x = x if dtype in (None, "void", x.dtype) else op.astype(x, dtype)
        if exclusive:
            raise OperatorError(f"{name}: exclusive=True; inclusive sums and products are accepted")
        return getattr(op, name)(x, 0 if axis is None else axis)

    scan.__name__ = scan.__qualname__ = name
    return scan


# --- shapes ---


def reshape(x: Expr, shape: Sizes) -> Expr:
    dims = dims_of_shape(shape)
    if dims is None:
        return _by_host("reshape", [x], shape, x.dtype)
    try:
        return op.reshape(x, dims)
    except UndecidedError:  # sizes that a `match_cast` of a shape named
        return _by_host("reshape", [x], shape_value(dims), x.dtype)


def broadcast_to(x: Expr, shape: Sizes) -> Expr:
    dims = dims_of_shape(shape)
    return _by_host("broadcast_to", [x], shape, x.dtype) if dims is None else op.broadcast_to(x, dims)


def flatten(x: Expr) -> Expr:
    return op.reshape(x, (-1,)) if x.ndim != 1 else x


def concat(tensors: Any, axis: int = 0) -> Expr:
    return op.concat(_fields(tensors), axis)


def stack(tensors: Any, axis: int = 0) -> Expr:
    return op.stack(_fields(tensors), axis)


def split(x: Expr, indices_or_sections: int | Sequence[int], axis: int = 0) -> Expr:
    if isinstance(indices_or_sections, int):
        return op.split(x, indices_or_sections, axis)
    ends = [0, *indices_or_sections, x.shape[axis]]
    return tuple_(_slice(x, axis, a, b) for a, b in zip(ends, ends[1:], strict=False))


def _slice(x: Expr, axis: int, begin: Any, end: Any) -> Expr:
    key: list[Any] = [slice(None)] * x.ndim
    key[axis] = slice(begin, end)
    return op.getitem(x, tuple(key))


def strided_slice(x: Expr, axes: Any, begin: Any, end: Any, strides: Any = None, assume_inbound: bool = False) -> Expr:
    key: list[Any] = [slice(None)] * x.ndim
    steps = [1] * len(begin) if strides is None else [plain_number(s) for s in strides]
    for axis, low, high, step in zip(
        map(plain_number, axes), map(plain_number, begin), map(plain_number, end), steps, strict=True
    ):
        size = x.shape[axis]
        if isinstance(high, int) and size.is_const and step > 0:
            high = min(high, size.value)
        key[axis] = slice(low, high, step)
    return op.getitem(x, tuple(key))


def tile(x: Expr, repeats: Any) -> Expr:
    counts = tuple(repeats) if isinstance(repeats, (tuple, list)) else (repeats,)
    if len(counts) < x.ndim:
        counts = (*(1,) * (x.ndim - len(counts)), *counts)
    for axis, n in enumerate(counts[len(counts) - x.ndim :]):
        if n != 1:
            x = op.concat((x,) * n, axis)
    return op.broadcast_to(x, (*counts[: len(counts) - x.ndim], *x.shape))


def repeat(data: Expr, repeats: int, axis: int | None = None) -> Expr:
    x = flatten(data) if axis is None else data
    at = (0 if axis is None else axis) % x.ndim
    wide = op.broadcast_to(op.expand_dims(x, at + 1), (*x.shape[: at + 1], repeats, *x.shape[at + 1 :]))
    return op.reshape(wide, (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :]))


def take(x: Expr, indices: Expr, axis: int | None = None, mode: str = "fast") -> Expr:
    return op.take(x, indices, axis, mode="clip" if mode == "clip" else "fill")


def gather_elements(data: Expr, indices: Expr, axis: int = 0) -> Expr:
    return op.take_along_axis(data, indices, axis)


def scatter_elements(data: Expr, indices: Expr, updates: Expr, axis: int = 0, reduction: str = "update") -> Expr:
    """Element by element, each place is compared: `data` may have few places along the axis."""
    at = axis % data.ndim
    places = op.iota((data.shape[at],), 0, indices.dtype)
    # One axis more, first: the element of `updates` along the axis that writes.
    moved, new = op.swapaxes(indices, 0, at), op.swapaxes(updates, 0, at)
    target = op.swapaxes(data, 0, at)
    shape = (moved.shape[0], data.shape[at], *moved.shape[1:])
    own = op.equal(op.expand_dims(moved, 1), op.reshape(places, (1, data.shape[at], *(1,) * (data.ndim - 1))))
    hit = op.broadcast_to(own, shape)
    spread = op.where(hit, op.broadcast_to(op.expand_dims(new, 1), shape), op.zeros(shape, data.dtype))
    if reduction == "add":
        found = op.add(target, op.sum(spread, 0))
    elif reduction == "update":
        written = op.any(hit, 0)
        order = op.iota(shape, 0, "int32")
        last = op.max(op.where(hit, order, op.full(shape, -1, "int32")), 0, True)
        only = op.where(op.equal(order, op.broadcast_to(last, shape)), spread, op.zeros(shape, data.dtype))
        found = op.where(written, op.sum(only, 0), target)
    else:
        raise OperatorError(f"scatter_elements: reduction={reduction!r}; update and add are accepted")
    return op.swapaxes(found, 0, at)


def sort(data: Expr, axis: int = -1, descending: bool = False) -> Expr:
    found = op.sort(data, axis)
    return op.flip(found, axis) if descending else found


def argsort(data: Expr, axis: int = -1, descending: bool = False, dtype: str = "int32") -> Expr:
    x = op.negative(data) if descending else data
    return op.argsort(x, axis, dtype)


def topk(
    data: Expr, k: int = 1, axis: int = -1, ret_type: str = "both", largest: bool = True, dtype: str = "int32"
) -> Any:
    values, places = op.top_k(data if largest else op.negative(data), k, axis)
    values = values if largest else op.negative(values)
    places = places if places.dtype == dtype else op.astype(places, dtype)
    return {"both": tuple_((values, places)), "values": values, "indices": places}[ret_type]


def argmax(x: Expr, axis: int | None = None, keepdims: bool = False) -> Expr:
    return op.argmax(x, axis, keepdims) if axis is not None else op.argmax(flatten(x), 0, keepdims)


def argmin(x: Expr, axis: int | None = None, keepdims: bool = False) -> Expr:
    return op.argmin(x, axis, keepdims) if axis is not None else op.argmin(flatten(x), 0, keepdims)


# --- creation ---


def full(shape: Sizes, fill_value: Any, dtype: str | None = None) -> Expr:
    value = fill_value if isinstance(fill_value, Expr) else const(fill_value, dtype)
    value = value if dtype in (None, value.dtype) else op.astype(value, str(dtype))
    dims = dims_of_shape(shape)
    if dims is None:
        return host_call(OWN + "full", [shape, value], Tensor(ndim=shape.annotation.ndim, dtype=value.dtype), pure=True)
    number = plain_number(value)
    return op.full(dims, number, value.dtype) if not isinstance(number, Expr) else op.broadcast_to(value, dims)


def full_like(x: Expr, fill_value: Any, dtype: str | None = None) -> Expr:
    return full(x.shape, fill_value, dtype if dtype not in (None, "void") else x.dtype)


def zeros(shape: Sizes, dtype: str) -> Expr:
    return full(shape, const(0, dtype))


def ones(shape: Sizes, dtype: str) -> Expr:
    return full(shape, const(1, dtype))


def zeros_like(x: Expr, dtype: str | None = None) -> Expr:
    return full(x.shape, const(0, x.dtype if dtype in (None, "void") else dtype))


def ones_like(x: Expr, dtype: str | None = None) -> Expr:
    return full(x.shape, const(1, x.dtype if dtype in (None, "void") else dtype))


def arange(start: Any, end: Any = None, step: Any = 1, dtype: str | None = None) -> Expr:
    low, high = (0, start) if end is None else (start, end)
    low, high, step = map(plain_number, (low, high, step))
    kind = dtype or ("float32" if any(isinstance(v, float) for v in (low, high, step)) else "int64")
    if not any(isinstance(v, float) for v in (low, high, step)):
        found = op.arange(low, high, step, "int32" if is_float(kind) else kind)
        return found if found.dtype == kind else op.astype(found, kind)
    count = max(0, math.ceil((high - low) / step))
    return op.add(op.multiply(op.iota((count,), 0, kind), step), low)


def one_hot(indices: Expr, on_value: Any, off_value: Any, depth: int, axis: int = -1) -> Expr:
    on, off = plain_number(on_value), plain_number(off_value)
    dtype = "float32" if isinstance(on, float) else "int64"
    hot = op.one_hot(indices, depth, dtype)
    found = hot if (on, off) == (1, 0) else op.add(op.multiply(hot, on - off), off)
    rank = found.ndim
    if axis in (-1, rank - 1):
        return found
    order = [i for i in range(rank - 1)]
    order.insert(axis % rank, rank - 1)
    return op.permute_dims(found, tuple(order))


# --- products ---


def matmul(x1: Expr, x2: Expr, out_dtype: str | None = None) -> Expr:
    return op.matmul(x1, x2, out_dtype=None if out_dtype in (None, "void", "") else out_dtype)


def linear(data: Expr, weight: Expr, bias: Expr | None = None, out_dtype: str | None = None) -> Expr:
    found = matmul(data, op.permute_dims(weight), out_dtype)
    return found if bias is None else op.add(found, bias)


def einsum(operands: Any, subscripts: str) -> Expr:
    """Two operands at a time are multiplied and what no later one needs is summed."""
    given, _, result = subscripts.replace(" ", "").partition("->")
    letters, xs = given.split(","), list(_fields(operands))
    if "..." in subscripts or not result or any(len(set(t)) < len(t) for t in letters):
        raise OperatorError(f"einsum: {subscripts!r}; letters, each once in an operand, and a result are accepted")
    if len(letters) != len(xs):
        raise OperatorError(f"einsum: {len(letters)} terms for {len(xs)} operands")
    order = [*dict.fromkeys("".join(letters))]
    aligned = []
    for text, x in zip(letters, xs, strict=True):
        sizes = dict(zip(text, x.shape, strict=True))
        turned = op.permute_dims(x, tuple(sorted(range(len(text)), key=lambda i: order.index(text[i])))) if text else x
        aligned.append(op.reshape(turned, tuple(sizes.get(a, Dim.of(1)) for a in order)))
    if len(xs) == 2:
        shared = [a for a in order if a in letters[0] and a in letters[1] and a not in result]
        free = [[a for a in t if a not in shared and a not in letters[1 - i]] for i, t in enumerate(letters)]
        both = [a for a in order if a in letters[0] and a in letters[1] and a in result]
        if shared and not both and all(a in result for f in free for a in f):
            x, y = (
                op.permute_dims(x, tuple(t.index(a) for a in o))
                for x, t, o in zip(xs, letters, ([*free[0], *shared], [*shared, *free[1]]), strict=True)
            )
            k = math.prod(dict(zip(letters[0], xs[0].shape, strict=True))[a] for a in shared)
            a = op.reshape(x, (*x.shape[: len(free[0])], k))
            b = op.reshape(y, (k, *y.shape[len(shared) :]))
            rows = a if a.ndim == 2 else op.reshape(a, (math.prod(a.shape[:-1]), k))
            columns = b if b.ndim == 2 else op.reshape(b, (k, math.prod(b.shape[1:])))
            made = op.reshape(op.matmul(rows, columns), (*a.shape[:-1], *b.shape[1:]))
            names = [*free[0], *free[1]]
            return op.permute_dims(made, tuple(names.index(a) for a in result)) if names != list(result) else made
    whole = aligned[0]
    for x in aligned[1:]:
        whole = op.multiply(whole, x)
    summed = tuple(i for i, a in enumerate(order) if a not in result)
    found = op.sum(whole, summed) if summed else whole
    left = [a for a in order if a in result]
    return op.permute_dims(found, tuple(left.index(a) for a in result)) if left != list(result) else found


def unique(
    x: Expr, sorted: bool = True, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, axis: int | None = None,
) -> Expr:  # fmt: skip
    if return_index or axis is not None:
        raise OperatorError("unique: return_index and axis; the values, their places and counts are accepted")
    return op.unique(x, bool(plain_number(return_inverse)), bool(plain_number(return_counts)))


def nonzero(x: Expr) -> Expr:
    return op.nonzero(x, "int64")


_PLAIN = (
    trunc, isinf, floor_divide, floor_mod, clip, ewise_fma, variance, std, collapse_sum_to,
    collapse_sum_like, reshape, broadcast_to, flatten, concat, stack, split, strided_slice,
    tile, repeat, take, gather_elements, scatter_elements, sort, argsort, topk, argmax, argmin, full,
    full_like, zeros, ones, zeros_like, ones_like, arange, one_hot, matmul, linear, einsum, unique, nonzero,
    *(_cumulated(n) for n in ("cumsum", "cumprod")),
)  # fmt: skip

# The functions of `rx.op`, which text and scripts call as `R.op.name(...)`.
OWN_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: f
    for name, f in vars(op).items()
    if inspect.isfunction(f) and not name.startswith("_") and f.__module__.startswith("relax_eg.ops.api")
}
UPSTREAM: Mapping[str, Callable[..., Any]] = {
    **{f"R.{name}": f for name, f in OWN_FUNCTIONS.items()},
    "R.mod": op.remainder,
    **{f"R.{f.__name__}": f for f in _PLAIN},
    **NETWORKS,
}
"""The operators of Relax by their names, with Relax's arguments."""
