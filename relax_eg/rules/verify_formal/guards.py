"""Guards, which are conditions on integers, and entailment from conjunctions of guards, by the prover of `shapes`.

A guard says that a `Dim` is >= 0, zero or not zero, or that a boolean value is true or false. Variables of guards range
over all integers. A question that the prover does not answer counts as "no".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from relax_eg.errors import SpecError
from relax_eg.limits import KEPT
from relax_eg.memo import Memo
from relax_eg.shapes import Dim, Proved, Relation
from relax_eg.shapes.dim import Atom, is_plain, product, replace_atoms
from relax_eg.shapes.interval import ANY
from relax_eg.shapes.piecewise import compare_with_zero, select, with_arguments
from relax_eg.shapes.prover import Prover
from relax_eg.shapes.rewrite import simplify as simplified_under

_MILLISECONDS = 2_000  # limit: time of z3 for one question

GuardOperator = Literal[">=", "==", "!=", "true", "false"]


class OutOfTime(Exception):
    """Raised when the proof's time is up."""


@dataclass(frozen=True)
class GuardLiteral:
    """A guard: `dim op 0`, with `op` one of `>=`, `==`, `!=`; or the boolean value `of` is "true" or "false"."""

    op: GuardOperator
    dim: Dim
    of: Any = None

    @cached_property
    def key(self) -> str:
        return f"{self.op} {self.dim if self.of is None else self.of.key}"

    def __hash__(self) -> int:
        return hash((self.op, self.dim, self.of))

    @property
    def decided(self) -> bool | None:
        """Whether a guard on a constant holds; None for any other guard."""
        return compare_with_zero(self.op, self.dim.value) if self.of is None and self.dim.is_const else None

    def negated(self) -> GuardLiteral:
        match self.op:
            case ">=":
                return at_least(-self.dim - 1)
            case "==":
                return GuardLiteral("!=", self.dim)
            case "!=":
                return GuardLiteral("==", self.dim)
            case "true":
                return GuardLiteral("false", self.dim, self.of)
            case "false":
                return GuardLiteral("true", self.dim, self.of)

    def on(self, dim: Dim) -> GuardLiteral:
        """Returns the same comparison of another size."""
        return guard(self.op, dim)


def guard(op: str, dim: Dim) -> GuardLiteral:
    """Returns the guard `dim op 0`, with `op` one of `>=`, `==`, `!=`."""
    return at_least(dim) if op == ">=" else zero(dim) if op == "==" else not_zero(dim)


