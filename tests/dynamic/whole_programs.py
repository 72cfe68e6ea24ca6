"""Programs whose sizes vary, as JAX functions with a spec for each argument, and how they are compared at capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import more_programs as more
import numpy as np
from compiling import QUICKLY
from jax import lax
from padding import POISONS, padded, within

import relax_eg as rx
from relax_eg.dtypes import numpy_dtype
from relax_eg.dynamic import CapacityPlan, plan
from relax_eg.ir import Module, Tensor


@dataclass(frozen=True)
class Program:
    """A program whose sizes vary.

    - `function`, `specs`: the function, and a spec for each argument.
    - `masks`: the number of masks that it needs.
    - `sizes`, `room`: the true sizes to try, and the capacities.
    - `indices`: integer arguments are below this number.
    - `assume`: a statement about the sizes.
    """

    function: Callable[..., Any]
    specs: tuple[str, ...]
    masks: int
    sizes: tuple[Mapping[str, int], ...]
    room: Mapping[str, int]
    indices: int = 4
    assume: str = ""

    def module(self) -> Module:
        return rx.trace(self.function, *self.specs, bounds=self.assume or ())

    def arguments(self, module: Module, sizes: Mapping[str, int], rng: np.random.Generator) -> list[Any]:
        return [argument(p.annotation, sizes, self.indices, rng) for p in module.main.params]


def argument(annotation: Any, sizes: Mapping[str, int], indices: int, rng: np.random.Generator) -> Any:
    assert isinstance(annotation, Tensor) and annotation.shape is not None and annotation.dtype is not None
    shape = tuple(int(d.evaluate(sizes)) for d in annotation.shape)
    dtype = numpy_dtype(annotation.dtype)
    if annotation.dtype.startswith(("int", "uint")):
        return rng.integers(0, indices, shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(bool) if dtype.kind == "b" else rng.normal(size=shape).astype(dtype)


def is_right(
    program: Program, module: Module, p: CapacityPlan, rng: np.random.Generator, poisons: Sequence[str] = POISONS,
    without: Sequence[int] = (),
) -> bool:  # fmt: skip
    """Whether the program at capacity has the results of the program at exact sizes, at all sizes and with every
    poison."""
    run = jax.jit(p.lower(program.room, without=without), compiler_options=QUICKLY)
    for sizes in program.sizes:
        args = program.arguments(module, sizes, rng)
        wanted = jax.tree.leaves(program.function(*map(jnp.asarray, args)))
        for kind in poisons:
            leaves = [padded(x, s, kind, rng) for x, s in zip(args, p.input_shapes(program.room), strict=True)]
            got = jax.tree.leaves(run(leaves, {v: np.int32(n) for v, n in sizes.items()}))
            for want, have in zip(wanted, got, strict=True):
                x, y = np.asarray(within(have, want.shape)), np.asarray(want)
                tolerance = 1e-5 if y.dtype.kind == "f" else 0
                if not np.allclose(x, y, tolerance, tolerance, equal_nan=True):
                    return False
    return True


# --- the programs ---


def attention(x: Any, w: Any, ids: Any, table: Any) -> Any:
    y = x + table[ids]
    y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
    b, s, d = y.shape
    q = (y.reshape(b * s, d) @ w).reshape(b, s, 2, d // 2).transpose(0, 2, 1, 3)
    mixed = jax.nn.softmax(q @ q.transpose(0, 1, 3, 2), axis=-1) @ q
    return jnp.mean(mixed.transpose(0, 2, 1, 3).reshape(b, s, d), axis=1)


def decoder_step(cache: Any, keys: Any, q: Any, new: Any, at: Any) -> Any:
    """One token into place `at` of a cache of `t` places, all of which it looks at."""
    zero = jnp.int32(0)
    cache = lax.dynamic_update_slice(cache, new, (zero, at, zero))
    keys = lax.dynamic_update_slice(keys, new * 2, (zero, at, zero))
    scores = jnp.einsum("bd,btd->bt", q, keys)
    return jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), cache), cache, keys


def prefill(cache: Any, new: Any) -> Any:
    """A prompt of `s` tokens into the front of a cache of fixed length."""
    return lax.dynamic_update_slice(cache, new, (0, 0, 0))


def recurrent(x: Any, w: Any) -> Any:
    def step(h: Any, t: Any) -> Any:
        h = jnp.tanh(t @ w + h)
        return h, h * 2

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x)


def recurrent_backwards(x: Any, w: Any) -> Any:
    def step(h: Any, t: Any) -> Any:
        h = jnp.tanh(t @ w + h)
        return h, h.sum()

    last, ys = lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=True)
    return last, jnp.cumsum(ys)


def until_small(x: Any) -> Any:
    def large(state: Any) -> Any:
        return jnp.any(jnp.abs(state[0]) > 0.1) & (state[1] < 50)

    return lax.while_loop(large, lambda state: (state[0] / (1 + jnp.sum(jnp.abs(state[0]))), state[1] + 1), (x, 0))


def branches(x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda x: x - jnp.max(x), lambda x: x * jnp.mean(x), x)


def histogram(ids: Any, x: Any) -> Any:
    return jnp.zeros((4, 3)).at[ids].add(x), jnp.zeros((4,), jnp.int32).at[ids].max(jnp.arange(ids.shape[0]))


def convolution(x: Any, w: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1,), [(1, 1)])
    return jnp.maximum(y, 0), lax.conv_general_dilated(y, w, (2,), [(2, 0)])


def pooling(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), ((0, 0), (1, 1)))


def ordered(x: Any) -> Any:
    values, places = lax.top_k(x, 2)
    return jnp.sort(x, -1), jnp.argsort(x, -1), jnp.argmax(x, -1), jnp.argmin(x, -1), values, places


def moved(x: Any, y: Any) -> Any:
    n = x.shape[0]
    both = jnp.concatenate([x, y, x[:1]])
    return both, both[n:], both[::-1], both[n - 1 : n + 1], both[1::2], jnp.roll(x, 1), both[-1]


def rows(x: Any, i: Any) -> Any:
    return x[i], jnp.take(x, i, axis=0, mode="clip"), x.at[i].add(x[i])


def merged(x: Any) -> Any:
    b, s = x.shape
    flat = x.reshape(b * s)
    return flat, jnp.cumsum(flat), jnp.tanh(flat).reshape(b, s).sum(0), flat.sum(), flat[1:] - flat[:-1], flat.max()


def running(x: Any) -> Any:
    return jnp.cumsum(x, 0), lax.cumsum(x, 0, reverse=True), lax.cummax(x, 0), lax.cumlogsumexp(x, 0)


def statistics(x: Any) -> Any:
    return jnp.mean(x), jnp.var(x, 0), jnp.linalg.norm(x, axis=1), jnp.prod(x, 0), x.shape[0] * jnp.sum(x, 1)


def normalised(x: Any, g: Any) -> Any:
    return jax.nn.softmax(x, 0), jax.nn.log_softmax(x, 1), jax.nn.logsumexp(x, 0) * g


def products(a: Any, b: Any, c: Any) -> Any:
    return a @ b, (a @ b) @ c, a @ (b @ c), (a.astype(jnp.int32) @ b.astype(jnp.int32)), jnp.einsum("nk,nk->", a, a)


def triangle(x: Any) -> Any:
    n = x.shape[0]
    return jnp.tril(x) @ x, jnp.eye(n) + x, jnp.trace(x), jnp.outer(jnp.arange(n), jnp.arange(n)).sum()


BS = ({"b": 3, "s": 5}, {"b": 1, "s": 1}, {"b": 4, "s": 8}, {"b": 2, "s": 3})
N = ({"n": 5}, {"n": 3}, {"n": 8}, {"n": 7})
NM = ({"n": 5, "m": 3}, {"n": 3, "m": 6}, {"n": 8, "m": 6}, {"n": 4, "m": 4})
PROGRAMS: dict[str, Program] = {
    "attention": Program(attention, ("b s 8", "8 8", "b s @ int32", "6 8"), 3, BS, {"b": 4, "s": 8}),
    "decoder_step": Program(
        decoder_step, ("b t 4", "b t 4", "b 4", "b 1 4", "@ int32"), 2,
        ({"b": 2, "t": 5}, {"b": 3, "t": 4}), {"b": 3, "t": 8},
    ),
    "prefill": Program(prefill, ("b 8 4", "b s 4"), 0, BS[:2], {"b": 4, "s": 8}, assume="s <= 8"),
    "recurrent": Program(recurrent, ("s b 4", "4 4"), 0, BS, {"b": 4, "s": 8}),
    "recurrent_backwards": Program(recurrent_backwards, ("s b 4", "4 4"), 1, BS, {"b": 4, "s": 8}),
    "until_small": Program(until_small, ("n",), 2, N, {"n": 8}),
    "branches": Program(branches, ("n",), 3, N, {"n": 8}),
    "histogram": Program(histogram, ("n @ int32", "n 3"), 2, N, {"n": 8}),
    "convolution": Program(convolution, ("b 2 n", "2 2 3"), 1, ({"b": 2, "n": 5}, {"b": 1, "n": 8}), {"b": 2, "n": 8}),
    "pooling": Program(pooling, ("b n",), 1, ({"b": 2, "n": 5}, {"b": 1, "n": 4}, {"b": 2, "n": 8}), {"b": 2, "n": 8}),
    "ordered": Program(ordered, ("m n",), 4, NM, {"n": 8, "m": 6}, assume="n >= 2"),
    "moved": Program(moved, ("n", "m"), 0, NM, {"n": 8, "m": 6}),
    "rows": Program(rows, ("n 3", "m @ int32"), 1, NM, {"n": 8, "m": 6}, indices=3),
    "merged": Program(merged, ("b s",), 5, BS[:1] + BS[2:], {"b": 4, "s": 8}),
    "running": Program(running, ("n m",), 1, NM, {"n": 8, "m": 6}),
    "statistics": Program(statistics, ("n m",), 6, NM, {"n": 8, "m": 6}),
    "normalised": Program(normalised, ("n m", "m"), 3, NM, {"n": 8, "m": 6}),
    "products": Program(
        products, ("n k", "k m", "m 3"), 9,
        ({"n": 3, "k": 2, "m": 4}, {"n": 2, "k": 5, "m": 1}), {"n": 4, "k": 6, "m": 4},
    ),
    "triangle": Program(triangle, ("n n",), 6, N, {"n": 8}),
    "nested": Program(more.nested, ("n m",), 3, NM, {"n": 8, "m": 6}),
    "calls": Program(more.calls, ("n 2", "m 2"), 4, NM, {"n": 8, "m": 6}),
    "layers": Program(more.layers, ("n 4", "3 4 4"), 2, N, {"n": 8}),
    "merged_loop": Program(more.merged_loop, ("n m",), 1, NM, {"n": 8, "m": 6}),
    "segments": Program(more.segments, ("n 3", "n @ int32"), 2, N, {"n": 8}),
    "table gradient": Program(more.table_gradient, ("12 3", "n 3"), 1, N, {"n": 8}, assume="n <= 12"),
    "windows added": Program(
        more.windows_added, ("12 3", "m 3", "@ int32"), 4, ({"m": 3}, {"m": 5}, {"m": 1}), {"m": 8},
        assume="m <= 12", indices=9,
    ),
    "updated": Program(
        more.updated, ("n 3", "m 3", "@ int32"), 0, ({"n": 5, "m": 3}, {"n": 8, "m": 4}, {"n": 6, "m": 6}),
        {"n": 8, "m": 6}, assume="m <= n", indices=9,
    ),
    "sliced": Program(more.sliced, ("n 3", "@ int32"), 0, N, {"n": 8}, assume="n >= 2", indices=9),
    "odd length": Program(more.odd_length, ("2*n+1",), 3, N, {"n": 8}),
    "gradient": Program(more.gradient, ("n 4", "4 4"), 2, N, {"n": 8}),
    "rematerialised": Program(more.rematerialised, ("n 4", "4 4"), 4, N, {"n": 8}),
    "quantiles": Program(more.quantiles, ("n 4",), 2, N, {"n": 8}),
    "signals": Program(more.signals, ("n",), 6, N, {"n": 8}, assume="n >= 2"),
    "systems": Program(more.systems, ("n n", "n 2"), 13, N, {"n": 8}),
    "orthogonal": Program(more.orthogonal, ("n 3", "n 2"), 3, N, {"n": 8}, assume="n >= 3"),
    "three_diagonals": Program(more.three_diagonals, ("n", "n 2"), 4, N, {"n": 8}, assume="n >= 3"),
    "same_windows": Program(
        more.same_windows, ("b 2 n", "3 2 4"), 3, ({"b": 2, "n": 5}, {"b": 1, "n": 1}, {"b": 2, "n": 8}),
        {"b": 2, "n": 8},
    ),
    "whole_windows": Program(
        more.whole_windows, ("b n",), 1, ({"b": 2, "n": 5}, {"b": 1, "n": 8}), {"b": 2, "n": 8}
    ),
    "noise": Program(more.noise, ("2 @ uint32", "n 3"), 0, N, {"n": 8}),
}  # fmt: skip


def planned(name: str) -> tuple[Program, Module, CapacityPlan]:
    program = PROGRAMS[name]
    module = program.module()
    return program, module, plan(module)
