"""Functions that JAX cannot trace for symbolic sizes, traced by what their traces for several sizes have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import TraceError
from relax_eg.frontends.generalized import generalized

Array = Any


def arrays(*shapes: str) -> Callable[[int], list[Any]]:
    def at(n: int) -> list[Any]:
        sizes = [[n if d == "n" else n + 2 if d == "m" else int(d) for d in s.split()] for s in shapes]
        return [jax.ShapeDtypeStruct(s, jnp.float32) for s in sizes]

    return at


def weights_by_numpy(x: Array) -> Array:
    n = len(x)
    return (x * np.arange(n) + np.full(n, 0.5, np.float32)) / math.sqrt(n) * (3.0 / n) * (2 * n - 1)


def loops(x: Array, y: Array) -> Array:
    n, m = len(x), len(y)
    total = jax.lax.fori_loop(0, n, lambda i, c: c + x[i] * i, 0.0)
    _, rows = jax.lax.scan(lambda c, t: (c + t, jnp.where(c > m, jnp.zeros((n, 2)), t)), total, y)
    return jax.lax.cond(total > 0, lambda r: r.reshape(n * m, 2), lambda r: -r.reshape(n * m, 2), rows)


@functools.partial(jax.custom_jvp)
def clipped(x: Array) -> Array:
    return jnp.minimum(x, len(x))


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0]))

FUNCTIONS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (weights_by_numpy, ("n",)),
    (loops, ("n", "m")),
    (lambda x: jnp.convolve(x, jnp.array([1.0, 2.0, 1.0]), mode="same"), ("n",)),
    (lambda x: {"sum": clipped(x) + len(x), "count": jnp.zeros((len(x), 3)).at[:, 1].set(x)}, ("n",)),
    (lambda x, y: jnp.searchsorted(jnp.sort(x), y), ("n", "5")),  # the same number of steps at all sizes here
    (lambda x: jax.random.normal(jax.random.key(0), (len(x),)) + x, ("n",)),
    (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2, len(x)), ("n",)),  # the kind of a transform is an int to Python
]


@pytest.mark.parametrize(("fn", "shapes"), FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_one_program_for_many_sizes(fn: Callable[..., Any], shapes: tuple[str, ...]) -> None:
    at = arrays(*shapes)
    with pytest.raises(TraceError):
        rx.trace(fn, *shapes)
    best = rx.optimize(generalized(fn, [at(9), at(12)]), *shapes, dynamic="capacity", rules=rx.RuleSet("none"))
    random = np.random.default_rng(0)
    for n in (9, 12, 10, 14):
        given = [random.standard_normal(a.shape).astype(np.float32) for a in at(n)]
        assert best.is_own(*given)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), best(*given), jax.jit(fn)(*given)
        )


def test_a_wrong_guess_shows_where_it_is_wrong() -> None:
    """At sizes 3 and 5 one less is the next power of two less two."""

    def padded(x: Array) -> Array:
        return jnp.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x)))

    at = arrays("n")
    best = rx.optimize(generalized(padded, [at(3), at(5)]), "n")
    for n, own in ((3, True), (5, True), (6, False), (4, False)):
        x = np.ones(n, np.float32)
        assert best.is_own(x) is own
        np.testing.assert_array_equal(best(x), padded(x))


def masked(x: Array) -> Array:
    n = len(x)
    scores = jnp.where(np.tril(np.ones((n, n), bool)), x @ x.T, -jnp.inf)
    return jax.nn.softmax(scores) @ (x + np.sin(np.arange(n)[:, None] / np.arange(1, 5)).astype(np.float32))


def test_arrays_of_numpy_are_the_first_elements_of_the_largest() -> None:
    at = arrays("n 4")
    with pytest.raises(TraceError) as error:
        rx.trace(generalized(masked, [at(5), at(40)]), "n 4")
    assert error.value.undecided == ("n <= 40", "n > 40")
    best = rx.optimize(generalized(masked, [at(5), at(40)]), "n 4", bounds="n <= 40", dynamic="capacity")
    for n in (40, 5, 17, 1, 39):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        assert best.is_own(x)
        np.testing.assert_allclose(best(x), jax.jit(masked)(x), rtol=1e-5, atol=1e-5)


def test_three_traces_tell_of_divisions() -> None:
    def pairs(x: Array) -> Array:
        return jnp.pad(x, (0, len(x) % 2)).reshape(-1, 2).sum(1)

    at = arrays("n")
    with pytest.raises(TraceError, match="differ in the numbers 4, 5"):
        rx.trace(generalized(pairs, [at(7), at(9)]), "2*n-1")
    with pytest.raises(TraceError) as error:
        rx.trace(generalized(pairs, [at(7), at(9), at(3)]), "n")
    assert error.value.undecided == ("mod(n + 1, 2) == 0", "mod(n + 1, 2) != 0")
    best = rx.optimize(generalized(pairs, [at(7), at(9), at(3)]), "2*n-1")
    for n in (5, 1, 11):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        assert best.is_own(x)
        np.testing.assert_allclose(best(x), pairs(jnp.asarray(x)), rtol=1e-6)


def unrolled(x: Array) -> Array:
    return sum(x[i] for i in range(len(x)))


def sorts_if_long(x: Array) -> Array:
    return jnp.sort(x) if len(x) > 4 else jnp.flip(x)


def raises_if_long(x: Array) -> Array:
    if len(x) > 4:
        raise ValueError("too long")
    return x


def structured(x: Array) -> Any:
    return [x] * (len(x) // 4 + 1)


def noisy(x: Array) -> Array:
    jax.debug.print("{}", len(x))
    return x


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (unrolled, "differ in their equations"),
        (sorts_if_long, "differ in their equations"),
        (raises_if_long, "it raises ValueError where it is traced"),
        (structured, "differ in the structure of its result"),
        (lambda x: x[: (len(x) - 1).bit_length()], r"differ in the numbers 2, 3"),
        (
            lambda x: x * np.cos(len(x) + np.arange(len(x), dtype=np.float32)),
            "differ in the arrays that they close over",
        ),
        (noisy, "it has effects"),
    ],
)
def test_functions_that_have_too_little_in_common(fn: Callable[..., Any], text: str) -> None:
    at = arrays("n")
    with pytest.raises(TraceError, match=text):
        rx.trace(generalized(fn, [at(3), at(8)]), "n")
