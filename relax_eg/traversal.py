"""Walks over graphs of any kind that visit each node once, without recursion: what is reached, and what is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """The nodes that are reached from `starts`, these included, each once: depth first, of several nodes the last one
    first. Linear in the nodes and edges. `following`: the nodes that follow a node, called once for each."""
    found: dict[T, None] = {}
    todo = list(starts)
    while todo:
        x = todo.pop()
        if x not in found:
            found[x] = None
            todo += following(x)
    return found


def grouped(pairs: Iterable[tuple[T, V]]) -> dict[T, list[V]]:
    """The second parts of pairs by the first ones, in order: for edges, what each node leads to."""
    found: dict[T, list[V]] = {}
    for x, y in pairs:
        found.setdefault(x, []).append(y)
    return found


def connected(nodes: Iterable[T], edges: Iterable[tuple[T, T]]) -> list[list[T]]:
    """The connected parts of a graph whose edges join nodes of it, each in the order of `nodes`, as the parts are by
    their first nodes. Linear in the nodes and edges."""
    beside: dict[T, list[T]] = {x: [] for x in nodes}
    for x, y in edges:
        beside[x].append(y)
        beside[y].append(x)
    number: dict[T, int] = {}
    parts: list[list[T]] = []
    for x in beside:
        if x not in number:
            number.update(dict.fromkeys(reached((x,), beside.__getitem__), len(parts)))
            parts.append([])
        parts[number[x]].append(x)
    return parts


def operands_first(starts: Iterable[T], below: Callable[[T], Iterable[T]]) -> list[T]:
    """The nodes that are reached from `starts`, each after those `below` it, the first of them first. An edge that
    closes a cycle is ignored. Linear in the nodes and edges. `below` is called once for each node."""
    order: list[T] = []
    entered: set[T] = set()
    # The nodes on the way down, each behind the iterator that it came from.
    way: list[T] = []
    rest: list[Iterator[T]] = [iter(starts)]
    while rest:
        for x in rest[-1]:
            if x not in entered:
                entered.add(x)
                if inside := below(x):
                    way.append(x)
                    rest.append(iter(inside))
                    break
                order.append(x)
        else:
            rest.pop()
            if way:
                order.append(way.pop())
    return order


def derived(ways: Iterable[tuple[T, Collection[T]]]) -> dict[T, None]:
    """The nodes that can be derived: those with a way all of whose nodes can be. In an order in which they can be
    derived. Linear in the ways and their nodes.

    - `ways`: pairs of a node and the distinct nodes that one way to derive it needs.
    """
    found: dict[T, None] = {}
    listed = list(ways)
    users = grouped((y, way) for way, (_, needs) in enumerate(listed) for y in needs)
    left = [len(needs) for _, needs in listed]
    todo = [x for x, needs in listed if not needs]
    while todo:
        x = todo.pop()
        if x in found:
            continue
        found[x] = None
        for way in users.get(x, ()):
            left[way] -= 1
            if not left[way]:
                todo.append(listed[way][0])
    return found


def leaves(tree: T, parts: Callable[[T], Sequence[T] | None], most: float = math.inf) -> list[T]:
    """The parts of a tree that have none themselves, in order; `parts` returns None for these. A part that is reached
    twice is there twice, so they may be many: from `most` on, what is left is not taken apart."""
    found: list[T] = []
    todo = [tree]
    while todo:
        x = todo.pop()
        inside = parts(x) if len(found) + len(todo) + 1 < most else None
        if inside is None:
            found.append(x)
        else:
            todo += reversed(inside)
    return found


def made_from_below(start: T, below: Callable[[T], Iterable[T]], make: Callable[[T], V], made: dict[T, V]) -> V:
    """What is made of `start`. What `make` returns for a node is put into `made`, after that of the nodes `below` it;
    what is there already is not made again. Linear in the nodes and edges; the graph has no cycles."""
    for x in operands_first((start,), lambda x: () if x in made else below(x)):
        if x not in made:
            made[x] = make(x)
    return made[start]
