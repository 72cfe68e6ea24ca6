"""Fission: a region of a program is computed in a loop over pieces of one dimension.

The dimension runs through the region: the index equations of each operator say which axes of its operands have the
places of an axis of its result, or of an axis that it reduces (`tir.slicing`). A result that has the dimension as an
axis is stacked from the pieces; a result that reduces it is accumulated from step to step.

A reshape may merge the dimension with axes behind it, such as a batch with its sequences. The merged axis then has
several places for each place of the dimension, and pieces of it are that many times as long.

The body of a loop may have regions that are computed in loops of their own, along other dimensions. So a program is cut
by a tree of loops.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from relax_eg import dtypes
from relax_eg.ir.annotations import Object, Tensor, dims_of
from relax_eg.ir.calls import function_ref, substitute_exprs
from relax_eg.ir.control import scan
from relax_eg.ir.expr import CONSTANT, VAR, Expr, node, postorder, tuple_get, var
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import pure_function
from relax_eg.ir.partition import missing_sizes
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import api as op
from relax_eg.ops.fused import program_at
from relax_eg.ops.record import call, movement_operators
from relax_eg.rules.online import OnlineSums, Totals, at_the_end, carried_on, given_to
from relax_eg.rules.schema_answers import RecordingAnswers
from relax_eg.rules.schemas import Made, ProgramQueries, as_tuple
from relax_eg.rules.slicing import Use, applied_again, use_of, with_sizes
from relax_eg.shapes import Dim
from relax_eg.tir.functions import identity
from relax_eg.tir.slicing import Dimension, dimensions

RESULT = var("result", Object())  # among the readers of a result of a step
SHAPED = ("broadcast_to", "reshape", "full")  # operators whose attribute `shape` is the result's
_MOST = 8192  # limit: operators of a region
_MOST_OF_ONE = 512  # limit: operators of a region that is another one for each of its nodes
ORDERS = movement_operators("view", "order")  # operators that keep every element, in another place
_COMBINE = {"sum": op.add, "prod": op.multiply, "max": op.maximum, "min": op.minimum}


# The parameters for values of which a step reads a piece: by value, axis, and places for each place of the dimension.
Sliced = dict[tuple[Expr, int, Dim], Expr]


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
    if x.op in (VAR, CONSTANT) or x.op in CORE:
        return ()
    placed = program_at(x.op, tuple(a.annotation for a in x.args), x.attrs, x.annotation)
    if placed is None or len(placed.program.inputs) != len(x.args):
        return ()
    return dimensions(placed.program)


def dimension_of(x: Expr, axis: int) -> Dimension | None:
    """The dimension of a node that is this axis of its result, if pieces of that axis can be computed."""
    return _dimension_of(use_of(x), axis)


@lru_cache(MANY_KEPT)
def _dimension_of(use: Use, axis: int) -> Dimension | None:
    name, operands, attrs, annotation = use
    x = node(name, [var(f"x{i}", a) for i, a in enumerate(operands)], attrs, annotation)
    found = next((d for d in dimensions_of(x) if d.output == axis), None)
    if found is None or x.op in SHAPED or not any(True for _, v in x.attrs for _ in _sizes_in(v)):
        return found
    # Sizes among the attributes, such as a convolution's padding, may belong to this axis or to others.
    size = Dim.var(_unused((x,)))
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
    None if `e` is no output, or without `e` if there is none.
    """
    known = queries.once("regions", _no_regions)
    extent, kinds = extent_of(start, along), tuple(stacked)
    while (start, along, extent, kinds) not in known:
        grown = _grown(start, along, extent, queries)
        if grown.finer is not None:
            start, along, extent = grown.finer
            continue
        region = _region_of(grown.found, extent, queries, stacked)
        if not grown.is_closed:
            return region if region is not None and (e is None or e in region.outputs) else None
        known |= {(x, d, extent, kinds): region for x, d in grown.found.items()}
    region = known[start, along, extent, kinds]
    return region if region is not None and (e is None or e in region.outputs) else None


def _no_regions(_: ProgramQueries) -> dict[tuple[Expr, Dimension, Dim, tuple[str, ...]], CutRegion | None]:
    return {}


