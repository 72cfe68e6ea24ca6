"""The scalar functions of index equations: one record each, in `FUNCTIONS`.

Flop weights: 0 for moves, selecting a part, and renaming; 1 for one arithmetic instruction; `DIVIDE` for division and
square root; `TRANSCENDENTAL` for exp, log, sin and similar; `SPECIAL` for erf, lgamma and similar; `SERIES` for
functions summed until convergence. They rank programs by arithmetic work; a device profile turns them into time.

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
from relax_eg.limits import FEW_KEPT
from relax_eg.tir import exact, special

Array = np.ndarray[Any, Any]

DIVIDE = 4  # chosen: flops of a division or a square root
TRANSCENDENTAL = 10  # chosen: flops of exp, log, sin and similar functions
SPECIAL = 20  # chosen: flops of erf, lgamma and similar functions
SERIES = 160  # chosen: flops of functions summed until convergence

_KINDS = {"bool": "b", "int": "i", "uint": "u", "float": "f", "bfloat": "f", "complex": "c"}

# given: 32-bit words in one PRNG key of each of JAX's generators; the dtype is `key<fry>` and so on.
KEY_WORDS = {"fry": 2, "rbg": 4, "urbg": 4}

_COMPLEX = {"float32": "complex64", "float64": "complex128"}


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A scalar function.

    - `compute`: implementation on numpy arrays.
    - `accepts`: kinds of dtype it takes (b bool, i int, u unsigned, f float, c complex).
    - `result`: dtype of the result: "same" as the arguments, which agree; that of the "first" argument; the "real" or
      "complex" counterpart; or a dtype.
    - `flops`: flop weight.
    - `exact`: implementation on ints and Fractions, or None if uninterpreted (see `exact.py`).
    - `widens`: whether low precision is computed in a wider dtype and rounded. False for functions that inspect bits.
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
        """Returns the result's dtype for arguments of these dtypes. ShapeError if they are not accepted."""
        if len(args) != self.arity:
            raise ShapeError(f"{self.name} takes {self.arity} arguments, got {len(args)}")
        for dtype in args[:1] if self.result == "first" else args:
            if kind(dtype) not in self.accepts:
                accepted = " or ".join(word for word, letter in _KINDS.items() if letter in self.accepts)
                raise ShapeError(f"{self.name}({', '.join(args)}): {dtype} is not accepted; {accepted} is")
        if self.result == "first" and any(kind(dtype) != "i" for dtype in args[1:]):
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
        """Returns the result on arrays, as dtype `dtype`."""
        with np.errstate(all="ignore"):
            given = map(widen, args) if self.widens else args
            return np.asarray(self.compute(*given)).astype(dtype, copy=False)


@lru_cache(FEW_KEPT)
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a dtype name. A PRNG key is a record of its words."""
    if kind(dtype) == "k":
        return np.dtype([(dtype[4:-1], np.uint32, (KEY_WORDS[dtype[4:-1]],))])
    return np.dtype(dtype)


@lru_cache(FEW_KEPT)
def kind(dtype: str) -> str:
    """Returns the letter of a dtype's kind: b, i, u, f or c; k for a PRNG key, which can only be moved."""
    for word, letter in _KINDS.items():
        if dtype.startswith(word):
            return letter
    if dtype.startswith("key<") and dtype[4:-1] in KEY_WORDS:
        return "k"
    raise ShapeError(f"unknown dtype {dtype!r}; accepted: bool, int*, uint*, float*, bfloat16, complex*, key<*>")


