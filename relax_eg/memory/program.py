"""Memory programs: the values of a call, and the kernels that read and write them, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from relax_eg import traversal
from relax_eg.dtypes import itemsize
from relax_eg.ir import Expr, Tensor, dims_of
from relax_eg.ir.heads import STATIC
from relax_eg.ir.memory import tensor_bytes
from relax_eg.ops.fused import ProgramUse, equations_at, viewed_value
from relax_eg.shapes import Dim

Role = Literal["argument", "constant", "value", "workspace", "result"]
# An operand in memory: the number of a value, a tuple of trees, or None (a shape, a function, an object).
Tree: TypeAlias = "int | tuple[Tree, ...] | None"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in memory.

    - `number`: its index in `MemoryProgram.values`.
    - `name`: its name in plans and messages.
    - `annotation`: its shape, in the entry's size variables, and its dtype.
    - `role`: an "argument" and a "constant" exist before and after the call, and are not planned; a "result" is
      returned; a "workspace" is used by one kernel only; a "value" is any other.
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
        """Its size over the entry's variables; None if it is unknown before the kernel has run."""
        return tensor_bytes(self.annotation)


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel that runs.

    - `number`: its index in `MemoryProgram.steps`.
    - `name`: its name in plans and messages.
    - `kernel`: the expression, in the terms of `function`.
    - `function`: the name of the function that contains it.
    - `sizes`: the size variables of `function`, in the entry's terms.
    - `operands`: the values that it reads, one tree for each of `operands_of(kernel)`.
    - `writes`: its outputs in order.
    - `workspaces`: memory that only it uses; a workspace that is passed to it is in `operands`, too.
    - `overwritable`: pairs (output, operand) of values: the output may be written in place of the operand, which is
      read element for element.
    - `region`: the number of its region. Steps may be reordered within a region only; an effect or a check separates
      two regions.
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
        """The workspaces that its executable allocates; its caller allocates and passes the others."""
        passed = {v for t in self.operands for v in leaves(t)}
        return tuple(v for v in self.workspaces if v not in passed)


@dataclass(frozen=True)
class MemoryProgram:
    """The values of a call of a module's entry, and the kernels that read and write them.

    - `name`: the name of the entry.
    - `values`: by number.
    - `steps`: the kernels, in the order in which they run.
    - `result`: the values that the entry returns.
    - `variables`: the entry's size variables, including those that a `match_cast` binds.
    - `constants`: the number of the value of each constant.
    """

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
    def last_uses(self) -> tuple[int, ...]:
        """For each value, the last step that reads it, or the step that writes it if none reads it. For a result it is
        the last step of the program, and for an input that is never read -1."""
        used = zip(self.readers, self.writer, strict=True)
        last = [r[-1] if r else (-1 if w is None else w) for r, w in used]
        for v in leaves(self.result):
            last[v] = len(self.steps) - 1
        return tuple(last)

    def bytes_at(self, sizes: Mapping[str, int]) -> list[int | None]:
        """The bytes of each value at these sizes; None for a value whose size depends on other variables."""
        found = [x.bytes for x in self.values]
        known = {d: int(d.evaluate(sizes)) for d in set(found) if d is not None and d.variables <= sizes.keys()}
        return [None if d is None else known.get(d) for d in found]

    @cached_property
    def dead_values(self) -> tuple[tuple[int, ...], ...]:
        """For each step, the values and workspaces whose last use it is."""
        found: list[list[int]] = [[] for _ in self.steps]
        for v, at in enumerate(self.last_uses):
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
    return (t for t in traversal.leaves(tree, lambda t: t if isinstance(t, tuple) else None) if isinstance(t, int))


def operands_of(e: Expr) -> tuple[Expr, ...]:
    """The arrays that a kernel reads: its operands without functions and shapes, each once. A view is replaced by the
    array that it views."""
    return tuple(dict.fromkeys(b for b in map(viewed_value, e.args) if b.op not in STATIC))


# The bytes that a kernel needs besides its operands and results, by step; None if unknown.
Temporary = Callable[[Step], "Dim | int | None"]
Node = tuple[str, Expr]  # an expression, with the name of its function


@dataclass(frozen=True, slots=True)
class StoredValues:
    """What a compiler that fuses operators stores of a module. All other values but results are computed again inside
    the kernels that read them, which then read their operands.

    - `nodes`: the expressions whose values are stored, each with its bytes where they are not those of its type.
    - `spaces`: the bytes that the kernel of an expression needs besides its operands and results.
    - `beside`: for kernels that run as a part of another one, that one.
    - `anew`: for expressions, the stored values that they compute again instead of reading them.
    """

    nodes: Mapping[Node, Dim | None]
    spaces: Mapping[Node, Dim]
    beside: Mapping[Node, Expr]
    anew: Mapping[Node, Collection[Expr]]

    def temporary(self, step: Step) -> Dim | None:
        """The bytes that the kernel of a step needs besides its operands and results; None if these are all."""
        needed = self.spaces.get((step.function, step.kernel))
        return None if needed is None else needed.substitute(dict(step.sizes))


def equations_of(e: Expr) -> ProgramUse | None:
    """The tensor program of a kernel; None for a library call, a branch or a loop, and where sizes are unknown."""
    return equations_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation)
