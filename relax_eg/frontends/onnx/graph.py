"""ONNX models as modules. The `onnx` package reads and checks them; what its graph computes becomes operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from relax_eg.errors import OnnxError, RelaxEgError
from relax_eg.frontends.onnx.nodes import Node
from relax_eg.frontends.onnx.ops import HANDLERS
from relax_eg.frontends.onnx.values import MOST_KNOWN, Array, Known, UndecidedNow, Value, computed, plain
from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.module import Module, pure_function
from relax_eg.ir.wellformed import check
from relax_eg.shapes import Dim

_INSTALL = "the package `onnx`: pip install relax-eg[onnx]"
FEW = 16  # whole numbers of an initializer that stay constants
_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxModule(Module):
    """A module that came from ONNX. `weights`: the arrays of the model by the names of the parameters that take them:

    best = rx.optimize(module, weights=tuple(module.weights))
    ready = best.prepare(**module.weights)
    """

    weights: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)


def from_onnx(model: Any, *, inputs: Mapping[str, str] | None = None, constants: bool = False) -> OnnxModule:
    """The module of an ONNX model: a path, the bytes of a file, or an `onnx.ModelProto`.

    Its entry takes the model's inputs, then its weights (initializers and constants of several elements, no part
    of shapes), which are the module's `weights`; with `constants` they are constants of the module instead. Sizes
    that have a name (`dim_param`) are size variables, sizes without one get variables of their own, and `inputs` says
    more: `{"x": "n 3 32*h 32*w"}` for a model that takes multiples of 32 only. What is computed of shapes is computed
    now. Where JAX has 64-bit numbers switched off, int64 is int32 and float64 is float32.

    OnnxError, with the node, its operator and opset, for what cannot be read or is not supported.
    """
    onnx = _package()
    proto, name = _read(onnx, model)
    return _Graph(onnx, proto, name, inputs or {}, constants).module()


def _package() -> Any:
    try:
        import onnx  # type: ignore[reportMissingImports]  # an extra
    except ImportError:
        raise OnnxError(f"from_onnx needs a package that is not installed\n  accepted: {_INSTALL}") from None
    return onnx


def _read(onnx: Any, model: Any) -> tuple[Any, str]:
    accepted = "a path to an ONNX file, its bytes, or an onnx.ModelProto"
    if isinstance(model, onnx.ModelProto):
        return model, model.graph.name or "model"
    if not isinstance(model, (str, Path, bytes)):
        raise OnnxError(f"from_onnx: got a {type(model).__name__}\n  accepted: {accepted}")
    try:
        if isinstance(model, bytes):
            return onnx.load_model_from_string(model), "model"
        return onnx.load(str(model)), Path(model).name
    except OSError as error:
        raise OnnxError(f"from_onnx: cannot read {model}: {error.strerror}\n  accepted: {accepted}") from None
    except Exception as error:  # protobuf's errors have no common class of their own
        what = "these bytes are" if isinstance(model, bytes) else f"{model} is"
        raise OnnxError(f"from_onnx: {what} no ONNX model ({error})\n  accepted: {accepted}") from None


class _Graph:
    """Reads one graph."""

    def __init__(self, onnx: Any, proto: Any, name: str, inputs: Mapping[str, str], constants: bool) -> None:
        self.onnx = onnx
        self.graph = proto.graph
        self.name = name
        self.inputs = inputs
        self.constants = constants
        self.opsets = {("" if o.domain in _DOMAINS else o.domain): int(o.version) for o in proto.opset_import}
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set()
        self.params: list[Expr] = []
        self.weights: dict[str, Array] = {}
        self.made: dict[str, Expr] = {}
        self.waiting: dict[str, Any] = {t.name: t for t in self.graph.initializer}
        self.sources: dict[Expr, str] = {}
        self.sizes: dict[str, Dim] = {}

    def module(self) -> OnnxModule:
        if not self.graph.node and not self.graph.output:
            raise OnnxError(f"from_onnx: {self.name} has no graph\n  accepted: an ONNX model")
        for given in self.graph.input:
            if given.name not in self.waiting:
                self._input(given)
        if unknown := self.inputs.keys() - {g.name for g in self.graph.input}:
            has = ", ".join(g.name for g in self.graph.input)
            raise OnnxError(f"{self.name} has no input {sorted(unknown)[0]!r}\n  accepted: {has}")
        for i, node in enumerate(self.graph.node):
            self._node(i, node)
        outputs = [self._expr(o.name, f"output `{o.name}`") for o in self.graph.output]
        reached = set(postorder(outputs))
        used = [p for p in self.params if p in reached or p.attr("name") not in self.weights]
        used.sort(key=lambda p: p.attr("name") in self.weights)
        weights = {str(p.attr("name")): self.weights[p.attr("name")] for p in used if p.attr("name") in self.weights}
        function = pure_function("main", used, outputs)
        kept = {e: line for e, line in self.sources.items() if e in reached}
        module = OnnxModule((replace(function, sources=MappingProxyType(kept)),), MappingProxyType(weights))
        check(module)
        return module

    # --- values ---

    def _dtype(self, kind: int) -> str:
        """The dtype of an ONNX element type, as JAX has it in this process."""
        name = self.onnx.TensorProto.DataType.Name(kind)
        try:
            wide = np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(kind))
        except (KeyError, TypeError):
            wide = np.dtype(object)
        if wide.kind == "O":
            raise OnnxError(f"elements of type {name}\n  accepted: numbers and bool")
        return str(jax.dtypes.canonicalize_dtype(wide))

    def _input(self, given: Any) -> None:
        kind = given.type.WhichOneof("value")
        if kind != "tensor_type" or not given.type.tensor_type.HasField("shape"):
            what = "has no shape" if kind == "tensor_type" else f"is a {kind or 'value of no type'}"
            raise OnnxError(f"{self.name}: input `{given.name}` {what}\n  accepted: tensors of known rank")
        tensor = given.type.tensor_type
        name = identifier(given.name, self.taken)
        shape: list[Dim] | tuple[Dim, ...] = [self._size(d, f"{name}_{i}") for i, d in enumerate(tensor.shape.dim)]
        try:
            if given.name in self.inputs:
                shape = self._declared(given.name, shape)
            made = var(name, Tensor(shape, self._dtype(tensor.elem_type)))
        except RelaxEgError as error:
            raise OnnxError(f"{self.name}: input `{given.name}`: {error}") from None
        self.params.append(made)
        self.values[given.name] = made

    def _declared(self, name: str, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The sizes that the caller says an input has."""
        told = Tensor(self.inputs[name]).shape
        pairs = None if told is None or len(told) != len(shape) else zip(told, shape, strict=True)
        if told is None or pairs is None or any(a != b for a, b in pairs if b.is_const):
            has = " ".join(map(str, shape))
            raise OnnxError(f"inputs[{name!r}] = {self.inputs[name]!r}; the model has {has!r}")
        return told

    def _size(self, dim: Any, own: str) -> Dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return Dim.of(int(dim.dim_value))
        text = dim.dim_param
        if not re.search(r"\w", text):
            return Dim.var(own)
        if text not in self.sizes:
            self.sizes[text] = Dim.var(identifier(text, {str(d) for d in self.sizes.values()}))
        return self.sizes[text]

    def _value(self, name: str, where: str) -> Value:
        if name not in self.values:
            if name not in self.waiting:
                accepted = "inputs, initializers, outputs of nodes before"
                raise OnnxError(f"{where}: nothing gives `{name}`\n  accepted: {accepted}")
            self.values[name] = self._initializer(name, self.waiting[name])
        return self.values[name]

    def _initializer(self, name: str, tensor: Any) -> Known:
        known = self._known(tensor)
        few = known.array.size <= (1 if known.array.dtype.kind == "f" else FEW)
        return known if few or self.constants else replace(known, weight=lambda: self._weight(name, known))

    def _weight(self, name: str, known: Known) -> Expr:
        """The parameter that stands for an initializer."""
        if name not in self.made:
            own = identifier(name, self.taken)
            array = known.array.astype(known.dtype, copy=False)
            self.made[name] = var(own, Tensor(array.shape, known.dtype))
            self.weights[own] = array
            self.params.append(self.made[name])
        return self.made[name]

    def _known(self, tensor: Any) -> Known:
        return Known(self.onnx.numpy_helper.to_array(tensor), self._dtype(tensor.data_type))

    def _expr(self, name: str, where: str) -> Expr:
        value = self._value(name, where)
        return value.expr if isinstance(value, Known) else value

    # --- nodes ---

    def _node(self, i: int, node: Any) -> None:
        domain = "" if node.domain in _DOMAINS else node.domain
        opset = self.opsets.get(domain, 0)
        kind = node.op_type
        label = f"node {i} `{node.name}`" if node.name else f"node {i}"
        where = f"{self.name}: {label} ({domain + '.' if domain else ''}{kind}, opset {opset})"
        if kind == "Constant" and not domain:
            self.values[node.output[0]] = self._constant(node, where)
            return
        if domain or kind not in HANDLERS:
            raise OnnxError(f"{where} is not supported\n  accepted: {', '.join(sorted([*HANDLERS, 'Constant']))}")
        attributes = self._attributes(node)
        inputs = tuple(self._value(x, where) if x else None for x in node.input)
        outputs = [o for o in node.output if o]
        try:
            made = self._folded(kind, inputs, attributes)
            if made is None:
                made = HANDLERS[kind](Node(kind, where, inputs, attributes, len(outputs), opset))
        except OnnxError as error:
            text = str(error)
            raise error if text.startswith(where) else OnnxError(f"{where}: {text}") from None
        except (RelaxEgError, ValueError, TypeError, IndexError, KeyError) as error:
            accepted = f"inputs and attributes that {kind} takes"
            raise OnnxError(f"{where}: {str(error) or type(error).__name__}\n  accepted: {accepted}") from None
        results: list[Value] = [made] if isinstance(made, (Expr, Known)) else list(made)
        for name, value in zip(node.output, results, strict=False):
            self.values[name] = value
            self._tell_source(value, f"{self.name}:{i}")

    def _tell_source(self, value: Value, line: str) -> None:
        if isinstance(value, Expr):
            for e in postorder([value], stop=lambda e: e in self.sources):
                if e.args:
                    self.sources.setdefault(e, line)

    def _constant(self, node: Any, where: str) -> Known:
        (a,) = node.attribute
        value = self.onnx.helper.get_attribute_value(a)
        if a.name == "value":
            return self._initializer(node.output[0], value)
        if a.name in ("value_float", "value_floats"):
            return Known(np.array(value, np.float32), "float32")
        if a.name in ("value_int", "value_ints"):
            return Known(np.array(value, np.int64), str(jax.dtypes.canonicalize_dtype(np.int64)))
        raise OnnxError(f"{where}: {a.name}\n  accepted: value, value_float(s), value_int(s)")

    def _attributes(self, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for a in node.attribute:
            value = self.onnx.helper.get_attribute_value(a)
            if isinstance(value, self.onnx.TensorProto):
                found[f"{a.name}_dtype"] = self._dtype(value.data_type)
                value = self.onnx.numpy_helper.to_array(value)
            found[a.name] = value.decode() if isinstance(value, bytes) else value
        if node.op_type == "Cast":
            found["to"] = self._dtype(found["to"])
        return found

    def _folded(self, kind: str, inputs: tuple[Value | None, ...], attributes: dict[str, Any]) -> Any:
        """What a node gives where all its inputs are known and small."""
        known = [x for x in inputs if isinstance(x, Known)]
        if not known or len(known) < sum(x is not None for x in inputs):
            return None
        if any(x.array.size > MOST_KNOWN for x in known) or (known[0].array.dtype.kind == "f" and kind != "Cast"):
            return None
        arrays = [None if x is None else x.array for x in inputs if x is None or isinstance(x, Known)]
        at, xs = _named(kind, arrays, attributes)
        try:
            made = computed(kind, xs, at)
        except UndecidedNow:
            return None
        if made is None:
            return None
        made = plain(made)
        dtype = "bool" if made.dtype == bool else attributes["to"] if kind == "Cast" else known[-1].dtype
        return Known(made, dtype)


def _named(kind: str, xs: list[Any], attributes: dict[str, Any]) -> tuple[dict[str, Any], list[Array]]:
    """Attributes with their defaults, those that newer versions pass as inputs among them; the other inputs."""
    at: dict[str, Any] = {"axis": 0, "axes": None, "perm": None, "keepdims": 1, **attributes}
    x = xs[0]
    rest = [v for v in xs[1:] if v is not None]
    if kind == "Slice":
        names = ("starts", "ends", "axes", "steps")
        at |= {n: v.tolist() for n, v in zip(names, xs[1:], strict=False) if v is not None}
        at["axes"] = list(range(len(at["starts"]))) if at["axes"] is None else at["axes"]
        at.setdefault("steps", [1] * len(at["starts"]))
        return at, [x]
    if kind in ("Unsqueeze", "Squeeze"):
        axes = attributes.get("axes", rest[0].tolist() if rest else None)
        return at | {"axes": None if axes is None else tuple(axes)}, [x]
    if kind == "Reshape":
        return at | {"shape": [int(d) for d in (rest[0] if rest else attributes["shape"])]}, [x]
    return at, [v for v in xs if v is not None]
