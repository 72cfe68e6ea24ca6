"""Laws that are found in the programs of JAX's own functions and their gradients, and what they save.

    python -m benchmarks.mined --mine docs/mined_laws.json [--only softplus] [--size 2] [--minutes 20]
    python -m benchmarks.mined --gains docs/mined_laws.json [--only pdf] [--pool functions,corpus,libraries]

`--mine` looks for cheaper terms in fragments of what the rules that ship, without the books `traced` and `orders`, make
of each program, and adds the laws that are proved to the file. Nobody wrote these programs with a law in view
(`benchmarks/functions`). Programs that the file has are left out, so a run that was stopped goes on.

`--gains` uses the laws of the file as rules besides those of these books that ship. For each law it asks for a program
that takes at least 2% longer by prediction without it, where all other laws are there; of programs in which it was not
mined such are asked first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus.fired import corpus_rules
from benchmarks.functions import GROUPS
from benchmarks.discovery_gains import of_corpus, of_functions, of_libraries
from relax_eg.discovery.laws import file_text, load
from relax_eg.driver.mining import Miner
from relax_eg.driver.ranking import LEAST_SAVING, Optimize
from relax_eg.errors import RelaxEgError
from relax_eg.rules import RuleSet

TERMS = 8000  # of one size for a fragment
MINED_FIRST = ("jax.nn", "jax.scipy.stats", "jax.scipy", "jax.numpy")  # groups, the others after them
LEFT_OUT = ("traced", "orders")  # books whose laws may be found again


@dataclass
class MinedLaw:
    """A law that was found in a program and proved.

    - `text`, `source`, `numerics`, `theory`: as of an offer.
    - `program`: where it was found.
    - `saves`: of programs that take at least 2% longer without it, the share of the predicted time that it saves.
    """

    text: str
    source: str
    numerics: str
    theory: str
    program: str
    saves: dict[str, float] = field(default_factory=dict[str, float])


@dataclass
class Found:
    """What a file has: the laws, and the names of the programs that were looked at."""

    laws: list[MinedLaw]
    programs: list[str]

    @staticmethod
    def read(file: Path) -> Found:
        if not file.is_file():
            return Found([], [])
        data = json.loads(file.read_text())
        return Found([MinedLaw(**x) for x in data["laws"]], data["programs"])

    def write(self, file: Path) -> None:
        file.write_text(json.dumps({"laws": [asdict(x) for x in self.laws], "programs": self.programs}, indent=1) + "\n")

    def rules(self) -> RuleSet:
        return load(file_text([x.source for x in self.laws], {}, "Mined laws.", "mined"), "mined")


def names() -> list[str]:
    """The programs that are mined: gradients first, and no draws of random numbers."""
    functions = [n for group in (*MINED_FIRST, *(g for g in GROUPS if g not in (*MINED_FIRST, "jax.random"))) for n in GROUPS[group]]
    return [*(f"{n}, gradient" for n in functions), *functions]


def lazily(name: str) -> Optimize:
    """The program of a name, traced when it is asked for."""
    return lambda rules: of_functions([name])[name](rules)


def known_rules() -> RuleSet:
    """The rules that ship, without those of the books whose laws may be found again."""
    rules = corpus_rules()
    left_out = {r.name for book in LEFT_OUT for r in getattr(rx.rules, book)}
    return RuleSet("known", [r for r in rules if r.name not in left_out], rules.schemas)


def mine(programs: Mapping[str, Optimize], file: Path, size: int, seconds: float) -> None:
    """Adds the laws of fragments of programs to a file, until this time has passed."""
    found, known, end = Found.read(file), known_rules(), time.monotonic() + seconds
    miner = Miner("cpu", size, "reassociate", 1, TERMS, known, {r.name for r in found.rules()})
    stated = {x.text for x in found.laws}
    for name, optimize in programs.items():
        if name in found.programs:
            continue
        if time.monotonic() > end:
            break
        began = time.monotonic()
        try:
            best = optimize(known)
            miner.least = LEAST_SAVING * best.report.after.seconds
            offers = miner.mined(best.module, dict(best.report.at)).offers
        except (RelaxEgError, TypeError, ValueError) as e:  # of integers there is no gradient
            print(f"{name}: {str(e).splitlines()[0]}", flush=True)
            offers = ()
        for o in offers:
            if o.is_new and o.text not in stated:
                stated.add(o.text)
                print(f"  {name}: {o}", flush=True)
                found.laws.append(MinedLaw(o.text, o.source, o.numerics, o.theory, name))
        found.programs.append(name)
        found.write(file)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{len(found.laws)} laws from {len(found.programs)} programs")


def main(
    mined: Annotated[Path | None, typer.Option("--mine", help="add the laws of programs to this file")] = None,
    only: Annotated[str, typer.Option("--only", help="programs whose name contains this, or one of 'a|b'")] = "",
    size: Annotated[int, typer.Option("--size", help="operators of a cheaper term")] = 2,
    minutes: Annotated[float, typer.Option("--minutes", help="stop after the program of this time")] = 60,
    quick: Quick = False,
) -> None:
    programs = {n: lazily(n) for n in names() if any(part in n for part in only.split("|"))}
    if mined is not None:
        mine(programs, mined, size, 60 * minutes)


if __name__ == "__main__":
    typer.run(main)
