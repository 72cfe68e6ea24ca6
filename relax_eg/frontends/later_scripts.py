"""Finds the scripts that follow a script in its file, which Python has not run yet when that script is read.

So two scripts may call one another.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any

FILES = 16  # limit: syntax trees of files that are kept


@lru_cache(FILES)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


class LaterScripts:
    """The functions after `fn` in its file."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    @cached_property
    def _lines(self) -> tuple[list[str], int]:
        try:
            return inspect.findsource(self.fn)
        except (OSError, TypeError):
            return [], 0

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of all functions after `fn`, in any scope."""
        lines, at = self._lines
        return frozenset(m[1] for line in lines[at + 1 :] if (m := re.match(r"\s*def (\w+)", line)))

    def find(self, name: str, is_script: Callable[[ast.expr], bool]) -> tuple[str, str, int, int] | None:
        """Returns what `text_of_function` does of the script `name`; None if none follows `fn` in its scope or one
        around it, or if another function of that name stands before. `is_script(mark)`: whether a decorator makes a
        script."""
        if name not in self._names:
            return None
        lines, at = self._lines
        try:
            tree = _parsed("".join(lines))
        except SyntaxError:
            return None
        around = [s for s in ast.walk(tree) if isinstance(s, ast.FunctionDef) and _first(s) <= at < (s.end_lineno or 0)]
        for scope in (*sorted(around, key=_first, reverse=True), tree):
            d = next((d for d in _definitions(scope.body) if d.name == name), None)
            if d is None:
                continue
            if _first(d) <= at + 1 or not any(map(is_script, d.decorator_list)):
                return None
            text = "".join(lines[_first(d) - 1 : d.end_lineno])
            return textwrap.dedent(text), inspect.getsourcefile(self.fn) or "", _first(d), d.col_offset
        return None


def _first(d: ast.FunctionDef) -> int:
    """The first line of a definition, from 1, with its decorators."""
    return min(d.lineno, *(m.lineno for m in d.decorator_list)) if d.decorator_list else d.lineno


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """The functions of one scope, also those in its `if`s, `with`s and so on."""
    for s in body:
        if isinstance(s, ast.FunctionDef):
            yield s
        elif not isinstance(s, (ast.ClassDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(s, part, []))
