"""Running `call_dps_library("jax.<primitive>", ...)`: JAX's own primitives, at known sizes.

The attributes of such a call are the primitive's parameters as tracing found them: sizes as `Dim`s, and objects of
JAX as `Foreign`s, which know their form at given sizes where they have sizes inside (`frontends.jax_sized`). Both get
the sizes of the call, and the primitive is bound to the operands, which may be arrays or the tracers of jit, vmap or
grad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, primitives

from relax_eg.errors import OptionError
from relax_eg.ir.expr import BARRIER
from relax_eg.ir.foreign import Foreign
from relax_eg.shapes import Dim

_PREFIX = "jax."
_DTYPES = ("dtype", "new_dtype", "index_dtype", "preferred_element_type")


def run_library(
    name: str,
    attrs: Mapping[str, Any] | Iterable[tuple[str, Any]],
    sizes: Mapping[str, Any],
    arrays: Sequence[Any],
) -> Any:
    """The result of library routine `name` on `arrays`: an array, or a tuple where the primitive has several results.

    `sizes` gives the size variables that the attributes mention.
    """
    params = dict(attrs)
    if name == "jax.random.wrap_key_data":
        return jax.random.wrap_key_data(jnp.asarray(arrays[0]), impl=_restored("impl", params["impl"], {}))
    if name == BARRIER and not params:  # one of ours, which names no primitive; that of JAX is not public
        return tuple(jax.lax.optimization_barrier(tuple(map(_operand, arrays))))
    given = params.pop("primitive", None)
    primitive = given.value if isinstance(given, Foreign) else _named(name)
    restored = {k: _restored(k, v, sizes) for k, v in params.items()}
    bind_params = primitive.get_bind_params(restored)
    results = primitive.bind(*map(_operand, arrays), **bind_params)
    return tuple(results) if primitive.multiple_results else results


def _operand(value: Any) -> Any:
    # A primitive takes arrays only; tracers, keys and references have a type of their own.
    return value if isinstance(value, jax.Array) or not hasattr(value, "__array__") else jnp.asarray(value)


def _named(name: str) -> Any:
    """The primitive of a routine's name."""
    spelled = name.removeprefix(_PREFIX).replace("-", "_")
    primitive = getattr(primitives, f"{spelled}_p", None) if name.startswith(_PREFIX) else None
    if not isinstance(primitive, Primitive):
        raise OptionError(
            f"no library routine `{name}` in this process\n"
            f"  accepted: the name of one that `RuleSet.library` registered, or `jax.` and a primitive of "
            f"jax.extend.core.primitives, such as `jax.sort`"
        )
    return primitive


def _restored(key: str, value: Any, sizes: Mapping[str, Any]) -> Any:
    """An attribute as the primitive's parameter."""
    if isinstance(value, Foreign):
        found = value.value
        return found.at_sizes(sizes) if hasattr(found, "at_sizes") else found
    if isinstance(value, str) and key in _DTYPES:
        return jnp.dtype(value)
    if isinstance(value, Dim):
        return value.evaluate(sizes)
    if isinstance(value, tuple):
        return tuple(_restored("", v, sizes) for v in value)
    return value
