"""Determinants of products, inverses, diagonal and triangular matrices, and of matrices of low rank beside them.

The determinant is multiplicative, so that of a product over index letters is a product of determinants of its factors.
`jax.numpy.linalg` computes a determinant from LU factors; which values do so is decided by proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from relax_eg.ir.expr import TUPLE_GET, Expr, const, postorder
from relax_eg.ops import api as op
from relax_eg.rules.matrices.lifting import Lift
from relax_eg.rules.matrices.lowering import SolutionWriter
from relax_eg.rules.matrices.relations import is_identity_mask
from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm, aligned, on_diagonals
from relax_eg.rules.sums_of_products.letters import SumOfProducts
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.prove import why_not_equal
from relax_eg.shapes import Dim

_PROVING = 1.0  # limit: seconds of processor time of the proof that a value is a determinant
_MOST_NODES = 64  # limit: operators between an LU factorisation and the determinant

Kind = Literal["logarithm", "sign"]


# --- which values are determinants ---


def determinant_of(e: Expr) -> tuple[Expr, int] | None:
    """The matrix whose determinant, to the power of a number, is `e`; None if `e` is no determinant."""
    if e.op == "integer_pow" and (inner := determinant_of(e.args[0])) is not None:
        return inner[0], inner[1] * int(e.attr("y"))
    if e.op != "multiply":
        return None
    a, b = e.args
    if a is b and (inner := determinant_of(a)) is not None:
        return inner[0], 2 * inner[1]
    if b.op != "exp" or a.shape != b.shape:
        return None
    made = logarithm_of(b.args[0])
    return (made, 1) if made is not None and _is_of(a, made, "sign") else None


def logarithm_of(e: Expr) -> Expr | None:
    """The matrix of which `e` is the logarithm of the determinant's absolute value; None if it is none."""
    if len(e.args) != 3:
        return None
    factors = [x for x in postorder((e,), stop=lambda x: x.op == "lu")[-_MOST_NODES:] if x.op == "lu"]
    if len(factors) != 1 or factors[0].args[0].ndim != e.ndim + 2:
        return None
    (matrix,) = factors[0].args
    return matrix if _is_of(e, matrix, "logarithm") else None


def _is_of(e: Expr, matrix: Expr, kind: Kind) -> bool:
    plain = op.iota((matrix.shape[-1],), 0)
    # `jax.numpy.arange` of a size adds 0 to the positions times 1; rules remove that.
    traced = op.add(const(0, "int32"), op.multiply(const(1, "int32"), plain))
    for places in (plain, traced) if matrix.shape[-1].is_const else (traced, plain):
        template = by_factors(matrix, kind, places)
        fields = [x for x in postorder((template,)) if x.op == TUPLE_GET]
        if e is template or not why_not_equal(e, template, fields, _PROVING):
            return True
        if kind == "logarithm":
            break  # no positions are counted
    return False


def by_factors(matrix: Expr, kind: Kind, places: Expr | None = None) -> Expr:
    """A determinant's sign, or the logarithm of its absolute value, by LU factors. `places`: the positions of rows."""
    factors, exchanges, _ = op.lu(matrix)
    on_diagonal = _diagonal(factors)
    axis = on_diagonal.ndim - 1
    is_singular = op.any(op.equal(on_diagonal, 0.0), axis)
    shape = is_singular.shape
    if kind == "logarithm":
        total = op.sum(op.log(op.abs(on_diagonal)), axis)
        return op.where(is_singular, op.broadcast_to(const(-math.inf, matrix.dtype), shape), total)
    moved = op.not_equal(exchanges, op.iota((matrix.shape[-1],), 0) if places is None else places)
    count = _count(moved) + _count(op.less(on_diagonal, 0.0))
    # The remainder as `jax.numpy` computes it.
    rest = op.remainder(count, 2)
    is_other_sign = op.not_equal(op.less(rest, 0), op.less(const(2, "int32"), 0))
    rest = op.where(op.logical_and(is_other_sign, op.not_equal(rest, 0)), rest + 2, rest)
    sign = op.multiply(const(1, matrix.dtype), op.astype(op.multiply(rest, -2) + 1, matrix.dtype))
    return op.where(is_singular, op.broadcast_to(const(0, matrix.dtype), shape), sign)


def _count(mask: Expr) -> Expr:
    return op.sum(op.astype(op.not_equal(mask, False), "int32"), mask.ndim - 1)


def _diagonal(matrix: Expr) -> Expr:
    letters = list(range(matrix.ndim - 1))
    found = on_diagonals(matrix, [*letters, letters[-1]])
    return aligned(found, letters)


# --- parts ---


@dataclass(frozen=True)
class _Part:
    """A factor of a determinant.

    - `values`: the numbers whose product it is, along the last axis; None if it is that of `matrix`.
    - `matrix`: a matrix that is no product.
    - `power`: a number or size of which it is the power.
    """

    power: Dim
    values: Expr | None = None
    matrix: Expr | None = None


