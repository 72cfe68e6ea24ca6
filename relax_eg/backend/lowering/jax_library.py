"""Runs `call_dps_library("jax.<primitive>", ...)`: JAX's own primitives, at known sizes.

The attributes of such a call are the primitive's parameters as traced: sizes as `Dim`s, and objects of JAX as
`Foreign`s. Those that contain sizes know their form at given sizes (`frontends.jax.sized`). The sizes of the call are
substituted in both, and the primitive is bound to the operands: arrays, or tracers of jit, vmap or grad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from relax_eg.errors import OptionError
from relax_eg.ir.expr import BARRIER
from relax_eg.ir.foreign import Foreign
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from jax.extend.core import Primitive

_PREFIX = "jax."

# The primitives that a file may name: they compute arrays from arrays, and their parameters are plain values. Others
# take functions, have effects, or have a meaning inside a mesh only.
_PLAIN = frozenset(
    (
        "abs acos acosh add add_jaxvals and approx_top_k argmax argmin asin asinh atan atan2 atanh bessel_i0e "
        "bessel_i1e bitcast_convert_type broadcast_in_dim cbrt ceil cholesky clamp clz complex concatenate conj "
        "conv_general_dilated convert_element_type copy cos cosh cumlogsumexp cummax cummin cumprod cumsum digamma div "
        "dot_general dynamic_slice dynamic_update_slice eig eigh eq eq_to erf erf_inv erfc exp exp2 fft floor gather "
        "ge gt hessenberg householder_product igamma igamma_grad_a igammac imag integer_pow iota is_finite le le_to "
        "lgamma log log1p logistic lt lt_to lu max min mul ne neg nextafter not or pad polygamma population_count pow "
        "qr random_bits random_fold_in random_gamma random_seed random_split real reduce_and reduce_max reduce_min "
        "reduce_or reduce_precision reduce_prod reduce_sum reduce_window_max reduce_window_min reduce_window_sum "
        "reduce_xor regularized_incomplete_beta rem reshape rev rng_bit_generator rng_uniform round rsqrt scatter "
        "scatter_add scatter_max scatter_min scatter_mul schur select_and_gather_add select_and_scatter_add select_n "
        "shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice sort sqrt square squeeze "
        "stop_gradient sub svd tan tanh threefry2x32 top_k transpose triangular_solve tridiagonal tridiagonal_solve "
        "xor zeta"
    ).split()
)
_DTYPES = ("dtype", "new_dtype", "index_dtype", "preferred_element_type")


@lru_cache(1)
def _public() -> Mapping[str, Primitive]:
    from jax.extend.core import Primitive, primitives  # imports Pallas, which a loaded program may not need

    return {name.removesuffix("_p"): p for name, p in vars(primitives).items() if isinstance(p, Primitive)}


def plain_primitives() -> Mapping[str, Primitive]:
    """The primitives that a file may name, by name."""
    return {name: p for name, p in _public().items() if name in _PLAIN}


def run_library(
    name: str,
    attrs: Mapping[str, Any] | Iterable[tuple[str, Any]],
    sizes: Mapping[str, Any],
    arrays: Sequence[Any],
) -> Any:
    """The result of library routine `name` on `arrays`: an array, or a tuple where the primitive has several results.

    `sizes`: values of the size variables that the attributes mention.
    """
    params = dict(attrs)
    if name == "jax.random.wrap_key_data":
        return jax.random.wrap_key_data(jnp.asarray(arrays[0]), impl=_restored("impl", params["impl"], {}))
    if name == BARRIER and not params:  # our own barrier, which names no primitive; JAX's primitive is not public
        return tuple(jax.lax.optimization_barrier(tuple(map(_operand, arrays))))
    given = params.pop("primitive", None)
    primitive = given.value if isinstance(given, Foreign) else _named(name)
    restored = {k: _restored(k, v, sizes) for k, v in params.items()}
    bind_params = primitive.get_bind_params(restored)
    results = primitive.bind(*map(_operand, arrays), **bind_params)
    return tuple(results) if primitive.multiple_results else results


def is_plain(name: str) -> bool:
    """Whether a file may call library routine `name` of JAX."""
    spelled = name.removeprefix(_PREFIX).replace("-", "_")
    return name in (BARRIER, "jax.random.wrap_key_data") or (name.startswith(_PREFIX) and spelled in plain_primitives())


def _operand(value: Any) -> Any:
    # A primitive takes arrays only. Tracers, keys and references, which have types of their own, stay as they are.
    return value if isinstance(value, jax.Array) or not hasattr(value, "__array__") else jnp.asarray(value)


def _named(name: str) -> Any:
    """The primitive with this routine's name. OptionError where there is none."""
    spelled = name.removeprefix(_PREFIX).replace("-", "_")
    primitive = _public().get(spelled) if name.startswith(_PREFIX) else None
    if primitive is None:
        raise OptionError(
            f"no library routine `{name}` in this process\n"
            f"  accepted: the name of one that `RuleSet.library` registered, or `jax.` and a primitive of "
            f"jax.extend.core.primitives, such as `jax.sort`"
        )
    return primitive


def _restored(key: str, value: Any, sizes: Mapping[str, Any]) -> Any:
    """An attribute as a parameter of the primitive, with sizes substituted."""
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
