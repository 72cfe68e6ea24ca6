"""The coverage table: what of JAX stays opaque is known by name."""

from __future__ import annotations

import pytest

from benchmarks.coverage import GROUPS, cover

# Control flow is translated elsewhere; random bits, eigenvalues of general matrices and approximate top-k have no
# reference semantics; `at[].apply` scatters with a function.
KNOWN = {
    "jax.scan", "jax.while", "jax.cond", "jax.random_bits", "jax.rng_bit_generator", "jax.eig", "jax.approx_top_k",
    "jax.scatter",
}  # fmt: skip


@pytest.mark.parametrize("group", ["models", "jax.nn", "linear algebra, fft", "jax.lax"])
def test_opaque_primitives_are_known(group: str) -> None:
    found = [cover(name, fn, specs) for name, (fn, specs) in GROUPS[group].items()]
    assert not [r for r in found if r.error]
    opaque = {primitive for r in found for primitive in r.opaque}
    assert opaque <= (set() if group in ("models", "jax.nn") else KNOWN)
