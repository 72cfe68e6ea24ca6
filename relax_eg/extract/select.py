"""Selection: the cheapest program in an extraction graph, shared values paid once.

Greedy with swap search. Every seed (the program as written, and the choice that is best when sharing is ignored) is
improved by switching one class at a time to another of its candidates, and all readers of an unused value together
(three matmuls become parts of one only if all three do), as long as the cost of the whole program falls; the best
result wins. So the outcome never costs more than the program as written, and more rules never lose to it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relax_eg.debug import stage
from relax_eg.errors import ExtractionError
from relax_eg.extract.graph import ExtractionGraph

SWAP_PASSES = 8
_GAIN = 1e-12  # seconds: smaller differences are rounding


@dataclass(slots=True)
class Selection:
    """A choice of candidate per class (-1 where the class is not used), its cost, and the program as written's."""

    choice: list[int]
    cost: float
    written_choice: list[int]
    written_cost: float
    seed: str


def check_costs(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> None:
    """ExtractionError unless every cost is a number >= 0 (infinite: not executable)."""
    for c, row in enumerate(costs):
        for k, cost in enumerate(row):
            if math.isnan(cost) or cost < 0:
                raise ExtractionError(
                    f"the cost model gave {cost} for `{graph.candidates[c][k].op}`; a number >= 0 is accepted"
                )


@stage("select")
def select(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> Selection:
    """The cheapest choice found. `costs[c][k]`: seconds of candidate k of class c."""
    check_costs(graph, costs)
    tree = tree_choice(graph, costs)
    unreached = [r for r in graph.roots if tree[r] < 0]
    if unreached:
        ops = sorted({c.op for r in unreached for c in graph.candidates[r]})
        raise ExtractionError(f"no executable program: a result has only candidates {', '.join(ops)} without one")
    written = [w if w >= 0 else t for w, t in zip(graph.as_written, tree, strict=True)]
    written_cost = program_cost(graph, costs, written)
    best: tuple[float, list[int], str] | None = None
    for name, seed in (("as written", written), ("tree-greedy", tree)):
        choice, cost = _swap_search(graph, costs, seed, tree)
        if best is None or cost < best[0] - _GAIN:
            best = (cost, choice, name)
    assert best is not None
    used = used_classes(graph, best[1])
    choice = [k if c in used else -1 for c, k in enumerate(best[1])]
    return Selection(choice, best[0], written, written_cost, best[2])


def tree_choice(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> list[int]:
    """For every class its cheapest candidate when every use is paid in full; -1 where there is none. Acyclic.

    Knuth's generalisation of Dijkstra's algorithm. O(candidates log candidates).
    """
    users: list[list[tuple[int, int]]] = [[] for _ in graph.candidates]
    waiting: dict[tuple[int, int], int] = {}
    heap: list[tuple[float, int, int]] = []
    for c, row in enumerate(graph.candidates):
        for k, candidate in enumerate(row):
            if not math.isfinite(costs[c][k]):
                continue
            children = set(candidate.children)
            waiting[c, k] = len(children)
            for child in children:
                users[child].append((c, k))
            if not children:
                heap.append((costs[c][k], c, k))
    heapq.heapify(heap)
    total = [math.inf] * len(graph.candidates)
    choice = [-1] * len(graph.candidates)
    while heap:
        cost, c, k = heapq.heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c], total[c] = k, cost
        for user in users[c]:
            waiting[user] -= 1
            if waiting[user] == 0 and choice[user[0]] < 0:
                row = graph.candidates[user[0]][user[1]]
                heapq.heappush(heap, (costs[user[0]][user[1]] + sum(total[x] for x in row.children), *user))
    return choice


def used_classes(graph: ExtractionGraph, choice: Sequence[int]) -> set[int]:
    """Classes the roots need under `choice`."""
    seen: set[int] = set()
    stack = list(graph.roots)
    while stack:
        c = stack.pop()
        if c not in seen:
            seen.add(c)
            stack.extend(graph.candidates[c][choice[c]].children)
    return seen


def program_cost(graph: ExtractionGraph, costs: Sequence[Sequence[float]], choice: Sequence[int]) -> float:
    """Sum over the distinct nodes the roots need."""
    return math.fsum(costs[c][choice[c]] for c in used_classes(graph, choice))


class _Program:
    """A choice with reference counts, so that a switch is priced by what it frees and what it needs, and with an order
    of all classes, operands first, so that a switch is known to stay acyclic without looking at the whole program.

    `label[c]` is the place of class `c`: every class stands after the classes its chosen candidate reads.
    """

    def __init__(self, graph: ExtractionGraph, costs: Sequence[Sequence[float]], choice: Sequence[int]) -> None:
        self.graph = graph
        self.costs = costs
        self.choice = list(choice)
        # A value used twice by one node is needed once.
        self.reads = [[tuple(dict.fromkeys(k.children)) for k in row] for row in graph.candidates]
        self.uses = [0] * len(self.choice)
        self.label = [0.0] * len(self.choice)
        self._relabel()
        for r in graph.roots:
            self.add(r)

    def children(self, c: int) -> tuple[int, ...]:
        return self.reads[c][self.choice[c]] if self.choice[c] >= 0 else ()

    def add(self, c: int) -> float:
        """One more use of `c`; the cost of what that newly needs."""
        gained = 0.0
        stack = [c]
        while stack:
            x = stack.pop()
            self.uses[x] += 1
            if self.uses[x] == 1:
                gained += self.costs[x][self.choice[x]]
                stack.extend(self.children(x))
        return gained

    def drop(self, c: int) -> float:
        """One use of `c` less; the cost of what is no longer needed."""
        freed = 0.0
        stack = [c]
        while stack:
            x = stack.pop()
            self.uses[x] -= 1
            if self.uses[x] == 0:
                freed += self.costs[x][self.choice[x]]
                stack.extend(self.children(x))
        return freed

    def above(self, starts: Sequence[int], c: int) -> list[int] | None:
        """The classes under `starts` that do not stand before `c`, operands first; None where `c` is one of them.

        Only these can be in the way of `c` reading `starts`: what stands before `c` does not reach it.
        """
        limit = self.label[c]
        found: dict[int, None] = {}
        for start in starts:
            stack = [(start, 0)]
            while stack:
                x, i = stack.pop()
                if x == c:
                    return None
                if x in found or self.label[x] < limit:
                    continue
                children = self.children(x)
                while i < len(children) and (children[i] in found or self.label[children[i]] < limit):
                    i += 1
                if i < len(children):
                    stack += [(x, i + 1), (children[i], 0)]
                else:
                    found[x] = None
        return list(found)

    def switch(self, c: int, k: int, moved: Sequence[int]) -> float:
        """Let class `c`, which is used, be computed by candidate `k`; the change of the program's cost. `moved`: what
        `above` found under the candidate, which now has to stand before `c`."""
        old = self.children(c)
        change = self.costs[c][k] - self.costs[c][self.choice[c]]
        self.choice[c] = k
        self._move_before(c, moved)
        # New operands first: what both need is never dropped in between.
        change += sum(self.add(x) for x in self.children(c))
        return change - sum(self.drop(x) for x in old)

    def _move_before(self, c: int, moved: Sequence[int]) -> None:
        if not moved:
            return
        inside = set(moved)
        low = max(
            (self.label[y] for x in moved for y in self.children(x) if y not in inside), default=self.label[c] - 1.0
        )
        step = (self.label[c] - low) / (len(moved) + 1)
        if step < 1e-9:
            self._relabel()
            return
        for i, x in enumerate(moved):
            self.label[x] = low + step * (i + 1)

    def _relabel(self) -> None:
        """Places 0, 1, 2, ... for all classes."""
        for place, c in enumerate(self.order(range(len(self.choice)))):
            self.label[c] = float(place)

    def order(self, starts: Iterable[int]) -> list[int]:
        """The classes under `starts`, operands first."""
        position: dict[int, None] = {}
        for start in starts:
            stack = [(start, 0)]
            while stack:
                c, i = stack.pop()
                if c in position:
                    continue
                children = self.children(c)
                while i < len(children) and children[i] in position:
                    i += 1
                if i < len(children):
                    stack += [(c, i + 1), (children[i], 0)]
                else:
                    position[c] = None
        return list(position)


def _swap_search(
    graph: ExtractionGraph, costs: Sequence[Sequence[float]], seed: Sequence[int], fallback: Sequence[int]
) -> tuple[list[int], float]:
    program = _Program(graph, costs, seed)
    for _ in range(SWAP_PASSES):
        improved = False
        for c in reversed(program.order(graph.roots)):
            if program.uses[c] > 0 and _improve(program, c, fallback):
                improved = True
        improved |= _switch_groups(program, fallback)
        if not improved:
            break
    return program.choice, program_cost(graph, costs, program.choice)


def _improve(program: _Program, c: int, fallback: Sequence[int]) -> bool:
    """Switch class `c` to its candidate that lowers the program's cost most, if one does."""
    costs, current = program.costs[c], program.choice[c]
    if len(costs) == 1:
        return False
    old = program.children(c)
    best, best_change, best_moved = current, -_GAIN, list[int]()
    for k, new in enumerate(program.reads[c]):
        if k == current or not math.isfinite(costs[k]) or any(fallback[x] < 0 for x in new):
            continue
        moved = program.above(new, c)
        if moved is None:
            continue
        # New operands first, there and back: only what the two candidates do not share is walked.
        change = costs[k] - costs[current] + sum(map(program.add, new)) - sum(map(program.drop, old))
        for x in old:
            program.add(x)
        for x in new:
            program.drop(x)
        if change < best_change:
            best, best_change, best_moved = k, change, moved
    if best != current:
        program.switch(c, best, best_moved)
    return best != current


def _switch_groups(program: _Program, fallback: Sequence[int]) -> bool:
    """For each value that several used classes could read and none does, switch all of them to it if that pays."""
    readers: dict[int, dict[int, int]] = {}
    for c, row in enumerate(program.reads):
        if program.uses[c] == 0:
            continue
        for k, children in enumerate(row):
            for x in children:
                if program.uses[x] == 0 and fallback[x] >= 0 and math.isfinite(program.costs[c][k]):
                    readers.setdefault(x, {}).setdefault(c, k)
    improved = False
    for value, group in readers.items():
        if len(group) > 1 and program.uses[value] == 0:
            improved |= _switch_group(program, group, fallback)
    return improved


def _switch_group(program: _Program, group: dict[int, int], fallback: Sequence[int]) -> bool:
    """Switch every class of `group` to its candidate; undo it unless the program got cheaper and stays acyclic."""
    before: dict[int, int] = {}
    change = 0.0
    for c, k in group.items():
        children = program.reads[c][k]
        if program.uses[c] == 0 or any(fallback[x] < 0 for x in children):
            continue
        moved = program.above(children, c)
        if moved is not None:
            before[c] = program.choice[c]
            change += program.switch(c, k, moved)
    if change < -_GAIN:
        return True
    for c in reversed(before):
        # Moving operands forward never breaks what held before: the old candidate needs nothing moved.
        program.switch(c, before[c], ())
    return False
