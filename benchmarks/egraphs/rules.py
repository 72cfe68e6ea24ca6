"""Rewriting of tensor programs in an e-graph: patterns written as text, matched class by class, shapes respected.

What the rules are is what graph optimizers of that kind use: commutativity, associativity, linearity, transposes, fused
activations, concatenation and split, and the rules with two left sides that merge operators of one input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.egraphs.engine import EGraph

_LAUNCH = 0.006  # of a kernel, in milliseconds, as are all costs
_MOST_MATCHES = 40  # of one pattern in one class, so that associativity does not fill the e-graph
UNARY = ("relu", "tanh", "sigmoid")
_FREE = ("input", "weight", "split0", "split1", "transpose")


@dataclass(frozen=True, slots=True)
class Tensor:
    """The sizes of a value, and whether it depends on weights alone, so that it is computed before the program runs."""

    shape: tuple[int, ...]
    weight: bool = False


def cost(op: str, out: Tensor, operands: list[Tensor]) -> float:
    """Milliseconds of a kernel: launch, traffic, arithmetic at an efficiency that grows with size."""
    name, _, attribute = op.partition(":")
    if name in _FREE or out.weight:
        return 0.0
    size = math.prod(out.shape)
    if name in ("matmul", "conv"):
        depth = operands[0].shape[-1] if name == "matmul" else math.prod(operands[1].shape[1:])
        work = size * depth
        return round(
            _LAUNCH + work / 2.5e9 * (1.0 + 3e5 / (size + 1e4)) + (0.0005 if attribute.endswith("+") else 0.0), 6
        )
    return round(_LAUNCH + size * (1 + len(operands)) / 1.2e8, 6)


def shape_of(op: str, operands: list[Tensor]) -> Tensor | None:
    """Returns the value of the operator for its operands; None if they do not fit."""
    name, _, attribute = op.partition(":")
    weight = all(t.weight for t in operands)
    shapes = [t.shape for t in operands]
    if name in UNARY:
        return Tensor(shapes[0], weight)
    if name in ("add", "mul"):
        return Tensor(shapes[0], weight) if shapes[0] == shapes[1] else None
    if name == "transpose":
        return Tensor(shapes[0][::-1], weight) if len(shapes[0]) == 2 else None
    if name == "matmul":
        (m, k), (depth, n) = shapes
        return Tensor((m, n), weight) if k == depth else None
    if name == "conv":  # c h w, f c r s
        (c, h, w), (f, d, _, _) = shapes
        stride = int(attribute.split("/")[0])
        return Tensor((f, h // stride, w // stride), weight) if c % d == 0 and f % (c // d) == 0 else None
    if name == "pool":
        return Tensor(shapes[0], weight)
    if name == "enlarge":
        f, c, _, _ = shapes[0]
        return Tensor((f, c, int(attribute), int(attribute)), weight)
    if name == "concat":
        axis = int(attribute)
        a, b = shapes
        same = len(a) == len(b) and len(a) > axis and a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :]
        return Tensor((*a[:axis], a[axis] + b[axis], *a[axis + 1 :]), weight) if same else None
    if name in ("split0", "split1"):
        axis, left, right = map(int, attribute.split("/"))
        (a,) = shapes
        here = left if name == "split0" else right
        return Tensor((*a[:axis], here, *a[axis + 1 :]), weight) if a[axis] == left + right else None
    raise ValueError(f"operator {op!r}")


Pattern = Any  # a variable, or a tuple of an operator and patterns


def pattern(text: str) -> Pattern:
    """`(op a b)` with variables; operators with attributes are written whole."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()

    def read(i: int) -> tuple[Pattern, int]:
        if words[i] != "(":
            return words[i], i + 1
        items: list[Pattern] = []
        i += 1
        while words[i] != ")":
            item, i = read(i)
            items.append(item)
        return tuple(items), i + 1

    return read(0)[0]


