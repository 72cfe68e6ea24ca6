"""`Prover`: decides relations of sizes from a fixed set of assumptions, cheapest method first.

The order: canonical form; interval arithmetic; congruence (a common divisor of the coefficients that does not divide
the constant); one assumption at a time; a few points that may refute; simplification by known facts; case analysis on
max, min and select; lemmas about one division, max or min; residues; more points that may refute; all points, if they
are few; z3. Each step is sound for all integers, so the order affects only speed.

**Undefined statements.** A statement has no value where it divides by zero. It is Proved only if it has a value at
every allowed point; Refuted only by a point at which it has a value and is false. If it holds wherever it has a value,
but lacks a value at some point, the answer is Unknown with that point as the reason.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import gcd, lcm

from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes.dim import Dim, product
from relax_eg.shapes.facts import AXIS, Facts
from relax_eg.shapes.interval import Interval
from relax_eg.shapes.piecewise import compare_with_zero, normal_comparison
from relax_eg.shapes.points import enumerate_points, nearby_points, samples
from relax_eg.shapes.relation import Relation, atoms_of
from relax_eg.shapes.rewrite import case_split, simplify
from relax_eg.shapes.solver import Solver
from relax_eg.shapes.verdict import Path, Proved, ProverStatistics, Refuted, Unknown, Verdict

TIMEOUT_MS = 500  # limit: milliseconds of z3 per query, by default

_CASES = 4  # limit: nested case distinctions; 2**4 leaves
_ENUMERATED_POINTS = 512  # limit: points checked exhaustively instead of asking z3
_FIRST_POINTS = 6  # limit: points checked before the costlier proofs
_TRIES = 100  # limit: points drawn before z3 is asked whether one exists
_RESIDUES = 64  # limit: cases of a residue distinction
_MEMO = 1 << 14  # limit: answers kept

_Goal = tuple[str, Dim]


class Prover:
    """A decision procedure for relations, given `assumptions` and `bounds` of variables, else `default`."""

    def __init__(
        self,
        bounds: Mapping[str, Interval],
        assumptions: Sequence[Relation],
        statistics: ProverStatistics | None = None,
        default: Interval = AXIS,
    ) -> None:
        self._bounds = dict(bounds)
        self._assumptions = tuple(assumptions)
        self._statistics = statistics if statistics is not None else ProverStatistics()
        self.facts = Facts(bounds, assumptions, default)
        self._memo: dict[tuple[str, Dim, tuple[Dim, ...]], tuple[Verdict, int]] = {}
        self._simplified: dict[Dim, Dim] = {}

    @cached_property
    def solver(self) -> Solver:
        return Solver(self.facts)

    def prove(self, relation: Relation, timeout_ms: int = TIMEOUT_MS) -> Verdict:
        """Returns the verdict on `relation`. A `timeout_ms` of 0 disables z3."""
        verdict = self.decide(relation, timeout_ms)
        if not isinstance(verdict, Proved):
            return verdict
        for divisor in relation.divisors:
            if divisor.is_const:
                continue
            found = self.decide(Relation(divisor, "!=", Dim.of(0)), timeout_ms)
            if isinstance(found, Refuted):
                at = ", ".join(f"{name} = {size}" for name, size in found.counterexample.items())
                return Unknown(f"the divisor {divisor} is zero at {at}, where the statement has no value")
            if isinstance(found, Unknown):
                return Unknown(f"the divisor {divisor} may be zero: {found.reason}")
        return verdict

    def decide(self, relation: Relation, timeout_ms: int = TIMEOUT_MS, *, refute: bool = True) -> Verdict:
        """Like `prove`, but considers only points at which the relation has a value.

        Without `refute`, and with a `timeout_ms` of 0, no search runs.
        """
        started = time.perf_counter()
        op, difference = normal_comparison(relation.op, relation.left - relation.right)
        key = (op, difference, relation.divisors)
        known = self._memo.get(key)
        # An Unknown found with less time, or without search, is retried.
        effort = timeout_ms + refute
        if known is not None and (known[1] >= effort or not isinstance(known[0], Unknown)):
            verdict = known[0]
            self._statistics.count("memo", time.perf_counter() - started)
            if isinstance(verdict, Refuted):  # same difference, but the sides may differ and contain more variables
                env = {name: self.any_value(name) for name in sorted(relation.variables)} | dict(verdict.counterexample)
                again = self._confirmed_refutation(env, relation, verdict.by)
                return verdict if again is None else again
            return verdict
        verdict = self._decide(op, difference, relation, timeout_ms, refute)
        if len(self._memo) >= _MEMO:
            self._memo.clear()
            self._simplified.clear()
        self._memo[key] = (verdict, effort)
        path = verdict.by if isinstance(verdict, (Proved, Refuted)) else "unknown"
        self._statistics.count(path, time.perf_counter() - started)
        return verdict

    def _decide(self, op: str, difference: Dim, relation: Relation, timeout_ms: int, refute: bool) -> Verdict:
        try:
            goal = op, self.facts.reduce(difference)
            divisors = tuple(self.facts.reduce(divisor) for divisor in relation.divisors)
        except (SpecError, BoundsError):
            return Unknown("a divisor is zero at all sizes the scope allows")
        if any(divisor == 0 for divisor in divisors):
            return Unknown("a divisor is zero at all sizes the scope allows")
        path = self._cheap_proof(*goal)
        if path is not None:
            return Proved(path)
        names = sorted(goal[1].variables.union(self.facts.variables, *(d.variables for d in divisors)))
        points = samples(self.facts, names) if refute else iter(())
        # Try a few points before the costlier proofs: most false statements are false at small sizes.
        for env in itertools.islice(points, _FIRST_POINTS):
            if (found := self._refutation_at(env, goal, relation, "points")) is not None:
                return found
        path = self._proof_without_search(goal)
        if path is not None:
            return Proved(path)
        if not refute:
            return Unknown("no search was asked for")
        for env in points:
            if (found := self._refutation_at(env, goal, relation, "points")) is not None:
                return found
        if (all_points := enumerate_points(self.facts, names, _ENUMERATED_POINTS)) is not None:
            return self._decide_by_enumeration(all_points, goal, relation)
        if not timeout_ms:
            return Unknown("a timeout of 0 ms leaves z3 no time, and nothing quicker decides it")
        return self._decide_by_z3(goal, divisors, relation, timeout_ms)

    # --- what needs no search ---

    def _proof_without_search(self, goal: _Goal) -> Path | None:
        """Returns the method that proves `goal` without search, or None. `goal` is in free variables and not decided by
        `_cheap_proof`."""
        op, dim = goal
        if dim.is_const:
            return None
        try:
            simple = self.simplify(dim)
            if simple is not dim and self._cheap_proof(op, simple) is not None:
                return "rewriting"
            if self._holds_in_all_cases(op, simple, (), _CASES):
                return "cases"
            if op == ">=" and self._follows_from_lemma(simple):
                return "lemma"
            return "residues" if self._holds_for_all_residues(op, simple) else None
        except SpecError:  # a division by zero: the goal has no value there
            return None

    def simplify(self, dim: Dim) -> Dim:
        """Returns `dim` simplified by the known facts."""
        found = self._simplified.get(dim)
        if found is None:
            found = simplify(dim, self.facts.interval, self._nonnegative)
            self._simplified[dim] = found
        return found

    def _cheap_proof(self, op: str, dim: Dim) -> Path | None:
        """Returns the cheap method that proves `dim op 0`, or None."""
        if dim.is_const:
            return "canonical" if compare_with_zero(op, dim.const) else None
        low, high = self.facts.interval(dim)
        if op == ">=":
            if low is not None and low >= 0:
                return "interval"
        elif op == "==":
            if low == high == 0:
                return "interval"
        else:
            if (low is not None and low > 0) or (high is not None and high < 0):
                return "interval"
            if dim.const % gcd(*(c for _, c in dim.terms)):
                return "congruence"
        return "assumption" if self._follows_from_assumption(op, dim, self.facts.nonnegative) else None

    def _follows_from_assumption(self, op: str, dim: Dim, nonnegative: Sequence[Dim]) -> bool:
        facts = self.facts
        if op == ">=":
            return any(self._has_nonnegative_interval(dim - fact) for fact in nonnegative) or any(
                self._has_nonnegative_interval(dim - fact) or self._has_nonnegative_interval(dim + fact)
                for fact in facts.zero
            )
        if op == "==":
            if any(dim == fact or dim == -fact for fact in facts.zero):
                return True
            return (
                bool(nonnegative)
                and self._follows_from_assumption(">=", dim, nonnegative)
                and self._follows_from_assumption(">=", -dim, nonnegative)
            )
        return (
            any(dim == fact or dim == -fact for fact in facts.nonzero)
            or self._follows_from_assumption(">=", dim - 1, nonnegative)
            or self._follows_from_assumption(">=", -dim - 1, nonnegative)
        )

    def _has_nonnegative_interval(self, dim: Dim) -> bool:
        low, _ = self.facts.interval(dim)
        return low is not None and low >= 0

    def _nonnegative(self, dim: Dim) -> bool:
        return self._has_nonnegative_interval(dim) or self._follows_from_assumption(">=", dim, self.facts.nonnegative)

    def _holds_in_all_cases(self, op: str, dim: Dim, known: tuple[Dim, ...], depth: int) -> bool:
        """Whether the goal holds in every case of every max, min and select. `known`: expressions that are >= 0 in this
        case."""
        if known:
            if dim.is_const:
                return compare_with_zero(op, dim.const)
            if self._cheap_proof(op, dim) is not None or self._follows_from_assumption(
                op, dim, [*known, *self.facts.nonnegative]
            ):
                return True
        cases = case_split(dim) if depth else None
        if cases is None:
            return False
        return all(self._holds_in_all_cases(op, case, (*known, *more), depth - 1) for more, case in cases)

    def _follows_from_lemma(self, dim: Dim) -> bool:
        """Whether `dim >= 0` follows from the defining inequalities of one division, max or min in it."""
        for atom in atoms_of(dim):
            if atom.op in ("var", "select"):
                continue
            own = product((atom,))
            if atom.op in ("max", "min"):
                lemmas = [own - arg if atom.op == "max" else arg - own for arg in atom.args]
                scale = 1
            else:
                a, b = atom.args
                low, _ = self.facts.plain_interval(b)
                if low is None or low < 1:
                    continue
                over = a - b * own if atom.op == "floordiv" else b * own - a
                lemmas = [over, b - 1 - over]
                scale = b.const if b.is_const else 1
            # scale*dim >= lemma - (scale - 1) implies dim > -1, because lemma >= 0.
            if any(self._has_nonnegative_interval(scale * dim + (scale - 1) - lemma) for lemma in lemmas):
                return True
        return False

    def _holds_for_all_residues(self, op: str, dim: Dim) -> bool:
        """Whether the goal holds for every residue of the variables in products divided by constants: `n*n % 4 <= 1`.

        Linear dividends are left to z3, which handles them well.
        """
        modulus, names = 1, set[str]()
        for atom in atoms_of(dim):
            if atom.op in ("floordiv", "ceildiv") and atom.args[1].is_const:
                modulus = lcm(modulus, abs(atom.args[1].const))
                if any(len(monomial) > 1 for monomial, _ in atom.args[0].terms):
                    names |= atom.args[0].variables
        if not names or modulus == 1 or modulus ** len(names) > _RESIDUES:
            return False
        rest: dict[str, Dim] = {}
        for name in names:
            low, high = self.facts.bound(name)
            whole = f"{name}·{modulus}·0"  # `Facts` makes no name that ends in ·0
            self.facts.bounds[whole] = (
                None if low is None else low // modulus,
                None if high is None else high // modulus,
            )
            rest[name] = modulus * Dim.var(whole)
        for residues in itertools.product(range(modulus), repeat=len(names)):
            case = dim.substitute({name: rest[name] + r for name, r in zip(names, residues, strict=True)})
            if self._cheap_proof(op, case) is None:
                return False
        return True

    # --- search ---

    def _decide_by_z3(self, goal: _Goal, divisors: tuple[Dim, ...], relation: Relation, timeout_ms: int) -> Verdict:
        self._statistics.asked_z3 += 1
        try:
            simple = self.simplify(goal[1])
        except SpecError:
            simple = goal[1]
        found = self.solver.ask(goal[0], simple, divisors, timeout_ms)
        if found.holds:
            return Proved("z3")
        if found.holds is None:
            return Unknown(f"z3 gave up after {timeout_ms} ms ({found.reason or 'no reason given'})")
        # z3 did not see variables that simplification removed; any value works for them.
        refuted = self._refutation_at(
            {name: self.any_value(name) for name in goal[1].variables} | found.point, goal, relation, "z3"
        )
        if refuted is not None:
            return refuted
        return Unknown(f"z3 found a point that does not refute the statement: {found.point}")

    def _decide_by_enumeration(self, points: list[dict[str, int]], goal: _Goal, relation: Relation) -> Verdict:
        for env in points:
            if (found := self._refutation_at(env, goal, relation, "enumeration")) is not None:
                return found
        return Proved("enumeration")

    def _refutation_at(self, env: Mapping[str, int], goal: _Goal, relation: Relation, by: Path) -> Refuted | None:
        """Returns the refutation at the free variables' values `env`, or None if the goal holds there."""
        op, dim = goal
        try:
            if compare_with_zero(op, dim.evaluate(env)):
                return None
            full = self._complete_point(env, relation.variables)
        except BoundsError:  # division by zero
            return None
        return self._confirmed_refutation(full, relation, by)

    def _complete_point(self, env: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
        """Returns the values of `names` and of the assumptions' variables at a point of the free variables."""
        out: dict[str, int] = {}
        for name in sorted({*names, *(name for assumption in self._assumptions for name in assumption.variables)}):
            value = self.facts.values.get(name, Dim.var(name))
            free = {other: env[other] if other in env else self.any_value(other) for other in value.variables}
            out[name] = value.evaluate(free)
        return out

    def any_value(self, name: str) -> int:
        """Returns a value within the bounds of the free variable `name`."""
        low, high = self.facts.bound(name)
        return low if low is not None else high if high is not None else 0

    def _confirmed_refutation(self, env: Mapping[str, int], relation: Relation, by: Path) -> Refuted | None:
        """Returns the refutation at `env` after re-evaluating the statement as written and the assumptions; None if it
        fails."""
        values = relation.values(env)
        if values is None or relation.holds(env) or not self.allows(env):
            return None
        (left, right), op = values, relation.op
        try:
            said = f"{left} {op} {right} is false"
        except ValueError:  # Python does not print integers of more than 4300 digits
            said = "the sides are too large to print"
        return Refuted(dict(env), said, by)

    def allows(self, env: Mapping[str, int]) -> bool:
        """Whether the given bounds and assumptions allow the variables' values `env`."""
        for name, size in env.items():
            low, high = self._bounds.get(name, self.facts.default)
            if (low is not None and size < low) or (high is not None and size > high):
                return False
        return all(assumption.holds(env) for assumption in self._assumptions if assumption.variables <= env.keys())

    def example(self, names: Iterable[str], size: int, timeout_ms: int = TIMEOUT_MS) -> dict[str, int] | None:
        """Returns allowed values of `names`, about as large as `size` if possible; None if none were found."""
        names = sorted(names)
        points = nearby_points(self.facts, self._free_variables(names), size)
        for env in itertools.chain(points, self._points_from_z3(timeout_ms)):
            full = self._complete_point(env, names)
            if self.allows(full):
                return {name: full[name] for name in names}
        return None

    def points(self, names: Iterable[str], most: int) -> list[dict[str, int]]:
        """Returns up to `most` different allowed points over `names`, the same in every run.

        Fewer or none if random points rarely satisfy the assumptions.
        """
        names = sorted(names)
        found: dict[tuple[int, ...], dict[str, int]] = {}
        for env in samples(self.facts, self._free_variables(names)):
            full = self._complete_point(env, names)
            if self.allows(full):
                point = {name: full[name] for name in names}
                found.setdefault(tuple(point.values()), point)
                if len(found) == most:
                    break
        return list(found.values())

    def _free_variables(self, names: Sequence[str]) -> list[str]:
        """Returns the free variables of the facts, and those on which `names` depend."""
        values = (self.facts.values.get(name, Dim.var(name)) for name in names)
        return sorted(self.facts.variables.union(*(value.variables for value in values)))

    def _points_from_z3(self, timeout_ms: int) -> Iterator[dict[str, int]]:
        found = self.solver.point(timeout_ms)
        if found.holds is False:
            yield found.point

    def satisfiable(self, timeout_ms: int = TIMEOUT_MS) -> bool | None:
        """Whether any sizes satisfy the assumptions; None if undecided."""
        if self.facts.contradictory:
            return False
        names = sorted(self.facts.variables)
        if any(self.allows(self._complete_point(env, ())) for env in samples(self.facts, names, _TRIES)):
            return True
        found = self.solver.point(timeout_ms).holds
        return None if found is None else not found
