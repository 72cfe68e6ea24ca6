"""Random uses of ONNX operators: a node, drawn as ONNX's own table of operators has it.

`draw` picks a version of the operator, then calls its function in `DRAWN`, which draws attributes, dtypes and inputs by
their names in the table. `Draw.finish` raises an error for an attribute of the table that was not drawn, so a new
attribute of an operator is noticed.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks import onnx_windows
from benchmarks.onnx_draws import INT64, WIDTHS, Array, Case, Draw, versions


def draw(kind: str, seed: int) -> Case:
    """A random use of an operator; the same for the same seed."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    there = versions(kind)
    d = Draw(kind, rng, there[int(rng.integers(len(there)))] if rng.random() < 0.6 else there[-1])
    DRAWN[kind](d)
    return d.finish()


# --- elementwise ---


def _unary(kind: str = "any") -> Callable[[Draw], None]:
    def drawn(d: Draw) -> None:
        d.add(d.array(d.shape(d.size(0, 4)), d.dtype(), kind))
        d.attr("alpha", lambda: d.one(0.3, 1.0, 2.0))
        d.attr("beta", lambda: d.one(0.1, 0.5))
        d.attr("gamma", lambda: d.one(0.7, 1.5))
        d.attr("approximate", ("none", "tanh"))

    return drawn


def _two(d: Draw, dtype: str, kind: str = "any", second: str = "") -> None:
    shape = d.shape(d.size(0, 4))
    a, b = shape, d.broadcast(shape)
    if d.chance(0.3):
        a, b = b, a
    d.add(d.array(a, dtype, kind))
    d.add(d.array(b, dtype, second or kind), held=d.chance(0.3))


def _binary(kind: str = "any", second: str = "") -> Callable[[Draw], None]:
    return lambda d: _two(d, d.dtype(), kind, second)


def _mod(d: Draw) -> None:
    fmod = d.flag("fmod")
    floats = ("float32", "float16", "float64")
    integers = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
    _two(d, d.dtype(0, integers if not fmod else (*floats, *integers)), "finite", "nonzero")


def _pow(d: Draw) -> None:
    shape, dtype = d.shape(d.size(0, 4)), d.dtype(0)
    d.add(d.array(shape, dtype, "positive"))
    if d.opset >= 12 and d.chance(0.7):
        other = d.dtype(1, ("float32", "float64", "int32", "int64", "float16"))
        low = 0 if dtype.startswith("int") else -3
        d.add(d.rng.integers(low, 4, d.one((), (1,), tuple(d.broadcast(shape)))), d.chance(), other)
    else:
        d.add(d.array(d.broadcast(shape), dtype, "positive"))


def _variadic(d: Draw) -> None:
    shape, dtype = d.shape(d.size(0, 4)), d.dtype()
    d.add(d.array(shape, dtype))
    for _ in range(d.size(0, 3)):
        d.add(d.array(d.broadcast(shape), dtype))


def _clip(d: Draw) -> None:
    dtype = d.dtype()
    d.add(d.array(d.shape(), dtype))
    low = -1.0 if not dtype.startswith("uint") else 1
    for name, value in (("min", low), ("max", 2)):
        if d.opset < 11:
            d.attr(name, (float(value),))
        else:
            d.was(
                name,
                value if d.chance(0.7) else None,
                False,
                np.dtype(dtype) if dtype != "bfloat16" else ml_dtypes.bfloat16,
            )


def _where(d: Draw) -> None:
    shape, dtype = d.shape(), d.dtype(1)
    d.add(d.array(d.broadcast(shape), "bool"))
    d.add(d.array(shape, dtype))
    d.add(d.array(d.broadcast(shape), dtype))


def _prelu(d: Draw) -> None:
    shape, dtype = d.shape(), d.dtype()
    d.add(d.array(shape, dtype, "finite"))
    d.add(d.array(d.broadcast(shape), dtype, "finite"))


_SATURATED = {TensorProto.FLOAT8E4M3FN: 19, TensorProto.FLOAT8E5M2: 19}
_CAST_TO = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32,
    TensorProto.INT64, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL,
    TensorProto.BFLOAT16, *_SATURATED, *_SATURATED,
)  # fmt: skip


