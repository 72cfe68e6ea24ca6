"""The programs that one function was optimized to, and which serves a call: the one whose guard holds at its sizes.

A variant is a program with the options XLA compiles it with. Where there is more than one, each has a guard; of the
guards exactly one holds at all sizes that a call may have (`shapes.guards`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from relax_eg.backend.program import Program
from relax_eg.ir.module import Module
from relax_eg.reports import CostReport
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import Guard


@dataclass(frozen=True)
class Variant:
    """One program of the family: the sizes it serves, its module and report, and the options XLA compiles it with.

    `guard` reads as `shapes.guards.Guard` prints. `made`: gives the module; `chosen`: the same, None where the function
    runs as written; `at`: those of the bindings asked for that it serves; `fallback`: whether it also serves sizes that
    JAX does not know while it traces."""

    guard: str
    made: Callable[[], Module] = field(repr=False)
    report: CostReport
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    chosen: Module | None = field(default=None, repr=False)
    at: tuple[Mapping[str, int], ...] = ()
    fallback: bool = False

    @property
    def module(self) -> Module:
        return self.made()


class Family:
    """The variants of a function, and a `Program` for each."""

    def __init__(self, program: Program, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        self.programs = tuple(replace(program, module=v.chosen) for v in variants)
        self.fallback = next((i for i, v in enumerate(variants) if v.fallback), 0)
        self._dispatch = Dispatch([Guard.read(v.guard) for v in variants], self.fallback)
        self._by_shapes: dict[tuple[Any, ...], int] = {}

    @property
    def kept(self) -> bool:
        """Whether the function runs as it was written at all sizes."""
        return all(p.kept for p in self.programs)

    def at(self, sizes: Mapping[str, Any]) -> int:
        """Which variant serves these sizes; symbolic ones the fallback."""
        if len(self.variants) == 1:
            return 0
        if not all(isinstance(n, int) for n in sizes.values()):
            return self.fallback
        return self._dispatch.at(sizes)

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
