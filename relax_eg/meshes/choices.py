"""What is chosen along one axis of a mesh, and what a choice has to keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.extract.profiles.links import Collective
from relax_eg.ir.placements import PARTIAL, REPLICATED, Part
from relax_eg.meshes.strategies import SplitStrategy


@dataclass(frozen=True, slots=True)
class ChosenWay:
    """How a value comes about: the number of the way, and the strategy."""

    way: int
    strategy: SplitStrategy


@dataclass
class AxisChoice:
    """What is chosen along one axis.

    - `chosen`: how each value that is computed comes about.
    - `needed`: the parts in which each value is needed.
    - `outputs`: the part in which each output is handed over.
    - `cost`, `bound`: seconds, and a lower bound on them.
    - `ran_out`: whether the clock ended its search.
    """

    chosen: dict[int, ChosenWay] = field(default_factory=dict[int, ChosenWay])
    needed: dict[int, set[Part]] = field(default_factory=dict[int, set[Part]])
    outputs: list[Part] = field(default_factory=list[Part])
    cost: float = 0.0
    bound: float = 0.0
    ran_out: bool = False

    def part(self, v: int) -> Part:
        """The part in which a value comes about."""
        found = self.chosen.get(v)
        return REPLICATED if found is None else found.strategy.result

    def source(self, v: int, part: Part) -> Part | None:
        """The part from which a value is brought into `part`; None if it comes about there."""
        made = self.part(v)
        if made == part:
            return None
        # A slice of the replicated value costs nothing, if that is there anyway.
        sliced = isinstance(part, int) and REPLICATED in self.needed.get(v, ())
        return REPLICATED if sliced else made


@dataclass(frozen=True)
class Demands:
    """What a choice has to keep.

    - `parts`: given parts of values. Of others than inputs it is where they come about, whole values as sums too.
    - `outputs`: given parts of outputs, by position.
    - `state`: pairs (input, output) of values that have to have the same part.
    - `priced`: values whose bytes in memory have a price.
    - `byte_price`: seconds for each of these bytes on a device. Choices that cost least at a price are those that cost
      least among all that take no more memory; the price is a Lagrange multiplier of the memory of a device.
    - `way`: the only way of each value that may be used; none: all.
    """

    parts: Mapping[int, Part] = field(default_factory=dict[int, Part])
    outputs: Mapping[int, Part] = field(default_factory=dict[int, Part])
    state: Sequence[tuple[int, int]] = ()
    priced: frozenset[int] = frozenset()
    byte_price: float = 0.0
    way: Mapping[int, int] | None = None


def change_of(before: Part, after: Part) -> Collective | None:
    """The collective that brings a value from one part into another; None for a replicated value, of which each device
    takes a slice, or which all devices but one take as zero, for a partial sum."""
    if before == REPLICATED:
        return None
    if before in PARTIAL.values():
        return "all-reduce" if after == REPLICATED else "reduce-scatter"
    return "all-gather" if after == REPLICATED else "all-to-all"


def turns(before: Sequence[Part], after: Sequence[Part], sums_apart: bool) -> list[tuple[int, ...]]:
    """The axes of a mesh along which a value changes its part, in the order in which that happens; those that change at
    once together.

    Sums go first, for a scattered sum has fewer bytes: along the fastest axis, then the next; axes that split the same
    dimension together, and those that are replicated in the end. Then the slowest axis is gathered first, while the
    others still split the value; but of axes that split the same dimension the fastest, whose pieces lie together.

    - `before`, `after`: the parts along each axis.
    - `sums_apart`: whether a sum over one axis may be taken before that over another. Otherwise the partitioner takes
      all at once, and slices the result."""
    moved = [a for a, (p, q) in enumerate(zip(before, after, strict=True)) if p != q]
    summed = [a for a in moved if before[a] in PARTIAL.values()]
    targets = {after[a] for a in summed}
    found: list[tuple[int, ...]] = []
    if summed and not sums_apart:
        found.append(tuple(summed))
    else:
        each = [tuple(a for a in summed if after[a] == t) for t in targets]
        found += sorted(each, key=lambda axes: (not isinstance(after[axes[0]], int), -max(axes)))
    gathered = [a for a in moved if isinstance(before[a], int) and after[a] == REPLICATED]
    found += [(a,) for a in sorted(gathered, key=lambda a: (min(b for b in gathered if before[b] == before[a]), -a))]
    rest = tuple(a for a in moved if a not in summed and a not in gathered)
    return [*found, rest] if rest else found


def after_turns(before: Sequence[Part], after: Sequence[Part], done: Iterable[int]) -> tuple[Part, ...]:
    """The parts along each axis when those in `done` have changed."""
    there = set(done)
    return tuple(q if a in there else p for a, (p, q) in enumerate(zip(before, after, strict=True)))
