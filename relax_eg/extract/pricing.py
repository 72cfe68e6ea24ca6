"""Prices of having a value, beside the seconds of computing it.

Work ahead of the calls is nearly free. Prepared bytes, and bytes that a call needs, may have a price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# chosen: prepared work is nearly free, not free: of two ways to prepare the shorter is chosen, and of two equal
# programs the one that prepares nothing.
ONCE = 1e-4


_STEEP = 4  # chosen: power of (bytes inside over the limit), by which their price grows

Members = frozenset[tuple[int, int]]  # the operators in a kernel: classes, and the candidate of each


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices of prepared work and of bytes.

    - `static`: per class, whether it follows from values known ahead of the calls; empty: no class does.
    - `once`: share of its seconds that work ahead of the calls costs.
    - `prepared`: price of a byte of a prepared value.
    - `held`: price of a byte of any other value that a call has in memory.
    - `more`: factor on `held` for single classes.
    - `limit`: bytes that a call may have. Only the largest kernel's private bytes count, because they are freed when
      the kernel ends: far below the limit they cost next to nothing, above it more than stored bytes.
    - `inside`: measured private bytes of kernels, by the kernel's operators.
    """

    static: Sequence[bool] = ()
    once: float = ONCE
    prepared: float = 0.0
    held: float = 0.0
    more: Mapping[int, float] = field(default_factory=dict[int, float])
    limit: int = 1
    inside: Mapping[Members, int] = field(default_factory=dict[Members, int])

    def is_ahead(self, outputs: Sequence[int], reads: Sequence[int]) -> bool:
        """Whether the classes `outputs`, computed from the classes `reads`, are computed ahead of the calls."""
        return bool(self.static) and all(self.static[c] for c in (*outputs, *reads))

    def of(
        self, outputs: Sequence[int], reads: Sequence[int], seconds: float, sizes: Sequence[int], inside: int = 0
    ) -> float:
        """The price of computing the classes `outputs` from the classes `reads`.

        - `seconds`: seconds of the computation.
        - `sizes`: bytes of each output.
        - `inside`: bytes that only this kernel has in memory.
        """
        if self.is_ahead(outputs, reads):
            return self.once * seconds + self.prepared * sum(sizes)
        if not self.held:
            return seconds
        stored = sum(n * self.more.get(c, 1.0) for c, n in zip(outputs, sizes, strict=True))
        return seconds + self.held * (stored + inside * (inside / self.limit) ** _STEEP)


FREE = Pricing()  # bytes have no price
