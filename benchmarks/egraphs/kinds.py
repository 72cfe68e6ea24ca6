"""The kinds of hard e-graphs, each with a size and a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.egraphs.engine import EGraph
from benchmarks.egraphs.tensors import tensor_program

Kind = Callable[[int, int], dict[str, Any]]


def _serialize(rows: list[list[tuple[float, list[int]]]], roots: list[int]) -> dict[str, Any]:
    nodes = {
        f"{c}.{k}": {
            "op": f"f{len(children)}",
            "children": [f"{x}.0" for x in children],
            "eclass": str(c),
            "cost": cost,
            "subsumed": False,
        }
        for c, row in enumerate(rows)
        for k, (cost, children) in enumerate(row)
    }
    return {"nodes": nodes, "root_eclasses": [str(r) for r in roots], "class_data": {}}


def cyclic(nodes: int, seed: int = 0) -> dict[str, Any]:
    """Classes with about three candidates; the first reads earlier classes, the others any near ones, so that many
    choices run in circles. One cost in five is 0."""
    rng = random.Random(seed)
    count = max(4, nodes // 3)
    rows: list[list[tuple[float, list[int]]]] = []
    for c in range(count):
        near = range(max(0, c - 40), c)
        row = [(_price(rng, 30), rng.sample(near, min(len(near), rng.randint(1, 3))))]
        around = [x for x in range(max(0, c - 40), min(count, c + 40)) if x != c]
        row += [
            (_price(rng, 15), rng.sample(around, min(len(around), rng.randint(1, 3)))) for _ in range(rng.randint(0, 4))
        ]
        rows.append(row)
    return _serialize(rows, sorted({count - 1, *rng.sample(range(count), 3)}))


def _price(rng: random.Random, most: int) -> float:
    return 0.0 if rng.random() < 0.2 else float(rng.randint(1, most))


def associative(nodes: int, seed: int = 0) -> dict[str, Any]:
    """Sums of subsets of a few terms, all ways to bracket and order them at once: a class for each subset, a candidate
    for each way to cut it in two. Several sums are wanted; what they share decides."""
    rng = random.Random(seed)
    groups = max(1, round(nodes / 3100))
    terms = 8 if nodes > 1500 else 7 if nodes > 500 else 5
    rows: list[list[tuple[float, list[int]]]] = []
    roots: list[int] = []
    for _ in range(groups):
        place: dict[int, int] = {}
        base = len(rows)
        for s in range(1, 1 << terms):
            place[s] = base + len(place)
        for s in place:
            row: list[tuple[float, list[int]]] = []
            if s & (s - 1) == 0:
                row.append((float(rng.randint(1, 5)), []))
            part = (s - 1) & s
            while part > s ^ part:
                row.append((float(rng.randint(8, 12)), [place[part], place[s ^ part]]))
                part = (part - 1) & s
            rows.append(row)
        wanted = rng.sample(range(1 << (terms - 3), 1 << terms), 9)
        roots += [place[s] for s in wanted]
    return _serialize(rows, roots)


def sharing(nodes: int, seed: int = 0) -> dict[str, Any]:
    """Layers: each class can be computed from one of several small sets of the next layer's classes, which are dear
    and shared by many."""
    rng = random.Random(seed)
    width, choices = 30, 4
    layers = max(2, nodes // (width * choices))
    rows: list[list[tuple[float, list[int]]]] = []
    for layer in range(layers):
        for _ in range(width):
            below = range((layer - 1) * width, layer * width)
            row = [
                (float(rng.randint(5, 20)), rng.sample(below, rng.randint(2, 3)) if layer else [])
                for _ in range(choices)
            ]
            rows.append(row)
    return _serialize(rows, list(range((layers - 1) * width, (layers - 1) * width + 6)))


def fan_in(nodes: int, seed: int = 0) -> dict[str, Any]:
    """Many readers, each served by one of a few hubs; a hub costs much and serves all. Greedy opens too many."""
    rng = random.Random(seed)
    served = max(2, nodes // 6)
    hubs = max(3, served // 12)
    rows: list[list[tuple[float, list[int]]]] = [[(float(rng.randint(30, 60)), [])] for _ in range(hubs)]
    for i in range(served):
        near = [(i * hubs // served + d) % hubs for d in rng.sample(range(-4, 5), 5)]
        rows.append([(float(rng.randint(1, 12)), [h]) for h in dict.fromkeys(near)])
    first = hubs
    rows.append([(0.0, list(range(first, first + served)))])
    return _serialize(rows, [len(rows) - 1])


def algebra(nodes: int, seed: int = 0) -> dict[str, Any]:
    """Sums of products under commutativity, associativity and distribution both ways, run until there are `nodes`:
    circles, many candidates a class, several results."""
    rng = random.Random(seed)
    g = EGraph(lambda op, _data, _operands: {"add": 4.0, "mul": 7.0}.get(op, 0.0 if op == "one" else 1.0))
    roots: list[int] = []
    one = g.add("one")
    for _ in range(max(1, nodes // 400)):
        names = [g.add(f"v{rng.randrange(max(6, nodes // 150))}") for _ in range(5)]
        total = g.add("mul", names[0], names[1])
        for _ in range(4):
            a, b = rng.sample(names, 2)
            total = g.add("add", total, g.add("mul", a, b))
        roots.append(total)
    grown = 0
    while len(g.nodes) < nodes and grown != len(g.nodes):
        grown = len(g.nodes)
        _rewrite(g, one, nodes)
        g.rebuild()
    return g.serialize(roots)


def _rewrite(g: EGraph, one: int, nodes: int) -> None:
    by_class: dict[int, list[tuple[str, int, int]]] = {}
    for node, c in g.nodes.items():
        if len(node) == 3:
            by_class.setdefault(g.find(c), []).append(node)  # type: ignore[arg-type]
    for node, c in list(g.nodes.items()):
        if len(g.nodes) >= nodes:
            return
        if len(node) != 3:
            continue
        op, a, b = node
        a, b = g.find(a), g.find(b)
        g.union(c, g.add(op, b, a))
        for inner, x, y in by_class.get(a, ())[:6]:
            if inner == op:
                g.union(c, g.add(op, x, g.add(op, y, b)))
            elif op == "mul":
                g.union(c, g.add("add", g.add("mul", x, b), g.add("mul", y, b)))
            else:
                for other, u, v in by_class.get(b, ())[:6]:
                    if other == "mul" and g.find(u) == g.find(x):
                        g.union(c, g.add("mul", x, g.add("add", y, v)))
        if op == "mul" and len(by_class.get(c, ())) < 3:
            g.union(c, g.add("mul", c, one))


KINDS: dict[str, Kind] = {
    "tensors": tensor_program,
    "cyclic": cyclic,
    "associative": associative,
    "sharing": sharing,
    "fan_in": fan_in,
    "algebra": algebra,
}
