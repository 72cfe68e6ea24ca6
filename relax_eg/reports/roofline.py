"""Where a program or a kernel stands between a device's arithmetic and its memory: the roofline model (Williams,
Waterman, Patterson 2009)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from relax_eg.extract.detail import Part
from relax_eg.extract.report import DeviceRow, ProgramCost

SOURCES = ("memory", "cache", "registers")
_EXACT = 1 + 1e-6  # times: sums of predictions are rounded


@dataclass(frozen=True)
class Roofline:
    """`intensity`: flops for each byte counted; `reached`: flop/s as predicted; `peak`: what the device's arithmetic
    allows at most for the dtypes at hand, of which `dtype` does most flops; `moving`: seconds that the bytes take at
    least from where they come, most of that time from `source`; `roof`: the flop/s that all this allows; `ridge`: the
    intensity from which on arithmetic limits what streams from memory; `least`: seconds below which the device cannot
    do these flops and bytes.

    Bytes are those that kernels read and write, also where a value is still in cache, or never leaves the registers of
    a fused kernel. In the time predicted for a kernel memory delivers `bandwidth * seconds` bytes and no more. Where
    more are counted they count as read from cache; where the cache could not deliver them either, as values in
    registers, which take no time.
    """

    flops: int
    bytes: int
    seconds: float
    dtype: str
    peak: float
    bandwidth: float
    source: str
    moving: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def streaming(self) -> float:
        """Seconds that all bytes take if memory delivers them."""
        return self.bytes / self.bandwidth

    @property
    def reached(self) -> float:
        return self.flops / self.seconds if self.seconds > 0 else 0.0

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth

    @property
    def roof(self) -> float:
        return self.flops / self.least if self.least > 0 else self.peak

    @property
    def least(self) -> float:
        return max(self.flops / self.peak, self.moving)

    @property
    def bound(self) -> str:
        """What limits it: "memory", "cache" or "arithmetic"."""
        return "arithmetic" if self.flops / self.peak >= self.moving else self.source

    @property
    def share(self) -> float:
        """The share of the roof that is reached. Above 1 only where fewer flops are done than are counted, as of a
        convolution of an image with zeros in between, or a library is faster than its operators' peak."""
        return self.least / self.seconds if self.seconds > 0 else 0.0


def dtype_of(part: Part) -> str:
    """The dtype in which a part computes, "" where it is no array."""
    found = re.search(r'"((?:bfloat|float|complex|u?int)\d+|bool)"', part.result)
    return part.dtype or (found[1] if found else "")


def roofline(cost: ProgramCost, device: DeviceRow) -> Roofline:
    """A program on a device: what its kernels need one after the other. Each dtype's flops are done at its own peak."""
    kernels = [p for p in cost.parts if not p.ahead]
    flops: dict[str, int] = {}
    moving = {source: 0.0 for source in SOURCES}
    for p in kernels:
        flops[dtype_of(p)] = flops.get(dtype_of(p), 0) + p.flops
        source = _source(p.bytes, p.seconds, device)
        moving[source] += p.bytes / _speed(source, device)
    dtype = max(flops, key=lambda d: (flops[d], d), default="") or "float32"
    needed = sum(n / device.rate(d) for d, n in flops.items())
    peak = sum(flops.values()) / needed if needed > 0 else device.rate(dtype)
    source = max(SOURCES, key=lambda s: moving[s])
    if not kernels:  # a report of an early release
        source = _source(cost.bytes, cost.seconds, device)
        moving[source] = cost.bytes / _speed(source, device)
    total = sum(moving.values())
    return Roofline(cost.flops, cost.bytes, cost.seconds, dtype, peak, device.bandwidth, source, total)


def of_part(part: Part, device: DeviceRow) -> Roofline:
    """One kernel on a device."""
    dtype, source = dtype_of(part) or "float32", _source(part.bytes, part.seconds, device)
    of_device = device.rate(dtype), device.bandwidth, source, part.bytes / _speed(source, device)
    return Roofline(part.flops, part.bytes, part.seconds, dtype, *of_device)


def _source(moved: int, seconds: float, device: DeviceRow) -> str:
    """The farthest place from which so many bytes can have come in the time."""
    return next(s for s in SOURCES if moved <= _speed(s, device) * seconds * _EXACT or s == SOURCES[-1])


def _speed(source: str, device: DeviceRow) -> float:
    return {"memory": device.bandwidth, "cache": device.cache_bandwidth}.get(source, math.inf)
