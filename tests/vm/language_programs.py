"""Programs of the language that the tests and `python -m benchmarks.vm` run: lists, trees, recursion, references."""

from __future__ import annotations

from typing import Any

import numpy as np

import relax_eg as rx
from relax_eg.ir.annotations import DataValue
from relax_eg.ops.text import parse

List, Option = rx.script.List, rx.script.Option
SENTENCE = rx.script.data_type("Sentence(a)", Word=("a",), Phrase=("Sentence(a)", "Sentence(a)"))

HEAD = """
@R.data
class List(a):
    Nil = ()
    Cons = (a, List(a))
"""
SCALAR = 'R.Tensor((), "float32")'

PRELUDE = (
    HEAD
    + """
@R.function
def map(f: R.Callable((R.TypeVar("a"),), R.TypeVar("b")), xs: List(R.TypeVar("a"))) -> List(R.TypeVar("b")):
    match xs:
        case List.Nil():
            return List.Nil()
        case List.Cons(h, t):
            return List.Cons(f(h), map(f, t))

@R.function
def foldl(
    f: R.Callable((R.TypeVar("b"), R.TypeVar("a")), R.TypeVar("b")), z: R.TypeVar("b"), xs: List(R.TypeVar("a"))
) -> R.TypeVar("b"):
    match xs:
        case List.Nil():
            return z
        case List.Cons(h, t):
            return foldl(f, f(z, h), t)

@R.function
def filter(p: R.Callable((R.TypeVar("a"),), R.Tensor((), "bool")), xs: List(R.TypeVar("a"))) -> List(R.TypeVar("a")):
    match xs:
        case List.Nil():
            return xs
        case List.Cons(h, t):
            rest = filter(p, t)
            if p(h):
                return List.Cons(h, rest)
            else:
                return rest
"""
)

HIGHER_ORDER = (
    PRELUDE
    + """
@R.function
def compose(
    f: R.Callable((R.Tensor((), "float32"),), R.Tensor((), "float32")),
    g: R.Callable((R.Tensor((), "float32"),), R.Tensor((), "float32")),
) -> R.Callable((R.Tensor((), "float32"),), R.Tensor((), "float32")):
    return lambda x: f(g(x))

@R.function
def main(xs: List(R.Tensor((), "float32")), k: R.Tensor((), "float32")):
    def scaled(x: R.Tensor((), "float32")):
        return x * k
    def factorial(n: R.Tensor((), "int32")) -> R.Tensor((), "int32"):
        if n < 2:
            return 1
        return n * factorial(n - 1)
    both = compose(scaled, lambda x: x + 1.0)
    ys = map(both, filter(lambda x: x > 1.0, xs))
    total = foldl(lambda a, b: a + b, 0.0, ys)
    r = R.new_ref(total)
    R.write_ref(r, R.read_ref(r) + 1.0)
    return ys, R.read_ref(r), factorial(5)
"""
)

RNN = (
    PRELUDE
    + """
@R.function
def main(xs: List(R.Tensor((4,), "float32")), h: R.Tensor((8,), "float32"),
         w: R.Tensor((4, 8), "float32"), u: R.Tensor((8, 8), "float32")):
    return foldl(lambda s, x: R.op.tanh(x @ w + s @ u), h, xs)
"""
)

# Tai, Socher and Manning (2015): binary trees, one cell for each phrase.
TREE_LSTM = """
@R.data
class Sentence(a):
    Word = (a,)
    Phrase = (Sentence(a), Sentence(a))

@R.function
def encode(
    s: Sentence(R.Tensor((8,), "float32")), w: R.Tensor((8, 16), "float32"), u: R.Tensor((16, 40), "float32")
) -> R.Tuple(R.Tensor((8,), "float32"), R.Tensor((8,), "float32")):
    match s:
        case Sentence.Word(x):
            g = x @ w
            c = R.op.tanh(g[:8])
            return R.op.sigmoid(g[8:]) * R.op.tanh(c), c
        case Sentence.Phrase(a, b):
            l = encode(a, w, u)
            r = encode(b, w, u)
            g = R.op.concatenate((l[0], r[0])) @ u
            c = R.op.sigmoid(g[:8]) * R.op.tanh(g[8:16]) + R.op.sigmoid(g[16:24]) * l[1] + R.op.sigmoid(g[24:32]) * r[1]
            return R.op.sigmoid(g[32:]) * R.op.tanh(c), c

@R.function
def main(s: Sentence(R.Tensor((8,), "float32")), w: R.Tensor((8, 16), "float32"), u: R.Tensor((16, 40), "float32")):
    h = encode(s, w, u)
    return h[0]
"""

