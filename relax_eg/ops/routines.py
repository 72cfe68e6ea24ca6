"""The targets of the library rules that ship: what JAX and the libraries below it do as one routine.

Each is an executable of its own where kernels are; XLA compiles it with its epilogue, as one.
"""

from __future__ import annotations

from typing import Any, Literal


def attention(
    q: Any, k: Any, v: Any, extra: Any = None, *, r: int, kind: str = "",
    implementation: Literal["xla", "cudnn"] = "xla",
) -> Any:  # fmt: skip
    """Attention of heads-first operands (batch, heads, positions, width), each key shared by `r` heads. `kind`: what
    `extra` is, a "mask" or "bias" of (batch, heads, positions, positions), or "causal"."""
    import jax
    import jax.numpy as jnp

    given: dict[str, Any] = {} if kind == "causal" else {kind: extra} if kind else {}
    if kind == "bias" and implementation == "cudnn":
        given = {"bias": extra.astype(q.dtype)}
    first, second, third = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    made = jax.nn.dot_product_attention(
        first, second, third, scale=1.0, is_causal=kind == "causal", implementation=implementation, **given
    )
    return jnp.swapaxes(made, 1, 2)


def matmul(a: Any, b: Any, *rest: Any, transposed: bool, parts: tuple[str, ...]) -> Any:
    """a @ b, or a @ b.T, and what follows it in order: "bias" and "residual" take the next operand, "relu", "silu" and
    "gelu" none."""
    import jax
    import jax.numpy as jnp

    made = jnp.matmul(a, jnp.swapaxes(b, -1, -2) if transposed else b)
    return _epilogue(jax, made, rest, parts)


def conv(
    x: Any, w: Any, bias: Any, *, strides: tuple[int, ...], dilation: tuple[int, ...], a: int, b: int, c: int, d: int,
    parts: tuple[str, ...],
) -> Any:  # fmt: skip
    """A convolution of (batch, channels, height, width), a bias for each channel, and what follows."""
    import jax

    padding = [(a, b), (c, d)]
    made = jax.lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation)
    return _epilogue(jax, made + bias[:, None, None], (), parts)


def layer_norm(x: Any, gamma: Any, beta: Any, *, epsilon: float) -> Any:
    """Rows of mean 0 and variance 1, scaled and shifted; computed in float32 or wider."""
    from relax_eg.ops.record import get

    return get("layer_norm").jax_function()(x, gamma, beta, axes=(x.ndim - 1,), epsilon=epsilon)


def rms_norm(x: Any, weight: Any, *, epsilon: float) -> Any:
    """Rows divided by their root mean square, scaled; computed in float32 or wider."""
    from relax_eg.ops.record import get

    return get("rms_norm").jax_function()(x, weight, axes=(x.ndim - 1,), epsilon=epsilon)


def _epilogue(jax: Any, value: Any, rest: tuple[Any, ...], parts: tuple[str, ...]) -> Any:
    left = list(rest)
    for part in parts:
        if part in ("bias", "residual"):
            value = value + left.pop(0)
        else:
            value = {"relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": jax.nn.gelu}[part](value)
    return value
