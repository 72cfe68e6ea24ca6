"""Scans: index equations that read their own output at an earlier point, like a running sum.

    Y[i] = select(i < 1, X[0], Y[i - 1] + X[i])

Such an equation has a meaning because its points can be ordered so that every read follows its write. The order is that
of nested loops over the axes. A read is earlier if, on the first axis where it differs from the written point, it lies
a whole number of steps before it (or, on an axis that runs backwards, after it).
"""

from __future__ import annotations

from dataclasses import dataclass

from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import Atom
from relax_eg.tir.expr import Read, Scalar, walk
from relax_eg.tir.text import index_text


@dataclass(frozen=True, slots=True)
class Scan:
    """An axis of a stage's domain whose points are computed one after the other, from the last if `reverse`."""

    axis: int
    reverse: bool = False


def scans_of(name: str, indices: tuple[Dim, ...], value: Scalar) -> tuple[Scan, ...]:
    """Returns the axes along which the equation `name[indices] = value` reads itself, outermost first.

    ShapeError if a read of itself is not provably of an earlier point.
    """
    found: dict[int, bool] = {}
    for term in walk(value):
        if not isinstance(term, Read) or term.buffer != name:
            continue
        pairs = zip(indices, term.indices, strict=True)
        axis, (at, read) = next(((n, p) for n, p in enumerate(pairs) if p[0] != p[1]), (-1, (Dim.of(0), Dim.of(0))))
        back = at - read if isinstance(read, Dim) and axis >= 0 else Dim.of(0)
        if not plainly_nonnegative(back - 1) and not plainly_nonnegative(-back - 1):
            point = ", ".join(map(index_text, indices))
            raise ShapeError(
                f"{name}[{point}] is computed from {term}, which is not plainly written before; accepted: on the first "
                "axis that differs, a whole number of steps before, such as i - 1 (or after, on all reads alike)"
            )
        reverse = not plainly_nonnegative(back - 1)
        if found.setdefault(axis, reverse) != reverse:
            raise ShapeError(f"{name}: axis {axis} is read both before and after the point that is written")
    return tuple(Scan(axis, reverse) for axis, reverse in sorted(found.items()))


def plainly_nonnegative(dim: Dim) -> bool:
    """Whether `dim` is >= 0 by its form: sizes and loop variables are, and so are sums and products of such."""
    return dim.const >= 0 and all(c > 0 and all(map(_nonnegative_atom, monomial)) for monomial, c in dim.terms)


def _nonnegative_atom(atom: Atom) -> bool:
    if atom.op == "max":
        return any(map(plainly_nonnegative, atom.args))
    either = atom.args[1:] if atom.op == "select" else atom.args
    return all(map(plainly_nonnegative, either))  # a variable has no args, so it passes
