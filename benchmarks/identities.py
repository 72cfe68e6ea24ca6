"""Known identities: whether the dearer side of each reaches the predicted time of the cheaper one.

    python -m benchmarks.identities [--family sums] [--only NAME] [--without sum_products] [--json out.json] [--quick]

`benchmarks.known_identities` has the identities, two programs each. Both sides are optimized with the default rules for
the data sheet `cpu`; nothing is run. An identity has a *gain* if the cheaper side as written is predicted to be faster
than the dearer side as written by at least 5% and by at least 1 us: a program is replaced only where it becomes more
than 5% faster. It is *reached* if the optimized dearer side takes at most 2%, or 1 us, longer than the cheaper side as
written. No side may become slower.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relax_eg as rx
from benchmarks import Quick
from benchmarks.known_identities import FAMILIES, IDENTITIES, Identity

GAIN = 0.95  # of the dearer side's price, at most: below it, the cheaper side is worth finding
REACHED = 1.02  # of the cheaper side's price, at most
NEGLIGIBLE = 1e-6  # seconds, less than the dispatch of a call takes
QUICK_IDENTITIES = 1  # of each family
MICROSECONDS = 1e6  # in a second


@dataclass(frozen=True)
class Prices:
    """Predicted seconds of the sides of an identity.

    - `name`, `family`: those of the identity.
    - `dearer`, `cheaper`: of each side as written.
    - `dearer_optimized`, `cheaper_optimized`: of each side as optimized.
    """

    name: str
    family: str
    dearer: float
    cheaper: float
    dearer_optimized: float
    cheaper_optimized: float

    @property
    def gains(self) -> bool:
        return self.cheaper <= min(GAIN * self.dearer, self.dearer - NEGLIGIBLE)

    @property
    def reached(self) -> bool:
        return self.gains and self.dearer_optimized <= max(REACHED * self.cheaper, self.cheaper + NEGLIGIBLE)

    @property
    def missed(self) -> bool:
        return self.gains and not self.reached

    @property
    def slower(self) -> bool:
        return self.dearer_optimized > self.dearer or self.cheaper_optimized > self.cheaper

    @property
    def reversed(self) -> bool:
        """Whether the side that is expected to be dearer is the cheaper one by as much as a gain."""
        return self.dearer < GAIN * self.cheaper


def prices(identity: Identity, rules: rx.RuleSet = rx.rules.default) -> Prices:
    """Returns the prices of an identity's sides."""
    found: list[tuple[float, float]] = []
    for side in (identity.dearer, identity.cheaper):
        with rx.debug.options(cache=False):
            best = rx.optimize(side, *identity.specs, target="cpu", rules=rules, **identity.options)
        report = best.report
        found.append((report.before.seconds, report.after.seconds))
    (dearer, dearer_optimized), (cheaper, cheaper_optimized) = found
    return Prices(identity.name, identity.family, dearer, cheaper, dearer_optimized, cheaper_optimized)


def asked(family: str, only: str, quick: bool) -> list[Identity]:
    """Returns the identities that the options ask for; raises BadParameter for an unknown name."""
    if family and family not in FAMILIES:
        raise typer.BadParameter(f"--family {family}: {', '.join(FAMILIES)} are accepted")
    found = [i for i in IDENTITIES if family in ("", i.family) and only in ("", i.name)]
    if not found:
        raise typer.BadParameter(f"--only {only}: no identity has this name")
    return [i for f in FAMILIES for i in [i for i in found if i.family == f][:QUICK_IDENTITIES]] if quick else found


def summary(results: Iterable[Prices]) -> Table:
    """Returns the table of counts by family."""
    every = list(results)
    table = Table("family", title="Known identities")
    for column in ("identities", "with a gain", "reached", "share", "became slower"):
        table.add_column(column, justify="right")
    for family in [*dict.fromkeys(r.family for r in every), "all"]:
        rows = [r for r in every if family in (r.family, "all")]
        gains, reached = sum(r.gains for r in rows), sum(r.reached for r in rows)
        share = f"{reached / gains:.0%}" if gains else ""
        slower = sum(r.slower for r in rows)
        table.add_row(family, str(len(rows)), str(gains), str(reached), share, str(slower))
    return table


def main(
    family: Annotated[str, typer.Option(help=f"Only this family: {', '.join(FAMILIES)}.")] = "",
    only: Annotated[str, typer.Option(help="Only the identity of this name.")] = "",
    without: Annotated[str, typer.Option(help="Leave out this book, rule or tag.")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", help="File for the prices.")] = None,
    quick: Quick = False,
) -> None:
    """Prints by family how many identities have a gain, and in how many of these it is reached; then what is missed."""
    console = Console()
    identities = asked(family, only, quick)
    rules = rx.rules.default - getattr(rx.rules, without, without) if without else rx.rules.default
    found = [prices(i, rules) for i in track(identities, "identities", console=console, transient=True)]
    console.print(summary(found))
    for r in found:
        note = "missed" if r.missed else "became slower" if r.slower else "the other side is cheaper" * r.reversed
        if note or only:
            dearer, optimized, cheaper, cheaper_optimized = (
                f"{x * MICROSECONDS:.4g}" for x in (r.dearer, r.dearer_optimized, r.cheaper, r.cheaper_optimized)
            )
            console.print(
                f"{r.family}, {r.name}: {note or 'kept'}; {dearer} -> {optimized} us against {cheaper}"
                f" -> {cheaper_optimized} us",
                highlight=False,
                soft_wrap=True,
            )
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(r) for r in found], indent=1))


if __name__ == "__main__":
    typer.run(main)
