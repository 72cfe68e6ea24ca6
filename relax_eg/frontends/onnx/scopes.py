"""The values of one ONNX graph by name, and the conversion of its nodes. Subgraphs and functions have scopes inside the
scope of their node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relax_eg.dtypes import NUMBERS
from relax_eg.errors import OnnxError, RelaxEgError, UndecidedError
from relax_eg.frontends.jax.control import TracedFunctions
from relax_eg.frontends.onnx.folding import fold_node
from relax_eg.frontends.onnx.functions import (
    default_attributes,
    domain_of,
    expansion,
    handler_name,
    is_defined,
    local_function,
    node_label,
    same_as_in,
)
from relax_eg.frontends.onnx.nodes import OnnxNode
from relax_eg.frontends.onnx.ops import HANDLERS
from relax_eg.frontends.onnx.steps import Steps
from relax_eg.frontends.onnx.values import Array, Held, KnownArray, TensorList
from relax_eg.frontends.specs import identifier
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder, var
from relax_eg.ir.origin import Origin, SourceLine

MAX_CONSTANT_ELEMENTS = 16  # limit: elements of an initializer without floats that stays a constant
OLDEST_OPSET = 7  # given: the first opset whose operators broadcast as numpy does
MOST_NESTED = 100  # limit: functions and subgraphs inside each other; functions that call themselves have no end


_DECLARED = (
    'shapes that are known and fit together; where a model takes certain sizes only, inputs={"x": "n 3 32*h 32*w"} '
    '(--input "x=n 3 32*h 32*w") says so of an input, and equal names are equal sizes'
)


@dataclass
class Conversion:
    """What the scopes of one model share.

    - `onnx`: the package.
    - `proto`: the model.
    - `constants`: whether initializers become constants.
    - `taken`: the names of variables in use.
    - `params`, `weights`, `weight_params`: the parameters; the arrays of those that are weights, and their variables by
      the names of initializers.
    - `origins`: the node of each expression.
    - `entered`: the number of scopes so far.
    - `functions`: the functions that the conversion adds to the module: bodies of loops and branches.
    - `steps`: the steps of the entry, whose result sizes depend on values.
    """

    onnx: Any
    proto: Any
    name: str
    constants: bool
    taken: set[str] = field(default_factory=set[str])
    params: list[Expr] = field(default_factory=list[Expr])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    weight_params: dict[str, Expr] = field(default_factory=dict[str, Expr])
    origins: dict[Expr, Origin] = field(default_factory=dict[Expr, Origin])
    entered: int = 0
    functions: TracedFunctions = field(default_factory=lambda: TracedFunctions({"main"}))
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.taken)

    def dtype(self, kind: int) -> str:
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

    def tensor(self, tensor: Any) -> KnownArray:
        """The numbers in a TensorProto. OnnxError if they are in another file, or do not fit its dtype and sizes."""
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            accepted = "a path to the model, from whose folder its data is read, or onnx.load(path)"
            raise OnnxError(f"its data is in another file, which bytes and protos do not name\n  accepted: {accepted}")
        dtype = self.dtype(tensor.data_type)
        try:
            array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # numpy and onnx raise various errors for lengths and numbers that do not fit
            size = f"{dtype} of shape ({', '.join(map(str, tensor.dims))})"
            raise OnnxError(f"no {size} ({error})\n  accepted: as many numbers as the shape has elements") from None
        if array.shape != tuple(tensor.dims):
            raise OnnxError(f"sizes {list(tensor.dims)}\n  accepted: sizes from 0 on")
        return KnownArray(array, dtype)

    def initializer(self, key: str, tensor: Any) -> KnownArray:
        """The array of an initializer, as a weight if it is large. `key`: its name, unique in the model."""
        found = self.tensor(tensor)
        few = found.array.size <= (1 if found.array.dtype.kind == "f" else MAX_CONSTANT_ELEMENTS)
        return found if few or self.constants else replace(found, weight=lambda: self._weight(key, found))

    def _weight(self, key: str, found: KnownArray) -> Expr:
        """The parameter that takes an initializer; adds it at the first use."""
        if key not in self.weight_params:
            own = identifier(key, self.taken)
            self.weight_params[key] = var(own, Tensor(found.array.shape, found.dtype))
            self.weights[own] = found.array
            self.params.append(self.weight_params[key])
        return self.weight_params[key]


def dense_tensor(onnx: Any, sparse: Any) -> Any:
    """The TensorProto of a SparseTensorProto. OnnxError for places that are outside of it."""
    values, places = (onnx.numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    made = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        made[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, made.shape)] = values
    except (IndexError, ValueError) as error:
        raise OnnxError(
            f"sparse `{sparse.values.name}`: {error}\n  accepted: a place of its shape for each value"
        ) from None
    return onnx.numpy_helper.from_array(made, sparse.values.name)


class GraphScope:
    """The values of one graph by name.

    - `nodes`, `outputs`: its nodes, and the names of its outputs.
    - `opsets`: the version of each domain.
    - `label`: the place of the graph in errors.
    - `outer`: the scope whose values the graph may read; None for the model's own graph and for functions.
    - `attributes`: the attributes of the function around it, by name.
    - `line`: the node of the model's own graph that the graph belongs to.
    - `depth`: the number of functions and subgraphs around it.
    - `closed`: whether it is inside a function of the module, which cannot read the weights of the entry.
    """

    def __init__(
        self,
        shared: Conversion,
        nodes: Iterable[Any],
        outputs: Iterable[str],
        opsets: Mapping[str, int],
        label: str,
        outer: GraphScope | None = None,
        attributes: Mapping[str, Any] | None = None,
        line: SourceLine | None = None,
        depth: int = 0,
        closed: bool = False,
    ) -> None:
        if depth > MOST_NESTED:
            raise OnnxError(f"functions inside each other without end\n  accepted: at most {MOST_NESTED}")
        self.shared = shared
        self.nodes = list(nodes)
        self.outputs = list(outputs)
        self.opsets = opsets
        self.label = label
        self.outer = outer
        self.attributes = attributes or {}
        self.line = line
        self.depth = depth
        self.closed = closed
        self.number = shared.entered
        shared.entered += 1
        self.values: dict[str, Held] = {}
        self.waiting: dict[str, Any] = {}
        # The names of all values that a node or the result reads.
        self.read = {*names_read(self.nodes), *self.outputs}

    def add_initializers(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if tensor.name in self.waiting:
                raise self.twice(tensor.name)
            self.waiting[tensor.name] = tensor

    def twice(self, name: str) -> OnnxError:
        return OnnxError(f"{self.label}: `{name}` is given twice\n  accepted: one value for each name")

    def run(self) -> None:
        """Converts all nodes."""
        checked = type(self.shared.onnx.checker.DEFAULT_CONTEXT)()
        checked.ir_version, checked.opset_imports = self.shared.proto.ir_version, dict(self.opsets)
        for i, node in enumerate(self.nodes):
            self._node(i, node, checked)

    def value(self, name: str, where: str) -> Held:
        if name not in self.values:
            if name not in self.waiting:
                if self.outer is not None:
                    return self.outer.value(name, where)
                behind = [node_label(i, n) for i, n in enumerate(self.nodes) if name in n.output]
                what = (
                    f"`{name}` is given by {behind[0]}, which is not before it" if behind else f"nothing gives `{name}`"
                )
                accepted = "inputs, initializers, outputs of nodes before; no cycles"
                raise OnnxError(f"{where}: {what}\n  accepted: {accepted}")
            try:
                self.values[name] = self._initializer(name, self.waiting[name])
            except OnnxError as error:
                raise OnnxError(f"{self.label}: initializer `{name}`: {error}") from None
        return self.values[name]

    # --- nodes ---

    def _node(self, i: int, node: Any, checked: Any) -> None:
        domain = domain_of(node)
        opset = self.opsets.get(domain, 0)
        kind = node.op_type
        where = f"{self.label}: {node_label(i, node)} ({handler_name(domain, kind)}, opset {opset})"
        newest = self.shared.onnx.defs.onnx_opset_version()
        local = local_function(self.shared.proto, node)
        old = opset < OLDEST_OPSET and not same_as_in(OLDEST_OPSET, self.shared.onnx, node, opset)
        if not domain and local is None and (old or opset > newest):
            raise OnnxError(f"{where} is not supported\n  accepted: opsets {OLDEST_OPSET} to {newest}")
        if local is not None and not domain and kind in HANDLERS:
            raise OnnxError(f"{where} is a function of the model's own\n  accepted: the operator of this name")
        inputs = [self.value(x, where) if x else None for x in node.input]
        line = self.line or SourceLine(self.shared.name, i)
        try:
            node = self._with_attributes(node)
            if local is None:
                self._check(node, checked)
                results = self._results(node, where, inputs, opset, line)
            else:
                results = self._function(local, node, where, inputs, line)
        except OnnxError as error:
            text = str(error)
            raise error if text.startswith(where) else OnnxError(f"{where}: {text}") from None
        except Exception as error:  # a malformed node can cause any kind of error deep inside the handlers
            text = str(error) if isinstance(error, (RelaxEgError, ValueError)) else f"{type(error).__name__}: {error}"
            accepted = _DECLARED if isinstance(error, UndecidedError) else f"inputs and attributes that {kind} takes"
            raise OnnxError(f"{where}: {text}\n  accepted: {accepted}") from error
        for name, value in zip(node.output, results, strict=False):
            if name and value is not None:
                if name in self.values or name in self.waiting:
                    raise OnnxError(f"{where}: `{name}` is given twice\n  accepted: one value for each name")
                self.values[name] = value
                self._keep_origin(value, Origin((line,)))

    def _with_attributes(self, node: Any) -> Any:
        """The node with the attributes of the function around it in place of references to them."""
        if not any(a.ref_attr_name for a in node.attribute):
            return node
        made = self.shared.onnx.NodeProto.FromString(node.SerializeToString())
        del made.attribute[:]
        for a in node.attribute:
            found = self.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if found is not None:  # otherwise the attribute of the function is left out, and so is the node's
                made.attribute.append(found)
                made.attribute[-1].name = a.name
        return made

    def _check(self, node: Any, checked: Any) -> None:
        """OnnxError for a node that does not fit the definition of its operator in ONNX's own table."""
        if not is_defined(self.shared.onnx, node, self.opsets.get(domain_of(node), 0)):
            return  # an operator of onnxruntime, which also writes newer ones of ONNX into models of older opsets
        if not all(node.input):
            # Exporters leave out inputs that older versions require but do not read, so each omitted input gets a name
            # for the check. The handler refuses a missing input that it reads.
            node, given = self.shared.onnx.NodeProto.FromString(node.SerializeToString()), list(node.input)
            node.input[:] = [x or "left_out" for x in given]
        if any(a.HasField("g") for a in node.attribute):
            # Its graphs are checked when they are read: this check knows no names outside.
            node = self.shared.onnx.NodeProto.FromString(node.SerializeToString())
            for a in node.attribute:
                if a.HasField("g"):
                    a.g.CopyFrom(self.shared.onnx.GraphProto(name="checked"))
        try:
            self.shared.onnx.checker.check_node(node, checked)
        except self.shared.onnx.checker.ValidationError as error:
            first = str(error).strip().splitlines()[0]
            raise OnnxError(f"{first}\n  accepted: a {node.op_type} as ONNX defines it") from None

    def _results(
        self, node: Any, where: str, inputs: list[Held | None], opset: int, line: SourceLine
    ) -> Sequence[Held | None]:
        """The outputs of a node. OnnxError if an output that something reads is not supported."""
        if node.op_type == "Constant" and not node.domain:
            return [self._constant(node)]
        while inputs and inputs[-1] is None:
            inputs.pop()  # an empty name at the end also means that the input is left out
        listed = list(node.output)
        while listed and not listed[-1]:
            listed.pop()
        handler = HANDLERS.get(handler_name(domain_of(node), node.op_type))
        if handler is None:
            return self._function(expansion(self.shared.onnx, node, inputs, opset), node, where, inputs, line)
        attributes = self._attributes(node, where, line)
        n = OnnxNode(node.op_type, where, tuple(inputs), attributes, len(listed), opset, self.shared.functions,
                     None if self.closed else self.shared.steps)  # fmt: skip
        made: Held | Sequence[Held] | None = fold_node(n, handler)
        if made is None:
            n = n.unread_copy()
            made = handler(n)
        if (unread := n.unread_part()) is not None:
            raise n.error(f"{unread} is not supported", f"a {node.op_type} without it")
        results: list[Held] = [made] if isinstance(made, Held) else list(made)
        for i, name in enumerate(listed):
            if i >= len(results) and name in self.read:
                raise n.error(f"output {i}, `{name}`, is not supported", f"a {node.op_type} of which nothing reads it")
        return results

    def _function(
        self, function: Any, node: Any, where: str, inputs: Sequence[Held | None], line: SourceLine
    ) -> list[Held | None]:
        """The outputs of a node that is computed by a function of the model or of ONNX's own table; None for an
        output without a name."""
        defaults = default_attributes(self.shared.onnx, node, self.opsets.get(domain_of(node), 0))
        given = {a.name: a for a in (*defaults, *function.attribute_proto, *node.attribute)}
        opsets = {"": self.shared.onnx.defs.onnx_opset_version()}
        opsets |= {domain_of(o): int(o.version) for o in function.opset_import}
        inner = GraphScope(
            self.shared, function.node, function.output, opsets, where, None, given, line, self.depth + 1, self.closed
        )  # fmt: skip
        left_out = set(function.input[len(inputs) :])
        for name, value in zip(function.input, inputs, strict=False):
            if value is None:
                left_out.add(name)
            else:
                inner.values[name] = value
        if left_out:
            inner.nodes = [_without_inputs(self.shared.onnx, n, left_out) for n in inner.nodes]
        inner.run()
        wanted = zip(function.output, node.output, strict=False)
        return [inner.value(name, where) if outside else None for name, outside in wanted]

    def _keep_origin(self, value: Held, origin: Origin) -> None:
        values = value.elements if isinstance(value, TensorList) else (value,)
        if made := [v for v in values if isinstance(v, Expr)]:
            for e in postorder(made, stop=lambda e: e in self.shared.origins):
                if e.args:
                    self.shared.origins.setdefault(e, origin)

    def _constant(self, node: Any) -> KnownArray:
        accepted = "one of value, sparse_value, value_float(s), value_int(s)"
        if len(node.attribute) != 1:
            raise OnnxError(f"{len(node.attribute)} attributes\n  accepted: {accepted}")
        (a,) = node.attribute
        value = self.shared.onnx.helper.get_attribute_value(a)
        if a.name == "value":
            return self._initializer(node.output[0], value)
        if a.name == "sparse_value":
            return self._initializer(node.output[0], dense_tensor(self.shared.onnx, value))
        if a.name in ("value_float", "value_floats"):
            return KnownArray(np.array(value, np.float32), "float32")
        if a.name in ("value_int", "value_ints"):
            return KnownArray(np.array(value, np.int64), "int64")
        raise OnnxError(f"{a.name}\n  accepted: {accepted}")

    def _initializer(self, name: str, tensor: Any) -> KnownArray:
        if self.closed:
            return self.shared.tensor(tensor)
        # Graphs inside others may use the same names, so the names of their initializers get a number.
        return self.shared.initializer(name if self.depth == 0 else f"{name}_{self.number}", tensor)

    def _attributes(self, node: Any, where: str, line: SourceLine) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for a in node.attribute:
            value = self.shared.onnx.helper.get_attribute_value(a)
            if isinstance(value, self.shared.onnx.TensorProto):
                value = self.shared.tensor(value)
            elif isinstance(value, self.shared.onnx.GraphProto):
                value = Subgraph(self, value, f"{where}: {a.name}", line)
            elif isinstance(value, list) and value and isinstance(value[0], bytes):
                value = [v.decode() for v in value]  # type: ignore[reportUnknownVariableType]
            found[a.name] = value.decode() if isinstance(value, bytes) else value
        if "to" in found:
            found["to"] = self.shared.dtype(found["to"])
        for name in ("dtype", "output_dtype"):
            if found.get(name):
                found[name] = self.shared.dtype(found[name])
        return found


