"""From a graph with effects in order to a function of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from relax_eg.ir.expr import CONSTANT, FUNCTION, SHAPE, VAR, Expr, node, postorder, tuple_
from relax_eg.ir.expr import var as variable
from relax_eg.ir.module import Binding, Block, Function

if TYPE_CHECKING:
    from relax_eg.frontends.jax.walk import Walk


def make_function(
    name: str, params: Sequence[Expr], walk: Walk, outputs: Sequence[Expr], single: bool = True
) -> Function:
    """The function that computes `outputs`, the walk's effectful steps done in their order on the way. It returns a
    tuple of them; with `single` an only output itself.

    What is pure is computed in the last dataflow block before the first step that needs it; such a block binds what
    later blocks need of it.
    """
    roots = [[a for a in call.args if not _atomic(a)] for _, call in walk.steps] + [list(outputs)]
    exported = _exported(roots)
    named: dict[Expr, Expr] = {}
    sources = dict(walk.sources)
    blocks: list[Block] = []
    for i, wanted in enumerate(exported):
        new = _renamed(wanted, named, sources)
        bindings: list[Binding] = []
        for old, value in zip(wanted, new, strict=True):
            bound = variable(walk.fresh("gv"), old.annotation)
            bindings.append(Binding(bound, value))
            named[old] = bound
        if bindings:
            blocks.append(Block(tuple(bindings)))
        if i < len(walk.steps):
            result, call = walk.steps[i]
            (step,) = _renamed([call], named, sources)
            blocks.append(Block((Binding(result, step),), dataflow=False))
    # Outputs that are arguments, constants or results of steps are bound as well.
    bindings = list(blocks.pop().bindings) if blocks and blocks[-1].dataflow else []
    results: list[Expr] = []
    for output in outputs:
        if output not in named:
            named[output] = variable(walk.fresh("gv"), output.annotation)
            bindings.append(Binding(named[output], output))
        results.append(named[output])
    if bindings:
        blocks.append(Block(tuple(bindings)))
    result = results[0] if single and len(results) == 1 else tuple_(results)
    return Function(name, tuple(params), tuple(blocks), result, MappingProxyType(sources))


def _atomic(e: Expr) -> bool:
    return e.op in (VAR, CONSTANT, FUNCTION, SHAPE)


def _exported(roots: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
    """For each segment what it must bind: its roots, and what later segments use of what it computes."""
    owner: dict[Expr, int] = {}
    exported: list[dict[Expr, None]] = [{} for _ in roots]
    for i, wanted in enumerate(roots):
        for e in postorder(wanted, stop=lambda e: e in owner):
            if _atomic(e):
                continue
            if owner.setdefault(e, i) < i:
                exported[owner[e]][e] = None
        for e in wanted:
            if not _atomic(e):
                exported[owner[e]][e] = None
    return [list(e) for e in exported]


def _renamed(roots: Sequence[Expr], named: dict[Expr, Expr], sources: dict[Expr, str]) -> list[Expr]:
    """`roots` with what earlier blocks bind replaced by its variable."""
    done: dict[Expr, Expr] = dict(named)
    for e in postorder(roots, stop=lambda e: e in named):
        if e in done:
            continue
        args = tuple(done[a] for a in e.args)
        done[e] = e if args == e.args else node(e.op, args, e.attrs, e.annotation)
        if e in sources:
            sources.setdefault(done[e], sources[e])
    return [done[r] for r in roots]
