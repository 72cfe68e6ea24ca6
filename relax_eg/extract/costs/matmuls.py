"""Seconds of matmuls whose operands are in memory: by shares of the peak rate, or by tiles on the cores of a device.

With `Profile.tiles` a result is cut into blocks, and one core computes each block over the whole depth. A block at the
edge of the result takes as long as a full one. If there are fewer blocks than cores, the other cores are idle, and each
core reads at its share of the cache's bandwidth. The number of blocks is not rounded up, because libraries have tiles
of many sizes, and because prices without steps lead to families with fewer programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from relax_eg.dtypes import itemsize
from relax_eg.extract.costs.numbers import Number, choose, maximum, minimum
from relax_eg.extract.profiles.profile import Profile
from relax_eg.tir.work import DECODED, LEAST_BYTES

_PARTIAL_BYTES = 8  # given: bytes per element of a partial sum: float32, written and read again
# given: the largest size of a tiny matmul, and the elements of its larger operand from which on XLA calls a library for
# it (4 x 4 times 4 x 2 takes 0.85 us, 4 x 3 times 3 x 4 takes 0.01; jax 0.10.2)
_TINY_SIDE, _CALLED_ELEMENTS = 7, 16
_IN_LOOPS = 0.3  # chosen: share of `vector_rate` of XLA's own loops in one kernel (0.2 to 0.7 seen; jax 0.10.2)
_LEAST_SHARE = 1e-3  # chosen: of a peak rate: least share assumed at any sizes
_OWN_SIDES = (32.0, 64.0)  # chosen: longer sides of the smallest tiles of the matmuls that XLA generates


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matmul at a binding, or a batch of equal ones.

    - `flops`: the flops of all.
    - `rows`, `columns`, `depth`: the sizes of each: the left operand has `rows` by `depth` elements, the right one
      `depth` by `columns`.
    - `dtype`: the dtype of the operands.
    """

    flops: Number
    rows: Number
    columns: Number
    depth: Number
    dtype: str

    @property
    def batch(self) -> Number:
        return self.flops / maximum(1, 2 * self.rows * self.columns * self.depth)

    @property
    def is_turned(self) -> Number:
        """Whether the right operand is a vector, so that the matmul is that vector times the left matrix, which is then
        stored output axis first."""
        return (self.columns <= 1) & (self.rows > 1)

    @property
    def as_row(self) -> Matmul:
        """The matmul with a vector on the right as one with a row on the left."""
        turned = self.is_turned
        rows, columns = choose(turned, self.columns, self.rows), choose(turned, self.rows, self.columns)
        return replace(self, rows=rows, columns=columns)

    @property
    def is_vector(self) -> Number:
        """Whether the matmul is a matrix times a vector: one side of the result is 1."""
        return (self.rows <= 1) | (self.columns <= 1)


@dataclass(frozen=True, slots=True)
class Contracted:
    """The seconds of a contraction whose operands are in memory.

    - `seconds`: seconds by the device's library.
    - `generated_seconds`: seconds by code that XLA generates, because it fuses other operators with the contraction.
    - `vector`: whether XLA computes it as a sum of products, with operands and result inside the kernel.
    """

    seconds: Number
    generated_seconds: Number
    vector: Number


def share_of_peak(sizes: Sequence[Number], halves: Sequence[float]) -> Number:
    """The share of a peak rate that these sizes reach. A size that is equal to its entry of `halves` halves the
    share."""
    return maximum(_LEAST_SHARE, math.prod(size / (size + half) for size, half in zip(sizes, halves, strict=True)))


def matmul_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul by the device's library, or of a matrix times a vector; in one kernel, by XLA's own loops."""
    if p.is_in_one_kernel:
        return m.flops / (_IN_LOOPS * p.vector_rate)
    if not p.tiles:
        share = share_of_peak((m.rows, m.columns, m.depth), p.matmul_half)
        return m.flops / (p.rate(m.dtype) * share)
    tiled = _minimum(s for t in _tiles(p) for s in (_tiled_seconds(p, m, t, 1.0), _split_k_seconds(p, m, t)))
    # XLA turns it into a sum of products (xla_gpu_enable_dot_strength_reduction), which needs no tensor cores.
    return choose(m.is_vector, minimum(tiled, vector_seconds(p, m)), tiled)


def packing_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds in which a CPU reorders the right operands of a batch of matmuls (packing); 0 on other devices.

    A CPU does so at every call, however few rows there are. For single matmuls the measured rates include this time."""
    if p.platform != "cpu":
        return 0.0
    return choose(m.batch > 1, 2 * m.batch * m.columns * m.depth * itemsize(m.dtype) / p.cache_bandwidth, 0.0)


