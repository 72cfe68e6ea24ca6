"""Functions with other sizes in place of their size variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from relax_eg.ir.annotations import substitute
from relax_eg.ir.calls import signature
from relax_eg.ir.expr import CONSTANT, FUNCTION, Expr, node, postorder
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ops.libraries import with_sizes_of
from relax_eg.shapes import Dim


def resized(f: Function, sizes: dict[str, Dim], functions: Mapping[str, Function]) -> Function:
    """Returns `f` with `sizes` in place of the size variables that are keys; what it assumes stays. O(expressions).

    `functions`: the functions that have new signatures.
    """
    lines = [e for b in f.bindings for e in (b.var, b.value)]
    new = resized_exprs([*f.params, *lines, f.result], sizes, functions)
    blocks = tuple(Block(tuple(Binding(new[b.var], new[b.value]) for b in x.bindings), x.dataflow) for x in f.blocks)
    origins = MappingProxyType({new.get(e, e): origin for e, origin in f.origins.items()})
    return replace(f, params=tuple(new[p] for p in f.params), blocks=blocks, result=new[f.result], origins=origins)


def resized_exprs(roots: Sequence[Expr], sizes: dict[str, Dim], functions: Mapping[str, Function]) -> dict[Expr, Expr]:
    """Maps each expression in `roots` to what replaces it, as in `resized`."""
    done: dict[Expr, Expr] = {}
    for e in postorder(roots):
        if e.op == CONSTANT:
            done[e] = e
            continue
        annotation = substitute(e.annotation, sizes)
        if e.op == FUNCTION and e.attr("name") in functions:
            annotation = signature(functions[e.attr("name")])
        attrs = [(k, with_sizes_of(v, sizes)) for k, v in e.attrs]
        done[e] = node(e.op, tuple(done[a] for a in e.args), attrs, annotation)
    return done
