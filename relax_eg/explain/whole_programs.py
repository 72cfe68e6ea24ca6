"""Evaluates every whole program of a derivation (`programs`), at the cost of what changes from each to the next.

A program differs from the previous one only on the path from one place up to a result. Operators on the path are
evaluated again, each once. If the new value of an operator has the same bits as the old one, then so has everything
computed from it, and so has the program. The cost is then steps times depth. It is bounded: after `MOST_OPERATORS`
evaluations of operators only every fourth program is evaluated up to its results, after as many again every sixteenth,
and so on. In the other programs, changed operators are evaluated up to the first value that equals the old one within
rounding. Each report says which of the two was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_eg.explain.programs import Change, GoalPlace, How, changes, inside_of
from relax_eg.explain.steps import Goal
from relax_eg.explain.values import compared, deviation, identical
from relax_eg.ir.expr import Expr, node, postorder
from relax_eg.ops.interpret import SharedValues

MOST_OPERATORS = 20_000  # limit: evaluations of operators before fewer programs are evaluated whole
_RARER = 4  # chosen: factor by which they become fewer each time


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """The outcome of checking whole program `number` of a block (1: after the first change).

    - `how`: what made it.
    - `goal`, `step`: the goal, and the index of its step, that made it.
    - `deviation`: how far its results are from those of the program as written, in units of the largest element; None
      if it was not evaluated up to its results.
    - `operators`: number of operators whose shapes were deduced anew.
    """

    number: int
    how: How
    goal: Goal
    step: int
    deviation: float | None
    operators: int

    def __str__(self) -> str:
        many = "" if self.operators == 1 else "s"
        shapes = f"shapes of {self.operators} operator{many} proved" if self.operators else "no other shapes in it"
        if self.deviation is None:
            return f"program {self.number}: evaluated where it changes, {shapes}"
        return f"program {self.number}: evaluated whole, {off(self.deviation)}, {shapes}"


def off(deviation: float) -> str:
    """Returns a deviation in words."""
    return f"off by {deviation:.1g} of the largest value" if deviation else "the same bits"


@dataclass(slots=True)
class _Level:
    """A place with one below it.

    - `args`: its operands as they are now.
    - `operands`: by world, the values of its operands.
    - `now`: its expression over the operands as they are now.
    - `values`: by world, its value as last evaluated.
    """

    place: GoalPlace
    step: int
    args: list[Expr]
    operands: list[list[Any]]
    now: Expr
    values: list[Any]
    stale: bool = False  # whether operands changed since the last evaluation

    def put(self, i: int, e: Expr, values: Sequence[Any]) -> None:
        """Makes `e` operand `i`."""
        self.args[i] = e
        for operands, value in zip(self.operands, values, strict=True):
            operands[i] = value


@dataclass
class WholePrograms:
    """The programs from the starts of `results` to their ends.

    - `worlds`: values of the same expressions, each at other sizes.
    - `numerics`: the class within which results have to agree.
    - `deduced`: proves the annotation of one operator.
    - `fail`: `fail(change, number, world, why)` returns the error to be raised.
    """

    results: Sequence[Goal]
    worlds: Sequence[SharedValues]
    numerics: str
    deduced: Callable[[Expr], None]
    fail: Callable[[Change, int, int, str], Exception]
    _levels: list[_Level] = field(default_factory=list[_Level])
    _shown: set[Expr] = field(default_factory=set[Expr])
    _stride: int = 1
    _spent: int = 0
    _behind: bool = False  # whether levels above the last change were not updated
    _result: int = -1
    _deviations: list[float] = field(default_factory=list[float])

    def run(self) -> list[CheckedProgram]:
        """Evaluates all programs, in order."""
        self._deviations = [0.0] * len(self.results)
        self._operators([g.start for g in self.results])
        found: list[CheckedProgram] = []
        for number, change in enumerate(changes(self.results), 1):
            operators = self._operators([change.now])
            self._descend(change)
            more, reached = self._ascend(change, number)
            deviation = max(self._deviations) if reached else None
            found.append(CheckedProgram(number, change.how, change.goal, change.step, deviation, operators + more))
        return found

    def _operators(self, roots: Sequence[Expr]) -> int:
        """Proves the annotations of new operators below `roots`. Returns how many there are."""
        found = 0
        for e in postorder(roots, stop=self._shown.__contains__):
            if e not in self._shown:
                self._shown.add(e)
                self.deduced(e)
                found += bool(e.args)
        return found

    def _descend(self, change: Change) -> None:
        """Makes `_levels` the places above a change: keeps those that are there, and adds new ones."""
        levels, places = self._levels, change.places
        if levels and change.result != self._result:
            levels.clear()
        if change.result != self._result:
            self._behind = False
        self._result = change.result
        kept = 0
        while kept < min(len(levels), len(places)):
            if levels[kept].place is not places[kept] or levels[kept].step != places[kept].done:
                break
            kept += 1
        del levels[kept:]
        for level in levels if self._behind else ():
            for i, goal in enumerate(inside_of(level.place).operands[: level.place.operand]):
                if goal is not None:
                    level.put(i, goal.end, [w.of(goal.end) for w in self.worlds])
        for place in places[kept:]:
            operands = [[w.of(a) for a in place.at.args] for w in self.worlds]
            values = [w.of(place.at) for w in self.worlds]
            levels.append(_Level(place, place.done, list(place.at.args), operands, place.at, values))

    def _ascend(self, change: Change, number: int) -> tuple[int, bool]:
        """Evaluates what is above a change. Returns how many operators had their annotations proved, and whether the
        value of the whole program is known."""
        whole, before, shown = number % self._stride == 0, self.evaluated, 0
        now, values = change.now, [w.of(change.now) for w in self.worlds]
        for level in reversed(self._levels):
            i = level.place.operand
            old = [operands[i] for operands in level.operands]
            alike = now.annotation == level.args[i].annotation
            same = all(map(identical, values, old))
            level.put(i, now, values)
            if same and alike and not level.stale and not self._behind:
                return shown, True
            at = level.place.at
            if not (same and alike):
                level.now = node(at.op, level.args, at.attrs, at.annotation)
                shown += self._operators([level.now])
            level.stale |= not same
            if level.stale and not whole and not any(map(self._differ, old, values)):
                self._behind = True
                return shown, False
            if level.stale:
                level.values = [w.applied(level.now, x) for w, x in zip(self.worlds, level.operands, strict=True)]
                level.stale = False
            now, values = level.now, level.values
        self._behind = False
        self._spent += self.evaluated - before
        if self._spent > MOST_OPERATORS:
            self._stride, self._spent = _RARER * self._stride, 0
        wanted = [w.of(self.results[change.result].start) for w in self.worlds]
        for world, (a, b) in enumerate(zip(wanted, values, strict=True)):
            if why := self._differ(a, b):
                raise self.fail(change, number, world, why)
        self._deviations[change.result] = max((deviation(a, b) for a, b in zip(wanted, values, strict=True)))
        return shown, True

    @property
    def evaluated(self) -> int:
        """Number of operators that were evaluated, including those of functions."""
        return sum(w.evaluated for w in self.worlds)

    def _differ(self, a: Any, b: Any) -> str:
        return compared(a, b, self.numerics)
