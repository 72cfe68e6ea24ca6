"""Translates JAX's control flow to nodes that run functions of the module.

A body, branch or condition becomes a function named after its role. Its first parameter is the sizes that its other
parameters do not determine (Relax, Fig. 8), if any; then come the parameters of the JAX function. Equal bodies share
one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from relax_eg.errors import RelaxEgError
from relax_eg.frontends.symbolic import SymbolicSizes, to_dim
from relax_eg.ir.annotations import Shape, Tensor, Tuple
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import cond, scan, while_loop
from relax_eg.ir.expr import SHARD_MAP, Expr, fresh_name, node, shape_value, var
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.shapes import Dim


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


@dataclass(frozen=True)
class Bodies:
    """The functions that an equation of control flow runs, as values of the module.

    - `added`: the functions that the trace adds.
    - `sizes`: the symbolic sizes of the trace.
    - `trace`: makes a function of a jaxpr, closed or not, that returns a tuple; if the flag is set, one that returns an
      only result itself.
    """

    added: TracedFunctions
    sizes: SymbolicSizes
    trace: Callable[[Any, bool], Function]

    def of(self, stem: str, *jaxprs: Any, single: bool = False) -> tuple[list[Expr], tuple[Expr, ...]]:
        """The functions of jaxprs as values, and the operand that all of them take first (`bodies`)."""
        return bodies(self.added, stem, [self.trace(j, single) for j in jaxprs], self.sizes.names)


def control(eqn: Any, operands: Sequence[Expr], out: Tuple, functions: Bodies) -> Expr | None:
    """The node for an equation of control flow with results `out`; its value is a tuple. None for other equations, for
    operands that are no arrays (references, tokens), and if the annotations of the equation's functions do not fit each
    other."""
    builder = _BUILDERS.get(eqn.primitive.name)
    if builder is None or not all(isinstance(o.annotation, Tensor) for o in operands):
        return None
    before = functions.added.mark()
    try:
        return builder(eqn.params, list(operands), out, functions)
    except RelaxEgError:  # the annotations of its functions do not agree in form
        functions.added.back_to(before)
        return None


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


def _cond(params: Any, operands: list[Expr], out: Tuple, functions: Bodies) -> Expr:
    branches, sizes = functions.of("branch", *params["branches"])
    return cond(operands[0], branches, (*sizes, *operands[1:]))


def _while(params: Any, operands: list[Expr], out: Tuple, functions: Bodies) -> Expr:
    n, m = params["cond_nconsts"], params["body_nconsts"]
    (condition,), first = functions.of("condition", params["cond_jaxpr"], single=True)
    (body,), second = functions.of("body", params["body_jaxpr"])
    constants = operands[n : n + m]
    return while_loop(condition, body, (*first, *operands[:n]), (*second, *constants), operands[n + m :])


def _scan(params: Any, operands: list[Expr], out: Tuple, functions: Bodies) -> Expr:
    n, m = params["num_consts"], params["num_carry"]
    (body,), sizes = functions.of("body", params["jaxpr"])
    return scan(
        body,
        (*sizes, *operands[:n]),
        operands[n : n + m],
        operands[n + m :],
        length=to_dim(params["length"]),
        reverse=bool(params["reverse"]),
        unroll=int(params["unroll"]),
    )


def _shard_map(params: Any, operands: list[Expr], out: Tuple, functions: Bodies) -> Expr:
    (body,), sizes = functions.of("shard", params["jaxpr"])
    attrs = {
        "mesh": Foreign(params["mesh"]),
        "in_specs": Foreign(tuple(params["in_specs"])),
        "out_specs": Foreign(tuple(params["out_specs"])),
        "manual_axes": Foreign(params["newly_manual_axes"]),
        "check_vma": bool(params["check_vma"]),
        "out": out,
    }
    return node(SHARD_MAP, (body, *sizes, *operands), attrs.items(), out)


_BUILDERS: dict[str, Callable[[Any, list[Expr], Tuple, Bodies], Expr]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "shard_map": _shard_map,
}
