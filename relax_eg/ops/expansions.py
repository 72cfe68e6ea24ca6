"""Scalar functions as CPUs run them: arithmetic that XLA's compiler vectorises.

XLA for CPUs calls the C library for each element of a sine, an arc tangent, a remainder of floats and others, and
divides integers one after the other. Its branches are mispredicted where arguments follow no order: of random numbers a
sine takes 2 to 5 times as long as here, angles of a rotary embedding 1.5 times, and numbers below 0.7, which need no
branch, 0.8 times. Remainders of floats take 3 to 6 times as long, other functions 7 to 14 times, quotients of integers
2 to 10 times (`python -m benchmarks.patterns --cases functions`).

Functions of float32 are polynomials in float64, and rounded once: they are at most 0.51 units in the last place from
the function, for all arguments (XLA's: 0.56 to 2.2). Remainders and quotients of integers are exact. As in all of
XLA's programs for CPUs, floats below the normal ones count as 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import HALF, dtype_of, names_where
from relax_eg.limits import FEW_KEPT
from relax_eg.ops.integers import product
from relax_eg.ops.lazy_jax import jax, jnp, lax
from relax_eg.ops.on_cpus import on_cpus
from relax_eg.ops.record import Site
from relax_eg.shapes import Dim

# given: the first bits of 1/π after the binary point
_INVERSE_PI, _INVERSE_PI_BITS = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820FF28B1D5, 224
_EXACT = 29  # given: bits of a factor by which the product with a float32 is exact in float64
_ALL = 53  # given: bits of a float64
_PARTS = 4  # given: factors that `_turns` multiplies by, which serve 85 exponents of two
# given: exponent from which on all bits before the one at `_SKIPPED` add even numbers of turns
_SKIPPED, _FAR = 61, 85
# measured: elements below which the functions of JAX take no longer: XLA counts all operations of an expansion, but not
# those of a library, so from 1,500 elements on it wakes other cores (`python -m benchmarks.patterns --cases functions`)
_FEW = 5000
_HUGE, _TINY = 1e300, 1e-300  # given: floats far beyond those of float32, whose quotients are numbers
# given: bits after the first one that a product with a float32 leaves room for, and digits of the quotient 2²⁵⁴ of the
# largest float32 by the smallest normal one
_DIGIT, _DIGITS = 27, 10
# given: a third, and two thirds of the exponent of 1 in the bits of a float32, less what is on average between a third
# of the bits and those of the cube root (FreeBSD's `cbrtf`)
_THIRD, _OFFSET = np.float32(1 / 3), np.float32(709958130)
_TAN_OF_EIGHTH = math.tan(math.pi / 8)
_PAST_FRACTION = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}  # given: numbers above which the last bit of a float counts 1


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a scalar function is computed on CPUs.

    - `compute`: the function, on arrays of JAX.
    - `dtypes`: the dtypes of arguments for which it is used.
    - `share`: flops that its record counts, in the time of one flop of vectorised arithmetic.
    - `slower`: how many times as long the function of JAX takes.
    - `by_number`: whether it is used where the last argument is one number for all elements: XLA multiplies where it
      knows a divisor.
    """

    compute: Callable[..., Any]
    dtypes: frozenset[str]
    share: float
    slower: float
    by_number: bool = True


def expansion_of(function: str, dtype: str | None, by_number: bool = False) -> Expansion | None:
    """The expansion of a scalar function, or of the operator that applies it, for arguments of a dtype; None where CPUs
    run the function of JAX. `by_number`: whether the last argument is one number for all elements."""
    rows = EXPANSIONS.get("int_divide" if function == "divide" else function, ())
    return next((row for row in rows if dtype in row.dtypes and (row.by_number or not by_number)), None)


def slower_as_written(site: Site, size: Callable[[Dim], float]) -> float:
    """How many times as long an operator takes on CPUs where JAX lowers it. `size`: the number for a size."""
    shapes = [site.shape(i) for i in range(len(site.operands))]
    found = expansion_of(site.op, site.dtype(), len(shapes) > 1 and not shapes[-1])
    is_small = max(math.prod(map(size, shape)) for shape in shapes) < _FEW
    return 1.0 if found is None or is_small else found.slower


