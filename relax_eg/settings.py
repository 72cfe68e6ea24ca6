"""The settings of JAX that what is traced depends on, as something to compare and to look up by."""

from __future__ import annotations

from collections.abc import Hashable

from jax._src.config import trace_context  # what `jax.jit` looks its own traces up by; jax.extend has no name for it


def settings_now() -> Hashable:
    """The settings in force here that are part of the key of `jax.jit`. Those that are not, such as
    `jax_default_prng_impl`, count where sizes are traced for the first time, here as there. The names of axes that are
    being mapped over are no settings."""
    return tuple([x for x in trace_context() if type(x).__name__ != "AxisEnv"])
