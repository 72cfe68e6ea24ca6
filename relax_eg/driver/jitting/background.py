"""Searches in the background: what calls need is made in a thread, and until then they run as written.

The thread works under the `rx.debug.options` of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, Literal

import jax

from relax_eg.argument_checks import short_repr
from relax_eg.backend.calls.call_keys import MOST_KEYS, is_tracing
from relax_eg.backend.width import has_x64
from relax_eg.driver.jitting.thread_marks import is_marked, marked
from relax_eg.errors import OptionError
from relax_eg.logs import log_at
from relax_eg.memo import Memo
from relax_eg.settings import settings_now

Search = Literal["first call", "background"]
SEARCH: tuple[Search, ...] = ("first call", "background")


class SearchingError(Exception):
    """Raised where a call needs what is still searched for in the background; it runs as written."""


class Background:
    """What calls need, made once by key, one after the other in a thread.

    - `is_on`: whether it is; otherwise calls make what they need themselves.
    """

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="relax_eg search")
        self._made = Memo[Any, Future[None]](MOST_KEYS)
        self._lock, self._local = threading.Lock(), threading.local()

    def has(self, key: Hashable, make: Callable[[], object]) -> bool:
        """Whether a call may ask for what `make` makes: it was tried to make it, or the call waits for it, as one does
        that JAX traces. At first the thread is told to make it.

        What `make` raises, the call that needs it meets again. Nothing is made under settings of JAX that hold in the
        calling thread only.
        """
        if not self.is_on or is_marked(self._local, "waits") or is_tracing():
            return True
        key = key, settings_now()
        with self._lock:
            found = self._made.get(key)
            if found is None:
                self._made[key] = self._threads.submit(copy_context().run, _make, make, settings_now(), has_x64())
                return False
        return found.done()

    def need(self, key: Hashable, make: Callable[[], object]) -> None:
        """SearchingError where a call may not ask for what `make` makes (`has`)."""
        if not self.has(key, make):
            raise SearchingError

    def make(self, key: Hashable, make: Callable[[], object]) -> None:
        """Makes in this thread what calls of `key` need, which is then there."""
        make()
        made = Future[None]()
        made.set_result(None)
        with self._lock:
            self._made[key, settings_now()] = made

    def waiting(self) -> AbstractContextManager[None]:
        """Lets this thread wait for what it needs."""
        return marked(self._local, "waits")

    def start(self, work: Callable[[], None]) -> None:
        """Lets the thread do `work`."""
        with self._lock:
            self._made[object()] = self._threads.submit(copy_context().run, work)

    def wait(self, seconds: float | None) -> bool:
        """Waits until the thread has done all it was told to; returns whether it has. `seconds`: None waits forever."""
        with self._lock:
            waiting = list(self._made.values())
        return not wait(waiting, seconds).not_done


def _make(make: Callable[[], object], settings: Any, wide: bool) -> None:
    with jax.enable_x64(wide):
        if settings_now() != settings:
            return
        try:
            make()
        except Exception as e:
            log_at(2, f"a search in the background ended with {type(e).__name__}: {e}")


def read_search(given: object) -> bool:
    """Whether searches are made in the background. OptionError."""
    if not isinstance(given, str) or given not in SEARCH:
        raise OptionError(f"search={short_repr(given)}: {', '.join(map(repr, SEARCH))} are accepted")
    return given == "background"
