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
from typing import Any, Literal, NamedTuple

import numpy as np

from relax_eg.dtypes import KINDS, PARTS, dtype_of, kind, names_where, record_of
from relax_eg.errors import ShapeError
from relax_eg.limits import FEW_KEPT
from relax_eg.tir import exact, special

Array = np.ndarray[Any, Any]

DIVIDE = 4  # chosen: flops of a division or a square root
TRANSCENDENTAL = 10  # chosen: flops of exp, log, sin and similar functions
SPECIAL = 20  # chosen: flops of erf, lgamma and similar functions
SERIES = 160  # chosen: flops of functions summed until convergence


Trait = Literal[
    "commutes",  # its arguments may be exchanged, bit for bit; those of `maximum` may not: two zeros may give either
    "idempotent",  # f(x, x) is x
    "total",  # a function of reals that has a value at all real numbers, or a function of integers
    "increasing",  # a total function of reals that never decreases with its argument
    "decreasing",  # a total function of reals that never increases with its argument
    "rises",  # never decreases with an argument of at least 0; it may be infinite at 0
    "falls",  # never increases with an argument greater than 0
    "smooth",  # a function of floats that is not piecewise
    "rounds",  # gives a whole number near its argument
    "jumps",  # discontinuous: the last bit of an argument matters
    "ring",  # keeps its meaning when complex numbers are tested as points of the real line
    "nan",  # a function of one argument that gives NaN for NaN
    "infinite",  # never makes a number of an infinity or NaN among its arguments (`divide`: except as the divisor)
    "bounded",  # finite for all finite real arguments; one that takes complex numbers only, for all of these
    "sign",  # of real numbers it has the sign of its argument, and it is a number for arguments of at least 0
    "underflows",  # of real numbers it is greater than 0, and it rounds to 0 at some
    "poles",  # has poles at numbers of its domain, near which the sign of a zero decides the result
    "unrounded",  # of floats it gives an argument, the negative of one, or a whole number: nothing is rounded away
]


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A scalar function.

    - `name`, `arity`: its name in equations, and its number of arguments.
    - `compute`: implementation on numpy arrays.
    - `accepts`: kinds of dtype it takes (b bool, i int, u unsigned, f float, c complex).
    - `result`: dtype of the result: "same" as the arguments, which agree; that of the "first" argument; the "real" or
      "complex" counterpart; or a dtype.
    - `flops`: flop weight.
    - `exact`: implementation on ints and Fractions, or None if uninterpreted (see `exact.py`).
    - `widens`: whether low precision is computed in a wider dtype and rounded. False for functions that inspect bits.
    - `symbol`: the operator of Python for it, or "".
    - `lax`: the name of its primitive in jax.lax, or "" where that is its own name, or where there is none.
    - `traits`: words of `Trait`, separated by spaces.
    """

    name: str
    arity: int
    compute: Callable[..., Any]
    accepts: str
    result: str = "same"
    flops: int = 1
    exact: Callable[..., Any] | None = None
    widens: bool = True
    symbol: str = ""
    lax: str = ""
    traits: str = ""

    @property
    def primitive(self) -> str:
        """The name of its primitive in jax.lax."""
        return self.lax or self.name

    @property
    def is_real(self) -> bool:
        """Whether neither its arguments nor its result have to be complex."""
        return self.accepts != "c" and self.result != "complex"

    def dtype(self, args: Sequence[str]) -> str:
        """Returns the result's dtype for arguments of these dtypes. ShapeError if they are not accepted."""
        if len(args) != self.arity:
            raise ShapeError(f"{self.name} takes {self.arity} arguments, got {len(args)}")
        for dtype in args[:1] if self.result == "first" else args:
            if kind(dtype) not in self.accepts:
                accepted = " or ".join(word for letter, word in KINDS.items() if letter in self.accepts)
                raise ShapeError(f"{self.name}({', '.join(args)}): {dtype} is not accepted; {accepted} is")
        if self.result == "first" and any(kind(dtype) != "i" for dtype in args[1:]):
            raise ShapeError(f"{self.name}({', '.join(args)}): the second argument must be a signed integer")
        if self.result != "first" and len(set(args)) > 1:
            raise ShapeError(f"{self.name}({', '.join(args)}): the dtypes differ; cast one side")
        if self.result == "real":
            return dtype_of(args[0]).part.name
        if self.result == "complex":
            made = dtype_of(args[0]).complex
            if made is None:
                raise ShapeError(f"{self.name}({', '.join(args)}): {' or '.join(PARTS)} is needed")
            return made.name
        return args[0] if self.result in ("same", "first") else self.result

    def __call__(self, args: Sequence[Array], dtype: str) -> Array:
        """Returns the result on arrays, as dtype `dtype`."""
        with np.errstate(all="ignore"):
            given = map(widen, args) if self.widens else args
            return np.asarray(self.compute(*given)).astype(dtype, copy=False)


