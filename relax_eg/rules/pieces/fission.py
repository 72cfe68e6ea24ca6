"""Fission: a region of a program is computed in a loop over pieces of one dimension.

The dimension runs through the region (`rules.pieces.regions`). A result that has the dimension as an axis is stacked
from the pieces; a result that reduces it is accumulated from step to step. Where an axis merges the dimension with
others, pieces of it are as many times as long as it has places for each place of the dimension.

The body of a loop may have regions that are computed in loops of their own, along other dimensions. So a program is cut
by a tree of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from relax_eg import dtypes
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import function_ref, substitute_exprs
from relax_eg.ir.control import scan
from relax_eg.ir.expr import CONSTANT, Expr, postorder, tuple_get, var
from relax_eg.ir.module import pure_function
from relax_eg.ir.partition import missing_sizes
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.checking.schema_answers import RecordingAnswers
from relax_eg.rules.pieces.online import Totals, at_the_end, carried_on, given_to
from relax_eg.rules.pieces.regions import ORDERS, RESULT, CutRegion, extent_of, form_of, reads_piece, unused_size
from relax_eg.rules.pieces.slicing import applied_again, joined, pieces_of, with_sizes
from relax_eg.rules.schemas import Made, ProgramQueries, as_tuple
from relax_eg.shapes import Dim
from relax_eg.tir.functions import identity
from relax_eg.traversal import grouped

_COMBINE = {"sum": op.add, "prod": op.multiply, "max": op.maximum, "min": op.minimum}


# The parameters for values of which a step reads a piece: by value, axis, and places for each place of the dimension.
Sliced = dict[tuple[Expr, int, Dim], Expr]


def readers_of(nodes: Sequence[Expr], roots: Sequence[Expr]) -> Mapping[Expr, list[Expr]]:
    """The readers of nodes among them, and `RESULT` for roots."""
    return grouped((*((x, RESULT) for x in dict.fromkeys(roots)), *((a, x) for x in nodes for a in x.args)))


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
    """`_in_a_loop`, made once for regions that are equal except for what they read from outside, such as those of the
    layers of a model."""
    form, given = form_of(region)
    key = tuple(form.dimensions.items()), form.outputs, rows, count, finer
    made = queries.once(("loop", *key), lambda q: _in_a_loop(form, rows, count, q, finer))
    if made is None:
        return None
    values = substitute_exprs([made[x] for x in form.outputs], given)
    return dict(zip(region.outputs, values, strict=True))


def _in_a_loop(
    region: CutRegion, rows: Dim, count: Dim, queries: ProgramQueries, finer: Finer | None = None
) -> dict[Expr, Expr] | None:
    """Returns the outputs of a region, computed in `count` pieces of `rows` places, one after the other. `finer`: how
    what a step computes is cut further; None then if it is not.

    Zeros pad the end of the dimension so that all pieces have one size. The results of the padding are cut off, and
    reductions do not see them. None if an operator is another one for pieces.
    """
    extent = region.extent
    more = rows * count - extent
    unit = rows if rows.is_const else Dim.var(unused_size(region.dimensions))

    def times(x: Expr, axis: int) -> Dim:
        """The places along an axis for each place of the dimension."""
        return Dim.of(1) if x.shape[axis] == extent else x.shape[axis] // extent

    whole: dict[Expr, Expr] = {}  # parameters of the loop's body for values that every step reads whole
    sliced: Sliced = {}
    made: dict[Expr, Expr] = {}
    summed = [x for x in region.outputs if region.dimensions[x].output is None]
    stacked = [x for x in region.outputs if region.dimensions[x].output is not None]
    totals = {x: var(f"s{i}", Tensor(x.shape, accumulated(x.dtype))) for i, x in enumerate(summed)}
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
            elif reads_piece(region.dimensions, arg, place):
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
            steps[x] = combined(total, piece, str(d.kind))
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
    xs = [pieces_of(arg, place, rows * n, count) for arg, place, n in sliced]
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


def accumulated(dtype: str) -> str:
    """The dtype in which pieces are accumulated: that of the result, but for floats of fewer than 32 bits float32."""
    return "float32" if dtypes.is_float(dtype) and dtypes.itemsize(dtype) < dtypes.itemsize("float32") else dtype


def combined(total: Expr, piece: Expr, kind: str) -> Expr:
    return _COMBINE[kind](total, op.astype(piece, total.dtype))


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
