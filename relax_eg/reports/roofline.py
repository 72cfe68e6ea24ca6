"""The roofline model (Williams, Waterman, Patterson 2009): whether a device's arithmetic or its memory limits a program
or a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relax_eg.extract.costs.detail import KernelPart
from relax_eg.extract.report import DeviceRow, ProgramCost

SOURCES = ("memory", "cache", "registers")
_EXACT = 1 + 1e-6  # chosen: tolerance factor, because sums of predictions are rounded


@dataclass(frozen=True)
class Roofline:
    """A program or a kernel in the roofline model of a device.

    - `flops`, `bytes`: flops, and bytes that its kernels read and write.
    - `seconds`: predicted seconds.
    - `dtype`: the dtype with the most flops.
    - `peak`: largest flop/s that the device's arithmetic allows for the dtypes of the program.
    - `bandwidth`: bytes/s of the device's memory.
    - `source`: the source that takes most of `moving`: "memory", "cache" or "registers".
    - `moving`: least seconds that the bytes take from their sources.
    - `intensity`: flops per byte.
    - `reached`: predicted flop/s.
    - `roof`: largest flop/s that arithmetic and sources allow together.
    - `ridge`: the intensity from which on arithmetic limits a program that streams from memory.
    - `least`: least seconds in which the device can do these flops and bytes.

    Bytes include values that are still in cache or never leave the registers of a fused kernel. In the predicted time
    of a kernel, memory delivers at most `bandwidth * seconds` bytes. If a kernel has more bytes, they count as read
    from cache. If the cache cannot deliver them either, they count as values in registers, which take no time.
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
        """The seconds that all bytes take if memory delivers them."""
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
        """The limit: "memory", "cache" or "arithmetic"."""
        return "arithmetic" if self.flops / self.peak >= self.moving else self.source

    @property
    def share(self) -> float:
        """The share of the roof that is reached. It exceeds 1 only if fewer flops are done than are counted, as for a
        convolution with zeros between the elements of its image, or if a library is faster than its operators' peak."""
        return self.least / self.seconds if self.seconds > 0 else 0.0


def roofline(cost: ProgramCost, device: DeviceRow) -> Roofline:
    """The roofline of a program, whose kernels run one after the other. The flops of each dtype run at its own peak."""
    kernels = [p for p in cost.parts if not p.ahead]
    flops: dict[str, int] = {}
    moving = {source: 0.0 for source in SOURCES}
    for p in kernels:
        flops[p.dtype] = flops.get(p.dtype, 0) + p.flops
        source = _source(p.bytes, p.seconds, device)
        moving[source] += p.bytes / _speed(source, device)
    dtype = max(flops, key=lambda d: (flops[d], d), default="") or "float32"
    needed = sum(n / device.rate(d) for d, n in flops.items())
    peak = sum(flops.values()) / needed if needed > 0 else device.rate(dtype)
    source = max(SOURCES, key=lambda s: moving[s])
    if not kernels:  # a report of an early release, without kernels
        source = _source(cost.bytes, cost.seconds, device)
        moving[source] = cost.bytes / _speed(source, device)
    total = sum(moving.values())
    return Roofline(cost.flops, cost.bytes, cost.seconds, dtype, peak, device.bandwidth, source, total)


def kernel_roofline(part: KernelPart, device: DeviceRow) -> Roofline:
    """The roofline of one kernel."""
    dtype, source = part.dtype or "float32", _source(part.bytes, part.seconds, device)
    of_device = device.rate(dtype), device.bandwidth, source, part.bytes / _speed(source, device)
    return Roofline(part.flops, part.bytes, part.seconds, dtype, *of_device)


def _source(moved: int, seconds: float, device: DeviceRow) -> str:
    """The farthest source that can deliver `moved` bytes in `seconds`."""
    return next(s for s in SOURCES if moved <= _speed(s, device) * seconds * _EXACT or s == SOURCES[-1])


def _speed(source: str, device: DeviceRow) -> float:
    return {"memory": device.bandwidth, "cache": device.cache_bandwidth}.get(source, math.inf)