def vector_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of the arithmetic of a matrix times a vector as a sum of products. The time to read the matrix, which is
    longer, is priced elsewhere."""
    return m.flops / p.vector_rate


def xla_matmul_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds of a matmul for which XLA generates code, because it fuses operators with its operands or its result.

    Tiles are as small as tensor cores allow, the rate is `fused_share` of the peak, and the depth is not split."""
    if not p.tiles:
        seconds = matmul_seconds(p, m)
        return seconds / p.fused_share if p.fused_share else seconds
    smallest = (t for side in _OWN_SIDES for t in ((p.own_rows, side), (side, p.own_rows)))
    return _minimum(_tiled_seconds(p, m, t, 1.0) for t in (*smallest, *_tiles(p))) / (p.fused_share or 1.0)


def calling_seconds(p: Profile, m: Matmul) -> Number:
    """Seconds that a matmul takes to begin, besides the launch of a kernel: those of calling the library. Products with
    a vector or of the smallest matrices are XLA's own loops."""
    largest = maximum(maximum(m.rows, m.columns), m.depth)
    is_called = (largest > _TINY_SIDE) | (maximum(m.rows, m.columns) * m.depth >= _CALLED_ELEMENTS)
    tiny = p.tiny_launch if p.is_in_one_kernel else p.library_launch + p.tiny_launch
    called = choose(is_called, choose(largest > _TINY_SIDE, p.library_launch, tiny), 0.0)
    return choose(minimum(m.rows, m.columns) > 1, called, p.vector_launch)


def price_contraction(p: Profile, m: Matmul, windowed: bool, transposed: bool) -> Contracted:
    """The seconds of a contraction whose operands are in memory.

    - `windowed`: it is a convolution.
    - `transposed`: the columns' operand is stored output axis first.
    """
    if windowed:
        return Contracted(matmul_seconds(p, m) * p.conv_factor, xla_matmul_seconds(p, m) * p.conv_factor, False)
    turned, m = m.is_turned, m.as_row
    seconds, own = matmul_seconds(p, m), xla_matmul_seconds(p, m)
    weight = m.columns * m.depth * itemsize(m.dtype)
    stored = p.linear_factor(m.rows)
    in_order = p.in_order_factor(m.rows, m.columns * itemsize(m.dtype), weight)
    factor = stored if transposed else choose(turned, stored, in_order)
    seconds, own = seconds * factor, own * factor
    more = p.joining(m.rows, m.flops) + packing_seconds(p, m) + calling_seconds(p, m)
    return Contracted(seconds + more, own + more, m.is_vector if p.tiles else False)


def _tiles(p: Profile) -> tuple[tuple[float, float], ...]:
    """The profile's tiles in both orientations."""
    return tuple(dict.fromkeys(t for a, b in p.tiles for t in ((a, b), (b, a))))


def _blocks(m: Matmul, tile: tuple[float, float]) -> Number:
    """The number of blocks of all matmuls of a batch, not rounded up."""
    rows, columns = tile
    blocks = maximum(m.rows, rows) * maximum(m.columns, columns) / (rows * columns)
    return maximum(1.0, m.batch * blocks)


def _tiled_seconds(p: Profile, m: Matmul, tile: tuple[float, float], parts: Number) -> Number:
    """Seconds with blocks of one size. The depth is cut into `parts`, and one core computes each part of a block."""
    rows, columns = tile
    blocks, fill = _blocks(m, tile), p.matmul_half[2]
    busy = minimum(1.0, blocks * parts / p.cores)
    computing = 2 * blocks * rows * columns * (m.depth + parts * fill) / (p.rate(m.dtype) * busy)
    read = blocks * (minimum(m.rows, rows) + minimum(m.columns, columns)) * m.depth * itemsize(m.dtype)
    return maximum(computing, read / (p.cache_bandwidth * busy))


def _split_k_seconds(p: Profile, m: Matmul, tile: tuple[float, float]) -> Number:
    """Seconds with blocks of one size and the depth cut into as many parts as keep every core busy (split-K), plus a
    kernel that adds the parts up."""
    parts = maximum(1.0, minimum(p.cores / _blocks(m, tile), m.depth / p.matmul_half[2]))
    added = p.launch + p.move(_PARTIAL_BYTES * parts * m.batch * m.rows * m.columns)
    return _tiled_seconds(p, m, tile, parts) + added


def _minimum(each: Iterable[Number]) -> Number:
    first, *rest = each
    for x in rest:
        first = minimum(first, x)
    return first


def is_decoded(made: Number, sources: Number) -> Number:
    """Whether an operand of `made` bytes is computed from far fewer bytes (`sources`)."""
    return (made > 0) & (made >= DECODED * sources)


def cpu_operand_seconds(p: Profile, made: Number, sources: Number) -> Number:
    """Seconds in which a CPU writes and reads the operands that a contraction's program computes. They pass through
    memory; decoded operands pass through the cache, tile by tile.

    - `made`: bytes of these operands.
    - `sources`: bytes of the arrays from which they are computed.
    """
    steps = maximum(2, made / p.cache_bytes)
    in_tiles = 2 * made / p.cache_bandwidth + steps * (p.step + p.launch)
    return choose(is_decoded(made, sources) & (made >= LEAST_BYTES), in_tiles, p.move(2 * made))
