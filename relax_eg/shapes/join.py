"""Where two shapes meet: what is known of a value that has one of them on one way and the other on another."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.errors import ShapeError
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.scope import Scope

Sizes = Sequence[Dim | None]


def join(first: Sizes, second: Sizes, scope: Scope, where: str, sides: tuple[str, str] = ("one", "the other")) -> Sizes:
    """The shape of a value that is `first` or `second`: per axis the size that they share for all sizes `scope`
    allows, and None, unknown, where that is not shown.

    ShapeError, naming `where` and both `sides`, where the ranks differ, and where two sizes differ whatever the
    variables are.
    """
    if len(first) != len(second):
        raise ShapeError(
            f"{where}: {sides[0]} has {_axes(first)}, {sides[1]} has {_axes(second)}; accepted: shapes of one rank"
        )
    joined: list[Dim | None] = []
    for axis, (a, b) in enumerate(zip(first, second, strict=True)):
        same = None if a is None or b is None else scope.equal(a, b, deep=True)
        if same is False:
            known = "".join(f", where {text}" for text in scope.assumptions)
            raise ShapeError(
                f"{where}: axis {axis} of {sides[0]} is {a}, of {sides[1]} {b}; they differ for all sizes{known}; "
                f"accepted: shapes that can be equal"
            )
        joined.append(a if same else None)
    return tuple(joined)


def _axes(shape: Sizes) -> str:
    dims = ", ".join("_" if d is None else str(d) for d in shape)
    return f"{len(shape)} {'axis' if len(shape) == 1 else 'axes'} ({dims})"