def _region_of(
    grown: Mapping[Expr, Dimension], extent: Dim, queries: ProgramQueries, stacked: Sequence[str]
) -> CutRegion | None:
    """The region of connected nodes. None if it has no outputs."""
    inside: dict[Expr, Dimension] = {}
    online = OnlineSums(inside)
    after: set[Expr] = set()  # nodes that need a result of the loop, so that they run after it, or follow from totals
    for x in queries.nodes:
        d = grown.get(x)
        if d is not None and after.isdisjoint(x.args):
            inside[x] = d
            if d.kind is not None:
                after.add(x)
        elif any(a in after or a in inside for a in x.args):
            after.add(x)
            whole = x.args[0]
            if x.op in ORDERS and whole in inside and (kind := inside[whole].kind) is not None:
                # Parts of a sum can be brought into another order before they are added; no copy of the sum is then
                # made.
                part = Dimension((None,), None, kind)
                law = online.law(x, part, part=True) if whole in online.laws else None
                if law is not None or whole not in online.laws:
                    inside[x] = part
                    online.laws |= {} if law is None else {x: law}
            elif not all(a not in after or a in inside or a in online.followers for a in x.args) or online.add(x, d):
                pass
            elif d is not None and d.kind in (None, "sum") and (law := online.law(x, d)) is not None:
                inside[x] = d
                online.laws[x] = law
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
        given = online.laws[x].given if x in online.laws else {}
        needed.update(
            a
            for i, (a, place) in enumerate(zip(x.args, d.inputs, strict=True))
            if i not in given and _reads_piece(inside, a, place)
        )
    if not outputs:
        return None
    return CutRegion({x: d for x, d in inside.items() if x in needed}, tuple(reversed(outputs)), extent, online)


def _reads_piece(inside: Mapping[Expr, Dimension], operand: Expr, place: int | None) -> bool:
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
    found = axis_with_elements_ahead(other, _product(known[:axis]))
    if found is None:
        return None
    if not _divides(extent, other[found]):
        if not _divides(other[found], extent):
            return None
        extent = other[found]
    return (Dimension((found,), axis) if after is not None else Dimension((axis,), found)), extent


def axis_with_elements_ahead(shape: Sequence[Dim], ahead: Dim) -> int | None:
    """The first axis with more than one place that has that many elements ahead of it."""
    return next((i for i, d in enumerate(shape) if d != 1 and _product(shape[:i]) == ahead), None)


def _product(sizes: Sequence[Dim]) -> Dim:
    return functools.reduce(operator.mul, sizes, Dim.of(1))


def _divides(a: Dim, b: Dim) -> bool:
    return a != 0 and b // a * a == b


def _dimension_read(x: Expr, operand: Expr, axis: int) -> Dimension | None:
    """The dimension of `x` that is this axis of an operand, wherever `x` reads the operand."""
    places = [i for i, a in enumerate(x.args) if a is operand]
    for d in dimensions_of(x):
        if all(d.inputs[i] == axis for i in places):
            return d if d.output is None else dimension_of(x, d.output)
    return None


def readers_of(nodes: Sequence[Expr], roots: Sequence[Expr]) -> Mapping[Expr, list[Expr]]:
    """The readers of nodes among them, and `RESULT` for roots."""
    found: dict[Expr, list[Expr]] = {x: [RESULT] for x in roots}
    for x in nodes:
        for a in x.args:
            found.setdefault(a, []).append(x)
    return found


@dataclass
class BodyAnswers(RecordingAnswers):
    """The answers about the body of a loop.

    - `roots`: the values that a step computes.
    - `inside`: what the size of a piece stands for, outside of the body.
    """

    roots: Sequence[Expr] = ()
    inside: Mapping[str, Dim] = field(default_factory=dict[str, Dim])

    @cached_property
    def _nodes(self) -> Sequence[Expr]:
        return postorder(self.roots)

    @property
    def nodes(self) -> Sequence[Expr]:
        return self._nodes

    @cached_property
    def _readers(self) -> Mapping[Expr, list[Expr]]:
        return readers_of(self.nodes, self.roots)

    def readers(self, e: Expr) -> Sequence[Expr]:
        return self._readers.get(e, ())

    def extent(self, size: Dim) -> int:
        return super().extent(size.substitute(self.inside))

    def largest_value(self, size: Dim) -> int:
        return super().largest_value(size.substitute(self.inside))

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        return make(self)  # the nodes are those of one step


# Returns the values of a step in a form that computes some of them in loops, given the answers about the step.
Finer = Callable[[BodyAnswers], "Sequence[Expr] | None"]