def widen(x: Array, *, sums: bool = False) -> Array:
    """Returns `x` in a dtype that numpy computes in. Rounding one operation's result back gives the narrow dtype's
    result.

    With `sums`, float16 also becomes float32, for summation.
    """
    dtype = record_of(x.dtype)
    return x if dtype.is_native and not sums else x.astype(dtype.wider.numpy, copy=False)


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


def _multiply_high(x: Array, y: Array) -> Array:
    bits = record_of(x.dtype).bits
    return np.asarray(np.frompyfunc(lambda a, b: int(a) * int(b) >> bits, 2, 1)(x, y))


def identity(reduction: str, dtype: str) -> Any:
    """Returns the value of a reduction over no elements, as a Python number."""
    record = dtype_of(dtype)
    if reduction in ("max", "min"):
        return record.extreme(reduction == "min")
    if record.kind == "b":
        return reduction == "all"
    if reduction == "all":
        return record.greatest if record.kind == "u" else -1
    return int(reduction == "prod")


def _uninterpreted(name: str) -> Callable[..., Any]:
    return lambda *args: exact.uninterpreted_value(name, *args)


class Reduction(NamedTuple):
    """A kind of reduction.

    - `function`: the scalar function that combines two elements.
    - `primitive`: the name of its primitive in jax.lax.
    """

    function: str
    primitive: str


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("add", "reduce_sum"), "prod": Reduction("multiply", "reduce_prod"),
    "max": Reduction("maximum", "reduce_max"), "min": Reduction("minimum", "reduce_min"),
    "any": Reduction("bitwise_or", "reduce_or"), "all": Reduction("bitwise_and", "reduce_and"),
    "xor": Reduction("bitwise_xor", "reduce_xor"),
}  # fmt: skip


