"""Turns a graph with ordered effects into a function of dataflow blocks and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, fresh_name, postorder, tuple_
from relax_eg.ir.expr import var as variable
from relax_eg.ir.heads import LEAVES
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ir.origin import Origin


def make_function(
    name: str,
    params: Sequence[Expr],
    steps: Sequence[tuple[Expr, Expr]],
    outputs: Sequence[Expr],
    origins: Mapping[Expr, Origin],
    taken: set[str],
    single: bool = True,
) -> Function:
    """Returns the function that runs effectful steps in order and computes `outputs`.

    - `steps`: the variable of the result of each step, and its call.
    - `origins`: the user's line of each expression.
    - `taken`: the names of variables in use. Those of new variables are added.

    The function returns a tuple of the outputs; with `single`, it returns a single output itself. A pure expression is
    computed in the last dataflow block before the first step that needs it. Each block binds the values that later
    blocks need.
    """
    roots = [[a for a in call.args if not _is_leaf(a)] for _, call in steps] + [list(outputs)]
    exported = _exported_values(roots)
    named: dict[Expr, Expr] = {}
    origins = dict(origins)
    blocks: list[Block] = []
    for i, wanted in enumerate(exported):
        new = substitute_exprs(wanted, named, origins)
        bindings: list[Binding] = []
        for old, value in zip(wanted, new, strict=True):
            bound = variable(fresh_name("gv", taken), old.annotation)
            bindings.append(Binding(bound, value))
            named[old] = bound
        if bindings:
            blocks.append(Block(tuple(bindings)))
        if i < len(steps):
            result, call = steps[i]
            (step,) = substitute_exprs([call], named, origins)
            blocks.append(Block((Binding(result, step),), dataflow=False))
    # Outputs that are arguments, constants or results of steps also get a binding.
    bindings = list(blocks.pop().bindings) if blocks and blocks[-1].dataflow else []
    results: list[Expr] = []
    for output in outputs:
        if output not in named:
            named[output] = variable(fresh_name("gv", taken), output.annotation)
            bindings.append(Binding(named[output], output))
        results.append(named[output])
    if bindings:
        blocks.append(Block(tuple(bindings)))
    result = results[0] if single and len(results) == 1 else tuple_(results)
    return Function(name, tuple(params), tuple(blocks), result, MappingProxyType(origins))


def _is_leaf(e: Expr) -> bool:
    return e.op in LEAVES


def _exported_values(roots: Sequence[Sequence[Expr]]) -> list[list[Expr]]:
    """Returns, for each segment, the expressions that it must bind: its roots, and those that later segments use."""
    owner: dict[Expr, int] = {}
    exported: list[dict[Expr, None]] = [{} for _ in roots]
    for i, wanted in enumerate(roots):
        for e in postorder(wanted, stop=lambda e: e in owner):
            if _is_leaf(e):
                continue
            if owner.setdefault(e, i) < i:
                exported[owner[e]][e] = None
        for e in wanted:
            if not _is_leaf(e):
                exported[owner[e]][e] = None
    return [list(e) for e in exported]
