"""Converts ONNX models to modules. The `onnx` package reads and checks a model; the nodes of its graph become
operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relax_eg.errors import OnnxError, RelaxEgError
from relax_eg.frontends.onnx.functions import domain_of
from relax_eg.frontends.onnx.missing import check_operators
from relax_eg.frontends.onnx.scopes import Conversion, GraphScope
from relax_eg.frontends.onnx.values import Array, KnownArray
from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.module import Module, pure_function
from relax_eg.ir.wellformed import check
from relax_eg.shapes import Dim, parse_spec

_INSTALL = "the package `onnx`: pip install relax-eg[onnx]"


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
    is unsupported if it has an attribute, input or output that is not understood. Operators that ONNX defines as
    functions, and the model's own functions, are read node by node.
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
    """The conversion of a model's own graph."""

    def __init__(self, onnx: Any, proto: Any, name: str, inputs: Mapping[str, str], constants: bool) -> None:
        self.graph = proto.graph
        self.name = name
        self.inputs = inputs
        self.shared = Conversion(onnx, proto, name, constants)
        opsets = {domain_of(o): int(o.version) for o in proto.opset_import}
        self.scope = GraphScope(self.shared, self.graph.node, (o.name for o in self.graph.output), opsets, name)
        self.sizes: dict[str, Dim] = {}  # the sizes that have a name in the model
        self.size_names: set[str] = set()

    def module(self) -> OnnxModule:
        if not self.graph.node and not self.graph.output:
            raise OnnxError(f"from_onnx: {self.name} has no graph\n  accepted: an ONNX model")
        check_operators(self.scope)
        self.scope.add_initializers(self.graph.initializer)
        self._name_sizes()
        for given in self.graph.input:
            if given.name in self.scope.values:
                raise self.scope.twice(given.name)
            if given.name not in self.scope.waiting:
                self._input(given)
        if unknown := self.inputs.keys() - {g.name for g in self.graph.input}:
            has = ", ".join(g.name for g in self.graph.input)
            raise OnnxError(f"{self.name} has no input {sorted(unknown)[0]!r}\n  accepted: {has}")
        self.scope.run()
        outputs = [self._output(o) for o in self.graph.output]
        reached = set(postorder(outputs))
        held = self.shared.weights
        used = [p for p in self.shared.params if p in reached or p.attr("name") not in held]
        used.sort(key=lambda p: p.attr("name") in held)
        weights = {str(p.attr("name")): held[p.attr("name")] for p in used if p.attr("name") in held}
        function = pure_function("main", used, outputs)
        kept = {e: origin for e, origin in self.shared.origins.items() if e in reached}
        entry = replace(function, origins=MappingProxyType(kept))
        module = OnnxModule((entry, *self.shared.functions.added), MappingProxyType(weights))
        check(module)
        return module

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
        name = identifier(given.name, self.shared.taken)
        try:
            if given.name in self.inputs:
                shape = self._declared(given.name, [self._size(d) for d in tensor.shape.dim])
            else:
                sizes = [(self._size(d), f"{name}_{i}") for i, d in enumerate(tensor.shape.dim)]
                shape = tuple(Dim.var(identifier(own, self.size_names)) if d is None else d for d, own in sizes)
            made = var(name, Tensor(shape, self.shared.dtype(tensor.elem_type)))
        except RelaxEgError as error:
            raise OnnxError(f"{self.name}: input `{given.name}`: {error}") from None
        self.shared.params.append(made)
        self.scope.values[given.name] = made

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

    def _output(self, output: Any) -> Expr:
        value = self.scope.value(output.name, f"{self.name}: output `{output.name}`")
        made = value.expr if isinstance(value, KnownArray) else value
        kind = output.type.tensor_type.elem_type
        if kind and (dtype := self.shared.dtype(kind)) != made.dtype:
            text = f"output `{output.name}` is {made.dtype}, and declared {dtype}"
            raise OnnxError(f"{self.name}: {text}\n  accepted: the dtype that its node gives")
        return made
