"""Collects what schemas (`rules.schemas`) propose for a block, before its e-graph is made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from relax_eg.ir.expr import Expr
from relax_eg.rules.schema_answers import Answers, RecordingAnswers
from relax_eg.rules.schemas import MEMORY, ProgramQueries, Schema

Proposal = tuple[Expr, Expr, str]  # a node, an equal expression, the rule


class CornerQueries(ProgramQueries, Protocol):
    """Queries whose `largest_value` refers to the sizes in one corner of those at which a program should be good.

    - `corner`: index of the corner; in the first one all sizes are largest.
    - `corners`: the number of corners.
    """

    corner: int

    @property
    def corners(self) -> int: ...


def proposals(
    written: Sequence[Expr], schemas: Sequence[Schema], queries: CornerQueries, deadline: float
) -> tuple[dict[Proposal, Answers], bool]:
    """The proposals of `schemas` for the nodes of a block as `written`, each with the answers that the schema was
    given, and whether all nodes were asked about. No further node is asked about once this thread has used `deadline`
    seconds of processor time.

    Each schema is asked about the previous one's proposal, else about the node as written. A schema that saves memory
    is asked about the node as written only, and others do not build on its proposal. It is asked at every corner,
    because the best form for one long sequence need not be the best for many short ones.
    """
    found: dict[Proposal, Answers] = {}
    for e in written:
        if time.thread_time() >= deadline:
            return found, False
        latest = e
        for schema in schemas:
            if MEMORY in schema.tags:
                for corner in range(queries.corners):
                    queries.corner = corner
                    proposed, answers = _proposed(schema, e, queries)
                    for p in proposed:
                        found.setdefault((e, p, schema.name), answers)
                queries.corner = 0
                continue
            of = latest
            proposed, answers = _proposed(schema, of, queries)
            if not proposed and latest is not e:
                of = e
                proposed, answers = _proposed(schema, of, queries)
            for p in proposed:
                latest = proposed[0]
                found.setdefault((of, p, schema.name), answers)
    return found, True


def _proposed(schema: Schema, e: Expr, queries: ProgramQueries) -> tuple[tuple[Expr, ...], Answers]:
    asking = RecordingAnswers(queries)
    return schema.proposals(e, asking) if e.op in schema.operators else (), asking.answers
