"""What a search records so that its result can be explained: plain data, without the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relax_eg.ir.annotations import Annotation, Tuple, with_sizes
from relax_eg.ir.expr import TUPLE_GET, Expr
from relax_eg.ir.heads import LEAVES
from relax_eg.ops import TABLE
from relax_eg.ops.libraries import with_sizes_of
from relax_eg.rules import Instance
from relax_eg.shapes import Dim

Signature = tuple[Any, ...]
One = Mapping[Dim, Dim]


@dataclass(frozen=True, slots=True)
class Firing:
    """A match of a rule instance: the classes its pattern variables stood for, in order, and the sizes it bound."""

    instance: Instance
    operands: tuple[int, ...]
    sizes: tuple[tuple[str, Dim], ...]


@dataclass(slots=True)
class Recording:
    """Everything that was equal in an e-graph, and why.

    - `classes`: for each node, given by its signature and its operands' classes, the class it is in.
    - `firings`: every match of a rule.
    - `one`: for each size, the one that stands for all sizes proved equal to it.
    """

    classes: dict[tuple[Signature, tuple[int, ...]], int] = field(
        default_factory=dict[tuple[Signature, tuple[int, ...]], int]
    )
    firings: list[Firing] = field(default_factory=list[Firing])
    one: dict[Dim, Dim] = field(default_factory=dict[Dim, Dim])


def signature(op: str, attrs: Mapping[str, Any], annotation: Annotation | None, one: One) -> Signature:
    """Returns what equal nodes on equal operands share: everything but the operands, with sizes up to proved equality.
    `annotation`: the node's, if it does not follow from the operands; else None."""
    items = tuple((k, with_one(attrs[k], one)) for k in sorted(attrs))
    fixed = None if annotation is None else with_sizes(annotation, one)
    # The printed form tells types apart: an attribute 1 is not an attribute True.
    return op, items, repr(items), fixed


def leaf_signature(e: Expr) -> Signature:
    return ("leaf", e)


def signature_of(e: Expr, one: One, sizes: Mapping[str, Dim] | None = None) -> Signature:
    """Returns the signature of an expression, or of a node of a pattern whose size variables stand for `sizes`."""
    if e.op in LEAVES:
        return leaf_signature(e)
    attrs = {k: with_sizes_of(v, sizes) if sizes else v for k, v in e.attrs}
    return signature(e.op, attrs, None if has_deduced_annotation(e) else e.annotation, one)


def has_deduced_annotation(e: Expr) -> bool:
    """Whether the annotation of a node follows from its operands and attributes."""
    return e.op in TABLE or (e.op == TUPLE_GET and isinstance(e.args[0].annotation, Tuple))


def with_one(value: Any, one: One) -> Any:
    """Returns an attribute's value with each size replaced by the one that stands for it."""
    if isinstance(value, Dim):
        return one.get(value, value)
    return tuple(with_one(v, one) for v in value) if isinstance(value, tuple) else value  # type: ignore[reportUnknownVariableType]
