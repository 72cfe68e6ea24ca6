"""Replaces sizes that bounds fix, as `bounds={"b": 1}` does, by numbers before a program is searched.

Then parameters, attributes and results express such a size in one way, and a rule that asks for size 1 finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relax_eg.ir.annotations import Annotation, substitute
from relax_eg.ir.calls import callees_first
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ir.scopes import scopes_of
from relax_eg.ops.resized import resized, resized_exprs
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import read_statement


def with_fixed_sizes(module: Module, scope: Scope) -> Module:
    """`module` with fixed sizes as numbers, also in its parameters. O(expressions).

    `scope`: the bounds and statements about the entry's sizes. A module with steps, whose casts bind sizes, is returned
    as it is.
    """
    if all(block.dataflow for f in module for block in f.blocks):
        known = {name: _fixed_sizes(scopes[0]) for name, scopes in scopes_of(module, scope).items() if scopes}
        if any(known.values()):
            made: dict[str, Function] = {}
            for f in callees_first(module):
                made[f.name] = _substituted_function(f, known.get(f.name, {}), made)
            return Module(tuple(made[f.name] for f in module))
    return module


def at_sizes(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """`e` with these sizes as numbers."""
    return resized_exprs([e], {v: Dim.of(n) for v, n in sizes.items()}, {})[e]


def remaining_statements(scope: Scope, function: Function) -> tuple[str, ...]:
    """The statements of `scope` about the sizes that the function still has, with fixed sizes as numbers."""
    names = {*function.size_variables, *function.cast_variables}
    sizes = {v: d for v, d in _fixed_sizes(scope).items() if v not in names}
    statements = [text for s in scope.statements for text in _assumed(s, sizes)]
    # Statements about sizes that the function does not have are dropped; a size without statements is at least 1
    # (`Scope`).
    return tuple(s for s in statements if all(r.variables <= names for r in read_statement(s)))


def with_numbers(params: Sequence[Expr], result: Annotation, scope: Scope) -> tuple[tuple[Expr, ...], Annotation]:
    """The parameters and result of an entry, changed as `with_fixed_sizes` changes them."""
    sizes = _fixed_sizes(scope)
    return tuple(resized_exprs(params, sizes, {}).values()), substitute(result, sizes)


def _fixed_sizes(scope: Scope) -> dict[str, Dim]:
    return {v: d for v, d in scope.determined_variables().items() if d.is_const}


def _substituted_function(f: Function, sizes: dict[str, Dim], functions: Mapping[str, Function]) -> Function:
    assume = tuple(text for s in f.assume for text in _assumed(s, sizes))
    return replace(resized(f, sizes, functions), assume=assume)


def _assumed(statement: str, sizes: Mapping[str, Dim]) -> list[str]:
    """A statement restricted to the sizes that are left; unchanged if it mentions no fixed size."""
    relations = read_statement(statement)
    if not any(r.variables & sizes.keys() for r in relations):
        return [statement]
    moved = [(r.left.substitute(sizes), r.op, r.right.substitute(sizes)) for r in relations]
    # Statements about numbers hold; otherwise no sizes at all would satisfy the scope.
    return [f"{left} {op} {right}" for left, op, right in moved if not (left.is_const and right.is_const)]
