"""The settings of JAX that traces depend on, as a hashable value."""

from __future__ import annotations

from collections.abc import Hashable

from jax._src.config import trace_context  # what `jax.jit` looks its own traces up by; jax.extend has no name for it


def settings_now() -> Hashable:
    """The settings in force here that are part of the cache key of `jax.jit`.

    Other settings, such as `jax_default_prng_impl`, take effect at the first trace for given sizes, as in `jax.jit`.
    Names of axes that are being mapped over are left out: they are no settings.
    """
    return tuple([x for x in trace_context() if type(x).__name__ != "AxisEnv"])
