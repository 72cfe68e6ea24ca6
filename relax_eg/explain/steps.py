"""A derivation: why one expression equals another, step by step.

A *goal* says that two expressions are equal and gives the way from one to the other through expressions in between.
Each step applies a rule to the whole expression (`Rewritten`), or changes operands, each by a goal of its own
(`Inside`). Goals are shared, so a derivation is as long as it has different steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from relax_eg.ir.expr import Expr
from relax_eg.ops.libraries import instantiate
from relax_eg.rules import Instance, Rule, Schema
from relax_eg.rules.schema_answers import Answers
from relax_eg.shapes import Dim


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """A use of a rule.

    - `pairs`: its left sides, each with what it becomes.
    - `instance`: for a rule over values, the instance used.
    - `operands`: what the pattern variables of `instance` stand for, in order.
    - `sizes`: what its size variables stand for.
    - `told`: for a rule about whole nodes, the answers it was given when it proposed this.
    """

    rule: Rule | Schema
    pairs: tuple[tuple[Expr, Expr], ...]
    instance: Instance | None = None
    operands: tuple[Expr, ...] = ()
    sizes: tuple[tuple[str, Dim], ...] = ()
    told: Answers | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A step that rewrites the whole expression by pair `result` of an equation; right to left unless `forward`."""

    equation: Equation
    result: int
    forward: bool

    @property
    def sides(self) -> tuple[Expr, Expr]:
        """The expression before and after."""
        left, right = self.equation.pairs[self.result]
        return (left, right) if self.forward else (right, left)


@dataclass(frozen=True, slots=True)
class Inside:
    """A step that changes operands.

    - `operands`: the goal of each operand; None for one that stays.
    - `sizes`: pairs of sizes in attributes that are proved equal.
    """

    operands: tuple[Goal | None, ...]
    sizes: tuple[tuple[Dim, Dim], ...]


@dataclass(eq=False, slots=True)
class Goal:
    """The equality of `start` and `end`. `steps` holds each step with the expression it leads to, the last being
    `end`."""

    start: Expr
    end: Expr
    steps: list[tuple[Step, Expr]]


Step: TypeAlias = Rewritten | Inside


def goals_in_order(mains: Iterable[Goal]) -> list[Goal]:
    """Returns every goal below `mains` once, each after the goals it uses."""
    order: dict[Goal, None] = {}
    for main in mains:
        stack = [(main, False)]
        while stack:
            goal, ready = stack.pop()
            if goal in order:
                continue
            if ready:
                order[goal] = None
                continue
            stack.append((goal, True))
            inner = [g for step, _ in goal.steps if isinstance(step, Inside) for g in step.operands if g is not None]
            stack += [(g, False) for g in reversed(inner) if g not in order]
    return list(order)


def equations_of(goals: Iterable[Goal]) -> list[Equation]:
    """Returns the equations that goals use, each once, in order."""
    steps = [step for g in goals for step, _ in g.steps]
    return list(dict.fromkeys(step.equation for step in steps if isinstance(step, Rewritten)))


def equation(instance: Instance, operands: Sequence[Expr], sizes: Mapping[str, Dim]) -> Equation:
    """Returns what a rule instance says if its pattern variables are `operands` and its size variables `sizes`.
    OperatorError if a side cannot be formed."""
    env = dict(zip(instance.params, operands, strict=True))
    made = instantiate((*instance.left, *instance.right), env, sizes)
    count = len(instance.left)
    pairs = tuple(zip(made[:count], made[count:], strict=True))
    return Equation(instance.rule, pairs, instance, tuple(operands), tuple(sizes.items()))
