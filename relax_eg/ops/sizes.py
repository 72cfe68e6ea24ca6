"""Helpers of deductions: kinds of dtype, broadcasting, axes. They reject a site with an OperatorError that names it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from relax_eg.dtypes import KINDS, RECORDS, kind
from relax_eg.errors import ShapeError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.lattice import sizes_differ
from relax_eg.ops.partial_annotations import is_unknown
from relax_eg.ops.record import Comparison, Site, note_precondition
from relax_eg.shapes import Dim, dim_max
from relax_eg.shapes.dim import Atom
from relax_eg.shapes.dim import product as monomial

Dims = tuple[Dim, ...]

ONE = Dim.of(1)
ZERO = Dim.of(0)


def need_kind(site: Site, kinds: str, i: int = 0) -> str:
    """Returns the dtype of operand `i`, whose kind must be among `kinds`, letters of `dtypes.KINDS`. An n
    among them also accepts the narrow dtypes of these kinds: 4-bit integers and fp8."""
    dtype = site.dtype(i)
    if dtype in RECORDS and RECORDS[dtype].is_narrow and "n" not in kinds:
        raise site.error(
            f"operand {i} is {dtype}, which is moved, converted, compared, added and multiplied only; "
            "a wider dtype is needed"
        )
    try:
        letter = kind(dtype)
    except ShapeError:  # a PRNG key of a kind that is not known here
        letter = "none"
    if letter not in kinds:
        *others, last = (KINDS[k] for k in kinds if k in KINDS)
        raise site.error(f"operand {i} is {dtype}; {', '.join(others) + ' or ' if others else ''}{last} is needed")
    return dtype


def need_same_dtype(site: Site, operands: Iterable[int]) -> str:
    """Returns the dtype that all `operands` must have."""
    first, *others = operands
    dtype = site.dtype(first)
    for i in others:
        if site.dtype(i) != dtype:
            raise site.error(
                f"operand {first} is {dtype} and operand {i} is {site.dtype(i)}; one dtype is needed (astype converts)"
            )
    return dtype


def need_equal(site: Site, a: Dim, b: Dim, what: str) -> None:
    """Requires two sizes to be equal in canonical form; an unknown size is accepted. `what` names them in the error."""
    if a is not b:
        may_equal(replace(site, strict=True), a, b, what)


def may_equal(site: Site, a: Dim, b: Dim, what: str) -> bool:
    """Returns whether two sizes are equal in canonical form.

    OperatorError where they always differ; UndecidedError where `site` is strict and known sizes are not shown equal.
    """
    if a is b:
        return True
    if sizes_differ(a, b):
        raise site.error(f"{what}: sizes {a} and {b} differ")
    if site.strict and not is_unknown(a) and not is_unknown(b):
        raise site.undecided_error(f"{what}: sizes {a} and {b} cannot be shown equal")
    note_precondition(("==", a - b))
    return False


def need_at_most(site: Site, a: Dim, b: Dim, what: str) -> None:
    """Raises OperatorError where `b - a` is a negative constant. Where size variables decide, `a <= b` becomes a
    precondition of the operator."""
    difference = b - a
    if difference.is_const and difference.value < 0:
        raise site.error(f"{what}: {a} is more than {b}")
    note_precondition((">=", difference))


def need_elements(size: Dim, read: Iterable[Dim]) -> None:
    """Makes it a precondition of the operator that an axis has elements, unless a tensor of sizes `read` has none."""
    empty: list[Comparison] = [("==", d) for d in read]
    note_precondition((">=", size - 1), *empty)


def broadcast(site: Site, shapes: Sequence[Dims]) -> Dims:
    """Returns the numpy broadcast of `shapes`, aligned at the right; a size of 1 gives way to any other."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        size = ONE
        for shape in shapes:
            i = axis - rank + len(shape)
            if i < 0 or shape[i] is ONE or shape[i] is size:
                continue
            if size is not ONE:
                if is_unknown(size) or is_unknown(shape[i]):
                    # An unknown size may be 1. A constant beside it is not 1, so it is the result's size; otherwise the
                    # result's size is unknown.
                    size = next((d for d in (size, shape[i]) if d.is_const), size if is_unknown(size) else shape[i])
                    continue
                need_equal(site, size, shape[i], f"axis {axis - rank} does not broadcast")
            size = shape[i]
        result.append(size)
    return tuple(result)


