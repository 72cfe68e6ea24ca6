"""Handlers that turn ONNX nodes into operators: elementwise, movement, contraction, reduction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, is_float, is_integer, kind
from relax_eg.frontends.onnx import (
    attention,
    creation,
    further,
    fused,
    indexed,
    normalisation,
    packed,
    quantized,
    recurrent,
    resize,
    rotary,
    sampled,
    selected,
    sequences,
    signals,
    subgraphs,
    training,
    windows,
)
from relax_eg.frontends.onnx.activations import ACTIVATIONS, activated
from relax_eg.frontends.onnx.creation import normal_indices
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import MOST_KNOWN, Array, KnownArray, greatest, is_known, least
from relax_eg.frontends.onnx.widths import computed_in_float32
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.sizes import ZERO, product
from relax_eg.shapes import Dim, dim_select


def _unary(f: Callable[[Expr], Expr]) -> Handler:
    return lambda n: f(n[0])


def _binary(f: Callable[[Expr, Expr], Expr]) -> Handler:
    return lambda n: f(n[0], n[1])


def _nary(f: Callable[[Expr, Expr], Expr]) -> Handler:
    return lambda n: functools.reduce(f, n.all)


def _check_shape(n: OnnxNode, y: Expr, x: Expr) -> Expr:
    """`y`, which must have the shape of `x`. OnnxError if an operand that is broadcast to `x` made it larger."""
    if y.shape != x.shape:
        shapes = f"{', '.join(map(str, y.shape))} instead of {', '.join(map(str, x.shape))}"
        raise n.error(f"an operand makes the result larger: {shapes}", "operands that broadcast to the first one")
    return y


def _single(n: OnnxNode, i: int, what: str) -> Expr | None:
    """Input `i`, which must have a single element, as a scalar; None if it is left out."""
    found = n.optional_input(i)
    if found is not None and product(found.shape) != 1:
        raise n.error(f"{what} of shape ({', '.join(map(str, found.shape))})", f"a scalar as {what}")
    return None if found is None else op.reshape(found, ())


_GREATEST_FLOAT: float = dtype_of("float32").greatest


def _clip(n: OnnxNode) -> Expr:
    x = n[0]
    if n.opset < 11:
        bounds = n.at("min", -_GREATEST_FLOAT), n.at("max", _GREATEST_FLOAT)
    else:
        bounds = _single(n, 1, "min"), _single(n, 2, "max")
    # An omitted bound is the greatest finite number of the dtype, so it limits infinities.
    most = dtype_of(x.dtype).greatest if is_float(x.dtype) else None
    for limited, bound, sign in zip((op.maximum, op.minimum), bounds, (-1, 1), strict=True):
        if isinstance(bound, float) and most is not None and abs(bound) > most:
            continue  # a bound beyond every number of the dtype stands for infinity
        if bound is None and most is not None:
            bound = sign * most
        if bound is not None:
            x = limited(x, bound)
    return x


def _abs(x: Expr) -> Expr:
    return x if kind(x.dtype) == "u" else op.abs(x)


def _prelu(n: OnnxNode) -> Expr:
    x, slope = n[0], n[1]
    return _check_shape(n, op.where(op.less(x, 0), slope * x, x), x)


def _gelu(n: OnnxNode) -> Expr:
    return op.gelu(n[0], approximate=n.choice("approximate", "none", "none", "tanh") == "tanh")


def _activation(name: str) -> Handler:
    usual = ACTIVATIONS[name][1]
    names = ("alpha", "beta")[: len(usual)]
    return lambda n: activated(name, n[0], *map(n.at, names, usual))


def _celu(x: Expr, alpha: float) -> Expr:
    return op.maximum(x, 0) + op.minimum(alpha * op.expm1(x / alpha), 0)


def _selu(n: OnnxNode) -> Expr:
    alpha, gamma = n.at("alpha", 1.67326319217681884765625), n.at("gamma", 1.05070102214813232421875)
    return gamma * activated("Elu", n[0], alpha)


_MOST_MULTIPLIED = 8  # limit: the largest constant exponent for which a power becomes a product


def _pow(n: OnnxNode) -> Expr:
    x, y = n[0], n.required_input(1)
    if isinstance(y, KnownArray) and y.array.size == 1 and not y.is_symbolic and y.array.ndim <= x.ndim:
        value = float(y.array.reshape(()))
        if abs(value) <= _MOST_MULTIPLIED and value == int(value) and (value >= 0 or is_float(x.dtype)):
            return op.integer_pow(x, int(value))
    exponent = n[1]
    if not is_float(x.dtype):
        return further.integer_power(n, x, exponent)
    floats = {x.dtype, exponent.dtype} if is_float(exponent.dtype) else {x.dtype}
    both = x.dtype if len(floats) == 1 else "float64" if "float64" in floats else "float32"
    return op.astype(op.power(op.astype(x, both), op.astype(exponent, both)), x.dtype)


def _mod(n: OnnxNode) -> Expr:
    x, y = n[0], n[1]
    left = op.remainder(x, y)  # it has the sign of x
    if n.flag("fmod") or kind(x.dtype) == "u":
        return left
    differs = op.logical_and(op.not_equal(left, 0), op.not_equal(op.less(left, 0), op.less(y, 0)))
    return op.where(differs, left + y, left)


def _scale(n: OnnxNode, name: str, dtype: str) -> Any:
    """Attribute `name`, a float, as a number of `dtype`."""
    found = float(n.at(name, 1.0))
    if is_float(dtype):
        return found
    if found != int(found):
        raise n.error(f"{name}={found:g} with {dtype}s", f"a whole {name}")
    return int(found)


def _gemm(n: OnnxNode) -> Expr:
    a, b = n[0], n[1]
    if a.ndim != 2 or b.ndim != 2:
        raise n.error(f"operands of rank {a.ndim} and {b.ndim}", "matrices")
    a = op.permute_dims(a) if n.flag("transA") else a
    b = op.permute_dims(b) if n.flag("transB") else b
    alpha, beta = _scale(n, "alpha", a.dtype), _scale(n, "beta", a.dtype)
    y, c = a @ b, n.optional_input(2)
    y = y if alpha == 1 else alpha * y
    return y if c is None or beta == 0 else _check_shape(n, y + (c if beta == 1 else beta * c), y)


# --- movement ---


def _reshape(n: OnnxNode) -> Expr:
    x = n[0]
    shape = list(n.all_sizes("shape", 1))
    if not n.flag("allowzero"):
        if any(d == 0 for d in shape[x.ndim :]):
            raise n.error(
                f"a size of 0, which is to be copied, beyond rank {x.ndim}", "sizes of 0 where there are axes"
            )
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return op.reshape(x, shape)


def _flatten(n: OnnxNode) -> Expr:
    x = n[0]
    axis = n.axis(1, x.ndim, last=True)
    return op.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def _squeeze(n: OnnxNode) -> Expr:
    x, axes = n[0], n.integer_list("axes", 1)
    if axes is None and any(not d.is_const for d in x.shape):
        shape = ", ".join(map(str, x.shape))
        raise n.error(f"no axes, and sizes that may be 1 ({shape})", "axes, or fixed sizes")
    return op.squeeze(x, None if axes is None else tuple(axes))


def _concat(n: OnnxNode) -> Expr:
    xs = n.all
    return op.concat(xs, n.axis(None, xs[0].ndim))


def _expand(n: OnnxNode) -> Expr:
    x, shape = n[0], list(n.all_sizes("shape", 1))
    own = [Dim.of(1)] * (len(shape) - x.ndim) + list(x.shape)
    shape = [Dim.of(1)] * (x.ndim - len(shape)) + shape
    # A size of 1 in the shape leaves the axis unchanged.
    return op.broadcast_to(x, [a if b == 1 else b for a, b in zip(own, shape, strict=True)])


def _split(n: OnnxNode) -> Sequence[Expr]:
    x = n[0]
    axis, size = n.axis(0, x.ndim), x.shape[n.axis(0, x.ndim)]
    parts, count = n.sizes("split", 1), n.output_count
    if parts is None:
        if (told := n.at("num_outputs", count)) != count:
            raise n.error(f"num_outputs={told} with {count} outputs", "as many outputs as num_outputs")
        if n.opset < 18 and size.is_const and size.value % count:
            raise n.error(f"{size} elements in {count} equal parts", "sizes that are divided")
        made = op.split(x, count, axis)
    else:
        total = functools.reduce(lambda a, b: a + b, parts, Dim.of(0))
        if len(parts) != count or (total != size and (total - size).is_const):
            text = ", ".join(map(str, parts))
            raise n.error(f"parts of {text} of {size} elements for {count} outputs", "parts that make up the axis")
        cuts = [functools.reduce(lambda a, b: a + b, parts[: i + 1]) for i in range(len(parts) - 1)]
        made = op.split(x, cuts, axis)
    return list(made)


_NO_END = 10**9  # given: longer than any axis; exporters write such numbers for a slice without an end


def _slice(n: OnnxNode) -> Expr:
    x = n[0]
    starts, ends = n.all_sizes("starts", 1), n.all_sizes("ends", 2)
    if not len(starts) == len(ends):
        raise n.error(f"{len(starts)} starts and {len(ends)} ends", "as many starts as ends")
    axes, steps = n.integer_list("axes", 3), n.integer_list("steps", 4)
    along = [n.normal_axis(a, x.ndim) for a in (range(len(starts)) if axes is None else axes)]
    by = [1] * len(starts) if steps is None else steps
    if len(set(along)) < len(along) or len(along) != len(starts) or len(by) != len(starts) or 0 in by:
        raise n.error(f"axes {along}, steps {by}", "as many as starts, an axis once, steps other than 0")
    keys: list[slice] = [slice(None)] * x.ndim
    turned: list[int] = []
    for axis, start, end, step in zip(along, starts, ends, by, strict=True):
        size = x.shape[axis]
        if size.is_const and start.is_const and end.is_const:
            first, count = _slice_range(start.value, end.value, step, size.value)
            if step > 0 or not count:
                keys[axis] = slice(first, min(first + count * step, size.value) if count else first, max(step, 1))
            else:
                keys[axis] = slice(first + (count - 1) * step, first + 1, -step)
                turned.append(axis)
            continue
        if step < 0 and not (step == -1 and start in (-1,) and end.is_const and end.value <= -_NO_END):
            raise n.error(f"the step {step} from {start} to {end}", "steps >= 1, or a whole axis backwards")
        if step < 0:
            keys[axis] = slice(None, None, step)
            continue
        low, high = (_slice_bound(at, size) for at in (start, end))
        keys[axis] = slice(low, greatest(high, low), step)
    x = op.getitem(x, tuple(keys))
    return op.flip(x, tuple(turned)) if turned else x


def _slice_range(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """The first position of a slice of an axis, and the number of its elements, as ONNX defines them."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        first, last = min(max(start, 0), size), min(max(end, 0), size)
        return first, max(-(-(last - first) // step), 0)
    first, last = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return first, max(-(-(first - last) // -step), 0)


def _slice_bound(at: Dim, size: Dim) -> Dim:
    """The place where a slice of an axis of `size` elements begins or ends.

    As in ONNX, numbers below 0 count from the end, and places out of range are clamped. A symbolic place that is never
    below 0 is assumed to be inside, as in a slice of a table of positions up to the number of tokens. This is the
    precondition of the slice, which is checked at calls.
    """
    if at.is_const and abs(at.value) >= _NO_END:
        return size if at.value > 0 else ZERO
    if at.is_const and at.value < 0:
        at = size + at
    elif not at.is_const and is_known(ZERO, "<=", at):
        return at
    elif not at.is_const:
        at = dim_select(at, ">=", 0, at, size + at)
    return greatest(least(at, size), ZERO)


def _gather(n: OnnxNode) -> Expr:
    x, at = n[0], n.required_input(1)
    axis = n.axis(0, x.ndim)
    size = x.shape[axis]
    if isinstance(at, KnownArray) and not at.is_symbolic:
        array = at.array
        if size.is_const and ((array < -size.value) | (array >= size.value)).any():
            raise n.error(f"indices {array.tolist()} along {size} elements", f"indices from -{size} to {size - 1}")
        if array.ndim == 0:
            key: list[Any] = [slice(None)] * x.ndim
            key[axis] = int(array)
            return op.getitem(x, tuple(key))
        if size.is_const:
            return op.take(x, np.where(array < 0, array + size.value, array).astype(np.int32), axis, mode="clip")
    return op.take(x, normal_indices(n[1], size), axis, mode="clip")


def _gather_elements(n: OnnxNode) -> Expr:
    x, at = n[0], n[1]
    axis = n.axis(0, x.ndim)
    if at.ndim != x.ndim:
        raise n.error(f"indices of rank {at.ndim} for data of rank {x.ndim}", "equal ranks")
    # Along the other axes, there may be fewer indices than data.
    x = op.getitem(x, tuple(slice(None) if a == axis else slice(0, d) for a, d in enumerate(at.shape)))
    return op.take_along_axis(x, normal_indices(at, x.shape[axis]), axis, mode="clip")


def _tile(n: OnnxNode) -> Expr:
    x, times = n[0], n.all_sizes("repeats", 1)
    if len(times) != x.ndim:
        raise n.error(f"{len(times)} repeats for rank {x.ndim}", "one for each axis")
    inner = [s for d in x.shape for s in (Dim.of(1), d)]
    outer = [s for d, k in zip(x.shape, times, strict=True) for s in (k, d)]
    whole = [d * k for d, k in zip(x.shape, times, strict=True)]
    return op.reshape(op.broadcast_to(op.reshape(x, inner), outer), whole)


def _pad(n: OnnxNode) -> Expr:
    x, mode = n[0], n.choice("mode", "constant", "constant", "reflect", "edge", "wrap")
    pads, given = n.all_sizes("pads", 1), n.integer_list("axes", 3)
    axes = [n.normal_axis(a, x.ndim) for a in (range(x.ndim) if given is None else given)]
    if len(pads) != 2 * len(axes) or len(set(axes)) < len(axes):
        raise n.error(f"{len(pads)} pads for axes {axes}", "two for each axis, each axis once")
    width: list[tuple[Dim, Dim]] = [(Dim.of(0), Dim.of(0))] * x.ndim
    for i, axis in enumerate(axes):
        width[axis] = (pads[i], pads[i + len(axes)])
    if mode == "constant":
        value = n.at("value", 0.0) if n.opset < 11 else _single(n, 2, "the constant")
        fill = const(0, x.dtype) if value is None else value if isinstance(value, Expr) else const(value, x.dtype)
        return op.pad(x, width, fill)
    n.ignore_attributes("value")
    n.value(2)  # the constant
    for axis, (low, high) in enumerate(width):
        if (low, high) == (0, 0):
            continue
        if x.shape[axis].is_const or not (low.is_const and high.is_const and low.value >= 0 and high.value >= 0):
            x = op.take(x, _padded_positions(n, mode, x.shape[axis], low, high), axis, mode="clip")
        else:
            x = _padded_by_slices(x, mode, axis, low.value, high.value)
    return x


def _padded_by_slices(x: Expr, mode: Any, axis: int, low: int, high: int) -> Expr:
    """An axis of any size with elements of itself on both sides. It must have those elements, which calls check."""
    size = x.shape[axis]

    def part(start: Dim | int, stop: Dim | int) -> Expr:
        return op.getitem(x, tuple(slice(start, stop) if a == axis else slice(None) for a in range(x.ndim)))

    if mode == "reflect":
        before, after = op.flip(part(1, low + 1), axis), op.flip(part(size - high - 1, size - 1), axis)
    elif mode == "wrap":
        before, after = part(size - low, size), part(0, high)
    else:
        wide = [[d if a == axis else e for a, e in enumerate(x.shape)] for d in (low, high)]
        before, after = op.broadcast_to(part(0, 1), wide[0]), op.broadcast_to(part(size - 1, size), wide[1])
    return op.concat([before, x, after], axis)


def _padded_positions(n: OnnxNode, mode: Any, size: Dim, low: Dim, high: Dim) -> Array:
    """The positions of the elements of an axis that the padded axis holds, in order."""
    if not (size.is_const and low.is_const and high.is_const):
        raise n.error(f"mode={mode!r} with {size} elements and the widths {low} and {high}", "fixed sizes")
    if size.value + max(low.value, 0) + max(high.value, 0) > MOST_KNOWN:
        raise n.error(f"mode={mode!r} with the widths {low} and {high}", f"up to {MOST_KNOWN} elements")
    at = np.arange(size.value)[max(-low.value, 0) : size.value + min(high.value, 0)]
    return np.pad(at, (max(low.value, 0), max(high.value, 0)), mode).astype(np.int32)


def _transpose(n: OnnxNode) -> Expr:
    return op.permute_dims(n[0], n.at("perm"))


# --- reduction ---


def _reduction(f: Callable[..., Expr]) -> Handler:
    def handler(n: OnnxNode) -> Expr:
        x, axes = n[0], n.integer_list("axes", 1)
        # With no axes to reduce, the elementwise parts of the reduction still apply.
        none = n.flag("noop_with_empty_axes") and not axes
        over = () if none else tuple(axes) if axes else tuple(range(x.ndim))
        keep = n.flag("keepdims", 1)
        return computed_in_float32(lambda wide: f(wide, over, keep), x)

    return handler


def _mean(x: Expr, axes: Any, keepdims: bool) -> Expr:
    if not is_integer(x.dtype):
        return op.mean(x, axes, keepdims)
    count = product(x.shape[a] for a in axes)
    return op.divide(op.sum(x, axes, keepdims), count.value if count.is_const else count)


def _log_sum_exp(x: Expr, axes: Any, keepdims: bool) -> Expr:
    top = op.max(x, axes, True)
    # Infinities are not subtracted, because -inf - -inf is NaN.
    top = op.where(op.isfinite(top), top, 0)
    total = op.log(op.sum(op.exp(x - top), axes, keepdims))
    return total + (top if keepdims else op.squeeze(top, axes))


def _arg_reduction(f: Callable[..., Expr]) -> Handler:
    def handler(n: OnnxNode) -> Expr:
        x, keep = n[0], n.flag("keepdims", 1)
        axis = n.axis(0, x.ndim)
        if not n.flag("select_last_index"):
            return f(x, axis, keep, "int64")
        size = x.shape[axis]
        last = size.value - 1 if size.is_const else size - 1
        return op.subtract(last, f(op.flip(x, axis), axis, keep, "int64"))

    return handler


def _top_k(n: OnnxNode) -> Sequence[Expr]:
    x, k = n[0], n.sizes("k", 1)
    if k is None or len(k) != 1:
        raise n.error("no single k", "a known k")
    axis = n.axis(-1, x.ndim)
    n.flag("sorted", 1)  # 0 leaves the order undefined, so a sorted result is also correct
    if n.flag("largest", 1):
        values, at = op.top_k(x, k[0], axis)
    else:
        # Reverses the order of values without leaving the dtype.
        turned = op.negative if is_float(x.dtype) else op.bitwise_not
        values, at = op.top_k(turned(x), k[0], axis)
        values = turned(values)
    return [values, op.astype(at, "int64")]


def _saturates(dtype: str) -> bool:
    """Whether `saturate` applies to conversions to a dtype."""
    return is_float(dtype) and dtype_of(dtype).is_narrow


def _cast(n: OnnxNode) -> Expr:
    x, to = n[0], n.dtype(1) if n.kind == "CastLike" else n.at("to")
    round_mode, saturate = n.choice("round_mode", "up", "up", "down", "nearest"), n.flag("saturate", 1)
    if to == "bool":
        return x if x.dtype == "bool" else op.not_equal(x, 0)
    if is_float(to) and dtype_of(to).least > 0 and x.dtype != to:
        return quantized.as_powers_of_two(x, to, round_mode, saturate)
    if _saturates(to) and saturate and x.dtype != to:
        most = dtype_of(to).greatest
        x = x if is_float(x.dtype) and not _saturates(x.dtype) else op.astype(x, "float32")
        x = op.minimum(op.maximum(x, -most), most)  # NaN stays
    if _saturates(to) and is_float(x.dtype) and not dtype_of(to).has_negative_zero:
        # XLA without optimizations rounds small negative numbers to -0, whose bits are NaN in such a dtype.
        x = op.where(op.less_equal(op.abs(x), dtype_of(to).smallest / 2), 0, x)
    return op.astype(x, to)


def _dropout(n: OnnxNode) -> Sequence[Expr]:
    training, ratio = n.known_array(2, "training_mode"), n.value(1)
    kept = isinstance(ratio, KnownArray) and not ratio.array.any()
    if training is not None and bool(training.any()) and not kept:
        raise n.error("dropout in training", "a model exported for inference, or the ratio 0")
    n.ignore_attributes("seed", "ratio")
    x = n[0]
    return [x, op.ones(x.shape, "bool")] if n.opset >= 10 else [x]


HANDLERS: dict[str, Handler] = {
    **{name: _unary(f) for name, f in {
        "Abs": _abs, "Acos": op.acos, "Acosh": op.acosh, "Asin": op.asin, "Asinh": op.asinh, "Atan": op.atan,
        "Atanh": op.atanh, "Ceil": op.ceil, "Cos": op.cos, "Cosh": op.cosh, "Erf": op.erf, "Exp": op.exp,
        "Floor": op.floor, "IsNaN": op.isnan, "Log": op.log, "Neg": op.negative,
        "Not": op.logical_not, "Reciprocal": op.reciprocal, "Round": op.round,
        "Sign": op.sign, "Sin": op.sin, "Sinh": op.sinh, "Sqrt": op.sqrt, "Tan": op.tan,
        "HardSwish": lambda x: x * activated("HardSigmoid", x, 1 / 6, 0.5),
        "Mish": lambda x: x * op.tanh(activated("Softplus", x)),
    }.items()},
    **{name: _activation(name) for name in ACTIVATIONS.keys() - {"Affine", "ScaledTanh"}},  # no operators of ONNX
    **{name: _binary(f) for name, f in {
        "Add": op.add, "Sub": op.subtract, "Mul": op.multiply, "Div": op.divide, "MatMul": op.matmul, "Equal": op.equal,
        "Less": op.less, "LessOrEqual": op.less_equal, "Greater": op.greater, "GreaterOrEqual": op.greater_equal,
        "And": op.logical_and, "Or": op.logical_or, "Xor": op.logical_xor, "BitwiseAnd": op.bitwise_and,
        "BitwiseOr": op.bitwise_or, "BitwiseXor": op.bitwise_xor,
    }.items()},
    **{name: _nary(f) for name, f in {"Max": op.maximum, "Min": op.minimum, "Sum": op.add}.items()},
    **{name: _reduction(f) for name, f in {
        "ReduceSum": op.sum, "ReduceMean": _mean, "ReduceMax": op.max, "ReduceMin": op.min, "ReduceProd": op.prod,
        "ReduceSumSquare": lambda x, a, k: op.sum(x * x, a, k), "ReduceL1": lambda x, a, k: op.sum(_abs(x), a, k),
        "ReduceL2": lambda x, a, k: op.sqrt(op.sum(x * x, a, k)), "ReduceLogSumExp": _log_sum_exp,
        "ReduceLogSum": lambda x, a, k: op.log(op.sum(x, a, k)),
    }.items()},
    "Mean": lambda n: computed_in_float32(lambda *xs: functools.reduce(op.add, xs) / len(xs), *n.all),
    "PRelu": _prelu, "Pow": _pow, "Mod": _mod, "Clip": _clip, "Where": lambda n: op.where(n[0], n[1], n[2]),
    "Gelu": _gelu, "Selu": _selu, "Celu": lambda n: _celu(n[0], n.at("alpha", 1.0)),
    "Softmax": lambda n: normalisation.softmax(n, op.softmax, n[0], n.opset),
    "LogSoftmax": lambda n: normalisation.softmax(n, op.log_softmax, n[0], n.opset), "Gemm": _gemm,
    "Cast": _cast, "CastLike": _cast, "Dropout": _dropout,
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Expand": _expand, "Split": _split,
    "Unsqueeze": lambda n: op.expand_dims(n[0], tuple(d.value for d in n.all_sizes("axes", 1))),
    "Transpose": _transpose, "Concat": _concat, "Slice": _slice,
    "Gather": _gather, "GatherElements": _gather_elements, "Tile": _tile, "Pad": _pad,
    "ArgMax": _arg_reduction(op.argmax), "ArgMin": _arg_reduction(op.argmin),
    "TopK": _top_k, "Resize": resize.resize, "Upsample": resize.resize, **creation.HANDLERS, **windows.HANDLERS,
    **normalisation.HANDLERS, **further.HANDLERS, **indexed.HANDLERS, **quantized.HANDLERS, **recurrent.HANDLERS,
    **sampled.HANDLERS, **selected.HANDLERS, **sequences.HANDLERS, **signals.HANDLERS,
    **subgraphs.HANDLERS, **training.HANDLERS, **attention.HANDLERS, **fused.HANDLERS, **packed.HANDLERS,
    **rotary.HANDLERS,
}  # fmt: skip
