"""Memory of programs for GPUs that are not here: limits, and programs that store little in place of others."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.driver.prices import NO_WORSE, OWN_KERNELS_DOUBT, is_no_dearer

pytestmark = [
    pytest.mark.xla_defaults,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda12") is None,
        reason="relax-eg[cuda] is not installed",
    ),
]
AT = {"s": 2048}
SCORES = 16 * 2048 * 2048  # elements
OPTIONS: dict[str, Any] = {"at": AT, "measure": "off", "dynamic": "exact"}


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    s = q.shape[2]
    logits = jnp.matmul(q, k.transpose(0, 1, 3, 2), preferred_element_type=jnp.float32) * 128**-0.5
    logits = jnp.where(jnp.tril(jnp.ones((s, s), bool)), logits, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(logits, axis=-1).astype(v.dtype) @ v


def heads(width: int, dtype: str) -> tuple[str, str, str]:
    return (f"1 16 s {width} @ {dtype}",) * 3


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_a_limit_counts_what_kernels_through_pallas_store(execution: Any) -> None:
    limit = SCORES  # bytes: half of the scores in bfloat16
    best = rx.optimize(
        attention, *heads(64, "bfloat16"), target="a100", execution=execution, memory_limit=limit, **OPTIONS
    )
    (made,) = best.compile("a100").programs
    assert made.kinds == {"Pallas": 1} and made.temporary_bytes == 0
    assert best.report.memory.bytes <= limit and best.report.memory.temporary == made.temporary_bytes


@pytest.mark.parametrize(
    ("execution", "device", "dtype"),
    [("kernels", "a100", "bfloat16"), ("kernels", "a100", "float32"), ("kernels", "rtx4090", "bfloat16")],
)
def test_scores_are_not_stored_for_a_softmax_that_is_divided_last(execution: Any, device: str, dtype: str) -> None:
    best = rx.optimize(attention, *heads(64, dtype), target=device, execution=execution, **OPTIONS)
    (made,) = best.compile(device).programs
    assert made.kinds == {"Pallas": 1} and made.temporary_bytes == 0


@pytest.mark.slow
def test_a_program_that_stores_little_takes_the_place_of_one_that_takes_as_long() -> None:
    best = rx.optimize(causal, *heads(128, "bfloat16"), target="a100", **OPTIONS)
    assert best.report.before.memory.temporary >= 2 * SCORES
    assert best.report.after.memory.temporary == 0
    assert 1 < best.report.predicted_gain < 1.15  # little else speaks for it
    even = rx.optimize(causal, *heads(128, "float32"), target="a100", **OPTIONS)
    assert even.report.after.memory.temporary == 0
    assert 1 / NO_WORSE < even.report.predicted_gain < OWN_KERNELS_DOUBT  # nothing but memory speaks for it
    many = rx.optimize(causal, *heads(128, "float32"), target="h100", **OPTIONS)
    assert many.report.kept_as_written  # its kernel would take much longer


def test_the_choice_of_a_program_that_stores_little_is_explained() -> None:
    best = rx.optimize(attention, *heads(64, "bfloat16"), target="rtx4090", execution="kernels", **OPTIONS)
    assert best.report.searched_for.startswith("with a byte in memory at ")
    assert "in kernels, each composed of the equations of its operators" in str(best.explain())


def test_of_kernels_that_cost_the_same_by_equations_the_one_that_stores_less_is_chosen() -> None:
    """Products of bfloat16 as float32 are twice the bytes, which XLA stores before it adds them up."""
    n = 4096
    best = rx.optimize(
        lambda a, b: jnp.trace(a @ b), *(f"{n} {n} @ bfloat16",) * 2, target="h100", execution="kernels", measure="off"
    )
    (made,) = best.compile("h100").programs
    assert not best.report.kept_as_written
    assert "matmul" not in str(best.module)
    assert made.temporary_bytes <= NO_WORSE * 2 * n * n


def test_a_few_temporary_bytes_are_not_compared() -> None:
    """In kernels, only where both programs need few."""
    few, some, more, many = 48 << 10, 184 << 10, 224 << 10, 288 << 10
    for in_kernels in (True, False):
        assert is_no_dearer((1.0, few), (1.0, 0), in_kernels)
        assert is_no_dearer((1.0, some), (1.0, some), in_kernels)
        assert is_no_dearer((1.0, more), (1.0, some), in_kernels) == (not in_kernels)
        assert not is_no_dearer((1.0, more), (1.0, few), in_kernels)
        assert not is_no_dearer((1.0, many), (1.0, some), in_kernels)
