"""Translates JAX's control flow to nodes that run functions of the module.

A body, branch or condition becomes a function named after its role. Its first parameter is the sizes that its other
parameters do not determine (Relax, Fig. 8), if any; then come the parameters of the JAX function. Equal bodies share
one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from relax_eg.errors import RelaxEgError
from relax_eg.frontends.blocks import make_function
from relax_eg.frontends.symbolic import to_dim
from relax_eg.ir.annotations import Shape, Tensor, Tuple
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import cond, scan, while_loop
from relax_eg.ir.expr import SHARD_MAP, Expr, fresh_name, node, shape_value, var
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.shapes import Dim

if TYPE_CHECKING:
    from relax_eg.frontends.jax.walk import Line, Walk


@dataclass
class TracedFunctions:
    """The functions that one trace adds to the module of the traced function; equal functions are added once.

    - `names`: the names in use.
    - `added`: the functions in order.
    """

    names: set[str]
    added: list[Function] = field(default_factory=list[Function])
    _known: dict[Any, Function] = field(default_factory=dict[Any, Function])

    def add(self, stem: str, function: Function) -> Function:
        """Adds `function` under a new name, or returns the equal function that was added before."""
        key = (stem, function.params, function.blocks, function.result)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = replace(function, name=fresh_name(stem, self.names))
            self.added.append(found)
        return found

    def mark(self) -> int:
        return len(self.added)

    def back_to(self, mark: int) -> None:
        """Removes the functions that were added since `mark`."""
        gone = {f.name for f in self.added[mark:]}
        del self.added[mark:]
        self.names -= gone
        self._known = {k: f for k, f in self._known.items() if f.name not in gone}


def control(walk: Walk, eqn: Any, operands: Sequence[Expr], line: Line) -> Expr | None:
    """The node for an equation of control flow; its value is a tuple. None for other equations, for operands that are
    no arrays (references, tokens), and if the annotations of the equation's functions do not fit each other."""
    builder = _BUILDERS.get(eqn.primitive.name)
    if builder is None or not all(isinstance(o.annotation, Tensor) for o in operands):
        return None
    before = walk.functions.mark()
    try:
        return builder(walk, eqn, list(operands), line)
    except RelaxEgError:  # the annotations of its functions do not agree in form
        walk.functions.back_to(before)
        return None


def _function(walk: Walk, closed: Any, line: Line, single: bool = False) -> Function:
    """A jaxpr, closed or not, as a function that returns a tuple; with `single`, it returns an only result itself."""
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    inner = walk.child(len(jaxpr.invars))
    params = [var(f"x{i}", inner.annotation_of(v.aval)) for i, v in enumerate(jaxpr.invars)]
    outputs = inner.run(jaxpr, [inner.constant(c) for c in consts], params, line)
    return make_function("body", params, inner.steps, outputs, inner.origins, inner.taken, single)


def bodies(
    added: TracedFunctions, stem: str, functions: Sequence[Function], hidden: Sequence[str] = ()
) -> tuple[list[Expr], tuple[Expr, ...]]:
    """The functions, added to the module, as values, and the operand that all of them take first: the sizes that any of
    them needs. The operands are empty if none needs a size.

    `hidden`: the variables assumed used by each attribute that does not show its sizes."""
    names = {v for f in functions for v in missing_sizes(f, hidden)}
    sizes = tuple(Dim.var(v) for v in sorted(names))
    first = (var("sizes", Shape(sizes)),) if sizes else ()
    made = [added.add(stem, replace(f, params=(*first, *f.params))) for f in functions]
    return [function_ref(f) for f in made], (shape_value(sizes),) if sizes else ()


def _bodies(walk: Walk, stem: str, functions: Sequence[Function]) -> tuple[list[Expr], tuple[Expr, ...]]:
    return bodies(walk.functions, stem, functions, walk.size_names)


def _cond(walk: Walk, eqn: Any, operands: list[Expr], line: Line) -> Expr:
    branches, sizes = _bodies(walk, "branch", [_function(walk, b, line) for b in eqn.params["branches"]])
    return cond(operands[0], branches, (*sizes, *operands[1:]))


def _while(walk: Walk, eqn: Any, operands: list[Expr], line: Line) -> Expr:
    n, m = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    (condition,), first = _bodies(walk, "condition", [_function(walk, eqn.params["cond_jaxpr"], line, single=True)])
    (body,), second = _bodies(walk, "body", [_function(walk, eqn.params["body_jaxpr"], line)])
    constants = operands[n : n + m]
    return while_loop(condition, body, (*first, *operands[:n]), (*second, *constants), operands[n + m :])


def _scan(walk: Walk, eqn: Any, operands: list[Expr], line: Line) -> Expr:
    n, m = eqn.params["num_consts"], eqn.params["num_carry"]
    (body,), sizes = _bodies(walk, "body", [_function(walk, eqn.params["jaxpr"], line)])
    return scan(
        body,
        (*sizes, *operands[:n]),
        operands[n : n + m],
        operands[n + m :],
        length=to_dim(eqn.params["length"]),
        reverse=bool(eqn.params["reverse"]),
        unroll=int(eqn.params["unroll"]),
    )


def _shard_map(walk: Walk, eqn: Any, operands: list[Expr], line: Line) -> Expr:
    (body,), sizes = _bodies(walk, "shard", [_function(walk, eqn.params["jaxpr"], line)])
    out = Tuple(tuple(walk.annotation_of(v.aval) for v in eqn.outvars))
    attrs = {
        "mesh": Foreign(eqn.params["mesh"]),
        "in_specs": Foreign(tuple(eqn.params["in_specs"])),
        "out_specs": Foreign(tuple(eqn.params["out_specs"])),
        "manual_axes": Foreign(eqn.params["newly_manual_axes"]),
        "check_vma": bool(eqn.params["check_vma"]),
        "out": out,
    }
    return node(SHARD_MAP, (body, *sizes, *operands), attrs.items(), out)


_BUILDERS: dict[str, Callable[[Any, Any, list[Expr], Line], Expr]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "shard_map": _shard_map,
}
