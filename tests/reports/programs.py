"""Programs whose reports the tests look at."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import jax

import relax_eg as rx

SPECS = ("s 64", *["64 64"] * 4)


def attend(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = jax.nn.softmax(q @ k.T / 8.0, axis=-1)
    return (scores @ v) @ wo


def line(text: str) -> str:
    """Where `text` stands in `attend`, as reports name it."""
    lines, first = inspect.getsourcelines(attend)
    return f"programs.py:{first + next(i for i, x in enumerate(lines) if text in x)}"


def attention(**options: Any) -> rx.types.Optimized:
    """`attend`, optimized for 128 rows on the CPU that ships, unless said otherwise."""
    return rx.optimize(attend, *SPECS, **{"at": {"s": 128}, "target": "cpu", **options})


@cache
def in_kernels() -> rx.types.Optimized:
    return attention(execution="kernels")


@cache
def unfused_in_kernels() -> rx.types.Optimized:
    return attention(execution="kernels", rules=rx.rules.default - rx.rules.fusion)
