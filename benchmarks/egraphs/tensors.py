"""Tensor programs saturated with rules that merge neighbours: two products with one factor in common are the parts of
one product with the other factors side by side. What comes out is deep in sharing (one merged product pays for two),
full of circles (a value is part of a whole that it is part of), and has parts that cost nothing."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.egraphs.engine import EGraph

_LAUNCH = 0.004


def _cost(op: str, shape: tuple[int, int], operands: list[tuple[int, int]]) -> float:
    name = op.split(":")[0]
    if name in ("input", "weight", "split0", "split1"):
        return 0.0
    rows, columns = shape
    if name == "matmul":
        depth = operands[0][1]
        return _LAUNCH + rows * columns * depth / 4e8 * (1 + 24 / columns + 24 / rows)
    if name.startswith("concat"):
        return 2e-5 if name == "concat_weights" else _LAUNCH / 2 + rows * columns / 4e6
    return _LAUNCH + rows * columns / 4e6


def tensor_program(nodes: int, seed: int = 0, branches: int = 5) -> dict[str, Any]:
    """Layers of `branches` products of one input, some added, the sums rectified and put side by side; merging rules
    run until there are about `nodes`."""
    rng = random.Random(seed)
    g = EGraph(_cost)
    x = g.add("input:x", data=(64, 128))
    weights = 0
    layers = max(1, nodes // 700)
    for _ in range(layers):
        parts: list[int] = []
        for _ in range(branches):
            depth, columns = g.data[g.find(x)][1], rng.choice((32, 48, 64, 96))
            w = g.add(f"weight:{weights}", data=(depth, columns))
            weights += 1
            y = g.add("matmul", x, w, data=(64, columns))
            if rng.random() < 0.5:
                y = g.add("relu", y, data=(64, columns))
            if rng.random() < 0.4:
                other = g.add(f"weight:{weights}", data=(depth, columns))
                weights += 1
                y = g.add("add", y, g.add("matmul", x, other, data=(64, columns)), data=(64, columns))
            parts.append(y)
        while len(parts) > 1:
            a, b = parts.pop(0), parts.pop(0)
            rows, columns = 64, g.data[g.find(a)][1] + g.data[g.find(b)][1]
            parts.append(g.add("concat", a, b, data=(rows, columns)))
        mix = g.add(f"weight:{weights}", data=(g.data[g.find(parts[0])][1], 128))
        weights += 1
        x = g.add("add", x, g.add("matmul", parts[0], mix, data=(64, 128)), data=(64, 128))
    for _ in range(6):
        _merge(g, rng, nodes)
        g.rebuild()
        if len(g.nodes) >= nodes:
            break
    return g.serialize([x])


def _halves(g: EGraph, whole: int, a: int, b: int) -> None:
    pair = whole
    g.union(a, g.add("split0:" + _shapes(g, a, b), pair, data=g.data[g.find(a)]))
    g.union(b, g.add("split1:" + _shapes(g, a, b), pair, data=g.data[g.find(b)]))


def _shapes(g: EGraph, a: int, b: int) -> str:
    return f"{g.data[g.find(a)][1]}|{g.data[g.find(b)][1]}"


def _merge(g: EGraph, rng: random.Random, nodes: int) -> None:
    """One round: pairs of products of one input, and pairs of rectified or added values side by side."""
    products: dict[int, list[tuple[int, int]]] = {}
    single: dict[str, list[tuple[int, int]]] = {}
    for node, c in list(g.nodes.items()):
        if node[0] == "matmul":
            products.setdefault(g.find(node[1]), []).append((g.find(node[2]), g.find(c)))
        elif node[0] == "relu":
            single.setdefault("relu", []).append((g.find(node[1]), g.find(c)))
        elif node[0] == "concat":
            a, b = node[1], node[2]
            _halves(g, g.find(c), a, b)
    groups = [(x, pair) for x, row in products.items() for pair in _pairs(row)]
    groups += [(-1, pair) for pair in _pairs(single.get("relu", []))]
    rng.shuffle(groups)
    for x, ((a, ya), (b, yb)) in groups:
        if len(g.nodes) >= nodes:
            return
        (rows, m), (_, n) = g.data[g.find(ya)], g.data[g.find(yb)]
        if m + n > 512 or g.find(ya) == g.find(yb):
            continue
        if x >= 0:
            depth = g.data[g.find(a)][0]
            both = g.add("concat_weights", a, b, data=(depth, m + n))
            whole = g.add("matmul", x, both, data=(rows, m + n))
        else:
            whole = g.add("relu", g.add("concat", a, b, data=(rows, m + n)), data=(rows, m + n))
        g.union(whole, g.add("concat", ya, yb, data=(rows, m + n)))
        _halves(g, whole, ya, yb)


def _pairs(row: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [(a, b) for i, a in enumerate(row) for b in row[i + 1 :]]
