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
    "inception": (_inception, 6, 2),
    "squeezenet": (_squeezenet, 8, 2),
    "nasnet": (_nasnet, 5, 1),
}
_ROUNDS = 15


def _model(name: str) -> Callable[[int, int], dict[str, Any]]:
    def make(nodes: int, seed: int = 0) -> dict[str, Any]:
        network, layers, merges = _MODELS[name]
        b = _Builder()
        roots = network(b, layers + seed)
        for round_ in range(_ROUNDS):
            before = len(b.g.nodes)
            if round_ < merges:
                b.g.merge(nodes)
            b.g.round(nodes)
            if len(b.g.nodes) >= nodes or len(b.g.nodes) == before:
                break
        return b.g.serialize(roots)

    return make


MODELS = {name: _model(name) for name in _MODELS}
