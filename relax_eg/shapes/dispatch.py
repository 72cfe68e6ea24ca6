"""Dispatch: selects the guard that holds, by one generated Python function that decides in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relax_eg.shapes.dim import Atom, Dim, Monomial
from relax_eg.shapes.guards import Guard

_SHARED_BOXES = 4  # chosen: one in this many boxes may be on both sides of a comparison

Interval = tuple[int | None, int | None]
Box = tuple[int, dict[Dim, Interval]]  # index of the guard that has the box, and the bounds not yet tested


class Dispatch:
    """A decision function for guards: `index_of(sizes)` returns the index of the first guard that holds.

    A tree of comparisons separates the guards' boxes; each comparison leaves about half of them. A call therefore
    computes few size expressions, each once, and compares plain integers.
    """

    def __init__(self, guards: Sequence[Guard], fallback: int = 0) -> None:
        """`fallback`: the index returned if no guard holds."""
        boxes: list[Box] = [
            (index, {b.dim: (b.low, b.high) for b in box}) for index, guard in enumerate(guards) for box in guard.boxes
        ]
        self.index_of: Callable[[Mapping[str, int]], int] = _Writer(fallback).function(boxes)


class _Writer:
    """A writer of comparisons as Python source, from integers and its own names.

    Atoms other than variables and quotients by a positive constant become calls.
    """

    def __init__(self, fallback: int) -> None:
        self._fallback = fallback
        self._lines: list[str] = []
        self._margin = "    "
        self._names: dict[object, str] = {}  # values computed on the path to here
        self._called: dict[str, Callable[[Mapping[str, int]], int]] = {}

    def function(self, boxes: Sequence[Box]) -> Callable[[Mapping[str, int]], int]:
        self._tree(boxes)
        made: dict[str, Callable[[Mapping[str, int]], int]] = dict(self._called)
        body = "\n".join(self._lines)
        exec(f"def at(sizes):\n{body}\n", made)  # safe: numbered names; size names only as string literals
        return made["at"]

    def _write(self, line: str) -> None:
        self._lines.append(self._margin + line)

    def _tree(self, boxes: Sequence[Box]) -> None:
        """Writes the code that returns the guard of the first of these boxes that holds."""
        cut = _best_comparison(boxes)
        if cut is None:
            self._tests_in_order(boxes)
            return
        dim, n = cut
        self._write(f"if {self._dim(dim)} <= {n}:")
        margin, names = self._margin, dict(self._names)
        self._margin += "    "
        self._tree(_boxes_within(boxes, dim, None, n))
        self._margin, self._names = margin, names
        self._tree(_boxes_within(boxes, dim, n + 1, None))

    def _tests_in_order(self, boxes: Sequence[Box]) -> None:
        for index, bounds in boxes:
            tests = [self._test(d, low, high) for d, (low, high) in bounds.items()]
            if not tests:
                self._write(f"return {index}")
                return
            self._write(f"if {' and '.join(tests)}: return {index}")
        self._write(f"return {self._fallback}")

    def _test(self, d: Dim, low: int | None, high: int | None) -> str:
        value = self._dim(d)
        if low == high:
            return f"{value} == {low}"
        return f"{'' if low is None else f'{low} <= '}{value}{'' if high is None else f' <= {high}'}"

    def _dim(self, d: Dim) -> str:
        if d.is_const:
            return str(d.const)
        products = [(self._product(monomial), c) for monomial, c in d.terms]
        parts = [name if c == 1 else f"{c}*{name}" for name, c in products]
        return self._value(d, " + ".join([*parts, str(d.const)] if d.const else parts))

    def _product(self, monomial: Monomial) -> str:
        *first, last = monomial
        if not first:
            return self._atom(last)
        return self._value(monomial, f"{self._product(tuple(first))} * {self._atom(last)}")

    def _atom(self, atom: Atom) -> str:
        if atom.op == "var":
            return self._value(atom, f"sizes[{atom.name!r}]")
        if atom.op == "floordiv" and atom.args[1].is_const and atom.args[1].value > 0:
            return self._value(atom, f"{self._dim(atom.args[0])} // {atom.args[1].value}")
        return self._value(atom, f"{self._function(atom)}(sizes)")

    def _function(self, atom: Atom) -> str:
        name = f"call{len(self._called)}"
        self._called[name] = atom.evaluate
        return name

    def _value(self, key: object, text: str) -> str:
        """Returns the name of a value, and computes the value at its first use."""
        if text.isidentifier():
            return text
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"v{len(self._names)}"
            self._write(f"{name} = {text}")
        return name


def _best_comparison(boxes: Sequence[Box]) -> tuple[Dim, int] | None:
    """Returns the comparison `dim <= n` that leaves the fewest boxes on either side; the shorter expression wins a tie.

    None if each comparison leaves too many boxes on both sides.
    """
    ends: dict[Dim, set[int]] = {}
    for _, bounds in boxes:
        for d, (low, high) in bounds.items():
            ends.setdefault(d, set()).update(n for n in (None if low is None else low - 1, high) if n is not None)
    best: tuple[tuple[int, int, int], Dim, int] | None = None
    for d, cuts in ends.items():
        known = [bounds.get(d, (None, None)) for _, bounds in boxes]
        for n in sorted(cuts):
            left = sum(low is None or low <= n for low, _ in known)
            right = sum(high is None or high > n for _, high in known)
            if max(left, right) == len(boxes) or left + right > len(boxes) + len(boxes) // _SHARED_BOXES:
                continue
            score = max(left, right), left + right, len(d.terms)
            if best is None or score < best[0]:
                best = score, d, n
    return None if best is None else best[1:]


def _boxes_within(boxes: Sequence[Box], dim: Dim, least: int | None, most: int | None) -> list[Box]:
    """Returns the boxes that may hold where `least <= dim <= most`, with the bounds still to be tested there."""
    found: list[Box] = []
    for index, bounds in boxes:
        low, high = bounds.get(dim, (None, None))
        if (low is None or most is None or low <= most) and (high is None or least is None or high >= least):
            low = None if low is None or (least is not None and low <= least) else low
            high = None if high is None or (most is not None and high >= most) else high
            rest = {d: interval for d, interval in bounds.items() if d != dim}
            found.append((index, rest if low is None and high is None else {**rest, dim: (low, high)}))
    return found
