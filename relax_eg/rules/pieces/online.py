"""Sums whose terms follow totals of the same loop, such as the sums of a softmax over the keys of an attention.

A loop over pieces of a dimension has totals: what it accumulated so far. A later sum over the same dimension may have
terms that use a total, which is not known before the last step. If a term is a product whose factors with totals do not
vary along the dimension, the sum is accumulated all the same:

- exp(s - m), where m is the maximum of s along the dimension: a step uses the maximum so far. When that changes from m
  to m', what was added up before is multiplied by exp(m - m').
- A factor or divisor that follows from totals alone: the sum is multiplied or divided by it after the loop.

A maximum of -inf, so far of places without a finite value, is replaced by 0 in the steps, so that they add 0. The
result is multiplied by exp(0 - m) after the loop, which gives NaN as exp(-inf - -inf) does.

The factors are read off the index equations of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from relax_eg import dtypes
from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, var
from relax_eg.ir.heads import CORE
from relax_eg.ops import api as op
from relax_eg.ops.fused import program_in_kernel, viewed_value
from relax_eg.ops.record import movement_operators
from relax_eg.rules.pieces.slicing import applied_again, with_sizes
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Read, Reduce, Scalar, Select
from relax_eg.tir.program import Stage
from relax_eg.tir.slicing import Axes, Dimension

_DEEPEST = 64  # limit: operators in a row that follow totals
_RAISED = {"exp": op.exp, "exp2": op.exp2}
_COPIES = movement_operators("view", "repeat")
_HELD_BACK = {"multiply": op.multiply, "divide": op.divide}


class TotalsFactor(NamedTuple):
    """A factor of a value that does not vary along the dimension.

    - `fn`: "exp" or "exp2" of the negated follower, or "multiply" or "divide" by the follower.
    - `follower`: what follows from totals.
    - `axes`: for each axis of the value, the follower's axis that has the same places.
    """

    fn: str
    follower: Expr
    axes: Axes


class TotalsForm(NamedTuple):
    """How a value depends on totals: a product with `factors`; a difference to the follower of `shift`; the operand at
    position `operand`, which is a follower with these `axes`; or not at all."""

    factors: tuple[TotalsFactor, ...] = ()
    shift: TotalsFactor | None = None
    operand: int | None = None
    axes: Axes = ()


@dataclass(frozen=True)
class TotalsLaw:
    """How a node that varies along the dimension depends on totals.

    - `form`: its factors, or what is subtracted in it.
    - `given`: by position of an operand that is a follower, whether a step uses its value so far (else 1, because the
      sum is multiplied or divided by it after the loop).
    """

    form: TotalsForm
    given: Mapping[int, bool]

    def moved(self, to: Callable[[TotalsFactor], TotalsFactor]) -> TotalsLaw:
        """The law with other followers."""
        shift = None if self.form.shift is None else to(self.form.shift)
        form = self.form._replace(factors=tuple(map(to, self.form.factors)), shift=shift)
        return TotalsLaw(form, self.given)


class Follower(NamedTuple):
    """What follows from totals: the axis of its result along which it has one value for all places of the dimension,
    the totals, and the number of operators between."""

    axis: int | None
    totals: frozenset[Expr]
    depth: int


@dataclass
class OnlineSums:
    """What follows from the totals of a region, found node by node.

    - `inside`: the nodes with the dimension, found so far.
    """

    inside: Mapping[Expr, Dimension]
    followers: dict[Expr, Follower] = field(default_factory=dict[Expr, Follower])
    laws: dict[Expr, TotalsLaw] = field(default_factory=dict[Expr, TotalsLaw])

    def follower(self, x: Expr) -> Follower | None:
        """A value as one that follows from totals, such as a total itself."""
        if x in self.inside and self.inside[x].kind is not None:
            return Follower(None, frozenset((x,)), 0)
        return self.followers.get(x)

    def add(self, x: Expr, d: Dimension | None) -> bool:
        """Whether `x`, which reads what depends on totals, is a follower. It is remembered then. `d`: its dimension."""
        if x.op in CORE or not isinstance(x.annotation, Tensor) or (d is not None and d.output is None):
            return False
        axis, totals, depth = None if d is None else d.output, frozenset[Expr](), 0
        args: list[Expr] = []
        for i, a in enumerate(x.args):
            place = None if d is None else d.inputs[i]
            found = self.follower(a)
            if (found is None and (a in self.inside or a in self.laws)) or (found and found.axis) != place:
                return False
            if found is not None:
                totals, depth = totals | found.totals, max(depth, found.depth + 1)
            sizes = {} if place is None else {place: Dim.of(1)}
            args.append(a if a.op == CONSTANT else var(f"x{i}", Tensor(with_sizes(a.shape, sizes), a.dtype)))
        if depth > _DEEPEST or _thin(x, axis, args) is None:
            return False
        self.followers[x] = Follower(axis, totals, depth)
        return True

    def law(self, x: Expr, d: Dimension, part: bool = False) -> TotalsLaw | None:
        """How `x` depends on totals, if the sum of its values can be accumulated. `part`: whether it is applied to the
        part of a total that one step adds."""
        placed = program_in_kernel(x)
        if placed is None or len(placed.program.stages) != 1 or len(placed.program.inputs) != len(x.args):
            return None
        for a, place in zip(x.args, () if part else d.inputs, strict=not part):
            if a in self.laws and self.follower(a) is None and self.inside[a].output != place:
                return None  # reads it whole
        (stage,) = placed.program.stages
        names = {b.name: i for i, b in enumerate(placed.program.inputs)}
        given: dict[int, bool] = {}
        form = _Reading(self, x, stage, names, given, part).form(stage.value)
        return None if form is None or form.operand is not None else TotalsLaw(form, given)

    def totals_of(self, x: Expr) -> frozenset[Expr]:
        """The totals that the terms of a node need so far."""
        law = self.laws.get(x)
        given = () if law is None else [x.args[i] for i, is_used in law.given.items() if is_used]
        return frozenset[Expr]().union(*(f.totals for a in given if (f := self.follower(a)) is not None))


def _thin(x: Expr, axis: int | None, args: list[Expr]) -> Expr | None:
    """`x` with one place along an axis."""
    sizes = {} if axis is None else {axis: Dim.of(1)}
    if x.op == "reshape" and axis is not None:
        try:
            return op.reshape(args[0], with_sizes(x.shape, sizes))
        except OperatorError:  # the axis is merged with others
            return None
    return applied_again(x, args, sizes)


@dataclass
class _Reading:
    """Reads the form of a node off its index equation; None where it has none."""

    online: OnlineSums
    x: Expr
    stage: Stage
    names: Mapping[str, int]
    given: dict[int, bool]
    part: bool

    def form(self, term: Scalar) -> TotalsForm | None:
        if isinstance(term, Read):
            return self._read(term)
        forms = [self.form(t) for t in term.children]
        found = [f for f in forms if f is not None]
        if len(found) < len(forms):
            return None
        if not any(f != TotalsForm() for f in found):
            return TotalsForm()
        is_float = dtypes.is_float(term.dtype)
        if isinstance(term, Apply) and len(found) == 2:
            return self._of_two(term.fn, term, *found) if is_float else None
        if isinstance(term, Select):
            cond, *cases = found
            zero = [isinstance(t, Const) and t.value == 0 for t in (term.then, term.other)]
            if cond != TotalsForm() or not any(zero):
                return None
            return self._product(cases[zero[0]])
        if len(found) != 1 or not is_float:
            return None
        (form,) = found
        if isinstance(term, Apply) and term.fn in _RAISED:
            return None if form.shift is None else TotalsForm((form.shift._replace(fn=term.fn),))
        is_linear = isinstance(term, Apply) and term.fn == "negative"
        is_sum = isinstance(term, Reduce) and term.kind == "sum"
        is_cast = isinstance(term, Cast) and dtypes.is_float(term.arg.dtype)
        return self._product(form) if is_linear or is_sum or is_cast else None

    def _product(self, form: TotalsForm) -> TotalsForm | None:
        return form if form.shift is None and form.operand is None else None

    def _of_two(self, fn: str, term: Apply, a: TotalsForm, b: TotalsForm) -> TotalsForm | None:
        if fn == "multiply" and a.operand is not None:
            a, b = b, a
        if a.operand is not None or a.shift is not None or b.shift is not None:
            return None
        if b.operand is None:
            if fn == "divide":
                return a if b == TotalsForm() else None
            return TotalsForm(a.factors + b.factors) if fn == "multiply" else None
        follower = self.x.args[b.operand]
        if fn in _HELD_BACK and self._gives(b.operand, False):
            return TotalsForm((*a.factors, TotalsFactor(fn, follower, b.axes)))
        if fn != "subtract" or a != TotalsForm() or not isinstance(term.args[0], Read):
            return None
        is_bounded = self._is_peak(follower, self.x.args[self.names[term.args[0].buffer]])
        return (
            TotalsForm(shift=TotalsFactor("", follower, b.axes))
            if is_bounded and self._gives(b.operand, True)
            else None
        )

    def _gives(self, operand: int, is_used: bool) -> bool:
        return self.given.setdefault(operand, is_used) is is_used

    def _read(self, term: Read) -> TotalsForm | None:
        i = self.names[term.buffer]
        a = self.x.args[i]
        law = self.online.laws.get(a)
        found = None if law is not None and self.part else self.online.follower(a)
        if found is not None:
            own = [None if p == found.axis or d == 1 else p for p, d in enumerate(a.shape)]
            axes = self._moved(tuple(own), term)
            return None if axes is None else TotalsForm(operand=i, axes=axes)
        if law is None:
            return TotalsForm()
        moved: list[TotalsFactor] = []
        for f in (*law.form.factors, *([] if law.form.shift is None else [law.form.shift])):
            axes = self._moved(f.axes, term)
            if axes is None:
                return None
            moved.append(f._replace(axes=axes))
        return TotalsForm(tuple(moved)) if law.form.shift is None else TotalsForm(shift=moved[0])

    def _moved(self, axes: Axes, term: Read) -> Axes | None:
        """The axes of a factor of an operand as axes of the result; None if it varies along an axis that is reduced."""
        found: list[int | None] = [None] * len(self.stage.indices)
        for axis, at in zip(axes, term.indices, strict=True):
            if axis is None:
                continue
            places = [j for j, i in enumerate(self.stage.indices) if i == at]
            if len(places) != 1 or found[places[0]] is not None:
                return None
            found[places[0]] = axis
        return tuple(found)

    def _is_peak(self, b: Expr, s: Expr) -> bool:
        """Whether a follower is at least `s` at each step: the maximum of `s` along the dimension, or 0 where that is
        not finite, or a maximum of it and others."""
        while b.op in _COPIES:
            b = b.args[0]
        if b.op == "maximum":
            return any(self._is_peak(a, s) for a in b.args)
        if b.op == "where" and b.args[0].op == "isfinite" and b.args[0].args[0] is b.args[1] and _is_zero(b.args[2]):
            return self._is_peak(b.args[1], s)
        d = self.online.inside.get(b)
        return b.op == "max" and d is not None and d.kind == "max" and viewed_value(b.args[0]) is viewed_value(s)


def _is_zero(x: Expr) -> bool:
    while x.op in _COPIES:
        x = x.args[0]
    return x.op == CONSTANT and not np.any(constant_value(x))


@dataclass
class Totals:
    """The totals of a region at one point, and what follows from them.

    - `outside`: for a value from outside of the region, the expression to use.
    - `values`: by total, its value.
    """

    online: OnlineSums
    outside: Callable[[Expr], Expr]
    values: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def follower(self, x: Expr) -> Expr:
        """The value of a follower, with one place along the dimension."""
        if x in self.values:
            return self.values[x]
        found = self.online.followers.get(x)
        if found is None:
            return self.outside(x)
        made = _thin(x, found.axis, [self.follower(a) for a in x.args])
        assert made is not None, "a follower can be computed for one place"
        self.values[x] = made
        return made

    def peak(self, x: Expr) -> Expr:
        """The value of a follower that is subtracted before `exp`: 0 where it is -inf."""
        b = self.follower(x)
        return op.where(op.equal(b, op.full((), -np.inf, b.dtype)), op.full((), 0, b.dtype), b)


def given_to(x: Expr, i: int, place: int | None, size: Dim, law: TotalsLaw, now: Totals) -> Expr:
    """The operand at position `i` of a node in a step, which is a follower. `size`: of a piece, at axis `place`."""
    a = x.args[i]
    shape = a.shape if place is None else with_sizes(a.shape, {place: size})
    if not law.given[i]:
        return op.full(shape, 1, a.dtype)
    peak = now.peak(a)
    return peak if peak.shape == shape else op.broadcast_to(peak, shape)


def carried_on(total: Expr, law: TotalsLaw, before: Totals, now: Totals) -> Expr:
    """A total as of the step before, for terms that use the totals of now."""
    raised = [f for f in law.form.factors if f.fn in _RAISED]
    if not raised:
        return total
    changed = total
    for f in raised:
        change = op.subtract(before.peak(f.follower), now.peak(f.follower))
        changed = op.multiply(changed, op.astype(_placed(_RAISED[f.fn](change), f.axes), total.dtype))
    # What is 0 stays 0: without a finite value so far, the factor may be infinite.
    return op.where(op.equal(total, op.full((), 0, total.dtype)), total, changed)


def at_the_end(total: Expr, law: TotalsLaw, last: Totals) -> Expr:
    """The sum that a total of the last step stands for."""
    for f in law.form.factors:
        b = last.follower(f.follower)
        if f.fn in _RAISED:
            factor = _RAISED[f.fn](op.subtract(last.peak(f.follower), b))
            total = op.multiply(total, op.astype(_placed(factor, f.axes), total.dtype))
        else:
            total = _HELD_BACK[f.fn](total, op.astype(_placed(b, f.axes), total.dtype))
    return total


def _placed(x: Expr, axes: Axes) -> Expr:
    """A follower's value with its axes where a sum has them, and one place along the others."""
    kept = [a for a in axes if a is not None]
    order = [*kept, *(a for a in range(x.ndim) if a not in kept)]
    turned = x if order == sorted(order) else op.permute_dims(x, order)
    shape = tuple(Dim.of(1) if a is None else x.shape[a] for a in axes)
    return turned if turned.shape == shape else op.reshape(turned, shape)
