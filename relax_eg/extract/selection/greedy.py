"""Greedy selection that counts shared classes once. It works bottom-up, on the set of classes that each class needs."""

from __future__ import annotations

import heapq
import math

from relax_eg.extract.selection.problem import Problem, repair_choice

WORK = 40_000_000  # limit: classes copied between sets before the search stops


def dag_greedy(problem: Problem) -> list[int]:
    """For every class, the candidate whose set of needed classes costs least, each class counted once; -1 if there is
    none. Acyclic.

    The set of a candidate is the union of its class and the present sets of its operands. The candidate with the lowest
    estimate is processed first. If the set of a class becomes cheaper, its users are processed again. A few passes over
    the candidates take O(candidates x used classes).
    """
    users: list[list[tuple[int, int]]] = [[] for _ in problem.reads]
    waiting = [list(map(len, row)) for row in problem.reads]  # operands without a set
    queue: list[tuple[float, int, int]] = []
    for c, row in enumerate(problem.reads):
        for k, children in enumerate(row):
            if problem.costs[c][k] == math.inf or c in children:
                continue
            for x in children:
                users[x].append((c, k))
            if not children:
                queue.append((problem.costs[c][k], c, k))
    heapq.heapify(queue)
    choice = [-1] * len(problem.reads)
    total = [math.inf] * len(problem.reads)
    needed: list[dict[int, float] | None] = [None] * len(problem.reads)
    left = WORK
    while queue and left > 0:
        least, c, k = heapq.heappop(queue)
        if least >= total[c]:
            continue
        sets = [s for x in problem.reads[c][k] if (s := needed[x]) is not None]
        sets.sort(key=len)
        merged = dict(sets[-1]) if sets else {}
        for s in sets[:-1]:
            merged |= s
        if c in merged:
            continue
        merged[c] = problem.costs[c][k]
        left -= len(merged)
        cost = math.fsum(merged.values())
        if cost < total[c]:
            for u, j in users[c] if needed[c] is None else ():
                waiting[u][j] -= 1
            choice[c], total[c], needed[c] = k, cost, merged
            for u, j in users[c]:
                if waiting[u][j]:
                    continue
                below = max([total[x] for x in problem.reads[u][j]])
                if problem.costs[u][j] + below < total[u]:
                    heapq.heappush(queue, (problem.costs[u][j] + below, u, j))
    return repair_choice(problem, choice)
