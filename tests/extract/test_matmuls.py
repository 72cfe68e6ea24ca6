"""Prices of matmuls by tiles on the multiprocessors of a GPU, from its data sheet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relax_eg.extract.costs.matmuls import Matmul, matmul_seconds, share_of_peak, vector_seconds, xla_matmul_seconds
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.extract.profiles.profile import Profile

GPUS = [p for p in PROFILES.values() if p.platform == "gpu"]
H100 = PROFILES["h100"]


def product(rows: float, columns: float, depth: float, batch: float = 1, dtype: str = "bfloat16") -> Matmul:
    return Matmul(2 * batch * rows * columns * depth, rows, columns, depth, dtype)


@pytest.mark.parametrize("p", GPUS, ids=lambda p: p.name)
def test_large_matmuls_reach_most_of_the_peak_and_none_goes_beyond_it(p: Profile) -> None:
    for dtype in ("bfloat16", "float32"):
        m = product(8192, 8192, 8192, dtype=dtype)
        share = m.flops / matmul_seconds(p, m) / p.rate(dtype)
        assert 0.8 < share < 1
    for rows in (2, 17, 300):
        for depth in (16, 5000):
            m = product(rows, 1000, depth)
            assert m.flops / matmul_seconds(p, m) < p.rate("bfloat16")


@pytest.mark.parametrize("p", GPUS, ids=lambda p: p.name)
def test_rows_up_to_a_tile_are_computed_as_one(p: Profile) -> None:
    """What a tile is padded with costs what it would cost to compute, so up to 64 rows take about the same time."""
    few, tile, more = (matmul_seconds(p, product(rows, 16384, 4096)) for rows in (2, 64, 1024))
    assert few == pytest.approx(tile, rel=0.5) and more > 3 * tile
    exact = replace(p, tiles=((1.0, 64.0),), cache_bandwidth=1e18)
    assert matmul_seconds(exact, product(2, 16384, 4096)) < few / 10


def test_a_matrix_times_a_vector_needs_no_tile() -> None:
    vector, two = product(1, 4096, 4096), product(2, 4096, 4096)
    assert bool(vector.is_vector) and not two.is_vector
    assert matmul_seconds(H100, vector) == vector_seconds(H100, vector) < H100.move(2 * 4096 * 4096)
    assert matmul_seconds(H100, vector) < matmul_seconds(H100, two) / 4


def test_with_fewer_blocks_than_multiprocessors_the_others_stand_idle() -> None:
    deep = product(16, 16, 65536)
    assert xla_matmul_seconds(H100, deep) > 20 * matmul_seconds(H100, deep)  # a library cuts the depth into parts
    assert xla_matmul_seconds(H100, product(16, 16, 65536, batch=132)) == pytest.approx(
        xla_matmul_seconds(H100, deep), rel=0.01
    )
    fewer = replace(H100, cores=1.0)
    assert xla_matmul_seconds(fewer, deep) == pytest.approx(
        xla_matmul_seconds(H100, deep) / H100.cores
    )  # the same rate in one core


def test_parts_of_a_square_matmul_would_gain_nothing() -> None:
    m = product(4096, 4096, 4096)
    assert xla_matmul_seconds(H100, m) == pytest.approx(matmul_seconds(H100, m) / H100.fused_share)


def test_sizes_may_be_columns() -> None:
    sizes = [(1, 128, 64), (2, 4096, 4096), (64, 1, 512), (700, 700, 30), (0, 5, 5), (4, 4, 1 << 20)]
    rows, columns, depth = (np.array(c, float) for c in zip(*sizes, strict=True))
    many = product(rows, columns, depth)
    for p in (*GPUS, PROFILES["cpu"]):
        for seconds in (matmul_seconds, xla_matmul_seconds):
            each = [seconds(p, product(*s)) for s in sizes]
            np.testing.assert_allclose(seconds(p, many), each, rtol=1e-12)
            assert all(np.isfinite(each))


def test_without_tiles_it_is_a_share_of_the_peak() -> None:
    cpu, m = PROFILES["cpu"], product(8, 256, 64, dtype="float32")
    share = share_of_peak((8, 256, 64), cpu.matmul_half)
    assert matmul_seconds(cpu, m) == m.flops / (cpu.rate("float32") * share)
