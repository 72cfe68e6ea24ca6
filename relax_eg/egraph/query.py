"""Queries of the engine: the pattern of a rule or of a rule about facts (`rules.matching`), as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.egraph.vocabulary import Opcode
from relax_eg.ir.expr import VAR, Expr


@dataclass(frozen=True, slots=True)
class QueryAtom:
    """A row that a left side needs. Each entry is an engine variable or a term in parentheses.

    - `table`: the table of an operator, or a relation.
    - `operands`: entries of sort T.
    - `sizes`: entries of sort Dim.
    - `output`: the entry of sort T that the row maps to; "" for a relation.
    """

    table: str
    operands: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    output: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the order of the engine's table."""
        return (*self.operands, *self.sizes, self.output)

    @property
    def row(self) -> str:
        """The row as a term, without its output."""
        return f"({' '.join((self.table, *self.operands, *self.sizes))})"

    @property
    def fact(self) -> str:
        return f"(= {self.output} {self.row})" if self.output else self.row


class Query:
    """The left side of an engine rule.

    - `atoms`: the rows that the pattern needs.
    - `facts`: further facts, which only filter.
    - `names`: for each node and variable of the pattern, the engine variable or term.
    """

    def __init__(self) -> None:
        self.atoms: list[QueryAtom] = []
        self.facts: list[str] = []
        self.names: dict[Expr, str] = {}

    def row(self, e: Expr, opcode: Opcode, operands: Sequence[str], sizes: Sequence[str]) -> None:
        """Adds the row of node `e` of the pattern."""
        self.names[e] = f"e{len(self.names)}"
        self.atoms.append(QueryAtom(opcode.symbol, tuple(operands), tuple(sizes), self.names[e]))

    def operand(self, e: Expr) -> str:
        """Returns the engine variable or term of an operand. The first use of a pattern variable adds its name."""
        if e.op == VAR and e not in self.names:
            self.names[e] = f"v_{e.attr('name')}"
        return self.names[e]
