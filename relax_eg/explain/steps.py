"""The steps of a derivation, which show that one expression equals another.

A *goal* says that two expressions are equal and holds the steps from one to the other through expressions in between.
A step applies a rule to the whole expression (`RuleStep`), or changes operands, each by a goal of its own
(`CongruenceStep`). Goals are shared, so the length of a derivation is its number of different steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from relax_eg.ir.expr import Expr
from relax_eg.ops.libraries import instantiate
from relax_eg.rules import Instance, Rule, Schema
from relax_eg.rules.checking.schema_answers import Answers
from relax_eg.shapes import Dim
from relax_eg.traversal import operands_first


@dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """A use of a rule.

    - `rule`: the rule.
    - `pairs`: its left sides, each with the right side that replaces it.
    - `instance`: for a rule over values, the instance used.
    - `operands`: the values of the pattern variables of `instance`, in order.
    - `sizes`: the values of its size variables.
    - `answers`: for a rule about whole nodes, the answers it got when it proposed the right side.
    """

    rule: Rule | Schema
    pairs: tuple[tuple[Expr, Expr], ...]
    instance: Instance | None = None
    operands: tuple[Expr, ...] = ()
    sizes: tuple[tuple[str, Dim], ...] = ()
    answers: Answers | None = None


@dataclass(frozen=True, slots=True)
class RuleStep:
    """A step that rewrites the whole expression by a rule.

    - `equation`: the use of the rule.
    - `result`: index of the pair of `equation`.
    - `forward`: whether the pair is used from left to right.
    """

    equation: Equation
    result: int
    forward: bool

    @property
    def sides(self) -> tuple[Expr, Expr]:
        """The expression before and after."""
        left, right = self.equation.pairs[self.result]
        return (left, right) if self.forward else (right, left)


@dataclass(frozen=True, slots=True)
class CongruenceStep:
    """A step that replaces operands by equal ones.

    - `operands`: the goal of each operand; None for an operand that stays.
    - `sizes`: pairs of sizes in attributes that are written differently and proved equal.
    """

    operands: tuple[Goal | None, ...]
    sizes: tuple[tuple[Dim, Dim], ...]


@dataclass(eq=False, slots=True)
class Goal:
    """The equality of two expressions.

    - `start`, `end`: the expressions.
    - `steps`: each step with the expression that it leads to; the last one leads to `end`.
    """

    start: Expr
    end: Expr
    steps: list[tuple[Step, Expr]]


Step: TypeAlias = RuleStep | CongruenceStep


def goals_in_order(mains: Iterable[Goal]) -> list[Goal]:
    """Returns every goal below `mains` once, each after the goals it uses."""

    def used(goal: Goal) -> list[Goal]:
        inner = (g for step, _ in goal.steps if isinstance(step, CongruenceStep) for g in step.operands)
        return [g for g in inner if g is not None]

    return operands_first(mains, used)


def equations_of(goals: Iterable[Goal]) -> list[Equation]:
    """Returns the equations that goals use, each once, in order."""
    steps = [step for g in goals for step, _ in g.steps]
    return list(dict.fromkeys(step.equation for step in steps if isinstance(step, RuleStep)))


def equation(instance: Instance, operands: Sequence[Expr], sizes: Mapping[str, Dim]) -> Equation:
    """Returns the use of a rule instance with these values of its pattern variables and size variables. OperatorError
    if a side cannot be formed."""
    env = dict(zip(instance.params, operands, strict=True))
    made = instantiate((*instance.left, *instance.right), env, sizes)
    count = len(instance.left)
    pairs = tuple(zip(made[:count], made[count:], strict=True))
    return Equation(instance.rule, pairs, instance, tuple(operands), tuple(sizes.items()))
