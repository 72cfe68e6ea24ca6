"""The scalar functions of index equations: one record each, in `FUNCTIONS`.

Flop weights: 0 for what only moves, selects a part or renames; 1 for one arithmetic instruction; `DIVIDE` for
division and square root, `TRANSCENDENTAL` for exp, log, sin and their relatives, `SPECIAL` for erf, lgamma and theirs,
`SERIES` for what is summed until it converges.
They rank programs by arithmetic work; a device profile turns them into time.

The numpy implementations compute what XLA computes: maximum and minimum propagate NaN, integers wrap, division and
remainder of integers truncate, x/0 is -1 and x rem 0 is x.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from relax_eg.errors import ShapeError
from relax_eg.tir import exact, special

Array = np.ndarray[Any, Any]

DIVIDE = 4
TRANSCENDENTAL = 10
SPECIAL = 20
SERIES = 160

_KINDS = {"bool": "b", "int": "i", "uint": "u", "float": "f", "bfloat": "f", "complex": "c"}

# Words of 32 bits in one PRNG key of each kind that JAX's generators have; the dtype is `key<fry>` and so on.
KEY_WORDS = {"fry": 2, "rbg": 4, "urbg": 4}

_COMPLEX = {"float32": "complex64", "float64": "complex128"}


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function.

    `compute`: on numpy arrays. `accepts`: kinds of dtype it takes (b bool, i int, u unsigned, f float, c complex).
    `result`: "same" as the arguments, which agree; "first" argument's; "real" and "complex" counterparts; or a dtype.
    `flops`: its weight. `exact`: on ints and Fractions, or None where it is uninterpreted (see `exact.py`).
    `widens`: whether low precision is computed in a wider dtype and rounded, which what looks at bits is not.
    """

    name: str
    arity: int
    compute: Callable[..., Any]
    accepts: str
    result: str = "same"
    flops: int = 1
    exact: Callable[..., Any] | None = None
    widens: bool = True

    def dtype(self, args: Sequence[str]) -> str:
        """The result's dtype on arguments of these dtypes; ShapeError where it takes none such."""
        if len(args) != self.arity:
            raise ShapeError(f"{self.name} takes {self.arity} arguments, got {len(args)}")
        for dtype in args:
            if kind(dtype) not in self.accepts:
                accepted = " or ".join(word for word, letter in _KINDS.items() if letter in self.accepts)
                raise ShapeError(f"{self.name}({', '.join(args)}): {dtype} is not accepted; {accepted} is")
        if self.result == "first" and kind(args[1]) != "i":
            raise ShapeError(f"{self.name}({', '.join(args)}): the second argument must be a signed integer")
        if self.result != "first" and len(set(args)) > 1:
            raise ShapeError(f"{self.name}({', '.join(args)}): the dtypes differ; cast one side")
        if self.result == "real":
            return next((real for real, made in _COMPLEX.items() if made == args[0]), args[0])
        if self.result == "complex":
            if args[0] not in _COMPLEX:
                raise ShapeError(f"{self.name}({', '.join(args)}): {' or '.join(_COMPLEX)} is needed")
            return _COMPLEX[args[0]]
        return args[0] if self.result in ("same", "first") else self.result

    def __call__(self, args: Sequence[Array], dtype: str) -> Array:
        """The result, of dtype `dtype`, on arrays."""
        with np.errstate(all="ignore"):
            given = map(widen, args) if self.widens else args
            return np.asarray(self.compute(*given)).astype(dtype, copy=False)


@lru_cache(64)
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a dtype name; a PRNG key is a record of its words."""
    if kind(dtype) == "k":
        return np.dtype([(dtype[4:-1], np.uint32, (KEY_WORDS[dtype[4:-1]],))])
    return np.dtype(dtype)


@lru_cache(64)
def kind(dtype: str) -> str:
    """The letter of a dtype's kind: b, i, u, f or c; k for a PRNG key, which is moved only."""
    for word, letter in _KINDS.items():
        if dtype.startswith(word):
            return letter
    if dtype.startswith("key<") and dtype[4:-1] in KEY_WORDS:
        return "k"
    raise ShapeError(f"unknown dtype {dtype!r}; accepted: bool, int*, uint*, float*, bfloat16, complex*, key<*>")