def need_axis(site: Site, axis: Any, rank: int) -> int:
    """Returns attribute value `axis`, which must be one nonnegative axis below `rank`."""
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 <= axis < rank:
        valid = f"axes are 0 to {rank - 1}" if rank else "there are none"
        raise site.error(f"axis {axis} does not exist at rank {rank}; {valid}")
    return axis


def need_axes(site: Site, rank: int) -> tuple[int, ...]:
    """Returns attribute `axes`, which must hold ascending distinct axes below `rank`."""
    axes: tuple[int, ...] = site["axes"]
    for axis in axes:
        need_axis(site, axis, rank)
    if any(a >= b for a, b in zip(axes, axes[1:], strict=False)):
        raise site.error("axes must be ascending and distinct")
    return axes


def need_length(site: Site, name: str, length: int, of: str) -> tuple[Any, ...]:
    """Returns attribute `name`, which must have `length` entries, one for each axis of `of`."""
    value: tuple[Any, ...] = site[name]
    if len(value) != length:
        raise site.error(f"{name} has {len(value)} entries; {length} are needed, one for each axis of {of}")
    return value


def operand_annotation(site: Site, i: int = 0) -> Tensor:
    """Returns the annotation of operand `i`, which must be fully known."""
    return Tensor(site.shape(i), site.dtype(i))


def product(dims: Iterable[Dim]) -> Dim:
    return math.prod(dims, start=ONE)


def quotient(a: Dim, b: Dim) -> Dim:
    """Returns `a // b`, without a division where `b` is one term that divides every term of `a`."""
    terms = [*a.terms, *([((), a.const)] if a.const else [])]
    (by, scale), *more = [*b.terms, *([((), b.const)] if b.const else [])]
    total = ZERO
    for atoms, coefficient in terms:
        left = list(atoms)
        if more or coefficient % scale or any(left.count(atom) < by.count(atom) for atom in by):
            return a // b
        for atom in by:
            left.remove(atom)
        total = total + monomial(tuple(left), coefficient // scale)
    return total


def remaining_size(have: Dims, others: Dims) -> Dim | None:
    """Returns the size that `others` leave where a shape holds the elements of `have`; None where `others` hold none.
    Sizes on both sides cancel before the division, because (n*m)//m is not n where m is 0."""
    left, by = list(have), ONE
    for d in others:
        if d in left:
            left.remove(d)
        else:
            by = by * d
    return None if by is ZERO else quotient(product(left), by)


def reduced(shape: Dims, axes: Sequence[int], keepdims: bool) -> Dims:
    """Returns `shape` without `axes`, or with ones in their place."""
    if keepdims:
        return tuple(ONE if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def dilated(size: Dim, interior: int) -> Dim:
    """Returns the size of `size` elements with `interior` others between neighbours."""
    if interior == 0:
        return size
    between = size - 1
    plain = between.const >= 0 and all(c > 0 for _, c in between.terms)
    return size + interior * (between if plain else dim_max(between, 0))


def at_least_zero(d: Dim) -> Dim:
    """Returns max(d, 0), simplified to `d` where `d` is not negative while every size variable is at least 1. A
    function's sizes are at least 1 unless its bounds say otherwise."""
    least = _least(d)
    return d if least is not None and least >= 0 else dim_max(d, 0)


def _least(d: Dim) -> int | None:
    """Returns a lower bound of `d` while every size variable is at least 1; None where none is apparent."""
    total = d.const
    for atoms, coefficient in d.terms:
        bounds = [_least_atom(a) for a in atoms]
        known = [b for b in bounds if b is not None and b >= 0]
        if coefficient < 0 or len(known) < len(bounds):
            return None
        total += coefficient * math.prod(known)
    return total


def _least_atom(atom: Atom) -> int | None:
    if atom.op == "var":
        return 1
    bounds = [_least(a) for a in (atom.args[1:] if atom.op == "select" else atom.args)]
    known = [b for b in bounds if b is not None]
    if atom.op == "max":
        return max(known, default=None)
    either = atom.op in ("min", "select")
    if len(known) < len(bounds) or (not either and not atom.args[1].is_const):
        return None
    return min(known) if either else known[0] // atom.args[1].value
