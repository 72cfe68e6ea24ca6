"""ONNX nodes as operators: elementwise, movement, contraction, reduction."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relax_eg.frontends.onnx import windows
from relax_eg.frontends.onnx.nodes import Handler, Node
from relax_eg.frontends.onnx.values import Known, Value, dims, plain
from relax_eg.ir.annotations import is_float
from relax_eg.ir.expr import Expr, const
from relax_eg.ops import api as op
from relax_eg.ops.sizes import ZERO
from relax_eg.shapes import Dim, Proved, dim_max, dim_min, dim_select, prove


def _unary(f: Callable[[Expr], Expr]) -> Handler:
    return lambda n: f(n[0])


def _binary(f: Callable[[Expr, Expr], Expr]) -> Handler:
    return lambda n: f(n[0], n[1])


def _folded(f: Callable[[Expr, Expr], Expr]) -> Handler:
    return lambda n: functools.reduce(f, n.all)


def _softplus(x: Expr) -> Expr:
    return op.maximum(x, 0) + op.log1p(op.exp(-op.abs(x)))


def _div(n: Node) -> Expr:
    a, b = n[0], n[1]
    if is_float(a.dtype):
        return a / b
    raise n.error(f"a division of {a.dtype}s that are computed when the model runs", "floats, or sizes")


def _clip(n: Node) -> Expr:
    x = n[0]
    low = n.at("min") if n.opset < 11 else n.given(1)
    high = n.at("max") if n.opset < 11 else n.given(2)
    x = x if low is None else op.maximum(x, low)
    return x if high is None else op.minimum(x, high)


def _gelu(n: Node) -> Expr:
    return op.gelu(n[0], approximate=n.at("approximate", "none") == "tanh")


def _elu(x: Expr, alpha: float) -> Expr:
    return op.where(op.greater(x, 0), x, alpha * op.expm1(op.minimum(x, 0)))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return op.minimum(op.maximum(x * alpha + beta, 0), 1)


def _selu(n: Node) -> Expr:
    alpha, gamma = n.at("alpha", 1.67326319217681884765625), n.at("gamma", 1.05070102214813232421875)
    return gamma * _elu(n[0], alpha)


def _leaky(n: Node) -> Expr:
    x = n[0]
    return op.where(op.less(x, 0), n.at("alpha", 0.01) * x, x)


def _pow(n: Node) -> Expr:
    x, y = n[0], n.inputs[1]
    if isinstance(y, Known) and y.array.size == 1 and not y.is_symbolic:
        value = float(y.array.reshape(()))
        if value == int(value) and abs(value) <= 8 and y.array.ndim <= x.ndim:
            return op.integer_pow(x, int(value))
    return op.power(x, op.astype(n[1], x.dtype))


def _mod(n: Node) -> Expr:
    if n.at("fmod", 0):
        return op.remainder(n[0], n[1])
    raise n.error("fmod=0", "fmod=1")


def _softmax(f: Callable[[Expr, int], Expr]) -> Handler:
    def handler(n: Node) -> Expr:
        x = n[0]
        if n.opset >= 13:
            return f(x, n.at("axis", -1))
        axis = n.at("axis", 1) % x.ndim
        if axis == x.ndim - 1:
            return f(x, axis)
        flat = op.reshape(x, (*x.shape[:axis], -1))  # over all axes from this one on
        return op.reshape(f(flat, axis), x.shape)

    return handler


def _gemm(n: Node) -> Expr:
    a = op.permute_dims(n[0]) if n.at("transA", 0) else n[0]
    b = op.permute_dims(n[1]) if n.at("transB", 0) else n[1]
    y = a @ b
    y = y if n.at("alpha", 1.0) == 1 else n.at("alpha") * y
    c, beta = n.given(2), n.at("beta", 1.0)
    return y if c is None or beta == 0 else y + (c if beta == 1 else beta * c)


# --- movement ---


def _reshape(n: Node) -> Expr:
    x = n[0]
    shape = list(n.sizes("shape", 1) or ())
    if not n.at("allowzero", 0):
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return op.reshape(x, shape)


def _flatten(n: Node) -> Expr:
    x, axis = n[0], n.at("axis", 1)
    axis = axis % x.ndim if axis < 0 else axis
    rows: Dim = functools.reduce(lambda a, b: a * b, x.shape[:axis], Dim.of(1))
    columns: Dim = functools.reduce(lambda a, b: a * b, x.shape[axis:], Dim.of(1))
    return op.reshape(x, (rows, columns))


def _squeeze(n: Node) -> Expr:
    axes = n.listed("axes", 1)
    return op.squeeze(n[0], None if axes is None else tuple(axes))


def _expand(n: Node) -> Expr:
    x, shape = n[0], list(n.sizes("shape", 1) or ())
    own = [Dim.of(1)] * (len(shape) - x.ndim) + list(x.shape)
    shape = [Dim.of(1)] * (x.ndim - len(shape)) + shape
    # A size of 1 in the shape leaves the axis as it is.
    return op.broadcast_to(x, [a if b == 1 else b for a, b in zip(own, shape, strict=True)])


def _split(n: Node) -> Sequence[Expr]:
    x, axis = n[0], n.at("axis", 0)
    parts = n.sizes("split", 1)
    if parts is None:
        made = op.split(x, n.at("num_outputs", n.outputs), axis)
    else:
        cuts = [functools.reduce(lambda a, b: a + b, parts[: i + 1]) for i in range(len(parts) - 1)]
        made = op.split(x, cuts, axis)
    return list(made)


_NO_END = 10**9  # no axis is as long; how exporters write that a slice has no end


def _slice(n: Node) -> Expr:
    x = n[0]
    starts, ends = n.sizes("starts", 1) or (), n.sizes("ends", 2) or ()
    axes, steps = n.listed("axes", 3), n.listed("steps", 4)
    keys: list[slice] = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = 1 if steps is None else steps[i]
        if step < 0 and not (step == -1 and start in (-1,) and end.is_const and end.value <= -_NO_END):
            raise n.error(f"the step {step} from {start} to {end}", "steps >= 1, or a whole axis backwards")
        axis = i if axes is None else axes[i]
        if step < 0:
            keys[axis] = slice(None, None, step)
            continue
        low, high = (_place(at, x.shape[axis]) for at in (start, end))
        keys[axis] = slice(low, high if _proved(low, high) else dim_max(low, high), step)
    return op.getitem(x, tuple(keys))


def _place(at: Dim, size: Dim) -> Dim:
    """Where a slice of `size` elements begins or ends: as ONNX has it, numbers below 0 count from the end, and what is
    out of range is the nearest place inside. A size that is never below 0 is taken to be inside (of a table of
    positions, as many as there are tokens): that is the slice's precondition, which calls are held to."""
    if at.is_const and abs(at.value) >= _NO_END:
        return size if at.value > 0 else ZERO
    if at.is_const and at.value < 0:
        at = size + at
    elif not at.is_const and _proved(ZERO, at):
        return at
    elif not at.is_const:
        at = dim_select(at, ">=", 0, at, size + at)
    at = at if _proved(at, size) else dim_min(at, size)
    return at if _proved(ZERO, at) else dim_max(at, 0)


