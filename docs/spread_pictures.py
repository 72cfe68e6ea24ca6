"""Draws the pictures of `docs/spread.md`: `python -m docs.spread_pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax import lax

import relax_eg as rx

HERE = Path(__file__).parent


def layer(x: Any, w1: Any, w2: Any) -> Any:
    return jax.nn.gelu(x @ w1) @ w2


def step(params: Any, x: Any, y: Any) -> Any:
    """A training step of four layers."""

    def loss(p: Any) -> Any:
        h, _ = lax.scan(lambda h, w: (h + jax.nn.relu(h @ w["wi"]) @ w["wo"], None), x, p)
        return ((h - y) ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def main() -> None:
    tensor = rx.spread(
        layer, "512 1024", "1024 4096", "4096 1024", mesh={"model": 8}, target="h100",
        inputs={"x": "R"}, outputs="R", memory_limit="16 MB",
    )  # fmt: skip
    weights = {"wi": "4 1024 4096", "wo": "4 4096 1024"}
    state = rx.spread(
        step, weights, "16384 1024", "16384 1024", mesh={"data": 8}, target="h100",
        state=("params",), memory_limit="370 MB",
    )  # fmt: skip
    for name, best in (("tensor", tensor), ("state", state)):
        print(best.spreading)
        (HERE / f"spread_{name}.svg").write_text(best.spreading.to_svg())


if __name__ == "__main__":
    main()
