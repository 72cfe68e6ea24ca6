"""Loops that XLA for CPUs compiles as one kernel with all of their steps.

A call with `xla_cpu_small_call` becomes one function of machine code, in which nothing is launched. XLA raises an error
where a library is needed inside, which prices foresee (`extract.costs.cost`) for programs as they were searched. So a
loop is compiled by itself first, and stays as it is where XLA refuses that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from relax_eg.backend.accounting import compiled_for_account, is_on_cpu
from relax_eg.memo import Memo

log = logging.getLogger(__name__)

_MOST_KNOWN = 1 << 10  # limit: loops of which it is known whether XLA compiles them as one kernel
_known = Memo[bytes, bool](_MOST_KNOWN)


def in_one_kernel(loop: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    """The result of `loop` for arrays or tracers, in one kernel if XLA compiles it so here; under `jax.vmap`, which
    changes the sizes inside, as usual. Programs that XLA may divide among devices are left to it, and sizes have to be
    known."""
    is_known = all(isinstance(n, int) for x in arrays for n in x.shape)
    if not is_on_cpu() or len(jax.devices()) > 1 or not is_known:
        return loop(*arrays)

    @jax.custom_batching.custom_vmap
    def run(*xs: Any) -> Any:
        return _as_one(loop)(*xs) if _compiles(loop, xs) else loop(*xs)

    @run.def_vmap
    def batched(size: int, mapped: list[bool], *xs: Any) -> tuple[Any, Any]:
        out = jax.vmap(loop, tuple(0 if m else None for m in mapped), axis_size=size)(*xs)
        return out, jax.tree_util.tree_map(lambda _: True, out)

    return run(*arrays)


def _as_one(loop: Callable[..., Any]) -> Callable[..., Any]:
    def run(*xs: Any) -> Any:
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return jax.jit(loop)(*xs)

    return run


def _compiles(loop: Callable[..., Any], xs: tuple[Any, ...]) -> bool:
    """Whether XLA compiles a loop as one kernel."""
    lowered = jax.jit(_as_one(loop)).lower(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs))
    key = blake2b(lowered.as_text().encode()).digest()
    if key not in _known:
        try:
            compiled_for_account(lowered)
            _known[key] = True
        except jax.errors.JaxRuntimeError as error:
            log.info("a loop is not one kernel: XLA says %s", str(error).partition("\n")[0])
            _known[key] = False
    return _known[key]
