"""Size facts per program point: for each function of a module, and after each of its `match_cast`s.

The entry's scope holds its signature, declared bounds and assumptions; calls are checked against it. Size variables of
another function are local to it; its facts come from the call sites. An assumption of the entry holds there only if
every call site passes the same variables. The fact that a `match_cast` asserts holds after it in its own function: not
before it, in a caller, or in another branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relax_eg.errors import BoundsError
from relax_eg.ir.annotations import Annotation, paired_dims
from relax_eg.ir.calls import call_sizes, callees_first
from relax_eg.ir.control import arguments_of, runs_of
from relax_eg.ir.expr import FUNCTION, MATCH_CAST, SHARD_MAP, Expr
from relax_eg.ir.heads import RUNNING
from relax_eg.ir.module import Function, Module
from relax_eg.shapes import Dim, Scope
from relax_eg.shapes.relation import read_statement

_CALLED = "the calls of the function"


def scopes_of(module: Module, scope: Scope) -> dict[str, list[Scope]]:
    """Returns for each function, by name, the scope of each of its blocks.

    `scope`: the entry's scope. BoundsError if a `match_cast` of the entry contradicts it.
    """
    entry = module.main
    sites = _sites(module)
    # Per function: the variables that equal the entry's variables of the same name, and the scope.
    entry_variables: dict[str, set[str]] = {entry.name: {*entry.size_variables, *entry.cast_variables}}
    scopes: dict[str, Scope] = {entry.name: _with_cast_sizes(entry, scope)}
    for f in reversed(callees_first(module)):
        if f.name == entry.name:
            continue
        params = [p.annotation for p in f.params]
        given = [(caller, call_sizes(params, args)) for caller, args in sites.get(f.name, [])]
        entry_variables[f.name] = {
            v
            for v in f.size_variables
            if given
            and all(sizes.get(v) == Dim.var(v) and v in entry_variables.get(caller, ()) for caller, sizes in given)
        }
        lows = {
            v: min((_low(scopes.get(caller), sizes.get(v)) for caller, sizes in given), default=0)
            for v in f.size_variables
            if v not in entry_variables[f.name]
        }
        scopes[f.name] = _with_cast_sizes(f, _restricted(scopes[entry.name], entry_variables[f.name], lows))
    return {f.name: _by_block(f, scopes[f.name], f.name == entry.name) for f in module}


def _sites(module: Module) -> dict[str, list[tuple[str, Sequence[Annotation]]]]:
    """Returns the call sites of each function: the caller, and the annotations of the arguments."""
    found: dict[str, list[tuple[str, Sequence[Annotation]]]] = {}
    for f in module:
        for e in f.expressions():
            for name, args in called_functions(e):
                found.setdefault(name, []).append((f.name, args))
        values = f.values
        for e in (*values, f.result):
            if e.op == FUNCTION:  # bound to another name, so it may be called anywhere
                found.setdefault(e.attr("name"), []).append((f.name, ()))
    return found


def called_functions(e: Expr) -> Iterator[tuple[str, Sequence[Annotation]]]:
    """Yields each function among the operands of `e` with the annotations of its arguments; none if it is only passed
    on."""
    passed = list(e.args)
    if e.op in RUNNING and e.op != SHARD_MAP:
        attrs = dict(e.attrs)
        annotated = runs_of(e.op, [a.annotation for a in e.args], attrs)
        for run, of in zip(runs_of(e.op, e.args, attrs), annotated, strict=True):
            if run.function.op == FUNCTION:
                passed.remove(run.function)
                yield run.function.attr("name"), arguments_of(of)
    for a in passed:
        if a.op == FUNCTION:
            yield a.attr("name"), ()


def _low(scope: Scope | None, size: Dim | None) -> int:
    """Returns a lower bound of a size of a caller; 0 if nothing is known."""
    low = scope.interval(size)[0] if scope is not None and size is not None else None
    return max(low or 0, 0)


def _restricted(scope: Scope, names: set[str], lows: Mapping[str, int]) -> Scope:
    """Returns a scope with the facts of `scope` about the variables `names`, and the lower bounds `lows` of others."""
    if not lows and scope.names <= names:
        return scope
    child = Scope(statistics=scope.statistics)
    for v in sorted(scope.names & names):
        child.declare(v, *scope.bounds(v), source=_CALLED)
    for v, low in sorted(lows.items()):
        child.declare(v, low, source=_CALLED)
    for text in scope.assumptions:
        if all(relation.variables <= names for relation in read_statement(text)):
            child.assume(text)
    return child


def _with_cast_sizes(f: Function, scope: Scope) -> Scope:
    """Returns `scope` in which sizes defined by `match_cast`s of `f` may be 0, unless they are already declared."""
    new = [v for v in f.cast_variables if v not in scope.names]
    if not new:
        return scope
    child = scope.child()
    for v in new:
        child.declare(v, 0, source="match_cast")
    return child


def _by_block(f: Function, scope: Scope, must: bool) -> list[Scope]:
    """Returns one scope per block of `f`: `scope` plus the facts of earlier `match_cast`s.

    `must`: raise if these facts contradict each other. Otherwise contradictory facts are dropped, because execution
    never passes such a `match_cast`.
    """
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
