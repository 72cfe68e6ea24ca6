"""Factors of a product that cancel.

A product over index letters (`sums_of_products.letters`) multiplies elements of matrices. Two matrices that share a
summed letter which nothing else has are multiplied as matrices, so the laws of matrices apply: inv(A) A = I,
Q' Q = I, L L' = S, Q R = A. An identity matrix makes two letters one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import TUPLE_GET, Expr, postorder
from relax_eg.ops import api as op
from relax_eg.rules.sums_of_products.accesses import Access, Letter, ProductTerm, on_diagonals, with_letters
from relax_eg.rules.sums_of_products.letters import SumOfProducts
from relax_eg.rules.verify_formal.compose import Composer, Unsupported, index_dim, indices_of
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply

_MOST_STEPS = 64  # limit: times that factors of a product are replaced
_MOST_VIEWS = 16  # limit: operators that take the diagonal of a matrix
_MOST_KNOWN = 1 << 10  # limit: masks of which it is known whether they are the identity


@dataclass(frozen=True)
class InverseOf:
    """What a variable stands for: the inverse of a matrix, or of one of its triangles.

    - `of`: the matrix.
    - `triangle`: "lower" or "upper" for the inverse of a triangle of it; empty for that of all of it.
    - `has_unit_diagonal`: whether the diagonal of the triangle counts as ones.
    """

    of: Expr
    triangle: str = ""
    has_unit_diagonal: bool = False


def part_of(e: Expr) -> tuple[str, int, Expr] | None:
    """The operator that made `e`, the number of its result, and its node; None for a leaf of a program."""
    if e.op == TUPLE_GET:
        return e.args[0].op, int(e.attr("index")), e.args[0]
    return (e.op, 0, e) if e.args else None


@dataclass
class Relations:
    """The laws that hold between the factors of products.

    - `facts`: the facts of a value.
    - `solved`: what variables that stand for inverses are.
    - `inverse`: the expression for the inverse of a matrix.
    - `terms`: the terms of an expression over letters.
    """

    facts: Callable[[Expr], frozenset[str]]
    solved: Mapping[Expr, InverseOf]
    inverse: Callable[[Expr], Expr]
    terms: Callable[[Expr], SumOfProducts]

    def reduced(self, s: SumOfProducts) -> tuple[SumOfProducts, int]:
        """`s` without the factors that cancel, and the number of laws that were applied."""
        extents = dict(s.extents)
        free = frozenset(itertools.chain.from_iterable(s.result))
        count = 0
        terms: list[ProductTerm] = []
        for t in s.terms:
            state = _Term(self, extents, free, list(t.factors), list(t.sizes))
            count += state.reduce()
            terms.append(replace(t, factors=tuple(state.factors), sizes=tuple(state.sizes)))
        kept, collected = self.collected(terms, free, extents)
        return replace(s, terms=kept, extents=extents), count + collected

    def collected(
        self, terms: Iterable[ProductTerm], free: frozenset[Letter], extents: Mapping[Letter, Dim]
    ) -> tuple[tuple[ProductTerm, ...], int]:
        """The sum of terms with equal ones collected, and the number of those that were added to others."""
        count = 0
        kept: list[ProductTerm] = []
        for t in terms:
            for i, k in enumerate(kept):
                if self.is_same(k, t, dict(zip(free, free, strict=True)), extents):
                    count += 1
                    kept[i] = replace(k, coefficient=k.coefficient + t.coefficient)
                    break
            else:
                kept.append(t)
        return tuple(t for t in kept if t.coefficient), count

    def is_symmetric(self, value: Expr) -> bool:
        """Whether a matrix, or the one of which it is the inverse, is symmetric."""
        found = self.solved.get(value)
        if found is not None:
            return not found.triangle and self.is_symmetric(found.of)
        return "symmetric" in self.facts(value)

    def is_same(
        self, a: ProductTerm, b: ProductTerm, letters: Mapping[Letter, Letter], extents: Mapping[Letter, Dim]
    ) -> bool:
        """Whether two products are equal but for their coefficients; `letters`: those of `b` for those of the result
        of `a`."""
        if len(a.factors) != len(b.factors) or sorted(map(str, a.sizes)) != sorted(map(str, b.sizes)):
            return False
        if sorted(map(str, a.divisors)) != sorted(map(str, b.divisors)):
            return False
        return self._matched(list(a.factors), list(b.factors), dict(letters), extents)

    def _matched(
        self, a: list[Access], b: list[Access], letters: dict[Letter, Letter], extents: Mapping[Letter, Dim]
    ) -> bool:
        if not a:
            return True
        first, rest = a[0], a[1:]
        for i, g in enumerate(b):
            if g.value is not first.value or g.divides != first.divides:
                continue
            for order in self._orders(g):
                named = dict(letters)
                if all(
                    named.setdefault(x, y) == y and extents[x] == extents[y]
                    for x, y in zip(first.letters, order, strict=True)
                ):
                    used = list(named.values())
                    if len(set(used)) == len(used) and self._matched(rest, [*b[:i], *b[i + 1 :]], named, extents):
                        return True
        return False

    def _orders(self, g: Access) -> Iterator[tuple[Letter, ...]]:
        yield g.letters
        if is_identity_mask(g.value) or (len(g.letters) > 1 and self.is_symmetric(g.value)):
            yield (*g.letters[:-2], g.letters[-1], g.letters[-2])


@dataclass
class _Term:
    """A product whose factors are replaced one after the other.

    - `relations`: the laws.
    - `extents`: by letter, its size; new letters are added.
    - `free`: the letters of the result.
    - `factors`: the factors.
    - `sizes`: the sizes by which the product is multiplied.
    """

    relations: Relations
    extents: dict[Letter, Dim]
    free: frozenset[Letter]
    factors: list[Access]
    sizes: list[Dim] = field(default_factory=list[Dim])

    def reduce(self) -> int:
        """Applies laws until none applies; returns how many were."""
        self.factors = [_with_plain_mask(f, self.extents) for f in self.factors]
        for f in list(self.factors):
            if (matrix := of_diagonal(f)) is not None:
                x = f.letters[-1]
                y = self._new_letter(self.extents[x])
                self.factors[self.factors.index(f)] = Access(matrix, (*f.letters, y), f.divides)
                self.factors.append(identity_mask(x, y, self.extents))
        count = 0
        while count < _MOST_STEPS and self._step():
            count += 1
        self._use_first_letters()
        return count

    def _use_first_letters(self) -> None:
        """Of two letters that an identity matrix makes equal, other factors use the first where they can."""
        for mask in [f for f in self.factors if is_identity_mask(f.value)]:
            first, second = mask.letters
            for i, f in enumerate(self.factors):
                if f is not mask and second in f.letters and first not in f.letters:
                    letters = tuple(first if x == second else x for x in f.letters)
                    self.factors[i] = replace(f, letters=letters)

    def _step(self) -> bool:
        return any(self._single(i) for i in range(len(self.factors))) or any(
            self._pair(i, j) for i, j in itertools.permutations(range(len(self.factors)), 2)
        )

    def _occurrences(self, x: Letter) -> int:
        return sum(x in f.letters for f in self.factors)

    def _is_summed(self, x: Letter, occurrences: int) -> bool:
        return x not in self.free and self._occurrences(x) == occurrences

    # --- single factors ---

    def _single(self, i: int) -> bool:
        f = self.factors[i]
        if f.divides or f.value.dtype == "bool":
            return False
        if len(f.letters) > 1 and f.value not in self.relations.solved and "diagonal" in self.relations.facts(f.value):
            return self._is_diagonal(*f.letters[-2:])
        made = part_of(f.value)
        if made is not None and made[:2] == ("eigh", 1) and all(self._is_summed(x, 1) for x in f.letters[-1:]):
            return self._trace(i, made[2].args[0])
        return len(f.letters) > 1 and self._without_mask(f)

    def _is_diagonal(self, x: Letter, y: Letter) -> bool:
        """A diagonal matrix is itself times the identity; False if that is written already."""
        mask = identity_mask(x, y, self.extents)
        if mask in self.factors:
            return False
        self.factors.append(mask)
        return True

    def _trace(self, i: int, matrix: Expr) -> bool:
        """The sum of eigenvalues is the trace."""
        *batch, x = self.factors[i].letters
        y = self._new_letter(self.extents[x])
        self.factors[i] = Access(matrix, (*batch, x, y))
        self.factors.append(identity_mask(x, y, self.extents))
        return True

    def _without_mask(self, f: Access) -> bool:
        """A triangle of a triangular matrix is the matrix."""
        *_, x, y = f.letters
        known = self.relations.facts(f.value)
        masks = [triangle(x, y, self.extents, w) for w in ("lower", "upper") if f"{w}_triangular" in known]
        for g in self.factors:
            if g.value in masks and set(g.letters) == {x, y}:
                self.factors.remove(g)
                return True
        return False

    # --- pairs ---

    def _pair(self, i: int, j: int) -> bool:
        f, g = self.factors[i], self.factors[j]
        if f.divides or g.divides or "bool" in (f.value.dtype, g.value.dtype):
            return False
        if f.value is g.value and self._singular_values(f, g):
            return True
        if len(f.letters) < 2 or len(f.letters) != len(g.letters) or f.letters[:-2] != g.letters[:-2]:
            return False
        for p, q in itertools.product((0, 1), (0, 1)):
            k = f.letters[p - 2]
            if k != g.letters[q - 2] or not self._is_summed(k, 2):
                continue
            x, y = f.letters[-1 - p], g.letters[-1 - q]
            if k in (x, y):
                continue
            if self._is_identity(f.value, p, g.value, q):
                self._remove(f, g)
                self._unify(x, y)
                return True
            product = self._product(f.value, p, g.value, q)
            if product is not None and self._splice(f, g, product, (*f.letters[:-2], x, y)):
                return True
        return False

    def _is_identity(self, a: Expr, p: int, b: Expr, q: int) -> bool:
        """Whether the sum over axis `p` of matrix `a` and axis `q` of matrix `b` is the identity."""
        r = self.relations
        if a is b and p == q:
            made = part_of(a)
            if "orthogonal" in r.facts(a) or (p == 0 and made is not None and made[:2] == ("qr", 0)):
                return True
        found = r.solved.get(a)
        if found is None or found.of is not b or found.has_unit_diagonal or (p == q and not r.is_symmetric(b)):
            return False
        known = r.facts(b)
        return "invertible" in known and (not found.triangle or f"{found.triangle}_triangular" in known)

    def _product(self, a: Expr, p: int, b: Expr, q: int) -> Expr | None:
        """The matrix that the sum over axis `p` of `a` and axis `q` of `b` is, by a factorisation; None if unknown."""
        r = self.relations
        made = part_of(a)
        if a is b and p == q == 1 and made is not None and made[0] == "cholesky":
            (of,) = a.args
            return of if "positive_definite" in r.facts(of) else None
        found = r.solved.get(a)
        if a is b and p == q == 0 and found is not None and not found.has_unit_diagonal:
            inner = part_of(found.of)
            if inner is not None and inner[0] == "cholesky" and found.triangle in ("", "lower"):
                (of,) = found.of.args
                return r.inverse(of) if "positive_definite" in r.facts(of) else None
        other = part_of(b)
        if made is None or other is None or made[2] is not other[2] or (p, q) != (1, 0):
            return None
        is_recomposed = made[:2] == ("qr", 0) and other[:2] == ("qr", 1) and not made[2].attr("pivoting")
        return made[2].args[0] if is_recomposed else None

    def _singular_values(self, f: Access, g: Access) -> bool:
        """The sum of squared singular values is that of squared elements."""
        made = part_of(f.value)
        if made is None or made[:2] != ("svd", 0) or f.letters != g.letters or not self._is_summed(f.letters[-1], 2):
            return False
        (of,) = made[2].args
        letters = (*f.letters[:-1], *(self._new_letter(n) for n in of.shape[-2:]))
        self._remove(f, g)
        self.factors += [Access(of, letters), Access(of, letters)]
        return True

    def _splice(self, f: Access, g: Access, product: Expr, letters: Sequence[Letter]) -> bool:
        """Replaces two factors by those of a matrix with axes `letters`."""
        s = self.relations.terms(product)
        groups = [a[0] if len(a) == 1 else None for a in s.result]
        if len(s.terms) != 1 or s.terms[0].coefficient != 1 or s.terms[0].divisors or None in groups:
            self._remove(f, g)
            self.factors.append(Access(product, tuple(letters)))
            return True
        names = {x: y for x, y in zip(groups, letters, strict=True) if x is not None}
        for x, n in s.extents.items():
            if x not in names:
                names[x] = self._new_letter(n)
        self._remove(f, g)
        term = with_letters(s.terms[0], names)
        self.factors += term.factors
        self.sizes += term.sizes
        return True

    # --- letters ---

    def _new_letter(self, n: Dim) -> Letter:
        made = max(self.extents, default=-1) + 1
        self.extents[made] = n
        return made

    def _remove(self, *gone: Access) -> None:
        for f in gone:
            self.factors.remove(f)

    def _unify(self, x: Letter, y: Letter) -> None:
        """Multiplies by an identity matrix with axes `x` and `y`."""
        if x in self.free:
            x, y = y, x
        both = any(x in f.letters and y in f.letters for f in self.factors)
        if x != y and (x in self.free or both):
            self.factors.append(identity_mask(x, y, self.extents))
            return
        if x == y:
            self.sizes += [self.extents[x]] * (x not in self.free and not self._occurrences(x))
            return
        self.factors = [replace(f, letters=tuple(y if z == x else z for z in f.letters)) for f in self.factors]
        if y not in self.free and not self._occurrences(y):
            self.sizes.append(self.extents[y])


def _positions(shape: tuple[Dim, Dim], in_order: bool) -> tuple[Expr, Expr]:
    """The row and the column of each element; the other way round unless `in_order`."""
    rows, columns = op.iota(shape, 0), op.iota(shape, 1)
    return (rows, columns) if in_order else (columns, rows)


def triangle(x: Letter, y: Letter, extents: Mapping[Letter, Dim], which: str) -> Expr:
    """Where a row is not before a column (the `lower` triangle), or not after it; its axes are in the order of letters.
    `x`: the letter of rows; `y`: of columns."""
    places = _positions((extents[min(x, y)], extents[max(x, y)]), (x < y) == (which == "lower"))
    return op.greater_equal(*places)


def with_diagonals(t: ProductTerm, free: frozenset[Letter]) -> ProductTerm:
    """`t` with the diagonals of matrices, gathered, in place of their products with identity matrices."""
    for mask in [f for f in t.factors if is_identity_mask(f.value)]:
        x, y = mask.letters
        if x not in free and y in free:
            x, y = y, x
        if not any({x, y} <= set(f.letters) for f in t.factors if f is not mask):
            continue
        factors: list[Access] = []
        for f in t.factors:
            if f is mask:
                factors += [f] * (y in free)
                continue
            letters = [x if z == y else z for z in f.letters]
            factors.append(replace(on_diagonals(f.value, letters), divides=f.divides))
        t = replace(t, factors=tuple(factors))
    return t


def of_diagonal(f: Access) -> Expr | None:
    """The matrix of which `f` is the diagonal; None if it is none."""
    if f.value.dtype == "bool" or not f.letters or not f.value.args:
        return None
    letters = [*f.letters, f.letters[-1]]
    shape = (*f.value.shape, f.value.shape[-1])
    for x in postorder((f.value,))[-_MOST_VIEWS:]:
        is_matrix = isinstance(x.annotation, Tensor) and x.annotation.shape == shape and x.dtype == f.value.dtype
        if is_matrix and on_diagonals(x, letters) == replace(f, divides=False):
            return x
    return None


def identity_mask(x: Letter, y: Letter, extents: Mapping[Letter, Dim]) -> Access:
    """The boolean identity matrix, as `is_identity_mask` knows it."""
    first, second = min(x, y), max(x, y)
    return Access(op.equal(*_positions((extents[first], extents[second]), True)), (first, second))


def is_identity_mask(value: Expr) -> bool:
    """Whether `value` is the boolean identity matrix, as `_with_plain_mask` writes it."""
    if value.dtype != "bool" or value.ndim != 2 or value.shape[0] != value.shape[1]:
        return False
    return value is op.equal(*_positions((value.shape[0], value.shape[1]), True))


def _with_plain_mask(f: Access, extents: Mapping[Letter, Dim]) -> Access:
    """`f`; if it is an identity matrix, as `is_identity_mask` knows it."""
    return identity_mask(f.letters[0], f.letters[1], extents) if _is_identity(f.value) else f


@lru_cache(_MOST_KNOWN)
def _is_identity(e: Expr) -> bool:
    """Whether `e` is a boolean identity matrix, however it is written."""
    if e.dtype != "bool" or e.ndim != 2 or e.shape[0] != e.shape[1]:
        return False
    at = indices_of(e)
    try:
        s = Composer().element(e, at)
    except Unsupported:
        return False
    compared = s.args if isinstance(s, Apply) and s.fn == "equal" else ()
    return {index_dim(x, lambda _: "data") for x in compared} == set(at)