# given: operands and flops of functions
_ROWS = (
    # arithmetic
    ScalarFunction("add", 2, np.add, "iufc", exact=exact.add, symbol="+", traits="commutes smooth ring infinite"),
    ScalarFunction("subtract", 2, np.subtract, "iufc", exact=exact.subtract,
                   symbol="-", lax="sub", traits="smooth ring infinite"),
    ScalarFunction("multiply", 2, np.multiply, "iufc", exact=exact.multiply,
                   symbol="*", lax="mul", traits="commutes smooth ring infinite"),
    ScalarFunction("divide", 2, np.divide, "fc", flops=DIVIDE, exact=exact.true_divide,
                   symbol="/", lax="div", traits="smooth ring infinite"),
    ScalarFunction("int_divide", 2, _int_divide, "iu", flops=DIVIDE, exact=exact.finite(exact.truncated_quotient)),
    ScalarFunction("floor_divide", 2, np.floor_divide, "iuf", flops=DIVIDE, exact=exact.finite(operator.floordiv),
                   symbol="//", traits="jumps"),
    ScalarFunction("remainder", 2, _remainder, "iuf", flops=DIVIDE, exact=exact.finite(exact.truncated_remainder),
                   lax="rem", traits="jumps"),
    ScalarFunction("floor_mod", 2, np.mod, "iuf", flops=DIVIDE, exact=exact.finite(operator.mod),
                   symbol="%", traits="jumps"),
    ScalarFunction("power", 2, np.power, "fc", flops=2 * TRANSCENDENTAL, exact=exact.finite(exact.power),
                   lax="pow", traits="smooth poles"),
    ScalarFunction("integer_pow", 2, _integer_pow, "iufc", "first", 2, exact.finite(exact.integer_pow),
                   traits="smooth ring"),
    ScalarFunction("square", 1, np.square, "iufc", exact=exact.square, traits="rises smooth ring"),
    ScalarFunction("reciprocal", 1, lambda x: 1 / x, "fc", flops=DIVIDE, exact=exact.reciprocal,
                   traits="falls smooth ring poles"),
    ScalarFunction("negative", 1, np.negative, "iufc", exact=exact.negative,
                   lax="neg", traits="total decreasing smooth ring nan infinite bounded unrounded"),
    ScalarFunction("abs", 1, np.abs, "iufc", "real", exact=abs, traits="rises total nan infinite bounded unrounded"),
    ScalarFunction("sign", 1, np.sign, "iufc", exact=exact.sign,
                   traits="total increasing jumps nan bounded unrounded sign"),
    ScalarFunction("floor", 1, np.floor, "f", exact=exact.rounding(math.floor),
                   traits="total increasing rounds jumps nan infinite bounded unrounded"),
    ScalarFunction("ceil", 1, np.ceil, "f", exact=exact.rounding(math.ceil),
                   traits="total increasing rounds jumps nan infinite bounded unrounded"),
    ScalarFunction("trunc", 1, np.trunc, "f", exact=exact.rounding(math.trunc),
                   traits="total increasing rounds jumps nan unrounded"),
    ScalarFunction("round", 1, np.rint, "f", exact=exact.rounding(round),
                   traits="total increasing rounds jumps nan bounded unrounded"),
    ScalarFunction("round_away", 1, _round_away, "f", exact=exact.rounding(exact.round_away),
                   traits="total increasing rounds jumps nan bounded unrounded"),
    ScalarFunction("maximum", 2, np.maximum, "biufc", exact=max, lax="max", traits="idempotent bounded unrounded"),
    ScalarFunction("minimum", 2, np.minimum, "biufc", exact=min, lax="min", traits="idempotent bounded unrounded"),
    ScalarFunction("clamp", 3, lambda low, x, high: np.minimum(np.maximum(x, low), high), "biuf", flops=2,
                   exact=lambda low, x, high: min(max(x, low), high), traits="total unrounded"),
    # roots, exponentials, logarithms
    ScalarFunction("sqrt", 1, np.sqrt, "fc", flops=DIVIDE, traits="rises smooth nan infinite"),
    ScalarFunction("rsqrt", 1, lambda x: 1 / np.sqrt(x), "fc", flops=DIVIDE, exact=exact.rsqrt,
                   traits="falls smooth poles"),
    ScalarFunction("cbrt", 1, np.cbrt, "f", flops=TRANSCENDENTAL, traits="total increasing smooth nan sign bounded"),
    ScalarFunction("exp", 1, np.exp, "fc", flops=TRANSCENDENTAL, traits="total increasing smooth nan underflows"),
    ScalarFunction("exp2", 1, np.exp2, "fc", flops=TRANSCENDENTAL, traits="total increasing smooth nan underflows"),
    ScalarFunction("expm1", 1, np.expm1, "fc", flops=TRANSCENDENTAL, exact=exact.expm1,
                   traits="total increasing smooth nan sign"),
    ScalarFunction("log", 1, np.log, "fc", flops=TRANSCENDENTAL, traits="rises smooth nan infinite poles"),
    ScalarFunction("log1p", 1, np.log1p, "fc", flops=TRANSCENDENTAL, exact=exact.log1p,
                   traits="rises smooth nan poles sign"),
    ScalarFunction("sigmoid", 1, special.sigmoid, "fc", flops=TRANSCENDENTAL, exact=exact.sigmoid,
                   lax="logistic", traits="total increasing smooth nan bounded underflows"),
    # circular and hyperbolic
    ScalarFunction("sin", 1, np.sin, "fc", flops=TRANSCENDENTAL, traits="total smooth nan bounded"),
    ScalarFunction("cos", 1, np.cos, "fc", flops=TRANSCENDENTAL, traits="total smooth nan bounded"),
    ScalarFunction("tan", 1, np.tan, "fc", flops=TRANSCENDENTAL, exact=exact.tan, traits="smooth nan poles"),
    ScalarFunction("asin", 1, np.arcsin, "fc", flops=TRANSCENDENTAL, traits="smooth nan"),
    ScalarFunction("acos", 1, np.arccos, "fc", flops=TRANSCENDENTAL, traits="smooth nan"),
    ScalarFunction("atan", 1, np.arctan, "fc", flops=TRANSCENDENTAL, traits="total increasing smooth nan sign bounded"),
    ScalarFunction("atan2", 2, np.arctan2, "f", flops=TRANSCENDENTAL, traits="total"),
    ScalarFunction("sinh", 1, np.sinh, "fc", flops=TRANSCENDENTAL, traits="total increasing smooth nan sign"),
    ScalarFunction("cosh", 1, np.cosh, "fc", flops=TRANSCENDENTAL, traits="rises total smooth nan"),
    ScalarFunction("tanh", 1, np.tanh, "fc", flops=TRANSCENDENTAL, traits="total increasing smooth nan bounded sign"),
    ScalarFunction("asinh", 1, np.arcsinh, "fc", flops=TRANSCENDENTAL,
                   traits="total increasing smooth nan sign bounded"),
    ScalarFunction("acosh", 1, np.arccosh, "fc", flops=TRANSCENDENTAL, traits="smooth nan"),
    ScalarFunction("atanh", 1, np.arctanh, "fc", flops=TRANSCENDENTAL, traits="smooth nan poles"),
    # special
    ScalarFunction("erf", 1, special.of_scipy("erf"), "f", flops=SPECIAL,
                   traits="total increasing smooth nan bounded sign"),
    ScalarFunction("erfc", 1, special.of_scipy("erfc"), "f", flops=SPECIAL, exact=exact.erfc,
                   traits="total decreasing smooth nan bounded underflows"),
    ScalarFunction("erf_inv", 1, special.of_scipy("erfinv"), "f", flops=SPECIAL, traits="smooth nan poles"),
    ScalarFunction("lgamma", 1, special.of_scipy("gammaln"), "f", flops=SPECIAL, traits="smooth nan"),
    ScalarFunction("digamma", 1, special.digamma, "f", flops=SPECIAL, traits="smooth nan"),
    ScalarFunction("bessel_i0e", 1, special.computed_in_float64(special.of_scipy("i0e")), "f", flops=SPECIAL),
    ScalarFunction("bessel_i1e", 1, special.computed_in_float64(special.of_scipy("i1e")), "f", flops=SPECIAL),
    ScalarFunction("igamma", 2, special.computed_in_float64(special.of_scipy("gammainc")), "f", flops=SERIES),
    ScalarFunction("igammac", 2, special.computed_in_float64(special.of_scipy("gammaincc")), "f", flops=SERIES),
    ScalarFunction("igamma_grad_a", 2, special.computed_in_float64(special.igamma_grad_a), "f", flops=SERIES),
    ScalarFunction("betainc", 3, special.computed_in_float64(special.of_scipy("betainc")), "f", flops=SERIES),
    ScalarFunction("polygamma", 2, special.computed_in_float64(special.polygamma), "f", flops=SERIES),
    ScalarFunction("zeta", 2, special.computed_in_float64(special.of_scipy("zeta")), "f", flops=SERIES),
    # comparisons
    ScalarFunction("equal", 2, np.equal, "biufc", "bool", exact=operator.eq,
                   symbol="==", lax="eq", traits="commutes ring"),
    ScalarFunction("not_equal", 2, np.not_equal, "biufc", "bool", exact=operator.ne,
                   symbol="!=", lax="ne", traits="commutes ring"),
    ScalarFunction("less", 2, np.less, "biuf", "bool", exact=operator.lt, symbol="<", lax="lt"),
    ScalarFunction("less_equal", 2, np.less_equal, "biuf", "bool", exact=operator.le, symbol="<=", lax="le"),
    ScalarFunction("greater", 2, np.greater, "biuf", "bool", exact=operator.gt, symbol=">", lax="gt"),
    ScalarFunction("greater_equal", 2, np.greater_equal, "biuf", "bool", exact=operator.ge, symbol=">=", lax="ge"),
    ScalarFunction("less_total", 2, special.in_total_order(np.less), "f", "bool", widens=False),
    ScalarFunction("less_equal_total", 2, special.in_total_order(np.less_equal), "f", "bool", widens=False),
    ScalarFunction("equal_total", 2, special.in_total_order(np.equal), "f", "bool", widens=False),
    ScalarFunction("is_finite", 1, np.isfinite, "fc", "bool", exact=lambda x: not isinstance(x, float)),
    ScalarFunction("is_nan", 1, np.isnan, "fc", "bool", exact=lambda x: False),
    # bits; on bool these are the logical connectives
    ScalarFunction("bitwise_and", 2, np.bitwise_and, "biu", exact=operator.and_,
                   symbol="&", traits="commutes idempotent total"),
    ScalarFunction("bitwise_or", 2, np.bitwise_or, "biu", exact=operator.or_,
                   symbol="|", traits="commutes idempotent total"),
    ScalarFunction("bitwise_xor", 2, np.bitwise_xor, "biu", exact=operator.xor, symbol="^", traits="commutes total"),
    ScalarFunction("bitwise_not", 1, np.bitwise_not, "biu", exact=exact.invert, traits="total"),
    ScalarFunction("shift_left", 2, lambda x, by: _shift(x, by, np.left_shift, 0), "iu", exact=exact.shift_left,
                   symbol="<<", traits="total"),
    ScalarFunction("shift_right_arithmetic", 2, lambda x, by: _shift(x, by, np.right_shift, np.where(x < 0, -1, 0)),
                   "i", exact=exact.shift_right, traits="total"),
    ScalarFunction("shift_right_logical", 2, _shift_right_logical, "iu", exact=exact.shift_right_logical,
                   traits="total"),
    ScalarFunction("population_count", 1, lambda x: np.bitwise_count(x.view(f"u{x.dtype.itemsize}")), "iu",
                   traits="total"),
    ScalarFunction("count_leading_zeros", 1, _leading_zeros, "iu", lax="clz", traits="total"),
    # the upper half of the bits of a product
    ScalarFunction("multiply_high", 2, _multiply_high, "iu", lax="mulhi", traits="commutes total", widens=False),
    ScalarFunction("nextafter", 2, np.nextafter, "f", flops=DIVIDE, widens=False),
    # x, and the bits of exponent and of mantissa, two constants
    ScalarFunction("reduce_precision", 3, special.reduce_precision, "f", "first", DIVIDE, widens=False),
    # complex
    ScalarFunction("real", 1, np.real, "c", "real", flops=0, traits="smooth bounded"),
    ScalarFunction("imag", 1, np.imag, "c", "real", flops=0, traits="smooth bounded"),
    ScalarFunction("conj", 1, np.conj, "c", flops=0, traits="smooth bounded"),
    ScalarFunction("complex", 2, _complex, "f", "complex", flops=0, traits="smooth"),
)  # fmt: skip


def _bits_as(dtype: str) -> ScalarFunction:
    """Reinterprets the bits of a number as `dtype` of the same width."""
    return ScalarFunction(f"bits_as_{dtype}", 1, lambda x: x.view(dtype), "iuf", dtype, 0, widens=False)


_BITS = tuple(map(_bits_as, names_where(lambda d: d.kind in "iuf" and d.bits >= 8)))

FUNCTIONS: dict[str, ScalarFunction] = {row.name: row for row in (*_ROWS, *_BITS)}


@lru_cache(FEW_KEPT)
def functions_with_trait(trait: Trait) -> frozenset[str]:
    """Returns the names of the functions that have a trait."""
    return frozenset(f.name for f in FUNCTIONS.values() if trait in f.traits.split())


def exact_function(function: ScalarFunction, argument: str) -> Callable[..., Any]:
    """Returns `function` on exact values of dtype `argument`, or an uninterpreted function if it has no exact
    meaning."""
    if function.exact is None or (kind(argument) == "c" and "ring" not in function.traits.split()):
        return _uninterpreted(function.name)
    return function.exact