def widen(x: Array, *, sums: bool = False) -> Array:
    """`x` in a dtype that numpy computes in; rounding one operation's result back gives the narrow dtype's.

    With `sums`, also float16 becomes float32, to be summed in.
    """
    if sums and x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype.kind == "V" or x.dtype == ml_dtypes.float8_e5m2:
        narrow = {"int4": np.int8, "uint4": np.uint8}
        return x.astype(narrow.get(x.dtype.name, np.float32))
    return x


def _int_divide(a: Array, b: Array) -> Array:
    by = np.where(b == 0, 1, b).astype(b.dtype)
    return np.where(b == 0, -np.ones_like(b), (a - np.fmod(a, by)) // by)


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, b)) if a.dtype.kind in "iu" else np.fmod(a, b)


def _integer_pow(x: Array, n: Array) -> Array:
    exponent = int(n.reshape(-1)[0]) if n.size else 1
    result, base, left = np.ones_like(x), x, abs(exponent)
    while left:  # the products XLA forms
        result = result * base if left & 1 else result
        base, left = base * base, left >> 1
    return 1 / result if exponent < 0 else result


def _round_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x)) + (np.abs(x) - np.floor(np.abs(x)) >= 0.5), x)


def _shift(x: Array, by: Array, shifted: Callable[[Array, Array], Array], beyond: Any) -> Array:
    """`shifted(x, by)`, and `beyond` where `by` is not within the width."""
    width = 8 * x.dtype.itemsize
    inside = (by >= 0) & (by < width)
    return np.where(inside, shifted(x, np.where(inside, by, 0)), beyond)


def _shift_right_logical(x: Array, by: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return _shift(x.view(unsigned), by.view(unsigned), np.right_shift, 0).view(x.dtype)


def _leading_zeros(x: Array) -> Array:
    unsigned, zeros = x.view(f"u{x.dtype.itemsize}"), np.full(x.shape, 8 * x.dtype.itemsize)
    while unsigned.any():
        zeros, unsigned = zeros - (unsigned != 0), unsigned >> 1
    return zeros


def _complex(re: Array, im: Array) -> Array:
    made = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re, np.complex64))
    made.real, made.imag = re, im  # re + 1j*im would make NaN of infinities
    return made


def _unknown(name: str) -> Callable[..., Any]:
    return lambda *args: exact.uninterpreted(name, *args)


