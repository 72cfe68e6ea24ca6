"""The seconds that extraction may take, shared by its stages.

Prices, integer programs and swap searches run for every block of a module, again for every price of prepared or held
bytes, and again for every program that is looked at. Each stage has limits of its own; what bounds them together is
one clock. Seconds are of computing in the calling thread, as in `Budget.seconds`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relax_eg.extract.solve import Effort, Solved


@dataclass
class Clock:
    """Runs while a stage of extraction does, up to `seconds`.

    `ran_out`: a stage did less than it would have, so another run may choose another program.
    """

    seconds: float = math.inf
    ran_out: bool = False
    _spent: float = 0.0
    _since: float | None = None

    @contextmanager
    def running(self) -> Generator[None]:
        """Count the seconds of this block; one inside another counts once."""
        outer = self._since is not None
        if not outer:
            self._since = time.thread_time()
        try:
            yield
        finally:
            if not outer and self._since is not None:
                self._spent += time.thread_time() - self._since
                self._since = None

    @property
    def spent(self) -> float:
        """Seconds that were counted so far."""
        return self._spent + (0.0 if self._since is None else time.thread_time() - self._since)

    @property
    def left(self) -> float:
        """Seconds that are left, 0.0 where none are."""
        return max(0.0, self.seconds - self.spent)

    def is_over(self) -> bool:
        """Whether no seconds are left; who asks leaves work undone then, so that is noted."""
        if self.left > 0.0:
            return False
        self.ran_out = True
        return True

    def solved(self, search: Callable[[Effort], Solved], effort: Effort) -> Solved:
        """What a search finds with this effort, which ends when the clock does."""
        found = search(replace(effort, seconds=min(effort.seconds, self.left)))
        self.ran_out |= found.timed_out
        return found
