"""Products of transposed matrices and transposes of products: what XLA for CPUs makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx

SLOW = re.compile(r" dot\(.*lhs_contracting_dims={(\d)}, .*rhs_contracting_dims={(\d)}")
FORMS: dict[str, tuple[Callable[..., Any], tuple[str, str]]] = {
    "transpose of a product": (lambda x, w: (x @ w).T, ("8 256", "256 512")),
    "einsum": (lambda x, w: jnp.einsum("bk,kn->nb", x, w), ("8 256", "256 512")),
    "product of transposes": (lambda x, w: x.T @ w.T, ("256 8", "512 256")),
    "product of transposes, many rows": (lambda x, w: x.T @ w.T, ("256 300", "512 256")),
    "batches": (lambda x, w: jnp.swapaxes(x, 1, 2) @ jnp.swapaxes(w, 1, 2), ("2 256 8", "2 512 256")),
    "batch, transposed": (lambda x, w: jnp.swapaxes(x @ w, 1, 2), ("2 8 256", "2 256 512")),
    "read by another product": (lambda x, w: jnp.tanh((x @ w).T) @ x, ("8 256", "256 512")),
}


def arrays(specs: tuple[str, ...], dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(-4, 5, tuple(map(int, s.split()))), dtype) for s in specs]


def has_slow_form(fn: Callable[..., Any], *given: Any) -> bool:
    """Whether a product of a left operand that is stored with the summed axis first, and a right one with it last, is
    in what XLA compiles."""
    text = jax.jit(fn).lower(*given).compile().as_text() or ""
    last = given[0].ndim - 1
    return any((int(a), int(b)) == (last - 1, last) for a, b in SLOW.findall(text))


@pytest.mark.xla_defaults
@pytest.mark.parametrize("name", FORMS)
def test_no_product_is_of_two_transposed_matrices(name: str) -> None:
    fn, specs = FORMS[name]
    best, given = rx.optimize(fn, *specs, target="cpu"), arrays(specs)
    assert has_slow_form(fn, *given) and not has_slow_form(best.to_jax(), *given)
    assert best.report.predicted_gain > 1.1 and not best.report.kept_as_written
    assert jnp.allclose(best(*given), fn(*given))


@pytest.mark.xla_defaults
def test_small_products_are_left_to_xla() -> None:
    best = rx.optimize(lambda x, w: (x @ w).T, "8 64", "64 64", target="cpu")
    assert best.report.kept_as_written


def test_the_report_says_why_the_same_operators_are_faster() -> None:
    fn, specs = FORMS["transpose of a product"]
    best = rx.optimize(fn, *specs, target="cpu")
    assert "rules used: none: these operators, lowered otherwise than JAX does" in str(best.report)
    assert "lowered otherwise" not in str(rx.optimize(lambda x: x + 1.0, "8", target="cpu").report)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "complex64"])
@pytest.mark.parametrize("name", ["transpose of a product", "product of transposes"])
def test_values_do_not_depend_on_the_order(name: str, dtype: str) -> None:
    fn, specs = FORMS[name]
    given = arrays(specs, dtype)
    best = rx.optimize(fn, *(f"{s} @ {dtype}" for s in specs), target="cpu")
    assert jnp.array_equal(best(*given), fn(*given))


def test_sizes_at_capacity_and_derivatives() -> None:
    fn, _ = FORMS["transpose of a product"]
    best = rx.optimize(fn, "n 256", "256 512", bounds={"n": (1, 64)}, dynamic="capacity", target="cpu")
    for n in (3, 40):
        given = arrays((f"{n} 256", "256 512"))
        assert jnp.array_equal(best(*given), fn(*given))
        slopes = [jax.vjp(f, *given)[1](fn(*given))[0] for f in (best.to_jax(), fn)]
        assert jnp.allclose(*slopes)
        stacked = jnp.stack([given[0], 2 * given[0]])
        assert jnp.allclose(*(jax.vmap(f, (0, None))(stacked, given[1]) for f in (best.to_jax(), fn)))


@pytest.mark.xla_defaults
@pytest.mark.parametrize("shape", ["1 4096", "4096"])
def test_a_long_row_times_a_transposed_weight_does_not_copy_it(shape: str) -> None:
    """From rows of 16 KiB on XLA does not read a transposed matrix in the kernel of its product with one row."""
    specs = (shape, "64 4096")

    def temporary(fn: Any) -> int:
        return jax.jit(fn).lower(*arrays(specs)).compile().memory_analysis().temp_size_in_bytes

    best = rx.optimize(lambda x, w: x @ w.T, *specs, target="cpu")
    assert best.report.predicted_gain > 1.5
    assert temporary(lambda x, w: x @ w.T) >= 4 * 64 * 4096 > 10 * temporary(best.to_jax())
