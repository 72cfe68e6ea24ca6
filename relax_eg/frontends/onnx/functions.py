"""Functions of ONNX models: those of the model itself, and operators that ONNX's own table defines as functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import OnnxError
from relax_eg.frontends.onnx.values import Held, KnownArray, Nothing, TensorList

_OWN_DOMAINS = ("", "ai.onnx")  # two names of one domain


def domain_of(proto: Any) -> str:
    """The domain of a node, function or opset import, "" for ONNX's own."""
    return "" if proto.domain in _OWN_DOMAINS else str(proto.domain)


def handler_name(domain: str, kind: str) -> str:
    """The name of an operator in the table of handlers: with its domain, unless that is ONNX's own."""
    return f"{domain}.{kind}" if domain else kind


def node_label(i: int, node: Any) -> str:
    return f"node {i} `{node.name}`" if node.name else f"node {i}"


def local_function(proto: Any, node: Any) -> Any:
    """The function of the model that a node calls, or None."""
    for f in proto.functions:
        if f.name == node.op_type and domain_of(f) == domain_of(node) and f.overload == node.overload:
            return f
    return None


def _schema(onnx: Any, node: Any, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(node.op_type, opset, domain_of(node))
    except onnx.defs.SchemaError:
        return None


def is_defined(onnx: Any, node: Any, opset: int) -> bool:
    """Whether ONNX's own table defines the operator of a node in `opset`."""
    return _schema(onnx, node, opset) is not None


def is_function(onnx: Any, node: Any, opset: int) -> bool:
    """Whether ONNX's own table defines the operator of a node as a function."""
    schema = _schema(onnx, node, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def expansion(onnx: Any, node: Any, inputs: Sequence[Held | None], opset: int) -> Any:
    """The function by which ONNX's own table defines the operator of a node."""
    schema = _schema(onnx, node, opset)
    assert schema is not None
    if plain := schema.function_opset_versions:
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(_nearest(plain, opset)))
    built = schema.context_dependent_function_opset_versions
    types = [_type(onnx, v).SerializeToString() for v in inputs]
    found = schema.get_context_dependent_function_with_opset_version(
        _nearest(built, opset), node.SerializeToString(), types
    )
    if not found:
        raise OnnxError(f"no function for these inputs and attributes\n  accepted: a {node.op_type} that ONNX expands")
    return onnx.FunctionProto.FromString(found)


def _nearest(versions: Sequence[int], opset: int) -> int:
    """The opset in which a function is written: the newest one up to `opset`, or the oldest. It names the opset of the
    function's own nodes, so it may be newer than the model's."""
    return max((v for v in versions if v <= opset), default=min(versions))


def default_attributes(onnx: Any, node: Any, opset: int) -> list[Any]:
    """The attributes that ONNX's own table gives the operator of a node if they are left out."""
    schema = _schema(onnx, node, opset)
    if schema is None:
        return []
    return [a.default_value for a in schema.attributes.values() if a.default_value.name]


def same_as_in(other: int, onnx: Any, node: Any, opset: int) -> bool:
    """Whether the operator of a node has the same definition in the opset `other`."""
    found, wanted = _schema(onnx, node, opset), _schema(onnx, node, other)
    return found is not None and wanted is not None and found.since_version == wanted.since_version


def _type(onnx: Any, value: Held | None) -> Any:
    """The type of a value in ONNX's terms; an empty one for a value that is left out."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, TensorList | Nothing):
        raise OnnxError("a sequence or an empty optional\n  accepted: tensors")
    shape = value.array.shape if isinstance(value, KnownArray) else value.shape
    sizes = [int(d) if isinstance(d, int) or d.is_const else str(d) for d in shape]
    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(value.dtype)), sizes)
