"""Random uses of ONNX operators: a node, drawn as ONNX's own table of operators has it.

`draw` picks a version of the operator, then runs what `DRAWN` has of it, which asks for attributes, dtypes and inputs
by the names that the table knows. What the table has and `DRAWN` does not ask for is an error (`Draw.finish`), so a
new attribute of an operator is not left out unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

OLDEST = 7
# How often each dtype is drawn among those that an operator takes.
_OFTEN = {
    "float": 6, "float16": 4, "double": 2, "int64": 3, "int32": 2, "uint8": 2, "int8": 1, "int16": 1, "uint16": 1,
    "uint32": 1, "uint64": 1, "bool": 1, "bfloat16": 1,
}  # fmt: skip
_NUMPY = {"float": "float32", "double": "float64"}
_SYMBOLIC = 1 / 3  # of the sets have named sizes
_SPECIAL = 1 / 6  # of the arrays of floats have infinities, NaN and signed zeros in them
_LEFT_OUT = 1 / 3  # of optional attributes
_INT64 = np.int64


@dataclass(frozen=True)
class Case:
    """A model of one node, and the arrays that it is called with."""

    kind: str
    model: Any
    arrays: dict[str, Array]

    def __str__(self) -> str:
        (node,) = self.model.graph.node
        (opset,) = self.model.opset_import
        attributes = {a.name: _shown(helper.get_attribute_value(a)) for a in node.attribute}
        given = {i.name: self.arrays[i.name] for i in self.model.graph.input}
        held = {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}
        parts = [f"{n or '-'}={_text((given | held)[n], n in held) if n else ''}" for n in node.input]
        sizes = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in self.model.graph.input]
        return f"{self.kind}-{opset.version} {attributes} {' '.join(parts)} {sizes}"


def _shown(value: Any) -> Any:
    return numpy_helper.to_array(value).tolist() if isinstance(value, TensorProto) else value


def _text(x: Array, held: bool) -> str:
    return f"{x.dtype.name}{list(x.shape)}" + (f"{x.reshape(-1)[:8].tolist()}" if held else "")


class Draw:
    """One random use of an operator in the making."""

    def __init__(self, kind: str, rng: Rng, opset: int) -> None:
        self.kind, self.rng, self.opset = kind, rng, opset
        self.schema = defs.get_schema(kind, opset, "")
        self.attributes: dict[str, Any] = {}
        self.asked: set[str] = set()
        self.inputs: list[tuple[Array, bool] | None] = []
        self.outputs = 1
        self.symbolic = rng.random() < _SYMBOLIC

    # --- draws ---

    def one(self, *values: Any) -> Any:
        """One of these."""
        return values[int(self.rng.integers(len(values)))]

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def size(self, low: int = 1, high: int = 6) -> int:
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank: int | None = None, low: int = 1, high: int = 6) -> list[int]:
        count = self.size(1, 4) if rank is None else rank
        return [self.size(low, high) for _ in range(count)]

    def attr(self, name: str, value: Callable[[], Any] | Sequence[Any], default: Any = None) -> Any:
        """Attribute `name` of one of these values, or left out where that may be: then `default`. None where this
        version of the operator has no such attribute."""
        self.asked.add(name)
        known = self.schema.attributes.get(name)
        if known is None:
            return default
        if not known.required and self.chance(_LEFT_OUT):
            return default
        found = value() if callable(value) else self.one(*value)
        if found is None:
            return default
        self.attributes[name] = found
        return found

    def flag(self, name: str, default: int = 0) -> int:
        return self.attr(name, (0, 1), default)

    def axis(self, rank: int, default: int, last: bool = False) -> int:
        """The attribute `axis`, counted from the front."""
        found = self.attr("axis", lambda: int(self.rng.integers(-rank, rank + last)), default)
        return found % rank if found < 0 else found

    def has(self, attribute: str) -> bool:
        return attribute in self.schema.attributes

    def dtype(self, place: int = 0, among: Sequence[str] | None = None) -> str:
        """A dtype that input `place` takes, as numpy names it."""
        taken = self.schema.inputs[min(place, len(self.schema.inputs) - 1)].types
        names = [t.removeprefix("tensor(").removesuffix(")") for t in taken if t.startswith("tensor(")]
        names = [t for t in names if t in _OFTEN and (among is None or _NUMPY.get(t, t) in among)]
        weights = np.array([_OFTEN[t] for t in names], float)
        name = names[int(self.rng.choice(len(names), p=weights / weights.sum()))]
        return _NUMPY.get(name, name)

    # --- inputs ---

    def array(self, shape: Sequence[int], dtype: str, kind: str = "any") -> Array:
        """Random numbers. `kind`: "any", with infinities among floats at times; "finite"; "positive"; "unit", between
        -1 and 1; "over", at least 1; "nonzero"."""
        to = np.dtype(getattr(ml_dtypes, dtype, dtype) if dtype == "bfloat16" else dtype)
        if to.kind == "b":
            return self.rng.random(shape) < 0.5
        if to.kind in "iu":
            low = 0 if to.kind == "u" or kind in ("positive", "over") else -9
            made = self.rng.integers(low, 10, shape)
            return np.where(made == 0, 3, made).astype(to) if kind in ("nonzero", "over") else made.astype(to)
        made = np.asarray(self.rng.standard_normal(shape) * self.one(0.5, 2.0))
        if kind == "unit":
            made = np.tanh(made) * 0.99
        if kind in ("positive", "over"):
            made = np.abs(made) + (1 if kind == "over" else 0.05)
        if kind == "nonzero":
            made = np.where(np.abs(made) < 0.05, 1, made)
        if kind == "any" and self.chance(_SPECIAL) and made.size:
            flat = made.reshape(-1).copy()
            for v in (np.inf, -np.inf, np.nan, 0.0, -0.0):
                if self.chance():
                    flat[int(self.rng.integers(flat.size))] = v
            made = flat.reshape(made.shape)
        return made.astype(to)

    def add(self, x: Any, held: bool = False, dtype: Any = None) -> Array:
        """An input of the node; `held`: known when the model is read."""
        array = np.asarray(x, dtype)
        self.inputs.append((array, held))
        return array

    def left_out(self) -> None:
        self.inputs.append(None)

    def was(self, name: str, x: Any, attribute: bool, dtype: Any = _INT64) -> None:
        """What is an attribute of older versions and a known input of newer ones; None leaves it out."""
        self.asked.add(name)
        if attribute:
            if x is not None:
                self.attributes[name] = x
        elif x is not None:
            self.add(x, True, dtype)
        else:
            self.left_out()

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """A shape that broadcasts to this one."""
        kept = list(shape[self.size(0, len(shape)) if self.chance(0.4) and shape else 0 :])
        return [1 if self.chance(0.3) else d for d in kept]

    # --- what comes of it ---

    def finish(self) -> Case:
        if missing := set(self.schema.attributes) - self.asked:
            raise LookupError(f"{self.kind}-{self.opset} has the attributes {sorted(missing)}, which nothing draws")
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()
        named = [(f"x{i}" if given else "", given) for i, given in enumerate(self.inputs)]
        node = helper.make_node(
            self.kind, [n for n, _ in named], [f"y{i}" for i in range(self.outputs)], **self.attributes
        )
        arrays = {n: g[0] for n, g in named if g is not None and not g[1]}
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), self._sizes(a))
            for n, a in arrays.items()
        ]
        held = [numpy_helper.from_array(g[0], n) for n, g in named if g is not None and g[1]]
        outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(self.outputs)]
        graph = helper.make_graph([node], "g", infos, outputs, held)
        imported = helper.make_opsetid("", self.opset)
        return Case(self.kind, helper.make_model(graph, opset_imports=[imported], ir_version=10), arrays)

    def _sizes(self, x: Array) -> list[int | str]:
        # Equal sizes have one name, so that what has to agree does.
        return [f"s{d}" if self.symbolic and d > 1 else d for d in x.shape]


def versions(kind: str) -> list[int]:
    """An opset for each version of an operator that is read: the last one of it."""
    first = sorted(s.since_version for s in defs.get_all_schemas_with_history() if s.name == kind and s.domain == "")
    newest = NEWEST
    ends = [*(v - 1 for v in first[1:]), newest]
    return [
        min(e, newest) for s, e in zip(first, ends, strict=True) if e >= OLDEST and s <= newest and _is_there(kind, e)
    ]


def _is_there(kind: str, opset: int) -> bool:
    try:
        return not defs.get_schema(kind, min(opset, NEWEST), "").deprecated
    except defs.SchemaError:
        return False


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
    d.add(to, True, _INT64)


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
    d.add(to, True, _INT64)


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
    d.add([d.size(0 if d.chance(0.1) else 1, 3) for _ in shape], True, _INT64)


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
    d.add(d.shape(d.size(0, 3), low=0), True, _INT64)
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
    d.attr("end", lambda: d.size(-5, 5))


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
        d.add(d.one(*range(-4, 5), 2**40), True, _INT64)
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
        d.add(d.array(shape, d.dtype(), kind))
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


# --- windows ---


def _space(d: Draw, most: int = 3) -> list[int]:
    return [d.size(3, 7) for _ in range(d.one(*[1, 2, 2, 3][: most + 1]))]


def _windowed(d: Draw, window: Sequence[int], auto: bool = True) -> None:
    """Strides, dilations, and pads that are smaller than the window."""
    rank = len(window)
    d.attr("strides", lambda: [d.size(1, 3) for _ in range(rank)])
    if all(k <= 2 for k in window):
        d.attr("dilations", lambda: [d.size(1, 2) for _ in range(rank)])
    d.asked |= {"dilations", "pads"}
    way = d.attr(
        "auto_pad", ("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER") if auto else ("NOTSET",), "NOTSET"
    )
    if way == "NOTSET":
        d.attr("pads", lambda: [d.size(0, k - 1) for k in (*window, *window)])


def _conv(d: Draw) -> None:
    dtype, space, groups = d.dtype(), _space(d), d.attr("group", (1, 2, 3), 1)
    window = [d.size(1, 3) for _ in space]
    each, out = d.size(1, 2), groups * d.size(1, 2)
    d.add(d.array([d.size(1, 2), groups * each, *space], dtype, "finite"))
    d.add(d.array([out, each, *window], dtype, "finite"), d.chance())
    if d.chance():
        d.add(d.array([out], dtype, "finite"))
    d.attr("kernel_shape", (window,))
    _windowed(d, window)


def _conv_transpose(d: Draw) -> None:
    dtype, space, groups = d.dtype(), _space(d), d.attr("group", (1, 2), 1)
    window = [d.size(1, 3) for _ in space]
    each, out = d.size(1, 2), d.size(1, 2)
    d.add(d.array([d.size(1, 2), groups * each, *space], dtype, "finite"))
    d.add(d.array([groups * each, out, *window], dtype, "finite"), d.chance())
    if d.chance():
        d.add(d.array([groups * out], dtype, "finite"))
    d.attr("kernel_shape", (window,))
    _windowed(d, window)
    strides = d.attributes.get("strides", [1] * len(space))
    d.attr("output_padding", lambda: [d.size(0, s - 1) for s in strides])
    if d.chance(0.2):
        d.attr("output_shape", lambda: [n * s for n, s in zip(space, strides, strict=True)])
        d.attributes.pop("pads", None)
    d.asked.add("output_shape")


def _pool(d: Draw) -> None:
    space = _space(d)
    window = d.attr("kernel_shape", lambda: [d.size(1, 3) for _ in space])
    # Without NaN: what is the greatest of numbers and NaN ONNX does not say.
    d.add(d.array([d.size(1, 2), d.size(1, 3), *space], d.dtype(), "finite"))
    _windowed(d, window)
    d.flag("ceil_mode")
    d.flag("count_include_pad")
    d.asked.add("storage_order")  # of the indices, which are not given


def _global(d: Draw) -> None:
    # Of other dtypes onnxruntime has no kernels, and what the reference makes has a wrong shape.
    d.add(d.array([d.size(1, 2), d.size(1, 3), *_space(d)], d.dtype(0, ("float32", "float16")), "finite"))


def _epsilon(d: Draw) -> None:
    d.attr("epsilon", (1e-5, 1e-2))


def _batch_norm(d: Draw) -> None:
    dtype, channels = d.dtype(), d.size(1, 4)
    d.add(d.array([d.size(1, 2), channels, *_space(d)], dtype, "finite"))
    for kind in ("finite", "finite", "finite", "positive"):
        d.add(d.array([channels], dtype, kind), d.chance(0.3))
    _epsilon(d)
    d.attr("momentum", (0.9, 0.5))
    d.asked |= {"training_mode", "spatial"}  # for training


def _layer_norm(d: Draw) -> None:
    shape, dtype = d.shape(d.size(1, 4), low=2), d.dtype()
    axis = d.axis(len(shape), -1)
    x = d.array(shape, dtype, "finite")
    d.add(x * x.dtype.type(200) if d.chance(0.3) else x)  # squares are beyond half precision
    d.add(d.array(shape[axis:], dtype, "finite"))  # of another dtype than the operand's the reference knows nothing
    if d.kind == "LayerNormalization" and d.chance():
        d.add(d.array(shape[axis:], dtype, "finite"))
    _epsilon(d)
    d.attr("stash_type", (1,))
    if d.kind == "LayerNormalization" and dtype != "bfloat16":  # of which the reference gives statistics of no float32
        d.outputs = d.size(1, 3)


def _channel_norm(d: Draw) -> None:
    dtype, groups = d.dtype(), d.attr("num_groups", (1, 2, 3), 1)
    channels = groups * d.size(1, 2)
    x = d.array([d.size(1, 2), channels, *_space(d)], dtype, "finite")
    d.add(x * x.dtype.type(200) if d.chance(0.3) else x)
    per = groups if d.kind == "GroupNormalization" and d.opset < 21 else channels
    d.add(d.array([per], dtype, "finite"))
    d.add(d.array([per], dtype, "finite"))
    _epsilon(d)
    d.attr("stash_type", (1,))


def _lrn(d: Draw) -> None:
    # Of doubles onnxruntime has no kernel, and the reference takes roots in float32.
    d.add(d.array([d.size(1, 2), d.size(1, 6), *_space(d)], d.dtype(0, ("float32", "float16")), "finite"))
    d.attr("size", (1, 3, 5))
    d.attr("alpha", (1e-4, 0.5))
    d.attr("beta", (0.75, 0.5))
    d.attr("bias", (1.0, 2.0))


_WAYS = (
    "half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "tf_crop_and_resize", "half_pixel_symmetric",
)  # fmt: skip


def _resize(d: Draw) -> None:
    shape = [d.size(1, 2), d.size(1, 2), *[d.size(2, 6) for _ in range(d.size(1, 2))]]
    rank = len(shape)
    d.add(d.array(shape, d.dtype(0), "finite"))
    d.attr("mode", ("nearest",))
    d.asked |= {"antialias", "cubic_coeff_a", "exclude_outside"}  # of other modes
    old = d.kind == "Upsample" or d.opset < 11
    axes = list(range(rank))
    if d.opset >= 18 and d.chance():
        axes = [int(a) for a in d.rng.permutation(rank)[: d.size(1, rank)]]
        d.attributes["axes"] = [a - rank if d.chance() else a for a in axes]
    d.asked.add("axes")
    factors = [1, 2, 3, 1.5] if old else [0.5, 1, 2, 3, 1.5, 0.6, 2.4]
    scales = [float(d.one(*factors)) if shape[a] > 1 else 1.0 for a in axes]
    if old:
        d.was("scales", scales, d.has("scales"), np.float32)
        return
    way = d.attr("coordinate_transformation_mode", _WAYS[: 5 if d.opset < 19 else 6], "half_pixel")
    d.attr("nearest_mode", ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    d.attr("extrapolation_value", (0.0, 2.0))
    cropped = way == "tf_crop_and_resize"
    if cropped:
        d.add([*[d.one(0.0, 0.2, -0.1) for _ in axes], *[d.one(1.0, 0.8, 1.2) for _ in axes]], True, np.float32)
    else:
        d.left_out()
    by_sizes = cropped or d.chance()  # scales of a part of an axis mean different things to ONNX and its runtimes
    d.asked.add("keep_aspect_ratio_policy")
    if by_sizes:
        if d.has("keep_aspect_ratio_policy"):
            d.attr("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"))
        if d.opset >= 13:
            d.left_out()
        else:
            d.add([], True, np.float32)
        d.add([max(1, math.floor(shape[a] * s)) for a, s in zip(axes, scales, strict=True)], True, _INT64)
    else:
        d.add(scales, True, np.float32)


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
    "Softmax": _softmax, "LogSoftmax": _softmax, "Dropout": _dropout, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "MaxPool": _pool, "AveragePool": _pool, "GlobalAveragePool": _global, "GlobalMaxPool": _global,
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "RMSNormalization": _layer_norm,
    "InstanceNormalization": _channel_norm, "GroupNormalization": _channel_norm, "LRN": _lrn, "Resize": _resize,
    "Upsample": _resize,
}  # fmt: skip

# The newest opset that the onnxruntime at hand runs; the table of the `onnx` package may know more.
NEWEST = min(defs.onnx_opset_version(), 26)
