"""Well-known networks as e-graphs: their operators saturated with the rules of `rules`, the merging ones first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.egraphs.rules import Tensors


class _Builder:
    def __init__(self) -> None:
        self.g = Tensors()
        self.weights = 0

    def weight(self, *shape: int) -> int:
        self.weights += 1
        return self.g.leaf(f"weight:{self.weights}", *shape)

    def dense(self, x: int, n: int) -> int:
        return self.g.new("matmul:", x, self.weight(self.g.data[self.g.find(x)].shape[-1], n))

    def conv(self, x: int, f: int, k: int, stride: int = 1, groups: int = 1) -> int:
        c = self.g.data[self.g.find(x)].shape[0]
        return self.g.new(f"conv:{stride}/", x, self.weight(f, c // groups, k, k))

    def relu_conv(self, x: int, f: int, k: int, stride: int = 1, groups: int = 1) -> int:
        return self.g.new("relu", self.conv(x, f, k, stride, groups))

    def __getattr__(self, op: str) -> Callable[..., int]:
        return lambda *operands: self.g.new(op, *operands)


def _nasrnn(b: _Builder, layers: int) -> list[int]:
    """A recurrent cell found by architecture search, a few steps of it: eight gates of one input and one state."""
    state = b.g.leaf("input:h", 1, 512)
    weights = [(b.weight(512, 512), b.weight(512, 512)) for _ in range(8)]
    for step in range(layers):
        x = b.g.leaf(f"input:{step}", 1, 512)
        t = [b.add(b.g.new("matmul:", x, u), b.g.new("matmul:", state, v)) for u, v in weights]
        m0 = b.add(b.relu(t[0]), b.sigmoid(t[3]))
        m1 = b.add(b.sigmoid(t[1]), b.tanh(t[2]))
        m2 = b.mul(b.sigmoid(t[4]), b.tanh(t[5]))
        m3 = b.mul(b.sigmoid(t[6]), b.relu(t[7]))
        m4 = b.add(b.sigmoid(m1), b.tanh(m2))
        m5 = b.mul(b.tanh(m0), b.tanh(m3))
        state = b.tanh(b.mul(b.tanh(m4), b.tanh(m5)))
    return [state]


def _bert(b: _Builder, layers: int) -> list[int]:
    x = b.g.leaf("input:x", 64, 512)
    for _ in range(layers):
        q, k, v = (b.dense(x, 512) for _ in range(3))
        scores = b.g.new("matmul:", q, b.transpose(k))
        x = b.add(x, b.dense(b.g.new("matmul:", scores, v), 512))
        x = b.add(x, b.dense(b.relu(b.dense(x, 1024)), 512))
    return [x]


def _resnext(b: _Builder, layers: int) -> list[int]:
    x = b.g.leaf("input:x", 256, 28, 28)
    for _ in range(layers):
        y = b.relu_conv(b.relu_conv(x, 128, 1), 128, 3, groups=32)
        x = b.relu(b.add(b.conv(x, 256, 1), b.conv(y, 256, 1)))
    return [x]


def _resnet(b: _Builder, layers: int) -> list[int]:
    """Bottleneck blocks, each stage at half the size and twice the width of the one before."""
    x = b.g.leaf("input:x", 64, 56, 56)
    width = 32
    for layer in range(layers):
        stride = 2 if layer and layer % 3 == 0 else 1
        width *= stride
        y = b.relu_conv(b.relu_conv(x, width, 1), width, 3, stride)
        short = x if layer % 3 else b.conv(x, 4 * width, 1, stride)
        x = b.relu(b.add(b.conv(y, 4 * width, 1), short))
    return [x]


def _mobilenet(b: _Builder, layers: int) -> list[int]:
    """Inverted residuals: wide inside, each channel on its own there, a shortcut between the narrow ends."""
    x = b.conv(b.g.leaf("input:x", 16, 56, 56), 24, 1)
    for layer in range(layers):
        wide = 72 + 24 * (layer % 2)
        y = b.relu_conv(b.relu_conv(x, wide, 1), wide, 3, groups=wide)
        x = b.add(x, b.conv(y, 24, 1))
    return [x]


def _vgg(b: _Builder, layers: int) -> list[int]:
    x = b.g.leaf("input:x", 32, 64, 64)
    outputs: list[int] = []
    for layer in range(layers):
        width = 32 * (1 + layer // 2)
        x = b.relu_conv(b.relu_conv(x, width, 3), width, 3)
        if layer % 2:
            x = b.g.new("pool:2", x)
            # Heads of several sizes on every other stage's end, as detectors have them.
            outputs += [b.conv(x, n, 1) for n in (12, 24, 40)]
    return [x, *outputs]


def _inception(b: _Builder, layers: int) -> list[int]:
    x = b.g.leaf("input:x", 192, 17, 17)
    for _ in range(layers):
        one = b.relu_conv(x, 64, 1)
        two = b.relu_conv(b.relu_conv(x, 48, 1), 64, 3)
        three = b.relu_conv(b.relu_conv(b.relu_conv(x, 64, 1), 96, 3), 96, 3)
        four = b.relu_conv(b.g.new("pool:3", x), 32, 1)
        x = b.g.new("concat:0", b.g.new("concat:0", one, two), b.g.new("concat:0", three, four))
    return [x]


def _squeezenet(b: _Builder, layers: int) -> list[int]:
    x = b.g.leaf("input:x", 64, 56, 56)
    for layer in range(layers):
        width = 16 * (1 + layer % 4)
        squeezed = b.relu_conv(x, width, 1)
        x = b.g.new("concat:0", b.relu_conv(squeezed, 4 * width, 1), b.relu_conv(squeezed, 4 * width, 3))
    return [x]


def _nasnet(b: _Builder, layers: int) -> list[int]:
    """Cells of separable convolutions of the last two cells' values, added in pairs and put side by side."""
    old = x = b.g.leaf("input:x", 64, 28, 28)

    def separable(y: int, k: int) -> int:
        return b.conv(b.conv(b.relu(y), 64, k, groups=64), 64, 1)

    for _ in range(layers):
        h, p = b.conv(b.relu(x), 64, 1), b.conv(b.relu(old), 64, 1)
        pairs = [
            b.add(separable(h, 3), h),
            b.add(separable(p, 3), separable(h, 5)),
            b.add(b.g.new("pool:3", h), p),
            b.add(b.g.new("pool:3", p), b.g.new("pool:3", p)),
            b.add(separable(p, 5), separable(p, 3)),
        ]
        whole = pairs[0]
        for pair in pairs[1:]:
            whole = b.g.new("concat:0", whole, pair)
        old, x = x, whole
    return [x]


