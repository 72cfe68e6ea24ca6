"""The builder of a random use of an ONNX operator: the draws, and the model that it builds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

OLDEST = 7
# The newest opset that the onnxruntime at hand runs; the table of the `onnx` package may know more.
NEWEST = min(defs.onnx_opset_version(), 26)
# How often each dtype is drawn among those that an operator takes.
_OFTEN = {
    "float": 6, "float16": 4, "double": 2, "int64": 3, "int32": 2, "uint8": 2, "int8": 1, "int16": 1, "uint16": 1,
    "uint32": 1, "uint64": 1, "bool": 1, "bfloat16": 1,
}  # fmt: skip
_NUMPY = {"float": "float32", "double": "float64"}
WIDTHS = [_NUMPY.get(t, t) for t in _OFTEN]
_SYMBOLIC = 1 / 3  # of the sets have named sizes
_SPECIAL = 1 / 6  # of the arrays of floats have infinities, NaN and signed zeros in them
_LEFT_OUT = 1 / 3  # of optional attributes
INT64 = np.int64


@dataclass(frozen=True)
class Case:
    """A model of one node.

    - `kind`: its operator.
    - `model`: the `ModelProto`.
    - `arrays`: the arrays that it is called with, by input name.
    """

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
    """The builder of one random use of an operator."""

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

    def was(self, name: str, x: Any, attribute: bool, dtype: Any = INT64) -> None:
        """Sets a value that is an attribute in older versions and a known input in newer ones; None leaves it out."""
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

    # --- the case ---

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
