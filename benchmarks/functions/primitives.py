"""jax.lax, by what its functions are about, and what is built on it: attention, images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.functions.named import Functions, named

NHWC = ("NHWC", "HWIO", "NHWC")


def convolution(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups)


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _dot(x: Any, y: Any, dtype: Any = None) -> Any:
    return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=dtype)


def _windows_gradient(x: Any) -> Any:
    """The derivative of a derivative of pooling."""
    return jax.grad(lambda x: (jax.grad(lambda x: (max_pool(x) ** 2).sum())(x) ** 2).sum())(x)


LAX: Functions = named(
    lax,
    """bessel_i0e bessel_i1e cbrt ceil cosh cumlogsumexp cummax cummin cumprod cumsum digamma erf erf_inv exp2 is_finite
    lgamma logistic rsqrt sign""",
    "n 4",
) | {
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), ("4 8",)),
    "approx_min_k": (lambda x: lax.approx_min_k(x, 2), ("4 8",)),
    "argmax, argmin": (lambda x: (jnp.argmax(x), jnp.argmin(x, 0)), ("n+1 3",)),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x), ("6 m",)),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, jnp.int32), ("n",)),
    "bits of floats": (lambda x: (x.view(jnp.int8), jnp.frexp(x), jnp.ldexp(x, 2), jnp.nextafter(x, x + 1)), ("n",)),
    "clamp": (lambda x: lax.clamp(-1.0, x, 1.0), ("n",)),
    "clamp, array bounds": (lambda a, x, b: lax.clamp(a, x, b), ("n @ int8", "n @ int8", "n @ int8")),
    "clz, population_count": (lambda i: lax.clz(i) + lax.population_count(i), ("n @ int32",)),
    "complex": (
        lambda z: (jnp.exp(z), z**2.5, jnp.abs(z), jnp.angle(z), jnp.sort(z), z * z.conj(), jnp.log1p(z), jnp.sign(z)),
        ("n @ complex64",),
    ),
    "complex maximum": (lambda z: jnp.maximum(z, z), ("n @ complex64",)),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), ("n",)),
    "conversions": (
        lambda x: [x.astype(d) for d in "float16 bfloat16 int8 uint8 bool int32 complex64 int4".split()], ("n",),
    ),
    "igamma_grad_a": (lax.igamma_grad_a, ("n", "n")),
    "integers of 4 bits": (lambda x: x.astype(jnp.int4) + jnp.int4(1), ("n",)),
    "jacobian, hessian": (
        lambda x: (jax.jacfwd(jnp.tanh)(x), jax.hessian(lambda x: jnp.sin(x).prod())(x)), ("4",),
    ),
    "lexsort": (lambda x, y: jnp.lexsort((x, y)), ("n", "n")),
    "linear_transpose": (lambda x: jax.linear_transpose(lambda y: y @ jnp.ones((3, 4)), jnp.ones(3))(x), ("4",)),
    "nextafter, half precision": (lambda x: jnp.nextafter(x, x + 1), ("n @ bf16",)),
    "optimization_barrier": (lax.optimization_barrier, ("n",)),
    "reduce, any function": (lambda x: lax.reduce(x, jnp.float32(3), lambda a, b: a * b + b, (0,)), ("4 4",)),
    "reduce, from a value": (lambda x: lax.reduce(x, jnp.float32(3), lax.add, (0,)), ("n m",)),
    "reduce_or, reduce_and": (lambda x: (lax.reduce_or(x, (0,)), lax.reduce_and(x, (0,))), ("n m @ int32",)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), ("n",)),
    "reduce_precision, fp8": (lambda x: lax.reduce_precision(x, 4, 3), ("n @ bf16",)),
    "reduce_xor": (lambda x: lax.reduce_xor(x, (0,)), ("n m @ bool",)),
    "rng_bit_generator": (lambda k: lax.rng_bit_generator(k, (4,)), ("4 @ uint32",)),
    "rng_uniform": (lambda: lax.rng_uniform(0.0, 1.0, (3,)), ()),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(x.shape[1:]), x), ("n m",)),
    "select_n": (lambda i, x: lax.select_n(i, x, -x, x * 2), ("n @ int32", "n")),
    "shift_right_arithmetic": (lambda x: lax.shift_right_arithmetic(x, jnp.uint8(1)), ("n @ uint8",)),
    "sort": (lambda x: lax.sort((x, -x), num_keys=1), ("n m",)),
    "sort, unstable": (lambda x: lax.sort(x, is_stable=False), ("n",)),
    "top_k": (lambda x: lax.top_k(x, 2), ("n 5",)),
    "top_k, of an axis": (lambda x: lax.top_k(x, 2, axis=0), ("6 m",)),
    "while_loop": (lambda x: lax.fori_loop(0, 9, lambda i, c: c * 2, x), ("n",)),
}  # fmt: skip

WINDOWS: Functions = {
    "conv_general_dilated": (convolution, ("n h w 3", "3 3 3 8")),
    "conv, grouped": (lambda x, w: convolution(x, w, 2, 4), ("n h w 4", "3 3 1 8")),
    "conv, batch groups": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", batch_group_count=2), ("4 3 6 6", "6 3 3 3"),
    ),
    "conv, dilated": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (0, 1)], (1, 2), (2, 1)), ("b 4 6 6", "6 4 3 3"),
    ),
    "conv, 3 axes": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
        ("b 4 4 4 3", "3 3 3 3 5"),
    ),
    "conv, int8": (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", preferred_element_type=jnp.int32),
        ("1 2 6 @ int8", "3 2 3 @ int8"),
    ),
    "conv, precisions": (
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", precision=("highest", "default")),
        ("1 2 6", "3 2 3"),
    ),
    "conv_general_dilated_local": (
        lambda x, w: lax.conv_general_dilated_local(x, w, (1, 1), "VALID", (3, 3)), ("2 3 6 6", "4 27 4 4"),
    ),
    "conv_general_dilated_patches": (
        lambda x: lax.conv_general_dilated_patches(x, (3, 3), (1, 1), "VALID"), ("2 3 6 6",),
    ),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), ("2 8 8 3", "3 3 3 8")),
    "conv, gradient": (
        lambda x, w: jax.grad(lambda x, w: (convolution(x, w) ** 2).sum(), (0, 1))(x, w), ("2 8 8 3", "3 3 3 8"),
    ),
    "reduce_window": (max_pool, ("n h+3 w+3 2",)),
    "reduce_window, average": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9, ("n h w 2",),
    ),
    "reduce_window, dilated": (
        lambda x: lax.reduce_window(
            x, jnp.inf, lax.min, (2, 2), (1, 1), "VALID", base_dilation=(1, 2), window_dilation=(2, 1)
        ),
        ("6 6",),
    ),
    "reduce_window, from a value": (
        lambda x, v: lax.reduce_window(x, v, lax.max, (2, 2), (1, 1), "VALID"), ("n+2 4", ""),
    ),
    "reduce_window, or": (
        lambda x: lax.reduce_window(x, False, lax.bitwise_or, (2, 2), (1, 1), "VALID"), ("n+2 4 @ bool",),
    ),
    "reduce_window, product": (
        lambda x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 1), "VALID"), ("n+2 4",),
    ),
    "reduce_window, of bits": (
        lambda x: lax.reduce_window(x, 0, lax.bitwise_or, (2, 2), (1, 1), "VALID"), ("4 4 @ int32",),
    ),
    "reduce_window, gradient": (jax.grad(lambda x: max_pool(x).sum()), ("2 4 4 2",)),
    "reduce_window, derivative": (lambda x, t: jax.jvp(max_pool, (x,), (t,)), ("2 4 4 2", "2 4 4 2")),
    "reduce_window, gradient of the gradient": (_windows_gradient, ("2 4 4 2",)),
}  # fmt: skip

_EINSUMS = (
    "ij,jk->ik", "ij,jk,kl->il", "ii->i", "ii", "ij->ji", "bij,bjk->bik", "aki,i->ak", "ijk,jil->kl", "i,j->ij",
    "ij,ij->", "abc,cd,ad->b", "ij,ij->ij", "iij->j", "bqhd,bkhd->bhqk",
)  # fmt: skip
_MIXED = (
    ("int8", "int8", "int32"), ("bfloat16", "float32", "float32"), ("int8", "float32", "float32"),
    ("float16", "float16", "float32"), ("float8_e4m3fn", "float8_e4m3fn", "float32"), ("bool", "bool", "int32"),
    ("bool", "bool", None), ("uint8", "int8", "int32"), ("int4", "int8", "int32"),
    ("complex64", "complex64", None), ("float32", "float32", "bfloat16"),
)  # fmt: skip
_PRECISIONS = ("default", "high", "highest", "BF16_BF16_F32", "F32_F32_F32", "TF32_TF32_F32", ("highest", "default"))
_HEADS = ("b s 4 8", "b t 2 8", "b t 2 8")
_FIXED = ("2 6 4 8", "2 6 4 8", "2 6 4 8")


def _attention(**options: Any) -> Any:
    return lambda q, k, v, **others: jax.nn.dot_product_attention(q, k, v, **options, **others)


def _einsums() -> Functions:
    found: Functions = {}
    for e in _EINSUMS:
        operands = e.split("->")[0].split(",")
        found[f"einsum {e}"] = (lambda *xs, e=e: jnp.einsum(e, *xs), tuple(" ".join("3" * len(o)) for o in operands))
    return found


CONTRACTIONS: Functions = (
    _einsums()
    | {
        f"{a} with {b} to {out}": (lambda x, y, out=out: _dot(x, y, out), (f"n 4 @ {a}", f"4 m @ {b}"))
        for a, b, out in _MIXED
    }
    | {f"precision {p}": (lambda x, y, p=p: jnp.matmul(x, y, precision=p), ("n 4", "4 m")) for p in _PRECISIONS}
    | {
        "batch axes anywhere": (
            lambda x, y: lax.dot_general(x, y, (((3, 1), (0, 2)), ((0,), (3,)))), ("b 2 3 4", "4 5 2 b"),
        ),
        "ragged_dot": (lax.ragged_dot, ("n 4", "3 4 5", "3 @ int32")),
        "ragged_dot, gradient": (
            jax.grad(lambda x, w, g: lax.ragged_dot(x, w, g).sum(), (0, 1)), ("8 4", "3 4 5", "3 @ int32"),
        ),
        "attention": (_attention(), ("b s 4 8", "b t 4 8", "b t 4 8")),
        "attention, causal, grouped heads": (_attention(is_causal=True), ("b s 4 8", "b s 2 8", "b s 2 8")),
        "attention, bf16": (_attention(is_causal=True), ("b s 4 8 @ bf16", "b s 4 8 @ bf16", "b s 4 8 @ bf16")),
        "attention, mask": (lambda q, k, v, m: _attention()(q, k, v, mask=m), (*_HEADS, "b 4 s t @ bool")),
        "attention, bias": (lambda q, k, v, m: _attention(scale=0.3)(q, k, v, bias=m), (*_HEADS, "1 4 s t")),
        "attention, lengths": (
            lambda q, k, v, a, c: _attention()(q, k, v, query_seq_lengths=a, key_value_seq_lengths=c),
            (*_FIXED, "2 @ int32", "2 @ int32"),
        ),
        "attention, window": (_attention(local_window_size=2), _FIXED),
        "attention, gradient": (jax.grad(lambda q, k, v: _attention(is_causal=True)(q, k, v).sum(), (0, 1, 2)), _FIXED),
        "scaled_matmul": (
            lambda a, b: jax.nn.scaled_matmul(a[None], b[None], jnp.ones((1, 4, 1)), jnp.ones((1, 5, 1))),
            ("4 32 @ float8_e4m3fn", "5 32 @ float8_e4m3fn"),
        ),
        "tensordot, vdot, inner": (
            lambda x, y: (jnp.tensordot(x, y, 2), jnp.vdot(x, y), jnp.inner(x, y)), ("n 4", "n 4"),
        ),
    }
)  # fmt: skip

_GET = ("clip", "drop", "fill", "promise_in_bounds")
POSITIONS: Functions = (
    {f"at.get, {m}": (lambda x, i, m=m: x.at[i].get(mode=m), ("9 m", "n @ int32")) for m in _GET}
    | {f"at.set, {m}": (lambda x, i, m=m: x.at[i].set(1.0, mode=m), ("9 m", "n @ int32")) for m in _GET if m != "fill"}
    | {
        f"at.{name}": (lambda x, i, name=name: getattr(x.at[i], name)(2.0), ("9 m", "n @ int32"))
        for name in "add subtract multiply divide power min max".split()
    }
    | {
        "at.apply, any positions": (lambda x, i: x.at[i].apply(jnp.sin), ("9 m", "n @ int32")),
        "at.apply, distinct positions": (
            lambda x, i: x.at[i].apply(jnp.sin, unique_indices=True), ("9 m", "n @ int32"),
        ),
        "at.apply, one position": (lambda x, i: x.at[i].apply(lambda v: v * 2 + 1), ("9 m", "@ int32")),
        "at.apply, a slice": (lambda x: x.at[1:3].apply(jnp.sin), ("9 m",)),
        "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)), ("4 4", "@ int32")),
        "dynamic_slice, mapped": (
            lambda x, i: jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (2,)))(x, i), ("3 6", "3 @ int32"),
        ),
        "dynamic_update_slice": (lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), ("4 4", "2 2", "@ int32")),
        "dynamic_update_slice, mapped": (
            lambda x, u, i: jax.vmap(lambda r, v, j: lax.dynamic_update_slice(r, v, (j,)))(x, u, i),
            ("3 6", "3 2", "3 @ int32"),
        ),
        "dynamic_update_index_in_dim": (
            lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 0), ("9 m", "m", "@ int32"),
        ),
        "gather, two arrays": (lambda x, i, j: x[i, :, j], ("4 5 6", "3 @ int32", "3 @ int32")),
        "argwhere": (lambda x: jnp.argwhere(x, size=3), ("4 4",)),
        "segment_sum, max, prod": (
            lambda x, i: (jax.ops.segment_sum(x, i, 4), jax.ops.segment_max(x, i, 4), jax.ops.segment_prod(x, i, 4)),
            ("n", "n @ int32"),
        ),
        "ufunc.at, reduce, accumulate": (
            lambda x, i: (jnp.add.at(x, i, 1.0, inplace=False), jnp.add.reduce(x), jnp.multiply.accumulate(x)),
            ("4", "3 @ int32"),
        ),
        "bitwise_or.reduce": (lambda i: jnp.bitwise_or.reduce(i), ("n @ int32",)),
        "unique, all": (lambda i: jnp.unique(i, size=4, return_inverse=True, return_counts=True), ("6 @ int32",)),
        "histogram2d": (lambda x, y: jnp.histogram2d(x, y, bins=4), ("6", "6")),
        "vectorize": (jnp.vectorize(lambda x, y: x @ y, signature="(n),(n)->()"), ("3 4", "4")),
        "apply_along_axis": (lambda x: jnp.apply_along_axis(jnp.cumsum, 0, x), ("3 4",)),
    }
)  # fmt: skip

_METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
IMAGE: Functions = (
    {f"resize up, {m}": (lambda x, m=m: jax.image.resize(x, (x.shape[0], 8, 12, 3), m), ("b 4 6 3",)) for m in _METHODS}
    | {f"resize down, {m}": (lambda x, m=m: jax.image.resize(x, (2, 3), m), ("4 6",)) for m in _METHODS}
    | {
        f"resize, {m}, no antialias": (lambda x, m=m: jax.image.resize(x, (2, 3), m, antialias=False), ("4 6",))
        for m in _METHODS
    }
    | {
        "scale_and_translate": (
            lambda x, s, t: jax.image.scale_and_translate(x, (8, 8), (0, 1), s, t, "linear"), ("4 4", "2", "2"),
        ),
        "resize, gradient": (jax.grad(lambda x: (jax.image.resize(x, (8, 8), "bilinear") ** 2).sum()), ("4 4",)),
    }
)  # fmt: skip
