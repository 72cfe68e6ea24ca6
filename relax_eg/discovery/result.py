"""What a search for laws found: rules, their file, and the report."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from relax_eg.discovery.laws import file_text, load
from relax_eg.errors import DiscoveryError
from relax_eg.plain_data import write_file
from relax_eg.reports.pages import page_of_laws
from relax_eg.reports.serialization import write_text
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.signature import Numerics
from relax_eg.tir import TensorProgram

FORMAT = 1  # given: the version of the report's JSON


@dataclass(frozen=True)
class SizeFigures:
    """Figures of the terms of one size.

    - `operators`: the size.
    - `terms`: the number of terms that were evaluated.
    - `classes`: classes of equal values, of all sizes so far.
    - `candidates`: pairs of terms with equal values.
    - `laws`: those that were proved and do not follow from others.
    - `seconds`: time spent.
    """

    operators: int
    terms: int
    classes: int
    candidates: int
    laws: int
    seconds: float


@dataclass(frozen=True)
class FoundLaw:
    """A law that does not follow from smaller ones, or a candidate that was not proved.

    - `name`: the name of its rule.
    - `text`: the law as a formula.
    - `outcome`: "proved"; "tested" if it has an operator without equations, of which nothing can be proved; "refuted"
      or "unknown".
    - `numerics`: its class.
    - `theory`: of a proof, as of a verdict; "axiom" where the prover assumes the law.
    - `when`: its conditions.
    - `source`: the function of the rule.
    - `problem`: the counterexample, or the reason why it is not proved.
    - `seconds`: time of its checks and proofs.
    - `reversible`: whether both sides bind all variables.
    """

    name: str
    text: str
    outcome: Literal["proved", "tested", "refuted", "unknown"]
    numerics: Numerics
    theory: str
    when: tuple[str, ...]
    source: str
    problem: str
    seconds: float
    reversible: bool = False

    def __str__(self) -> str:
        told = {"proved": f"proved ({self.theory}), {self.numerics}", "tested": f"tested, not proved, {self.numerics}"}
        kind = told.get(self.outcome, self.outcome)
        return f"{self.text}      {kind}"


@dataclass(frozen=True)
class Discovery:
    """The result of `discover`.

    - `asked`: operators and variables.
    - `numerics`: the weakest class that was asked for.
    - `laws`: the laws that hold, from which the others follow; the smallest first. Those with an operator without
      equations are tested only.
    - `failed`: what was refuted, or is unknown.
    - `followed`: number of pairs of equal terms that follow from laws.
    - `sizes`: figures by size of terms.
    - `stopped`: why the search ended early; empty if it did not.
    - `seconds`: time spent.
    - `programs`: the tensor programs among the operators.
    """

    asked: str
    numerics: Numerics
    laws: tuple[FoundLaw, ...]
    failed: tuple[FoundLaw, ...] = ()
    followed: int = 0
    sizes: tuple[SizeFigures, ...] = ()
    stopped: str = ""
    seconds: float = 0.0
    programs: tuple[TensorProgram, ...] = field(default=(), repr=False)

    @property
    def tested(self) -> tuple[FoundLaw, ...]:
        """The laws that are tested only."""
        return tuple(x for x in self.laws if x.outcome == "tested")

    @property
    def refuted(self) -> tuple[FoundLaw, ...]:
        return tuple(x for x in self.failed if x.outcome == "refuted")

    @property
    def unknown(self) -> tuple[FoundLaw, ...]:
        return tuple(x for x in self.failed if x.outcome == "unknown")

    @property
    def source(self) -> str:
        """The text of a file of rules with the laws."""
        programs = {p.name: p for p in self.programs}
        title = f"Laws that a search found and proved, of {self.asked}."
        if self.tested:
            names = ", ".join(x.name for x in self.tested)
            title += f" Tested only, because an operator has no equations: {names}."
        return file_text([x.source for x in self.laws], programs, _folded(title), "found")

    @cached_property
    def rules(self) -> RuleSet:
        """The proved laws as rules. They are in no other set until `+` adds them to one."""
        return load(self.source, "found")

    @cached_property
    def equations(self) -> RuleSet:
        """The laws as rules in both directions wherever both sides bind all variables, to ask what follows."""
        programs = {p.name: p for p in self.programs}
        return load(file_text([_both_ways(x) for x in self.laws], programs, "Equations.", "found"), "equations")

    def save(self, path: str | Path) -> None:
        """Writes the file of rules. DiscoveryError if it cannot be written."""
        write_file(path, self.source, DiscoveryError, "the rules")

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as a page that opens offline, also written to `path` if given."""
        proved = tuple(x for x in self.laws if x.outcome == "proved")
        groups = [
            ("Proved", proved),
            ("Tested, not proved", self.tested),
            ("Unknown", self.unknown),
            ("Refuted", self.refuted),
        ]
        return page_of_laws(
            path,
            title="Laws that were found",
            asked=self.asked,
            counts=self._counts(),
            stopped=self.stopped,
            groups=[(heading, laws) for heading, laws in groups if laws],
            sizes=self.sizes,
        )

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to `path` if given."""
        data = {"format": FORMAT, **{k: v for k, v in asdict(self).items() if k != "programs"}}
        text = json.dumps(data | {"programs": [str(p) for p in self.programs]}, indent=1)
        write_text(text, path)
        return text

    def _counts(self) -> str:
        proved, tested = len(self.laws) - len(self.tested), f"{len(self.tested)} tested only, " if self.tested else ""
        counts = f"{proved} laws proved, {tested}from which {self.followed:,} more equalities follow"
        return f"{counts}; {len(self.refuted)} refuted, {len(self.unknown)} unknown; {self.seconds:.1f} s"

    def __str__(self) -> str:
        lines = [self.asked, "", *map(str, self.laws), *([""] if self.laws else []), self._counts()]
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join(lines)


def _both_ways(law: FoundLaw) -> str:
    if not law.reversible or "both=True" in law.source:
        return law.source
    return law.source.replace(f'numerics="{law.numerics}"', f'numerics="{law.numerics}", both=True')


def _folded(text: str, width: int = 110) -> str:
    """`text` in lines of a file, with no quotes that end a docstring."""
    return "\n".join(textwrap.wrap(text.replace('"""', "'''"), width))
