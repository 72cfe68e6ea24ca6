"""Which candidates are laws of their own: what follows from smaller ones is dropped, the rest is proved, and of the
proved ones those are kept that the others do not make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.laws import Writer
from relax_eg.discovery.proving import LawProof, LawProver, Progress
from relax_eg.discovery.table import EqualPair, TermTable
from relax_eg.discovery.terms import Order, Rewriting, leaves_of, order, size_of
from relax_eg.egraph import Budget, EGraph
from relax_eg.errors import DiscoveryError, RelaxEgError
from relax_eg.ir.expr import Expr
from relax_eg.rules import Instance, OriginGuard, RuleSet
from relax_eg.rules.conditions import Guard, claims_of, parse_guards
from relax_eg.rules.facts.parameter_facts import DeclaredFacts
from relax_eg.rules.rule import Rule
from relax_eg.shapes import Relation, Scope

# Whether an equality follows from others: equality saturation leads from one side to the other.

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


# limit: of the e-graph in which candidates are compared; what needs more is proved, and compared again at the end
_BUDGET = Budget(nodes=1500, seconds=60, rounds=4, growth=math.inf)
_LAST_BUDGET = Budget(nodes=4000, seconds=60, growth=math.inf)  # limit: of each question of the minimisation
_AT_ONCE = 24  # chosen: candidates that are compared in one e-graph


@dataclass
class Law:
    """A candidate that does not follow from smaller ones.

    - `number`: its place among the laws of a run.
    - `name`: the name of its rule.
    - `candidate`: the two sides.
    - `found`: the pair of which the candidate is a generalisation.
    - `proof`: what became of it; None while that is not known.
    - `rules`: its rules, in both directions where both sides bind all variables.
    """

    number: int
    name: str
    candidate: EqualPair
    found: EqualPair
    proof: LawProof | None
    rules: list[Rule]


@dataclass(frozen=True)
class Dropped:
    """A candidate that follows from others. `by`: the law of which it is an instance; None for several."""

    candidate: EqualPair
    by: int | None


class Sieve:
    """The laws found so far.

    - `laws`: those that are proved, or tested where nothing can be proved.
    - `failed`: those that are refuted or unknown.
    - `dropped`: candidates that follow.
    - `separate`: called with a candidate that is refuted, whose sides are different classes.
    - `generalise`: gives the most general pair of which a candidate is an instance and whose sides agree at the points.
    """

    def __init__(self, grammar: Grammar, writer: Writer, known: RuleSet, prover: LawProver) -> None:
        self._grammar, self._writer, self._known, self._prover = grammar, writer, known, prover
        self.laws: list[Law] = []
        self.failed: list[Law] = []
        self.dropped: list[Dropped] = []
        self.separate: Callable[[EqualPair], None] = lambda c: None
        self.generalise: Callable[[EqualPair], EqualPair] = lambda c: c
        self._as_found: set[EqualPair] = set()  # whose generalisations are not proved
        self._rewriting = Rewriting(grammar)
        self._doubtful = Rewriting(grammar)
        self._numbers = 0

    def sift(self, candidates: Sequence[EqualPair], progress: Progress) -> None:
        """Sorts out candidates of one size."""
        pending = sorted((c for c in candidates if self._is_rule(c)), key=self._key)
        while pending:
            tried: list[Law] = []
            dropped: list[Dropped] = []
            self._compare(pending, tried, dropped, progress)
            proofs = self._prover.prove([(x.candidate, x.name) for x in tried], progress)
            is_any_failed = False
            pending = []
            for law, proof in zip(tried, proofs, strict=True):
                law.proof = proof
                if not proof.holds and law.candidate != law.found:
                    is_any_failed = True
                    self._rewriting.remove(law.number)
                    self._as_found.add(law.found)
                    pending.append(law.found)
                    continue
                if proof.holds:
                    self.laws.append(law)
                    if proof.candidate is not None:  # it holds where no axis is empty
                        is_any_failed = True
                        self._rewriting.remove(law.number)
                        law.candidate = proof.candidate
                        law.rules = self._rules(proof.candidate, law.name)
                    continue
                is_any_failed = True
                self.failed.append(law)
                if law.candidate.condition is None:
                    self._rewriting.remove(law.number)
                    if proof.outcome == "unknown":
                        self._doubtful.add(law.candidate.left, law.candidate.right, law.number)
                if proof.outcome == "refuted":
                    self.separate(law.candidate)
            if is_any_failed:
                again = [d.candidate for d in dropped if not self._is_instance(d.candidate)]
                follow = [f for n in range(0, len(again), _AT_ONCE) for f in self._follow(again[n : n + _AT_ONCE], [])]
                lost = {c for c, still in zip(again, follow, strict=True) if not still}
                pending += [d.candidate for d in dropped if d.candidate in lost]
                dropped = [d for d in dropped if d.candidate not in lost]
            self.dropped += dropped

    def _is_rule(self, c: EqualPair) -> bool:
        """Whether the left side binds what the right side has, and is no variable."""
        count = self._grammar.variable_count
        left = {v for v in leaves_of(c.left) if v < count}
        return not isinstance(c.left, int) and {v for v in leaves_of(c.right) if v < count} <= left

    def _key(self, c: EqualPair) -> tuple[int, int, int, Order]:
        """Smallest first; of equally small ones without a condition and with the most variables first."""
        variables = len({v for v in leaves_of(c.left) if v < self._grammar.variable_count})
        conditions = 0 if c.condition is None else len(c.condition.when)
        return size_of(c.left) + size_of(c.right), conditions, -variables, order(c.left, self._grammar)

    def _compare(
        self, pending: Sequence[EqualPair], tried: list[Law], dropped: list[Dropped], progress: Progress
    ) -> None:
        """Splits candidates in those that follow from laws, or from earlier ones of `tried`, and the others."""
        waiting: list[EqualPair] = []
        for c in pending:
            by = self._rewriting.reducer(c.left) if c.condition is None else None
            if by is not None:
                dropped.append(Dropped(c, by))
            else:
                waiting.append(c)
        done = 0
        while waiting:
            progress("comparing", done, done + len(waiting))
            chunk, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            done += len(chunk)
            followed = self._follow(chunk, tried)
            for c, follows in zip(chunk, followed, strict=True):
                by = self._rewriting.reducer(c.left) if c.condition is None else None
                # An earlier one of the chunk may be the law from which this one follows.
                if by is not None or follows or (len(chunk) > 1 and tried and self._follow([c], tried)[0]):
                    dropped.append(Dropped(c, by))
                    continue
                doubt = self._doubtful.reducer(c.left) if c.condition is None else None
                if doubt is not None:
                    dropped.append(Dropped(c, doubt))
                    continue
                tried.append(self._law(c))

    def _law(self, c: EqualPair) -> Law:
        number, self._numbers = self._numbers, self._numbers + 1
        found, c = c, c if c in self._as_found else self.generalise(c)
        law = Law(number, self._writer.name(c), c, found, None, [])
        law.rules = self._rules(c, law.name)
        if c.condition is None:
            self._rewriting.add(c.left, c.right, number)
        return law

    def _rules(self, c: EqualPair, name: str) -> list[Rule]:
        """The rules of a candidate of the weakest class, in both directions, for comparisons only."""
        text = next(self._writer.general(c, name, "approximate", both=True), None)
        return [] if text is None else self._writer.rule(text)

    def _guards(self, c: EqualPair) -> list[Guard]:
        if c.condition is None:
            return []
        names = [str(v.attr("name")) for v in self._grammar.variables]

        def error(text: str) -> Exception:
            return ValueError(text)

        return parse_guards(c.condition.when, names, error)  # type: ignore[reportArgumentType]

    def _rule_set(self, laws: Sequence[Law], but: Law | None = None) -> RuleSet:
        own = [r for x in laws if x is not but for r in x.rules]
        return RuleSet("known", [*self._known, *own])

    def _follow(self, chunk: Sequence[EqualPair], tried: Sequence[Law]) -> list[bool]:
        """For each candidate, whether it follows from what is known, the laws, and those that are being tried."""
        rules = self._rule_set([*self.laws, *tried])
        if not len(rules):
            return [False] * len(chunk)
        found = [False] * len(chunk)
        by_condition: dict[tuple[str, ...], list[int]] = {}
        for i, c in enumerate(chunk):
            by_condition.setdefault(c.condition.when if c.condition else (), []).append(i)
        for places in by_condition.values():
            pairs = [self._sides(chunk[i]) for i in places]
            shown = all_reached(pairs, rules, self._guards(chunk[places[0]]), _BUDGET)
            for i, follows in zip(places, shown, strict=True):
                found[i] = follows
        return found

    def _sides(self, c: EqualPair):
        return self._grammar.expression(c.left), self._grammar.expression(c.right)

    def _is_instance(self, c: EqualPair) -> bool:
        """Whether a candidate is an instance of a law, or of one that is neither proved nor refuted."""
        known = (self._rewriting, self._doubtful) if c.condition is None else ()
        return any(r.reducer(c.left) is not None for r in known)

    def refuse_contradictions(self, table: TermTable) -> None:
        """Raises DiscoveryError if the known rules make terms of the table equal that differ at a sample point."""
        if not len(self._known):
            return
        for terms in table.smallest(_AT_ONCE):
            pairs = list(itertools.combinations(terms, 2))
            sides = [self._sides(EqualPair(*p)) for p in pairs]
            for (a, b), are_equal in zip(pairs, all_reached(sides, self._known, (), _BUDGET), strict=True):
                where = table.difference(a, b) if are_equal else ""
                if where:
                    raise DiscoveryError(
                        f"rules: they contradict what operators compute: {self._writer.text(EqualPair(a, b))} follows "
                        f"from them, and {where}; accepted: laws that hold, as `rx.verify` tells"
                    )

    def minimise(self, progress: Progress) -> None:
        """Moves the laws that follow from the others to `dropped`, the largest first. Smaller laws are asked first:
        where there are few rules, the e-graph reaches further before its budget ends."""
        ordered = sorted(self.laws, key=lambda x: self._key(x.candidate))
        for n in reversed(range(len(ordered))):
            law = ordered[n]
            progress("minimising", len(ordered) - n, len(ordered))
            sides, guards = self._sides(law.candidate), self._guards(law.candidate)
            others = (self._rule_set(some, law) for some in (ordered[:n], self.laws))
            if any(all_reached([sides], rules, guards, _LAST_BUDGET)[0] for rules in others):
                self.laws.remove(law)
                self.dropped.append(Dropped(law.candidate, None))

    def widen(self, progress: Progress) -> None:
        """States the laws for all typings of the most general kind that is proved."""
        proved = [(x.candidate, x.name, x.proof) for x in self.laws if x.proof is not None]
        for law, proof in zip(self.laws, self._prover.widened(proved, progress), strict=True):
            law.proof = proof
