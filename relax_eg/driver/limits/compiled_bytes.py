"""The bytes that programs under a memory limit need, as compiled.

A search compiles many programs, few of which fit. So it compiles them roughly, in a quarter of the time, and those that
fit once more, as they run: in a loop, XLA's older emitters may need a value less. In kernels, storages and results are
known from the plan; where these exceed the limit, nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.backend.family import KERNELS
from relax_eg.backend.footprint import KernelFootprint, kernel_footprint, whole_footprint
from relax_eg.driver.clock.measured import CandidateProgram, Entry, Search
from relax_eg.driver.limits.bounds import largest_sizes
from relax_eg.extract.footprint import Footprint
from relax_eg.extract.profiles.profile import Mode
from relax_eg.ir.calls import without_calls
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module

_Kernel = tuple[str, Expr]  # by function and expression


@dataclass(frozen=True)
class TriedProgram:
    """A program, and what it needs when compiled in one mode.

    - `entry`: the program; None: as written.
    - `mode`: how XLA compiles it.
    - `held`: the price of a byte at which it was found.
    - `seconds`: mean over the bindings, as shares of the time of the program as written.
    - `footprint`: the bytes at the binding where it needs most. Predicted: it was not compiled, and in kernels needs no
      fewer.
    - `peak_values`: the values alive then, of a program in kernels.
    - `private_bytes`: what kernels need inside at the first binding, as far as they were compiled.
    - `is_exact`: whether the bytes are those of the executable that runs; others are about right.
    """

    entry: Entry | None
    mode: Mode
    held: float
    seconds: float
    footprint: Footprint
    peak_values: frozenset[_Kernel] = frozenset()
    private_bytes: Mapping[_Kernel, int] | None = None
    is_exact: bool = False


class CompiledBytes:
    """What programs of a search need at all of its bindings. Each program is compiled once, also by later searches.

    - `largest`: the largest sizes in bounds, at which bytes are determined as well; None: there are none.
    """

    def __init__(self, search: Search, everywhere: bool) -> None:
        self._search = search
        self.largest = largest_sizes(search.options) if everywhere else None

    def module_of(self, entry: Entry | None) -> Module:
        return self._search.traced.module if entry is None else entry.module

    def of(
        self, entry: Entry | None, mode: Mode, held: float, seconds: float,
        exactly: bool = False, most: float = math.inf,
    ) -> TriedProgram:  # fmt: skip
        """A program as compiled in a mode. `held`, `seconds`, `exactly`: as of what is returned. `most`: a program in
        kernels whose storages and results need more is not compiled."""
        search = self._search
        options, weights = search.options, set[str]() if entry is None else search.weights
        module, in_kernels = self.module_of(entry), options.execution == KERNELS
        same = module if in_kernels else without_calls(module)  # XLA inlines calls
        largest = [] if self.largest is None or self.largest in options.bindings else [self.largest]
        device = search.absent_gpu, options.profile.pallas, exactly
        each: list[Footprint | KernelFootprint] = []
        for sizes in (*options.bindings, *largest):
            key = same, frozenset(weights), mode.name, tuple(sizes.items()), exactly
            found = search.footprints.get(key)
            if found is None or (isinstance(found, KernelFootprint) and _is_open(found.footprint, most)):
                with search.compiling.running():
                    if in_kernels:
                        found = kernel_footprint(module, weights, sizes, mode.options, *device, most)
                    else:
                        found = whole_footprint(module, weights, sizes, mode.options, *device)
                search.footprints[key] = found
            each.append(found)
        first, worst = each[0], max(each, key=lambda f: _footprint(f).bytes)
        return TriedProgram(
            entry, mode, held, seconds, _footprint(worst),
            worst.peak_kernels if isinstance(worst, KernelFootprint) else frozenset(),
            first.private_bytes if isinstance(first, KernelFootprint) else None,
            exactly,
        )  # fmt: skip

    def predicted(self, entry: Entry | None, mode: Mode, held: float, seconds: float) -> TriedProgram:
        """A program with the bytes that it is predicted to need in one XLA program."""
        search = self._search
        at = max(search.options.bindings, key=lambda b: search.predicted_peak(entry, [b]))
        footprint = Footprint(at, 0, 0, search.predicted_peak(entry, [at]), is_predicted=True)
        return TriedProgram(entry, mode, held, seconds, footprint)

    def confirmed(self, tried: TriedProgram) -> TriedProgram:
        """A program with the bytes of the executable that runs."""
        if tried.is_exact:
            return tried
        return self.of(tried.entry, tried.mode, tried.held, tried.seconds, exactly=True)

    def label(self, tried: TriedProgram) -> str:
        return CandidateProgram(tried.entry, tried.mode).label


def _footprint(found: Footprint | KernelFootprint) -> Footprint:
    return found.footprint if isinstance(found, KernelFootprint) else found


def _is_open(found: Footprint, most: float) -> bool:
    """Whether kernels have to be compiled to know if a program is within `most` bytes."""
    return found.is_predicted and found.bytes <= most
