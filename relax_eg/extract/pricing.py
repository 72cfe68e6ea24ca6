"""What it costs to have a value, beside the seconds of computing it: what runs ahead of the calls is nearly free, and
bytes may have a price, those that are prepared and those that a call needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Prepared work is nearly free, not free: of two ways to prepare, the shorter is taken, and of two equal programs
# the one that prepares nothing.
ONCE = 1e-4


_STEEP = 4

Members = frozenset[tuple[int, int]]  # the operators in a kernel: classes, and the candidate of each


@dataclass(frozen=True, slots=True)
class Pricing:
    """`static`: for each class, whether it follows from what is known ahead of the calls alone (empty: none does);
    `once`: the share of its seconds that such work costs; `prepared`: the price of a byte of it; `held`: the price of a
    byte of any other value that a call has in memory, times `more` for single classes; `limit`: how many bytes a call
    may have. What a kernel has for itself is gone when it ends, so that of two kernels the larger counts: far below the
    limit it costs next to nothing, beyond it more than what is stored; `inside`: so many bytes, where they were
    measured, by the kernel's operators."""

    static: Sequence[bool] = ()
    once: float = ONCE
    prepared: float = 0.0
    held: float = 0.0
    more: Mapping[int, float] = field(default_factory=dict[int, float])
    limit: int = 1
    inside: Mapping[Members, int] = field(default_factory=dict[Members, int])

    def of(
        self, outputs: Sequence[int], reads: Sequence[int], seconds: float, sizes: Sequence[int], inside: int = 0
    ) -> float:
        """What it costs to compute the classes `outputs`, of so many bytes each, from `reads` in so many seconds, with
        bytes `inside` that nobody else sees."""
        if self.static and all(self.static[c] for c in outputs) and all(self.static[c] for c in reads):
            return self.once * seconds + self.prepared * sum(sizes)
        if not self.held:
            return seconds
        stored = sum(n * self.more.get(c, 1.0) for c, n in zip(outputs, sizes, strict=True))
        return seconds + self.held * (stored + inside * (inside / self.limit) ** _STEEP)


FREE = Pricing()  # bytes have no price
