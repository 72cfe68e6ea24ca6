"""Index maps moved towards results: f(map(x), map(y)) = map(f(x, y)), where less is computed or the maps cancel.

What is moved: views, elements in another shape, and a scalar put around a value, which becomes its function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.index_maps.inward import Inward, Undecided, at_least_zero, is_padded, is_pointwise, parts_of
from relax_eg.rules.index_maps.views import ONE, AxisMap, IndexView, composed, made_of, view_of, whole
from relax_eg.shapes import Dim


@dataclass(frozen=True, slots=True)
class Regrouped:
    """The same elements in another shape."""

    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Surrounded:
    """A value with `value` around it, `low` times before and `high` times after."""

    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    value: Expr


Step = IndexView | Regrouped | Surrounded
_DEEPEST = 16  # limit: operators through which maps move in one proposal
_MOST_KNOWN = 1 << 14  # limit: expressions whose maps are kept; one that is evicted is read again


@dataclass(frozen=True, slots=True)
class Mapped:
    """Index maps of an expression.

    - `steps`: the maps, the innermost first.
    - `inner`: the expression.
    - `depth`: number of pointwise operators through which maps moved.
    """

    steps: tuple[Step, ...]
    inner: Expr
    depth: int = 0

    def expression(self) -> Expr:
        """Raises RelaxEgError if it does not exist at all sizes."""
        x = self.inner
        for s in self.steps:
            x = _applied(s, x)
        return x

    def followed_by(self, step: Step) -> Mapped:
        """The same value with a further step. Steps that cancel are left out."""
        x = Mapped(self.steps[:-1], self.inner).expression() if self.steps else self.inner
        last = self.steps[-1] if self.steps else None
        shape = x.shape if last is None else _applied(last, x).shape
        if isinstance(step, IndexView) and isinstance(last, IndexView):
            both = composed(step, last, x.shape, shape)
            if both is not None:
                steps = self.steps[:-1] if both.is_identity_on(x.shape) else (*self.steps[:-1], both)
                return replace(self, steps=steps)
        if isinstance(step, Regrouped) and isinstance(last, Regrouped):
            steps = self.steps[:-1] if step.shape == x.shape else (*self.steps[:-1], step)
            return replace(self, steps=steps)
        if isinstance(step, Surrounded) and isinstance(last, Surrounded) and step.value is last.value:
            widths = (*step.low, *step.high, *last.low, *last.high)
            if all(at_least_zero(w) for w in widths):
                low = tuple(a + b for a, b in zip(step.low, last.low, strict=True))
                high = tuple(a + b for a, b in zip(step.high, last.high, strict=True))
                return replace(self, steps=(*self.steps[:-1], Surrounded(low, high, step.value)))
        is_nothing = (
            step.is_identity_on(shape)
            if isinstance(step, IndexView)
            else isinstance(step, Regrouped) and step.shape == shape
        )
        return self if is_nothing else replace(self, steps=(*self.steps, step))


def _applied(step: Step, x: Expr) -> Expr:
    if isinstance(step, IndexView):
        return made_of(step, x)
    if isinstance(step, Regrouped):
        return op.reshape(x, step.shape)
    return op.pad(x, list(zip(step.low, step.high, strict=True)), step.value)


_known = Memo[Expr, Mapped](_MOST_KNOWN)


def mapped(e: Expr) -> Mapped:
    """`e` as index maps of the least expression of which they are found."""
    for x in postorder((e,), stop=_known.__contains__):
        if x not in _known:
            try:
                _known[x] = _mapped(x)
            except (RelaxEgError, Undecided):  # an operator that does not exist at all sizes
                _known[x] = Mapped((), x)
    return _known[e]


def _mapped(e: Expr) -> Mapped:
    view = view_of(e)
    if view is not None:
        return mapped(e.args[0]).followed_by(view)
    if e.op in TABLE and TABLE[e.op].moves == "view" and len(e.args) == 1:
        return mapped(e.args[0]).followed_by(Regrouped(e.shape))
    if is_padded(e):
        return mapped(e.args[0]).followed_by(Surrounded(tuple(e.attr("low")), tuple(e.attr("high")), e.args[1]))
    found = _of_pointwise(e) if is_pointwise(e) else None
    return Mapped((), e) if found is None or found.depth > _DEEPEST else found


def _of_pointwise(e: Expr) -> Mapped | None:
    arrays = [i for i, a in enumerate(e.args) if a.ndim]
    read = {i: mapped(e.args[i]) for i in arrays}
    first = next((read[i] for i in arrays if read[i].steps), None)
    if first is None:
        return None
    depth = 1 + max(m.depth for m in read.values())
    same = all(
        len(m.steps) == len(first.steps) and m.inner.shape == first.inner.shape and e.args[i].shape == e.shape
        and all(map(_is_same_place, m.steps, first.steps))
        for i, m in read.items()
    )  # fmt: skip
    if same:
        innermost = first.steps[0]
        # What is left out is left out before the function.
        chosen = selection_of(innermost, first.inner.shape) if isinstance(innermost, IndexView) else None
        inners = {i: made_of(chosen[0], m.inner) if chosen is not None else m.inner for i, m in read.items()}
        inner = call(e.op, tuple(inners.get(i, a) for i, a in enumerate(e.args)), dict(e.attrs))
        steps: list[Step] = []
        for n, s in enumerate(first.steps if chosen is None else (chosen[1], *first.steps[1:])):
            if isinstance(s, Surrounded):
                around = [_value_around(read[i].steps[n]) if i in read else a for i, a in enumerate(e.args)]
                s = replace(s, value=call(e.op, around, dict(e.attrs)))
            steps.append(s)
        if chosen is not None and chosen[1].is_identity_on(inner.shape):
            del steps[0]
        return Mapped(tuple(steps), inner, depth)
    return _by_axes(e, read, depth)


def selection_of(view: IndexView, shape: Sequence[Dim]) -> tuple[IndexView, IndexView] | None:
    """A view as what is selected along each axis, and its arrangement; None if nothing is left out."""
    leaves_out = any(
        m.indices is None and size is not ONE and view.extent(axis) != size
        for axis, (m, size) in enumerate(zip(view.maps, shape, strict=True))
    )
    return parts_of(view, shape) if leaves_out else None


def _value_around(step: Step) -> Expr:
    assert isinstance(step, Surrounded)
    return step.value


def _is_same_place(a: Step, b: Step) -> bool:
    if isinstance(a, Surrounded) and isinstance(b, Surrounded):
        return (a.low, a.high) == (b.low, b.high)
    return a == b


def _by_axes(e: Expr, read: dict[int, Mapped], depth: int) -> Mapped | None:
    """Those maps moved along single axes that all operands have there: a repetition, and rows taken at the same
    indices. `depth`: of the result."""
    views: dict[int, tuple[Expr, IndexView]] = {}
    for i, m in read.items():
        last = m.steps[-1] if m.steps else None
        if isinstance(last, IndexView):
            views[i] = Mapped(m.steps[:-1], m.inner).expression(), last
        else:
            x = m.expression()
            views[i] = x, whole(x.shape)
    outer: list[AxisMap] = []
    inner_shape: list[Dim] = []
    inner_maps = {i: list(v.maps) for i, (_, v) in views.items()}
    moved = False
    for axis, size in enumerate(e.shape):
        found: dict[int, int] = {}  # by operand, the axis of its source
        for i, (_, v) in views.items():
            at = axis - e.ndim + len(v.shape)
            places = [a for a, m in enumerate(v.maps) if m.out == at and at >= 0 and v.shape[at] is not ONE]
            if places:
                found[i] = places[0]
        here = [views[i][1].maps[a] for i, a in found.items()]
        sizes = {views[i][0].shape[a] for i, a in found.items()}
        if size is not ONE and not found:
            outer.append(AxisMap(None))
            inner_shape.append(ONE)
            moved = True
        elif (
            here
            and here[0].indices is not None
            and len(sizes) == 1
            and all((m.indices, m.mode) == (here[0].indices, here[0].mode) for m in here)
        ):
            outer.append(replace(here[0], out=axis))
            inner_shape.append(sizes.pop())
            for i, a in found.items():
                inner_maps[i][a] = AxisMap(inner_maps[i][a].out)
            moved = True
        else:
            outer.append(AxisMap(axis))
            inner_shape.append(size)
    if not moved:
        return None
    args: list[Expr] = list(e.args)
    inward = Inward(lambda x: True)
    for i, (x, v) in views.items():
        start = e.ndim - len(v.shape)
        shape = [ONE if d is ONE else inner_shape[start + a] for a, d in enumerate(v.shape)]
        args[i] = inward.at(x, IndexView(tuple(inner_maps[i]), tuple(shape)))
    inner = call(e.op, tuple(args), dict(e.attrs))
    if inner.shape != tuple(inner_shape):
        inner = op.reshape(inner, inner_shape) if inner.ndim < e.ndim else inner
    view = IndexView(tuple(outer), e.shape)
    return Mapped((), inner, depth).followed_by(view) if inner.shape == tuple(inner_shape) else None
