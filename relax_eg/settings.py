"""The settings of JAX that traces depend on, as a hashable value."""

from __future__ import annotations

from collections.abc import Hashable

# `disable_jit.value` is `jax.config.jax_disable_jit` in half the time; `trace_context` is part of the cache key of
# `jax.jit`, and jax.extend does not export it.
from jax._src.config import disable_jit, trace_context

__all__ = ["context_now", "disable_jit", "settings_now"]


def settings_now() -> Hashable:
    """Returns the settings of JAX in force that are part of the cache key of `jax.jit`.

    Other settings, such as `jax_default_prng_impl`, take effect at the first trace for given sizes, as in `jax.jit`.
    The names of axes that are being mapped over are left out, because they are no settings.
    """
    return tuple([x for x in trace_context() if type(x).__name__ != "AxisEnv"])


def context_now() -> Hashable:
    """Returns the settings in force and the names of axes that are being mapped over, in 0.1 µs."""
    return trace_context()
