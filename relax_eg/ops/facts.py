"""Facts about values: the vocabulary for describing inputs and for the conditions of rules.

A fact is a claim about an array as stored. Facts about elements cover the elements that are numbers: only `finite`
excludes NaN, so `positive` says that no element is 0 or less. Facts about matrices cover the last two axes of every
batch, which must have equal sizes; `sorted` and `one-hot` cover the last axis. An array without elements satisfies
every fact, except that rows of size 0 are not `one-hot`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import OptionError
from relax_eg.ir.annotations import ITEM_BITS, Tensor
from relax_eg.tir.functions import kind, widen

Array = np.ndarray[Any, Any]
Index = tuple[int, ...]
# Where a fact fails: the index, and a message with `{x}` for the array's name; None where it holds.
Failing = tuple[Index, str] | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that an array can have.

    - `name`: the spelling for users.
    - `axes`: number of trailing axes that it covers: 0 for single elements, 2 for square matrices.
    - `kinds`: kinds of dtype that can have it, as letters of `tir.kind`.
    - `means`: its meaning in one sentence.
    - `failing`: returns where an array lacks it, or None.
    """

    name: str
    axes: int
    kinds: str
    means: str
    failing: Callable[[Array], Failing]


def _first(wrong: Any) -> Index | None:
    """Returns the first index at which a boolean array is true, or None."""
    found = np.argwhere(np.asarray(wrong, dtype=bool))
    return tuple(int(i) for i in found[0]) if len(found) else None


def _element(wrong: Callable[[Array], Any]) -> Callable[[Array], Failing]:
    def failing(a: Array) -> Failing:
        with np.errstate(invalid="ignore"):
            at = _first(wrong(a))
        return None if at is None else (at, f"{{x}}{_at(at)} = {a[at]}")

    return failing


