"""A lower bound by dual ascent, and the cuts whose sum it is.

The distance of a candidate is its remaining cost plus the distance of its most distant operand. The distance of a class
is that of its nearest candidate. While a root has a positive distance, the classes through which the most distant root
is reached at no cost are a cut (`loops`): every choice takes one of the candidates that enter them. The cost of the
cheapest of these candidates is subtracted from all of them and added to the bound. In planning this is the LM-cut
heuristic of Helmert and Domshlak (2009); for plain graphs it is Wong's dual ascent for Steiner trees (1984). It takes
as long as a few greedy choices; the relaxation takes minutes to find such cuts.
"""

from __future__ import annotations

import heapq
import math
import time

from relax_eg.extract.selection.loops import Loop
from relax_eg.extract.selection.problem import Problem

_ROUNDING = 1e-10  # chosen: share of the roots' distance: smaller remainders are rounding errors of subtraction


def ascent(problem: Problem, until: float = math.inf) -> tuple[float, list[Loop]]:
    """A lower bound on the cost of any choice, and the cuts that prove it. All classes must be computable at finite
    costs.

    O(cuts x classes whose distance a cut changes); there are at most as many cuts as candidates.

    - `until`: latest end (`time.monotonic`).
    """
    return _Ascent(problem).run(until)


class _Ascent:
    def __init__(self, problem: Problem) -> None:
        self.roots = set(problem.roots)
        # One additional class, which reads all roots.
        self.top = len(problem.reads)
        rows = [*problem.reads, [problem.roots]]
        self.first = [0]
        self.owner: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        for c, row in enumerate(rows):
            self.owner += [c] * len(row)
            self.reads += row
            self.first.append(len(self.owner))
        self.left = [x for row in problem.costs for x in row] + [0.0]  # remaining cost of each candidate
        self.users: list[list[int]] = [[] for _ in rows]
        for j, reads in enumerate(self.reads):
            for x in reads:
                self.users[x].append(j)
        self.away = [math.inf] * len(rows)
        self._lower_distances([j for j, reads in enumerate(self.reads) if not reads])
        self.least = _ROUNDING * self.away[self.top]

    def run(self, until: float) -> tuple[float, list[Loop]]:
        gained: list[float] = []
        loops: list[Loop] = []
        while self.away[self.top] > self.least and time.monotonic() < until:
            inside = self._cut_classes()
            entering = self._cut_candidates(inside)
            step = min(self.left[j] for j in entering)
            gained.append(step)
            inside.remove(self.top)
            loops.append(Loop(frozenset(inside), min(inside & self.roots)))
            for j in entering:
                rest = self.left[j] - step
                self.left[j] = rest if rest > self.least else 0.0
            self._lower_distances(entering)
        return math.fsum(gained), loops

    def _lower_distances(self, changed: list[int]) -> None:
        """Lowers the distances of the classes of the candidates `changed`, which became cheaper, and of all readers."""
        away, left, reads, owner = self.away, self.left, self.reads, self.owner
        heap: list[tuple[float, int]] = []
        for j in changed:
            distance = left[j] + max([away[x] for x in reads[j]], default=0.0)
            if distance < away[owner[j]]:
                heap.append((distance, owner[j]))
        heapq.heapify(heap)
        while heap:
            distance, c = heapq.heappop(heap)
            if distance >= away[c]:
                continue
            away[c] = distance
            for j in self.users[c]:
                o = owner[j]
                if left[j] + distance < away[o]:
                    further = left[j] + max([away[x] for x in reads[j]])
                    if further < away[o]:
                        heapq.heappush(heap, (further, o))

    def _cut_classes(self) -> set[int]:
        """The classes from which the top is reached at no cost if every candidate is entered through its most distant
        operand."""
        inside = {self.top}
        stack = [self.top]
        while stack:
            c = stack.pop()
            for j in range(self.first[c], self.first[c + 1]):
                if self.left[j] == 0.0 and inside.isdisjoint(self.reads[j]):
                    x = max(self.reads[j], key=self.away.__getitem__)
                    inside.add(x)
                    stack.append(x)
        return inside

    def _cut_candidates(self, inside: set[int]) -> list[int]:
        """The candidates of the classes `inside` that read none of them."""
        return [
            j
            for c in sorted(inside)
            for j in range(self.first[c], self.first[c + 1])
            if inside.isdisjoint(self.reads[j])
        ]
