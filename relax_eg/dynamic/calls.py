"""What is remembered of the calls with certain sizes, and the statistics that follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relax_eg.backend.calls.executables import Executables
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
    - `counted`: number of calls, without known ones (`backend.calls.known`).
    - `tally`: counts the known ones.
    - `looked`, `since`: number of calls at the last `look`, and since the one before.
    - `missed`: calls at capacity since the last exact executable was given up.
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
    tally: Tally = field(default_factory=Tally)
    looked: int = 0
    since: int = 0
    missed: int = 0
    share: float | None = None
    wider: dict[tuple[int, ...], CapacityFit | None] = field(default_factory=dict[tuple[int, ...], CapacityFit | None])

    @property
    def is_exact(self) -> bool:
        """Whether they run at exact sizes, or will once that executable is compiled."""
        return self.mode in ("exact", "trial", "hot")

    @property
    def count(self) -> int:
        return self.counted + self.tally.total

    def look(self) -> None:
        """Counts a call that is not known, and those since the last one of these."""
        self.counted += 1
        before, self.looked = self.looked, self.count
        self.since = self.looked - before

    @property
    def row(self) -> SizeRow:
        """The row of these calls in statistics."""
        used = math.prod(self.sizes.values()) / max(math.prod(self.capacities.values()), 1)
        return SizeRow(self.sizes, self.count, self.capacities, self.is_exact, 0.0 if self.is_exact else 1 - used)


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
