"""Guards: the sizes that a variant of a program serves.

A guard is a union of boxes. A box bounds sizes and expressions of sizes: `n <= 16`, `17 <= n <= 128 and b*n <= 4096`,
`s % 8 == 0`. Before a set of guards is used, `covered` proves that it covers all sizes, and none twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.errors import SpecError
from relax_eg.limits import STATEMENT_CHARACTERS
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.piecewise import dim_select
from relax_eg.shapes.relation import MIRRORED, Relation, read_statement
from relax_eg.shapes.scope import Scope
from relax_eg.shapes.verdict import Verdict

EVERYWHERE = "all sizes"
PROOF_MS = 5000  # limit: milliseconds of z3 for one proof of coverage


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound `low <= dim <= high`. None means no bound on that side; at least one side has one."""

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
    """The sizes at which all bounds of one of `boxes` hold. A guard without boxes holds nowhere; an empty box holds
    everywhere."""

    boxes: tuple[Box, ...]

    @staticmethod
    def read(text: str) -> Guard:
        """Returns the guard with this printed form. SpecError if the text is not one."""
        if text == EVERYWHERE:
            return Guard(((),))
        if not isinstance(text, str) or len(text) > STATEMENT_CHARACTERS:  # pyright: ignore[reportUnnecessaryIsInstance] -- files say it
            what = f"of {len(text)} characters" if isinstance(text, str) else repr(text)[:80]  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"a guard {what}; accepted: text of at most {STATEMENT_CHARACTERS} characters")
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
        bounds[bound.dim] = bound if old is None else Bound(bound.dim, *_intersection(old, bound))
    return tuple(bounds.values())


def _intersection(a: Bound, b: Bound) -> tuple[int | None, int | None]:
    lows, highs = [x for x in (a.low, b.low) if x is not None], [x for x in (a.high, b.high) if x is not None]
    return max(lows, default=None), min(highs, default=None)


def _bound(relation: Relation) -> Bound:
    left, op, right = relation.left, relation.op, relation.right
    if left.is_const:
        left, op, right = right, MIRRORED.get(op, op), left
    if left.is_const or not right.is_const or op == "!=":
        raise SpecError(f"`{relation}` is no bound of a guard; accepted: 17 <= n <= 128, n*m >= 4, n % 8 == 0")
    n = right.value
    low = {"==": n, ">=": n, ">": n + 1}.get(op)
    high = {"==": n, "<=": n, "<": n - 1}.get(op)
    return Bound(left, low, high)


def prove_partition(guards: Sequence[Guard], scope: Scope, timeout_ms: int = PROOF_MS) -> Verdict:
    """Returns the verdict on: at all allowed sizes, exactly one box of all guards holds."""
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
