"""Folds: functions that recur over the structure of one value and otherwise compute tensors.

    def f(t, w):
        match t:
            case Leaf(x):    return g(x, w)
            case Node(a, b): return h(f(a, w), f(b, w), w)

The nodes of a value, or of many values, that stand equally far from their leaves do not depend on one another, so each
constructor's function runs once for all of them (batching by depth). A call of such a function is deferred until
something reads its result; until then further calls join it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from relax_eg.ir.annotations import Annotation, Data, DataValue, Tensor, Tuple
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import CALL, FUNCTION, MATCH, VAR, Expr, postorder
from relax_eg.ir.heads import CONTROL
from relax_eg.ir.module import Function, Module
from relax_eg.traversal import grouped, operands_first


@dataclass(frozen=True)
class FoldCase:
    """One case of a fold: what it computes of the values of one constructor.

    - `body`: a function of the fold's other arguments, the fields that are tensors, and the results of the calls.
    - `rest`: which of the fold's other arguments it takes.
    - `fields`: the places of the fields that it takes.
    - `calls`: the places of the fields over which the fold recurs, in the order in which the body takes the results.
    """

    body: Function
    rest: tuple[int, ...]
    fields: tuple[int, ...]
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Fold:
    """A function that is a fold.

    - `name`: its name.
    - `place`: the place of the parameter over which it recurs.
    - `cases`: a case for each constructor.
    - `end`: the function that makes the fold's result of the result of a case.
    - `result`: what the fold returns.
    """

    name: str
    place: int
    cases: tuple[FoldCase, ...]
    end: Function
    result: Annotation


def folds_of(module: Module) -> dict[str, Fold]:
    """Returns the functions of a module that are folds, by name. Linear in the module's size."""
    functions = {f.name: f for f in module}
    found = ((f.name, _fold(f, functions)) for f in module)
    return {name: fold for name, fold in found if fold is not None}


def _fold(f: Function, functions: dict[str, Function]) -> Fold | None:
    steps = f.steps
    places = [i for i, p in enumerate(f.params) if isinstance(p.annotation, Data)]
    if len(steps) != 1 or steps[0].value.op != MATCH or len(places) != 1 or not _is_plain(f.annotation):
        return None
    match, place = steps[0].value, places[0]
    parts = group_arguments(MATCH, match.args, dict(match.attrs))
    others = [p for i, p in enumerate(f.params) if i != place]
    if parts.index is not f.params[place] or not all(c in others for c in parts.constants):
        return None
    if not all(_is_plain(p.annotation) for p in others) or f.size_variables:
        return None
    pure = tuple(block for block in f.blocks if block.dataflow)
    end = replace(f, name=f"{f.name}_end", params=(steps[0].var,), blocks=pure, assume=())
    read = {e for e in end.expressions() if e.op == VAR} - {b.var for block in pure for b in block.bindings}
    if not read <= {steps[0].var} or _runs_functions(end):
        return None
    rest = tuple(others.index(c) for c in parts.constants)
    cases: list[FoldCase] = []
    for branch in parts.functions:
        case = _case(f, functions[branch.attr("name")], rest, place) if branch.op == FUNCTION else None
        if case is None:
            return None
        cases.append(case)
    if not any(c.calls for c in cases):
        return None
    return Fold(f.name, place, tuple(cases), end, f.annotation)


def _case(f: Function, branch: Function, rest: tuple[int, ...], place: int) -> FoldCase | None:
    own = f.params[place].annotation
    constants, fields = branch.params[: len(rest)], branch.params[len(rest) :]
    known = {c: i for c, i in zip(constants, rest, strict=True)}
    pure = tuple(block for block in branch.blocks if block.dataflow)
    results: list[Expr] = []
    calls: list[int] = []
    for b in branch.steps:
        e = b.value
        if e.op != CALL or e.args[0].op != FUNCTION or e.args[0].attr("name") != f.name:
            return None
        args = list(e.args[1:])
        over = args.pop(place)
        if over not in fields or over.annotation != own or [known.get(a) for a in args] != list(range(len(args))):
            return None
        results.append(b.var)
        calls.append(fields.index(over))
    tensors = [i for i, v in enumerate(fields) if not isinstance(v.annotation, Data)]
    params = (*constants, *(fields[i] for i in tensors), *results)
    body = replace(branch, name=f"{branch.name}_body", params=params, blocks=pure, assume=())
    read = {e for e in body.expressions() if e.op == VAR} - {b.var for block in pure for b in block.bindings}
    if not read <= set(params) or not all(_is_plain(p.annotation) for p in params) or _runs_functions(body):
        return None
    return FoldCase(body, rest, tuple(tensors), tuple(calls))