# The same for a list of trees.
TREES = (
    HEAD
    + TREE_LSTM.partition("@R.function\ndef main")[0]
    + """
@R.function
def main(
    ss: List(Sentence(R.Tensor((8,), "float32"))), w: R.Tensor((8, 16), "float32"), u: R.Tensor((16, 40), "float32")
) -> List(R.Tensor((8,), "float32")):
    match ss:
        case List.Nil():
            return List.Nil()
        case List.Cons(s, more):
            h = encode(s, w, u)
            return List.Cons(h[0], main(more, w, u))
"""
)

MANDELBROT = """
@R.function
def escape(
    a: R.Tensor((), "float32"), b: R.Tensor((), "float32"), x: R.Tensor((), "float32"), y: R.Tensor((), "float32"),
    n: R.Tensor((), "int32"),
) -> R.Tensor((), "int32"):
    if R.op.logical_or(n <= 0, x * x + y * y > 4.0):
        return n
    return escape(a, b, x * x - y * y + a, x * y * 2.0 + b, n - 1)

@R.function
def main(a: R.Tensor((), "float32"), b: R.Tensor((), "float32"), n: R.Tensor((), "int32")):
    return n - escape(a, b, 0.0, 0.0, n)
"""

# Greedy decoding with a GRU into a buffer of known size: a loop.
DECODE = """
@R.function
def decode(
    written: R.Tensor((256,), "int32"), place: R.Tensor((), "int32"), h: R.Tensor((1, 64), "float32"),
    table: R.Tensor((128, 64), "float32"), w: R.Tensor((64, 192), "float32"), u: R.Tensor((64, 192), "float32"),
    out: R.Tensor((64, 128), "float32"),
) -> R.Tensor((256,), "int32"):
    if place == 255:
        return written
    x = R.op.take(table, R.op.reshape(R.op.take(written, place, 0), (1,)), 0)
    a = x @ w
    c = h @ u
    z = R.op.sigmoid(a[:, 64:128] + c[:, 64:128])
    n = R.op.tanh(a[:, 128:] + R.op.sigmoid(a[:, :64] + c[:, :64]) * c[:, 128:])
    state = (1.0 - z) * n + z * h
    best = R.op.argmax(state @ out, axis=-1)
    return decode(R.op.dynamic_update_slice(written, best, (place + 1,)), place + 1, state, table, w, u, out)

@R.function
def main(
    written: R.Tensor((256,), "int32"), h: R.Tensor((1, 64), "float32"), table: R.Tensor((128, 64), "float32"),
    w: R.Tensor((64, 192), "float32"), u: R.Tensor((64, 192), "float32"), out: R.Tensor((64, 128), "float32"),
):
    return decode(written, 0, h, table, w, u, out)
"""


def cache_program(width: int = 64, words: int = 128) -> str:
    """Returns a decoder with attention: its keys, its values and what it writes grow by one at each step."""
    return f"""
@R.function
def decode(
    written: R.Tensor(("t",), "int32"), keys: R.Tensor(("t", {width}), "float32"),
    values: R.Tensor(("t", {width}), "float32"), x: R.Tensor((1, {width}), "float32"), most: R.Tensor((), "int32"),
    table: R.Tensor(({words}, {width}), "float32"), w: R.Tensor(({width}, {3 * width}), "float32"),
    out: R.Tensor(({width}, {words}), "float32"),
) -> R.Tensor(ndim=1, dtype="int32"):
    if most == written.shape[0]:
        return written
    a = x @ w
    k = R.op.concat((keys, a[:, {width}:{2 * width}]), axis=0)
    v = R.op.concat((values, a[:, {2 * width}:]), axis=0)
    h = R.op.softmax(a[:, :{width}] @ R.op.permute_dims(k) / 8.0, axis=-1) @ v
    best = R.op.argmax(h @ out, axis=-1)
    following = R.op.take(table, best, 0) + h
    return decode(R.op.concat((written, best), axis=0), k, v, following, most, table, w, out)

@R.function
def main(
    x: R.Tensor((1, {width}), "float32"), most: R.Tensor((), "int32"), table: R.Tensor(({words}, {width}), "float32"),
    w: R.Tensor(({width}, {3 * width}), "float32"), out: R.Tensor(({width}, {words}), "float32"),
):
    a = x @ w
    first = R.op.argmax(x @ out, axis=-1)
    return decode(first, a[:, {width}:{2 * width}], a[:, {2 * width}:], x, most, table, w, out)
"""


