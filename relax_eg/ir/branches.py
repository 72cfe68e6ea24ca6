"""`if` and `match` in module text: each branch becomes a module function, and the statement a `cond` or `match` over
them.

All functions take the variables that any branch reads from outside. If some sizes cannot be derived from these, a shape
with those sizes is the first parameter (Relax, Fig. 8). A function of a `match` takes the fields of its constructor
after them. Each function returns the names that all branches bind; other names are local to their branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.ir.annotations import Data, Shape
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import cond, match
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
    - `fields`: the variables of the fields of its constructor, in a `match`.
    """

    blocks: tuple[Block, ...]
    names: Mapping[str, Expr]
    origins: Origins
    fields: tuple[Expr, ...] = ()

    @property
    def bound(self) -> list[Expr]:
        return [*self.fields, *(b.var for block in self.blocks for b in block.bindings)]


def clashes(branches: Sequence[Branch]) -> dict[str, str]:
    """Returns the names that all branches bind, but to values that no common annotation fits, each with the reason."""
    found: dict[str, str] = {}
    for name, value in branches[0].names.items():
        for other in branches[1:]:
            if name in other.names:
                one, two = value.annotation, other.names[name].annotation
                if why := annotation_clash(one, two):
                    found.setdefault(name, f"{one} in one branch and {two} in the other: {why}")
    return found


def choose(value: Expr, branches: Sequence[Branch], names: Sequence[str]) -> tuple[list[Function], Expr, list[str]]:
    """Returns the branch functions, the node over them, and the names of the fields of its value: those that all
    branches bind to values that a common annotation fits.

    - `value`: a bool, whose branches are those of true and of false; or data, with a branch for each constructor.
    """
    apart = clashes(branches)
    results = [name for name in branches[0].names if all(name in b.names for b in branches) and name not in apart]
    bodies = [(b, tuple_(b.names[n] for n in results)) for b in branches]
    reads: dict[Expr, None] = {}
    for branch, result in bodies:
        values = [b.value for block in branch.blocks for b in block.bindings]
        bound = set(branch.bound)
        reads.update((e, None) for e in postorder([*values, result]) if e.op == VAR and e not in bound)
    functions = [
        Function(name, (*reads, *branch.fields), branch.blocks, result, branch.origins)
        for name, (branch, result) in zip(names, bodies, strict=True)
    ]
    sizes = sorted({v for f in functions for v in missing_sizes(f) - set(f.cast_variables)})
    operands = list(reads)
    if sizes:
        taken = {str(e.attr("name")) for e in (*reads, *(v for b in branches for v in b.bound))}
        name = next(n for n in ("sizes" + "_" * k for k in range(len(taken) + 1)) if n not in taken)
        functions = [replace(f, params=(var(name, Shape(sizes)), *f.params)) for f in functions]
        operands.insert(0, shape_value(sizes))
    references = list(map(function_ref, functions))
    if isinstance(value.annotation, Data):
        return functions, match(value, references, operands), results
    return functions, cond(value, references[::-1], operands), results


def join_branches(name: str, value: Expr, results: Sequence[str]) -> list[Binding]:
    """Returns the bindings after a node of branches: its value under `name`, then each of its fields under a name of
    `results`."""
    whole = var(name, value.annotation)
    fields = [tuple_get(whole, i) for i in range(len(results))]
    return [Binding(whole, value), *(Binding(var(n, f.annotation), f) for n, f in zip(results, fields, strict=True))]
