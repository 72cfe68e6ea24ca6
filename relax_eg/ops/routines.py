"""The targets of the shipped library rules: routines that JAX, or a library below it, runs as one.

Where programs run as kernels, each target is an executable of its own, which XLA compiles together with its epilogue.
"""

from __future__ import annotations

from typing import Any, Literal

from relax_eg.ops.lazy_jax import jax, jnp


def attention(
    q: Any, k: Any, v: Any, extra: Any = None, *, r: int, kind: str = "",
    implementation: Literal["xla", "cudnn"] = "xla",
) -> Any:  # fmt: skip
    """Returns attention of heads-first operands (batch, heads, positions, width).

    - `r`: number of heads that share a key.
    - `kind`: "mask" or "bias", which `extra` (batch, heads, positions, positions) then is, or "causal".
    """
    given: dict[str, Any] = {} if kind == "causal" else {kind: extra} if kind else {}
    if kind == "bias" and implementation == "cudnn":
        given = {"bias": extra.astype(q.dtype)}
    first, second, third = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    made = jax.nn.dot_product_attention(
        first, second, third, scale=1.0, is_causal=kind == "causal", implementation=implementation, **given
    )
    made = jnp.swapaxes(made, 1, 2)
    if kind == "mask" and implementation == "cudnn":
        # cuDNN adds the mask to the logits, so a query without any key would still attend by its logits.
        mean = jnp.mean(v.astype(jnp.float32), axis=2, keepdims=True).astype(made.dtype)
        made = jnp.where(jnp.any(extra, axis=-1, keepdims=True), made, jnp.repeat(mean, r, axis=1))
    return made


def matmul(a: Any, b: Any, *rest: Any, transposed: bool, parts: tuple[str, ...]) -> Any:
    """Returns a @ b, or a @ b.T where `transposed`, with its epilogue. `parts` are the steps of the epilogue in order:
    "bias" and "residual" add the next operand; "relu", "silu" and "gelu" take none."""
    made = jnp.matmul(a, jnp.swapaxes(b, -1, -2) if transposed else b)
    return _epilogue(made, rest, parts)


def conv(
    x: Any, w: Any, bias: Any, *, strides: tuple[int, ...], dilation: tuple[int, ...], a: int, b: int, c: int, d: int,
    parts: tuple[str, ...],
) -> Any:  # fmt: skip
    """Returns a convolution of (batch, channels, height, width) plus a bias for each channel, with epilogue `parts`."""
    padding = [(a, b), (c, d)]
    made = jax.lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation)
    return _epilogue(made + bias[:, None, None], (), parts)


def layer_norm(x: Any, gamma: Any, beta: Any, *, epsilon: float) -> Any:
    """Returns rows with mean 0 and variance 1, scaled and shifted; computed in float32 or wider."""
    from relax_eg.ops.record import get

    return get("layer_norm").jax_function()(x, gamma, beta, axes=(x.ndim - 1,), epsilon=epsilon)


def rms_norm(x: Any, weight: Any, *, epsilon: float) -> Any:
    """Returns rows divided by their root mean square, scaled; computed in float32 or wider."""
    from relax_eg.ops.record import get

    return get("rms_norm").jax_function()(x, weight, axes=(x.ndim - 1,), epsilon=epsilon)


def _epilogue(value: Any, rest: tuple[Any, ...], parts: tuple[str, ...]) -> Any:
    left = list(rest)
    for part in parts:
        if part in ("bias", "residual"):
            value = value + left.pop(0)
        else:
            value = {"relu": jax.nn.relu, "silu": jax.nn.silu, "gelu": jax.nn.gelu}[part](value)
    return value
