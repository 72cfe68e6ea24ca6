"""jax.nn and jax.numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.functions.named import Functions, named

# --- jax.nn ---

NN: Functions = named(
    jax.nn,
    """relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid
    hard_silu hard_swish hard_tanh elu celu selu gelu glu squareplus mish identity softmax log_softmax logsumexp
    logmeanexp standardize""",
    "b 8",
) | {
    "one_hot": (lambda i: jax.nn.one_hot(i, 7), ("b @ int32",)),
    "dot_product_attention": (jax.nn.dot_product_attention, ("b s 2 4", "b s 2 4", "b s 2 4")),
    "dot_product_attention, causal": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        ("b s 4 4", "b s 2 4", "b s 2 4"),
    ),
}

# --- jax.numpy ---

NUMPY: Functions = (
    named(
        jnp,
        """abs absolute acos acosh angle arccos arcsin arcsinh arctan arctanh asin atan cbrt ceil conj conjugate cos
        cosh deg2rad degrees exp exp2 expm1 fabs floor frexp i0 imag isfinite isinf isnan isneginf isposinf iscomplex
        isreal log log10 log1p log2 logical_not modf nan_to_num negative positive rad2deg radians real reciprocal rint
        round sign signbit sin sinc sinh spacing sqrt square tan tanh trunc all any amax amin argmax argmin argsort
        average count_nonzero cumprod cumsum max mean median min nanargmax nanargmin nancumprod nancumsum nanmax nanmean
        nanmedian nanmin nanprod nanstd nansum nanvar prod ptp sort sort_complex std sum var atleast_1d
        atleast_2d atleast_3d copy diag diagflat diagonal diff ediff1d fliplr flipud gradient matrix_transpose
        ones_like ravel rot90 squeeze trace transpose tril triu unwrap zeros_like corrcoef cov
        histogram""",
        "6 6",
    )
    | named(
        jnp,
        """add arctan2 copysign divide divmod equal float_power floor_divide fmax fmin fmod greater greater_equal
        heaviside hypot less less_equal logaddexp logaddexp2 maximum minimum mod multiply nextafter not_equal power
        remainder subtract true_divide allclose array_equal dot inner isclose kron matmul outer vdot append""",
        "6 6",
        "6 6",
    )
    | named(
        jnp,
        """bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm left_shift right_shift
        logical_and logical_or logical_xor""",
        "n @ int32",
        "n @ int32",
    )
    | named(jnp, "bitwise_not invert bitwise_count packbits unpackbits", "6 @ uint8")
    | {
        "bincount": (lambda i: jnp.bincount(i, length=7), ("n @ int32",)),
        "unique": (lambda i: jnp.unique(i, size=4), ("9 @ int32",)),
        "hstack": (lambda x: jnp.hstack([x, x]), ("n m",)),
        "argpartition": (lambda x: jnp.argpartition(x, 2), ("n 6",)),
        "block": (lambda x: jnp.block([[x, x], [x, x]]), ("n m",)),
        "broadcast_to": (lambda x: jnp.broadcast_to(x, (3, *x.shape)), ("n m",)),
        "choose": (lambda i, x: jnp.choose(i, [x, -x], mode="clip"), ("4 @ int32", "4")),
        "clip": (lambda x: jnp.clip(x, -1, 1), ("n m",)),
        "compress": (lambda x: jnp.compress(jnp.array([1, 0, 1]) > x[:, 0], x, axis=0, size=2), ("3 4",)),
        "concatenate": (lambda x: jnp.concatenate([x, x], 1), ("n m",)),
        "convolve": (jnp.convolve, ("9", "3")),
        "correlate": (jnp.correlate, ("9", "3")),
        "cross": (jnp.cross, ("n 3", "n 3")),
        "digitize": (jnp.digitize, ("5", "9")),
        "einsum": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), ("b n m", "b m n")),
        "extract": (lambda x: jnp.extract(x > 0, x, size=3), ("6",)),
        "flip": (jnp.flip, ("n m",)),
        "insert": (lambda x: jnp.insert(x, 1, 5.0), ("6",)),
        "interp": (jnp.interp, ("5", "9", "9")),
        "ix_": (lambda x: x[jnp.ix_(jnp.array([0, 1]), jnp.array([1, 2]))], ("4 4",)),
        "linspace": (lambda a, b: jnp.linspace(a, b, 7), ("", "")),
        "logspace": (lambda a, b: jnp.logspace(a, b, 7), ("", "")),
        "meshgrid": (jnp.meshgrid, ("n", "m")),
        "moveaxis": (lambda x: jnp.moveaxis(x, 0, 2), ("n m 3",)),
        "nonzero": (lambda x: jnp.nonzero(x, size=4), ("9",)),
        "pad": (lambda x: jnp.pad(x, 2), ("n m",)),
        "pad, edge": (lambda x: jnp.pad(x, 2, mode="edge"), ("4 4",)),
        "pad, reflect": (lambda x: jnp.pad(x, 2, mode="reflect"), ("4 4",)),
        "partition": (lambda x: jnp.partition(x, 2), ("n 6",)),
        "percentile": (lambda x: jnp.percentile(x, 30.0), ("9",)),
        "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x > 1], [-1.0, 1.0, 0.0]), ("n",)),
        "polyval": (jnp.polyval, ("4", "n")),
        "put_along_axis": (
            lambda x, i, v: jnp.put_along_axis(x, i, v, 1, inplace=False), ("4 6", "4 2 @ int32", "4 2"),
        ),
        "quantile": (lambda x: jnp.quantile(x, 0.3, axis=1), ("4 9",)),
        "repeat": (lambda x: jnp.repeat(x, 2, 0), ("n m",)),
        "resize": (lambda x: jnp.resize(x, (5, 5)), ("4 4",)),
        "roll": (lambda x: jnp.roll(x, 1, 0), ("n m",)),
        "searchsorted": (jnp.searchsorted, ("9", "5")),
        "select": (lambda x: jnp.select([x > 1, x > 0], [x, -x]), ("n",)),
        "split": (lambda x: jnp.split(x, 3, 1), ("n 6",)),
        "stack": (lambda x: jnp.stack([x, x], 1), ("n m",)),
        "swapaxes": (lambda x: jnp.swapaxes(x, 0, 1), ("n m",)),
        "take": (lambda x, i: jnp.take(x, i, axis=0), ("9 m", "n @ int32")),
        "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, 1), ("4 6", "4 2 @ int32")),
        "tensordot": (lambda x, y: jnp.tensordot(x, y, 1), ("n 4", "4 m")),
        "tile": (lambda x: jnp.tile(x, (2, 3)), ("n m",)),
        "trapezoid": (jnp.trapezoid, ("n m",)),
        "tri": (lambda x: x * jnp.tri(x.shape[0]), ("n n",)),
        "where": (lambda c, x, y: jnp.where(c, x, y), ("n @ bool", "n", "n")),
        "at.set": (lambda x, i: x.at[i].set(1.0), ("9 m", "n @ int32")),
        "at.add": (lambda x, i: x.at[i].add(1.0), ("9 m", "n @ int32")),
        "at.apply": (lambda x, i: x.at[i].apply(jnp.sin), ("9 m", "n @ int32")),
        "index, computed": (lambda x, i: x[i, 1:], ("9 5", "@ int32")),
    }
)  # fmt: skip