def _proved(low: Dim, high: Dim) -> bool:
    """Whether `low <= high` at all sizes, as far as can be seen without a search."""
    return isinstance(prove(f"{low} <= {high}", timeout_ms=0), Proved)


def _gather(n: Node) -> Expr:
    x, axis, at = n[0], n.at("axis", 0), n.inputs[1]
    size = x.shape[axis]
    if isinstance(at, Known) and not at.is_symbolic:
        array = at.array
        if array.ndim == 0:
            key: list[Any] = [slice(None)] * x.ndim
            key[axis] = int(array)
            return op.getitem(x, tuple(key))
        if size.is_const:
            return op.take(x, np.where(array < 0, array + size.value, array).astype(np.int32), axis, mode="clip")
    return op.take(x, _from_the_front(n[1], size), axis, mode="clip")


def _from_the_front(indices: Expr, size: Dim) -> Expr:
    """Indices, of which negative ones count from the end of an axis."""
    length = size.value if size.is_const else size
    return op.where(op.less(indices, 0), indices + length, indices)


def _gather_elements(n: Node) -> Expr:
    x, axis = n[0], n.at("axis", 0)
    return op.take_along_axis(x, _from_the_front(n[1], x.shape[axis]), axis, mode="clip")


def _tile(n: Node) -> Expr:
    x, times = n[0], n.sizes("repeats", 1) or ()
    inner = [s for d in x.shape for s in (Dim.of(1), d)]
    outer = [s for d, k in zip(x.shape, times, strict=True) for s in (k, d)]
    whole = [d * k for d, k in zip(x.shape, times, strict=True)]
    return op.reshape(op.broadcast_to(op.reshape(x, inner), outer), whole)


