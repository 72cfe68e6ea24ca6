"""Rules that save memory by computing in pieces: of a large intermediate value only one piece exists at a time.

Examples are the scores of an attention, the hidden layer of a perceptron, and the products that a sum adds. If the
equations show that rows of the result follow from rows of the intermediate value, the result is computed for some rows
at a time and joined; if they show that the result adds up rows, it is accumulated over some rows at a time, together
with all results that need the same rows, such as the gradients of a training step. A loop takes longer than one kernel,
except that on CPUs memory for a large array is obtained page by page, at every call. So the rules are tried for every
value if `optimize` has a `memory_limit`; without one they are tried for nodes whose result is smaller than an operand
of at least `ProgramQueries.large_bytes` bytes, and nothing is accumulated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops import bytes_of
from relax_eg.ops.ordering import AFTER
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.transfers import FROM_HOST, ON_HOST
from relax_eg.rules.checking.piece_trials import (
    batches,
    images,
    on_host,
    rows,
    softmaxes,
    sums_of_images,
    sums_of_rows,
    twice,
)
from relax_eg.rules.checking.schema_answers import RecordingAnswers
from relax_eg.rules.pieces.all_steps import StepsDepend, without_loops
from relax_eg.rules.pieces.fission import BodyAnswers, Finer, in_a_loop, readers_of
from relax_eg.rules.pieces.halo import Halo, halo_of, halo_of_totals, totals_of, with_halo
from relax_eg.rules.pieces.regions import (
    ORDERS,
    SHAPED,
    CutRegion,
    dimension_of,
    dimensions_of,
    extent_of,
    joint_region,
)
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import MEMORY, ExtractionStep, FactsOf, Made, ProgramQueries, Prove, schema
from relax_eg.rules.shared_parts import why_not_equal_over_shared
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim, ceildiv
from relax_eg.tir.slicing import Dimension

ANCHORS = ("matmul", "linear", "conv", "sum", "mean", "max", "min", "add", "subtract", "multiply", "divide")
PIECES, _MOST_PIECES = 8, 64  # chosen: pieces of an axis without a memory limit: between both numbers
_UNDER_LIMIT = (8, 32, 128)  # chosen: pieces of an axis under a memory limit
_FEWEST = 4  # chosen: places of a dimension from which results are accumulated over it
_ROOM = 2  # chosen: approximate number of arrays of the size of a piece that are live in a step
_LEAST = 2  # chosen: least elements of the axis in a piece under a memory limit, at the sizes of interest
_MOST_CUT = 3  # limit: regions of a step that are cut further
_MOST = 48  # limit: operators of one result computed in pieces together
_PROVING = 20.0  # limit: seconds of processor time of the proof of a step

Nodes = dict[Expr, Dimension]  # readers first


def computed_in_pieces(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    """rows of a result are computed some at a time from rows of a large intermediate value, and joined"""
    found = _largest_part(e, queries)
    of_places = () if found is None else _in_counts(e, _of_one(e, found[2]), found[1], queries, sums=False)
    return of_places if queries.large_bytes else (*of_places, *_in_windows(e, queries))


def _in_windows(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    """`e` in pieces of its longest axis whose places read windows, such as the rows of an image, each with a halo."""
    if not is_known_tensor(e):
        return ()
    axes = sorted(range(e.ndim), key=lambda a: -queries.extent(e.shape[a]))
    return _with_halos(e, (functools.partial(halo_of, e, a) for a in axes), queries)


def _totals_of_windows(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    """`e` accumulated over pieces of the longest axis that it reduces, if places of that read windows, such as the sum
    of a convolution's result over its rows."""
    if not is_known_tensor(e):
        return ()
    reduced = sorted(totals_of(e), key=lambda t: -queries.extent(t.extent))
    return _with_halos(e, (functools.partial(halo_of_totals, e, t) for t in reduced), queries)


def _with_halos(
    e: Expr, regions: Iterable[Callable[[int, ProgramQueries], Halo | None]], queries: ProgramQueries
) -> tuple[Expr, ...]:
    """`e` by the first of `regions`, each of some number of pieces, that has a value as large as `e` inside."""
    own = queries.extent(bytes_of(e.annotation))
    for region in regions:
        proposed: list[Expr] = []
        for count in _UNDER_LIMIT:
            halo = region(count, queries)
            alone = [] if halo is None else [x for x in halo.nodes if x is not e and halo.reads_all(x, queries)]
            inside = [queries.extent(bytes_of(x.annotation)) for x in alone]
            if halo is None or max(inside, default=0) < own:
                break
            made = with_halo(e, halo, queries)
            proposed += [] if made is None else [made]
        if proposed:
            return tuple(proposed)
    return ()


