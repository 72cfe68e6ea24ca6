"""Equality of terms bit for bit, by z3: of integers over bit vectors (wrapping, shifts, masks, quotients), of truth
values, and of floats that are only compared and chosen, or computed from few numbers. NaN is one value. Of zeros of
both signs an extreme may be either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import z3

from relax_eg.dtypes import dtype_of, kind
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.guards import Deadline
from relax_eg.tir.expr import Apply, Cast, Const, Read, Scalar, Select
from relax_eg.tir.functions import FUNCTIONS

_MILLISECONDS = 2_000  # limit: time of z3 for one question
_MEMORY_MB = 1_500  # limit: memory of z3
_MOST_NUMBERS = 16  # limit: values of a float that is computed from choices of numbers
_ROUNDED = frozenset(("add", "subtract", "multiply", "divide"))  # given: IEEE 754, the same bits everywhere
_LARGEST_POWER = 6  # limit: exponents that are multiplied out

Term = Any


def same_words(left: Scalar, right: Scalar, deadline: Deadline) -> str:
    """Returns why terms are not shown to have the same bits; empty if they are. Raises Unsupported for terms that
    compute with floats or other numbers."""
    deadline.check()
    try:
        memo: dict[Scalar, Term] = {}
        a, b = _term(left, memo), _term(right, memo)
        solver = z3.Solver() if any(kind(s.dtype) == "f" for s in memo) else z3.SolverFor("QF_BV")
        solver.set("timeout", _MILLISECONDS)
        solver.set("max_memory", _MEMORY_MB)
        solver.add(a != b)
        return "" if solver.check() == z3.unsat else "the words are not shown equal"
    except z3.Z3Exception as e:
        raise Unsupported(f"z3: {e}") from None


def _term(s: Scalar, memo: dict[Scalar, Term]) -> Term:
    if s not in memo:
        memo[s] = _made(s, memo)
    return memo[s]


def _made(s: Scalar, memo: dict[Scalar, Term]) -> Term:
    if kind(s.dtype) not in "biuf":
        raise Unsupported(f"{s.dtype} as words")
    if kind(s.dtype) == "f" and not isinstance(s, Select):
        return _float(s, memo)
    if isinstance(s, Read):
        return z3.Bool(str(s)) if s.dtype == "bool" else z3.BitVec(str(s), dtype_of(s.dtype).bits)
    if isinstance(s, Const):
        return z3.BoolVal(bool(s.value)) if s.dtype == "bool" else z3.BitVecVal(int(s.value.real), _bits(s))
    if isinstance(s, Select):
        return z3.If(_term(s.cond, memo), _term(s.then, memo), _term(s.other, memo))
    if isinstance(s, Cast):
        return _converted(_term(s.arg, memo), s.arg, s)
    if not isinstance(s, Apply):
        raise Unsupported(f"{type(s).__name__.lower()} as words")
    of = kind(s.args[0].dtype)
    made = (_OF_TRUTH if of == "b" else _OF_FLOATS if of == "f" else _OF_WORDS).get(s.fn)
    if made is None:
        raise Unsupported(f"{s.fn} of {s.args[0].dtype} as words")
    return made(s, *(_term(a, memo) for a in s.args))


def _float(s: Scalar, memo: dict[Scalar, Term]) -> Term:
    dtype = dtype_of(s.dtype)
    if dtype.is_narrow:
        raise Unsupported(f"{s.dtype} as words")
    sort = z3.FPSort(dtype.bits - dtype.digits, dtype.digits)
    if isinstance(s, Read):
        return z3.FP(str(s), sort)
    if isinstance(s, Apply) and kind(s.args[0].dtype) == "f" and s.fn in _OF_FLOATS:
        return _OF_FLOATS[s.fn](s, *(_term(a, memo) for a in s.args))
    made: Term = None
    for condition, value in _numbers(s, memo):
        number = z3.FPVal(value, sort)
        made = number if made is None else z3.If(condition, number, made)
    return made


def _numbers(s: Scalar, memo: dict[Scalar, Term]) -> list[tuple[Term, float]]:
    """Returns the numbers that a float may be, each with the condition under which it is. Raises Unsupported if it is
    none of few."""
    if isinstance(s, Const):
        return [(z3.BoolVal(True), float(s.value.real))]
    if isinstance(s, Cast) and s.arg.dtype == "bool":
        is_one = _term(s.arg, memo)
        return [(is_one, 1.0), (z3.Not(is_one), 0.0)]
    if isinstance(s, Select):
        cond = _term(s.cond, memo)
        branches = ((cond, s.then), (z3.Not(cond), s.other))
        return [(z3.And(c, where), v) for c, branch in branches for where, v in _numbers(branch, memo)]
    if not isinstance(s, Apply) or s.fn not in _ROUNDED or any(a.dtype != s.dtype for a in s.args):
        raise Unsupported(f"{s.fn if isinstance(s, Apply) else type(s).__name__.lower()} of {s.dtype} as words")
    found = list(itertools.product(*(_numbers(a, memo) for a in s.args)))
    if len(found) > _MOST_NUMBERS:
        raise Unsupported("a float of many possible values as words")
    dtype, of = dtype_of(s.dtype).numpy, FUNCTIONS[s.fn]
    return [
        (z3.And(*(c for c, _ in chosen)), float(of([np.asarray(v, dtype) for _, v in chosen], s.dtype)))
        for chosen in found
    ]


def _extreme(s: Apply, x: Term, y: Term) -> Term:
    """The greater or lesser float, NaN if one is NaN. Equal ones are one of the two."""
    first = z3.fpGT(x, y) if s.fn == "maximum" else z3.fpLT(x, y)
    pick: Any = z3.Function(f"{s.fn} {s.dtype}", x.sort(), x.sort(), z3.BoolSort())
    either = z3.If(z3.And(z3.fpEQ(x, y), pick(x, y)), x, y)
    return z3.If(z3.fpIsNaN(x), x, z3.If(z3.fpIsNaN(y), y, z3.If(first, x, either)))


def _bits(s: Scalar) -> int:
    return dtype_of(s.dtype).bits


def _is_signed(s: Scalar) -> bool:
    return kind(s.dtype) == "i"


def _converted(x: Term, before: Scalar, after: Scalar) -> Term:
    if after.dtype == "bool":
        return x if before.dtype == "bool" else x != 0
    n = _bits(after)
    if before.dtype == "bool":
        return z3.If(x, z3.BitVecVal(1, n), z3.BitVecVal(0, n))
    more = n - _bits(before)
    if more <= 0:
        return z3.Extract(n - 1, 0, x)
    return z3.SignExt(more, x) if _is_signed(before) else z3.ZeroExt(more, x)


def _less(s: Apply, x: Term, y: Term) -> Term:
    return x < y if _is_signed(s.args[0]) else z3.ULT(x, y)


def _not_above(s: Apply, x: Term, y: Term) -> Term:
    return x <= y if _is_signed(s.args[0]) else z3.ULE(x, y)


def _divisor(s: Apply) -> int:
    """Returns the constant divisor. Division by 0, and of the least number by -1, is left alone."""
    by = s.args[1]
    if not isinstance(by, Const) or by.value in (0, -1):
        raise Unsupported("a divisor that is not constant, or 0 or -1")
    return int(by.value.real)


def _truncated(s: Apply, x: Term, y: Term) -> Term:
    _divisor(s)
    return x / y if _is_signed(s) else z3.UDiv(x, y)


def _remainder(s: Apply, x: Term, y: Term) -> Term:
    _divisor(s)
    return z3.SRem(x, y) if _is_signed(s) else z3.URem(x, y)


def _floored(s: Apply, x: Term, y: Term) -> Term:
    if not _is_signed(s):
        return _truncated(s, x, y)
    rest = z3.SRem(x, y)
    down = z3.And(rest != 0, (rest < 0) != (_divisor(s) < 0))
    return z3.If(down, x / y - 1, x / y)


def _modulo(s: Apply, x: Term, y: Term) -> Term:
    if not _is_signed(s):
        return _remainder(s, x, y)
    rest = z3.SRem(x, y)
    return z3.If(z3.And(rest != 0, (rest < 0) != (_divisor(s) < 0)), rest + y, rest)


def _power(s: Apply, x: Term, y: Term) -> Term:
    n = s.args[1].value if isinstance(s.args[1], Const) else -1
    if not isinstance(n, int) or not 0 <= n <= _LARGEST_POWER:
        raise Unsupported(f"the power {n} as words")
    total: Term = z3.BitVecVal(1, _bits(s))
    for _ in range(n):
        total = total * x
    return total


def _sign(s: Apply, x: Term) -> Term:
    one = z3.BitVecVal(1, _bits(s))
    return z3.If(x == 0, one - one, z3.If(x < 0, -one, one) if _is_signed(s) else one)


def _lesser(s: Apply, x: Term, y: Term) -> Term:
    return z3.If(_less(s, x, y), x, y)


def _greater(s: Apply, x: Term, y: Term) -> Term:
    return z3.If(_less(s, x, y), y, x)


_OF_WORDS: dict[str, Callable[..., Term]] = {
    "add": lambda s, x, y: x + y,
    "subtract": lambda s, x, y: x - y,
    "multiply": lambda s, x, y: x * y,
    "negative": lambda s, x: -x,
    "square": lambda s, x: x * x,
    "integer_pow": _power,
    "abs": lambda s, x: z3.If(x < 0, -x, x) if _is_signed(s) else x,
    "sign": _sign,
    "bitwise_and": lambda s, x, y: x & y,
    "bitwise_or": lambda s, x, y: x | y,
    "bitwise_xor": lambda s, x, y: x ^ y,
    "bitwise_not": lambda s, x: ~x,
    "shift_left": lambda s, x, y: x << y,
    "shift_right_arithmetic": lambda s, x, y: x >> y,
    "shift_right_logical": lambda s, x, y: z3.LShR(x, y),
    "maximum": _greater,
    "minimum": _lesser,
    "clamp": lambda s, low, x, high: _lesser(s, _greater(s, x, low), high),
    "int_divide": _truncated,
    "remainder": _remainder,
    "floor_divide": _floored,
    "floor_mod": _modulo,
    "less": _less,
    "less_equal": _not_above,
    "greater": lambda s, x, y: _less(s, y, x),
    "greater_equal": lambda s, x, y: _not_above(s, y, x),
    "equal": lambda s, x, y: x == y,
    "not_equal": lambda s, x, y: x != y,
}

_OF_FLOATS: dict[str, Callable[..., Term]] = {
    "negative": lambda s, x: z3.fpNeg(x),
    "abs": lambda s, x: z3.fpAbs(x),
    "maximum": _extreme,
    "minimum": _extreme,
    "less": lambda s, x, y: z3.fpLT(x, y),
    "less_equal": lambda s, x, y: z3.fpLEQ(x, y),
    "greater": lambda s, x, y: z3.fpGT(x, y),
    "greater_equal": lambda s, x, y: z3.fpGEQ(x, y),
    "equal": lambda s, x, y: z3.fpEQ(x, y),
    "not_equal": lambda s, x, y: z3.fpNEQ(x, y),
    "is_nan": lambda s, x: z3.fpIsNaN(x),
    "is_finite": lambda s, x: z3.Not(z3.Or(z3.fpIsNaN(x), z3.fpIsInf(x))),
}

_OF_TRUTH: dict[str, Callable[..., Term]] = {
    "bitwise_and": lambda s, x, y: z3.And(x, y),
    "bitwise_or": lambda s, x, y: z3.Or(x, y),
    "bitwise_xor": lambda s, x, y: z3.Xor(x, y),
    "bitwise_not": lambda s, x: z3.Not(x),
    "maximum": lambda s, x, y: z3.Or(x, y),
    "minimum": lambda s, x, y: z3.And(x, y),
    "clamp": lambda s, low, x, high: z3.And(z3.Or(x, low), high),
    "less": lambda s, x, y: z3.And(z3.Not(x), y),
    "less_equal": lambda s, x, y: z3.Or(z3.Not(x), y),
    "greater": lambda s, x, y: z3.And(x, z3.Not(y)),
    "greater_equal": lambda s, x, y: z3.Or(x, z3.Not(y)),
    "equal": lambda s, x, y: x == y,
    "not_equal": lambda s, x, y: x != y,
}
