"""Facts of the parameters of a program's functions. Those of the entry are declared. A parameter of a called function
has the facts that its operands have at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relax_eg.ir.calls import callees_first
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL
from relax_eg.ir.module import Function, Module
from relax_eg.rules.conditions import FactKey
from relax_eg.rules.facts.propagation import Facts, KnownFacts, Leaves, is_positive_number, required_facts
from relax_eg.rules.rule_set import RuleSet
from relax_eg.shapes import Dim, Proved, Relation, Scope, prove


@dataclass(frozen=True, slots=True)
class DeclaredFacts:
    """The declared properties of a program's parameters.

    - `facts`: facts of each parameter, by name.
    - `weights`: names of the parameters that are weights.
    - `exact`: whether only facts of values as computed count; otherwise facts over the reals count too, like the rules
      that are then allowed.
    """

    facts: Facts = field(default_factory=dict[str, frozenset[FactKey]])
    weights: frozenset[str] = frozenset()
    exact: bool = False


def is_positive_in(scope: Scope) -> Callable[[Dim], bool]:
    """The test whether a size is proved to be at least 1 in `scope`."""
    return lambda d: d.value >= 1 if d.is_const else isinstance(prove(Relation.of(d, ">=", 1), scope), Proved)


def known_facts(facts: Facts, exact: bool, scope: Scope) -> KnownFacts:
    """The facts of expressions that follow from `facts` of parameters at the sizes of `scope`. `exact`: as in
    `DeclaredFacts`."""
    return KnownFacts(Leaves(facts).have_fact, exact, is_positive_in(scope))


def facts_of_functions(module: Module, declared: Facts, rules: RuleSet, exact: bool) -> dict[str, Facts]:
    """The facts of each function's parameters, by function. If `declared` is empty or `rules` require no facts, the
    result contains only the entry.

    A parameter has the facts that its operands have at every call. The parameters of a function that is used in any
    other way (the body of a loop) have no facts. O(expressions).
    """
    entry = module.main
    found: dict[str, Facts] = {entry.name: declared}
    by_rules = {f for r in rules for f in r.required_facts}
    by_schemas = {f for schema in rules.schemas for f in schema.facts}
    wanted = required_facts(frozenset[FactKey](by_rules | by_schemas)) if declared else frozenset[FactKey]()
    if not wanted:
        return found
    operands: dict[str, list[Sequence[frozenset[FactKey]]]] = {}
    for f in reversed(list(callees_first(module))):
        if f.name != entry.name:
            found[f.name] = _at_every_call(f, operands.get(f.name, ()))
        known = KnownFacts(Leaves(found[f.name]).have_fact, exact, is_positive_number)
        for e in f.expressions():
            for name in functions_of(e):
                args = e.args[1:] if e.op == CALL else ()
                here = [frozenset(w for w in wanted if known.has(a, w)) for a in args]
                operands.setdefault(name, []).append(here)
    return found


def _at_every_call(function: Function, calls: Sequence[Sequence[frozenset[FactKey]]]) -> Facts:
    facts: dict[str, frozenset[FactKey]] = {}
    for i, p in enumerate(function.params):
        if calls and all(i < len(c) for c in calls):
            facts[str(p.attr("name"))] = frozenset[FactKey].intersection(*(c[i] for c in calls))
    return facts
