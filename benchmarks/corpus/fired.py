"""Which rules fire on which programs of the corpus, and a few programs on which all do.

    python -m benchmarks.corpus.fired [--only kalman]

Runs the search of every program and prints what fired nowhere, what came out costlier than it went in, what did not
stop by itself, calls of libraries that are not looked into, searches of more than three seconds, and programs that are
nothing but a rule's left side. Without `--only` and `--quick`, `witnesses.json` and docs/corpus.md are written anew.
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
SLOW = 3.0  # seconds of a search that are worth a line


@dataclass(frozen=True)
class Witness:
    """The program a rule is seen to fire on, and on how many of the corpus it does."""

    program: str
    programs: int


def fired(report: Any) -> set[str]:
    """The rules that fired. Of those about functions it is told where they made what was chosen."""
    return {r for r, n in report.matches.items() if n} | set(report.rules)


def looked_at() -> rx.RuleSet:
    """The default rules but fusion steps and library routines, which are about `execution="kernels"` (programs are
    looked at whole here), and what saves memory, which is asked only where there is a limit."""
    return rx.rules.default - "library" - "fusion" - "memory"


def shipped() -> list[str]:
    """The laws that are looked at, by the names of the rules that stand for them, and the rules about functions and
    sums."""
    rules = looked_at()
    return [*(r.name for r in laws(rules)), *(s.name for s in rules.schemas)]


def variants() -> dict[str, str]:
    """For each rule that is no reversed twin, the one that stands for its law."""
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
    """A witness for each law, from few programs: always the one next that shows the most new ones."""
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
    """Those on file."""
    return {rule: Witness(*row) for rule, row in json.loads(FILE.read_text(encoding="utf-8")).items()}


def main(
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "", quick: Quick = False
) -> None:
    by_program: dict[str, set[str]] = {}
    rules = looked_at()
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
