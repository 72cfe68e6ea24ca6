"""The instructions. A function's registers hold its parameters, then constants and what its instructions compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from relax_eg.ir.annotations import DataType, Tensor
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim
from relax_eg.vm.folds import RunsFold

Sizes = Sequence[tuple[str, str]]  # names of size variables, each with the frame's name for it


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base class of the instructions.

    - `into`: the register of the result; -1 without one.
    """

    into: int

    def text(self) -> str:
        """One line that describes the instruction."""
        shown = [f.name for f in fields(self) if f.name != "into"]
        parts = ", ".join(f"{name}={_short(getattr(self, name))}" for name in shown)
        into = "" if self.into < 0 else f"r{self.into} = "
        return f"{into}{type(self).__name__.lower()} {parts}"


def _short(value: Any) -> str:
    if isinstance(value, Expr):
        return value.op
    if callable(value):
        return str(getattr(value, "name", type(value).__name__))
    return str(value)


@dataclass(frozen=True, slots=True)
class Move(Instruction):
    """Copies a register."""

    source: int


@dataclass(frozen=True, slots=True)
class RunRegion(Instruction):
    """Runs a compiled dataflow block.

    - `run(values, sizes)`: returns the values of the block's bindings.
    - `name`: what it computes.
    - `reads`: the registers of its values.
    - `sizes`: the size variables that it reads.
    - `outputs`: the registers of its results.
    - `allocated`: the registers of the results for which a storage is planned.
    - `donates`: the places among `reads` of dead values in whose storages results are written.
    """

    run: Callable[[list[Any], Mapping[str, int]], Sequence[Any]]
    name: str
    reads: tuple[int, ...]
    sizes: Sizes
    outputs: tuple[int, ...]
    allocated: tuple[int, ...] = ()
    donates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchOn(Instruction):
    """Goes to a place by a bool or an index, which is clamped."""

    value: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch(Instruction):
    """Goes to the place of the constructor of a value.

    - `fields`: for each constructor, the registers of its fields.
    """

    value: int
    places: tuple[int, ...]
    fields: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Jump(Instruction):
    """Goes to a place."""

    place: int


@dataclass(frozen=True, slots=True)
class CallFunction(Instruction):
    """Calls a function of the module.

    - `is_tail`: whether its result is that of the caller, whose frame it replaces.
    - `kills`: the registers that nothing reads after it.
    """

    function: str
    args: tuple[int, ...]
    is_tail: bool = False
    kills: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallValue(Instruction):
    """Calls a function value.

    - `callee`: its register.
    - `is_tail`: whether its result is that of the caller, whose frame it replaces.
    - `kills`: the registers that nothing reads after it.
    """

    callee: int
    args: tuple[int, ...]
    is_tail: bool = False
    kills: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Return(Instruction):
    """Ends the function with a result."""

    source: int


@dataclass(frozen=True, slots=True)
class Construct(Instruction):
    """Makes a value of a data type.

    - `index`: the place of the constructor.
    """

    definition: DataType
    index: int
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MakeTuple(Instruction):
    """Makes a tuple."""

    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Field(Instruction):
    """Takes a field of a tuple."""

    source: int
    index: int


@dataclass(frozen=True, slots=True)
class MakeClosure(Instruction):
    """Makes a function value.

    - `callee`: the register of the function.
    """

    callee: int
    captured: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MakeShape(Instruction):
    """Makes a shape of sizes.

    - `shape(sizes)`: returns it.
    """

    shape: Callable[[Mapping[str, int]], tuple[int, ...]]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class BindSizes(Instruction):
    """Checks values against annotations, and keeps the size variables that they bind: a `match_cast`, or the parameters
    of a function that stands in place of its call.

    - `bind(values, sizes)`: returns the sizes.
    - `values`: the registers of the values.
    - `known`: the size variables that are known before.
    - `bound`: those that are kept, with the frame's names.
    """

    bind: Callable[[list[Any], Mapping[str, int]], Mapping[str, int]]
    values: tuple[int, ...]
    known: Sizes
    bound: Sizes


@dataclass(frozen=True, slots=True)
class NewRef(Instruction):
    """Makes a mutable cell."""

    source: int


@dataclass(frozen=True, slots=True)
class ReadRef(Instruction):
    """Reads a mutable cell."""

    source: int


