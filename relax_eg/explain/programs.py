"""The whole programs that a derivation leads through, from the one as written to the one chosen.

A step of a goal is a whole program: the one before, with the expression at the goal's place in it replaced. A goal that
several places share is gone through at the first of them, in the order of operands; at each later place what it came to
replaces what it started from at once, which is one program more. So there are as many programs as there are steps and
uses of goals, and each differs from the one before on the way from one place up to a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from relax_eg.explain.steps import Goal, Inside, Rewritten
from relax_eg.ir.expr import Expr

# A rule was used; what a goal came to is used again; sizes of an attribute are written differently.
How = Literal["rule", "again", "sizes"]


@dataclass(eq=False, slots=True)
class Place:
    """A goal that is being gone through: `at` stands there, in which operand `operand` is the place below."""

    goal: Goal
    at: Expr
    done: int = 0
    operand: int = -1


@dataclass(frozen=True, slots=True)
class Change:
    """What makes the next program of the one before it: in result `result`, below `places` (the result first), `now`
    stands instead. It is step `step` of `goal`, or, used again, all of them (-1)."""

    result: int
    places: Sequence[Place]
    now: Expr
    how: How
    goal: Goal
    step: int

    @property
    def rewritten(self) -> Rewritten | None:
        """The use of a rule that it is."""
        step = self.goal.steps[self.step][0] if self.how == "rule" else None
        return step if isinstance(step, Rewritten) else None


def changes(results: Sequence[Goal]) -> Iterator[Change]:
    """The programs after the first, in order. `places` is the walk's own list: read it before the next is asked for."""
    met: set[Goal] = set()
    for number, goal in enumerate(results):
        if goal in met:
            if goal.start is not goal.end:
                yield Change(number, [], goal.end, "again", goal, -1)
            continue
        yield from _through(goal, number, met)


def _through(root: Goal, number: int, met: set[Goal]) -> Iterator[Change]:
    places = [Place(root, root.start)]
    while places:
        place = places[-1]
        if place.done == len(place.goal.steps):
            places.pop()
            met.add(place.goal)
            continue
        step, to = place.goal.steps[place.done]
        if isinstance(step, Rewritten):
            yield Change(number, places[:-1], to, "rule", place.goal, place.done)
            place.at, place.done = to, place.done + 1
            continue
        place.operand += 1
        if place.operand == len(step.operands):
            if step.sizes:
                yield Change(number, places[:-1], to, "sizes", place.goal, place.done)
            place.at, place.done, place.operand = to, place.done + 1, -1
            continue
        below = step.operands[place.operand]
        if below is None or below.start is below.end:
            continue
        if below in met:
            yield Change(number, places, below.end, "again", below, -1)
        else:
            places.append(Place(below, below.start))


def inside_of(place: Place) -> Inside:
    """The step that is being made at a place with one below it."""
    step = place.goal.steps[place.done][0]
    assert isinstance(step, Inside)
    return step
