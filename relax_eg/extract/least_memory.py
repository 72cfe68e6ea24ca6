"""What every program of a search needs in memory: a bound from below.

A program takes one candidate of each class that it needs. So a class needs at least the least, over its candidates, of
what the candidate itself or one of its operands needs. What a candidate needs is one piece of an operator along every
axis along which it can be cut: nothing for an operator with index equations, whose elements can be computed one by one,
and a whole matrix for a factorisation. The pieces of loops are those of their bodies. Values in between count where XLA
stores them in every program: on CPUs the results of matmuls and convolutions, also if parts of them are read, and the
operands of these that follow from such results element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_eg import dtypes
from relax_eg.byte_units import format_bytes
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.calls import call_sizes
from relax_eg.ir.control import arguments_of, group_arguments, runs_of
from relax_eg.ir.expr import CALL, COND, CONSTANT, MATCH_CAST, SCAN, TUPLE, TUPLE_GET, VAR, Expr, postorder
from relax_eg.ir.heads import CORE, STATIC
from relax_eg.ir.module import Function
from relax_eg.ops import Site, bytes_of, get, pattern_kind, site_of
from relax_eg.ops.record import movement_operators, operators_run_as
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind
from relax_eg.traversal import operands_first

# Operators that XLA may replace by what reads not all of their operands.
_MAY_NOT_READ = frozenset(("power", "scatter", "dynamic_update_slice"))
_CHOICE = "where"  # of which one operand may be taken everywhere, but not the known one alone
_SAME_BYTES = movement_operators("view", "order")
_MATMULS = operators_run_as("matmul", "transposed_matmul")
_CONVOLUTIONS = operators_run_as("conv")
_FACTORISATIONS = operators_run_as("factorisation")
_MATRIX = 2  # given: axes
_LEAST_SIDE = 2  # given: XLA may compute a matmul with a side of 1 inside the kernel that reads its result

RESULTS = "its results exist at the end of a call"


@dataclass(frozen=True, slots=True)
class LeastBytes:
    """What computing a value needs in every program.

    - `bytes`: the most bytes that are there at once, beside arguments.
    - `why`: what needs them; "" for no bytes.
    - `stored`: the bytes of the value, if it is stored wherever a matmul reads it.
    - `is_known`: it follows from constants and known weights alone, so that it may be computed before the call.
    """

    bytes: int = 0
    why: str = ""
    stored: int = 0
    is_known: bool = False

    def __str__(self) -> str:
        whose = "" if self.why == RESULTS else " of this search"
        return f"no program{whose} needs less than {format_bytes(self.bytes)}: {self.why}"


NOTHING, KNOWN = LeastBytes(), LeastBytes(is_known=True)
LeastOf = LeastBytes | tuple[LeastBytes, ...]  # of a value, or of the fields of a tuple


def _least(a: LeastOf | None, b: LeastOf) -> LeastOf:
    """The needs of a value that is computed in one of two ways."""
    if a is None or a == b:
        return b
    if isinstance(a, tuple) or isinstance(b, tuple):
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(_of_both(x, y) for x, y in zip(a, b, strict=True))
        return NOTHING
    return _of_both(a, b)


def _of_both(a: LeastBytes, b: LeastBytes) -> LeastBytes:
    if a.is_known or b.is_known:
        return KNOWN
    less = b if b.bytes < a.bytes else a
    return LeastBytes(less.bytes, less.why, min(a.stored, b.stored))


def _all(needs: LeastOf) -> tuple[LeastBytes, ...]:
    return needs if isinstance(needs, tuple) else (needs,)


def _bytes(n: LeastBytes) -> int:
    return n.bytes


def most_of(needs: Sequence[LeastOf]) -> LeastBytes:
    """The need of which everything is needed at once."""
    return max((n for x in needs for n in _all(x)), key=_bytes, default=NOTHING)


@dataclass
class LeastMemory:
    """What functions need, each by its e-graph or, where it was not searched, by its text.

    - `searched`: the e-graphs of functions of one block.
    - `functions`: the functions by name.
    - `is_stored`: whether the results of matmuls and convolutions are stored (on CPUs).
    - `in_segments`: whether what loops stack may exist in segments alone (`driver.limits.checkpointed`).
    """

    searched: Mapping[str, ExtractionGraph]
    functions: Mapping[str, Function]
    is_stored: bool
    in_segments: bool = False
    _made: dict[Any, LeastOf] = field(default_factory=dict[Any, LeastOf])
    _graphs: dict[str, ExtractionGraph] = field(default_factory=dict[str, ExtractionGraph])
    _running: set[str] = field(default_factory=set[str])  # a recursive call adds nothing

    def of_function(self, name: str, given: Sequence[LeastOf], sizes: Mapping[str, int]) -> LeastOf:
        """The needs of the result of a function. `given`: those of its arguments; `sizes`: of its variables."""
        key = name, tuple(given), tuple(sorted(sizes.items()))
        f = self.functions.get(name)
        if f is None or name in self._running or not f.is_one_block:
            return NOTHING
        if key not in self._made:
            self._running.add(name)
            self._made[key] = self._of_result(f, given, sizes)
            self._running.discard(name)
        return self._made[key]

    def _of_result(self, f: Function, given: Sequence[LeastOf], sizes: Mapping[str, int]) -> LeastOf:
        graph = self.searched.get(f.name) or self._graphs.get(f.name)
        if graph is None:
            graph = self._graphs[f.name] = _graph_of_text(f)
        known = {str(p.attr("name")): n for p, n in zip(f.params, given, strict=False)}
        values = _Block(self, graph, known, sizes).roots()
        known |= {b.name: n for b, n in zip(f.blocks[0].bindings, values, strict=True)}

        def of(e: Expr) -> LeastOf:
            if e.op == VAR:
                return known.get(str(e.attr("name")), NOTHING)
            if e.op == TUPLE:
                return tuple(most_of([of(a)]) for a in e.args)
            inside = of(e.args[0]) if e.op == TUPLE_GET else NOTHING
            return inside[int(e.attr("index"))] if isinstance(inside, tuple) else inside

        return of(f.result)


def _graph_of_text(f: Function) -> ExtractionGraph:
    """A graph in which each expression is the only candidate of its class."""
    nodes = postorder(f.values)
    number = {e: i for i, e in enumerate(nodes)}
    candidates = [[Candidate(e.op, site_of(e), tuple(number[a] for a in e.args), 0)] for e in nodes]
    roots = tuple(number[v] for v in f.values)
    return ExtractionGraph(candidates, [e.annotation for e in nodes], roots)


@dataclass
class _Block:
    """One e-graph at some sizes. `given`: the needs of variables."""

    memory: LeastMemory
    graph: ExtractionGraph
    given: Mapping[str, LeastOf]
    sizes: Mapping[str, int]

    def roots(self) -> list[LeastOf]:
        """The needs of the roots: the greatest solution, in which no value is computed from itself."""
        graph, found = self.graph, dict[int, LeastOf]()
        below = [tuple(dict.fromkeys(x for k in row for x in k.children)) for row in graph.candidates]
        order = operands_first(graph.roots, below.__getitem__)
        changed = True
        while changed:
            changed = False
            for c in order:
                for k in graph.candidates[c]:
                    if all(x in found for x in k.children):
                        least = _least(found.get(c), self._of(c, k, [found[x] for x in k.children]))
                        changed = changed or found.get(c) != least
                        found[c] = least
        return [found.get(r, NOTHING) for r in graph.roots]

    def _of(self, c: int, k: Candidate, operands: Sequence[LeastOf]) -> LeastOf:
        if k.op == VAR:
            return self.given.get(str(k.site["name"]), NOTHING)
        if k.op == CONSTANT or k.op in STATIC or all(n.is_known for x in operands for n in _all(x)):
            return KNOWN if not isinstance(self.graph.annotations[c], Tuple) else (KNOWN,) * self._fields(c)
        if k.op == TUPLE:
            return tuple(most_of([x]) for x in operands)
        if k.op == TUPLE_GET:
            whole = operands[0]
            return whole[k.site["index"]] if isinstance(whole, tuple) else whole
        if k.op == MATCH_CAST:
            return operands[0]
        if k.op in (CALL, SCAN, COND):
            return self._of_functions(c, k.site, operands)
        if k.op in CORE or k.op in _MAY_NOT_READ or self._is_cutting(k.site):
            return NOTHING
        given = [most_of([x]) for x in operands]
        if k.op == _CHOICE:
            return min((LeastBytes(n.bytes, n.why) for n in given[1:] if not n.is_known), key=_bytes, default=NOTHING)
        return self._of_operator(self.graph.annotations[c], k.site, given)

    def _is_cutting(self, site: Site) -> bool:
        """Whether an operator may cut its operand away by negative widths."""
        widths = [*site.attrs.get("low", ()), *site.attrs.get("high", ())]
        return any((self._value(Dim.of(w)) or 0) < 0 for w in widths)

    def _fields(self, c: int) -> int:
        annotation = self.graph.annotations[c]
        return len(annotation.fields) if isinstance(annotation, Tuple) else 1

    def _of_operator(self, result: Annotation, site: Site, operands: Sequence[LeastBytes]) -> LeastOf:
        if isinstance(result, Tuple):
            own = self._whole(site, result)
            most = most_of([*operands, own])
            return tuple(LeastBytes(most.bytes, most.why) for _ in result.fields)
        size = self._bytes(result)
        if size == 0:
            return KNOWN
        if size is None or not isinstance(result, Tensor):
            return LeastBytes(most_of(operands).bytes, most_of(operands).why)
        is_elementwise = pattern_kind(site) == PatternKind.ELEMENT_WISE
        if is_elementwise and any(n.is_known for n in operands) and not _is_float(result):
            return NOTHING  # XLA computes no product with 0, no conjunction with False
        own, stored = self._whole(site, result), 0
        if self.memory.is_stored and self._is_matmul(site, result):
            stored = size
            read = max((n.stored for n in operands), default=0)
            own = LeastBytes(size + read, f"{site.op} {result.short}" + (" and an operand of it" if read else ""))
        elif site.op in _SAME_BYTES or is_elementwise:
            alike = (n.stored for n, a in zip(operands, site.operands, strict=True) if self._has_as_many(a, result))
            stored = min(size, max(alike, default=0))
        most = most_of([*operands, own])
        return LeastBytes(most.bytes, most.why, stored)

    def _has_as_many(self, operand: Annotation, result: Annotation) -> bool:
        """Whether an operand has as many elements as the result."""
        a, b = self._elements(operand), self._elements(result)
        return a is not None and a == b

    def _is_matmul(self, site: Site, result: Annotation) -> bool:
        """Whether an operator is a matmul or a convolution whose result is stored."""
        sides = [self._sides(a) for a in (*site.operands, result)]
        if site.op not in _MATMULS | _CONVOLUTIONS or any(s is None or len(s) < _MATRIX for s in sides):
            return False
        left, right, made = (s for s in sides if s is not None)
        if site.op in _CONVOLUTIONS:
            within = math.prod(right[1:])
            return site["groups"] == 1 and min(made[1], made[0] * math.prod(made[2:]), within) >= _LEAST_SIDE
        return min(*made[-2:], left[-1]) >= _LEAST_SIDE

    def _whole(self, site: Site, result: Annotation) -> LeastBytes:
        """What an operator needs that cannot be cut: a matrix that a factorisation overwrites, or a transform."""
        record, sides = get(site.op), self._sides(site.operands[0]) if site.operands else None
        if site.op in _FACTORISATIONS and sides is not None and min(sides[-2:]) >= _LEAST_SIDE:
            what, axes, of = "a matrix", _MATRIX, site.operands[0]
        elif record.capacity == "fft":
            what, axes, of = "a transform", len(site["lengths"]), result
        elif record.capacity == "sort":
            what, axes, of = "what is sorted", 0, site.operands[0]
        else:
            return NOTHING
        sides = self._sides(of)
        if sides is None or not isinstance(of, Tensor):
            return NOTHING
        apart = sides[-axes:] if axes else [sides[site["axis"]]]
        if math.prod(apart) < _LEAST_SIDE:
            return NOTHING
        return LeastBytes(math.prod(apart) * dtypes.itemsize(of.dtype or "float32"), f"{what} of {site.op} {of.short}")

    def _of_functions(self, c: int, site: Site, operands: Sequence[LeastOf]) -> LeastOf:
        """The needs of what a call, a loop or a choice gives."""
        p = group_arguments(site.op, operands, site.attrs)
        names = site.attrs.get("functions", ())
        runs = runs_of(site.op, site.operands, site.attrs)
        given = [*p.constants, *p.carry, *p.xs]
        made: LeastOf | None = None
        for name, run in zip(names, runs, strict=False):
            f = self.memory.functions.get(name)
            if f is None:
                return NOTHING
            inner = call_sizes([q.annotation for q in f.params], arguments_of(run))
            sizes = {v: n for v, d in inner.items() if (n := self._value(d)) is not None}
            # A piece was not stored for having been cut from a value that is, and what is carried is not known later.
            within = given if site.op != SCAN else [_in_a_step(x, i < len(p.constants)) for i, x in enumerate(given)]
            made = _least(made, self.memory.of_function(name, within, sizes))
        if made is None:
            return NOTHING
        return self._stacked(c, site, made) if site.op == SCAN else made

    def _stacked(self, c: int, site: Site, body: LeastOf) -> LeastOf:
        """The needs of a loop's results: each is whole when the loop ends, unless a step only hands it on,
        or what is stacked exists in segments."""
        annotation, steps = self.graph.annotations[c], self._value(Dim.of(site["length"]))
        if not isinstance(body, tuple) or not isinstance(annotation, Tuple) or len(body) != len(annotation.fields):
            return NOTHING
        if steps is None or steps < _LEAST_SIDE:
            return tuple(LeastBytes(n.bytes, n.why) for n in body)
        found: list[LeastBytes] = []
        for i, (need, a) in enumerate(zip(body, annotation.fields, strict=True)):
            is_whole = i < site["carry"] or not self.memory.in_segments
            size = (self._bytes(a) or 0) if need.bytes and not need.is_known and is_whole else 0
            most = most_of([need, LeastBytes(size, f"a loop's result {a.short if isinstance(a, Tensor) else a}")])
            found.append(LeastBytes(most.bytes, most.why, size))
        return tuple(found)

    def _value(self, d: Dim) -> int | None:
        return int(d.evaluate(self.sizes)) if d.variables <= self.sizes.keys() else None

    def _bytes(self, a: Annotation) -> int | None:
        """The bytes of a value; None where its sizes are unknown."""
        if not isinstance(a, Tensor) or a.shape is None:
            return None
        return self._value(bytes_of(a))

    def _elements(self, a: Annotation) -> int | None:
        sides = self._sides(a)
        return None if sides is None else math.prod(sides)

    def _sides(self, a: Annotation) -> list[int] | None:
        if not isinstance(a, Tensor) or a.shape is None:
            return None
        found = [self._value(d) for d in a.shape]
        sides = [n for n in found if n is not None]
        return sides if len(sides) == len(found) else None


def _in_a_step(x: LeastOf, is_constant: bool) -> LeastOf:
    """The needs of an argument of a loop, as a step of it sees them."""
    if isinstance(x, tuple):
        return tuple(LeastBytes(n.bytes, n.why, 0, n.is_known and is_constant) for n in x)
    return LeastBytes(x.bytes, x.why, 0, x.is_known and is_constant)


def _is_float(a: Annotation) -> bool:
    return isinstance(a, Tensor) and a.dtype is not None and dtypes.is_float(a.dtype)
