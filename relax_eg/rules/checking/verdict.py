"""Verdicts on rules, and reports of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from itertools import chain
from typing import Literal

from relax_eg.rules.checking.witness import Counterexample
from relax_eg.rules.rule import Rule
from relax_eg.rules.schemas import Schema

# "missing": the rule lowers to a routine that is not available, so it was not tested and does not run.
Status = Literal["proved", "axiom", "tested", "refuted", "missing"]


@dataclass(frozen=True)
class Verdict:
    """The result of checking a rule.

    - `rule`: the rule.
    - `status`: `tested` at `samples` points, `proved` for all sizes too, an `axiom` that has no proof, `refuted` by a
      counterexample, or `missing`.
    - `samples`: number of points at which the sides were compared.
    - `counterexample`: the counterexample, if it was found in this process.
    - `seconds`: time spent; 0 for a verdict that was already known.
    - `problem`: text of the counterexample, or the reason for "refuted" or "missing".
    - `theory`: of a proof, "exact" (the same bits), "modular" (integers modulo 2^w) or "real"; of a tested library
      rule, the numerics class that was measured; of a tested schema that can prove steps, whether proposals are proved.
    - `ranks`: ranks of `*b` blocks for which the proof holds ("all", "0 to 3", "").
    - `untested`: sizes that occur in the rule and are too large to test.
    - `every`: of an axiom, the dtypes of which every value was tested.
    - `unproved`: of a tested rule, why it is not proved, if a proof was tried.
    """

    rule: Rule | Schema
    status: Status
    samples: int
    counterexample: Counterexample | None = None
    seconds: float = 0.0
    problem: str = ""
    theory: str = ""
    ranks: str = ""
    untested: str = ""
    every: str = ""
    unproved: str = ""

    @property
    def holds_everywhere(self) -> bool:
        """Whether the rule is known to hold for all sizes and values, by a proof or as an axiom."""
        return self.status in ("proved", "axiom")

    @property
    def summary(self) -> str:
        """The verdict as a short text: "proved (real)", "tested, not proved"."""
        if self.status == "tested":
            less = f", not tested at {self.untested}" if self.untested else ""
            return f"tested, {self.theory or 'not proved'}{less}"
        return f"{self.status} ({self.theory})" if self.theory else self.status

    def __str__(self) -> str:
        if self.status == "refuted":
            return f"{self.rule.where} rule `{self.rule.name}` is refuted\n{self.problem}"
        if self.holds_everywhere:
            ranks = f", block ranks {self.ranks}" if self.ranks else ""
            tried = f", every value of {self.every} tried" if self.every else ""
            return f"{self.rule}      {self.status} ({self.theory}{ranks}){tried}, {1000 * self.seconds:.0f} ms"
        if self.status == "missing":
            return f"{self.rule}      missing: {self.problem}"
        less = f", not tested at {self.untested}" if self.untested else ""
        return f"{self.rule}      tested at {self.samples} points{less}, {1000 * self.seconds:.0f} ms"


@dataclass(frozen=True)
class Report:
    """A list of verdicts, in the order of the rules; `str()` is the table."""

    verdicts: tuple[Verdict, ...] = field(default=())

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def refuted(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.status == "refuted")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table("rule", "status", "numerics", "samples", "ms", "theory", box=None, pad_edge=False)
        for v in self.verdicts:
            ms = f"{1000 * v.seconds:.0f}"
            table.add_row(v.rule.name, v.status, v.rule.numerics, str(v.samples), ms, v.theory)
        out = StringIO()
        width = 60 + max((len(v.rule.name) for v in self.verdicts), default=0)
        Console(file=out, width=width, color_system=None).print(table)
        lines = [line.rstrip() for line in out.getvalue().rstrip().split("\n")]
        total = sum(v.seconds for v in self.verdicts)
        proved, axioms = (sum(v.status == s for v in self.verdicts) for s in ("proved", "axiom"))
        counts = f"{proved} proved, {axioms} axioms, {len(self.refuted)} refuted"
        lines.append(f"{len(self.verdicts)} rules, {counts}, {total:.1f} s")
        return "\n".join(chain(lines, (f"\n{v}" for v in self.refuted)))
