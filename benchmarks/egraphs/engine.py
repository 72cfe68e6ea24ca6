"""A minimal e-graph: it saturates the generated programs and writes them as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Node = tuple[Any, ...]  # operator, then classes; what is not a class belongs to the operator's name


class EGraph:
    """Hash-consed nodes over classes with union-find. `cost`: of an operator name and the class' data; `data` (a
    shape) is that of the first node of a class."""

    def __init__(self, cost: Callable[[str, Any, list[Any]], float]) -> None:
        self.cost = cost
        self.parent: list[int] = []
        self.data: list[Any] = []
        self.nodes: dict[Node, int] = {}

    def find(self, c: int) -> int:
        while self.parent[c] != c:
            self.parent[c] = self.parent[self.parent[c]]
            c = self.parent[c]
        return c

    def add(self, op: str, *children: int, data: Any = None) -> int:
        node = (op, *map(self.find, children))
        if node not in self.nodes:
            self.nodes[node] = len(self.parent)
            self.parent.append(len(self.parent))
            self.data.append(data)
        return self.find(self.nodes[node])

    def union(self, a: int, b: int) -> None:
        a, b = sorted((self.find(a), self.find(b)))
        self.parent[b] = a

    def rebuild(self) -> None:
        """Congruence: equal nodes have one class."""
        while True:
            old, self.nodes = self.nodes, {}
            merged = False
            for node, c in old.items():
                canonical = (node[0], *map(self.find, node[1:]))
                c = self.find(c)
                other = self.nodes.setdefault(canonical, c)
                if self.find(other) != c:
                    self.union(other, c)
                    merged = True
            if not merged:
                return

    def serialize(self, roots: list[int]) -> dict[str, Any]:
        """The egraph-serialize format. A child is named by some node of its class."""
        ids: dict[int, list[str]] = {}
        named: list[tuple[str, Node, int]] = []
        for node, c in self.nodes.items():
            c = self.find(c)
            row = ids.setdefault(c, [])
            row.append(f"{c}.{len(row)}")
            named.append((row[-1], node, c))
        nodes = {
            name: {
                "op": node[0],
                "children": [ids[self.find(x)][0] for x in node[1:]],
                "eclass": str(c),
                "cost": self.cost(node[0], self.data[c], [self.data[self.find(x)] for x in node[1:]]),
                "subsumed": False,
            }
            for name, node, c in named
        }
        return {"nodes": nodes, "root_eclasses": [str(self.find(r)) for r in roots], "class_data": {}}
