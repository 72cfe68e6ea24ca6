"""The origin of each expression of a chosen program: the user's source lines, and the rule that made it.

A value of the chosen program is in an e-class. If the program as written has a value in that class, the two are equal,
and the line is that value's. A value that only rules made (three weights side by side) has the lines of its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from relax_eg.ir.expr import CONSTANT, FUNCTION, VAR, Expr, postorder
from relax_eg.ir.origin import UNKNOWN, Origin, Origins, SourceLine

_MOST_LINES = 8  # limit: source lines of one value


def origins_of(
    values: Sequence[Expr],
    classes: Mapping[Expr, Sequence[int]],
    makers: Mapping[Expr, tuple[str, ...]],
    written: Mapping[int, Sequence[Expr]],
    known: Origins,
    place: Callable[[str], SourceLine | None],
) -> dict[Expr, Origin]:
    """The origins of the expressions below `values`, as far as any are known. O(expressions).

    - `classes`: the classes that an expression computes, its result's last.
    - `makers`: the rules and extraction steps that made an expression.
    - `written`: the values of the program as written in each class.
    - `known`: the origins of those values, and of expressions of other blocks and forms.
    - `place`: the line of a rule.
    """
    found: dict[Expr, Origin] = {}
    read_by: dict[Expr, list[SourceLine]] = {}
    for e in reversed(postorder(values)):
        if e.op in (VAR, CONSTANT, FUNCTION):
            continue
        before = known.get(e, UNKNOWN)
        lines = [*before.lines, *_of_classes(classes.get(e, ()), written, known)] or read_by.get(e, [])
        distinct = tuple(dict.fromkeys(lines))[:_MOST_LINES]
        rules = makers.get(e, ())
        if rules:
            found[e] = Origin(distinct, rules, place(rules[0]))
        elif distinct or before.rules:
            found[e] = Origin(distinct, before.rules, before.where)
        for a in e.args:
            read_by.setdefault(a, []).extend(distinct)
    return found


def _of_classes(classes: Sequence[int], written: Mapping[int, Sequence[Expr]], known: Origins) -> Iterator[SourceLine]:
    for c in reversed(classes):
        for w in written.get(c, ()):
            yield from known.get(w, UNKNOWN).lines
