"""Operators of a model that cannot be read, in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from relax_eg.errors import OnnxError
from relax_eg.frontends.onnx.functions import domain_of, handler_name, is_function, local_function, node_label
from relax_eg.frontends.onnx.ops import HANDLERS

if TYPE_CHECKING:
    from relax_eg.frontends.onnx.scopes import GraphScope

# Why operators of ONNX's own domains are not read.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"),
        "strings are no elements of tensors here",
    ),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "it draws random numbers from a generator that ONNX does not define",
    ),
    **dict.fromkeys(
        ("NonZero", "Unique", "NonMaxSuppression"),
        "the shape of its result depends on the values of its inputs",
    ),
    **dict.fromkeys(
        (
            "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
            "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence", "ConcatFromSequence",
        ),
        "values are tensors here, not sequences or optionals",
    ),
    "TfIdfVectorizer": "it looks up n-grams in a pool",
    "ImageDecoder": "it decodes files",
    "MaxRoiPool": "ONNX has no reference for it",
}  # fmt: skip

_OF_MODELS = "classical machine learning is not read"


def check_operators(scope: GraphScope) -> None:
    """OnnxError that lists every operator of a model that cannot be read, once, with its first node and its count."""
    onnx, proto = scope.shared.onnx, scope.shared.proto
    found: dict[tuple[str, str], list[str]] = {}
    seen: set[tuple[str, str, str]] = set()

    def visit(nodes: Iterable[Any], opsets: Mapping[str, int], label: str) -> None:
        for i, node in enumerate(nodes):
            domain, kind = domain_of(node), node.op_type
            place = f"{label}{node_label(i, node)}"
            opset = opsets.get(domain, 0)
            function = local_function(proto, node)
            if function is not None:
                key = (domain, kind, node.overload)
                if key not in seen:
                    seen.add(key)
                    own = {domain_of(o): int(o.version) for o in function.opset_import}
                    visit(function.node, own, f"function {kind}, ")
            elif not _is_read(onnx, node, domain, opset):
                place += f" ({domain + '.' if domain else ''}{kind}, opset {opset})"
                found.setdefault((domain, kind), []).append(place)
            for a in node.attribute:
                if a.HasField("g"):
                    visit(a.g.node, opsets, f"{place}, {a.name}, ")

    visit(scope.nodes, scope.opsets, "")
    if not found:
        return
    accepted = f"{', '.join(sorted([*HANDLERS, 'Constant']))}; what ONNX or the model defines as a function"
    if len(found) == 1:
        ((name, places),) = found.items()
        nodes = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more of its kind"
        said = f"{nodes} is not supported{_why(name)}"
    else:
        lines = [
            f"{name[0] + '.' if name[0] else ''}{name[1]}: {_nodes(places)}{_why(name)}"
            for name, places in found.items()
        ]
        said = f"{len(found)} operators are not supported\n    " + "\n    ".join(lines)
    raise OnnxError(f"{scope.label}: {said}\n  accepted: {accepted}")


def _is_read(onnx: Any, node: Any, domain: str, opset: int) -> bool:
    if handler_name(domain, node.op_type) in {*HANDLERS, "Constant"}:
        return True
    return node.op_type not in REFUSED and is_function(onnx, node, opset)


def _nodes(places: list[str]) -> str:
    return f"1 node, {places[0]}" if len(places) == 1 else f"{len(places)} nodes, the first is {places[0]}"


def _why(name: tuple[str, str]) -> str:
    domain, kind = name
    why = _OF_MODELS if domain == "ai.onnx.ml" else REFUSED.get(handler_name(domain, kind))
    return f": {why}" if why else ""
