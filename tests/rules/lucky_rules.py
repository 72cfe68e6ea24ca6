"""Sixty rules that claim to be exact and are wrong at special values, near a constant, or in one dtype only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relax_eg.ops import api as op
from relax_eg.rules import RuleSet

Sides = Callable[..., Any]
WRONG: dict[str, tuple[str, Sides, dict[str, Any]]] = {}


def wrong(shapes: str, **options: Any) -> Callable[[Sides], Sides]:
    def keep(function: Sides) -> Sides:
        WRONG[function.__name__] = (shapes, function, options)
        return function

    return keep


def register(name: str, under: str) -> None:
    """Register the wrong rule `name` as `under`, exact. RuleError where it is refused, as it should be."""
    shapes, function, options = WRONG[name]
    RuleSet("mine").rule(shapes, name=under, numerics="exact", **options)(function)


# --- wrong at NaN, zeros, infinities, denormals and the largest numbers ---


@wrong("x: *b")
def not_less_is_greater_equal(x: Any) -> Any:
    return op.logical_not(op.less(x, 1.0)), op.greater_equal(x, 1.0)


@wrong("x: *b")
def what_equals_itself(x: Any) -> Any:
    return op.equal(x, x), op.logical_or(op.greater_equal(x * x, -1.0), op.logical_not(op.equal(x, x)))


@wrong("x: *b")
def itself_is_equal(x: Any) -> Any:
    return op.equal(x, x), op.logical_or(op.equal(x, x), op.logical_not(op.equal(x, x)))


@wrong("x: *b, y: *b")
def larger_of_two_chosen(x: Any, y: Any) -> Any:
    return op.where(op.greater(x, y), x, y), op.where(op.greater(y, x), y, x)


@wrong("x: *b, y: *b")
def greater_is_not_at_most(x: Any, y: Any) -> Any:
    return op.greater(x, y), op.logical_not(op.less_equal(x, y))


@wrong("x: *b")
def plus_nothing(x: Any) -> Any:
    return x + 0.0, x * 1.0


@wrong("x: *b")
def nothing_minus(x: Any) -> Any:
    return 0.0 - x, -x


@wrong("x: *b")
def times_nothing(x: Any) -> Any:
    return x * 0.0, x * 0.0 * 0.0 + 0.0


@wrong("x: *b")
def minus_itself(x: Any) -> Any:
    return x - x, op.where(op.less(op.abs(x), 1e30), x - x, 0.0)


@wrong("x: *b")
def halved_and_doubled(x: Any) -> Any:
    return (x * 0.5) * 2.0, x * 1.0


@wrong("x: *b")
def doubled_and_halved(x: Any) -> Any:
    return (x * 2.0) * 0.5, x * 1.0


@wrong("x: *b")
def magnitude_by_choice(x: Any) -> Any:
    return op.abs(x), op.where(op.less(x, 0.0), -x, x)


@wrong("x: *b")
def positive_part_by_choice(x: Any) -> Any:
    return op.maximum(x, 0.0), op.where(op.greater(x, 0.0), x, 0.0)


@wrong("x: *b")
def sign_by_choice(x: Any) -> Any:
    return op.sign(x), op.where(op.greater(x, 0.0), x * 0.0 + 1.0, op.where(op.less(x, 0.0), x * 0.0 - 1.0, x))


@wrong("x: *b, y: *b")
def order_of_inverses(x: Any, y: Any) -> Any:
    return op.less(x + y, y), op.less(x + y, y + 0.0 * x)


@wrong("x: *b, y: *b")
def equal_by_difference(x: Any, y: Any) -> Any:
    return op.equal(x - y, 0.0), op.equal(x, y)


@wrong("x: *b, y: *b")
def difference_turned(x: Any, y: Any) -> Any:
    return -(x - y), y - x


@wrong("x: *b")
def square_is_positive(x: Any) -> Any:
    return op.greater(x * x, 0.0), op.not_equal(x, 0.0)


@wrong("x: *b, y: *b")
def product_is_nothing(x: Any, y: Any) -> Any:
    return op.equal(x * y, 0.0), op.logical_or(op.equal(x, 0.0), op.equal(y, 0.0))


@wrong("x: *b")
def finite_by_comparison(x: Any) -> Any:
    return op.less(op.abs(x), 3e38), op.equal(x - x, 0.0)


@wrong("x: *b, y: *b")
def maximum_by_choice(x: Any, y: Any) -> Any:
    return op.maximum(x, y), op.where(op.greater_equal(x, y), x, y)


@wrong("x: *b, y: *b @ int32", when=())
def choice_by_a_product(x: Any, y: Any) -> Any:
    return op.where(op.equal(y, 0), x * 0.0, x * 1.0), op.where(op.equal(y, 0), 0.0, x)


@wrong("x: *b @ int32")
def magnitude_is_not_negative(x: Any) -> Any:
    return op.greater_equal(op.abs(x), 0), op.equal(x, x)


@wrong("x: *b @ int32")
def opposite_is_less(x: Any) -> Any:
    return op.less(-x, 0), op.greater(x, 0)


@wrong("x: *b @ int32")
def successor_is_more(x: Any) -> Any:
    return op.greater(x + 1, x), op.equal(x, x)


# --- wrong at or beyond a number that stands in the rule ---


@wrong("x: *b")
def needle(x: Any) -> Any:
    return op.where(op.equal(x, 1234567.0), 0.0, x), x * 1.0


@wrong("x: *b @ int32")
def whole_needle(x: Any) -> Any:
    return op.where(op.equal(x, 1234567), 0, x), x * 1


@wrong("x: *b")
def cut_above_ten(x: Any) -> Any:
    return op.where(op.greater(x, 10.0), 10.0, x) * 1.0, x * 1.0


@wrong("x: *b")
def cut_far_out(x: Any) -> Any:
    return op.minimum(x, 7654321.0), op.where(op.equal(x, 7654322.0), x, op.minimum(x, 7654321.0))


@wrong("x: *b")
def just_below(x: Any) -> Any:
    return op.less(x, 100.0), op.less_equal(x, 99.99999)


@wrong("x: *b @ int32")
def remainder_of_a_thousand(x: Any) -> Any:
    small = op.where(op.logical_and(op.greater_equal(x, 0), op.less(x, 1001)), x, 0)
    return op.where(op.equal(small, 1000), 0, small), small * 1


@wrong("x: *b @ int32, y: *b @ int32")
def two_needles(x: Any, y: Any) -> Any:
    return op.where(op.logical_and(op.equal(x, 4711), op.equal(y, 1147)), x + 1, x), x * 1


@wrong("x: *b @ int32")
def needle_behind_a_sum(x: Any) -> Any:
    return op.where(op.equal(x + 5000, 12000), 0, x), x * 1


@wrong("x: *b @ int32")
def needle_behind_a_product(x: Any) -> Any:
    return op.where(op.equal(x * 7, 70007), 0, x), x * 1


@wrong("x: *b @ int32")
def needle_squared(x: Any) -> Any:
    return op.where(op.equal(x * x, 1002001), 0, x), x * 1


@wrong("x: n")
def thirty_places(x: Any) -> Any:
    return op.where(op.less(op.iota((x.shape[0],)), 30), x, 0.0), x * 1.0


@wrong("x: n", when="n >= 1")
def place_of_the_largest_cut(x: Any) -> Any:
    return op.minimum(op.argmax(x), 63), op.argmax(x)


@wrong("x: n")
def thousand_places(x: Any) -> Any:
    return op.where(op.equal(op.iota((x.shape[0],)), 1000), 0.0, x), x * 1.0


@wrong("x: m n")
def band_of_forty(x: Any) -> Any:
    return op.tril(x, 40), op.where(op.equal(x, x), x, x)


@wrong("x: m n")
def columns_beyond_ninety(x: Any) -> Any:
    return op.where(op.less(op.iota(x.shape, axis=1), 90), x, -x), x * 1.0


@wrong("x: n @ bool")
def counted_up_to_fifty(x: Any) -> Any:
    count = op.sum(op.astype(x, "int32"), 0)
    return op.minimum(count, 50), count


@wrong("x: n @ int32")
def running_count_up_to_twenty(x: Any) -> Any:
    at = op.cumsum(op.where(op.equal(x, x), 1, 0), 0)
    return op.minimum(at, 20), at


@wrong("x: n")
def length_up_to_a_million(x: Any) -> Any:
    n = op.dim_value(x.shape[0])
    return op.where(op.less(op.iota(x.shape), 1_000_000), x, 0.0), op.where(op.less(n, 0), -x, x)


@wrong("x: n")
def length_up_to_two_hundred(x: Any) -> Any:
    n = op.dim_value(x.shape[0], x.dtype)
    return x * op.minimum(n, 200.0), x * n


@wrong("x: n")
def places_up_to_a_billion(x: Any) -> Any:
    return op.where(op.less(op.iota(x.shape), 1_000_000_000), x, 0.0), x * 1.0


# --- wrong in one dtype only ---


def only_in(dtype: str) -> Sides:
    def sides(x: Any) -> Any:
        return x * 1.0, (1.0 * x if x.dtype != dtype else x * -1.0)

    return sides


for _dtype in ("bfloat16", "float16", "float64", "float32"):
    wrong("x: *b")(only_in(_dtype)).__name__ = f"turned_in_{_dtype}"
    WRONG[f"turned_in_{_dtype}"] = WRONG.pop("sides")


@wrong("x: *b")
def large_ones_in_half_precision(x: Any) -> Any:
    if x.dtype != "float16":
        return op.less(x, 70000.0), op.greater(70000.0, x)
    return op.less(x, 60000.0), op.less(x, 65000.0)


@wrong("x: *b")
def next_to_one(x: Any) -> Any:
    return op.less(x, 1.0 + 2.0**-9), op.less_equal(x, 1.0)


@wrong("x: *b")
def through_single_precision(x: Any) -> Any:
    return op.astype(op.astype(x, "float32") * 1.0, x.dtype), 1.0 * x


@wrong("x: *b @ bfloat16")
def through_half_precision(x: Any) -> Any:
    return op.astype(op.astype(x, "float16"), x.dtype), x * 1.0


@wrong("x: *b @ float16")
def through_brain_floats(x: Any) -> Any:
    return op.astype(op.astype(x, "bfloat16"), x.dtype), x * 1.0


@wrong("x: *b")
def doubles_through_singles(x: Any) -> Any:
    if x.dtype != "float64":
        return x * 1.0, x / 1.0
    return x * 1.0, op.astype(op.astype(x, "float32"), "float64")


@wrong("x: n @ int32")
def places_in_brain_floats(x: Any) -> Any:
    at = op.iota(x.shape)
    return x + op.astype(op.astype(at, "bfloat16"), "int32"), x + at


@wrong("x: n")
def places_in_half_precision(x: Any) -> Any:
    at = op.iota(x.shape)
    in_floats = x * op.astype(at, x.dtype)
    return in_floats, op.astype(op.astype(at, "float32") * op.astype(x, "float32"), x.dtype)


@wrong("x: *b @ int8")
def least_byte(x: Any) -> Any:
    return op.astype(-x, "int32"), -op.astype(x, "int32")


@wrong("x: *b @ uint8")
def byte_and_one(x: Any) -> Any:
    return op.greater(x + 1, x), op.equal(x, x)


@wrong("x: *b @ uint8, y: *b @ uint8")
def bytes_added(x: Any, y: Any) -> Any:
    return op.less(x + y, x), op.less(x + y, y - y)


@wrong("x: *b @ complex64")
def conjugate_is_itself(x: Any) -> Any:
    return op.conj(x), x * 1.0


@wrong("x: *b @ complex64")
def no_imaginary_part(x: Any) -> Any:
    return op.imag(x), op.imag(x) - op.imag(x)
