"""The execution plan: what is computed once from the weights, and what at every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CONSTANT, VAR, Expr, node, postorder, tuple_, var
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ops import bytes_of
from relax_eg.shapes import Dim

# Views of a weight that XLA computes in its reader for nothing: keeping a copy would only cost memory. A transpose is
# none of them: how a weight lies in memory is what the layout rules choose.
_VIEWS = frozenset(("reshape", "expand_dims", "squeeze", "broadcast_to"))


@dataclass(frozen=True, slots=True)
class Split:
    """A function in two: `prepare` (of the weights alone; its result is a tuple) and `main`, whose parameters are the
    prepared values, then the weights it still reads, then the other parameters. `kept`: names of those weights."""

    prepare: Function
    main: Function
    kept: tuple[str, ...]


def split(function: Function, weights: set[str]) -> Split:
    """Cut `function` where values of weights alone meet the rest. Values that are only views of a weight stay."""
    static = static_expressions(function, weights)
    cut = _frontier(function, static)
    names = {e: var(f"prepared{i}", e.annotation) for i, e in enumerate(cut)}
    prepare = Function(f"{function.name}_prepare", _chosen(function.params, weights), (), tuple_(cut))

    def replaced(e: Expr) -> Expr:
        return _with(e, names)

    blocks = tuple(
        Block(tuple(Binding(b.var, replaced(b.value)) for b in block.bindings), block.dataflow)
        for block in function.blocks
    )
    result = replaced(function.result)
    used = set(postorder([b.value for block in blocks for b in block.bindings] + [result]))
    kept = tuple(p for p in _chosen(function.params, weights) if p in used)
    others = tuple(p for p in function.params if p.attr("name") not in weights)
    main = Function(function.name, (*names.values(), *kept, *others), blocks, result, function.sources)
    return Split(prepare, main, tuple(str(p.attr("name")) for p in kept))


def static_expressions(function: Function, weights: set[str]) -> set[Expr]:
    """Expressions of `function` that depend on weights, their sizes and constants alone, on at least one weight."""
    chosen = _chosen(function.params, weights)
    known = {v for p in chosen for d in dims_of(p.annotation) for v in d.variables}
    static: set[Expr] = set()
    constant: set[Expr] = set()
    for e in function.expressions():
        if e.op == CONSTANT:
            constant.add(e)
        elif e.op == VAR:
            if e in chosen:
                static.add(e)
        elif not sizes_in((v for _, v in e.attrs), known):
            continue
        elif e.args and all(a in static or a in constant for a in e.args):
            impure = e.op == CALL_DPS_LIBRARY and not e.attr("pure")
            if not impure:
                (static if any(a in static for a in e.args) else constant).add(e)
    return static


def _frontier(function: Function, static: set[Expr]) -> list[Expr]:
    """Static values that others read, views followed to what they show; weights themselves are not listed."""
    found: dict[Expr, None] = {}
    readers = [e for e in function.expressions() if e not in static]
    reads = [a for e in readers for a in e.args if a in static]
    reads += [b.value for block in function.blocks for b in block.bindings if b.value in static]
    reads += [function.result] if function.result in static else []
    for e in reads:
        while e.op in _VIEWS and e.args[0] in static:
            e = e.args[0]
        if e.op != VAR:
            found[e] = None
    return list(found)


def _with(e: Expr, names: dict[Expr, Expr]) -> Expr:
    """`e` with the expressions in `names` replaced; what stands below them is not visited."""
    done: dict[Expr, Expr] = {}
    for x in postorder((e,), stop=names.__contains__):
        if x in names:
            done[x] = names[x]
        elif all(done[a] is a for a in x.args):
            done[x] = x
        else:
            done[x] = node(x.op, tuple(done[a] for a in x.args), x.attrs, x.annotation)
    return done[e]


def prepared_bytes(cut: Iterable[Expr], binding: Mapping[str, int]) -> int:
    """Bytes the prepared values take."""
    return sum(int(bytes_of(e.annotation).evaluate(binding)) for e in cut)


def sizes_in(values: Iterable[object], known: set[str]) -> bool:
    """Whether all sizes inside attribute values are made of the size variables `known`."""
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, Dim):
            if not value.variables <= known:
                return False
        elif isinstance(value, tuple):
            stack.extend(value)  # type: ignore[reportUnknownArgumentType]
        elif isinstance(value, Annotation):
            stack.extend(dims_of(value))
    return True


def _chosen(params: Sequence[Expr], names: set[str]) -> tuple[Expr, ...]:
    return tuple(p for p in params if p.attr("name") in names)
