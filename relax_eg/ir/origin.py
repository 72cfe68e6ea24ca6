"""The origin of an expression: the user's source lines that it computes, and the rules that made it.

Frontends give every expression the line that wrote it (`Function.origins`); a search adds the rules (`driver.origins`).
Every stage passes the records on. Text is made where people read it, and read back by the parser of module text only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from relax_eg.plain_data import is_count

if TYPE_CHECKING:
    from relax_eg.ir.expr import Expr


class SourceLine(NamedTuple):
    """A line of a source file.

    - `file`: the file's name without folders, or the name of a model.
    - `number`: the line from 1, or the number of a model's node from 0; None for all of it.
    """

    file: str
    number: int | None

    def __str__(self) -> str:
        return self.file if self.number is None else f"{self.file}:{self.number}"

    @staticmethod
    def of(function: Any) -> SourceLine:
        """Returns the first line of a Python function; `<rule>` for a callable without code."""
        code = getattr(function, "__code__", None)
        if code is None:
            return SourceLine("<rule>", None)
        return SourceLine(os.path.basename(code.co_filename), code.co_firstlineno)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an expression. `str` gives "model.py:31, model.py:33 by rule, book.py:12"; either part may lack.

    - `lines`: the user's source lines that the expression computes, its own first.
    - `rules`: the rules and extraction steps that made it; none for an expression as written.
    - `where`: the line of the first of `rules`; None where it is not known.
    """

    lines: tuple[SourceLine, ...] = ()
    rules: tuple[str, ...] = ()
    where: SourceLine | None = None

    def __str__(self) -> str:
        made = ", ".join([*self.rules, *([str(self.where)] if self.where is not None else [])])
        return " ".join(x for x in (", ".join(map(str, self.lines)), f"by {made}" if self.rules else "") if x)


Origins: TypeAlias = Mapping["Expr", Origin]
NO_ORIGINS: Origins = MappingProxyType({})
UNKNOWN = Origin()


def read_origin(text: str) -> Origin | None:
    """Returns the origin that `str(origin)` printed; None for any other text."""
    before, _, after = f" {text}".rpartition(" by ")
    made = after.split(", ") if before or text.startswith("by ") else []
    where = _line(made.pop()) if len(made) > 1 and _line(made[-1]) is not None else None
    for lines, rules in ((before.strip(), made), (text, [])):
        found = _lines(lines)
        if found is not None and all(rules) and (found or rules):
            return Origin(found, tuple(rules), where if rules else None)
    return None


def _line(text: str) -> SourceLine | None:
    file, _, number = text.rpartition(":")
    return SourceLine(file, int(number)) if file and is_count(number) else None


def _lines(text: str) -> tuple[SourceLine, ...] | None:
    """Returns the lines in a text such as "model.py:31, model.py:33"; None for any other text."""
    found: list[SourceLine] = []
    begun: list[str] = []  # parts of a file's name that has commas
    for part in text.split(", ") if text else ():
        line = _line(part)
        if line is None:
            begun.append(part)
        else:
            found.append(line._replace(file=", ".join([*begun, line.file])))
            begun = []
    return None if begun else tuple(found)
