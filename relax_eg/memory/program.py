"""Memory programs: the values of a call, and the kernels that read and write them, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from relax_eg.dtypes import itemsize
from relax_eg.ir import Expr, Tensor, dims_of
from relax_eg.ir.heads import STATIC
from relax_eg.ir.memory import tensor_bytes
from relax_eg.ops.fused import VIEWS, ProgramUse, equations_at
from relax_eg.shapes import Dim

Role = Literal["argument", "constant", "value", "workspace", "result"]
# An operand in memory: the number of a value, a tuple of trees, or None (a shape, a function, an object).
Tree: TypeAlias = "int | tuple[Tree, ...] | None"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in memory.

    - `role`: an "argument" and a "constant" exist before and after the call, and are not planned; a "result" is
      returned; a "workspace" is used by one kernel only.
    - `bytes`: its size over the entry's variables; None if unknown before the kernel has run.
    """

    number: int
    name: str
    annotation: Tensor
    role: Role

    @property
    def itemsize(self) -> int:
        return itemsize(self.annotation.dtype or "uint8")

    @property
    def bytes(self) -> Dim | None:
        return tensor_bytes(self.annotation)


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel that runs.

    - `kernel`: the expression, in the terms of `function`.
    - `sizes`: the size variables of `function`, in the entry's terms.
    - `operands`: what it reads, one tree for each of `operands_of(kernel)`.
    - `writes`: its outputs in order.
    - `workspaces`: memory that only it uses; those passed to it are in `operands`, too.
    - `overwritable`: pairs (output, operand) of values: the output may be written in place of the operand, which is
      read element for element.
    - `region`: steps may be reordered within a region only; between regions is an effect or a check.
    """

    number: int
    name: str
    kernel: Expr
    function: str
    sizes: Mapping[str, Dim]
    operands: tuple[Tree, ...]
    writes: tuple[int, ...]
    workspaces: tuple[int, ...] = ()
    overwritable: tuple[tuple[int, int], ...] = ()
    region: int = 0

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads, each once, without its workspaces."""
        own = {*self.workspaces}
        return tuple(dict.fromkeys(v for t in self.operands for v in leaves(t) if v not in own))

    @property
    def hidden(self) -> tuple[int, ...]:
        """The workspaces that its executable allocates; the others its caller allocates and passes."""
        passed = {v for t in self.operands for v in leaves(t)}
        return tuple(v for v in self.workspaces if v not in passed)


@dataclass(frozen=True)
class MemoryProgram:
    """What a call of a module's entry does to memory. `result`: what it returns; `constants`: the value of each
    constant."""

    name: str
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    result: Tree
    variables: tuple[str, ...]
    constants: Mapping[Expr, int] = field(default_factory=dict[Expr, int])

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the numbers of the steps that read it."""
        found: list[list[int]] = [[] for _ in self.values]
        for s in self.steps:
            for v in s.reads:
                found[v].append(s.number)
        return tuple(map(tuple, found))

    @cached_property
    def writer(self) -> tuple[int | None, ...]:
        """For each value, the step that writes it or whose workspace it is; None for arguments and constants."""
        found: list[int | None] = [None] * len(self.values)
        for s in self.steps:
            for v in (*s.writes, *s.workspaces):
                found[v] = s.number
        return tuple(found)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """For each value the last step that reads it, else the one that writes it. Results are needed to the end; an
        input that is never read has -1."""
        used = zip(self.readers, self.writer, strict=True)
        last = [r[-1] if r else (-1 if w is None else w) for r, w in used]
        for v in leaves(self.result):
            last[v] = len(self.steps) - 1
        return tuple(last)

    def bytes_at(self, sizes: Mapping[str, int]) -> list[int | None]:
        """The bytes of each value at these sizes; None if they do not tell."""
        found = [x.bytes for x in self.values]
        known = {d: int(d.evaluate(sizes)) for d in set(found) if d is not None and d.variables <= sizes.keys()}
        return [None if d is None else known.get(d) for d in found]

    @cached_property
    def dying(self) -> tuple[tuple[int, ...], ...]:
        """For each step the values and workspaces that nothing needs after it."""
        found: list[list[int]] = [[] for _ in self.steps]
        for v, at in enumerate(self.last):
            if self.values[v].role in ("value", "workspace") and at >= 0:
                found[at].append(v)
        return tuple(map(tuple, found))

    @property
    def sizes(self) -> frozenset[str]:
        """The size variables in the sizes of values."""
        return frozenset(v for x in self.values for d in dims_of(x.annotation) for v in d.variables)

    def reordered(self, order: Sequence[int]) -> MemoryProgram:
        """The program with its steps in another order, given by their numbers here; the steps are renumbered."""
        steps = tuple(replace(self.steps[old], number=new) for new, old in enumerate(order))
        return replace(self, steps=steps)


def leaves(tree: Tree) -> Iterator[int]:
    """The values in a tree, in order."""
    todo = [tree]
    while todo:
        t = todo.pop()
        if isinstance(t, tuple):
            todo.extend(reversed(t))
        elif t is not None:
            yield t


def operands_of(e: Expr) -> tuple[Expr, ...]:
    """The arrays that a kernel reads: its operands, seen through views, each once, without functions and shapes."""
    return tuple(dict.fromkeys(b for b in map(viewed_value, e.args) if b.op not in STATIC))


def viewed_value(e: Expr) -> Expr:
    """What `e` is a view of, or `e`."""
    while e.op in VIEWS:
        e = e.args[0]
    return e


# Bytes that a kernel needs beside its operands and results; None if unknown.
Temporary = Callable[[Step], "Dim | int | None"]


def equations_of(e: Expr) -> ProgramUse | None:
    """The tensor program of a kernel; None for a library call, a branch or a loop, and where sizes are unknown."""
    return equations_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)
