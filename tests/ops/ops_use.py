"""Uses of operators: what the samples are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Use:
    """One use. `operands`: specs, with `@dtype` where the dtype does not vary; `sizes`: the range of each size
    variable; `low`, `high`: range of the values, or with `special` zeros, infinities, NaN and the ends of integers in
    their place; `prepare` makes of random operands what the operator is for; `settle` makes of results, where several
    are right, one; `looser`: how many times the usual tolerance a result may be off."""

    operands: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    low: float = -3.0
    high: float = 3.0
    prepare: Callable[[list[Any]], list[Any]] | None = None
    settle: Callable[[list[Any]], list[Any]] | None = None
    special: bool = False
    looser: float = 1.0


N = {"n": (1, 5), "m": (1, 5)}
ANY = {"n": (0, 5), "m": (0, 5)}
