"""A bounded table of results found before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

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
