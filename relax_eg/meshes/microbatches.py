"""Loops over layers of which a batch may pass in pieces: what a pipeline of stages needs of them.

A scan qualifies if its body computes each place of the batch from the same place of what it carries, as the index
equations of its operators say (`meshes.strategies`): the carried values, and what each layer reads and makes, are split
along their batch, or are the same for all of it, or are sums over it (the gradients of weights). Which parameters have
a batch follows from the operators that read them. Nothing is assumed: an operator whose equations do not say so ends
the attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CONSTANT, SCAN, TUPLE, TUPLE_GET, VAR, Attrs, Expr, tuple_, var
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import Function, Module, pure_function
from relax_eg.ir.placements import PARTIAL_SUM, REPLICATED, Part
from relax_eg.meshes.linearity import is_linear
from relax_eg.meshes.program import HANDING_ON
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops.fused import program_at
from relax_eg.ops.record import call
from relax_eg.shapes import Dim
from relax_eg.traversal import operands_first

_PASSES = 64  # limit: passes over a body; each finds more values that have a batch


@dataclass(frozen=True)
class MicrobatchedScan:
    """A scan whose batch may pass in pieces.

    - `scan`: the node.
    - `body`: its body for one piece.
    - `constants`, `carry`, `slices`, `stacked`: the part of each constant, carried value, slice and stacked result of
      the body: the dimension of its batch, "R" if it is the same for all pieces, or "P[sum]" if it is the sum of those
      for the pieces.
    """

    scan: Expr
    body: Function
    constants: tuple[Part, ...]
    carry: tuple[Part, ...]
    slices: tuple[Part, ...]
    stacked: tuple[Part, ...]

    @property
    def length(self) -> int:
        return int(self.scan.attr("length"))

    @property
    def results(self) -> list[Any]:
        """The annotations of the results of a step on one piece."""
        return [r.annotation for r in self.body.result.args]


def microbatched_scans(module: Module, stages: int, pieces: int) -> list[MicrobatchedScan]:
    """The scans of a module's first function that can run as a pipeline of `stages` with a batch in `pieces`."""
    found: list[MicrobatchedScan] = []
    for e in module.main.expressions():
        if e.op == SCAN and not e.attr("length").variables and int(e.attr("length")) % stages == 0:
            made = _microbatched(module, e, pieces)
            if made is not None and int(e.attr("length")) >= stages:
                found.append(made)
    return found


def _microbatched(module: Module, scan: Expr, pieces: int) -> MicrobatchedScan | None:
    p = group_arguments(SCAN, scan.args, dict(scan.attrs))
    body = module[str(p.functions[0].attr("name"))]
    shapes = [x.annotation.shape if isinstance(x.annotation, Tensor) else None for x in p.carry]
    if not shapes or not body.is_one_block:
        return None
    for d in range(2):  # a batch is the first axis, or the second, after time
        batches = {s[d] if s is not None and len(s) > d else None for s in shapes}
        batch = next(iter(batches))
        if len(batches) == 1 and batch is not None and not batch.variables and int(batch) % pieces == 0:
            found = _Pieces(body, len(p.constants), len(p.carry), d, int(batch), pieces).run()
            if found is not None:
                local, parts, results = found
                n, m = len(p.constants), len(p.constants) + len(p.carry)
                return MicrobatchedScan(scan, local, parts[:n], parts[n:m], parts[m:], results[m - n :])
    return None


