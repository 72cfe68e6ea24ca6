"""The prover's answers, and statistics of its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

# The method that found an answer, cheapest first.
Path: TypeAlias = Literal[
    "memo",
    "canonical",
    "interval",
    "congruence",
    "assumption",
    "rewriting",
    "cases",
    "lemma",
    "residues",
    "points",
    "enumeration",
    "z3",
]


class _Answer:
    """Base of the three answers. They have no truth value, so that `if prove(...)` cannot take Unknown for yes."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no truth value; ask isinstance(verdict, Proved), or match on "
            f"Proved(by), Refuted(counterexample), Unknown(reason)"
        )


@dataclass(frozen=True)
class Proved(_Answer):
    """The statement has a value and holds for all allowed sizes.

    - `by`: the method that proved it.
    """

    by: Path

    def __str__(self) -> str:
        return f"proved ({self.by})"


@dataclass(frozen=True)
class Refuted(_Answer):
    """The statement has a value and is false at an allowed point.

    - `counterexample`: the point, as the value of each variable.
    - `statement`: the statement with the values of both sides at that point.
    - `by`: the method that found the point.
    """

    counterexample: Mapping[str, int] = field(hash=False)
    statement: str = ""
    by: Path = field(default="points", compare=False)

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {size}" for name, size in self.counterexample.items())
        return f"refuted{' at ' if at else ''}{at}{': ' if self.statement else ''}{self.statement}"


@dataclass(frozen=True)
class Unknown(_Answer):
    """Neither proved nor refuted.

    - `reason`: why the statement is undecided.
    """

    reason: str

    def __str__(self) -> str:
        return f"unknown: {self.reason}"


Verdict: TypeAlias = Proved | Refuted | Unknown


@dataclass
class ProverStatistics:
    """The prover's work. A scope shares it with its children, so one object covers a whole run.

    - `queries`: number of queries answered by each method; "unknown" counts undecided queries.
    - `seconds`: seconds spent on these queries.
    - `asked_z3`: number of queries passed to z3.
    """

    queries: Counter[str] = field(default_factory=lambda: Counter[str]())
    seconds: Counter[str] = field(default_factory=lambda: Counter[str]())
    asked_z3: int = 0

    def count(self, path: str, seconds: float) -> None:
        self.queries[path] += 1
        self.seconds[path] += seconds  # pyright: ignore[reportArgumentType] -- typeshed counts in ints only

    @property
    def total(self) -> int:
        return sum(self.queries.values())

    def __str__(self) -> str:
        parts = [f"{path} {n} ({self.seconds[path] * 1e3:.1f} ms)" for path, n in self.queries.most_common()]
        return f"{self.total} questions: {', '.join(parts) or 'none'}"
