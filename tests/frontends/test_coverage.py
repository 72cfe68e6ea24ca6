"""The coverage table: what of JAX stays opaque is known by name."""

from __future__ import annotations

import pytest

from benchmarks.coverage import GROUPS, cover

# By group, what has no operator. docs/coverage.md says why.
KNOWN: dict[str, set[str]] = {
    "jax.nn": set(),
    "models": set(),
    "jax.image": set(),
    "linear algebra, fft": {"jax.eigh"},  # a part of the eigenvalues, which JAX has on TPU only
    "jax.random": {"jax.random_seed", "jax.random_bits"},  # keys of kinds other than threefry and rbg
    "jax.lax": {"jax.optimization_barrier", "jax.reduce", "jax.rng_uniform"},
    "convolutions, windows": set(),
    "contractions, attention": {"jax.dot_general", "jax.scaled_matmul_wrapper"},
    "reads and writes": {"jax.scatter"},  # at[].apply where positions may meet
}


@pytest.mark.parametrize("group", KNOWN)
def test_opaque_primitives_are_known(group: str) -> None:
    found = [cover(name, fn, specs) for name, (fn, specs) in GROUPS[group].items()]
    assert not [r for r in found if r.error]
    assert {primitive for r in found for primitive in r.opaque} <= KNOWN[group]
