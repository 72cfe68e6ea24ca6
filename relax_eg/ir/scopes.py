"""What is known of sizes where: in each function of a module, and after each of its `match_cast`s.

The entry's scope holds what its signature, declared bounds and assumptions say; calls are checked against it. A size
variable of another function is its own, whatever its name: it is known to be what the call sites make it, so an
assumption of the entry holds there only if every site passes the very variables it is about. What a `match_cast`
asserts holds after it, in its own function: never before it, in a caller, or in another branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relax_eg.errors import BoundsError
from relax_eg.ir.annotations import Annotation, Tensor, paired_dims
from relax_eg.ir.calls import call_sizes, callees_first
from relax_eg.ir.control import parts
from relax_eg.ir.expr import CALL, CONTROL, FUNCTION, MATCH_CAST, SHARD_MAP, WHILE, Expr
from relax_eg.ir.module import Function, Module
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import read_statement

_CALLED = "the calls of the function"


def scopes_of(module: Module, scope: Scope) -> dict[str, list[Scope]]:
    """For each function, by name, what is known of its sizes in each of its blocks. `scope`: what is known of the
    entry's. BoundsError where a `match_cast` of the entry contradicts it."""
    entry = module.main
    sites = _sites(module)
    # Per function, the variables that are the entry's of the same name, and what is known of all.
    same: dict[str, set[str]] = {entry.name: _variables(entry)}
    known: dict[str, Scope] = {entry.name: _with_cast_sizes(entry, scope)}
    for f in reversed(callees_first(module)):
        if f.name == entry.name:
            continue
        params = [p.annotation for p in f.params]
        given = [(caller, call_sizes(params, args)) for caller, args in sites.get(f.name, [])]
        same[f.name] = {
            v
            for v in f.size_variables
            if given and all(sizes.get(v) == Dim.var(v) and v in same.get(caller, ()) for caller, sizes in given)
        }
        lows = {
            v: min((_low(known.get(caller), sizes.get(v)) for caller, sizes in given), default=0)
            for v in f.size_variables
            if v not in same[f.name]
        }
        known[f.name] = _with_cast_sizes(f, _restricted(known[entry.name], same[f.name], lows))
    return {f.name: _by_block(f, known[f.name], f.name == entry.name) for f in module}


def _variables(f: Function) -> set[str]:
    return {*f.size_variables, *f.cast_variables}


def _sites(module: Module) -> dict[str, list[tuple[str, Sequence[Annotation]]]]:
    """Where each function is run: the function that does, and the annotations of what it passes."""
    found: dict[str, list[tuple[str, Sequence[Annotation]]]] = {}
    for f in module:
        for e in f.expressions():
            for name, args in runs(e):
                found.setdefault(name, []).append((f.name, args))
        values = [b.value for block in f.blocks for b in block.bindings]
        for e in (*values, f.result):
            if e.op == FUNCTION:  # under another name, which may be called anywhere
                found.setdefault(e.attr("name"), []).append((f.name, ()))
    return found


def runs(e: Expr) -> Iterator[tuple[str, Sequence[Annotation]]]:
    """The functions among the operands of `e`, and what each gets; nothing is known where one is only passed on."""
    operands = [a.annotation for a in e.args]
    given: list[Sequence[Annotation]] = []
    if e.op == CALL:
        given = [operands[1:]]
    elif e.op in CONTROL and e.op != SHARD_MAP:
        p = parts(e.op, operands, dict(e.attrs))
        slices = tuple(Tensor(x.shape[1:], x.dtype) if isinstance(x, Tensor) and x.shape else x for x in p.xs)
        given = [(*p.constants, *p.carry, *slices)] * len(p.functions)
        if e.op == WHILE:
            given[0] = (*p.condition_constants, *p.carry)
    seen = 0
    for i, a in enumerate(e.args):
        if a.op == FUNCTION:
            yield a.attr("name"), given[seen] if seen < len(given) and (e.op in CONTROL or i == 0) else ()
            seen += 1


def _low(scope: Scope | None, size: Dim | None) -> int:
    """A lower bound of a size of a caller; 0 where nothing is known."""
    low = scope.interval(size)[0] if scope is not None and size is not None else None
    return max(low or 0, 0)


def _restricted(scope: Scope, names: set[str], lows: Mapping[str, int]) -> Scope:
    """What `scope` says of the variables `names`, and of others that they are at least so."""
    if not lows and scope.names <= names:
        return scope
    child = Scope(statistics=scope.statistics)
    for v in sorted(scope.names & names):
        child.declare(v, *scope.bounds(v), said_by=_CALLED)
    for v, low in sorted(lows.items()):
        child.declare(v, low, said_by=_CALLED)
    for text in scope.assumptions:
        if all(relation.variables <= names for relation in read_statement(text)):
            child.assume(text)
    return child


def _with_cast_sizes(f: Function, scope: Scope) -> Scope:
    """`scope`, in which sizes that `match_cast`s of `f` bring in may be 0, unless something was declared of them."""
    new = [v for v in f.cast_variables if v not in scope.names]
    if not new:
        return scope
    child = scope.child()
    for v in new:
        child.declare(v, 0, said_by="match_cast")
    return child


def _by_block(f: Function, scope: Scope, must: bool) -> list[Scope]:
    """What is known in each block of `f`: `scope`, and what the `match_cast`s before it assert. `must`: raise where
    that contradicts itself; elsewhere such a function never gets that far."""
    found: list[Scope] = []
    for block in f.blocks:
        found.append(scope)
        facts = [
            f"{wanted} == {given}"
            for b in block.bindings
            if b.value.op == MATCH_CAST
            for given, wanted in paired_dims(b.value.args[0].annotation, b.value.annotation)
            if given != wanted
        ]
        if facts:
            child = scope.child()
            try:
                child.assume(*facts)
            except BoundsError:
                if must:
                    raise
            else:
                scope = child
    return found
