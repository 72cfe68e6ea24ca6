"""Runs instructions. Calls of functions take no frames of Python, so recursion is as deep as memory allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax_eg.errors import OperatorError
from relax_eg.ir.annotations import DataValue
from relax_eg.ir.data import Cell, FunctionValue, map_data
from relax_eg.ir.expr import Expr
from relax_eg.limits import FRAMES
from relax_eg.vm import instructions as ins
from relax_eg.vm.folds import Batch, DeferredValue, rank_of


class PlannedMemory(Protocol):
    """Memory in which a backend puts values at the places that are planned."""

    def storage(self, size: int) -> Any:
        """Makes a storage of `size` bytes."""
        ...

    def tensor(self, storage: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Returns a tensor in a storage."""
        ...

    def fill(self, tensor: Any, value: Any) -> Any:
        """Puts a value into a tensor, and returns the tensor."""
        ...

    def kill(self, value: Any) -> None:
        """Ends the life of a value, if it is a tensor that was allocated."""
        ...


class HostSteps(Protocol):
    """What a machine leaves to others."""

    def waited(self, values: Sequence[Any]) -> None:
        """Waits until values are computed."""
        ...

    def copied(self, value: Any, device: str) -> Any:
        """Returns a value on a device."""
        ...

    def library(self, call: Expr, args: list[Any], sizes: Mapping[str, int]) -> Any:
        """Returns the result of a library routine."""
        ...

    def loop(
        self, loop: Expr, args: list[Any], sizes: Mapping[str, int], run: Callable[[str, Sequence[Any]], Any]
    ) -> Any:
        """Returns the result of a loop. `run(name, args)`: runs a function of the module."""
        ...


@dataclass(slots=True)
class ProfileRow:
    """How often an instruction ran, and how long.

    - `function`, `place`: the instruction.
    - `count`: the number of times that it ran.
    - `seconds`: the seconds of all runs; of a call, those until the function begins.
    - `text`: a line that describes it.
    - `bytes`: the most bytes of arrays that a run of it made.
    - `made`: what its last run made: shapes and dtypes.
    """

    function: str
    place: int
    text: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0
    made: str = ""


@dataclass(slots=True)
class InstructionProfile:
    """What a run took, by instruction.

    - `rows`: a row for each instruction that ran.
    - `traced`: is told each instruction when it has run, with what it made; None: nothing is.
    """

    traced: Callable[[str], None] | None = None
    rows: dict[tuple[str, int], ProfileRow] = field(default_factory=dict[tuple[str, int], ProfileRow])

    def add(self, code: ins.Code, place: int, seconds: float, made: Sequence[Any] = ()) -> None:
        row = self.rows.get((code.name, place))
        if row is None:
            text = code.instructions[place].text()
            row = self.rows[code.name, place] = ProfileRow(code.name, place, text)
        row.count += 1
        row.seconds += seconds
        row.made = ", ".join(map(_described, made))
        row.bytes = max(row.bytes, sum(getattr(v, "nbytes", 0) for v in made))
        if self.traced is not None:
            self.traced(f"{code.name}:{place} {row.text}" + (f" -> {row.made}" if made else ""))

    def __str__(self) -> str:
        total = sum(r.seconds for r in self.rows.values()) or 1.0
        lines = [f"{'seconds':>10} {'share':>6} {'runs':>8} {'bytes':>10}  instruction"]
        for r in sorted(self.rows.values(), key=lambda r: -r.seconds):
            made = f" -> {r.made}" if r.made else ""
            head = f"{r.seconds:10.6f} {r.seconds / total:6.1%} {r.count:8d} {r.bytes:10d}"
            lines.append(f"{head}  {r.function}:{r.place} {r.text}{made}")
        return "\n".join(lines)


def _described(value: Any) -> str:
    """The kind of a value: of an array its dtype and shape."""
    if hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, DataValue):
        return value.constructor
    return f"({', '.join(map(_described, value))})" if isinstance(value, tuple) else type(value).__name__  # type: ignore[reportUnknownArgumentType]


