"""`ablate`: optimizes a program with all rules and without one set of rules at a time, to show what each set is
worth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relax_eg.argument_checks import CALLABLE, FLAG, TEXT, accepts, one_of, sequence_of
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.driver.clock.measured import random_arguments
from relax_eg.driver.optimize import optimize
from relax_eg.driver.options import KINDS, Execution
from relax_eg.driver.program_ends import traced_program
from relax_eg.errors import OptionError
from relax_eg.extract.report import AS_WRITTEN
from relax_eg.frontends.clashes import specs_by_name
from relax_eg.ir.module import Module
from relax_eg.measure.choice import fastest
from relax_eg.ops.libraries import EXECUTIONS
from relax_eg.reports import Comparison, CostReport, compare
from relax_eg.rules import RuleSet, book

ALL = "all rules"
# The sets of rules that are left out, by name. Fusion and partial library dispatch are those of Relax's ablation.
SETS: dict[str, RuleSet] = {
    "fusion": book.fusion,
    "library": book.libraries,
    "workspace": book.workspace,
    "algebra": book.algebra,
    "layout": book.layout,
}


@dataclass(frozen=True)
class Ablation:
    """What each set of rules is worth.

    - `comparison`: the program found with all rules, the one as written, and those found without one set each.
    - `without`: the names of the sets.
    """

    comparison: Comparison
    without: tuple[str, ...]

    def slower(self, name: str) -> float:
        """How many times longer the program without this set is predicted to take than the one with all rules."""
        by_label = {c.label: c.cost.seconds for c in self.comparison.columns}
        return by_label[f"without {name}"] / by_label[ALL]


@accepts(
    **{**KINDS, "execution": one_of(*EXECUTIONS)},
    sets=sequence_of(f"one or more of {', '.join(SETS)}", TEXT),
    timed=FLAG,
    tell=CALLABLE,
)
def ablate(
    program: Callable[..., Any] | Module,
    /,
    *args: Any,
    sets: Sequence[str] = tuple(SETS),
    rules: RuleSet | None = None,
    execution: Execution = "kernels",
    timed: bool = False,
    tell: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> Ablation:
    """Optimize `program` with all rules, and again without each of `sets`.

    - `rules`: all rules; default: the default ones and those on workspaces.
    - `execution`: "kernels" (the default: there fusion, libraries and workspaces are chosen) or "whole".
    - `timed`: whether every program is also timed, on random arguments.
    - `tell`: called with (what is done now, how many are done, of how many).

    The other arguments are those of `optimize`. OptionError for a set that does not exist.
    """
    wanted = tuple(dict.fromkeys(sets))
    if not wanted or any(s not in SETS for s in wanted):
        raise OptionError(f"sets={list(sets)!r}: one or more of {', '.join(SETS)} are accepted")
    every = rules if rules is not None else book.default + book.workspace
    allowed = {ALL: every, **{f"without {s}": every - SETS[s] for s in wanted}}
    if timed:
        allowed[AS_WRITTEN] = RuleSet("none")
    found: dict[str, Optimized] = {}
    for i, (label, chosen) in enumerate(allowed.items()):
        if tell is not None:
            tell(label, i, len(allowed) + timed)
        found[label] = optimize(program, *args, rules=chosen, execution=execution, **options)
    reports = {label: best.report for label, best in found.items()}
    if timed:
        if tell is not None:
            tell("timing", len(allowed), len(allowed) + 1)
        known = inspect.signature(optimize).parameters
        kwspecs = {k: v for k, v in options.items() if k not in known}
        named = specs_by_name(options.get("specs"), kwspecs)
        traced = traced_program(program, args, named, options.get("bounds"))
        reports = _timed(found, *random_arguments(traced, {}, reports[ALL].at))
    return Ablation(compare(*reports.values(), labels=list(reports), against=ALL, as_written=True), wanted)


def _timed(found: dict[str, Optimized], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, CostReport]:
    """The reports of the programs found, each with the median time of its calls on these arguments and that of the
    program as written."""
    calls = {label: ((lambda f=best: f(*args, **kwargs)), best.report.after.call) for label, best in found.items()}
    rows = {
        r.label: replace(r, chosen=False) for r in fastest({AS_WRITTEN: calls.pop(AS_WRITTEN), **calls}, time_all=True)
    }
    written = rows.pop(AS_WRITTEN)
    reports: dict[str, CostReport] = {}
    for label, row in rows.items():
        report = found[label].report
        at = dict(report.at)
        reports[label] = replace(report, measured=(replace(written, at=at), replace(row, chosen=True, at=at)))
    return reports