@dataclass
class Determinants:
    """Writes determinants by those of factors.

    - `lift`: reads matrices as sums of products.
    """

    lift: Lift

    def of(self, e: Expr) -> Expr | None:
        """Another form of `e`, a determinant or the logarithm of one's absolute value; None if there is none."""
        found = determinant_of(e)
        matrix, power = found if found is not None else (logarithm_of(e), 1)
        if matrix is None or power < 1:
            return None
        self.lift.gathers = True  # LU factors gather rows
        parts = self._parts(matrix, Dim.of(power))
        if [p.matrix for p in parts] == [matrix] and not self._is_known(matrix, parts[0].power, found is None):
            return None
        made = self._logarithm(parts, matrix) if found is None else self._product(parts, matrix)
        made = SolutionWriter(self.lift).program(made)
        return made if made.shape == e.shape else op.broadcast_to(made, e.shape)

    def _is_known(self, matrix: Expr, power: Dim, is_logarithm: bool) -> bool:
        known = self.lift.facts(matrix)
        if known & {"lower_triangular", "upper_triangular", "positive_definite"}:
            return True
        return "orthogonal" in known and (is_logarithm or _is_even(power))

    def _parts(self, matrix: Expr, power: Dim) -> list[_Part]:
        s = self.lift.with_diagonals(self.lift.reduced(matrix))
        if len(s.terms) == 1 and (found := self._of_product(s, matrix, power)) is not None:
            return found
        if len(s.terms) == 2 and (found := self._of_low_rank(s, power)) is not None:
            return found
        return [_Part(power, None, matrix)]

    def _of_product(self, s: SumOfProducts, matrix: Expr, power: Dim) -> list[_Part] | None:
        """The parts of a product of square matrices, diagonal matrices and numbers; None if `s` is none."""
        if self.lift.inverted_product(s) is None:
            return None
        (term,) = s.terms
        batch = [x for g in s.result[:-2] for x in g]
        n = matrix.shape[-1]
        found: list[_Part] = []
        if term.coefficient != 1:
            found.append(_Part(power * n, _row(const(float(term.coefficient), matrix.dtype))))
        for sizes, sign in ((term.sizes, 1), (term.divisors, -1)):
            found += [_Part(power * n * sign, _row(op.astype(op.dim_value(d), matrix.dtype))) for d in sizes]
        for f in term.factors:
            own = [x for x in f.letters if x not in batch]
            sign = -1 if f.divides else 1
            if is_identity_mask(f.value):
                continue
            if not own:
                found.append(_Part(power * n * sign, _row(aligned(f, batch))))
                continue
            # In a Kronecker product the determinant of a factor is to the power of the size of the others.
            others = [s.extents[x] for x in s.result[-2]]
            others.remove(s.extents[own[0]])
            often = math.prod(others, start=Dim.of(1))
            if len(own) == 1:
                found.append(_Part(power * often * sign, aligned(replace(f, divides=False), [*batch, *own])))
                continue
            inverse = self.lift.solved.get(f.value)
            value, turn = (f.value, sign) if inverse is None else (inverse.of, -sign)
            if value is matrix or f.letters[:-2] != tuple(batch):
                found.append(_Part(power * often * turn, None, value))
            else:
                found += (
                    self._parts(value, power * often * turn)
                    if inverse is not None
                    else [_Part(power * often * turn, None, value)]
                )
        return found

    def _of_low_rank(self, s: SumOfProducts, power: Dim) -> list[_Part] | None:
        """det(D + U V) = det(D) det(I + V inv(D) U) for diagonal D, and for U of fewer columns than rows."""
        batch = tuple(x for g in s.result[:-2] for x in g)
        if any(len(g) != 1 for g in s.result[-2:]):
            return None
        (i,), (j,) = s.result[-2:]
        scaled = [t for t in s.terms if any(is_identity_mask(f.value) and set(f.letters) == {i, j} for f in t.factors)]
        if len(scaled) != 1:
            return None
        (diagonal,) = scaled
        (product,) = [t for t in s.terms if t is not diagonal]
        numbers = [f for f in diagonal.factors if not is_identity_mask(f.value)]
        numbers = [replace(f, letters=tuple(i if x == j else x for x in f.letters)) for f in numbers]
        if any("nonzero" not in self.lift.facts(f.value) or set(f.letters) - {*batch, i} for f in numbers):
            return None
        split = self._split(s, product, i, j, batch)
        if split is None:
            return None
        left, right, k = split
        top = max(s.extents, default=0) + 1
        extents = {**s.extents, top: s.extents[k] if k is not None else Dim.of(1)}
        inverse = tuple(replace(f, divides=not f.divides) for f in numbers)
        moved = [replace(f, letters=tuple(i if x == j else top if x == k else x for x in f.letters)) for f in right]
        ratio = product.coefficient / diagonal.coefficient
        small = ProductTerm(
            ratio,
            (*product.sizes, *diagonal.divisors),
            (*product.divisors, *diagonal.sizes),
            (*left, *moved, *inverse),
        )
        one = ProductTerm(Fraction(1), (), (), ())
        groups = tuple((x,) for x in batch)
        n, dtype = s.shape[-1], s.dtype
        shape = s.shape[:-2]
        found = [_Part(power, _vector(f, batch, i)) for f in numbers]
        if diagonal.coefficient != 1 or diagonal.sizes or diagonal.divisors:
            return None
        if k is None:
            value = self.lift.emitted(SumOfProducts((one, small), groups, extents, shape, dtype))
            return [*found, _Part(power, _row(value))]
        mask = op.equal(op.iota((extents[k], extents[k]), 0), op.iota((extents[k], extents[k]), 1))
        ones = replace(one, factors=(Access(mask, tuple(sorted((k, top)))),))
        whole = (*shape, extents[k], extents[k])
        made = self.lift.emitted(SumOfProducts((ones, small), (*groups, (top,), (k,)), extents, whole, dtype))
        assert n is not None
        return [*found, _Part(power, None, made)]

    def _split(
        self, s: SumOfProducts, t: ProductTerm, i: Letter, j: Letter, batch: Sequence[Letter]
    ) -> tuple[list[Access], list[Access], Letter | None] | None:
        """The factors of the rows and of the columns of a matrix of low rank, and the letter that joins them."""
        inner = sorted({x for f in t.factors for x in f.letters} - {i, j, *batch})
        n = self.lift.extent(s.extents[i])
        for k in (None, *sorted(inner, key=lambda x: self.lift.extent(s.extents[x]))):
            if k is not None and self.lift.extent(s.extents[k]) >= n:
                return None
            rows, grown = {i}, True
            while grown:
                more = {x for f in t.factors if rows & set(f.letters) for x in f.letters} - {k, *batch}
                grown = not more <= rows
                rows |= more
            if j in rows:
                continue
            left = [f for f in t.factors if rows & set(f.letters)]
            right = [f for f in t.factors if f not in left]
            if k is None or (any(k in f.letters for f in left) and any(k in f.letters for f in right)):
                return left, right, k
        return None

    # --- writing ---

    def _logarithm(self, parts: Sequence[_Part], matrix: Expr) -> Expr:
        total: Expr | None = None
        for p in parts:
            value = self._logarithm_of_part(p)
            if value is not None:
                scaled = value if p.power == Dim.of(1) else op.multiply(value, _size(p.power, matrix.dtype))
                total = scaled if total is None else op.add(total, scaled)
        return const(0, matrix.dtype) if total is None else total

    def _logarithm_of_part(self, p: _Part) -> Expr | None:
        if p.values is not None:
            return op.sum(op.log(op.abs(p.values)), p.values.ndim - 1)
        assert p.matrix is not None
        known = self.lift.facts(p.matrix)
        if "orthogonal" in known:
            return None
        if known & {"lower_triangular", "upper_triangular"}:
            on_diagonal = _diagonal(p.matrix)
            return op.sum(op.log(op.abs(on_diagonal)), on_diagonal.ndim - 1)
        if "positive_definite" in known:
            on_diagonal = _diagonal(op.cholesky(p.matrix))
            return op.multiply(op.sum(op.log(on_diagonal), on_diagonal.ndim - 1), 2.0)
        return by_factors(p.matrix, "logarithm")

    def _product(self, parts: Sequence[_Part], matrix: Expr) -> Expr:
        above, below = list[Expr](), list[Expr]()
        for p in parts:
            if not p.power.is_const:
                raise Unsupported(f"the power {p.power}")
            value = self._value_of_part(p)
            if value is not None:
                times = abs(int(p.power.value))
                (above if p.power.value > 0 else below).append(value if times == 1 else op.integer_pow(value, times))
        one: Expr = const(1, matrix.dtype)
        top, bottom = (_multiplied(x) for x in (above, below))
        if bottom is None:
            return one if top is None else top
        return op.divide(one if top is None else top, bottom)

    def _value_of_part(self, p: _Part) -> Expr | None:
        if p.values is not None:
            return op.prod(p.values, p.values.ndim - 1)
        assert p.matrix is not None
        known = self.lift.facts(p.matrix)
        if "orthogonal" in known and _is_even(p.power):
            return None
        if known & {"lower_triangular", "upper_triangular"}:
            on_diagonal = _diagonal(p.matrix)
            return op.prod(on_diagonal, on_diagonal.ndim - 1)
        if "positive_definite" in known:
            found = self._logarithm_of_part(p)
            return None if found is None else op.exp(found)
        return op.multiply(by_factors(p.matrix, "sign"), op.exp(by_factors(p.matrix, "logarithm")))


def _multiplied(values: Sequence[Expr]) -> Expr | None:
    made: Expr | None = None
    for v in values:
        made = v if made is None else op.multiply(made, v)
    return made


def _is_even(d: Dim) -> bool:
    return d.is_const and d.value % 2 == 0


def _row(x: Expr) -> Expr:
    """`x` as the only number of a last axis."""
    return op.expand_dims(x, x.ndim)


def _vector(f: Access, batch: Sequence[Letter], i: Letter) -> Expr:
    value = aligned(replace(f, divides=False), [*batch, i])
    return op.reciprocal(value) if f.divides else value


def _size(d: Dim, dtype: str) -> Expr:
    return const(int(d.value), dtype) if d.is_const else op.astype(op.dim_value(d), dtype)
