"""Combines the stores of a program text into index equations. Each store writes a box of a buffer, and the boxes of a
buffer's stores cover it.

A written index is a size, or one loop variable plus or minus a size, so every element is written at most once. Several
stores into one buffer may split it along one axis; they become one equation with cases.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.shapes import Dim, Scope
from relax_eg.tir.expr import Index, Reduce, Scalar, apply, loop, loop_names, select, walk
from relax_eg.tir.program import Buffer, Stage
from relax_eg.tir.source_text import SourceText
from relax_eg.tir.substitute import substitute
from relax_eg.tir.text import index_text

INDICES = "distinct loop variables, each alone or plus a size, such as Y[i, j + 1]"
ONCE = "every element of a buffer is written exactly once"


@dataclass(eq=False)
class BufferStore:
    """`buffer[indices] = value` for all values of the loop variables, in a box of the buffer.

    - `statement`: the statement of the text.
    - `target`: the left-hand side of the statement.
    - `loops`: extent of each loop variable.
    - `box`: start and end (exclusive) along each axis; `solve` fills it in.
    """

    statement: ast.stmt
    target: ast.Subscript
    buffer: Buffer
    indices: tuple[Dim, ...]
    loops: Mapping[str, Dim]
    value: Scalar
    box: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])

    def solve(self, source: SourceText) -> dict[int, tuple[str, Dim]]:
        """Fills in `box`. Returns for each axis its loop variable and the inverse of the written index."""
        solved: dict[int, tuple[str, Dim]] = {}
        used: set[str] = set()
        self.box = []
        for axis, index in enumerate(self.indices):
            names = loop_names(index)
            if not names:
                self.box.append((index, index + 1))
                continue
            name = next(iter(names))
            rest = index.substitute({name: 0})
            sign = 1 if index == rest + Dim.var(name) else -1 if index == rest - Dim.var(name) else 0
            if len(names) > 1 or not sign or name in used:
                why = "is used twice" if name in used else f"is {index_text(index)}"
                text = ast.unparse(self.target)
                raise source.error(
                    self.target, f"a race: the index of axis {axis} in {text} {why}, so {_not_once(name in used)}",
                    f"{INDICES}; {ONCE}",
                )  # fmt: skip
            used.add(name)
            extent = self.loops[name]
            self.box.append((rest, rest + extent) if sign > 0 else (rest - extent + 1, rest + 1))
            solved[axis] = name, (Dim.var(name) - rest) * sign
        for name in self.loops:
            if name not in used:
                plain = index_text(Dim.var(name))
                raise source.error(
                    self.target,
                    f"a race: every {plain} writes {ast.unparse(self.target)}",
                    f"+= to add over {plain}, or {plain} among the indices written; {ONCE}",
                )
        return solved


def _not_once(twice: bool) -> str:
    return "elements off the diagonal are not written" if twice else "elements may be written twice or not at all"


def stage_of(source: SourceText, stores: Sequence[BufferStore]) -> Stage:
    """Returns the equation of a buffer from all stores into it."""
    buffer = stores[0].buffer
    solved = [store.solve(source) for store in stores]
    taken = {name for s in stores for t in walk(s.value) if isinstance(t, Reduce) for name in t.bound}
    indices: list[Dim] = []
    for axis in range(buffer.rank):
        own = [found[axis][0] for found in solved if axis in found]
        names = [*own, *(str(loop(f"i{axis}{'_' * n}")) for n in range(len(taken) + buffer.rank + 1))]
        used = {str(i) for i in indices}
        several = len(stores) > 1
        indices.append(Dim.var(next(n for n in names if n not in used and not (several and n in taken))))
    axis = _split(source, stores)
    values: list[Scalar] = []
    for store, found in zip(stores, solved, strict=True):
        env: dict[str, Dim | int] = {}
        for at, (name, inverse) in found.items():
            env[name] = inverse.substitute({name: indices[at]})
        values.append(substitute(store.value, {n: d for n, d in env.items() if d != Dim.var(n)}))
    if axis is None:
        return Stage(buffer, tuple(indices), values[0])
    pieces = sorted(range(len(stores)), key=_order(source, stores, axis).index)
    value = values[pieces[-1]]
    for n in reversed(pieces[:-1]):
        end = stores[n].box[axis][1]
        value = select(apply("less", Index(indices[axis]), end.value if end.is_const else end), values[n], value)
    return Stage(buffer, tuple(indices), value)


def _split(source: SourceText, stores: Sequence[BufferStore]) -> int | None:
    """Returns the axis along which the stores split the buffer; None if one store writes all of it."""
    scope, buffer = Scope(), stores[0].buffer
    partial = [
        axis
        for axis, size in enumerate(buffer.shape)
        if any(not (scope.equal(s.box[axis][0], 0) and scope.equal(s.box[axis][1], size, deep=True)) for s in stores)
    ]
    if not partial and len(stores) == 1:
        return None
    if not partial:
        first = stores[0].statement.lineno
        raise source.error(stores[1].target, f"{buffer.name} is written twice, first in line {first}", ONCE)
    if len(partial) > 1:
        box = ", ".join(f"{a} to {b}" for a, b in stores[-1].box)
        raise source.error(
            stores[-1].target,
            f"{buffer} is written in part: {box}",
            f"stores that split it along one axis; {ONCE}",
        )
    _order(source, stores, partial[0])
    return None if len(stores) == 1 else partial[0]


def _order(source: SourceText, stores: Sequence[BufferStore], axis: int) -> list[int]:
    """Returns the stores in the order of their parts of the axis. Raises an error if they overlap or leave a gap."""
    scope, buffer = Scope(), stores[0].buffer
    left, order, reached = list(range(len(stores))), list[int](), Dim.of(0)
    while left:
        following = next((n for n in left if scope.equal(stores[n].box[axis][0], reached, deep=True)), None)
        if following is None:
            n = left[0]
            low, high = stores[n].box[axis]
            before = scope.interval(low - reached)[0]
            gap = before is not None and before > 0
            what = f"elements {reached} to {low} of axis {axis} are not written" if gap or not order else (
                f"elements are written twice: {low} to {high} of axis {axis}, after 0 to {reached}"
            )  # fmt: skip
            raise source.error(stores[n].target, f"{buffer}: {what}", ONCE)
        order.append(following)
        left.remove(following)
        reached = stores[following].box[axis][1]
    size = buffer.shape[axis]
    if not scope.equal(reached, size, deep=True):
        over = scope.interval(reached - size)[0]
        beyond = over is not None and over > 0
        what = f"elements up to {reached} are written, beyond its size {size}" if beyond else (
            f"elements {reached} to {size} of axis {axis} are not written"
        )  # fmt: skip
        raise source.error(stores[order[-1]].target, f"{buffer}: {what}", ONCE)
    return order
