"""Random tensor programs for property tests: several stages and outputs, locals and workspaces, reductions, scans,
data-dependent reads, casts and bit operations, over symbolic sizes. Every index is in range at all sizes >= 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Cast,
    Index,
    Read,
    Scalar,
    Stage,
    TensorProgram,
    apply,
    cast,
    const,
    less,
    loop,
    reduce,
    select,
)

N, M = Dim.var("n"), Dim.var("m")
EXTENTS = (N, M, Dim.of(2), N * 2, Dim.of(1))
SIZES = ({"n": 3, "m": 5}, {"n": 4, "m": 2})  # of which no extent is another by accident at both
DTYPES = ("float32", "int32", "uint32")
_BINARY = {
    "float32": ("add", "subtract", "multiply", "maximum", "minimum"),
    "int32": ("add", "multiply", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"),
    "uint32": ("add", "subtract", "multiply", "bitwise_and", "bitwise_xor"),
}
_UNARY = {"float32": ("negative", "abs", "square"), "int32": ("bitwise_not", "negative"), "uint32": ("bitwise_not",)}
_REDUCTIONS = {
    "float32": ("sum", "max", "min", "prod"), "int32": ("sum", "xor", "any", "all", "argmax", "argmin"),
    "uint32": ("sum", "any", "max"),
}  # fmt: skip


class _Maker:
    """Draws one program."""

    def __init__(self, draw: Any, depth: int) -> None:
        self.draw = draw
        self.depth = depth
        self.buffers: list[Buffer] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(1, 100)) <= percent

    def shape(self) -> tuple[Dim, ...]:
        return tuple(self.pick(EXTENTS) for _ in range(self.draw(st.integers(0, 3))))

    def index(self, size: Dim, scope: dict[Dim, Dim]) -> Dim | Scalar:
        whole = [var for var, extent in scope.items() if extent == size]
        if whole and self.chance(75):
            return self.pick(whole)
        others: list[Dim | Scalar] = [Dim.of(0)] + [size - 1 - var for var in whole]
        others += [var // 2 for var, extent in scope.items() if extent == size * 2]
        others += [var % size for var, extent in scope.items() if extent != size and not extent.is_const]
        if not size.is_const and self.chance(30):
            word = self.read("int32", scope, plain=True)
            others = [apply("floor_mod", cast(word, "int64"), Index(size))] if word is not None else others
        return self.pick(others) if size != 1 else Dim.of(0)

    def read(self, dtype: str, scope: dict[Dim, Dim], plain: bool = False) -> Read | None:
        known = [b for b in self.buffers if b.dtype == dtype]
        if not known:
            return None
        buffer = self.pick(known)
        if plain:  # an index of an index stays within loops and zeros
            at = [next((v for v, e in scope.items() if e == size), Dim.of(0)) for size in buffer.shape]
            return Read(buffer.name, tuple(at), dtype)
        return Read(buffer.name, tuple(self.index(size, scope) for size in buffer.shape), dtype)

    def value(self, dtype: str, scope: dict[Dim, Dim], depth: int) -> Scalar:
        if depth <= 0 or self.chance(25):
            found = self.read(dtype, scope)
            if found is not None and self.chance(85):
                return found
            if scope and self.chance(30):
                return Index(self.pick(list(scope)) + 1, dtype)
            return const(self.draw(st.integers(0, 3)), dtype)
        match self.draw(st.integers(0, 9)):
            case 0:
                return apply(self.pick(_UNARY[dtype]), self.value(dtype, scope, depth - 1))
            case 1:
                source = self.pick([d for d in DTYPES if d != dtype])
                value = self.value(source, scope, depth - 1)
                return Cast(value, dtype)
            case 2:
                a, b = (self.value(dtype, scope, depth - 1) for _ in range(2))
                return select(self.condition(scope, depth - 1), a, b)
            case 3 | 4 | 5:
                return self.reduction(dtype, scope, depth)
            case 6 if dtype != "float32":
                by = const(self.draw(st.integers(0, 3)), dtype)
                word = self.value(dtype, scope, depth - 1)
                return word >> by if self.chance(60) else word << by
            case _:
                a, b = (self.value(dtype, scope, depth - 1) for _ in range(2))
                return apply(self.pick(_BINARY[dtype]), a, b)

    def condition(self, scope: dict[Dim, Dim], depth: int) -> Scalar:
        if scope and self.chance(60):
            return less(self.pick(list(scope)), self.pick([Dim.of(1), N - 1, M // 2]))
        dtype = self.pick(DTYPES)
        return apply(
            self.pick(("less", "equal", "greater_equal")),
            self.value(dtype, scope, depth - 1), self.value(dtype, scope, depth - 1),
        )  # fmt: skip

    def reduction(self, dtype: str, scope: dict[Dim, Dim], depth: int) -> Scalar:
        kind = self.pick(_REDUCTIONS[dtype])
        single = kind.startswith("arg")
        over = [
            (loop(f"r{len(scope) + n}"), self.pick(EXTENTS))
            for n in range(1 if single else self.draw(st.integers(1, 2)))
        ]
        body = self.value(dtype, scope | dict(over), depth - 1)
        return cast(reduce(kind, body, over), dtype)

    def stage(self, name: str) -> Stage:
        dtype, shape = self.pick(DTYPES), self.shape()
        if self.buffers and self.chance(40):
            shape = self.pick(self.buffers).shape
        at = tuple(loop(f"i{n}") for n in range(len(shape)))
        buffer = Buffer(name, shape, dtype)
        value = self.value(dtype, dict(zip(at, shape, strict=True)), self.depth)
        if shape and self.chance(15):  # a scan
            axis = self.draw(st.integers(0, len(shape) - 1))
            before = tuple(at[n] - int(n == axis) for n in range(len(at)))
            value = select(less(at[axis], 1), value, apply("add", Read(name, before, dtype), value))
        return Stage(buffer, at, value)


@st.composite
def programs(
    draw: Any, *, most_stages: int = 3, depth: int = 3, inputs: tuple[Buffer, ...] | None = None
) -> TensorProgram:
    """A valid program over the sizes n and m; `inputs`: what it may read, drawn as well where None."""
    make = _Maker(draw, depth)
    if inputs is None:
        for n in range(draw(st.integers(1, 3))):
            make.buffers.append(Buffer(f"X{n}", make.shape(), make.pick(DTYPES)))
        inputs = tuple(make.buffers)
    make.buffers = list(inputs)
    stages: list[Stage] = []
    for n in range(draw(st.integers(1, most_stages))):
        stages.append(make.stage(f"T{n}"))
        make.buffers.append(stages[-1].output)
    names = [made.output.name for made in stages]
    outputs = (*(name for name in names[:-1] if make.chance(25)), names[-1])
    workspaces = tuple(name for name in names if name not in outputs and make.chance(40))
    made = TensorProgram("p", inputs, tuple(stages), outputs, workspaces)
    # At each call the sizes are passed: shapes such as () do not tell them.
    return TensorProgram("p", inputs, tuple(stages), outputs, workspaces, passed=tuple(sorted(made.sizes))).validate()


def arrays_for(program: TensorProgram, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Small whole numbers, so that float32 holds sums and products of a few of them."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(d.evaluate(sizes)) for d in b.shape) for b in program.parameters]
    low = [0 if b.dtype == "uint32" else -4 for b in program.parameters]
    return [
        rng.integers(least, 5, shape).astype(b.dtype)
        for b, shape, least in zip(program.parameters, shapes, low, strict=True)
    ]
