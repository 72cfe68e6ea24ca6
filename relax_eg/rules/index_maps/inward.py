"""Views moved towards inputs: f(x, y)[view] = f(x[view], y[view]), as far as index equations allow.

An operator lets a selection along an axis through if it reads its operands only at the place that it writes along this
axis, which its equations tell. Pointwise operators let every view through. Of joined and padded values, the part is
chosen that is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from relax_eg.dtypes import kind
from relax_eg.ir.expr import CONSTANT, VAR, Expr
from relax_eg.ir.heads import CORE
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, call, program_of, site_of
from relax_eg.ops.sizes import product
from relax_eg.rules.index_maps.views import (
    ONE,
    ZERO,
    AxisMap,
    IndexView,
    affine,
    composed,
    made_of,
    sliced_indices,
    view_of,
    whole,
)
from relax_eg.rules.pieces.slicing import applied_again, with_sizes
from relax_eg.rules.pointwise.terms import equation_of
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain
from relax_eg.tir.expr import Cast, Index
from relax_eg.tir.slicing import sliced_input_axes

_JOIN, _PAD = "join", "interior"
_MOST_VALUES = 32  # limit: values of which views are made in one proposal; the proof grows faster than their number


def is_pointwise(e: Expr) -> bool:
    """Whether each element of `e` follows from one element of each operand, those at its place."""
    if not e.args or e.op not in TABLE or not all(map(is_known_tensor, (e, *e.args))):
        return False
    return equation_of(e.op, tuple(a.dtype for a in e.args), e.attrs) is not None


def is_join(e: Expr) -> bool:
    return e.op in TABLE and TABLE[e.op].moves == _JOIN and all(map(is_known_tensor, (e, *e.args)))


def is_padded(e: Expr) -> bool:
    """Whether `e` is an operand with a scalar put around it."""
    names = {name for name, _ in e.attrs}
    return (
        len(e.args) == 2
        and {"low", "high", _PAD} == names
        and not any(e.attr(_PAD))
        and all(map(is_known_tensor, e.args))
    )


def at_least_zero(d: Dim) -> bool | None:
    """Whether `d >= 0` for all sizes of at least 1, or for none; None if that is not plain."""
    if d.is_const:
        return d.value >= 0
    if not is_plain(d):
        return None
    coefficients = [c for _, c in d.terms]
    if all(c > 0 for c in coefficients) and d.const + sum(coefficients) >= 0:
        return True
    return False if all(c < 0 for c in coefficients) and d.const + sum(coefficients) < 0 else None


class Undecided(Exception):
    """Raised where sizes decide which of several parts is read."""


def is_nonnegative(d: Dim) -> bool:
    known = at_least_zero(d)
    if known is None:
        raise Undecided
    return known


@dataclass
class Inward:
    """Moves views towards inputs.

    - `is_leaf`: whether a view stops at an expression.
    """

    is_leaf: Callable[[Expr], bool]
    _made: dict[tuple[Expr, IndexView], Expr] = field(default_factory=dict[tuple[Expr, IndexView], Expr])

    def at(self, e: Expr, view: IndexView) -> Expr:
        """The expression of a view of `e`. Raises RelaxEgError if it does not exist at all sizes."""
        if view.is_identity_on(e.shape):
            return e
        key = e, view
        if key not in self._made:
            is_last = len(self._made) >= _MOST_VALUES or self.is_leaf(e)
            found = None if is_last else self._through(e, view)
            self._made[key] = made_of(view, e) if found is None else found
        return self._made[key]

    def _through(self, e: Expr, view: IndexView) -> Expr | None:
        if e.op in (VAR, CONSTANT) or e.op in CORE or not is_known_tensor(e):
            return None
        inner = view_of(e)
        if inner is not None:
            both = composed(view, inner, e.args[0].shape, e.shape)
            return None if both is None else self.at(e.args[0], both)
        try:
            if is_join(e):
                return self._of_join(e, view)
            if is_padded(e):
                return self._of_padded(e, view)
        except Undecided:
            return None
        if not e.args:
            return _of_positions(e, view)
        if is_pointwise(e):
            return self._of_pointwise(e, view)
        selected, arranged = parts_of(view, e.shape)
        if len(e.args) == 1 and TABLE[e.op].moves == "view":
            made = self._of_regrouped(e, selected)
        else:
            made = self._of_rows(e, selected)
        return None if made is None else self.at(made, arranged) if is_join(made) else made_of(arranged, made)

    def _of_pointwise(self, e: Expr, view: IndexView) -> Expr:
        args = tuple(self.at(a, view_of_operand(view, a, e)) for a in e.args)
        made = call(e.op, args, dict(e.attrs))
        return made if made.shape == view.shape else op.broadcast_to(made, view.shape)

    def _of_rows(self, e: Expr, selected: IndexView) -> Expr | None:
        """A selection of what is computed for each place of the selected axes alone."""
        made = program_of(site_of(e))
        if made is None or len(made.outputs) != 1 or len(made.inputs) != len(e.args):
            return None
        maps = [[AxisMap(i) for i in range(a.ndim)] for a in e.args]
        shapes = [list(a.shape) for a in e.args]
        sizes: dict[int, Dim] = {}
        for axis, m in enumerate(selected.maps):
            if m.is_whole(axis) and selected.shape[axis] == e.shape[axis]:
                continue
            places = sliced_input_axes(made, axis)
            if places is None:
                return None
            sizes[axis] = selected.shape[axis]
            for i, place in enumerate(places):
                if place is not None:
                    maps[i][place] = replace(m, out=place)
                    shapes[i][place] = selected.shape[axis]
        args = [self.at(a, IndexView(tuple(m), tuple(s))) for a, m, s in zip(e.args, maps, shapes, strict=True)]
        return applied_again(e, args, sizes)

    def _of_regrouped(self, e: Expr, selected: IndexView) -> Expr | None:
        """A selection of the same elements in another shape: of the first of the axes that were merged or split, whose
        other axes stay whole."""
        (x,) = e.args
        groups = regrouped(x.shape, e.shape)
        if groups is None:
            return None
        maps, shape = [AxisMap(i) for i in range(x.ndim)], list(x.shape)
        for of_x, of_e in groups:
            touched = [a for a in of_e if not (selected.maps[a].is_whole(a) and selected.shape[a] == e.shape[a])]
            if not touched:
                continue
            first = next((a for a in of_x if x.shape[a] is not ONE), None)
            leading = next(a for a in of_e if e.shape[a] is not ONE) if first is not None else None
            if touched != [leading] or first is None or leading is None:
                return None
            m, count = selected.maps[leading], selected.shape[leading]
            inside_x = product(x.shape[a] for a in of_x if a > first)
            inside_e = product(e.shape[a] for a in of_e if a > leading)
            if inside_x == inside_e:
                maps[first], shape[first] = replace(m, out=first), count
                continue
            start, read = m.start * inside_e, count * inside_e
            if m.indices is not None or m.step != 1 or start % inside_x is not ZERO or read % inside_x is not ZERO:
                return None
            maps[first], shape[first] = AxisMap(first, start // inside_x), read // inside_x
        return op.reshape(self.at(x, IndexView(tuple(maps), tuple(shape))), selected.shape)

    def _of_join(self, e: Expr, view: IndexView) -> Expr | None:
        axis = e.attr("axis")
        m, count = view.maps[axis], view.extent(axis)
        if m.indices is not None:
            return None
        low, high = sliced_indices(m, count)
        start = ZERO
        parts: list[Expr] = []
        is_whole = m.out is not None and m.is_whole(m.out) and count == e.shape[axis]
        for x in e.args:
            size = x.shape[axis]
            if is_whole:
                here = AxisMap(m.out), size
            else:
                here = _overlap(m, count, low, high, start, size)
            if here is not None:
                shape = view.shape if m.out is None else with_sizes(view.shape, {m.out: here[1]})
                maps = (*view.maps[:axis], here[0], *view.maps[axis + 1 :])
                parts.append(self.at(x, IndexView(maps, shape)))
            start = start + size
        if m.step < 0:
            parts.reverse()
        if not parts or (m.out is None and len(parts) > 1):
            return None
        return parts[0] if m.out is None else self.joined(parts, m.out)

    def _of_padded(self, e: Expr, view: IndexView) -> Expr | None:
        selected, arranged = parts_of(view, e.shape)
        x, value = e.args
        lows, highs, maps, shape = list(e.attr("low")), list(e.attr("high")), list(selected.maps), list(x.shape)
        for axis, m in enumerate(selected.maps):
            low, size, count = lows[axis], x.shape[axis], selected.shape[axis]
            if low is ZERO and highs[axis] is ZERO:
                shape[axis] = count
                continue
            if m.indices is not None or not is_nonnegative(low) or not is_nonnegative(highs[axis]):
                return None
            if m.is_whole(axis) and count == e.shape[axis]:
                continue
            first, last = sliced_indices(m, count)
            here = _overlap(m, count, first, last, low, size)
            if here is None:
                return made_of(IndexView((), view.shape), value)
            maps[axis], shape[axis] = here
            inside = here[1] == count
            if not inside and m.step != 1:
                return None
            lows[axis] = low - first if not inside and is_nonnegative(low - first) else ZERO
            highs[axis] = count - lows[axis] - here[1]
        inner = self.at(x, IndexView(tuple(maps), tuple(shape)))
        widths = list(zip(lows, highs, strict=True))
        made = inner if all(a is ZERO and b is ZERO for a, b in widths) else op.pad(inner, widths, value)
        return made_of(arranged, made) if not arranged.is_identity_on(made.shape) else made

    # --- joins ---

    def joined(self, parts: Sequence[Expr], axis: int) -> Expr:
        """The parts one after the other along an axis: neighbours in one array are one part, and a function of all
        parts is computed once. Raises RelaxEgError if it does not exist at all sizes."""
        flat = [x for p in parts for x in (p.args if is_join(p) and p.attr("axis") == axis else (p,))]
        flat = self._merged([p for p in flat if p.shape[axis] is not ZERO] or flat[:1], axis)
        if len(flat) == 1:
            return flat[0]
        made = self.unified(flat, axis)
        return op.concat(flat, axis) if made is None else made

    def _merged(self, parts: Sequence[Expr], axis: int) -> list[Expr]:
        """The parts, with neighbours in one array put together."""
        merged: list[tuple[Expr, IndexView]] = []
        for p in parts:
            x, view = (p.args[0], found) if (found := view_of(p)) is not None else (p, whole(p.shape))
            if merged:
                last, before = merged[-1]
                both = _adjacent(before, view, axis) if last is x else None
                if both is not None:
                    merged[-1] = x, both
                    continue
            merged.append((x, view))
        if len(merged) == len(parts):
            return list(parts)
        return [self.at(x, view) for x, view in merged]

    def unified(self, parts: Sequence[Expr], axis: int) -> Expr | None:
        """One expression of joined operands for parts that the same operators compute."""
        if all(view_of(p) is not None and is_pointwise(p.args[0]) for p in parts):
            moved = [self.at(p.args[0], view) for p in parts if (view := view_of(p)) is not None]
            return None if any(view_of(p) is not None for p in moved) else self.unified(moved, axis)
        first = parts[0]
        if any(p.op != first.op or p.attrs != first.attrs or len(p.args) != len(first.args) for p in parts):
            return None
        if any(p is first for p in parts[1:]) or first.op in CORE or view_of(first) is not None or is_join(first):
            return None
        total = sum((p.shape[axis] for p in parts), ZERO)
        if is_pointwise(first):
            columns = [self._column(parts, i, axis) for i in range(len(first.args))]
            if any(c is None for c in columns):
                return None
            made = call(first.op, tuple(c for c in columns if c is not None), dict(first.attrs))
            return made if made.shape == with_sizes(first.shape, {axis: total}) else None
        made = program_of(site_of(first))
        places = None if made is None or len(made.outputs) != 1 else sliced_input_axes(made, axis)
        if places is None or len(places) != len(first.args):
            return None
        args: list[Expr] = []
        for i, place in enumerate(places):
            column = [p.args[i] for p in parts]
            if place is None and any(a is not column[0] for a in column):
                return None
            args.append(column[0] if place is None else self.joined(column, place))
        return applied_again(first, args, {axis: total})

    def _column(self, parts: Sequence[Expr], i: int, axis: int) -> Expr | None:
        """Operand number `i` of all parts, joined where it differs; None if it is repeated along the axis there."""
        column = [p.args[i] for p in parts]
        rank = parts[0].ndim
        own = [axis - rank + a.ndim for a in column]
        if all(a is column[0] for a in column) and (own[0] < 0 or column[0].shape[own[0]] is ONE):
            return column[0]
        if any(o != own[0] or o < 0 or a.shape[o] != p.shape[axis] for o, a, p in zip(own, column, parts, strict=True)):
            return None
        if any(with_sizes(a.shape, {own[0]: ZERO}) != with_sizes(column[0].shape, {own[0]: ZERO}) for a in column):
            return None
        return self.joined(column, own[0])


def view_of_operand(view: IndexView, a: Expr, e: Expr) -> IndexView:
    """The view of an operand that a pointwise operator reads at a view of its result `e`; without axes in front, and
    with axes of size 1, that the operator broadcasts."""
    off = e.ndim - a.ndim
    maps = [view.maps[i + off] if d == e.shape[i + off] else AxisMap(None) for i, d in enumerate(a.shape)]
    outs = [m.out for m in maps if m.out is not None]
    first = min(outs, default=len(view.shape))
    shape = [d if i in outs else ONE for i, d in enumerate(view.shape)]
    return IndexView(tuple(m if m.out is None else replace(m, out=m.out - first) for m in maps), tuple(shape[first:]))


def parts_of(view: IndexView, shape: Sequence[Dim]) -> tuple[IndexView, IndexView]:
    """A selection along each axis, which keeps the axes, and the arrangement of the selected axes: the view is the
    second of the first."""
    selected = tuple(
        replace(
            m, out=axis, indices=op.expand_dims(m.indices, 0) if m.out is None and m.indices is not None else m.indices
        )
        for axis, m in enumerate(view.maps)
    )
    sizes = tuple(view.extent(axis) for axis in range(len(shape)))
    arranged = tuple(AxisMap(m.out) for m in view.maps)
    return IndexView(selected, sizes), IndexView(arranged, view.shape)


def _overlap(m: AxisMap, count: Dim, low: Dim, high: Dim, start: Dim, size: Dim) -> tuple[AxisMap, Dim] | None:
    """What a map of `count` positions from `low` to `high` reads of the `size` positions from `start`: the map there,
    and the number of positions; None if nothing. Raises Undecided."""
    if is_nonnegative(start - high) or is_nonnegative(low - start - size):
        return None
    before, after = is_nonnegative(start - low), is_nonnegative(high - start - size)
    if m.out is None or ((low == start or not before) and (high == start + size or not after)):
        return replace(m, start=m.start - start), count
    if abs(m.step) != 1:
        raise Undecided
    first = ZERO if before else low - start
    last = size if after else high - start
    return replace(m, start=first if m.step > 0 else last - 1), last - first


def _of_positions(e: Expr, view: IndexView) -> Expr | None:
    """A view of numbered positions."""
    made = program_of(site_of(e))
    if made is None or len(made.stages) != 1:
        return None
    (stage,) = made.stages
    value = stage.value.arg if isinstance(stage.value, Cast) else stage.value
    found = affine(value.dim, stage.indices) if isinstance(value, Index) else None
    if found is None or found.out is None or not found.is_whole(found.out) or kind(e.dtype) != "i":
        return None
    m = view.maps[found.out]
    if m.indices is not None:
        return None
    if m.out is None:
        return op.broadcast_to(op.dim_value(m.start, e.dtype), view.shape)
    made = call(e.op, (), {**dict(e.attrs), "shape": view.shape, "axis": m.out})
    if m.step != 1:
        made = op.multiply(made, op.dim_value(m.step, e.dtype))
    return made if m.start is ZERO else op.add(made, op.dim_value(m.start, e.dtype))


def _adjacent(first: IndexView, second: IndexView, axis: int) -> IndexView | None:
    """The view that reads what two views of one value read, one after the other along `axis`; None if it is none."""
    total = first.shape[axis] + second.shape[axis]
    if with_sizes(first.shape, {axis: total}) != with_sizes(second.shape, {axis: total}):
        return None
    maps: list[AxisMap] = []
    for a, b in zip(first.maps, second.maps, strict=True):
        if a.out == axis and b.out == axis and a.indices is None and b.indices is None:
            step = b.step if first.shape[axis] is ONE else a.step
            if b.start != a.start + step * first.shape[axis] or (second.shape[axis] is not ONE and b.step != step):
                return None
            maps.append(replace(a, step=step))
        elif a != b or a.out == axis:
            return None
        else:
            maps.append(a)
    return IndexView(tuple(maps), with_sizes(first.shape, {axis: total}))


def regrouped(before: Sequence[Dim], after: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """The axes of two shapes in groups of the same number of elements, the smallest ones; None if there are none."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        mine, other = [i] if i < len(before) else [], [j] if j < len(after) else []
        i, j = i + len(mine), j + len(other)
        a, b = product(before[k] for k in mine), product(after[k] for k in other)
        while a != b:
            if b % a is ZERO:  # of the two, that grows which divides the other
                if i >= len(before):
                    return None
                mine.append(i)
                a, i = a * before[i], i + 1
            else:
                if j >= len(after):
                    return None
                other.append(j)
                b, j = b * after[j], j + 1
        groups.append((mine, other))
    return groups
