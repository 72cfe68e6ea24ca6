"""Placements along one axis of a mesh, chosen together with the algebra: an integer program for HiGHS.

Each value is computed in at most one way and by one strategy, so it comes about in one part. A collective brings it
into other parts, each paid once however many operators read it; to slice a replicated value costs no collective.

The objective is that of the whole mesh with the choice for its other axes fixed. Where that is not made yet, they are
taken to divide everything and to send nothing, so the value is a lower bound on what any choice for them can reach.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_eg.errors import ExtractionError
from relax_eg.extract.ilp import Row, branch, relaxation
from relax_eg.extract.links import Collective, Link
from relax_eg.extract.profile import Profile
from relax_eg.ir.placements import PARTIAL, REPLICATED, Part
from relax_eg.meshes.program import SpreadProgram, ValueWay, any_part
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.shapes import Dim, Scope

_GAP = 5e-3  # limit: prices are not accurate to a thousandth
_NODES = 2000  # limit: nodes of one search of HiGHS
_CUTS = 20  # limit: searches repeated because a value depended on itself
_EPSILON = 1e-9  # chosen: seconds: least price of a choice, so that nothing useless is chosen


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
    """

    chosen: dict[int, ChosenWay] = field(default_factory=dict[int, ChosenWay])
    needed: dict[int, set[Part]] = field(default_factory=dict[int, set[Part]])
    outputs: list[Part] = field(default_factory=list[Part])
    cost: float = 0.0
    bound: float = 0.0

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

    - `inputs`: given parts of inputs, by value.
    - `outputs`: given parts of outputs, by position.
    - `state`: pairs (input, output) of values that have to have the same part.
    - `priced`: values whose bytes in memory have a price.
    - `byte_price`: seconds for each of these bytes on a device. Choices that cost least at a price are those that cost
      least among all that take no more memory; the price is a Lagrange multiplier of the memory of a device.
    - `way`: the only way of each value that may be used; none: all.
    """

    inputs: Mapping[int, Part] = field(default_factory=dict[int, Part])
    outputs: Mapping[int, Part] = field(default_factory=dict[int, Part])
    state: Sequence[tuple[int, int]] = ()
    priced: frozenset[int] = frozenset()
    byte_price: float = 0.0
    way: Mapping[int, int] | None = None


def change_of(before: Part, after: Part) -> Collective | None:
    """The collective that brings a value from one part into another; None for a slice of a replicated value."""
    if before == REPLICATED:
        return None
    if before in PARTIAL.values():
        return "all-reduce" if after == REPLICATED else "reduce-scatter"
    return "all-gather" if after == REPLICATED else "all-to-all"


class AxisSearch:
    """The search along one axis.

    - `program`: the program.
    - `axis`: the number of the axis.
    - `size`, `link`: the number of devices along the axis, and the link over which they send.
    - `profile`: of one device.
    - `binding`, `scope`: the sizes at which prices hold, and what is known of all sizes.
    - `others`: the choices for the other axes, with their sizes; None where one is not made yet.
    - `later`: those of them that come after this axis in the mesh.
    """

    def __init__(
        self,
        program: SpreadProgram,
        axis: int,
        size: int,
        link: Link,
        profile: Profile,
        binding: Mapping[str, int],
        scope: Scope,
        others: Sequence[tuple[AxisChoice | None, int]],
        later: Sequence[tuple[AxisChoice | None, int]] = (),
    ) -> None:
        self.program, self.axis, self.n, self.link, self.profile = program, axis, size, link, profile
        self.binding, self.scope, self.others, self.later = binding, scope, others, later

    # --- prices, given the other axes ---

    def divided(self, v: int, part: Part | None = None) -> float:
        """Into how many pieces the other axes split a value where it comes about."""
        found = 1.0
        for choice, n in self.others:
            if choice is None or isinstance(choice.part(v), int):
                found *= n
        return found

    def strategy_seconds(self, v: int, way: ValueWay, s: SplitStrategy) -> float:
        """Seconds of one run of a way by a strategy, on each device."""
        if not way.cost.seconds:
            return 0.0
        value = self.program.values[v]
        split = 1.0
        pieces = [1.0] * (len(way.children) + 1)  # of the operands, then of the result
        for choice, n in self.others:
            chosen = None if choice is None else choice.chosen.get(v)
            if choice is None or (chosen is not None and not chosen.strategy.whole):
                split *= n
            parts = s.operands if chosen is None else chosen.strategy.operands
            for i, p in enumerate((*parts, s.result if chosen is None else chosen.strategy.result)[: len(pieces)]):
                if choice is None or isinstance(p, int):
                    pieces[i] *= n
        if not s.whole:
            split *= self.n / self._imbalance(s)
            for i, p in enumerate((*s.operands, s.result)):
                pieces[i] *= self.n if isinstance(p, int) else 1
        sizes = [*(self.program.values[c].bytes for c in way.children), value.bytes]
        here = sum(b / d for b, d in zip(sizes, pieces, strict=True)) / max(1.0, sum(sizes))
        cost, launch = way.cost, float(way.cost.launches) * self.profile.launch
        work = max(0.0, float(cost.seconds) - launch)
        moving = min(work, float(cost.bytes) / self.profile.bandwidth)
        return min(float(cost.seconds), launch) + max(work / split, moving * here)

    def _imbalance(self, s: SplitStrategy) -> float:
        """How much more the device with most places has than an equal share."""
        return self._padded(s.extents[0]) if s.extents else 1.0

    def _padded(self, size: Dim) -> float:
        """How much longer a dimension of this size is if it is padded to equal pieces."""
        d = float(size.evaluate(self.binding))
        return math.ceil(d / self.n) * self.n / max(1.0, d)

    def change_bytes(self, v: int, *parts: Part) -> float:
        """Bytes of a value over one group of this axis, with those that pad it where it is split in these parts."""
        full = self.program.values[v].bytes / self.divided(v)
        for p in set(parts):
            if isinstance(p, int):
                full *= self._padded(self.program.values[v].shape[p])
        return full

    def change_seconds(self, v: int, before: Part, after: Part) -> float:
        """Seconds of one change of the part of a value."""
        kind, full = change_of(before, after), self.change_bytes(v, before, after)
        if kind is None:
            return full / self.n / self.profile.bandwidth
        seconds = self.link.seconds(kind, self.n, full)
        # XLA's partitioner gathers what is split over a faster axis too, and takes the new part of that.
        around = math.prod(
            n for choice, n in self.later if choice is not None and choice.part(v) in (before, after)
            and isinstance(choice.part(v), int)
        )  # fmt: skip
        return seconds if around == 1 else seconds + self.link.seconds("all-gather", self.n * around, full * around)

    def halo_bytes(self, way: ValueWay, s: SplitStrategy) -> float:
        """Bytes that each device gets from a neighbour to compute a value by a strategy."""
        if not s.halo:
            return 0.0
        rows = float(s.extents[0].evaluate(self.binding))
        return self.program.values[way.children[0]].bytes / self.divided(way.children[0]) * s.halo / rows

    def halo_seconds(self, way: ValueWay, s: SplitStrategy) -> float:
        """Seconds of what neighbours send for one run of a way by a strategy."""
        return self.link.seconds("collective-permute", self.n, self.halo_bytes(way, s))

    # --- what is possible ---

    def fits(self, v: int, s: SplitStrategy) -> bool:
        """Whether every device gets a place along each size that a strategy splits, and merged axes are divided
        without rest, as is proved for all sizes."""
        n = self.n
        for choice, k in self.others:
            chosen = None if choice is None else choice.chosen.get(v)
            n *= k if chosen is not None and chosen.strategy == s else 1
        if s.merged is not None and not self.scope.equal(s.merged % n, 0):
            return False
        if s.halo and s.halo * n > int(s.extents[0].evaluate(self.binding)):
            return False  # more than the neighbour has
        return all(int(d.evaluate(self.binding)) >= n and self._at_least(d, n) for d in s.extents)

    def _at_least(self, d: Dim, n: int) -> bool:
        low, _ = self.scope.interval(d)
        return not d.variables or (low is not None and low >= n) or self.scope.equal(d % n, 0) is True

    def has_room(self, v: int, part: Part) -> bool:
        """Whether a value has a place for every device in a part, with the other axes that split the same dimension."""
        if not isinstance(part, int):
            return True
        n = self.n
        for choice, k in self.others:
            n *= k if choice is not None and (choice.part(v) == part or part in choice.needed.get(v, ())) else 1
        return int(self.program.values[v].shape[part].evaluate(self.binding)) >= n

    def divides(self, v: int, part: Part) -> bool:
        """Whether the pieces of an input or output are equal for all sizes, as JAX needs."""
        if not isinstance(part, int):
            return part == REPLICATED
        n = self.n
        for choice, k in self.others:
            n *= k if choice is not None and choice.part(v) == part else 1
        d = self.program.values[v].shape[part]
        return self.scope.equal(d % n, 0) is True and int(d.evaluate(self.binding)) >= n

    # --- the integer program ---

    def run(self, demands: Demands, seconds: float, start: AxisChoice | None = None) -> AxisChoice:
        """The cheapest choice found. ExtractionError if there is none."""
        model = _Model(self, demands)
        deadline = time.monotonic() + seconds
        for _ in range(_CUTS):
            solver = relaxation(model.costs, model.rows, model.upper)
            first = model.columns_of(start) if start is not None else np.zeros(len(model.costs))
            found = branch(solver, model.integers, first, _GAP, _NODES, deadline)
            if found.values is None:  # HiGHS may need long for a first solution; that nothing is split is one
                first = model.columns_of(self._whole(demands))
                found = branch(solver, model.integers, first, _GAP, _NODES, max(deadline, time.monotonic() + seconds))
            if found.values is None:
                raise ExtractionError(
                    f"no placement over {self.n} devices keeps what is demanded\n  accepted: other given placements, a "
                    "larger memory_limit, or more devices"
                )
            choice = model.choice_of(found.values)
            circle = self._circle(choice)
            if not circle:
                choice.bound = max(0.0, min(found.bound * model.unit, choice.cost)) if not demands.byte_price else 0.0
                return choice
            model.forbid(circle, choice)
        raise ExtractionError("every choice found computes a value from itself; please report this")

    def _whole(self, demands: Demands) -> AxisChoice:
        """The choice that splits only what has to be split: every value is computed as on one device."""
        program, found = self.program, AxisChoice()
        tied: dict[int, list[int]] = {}
        for a, b in program.tied:
            tied.setdefault(a, []).append(b)
        stack = [*program.outputs, *program.inputs]
        while stack:
            v = stack[-1]
            if v in found.chosen:
                stack.pop()
                continue
            value = program.values[v]
            taken = program.graphs[value.function].taken.get(value.number, -1)
            j = next((i for i, w in enumerate(value.ways) if w.candidate == taken), 0)
            j = j if demands.way is None else demands.way.get(v, j)
            way = value.ways[j] if 0 <= j < len(value.ways) else None
            if way is None or value.is_free:
                found.chosen[v] = ChosenWay(0, SplitStrategy((), REPLICATED))
                stack.pop()
                continue
            waiting = [c for c in way.children if c not in found.chosen and c not in stack]
            if waiting:
                stack += waiting
                continue
            given = demands.inputs.get(v)
            if v in program.staying and way.children:  # as its argument is
                made = found.part(way.children[0])
                given = next((s.result for s in way.strategies if s.operands[:1] == (made,)), None)
            every = way.strategies_along(self.axis)
            found.chosen[v] = ChosenWay(j, next((s for s in every if s.result == given), every[0]))
            stack.pop()
            stack += [b for b in tied.get(v, ()) if b not in found.chosen]
        return found

    def _circle(self, choice: AxisChoice) -> list[int]:
        """Values that depend on each other in a circle under a choice; empty if there are none."""
        state: dict[int, int] = {}
        for start in choice.chosen:
            path, stack = list[int](), [start]
            while stack:
                v = stack[-1]
                if state.get(v, 0) == 0:
                    state[v] = 1
                    path.append(v)
                    for c in self.program.values[v].ways[choice.chosen[v].way].children if v in choice.chosen else ():
                        if state.get(c, 0) == 1:
                            return path[path.index(c) :]
                        if c not in state:
                            stack.append(c)
                else:
                    stack.pop()
                    if state[v] == 1:
                        state[v] = 2
                        path.pop()
        return []


class _Model:
    """The integer program. Its integer columns are strategies, and the parts in which outputs are handed over.

    For each operand of each value there is a small transport problem: what comes about in part p is taken in part q.
    All operands that take a value from p in q share one change of part, which is paid once; what is sliced may come
    from the replicated value, if that is there. These problems make the linear relaxation consistent along each edge
    of the program, without which its bound is a tenth of the optimum.
    """

    def __init__(self, search: AxisSearch, demands: Demands) -> None:
        self.search, self.demands = search, demands
        self.costs: list[float] = []
        self.rows: list[Row] = []
        self.upper: list[float] = []
        program = search.program
        self.computed: list[list[tuple[int, ChosenWay]]] = []  # columns of the strategies of a value
        inputs = set(program.inputs)
        for v, value in enumerate(program.values):
            mine: list[tuple[int, ChosenWay]] = []
            for j, way in enumerate(value.ways):
                if demands.way is not None and demands.way.get(v, j) != j:
                    continue
                for s in way.strategies_along(search.axis):
                    if self._allowed(v, s, v in inputs):
                        seconds = value.times * (search.strategy_seconds(v, way, s) + search.halo_seconds(way, s))
                        seconds += self._memory_price(v, s.result)
                        mine.append((self._column(seconds + _EPSILON), ChosenWay(j, s)))
            self.computed.append(mine)
        self.handed: list[dict[Part, int]] = []  # columns of the part in which each output is handed over
        for position, v in enumerate(program.outputs):
            given = demands.outputs.get(position)
            parts = [p for p in any_part(program.values[v].rank) if search.divides(v, p)]
            self.handed.append({p: self._column(0.0) for p in parts if given is None or p == given})
        self.integers = list(range(len(self.costs)))
        self.made: list[dict[Part, list[int]]] = [{} for _ in program.values]
        for v, mine in enumerate(self.computed):
            for i, c in mine:
                self.made[v].setdefault(c.strategy.result, []).append(i)
            if mine:
                least = 1.0 if v in inputs else 0.0  # an input that nothing reads has a placement too
                self._row([i for i, _ in mine], [1.0] * len(mine), least, 1.0)
        self.changes: dict[tuple[int, Part, Part], int] = {}
        for v, taken, stays in self._edges():
            if not program.values[v].is_free:
                self._add_edge(v, taken, stays)
        for handed in self.handed:
            self._row(list(handed.values()), [1.0] * len(handed), 1.0)
        largest = max(self.costs, default=1.0)
        self.unit = largest if largest > 0 else 1.0
        self.costs = [c / self.unit for c in self.costs]

    def _column(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _row(self, columns: Sequence[int], values: Sequence[float], low: float, high: float = math.inf) -> None:
        self.rows.append((list(columns), list(values), low))
        self.upper.append(high)

    def _allowed(self, v: int, s: SplitStrategy, is_input: bool) -> bool:
        if self.search.program.values[v].is_free:
            return False
        if is_input:
            given = self.demands.inputs.get(v)
            return s.result == given if given is not None else self.search.divides(v, s.result)
        return self.search.has_room(v, s.result) and self.search.fits(v, s)

    def _edges(self) -> Iterator[tuple[int, dict[Part, list[int]], bool]]:
        """Yields each value that something takes, with the columns that take it in each part, and whether it has to
        stay where it is."""
        program = self.search.program
        for v, value in enumerate(program.values):
            slots: dict[tuple[int, int], dict[Part, list[int]]] = {}
            for i, chosen in self.computed[v]:
                way = value.ways[chosen.way]
                for slot, (x, p) in enumerate(zip(way.children, chosen.strategy.operands, strict=True)):
                    slots.setdefault((x, way.children[:slot].count(x)), {}).setdefault(p, []).append(i)
            for (x, _), taken in slots.items():
                yield x, taken, v in program.staying
        for v, handed in zip(program.outputs, self.handed, strict=True):
            yield v, {p: [i] for p, i in handed.items()}, False
        for parameter, source in (*program.tied, *self.demands.state):
            yield source, self.made[parameter], False

    def _add_edge(self, v: int, taken: Mapping[Part, list[int]], stays: bool) -> None:
        arrives: dict[Part, list[int]] = {p: [] for p in taken}
        for before, columns in self.made[v].items():
            leaves: list[int] = []
            for after in taken:
                sends = after != before and before != REPLICATED
                if (after != before and after in PARTIAL.values()) or (stays and sends and isinstance(before, int)):
                    continue
                if after != before and not self.search.has_room(v, after):
                    continue
                moved = self._column(0.0)
                leaves.append(moved)
                arrives[after].append(moved)
                if after != before:
                    ways = [self._change(v, before, after)]
                    if isinstance(after, int) and before != REPLICATED:
                        ways.append(self._change(v, before, REPLICATED))
                    self._row([*ways, moved], [*[1.0] * len(ways), -1.0], 0.0)
            if leaves:
                self._row([*columns, *leaves], [*[1.0] * len(columns), *[-1.0] * len(leaves)], 0.0)
        for after, columns in taken.items():
            came = arrives[after]
            self._row([*came, *columns], [*[1.0] * len(came), *[-1.0] * len(columns)], 0.0)

    def _change(self, v: int, before: Part, after: Part) -> int:
        """The column of a change of the part of a value."""
        found = self.changes.get((v, before, after))
        if found is None:
            seconds = self.search.program.values[v].times * self.search.change_seconds(v, before, after)
            if isinstance(before, int) and after == REPLICATED:
                seconds += self._memory_price(v, after)
            found = self.changes[v, before, after] = self._column(seconds + _EPSILON)
        return found

    def _memory_price(self, v: int, part: Part) -> float:
        """The price of the bytes of a value in a part on each device."""
        if v not in self.demands.priced:
            return 0.0
        held = self.search.change_bytes(v, part) / (self.search.n if isinstance(part, int) else 1)
        return self.demands.byte_price * held

    def forbid(self, circle: Sequence[int], choice: AxisChoice) -> None:
        """Forbids that these values are computed from each other in a circle."""
        columns: list[int] = []
        inside = set(circle)
        for v in circle:
            value = self.search.program.values[v]
            columns += [i for i, c in self.computed[v] if inside & set(value.ways[c.way].children)]
        self._row(columns, [-1.0] * len(columns), 1.0 - len(circle))

    def choice_of(self, columns: Sequence[float]) -> AxisChoice:
        """The choice of a solution: what its outputs need of it."""
        program = self.search.program
        picked: dict[int, ChosenWay] = {}
        for v, mine in enumerate(self.computed):
            best = max(mine, key=lambda entry: columns[entry[0]], default=None)
            if best is not None and columns[best[0]] > 0.5:  # given: integers, but for rounding
                picked[v] = best[1]
        found = AxisChoice()
        tied: dict[int, list[int]] = {}
        for a, b in (*program.tied, *self.demands.state):
            tied.setdefault(a, []).append(b)
        work: list[tuple[int, Part]] = []
        for v, handed in zip(program.outputs, self.handed, strict=True):
            part = max(handed, key=lambda p: columns[handed[p]])
            found.outputs.append(part)
            work.append((v, part))
        work += [(v, picked[v].strategy.result) for v in program.inputs]
        while work:
            v, p = work.pop()
            if program.values[v].is_free:
                found.chosen.setdefault(v, ChosenWay(0, SplitStrategy((), REPLICATED)))
                continue
            if p in found.needed.setdefault(v, set()):
                continue
            found.needed[v].add(p)
            if v in found.chosen:
                continue
            chosen = found.chosen[v] = picked[v]
            work += list(zip(program.values[v].ways[chosen.way].children, chosen.strategy.operands, strict=True))
            work += [(b, chosen.strategy.result) for b in tied.get(v, ())]
        found.cost = cost_along(self.search, found)
        return found

    def columns_of(self, choice: AxisChoice) -> np.ndarray:
        """The columns of a choice, as far as they are integers."""
        first = np.zeros(len(self.costs))
        for v, chosen in choice.chosen.items():
            for i, c in self.computed[v]:
                if c == chosen:
                    first[i] = 1.0
        return first


def cost_along(search: AxisSearch, choice: AxisChoice) -> float:
    """Seconds of a choice: all computation, and the collectives along this axis."""
    total = 0.0
    for v, chosen in choice.chosen.items():
        value = search.program.values[v]
        way = value.ways[chosen.way]
        total += value.times * search.strategy_seconds(v, way, chosen.strategy)
        total += value.times * search.halo_seconds(way, chosen.strategy)
        for part in choice.needed.get(v, ()):
            before = choice.source(v, part)
            if before is not None:
                total += value.times * search.change_seconds(v, before, part)
    return total
