"""The numbers that occur in a rule: values and sizes at which its sides may differ and that random draws miss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, is_complex, is_float, is_integer, names_where
from relax_eg.ir.expr import CALL_TIR, CONSTANT, VAR, Expr, constant_value, own_dims, postorder
from relax_eg.limits import KEPT, LARGEST_INT32
from relax_eg.ops.libraries import inline_libraries
from relax_eg.ops.record import TABLE, program_of, site_of
from relax_eg.rules.rule import Instance
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Select, walk
from relax_eg.tir.functions import functions_with_trait
from relax_eg.tir.program import TensorProgram

Number = int | float | complex
# limit: elements of a constant array of which all are taken; of larger arrays the first, last, least and greatest are.
_MOST_ELEMENTS = 16
# limit: numbers per instance; those written in the rule come first, then those derived from them by arithmetic.
_MOST_NUMBERS = 24
ALWAYS_TRIED = 5  # limit: sizes up to this are always tested
# given: a larger number is not the size of an axis: XLA counts elements by int32 if it can, and no memory holds more.
LARGEST_EXTENT = LARGEST_INT32


@dataclass(frozen=True)
class Literals:
    """The numbers of a rule.

    - `numbers`: numbers written in it, and sums, differences, products, quotients and roots of these.
    - `extents`: whole numbers that may be compared with a size.
    """

    numbers: tuple[Number, ...]
    extents: tuple[int, ...]


@lru_cache(KEPT)
def literals(instance: Instance) -> Literals:
    """The numbers in both sides of `instance`. Numbers in its conditions are excluded; they concern one variable."""
    written = list(dict.fromkeys(filter(_is_plain, _written(instance))))
    whole = {e for n in written if (e := _whole(n)) is not None and ALWAYS_TRIED < e <= LARGEST_EXTENT}
    numbers = dict.fromkeys([*written, *_derived(written)])
    return Literals(tuple(numbers)[:_MOST_NUMBERS], tuple(sorted(whole | _exact_integer_limits(instance))))


def _exact_integer_limits(instance: Instance) -> set[int]:
    """The largest whole numbers up to which the short dtypes of positions and counts represent every whole number."""
    short = {d: dtype_of(d) for d in names_where(lambda d: d.is_half or (d.is_integer and d.bits == 8))}
    return {
        2 ** short[t.dtype].digits if is_float(t.dtype) else short[t.dtype].greatest
        for t in _terms(instance)
        if t.dtype in short
        and (
            isinstance(t, Index)
            or (isinstance(t, Reduce) and is_integer(t.dtype))
            or (isinstance(t, Cast) and is_integer(t.arg.dtype))
        )
    }


def _is_plain(n: Number) -> bool:
    """Whether a number needs a test of its own; 0, 1, -1, infinities and NaN are always tested."""
    return n not in (0, 1, -1) and (isinstance(n, complex) or math.isfinite(n))


def _whole(n: Number) -> int | None:
    """The absolute value of a whole number; None for any other number."""
    if isinstance(n, complex) or n != int(n):
        return None
    return abs(int(n))


def _derived(plain: list[Number]) -> Iterator[Number]:
    """Further numbers at which a side may change: 7 for x + 3 == 10, 12 for x * x > 144."""
    small_numbers = [n for n in plain if not isinstance(n, complex) and abs(n) <= LARGEST_EXTENT][:6]
    yield from (-n for n in plain)
    for n in small_numbers:
        if n > 0 and math.sqrt(n) == int(math.sqrt(n)):
            yield int(math.sqrt(n))
    for a, b in itertools.permutations(small_numbers, 2):
        yield from (a - b, a + b)
        if a % b == 0:
            yield a // b
        yield a * b


def _written(instance: Instance) -> Iterator[Number]:
    left, right = tuple(inline_libraries(instance.left)), tuple(inline_libraries(instance.right))
    for e in postorder((*left, *right)):
        if e.op == CONSTANT:
            value = constant_value(e)
            if value.dtype.kind in "biufcV":
                yield from _elements(value)
        elif e.op == CALL_TIR:
            program: TensorProgram = e.attr("program").value
            for stage in program.stages:
                yield from (t.value for t in walk(stage.value) if isinstance(t, Const) and t.dtype != "bool")
        else:  # small numbers are axes, steps and the like, not values
            attributes = _numbers(e.shape if e.op == VAR else (v for _, v in e.attrs))
            yield from (n for n in attributes if not isinstance(n, int) or abs(n) > ALWAYS_TRIED)


def _elements(value: np.ndarray[Any, Any]) -> Iterator[Number]:
    flat = value.reshape(-1)
    if value.dtype.kind == "V":  # bfloat16 and similar types
        flat = flat.astype(np.float64)
    if flat.size > _MOST_ELEMENTS:
        flat = np.asarray([flat[0], flat[-1], flat.min(), flat.max()])
    yield from (x for x in flat.tolist() if not isinstance(x, bool))


def _numbers(values: Iterable[Any]) -> Iterator[Number]:
    """The numbers in attributes and sizes."""
    for v in values:
        if isinstance(v, bool):
            continue
        if isinstance(v, (int, float, complex)):
            yield v
        elif isinstance(v, Dim):
            yield v.const
            for monomial, coefficient in v.terms:
                yield coefficient
                for atom in monomial:
                    yield from _numbers(atom.args)
        elif isinstance(v, (tuple, list)):
            yield from _numbers(v)  # type: ignore[reportUnknownArgumentType]


@lru_cache(KEPT)
def is_piecewise(instance: Instance) -> bool:
    """Whether a side may be piecewise, that is, different functions at different values. Sides that are not piecewise
    are equal everywhere if they are equal near one point."""
    return any(
        isinstance(t, Select)
        or (isinstance(t, Apply) and t.fn not in functions_with_trait("smooth"))
        or (isinstance(t, (Apply, Cast)) and not (is_float(t.dtype) or is_complex(t.dtype)))
        or (isinstance(t, Reduce) and t.kind not in ("sum", "prod"))
        for t in _terms(instance)
    )


@lru_cache(KEPT)
def computes(instance: Instance) -> bool:
    """Whether a side computes with the values of the variables. Values that are only moved keep their bits."""
    if any(program_of(site_of(e)) is None for e in _operators(instance)):
        return True
    return any(
        isinstance(t, (Apply, Cast, Reduce)) and any(isinstance(inner, Read) for inner in walk(t))
        for t in _terms(instance)
    )


@lru_cache(KEPT)
def grows_with_sizes(instance: Instance) -> bool:
    """Whether values of a side may grow with the sizes: positions, sizes as numbers, sums, scans, and operators without
    index equations."""
    for e in _operators(instance):
        program = program_of(site_of(e))
        if program is None or any(s.scans for s in program.stages):
            return True
        if any(name == "k" and isinstance(v, int) for name, v in e.attrs):  # the number of a diagonal
            return True
    return any(
        isinstance(t, Index) or (isinstance(t, Reduce) and t.kind in ("sum", "prod", "argmax", "argmin"))
        for t in _terms(instance)
    ) or any(_has_numbers(d) for e in _expressions(instance) for d in own_dims(e))


def _has_numbers(d: Dim) -> bool:
    return bool(d.variables) and any(abs(n) > ALWAYS_TRIED for n in _numbers((d,)) if not isinstance(n, complex))


def _expressions(instance: Instance) -> Iterable[Expr]:
    return postorder((*inline_libraries(instance.left), *inline_libraries(instance.right)))


def _operators(instance: Instance) -> Iterator[Expr]:
    yield from (e for e in _expressions(instance) if e.op in TABLE)


def _terms(instance: Instance) -> Iterator[Any]:
    for e in _operators(instance):
        program = program_of(site_of(e))
        for stage in program.stages if program is not None else ():
            yield from walk(stage.value)
