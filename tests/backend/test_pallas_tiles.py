"""Blocks, warps and stages of kernels through Pallas, by the model of the GPU: they fit, they compile, they compute."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from benchmarks.gpu_cases import OWN_RULES
from benchmarks.gpu_kernel_cases import Form, forms
from benchmarks.gpu_kernels import OURS, OURS_ALONE, rows_of
from relax_eg.backend.gpu.resources import resources_of
from relax_eg.backend.gpu.target import target_for
from relax_eg.backend.kernels import InKernels
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.pallas.choice import Pallas, Preferred
from relax_eg.backend.pallas.plan import Unsuitable, pallas_plan
from relax_eg.backend.pallas.programs import lower_pallas
from relax_eg.backend.pallas.tiles import MOST_REGISTERS, BlockModel, BlockSizes, Need, choose
from relax_eg.ops.multiprocessors import MULTIPROCESSORS, multiprocessors_of
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Reduce, evaluate, loop, loop_of
from tests.backend.test_pallas import TOLERANCE, arguments, assert_close, attention

pytestmark = pytest.mark.xla_defaults
HAS_PLUGIN = importlib.util.find_spec("jax_plugins") is not None and any(
    importlib.util.find_spec(f"jax_plugins.{name}") is not None for name in ("xla_cuda12", "xla_cuda13")
)
with_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="relax-eg[cuda] is not installed")
H100, L4 = MULTIPROCESSORS["h100"], MULTIPROCESSORS["l4"]
LONG = {"g": 1, "n": 1, "m": 3000, "d": 24, "e": 20}  # one query over a long cache


def product(rows: int, columns: int, deep: int) -> BlockModel:
    """The choices for a product of two matrices of bfloat16."""
    i, j, k = (loop(n) for n in "ijk")
    x, w = (
        Buffer(n, s, "bfloat16")
        for n, s in (("X", (Dim.of(rows), Dim.of(deep))), ("W", (Dim.of(deep), Dim.of(columns))))
    )
    total = Reduce("sum", ((k, Dim.of(deep)),), x[i, k] * w[k, j])
    names = [str(loop_of(n)) for n in (i, j, k)]
    extents = dict(zip(names, (rows, columns, deep), strict=True))
    grid = names[:2]
    return BlockModel(extents, grid, [n for n in grid if extents[n] > 1], [], total, [], H100)


@pytest.mark.parametrize("name", sorted(MULTIPROCESSORS))
@pytest.mark.parametrize("head", [64, 80, 256])
def test_attention_fits_each_gpu(name: str, head: int) -> None:
    device = MULTIPROCESSORS[name]
    (kernel,) = pallas_plan(attention, {"g": 8, "n": 1999, "m": 2048, "d": head, "e": head}, device).kernels
    assert kernel.tiles.parts == 1 and kernel.programs > device.count


def test_gpus_are_known_by_the_words_of_their_names() -> None:
    assert multiprocessors_of("NVIDIA A100-SXM4-80GB") == MULTIPROCESSORS["a100"]
    assert multiprocessors_of("NVIDIA GeForce RTX 4090") == MULTIPROCESSORS["rtx4090"]
    assert multiprocessors_of("h200, uncalibrated") == MULTIPROCESSORS["h200"]
    least = multiprocessors_of("NVIDIA L40S")
    assert all(least.block_shared_bytes <= d.block_shared_bytes for d in MULTIPROCESSORS.values())


def test_large_products_have_large_blocks_and_small_ones_many() -> None:
    large, _ = choose(product(8192, 8192, 4096))
    small, _ = choose(product(256, 256, 4096))
    assert min(large.blocks.values()) >= 64 and large.stages > 1
    assert math.prod(256 // size for size in small.blocks.values()) > H100.count // 4
    (columns,) = choose(product(1, 4096, 4096))[0].blocks.values()
    assert 4096 // columns > H100.count // 2


def test_a_softmax_split_over_keys_computes_what_the_reference_does() -> None:
    (kernel,) = pallas_plan(attention, LONG, H100).kernels
    assert kernel.parts > 1
    q, k, v, scale = arguments(attention, LONG)
    k[0, 2990:] = 30 * q[0, 0]  # the largest scores are in the last part
    (got,) = jax.jit(lower_pallas(attention, LONG, H100, interpret=True).run)(q, k, v, scale)
    assert_close(got, evaluate(attention, [q, k, v, scale], LONG)[0])


def test_parts_without_any_key_that_counts() -> None:
    sizes = {**LONG, "n": 2}
    q, k, v, scale = arguments(attention, sizes)
    q, k, scale = np.abs(q), np.abs(k), np.ones_like(scale)
    q[0, 0], k[0, :50] = -np.inf, 1.0  # a row of -inf alone; 40 keys are seen, so most parts hold masked ones
    (got,) = lower_pallas(attention, sizes, H100, interpret=True).run(q, k, v, scale)
    with np.errstate(all="ignore"):
        want = evaluate(attention, [q, k, v, scale], sizes)[0]
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


@pytest.mark.parametrize(
    "sizes", [{"g": 1, "n": 130, "m": 200, "d": 80, "e": 96}, {"g": 1, "n": 70, "m": 70, "d": 300, "e": 20}]
)
def test_blocks_that_do_not_divide(sizes: dict[str, int]) -> None:
    args = arguments(attention, sizes)
    (got,) = jax.jit(lower_pallas(attention, sizes, L4, interpret=True).run)(*args)
    assert_close(got, evaluate(attention, args, sizes)[0])


def test_what_fits_nowhere_is_refused_with_what_it_takes() -> None:
    tiny = replace(L4, shared_bytes=8192, block_shared_bytes=4096)
    with pytest.raises(Unsuitable) as e:
        pallas_plan(attention, {"g": 1, "n": 64, "m": 64, "d": 64, "e": 64}, tiny)
    text = (
        "no block of it fits: the least takes 17 KiB of shared memory and 87 registers of a thread; there are 4 KiB "
        f"and {MOST_REGISTERS}"
    )
    assert str(e.value) == text


def test_what_the_room_refuses_is_priced_as_xlas() -> None:
    """Keys of over 2**31 elements have no 32-bit positions, so XLA computes the scores, in memory."""
    fn = lambda q, k, v: jax.nn.softmax(q @ k.transpose(0, 2, 1)) @ v  # noqa: E731
    options: Any = {"execution": "kernels", "target": "h100", "rules": rx.rules.default - "cudnn_attention"}
    for keys in (1 << 12, 1 << 25):
        best = rx.optimize(
            fn, "16 512 64 @ bfloat16", "16 s 64 @ bfloat16", "16 s 64 @ bfloat16", at={"s": keys}, **options
        )
        scores = 16 * 512 * keys * 2  # bytes
        assert (best.report.after.bytes < scores) == (keys == 1 << 12)


# --- compiled ---


@with_plugin
@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_split_keys_are_predicted_as_they_are_compiled(execution: str) -> None:
    """One head has too few blocks of rows for a GPU, so several programs share the keys of each."""
    fn = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v  # noqa: E731
    best = rx.optimize(fn, *("4096 64 @ bfloat16",) * 3, target="h100", execution=execution, rules=OWN_RULES)
    (made,) = best.compile("h100").programs
    kernels = [k for e in made.executables for k in e.launches]
    after, memory = best.report.after, best.report.after.memory
    assert memory is not None and [k.kind for k in kernels].count("Pallas") == 2
    assert after.launches == len(kernels)
    assert after.bytes == pytest.approx(sum(k.bytes for k in kernels), abs=256)
    assert memory.temporary == pytest.approx(made.temporary_bytes, abs=1024) and made.temporary_bytes > 2 << 20


def form(name: str, dtype: str, size: str, which: int) -> Form:
    found = next(f for f in forms() if (f.name, f.dtype, f.size) == (name, dtype, size))
    return replace(found, at=found.at[which : which + 1])


@with_plugin
@pytest.mark.parametrize(
    ("name", "dtype", "size", "which"),
    [
        ("attention", "float32", "256", 0),  # in blocks of one size for all GPUs it took 208 KiB of shared memory
        ("causal", "bfloat16", "128", 1),
        ("one query", "bfloat16", "64", 1),
        ("4-bit weight", "bfloat16", "1024 x 1000", 0),  # spilled 2,504 bytes a thread in blocks of one size
    ],
)
def test_kernels_compile_for_the_gpu_with_least_shared_memory(name: str, dtype: str, size: str, which: int) -> None:
    (row,) = rows_of(form(name, dtype, size, which), ["l4"])
    assert (row.outcome, row.spilled_bytes) == (OURS, 0), row
    assert 0 < max(k.shared_bytes for k in row.kernels) <= L4.block_shared_bytes
    assert all(0 < (k.registers or 0) <= 255 and k.threads in (128, 256) for k in row.kernels)


def most_shared(model: BlockModel) -> tuple[BlockSizes, Need]:
    """The choice that fits with most shared memory."""
    found = ((t, model.need(t)) for t in model.candidates())
    return max((each for each in found if not math.isinf(each[1].clocks)), key=lambda each: each[1].shared_bytes)


@with_plugin
def test_a_kernel_that_xla_refuses_is_left_to_xla() -> None:
    """Blocks for an H100 do not fit an L4."""
    asked, target, sizes = form("bias", "float32", "128", 0), target_for("l4"), {"s": 2048}
    best = rx.optimize(asked.fn, *asked.specs, execution="kernels", target=OURS_ALONE, at=sizes, rules=OWN_RULES)
    assert isinstance(best, InKernels)
    (kernel,) = (k for k in best.runner.kernels() if k.op == "call_tir")
    program = kernel.attr("program").value
    pallas = Pallas(compiles=lambda lowered: target.compile(lowered, {}), device=H100)
    with target.lowering():
        largest = lower_pallas(program, sizes, H100, chosen=most_shared).run
        ours, xlas = jax.jit(largest), jax.jit(lower_program(program, sizes))
        pallas.taken[program.name] = "blocks of an H100"
        given = [jax.ShapeDtypeStruct(tuple(d.evaluate(sizes) for d in b.shape), b.dtype) for b in program.inputs]
        Preferred(program.name, pallas, ours, xlas).lower(*map(target.place, given))
    (why,) = pallas.left.values()
    assert why.startswith("Pallas failed: DeviceError: XLA does not compile it for l4: ") and not pallas.taken


def test_resources_are_read_from_what_xla_and_ptxas_tell() -> None:
    launches = "001: kCustomKernel [source | sink] f_Y grid: [4, 2, 1] threads: [128, 1, 1]  shared_memory: 16384 bytes"
    (found,) = resources_of(launches, [])
    assert (found.name, found.blocks, found.threads, found.shared_bytes) == ("f_Y", 8, 128, 16384)
    assert found.registers is None and found.spilled_bytes is None
