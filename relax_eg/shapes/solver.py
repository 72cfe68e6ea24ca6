"""Queries about sizes to z3.

z3 sees a quotient `x//y` as a witness: a q with `y*q <= x < y*q + y` for y > 0, and any integer for y = 0. That the
queried expression has a value is stated separately, because a select may have a value where the size not chosen has
none. The process has one z3 context, and each set of facts one solver; a query is pushed and popped. z3 is imported at
the first query and used under a lock, because its context is not thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from relax_eg.shapes.dim import Atom, Dim
from relax_eg.shapes.facts import Facts
from relax_eg.shapes.relation import atoms_of, divisors_of

Z3_LOCK = threading.RLock()
os.register_at_fork(before=Z3_LOCK.acquire, after_in_parent=Z3_LOCK.release, after_in_child=Z3_LOCK.release)

# limit: z3 counts its own steps besides the clock, so that a slow machine gives the same answer when time is ample.
# About 10 s of work on nonlinear queries.
_STEPS = 20_000_000
_MEMORY_MB = 1_500  # limit: memory of z3


@dataclass(frozen=True)
class SolverAnswer:
    """The answer of z3.

    - `holds`: None for "unknown"; False comes with a counterexample `point`.
    - `point`: values of the free variables.
    - `reason`: why z3 did not decide.
    """

    holds: bool | None
    point: dict[str, int]
    reason: str = ""


class Solver:
    """A z3 solver that has the `facts` asserted."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._variables: dict[str, Any] = {}
        self._atoms: dict[Atom, Any] = {}
        self._definitions: dict[Atom, list[Any]] = {}
        with Z3_LOCK:
            import z3

            self._z3 = z3
            self._solver = z3.Solver()
            base = facts.unsolved
            defined = divisors_of(*base)
            self._base_atoms = frozenset(atoms_of(*base, *defined))
            for constraint in [
                *self._definitions_in([*base, *defined], frozenset()),
                *(self._term(d) != 0 for d in defined),
                *(self._term(d) >= 0 for d in facts.nonnegative),
                *(self._term(d) == 0 for d in facts.zero),
                *(self._term(d) != 0 for d in facts.nonzero),
            ]:
                self._solver.add(constraint)

    def ask(self, op: str, dim: Dim, nonzero: Iterable[Dim], timeout_ms: int) -> SolverAnswer:
        """Asks whether `dim op 0` (op is `==`, `!=` or `>=`) holds at all points where the facts hold and no divisor is
        zero.

        Divisors are those in `dim` and `nonzero`.
        """
        with Z3_LOCK:
            defined = list(dict.fromkeys((*nonzero, *divisors_of(dim))))
            try:
                term = self._term(dim)
                constraints = self._definitions_in([dim, *defined], self._base_atoms)
                constraints += [self._term(divisor) != 0 for divisor in defined]
            except ValueError:  # z3 gets integers as text, and Python does not print more than 4300 digits
                return SolverAnswer(None, {}, "an integer is too large for z3")
            constraints.append(term != 0 if op == "==" else term == 0 if op == "!=" else term < 0)
            names = self._facts.variables.union(*(d.variables for d in (dim, *defined)))
            half = max(1, timeout_ms // 2)
            found = self._check(self._solver, constraints, names, half)
            return found if found.holds is not None else self._check_in_new_solver(constraints, names, half)

    def point(self, timeout_ms: int) -> SolverAnswer:
        """Looks for a point at which the facts hold. `holds` is False if there is one, and True if there is none."""
        with Z3_LOCK:
            return self._check(self._solver, [], self._facts.variables, timeout_ms)

    def _check_in_new_solver(self, constraints: list[Any], names: frozenset[str], timeout_ms: int) -> SolverAnswer:
        # Without push and pop z3 preprocesses, which settles some nonlinear queries that its incremental core cannot.
        solver = self._z3.SolverFor("QF_NIA")
        solver.add(*self._solver.assertions())
        return self._check(solver, constraints, names, timeout_ms)

    def _check(self, solver: Any, constraints: list[Any], names: frozenset[str], timeout_ms: int) -> SolverAnswer:
        """Checks `constraints` with `solver`. `names`: all variables of the facts and constraints."""
        z3 = self._z3
        solver.push()
        try:
            solver.set("timeout", timeout_ms)
            solver.set("rlimit", _STEPS)
            solver.set("max_memory", _MEMORY_MB)
            solver.add(*constraints)
            answer = solver.check()
            if answer == z3.unsat:
                return SolverAnswer(True, {})
            if answer == z3.unknown:
                return SolverAnswer(None, {}, solver.reason_unknown())
            model = solver.model()
            # Other queries' variables are unconstrained here, so their values are arbitrary.
            known = ((name, self._variables[name]) for name in sorted(names))
            point = {name: model.eval(variable, model_completion=True).as_long() for name, variable in known}
            return SolverAnswer(False, point)
        except z3.Z3Exception as error:  # out of memory, or a number too long to print
            return SolverAnswer(None, {}, str(error))
        finally:
            solver.pop()

    def _definitions_in(self, dims: list[Dim], known: frozenset[Atom]) -> list[Any]:
        """Returns the definitions of the atoms in `dims`, and the bounds of their variables."""
        out: list[Any] = []
        for atom in atoms_of(*dims):
            if atom not in known:
                self._atom(atom)
                out.extend(self._definitions[atom])
        return out

    def _term(self, dim: Dim) -> Any:
        total: Any = self._z3.IntVal(dim.const)
        for monomial, c in dim.terms:
            summand: Any = self._atom(monomial[0])
            for atom in monomial[1:]:
                summand = summand * self._atom(atom)
            total = total + (summand if c == 1 else c * summand)
        return total

    def _atom(self, atom: Atom) -> Any:
        found = self._atoms.get(atom)
        if found is not None:
            return found
        if atom.op == "var":
            made = self._z3.Int(f"v.{atom.name}")
            low, high = self._facts.bound(atom.name)
            self._variables[atom.name] = made
            self._definitions[atom] = [
                *([] if low is None else [made >= low]),
                *([] if high is None else [made <= high]),
            ]
        else:
            args = [self._term(arg) for arg in atom.args]  # before `made`, because it numbers the inner atoms
            made = self._z3.Int(f"{atom.op}.{len(self._atoms)}")
            self._definitions[atom] = self._definition(atom, made, args)
        self._atoms[atom] = made
        return made

    def _definition(self, atom: Atom, made: Any, args: list[Any]) -> list[Any]:
        z3 = self._z3
        if atom.op in ("max", "min"):
            beats = [made >= arg if atom.op == "max" else made <= arg for arg in args]
            return [*beats, z3.Or(*(made == arg for arg in args))]
        if atom.op == "select":
            condition, then, otherwise = args
            return [made == z3.If(condition >= 0 if atom.name == ">=" else condition == 0, then, otherwise)]
        x, y = args
        low, high = self._facts.plain_interval(atom.args[1])
        if atom.op == "floordiv":
            above, below = [made * y <= x, x < made * y + y], [made * y >= x, x > made * y + y]
        else:
            above, below = [made * y >= x, x > made * y - y], [made * y <= x, x < made * y - y]
        if low is not None and low > 0:
            return above
        if high is not None and high < 0:
            return below
        return [z3.Or(y == 0, z3.And(y > 0, *above), z3.And(y < 0, *below))]
