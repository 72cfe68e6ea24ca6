"""Whole storages: each holds one value at a time, and a value may take over a storage whose value is dead.

In a plan that the runtime follows, a value takes a storage over only if the backend puts the value there: XLA does so
if the dead array is donated to the kernel, for which the sizes must be proved equal. In TVM's planner, which is here
for comparison, storages also grow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from relax_eg.memory.liveness import Lifetime, Liveness, liveness
from relax_eg.memory.placement import Place, Storage, StorageLayout
from relax_eg.memory.program import MemoryProgram
from relax_eg.memory.proofs import Reuse, SizeComparison, SizeProofs
from relax_eg.shapes import Dim
from relax_eg.traversal import grouped

# Which storages a value may take over: "elements" (XLA's donation): the same number of elements of the same itemsize;
# "dtype": equal bytes and dtype; "bytes": equal bytes; "fits": at least as many bytes.
Aliasing = Literal["elements", "dtype", "bytes", "fits"]

RANGE = 16  # chosen: how many times larger or smaller a storage of TVM's planner may be than what takes it over


def storages(live: Liveness, sizes: SizeProofs, aliasing: Aliasing = "elements") -> StorageLayout:
    """The layout of `live` in whole storages, which `execution="kernels"` follows. Workspaces that an executable
    allocates itself have no storage.

    If sizes are compared for equality, no layout in whole storages has fewer bytes: lifetimes of one size form an
    interval graph, and colouring it in the order of their beginnings is optimal.
    """
    hidden = {v for s in live.program.steps for v in s.hidden}
    given = [x for x in live.lifetimes if x.values[0] not in hidden]
    return _assign_storages(live.program, given, _ProvedPool(live.program, sizes, aliasing))


def greedy(live: Liveness, sizes: SizeProofs) -> StorageLayout:
    """The layout of TVM's planner: greedy in program order (Relax, Algorithm 3, as in TVM 0.27).

    There is a pool for each dtype. A tensor takes the smallest free storage that is at least as large, up to 16 times
    as large. If there is none, it takes the largest free storage that is smaller, down to a sixteenth, and the storage
    grows. A tensor of unbounded size takes a storage of equal size. Outputs are allocated before operands are released,
    so no value is computed in place.
    """
    alone = liveness(live.program, live.results, sizes.at.keys(), overwriting=False)
    return _assign_storages(live.program, alone.lifetimes, _GrowingPool(live.program, sizes))


def _assign_storages(program: MemoryProgram, lifetimes: Iterable[Lifetime], pool: _Pool) -> StorageLayout:
    """The layout in which each lifetime takes a storage of `pool`. At each step, first the lifetimes that begin take
    storages, then the lifetimes that end free theirs."""
    lifetimes = list(lifetimes)
    begin, end = grouped((x.start, x) for x in lifetimes), grouped((x.end, x) for x in lifetimes)
    places: dict[int, Place] = {}
    for s in program.steps:
        for x in begin.get(s.number, ()):
            places.update(dict.fromkeys(x.values, Place(pool.take(x), Dim.of(0))))
        pool.free += [places[x.values[0]].storage for x in end.get(s.number, ())]
    return tuple(pool.storages), places, tuple(pool.reuses), False


class _Pool(ABC):
    """The storages made so far.

    - `storages`: all of them, by number.
    - `free`: the numbers of the free ones, in the order in which they became free.
    - `reuses`: the decisions whether a value takes a storage over.
    """

    def __init__(self, program: MemoryProgram, sizes: SizeProofs) -> None:
        self.program, self.sizes = program, sizes
        self.storages: list[Storage] = []
        self.free: list[int] = []
        self.reuses: list[Reuse] = []

    def take(self, x: Lifetime) -> int:
        """The number of the storage for a lifetime that begins: a free one, or a new one."""
        dtype = self.program.values[x.values[0]].annotation.dtype or ""
        n = self.reusable_storage(x, dtype)
        if n is not None:
            self.free.remove(n)
            return n
        self.storages.append(self.new_storage(x, dtype))
        return len(self.storages) - 1

    def new_storage(self, x: Lifetime, dtype: str) -> Storage:
        """A storage made for a lifetime."""
        return Storage(x.bytes, x.itemsize, dtype)

    @abstractmethod
    def reusable_storage(self, x: Lifetime, dtype: str) -> int | None:
        """The free storage that a lifetime takes over; None if there is none that fits."""


class _ProvedPool(_Pool):
    """A pool in which a lifetime takes over a storage only if the comparison of their sizes is proved. Of several equal
    storages, the one freed last is taken; with "fits", the smallest."""

    def __init__(self, program: MemoryProgram, sizes: SizeProofs, aliasing: Aliasing) -> None:
        super().__init__(program, sizes)
        self.aliasing = aliasing
        self.holder: dict[int, int] = {}  # for each storage, the last value in it
        self.reported: set[tuple[Dim, Dim]] = set()  # refusals already reported

    def take(self, x: Lifetime) -> int:
        n = super().take(x)
        self.holder[n] = x.values[-1]
        return n

    def reusable_storage(self, x: Lifetime, dtype: str) -> int | None:
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
            self.reuses.append(Reuse(x.values[0], self.holder[n], True, why))
            return n
        for n, why in refused:
            if (why.left, why.right) not in self.reported:
                self.reported.add((why.left, why.right))
                self.reuses.append(Reuse(x.values[0], self.holder[n], False, why))
        return None


_KINDS: Mapping[str, Callable[[Storage, Lifetime, str], bool]] = {
    "elements": lambda s, x, dtype: s.itemsize == x.itemsize,
    "dtype": lambda s, x, dtype: s.dtype == dtype,
    "bytes": lambda s, x, dtype: True,
    "fits": lambda s, x, dtype: True,
}


class _GrowingPool(_Pool):
    """TVM's pool: bounded sizes count at their largest, and a storage may grow."""

    def new_storage(self, x: Lifetime, dtype: str) -> Storage:
        most = self.sizes.upper_bound(x.bytes)
        return Storage(x.bytes if most is None else Dim.of(most), x.itemsize, dtype)

    def reusable_storage(self, x: Lifetime, dtype: str) -> int | None:
        pool = [n for n in self.free if self.storages[n].dtype == dtype]
        size = self.sizes.upper_bound(x.bytes)
        if size is None:
            return next((n for n in pool if self.storages[n].bytes is x.bytes), None)
        known = sorted((b.value, n) for n in pool if (b := self.storages[n].bytes).is_const)
        near = [(b, n) for b, n in known if size // RANGE <= b <= size * RANGE]
        larger, smaller = [x for x in near if x[0] >= size], [x for x in near if x[0] < size]
        if larger:
            return larger[0][1]
        if not smaller:
            return None
        n = smaller[-1][1]
        self.storages[n] = replace(self.storages[n], bytes=Dim.of(size))
        return n