MUTUAL = """
@R.function
def even(n: R.Tensor((), "int32")) -> R.Tensor((), "bool"):
    if n == 0:
        return True
    return odd(n - 1)

@R.function
def odd(n: R.Tensor((), "int32")) -> R.Tensor((), "bool"):
    if n == 0:
        return False
    return even(n - 1)

@R.function
def main(n: R.Tensor((), "int32")):
    return even(n)
"""

TOTAL = (
    HEAD
    + """
@R.function
def main(xs: List(R.Tensor((), "float32"))) -> R.Tensor((), "float32"):
    match xs:
        case List.Nil():
            return 0.0
        case List.Cons(h, t):
            return h + main(t)
"""
)

BRACKETED = (
    "(the (small cat)) (saw (a (grey (old mouse))))",
    "((every child) (in (the village))) (knows (this song))",
    "(rain (fell (all night))) (on (the roof))",
    "she (said (that (he (would (come tomorrow)))))",
)


def scalars(values: Any) -> DataValue:
    """Returns the list of these numbers."""
    return rx.script.list_of(List, [np.float32(v) for v in values])


def sentence(text: str, definition: Any, width: int = 8) -> DataValue:
    """Returns the tree of a bracketed sentence, each word as a vector that its letters determine."""
    tokens = text.replace("(", " ( ").replace(")", " ) ").split()
    stack: list[list[DataValue]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
            continue
        if token == ")":
            found = stack.pop()
            stack[-1].append(_joined(found, definition))
            continue
        seed = np.random.default_rng([ord(c) for c in token])
        stack[-1].append(definition.Word(seed.normal(size=width).astype(np.float32)))
    return _joined(stack[0], definition)


def _joined(parts: list[DataValue], definition: Any) -> DataValue:
    whole = parts[-1]
    for p in reversed(parts[:-1]):
        whole = definition.Phrase(p, whole)
    return whole


def tree_weights() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the weights of `TREE_LSTM`."""
    random = np.random.default_rng(0)
    return tuple((random.normal(size=s) / 4).astype(np.float32) for s in ((8, 16), (16, 40)))  # type: ignore[return-value]


def _named(module: rx.types.Module, name: str) -> Any:
    return next(d for d in module.data_types if d.name == name)


def examples() -> dict[str, tuple[rx.types.Module, list[Any]]]:
    """Returns each program with arguments."""
    random = np.random.default_rng(1)
    tree, trees = parse(TREE_LSTM), parse(TREES)
    vectors = rx.script.list_of(List, [random.normal(size=4).astype(np.float32) for _ in range(5)])
    weights = [random.normal(size=s).astype(np.float32) for s in ((8,), (4, 8), (8, 8))]
    return {
        "higher order": (parse(HIGHER_ORDER), [scalars([1, 2, 3]), np.float32(10)]),
        "rnn": (parse(RNN), [vectors, *weights]),
        "tree lstm": (tree, [sentence(BRACKETED[0], tree.data_types[0]), *tree_weights()]),
        "trees": (
            trees,
            [rx.script.list_of(List, [sentence(t, _named(trees, "Sentence")) for t in BRACKETED]), *tree_weights()],
        ),
        "mandelbrot": (parse(MANDELBROT), [np.float32(-0.1), np.float32(0.7), np.int32(40)]),
        "mutual": (parse(MUTUAL), [np.int32(7)]),
        "total": (parse(TOTAL), [scalars(range(6))]),
    }
