"""Facts about values: the vocabulary for describing inputs and for the conditions of rules.

A fact is a claim about an array as stored. Facts about elements cover the elements that are numbers: only `finite`
excludes NaN, so `positive` says that no element is 0 or less. Facts about matrices cover the last two axes of every
batch, which must have equal sizes; `sorted` and `one-hot` cover the last axis. An array without elements satisfies
every fact, except that rows of size 0 are not `one-hot`.

A fact carries its check (`find_failure`) and its generator (`adapt`), which changes an array as little as the fact
requires, in the array's own arithmetic (floats, integers, or exact fractions), so that special values (zeros,
infinities, cancelling values) mostly stay. How facts follow from facts of operands is in `rules/book/facts.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from relax_eg.dtypes import KINDS, NUMBERS, kind
from relax_eg.errors import OptionError
from relax_eg.ir.annotations import Tensor
from relax_eg.tir.functions import widen

Array = np.ndarray[Any, Any]
Key = TypeVar("Key")  # a fact, or a test of constants
Index = tuple[int, ...]
# Where a fact fails: the index, and a message with `{x}` for the array's name; None where it holds.
Failing = tuple[Index, str] | None
Random = np.random.Generator
Adapter = Callable[[Array, Random], Array]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that an array can have.

    - `name`: the spelling for users.
    - `axes`: number of trailing axes that it covers: 0 for single elements, 2 for square matrices.
    - `kinds`: kinds of dtype that can have it, as letters of `dtypes.kind`.
    - `meaning`: its meaning in one sentence.
    - `find_failure`: returns where an array lacks it, or None.
    - `adapt`: returns an array of at least one element, changed so that it has the fact, as far as possible.
    - `adapt_whole`: as `adapt`, for an array of whole numbers, which it keeps whole.
    """

    name: str
    axes: int
    kinds: str
    meaning: str
    find_failure: Callable[[Array], Failing]
    adapt: Adapter
    adapt_whole: Adapter | None = None

    @property
    def key(self) -> str:
        """The name as an identifier."""
        return self.name.replace(" ", "_").replace("-", "_")


def _first_true(wrong: Any) -> Index | None:
    """Returns the first index at which a boolean array is true, or None."""
    found = np.argwhere(np.asarray(wrong, dtype=bool))
    return tuple(int(i) for i in found[0]) if len(found) else None


def _element(wrong: Callable[[Array], Any]) -> Callable[[Array], Failing]:
    def find_failure(a: Array) -> Failing:
        with np.errstate(invalid="ignore"):
            at = _first_true(wrong(a))
        return None if at is None else (at, f"{{x}}{_subscript(at)} = {a[at]}")

    return find_failure