@dataclass(frozen=True, slots=True)
class WriteRef(Instruction):
    """Writes a mutable cell. The result is the empty tuple."""

    cell: int
    source: int


@dataclass(frozen=True, slots=True)
class CallLibrary(Instruction):
    """Calls a library routine.

    - `call`: the expression of the call.
    """

    call: Expr
    args: tuple[int, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class RunLoop(Instruction):
    """Runs a `while_loop` or `scan` whose functions have steps.

    - `loop`: its expression.
    """

    loop: Expr
    args: tuple[int, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class RunProgram(Instruction):
    """Runs a function that is one compiled program.

    - `run(values, sizes)`: returns its result.
    - `name`: its name.
    """

    run: Callable[[list[Any], Mapping[str, int]], Any]
    name: str
    args: tuple[int, ...]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class RunFold(Instruction):
    """Calls a function that recurs over a value: deferred, and run together with other such calls.

    - `run`: runs it.
    - `name`: the function.
    - `place`: the place of the value among the arguments.
    - `args`: the registers of the arguments.
    """

    run: RunsFold
    name: str
    place: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyTo(Instruction):
    """Copies a value to a device, where it is not there.

    - `device`: the device's name, such as "gpu:0".
    """

    source: int
    device: str


@dataclass(frozen=True, slots=True)
class Kill(Instruction):
    """Ends the lives of values: their arrays are freed if nothing else holds them.

    - `registers`: the registers that held them.
    """

    registers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocStorage(Instruction):
    """Makes a storage.

    - `size`: its bytes, in the frame's sizes.
    """

    size: Dim


@dataclass(frozen=True, slots=True)
class AllocTensor(Instruction):
    """Makes a tensor at the beginning of a storage. What was there is dead.

    - `storage`: the register of the storage.
    - `annotation`: its shape, in the frame's sizes, and its dtype.
    """

    storage: int
    annotation: Tensor


@dataclass(frozen=True, slots=True)
class Advance(Instruction):
    """Takes steps of a function that ends in a call of itself, in a compiled loop.

    - `run(values, sizes)`: returns the function's arguments and sizes after these steps.
    - `name`: the function.
    - `args`: the registers of its arguments.
    - `sizes`: its size variables.
    """

    run: Callable[[list[Any], Mapping[str, int]], tuple[list[Any], Mapping[str, int]]]
    name: str
    args: tuple[int, ...]
    sizes: Sizes


_READ = ("source", "value", "callee", "cell", "storage")  # names of the fields that hold one register
_READ_MANY = ("reads", "args", "fields", "captured", "values", "allocated")  # and of those that hold several


def read_registers(i: Instruction) -> list[int]:
    """Returns the registers that an instruction reads."""
    found = [getattr(i, name) for name in _READ if hasattr(i, name)]
    if not isinstance(i, Switch):
        found += [r for name in _READ_MANY for r in getattr(i, name, ())]
    return found


def written_registers(i: Instruction) -> list[int]:
    """Returns the registers that an instruction writes."""
    own: list[int] = [r for case in i.fields for r in case] if isinstance(i, Switch) else []
    own += i.args if isinstance(i, Advance) else getattr(i, "outputs", ())
    return own if i.into < 0 else [*own, i.into]


def moved(i: Instruction, places: Sequence[int]) -> Instruction:
    """Returns `i` for code in which the instruction at place `k` is at `places[k]`."""
    if isinstance(i, Jump):
        return replace(i, place=places[i.place])
    return replace(i, places=tuple(places[p] for p in i.places)) if isinstance(i, (BranchOn, Switch)) else i


@dataclass(frozen=True, slots=True)
class Code:
    """A function as instructions.

    - `name`: its name.
    - `parameters`: the number of its parameters, which are its first registers.
    - `registers`: the registers as they are at the start: None for the parameters, and constants.
    - `instructions`: the instructions.
    - `fit`: the check of the arguments, which binds size variables; None where nothing has to be checked or bound.
    """

    name: str
    parameters: int
    registers: tuple[Any, ...]
    instructions: tuple[Instruction, ...]
    fit: Callable[[Sequence[Any]], Mapping[str, int]] | None

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.parameters} parameters, {len(self.registers)} registers"]
        lines += [f"  {i:4d}  {x.text()}" for i, x in enumerate(self.instructions)]
        return "\n".join(lines)
