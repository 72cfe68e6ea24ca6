"""The origin of each expression of a chosen program: the user's source lines, and the rule that made it.

A value of the chosen program is in an e-class. If the program as written has a value in that class, the two are equal,
and the line is that value's. A value that only rules made (three weights side by side) has the lines of its readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from relax_eg.extract.detail import Origin
from relax_eg.ir.expr import CONSTANT, FUNCTION, VAR, Expr, postorder
from relax_eg.ir.module import Function

_MOST_LINES = 8  # limit: source lines of one value


# The format of `Function.sources`: "model.py:31", "by rule, book.py:12", or both, "model.py:31 by rule, book.py:12".
_TEXT = re.compile(r"(?:(?P<line>.+:\d+) )?by (?P<rules>.+), [^,]*")


def source_text(origin: Origin, where: str) -> str:
    """An origin in the format of `Function.sources`; `where`: file and line of the rule."""
    line = origin.lines[0] if origin.lines else ""
    return " ".join(x for x in (line, f"by {origin.rule}, {where}" if origin.rule else "") if x)


def origins_told(function: Function) -> dict[Expr, Origin]:
    """The origins in the sources of a function, either as written or already optimized by rules."""
    found: dict[Expr, Origin] = {}
    for e, text in function.sources.items():
        parts = _TEXT.fullmatch(text)
        lines = (text if parts is None else parts["line"]) or ""
        found[e] = Origin((lines,) if lines else (), "" if parts is None else parts["rules"])
    return found


def origins_of(
    values: Sequence[Expr],
    classes: Mapping[Expr, Sequence[int]],
    makers: Mapping[Expr, str],
    written: Mapping[int, Sequence[Expr]],
    lines: Mapping[Expr, tuple[str, ...]],
) -> dict[Expr, Origin]:
    """The origins of the expressions below `values`. O(expressions).

    - `classes`: the classes that an expression computes, its result's last.
    - `written`: the values of the program as written in each class.
    - `lines`: the source lines of those values.
    """
    found: dict[Expr, tuple[str, ...]] = {}
    read_by: dict[Expr, list[str]] = {}
    for e in reversed(postorder(values)):
        if e.op in (VAR, CONSTANT, FUNCTION):
            continue
        own = list(dict.fromkeys(_own(classes.get(e, ()), written, lines)))
        if not own and e in lines:
            own = list(lines[e])
        told = tuple((own or list(dict.fromkeys(read_by.get(e, ()))))[:_MOST_LINES])
        found[e] = told
        for a in e.args:
            read_by.setdefault(a, []).extend(told)
    return {e: Origin(told, makers.get(e, "")) for e, told in found.items()}


def _own(
    classes: Sequence[int], written: Mapping[int, Sequence[Expr]], lines: Mapping[Expr, tuple[str, ...]]
) -> Iterator[str]:
    for c in reversed(classes):
        for w in written.get(c, ()):
            yield from lines.get(w, ())
