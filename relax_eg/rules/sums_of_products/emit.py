"""Writes a plan with operators: plain matmuls before batched ones, these before multiplying and summing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from relax_eg.dtypes import kind
from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, const, constant_value
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call, program_of, site_of
from relax_eg.rules.sums_of_products.accesses import Access, Letter, Target, aligned
from relax_eg.rules.sums_of_products.letters import SumOfProducts
from relax_eg.rules.sums_of_products.nodes import Node, Running, Scale
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Reduce

# chosen: how many times as long a transposition takes that moves the last axis, in which memory is contiguous
_LAST_AXIS = 8.0


@dataclass
class Emitter:
    """Writes the plans of one sum of products. `extent`: the number for a size, by which layouts are chosen."""

    target: SumOfProducts
    extents: dict[Letter, Dim]
    extent: Callable[[Dim], int]
    _made: dict[int, Access] = field(default_factory=dict[int, Access])

    def expression(self, plan: Node | None) -> Expr:
        """The expression that a plan stands for; without a plan, zeros."""
        shape, dtype = self.target.shape, self.target.dtype
        if plan is None:
            return op.zeros(shape, dtype)
        order = [x for axis in self.target.result for x in axis]
        made = _inverted(_as_number(self._emit(plan, order), dtype))
        value = aligned(made, order)
        sizes = [self.extents[x] if x in made.letters else Dim.of(1) for x in order]
        merged = [math.prod((n for x, n in zip(order, sizes, strict=True) if x in axis), start=Dim.of(1))
                  for axis in self.target.result]  # fmt: skip
        if any(len(axis) > 1 for axis in self.target.result):
            full = tuple(self.extents[x] for x in order)
            value = op.reshape(value if value.shape == full else op.broadcast_to(value, full), shape)
        elif value.shape != shape:
            value = (
                op.expand_dims(value, list(range(len(shape) - value.ndim)))
                if not made.letters
                else op.reshape(value, merged)
            )
        return value if value.shape == shape else op.broadcast_to(value, shape)

    def _emit(self, node: Node, want: Sequence[Letter] = ()) -> Access:
        if id(node) not in self._made:
            self._made[id(node)] = self._anew(node, want)
        return self._made[id(node)]

    def _anew(self, node: Node, want: Sequence[Letter]) -> Access:
        dtype = self.target.dtype
        if node.kind == "leaf":
            if node.access is None:
                return Access(const(1, dtype), ())
            return node.access
        if node.kind == "total":
            return self._total(node, want)
        if node.along is not None:
            return self._running(_inverted(_as_number(self._emit(node.parts[0]), dtype)), node.along)
        if node.target is not None:
            return self._scattered(_inverted(_as_number(self._emit(node.parts[0]), dtype)), node.target)
        if len(node.parts) == 1:
            part = _inverted(_as_number(self._emit(node.parts[0], want), dtype))
            axes = [i for i, x in enumerate(part.letters) if x not in node.letters]
            return Access(op.sum(part.value, axes), tuple(x for x in part.letters if x in node.letters))
        a, b = (self._emit(p, want) for p in node.parts)
        contracted = [x for x in a.letters if x not in node.letters]
        if not contracted:
            return self._multiplied(a, b, node, want)
        a, b = (_inverted(_as_number(x, dtype)) for x in (a, b))
        return self._contracted(a, b, contracted, want)

    # --- sums ---

    def _running(self, x: Access, along: Running) -> Access:
        axis, value = x.letters.index(along.summed), x.value
        if (along.low, along.high) != (0, 0):
            widths = [(along.low, along.high) if i == axis else (0, 0) for i in range(value.ndim)]
            value = op.pad(value, widths, const(0, value.dtype))
        value = op.cumsum(value, axis, along.reverse)
        if value.shape[axis] != along.extent:
            begin = [along.skipped if i == axis else 0 for i in range(value.ndim)]
            end = [along.skipped + along.extent if i == axis else n for i, n in enumerate(value.shape)]
            value = op.strided_slice(value, begin, end)
        return Access(value, tuple(along.place if y == along.summed else y for y in x.letters))

    def _total(self, node: Node, want: Sequence[Letter]) -> Access:
        parts = [_inverted(_as_number(self._emit(p, want), self.target.dtype)) for p in node.parts]
        if len(parts) == 1:
            return Access(self._scaled(parts[0].value, node.scales[0]), parts[0].letters)
        letters = self._order(node.letters, parts, want)
        value: Expr | None = None
        for p, s in zip(parts, node.scales, strict=True):
            x = aligned(p, letters)
            if value is None:
                value = op.negative(x) if s.number < 0 else x
            else:
                value = op.subtract(value, x) if s.number < 0 else op.add(value, x)
        assert value is not None
        return Access(value, tuple(letters))

    def _scaled(self, value: Expr, scale: Scale) -> Expr:
        dtype = value.dtype
        number = scale.number
        if not _is_power_of_two(number.denominator):  # the number is none of the dtype
            above = number.numerator if _is_power_of_two(abs(number.numerator)) else 1
            value = op.divide(value, _constant(Fraction(number.denominator, above), dtype))
            number = Fraction(number.numerator, above)
        if number == -1:
            value = op.negative(value)
        elif number != 1:
            value = op.multiply(value, _constant(number, dtype))
        for d in scale.sizes:
            value = op.multiply(value, _size(d, dtype))
        for d in scale.divisors:
            value = op.divide(value, _size(d, dtype))
        return value

    def _scattered(self, x: Access, target: Target) -> Access:
        """The sums of elements of `x` over the places where the index of `target` is each position."""
        places = target.index.letters
        rest = [y for y in x.letters if y not in places]
        shape = tuple(self.extents[y] for y in (*places, *rest))
        updates = aligned(x, [*places, *rest])
        value = call(
            "scatter",
            (
                op.zeros((self.extents[target.letter], *shape[len(places) :]), updates.dtype),
                op.expand_dims(target.index.value, len(places)),
                updates if updates.shape == shape else op.broadcast_to(updates, shape),
            ),
            {
                "kind": "add",
                "mode": "fill",
                "update_window_dims": tuple(range(len(places), len(shape))),
                "inserted_window_dims": (0,),
                "scatter_dims_to_operand_dims": (0,),
            },
        )
        return Access(value, (target.letter, *rest))

    # --- products ---

    def _multiplied(self, a: Access, b: Access, node: Node, want: Sequence[Letter]) -> Access:
        letters = self._order(node.letters, (a, b), want)
        if a.divides or b.divides:
            return self._divided(a, b, letters)
        masks = [x for x in (a, b) if x.value.dtype == "bool"]
        if len(masks) == 2:
            return Access(op.logical_and(aligned(a, letters), aligned(b, letters)), tuple(letters))
        if masks:
            (number,) = [x for x in (a, b) if x is not masks[0]]
            zero = const(0, number.value.dtype)
            return Access(op.where(aligned(masks[0], letters), aligned(number, letters), zero), tuple(letters))
        if list(a.letters) != [x for x in letters if x in a.letters]:
            a, b = b, a  # XLA's loop follows the first factor, which should not be transposed
        return Access(op.multiply(aligned(a, letters), aligned(b, letters)), tuple(letters))

    def _divided(self, a: Access, b: Access, letters: Sequence[Letter]) -> Access:
        a, b = (_as_number(x, self.target.dtype) for x in (a, b))
        x, y = aligned(a, letters), aligned(b, letters)
        if a.divides and b.divides:
            return Access(op.multiply(x, y), tuple(letters), True)
        return Access(op.divide(y, x) if a.divides else op.divide(x, y), tuple(letters))

    def _order(self, letters: frozenset[Letter], parts: Sequence[Access], want: Sequence[Letter]) -> list[Letter]:
        """The letters in the order in which most is as it lies: that of the result, else of the largest part, and of
        several largest that of a product."""
        if all(x in want for x in letters):
            return [x for x in want if x in letters]
        first = max(parts, key=lambda p: (len(p.letters), _is_product(p))).letters
        return [*(x for x in first if x in letters), *sorted(x for x in letters if x not in first)]

    def _contracted(self, a: Access, b: Access, contracted: list[Letter], want: Sequence[Letter]) -> Access:
        for x, y in ((a, b), (b, a)):
            if x.letters == tuple(contracted) == y.letters[-2:-1]:
                # numpy's matmul takes a vector times a batch of matrices as they lie.
                return Access(op.matmul(x.value, y.value), tuple(z for z in y.letters if z not in contracted))
        batch = [x for x in a.letters if x in b.letters and x not in contracted]
        a, b, summed = self._layout(a, b, contracted, batch, want)
        batch = [x for x in a.letters if x in batch]
        own_a = [x for x in a.letters if x not in batch and x not in contracted]
        own_b = [x for x in b.letters if x not in batch and x not in contracted]
        if not own_a and not own_b and (batch or len(contracted) > 1):
            return self._multiplied_and_summed(a, b, batch)
        left = self._laid_out(a, [batch, own_a, summed], [len(batch) > 0 or not own_a, False, True])
        right = self._laid_out(b, [batch, summed, own_b], [len(batch) > 0, True, True])
        result = [*batch, *own_a, *own_b]
        if batch:
            # A batched matmul needs both matrix axes.
            left = left if own_a else op.expand_dims(left, left.ndim - 1)
            right = right if own_b else op.expand_dims(right, right.ndim)
        value = op.matmul(left, right)
        if batch:
            drop = [i for i, there in ((value.ndim - 2, own_a), (value.ndim - 1, own_b)) if not there]
            value = op.squeeze(value, drop) if drop else value
        shape = tuple(self.extents[x] for x in result)
        return Access(value if value.shape == shape else op.reshape(value, shape), tuple(result))

    def _multiplied_and_summed(self, a: Access, b: Access, kept: Sequence[Letter]) -> Access:
        """The sum of a * b over all letters but `kept`; a and b have the same letters. One operand stays as it lies: a
        product, else one whose last axes are summed. XLA's loop follows the first factor, so that operand is first."""

        def preferred(x: Access) -> tuple[bool, bool]:
            return _is_product(x), set(x.letters[: len(kept)]) == set(kept)

        a, b = (b, a) if preferred(b) > preferred(a) else (a, b)
        axes = [i for i, x in enumerate(a.letters) if x not in kept]
        value = op.sum(op.multiply(a.value, aligned(b, a.letters)), axes)
        return Access(value, tuple(x for x in a.letters if x in kept))

    def _laid_out(self, x: Access, groups: Sequence[list[Letter]], merges: Sequence[bool]) -> Expr:
        """`x` with its axes in the order of `groups`; the axes of a group that `merges` are one axis. Batch axes, the
        first group, stay apart."""
        order = [x.letters.index(y) for g in groups for y in g]
        value = x.value if order == sorted(order) else op.permute_dims(x.value, order)
        shape: list[Dim] = []
        for i, (g, merged) in enumerate(zip(groups, merges, strict=True)):
            sizes = [self.extents[y] for y in g]
            if i == 0 and len(groups[0]) and merges[0]:
                shape += sizes
            elif (merged or (i == 1 and merges[0])) and len(sizes) > 1:
                shape.append(math.prod(sizes, start=Dim.of(1)))
            else:
                shape += sizes
        return value if tuple(shape) == value.shape else op.reshape(value, shape)

    def _layout(
        self, a: Access, b: Access, contracted: list[Letter], batch: list[Letter], want: Sequence[Letter]
    ) -> tuple[Access, Access, list[Letter]]:
        """The operands of a matmul and the contracted letters, in the orders for which the least is transposed; of
        these that whose result lies as wanted."""

        def own(x: Access) -> list[Letter]:
            return [z for z in x.letters if z not in contracted and z not in batch]

        def moved(x: Access, *groups: Sequence[Letter]) -> float:
            order = [z for g in groups for z in g]
            if order == [*x.letters]:
                return 0.0
            elements = math.prod(float(self.extent(self.extents[z])) for z in order)
            return elements if order[-1] == x.letters[-1] else _LAST_AXIS * elements

        def rank(layout: tuple[Access, Access, list[Letter]]) -> tuple[float, bool]:
            x, y, summed = layout
            batches = [z for z in x.letters if z in batch]
            places = [[want.index(z) for z in own(o) if z in want] for o in (x, y)]
            is_turned = all(places) and min(places[1]) < min(places[0])
            return moved(x, batches, own(x), summed) + moved(y, batches, summed, own(y)), is_turned

        return min(
            (
                (x, y, [z for z in like.letters if z in contracted])
                for x, y in ((a, b), (b, a))
                for like in ((x, y) if own(x) else (y, x))
            ),
            key=rank,
        )


def _is_product(x: Access) -> bool:
    """Whether `x` is the result of a contraction, in which a transposition costs more than in an argument."""
    made = program_of(site_of(x.value)) if x.value.op in TABLE else None
    return made is not None and len(made.inputs) > 1 and isinstance(made.stages[-1].value, Reduce)


def _as_number(x: Access, dtype: str) -> Access:
    return replace(x, value=op.astype(x.value, dtype)) if x.value.dtype == "bool" != dtype else x


def _inverted(x: Access) -> Access:
    """`x` as a factor, whether or not a product is divided by it."""
    return Access(op.reciprocal(x.value), x.letters) if x.divides else x


def _is_power_of_two(n: int) -> bool:
    return n > 0 and not n & (n - 1)


def _constant(number: Fraction, dtype: str) -> Expr:
    """Raises OperatorError if the dtype does not have `number`, so that no form with it is equal."""
    made = const(float(number) if kind(dtype) in "fc" else int(number), dtype)
    if constant_value(made).item() != number:
        raise OperatorError(f"{number} is no number of {dtype}")
    return made


def _size(d: Dim, dtype: str) -> Expr:
    return const(d.value, dtype) if d.is_const else op.dim_value(d, dtype)
