"""Which rules fire on which programs of the corpus, and a few programs on which all do.

    python -m benchmarks.corpus.fired [--only kalman]

Searches every program and prints: rules that fired nowhere, programs that became costlier, searches that did not stop
by themselves, opaque library calls, searches of more than three seconds, and programs that are only the left side of a
rule. Without `--only` and `--quick` it rewrites `witnesses.json` and docs/corpus.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus import CORPUS
from benchmarks.corpus.disguise import disguised
from docs.rules_table import laws

FILE = Path(__file__).parent / "witnesses.json"
STOPPED = frozenset(("saturated", "phase plan completed", "nothing to optimize"))
QUICK_PROGRAMS = 3
SLOW = 3.0  # seconds; slower searches are listed


@dataclass(frozen=True)
class Witness:
    """A witness of a rule.

    - `program`: a program on which the rule fires.
    - `programs`: the number of programs of the corpus on which it fires.
    """

    program: str
    programs: int


def fired(report: Any) -> set[str]:
    """Returns the rules that fired. A schema counts if it made a part of the chosen program."""
    return {r for r, n in report.matches.items() if n} | set(report.rules)


def corpus_rules() -> rx.RuleSet:
    """Returns the default rules without those for `execution="kernels"` (fusion, library routines), because the corpus
    runs as whole programs, and without those that save memory, which need a memory limit."""
    return rx.rules.default - "library" - "fusion" - "memory"


def shipped() -> list[str]:
    """Returns the names of the laws, each by the rule that represents it, and of the schemas, in `corpus_rules`."""
    rules = corpus_rules()
    return [*(r.name for r in laws(rules)), *(s.name for s in rules.schemas)]


def variants() -> dict[str, str]:
    """Returns, for each rule that is not a reverse, the rule that represents its law."""
    found = {s.name: s.name for s in rx.rules.default.schemas}
    for law in laws(rx.rules.default):
        for r in rx.rules.default:
            same = r.function.__code__ is law.function.__code__ and "variants" in law.tags
            if r is law or (same and not r.reverse):
                found[r.name] = law.name
    return found


def is_stopped(report: Any) -> bool:
    """Whether every search of a program ended by saturation or with the phase plan, within twice its node budget."""
    ended = {part.strip() for part in report.stop.split(",")}
    return ended <= STOPPED and report.peak <= 2 * rx.Budget().nodes


def cover(by_program: Mapping[str, Iterable[str]]) -> dict[str, Witness]:
    """Returns a witness for each law, by greedy cover: the next program is the one on which most new laws fire."""
    law_of = variants()
    shows = {p: {law_of[r] for r in rules if r in law_of} for p, rules in by_program.items()}
    count: dict[str, int] = {}
    for rules in shows.values():
        for r in rules:
            count[r] = count.get(r, 0) + 1
    found: dict[str, Witness] = {}
    while True:
        best = max(shows, key=lambda p: len(shows[p] - found.keys()))
        new = shows[best] - found.keys()
        if not new:
            return dict(sorted(found.items()))
        found |= {r: Witness(best, count[r]) for r in new}


def witnesses() -> dict[str, Witness]:
    """Returns the witnesses on file."""
    return {rule: Witness(*row) for rule, row in json.loads(FILE.read_text(encoding="utf-8")).items()}


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "", quick: Quick = False
) -> None:
    by_program: dict[str, set[str]] = {}
    rules = corpus_rules()
    chosen = {name: p for name, p in CORPUS.items() if only in name}
    for name, p in islice(chosen.items(), QUICK_PROGRAMS if quick else None):
        started = time.perf_counter()
        report = p.optimized().report
        seconds = time.perf_counter() - started
        by_program[name] = fired(report)
        remarks = [f"calls {o.name}" for o in report.opaque]
        if seconds > SLOW:
            remarks.append(f"{seconds:.1f} s")
        if not is_stopped(report):
            remarks.append(f"stopped: {report.stop}, {report.peak} nodes")
        if report.after.seconds > report.before.seconds:
            remarks.append("costlier than as written")
        if (rule := disguised(p, rules)) is not None:
            remarks.append(f"is the left side of {rule.name}")
        if remarks:
            print(f"{name}: {'; '.join(remarks)}")
    found = cover(by_program)
    missing = [law for law in shipped() if law not in found]
    programs = len({w.program for w in found.values()})
    print(f"{len(found)} laws fire on {len(by_program)} programs; {programs} programs show them all")
    if only or quick:
        return
    print(f"nowhere: {', '.join(missing) or 'none'}")
    rows = ",\n".join(f"  {json.dumps(r)}: {json.dumps([w.program, w.programs])}" for r, w in found.items())
    FILE.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    from docs.corpus import DOCUMENT, page

    DOCUMENT.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
