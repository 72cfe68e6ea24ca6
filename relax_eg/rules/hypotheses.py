"""Random values with the facts that a rule requires: the hypotheses under which the rule is tested.

A drawn array is *adapted*: it is changed as little as a fact requires, in its own arithmetic (floats, integers, or
exact fractions), so that its special values (zeros, infinities, cancelling values) mostly stay. The definition of the
fact (`ops.facts`) then decides whether the result has it; samples without the required facts are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.ir.annotations import is_float
from relax_eg.limits import KEPT
from relax_eg.ops.facts import holds
from relax_eg.rules.conditions import ValueTest, claims_of
from relax_eg.rules.rule import Instance
from relax_eg.rules.samples import Draw, Random, Sizes

Array = np.ndarray[Any, Any]
Adapter = Callable[[Array, Random], Array]
# chosen: values are clipped to this magnitude before they are multiplied into a matrix, so that products do not
# overflow; it is 1e6 for other dtypes.
_LARGEST = {"float16": 8.0}


@lru_cache(KEPT)
def asked(instance: Instance) -> tuple[tuple[str, frozenset[str], tuple[ValueTest, ...]], ...]:
    """For each pattern variable with guards on its value: its name, the required facts, and the tests to pass."""
    claims = claims_of(instance.guards)
    tests = [g for g in instance.guards if isinstance(g, ValueTest)]
    names = dict.fromkeys([*claims, *(t.name for t in tests)])
    return tuple((n, claims.get(n, frozenset()), tuple(t for t in tests if t.name == n)) for n in names)


def are_met(instance: Instance, values: Mapping[str, Array]) -> bool:
    """Whether the values have the facts, and pass the tests, that the rule requires."""
    return all(
        all(holds(f, values[name]) for f in facts) and all(t.holds(np.asarray(values[name])) for t in tests)
        for name, facts, tests in asked(instance)
    )


def under_hypotheses(draw: Draw, wide: bool = False) -> Draw:
    """`draw` with its values adapted to the facts and tests that the rule requires. With `wide`, floats are first
    converted to float64, so that facts that hold up to rounding hold up to that of float64."""

    def adapted_draw(instance: Instance, sizes: Sizes, rng: Random, index: int) -> dict[str, Array]:
        values = draw(instance, sizes, rng, index)
        wanted = asked(instance)
        if wanted and wide:
            values = {n: np.asarray(v, np.float64) if is_float(v.dtype.name) else v for n, v in values.items()}
        for name, facts, tests in wanted:
            values[name] = adapted(np.asarray(values[name]), facts, tests, rng)
        return values

    return adapted_draw


def adapted(a: Array, facts: Collection[str], tests: Iterable[ValueTest], rng: Random) -> Array:
    """`a` changed so that it has `facts` and passes `tests`, as far as adapters exist."""
    # "positive" has no adapter of its own: the adapters of these two give it.
    wanted = set(facts) | ({"nonnegative", "nonzero"} if "positive" in facts else set())
    if not a.size:
        return a
    dtype = a.dtype
    narrow = dtype.kind == "V" and is_float(dtype.name)  # bfloat16 and similar types: computed in float32
    made = np.array(a, np.float32 if narrow else dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # a number beyond the dtype's range becomes infinity
        for t in tests:
            made = _tested(made, t)
    for fact, adapter in _ADAPTERS.items():
        if fact in wanted:
            made = (_OF_WHOLE_NUMBERS.get(fact, adapter) if "integral" in wanted else adapter)(made, rng)
    return made.astype(dtype) if narrow else made


def _tested(a: Array, t: ValueTest) -> Array:
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


# --- elements ---


def _finite(a: Array, rng: Random) -> Array:
    return a if a.dtype.kind != "f" else np.where(np.isfinite(a), a, a.dtype.type(1))


def _integral(a: Array, rng: Random) -> Array:
    if a.dtype == object:
        return a // 1
    return np.rint(a) if a.dtype.kind == "f" else a


def _nonnegative(a: Array, rng: Random) -> Array:
    # The least integer has no opposite.
    opposite = ~a if a.dtype.kind == "i" else -a
    return np.where(a < 0, opposite, a).astype(a.dtype)


def _nonzero(a: Array, rng: Random) -> Array:
    return np.where(a == 0, a.dtype.type(1) if a.dtype != object else 1, a).astype(a.dtype)


def _constant(a: Array, rng: Random) -> Array:
    made = np.empty_like(a)
    made[...] = a.reshape(-1)[int(rng.integers(a.size))]
    return made


def _sorted(a: Array, rng: Random) -> Array:
    return np.sort(a, -1)


def _one_hot(a: Array, rng: Random) -> Array:
    made = np.zeros_like(a)
    if a.shape[-1]:
        at = rng.integers(a.shape[-1], size=(*a.shape[:-1], 1))
        np.put_along_axis(made, at, 1, -1)
    return made


# --- matrices ---


def _swapped(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _tame(a: Array, rng: Random) -> Array:
    """`a` made finite, with magnitudes whose squares are finite too."""
    a = _finite(a, rng)
    largest = _LARGEST.get(a.dtype.name, 1e6)
    return np.clip(a, -largest, largest) if a.dtype.kind == "f" else a


def _identity(a: Array) -> Array:
    return np.eye(a.shape[-1], dtype=int).astype(a.dtype)


def _symmetric(a: Array, rng: Random) -> Array:
    lower = np.tri(a.shape[-1], dtype=bool)
    return np.where(lower, a, _swapped(a))


def _semidefinite(a: Array, rng: Random) -> Array:
    a = _tame(a, rng)
    if rng.random() < 0.3:
        a = a * (np.arange(a.shape[-1]) > 0)  # makes the rank less than full
    return _symmetric((a @ _swapped(a)).astype(a.dtype), rng)


def _definite(a: Array, rng: Random) -> Array:
    if a.dtype == object:
        return _whole_definite(a, rng)
    made = _semidefinite(a, rng)
    mean = np.trace(made, axis1=-2, axis2=-1)[..., None, None] / a.shape[-1]
    share = a.dtype.type(rng.choice((1.0, 0.1, 0.01)))
    return made + _identity(a) * (mean * share + share).astype(a.dtype)


def _whole_definite(a: Array, rng: Random) -> Array:
    return (_semidefinite(a, rng) + _identity(a)).astype(a.dtype)


def _lower(a: Array, rng: Random) -> Array:
    return np.tril(a)


def _upper(a: Array, rng: Random) -> Array:
    return np.triu(a)


def _diagonal(a: Array, rng: Random) -> Array:
    return np.tril(np.triu(a))


def _orthogonal(a: Array, rng: Random) -> Array:
    """A product of Householder reflections along rows of `a`."""
    wide = _tame(a, rng) if a.dtype == object else np.clip(np.asarray(_tame(a, rng), np.float64), -4, 4)
    made = _identity(wide)
    for i in range(min(2, a.shape[-1])):
        v = wide[..., i, :, None]
        length = (_swapped(v) @ v)[..., 0, 0]
        v = np.where((length == 0)[..., None, None], _identity(wide)[0, :, None], v)
        length = _swapped(v) @ v
        step = v @ _swapped(v)
        twice = 2 * step if a.dtype != object else step * Fraction(2)
        made = made @ (_identity(wide) - twice / length)
    return made.astype(a.dtype)


def _permutation(a: Array, rng: Random) -> Array:
    return _identity(a)[rng.permutation(a.shape[-1])] * np.ones_like(a)


def _invertible(a: Array, rng: Random) -> Array:
    if holds("invertible", a):
        return a
    a = _tame(a, rng)
    a = np.clip(a, -1000, 1000) if a.dtype.kind == "f" else a
    rows = np.abs(a).sum(-1)[..., None] + 1
    return (a + _identity(a) * rows).astype(a.dtype)


# In an order in which later adapters preserve the facts that earlier ones gave.
_ADAPTERS: dict[str, Adapter] = {
    "finite": _finite,
    "integral": _integral,
    "nonnegative": _nonnegative,
    "nonzero": _nonzero,
    "constant": _constant,
    "sorted": _sorted,
    "one_hot": _one_hot,
    "positive_semidefinite": _semidefinite,
    "positive_definite": _definite,
    "symmetric": _symmetric,
    "lower_triangular": _lower,
    "upper_triangular": _upper,
    "diagonal": _diagonal,
    "orthogonal": _orthogonal,
    "invertible": _invertible,
}
_OF_WHOLE_NUMBERS: dict[str, Adapter] = {"positive_definite": _whole_definite, "orthogonal": _permutation}