def _lstm(b: _Builder, layers: int) -> list[int]:
    """Several steps of a recurrent network with four gates, all its states wanted."""
    h, c = b.g.leaf("input:h", 8, 256), b.g.leaf("input:c", 8, 256)
    weights = [(b.weight(256, 256), b.weight(256, 256)) for _ in range(4)]
    outputs: list[int] = []
    for step in range(layers):
        x = b.g.leaf(f"input:{step}", 8, 256)
        i, f, o, z = (b.add(b.g.new("matmul:", x, u), b.g.new("matmul:", h, v)) for u, v in weights)
        c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.tanh(z)))
        h = b.mul(b.sigmoid(o), b.tanh(c))
        outputs.append(h)
    return outputs


_MODELS: dict[str, tuple[Callable[[_Builder, int], list[int]], int, int]] = {
    # The network, its layers, rounds of merging.
    "nasrnn": (_nasrnn, 5, 2),
    "lstm": (_lstm, 8, 2),
    "bert": (_bert, 8, 2),
    "resnext": (_resnext, 10, 2),
    "resnet": (_resnet, 9, 2),
    "mobilenet": (_mobilenet, 9, 2),
    "vgg": (_vgg, 6, 2),
    "inception": (_inception, 6, 2),
    "squeezenet": (_squeezenet, 8, 2),
    "nasnet": (_nasnet, 5, 1),
}
_ROUNDS = 15


def _saturated(name: str, nodes: int, seed: int, times: int = 1) -> dict[str, Any]:
    """A network, `times` as deep as it usually is here, and what the rules make of it up to `nodes`."""
    network, layers, merges = _MODELS[name]
    b = _Builder()
    roots = network(b, times * layers + seed)
    for round_ in range(_ROUNDS):
        before = len(b.g.nodes)
        if round_ < merges:
            b.g.merge(nodes)
        b.g.round(nodes)
        if len(b.g.nodes) >= nodes or len(b.g.nodes) == before:
            break
    return b.g.serialize(roots)


def _model(name: str) -> Callable[[int, int], dict[str, Any]]:
    return lambda nodes, seed=0: _saturated(name, nodes, seed)


def _acyclic(name: str) -> Callable[[int, int], dict[str, Any]]:
    def make(nodes: int, seed: int = 0) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for times in (1, 2, 4, 8, 16):
            data = without_circles(_saturated(name, times * nodes, seed, times))
            if len(data["nodes"]) >= nodes / 2:
                break
        return data

    return make


def without_circles(data: dict[str, Any]) -> dict[str, Any]:
    """The e-graph without the nodes that close a circle of classes: from the roots depth first, a node that reads a
    class under way goes, as in graph optimizers that keep their e-graphs free of circles. So do nodes that then read a
    class without nodes, and what no root can reach."""
    nodes: dict[str, Any] = data["nodes"]
    rows: dict[str, list[str]] = {}
    for name, node in nodes.items():
        rows.setdefault(node["eclass"], []).append(name)
    below = {name: [nodes[x]["eclass"] for x in node["children"]] for name, node in nodes.items()}
    under_way: set[str] = set()
    kept: dict[str, list[str]] = {}  # of classes that are done
    # A class and the node that is looked at next, and those of its nodes that stay.
    stack: list[tuple[str, int, list[str]]] = []

    def enter(c: str) -> None:
        under_way.add(c)
        stack.append((c, 0, []))

    for root in data["root_eclasses"]:
        if root not in kept:
            enter(root)
        while stack:
            c, i, stay = stack.pop()
            if i == len(rows[c]):
                under_way.remove(c)
                kept[c] = stay
                continue
            name = rows[c][i]
            closes = any(x in under_way or kept.get(x) == [] for x in below[name])
            new = next((x for x in below[name] if x not in kept), None)
            if closes or new is None:
                stack.append((c, i + 1, stay if closes else [*stay, name]))
            else:
                stack.append((c, i, stay))
                enter(new)
    # A child is named by a node of its class that is still there.
    left = {
        name: {**nodes[name], "children": [kept[x][0] for x in below[name]]} for row in kept.values() for name in row
    }
    return {**data, "nodes": left}


MODELS = {name: _model(name) for name in _MODELS} | {f"{name}_acyclic": _acyclic(name) for name in _MODELS}
