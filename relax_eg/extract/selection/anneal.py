"""Simulated annealing over choices. Choices have reference counts, so a step visits only the classes that it changes.

A class that is not used has a candidate too. After every `_FRESH` steps all unused classes get new candidates: those of
their cheapest trees at prices under which used classes cost nothing. A switch to a value far from the used ones is
therefore priced with the best way to compute it from the present program, not with a way that was good for an earlier
program.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from relax_eg.extract.selection.problem import Problem, choice_cost, repair_choice, tree_choice
from relax_eg.extract.selection.search import CountedChoice

_FRESH = 2000  # chosen: steps after which the candidates of unused classes are chosen anew
_NOISE = 0.3  # chosen: share of random noise on the prices by which they are chosen
# chosen: shares of the steps that switch several classes at once so that they read a value, or no longer read it
_GATHER, _LEAVE = 0.15, 0.1
_SAMPLE = 400  # chosen: sampled steps from which the first temperature is computed
_COOLED = 0.01  # chosen: last temperature of a round, as a share of the first
_STEPS = 20  # chosen: steps of the first round per candidate
_LONGER = 1.4  # chosen: factor by which each round has more steps than the one before
_HOTTEST = 0.5  # chosen: highest first temperature, as a share of the median increase of a step that raises the cost
_RANGE = 10.0  # chosen: a round may begin at a temperature lower by up to this factor
_MANY = 12  # limit: readers that one step switches
_DRAWS = 400  # limit: classes drawn until one is used
_FEW = 4  # chosen: number of ways of a reader from which on one is drawn at random; fewer are all priced


class Annealer:
    """Rounds of annealing on a problem whose classes can all be computed at finite costs.

    - `best`, `cost`: the cheapest choice seen (acyclic over all classes), and its cost.
    """

    def __init__(self, problem: Problem, choice: Sequence[int], rng: random.Random) -> None:
        self.problem = problem
        self.rng = rng
        self.best, self.cost = list(choice), choice_cost(problem, choice)
        self.length = _STEPS * problem.node_count
        self.open = [c for c, row in enumerate(problem.reads) if len(row) > 1]
        self.readers: list[list[tuple[int, int]]] = [[] for _ in problem.reads]
        for c, row in enumerate(problem.reads):
            for k, reads in enumerate(row):
                for x in reads:
                    self.readers[x].append((c, k))
        self._start(self.best)

    def round(self, until: float) -> list[int]:
        """Runs one round from the best choice, and returns the cheapest choice of the round. The round ends at the
        latest at `until` (`time.monotonic`). The next round is longer."""
        if not self.open:
            return self.best
        program = self._start(self.best)
        first = self._temperature() * _RANGE ** -self.rng.random()
        steps = self.length
        here = cost = self.cost
        found = list(self.best)
        started = time.monotonic()
        temperature = first
        for step in range(steps):
            if step % _FRESH == 0:
                now = time.monotonic()
                if now >= until:
                    break
                # The round ends cold, whether its steps or its time run out first.
                temperature = first * _COOLED ** max(step / steps, (now - started) / (until - started))
                self._refresh()
            change = self._step(temperature)
            if change:
                here += change
                if here < cost - program.least:
                    cost, found = here, list(program.choice)
        found = repair_choice(self.problem, found)
        cost = choice_cost(self.problem, found)
        if cost < self.cost:
            self.best, self.cost = found, cost
        self.length = int(self.length * _LONGER)
        return found

    def _start(self, choice: Sequence[int]) -> CountedChoice:
        self.program = CountedChoice(self.problem, choice)
        return self.program

    def _temperature(self) -> float:
        """The highest first temperature: a share of the median increase of the sampled steps that raise the cost."""
        rises: list[float] = []
        for _ in range(_SAMPLE):
            c, k = self._random_switch()
            if c >= 0:
                change = self.program.change(c, k)
                if change > self.program.least:
                    rises.append(change)
        rises.sort()
        return _HOTTEST * rises[len(rises) // 2] if rises else 1.0

    def _random_switch(self) -> tuple[int, int]:
        """A random used class, and a candidate of it that is not chosen; (-1, -1) if none was found."""
        rng, uses = self.rng, self.program.uses
        for _ in range(_DRAWS):
            c = self.open[int(rng.random() * len(self.open))]
            if uses[c]:
                k = int(rng.random() * (len(self.problem.reads[c]) - 1))
                return c, k + (k >= self.program.choice[c])
        return -1, -1

    def _step(self, temperature: float) -> float:
        """Tries one step, and returns the change of the cost: 0.0 if the step is rejected."""
        rng, program = self.rng, self.program
        most = -temperature * math.log(1.0 - rng.random())
        kind = rng.random()
        if kind < _GATHER:
            return self.program.switch_all(self._readers_gathered(), most)
        if kind < _GATHER + _LEAVE:
            return self.program.switch_all(self._readers_removed(), most)
        c, k = self._random_switch()
        if c < 0:
            return 0.0
        change = program.change(c, k)
        if change > most:
            return 0.0
        moved = program.classes_to_move(program.reads[c][k], c)
        if moved is None:
            return 0.0
        program.switch(c, k, moved)
        return change

    def _readers_gathered(self) -> dict[int, int]:
        """The candidates, by class, of a switch after which several classes read one value: a random candidate of the
        value, and candidates of its possible readers."""
        rng, uses, choice = self.rng, self.program.uses, self.program.choice
        c, k = self._random_switch()
        if c < 0 or not self.problem.reads[c][k]:
            return {}
        below = self.problem.reads[c][k]
        x = below[int(rng.random() * len(below))]
        group = {x: int(rng.random() * len(self.problem.reads[x])), c: k}
        found = {r: j for r, j in self.readers[x] if uses[r] and r not in group and choice[r] != j}
        if len(found) > _MANY:
            found = {r: found[r] for r in rng.sample(list(found), _MANY)}
        return group | found

    def _readers_removed(self) -> dict[int, int]:
        """The candidates, by class, of a switch after which no reader of a value reads it any more."""
        rng, program = self.rng, self.program
        c = self.open[int(rng.random() * len(self.open))]
        x = c
        if program.uses[c] and program.children(c):
            below = program.children(c)
            x = below[int(rng.random() * len(below))]
        found: dict[int, int] = {}
        if not 0 < program.uses[x] <= _MANY:
            return found
        for r, j in self.readers[x]:
            if program.uses[r] and program.choice[r] == j and r not in found:
                ways = [k for k, reads in enumerate(program.reads[r]) if x not in reads]
                if ways:
                    found[r] = min(ways, key=lambda k: program.change(r, k)) if len(ways) < _FEW else rng.choice(ways)
        return found

    def _refresh(self) -> None:
        """Chooses new candidates of the unused classes: those of their cheapest trees over the used classes, which are
        free."""
        program, draw = self.program, self.rng.random
        used = {c: program.choice[c] for c, n in enumerate(program.uses) if n}
        costs = enumerate(self.problem.costs)
        prices = [row if c in used else [x * (1 + _NOISE * draw()) for x in row] for c, row in costs]
        program.replace_choice(tree_choice(self.problem, prices, used))
