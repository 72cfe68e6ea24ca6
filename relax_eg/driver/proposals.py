"""What rules about whole nodes (`rules.schemas`) propose for a block, before its e-graph is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relax_eg.ir.expr import Expr
from relax_eg.rules.asked import Answers, Asking
from relax_eg.rules.schemas import MEMORY, Functions, Schema

Proposal = tuple[Expr, Expr, str]  # a node, an equal expression, the rule


class Cornered(Functions, Protocol):
    """Whose `most` is about the sizes in a corner of what a program is to be good at, the first where all are largest.
    `corners`: how many there are."""

    corner: int

    @property
    def corners(self) -> int: ...


def proposals(written: Sequence[Expr], schemas: Sequence[Schema], known: Cornered) -> dict[Proposal, Answers]:
    """What `schemas` propose for the nodes of a block as `written`, each rule after the one before, and what each was
    told when it did. What saves memory
    is a form of its own: it is asked of the node as written and others do not go on from it; and at every corner, for
    what is best for one long sequence need not be for many short ones."""
    found: dict[Proposal, Answers] = {}
    for e in written:
        latest = e
        for schema in schemas:
            if MEMORY in schema.tags:
                for corner in range(known.corners):
                    known.corner = corner
                    proposed, told = _proposed(schema, e, known)
                    if proposed is not None:
                        found.setdefault((e, proposed, schema.name), told)
                known.corner = 0
                continue
            of = latest
            proposed, told = _proposed(schema, of, known)
            if proposed is None and latest is not e:
                of = e
                proposed, told = _proposed(schema, of, known)
            if proposed is not None:
                latest = proposed
                found.setdefault((of, proposed, schema.name), told)
    return found


def _proposed(schema: Schema, e: Expr, known: Functions) -> tuple[Expr | None, Answers]:
    asking = Asking(known)
    return schema.propose(e, asking) if e.op in schema.operators else None, asking.answers
