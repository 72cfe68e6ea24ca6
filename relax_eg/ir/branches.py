"""`if` in module text: each branch becomes a module function, and the statement a `cond` over both.

Both functions take the variables that either branch reads from outside. If some sizes cannot be derived from these, a
shape with those sizes is the first parameter (Relax, Fig. 8). Each function returns the names that both branches bind;
a name bound in only one branch is local to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Shape, has_functions
from relax_eg.ir.calls import NO_FUNCTIONS, function_ref
from relax_eg.ir.control import cond
from relax_eg.ir.expr import VAR, Expr, postorder, shape_value, tuple_, tuple_get, var
from relax_eg.ir.lattice import annotation_clash
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ir.origin import Origins
from relax_eg.ir.partition import missing_sizes


@dataclass(frozen=True)
class Branch:
    """A branch as read from text.

    - `blocks`: the body of the branch.
    - `names`: the value of each name that the branch binds, after the branch.
    - `origins`: the origins of its expressions.
    """

    blocks: tuple[Block, ...]
    names: Mapping[str, Expr]
    origins: Origins

    @property
    def bound(self) -> list[Expr]:
        return [b.var for block in self.blocks for b in block.bindings]


def conditional(
    condition: Expr, then: Branch, other: Branch, names: tuple[str, str]
) -> tuple[tuple[Function, Function], Expr, list[str]]:
    """Returns both branch functions, the `cond` over them, and the names of the fields of its value.

    OperatorError if the branches give a name values that no common annotation fits, or a function.
    """
    results = [name for name in then.names if name in other.names]
    for name in results:
        one, two = then.names[name].annotation, other.names[name].annotation
        if why := annotation_clash(one, two):
            raise OperatorError(f"`{name}` is {one} in one branch and {two} in the other: {why}")
        if has_functions(one) or has_functions(two):
            raise OperatorError(f"`{name}` is a function, which no branch can give\n  accepted: {NO_FUNCTIONS}")
    bodies = [(b, tuple_(b.names[n] for n in results)) for b in (then, other)]
    reads: dict[Expr, None] = {}
    for branch, result in bodies:
        values = [b.value for block in branch.blocks for b in block.bindings]
        bound = set(branch.bound)
        reads.update((e, None) for e in postorder([*values, result]) if e.op == VAR and e not in bound)
    functions = [
        Function(name, tuple(reads), branch.blocks, result, branch.origins)
        for name, (branch, result) in zip(names, bodies, strict=True)
    ]
    sizes = sorted({v for f in functions for v in missing_sizes(f) - set(f.cast_variables)})
    operands = list(reads)
    if sizes:
        taken = {str(e.attr("name")) for e in (*reads, *then.bound, *other.bound)}
        name = next(n for n in ("sizes" + "_" * k for k in range(len(taken) + 1)) if n not in taken)
        params = (var(name, Shape(sizes)), *reads)
        functions = [Function(f.name, params, f.blocks, f.result, f.origins) for f in functions]
        operands.insert(0, shape_value(sizes))
    chosen, otherwise = functions
    value = cond(condition, [function_ref(otherwise), function_ref(chosen)], operands)
    return (chosen, otherwise), value, results


def join_branches(name: str, value: Expr, results: Sequence[str]) -> list[Binding]:
    """Returns the bindings after a `cond`: its value under `name`, then each of its fields under a name of
    `results`."""
    whole = var(name, value.annotation)
    fields = [tuple_get(whole, i) for i in range(len(results))]
    return [Binding(whole, value), *(Binding(var(n, f.annotation), f) for n, f in zip(results, fields, strict=True))]
