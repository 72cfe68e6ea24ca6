"""The extraction graph: e-classes, each with the candidates that compute it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import Expr
from relax_eg.ops import Site


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a class: an operator on classes, or a leaf, which has no children.

    - `op`: the name of the operator.
    - `site`: the operator with its operand annotations and attributes, for pricing.
    - `children`: the classes of its operands.
    - `payload`: data with which the maker of the graph rebuilds the expression.
    - `made_by`: the rule that proposed it; "" for the program as written.
    """

    op: str
    site: Site
    children: tuple[int, ...]
    payload: int
    made_by: str = ""


@dataclass(slots=True)
class ExtractionGraph:
    """The classes of a program and the candidates of each.

    - `candidates[c]`: the ways to compute class `c`.
    - `annotations[c]`: its annotation.
    - `roots`: classes that must be computed.
    - `as_written[c]`: index of the candidate that the input program uses, -1 if it does not compute `c`.
    - `table`: what the last selection of kernels made, from which the next may begin (`kernels.rows.table_of`).
    - `composed`: the calls of composed kernels so far, by the classes that each stores and its operators.
    """

    candidates: list[list[Candidate]] = field(default_factory=list[list[Candidate]])
    annotations: list[Annotation] = field(default_factory=list[Annotation])
    roots: tuple[int, ...] = ()
    as_written: list[int] = field(default_factory=list[int])
    table: object = field(default=None, compare=False, repr=False)
    composed: dict[tuple[tuple[int, ...], frozenset[tuple[int, int]]], Expr] = field(
        default_factory=dict[Any, Any], compare=False, repr=False
    )

    @property
    def node_count(self) -> int:
        return sum(map(len, self.candidates))
