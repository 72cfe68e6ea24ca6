"""The typings of a law, the most general first: which operands broadcast, which axes may be any, and which further
axes operands may have."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.discovery.grammar import Grammar, OperatorForm
from relax_eg.discovery.table import EqualPair
from relax_eg.discovery.terms import Term, leaves_of, operators_of
from relax_eg.shapes import Dim

ON_LAST_AXIS = 3  # given: the generality of typings of operators over the last axis
AXES = ("axes", "axis")  # given: the attributes that name axes
_MOST_BROADCAST = 3  # limit: operands of a law of which all selections are tried as those that broadcast, not each one
# given: operators about the last axes
OF_MATRICES = frozenset(("matmul", "linear", "triu", "tril", "cholesky", "triangular_solve"))


@dataclass(frozen=True)
class Signature:
    """A typing of the variables of a law.

    - `shapes`: the text of the rule's signature.
    - `generality`: 0 for the most general kind of typing; typings of one kind share the function's text.
    - `axis`: how the axes of operators are written: "plain", "last" (counted from the last one), or the name of an
      attribute variable.
    - `attrs`: what the attribute variable ranges over; empty if there is none.
    """

    shapes: str
    generality: int
    axis: str = "plain"
    attrs: str = ""


def signatures(c: EqualPair, grammar: Grammar, every: bool = False) -> Iterator[Signature]:
    """The typings of a candidate, the most general first: any number of axes, with operands that broadcast; any axis;
    more axes in front. `every`: all operands that may broadcast, and all that may have axes in front; otherwise the
    last one, and all together."""
    return _Typings(c, grammar, every).found()


class _Typings:
    def __init__(self, c: EqualPair, grammar: Grammar, every: bool) -> None:
        self._c, self._grammar, self._every = c, grammar, every
        self._shapes = {str(v.attr("name")): v.shape for v in (grammar.variables[i] for i in variables_of(c, grammar))}
        self._forms = [grammar.forms[n] for n in (*operators_of(c.left), *operators_of(c.right))]
        self._axes = [(f, k, v) for f in self._forms for k, v in f.attributes if k in AXES]
        self._sized = [
            (f, k, v)
            for f in self._forms
            for k, v in f.attributes
            if isinstance(v, tuple) and any(isinstance(d, Dim) for d in v)  # type: ignore[reportUnknownVariableType]
        ]
        # The shapes of more than no axes, the longest first.
        self._distinct = sorted(dict.fromkeys(s for s in self._shapes.values() if s), key=len, reverse=True)

    def found(self) -> Iterator[Signature]:
        texts = {n: self._text(n) for n in self._shapes}
        has_block = any("*" in t and t != "*b" for t in texts.values())
        if self._distinct and not has_block and all(f.is_operator for f in self._forms):
            if not condition_sizes(self._c):
                yield from self._pointwise()
                yield from self._any_axes()
                yield from self._any_place()
            yield from self._last_axis(texts)
            yield from self._more_in_front(texts)
        yield Signature(self._typed(texts), 5)
        yield Signature(self._typed(texts, "float32"), 6)

    def _text(self, name: str) -> str:
        return str(self._grammar.signature[name].text).partition("@")[0].strip()

    def _typed(self, texts: dict[str, str], open_dtype: str = "") -> str:
        has_program = not all(f.is_operator for f in self._forms)
        parts: list[str] = []
        for n, dims in texts.items():
            wanted = self._grammar.signature[n].dtype or ("float32" if has_program else open_dtype)
            parts.append(f"{n}: {dims}".rstrip() + (f" @ {wanted}" if wanted else ""))
        return ", ".join(parts)

    def _pointwise(self) -> Iterator[Signature]:
        """Shapes that are the ends of each other."""
        if (
            self._axes
            or not all(is_whole(v, self._shapes.values()) for _, _, v in self._sized)
            or any(f.op in OF_MATRICES for f in self._forms)
        ):
            return
        if not self._are_ends():
            return
        if len(self._distinct) > 1:
            ends = {s: _ends(len(self._distinct), i) for i, s in enumerate(self._distinct)}
            yield Signature(self._typed({n: ends.get(s, "") for n, s in self._shapes.items()}), 0)
            return
        full = [n for n, s in self._shapes.items() if s]
        counts = range(1, len(full) if len(full) <= _MOST_BROADCAST else 2)
        small = [c for n in counts for c in itertools.combinations(full, n)] if self._every else [(full[-1],)]
        if len(full) == 2 and is_symmetric(self._c):
            small = small[-1:]
        for chosen in small if len(full) > 1 and not self._sized else ():
            ends = {n: "*c" if n in chosen else "*a *c" for n in full}
            yield Signature(self._typed({n: ends.get(n, "") for n in self._shapes}), 0)
        yield Signature(self._typed({n: "*b" if s else "" for n, s in self._shapes.items()}), 1)

    def _any_axes(self) -> Iterator[Signature]:
        """Operators over the same axes of operands of one shape."""
        values = {(k, v) for _, k, v in self._axes}
        if len(values) == 1 and len(self._distinct) == 1 and not self._sized and not self._has_matrices():
            ((attribute, axes),) = values
            ops = list(dict.fromkeys(f.op for f, _, _ in self._axes))
            shape = self._distinct[0]
            numbers = [str(shape[i]) for i in _axes_in(axes) if i < len(shape) and shape[i].is_const]
            dims = f"*a {' '.join(numbers)} *c" if numbers else "*b"
            shapes = self._typed({n: dims if s else "" for n, s in self._shapes.items()})
            yield Signature(shapes, 1, "axes", f"{' | '.join(ops)}.{attribute}")

    def _any_place(self) -> Iterator[Signature]:
        """Joints and slices along one axis, in any place among other axes."""
        at = {v for f, _, v in self._axes if f.op == "concat"}
        if len(at) != 1 or len(self._axes) != sum(f.op == "concat" for f in self._forms) or self._has_matrices():
            return
        (axis,) = at
        if any(f.op != "strided_slice" for f, _, _ in self._sized):
            return
        if len({(len(s), s[:axis], s[axis + 1 :]) for s in self._distinct}) == 1:
            placed = {n: f"*a {s[axis]} *c" if s else "" for n, s in self._shapes.items()}
            yield Signature(self._typed(placed), 2, "axis", "concat.axis")

    def _last_axis(self, texts: dict[str, str]) -> Iterator[Signature]:
        """Operators over the last axis."""
        longest = self._distinct[0]
        last = len(longest) - 1
        if (
            not self._axes
            or self._sized
            or self._has_matrices()
            or not all(_is_last(f, last) for f, _, _ in self._axes)
        ):
            return
        if all(s in (longest, longest[-1:], ()) for s in self._shapes.values()):
            shapes = {n: f"*b {longest[-1]}" if s == longest else texts[n] for n, s in self._shapes.items()}
            yield Signature(self._typed(shapes), ON_LAST_AXIS, "last")

    def _more_in_front(self, texts: dict[str, str]) -> Iterator[Signature]:
        """Axes in front of operands with several: of all, or of those with some shapes."""
        many = [s for s in self._distinct if len(s) > 1]
        if not many or self._sized or (self._are_ends() and not self._axes and not self._has_matrices()):
            return
        for count in range(len(many), 0, -1) if self._every else [len(many)]:
            for chosen in itertools.combinations(many, count):
                shapes = {n: f"*b {texts[n]}" if s in chosen else texts[n] for n, s in self._shapes.items()}
                yield Signature(self._typed(shapes), 4, "last")

    def _are_ends(self) -> bool:
        """Whether the shorter shapes are ends of the longest one."""
        longest, *shorter = self._distinct
        return all(s == longest[len(longest) - len(s) :] for s in shorter)

    def _has_matrices(self) -> bool:
        return any(f.op in OF_MATRICES for f in self._forms)


def _axes_in(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)  # type: ignore[reportUnknownVariableType]


def is_whole(sizes: Sequence[Any], shapes: Collection[Any]) -> bool:
    """Whether the sizes of an attribute are one of the shapes, or the zeros where a slice of everything begins."""
    return tuple(sizes) in shapes or all(d == Dim.of(0) for d in sizes)


def _ends(count: int, place: int) -> str:
    """The blocks of the shape number `place` of `count` shapes that are the ends of each other, the longest first."""
    return " ".join(f"*{'abcdefgh'[i]}" for i in range(place, count))


def condition_sizes(c: EqualPair) -> frozenset[str]:
    """The sizes that the condition of a candidate names."""
    return frozenset() if c.condition is None else c.condition.sizes


def _is_last(f: OperatorForm, last: int) -> bool:
    return all(v in (last, (last,)) for k, v in f.attributes if k in AXES)


def variables_of(c: EqualPair, grammar: Grammar) -> list[int]:
    """The variables of a candidate, by number."""
    return sorted({v for v in leaves_of(c.left) if v < grammar.variable_count})


def is_symmetric(c: EqualPair) -> bool:
    """Whether the law is itself in the other direction, under other names of variables."""
    found: dict[int, int] = {}

    def same(a: Term, b: Term) -> bool:
        if isinstance(a, int) or isinstance(b, int):
            return isinstance(a, int) and isinstance(b, int) and found.setdefault(a, b) == b
        return a[0] == b[0] and len(a) == len(b) and all(map(same, a[1:], b[1:]))

    return same(c.left, c.right) and all(found.get(b) == a for a, b in found.items())
