"""A derivation: why one expression equals another, step by step.

A *goal* says that two expressions are equal and gives the way from one to the other, over expressions in between. Each
step of the way applies a rule to the whole expression (`Rewritten`), or changes operands, each by a goal of its own
(`Inside`). Goals are shared, so a derivation is as long as there are different steps in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from relax_eg.ir.expr import Expr
from relax_eg.ops.libraries import instantiated
from relax_eg.rules import Instance, Rule, Schema
from relax_eg.rules.asked import Answers
from relax_eg.shapes import Dim


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """A rule at one place: `pairs` are its left sides and what they become. Of a rule over values `instance` is the one
    used, `operands` what its pattern variables stand for, in order, and `sizes` its size variables; of a rule about
    whole nodes `told` is what it was told when it proposed this."""

    rule: Rule | Schema
    pairs: tuple[tuple[Expr, Expr], ...]
    instance: Instance | None = None
    operands: tuple[Expr, ...] = ()
    sizes: tuple[tuple[str, Dim], ...] = ()
    told: Answers | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The whole expression, by pair `result` of an equation; from right to left unless `forward`."""

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
    """The operands, each by its goal, or not at all (None); `sizes`: attributes' sizes that are proved equal."""

    operands: tuple[Goal | None, ...]
    sizes: tuple[tuple[Dim, Dim], ...]


@dataclass(eq=False, slots=True)
class Goal:
    """`start` equals `end`: each step with the expression it leads to, the last of which is `end`."""

    start: Expr
    end: Expr
    steps: list[tuple[Step, Expr]]


Step: TypeAlias = Rewritten | Inside


def goals_in_order(mains: Iterable[Goal]) -> list[Goal]:
    """Every goal below `mains` once, each after those it uses."""
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
    """The equations that goals use, each once, in order."""
    steps = [step for g in goals for step, _ in g.steps]
    return list(dict.fromkeys(step.equation for step in steps if isinstance(step, Rewritten)))


def equation(instance: Instance, operands: Sequence[Expr], sizes: Mapping[str, Dim]) -> Equation:
    """What a rule instance says where its pattern variables are `operands` and its size variables `sizes`.
    OperatorError where a side cannot be formed."""
    env = dict(zip(instance.params, operands, strict=True))
    made = instantiated((*instance.left, *instance.right), env, sizes)
    count = len(instance.left)
    pairs = tuple(zip(made[:count], made[count:], strict=True))
    return Equation(instance.rule, pairs, instance, tuple(operands), tuple(sizes.items()))
