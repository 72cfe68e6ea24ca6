"""Expands the short forms of attributes that Relax accepts: an attribute that is left out or None and has a default,
one axis in place of several, axes counted from the end, a size of -1, and a number of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import Expr
from relax_eg.limits import PARTS
from relax_eg.ops.operands import normal_axes, normal_axis
from relax_eg.ops.record import call, get
from relax_eg.ops.sizes import Dims, remaining_size
from relax_eg.shapes import Dim, ceildiv


def _shape(name: str, operands: Sequence[Annotation]) -> Dims:
    a = operands[0] if operands else None
    if not isinstance(a, Tensor) or a.shape is None:
        raise OperatorError(f"{name} needs the sizes of its operand, which is {a}; match_cast names them")
    return a.shape


def _reshaped(operands: Sequence[Annotation], shape: Any) -> Any:
    """Returns `shape` with a size of -1 replaced by what the others leave; at most one may be -1."""
    if not isinstance(shape, (tuple, list)):
        return shape
    given = tuple(map(Dim.of, shape))  # type: ignore[reportUnknownArgumentType]
    wild = [i for i, d in enumerate(given) if d == -1]
    if not wild:
        return given
    if len(wild) > 1:
        raise OperatorError(f"reshape: {len(wild)} sizes are -1; one may be")
    left = remaining_size(_shape("reshape to -1", operands), tuple(d for d in given if d != -1))
    if left is None:
        raise OperatorError(f"reshape: -1 beside a size of 0 in ({', '.join(map(str, given))}) could be anything")
    return tuple(left if d == -1 else d for d in given)


def _sections(operands: Sequence[Annotation], sections: Any, axis: Any) -> Any:
    """Returns the sizes of a number of parts: all but the last have one size, rounded up, as in Relax."""
    if not isinstance(sections, int):
        return sections
    shape = _shape("split into a number of parts", operands)
    if sections > PARTS:
        raise OperatorError(f"split into {sections} parts; at most {PARTS} are accepted")
    if sections < 1 or not isinstance(axis, int) or not 0 <= axis < len(shape):
        raise OperatorError(f"split: {sections} parts of axis {axis}; at least 1 of an axis from 0 to {len(shape) - 1}")
    each = ceildiv(shape[axis], sections)
    return (*(each,) * (sections - 1), shape[axis] - each * (sections - 1))


def _axes_from_front(name: str, what: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Returns one axis or several, counted from the front."""
    given: tuple[Any, ...] = (axes,) if isinstance(axes, int) else axes  # type: ignore[reportUnknownVariableType]
    if not isinstance(given, (tuple, list, range)) or any(type(a) is not int for a in given):
        raise OperatorError(f"{name}: {what} is {axes!r}; an axis or several are needed, as whole numbers")
    if name == "permute_dims":
        return tuple(normal_axis(name, a, rank) for a in given)
    return normal_axes(name, tuple(given), rank)


# --- what operators mean where the attribute is left out or None ---


def all_axes(name: str, operands: Sequence[Annotation]) -> tuple[int, ...]:
    return tuple(range(_rank(name, operands)))


def all_reversed(name: str, operands: Sequence[Annotation]) -> tuple[int, ...]:
    return all_axes(name, operands)[::-1]


def last_axis(name: str, operands: Sequence[Annotation]) -> tuple[int, ...]:
    return (_rank(name, operands) - 1,)


def axes_of_size_1(name: str, operands: Sequence[Annotation]) -> tuple[int, ...]:
    return tuple(i for i, d in enumerate(_shape(f"{name} of all axes", operands)) if d == 1)


def all_ones(name: str, operands: Sequence[Annotation]) -> tuple[int, ...]:
    return (1,) * _rank(name, operands)


def axis_of_all(name: str, operands: Sequence[Annotation]) -> int:
    """The axis of an operator that Relax applies to the flattened operand where the axis is None."""
    if _rank(name, operands) != 1:
        raise OperatorError(
            f"{name}: axis=None is about the elements in one row, and operand 0 is {operands[0]}\n"
            f"  accepted: an axis, or R.{name} of R.reshape(x, shape=(-1,)) with axis=0"
        )
    return 0