def at_least(dim: Dim) -> GuardLiteral:
    """Returns the guard `dim >= 0`, with coefficients divided by their common factor."""
    common = math.gcd(*(c for _, c in dim.terms)) if dim.terms else 0
    # Dividing rounds the constant down, which loses no integer solution.
    return GuardLiteral(">=", dim // common if common > 1 else dim)


def zero(dim: Dim) -> GuardLiteral:
    """Returns the guard `dim == 0`, the same for `e` and `-e`."""
    return GuardLiteral("==", min(dim, -dim, key=Dim.sort_key))


def not_zero(dim: Dim) -> GuardLiteral:
    return zero(dim).negated()


def in_range(v: Dim, extent: Dim) -> tuple[GuardLiteral, GuardLiteral]:
    """Returns the guards that say `0 <= v < extent`."""
    return at_least(v), at_least(extent - 1 - v)


Guards = frozenset[GuardLiteral]
Summand = tuple[Fraction, Dim, Guards]
_NOTHING: Guards = frozenset()

Paths = tuple[Guards, ...]
Condition = tuple[Paths, Paths]  # the cases in which it holds, and those in which it does not: disjoint conjunctions


def case_of(g: GuardLiteral, positive: bool = True) -> Condition:
    """The condition that a guard holds, or that it does not."""
    g = g if positive else g.negated()
    return (frozenset({g}),), (frozenset({g.negated()}),)


def both_hold(a: Condition, b: Condition) -> Condition:
    yes = tuple(p | q for p in a[0] for q in b[0])
    no = (*a[1], *(p | q for p in a[0] for q in b[1]))
    return yes, no


def one_holds(a: Condition, b: Condition) -> Condition:
    no, yes = both_hold((a[1], a[0]), (b[1], b[0]))
    return yes, no


@dataclass
class Deadline:
    """The end of the time for a proof. `end` is in seconds of processor time of this thread, so that a proof does not
    depend on other processes."""

    end: float

    def check(self) -> None:
        if time.thread_time() > self.end:
            raise OutOfTime

    @property
    def milliseconds(self) -> int:
        """The milliseconds that z3 may take for one question."""
        return max(1, min(_MILLISECONDS, int(1000 * (self.end - time.thread_time()))))


class KnownGuards:
    """The guards that hold at every point considered, and entailment from them.

    - `known`: these guards.
    - `deadline`: the end of the time for the proof.
    """

    def __init__(self, known: Iterable[GuardLiteral], deadline: Deadline) -> None:
        self.known = list(known)
        self.deadline = deadline
        self._cases: Memo[Guards, _Case] = Memo(KEPT)

    def with_(self, more: Iterable[GuardLiteral]) -> KnownGuards:
        return KnownGuards([*self.known, *more], self.deadline)

    def case(self, extra: Guards = _NOTHING) -> _Case:
        """Returns the case in which the known guards and `extra` hold."""
        self.deadline.check()
        return self._cases.get_or_make(extra, lambda: _Case((*self.known, *extra), self.deadline))

    def entails(self, goal: GuardLiteral, extra: Iterable[GuardLiteral] = ()) -> bool:
        """Whether `goal` follows from the known guards and `extra`."""
        local = frozenset(extra)
        if goal.decided is not None:
            return goal.decided
        return goal in self.known or goal in local or self.case(local).entails(goal)

    def impossible(self, extra: Iterable[GuardLiteral]) -> bool:
        """Whether `extra` contradicts the known guards."""
        return self.case(frozenset(extra)).impossible

    def sum_is(self, op: Literal["==", ">="], summands: Iterable[Summand]) -> bool:
        """Whether the sum of coefficient times dim, each where its guards hold, is zero or not negative wherever the
        known guards hold."""
        return self.case().sum_is(op, list(summands))


class _Case:
    """A conjunction of guards, as assumptions of a prover.

    A quotient whose divisor is not shown to differ from zero is an unknown integer, so that conclusions hold for any
    value of it. A boolean value is an unknown integer that is negative where the value is false.
    """

    def __init__(self, guards: Iterable[GuardLiteral], deadline: Deadline) -> None:
        self._deadline = deadline
        self._unknown: dict[Any, Dim] = {}
        self._simplified: dict[Dim, Dim] = {}
        plain = [g for g in guards if is_plain(g.dim)]
        others = [g for g in guards if not is_plain(g.dim)]
        self._prover = self._assuming(plain)
        if others:
            self._prover = self._assuming([*plain, *others])

    def _assuming(self, guards: Iterable[GuardLiteral]) -> Prover:
        return Prover({}, [Relation(d, op, Dim.of(0)) for op, d in map(self._comparison, guards)], default=ANY)

    @cached_property
    def impossible(self) -> bool:
        return self._prover.satisfiable(self._deadline.milliseconds) is False

    def entails(self, goal: GuardLiteral) -> bool:
        return self._follows(*self._comparison(goal))

    def sum_is(self, op: str, summands: list[Summand]) -> bool:
        scale = math.lcm(*(c.denominator for c, _, _ in summands))
        try:
            total = Dim.of(0)
            for c, d, guards in summands:
                value = self._defined(d) * int(c * scale)
                for g in sorted(guards, key=lambda g: g.key):
                    value = select(*self._comparison(g), value, Dim.of(0))
                total = total + value
        except SpecError:  # more terms than a size may have
            return False
        return self._follows(op, total)

    def simplified(self, dim: Dim) -> Dim:
        """Returns `dim` with those divisions, maxima, minima and selects resolved that the guards decide."""
        if dim not in self._simplified:
            facts = self._prover.facts
            self._simplified[dim] = simplified_under(
                dim,
                lambda d: facts.interval(facts.reduce(self._defined(d))),
                lambda d: self._follows(">=", self._defined(d)),
            )
        return self._simplified[dim]

    def _follows(self, op: str, dim: Dim) -> bool:
        self._deadline.check()
        return isinstance(self._prover.decide(Relation(dim, op, Dim.of(0)), self._deadline.milliseconds), Proved)

    def _comparison(self, g: GuardLiteral) -> tuple[str, Dim]:
        """Returns a guard as a comparison `dim op 0` that has a value everywhere."""
        if g.of is None:
            return g.op, self._defined(g.dim)
        truth = self._named(g.of.key)
        return ">=", truth if g.op == "true" else -truth - 1

    def _defined(self, dim: Dim) -> Dim:
        return dim if is_plain(dim) else replace_atoms(dim, self._defined_atom)

    def _defined_atom(self, atom: Atom) -> Dim:
        if atom.op == "var":
            return product((atom,))
        if atom not in self._unknown:
            args = [self._defined(x) for x in atom.args]
            divides = atom.op in ("floordiv", "ceildiv")
            if divides and not (args[1].is_const and args[1].const) and not self._follows("!=", args[1]):
                return self._named(atom)
            self._unknown[atom] = with_arguments(atom, args)
        return self._unknown[atom]

    def _named(self, what: Any) -> Dim:
        """Returns the variable for an unknown integer, the same for equal keys `what`."""
        return self._unknown.setdefault(what, Dim.var(f"unknown·{len(self._unknown)}"))


def simplified(dim: Dim, facts: KnownGuards, extra: Guards) -> Dim:
    """Returns `dim` with those divisions, maxima, minima and selects resolved that the facts decide."""
    return dim if is_plain(dim) else facts.case(extra).simplified(dim)
