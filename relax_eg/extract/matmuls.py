"""Seconds of matmuls with their operands at hand: by shares of the peak, or by tiles on the cores of a device.

With `Profile.tiles` a result is cut into blocks, each of which one core computes over all of the depth. A block is
computed whole, however little of it is wanted; where there are fewer blocks than cores the others stand idle, and what
a core reads it reads at its share of the cache's bandwidth. Between whole numbers of blocks nothing is rounded up:
libraries have tiles of many sizes, and prices without steps make simpler families.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relax_eg.extract.numbers import Number, choose, larger, smaller
from relax_eg.extract.profile import Profile
from relax_eg.ir.annotations import itemsize
from relax_eg.tir.work import DECODED, LEAST_BYTES

_PARTIAL_BYTES = 8  # of an element of a partial sum: float32, written and read again


@dataclass(frozen=True, slots=True)
class Matmul:
    """The flops of a matmul at a binding, or of a batch of them, and the sizes of each: `rows` by `depth` by `columns`
    elements of `dtype`."""

    flops: Number
    rows: Number
    columns: Number
    depth: Number
    dtype: str

    @property
    def batch(self) -> Number:
        return self.flops / larger(1, 2 * self.rows * self.columns * self.depth)

    @property
    def is_vector(self) -> Number:
        """Whether a side of the result is one: a matrix times a vector."""
        return (self.rows <= 1) | (self.columns <= 1)


@dataclass(frozen=True, slots=True)
class Contracted:
    """Seconds of a contraction with its operands at hand: by the device's library, and where XLA generates it because
    something else is computed with it; `vector`: whether XLA makes a sum of products of it, which keeps both inside."""

    seconds: Number
    own: Number
    vector: Number


def share_of_peak(sizes: Sequence[Number], halves: Sequence[float]) -> Number:
    """The share of a peak rate that is reached at these sizes; half of it where one size is at its half."""
    return larger(1e-3, math.prod(size / (size + half) for size, half in zip(sizes, halves, strict=True)))


def matmul_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul by the device's library, or of a matrix times a vector."""
    if not p.tiles:
        share = share_of_peak((m.rows, m.columns, m.depth), p.matmul_half)
        return m.flops / (p.rate(m.dtype) * share)
    tiled = _least(s for t in _tiles(p) for s in (_tiled(p, m, t, 1.0), _split(p, m, t)))
    # XLA makes a sum of products of it (xla_gpu_enable_dot_strength_reduction), which needs no tensor cores.
    return choose(m.is_vector, smaller(tiled, vector_seconds(p, m)), tiled)


def packing_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds in which a CPU puts the right operands of a batch of matmuls in the order in which they are read: at
    every call, however few rows there are. The rates of single matmuls hold it."""
    if p.platform != "cpu":
        return 0.0
    return choose(m.batch > 1, 2 * m.batch * m.columns * m.depth * itemsize(m.dtype) / p.cache_bandwidth, 0.0)


def vector_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matrix times a vector as a sum of products, the matrix in memory: it is bound by bytes."""
    return m.flops / p.vector_rate


def own_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul that XLA generates, where something is computed with its operands or its result: tiles down
    to what tensor cores take, at `fused_share` of the rate, and no parts along the depth."""
    if not p.tiles:
        seconds = matmul_seconds(p, m)
        return seconds / p.fused_share if p.fused_share else seconds
    smallest = ((p.own_rows, 32.0), (32.0, p.own_rows), (p.own_rows, 64.0), (64.0, p.own_rows))
    return _least(_tiled(p, m, t, 1.0) for t in (*smallest, *_tiles(p))) / (p.fused_share or 1.0)


def contracted(p: Profile, m: Matmul, windowed: bool, transposed: bool) -> Contracted:
    """A contraction with its operands at hand. `windowed`: it is a convolution; `transposed`: the columns' operand is
    stored output axis first."""
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
    """Tiles either way around."""
    return tuple(dict.fromkeys(t for a, b in p.tiles for t in ((a, b), (b, a))))


def _blocks(m: Matmul, tile: tuple[float, float]) -> Number:
    rows, columns = tile
    blocks = larger(m.rows, rows) * larger(m.columns, columns) / (rows * columns)
    return larger(1.0, m.batch * blocks)


def _tiled(p: Profile, m: Matmul, tile: tuple[float, float], parts: Number) -> Number:
    """Seconds with blocks of one size, the depth cut into `parts`, each on a core of its own."""
    rows, columns = tile
    blocks, fill = _blocks(m, tile), p.matmul_half[2]
    busy = smaller(1.0, blocks * parts / p.cores)
    computing = 2 * blocks * rows * columns * (m.depth + parts * fill) / (p.rate(m.dtype) * busy)
    read = blocks * (smaller(m.rows, rows) + smaller(m.columns, columns)) * m.depth * itemsize(m.dtype)
    return larger(computing, read / (p.cache_bandwidth * busy))


def _split(p: Profile, m: Matmul, tile: tuple[float, float]) -> Number:
    """The same with as many parts of the depth as keep every core busy, and a kernel that adds them up."""
    parts = larger(1.0, smaller(p.cores / _blocks(m, tile), m.depth / p.matmul_half[2]))
    added = p.launch + p.move(_PARTIAL_BYTES * parts * m.batch * m.rows * m.columns)
    return _tiled(p, m, tile, parts) + added


def _least(each: Iterable[Number]) -> Number:
    first, *rest = each
    for x in rest:
        first = smaller(first, x)
    return first


def is_decoded(made: Number, sources: Number) -> Number:
    """Whether an operand of `made` bytes is computed from much less, `sources` bytes."""
    return (made > 0) & (made >= DECODED * sources)


def made_on_cpu(p: Profile, made: Number, sources: Number) -> Number:
    """Seconds in which operands that are computed in the program of a contraction go through memory on a CPU. What is
    decoded stays in cache, tile by tile."""
    steps = larger(2, made / p.cache_bytes)
    in_tiles = 2 * made / p.cache_bandwidth + steps * (p.step + p.launch)
    return choose(is_decoded(made, sources) & (made >= LEAST_BYTES), in_tiles, p.move(2 * made))
