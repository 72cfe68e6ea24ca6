"""Operators that have another lowering on CPUs: their results are those of JAX's own, and they replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg.ops import get

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16")


def integers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    """Values of the whole range of a dtype."""
    rng, bits = np.random.default_rng(seed), 1 if dtype == "bool" else 8 * np.dtype(dtype).itemsize
    return jnp.asarray(rng.integers(0, 1 << bits, shape)).astype(dtype)


def has_another_form(fn: Callable[..., Any], *given: Any) -> bool:
    """Whether a function has another lowering on CPUs (`ops.on_cpus`)."""
    return "custom_jvp_call" in str(jax.make_jaxpr(fn)(*given))


# --- products of small integers ---

PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((40, 64), (64, 33)),
    "few rows": ((2, 200), (200, 16)),
    "batches": ((3, 5, 70), (3, 70, 20)),
    "batches of rows": ((3, 5, 70), (70, 20)),
    "one batch for all": ((5, 70), (3, 70, 20)),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_small_integers_wrap_as_those_of_jax(name: str, dtype: str) -> None:
    a, b = (integers(dtype, shape, i) for i, shape in enumerate(PRODUCTS[name]))
    matmul = get("matmul").jax_function()
    outs = {"u": (None, "uint32", "int32"), "i": (None, "int32"), "b": (None,)}[np.dtype(dtype).kind]
    for out in outs:

        def ours(a: Any, b: Any, out: Any = out) -> Any:
            return matmul(a, b, precision=None, out_dtype=out)

        def plain(a: Any, b: Any, out: Any = out) -> Any:
            return jnp.matmul(a, b, preferred_element_type=out)

        found, wanted = jax.jit(ours)(a, b), jax.jit(plain)(a, b)
        assert found.dtype == wanted.dtype and jnp.array_equal(found, wanted)
        assert has_another_form(ours, a, b) == (out is None or dtype.startswith("u"))


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_products_with_a_transposed_weight_are_such_products(dtype: str) -> None:
    x, w, linear = integers(dtype, (9, 100)), integers(dtype, (40, 100), 1), get("linear").jax_function()
    assert jnp.array_equal(jax.jit(linear)(x, w), x @ w.T)
    assert has_another_form(linear, x, w)


@pytest.mark.parametrize(
    ("dtype", "a", "b"),
    [
        ("int8", (1, 512), (512, 512)),
        ("int8", (512, 512), (512,)),
        ("int8", (64, 32), (32, 64)),
        ("int32", (64,) * 2, (64,) * 2),
    ],
)
def test_products_that_loops_compute_sooner_are_left(dtype: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    matmul = get("matmul").jax_function()
    given = integers("int8", a).astype(dtype), integers("int8", b, 1).astype(dtype)
    assert not has_another_form(lambda a, b: matmul(a, b, precision=None, out_dtype=None), *given)


@pytest.mark.parametrize("fn", [jnp.matmul, lambda a, b: jnp.einsum("ij,jk->ki", a, b), lambda a, b: lax.dot(a, b) + a])
def test_programs_with_products_of_bytes_replace_those_as_written(fn: Any) -> None:
    best = rx.optimize(fn, "256 256 @ int8", "256 256 @ int8", target="cpu")
    assert best.report.predicted_gain > 3 and not best.report.kept_as_written
    given = integers("int8", (256, 256)), integers("int8", (256, 256), 1)
    assert jnp.array_equal(best(*given), fn(*given))


def test_products_of_bytes_at_capacity_and_of_symbolic_sizes() -> None:
    best = rx.optimize(jnp.matmul, "n 256 @ int8", "256 64 @ int8", dynamic="capacity", target="cpu")
    matmul, b = get("matmul").jax_function(), integers("int8", (256, 64), 1)
    n = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 256"), jnp.int8)
    exported = jax.export.export(jax.jit(lambda a: matmul(a, b, precision=None, out_dtype=None)))(n)
    for n in (1, 7, 40):
        a = integers("int8", (n, 256), n)
        assert jnp.array_equal(best(a, b), a @ b) and jnp.array_equal(exported.call(a), a @ b)
