"""How few of the found laws are enough: for all that were found, and for the laws of the books.

    python -m benchmarks.least_laws [--found found] [--only sums] [--save least.txt] [--quick]

`--found`: a folder that `python -m benchmarks.discovery --save found` has written. Families find laws of each other
again, so their laws are put together: those that are alike up to names are one; then a law is dropped, the largest and
most special first, if the others lead from one of its sides to the other. At the end the laws of the books that are
within the families are asked: which follow from those that are kept, and of how few the derivations are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.discovery import FAMILIES, laws_within, proved, read_found
from benchmarks.found_rules import canonical
from relax_eg.discovery.sifting import declared, reached, scope_of
from relax_eg.egraph import Budget, EGraph, recording
from relax_eg.errors import RelaxEgError
from relax_eg.explain.derive import derive
from relax_eg.explain.steps import equations_of, goals_in_order
from relax_eg.ir.expr import CONSTANT, VAR, postorder
from relax_eg.rules import Instance, Rule, RuleSet
from relax_eg.rules.conditions import key_of
from relax_eg.rules.facts.parameter_facts import known_facts
from relax_eg.rules.rule import instances

# of a question; nodes end it, so that the clock decides nothing
BUDGET = Budget(nodes=4000, seconds=60, growth=math.inf)
WIDE = Budget(nodes=12_000, seconds=60, growth=math.inf)  # of a law of the books
QUICK_LAWS = 2


def law_of(name: str) -> str:
    """Returns the name of the law of which a rule is a direction or a typing."""
    return name.removesuffix("_reversed").partition("_typed_")[0]


def equations_at(place: str, only: str = "") -> RuleSet:
    """Returns the laws of the families' reports in a folder, in both directions wherever these are rules. Without a
    folder: those of a small grammar."""
    files = sorted(Path(place).glob("*.json")) if place else []
    reports = {f.stem: read_found(f)[0] for f in files if only.replace(" ", "_") in f.stem}
    if place and not reports:
        raise typer.BadParameter(f"{place}: no report of a family is there")
    reports = reports or {"small": rx.discover("abs | multiply | maximum", "x: *b, y: *b", 2)}
    named = [replace(r, name=f"{family}: {r.name}") for family, d in reports.items() for r in d.equations]
    return RuleSet("equations", named)


class Laws:
    """Found laws: the rules of each, which are its directions and typings, an instance, and its operators."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules: dict[str, list[Rule]] = {}
        for r in rules:
            self.rules.setdefault(law_of(r.name), []).append(r)
        alike: dict[tuple[str, tuple[str, ...]], str] = {}
        self.main: dict[str, str] = {}  # of each law, the one that it is alike up to names
        for name, own in list(self.rules.items()):
            main = self.main[name] = alike.setdefault((canonical(own[0]), own[0].when), name)
            if main != name:  # the typings of one family may be more general than those of another
                there = {_typing(r) for r in self.rules[main]}
                self.rules[main] += [r for r in own if _typing(r) not in there]
                del self.rules[name]
        self.count_alike = len(alike)
        self.instances = {n: next(instances(own[0], limit=1)) for n, own in self.rules.items()}
        self.operators = {n: operators_of(i) for n, i in self.instances.items()}

    def about(self, instance: Instance, but: Iterable[str] = ()) -> RuleSet:
        """Returns the rules of laws that have at most one operator which does not occur in an instance."""
        asked, without = operators_of(instance), set(but)
        near = [n for n, ops in self.operators.items() if len(ops - asked) <= 1 and n not in without]
        return RuleSet("others", [r for n in near for r in self.rules[n]])

    def size(self, name: str) -> tuple[int, int, int]:
        """Returns what laws are ordered by: operators, conditions, and variables, of which more are more general."""
        i = self.instances[name]
        count = len([e for e in postorder((*i.left, *i.right)) if e.op not in (VAR, CONSTANT)])
        return count, len(i.guards), -len(i.params)

    def drop_followers(self, tell: bool = True) -> list[str]:
        """Drops the laws that follow from the others, the largest first. Returns their names."""
        dropped: list[str] = []
        for name in sorted(self.rules, key=lambda n: (self.size(n), n), reverse=True):
            if reached(self.instances[name], self.about(self.instances[name], [name]), BUDGET):
                dropped.append(name)
                del self.rules[name], self.operators[name]
                if tell:
                    print(f"  follows: {self.instances[name].rule.doc.splitlines()[0]}", flush=True)
        return dropped


