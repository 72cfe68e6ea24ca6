"""Swap search: improves a choice by switching one or several classes at a time, as long as its cost falls.

One class switches to another candidate, or all possible readers of an unused value switch to it together (three matmuls
become parts of one only if all three switch). Reference counts determine the classes that a switch frees and needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from relax_eg.extract.selection.problem import Problem, choice_cost
from relax_eg.traversal import operands_first

SWAP_PASSES = 8  # limit: passes over all classes
SWAP_WORK = 1_500_000  # limit: classes visited by one swap search
GAIN = 1e-9  # chosen: share of the program's cost: smaller differences are rounding errors
_ROUNDING = 1e-3  # chosen: share of `GAIN`: rounding error between sums in different orders
_CROWDED = 1e-9  # chosen: distance of two labels below which floats hardly distinguish them


class CountedChoice:
    """A choice with reference counts and with an order of all classes, operands first.

    With the counts, the change of the cost by a switch is computed from the classes that it frees and needs alone. With
    the order, a switch is shown to keep the choice acyclic without a walk over the whole program.

    - `choice`: the candidate of each class.
    - `uses`: the number of uses of each class.
    - `label[c]`: the place of class `c`, after the classes that its chosen candidate reads.
    """

    def __init__(self, problem: Problem, choice: Sequence[int]) -> None:
        self.costs = problem.costs
        self.choice = list(choice)
        self.reads = problem.reads
        self.work = 0  # classes visited so far
        self.uses = [0] * len(self.choice)
        self.label = [0.0] * len(self.choice)
        self._relabel()
        self.least = GAIN * sum(map(self.add, problem.roots))

    def replace_choice(self, choice: Sequence[int]) -> None:
        """Takes another acyclic choice, which has the same candidates for all used classes."""
        self.choice[:] = choice
        self._relabel()

    def children(self, c: int) -> tuple[int, ...]:
        return self.reads[c][self.choice[c]] if self.choice[c] >= 0 else ()

    def add(self, c: int) -> float:
        """Adds a use of `c`; returns the cost of the classes that become used."""
        gained = 0.0
        stack = [c]
        while stack:
            x = stack.pop()
            self.work += 1
            self.uses[x] += 1
            if self.uses[x] == 1:
                gained += self.costs[x][self.choice[x]]
                stack.extend(self.children(x))
        return gained

    def drop(self, c: int) -> float:
        """Removes a use of `c`; returns the cost of the classes that become unused."""
        freed = 0.0
        stack = [c]
        while stack:
            x = stack.pop()
            self.uses[x] -= 1
            if self.uses[x] == 0:
                freed += self.costs[x][self.choice[x]]
                stack.extend(self.children(x))
        return freed

    def classes_to_move(self, starts: Sequence[int], c: int) -> list[int] | None:
        """The classes under `starts` that are not placed before `c`, operands first. They have to move before `c` if
        `c` reads `starts`. None if `c` is one of them, because that would close a cycle.

        Classes placed before `c` are not visited, because they cannot reach it.
        """
        limit = self.label[c]
        found: dict[int, None] = {}
        for start in starts:
            stack = [(start, 0)]
            while stack:
                x, i = stack.pop()
                self.work += 1
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

    def freed(self, these: Sequence[int]) -> float:
        """The cost of the classes that would become unused if each of `these` lost a use."""
        found = sum(map(self.drop, these))
        for x in these:
            self.add(x)
        return found

    def change(self, c: int, k: int) -> float:
        """The change of the cost if the used class `c` switched to candidate `k`."""
        old, new = self.children(c), self.reads[c][k]
        # New operands are added first and dropped last, so only classes that the two candidates do not share are
        # visited.
        change = self.costs[c][k] - self.costs[c][self.choice[c]] + sum(map(self.add, new)) - sum(map(self.drop, old))
        for x in old:
            self.add(x)
        for x in new:
            self.drop(x)
        return change

    def switch(self, c: int, k: int, moved: Sequence[int]) -> float:
        """Switches class `c` to candidate `k`; returns the change of the program's cost.

        - `moved`: the classes that `classes_to_move` found under the candidate; they are now placed before `c`.
        """
        old = self.children(c)
        change = self.costs[c][k] - self.costs[c][self.choice[c]]
        self.choice[c] = k
        self._move_before(c, moved)
        if not self.uses[c]:
            return 0.0
        # New operands are added first, so classes that both candidates need are never dropped in between.
        change += sum(self.add(x) for x in self.children(c))
        return change - sum(self.drop(x) for x in old)

    def switch_all(self, group: Mapping[int, int], most: float, only_used: bool = False) -> float:
        """Switches each class of `group` to its candidate, as far as the choice stays acyclic; returns the change of
        the program's cost. If the change is not below `most`, undoes all switches and returns 0.0.

        - `only_used`: whether to leave out classes that are not used when their turn comes.
        """
        before: list[tuple[int, int]] = []
        change = 0.0
        for c, k in group.items():
            children = self.reads[c][k]
            if self.choice[c] == k or (only_used and not self.uses[c]) or self.needs_impossible(children):
                continue
            moved = self.classes_to_move(children, c)
            if moved is not None:
                before.append((c, self.choice[c]))
                change += self.switch(c, k, moved)
        if change < most:
            return change
        for c, k in reversed(before):
            # A class may now be placed before its former operands.
            moved = self.classes_to_move(self.reads[c][k], c)
            assert moved is not None, "what was acyclic is again"
            self.switch(c, k, moved)
        return 0.0

    def needs_impossible(self, classes: Iterable[int]) -> bool:
        """Whether one of these classes cannot be computed."""
        return any(self.choice[x] < 0 for x in classes)

    def _move_before(self, c: int, moved: Sequence[int]) -> None:
        if not moved:
            return
        inside = set(moved)
        low = max(
            (self.label[y] for x in moved for y in self.children(x) if y not in inside), default=self.label[c] - 1.0
        )
        step = (self.label[c] - low) / (len(moved) + 1)
        if step < _CROWDED:
            self._relabel()
            return
        for i, x in enumerate(moved):
            self.label[x] = low + step * (i + 1)

    def _relabel(self) -> None:
        """Sets the labels of all classes to 0, 1, 2, ..."""
        for place, c in enumerate(operands_first(range(len(self.choice)), self.children)):
            self.label[c] = float(place)


def swap_search(problem: Problem, seed: Sequence[int]) -> tuple[list[int], float]:
    """The choice `seed`, improved until no switch lowers its cost or `SWAP_WORK` classes were visited; and its cost.

    `seed` must be acyclic over all classes, and -1 for classes that cannot be computed."""
    program = CountedChoice(problem, seed)
    for _ in range(SWAP_PASSES):
        improved = False
        for c in reversed(operands_first(problem.roots, program.children)):
            if program.work > SWAP_WORK:
                break
            if program.uses[c] > 0 and _improve(program, c):
                improved = True
        if program.work <= SWAP_WORK:
            improved |= _switch_groups(program)
        if not improved:
            break
    return program.choice, choice_cost(problem, program.choice)


def best_of(
    problem: Problem, seeds: Iterable[Sequence[int]], is_over: Callable[[], bool] = lambda: False
) -> tuple[list[int], float, int]:
    """The best of the `seeds` after swap search of each, its cost, and its index among the seeds. Of several with equal
    costs it is the first.

    - `is_over`: called before each seed but the first; if it returns True, no further seed is improved.
    """
    best: tuple[list[int], float, int] | None = None
    for place, seed in enumerate(seeds):
        if best is not None and is_over():
            break
        choice, cost = swap_search(problem, seed)
        if best is None or cost < best[1] * (1 - GAIN):
            best = choice, cost, place
    assert best is not None, "there is no seed"
    return best


def cheapest_switch(problem: Problem, choice: Sequence[int], least: float) -> tuple[float, int, int, list[int]] | None:
    """The cheapest program that differs from `choice` in the candidate of one class and costs at least `least` more.

    The result is its cost, the class, the candidate and the choice; None if there is none. `choice` must be acyclic
    over all classes."""
    program = CountedChoice(problem, choice)
    cost = choice_cost(problem, choice)
    best: tuple[float, int, int] | None = None
    for c in operands_first(problem.roots, program.children):
        for k, new in enumerate(program.reads[c]):
            x = program.costs[c][k]
            if (
                k == choice[c]
                or x == math.inf
                or program.needs_impossible(new)
                or program.classes_to_move(new, c) is None
            ):
                continue
            change = program.change(c, k)
            if change >= least and (best is None or (change, c, k) < best):
                best = (change, c, k)
    if best is None:
        return None
    change, c, k = best
    other = list(choice)
    other[c] = k
    return cost + change, c, k, other


def _improve(program: CountedChoice, c: int) -> bool:
    """Switches class `c` to the candidate that lowers the program's cost most; returns whether there was one."""
    costs, current = program.costs[c], program.choice[c]
    if len(costs) == 1:
        return False
    best, best_change, best_moved = current, -program.least, list[int]()
    most = program.freed(program.children(c)) + costs[current] + program.least * _ROUNDING
    for k, new in enumerate(program.reads[c]):
        if k == current or costs[k] - most >= best_change or program.needs_impossible(new):
            continue
        change = program.change(c, k)
        if change < best_change:
            moved = program.classes_to_move(new, c)
            if moved is not None:
                best, best_change, best_moved = k, change, moved
    if best != current:
        program.switch(c, best, best_moved)
    return best != current


def _switch_groups(program: CountedChoice) -> bool:
    """For each unused value that several used classes could read, switches all of them to it if that lowers the cost;
    returns whether any group was switched."""
    readers: dict[int, dict[int, int]] = {}
    uses, choice = program.uses, program.choice
    for c, row in enumerate(program.reads):
        if uses[c] == 0:
            continue
        costs = program.costs[c]
        for k, children in enumerate(row):
            if costs[k] == math.inf:
                continue
            for x in children:
                if uses[x] == 0 and choice[x] >= 0:
                    readers.setdefault(x, {}).setdefault(c, k)
    improved = False
    for value, group in readers.items():
        if program.work > SWAP_WORK:
            break
        if len(group) > 1 and program.uses[value] == 0:
            improved |= program.switch_all(group, -program.least, only_used=True) < 0
    return improved
