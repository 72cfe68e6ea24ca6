"""Opaque Python objects as attributes: jaxprs, callables, the named tuples of JAX.

Text names such an object by its place in a registry of this process, which keeps it alive; so text with a `Foreign`
can be read back in the same process only.
"""

from __future__ import annotations

import os
import threading
from typing import Any, cast

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_places: dict[Foreign, int] = {}
_held: list[Foreign] = []


class Foreign:
    """`value`, which the compiler passes along without looking inside.

    Two are equal when they hold the same object, or hashable objects of one type for which `==` returns True. The
    fields of a tuple are compared in the same way, so 1, True and 1.0 differ there, and so do 0.0 and -0.0.
    """

    __slots__ = ("_hash", "value")
    value: Any
    _hash: int | None

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash(value)
        except Exception:  # unhashable in any way: then it is itself only
            self._hash = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Foreign):
            return NotImplemented
        if self.value is other.value:
            return True
        return self._hash is not None and self._hash == other._hash and _same(self.value, other.value)

    def __hash__(self) -> int:
        return id(self.value) if self._hash is None else self._hash

    def __deepcopy__(self, memo: Any) -> Foreign:
        return self  # the object itself is what it stands for

    def __reduce__(self) -> tuple[Any, ...]:
        return Foreign, (self.value,)  # hashes are of a process

    def __str__(self) -> str:
        """The text that reads back to an equal object in this process."""
        return f'R.foreign("{self.type_name}", {place_of(self)})'

    def __repr__(self) -> str:
        return f"<foreign {self.type_name}>"

    @property
    def type_name(self) -> str:
        return type(self.value).__name__


def place_of(foreign: Foreign) -> int:
    """Where the registry of this process holds `foreign`; it is added if it is new."""
    with _lock:
        place = _places.setdefault(foreign, len(_held))
        if place == len(_held):
            _held.append(foreign)
        return place


def foreign_at(type_name: str, place: int) -> Foreign | None:
    """What the registry holds at `place`, or None if this process has put no `type_name` there."""
    with _lock:
        found = _held[place] if 0 <= place < len(_held) else None
    return found if found is not None and found.type_name == type_name else None


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        xs, ys = cast("tuple[Any, ...]", a), cast("tuple[Any, ...]", b)
        return len(xs) == len(ys) and all(map(_same, xs, ys))
    try:
        return (a == b) is True and (not isinstance(a, float) or a.hex() == b.hex())
    except Exception:  # an `==` that fails says nothing
        return False
