"""The price of a value: the seconds to compute it, and prices of bytes.

Work ahead of the calls is nearly free. Prepared bytes, and bytes that a call needs, may have a price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# chosen: share of its seconds that prepared work costs. It is not 0, so that of two ways to prepare a value the faster
# is chosen, and of two equally fast programs the one that prepares nothing.
ONCE = 1e-4

_STEEP = 4  # chosen: power of (private bytes of a kernel over the limit) with which their price grows

Members = frozenset[tuple[int, int]]  # the operators in a kernel: classes, and the candidate of each


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices of prepared work and of bytes.

    - `static`: for each class, whether it depends only on values known ahead of the calls; empty if no class does.
    - `once`: the share of its seconds that work ahead of the calls costs.
    - `prepared`: the price of a byte of a prepared value.
    - `held`: the price of a byte of any other value that a call has in memory.
    - `more`: the factor on `held` for single classes.
    - `limit`: the bytes that a call may have. Private bytes of a kernel are freed when the kernel ends, so only those
      of the largest kernel count. Far below the limit they cost next to nothing, above it more than stored bytes.
    - `inside`: the measured private bytes of kernels, by the kernel's operators.
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

    def price_of(
        self, outputs: Sequence[int], reads: Sequence[int], seconds: float, sizes: Sequence[int], inside: int = 0
    ) -> float:
        """The price of computing the classes `outputs` from the classes `reads`.

        - `seconds`: the seconds of the computation.
        - `sizes`: the bytes of each output.
        - `inside`: the private bytes of the kernel.
        """
        if self.is_ahead(outputs, reads):
            return self.once * seconds + self.prepared * sum(sizes)
        if not self.held:
            return seconds
        stored = sum(n * self.more.get(c, 1.0) for c, n in zip(outputs, sizes, strict=True))
        return seconds + self.held * (stored + inside * (inside / self.limit) ** _STEEP)


FREE = Pricing()  # bytes have no price