def widen(x: Array, *, sums: bool = False) -> Array:
    """Returns `x` in a dtype that numpy computes in. Rounding one operation's result back gives the narrow dtype's
    result.

    With `sums`, float16 also becomes float32, for summation.
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
    while left:  # forms the same products as XLA
        result = result * base if left & 1 else result
        base, left = base * base, left >> 1
    return 1 / result if exponent < 0 else result


def _round_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x)) + (np.abs(x) - np.floor(np.abs(x)) >= 0.5), x)


def _shift(x: Array, by: Array, shifted: Callable[[Array, Array], Array], beyond: Any) -> Array:
    """Returns `shifted(x, by)`, and `beyond` where `by` is outside 0..width-1."""
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
    made.real, made.imag = re, im  # re + 1j*im would turn infinities into NaN
    return made


def _unknown(name: str) -> Callable[..., Any]:
    return lambda *args: exact.uninterpreted(name, *args)


# given: operands and flops of functions
_ROWS = (
    # arithmetic
    ScalarFunction("add", 2, np.add, "iufc", exact=exact.add),
    ScalarFunction("subtract", 2, np.subtract, "iufc", exact=exact.subtract),
    ScalarFunction("multiply", 2, np.multiply, "iufc", exact=exact.multiply),
    ScalarFunction("divide", 2, np.divide, "fc", flops=DIVIDE, exact=exact.true_divide),
    ScalarFunction("int_divide", 2, _int_divide, "iu", flops=DIVIDE, exact=exact.finite(exact.truncated_quotient)),
    ScalarFunction("floor_divide", 2, np.floor_divide, "iuf", flops=DIVIDE, exact=exact.finite(operator.floordiv)),
    ScalarFunction("remainder", 2, _remainder, "iuf", flops=DIVIDE, exact=exact.finite(exact.truncated_remainder)),
    ScalarFunction("floor_mod", 2, np.mod, "iuf", flops=DIVIDE, exact=exact.finite(operator.mod)),
    ScalarFunction("power", 2, np.power, "fc", flops=2 * TRANSCENDENTAL, exact=exact.finite(exact.power)),
    ScalarFunction("integer_pow", 2, _integer_pow, "iufc", "first", 2, exact.finite(exact.integer_pow)),
    ScalarFunction("square", 1, np.square, "iufc", exact=exact.square),
    ScalarFunction("reciprocal", 1, lambda x: 1 / x, "fc", flops=DIVIDE, exact=exact.reciprocal),
    ScalarFunction("negative", 1, np.negative, "iufc", exact=exact.negative),
    ScalarFunction("abs", 1, np.abs, "iufc", "real", exact=abs),
    ScalarFunction("sign", 1, np.sign, "iufc", exact=exact.sign),
    ScalarFunction("floor", 1, np.floor, "f", exact=exact.rounding(math.floor)),
    ScalarFunction("ceil", 1, np.ceil, "f", exact=exact.rounding(math.ceil)),
    ScalarFunction("trunc", 1, np.trunc, "f", exact=exact.rounding(math.trunc)),
    ScalarFunction("round", 1, np.rint, "f", exact=exact.rounding(round)),
    ScalarFunction("round_away", 1, _round_away, "f", exact=exact.rounding(exact.round_away)),
    ScalarFunction("maximum", 2, np.maximum, "biufc", exact=max),
    ScalarFunction("minimum", 2, np.minimum, "biufc", exact=min),
    ScalarFunction("clamp", 3, lambda low, x, high: np.minimum(np.maximum(x, low), high), "biuf", flops=2,
                   exact=lambda low, x, high: min(max(x, low), high)),
    # roots, exponentials, logarithms
    ScalarFunction("sqrt", 1, np.sqrt, "fc", flops=DIVIDE),
    ScalarFunction("rsqrt", 1, lambda x: 1 / np.sqrt(x), "fc", flops=DIVIDE, exact=exact.rsqrt),
    ScalarFunction("cbrt", 1, np.cbrt, "f", flops=TRANSCENDENTAL),
    ScalarFunction("exp", 1, np.exp, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("exp2", 1, np.exp2, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("expm1", 1, np.expm1, "fc", flops=TRANSCENDENTAL, exact=exact.expm1),
    ScalarFunction("log", 1, np.log, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("log1p", 1, np.log1p, "fc", flops=TRANSCENDENTAL, exact=exact.log1p),
    ScalarFunction("sigmoid", 1, lambda x: scipy.special.expit(x) if x.dtype.kind == "f" else 1 / (1 + np.exp(-x)),
                   "fc", flops=TRANSCENDENTAL, exact=exact.sigmoid),
    # circular and hyperbolic
    ScalarFunction("sin", 1, np.sin, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("cos", 1, np.cos, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("tan", 1, np.tan, "fc", flops=TRANSCENDENTAL, exact=exact.tan),
    ScalarFunction("asin", 1, np.arcsin, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("acos", 1, np.arccos, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("atan", 1, np.arctan, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("atan2", 2, np.arctan2, "f", flops=TRANSCENDENTAL),
    ScalarFunction("sinh", 1, np.sinh, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("cosh", 1, np.cosh, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("tanh", 1, np.tanh, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("asinh", 1, np.arcsinh, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("acosh", 1, np.arccosh, "fc", flops=TRANSCENDENTAL),
    ScalarFunction("atanh", 1, np.arctanh, "fc", flops=TRANSCENDENTAL),
    # special
    ScalarFunction("erf", 1, scipy.special.erf, "f", flops=SPECIAL),
    ScalarFunction("erfc", 1, scipy.special.erfc, "f", flops=SPECIAL, exact=exact.erfc),
    ScalarFunction("erf_inv", 1, scipy.special.erfinv, "f", flops=SPECIAL),
    ScalarFunction("lgamma", 1, scipy.special.gammaln, "f", flops=SPECIAL),
    ScalarFunction("digamma", 1, special.digamma, "f", flops=SPECIAL),
    ScalarFunction("bessel_i0e", 1, special.in_double(scipy.special.i0e), "f", flops=SPECIAL),
    ScalarFunction("bessel_i1e", 1, special.in_double(scipy.special.i1e), "f", flops=SPECIAL),
    ScalarFunction("igamma", 2, special.in_double(scipy.special.gammainc), "f", flops=SERIES),
    ScalarFunction("igammac", 2, special.in_double(scipy.special.gammaincc), "f", flops=SERIES),
    ScalarFunction("igamma_grad_a", 2, special.in_double(special.igamma_grad_a), "f", flops=SERIES),
    ScalarFunction("betainc", 3, special.in_double(scipy.special.betainc), "f", flops=SERIES),
    ScalarFunction("polygamma", 2, special.in_double(special.polygamma), "f", flops=SERIES),
    ScalarFunction("zeta", 2, special.in_double(scipy.special.zeta), "f", flops=SERIES),
    # comparisons
    ScalarFunction("equal", 2, np.equal, "biufc", "bool", exact=operator.eq),
    ScalarFunction("not_equal", 2, np.not_equal, "biufc", "bool", exact=operator.ne),
    ScalarFunction("less", 2, np.less, "biuf", "bool", exact=operator.lt),
    ScalarFunction("less_equal", 2, np.less_equal, "biuf", "bool", exact=operator.le),
    ScalarFunction("greater", 2, np.greater, "biuf", "bool", exact=operator.gt),
    ScalarFunction("greater_equal", 2, np.greater_equal, "biuf", "bool", exact=operator.ge),
    ScalarFunction("less_total", 2, special.total(np.less), "f", "bool", widens=False),
    ScalarFunction("less_equal_total", 2, special.total(np.less_equal), "f", "bool", widens=False),
    ScalarFunction("equal_total", 2, special.total(np.equal), "f", "bool", widens=False),
    ScalarFunction("is_finite", 1, np.isfinite, "fc", "bool", exact=lambda x: not isinstance(x, float)),
    ScalarFunction("is_nan", 1, np.isnan, "fc", "bool", exact=lambda x: False),
    # bits; on bool these are the logical connectives
    ScalarFunction("bitwise_and", 2, np.bitwise_and, "biu", exact=operator.and_),
    ScalarFunction("bitwise_or", 2, np.bitwise_or, "biu", exact=operator.or_),
    ScalarFunction("bitwise_xor", 2, np.bitwise_xor, "biu", exact=operator.xor),
    ScalarFunction("bitwise_not", 1, np.bitwise_not, "biu", exact=exact.invert),
    ScalarFunction("shift_left", 2, lambda x, by: _shift(x, by, np.left_shift, 0), "iu", exact=exact.shift_left),
    ScalarFunction("shift_right_arithmetic", 2, lambda x, by: _shift(x, by, np.right_shift, np.where(x < 0, -1, 0)),
                   "i", exact=exact.shift_right),
    ScalarFunction("shift_right_logical", 2, _shift_right_logical, "iu", exact=exact.shift_right_logical),
    ScalarFunction("population_count", 1, lambda x: np.bitwise_count(x.view(f"u{x.dtype.itemsize}")), "iu"),
    ScalarFunction("count_leading_zeros", 1, _leading_zeros, "iu"),
    ScalarFunction("nextafter", 2, np.nextafter, "f", flops=DIVIDE, widens=False),
    # x, and the bits of exponent and of mantissa, two constants
    ScalarFunction("reduce_precision", 3, special.reduce_precision, "f", "first", DIVIDE, widens=False),
    # complex
    ScalarFunction("real", 1, np.real, "c", "real", flops=0),
    ScalarFunction("imag", 1, np.imag, "c", "real", flops=0),
    ScalarFunction("conj", 1, np.conj, "c", flops=0),
    ScalarFunction("complex", 2, _complex, "f", "complex", flops=0),
)  # fmt: skip


def _bits_as(dtype: str) -> ScalarFunction:
    """Reinterprets the bits of a number as `dtype` of the same width."""
    return ScalarFunction(f"bits_as_{dtype}", 1, lambda x: x.view(dtype), "iuf", dtype, 0, widens=False)


_BITS = tuple(
    _bits_as(dtype)
    for dtype in (
        "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "int16", "uint16", "float16", "bfloat16", "int32", "uint32",
        "float32", "int64", "uint64", "float64",
    )
)  # fmt: skip

FUNCTIONS: dict[str, ScalarFunction] = {row.name: row for row in (*_ROWS, *_BITS)}

# Functions that keep their meaning when complex numbers are tested as points of the real line.
_RING = frozenset(
    {"add", "subtract", "multiply", "divide", "square", "reciprocal", "negative", "integer_pow", "equal", "not_equal"}
)


def exact_function(function: ScalarFunction, argument: str) -> Callable[..., Any]:
    """Returns `function` on exact values of dtype `argument`, or an uninterpreted function if it has no exact
    meaning."""
    if function.exact is None or (kind(argument) == "c" and function.name not in _RING):
        return _unknown(function.name)
    return function.exact