class Subgraph:
    """A graph that is an attribute of a node: a branch or the body of a loop."""

    def __init__(self, scope: GraphScope, graph: Any, label: str, line: SourceLine) -> None:
        self.scope = scope
        self.graph = graph
        self.label = label
        self.line = line

    @property
    def input_count(self) -> int:
        return len(self.graph.input)

    @property
    def output_count(self) -> int:
        return len(self.graph.output)

    def run(
        self, inputs: Sequence[Held], captured: Mapping[str, Held] | None = None, closed: bool = False
    ) -> list[Held]:
        """The outputs for `inputs`. `captured`: other values for names outside; `closed`: whether the graph is to be a
        function of the module."""
        s, outputs = self.scope, [o.name for o in self.graph.output]
        inside = s.depth + 1, s.closed or closed
        inner = GraphScope(
            s.shared, self.graph.node, outputs, s.opsets, self.label, s, s.attributes, self.line, *inside
        )
        inner.add_initializers(self.graph.initializer)
        if len(inputs) != self.input_count:
            raise OnnxError(f"{self.label} has {self.input_count} inputs\n  accepted: {len(inputs)}, as its node gives")
        inner.values.update(captured or {})
        inner.values.update(zip((i.name for i in self.graph.input), inputs, strict=True))
        inner.run()
        return [inner.value(name, self.label) for name in outputs]

    @property
    def origins(self) -> Mapping[Expr, Origin]:
        return self.scope.shared.origins

    @property
    def outside(self) -> dict[str, Held]:
        """The values of the scopes outside that the graph reads, by name."""
        return {name: self.scope.value(name, self.label) for name in sorted(_outer_names(self.graph))}


def names_read(nodes: Iterable[Any]) -> set[str]:
    """The names that nodes read, and those that their subgraphs read from outside."""
    found: set[str] = set()
    for node in nodes:
        found |= set(node.input)
        for a in node.attribute:
            if a.HasField("g"):
                found |= _outer_names(a.g)
    return found


def _outer_names(graph: Any) -> set[str]:
    """The names that a graph reads and does not give."""
    own = {x.name for x in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
    return {*names_read(graph.node), *(o.name for o in graph.output)} - own - {""}


def _without_inputs(onnx: Any, node: Any, names: set[str]) -> Any:
    """A node of a function without those inputs that the caller leaves out."""
    if names.isdisjoint(node.input):
        return node
    made = onnx.NodeProto.FromString(node.SerializeToString())
    given = list(node.input)
    made.input[:] = ["" if x in names else x for x in given]
    return made
