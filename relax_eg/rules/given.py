"""What is known of the parameters of a program's functions: the entry's as declared, those of functions it calls by
their operands at every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.ir.calls import callees_first
from relax_eg.ir.control import functions_of
from relax_eg.ir.expr import CALL, VAR, Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ops.facts import FACTS
from relax_eg.rules.propagation import Known, closed, constant_has, needed, of_annotation
from relax_eg.rules.rule import RuleSet
from relax_eg.shapes import Dim, Proved, Scope, prove

Facts = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of a program's parameters, by name: their facts, and which are weights.

    `exact`: only what holds of values as they are computed counts; otherwise also what holds over the reals, as the
    rules that are then allowed do.
    """

    facts: Facts = field(default_factory=dict[str, frozenset[str]])
    weights: frozenset[str] = frozenset()
    exact: bool = False


class Leaves:
    """The facts of a function's variables, as given by name, and of constants, by inspection."""

    def __init__(self, facts: Facts) -> None:
        self._facts = {name: closed(set(f)) for name, f in facts.items()}

    def have(self, e: Expr, fact: str) -> bool:
        # A matrix of literal size 1 broadcasts: see `of_annotation`.
        said = of_annotation(e.annotation, _is_positive_number)
        if fact in FACTS and FACTS[fact].axes == 2 and "is_square" not in said:
            return False
        return fact in self._facts.get(str(e.attr("name")), ()) if e.op == VAR else constant_has(e, fact)


def _is_positive_number(d: Dim) -> bool:
    return d.is_const and d.value >= 1


class Sizes:
    """Which sizes are at least 1 in a scope, each asked once."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[Dim, bool] = {}

    def are_positive(self, d: Dim) -> bool:
        if d not in self._known:
            self._known[d] = d.value >= 1 if d.is_const else isinstance(prove(f"{d} >= 1", self._scope), Proved)
        return self._known[d]


def facts_of_functions(module: Module, declared: Facts, rules: RuleSet, exact: bool) -> dict[str, Facts]:
    """The facts of each function's parameters, by function, as far as `rules` ask for any and some are declared.

    A parameter has the facts that its operands have at every call; of what is used in any other way (the body of a
    loop) nothing is said. O(expressions).
    """
    entry = module.main
    found: dict[str, Facts] = {entry.name: declared}
    wanted = needed(frozenset(f for r in rules for f in r.facts_asked)) if declared else frozenset[str]()
    if not wanted:
        return found
    operands: dict[str, list[Sequence[frozenset[str]]]] = {}
    for f in reversed(list(callees_first(module))):
        if f.name != entry.name:
            found[f.name] = _at_every_call(f, operands.get(f.name, ()))
        known = Known(Leaves(found[f.name]).have, exact, _is_positive_number)
        for e in f.expressions():
            for name in functions_of(e):
                args = e.args[1:] if e.op == CALL else ()
                here = [frozenset(w for w in wanted if known.has(a, w)) for a in args]
                operands.setdefault(name, []).append(here)
    return found


def _at_every_call(function: Function, calls: Sequence[Sequence[frozenset[str]]]) -> Facts:
    facts: dict[str, frozenset[str]] = {}
    for i, p in enumerate(function.params):
        if calls and all(i < len(c) for c in calls):
            facts[str(p.attr("name"))] = frozenset[str].intersection(*(c[i] for c in calls))
    return facts
