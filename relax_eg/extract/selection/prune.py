"""Makes a selection problem smaller without losing its optimum.

Every step keeps at least one optimal choice. A class whose candidate is decided is *settled*. These candidates are
recorded, so that a choice for the rest can be completed to one for the whole problem (`Pruned.complete`). The steps
repeat until none changes anything:

- Candidates that cannot be chosen are dropped: infinite cost, a read of a class without candidates, or of their own
  class.
- Classes that can be computed at no cost are settled with the candidates that do so.
- Classes that the roots cannot reach are dropped.
- A class is *required* if every choice uses it: the roots, and the classes that all candidates of a required class
  read. A required class is used in any case, so reads of it are dropped unless they could close a cycle.
- A class with one candidate is settled if its readers can read its operands in its place. The cost of a required class
  becomes part of the offset; that of a class with a single reader becomes part of the reader's.
- A candidate is dropped if another of its class costs no more and reads no more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_eg.extract.selection.problem import Problem, choice_cost, tree_greedy
from relax_eg.traversal import derived, reached

_ROUNDS = 20  # limit: rounds of all steps, each of which may enable another
_WIDE = 64  # limit: candidates of a class up to which all pairs are compared
_MORE = 4  # limit: reads that settling a class may add
_ROUNDING = 1e-9  # chosen: share of a cost that sums of it in another order may differ by

Candidates = list[tuple[int, float, frozenset[int]]]  # index in the class, cost, classes read


@dataclass(slots=True)
class Pruned:
    """The part of `problem` that is left after pruning.

    - `problem`: the whole problem.
    - `rows[c]`: the candidates that are left of class `c`, which is not settled.
    - `required`: classes of `rows` that every choice uses.
    - `offset`: cost of every choice besides that of the rows.
    - `fixed`: the candidates of the settled classes.
    """

    problem: Problem
    rows: dict[int, Candidates]
    required: set[int]
    offset: float = 0.0
    fixed: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def node_count(self) -> int:
        return sum(map(len, self.rows.values()))

    def complete(self, choice: dict[int, int]) -> list[int]:
        """The choice for the whole problem, from a choice for the used classes of the rest."""
        whole = [-1] * len(self.problem.reads)
        for c, k in self.fixed.items():
            whole[c] = k
        for c, k in choice.items():
            whole[c] = k
        return whole


def prune(problem: Problem, keep: Sequence[Iterable[int]] | None = None) -> Pruned:
    """`problem` without the classes and candidates that an optimal choice does not need. The roots must be computable.

    It takes a few passes, each about linear in the problem.

    - `keep[c]`: the candidates to which class `c` is restricted; None allows all.
    """
    p = _possible_candidates(problem, keep)
    _settle_free(p, problem)
    roots = set(problem.roots) - p.fixed.keys()
    for _ in range(_ROUNDS):
        before = (p.node_count, sum(len(r) for row in p.rows.values() for _, _, r in row))
        _drop_unreachable(p, roots)
        _find_required(p, roots)
        roots = set(p.required)
        _drop_required_reads(p)
        roots = _contract(p, roots)
        _drop_dominated(p)
        if (p.node_count, sum(len(r) for row in p.rows.values() for _, _, r in row)) == before:
            break
        _drop_impossible(p)
    return p


def cheap_enough(problem: Problem, choice: Sequence[int]) -> list[list[int]]:
    """For each class, its candidate of `choice`, and those that a choice that costs no more may use, as far as paths
    tell: who uses a candidate pays for a path from a root down to it, and for a path from it to the leaves. In
    O(candidates log candidates)."""
    most = choice_cost(problem, choice) * (1 + _ROUNDING)
    reads, costs = problem.reads, problem.costs
    below = tree_greedy(problem, together=max)[1]  # the dearest path below each class
    above = [math.inf] * len(reads)
    keep = [[k] if k >= 0 else [] for k in choice]
    heap = [(0.0, c) for c in problem.roots]
    while heap:
        spent, c = heapq.heappop(heap)
        if spent >= above[c]:
            continue
        above[c] = spent
        for k, row in enumerate(reads[c]):
            through = spent + costs[c][k]
            if through + max((below[x] for x in row), default=0.0) <= most:
                if k != choice[c]:
                    keep[c].append(k)
                for x in row:
                    if through < above[x]:
                        heapq.heappush(heap, (through, x))
    return keep


def undominated_candidates(problem: Problem) -> dict[int, Candidates]:
    """For each class that the roots can reach, the candidates that are not dominated within their class."""
    p = _possible_candidates(problem, None)
    for _ in range(2):
        _drop_unreachable(p, set(problem.roots))
        _drop_dominated(p)
    return p.rows


def _possible_candidates(problem: Problem, keep: Sequence[Iterable[int]] | None) -> Pruned:
    rows: dict[int, Candidates] = {}
    for c, row in enumerate(problem.reads):
        costs = problem.costs[c]
        places = range(len(row)) if keep is None else keep[c]
        rows[c] = [(k, costs[k], frozenset(row[k])) for k in places if costs[k] < math.inf and c not in row[k]]
    p = Pruned(problem, rows, set())
    _drop_impossible(p)
    return p


def strong_components(below: Mapping[int, set[int]]) -> dict[int, int]:
    """For each class, the number of its strongly connected component. `below`: the classes that each class may read."""
    place = {c: i for i, c in enumerate(below)}
    sources = [place[c] for c, reads in below.items() for _ in reads]
    targets = [place[x] for reads in below.values() for x in reads]
    ones = np.ones(len(sources), dtype=np.int8)
    from scipy.sparse import csr_matrix  # which loading a program never needs
    from scipy.sparse.csgraph import connected_components

    graph = csr_matrix((ones, (sources, targets)), shape=(len(place), len(place)))
    labels = connected_components(graph, directed=True, connection="strong")[1]
    return {c: int(labels[i]) for c, i in place.items()}


def _drop_impossible(p: Pruned) -> None:
    """Drops candidates that no acyclic choice can use."""
    possible = derived((c, reads) for c, row in p.rows.items() for _, _, reads in row).keys()
    for c, row in p.rows.items():
        p.rows[c] = [entry for entry in row if entry[2] <= possible]


def _settle_free(p: Pruned, problem: Problem) -> None:
    """Settles the classes whose cheapest tree costs nothing; they read only one another, without cycles."""
    allowed = {(c, k) for c, row in p.rows.items() for k, _, _ in row}
    costs = [[x if (c, k) in allowed else math.inf for k, x in enumerate(row)] for c, row in enumerate(problem.costs)]
    choice, total = tree_greedy(problem, costs)
    free = {c for c in p.rows if total[c] == 0.0}
    for c in free:
        p.fixed[c] = choice[c]
    p.rows = {c: _without(row, free) for c, row in p.rows.items() if c not in free}


def _without(row: Candidates, gone: set[int]) -> Candidates:
    return [(k, x, reads if reads.isdisjoint(gone) else reads - gone) for k, x, reads in row]


def _drop_unreachable(p: Pruned, roots: set[int]) -> None:
    seen = reached(roots, lambda c: (x for _, _, reads in p.rows[c] for x in reads))
    p.rows = {c: row for c, row in p.rows.items() if c in seen}


def _find_required(p: Pruned, roots: set[int]) -> None:
    def always(c: int) -> Iterable[int]:
        """The classes that every candidate of a class reads."""
        return frozenset.intersection(*(reads for _, _, reads in p.rows[c])) if p.rows[c] else ()

    p.required = set(reached(roots, always))


def _drop_required_reads(p: Pruned) -> None:
    """Drops reads of required classes, which are computed anyway, unless a read could close a cycle."""
    component = strong_components({c: set[int]().union(*(r for _, _, r in row)) for c, row in p.rows.items()})
    for c, row in p.rows.items():
        here = component[c]
        p.rows[c] = [
            (k, x, frozenset(r for r in reads if r not in p.required or component[r] == here)) for k, x, reads in row
        ]


def _contract(p: Pruned, roots: set[int]) -> set[int]:
    """Settles classes with one candidate if their readers can read its operands instead; returns the new roots."""
    readers: dict[int, int] = {}
    for row in p.rows.values():
        for _, _, reads in row:
            for x in reads:
                readers[x] = readers.get(x, 0) + 1
    instead: dict[int, frozenset[int]] = {}
    carried: dict[int, float] = {}
    for c, row in p.rows.items():
        if len(row) != 1:
            continue
        k, cost, reads = row[0]
        if c in p.required and cost:
            p.offset += cost
            row[0] = (k, 0.0, reads)
            cost = 0.0
        n = readers.get(c, 0)
        # Contraction replaces n reads of the class by n times the number of its operands; it must not add many.
        if not cost and (len(reads) <= 2 or n <= 1 or n * len(reads) <= n + len(reads) + _MORE):
            instead[c] = reads
    if not instead:
        # A single reader can take over the cost. This is not done in the same round, because the reader must stay.
        lonely = (c for c, row in p.rows.items() if len(row) == 1 and readers.get(c, 0) == 1 and c not in p.required)
        for c in lonely:
            _, carried[c], instead[c] = p.rows[c][0]
    if not instead:
        return roots
    for c in instead:
        p.fixed[c] = p.rows[c][0][0]
    final: dict[int, frozenset[int] | None] = {}
    for c in instead:
        _resolve(c, instead, final)
    new: dict[int, Candidates] = {}
    for c, row in p.rows.items():
        if c in instead:
            continue
        changed: Candidates = []
        for k, x, reads in row:
            if instead.keys().isdisjoint(reads):
                changed.append((k, x, reads))
                continue
            more = [final[r] for r in reads if r in instead]
            if any(m is None for m in more):
                continue  # reads a class that can only be computed from itself
            kept = {r for r in reads if r not in instead}.union(*(m for m in more if m is not None))
            if c not in kept:
                paid = math.fsum(carried.get(r, 0.0) for r in _contracted_classes(reads, instead))
                changed.append((k, x + paid, frozenset(kept)))
        new[c] = changed
    p.rows = new
    below = [final[r] or frozenset[int]() for r in roots if r in instead]
    return {r for r in roots if r not in instead}.union(*below)


def _contracted_classes(reads: Iterable[int], instead: dict[int, frozenset[int]]) -> set[int]:
    """The contracted classes under `reads`."""
    return reached(reads, lambda c: instead.get(c, ())).keys() & instead.keys()


def _resolve(start: int, instead: dict[int, frozenset[int]], final: dict[int, frozenset[int] | None]) -> None:
    """Sets `final[start]` to the classes that are read in place of `start`, through other contracted classes. None for
    a class that reads itself."""
    if start in final:
        return
    open_: set[int] = set()
    stack = [start]
    while stack:
        c = stack[-1]
        if c in final:
            stack.pop()
            continue
        open_.add(c)
        missing = [r for r in instead[c] if r in instead and r not in final]
        if any(r in open_ for r in missing):
            final[c] = None
            stack.pop()
        elif missing:
            stack.extend(missing)
        else:
            parts = [final[r] if r in instead else frozenset((r,)) for r in instead[c]]
            final[c] = (
                None if any(x is None for x in parts) else frozenset[int]().union(*(x for x in parts if x is not None))
            )
            stack.pop()


def _drop_dominated(p: Pruned) -> None:
    for c, row in p.rows.items():
        if len(row) < 2:
            continue
        row.sort(key=lambda e: (e[1], len(e[2]), e[0]))
        kept: Candidates = []
        for entry in row:
            others = kept if len(kept) <= _WIDE else kept[:_WIDE]
            if not any(other[2] <= entry[2] for other in others):
                kept.append(entry)
        p.rows[c] = kept