def _typing(rule: Rule) -> tuple[Any, ...]:
    return tuple(s.text for s in rule.signature.values()), tuple(rule.attributes.items()), rule.reverse


def operators_of(instance: Instance) -> frozenset[str]:
    """Returns the operators of both sides."""
    return frozenset(e.op for e in postorder((*instance.left, *instance.right)) if e.op not in (VAR, CONSTANT))


def rules_used(instance: Instance, rules: RuleSet) -> frozenset[str] | None:
    """Returns the laws by which a derivation leads from the left side of an instance to the right one; None where none
    was found within the budget."""
    known = tuple(instance.guards)
    facts, scope = declared(known), scope_of(known)
    try:
        with EGraph(
            (*instance.left, *instance.right), rules, scope, declared=facts, record=True, warns=False
        ) as egraph:
            egraph.saturate(WIDE)
            record = recording(egraph)
        have = known_facts(facts.facts, facts.exact, scope)
        goals = derive(record, instance.left, instance.right, [], lambda g, e: have.has(e, key_of(g)))
    except RelaxEgError:
        return None
    return frozenset(law_of(e.rule.name) for e in equations_of(goals_in_order(goals)))


def least(asked: Sequence[Instance], laws: Laws) -> tuple[list[str], list[Instance]]:
    """Returns the names of few laws from which all of `asked` follow, and what does not follow. The laws of a
    derivation of each are taken, where possible of those that others need too; then those are dropped without which
    there is another derivation."""
    kept: dict[str, None] = {}
    lost: list[Instance] = []
    uses: dict[int, frozenset[str]] = {}

    def used(instance: Instance, allowed: Iterable[str] | None = None) -> frozenset[str] | None:
        but = [] if allowed is None else laws.rules.keys() - set(allowed)
        found = rules_used(instance, laws.about(instance, but))
        return None if found is None else frozenset(laws.main[n] for n in found)

    for place, instance in enumerate(asked):
        found = used(instance, kept)
        found = used(instance) if found is None else found
        if found is None:
            lost.append(instance)
            continue
        uses[place] = found
        kept.update(dict.fromkeys(sorted(found)))
    for name in reversed(list(kept)):
        others = {i: used(asked[i], kept.keys() - {name}) for i, own in uses.items() if name in own}
        if None not in others.values():
            del kept[name]
            uses |= {i: own for i, own in others.items() if own is not None}
    return list(kept), lost


def main(
    found: Annotated[str, typer.Option("--found", help="a folder of reports of families")] = "",
    only: Annotated[str, typer.Option("--only", help="families whose name contains this")] = "",
    save: Annotated[Path | None, typer.Option("--save", help="write the names of the laws that are kept here")] = None,
    quick: Quick = False,
) -> None:
    rules = equations_at(found, only)
    laws = Laws(rules)
    total = len({law_of(r.name) for r in rules})
    print(f"{total} laws of families are {laws.count_alike} that differ by more than names", flush=True)
    laws.drop_followers()
    # Laws of the books that no family in the folder could find are not asked.
    there = {r.name.partition(":")[0] for r in rules}
    families = [f for n, f in FAMILIES.items() if n.replace(" ", "_") in there]
    within = {r.name: i for f in families for r, i in laws_within(f)}
    rules_within = [i.rule for i in within.values()][: QUICK_LAWS if quick else None]
    asked = [within[n] for n in sorted(proved(rules_within))]
    print(f"{len(laws.rules)} are enough for all of them", flush=True)
    kept, lost = least(asked, laws)
    for name in kept:
        print(f"  {laws.instances[name].rule.doc.splitlines()[0]}")
    for instance in lost:
        print(f"  does not follow: {instance.rule.name}")
    ratio = len(kept) / max(len(asked) - len(lost), 1)
    followers = f"{len(asked) - len(lost)} of {len(asked)} laws of the books"
    print(f"{followers} follow, from {len(kept)} found ones: {ratio:.2f} of their number")
    if save is not None:
        save.write_text("\n".join(laws.rules) + "\n")


if __name__ == "__main__":
    typer.run(main)
