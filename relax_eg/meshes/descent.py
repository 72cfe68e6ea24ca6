"""Placements along one axis of a mesh without an integer program: in milliseconds where that takes seconds, no bound.

The strategies of a value are the states of a node, and what reads it is a neighbour, at the price of the change of part
between the two. Messages along the edges (TRW-S, Kolmogorov, 2006) give a first choice. Then random spanning trees are
solved exactly, one after the other, by dynamic programming, while the edges beside the tree are as the choice so far
has them. A change that several operators read is divided among them in messages, and paid once in what is compared.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relax_eg.ir.placements import REPLICATED, Part
from relax_eg.meshes.axis_program import EPSILON, AxisProgram
from relax_eg.meshes.choices import AxisChoice

_BARRED = 1e6  # chosen: price of what is not possible, where the dearest column costs 1
_ROUNDS = 6  # limit: rounds of messages
_BOUND_ROUNDS = 40  # limit: those of messages for a bound
_GAIN = 1e-7  # chosen: share of the price that counts as a gain

Array = np.ndarray[Any, Any]


class Descent:
    """The search from the choice `start`, whose ways it keeps, at the prices of `model`.

    A node has states, an edge goes from a value (its giver) to a reader, and a giver is taken in some parts. Arrays
    have one row for each node or edge, padded to the most states and parts.

    - `own` (node, state): the price of a state.
    - `prices` (node, state, part): the price of bringing a value from the state into the part of that number.
    - `slices`, `whole` (node, part): which parts a slice of the replicated value gives, and which that is.
    - `takes` (edge, part, state of the reader): 1 if the reader takes the giver in that part.
    - `barred` (edge, state of the giver, state of the reader): the price of what is not possible.
    """

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
        self._add_edges()
        self.pairs: dict[tuple[int, int], int] = {}
        for g, r in zip(self.giver.tolist(), self.reader.tolist(), strict=True):
            self.pairs.setdefault((min(g, r), max(g, r)), len(self.pairs))
        self.pair = np.array(
            [self.pairs[min(g, r), max(g, r)] for g, r in zip(self.giver, self.reader, strict=True)], dtype=np.int64
        )

    def run(self, trees: int, deadline: float) -> Array | None:
        """The columns of the cheapest choice found; None if none is possible.

        - `trees`: how many in turn may gain nothing.
        - `deadline`: latest end (`time.monotonic`)."""
        if not self.is_possible:
            return None
        best = np.array(self.first, dtype=np.int64)
        cost = self._cost(best)
        states = self._by_messages(deadline)
        if (now := self._cost(states)) < cost:
            best, cost = states, now
        still, rng = 0, np.random.default_rng(0)
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

    def _add_edges(self) -> None:
        model, values = self.model, self.model.prices.program.values
        node = {v: self.place[i][0] for v, mine in enumerate(model.computed) for i, _ in mine if i in self.place}
        read: dict[int, list[tuple[dict[Part, list[int]], bool]]] = {}
        for v, taken, stays in model.edges():
            mine = {p: [i for i in columns if i in self.place] for p, columns in taken.items()}
            mine = {p: columns for p, columns in mine.items() if columns}
            if v in node and mine and not values[v].is_free:
                read.setdefault(v, []).append((mine, stays))
        parts = {v: list(dict.fromkeys(p for taken, _ in readers for p in taken)) for v, readers in read.items()}
        nodes, most = len(self.states), max(map(len, self.states), default=0)
        width = max(map(len, parts.values()), default=0)
        self.own = np.full((nodes, most), _BARRED)
        for g, columns in enumerate(self.states):
            self.own[g, : len(columns)] = [model.costs[i] for i in columns]
        self.prices = np.zeros((nodes, most, width))
        self.slices, self.whole = np.zeros((nodes, width), dtype=bool), np.zeros((nodes, width), dtype=bool)
        self.loops: dict[int, Array] = {}  # prices of what a node takes from itself, by state
        edges: dict[tuple[int, int], tuple[Array, Array]] = {}
        for v, readers in read.items():
            g, mine = node[v], parts[v]
            made = [c.strategy.result for i, c in model.computed[v] if i in self.place]
            table = self._table(v, made, mine, False)
            self.prices[g, : len(made), : len(mine)] = table
            self.slices[g, : len(mine)] = [isinstance(p, int) for p in mine]
            self.whole[g, : len(mine)] = [p == REPLICATED for p in mine]
            for taken, stays in readers:
                r = self.place[next(iter(taken.values()))[0]][0]
                takes, barred = edges.setdefault((g, r), (np.zeros((width, most)), np.zeros((most, most))))
                own = np.zeros((width, most))
                for p, columns in taken.items():
                    own[mine.index(p), [self.place[i][1] for i in columns]] = 1.0
                np.maximum(takes, own, out=takes)
                if stays:
                    barred[: len(made)] += (self._table(v, made, mine, True) - table) @ own[: len(mine)]
        for (g, r), (takes, barred) in edges.items():
            if g == r:  # a loop that hands on what it carries
                self.loops[g] = (self.prices[g] @ takes).diagonal()
                self.own[g] += self.loops[g] + barred.diagonal()
        kept = [(key, *arrays) for key, arrays in edges.items() if key[0] != key[1]]
        self.giver, self.reader = (np.array([key[i] for key, *_ in kept], dtype=np.int64) for i in (0, 1))
        self.takes = np.array([takes for _, takes, _ in kept]).reshape(len(kept), width, most)
        self.barred = np.array([barred for *_, barred in kept]).reshape(len(kept), most, most)
        self.numbers = np.arange(len(kept))

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

    def _taken(self, states: Array) -> Array:
        """The parts in which each edge takes its giver (edge, part)."""
        return self.takes[self.numbers, :, states[self.reader]]

    def _over_nodes(self, amounts: Array, nodes: Array) -> Array:
        """The sums of rows of edges over their nodes."""
        found = np.zeros((len(self.states), amounts.shape[1]))
        np.add.at(found, nodes, amounts)
        return found

    def _free(self, needed: Array, nodes: Array | slice = slice(None)) -> tuple[Array, Array]:
        """Which parts are there, and which cost nothing besides: those that are sliced where the whole value is."""
        there = needed > 0
        return there, (there & self.whole[nodes]).any(1, keepdims=True) & self.slices[nodes]

    def _cost(self, states: Array) -> float:
        nodes = np.arange(len(states))
        there, sliced = self._free(self._over_nodes(self._taken(states), self.giver))
        prices = self.prices[nodes, states]
        paid = there & (~sliced | (prices >= _BARRED))
        barred = self.barred[self.numbers, states[self.giver], states[self.reader]].sum()
        return float(self.own[nodes, states].sum() + (prices * paid).sum() + barred)

    # --- messages ---

    def _tables(self, prices: Array, readers: Array, edges: Array) -> Array:
        """The prices of these edges by pair of nodes (pair, state of the lower node, state of the higher), where so
        many readers of a giver share a change."""
        return self._by_pair(prices[self.giver[edges]] @ self.takes[edges], readers, edges)

    def _by_pair(self, each: Array, readers: Array, edges: Array) -> Array:
        """The prices `each` of these edges (edge, state of the giver, state of the reader), by pair of nodes."""
        giver = self.giver[edges]
        each = np.where(each < _BARRED, each / readers[giver][:, None, None], each) + self.barred[edges]
        turned = giver > self.reader[edges]
        each[turned] = each[turned].transpose(0, 2, 1)
        found = np.zeros((len(self.pairs), *self.barred.shape[1:]))
        np.add.at(found, self.pair[edges], each)
        return found

    def _messages(self, own: Array, tables: Array, rounds: int, deadline: float) -> tuple[Array, Array]:
        """Messages that go forth and back along the nodes in their order, by pair: to its lower node, and to its
        higher."""
        later: list[list[int]] = [[] for _ in self.states]
        earlier: list[list[int]] = [[] for _ in self.states]
        ends = list(self.pairs)
        for (a, b), i in self.pairs.items():
            later[a].append(i)
            earlier[b].append(i)
        lower, higher = np.zeros((2, len(ends), own.shape[1]))

        def send(s: int, is_forth: bool) -> None:
            belief = own[s] + lower[later[s]].sum(0) + higher[earlier[s]].sum(0)
            belief /= max(len(later[s]), len(earlier[s]), 1)
            for i in later[s] if is_forth else earlier[s]:
                if is_forth:
                    message = ((belief - lower[i])[:, None] + tables[i]).min(0)
                    higher[i] = message - message.min()
                else:
                    message = ((belief - higher[i])[None] + tables[i]).min(1)
                    lower[i] = message - message.min()

        for _ in range(rounds):
            for s in range(len(self.states)):
                send(s, True)
            for s in reversed(range(len(self.states))):
                send(s, False)
            if time.monotonic() > deadline:
                break
        return lower, higher

    def _by_messages(self, deadline: float) -> Array:
        """A choice read from messages."""
        readers = np.bincount(self.giver, minlength=len(self.states))
        tables = self._tables(self.prices, readers, self.numbers)
        lower, _ = self._messages(self.own, tables, _ROUNDS, deadline)
        beliefs = self.own.copy()
        read: list[list[tuple[int, int]]] = [[] for _ in self.states]
        for (a, b), i in self.pairs.items():
            beliefs[a] += lower[i]
            read[b].append((a, i))
        states = np.zeros(len(self.states), dtype=np.int64)
        for s, belief in enumerate(beliefs):
            for a, i in read[s]:
                belief += tables[i, states[a]]
            states[s] = belief.argmin()
        return states

    def bound(self, deadline: float) -> float:
        """No choice with the ways of the start costs less than this.

        Whatever a giver's changes cost, they cost at least what each of its readers needs alone: the dearest of its
        parts, each for the price of its own change or of that to the whole value, of which it may be a slice. So they
        cost at least the mean of that over the readers: a sum over edges. Messages move prices from edges to nodes and
        back, and what a node has then is divided among its edges. The sum of what each edge costs at least is a bound
        for any messages, and any shares."""
        if not self.is_possible:
            return 0.0
        nodes, width = self.slices.shape
        spare = EPSILON / self.model.unit
        prices = np.where(self.prices < _BARRED, np.maximum(self.prices - spare, 0.0), self.prices)
        whole = np.where(self.whole[:, None], prices, math.inf).min(2, initial=math.inf)
        least = np.where(self.slices[:, None], np.minimum(prices, whole[:, :, None]), prices)
        readers = np.bincount(self.giver, minlength=nodes)
        own = self.own - 2 * spare
        for g, loop in self.loops.items():  # the node is one of its readers
            readers[g] += 1
            slices = np.where(prices[g] > 0, prices[g], math.inf).min(1, initial=math.inf)
            own[g] -= loop - np.where(np.isfinite(slices), np.minimum(loop, slices), 0.0) / readers[g]
        each = np.zeros(self.barred.shape)
        for p in range(width):
            each = np.maximum(each, least[self.giver, :, p, None] * self.takes[:, None, p])
        tables = self._by_pair(each, readers, self.numbers)
        lower, higher = self._messages(own, tables, _BOUND_ROUNDS, deadline)
        if not len(tables):
            return float(own.min(1).sum())
        a, b = np.array(list(self.pairs), dtype=np.int64).T
        beliefs = own.copy()
        np.add.at(beliefs, a, lower)
        np.add.at(beliefs, b, higher)
        after, before = np.bincount(a, minlength=nodes), np.bincount(b, minlength=nodes)
        rest = tables - lower[:, :, None] - higher[:, None, :]
        found: list[float] = []
        for to_lower, to_higher in ((1, 1), (1, 0), (0, 1)):  # an edge's shares of its nodes
            shares = to_lower * after + to_higher * before
            kept = float(beliefs[shares == 0].min(1).sum())
            each_share = beliefs / np.maximum(shares, 1)[:, None]
            whole_edges = rest + to_lower * each_share[a][:, :, None] + to_higher * each_share[b][:, None, :]
            found.append(kept + float(whole_edges.min((1, 2)).sum()))
        return max(found)

    # --- trees ---

    def _by_tree(self, states: Array, rng: np.random.Generator, divided: bool) -> Array:
        """The cheapest states along a random spanning tree. `divided`: whether readers divide a change among them."""
        ends = list(self.pairs)
        tree, inside = self._spanning(rng.permutation(len(ends)), ends)
        edges = self.numbers[inside[self.pair]]
        others = self.numbers[~inside[self.pair]]
        taken = self._taken(states)
        needed = self._over_nodes(taken, self.giver)
        there, sliced = self._free(needed - self._over_nodes(taken[edges], self.giver[edges]))
        dear = self.prices >= _BARRED
        own = self.own + (self.prices * (there[:, None] & (~sliced[:, None] | dear))).sum(2)
        open_ = np.where((there | sliced)[:, None] & ~dear, 0.0, self.prices)
        # What the readers beside the tree would pay alone, if they changed.
        giver, reader = self.giver[others], self.reader[others]
        there, sliced = self._free(needed[giver] - taken[others], giver)
        prices = self.prices[giver, states[giver]]
        prices = np.where((there | sliced) & (prices < _BARRED), 0.0, prices)
        alone = (prices[:, None] @ self.takes[others])[:, 0] + self.barred[others, states[giver]]
        own += self._over_nodes(alone, reader)
        own += self._over_nodes(self.barred[others, :, states[reader]], giver)
        readers = np.bincount(self.giver[edges], minlength=len(self.states)) if divided else np.ones(len(self.states))
        tables = self._tables(open_, readers, edges)
        return self._cheapest(own, tables, tree)

    def _spanning(self, order: Array, ends: Sequence[tuple[int, int]]) -> tuple[list[list[tuple[int, int]]], Array]:
        """The neighbours of each node in a spanning forest, with the pair between, and which pairs are in it."""
        above = list(range(len(self.states)))
        tree: list[list[tuple[int, int]]] = [[] for _ in self.states]
        inside = np.zeros(len(ends), dtype=bool)
        for i in order.tolist():
            a, b = ends[i]
            x, y = a, b
            while above[x] != x:
                above[x] = x = above[above[x]]
            while above[y] != y:
                above[y] = y = above[above[y]]
            if x != y:
                above[x] = y
                inside[i] = True
                tree[a].append((b, i))
                tree[b].append((a, i))
        return tree, inside

    def _cheapest(self, own: Array, tables: Array, tree: Sequence[Sequence[tuple[int, int]]]) -> Array:
        """The cheapest states of a forest, whose pairs have these prices. Changes `own`."""
        parent: dict[int, tuple[int, Array]] = {}
        order: list[int] = []
        seen = [False] * len(own)
        for start in range(len(own)):
            stack = [] if seen[start] else [start]
            while stack:
                g = stack.pop()
                seen[g] = True
                order.append(g)
                for other, i in tree[g]:
                    if not seen[other]:
                        parent[other] = g, tables[i] if other < g else tables[i].T
                        stack.append(other)
        picks: dict[int, Array] = {}
        for g in reversed(order):
            if g in parent:
                up, table = parent[g]
                table = own[g][:, None] + table
                picks[g] = table.argmin(0)
                own[up] += table.min(0)
        states = np.zeros(len(own), dtype=np.int64)
        for g in order:
            states[g] = picks[g][states[parent[g][0]]] if g in parent else own[g].argmin()
        return states