def in_a_loop(
    region: CutRegion, rows: Dim, count: Dim, queries: ProgramQueries, finer: Finer | None = None
) -> dict[Expr, Expr] | None:
    """Returns the outputs of a region, computed in `count` pieces of `rows` places, one after the other. `finer`: how
    what a step computes is cut further; None then if it is not.

    Zeros pad the end of the dimension so that all pieces have one size. The results of the padding are cut off, and
    reductions do not see them. None if an operator is another one for pieces.
    """
    extent = region.extent
    more = rows * count - extent
    unit = rows if rows.is_const else Dim.var(_unused(region.dimensions))

    def times(x: Expr, axis: int) -> Dim:
        """The places along an axis for each place of the dimension."""
        return Dim.of(1) if x.shape[axis] == extent else x.shape[axis] // extent

    whole: dict[Expr, Expr] = {}  # parameters of the loop's body for values that every step reads whole
    sliced: Sliced = {}
    made: dict[Expr, Expr] = {}
    summed = [x for x in region.outputs if region.dimensions[x].output is None]
    stacked = [x for x in region.outputs if region.dimensions[x].output is not None]
    totals = {x: var(f"s{i}", Tensor(x.shape, _wide(x.dtype))) for i, x in enumerate(summed)}
    online, laws, steps = region.online, region.online.laws, dict[Expr, Expr]()
    before = Totals(online, lambda x: _whole(x, whole), {x: op.astype(t, x.dtype) for x, t in totals.items()})
    now = Totals(online, before.outside)
    for x, d in region.dimensions.items():
        args: list[Expr] = []
        law = laws.get(x)
        for i, (arg, place) in enumerate(zip(x.args, d.inputs, strict=True)):
            if law is not None and i in law.given:
                size = Dim.of(1) if place is None else unit * times(arg, place)
                args.append(given_to(x, i, place, size, law, now))
            elif _reads_piece(region.dimensions, arg, place):
                args.append(made[arg])
            elif place is not None and arg.op == "iota":
                args.append(_places(arg, place, rows * count, unit, times(arg, place), sliced))
            elif place is not None:
                args.append(_sliced(arg, place, unit, times(arg, place), sliced))
            else:
                args.append(_whole(arg, whole))
        if d.loop and more != 0:
            if not d.is_product or extent_of(x, d) != extent:
                return None
            neutral = identity(str(d.kind), x.dtype)
            every = op.full((extent,), True, "bool")  # padded with False, like all that is cut in pieces
            here = _sliced(every, 0, unit, Dim.of(1), sliced)
            args = [
                a if place is None else _masked(a, place, here, neutral)
                for a, place in zip(args, d.inputs, strict=True)
            ]
        sizes = {} if d.output is None else {d.output: unit * times(x, d.output)}
        if x.op == "reshape" and d.output is not None:  # the same elements lie ahead of the axis before and after it
            piece = op.reshape(args[0], with_sizes(x.shape, sizes))
        else:
            piece = applied_again(x, args, sizes, d.loop)
        if piece is None:
            return None
        made[x] = piece
        if x in totals:
            total = totals[x] if law is None else carried_on(totals[x], law, before, now)
            steps[x] = _combined(total, piece, d)
            now.values[x] = op.astype(steps[x], x.dtype)
    if finer is not None:
        inside = {} if unit == rows else {str(unit): rows}
        cut = finer(BodyAnswers(queries, roots=[made[x] for x in region.outputs], inside=inside))
        if cut is None:
            return None
        instead = dict(zip((made[x] for x in region.outputs), cut, strict=True))
        made |= zip(region.outputs, cut, strict=True)
        steps = dict(zip(steps, substitute_exprs(list(steps.values()), instead), strict=True))
    name = region.outputs[0].op
    params = (*whole.values(), *totals.values(), *sliced.values())
    body = pure_function(name, params, [*steps.values(), *(made[x] for x in stacked)])
    body = replace(body, result=as_tuple(body.result))
    if not sliced or missing_sizes(body):
        return None
    xs = [_pieces(arg, place, rows * n, count, more * n) for arg, place, n in sliced]
    first = [op.full(t.shape, identity(str(region.dimensions[x].kind), t.dtype), t.dtype) for x, t in totals.items()]
    value = scan(function_ref(queries.add(body, "in_pieces")), list(whole), first, xs, length=count)
    last = Totals(online, lambda x: x)
    for i, x in enumerate(summed):
        total = tuple_get(value, i)
        last.values[x] = op.astype(at_the_end(total, laws[x], last) if x in laws else total, x.dtype)
    found = {x: last.values[x] for x in summed}
    for i, x in enumerate(stacked, len(summed)):
        axis = region.dimensions[x].output or 0
        found[x] = joined(x, axis, tuple_get(value, i), rows * times(x, axis), count, more * times(x, axis))
    return found if all(x.annotation == y.annotation for x, y in found.items()) else None


