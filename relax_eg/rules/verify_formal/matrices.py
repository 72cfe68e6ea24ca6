"""Linear algebra by its defining equations: sums of words, in which inverses cancel.

Inverses, factors and orthogonal matrices have no index equations, but they have laws. A program of matrices is a sum of
words. A word is a number times a product of matrices. The laws are:

- P A = L U for the factors and the order of rows that `lu(A)` gives, and each triangular system is solved, so the
  solution of A x = b by them is inv(A) b;
- inv(A) A = A inv(A) = I, and Q' Q = Q Q' = I for orthogonal Q, which is square;
- x / rowsum(D) is inv(D) x for diagonal D.

Two sides are the same if their difference vanishes. If all words of a difference end with `inv(Z) v` or with `v`, then
`v` is written as Z inv(Z) v, and the sum of the parts before `inv(Z) v` has to vanish. The same holds for beginnings.
Both sides must be defined: a matrix that only one of them inverts must be known to have an inverse, or be a positive
definite sum.

The laws say nothing about accuracy, so they prove only rules that claim the class "approximate".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from relax_eg.dtypes import is_float
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import TUPLE_GET, Expr, constant_value, postorder
from relax_eg.ops.facts import with_implied
from relax_eg.rules.conditions import claims_of
from relax_eg.rules.rule import Instance
from relax_eg.rules.verify_formal.compose import Composer, Unsupported, index_dim
from relax_eg.rules.verify_formal.guards import Deadline
from relax_eg.tir.expr import Apply, Cast, loop

# Operators whose preconditions are checked here.
OPERATORS = frozenset({"lu", "triangular_solve"})
_DEPTH = 6  # limit: inverses that are removed one after another


@dataclass(frozen=True)
class MatrixAtom:
    """A matrix in a word.

    - `kind`: a pattern variable ("var"), or what the matrix is of a sum of words: its inverse, a triangular factor, or
      the order of rows in its factorisation.
    - `name`: the pattern variable, for kind "var".
    - `of`: for the other kinds, the sum of words.
    - `transposed`: whether the matrix is transposed.
    """

    kind: Literal["var", "inverse", "lower", "upper", "order"]
    name: str = ""
    of: frozenset[tuple[MatrixProduct, Fraction]] = frozenset()
    transposed: bool = False


@dataclass(frozen=True)
class MatrixProduct:
    """A word: a product of numbers and matrices.

    - `scalars`: the names of the numbers.
    - `factors`: the matrices, in order.
    """

    scalars: tuple[str, ...] = ()
    factors: tuple[MatrixAtom, ...] = ()


Words = dict[MatrixProduct, Fraction]
_IDENTITY: Words = {MatrixProduct(): Fraction(1)}


@dataclass(frozen=True)
class MatrixValue:
    """A tensor that is a matrix, or the diagonal of one.

    - `words`: the matrix as a sum of words.
    - `axes`: a letter for each axis of the tensor: "r" for the rows of the matrix, "c" for its columns, "1" for an axis
      of size 1. A vector is a column.
    - `is_diagonal`: whether the tensor is the diagonal of the matrix.
    """

    words: Words
    axes: str
    is_diagonal: bool = False


def same_matrices(instance: Instance, deadline: Deadline) -> bool:
    """Whether the results of both sides are the same matrices, and defined for the same ones."""
    algebra = Algebra(instance, deadline)
    inverted: list[set[frozenset[tuple[MatrixProduct, Fraction]]]] = []
    values: list[list[Words]] = []
    for side in (instance.left, instance.right):
        algebra.inverted = set()
        values.append([algebra.matrix(algebra.value(e)) for e in side])
        inverted.append(algebra.inverted)
    return all(algebra.vanishes(_sum(a, b, -1)) for a, b in zip(*values, strict=True)) and all(
        algebra.is_invertible(dict(z)) for z in inverted[0] ^ inverted[1]
    )


class Algebra:
    """Arithmetic of words under the facts that an instance's conditions require of its variables.

    - `claims`: these facts, by variable.
    - `inverted`: the matrices that were inverted so far.
    """

    def __init__(self, instance: Instance, deadline: Deadline) -> None:
        self.claims = {n: with_implied(f) for n, f in claims_of(instance.guards).items()}
        self.deadline = deadline
        self.inverted: set[frozenset[tuple[MatrixProduct, Fraction]]] = set()
        self._values: dict[Expr, MatrixValue] = {}

    # --- programs as words ---

    def value(self, e: Expr) -> MatrixValue:
        self._values = {}
        for x in postorder((e,)):
            self.deadline.check()
            if x.op not in ("lu", TUPLE_GET) and isinstance(x.annotation, Tensor) and is_float(x.dtype):
                self._values[x] = self._value(x)
        return self._known(e)

    def _known(self, e: Expr) -> MatrixValue:
        if e not in self._values:
            raise Unsupported("a tensor of other than real numbers")
        return self._values[e]

    def _value(self, e: Expr) -> MatrixValue:
        args = [self._values.get(a) for a in e.args]
        match e.op, args:
            case "var", _ if e.ndim <= 2:
                word = (
                    MatrixProduct((str(e.attr("name")),))
                    if e.ndim == 0
                    else MatrixProduct((), (MatrixAtom("var", str(e.attr("name"))),))
                )
                return MatrixValue({word: Fraction(1)}, _axes(e))
            case "constant", _ if e.ndim == 0 and math.isfinite(number := float(constant_value(e))):
                return MatrixValue(_scaled(_IDENTITY, Fraction(number)), "")
            case "astype", _ if _is_identity(e):
                return MatrixValue(_IDENTITY, "rc")
            case (("permute_dims" | "expand_dims" | "squeeze" | "reshape"), [MatrixValue() as x]):
                return MatrixValue(x.words, _moved(e, x.axes), x.is_diagonal)
            case "negative", [MatrixValue(is_diagonal=False) as x]:
                return MatrixValue(_scaled(x.words, Fraction(-1)), x.axes)
            case (("add" | "subtract"), [MatrixValue(is_diagonal=False) as x, MatrixValue(is_diagonal=False) as y]):
                if e.args[0].shape == e.args[1].shape:
                    return MatrixValue(_sum(self._as(x, y.axes), y.words, 1 if e.op == "add" else -1), y.axes)
            case "multiply", [MatrixValue(is_diagonal=False) as x, MatrixValue(is_diagonal=False) as y] if "" in (
                x.axes,
                y.axes,
            ):
                return MatrixValue(self.product(x.words, y.words), x.axes or y.axes)
            case "matmul", [MatrixValue(is_diagonal=False) as x, MatrixValue(is_diagonal=False) as y]:
                return self._matmul(e, x, y)
            case (("sum" | "max"), [MatrixValue(is_diagonal=False) as x]) if e.args[0].ndim == 2 and e.ndim == 1:
                # The largest element of a row is on the diagonal if no element there is negative.
                if self._only(x.words, "diagonal", *["positive_semidefinite"] * (e.op == "max")):
                    return MatrixValue(x.words, "r", True)
            case "divide", [MatrixValue(is_diagonal=False) as x, MatrixValue(is_diagonal=True) as d]:
                if d.axes == ("r" if e.ndim == 1 else "r1") and e.shape == e.args[0].shape:
                    return MatrixValue(self.product(self._inverse(d.words), self.matrix(x)), _axes(e))
            case "take", [MatrixValue(is_diagonal=False) as x, *_]:
                return self._permuted(e, x)
            case "triangular_solve", [_, MatrixValue(is_diagonal=False) as x]:
                return self._solved(e, x)
            case _:
                pass
        raise Unsupported(f"{e.op} is none of matrix algebra")

    def matrix(self, x: MatrixValue) -> Words:
        """Returns the matrix whose rows are the first axis of `x`, or the column that a vector is."""
        if x.is_diagonal:
            raise Unsupported("a diagonal as a vector")
        first, second = f"{x.axes}11"[:2]
        if len(x.axes) > 2 or (first, second) in (("r", "r"), ("c", "c")):
            raise Unsupported("a tensor that is no matrix")
        return x.words if first in "r1" and second in "c1" else self.transposed(x.words)

    def _as(self, x: MatrixValue, axes: str) -> Words:
        if x.axes == axes:
            return x.words
        return self.transposed(x.words) if len(axes) == 2 and x.axes == axes[::-1] else _no_matrix()

    def _matmul(self, e: Expr, x: MatrixValue, y: MatrixValue) -> MatrixValue:
        a, b = self.matrix(x), self.matrix(y)
        if e.dtype != e.args[0].dtype:
            raise Unsupported("a product in another dtype")
        match e.args[0].ndim, e.args[1].ndim:
            case (2, 2) | (2, 1):
                return MatrixValue(self.product(a, b), _axes(e))
            case (1, 2):
                return MatrixValue(self.product(self.transposed(b), a), _axes(e))
            case _:
                raise Unsupported("a product of vectors")

    def _permuted(self, e: Expr, x: MatrixValue) -> MatrixValue:
        """Returns the rows of `x` in the order that an LU factorisation gives."""
        order = e.args[1]
        while order.op == "permute_dims" and order.ndim == 1:
            (order,) = order.args
        made = order.args[0] if order.op == TUPLE_GET and order.attr("index") == 2 else None
        # All indices are in range, so the mode makes no difference.
        if made is None or made.op != "lu" or x.axes[e.attr("axis")] not in "rc":
            raise Unsupported("rows taken")
        atom = MatrixAtom("order", of=self._key(made.args[0]))
        if x.axes[e.attr("axis")] == "r":
            return MatrixValue(self.product({MatrixProduct((), (atom,)): Fraction(1)}, x.words), x.axes)
        found = self.product({MatrixProduct((), (atom,)): Fraction(1)}, self.transposed(x.words))
        return MatrixValue(found, x.axes.translate(str.maketrans("rc", "cr")))

    def _solved(self, e: Expr, x: MatrixValue) -> MatrixValue:
        factors = e.args[0]
        made = factors.args[0] if factors.op == TUPLE_GET and factors.attr("index") == 0 else None
        lower, unit = e.attr("lower"), e.attr("unit_diagonal")
        plain = e.attr("left_side") and not e.attr("transpose_a") and not e.attr("conjugate_a") and lower == unit
        if made is None or made.op != "lu" or not plain:
            raise Unsupported("a triangular system that is no half of another")
        key = self._key(made.args[0])
        self.inverted.add(key)
        atom = MatrixAtom("lower" if lower else "upper", of=key)
        inverse = MatrixAtom("inverse", of=frozenset({(MatrixProduct((), (atom,)), Fraction(1))}))
        return MatrixValue(self.product({MatrixProduct((), (inverse,)): Fraction(1)}, self.matrix(x)), _axes(e))

    def _key(self, e: Expr) -> frozenset[tuple[MatrixProduct, Fraction]]:
        return frozenset(self.matrix(self._known(e)).items())

    def _inverse(self, words: Words) -> Words:
        key = frozenset(words.items())
        self.inverted.add(key)
        return {MatrixProduct((), (MatrixAtom("inverse", of=key),)): Fraction(1)}

    # --- arithmetic ---

    def product(self, a: Words, b: Words) -> Words:
        total: Words = {}
        for v, c in a.items():
            for w, d in b.items():
                _add(total, self._reduced((*v.scalars, *w.scalars), (*v.factors, *w.factors)), c * d)
        return total

    def transposed(self, words: Words) -> Words:
        return {MatrixProduct(w.scalars, tuple(map(self._flipped, reversed(w.factors)))): c for w, c in words.items()}

    def _flipped(self, a: MatrixAtom) -> MatrixAtom:
        if a.kind == "inverse":
            return MatrixAtom("inverse", of=frozenset(self.transposed(dict(a.of)).items()))
        if "symmetric" in self._claims(a):
            return a
        return MatrixAtom(a.kind, a.name, a.of, not a.transposed)

    def _reduced(self, scalars: tuple[str, ...], factors: tuple[MatrixAtom, ...]) -> MatrixProduct:
        done: list[MatrixAtom] = []
        for a in factors:
            done.append(self._known_inverse(a))
            if len(done) > 2 and (solved := _of_factors(*done[-3:])) is not None:
                done[-3:] = [self._known_inverse(solved)]
            if len(done) > 1 and self._cancel(*done[-2:]):
                del done[-2:]
        return MatrixProduct(tuple(sorted(scalars)), tuple(done))

    def _known_inverse(self, a: MatrixAtom) -> MatrixAtom:
        """Returns the transpose for the inverse of an orthogonal matrix, and `a` for any other matrix."""
        inner = _only_atom(dict(a.of)) if a.kind == "inverse" else None
        return self._flipped(inner) if inner is not None and "orthogonal" in self._claims(inner) else a

    def _cancel(self, a: MatrixAtom, b: MatrixAtom) -> bool:
        if "orthogonal" in self._claims(a) and self._flipped(a) == b:
            return True
        return any(x.kind == "inverse" and _only_atom(dict(x.of)) == y for x, y in ((a, b), (b, a)))

    def _claims(self, a: MatrixAtom) -> frozenset[str]:
        return self.claims.get(a.name, frozenset()) if a.kind == "var" else frozenset()

    # --- decisions ---

    def vanishes(self, words: Words, depth: int = _DEPTH) -> bool:
        """Whether the sum `words` is zero wherever its inverses exist."""
        self.deadline.check()
        if not words:
            return True
        return depth > 0 and any(self.vanishes(rest, depth - 1) for rest in self._without_an_inverse(words))

    def _without_an_inverse(self, words: Words) -> Iterator[Words]:
        """Yields sums that vanish only where `words` does."""
        first = min(words, key=repr)
        for k, inverse in enumerate(first.factors):
            if inverse.kind != "inverse":
                continue
            matrix, before, after = dict(inverse.of), first.factors[:k], first.factors[k + 1 :]
            if all(w.factors[len(w.factors) - len(after) :] == after for w in words):
                total: Words = {}
                for w, c in words.items():
                    rest = w.factors[: len(w.factors) - len(after)]
                    by = _IDENTITY if rest[-1:] == (inverse,) else matrix
                    rest = rest[:-1] if by is _IDENTITY else rest
                    total = _sum(total, self.product({MatrixProduct(w.scalars, rest): c}, by))
                yield total
            if all(w.factors[: len(before)] == before for w in words):
                total = {}
                for w, c in words.items():
                    rest = w.factors[len(before) :]
                    by = _IDENTITY if rest[:1] == (inverse,) else matrix
                    rest = rest[1:] if by is _IDENTITY else rest
                    total = _sum(total, self.product(by, {MatrixProduct(w.scalars, rest): c}))
                yield total

    def is_invertible(self, words: Words) -> bool:
        return self._only(words, "invertible") or self.is_definite(words)

    def is_definite(self, words: Words) -> bool:
        """Whether `words` is a sum of positive semidefinite matrices, one of which is definite."""
        known = [self._sign(w) if c > 0 else 0 for w, c in words.items()]
        return 2 in known and 0 not in known

    def _sign(self, w: MatrixProduct) -> int:
        """Returns 2 for a word that is positive definite, 1 for a semidefinite one, 0 if neither is known."""
        claimed = [self.claims.get(s, frozenset()) for s in w.scalars]
        if not all("nonnegative" in c for c in claimed) or list(self.transposed({w: Fraction(1)})) != [w]:
            return 0
        middle = w.factors[len(w.factors) // 2] if len(w.factors) % 2 else None
        if middle is not None and not self._is_definite_atom(middle):
            return 0
        return 2 if len(w.factors) < 2 and all("positive" in c for c in claimed) else 1

    def _is_definite_atom(self, a: MatrixAtom) -> bool:
        if a.kind == "inverse":
            return self.is_definite(dict(a.of))
        return "positive_definite" in self._claims(a)

    def _only(self, words: Words, *facts: str) -> bool:
        atom = _only_atom(words)
        return atom is not None and self._claims(atom).issuperset(facts)


def _of_factors(a: MatrixAtom, b: MatrixAtom, c: MatrixAtom) -> MatrixAtom | None:
    """Returns inv(A) for inv(U) inv(L) P; None for other products."""
    upper, lower = (_only_atom(dict(x.of)) if x.kind == "inverse" else None for x in (a, b))
    if upper is None or lower is None or c.kind != "order" or c.transposed:
        return None
    matches = (upper.kind, lower.kind) == ("upper", "lower") and upper.of == lower.of == c.of
    return MatrixAtom("inverse", of=c.of) if matches and not upper.transposed and not lower.transposed else None


def _only_atom(words: Mapping[MatrixProduct, Fraction]) -> MatrixAtom | None:
    """Returns the matrix of a sum of words that is a single matrix; None for any other sum."""
    if len(words) != 1:
        return None
    ((w, c),) = words.items()
    return w.factors[0] if c == 1 and not w.scalars and len(w.factors) == 1 else None


def _is_identity(e: Expr) -> bool:
    """Whether element i, j of `e` is 1 if i is j, and 0 elsewhere."""
    if e.ndim != 2 or e.shape[0] is not e.shape[1]:
        return False
    i, j = loop("i"), loop("j")
    s = Composer().element(e, (i, j))
    if not isinstance(s, Cast) or not isinstance(s.arg, Apply) or s.arg.fn != "equal":
        return False
    a, b = (index_dim(x, lambda _: "data") for x in s.arg.args)
    return a is not None and b is not None and {a, b} == {i, j}


def _axes(e: Expr) -> str:
    labels = ("r", "c") if e.ndim == 2 else ("r",) * e.ndim
    return "".join("1" if n == 1 else a for a, n in zip(labels, e.shape, strict=True))


def _moved(e: Expr, axes: str) -> str:
    """Returns the letters of the axes of `e`, which rearranges the axes of its operand."""
    if e.op == "permute_dims":
        return "".join(axes[p] for p in e.attr("axes"))
    kept = iter([a for a in axes if a != "1"])
    sizes = [n for n, a in zip(e.args[0].shape, axes, strict=True) if a != "1"]
    if sizes != [n for n in e.shape if n != 1]:
        raise Unsupported("a reshape that is more than axes of size 1")
    return "".join("1" if n == 1 else next(kept) for n in e.shape)


def _no_matrix() -> Words:
    raise Unsupported("a sum of a matrix and something else")


def _add(total: Words, w: MatrixProduct, c: Fraction) -> None:
    total[w] = total.get(w, Fraction(0)) + c
    if not total[w]:
        del total[w]


def _sum(a: Words, b: Words, sign: int = 1) -> Words:
    total = dict(a)
    for w, c in b.items():
        _add(total, w, sign * c)
    return total


def _scaled(a: Words, by: Fraction) -> Words:
    return {w: c * by for w, c in a.items()} if by else {}