def _is_plain(a: Annotation) -> bool:
    """Whether `a` describes tensors of known sizes and dtypes."""
    if isinstance(a, Tuple):
        return all(map(_is_plain, a.fields))
    return isinstance(a, Tensor) and a.dtype is not None and a.shape is not None and all(d.is_const for d in a.shape)


def _runs_functions(f: Function) -> bool:
    return any(e.op == CALL or e.op in CONTROL for e in postorder([*(b.value for k in f.blocks for b in k.bindings)]))


class RunsFold(Protocol):
    """Runs a fold for many values at once."""

    def __call__(self, roots: Sequence[DataValue], rest: Sequence[Any]) -> Sequence[Any]:
        """Returns the result for each of `roots`; `rest`: the other arguments."""
        ...

    def reads(self, roots: Sequence[DataValue]) -> Iterator[DeferredValue]:
        """The deferred values that running it reads."""
        ...


class Batch:
    """Calls of one fold with the same other arguments, which run together.

    - `run`: runs the fold.
    - `rest`: the other arguments.
    - `rank`: one more than that of all batches whose results the calls read; so no batch waits for itself.
    """

    def __init__(self, run: RunsFold, rest: Sequence[Any], rank: int) -> None:
        self.run = run
        self.rest = rest
        self.rank = rank
        self.roots: list[DataValue] = []
        self.results: Sequence[Any] | None = None

    def join(self, root: DataValue) -> DeferredValue:
        """Adds a call, and returns its result."""
        self.roots.append(root)
        return DeferredValue(self, len(self.roots) - 1, ())

    def awaited(self) -> list[Batch]:
        """The batches whose results the calls read, and that have not run."""
        if self.results is not None or not self.rank:  # of rank 0, none waited when it was called
            return []
        return [d.batch for d in self.run.reads(self.roots) if d.batch.results is None]

    def value(self, place: int, path: tuple[int, ...]) -> Any:
        # Values may wait for one another a thousand deep, so those that are read first run first.
        for batch in operands_first((self,), Batch.awaited):
            if batch.results is None:
                batch.results = batch.run(batch.roots, batch.rest)
        assert self.results is not None
        found = self.results[place]
        for i in path:
            found = found[i]
        return found


class DeferredValue:
    """The result of a call that runs when it is read, or a field of it.

    - `batch`, `place`: the call.
    - `path`: the fields that are taken, outermost first.
    """

    __slots__ = ("batch", "path", "place")

    def __init__(self, batch: Batch, place: int, path: tuple[int, ...]) -> None:
        self.batch = batch
        self.place = place
        self.path = path

    def field(self, index: int) -> DeferredValue:
        return DeferredValue(self.batch, self.place, (*self.path, index))

    def value(self) -> Any:
        return self.batch.value(self.place, self.path)


def rank_of(run: RunsFold, root: DataValue) -> int:
    """The rank of the batch that a call on `root` may join. Linear in the number of its nodes, as the call is."""
    return 1 + max((d.batch.rank for d in run.reads([root]) if d.batch.results is None), default=-1)


def levels(roots: Sequence[DataValue], cases: Sequence[FoldCase]) -> list[list[DataValue]]:
    """Returns the nodes of values by their distance from their leaves, each once. Linear in their number, and as deep
    as memory allows."""
    held = {id(v): v for v in roots}

    def inner(i: int) -> list[int]:
        called = [held[i].fields[k] for k in cases[held[i].index].calls]
        held.update((id(x), x) for x in called)
        return [id(x) for x in called]

    level: dict[int, int] = {}
    for i in operands_first(list(held), inner):
        level[i] = 1 + max((level[x] for x in inner(i)), default=-1)
    by_level = grouped((n, held[i]) for i, n in level.items())
    return [by_level[n] for n in range(len(by_level))]
