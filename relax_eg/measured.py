"""`optimize(..., measure=k)`: the programs that price says are the best, timed here beside the one as written.

The others are what the search finds when a rule that the best one needs is taken away: programs that differ in what
matters, each the best of its kind. The decision is part of what the cache keeps, and is replayed from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from relax_eg.errors import OptionError
from relax_eg.extract.report import CostReport, MeasuredRow
from relax_eg.frontends import Source
from relax_eg.ir.module import Module
from relax_eg.measure.choice import argument, fastest
from relax_eg.options import Options

AS_WRITTEN, BY_PRICE, WITHOUT = "as written", "by price", "without "


@dataclass(frozen=True)
class Entry:
    """A program that a search found: the module, its predicted seconds, and the rules its nodes are made by, those that
    made most first."""

    label: str
    module: Module
    predicted: float
    rules: tuple[str, ...]


def check_measurable(traced: Source, options: Options) -> None:
    """OptionError where `measure` has nothing it could time."""
    if traced.in_steps or traced.effectful:
        why = "runs in steps" if traced.in_steps else "does more than compute"
        raise OptionError(f"measure: {traced.name}() {why}, and is not timed; leave measure out")
    if options.assumed and options.bindings[0]:
        sizes = ", ".join(options.bindings[0])
        raise OptionError(f"measure: sizes to time at are needed: at={{...}} with {sizes}")
    if jax.process_count() > 1:
        raise OptionError("measure: of several processes each would decide for itself; leave measure out")


def alternatives(first: Entry, options: Options, search: Callable[[str, Options], Entry]) -> list[Entry]:
    """`first` and others than it, cheapest first, `options.measure` at most. `search(label, options)`: one search."""
    found = [first]
    for rule in first.rules[: 2 * options.measure] if options.measure > 1 else ():
        entry = search(f"{WITHOUT}{rule}", without(options, rule))
        if all(entry.module != e.module for e in found):
            found.append(entry)
    return [first, *sorted(found[1:], key=lambda e: e.predicted)][: options.measure]


def without(options: Options, rule: str) -> Options:
    return replace(options, rules=options.rules - rule)


def searched_with(options: Options, report: CostReport) -> Options:
    """The options of the search that found what was chosen."""
    label = next((r.label for r in report.measured if r.chosen), "")
    return without(options, label.removeprefix(WITHOUT)) if label.startswith(WITHOUT) else options


def timed(
    traced: Source, options: Options, written: float, entries: list[Entry], call: Callable[[Module | None], Any]
) -> tuple[MeasuredRow, ...]:
    """The program as written (`written`: its predicted seconds) and `entries`, timed at the first binding on random
    arguments. `call(module)`: what `optimize` returns for a module."""
    facts = dict(options.facts)
    leaves = [
        argument(leaf.annotation, options.bindings[0], facts.get(leaf.name, ()), seed)
        for seed, leaf in enumerate(traced.leaves)
    ]
    args, kwargs = jax.tree_util.tree_unflatten(traced.in_tree, leaves)
    found = [e for e in entries if e.module != traced.module]
    programs = {AS_WRITTEN: (call(None), written), **{e.label: (call(e.module), e.predicted) for e in found}}
    return fastest({label: (lambda f=f: f(*args, **kwargs), predicted) for label, (f, predicted) in programs.items()})
