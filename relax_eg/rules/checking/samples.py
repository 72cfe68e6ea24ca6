"""Random sizes and values at which the two sides of a rule instance are compared.

All draws use the generator that is passed in, so one seed gives one test. Values that must have facts are *adapted*:
each fact changes them as little as it requires (`ops.facts`). The definition of the fact then decides whether the
changed values have it; samples without the required facts are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of, has_short_range, is_complex, is_float, is_integer, numpy_dtype
from relax_eg.errors import RelaxEgError, RuleError
from relax_eg.ir.annotations import Tensor, dims_in
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, postorder, var
from relax_eg.ir.heads import with_operands
from relax_eg.limits import KEPT
from relax_eg.ops.facts import has_fact as has_fact
from relax_eg.ops.facts import with_facts
from relax_eg.ops.record import TABLE, Precondition, call, may_be_met, preconditions
from relax_eg.rules.conditions import Guard, ValueTest, claims_of
from relax_eg.rules.rule import Instance
from relax_eg.shapes import Dim, Relation

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Values = Mapping[str, Array]
Random = np.random.Generator
Draw = Callable[[Instance, Sizes, Random, int], dict[str, Array]]

# limit: elements of one operand of a sample; small sizes suffice to show differences.
_MOST_ELEMENTS = 4096
# limit: larger numbers that are added stand for infinity in masks, as in scores + (mask - 1) * 1e9. What remains
# without them, scores + mask * 1e9, loses the digits of the scores.
LARGEST_SHIFT = 1000
LARGEST_SIZE = 5000  # limit: largest number of a rule that is tried as a size
_PLAIN_ATTEMPTS = 20  # limit: attempts with bindings as drawn, before slice bounds are redrawn to fit
_OWN_ATTEMPTS = 60  # limit: attempts near numbers of the rule's conditions, before numbers that its operators need
# chosen: sizes to draw from; 2 and 3 are twice as likely.
_SMALL = (0, 1, 2, 2, 3, 3, 4, 5)
_DISTINCT = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)  # chosen: sizes that stand for fixed ones, in their order


def size_variables(instance: Instance) -> list[str]:
    """Size variables of the left side, in order of appearance."""
    found: dict[str, None] = {}
    for d in (
        *(d for p in instance.params for d in p.shape),
        *(d for e in instance.left_nodes for d in dims_in(e.attrs)),
    ):
        found.update(dict.fromkeys(sorted(d.variables)))
    return list(found)


@lru_cache(KEPT)
def size_preconditions(results: tuple[Expr, ...]) -> tuple[Precondition, ...]:
    """The conditions on sizes under which `results` exist: no size of a tensor is negative, and the preconditions of
    operators hold."""
    found: dict[Precondition, None] = {}
    for e in postorder(results):
        if isinstance(e.annotation, Tensor):
            found.update(dict.fromkeys(((">=", d),) for d in e.shape if not _is_size(d)))
        if e.op in TABLE:
            found.update(dict.fromkeys(preconditions(e.op, tuple(a.annotation for a in e.args), e.attrs)))
    return tuple(found)


def _is_size(d: Dim) -> bool:
    """Whether `d` is never negative: a number, or a size variable."""
    return d.value >= 0 if d.is_const else any(d == Dim.var(v) for v in d.variables)


def unmet_precondition(needed: Iterable[Precondition], sizes: Sizes) -> str:
    """The first precondition that does not hold at these sizes, as text; empty if all hold."""
    for precondition in needed:
        if not may_be_met(precondition, sizes):
            ((sign, d), *_) = precondition
            if sign == ">=":
                return f"{d} is {d.evaluate(sizes)}, which cannot be a size or index"
            return f"sizes disagree: {d} is not 0"
    return ""


def admits(instance: Instance, sizes: Sizes) -> bool:
    """Whether the left side exists at these sizes, its operands are small enough to test, and every condition holds."""
    return admits_limited(instance, sizes, _MOST_ELEMENTS)


def admits_limited(instance: Instance, sizes: Sizes, most: int) -> bool:
    """As `admits`, for operands of at most `most` elements each."""
    if any(math.prod(shape_of(p, sizes)) > most for p in instance.params):
        return False
    return not unmet_precondition(size_preconditions(instance.left), sizes) and all(
        size_guard_holds(g, sizes) for g in instance.guards
    )


def with_small_sizes(instance: Instance) -> Instance:
    """`instance` with small numbers in place of large fixed sizes; itself if its operators do not take these, or if its
    sides would then have different sizes. What is the same at all sizes is tested at these, where the fixed ones make
    too many elements."""
    nodes = postorder((*instance.left, *instance.right))
    shapes = [e.annotation.shape or () for e in nodes if isinstance(e.annotation, Tensor)]
    fixed = sorted({d.value for s in shapes for d in s if d.is_const})
    distinct, smaller = list(_DISTINCT), dict[int, int]()

    @lru_cache(KEPT)
    def is_product(v: int) -> bool:
        return v in fixed or any(v % f == 0 and is_product(v // f) for f in fixed if 1 < f < v)

    def size(v: int) -> int:
        """The number for `v`: that of its factors, if it is a multiple of another size. While distinct numbers are
        left, only products of sizes have factors: 2,000 rows of 10 columns are 10 times another number."""
        if v not in smaller and v > _SMALL[-1]:
            factor = next((f for f in reversed(smaller) if v % f == 0 and (not distinct or is_product(v))), None)
            if factor is not None:
                smaller[v] = smaller[factor] * size(v // factor)
            elif distinct:
                smaller[v] = distinct.pop(0)
        return smaller.get(v, v)

    for v in (v for v in fixed if v > _SMALL[-1]):
        if size(v) == v and v not in smaller:
            return instance
    distinct.clear()  # a bound of a slice that is no multiple of a size keeps its number

    def made(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(made, value))  # type: ignore[reportUnknownArgumentType]
        return Dim.of(size(value.value)) if isinstance(value, Dim) and value.is_const else value

    new = {p: var(str(p.attr("name")), Tensor(made(p.shape), p.dtype)) for p in instance.params}
    params = tuple(new.values())
    try:
        for e in nodes:
            if e not in new:
                attrs, args = {name: made(value) for name, value in e.attrs}, [new[a] for a in e.args]
                new[e] = call(e.op, args, attrs) if e.op in TABLE else with_operands(e, args)
    except RelaxEgError:
        return instance
    pairs = zip(instance.left, instance.right, strict=True)
    if any(x.annotation == y.annotation and new[x].annotation != new[y].annotation for x, y in pairs):
        return instance
    left, right = (tuple(new[e] for e in side) for side in (instance.left, instance.right))
    return replace(instance, params=params, left=left, right=right)


def size_guard_holds(guard: Guard, sizes: Sizes) -> bool:
    """Whether a condition holds at these sizes; true for a guard that is not on sizes."""
    return not isinstance(guard, Relation) or guard.holds(sizes) is True


def no_sizes(instance: Instance) -> RuleError:
    """The error about an instance for which no sizes are found that it admits."""
    needed = (" or ".join(f"{d} {sign} 0" for sign, d in p) for p in size_preconditions(instance.left))
    conditions = " and ".join((*instance.rule.when, *needed))
    return instance.rule.error(f"no sizes up to {LARGEST_SIZE} meet its conditions: {conditions}")


def draw_sizes(instance: Instance, rng: Random, count: int, least: int = 0) -> list[dict[str, int]]:
    """Up to `count` bindings that the instance admits: first different sizes, because equal ones hide a transposition,
    then each variable at `least` to 5 in turn with small others, then random ones. Empty if no binding is found."""
    names = size_variables(instance)
    if not names:
        return [{}] * count if admits(instance, {}) else []
    found: list[dict[str, int]] = []
    for wish in _wishes(names, rng, least):
        binding = _binding(instance, names, wish, rng, least)
        if binding is not None:
            found.append(binding)
        if len(found) == count:
            break
        if binding is None and not found:
            break
    return found


def _wishes(names: Sequence[str], rng: Random, least: int) -> Iterator[dict[str, int]]:
    """Partial bindings to try, which may leave variables open; an infinite sequence."""
    yield {n: 2 + int(i) for n, i in zip(names, rng.permutation(min(len(names), 4)), strict=False)}
    for size in range(least, 6):
        for n in names:
            yield {n: size}
        if size < 2:
            yield dict.fromkeys(names, size)
    while True:
        yield {}


def _binding(instance: Instance, names: Sequence[str], wish: Sizes, rng: Random, least: int) -> dict[str, int] | None:
    """A binding that the instance admits, with the sizes of `wish` if the first 50 attempts find one; None if 400
    attempts find none."""
    conditions = [d for g in instance.guards if isinstance(g, Relation) for d in (g.left, g.right)]
    needed = [d for p in size_preconditions(instance.left) for _, d in p]
    own, further = (
        sorted(c for c in _constants(dims) if least <= c <= LARGEST_SIZE) for dims in (conditions, conditions + needed)
    )
    for attempt in range(400):
        special = own if attempt < _OWN_ATTEMPTS else further
        places = rng.integers(len(_SMALL), size=len(names)).tolist()
        binding = {n: _SMALL[i] for n, i in zip(names, places, strict=True)}
        if special and attempt % 2:
            # Sizes near the constants of conditions such as `k % 8 == 0` and `n > 64` are likely to meet them. So
            # are those near the 8 of a slice of 8 elements.
            wide = [c for c in special if c <= 64 or attempt > 100]
            for n in names:
                if wide and rng.random() < 0.6:
                    binding[n] = int(rng.choice(wide))
        if attempt < 50:
            binding.update(wish)
        if attempt >= _PLAIN_ATTEMPTS:
            _fit_slices(instance, binding, rng)
        if min(binding.values()) >= least and admits(instance, binding):
            return binding
    return None


def _fit_slices(instance: Instance, binding: dict[str, int], rng: Random) -> None:
    """Redraws slice bounds that are size variables of their own, so that they are within the sliced axis."""
    taken = {v for p in instance.params for d in p.shape for v in d.variables}
    for e in instance.left_nodes:
        attrs = dict(e.attrs)
        if not {"begin", "end"} <= attrs.keys():
            continue
        for begin, end, size in zip(attrs["begin"], attrs["end"], e.args[0].shape, strict=True):
            low, high = 0, max(size.evaluate(binding), 0)
            for d in (begin, end):
                if d.variables and d == Dim.var(min(d.variables)) and not d.variables & taken:
                    binding[min(d.variables)] = int(rng.integers(low, high + 1))
                low = min(max(d.evaluate(binding), 0), high)


def _constants(dims: Iterable[Dim]) -> set[int]:
    """The constants above 1 in sizes, with neighbours and multiples."""
    found: set[int] = set()

    def visit(d: Dim) -> None:
        found.add(abs(d.const))
        for monomial, coefficient in d.terms:
            found.add(abs(coefficient))
            for atom in monomial:
                for a in atom.args:
                    visit(a)

    for d in dims:
        visit(d)
    large = {c for c in found if c > 1}
    return {v for c in large for v in (c - 1, c, c + 1, 2 * c, 3 * c)}


def shape_of(e: Expr, sizes: Sizes) -> tuple[int, ...]:
    return tuple(int(d.evaluate(sizes)) for d in e.shape)


def draw_values(
    instance: Instance, sizes: Sizes, rng: Random, index: int, floats: Callable[[tuple[int, ...], Random, int], Array]
) -> dict[str, Array]:
    """Values for all pattern variables: floats from `floats(shape, rng, index)`, integers and bools drawn here."""
    values: dict[str, Array] = {}
    for p in instance.params:
        shape, name = shape_of(p, sizes), str(p.attr("name"))
        if p.dtype == "bool":
            values[name] = rng.random(shape) < (0.5, 0.9, 0.1)[index % 3]
        elif is_integer(p.dtype):
            values[name] = integers(p.dtype, shape, rng, index)
        else:
            made = np.asarray(floats(shape, rng, index))  # numpy returns scalars for arrays without axes
            if is_complex(p.dtype) and made.dtype != object:
                whole = np.empty(shape, np.complex128)  # adding 1j * infinity would make the real part NaN
                whole.real, whole.imag = made, floats(shape, rng, index + 1)
                made = whole
            values[name] = made if made.dtype == object else made.astype(numpy_dtype(p.dtype))
    return values


def limits(dtype: str) -> tuple[int, int]:
    """The least and the greatest integer of a dtype."""
    return dtype_of(dtype).least, dtype_of(dtype).greatest


def integers(dtype: str, shape: tuple[int, ...], rng: Random, index: int) -> Array:
    """Integers of `dtype`, by `index`: small ones (which also serve as indices), boundary values, or any."""
    low, high = limits(dtype)
    small = np.asarray(rng.integers(-3 if low else 0, 5, shape))
    match index % 4:
        case 1:
            edge = (low, low + 1, low // 2, -1 if low else 1, 0, 1, 2, 3, high // 2, high // 2 + 1, high - 1, high)
            made = np.asarray(rng.choice(np.array(edge, dtype=object), shape))
        case 2:
            drawn_as = numpy_dtype(dtype) if dtype_of(dtype).is_native else np.dtype(np.int64)
            made = np.asarray(rng.integers(low, high, shape, dtype=drawn_as, endpoint=True))
        case 3:
            made = np.where(
                rng.random(shape) < 0.5, small, np.asarray(rng.choice(np.array((low, high), dtype=object), shape))
            )
        case _:
            made = small
    return made.astype(numpy_dtype(dtype))


def _rationals(shape: tuple[int, ...], rng: Random, index: int) -> Array:
    n = int(np.prod(shape))
    match index % 6:
        case 1:
            flat = [
                Fraction(int(p), int(q)) for p, q in zip(rng.integers(-9, 10, n), rng.integers(1, 5, n), strict=True)
            ]
        case 2:
            flat = [int(v) for v in rng.choice((0, 1, -1), n)]
        case 3:
            flat = [int(rng.integers(-3, 4))] * n
        case 4:
            flat = [int(v) for v in rng.integers(-1_000_000, 1_000_001, n)]
        case 5:
            flat = [Fraction(int(p), int(q)) for p, q in zip(rng.integers(1, 9, n), rng.integers(1, 5, n), strict=True)]
        case _:
            flat = [int(v) for v in rng.integers(-3, 4, n)]
    made = np.empty(n, dtype=object)
    made[:] = flat
    return made.reshape(shape)


def rationals(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Exact values (object arrays of ints and Fractions) for float variables. Integer variables get small values, at
    which integer dtypes do not overflow."""
    values = draw_values(instance, sizes, rng, index, _rationals)
    for p in instance.params:
        name = str(p.attr("name"))
        if is_integer(p.dtype):
            values[name] = integers(p.dtype, values[name].shape, rng, 0)
    return values


