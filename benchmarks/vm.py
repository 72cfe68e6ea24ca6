"""Programs of the language against plain JAX: the dispatch of an instruction, a TreeLSTM over parse trees, loops,
and sizes that depend on values.

    python -m benchmarks.vm [--quick]

Each time is the least of several runs, made in turns. Both sides of a row are measured in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import relax_eg as rx
from benchmarks import Quick
from relax_eg.ir.annotations import DataValue
from relax_eg.rules.checking.check import without_checks
from relax_eg.vm.instructions import Code, Jump, Move, Return
from relax_eg.vm.machine import VirtualMachine
from tests.vm.language_programs import BRACKETED, DECODE, MANDELBROT, TREES, cache_program, sentence, tree_weights

ROUNDS = 7  # chosen: runs of each side
TREE_COUNT = 200  # given: the trees for which the project promises a figure
CAPACITY = 1024  # chosen: places of the cache by hand
WIDTH, WORDS = 256, 1024  # chosen: of the decoder with a cache
MOVES = 100_000  # chosen: instructions of a run


def in_turns(*sides: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """Returns the least seconds of each side."""
    for side in sides:
        side()
    best = [float("inf")] * len(sides)
    for _ in range(rounds):
        for i, side in enumerate(sides):
            started = time.perf_counter()
            jax.block_until_ready(side())
            best[i] = min(best[i], time.perf_counter() - started)
    return best


def instruction() -> float:
    """Returns the seconds of a move or jump."""
    pairs = [x for i in range(MOVES // 2) for x in (Move(0, 1), Jump(-1, 2 * i + 2))]
    code = Code("moves", 2, (None, None), (*pairs, Return(-1, 0)), None)
    machine = VirtualMachine(lambda name: code, None)  # type: ignore[arg-type]
    return in_turns(lambda: machine.call("moves", (1, 2)))[0] / MOVES


def eager(s: DataValue, w: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The TreeLSTM in Python, each operator by itself."""
    if s.constructor == "Word":
        g = s.fields[0] @ w
        c = jnp.tanh(g[:8])
        return jax.nn.sigmoid(g[8:]) * jnp.tanh(c), c
    left, right = (eager(f, w, u) for f in s.fields)
    g = jnp.concatenate((left[0], right[0])) @ u
    c = jax.nn.sigmoid(g[:8]) * jnp.tanh(g[8:16])
    c = c + jax.nn.sigmoid(g[16:24]) * left[1] + jax.nn.sigmoid(g[24:32]) * right[1]
    return jax.nn.sigmoid(g[32:]) * jnp.tanh(c), c


def escape(a: float, b: float, n: int) -> Any:
    """Mandelbrot by hand."""

    def step(state: Any) -> Any:
        x, y, left = state
        return x * x - y * y + a, x * y * 2.0 + b, left - 1

    def goes_on(state: Any) -> Any:
        x, y, left = state
        return (left > 0) & (x * x + y * y <= 4.0)

    return n - jax.lax.while_loop(goes_on, step, (jnp.float32(0), jnp.float32(0), n))[2]


def decoded(written: jax.Array, h: jax.Array, table: jax.Array, w: jax.Array, u: jax.Array, out: jax.Array) -> Any:
    """Greedy decoding by hand."""

    def step(state: Any) -> Any:
        written, place, h = state
        a, c = jnp.split(table[written[place]][None] @ w, 3, 1), jnp.split(h @ u, 3, 1)
        z = jax.nn.sigmoid(a[1] + c[1])
        h = (1.0 - z) * jnp.tanh(a[2] + jax.nn.sigmoid(a[0] + c[0]) * c[2]) + z * h
        best = jnp.argmax(h @ out, axis=-1).astype(jnp.int32)
        return jax.lax.dynamic_update_slice(written, best, (place + 1,)), place + 1, h

    return jax.lax.while_loop(lambda s: s[1] != len(written) - 1, step, (written, jnp.int32(0), h))[0]


def cached(x: jax.Array, most: jax.Array, table: jax.Array, w: jax.Array, out: jax.Array) -> Any:
    """Decoding with a cache of keys and values by hand: arrays of `CAPACITY`, written in place."""
    d = x.shape[1]

    def put(whole: jax.Array, row: jax.Array, place: Any) -> jax.Array:
        return jax.lax.dynamic_update_slice(whole, row, (place, *(0,) * (whole.ndim - 1)))

    def step(state: Any) -> Any:
        written, keys, values, x, place = state
        a = x @ w
        keys, values = put(keys, a[:, d : 2 * d], place), put(values, a[:, 2 * d :], place)
        scores = jnp.where(jnp.arange(CAPACITY) <= place, a[:, :d] @ keys.T / 8, -jnp.inf)
        h = jax.nn.softmax(scores, axis=-1) @ values
        best = jnp.argmax(h @ out, axis=-1).astype(jnp.int32)
        return put(written, best, place), keys, values, table[best] + h, place + 1

    a, empty = x @ w, jnp.zeros((CAPACITY, d))
    written = put(jnp.zeros(CAPACITY, jnp.int32), jnp.argmax(x @ out, axis=-1).astype(jnp.int32), 0)
    first = written, put(empty, a[:, d : 2 * d], 0), put(empty, a[:, 2 * d :], 0), x, jnp.int32(1)
    return jax.lax.while_loop(lambda s: s[4] != most, step, first)[0]


