"""Converts ONNX models to modules. The `onnx` package reads and checks a model; the nodes of its graph become
operators."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import OnnxError, RelaxEgError
from relax_eg.frontends.model import ModelModule
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.frontends.onnx.functions import domain_of
from relax_eg.frontends.onnx.missing import OperatorNodes, check_operators, uses
from relax_eg.frontends.onnx.scopes import OLDEST_OPSET, Conversion, GraphScope, dense_tensor
from relax_eg.frontends.onnx.values import Held, KnownArray, Nothing, TensorList, tensor
from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, tuple_, var
from relax_eg.ir.module import Block, Module, pure_function
from relax_eg.ir.wellformed import check
from relax_eg.logs import log_at
from relax_eg.shapes import Dim, parse_spec
from relax_eg.traversal import grouped

_INSTALL = "the package `onnx`: pip install relax-eg[onnx]"


def from_onnx(model: Any, *, inputs: Mapping[str, Any] | None = None, constants: bool = False) -> ModelModule:
    """The module of an ONNX model.

    The entry takes the inputs of the model, then its weights: the initializers and constants of several elements that
    are not part of shapes. The module's `weights` hold their arrays. Sizes with a name (`dim_param`) become size
    variables; each unnamed unknown size becomes a variable of its own. Computations on shapes are done now. Dtypes are
    those of the model, including int64 and float64.

    - `model`: a path, the bytes of a file, or an `onnx.ModelProto`. For a path, external data is read from the folder
      of the model, as ONNX specifies. Bytes and a ModelProto must hold all their data.
    - `inputs`: what is known of inputs, by name: a spec, to declare more about sizes (`{"x": "n 3 32*h 32*w"}` for a
      model that takes only multiples of 32); a number or an array, the value of the input, which then is no parameter
      of the module (`{"sr": 16000}`); a list of specs for the elements of a sequence; None for an empty optional.
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


@dataclass(frozen=True)
class Contents:
    """What is in an ONNX model.

    - `name`: the name of the file.
    - `operators`: for each operator, its nodes, and the reason why the reader refuses it, if it does.
    - `inputs`, `outputs`: their names, with dtypes and sizes as the model declares them.
    - `weights`: the number of its initializers.
    - `weight_bytes`: their bytes.
    - `problem`: why it cannot be read; empty if it can.
    - `module`: what was read; None if it cannot be.
    """

    name: str
    operators: Mapping[str, OperatorNodes]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    weights: int
    weight_bytes: int
    problem: str
    module: ModelModule | None


def contents(model: Any, *, inputs: Mapping[str, Any] | None = None) -> Contents:
    """What is in an ONNX model, also in one that cannot be read."""
    onnx = _package()
    proto, name = _read(onnx, model)
    held = [_tensor_bytes(onnx, t) for t in proto.graph.initializer]
    module, problem = None, ""
    try:
        module = from_onnx(model, inputs=inputs)
    except OnnxError as error:
        problem = str(error)
    given = {t.name for t in proto.graph.initializer}
    declared = [
        {v.name: _declared_type(onnx, v.type) for v in values if v.name not in given}
        for values in (proto.graph.input, proto.graph.output)
    ]
    operators = uses(_Graph(onnx, proto, name, {}, False).scope)
    return Contents(name, operators, declared[0], declared[1], len(held), sum(held), problem, module)


def _tensor_bytes(onnx: Any, tensor: Any) -> int:
    """The bytes of a tensor, in whichever file they are."""
    try:
        bits = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    except (KeyError, TypeError):
        return 0
    return bits * math.prod(tensor.dims)


def _declared_type(onnx: Any, kind: Any) -> str:
    which = kind.WhichOneof("value")
    if which != "tensor_type":
        return f"{which or 'nothing'}".replace("_type", "")
    names, tensor = onnx.TensorProto.DataType, kind.tensor_type
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "_" for d in tensor.shape.dim]
    element = names.Name(tensor.elem_type) if tensor.elem_type in names.values() else str(tensor.elem_type)
    return f"{element.lower()} ({', '.join(sizes)})" if tensor.HasField("shape") else f"{element.lower()} of any shape"


def _package() -> Any:
    try:
        import onnx  # type: ignore[reportMissingImports]  # an extra
    except ImportError:
        raise OnnxError(f"from_onnx needs a package that is not installed\n  accepted: {_INSTALL}") from None
    return onnx


def _read(onnx: Any, model: Any) -> tuple[Any, str]:
    """A model in an operator set that is read, if ONNX can convert it, and its name."""
    proto, name = _proto(onnx, model)
    return _with_numpys_broadcasts(onnx, proto), name


