"""Samples that JAX draws by a loop inside a primitive: the gamma distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special

from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.keys import words
from relax_eg.ops.random import bits_of, kind_of, need_keys, split_words
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, register
from relax_eg.ops.sizes import need_equal, product
from relax_eg.tir import Counts

Array = np.ndarray[Any, Any]

# chosen: operations of a sample: about 1.1 rounds, each of three hashes of 120 operations, a logarithm and an inverse
# error function.
_ROUND = 500


def _gamma(site: Site) -> Annotation:
    need_keys(site)
    dtype, keys, shape = site.dtype(1), site.shape(0), site.shape(1)
    if dtype not in ("float32", "float64"):
        raise site.error(f"operand 1 is {dtype}; float32 or float64 is needed")
    if len(keys) > len(shape):
        raise site.error(f"{len(keys)} axes of keys for {len(shape)} of the shape parameter")
    for axis, (p, q) in enumerate(zip(keys, shape, strict=False)):
        need_equal(site, p, q, f"axis {axis} of the keys, and of the shape parameter")
    return Tensor(shape, dtype)


def _uniform(kind: str, key: Array, dtype: np.dtype[Any]) -> Any:
    """Returns a number in [0, 1): one in [1, 2) with random bits as mantissa, less 1."""
    width, mantissa = 8 * dtype.itemsize, np.finfo(dtype).nmant
    unsigned = np.dtype(f"uint{width}")
    bits = bits_of(kind, key, (1,), width) >> unsigned.type(width - mantissa)
    return ((bits | np.ones(1, dtype).view(unsigned)).view(dtype) - dtype.type(1))[0]


def _normal(kind: str, key: Array, dtype: np.dtype[Any]) -> Any:
    low = np.nextafter(dtype.type(-1), dtype.type(0))
    u = max(low, _uniform(kind, key, dtype) * (dtype.type(1) - low) + low)
    return dtype.type(math.sqrt(2)) * dtype.type(scipy.special.erfinv(np.float64(u)))


def _gamma_sample(kind: str, key: Array, alpha: Any, log_space: bool) -> Any:
    """Returns a sample by Marsaglia and Tsang's method (2000), drawing from keys in JAX's order."""
    number = alpha.dtype.type
    boosted = alpha if alpha >= 1 else alpha + number(1)
    d = boosted - number(1 / 3)
    c = number(1 / 3) / np.sqrt(d)
    key, last = split_words(kind, key, (2,))
    square, v3, u = number(0), number(1), number(2)
    while u >= 1 - number(0.0331) * (square * square) and np.log(u) >= square * number(0.5) + d * (1 - v3 + np.log(v3)):
        key, inner, outer = split_words(kind, key, (3,))
        x, v = number(0), number(-1)
        while v <= 0:
            inner, drawn = split_words(kind, inner, (2,))
            x = _normal(kind, drawn, alpha.dtype)
            v = number(1) + x * c
        square, v3 = x * x, v * v * v
        u = _uniform(kind, outer, alpha.dtype)
    rest = number(1) - _uniform(kind, last, alpha.dtype)
    if not log_space:
        return d * v3 * (number(1) if alpha >= 1 else rest ** (1 / alpha))
    boost = number(0) if alpha >= 1 else np.log(rest) / alpha
    return np.log(d) + np.log(v3) + boost


def _gamma_reference(keys: Array, alpha: Array, *, log_space: bool) -> Array:
    kind = kind_of(keys)
    each = math.prod(alpha.shape[keys.ndim :])
    flat = words(keys).reshape(-1, words(keys).shape[-1])
    made = split_words(kind, flat, (each,)).reshape(-1, flat.shape[-1])
    with np.errstate(all="ignore"):
        samples = [_gamma_sample(kind, k, a, log_space) for k, a in zip(made, alpha.reshape(-1), strict=True)]
    return np.array(samples, alpha.dtype).reshape(alpha.shape)


def _gamma_cost(site: Site) -> Counts:
    read = bytes_of(site.operands[0]) + bytes_of(site.operands[1])
    return Counts(product(site.shape(1)) * _ROUND, read, bytes_of(site.operands[1]))


def _jax_gamma(keys: Any, alpha: Any, *, log_space: bool) -> Any:
    from jax.extend.core import primitives

    return primitives.random_gamma_p.bind(keys, alpha, log_space=log_space)


register(
    Operator(
        "random_gamma",
        ("keys", "alpha"),
        _gamma,
        _jax_gamma,
        None,
        (Attribute("log_space", default=False),),
        _gamma_reference,
        _gamma_cost,
        doc="samples of the gamma distribution with these shape parameters, or their logarithms",
    )
)
