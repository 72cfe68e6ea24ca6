"""Answers about expressions that schemas find by long searches and proofs, in memory and in the disk cache.

An answer follows from expressions over variables, whatever program they come from, so a process that optimizes another
program, or the same one after an edit, need not find it again. The answers of a search are one entry of the cache,
which `write_answers` writes at its end. Its name has the versions of this package and of what it uses. Where the cache
is off, no answer that was found with it counts: what checks a search turns it off.
"""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from relax_eg.cache_folder import read_entry, store, surroundings
from relax_eg.ir.expr import Expr, tuple_
from relax_eg.ir.packed import read_expression, reduced_expression
from relax_eg.ir.tokens import NoContentError
from relax_eg.logs import cache_is_on, log_at, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.ops.record import TABLE
from relax_eg.store import Store

_MOST_ON_DISK = 1 << 13  # limit: answers in an entry, of some 400 bytes each; those that were found first are left out
_MOST_ENTRIES = 64  # limit: entries of one version; more become one when they are read
_DIGEST = 16  # chosen: bytes of the digest by which a question is known

ANSWERS = "answers-"  # how the names of entries begin

Plain = Any  # data for JSON
Answer = TypeVar("Answer")

_OPERATORS = dict(TABLE)  # this package's own operators
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def other_operators() -> list[str]:
    """The operators that are not this package's own, or were changed."""
    if TABLE == _OPERATORS:
        return []
    return [name for name, operator in TABLE.items() if _OPERATORS.get(name) is not operator]


class _Entries:
    """The answers of other processes and of this one: JSON text by the digest of the question."""

    def __init__(self) -> None:
        self.place: tuple[Store, str] | None = None  # the folder that was read, and how names of its entries begin
        self.known: dict[str, str] = {}
        self.new: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """The answers on file. They are read once, and again where the folder of the cache changes."""
        place = store(), f"{ANSWERS}{_digest_of(repr(surroundings()))}-"
        with _lock:
            if place != self.place:
                self.place, self.known, self.new = place, _answers_in(*place), {}
            return self.known

    def add(self, digest: str, answer: str) -> None:
        with _lock:
            self.known[digest] = self.new[digest] = answer

    def write(self) -> None:
        """Writes the new answers as an entry of their own, so that its cost does not grow with those on file."""
        with _lock:
            if self.place is not None and self.new:
                _write(*self.place, self.new)
                self.new = {}


def _answers_in(kept: Store, prefix: str) -> dict[str, str]:
    """The answers of all entries of these names. Many entries become one."""
    names = [path.stem for path, _ in kept.entries() if path.name.startswith(prefix)]
    found: dict[str, str] = {}
    for name in names:
        found |= read_entry(kept, name, _checked, "no table of answers") or {}
    if len(names) > _MOST_ENTRIES:
        for name in names:
            kept.remove(name)
        _write(kept, prefix, dict(list(found.items())[-_MOST_ON_DISK:]))
    return found


def _write(kept: Store, prefix: str, answers: dict[str, str]) -> None:
    text = json.dumps(answers)
    kept.write(f"{prefix}{_digest_of(text)}", text.encode())


def _digest_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGEST).hexdigest()


def _checked(data: Any) -> dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(x, str) for x in data.values()):  # type: ignore[reportUnknownVariableType]
        raise ValueError("a table has answers by digest")
    return data  # type: ignore[reportUnknownVariableType]


_entries = _Entries()


def write_answers() -> None:
    """Writes what schemas found in this process to the disk cache, if that is on."""
    if cache_is_on():
        _entries.write()


@dataclass
class AnswerCache(Generic[Answer]):
    """The answers to questions of one kind.

    - `kind`: a name for the kind of question.
    - `most`: how many answers are kept in memory; one that is evicted is found again.
    - `to_data`, `from_data`: an answer as data for JSON.
    """

    kind: str
    most: int
    to_data: Callable[[Answer], Plain]
    from_data: Callable[[Plain], Answer]
    _memory: Memo[Hashable, Answer] = field(init=False)

    def __post_init__(self) -> None:
        self._memory = Memo(self.most)

    def forget(self) -> None:
        """Forgets the answers in memory."""
        self._memory.clear()

    def answer(self, asked: Sequence[Expr], about: Hashable, seconds: float, find: Callable[[], Answer]) -> Answer:
        """The answer to a question, which `find` finds where it is not known.

        - `asked`: the expressions that it is about.
        - `about`: what it follows from besides; its `repr` identifies it.
        - `seconds`: processor time from which on an answer is not kept on disk, because a clock may have cut it short.
        """
        is_on = cache_is_on()
        key = (is_on, *asked, about)
        try:
            return self._memory[key]
        except KeyError:
            found = self._from_disk(asked, about, seconds, find) if is_on else find()
        self._memory[key] = found
        return found

    def _from_disk(self, asked: Sequence[Expr], about: Hashable, seconds: float, find: Callable[[], Answer]) -> Answer:
        digest = self._digest(asked, about)
        known = {} if digest is None else _entries.read()
        if digest in known:
            try:
                return self.from_data(json.loads(known[digest]))
            except Exception as e:  # an answer that cannot be read is found again
                raise_if_exhausted(e)
                log_at(1, f"an answer in the cache is not used: {type(e).__name__}: {e}")
        started = time.thread_time()
        found = find()
        if digest is not None and time.thread_time() - started < seconds:
            _entries.add(digest, json.dumps(self.to_data(found), separators=(",", ":")))
        return found

    def _digest(self, asked: Sequence[Expr], about: Hashable) -> str | None:
        """The digest of a question; None where its content does not show."""
        if other_operators():
            return None
        try:
            surroundings()
            content = json.dumps([self.kind, repr(about), expressions_as_data(asked)])
        except (NoContentError, LookupError):
            return None
        return _digest_of(content)


def checked_reason(data: Any) -> str:
    """The reason why a proof fails, from data."""
    if not isinstance(data, str):
        raise ValueError("the reason why a proof fails is text")
    return data


# --- expressions as data ---


def expressions_as_data(values: Sequence[Expr | None]) -> Plain:
    """Expressions as data for JSON. NoContentError for objects of other libraries in them."""
    data, blob, objects = reduced_expression(tuple_(tuple_(()) if e is None else e for e in values))[1]
    if objects:
        raise NoContentError(f"a {type(objects[0].value).__name__} has no name")
    return [data, b64encode(blob).decode()]


def data_as_expressions(data: Plain) -> tuple[Expr | None, ...]:
    """The expressions that `expressions_as_data` wrote. Malformed data raises an exception."""
    packed, blob = data
    made = read_expression(packed, b64decode(blob), [])
    return tuple(None if e is tuple_(()) else e for e in made.args)
