"""Views: the value of one expression at positions that are computed axis by axis.

Transposes, slices, flips, broadcasts, axes put in and taken out, and rows taken at indices are all views. A view is
read from an operator's index equation, so no operator is named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, is_loop, loop

ZERO, ONE = Dim.of(0), Dim.of(1)
_MOVES = frozenset(("view", "order", "part", "repeat"))
_SELECTS = "select"
_MOST_KNOWN = 1 << 14  # limit: expressions of which it is known whether they are views


@dataclass(frozen=True, slots=True)
class AxisMap:
    """Which position of an axis is read.

    - `out`: the axis of the view whose position i decides; None if one position is read everywhere.
    - `start`, `step`: position `start + step * i` is read.
    - `indices`: if there are any, the position is element i of this vector instead, or its only element.
    - `mode`: what indices out of range read, as of `take`.
    """

    out: int | None
    start: Dim = ZERO
    step: int = 1
    indices: Expr | None = None
    mode: str = ""

    def is_whole(self, out: int) -> bool:
        return self.out == out and self.start is ZERO and self.step == 1 and self.indices is None


@dataclass(frozen=True, slots=True)
class IndexView:
    """A value at computed positions.

    - `maps`: for each axis of the value, which position is read.
    - `shape`: the shape of the view. An axis that no map mentions repeats what is read.
    """

    maps: tuple[AxisMap, ...]
    shape: tuple[Dim, ...]

    def is_identity_on(self, shape: Sequence[Dim]) -> bool:
        return self.shape == tuple(shape) and all(m.is_whole(i) for i, m in enumerate(self.maps))

    def extent(self, axis: int) -> Dim:
        """The number of positions that are read along an axis of the value."""
        out = self.maps[axis].out
        return ONE if out is None else self.shape[out]


def whole(shape: Sequence[Dim]) -> IndexView:
    """The view of everything in its place."""
    return IndexView(tuple(AxisMap(i) for i in range(len(shape))), tuple(shape))


@lru_cache(_MOST_KNOWN)
def view_of(e: Expr) -> IndexView | None:
    """The view of its first operand that `e` is; None if it is none."""
    record = TABLE.get(e.op)
    if record is None or not e.args or not (record.moves in _MOVES or record.moves == _SELECTS):
        return None
    return _selection(e) if record.moves == _SELECTS else _view(e)


def _view(e: Expr) -> IndexView | None:
    made = program_of(site_of(e)) if is_known_tensor(e) and len(e.args) == 1 and is_known_tensor(e.args[0]) else None
    if made is None or len(made.stages) != 1 or not isinstance(made.stages[0].value, Read):
        return None
    (stage,) = made.stages
    assert isinstance(stage.value, Read)
    maps: list[AxisMap] = []
    for at in stage.value.indices:
        found = affine(at, stage.indices) if isinstance(at, Dim) else None
        if found is None:
            return None
        maps.append(found)
    return _tidy(maps, e.shape)


def _selection(e: Expr) -> IndexView | None:
    if not all(map(is_known_tensor, (e, *e.args))) or len(e.args) != 2 or e.args[1].ndim > 1:
        return None
    x, indices = e.args
    axis, mode, rank = e.attr("axis"), e.attr("mode"), indices.ndim
    while TABLE[indices.op].moves == _SELECTS if indices.op in TABLE else False:
        # Positions taken at indices are these indices.
        numbers = _position(indices.args[0], (loop("i0"),)) if indices.args[0].ndim == 1 else None
        same_range = indices.attr("mode") == mode and indices.args[0].shape[0] == x.shape[axis]
        if numbers is None or not numbers.is_whole(0) or not same_range or indices.args[1].ndim != rank:
            break
        indices = indices.args[1]
    maps = [AxisMap(i if i < axis else i + rank - 1) for i in range(x.ndim)]
    maps[axis] = _taken(axis if rank else None, indices, mode)
    return _tidy(maps, e.shape)


def affine(at: Dim, loops: Sequence[Dim]) -> AxisMap | None:
    """The map of an index that is `start + step * i` for one of the loops, or the same everywhere; else None."""
    names = [str(v) for v in loops]
    used = [n for n in at.variables if is_loop(n)]
    if not used:
        return AxisMap(None, at)
    if len(used) > 1 or used[0] not in names:
        return None
    start = at.substitute({used[0]: 0})
    step = at.substitute({used[0]: 1}) - start
    if not step.is_const or step.value == 0 or start + step * Dim.var(used[0]) != at:
        return None
    return AxisMap(names.index(used[0]), start, step.value)


def _taken(out: int | None, indices: Expr, mode: str) -> AxisMap:
    """The map of taking elements at indices; a plain one if these are positions in order."""
    found = _position(indices, (loop("i0"),) if indices.ndim else ())
    if found is not None:
        return replace(found, out=None if found.out is None else out)
    return AxisMap(out, ZERO, 1, indices, mode)


def _position(e: Expr, at: tuple[Dim, ...]) -> AxisMap | None:
    """The map of which the integers `e` are the positions; None if they depend on data."""
    from relax_eg.rules.verify_formal.compose import Composer, Unsupported, index_dim

    made = Composer()
    try:
        found = index_dim(made.element(e, at), made.name_of)
    except (Unsupported, RelaxEgError):
        return None
    return None if found is None else affine(found, at)  # what depends on data is a variable that is no loop of `at`


def _tidy(maps: Sequence[AxisMap], shape: Sequence[Dim]) -> IndexView | None:
    """A view in one form: an axis of one position is read with step 1. None if two axes read one position, as a
    diagonal does."""
    outs = [m.out for m in maps if m.out is not None]
    if len(set(outs)) < len(outs):
        return None
    tidied = [replace(m, step=1) if m.out is not None and shape[m.out] is ONE else m for m in maps]
    return IndexView(tuple(tidied), tuple(shape))


def composed(outer: IndexView, inner: IndexView, sizes: Sequence[Dim], middle: Sequence[Dim]) -> IndexView | None:
    """The view of x, with axes of these sizes, that `outer` of `inner` of x is; `middle` is the shape of the inner
    view."""
    maps: list[AxisMap] = []
    for m, size in zip(inner.maps, sizes, strict=True):
        at = AxisMap(None) if m.out is None else outer.maps[m.out]
        if m.out is None:
            maps.append(m)
        elif m.indices is None and at.indices is None:
            step = m.step * at.step if at.out is not None else 1
            maps.append(AxisMap(at.out, m.start + m.step * at.start, step))
        elif m.indices is None:
            if not m.is_whole(m.out) or middle[m.out] != size:
                return None
            maps.append(at)
        else:
            count = ONE if at.out is None else outer.shape[at.out]
            maps.append(_taken(at.out, _indices_at(m.indices, at, count), m.mode))
    return _tidy(maps, outer.shape)


def source_of(e: Expr) -> tuple[Expr, IndexView]:
    """The expression of which `e` is a view, as far as its views are one, and that view."""
    x, view = e, whole(e.shape)
    while (inner := view_of(x)) is not None:
        both = composed(view, inner, x.args[0].shape, x.shape)
        if both is None:
            break
        x, view = x.args[0], both
    return x, view


def _indices_at(indices: Expr, at: AxisMap, count: Dim) -> Expr:
    """The indices at the positions that a map reads."""
    if not indices.ndim:
        return indices
    view = IndexView((at,), ()) if at.out is None else IndexView((replace(at, out=0),), (count,))
    return made_of(view, indices)


def sliced_indices(m: AxisMap, count: Dim) -> tuple[Dim, Dim]:
    """The first position that a map reads, and the one after the last."""
    if m.out is None:
        return m.start, m.start + 1
    far = m.start + m.step * (count - 1)
    low, high = (m.start, far) if m.step > 0 else (far, m.start)
    return low, high + 1


def made_of(view: IndexView, x: Expr) -> Expr:
    """The expression of a view of `x`. Raises RelaxEgError if it does not exist at all sizes."""
    begin, end, steps, flipped = [], [], [], []
    for axis, (m, size) in enumerate(zip(view.maps, x.shape, strict=True)):
        low, high = (ZERO, size) if m.indices is not None else sliced_indices(m, view.extent(axis))
        step = 1 if m.indices is not None or m.out is None else abs(m.step)
        # The places after the last one that is read belong to its stride where they fill the axis.
        if step > 1 and (size - low) == step * view.extent(axis):
            high = size
        begin.append(low)
        end.append(high)
        steps.append(step)
        if m.out is not None and m.indices is None and m.step < 0:
            flipped.append(axis)
    if tuple(end) != x.shape or any(b is not ZERO for b in begin) or any(s != 1 for s in steps):
        x = op.strided_slice(x, begin, end, steps)
    if flipped:
        x = op.flip(x, tuple(flipped))
    axes = [m.out for m in view.maps]
    for axis in reversed(range(len(view.maps))):
        m = view.maps[axis]
        if m.indices is not None:
            indices = m.indices if m.out is None or m.indices.ndim else op.expand_dims(m.indices, 0)
            x = op.take(x, indices, axis, mode=m.mode)
            if m.out is None:
                del axes[axis]
        elif m.out is None:
            x = op.squeeze(x, (axis,))
            del axes[axis]
    kept = [a for a in axes if a is not None]
    order = sorted(range(len(kept)), key=kept.__getitem__)
    if order != list(range(len(kept))):
        x = op.permute_dims(x, order)
    first = min(kept, default=len(view.shape))
    missing = [a for a in range(first, len(view.shape)) if a not in kept]
    if missing:
        x = op.expand_dims(x, tuple(a - first for a in missing))
    if first and all(d is ONE for d in view.shape[:first]):
        x = op.expand_dims(x, tuple(range(first)))
    return x if x.shape == view.shape else op.broadcast_to(x, view.shape)
