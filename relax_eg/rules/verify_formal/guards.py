"""Guards, which are facts about integers, and what follows from conjunctions of them.

A guard says that a `Dim` is >= 0, zero or not zero, or that a boolean value is true or false. `KnownGuards` answers
what follows: first by comparing canonical forms, then by z3 under a resource limit. No answer counts as "no".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import z3

from relax_eg.shapes import Dim, dim_max, dim_min
from relax_eg.shapes.dim import Atom as DimAtom
from relax_eg.shapes.dim import product as monomial_dim
from relax_eg.shapes.dim import rebuilt
from relax_eg.shapes.piecewise import remade

# limit: steps in z3's own count, which is the same on every machine; its clock is limited too.
_STEPS = 3_000_000
_MILLISECONDS = 2_000  # limit: time of z3 for one question
_MEMORY_MB = 1_500  # limit: memory of z3

GuardKind = Literal["ge", "eq", "ne", "true", "false"]


class OutOfTime(Exception):
    """Raised when the proof's time is up."""


@dataclass(frozen=True)
class GuardLiteral:
    """A guard: `dim >= 0` (ge), `dim == 0` (eq), `dim != 0` (ne), or the boolean value `of` is so (true, false)."""

    kind: GuardKind
    dim: Dim
    of: Any = None

    @cached_property
    def key(self) -> str:
        return f"{self.kind} {self.dim}" if self.of is None else f"{self.kind} {self.of.key}"

    def __hash__(self) -> int:
        return hash((self.kind, self.dim, self.of))

    def negated(self) -> GuardLiteral:
        match self.kind:
            case "ge":
                return at_least(-self.dim - 1)
            case "eq":
                return GuardLiteral("ne", self.dim)
            case "ne":
                return GuardLiteral("eq", self.dim)
            case "true":
                return GuardLiteral("false", self.dim, self.of)
            case _:
                return GuardLiteral("true", self.dim, self.of)