def _proto(onnx: Any, model: Any) -> tuple[Any, str]:
    accepted = "a path to an ONNX file, its bytes, or an onnx.ModelProto"
    if isinstance(model, onnx.ModelProto):
        return model, model.graph.name or "model"
    if not isinstance(model, (str, Path, bytes)):
        raise OnnxError(f"from_onnx: got a {type(model).__name__}\n  accepted: {accepted}")
    try:
        if isinstance(model, bytes):
            return onnx.load_model_from_string(model), "model"
        proto = onnx.load(str(model), format="protobuf", load_external_data=False)
    except OSError as error:
        raise OnnxError(f"from_onnx: cannot read {model}: {error.strerror or error}\n  accepted: {accepted}") from None
    except Exception as error:  # the errors of protobuf have no common class
        what = "these bytes are" if isinstance(model, bytes) else f"{model} is"
        raise OnnxError(f"from_onnx: {what} no ONNX model ({error})\n  accepted: {accepted}") from None
    try:
        onnx.load_external_data_for_model(proto, str(Path(model).parent))
    except Exception as error:  # the package raises errors of various classes
        accepted = "the files of its data beside it, whole"
        why = _missing_data(proto, Path(model).parent) or error
        raise OnnxError(f"from_onnx: data of {model} cannot be read ({why})\n  accepted: {accepted}") from None
    return proto, Path(model).name


def _with_numpys_broadcasts(onnx: Any, proto: Any) -> Any:
    """A model of an older operator set than the first one that is read, in that one; as it is if ONNX cannot convert
    it."""
    if all(domain_of(o) or o.version >= OLDEST_OPSET for o in proto.opset_import):
        return proto
    from onnx import version_converter  # type: ignore[reportMissingImports]

    try:
        made = version_converter.convert_version(proto, OLDEST_OPSET)
        return _with_slopes_of_channels(onnx, made)
    except Exception as error:  # the converter is native code, whose errors have no common class
        log_at(2, f"a model of an older operator set is read as it is: {error}")
        return proto


def _with_slopes_of_channels(onnx: Any, proto: Any) -> Any:
    """A converted model, its slopes of PRelu of rank 1 with axes of one place behind the channels: before opset 7 they
    were along the second axis, and ONNX's converter leaves them as they are. ValueError where that cannot be done."""
    known = onnx.shape_inference.infer_shapes(proto).graph
    types = {v.name: v.type.tensor_type for v in (*known.input, *known.value_info)}
    held = {t.name: t for t in proto.graph.initializer}
    readers = Counter(name for n in proto.graph.node for name in n.input)
    if any(n.op_type == "PRelu" for n in _inner_nodes(proto)):
        raise ValueError("a PRelu is inside a function or a branch")
    for image, name in (n.input for n in proto.graph.node if n.op_type == "PRelu"):
        slope, of = held.get(name), types.get(image)
        if slope is not None and math.prod(slope.dims) == 1:
            continue
        if slope is None or readers[name] > 1 or of is None or not of.HasField("shape"):
            raise ValueError(f"`{name}` is no initializer of one PRelu of known rank")
        if len(slope.dims) == 1:
            slope.dims.extend([1] * (len(of.shape.dim) - 2))
            for declared in proto.graph.input:
                if declared.name == name:
                    declared.CopyFrom(onnx.helper.make_tensor_value_info(name, slope.data_type, slope.dims))
    return proto


def _inner_nodes(proto: Any) -> Iterator[Any]:
    """The nodes inside functions, and inside branches and loops of the graph."""
    graphs = [*proto.functions, *(a.g for n in proto.graph.node for a in n.attribute if a.HasField("g"))]
    while graphs:
        for n in graphs.pop().node:
            yield n
            graphs += [a.g for a in n.attribute if a.HasField("g")]


def _missing_data(proto: Any, folder: Path) -> str:
    """The files of data that are not in the folder, each with an initializer and how many it holds; empty if all are
    there."""
    entries = ((x, str(t.name)) for t in proto.graph.initializer for x in t.external_data)
    files = ((str(x.value), name) for x, name in entries if x.key == "location")
    held = grouped((file, name) for file, name in files if not (folder / file).is_file())
    return "; ".join(
        f"there is no {file}, which holds `{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for file, names in held.items()
    )


