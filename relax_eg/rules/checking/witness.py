"""Counterexamples: a failing case is reduced to small sizes and simple values, and shown in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from relax_eg.rules.checking.judge import Array, Case, Failure, Judge, find_failure
from relax_eg.rules.checking.samples import Draw, admits, size_variables
from relax_eg.rules.format import expression_text
from relax_eg.rules.rule import Instance

_SHOWN = 24  # limit: elements of an array that is written out
_TRIES = 16  # limit: random values tried at each smaller size
_STEPS = 120  # limit: evaluations for simpler values if all values together have at most `_SMALL` elements, else fewer
_SMALL = 4096  # limit: elements of all values together with which all `_STEPS` are made
_ALL_BELOW = 32  # limit: all sizes below it are tried


@dataclass(frozen=True)
class Counterexample:
    """A counterexample: sizes and values of the pattern variables at which the two sides of an instance differ.

    - `case`: the instance, with these sizes and values.
    - `failure`: the difference.
    - `judge`: the judge that found it.

    `holds()` evaluates both sides again and returns whether they still differ.
    """

    case: Case
    failure: Failure
    judge: Judge

    def holds(self) -> bool:
        return find_failure(self.judge, self.case) is not None

    def __str__(self) -> str:
        instance, f = self.case.instance, self.failure
        left, right = (", ".join(map(expression_text, side)) for side in (instance.left, instance.right))
        sizes = ", ".join(f"{n}={v}" for n, v in self.case.sizes.items())
        values = "  ".join(f"{n} = {value_text(v)}" for n, v in self.case.values.items())
        at = f"at {sizes}:  {values}" if sizes else f"at {values}"
        lines = [f"  left   {left}      right   {right}", f"  {at}"]
        which = f"result {f.output}: " if len(instance.left) > 1 else ""
        why = f"   -- {f.description}" if f.description else ""
        if f.left is not None and f.right is not None:
            lines.append(f"  {which}left = {value_text(f.left)}, right = {value_text(f.right)}{why}")
            lines += _first_difference(f.left, f.right)
        else:
            lines.append(f"  {which}{f.description}")
        return "\n".join([*lines, f"  hint: {f.hint}"] if f.hint else lines)


def _first_difference(left: Array, right: Array) -> list[str]:
    """A line about the first elements that differ, if the arrays are too long to be written out; otherwise no line."""
    if left.shape != right.shape or left.size <= _SHOWN or left.dtype == object:
        return []
    for i in range(left.size):
        a, b = left.reshape(-1)[i], right.reshape(-1)[i]
        if a.tobytes() != b.tobytes() and not (a != a and b != b):
            index = ", ".join(str(int(n)) for n in np.unravel_index(i, left.shape))
            return [f"  first at [{index}]: left = {_number(a)}, right = {_number(b)}"]
    return []


def value_text(value: Array) -> str:
    """An array as nested lists; for a long array its dtype, shape and first element."""
    a = np.asarray(value)
    if a.size > _SHOWN:
        return f"{a.dtype.name if a.dtype != object else 'array'}{list(a.shape)} of {_number(a.flat[0])}, ..."
    return _nested(a) + ("" if a.size or a.ndim < 2 else f" of shape {a.shape}")


def _nested(a: Array) -> str:
    if a.ndim == 0:
        return _number(a[()])
    return f"[{', '.join(_nested(np.asarray(x)) for x in a)}]"


def _number(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value[()]
    text = str(value)
    # Whole numbers are shown as 2, not 2.0, except -0.0.
    return text[:-2] if text.endswith(".0") and text != "-0.0" else text


def witness(case: Case, failure: Failure, judge: Judge, draw: Draw, seed: int) -> Counterexample:
    """The counterexample of a failing case, reduced by a short search for smaller sizes and simpler values."""
    case, failure = _smaller_sizes(case, failure, judge, draw, seed)
    case, failure = _simpler_values(case, failure, judge)
    hint = failure.hint or _nonempty_hint(case, judge, draw, seed) or _relation_hint(case, judge, draw, seed)
    return Counterexample(case, replace(failure, hint=hint), judge)


def _smaller_sizes(case: Case, failure: Failure, judge: Judge, draw: Draw, seed: int) -> tuple[Case, Failure]:
    names = size_variables(case.instance)
    progress = True
    while progress:
        progress = False
        for name in names:
            for size in _smaller(case.sizes[name]):
                # Unless the failure is about empty axes, size 0 is not simpler than 1, because it shows no elements.
                if size == 0 and 0 not in case.sizes.values():
                    continue
                sizes = {**case.sizes, name: size}
                found = _failing_case(case.instance, sizes, judge, draw, seed) if admits(case.instance, sizes) else None
                if found is not None:
                    case, failure, progress = *found, True
                    break
    return case, failure


def _smaller(size: int) -> Iterator[int]:
    """Smaller sizes to try in place of `size`: first those below `_ALL_BELOW`, then some in between."""
    yield from range(min(size, _ALL_BELOW))
    step = size - _ALL_BELOW
    while step > 1:
        step = -(-step // 2)
        yield size - step
    if size > _ALL_BELOW:
        yield size - 1


def _failing_case(
    instance: Instance, sizes: Mapping[str, int], judge: Judge, draw: Draw, seed: int, tries: int = _TRIES
) -> tuple[Case, Failure] | None:
    """A failing case at these sizes, if one of `tries` random draws gives one."""
    for index in range(tries):
        case = Case(instance, sizes, draw(instance, sizes, np.random.default_rng((seed, index)), index))
        failure = find_failure(judge, case)
        if failure is not None:
            return case, failure
    return None


def _simpler_values(case: Case, failure: Failure, judge: Judge) -> tuple[Case, Failure]:
    elements = sum(v.size for v in case.values.values())
    steps = max(_STEPS * _SMALL // max(elements, _SMALL), 4)
    for name, start in case.values.items():
        for change in _changes(start.size):
            simpler = change(case.values[name])
            if simpler is None:
                continue
            if steps == 0:
                return case, failure
            steps -= 1
            candidate = replace(case, values={**case.values, name: simpler})
            found = find_failure(judge, candidate)
            if found is not None and _same_kind(found, failure):
                case, failure = candidate, found
    return case, failure


def _same_kind(a: Failure, b: Failure) -> bool:
    # A difference of values must not be replaced by a side that does not exist, which explains less.
    return (a.description == "") == (b.description == "") and a.hint == b.hint


Change = Callable[[Array], Array | None]


def _changes(size: int) -> Iterator[Change]:
    """Functions that simplify an array: one value everywhere, then simple values for single elements, then fewer
    digits. Each returns None if it does not apply."""
    for value in (0, 1):
        yield partial(_filled, value=value)
    for i in range(min(size, 16)):
        for value in (0, 1, -1, 2):
            yield partial(_replaced, i=i, value=value)
    for digits in (1, 2):
        yield partial(_rounded, digits=digits)


def _filled(a: Array, value: int) -> Array | None:
    return np.full_like(a, value) if a.size else None


def _replaced(a: Array, i: int, value: int) -> Array | None:
    if _plain(a.flat[i]) <= abs(value):
        return None
    simpler = a.copy()
    try:
        simpler.flat[i] = value
    except (OverflowError, ValueError):  # -1 in an unsigned type
        return None
    return simpler


def _rounded(a: Array, digits: int) -> Array | None:
    if a.dtype.kind != "f" or not a.size or not np.isfinite(a).all():
        return None
    return np.array([float(f"{x:.{digits}g}") for x in a.flat], a.dtype).reshape(a.shape)


def _plain(value: Any) -> float:
    """A rank of complexity of a number: 0 for 0, 1 for magnitude 1, 2 for magnitude 2, 3 for any other."""
    if isinstance(value, (np.bool_, bool)):
        return 0.0
    size = abs(complex(value)) if np.iscomplexobj(value) else abs(float(value))
    return size if size in (0.0, 1.0, 2.0) else 3.0


def _relation_hint(case: Case, judge: Judge, draw: Draw, seed: int) -> str:
    """A hint about the relation between the two results (transpose, sign, factor), if a few larger cases agree on one;
    otherwise empty."""
    sizes = {n: max(v, 3) for n, v in case.sizes.items()}
    pairs: list[tuple[Array, Array]] = []
    for index in range(4):
        is_admitted = admits(case.instance, sizes)
        found = _failing_case(case.instance, sizes, judge, draw, seed + index, 2) if is_admitted else None
        if (
            found is None
            or found[1].left is None
            or found[1].right is None
            or found[1].left.shape != found[1].right.shape
            or found[1].left.dtype.kind == "c"
        ):
            return ""
        try:
            pairs.append((found[1].left.astype(np.float64), found[1].right.astype(np.float64)))
        except TypeError:  # UNDEFINED
            return ""
    if all(a.ndim == 2 and a.shape[0] == a.shape[1] > 1 and np.allclose(a, b.T) for a, b in pairs):
        return "the right side is the transpose of the left; is a .T missing?"
    left, right = (np.concatenate([p[i].ravel() for p in pairs]) for i in (0, 1))
    if np.any((left == 0) & (right != 0)):
        return ""
    if not (np.isfinite(left).all() and np.isfinite(right).all()) or len(set(np.abs(left))) < 4 or not right.any():
        return ""
    ratios = right[left != 0] / left[left != 0]
    if not np.allclose(ratios, ratios[0]):
        return ""
    return (
        "the sides differ in sign" if np.isclose(ratios[0], -1) else f"the right side is {ratios[0]:.6g} times the left"
    )


def _nonempty_hint(case: Case, judge: Judge, draw: Draw, seed: int) -> str:
    """A hint about a missing condition that excludes empty axes, if the rule seems to hold without them; otherwise
    empty."""
    empty = [n for n, v in case.sizes.items() if v == 0]
    if not empty:
        return ""

    def wrong(full: Iterable[str]) -> bool:
        """Whether the sides still differ, or the sizes are not admitted, if the sizes `full` are 1 to 3."""
        for size in range(1, 4):
            sizes = {**case.sizes, **dict.fromkeys(full, size)}
            if not admits(case.instance, sizes) or _failing_case(case.instance, sizes, judge, draw, seed) is not None:
                return True
        return False

    if wrong(empty):
        return ""
    empty = next(([n] for n in empty if not wrong([n])), empty)
    conditions = ", ".join(f'"{n} >= 1"' for n in empty)
    return f"it holds where no axis is empty: when={conditions if len(empty) == 1 else f'({conditions})'}"
