"""Comparisons of symbolic sizes that a function makes in Python while JAX traces it.

JAX answers `==` with False wherever it cannot tell, so what it traces is wrong at the sizes that are equal; and it
raises on inequalities that a proof would decide (`jax.export`, "Shape polymorphism", of jax 0.10). While a function is
watched here, the prover is asked where JAX does not know. An equality that stays open in the user's code is taken to be
false as JAX takes it, and remembered, so that the program is only run where it is.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jax import export

from relax_eg.errors import RelaxEgError
from relax_eg.frontends.sources import is_users
from relax_eg.frontends.symbolic import is_symbolic, to_dim
from relax_eg.shapes import Proved, Scope
from relax_eg.shapes.constraints import dim_of_jax
from relax_eg.shapes.prover import TIMEOUT_MS
from relax_eg.shapes.relation import Relation

_EXPRESSION: Any = type(export.symbolic_shape("n")[0])
_ORDERS = {"__ge__": ">=", "__gt__": ">", "__le__": "<=", "__lt__": "<"}
_NEGATED = {">=": "<", ">": "<=", "<=": ">", "<": ">="}

_patching = threading.Lock()
os.register_at_fork(before=_patching.acquire, after_in_parent=_patching.release, after_in_child=_patching.release)
_original: dict[str, Callable[[Any, Any], bool]] = {}
_traces = 0  # that are under way, in all threads
_watching = threading.local()


@dataclass(frozen=True, slots=True)
class Differing:
    """Two sizes that a function compared, and that were taken to differ: the statement, and the user's line."""

    statement: str
    line: str

    @property
    def reason(self) -> str:
        return (
            f"{self.line} compares these sizes, and what was traced is for sizes that differ; "
            "accepted: integers in the specs, or rx.jit, which makes a program for each case"
        )


class Watch:
    """What one trace asked of sizes. `open`: of the inequality asked last that nothing decides, the two statements of
    which one holds; None where there was none."""

    def __init__(self, scope: Scope) -> None:
        self.differing: dict[str, Differing] = {}
        self.open: tuple[str, str] | None = None
        self._scope = scope

    def equal(self, a: Any, b: Any, line: tuple[str, int] | None) -> bool:
        """Whether `a == b` is proved. `line`: the user's, who compared; None for JAX itself, for which z3 is not asked:
        it compares often."""
        left, right = to_dim(a), to_dim(b)
        found = self._scope.equal(left, right, deep=line is not None)
        if found is None and line is not None:
            statement = f"{left} != {right}"
            self.differing.setdefault(statement, Differing(statement, f"{os.path.basename(line[0])}:{line[1]}"))
        return bool(found)

    def ordered(self, a: Any, op: str, b: Any, by_user: bool) -> bool | None:
        """`a op b` where it is proved or its contrary is, else None; z3 is for the user's questions only."""
        relation = Relation.of(to_dim(a), op, to_dim(b))
        contrary = Relation.of(relation.left, _NEGATED[op], relation.right)
        for asked in (relation, contrary):
            if isinstance(self._scope.prover.prove(asked, TIMEOUT_MS if by_user else 0), Proved):
                return asked is relation
        self.open = (str(relation), str(contrary))
        return None


@contextmanager
def watched(scope: Scope) -> Generator[Watch]:
    """Comparisons of symbolic sizes in this thread, in this block, of which `scope` says what is known."""
    global _traces
    watch = Watch(scope)
    before = getattr(_watching, "watch", None)
    with _patching:
        if _traces == 0:
            _patch()
        _traces += 1
    _watching.watch = watch
    try:
        yield watch
    finally:
        _watching.watch = before
        with _patching:
            _traces -= 1
            if _traces == 0:
                for name, method in _original.items():
                    setattr(_EXPRESSION, name, method)


def _patch() -> None:
    for name in ("__eq__", *_ORDERS):
        _original[name] = getattr(_EXPRESSION, name)
        setattr(_EXPRESSION, name, _equality if name == "__eq__" else _order(name))


def _equality(self: Any, other: Any) -> bool:
    answer = _original["__eq__"](self, other)
    watch = getattr(_watching, "watch", None)
    if answer or watch is None:
        return answer
    if not isinstance(other, int) and (not is_symbolic(other) or other.scope is not self.scope):
        return False  # no size, or one of another trace, whose names mean other sizes
    frame = _caller()
    # JAX itself compares sizes wherever it looks one up, and then mostly does what is right for equal ones, too.
    line = (frame.f_code.co_filename, frame.f_lineno) if _asks_for_user(frame) else None
    try:
        with _unwatched():
            return watch.equal(self, other, line)
    except RelaxEgError:  # a size that is not ours to read
        return False


def _order(name: str) -> Callable[[Any, Any], bool]:
    def compare(self: Any, other: Any) -> bool:
        try:
            return _original[name](self, other)
        except Exception as error:
            watch = getattr(_watching, "watch", None)
            if watch is None or type(error).__name__ != "InconclusiveDimensionOperation":
                raise
            try:
                with _unwatched():
                    answer = watch.ordered(self, _ORDERS[name], other, _asks_for_user(_caller()))
            except RelaxEgError:
                answer = None
            if answer is None:
                raise
            return answer

    return compare


def _caller() -> FrameType:
    """The frame of whoever compared."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if frame.f_code.co_name == "__ne__" and frame.f_back is not None:  # JAX's own, which asks for equality
        return frame.f_back
    return frame


def _asks_for_user(frame: FrameType) -> bool:
    """Whether what a frame does with the answer is the user's matter. The `__eq__` of a dataclass, which Python makes
    of a text, is not: caches compare their keys by it, some times and others not."""
    made = frame.f_code.co_filename == "<string>" and frame.f_code.co_name.startswith("__")
    return not made and is_users(frame.f_code.co_filename)


@contextmanager
def _unwatched() -> Generator[None]:
    watch, _watching.watch = _watching.watch, None
    try:
        yield
    finally:
        _watching.watch = watch


def open_in_text(text: str) -> tuple[str, str] | None:
    """The two statements of which one decides the first `min` or `max` in a message of JAX's, as in shapes that do not
    fit each other because one was cut at a size: `(min(128, n - 1), 64)`. None where there is none."""
    for found in re.finditer(r"\b(?:min|max)\(", text):
        sides = _arguments(text, found.end())
        if len(sides) == 2:
            try:
                left, right = (dim_of_jax(s.strip()) for s in sides)
            except RelaxEgError:
                continue
            # The size that varies stands first, as one would say it.
            if left.is_const:
                left, right = right, left
            return f"{left} <= {right}", f"{left} > {right}"
    return None


def _arguments(text: str, start: int) -> Sequence[str]:
    """The arguments of a call whose opening parenthesis ends at `start`; none where it is not closed."""
    depth, pieces, begun = 1, list[str](), start
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0 or (depth == 1 and text[i] == ","):
            pieces.append(text[begun:i])
            begun = i + 1
        if depth == 0:
            return pieces
    return ()
