"""The record of a search from which its result is explained: plain data, without the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_eg.ir.annotations import Annotation, Tuple, with_sizes
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, TUPLE_GET, Expr, node, tuple_get
from relax_eg.ir.heads import LEAVES
from relax_eg.ir.tensor_calls import call_tir, has_own_annotation
from relax_eg.ops import TABLE, call
from relax_eg.ops.libraries import LIBRARIES, library_call, library_of, with_sizes_of
from relax_eg.rules import Instance
from relax_eg.shapes import Dim

# limit: operands of an operator whose annotation the engine derives from theirs, by a join of as many tables. The join
# is planned in 0.2 s for 75 tables, 0.8 s for 150 and 5 s for 300 (egglog 13.2).
_MOST_JOINED = 64

Signature = tuple[Any, ...]
CanonicalSizes = Mapping[Dim, Dim]


@dataclass(frozen=True, slots=True)
class Firing:
    """A match of a rule instance.

    - `instance`: the instance.
    - `operands`: the classes that its pattern variables stood for, in order.
    - `sizes`: the sizes that it bound, by name.
    """

    instance: Instance
    operands: tuple[int, ...]
    sizes: tuple[tuple[str, Dim], ...]


@dataclass(slots=True)
class Recording:
    """The nodes of an e-graph by class, and the matches that made them equal.

    - `classes`: the class of each node; a node is given by its signature and the classes of its operands.
    - `firings`: every match of a rule.
    - `canonical_sizes`: for each size, the size that stands for all sizes proved equal to it.
    """

    classes: dict[tuple[Signature, tuple[int, ...]], int] = field(
        default_factory=dict[tuple[Signature, tuple[int, ...]], int]
    )
    firings: list[Firing] = field(default_factory=list[Firing])
    canonical_sizes: dict[Dim, Dim] = field(default_factory=dict[Dim, Dim])


def signature(
    op: str, attrs: Mapping[str, Any], annotation: Annotation | None, canonical_sizes: CanonicalSizes
) -> Signature:
    """Returns the parts of a node that equal nodes on equal operands share: all but its operands, with sizes up to
    proved equality. `annotation`: the node's annotation if it does not follow from the operands; else None."""
    items = tuple((k, with_canonical_sizes(attrs[k], canonical_sizes)) for k in sorted(attrs))
    fixed = None if annotation is None else with_sizes(annotation, canonical_sizes)
    # The printed form tells types apart: an attribute 1 is not an attribute True.
    return op, items, repr(items), fixed


def leaf_signature(e: Expr) -> Signature:
    return ("leaf", e)


def signature_of(e: Expr, canonical_sizes: CanonicalSizes, sizes: Mapping[str, Dim] | None = None) -> Signature:
    """Returns the signature of an expression, or of a node of a pattern whose size variables stand for `sizes`."""
    if e.op in LEAVES:
        return leaf_signature(e)
    attrs = {k: with_sizes_of(v, sizes) if sizes else v for k, v in e.attrs}
    return signature(e.op, attrs, None if has_deduced_annotation(e) else e.annotation, canonical_sizes)


def has_deduced_annotation(e: Expr) -> bool:
    """Whether the annotation of a node follows from its operands and attributes, so that its e-graph does not hold it
    (`egraph.vocabulary.opcode_key`)."""
    if e.op == TUPLE_GET:
        return isinstance(e.args[0].annotation, Tuple)
    if e.op == CALL_TIR:
        return not has_own_annotation(e)
    return (e.op in TABLE and len(e.args) <= _MOST_JOINED) or library_of(e) is not None


def with_canonical_sizes(value: Any, canonical_sizes: CanonicalSizes) -> Any:
    """Returns the value of an attribute with each size replaced by the size that stands for it."""
    if isinstance(value, Dim):
        return canonical_sizes.get(value, value)
    return tuple(with_canonical_sizes(v, canonical_sizes) for v in value) if isinstance(value, tuple) else value  # type: ignore[reportUnknownVariableType]


def build_node(op: str, args: Sequence[Expr], attrs: Mapping[str, Any], annotation: Annotation | None) -> Expr:
    """Returns a node, given the parts that a signature has. Raises OperatorError."""
    if annotation is not None:
        return node(op, tuple(args), tuple(attrs.items()), annotation)
    if op == CALL_DPS_LIBRARY:
        return library_call(LIBRARIES[attrs["name"]], args, dict(attrs["attrs"]))
    if op == TUPLE_GET:
        return tuple_get(args[0], attrs["index"])
    if op == CALL_TIR:
        return call_tir(attrs["program"].value, args)
    return call(op, tuple(args), attrs)
