"""Windows in pieces: some rows of a result at a time, of a chain of convolutions, poolings and pointwise operators.

A place of a result along an axis reads several places of an operand, as the windows say that are read off the index
equations (`tir.slicing.windows`). So a piece of the result needs more places of what it is computed from, and these
more of what they are computed from: a halo, which grows backwards through the chain and is computed again in the next
piece. Outside of a value is what its reader reads there: zeros for a convolution. Results that reduce the axis, such as
a sum over rows or the gradient of a convolution's kernel, are accumulated from piece to piece, all that need the same
rows in one loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.calls import function_ref
from relax_eg.ir.control import scan
from relax_eg.ir.expr import CONSTANT, Expr, tuple_get, var
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import pure_function
from relax_eg.ops import api as op
from relax_eg.ops.fused import program_in_kernel
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import call
from relax_eg.rules.pieces.fission import accumulated, combined
from relax_eg.rules.pieces.regions import dimension_of, dimensions_of, extent_of
from relax_eg.rules.pieces.slicing import applied_again, joined, with_sizes
from relax_eg.rules.schemas import ProgramQueries, as_tuple
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Reduce, loop_of
from relax_eg.tir.functions import identity
from relax_eg.tir.program import TensorProgram
from relax_eg.tir.slicing import Window, factors, windows, without_padding

_MOST = 48  # limit: operators of one result computed in pieces together
_MOST_JOINT = 256  # limit: operators of several totals computed in pieces together
_SEVERAL = 2  # given: totals of one loop, which need the same values
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
class Total:
    """A result that reduces an axis, or a loop along which it reads windows.

    - `kind`: how.
    - `loop`: the loop variable.
    - `extent`: the number of places.
    - `reads`: for each operand, the window that a place reads, or None if it reads all.
    - `ends`: whether places beyond the end add nothing where operands are the identity of the reduction there.
    """

    kind: str
    loop: str
    extent: Dim
    reads: Sequence[Window | None]
    ends: bool = False


@dataclass(frozen=True)
class Halo:
    """A region that is computed in pieces of `rows` places along an axis of its result, or one that its results reduce.

    - `nodes`: readers first, each with the places that a piece needs; a result that reduces the axis is none of them.
    - `reads`: for each node and each operand, the window of the places that it reads, or None if it reads all.
    - `totals`: the results that reduce the axis, each with the places of a piece.
    """

    rows: int
    count: int
    nodes: dict[Expr, _Rows]
    reads: dict[Expr, Sequence[Window | None]]
    totals: Mapping[Expr, tuple[Total, _Rows]]

    def reads_all(self, x: Expr, queries: ProgramQueries) -> bool:
        """Whether nothing but the region reads a value."""
        return all(y in self.nodes or y in self.totals for y in queries.readers(x))


def halo_of(e: Expr, axis: int, count: int, queries: ProgramQueries) -> Halo | None:
    """The region that computes `e` in `count` pieces of an axis of known size. None if it has no windows."""
    if not e.shape[axis].is_const or e.shape[axis].value < count:
        return None
    rows = -(-e.shape[axis].value // count)
    found = Halo(rows, -(-e.shape[axis].value // rows), {}, {}, {})
    _grow(found, {e: [_Rows(axis, 1, 0, rows)]}, queries)
    return found if e in found.nodes and _has_windows(found) else None


def halo_of_totals(e: Expr, along: Total, count: int, queries: ProgramQueries) -> Halo | None:
    """The region that computes `e`, which reduces an axis of known size, in `count` pieces of that, and all others that
    reduce the same rows and need the totals that `e` needs. None if it has no windows."""
    of = _joint_totals(e, along, queries)
    extent = next((t.extent for t, step in of.values() if step == 1), Dim.of(0))
    if not extent.is_const or extent.value < count:
        return None
    rows = -(-extent.value // count)
    if not all(t.ends for t, _ in of.values()):  # what the last piece has too much would count
        rows = next((n for n in range(rows, rows // 2, -1) if extent.value % n == 0), 0)
    if e not in of or not rows:
        return None
    totals = {x: (t, _Rows(-1, step, 0, step * rows)) for x, (t, step) in of.items() if t.extent == extent * step}
    found = Halo(rows, -(-extent.value // rows), {}, {}, totals)
    wants: Wants = {}
    for x, (t, here) in totals.items():
        _want(wants, x, t.reads, here)
    _grow(found, wants, queries)
    return found if e in totals and _has_windows(found) else None


def totals_of(x: Expr) -> list[Total]:
    """The ways in which a node reduces places of its operands."""
    found = [
        Total(str(d.kind), d.loop, extent_of(x, d), [None if p is None else Window(p, 1, 0, 1) for p in d.inputs],
              d.is_product)
        for d in dimensions_of(x) if d.output is None and d.loop
    ]  # fmt: skip
    program = _program(x)
    value = None if program is None else program.stages[-1].value
    if program is not None and isinstance(value, Reduce):
        for v, extent in value.over:
            loop = loop_of(v) or ""
            seen = None if any(t.loop == loop for t in found) else windows(program, loop)
            if seen is not None and any(w is not None for w in seen):
                found.append(Total(value.kind, loop, extent, seen, _ends(x, program, value, extent, seen)))
    return found


def _ends(x: Expr, program: TensorProgram, value: Reduce, extent: Dim, seen: Sequence[Window | None]) -> bool:
    """Whether what is summed is a product, of which places beyond the last one read an operand beyond its end."""
    if value.kind != "sum":
        return False
    names = {r.buffer for r in factors(value.body)}
    read = [(a, w) for a, w, b in zip(x.args, seen, program.inputs, strict=True) if b.name in names and w is not None]
    after = [extent * w.step + w.first - a.shape[w.axis] for a, w in read]
    return any(n.is_const and n.value >= 0 for n in after)


def _program(x: Expr) -> TensorProgram | None:
    """The equations of an operator of the program."""
    if x.op in CORE or not isinstance(x.annotation, Tensor):
        return None
    placed = program_in_kernel(x)
    return None if placed is None or len(placed.program.inputs) != len(x.args) else placed.program


def _joint_totals(e: Expr, along: Total, queries: ProgramQueries) -> dict[Expr, tuple[Total, int]]:
    """The results that reduce the rows that `e` reduces, each with its places for each place of the coarsest one."""
    totals = {e: (along, Fraction(1))}
    seen: set[Expr] = set()
    todo = [(a, w.axis, Fraction(w.step)) for a, w in zip(e.args, along.reads, strict=True) if w is not None]
    while todo and len(seen) < _MOST_JOINT:
        x, axis, step = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        for a, w in zip(x.args, _windows(x, axis) or [None] * len(x.args), strict=True):
            if w is not None:
                todo.append((a, w.axis, step * w.step))
        for y in queries.readers(x):
            if y in seen or y in totals or not is_known_tensor(y):
                continue
            ways = ((b, _windows(y, b)) for b in range(y.ndim))
            found = next(((b, s) for b, reads in ways for s in _steps(x, axis, y, reads)), None)
            if found is not None:
                todo.append((y, found[0], step / found[1]))
                continue
            sums = ((t, s) for t in totals_of(y) for s in _steps(x, axis, y, t.reads))
            total = next(sums, None)
            if total is not None:
                totals[y] = total[0], step / total[1]
                todo += [
                    (a, w.axis, step / total[1] * w.step)
                    for a, w in zip(y.args, total[0].reads, strict=True) if w is not None
                ]  # fmt: skip
    number = {x: 1 << i for i, x in enumerate(totals)}
    needs: dict[Expr, int] = {}  # the totals that a node needs, as bits
    for x in queries.nodes:
        needs[x] = 0
        for a in x.args:
            needs[x] |= needs[a] | number.get(a, 0)
    together = {x: t for x, t in totals.items() if needs.get(x) == needs.get(e)}
    least = min(step for _, step in together.values())
    return {x: (t, int(s / least)) for x, (t, s) in together.items() if (s / least).denominator == 1}


def _steps(x: Expr, axis: int, y: Expr, reads: Sequence[Window | None] | None) -> Iterator[int]:
    """The step with which `y` reads the axis of `x`, if it reads it in one way."""
    there = {w for a, w in zip(y.args, reads or (), strict=False) if a is x}
    if len({w and (w.axis, w.step) for w in there}) == 1 and (w := next(iter(there))) is not None and w.axis == axis:
        yield w.step


def _has_windows(found: Halo) -> bool:
    reads = [*found.reads.values(), *(t.reads for t, _ in found.totals.values())]
    return any(w is not None and w.span > 1 for seen in reads for w in seen)


Wants = dict[Expr, list[_Rows | None]]  # by value, the places that each of its readers needs


def _want(wants: Wants, x: Expr, reads: Sequence[Window | None], here: _Rows) -> None:
    for a, w in zip(x.args, reads, strict=True):
        wants.setdefault(a, []).append(None if w is None else _read_by(here, w))


def _grow(found: Halo, wants: Wants, queries: ProgramQueries) -> None:
    """Adds nodes to a region, operands after their readers. Values that totals need may have other readers, too."""
    most = _MOST_JOINT if len(found.totals) > 1 else _MOST
    for x in reversed(queries.nodes):
        asked = wants.get(x)
        if asked is None or x in found.totals or len(found.nodes) >= most:
            continue
        here = _all_of(asked)
        is_first = not found.nodes and not found.totals
        if here is None or here.length > _AGAIN * here.step * found.rows:
            continue
        if len(found.totals) < _SEVERAL and not is_first and len(asked) < len(queries.readers(x)):
            continue
        seen = _reads(x, here)
        if seen is not None:
            found.nodes[x], found.reads[x] = here, seen
            _want(wants, x, seen, here)


def _windows(x: Expr, axis: int) -> Sequence[Window | None] | None:
    """The windows of the operands of a node along an axis; None if it has none."""
    d = dimension_of(x, axis) if x.op not in CORE else None
    if d is not None:
        return [None if p is None else Window(p, 1, 0, 1) for p in d.inputs]
    program = _program(x)
    return None if program is None else windows(program, axis)


def _reads(x: Expr, here: _Rows) -> Sequence[Window | None] | None:
    """The windows of the operands of a node; None if it cannot be computed in pieces."""
    found = _windows(x, here.axis) if isinstance(x.annotation, Tensor) else None
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
    if dimension_of(x, here.axis) is not None:
        return applied_again(x, args, {here.axis: Dim.of(here.length)})
    return _without_ends(x, args, here.axis, here.axis - x.ndim, _piece(x, here))


def _added(x: Expr, total: Total, args: Sequence[Expr]) -> Expr | None:
    """What a piece adds to a total; None if the operator is another one for pieces."""
    if all(w is None or w.span == 1 for w in total.reads):
        return applied_again(x, args, {}, total.loop)
    a, w = next((a, w) for a, w in zip(x.args, total.reads, strict=True) if w is not None and w.span > 1)
    return _without_ends(x, args, total.loop, w.axis - a.ndim, x.annotation)


def _without_ends(x: Expr, args: Sequence[Expr], along: int | str, axis: int, wanted: Annotation) -> Expr | None:
    """The operator of `x` where nothing stands before and after an axis, counted from the last one."""
    attrs = dict(x.attrs)
    for name in _ENDS:
        ends = attrs.get(name)
        if not isinstance(ends, tuple) or len(ends) + axis < 0:  # type: ignore[reportUnknownArgumentType]
            return None
        attrs[name] = tuple(Dim.of(0) if i == len(ends) + axis else d for i, d in enumerate(ends))  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    try:
        made = call(x.op, args, attrs)
    except OperatorError:
        return None
    if made.annotation != wanted:
        return None
    before, after = (None if p is None else without_padding(p, along) for p in (_program(x), _program(made)))
    return made if before is not None and before == after else None


def with_halo(e: Expr, halo: Halo, queries: ProgramQueries) -> Expr | None:
    """Returns `e`, computed one piece after the other. None if an operator is another one for pieces."""
    key = "halo", halo.rows, halo.count, tuple(halo.totals), *([] if halo.totals else [e, halo.nodes[e].axis])
    made = queries.once(key, lambda q: _with_halo(e, halo, q))
    return None if made is None else made[e]


def _with_halo(e: Expr, halo: Halo, queries: ProgramQueries) -> dict[Expr, Expr] | None:
    """The results of a region: `e`, or all totals."""
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

    def read(x: Expr, reads: Sequence[Window | None], here: _Rows, identity_of: str = "") -> list[Expr]:
        """The operands of a piece of `x`. `identity_of`: the reduction that ignores what lies beyond the last place."""
        found: list[Expr] = []
        for a, w in zip(x.args, reads, strict=True):
            if w is not None and identity_of:
                w = replace(w, beyond=identity(identity_of, a.dtype))
            found.append(outside(a) if w is None else piece(a, _read_by(here, w), w))
        return found

    for x in (x for x in queries.nodes if x in halo.nodes):
        again = _again(x, read(x, halo.reads[x], halo.nodes[x]), halo.nodes[x])
        if again is None:
            return None
        made[x] = again
    params, first_of, results = list[Expr](), list[Expr](), list[Expr]()
    for i, (x, (t, here)) in enumerate(halo.totals.items()):
        is_padded = here.end(rows, count) != t.extent.value
        added = _added(x, t, read(x, t.reads, here, t.kind if is_padded else ""))
        if added is None:
            return None
        params.append(var(f"s{i}", Tensor(x.shape, accumulated(x.dtype))))
        first_of.append(op.full(x.shape, identity(t.kind, x.dtype), params[-1].dtype))
        results.append(combined(params[-1], added, t.kind))
    name = next(iter(halo.totals), e).op
    body = pure_function(name, [*whole.values(), *params, places], results or [made[e]])
    body = replace(body, result=as_tuple(body.result))
    steps = op.reshape(op.iota((rows * count,), 0, "int32"), (count, rows))
    value = scan(function_ref(queries.add(body, "in_pieces")), list(whole), first_of, [steps], length=Dim.of(count))
    if halo.totals:
        return {x: op.astype(tuple_get(value, i), x.dtype) for i, x in enumerate(halo.totals)}
    axis = halo.nodes[e].axis
    more = Dim.of(rows * count) - e.shape[axis]
    return {e: joined(e, axis, tuple_get(value, 0), Dim.of(rows), Dim.of(count), more)}
