"""The rules by which facts propagate through operators. `rules/facts/fact_rules.py` describes the language. Tests check
every rule: it must hold on random values that have the premises, and fail without any one of them.

Floats round, overflow and underflow: exp(-200) is 0 in float32, and so is the product of two small numbers. A rule that
holds in spite of that is one of `floats`; a rule that holds over the reals only is one of `reals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from relax_eg.dtypes import FLOATS, dtype_of, names_where
from relax_eg.ir.expr import TUPLE_GET, Expr
from relax_eg.ops.elementwise import is_pointwise
from relax_eg.ops.facts import (
    ALL_BELOW,
    CONSTANT,
    DIAGONAL,
    FINITE,
    IDENTITY_MASK,
    INTEGRAL,
    INVERTIBLE,
    LOWER_TRIANGULAR,
    NONNEGATIVE,
    NONPOSITIVE,
    NONZERO,
    ONE_HOT,
    ONLY_DIAGONAL,
    ONLY_LOWER,
    ORTHOGONAL,
    POSITIVE,
    POSITIVE_DEFINITE,
    POSITIVE_SEMIDEFINITE,
    SORTED,
    SYMMETRIC,
    UPPER_TRIANGULAR,
)  # fmt: skip
from relax_eg.ops.record import TABLE
from relax_eg.rules.facts.fact_rules import (
    FactForms,
    FactRule,
    annotated,
    anything,
    equals,
    floats,
    form,
    has,
    reals,
    var,
)
from relax_eg.rules.matching import Test
from relax_eg.tir.functions import FUNCTIONS, Trait, functions_with_trait

ELEMENTS = (POSITIVE, NONNEGATIVE, NONPOSITIVE, NONZERO, FINITE, INTEGRAL)
TRIANGLES = (LOWER_TRIANGULAR, UPPER_TRIANGULAR, DIAGONAL)
DEFINITE = (POSITIVE_SEMIDEFINITE, POSITIVE_DEFINITE)

# Functions of bits tell zeros of both signs apart; no facts are known of complex numbers.
_OTHER = {n for n, f in FUNCTIONS.items() if not f.widens or not f.is_real}
_POINTWISE = " ".join(n for n, o in TABLE.items() if is_pointwise(o) and n not in _OTHER)


def _of_floats(trait: Trait) -> str:
    """The operators that are a function of floats with a trait. One of integers, too, has rules of `anything`."""
    kinds = {n: FUNCTIONS[n].accepts for n in FUNCTIONS if n in TABLE and n in functions_with_trait(trait)}
    return " ".join(n for n, accepted in kinds.items() if "f" in accepted and "i" not in accepted)


# --- tests of attributes; a number is the rank that the value must have ---

Attributes = Mapping[str, Any]
_LONG_RANGE = names_where(lambda d: d.is_float and d.powers >= dtype_of("float32").powers)


def swaps(a: Attributes) -> bool:
    return a["axes"][-2:] == (len(a["axes"]) - 1, len(a["axes"]) - 2)


def keeps_matrix(a: Attributes) -> bool:
    return a["axes"][-2:] == (len(a["axes"]) - 2, len(a["axes"]) - 1)


def keeps_last(a: Attributes) -> bool:
    return a["axes"][-1:] == (len(a["axes"]) - 1,)


def at_end(a: Attributes) -> int | bool:
    return len(a["axes"]) == 1 and a["axes"][0] + 1


def of_matrix(a: Attributes) -> int | bool:
    return a["axes"] in ((0,), (1,)) and 1 + a["keepdims"]


def even(a: Attributes) -> bool:
    return a["y"] % 2 == 0


def natural(a: Attributes) -> bool:
    return a["y"] >= 0


def inside(a: Attributes) -> bool:
    return a["mode"] in ("clip", "promise")


def rows(a: Attributes) -> bool:
    return a["axis"] == 0 and len(a["shape"]) == 2


def columns(a: Attributes) -> bool:
    return a["axis"] == 1 and len(a["shape"]) == 2


def along_last(a: Attributes) -> bool:
    return a["axis"] == len(a["shape"]) - 1


def last(a: Attributes) -> int:
    return a["axis"] + 1


def forward(a: Attributes) -> bool:
    return not a["reverse"]


def to_float(a: Attributes) -> bool:
    return a["dtype"] in FLOATS


def to_wide(a: Attributes) -> bool:
    return a["dtype"] in _LONG_RANGE


def at_or_below(a: Attributes) -> bool:
    return a["k"] <= 0


def at_or_above(a: Attributes) -> bool:
    return a["k"] >= 0


def main(a: Attributes) -> bool:
    return a["k"] == 0


@lru_cache(8)  # more than a tuple has fields here
def _index(n: int) -> Test:
    def test(a: Attributes) -> bool:
        return a["index"] == n

    test.__name__ = str(n)
    return test


def field(of: Expr, n: int) -> Expr:
    """Field `n` of a tuple."""
    return form(TUPLE_GET, (of,), (_index(n),))


# --- the rules ---

p = FactForms()
x, y, c, m, s, w, i, z, v, lo, hi = map(var, "x y c m s w i z v lo hi".split())
xs, starts = var("xs..."), var("starts...")
swapped, kept = p.permute_dims(x, where=swaps), p.permute_dims(x, where=keeps_matrix)
rows_of, columns_of = p.iota(where=rows), p.iota(where=columns)


def _moved() -> Iterator[FactRule]:
    """Operators that only move elements, or select among them."""
    yield from anything.keeps(
        (
            *p.each("permute_dims reshape expand_dims squeeze flip sort", x),
            p.tuple_get_item(p.split(x)),
            field(p.top_k(x), 0),
        ),
        (*ELEMENTS, CONSTANT),
    )
    yield from anything.keeps(p.each("broadcast_to strided_slice", x), (*ELEMENTS, CONSTANT, SORTED))
    yield from anything.keeps((*p.each("full cummax cummin", x), p.concat(xs), p.pad(x, v)), ELEMENTS)
    yield from anything.keeps(p.minimum(x, y), (POSITIVE, NONNEGATIVE, NONZERO, FINITE, INTEGRAL))
    yield from anything.gives(p.minimum(x, y), NONPOSITIVE, has(x, NONPOSITIVE))
    yield from anything.gives(p.minimum(x, y), NONPOSITIVE, has(y, NONPOSITIVE))
    yield from anything.gives(p.full(x), CONSTANT)
    yield from anything.keeps(
        (p.dynamic_slice(x, starts), p.take(x, i, where=inside), field(p.sort(x, y), 0)), (*ELEMENTS, CONSTANT), x
    )
    yield from anything.keeps(field(p.sort(x, y), 1), (*ELEMENTS, CONSTANT), y)
    yield from anything.keeps(p.where(c, x, y), ELEMENTS, x, y)
    yield from anything.keeps((p.maximum(x, y), *p.each("negative abs", x)), (NONZERO, FINITE, INTEGRAL))
    yield from anything.gives(p.maximum(x, y), NONNEGATIVE, has(x, NONNEGATIVE))
    yield from anything.gives(p.maximum(x, y), NONNEGATIVE, has(y, NONNEGATIVE))
    yield from anything.gives(p.maximum(x, y), POSITIVE, has(x, POSITIVE))
    yield from anything.gives(p.maximum(x, y), POSITIVE, has(y, POSITIVE))
    yield from anything.keeps(p.maximum(x, y), NONPOSITIVE)
    yield from anything.keeps(p.clip(lo, x, hi), (FINITE, INTEGRAL, NONZERO))
    yield from anything.keeps(p.clip(lo, x, hi), (POSITIVE, NONNEGATIVE), lo, hi)
    yield from anything.gives(p.max(x), POSITIVE, has(x, POSITIVE), annotated(x, "is_nonempty"))
    yield from anything.gives(p.max(x), NONNEGATIVE, has(x, NONNEGATIVE), annotated(x, "is_nonempty"))
    yield from anything.gives(p.each("max min", x), FINITE, has(x, FINITE), annotated(x, "is_nonempty"))
    yield from anything.keeps(p.max(x), (NONZERO, INTEGRAL, CONSTANT))
    yield from anything.keeps(p.min(x), (POSITIVE, NONNEGATIVE, NONZERO, INTEGRAL, CONSTANT))
    yield from anything.keeps(p.sign(x), (POSITIVE, NONNEGATIVE, NONZERO, FINITE))
    yield from anything.gives(p.sign(x), INTEGRAL)
    yield from anything.keeps(p.relu(x), (POSITIVE, FINITE, INTEGRAL))
    yield from anything.gives(p.relu(x), NONNEGATIVE)


def _element_by_element() -> Iterator[FactRule]:
    """Constants, and matrices whose facts elementwise operators keep."""
    yield from anything.keeps(p.each(_POINTWISE, xs), (CONSTANT, SYMMETRIC))
    yield from anything.keeps(p.each("sum mean prod", x), CONSTANT)
    yield from anything.gives(
        (*p.each("add multiply divide maximum", x, c), *p.each("add multiply", c, x)),
        SYMMETRIC,
        has(x, SYMMETRIC),
        has(c, CONSTANT),
    )
    yield from anything.gives((*p.each("add multiply", x, swapped), *p.each("add multiply", swapped, x)), SYMMETRIC)
    yield from anything.keeps(swapped, (SYMMETRIC, DIAGONAL))
    yield from anything.gives(swapped, LOWER_TRIANGULAR, has(x, UPPER_TRIANGULAR))
    yield from anything.gives(swapped, UPPER_TRIANGULAR, has(x, LOWER_TRIANGULAR))
    yield from anything.keeps(kept, (SYMMETRIC, LOWER_TRIANGULAR, UPPER_TRIANGULAR, DIAGONAL))
    yield from anything.keeps(p.permute_dims(x, where=keeps_last), (SORTED, ONE_HOT))
    yield from anything.keeps(
        (*p.each("negative abs sign relu", x), *p.each("add subtract maximum minimum", x, y)), TRIANGLES
    )
    yield from anything.gives(p.multiply(x, y), LOWER_TRIANGULAR, has(x, LOWER_TRIANGULAR), has(y, FINITE))
    yield from anything.gives(p.multiply(x, y), LOWER_TRIANGULAR, has(y, LOWER_TRIANGULAR), has(x, FINITE))
    yield from anything.gives(p.multiply(x, y), UPPER_TRIANGULAR, has(x, UPPER_TRIANGULAR), has(y, FINITE))
    yield from anything.gives(p.multiply(x, y), UPPER_TRIANGULAR, has(y, UPPER_TRIANGULAR), has(x, FINITE))
    yield from anything.keeps(p.where(c, x, y), TRIANGLES, x, y)
    yield from anything.keeps(p.each("tril triu", x), (NONNEGATIVE, FINITE, INTEGRAL, *TRIANGLES))
    yield from anything.gives(p.tril(x, where=at_or_below), LOWER_TRIANGULAR)
    yield from anything.gives(p.triu(x, where=at_or_above), UPPER_TRIANGULAR)
    yield from anything.gives(p.tril(x, where=main), DIAGONAL, has(x, UPPER_TRIANGULAR))
    yield from anything.gives(p.triu(x, where=main), DIAGONAL, has(x, LOWER_TRIANGULAR))


def _masks() -> Iterator[FactRule]:
    """Masks of triangles and of the diagonal, as jax.numpy builds them."""
    yield from anything.gives((p.equal(rows_of, columns_of), p.equal(columns_of, rows_of)), IDENTITY_MASK)
    yield from anything.gives(p.equal(p.add(rows_of, z), columns_of), IDENTITY_MASK, equals(z, 0))
    yield from anything.gives(p.each("greater_equal greater", rows_of, columns_of), (ONLY_LOWER, ALL_BELOW))
    yield from anything.gives(p.greater_equal(p.add(rows_of, z), columns_of), (ONLY_LOWER, ALL_BELOW), equals(z, 0))
    yield from anything.gives(p.greater_equal(p.add(rows_of, z), columns_of), (ONLY_LOWER, ALL_BELOW), equals(z, -1))
    yield from anything.gives(p.where(m, x, y), LOWER_TRIANGULAR, has(m, ONLY_LOWER), equals(y, 0))
    yield from anything.gives(p.where(m, x, y), UPPER_TRIANGULAR, has(m, ALL_BELOW), equals(x, 0))
    yield from anything.gives(p.where(m, x, y), DIAGONAL, has(m, ONLY_DIAGONAL), equals(y, 0))
    yield from anything.gives(p.astype(m), (DIAGONAL, ONE_HOT), has(m, IDENTITY_MASK))
    yield from anything.gives(p.astype(m, where=to_float), (POSITIVE_DEFINITE, ORTHOGONAL), has(m, IDENTITY_MASK))
    yield from anything.gives(p.astype(x), ONE_HOT, has(x, ONE_HOT))


def _order() -> Iterator[FactRule]:
    """Order, and positions. `jax.numpy.arange` adds 0 to an iota and multiplies it by 1."""
    yield from anything.gives((p.sort(x, where=last), p.cummax(x, where=(last, forward))), SORTED)
    yield from anything.gives(p.iota(where=along_last), (SORTED, NONNEGATIVE))
    yield from anything.gives(p.iota(), (NONNEGATIVE, FINITE, INTEGRAL))
    yield from anything.gives(p.add(z, x), NONNEGATIVE, has(x, NONNEGATIVE), equals(z, 0))
    yield from anything.gives(p.multiply(z, x), NONNEGATIVE, has(x, NONNEGATIVE), equals(z, 1))
    yield from anything.gives(
        (*p.each("argmax argmin", x), field(p.top_k(x), 1), field(p.lu(x), 1), field(p.lu(x), 2)), NONNEGATIVE
    )
    yield from anything.keeps(p.each("floor ceil relu sign", x), SORTED)
    yield from floats.gives(p.cumsum(x, where=(last, forward)), SORTED, has(x, NONNEGATIVE))
    yield from floats.keeps(p.round(x), SORTED)
    yield from reals.gives(
        (*p.each("add subtract maximum minimum", x, c), p.add(c, x)), SORTED, has(x, SORTED), has(c, CONSTANT)
    )
    yield from reals.gives((p.multiply(x, c), p.multiply(c, x)), SORTED, has(x, SORTED), has(c, CONSTANT, NONNEGATIVE))
    yield from reals.gives(p.divide(x, c), SORTED, has(x, SORTED), has(c, CONSTANT, POSITIVE))
    yield from reals.keeps((*p.each("exp tanh sigmoid", x), p.astype(x, where=to_float)), SORTED)
    yield from reals.gives(p.sqrt(x), SORTED, has(x, SORTED, NONNEGATIVE))
    yield from reals.gives(p.log(x), SORTED, has(x, SORTED, POSITIVE))


def _signs() -> Iterator[FactRule]:
    """Signs of floats. Integers wrap, so arithmetic does not keep their signs."""
    yield from floats.keeps(
        (
            *p.each("add multiply matmul linear", x, y),
            p.integer_pow(x, where=natural),
            *p.each(f"{_of_floats('sign')} silu gelu gelu_tanh floor round sum mean prod cumprod", x),
            p.conv(x, w),
        ),
        NONNEGATIVE,
    )
    yield from floats.keeps((p.add(x, y), *p.each("sum cumsum", x)), NONPOSITIVE)
    yield from floats.gives(p.negative(x), NONPOSITIVE, has(x, NONNEGATIVE))
    yield from floats.gives(p.negative(x), NONNEGATIVE, has(x, NONPOSITIVE))
    yield from floats.gives(p.subtract(x, y), NONPOSITIVE, has(x, NONPOSITIVE), has(y, NONNEGATIVE))
    yield from floats.gives(p.multiply(x, y), NONNEGATIVE, has(x, NONPOSITIVE), has(y, NONPOSITIVE))
    yield from floats.gives(p.multiply(x, y), NONPOSITIVE, has(x, NONPOSITIVE), has(y, NONNEGATIVE))
    yield from floats.gives(p.multiply(x, y), NONPOSITIVE, has(x, NONNEGATIVE), has(y, NONPOSITIVE))
    yield from floats.gives(p.add(x, y), POSITIVE, has(x, POSITIVE), has(y, NONNEGATIVE))
    yield from floats.gives(p.add(x, y), POSITIVE, has(x, NONNEGATIVE), has(y, POSITIVE))
    yield from reals.keeps(
        (
            p.multiply(x, y),
            *p.each(f"{_of_floats('sign')} integer_pow silu prod cumprod", x),
            p.astype(x, where=to_float),
        ),
        (POSITIVE, NONZERO),
    )
    yield from floats.gives(
        (
            p.multiply(x, x),
            *p.each(f"{_of_floats('underflows')} square abs softmax sqrt", x),
            p.integer_pow(x, where=even),
        ),
        NONNEGATIVE,
    )
    yield from reals.gives((p.multiply(x, x), p.square(x), p.integer_pow(x, where=even)), POSITIVE, has(x, NONZERO))
    yield from floats.gives(p.divide(x, y), NONNEGATIVE, has(x, NONNEGATIVE), has(y, POSITIVE))
    yield from reals.gives(p.divide(x, y), POSITIVE, has(x, POSITIVE), has(y, POSITIVE))
    yield from reals.gives(p.divide(x, y), NONZERO, has(x, NONZERO))
    yield from floats.gives((*p.each("reciprocal integer_pow rsqrt", x), p.power(x, y)), NONNEGATIVE, has(x, POSITIVE))
    yield from reals.gives((p.reciprocal(x), p.power(x, y)), POSITIVE, has(x, POSITIVE))
    yield from reals.gives(p.reciprocal(x), NONZERO)
    yield from floats.gives(p.abs(x), POSITIVE, has(x, NONZERO))
    yield from reals.gives(p.each(f"{_of_floats('underflows')} softmax", x), POSITIVE)
    yield from floats.gives(p.cosh(x), POSITIVE)
    yield from floats.keeps(p.sqrt(x), (POSITIVE, NONZERO))
    yield from reals.keeps(p.each("rsqrt gelu gelu_tanh mean", x), POSITIVE)
    yield from floats.keeps(p.each("ceil cumsum", x), (POSITIVE, NONNEGATIVE))
    yield from floats.gives(p.sum(x), POSITIVE, has(x, POSITIVE), annotated(x, "is_nonempty"))
    yield from reals.gives(
        p.each("matmul linear", x, y), POSITIVE, has(x, POSITIVE), has(y, POSITIVE), annotated(x, "is_nonempty")
    )
    yield from floats.keeps(p.take(x, i), (POSITIVE, NONNEGATIVE, NONZERO, INTEGRAL), x)
    yield from floats.keeps(p.astype(x, where=to_float), (NONNEGATIVE, INTEGRAL))
    yield from floats.gives(p.astype(x, where=to_float), (NONNEGATIVE, INTEGRAL, FINITE), annotated(x, "is_bool"))
    yield from floats.gives(p.astype(x, where=to_wide), FINITE, annotated(x, "is_integer"))
    yield from reals.keeps(p.astype(x, where=to_wide), FINITE)


def _whole_numbers() -> Iterator[FactRule]:
    """Whole numbers."""
    yield from floats.gives(p.each(_of_floats("rounds"), x), INTEGRAL)
    yield from floats.keeps(
        (
            *p.each("add subtract multiply matmul linear", x, y),
            *p.each("square sum prod cumsum cumprod", x),
            p.integer_pow(x, where=natural),
        ),
        INTEGRAL,
    )


def _finite() -> Iterator[FactRule]:
    """Operators whose results are finite for finite operands: none that grows like exp, and no quotient by 0."""
    yield from floats.keeps(p.each(f"{_of_floats('bounded')} softmax silu gelu", x), FINITE)
    yield from floats.gives(p.each("sqrt log1p", x), FINITE, has(x, FINITE, NONNEGATIVE))
    yield from floats.gives(p.log(x), FINITE, has(x, FINITE, POSITIVE))
    yield from reals.keeps(
        (
            *p.each("add subtract multiply matmul linear", x, y),
            *p.each("square sum cumsum gelu_tanh", x),
            p.integer_pow(x, where=natural),
        ),
        FINITE,
    )
    yield from reals.gives(p.divide(x, y), FINITE, has(x, FINITE), has(y, FINITE, NONZERO))
    yield from reals.gives(p.reciprocal(x), FINITE, has(x, FINITE, NONZERO))
    yield from reals.gives(p.rsqrt(x), FINITE, has(x, FINITE, POSITIVE))
    yield from reals.gives(p.mean(x), FINITE, has(x, FINITE), annotated(x, "is_nonempty"))


def _matrices() -> Iterator[FactRule]:
    """Matrices."""
    yield from floats.gives((p.matmul(swapped, x), p.matmul(x, swapped), p.linear(x, x)), SYMMETRIC)
    yield from reals.gives((p.matmul(swapped, x), p.matmul(x, swapped), p.linear(x, x)), POSITIVE_SEMIDEFINITE)
    yield from reals.keeps(
        (
            p.matmul(swapped, p.matmul(s, x)),
            p.matmul(p.matmul(swapped, s), x),
            p.matmul(x, p.matmul(s, swapped)),
            p.matmul(p.matmul(x, s), swapped),
        ),
        (SYMMETRIC, POSITIVE_SEMIDEFINITE),
        s,
    )
    yield from reals.gives(
        p.matmul(swapped, p.divide(x, p.expand_dims(y, where=at_end))), POSITIVE_SEMIDEFINITE, has(y, POSITIVE)
    )
    yield from reals.gives(p.sum(x, where=of_matrix), POSITIVE, has(x, DIAGONAL, POSITIVE_DEFINITE))
    yield from reals.keeps(p.matmul(x, x), SYMMETRIC)
    yield from reals.gives(p.matmul(x, x), POSITIVE_SEMIDEFINITE, has(x, SYMMETRIC))
    yield from reals.keeps(p.matmul(x, y), (LOWER_TRIANGULAR, UPPER_TRIANGULAR, ORTHOGONAL, INVERTIBLE))
    yield from reals.keeps(p.add(x, y), POSITIVE_SEMIDEFINITE)
    yield from reals.gives(p.add(x, y), POSITIVE_DEFINITE, has(x, POSITIVE_DEFINITE), has(y, POSITIVE_SEMIDEFINITE))
    yield from reals.gives(p.add(x, y), POSITIVE_DEFINITE, has(x, POSITIVE_SEMIDEFINITE), has(y, POSITIVE_DEFINITE))
    yield from reals.gives(
        (p.multiply(x, c), p.multiply(c, x)),
        POSITIVE_SEMIDEFINITE,
        has(x, POSITIVE_SEMIDEFINITE),
        has(c, CONSTANT, NONNEGATIVE),
    )
    yield from reals.gives(
        (*p.each("multiply divide", x, c), p.multiply(c, x)), INVERTIBLE, has(x, INVERTIBLE), has(c, CONSTANT, NONZERO)
    )
    yield from reals.gives(
        p.divide(x, c), POSITIVE_SEMIDEFINITE, has(x, POSITIVE_SEMIDEFINITE), has(c, CONSTANT, POSITIVE)
    )
    yield from reals.gives(p.multiply(x, y), LOWER_TRIANGULAR, has(x, LOWER_TRIANGULAR))
    yield from reals.gives(p.multiply(x, y), LOWER_TRIANGULAR, has(y, LOWER_TRIANGULAR))
    yield from reals.gives(p.multiply(x, y), UPPER_TRIANGULAR, has(x, UPPER_TRIANGULAR))
    yield from reals.gives(p.multiply(x, y), UPPER_TRIANGULAR, has(y, UPPER_TRIANGULAR))
    yield from reals.keeps(p.multiply(x, y), DEFINITE)
    yield from reals.gives(p.divide(x, y), LOWER_TRIANGULAR, has(x, LOWER_TRIANGULAR), has(y, NONZERO))
    yield from reals.gives(p.divide(x, y), UPPER_TRIANGULAR, has(x, UPPER_TRIANGULAR), has(y, NONZERO))
    yield from floats.keeps(p.each("sqrt square tanh", x), TRIANGLES)
    yield from floats.keeps((swapped, kept), (*DEFINITE, ORTHOGONAL, INVERTIBLE))
    yield from floats.keeps(p.negative(x), (ORTHOGONAL, INVERTIBLE))
    yield from reals.gives(
        p.where(m, x, y), POSITIVE_SEMIDEFINITE, has(m, ONLY_DIAGONAL), has(x, NONNEGATIVE), equals(y, 0)
    )
    yield from reals.gives(p.where(m, x, y), INVERTIBLE, has(m, IDENTITY_MASK), has(x, NONZERO), equals(y, 0))
    yield from reals.gives(p.cholesky(x), (LOWER_TRIANGULAR, INVERTIBLE), has(x, POSITIVE_DEFINITE))
    yield from reals.gives((field(p.qr(x), 0), field(p.eigh(x), 0), field(p.svd(x), 1), field(p.svd(x), 2)), ORTHOGONAL)
    yield from reals.gives(field(p.qr(x), 1), UPPER_TRIANGULAR)
    yield from reals.gives(field(p.qr(x), 1), INVERTIBLE, has(x, INVERTIBLE))
    yield from reals.gives(field(p.eigh(x), 1), SORTED)
    yield from reals.gives(field(p.eigh(x), 1), POSITIVE, has(x, POSITIVE_DEFINITE))
    yield from reals.gives(field(p.svd(x), 0), NONNEGATIVE)
    yield from reals.gives(field(p.svd(x), 0), POSITIVE, has(x, INVERTIBLE))


PARTS = _moved, _element_by_element, _masks, _order, _signs, _whole_numbers, _finite, _matrices


@lru_cache(1)
def derivations() -> tuple[FactRule, ...]:
    """All rules about facts."""
    return tuple(dict.fromkeys(rule for part in PARTS for rule in part()))
