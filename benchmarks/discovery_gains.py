"""What found laws save besides the rules that ship: on their own larger sides, and on the corpus.

    python -m benchmarks.discovery_gains [--rules found] [--only softmax] [--own] [--json docs/found_laws.json]
    python -m benchmarks.discovery_gains --mine mined.py [--only softmax] [--as-written]
                                         [--libraries] [--functions] [--size 2]
    python -m benchmarks.discovery_gains --book traced,orders --functions [--only median]
    python -m benchmarks.discovery_gains --measure behind_the_beam,median_from_the_top

`--rules`: a file of rules or a folder of such, as `python -m benchmarks.discovery --save found` writes them; without it
the laws of a small grammar are found first. Every program is searched twice, with the default rules and with the found
ones too. Prints the programs whose predicted time falls, and the laws that did it.

`--own` looks at the laws alone. A law is *new* if the rules that ship, without the schemas, do not lead from one side
to the other. It *saves* the share of the time of one side, as the rules that ship and the schemas make it, that the
other side as written does not take.

`--mine` looks for cheaper terms in the fragments of what the rules that ship make of each program, and writes their
laws to a file, for `--rules`; with `--as-written` in the programs as they are written, which takes less time. Laws of
fragments on which the rules that ship reach the same are left out. `--libraries`: of the functions of
`benchmarks.library_cases`, with their gradients, instead of the corpus; `--functions`: the functions of JAX that
`benchmarks.coverage` counts (`benchmarks/functions`), and their gradients.

`--book`: the found laws are those of these books, and what ships without them is known.

`--measure` times programs of the corpus on this machine: as written, by `jax.jit`, and with the rules that ship.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from benchmarks.cases import array
from benchmarks.corpus import CORPUS
from benchmarks.corpus.fired import corpus_rules
from benchmarks.found_rules import canonical, rules_at
from benchmarks.timing import QUICK_SECONDS, duration, measure
from relax_eg.discovery.sifting import reached
from relax_eg.driver.laws.mining import Mined, Miner, Offer
from relax_eg.driver.laws.ranking import LEAST_SAVING, Optimize, rank_by_savings
from relax_eg.errors import RelaxEgError
from relax_eg.frontends import trace
from relax_eg.ir.expr import VAR
from relax_eg.ir.module import Function, Module
from relax_eg.ops.facts import FACTS
from relax_eg.rules import RuleSet
from relax_eg.rules.conditions import claims_of
from relax_eg.rules.rule import instances

QUICK_PROGRAMS = 2
SIZE = 256  # of every axis, for prices
MINED_TERMS = 4000  # of one size for a fragment
SECONDS = 4.0  # of timing a program
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


def of_corpus() -> dict[str, Optimize]:
    """Returns the programs of the corpus, as functions of rules that optimize them."""

    def optimized(p: Any, rules: RuleSet) -> Any:
        at = dict.fromkeys(trace_or_module(p.made_of, *p.specs, **p.keywords).main.size_variables, SIZE)
        with rx.debug.options(least_gain=1):
            return p.optimized(rules=rules, at=at, target="cpu")

    return {n: partial(optimized, p) for n, p in CORPUS.items()}


def of_libraries(wanted: Callable[[str], bool]) -> dict[str, Optimize]:
    """Returns the functions of libraries at the sizes at which they are timed, and their gradients, those of wanted
    names."""
    from benchmarks.library_cases import CASES, REAL

    def optimized(use: Any, function: Any, rules: RuleSet) -> Any:
        with rx.debug.options(least_gain=1, cache=False):
            return rx.optimize(function, *use.specs, rules=rules, target="cpu")

    found: dict[str, Optimize] = {}
    for case in CASES:
        names = [f"{case.library}: {case.name}{more}" for more in ("", ", gradient")]
        if any(map(wanted, names)):
            use = case.build(REAL)
            found |= zip(names, (partial(optimized, use, f) for f in (use.fn, use.gradient)), strict=True)
    return found


def of_functions(names: Collection[str] | None = None) -> dict[str, Optimize]:
    """Returns JAX's own functions and their gradients, those with these names or all that can be traced, at `SIZE` for
    every free size."""
    from benchmarks.functions import GROUPS
    from benchmarks.library_cases.case import Use

    found: dict[str, Optimize] = {}
    for name, (fn, specs) in (f for functions in GROUPS.values() for f in functions.items()):
        for called, made in ((name, fn), (f"{name}, gradient", Use(fn, specs).gradient)):
            if names is not None and called not in names:
                continue
            try:
                found[called] = partial(optimized, trace(made, *specs))
            except (RelaxEgError, TypeError, ValueError):  # of integers there is no gradient
                if names is not None:
                    raise
    return found


def optimized(module: Module, rules: RuleSet) -> Any:
    """Returns a program with these rules, at `SIZE` for every free size."""
    at = dict.fromkeys(module.main.size_variables, SIZE)
    with rx.debug.options(least_gain=1, cache=False):
        return rx.optimize(module, at=at, rules=rules, target="cpu")


def trace_or_module(made_of: Any, *specs: Any, **keywords: Any) -> Module:
    return made_of if isinstance(made_of, Module) else trace(made_of, *specs, **keywords)


def mine_programs(asked: Mapping[str, Optimize], file: Path, size: int, rules: RuleSet) -> None:
    """Writes the laws that the programs could use after some rules and that the rules that ship do not reach, and
    prints the share of a program's predicted time that each saves there."""
    miner = Miner("cpu", size, "reassociate", 1, MINED_TERMS)
    offers: list[Offer] = []
    for name, optimize in asked.items():
        try:
            best = optimize(rules)
            at = dict(best.report.at)
            miner.least = LEAST_SAVING * best.report.after.seconds
            found = miner.mined(best.module, at)
        except RelaxEgError as e:
            print(f"{name}: {str(e).splitlines()[0]}", flush=True)
            continue
        new = [o for o in found.offers if o.is_new]
        for o in new:
            share = (o.before - o.after) / best.report.after.seconds
            print(f"{100 * share:4.0f}%  {name}: {o}", flush=True)
        offers += new
        Mined(tuple(offers), 0).save(file)
    print(f"{len(offers)} laws from {len(asked)} programs")


