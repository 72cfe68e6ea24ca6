"""Sampling from the gamma distribution, which JAX does by a loop inside a primitive."""

from __future__ import annotations

from typing import Any

from relax_eg.dtypes import FLOATS, HALF
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.lazy_jax import primitives
from relax_eg.ops.random import jax_reference, need_keys
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, register
from relax_eg.ops.sizes import need_equal, product
from relax_eg.tir import Counts

# chosen: operations of a sample: about 1.1 rounds, each of three hashes of 120 operations, a logarithm and an inverse
# error function.
_ROUND = 500


def _gamma(site: Site) -> Annotation:
    need_keys(site)
    dtype, keys, shape = site.dtype(1), site.shape(0), site.shape(1)
    if dtype not in FLOATS or dtype in HALF:
        raise site.error(f"operand 1 is {dtype}; float32 or float64 is needed")
    if len(keys) > len(shape):
        raise site.error(f"{len(keys)} axes of keys for {len(shape)} of the shape parameter")
    for axis, (p, q) in enumerate(zip(keys, shape, strict=False)):
        need_equal(site, p, q, f"axis {axis} of the keys, and of the shape parameter")
    return Tensor(shape, dtype)


def _gamma_cost(site: Site) -> Counts:
    read = bytes_of(site.operands[0]) + bytes_of(site.operands[1])
    return Counts(product(site.shape(1)) * _ROUND, read, bytes_of(site.operands[1]))


def _jax_gamma(keys: Any, alpha: Any, *, log_space: bool) -> Any:
    return primitives.random_gamma_p.bind(keys, alpha, log_space=log_space)


register(
    Operator(
        "random_gamma",
        ("keys", "alpha"),
        _gamma,
        _jax_gamma,
        None,
        (Attribute("log_space", default=False),),
        jax_reference(_jax_gamma),
        _gamma_cost,
        capacity="elementwise",
        doc="samples of the gamma distribution with these shape parameters, or their logarithms",
    )
)