@dataclass(frozen=True)
class _Parts:
    """A program with each softmax by its parts: what became of the nodes, and all nodes with their readers."""

    made: Mapping[Expr, Expr]
    nodes: Sequence[Expr]
    readers: Mapping[Expr, Sequence[Expr]]


def _parts(queries: ProgramQueries) -> _Parts | None:
    """The program by parts; None if it has no softmax."""
    if all(x.op != "softmax" for x in queries.nodes):
        return None
    made: dict[Expr, Expr] = {}
    for x in queries.nodes:
        args = [made.get(a, a) for a in x.args]
        made[x] = _softmax(args[0], x.attr("axis")) if x.op == "softmax" else with_operands(x, args)
    nodes = postorder(list(made.values()))
    return _Parts(made, nodes, readers_of(nodes, ()))


def _softmax(x: Expr, axis: int) -> Expr:
    raised = op.exp(op.subtract(x, op.max(x, axis, keepdims=True)))
    return op.divide(raised, op.sum(raised, axis, keepdims=True))


@dataclass
class _InParts(RecordingAnswers):
    """The answers about a program by parts."""

    parts: _Parts = field(kw_only=True)

    @property
    def nodes(self) -> Sequence[Expr]:
        return self.parts.nodes

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self.parts.readers.get(e, ())

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        return self.queries.once(("in parts", key), lambda q: make(_InParts(q, parts=self.parts)))


