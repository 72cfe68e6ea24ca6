"""Marks that hold in one thread only, while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def marked(local: threading.local, name: str) -> Generator[None]:
    """Sets the attribute `name` of `local` to True, and back to what it was."""
    before = is_marked(local, name)
    setattr(local, name, True)
    try:
        yield
    finally:
        setattr(local, name, before)


def is_marked(local: threading.local, name: str) -> bool:
    return getattr(local, name, False)
