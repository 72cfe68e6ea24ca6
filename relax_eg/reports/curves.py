"""Curves of cost over a size, from reports at several bindings of sizes. Nothing is priced again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relax_eg.extract.report import Crossover, Curve, Series
from relax_eg.reports.align import Column


def curves_over_bindings(columns: Sequence[Column]) -> list[Curve]:
    """For each size variable, the curves of all columns over this size. A curve has the bindings in which all other
    sizes are as in the report's own binding. Columns with fewer than two such bindings are left out."""
    variables = dict.fromkeys(v for c in columns for v in c.report.at)
    found: list[Curve] = []
    for v in variables:
        lines = [(c.label, _seconds_by_size(c, v)) for c in columns]
        lines_drawn = [(label, line) for label, line in lines if len(line) > 1]
        if not lines_drawn:
            continue
        sizes = sorted({n for _, line in lines_drawn for n in line})
        series = tuple(Series(label, tuple(line.get(n) for n in sizes)) for label, line in lines_drawn)
        fixed = {k: n for k, n in columns[0].report.at.items() if k != v}
        found.append(Curve(v, fixed, tuple(sizes), series, tuple(_crossovers(sizes, series))))
    return found


def _seconds_by_size(c: Column, variable: str) -> Mapping[int, float]:
    """The seconds of a column by size, at the bindings that differ from the report's own binding in this size only."""
    own = {k: n for k, n in c.report.at.items() if k != variable}
    found: dict[int, float] = {}
    for r in c.report.at_each():
        if variable in r.at and {k: n for k, n in r.at.items() if k != variable} == own:
            found[r.at[variable]] = (r.before if c.as_written else r.after).seconds
    return found


def _crossovers(sizes: Sequence[int], series: Sequence[Series]) -> list[Crossover]:
    """The crossovers: the first of `sizes` at which another program is the cheapest, for each such change."""
    found: list[Crossover] = []
    best = ""
    for i, n in enumerate(sizes):
        here = [(s.seconds[i], s.label) for s in series]
        cheapest = min(((x, label) for x, label in here if x is not None), default=None)
        if cheapest is None:
            continue
        if best and cheapest[1] != best:
            found.append(Crossover(n, best, cheapest[1]))
        best = cheapest[1]
    return found
