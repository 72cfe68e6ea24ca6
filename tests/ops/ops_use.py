"""The record of a use of an operator in the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Use:
    """One use of an operator.

    - `operands`: specs, with `@dtype` where the dtype does not vary.
    - `attrs`: the attributes.
    - `sizes`: the range of each size variable.
    - `low`, `high`: the range of the values.
    - `prepare`: turns random operands into operands that the operator is meant for.
    - `settle`: brings results to one form, where several are right.
    - `special`: whether zeros, infinities, NaN and the limits of integers are among the values.
    - `looser`: factor on the usual tolerance of a result.
    """

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