_BOTH_WAYS = [
    ("(add a b)", "(add b a)"),
    ("(mul a b)", "(mul b a)"),
    ("(add a (add b c))", "(add (add a b) c)"),
    ("(mul a (mul b c))", "(mul (mul a b) c)"),
    ("(mul a (add b c))", "(add (mul a b) (mul a c))"),
    ("(matmul: a (matmul: b c))", "(matmul: (matmul: a b) c)"),
    ("(matmul: a (add b c))", "(add (matmul: a b) (matmul: a c))"),
    ("(matmul: (add a b) c)", "(add (matmul: a c) (matmul: b c))"),
    ("(transpose (matmul: a b))", "(matmul: (transpose b) (transpose a))"),
    ("(transpose (transpose a))", "a"),
    ("(transpose (add a b))", "(add (transpose a) (transpose b))"),
    ("(transpose (mul a b))", "(mul (transpose a) (transpose b))"),
    ("(add (matmul: a b) (matmul: c d))", "(matmul: (concat:1 a c) (concat:0 b d))"),
    ("(matmul: a (concat:1 b c))", "(concat:1 (matmul: a b) (matmul: a c))"),
    ("(matmul: (concat:0 a b) c)", "(concat:0 (matmul: a c) (matmul: b c))"),
    *((f"(matmul:{u}+ a b)", f"({u} (matmul: a b))") for u in UNARY),
    *((f"({u} (concat:{x} a b))", f"(concat:{x} ({u} a) ({u} b))") for u in UNARY for x in (0, 1)),
    *(
        (f"({o} (concat:{x} a b) (concat:{x} c d))", f"(concat:{x} ({o} a c) ({o} b d))")
        for o in ("add", "mul")
        for x in (0, 1)
    ),
    *((f"(concat:{x} a (concat:{x} b c))", f"(concat:{x} (concat:{x} a b) c)") for x in (0, 1)),
    *((f"(relu (conv:{s}/ a b))", f"(conv:{s}/relu+ a b)") for s in (1, 2)),
    *((f"(conv:{s}/ a (add b c))", f"(add (conv:{s}/ a b) (conv:{s}/ a c))") for s in (1, 2)),
    *(
        (f"(conv:{s}/{u} a (concat:0 b c))", f"(concat:0 (conv:{s}/{u} a b) (conv:{s}/{u} a c))")
        for s in (1, 2)
        for u in ("", "relu+")
    ),
    ("(add (conv:1/ a b) (conv:1/ c d))", "(conv:1/ (concat:0 a c) (concat:1 b d))"),
    *((f"(conv:1/{u} a b)", f"(conv:1/{u} a (enlarge:3 b))") for u in ("", "relu+")),
]
RULES = [(pattern(a), pattern(b)) for a, b in _BOTH_WAYS] + [
    (pattern(b), pattern(a)) for a, b in _BOTH_WAYS if b != "a"
]