def expanded(plain: Callable[..., Any], expansion: Expansion) -> Callable[..., Any]:
    """The function `plain`, by its expansion on CPUs. It has the derivatives of `plain`."""

    def compute(*xs: Any) -> Any:
        dtype = xs[0].dtype
        if dtype.name in HALF:
            xs = tuple(lax.convert_element_type(x, "float32") for x in xs)
        with jax.enable_x64(True):
            return lax.convert_element_type(expansion.compute(*xs), dtype)

    run = on_cpus(jax.jit(compute), plain)  # traced once for arguments of the same types
    return lambda *xs: (plain if _is_small(xs[0].shape) else run)(*xs)


def _is_small(shape: Sequence[Any]) -> bool:
    """`shape`: numbers, and symbolic sizes of JAX."""
    return all(isinstance(n, int) for n in shape) and math.prod(shape) < _FEW


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    *others, found = coefficients
    for c in reversed(others):
        found = found * x + c
    return found


@functools.lru_cache(FEW_KEPT)
def _fitted(function: Callable[[Any], Any], degree: int, end: float) -> tuple[float, ...]:
    """The coefficients of the polynomial that equals a function at the Chebyshev points of 0..`end`."""
    found = np.polynomial.Chebyshev.interpolate(function, degree, domain=[0.0, end])
    return tuple(map(float, found.convert(kind=np.polynomial.Polynomial).coef))


# --- sine and cosine ---


def _bits_of_inverse_pi(start: int, count: int) -> float:
    bits = (_INVERSE_PI >> (_INVERSE_PI_BITS - start - count)) & ((1 << count) - 1)
    return math.ldexp(bits, -start - count)