def _cast_operand(d: Draw, to: int) -> Array:
    dtype = d.dtype(0)
    x = d.array(d.shape(), dtype, "positive")  # of what is out of range the result is not defined
    if to in _SATURATED and dtype in ("float32", "float16", "float64"):
        with np.errstate(over="ignore"):
            x = d.array(x.shape, dtype) * np.dtype(dtype).type(d.one(1, 300, 60000))
    return x


def _cast(d: Draw) -> None:
    to = d.one(*[t for t in _CAST_TO if d.opset >= max(_SATURATED.get(t, 0), 13)] or [TensorProto.FLOAT])
    d.add(_cast_operand(d, to))
    d.attr("to", (to,))
    d.flag("saturate", 1)
    d.asked.add("round_mode")  # of a dtype that there is not in JAX


def _cast_like(d: Draw) -> None:
    to = d.one(*[t for t in _CAST_TO if d.opset >= _SATURATED.get(t, 0)])
    d.add(_cast_operand(d, to))
    d.add(np.zeros(2, helper.tensor_dtype_to_np_dtype(to)), d.chance())
    d.flag("saturate", 1)
    d.asked.add("round_mode")


# --- movement ---


def _reshape(d: Draw) -> None:
    shape = d.shape(low=d.one(0, 1, 1, 1))
    d.add(d.array(shape, d.dtype(), "finite"))
    allowzero = d.flag("allowzero")
    to = list(shape)
    if d.chance() and len(to) > 1:
        at = d.size(0, len(to) - 2)
        to[at : at + 2] = [to[at] * to[at + 1]]
    if d.chance():
        to.insert(d.size(0, len(to)), 1)
    if not allowzero:
        to = [0 if i < len(shape) and n == shape[i] and d.chance(0.3) else n for i, n in enumerate(to)]
        if d.chance() and 0 not in shape:
            to[d.size(0, len(to) - 1)] = -1
    d.add(to, True, INT64)


def _flatten(d: Draw) -> None:
    shape = d.shape()
    d.add(d.array(shape, d.dtype(), "finite"))
    if d.opset >= 11:
        d.axis(len(shape), 1, last=True)
    else:
        d.attr("axis", lambda: d.size(0, len(shape)))


def _squeeze(d: Draw) -> None:
    shape = d.shape(low=2)
    axes = sorted({d.size(0, len(shape)) for _ in range(2)})
    for a in axes:
        shape.insert(a, 1)
    ones = [i for i, n in enumerate(shape) if n == 1]
    d.add(d.array(shape, d.dtype(), "finite"))
    signed = [a - len(shape) if d.opset >= 11 and d.chance() else a for a in ones]
    d.was("axes", None if d.chance(0.3) else signed, d.has("axes"))


def _unsqueeze(d: Draw) -> None:
    shape = d.shape(d.size(0, 3))
    rank = len(shape) + 2
    axes = [int(a) for a in d.rng.permutation(rank)[:2]]
    d.add(d.array(shape, d.dtype(), "finite"))
    d.was("axes", [a - rank if d.opset >= 11 and d.chance() else a for a in axes], d.has("axes"))


def _transpose(d: Draw) -> None:
    shape = d.shape()
    d.add(d.array(shape, d.dtype(), "finite"))
    d.attr("perm", lambda: [int(a) for a in d.rng.permutation(len(shape))])


def _expand(d: Draw) -> None:
    shape = d.shape()
    x = d.broadcast(shape)
    d.add(d.array(x, d.dtype(), "finite"))
    to = [
        n if i < len(shape) - len(x) or n != x[i - len(shape) + len(x)] or d.chance() else 1
        for i, n in enumerate(shape)
    ]
    d.add(to, True, INT64)


def _concat(d: Draw) -> None:
    shape, dtype = d.shape(), d.dtype()
    axis = d.axis(len(shape), 0)
    for _ in range(d.size(1, 4)):
        shape[axis] = d.size(0, 4)
        d.add(d.array(shape, dtype, "finite"), d.chance(0.2))


