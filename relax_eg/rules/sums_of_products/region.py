"""Regions: expressions whose index equations are sums of products of elements of their leaves.

Whether an operator belongs to a region follows from its index equations alone, so operators are not listed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from relax_eg.dtypes import dtype_of, has_short_range, is_float, kind
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, constant_value
from relax_eg.ops.record import TABLE, movement_operators, program_of, site_of
from relax_eg.rules.checking.samples import LARGEST_SHIFT
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, walk
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.traversal import reached

MOST_TERMS = 6  # limit: terms of a region; planning takes time exponential in it
# limit: factors of a term, and of one that is alone; planning several takes time exponential in their factors
MOST_FACTORS, MOST_ALONE = 6, 16
_MOST_NODES = 64  # limit: operators of a region
_MOST_KNOWN = 1 << 14  # limit: expressions whose terms and divisors are kept

_MOST_VIEWS = 4  # limit: operators between a number, or a sum, and its use
_PARTS = movement_operators("part", "select", "join")
_UNMOVED = movement_operators("view", "repeat")
_ORDERED = movement_operators("order")
_VIEWS = _UNMOVED | _ORDERED

_SUMS = frozenset(("add", "subtract"))
# The functions of which sums of products are made.
ARITHMETIC = _SUMS | {"negative", "multiply", "square", "divide"}
COMPARISONS = frozenset(name for name, f in FUNCTIONS.items() if f.result == "bool" and f.arity == 2)
_SCALES = frozenset(("multiply", "square", "divide"))
_CONNECTIVES = frozenset(("bitwise_and", "bitwise_or", "bitwise_not"))

# The operands, by number, of which a term of an operator's equation multiplies elements.
_Product = tuple[int, ...]
# The leaves of which a term multiplies elements.
Product = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """An expression that is a sum of products.

    - `root`: the expression.
    - `nodes`: its operators.
    - `leaves`: expressions whose elements it multiplies, or compares with positions.
    - `products`: for each term, before equal terms are collected, the leaves it multiplies.
    - `work`: number of its operators that multiply, negate, sum over axes, or take a part of a tensor.
    - `reduces`: whether one of its operators sums over axes, or takes or joins parts of tensors.
    - `has_conditions`: whether it compares positions, as an identity matrix does, or selects by truth values.
    """

    root: Expr
    nodes: tuple[Expr, ...]
    leaves: tuple[Expr, ...]
    products: tuple[Product, ...]
    work: int
    reduces: bool
    has_conditions: bool

    @property
    def may_gain(self) -> bool:
        """Whether it may have another form that costs less. A plain product, and a sum of plain products without a
        common factor, has none. Without a sum over axes, other orders of a product cost the same: a tensor as large as
        the result must be read twice, or no tensor but one, or a condition, which several steps may come to."""
        leaves = [x for p in self.products for x in p]
        if self.root.dtype == "bool":
            return True
        if not self.reduces:
            if self.has_conditions and sum(map(self._steps, self.nodes)) > 1:
                return True
            operands = [a for e in self.nodes for a in e.args if a in self.leaves and a.shape == self.root.shape]
            return len(set(operands)) < len(operands) or (len(set(leaves)) < 2 and self.work > 1)
        if self.has_conditions or any(len(p) > 2 for p in self.products) or len(set(leaves)) < len(leaves):
            return True
        if self.work <= 1:
            # XLA writes out the transpose of a matrix that is multiplied with a vector.
            return any(e.op in _ORDERED for e in self.nodes) and any(a.ndim == 1 for e in self.nodes for a in e.args)
        return self.work > sum(len(p) == 2 for p in self.products)

    def _steps(self, e: Expr) -> bool:
        """Whether a node is more than a condition, a position, a number or a view that costs nothing."""
        return e.dtype == self.root.dtype and bool(e.args) and e.op not in _UNMOVED and not _is_number(e)


@dataclass
class _Grower:
    """Grows the region of a root. `is_cut`, `unrounded`: as in `region_of`."""

    is_cut: Callable[[Expr], bool]
    unrounded: bool
    leaves: dict[Expr, None] = field(default_factory=dict[Expr, None])
    nodes: dict[Expr, tuple[Product, ...]] = field(default_factory=dict[Expr, tuple[Product, ...]])

    def products(self, e: Expr, is_root: bool = False) -> tuple[Product, ...]:
        """The terms of `e`; those of a leaf are the leaf itself."""
        if e in self.nodes:
            return self.nodes[e]
        terms = None
        if len(self.nodes) < _MOST_NODES and (is_root or not self.is_cut(e)):
            terms = ((0,),) if self.unrounded and widens(e) else terms_of(e)
        if terms is None:
            return self._leaf(e)
        self.nodes[e] = ((e,),)  # counts as a node while its operands are visited
        read = {i for t in terms for i in t}
        cut = divisors_of(e)
        # What zeros multiply has no terms, and may be anything.
        hidden = {i for i, a in enumerate(e.args) if not terms and not _is_number(a)}
        parts = [
            self._leaf(a) if i in hidden else self._divisor(a) if i in cut
            else self.products(a) if i in read else self._positions(a)
            for i, a in enumerate(e.args)
        ]  # fmt: skip
        while (made := _multiplied(terms, parts)) is None:
            largest = max(range(len(parts)), key=lambda i: (len(parts[i]) * max(map(len, parts[i]), default=0), -i))
            if parts[largest] == ((e.args[largest],),):
                return self._leaf(e)
            parts[largest] = self._leaf(e.args[largest])
        self.nodes[e] = made
        return made

    def _positions(self, e: Expr) -> tuple[Product, ...]:
        """Visits an operand whose elements are compared, or are positions: it is no factor."""
        if e not in self.nodes:
            if len(self.nodes) >= _MOST_NODES or terms_of(e, is_position=True) is None:
                return self._leaf(e)
            self.nodes[e] = ((),)
            for a in e.args:
                self._positions(a)
        return ((),)

    def _divisor(self, e: Expr) -> tuple[Product, ...]:
        """The leaf of which `e`, an operand by which is divided, is a view."""
        inner = e
        while inner not in self.nodes and is_view(inner):
            self.nodes[inner] = ((),)
            inner = inner.args[0]
        made = self._leaf(inner)
        while e is not inner:
            self.nodes[e] = made
            e = e.args[0]
        return made

    def _leaf(self, e: Expr) -> tuple[Product, ...]:
        self.leaves[e] = None
        self.nodes[e] = ((e,),)
        return self.nodes[e]


def region_of(root: Expr, is_cut: Callable[[Expr], bool], unrounded: bool = False) -> Region | None:
    """The region that ends in `root`, or None if the operator of `root` does not add or multiply. O(operators of the
    region), which are bounded.

    - `is_cut`: holds for operands that are leaves although their operators could belong.
    - `unrounded`: whether it goes through conversions of sums in a narrower float (`widens`), which are not rounded
      to that float in other forms of the region.
    """
    if terms_of(root) is None:
        return None
    grower = _Grower(is_cut, unrounded)
    products = grower.products(root, is_root=True)
    if root in grower.leaves:
        return None
    # Leaves that were cut after their operands had been visited hide these.
    cut = set(grower.leaves)
    found = reached((root,), lambda e: () if e in cut else e.args[::-1])
    leaves, inside = tuple(e for e in found if e in cut), [e for e in found if e not in cut]
    work, reduces = sum(map(_works, inside)), any(map(_takes_several, inside))
    has_conditions = any(e.dtype == "bool" for e in (*inside, *leaves))
    return Region(root, tuple(inside), leaves, products, work, reduces, has_conditions)


def _multiplied(terms: Sequence[_Product], parts: Sequence[tuple[Product, ...]]) -> tuple[Product, ...] | None:
    """The terms of an operator over operands with the terms `parts`; None if they are more than the limits allow."""
    count = sum(math.prod(len(parts[i]) for i in t) for t in terms)
    if count > MOST_TERMS:
        return None
    found: list[Product] = []
    for t in terms:
        for chosen in itertools.product(*(parts[i] for i in t)):
            found.append(tuple(itertools.chain.from_iterable(chosen)))
    return None if any(len(p) > (MOST_ALONE if len(found) == 1 else MOST_FACTORS) for p in found) else tuple(found)


def _works(e: Expr) -> bool:
    """Whether `e` multiplies, negates, sums over axes, or takes a part of a tensor."""
    if e.op in _PARTS:
        return True
    made = program_of(site_of(e)) if e.op in TABLE else None
    return made is not None and any(
        isinstance(s, Reduce) or (isinstance(s, Apply) and s.fn in ARITHMETIC - _SUMS)
        for stage in made.stages
        for s in walk(stage.value)
    )


def _takes_several(e: Expr) -> bool:
    return e.op in _PARTS or sums(e)


def sums(e: Expr) -> bool:
    """Whether `e` sums over axes."""
    made = program_of(site_of(e)) if e.op in TABLE else None
    return made is not None and any(isinstance(s, Reduce) for stage in made.stages for s in walk(stage.value))


def widens(e: Expr) -> bool:
    """Whether `e` converts what sums of products make up, in a narrower float, to a wider one."""
    if e.op != "astype" or e.args[0].dtype == e.dtype or not (is_float(e.dtype) and is_float(e.args[0].dtype)):
        return False
    return dtype_of(e.dtype).contains(dtype_of(e.args[0].dtype)) and _has_sums(e.args[0], _MOST_VIEWS)


def _has_sums(e: Expr, depth: int) -> bool:
    """Whether `e` sums over axes, or adds up, masks or is a view of at most `depth` operators of which one does."""
    if depth == 0 or terms_of(e) is None:
        return False
    return sums(e) or ((e.op in (*_SUMS, "where") or is_view(e)) and any(_has_sums(a, depth - 1) for a in e.args))


def keeps_range(e: Expr) -> bool:
    """Whether `e` scales values in a float of short range, so that a sum over these stays in range."""
    return e.op in _SCALES and has_short_range(e.dtype)


@lru_cache(_MOST_KNOWN)
def terms_of(e: Expr, is_position: bool = False) -> tuple[_Product, ...] | None:
    """The terms of the index equation of `e`, each as the operands that it multiplies; None if `e` is no sum of
    products. A boolean condition on positions, and an integer position, is a term without factors.

    A choice between two values is none, unless it is a position: as a sum of masked values it would take more."""
    if e.op == CONSTANT:
        return ((),) if e.ndim == 0 else None
    if e.op not in TABLE or not isinstance(e.annotation, Tensor):
        return None
    if any(isinstance(x.annotation, Tensor) and x.annotation.shape is None for x in (e, *e.args)):
        return None
    if TABLE[e.op].kernel == "conv":
        return None  # a sum of products over windows, which no plan here computes
    if dict(e.attrs).get("precision") is not None or dict(e.attrs).get("out_dtype") not in (None, e.dtype):
        return None  # index equations do not mention the precision of a product
    made = program_of(site_of(e))
    if made is None or len(made.stages) != 1 or len(made.outputs) != 1:
        return None
    numbers = {b.name: i for i, b in enumerate(made.inputs)}
    value = made.stages[0].value
    if e.dtype == "bool":
        return ((),) if _is_condition(value) else None
    if not is_position and isinstance(value, Select) and _reads(value.cond):
        then, other = (_number(e.args[numbers[x.buffer]]) if isinstance(x, Read) else None for x in value.children[1:])
        if not any(x is not None and x.op == CONSTANT and not constant_value(x) for x in (then, other)):
            return None
    if is_float(e.dtype) and any(_hides_digits(a) for i, a in enumerate(e.args) if e.op != "divide" or not i):
        return None  # masks: scores + (1 - mask) * -1e9 is no sum whose terms may be taken apart
    return _terms(value, {n: _terms_of_operand(i, e.args[i]) for n, i in numbers.items()})


def _hides_digits(e: Expr) -> bool:
    """Whether `e` is a number so large that it stands for infinity."""
    number = _number(e)
    return (
        number is not None and number.op == CONSTANT and LARGEST_SHIFT < abs(float(constant_value(number))) < math.inf
    )


def _terms_of_operand(i: int, e: Expr) -> tuple[_Product, ...]:
    """The terms of operand `i`, `e`: none for zeros, one without factors for another number."""
    number = _number(e)
    if number is None:
        return ((i,),)
    return () if number.op == CONSTANT and not constant_value(number) else ((),)


@lru_cache(_MOST_KNOWN)
def divisors_of(e: Expr) -> frozenset[int]:
    """The operands by which `e` divides, except numbers. They are leaves, since a quotient is no sum of products."""
    made = program_of(site_of(e)) if e.op in TABLE else None
    if made is None:
        return frozenset()
    numbers = {b.name: i for i, b in enumerate(made.inputs)}
    below = (s.args[1] for stage in made.stages for s in walk(stage.value) if isinstance(s, Apply) and s.fn == "divide")
    found = {numbers[t.buffer] for d in below for t in walk(d) if isinstance(t, Read)}
    return frozenset(i for i in found if not _is_number(e.args[i]))


def is_view(e: Expr) -> bool:
    """Whether each element of `e` is one of its only operand."""
    return e.op in _VIEWS and terms_of(e) == ((0,),)


def _is_number(e: Expr) -> bool:
    """Whether `e` is a number or a size, in whatever shape."""
    return _number(e) is not None


def _number(e: Expr) -> Expr | None:
    """The number or size that is each element of `e`; None if elements may differ."""
    for _ in range(_MOST_VIEWS):
        if e.op == CONSTANT:
            return e if e.ndim == 0 else None
        if len(e.args) != 1:
            return e if e.op == "dim_value" else None
        if e.op not in _VIEWS and e.op not in ("astype", "full"):
            return None
        (e,) = e.args
    return None


def _terms(s: Scalar, operands: dict[str, tuple[_Product, ...]]) -> tuple[_Product, ...] | None:
    if isinstance(s, Const):
        return () if s.value == 0 else ((),)
    if isinstance(s, Index):
        return ((),)
    if isinstance(s, Read):
        if s.dtype == "bool":
            return None
        return operands[s.buffer]
    if isinstance(s, Reduce):
        return _terms(s.body, operands) if s.kind == "sum" else None
    if isinstance(s, Cast):
        if s.arg.dtype == "bool":
            return ((),) if _is_condition(s.arg) else None
        return ((),) if not _reads(s.arg) else _terms(s.arg, operands) if s.arg.dtype == s.dtype else None
    if isinstance(s, Select):
        then, other = _terms(s.then, operands), _terms(s.other, operands)
        return None if then is None or other is None or not _is_condition(s.cond) else (*then, *other)
    assert isinstance(s, Apply)
    parts = [_terms(a, operands) for a in s.args]
    first = parts[0]
    if first is None or None in parts[1:]:
        return None
    if s.fn in _SUMS:
        return (*first, *(parts[1] or ()))
    if s.fn == "negative":
        return first
    if s.fn in ("multiply", "square"):
        second = parts[1] if s.fn == "multiply" else first
        return tuple((*p, *q) for p in first for q in second or ())
    if s.fn == "divide" and isinstance(s.args[1], (Const, Read, Index)):
        return tuple((*p, *q) for p in first for q in parts[1] or ())
    return None


def _is_condition(s: Scalar) -> bool:
    """Whether `s` compares positions and integers, so that it has no rounding error."""
    if isinstance(s, (Const, Read)):
        return s.dtype == "bool"
    if isinstance(s, Apply) and s.fn in COMPARISONS:
        return all(kind(a.dtype) in "iu" for a in s.args)
    if isinstance(s, Apply) and s.fn in _CONNECTIVES and s.dtype == "bool":
        return all(_is_condition(a) for a in s.args)
    return isinstance(s, Select) and all(_is_condition(x) for x in (s.cond, s.then, s.other))


def _reads(s: Scalar) -> bool:
    return any(isinstance(t, Read) for t in walk(s))