class Tensors(EGraph):
    """An e-graph whose classes know their sizes."""

    def __init__(self) -> None:
        super().__init__(cost)
        self.rows: dict[int, dict[str, list[tuple[int, ...]]]] = {}

    def make(self, op: str, *operands: int) -> int | None:
        """The class of an operator on classes; None where they do not fit. What a concatenation joins, split gives."""
        data = shape_of(op, [self.data[self.find(x)] for x in operands])
        if data is None:
            return None
        known = len(self.parent)
        c = self.add(op, *operands, data=data)
        if op.startswith("concat") and len(self.parent) > known:
            self.cut(c, op.partition(":")[2], *operands)
        return c

    def cut(self, whole: int, axis: str, a: int, b: int) -> None:
        sizes = "/".join(str(self.data[self.find(x)].shape[int(axis)]) for x in (a, b))
        for side, x in enumerate((a, b)):
            part = self.make(f"split{side}:{axis}/{sizes}", whole)
            assert part is not None, "the sizes add up"
            self.union(x, part)

    def new(self, op: str, *operands: int) -> int:
        c = self.make(op, *operands)
        assert c is not None, f"{op} of {[self.data[self.find(x)].shape for x in operands]}"
        return c

    def leaf(self, name: str, *shape: int) -> int:
        return self.add(name, data=Tensor(shape, name.startswith("weight")))

    def index(self) -> None:
        self.rows = {}
        for node, c in self.nodes.items():
            self.rows.setdefault(self.find(c), {}).setdefault(node[0], []).append(node[1:])

    def matches(self, p: Pattern, c: int, bound: dict[str, int]) -> Iterator[dict[str, int]]:
        c = self.find(c)
        if isinstance(p, str):
            if bound.get(p, c) == c:
                yield {**bound, p: c}
            return
        for operands in self.rows.get(c, {}).get(p[0], ()):
            yield from self._all(p[1:], operands, bound)

    def _all(self, parts: Pattern, operands: tuple[int, ...], bound: dict[str, int]) -> Iterator[dict[str, int]]:
        if not parts:
            yield bound
            return
        for first in self.matches(parts[0], operands[0], bound):
            yield from self._all(parts[1:], operands[1:], first)

    def build(self, p: Pattern, bound: dict[str, int]) -> int | None:
        if isinstance(p, str):
            return bound[p]
        operands = [self.build(x, bound) for x in p[1:]]
        return None if None in operands else self.make(p[0], *[x for x in operands if x is not None])

    def round(self, nodes: int) -> None:
        """Each rule once at each of its matches, until there are `nodes`."""
        self.index()
        found: list[tuple[int, Pattern, dict[str, int]]] = []
        for c in list(self.rows):
            for left, right in RULES:
                if left[0] in self.rows[c]:
                    for n, bound in enumerate(self.matches(left, c, {})):
                        if n == _MOST_MATCHES:
                            break
                        found.append((c, right, bound))
        found.sort(key=lambda f: f[0])
        for c, right, bound in found:
            if len(self.nodes) >= nodes:
                break
            made = self.build(right, bound)
            if made is not None and self.data[self.find(made)].shape == self.data[self.find(c)].shape:
                self.union(c, made)
        self.rebuild()

    def merge(self, nodes: int) -> None:
        """The rules with two left sides: products and convolutions of one input become parts of one, with the weights
        side by side (smaller kernels enlarged); products of one weight likewise."""
        groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for node, c in self.nodes.items():
            if node[0].startswith(("matmul", "conv")):
                x, w = map(self.find, node[1:])
                groups.setdefault((node[0], 0, x), []).append((w, self.find(c)))
                if node[0].startswith("matmul") and self.data[w].weight:
                    groups.setdefault((node[0], 1, w), []).append((x, self.find(c)))
        for (op, side, shared), row in groups.items():
            for i, (a, ya) in enumerate(row):
                for b, yb in row[i + 1 :]:
                    if len(self.nodes) >= nodes:
                        self.rebuild()
                        return
                    self._merge_two(op, side, shared, (a, ya), (b, yb))
        self.rebuild()

    def _merge_two(self, op: str, side: int, shared: int, one: tuple[int, int], other: tuple[int, int]) -> None:
        (a, ya), (b, yb) = one, other
        if self.find(ya) == self.find(yb):
            return
        if op.startswith("conv"):
            kernel = [self.data[self.find(w)].shape[2] for w in (a, b)]
            if kernel[0] != kernel[1] and not op.startswith("conv:1"):
                return
            a, b = (
                self.new(f"enlarge:{max(kernel)}", w) if k < max(kernel) else w
                for w, k in zip((a, b), kernel, strict=True)
            )
        weights = self.make("concat:0" if op.startswith("conv") or side else "concat:1", a, b)
        if weights is None:
            return
        whole = self.make(op, shared, weights) if side == 0 else self.make(op, weights, shared)
        if whole is None:
            return
        self.cut(whole, "0" if op.startswith("conv") or side else "1", ya, yb)