def _turns(x: Any, parts: int, ahead: float = 0.0) -> tuple[Any, Any]:
    """A whole number n, up to `parts`, and f in -½..½, with `parts` · `x`/2π + `ahead` = n + f, for float32 `x`.
    `ahead`: 0 or ½.

    `x` times some bits of 1/π is exact, and from its product with the next bits whole turns may be left out, so no
    digit is lost. Payne and Hanek (1983) do the same in integers."""
    wide = lax.convert_element_type(x, "float64")
    is_far = jnp.abs(wide) >= 2.0**_FAR
    turns: list[Any] = []
    for i in range(_PARTS):
        count = _EXACT if i < _PARTS - 1 else _ALL
        near, far = (0.5 * _bits_of_inverse_pi(start + i * _EXACT, count) for start in (0, _SKIPPED))
        part = wide * jnp.where(is_far, far, near)
        turns.append(part - _rounded(part) if i < _PARTS // 2 else part)
    n = _rounded(parts * functools.reduce(lax.add, turns) + ahead)
    f = parts * turns[0] - n + ahead
    for part in turns[1:]:
        f = f + parts * part
    return n, f


def _rounded(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _sine_less_angle(square: Any) -> Any:
    """(sin(a) / a - 1) / a², as a function of a²."""
    angle = np.sqrt(square)
    return (np.sin(angle) / angle - 1.0) / square


def _sine_of_turns(n: Any, f: Any) -> Any:
    """sin(π (n + f)), as float32."""
    odd = lax.bitcast_convert_type(n + _PAST_FRACTION[64], "uint64") << jnp.asarray(63, "uint64")
    f = lax.bitcast_convert_type(lax.bitcast_convert_type(f, "uint64") ^ odd, "float64")
    angle = math.pi * f
    square = angle * angle
    found = angle + angle * (square * _polynomial(square, _fitted(_sine_less_angle, 4, (math.pi / 2) ** 2)))
    return lax.convert_element_type(found, "float32")


def _sine(x: Any) -> Any:
    return jnp.where(x == 0, x, _sine_of_turns(*_turns(x, 2)))


def _cosine(x: Any) -> Any:
    return _sine_of_turns(*_turns(x, 2, 0.5))


def _cosine_less_one(square: Any) -> Any:
    """(cos(a) - 1) / a², as a function of a²."""
    return -2.0 * np.sin(0.5 * np.sqrt(square)) ** 2 / square


def _tangent(x: Any) -> Any:
    n, f = _turns(x, 4)
    is_odd = lax.bitcast_convert_type(n + _PAST_FRACTION[64], "int64") & 1 == 1
    angle = math.pi / 2 * f
    square, end = angle * angle, (math.pi / 4) ** 2
    sine = angle + angle * (square * _polynomial(square, _fitted(_sine_less_angle, 3, end)))
    cosine = 1.0 + square * _polynomial(square, _fitted(_cosine_less_one, 4, end))
    found = jnp.where(is_odd, -cosine, sine) / jnp.where(is_odd, sine, cosine)
    return jnp.where(x == 0, x, lax.convert_element_type(found, "float32"))


# --- angles ---


def _angle(y: Any, x: Any) -> Any:
    """atan2(y, x) of float64, as float32. Both are less than `_HUGE`, or infinite.

    The quotient of the smaller magnitude by the larger one is an angle of at most π/4, whose tangent is brought below
    tan(π/8) by turning by π/4."""
    high, low = jnp.abs(x), jnp.abs(y)
    is_steep = low > high
    high, low = (jnp.minimum(f(high, low), _HUGE) for f in (jnp.maximum, jnp.minimum))
    is_turned = low > _TAN_OF_EIGHTH * high
    over = jnp.where(is_turned, low - high, low)
    slope = over * (1.0 / jnp.maximum(jnp.where(is_turned, low + high, high), _TINY))  # `_quotient` says why
    square = slope * slope
    found = slope + slope * (square * _polynomial(square, _fitted(_arctangent_less_slope, 6, _TAN_OF_EIGHTH**2)))
    found = found + jnp.where(is_turned, math.pi / 4, 0.0)
    found = jnp.where(is_steep, math.pi / 2 - found, found)
    found = jnp.where(_is_negative(x), math.pi - found, found)
    return lax.convert_element_type(jnp.where(_is_negative(y), -found, found), "float32")


def _is_negative(x: Any) -> Any:
    """Whether the sign of float64 is that of a negative number, also of zeros."""
    return lax.bitcast_convert_type(x, "int64") < 0


def _arctangent_less_slope(square: Any) -> Any:
    """(atan(t) / t - 1) / t², as a function of t²."""
    slope = np.sqrt(square)
    return (np.arctan(slope) / slope - 1.0) / square


def _atan2(y: Any, x: Any) -> Any:
    return _angle(*(lax.convert_element_type(v, "float64") for v in (y, x)))


def _atan(x: Any) -> Any:
    return jnp.where(x == 0, x, _angle(lax.convert_element_type(x, "float64"), jnp.ones((), "float64")))


def _asin(x: Any) -> Any:
    wide = lax.convert_element_type(x, "float64")
    return jnp.where(x == 0, x, _angle(wide, _other_leg(wide)))


def _acos(x: Any) -> Any:
    wide = lax.convert_element_type(x, "float64")
    return _angle(_other_leg(wide), wide)


def _other_leg(x: Any) -> Any:
    """√(1 - x²), as a product with one reader of the root: `_quotient` says why."""
    return 0.5 * jnp.sqrt(4.0 * ((1.0 - x) * (1.0 + x)))


# --- roots ---


def _cube_root(x: Any) -> Any:
    """From a third of the exponent, by Halley's iteration, which triples the number of right digits."""
    size = jnp.abs(x)
    bits = lax.convert_element_type(lax.bitcast_convert_type(size, "int32"), "float32")
    near = lax.bitcast_convert_type(lax.convert_element_type(bits * _THIRD + _OFFSET, "int32"), "float32")
    found, wide = (lax.convert_element_type(v, "float64") for v in (near, size))
    for _ in range(2):
        cube = found * found * found
        found = found * ((cube + 2.0 * wide) / (2.0 * cube + wide))
    found = lax.convert_element_type(found, "float32")
    return jnp.where((size >= jnp.finfo("float32").tiny) & (size < math.inf), jnp.where(x < 0, -found, found), x)


# --- quotients of integers ---


def _quotient(x: Any, y: Any) -> Any:
    """Returns the quotient of integers of at most 32 bits, rounded to 0, or all bits set where `y` is 0.

    The floats have twice as many digits as the integers, so (|x| + ½) / |y| is farther from whole numbers than its
    error, also where XLA multiplies by a reciprocal. The last bits of the sum with a large number are those of a whole
    number: -2³¹ / -1 wraps. XLA computes a value with several readers for each of them, or not in their kernel, where
    it holds division for expensive, so the sign is put on afterwards."""
    known = dtype_of(x.dtype.name)
    bits = max(32, 2 * known.bits)
    dividend, divisor = (jnp.abs(lax.convert_element_type(v, f"float{bits}")) for v in (x, y))
    whole = lax.floor((dividend + 0.5) / divisor) + _PAST_FRACTION[bits]
    found = lax.convert_element_type(lax.bitcast_convert_type(whole, f"int{bits}"), x.dtype)
    if known.kind == "i":
        found = jnp.where(lax.bitwise_xor(x, y) < 0, lax.neg(found), found)
    return jnp.where(y == 0, lax.bitwise_not(lax.full_like(x, 0)), found)


def _remainder(x: Any, y: Any) -> Any:
    return lax.sub(x, product(_quotient(x, y), y))


# --- remainders of floats ---


def _remainder_of_floats(x: Any, y: Any) -> Any:
    """What is left of `x` after `y` was taken away a whole number of times, by long division with digits of 28 bits. A
    digit times `y`, and what is left, are exact."""
    wide = lax.convert_element_type(x, "float64")
    left, divisor = jnp.abs(wide), jnp.minimum(jnp.abs(lax.convert_element_type(y, "float64")), _HUGE)
    inverse, leading = 1.0 / divisor, jnp.asarray(-1 << (_ALL - 1 - _DIGIT), "int64")
    for _ in range(_DIGITS):
        digit = lax.bitcast_convert_type(lax.floor(left * inverse), "int64") & leading
        left = left - lax.bitcast_convert_type(digit, "float64") * divisor
    left = jnp.where(left < 0, left + divisor, left)
    left = jnp.where(left >= divisor, left - divisor, left)
    return lax.convert_element_type(jnp.where(_is_negative(wide), -left, left), "float32")


_FLOAT32 = frozenset(HALF) | {"float32"}
_INTEGERS = frozenset(names_where(lambda d: d.kind in "iu" and 8 <= d.bits <= 32))

# measured: shares and times (`python -m benchmarks.patterns --cases functions`)
EXPANSIONS: dict[str, tuple[Expansion, ...]] = {
    "sin": (Expansion(_sine, _FLOAT32, 0.8, 3.0),),
    "cos": (Expansion(_cosine, _FLOAT32, 0.8, 3.0),),
    "tan": (Expansion(_tangent, _FLOAT32, 0.6, 8.0),),
    "atan": (Expansion(_atan, _FLOAT32, 0.6, 6.0),),
    "atan2": (Expansion(_atan2, _FLOAT32, 0.5, 10.0),),
    "asin": (Expansion(_asin, _FLOAT32, 0.5, 6.0),),
    "acos": (Expansion(_acos, _FLOAT32, 0.5, 5.0),),
    "cbrt": (Expansion(_cube_root, _FLOAT32, 0.7, 9.0),),
    "int_divide": (Expansion(_quotient, _INTEGERS, 0.7, 4.0, by_number=False),),
    "remainder": (
        Expansion(_remainder, _INTEGERS, 0.6, 3.0, by_number=False),
        Expansion(_remainder_of_floats, _FLOAT32, 0.15, 4.0),
    ),
}
