"""Parts of random uses of operators: shapes, subsets, broadcasting.

A size in a spec is a variable (its range starts at 0), a number, or 1 where an operand is to broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ops_use import Use

Rng = np.random.Generator
Draw = Callable[[Rng], Use]

SIZES = {"n": (0, 4), "m": (0, 3), "k": (0, 3)}
SOME = {"n": (1, 4), "m": (1, 3), "k": (1, 3)}  # where an axis must have elements
_TOKENS = ("n", "m", "k", "1", "2", "3")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = ("float32", "float16", "bfloat16", "int32", "uint8", "int64", "float64", "bool", "complex64")


def one(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def flag(rng: Rng) -> bool:
    return bool(rng.integers(2))


def dims(rng: Rng, low: int = 0, high: int = 4) -> list[str]:
    """The sizes of `low` to `high` axes."""
    tokens = [one(rng, _TOKENS) for _ in range(int(rng.integers(low, high + 1)))]
    return ["0" if rng.integers(20) == 0 else t for t in tokens]


def some_dims(rng: Rng, low: int = 1, high: int = 4) -> list[str]:
    """As `dims`, none of them 0 where `SOME` are the sizes."""
    return [one(rng, _TOKENS) for _ in range(int(rng.integers(low, high + 1)))]


def spec(sizes: Sequence[str], dtype: str = "") -> str:
    return " ".join(sizes) + (f" @{dtype}" if dtype else "")


def subset(rng: Rng, items: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(i for i in items if flag(rng))


def broadcastable(rng: Rng, sizes: Sequence[str]) -> list[str]:
    """A shape that broadcasts to `sizes`: without some of the first axes, others of size 1."""
    kept = list(sizes[int(rng.integers(len(sizes) + 1)) :]) if rng.integers(3) == 0 else list(sizes)
    return ["1" if rng.integers(4) == 0 else s for s in kept]


def pointwise(
    count: int, low: float, high: float, attrs: Callable[[Rng], dict[str, Any]] = lambda rng: {}, **others: Any
) -> Draw:
    """A draw for functions of `count` elements. `others`: fields of the use; `special=None` draws whether there are
    special values."""

    def draw(rng: Rng) -> Use:
        sizes = dims(rng)
        operands = [sizes] if count == 1 else [broadcastable(rng, sizes) for _ in range(count)]
        fields = {k: flag(rng) if v is None else v for k, v in others.items()}
        return Use(tuple(map(spec, operands)), attrs(rng), SIZES, low, high, **fields)

    return draw
