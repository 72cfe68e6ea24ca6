"""Whether an equality follows from others: equality saturation leads from one side to the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from relax_eg.egraph import Budget, EGraph
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr
from relax_eg.rules import Instance, OriginGuard, RuleSet
from relax_eg.rules.conditions import Guard, claims_of
from relax_eg.rules.parameter_facts import DeclaredFacts
from relax_eg.shapes import Relation, Scope

# limit: of one question; a law whose derivation is longer is kept. Nodes end it, so that the clock decides nothing.
BUDGET = Budget(nodes=3000, seconds=60, growth=math.inf)


def reached(instance: Instance, others: RuleSet, budget: Budget = BUDGET) -> bool:
    """Whether the rules lead from the left side of an instance to the right one, under its conditions."""
    return all(
        all_reached([(a, b)], others, instance.guards, budget)[0]
        for a, b in zip(instance.left, instance.right, strict=True)
    )


def all_reached(
    pairs: Sequence[tuple[Expr, Expr]], rules: RuleSet, guards: Iterable[Guard] = (), budget: Budget = BUDGET
) -> list[bool]:
    """For each pair, whether the rules make its sides equal under these conditions, in one e-graph. False where the
    budget ended first."""
    known = tuple(guards)
    try:
        roots = [e for p in pairs for e in p]
        with EGraph(roots, rules, scope_of(known), declared=declared(known), warns=False) as egraph:
            egraph.saturate(budget)
            return [egraph.are_equal(a, b) for a, b in pairs]
    except RelaxEgError:
        return [False] * len(pairs)


def declared(guards: Sequence[Guard]) -> DeclaredFacts:
    """The facts that conditions require of pattern variables, as declared facts."""
    return DeclaredFacts(claims_of(guards), frozenset(g.name for g in guards if isinstance(g, OriginGuard)))


def scope_of(guards: Sequence[Guard]) -> Scope:
    """A scope in which conditions on sizes hold."""
    return Scope(assume=[str(g) for g in guards if isinstance(g, Relation)])