class _Pieces:
    """The body of a scan for one piece of its batch, which is dimension `d`, of size `batch`, of what it carries."""

    def __init__(self, body: Function, constants: int, carried: int, d: int, batch: int, pieces: int) -> None:
        self.body, self.batch, self.pieces, self.d = body, batch, pieces, d
        self.carried = body.params[constants : constants + carried]
        self.same: dict[Expr, Expr] = {b.var: b.value for b in body.blocks[0].bindings}
        self.wanted: dict[Expr, Part] = dict.fromkeys(self.carried, d)
        result = body.result
        self.results = [self.resolved(r) for r in (result.args if result.op == TUPLE else (result,))]
        self.order = self._order()

    def resolved(self, e: Expr) -> Expr:
        """The expression that has the value of `e`: of a variable, of a field of a tuple."""
        while True:
            if e in self.same:
                e = self.same[e]
            elif e.op == TUPLE_GET and self.resolved_tuple(e.args[0]) is not None:
                made = self.resolved_tuple(e.args[0])
                assert made is not None
                e = made.args[int(e.attr("index"))]
            else:
                return e

    def resolved_tuple(self, e: Expr) -> Expr | None:
        """The node whose operands are the fields of `e`."""
        while e in self.same:
            e = self.same[e]
        hands_on = e.op == CALL_DPS_LIBRARY and e.attr("name") in HANDING_ON
        return e if e.op == TUPLE or hands_on else None

    def _order(self) -> list[Expr]:
        """All values that the results need, operands first."""
        return operands_first(self.results, lambda e: [self.resolved(a) for a in e.args])

    def run(self) -> tuple[Function, tuple[Part, ...], tuple[Part, ...]] | None:
        """The body for one piece, the parts of its parameters and those of its results; None if there is none."""
        parts: dict[Expr, Part] | None = {}
        for _ in range(_PASSES):
            known = dict(self.wanted)
            parts = self._parts()
            if parts is None:
                return None
            if known == self.wanted:
                break
        else:
            return None
        assert parts is not None
        results = [parts[r] for r in self.results]
        if results[: len(self.carried)] != [self.d] * len(self.carried):
            return None
        if any(isinstance(p, str) and p not in (REPLICATED, PARTIAL_SUM) for p in results):
            return None
        try:
            local = self._local(parts)
        except RelaxEgError:
            return None
        given = tuple(parts.get(p, REPLICATED) for p in self.body.params)
        return None if local is None else (local, given, tuple(results))

    def _parts(self) -> dict[Expr, Part] | None:
        """The part of every value, or None if there is no way to compute one. Adds to `wanted` what turns out to have a
        batch."""
        parts: dict[Expr, Part] = {}
        for e in self.order:
            wanted = self.wanted.get(e)
            if e.op == VAR:
                parts[e] = REPLICATED if wanted is None else wanted
                continue
            operands = [parts[self.resolved(a)] for a in e.args]
            if wanted is None and all(p == REPLICATED for p in operands):
                parts[e] = REPLICATED
                continue
            chosen = self._strategy(e, operands, wanted)
            if chosen is None:
                return None
            parts[e] = chosen.result
            for a, p, q in zip(e.args, operands, chosen.operands, strict=True):
                if p != q:
                    self.wanted[self.resolved(a)] = q
        return parts

    def _strategy(self, e: Expr, operands: Sequence[Part], wanted: Part | None) -> SplitStrategy | None:
        """The strategy for operands in these parts, of which replicated ones may turn out to have a batch."""
        if e.op in CORE:
            return None
        annotations = tuple(self.resolved(a).annotation for a in e.args)
        if PARTIAL_SUM in operands:
            keeps = wanted is None and _keeps_sum(e.op, annotations, e.attrs, e.annotation, operands)
            return SplitStrategy(tuple(operands), PARTIAL_SUM) if keeps else None
        found: list[tuple[int, SplitStrategy]] = []
        for s in strategies(e.op, annotations, e.attrs, e.annotation):
            fits = all(p in (q, REPLICATED) for p, q in zip(operands, s.operands, strict=True))
            same = s.result == wanted if wanted is not None else True
            # Places of the batch stay whole, so any places may form a piece.
            whole = all(int(x) % self.batch == 0 for x in s.extents if not x.variables)
            free = [a for a, p, q in zip(e.args, operands, s.operands, strict=True) if p != q]
            open_ = all(self._may_have_batch(self.resolved(a)) for a in free)
            if fits and same and whole and open_ and not s.whole and not s.halo and not s.takes_sums:
                found.append((len(free), s))
        return min(found, key=lambda f: f[0])[1] if found else None

    def _may_have_batch(self, e: Expr) -> bool:
        return e.op != CONSTANT and e not in self.carried

    def _local(self, parts: Mapping[Expr, Part]) -> Function | None:
        """The body for one piece."""
        made: dict[Expr, Expr] = {}
        for p in self.body.params:
            assert isinstance(p.annotation, Tensor)
            made[p] = var(str(p.attr("name")), self._piece(p.annotation, parts.get(p, REPLICATED)))
        for e in self.order:
            if e in made or e.op == CONSTANT:
                made.setdefault(e, e)
                continue
            wanted = self._piece(e.annotation, parts[e])
            attrs = dict(self._attributes(e, parts[e]))
            made[e] = call(e.op, [made[self.resolved(a)] for a in e.args], attrs)
            if made[e].annotation != wanted:
                return None
        fields = [made[r] for r in self.results]
        name, params = f"{self.body.name}_piece", [made[p] for p in self.body.params]
        found = pure_function(name, params, fields)
        return pure_function(name, params, fields, tuple_(b.var for b in found.blocks[0].bindings))

    def _piece(self, a: Any, part: Part) -> Tensor:
        """The annotation of one piece of a value."""
        assert isinstance(a, Tensor) and a.shape is not None
        return Tensor(tuple(n // self.pieces if i == part else n for i, n in enumerate(a.shape)), a.dtype)

    def _attributes(self, e: Expr, part: Part) -> Iterator[tuple[str, Any]]:
        """The attributes of an operator for one piece: sizes of its result are those of the piece."""
        shape = getattr(e.annotation, "shape", None) or ()
        for key, value in e.attrs:
            sizes = isinstance(value, tuple) and len(value) == len(shape) and all(isinstance(v, Dim) for v in value)
            if sizes and isinstance(part, int) and value[part] == shape[part]:
                yield key, tuple(v // self.pieces if i == part else v for i, v in enumerate(value))
            else:
                yield key, value


def _keeps_sum(
    op: str, annotations: tuple[Annotation, ...], attrs: Attrs, result: Annotation, parts: Sequence[Part]
) -> bool:
    """Whether an operator of partial sums is a partial sum, up to rounding."""
    placed = program_at(op, annotations, attrs, result)
    if placed is None or len(placed.program.inputs) != len(parts):
        return False
    summed = [i for i, p in enumerate(parts) if p == PARTIAL_SUM]
    return set(parts) <= {PARTIAL_SUM, REPLICATED} and is_linear(placed.program, summed, narrows=True)
