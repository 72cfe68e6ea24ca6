"""Context variables that hold a value inside a `with` block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """A context in which `variable` has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
