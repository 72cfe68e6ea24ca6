"""Storages for the values of a function's frame: `AllocStorage` and `AllocTensor` instructions.

A storage holds one value at a time. A value takes over the storage of one that is dead, if their sizes are equal as
polynomials. Where a dataflow block reads that value for the last time, its result is written in its place: on XLA by
donation, which frees every other dead array. A backend with memory of its own puts each value where the plan says.

Planned are the values of dataflow blocks that only blocks, branches and checks of sizes read. Those that data, cells,
closures or calls may hold belong to whoever reads them. Code has no jumps backwards, so a value lives at most from the
place where it is written to the last one that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.memory import tensor_bytes
from relax_eg.shapes import Dim
from relax_eg.vm import instructions as ins

# When the values in registers are no longer needed: `Kill` instructions, which the machine obeys.
#
# Code has no jumps backwards, since recursion is by calls, so one pass from its end finds what is live at each place.


def with_kills(code: Sequence[ins.Instruction], kept: Iterable[int]) -> tuple[ins.Instruction, ...]:
    """Returns `code` with a `Kill` of each register where its life ends. A call that is no last step drops what only it
    reads. Linear in the code's size, times that of a set of registers.

    - `kept`: registers that no instruction writes and that keep their values: constants.
    """
    constants = set(kept)
    live: list[int] = [0] * (len(code) + 1)  # before each instruction, as the bits of an integer
    after = [0] * len(code)
    uses = [_bits(r for r in ins.read_registers(i) if r not in constants) for i in code]
    writes = [_bits(ins.written_registers(i)) for i in code]
    for k in range(len(code) - 1, -1, -1):
        for s in _followers(code, k):
            after[k] |= live[s]
        live[k] = uses[k] | (after[k] & ~writes[k])
    drops = [
        uses[k] & ~after[k] if isinstance(i, (ins.CallFunction, ins.CallValue)) and not i.is_tail else 0
        for k, i in enumerate(code)
    ]
    before = [0] * (len(code) + 1)
    for k in range(len(code)):
        for s in _followers(code, k):
            before[s] |= (after[k] | uses[k] | writes[k]) & ~(live[s] | drops[k])
    made: list[ins.Instruction] = []
    places: list[int] = []
    for k, i in enumerate(code):
        places.append(len(made))
        if before[k]:
            made.append(ins.Kill(-1, _registers(before[k])))
        made.append(replace(i, kills=_registers(drops[k])) if drops[k] else i)
    return tuple(ins.moved(i, places) for i in made)


def _followers(code: Sequence[ins.Instruction], k: int) -> tuple[int, ...]:
    i = code[k]
    if isinstance(i, ins.Return):
        return ()
    if isinstance(i, ins.Jump):
        return (i.place,)
    return i.places if isinstance(i, (ins.BranchOn, ins.Switch)) else (k + 1,)


def _bits(registers: Iterable[int]) -> int:
    found = 0
    for r in registers:
        found |= 1 << r
    return found


def _registers(bits: int) -> tuple[int, ...]:
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return tuple(found)


LEAST_BYTES = 4096  # chosen: smaller values get no storage; donating such an array takes longer than allocating it

Branch = tuple[int, ...]  # the branches around an instruction, outermost first
# The program of a block that gives the operands at some places away. Only blocks read its results at other places.
Planned = Callable[[tuple[int, ...], tuple[int, ...]], Callable[[list[object], Mapping[str, int]], Sequence[object]]]


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """What the plan has to know of a `RunRegion`.

    - `annotations`: those of its results, in the frame's names of sizes.
    - `branch`: the branches around it.
    - `planned(donated, kept)`: its program; None where it cannot give operands away.
    """

    annotations: tuple[Tensor | None, ...]
    branch: Branch
    planned: Planned | None


@dataclass(slots=True)
class _Storage:
    """A storage: its register, what a value must have to take it over, the last value in it, and that one's end."""

    register: int
    size: Dim
    branch: Branch
    holder: int
    kind: Tensor
    end: int


def with_storages(
    code: Sequence[ins.Instruction], regions: Mapping[int, PlannedRegion], new_register: Callable[[], int]
) -> tuple[ins.Instruction, ...]:
    """Returns `code` with storages for the values of its dataflow blocks. Linear in the code's size, times the number
    of storages.

    - `regions`: by place in `code`.
    - `new_register()`: returns a new register.
    """
    last: dict[int, int] = {}  # the place of the last instruction that reads a register
    held: set[int] = set()  # registers whose values may have other owners
    looked: set[int] = set()  # those whose sizes are checked
    writers: dict[int, int] = {}
    for k, i in enumerate(code):
        last.update(dict.fromkeys(ins.read_registers(i), k))
        if not isinstance(i, (ins.RunRegion, ins.BranchOn, ins.BindSizes)):
            held.update(ins.read_registers(i))
        looked.update(i.values if isinstance(i, ins.BindSizes) else ())
        for r in ins.written_registers(i):
            writers[r] = writers.get(r, 0) + 1
    storages: list[_Storage] = []
    made: list[ins.Instruction] = []
    places: list[int] = []
    for k, i in enumerate(code):
        places.append(len(made))
        region = regions.get(k)
        if not isinstance(i, ins.RunRegion) or region is None:
            made.append(i)
            continue
        allocated: list[int] = []
        donated: list[int] = []
        own = [
            a is not None and r not in held and writers[r] == 1
            for r, a in zip(i.outputs, region.annotations, strict=True)
        ]
        for r, a, is_own in zip(i.outputs, region.annotations, own, strict=True):
            size = tensor_bytes(a) if a is not None and is_own else None
            if a is None or size is None or (size.is_const and size.value < LEAST_BYTES):
                continue
            end = last.get(r, k)
            found = next((s for s in reversed(storages) if _takes_over(s, a, size, region, i, k)), None)
            if found is None:
                found = _Storage(new_register(), size, region.branch, r, a, end)
                storages.append(found)
                made.append(ins.AllocStorage(found.register, size))
            elif found.end == k:
                donated.append(i.reads.index(found.holder))
            found.holder, found.kind, found.end = r, a, end
            made.append(ins.AllocTensor(r, found.register, a))
            allocated.append(r)
        kept = tuple(p for p, (r, is_own) in enumerate(zip(i.outputs, own, strict=True)) if is_own and r not in looked)
        run = i.run if region.planned is None else region.planned(tuple(donated), kept)
        made.append(replace(i, run=run, allocated=tuple(allocated), donates=tuple(donated)))
    return tuple(ins.moved(i, places) for i in made)


def _takes_over(s: _Storage, a: Tensor, size: Dim, region: PlannedRegion, i: ins.RunRegion, k: int) -> bool:
    """Whether a value of the region at place `k` may be in `s`: its storage exists on this path, and its last value is
    dead, or is read by the region for the last time, once, and is of the same kind, as XLA's donation asks."""
    if s.size is not size or region.branch[: len(s.branch)] != s.branch:
        return False
    if s.end < k:
        return True
    is_alike = (s.kind.shape, s.kind.dtype) == (a.shape, a.dtype)
    return s.end == k and region.planned is not None and is_alike and i.reads.count(s.holder) == 1


def planned_bytes(code: ins.Code, sizes: Mapping[str, int]) -> int:
    """Returns the bytes of the storages of a frame at these sizes: the most that its planned values take."""
    return sum(int(i.size.evaluate(sizes)) for i in code.instructions if isinstance(i, ins.AllocStorage))