def measure_program(name: str, seconds: float) -> None:
    """Prints how long a program of the corpus takes as written and with the rules that ship."""
    p = CORPUS[name]
    at = dict.fromkeys(trace_or_module(p.made_of, *p.specs, **p.keywords).main.size_variables, SIZE)
    rng = np.random.default_rng(0)
    args = [array(s, {"n": SIZE, **at}, rng) for s in p.specs]
    best, written = p.optimized(rules=corpus_rules(), at=at, measure=0), jax.jit(p.made_of)
    for a, b in zip(jax.tree.leaves(best(*args)), jax.tree.leaves(written(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    calls = {"ours": lambda: best(*args), "written": lambda: written(*args)}
    timings = measure(calls, seconds)
    times = " -> ".join(duration(timings.median(n)) for n in ("written", "ours"))
    predicted = best.report.before.call / best.report.after.call
    print(f"{name}: {times}, {timings.speedup('ours', 'written')} times as fast; predicted {predicted:.2f}")


def main(
    rules: Annotated[str, typer.Option("--rules", help="a file of rules, or a folder of such")] = "",
    only: Annotated[str, typer.Option("--only", help="programs whose name contains this, or one of 'a|b'")] = "",
    own: Annotated[bool, typer.Option("--own", help="what the laws save by themselves")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="with --own: write the new laws here")] = None,
    mine: Annotated[Path | None, typer.Option("--mine", help="mine the programs, and write the laws here")] = None,
    measured: Annotated[str, typer.Option("--measure", help="time these programs of the corpus")] = "",
    libraries: Annotated[bool, typer.Option("--libraries", help="functions of libraries as programs")] = False,
    functions: Annotated[bool, typer.Option("--functions", help="JAX's own functions as programs")] = False,
    books: Annotated[str, typer.Option("--book", help="take the laws of these books, and know the others")] = "",
    as_written: Annotated[bool, typer.Option("--as-written", help="with --mine: no search before it")] = False,
    size: Annotated[int, typer.Option("--size", help="with --mine: operators of a cheaper term")] = 2,
    quick: Quick = False,
) -> None:
    if measured:
        for name in measured.split(","):
            measure_program(name, QUICK_SECONDS if quick else SECONDS)
        return

    def wanted(name: str) -> bool:
        return any(part in name for part in only.split("|"))

    programs = of_libraries(wanted) if libraries else of_functions() if functions else of_corpus()
    chosen = {n: p for n, p in programs.items() if wanted(n)}
    asked = dict(islice(chosen.items(), QUICK_PROGRAMS if quick else None))
    if mine is not None:
        mine_programs(asked, mine, size, RuleSet("none") if as_written else corpus_rules())
        return
    known = corpus_rules()
    if books:
        found = RuleSet("books", [r for name in books.split(",") for r in getattr(rx.rules, name)])
        known = RuleSet("known", [r for r in known if r not in list(found)], known.schemas)
    else:
        found = rules_at(rules)
    if own:
        show_own(found, only, json_out)
        return
    savings = rank_by_savings(asked, found, known)
    for s in savings:
        print(s)
    shares: dict[str, float] = {}  # the largest share that each law helps to save; the largest savings come first
    for s in savings:
        for name in s.rules:
            shares.setdefault(name, s.share)
    for name, share in shares.items():
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


if __name__ == "__main__":
    typer.run(main)
