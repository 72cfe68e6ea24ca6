"""What found laws save on the corpus and the library cases, besides the rules that ship.

    python -m benchmarks.discovery_gains [--rules found] [--only softmax]

`--rules`: a file of rules or a folder of such, as `python -m benchmarks.discovery --save found` writes them; without it
the laws of a small grammar are found first. Every program is searched twice, with the default rules and with the found
ones too. Prints the programs whose predicted time falls, and the laws that did it.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus import CORPUS
from benchmarks.corpus.fired import corpus_rules
from relax_eg.discovery.laws import load
from relax_eg.driver.ranking import rank_by_savings, savings_of_rules
from relax_eg.rules import RuleSet

QUICK_PROGRAMS = 2


def rules_at(place: str) -> RuleSet:
    """Returns the rules of a file or folder, under names that tell the file."""
    if not place:
        return rx.discover("abs | multiply | maximum", "x: *b, y: *b", 2).rules
    path = Path(place)
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    found: list[Any] = []
    for file in files:
        text = file.read_text()
        for name in [line[4 : line.index("(")] for line in text.splitlines() if line.startswith("def ")]:
            text = text.replace(f"def {name}(", f"def {file.stem}__{name}(")
        found += load(text, file.stem)
    return RuleSet("found", found)


def main(
    rules: Annotated[str, typer.Option("--rules", help="a file of rules, or a folder of such")] = "",
    only: Annotated[str, typer.Option("--only", help="programs whose name contains this")] = "",
    quick: Quick = False,
) -> None:
    found = rules_at(rules)
    chosen = {n: p for n, p in CORPUS.items() if only in n}
    asked = {n: partial(_optimized, p) for n, p in islice(chosen.items(), QUICK_PROGRAMS if quick else None)}
    savings = rank_by_savings(asked, found, corpus_rules())
    for s in savings:
        print(s)
    for name, share in savings_of_rules(savings).items():
        print(f"{100 * share:.0f}%  {found[name]}")
    print(f"{len(savings)} of {len(asked)} programs gain by {len(found)} laws")


def _optimized(p: Any, rules: RuleSet) -> Any:
    with rx.debug.options(least_gain=1):
        return p.optimized(rules=rules)


if __name__ == "__main__":
    typer.run(main)
