"""The programs that one function was optimized to, and which serves a call: the one chosen for the nearest sizes.

A variant is a program with the options XLA compiles it with. Where there is more than one, a call goes to the variant
that was chosen at the binding nearest to its own sizes: by the product over the sizes of how many times they differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from relax_eg.backend.program import Program
from relax_eg.ir.module import Module
from relax_eg.reports import CostReport

EVERYWHERE = "all sizes"


@dataclass(frozen=True)
class Variant:
    """One program of the family: the sizes it serves, its module and report, and the options XLA compiles it with.

    `made`: gives the module; `chosen`: the same, None where the function runs as written; `at`: the bindings it was
    chosen at."""

    guard: str
    made: Callable[[], Module] = field(repr=False)
    report: CostReport
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    chosen: Module | None = field(default=None, repr=False)
    at: tuple[Mapping[str, int], ...] = ()

    @property
    def module(self) -> Module:
        return self.made()


class Family:
    """The variants of a function, and a `Program` for each."""

    def __init__(self, program: Program, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        self.programs = tuple(replace(program, module=v.chosen) for v in variants)
        self._places = [(i, b) for i, v in enumerate(variants) for b in v.at]
        self._by_shapes: dict[tuple[Any, ...], int] = {}

    @property
    def kept(self) -> bool:
        """Whether the function runs as it was written at all sizes."""
        return all(p.kept for p in self.programs)

    def at(self, sizes: Mapping[str, Any]) -> int:
        """Which variant serves these sizes; symbolic ones the first."""
        if len(self.variants) == 1 or not all(isinstance(n, int) for n in sizes.values()):
            return 0
        return nearest(self._places, sizes)

    def at_shapes(self, shapes: Sequence[Any]) -> int:
        """Which variant serves arrays of these shapes, one for each parameter. ShapeError, BoundsError."""
        if len(self.variants) == 1:
            return 0
        key = tuple(shapes)
        found = self._by_shapes.get(key)
        if found is None:
            found = self._by_shapes[key] = self.at(self.programs[0].sizes(shapes))
        return found

    def at_leaves(self, leaves: Sequence[Any]) -> int:
        """Which variant serves these arrays, one for each parameter."""
        return 0 if len(self.variants) == 1 else self.at_shapes([jax.numpy.shape(x) for x in leaves])

    def compiled(self, function: Callable[[int], Callable[..., Any]]) -> Callable[[int], Any] | None:
        """For each variant its function under `jax.jit` with the options of that variant; None where none has any, so
        that one `jax.jit` does for all."""
        if not any(v.compiler_options for v in self.variants):
            return None

        @functools.cache
        def jitted(index: int) -> Any:
            options = dict(self.variants[index].compiler_options)
            return jax.jit(function(index), compiler_options=options or None)

        return jitted


def nearest(places: Sequence[tuple[int, Mapping[str, int]]], sizes: Mapping[str, int]) -> int:
    """Of (index, binding) pairs the index with the binding nearest to `sizes`; of equally near ones the smaller."""

    def distance(binding: Mapping[str, int]) -> float:
        pairs = [(max(n, 1), max(sizes.get(v, n), 1)) for v, n in binding.items()]
        return math.prod(max(a, b) / min(a, b) for a, b in pairs)

    return min(places, key=lambda place: (distance(place[1]), *place[1].values()))[0]


def guards(groups: Sequence[Sequence[Mapping[str, int]]]) -> list[str]:
    """In words the sizes that each group of bindings is nearest to: intervals where one size tells them apart."""
    if len(groups) == 1:
        return [EVERYWHERE]
    bindings = [b for group in groups for b in group]
    varying = [v for v in bindings[0] if len({b[v] for b in bindings}) > 1]
    if len(varying) != 1:
        return ["nearest to " + " or ".join(", ".join(f"{v}={b[v]}" for v in varying) for b in g) for g in groups]
    (v,) = varying
    places = [(i, b) for i, group in enumerate(groups) for b in group]
    ends = sorted({b[v] for b in bindings})
    found: list[list[str]] = [[] for _ in groups]
    low, owner = 1, nearest(places, {v: ends[0]})
    for here, after in zip(ends, ends[1:], strict=False):
        if nearest(places, {v: after}) != owner:
            last = next(n for n in range(after - 1, here - 1, -1) if nearest(places, {v: n}) == owner)
            found[owner].append(f"{low} <= {v} <= {last}" if low > 1 else f"{v} <= {last}")
            low, owner = last + 1, nearest(places, {v: after})
    found[owner].append(f"{v} >= {low}")
    return [" or ".join(f) for f in found]
