"""What rules about whole nodes (`rules.schemas`) propose for a block, before its e-graph is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relax_eg.ir.expr import Expr
from relax_eg.rules.schemas import MEMORY, Functions, Schema

Proposal = tuple[Expr, Expr, str]  # a node, an equal expression, the rule


class Cornered(Functions, Protocol):
    """Whose `most` is about the sizes in a corner of what a program is to be good at, the first where all are largest.
    `corners`: how many there are."""

    corner: int

    @property
    def corners(self) -> int: ...


def proposals(written: Sequence[Expr], schemas: Sequence[Schema], known: Cornered) -> list[Proposal]:
    """What `schemas` propose for the nodes of a block as `written`, each rule after the one before. What saves memory
    is a form of its own: it is asked of the node as written and others do not go on from it; and at every corner, for
    what is best for one long sequence need not be for many short ones."""
    found: dict[Proposal, None] = {}
    for e in written:
        latest = e
        for schema in schemas:
            apart = MEMORY in schema.tags
            asked = e if apart else latest
            proposed = schema.propose(asked, known) if asked.op in schema.operators else None
            if proposed is None and asked is not e and e.op in schema.operators:
                proposed = schema.propose(e, known)
            if proposed is not None:
                latest = latest if apart else proposed
                found[e, proposed, schema.name] = None
            for corner in range(1, known.corners if apart and e.op in schema.operators else 1):
                known.corner = corner
                proposed = schema.propose(e, known)
                if proposed is not None:
                    found[e, proposed, schema.name] = None
            known.corner = 0
    return list(found)
