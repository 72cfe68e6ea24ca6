"""The values of attributes over which attribute variables of rules range, on operands of a rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

Values = Callable[[int], list[Any]]


def permutations(rank: int) -> list[Any]:
    # Reversed: the identity, which is the least informative, comes last.
    return list(itertools.permutations(range(rank)))[::-1]


def one_axis(rank: int) -> list[Any]:
    return list(range(rank))


def some_axes(rank: int) -> list[Any]:
    return [c for n in range(1, rank + 1) for c in itertools.combinations(range(rank), n)]


def trailing_axes(rank: int) -> list[Any]:
    return [tuple(range(i, rank)) for i in reversed(range(rank))]


def per_axis(*choices: Any) -> Values:
    return lambda rank: list(itertools.product(choices, repeat=rank))[::-1]


def window_strides(rank: int) -> list[Any]:
    # Pooling windows move along the spatial axes, which are the last.
    space = max(rank - 2, 0)
    return [(1,) * (rank - space) + c for c in STRIDES(space)] + DILATIONS(rank)


def placements(rank: int) -> list[Any]:
    return [*(f"S[{d}]" for d in range(rank)), "R"]


def one_of(*values: Any) -> Values:
    return lambda rank: list(values)


STRIDES, DILATIONS, INTERIORS = per_axis(1, 2, 3), per_axis(1, 2), per_axis(0, 1)
FLAG = one_of(False, True)
DIAGONALS = one_of(0, 1, -1, 2, -2)
DTYPES = one_of("float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool")
