"""Collects what schemas (`rules.schemas`) propose for a block, before its e-graph is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from relax_eg.ir.expr import Expr
from relax_eg.rules.schema_answers import Answers, Asking
from relax_eg.rules.schemas import MEMORY, Functions, Schema

Proposal = tuple[Expr, Expr, str]  # a node, an equal expression, the rule


class Cornered(Functions, Protocol):
    """A `Functions` whose `most` refers to the sizes in one corner of those that a program is to be good at; in the
    first corner all are largest. `corners`: how many there are."""

    corner: int

    @property
    def corners(self) -> int: ...


def proposals(written: Sequence[Expr], schemas: Sequence[Schema], known: Cornered) -> dict[Proposal, Answers]:
    """The proposals of `schemas` for the nodes of a block as `written`, each with the answers that the schema was
    given.

    Each schema is asked about the previous one's proposal, else about the node as written. A schema that saves memory
    is asked about the node as written only, and others do not build on its proposal. It is asked at every corner,
    because the best form for one long sequence need not be the best for many short ones.
    """
    found: dict[Proposal, Answers] = {}
    for e in written:
        latest = e
        for schema in schemas:
            if MEMORY in schema.tags:
                for corner in range(known.corners):
                    known.corner = corner
                    proposed, told = _proposed(schema, e, known)
                    found.update({(e, p, schema.name): told for p in proposed if (e, p, schema.name) not in found})
                known.corner = 0
                continue
            of = latest
            proposed, told = _proposed(schema, of, known)
            if not proposed and latest is not e:
                of = e
                proposed, told = _proposed(schema, of, known)
            for p in proposed:
                latest = proposed[0]
                found.setdefault((of, p, schema.name), told)
    return found


def _proposed(schema: Schema, e: Expr, known: Functions) -> tuple[tuple[Expr, ...], Answers]:
    asking = Asking(known)
    return schema.proposals(e, asking) if e.op in schema.operators else (), asking.answers
