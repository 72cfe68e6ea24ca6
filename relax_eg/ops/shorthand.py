"""Attributes that are written shorter than the records hold them: a size of -1, a number of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.limits import PARTS
from relax_eg.ops.sizes import Dims, rest
from relax_eg.shapes import Dim, ceildiv


def _shape(name: str, operands: Sequence[Annotation]) -> Dims:
    a = operands[0] if operands else None
    if not isinstance(a, Tensor) or a.shape is None:
        raise OperatorError(f"{name} needs the sizes of its operand, which is {a}; match_cast names them")
    return a.shape


def _reshaped(operands: Sequence[Annotation], shape: Any) -> Any:
    """One size may be -1: what the others leave."""
    if not isinstance(shape, (tuple, list)):
        return shape
    given = tuple(map(Dim.of, shape))  # type: ignore[reportUnknownArgumentType]
    wild = [i for i, d in enumerate(given) if d == -1]
    if not wild:
        return given
    if len(wild) > 1:
        raise OperatorError(f"reshape: {len(wild)} sizes are -1; one may be")
    left = rest(_shape("reshape to -1", operands), tuple(d for d in given if d != -1))
    if left is None:
        raise OperatorError(f"reshape: -1 beside a size of 0 in ({', '.join(map(str, given))}) could be anything")
    return tuple(left if d == -1 else d for d in given)


def _sections(operands: Sequence[Annotation], sections: Any, axis: Any) -> Any:
    """A number of parts: all but the last of one size, rounded up, as Relax splits."""
    if not isinstance(sections, int):
        return sections
    shape = _shape("split into a number of parts", operands)
    if sections > PARTS:
        raise OperatorError(f"split into {sections} parts; at most {PARTS} are accepted")
    if sections < 1 or not isinstance(axis, int) or not 0 <= axis < len(shape):
        raise OperatorError(f"split: {sections} parts of axis {axis}; at least 1 of an axis from 0 to {len(shape) - 1}")
    each = ceildiv(shape[axis], sections)
    return (*(each,) * (sections - 1), shape[axis] - each * (sections - 1))


def written_out(name: str, operands: Sequence[Annotation], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """`given` with what is short in it written out."""
    if name == "reshape" and "shape" in given:
        return {**given, "shape": _reshaped(operands, given["shape"])}
    if name == "split" and "sections" in given:
        return {**given, "sections": _sections(operands, given["sections"], given.get("axis"))}
    return given
