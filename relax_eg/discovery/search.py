"""`discover`: the laws of operators, found, proved for all sizes, and reduced to a small set of rules.

1. Terms over variables, constants and operators are enumerated by size; of terms with equal values at sample points one
   is kept (`table`). What a size can add is known before it is made.
2. Two terms with equal values are a candidate. What follows from known rules, or from smaller candidates, is dropped:
   by ordered rewriting where it is an instance, otherwise by equality saturation (`sifting`).
3. The others are written as rules, of the strongest numerics class and the most general typing that holds, and go
   through the checker and the prover of rules (`proving`). A refuted one becomes two classes.
4. At the end laws that follow from the others are dropped, the largest first.

The way of Ruler (Nandi et al., OOPSLA 2021) and QuickSpec (Smallbone et al., JFP 2017), with proofs for all sizes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_eg.argument_checks import CALLABLE, NONE, Kind, accepts, integer, of_types, one_of, within
from relax_eg.discovery.conditions import AskedFacts, Facts, read_facts
from relax_eg.discovery.generalising import generalised
from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.laws import Writer, doc_of, is_reversible
from relax_eg.discovery.proving import CLASSES, MOST_JOBS, LawProver, Progress
from relax_eg.discovery.result import Discovery, FoundLaw, SizeFigures
from relax_eg.discovery.sifting import Law, Sieve
from relax_eg.discovery.table import TermTable
from relax_eg.discovery.values import SamplePoints
from relax_eg.errors import DiscoveryError
from relax_eg.plain_data import read_json, write_file
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.signature import Numerics
from relax_eg.tir import TensorProgram

MOST_TERMS = 200_000  # limit: terms of one size; they take about 0.1 ms each
LARGEST_SIZE = 12  # limit: operators of a side; no grammar has so few terms that a larger one ends
LONGEST = 1e9  # limit: seconds, thirty years
_RUN = "run.json"  # of a run's folder: what was asked


def _are_operators(x: Any) -> bool:
    return isinstance(x, (str, TensorProgram)) or (
        isinstance(x, (list, tuple)) and all(isinstance(o, (str, TensorProgram)) for o in x)  # type: ignore[reportUnknownVariableType]
    )


def _is_time(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x <= LONGEST


def _are_numbers(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in x)  # type: ignore[reportUnknownVariableType]


def _are_texts(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, (list, tuple)) and all(isinstance(f, str) for f in x))  # type: ignore[reportUnknownVariableType]


def _are_facts(x: Any) -> bool:
    return _are_texts(x) or (isinstance(x, Mapping) and all(map(_are_texts, x.values())))  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]


@accepts(
    DiscoveryError,
    operators=Kind(
        _are_operators, "names of operators, 'add | sum(axes=(0,))', or a list of names and tensor programs,"
    ),
    variables=of_types("a signature, 'x: n, y: n',", str),
    size=within("a number of operators", 1, LARGEST_SIZE),
    rules=of_types("a RuleSet", RuleSet) | NONE,
    facts=Kind(_are_facts, "words such as 'nonnegative', or {'x': 'nonnegative'},"),
    constants=Kind(_are_numbers, "a list of numbers"),
    numerics=one_of(*CLASSES),
    seed=integer("an integer that is at least 0", 0),
    jobs=within("a number of processes", 1, MOST_JOBS),
    folder=Kind(lambda x: isinstance(x, (str, Path)) and bool(str(x)), "a path") | NONE,
    terms=integer("a number of terms, at least 1,"),
    seconds=Kind(_is_time, "a number of seconds, or None,") | NONE,
    tell=CALLABLE,
)
def discover(
    operators: str | Sequence[str | TensorProgram],
    variables: str,
    size: int = 3,
    rules: RuleSet | None = None,
    facts: Facts = (),
    constants: Sequence[float] = (),
    numerics: Numerics = "reassociate",
    *,
    seed: int = 0,
    jobs: int = 1,
    folder: str | Path | None = None,
    terms: int = MOST_TERMS,
    seconds: float | None = None,
    tell: Progress | None = None,
) -> Discovery:
    """Returns the laws of operators: equal terms of up to `size` operators, proved for all sizes.

    - `operators`: names of operators, joined by `|` or in a list, and tensor programs. `"sum"` stands for sums over any
      axes, `"sum(axes=(0,))"` for one of them.
    - `variables`: the variables of terms, typed as in rules: `"x: *b, y: *b"`, `"a: m k, b: k n"`. A block `*b` has one
      axis while terms are enumerated; laws are proved for every number of axes.
    - `size`: the largest number of operators of a side.
    - `rules`: what is known; laws that follow from it are left out.
    - `facts`: facts of variables (`docs/rules.md`) under which laws are looked for too, one at a time: "positive",
      "symmetric". Facts that variables may have at once are given for each: {"d": "diagonal positive", "x": "nonzero"},
      or "d: diagonal positive, x: nonzero". That an axis is not empty is always tried.
    - `constants`: numbers that terms may have.
    - `numerics`: the weakest class of a law; each law gets the strongest that is proved.
    - `seed`: of the sample points. The same arguments give the same laws, unless `seconds` end the search.
    - `jobs`: processes that prove; with more than one, a script needs `if __name__ == "__main__":`.
    - `folder`: where verdicts are kept. A run with the same folder goes on where another was stopped.
    - `terms`: the most terms of one size. If there were more, the search ends with the size before.
    - `seconds`: after which no further size, and no further batch of proofs, is begun.
    - `tell`: called with a text, what is done, and what is to be done.

    A search that is interrupted by Ctrl-C returns what it has proved. DiscoveryError for operators that are not
    accepted, if no operator applies to the variables, if even the terms of one operator are too many, if facts of a
    variable contradict each other, or if `rules` make terms equal that differ.
    """
    grammar = Grammar(operators, variables, constants)
    run = _Run(
        grammar, facts=read_facts(facts, grammar), numerics=numerics, seed=seed, most=terms,
        ends=None if seconds is None else time.monotonic() + seconds,
        progress=tell or (lambda text, done, of: None),
    )  # fmt: skip
    place = None if folder is None else _opened(Path(folder), run.asked(size, rules))
    with LawProver(run.grammar, run.writer, numerics, jobs, place) as prover:
        sieve = Sieve(run.grammar, run.writer, rules or RuleSet("nothing"), prover)
        run.search(sieve, size)
    return run.result(sieve)


@dataclass
class _Run:
    grammar: Grammar
    facts: AskedFacts
    numerics: Numerics
    seed: int
    most: int
    ends: float | None
    progress: Progress

    def __post_init__(self) -> None:
        self.writer = Writer(self.grammar)
        self.sizes: list[SizeFigures] = []
        self.stopped = ""
        self._started = time.monotonic()

    def asked(self, size: int, rules: RuleSet | None) -> dict[str, Any]:
        """What a run was asked, as plain data."""
        known = sorted(r.name for r in rules) if rules is not None else []
        return {
            "grammar": str(self.grammar), "facts": self.facts.plain(self.grammar),
            "numerics": self.numerics, "seed": self.seed,
            "programs": [str(p) for p in self.grammar.programs.values()], "known": known,
        }  # fmt: skip

    def search(self, sieve: Sieve, size: int) -> None:
        table = TermTable(self.grammar, SamplePoints(self.grammar, False, self.seed, self.facts))
        sieve.separate = lambda c: table.separate(c.left) if c.condition is None else None
        sieve.generalise = lambda c: generalised(c, table)
        try:
            for n in range(1, size + 1):
                if self._is_late():
                    return
                if not self._grow(table, sieve, n):
                    return
            self._finish(sieve, size)
        except KeyboardInterrupt:
            self.stopped = "interrupted"

    def _is_late(self) -> bool:
        late = self.ends is not None and time.monotonic() > self.ends
        self.stopped = "out of time" if late else self.stopped
        return late

    def _grow(self, table: TermTable, sieve: Sieve, n: int) -> bool:
        """Makes and sorts out the terms of `n` operators. False if they are too many."""
        count = table.next_count()
        if n == 1 and not count:
            raise DiscoveryError(f"no operator applies to the variables: {self.grammar}")
        if count > self.most:
            many = f"{count:,} terms of {n} operators; terms={self.most:,} are accepted"
            if n == 1:
                raise DiscoveryError(f"there would be {many}")
            self.stopped = f"there would be {many}"
            self._finish(sieve, n)
            return False
        self.progress(f"{n} operators: {count:,} terms", 0, count)
        started, before = time.monotonic(), len(sieve.laws)
        candidates = [*table.grow(), *table.conditional()]
        if n == 1:
            sieve.refuse_contradictions(table)
        sieve.sift(candidates, self._told(n))
        spent = time.monotonic() - started
        self.sizes.append(SizeFigures(n, count, table.classes, len(candidates), len(sieve.laws) - before, spent))
        self.grammar.forget()
        return True

    def _finish(self, sieve: Sieve, n: int) -> None:
        sieve.minimise(self._told(n))
        sieve.widen(self._told(n))

    def _told(self, n: int) -> Progress:
        return lambda text, done, of: self.progress(f"{n} operators: {text}", done, of)

    def result(self, sieve: Sieve) -> Discovery:
        return Discovery(
            asked=str(self.grammar),
            numerics=self.numerics,
            laws=tuple(self._found(x) for x in sorted(sieve.laws, key=lambda x: x.number)),
            failed=tuple(self._found(x) for x in sieve.failed),
            followed=len(sieve.dropped),
            sizes=tuple(self.sizes),
            stopped=self.stopped,
            seconds=time.monotonic() - self._started,
            programs=tuple(self.grammar.programs.values()),
        )

    def _found(self, law: Law) -> FoundLaw:
        assert law.proof is not None
        p = law.proof
        when = law.candidate.condition.when if law.candidate.condition else ()
        return FoundLaw(
            name=law.name,
            text=doc_of(p.source) or self.writer.text(law.candidate),
            outcome=p.outcome,
            numerics=p.numerics,
            theory=p.theory,
            when=when,
            source=p.source,
            problem=p.problem,
            seconds=p.seconds,
            reversible=is_reversible(law.candidate, self.grammar),
        )


def _opened(folder: Path, asked: dict[str, Any]) -> Path:
    """The folder of a run, made if it is not there. DiscoveryError if it is of a run with other questions."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _RUN
        if file.is_file():
            if (there := read_json(file.read_text(encoding="utf-8"))) != asked:
                differ = [k for k in asked if not isinstance(there, dict) or there.get(k) != asked[k]]  # type: ignore[reportUnknownMemberType]
                raise DiscoveryError(
                    f"folder {folder}: it is of a search with other {', '.join(differ)}; accepted: an empty folder"
                )
        else:
            write_file(file, json.dumps(asked, indent=1), DiscoveryError, "the run")
    except (OSError, ValueError) as e:
        if isinstance(e, DiscoveryError):
            raise
        raise DiscoveryError(f"folder {folder}: {e}") from None
    return folder
