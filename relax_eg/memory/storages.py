"""Whole storages: each holds one value at a time, and a value takes over one in which nothing is needed any more.

A plan of the runtime takes a storage over only if the backend really puts the value there (XLA: the dead array is
donated to the kernel), so the sizes must be proved equal. TVM's planner, for comparison, also lets storages grow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from relax_eg.memory.liveness import Lifetime, Liveness, liveness
from relax_eg.memory.placement import Laid, Place, Storage
from relax_eg.memory.program import MemoryProgram
from relax_eg.memory.proofs import Reuse, SizeComparison, SizeProofs
from relax_eg.shapes import Dim

# Which storages a value may take over: "elements" (XLA's donation): the same number of elements of the same itemsize;
# "dtype": equal bytes and dtype; "bytes": equal bytes; "fits": at least as many bytes.
Aliasing = Literal["elements", "dtype", "bytes", "fits"]

RANGE = 16  # chosen: how many times larger or smaller a storage of TVM's planner may be than what takes it over


def storages(live: Liveness, sizes: SizeProofs, aliasing: Aliasing = "elements") -> Laid:
    """Storages for the lifetimes of `live`, in the order of its steps: the plan that `execution="kernels"` runs by.
    What an executable allocates for itself has no storage.

    If sizes are compared for equality, no such plan has fewer bytes: lifetimes of one size form an interval graph,
    which is coloured optimally in the order of their beginnings.
    """
    hidden = {v for s in live.program.steps for v in s.hidden}
    given = [x for x in live.lifetimes if x.values[0] not in hidden]
    return _laid(live.program, given, _Proved(live.program, sizes, aliasing))


def greedy(live: Liveness, sizes: SizeProofs) -> Laid:
    """The storages of TVM's planner: greedy in program order (Relax, Algorithm 3, as in TVM 0.27).

    There is a pool for each dtype. A tensor takes the smallest free storage that is at least as large, up to 16 times
    as large; else the largest free one that is smaller, down to a sixteenth, which grows. Symbolic sizes without a
    bound take a storage of equal size. Outputs are allocated before operands are released, so nothing is done in place.
    """
    alone = liveness(live.program, live.results, sizes.at.keys(), overwriting=False)
    return _laid(live.program, alone.lifetimes, _Growing(live.program, sizes))


def _laid(program: MemoryProgram, lifetimes: Iterable[Lifetime], pool: _Pool) -> Laid:
    """A storage of the pool for each lifetime. At each step those that begin take one, then those that end free
    theirs."""
    begin: dict[int, list[Lifetime]] = {}
    end: dict[int, list[Lifetime]] = {}
    for x in lifetimes:
        begin.setdefault(x.start, []).append(x)
        end.setdefault(x.end, []).append(x)
    places: dict[int, Place] = {}
    for s in program.steps:
        for x in begin.get(s.number, ()):
            places.update(dict.fromkeys(x.values, Place(pool.take(x), Dim.of(0))))
        pool.free += [places[x.values[0]].storage for x in end.get(s.number, ())]
    return tuple(pool.storages), places, tuple(pool.reuses), False


class _Pool(ABC):
    """Storages, those that are free in the order in which they became free, and what was taken over and what not."""

    def __init__(self, program: MemoryProgram, sizes: SizeProofs) -> None:
        self.program, self.sizes = program, sizes
        self.storages: list[Storage] = []
        self.free: list[int] = []
        self.reuses: list[Reuse] = []

    def take(self, x: Lifetime) -> int:
        """The storage for a lifetime that begins."""
        dtype = self.program.values[x.values[0]].annotation.dtype or ""
        n = self.found(x, dtype)
        if n is not None:
            self.free.remove(n)
            return n
        self.storages.append(self.made(x, dtype))
        return len(self.storages) - 1

    def made(self, x: Lifetime, dtype: str) -> Storage:
        """A new storage for a lifetime."""
        return Storage(x.bytes, x.itemsize, dtype)

    @abstractmethod
    def found(self, x: Lifetime, dtype: str) -> int | None:
        """The free storage that a lifetime takes over; None: a new one."""


class _Proved(_Pool):
    """A pool from which a storage is taken if the sizes are proved; of several the one freed last."""

    def __init__(self, program: MemoryProgram, sizes: SizeProofs, aliasing: Aliasing) -> None:
        super().__init__(program, sizes)
        self.aliasing = aliasing
        self.holder: dict[int, int] = {}  # of each storage, the last value in it
        self.told: set[tuple[Dim, Dim]] = set()  # refusals already reported

    def take(self, x: Lifetime) -> int:
        n = super().take(x)
        self.holder[n] = x.values[-1]
        return n

    def found(self, x: Lifetime, dtype: str) -> int | None:
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
            if (why.left, why.right) not in self.told:
                self.told.add((why.left, why.right))
                self.reuses.append(Reuse(x.values[0], self.holder[n], False, why))
        return None


_KINDS: Mapping[str, Callable[[Storage, Lifetime, str], bool]] = {
    "elements": lambda s, x, dtype: s.itemsize == x.itemsize,
    "dtype": lambda s, x, dtype: s.dtype == dtype,
    "bytes": lambda s, x, dtype: True,
    "fits": lambda s, x, dtype: True,
}


class _Growing(_Pool):
    """TVM's pool: bounded sizes count at their largest, and a storage may grow."""

    def made(self, x: Lifetime, dtype: str) -> Storage:
        most = self.sizes.most(x.bytes)
        return Storage(x.bytes if most is None else Dim.of(most), x.itemsize, dtype)

    def found(self, x: Lifetime, dtype: str) -> int | None:
        pool = [n for n in self.free if self.storages[n].dtype == dtype]
        size = self.sizes.most(x.bytes)
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