def _pad(n: Node) -> Expr:
    x = n[0]
    if n.at("mode", "constant") != "constant":
        raise n.error(f"mode={n.at('mode')!r}", "mode='constant'")
    pads = n.sizes("pads", 1) or ()
    value = n.at("value", 0.0) if n.opset < 11 else n.given(2)
    axes = n.listed("axes", 3) or list(range(x.ndim))
    width: list[tuple[Dim, Dim]] = [(Dim.of(0), Dim.of(0))] * x.ndim
    for i, axis in enumerate(axes):
        width[axis] = (pads[i], pads[i + len(axes)])
    fill = const(0, x.dtype) if value is None else value if isinstance(value, Expr) else const(value, x.dtype)
    return op.pad(x, width, op.reshape(fill, ()))


def _constant_of_shape(n: Node) -> Value:
    shape = n.sizes("shape", 0) or ()
    given = n.at("value")
    value = np.zeros(1, np.float32) if given is None else given
    dtype = n.at("value_dtype", "float32")
    if all(d.is_const for d in shape) and math.prod(int(d) for d in shape) <= 64:
        return Known(np.full([int(d) for d in shape], value.reshape(())), dtype)
    return op.full(shape, const(value.reshape(()), dtype))


def _range(n: Node) -> Value:
    parts = [n.known(i, "the limits") for i in range(3)]
    start, stop, step = (dims(p)[0] for p in parts if p is not None)
    if not step.is_const:
        raise n.error(f"the step {step}", "a step that is known")
    if start.is_const and stop.is_const:
        return Known(np.arange(start.value, stop.value, step.value), "int32")
    return op.arange(start, stop, step.value)


def _shape(n: Node) -> Value:
    x = n.inputs[0]
    shape = x.shape if isinstance(x, Expr) else dims(np.array(x.array.shape)) if x is not None else ()
    made = np.empty(len(shape), object)
    made[:] = list(shape)
    return Known(plain(made[n.at("start", 0) : n.at("end")]), "int32")


def _size(n: Node) -> Value:
    made = np.array(functools.reduce(lambda a, b: a * b, n[0].shape, Dim.of(1)), object)
    return Known(plain(made), "int32")


def _one_hot(n: Node) -> Expr:
    depth, values = n.sizes("depth", 1), n[2]
    if depth is None or n.at("axis", -1) != -1:
        raise n.error(f"axis={n.at('axis', -1)}", "axis=-1 and a known depth")
    ones = op.one_hot(n[0], depth[0], values.dtype)
    return ones * (values[1] - values[0]) + values[0]


def _cumsum(n: Node) -> Expr:
    if n.at("exclusive", 0):
        raise n.error("exclusive=1", "exclusive=0")
    (axis,) = n.listed("axis", 1) or [0]
    return op.cumsum(n[0], axis % n[0].ndim, bool(n.at("reverse", 0)))


def _trilu(n: Node) -> Expr:
    k = n.known(1, "the diagonal")
    f = op.triu if n.at("upper", 1) else op.tril
    return f(n[0], 0 if k is None else int(k))


def _transpose(n: Node) -> Expr:
    return op.permute_dims(n[0], n.at("perm"))


# --- reduction ---


def _reduced(f: Callable[..., Expr]) -> Handler:
    def handler(n: Node) -> Expr:
        axes = n.listed("axes", 1)
        if not axes and n.at("noop_with_empty_axes", 0):
            return n[0]
        return f(n[0], tuple(axes) if axes else None, bool(n.at("keepdims", 1)))

    return handler


def _log_sum_exp(x: Expr, axis: Any, keepdims: bool) -> Expr:
    top = op.max(x, axis, True)
    total = op.log(op.sum(op.exp(x - top), axis, keepdims))
    return total + (top if keepdims else op.max(x, axis, False))


def _position(f: Callable[..., Expr]) -> Handler:
    def handler(n: Node) -> Expr:
        if n.at("select_last_index", 0):
            raise n.error("select_last_index=1", "select_last_index=0")
        return f(n[0], n.at("axis", 0), bool(n.at("keepdims", 1)))

    return handler


def _top_k(n: Node) -> Sequence[Expr]:
    k = n.sizes("k", 1)
    if k is None or not n.at("largest", 1):
        raise n.error("the smallest", "largest=1 and a known k")
    return list(op.top_k(n[0], k[0], n.at("axis", -1)))


