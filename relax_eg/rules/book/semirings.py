"""Sums of products in other semirings: largest sums, smallest sums, and whether conditions hold together.

An identity of sums of products that needs no subtraction holds in every commutative semiring. So an expression of
another semiring is translated to sums of products of numbers, for which `sum_products` plans and proves other forms,
and these forms are translated back. In the semirings here a value added to itself is itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value, rebuild, var
from relax_eg.ops import api as op
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import call, movement_operators
from relax_eg.rules.book.sum_products import Price, forms_of
from relax_eg.rules.checking.value_trials import sums_in_semirings
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema
from relax_eg.rules.sums_of_products.region import region_of
from relax_eg.traversal import made_from_below

_NUMBERS = "float32"  # chosen: dtype of the sums of products to which conditions are translated
_MOST_NODES = 64  # limit: operators that are translated
_MOVED = movement_operators("view", "repeat", "order", "part")
_JOINED = movement_operators("join")


class _NoTranslation(Exception):
    """Raised for an operator of numbers that the semiring has not."""


@dataclass(frozen=True, slots=True)
class _Semiring:
    """A commutative semiring whose addition is idempotent.

    - `add`, `times`: the operators of its addition and multiplication.
    - `total`: the reduction by its addition.
    - `zero`, `one`: the values that are neutral for its addition and multiplication.
    """

    add: str
    total: str
    times: str
    zero: float | bool
    one: float | bool

    @property
    def of_conditions(self) -> bool:
        return isinstance(self.zero, bool)

    def has(self, e: Expr) -> bool:
        """Whether the semiring is one of values of this dtype."""
        return is_known_tensor(e) and (e.dtype == "bool" if self.of_conditions else is_float(e.dtype))

    def price(self, queries: ProgramQueries) -> Price:
        """The price of a step: only conditions are contracted by matmuls."""
        return lambda flops, moved, contracts: queries.seconds(flops, moved, contracts and self.of_conditions)

    def operands(self, e: Expr) -> tuple[Expr, ...]:
        """The operands of `e` that are values of the semiring if `e` adds, multiplies or moves such values; else
        none."""
        if not self.has(e):
            return ()
        moves = e.op in _JOINED or ((e.op in _MOVED or e.op == self.total) and len(e.args) == 1)
        return e.args if moves or e.op in (self.add, self.times) else ()

    def is_root(self, e: Expr, queries: ProgramQueries) -> bool:
        """Whether `e` adds, and no reader of it belongs to a larger sum of products."""
        if e.op not in (self.add, self.total) or not self.has(e):
            return False
        x = e
        while len(readers := queries.readers(x)) == 1 and x in self.operands(readers[0]):
            (x,) = readers
            if x.op in (self.add, self.total):
                return False
        return True


_SEMIRINGS = (
    _Semiring("maximum", "max", "add", -math.inf, 0.0),
    _Semiring("minimum", "min", "add", math.inf, 0.0),
    _Semiring("maximum", "max", "minimum", -math.inf, math.inf),
    _Semiring("minimum", "min", "maximum", math.inf, -math.inf),
    _Semiring("logical_or", "any", "logical_and", False, True),
    _Semiring("logical_and", "all", "logical_or", True, False),
)


def same_sum_in_semiring(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """what is equal of sums of products is equal of largest and smallest sums and of conditions"""
    found: dict[Expr, None] = {}
    for s in _SEMIRINGS:
        if not s.is_root(e, queries):
            continue
        there = _Numbers(s)
        region = region_of(there.translated(e), lambda x: False)
        if region is None or not region.may_gain:
            continue
        back = {made: x for x, made in there.leaves.items()}
        for form in forms_of(region, queries, s.price(queries)):
            try:
                made = _translated_back(form, back, s)
            except (_NoTranslation, RelaxEgError):
                continue
            if made is not e and made.annotation == e.annotation:
                found[made] = None
    return tuple(found) or None


@dataclass
class _Numbers:
    """Translates values of a semiring to sums of products of numbers.

    - `leaves`: by value that the semiring's operators do not make, the variable for it.
    """

    semiring: _Semiring
    leaves: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])
    _done: dict[Expr, Expr] = field(default_factory=dict[Expr, Expr])

    def translated(self, root: Expr) -> Expr:
        def operands(e: Expr) -> Sequence[Expr]:
            return self.semiring.operands(e) if len(self._done) < _MOST_NODES else ()

        return made_from_below(
            root, operands, lambda e: self._made(e, tuple(self._done[a] for a in operands(e))), self._done
        )

    def _made(self, e: Expr, operands: tuple[Expr, ...]) -> Expr:
        if not operands:
            dtype = _NUMBERS if e.dtype == "bool" else e.dtype
            return self.leaves.setdefault(e, var(f"value {len(self.leaves)}", Tensor(e.shape, dtype)))
        if e.op == self.semiring.add:
            return op.add(*operands)
        if e.op == self.semiring.times:
            return op.multiply(*operands)
        return call("sum" if e.op == self.semiring.total else e.op, operands, dict(e.attrs))


def _translated_back(root: Expr, leaves: dict[Expr, Expr], s: _Semiring) -> Expr:
    """The value of the semiring for a sum of products. Raises _NoTranslation."""

    def translated(e: Expr, made: tuple[Expr, ...]) -> Expr:
        if e.op == CONSTANT and not e.ndim:
            return _number(e, s)
        if e.op in ("add", "multiply"):
            return call(s.add if e.op == "add" else s.times, made, {})
        if e.op == "sum":
            return call(s.total, made, dict(e.attrs))
        if e.op == "matmul":
            return _product(made[0], made[1], s)
        if e.op in _JOINED or (e.op in _MOVED and len(e.args) == 1):
            return call(e.op, made, dict(e.attrs))
        raise _NoTranslation(e.op)

    return rebuild([root], translated, leaves)[0]


def _number(e: Expr, s: _Semiring) -> Expr:
    """A number of terms: a value that is added to itself is itself."""
    value = constant_value(e).item()
    if value < 0 or value != int(value):
        raise _NoTranslation(str(value))
    return const(s.one if value else s.zero, "bool" if s.of_conditions else e.dtype)


def _product(a: Expr, b: Expr, s: _Semiring) -> Expr:
    """The product of two matrices, or of a matrix and a vector."""
    if s.of_conditions:
        # As many conditions hold together as the product of the numbers says; of (and, or), as many do not.
        x, y = (op.astype(op.logical_not(m) if s.zero else m, _NUMBERS) for m in (a, b))
        met = op.greater(op.matmul(x, y), const(0.0, _NUMBERS))
        return op.logical_not(met) if s.zero else met
    if b.ndim > 1:
        a = op.expand_dims(a, a.ndim)
        b = b if a.ndim == 2 else op.expand_dims(b, b.ndim - 2)
    axis = -1 if b.ndim == 1 else -2
    terms = call(s.times, (a, b), {})
    return call(s.total, (terms,), {"axes": (terms.ndim + axis,), "keepdims": False})


semirings = RuleSet(
    "semirings",
    schemas=(
        schema(
            same_sum_in_semiring,
            "reassociate",
            ("sum_products",),
            (x for s in _SEMIRINGS for x in (s.add, s.total)),
            (sums_in_semirings,),
        ),
    ),
)
