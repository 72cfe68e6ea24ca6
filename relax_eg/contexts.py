"""What holds inside a `with` block: values of context variables, and fewer passes of Python's garbage collector."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# chosen: containers that are allocated between two passes, of a hundred bytes each; Python's own number is 700. A trace
# allocates 100,000, and a full pass over all that JAX and a search hold takes as long as the trace.
_BETWEEN_PASSES = 50_000
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_blocks = 0  # how many are being executed
_usual = (0, 0, 0)  # the thresholds outside


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """A context in which `variable` has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def fewer_collections() -> Generator[None]:
    """A context in which Python looks for unreachable cycles less often, as it does for all threads. What it leaves
    uncollected is bounded by `_BETWEEN_PASSES`. A process that chose rarer passes, or none, keeps them."""
    global _blocks, _usual
    with _lock:
        if _blocks == 0:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < _BETWEEN_PASSES:
                gc.set_threshold(_BETWEEN_PASSES, *_usual[1:])
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and gc.get_threshold()[0] == _BETWEEN_PASSES:
                gc.set_threshold(*_usual)
