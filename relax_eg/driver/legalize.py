"""`legalize`: turns the operators of a module into calls of tensor programs, like Relax's LegalizeOps.

The rules of `rules.legalization` put the call beside the operator in the e-graph of each dataflow block; extraction
takes calls wherever there are any. An operator that can be computed with less work than its equations take (a running
sum, a slice at a computed place) stays, and so does what no rule covers: library calls, control flow.
"""

from __future__ import annotations

from dataclasses import replace

from relax_eg import rules as books
from relax_eg.argument_checks import accepts, of_types
from relax_eg.egraph import Budget, EGraph, dump
from relax_eg.extract.selection.select import select
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.scopes import scopes_of
from relax_eg.ops import get
from relax_eg.rules import RuleSet
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Scope

_CALLED = 1e-6  # chosen: price of a call, as a share of the price of the operator it replaces


@accepts(module=of_types("a Module", Module), rules=of_types("a RuleSet", RuleSet))
def legalize(module: Module, rules: RuleSet = books.legalization) -> Module:
    """`module` with every operator for which `rules` have a tensor program replaced by a call of it. `rules` may
    contain the caller's own schemas; for each operator the first schema that proposes something wins."""
    scopes = scopes_of(module, Scope())
    known = ModuleAnswers({f.name: f for f in module})
    made = [_legalized(f, scopes[f.name], rules, known) for f in module]
    return Module((*made, *(f for name, f in known.functions.items() if name not in scopes)))


def _legalized(function: Function, scopes: list[Scope], rules: RuleSet, known: ModuleAnswers) -> Function:
    blocks: list[Block] = []
    for block, scope in zip(function.blocks, scopes, strict=True):
        if not block.dataflow or not block.bindings:
            blocks.append(block)
            continue
        roots = block.values
        with EGraph(roots, rules, scope, _proposed(roots, rules, known)) as egraph:
            egraph.saturate(Budget())
            read = dump(egraph)
        costs = [[_price(c.site.op) for c in row] for row in read.graph.candidates]
        blocks.append(block.with_values(read.decode(select(read.graph, costs).choice)))
    return replace(function, blocks=tuple(blocks))


def _price(op: str) -> float:
    """The price of a node: 1 for an operator that should be a call, nearly 0 for a call, 0 for an operator that is
    computed with less work than its equations take."""
    if op not in CORE:
        return 0.0 if get(op).cost is not None else 1.0
    return _CALLED


def _proposed(roots: list[Expr], rules: RuleSet, known: ModuleAnswers) -> list[tuple[Expr, Expr, str]]:
    """The proposals of schemas for single operators: (node, equal expression, rule)."""
    found: list[tuple[Expr, Expr, str]] = []
    for e in postorder(roots):
        for schema in rules.schemas:
            if e.op in schema.operators and (proposed := schema.proposals(e, known)):
                found.append((e, proposed[0], schema.name))
                break
    return found
