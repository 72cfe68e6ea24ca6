"""Runs an operator's own lowering on arrays at capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.dynamic.moving import plain_result
from relax_eg.dynamic.step import CapacityStep, OperandMask, OperatorUse, StepSizes
from relax_eg.ops import get
from relax_eg.shapes import Dim


def native_lowering(use: OperatorUse) -> Callable[[StepSizes, Sequence[Any]], Any]:
    """The operator's own lowering, with its attributes at capacity."""
    function = get(use.site.op).jax_function()

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        return function(*arrays, **{k: resolve_sizes(v, at.capacity) for k, v in use.site.attrs.items()})

    return compute


def resolve_sizes(value: Any, size: Callable[[Dim], Any]) -> Any:
    """An attribute with its sizes substituted by `size`."""
    if isinstance(value, Dim):
        return value.value if value.is_const else size(value)
    if isinstance(value, tuple):
        return tuple(resolve_sizes(v, size) for v in value)  # type: ignore[reportUnknownVariableType]
    return value


def unmasked_step(use: OperatorUse, *masks: OperandMask) -> CapacityStep:
    """A step that runs the operator's own lowering on boxes."""
    return CapacityStep(native_lowering(use), plain_result(use), masks, use.merged_operands)


def mask_unless_filled(
    use: OperatorUse, operand: int, axis: int, fill: Any, reason: str, or_nan: bool = False
) -> tuple[OperandMask, ...]:
    """A mask on a boxed operand, if its padding does not already hold `fill`.

    `or_nan`: NaN is accepted in the padding of a row that is NaN.
    """
    digits = use.operand_layouts[operand].axes[axis]
    if len(digits) == 1 and digits[0].content.equals(fill, or_nan):
        return ()
    return (OperandMask(operand, axis, 0, fill, reason),)
