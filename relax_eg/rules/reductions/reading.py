"""The forms of expressions: what is constant along reduced axes comes out, shifts cancel, and scales meet.

Each step of a reading is a lemma about one operator on the forms of its operands. A form is as good as its lemmas,
which are proved only if the form gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from operator import attrgetter

from relax_eg.dtypes import has_short_range, is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, constant_value
from relax_eg.ir.heads import with_operands
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import call, movement_operators
from relax_eg.rules.checking.samples import LARGEST_SHIFT
from relax_eg.rules.pointwise.terms import constant_in, is_pointwise
from relax_eg.rules.reductions.forms import (
    ONE,
    AffineForm,
    Monomial,
    aligned,
    collected,
    common,
    expression,
    extents,
    is_smaller,
    mapped,
    narrowed,
    number_in,
    power,
    settled,
    varies,
    viewed,
)
from relax_eg.rules.reductions.proofs import Lemma
from relax_eg.rules.schemas import FactsOf
from relax_eg.shapes import Dim
from relax_eg.traversal import reached

_DEEPEST = 14  # limit: operators on a path from a value to the leaves of its form
_VIEWS = movement_operators("view")
_COUNTING = frozenset(("add", "negative", "subtract", "sum"))  # operators whose results may be multiples of an operand
_REDUCTIONS = frozenset(("sum", "max", "min"))  # operators that are not pointwise and are read
_OTHER = {"max": "min", "min": "max"}  # given: what a negative scale makes of an extreme


@dataclass(frozen=True, slots=True, eq=False)
class FormReading:
    """The form of an expression.

    - `form`: the form, over leaves.
    - `own`: lemmas about the last operator.
    - `below`: the readings of its operands that the form is made of.
    - `gains`: whether the last operator let something out of a reduction, or made something cancel.
    """

    form: AffineForm
    own: tuple[Lemma, ...] = ()
    below: tuple[FormReading, ...] = ()
    gains: bool = False

    @property
    def lemmas(self) -> tuple[Lemma, ...]:
        """What the form follows from, those of a reading that several others share once."""
        return tuple(lemma for x in reversed(reached((self,), attrgetter("below"))) for lemma in x.own)


def may_cancel(e: Expr) -> bool:
    """Whether the forms of both operands of a difference or quotient can have something in common: a value, or numbers.

    Finds that few operators below share nothing, without the forms, which are far larger."""
    a, b = (_read_below(x, e.op == "divide") for x in e.args)
    return not a.isdisjoint(b)


def _read_below(e: Expr, is_scale: bool) -> set[Expr | None]:
    """The values that the form of `e` can be made of, and None if it can have numbers. Numbers of a scale come from
    sums as well: `x + x` is `2 x`."""
    found: set[Expr | None] = set()
    level = [e]
    for _ in range(_DEEPEST + 1):
        following: list[Expr] = []
        for x in level:
            if number_in(x) is not None or (is_scale and x.op in _COUNTING):
                found.add(None)
            if x not in found:
                found.add(x)
                if x.op in _REDUCTIONS or x.op in _VIEWS or is_pointwise(x):
                    following += x.args
        level = following
    return found


# What remains of a reduction (kind, operand, axes), with its lemmas; None if it stays as it is.
Push = Callable[[str, Expr, tuple[int, ...]], "tuple[Expr, tuple[Lemma, ...]] | None"]


@dataclass
class FormReader:
    """Reads forms.

    - `facts_of`: the facts of expressions.
    - `push`: what remains of a reduction of a core.
    """

    facts_of: FactsOf
    push: Push
    _found: dict[Expr, FormReading] = field(default_factory=dict[Expr, FormReading])

    def read(self, e: Expr, depth: int = _DEEPEST) -> FormReading:
        """The form of a tensor of floats."""
        if e not in self._found:
            self._found[e] = self._anew(e, depth)
        return self._found[e]

    def _anew(self, e: Expr, depth: int) -> FormReading:
        number = number_in(e)
        if number is not None:
            return FormReading(AffineForm(ONE, None, (number,)))
        plain = FormReading(AffineForm(ONE, e))
        if depth == 0 or not e.args or not _is_float_tensor(e) or not all(map(is_known_tensor, e.args)):
            return plain
        depth -= 1
        try:
            match e.op:
                case "multiply" | "divide" | "square" if has_short_range(e.dtype):
                    made = self._rebuilt(e, depth)  # what scales the operands of a sum keeps it in range
                case "add" | "subtract" | "multiply" | "divide":
                    made = self._binary(e, depth)
                case "negative" | "square" | "sqrt" | "abs":
                    made = self._unary(e, depth)
                case "sum" | "max" | "min":
                    made = self._reduced(e, depth)
                case "where":
                    made = self._masked(e, depth)
                case _ if e.op in _VIEWS and "axes" in dict(e.attrs):
                    made = self._viewed(e, depth)
                case _:
                    made = self._rebuilt(e, depth)
        except RelaxEgError:  # an operator that takes no operands of these shapes
            return plain
        return plain if made is None else made

    # --- pointwise operators ---

    def _operand(self, z: Expr, shape: Sequence[Dim], depth: int) -> FormReading:
        """The form of an operand of a pointwise operator with a result of `shape`; one that repeats along axes has no
        core."""
        z = narrowed(z)
        found = self.read(z, depth)
        core = found.form.core
        if core is not None and (is_smaller(z, shape) or core.shape != tuple(shape)):
            return FormReading(AffineForm(ONE, None, found.form.terms), below=(found,))
        return found

    def _binary(self, e: Expr, depth: int) -> FormReading | None:
        x, y = (self._operand(a, e.shape, depth) for a in e.args)
        a, b = x.form, y.form
        if e.op in ("add", "subtract"):
            form, gains = self._sum(a, b if e.op == "add" else _negative(b), e)
        elif a.core is None and b.core is None:
            return None
        elif e.op == "multiply":
            form, gains = self._product(a, b) if a.core is not None else self._product(b, a)
        else:
            form, gains = self._quotient(a, b)
        return None if form is None else self._made(e, form, (x, y), gains)

    def _sum(self, a: AffineForm, b: AffineForm, e: Expr) -> tuple[AffineForm | None, bool]:
        shifts = collected((*a.shifts, *b.shifts))
        gone = len(a.shifts) + len(b.shifts) - len(shifts)
        if gone and not self._are_finite((*a.shifts, *b.shifts), shifts):
            return None, False
        if a.core is None and b.core is None:
            return AffineForm(ONE, None, shifts), False
        if a.core is None or b.core is None:
            whole = a if a.core is not None else b
            return AffineForm(whole.scale, whole.core, shifts), gone > 0
        scale = common(a.scale, b.scale)
        down = scale.to(-1)
        one, two = (expression(AffineForm(f.scale * down, f.core), e.shape, e.dtype) for f in (a, b))
        if one is None or two is None:
            return None, False
        is_less = (b.scale * down).number < 0
        if is_less:
            two = expression(AffineForm(_negative(b).scale * down, b.core), e.shape, e.dtype)
            assert two is not None
        core = op.subtract(one, two) if is_less else op.add(one, two)
        return AffineForm(scale, core, shifts), gone > 0

    def _are_finite(self, before: Sequence[Monomial], after: Sequence[Monomial]) -> bool:
        """Whether the terms that cancel are finite."""
        kept = {f for t in after for f in t.values}
        gone = {f for t in before for f in t.values} - kept
        return all("finite" in self.facts_of(f) for f in gone)

    def _product(self, a: AffineForm, b: AffineForm) -> tuple[AffineForm | None, bool]:
        if b.core is None:
            if len(b.shifts) != 1:
                return None, False
            (t,) = b.shifts
            is_number = not t.powers and not a.is_plain
            return AffineForm(a.scale * t, a.core, tuple(s * t for s in a.shifts)), is_number
        a, b = settled(a), settled(b)
        if a.core is None or b.core is None or a.shifts or b.shifts or (a.scale.is_one and b.scale.is_one):
            return None, False
        core = op.square(a.core) if a.core is b.core else op.multiply(a.core, b.core)
        return AffineForm(a.scale * b.scale, core), False

    def _quotient(self, a: AffineForm, b: AffineForm) -> tuple[AffineForm | None, bool]:
        if a.core is None:
            return None, False
        if b.core is None:
            if len(b.shifts) != 1 or not b.shifts[0].number:
                return None, False
            (t,) = b.shifts
            down = t.to(-1)
            meets = bool(common(a.scale, t).powers) or (a.scale.number != 1 and (t.number != 1 or not t.powers))
            return AffineForm(a.scale * down, a.core, tuple(s * down for s in a.shifts)), meets
        a, b = settled(a), settled(b)
        if a.core is None or b.core is None or a.shifts or b.shifts or not b.scale.number:
            return None, False
        meets = bool(common(a.scale, b.scale).powers) or (a.scale.number != 1 and b.scale.number != 1)
        if a.scale.is_one and b.scale.is_one:
            return None, False
        return AffineForm(a.scale * b.scale.to(-1), op.divide(a.core, b.core)), meets

    def _unary(self, e: Expr, depth: int) -> FormReading | None:
        x = self.read(e.args[0], depth)
        if x.form.core is None:
            return None
        if e.op == "negative":
            return self._made(e, _negative(x.form), (x,))
        form = settled(x.form)
        if form.shifts or form.core is None or form.scale.is_one:
            return self._rebuilt(e, depth)
        if e.op == "square":
            return self._made(e, AffineForm(form.scale.to(2), op.square(form.core)), (x,))
        out, rest = (self._magnitude(form.scale), ONE) if e.op == "abs" else self._root(form.scale)
        if out.is_one:
            return self._rebuilt(e, depth)
        inner = expression(AffineForm(rest, form.core), e.shape, e.dtype)
        return None if inner is None else self._made(e, AffineForm(out, with_operands(e, (inner,))), (x,))

    def _magnitude(self, m: Monomial) -> Monomial:
        found = Monomial(abs(m.number))
        for f, k in m.powers:
            known = isinstance(f, Dim) or k % 2 == 0 or "nonnegative" in self.facts_of(f)
            found = found * (power(f, k) if known else power(op.abs(f), k))
        return found

    def _root(self, m: Monomial) -> tuple[Monomial, Monomial]:
        """The square root of as much of `m` as has one, and the rest."""
        up, down = m.number.numerator, m.number.denominator
        number = Fraction(isqrt(up), isqrt(down)) if up > 0 else Fraction(1)
        if number * number != m.number:
            number = Fraction(1)
        even = self._magnitude(Monomial(number, tuple((f, k // 2) for f, k in m.powers if k % 2 == 0)))
        odd = tuple((f, k) for f, k in m.powers if k % 2)
        return even, Monomial(m.number / number**2, odd)

    def _rebuilt(self, e: Expr, depth: int) -> FormReading | None:
        """The operator of `e` on the forms of its operands, written out."""
        if not is_pointwise(e):
            return None
        args: list[Expr] = []
        below: list[FormReading] = []
        for a in e.args:
            constant = constant_in(a)
            if (constant is None and e.op == "maximum") or (constant is None and e.op == "minimum"):
                others = [z for z in e.args if z is not a]
                bound = constant_in(others[0]) if others else None
                neutral = float("-inf") if e.op == "maximum" else float("inf")
                if bound is not None and float(constant_value(bound)) == neutral and a.shape == e.shape:
                    found = self.read(a, depth)
                    return FormReading(found.form, (Lemma(e, a, (a,)),), (found,))
            found = self.read(a, depth) if _is_float_tensor(a) and constant is None else FormReading(AffineForm(ONE, a))
            made = None
            if not found.form.is_plain or found.form.core is not a:
                made = expression(settled(found.form), a.shape, a.dtype)
            if made is None:
                args.append(a)
            else:
                args.append(made)
                below.append(found)
        return None if not below else FormReading(AffineForm(ONE, with_operands(e, tuple(args))), below=tuple(below))

    def _masked(self, e: Expr, depth: int) -> FormReading | None:
        """A choice between a value and 0, which is scaled as the value is."""
        condition, *values = e.args
        numbers = [number_in(v) for v in values]
        at = next((i for i, m in enumerate(numbers) if m is not None and not m.number), None)
        if at is None or numbers[1 - at] is not None:
            return self._rebuilt(e, depth)
        y = values[1 - at]
        x = self.read(y, depth)
        form = settled(x.form)
        if form.core is None or form.shifts or form.scale.is_one or y.shape != e.shape:
            return self._rebuilt(e, depth)
        chosen = (form.core, values[at]) if at else (values[at], form.core)
        other = FormReading(AffineForm(ONE, None))  # 0
        parts = (x, other) if at else (other, x)
        masked = with_operands(e, (condition, *chosen))
        return self._made(e, AffineForm(form.scale, masked), (FormReading(AffineForm(ONE, condition)), *parts))

    # --- views and reductions ---

    def _viewed(self, e: Expr, depth: int) -> FormReading | None:
        """The form of a view that adds or removes axes of size 1."""
        (z,) = e.args
        x = self.read(z, depth)
        if x.form.core is None or (x.form.is_plain and x.form.core is z):
            return None
        axes: tuple[int, ...] = e.attr("axes")
        shapes = {f: _with_axes(aligned(f.shape, z.ndim), axes, e.ndim > z.ndim) for f in _values(x.form) if f.ndim}
        shapes |= {f: () for f in _values(x.form) if not f.ndim}
        form = AffineForm(
            mapped(x.form.scale, shapes),
            viewed(x.form.core, e.shape),
            tuple(mapped(t, shapes) for t in x.form.shifts),
        )
        return self._made(e, form, (x,))

    def _reduced(self, e: Expr, depth: int) -> FormReading | None:
        (z,) = e.args
        axes: tuple[int, ...] = e.attr("axes")
        x = self.read(z, depth)
        if x.form.core is not None and x.form.core.shape != z.shape:
            return None
        if e.op == "sum":
            kind, form = e.op, x.form
            core, scale, shifts = self._sum_over(form, e, axes)
        elif x.form.core is None:
            return None
        else:
            kind, core, scale, shifts = self._extreme_over(e.op, x.form, axes, e)
        if core is None:
            return self._made(e, AffineForm(ONE, None, shifts), (x,), True)
        reduced = call(kind, (core,), dict(e.attrs))
        terms = collected((scale * power(reduced), *shifts))
        if len(terms) <= len(shifts) and not any(reduced in t.values for t in terms):
            is_finite = "finite" in self.facts_of(reduced)  # what is summed meets its own sum
            return self._made(e, AffineForm(ONE, None, terms), (x,), True) if is_finite else None
        pushed = self.push(kind, core, axes)
        if x.form.is_plain and core is z and pushed is None:
            return None
        made = self._made(e, AffineForm(scale, reduced, shifts), (x,), not scale.is_one or bool(shifts))
        if made is None or pushed is None:
            return made
        value, lemmas = pushed
        return FormReading(AffineForm(scale, viewed(value, e.shape), shifts), lemmas, (made,), True)

    def _sum_over(
        self, form: AffineForm, e: Expr, axes: tuple[int, ...]
    ) -> tuple[Expr | None, Monomial, tuple[Monomial, ...]]:
        """What is summed, and the scale and shifts of the sum."""
        (z,) = e.args
        shifts = [self._sum_of(t, e, axes) for t in form.shifts]
        if form.core is None:
            return None, ONE, tuple(shifts)
        inside = form.scale.where(f for f in form.scale.values if varies(f, axes, z.ndim))
        core = expression(AffineForm(inside, form.core), z.shape, z.dtype)
        return core, self._outside(form.scale * inside.to(-1), e, axes), collected(shifts)

    def _sum_of(self, t: Monomial, e: Expr, axes: tuple[int, ...]) -> Monomial:
        """The sum of a term."""
        (z,) = e.args
        inside = t.where(f for f in t.values if varies(f, axes, z.ndim))
        outside = self._outside(t * inside.to(-1), e, axes)
        if not inside.powers:
            return outside * power(extents(axes, z.shape))
        value = _product_of(inside)
        shape = aligned(value.shape, z.ndim)
        summed = tuple(a for a in axes if shape[a] is not Dim.of(1))
        count = extents((a for a in axes if a not in summed), z.shape)
        total = viewed(call(e.op, (viewed(value, shape),), {"axes": summed, "keepdims": True}), _kept(shape, e, axes))
        return outside * power(count) * power(total)

    def _extreme_over(
        self, kind: str, form: AffineForm, axes: tuple[int, ...], e: Expr
    ) -> tuple[str, Expr | None, Monomial, tuple[Monomial, ...]]:
        """Of what the extreme is taken, which one, and the scale and shifts of it."""
        (z,) = e.args
        inner = tuple(t for t in form.shifts if any(varies(f, axes, z.ndim) for f in t.values))
        outer = tuple(self._outside(t, e, axes) for t in form.shifts if t not in inner)
        factors = [f for f, k in form.scale.powers if not self._is_outside(f, k, axes, z.ndim)]
        inside = form.scale.where(factors)
        if inner:
            inside, outside = form.scale, ONE
        else:
            outside = form.scale * inside.to(-1)
        core = expression(AffineForm(inside, form.core, inner), z.shape, z.dtype)
        if outside.number < 0:
            kind = _OTHER[kind]
        return kind, core, self._outside(outside, e, axes), outer

    def _is_outside(self, f: Expr | Dim, k: int, axes: tuple[int, ...], rank: int) -> bool:
        """Whether an extreme along `axes` may be scaled by a power of `f` afterwards."""
        if isinstance(f, Dim):
            return True
        return not varies(f, axes, rank) and ("nonnegative" if k > 0 else "positive") in self.facts_of(f)

    def _outside(self, t: Monomial, e: Expr, axes: tuple[int, ...]) -> Monomial:
        """A term that is constant along reduced axes, for the result."""
        (z,) = e.args
        return mapped(t, {f: _kept(aligned(f.shape, z.ndim), e, axes) if f.ndim else () for f in t.values})

    def _made(
        self, e: Expr, form: AffineForm, operands: Sequence[FormReading], gains: bool = False
    ) -> FormReading | None:
        """The reading of an operator whose operands have these readings."""
        if form.core is not None and not form.scale.number:
            return None
        if form.core is not None and any(not t.powers and abs(t.number) > LARGEST_SHIFT for t in form.shifts):
            return None
        written = [expression(x.form, a.shape, a.dtype) for x, a in zip(operands, e.args, strict=True)]
        right = expression(form, e.shape, e.dtype)
        if right is None or any(w is None for w in written):
            return None
        left = with_operands(e, tuple(w for w in written if w is not None))
        leaves = dict.fromkeys(f for x in operands for f in x.form.leaves)
        return FormReading(form, (Lemma(left, right, tuple(leaves)),), tuple(operands), gains)


def _values(form: AffineForm) -> tuple[Expr, ...]:
    return tuple(f for t in (form.scale, *form.shifts) for f in t.values)


def _kept(shape: tuple[Dim, ...], e: Expr, axes: tuple[int, ...]) -> tuple[Dim, ...]:
    """`shape`, of an operand of a reduction, reduced."""
    one = Dim.of(1)
    return tuple(one if a in axes else n for a, n in enumerate(shape) if e.attr("keepdims") or a not in axes)


def _product_of(t: Monomial) -> Expr:
    """A product of values that vary along axes."""
    parts = [f if k > 0 else op.reciprocal(f) for f, k in t.powers if isinstance(f, Expr) for _ in range(abs(k))]
    first, *rest = parts
    for p in rest:
        first = op.multiply(first, p)
    return first


def _negative(form: AffineForm) -> AffineForm:
    minus = Monomial(Fraction(-1))
    scale = form.scale if form.core is None else form.scale * minus
    return AffineForm(scale, form.core, tuple(t * minus for t in form.shifts))


def _with_axes(shape: tuple[Dim, ...], axes: tuple[int, ...], adds: bool) -> tuple[Dim, ...]:
    if not adds:
        return tuple(n for i, n in enumerate(shape) if i not in axes)
    rest = iter(shape)
    return tuple(Dim.of(1) if i in axes else next(rest) for i in range(len(shape) + len(axes)))


def _is_float_tensor(e: Expr) -> bool:
    return is_known_tensor(e) and is_float(e.dtype)
