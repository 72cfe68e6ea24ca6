"""The bytes that a program holds while it runs, kernel by kernel: the part of a plan that reports show, without
packing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from relax_eg.ir import Expr, Module
from relax_eg.memory.liveness import Lifetime, Liveness, liveness
from relax_eg.memory.planner import counted
from relax_eg.memory.schedule import least_peak
from relax_eg.memory.steps import MemoryProgram, Stored, program_of
from relax_eg.memory.temporaries import estimated


@dataclass(frozen=True)
class Timeline:
    """The kernels of a module's entry in the order in which they run, and the bytes `needed` during each: intermediate
    values, workspaces, and results. `at`: the sizes."""

    program: MemoryProgram
    live: Liveness
    needed: tuple[int, ...]
    at: Mapping[str, int]

    @property
    def peak_step(self) -> int:
        """The step at which most is needed, the first of several; 0 if there is none."""
        return max(range(len(self.needed)), key=lambda i: (self.needed[i], -i), default=0)

    @property
    def peak(self) -> tuple[tuple[Lifetime, int], ...]:
        """What is alive at the peak, with its bytes, largest first."""
        found = [(x, int(x.bytes.evaluate(self.at))) for x in self.live.needed_at(self.peak_step)]
        return tuple(sorted(found, key=lambda pair: -pair[1]))


def timeline(
    module: Module,
    at: Mapping[str, int],
    *,
    stored: Stored | None = None,
    ahead: Collection[Expr] = (),
    reorder: bool = True,
) -> Timeline:
    """What is alive at each step, at the sizes `at`. `stored`, `ahead`: see `program_of`. `reorder`: whether the
    kernels run in an order of least peak with their estimated temporaries, as in a plan, or in the order of the text.
    Near linear in what it runs."""
    program = program_of(module, stored=stored, ahead=ahead)
    if reorder:
        program = estimated(program, at).of(program)
        program = program.reordered(least_peak(program, counted(program, at)).steps)
    live = liveness(program, "planned", at.keys())
    return Timeline(program, live, tuple(live.at(at)), dict(at))
