"""Finds a derivation: the recorded matches are applied again, as rewriting of expressions.

A match is recorded by the classes that it bound, and these may have grown since. So it is applied wherever its left
side is present among the expressions that are already known to equal an expression of the program as written or of the
chosen one. Round by round this makes expressions equal that were equal in the e-graph, until each pair of results is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from relax_eg.errors import ExplanationError, OperatorError
from relax_eg.explain.closure import Closure
from relax_eg.explain.record import Firing, Recording, Signature, signature_of
from relax_eg.explain.steps import Equation, Goal, equation, equations_of, goals_in_order
from relax_eg.ir.expr import VAR, Expr
from relax_eg.ir.heads import LEAVES
from relax_eg.rules.conditions import Claim, ValueGuard, ValueTest

Holds = Callable[[ValueGuard, Expr], bool]

_MOST_GOALS = 4000  # limit: goals of a derivation that is shortened
_MOST_PLACES = 12  # limit: expressions from start to end of a goal that is shortened


def derive(
    recording: Recording, written: Sequence[Expr], chosen: Sequence[Expr], proposed: Sequence[Equation], holds: Holds
) -> list[Goal]:
    """Returns a goal for every pair of a `written` and a `chosen` expression.

    - `proposed`: equations that hold from the start: the proposals of schemas.
    - `holds`: whether an expression is known to satisfy a condition.

    ExplanationError if the recorded matches do not lead from one to the other.
    """
    closure = Closure(recording.classes, recording.canonical_sizes)
    for e in (*written, *chosen):
        closure.add(e)
    for found in proposed:
        closure.learn(found)
    matches = [_Match(f, recording) for f in recording.firings]
    pairs = list(zip(written, chosen, strict=True))
    while not all(closure.equal(a, b) for a, b in pairs):
        before = closure.changes
        # A round uses only equations known before it, so derivations of fewer rounds are found first.
        learned = [found for m in matches for found in m.equations(closure, holds)]
        for found in learned:
            closure.learn(found)
        if closure.changes == before and not learned:
            raise ExplanationError(_no_derivation_text(closure, pairs))
    results = [closure.goal(a, b) for a, b in pairs]
    _shorten(closure, results)
    return results


def _shorten(closure: Closure, results: Sequence[Goal]) -> None:
    """Replaces steps of a goal that together change only operands by one step inside the operands, if that uses fewer
    rules."""
    goals = goals_in_order(results)
    for goal in goals if len(goals) <= _MOST_GOALS else ():
        places = [goal.start, *(to for _, to in goal.steps)]
        spans = [(i, j) for i in range(len(places)) for j in range(i + 2, len(places))]
        for i, j in sorted(spans, key=lambda span: span[0] - span[1]) if len(places) <= _MOST_PLACES else ():
            step = closure.congruent(places[i], places[j])
            if step is None:
                continue
            instead = [g for g in step.operands if g is not None]
            below = goals_in_order(instead)
            # The goals of the operands must not depend on this goal.
            if goal in below:
                continue
            now = Goal(places[i], places[j], goal.steps[i:j])
            if len(equations_of(below)) < len(equations_of(goals_in_order([now]))):
                goal.steps[i:j] = [(step, places[j])]
                break


def _no_derivation_text(closure: Closure, pairs: Sequence[tuple[Expr, Expr]]) -> str:
    count = sum(not closure.equal(a, b) for a, b in pairs)
    a, b = next((a, b) for a, b in pairs if not closure.equal(a, b))
    return (
        f"no derivation was found from {a!r} to {b!r} ({count} of {len(pairs)} results): the matches on record do not "
        "lead from one to the other"
    )


@dataclass
class _Match:
    """A recorded match that is applied again.

    - `firing`: the match.
    - `recording`: the record that it is from.
    """

    firing: Firing
    recording: Recording
    _done_at: int = -1  # number of terms in the classes of its operands for which it yields no further equations
    _tried: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    _signatures: dict[Expr, Signature] = field(default_factory=dict[Expr, Signature])

    def equations(self, closure: Closure, holds: Holds) -> Iterator[Equation]:
        """Yields the uses of the match on expressions that are present now and were not at the last call."""
        terms = closure.count(self.firing.operands)
        if terms == self._done_at:
            return
        instance = self.firing.instance
        parts = {
            str(p.attr("name")): closure.parts(c) for p, c in zip(instance.params, self.firing.operands, strict=True)
        }
        if not all(parts.values()):
            return
        for nodes in self._matches(closure, parts):
            operands = self._operands(closure, nodes, holds)
            if operands is None:
                continue
            key = tuple(closure.find(closure.number[x]) for x in operands)
            if key in self._tried:
                continue
            self._tried.add(key)
            found = self._equation(operands)
            if found is not None:
                yield found
        # While each variable stands for one set of equal expressions, there are no further matches.
        if self._tried and all(len(p) == 1 for p in parts.values()):
            self._done_at = terms

    def _equation(self, operands: Sequence[Expr]) -> Equation | None:
        """Returns the use of the match on `operands`; None if a side cannot be formed of these expressions."""
        instance, sizes = self.firing.instance, dict(self.firing.sizes)
        # One of several equal sizes stands for all of them; an operator may need the form that its operand has.
        own = {
            str(d): size
            for p, x in zip(instance.params, operands, strict=True)
            for d, size in zip(p.shape, x.shape, strict=True)
            if str(d) in d.variables
        }
        for chosen in (sizes, {**sizes, **own}):
            with contextlib.suppress(OperatorError):
                return equation(instance, operands, chosen)
        return None

    def _matches(self, closure: Closure, parts: Mapping[str, list[int]]) -> Iterator[dict[Expr, int]]:
        """Yields the nodes, by number, that the left side's nodes and pattern variables may stand for."""
        nodes = self.firing.instance.left_nodes
        found: list[dict[Expr, int]] = [{}]
        for e in nodes:
            found = [more for env in found for more in self._extended(closure, parts, e, env)]
        yield from found

    def _extended(
        self, closure: Closure, parts: Mapping[str, list[int]], e: Expr, env: dict[Expr, int]
    ) -> Iterator[dict[Expr, int]]:
        if e.op in LEAVES:
            number = closure.number.get(e)
            if number is not None:
                yield {**env, e: number}
            return
        free = [a for a in dict.fromkeys(e.args) if a.op == VAR and a not in env]
        sign = self._signature(e)
        for chosen in product(*(parts[str(a.attr("name"))] for a in free)):
            more = {**env, **dict(zip(free, chosen, strict=True))}
            hit = closure.lookup(sign, tuple(closure.find(more[a]) for a in e.args))
            if hit is not None:
                more[e] = hit
                yield more

    def _signature(self, e: Expr) -> Signature:
        found = self._signatures.get(e)
        if found is None:
            found = self._signatures[e] = signature_of(e, self.recording.canonical_sizes, dict(self.firing.sizes))
        return found

    def _operands(self, closure: Closure, nodes: Mapping[Expr, int], holds: Holds) -> list[Expr] | None:
        """Returns for each pattern variable the operand of the matched node. If a condition is not known to hold of
        that operand, an equal expression of which it is known replaces it. None if there is no such expression."""
        instance = self.firing.instance
        found: dict[Expr, Expr] = {}
        for e in reversed(instance.left_nodes):
            if e.op not in LEAVES:
                for p, a in zip(e.args, closure.terms[nodes[e]].args, strict=True):
                    if p.op == VAR:
                        found.setdefault(p, a)
        for p in instance.params:
            asked = [g for g in instance.guards if isinstance(g, (Claim, ValueTest)) and g.name == p.attr("name")]
            if asked and not all(holds(g, found[p]) for g in asked):
                equals = (closure.terms[i] for i in closure.members(closure.number[found[p]]))
                shown = next((x for x in equals if all(holds(g, x) for g in asked)), None)
                if shown is None:
                    return None
                found[p] = shown
        return [found[p] for p in instance.params]