class _Graph:
    """The conversion of a model's own graph."""

    def __init__(self, onnx: Any, proto: Any, name: str, inputs: Mapping[str, Any], constants: bool) -> None:
        self.graph = proto.graph
        self.name = name
        self.inputs = inputs
        self.shared = Conversion(onnx, proto, name, constants)
        opsets = {domain_of(o): int(o.version) for o in proto.opset_import}
        self.scope = GraphScope(self.shared, self.graph.node, (o.name for o in self.graph.output), opsets, name)
        self.sizes: dict[str, Dim] = {}  # the sizes that have a name in the model
        self.size_names: set[str] = set()

    def module(self) -> ModelModule:
        if not self.graph.node and not self.graph.output:
            raise OnnxError(f"from_onnx: {self.name} has no graph\n  accepted: an ONNX model")
        check_operators(self.scope)
        self.scope.add_initializers(self.graph.initializer)
        self.scope.add_initializers(dense_tensor(self.shared.onnx, t) for t in self.graph.sparse_initializer)
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
        self._check_declared()
        results = [self._output(o) for o in self.graph.output]
        outputs = [e for r in results for e in (r if isinstance(r, list) else [r])]
        steps = self.shared.steps.bindings
        reached = set(postorder([*outputs, *(b.value for b in steps)]))
        held = self.shared.weights
        used = [p for p in self.shared.params if p in reached or p.attr("name") not in held]
        used.sort(key=lambda p: p.attr("name") in held)
        weights = {str(p.attr("name")): held[p.attr("name")] for p in used if p.attr("name") in held}
        function = pure_function("main", used, outputs, _result(results))
        kept = {e: origin for e, origin in self.shared.origins.items() if e in reached}
        entry = replace(function, origins=MappingProxyType(kept))
        if steps:
            entry = replace(entry, blocks=(Block(tuple(steps), dataflow=False), *entry.blocks))
        functions = (entry, *self.shared.functions.added)
        if steps:
            functions = with_dataflow_blocks(Module(functions)).functions
        module = ModelModule(functions, MappingProxyType(weights), self._output_names())
        check(module)
        return module

    def _check_declared(self) -> None:
        """OnnxError if the model declares another dtype of a value than its node gives."""
        for info in self.graph.value_info:
            value, kind = self.scope.values.get(info.name), info.type.tensor_type.elem_type
            if kind and isinstance(value, Expr | KnownArray) and (dtype := self.shared.dtype(kind)) != value.dtype:
                text = f"`{info.name}` is {value.dtype}, and declared {dtype}"
                raise OnnxError(f"{self.name}: {text}\n  accepted: the dtype that its node gives")

    def _output_names(self) -> tuple[str, ...]:
        used: set[str] = set()
        return tuple(identifier(o.name, used) for o in self.graph.output)

    def _name_sizes(self) -> None:
        """Creates the variables of all named sizes of the inputs first, so that no unnamed size takes their names."""
        for given in self.graph.input:
            value = self.inputs.get(given.name)
            sizes = np.asarray(value).shape if _is_value(value) else ()
            for dim, size in itertools.zip_longest(given.type.tensor_type.shape.dim, sizes):
                text = "" if dim is None else dim.dim_param
                if text and size is not None:
                    self.sizes[text] = Dim.of(size)
                if re.search(r"\w", text) and text not in self.sizes:
                    self.sizes[text] = Dim.var(identifier(text, {str(d) for d in self.sizes.values()}))
        self.size_names = {v for d in self.sizes.values() for v in d.variables}
        for name, given in self.inputs.items():
            try:
                for text in given if isinstance(given, list | tuple) else [given]:
                    if isinstance(text, str):
                        dims = parse_spec(text).dims
                        self.size_names |= {v for d in dims if isinstance(d, Dim) for v in d.variables}
            except RelaxEgError as error:
                raise OnnxError(f"inputs[{name!r}]: {error}") from None
        self.shared.steps.sizes |= self.size_names

    def _input(self, given: Any) -> None:
        known = self.inputs.get(given.name)
        if _is_value(known):
            self.scope.values[given.name] = self._bound(given, known)
        else:
            self.scope.values[given.name] = self._parameter(given.name, given.name, given.type, known)

    def _parameter(self, given: str, name: str, kind: Any, known: Any) -> Held:
        """The parameters for an input, or for an element of one. `known`: what the caller says of it."""
        which = kind.WhichOneof("value")
        if which == "sequence_type" and isinstance(known, list | tuple):
            element = kind.sequence_type.elem_type
            made = [self._parameter(given, f"{name}_{i}", element, k) for i, k in enumerate(known)]  # type: ignore[reportUnknownVariableType]
            return TensorList(tuple(v for v in made if not isinstance(v, TensorList | Nothing)))
        if which == "optional_type" and given in self.inputs:
            return Nothing() if known is None else self._parameter(given, name, kind.optional_type.elem_type, known)
        if which == "sequence_type":
            problem, accepted = "is a sequence", f"a spec for each element: inputs={{{given!r}: [...]}}"
        elif which == "optional_type":
            problem, accepted = "is an optional", f"inputs={{{given!r}: None}}, or the spec of its value"
        elif which != "tensor_type" or not (kind.tensor_type.HasField("shape") or isinstance(known, str)):
            problem = "has no shape" if which == "tensor_type" else f"is a {which or 'value of no type'}"
            accepted = "tensors of known rank"
        elif (known is not None and not isinstance(known, str)) or (known is None and given in self.inputs):
            problem, accepted = f"is a tensor, and inputs[{given!r}] = {known!r}", "a spec, a number or an array"
        else:
            return self._tensor(given, name, kind.tensor_type, known)
        raise OnnxError(f"{self.name}: input `{given}` {problem}\n  accepted: {accepted}")

    def _tensor(self, given: str, name: str, tensor: Any, known: str | None) -> Expr:
        name = identifier(name, self.shared.taken)
        try:
            sizes = [self._size(d) for d in tensor.shape.dim]
            if known is not None:
                shape = self._declared(given, known, sizes if tensor.HasField("shape") else None)
            else:
                own = [(d, f"{name}_{i}") for i, d in enumerate(sizes)]
                shape = tuple(Dim.var(identifier(text, self.size_names)) if d is None else d for d, text in own)
            made = var(name, Tensor(shape, self.shared.dtype(tensor.elem_type)))
        except RelaxEgError as error:
            raise OnnxError(f"{self.name}: input `{given}`: {error}") from None
        self.shared.steps.sizes |= self.size_names
        self.shared.params.append(made)
        return made

    def _bound(self, given: Any, value: Any) -> Held:
        """The value of an input that the caller gives."""
        where, kind = f"inputs[{given.name!r}]", given.type.tensor_type
        if given.type.WhichOneof("value") != "tensor_type":
            raise OnnxError(f"{where} is a value, and the input is no tensor\n  accepted: specs")
        dtype = numpy_dtype(self.shared.dtype(kind.elem_type))
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            held = array.astype(dtype)
        if not np.array_equal(held.astype(array.dtype), array) and not is_float(dtype.name):
            raise OnnxError(f"{where} holds other numbers than {dtype.name}s\n  accepted: values of the input's dtype")
        has = [self._size(d) for d in kind.shape.dim]
        fits = len(has) == array.ndim and all(h is None or h == d for h, d in zip(has, array.shape, strict=True))
        if kind.HasField("shape") and not fits:
            text = " ".join("_" if d is None else str(d) for d in has)
            raise OnnxError(f"{where} has shape {array.shape}; the model has {text!r}\n  accepted: that shape")
        return self.shared.initializer(given.name, self.shared.onnx.numpy_helper.from_array(held, given.name))

    def _declared(self, name: str, text: str, shape: Sequence[Dim | None] | None) -> tuple[Dim, ...]:
        """The sizes that the caller declares for an input. OnnxError if they contradict the model, which says nothing
        if `shape` is None."""
        declared = Tensor(text).shape
        if shape is None and declared is not None:
            return declared
        shape = shape or ()
        pairs = None if declared is None or len(declared) != len(shape) else zip(declared, shape, strict=True)
        if declared is None or pairs is None or any(a != b for a, b in pairs if b is not None and b.is_const):
            has = " ".join("_" if d is None else str(d) for d in shape)
            raise OnnxError(f"inputs[{name!r}] = {text!r}; the model has {has!r}")
        return declared

    def _size(self, dim: Any) -> Dim | None:
        """A size of an input; None for a size that is neither fixed nor named."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return Dim.of(int(dim.dim_value))
        return self.sizes.get(dim.dim_param)

    def _output(self, output: Any) -> Expr | list[Expr]:
        """The result of an output; a list for a sequence."""
        value = self.scope.value(output.name, f"{self.name}: output `{output.name}`")
        if isinstance(value, TensorList):
            return [tensor(v) for v in value.elements]
        if isinstance(value, Nothing):
            raise OnnxError(f"{self.name}: output `{output.name}` is an empty optional\n  accepted: tensors, sequences")
        made = tensor(value)
        kind = output.type.tensor_type.elem_type
        if kind and (dtype := self.shared.dtype(kind)) != made.dtype:
            text = f"output `{output.name}` is {made.dtype}, and declared {dtype}"
            raise OnnxError(f"{self.name}: {text}\n  accepted: the dtype that its node gives")
        return made


def _is_value(given: Any) -> bool:
    """Whether the caller says the value of an input, and not its sizes."""
    return isinstance(given, int | float | np.ndarray | np.generic)


def _result(results: Sequence[Expr | list[Expr]]) -> Expr | None:
    """The result of an entry that returns sequences, over the variables of its outputs (`pure_function`): a tuple for
    each; None if it returns none."""
    if not any(isinstance(r, list) for r in results):
        return None
    number = itertools.count()

    def bound(e: Expr) -> Expr:
        return var(f"gv{next(number) or ''}", e.annotation)

    made = [tuple_([bound(e) for e in r]) if isinstance(r, list) else bound(r) for r in results]
    return made[0] if len(made) == 1 else tuple_(made)
