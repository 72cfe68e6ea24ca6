"""Operators of a model that cannot be read, in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    "ImageDecoder": "it decodes files",
    "ai.onnx.preview.training.Gradient": "it is about a graph as text; `jax.grad` of what was read gives gradients",
    "MaxRoiPool": "ONNX has no reference for it",
}  # fmt: skip

_OF_MODELS = "classical machine learning is not read"


@dataclass
class OperatorNodes:
    """The nodes of a model with one operator.

    - `places`: where they are, as text.
    - `why`: why the operator is not read; None if it is.
    """

    places: list[str]
    why: str | None


def uses(scope: GraphScope) -> dict[str, OperatorNodes]:
    """The nodes of a model by operator, in the order in which the operators occur; nodes of subgraphs and of the
    model's own functions are among them."""
    onnx, proto = scope.shared.onnx, scope.shared.proto
    found: dict[str, OperatorNodes] = {}
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
            else:
                place += f" ({handler_name(domain, kind)}, opset {opset})"
                why = None if _is_read(onnx, node, domain, opset) else _why(domain, kind)
                found.setdefault(handler_name(domain, kind), OperatorNodes([], why)).places.append(place)
            for a in node.attribute:
                if a.HasField("g"):
                    visit(a.g.node, opsets, f"{place}, {a.name}, ")

    visit(scope.nodes, scope.opsets, "")
    return found


def check_operators(scope: GraphScope) -> None:
    """OnnxError that lists every operator of a model that cannot be read, once, with its first node and its count."""
    found = {name: use for name, use in uses(scope).items() if use.why is not None}
    if not found:
        return
    accepted = f"{', '.join(sorted([*HANDLERS, 'Constant']))}; what ONNX or the model defines as a function"
    said = {name: f": {use.why}" if use.why else "" for name, use in found.items()}
    if len(found) == 1:
        ((name, use),) = found.items()
        places = use.places
        nodes = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more of its kind"
        text = f"{nodes} is not supported{said[name]}"
    else:
        lines = [f"{name}: {_nodes(use.places)}{said[name]}" for name, use in found.items()]
        text = f"{len(found)} operators are not supported\n    " + "\n    ".join(lines)
    raise OnnxError(f"{scope.label}: {text}\n  accepted: {accepted}")


def _is_read(onnx: Any, node: Any, domain: str, opset: int) -> bool:
    if handler_name(domain, node.op_type) in {*HANDLERS, "Constant"}:
        return True
    return node.op_type not in REFUSED and is_function(onnx, node, opset)


def _nodes(places: list[str]) -> str:
    return f"1 node, {places[0]}" if len(places) == 1 else f"{len(places)} nodes, the first is {places[0]}"


def _why(domain: str, kind: str) -> str:
    """Why an operator is not read; empty if nothing is known of it."""
    return _OF_MODELS if domain == "ai.onnx.ml" else REFUSED.get(handler_name(domain, kind), "")
