"""Where a program or a kernel stands between a device's arithmetic and its memory: the roofline model (Williams,
Waterman, Patterson 2009)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relax_eg.extract.detail import Part
from relax_eg.extract.report import DeviceRow, ProgramCost


@dataclass(frozen=True)
class Roofline:
    """`intensity`: flops for each byte moved; `reached`: flop/s as predicted; `peak`: what the device's arithmetic
    allows at most for `dtype`; `roof`: what it and its memory allow at this intensity; `ridge`: the intensity from
    which on arithmetic is the limit; `least`: seconds that no program of these flops and bytes can go below there."""

    flops: int
    bytes: int
    seconds: float
    dtype: str
    peak: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def reached(self) -> float:
        return self.flops / self.seconds if self.seconds > 0 else 0.0

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth

    @property
    def roof(self) -> float:
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def least(self) -> float:
        return max(self.flops / self.peak, self.bytes / self.bandwidth)

    @property
    def bound(self) -> str:
        """What limits it: "memory" or "arithmetic"."""
        return "memory" if self.intensity < self.ridge else "arithmetic"

    @property
    def share(self) -> float:
        """The share of the roof that is reached; above 1 where values come from cache or stay in registers."""
        return self.least / self.seconds if self.seconds > 0 else 0.0


def dtype_of(part: Part) -> str:
    """The dtype of what a part computes, "" where it is no array."""
    found = re.search(r'"((?:bfloat|float|complex|u?int)\d+|bool)"', part.result)
    return found[1] if found else ""


def roofline(cost: ProgramCost, device: DeviceRow) -> Roofline:
    """A program on a device; the peak is that of the dtype in which most flops are done."""
    flops: dict[str, int] = {}
    for p in cost.parts:
        if not p.ahead:
            flops[dtype_of(p)] = flops.get(dtype_of(p), 0) + p.flops
    dtype = max(flops, key=lambda d: (flops[d], d), default="") or "float32"
    return Roofline(cost.flops, cost.bytes, cost.seconds, dtype, device.rate(dtype), device.bandwidth)


def of_part(part: Part, device: DeviceRow) -> Roofline:
    """One kernel on a device."""
    dtype = dtype_of(part) or "float32"
    return Roofline(part.flops, part.bytes, part.seconds, dtype, device.rate(dtype), device.bandwidth)
