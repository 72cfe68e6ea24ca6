"""Evaluates terms of index equations inside a Pallas kernel, for a block of loop variables at once.

The value of a term is a `LoopValue` over the loops that run in blocks. A read is a load at computed positions, masked
where a block reaches beyond its loop. A reduction runs over blocks of its bound loops; a sum of products of two
operands uses the tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton

from relax_eg.backend.lowering.contractions import strip_widening_casts
from relax_eg.backend.lowering.index_maps import bounds, is_inside
from relax_eg.backend.lowering.loop_values import LoopValue, pointwise
from relax_eg.backend.lowering.scalar_functions import (
    accumulator,
    apply_function,
    combine,
    convert,
    identity,
    reduce_axes,
)
from relax_eg.backend.pallas.plan import Online
from relax_eg.backend.pallas.tiles import LEAST, BlockSizes, block_of, elementwise, operands_of, stream_of
from relax_eg.dtypes import HALF, kind
from relax_eg.shapes import Dim
from relax_eg.tir import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, loop_of, substitute, walk
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.traversal import made_from_below

Array: TypeAlias = Any
_INT = np.dtype("int32")


class Blocks:
    """A scope of loop variables whose values are computed together, and the terms computed there so far.

    - `axes`: number of values of each loop that runs in blocks, outermost first.
    - `loop_values`: values of each loop: an int32 array for loops in `axes`, a scalar for others.
    - `extents`: extents of all loops.
    - `buffers`: reference and shape of each buffer.
    - `tiles`: the sizes of blocks.
    - `outside`: the enclosing scope.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        loop_values: Mapping[str, Array],
        extents: Mapping[str, int],
        buffers: Mapping[str, tuple[Any, tuple[int, ...]]],
        tiles: BlockSizes,
        outside: Blocks | None = None,
    ) -> None:
        self.axes = dict(axes)
        self.loop_values = dict(loop_values)
        self.extents = extents
        self.buffers = buffers
        self.tiles = tiles
        self.outside = outside
        self.order = {name: n for n, name in enumerate(self.axes)}
        self.new_loops = frozenset(self.loop_values) - frozenset(outside.loop_values if outside is not None else ())
        self.memo: dict[Scalar, LoopValue] = {}
        # Of contractions in one step inside of a loop: what does not vary over it, by term.
        self.ready: dict[Reduce, dict[Scalar, LoopValue]] = {}

    def with_loops(self, axes: Mapping[str, int], loop_values: Mapping[str, Array]) -> Blocks:
        """A scope inside this one, with more loops."""
        return Blocks(
            {**self.axes, **axes}, {**self.loop_values, **loop_values}, self.extents, self.buffers, self.tiles, self
        )

    def array_over(self, value: LoopValue, loops: Sequence[str]) -> Array:
        """The array of `value` with an axis for each of `loops`."""
        return value.array_over(loops, self.axes)

    def mask(self, loops: Sequence[str]) -> LoopValue | None:
        """A mask of the points at which all `loops` are within their extents; None if all points are."""
        found: LoopValue | None = None
        for name in loops:
            if name in self.axes and self.extents[name] % self.axes[name]:
                inside = LoopValue(
                    lax.lt(self.loop_values[name], _full(self.loop_values[name], self.extents[name])), (name,)
                )
                found = inside if found is None else self.pointwise(lax.bitwise_and, found, inside)
        return found

    def pointwise(self, function: Callable[..., Any], *values: LoopValue) -> LoopValue:
        """Applies `function`, which takes arrays of one shape, to values over different loops."""
        return pointwise(function, values, self.order, self.axes)

    # --- terms ---

    def term(self, term: Scalar) -> LoopValue:
        """The value of `term`; subterms are computed first, without recursion."""

        def unknown(at: Scalar) -> Sequence[Scalar]:
            parts = () if isinstance(at, Reduce) else at.children
            return [part for part in parts if self._known(part) is None]

        found = self._known(term)
        return found if found is not None else made_from_below(term, unknown, self._term, self.memo)

    def _known(self, term: Scalar) -> LoopValue | None:
        blocks: Blocks | None = self
        while blocks is not None:
            if term in blocks.memo:
                return blocks.memo[term]
            if term.free & blocks.new_loops:
                return None
            blocks = blocks.outside
        return None

    def _term(self, term: Scalar) -> LoopValue:
        parts = [v for v in map(self._known, term.children) if v is not None]
        match term:
            case Const():
                return LoopValue(_scalar(term.value, term.dtype))
            case Index():
                return _convert(self.position(term.dim), term.dtype)
            case Read():
                return self._read(term)
            case Apply():
                if term.fn in ("maximum", "minimum") and kind(term.dtype) == "f":
                    return self.pointwise(lambda x, y: _extreme(term.fn, x, y), *parts)
                return self._applied(term, parts)
            case Cast():
                return _convert(parts[0], term.dtype)
            case Select():
                return self.pointwise(lax.select, *parts)
            case Reduce():
                return self.reduce(term)
            case _:
                raise TypeError(f"not a scalar expression: {type(term).__name__}")

    def _applied(self, term: Apply, parts: Sequence[LoopValue]) -> LoopValue:
        """A scalar function. 16-bit floats are computed in float32 and rounded: Triton lacks some functions of them,
        such as the quotient."""
        if FUNCTIONS[term.fn].widens:
            parts = [_convert(v, "float32") if a.dtype in HALF else v for v, a in zip(parts, term.args, strict=True)]
        found = self.pointwise(lambda *xs: apply_function(term.fn, xs, term.args, in_kernel=True), *parts)
        return _convert(found, term.dtype)

    def position(self, dim: Dim) -> LoopValue:
        """An index as int32."""
        total = LoopValue(_scalar(dim.const, "int32"))
        for n, (monomial, coefficient) in enumerate(dim.terms):
            product: LoopValue | None = None if coefficient == 1 else LoopValue(_scalar(coefficient, "int32"))
            for atom in monomial:
                factor = self._atom(atom.op, atom.name, atom.args)
                product = factor if product is None else self.pointwise(lax.mul, product, factor)
            assert product is not None
            total = product if n == 0 and not dim.const else self.pointwise(lax.add, total, product)
        return total

    def _atom(self, op: str, name: str, args: Sequence[Dim]) -> LoopValue:
        if op == "var":
            return LoopValue(self.loop_values[name], (name,) if name in self.axes else ())
        first, *others = map(self.position, args)
        if op == "select":
            compare = lax.ge if name == ">=" else lax.eq
            return self.pointwise(lambda x, a, b: lax.select(compare(x, _full(x, 0)), a, b), first, *others)
        if op in ("floordiv", "ceildiv"):
            low, _ = bounds(args[0], self.extents)
            least, _ = bounds(args[1], self.extents)
            plain = low is not None and low >= 0 and least is not None and least > 0
            if op == "floordiv":
                return self.pointwise(lax.div if plain else jnp.floor_divide, first, others[0])
            return self.pointwise(lambda x, y: lax.neg(jnp.floor_divide(lax.neg(x), y)), first, others[0])
        for other in others:
            first = self.pointwise(lax.max if op == "max" else lax.min, first, other)
        return first

    def _read(self, term: Read) -> LoopValue:
        ref, shape = self.buffers[term.buffer]
        place = LoopValue(_scalar(0, "int32"))
        for axis, (i, size) in enumerate(zip(term.indices, shape, strict=True)):
            at = self.position(i) if isinstance(i, Dim) else self._known(i)
            assert at is not None
            if not isinstance(i, Dim) or not is_inside(i, size, self.extents):
                at = self.pointwise(
                    lambda x, size=size: lax.clamp(_scalar(0, x.dtype), x, _scalar(size - 1, x.dtype)), at
                )
            at, stride = _convert(at, "int32"), math.prod(shape[axis + 1 :])
            if stride != 1:
                at = self.pointwise(lambda x, stride=stride: lax.mul(x, _full(x, stride)), at)
            place = at if axis == 0 else self.pointwise(lax.add, place, at)
        mask = self.mask(place.loops)
        if mask is None:
            return LoopValue(triton.load(ref.at[place.array]), place.loops)
        inside = self.array_over(mask, place.loops)
        return LoopValue(triton.load(ref.at[place.array], mask=inside, other=_scalar(0, term.dtype)), place.loops)

    # --- reductions ---

    def reduce(self, term: Reduce) -> LoopValue:
        """The value of a reduction, as a loop over blocks of its longest loop."""
        names = [str(loop_of(var)) for var, _ in term.over]
        stream = stream_of(term, self.extents)
        wide = accumulator(term.kind, term.dtype)
        size = self._depth(term, stream)
        rest = [n for n in names if n != stream]
        along = -(-self.extents[stream] // size)
        steps = along * math.prod(self.extents[n] for n in rest)
        self.hoist(term.body, frozenset(names))

        def block(n: Array) -> LoopValue:
            at: dict[str, Array] = {}
            n, first = (
                (n, n) if not rest else (lax.div(n, _scalar(along, "int32")), lax.rem(n, _scalar(along, "int32")))
            )
            for name in reversed(rest):
                extent = _scalar(self.extents[name], "int32")
                n, at[name] = lax.div(n, extent), lax.rem(n, extent)
            inside = self.with_loops({stream: size}, {**at, stream: block_values(first, size)})
            inside.memo |= self._ready(term)
            return inside.partial(term, stream, wide)

        return _convert(self._accumulated(term, wide, steps, block), term.dtype)

    def _depth(self, term: Reduce, stream: str) -> int:
        """The number of values of the loop `stream` in a block."""
        others = math.prod(self.axes[n] for n in term.free if n in self.axes)
        if operands_of(term, stream, frozenset(self.axes)) is not None:
            return block_of(self.extents[stream], self.tiles.depth if self.outside is None else self.tiles.inner)
        return block_of(self.extents[stream], elementwise(self.tiles, others))

    def _ready(self, term: Reduce) -> dict[Scalar, LoopValue]:
        blocks: Blocks | None = self
        while blocks is not None:
            if term in blocks.ready:
                return blocks.ready[term]
            blocks = blocks.outside
        return {}

    def load_ahead(self, body: Scalar, own: str) -> None:
        """Computes the operands of contractions in `body` that do not vary over the loop `own`, before a loop over it:
        of those that take one step, because the others begin anew at each."""
        for r in (t for t in walk(body) if isinstance(t, Reduce) and len(t.over) == 1):
            stream = stream_of(r, self.extents)
            size = self.with_loops({own: LEAST}, {own: None})._depth(r, stream)
            with_own = self.with_loops({own: LEAST, stream: size}, {own: None, stream: None})
            pair = with_own.operands(r, stream)
            if pair is None or size < self.extents[stream]:
                continue
            inside = self.with_loops({stream: size}, {stream: block_values(_scalar(0, "int32"), size)})
            for f in (f for group in pair for f in group if own not in f.free):
                inside.term(f)
            self.ready[r] = inside.memo

    def _accumulated(self, term: Reduce, dtype: str, steps: int, block: Callable[[Array], LoopValue]) -> LoopValue:
        if steps == 1:
            return block(_scalar(0, "int32"))
        loops, join = self.loops_of(term), _combiner(term.kind, dtype)

        def step(n: Array, total: Array) -> Array:
            return join(total, block(convert(n, "int32")).array_over(loops, self.axes))

        start = self.filled(loops, dtype, identity(term.kind, dtype))
        return LoopValue(lax.fori_loop(0, steps, step, start), loops)

    def partial(self, term: Reduce, stream: str, wide: str) -> LoopValue:
        """`term` reduced over this scope's block of the loop `stream`, in dtype `wide`."""
        mask = self.mask([stream])
        pair = self.operands(term, stream) if term.kind == "sum" else None
        if pair is not None:
            # A read gives 0 where it is beyond the loop; what is computed from it may be anything.
            a, b = (self._product([self.term(f) for f in group]) for group in pair)
            a, b = (
                v
                if any(isinstance(f, Read) and stream in f.free for f in group) and len(group) == 1
                else self.masked(v, mask, 0)
                for v, group in zip((a, b), pair, strict=True)
            )
            rows, columns = (next(n for n in v.loops if n != stream) for v in (a, b))
            if np.dtype(a.array.dtype) != np.dtype(b.array.dtype):
                a, b = (_convert(v, term.dtype) for v in (a, b))
            dims = (((a.loops.index(stream),), (b.loops.index(stream),)), ((), ()))
            return LoopValue(
                lax.dot_general(a.array, b.array, dims, preferred_element_type=np.dtype(wide)), (rows, columns)
            )
        value = _convert(self.term(term.body), wide)
        value = self.masked(value, mask, identity(term.kind, wide))
        loops = (*(n for n in value.loops if n != stream), stream)
        array = self.array_over(value, loops)
        total = reduce_axes(term.kind, array, [len(loops) - 1])
        if term.kind != "sum" and kind(wide) == "f":  # Triton's max and min drop NaN
            bad = reduce_axes("max", convert(lax.ne(array, array), "int32"), [len(loops) - 1])
            total = lax.select(lax.gt(bad, _full(bad, 0)), _full(total, np.nan), total)
        return LoopValue(total, loops[:-1])

    def masked(self, value: LoopValue, mask: LoopValue | None, other: Any) -> LoopValue:
        if mask is None:
            return value
        return self.pointwise(lambda x, inside: lax.select(inside, x, _full(x, other)), value, mask)

    def _product(self, factors: Sequence[LoopValue]) -> LoopValue:
        product = factors[0]
        for more in factors[1:]:
            product = self.pointwise(lax.mul, product, more)
        return product

    def operands(self, term: Reduce, stream: str) -> list[list[Scalar]] | None:
        """The factors of a sum as two operands for the tensor cores, rows first; None where it has no such form."""
        groups = operands_of(term, stream, frozenset(self.axes))
        if groups is None:
            return None
        return sorted(
            strip_widening_casts(groups), key=lambda g: min(self.order[n] for f in g for n in f.free & self.axes.keys())
        )

    def hoist(self, body: Scalar, bound: frozenset[str], without: Scalar | None = None) -> None:
        """Computes the terms in `body` that do not vary over the loops `bound` in this scope, before a loop over these.

        Terms that contain `without` are left out.
        """
        seen, todo = {body}, [body]
        while todo:
            at = todo.pop()
            if not at.free & bound and not any(t == without for t in walk(at)):
                if at.free <= self.loop_values.keys() and not isinstance(at, Const):
                    self.term(at)
                continue
            if isinstance(at, Reduce):
                continue  # its bound loops have no value here
            todo += [c for c in at.children if c not in seen]
            seen.update(at.children)

    def one_pass(self, group: Online, first: Array, last: Array) -> tuple[LoopValue, list[LoopValue]]:
        """The maximum and the sums of a softmax over the blocks of keys from `first` up to before `last`, in one pass
        with the running maximum in place of the maximum."""
        m, size, dtype = group.maximum, self.tiles.keys, group.scores.dtype
        own = group.keys
        wides = [accumulator("sum", s.dtype) for s in group.sums]
        for s in group.sums:
            self.hoist(s.body, frozenset((str(loop_of(s.over[0][0])),)), m)
        self.load_ahead(group.scores, own)
        rows = self.loops_of(group.maximum)
        loops = [self.loops_of(s) for s in group.sums]

        def block(n: Array, highest: LoopValue) -> tuple[LoopValue, list[LoopValue]]:
            here = block_values(n, size)
            scores = self.with_loops({own: size}, {own: here})
            mask = scores.mask([own])
            x = scores.term(group.scores)
            filled = scores.masked(x, mask, identity("max", dtype))
            found = reduce_axes("max", scores.array_over(filled, (*rows, own)), [len(rows)])
            top = self.pointwise(lax.max, highest, LoopValue(found, rows))
            sums: list[LoopValue] = []
            for s, wide in zip(group.sums, wides, strict=True):
                name = str(loop_of(s.over[0][0]))
                inside = self.with_loops({name: size}, {name: here})
                inside.memo[m] = _finite(top)
                inside.memo[substitute(group.scores, {own: Dim.var(name)})] = LoopValue(
                    x.array, tuple(name if k == own else k for k in x.loops)
                )
                sums.append(inside.partial(s, name, wide))
            return top, sums

        def step(n: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            before = LoopValue(carry[0], rows)
            now, more = block(convert(n, "int32"), before)
            totals = self.corrected([LoopValue(t, k) for t, k in zip(carry[1:], loops, strict=True)], before, now)
            added = [self.pointwise(lax.add, t, x) for t, x in zip(totals, more, strict=True)]
            return (
                now.array_over(rows, self.axes),
                *(t.array_over(k, self.axes) for t, k in zip(added, loops, strict=True)),
            )

        start = self.filled(rows, dtype, -np.inf), *(self.filled(k, w, 0) for k, w in zip(loops, wides, strict=True))
        highest, *totals = lax.fori_loop(first, last, step, start)
        return LoopValue(highest, rows), [LoopValue(t, k) for t, k in zip(totals, loops, strict=True)]

    def corrected(self, totals: Sequence[LoopValue], before: LoopValue, now: LoopValue) -> list[LoopValue]:
        """Sums with differences to the maximum `before`, as those with differences to the maximum `now`."""
        old, new = (_convert(v, "float32") if v.array.dtype.name in HALF else v for v in (before, _finite(now)))
        shrunk = self.pointwise(lambda x, y: lax.exp(lax.sub(x, y)), old, new)
        return [self.pointwise(lambda t, f: lax.mul(t, convert(f, t.dtype.name)), t, shrunk) for t in totals]

    def set_sums(self, group: Online, highest: LoopValue, totals: Sequence[LoopValue]) -> None:
        """Makes the sums of a softmax known in this scope, from those of the whole pass."""
        for s, total in zip(group.sums, totals, strict=True):
            # In a row of -inf only, every difference to the maximum is NaN.
            whole = self.pointwise(
                lambda t, h: lax.select(lax.eq(h, _full(h, -np.inf)), _full(t, np.nan), t), total, highest
            )
            self.memo[s] = _convert(whole, s.dtype)

    def loops_of(self, term: Scalar) -> tuple[str, ...]:
        """The loops in blocks over which a term varies."""
        return tuple(n for n in self.axes if n in term.free)

    def filled(self, loops: Sequence[str], dtype: Any, value: Any) -> Array:
        """A block that holds one value everywhere."""
        return lax.full(tuple(self.axes[n] for n in loops), value, np.dtype(dtype))


def block_values(n: Array, size: int) -> Array:
    """The values of a loop variable in its block `n` of `size` values."""
    return lax.add(lax.iota(_INT, size), lax.broadcast(lax.mul(n, _scalar(size, "int32")), (size,)))


def _finite(top: LoopValue) -> LoopValue:
    """A maximum to subtract: 0 where it is -inf, so that exp gives 0 and not NaN."""
    array = top.array
    return LoopValue(lax.select(lax.eq(array, _full(array, -np.inf)), _full(array, 0), array), top.loops)


def _combiner(kind_of: Any, dtype: str) -> Callable[[Array, Array], Array]:
    if kind_of in ("max", "min") and kind(dtype) == "f":
        return lambda x, y: _extreme(f"{kind_of}imum", x, y)
    return lambda x, y: combine(kind_of, x, y)


def _extreme(fn: str, x: Array, y: Array) -> Array:
    """The maximum or minimum of floats. NaN is propagated; Triton's own functions drop it."""
    found = (lax.max if fn == "maximum" else lax.min)(x, y)
    return lax.select(lax.ne(x, x), x, lax.select(lax.ne(y, y), y, found))


def _convert(value: LoopValue, dtype: str) -> LoopValue:
    return LoopValue(convert(value.array, dtype), value.loops)


def _scalar(value: Any, dtype: Any) -> Array:
    return np.asarray(value).astype(np.dtype(dtype))


def _full(like: Array, value: Any) -> Array:
    return lax.full_like(like, value)
