"""The width of numbers: 64-bit programs run in JAX's x64 mode, in which alone JAX has 64-bit numbers.

The dtypes of a module do not depend on JAX's mode. So a program with 64-bit numbers is traced, lowered and called in
x64 mode, and the rest of the process stays in its own mode. The mode is entered where the search begins, and at every
entrance of the result: calls, calls with prepared weights, threads that compile, and rules for derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import jax
import numpy as np

_config: Any = jax.config


class HasWidth(Protocol):
    """An object that runs programs. `wide`: whether they have 64-bit numbers."""

    @property
    def wide(self) -> bool: ...


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=HasWidth)


def has_x64() -> bool:
    """Whether JAX is in its x64 mode here."""
    return bool(_config.jax_enable_x64)


def width_context(wide: bool) -> AbstractContextManager[Any]:
    """A context in JAX's x64 mode if `wide`; otherwise one that changes nothing."""
    return jax.enable_x64(True) if wide and not has_x64() else nullcontext()


def run_in_width(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """`method`, run in JAX's x64 mode if its object is `wide`."""

    @functools.wraps(method)
    def within(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with width_context(self.wide):
            return method(self, *args, **kwargs)

    return within


def convert_for_x64(leaf: Any, dtype: str | None) -> Any:
    """An argument given outside JAX's x64 mode, for a parameter of dtype `dtype`.

    Outside that mode a 64-bit numpy array stands for a 32-bit one, unless the parameter is declared with 64 bits.
    """
    if isinstance(leaf, (np.ndarray, np.generic)) and dtype is not None and leaf.dtype.name != dtype:
        narrow = jax.dtypes.canonicalize_dtype(leaf.dtype)  # type: ignore[reportUnknownMemberType]
        if narrow.name == dtype:
            return leaf.astype(narrow)
    return leaf
