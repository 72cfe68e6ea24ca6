"""Which rules of a book some program needs: without them its optimized price rises.

    python -m benchmarks.needs --book elementwise --book values [--target h100] [--execution kernels]
        [--numerics exact] [--json needs.json] [--quick]

All rules of the books are left out together, and every program of the corpus, of the patterns, of the sums of products
and of the known identities is optimized with the rest of the default rules. The rules by which the dearer programs were
optimized before are put back, and these programs are optimized again, until none is dearer. What was not put back
follows from other rules as far as these programs tell. Prices are predicted on a data sheet; nothing is run. Known
identities have a class of their own, so that `--numerics` leaves them out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

import relax_eg as rx
from benchmarks import Quick
from benchmarks.cases import CASES as PATTERNS
from benchmarks.corpus import CORPUS
from benchmarks.known_identities import IDENTITIES
from benchmarks.minimality import BOOKS
from benchmarks.sum_cases import CASES as SUMS

DEARER = 1.01  # of the price with all rules: rounding and ties of plans stay below it
NEGLIGIBLE = 1e-7  # seconds, a tenth of what the dispatch of a call takes
PATTERN_SIZE = 512  # n of the patterns
QUICK_PROGRAMS = 3  # of each kind

Optimize = Callable[[rx.RuleSet], Any]  # the report of a program that is optimized with these rules


@dataclass(frozen=True)
class Found:
    """The outcome for a program.

    - `seconds`: its predicted seconds as optimized.
    - `rules`: the rules that made its chosen nodes.
    - `matched`: the rules that matched in its search.
    """

    seconds: float
    rules: frozenset[str]
    matched: frozenset[str]


def programs(quick: bool, **options: Any) -> Iterator[tuple[str, Optimize]]:
    """Yields the programs by name, to be optimized with `options`."""
    most = QUICK_PROGRAMS if quick else None

    def report(fn: Callable[..., Any], specs: tuple[Any, ...], rules: rx.RuleSet, **own: Any) -> Any:
        with rx.debug.options(cache=False):
            return rx.optimize(fn, *specs, rules=rules, **own, **options).report

    for name, p in islice(CORPUS.items(), most):
        yield name, lambda rules, p=p: p.optimized(rules=rules, **options).report
    for case in islice((*PATTERNS, *SUMS), most):
        weights = ("params",) if case.weights else ()
        yield (
            case.name,
            lambda rules, c=case, w=weights: report(c.written, c.specs, rules, at=c.at(PATTERN_SIZE), weights=w),
        )
    for i in islice(() if "numerics" in options else IDENTITIES, most):
        for side, fn in (("dearer", i.dearer), ("cheaper", i.cheaper)):
            yield f"{i.name} ({side})", lambda rules, fn=fn, i=i: report(fn, i.specs, rules, **i.options)


def optimized(optimize: Optimize, rules: rx.RuleSet) -> Found:
    r = optimize(rules)
    return Found(r.after.seconds, frozenset(r.rules), frozenset(n for n, count in r.matches.items() if count))


def without(names: Collection[str]) -> rx.RuleSet:
    """Returns the default rules without these, and without their reverses."""
    default = rx.rules.default
    kept = [r for r in default if r.name.removesuffix("_reversed") not in names]
    return rx.RuleSet("fewer", kept, default.schemas)


def needs(candidates: set[str], every: Mapping[str, Optimize], console: Console) -> dict[str, str]:
    """Returns the candidates that programs need, each with the first program that does."""
    before = {
        name: optimized(p, rx.rules.default)
        for name, p in track(every.items(), "all rules", console=console, transient=True)
    }
    needed: dict[str, str] = {}
    left = list(every)
    while left:
        rules, dearer = without(candidates - needed.keys()), []
        for name in track(left, f"without {len(candidates) - len(needed)}", console=console, transient=True):
            now, then = optimized(every[name], rules).seconds, before[name].seconds
            if now <= max(DEARER * then, then + NEGLIGIBLE):
                continue
            used = {r.removesuffix("_reversed") for r in before[name].rules} & candidates - needed.keys()
            used = used or {r.removesuffix("_reversed") for r in before[name].matched} & candidates - needed.keys()
            ratio = now / max(then, NEGLIGIBLE)
            console.print(f"{name}: {ratio:.3g} times the price without {', '.join(sorted(used)) or '?'}")
            needed |= dict.fromkeys(used, name)
            dearer += [name] * bool(used)
        left = dearer
    return needed


def main(
    book: Annotated[list[str], typer.Option(help=f"A book whose rules are left out: {', '.join(BOOKS)}.")],
    target: Annotated[str, typer.Option(help="The data sheet by which programs are priced.")] = "cpu",
    execution: Annotated[str, typer.Option(help="How programs are executed: whole, kernels or auto.")] = "whole",
    numerics: Annotated[str, typer.Option(help="The class of rules allowed; that of each program by default.")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the rules and who needs them.")] = None,
    quick: Quick = False,
) -> None:
    """Prints the programs that get dearer without the rules of a book, and the rules that none needs."""
    for name in book:
        if name not in BOOKS:
            raise typer.BadParameter(f"--book {name}: {', '.join(BOOKS)} are accepted")
    console = Console(soft_wrap=True, highlight=False)
    candidates = {r.name.removesuffix("_reversed") for name in book for r in BOOKS[name]}
    options = {"target": target, "execution": execution} | ({"numerics": numerics} if numerics else {})
    found = needs(candidates, dict(programs(quick, **options)), console)
    console.print(f"{len(found)} of {len(candidates)} rules are needed; no program needs:")
    console.print(", ".join(sorted(candidates - found.keys())) or "none")
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
