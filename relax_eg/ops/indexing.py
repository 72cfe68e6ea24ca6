"""`x[key]`: a subscript as flip, slice, squeeze and expand_dims."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr
from relax_eg.ops.record import call
from relax_eg.ops.sizes import ZERO
from relax_eg.shapes import Dim


def subscript(x: Expr, key: Any) -> Expr:
    """Returns `x[key]`, built of as few operators as it needs. Raises OperatorError."""
    begin: list[Dim] = []
    end: list[Dim] = []
    strides: list[int] = []
    flipped: list[int] = []
    dropped: list[int] = []
    added: list[int] = []
    for k in _keys(x, key):
        axis = len(begin)
        if k is None:
            added.append(axis + len(added) - len(dropped))
            continue
        size = x.shape[axis]
        if isinstance(k, slice):
            low, high, step = _slice(k, size)
            if step < 0:
                flipped.append(axis)
        else:
            low = _index(k)
            if low.is_const and low.value < 0:
                low = size + low
            high, step = low + 1, 1
            dropped.append(axis)
        begin.append(low)
        end.append(high)
        strides.append(abs(step))
    if flipped:
        x = call("flip", (x,), {"axes": tuple(flipped)})
    if tuple(end) != x.shape or set(begin) - {ZERO} or set(strides) - {1}:
        x = call("strided_slice", (x,), {"begin": begin, "end": end, "strides": tuple(strides)})
    if dropped:
        x = call("squeeze", (x,), {"axes": tuple(dropped)})
    return call("expand_dims", (x,), {"axes": tuple(added)}) if added else x


def _keys(x: Expr, key: Any) -> list[Any]:
    """Returns the subscript's entries; `...` and missing entries at the end are written out as slices."""
    keys = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    used = len([k for k in keys if k is not None and k is not Ellipsis])
    if used > x.ndim:
        raise OperatorError(f"getitem: {used} indices for rank {x.ndim}")
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise OperatorError("getitem: `...` stands in a subscript once")
    at = dots[0] if dots else len(keys)
    keys[at : at + 1] = [slice(None)] * (x.ndim - used)
    return keys


def _index(value: Any) -> Dim:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer, Dim)):
        raise OperatorError(
            f"getitem: {value!r} is not an index; integers, sizes, slices, None and ... are; `take` gathers, a boolean "
            "tensor as the only index selects"
        )
    return value if isinstance(value, Dim) else Dim.of(int(value))


def _slice(key: slice, size: Dim) -> tuple[Dim, Dim, int]:
    """Returns begin, end and step of a slice of an axis."""
    step = 1 if key.step is None else key.step
    if not isinstance(step, int) or step == 0 or step < -1 or (step == -1 and (key.start, key.stop) != (None, None)):
        raise OperatorError(f"getitem: step {step}; integers >= 1 are accepted, and -1 in [::-1]")
    low = ZERO if key.start is None else _end(key.start, size)
    high = size if key.stop is None else _end(key.stop, size)
    # An empty slice such as x[3:1] has no elements, as in Python.
    gap = high - low
    return low, (low if gap.is_const and gap.value < 0 else high), step


def _end(value: Any, size: Dim) -> Dim:
    at = _index(value)
    if at.is_const and at.value < 0:
        at = size + at
    if at.is_const and size.is_const:
        at = Dim.of(min(max(at.value, 0), size.value))
    return at
