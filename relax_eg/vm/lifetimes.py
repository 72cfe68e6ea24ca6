"""When the values in registers are no longer needed: `Kill` instructions, which the machine obeys.

Code has no jumps backwards, since recursion is by calls, so one pass from its end finds what is live at each place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from relax_eg.vm.instructions import (
    BranchOn,
    CallFunction,
    CallValue,
    Instruction,
    Jump,
    Kill,
    Return,
    Switch,
    moved,
    read_registers,
    written_registers,
)


def with_kills(code: Sequence[Instruction], kept: Iterable[int]) -> tuple[Instruction, ...]:
    """Returns `code` with a `Kill` of each register where its life ends. A call that is no last step drops what only it
    reads. Linear in the code's size, times that of a set of registers.

    - `kept`: registers that no instruction writes and that keep their values: constants.
    """
    constants = set(kept)
    live: list[int] = [0] * (len(code) + 1)  # before each instruction, as the bits of an integer
    after = [0] * len(code)
    uses = [_bits(r for r in read_registers(i) if r not in constants) for i in code]
    writes = [_bits(written_registers(i)) for i in code]
    for k in range(len(code) - 1, -1, -1):
        for s in _followers(code, k):
            after[k] |= live[s]
        live[k] = uses[k] | (after[k] & ~writes[k])
    drops = [
        uses[k] & ~after[k] if isinstance(i, (CallFunction, CallValue)) and not i.is_tail else 0
        for k, i in enumerate(code)
    ]
    before = [0] * (len(code) + 1)
    for k in range(len(code)):
        for s in _followers(code, k):
            before[s] |= (after[k] | uses[k] | writes[k]) & ~(live[s] | drops[k])
    made: list[Instruction] = []
    places: list[int] = []
    for k, i in enumerate(code):
        places.append(len(made))
        if before[k]:
            made.append(Kill(-1, _registers(before[k])))
        made.append(replace(i, kills=_registers(drops[k])) if drops[k] else i)
    return tuple(moved(i, places) for i in made)


def _followers(code: Sequence[Instruction], k: int) -> tuple[int, ...]:
    i = code[k]
    if isinstance(i, Return):
        return ()
    if isinstance(i, Jump):
        return (i.place,)
    return i.places if isinstance(i, (BranchOn, Switch)) else (k + 1,)


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
