"""The seconds that extraction may take, shared by its stages.

Pricing, integer programs and swap searches run for every block of a module, for every price of prepared or held bytes,
and for every candidate program. Each stage has limits of its own; one clock bounds them together. Seconds are those of
computing in the calling thread, as in `Budget.seconds`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relax_eg.extract.selection.solve import Solved, SolverEffort


@dataclass
class Clock:
    """A time limit that runs while a stage of extraction runs.

    - `seconds`: the limit.
    - `ran_out`: whether a stage did less because of the limit, so that another run may choose another program.
    - `timer`: what is counted: seconds of computing in the calling thread, or in all threads of the process.
    """

    seconds: float = math.inf
    ran_out: bool = False
    timer: Callable[[], float] = time.thread_time
    _spent: float = 0.0
    _since: float | None = None

    @contextmanager
    def running(self) -> Generator[None]:
        """Counts the seconds of this block; nested blocks count once."""
        outer = self._since is not None
        if not outer:
            self._since = self.timer()
        try:
            yield
        finally:
            if not outer and self._since is not None:
                self._spent += self.timer() - self._since
                self._since = None

    @property
    def spent(self) -> float:
        """The seconds counted so far."""
        return self._spent + (0.0 if self._since is None else self.timer() - self._since)

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0.0."""
        return max(0.0, self.seconds - self.spent)

    def is_over(self) -> bool:
        """Whether no seconds are left. If so it also sets `ran_out`, because the caller then leaves work undone."""
        if self.left > 0.0:
            return False
        self.ran_out = True
        return True

    def run_search(self, search: Callable[[SolverEffort], Solved], effort: SolverEffort) -> Solved:
        """The result of a search with this effort, which ends when the clock does."""
        found = search(replace(effort, seconds=min(effort.seconds, self.left)))
        self.ran_out |= found.timed_out
        return found
