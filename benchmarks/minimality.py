"""Whether a rule follows from the other rules of its book: they reach its right side from its left side without it.

    python -m benchmarks.minimality [--book movement] [--all]

For every rule, its smallest instance is put into an e-graph with the other rules of the book, its reversed twin left
out as well; a rule is derivable where both sides land in one class. `--all`: the other rules of all books.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Annotated

import typer

import relax_eg as rx
from benchmarks import Quick
from relax_eg.discovery.sifting import declared, scope_of
from relax_eg.egraph import Budget, EGraph
from relax_eg.errors import RelaxEgError
from relax_eg.rules import Instance, Rule, RuleSet, book
from relax_eg.rules.rule import instances

BOOKS = {
    b.name: b
    for b in (
        book.contraction, book.blocks, book.convolution, book.attention, book.reduction, book.elementwise,
        book.movement, book.values, book.systems, book.layout,
    )
}  # fmt: skip
QUICK_RULES = 1  # of each book
BUDGET = Budget(nodes=3000, seconds=5, growth=math.inf)


def without(rule: Rule, rules: RuleSet) -> RuleSet:
    """Returns `rules` without `rule` and without its reverse."""
    base = rule.name.removesuffix("_reversed")
    return RuleSet("others", [r for r in rules if r.name.removesuffix("_reversed") != base])


def derivable(rule: Rule, others: RuleSet) -> bool:
    """Whether the other rules make the sides of the smallest telling instance of `rule` equal."""
    instance = next(iter(instances(rule, limit=1)), None)
    if instance is None:
        return False
    return reached(instance, others)


def reached(instance: Instance, others: RuleSet) -> bool:
    """Whether the other rules lead from the left side to the right one."""
    try:
        with EGraph(instance.left, others, scope_of(instance.guards), declared=declared(instance.guards)) as egraph:
            egraph.saturate(BUDGET)
            return all(egraph.are_equal(a, b) for a, b in zip(instance.left, instance.right, strict=True))
    except RelaxEgError:
        return False


def main(
    only: Annotated[str, typer.Option("--book", help="one book")] = "",
    quick: Quick = False,
    everything: Annotated[bool, typer.Option("--all", help="from the rules of all books")] = False,
) -> None:
    found = 0
    for name, rules in BOOKS.items():
        if only and name != only:
            continue
        for rule in islice(rules, QUICK_RULES if quick else None):
            if not rule.reverse and derivable(rule, without(rule, rx.rules.default if everything else rules)):
                print(f"{name}: {rule.name}")
                found += 1
    print(f"{found} derivable")


if __name__ == "__main__":
    typer.run(main)
