"""Seconds of matmuls whose operands are in memory: by shares of the peak rate, or by tiles on the cores of a device.

With `Profile.tiles` a result is cut into blocks, and one core computes each block over the whole depth. A block is
computed in full even if only part of it is wanted. If there are fewer blocks than cores, the other cores are idle, and
each core reads at its share of the cache's bandwidth. The number of blocks is not rounded up: libraries have tiles of
many sizes, and prices without steps make simpler families.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relax_eg.dtypes import itemsize
from relax_eg.extract.numbers import Number, choose, maximum, smaller
from relax_eg.extract.profile import Profile
from relax_eg.tir.work import DECODED, LEAST_BYTES

_PARTIAL_BYTES = 8  # given: bytes per element of a partial sum: float32, written and read again
_LEAST_SHARE = 1e-3  # chosen: of a peak rate: least share assumed at any sizes
_OWN_SIDES = (32.0, 64.0)  # chosen: the other sides of the smallest tiles of XLA's own matmuls


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matmul at a binding, or a batch of them: the flops of all, and the sizes of each.

    The left operand has `rows` by `depth` elements of `dtype`, the right one `depth` by `columns`."""

    flops: Number
    rows: Number
    columns: Number
    depth: Number
    dtype: str

    @property
    def batch(self) -> Number:
        return self.flops / maximum(1, 2 * self.rows * self.columns * self.depth)

    @property
    def is_vector(self) -> Number:
        """Whether the matmul is a matrix times a vector: one side of the result is 1."""
        return (self.rows <= 1) | (self.columns <= 1)


@dataclass(frozen=True, slots=True)
class Contracted:
    """The seconds of a contraction whose operands are in memory.

    - `seconds`: by the device's library.
    - `own`: if XLA generates the contraction because it computes something else with it.
    - `vector`: whether XLA computes it as a sum of products, with operands and result inside the kernel.
    """

    seconds: Number
    own: Number
    vector: Number


def share_of_peak(sizes: Sequence[Number], halves: Sequence[float]) -> Number:
    """The share of a peak rate that these sizes reach. One size at its half halves the share."""
    return maximum(_LEAST_SHARE, math.prod(size / (size + half) for size, half in zip(sizes, halves, strict=True)))


def matmul_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul by the device's library, or of a matrix times a vector."""
    if not p.tiles:
        share = share_of_peak((m.rows, m.columns, m.depth), p.matmul_half)
        return m.flops / (p.rate(m.dtype) * share)
    tiled = _least(s for t in _tiles(p) for s in (_tiled(p, m, t, 1.0), _split(p, m, t)))
    # XLA turns it into a sum of products (xla_gpu_enable_dot_strength_reduction), which needs no tensor cores.
    return choose(m.is_vector, smaller(tiled, vector_seconds(p, m)), tiled)


def packing_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds in which a CPU reorders the right operands of a batch of matmuls for reading; 0 on other devices.

    It does so at every call, however few rows there are. For single matmuls the measured rates include this time."""
    if p.platform != "cpu":
        return 0.0
    return choose(m.batch > 1, 2 * m.batch * m.columns * m.depth * itemsize(m.dtype) / p.cache_bandwidth, 0.0)


def vector_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of arithmetic of a matrix times a vector as a sum of products. Reading the matrix, which bounds it, is
    priced elsewhere."""
    return m.flops / p.vector_rate


def own_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul that XLA generates, because something is computed with its operands or its result.

    Tiles go down to what tensor cores take, the rate is `fused_share` of the peak, and the depth is not split."""
    if not p.tiles:
        seconds = matmul_seconds(p, m)
        return seconds / p.fused_share if p.fused_share else seconds
    smallest = (t for side in _OWN_SIDES for t in ((p.own_rows, side), (side, p.own_rows)))
    return _least(_tiled(p, m, t, 1.0) for t in (*smallest, *_tiles(p))) / (p.fused_share or 1.0)


def price_contraction(p: Profile, m: Matmul, windowed: bool, transposed: bool) -> Contracted:
    """The seconds of a contraction whose operands are in memory.

    - `windowed`: it is a convolution.
    - `transposed`: the columns' operand is stored output axis first.
    """
    seconds, own = matmul_seconds(p, m), own_seconds(p, m)
    if windowed:
        return Contracted(seconds * p.conv_factor, own * p.conv_factor, False)
    weight = m.columns * m.depth * itemsize(m.dtype)
    if transposed:
        factor = p.linear_factor(m.rows, weight)
        seconds, own = seconds * factor, own * factor
    more = p.joining(m.rows, weight) + packing_seconds(p, m)
    return Contracted(seconds + more, own + more, m.is_vector if p.tiles else False)


def _tiles(p: Profile) -> tuple[tuple[float, float], ...]:
    """The profile's tiles in both orientations."""
    return tuple(dict.fromkeys(t for a, b in p.tiles for t in ((a, b), (b, a))))


def _blocks(m: Matmul, tile: tuple[float, float]) -> Number:
    rows, columns = tile
    blocks = maximum(m.rows, rows) * maximum(m.columns, columns) / (rows * columns)
    return maximum(1.0, m.batch * blocks)


def _tiled(p: Profile, m: Matmul, tile: tuple[float, float], parts: Number) -> Number:
    """Seconds with blocks of one size; the depth is cut into `parts`, and each part of a block is computed by one
    core."""
    rows, columns = tile
    blocks, fill = _blocks(m, tile), p.matmul_half[2]
    busy = smaller(1.0, blocks * parts / p.cores)
    computing = 2 * blocks * rows * columns * (m.depth + parts * fill) / (p.rate(m.dtype) * busy)
    read = blocks * (smaller(m.rows, rows) + smaller(m.columns, columns)) * m.depth * itemsize(m.dtype)
    return maximum(computing, read / (p.cache_bandwidth * busy))


def _split(p: Profile, m: Matmul, tile: tuple[float, float]) -> Number:
    """Seconds of `_tiled` with the depth in as many parts as keep every core busy, plus a kernel that adds the parts
    up."""
    parts = maximum(1.0, smaller(p.cores / _blocks(m, tile), m.depth / p.matmul_half[2]))
    added = p.launch + p.move(_PARTIAL_BYTES * parts * m.batch * m.rows * m.columns)
    return _tiled(p, m, tile, parts) + added


def _least(each: Iterable[Number]) -> Number:
    first, *rest = each
    for x in rest:
        first = smaller(first, x)
    return first


def is_decoded(made: Number, sources: Number) -> Number:
    """Whether an operand of `made` bytes is computed from far fewer bytes (`sources`)."""
    return (made > 0) & (made >= DECODED * sources)


def made_on_cpu(p: Profile, made: Number, sources: Number) -> Number:
    """Seconds in which operands that a contraction's program computes pass through memory on a CPU.

    Operands that are decoded stay in the cache, tile by tile."""
    steps = maximum(2, made / p.cache_bytes)
    in_tiles = 2 * made / p.cache_bandwidth + steps * (p.step + p.launch)
    return choose(is_decoded(made, sources) & (made >= LEAST_BYTES), in_tiles, p.move(2 * made))
