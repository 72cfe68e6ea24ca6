"""The checker of plans: replays a plan at given sizes and reports values that it destroys, without using lifetimes.

The checker keeps, for each storage, the values in it and their bytes. For each kernel it first checks that no operand
is destroyed. Then it writes the kernel's outputs and workspaces, which destroys all values that they overlap. An output
may overlap an operand of its own kernel only if the kernel reads the operand element for element and both occupy the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from relax_eg.memory.placement import Placement
from relax_eg.memory.program import MemoryProgram, Step, leaves


@dataclass(frozen=True, slots=True)
class PlanProblem:
    """A problem of a plan.

    - `sizes`: the binding at which it occurs; empty if it occurs at all sizes.
    - `step`: the name of the kernel; "" if it concerns no single kernel.
    - `text`: what is wrong.
    """

    sizes: tuple[tuple[str, int], ...]
    step: str
    text: str

    def __str__(self) -> str:
        at = ", ".join(f"{n} = {v}" for n, v in self.sizes)
        return f"{f'at {at}, ' if at else ''}{f'kernel {self.step}: ' if self.step else ''}{self.text}"


def problems(program: MemoryProgram, placed: Placement, bindings: Iterable[Mapping[str, int]]) -> list[PlanProblem]:
    """The problems of a placement of the values of `program`, whose steps are in the module's order. If the order is
    wrong or a storage is missing, the result is that one problem, without sizes; otherwise it is the first problem at
    each of `bindings`."""
    wrong = _order_problem(program, placed.order)
    if wrong is None:
        unknown = [p.storage for p in placed.places.values() if not 0 <= p.storage < len(placed.storages)]
        wrong = f"there is no storage {unknown[0]}" if unknown else None
    if wrong is not None:
        return [PlanProblem((), "", wrong)]
    steps = [program.steps[n] for n in placed.order]
    offsets = {p.offset for p in placed.places.values()}
    found: list[PlanProblem] = []
    for sizes in bindings:
        known = {d: int(d.evaluate(sizes)) for d in offsets}
        place = {v: (p.storage, known[p.offset]) for v, p in placed.places.items()}
        spaces = [int(s.bytes.evaluate(sizes)) for s in placed.storages]
        first = _first_conflict(program, steps, program.bytes_at(sizes), place, spaces)
        if first is not None:
            found.append(PlanProblem(tuple(sorted(sizes.items())), *first))
    return found


def _order_problem(program: MemoryProgram, order: Sequence[int]) -> str | None:
    n = len(program.steps)
    if sorted(order) != list(range(n)):
        return f"the order does not name each of the {n} kernels once"
    written: set[int] = {v for v, w in enumerate(program.writer) if w is None}
    region = 0
    for number in order:
        s = program.steps[number]
        for v in s.reads:
            if v not in written:
                return f"kernel {s.name} reads {program.values[v].name} before it is written"
        if s.region < region:
            return f"kernel {s.name} is moved across an effect or a check"
        region = s.region
        written.update(s.writes)
    return None


def _first_conflict(
    program: MemoryProgram,
    steps: Sequence[Step],
    bytes_of: Sequence[int | None],
    place: Mapping[int, tuple[int, int]],
    spaces: Sequence[int],
) -> tuple[str, str] | None:
    """The first kernel that overwrites a value in use or reads a destroyed value, with the text of the problem; None if
    there is none.

    - `bytes_of`: the bytes of each value; None if unknown.
    - `place`: for each value its storage, and its offset there in bytes.
    - `spaces`: the bytes of each storage.
    """
    held: list[list[tuple[int, int, int]]] = [[] for _ in spaces]  # low, high, value
    destroyed: dict[int, int] = {}  # destroyed values, and what was written over them
    name = [x.name for x in program.values]
    for s in steps:
        for v in s.reads:
            if v in destroyed:
                return s.name, f"{name[v]} is needed, and {name[destroyed[v]]} was written over it"
        new: list[tuple[int, int, int, int]] = []
        for v in (*s.workspaces, *s.writes):
            if v not in place or bytes_of[v] is None:
                continue
            space, low = place[v]
            high = low + (bytes_of[v] or 0)
            if low < 0 or high > spaces[space]:
                return s.name, f"{name[v]} has bytes {low} to {high}, storage {space} has {spaces[space]}"
            for _, _, _, other in (x for x in new if x[0] == space and x[1] < high and low < x[2]):
                return s.name, f"{name[v]} and {name[other]} are written at the same time, to the same bytes"
            for a, b, other in held[space]:
                if a < high and low < b and other in s.reads:
                    whole = (a, b) == (low, high) and (v, other) in s.overwritable
                    if not whole:
                        return s.name, f"{name[v]} is written over {name[other]}, which is being read"
            new.append((space, low, high, v))
        for space, low, high, v in new:
            kept: list[tuple[int, int, int]] = []
            for a, b, other in held[space]:
                if a < high and low < b:
                    destroyed[other] = v
                else:
                    kept.append((a, b, other))
            held[space] = [*kept, (low, high, v)]
    for v in leaves(program.result):
        if v in destroyed:
            return "", f"{name[v]} is returned, and {name[destroyed[v]]} was written over it"
    return None
