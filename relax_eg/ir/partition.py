"""Splits a function in two: the values that depend on chosen parameters (weights) alone, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from relax_eg.ir.annotations import Annotation, Shape, dims_of
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.data import sizes_in_data
from relax_eg.ir.expr import CONSTANT, FUNCTION, VAR, Expr, fresh_name, match_cast, postorder, tuple_, var
from relax_eg.ir.foreign import Foreign
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ir.origin import Origins
from relax_eg.shapes import Dim
from relax_eg.traversal import leaves

# View operators that XLA fuses into the reader at no cost; storing a copy would only use memory. A transpose is not
# listed, because the layout rules choose a weight's memory layout.
_VIEWS = frozenset(("reshape", "expand_dims", "squeeze", "broadcast_to"))


@dataclass(frozen=True, slots=True)
class Split:
    """A function split in two.

    - `prepare`: the function of the weights alone; its result is a tuple.
    - `main`: the rest of the function. Its parameters are the prepared values, then the weights it still reads, then
      the other parameters.
    - `kept`: names of the weights that `main` still reads, and of shape parameters among them.
    """

    prepare: Function
    main: Function
    kept: tuple[str, ...]


def split(function: Function, weights: set[str]) -> Split:
    """Splits `function` into the values that depend on weights alone and the rest. Values that are only views of a
    weight stay in `main`."""
    static = static_expressions(function, weights)
    cut = frontier(function, static)
    names = {e: var(f"prepared{i}", e.annotation) for i, e in enumerate(cut)}
    prepare = Function(f"{function.name}_prepare", _params_named(function.params, weights), (), tuple_(cut))

    blocks, result = replace_names(function, names)
    used = set(postorder([b.value for block in blocks for b in block.bindings] + [result]))
    kept = tuple(p for p in _params_named(function.params, weights) if p in used or isinstance(p.annotation, Shape))
    others = tuple(p for p in function.params if p.attr("name") not in weights)
    origins = remaining_origins(function, names)
    main = Function(function.name, (*names.values(), *kept, *others), blocks, result, origins)
    return Split(prepare, main, tuple(str(p.attr("name")) for p in kept))


def replace_names(function: Function, names: Mapping[Expr, Expr]) -> tuple[tuple[Block, ...], Expr]:
    """Returns blocks and result of `function` with the expressions in `names` replaced."""
    values = function.values
    *new, result = substitute_exprs([*values, function.result], names)
    made = iter(new)
    blocks = [Block(tuple(Binding(b.var, next(made)) for b in k.bindings), k.dataflow) for k in function.blocks]
    return tuple(blocks), result


def remaining_origins(function: Function, names: Mapping[Expr, Expr]) -> Origins:
    """Returns the origins of the expressions that remain when those in `names` are replaced."""
    known = [e for e in function.expressions() if e in function.origins]
    made = zip(substitute_exprs(known, names), known, strict=True)
    return MappingProxyType({new: function.origins[old] for new, old in made if old not in names})


def missing_sizes(function: Function, hidden: Iterable[str] = ()) -> set[str]:
    """Returns the size variables used in a function that are not by themselves an axis of a parameter.

    `hidden`: the variables assumed used by each attribute that does not show its sizes.
    """
    used: set[str] = set()
    for e in [*function.params, *function.expressions()]:
        used |= {v for d in dims_of(e.annotation) for v in d.variables}
        for _, value in e.attrs:
            used |= _variables_in(value, hidden)
    return used - {str(d) for p in function.params for d in dims_of(p.annotation) if str(d) in d.variables}


def casts_of_data(
    params: Sequence[Expr], blocks: Iterable[Block], result: Expr, inside: set[str], taken: set[str]
) -> tuple[Block, ...]:
    """Returns the block of `match_cast`s of parameters by which a function takes sizes from tensors inside of data, if
    it needs any that nothing else tells.

    - `inside`: the sizes that only such tensors tell.
    - `taken`: names that are used; those that are made are added.
    """
    if not inside:
        return ()
    whole = Function("whole", tuple(params), tuple(blocks), result)
    needed = (missing_sizes(whole) & inside) - {*whole.cast_variables}
    found: list[Binding] = []
    for p in params:
        if told := needed & sizes_in_data(p.annotation):
            name = fresh_name(f"{p.attr('name')}_sized", taken)
            found.append(Binding(var(name, p.annotation), match_cast(p, p.annotation)))
            needed -= told
    return (Block(tuple(found), dataflow=False),) if found else ()


def _variables_in(value: object, hidden: Iterable[str]) -> set[str]:
    if isinstance(value, Dim):
        return set(value.variables)
    if isinstance(value, Annotation):
        return {v for d in dims_of(value) for v in d.variables}
    if isinstance(value, tuple):
        return {v for item in value for v in _variables_in(item, hidden)}  # type: ignore[reportUnknownVariableType]
    return set(hidden) if _hides_sizes(value) else set()


def _hides_sizes(value: object) -> bool:
    return isinstance(value, Foreign) and hasattr(value.value, "at_sizes")


def static_expressions(function: Function, weights: set[str]) -> set[Expr]:
    """Returns the expressions that depend only on weights, their sizes and constants, and on at least one weight."""
    chosen = _params_named(function.params, weights)
    known = {v for p in chosen for d in dims_of(p.annotation) for v in d.variables}
    static: set[Expr] = set()
    constant: set[Expr] = set()
    steps = {b.value for b in function.steps}
    for e in function.expressions():
        if e.op in (CONSTANT, FUNCTION):
            constant.add(e)
        elif e.op == VAR:
            if e in chosen:
                static.add(e)
        elif e in steps or not has_only_sizes((v for _, v in e.attrs), known):
            continue
        elif e.args and all(a in static or a in constant for a in e.args):
            (static if any(a in static for a in e.args) else constant).add(e)
    return static


def frontier(function: Function, static: set[Expr]) -> list[Expr]:
    """Returns the static values that the rest reads, without weights. A view is replaced by the value it shows."""
    found: dict[Expr, None] = {}
    readers = [e for e in function.expressions() if e not in static]
    reads = [a for e in readers for a in e.args if a in static]
    reads += [b.value for b in function.bindings if b.value in static]
    reads += [function.result] if function.result in static else []
    for e in reads:
        while e.op in _VIEWS and e.args[0] in static:
            e = e.args[0]
        if e.op != VAR:
            found[e] = None
    return list(found)


def has_only_sizes(values: Iterable[object], known: set[str]) -> bool:
    """Whether all sizes inside attribute values use only the size variables `known`."""

    def parts(value: Any) -> Sequence[Any] | None:
        return dims_of(value) if isinstance(value, Annotation) else value if isinstance(value, tuple) else None

    found = leaves(tuple(values), parts)
    return all(x.variables <= known if isinstance(x, Dim) else not _hides_sizes(x) for x in found)


def _params_named(params: Sequence[Expr], names: set[str]) -> tuple[Expr, ...]:
    return tuple(p for p in params if p.attr("name") in names)