_ROWS = (
    # arithmetic
    Function("add", 2, np.add, "iufc", exact=exact.add),
    Function("subtract", 2, np.subtract, "iufc", exact=exact.subtract),
    Function("multiply", 2, np.multiply, "iufc", exact=exact.multiply),
    Function("divide", 2, np.divide, "fc", flops=DIVIDE, exact=exact.true_divide),
    Function("int_divide", 2, _int_divide, "iu", flops=DIVIDE, exact=exact.finite(exact.truncated_quotient)),
    Function("floor_divide", 2, np.floor_divide, "iuf", flops=DIVIDE, exact=exact.finite(operator.floordiv)),
    Function("remainder", 2, _remainder, "iuf", flops=DIVIDE, exact=exact.finite(exact.truncated_remainder)),
    Function("floor_mod", 2, np.mod, "iuf", flops=DIVIDE, exact=exact.finite(operator.mod)),
    Function("power", 2, np.power, "fc", flops=2 * TRANSCENDENTAL, exact=exact.finite(exact.power)),
    Function("integer_pow", 2, _integer_pow, "iufc", "first", 2, exact.finite(exact.integer_pow)),
    Function("square", 1, np.square, "iufc", exact=exact.square),
    Function("reciprocal", 1, lambda x: 1 / x, "fc", flops=DIVIDE, exact=exact.reciprocal),
    Function("negative", 1, np.negative, "iufc", exact=exact.negative),
    Function("abs", 1, np.abs, "iufc", "real", exact=abs),
    Function("sign", 1, np.sign, "iufc", exact=exact.sign),
    Function("floor", 1, np.floor, "f", exact=exact.rounding(math.floor)),
    Function("ceil", 1, np.ceil, "f", exact=exact.rounding(math.ceil)),
    Function("trunc", 1, np.trunc, "f", exact=exact.rounding(math.trunc)),
    Function("round", 1, np.rint, "f", exact=exact.rounding(round)),
    Function("round_away", 1, _round_away, "f", exact=exact.rounding(exact.round_away)),
    Function("maximum", 2, np.maximum, "biufc", exact=max),
    Function("minimum", 2, np.minimum, "biufc", exact=min),
    Function("clamp", 3, lambda low, x, high: np.minimum(np.maximum(x, low), high), "biuf", flops=2,
             exact=lambda low, x, high: min(max(x, low), high)),
    # roots, exponentials, logarithms
    Function("sqrt", 1, np.sqrt, "fc", flops=DIVIDE),
    Function("rsqrt", 1, lambda x: 1 / np.sqrt(x), "fc", flops=DIVIDE, exact=exact.rsqrt),
    Function("cbrt", 1, np.cbrt, "f", flops=TRANSCENDENTAL),
    Function("exp", 1, np.exp, "fc", flops=TRANSCENDENTAL),
    Function("exp2", 1, np.exp2, "fc", flops=TRANSCENDENTAL),
    Function("expm1", 1, np.expm1, "fc", flops=TRANSCENDENTAL, exact=exact.expm1),
    Function("log", 1, np.log, "fc", flops=TRANSCENDENTAL),
    Function("log1p", 1, np.log1p, "fc", flops=TRANSCENDENTAL, exact=exact.log1p),
    Function("sigmoid", 1, lambda x: scipy.special.expit(x) if x.dtype.kind == "f" else 1 / (1 + np.exp(-x)), "fc",
             flops=TRANSCENDENTAL, exact=exact.sigmoid),
    # circular and hyperbolic
    Function("sin", 1, np.sin, "fc", flops=TRANSCENDENTAL),
    Function("cos", 1, np.cos, "fc", flops=TRANSCENDENTAL),
    Function("tan", 1, np.tan, "fc", flops=TRANSCENDENTAL, exact=exact.tan),
    Function("asin", 1, np.arcsin, "fc", flops=TRANSCENDENTAL),
    Function("acos", 1, np.arccos, "fc", flops=TRANSCENDENTAL),
    Function("atan", 1, np.arctan, "fc", flops=TRANSCENDENTAL),
    Function("atan2", 2, np.arctan2, "f", flops=TRANSCENDENTAL),
    Function("sinh", 1, np.sinh, "fc", flops=TRANSCENDENTAL),
    Function("cosh", 1, np.cosh, "fc", flops=TRANSCENDENTAL),
    Function("tanh", 1, np.tanh, "fc", flops=TRANSCENDENTAL),
    Function("asinh", 1, np.arcsinh, "fc", flops=TRANSCENDENTAL),
    Function("acosh", 1, np.arccosh, "fc", flops=TRANSCENDENTAL),
    Function("atanh", 1, np.arctanh, "fc", flops=TRANSCENDENTAL),
    # special
    Function("erf", 1, scipy.special.erf, "f", flops=SPECIAL),
    Function("erfc", 1, scipy.special.erfc, "f", flops=SPECIAL, exact=exact.erfc),
    Function("erf_inv", 1, scipy.special.erfinv, "f", flops=SPECIAL),
    Function("lgamma", 1, scipy.special.gammaln, "f", flops=SPECIAL),
    Function("digamma", 1, scipy.special.digamma, "f", flops=SPECIAL),
    Function("bessel_i0e", 1, special.in_double(scipy.special.i0e), "f", flops=SPECIAL),
    Function("bessel_i1e", 1, special.in_double(scipy.special.i1e), "f", flops=SPECIAL),
    Function("igamma", 2, special.in_double(scipy.special.gammainc), "f", flops=SERIES),
    Function("igammac", 2, special.in_double(scipy.special.gammaincc), "f", flops=SERIES),
    Function("igamma_grad_a", 2, special.in_double(special.igamma_grad_a), "f", flops=SERIES),
    Function("betainc", 3, special.in_double(scipy.special.betainc), "f", flops=SERIES),
    Function("polygamma", 2, special.in_double(special.polygamma), "f", flops=SERIES),
    Function("zeta", 2, special.in_double(scipy.special.zeta), "f", flops=SERIES),
    # comparisons
    Function("equal", 2, np.equal, "biufc", "bool", exact=operator.eq),
    Function("not_equal", 2, np.not_equal, "biufc", "bool", exact=operator.ne),
    Function("less", 2, np.less, "biuf", "bool", exact=operator.lt),
    Function("less_equal", 2, np.less_equal, "biuf", "bool", exact=operator.le),
    Function("greater", 2, np.greater, "biuf", "bool", exact=operator.gt),
    Function("greater_equal", 2, np.greater_equal, "biuf", "bool", exact=operator.ge),
    Function("less_total", 2, special.total(np.less), "f", "bool", widens=False),
    Function("less_equal_total", 2, special.total(np.less_equal), "f", "bool", widens=False),
    Function("equal_total", 2, special.total(np.equal), "f", "bool", widens=False),
    Function("is_finite", 1, np.isfinite, "fc", "bool", exact=lambda x: not isinstance(x, float)),
    Function("is_nan", 1, np.isnan, "fc", "bool", exact=lambda x: False),
    # bits; on bool these are the logical connectives
    Function("bitwise_and", 2, np.bitwise_and, "biu", exact=operator.and_),
    Function("bitwise_or", 2, np.bitwise_or, "biu", exact=operator.or_),
    Function("bitwise_xor", 2, np.bitwise_xor, "biu", exact=operator.xor),
    Function("bitwise_not", 1, np.bitwise_not, "biu", exact=exact.invert),
    Function("shift_left", 2, lambda x, by: _shift(x, by, np.left_shift, 0), "iu", exact=exact.shift_left),
    Function("shift_right_arithmetic", 2, lambda x, by: _shift(x, by, np.right_shift, np.where(x < 0, -1, 0)), "i",
             exact=exact.shift_right),
    Function("shift_right_logical", 2, _shift_right_logical, "iu", exact=exact.shift_right_logical),
    Function("population_count", 1, lambda x: np.bitwise_count(x.view(f"u{x.dtype.itemsize}")), "iu"),
    Function("count_leading_zeros", 1, _leading_zeros, "iu"),
    Function("nextafter", 2, np.nextafter, "f", flops=DIVIDE, widens=False),
    # x, and bits of exponent and of mantissa, two constants
    Function("reduce_precision", 3, special.reduce_precision, "fi", "first", DIVIDE, widens=False),
    # complex
    Function("real", 1, np.real, "c", "real", flops=0),
    Function("imag", 1, np.imag, "c", "real", flops=0),
    Function("conj", 1, np.conj, "c", flops=0),
    Function("complex", 2, _complex, "f", "complex", flops=0),
)  # fmt: skip


def _bits_as(dtype: str) -> Function:
    """The bits of a number read as one of `dtype`, of the same width."""
    return Function(f"bits_as_{dtype}", 1, lambda x: x.view(dtype), "iuf", dtype, 0, widens=False)


_BITS = tuple(
    _bits_as(dtype)
    for dtype in (
        "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "int16", "uint16", "float16", "bfloat16", "int32", "uint32",
        "float32", "int64", "uint64", "float64",
    )
)  # fmt: skip

FUNCTIONS: dict[str, Function] = {row.name: row for row in (*_ROWS, *_BITS)}

# What keeps its meaning on complex numbers when they are tested as points of the real line.
_RING = frozenset(
    {"add", "subtract", "multiply", "divide", "square", "reciprocal", "negative", "integer_pow", "equal", "not_equal"}
)


def exact_function(function: Function, argument: str) -> Callable[..., Any]:
    """`function` on exact values of dtype `argument`, uninterpreted where it has no exact meaning."""
    if function.exact is None or (kind(argument) == "c" and function.name not in _RING):
        return _unknown(function.name)
    return function.exact
