"""The memory of a device: the bytes that are there at once under a choice of placements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.ir.expr import VAR
from relax_eg.ir.placements import REPLICATED, DeviceMesh, MeshPlacement, Part
from relax_eg.meshes.choices import AxisChoice, ChosenWay
from relax_eg.meshes.program import SpreadProgram
from relax_eg.traversal import operands_first


@dataclass(frozen=True)
class Peak:
    """The moment at which a device has most bytes in memory.

    - `bytes`: all of them.
    - `inputs`: those of the inputs.
    - `held`: the bytes of each value that is there, by value and part: inputs, and what was computed before.
    """

    bytes: float
    inputs: float
    held: Mapping[tuple[int, MeshPlacement], float]


def order_of(program: SpreadProgram, choice: AxisChoice, last_first: bool = False) -> list[int]:
    """The values that are computed, operands first. `last_first`: the last of several operands before the others."""

    def below(v: int) -> list[int]:
        found = [c for c in program.values[v].ways[choice.chosen[v].way].children if c in choice.chosen]
        return found[::-1] if last_first else found

    starts = [*program.outputs, *(b for _, b in program.tied), *program.inputs]
    return operands_first([v for v in starts if v in choice.chosen], below)


def peak_of(
    program: SpreadProgram,
    mesh: DeviceMesh,
    choices: Sequence[AxisChoice | None],
    state: Sequence[tuple[int, int]] = (),
    room: float = 0.0,
) -> Peak:
    """The memory of a device, from the life times of values that XLA is predicted to store: inputs, results of kernels,
    what several operators read, and what collectives send and bring. Axes without a choice divide everything. XLA
    takes of several orders of the operators the one with least memory; here it is the better of two.

    - `state`: pairs (input, output), by position: the output takes the place of the input, which is donated.
    - `room`: the bytes of a device up to which XLA gathers all new state at once; 0: one after the other.
    """
    first = next(c for c in choices if c is not None)
    orders = [order_of(program, first, last) for last in (False, True)]

    def least(at_once: bool) -> Peak:
        return min((_peak(program, mesh, choices, state, o, at_once) for o in orders), key=lambda p: p.bytes)

    found = least(True) if room else None
    return least(False) if found is None or found.bytes > room else found


def _peak(
    program: SpreadProgram,
    mesh: DeviceMesh,
    choices: Sequence[AxisChoice | None],
    state: Sequence[tuple[int, int]],
    order: Sequence[int],
    at_once: bool,
) -> Peak:
    """The memory of a device where values come about in this order. `at_once`: whether all new state that is gathered
    is there in the end, beside its pieces and the old state, whose place it takes then."""
    known = [c for c in choices if c is not None]
    free = math.prod(n for c, n in zip(choices, mesh.sizes, strict=True) if c is None)

    def here(v: int, parts: Sequence[Part]) -> float:
        pieces = math.prod(n for p, n in zip(parts, _sizes(choices, mesh), strict=True) if isinstance(p, int))
        return program.values[v].bytes / pieces / free

    def made(v: int) -> tuple[Part, ...]:
        return tuple(c.part(v) for c in known)

    place = {v: i for i, v in enumerate(order)}
    last = dict(place)
    readers: dict[int, int] = {}
    for v in order:
        for c in program.values[v].ways[known[0].chosen[v].way].children:
            if c in last:
                last[c] = max(last[c], place[v])
                readers[c] = readers.get(c, 0) + 1
    # What a loop slices is there until its last value comes about, and what it stacks from its first on.
    spans: dict[str, tuple[int, int]] = {}
    for v in order:
        first, _ = spans.get(program.values[v].function, (place[v], 0))
        spans[program.values[v].function] = first, place[v]
    for v in order:
        value = program.values[v]
        for c in value.ways[known[0].chosen[v].way].children if value.parameter >= 0 else ():
            if c in last and program.values[c].times < value.times:
                last[c] = max(last[c], spans[value.function][1])
    # What only passes a value on (a result of a function, a parameter) is that value's memory.
    inputs = {v: here(v, made(v)) for v in program.inputs if v in place}
    replaced = {program.outputs[o] for _, o in state}
    stored: dict[int, int] = {}  # values that are stored, and where they begin
    for v in order:
        value, way = program.values[v], program.values[v].ways[known[0].chosen[v].way]
        is_made = way.op not in (VAR, "parameter", "constant") and value.bytes > 0
        is_stored = bool(way.cost.launches) or (readers.get(v, 0) > 1 and way.candidate >= 0)
        is_sent = any(c.part(v) != REPLICATED and c.needed.get(v, set()) - {c.part(v)} for c in known)
        is_stacked = way.op == "result" and value.times < program.values[way.children[-1]].times
        if is_made and (is_stored or is_sent or is_stacked):
            stored[v] = spans[program.values[way.children[-1]].function][0] if is_stacked else place[v]
    # What a kernel computes on the way to its result reads when the kernel runs.
    for v in reversed(order):
        way = program.values[v].ways[known[0].chosen[v].way]
        for c in way.children if v not in stored and way.candidate >= 0 and readers.get(v) else ():
            if c in last:
                last[c] = max(last[c], last[v])
    handed = {(v, tuple(c.outputs[i] for c in known)) for i, v in enumerate(program.outputs)}
    held: dict[tuple[int, MeshPlacement], tuple[float, int, int]] = {}
    for v in order:
        ends = last[v]
        for parts in itertools.product(*(sorted(c.needed.get(v, ()), key=str) for c in known)):
            if parts != made(v) and here(v, parts) > here(v, made(v)):
                is_result = (v, parts) in handed and (at_once or v not in replaced)
                begins = len(order) if is_result and v in replaced else place[v]
                held[v, MeshPlacement(parts)] = here(v, parts), begins, len(order) if is_result else last[v]
                ends = max(ends, begins)
        if v in stored:
            ends = len(order) if (v, made(v)) in handed and v not in replaced else ends
            held[v, MeshPlacement(made(v))] = here(v, made(v)), stored[v], ends
    changes = [0.0] * (len(order) + 2)
    for n, start, end in held.values():
        changes[start] += n
        changes[end + 1] -= n
    for v in order:
        during = sum(_in_ring(program, known, v, c.chosen[v], here) for c in known)
        changes[place[v]] += during
        changes[place[v] + 1] -= during
    alive = list(itertools.accumulate(changes))
    top = max(range(len(alive)), key=alive.__getitem__)
    total = sum(inputs.values())
    there = {key: n for key, (n, start, end) in held.items() if start <= top <= end}
    there |= {(v, MeshPlacement(made(v))): n for v, n in inputs.items()}
    return Peak(total + alive[top], total, there)


def _in_ring(
    program: SpreadProgram,
    choices: Sequence[AxisChoice],
    v: int,
    chosen: ChosenWay,
    here: Callable[[int, Sequence[Part]], float],
) -> float:
    """Bytes on a device, while it computes a value by pieces along one axis, beside those of operands and result: a
    second piece that goes round, and what is brought into another order; of a result this comes after all pieces.

    `here(v, parts)`: the bytes of a value in these parts."""
    ring, children = chosen.strategy.ring, program.values[v].ways[chosen.way].children
    if ring is None:
        return 0.0
    result = here(v, [c.part(v) for c in choices])
    each = [here(x, [c.chosen[v].strategy.operands[i] for c in choices]) for i, x in enumerate(children)]
    if ring.passed is not None:
        return max(each[ring.passed], result)
    return result + sum(b for b, axis in zip(each, ring.axes, strict=True) if axis is not None)


def _sizes(choices: Sequence[AxisChoice | None], mesh: DeviceMesh) -> Iterator[int]:
    """The sizes of the axes for which there is a choice."""
    return (n for c, n in zip(choices, mesh.sizes, strict=True) if c is not None)
