"""Families: the programs that one function was optimized to, and the choice of the one that serves a call.

A variant is a program with compiler options and a guard. It serves the calls at whose sizes its guard holds. At all
sizes that a call may have, exactly one guard holds (`shapes.guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relax_eg.backend.program import Program
from relax_eg.ir.module import Module
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


@dataclass(frozen=True)
class Solution:
    """What was chosen for a function: all that a saved file keeps of it (`artifact`).

    - `program`: the function; its module is that of the first variant.
    - `variants`: the programs of the family.
    - `weights`: names of the arguments that are declared as weights.
    - `tolerance`: for the difference from the results of the function as written; 0 if results must be bit-exact.
    - `runs`: how it is executed: "whole", "steps" or "kernels".
    - `pallas`: the option `pallas` of "kernels".
    """

    program: Program
    variants: tuple[Variant, ...]
    weights: tuple[str, ...]
    tolerance: float
    runs: str = "whole"
    pallas: bool = False


class Family:
    """The variants of a function, with a `Program` for each."""

    def __init__(self, program: Program, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        self.programs = tuple(replace(program, module=v.chosen) for v in variants)
        self.fallback = next((i for i, v in enumerate(variants) if v.fallback), 0)
        self._dispatch = Dispatch([Guard.read(v.guard) for v in variants], self.fallback)

    def at(self, sizes: Mapping[str, Any]) -> int:
        """The index of the variant that serves these sizes; of the fallback if one is symbolic."""
        if len(self.variants) == 1:
            return 0
        if not all(isinstance(n, int) for n in sizes.values()):
            return self.fallback
        return self._dispatch.at(sizes)
