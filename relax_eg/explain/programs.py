"""The whole programs through which a derivation leads, from the program as written to the chosen one.

Each use of a rule in a goal makes a whole program: the previous one with the expression at the goal's place replaced.
So does a step that changes sizes in attributes. A goal that several places share is walked at the first of them, in the
order of operands. At each later place the end of the goal replaces its start at once, which makes one more program.
Each program differs from the previous one only on the path from one place up to a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relax_eg.explain.steps import Goal, RuleStep
from relax_eg.ir.expr import Expr


@dataclass(eq=False, slots=True)
class GoalPlace:
    """A goal that is being walked.

    - `goal`: the goal.
    - `at`: the expression now at its place.
    - `done`: number of steps that are done.
    - `operand`: the operand of `at` that holds the place below.
    """

    goal: Goal
    at: Expr
    done: int = 0
    operand: int = -1


@dataclass(frozen=True, slots=True)
class Change:
    """The change that turns one program into the next.

    - `result`: index of the result that is changed.
    - `places`: the places above the change, that of the result first.
    - `replacement`: the expression that the change puts at its place.
    - `goal`: the goal whose step or whose end is the replacement.
    - `step`: index of the step of `goal`; -1 if the whole of `goal` is used again.
    """

    result: int
    places: Sequence[GoalPlace]
    replacement: Expr
    goal: Goal
    step: int

    @property
    def rule_step(self) -> RuleStep | None:
        """The step by a rule that makes the change; None if another step makes it."""
        step = self.goal.steps[self.step][0] if self.step >= 0 else None
        return step if isinstance(step, RuleStep) else None

    @property
    def cause(self) -> str:
        """The cause of the change: the name of a rule; "again" if the end of a goal is used again; "sizes" if only
        sizes of an attribute are written differently."""
        use = self.rule_step
        if use is not None:
            return use.equation.rule.name
        return "again" if self.step < 0 else "sizes"


def changes(results: Sequence[Goal]) -> Iterator[Change]:
    """Yields the change to each program after the first, in order. The walk reuses the list `places`: read it before
    asking for the next change."""
    met: set[Goal] = set()
    for number, goal in enumerate(results):
        if goal in met:
            if goal.start is not goal.end:
                yield Change(number, [], goal.end, goal, -1)
            continue
        yield from _walk(goal, number, met)


def _walk(root: Goal, number: int, met: set[Goal]) -> Iterator[Change]:
    places = [GoalPlace(root, root.start)]
    while places:
        place = places[-1]
        if place.done == len(place.goal.steps):
            places.pop()
            met.add(place.goal)
            continue
        step, to = place.goal.steps[place.done]
        if isinstance(step, RuleStep):
            yield Change(number, places[:-1], to, place.goal, place.done)
            place.at, place.done = to, place.done + 1
            continue
        place.operand += 1
        if place.operand == len(step.operands):
            if step.sizes:
                yield Change(number, places[:-1], to, place.goal, place.done)
            place.at, place.done, place.operand = to, place.done + 1, -1
            continue
        below = step.operands[place.operand]
        if below is None or below.start is below.end:
            continue
        if below in met:
            yield Change(number, places, below.end, below, -1)
        else:
            places.append(GoalPlace(below, below.start))