def at_least(dim: Dim) -> GuardLiteral:
    """Returns the guard `dim >= 0`, with coefficients divided by their common factor."""
    common = math.gcd(*(c for _, c in dim.terms)) if dim.terms else 0
    # Dividing rounds the constant down, which loses no integer solution.
    return GuardLiteral("ge", dim // common if common > 1 else dim)


def zero(dim: Dim) -> GuardLiteral:
    """Returns the guard `dim == 0`, the same for `e` and `-e`."""
    return GuardLiteral("eq", min(dim, -dim, key=Dim.sort_key))


def not_zero(dim: Dim) -> GuardLiteral:
    return zero(dim).negated()


def in_range(v: Dim, extent: Dim) -> tuple[GuardLiteral, GuardLiteral]:
    """Returns the guards that say `0 <= v < extent`."""
    return at_least(v), at_least(extent - 1 - v)


Guards = frozenset[GuardLiteral]


@dataclass
class Deadline:
    """The processor time of this process at which to give up. A proof thus does not depend on what else runs."""

    at: float

    def check(self) -> None:
        if time.process_time() > self.at:
            raise OutOfTime


@dataclass
class KnownGuards:
    """The guards that hold at every point considered, and what follows from them."""

    known: list[GuardLiteral]
    deadline: Deadline
    _memo: dict[Any, bool] = field(default_factory=dict)
    calls: int = 0

    def with_(self, more: Iterable[GuardLiteral]) -> KnownGuards:
        return KnownGuards([*self.known, *more], self.deadline, {})

    def entails(self, goal: GuardLiteral, extra: Iterable[GuardLiteral] = ()) -> bool:
        """Whether `goal` follows from the known guards and `extra`."""
        local = list(extra)
        plain = _plainly(goal, self.known) or _plainly(goal, local)
        if plain:
            return True
        key = (goal, frozenset(local))
        if key not in self._memo:
            self._memo[key] = self._ask([*local, goal.negated()])
        return self._memo[key]

    def impossible(self, extra: Iterable[GuardLiteral]) -> bool:
        """Whether `extra` contradicts the known guards."""
        local = frozenset(extra)
        if ("none", local) not in self._memo:
            self._memo["none", local] = self._ask(list(local))
        return self._memo["none", local]

    def _ask(self, guards: Sequence[GuardLiteral]) -> bool:
        """Whether the known guards and `guards` have no solution together."""
        return self._unsat(lambda w: [w.guard(g) for g in guards])

    def never(self, formula: Callable[[Translation], Any]) -> bool:
        """Whether the known guards have no solution in which the formula made by `formula` holds."""
        return self._unsat(lambda w: [formula(w)])

    def _unsat(self, make: Callable[[Translation], list[Any]]) -> bool:
        self.deadline.check()
        self.calls += 1
        world = Translation()
        try:
            asserted = [world.guard(g) for g in self.known] + make(world)
            solver = z3.Solver()
            left = max(1, int(1000 * (self.deadline.at - time.process_time())))
            solver.set("rlimit", _STEPS)
            solver.set("timeout", min(_MILLISECONDS, left))
            solver.set("max_memory", _MEMORY_MB)
            solver.add(*asserted, *world.side)
            return solver.check() == z3.unsat
        except z3.Z3Exception:
            return False


def _plainly(goal: GuardLiteral, known: Sequence[GuardLiteral]) -> bool:
    d = goal.dim
    if goal.of is None and d.is_const:
        return d.value >= 0 if goal.kind == "ge" else (d.value == 0) == (goal.kind == "eq")
    for g in known:
        if g == goal:
            return True
        if goal.kind == "ge" and g.kind == "ge":
            rest = d - g.dim
            if rest.is_const and rest.value >= 0:
                return True
    return False


class Translation:
    """Translates Dims and guards to z3 terms; `side` holds the definitions of the divisions."""

    def __init__(self) -> None:
        self.side: list[Any] = []
        self._atoms: dict[DimAtom, Any] = {}

    def dim(self, d: Dim) -> Any:
        total: Any = z3.IntVal(d.const)
        for atoms, c in d.terms:
            summand: Any = z3.IntVal(c)
            for a in atoms:
                summand = summand * self.atom(a)
            total = total + summand
        return total

    def atom(self, a: DimAtom) -> Any:
        if a not in self._atoms:
            self._atoms[a] = self._made(a)
        return self._atoms[a]

    def _made(self, a: DimAtom) -> Any:
        if a.op == "var":
            return z3.Int(a.name)
        args = [self.dim(x) for x in a.args]
        if a.op in ("max", "min"):
            found = args[0]
            for x in args[1:]:
                found = z3.If(found >= x if a.op == "max" else found <= x, found, x)
            return found
        if a.op == "select":
            return z3.If(args[0] >= 0 if a.name == ">=" else args[0] == 0, args[1], args[2])
        top, by = args
        q = z3.Int(f"!{len(self._atoms)}!{a}")
        # Nothing is said about a divisor <= 0, so what follows then holds for any quotient.
        self.side.append(
            z3.Implies(by > 0, z3.And(q * by <= top, top < q * by + by))
            if a.op == "floordiv"
            else z3.Implies(by > 0, z3.And(q * by >= top, top > q * by - by))
        )
        return q

    def guard(self, g: GuardLiteral) -> Any:
        if g.of is not None:
            truth = z3.Bool(f"?{g.of.key}")
            return truth if g.kind == "true" else z3.Not(truth)
        value = self.dim(g.dim)
        return value >= 0 if g.kind == "ge" else value == 0 if g.kind == "eq" else value != 0

    def all_of(self, guards: Iterable[GuardLiteral]) -> Any:
        return z3.And(*(self.guard(g) for g in guards))

    def weighted(self, summands: Iterable[tuple[Fraction | int, Dim, Iterable[GuardLiteral]]], scale: int) -> Any:
        """Returns the sum of coefficient times dim where the guards hold, times `scale`, which makes it an integer."""
        total: Any = z3.IntVal(0)
        for c, d, guards in summands:
            value = z3.IntVal(int(c * scale)) * self.dim(d)
            total = total + z3.If(self.all_of(guards), value, z3.IntVal(0))
        return total

    @staticmethod
    def differs(a: Any, b: Any) -> Any:
        return a != b

    @staticmethod
    def exceeds(a: Any, b: Any) -> Any:
        return a > b


def divisors(dim: Dim) -> set[Dim]:
    """Returns every divisor in `dim` except constants other than 0."""
    found: set[Dim] = set()
    for atoms, _ in dim.terms:
        for a in atoms:
            for x in a.args:
                found |= divisors(x)
            if a.op in ("floordiv", "ceildiv") and not (a.args[1].is_const and a.args[1].value != 0):
                found.add(a.args[1])
    return found


def is_plain(dim: Dim) -> bool:
    """Whether `dim` is a polynomial: no division, max, min or select."""
    return all(a.op == "var" for atoms, _ in dim.terms for a in atoms)


def simplified(dim: Dim, facts: KnownGuards, extra: Guards) -> Dim:
    """Returns `dim` with those divisions, maxima and minima resolved that the facts decide."""
    if is_plain(dim):
        return dim

    def make(a: DimAtom) -> Dim:
        if a.op == "var":
            return monomial_dim((a,))
        args = [simplified(x, facts, extra) for x in a.args]
        if a.op in ("max", "min"):
            return _extreme(a.op, args, facts, extra)
        return _quotient(args[0], args[1], facts, extra) if a.op == "floordiv" else remade(a, args)

    return rebuilt(dim, make)


def _extreme(op: str, args: list[Dim], facts: KnownGuards, extra: Guards) -> Dim:
    for x in args:
        if all(x is y or facts.entails(at_least(x - y if op == "max" else y - x), extra) for y in args):
            return x
    return dim_max(*args) if op == "max" else dim_min(*args)


def _quotient(a: Dim, b: Dim, facts: KnownGuards, extra: Guards) -> Dim:
    """Returns `a // b` with the multiple of `b` in `a` pulled out, and without the rest if it provably is a
    remainder."""
    plain = a // b
    if len(b.terms) + (b.const != 0) != 1:
        whole, rest = Dim.of(0), a
    else:
        by, scale = b.terms[0] if b.terms else ((), b.const)
        whole = Dim.of(0)
        for atoms, c in (*a.terms, ((), a.const)):
            left = list(atoms)
            if c % scale or any(left.count(x) < by.count(x) for x in by):
                continue
            for x in by:
                left.remove(x)
            whole = whole + monomial_dim(tuple(left), c // scale)
        rest = a - whole * b
    if facts.entails(at_least(rest), extra) and facts.entails(at_least(b - 1 - rest), extra):
        return whole
    if whole != 0 and facts.entails(at_least(b - 1), extra):
        return whole + rest // b
    return plain
