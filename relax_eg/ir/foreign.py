"""Opaque Python objects as attributes: jaxprs, callables, JAX's named tuples.

Text names such an object by its index in a registry of this process, which keeps the object alive. Text with a
`Foreign` can therefore be read back only in the same process, and only while at most `MOST_HELD` other objects were
named after it.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any, cast

from relax_eg.memo import Memo

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
# limit: objects named in texts. Covers the largest programs: 10,000 operators with one object each.
MOST_HELD = 1 << 14
_places = Memo["Foreign", int](MOST_HELD)
_held = Memo[int, "Foreign"](MOST_HELD)
_numbers = itertools.count()


class Foreign:
    """A wrapper of `value`, an object that the compiler passes along without inspecting it.

    Two instances are equal if they hold the same object, or hashable objects of one type for which `==` returns True.
    Fields of a tuple are compared in the same way, so 1, True and 1.0 differ, and so do 0.0 and -0.0.
    """

    __slots__ = ("_hash", "value")
    value: Any
    _hash: int | None

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash(value)
        except Exception:  # unhashable for any reason: equal only to itself
            self._hash = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Foreign):
            return NotImplemented
        if self.value is other.value:
            return True
        return self._hash is not None and self._hash == other._hash and _equal_content(self.value, other.value)

    def __hash__(self) -> int:
        return id(self.value) if self._hash is None else self._hash

    def __deepcopy__(self, memo: Any) -> Foreign:
        return self  # identity of the object is its meaning

    def __reduce__(self) -> tuple[Any, ...]:
        return Foreign, (self.value,)  # the hash is valid in this process only

    def __str__(self) -> str:
        """Returns text that reads back to an equal object in this process."""
        return f'R.foreign("{self.type_name}", {place_of(self)})'

    def __repr__(self) -> str:
        return f"<foreign {self.type_name}>"

    @property
    def type_name(self) -> str:
        return type(self.value).__name__


def place_of(foreign: Foreign) -> int:
    """Returns the registry index of `foreign`, adding it if it is new."""
    with _lock:
        place = _places.get(foreign)
        if place is None:
            place = _places[foreign] = next(_numbers)
            _held[place] = foreign
        return place


def foreign_at(type_name: str, place: int) -> Foreign | None:
    """Returns the object at index `place` of the registry, or None if it is not there or its type is not
    `type_name`."""
    with _lock:
        found = _held.get(place)
    return found if found is not None and found.type_name == type_name else None


def _equal_content(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        xs, ys = cast("tuple[Any, ...]", a), cast("tuple[Any, ...]", b)
        return len(xs) == len(ys) and all(map(_equal_content, xs, ys))
    try:
        return (a == b) is True and (not isinstance(a, float) or a.hex() == b.hex())
    except Exception:  # a failing `==` proves nothing
        return False