def _moderate(shape: tuple[int, ...], rng: Random, index: int) -> Array:
    match index % 6:
        case 1:
            made = rng.integers(-3, 4, shape) / 2
        case 2:
            made = rng.choice((0.0, 1.0, -1.0), shape)
        case 3:
            made = np.full(shape, rng.uniform(-2, 2))
        case 4:
            made = np.exp(rng.uniform(-6, 1.3, shape)) * rng.choice((-1, 1), shape)
        case 5:
            made = rng.uniform(0.1, 4, shape)
        case _:
            made = rng.standard_normal(shape)
    return np.asarray(made)


def moderate(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Floats mostly of magnitude up to 4, so that exp and similar functions stay far from overflow even if nested."""
    return draw_values(instance, sizes, rng, index, _moderate)


def _mixed(shape: tuple[int, ...], rng: Random, index: int, reach: float) -> Array:
    sign = rng.choice((-1.0, 1.0), shape)
    match index % 5:
        case 1:  # a common offset with a small spread, which cancels in differences and variances
            made = 10.0 ** rng.uniform(0, reach * 0.75) * (1 + 10.0 ** rng.uniform(-4, -1) * rng.standard_normal(shape))
        case 2:  # one magnitude per tensor
            made = 10.0 ** rng.uniform(-reach, reach) * rng.uniform(0.1, 1, shape) * sign
        case 3:
            made = rng.standard_normal(shape)
        case 4:
            made = 10.0 ** rng.uniform(-reach, reach, shape)
        case _:
            made = 10.0 ** rng.uniform(-reach, reach, shape) * sign
    return np.clip(made, -(10.0**reach), 10.0**reach)


def reach_of(dtype: str) -> float:
    """The domain of the accuracy law: magnitudes from 10**-reach to 10**reach."""
    return 1.0 if has_short_range(dtype) else 6.0  # chosen: products of a few numbers stay finite


def draw_cancelling_floats(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Floats over the domain of the accuracy law, with cancellation within a tensor and between two tensors."""
    dtype = next((p.dtype for p in instance.params if is_float(p.dtype)), "float32")
    reach = reach_of(dtype)
    values = draw_values(instance, sizes, rng, index, lambda s, r, i: _mixed(s, r, i, reach))
    if index % 2:
        _make_cancelling([values[str(p.attr("name"))] for p in instance.params if is_float(p.dtype)], rng)
    return values


def draw_level_floats(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Floats that are all near one number in most tensors, whatever their shapes: what is subtracted from rows is then
    near all elements of these, as a mean is."""
    values = moderate(instance, sizes, rng, index)
    floats = [values[str(p.attr("name"))] for p in instance.params if is_float(p.dtype)]
    reach = min((reach_of(a.dtype.name) for a in floats), default=0.0)
    level, spread = 10.0 ** rng.uniform(0, reach / 2), 10.0 ** rng.uniform(-4, -1)
    for a in floats:
        if rng.random() < 0.8:
            a[...] = level * (1 + spread * rng.standard_normal(a.shape))
    return values


@lru_cache(KEPT)
def mask_values(instance: Instance) -> tuple[float, ...]:
    """What elements of masks may be, other than 0: 1, and the numbers of the left side by which masks push elements
    away, of either sign."""
    numbers = [
        float(constant_value(e)) for e in instance.left_nodes if e.op == CONSTANT and is_float(e.dtype) and not e.ndim
    ]
    return (1.0, *dict.fromkeys(y for x in numbers if LARGEST_SHIFT < abs(x) < math.inf for y in (x, -x)))


def draw_masked_floats(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Floats of `moderate`, whose digits large numbers hide, and masks in two of three cases: tensors whose elements
    are 0 and another number."""
    values = moderate(instance, sizes, rng, index)
    for p in instance.params if index % 3 else ():
        if is_float(p.dtype) and rng.random() < 0.3:
            a = values[str(p.attr("name"))]
            a[...] = (rng.random(a.shape) < 0.6) * rng.choice(mask_values(instance))
    return values


def _make_cancelling(arrays: Iterable[Array], rng: Random) -> None:
    """Makes arrays of one shape nearly equal or opposite, in place, so that their sums and differences cancel."""
    first: dict[tuple[int, ...], Array] = {}
    for a in arrays:
        base = first.setdefault(a.shape, a)
        if base is not a and rng.random() < 0.7:
            sign, spread = rng.choice((-1, 1)), 10.0 ** rng.uniform(-4, -1)
            a[...] = sign * base.astype(np.float64) * (1 + spread * rng.standard_normal(a.shape))


def _special(shape: tuple[int, ...], rng: Random, index: int) -> Array:
    values = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.1, 3.0, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1e30)
    made = np.where(
        rng.random(shape) < (0.0, 0.3, 0.7)[index % 3], rng.choice(values, shape), rng.standard_normal(shape)
    )
    return np.asarray(made * (1.0 if index % 2 else 0.1))


def special(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
    """Floats that include NaN, infinities, both zeros, denormals and huge values."""
    with np.errstate(over="ignore"):
        values = draw_values(instance, sizes, rng, index, _special)
    first: dict[tuple[int, ...], Array] = {}
    for name, v in values.items():
        # Equal or opposite operands make differences and sums that are zeros of either sign.
        base = first.setdefault(v.shape, v)
        if base is not v and v.dtype == base.dtype and v.dtype.kind != "b" and rng.random() < 0.3:
            values[name] = base if rng.random() < 0.5 else np.asarray(-base).astype(base.dtype)
    return values


# --- values that meet the conditions of a rule ---


@lru_cache(KEPT)
def value_guards(instance: Instance) -> tuple[tuple[str, frozenset[str], tuple[ValueTest, ...]], ...]:
    """For each pattern variable with guards on its value: its name, the required facts, and the tests to pass."""
    claims = claims_of(instance.guards)
    tests = [g for g in instance.guards if isinstance(g, ValueTest)]
    names = dict.fromkeys([*claims, *(t.name for t in tests)])
    return tuple((n, claims.get(n, frozenset()), tuple(t for t in tests if t.name == n)) for n in names)


def value_guards_hold(instance: Instance, values: Mapping[str, Array]) -> bool:
    """Whether the values have the facts, and pass the tests, that the rule requires."""
    return all(
        all(has_fact(f, values[name]) for f in facts) and all(t.holds(np.asarray(values[name])) for t in tests)
        for name, facts, tests in value_guards(instance)
    )


def draw_under_guards(draw: Draw, wide: bool = False) -> Draw:
    """`draw` with its values adapted to the facts and tests that the rule requires. With `wide`, floats are first
    converted to float64, so that facts that hold up to rounding hold up to that of float64."""

    def adapted_draw(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
        values = draw(instance, sizes, rng, index)
        wanted = value_guards(instance)
        if wanted and wide:
            values = {n: np.asarray(v, np.float64) if is_float(v.dtype.name) else v for n, v in values.items()}
        for name, facts, tests in wanted:
            values[name] = adapt_values(np.asarray(values[name]), facts, tests, rng)
        return values

    return adapted_draw


def adapt_values(a: Array, facts: Collection[str], tests: Iterable[ValueTest], rng: Random) -> Array:
    """`a` changed so that it has `facts` and passes `tests`, as far as possible."""
    if not a.size:
        return a
    dtype = a.dtype
    narrow = dtype.kind == "V" and is_float(dtype.name)  # bfloat16 and similar types: computed in float32
    made = np.array(a, np.float32 if narrow else dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # a number beyond the dtype's range becomes infinity
        for t in tests:
            made = _passing(made, t)
    made = with_facts(made, facts, rng)
    return made.astype(dtype) if narrow else made


def _passing(a: Array, t: ValueTest) -> Array:
    number: Any = Fraction(t.number) if a.dtype == object else np.asarray(t.number).astype(a.dtype)[()]
    match t.op:
        case "==":
            return np.full(a.shape, number, a.dtype)
        case "!=":
            return np.where(a == number, number + 1, a).astype(a.dtype)
        case ">" | ">=":
            above = np.where(a >= number, a, number + abs(a - number) if a.dtype.kind != "i" else number)
        case _:
            above = np.where(a <= number, a, number - abs(a - number) if a.dtype.kind != "i" else number)
    if t.op in (">", "<"):
        beyond = number + 1 if t.op == ">" else number - 1
        above = np.where((above == number) | (above != above), beyond, above)
    return np.where(above != above, number, above).astype(a.dtype)
