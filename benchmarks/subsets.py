"""More rules never lose: programs optimized with every subset of the rule families.

    python -m benchmarks.subsets [--size 256] [--only decoder] [--families contraction,movement+layout]

For every program and every two subsets that differ by one family, the predicted time with the larger is at most that
with the smaller. It follows for all pairs of which one contains the other. XLA is not run. Ends with status 1 where a
family made a program costlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.cases import CASES
from benchmarks.models import resnet, resnet_specs
from benchmarks.scale import Case, decoder, decoder_specs

# Books are grouped, so that all subsets of the groups can be tried.
FAMILIES = (
    "contraction+blocks",
    "convolution+attention",
    "reduction",
    "elementwise",
    "movement",
    "values+systems",
    "sums+functions",
    "layout",
)
EQUAL = 1e-9  # relative: smaller differences are rounding
Family = frozenset[str]


@dataclass(frozen=True)
class Costlier:
    """A family that made a program costlier when it was added to a subset of the others.

    - `program`, `subset`, `family`: the program, the subset and the family.
    - `before`, `after`: predicted seconds without and with the family.
    """

    program: str
    subset: tuple[str, ...]
    family: str
    before: float
    after: float


def programs(n: int) -> dict[str, Case]:
    """Every case of the pattern benchmark at size `n`, a decoder of two layers, a short ResNet."""
    options = {"weights": ("params",)}
    found = {c.name: Case(c.written, c.specs, {"at": c.at(n), **(options if c.weights else {})}) for c in CASES}
    found["decoder, 2 layers"] = Case(decoder, (decoder_specs(2), "b s @ int32"), {"at": {"b": 2, "s": 64}})
    short = resnet_specs(((1, 64), (1, 128)))
    found["ResNet of 2 blocks"] = Case(resnet, (short, "n 64 64 3"), {"at": {"n": 2}, "weights": ("params",)})
    return found


def subsets(families: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for k in range(len(families) + 1):
        yield from combinations(families, k)


def rules_of(families: Sequence[str]) -> rx.RuleSet:
    found = rx.RuleSet("none")
    for f in families:
        for book in f.split("+"):
            found = found + getattr(rx.rules, book)
    return found


def costlier(name: str, predicted: dict[Family, float]) -> Iterator[Costlier]:
    """Yields the cases in which one more family raised the `predicted` seconds of a subset."""
    for subset, seconds in predicted.items():
        for f in sorted(subset):
            before = predicted[subset - {f}]
            if seconds > before * (1 + EQUAL):
                yield Costlier(name, tuple(sorted(subset - {f})), f, before, seconds)


QUICK_FAMILIES, QUICK_CASES = 2, 1


def main(
    size: Annotated[int, typer.Option(help="n of the pattern cases")] = 256,
    only: Annotated[str, typer.Option(help="programs whose names contain this")] = "",
    quick: Quick = False,
    families: Annotated[str, typer.Option(help="families, by comma; books of one by +")] = ",".join(FAMILIES),
) -> None:
    """Predicted times under every subset of the rule families."""
    chosen = [f.strip() for f in families.split(",")]
    chosen = chosen[:QUICK_FAMILIES] if quick else chosen
    books = {b for f in FAMILIES for b in f.split("+")}
    if unknown := sorted({b for f in chosen for b in f.split("+")} - books):
        raise typer.BadParameter(f"{', '.join(unknown)}: the books are {', '.join(sorted(books))}")
    sets = {frozenset(s): rules_of(s) for s in subsets(chosen)}
    cases = {name: case for name, case in programs(size).items() if only in name}
    cases = dict(islice(cases.items(), QUICK_CASES)) if quick else cases
    table = Table("program", "as written", "all rules", "distinct costs", "stopped", "made costlier by")
    failures: list[Costlier] = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("subsets", total=len(cases) * len(sets))
        for name, case in cases.items():
            predicted: dict[Family, float] = {}
            stops: set[str] = set()
            report: Any = None
            for subset, rules in sets.items():
                with rx.debug.options(cache=False):
                    report = rx.optimize(case.fn, *case.specs, rules=rules, **case.options).report
                predicted[subset] = report.after.seconds
                stops.add(report.stop)
                progress.advance(bar)
            found = list(costlier(name, predicted))
            failures += found
            distinct = len({f"{s:.6e}" for s in predicted.values()})
            seconds = (f"{1e6 * s:.1f} us" for s in (report.before.seconds, report.after.seconds))
            names = ", ".join(sorted({c.family for c in found}))
            table.add_row(name, *seconds, f"{distinct}", ", ".join(sorted(stops)), names)
    Console().print(table)
    for c in failures:
        print(f"{c.program}: {c.family} after {', '.join(c.subset) or 'nothing'}: {c.before:.4g} s to {c.after:.4g} s")
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
