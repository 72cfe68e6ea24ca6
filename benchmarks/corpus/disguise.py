"""Finds corpus programs that are only the left side of a rule, so that they show nothing about the rule.

A program is the left side of a rule if the left side matches it at its results, all conditions hold, and the left side
has at least as many operators as the program.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.corpus.program import Program
from relax_eg import debug
from relax_eg.driver.options import read_options, weight_names
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.units import Units
from relax_eg.explain.nearest import Graph, Nearest
from relax_eg.ir import CONSTANT, VAR, Expr, postorder
from relax_eg.rules import Rule, RuleSet
from relax_eg.rules.facts.parameter_facts import known_facts


def disguised(program: Program, rules: Iterable[Rule]) -> Rule | None:
    """The first of `rules` whose left side the program is."""
    o = program.options
    traced = traced_program(program.made_of, program.specs, program.keywords, o.get("bounds"))
    bindings = (b for block in traced.module.main.blocks for b in block.bindings)
    names = {e.op for e in operators(b.value for b in bindings)}
    possible = [r for r in rules if r.left_operators == names]
    if not possible:
        return None
    with debug.options(sharing=False):
        options = read_options(
            traced, rules=RuleSet("none", []), at=o.get("at"), bounds=o.get("bounds"), weights=o.get("weights", ()),
            facts=o.get("facts"), numerics=o.get("numerics", "reassociate"),
        )  # fmt: skip
    searched = Units(traced.module, options, weight_names(traced, options), record=True).run().recorded
    if len(searched) != 1:  # several functions, or blocks
        return None
    (as_written,) = searched
    used, graph = operators(as_written.written), Graph(as_written.recording, as_written.written)
    results = {graph.class_of[e] for e in as_written.written}
    known = known_facts(as_written.declared_facts.facts, as_written.declared_facts.exact, as_written.scope)
    for rule in possible:
        found = Nearest(graph, rule, as_written.scope, known).find()
        is_match = found is not None and not found.problems and found.root in results
        if is_match and len(used) <= len(operators(found.instance.left)):
            return rule
    return None


def operators(roots: Iterable[Expr]) -> list[Expr]:
    """What is computed, constants aside."""
    return [e for e in postorder(list(roots)) if e.op not in (VAR, CONSTANT)]