def _at(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _swapped(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _symmetric(a: Array) -> Failing:
    b = _swapped(a)
    at = _first((a != b) & ((a == a) | (b == b)))
    if at is None:
        return None
    other = (*at[:-2], at[-1], at[-2])
    return at, f"{{x}}{_at(at)} = {a[at]} and {{x}}{_at(other)} = {a[other]}"


def _outside(kept: Callable[[Any, Any], Any]) -> Callable[[Array], Failing]:
    """Returns a check that fails where a nonzero element lies at a row and column that are not `kept`."""
    return _element(lambda a: (a != 0) & ~kept(*np.ogrid[: a.shape[-2], : a.shape[-1]]))


def _spectrum(least: Callable[[Any, int, Any], Any]) -> Callable[[Array], Failing]:
    """Returns a check that fails where a matrix is not symmetric or not finite, or where its smallest eigenvalue is not
    above `least(eps, n, largest)`; `largest` is its largest absolute eigenvalue."""

    def failing(a: Array) -> Failing:
        found = _symmetric(a)
        if found is not None or not a.size:
            return found
        found = _element(lambda x: ~np.isfinite(x))(np.asarray(a, np.float64))
        if found is not None:
            return found
        values = np.linalg.eigvalsh(np.asarray(a, np.float64))
        bound = least(_eps(a), a.shape[-1], np.abs(values).max(-1))
        at = _first(~(values[..., 0] > bound))
        if at is None:
            return None
        return at, f"an eigenvalue of {{x}}{_at(at)} is {values[at][0]:.6g}"

    return failing


def _eps(a: Array) -> float:
    return float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else float(np.finfo(np.float64).eps)


def _orthogonal(a: Array) -> Failing:
    wide = np.asarray(a, np.float64)
    product = wide @ _swapped(wide)
    off = np.abs(product - np.eye(a.shape[-1]))
    at = _first(~(off <= 4 * a.shape[-1] * _eps(a)))
    if at is None:
        return None
    *batch, i, j = at
    rows = f"rows {i} and {j}" if i != j else f"row {i} with itself"
    return at, f"the product of {rows} of {{x}}{_at(tuple(batch))} is {product[at]:.6g}"


def _invertible(a: Array) -> Failing:
    if not a.size:
        return None
    wide = np.asarray(a, np.float64)
    found = _element(lambda x: ~np.isfinite(x))(wide)
    if found is not None:
        return found
    values = np.linalg.svd(wide, compute_uv=False)
    at = _first(~(values[..., -1] > a.shape[-1] * _eps(a) * values[..., 0]))
    return None if at is None else (at, f"the singular values of {{x}}{_at(at)} reach down to {values[at][-1]:.6g}")


def _constant(a: Array) -> Failing:
    if not a.size:
        return None
    first = a.reshape(-1)[0]
    at = _first((a != first) & ((a == a) | (first == first)))
    return None if at is None else (at, f"{{x}}{_at(at)} = {a[at]} and {{x}}{_at((0,) * a.ndim)} = {first}")


def _sorted(a: Array) -> Failing:
    before, after = a[..., :-1], a[..., 1:]
    at = _first(~((before <= after) | (after != after)))
    if at is None:
        return None
    following = (*at[:-1], at[-1] + 1)
    return at, f"{{x}}{_at(at)} = {a[at]} and {{x}}{_at(following)} = {a[following]}"


def _one_hot(a: Array) -> Failing:
    found = _element(lambda x: (x != 0) & (x != 1))(a)
    if found is not None:
        return found
    ones = np.asarray(a == 1).sum(-1)
    at = _first(ones != 1)
    return None if at is None else (at, f"{{x}}{_at((*at,))} has {ones[at]} ones")


_ROWS = (
    Fact("positive", 0, "iuf", "every element that is a number is greater than 0", _element(lambda a: a <= 0)),
    Fact("nonnegative", 0, "iuf", "no element is less than 0", _element(lambda a: a < 0)),
    Fact("nonzero", 0, "iuf", "no element is 0", _element(lambda a: a == 0)),
    Fact("finite", 0, "iuf", "no element is NaN or infinite",
         _element(lambda a: ~np.isfinite(a) if a.dtype != object else np.zeros(a.shape, bool))),
    Fact("integral", 0, "iuf", "every element that is a finite number is a whole one",
         _element(lambda a: a != a // 1 if a.dtype == object else np.isfinite(a) & (a != np.floor(a)))),
    Fact("constant", 0, "biuf", "all elements are equal", _constant),
    Fact("sorted", 1, "iuf", "elements ascend along the last axis, NaN last", _sorted),
    Fact("one-hot", 1, "biuf", "along the last axis one element is 1 and the others are 0", _one_hot),
    Fact("symmetric", 2, "biuf", "each matrix is its transpose", _symmetric),
    Fact("positive definite", 2, "f", "each matrix is symmetric, and its eigenvalues are greater than 0",
         _spectrum(lambda eps, n, largest: 0 * largest)),
    Fact("positive semidefinite", 2, "f", "each matrix is symmetric, and no eigenvalue is less than 0, within rounding",
         _spectrum(lambda eps, n, largest: -4 * n * eps * largest - 1e-300)),
    Fact("lower triangular", 2, "iuf", "elements above the diagonal are 0", _outside(lambda i, j: j <= i)),
    Fact("upper triangular", 2, "iuf", "elements below the diagonal are 0", _outside(lambda i, j: i <= j)),
    Fact("diagonal", 2, "iuf", "elements off the diagonal are 0", _outside(lambda i, j: i == j)),
    Fact("orthogonal", 2, "f", "each matrix times its transpose is the identity, within rounding", _orthogonal),
    Fact("invertible", 2, "f", "each matrix has an inverse: no singular value is 0, within rounding", _invertible),
)  # fmt: skip

FACTS: dict[str, Fact] = {f.name.replace(" ", "_").replace("-", "_"): f for f in _ROWS}

# Implications: a value that has all premises has the conclusion.
IMPLIED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("positive",), "nonnegative"),
    (("positive",), "nonzero"),
    (("nonnegative", "nonzero"), "positive"),
    (("one_hot",), "nonnegative"),
    (("one_hot",), "integral"),
    (("one_hot",), "finite"),
    (("positive_definite",), "positive_semidefinite"),
    (("positive_definite",), "invertible"),
    (("positive_semidefinite",), "symmetric"),
    (("positive_semidefinite", "invertible"), "positive_definite"),
    (("orthogonal",), "invertible"),
    (("diagonal",), "symmetric"),
    (("diagonal",), "lower_triangular"),
    (("diagonal",), "upper_triangular"),
    (("lower_triangular", "upper_triangular"), "diagonal"),
    (("symmetric", "lower_triangular"), "diagonal"),
    (("symmetric", "upper_triangular"), "diagonal"),
)


def fact_named(text: str) -> str:
    """Returns the key in `FACTS` for "positive definite", "one-hot" or "one_hot". Raises OptionError."""
    key = text.strip().lower().replace(" ", "_").replace("-", "_") if isinstance(text, str) else ""
    if key in FACTS:
        return key
    if key in ("triangular", "definite", "semidefinite"):
        near = [f.name for k, f in FACTS.items() if k.endswith(key)]
    else:
        near = [FACTS[k].name for k in difflib.get_close_matches(key, FACTS, 2)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise OptionError(f"{text!r} is no fact; {hint}accepted: {', '.join(f.name for f in _ROWS)}")


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


def with_implied(facts: Iterable[str]) -> frozenset[str]:
    """Returns `facts` and all facts that follow from them."""
    found = set(facts)
    grown = True
    while grown:
        new = {c for premises, c in IMPLIED if c not in found and found.issuperset(premises)}
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
    if of.dtype not in ITEM_BITS or kind(of.dtype) not in f.kinds:
        words = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
        return f"its dtype is {of.dtype}; {', '.join(words[k] for k in f.kinds)} can be {f.name}"
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
    found = FACTS[fact].failing(a if a.dtype == object else widen(a))
    return "" if found is None else found[1].format(x=name)


def holds(fact: str, value: Any) -> bool:
    """Returns whether an array has a fact."""
    return not violation(fact, value)
