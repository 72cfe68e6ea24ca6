"""Effects among steps keep their order."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from test_steps import agree

import relax_eg as rx

Array = Any


def test_effects_keep_their_order() -> None:
    seen: list[str] = []

    def noted(x: Array) -> Array:
        jax.debug.callback(lambda v: seen.append(f"first {float(v[0])}"), x, ordered=True)
        y = x + 1
        jax.debug.callback(lambda v: seen.append(f"second {float(v[0])}"), y, ordered=True)
        return y

    traced = rx.trace(noted, "n")
    main, callee = rx.parse("""
def callee(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    return R.exp(x)
def main(x: R.Tensor(("n",), "float32")):
    u = R.unique(x)
    v = R.match_cast(u, R.Tensor(("m",), "float32"))
    y = callee(v)
    return y
""").functions[::-1]
    blocks = tuple(traced.main.blocks)
    effectful = type(callee)("callee", traced.main.params, blocks, traced.main.result)
    module = rx.types.Module((main, effectful))
    best = rx.optimize(module)
    agree(best(np.array([2, 1, 2], np.float32)), np.array([2, 3], np.float32))
    jax.effects_barrier()
    assert seen == ["first 1.0", "second 2.0"]
