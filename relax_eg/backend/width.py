"""The width of numbers. JAX has 64-bit numbers in its x64 mode alone; what a module says, it says in any mode. So a
program that holds such numbers is traced, lowered and called in that mode, and nothing else of the process is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import jax
import numpy as np

_config: Any = jax.config


class HasWidth(Protocol):
    """What runs programs. `wide`: they hold 64-bit numbers."""

    @property
    def wide(self) -> bool: ...


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=HasWidth)


def has_x64() -> bool:
    """Whether JAX has 64-bit numbers here."""
    return bool(_config.jax_enable_x64)


def in_width(wide: bool) -> AbstractContextManager[Any]:
    """A block in which JAX has 64-bit numbers, if it is to be `wide`; else as around it."""
    return jax.enable_x64(True) if wide and not has_x64() else nullcontext()


def in_its_width(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """`method`, where what it belongs to is wide, in JAX's x64 mode."""

    @functools.wraps(method)
    def within(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with in_width(self.wide):
            return method(self, *args, **kwargs)

    return within


def as_jax_takes_it(leaf: Any, dtype: str | None) -> Any:
    """An argument of a parameter of a dtype, given where JAX has no 64-bit numbers. There an array of numpy's of 64
    bits stands for one of 32, unless the parameter is declared to have 64."""
    if isinstance(leaf, (np.ndarray, np.generic)) and dtype is not None and leaf.dtype.name != dtype:
        narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)  # type: ignore[reportUnknownMemberType]
        if narrow.name == dtype:
            return leaf.astype(narrow)
    return leaf
