"""StableHLO operations as calls of `jax.lax`, one each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.combining import COMBINING
from relax_eg.frontends.stablehlo.lapack import cholesky
from relax_eg.frontends.stablehlo.loops import as_scan
from relax_eg.frontends.stablehlo.ordering import sort
from relax_eg.frontends.stablehlo.use import Use, pairs, word_in


def _unary(f: Callable[..., Any]) -> Callable[[Use], Any]:
    return lambda u: f(u.args[0])


def _binary(f: Callable[..., Any]) -> Callable[[Use], Any]:
    return lambda u: f(u.args[0], u.args[1])


def _said_of_product(u: Use) -> dict[str, Any]:
    """The dtype in which a product of arrays is summed, if it is not theirs, and its precision."""
    same = {x.dtype for x in u.args[:2]} == {jnp.dtype(u.dtype)}
    words = [word_in(w) for w in u.at("precision_config", ())]
    chosen = tuple(getattr(lax.Precision, w) for w in words) if {*words} - {"DEFAULT"} else None
    return {"preferred_element_type": None if same else jnp.dtype(u.dtype), "precision": chosen}


def _dot_general(u: Use) -> Any:
    d = u.at("dot_dimension_numbers")
    numbers = (
        (d["lhs_contracting_dimensions"], d["rhs_contracting_dimensions"]),
        (d["lhs_batching_dimensions"], d["rhs_batching_dimensions"]),
    )
    return lax.dot_general(u.args[0], u.args[1], numbers, **_said_of_product(u))


def _convolution(u: Use) -> Any:
    d = u.at("dimension_numbers")
    spec = lax.ConvDimensionNumbers(
        (d["input_batch_dimension"], d["input_feature_dimension"], *d["input_spatial_dimensions"]),
        (d["kernel_output_feature_dimension"], d["kernel_input_feature_dimension"], *d["kernel_spatial_dimensions"]),
        (d["output_batch_dimension"], d["output_feature_dimension"], *d["output_spatial_dimensions"]),
    )
    x, w = u.args[:2]
    space = len(d["input_spatial_dimensions"])
    turned = [d["kernel_spatial_dimensions"][i] for i, yes in enumerate(u.at("window_reversal", ())) if yes]
    padding, dilation = pairs(u.sizes(2, "padding", (0,) * (2 * space))), u.at("lhs_dilation") or (1,) * space
    if any(not isinstance(size, int) for pair in padding for size in pair):  # `jax.lax` takes only numbers
        widths = [(0, 0, 0)] * x.ndim
        for axis, (low, high), step in zip(d["input_spatial_dimensions"], padding, dilation, strict=True):
            widths[axis] = (low, high, step - 1)
        x, padding, dilation = lax.pad(x, jnp.zeros((), x.dtype), widths), [(0, 0)] * space, (1,) * space
    return lax.conv_general_dilated(
        x, lax.rev(w, turned) if turned else w, tuple(u.at("window_strides", (1,) * space)), padding, tuple(dilation),
        u.at("rhs_dilation"), spec, u.at("feature_group_count", 1), u.at("batch_group_count", 1), **_said_of_product(u),
    )  # fmt: skip


def _while(u: Use) -> Any:
    condition, body = map(u.function, u.op.regions)
    if (found := as_scan(condition, body, u.args, u.known)) is not None:
        return found
    return list(lax.while_loop(lambda c: condition(*c)[0], lambda c: tuple(body(*c)), tuple(u.args)))


def _case(u: Use) -> Any:
    branches = [u.function(r) for r in u.op.regions]
    index, count = u.args[0], len(branches)
    if not u.is_truth_value:  # an index out of range means the last branch
        index = jnp.where((index < 0) | (index >= count), np.int32(count - 1), index)
    return list(lax.switch(index, [lambda f=f: tuple(f()) for f in branches]))


def _if(u: Use) -> Any:
    yes, no = map(u.function, u.op.regions)
    return list(lax.cond(u.args[0], lambda: tuple(yes()), lambda: tuple(no())))


def _pad(u: Use) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    columns = [u.sizes(2 + i, name) for i, name in enumerate(names)]
    return lax.pad(u.args[0], u.args[1], list(zip(*columns, strict=True)))


def _slice(u: Use) -> Any:
    names = ("start_indices", "limit_indices", "strides")
    return lax.slice(u.args[0], *(u.sizes(1 + i, name) for i, name in enumerate(names)))


def _broadcast(u: Use) -> Any:
    shape = u.sizes(1) if len(u.args) > 1 else u.shape
    return lax.broadcast_in_dim(u.args[0], shape, tuple(u.at("broadcast_dimensions")))


def _triangular_solve(u: Use) -> Any:
    way = word_in(u.at("transpose_a"))
    return lax.linalg.triangular_solve(
        u.args[0], u.args[1], left_side=u.at("left_side"), lower=u.at("lower"), unit_diagonal=u.at("unit_diagonal"),
        transpose_a=way != "NO_TRANSPOSE", conjugate_a=way == "ADJOINT",
    )  # fmt: skip


def _power(x: Any, y: Any) -> Any:
    """A power. That of integers with a negative exponent is the quotient 1 / x**-y, rounded to 0."""
    if x.dtype.kind not in "iu":
        return lax.pow(x, y)
    power = jnp.power(x, jnp.maximum(y, 0))
    odd = jnp.where(y & 1 == 1, x, jnp.ones_like(x))  # the powers of -1
    return jnp.where(y < 0, jnp.where(jnp.abs(x) == 1, odd, jnp.zeros_like(x)), power)


def _top_k(u: Use) -> list[Any]:
    """The greatest elements of each row and their places; the least ones where `largest` is false."""
    x, (k,) = u.args[0], u.sizes(1, "k")
    if u.at("largest", True):
        return list(lax.top_k(x, k))
    axis = x.ndim - 1
    found = lax.sort((x, lax.broadcasted_iota(np.int32, x.shape, axis)), dimension=axis, is_stable=True, num_keys=1)
    return [lax.slice_in_dim(y, 0, k, axis=axis) for y in found]


def _approx_top_k(u: Use) -> list[Any]:
    """JAX's `approx_max_k` and `approx_min_k`, of which the comparison is the function that the call names. How many
    elements are taken is an option, or the operand after the arrays and their initial values."""
    said = u.at("mhlo.backend_config")
    (count,) = u.sizes(4) if len(u.args) > 4 else (int(said["top_k"]),)
    word = next(word_in(op.at("comparison_direction")) for op in u.op.regions[0].ops if op.name == "stablehlo.compare")
    return list((lax.approx_max_k if word == "GT" else lax.approx_min_k)(
        u.args[0], count, int(said["reduction_dim"]), float(said["recall_target"]),
        int(said["reduction_input_size_override"]), bool(said["aggregate_to_topk"]),
    ))  # fmt: skip


def _random_bits(u: Use) -> list[Any]:
    kind = u.op.types[1]
    assert kind is not None
    algorithm = getattr(lax.RandomAlgorithm, f"RNG_{word_in(u.at('rng_algorithm'))}")
    shape = u.sizes(1) if len(u.args) > 1 else kind.shape
    dtype: Any = jnp.dtype(kind.dtype)
    return list(lax.rng_bit_generator(u.args[0], shape, dtype, algorithm))


def _random(u: Use) -> Any:
    if word_in(u.at("rng_distribution")) != "UNIFORM":
        raise StableHloError("stablehlo.rng of a normal distribution\n  accepted: a uniform one; rng_bit_generator")
    return lax.rng_uniform(u.args[0], u.args[1], u.sizes(2))


def _index_select(u: Use) -> Any:
    axis, batch = int(u.at("dim")), int(u.at("batch_dims", 0))

    def take(x: Any, places: Any) -> Any:
        return jnp.take(x, places, axis=axis - batch, mode="clip")

    for _ in range(batch):
        take = jax.vmap(take)
    return take(*u.args)


def _along_features(u: Use, x: Any) -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    """The axes of `x` but its feature axis, and what spreads a value of each feature over `x`."""
    feature = int(u.at("feature_index"))
    axes = tuple(a for a in range(x.ndim) if a != feature)
    return axes, lambda v: lax.broadcast_in_dim(v, x.shape, (feature,))


def _batch_norm(u: Use) -> Any:
    """A normalisation along all axes but the feature axis. Without given moments, it uses those of the operand and
    returns them, too."""
    x, scale, offset, *moments = u.args
    axes, spread = _along_features(u, x)
    mean, variance = moments or (jnp.mean(x, axes), jnp.var(x, axes))
    y = (x - spread(mean)) * spread(lax.rsqrt(variance + u.at("epsilon")) * scale) + spread(offset)
    return y if moments else [y, mean, variance]


def _batch_norm_slopes(u: Use) -> list[Any]:
    """The derivatives of `batch_norm_training` in its operand, scale and offset, with the moments that it returned."""
    x, scale, mean, variance, cotangent = u.args
    axes, spread = _along_features(u, x)
    root = lax.rsqrt(variance + u.at("epsilon"))
    normal = (x - spread(mean)) * spread(root)
    of_scale, of_offset = jnp.sum(cotangent * normal, axes), jnp.sum(cotangent, axes)
    count = math.prod(x.shape[a] for a in axes)
    centred = cotangent - (spread(of_offset) + normal * spread(of_scale)) / count
    return [spread(scale * root) * centred, of_scale, of_offset]


_UNARY: Mapping[str, Callable[..., Any]] = {
    "chlo.acos": lax.acos, "chlo.acosh": lax.acosh, "chlo.asin": lax.asin, "chlo.asinh": lax.asinh,
    "chlo.atan": lax.atan, "chlo.atanh": lax.atanh, "chlo.bessel_i1e": lax.bessel_i1e, "chlo.conj": lax.conj,
    "chlo.cosh": lax.cosh, "chlo.digamma": lax.digamma, "chlo.erf": lax.erf, "chlo.erf_inv": lax.erf_inv,
    "chlo.erfc": lax.erfc, "chlo.is_inf": jnp.isinf, "chlo.is_neg_inf": jnp.isneginf, "chlo.is_pos_inf": jnp.isposinf,
    "chlo.lgamma": lax.lgamma, "chlo.sinh": lax.sinh, "chlo.square": lax.square, "chlo.tan": lax.tan,
    "stablehlo.abs": lax.abs, "stablehlo.cbrt": lax.cbrt, "stablehlo.ceil": lax.ceil, "stablehlo.cosine": lax.cos,
    "stablehlo.count_leading_zeros": lax.clz, "stablehlo.exponential": lax.exp,
    "stablehlo.exponential_minus_one": lax.expm1, "stablehlo.floor": lax.floor, "stablehlo.imag": lax.imag,
    "stablehlo.is_finite": lax.is_finite, "stablehlo.log": lax.log, "stablehlo.log_plus_one": lax.log1p,
    "stablehlo.logistic": lax.logistic, "stablehlo.negate": lax.neg, "stablehlo.not": lax.bitwise_not,
    "stablehlo.popcnt": lax.population_count, "stablehlo.real": lax.real,
    "stablehlo.round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "stablehlo.round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "stablehlo.rsqrt": lax.rsqrt, "stablehlo.sign": lax.sign, "stablehlo.sine": lax.sin, "stablehlo.sqrt": lax.sqrt,
    "stablehlo.tan": lax.tan, "stablehlo.tanh": lax.tanh,
}  # fmt: skip
_BINARY: Mapping[str, Callable[..., Any]] = {
    "chlo.mulhi": lax.mulhi, "chlo.next_after": lax.nextafter, "chlo.polygamma": lax.polygamma, "chlo.zeta": lax.zeta,
    "stablehlo.add": lax.add, "stablehlo.and": lax.bitwise_and, "stablehlo.atan2": lax.atan2,
    "stablehlo.complex": lax.complex, "stablehlo.divide": lax.div, "stablehlo.maximum": lax.max,
    "stablehlo.minimum": lax.min, "stablehlo.multiply": lax.mul, "stablehlo.or": lax.bitwise_or,
    "stablehlo.power": _power, "stablehlo.remainder": lax.rem, "stablehlo.shift_left": lax.shift_left,
    "stablehlo.shift_right_arithmetic": lax.shift_right_arithmetic,
    "stablehlo.shift_right_logical": lax.shift_right_logical, "stablehlo.subtract": lax.sub,
    "stablehlo.xor": lax.bitwise_xor,
}  # fmt: skip


def _broadcast_first(f: Callable[[Use], Any]) -> Callable[[Use], Any]:
    return lambda u: f(replace(u, args=jnp.broadcast_arrays(*u.args)))


_OPERATIONS: Mapping[str, Callable[[Use], Any]] = {
    **COMBINING,
    **{name: _unary(f) for name, f in _UNARY.items()},
    **{name: _binary(f) for name, f in _BINARY.items()},
    "chlo.top_k": _top_k,
    "ApproxTopK": _approx_top_k, "sdy.sharding_constraint": lambda u: u.args[0],
    "stablehlo.batch_norm_grad": _batch_norm_slopes, "stablehlo.batch_norm_inference": _batch_norm,
    "stablehlo.batch_norm_training": _batch_norm,
    "stablehlo.bitcast_convert": lambda u: lax.bitcast_convert_type(u.args[0], jnp.dtype(u.dtype)),
    "stablehlo.broadcast_in_dim": _broadcast, "stablehlo.case": _case,
    "stablehlo.cholesky": lambda u: cholesky(u.args[0], u.at("lower", False)),
    "stablehlo.clamp": lambda u: lax.clamp(*u.args),
    "stablehlo.compare": lambda u: getattr(lax, word_in(u.at("comparison_direction")).lower())(*u.args),
    "stablehlo.concatenate": lambda u: lax.concatenate(u.args, int(u.at("dimension"))),
    "stablehlo.convert": lambda u: lax.convert_element_type(u.args[0], jnp.dtype(u.dtype)),
    "stablehlo.convolution": _convolution, 
    "stablehlo.dot": lambda u: lax.dot(*u.args, **_said_of_product(u)), "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_approx_top_k": _approx_top_k,
    "stablehlo.dynamic_broadcast_in_dim": _broadcast, "stablehlo.dynamic_conv": _convolution,
    "stablehlo.dynamic_iota": lambda u: lax.broadcasted_iota(
        jnp.dtype(u.dtype), u.sizes(0), int(u.at("iota_dimension"))),
    "stablehlo.dynamic_pad": _pad,
    "stablehlo.dynamic_reshape": lambda u: lax.reshape(u.args[0], u.sizes(1)),
    "stablehlo.dynamic_rng_bit_generator": _random_bits,
    "stablehlo.dynamic_slice": lambda u: lax.dynamic_slice(
        u.args[0], u.args[1:], tuple(u.at("slice_sizes")), allow_negative_indices=False),
    "stablehlo.dynamic_top_k": _top_k,
    "stablehlo.dynamic_update_slice": lambda u: lax.dynamic_update_slice(
        u.args[0], u.args[1], u.args[2:], allow_negative_indices=False),
    "stablehlo.einsum": lambda u: jnp.einsum(u.at("einsum_config"), *u.args, **_said_of_product(u)),
    "stablehlo.fft": lambda u: lax.fft(u.args[0], word_in(u.at("fft_type")), tuple(map(int, u.at("fft_length")))),
    "stablehlo.if": _if,
    "stablehlo.iota": lambda u: lax.broadcasted_iota(jnp.dtype(u.dtype), u.shape, int(u.at("iota_dimension"))),
    "stablehlo.optimization_barrier": lambda u: list(u.args), "stablehlo.pad": _pad,
    "stablehlo.real_dynamic_slice": _slice,
    "stablehlo.reduce_precision": lambda u: lax.reduce_precision(
        u.args[0], int(u.at("exponent_bits")), int(u.at("mantissa_bits"))),
    "stablehlo.reshape": lambda u: lax.reshape(u.args[0], u.shape),
    "stablehlo.reverse": lambda u: lax.rev(u.args[0], tuple(u.at("dimensions"))),
    "stablehlo.rng": _random, "stablehlo.rng_bit_generator": _random_bits,
    "stablehlo.select": lambda u: jax.lax.select_n(u.args[0], u.args[2], u.args[1]), "stablehlo.slice": _slice,
    "stablehlo.sort": sort, "stablehlo.transpose": lambda u: lax.transpose(u.args[0], tuple(u.at("permutation"))),
    "stablehlo.torch_index_select": _index_select,
    "stablehlo.triangular_solve": _triangular_solve, "stablehlo.while": _while,
}  # fmt: skip
# CHLO's operations that broadcast their operands, as numpy does, are those that do not, by their names.
OPERATIONS: Mapping[str, Callable[[Use], Any]] = {
    **_OPERATIONS,
    **{
        f"chlo.broadcast_{name.partition('.')[2]}": _broadcast_first(_OPERATIONS[name])
        for name in (*_BINARY, "stablehlo.compare", "stablehlo.select")
    },
}