def _split(d: Draw) -> None:
    shape = d.shape()
    axis = d.axis(len(shape), 0)
    d.outputs = d.size(1, 3)
    parts = [d.size(0, 3) for _ in range(d.outputs)]
    equal = d.chance() or not sum(parts)
    shape[axis] = d.outputs * d.size(1, 3) if equal else sum(parts)
    d.asked.add("num_outputs")
    if equal and d.opset >= 18:
        d.attributes["num_outputs"] = d.outputs
        if d.chance() and d.outputs > 1:
            shape[axis] = d.size(4, 8)
    d.add(d.array(shape, d.dtype(), "finite"))
    d.was("split", None if equal else parts, d.has("split"))


def _slice(d: Draw) -> None:
    shape = d.shape()
    axes = [int(a) for a in d.rng.permutation(len(shape))[: d.size(1, len(shape))]]
    starts = [d.one(*range(-7, 8), 2**40, -(2**40)) for _ in axes]
    ends = [d.one(*range(-7, 8), 2**40, -(2**40)) for _ in axes]
    steps = [d.one(1, 1, 2, 3, -1, -2) for _ in axes]
    d.add(d.array(shape, d.dtype(), "finite"))
    attribute = d.has("starts")
    if attribute:
        starts, ends = ([min(max(v, -(2**31)), 2**31 - 1) for v in x] for x in (starts, ends))
    d.was("starts", starts, attribute)
    d.was("ends", ends, attribute)
    if d.chance(0.2) and len(axes) == len(shape):
        axes = list(range(len(shape)))
        d.was("axes", None, attribute)
    else:
        d.was("axes", [a - len(shape) if not attribute and d.chance() else a for a in axes], attribute)
    if not attribute:
        d.was("steps", steps if d.chance(0.7) else None, False)


def _gather(d: Draw) -> None:
    shape = d.shape()
    axis = d.axis(len(shape), 0)
    d.add(d.array(shape, d.dtype(), "finite"), d.chance(0.2))
    low = -shape[axis] if d.opset >= 11 else 0
    d.add(d.rng.integers(low, shape[axis], d.shape(d.size(0, 2))), d.chance(), d.dtype(1))


def _gather_elements(d: Draw) -> None:
    shape = d.shape()
    axis = d.axis(len(shape), 0)
    d.add(d.array(shape, d.dtype(), "finite"))
    chosen = [d.size(1, 6) if a == axis else d.size(1, n) for a, n in enumerate(shape)]
    d.add(d.rng.integers(-shape[axis], shape[axis], chosen), d.chance(), d.dtype(1))


def _tile(d: Draw) -> None:
    shape = d.shape()
    d.add(d.array(shape, d.dtype(), "finite"))
    d.add([d.size(0 if d.chance(0.1) else 1, 3) for _ in shape], True, INT64)


def _pad(d: Draw) -> None:
    shape = d.shape(low=3)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else [])]
    dtype = d.dtype()
    mode = d.attr("mode", modes, "constant")
    axes = list(range(len(shape)))
    if d.opset >= 18 and d.chance():
        axes = [int(a) for a in d.rng.permutation(len(shape))[: d.size(1, len(shape))]]
    low = -1 if mode == "constant" else 0
    pads = [d.size(low, 2) for _ in range(2 * len(axes))]
    d.add(d.array(shape, dtype, "finite"))
    d.was("pads", pads, d.has("pads"))
    if d.has("value"):
        d.attr("value", (2.5, -1.0))
    else:
        d.asked.add("value")
        value = d.array((), dtype, "finite")
        d.was("value", value if d.chance() else None, False, value.dtype)
    if d.opset >= 18:
        part = axes != list(range(len(shape)))
        d.was("axes", [a - len(shape) if d.chance() else a for a in axes] if part else None, False)


def _constant_of_shape(d: Draw) -> None:
    d.add(d.shape(d.size(0, 3), low=0), True, INT64)
    dtype = d.one("float32", "int64", "int32", "bool", "uint8", "float16", "float64", "int8", "uint64")
    d.attr("value", lambda: numpy_helper.from_array(d.array((1,), dtype, "finite")))


