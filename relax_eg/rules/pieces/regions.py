"""Regions of a program through which one dimension runs, to be computed in a loop over pieces of it
(`rules.pieces.fission`).

The index equations of each operator say which axes of its operands have the places of an axis of its result, or of an
axis that it reduces (`tir.slicing`). A reshape may merge the dimension with axes behind it, such as a batch with its
sequences. The merged axis then has several places for each place of the dimension.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush

from relax_eg.ir.annotations import Object, Tensor, dims_in, dims_of
from relax_eg.ir.expr import CONSTANT, Expr, node, unused_name, var
from relax_eg.ir.heads import CORE
from relax_eg.limits import MANY_KEPT
from relax_eg.ops.record import movement_operators
from relax_eg.ops.sizes import product
from relax_eg.rules.pieces.online import OnlineSums, TotalsFactor
from relax_eg.rules.pieces.slicing import Use, applied_again, equations_of, use_of, with_sizes
from relax_eg.rules.schemas import ProgramQueries
from relax_eg.shapes import Dim
from relax_eg.tir.slicing import Dimension, dimensions

RESULT = var("result", Object())  # among the readers of a result of a step
SHAPED = ("broadcast_to", "reshape", "full")  # operators whose attribute `shape` is the result's
_MOST = 8192  # limit: operators of a region
_MOST_OF_ONE = 512  # limit: operators of a region that is another one for each of its nodes
_PASSES = 3  # limit: loops over the same dimension of which each uses totals of those before
ORDERS = movement_operators("view", "order")  # operators that keep every element, in another place


@dataclass(frozen=True, eq=False)  # a key of `ProgramQueries.once`
class CutRegion:
    """What is computed in a loop over pieces.

    - `dimensions`: the nodes, operands first, each with its dimension.
    - `outputs`: the nodes that are results of the loop.
    - `extent`: the number of places along the dimension. Axes that merge it with others are multiples of it.
    - `online`: what follows from results that are accumulated, and is computed in the same loop.
    """

    dimensions: Mapping[Expr, Dimension]
    outputs: tuple[Expr, ...]
    extent: Dim
    online: OnlineSums = field(default_factory=lambda: OnlineSums({}))


def extent_of(x: Expr, d: Dimension) -> Dim:
    """The number of places along a dimension of a node."""
    if d.output is not None:
        return x.shape[d.output]
    return next(a.shape[place] for a, place in zip(x.args, d.inputs, strict=True) if place is not None)


def dimensions_of(x: Expr) -> tuple[Dimension, ...]:
    """The dimensions along which a node can be computed in pieces."""
    if x.op in CORE:
        return ()
    program = equations_of(use_of(x))
    return () if program is None else dimensions(program)


def dimension_of(x: Expr, axis: int) -> Dimension | None:
    """The dimension of a node that is this axis of its result, if pieces of that axis can be computed."""
    return _dimension_of(use_of(x), axis)


@lru_cache(MANY_KEPT)
def _dimension_of(use: Use, axis: int) -> Dimension | None:
    name, operands, attrs, annotation = use
    x = node(name, [var(f"x{i}", a) for i, a in enumerate(operands)], attrs, annotation)
    found = next((d for d in dimensions_of(x) if d.output == axis), None)
    if found is None or x.op in SHAPED or not dims_in(x.attrs):
        return found
    # Sizes among the attributes, such as a convolution's padding, may belong to this axis or to others.
    size = Dim.var(unused_size((x,)))
    pieces = [
        a if place is None else var(f"x{i}", Tensor(with_sizes(a.shape, {place: size}), a.dtype))
        for i, (a, place) in enumerate(zip(x.args, found.inputs, strict=True))
    ]
    return found if applied_again(x, pieces, {axis: size}) is not None else None


def joint_region(
    e: Expr | None, start: Expr, along: Dimension, queries: ProgramQueries, stacked: Sequence[str]
) -> CutRegion | None:
    """The region around `start` that has its dimension `along`: what `start` is computed from, and whatever else has
    the same dimension and can be computed in the same loop.

    Results that reduce the dimension are outputs, and so are nodes of the operators `stacked` that are read outside.
    If `e` needs totals of that region, the region is the one that is computed after these, in a loop of its own. None
    if `e` is no output, or without `e` if there is none.
    """
    known = queries.once("regions", _no_regions)
    extent, kinds = extent_of(start, along), tuple(stacked)
    while (start, along, extent, kinds) not in known:
        grown = _grown(start, along, extent, queries)
        if grown.finer is not None:
            start, along, extent = grown.finer
            continue
        passes = _Passes(grown.found, extent, queries, stacked)
        if not grown.is_closed:
            return passes.with_output(e)
        known |= dict.fromkeys(((x, d, extent, kinds) for x, d in grown.found.items()), passes)
    return known[start, along, extent, kinds].with_output(e)


def _no_regions(_: ProgramQueries) -> dict[tuple[Expr, Dimension, Dim, tuple[str, ...]], _Passes]:
    return {}


class _Passes:
    """The regions of connected nodes, of which each uses totals of those before; made on first use."""

    def __init__(
        self, grown: Mapping[Expr, Dimension], extent: Dim, queries: ProgramQueries, stacked: Sequence[str]
    ) -> None:
        self._make = functools.partial(_region_of, grown, extent, queries, stacked)
        self._made = [self._make()]

    def with_output(self, e: Expr | None) -> CutRegion | None:
        """The first region that has `e` as an output, or without `e` the first; None if there is none."""
        for i in range(_PASSES):
            if i == len(self._made):
                known = [r for r in self._made if r is not None]
                totals = frozenset(x for r in known for x, d in r.dimensions.items() if d.output is None)
                self._made.append(self._make(totals) if totals else None)
            region = self._made[i]
            if region is None or e is None or e in region.outputs:
                return region
        return None


def _region_of(
    grown: Mapping[Expr, Dimension],
    extent: Dim,
    queries: ProgramQueries,
    stacked: Sequence[str],
    given: frozenset[Expr] = frozenset(),
) -> CutRegion | None:
    """The region of connected nodes. None if it has no outputs. `given`: totals that are known before."""
    inside: dict[Expr, Dimension] = {}
    online = OnlineSums(inside)
    order = queries.once(("order", given), functools.partial(_order_of, given=given))
    made = 0  # the places of the nodes inside, as bits
    late: set[Expr] = set()  # nodes inside that are results of the loop, or follow from totals

    def is_after(x: Expr) -> bool:
        """Whether a node needs a result of the loop, so that it runs after it, or follows from totals."""
        return x in late or (x not in inside and x not in given and bool(order.above[order.place[x]] & made))

    todo = [order.place[x] for x in grown if x in order.place and x not in given]
    heapify(todo)
    last = -1
    while todo:
        place = heappop(todo)
        x = queries.nodes[place]
        if place == last:
            continue
        last, d = place, grown.get(x)
        if d is not None and not any(map(is_after, x.args)):
            inside[x] = d
            late |= {x} if d.kind is not None else set[Expr]()
        elif any(a in inside or is_after(a) for a in x.args):
            whole = x.args[0]
            if x.op in ORDERS and whole in inside and (kind := inside[whole].kind) is not None:
                # Parts of a sum can be brought into another order before they are added; no copy of the sum is then
                # made.
                part = Dimension((None,), None, kind)
                law = online.law(x, part, part=True) if whole in online.laws else None
                if law is not None or whole not in online.laws:
                    inside[x] = part
                    online.laws |= {} if law is None else {x: law}
            elif any(is_after(a) and a not in inside and a not in online.followers for a in x.args) or online.add(x, d):
                pass
            elif d is not None and d.kind in (None, "sum") and (law := online.law(x, d)) is not None:
                inside[x] = d
                online.laws[x] = law
            late |= {x} if x in inside else set[Expr]()
        made |= (x in inside) << place
        if online.follower(x) is not None:  # what reads it may be part of the region, too
            for y in queries.readers(x):
                if y in order.place:
                    heappush(todo, order.place[y])
    outputs: list[Expr] = []
    needed: set[Expr] = set()
    totals: set[Expr] = set()  # what terms of other sums use
    for x in reversed(inside):
        d, read = inside[x], queries.readers(x)
        is_read_outside = not read or any(y not in needed for y in read)
        is_stacked = d.kind is None and x not in online.laws and (x.op in stacked or RESULT in read)
        if ((d.kind is not None or is_stacked) and is_read_outside) or x in totals:
            outputs.append(x)
        elif x not in needed:
            continue
        needed.add(x)
        totals |= online.totals_of(x)
        followers = online.laws[x].given if x in online.laws else {}
        needed.update(
            a
            for i, (a, place) in enumerate(zip(x.args, d.inputs, strict=True))
            if i not in followers and reads_piece(inside, a, place)
        )
    if not outputs:
        return None
    return CutRegion({x: d for x, d in inside.items() if x in needed}, tuple(reversed(outputs)), extent, online)


@dataclass(frozen=True)
class _Order:
    """The nodes of a program: their places, and by place, the nodes that each needs for other things than what is
    given, as bits."""

    place: Mapping[Expr, int]
    above: Sequence[int]


def _order_of(queries: ProgramQueries, given: frozenset[Expr]) -> _Order:
    place = {x: i for i, x in enumerate(queries.nodes)}
    above: list[int] = []
    for x in queries.nodes:
        needed = 0
        for a in x.args:
            needed |= 0 if a in given else above[place[a]] | 1 << place[a]
        above.append(needed)
    return _Order(place, above)


def reads_piece(inside: Mapping[Expr, Dimension], operand: Expr, place: int | None) -> bool:
    """Whether a node reads what a step computes: an operand along the axis `place`, or a part of a sum (None)."""
    return operand in inside and inside[operand].output == place


@dataclass(frozen=True)
class _Grown:
    """Nodes that a dimension connects with a first one.

    - `found`: the nodes with their dimensions.
    - `is_closed`: whether each of them as the first one gives the same nodes and dimensions.
    - `finer`: a node, its dimension, and fewer places along it, if a reshape splits the dimension.
    """

    found: Mapping[Expr, Dimension]
    is_closed: bool
    finer: tuple[Expr, Dimension, Dim] | None = None


def _grown(e: Expr, along: Dimension, extent: Dim, queries: ProgramQueries) -> _Grown:
    """The nodes connected with `e` by a dimension of `extent` places, through operands and readers."""
    near = queries.once(("neighbours", extent), _no_neighbours)
    found = {e: along}
    todo = deque([e])
    is_closed = True
    while todo and len(found) < (_MOST if is_closed else _MOST_OF_ONE):
        x = todo.popleft()
        key = x, found[x]
        if key not in near:
            beside = _neighbours(x, found[x], queries)
            near[key] = [(y, _dimension_at(y, x, after, before, extent)) for y, after, before in beside]
        for y, there in near[key]:
            if there is None:
                is_closed = is_closed and y not in found
            elif there[1] != extent:
                return _Grown(found, False, (y, *there))
            elif y in found:
                is_closed = is_closed and found[y] == there[0]
            else:
                found[y] = there[0]
                todo.append(y)
    return _Grown(found, is_closed and not todo)


def _no_neighbours(_: ProgramQueries) -> dict[tuple[Expr, Dimension], list[tuple[Expr, tuple[Dimension, Dim] | None]]]:
    return {}


def _neighbours(x: Expr, d: Dimension, queries: ProgramQueries) -> Iterator[tuple[Expr, int | None, int | None]]:
    """The operands and readers of a node that may have its dimension: each with the axis of its result (`after`) or
    of the operand that it reads (`before`)."""
    for a, place in zip(x.args, d.inputs, strict=True):
        if place is not None:
            yield a, place, None
    if d.output is not None:
        for y in queries.readers(x):
            yield y, None, d.output


def _dimension_at(y: Expr, x: Expr, after: int | None, before: int | None, extent: Dim) -> tuple[Dimension, Dim] | None:
    """The dimension of `y`, an operand or a reader of `x`, and the places along it."""
    found = dimension_of(y, after) if after is not None else _dimension_read(y, x, before or 0)
    if found is not None:
        return found, extent
    return _merged(y, after, before, extent) if y.op == "reshape" else None


def _merged(x: Expr, after: int | None, before: int | None, extent: Dim) -> tuple[Dimension, Dim] | None:
    """The dimension of a reshape that merges axes or splits one, given the axis of its result (`after`) or of its
    operand (`before`), and the places along it: `extent`, or fewer if the axis is split."""
    operand = x.args[0]
    known, other = (x.shape, operand.shape) if after is not None else (operand.shape, x.shape)
    axis = after if after is not None else before
    assert axis is not None
    found = axis_with_elements_ahead(other, product(known[:axis]))
    if found is None:
        return None
    if not _divides(extent, other[found]):
        if not _divides(other[found], extent):
            return None
        extent = other[found]
    return (Dimension((found,), axis) if after is not None else Dimension((axis,), found)), extent


def axis_with_elements_ahead(shape: Sequence[Dim], ahead: Dim) -> int | None:
    """The first axis with more than one place that has that many elements ahead of it."""
    return next((i for i, d in enumerate(shape) if d != 1 and product(shape[:i]) == ahead), None)


def _divides(a: Dim, b: Dim) -> bool:
    return a != 0 and b // a * a == b


def _dimension_read(x: Expr, operand: Expr, axis: int) -> Dimension | None:
    """The dimension of `x` that is this axis of an operand, wherever `x` reads the operand."""
    places = [i for i, a in enumerate(x.args) if a is operand]
    for d in dimensions_of(x):
        if all(d.inputs[i] == axis for i in places):
            return d if d.output is None else dimension_of(x, d.output)
    return None


def form_of(region: CutRegion) -> tuple[CutRegion, dict[Expr, Expr]]:
    """A region whose operands from outside are variables, and what these stand for. Operands that a loop treats in
    their own way stay."""
    done: dict[Expr, Expr] = {}
    given: dict[Expr, Expr] = {}
    online = region.online

    def of(x: Expr) -> Expr:
        if x not in done:
            if x in region.dimensions or x in online.followers or x.op in ORDERS:
                done[x] = node(x.op, [of(a) for a in x.args], x.attrs, x.annotation)
            elif x.op in (CONSTANT, "iota"):
                done[x] = x
            else:
                done[x] = var(f"outside{len(given)}", x.annotation)
                given[done[x]] = x
        return done[x]

    def held(f: TotalsFactor) -> TotalsFactor:
        return f._replace(follower=of(f.follower))

    inside = {of(x): d for x, d in region.dimensions.items()}
    laws = {of(x): law.moved(held) for x, law in online.laws.items()}
    followers = {of(x): f._replace(totals=frozenset(map(of, f.totals))) for x, f in online.followers.items()}
    outputs = tuple(map(of, region.outputs))
    return CutRegion(inside, outputs, region.extent, OnlineSums(inside, followers, laws)), given


def unused_size(nodes: Mapping[Expr, Dimension] | Sequence[Expr]) -> str:
    """Returns a name for the size of a piece that no other size has."""
    taken = {v for x in nodes for y in (x, *x.args) for d in dims_of(y.annotation) for v in d.variables}
    taken |= {v for x in nodes for d in dims_in(x.attrs) for v in d.variables}
    return unused_name("rows", taken)
