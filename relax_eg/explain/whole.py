"""Evaluating every whole program of a derivation (`programs`), at the cost of what changes from each to the next.

A program differs from the one before on the way from one place up to a result. Operators on the way are evaluated anew,
each once; where the new value of one has the same bits as the old, so has all that is computed of it, and so has the
program. What is left is steps times depth. It is bounded: after `MOST_OPERATORS` evaluations of operators only every
fourth program is evaluated up to its results, after as many again every sixteenth, and so on; of the others, what
changes is evaluated up to the first value that is the old one within rounding. Each is reported as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_eg.explain.programs import Change, How, Place, changes, inside_of
from relax_eg.explain.steps import Goal
from relax_eg.explain.values import compared, deviation, identical
from relax_eg.ir.expr import Expr, node, postorder
from relax_eg.ops.interpret import Values

MOST_OPERATORS = 20_000
_RARER = 4


@dataclass(frozen=True, slots=True)
class Checked:
    """What was checked of whole program `number` of a block (1: after the first change), made `how` by step `step` of
    `goal`. `deviation`: how far its results are from those of the program as written, in units of the largest element,
    None where it was not evaluated up to its results; `operators`: how many have had their shapes deduced anew."""

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
    """A deviation in words."""
    return f"off by {deviation:.1g} of the largest value" if deviation else "the same bits"


@dataclass(slots=True)
class _Level:
    """A place with one below it: its expression with what is below as it is now, and per world the values of its
    operands and its own, as last evaluated."""

    place: Place
    step: int
    args: list[Expr]
    operands: list[list[Any]]
    now: Expr
    values: list[Any]
    stale: bool = False  # whether operands were changed since

    def put(self, i: int, e: Expr, values: Sequence[Any]) -> None:
        """Operand `i` is `e` now."""
        self.args[i] = e
        for operands, value in zip(self.operands, values, strict=True):
            operands[i] = value


@dataclass
class WholePrograms:
    """The programs from `results`' starts to their ends. `worlds`: values of the same expressions at several sizes;
    `numerics`: the class within which results have to agree; `deduced`: proves the annotation of one operator;
    `fail(change, number, world, why)` gives the error to be raised."""

    results: Sequence[Goal]
    worlds: Sequence[Values]
    numerics: str
    deduced: Callable[[Expr], None]
    fail: Callable[[Change, int, int, str], Exception]
    _levels: list[_Level] = field(default_factory=list[_Level])
    _shown: set[Expr] = field(default_factory=set[Expr])
    _stride: int = 1
    _spent: int = 0
    _behind: bool = False  # whether levels above the last change were left as they were
    _result: int = -1
    _deviations: list[float] = field(default_factory=list[float])

    def run(self) -> list[Checked]:
        """Evaluate them all, in order."""
        self._deviations = [0.0] * len(self.results)
        self._operators([g.start for g in self.results])
        found: list[Checked] = []
        for number, change in enumerate(changes(self.results), 1):
            operators = self._operators([change.now])
            self._descend(change)
            more, reached = self._ascend(change, number)
            deviation = max(self._deviations) if reached else None
            found.append(Checked(number, change.how, change.goal, change.step, deviation, operators + more))
        return found

    def _operators(self, roots: Sequence[Expr]) -> int:
        """Prove the annotations of what is new below `roots`; how many operators that is."""
        found = 0
        for e in postorder(roots, stop=self._shown.__contains__):
            if e not in self._shown:
                self._shown.add(e)
                self.deduced(e)
                found += bool(e.args)
        return found

    def _descend(self, change: Change) -> None:
        """Levels for the places above a change: those that are there, and new ones."""
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
        """Evaluate what is above a change; how many operators had their annotations proved, and whether the value of
        the whole is known."""
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
        """How many operators were evaluated, those of functions too."""
        return sum(w.evaluated for w in self.worlds)

    def _differ(self, a: Any, b: Any) -> str:
        return compared(a, b, self.numerics)
