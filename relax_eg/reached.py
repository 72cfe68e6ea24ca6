"""Walks over graphs of any kind that visit each node once, without recursion: what is reached, and what is made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
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


def made_from_below(start: T, below: Callable[[T], Iterable[T]], make: Callable[[T], V], made: dict[T, V]) -> V:
    """What is made of `start`. What `make` returns for a node is put into `made`, after that of the nodes `below` it;
    what is there already is not made again. Linear in the nodes and edges; the graph has no cycles."""
    todo = [start]
    while todo:
        x = todo[-1]
        missing = [y for y in below(x) if y not in made] if x not in made else []
        if missing:
            todo += missing
            continue
        if x not in made:
            made[x] = make(x)
        todo.pop()
    return made[start]
