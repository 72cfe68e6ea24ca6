"""Guards: which sizes a variant of a program serves. A guard is a union of boxes; a box bounds sizes and expressions
of them: `n <= 16`, `17 <= n <= 128 and b*n <= 4096`, `s % 8 == 0`.

That some guards together cover all sizes, and none twice, is proved (`covered`) before anything relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.errors import SpecError
from relax_eg.shapes.dim import Atom, Dim, Monomial
from relax_eg.shapes.piecewise import dim_select
from relax_eg.shapes.relation import Relation, read_statement
from relax_eg.shapes.scope import Scope
from relax_eg.shapes.verdict import Verdict

EVERYWHERE = "all sizes"
PROOF_MS = 5000


@dataclass(frozen=True, slots=True)
class Bound:
    """`low <= dim <= high`; None where there is no bound on that side. At least one is there."""

    dim: Dim
    low: int | None
    high: int | None

    def holds(self, value: int) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.dim} == {self.low}"
        if self.low is None:
            return f"{self.dim} <= {self.high}"
        return f"{self.dim} >= {self.low}" if self.high is None else f"{self.low} <= {self.dim} <= {self.high}"


Box = tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Guard:
    """The sizes at which all bounds of one of `boxes` hold. No box holds nowhere, an empty one everywhere."""

    boxes: tuple[Box, ...]

    @staticmethod
    def read(text: str) -> Guard:
        """The guard that prints so. SpecError for a text that is none."""
        if text == EVERYWHERE:
            return Guard(((),))
        return Guard(tuple(_box(part) for part in text.split(" or ")))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        return any(all(b.holds(b.dim.evaluate(sizes)) for b in box) for box in self.boxes)

    def __str__(self) -> str:
        if () in self.boxes:
            return EVERYWHERE
        return " or ".join(" and ".join(map(str, box)) for box in self.boxes)


def _box(text: str) -> Box:
    bounds: dict[Dim, Bound] = {}
    for relation in read_statement(text):
        bound = _bound(relation)
        old = bounds.get(bound.dim)
        bounds[bound.dim] = bound if old is None else Bound(bound.dim, *_both(old, bound))
    return tuple(bounds.values())


def _both(a: Bound, b: Bound) -> tuple[int | None, int | None]:
    lows, highs = [x for x in (a.low, b.low) if x is not None], [x for x in (a.high, b.high) if x is not None]
    return max(lows, default=None), min(highs, default=None)


def _bound(relation: Relation) -> Bound:
    left, op, right = relation.left, relation.op, relation.right
    if left.is_const:
        left, op, right = right, {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}.get(op, op), left
    if left.is_const or not right.is_const or op == "!=":
        raise SpecError(f"`{relation}` is no bound of a guard; accepted: 17 <= n <= 128, n*m >= 4, n % 8 == 0")
    n = right.value
    low = {"==": n, ">=": n, ">": n + 1}.get(op)
    high = {"==": n, "<=": n, "<": n - 1}.get(op)
    return Bound(left, low, high)


class Dispatch:
    """Which of several guards holds: `at(sizes)` is the place of the first that does.

    The guards are made one Python function, once: a call computes products and sums that several bounds read only once,
    and compares plain integers.
    """

    def __init__(self, guards: Sequence[Guard], fallback: int = 0) -> None:
        """`fallback`: the one where none holds."""
        self.at: Callable[[Mapping[str, int]], int] = _Writer().function(guards, fallback)


class _Writer:
    """Writes guards as Python: integers, names of its own, and calls for the rare sizes that are neither sums of
    products nor quotients by a number."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[object, str] = {}  # of values that have been computed
        self._called: dict[str, Callable[[Mapping[str, int]], int]] = {}

    def function(self, guards: Sequence[Guard], fallback: int) -> Callable[[Mapping[str, int]], int]:
        for index, guard in enumerate(guards):
            for box in guard.boxes:
                tests = [self._test(b) for b in box]
                self._lines.append(f"if {' and '.join(tests) or 'True'}: return {index}")
        body = "\n".join(f"    {line}" for line in (*self._lines, f"return {fallback}"))
        made: dict[str, Callable[[Mapping[str, int]], int]] = dict(self._called)
        exec(f"def at(sizes):\n{body}\n", made)  # no text of anybody else is in it: names are numbered
        return made["at"]

    def _test(self, b: Bound) -> str:
        value = self._dim(b.dim)
        if b.low == b.high:
            return f"{value} == {b.low}"
        low, high = "" if b.low is None else f"{b.low} <= ", "" if b.high is None else f" <= {b.high}"
        return f"{low}{value}{high}"

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
        """The name of a value, computed where it is first needed."""
        if text.isidentifier():
            return text
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"v{len(self._names)}"
            self._lines.append(f"{name} = {text}")
        return name


def covered(guards: Sequence[Guard], scope: Scope, timeout_ms: int = PROOF_MS) -> Verdict:
    """Whether exactly one box of one guard holds at all sizes that the scope allows."""
    total = Dim.of(0)
    for g in guards:
        for box in g.boxes:
            holds = Dim.of(1)
            for b in box:
                if b.low is not None:
                    holds = holds * dim_select(b.dim, ">=", b.low, 1, 0)
                if b.high is not None:
                    holds = holds * dim_select(b.dim, "<=", b.high, 1, 0)
            total = total + holds
    return scope.prover.prove(Relation.of(total, "==", 1), timeout_ms)