def _whole(x: Expr, whole: dict[Expr, Expr]) -> Expr:
    """Returns a value that every step reads whole. A matrix is transposed where it is read, which makes no copy."""
    if x.op == CONSTANT:
        return x
    if x.op in ORDERS:
        return call(x.op, [_whole(x.args[0], whole)], dict(x.attrs))
    return whole.setdefault(x, var(f"c{len(whole)}", x.annotation))


def _wide(dtype: str) -> str:
    """The dtype in which pieces are accumulated: that of the result, but for floats of fewer than 32 bits float32."""
    return "float32" if dtypes.is_float(dtype) and dtypes.itemsize(dtype) < dtypes.itemsize("float32") else dtype


def _combined(total: Expr, piece: Expr, d: Dimension) -> Expr:
    return _COMBINE[str(d.kind)](total, op.astype(piece, total.dtype))


def _masked(x: Expr, axis: int, here: Expr, neutral: Any) -> Expr:
    """`x` where a place along `axis` is none of the padding, else the identity of the reduction."""
    apart = op.reshape(here, [here.shape[0] if i == axis else 1 for i in range(x.ndim)])
    return op.where(op.broadcast_to(apart, x.shape), x, op.full((), neutral, x.dtype))


def _sliced(x: Expr, axis: int, unit: Dim, times: Dim, sliced: Sliced) -> Expr:
    """The parameter for a piece of `x`."""
    shape = with_sizes(x.shape, {axis: unit * times})
    return sliced.setdefault((x, axis, times), var(f"x{len(sliced)}", Tensor(shape, x.dtype)))


def _places(x: Expr, axis: int, padded: Dim, unit: Dim, times: Dim, sliced: Sliced) -> Expr:
    """Returns a piece of an `iota`, computed where it is read. `padded`: the places of all pieces together."""
    size = unit * times
    shape = with_sizes(x.shape, {axis: size})
    if x.attr("axis") != axis:
        return op.iota(shape, x.attr("axis"), x.dtype)
    here = _sliced(op.iota((padded * times,), 0, x.dtype), 0, unit, times, sliced)
    return op.broadcast_to(op.reshape(here, [size if i == axis else 1 for i in range(x.ndim)]), shape)


def _pieces(x: Expr, axis: int, rows: Dim, count: Dim, more: Dim) -> Expr:
    """Returns `x` cut along `axis` and stacked, with zeros at its end."""
    if more != 0 and x.shape[axis] != rows * count:
        widths = [(Dim.of(0), more if i == axis else Dim.of(0)) for i in range(x.ndim)]
        x = op.pad(x, widths, op.zeros((), x.dtype))
    apart = (*x.shape[:axis], count, rows, *x.shape[axis + 1 :])
    return op.permute_dims(op.reshape(x, apart), [axis, *range(axis), *range(axis + 1, len(apart))])


def joined(e: Expr, axis: int, stacked: Expr, rows: Dim, count: Dim, more: Dim) -> Expr:
    """Returns `e` from its stacked pieces, without the results of the padding."""
    ahead = [*range(1, axis + 1), 0, *range(axis + 1, e.ndim + 1)]
    whole = op.reshape(op.permute_dims(stacked, ahead), with_sizes(e.shape, {axis: rows * count}))
    return op.strided_slice(whole, [Dim.of(0)] * e.ndim, e.shape) if more != 0 else whole


def _sizes_in(value: Any) -> Iterator[Dim]:
    """Yields the sizes in an attribute's value."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, tuple):
        for v in value:  # type: ignore[reportUnknownVariableType]
            yield from _sizes_in(v)


def _unused(nodes: Mapping[Expr, Dimension] | Sequence[Expr]) -> str:
    """Returns a name for the size of a piece that no other size has."""
    taken = {v for x in nodes for y in (x, *x.args) for d in dims_of(y.annotation) for v in d.variables}
    taken |= {v for x in nodes for _, value in x.attrs for d in _sizes_in(value) for v in d.variables}
    name, n = "rows", 0
    while name in taken:
        n += 1
        name = f"rows{n}"
    return name
