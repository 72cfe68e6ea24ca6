"""Families: the programs that one function was optimized to, and the choice of the one that serves a call.

A variant is a program with compiler options and a guard. It serves the calls at whose sizes its guard holds. At all
sizes that a call may have, exactly one guard holds (`shapes.guards`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from relax_eg.backend.call_keys import MOST_SHOWN
from relax_eg.backend.executables import Executables
from relax_eg.backend.program import Program
from relax_eg.ir.module import Module
from relax_eg.memo import Memo
from relax_eg.reports import CostReport
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import Guard


@dataclass(frozen=True)
class Variant:
    """One program of a family, with the sizes it serves.

    - `guard`: the sizes it serves, as `shapes.guards.Guard` prints.
    - `made`: returns the module.
    - `chosen`: the module; None where the function runs as written.
    - `at`: the requested bindings of sizes that it serves.
    - `fallback`: whether it also serves sizes that are symbolic while JAX traces.
    """

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
    """The variants of a function, with a `Program` for each."""

    def __init__(self, program: Program, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        self.programs = tuple(replace(program, module=v.chosen) for v in variants)
        self.fallback = next((i for i, v in enumerate(variants) if v.fallback), 0)
        self._dispatch = Dispatch([Guard.read(v.guard) for v in variants], self.fallback)
        self._by_shapes = Memo[tuple[Any, ...], int](MOST_SHOWN)

    @property
    def kept(self) -> bool:
        """Whether the function runs as written at all sizes."""
        return all(p.kept for p in self.programs)

    def at(self, sizes: Mapping[str, Any]) -> int:
        """The index of the variant that serves these sizes; of the fallback if one is symbolic."""
        if len(self.variants) == 1:
            return 0
        if not all(isinstance(n, int) for n in sizes.values()):
            return self.fallback
        return self._dispatch.at(sizes)

    def at_shapes(self, shapes: Sequence[Any]) -> int:
        """The index of the variant for arrays of these shapes, one per parameter.

        ShapeError or BoundsError for shapes that do not fit.
        """
        if len(self.variants) == 1:
            return 0
        key = tuple(shapes)
        found = self._by_shapes.get(key)
        if found is None:
            found = self._by_shapes[key] = self.at(self.programs[0].sizes(shapes))
        return found

    def at_leaves(self, leaves: Sequence[Any]) -> int:
        """The index of the variant for these arrays, one per parameter."""
        return 0 if len(self.variants) == 1 else self.at_shapes([jax.numpy.shape(x) for x in leaves])

    def compiled(
        self, executables: Executables, function: Callable[[int], Callable[..., Any]]
    ) -> Callable[[int], Any] | None:
        """A function from the index of a variant to `function(index)` under `jax.jit` with that variant's options.

        None where no variant has compiler options: one `jax.jit` then serves all variants.
        """
        if not any(v.compiler_options for v in self.variants):
            return None

        @functools.lru_cache(len(self.variants))
        def jitted(index: int) -> Any:
            options = dict(self.variants[index].compiler_options)
            return executables.jit(function(index), compiler_options=options or None)

        return jitted
