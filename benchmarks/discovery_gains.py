"""What found laws save besides the rules that ship: on their own larger sides, and on the corpus.

    python -m benchmarks.discovery_gains [--rules found] [--only softmax] [--own] [--json docs/found_laws.json]

`--rules`: a file of rules or a folder of such, as `python -m benchmarks.discovery --save found` writes them; without it
the laws of a small grammar are found first. Every program is searched twice, with the default rules and with the found
ones too. Prints the programs whose predicted time falls, and the laws that did it.

`--own` looks at the laws alone. A law is *new* if the rules that ship, without the schemas, do not lead from one side
to the other. It *saves* the share of the time of one side, as the rules that ship and the schemas make it, that the
other side as written does not take.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.corpus import CORPUS
from benchmarks.corpus.fired import corpus_rules
from benchmarks.found_rules import canonical, rules_at
from relax_eg.discovery.following import reached
from relax_eg.driver.ranking import LEAST_SAVING, rank_by_savings, savings_of_rules
from relax_eg.ir.expr import VAR
from relax_eg.ir.module import Function, Module
from relax_eg.ops.facts import FACTS
from relax_eg.rules import RuleSet
from relax_eg.rules.conditions import claims_of
from relax_eg.rules.rule import instances

QUICK_PROGRAMS = 2
SIZE = 256  # of every axis, for prices
INSTANCES = 12  # of a law, of which the one with the fewest shapes is looked at


@dataclass(frozen=True)
class OwnGain:
    """What a law is worth by itself.

    - `family`, `law`, `numerics`, `when`: where it was found, the law, its class and its conditions.
    - `is_new`: whether the rules that ship do not lead from one side to the other.
    - `saves`: the share of the predicted time that it saves on the dearer one of its sides.
    """

    family: str
    law: str
    numerics: str
    when: tuple[str, ...]
    is_new: bool
    saves: float


def own_gain(rule: rx.rules.Rule, family: str) -> OwnGain:
    # A law of operands that broadcast is new where it is new for operands of one shape.
    instance = min(instances(rule, limit=INSTANCES), key=lambda i: len({p.shape for p in i.params}))
    (left,), (right,) = instance.left, instance.right
    at = {v: SIZE for p in instance.params for d in p.shape for v in d.variables}
    facts: dict[str | int, list[str]] = {
        n: sorted(FACTS[f].name for f in found) for n, found in claims_of(instance.guards).items()
    }

    def searched(result: Any, rules: RuleSet = rx.rules.default) -> Any:
        module = Module((Function("main", instance.params, (), result),))
        with rx.debug.options(least_gain=1):
            return rx.optimize(module, at=at, target="cpu", facts=facts, rules=rules, numerics=rule.numerics)

    written = [0.0 if e.op == VAR else searched(e, RuleSet("none")).report.before.seconds for e in (left, right)]
    made = [0.0 if e.op == VAR else searched(e).report.after.seconds for e in (left, right)]
    ways = zip(made, reversed(written), strict=True)  # from each side, as the rules that ship make it, to the other
    saves = max((1 - there / here for here, there in ways if here > there), default=0.0)
    return OwnGain(
        family,
        rule.doc.splitlines()[0],
        rule.numerics,
        rule.when,
        not reached(instance, rx.rules.default),
        round(saves, 3),
    )


def main(
    rules: Annotated[str, typer.Option("--rules", help="a file of rules, or a folder of such")] = "",
    only: Annotated[str, typer.Option("--only", help="programs whose name contains this")] = "",
    own: Annotated[bool, typer.Option("--own", help="what the laws save by themselves")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="with --own: write the new laws here")] = None,
    quick: Quick = False,
) -> None:
    found = rules_at(rules)
    if own:
        show_own(found, only, json_out)
        return
    chosen = {n: p for n, p in CORPUS.items() if only in n}
    asked = {n: partial(_optimized, p) for n, p in islice(chosen.items(), QUICK_PROGRAMS if quick else None)}
    savings = rank_by_savings(asked, found, corpus_rules())
    for s in savings:
        print(s)
    for name, share in savings_of_rules(savings).items():
        print(f"{100 * share:.0f}%  {found[name]}")
    print(f"{len(savings)} of {len(asked)} programs gain by {len(found)} laws")


def show_own(found: RuleSet, only: str, json_out: Path | None) -> None:
    """Prints the new laws, those first that save most, and writes them."""
    gains: dict[str, OwnGain] = {}
    for r in found:
        if r.reverse or "_typed_" in r.name or only not in r.name:
            continue
        key = canonical(r)
        if key not in gains:
            gains[key] = own_gain(r, r.name.partition("__")[0])
    new = sorted((g for g in gains.values() if g.is_new), key=lambda g: (-g.saves, g.law))
    for g in new:
        print(f"{100 * g.saves:3.0f}%  {g.law}  ({g.numerics}, {g.family})")
    saving = sum(g.saves >= LEAST_SAVING for g in new)
    print(f"{len(new)} of {len(gains)} laws are new, {saving} of them save something by themselves")
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(g) for g in new], indent=1) + "\n")


def _optimized(p: Any, rules: RuleSet) -> Any:
    with rx.debug.options(least_gain=1):
        return p.optimized(rules=rules)


if __name__ == "__main__":
    typer.run(main)
