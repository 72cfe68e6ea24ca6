"""The programs of `benchmarks.gpu_kernels`: what the room of Pallas takes, in the forms in which users write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import relax_eg as rx
from relax_eg import ir
from relax_eg.tir import Buffer, Read, Reduce, Stage, TensorProgram, loop

DTYPES = ("float32", "bfloat16", "float16")
HEADS = (64, 80, 96, 128, 256)
LENGTHS = (2048, 1999)  # one that blocks divide, one that they do not
_CACHE = (8192, 7001)  # the same for the cache of a decoder
_WINDOW = 512
_CAP = 30.0
_WIDTHS = ((4096, 4096), (1024, 1000))  # rows and columns of weights
_ROWS = (1, 16, 100)


@dataclass(frozen=True)
class Form:
    """A kind of kernel at one dtype and one size that is known while it is searched for.

    - `name`: the kind.
    - `dtype`: of its floats.
    - `size`: the size of a head, or the depth and width of a weight, as text.
    - `fn`: the function, or the module.
    - `specs`: a spec for each argument.
    - `at`: sizes of calls, one kernel for each.
    """

    name: str
    dtype: str
    size: str
    fn: Callable[..., Any] | rx.types.Module
    specs: tuple[str, ...]
    at: tuple[Mapping[str, int], ...]

    @property
    def label(self) -> str:
        return f"{self.name}, {self.dtype}, {self.size}"


def _scores(q: Any, k: Any) -> Any:
    return jnp.matmul(q, k.swapaxes(2, 3), preferred_element_type=jnp.float32) * q.shape[3] ** -0.5


def _averaged(scores: Any, v: Any) -> Any:
    return jax.nn.softmax(scores, axis=-1).astype(v.dtype) @ v


def _chosen(seen: Any, q: Any, k: Any, v: Any) -> Any:
    return _averaged(jnp.where(seen, _scores(q, k), jnp.finfo(jnp.float32).min), v)


def _places(q: Any, k: Any) -> tuple[Any, Any]:
    return jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])[None]


def attention(q: Any, k: Any, v: Any) -> Any:
    return _averaged(_scores(q, k), v)


def half_softmax(q: Any, k: Any, v: Any) -> Any:
    """Attention with its softmax in the dtype of its arguments."""
    return jax.nn.softmax(q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    i, j = _places(q, k)
    return _chosen(i >= j, q, k, v)


def window(q: Any, k: Any, v: Any) -> Any:
    i, j = _places(q, k)
    return _chosen((i >= j) & (i - j < _WINDOW), q, k, v)


def capped(q: Any, k: Any, v: Any) -> Any:
    return _averaged(jnp.tanh(_scores(q, k) / _CAP) * _CAP, v)


def masked(q: Any, k: Any, v: Any, seen: Any) -> Any:
    return _chosen(seen, q, k, v)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return _averaged(_scores(q, k) + bias.astype("float32"), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Four heads of queries for each head of keys."""
    return causal(q, jnp.repeat(k, 4, axis=1), jnp.repeat(v, 4, axis=1))


def decoded(q: Any, k: Any, v: Any) -> Any:
    """One query of each head over a cache, four heads of queries for each head of keys."""
    return attention(q, jnp.repeat(k, 4, axis=1), jnp.repeat(v, 4, axis=1))


def _attentions(dtype: str, head: int) -> Iterator[Form]:
    plain, few = f"1 16 s {head} @ {dtype}", f"1 4 s {head} @ {dtype}"
    at = tuple({"s": n} for n in LENGTHS)
    forms: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "attention": (attention, (plain,) * 3),
        "softmax in its dtype": (half_softmax, (plain,) * 3),
        "causal": (causal, (plain,) * 3),
        "sliding window": (window, (plain,) * 3),
        "soft cap": (capped, (plain,) * 3),
        "mask": (masked, (plain, plain, plain, "1 1 s s @ bool")),
        "bias": (biased, (plain, plain, plain, f"1 16 s s @ {dtype}")),
        "grouped heads": (grouped, (plain, few, few)),
    }
    for name, (fn, specs) in forms.items():
        yield Form(name, dtype, str(head), fn, specs, at)
    one = f"1 16 1 {head} @ {dtype}"
    yield Form("one query", dtype, str(head), decoded, (one, few, few), tuple({"s": n} for n in _CACHE))
    average = (f"n s @ {dtype}", f"s {head} @ {dtype}")
    yield Form(
        "softmax, matmul", dtype, str(head), lambda x, v: jax.nn.softmax(x) @ v, average,
        tuple({"n": 300, "s": n} for n in LENGTHS),
    )  # fmt: skip


