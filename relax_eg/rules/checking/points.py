"""Points at which the sides of a rule's instances are compared, and the test of the accuracy law at such points.

The checker of rules (`check.py`) and the prover (`verify_formal`), whose proofs may say nothing of accuracy, use them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder
from relax_eg.ir.heads import with_operands
from relax_eg.memo import Memo
from relax_eg.ops.record import TABLE
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.checking.judge import Absent, Case, Judge, accuracy_suspects, judge_accuracy
from relax_eg.rules.checking.samples import Draw, Sizes, admits, draw_sizes, draw_under_guards
from relax_eg.rules.rule import Instance

_ACCURACY_POINTS = 24  # limit: points at which the accuracy of a proved equality is tested
# limit: elements of all values of an instance, of which the accuracy is tested while a program is optimized.
_MOST_ELEMENTS = 1 << 17
_MOST_ACCURATE = 1 << 12  # limit: instances of which the accuracy is kept; one that is evicted is tested again
_MOST_RELATED = 8  # limit: values of which the relation of a leaf to others consists, these and the leaf included

InstanceKey = tuple[Any, ...]
_accurate = Memo[tuple[InstanceKey, bool], bool](_MOST_ACCURATE)


def instance_key(i: Instance) -> InstanceKey:
    return i.rule.numerics, i.params, i.left, i.right, i.guards


@dataclass(frozen=True)
class PointPlan:
    """The test of a rule's instances by one judge.

    - `judge`: the judge.
    - `draw`: draws the values of the pattern variables.
    - `instances`: the instances.
    - `count`: number of points.
    - `least`: least size of an axis.
    - `elements`: size variables are reduced to 2 or 3 each if their product exceeds this; None for no reduction.
    """

    judge: Judge
    draw: Draw
    instances: Sequence[Instance]
    count: int
    least: int = 0
    elements: int | None = None


def cases_of(plan: PointPlan, rng: np.random.Generator) -> Iterator[Case]:
    """Cases to compare: the instances in turn, each starting at another position of its list of sizes."""
    turns = -(-plan.count // len(plan.instances))
    sizes_of: list[list[dict[str, int]]] = []
    for instance in plan.instances:
        found = draw_sizes(instance, rng, max(turns, 24), plan.least)
        if not found:
            raise draws.no_sizes(instance)
        sizes_of.append(found)
    for k in range(plan.count):
        which = k % len(plan.instances)
        instance, bindings = plan.instances[which], sizes_of[which]
        sizes = _adjusted_sizes(instance, bindings[(k // len(plan.instances) + 5 * which) % len(bindings)], plan, k)
        yield Case(instance, sizes, plan.draw(instance, sizes, rng, k if which % 2 else int(rng.integers(60))))


def _adjusted_sizes(instance: Instance, sizes: Sizes, plan: PointPlan, k: int) -> Sizes:
    """`sizes`, reduced for exact arithmetic, and sometimes increased for the accuracy law."""
    if plan.elements is not None:
        total = math.prod(max(v, 1) for v in sizes.values())
        smaller = {n: min(v, 2 + i % 2) for i, (n, v) in enumerate(sizes.items())}
        return smaller if total > plan.elements and admits(instance, smaller) else sizes
    if plan.judge is judge_accuracy and k % 3 == 2 and len(sizes) <= 3:
        larger = {n: 4 * v + 1 for n, v in sizes.items()}
        return larger if admits(instance, larger) else sizes
    return sizes


def related(leaves: Collection[Expr], variables: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """For each leaf its variable, or its expression over the variables of other leaves if a few operators compute it
    from these and from sizes, as a mean and its divisor are. Whether a sum cancels depends on such relations."""
    given, found = set(leaves), dict[Expr, Expr]()

    def made(x: Expr) -> Expr:
        if x not in found:
            inner = _operands_among(x, given)
            found[x] = variables[x] if inner is None else _over(x, {a: made(a) for a in inner})
        return found[x]

    for x in leaves:
        made(x)
    return found


def _over(x: Expr, values: Mapping[Expr, Expr]) -> Expr:
    return with_operands(x, substitute_exprs(x.args, values))


def _operands_among(x: Expr, given: Collection[Expr]) -> list[Expr] | None:
    """The other expressions of `given` from which a few operators compute `x`; None if it is not so computed."""
    seen, found, stack = {x}, list[Expr](), [x]
    while stack:
        e = stack.pop()
        if e is not x and e in given:
            found.append(e)
        elif e.op not in TABLE and (e.op != CONSTANT or e is x or e.ndim):
            return None
        else:
            stack += [a for a in e.args if a not in seen]
            seen.update(e.args)
        if len(seen) > _MOST_RELATED:
            return None
    return found


def keeps_accuracy(instance: Instance, masks: bool = False) -> bool:
    """Whether the accuracy law is tested on an instance, whose sides are equal over the reals, and holds; at small
    sizes in place of fixed ones. It is not tested if no sizes are admitted, or if fixed sizes make its values large.
    `masks`: whether operands are masks."""
    instance = draws.with_small_sizes(instance)  # so programs that differ in fixed sizes only are tested once
    key = instance_key(instance), masks
    if key not in _accurate:
        _accurate[key] = _keeps_accuracy(instance, masks)
    return _accurate[key]


def _keeps_accuracy(instance: Instance, masks: bool) -> bool:
    if any(a.annotation != b.annotation for a, b in zip(instance.left, instance.right, strict=True)):
        return False  # equal at the fixed sizes only
    if any(e.op == VAR and e not in instance.params for e in postorder((*instance.left, *instance.right))):
        return False  # nothing draws its values
    drawn = (draws.draw_masked_floats,) if masks else (draws.draw_cancelling_floats, draws.draw_level_floats)
    found: dict[tuple[tuple[str, int], ...], list[Case]] = {}
    try:
        for draw in drawn:
            plan = PointPlan(judge_accuracy, draw_under_guards(draw), [instance], _ACCURACY_POINTS, least=1)
            cases = list(small_cases_of(plan, np.random.default_rng(0)))
            if len(cases) < plan.count // 2:
                return False
            for case in cases:
                found.setdefault(tuple(case.sizes.items()), []).append(case)
        suspects = (case for cases in found.values() for case in accuracy_suspects(cases))
        return all(judge_accuracy(case) is None for case in suspects)
    except (Absent, RelaxEgError):
        return False


def small_cases_of(plan: PointPlan, rng: np.random.Generator) -> Iterator[Case]:
    """The cases of `cases_of` at which all values together have few elements."""
    nodes = {i: postorder((*i.left, *i.right)) for i in plan.instances}
    shapes = {i: [e.shape for e in found if isinstance(e.annotation, Tensor)] for i, found in nodes.items()}
    for case in cases_of(plan, rng):
        if sum(math.prod(int(d.evaluate(case.sizes)) for d in s) for s in shapes[case.instance]) <= _MOST_ELEMENTS:
            yield case
