"""Families over a mesh: a program with placements for each of several bindings of sizes.

Weights are on the devices once, so arguments whose sizes do not vary are placed alike for all bindings. Each binding is
searched alone first. Where the placements of such arguments differ then, those of each binding are tried for all
others, and those are taken with which the bindings are slowed down least on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from relax_eg.backend.family import Variant
from relax_eg.driver.cache import CachedResult
from relax_eg.driver.families import nearest_guards
from relax_eg.driver.options import Sizes
from relax_eg.errors import ExtractionError
from relax_eg.ir.placements import MeshPlacement
from relax_eg.logs import log_at

_FIRST = 0.5  # limit: share of the seconds for the searches in which each binding is alone

Given = Mapping[int, MeshPlacement]


def with_equal_placements(
    search: Callable[[Sizes, Given, float], CachedResult],
    bindings: Sequence[Sizes],
    given: Given,
    fixed: Sequence[int],
    seconds: float,
) -> list[CachedResult]:
    """The program for each binding, whose inputs `fixed` have the same placements in all of them. ExtractionError if
    there are none.

    - `search(at, inputs, seconds)`: the cheapest program at a binding where these inputs are given.
    - `given`: placements of inputs that are given.
    - `seconds`: of all searches.
    """
    if len(bindings) == 1:
        return [search(bindings[0], given, seconds)]
    alone = [search(b, given, seconds * _FIRST / len(bindings)) for b in bindings]
    placed = [{i: _placements(f)[i] for i in fixed} for f in alone]
    choices = [p for i, p in enumerate(placed) if p not in placed[:i]]
    if len(choices) == 1:
        return alone
    left = seconds * (1 - _FIRST) / (len(bindings) * (len(choices) - 1))
    best: list[CachedResult] | None = None
    least, failed = math.inf, None
    for choice in choices:
        try:
            found = [
                f if choice == p else search(b, {**given, **choice}, left)
                for f, p, b in zip(alone, placed, bindings, strict=True)
            ]
        except ExtractionError as e:
            failed = e
            continue
        slower = sum(_seconds(f) / _seconds(a) for f, a in zip(found, alone, strict=True)) / len(bindings)
        log_at(2, f"weights placed alike: {slower:.3f} times the seconds of placements of their own")
        if slower < least:
            best, least = found, slower
    if best is None:
        raise failed or AssertionError("no placements were tried")
    return best


def _placements(found: CachedResult) -> tuple[MeshPlacement, ...]:
    assert found.report.spread is not None
    return found.report.spread.input_placements


def _seconds(found: CachedResult) -> float:
    assert found.report.spread is not None
    return max(found.report.spread.total, 1e-12)  # given: a picosecond, where nothing is computed


def variants_of(found: Sequence[CachedResult], bindings: Sequence[Sizes]) -> tuple[Variant, ...]:
    """The programs for these bindings as variants, each of which serves the sizes nearest to its binding."""
    variants = [f.variants[0] for f in found]
    if len(variants) == 1:
        return tuple(variants)
    guards = nearest_guards([[b] for b in bindings])
    return tuple(
        replace(v, guard=str(g), at=(b,), fallback=i == 0)
        for i, (v, g, b) in enumerate(zip(variants, guards, bindings, strict=True))
    )
