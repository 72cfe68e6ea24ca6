"""Arrays whose axes are loop variables: the values of terms of index equations during lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain


@dataclass(frozen=True, eq=False)
class LoopValue:
    """A JAX array with one axis per loop variable that it depends on.

    - `array`: the array; its dtype is that of the term.
    - `loops`: the loop variables, in the order of the axes.
    """

    array: Any
    loops: tuple[str, ...] = ()

    def array_over(self, loops: Sequence[str], extents: Mapping[str, Any]) -> Any:
        """The array with an axis for each of `loops`, a superset of its own loops in any order."""
        mine = [name for name in loops if name in self.loops]
        array = self.array
        if mine != list(self.loops):
            array = lax.transpose(array, [self.loops.index(name) for name in mine])
        if len(mine) == len(loops):
            return array
        shape = tuple(extents[name] for name in loops)
        return lax.broadcast_in_dim(array, shape, [loops.index(name) for name in mine])


def occurring_loops(values: Sequence[LoopValue], order: Mapping[str, int]) -> tuple[str, ...]:
    """The loop variables that occur in `values`, in `order` (outermost first)."""
    names = {name for value in values for name in value.loops}
    return tuple(sorted(names, key=order.__getitem__))


def pointwise(
    function: Callable[..., Any], values: Sequence[LoopValue], order: Mapping[str, int], extents: Mapping[str, Any]
) -> LoopValue:
    """Applies `function`, which takes arrays of one shape, to values that may depend on different loops.

    If the values that depend on all loops agree on an order of axes, the result keeps it, and they are not transposed.
    """
    loops = occurring_loops(values, order)
    orders = {value.loops for value in values if len(value.loops) == len(loops)}
    loops = orders.pop() if len(orders) == 1 else loops
    return LoopValue(function(*(value.array_over(loops, extents) for value in values)), loops)


_LONGEST_TABLE = 1 << 16  # limit: values of an index that are computed ahead


class Indices:
    """An evaluator of index expressions: `Dim`s over loop variables and sizes, as JAX arrays of integers.

    - `extents`: extents of the loop variables that become axes, outermost first.
    - `fixed`: values of everything else that a `Dim` may mention: sizes, and variables of JAX loops.
    """

    def __init__(self, extents: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.extents = extents
        self.fixed = fixed
        self.order = {name: place for place, name in enumerate(extents)}

    def value(self, dim: Dim) -> LoopValue:
        """`dim` as int64, over the loop variables that it mentions."""
        if (known := self._table(dim)) is not None:
            return known
        total = _integer(dim.const)
        for monomial, coefficient in dim.terms:
            product = _integer(coefficient)
            for atom in monomial:
                product = self._combine(lax.mul, product, self._atom(atom.op, atom.name, atom.args))
            total = self._combine(lax.add, total, product)
        return total

    def _table(self, dim: Dim) -> LoopValue | None:
        """The values of an index that divides one loop variable, computed here: XLA would compute 64-bit divisions for
        every element that reads one, or by a kernel of their own. None for all other indices."""
        loops = [n for n in self.extents if n in dim.variables]
        sizes = {n: self.fixed[n] for n in dim.variables if n not in loops}
        if len(loops) != 1 or not _divides(dim) or not all(isinstance(n, int) for n in sizes.values()):
            return None
        extent = self.extents[loops[0]]
        if not isinstance(extent, int) or extent > _LONGEST_TABLE:
            return None
        return LoopValue(np.asarray(dim.evaluate({**sizes, loops[0]: np.arange(extent)}), np.int64), (loops[0],))

    def _atom(self, op: str, name: str, args: Sequence[Dim]) -> LoopValue:
        if op == "var":
            if name in self.extents:
                return LoopValue(lax.iota(np.dtype("int64"), self.extents[name]), (name,))
            known = self.fixed[name]
            return (
                _integer(known) if isinstance(known, int) else LoopValue(jnp.asarray(known).astype(np.dtype("int64")))
            )
        first, *others = (self.value(arg) for arg in args)
        if op == "select":
            compare = lax.ge if name == ">=" else lax.eq
            return self._pointwise(lambda x, a, b: lax.select(compare(x, lax.full_like(x, 0)), a, b), first, *others)
        for other in others:
            first = self._combine(_BINARY[op], first, other)
        return first

    def _combine(self, function: Callable[..., Any], x: LoopValue, y: LoopValue) -> LoopValue:
        if function is lax.mul and _is_one(x):
            return y
        if function is lax.add and _is_zero(x):
            return y
        return self._pointwise(function, x, y)

    def _pointwise(self, function: Callable[..., Any], *values: LoopValue) -> LoopValue:
        return pointwise(function, values, self.order, self.extents)


def _divides(dim: Dim) -> bool:
    """Whether `dim` has quotients, of polynomials by numbers."""
    atoms = [atom for monomial, _ in dim.terms for atom in monomial if atom.op != "var"]
    by_numbers = all(a.op == "floordiv" and is_plain(a.args[0]) and a.args[1].is_const for a in atoms)
    return bool(atoms) and by_numbers


def _integer(value: int) -> LoopValue:
    return LoopValue(np.asarray(value, np.int64))


def _is_one(x: LoopValue) -> bool:
    return isinstance(x.array, np.ndarray) and bool(x.array == 1)


def _is_zero(x: LoopValue) -> bool:
    return isinstance(x.array, np.ndarray) and not bool(x.array)


def _floor_divide(x: Any, y: Any) -> Any:
    return jnp.floor_divide(x, y)


def _ceil_divide(x: Any, y: Any) -> Any:
    return lax.neg(jnp.floor_divide(lax.neg(x), y))


_BINARY: dict[str, Callable[..., Any]] = {
    "floordiv": _floor_divide, "ceildiv": _ceil_divide, "max": lax.max, "min": lax.min
}  # fmt: skip
