"""Recurrent layers: equinox, flax, haiku. They loop over the sequence with `jax.lax.scan`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp

from benchmarks.library_cases.case import Case, Use, case
from benchmarks.library_cases.layers import KEY, of_equinox, of_haiku, of_linen

RECURRENT: list[Case] = []


@case(RECURRENT, "equinox", "GRU over a sequence")
def equinox_gru() -> Use:
    def run(cell: Any, xs: jax.Array) -> jax.Array:
        def one(xs: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(4), xs)[1]

        return jax.vmap(one)(xs)

    return of_equinox(lambda: eqx.nn.GRUCell(3, 4, key=KEY), ("b 5 3",), run)


@case(RECURRENT, "flax", "linen: LSTM over a sequence")
def linen_lstm() -> Use:
    return of_linen(nn.RNN(nn.LSTMCell(4)), jnp.ones((1, 5, 3)), "b 5 3")


@case(RECURRENT, "haiku", "LSTM over a sequence")
def haiku_lstm() -> Use:
    def run(x: jax.Array) -> Any:
        core = hk.LSTM(4)
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))

    return of_haiku(run, jnp.ones((5, 1, 3)), "5 b 3")


@case(RECURRENT, "haiku", "GRU and a linear head, unrolled")
def haiku_gru() -> Use:
    def run(x: jax.Array) -> Any:
        core = hk.DeepRNN([hk.GRU(4), jax.nn.relu, hk.Linear(2)])
        return hk.static_unroll(core, x, core.initial_state(x.shape[1]))

    return of_haiku(run, jnp.ones((3, 1, 3)), "3 b 3")
