"""Chooses the tiles of XLA's own matmuls, those through Triton, where there is no GPU on which XLA could time some.

XLA takes one choice for all matmuls of a program. So the one is chosen with which they take fewest clocks together, by
the model that chooses the blocks of kernels through Pallas (`backend.pallas.tiles`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from relax_eg.backend.gpu.hlo import Launch
from relax_eg.backend.pallas.tiles import BlockModel, BlockSizes
from relax_eg.dtypes import SHORT_NAMES
from relax_eg.limits import KEPT
from relax_eg.ops.multiprocessors import Multiprocessors
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Reduce, loop, loop_of

OPTION = "xla_gpu_override_gemm_autotuner"  # given: XLA's option, whose values are texts of its TritonGemmKey
_SIDES = (16, 32, 64, 128, 256)  # limit: sides of tiles that are tried
_DEPTHS = (32, 64, 128)  # limit: values of the summed axis in a step
_STAGES = (2, 3, 4)  # limit: stages of loads in shared memory
_WARPS = (4, 8)  # limit: warps of a tile
_AT_END = 1  # given: what follows a product is computed where its sum is, so an element takes one register
_DTYPES = {"bf16", "f16", "f32"}  # given: what Triton multiplies, by the short names that XLA has, too
_BATCH, _ROW, _COLUMN, _SUMMED = (loop(n) for n in "bijk")


def choices(launches: Sequence[Launch], device: Multiprocessors) -> Iterator[str]:
    """Yields values of `OPTION` for a program with these launches: the best, then the best of those that take less
    shared memory, and so on. None where no kernel is a matmul of floats through Triton."""
    times = Counter[tuple[int, int, int, int, str]]()
    for k in launches:
        if (m := k.matmul) is not None and m.dtype in _DTYPES:
            times[m.batch, m.rows, m.columns, m.depth, SHORT_NAMES[m.dtype]] += k.times
    found: list[tuple[float, int, str]] = []
    for sizes in itertools.product(_SIDES, _SIDES, _DEPTHS, _STAGES, _WARPS) if times else ():
        needs = [(n, _need(*matmul, device, *sizes)) for matmul, n in times.items()]
        clocks, shared = sum(n * need[0] for n, need in needs), max(need[1] for _, need in needs)
        if clocks < math.inf:
            rows, columns, depth, stages, warps = sizes
            text = f"block_m: {rows} block_n: {columns} block_k: {depth} num_stages: {stages} num_warps: {warps}"
            found.append((clocks, shared, f"{text} num_ctas: 1"))
    least = math.inf
    for _, shared, text in sorted(found):
        if shared < least:
            least = shared
            yield text


@lru_cache(KEPT)
def _model(batch: int, rows: int, columns: int, depth: int, dtype: str, device: Multiprocessors) -> BlockModel:
    sizes = dict(zip("bijk", (batch, rows, columns, depth), strict=True))
    x, w = (Buffer(n, tuple(Dim.of(sizes[a]) for a in axes), dtype) for n, axes in (("X", "bik"), ("W", "bkj")))
    product = x[_BATCH, _ROW, _SUMMED] * w[_BATCH, _SUMMED, _COLUMN]
    total = Reduce("sum", ((_SUMMED, Dim.of(depth)),), product)
    names = [str(loop_of(n)) for n in (_BATCH, _ROW, _COLUMN, _SUMMED)]
    extents = dict(zip(names, sizes.values(), strict=True))
    return BlockModel(extents, names[:3], names[1:3], [], total, [], device, _AT_END)


@lru_cache(KEPT)
def _need(
    batch: int, rows: int, columns: int, depth: int, dtype: str, device: Multiprocessors,
    row: int, column: int, step: int, stages: int, warps: int,
) -> tuple[float, int]:  # fmt: skip
    """Clocks of a matmul with these tiles, and bytes of shared memory of a tile."""
    model = _model(batch, rows, columns, depth, dtype, device)
    blocks = dict(zip(model.sides, (row, column), strict=True))
    need = model.need(BlockSizes(blocks, depth=step, stages=stages, warps=warps))
    return need.clocks, need.shared_bytes
