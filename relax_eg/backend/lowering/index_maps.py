"""Index maps of reads at known sizes: brings indices to a form that slices, pads and reshapes compute.

This file only computes with `Dim`s over loop variables; `reads.py` computes with arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relax_eg.shapes import Dim, ceildiv, dim_max, dim_min, dim_select
from relax_eg.shapes.dim import Atom, product, replace_atoms
from relax_eg.shapes.interval import Interval, interval_of
from relax_eg.shapes.relation import atoms_of
from relax_eg.tir import loop

Extents = Mapping[str, int]  # extents of loop variables, which run from 0 to below them


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """The index `start` plus the sum of stride times loop variable over `strides`.

    - `start`: the index where all loop variables are 0.
    - `strides`: pairs of loop variable and stride; no stride is 0.
    """

    start: int
    strides: tuple[tuple[str, int], ...]

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.strides)


def affine(dim: Dim) -> AffineIndex | None:
    """`dim` as an affine index; None where it is not affine."""
    strides: list[tuple[str, int]] = []
    for monomial, coefficient in dim.terms:
        if len(monomial) != 1 or monomial[0].op != "var":
            return None
        strides.append((monomial[0].name, coefficient))
    return AffineIndex(dim.const, tuple(strides))


def bounds(dim: Dim, extents: Extents) -> Interval:
    """A lower and an upper bound of `dim`; None on a side without one. They are exact for affine `dim`s."""
    return interval_of(dim, lambda name: (0, extents[name] - 1) if name in extents else (None, None))


def is_inside(dim: Dim, size: int, extents: Extents) -> bool:
    """Whether `dim` is shown to lie within an axis of `size` elements."""
    low, high = bounds(dim, extents)
    return low is not None and high is not None and low >= 0 and high < size


def simplify_index(dim: Dim, extents: Extents) -> Dim:
    """`dim` with quotients of quotients merged, and quotients and selects that do not vary over the loops resolved."""
    while True:
        shorter = replace_atoms(dim, lambda atom: _atom(atom, extents))
        if shorter == dim:
            return dim
        dim = shorter


def _atom(atom: Atom, extents: Extents) -> Dim:
    args = [simplify_index(a, extents) for a in atom.args]
    match atom.op:
        case "var":
            return Dim.var(atom.name)
        case "floordiv":
            known = args[1].is_const and args[1].const > 0
            return _quotient(args[0], args[1].const, extents) if known else args[0] // args[1]
        case "ceildiv":
            return ceildiv(args[0], args[1])
        case "select":
            low, high = bounds(args[0], extents)
            if atom.name == ">=" and low is not None and low >= 0:
                return args[1]
            return args[2] if high is not None and high < 0 else dim_select(args[0], atom.name, 0, args[1], args[2])
        case _:
            return _extreme(atom.op, args, extents)


def _extreme(op: str, args: Sequence[Dim], extents: Extents) -> Dim:
    """A maximum or minimum, or the argument that equals it for all values of the loops."""
    for one in args:
        beyond = (bounds(one - other if op == "max" else other - one, extents)[0] for other in args)
        if all(low is not None and low >= 0 for low in beyond):
            return one
    return dim_max(*args) if op == "max" else dim_min(*args)


def _quotient(a: Dim, by: int, extents: Extents) -> Dim:
    """`a // by`, simplified."""
    low, high = bounds(a, extents)
    if low is not None and high is not None and low // by == high // by:
        return Dim.of(low // by)
    for monomial, coefficient in a.terms:
        if coefficient == 1 and len(monomial) == 1 and monomial[0].op == "floordiv":
            inner, divisor = monomial[0].args
            if divisor.is_const and divisor.const > 0:
                # (r + inner // d) // by = (r*d + inner) // (d*by), all integers
                rest = a - inner // divisor
                return (rest * divisor + inner) // (divisor * by)
    # a = by*whole + part: where 0 <= part < by, the quotient is `whole`.
    whole = Dim.of(a.const // by)
    for monomial, coefficient in a.terms:
        if coefficient // by:
            whole = whole + product(monomial, coefficient // by)
    low, high = bounds(a - by * whole, extents)
    if low is not None and high is not None and low >= 0 and high < by:
        return whole
    return a // by


# --- what slices, pads and reshapes do ---


def strides_do_not_overlap(index: AffineIndex, extents: Extents) -> bool:
    """Whether the stride of each loop is at least the span of all loops with smaller strides.

    Then the axis can be reshaped to the loops. Overlapping windows cannot.
    """
    span = 1
    for name, stride in sorted(index.strides, key=lambda s: abs(s[1])):
        if abs(stride) < span:
            return False
        span += abs(stride) * (extents[name] - 1)
    return True


def split_loops(index: Sequence[Dim], extents: Extents) -> tuple[str, int] | None:
    """A loop variable and the number of its consecutive values with the same quotient, for some quotient in `index`.

    None where there is no such quotient.
    """
    for atom in reversed(atoms_of(*index)):
        if atom.op == "floordiv" and atom.args[1].is_const and atom.args[1].const > 1:
            found = _split_of(atom.args[0], atom.args[1].const, extents)
            if found is not None:
                return found
    return None


def _split_of(a: Dim, by: int, extents: Extents) -> tuple[str, int] | None:
    inside = affine(a)
    if inside is None:
        return None
    for name, stride in inside.strides:
        if stride > 0 and by % stride == 0 and 1 < by // stride < extents[name]:
            return name, by // stride
    return None


def split(name: str, fresh: int) -> tuple[Dim, Dim]:
    """New loop variables for a split loop: one for its blocks, and one within a block."""
    return loop(f"{name[:-1]}_block{fresh}"), loop(f"{name[:-1]}_within{fresh}")