def _cast(n: Node) -> Expr:
    to = n[1].dtype if n.kind == "CastLike" else n.at("to")
    x = n[0]
    return op.not_equal(x, 0) if to == "bool" and x.dtype != "bool" else op.astype(x, to)


def _dropout(n: Node) -> Expr:
    training = n.known(2, "training_mode")
    if n.outputs > 1 or (training is not None and bool(training)):
        raise n.error("dropout in training", "a model exported for inference")
    return n[0]


HANDLERS: dict[str, Handler] = {
    **{name: _unary(f) for name, f in {
        "Abs": op.abs, "Acos": op.acos, "Acosh": op.acosh, "Asin": op.asin, "Asinh": op.asinh, "Atan": op.atan,
        "Atanh": op.atanh, "Ceil": op.ceil, "Cos": op.cos, "Cosh": op.cosh, "Erf": op.erf, "Exp": op.exp,
        "Floor": op.floor, "Identity": lambda x: x, "IsNaN": op.isnan, "Log": op.log, "Neg": op.negative,
        "Not": op.logical_not, "Reciprocal": op.reciprocal, "Relu": op.relu, "Round": op.round,
        "Sigmoid": op.sigmoid, "Sign": op.sign, "Sin": op.sin, "Sinh": op.sinh, "Sqrt": op.sqrt, "Tan": op.tan,
        "Tanh": op.tanh, "Softplus": _softplus, "Softsign": lambda x: x / (1 + op.abs(x)),
        "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), "Mish": lambda x: x * op.tanh(_softplus(x)),
    }.items()},
    **{name: _binary(f) for name, f in {
        "Add": op.add, "Sub": op.subtract, "Mul": op.multiply, "MatMul": op.matmul, "Equal": op.equal,
        "Less": op.less, "LessOrEqual": op.less_equal, "Greater": op.greater, "GreaterOrEqual": op.greater_equal,
        "And": op.logical_and, "Or": op.logical_or, "Xor": op.logical_xor, "BitwiseAnd": op.bitwise_and,
        "BitwiseOr": op.bitwise_or, "BitwiseXor": op.bitwise_xor,
        "PRelu": lambda x, slope: op.where(op.less(x, 0), slope * x, x),
    }.items()},
    **{name: _folded(f) for name, f in {"Max": op.maximum, "Min": op.minimum, "Sum": op.add}.items()},
    **{name: _reduced(f) for name, f in {
        "ReduceSum": op.sum, "ReduceMean": op.mean, "ReduceMax": op.max, "ReduceMin": op.min, "ReduceProd": op.prod,
        "ReduceSumSquare": lambda x, a, k: op.sum(x * x, a, k), "ReduceL1": lambda x, a, k: op.sum(op.abs(x), a, k),
        "ReduceL2": lambda x, a, k: op.sqrt(op.sum(x * x, a, k)), "ReduceLogSumExp": _log_sum_exp,
        "ReduceLogSum": lambda x, a, k: op.log(op.sum(x, a, k)),
    }.items()},
    "Mean": lambda n: functools.reduce(op.add, n.all) / len(n.inputs),
    "Div": _div, "Pow": _pow, "Mod": _mod, "Clip": _clip, "Where": lambda n: op.where(n[0], n[1], n[2]),
    "Gelu": _gelu, "Elu": lambda n: _elu(n[0], n.at("alpha", 1.0)), "Selu": _selu, "LeakyRelu": _leaky,
    "Celu": lambda n: _elu(n[0] / n.at("alpha", 1.0), 1.0) * n.at("alpha", 1.0),
    "HardSigmoid": lambda n: _hard_sigmoid(n[0], n.at("alpha", 0.2), n.at("beta", 0.5)),
    "Softmax": _softmax(op.softmax), "LogSoftmax": _softmax(op.log_softmax), "Gemm": _gemm,
    "Cast": _cast, "CastLike": _cast, "Dropout": _dropout,
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Expand": _expand, "Split": _split,
    "Unsqueeze": lambda n: op.expand_dims(n[0], tuple(n.listed("axes", 1) or ())),
    "Transpose": _transpose, "Concat": lambda n: op.concat(n.all, n.at("axis")), "Slice": _slice,
    "Gather": _gather, "GatherElements": _gather_elements, "Tile": _tile, "Pad": _pad,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "Shape": _shape, "Size": _size, "OneHot": _one_hot,
    "CumSum": _cumsum, "Trilu": _trilu, "ArgMax": _position(op.argmax), "ArgMin": _position(op.argmin),
    "TopK": _top_k, **windows.HANDLERS,
}  # fmt: skip
