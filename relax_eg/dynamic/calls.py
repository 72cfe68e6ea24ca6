"""What is remembered of the calls with certain sizes, and the statistics that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from relax_eg.backend.calls.executables import Executable, Executables
from relax_eg.backend.calls.statistics import ExecutableRow, SizeRow, Statistics, Tally
from relax_eg.dynamic.fitting import CapacityFit
from relax_eg.dynamic.policy import Policy

UNCHANGED = CapacityFit((), ())


@dataclass(eq=False)
class SizedCall:
    """The calls with certain sizes.

    - `sizes`: the true sizes.
    - `capacities`: the sizes at which they run; `sizes` where they run exactly.
    - `mode`: "exact" permanently; "capacity"; "trial", with an exact executable that has not yet shown to be faster;
      "hot", with one that is faster; "settled" at capacity, because the exact one was not faster.
    - `variant`: the index of the variant that serves them.
    - `fit`: what is padded and cut at `capacities`.
    - `scalars`: the true sizes in the form that an executable at capacity takes.
    - `counted`: number of calls, without those of `call_known`.
    - `tallies`: counters of the executables that calls of `call_known` went to.
    - `missed`: calls at capacity since the last exact executable was given up.
    - `refused`: calls of `call_known` that the executable could not take; at `MOST_REFUSED` they no longer try it.
    - `share`: predicted share of padding in the time of the program at capacity.
    - `wider`: by capacities, the fit to the executables of larger capacities.
    """

    sizes: dict[str, int]
    capacities: dict[str, int]
    mode: Literal["exact", "capacity", "trial", "hot", "settled"]
    variant: int
    fit: CapacityFit = UNCHANGED
    scalars: dict[str, Any] = field(default_factory=dict[str, Any])
    counted: int = 0
    tallies: list[Tally] = field(default_factory=list[Tally])
    missed: int = 0
    refused: int = 0
    share: float | None = None
    wider: dict[tuple[int, ...], CapacityFit | None] = field(default_factory=dict[tuple[int, ...], CapacityFit | None])

    @property
    def is_exact(self) -> bool:
        """Whether they run at exact sizes, or will once that executable is compiled."""
        return self.mode in ("exact", "trial", "hot")

    @property
    def count(self) -> int:
        return self.counted + sum(t.total for t in self.tallies)

    @property
    def row(self) -> SizeRow:
        """The row of these calls in statistics."""
        used = math.prod(self.sizes.values()) / max(math.prod(self.capacities.values()), 1)
        return SizeRow(self.sizes, self.count, self.capacities, self.is_exact, 0.0 if self.is_exact else 1 - used)


class KnownCall(NamedTuple):
    """An executable that serves calls without padding or cutting.

    - `body`: the index of the body whose weights it takes.
    - `scalars`: the true sizes, if it takes them.
    - `run`: the function of the executable.
    - `tick`: counts a call.
    - `executable`: the executable.
    - `call`: the calls that it serves.
    """

    body: int
    scalars: dict[str, Any]
    run: Any
    tick: Callable[[], int]
    executable: Executable
    call: SizedCall


def statistics_of(
    name: str, policy: Policy, executables: Executables, calls: Iterable[SizedCall], exact: Mapping[str, str]
) -> Statistics:
    """The statistics of function `name`. `exact`: what cannot run at capacity, with the reason."""
    kept = tuple(
        ExecutableRow(
            e.buffer_sizes, "exact" if e.exact else "capacity", e.why, e.calls, e.compile_seconds, e.seconds, e.memory
        )
        for _, e in executables.items()
    )
    ladders = {v: str(ladder) for v, ladder in policy.ladders.items()}
    counts = executables.compilations, executables.compile_seconds, executables.evicted
    return Statistics(name, policy.mode, ladders, kept, tuple(call.row for call in calls), *counts, exact)