def _forced(value: Any) -> Any:
    """A value that is not deferred."""
    if isinstance(value, DeferredValue):
        return value.value()
    if isinstance(value, tuple) and any(isinstance(v, (DeferredValue, tuple)) for v in value):  # type: ignore[reportUnknownVariableType]
        return tuple(map(_forced, value))  # type: ignore[reportUnknownArgumentType]
    return value


class VirtualMachine:
    """A machine for the functions of one module.

    - `code_of(name)`: returns the instructions of a function.
    - `steps`: what it leaves to others.
    - `profile`: records each instruction, if it is set.
    - `memory`: puts values at the places that are planned; None where the backend allocates its arrays itself.
    """

    def __init__(self, code_of: Callable[[str], ins.Code], steps: HostSteps) -> None:
        self.code_of = code_of
        self.steps = steps
        self.profile: InstructionProfile | None = None
        self.memory: PlannedMemory | None = None
        self.deferring = False  # whether registers may hold deferred values

    def call(self, name: str, args: Sequence[Any], sizes: Mapping[str, int] | None = None) -> Any:
        """Returns the result of a function. `sizes`: its size variables, if the arguments were checked before."""
        code = self.code_of(name)
        registers = [*args, *code.registers[code.parameters :]]
        bound = dict(sizes if sizes is not None else {} if code.fit is None else code.fit(args))
        frames: list[tuple[ins.Code, list[Any], dict[str, int], int, int]] = []
        place = 0
        deferring = self.deferring
        waiting: dict[tuple[Any, ...], Batch] = {}
        profile, memory = self.profile, self.memory
        while True:
            i: Any = code.instructions[place]
            started = 0.0 if profile is None else time.perf_counter()
            at, place = place, place + 1
            before = code
            kind = type(i)
            if kind is ins.Move:
                registers[i.into] = registers[i.source]
            elif kind is ins.RunRegion:
                known = {name: bound[own] for name, own in i.sizes if own in bound}
                given = [registers[r] for r in i.reads]
                values = i.run([_forced(v) for v in given] if deferring else given, known)
                if memory is not None and i.allocated:
                    values = [
                        memory.fill(registers[r], v) if r in i.allocated else v
                        for r, v in zip(i.outputs, values, strict=True)
                    ]
                for into, value in zip(i.outputs, values, strict=True):
                    registers[into] = value
                if profile is not None:
                    self.steps.waited(values)
                given = values = value = None  # these names would keep the arrays alive
            elif kind is ins.Switch:
                data = registers[i.value]
                for into, value in zip(i.fields[data.index], data.fields, strict=True):
                    registers[into] = value
                place = i.places[data.index]
            elif kind is ins.BranchOn:
                place = i.places[min(max(int(_forced(registers[i.value])), 0), len(i.places) - 1)]
            elif kind is ins.Kill:
                for r in i.registers:
                    if memory is not None:
                        memory.kill(registers[r])
                    registers[r] = None
            elif kind is ins.Jump:
                place = i.place
            elif kind is ins.CallFunction or kind is ins.CallValue:
                given = [registers[r] for r in i.args]
                if deferring:
                    given = [_forced(v) for v in given]
                if kind is ins.CallValue:
                    callee = registers[i.callee]
                    if isinstance(callee, FunctionValue):
                        called = self.code_of(callee.name)
                        given = [*given, *callee.captured]
                    else:
                        called = self.code_of(callee)
                else:
                    called = self.code_of(i.function)
                if len(given) != called.parameters:
                    raise OperatorError(f"{called.name}() takes {called.parameters} arguments, got {len(given)}")
                for r in i.kills:
                    registers[r] = None
                if not i.is_tail:
                    frames.append((code, registers, bound, place, i.into))
                    if len(frames) > FRAMES:
                        raise OperatorError(
                            f"{called.name}(): functions call one another {FRAMES} deep\n"
                            "  accepted: recursion that ends; a call that is the last step of a function takes no depth"
                        )
                code, place = called, 0
                bound = {} if code.fit is None else dict(code.fit(given))
                registers = [*given, *code.registers[code.parameters :]]
                given = None
            elif kind is ins.Return:
                result = registers[i.source]
                if deferring and not frames:
                    result = map_data(result, _forced)
                if profile is not None:
                    profile.add(before, at, time.perf_counter() - started)
                if not frames:
                    return result
                code, registers, bound, place, into = frames.pop()
                registers[into] = result
                continue
            elif kind is ins.Construct:
                fields = tuple([registers[r] for r in i.fields])
                registers[i.into] = DataValue(i.definition, i.index, fields)
            elif kind is ins.MakeTuple:
                registers[i.into] = tuple([registers[r] for r in i.fields])
            elif kind is ins.Field:
                whole = registers[i.source]
                registers[i.into] = whole.field(i.index) if isinstance(whole, DeferredValue) else whole[i.index]
            elif kind is ins.RunFold:
                rest = [_forced(registers[r]) for r in i.args]
                root = rest.pop(i.place)
                rank = rank_of(i.run, root)
                key = (i.name, rank, *map(id, rest))
                batch = waiting.get(key)
                if batch is None or batch.results is not None:
                    batch = waiting[key] = Batch(i.run, rest, rank)
                registers[i.into] = batch.join(root)
                deferring = self.deferring = True
            elif kind is ins.MakeClosure:
                callee, captured = registers[i.callee], tuple([_forced(registers[r]) for r in i.captured])
                if isinstance(callee, FunctionValue):
                    callee, captured = callee.name, (*captured, *callee.captured)
                registers[i.into] = FunctionValue(callee, captured)
            elif kind is ins.AllocStorage or kind is ins.AllocTensor:
                # XLA allocates its arrays itself. It follows the plan because regions donate, and kills free.
                if memory is None:
                    pass
                elif kind is ins.AllocStorage:
                    registers[i.into] = memory.storage(int(i.size.evaluate(bound)))
                else:
                    shape = tuple([int(d.evaluate(bound)) for d in i.annotation.shape])
                    registers[i.into] = memory.tensor(registers[i.storage], shape, i.annotation.dtype)
            else:
                if deferring:
                    registers[:] = map(_forced, registers)
                self._rare(i, registers, bound)
            if profile is not None:
                made = [registers[r] for r in ins.written_registers(i)] if code is before else []
                profile.add(before, at, time.perf_counter() - started, made)

    def _rare(self, i: ins.Instruction, registers: list[Any], bound: dict[str, int]) -> None:
        if isinstance(i, ins.MakeShape):
            registers[i.into] = i.shape({name: bound[own] for name, own in i.sizes})
        elif isinstance(i, ins.BindSizes):
            known = {name: bound[own] for name, own in i.known if own in bound}
            found = i.bind([registers[r] for r in i.values], known)
            bound.update({own: found[name] for name, own in i.bound if name in found})
        elif isinstance(i, ins.NewRef):
            registers[i.into] = Cell(registers[i.source])
        elif isinstance(i, ins.ReadRef):
            registers[i.into] = registers[i.source].content
        elif isinstance(i, ins.WriteRef):
            registers[i.cell].content = registers[i.source]
            registers[i.into] = ()
        elif isinstance(i, ins.CopyTo):
            registers[i.into] = self.steps.copied(registers[i.source], i.device)
        elif isinstance(i, ins.Advance):
            values, sizes = i.run([registers[r] for r in i.args], {name: bound[own] for name, own in i.sizes})
            for r, v in zip(i.args, values, strict=True):
                registers[r] = v
            bound.update(sizes)
        elif isinstance(i, (ins.CallLibrary, ins.RunLoop, ins.RunProgram)):
            args = [registers[r] for r in i.args]
            sizes = {name: bound[own] for name, own in i.sizes if own in bound}
            if isinstance(i, ins.CallLibrary):
                registers[i.into] = self.steps.library(i.call, args, sizes)
            elif isinstance(i, ins.RunLoop):
                registers[i.into] = self.steps.loop(i.loop, args, sizes, self.call)
            else:
                registers[i.into] = i.run(args, sizes)
        else:
            raise OperatorError(f"{type(i).__name__} is no instruction")
