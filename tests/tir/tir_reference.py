"""Tensor programs evaluated element by element in plain Python, to compare the evaluator and the analysis with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relax_eg.shapes import Dim
from relax_eg.tir import (
    FUNCTIONS,
    Apply,
    Cast,
    Const,
    Index,
    PatternKind,
    Read,
    Reduce,
    Scalar,
    Select,
    Stage,
    TensorProgram,
    walk,
)
from relax_eg.tir.evaluate import convert

_STEP = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "bitwise_or",
         "all": "bitwise_and", "xor": "bitwise_xor"}  # fmt: skip


class Elements:
    """Values of a program's elements, each computed when asked for."""

    def __init__(self, program: TensorProgram, arrays: Sequence[Any], sizes: Mapping[str, int]) -> None:
        self.program, self.sizes = program, dict(sizes)
        given = zip(program.inputs, arrays, strict=False)
        self.arrays = {b.name: a for b, a in given}
        self.stages = {s.output.name: s for s in program.stages}
        self.known: dict[tuple[str, tuple[int, ...]], Any] = {}

    def extents(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(int(d.evaluate(self.sizes)) for d in dims)

    def whole(self, name: str) -> np.ndarray[Any, Any]:
        made = self.stages[name]
        found = np.zeros(self.extents(made.output.shape), made.output.dtype)
        for point in np.ndindex(found.shape):
            found[point] = self.element(name, point)
        return found

    def element(self, name: str, point: tuple[int, ...]) -> Any:
        if name in self.arrays:
            assert all(x >= 0 for x in point)
            return self.arrays[name][point]
        if (name, point) not in self.known:
            made = self.stages[name]
            self.known[name, point] = self.value(made.value, self.sizes | _env(made.indices, point))
        return self.known[name, point]

    def points(self, over: Sequence[tuple[Dim, Dim]]) -> Iterator[dict[str, int]]:
        for point in np.ndindex(self.extents([extent for _, extent in over])):
            yield _env([var for var, _ in over], point)

    def indices(self, read: Read, env: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(i.evaluate(env)) if isinstance(i, Dim) else int(self.value(i, env)) for i in read.indices)

    def value(self, term: Scalar, env: Mapping[str, int]) -> Any:
        match term:
            case Const():
                return np.dtype(term.dtype).type(term.value)
            case Index():
                return np.asarray(int(term.dim.evaluate(env))).astype(term.dtype)[()]
            case Read():
                return self.element(term.buffer, self.indices(term, env))
            case Cast():
                return convert(np.asarray(self.value(term.arg, env)), term.dtype)[()]
            case Select():
                return self.value(term.then if self.value(term.cond, env) else term.other, env)
            case Apply():
                return self.apply(term.fn, [self.value(a, env) for a in term.args], term.dtype)
            case Reduce():
                values = [self.value(term.body, {**env, **point}) for point in self.points(term.over)]
                if term.kind.startswith("arg"):
                    best = max(values) if term.kind == "argmax" else min(values)
                    return np.int64(next(n for n, v in enumerate(values) if v == best))
                total = values[0]
                for value in values[1:]:
                    total = self.apply(_STEP[term.kind], [total, value], term.dtype)
                return total
            case _:
                raise AssertionError(term)

    def apply(self, fn: str, args: Sequence[Any], dtype: str) -> Any:
        return FUNCTIONS[fn]([np.asarray(a).reshape(1) for a in args], dtype)[0]


def _env(indices: Sequence[Dim], point: Sequence[int]) -> dict[str, int]:
    return {next(iter(i.variables)): int(x) for i, x in zip(indices, point, strict=True)}


def naive(program: TensorProgram, arrays: Sequence[Any], sizes: Mapping[str, int]) -> list[np.ndarray[Any, Any]]:
    """The outputs, element by element; reductions are left folds."""
    elements = Elements(program, arrays, sizes)
    return [elements.whole(name) for name in program.outputs]


# --- pattern kinds read off the elements that each point reads ---


def kind_of_accesses(program: TensorProgram, runs: Sequence[tuple[Sequence[Any], Mapping[str, int]]]) -> PatternKind:
    """The pattern kind that the sets of elements read at each point show, at all sizes of `runs` (arrays, sizes)."""
    elements = [Elements(program, arrays, sizes) for arrays, sizes in runs]
    shapes = [{e.extents(s.output.shape) for s in program.stages} for e in elements]
    ranks = {s.output.rank for s in program.stages}
    if len(ranks) > 1 or any(len(found) > 1 for found in shapes):
        return PatternKind.OPAQUE
    inputs = {b.name for b in program.inputs}
    found: set[PatternKind] = set()
    for made in program.stages:
        for read, over in _reads(made):
            kind = max(_access(e, made, read, over) for e in elements)
            if read.buffer in inputs:
                found.add(kind)
            elif kind is not PatternKind.ELEMENT_WISE or read.buffer == made.output.name:
                return PatternKind.OPAQUE
    sums = [(s, t) for s in program.stages for t in walk(s.value) if isinstance(t, Reduce) and _loops(t, elements)]
    if sums or PatternKind.OPAQUE in found:
        if any(t.kind == "sum" and _multiplies(s, t, elements) for s, t in sums):
            return PatternKind.OUTPUT_EWISE_FUSIBLE
        return PatternKind.REDUCTION if sums else PatternKind.OPAQUE
    if found == {PatternKind.ELEMENT_WISE, PatternKind.BROADCAST}:
        return PatternKind.ELEMENT_WISE
    return max(found, default=PatternKind.ELEMENT_WISE)


def _loops(term: Reduce, elements: Sequence[Elements]) -> bool:
    return any(e.extents([extent for _, extent in term.over]) != (1,) * len(term.over) for e in elements)


def _reads(made: Stage) -> Iterator[tuple[Read, tuple[tuple[Dim, Dim], ...]]]:
    """Each read with the loops of the reductions around it."""
    todo: list[tuple[Scalar, tuple[tuple[Dim, Dim], ...]]] = [(made.value, ())]
    while todo:
        term, over = todo.pop()
        if isinstance(term, Read):
            yield term, over
        inner = over + term.over if isinstance(term, Reduce) else over
        todo.extend((child, inner) for child in term.children)


def _access(e: Elements, made: Stage, read: Read, over: tuple[tuple[Dim, Dim], ...]) -> PatternKind:
    domain = e.extents(made.output.shape)
    shape = e.extents(e.program.buffers[read.buffer].shape)
    by_point: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point in np.ndindex(domain):
        env = e.sizes | _env(made.indices, point)
        if read.buffer == made.output.name:
            return PatternKind.OPAQUE
        touched = {e.indices(read, env | inner) for inner in e.points(over)}
        if len(touched) > 1:
            return PatternKind.OPAQUE
        by_point[point] = touched.pop()
    if shape == domain and all(p == q for p, q in by_point.items()):
        return PatternKind.ELEMENT_WISE
    for axes in itertools.combinations(range(len(domain)), sum(s != 1 for s in shape)):
        kept = [n for n, s in enumerate(shape) if s != 1]
        whole = [shape[n] for n in kept] == [domain[a] for a in axes]
        if whole and all([q[n] for n in kept] == [p[a] for a in axes] for p, q in by_point.items()):
            return PatternKind.BROADCAST
    return PatternKind.INJECTIVE


def _multiplies(made: Stage, term: Reduce, elements: Sequence[Elements]) -> bool:
    """Whether factors of the product that is summed depend on different axes of the domain."""
    factors, todo = [], [term.body]
    while todo:
        at = todo.pop()
        if isinstance(at, Cast) or (isinstance(at, Apply) and at.fn == "multiply"):
            todo.extend(at.children)
        elif any(isinstance(t, Read) for t in walk(at)):
            factors.append(at)
    return len({frozenset(at.free) & frozenset(v for i in made.indices for v in i.variables) for at in factors}) > 1
