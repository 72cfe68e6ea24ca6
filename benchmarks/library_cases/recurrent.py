"""Recurrent layers: equinox, flax, haiku. They loop over the sequence with `jax.lax.scan`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp

from benchmarks.library_cases.case import Case, Size, Use, case
from benchmarks.library_cases.layers import KEY, of_equinox, of_haiku, of_linen

RECURRENT: list[Case] = []


@case(RECURRENT, "equinox", "GRU over a sequence")
def equinox_gru(size: Size) -> Use:
    width, state = size((3, 4), (32, 128))

    def run(cell: Any, xs: jax.Array) -> jax.Array:
        def one(xs: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(state), xs)[1]

        return jax.vmap(one)(xs)

    return of_equinox(lambda: eqx.nn.GRUCell(width, state, key=KEY), (size("b 5 3", "32 64 32"),), run)


@case(RECURRENT, "flax", "linen: LSTM over a sequence")
def linen_lstm(size: Size) -> Use:
    example = jnp.ones((1, *size((5, 3), (64, 32))))
    return of_linen(nn.RNN(nn.LSTMCell(size(4, 128))), example, size("b 5 3", "32 64 32"))


@case(RECURRENT, "haiku", "LSTM over a sequence")
def haiku_lstm(size: Size) -> Use:
    def run(x: jax.Array) -> Any:
        core = hk.LSTM(size(4, 128))
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))

    return of_haiku(run, jnp.ones(size((5, 1, 3), (64, 1, 32))), size("5 b 3", "64 32 32"))


@case(RECURRENT, "haiku", "GRU and a linear head, unrolled")
def haiku_gru(size: Size) -> Use:
    def run(x: jax.Array) -> Any:
        core = hk.DeepRNN([hk.GRU(size(4, 128)), jax.nn.relu, hk.Linear(size(2, 64))])
        return hk.static_unroll(core, x, core.initial_state(x.shape[1]))

    return of_haiku(run, jnp.ones(size((3, 1, 3), (12, 1, 32))), size("3 b 3", "12 32 32"))
