"""The accuracy law of whole programs: how far the error of a chosen program may exceed that of the program as written.

Each step of a derivation keeps the law of its rule (`judge.judge_accuracy`), and the errors of steps that follow each
other multiply. So the two ends are compared as well. The program as written may owe its error to luck, so its
roundings are drawn at random (Monte Carlo arithmetic; Parker, 1997): half-ulp changes of the inputs and of what each of
its operators computes. A point says nothing where these change the result by more than their first order, as those of
a matrix without an inverse do: no digit is right there.
It does say something where the right side alone is no number: a user may need any solution that fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import postorder, tuple_
from relax_eg.memo import Memo
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.checking.judge import (
    ACCURACY_FACTOR,
    PERTURBATIONS,
    Absent,
    Array,
    Case,
    Failure,
    PreparedSides,
    evaluate_sides,
    half_ulp_of,
    judge_accuracy,
    perturbed,
    prepare_sides,
    roundings_of,
    widen_sides,
    widened_case,
)
from relax_eg.rules.checking.points import InstanceKey, PointPlan, instance_key, small_cases_of
from relax_eg.rules.checking.samples import Sizes, draw_under_guards
from relax_eg.rules.rule import Instance

FACTOR = ACCURACY_FACTOR  # chosen: what is accepted of each step is accepted of all together
_POINTS = 9  # limit: points at which a program is compared with the one as written, three of each draw
_FEWEST = 3  # limit: points of a large program, one of each draw
_EVALUATIONS = 2_000  # limit: operators that are evaluated at all points, unless these are `_FEWEST`
# chosen: share of an error in float32 that may be left in float64. Rounding leaves 2e-9 of it; a difference that is
# left is none of rounding, as where a constant belongs to the sizes as they were.
_LEFT = 1e-3
_BENT = 0.5  # chosen: share of a change by which that under the opposite perturbation may differ
_ROUNDING = 1e-12  # chosen: rounding of float64, relative to the largest element of a result
_FEW_ELEMENTS = 1 << 13  # limit: elements of all values of a program that is compared at its own fixed sizes
_MOST_KEPT = 1 << 10  # limit: instances of which the verdict is kept
_kept = Memo[InstanceKey, frozenset[int]](_MOST_KEPT)
_roundings_of = lru_cache(1)(roundings_of)  # asked at each point of an instance


def inaccurate_results(instance: Instance) -> frozenset[int]:
    """The numbers of the results whose right side has lost accuracy at some point: its error exceeds `FACTOR` times the
    largest of the left side's error in any element, half an ulp of the element, and the change of the exact element
    under half-ulp perturbations of the inputs and of all values of the left side. A result that is not finite has lost
    all its digits. Sides that cannot be formed or drawn for lose none."""
    key = instance_key(instance)
    if key not in _kept:
        # Numbers may belong to the sizes, as the divisor of a mean does, so only many elements are made fewer.
        small = instance if _elements(instance) <= _FEW_ELEMENTS else draws.with_small_sizes(instance)
        results = _results(small)
        if small is not instance and 2 * sum(r.is_same for r in results) < len(results):
            results = _results(instance)
        _kept[key] = frozenset().union(*(r.lost for r in results))
    return _kept[key]


def _elements(instance: Instance) -> float:
    """The elements of all values together; unknown sizes, which are drawn small, count as 1."""
    shapes = (e.annotation.shape or () for e in postorder(instance.left) if isinstance(e.annotation, Tensor))
    return sum(math.prod(d.value if d.is_const else 1 for d in s) for s in shapes)


@dataclass(frozen=True)
class _Results:
    """What a point shows.

    - `lost`: the numbers of the results that have lost accuracy.
    - `is_same`: whether both sides are the same over the reals.
    """

    lost: frozenset[int]
    is_same: bool


def _results(instance: Instance) -> list[_Results]:
    count = max(_FEWEST, min(_POINTS, _EVALUATIONS // len(postorder((*instance.left, *instance.right)))))
    plan = PointPlan(judge_accuracy, draw_under_guards(_draw), [instance], count, least=1)
    found: list[_Results] = []
    try:
        for case in small_cases_of(plan, np.random.default_rng(0)):
            found += _results_at(case)
    except RelaxEgError:  # no sizes are admitted, or a value cannot be evaluated
        return found
    return found


def _draw(instance: Instance, sizes: Sizes, rng: draws.Random, index: int) -> dict[str, Array]:
    each = draws.draw_level_floats, draws.draw_cancelling_floats, draws.moderate
    with np.errstate(over="ignore"):  # a number beyond the range of a small float becomes infinity
        return each[index % len(each)](instance, sizes, rng, index // len(each))


def _results_at(case: Case) -> list[_Results]:
    """What a point shows; nothing if the left side does not exist there, or the right side cannot be formed."""
    p, wide = prepare_sides(case.instance), widen_sides(case.instance)
    n = len(p.left)
    try:
        narrow = evaluate_sides(p, p.both_sides_tuple, case)
        if isinstance(narrow, Failure):
            return []
        floats = [i for i in range(n) if wide.left[i].dtype == "float64"]
        pairs = {i: (np.asarray(narrow[i]), np.asarray(narrow[n + i])) for i in floats}
        pairs = {i: (a, b) for i, (a, b) in pairs.items() if a.size and not np.array_equal(a, b, equal_nan=True)}
        roots = tuple_([side[i] for i in pairs for side in (wide.left, wide.right)])
        exact = evaluate_sides(wide, roots, widened_case(case)) if pairs else ()
    except Absent:
        return []
    if isinstance(exact, Failure):
        return []
    found, is_same = dict[int, _Error](), True
    for (i, (left, right)), truth, other in zip(pairs.items(), exact[::2], exact[1::2], strict=True):
        a, b = left.astype(np.float64), right.astype(np.float64)
        judged = np.isfinite(a) & np.isfinite(truth) & np.isfinite(other)
        with np.errstate(invalid="ignore", over="ignore"):
            own, most = (np.where(judged, x, 0.0).max() for x in (np.abs(a - truth), np.abs(truth)))
            error = np.where(np.isfinite(b), np.abs(b - truth), most or 1.0)
            same = np.abs(other - truth) <= _LEFT * error
            allowed = np.where(judged & same, np.maximum(own, half_ulp_of(left, truth)), np.inf)
        is_same = is_same and bool(np.all(same[judged & (error > half_ulp_of(left, truth))]))
        found[i] = _Error(truth, np.where(np.isfinite(b), error, np.inf), allowed)
    return [_Results(_lost(wide, case, found), is_same)]


@dataclass(frozen=True)
class _Error:
    """The error of each element of a right side, infinite where it is no number, beside what is allowed without
    perturbations and the exact value."""

    truth: Array
    size: Array
    allowed: Array

    @property
    def is_too_large(self) -> bool:
        return bool(np.any(self.size > FACTOR * self.allowed))


def _lost(wide: PreparedSides, case: Case, errors: Mapping[int, _Error]) -> frozenset[int]:
    """The results whose error exceeds what the law allows. All that need perturbations are evaluated at once: results
    read each other's operands, and one after the other takes time quadratic in the size of a program."""
    left = {i: e for i, e in errors.items() if e.is_too_large}
    for count in (PERTURBATIONS, 8 * PERTURBATIONS):
        if not left:
            break
        values = perturbed([wide.left[i] for i in left], wide, case, count, _roundings_of(case.instance))
        for (i, e), value in zip(list(left.items()), values, strict=True):
            with np.errstate(invalid="ignore"):
                changes = value - e.truth
                most, bent = np.abs(changes).max(0), np.abs(changes[:count] + changes[count:]).max(0)
                first_order = bent <= _BENT * most + _ROUNDING * np.abs(e.truth).max()
            says = np.isfinite(most) & (first_order | np.isinf(e.size))
            left[i] = replace(e, allowed=np.where(says, np.maximum(e.allowed, most), np.inf))
        left = {i: e for i, e in left.items() if e.is_too_large}
    return frozenset(left)
