"""What is reached from where: the one walk over graphs of any kind in which each node is visited once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


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
