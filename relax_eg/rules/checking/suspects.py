"""Suspects: points at which the sides of an instance seem to differ, found by evaluating both at many points at once.

The points are special values at small sizes (`enumeration`), and sizes around the whole numbers that occur in the rule,
one size variable at a time. A judge decides about every suspect (`check`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import is_complex, is_float
from relax_eg.errors import BoundsError, OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder
from relax_eg.limits import KEPT
from relax_eg.ops.interpret import evaluate_points
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.rules.checking.enumeration import Points, all_points, bits_differ, special_points
from relax_eg.rules.checking.judge import TOLERANCE, Case, PreparedSides, prepare_sides, wide_array, widen_sides
from relax_eg.rules.checking.literals import computes, grows_with_sizes, is_piecewise, literals
from relax_eg.rules.checking.samples import (
    Draw,
    Sizes,
    admits,
    admits_limited,
    draw_sizes,
    size_guard_holds,
    size_preconditions,
    size_variables,
    unmet_precondition,
)
from relax_eg.rules.rule import Instance
from relax_eg.tir.expr import Reduce, loop_names, walk

Array = np.ndarray[Any, Any]

_ELEMENTS_AT_ONCE = 1 << 19  # limit: elements of all values, at all points of one evaluation
_MOST_WORK = 1 << 21  # limit: elements of all values, at all points of one enumeration
# limit: elements of all values in one evaluation at a large size, and steps of a fold or scan there; each limit allows
# a few tenths of a second.
_LARGEST_WORK = 1 << 24
_MOST_STEPS = 1 << 15  # limit: steps of a fold
_MOST_SCANNED = 1 << 12  # limit: steps of a scan
_MOST_SUSPECTS = 4  # limit: suspects reported of one evaluation
_ONE_BY_ONE = 24  # limit: points judged one by one if they cannot be evaluated together
# limit: draws at each size near a constant; fewer if an evaluation there is large.
_DRAWS = 6


def special_suspects(instance: Instance, bits: bool) -> Iterator[Case]:
    """Suspects among the enumerated special values, at the sizes of `small_sizes`. `bits`: whether the sides must have
    the same bits; otherwise they must be equal over the reals."""
    if not special_values_matter(instance, bits):
        return
    p = prepare_sides(instance) if bits else widen_sides(instance)
    for sizes in small_sizes(instance):
        work = max(_work(p, sizes), 1)
        points = special_points(instance, sizes, bits, max(_MOST_WORK // work, 64))
        if points is not None:
            yield from _suspects(instance, p, sizes, points, bits, max(_ELEMENTS_AT_ONCE // work, 1))


def suspects_among_all(instance: Instance) -> tuple[int, Iterator[Case]]:
    """Enumerates all values of the variables, at the largest of `small_sizes` at which these are few enough. Returns
    the number of points, and the suspects, at which bits differ; (0, none) if the values are too many at all sizes."""
    for sizes in reversed(small_sizes(instance)):
        if (points := all_points(instance, sizes)) is not None:
            p = prepare_sides(instance)
            at_once = max(_ELEMENTS_AT_ONCE // max(_work(p, sizes), 1), 1)
            return points.count, _suspects(instance, p, sizes, points, True, at_once)
    return 0, iter(())


def special_values_matter(instance: Instance, bits: bool) -> bool:
    """Whether special values can distinguish the sides. They cannot if values are only moved, because movement keeps
    all bits. Over the reals, floats distinguish the sides only if a side is piecewise: other functions that agree near
    one point agree everywhere."""
    return computes(instance) and (bits or is_piecewise(instance) or not all(is_real(p.dtype) for p in instance.params))


def is_real(dtype: str) -> bool:
    return is_float(dtype) or is_complex(dtype)


def small_sizes(instance: Instance) -> list[dict[str, int]]:
    """The least sizes with elements: all 1, and all 2, if the instance admits them; otherwise the smallest drawn sizes
    that it admits."""
    names = size_variables(instance)
    found = [s for n in (1, 2) if admits(instance, s := dict.fromkeys(names, n))]
    if not names:
        return found[:1]
    if not found:  # conditions require larger or different sizes
        drawn = draw_sizes(instance, np.random.default_rng(0), 12, 1)
        found = sorted(drawn, key=lambda s: sum(s.values()))[:1]
    return found


def size_suspects(instance: Instance, bits: bool, draw: Draw) -> Iterator[Case]:
    """Suspects at sizes around the whole numbers in the rule, if its values depend on sizes."""
    p = prepare_sides(instance) if bits else widen_sides(instance)
    for sizes in sizes_near(instance)[0]:
        work = max(_work(p, sizes), 1)
        count = max(min(_DRAWS, _ELEMENTS_AT_ONCE // work), 2)
        rng = np.random.default_rng(count)
        drawn = [_patterned(draw(instance, sizes, rng, k), k) for k in range(count)]
        points = Points(count, {n: np.stack([d[n] for d in drawn]) for n in drawn[0]} if drawn[0] else {})
        yield from _suspects(instance, p, sizes, points, bits, max(_ELEMENTS_AT_ONCE // work, 1))


def _patterned(values: dict[str, Array], k: int) -> dict[str, Array]:
    """Values for draw number `k` at a large size: ones, so that counts are as large as possible; the drawn values in
    ascending or descending order, so that extremes are at an end; positions; the drawn values themselves."""
    pattern = k % _DRAWS
    if pattern >= 4:
        return values
    made: dict[str, Array] = {}
    for name, v in values.items():
        if pattern == 0:
            made[name] = np.ones_like(v)
            continue
        flat = v.reshape(-1).astype(np.float64) if v.dtype.kind == "V" else v.reshape(-1)
        order = np.argsort(flat, kind="stable")
        with np.errstate(over="ignore"):  # a position beyond the dtype's range
            positions = np.arange(v.size).astype(v.dtype)
        made[name] = (v.reshape(-1)[order], v.reshape(-1)[order[::-1]], positions)[pattern - 1].reshape(v.shape)
    return made


@lru_cache(KEPT)
def sizes_near(instance: Instance) -> tuple[list[dict[str, int]], tuple[tuple[str, int], ...]]:
    """Bindings of sizes in which one size just reaches or passes a number of the rule and the others are small; and the
    pairs (size variable, number) for which every such binding is too large to be evaluated."""
    numbers = literals(instance).extents
    names = size_variables(instance)
    if not numbers or not names or not grows_with_sizes(instance):
        return [], ()
    base = next(iter(small_sizes(instance)), None)
    if base is None:
        return [], ()
    p = prepare_sides(instance)
    found: list[dict[str, int]] = []
    beyond: list[tuple[str, int]] = []
    for number in numbers:
        for name in names:
            reached = False
            for n in (number - 1, number, number + 1, number + 2):
                sizes = {**base, name: n}
                if not all(size_guard_holds(g, sizes) for g in instance.guards) or unmet_precondition(
                    size_preconditions(instance.left), sizes
                ):
                    sizes = _uniform_sizes(instance, names, n)
                    if sizes is None:
                        reached = reached or not _guards_admit(instance, base, name, n)
                        continue
                if not (admits_limited(instance, sizes, _LARGEST_WORK >> 2) and _is_feasible(p, sizes)):
                    continue
                reached = True
                found.append(sizes)
            if not reached:
                beyond.append((name, number))
    return found, tuple(beyond)


def _guards_admit(instance: Instance, base: Sizes, name: str, n: int) -> bool:
    """Whether the size `name` may be `n` while the other sizes are those of `base`, by the conditions alone."""
    return all(size_guard_holds(g, {**base, name: n}) for g in instance.guards)


def _uniform_sizes(instance: Instance, names: Sequence[str], n: int) -> dict[str, int] | None:
    """A binding of all sizes to `n`, for instances that do not admit `n` together with the least sizes; None if `n` is
    too large or the instance does not admit this binding either."""
    sizes = dict.fromkeys(names, n)
    return sizes if n <= 256 and admits_limited(instance, sizes, _LARGEST_WORK) and admits(instance, sizes) else None


def _work(p: PreparedSides, sizes: Sizes) -> int:
    """Number of elements of all values, including those that reductions read."""
    total = 0
    for e in postorder((*p.left, *p.right)):
        elements = 1
        if isinstance(e.annotation, Tensor) and e.annotation.shape is not None:
            elements = math.prod(int(d.evaluate(sizes)) for d in e.shape)
        total += elements * max(1, *(steps for kind, steps in _steps(e, sizes) if kind != "scan"), 1)
    return total


def _is_feasible(p: PreparedSides, sizes: Sizes) -> bool:
    if _work(p, sizes) > _LARGEST_WORK:
        return False
    limits = {"fold": _MOST_STEPS, "scan": _MOST_SCANNED, "other": _LARGEST_WORK}
    return all(steps <= limits[kind] for e in postorder((*p.left, *p.right)) for kind, steps in _steps(e, sizes))


def _steps(e: Expr, sizes: Sizes) -> Iterator[tuple[str, int]]:
    """Kind and number of steps of each scan and reduction: "scan", "fold", or "other" for argmax and argmin."""
    if e.op not in TABLE:
        return
    program = program_of(site_of(e))
    for stage in program.stages if program is not None else ():
        if stage.scans:
            yield "scan", math.prod(int(stage.output.shape[s.axis].evaluate(sizes)) for s in stage.scans)
        for t in walk(stage.value):
            if isinstance(t, Reduce):
                extents = math.prod(int(d.evaluate(sizes)) for _, d in t.over if not loop_names(d))
                yield ("other" if t.kind.startswith("arg") else "fold"), extents


def _suspects(
    instance: Instance, p: PreparedSides, sizes: Sizes, points: Points, bits: bool, at_once: int
) -> Iterator[Case]:
    for start in range(0, points.count, at_once):
        kept = np.zeros(points.count, bool)
        kept[start : start + at_once] = True
        chunk = points if at_once >= points.count else points.where(kept)
        wide = chunk if bits else Points(chunk.count, {n: wide_array(v) for n, v in chunk.values.items()})
        try:
            chunk, wide = _points_in_range(p, sizes, chunk, wide)
            if not chunk.count:
                continue
            apart = _differing_points(p, sizes, wide, bits)
        except (BoundsError, OperatorError):
            # A point has no value, or a node is no operator: the judge decides up to `_ONE_BY_ONE` points one by one.
            step = -(-chunk.count // _ONE_BY_ONE)
            apart = np.arange(chunk.count) % step == 0
            yield from (Case(instance, sizes, chunk.at(int(i))) for i in np.flatnonzero(apart))
            continue
        yield from (Case(instance, sizes, chunk.at(int(i))) for i in np.flatnonzero(apart)[:_MOST_SUSPECTS])


def _env(p: PreparedSides, points: Points) -> dict[Expr, Array]:
    return {e: points.values[name] for name, e in p.params.items()}


def _points_in_range(p: PreparedSides, sizes: Sizes, chunk: Points, wide: Points) -> tuple[Points, Points]:
    """The points at which the promised positions are in range."""
    kept = np.ones(chunk.count, bool)
    for e, extent in p.position_promises:
        (indices,) = evaluate_points((e,), _env(p, wide), sizes, chunk.count)
        kept &= ((indices >= 0) & (indices < extent.evaluate(sizes))).reshape(chunk.count, -1).all(1)
    return (chunk, wide) if kept.all() else (chunk.where(kept), wide.where(kept))


def _differing_points(p: PreparedSides, sizes: Sizes, points: Points, bits: bool) -> Array:
    """A mask of the points at which the sides differ. Over the reals, points with a value that is not finite are left
    out."""
    n, count = len(p.left), points.count
    with np.errstate(all="ignore"):
        if bits:
            found = evaluate_points((*p.left, *p.right), _env(p, points), sizes, count, ordered=True)
            finite, scale = np.ones(count, bool), None
        else:
            found = evaluate_points(p.nodes, _env(p, points), sizes, count)
            floats = [np.abs(a).reshape(count, -1) for a in found if a.dtype.kind in "fc"]
            scale = np.max([a.max(1, initial=0.0) for a in floats], 0) if floats else np.zeros(count)
            finite = np.isfinite(scale)
    apart = np.zeros(count, bool)
    for a, b in zip(found[:n], found[n : 2 * n], strict=True):
        if a.shape != b.shape:
            return np.ones(count, bool)
        different = _differ(a, b, None if scale is None else scale.reshape(count, *(1,) * (a.ndim - 1)))
        apart |= different.reshape(count, -1).any(1)
    return apart & finite


def _differ(a: Array, b: Array, scale: Array | None) -> Array:
    if scale is None or a.dtype.kind not in "fc":
        return bits_differ(a, b)
    with np.errstate(all="ignore"):
        return np.abs(a - b) > TOLERANCE * scale
