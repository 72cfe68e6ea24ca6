"""Windows in pieces: some rows of a result at a time, of a chain of convolutions, poolings and pointwise operators.

A place of a result along an axis reads several places of an operand, as the windows say that are read off the index
equations (`tir.slicing.windows`). So a piece of the result needs more places of what it is computed from, and these
more of what they are computed from: a halo, which grows backwards through the chain and is computed again in the next
piece. Outside of a value is what its reader reads there: zeros for a convolution. A result that reduces the axis, such
as a sum over rows, is accumulated from piece to piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import scan
from relax_eg.ir.expr import CONSTANT, VAR, Expr, tuple_get, var
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import pure_function
from relax_eg.ops import api as op
from relax_eg.ops.fused import program_at
from relax_eg.ops.record import call
from relax_eg.rules.fission import accumulated, combined
from relax_eg.rules.regions import dimension_of, extent_of
from relax_eg.rules.schemas import ProgramQueries, as_tuple
from relax_eg.rules.slicing import applied_again, joined, with_sizes
from relax_eg.shapes import Dim
from relax_eg.tir.functions import identity
from relax_eg.tir.slicing import Dimension, Window, windows, without_padding

_MOST = 48  # limit: operators of one result computed in pieces together
_AGAIN = 2  # chosen: places of a value in a piece, at most, as a multiple of those that no other piece computes
_ENDS = ("low", "high")  # attributes that say how many places stand before and after an axis


@dataclass(frozen=True)
class _Rows:
    """Places of an axis that a piece needs: `length` of them, from `step` * (the piece's first row) + `first`."""

    axis: int
    step: int
    first: int
    length: int

    def joined(self, other: _Rows) -> _Rows | None:
        """The places of both; None if they move differently."""
        if (self.axis, self.step) != (other.axis, other.step):
            return None
        first = min(self.first, other.first)
        end = max(self.first + self.length, other.first + other.length)
        return replace(self, first=first, length=end - first)

    def end(self, rows: int, count: int) -> int:
        """The end of the places of the last piece."""
        return self.step * rows * (count - 1) + self.first + self.length


@dataclass(frozen=True)
class Halo:
    """A region that is computed in pieces of `rows` places along an axis of its result, or one that its result reduces.

    - `total`: how the result reduces the axis; None if the axis is one of its own.
    - `nodes`: readers first, each with the places that a piece needs; a result that reduces the axis is none of them.
    - `reads`: for each node and each operand, the window of the places that it reads, or None if it reads all.
    """

    rows: int
    count: int
    nodes: dict[Expr, _Rows]
    reads: dict[Expr, Sequence[Window | None]]
    total: Dimension | None = None


def halo_of(e: Expr, axis: int, count: int, queries: ProgramQueries) -> Halo | None:
    """The region that computes `e` in `count` pieces of an axis of known size. None if it has no windows."""
    if not e.shape[axis].is_const or e.shape[axis].value < count:
        return None
    rows = -(-e.shape[axis].value // count)
    found = Halo(rows, -(-e.shape[axis].value // rows), {}, {})
    _grow(found, [(e, _Rows(axis, 1, 0, rows))], {}, queries)
    return found if e in found.nodes and _has_windows(found) else None


def halo_of_total(e: Expr, along: Dimension, count: int, queries: ProgramQueries) -> Halo | None:
    """The region that computes `e`, which reduces a dimension of known size, in `count` pieces of that. None if it has
    no windows."""
    extent = extent_of(e, along)
    if along.output is not None or not extent.is_const or extent.value < count:
        return None
    rows = -(-extent.value // count)
    found = Halo(rows, -(-extent.value // rows), {}, {}, along)
    if rows * found.count != extent.value and not along.is_product:
        return None  # what the last piece has too much would count
    wants: dict[Expr, list[_Rows | None]] = {}
    for a, place in zip(e.args, along.inputs, strict=True):
        wants.setdefault(a, []).append(None if place is None else _Rows(place, 1, 0, rows))
    _grow(found, _wanted(found, e.args, wants, queries), wants, queries)
    return found if _has_windows(found) else None


def _has_windows(found: Halo) -> bool:
    return any(w is not None and w.span > 1 for x in found.nodes for w in found.reads[x])


Wants = dict[Expr, list[_Rows | None]]  # by value, the places that each of its readers needs


def _wanted(found: Halo, read: Sequence[Expr], wants: Wants, queries: ProgramQueries) -> list[tuple[Expr, _Rows]]:
    """Of operands of which all readers are known, those that are computed in pieces, too."""
    ready: list[tuple[Expr, _Rows]] = []
    for a in dict.fromkeys(read):
        there = _all_of(wants[a]) if len(wants[a]) == len(queries.readers(a)) else None
        if there is not None and there.length <= _AGAIN * there.step * found.rows:
            ready.append((a, there))
    return ready


def _grow(found: Halo, todo: list[tuple[Expr, _Rows]], wants: Wants, queries: ProgramQueries) -> None:
    """Adds nodes to a region, operands after their readers."""
    while todo and len(found.nodes) < _MOST:
        x, here = todo.pop()
        seen = _reads(x, here)
        if seen is None:
            continue
        found.nodes[x], found.reads[x] = here, seen
        for a, w in zip(x.args, seen, strict=True):
            wants.setdefault(a, []).append(None if w is None else _read_by(here, w))
        todo += _wanted(found, x.args, wants, queries)


def _reads(x: Expr, here: _Rows) -> Sequence[Window | None] | None:
    """The windows of the operands of a node; None if it cannot be computed in pieces."""
    if x.op in CORE or x.op in (VAR, CONSTANT) or not isinstance(x.annotation, Tensor):
        return None
    d = dimension_of(x, here.axis)
    if d is not None:
        found = [None if p is None else Window(p, 1, 0, 1) for p in d.inputs]
    else:
        placed = program_at(x.op, tuple(a.annotation for a in x.args), x.attrs, x.annotation)
        found = None
        if placed is not None and len(placed.program.inputs) == len(x.args):
            found = windows(placed.program, here.axis)
    if found is None:
        return None
    args = [
        a if w is None else var(f"x{i}", _piece(a, _read_by(here, w)))
        for i, (a, w) in enumerate(zip(x.args, found, strict=True))
    ]
    return None if _again(x, args, here) is None else found


def _read_by(here: _Rows, w: Window) -> _Rows:
    return _Rows(w.axis, here.step * w.step, here.first * w.step + w.first, (here.length - 1) * w.step + w.span)


def _all_of(asked: Sequence[_Rows | None]) -> _Rows | None:
    """The places of all readers; None if one reads all of the value, or if they differ in more than ends."""
    found = asked[0]
    for more in asked[1:]:
        found = None if found is None or more is None else found.joined(more)
    return found


def _piece(x: Expr, at: _Rows) -> Tensor:
    return Tensor(with_sizes(x.shape, {at.axis: Dim.of(at.length)}), x.dtype)


def _again(x: Expr, args: Sequence[Expr], here: _Rows) -> Expr | None:
    """The operator of `x` on pieces of its operands, which have the places outside of them, too; None if it is another
    one for these."""
    sizes = {here.axis: Dim.of(here.length)}
    if dimension_of(x, here.axis) is not None:
        return applied_again(x, args, sizes)
    attrs = dict(x.attrs)
    for name in _ENDS:
        ends = attrs.get(name)
        if not isinstance(ends, tuple):
            return None
        at = here.axis - x.ndim + len(ends)  # type: ignore[reportUnknownArgumentType]
        if at < 0:
            return None
        attrs[name] = (*ends[:at], Dim.of(0), *ends[at + 1 :])
    try:
        made = call(x.op, args, attrs)
    except OperatorError:
        return None
    if made.annotation != _piece(x, here):
        return None
    whole, piece = (program_at(y.op, tuple(a.annotation for a in y.args), y.attrs, y.annotation) for y in (x, made))
    if whole is None or piece is None:
        return None
    before, after = (without_padding(p.program, here.axis) for p in (whole, piece))
    return made if before is not None and before == after else None


def with_halo(e: Expr, halo: Halo, queries: ProgramQueries) -> Expr | None:
    """Returns `e`, computed one piece after the other. None if an operator is another one for pieces."""
    rows, count = halo.rows, halo.count
    places = var("x0", Tensor((Dim.of(rows),), "int32"))
    first = op.reshape(op.strided_slice(places, [Dim.of(0)], [Dim.of(1)]), ())
    whole: dict[Expr, Expr] = {}  # parameters of the loop's body, by value from outside

    def outside(x: Expr) -> Expr:
        return x if x.op == CONSTANT else whole.setdefault(x, var(f"c{len(whole)}", x.annotation))

    def start(at: _Rows, moved: int) -> Expr:
        return op.add(op.multiply(first, at.step), at.first + moved)

    made: dict[Expr, Expr] = {}

    def piece(x: Expr, at: _Rows, w: Window) -> Expr:
        """The places `at` of an operand, and beyond its ends what its reader reads there."""
        extent, end = x.shape[at.axis], at.end(rows, count)
        low, high = max(0, -at.first), max(0, end - extent.value)
        if x in made:
            have = halo.nodes[x]
            begin = [Dim.of(at.first - have.first if i == at.axis else 0) for i in range(x.ndim)]
            size = with_sizes(made[x].shape, {at.axis: Dim.of(at.length)})
            value = made[x]
            if value.shape != size:
                value = op.strided_slice(value, begin, [b + s for b, s in zip(begin, size, strict=True)])
        else:
            widths = [(low, high) if i == at.axis else (0, 0) for i in range(x.ndim)]
            padded = outside(op.pad(x, widths, op.zeros((), x.dtype)) if low or high else x)
            zero = op.full((), 0, "int32")
            begins = [start(at, low) if i == at.axis else zero for i in range(x.ndim)]
            value = op.dynamic_slice(padded, begins, _piece(x, at).shape or ())
        if w.beyond is None or not (low or high) or (x not in made and w.beyond == 0):
            return value
        here = op.add(op.iota((at.length,), 0, "int32"), start(at, 0))
        inside = op.logical_and(op.greater_equal(here, 0), op.less(here, extent))
        apart = op.reshape(inside, [at.length if i == at.axis else 1 for i in range(x.ndim)])
        return op.where(op.broadcast_to(apart, value.shape), value, op.full((), w.beyond, x.dtype))

    def total(d: Dimension) -> Expr | None:
        """What a piece adds to the result."""
        is_padded = rows * count != extent_of(e, d).value
        args = [
            outside(a)
            if place is None
            else piece(
                a,
                _Rows(place, 1, 0, rows),
                Window(place, 1, 0, 1, identity(str(d.kind), a.dtype) if is_padded else None),
            )
            for a, place in zip(e.args, d.inputs, strict=True)
        ]
        return applied_again(e, args, {}, d.loop)

    for x in (x for x in queries.nodes if x in halo.nodes):
        here = halo.nodes[x]
        args = [
            outside(a) if w is None else piece(a, _read_by(here, w), w)
            for a, w in zip(x.args, halo.reads[x], strict=True)
        ]
        again = _again(x, args, here)
        if again is None:
            return None
        made[x] = again
    added = made[e] if halo.total is None else total(halo.total)
    if added is None:
        return None
    carry, first_of = list[Expr](), list[Expr]()
    if halo.total is not None:
        carry = [var("s0", Tensor(e.shape, accumulated(e.dtype)))]
        first_of = [op.full(e.shape, identity(str(halo.total.kind), e.dtype), carry[0].dtype)]
        added = combined(carry[0], added, halo.total)
    body = pure_function(e.op, [*whole.values(), *carry, places], [added])
    body = replace(body, result=as_tuple(body.result))
    steps = op.reshape(op.iota((rows * count,), 0, "int32"), (count, rows))
    value = scan(function_ref(queries.add(body, "in_pieces")), list(whole), first_of, [steps], length=Dim.of(count))
    if halo.total is not None:
        return op.astype(tuple_get(value, 0), e.dtype)
    axis = halo.nodes[e].axis
    more = Dim.of(rows * count) - e.shape[axis]
    return joined(e, axis, tuple_get(value, 0), Dim.of(rows), Dim.of(count), more)
