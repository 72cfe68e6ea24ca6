"""Families: the programs that one function was optimized to, and the choice of the one that serves a call.

A variant is a program with its execution, compiler options and a guard. It serves the calls at whose sizes its guard
holds. At all sizes that a call may have, exactly one guard holds (`shapes.guards`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relax_eg.backend.calls.program import Program
from relax_eg.ir.module import Module
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.reports import CostReport
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import EVERYWHERE, Guard

WHOLE, KERNELS = EXECUTIONS
STEPS = "steps"


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """What one search for a program optimizes, and with which restrictions.

    - `without`: a rule that it must not use; "" for none.
    - `held`: the price of a byte in memory; None: that of the options.
    - `mode`: the name of the compilation mode that is priced; "" for the usual one.
    - `execution`: the execution that is priced, "whole" or "kernels".
    - `own_kernels`: whether one XLA program may contain kernels through Pallas.
    - `as_written`: whether these contain the operators of the program as written only.
    """

    without: str = ""
    held: float | None = None
    mode: str = ""
    execution: str = WHOLE
    own_kernels: bool = False
    as_written: bool = False

    @property
    def has_kernels(self) -> bool:
        """Whether kernels are chosen in it."""
        return self.execution == KERNELS or self.own_kernels

    @property
    def label(self) -> str:
        """The search in a report."""
        what = "as written" if self.as_written else "by price"
        what = what if self.held is None else f"with a byte in memory at {self.held!r}"
        if self.without:
            what = f"without {self.without}"
        if self.execution == KERNELS:
            what = f"{what} in kernels"
        elif self.own_kernels:
            what = f"{what} with kernels through Pallas"
        return f"{what} for {self.mode}" if self.mode else what


@dataclass(frozen=True, slots=True)
class Variant:
    """One program of a family: all that is kept of it, in the disk cache and in artifacts (`packed_variants`).

    - `chosen`: the module; None where the function runs as written.
    - `written`: returns the module as written.
    - `report`: its predicted cost, and why it was chosen.
    - `execution`: how it is executed: "whole", "kernels" or "steps".
    - `compiler_options`: the options with which XLA compiles it.
    - `at`: the requested bindings of sizes that it serves.
    - `guard`: the sizes that it serves, as `shapes.guards.Guard` prints.
    - `fallback`: whether it also serves sizes that are symbolic while JAX traces.
    - `spec`: the search that found it; for the program as written, the one that it was compared with.
    """

    chosen: Module | None = field(repr=False)
    written: Callable[[], Module] = field(repr=False, compare=False)
    report: CostReport
    execution: str = WHOLE
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    at: tuple[Mapping[str, int], ...] = ()
    guard: str = EVERYWHERE
    fallback: bool = False
    spec: SearchSpec = field(default_factory=SearchSpec)

    @property
    def module(self) -> Module:
        return self.written() if self.chosen is None else self.chosen


@dataclass(frozen=True)
class Solution:
    """What was chosen for a function: all that a saved file keeps of it (`artifact`).

    - `program`: the function; its module is that of the first variant.
    - `variants`: the programs of the family.
    - `weights`: names of the arguments that are declared as weights.
    - `tolerance`: for the difference from the results of the function as written; 0 if results must be bit-exact.
    - `pallas`: whether kernels may be lowered through Pallas.
    """

    program: Program
    variants: tuple[Variant, ...]
    weights: tuple[str, ...]
    tolerance: float
    pallas: bool = False

    @property
    def execution(self) -> str:
        """How calls are executed: "whole" or "steps"; "kernels" if any variant is executed so."""
        each = [v.execution for v in self.variants]
        return KERNELS if KERNELS in each else each[0]


class Family:
    """The variants of a function, with a `Program` for each."""

    def __init__(self, program: Program, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)
        self.programs = tuple(replace(program, module=v.chosen) for v in variants)
        self.fallback = next((i for i, v in enumerate(variants) if v.fallback), 0)
        self._dispatch = Dispatch([Guard.read(v.guard) for v in variants], self.fallback)

    def variant_at(self, sizes: Mapping[str, Any]) -> int:
        """The index of the variant that serves these sizes; of the fallback if one is symbolic."""
        if len(self.variants) == 1:
            return 0
        if not all(isinstance(n, int) for n in sizes.values()):
            return self.fallback
        return self._dispatch.index_of(sizes)
