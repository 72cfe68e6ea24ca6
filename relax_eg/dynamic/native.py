"""An operator's own lowering, on arrays at capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.dynamic.moving import plain_result
from relax_eg.dynamic.step import At, Step, Use, Wanted
from relax_eg.ops import get
from relax_eg.shapes import Dim


def native(use: Use) -> Callable[[At, Sequence[Any]], Any]:
    """The operator's own lowering, its attributes at capacity."""
    function = get(use.site.op).jax_function()

    def compute(at: At, arrays: Sequence[Any]) -> Any:
        return function(*arrays, **{k: resolved(v, at.capacity) for k, v in use.site.attrs.items()})

    return compute


def resolved(value: Any, size: Callable[[Dim], Any]) -> Any:
    if isinstance(value, Dim):
        return value.value if value.is_const else size(value)
    if isinstance(value, tuple):
        return tuple(resolved(v, size) for v in value)  # type: ignore[reportUnknownVariableType]
    return value


def as_it_is(use: Use, *masks: Wanted) -> Step:
    """The operator's own lowering on boxes."""
    return Step(native(use), plain_result(use), masks, use.merged)


def unless_there(use: Use, operand: int, axis: int, fill: Any, reason: str, or_nan: bool = False) -> tuple[Wanted, ...]:
    """A mask on a box, if it is needed. Elsewhere the operator must not look at NaN, or give NaN for a row of it."""
    digits = use.states[operand].axes[axis]
    if len(digits) == 1 and digits[0].content.equals(fill, or_nan):
        return ()
    return (Wanted(operand, axis, 0, fill, reason),)
