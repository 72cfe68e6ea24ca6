"""What it costs to have a value, beside the seconds of computing it: what runs ahead of the calls is nearly free, and
bytes may have a price, those that are prepared and those that a call needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Prepared work is nearly free, not free: of two ways to prepare, the shorter is taken, and of two equal programs
# the one that prepares nothing.
ONCE = 1e-4


@dataclass(frozen=True, slots=True)
class Pricing:
    """`static`: for each class, whether it follows from what is known ahead of the calls alone (empty: none does);
    `once`: the share of its seconds that such work costs; `prepared`: the price of a byte of it; `held`: the price of a
    byte of any other value that a call has in memory, times `more` for single classes."""

    static: Sequence[bool] = ()
    once: float = ONCE
    prepared: float = 0.0
    held: float = 0.0
    more: Mapping[int, float] = field(default_factory=dict[int, float])

    def of(self, outputs: Sequence[int], reads: Sequence[int], seconds: float, sizes: Sequence[int]) -> float:
        """What it costs to compute the classes `outputs`, of so many bytes each, from `reads` in so many seconds."""
        if self.static and all(self.static[c] for c in outputs) and all(self.static[c] for c in reads):
            return self.once * seconds + self.prepared * sum(sizes)
        if not self.held:
            return seconds
        return seconds + self.held * sum(n * self.more.get(c, 1.0) for c, n in zip(outputs, sizes, strict=True))