def _axes(name: str, omitted: Any, operands: Sequence[Annotation], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `given` with `axes` written out, which may be called `axis` as in Relax. Axes that are left out or that
    count from the end need the operand's rank."""
    if "axis" in given and "axes" in given:
        raise OperatorError(f"{name}: both `axis` and `axes` are given; one of them is accepted")
    key = "axis" if "axis" in given else "axes"
    axes = given.get(key)
    rest_ = {k: v for k, v in given.items() if k != key}
    if axes is None:
        if omitted is None:
            return given if key not in given else {**rest_, "axes": _axes_from_front(name, key, axes, 0)}
        return {**rest_, "axes": omitted(name, operands)}
    if _needs_no_rank(operands, axes):
        return {**rest_, "axes": tuple(axes)}
    rank = _rank(name, operands)
    if name == "expand_dims":
        rank += len(axes) if isinstance(axes, (tuple, list)) else 1  # type: ignore[reportUnknownArgumentType]
    return {**rest_, "axes": _axes_from_front(name, key, axes, rank)}


def _axis(name: str, omitted: Any, operands: Sequence[Annotation], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `given` with `axis` written out."""
    if "axis" not in given and not isinstance(omitted, int):  # a missing axis, which `attributes_of` reports
        return given
    axis = given.get("axis", omitted)
    if axis is None and omitted is not None and not isinstance(omitted, int):
        axis = omitted(name, operands)
    if type(axis) is not int:
        raise OperatorError(f"{name}: axis is {axis!r}; a whole number is needed")
    if _needs_no_rank(operands, (axis,)):
        return {**given, "axis": axis}
    return {**given, "axis": normal_axis(name, axis, _rank(name, operands))}


def _needs_no_rank(operands: Sequence[Annotation], axes: Any) -> bool:
    """Returns whether the operand's rank is unknown and all axes count from the front."""
    unknown = not isinstance(operands[0], Tensor) or operands[0].ndim is None
    return unknown and isinstance(axes, (tuple, list)) and all(type(a) is int and a >= 0 for a in axes)  # type: ignore[reportUnknownVariableType]


def _rank(name: str, operands: Sequence[Annotation]) -> int:
    a = operands[0] if operands else None
    if not isinstance(a, Tensor) or a.ndim is None:
        raise OperatorError(f"{name} needs the rank of its operand, which is {a}; match_cast names it")
    return a.ndim


# Checks of attribute values, with their errors. Other attributes are sizes, or their operators check them.
_VALUE_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("dtype",), (lambda v: isinstance(v, str), 'a dtype is text such as "float32"')),
    **dict.fromkeys(("keepdims",), (lambda v: isinstance(v, bool), "True or False is accepted")),
    **dict.fromkeys(
        ("strides", "dilation", "input_dilation", "interior"),
        (
            lambda v: isinstance(v, (tuple, list)) and all(type(x) is int for x in v),  # type: ignore[reportUnknownVariableType]
            "a tuple of whole numbers is accepted, one for each axis",
        ),
    ),
    "recall": (lambda v: type(v) in (int, float), "a number is accepted"),
}


def expand_short_forms(name: str, operands: Sequence[Annotation], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `given` with short forms written out. OperatorError for an attribute value of the wrong kind."""
    for a in get(name).attributes:
        if a.name == "axes" and operands:
            given = _axes(name, a.omitted, operands, given)
        elif a.name == "axis" and operands and isinstance(operands[0], Tensor):
            given = _axis(name, a.omitted, operands, given)
        elif a.name not in ("axes", "axis") and callable(a.omitted) and given.get(a.name) is None:
            given = {**given, a.name: a.omitted(name, operands)}
    for key, value in given.items():
        holds, wanted = _VALUE_CHECKS.get(key, (None, ""))
        if holds is not None and not holds(value):
            raise OperatorError(f"{name}: {key} is {value!r}; {wanted}")
    if name == "reshape" and "shape" in given:
        return {**given, "shape": _reshaped(operands, given["shape"])}
    if name == "split" and "sections" in given:
        return {**given, "sections": _sections(operands, given["sections"], given.get("axis"))}
    return given


def call_in_short(name: str, values: Sequence[Expr], **given: Any) -> Expr:
    """Returns the call of an operator whose attributes may have short forms. Raises OperatorError."""
    return call(name, values, expand_short_forms(name, [v.annotation for v in values], given))
