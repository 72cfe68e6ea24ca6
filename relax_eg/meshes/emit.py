"""The module of a spread program: the chosen operators, with the placement of every value annotated.

XLA's partitioner knows no partial sums that stay. So a value that stays one along axes of the mesh has an axis more for
each of them, in front, split over it: what each device has of the sum. Operators are batched over these axes, and the
sum over them is the collective.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relax_eg.extract.graph import Candidate
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import inline_call, reachable_functions
from relax_eg.ir.control import group_arguments, runs_of
from relax_eg.ir.expr import COND, FUNCTION, TUPLE, TUPLE_GET, Expr, tuple_, tuple_get, var
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.placements import PARTIAL, PARTIAL_SUM, REPLICATED, MeshPlacement, Part
from relax_eg.meshes.axis_prices import is_even
from relax_eg.meshes.choices import after_turns, turns
from relax_eg.meshes.program import FOLLOWED, FunctionGraph, ValueWay
from relax_eg.meshes.rings import RingLoop
from relax_eg.meshes.search import Spreading
from relax_eg.meshes.strategies import Ring
from relax_eg.ops import api as op
from relax_eg.ops.placing import ANNOTATE_SHARDING
from relax_eg.shapes import Dim
from relax_eg.traversal import made_from_below

Parts = tuple[Part, ...]
Batch = Callable[[Function, Sequence[bool], Dim], Function | None]


def module_of(
    found: Spreading, chosen: Module, origins: Callable[[str, dict[Expr, int]], Function], batch: Batch
) -> Module:
    """The module of a spreading, its entry first.

    - `chosen`: the module for one device, which has the functions that are run as they are.
    - `origins(name, classes)`: returns the function of this name as written; `classes` has the class of each expression
      that was chosen for it, for what it is to know of its origins.
    - `batch(function, mapped, length)`: returns a function batched over slices of its mapped parameters; None if it
      cannot be.
    """
    names = [n for n in found.program.graphs if n in found.program.parameters]
    emitted = [_Emitted(found, name, origins, batch) for name in names]
    made = {e.name: e.function() for e in emitted}
    others = {f.name: f for f in chosen if f.name not in made} | {f.name: f for e in emitted for f in e.steps}
    roots = [e for f in made.values() for e in f.expressions()]
    return Module((*made.values(), *reachable_functions(roots, others)))


class _Emitted:
    """The function of a name, as it is chosen. Expressions are built operands first, without recursion."""

    def __init__(
        self, found: Spreading, name: str, origins: Callable[[str, dict[Expr, int]], Function], batch: Batch
    ) -> None:
        self.found, self.program, self.name = found, found.program, name
        self.graph: FunctionGraph = found.program.graphs[name]
        self.origins, self.batch = origins, batch
        self.numbers = {v.number: i for i, v in enumerate(self.program.values) if v.function == name and v.number >= 0}
        self.mesh = str(found.mesh)
        self.raw: dict[int, Expr] = {}
        self.at: dict[tuple[int, Parts], Expr] = {}
        self.calls: dict[int, Expr] = {}
        self.homes: dict[int, Parts] = {}
        self.made: dict[Expr, int] = {}  # the class of an expression
        self.steps: list[Function] = []  # of loops over pieces
        self.backs = {b: a for a, b in reversed(self.program.tied) if self.is_chosen(a)}

    def function(self) -> Function:
        program, name = self.program, self.name
        wanted: list[tuple[int, Parts] | None] = []
        is_entry = program.inputs is program.parameters[name]
        for i, v in enumerate(program.fields[name]):
            if not self.is_chosen(v):
                wanted.append(None)
            elif is_entry:
                wanted.append((v, tuple(c.outputs[i] for c in self.found.choices)))
            else:
                wanted.append((v, self.result_placement(v)))
        fields = [
            self.value(*w) if w is not None else self.placeholder(v)
            for v, w in zip(program.fields[name], wanted, strict=True)
        ]
        written = self.graph.function
        single = written.result.op != TUPLE
        made = pure_function(name, written.params, fields)
        if not single and len(fields) == 1:
            made = pure_function(name, written.params, fields, tuple_(b.var for b in made.blocks[0].bindings))
        known = self.origins(name, self.made)
        return Function(name, made.params, made.blocks, made.result, known.origins, written.assume)

    def is_chosen(self, v: int) -> bool:
        return v in self.found.choices[0].chosen or self.program.values[v].is_free

    def result_placement(self, v: int) -> Parts:
        """The placement in which a function that is run hands over a result: that of the parameter to which it goes
        back, or else that in which it is read outside."""
        back = self.backs.get(v)
        if back is not None:
            return tuple(c.part(back) for c in self.found.choices)
        read = next(((n, slot) for n, slot in self.program.results.get(v, ()) if self.is_chosen(n)), None)
        if read is not None:
            return self.operand(*read)
        return tuple(REPLICATED if p == PARTIAL_SUM else p for p in self.first_placement(v))

    def placeholder(self, v: int) -> Expr:
        """What stands for a value that nobody needs."""
        annotation = self.program.values[v].annotation
        assert isinstance(annotation, Tensor) and annotation.shape is not None and annotation.dtype is not None
        return op.zeros(annotation.shape, annotation.dtype)

    def first_placement(self, v: int) -> Parts:
        """The placement in which a value is annotated first: where it comes about, sums that are not to stay partial
        summed up."""
        found = self.homes.get(v)
        if found is None:
            summed, made = self.placement_summed_up(v), tuple(c.part(v) for c in self.found.choices)
            apart = len(turns(made, summed, True)) > len(turns(made, summed, False)) and self.can_stay_partial(v)
            found = self.homes[v] = made if apart else summed
        return found

    def placement_summed_up(self, v: int) -> Parts:
        """The placement in which a value comes about, sums that are not to stay partial summed up at once."""
        found: list[Part] = []
        for c in self.found.choices:
            part = c.part(v)
            needed = c.needed.get(v, {REPLICATED})
            stays = part == PARTIAL_SUM and (part in needed or c.chosen[v].strategy.takes_sums)
            if part in PARTIAL.values() and not stays:
                part = REPLICATED if REPLICATED in needed else min(needed, key=str)
            found.append(part)
        return tuple(found)

    def can_stay_partial(self, v: int) -> bool:
        """Whether a value can come about as what each device has of its sums, which are taken in turn."""
        chosen = [c.chosen[v] for c in self.found.choices]
        sums = [(n, c.strategy) for n, c in zip(self.found.mesh.sizes, chosen, strict=True)
                if c.strategy.result in PARTIAL.values()]  # fmt: skip
        n = math.prod(n for n, _ in sums)
        way, parts = self.program.values[v].ways[chosen[0].way], tuple(c.strategy.result for c in chosen)
        operands = [var(f"x{i}", self.program.values[c].annotation) for i, c in enumerate(way.children)]
        is_apart = all(is_even(way, s, n) and s.result == PARTIAL_SUM for _, s in sums)
        return is_apart and self.in_pieces(v, way, operands, parts) is not None

    def value(self, v: int, parts: Parts) -> Expr:
        """The expression of a value in a placement."""
        return made_from_below(
            (v, parts), lambda key: list(self.reads(*key))[::-1], lambda key: self.build(*key), self.at
        )

    def source(self, v: int, parts: Parts) -> Parts | None:
        """The placement of the expression that is annotated to be in `parts`; None if the value comes about there."""
        home = self.first_placement(v)
        if parts == home or not isinstance(self.program.values[v].annotation, Tensor):
            return None
        via: list[Part] = []
        for c, first, part in zip(self.found.choices, home, parts, strict=True):
            before = c.source(v, part)
            via.append(first if before is None or before in PARTIAL.values() else before)
        begin = home if tuple(via) == parts else tuple(via)
        *before, _ = turns(begin, parts, True)
        return after_turns(begin, parts, itertools.chain(*before))

    def reads(self, v: int, parts: Parts) -> list[tuple[int, Parts]]:
        value = self.program.values[v]
        if value.is_free:
            return []
        via = self.source(v, parts)
        if via is not None:
            return [(v, via)]
        chosen = self.found.choices[0].chosen[v]
        way = value.ways[chosen.way]
        if way.op == "result":
            return self.arguments(*self.site(v)[:2])
        if way.op == "parameter":
            return []
        return [(c, self.operand(v, i)) for i, c in enumerate(way.children)]

    def operand(self, v: int, i: int) -> Parts:
        """The placement in which a value is read as operand `i` of `v`."""
        return tuple(c.chosen[v].strategy.operands[i] for c in self.found.choices)

    def build(self, v: int, parts: Parts) -> Expr:
        value = self.program.values[v]
        if value.is_free:
            leaf = self.graph.leaf(value.number, 0)
            assert leaf is not None
            return self.as_partial_sum(leaf, (REPLICATED,) * len(parts), parts)
        via = self.source(v, parts)
        if via is not None:
            return self.annotated(self.with_placement(self.at[v, via], via, parts), parts)
        raw = self.computed(v)
        if value.number >= 0:
            self.made[raw] = value.number
        found = self.annotated(raw, parts) if isinstance(value.annotation, Tensor) else raw
        if value.number >= 0:
            self.made[found] = value.number
        return found

    def annotated(self, e: Expr, parts: Parts) -> Expr:
        ahead = _partial(parts)
        placed = (ahead.index(a) if a in ahead else p + len(ahead) if isinstance(p, int) else p
                  for a, p in enumerate(parts))  # fmt: skip
        return op.annotate_sharding(e, self.mesh, str(MeshPlacement(tuple(placed))))

    def with_placement(self, e: Expr, before: Parts, after: Parts) -> Expr:
        """`e`, in placement `before`, as in `after`: partial sums are summed up, and others made of whole values."""
        ahead = _partial(before)
        summed = [i for i, a in enumerate(ahead) if after[a] != PARTIAL_SUM]
        left = tuple(REPLICATED if p == PARTIAL_SUM and q != p else p for p, q in zip(before, after, strict=True))
        if len(summed) > 1 and len(summed) == len(ahead):  # one axis over all of them, so that XLA sums once
            parts = tuple(p + 1 if isinstance(p, int) else 0 if p == PARTIAL_SUM else p for p in before)
            merged = op.reshape(e, (math.prod(self.found.mesh.sizes[a] for a in ahead), *e.shape[len(ahead) :]))
            e, summed = op.annotate_sharding(merged, self.mesh, str(MeshPlacement(parts))), [0]
        return self.as_partial_sum(op.sum(e, summed) if summed else e, left, after)

    def as_partial_sum(self, e: Expr, before: Parts, after: Parts) -> Expr:
        """`e`, in placement `before`, as a sum along the axes along which only `after` is partial: the first device has
        all of it, the others zeros."""
        ahead = list(_partial(before))
        for a in _partial(after):
            if a not in ahead:
                ahead = sorted((*ahead, a))
                i, n = ahead.index(a), self.found.mesh.sizes[a]
                e = op.expand_dims(e, i)
                first = op.const((np.arange(n) == 0).reshape([n if d == i else 1 for d in range(e.ndim)]))
                e = op.where(first, e, op.const(0, e.dtype))
        return e

    def computed(self, v: int) -> Expr:
        """The expression that computes a value from its operands, which are built."""
        value = self.program.values[v]
        if value.parameter >= 0:
            return self.graph.function.params[value.parameter]
        way = value.ways[self.found.choices[0].chosen[v].way]
        if way.op == "result":
            c, k, index = self.site(v)
            call = self.call_of(c, k)
            return call if index is None else tuple_get(call, index)
        operands = [self.at[c, self.operand(v, i)] for i, c in enumerate(way.children)]
        if way.candidate < 0:  # a field of a tuple
            return operands[0]
        for a, c in enumerate(self.found.choices):
            ring = c.chosen[v].strategy.ring
            if ring is not None:
                return self.in_ring(v, way, operands, a, ring)
        if PARTIAL_SUM in (home := self.first_placement(v)):
            return self.batched(v, way, operands, home)
        return self.applied(v, way, operands)

    def batched(self, v: int, way: ValueWay, operands: Sequence[Expr], home: Parts) -> Expr:
        """The expression that computes a value that stays a sum, `home`, along axes of the mesh: batched over these."""
        made = self.in_pieces(v, way, operands, home)
        if made is not None:
            return made
        # The value itself, which one device then has.
        parts = [self.operand(v, i) for i in range(len(operands))]
        left = [tuple(REPLICATED if q == PARTIAL_SUM else q for q in p) for p in parts]
        whole = [self.with_placement(x, p, q) for x, p, q in zip(operands, parts, left, strict=True)]
        return self.as_partial_sum(self.applied(v, way, whole), tuple(REPLICATED for _ in home), home)

    def in_pieces(self, v: int, way: ValueWay, operands: Sequence[Expr], home: Parts) -> Expr | None:
        """The expression of what each device has of the sum of a value, `home`; None if there is none."""
        mesh, ahead = self.found.mesh, _partial(home)
        parts = [self.operand(v, i) for i in range(len(operands))]
        pieces = [self.pieces(x, p, ahead) for x, p in zip(operands, parts, strict=True)]
        mapped = [[a for a in ahead if p[a] != REPLICATED] for p in parts]
        if all(x is not None for x in pieces):
            given = [x for x in pieces if x is not None]
            shapes = [x.shape[len(m) :] for x, m in zip(given, mapped, strict=True)]
            params = [var(f"p{i}", Tensor(s, x.dtype)) for i, (x, s) in enumerate(zip(given, shapes, strict=True))]
            one = self.applied(v, way, params)
            same = one.annotation == self.program.values[v].annotation
            made = pure_function("piece", params, [one]) if same else None
            for a in reversed(ahead):
                made = made and self.batch(made, [a in m for m in mapped], Dim.of(mesh.sizes[a]))
            if made is not None:
                return inline_call(made, given)[0]
        return None

    def in_ring(self, v: int, way: ValueWay, operands: Sequence[Expr], a: int, ring: Ring) -> Expr:
        """The expression that computes a value by pieces that go round along axis `a` of the mesh."""
        n, home = self.found.mesh.sizes[a], self.first_placement(v)
        parts = [self.operand(v, i) for i in range(len(operands))]
        result = self.program.values[v].annotation
        assert isinstance(result, Tensor) and result.shape is not None

        def placed(x: Expr, i: int | None) -> Expr:
            """Operand `i`, or the result, with axes more in front, the devices first."""
            ahead = x.ndim - (len(result.shape or ()) if i is None else operands[i].ndim)
            of = home if i is None else parts[i]
            where = (0 if b == a else p + ahead if isinstance(p, int) else p for b, p in enumerate(of))
            return op.annotate_sharding(x, self.mesh, str(MeshPlacement(tuple(where))))

        dims = (home[a],) if ring.passed is None else (home[a], ring.axis)
        # What is read transposed is transposed in each step: otherwise XLA stores it transposed before the loop, of
        # stacked weights those of all layers.
        turned = [() if i == ring.passed or _partial(p) else _axes_of(x)
                  for i, (x, p) in enumerate(zip(operands, parts, strict=True))]  # fmt: skip
        read = [
            (_made(x).args[0] if axes else x, tuple(_along(p, axes) for p in at))
            for x, at, axes in zip(operands, parts, turned, strict=True)
        ]
        given = [self.pieces(x, p, [a]) for x, p in read]
        mapped = tuple(isinstance(p[a], int) for p in parts)
        shapes = [x.shape[m:] if x is not None else () for x, m in zip(given, mapped, strict=True)]
        divided = ring.axes if ring.passed is None else (None,) * len(operands)
        cuts = [_along(d, axes) for d, axes in zip(divided, turned, strict=True)]
        shapes = [[k // n if i == d else k for i, k in enumerate(x)] for x, d in zip(shapes, cuts, strict=True)]
        pairs = zip(shapes, operands, strict=True)
        params = [var(f"p{i}", Tensor(tuple(x), e.dtype)) for i, (x, e) in enumerate(pairs)]
        each = [op.permute_dims(p, axes) if axes else p for p, axes in zip(params, turned, strict=True)]
        one = self.applied(v, way, each) if None not in given else None
        wanted = tuple(k // n if i in dims else k for i, k in enumerate(result.shape))
        if one is not None and one.annotation == Tensor(wanted, result.dtype):
            cut = [self.cut(x, d, p, a) for x, d, (_, p) in zip(given, cuts, read, strict=True) if x is not None]
            loop = RingLoop(f"{self.name}_pieces_{v}", pure_function("piece", params, [one]), mapped, ring, n,
                            self.batch, placed)  # fmt: skip
            made = loop.built(cut)
            if made is not None:
                self.steps.append(made[1])
                return self.joined(made[0], dims, home, a)
        whole = [
            self.annotated(x, (*p[:a], REPLICATED, *p[a + 1 :])) if i == ring.passed else x
            for i, (x, p) in enumerate(zip(operands, parts, strict=True))
        ]
        return self.applied(v, way, whole)

    def ahead(self, d: Part, parts: Parts, a: int) -> int:
        """Into how many pieces the axes of the mesh before `a` split dimension `d`."""
        return math.prod(n for n, p in zip(self.found.mesh.sizes[:a], parts[:a], strict=True) if p == d)

    def cut(self, e: Expr, d: int | None, parts: Parts, a: int) -> Expr:
        """`e`, which has an axis of devices in front, with one more behind that for the pieces along axis `a` of the
        mesh of dimension `d`; as it is without one."""
        if d is None:
            return e
        n, ahead = self.found.mesh.sizes[a], self.ahead(d, parts, a)
        devices, *rest = e.shape
        size = rest[d] // (ahead * n)
        split = op.reshape(e, (devices, *rest[:d], Dim.of(ahead), Dim.of(n), size, *rest[d + 1 :]))
        moved = op.permute_dims(split, [0, d + 2, *(i for i in range(1, split.ndim) if i != d + 2)])
        return op.reshape(moved, (devices, Dim.of(n), *rest[:d], size * ahead, *rest[d + 1 :]))

    def joined(self, e: Expr, dims: Sequence[Part], parts: Parts, a: int) -> Expr:
        """`e`, whose first axes are pieces along axis `a` of the mesh of dimensions `dims` of a value, as the value."""
        shape, order, merged = list(e.shape[: len(dims)]), list[int](), list[Dim]()
        for d, size in enumerate(e.shape[len(dims) :]):
            if d in dims:
                ahead = self.ahead(d, parts, a)
                order += [len(shape), dims.index(d), len(shape) + 1]
                shape += [Dim.of(ahead), size // ahead]
                merged.append(size * self.found.mesh.sizes[a])
            else:
                order.append(len(shape))
                shape.append(size)
                merged.append(size)
        return op.reshape(op.permute_dims(op.reshape(e, shape), order), merged)

    def pieces(self, e: Expr, parts: Parts, ahead: Sequence[int]) -> Expr | None:
        """`e`, which is in placement `parts`, with an axis in front for each axis of the mesh in `ahead` over which it
        is split or a sum; None if its sizes are not divided."""
        sizes, before = self.found.mesh.sizes, _partial(parts)
        front = [(a, i) for i, a in enumerate(before)]
        shape, order, merged = list(e.shape[: len(before)]), list[int](), list[Dim]()
        for d, size in enumerate(e.shape[len(before) :]):
            over = [a for a, p in enumerate(parts) if p == d]
            rest = size
            for a in over if set(over) & set(ahead) else ():
                if not rest.is_const or int(rest) % sizes[a]:
                    return None
                rest //= sizes[a]
                if a in ahead:
                    front.append((a, len(shape)))
                else:
                    order.append(len(shape))
                shape.append(Dim.of(sizes[a]))
            order.append(len(shape))
            shape.append(rest)
            merged.append(size // math.prod(sizes[a] for a in over if a in ahead))
        if len(shape) == len(e.shape):
            return e
        front.sort()
        split = op.permute_dims(op.reshape(e, shape), [i for _, i in front] + order)
        left = tuple(PARTIAL_SUM if a in ahead and p != REPLICATED else p for a, p in enumerate(parts))
        return self.annotated(op.reshape(split, [*(sizes[a] for a, _ in front), *merged]), left)

    def applied(self, v: int, way: ValueWay, operands: Sequence[Expr]) -> Expr:
        """The operator of a way to compute a value, of these operands."""
        candidate = self.graph.graph.candidates[self.program.values[v].number][way.candidate]
        given = iter(operands)
        full = [self.function_operand(c) if self.is_function(c) else next(given) for c in candidate.children]
        return self.graph.build(self.program.values[v].number, way.candidate, full)

    def is_function(self, c: int) -> bool:
        return self.graph.graph.candidates[c][0].op == FUNCTION

    def function_operand(self, c: int) -> Expr:
        leaf = self.graph.leaf(c, 0)
        assert leaf is not None
        return leaf

    def site(self, v: int) -> tuple[int, Candidate, int | None]:
        """The node that runs the function of which a value is a result: its class and candidate, and which result."""
        number = self.program.values[v].number
        candidates = self.graph.graph.candidates
        for k in candidates[number]:
            if k.op in FOLLOWED:
                return number, candidates[number][self.graph.taken[number]], None
            if k.op == TUPLE_GET:
                inner = k.children[0]
                taken = self.graph.taken.get(inner, 0)
                if candidates[inner][taken].op in FOLLOWED or (self.name, inner) in self.program.handed_on:
                    return inner, candidates[inner][taken], int(k.site.attrs["index"])
        raise AssertionError("a result of no function")

    def callee(self, c: int) -> str:
        return str(self.function_operand(c).attr("name"))

    def arguments_of(self, c: int, k: Candidate) -> list[tuple[int, Parts] | None]:
        """The value and the placement of each argument; None for an argument that nobody needs."""
        handed = self.program.handed_on.get((self.name, c))
        if handed is not None:
            results = [handed.get(i, -1) for i in range(len(k.children))]
            return [
                (self.numbers[x], self.first_placement(r)) if r >= 0 and self.is_chosen(r) else None
                for x, r in zip(k.children, results, strict=True)
            ]
        runs = runs_of(k.op, k.children, k.site.attrs)
        if k.op == COND:
            index = group_arguments(k.op, k.children, k.site.attrs).index
            given = [self.program.arguments.get((self.name, c, i), -1) for i in range(len(runs[0].constants))]
            return [(self.numbers[index], (REPLICATED,) * len(self.found.choices))] + [
                (a, self.first_placement(a)) if a >= 0 and self.is_chosen(a) else None for a in given
            ]
        # What a condition and a body carry is placed as the body takes it.
        taken = [
            (p, x, 0 if j < len(run.constants) + len(run.carry) else 1)
            for run in runs
            for j, (p, x) in enumerate(
                zip(
                    self.program.parameters[self.callee(run.function)],
                    (*run.constants, *run.carry, *run.slices),
                    strict=True,
                )
            )
            if run is runs[-1] or j < len(run.constants)
        ]
        found: list[tuple[int, Parts] | None] = []
        for p, x, shift in taken:
            if not self.is_chosen(p):
                found.append(None)
                continue
            parts = tuple(c.part(p) for c in self.found.choices)
            found.append((self.numbers[x], tuple(q + shift if isinstance(q, int) else q for q in parts)))
        return found

    def arguments(self, c: int, k: Candidate) -> list[tuple[int, Parts]]:
        return [g for g in self.arguments_of(c, k) if g is not None]

    def call_of(self, c: int, k: Candidate) -> Expr:
        """The call, or the loop, with its arguments placed as the function takes them."""
        found = self.calls.get(c)
        if found is None:
            given = iter(self.arguments_of(c, k))
            operands: list[Expr] = []
            for x in k.children:
                g = None if self.is_function(x) else next(given)
                operands.append(
                    self.function_operand(x) if self.is_function(x) else self.placeholder(self.numbers[x]) if g is None
                    else self.at[g]
                )  # fmt: skip
            found = self.calls[c] = self.graph.build(c, self.graph.taken[c], operands)
        return found


def _partial(parts: Parts) -> tuple[int, ...]:
    """The axes of the mesh along which a value in this placement is a partial sum."""
    return tuple(a for a, p in enumerate(parts) if p == PARTIAL_SUM)


def _made(x: Expr) -> Expr:
    """How `x` comes about, without the annotation of its placement there."""
    return x.args[0] if x.op == ANNOTATE_SHARDING else x


def _axes_of(x: Expr) -> tuple[int, ...]:
    """The axes of the value that `x` is the transpose of, where it comes about; none if it is no transpose."""
    made = _made(x)
    return made.attr("axes") if made.op == "permute_dims" else ()


def _along(d: Any, axes: Sequence[int]) -> Any:
    """Dimension `d` of a transpose as one of what it transposes; what is no dimension, or without `axes`, as it is."""
    return axes[d] if axes and isinstance(d, int) else d
