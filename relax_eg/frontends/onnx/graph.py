"""Converts ONNX models to modules. The `onnx` package reads and checks a model; the nodes of its graph become
operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.dtypes import NUMBERS
from relax_eg.errors import OnnxError, RelaxEgError
from relax_eg.frontends.onnx.folding import fold_node
from relax_eg.frontends.onnx.nodes import OnnxNode
from relax_eg.frontends.onnx.ops import HANDLERS
from relax_eg.frontends.onnx.values import Array, KnownArray, Value
from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.module import Module, pure_function
from relax_eg.ir.origin import Origin, SourceLine
from relax_eg.ir.wellformed import check
from relax_eg.shapes import Dim, parse_spec

_INSTALL = "the package `onnx`: pip install relax-eg[onnx]"
MAX_CONSTANT_ELEMENTS = 16  # limit: elements of an initializer without floats that stays a constant
OLDEST_OPSET = 7  # given: the first opset whose operators broadcast as numpy does
_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxModule(Module):
    """A module that was converted from ONNX.

    - `weights`: the arrays of the model, by the names of the parameters that take them:

          best = rx.optimize(module, weights=tuple(module.weights))
          ready = best.prepare(**module.weights)
    """

    weights: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)


def from_onnx(model: Any, *, inputs: Mapping[str, str] | None = None, constants: bool = False) -> OnnxModule:
    """The module of an ONNX model.

    The entry takes the inputs of the model, then its weights: the initializers and constants of several elements that
    are not part of shapes. The module's `weights` hold their arrays. Sizes with a name (`dim_param`) become size
    variables; each unnamed unknown size becomes a variable of its own. Computations on shapes are done now. Dtypes are
    those of the model, including int64 and float64.

    - `model`: a path, the bytes of a file, or an `onnx.ModelProto`. For a path, external data is read from the folder
      of the model, as ONNX specifies. Bytes and a ModelProto must hold all their data.
    - `inputs`: specs of inputs by name, to declare more about their sizes: `{"x": "n 3 32*h 32*w"}` for a model that
      takes only multiples of 32.
    - `constants`: whether the weights become constants of the module instead of parameters.

    OnnxError, with the node, its operator and opset, for a model that cannot be read and for unsupported nodes. A node
    is unsupported if it has an attribute, input or output that is not understood.
    """
    onnx = _package()
    proto, name = _read(onnx, model)
    try:
        return _Graph(onnx, proto, name, inputs or {}, constants).module()
    except OnnxError:
        raise
    except Exception as error:  # protobuf accepts malformed content, such as names that are not valid text
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OnnxError(f"from_onnx: {name} is malformed ({text})\n  accepted: an ONNX model") from error


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
        return onnx.load(str(model), format="protobuf"), Path(model).name
    except OSError as error:
        raise OnnxError(f"from_onnx: cannot read {model}: {error.strerror or error}\n  accepted: {accepted}") from None
    except Exception as error:  # the errors of protobuf have no common class
        what = "these bytes are" if isinstance(model, bytes) else f"{model} is"
        raise OnnxError(f"from_onnx: {what} no ONNX model ({error})\n  accepted: {accepted}") from None


class _Graph:
    """The conversion of one graph."""

    def __init__(self, onnx: Any, proto: Any, name: str, inputs: Mapping[str, str], constants: bool) -> None:
        self.onnx = onnx
        self.proto = proto
        self.graph = proto.graph
        self.name = name
        self.inputs = inputs
        self.constants = constants
        self.opsets = {_domain(o): int(o.version) for o in proto.opset_import}
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set()
        self.params: list[Expr] = []
        self.weights: dict[str, Array] = {}
        self.weight_params: dict[str, Expr] = {}
        self.waiting: dict[str, Any] = {}
        self.origins: dict[Expr, Origin] = {}
        self.sizes: dict[str, Dim] = {}  # the sizes that have a name in the model
        self.size_names: set[str] = set()
        # The names of all values that a node or the result reads.
        self.read = {x for node in self.graph.node for x in node.input} | {o.name for o in self.graph.output}

    def module(self) -> OnnxModule:
        if not self.graph.node and not self.graph.output:
            raise OnnxError(f"from_onnx: {self.name} has no graph\n  accepted: an ONNX model")
        for tensor in self.graph.initializer:
            if tensor.name in self.waiting:
                raise self._twice(tensor.name)
            self.waiting[tensor.name] = tensor
        self._name_sizes()
        for given in self.graph.input:
            if given.name in self.values:
                raise self._twice(given.name)
            if given.name not in self.waiting:
                self._input(given)
        if unknown := self.inputs.keys() - {g.name for g in self.graph.input}:
            has = ", ".join(g.name for g in self.graph.input)
            raise OnnxError(f"{self.name} has no input {sorted(unknown)[0]!r}\n  accepted: {has}")
        checked = type(self.onnx.checker.DEFAULT_CONTEXT)()
        checked.ir_version, checked.opset_imports = self.proto.ir_version, self.opsets
        for i, node in enumerate(self.graph.node):
            self._node(i, node, checked)
        outputs = [self._output(o) for o in self.graph.output]
        reached = set(postorder(outputs))
        used = [p for p in self.params if p in reached or p.attr("name") not in self.weights]
        used.sort(key=lambda p: p.attr("name") in self.weights)
        weights = {str(p.attr("name")): self.weights[p.attr("name")] for p in used if p.attr("name") in self.weights}
        function = pure_function("main", used, outputs)
        kept = {e: origin for e, origin in self.origins.items() if e in reached}
        module = OnnxModule((replace(function, origins=MappingProxyType(kept)),), MappingProxyType(weights))
        check(module)
        return module

    def _twice(self, name: str) -> OnnxError:
        return OnnxError(f"{self.name}: `{name}` is given twice\n  accepted: one value for each name")

    # --- values ---

    def _dtype(self, kind: int) -> str:
        """The dtype of an ONNX element type."""
        names = self.onnx.TensorProto.DataType
        try:
            found = str(np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(kind)))
        except (KeyError, TypeError):
            found = ""
        if found not in NUMBERS:
            name = names.Name(kind) if kind in names.values() else f"number {kind}"
            raise OnnxError(f"elements of type {name}\n  accepted: {', '.join(NUMBERS)}")
        return found

    def _name_sizes(self) -> None:
        """Creates the variables of all named sizes of the inputs first, so that no unnamed size takes their names."""
        for given in self.graph.input:
            for dim in given.type.tensor_type.shape.dim:
                text = dim.dim_param
                if re.search(r"\w", text) and text not in self.sizes:
                    self.sizes[text] = Dim.var(identifier(text, {str(d) for d in self.sizes.values()}))
        self.size_names = {str(d) for d in self.sizes.values()}
        for name, text in self.inputs.items():
            try:
                self.size_names |= {v for d in parse_spec(text).dims if isinstance(d, Dim) for v in d.variables}
            except RelaxEgError as error:
                raise OnnxError(f"inputs[{name!r}]: {error}") from None

    def _input(self, given: Any) -> None:
        kind = given.type.WhichOneof("value")
        if kind != "tensor_type" or not given.type.tensor_type.HasField("shape"):
            what = "has no shape" if kind == "tensor_type" else f"is a {kind or 'value of no type'}"
            raise OnnxError(f"{self.name}: input `{given.name}` {what}\n  accepted: tensors of known rank")
        tensor = given.type.tensor_type
        name = identifier(given.name, self.taken)
        try:
            if given.name in self.inputs:
                shape = self._declared(given.name, [self._size(d) for d in tensor.shape.dim])
            else:
                sizes = [(self._size(d), f"{name}_{i}") for i, d in enumerate(tensor.shape.dim)]
                shape = tuple(Dim.var(identifier(own, self.size_names)) if d is None else d for d, own in sizes)
            made = var(name, Tensor(shape, self._dtype(tensor.elem_type)))
        except RelaxEgError as error:
            raise OnnxError(f"{self.name}: input `{given.name}`: {error}") from None
        self.params.append(made)
        self.values[given.name] = made

    def _declared(self, name: str, shape: Sequence[Dim | None]) -> tuple[Dim, ...]:
        """The sizes that the caller declares for an input. OnnxError if they contradict the model."""
        declared = Tensor(self.inputs[name]).shape
        pairs = None if declared is None or len(declared) != len(shape) else zip(declared, shape, strict=True)
        if declared is None or pairs is None or any(a != b for a, b in pairs if b is not None and b.is_const):
            has = " ".join("_" if d is None else str(d) for d in shape)
            raise OnnxError(f"inputs[{name!r}] = {self.inputs[name]!r}; the model has {has!r}")
        return declared

    def _size(self, dim: Any) -> Dim | None:
        """A size of an input; None for a size that is neither fixed nor named."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return Dim.of(int(dim.dim_value))
        return self.sizes.get(dim.dim_param)

    def _value(self, name: str, where: str) -> Value:
        if name not in self.values:
            if name not in self.waiting:
                accepted = "inputs, initializers, outputs of nodes before"
                raise OnnxError(f"{where}: nothing gives `{name}`\n  accepted: {accepted}")
            try:
                self.values[name] = self._initializer(name, self.waiting[name])
            except OnnxError as error:
                raise OnnxError(f"{self.name}: initializer `{name}`: {error}") from None
        return self.values[name]

    def _initializer(self, name: str, tensor: Any) -> KnownArray:
        found = self._tensor(tensor)
        few = found.array.size <= (1 if found.array.dtype.kind == "f" else MAX_CONSTANT_ELEMENTS)
        return found if few or self.constants else replace(found, weight=lambda: self._weight(name, found))

    def _weight(self, name: str, found: KnownArray) -> Expr:
        """The parameter that takes an initializer; adds it at the first use."""
        if name not in self.weight_params:
            own = identifier(name, self.taken)
            self.weight_params[name] = var(own, Tensor(found.array.shape, found.dtype))
            self.weights[own] = found.array
            self.params.append(self.weight_params[name])
        return self.weight_params[name]

    def _tensor(self, tensor: Any) -> KnownArray:
        """The numbers in a TensorProto. OnnxError if they are in another file, or do not fit its dtype and sizes."""
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            accepted = "a path to the model, from whose folder its data is read, or onnx.load(path)"
            raise OnnxError(f"its data is in another file, which bytes and protos do not name\n  accepted: {accepted}")
        dtype = self._dtype(tensor.data_type)
        try:
            array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # numpy and onnx raise various errors for lengths and numbers that do not fit
            size = f"{dtype} of shape ({', '.join(map(str, tensor.dims))})"
            raise OnnxError(f"no {size} ({error})\n  accepted: as many numbers as the shape has elements") from None
        if array.shape != tuple(tensor.dims):
            raise OnnxError(f"sizes {list(tensor.dims)}\n  accepted: sizes from 0 on")
        return KnownArray(array, dtype)

    def _output(self, output: Any) -> Expr:
        value = self._value(output.name, f"{self.name}: output `{output.name}`")
        made = value.expr if isinstance(value, KnownArray) else value
        kind = output.type.tensor_type.elem_type
        if kind and (dtype := self._dtype(kind)) != made.dtype:
            text = f"output `{output.name}` is {made.dtype}, and declared {dtype}"
            raise OnnxError(f"{self.name}: {text}\n  accepted: the dtype that its node gives")
        return made

    # --- nodes ---

    def _node(self, i: int, node: Any, checked: Any) -> None:
        domain = _domain(node)
        opset = self.opsets.get(domain, 0)
        kind = node.op_type
        label = f"node {i} `{node.name}`" if node.name else f"node {i}"
        where = f"{self.name}: {label} ({domain + '.' if domain else ''}{kind}, opset {opset})"
        if domain or (kind not in HANDLERS and kind != "Constant"):
            raise OnnxError(f"{where} is not supported\n  accepted: {', '.join(sorted([*HANDLERS, 'Constant']))}")
        if any(f.name == kind and _domain(f) == domain for f in self.proto.functions):
            raise OnnxError(f"{where} is a function of the model's own\n  accepted: the operator of this name")
        newest = self.onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= opset <= newest:
            raise OnnxError(f"{where} is not supported\n  accepted: opsets {OLDEST_OPSET} to {newest}")
        inputs = [self._value(x, where) if x else None for x in node.input]
        try:
            self._check(node, checked)
            results = self._results(node, where, inputs, opset)
        except OnnxError as error:
            text = str(error)
            raise error if text.startswith(where) else OnnxError(f"{where}: {text}") from None
        except Exception as error:  # a malformed node can cause any kind of error deep inside the handlers
            text = str(error) if isinstance(error, (RelaxEgError, ValueError)) else f"{type(error).__name__}: {error}"
            raise OnnxError(f"{where}: {text}\n  accepted: inputs and attributes that {kind} takes") from error
        for name, value in zip(node.output, results, strict=False):
            if name:
                if name in self.values or name in self.waiting:
                    raise OnnxError(f"{where}: `{name}` is given twice\n  accepted: one value for each name")
                self.values[name] = value
                self._keep_origin(value, Origin((SourceLine(self.name, i),)))

    def _check(self, node: Any, checked: Any) -> None:
        """OnnxError for a node that does not fit the definition of its operator in ONNX's own table."""
        if not all(node.input):
            # Exporters leave out inputs that older versions require but do not read, so each omitted input gets a name
            # for the check. The handler refuses a missing input that it reads.
            node, given = self.onnx.NodeProto.FromString(node.SerializeToString()), list(node.input)
            node.input[:] = [x or "left_out" for x in given]
        try:
            self.onnx.checker.check_node(node, checked)
        except self.onnx.checker.ValidationError as error:
            first = str(error).strip().splitlines()[0]
            raise OnnxError(f"{first}\n  accepted: a {node.op_type} as ONNX defines it") from None

    def _results(self, node: Any, where: str, inputs: list[Value | None], opset: int) -> list[Value]:
        """The outputs of a node. OnnxError if an output that something reads is not supported."""
        if node.op_type == "Constant":
            return [self._constant(node)]
        while inputs and inputs[-1] is None:
            inputs.pop()  # an empty name at the end also means that the input is left out
        listed = list(node.output)
        while listed and not listed[-1]:
            listed.pop()
        n = OnnxNode(node.op_type, where, tuple(inputs), self._attributes(node), len(listed), opset)
        made: Value | Sequence[Value] | None = fold_node(n)
        if made is None:
            n = n.unread_copy()
            made = HANDLERS[node.op_type](n)
        if (unread := n.unread_part()) is not None:
            raise n.error(f"{unread} is not supported", f"a {node.op_type} without it")
        results: list[Value] = [made] if isinstance(made, (Expr, KnownArray)) else list(made)
        for i, name in enumerate(listed):
            if i >= len(results) and name in self.read:
                raise n.error(f"output {i}, `{name}`, is not supported", f"a {node.op_type} of which nothing reads it")
        return results

    def _keep_origin(self, value: Value, origin: Origin) -> None:
        if isinstance(value, Expr):
            for e in postorder([value], stop=lambda e: e in self.origins):
                if e.args:
                    self.origins.setdefault(e, origin)

    def _constant(self, node: Any) -> KnownArray:
        accepted = "one of value, value_float(s), value_int(s)"
        if len(node.attribute) != 1:
            raise OnnxError(f"{len(node.attribute)} attributes\n  accepted: {accepted}")
        (a,) = node.attribute
        value = self.onnx.helper.get_attribute_value(a)
        if a.name == "value":
            return self._initializer(node.output[0], value)
        if a.name in ("value_float", "value_floats"):
            return KnownArray(np.array(value, np.float32), "float32")
        if a.name in ("value_int", "value_ints"):
            return KnownArray(np.array(value, np.int64), "int64")
        raise OnnxError(f"{a.name}\n  accepted: {accepted}")

    def _attributes(self, node: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for a in node.attribute:
            value = self.onnx.helper.get_attribute_value(a)
            if isinstance(value, self.onnx.TensorProto):
                value = self._tensor(value)
            found[a.name] = value.decode() if isinstance(value, bytes) else value
        if node.op_type == "Cast":
            found["to"] = self._dtype(found["to"])
        return found


def _domain(proto: Any) -> str:
    return "" if proto.domain in _DOMAINS else str(proto.domain)
