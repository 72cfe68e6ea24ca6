"""The integer program of the placements along one axis of a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relax_eg.integer_program import LinearProgram
from relax_eg.ir.placements import PARTIAL, REPLICATED, Part
from relax_eg.meshes.axis_prices import AxisPrices, cost_of
from relax_eg.meshes.choices import AxisChoice, ChosenWay, Demands
from relax_eg.meshes.program import any_part
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.traversal import grouped

EPSILON = 1e-9  # chosen: seconds: least price of a choice, so that nothing useless is chosen


class AxisProgram(LinearProgram):
    """The integer program. Its integer columns are strategies, and the parts in which outputs are handed over.

    For each operand of each value there is a small transport problem: what comes about in part p is taken in part q.
    All operands that take a value from p in q share one change of part, which is paid once; what is sliced may come
    from the replicated value, if that is there. These problems make the linear relaxation consistent along each edge
    of the program, without which its bound is a tenth of the optimum.
    """

    def __init__(self, prices: AxisPrices, demands: Demands) -> None:
        super().__init__()
        self.prices, self.demands = prices, demands
        self.seconds: list[float] = []  # of each column
        self.held: list[tuple[int, float]] = []  # the bytes of each column on a device, and of which value
        self.beside: dict[tuple[int, Part], float] = {}
        program = prices.program
        self.computed: list[list[tuple[int, ChosenWay]]] = []  # columns of the strategies of a value
        inputs = set(program.inputs)
        for v, value in enumerate(program.values):
            mine: list[tuple[int, ChosenWay]] = []
            for j, way in enumerate(value.ways):
                if demands.way is not None and demands.way.get(v, j) != j:
                    continue
                for s in way.strategies_along(prices.axis):
                    if self._allowed(v, s, v in inputs):
                        seconds = value.times * (prices.strategy_seconds(v, way, s) + prices.passed(v, way, s)[2])
                        seconds += value.times * self._least_beside(v, s.result)
                        seconds += EPSILON * (1 + s.passes)  # of equals, sums that end early
                        column = self._column(seconds, v, self._bytes(v, s.result))
                        mine.append((column, ChosenWay(j, s)))
            self.computed.append(mine)
        self.handed: list[dict[Part, int]] = []  # columns of the part in which each output is handed over
        handed: dict[tuple[int, Part | None], dict[Part, int]] = {}
        for position, v in enumerate(program.outputs):
            given = demands.outputs.get(position)
            if (known := handed.get((v, given))) is not None:
                self.handed.append(known)
                continue
            parts = [p for p in any_part(program.values[v].rank) if prices.divides(v, p)]
            self.handed.append({p: self._column(0.0) for p in parts if given is None or p == given})
            handed[v, given] = self.handed[-1]
        self.integers = list(range(len(self.seconds)))
        self.made = [grouped((c.strategy.result, i) for i, c in mine) for mine in self.computed]
        for v, mine in enumerate(self.computed):
            if mine:
                least = 1.0 if v in inputs else 0.0  # an input that nothing reads has a placement too
                self.row([i for i, _ in mine], [1.0] * len(mine), least, 1.0)
        self.changes: dict[tuple[int, Part, Part], int] = {}
        for v, taken, stays in self.edges():
            if not program.values[v].is_free:
                self._add_edge(v, taken, stays)
        for columns in {id(h): h for h in self.handed}.values():
            self.row(list(columns.values()), [1.0] * len(columns), 1.0)
        self.price(demands)

    def price(self, demands: Demands) -> None:
        """Prices the columns as `demands` say, which differ from those before in the price of a byte alone."""
        self.demands = demands
        costs = [
            s + (demands.byte_price * n if n and v in demands.priced else 0.0)
            for s, (v, n) in zip(self.seconds, self.held, strict=True)
        ]
        largest = max(costs, default=1.0)
        self.unit = largest if largest > 0 else 1.0
        self.costs = [c / self.unit for c in costs]

    def _column(self, seconds: float, v: int = -1, held: float = 0.0) -> int:
        self.seconds.append(seconds)
        self.held.append((v, held))
        return len(self.seconds) - 1

    def _allowed(self, v: int, s: SplitStrategy, is_input: bool) -> bool:
        if self.prices.program.values[v].is_free:
            return False
        given = self.demands.parts.get(v)
        if is_input:
            return s.result == given if given is not None else self.prices.divides(v, s.result)
        if given is not None and s.result != given and (given != REPLICATED or s.passes or isinstance(s.result, int)):
            return False
        return self.prices.has_room(v, s.result) and self.prices.fits(v, s)

    def edges(self) -> Iterator[tuple[int, dict[Part, list[int]], bool]]:
        """Yields each value that something takes, with the columns that take it in each part, and whether it has to
        stay where it is."""
        program = self.prices.program
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

    def moves(self, v: int, parts: Iterable[Part], stays: bool) -> Iterator[tuple[Part, Part]]:
        """Yields each part in which a value may come about with each of `parts` in which it may then be taken.

        `stays`: whether it has to stay where it is."""
        ways = self.prices.program.values[v].ways
        made = [c for c in dict(self.computed[v]).values() if c.strategy.result in PARTIAL.values()]
        stays_partial = all(self.prices.keeps_sum(v, ways[c.way], c.strategy) for c in made)
        room = {p: self.prices.has_room(v, p) for p in parts}
        for before, after in itertools.product(self.made[v], room):
            if before == after:
                is_possible = before not in PARTIAL.values() or stays_partial
            else:
                waits = after in PARTIAL.values() or (stays and isinstance(before, int))
                is_possible = room[after] and (before == REPLICATED or not waits)
            if is_possible:
                yield before, after

    def _add_edge(self, v: int, taken: Mapping[Part, list[int]], stays: bool) -> None:
        arrives: dict[Part, list[int]] = {p: [] for p in taken}
        leaves: dict[Part, list[int]] = {p: [] for p in self.made[v]}
        for before, after in self.moves(v, taken, stays):
            moved = self._column(0.0)
            leaves[before].append(moved)
            arrives[after].append(moved)
            if after != before:
                ways = [self._change(v, before, after)]
                if isinstance(after, int) and before != REPLICATED:
                    ways.append(self._change(v, before, REPLICATED))
                self.row([*ways, moved], [*[1.0] * len(ways), -1.0], 0.0)
        for before, columns in self.made[v].items():
            if leaves[before]:
                self.row([*columns, *leaves[before]], [*[1.0] * len(columns), *[-1.0] * len(leaves[before])], 0.0)
        for after, columns in taken.items():
            came = arrives[after]
            self.row([*came, *columns], [*[1.0] * len(came), *[-1.0] * len(columns)], 0.0)

    def _change(self, v: int, before: Part, after: Part) -> int:
        """The column of a change of the part of a value."""
        found = self.changes.get((v, before, after))
        if found is None:
            seconds = self.prices.change_seconds(v, before, after) + self.prices.beside_seconds(v, before, after)
            seconds = self.prices.program.values[v].times * (seconds - self._least_beside(v, before))
            held = self._bytes(v, after) if isinstance(before, int) and after == REPLICATED else 0.0
            found = self.changes[v, before, after] = self._column(seconds + EPSILON, v, held)
        return found

    def _least_beside(self, v: int, part: Part) -> float:
        """The least seconds of what other axes send to change their parts of a value that comes about in `part`."""
        found = self.beside.get((v, part))
        if found is None:
            parts = dict.fromkeys((part, *any_part(self.prices.program.values[v].rank)))
            found = self.beside[v, part] = min(self.prices.beside_seconds(v, part, p) for p in parts)
        return found

    def _bytes(self, v: int, part: Part) -> float:
        """Bytes of a value in a part on each device."""
        return self.prices.change_bytes(v, part) / (self.prices.n if isinstance(part, int) else 1)

    def forbid(self, circle: Sequence[int]) -> None:
        """Forbids that these values are computed from each other in a circle."""
        columns: list[int] = []
        inside = set(circle)
        for v in circle:
            value = self.prices.program.values[v]
            columns += [i for i, c in self.computed[v] if inside & set(value.ways[c.way].children)]
        self.row(columns, [-1.0] * len(columns), 1.0 - len(circle))

    def choice_of(self, columns: Sequence[float] | np.ndarray[Any, Any]) -> AxisChoice:
        """The choice of a solution: what its outputs need of it."""
        program = self.prices.program
        picked: dict[int, ChosenWay] = {}
        for v, mine in enumerate(self.computed):
            best = max(mine, key=lambda entry: columns[entry[0]], default=None)
            if best is not None and columns[best[0]] > 0.5:  # given: integers, but for rounding
                picked[v] = best[1]
        found = AxisChoice()
        tied = grouped((*program.tied, *self.demands.state))
        work: list[tuple[int, Part]] = []
        states = {b: a for a, b in self.demands.state}
        for position, (v, handed) in enumerate(zip(program.outputs, self.handed, strict=True)):
            part = max(handed, key=lambda p: columns[handed[p]])
            if v in states and position not in self.demands.outputs:
                part = picked[states[v]].strategy.result  # in which it is needed anyway
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
        found.cost = cost_of(self.prices, found)
        return found

    def priced(self, choice: AxisChoice) -> float:
        """Seconds of a choice, with the price of the bytes that it holds."""
        held = 0.0
        for v in self.demands.priced & choice.chosen.keys():
            held += self._bytes(v, choice.part(v))
            if isinstance(choice.part(v), int) and REPLICATED in choice.needed.get(v, ()):
                held += self._bytes(v, REPLICATED)
        return choice.cost + self.demands.byte_price * held

    def columns_of(self, choice: AxisChoice) -> np.ndarray:
        """The columns of a choice, as far as they are integers."""
        first = np.zeros(len(self.seconds))
        for v, chosen in choice.chosen.items():
            for i, c in self.computed[v]:
                if c == chosen:
                    first[i] = 1.0
        for handed, part in zip(self.handed, choice.outputs, strict=False):
            if part in handed:  # else the other axes split that dimension by now
                first[handed[part]] = 1.0
        return first
