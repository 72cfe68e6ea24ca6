# ruff: noqa: F821  (the names in a tensor program are its own)
"""Weights of four bits, decoded by a tensor program of the user's: no operator knows of them."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.kernels import InKernels, KernelRunner
from relax_eg.backend.lowering.lower import run_function
from relax_eg.backend.lowering.tiles import TILE_BYTES
from relax_eg.ops.interpret import evaluate
from relax_eg.tir import PatternKind, classify
from relax_eg.tir import evaluate as evaluate_program

GROUP = 32  # rows of the weight that share a scale


@rx.tensor_program
def decode_q4(
    words: rx.Buffer("4*g m", "uint32"), scales: rx.Buffer("g m", "float32"), W: rx.Buffer("32*g m", "float32")
):
    nibble = (words[i // 8, j] >> cast(index(i % 8 * 4), "uint32")) & const(15, "uint32")
    W[i, j] = (cast(nibble, "float32") - 8.0) * scales[i // 32, j]


def packed(k: int, m: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Words, scales, and the weight that they stand for, decoded by numpy."""
    rng = np.random.default_rng(seed)
    nibbles = rng.integers(0, 16, (k, m))
    words = np.zeros((k // 8, m), np.uint32)
    for row in range(k):
        words[row // 8] |= nibbles[row].astype(np.uint32) << np.uint32(row % 8 * 4)
    scales = rng.uniform(0.5, 2, (k // GROUP, m)).astype(np.float32)
    return words, scales, ((nibbles - 8) * np.repeat(scales, GROUP, 0)).astype(np.float32)


def quantised_matmul() -> rx.types.Module:
    specs = {"x": "n 32*g", "words": "4*g m @ uint32", "scales": "g m"}
    x, words, scales = (ir.var(name, ir.Tensor(spec)) for name, spec in specs.items())
    weight = ir.call_tir(decode_q4, [words, scales])
    return rx.types.Module((ir.pure_function("main", [x, words, scales], [rx.op.matmul(x, weight)]),))


def test_decoding_is_injective() -> None:
    words, scales, weight = packed(64, 6)
    assert classify(decode_q4) is PatternKind.INJECTIVE
    np.testing.assert_array_equal(evaluate_program(decode_q4, [words, scales], {"g": 2, "m": 6})[0], weight)


@pytest.mark.parametrize("n", [1, 5, 64])  # decode and prefill
@pytest.mark.parametrize(("k", "m"), [(32, 1), (64, 48), (256, 40)])
def test_matmul_with_a_quantised_weight(n: int, k: int, m: int) -> None:
    module = quantised_matmul()
    words, scales, weight = packed(k, m)
    x = np.random.default_rng(1).standard_normal((n, k)).astype(np.float32)
    best = rx.optimize(module, at=[{"n": 1, "g": 4, "m": 64}, {"n": 128, "g": 4, "m": 64}], weights=("words", "scales"))
    for got in (evaluate(module, [x, words, scales]), best(x, words, scales), jax.jit(best.to_jax())(x, words, scales)):
        np.testing.assert_allclose(got, x @ weight, rtol=1e-4, atol=1e-3)


def test_no_gather_is_left() -> None:
    """Words are read once: blocks of eight and groups of 32 are reshapes."""
    from relax_eg.backend.lowering.tensor_programs import lower_program

    words, scales, _ = packed(64, 6)
    text = str(jax.make_jaxpr(lower_program(decode_q4, {"g": 2, "m": 6}))(words, scales))
    assert "gather" not in text and "dynamic" not in text


@pytest.mark.parametrize("n", [1, 128])
def test_the_weight_is_never_in_memory(n: int) -> None:
    """No kernel gives a value of the weight's size: it is decoded inside the kernel of the matmul that reads it."""
    at = {"n": n, "g": 8, "m": 192}
    best = rx.optimize(quantised_matmul(), at=at, execution="kernels")
    assert isinstance(best, InKernels)
    made = [e.annotation for e in best.runner.kernels()]
    assert made == [ir.Tensor("n m")]
    (row,) = best.report.kernels
    assert row.operators == ("decode_q4", "matmul")
    assert best.report.after.bytes < best.report.before.bytes / 2
    words, scales, weight = packed(256, 192)
    x = np.random.default_rng(1).standard_normal((n, 256)).astype(np.float32)
    np.testing.assert_allclose(best(x, words, scales), x @ weight, rtol=1e-4, atol=1e-3)


def test_one_row_is_a_contraction() -> None:
    module = rx.optimize(quantised_matmul(), at={"n": 1, "g": 8, "m": 192}, execution="kernels").module
    words, scales, _ = packed(256, 192)
    x = np.ones((1, 256), np.float32)
    text = str(jax.make_jaxpr(lambda *given: run_function(module, module.main, given))(x, words, scales))
    assert text.count("dot_general") == 2 and "reduce_sum" not in text  # one on CPUs, in tiles; one elsewhere


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("width", [256, 1024, 4096])
def test_no_executable_stores_the_weight(n: int, width: int) -> None:
    """One kernel; where XLA's account leaves nothing out, a tile of the weight is all that it ever stores."""
    at = {"n": n, "g": width // GROUP, "m": width}
    best = rx.optimize(quantised_matmul(), at=at, execution="kernels")
    assert isinstance(best, InKernels)
    (needed,) = KernelRunner(best.module, FRUGAL).temporary_bytes(at).values()
    weight, tile = 4 * width * width, TILE_BYTES * len(os.sched_getaffinity(0))
    x_and_more = 4 * 4 * n * width
    assert needed < min(0.6 * weight, 1.2 * tile) + x_and_more
    if width == 1024:
        words, scales, decoded = packed(width, width)
        x = np.random.default_rng(1).standard_normal((n, width)).astype(np.float32)
        np.testing.assert_allclose(best(x, words, scales), x @ decoded, rtol=1e-4, atol=1e-2)


@pytest.mark.xla_defaults
@pytest.mark.parametrize("n", [1, 8])
def test_one_program_does_not_store_a_large_weight(n: int) -> None:
    """`execution="whole"`: the decoder is written in JAX, or a tensor program of one's own."""
    width = 2048
    words, scales, decoded = packed(width, width)
    x = np.random.default_rng(2).standard_normal((n, width)).astype(np.float32)

    def dequantised(words: Any, scales: Any, x: Any) -> Any:
        nibbles = (words[:, None] >> (jnp.arange(8, dtype="uint32") * 4)[:, None]) & 15
        weight = (nibbles.reshape(-1, width).astype("float32") - 8.0).reshape(-1, GROUP, width)
        return x @ (weight * scales[:, None]).reshape(width, width)

    specs = f"{width // 8} {width} @ uint32", f"{width // GROUP} {width}", f"n {width}"
    best = rx.optimize(dequantised, *specs, at={"n": n}, target="cpu")
    assert best.report.rules["decoded_inside"] == 1 and "R.matmul" not in str(best.module)
    compiled = jax.jit(best.to_jax()).lower(words, scales, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.6 * 4 * width * width
    np.testing.assert_allclose(best(words, scales, x), x @ decoded, rtol=1e-4, atol=2e-2)
    narrow = rx.optimize(quantised_matmul(), at={"n": n, "g": 4, "m": 128}, target="cpu")
    assert narrow.report.kept_as_written
