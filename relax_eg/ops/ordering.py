"""The operator that states an order: a value that exists only after another one.

A compiler that merges equal computations also merges a value with its second computation, and one that orders a program
by itself may compute everything early. `after(x, t)` is `x`, but no compiler may know that before `t` is there. What is
computed from it is therefore neither merged with what is computed from `x` nor computed before `t`.
"""

from __future__ import annotations

from typing import Any

from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.lazy_jax import jax, jnp, lax
from relax_eg.ops.record import Operator, Site, first_operand, register

AFTER = "after"


def _after(site: Site) -> Annotation:
    site.shape(1)
    return Tensor(site.shape(0), site.dtype(0))


def _jax_after(x: Any, t: Any) -> Any:
    """On CPUs XLA drops an `optimization_barrier` before it merges equal computations; there the value is selected by
    a condition on one element of `t` that is never met. LLVM, which comes after XLA, removes the selection. Both may be
    in the memory of the host (`ops.transfers`), which on a CPU is that of the device."""
    host, device = jax.memory.Space.Host, jax.memory.Space.Device

    def is_there(a: Any) -> bool:
        return jax.typeof(a).memory_space == host

    def selected(x: Any, t: Any) -> Any:
        found = _selected(*(jax.device_put(a, device) if is_there(a) else a for a in (x, t)))
        return jax.device_put(found, host) if is_there(x) else found

    if 0 in t.shape:
        return x
    return lax.platform_dependent(x, t, cpu=selected, default=lambda x, t: lax.optimization_barrier((x, t))[0])


def _selected(x: Any, t: Any) -> Any:
    dtypes = jax.dtypes
    if dtypes.issubdtype(t.dtype, dtypes.extended) or dtypes.issubdtype(x.dtype, dtypes.extended):
        return x  # keys have no bits to look at
    first = lax.squeeze(lax.slice(t, [0] * t.ndim, [1] * t.ndim), range(t.ndim))
    if jnp.iscomplexobj(first):
        first = lax.real(first)
    if first.dtype == jnp.bool_:
        first = first.astype(jnp.uint8)
    elif dtypes.itemsize_bits(first.dtype) < 8:  # given: bits of the narrowest integer that has its own bytes
        first = first.astype(jnp.int8 if dtypes.issubdtype(first.dtype, jnp.integer) else jnp.float32)
    bits = lax.bitcast_convert_type(first, f"uint{8 * first.dtype.itemsize}")
    half = lax.shift_right_logical(bits, lax.full_like(bits, 1))  # its first bit is 0
    never = lax.gt(half, lax.full_like(bits, 2 ** (8 * first.dtype.itemsize - 1) - 1))
    return lax.select(lax.broadcast(never, x.shape), lax.full_like(x, 0), x)


register(
    Operator(
        AFTER, ("x", "t"), _after, _jax_after, first_operand, moves="view",
        doc="`x`, which no compiler takes for `x` and which exists only once `t` does",
    )
)  # fmt: skip