def _subscript(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _transposed(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _symmetric(a: Array) -> Failing:
    b = _transposed(a)
    at = _first_true((a != b) & ((a == a) | (b == b)))
    if at is None:
        return None
    other = (*at[:-2], at[-1], at[-2])
    return at, f"{{x}}{_subscript(at)} = {a[at]} and {{x}}{_subscript(other)} = {a[other]}"


def _outside(kept: Callable[[Any, Any], Any]) -> Callable[[Array], Failing]:
    """Returns a check that fails where a nonzero element lies at a row and column that are not `kept`."""
    return _element(lambda a: (a != 0) & ~kept(*np.ogrid[: a.shape[-2], : a.shape[-1]]))


def _spectrum(least: Callable[[Any, int, Any], Any]) -> Callable[[Array], Failing]:
    """Returns a check that fails where a matrix is not symmetric or not finite, or where its smallest eigenvalue is not
    above `least(eps, n, largest)`; `largest` is its largest absolute eigenvalue."""

    def find_failure(a: Array) -> Failing:
        found = _symmetric(a)
        if found is not None or not a.size:
            return found
        found = _element(lambda x: ~np.isfinite(x))(np.asarray(a, np.float64))
        if found is not None:
            return found
        values = np.linalg.eigvalsh(np.asarray(a, np.float64))
        bound = least(_eps(a), a.shape[-1], np.abs(values).max(-1))
        at = _first_true(~(values[..., 0] > bound))
        if at is None:
            return None
        return at, f"an eigenvalue of {{x}}{_subscript(at)} is {values[at][0]:.6g}"

    return find_failure


def _eps(a: Array) -> float:
    return float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else float(np.finfo(np.float64).eps)


def _orthogonal(a: Array) -> Failing:
    wide = np.asarray(a, np.float64)
    product = wide @ _transposed(wide)
    off = np.abs(product - np.eye(a.shape[-1]))
    at = _first_true(~(off <= 4 * a.shape[-1] * _eps(a)))
    if at is None:
        return None
    *batch, i, j = at
    rows = f"rows {i} and {j}" if i != j else f"row {i} with itself"
    return at, f"the product of {rows} of {{x}}{_subscript(tuple(batch))} is {product[at]:.6g}"


def _invertible(a: Array) -> Failing:
    if not a.size:
        return None
    wide = np.asarray(a, np.float64)
    found = _element(lambda x: ~np.isfinite(x))(wide)
    if found is not None:
        return found
    values = np.linalg.svd(wide, compute_uv=False)
    at = _first_true(~(values[..., -1] > a.shape[-1] * _eps(a) * values[..., 0]))
    return (
        None if at is None else (at, f"the singular values of {{x}}{_subscript(at)} reach down to {values[at][-1]:.6g}")
    )


def _constant(a: Array) -> Failing:
    if not a.size:
        return None
    first = a.reshape(-1)[0]
    at = _first_true((a != first) & ((a == a) | (first == first)))
    return (
        None if at is None else (at, f"{{x}}{_subscript(at)} = {a[at]} and {{x}}{_subscript((0,) * a.ndim)} = {first}")
    )


def _sorted(a: Array) -> Failing:
    before, after = a[..., :-1], a[..., 1:]
    at = _first_true(~((before <= after) | (after != after)))
    if at is None:
        return None
    following = (*at[:-1], at[-1] + 1)
    return at, f"{{x}}{_subscript(at)} = {a[at]} and {{x}}{_subscript(following)} = {a[following]}"


def _one_hot(a: Array) -> Failing:
    found = _element(lambda x: (x != 0) & (x != 1))(a)
    if found is not None:
        return found
    ones = np.asarray(a == 1).sum(-1)
    at = _first_true(ones != 1)
    return None if at is None else (at, f"{{x}}{_subscript((*at,))} has {ones[at]} ones")


# chosen: values are clipped to this magnitude before they are multiplied into a matrix, so that products do not
# overflow; it is 1e6 for other dtypes.
_LARGEST = {"float16": 8.0}
# limit: elements of matrices whose singular values are computed; larger ones are always changed
_INSPECTED_ELEMENTS = 1 << 12


# --- arrays that have a fact: elements ---


def _finite_from(a: Array, rng: Random) -> Array:
    return a if a.dtype.kind != "f" else np.where(np.isfinite(a), a, a.dtype.type(1))


def _integral_from(a: Array, rng: Random) -> Array:
    if a.dtype == object:
        return np.asarray(a // 1, dtype=object)  # numpy returns scalars for arrays without axes
    return np.rint(a) if a.dtype.kind == "f" else a


def _opposite(a: Array) -> Array:
    # The least integer has no opposite, and unsigned numbers have none but 0.
    return ~a if a.dtype.kind == "i" else np.zeros_like(a) if a.dtype.kind == "u" else -a


def _nonnegative_from(a: Array, rng: Random) -> Array:
    return np.where(a < 0, _opposite(a), a).astype(a.dtype)


def _nonzero_from(a: Array, rng: Random) -> Array:
    return np.where(a == 0, a.dtype.type(1) if a.dtype != object else 1, a).astype(a.dtype)


def _constant_from(a: Array, rng: Random) -> Array:
    made = np.empty_like(a)
    made[...] = a.reshape(-1)[int(rng.integers(a.size))]
    return made


def _one_hot_from(a: Array, rng: Random) -> Array:
    made = np.zeros_like(a)
    if a.shape[-1]:
        at = rng.integers(a.shape[-1], size=(*a.shape[:-1], 1))
        np.put_along_axis(made, at, 1, -1)
    return made


# --- arrays that have a fact: matrices ---


def _bounded_finite(a: Array, rng: Random) -> Array:
    """Returns `a` with finite elements whose squares are finite."""
    a = _finite_from(a, rng)
    largest = _LARGEST.get(a.dtype.name, 1e6)
    return np.clip(a, -largest, largest) if a.dtype.kind == "f" else a


def _identity(a: Array) -> Array:
    return np.eye(a.shape[-1], dtype=int).astype(a.dtype)


def _symmetric_from(a: Array, rng: Random) -> Array:
    lower = np.tri(a.shape[-1], dtype=bool)
    return np.where(lower, a, _transposed(a))


def _semidefinite_from(a: Array, rng: Random) -> Array:
    a = _bounded_finite(a, rng)
    if rng.random() < 0.3:
        a = a * (np.arange(a.shape[-1]) > 0)  # makes the rank less than full
    return _symmetric_from((a @ _transposed(a)).astype(a.dtype), rng)


def _definite_from(a: Array, rng: Random) -> Array:
    if a.dtype == object:
        return _whole_definite_from(a, rng)
    made = _semidefinite_from(a, rng)
    mean = np.trace(made, axis1=-2, axis2=-1)[..., None, None] / a.shape[-1]
    share = a.dtype.type(rng.choice((1.0, 0.1, 0.01)))
    return made + _identity(a) * (mean * share + share).astype(a.dtype)


def _whole_definite_from(a: Array, rng: Random) -> Array:
    return (_semidefinite_from(a, rng) + _identity(a)).astype(a.dtype)


def _orthogonal_from(a: Array, rng: Random) -> Array:
    """Returns a product of Householder reflections along rows of `a`."""
    wide = (
        _bounded_finite(a, rng)
        if a.dtype == object
        else np.clip(np.asarray(_bounded_finite(a, rng), np.float64), -4, 4)
    )
    made = _identity(wide)
    for i in range(min(2, a.shape[-1])):
        v = wide[..., i, :, None]
        length = (_transposed(v) @ v)[..., 0, 0]
        v = np.where((length == 0)[..., None, None], _identity(wide)[0, :, None], v)
        length = _transposed(v) @ v
        step = v @ _transposed(v)
        twice = 2 * step if a.dtype != object else step * Fraction(2)
        made = made @ (_identity(wide) - twice / length)
    return made.astype(a.dtype)


def _permutation_from(a: Array, rng: Random) -> Array:
    return _identity(a)[rng.permutation(a.shape[-1])] * np.ones_like(a)


def _invertible_from(a: Array, rng: Random) -> Array:
    if a.size <= _INSPECTED_ELEMENTS and has_fact("invertible", a):
        return a
    a = _bounded_finite(a, rng)
    a = np.clip(a, -1000, 1000) if a.dtype.kind == "f" else a
    rows = np.abs(a).sum(-1)[..., None] + 1
    return (a + _identity(a) * rows).astype(a.dtype)


# --- masks ---


def _outside_mask(wrong: Callable[[Array], Array]) -> Callable[[Array], Failing]:
    def find_failure(a: Array) -> Failing:
        at = _first_true(wrong(a))
        return None if at is None else (at, "")

    return find_failure


def _eye(a: Array) -> Array:
    return np.eye(a.shape[-1], dtype=bool)


# --- the facts ---

POSITIVE = Fact("positive", 0, "iuf", "every element that is a number is greater than 0",
    _element(lambda a: a <= 0), lambda a, rng: _nonzero_from(_nonnegative_from(a, rng), rng))  # fmt: skip
NONNEGATIVE = Fact("nonnegative", 0, "iuf", "no element is less than 0", _element(lambda a: a < 0), _nonnegative_from)
NONPOSITIVE = Fact("nonpositive", 0, "iuf", "no element is greater than 0",
    _element(lambda a: a > 0), lambda a, rng: np.where(a > 0, _opposite(a), a).astype(a.dtype))  # fmt: skip
NONZERO = Fact("nonzero", 0, "iuf", "no element is 0", _element(lambda a: a == 0), _nonzero_from)
FINITE = Fact("finite", 0, "iuf", "no element is NaN or infinite",
    _element(lambda a: ~np.isfinite(a) if a.dtype != object else np.zeros(a.shape, bool)), _finite_from)  # fmt: skip
INTEGRAL = Fact(
    "integral",
    0,
    "iuf",
    "every element that is a finite number is a whole one",
    _element(lambda a: a != a // 1 if a.dtype == object else np.isfinite(a) & (a != np.floor(a))),
    _integral_from,
)
CONSTANT = Fact("constant", 0, "biuf", "all elements are equal", _constant, _constant_from)
SORTED = Fact("sorted", 1, "iuf", "elements ascend along the last axis, NaN last",
    _sorted, lambda a, rng: np.sort(a, -1))  # fmt: skip
ONE_HOT = Fact("one-hot", 1, "biuf", "along the last axis one element is 1 and the others are 0",
    _one_hot, _one_hot_from)  # fmt: skip
SYMMETRIC = Fact("symmetric", 2, "biuf", "each matrix is its transpose", _symmetric, _symmetric_from)
POSITIVE_DEFINITE = Fact(
    "positive definite",
    2,
    "f",
    "each matrix is symmetric, and its eigenvalues are greater than 0",
    _spectrum(lambda eps, n, largest: 0 * largest),
    _definite_from,
    _whole_definite_from,
)
POSITIVE_SEMIDEFINITE = Fact(
    "positive semidefinite",
    2,
    "f",
    "each matrix is symmetric, and no eigenvalue is less than 0, within rounding",
    _spectrum(lambda eps, n, largest: -4 * n * eps * largest - 1e-300),
    _semidefinite_from,
)
LOWER_TRIANGULAR = Fact("lower triangular", 2, "iuf", "elements above the diagonal are 0",
    _outside(lambda i, j: j <= i), lambda a, rng: np.tril(a))  # fmt: skip
UPPER_TRIANGULAR = Fact("upper triangular", 2, "iuf", "elements below the diagonal are 0",
    _outside(lambda i, j: i <= j), lambda a, rng: np.triu(a))  # fmt: skip
DIAGONAL = Fact("diagonal", 2, "iuf", "elements off the diagonal are 0",
    _outside(lambda i, j: i == j), lambda a, rng: np.tril(np.triu(a)))  # fmt: skip
ORTHOGONAL = Fact("orthogonal", 2, "f", "each matrix times its transpose is the identity, within rounding",
    _orthogonal, _orthogonal_from, _permutation_from)  # fmt: skip
INVERTIBLE = Fact("invertible", 2, "f", "each matrix has an inverse: no singular value is 0, within rounding",
    _invertible, _invertible_from)  # fmt: skip

# Facts that only premises of rules about facts use: of boolean matrices, such as masks of triangles.
ONLY_LOWER = Fact("only_lower", 2, "b", "true nowhere above the diagonal",
    _outside_mask(lambda a: np.triu(a, 1)), lambda a, rng: np.tril(a))  # fmt: skip
ALL_BELOW = Fact("all_below", 2, "b", "true everywhere below the diagonal",
    _outside_mask(lambda a: np.tril(~a, -1)), lambda a, rng: a | np.tri(a.shape[-1], k=-1, dtype=bool))  # fmt: skip
ONLY_DIAGONAL = Fact("only_diagonal", 2, "b", "true nowhere off the diagonal",
    _outside_mask(lambda a: a & ~_eye(a)), lambda a, rng: a & _eye(a))  # fmt: skip
IDENTITY_MASK = Fact("identity_mask", 2, "b", "true on the diagonal alone",
    _outside_mask(lambda a: a != _eye(a)), lambda a, rng: np.broadcast_to(_eye(a), a.shape))  # fmt: skip


def _by_key(*facts: Fact) -> dict[str, Fact]:
    return {f.key: f for f in facts}


FACTS = _by_key(
    POSITIVE, NONNEGATIVE, NONPOSITIVE, NONZERO, FINITE, INTEGRAL, CONSTANT, SORTED, ONE_HOT, SYMMETRIC,
    POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, LOWER_TRIANGULAR, UPPER_TRIANGULAR, DIAGONAL, ORTHOGONAL, INVERTIBLE,
)  # fmt: skip
HELPERS = _by_key(IDENTITY_MASK, ONLY_DIAGONAL, ONLY_LOWER, ALL_BELOW)

# `with_facts` adapts an array to these facts first, because the adapters of other facts preserve them.
_FIRST = (
    FINITE, INTEGRAL, NONNEGATIVE, NONPOSITIVE, NONZERO, POSITIVE, CONSTANT, SORTED, ONE_HOT, POSITIVE_SEMIDEFINITE,
    POSITIVE_DEFINITE,
)  # fmt: skip

Implied = tuple[tuple[tuple[str, ...], str], ...]


def _implied(*rows: tuple[tuple[Fact, ...], Fact]) -> Implied:
    return tuple((tuple(f.key for f in premises), conclusion.key) for premises, conclusion in rows)


# Implications: a value that has all premises has the conclusion.
IMPLIED = _implied(
    ((POSITIVE,), NONNEGATIVE),
    ((POSITIVE,), NONZERO),
    ((NONNEGATIVE, NONZERO), POSITIVE),
    ((ONE_HOT,), NONNEGATIVE),
    ((ONE_HOT,), INTEGRAL),
    ((ONE_HOT,), FINITE),
    ((POSITIVE_DEFINITE,), POSITIVE_SEMIDEFINITE),
    ((POSITIVE_DEFINITE,), INVERTIBLE),
    ((POSITIVE_SEMIDEFINITE,), SYMMETRIC),
    ((POSITIVE_SEMIDEFINITE, INVERTIBLE), POSITIVE_DEFINITE),
    ((ORTHOGONAL,), INVERTIBLE),
    ((DIAGONAL,), SYMMETRIC),
    ((DIAGONAL,), LOWER_TRIANGULAR),
    ((DIAGONAL,), UPPER_TRIANGULAR),
    ((LOWER_TRIANGULAR, UPPER_TRIANGULAR), DIAGONAL),
    ((SYMMETRIC, LOWER_TRIANGULAR), DIAGONAL),
    ((SYMMETRIC, UPPER_TRIANGULAR), DIAGONAL),
)
ALL_IMPLIED = (*IMPLIED, *_implied(((IDENTITY_MASK,), ONLY_DIAGONAL), ((ONLY_DIAGONAL,), ONLY_LOWER)))


def fact_named(text: str) -> str:
    """Returns the key in `FACTS` for "positive definite", "one-hot" or "one_hot". Raises OptionError."""
    key = text.strip().lower().replace(" ", "_").replace("-", "_") if isinstance(text, str) else ""
    if key in FACTS:
        return key
    if key in ("triangular", "definite", "semidefinite"):
        near = [f.name for k, f in FACTS.items() if k.endswith(key)]
    else:
        near = [FACTS[k].name for k in difflib.get_close_matches(key, FACTS, 2, cutoff=0.8)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise OptionError(f"{text!r} is no fact; {hint}accepted: {', '.join(f.name for f in FACTS.values())}")


def facts_named(text: str) -> list[str]:
    """Returns the keys in `FACTS` for "positive finite" or "positive definite, diagonal". Raises OptionError."""
    if not isinstance(text, str):
        return [fact_named(text)]
    found: list[str] = []
    for part in text.split(","):
        words = part.split()
        while words:
            # A name has one or two words. Text without a name is looked up whole, so the error quotes it as written.
            count = next((n for n in (2, 1) if "_".join(words[:n]).lower().replace("-", "_") in FACTS), len(words))
            found.append(fact_named(" ".join(words[:count])))
            del words[:count]
    return found or [fact_named(text)]


def with_implied(facts: Iterable[Key], implied: Iterable[tuple[Collection[Key], Key]] = IMPLIED) -> frozenset[Key]:
    """Returns `facts` and all that follow from them. `implied`: pairs of premises and the fact that follows."""
    found = set(facts)
    grown = True
    while grown:
        new = {c for premises, c in implied if c not in found and found.issuperset(premises)}
        found |= new
        grown = bool(new)
    return frozenset(found)


def facts_of_dtype(dtype: str) -> frozenset[str]:
    """Returns the facts that every value of a dtype has."""
    match kind(dtype):
        case "i":
            return frozenset({"integral", "finite"})
        case "u":
            return frozenset({"integral", "finite", "nonnegative"})
        case _:
            return frozenset()


def impossible(fact: str, of: Tensor) -> str:
    """Returns why no value with annotation `of` can have a fact; empty where one can."""
    f = FACTS[fact]
    if of.dtype is None or (of.shape is None and f.axes):
        return f"its {'dtype' if of.dtype is None else 'shape'} is not known"
    if of.dtype not in NUMBERS or kind(of.dtype) not in f.kinds:
        return f"its dtype is {of.dtype}; {', '.join(KINDS[k] for k in f.kinds)} can be {f.name}"
    shape = list(of.shape or ())
    if len(shape) < f.axes:
        needs = "a matrix, or a batch of them," if f.axes == 2 else "an axis"
        return f"its rank is {len(shape)}; {needs} is needed to be {f.name}"
    if f.axes == 2 and shape[-1] is not shape[-2]:
        return f"its matrices are {shape[-2]} by {shape[-1]}; square ones can be {f.name}"
    return ""


def violation(fact: str, value: Any, name: str = "x") -> str:
    """Returns where `value` lacks a fact, such as `x[3] = -1.0`; empty where it has the fact."""
    a = np.asarray(value)
    found = FACTS[fact].find_failure(a if a.dtype == object else widen(a))
    return "" if found is None else found[1].format(x=name)


def with_facts(a: Array, facts: Collection[str], rng: Random) -> Array:
    """Returns `a`, which has elements, changed so that it has `facts`, as far as possible."""
    for f in dict.fromkeys((*_FIRST, *FACTS.values(), *HELPERS.values())):
        if f.key in facts:
            a = (f.adapt_whole if f.adapt_whole is not None and "integral" in facts else f.adapt)(a, rng)
    return a


def has_fact(fact: str, value: Any) -> bool:
    """Returns whether an array has a fact."""
    return not violation(fact, value)
