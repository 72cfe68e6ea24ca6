"""The runtime plan: whole storages, which a value reuses only if the backend really puts it there.

A kernel's output takes over a storage in which nothing is needed any more (XLA: the dead array is donated), if sizes
are proved equal. Results of the call take none, so that no later call can overwrite them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from relax_eg.memory.liveness import Lifetime, Liveness, last_use
from relax_eg.memory.proofs import Reuse, SizeComparison, SizeProofs
from relax_eg.memory.steps import MemoryProgram, Step
from relax_eg.shapes import Dim

# Which storages a value may take over: "elements" (XLA's donation): the same number of elements of the same itemsize;
# "dtype": equal bytes and dtype; "bytes": equal bytes; "fits": at least as many bytes.
Aliasing = Literal["elements", "dtype", "bytes", "fits"]


@dataclass(frozen=True, slots=True)
class Storage:
    """A buffer that holds several values, one after the other."""

    number: int
    bytes: Dim
    itemsize: int
    dtype: str


@dataclass(frozen=True, slots=True)
class RuntimeStep:
    """A kernel as it runs.

    - `storages`: for each of `step.writes` the storage that holds it; None for a result or an unsized value, which the
      kernel allocates.
    - `takes`: for each of `step.writes` the value whose array it takes over; None if the storage is used for the first
      time in a call (its array is then the one left from the previous call, if any).
    - `workspaces`: the same for those of `step.workspaces` that are passed.
    - `dies`: values that nothing needs after this step.
    """

    step: Step
    storages: tuple[int | None, ...]
    takes: tuple[int | None, ...]
    workspaces: tuple[tuple[int, int, int | None], ...]  # value, storage, value taken over
    dies: tuple[int, ...]


@dataclass(frozen=True)
class RuntimePlan:
    """Whole storages and the steps that use them."""

    program: MemoryProgram
    aliasing: Aliasing
    storages: tuple[Storage, ...]
    of_value: Mapping[int, int]
    steps: tuple[RuntimeStep, ...]
    reuses: tuple[Reuse, ...]

    @property
    def bytes(self) -> Dim:
        """Bytes of all storages together."""
        total = Dim.of(0)
        for s in self.storages:
            total = total + s.bytes
        return total

    def bytes_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all storages at these sizes of the entry."""
        return sum(int(s.bytes.evaluate(sizes)) for s in self.storages)

    def inside_at(self, sizes: Mapping[str, int]) -> list[int]:
        """For each step the bytes that its executable allocates and frees: the workspaces that are not passed to it."""
        values = self.program.values
        own = [[d for v in s.step.workspaces if v not in self.of_value and (d := values[v].bytes) is not None]
               for s in self.steps]  # fmt: skip
        return [sum(int(d.evaluate(sizes)) for d in space) for space in own]

    def peak_at(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all storages, which a call holds from its beginning, plus the most that an executable allocates."""
        return self.bytes_at(sizes) + max(self.inside_at(sizes), default=0)


def runtime_plan(live: Liveness, sizes: SizeProofs, aliasing: Aliasing = "elements") -> RuntimePlan:
    """Storages for the lifetimes of `live`, in the order of its steps.

    If sizes are compared for equality, no such plan has fewer bytes: lifetimes of one size form an interval graph,
    which is coloured optimally in the order of their beginnings.
    """
    program = live.program
    passed = {v for s in program.steps for t in s.operands if isinstance(t, int) for v in (t,) if v in s.workspaces}
    begin: dict[int, list[Lifetime]] = {}
    end: dict[int, list[Lifetime]] = {}
    for x in live.lifetimes:
        if x.role == "value" or (x.role == "workspace" and x.values[0] in passed):
            begin.setdefault(x.start, []).append(x)
            end.setdefault(x.end, []).append(x)
    pool = _Pool(sizes, aliasing)
    of_value: dict[int, int] = {}
    holder: dict[int, int] = {}
    steps: list[RuntimeStep] = []
    last = last_use(program)
    dying: dict[int, list[int]] = {}
    for v, at in enumerate(last):
        if program.values[v].role in ("value", "workspace") and at >= 0:
            dying.setdefault(at, []).append(v)
    for s in program.steps:
        for x in begin.get(s.number, ()):
            storage = pool.take(x, program.values[x.values[0]].annotation.dtype or "")
            of_value.update(dict.fromkeys(x.values, storage))
        taken = {v: holder.get(of_value[v]) for v in (*s.writes, *s.workspaces) if v in of_value}
        for v in taken:
            holder[of_value[v]] = v
        for x in end.get(s.number, ()):
            pool.free.append(of_value[x.values[0]])
        steps.append(
            RuntimeStep(
                s,
                tuple(of_value.get(v) for v in s.writes),
                tuple(taken.get(v) for v in s.writes),
                tuple((v, of_value[v], taken[v]) for v in s.workspaces if v in of_value),
                tuple(dying.get(s.number, ())),
            )
        )
    return RuntimePlan(program, aliasing, tuple(pool.storages), of_value, tuple(steps), tuple(pool.reuses))


class _Pool:
    """Storages, and which of them are free; the one freed last is taken first."""

    def __init__(self, sizes: SizeProofs, aliasing: Aliasing) -> None:
        self.sizes, self.aliasing = sizes, aliasing
        self.storages: list[Storage] = []
        self.holder: list[int] = []  # of each storage, the last value in it
        self.free: list[int] = []
        self.reuses: list[Reuse] = []
        self.told: set[tuple[Dim, Dim]] = set()  # refusals already reported

    def take(self, x: Lifetime, dtype: str) -> int:
        """The storage for a lifetime that begins."""
        refused: list[tuple[int, SizeComparison]] = []
        fitting: list[tuple[int, SizeComparison]] = []
        for n in reversed(self.free):
            s = self.storages[n]
            if not _KINDS[self.aliasing](s, x, dtype):
                continue
            found = self.sizes.compare(x.bytes, "<=" if self.aliasing == "fits" else "==", s.bytes)
            if found.holds:
                fitting.append((n, found))
                if self.aliasing != "fits" or x.bytes is s.bytes:
                    break
            else:
                refused.append((n, found))
        if fitting:
            n, why = min(fitting, key=lambda f: self.sizes.estimate(self.storages[f[0]].bytes))
            self.free.remove(n)
            self.reuses.append(Reuse(x.values[0], self.holder[n], True, why))
            self.holder[n] = x.values[-1]
            return n
        for n, why in refused:
            if (why.left, why.right) not in self.told:
                self.told.add((why.left, why.right))
                self.reuses.append(Reuse(x.values[0], self.holder[n], False, why))
        self.holder.append(x.values[-1])
        self.storages.append(Storage(len(self.storages), x.bytes, x.itemsize, dtype))
        return len(self.storages) - 1


_KINDS: Mapping[str, Callable[[Storage, Lifetime, str], bool]] = {
    "elements": lambda s, x, dtype: s.itemsize == x.itemsize,
    "dtype": lambda s, x, dtype: s.dtype == dtype,
    "bytes": lambda s, x, dtype: True,
    "fits": lambda s, x, dtype: True,
}
