"""Affine forms: a value as a scale times a core plus shifts, where scale and shifts are smaller than the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value
from relax_eg.ops import api as op
from relax_eg.ops.record import movement_operators
from relax_eg.ops.sizes import product
from relax_eg.shapes import Dim

_ONE = Dim.of(1)
_SIZE = op.dim_value(1).op
_VIEWS = movement_operators("view")
_REPEATS = movement_operators("repeat")
_COPIES = movement_operators("view", "repeat", "convert")

Factor: TypeAlias = Expr | Dim


@dataclass(frozen=True, slots=True)
class Monomial:
    """A number times powers of factors: values that broadcast, and sizes. The powers are whole and not 0."""

    number: Fraction = Fraction(1)
    powers: tuple[tuple[Factor, int], ...] = ()

    def __mul__(self, other: Monomial) -> Monomial:
        powers = dict(self.powers)
        for f, k in other.powers:
            powers[f] = powers.get(f, 0) + k
        return Monomial(self.number * other.number, tuple((f, k) for f, k in powers.items() if k))

    def to(self, k: int) -> Monomial:
        """The monomial to the power `k`; its number is not 0 where `k` is negative."""
        return Monomial(self.number**k, tuple((f, n * k) for f, n in self.powers))

    @property
    def is_one(self) -> bool:
        return self.number == 1 and not self.powers

    @property
    def values(self) -> tuple[Expr, ...]:
        """The factors that are values."""
        return tuple(f for f, _ in self.powers if isinstance(f, Expr))

    def where(self, keeps: Iterable[Factor]) -> Monomial:
        """The powers of some factors, without the number."""
        kept = set(keeps)
        return Monomial(Fraction(1), tuple((f, k) for f, k in self.powers if f in kept))


ONE = Monomial()


def power(f: Factor, k: int = 1) -> Monomial:
    return ONE if f is _ONE else Monomial(Fraction(1), ((f, k),))


def common(a: Monomial, b: Monomial) -> Monomial:
    """The factors that both have, with the number of `a`."""
    others = dict(b.powers)
    shared = [(f, min(k, others[f]) if k > 0 else max(k, others[f])) for f, k in a.powers if k * others.get(f, 0) > 0]
    return Monomial(a.number, tuple(shared))


def collected(terms: Iterable[Monomial]) -> tuple[Monomial, ...]:
    """The sum of terms, with equal ones added up."""
    found: dict[frozenset[tuple[Factor, int]], Monomial] = {}
    for t in terms:
        key = frozenset(t.powers)
        before = found.get(key)
        found[key] = t if before is None else Monomial(before.number + t.number, before.powers)
    return tuple(t for t in found.values() if t.number)


@dataclass(frozen=True, slots=True)
class AffineForm:
    """`scale * core + sum(shifts)`; without a core, the sum of shifts."""

    scale: Monomial
    core: Expr | None
    shifts: tuple[Monomial, ...] = ()

    @property
    def terms(self) -> tuple[Monomial, ...]:
        """The form as a sum of terms."""
        return self.shifts if self.core is None else (self.scale * power(self.core), *self.shifts)

    @property
    def is_plain(self) -> bool:
        """Whether the value is its own core."""
        return self.core is not None and self.scale.is_one and not self.shifts

    @property
    def leaves(self) -> tuple[Expr, ...]:
        """The values of which it is made, without views that add or remove axes of size 1."""
        return tuple(dict.fromkeys(stripped(f) for t in self.terms for f in t.values))


def number_in(e: Expr) -> Monomial | None:
    """The number or size that is each element of `e`; None if there is none, and for infinities and NaN."""
    if e.op == CONSTANT and not e.shape:
        value = constant_value(e)
        return Monomial(Fraction(value.item())) if value.dtype.kind in "iuf" and np.isfinite(value) else None
    if not e.args:
        if e.op != _SIZE:
            return None
        (size,) = e.attr("dim")
        return Monomial(Fraction(size.value)) if size.is_const else power(size)
    if len(e.args) != 1 or e.op not in _COPIES or (is_float(e.args[0].dtype) and not is_float(e.dtype)):
        return None
    return number_in(e.args[0])


def narrowed(e: Expr) -> Expr:
    """The value of which `e` consists of broadcast copies: it broadcasts to `e`."""
    while e.op in _REPEATS and len(e.args) == 1 and _is_broadcast(e):
        (e,) = e.args
    return e


def _is_broadcast(e: Expr) -> bool:
    """Whether the operand of `e` broadcasts to it as numpy does."""
    (x,) = e.args
    return x.ndim <= e.ndim and all(
        n is m or n is _ONE for n, m in zip(reversed(x.shape), reversed(e.shape), strict=False)
    )


def aligned(shape: Sequence[Dim], rank: int) -> tuple[Dim, ...]:
    """A shape with axes of size 1 in front."""
    return (*(_ONE,) * (rank - len(shape)), *shape)


def is_smaller(e: Expr, shape: Sequence[Dim]) -> bool:
    """Whether `e`, which broadcasts to `shape`, repeats along some axis."""
    return any(n is _ONE and m is not _ONE for n, m in zip(aligned(e.shape, len(shape)), shape, strict=True))


def varies(f: Factor, axes: Iterable[int], rank: int) -> bool:
    """Whether a factor of values of `rank` axes may vary along some of `axes`."""
    if isinstance(f, Dim):
        return False
    shape = aligned(f.shape, rank)
    return any(shape[a] is not _ONE for a in axes)


def stripped(e: Expr) -> Expr:
    """The value of which `e` is a view that adds or removes axes of size 1."""
    while e.op in _VIEWS and _long(e.args[0].shape) == _long(e.shape):
        (e,) = e.args
    return e


def _long(shape: Sequence[Dim]) -> list[Dim]:
    return [n for n in shape if n is not _ONE]


def viewed(e: Expr, shape: Sequence[Dim]) -> Expr:
    """The elements of `e` in a shape that differs in axes of size 1 only."""
    if e.shape == tuple(shape):
        return e
    e = stripped(e)
    if e.shape == tuple(shape):
        return e
    added = _places_of(e.shape, shape)
    if added is not None:
        return op.expand_dims(e, added)
    removed = _places_of(shape, e.shape)
    return op.squeeze(e, removed) if removed is not None else op.reshape(e, shape)


def _places_of(inner: Sequence[Dim], outer: Sequence[Dim]) -> tuple[int, ...] | None:
    """The axes of size 1 of `outer` that `inner` lacks; None if these are not all in which they differ."""
    found: list[int] = []
    rest = list(inner)
    for axis, n in enumerate(outer):
        missing = len(outer) - axis > len(rest)
        if rest and rest[0] is n and not (n is _ONE and missing):
            rest.pop(0)
        elif n is _ONE:
            found.append(axis)
        else:
            return None
    return None if rest else tuple(found)


def mapped(m: Monomial, shape_of: Mapping[Expr, tuple[Dim, ...]]) -> Monomial:
    """A monomial with values in other shapes."""
    found = ONE
    for f, k in m.powers:
        found = found * power(viewed(f, shape_of[f]) if isinstance(f, Expr) else f, k)
    return Monomial(m.number * found.number, found.powers)


# --- expressions ---


def represents(number: Fraction, dtype: str) -> bool:
    """Whether a dtype has this number."""
    if not is_float(dtype):
        return number.denominator == 1 and abs(number.numerator) < 2**31
    found = float(np.asarray(float(number)).astype(numpy_dtype(dtype)))
    return np.isfinite(found) and Fraction(found) == number


_MOST_KNOWN = 1 << 14  # limit: forms whose expressions are kept; one that is evicted is made again


@lru_cache(_MOST_KNOWN)
def expression(form: AffineForm, shape: tuple[Dim, ...], dtype: str) -> Expr | None:
    """A form as an expression of a shape; None if a number in it is none of the dtype. Each reader of a value asks for
    its expression."""
    made: Expr | None = None
    for t in sorted(form.terms, key=lambda t: t.number < 0):
        is_less = made is not None and t.number < 0
        term = _product(Monomial(-t.number, t.powers) if is_less else t, shape, dtype)
        if term is None:
            return None
        made = term if made is None else op.subtract(made, term) if is_less else op.add(made, term)
    if made is None:
        made = const(0.0 if is_float(dtype) else 0, dtype)
    return made if made.shape == shape else op.broadcast_to(made, shape)


def _product(t: Monomial, shape: Sequence[Dim], dtype: str) -> Expr | None:
    """A term: small factors are multiplied first."""
    up = [f for f, k in t.powers for _ in range(k)]
    down = [f for f, k in t.powers for _ in range(-k)]
    number = t.number
    if abs(number) != 1 and not represents(number, dtype):
        if not is_float(dtype) or not represents(1 / number, dtype):
            return None
        down, number = [1 / number, *down], Fraction(1)
    parts = [_value(f, dtype) for f in _by_rank(up, shape)]
    if number == -1 and parts:
        parts[0] = op.negative(parts[0])
    elif number != 1 or not parts:
        parts.insert(0, _value(number, dtype))
    made = _joined(parts)
    if down and not is_float(dtype):
        return None
    for below in ([f for f in down if not isinstance(f, Expr)], [f for f in down if isinstance(f, Expr)]):
        if below:
            made = op.divide(made, _joined(_value(f, dtype) for f in _by_rank(below, shape)))
    return made


def _by_rank(factors: Sequence[Factor | Fraction], shape: Sequence[Dim]) -> list[Factor | Fraction]:
    def axes(f: Factor | Fraction) -> int:
        return sum(n is not _ONE for n in f.shape) if isinstance(f, Expr) else 0

    return sorted(factors, key=axes)


def _joined(parts: Iterable[Expr]) -> Expr:
    first, *rest = parts
    for p in rest:
        first = op.multiply(first, p)
    return first


def _value(f: Factor | Fraction, dtype: str) -> Expr:
    if isinstance(f, Expr):
        return f
    if isinstance(f, Dim):
        return op.astype(op.dim_value(f), dtype)
    return const(float(f) if is_float(dtype) else int(f), dtype)


def settled(form: AffineForm) -> AffineForm:
    """The form with what core and shifts have in common as its scale, and no shifts if these can be part of the
    core."""
    if form.core is None or not form.shifts:
        return form
    scale = form.scale
    for t in form.shifts:
        scale = common(scale, t)
    down = scale.to(-1)
    core = AffineForm(form.scale * down, form.core, tuple(t * down for t in form.shifts))
    made = expression(core, form.core.shape, form.core.dtype)
    return form if made is None or made.shape != form.core.shape else AffineForm(scale, made)


def extents(axes: Iterable[int], shape: Sequence[Dim]) -> Dim:
    return product(shape[a] for a in axes)
