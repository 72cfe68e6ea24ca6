"""Cuts that tie the use of a class to the classes from which it is computed.

Take a set of classes. If one of them, t, is used, then the class of the set that is computed first has a chosen
candidate that reads none of the set. So

    sum of (candidates of classes in the set that read none of the set)  >=  t is used

for every choice without cycles. In answer set programming these are the loop formulas of Lin and Zhao (2004), in
planning landmarks; for a plain graph they are the cuts of the directed Steiner tree. There are exponentially many, so
cuts that a fractional solution violates are found one by one. A class is *founded* to the share that the taken
candidates compute it from classes without operands. For each candidate only one read is considered: the class that is
founded least. In the remaining graph, a maximum flow finds a minimum cut before t.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.extract.selection.problem import Problem

_UNIT = 1_000_000  # chosen: a flow of 1, so that capacities are integers
VIOLATED = 2e-3  # chosen: share of a class by which its use has to exceed its foundation
_ROUNDS = 400  # limit: rounds of founding; each goes one read deeper
_NESTED = 4  # limit: cuts for one target
_SEEN = 1  # limit: cuts that contain a class, from which on the class is no target
_WORK = 6_000_000  # limit: arcs visited in one call
_SETTLED = 1e-6  # chosen: share of a class: least gain of a round of founding
_SHUFFLED = 1e-3  # chosen: share of a class: random noise that orders equal reads
_SOONER = 0.3  # chosen: share of a class: random noise on the order of targets

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Loop:
    """A cut.

    - `classes`: the set of classes.
    - `target`: the class of the set whose use the cut bounds.
    """

    classes: frozenset[int]
    target: int


class Loops:
    """Finds violated cuts of `problem`. Candidates are numbered class by class."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.owner = np.array([c for c, row in enumerate(problem.reads) for _ in row], dtype=np.int64)
        self.first = np.concatenate([[0], np.cumsum([len(row) for row in problem.reads])]).astype(np.int64)
        rows = [reads for row in problem.reads for reads in row]
        # A candidate without reads reads an additional class that is always founded.
        self.always = len(problem.reads)
        self.reads = np.array([x for reads in rows for x in (reads or (self.always,))], dtype=np.int64)
        self.start = np.concatenate([[0], np.cumsum([max(1, len(reads)) for reads in rows])]).astype(np.int64)
        self.rng = np.random.default_rng(0)

    def founded(self, taken: Floats) -> Floats:
        """The share, at most 1, to which each class is founded, and 1 for the additional class. `taken`: the share to
        which each candidate is taken."""
        reach = np.zeros(self.always + 1)
        reach[-1] = 1.0
        for _ in range(_ROUNDS):
            ways = np.minimum(taken, np.minimum.reduceat(reach[self.reads], self.start[:-1]))
            more = np.minimum(1.0, np.add.reduceat(ways, self.first[:-1]))
            if not (more > reach[:-1] + _SETTLED).any():
                break
            reach[:-1] = more
        return reach

    def violated(self, taken: Floats, used: Floats, most: int) -> list[Loop]:
        """Up to `most` violated cuts.

        - `taken`: the share to which each candidate is taken.
        - `used`: the share to which each class is used.
        """
        from scipy.sparse import csr_matrix  # which loading a program never needs
        from scipy.sparse.csgraph import maximum_flow

        reach = self.founded(taken)
        hard = reach[self.reads] + _SHUFFLED * self.rng.random(len(self.reads))
        order = np.lexsort((hard, np.repeat(np.arange(len(self.owner)), np.diff(self.start))))
        worst = self.reads[order][self.start[:-1]]
        capacity = np.round(np.maximum(taken, 0.0) * _UNIT).astype(np.int32) + 1
        n = self.always + 1
        graph = csr_matrix((capacity, (worst, self.owner)), shape=(n, n))
        graph.sum_duplicates()
        targets = np.flatnonzero(used > VIOLATED)
        targets = targets[np.argsort(-used[targets] + _SOONER * self.rng.random(len(targets)))]
        found: dict[frozenset[int], Loop] = {}
        seen = np.zeros(n, dtype=np.int64)
        left = _WORK
        for t in targets:
            if seen[t] >= _SEEN or left < 0 or len(found) >= most:
                continue
            now = graph
            for _ in range(_NESTED):
                left -= graph.nnz
                flow = maximum_flow(now, self.always, int(t))
                if flow.flow_value >= (used[t] - VIOLATED) * _UNIT:
                    break
                inside = self._before(now, flow.flow, int(t))
                seen[inside] += 1
                loop = Loop(frozenset(inside.tolist()), int(t))
                if loop.classes in found:
                    break
                found[loop.classes] = loop
                now = self._saturated(now, inside)
        return list(found.values())

    def _before(self, graph: Any, flow: Any, target: int) -> Floats:
        """The classes from which more flow could still reach `target`."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order

        n = graph.shape[0]
        capacities, flows = _arcs(graph), _arcs(flow)
        # A flow has the arcs of its graph and their reverses.
        at = np.minimum(np.searchsorted(capacities, flows), len(capacities) - 1)
        left = np.where(capacities[at] == flows, graph.data[at], 0) - flow.data
        tails, heads = np.divmod(flows[left > 0], n)
        backwards = csr_matrix((np.ones(len(tails), dtype=np.int8), (heads, tails)), shape=(n, n))
        return breadth_first_order(backwards, target, return_predecessors=False)

    def _saturated(self, graph: Any, inside: Floats) -> Any:
        """The graph with full capacity on the arcs that enter `inside`, so that the next cut lies elsewhere."""
        within = np.zeros(graph.shape[0], dtype=bool)
        within[inside] = True
        rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
        data = np.where(~within[rows] & within[graph.indices], _UNIT, graph.data).astype(np.int32)
        return type(graph)((data, graph.indices, graph.indptr), shape=graph.shape)

    def supports(self, classes: Iterable[int]) -> list[int]:
        """The candidates of `classes` that read none of them."""
        inside = set(classes)
        return [
            int(self.first[c]) + k
            for c in sorted(inside)
            for k, reads in enumerate(self.problem.reads[c])
            if inside.isdisjoint(reads)
        ]


def _arcs(matrix: Any) -> Floats:
    """The entries of a sparse matrix in row order, each as row * columns + column."""
    rows, columns = matrix.shape
    return np.repeat(np.arange(rows), np.diff(matrix.indptr)) * columns + matrix.indices


def loops_within(loops: Iterable[Loop], classes: Sequence[int]) -> list[Loop]:
    """The cuts of a problem, restricted to its part with these `classes`. A cut restricted to fewer classes still holds
    for the part."""
    number = {c: i for i, c in enumerate(classes)}
    found: dict[Loop, None] = {}
    for loop in loops:
        if loop.target in number:
            inside = frozenset(number[c] for c in loop.classes if c in number)
            if len(inside) > 1:
                found[Loop(inside, number[loop.target])] = None
    return list(found)