def four_bits(x: Any, words: Any, scales: Any) -> Any:
    """A weight of four bits, eight in a word, with a scale for each 32 rows."""
    nibbles = (words[:, None] >> (jnp.arange(8, dtype="uint32") * 4)[:, None]) & 15
    weight = nibbles.reshape(-1, words.shape[1]).astype(x.dtype) - 8
    return x @ (weight.reshape(-1, 32, words.shape[1]) * scales[:, None]).reshape(weight.shape)


def eight_bits(x: Any, codes: Any, scales: Any) -> Any:
    return x @ (codes.astype(x.dtype) * scales)


def looked_up(x: Any, codes: Any, table: Any) -> Any:
    return x @ table[codes.astype("int32")]


def normed_four_bits(x: Any, gain: Any, words: Any, scales: Any) -> Any:
    """The norm of rows before a weight of four bits."""
    wide = x.astype("float32")
    norm = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return four_bits((norm.astype(x.dtype) * gain), words, scales)


def gated_four_bits(x: Any, words: Any, scales: Any) -> Any:
    """A weight of four bits, and a function of the product."""
    return jax.nn.silu(four_bits(x, words, scales))


def _weights(dtype: str, deep: int, wide: int) -> Iterator[Form]:
    x, words = f"n {deep} @ {dtype}", f"{deep // 8} {wide} @ uint32"
    scales, row = f"{deep // 32} {wide} @ {dtype}", f"{wide} @ {dtype}"
    codes, size = f"{deep} {wide} @ int8", f"{deep} x {wide}"
    at = tuple({"n": n} for n in _ROWS)
    yield Form("4-bit weight", dtype, size, four_bits, (x, words, scales), at)
    yield Form("4-bit weight, silu", dtype, size, gated_four_bits, (x, words, scales), at)
    yield Form("norm, 4-bit weight", dtype, size, normed_four_bits, (x, f"{deep} @ {dtype}", words, scales), at)
    yield Form("8-bit weight", dtype, size, eight_bits, (x, codes, row), at)
    table = (x, codes.replace("int8", "uint8"), f"256 @ {dtype}")
    yield Form("weight in a table", dtype, size, looked_up, table, at)


def split_sum(dtype: str, deep: int, wide: int) -> rx.types.Module:
    """A product whose sum is split over a workspace by its author, in eight parts."""
    from relax_eg.shapes import Dim

    n, parts, part, m = Dim.var("n"), Dim.of(8), Dim.of(deep // 8), Dim.of(wide)
    i, j, k, s = (loop(name) for name in "ijks")
    x, w = Buffer("X", (n, Dim.of(deep)), dtype), Buffer("W", (Dim.of(deep), m), dtype)
    between, out = Buffer("P", (parts, n, m), "float32"), Buffer("Y", (n, m), "float32")
    place = s * (deep // 8) + k
    product = x[i, place] * w[place, j]
    from relax_eg.tir import cast

    stages = (
        Stage(between, (s, i, j), Reduce("sum", ((k, part),), cast(product, "float32"))),
        Stage(out, (i, j), Reduce("sum", ((s, parts),), Read("P", (s, i, j), "float32"))),
    )
    program = TensorProgram("split_sum", (x, w), stages, ("Y",), ("P",))
    given = [ir.var("x", ir.Tensor(f"n {deep}", dtype)), ir.var("w", ir.Tensor(f"{deep} {wide}", dtype))]
    return rx.types.Module((ir.pure_function("main", given, [ir.call_tir(program, given)]),))


def forms() -> Iterator[Form]:
    """Yields all forms, the smallest heads of each dtype first."""
    for dtype in DTYPES:
        for head in HEADS:
            yield from _attentions(dtype, head)
        for deep, wide in _WIDTHS:
            yield from _weights(dtype, deep, wide)
            at = tuple({"n": n} for n in _ROWS)
            yield Form("split sum", dtype, f"{deep} x {wide}", split_sum(dtype, deep, wide), (), at)
