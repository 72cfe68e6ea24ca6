"""Operators that XLA's compiler for CPUs computes much more slowly in one form than in another.

Such an operator has a second lowering, which is taken on CPUs alone. Programs for other devices do not change.
`Operator.slower` says how much longer JAX's own lowering takes, for prices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_eg.ops.lazy_jax import jax, lax


def on_cpus(ours: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function `ours` on CPUs and `plain` elsewhere, with the derivatives of `plain`. Both take arrays and return
    the same."""

    def lowered_on_cpus(*xs: Any) -> Any:
        return lax.platform_dependent(*xs, cpu=ours, default=plain)

    run = jax.custom_jvp(jax.jit(lowered_on_cpus))
    run.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return run


def plain_jaxpr(eqn: Any) -> Any:
    """What the function `plain` computes, a jaxpr, of an equation that `on_cpus` made; None for other equations."""
    if eqn.params.get("name") != "lowered_on_cpus":
        return None
    by_platform = [e.params["branches"] for e in eqn.params["jaxpr"].eqns if "branches_platforms" in e.params]
    return by_platform[0][-1] if by_platform else None


def is_at_least(size: Any, least: int) -> bool:
    """Whether a size is at least a number; a symbolic size of JAX counts as large."""
    return not isinstance(size, (int, float)) or size >= least