def growing_cache(tokens: int, rounds: int) -> None:
    """Prints the times of a decoder whose cache grows by one at each step, and of one by hand."""
    with without_checks():
        best = rx.optimize(rx.parse(cache_program(WIDTH, WORDS)), dynamic="capacity")
    shapes = (WORDS, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WORDS)
    weights = [numbers(i, *s) / 16 for i, s in enumerate(shapes)]
    args = [numbers(9, 1, WIDTH), jnp.int32(tokens), *weights]
    by_hand = jax.jit(cached)
    np.testing.assert_array_equal(best(*args), by_hand(*args)[:tokens])
    ours, theirs = in_turns(lambda: best(*args), lambda: by_hand(*args), rounds=rounds)
    share = f"{ours / theirs:.2f} of it"
    print(f"growing cache, {tokens:4} tokens {ours * 1e3:8.2f} ms, by hand {theirs * 1e3:8.2f} ms: {share}")


def numbers(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def sizes_by_values(rounds: int, first: int) -> None:
    """Prints the first calls of a program at many sizes that depend on values, and of JAX run operator by operator.
    Each compiles what it needs."""
    with without_checks():
        best = rx.optimize(rx.parse(CHOSEN), dynamic="capacity")
    w = numbers(0, 64, 64)
    seconds = [0.0, 0.0]
    for i in range(rounds):
        x = numbers(i, first + 7 * i, 64)
        for side, run in enumerate((best, eager_chosen)):
            started = time.perf_counter()
            found = run(x, w)
            jax.block_until_ready(found)
            seconds[side] += time.perf_counter() - started
        np.testing.assert_allclose(best(x, w), eager_chosen(x, w), rtol=1e-4, atol=1e-5)
    ours, theirs = (s / rounds * 1e3 for s in seconds)
    count = best.strategy.executables.executable_count
    print(f"masks, {rounds} new sizes         {ours:8.2f} ms a call ({count} executables), eager JAX {theirs:8.2f} ms")


def eager_chosen(x: jax.Array, w: jax.Array) -> jax.Array:
    chosen = x[jnp.sum(x, 1) > 0]
    return jax.nn.softmax(jnp.tanh(chosen @ w), axis=0)


CHOSEN = """
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 64), "float32")):
    with R.dataflow():
        mask = R.greater(R.sum(x, axis=[1]), 0.0)
        R.output(mask)
    chosen = R.masked_select(x, mask)
    y = R.match_cast(chosen, R.Tensor(("m", 64), "float32"))
    return R.softmax(R.tanh(y @ w), axis=0)
"""


def placed(value: Any) -> Any:
    """Returns a value with JAX arrays."""
    if isinstance(value, DataValue):
        return DataValue(value.definition, value.index, tuple(map(placed, value.fields)))
    return jnp.asarray(value)


def main(quick: Quick = False) -> None:
    count = 8 if quick else TREE_COUNT
    steps = 1_000 if quick else 1_000_000
    print(f"instruction                {instruction() * 1e6:8.2f} us")
    with without_checks():
        tree, loop = rx.optimize(rx.parse(TREES)), rx.optimize(rx.parse(MANDELBROT))
    definition = next(d for d in tree.module.data_types if d.name == "Sentence")
    trees = [placed(sentence(BRACKETED[i % len(BRACKETED)], definition)) for i in range(count)]
    whole = rx.script.list_of(rx.script.List, trees)
    w, u = map(jnp.asarray, tree_weights())
    rounds = 1 if quick else ROUNDS
    ours, theirs = in_turns(
        lambda: rx.script.items_of(tree(whole, w, u)), lambda: [eager(t, w, u)[0] for t in trees], rounds=rounds
    )
    for t, found in zip(trees, rx.script.items_of(tree(whole, w, u)), strict=True):
        np.testing.assert_allclose(found, eager(t, w, u)[0], rtol=1e-5, atol=1e-6)
    gain = f"{theirs / ours:.1f}x"
    print(f"TreeLSTM, {len(trees)} trees        {ours * 1e3:8.2f} ms, eager JAX {theirs * 1e3:8.2f} ms: {gain}")
    by_hand = jax.jit(escape)
    with without_checks():
        decode = rx.optimize(rx.parse(DECODE))
    shapes = (1, 64), (128, 64), (64, 192), (64, 192), (64, 128)
    given = [jnp.zeros(256, jnp.int32), *(numbers(i, *s) / 4 for i, s in enumerate(shapes))]
    by_hand_decode = jax.jit(decoded)
    np.testing.assert_array_equal(decode(*given), by_hand_decode(*given))
    ours, theirs = in_turns(lambda: decode(*given), lambda: by_hand_decode(*given), rounds=rounds)
    share = f"{ours / theirs:.2f} of it"
    print(f"decoding, 255 tokens       {ours * 1e3:8.2f} ms, by hand {theirs * 1e3:8.2f} ms: {share}")
    growing_cache(64 if quick else CAPACITY, rounds)
    sizes_by_values(*((3, 50) if quick else (40, 1000)))
    a, b, n = jnp.float32(-0.1), jnp.float32(0.7), jnp.int32(steps)
    assert int(loop(a, b, n)) == int(by_hand(a, b, n))
    ours, theirs = in_turns(lambda: loop(a, b, n), lambda: by_hand(a, b, n))
    share = f"{ours / theirs:.2f} of it"
    print(f"Mandelbrot, {steps:9,} steps {ours * 1e3:7.2f} ms, by hand {theirs * 1e3:8.2f} ms: {share}")


if __name__ == "__main__":
    typer.run(main)