def _range(d: Draw) -> None:
    dtype = d.dtype()
    whole = dtype.startswith("int")
    step = d.one(1, 2, -1, -3) if whole else d.one(0.25, 1.0, -0.5, 0.3)
    start = d.one(-3, 0, 5) if whole else d.one(-1.5, 0.0, 2.25)
    for v in (start, start + step * d.size(-1, 9), step):
        d.add(v, True, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    d.attr("stash_type", (1,))


def _shape(d: Draw) -> None:
    shape = d.shape(d.size(0, 4))
    d.add(d.array(shape, d.dtype(), "finite"))
    d.attr("start", lambda: d.size(-5, 5))
    d.attr("end", lambda: d.size(-len(shape), 5))  # below that ONNX's reference departs from ONNX's text


def _one_hot(d: Draw) -> None:
    shape, depth = d.shape(d.size(0, 3)), d.size(1, 5)
    d.axis(len(shape) + 1, -1)
    at = d.dtype(0, ("int64", "int32", "float32", "int8", "uint8", "float64"))
    low = -depth - 2 if not at.startswith("u") else 0
    if d.opset < 11 and not at.startswith("u"):
        low = -depth
    d.add(d.rng.integers(low, depth + 2, shape), d.chance(0.3), at)
    d.add(d.one(depth, [depth]), True, d.one("int64", "int32"))
    values = d.dtype(2, ("int64", "int32", "float32", "bool", "float16", "float64", "uint8"))
    d.add(d.array((2,), values, "finite"), d.chance())


def _cumsum(d: Draw) -> None:
    shape = d.shape()
    d.add(d.array(shape, d.dtype(), "finite"))
    axis = int(d.rng.integers(-len(shape), len(shape)))
    d.add(axis if d.opset >= 14 and d.chance() else d.one(axis, [axis]), True, d.one("int32", "int64"))
    d.flag("exclusive")
    d.flag("reverse")


def _trilu(d: Draw) -> None:
    d.add(d.array(d.shape(d.size(2, 4)), d.dtype(), "finite"))
    if d.chance(0.7):
        d.add(d.one(*range(-4, 5), 2**40), True, INT64)
    d.flag("upper", 1)


def _depth_to_space(d: Draw) -> None:
    k = d.attr("blocksize", (1, 2, 3))
    d.add(d.array([d.size(1, 2), k * k * d.size(1, 2), d.size(1, 3), d.size(1, 3)], d.dtype(), "finite"))
    d.attr("mode", ("DCR", "CRD"))


# --- contraction and reduction ---


def _matmul(d: Draw) -> None:
    dtype = d.dtype()
    m, k, n = d.shape(3)
    a, b = [m, k], [k, n]
    if d.chance(0.2):
        a = [k]
    elif d.chance(0.5):
        a = [*d.shape(d.size(1, 2)), m, k]
    if d.chance(0.2):
        b = [k]
    elif d.chance(0.4) and len(a) > 2:
        b = [*d.broadcast(a[:-2]), k, n]
    d.add(d.array(a, dtype, "finite"))
    d.add(d.array(b, dtype, "finite"), d.chance(0.3))


def _gemm(d: Draw) -> None:
    dtype = d.dtype()
    m, k, n = d.shape(3)
    d.add(d.array([k, m] if d.flag("transA") else [m, k], dtype, "finite"))
    d.add(d.array([n, k] if d.flag("transB") else [k, n], dtype, "finite"), d.chance(0.3))
    numbers = (1.0, 0.5, 2.0, 0.0) if dtype.startswith(("float", "bfloat")) else (1.0, 2.0)
    d.attr("alpha", numbers)
    d.attr("beta", numbers)
    if d.opset < 11 or d.chance(0.7):
        d.add(d.array(d.broadcast([m, n]), dtype, "finite"))


def _reduction(kind: str = "finite") -> Callable[[Draw], None]:
    def drawn(d: Draw) -> None:
        shape = d.shape()
        # Sums of uint32 are uint64 to the reference, which alone computes them.
        d.add(d.array(shape, d.dtype(0, [t for t in WIDTHS if t != "uint32"]), kind))
        d.flag("keepdims", 1)
        d.flag("noop_with_empty_axes")
        axes = [int(a) for a in d.rng.permutation(len(shape))[: d.size(1, len(shape))]]
        axes = [a - len(shape) if d.opset >= 11 and d.chance() else a for a in axes]
        given = d.one(None, axes, axes, axes, [])
        d.was("axes", given or None if d.has("axes") else given, d.has("axes"))

    return drawn


def _position(d: Draw) -> None:
    shape = d.shape()
    d.axis(len(shape), 0) if d.opset >= 11 else d.attr("axis", lambda: d.size(0, len(shape) - 1))
    d.add(d.array(shape, d.dtype(), "finite"))
    d.flag("keepdims", 1)
    d.flag("select_last_index")


def _top_k(d: Draw) -> None:
    shape = d.shape()
    axis = d.axis(len(shape), -1) if d.opset >= 11 else d.attr("axis", lambda: d.size(0, len(shape) - 1), -1)
    d.add(d.array(shape, d.dtype(), "finite"))
    k = d.size(1, shape[axis])
    d.was("k", k if d.has("k") else [k], d.has("k"))
    d.flag("largest", 1)
    d.asked.add("sorted")  # 0 leaves the order open, so there is nothing to compare with
    d.outputs = 2


def _softmax(d: Draw) -> None:
    shape = d.shape()
    d.axis(len(shape), 1 if d.opset < 13 and len(shape) > 1 else -1) if d.opset >= 11 or len(shape) > 1 else None
    d.asked.add("axis")
    if d.opset < 13 and len(shape) == 1:
        d.attributes["axis"] = 0
    d.add(d.array(shape, d.dtype(), "finite"))


def _dropout(d: Draw) -> None:
    dtype = d.dtype()
    d.add(d.array(d.shape(), dtype, "finite"))
    d.attr("ratio", (0.0, 0.5))
    d.attr("seed", (3,))
    if d.opset >= 12:
        d.was("ratio", d.one(0.1, None), False, np.float32)
        d.was("training_mode", d.one(False, None), False, bool)
    d.outputs = d.size(1, 2) if d.opset >= 12 else 1


DRAWN: dict[str, Callable[[Draw], None]] = {
    **dict.fromkeys((
        "Abs Ceil Cos Elu Erf Exp Floor Identity IsNaN LeakyRelu Neg Not Relu Round Selu Sigmoid Sign Sin Size "
        "Softplus Softsign Tan Tanh Atan Asinh Gelu Celu HardSigmoid HardSwish Mish Reciprocal"
    ).split(), _unary()),
    **dict.fromkeys("Cosh Sinh".split(), _unary("finite")),
    **dict.fromkeys("Acos Asin Atanh".split(), _unary("unit")),
    **dict.fromkeys("Log Sqrt".split(), _unary("positive")), "Acosh": _unary("over"),
    **dict.fromkeys((
        "Add Sub Mul And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual BitwiseAnd BitwiseOr BitwiseXor"
    ).split(), _binary()),
    "Div": _binary("finite", "nonzero"), "Mod": _mod, "Pow": _pow,
    **dict.fromkeys("Max Min Sum Mean".split(), _variadic), "Clip": _clip, "Where": _where, "PRelu": _prelu,
    "Cast": _cast, "CastLike": _cast_like, "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Transpose": _transpose, "Expand": _expand, "Concat": _concat, "Split": _split,
    "Slice": _slice, "Gather": _gather, "GatherElements": _gather_elements, "Tile": _tile, "Pad": _pad,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "Shape": _shape, "OneHot": _one_hot, "CumSum": _cumsum,
    "Trilu": _trilu, "DepthToSpace": _depth_to_space, "MatMul": _matmul, "Gemm": _gemm,
    **dict.fromkeys("ReduceSum ReduceMean ReduceProd ReduceL1 ReduceL2 ReduceSumSquare".split(), _reduction()),
    **dict.fromkeys("ReduceMax ReduceMin ReduceLogSumExp".split(), _reduction("any")),
    "ReduceLogSum": _reduction("positive"), "ArgMax": _position, "ArgMin": _position, "TopK": _top_k,
    "Softmax": _softmax, "LogSoftmax": _softmax, "Dropout": _dropout,
    **onnx_windows.DRAWN,
}  # fmt: skip