def accumulated_over_pieces(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    """results that add up the rows of large intermediate values are accumulated over some rows at a time"""
    parts = queries.once("parts", _parts)
    if parts is None:
        return _accumulated_in(e, queries)
    proposed = _accumulated_in(parts.made[e], _InParts(queries, parts=parts))
    written = {made: x for x, made in parts.made.items() if made is not x}
    return tuple(substitute_exprs(list(proposed), written))


def _accumulated_in(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    of_windows = () if queries.large_bytes else _totals_of_windows(e, queries)
    return (*_accumulated_along(e, queries), *of_windows)


def _accumulated_along(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    start = e
    while start.op in ORDERS:
        start = start.args[0]
    if not is_known_tensor(start):
        return ()
    if queries.large_bytes and not _reads_large(start, queries):
        return ()
    # `computed_in_pieces` cuts the axis of a large part.
    has_own_axis = bool(queries.large_bytes) and _largest_part(start, queries) is not None
    about = _about(queries)
    best: dict[bool, tuple[int, int, CutRegion]] = {}  # by whether something is added up
    for along in dimensions_of(start):
        if about(extent_of(start, along)) < _FEWEST:
            continue
        region = joint_region(e, start, along, queries, ANCHORS)
        if region is None or about(region.extent) < _FEWEST:
            continue
        adds = any(region.dimensions[x].kind is not None for x in region.outputs)
        if len(region.outputs) == 1 and (has_own_axis or not adds):
            continue  # `computed_in_pieces` proposes that
        saved, largest = queries.once((region, "saved"), functools.partial(saved_by, region))
        is_large = largest >= max(queries.large_bytes, 1) and (adds or not queries.large_bytes)
        if saved > 0 and is_large and (adds not in best or saved > best[adds][0]):
            best[adds] = saved, largest, region
    return tuple(p for _, largest, region in best.values() for p in _in_counts(e, region, largest, queries, sums=True))


def saved_by(region: CutRegion, queries: ProgramQueries) -> tuple[int, int]:
    """The bytes of a region's values without those of its results, less these, and of the largest of the values."""
    about, outputs = _about(queries), {*region.outputs}
    inside = [about(bytes_of(x.annotation)) for x in region.dimensions if x not in outputs]
    return sum(inside) - sum(about(bytes_of(x.annotation)) for x in outputs), max(inside, default=0)


def _about(queries: ProgramQueries) -> Callable[[Dim], int]:
    return queries.largest_value if queries.large_bytes else queries.extent


def _in_counts(e: Expr, region: CutRegion, largest: int, queries: ProgramQueries, sums: bool) -> tuple[Expr, ...]:
    """`e` in pieces. Without a memory limit, pieces of the value of `largest` bytes are not large; with one, a piece
    needs a share of the memory at any size, so there are few pieces or more, and the steps of the finest are also cut
    along other dimensions. `sums`: whether these may add up in another order."""
    extent, about = region.extent, _about(queries)
    if not queries.large_bytes:
        counts = [without_padding(extent, n) for n in _UNDER_LIMIT if about(extent) >= _LEAST * n]
        if extent.is_const and extent.value <= _UNDER_LIMIT[-1]:  # such as the sequences of a batch, one by one
            counts.append(extent.value)
    else:
        count = PIECES
        while count < _MOST_PIECES and largest * _ROOM > count * queries.large_bytes:
            count *= 2
        counts = [without_padding(extent, count)]
    proposed: list[Expr] = []
    finest: tuple[Dim, Dim] | None = None
    for count in counts:
        rows, number = rows_of(extent, count, about(extent))
        found = queries.once((region, count), functools.partial(in_a_loop, region, rows, number))
        if found is not None:
            proposed.append(found[e])
            finest = rows, number
    if finest is not None and not queries.large_bytes:
        finer = FINER[sums]
        found = queries.once((region, "finer"), functools.partial(in_a_loop, region, *finest, finer=finer))
        proposed += [] if found is None else [found[e]]
    return tuple(proposed)


def _finer(step: BodyAnswers, sums: bool) -> Sequence[Expr] | None:
    """What a step of a loop computes, with its largest value in pieces, along the dimension in which most is saved, and
    so the then largest, until one is not cut; None if the first is not."""
    roots, at_first = step.roots, step.roots
    for _ in range(_MOST_CUT):
        step = BodyAnswers(step.queries, roots=roots, inside=step.inside)
        sizes = {x: step.extent(bytes_of(x.annotation)) for x in step.nodes if x.args and x not in roots}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        if largest is None:
            break
        best: tuple[int, CutRegion] | None = None
        for along in dimensions_of(largest):
            region = None if along.output is None else joint_region(None, largest, along, step, ANCHORS)
            if region is None or step.extent(region.extent) < _FEWEST:
                continue
            if not sums and any(region.dimensions[x].kind is not None for x in region.outputs):
                continue
            saved = sum(sizes.get(x, 0) for x in region.dimensions) - sum(sizes.get(x, 0) for x in region.outputs)
            saved -= sum(step.extent(bytes_of(x.annotation)) for x in region.outputs)
            if saved > 0 and largest not in region.outputs and (best is None or saved > best[0]):
                best = saved, region
        if best is None:
            break
        region, extent = best[1], step.extent(best[1].extent)
        beside = max((n for x, n in sizes.items() if x not in region.dimensions), default=1)
        counts = [n for n in _UNDER_LIMIT if extent >= _LEAST * n] or [extent]
        count = without_padding(region.extent, next((n for n in counts if sizes[largest] <= n * beside), counts[-1]))
        made = in_a_loop(region, *rows_of(region.extent, count, extent), step)
        if made is None:
            break
        roots = substitute_exprs(list(roots), made)
    return None if roots is at_first else roots


# Cut what a step computes; by whether pieces may be added up, which is another order.
FINER: dict[bool, Finer] = {sums: functools.partial(_finer, sums=sums) for sums in (False, True)}


def rows_of(size: Dim, count: int, about: int) -> tuple[Dim, Dim]:
    """The rows of a piece, and the number of pieces: `count`, or one for each row where there are fewer rows. `about`:
    the value of `size` at the sizes of interest."""
    return (Dim.of(1), size) if about <= count else (ceildiv(size, count), Dim.of(count))


def without_padding(size: Dim, count: int) -> int:
    """The next number of pieces that divides a known size, if it is less than twice `count`."""
    if not size.is_const:
        return count
    return next((n for n in range(count, 2 * count) if size.value % n == 0), count)


def _of_one(e: Expr, region: Nodes) -> CutRegion:
    return CutRegion(dict(reversed(region.items())), (e,), extent_of(e, region[e]))


def computed_one_by_one(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...]:
    """matrices of a batch are computed one at a time from a large intermediate value, and joined

    Proposes pieces of one index each along an axis that `computed_in_pieces` does not cut. They may be larger than the
    pieces of `computed_in_pieces`, and better at any size.
    """
    found = _largest_part(e, queries) if queries.large_bytes else None
    if found is None:
        return ()
    for axis, d in enumerate(e.shape):
        if 2 <= queries.largest_value(d) <= _MOST_PIECES:
            if axis == found[0]:
                return ()
            region = _region(e, axis, queries)
            if _most_inside(e, region, queries.largest_value) >= found[1]:
                made = in_a_loop(_of_one(e, region), Dim.of(1), d, queries) if region else None
                return () if made is None else (made[e],)
    return ()


def _largest_part(e: Expr, queries: ProgramQueries) -> tuple[int, int, Nodes] | None:
    """Returns the best axis to cut, the bytes of the largest value that is then computed in pieces, and the region."""
    if not is_known_tensor(e):
        return None
    if queries.large_bytes and not _reads_large(e, queries):
        return None
    about = _about(queries)
    found: list[tuple[bool, int, int, int, Nodes]] = []
    for axis, d in enumerate(e.shape):
        extent = about(d)
        if extent < (2 if queries.large_bytes else _LEAST * PIECES):
            continue
        region = _region(e, axis, queries)
        largest = _most_inside(e, region, about)
        small_enough = largest * _ROOM <= extent * queries.large_bytes or not queries.large_bytes
        if largest > about(bytes_of(e.annotation)) and largest >= queries.large_bytes:
            # Early axes give pieces of contiguous elements, read in place; with a limit, finer pieces need less.
            found.append((small_enough, largest, 0 if queries.large_bytes else extent, -axis, region))
    if not found:
        return None
    _, largest, _, axis, region = max(found, key=lambda f: f[:4])
    return -axis, largest, region


def _most_inside(e: Expr, region: Nodes, about: Callable[[Dim], int]) -> int:
    return max((about(bytes_of(x.annotation)) for x in region if x is not e), default=0)


def _reads_large(e: Expr, queries: ProgramQueries) -> bool:
    """Returns whether the result of a node is smaller than a large operand. So only the first such node after a large
    value is computed in pieces with it."""
    own = queries.largest_value(bytes_of(e.annotation))
    return any(queries.largest_value(bytes_of(a.annotation)) >= max(queries.large_bytes, own + 1) for a in e.args)


def _region(e: Expr, axis: int, queries: ProgramQueries) -> Nodes:
    """Returns the nodes that are computed in pieces with `e`, readers first, with the cut axis of each and those of its
    operands. Only nodes of the region read them; nodes that compute nothing may have other readers."""
    region: Nodes = {}
    wants: dict[Expr, list[int | None]] = {}
    todo = [(e, axis)]
    while todo and len(region) < _MOST:
        x, a = todo.pop()
        found = dimension_of(x, a)
        if found is None:
            continue
        region[x] = found
        for arg, place in zip(x.args, found.inputs, strict=True):
            asked = wants.setdefault(arg, [])
            asked.append(place)
            if place is not None and len(asked) == len(queries.readers(arg)) and {*asked} == {place}:
                todo.append((arg, place))
        if not todo:
            todo += [
                (arg, asked[0])
                for arg, asked in wants.items()
                if arg.op in SHAPED and arg not in region and asked[0] is not None and len({*asked}) == 1
                and dimension_of(arg, asked[0]) is not None
            ][:1]  # fmt: skip
    return region


def _once(e: Expr, queries: ProgramQueries) -> Expr | None:
    """Returns a value that is computed again, held back in an order, or kept on the host, as the value itself."""
    value = e
    while value.op in (AFTER, ON_HOST, FROM_HOST):
        value = value.args[0]
    return None if value is e else value


def _prove(numerics: Numerics) -> Prove:
    def prove(left: Expr, right: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
        try:
            in_all_steps = without_loops(right, functions, {*postorder((left,))})
        except StepsDepend as why:
            return str(why)
        return why_not_equal_over_shared(left, in_all_steps, _PROVING, numerics)

    return prove


pieces = RuleSet(
    "pieces",
    schemas=(
        ExtractionStep(
            "computed_again",
            "a value is computed again where it is read late, and steps run in an order that needs little memory",
            "exact",
            frozenset((MEMORY,)),
            _once,
            frozenset(),
            (twice,),
        ),
        ExtractionStep(
            "kept_on_host",
            "a value is in the memory of the host while nothing reads it, and copied beside other steps",
            "exact",
            frozenset((MEMORY,)),
            _once,
            frozenset(),
            (on_host,),
        ),
        schema(
            computed_in_pieces,
            "exact",
            (MEMORY,),
            ANCHORS,
            (rows, batches, images),
            prove=_prove("exact"),
            must_prove=False,
        ),
        schema(
            accumulated_over_pieces,
            "reassociate",
            (MEMORY,),
            frozenset(ANCHORS) | ORDERS,
            (sums_of_rows, softmaxes, sums_of_images),
            prove=_prove("reassociate"),
            must_prove=False,
        ),
        schema(
            computed_one_by_one, "exact", (MEMORY,), ANCHORS, (rows, batches), prove=_prove("exact"), must_prove=False
        ),
    ),
)
