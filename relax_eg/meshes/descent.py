"""Placements along one axis of a mesh without an integer program: in milliseconds where that takes seconds, no bound.

The strategies of a value are the states of a node, and what reads it is a neighbour, at the price of the change of part
between the two. Messages along the edges (TRW-S, Kolmogorov, 2006) give a first choice. Then random spanning trees are
solved exactly, one after the other, by dynamic programming, while the edges beside the tree are as the choice so far
has them. A change that several operators read is divided among them in messages, and paid once in what is compared.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.ir.placements import REPLICATED, Part
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import AxisChoice

_BARRED = 1e6  # chosen: price of what is not possible, where the dearest column costs 1
_ROUNDS = 6  # limit: rounds of messages
_GAIN = 1e-7  # chosen: share of the price that counts as a gain

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class _Edge:
    """What is read: `takes[p, k]` is 1 if state `k` of the reader takes the giver in the part of number `p`. `barred`:
    price of pairs of states that are not possible here; None: all are."""

    giver: int
    reader: int
    takes: Array
    barred: Array | None


class Descent:
    """The search from the choice `start`, whose ways it keeps, at the prices of `model`."""

    def __init__(self, model: AxisProgram, start: AxisChoice) -> None:
        self.model = model
        self.is_possible = True  # whether each value has a strategy
        self.states: list[list[int]] = []  # the columns of each node
        self.place: dict[int, tuple[int, int]] = {}
        self.first: list[int] = []  # the state of each node under `start`
        for v, chosen in start.chosen.items():
            if not model.prices.program.values[v].is_free:
                mine = {c: i for i, c in model.computed[v] if c.way == chosen.way}
                self._add_node(mine, chosen)
        for handed, part in itertools.zip_longest(model.handed, start.outputs):
            self._add_node(handed, part)
        self.own = [np.array([model.costs[i] for i in columns]) for columns in self.states]
        self.prices: dict[int, Array] = {}  # of a node: from each of its states into each part in which it is read
        self.sliced: dict[int, Array] = {}  # which parts a slice of the replicated value gives
        self.replica: dict[int, int] = {}  # the number of the replicated part
        self.edges = self._edges()
        self.gives: list[list[_Edge]] = [[] for _ in self.states]
        self.pairs: dict[tuple[int, int], list[_Edge]] = {}
        for e in self.edges:
            if e.giver == e.reader:  # a loop that hands on what it carries
                prices = self.prices[e.giver] @ e.takes
                prices = prices if e.barred is None else prices + e.barred
                self.own[e.giver] = self.own[e.giver] + prices.diagonal()
            else:
                self.gives[e.giver].append(e)
                self.pairs.setdefault((min(e.giver, e.reader), max(e.giver, e.reader)), []).append(e)

    def run(self, trees: int, deadline: float) -> Array | None:
        """The columns of the cheapest choice found; None if none is possible.

        - `trees`: how many in turn may gain nothing.
        - `deadline`: latest end (`time.monotonic`)."""
        if not self.is_possible:
            return None
        best = list(self.first)
        cost = self._cost(best)
        states = self._by_messages(deadline)
        if (now := self._cost(states)) < cost:
            best, cost = states, now
        still, rng = 0, random.Random(0)
        while still < trees and time.monotonic() < deadline:
            states = self._by_tree(best, rng, still % 2 == 0)
            now = self._cost(states)
            still = 0 if now < cost * (1 - _GAIN) else still + 1
            if now < cost:
                best, cost = states, now
        if cost >= _BARRED:
            return None
        columns = np.zeros(len(self.model.costs))
        columns[[self.states[g][k] for g, k in enumerate(best)]] = 1.0
        return columns

    # --- the graph ---

    def _add_node(self, columns: Mapping[Any, int], state: object) -> None:
        """Adds a node with these columns, by state; those of a node that is there are known."""
        mine = list(columns.values())
        self.is_possible = self.is_possible and bool(mine)
        if mine and mine[0] not in self.place:
            self.place |= {i: (len(self.states), k) for k, i in enumerate(mine)}
            self.states.append(mine)
            self.first.append(list(columns).index(state) if state in columns else 0)

    def _edges(self) -> list[_Edge]:
        model, values = self.model, self.model.prices.program.values
        node = {v: self.place[i][0] for v, mine in enumerate(model.computed) for i, _ in mine if i in self.place}
        read: dict[int, list[tuple[dict[Part, list[int]], bool]]] = {}
        for v, taken, stays in model.edges():
            mine = {p: [i for i in columns if i in self.place] for p, columns in taken.items()}
            mine = {p: columns for p, columns in mine.items() if columns}
            if v in node and mine and not values[v].is_free:
                read.setdefault(v, []).append((mine, stays))
        found: list[_Edge] = []
        for v, readers in read.items():
            g = node[v]
            parts = list(dict.fromkeys(p for taken, _ in readers for p in taken))
            made = [dict(model.computed[v])[i].strategy.result for i in self.states[g]]
            self.prices[g] = self._table(v, made, parts, False)
            self.sliced[g] = np.array([isinstance(p, int) for p in parts])
            self.replica[g] = parts.index(REPLICATED) if REPLICATED in parts else -1
            together: dict[int, _Edge] = {}
            for taken, stays in readers:
                r = self.place[next(iter(taken.values()))[0]][0]
                e = together.setdefault(r, _Edge(g, r, np.zeros((len(parts), len(self.states[r]))), None))
                for p, columns in taken.items():
                    e.takes[parts.index(p), [self.place[i][1] for i in columns]] = 1.0
                if stays:
                    staying = self._table(v, made, parts, True) - self.prices[g]
                    e.barred = staying @ e.takes + (0.0 if e.barred is None else e.barred)
            found += together.values()
        return found

    def _table(self, v: int, made: Sequence[Part], parts: Sequence[Part], stays: bool) -> Array:
        """The prices from the parts in which a value comes about into others."""
        costs, changes = self.model.costs, self.model.changes
        possible = set(self.model.moves(v, parts, stays))

        def price(before: Part, after: Part) -> float:
            if (before, after) not in possible:
                return _BARRED
            change = changes.get((v, before, after))
            return 0.0 if before == after else _BARRED if change is None else costs[change]

        return np.array([[price(p, q) for q in parts] for p in made])

    # --- what a choice costs ---

    def _needed(self, g: int, states: Sequence[int]) -> Array:
        """How many readers take a value in each part."""
        return sum((e.takes[:, states[e.reader]] for e in self.gives[g]), np.zeros(len(self.sliced[g])))

    def _open(self, g: int, needed: Array) -> Array:
        """The prices of a value into other parts where it is needed in these anyway."""
        there = needed > 0
        if self.replica[g] >= 0 and there[self.replica[g]]:
            there = there | self.sliced[g]
        prices = self.prices[g]
        return np.where(there & (prices < _BARRED), 0.0, prices)

    def _into(self, g: int, needed: Array) -> Array:
        """The price of bringing a value into these parts, from each of its states."""
        there = needed > 0
        prices = self.prices[g] @ there
        if self.replica[g] >= 0 and there[self.replica[g]]:
            sliced = self.prices[g][:, there & self.sliced[g]]
            prices = prices - np.where(sliced < _BARRED, sliced, 0.0).sum(1)
        return prices

    def _cost(self, states: Sequence[int]) -> float:
        cost = sum(own[k] for own, k in zip(self.own, states, strict=True))
        for g, gives in enumerate(self.gives):
            if gives:
                cost += self._into(g, self._needed(g, states))[states[g]]
                cost += sum(e.barred[states[g], states[e.reader]] for e in gives if e.barred is not None)
        return float(cost)

    def _divided(self, prices: Array, readers: int, e: _Edge) -> Array:
        """The prices of an edge, of which each of so many readers pays its part."""
        prices = np.where(prices < _BARRED, prices / readers, prices)
        return prices if e.barred is None else prices + e.barred

    # --- messages ---

    def _by_messages(self, deadline: float) -> list[int]:
        """A choice read from messages that go forth and back along the nodes in their order."""
        tables = {}
        for (a, b), edges in self.pairs.items():
            table = np.zeros((len(self.states[a]), len(self.states[b])))
            for e in edges:
                mine = self._divided(self.prices[e.giver] @ e.takes, len(self.gives[e.giver]), e)
                table += mine if e.giver == a else mine.T
            tables[a, b] = table
        later: list[list[int]] = [[] for _ in self.states]
        earlier: list[list[int]] = [[] for _ in self.states]
        for a, b in tables:
            later[a].append(b)
            earlier[b].append(a)
        sent = {(a, b): np.zeros(len(self.states[b])) for x in tables for a, b in (x, x[::-1])}

        def send(s: int, to: Sequence[int]) -> None:
            belief = sum((sent[u, s] for u in (*later[s], *earlier[s])), self.own[s])
            share = belief / max(len(later[s]), len(earlier[s]), 1)
            for t in to:
                table = tables[s, t] if s < t else tables[t, s].T
                message = (share - sent[t, s])[:, None] + table
                sent[s, t] = (least := message.min(0)) - least.min()

        for _ in range(_ROUNDS):
            for s in range(len(self.states)):
                send(s, later[s])
            for s in reversed(range(len(self.states))):
                send(s, earlier[s])
            if time.monotonic() > deadline:
                break
        states: list[int] = []
        for s, own in enumerate(self.own):
            belief = sum((sent[u, s] for u in later[s]), own)
            belief = belief + sum(tables[u, s][states[u]] for u in earlier[s])
            states.append(int(np.argmin(belief)))
        return states

    # --- trees ---

    def _by_tree(self, states: Sequence[int], rng: random.Random, divided: bool) -> list[int]:
        """The cheapest states along a random spanning tree. `divided`: whether readers divide a change among them."""
        above = list(range(len(self.states)))

        def root(g: int) -> int:
            while above[g] != g:
                above[g] = above[above[g]]
                g = above[g]
            return g

        order = list(self.pairs)
        rng.shuffle(order)
        tree: set[tuple[int, int]] = set()
        beside: list[list[tuple[int, int]]] = [[] for _ in self.states]
        for a, b in order:
            if (x := root(a)) != (y := root(b)):
                above[x] = y
                tree.add((a, b))
                beside[a].append((a, b))
                beside[b].append((a, b))
        own = [x.copy() for x in self.own]
        open_: dict[int, Array] = {}
        readers: dict[int, int] = {}
        for g, gives in enumerate(self.gives):
            if not gives:
                continue
            in_tree = [e for e in gives if (min(g, e.reader), max(g, e.reader)) in tree]
            needed = self._needed(g, states)
            fixed = needed - sum((e.takes[:, states[e.reader]] for e in in_tree), np.zeros(len(needed)))
            own[g] += self._into(g, fixed)
            open_[g], readers[g] = self._open(g, fixed), len(in_tree)
            for e in gives:
                if e in in_tree:
                    continue
                others = needed - e.takes[:, states[e.reader]]
                own[e.reader] += self._open(g, others)[states[g]] @ e.takes
                if e.barred is not None:
                    own[e.reader] += e.barred[states[g]]
                    own[g] += e.barred[:, states[e.reader]]
        tables: dict[tuple[int, int], Array] = {}
        for a, b in tree:
            table = np.zeros((len(self.states[a]), len(self.states[b])))
            for e in self.pairs[a, b]:
                mine = self._divided(open_[e.giver] @ e.takes, readers[e.giver] if divided else 1, e)
                table += mine if e.giver == a else mine.T
            tables[a, b] = table
        return self._cheapest(own, tables, beside)

    def _cheapest(
        self, own: list[Array], tables: dict[tuple[int, int], Array], beside: list[list[tuple[int, int]]]
    ) -> list[int]:
        """The cheapest states of a forest, whose edges have these prices. Changes `own`."""
        parent: dict[int, tuple[int, Array]] = {}
        order: list[int] = []
        seen = [False] * len(own)
        for start in range(len(own)):
            stack = [] if seen[start] else [start]
            while stack:
                g = stack.pop()
                seen[g] = True
                order.append(g)
                for a, b in beside[g]:
                    other = b if a == g else a
                    if not seen[other]:
                        parent[other] = g, tables[a, b] if a == other else tables[a, b].T
                        stack.append(other)
        picks: dict[int, Array] = {}
        for g in reversed(order):
            if g in parent:
                up, table = parent[g]
                table = own[g][:, None] + table
                picks[g] = table.argmin(0)
                own[up] += table.min(0)
        states = [0] * len(own)
        for g in order:
            states[g] = int(picks[g][states[parent[g][0]]]) if g in parent else int(own[g].argmin())
        return states
