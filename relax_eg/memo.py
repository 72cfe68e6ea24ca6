"""Tables: a bounded one of results found before, and one of objects that exist once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


class Memo(OrderedDict[K, V]):
    """A dict of at most `most` entries: setting one more (`memo[key] = value`) removes the one set first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self._lock = threading.RLock()

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made by `make` where there is none: once, even if several threads ask for it."""
        with self._lock:
            if key in self:
                return self[key]
            self[key] = value = make()
            return value

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self.most:
            self.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Memo, (self.most,), None, None, iter(self.items())


class Interned(WeakValueDictionary[K, V]):
    """A table of the objects of a kind that are compared by identity: one for each key, as long as something else holds
    it. Tables of this kind are made once, by modules."""

    def __init__(self) -> None:
        super().__init__()
        # Reentrant: garbage collection may run code that adds to the table while the lock is held.
        self._lock = threading.RLock()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def add(self, key: K, made: V) -> V:
        """Returns the object of `key`: `made`, unless another thread was quicker."""
        with self._lock:
            return self.setdefault(key, made)
