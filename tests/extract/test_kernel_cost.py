"""What kernels cost, each an executable of its own: by what the device's compiler makes of a contraction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import relax_eg as rx
from relax_eg import ir
from relax_eg.extract.kernels.cost import ContractionCost, KernelCost
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.ops import site_of
from relax_eg.ops.libraries import call_library

CPU, H100 = (KernelCost(PROFILES[name], {}) for name in ("cpu", "h100"))
MB = 1 << 20


def kernel(model: KernelCost, *parts: ContractionCost, moved: int = 64 * MB) -> float:
    return model.kernel(parts, 0.0, moved)


def test_on_a_cpu_what_is_computed_before_or_after_a_matmul_goes_through_memory() -> None:
    p = CPU.profile
    made = ContractionCost(1e-2, made=8 * MB, sources=8 * MB)
    for part in (made, ContractionCost(1e-2, result=8 * MB)):
        more = kernel(CPU, part) - kernel(CPU, ContractionCost(1e-2))
        assert more == pytest.approx(p.launch + p.move(16 * MB), rel=2e-3)
    assert kernel(CPU, replace(made, result=8 * MB)) > kernel(CPU, made)


def test_on_a_cpu_what_is_decoded_goes_through_the_cache_tile_by_tile() -> None:
    p = CPU.profile
    part = ContractionCost(1e-2, made=64 * MB, sources=8 * MB)
    steps = 64 * MB / p.cache_bytes
    more = kernel(CPU, part) - kernel(CPU, ContractionCost(1e-2))
    assert more == pytest.approx(128 * MB / p.cache_bandwidth + steps * (p.step + p.launch), rel=5e-3)
    assert 3 * more < kernel(CPU, replace(part, sources=64 * MB)) - kernel(CPU, ContractionCost(1e-2))


def test_on_a_gpu_it_is_computed_in_the_matmul_or_goes_through_memory_whichever_is_faster() -> None:
    p = H100.profile
    small, large = (
        ContractionCost(1e-4, made=MB // 4, sources=MB // 4),
        ContractionCost(1e-4, made=512 * MB, sources=512 * MB),
    )
    plain = kernel(H100, ContractionCost(1e-4))
    assert kernel(H100, small) - plain == pytest.approx(p.launch + p.move(MB // 2), rel=2e-3)
    assert kernel(H100, large) - plain == pytest.approx(1e-4 * (1 / p.fused_share - 1))


def test_scores_that_are_reduced_go_through_memory_unless_pallas_has_them() -> None:
    scores = ContractionCost(1e-4, result=512 * MB, reduced=True)
    values = ContractionCost(1e-4, made=512 * MB, sources=512 * MB, online=True, staged=True)
    p = H100.profile
    assert kernel(H100, scores) - kernel(H100, ContractionCost(1e-4)) == pytest.approx(p.launch + p.move(1024 * MB))
    through_pallas = H100.kernel([scores, values], 0.0, MB)
    through_xla = H100.kernel([scores, values], 0.0, MB, pallas=False)
    assert (
        through_pallas == pytest.approx(p.launch + 2e-4 / p.pallas_share, rel=0.01) and through_xla > 2 * through_pallas
    )


def test_an_operand_that_is_decoded_stays_inside_where_there_is_pallas() -> None:
    part = ContractionCost(1e-4, made=512 * MB, sources=64 * MB)
    without = KernelCost(replace(H100.profile, pallas=False, fused_share=0.0), {})
    assert kernel(H100, part) < kernel(without, part) / 2


def test_a_gpu_computes_while_the_next_kernel_is_dispatched() -> None:
    """A program takes what its kernels take, or what dispatching them takes."""
    p = H100.profile
    assert p.run(1e-3, 10) == 1e-3 and p.run(1e-5, 10) == 10 * p.dispatch
    assert CPU.profile.run(1e-5, 10) == 1e-5 and CPU.with_dispatch(1e-3) == CPU.profile.dispatch + 1e-3
    ahead, waiting = (KernelCost(p, {}) for _ in range(2))
    waiting.set_waits(1.0)
    short, long = p.dispatch / 2, 10 * p.dispatch
    assert waiting.with_dispatch(short) == pytest.approx(p.dispatch, rel=0.01)
    assert ahead.with_dispatch(short) == pytest.approx(short, rel=0.01)
    assert ahead.with_dispatch(long) == waiting.with_dispatch(long) == pytest.approx(long, rel=0.01)
    # Of two kernels that take less than their dispatch, the shorter one is cheaper.
    assert waiting.with_dispatch(short / 2) < waiting.with_dispatch(short) < waiting.with_dispatch(p.dispatch)


def test_what_surrounds_a_matrix_times_a_vector_is_computed_with_it() -> None:
    """XLA makes a sum of products of it on a GPU, so nothing goes through memory."""
    p, around = H100.profile, {"made": 512 * MB, "sources": 512 * MB, "result": MB}
    plain, vector = ContractionCost(1e-5, vector=True), ContractionCost(1e-5, vector=True, **around)
    assert kernel(H100, vector) == pytest.approx(kernel(H100, plain))
    assert kernel(H100, ContractionCost(1e-5, generated_seconds=1.0, **around)) > 10 * kernel(H100, plain)
    normed = ContractionCost(1e-5, vector=True, staged=True, **around)
    assert kernel(H100, normed) - kernel(H100, vector) == pytest.approx(p.launch)


def test_xla_generates_no_matmul_around_what_a_reduction_left() -> None:
    part = ContractionCost(1e-4, made=512 * MB, sources=512 * MB, generated_seconds=1.1e-4)
    p = H100.profile
    assert kernel(H100, part) - kernel(H100, ContractionCost(1e-4)) == pytest.approx(1e-5, rel=0.01)
    stored = p.launch + p.move(1024 * MB)
    assert kernel(H100, replace(part, staged=True)) - kernel(H100, ContractionCost(1e-4)) == pytest.approx(
        stored, rel=0.01
    )


@pytest.mark.parametrize("rows", [1, 2, 1024])
@pytest.mark.parametrize("model", [CPU, H100], ids=["cpu", "h100"])
def test_a_routine_that_xla_compiles_costs_what_xla_makes_of_it(model: KernelCost, rows: int) -> None:
    """The same code, so the same price; less than the millionth part of it has the routine called where they tie."""
    x, w = (ir.var(n, ir.Tensor(s)) for n, s in (("x", f"{rows} 1024"), ("w", "1024 1024")))
    call, product = call_library("xla.matmul", x, w), rx.op.matmul(x, w)
    a, b = (model.price(site_of(e), e.annotation).seconds for e in (call, product))
    assert b * (1 - 1e-6) < a < b


def test_bias_and_residual_are_computed_with_a_matrix_times_a_vector() -> None:
    x, w, b, r = (
        ir.var(n, ir.Tensor(s)) for n, s in (("x", "1 4096"), ("w", "4096 4096"), ("b", "4096"), ("r", "1 4096"))
    )
    plain, routine = call_library("xla.matmul", x, w), call_library("xla.matmul_bias_residual", x, w, b, r)
    a, more = (H100.price(site_of(e), e.annotation).seconds for e in (plain, routine))
    assert more == pytest.approx(a, rel=0.01)


def test_a_workspace_is_written_by_a_kernel_of_its_own() -> None:
    @rx.tensor_program
    def mm_split_k(X: rx.Buffer("64 2048"), W: rx.Buffer("2048 64"), Y: rx.Buffer("64 64")):
        P = rx.script.workspace("8 64 64")
        P[s, i, j] = rx.sum(X[i, s * 256 + k] * W[s * 256 + k, j], over=(k, 256))  # noqa: F821
        Y[i, j] = rx.sum(P[s, i, j], over=(s, 8))  # noqa: F821

    x, w = (ir.var(n, ir.Tensor(s)) for n, s in (("x", "64 2048"), ("w", "2048 64")))
    call: Any = ir.call_tir(mm_split_k, [x, w])
    slow = KernelCost(replace(CPU.profile, launch=CPU.profile.launch + 1.0), {})
    found, again = (m.price(site_of(call), call.annotation).seconds for m in (CPU, slow))
    assert again - found == pytest.approx(2.0)


def test_what_a_reduction_goes_over_is_stored_by_xlas_own_matmul_too() -> None:
    """A product in parts, which are added after: the parts are written and read."""
    p, parts = (
        H100.profile,
        ContractionCost(1e-4, made=512 * MB, sources=512 * MB, result=8 * MB, reduced=True, generated_seconds=1.2e-4),
    )
    whole = ContractionCost(1e-4, made=512 * MB, sources=512 * MB, generated_seconds=1.2e-4)
    assert kernel(H100, parts) - kernel(H100, whole) == pytest.approx(p.launch + p.move(16 * MB), rel=0.01)
