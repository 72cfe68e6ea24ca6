"""Pieces that the same operators compute, each from its own part of the same arrays, computed at once.

The pieces of a join are unified operator by operator. Where they differ, they read parts of arrays, which are stacked;
the function of one piece is then applied to all slices of the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from relax_eg.ir.calls import inline_call
from relax_eg.ir.expr import CONSTANT, Expr, tuple_, var
from relax_eg.ir.heads import CORE, with_operands
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.rules.index_maps.inward import is_join
from relax_eg.rules.index_maps.views import ONE, ZERO, AxisMap, IndexView, made_of, source_of
from relax_eg.shapes import Dim
from relax_eg.traversal import made_from_below

FEWEST = 3  # limit: pieces that are computed at once
_MOST = 256  # limit: pieces; each is proved by itself
_MOST_OPERATORS = 32  # limit: operators of a piece

Batched = Callable[[Function, Sequence[bool], Dim], Function | None]
Column = tuple[Expr, ...]  # one expression of each piece


@dataclass
class _Unifier:
    """Makes one function of the pieces.

    - `params`: by what the pieces have at a place, the parameter of the function; of all pieces the same expression, or
      an operand that is stacked.
    """

    params: dict[Column, Expr] = field(default_factory=dict[Column, Expr])

    def unified(self, root: Column) -> Expr | None:
        """The first piece over the parameters; None if the pieces differ in more than what they read."""
        done: dict[Column, Expr | None] = {}

        def below(column: Column) -> Sequence[Column]:
            is_last = self._is_operand(column) or len(done) > _MOST_OPERATORS
            return () if is_last else list(zip(*(x.args for x in column), strict=True))

        def made(column: Column) -> Expr | None:
            first = column[0]
            if self._is_operand(column):
                is_one = all(x.annotation == first.annotation for x in column)
                name = f"operand{len(self.params)}"
                return self.params.setdefault(column, var(name, first.annotation)) if is_one else None
            args = tuple(a for c in below(column) if (a := done[c]) is not None)
            return with_operands(first, args) if len(args) == len(first.args) else None

        return made_from_below(root, below, made, done)

    def _is_operand(self, column: Column) -> bool:
        """Whether a place is an operand: the same array for all pieces, a part of an array, or another function."""
        first = column[0]
        if all(x is first for x in column):
            return first.op != CONSTANT or first.ndim > 0
        if any(x.op != first.op or x.attrs != first.attrs or len(x.args) != len(first.args) for x in column):
            return True
        return first.op in CORE or not first.args or is_join(first)


def stacked(parts: Sequence[Expr], axis: int, batched: Batched) -> Iterator[Expr]:
    """One expression for joined parts that the same operators compute. Raises RelaxEgError if it does not exist at all
    sizes."""
    first = parts[0]
    if not FEWEST <= len(parts) <= _MOST or any(p.annotation != first.annotation for p in parts):
        return
    unifier = _Unifier()
    piece = unifier.unified(tuple(parts))
    if piece is None or not piece.args or piece in unifier.params.values():
        return
    flags: list[bool] = []
    arrays: list[Expr] = []
    for column in unifier.params:
        flags.append(any(x is not column[0] for x in column))
        if not flags[-1]:
            arrays.append(column[0])
            continue
        rows = _rows(column)
        if rows is None:
            return  # operands from separate arrays would be copied
        arrays.append(rows)
    made = batched(Function("piece", tuple(unifier.params.values()), (), tuple_((piece,))), flags, Dim.of(len(parts)))
    if made is None:
        return
    (rows,) = inline_call(made, arrays)
    order = (*range(1, axis + 1), 0, *range(axis + 1, rows.ndim))
    shape = (*first.shape[:axis], first.shape[axis] * len(parts), *first.shape[axis + 1 :])
    yield op.reshape(op.permute_dims(rows, order) if axis else rows, shape)


def _rows(column: Column) -> Expr | None:
    """Parts of one array as rows of one array; None unless they follow each other at equal distances along one axis."""
    found = [source_of(x) for x in column]
    x, first = found[0]
    if any(y is not x for y, _ in found):
        return None
    maps = [
        [m if m.out is None or v.shape[m.out] is not ONE else replace(m, out=None) for m in v.maps] for _, v in found
    ]
    different = [a for a in range(x.ndim) if any(own[a] != maps[0][a] for own in maps)]
    if len(different) != 1:
        return None
    (axis,) = different
    m, step = maps[0][axis], maps[1][axis].start - maps[0][axis].start
    if not step.is_const or any(own[axis] != replace(m, start=m.start + step * k) for k, own in enumerate(maps)):
        return None
    count = Dim.of(len(column))
    rows = [n if n.out is None else replace(n, out=n.out + 1) for n in maps[0]]
    if m.indices is not None:
        return None
    if m.out is None:
        rows[axis] = AxisMap(0, m.start, step.value)
        return made_of(IndexView(tuple(rows), (count, *first.shape)), x)
    width = first.shape[m.out]
    if m.step != 1 or step != width:
        return None
    begin, end = [ZERO] * x.ndim, list(x.shape)
    begin[axis], end[axis] = m.start, m.start + width * count
    split = (*x.shape[:axis], count, width, *x.shape[axis + 1 :])
    rows[axis : axis + 1] = [AxisMap(0), AxisMap(m.out + 1)]
    return made_of(IndexView(tuple(rows), (count, *first.shape)), op.reshape(op.strided_slice(x, begin, end), split))
