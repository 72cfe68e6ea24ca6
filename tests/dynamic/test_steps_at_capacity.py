"""Modules that run in steps: the blocks between the steps run at capacity, so few programs are compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError, OptionError
from relax_eg.rules.checking.check import without_checks

Array = Any

HEAD = """
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int32")):
    with R.dataflow():
        z = R.multiply(x, x)
        mask = R.greater(x, 0.0)
        R.output(z, mask)
"""
TAIL = """
    with R.dataflow():
        y = R.softmax(R.astype(f, dtype="float32"), axis=-1) + R.sum(R.astype(f, dtype="float32"))
        R.output(y)
    return y
"""

LINES: list[tuple[str, Callable[[Array, int], Array]]] = [
    ("f = R.match_cast(u, R.Tensor(('m',), 'float32'))\n    u = R.unique(z)", lambda x, k: np.unique(x * x)),
    ("f = R.match_cast(u, R.Tensor((1, 'm'), 'int32'))\n    u = R.nonzero(z)", lambda x, k: np.nonzero(x)[0][None]),
    ("f = R.match_cast(u, R.Tensor(('m',), 'float32'))\n    u = R.masked_select(z, mask)", lambda x, k: (x * x)[x > 0]),
    ("f = R.match_cast(u, R.Tensor(('m',), 'int32'))\n    u = R.arange_of(k)", lambda x, k: np.arange(k)),
    (
        "f = R.match_cast(u[0], R.Tensor(('m',), 'float32'))\n    u = R.top_k_of(z, k)",
        lambda x, k: np.sort(x * x)[::-1][:k],
    ),
]


def compiled(best: Any) -> int:
    """The programs that a function has compiled."""
    return best.strategy.executables.executable_count


@pytest.mark.parametrize(("lines", "meaning"), LINES, ids=[text.rpartition("R.")[2] for text, _ in LINES])
def test_few_programs_serve_all_sizes(lines: str, meaning: Callable[[Array, int], Array], tmp_path: Path) -> None:
    cast, step = lines.split("\n")
    with without_checks():
        best = rx.optimize(rx.parse(HEAD + step + "\n    " + cast + TAIL), dynamic="capacity")
    assert best.statistics().dynamic == "capacity"
    rng = np.random.default_rng(0)
    for n in (17, *range(19, 32)):
        x = np.round(rng.standard_normal(n) * 8).astype(np.float32)
        k = np.int32(9 + n % 7)
        f = meaning(x, int(k)).astype(np.float32)
        e = np.exp(f - f.max())
        np.testing.assert_allclose(best(x, k), e / e.sum() + f.sum(), rtol=1e-5)
    found = best.statistics()
    assert compiled(best) == found.compilations <= 4 and not found.exact, str(found)
    assert {str(r.at) for r in found.executables} <= {str({v: n}) for v in "nm" for n in (4, 8, 16, 32)}
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    np.testing.assert_array_equal(again(x, k), best(x, k))
    assert again.statistics().compilations == len({next(iter(r.at)) for r in found.executables})


UNIQUE = HEAD + "    u = R.unique(z)\n    f = R.match_cast(u, R.Tensor(('m',), 'float32'))" + TAIL


def test_the_upper_bound_is_a_capacity() -> None:
    """With capacities "bound", what depends on values gets the most that its shape function says."""
    with without_checks():
        policy = rx.Dynamic(mode="capacity", capacities={"n": 8, "m": "bound"})
        best = rx.optimize(rx.parse(UNIQUE), dynamic=policy)
    for n in (9, 10, 13, 16):
        best(np.arange(n, dtype=np.float32) // 3, np.int32(0))
    assert [dict(r.at) for r in best.statistics().executables] == [{"n": 16}, {"m": 16}]
    with pytest.raises(OptionError, match="capacities='bound': n has no upper bound"):
        rx.optimize(rx.parse(UNIQUE), dynamic=rx.Dynamic(capacities="bound"))


def test_auto_compiles_exactly_once() -> None:
    """With "auto" the first sizes run exactly, others at capacity; at size 0 nothing is padded."""
    with without_checks():
        best = rx.optimize(rx.parse(UNIQUE.replace("R.unique(z)", "R.masked_select(z, mask)")))
    for n in (5, 5, 6, 7):
        best(np.ones(n, np.float32), np.int32(0))
    assert compiled(best) == 4 and best.statistics().compilations == 2
    assert best(-np.ones(6, np.float32), np.int32(0)).shape == (0,)


def test_a_size_beyond_its_bound() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(UNIQUE), bounds={"m": (1, 6)}, dynamic="capacity")
    assert best(np.arange(6, dtype=np.float32), np.int32(0)).shape == (6,)
    with pytest.raises(
        BoundsError,
        match=r"^main\(\), match_cast `f`, the result of `unique`: m = 7 exceeds its bound 6 \(declared in optimize",
    ):
        best(np.arange(7, dtype=np.float32), np.int32(0))


GROWING = """
def grow(
    xs: R.Tensor(("n", 4), "float32"), x: R.Tensor((1, 4), "float32"), left: R.Tensor((), "int32")
) -> R.Tensor(ndim=2, dtype="float32"):
    if left == 0:
        return xs
    with R.dataflow():
        y = R.tanh(R.sum(xs, axis=[0], keepdims=True) + x)
        more = R.concat(xs, y, axis=0)
        less = left - 1
        R.output(more, less)
    return grow(more, x, less)

def main(xs: R.Tensor(("n", 4), "float32"), x: R.Tensor((1, 4), "float32"), steps: R.Tensor((), "int32")):
    ys = grow(xs, x, steps)
    return ys
"""


def test_concatenation_in_a_loop() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(GROWING), dynamic="capacity")
    xs, x = np.full((1, 4), 0.25, np.float32), np.full((1, 4), 0.5, np.float32)
    wanted = xs
    for _ in range(30):
        wanted = np.concatenate((wanted, np.tanh(wanted.sum(0, keepdims=True) + x)))
    np.testing.assert_allclose(best(xs, x, np.int32(30)), wanted, rtol=1e-5)
    # One program for each power of two, and those of the condition.
    assert best.statistics().compilations <= 6 and compiled(best) <= 8, str(best.statistics())


RAGGED = """
@R.data
class List(a):
    Nil = ()
    Cons = (a, List(a))

@R.function
def each(
    xs: List(R.Tensor(ndim=2, dtype="float32")), w: R.Tensor((4, 4), "float32")
) -> List(R.Tensor((4,), "float32")):
    match xs:
        case List.Nil():
            return List.Nil()
        case List.Cons(h, t):
            x = R.match_cast(h, R.Tensor(("k", 4), "float32"))
            y = R.sum(R.softmax(x @ w, axis=0) * x, axis=[0])
            return List.Cons(y, each(t, w))

@R.function
def main(xs: List(R.Tensor(ndim=2, dtype="float32")), w: R.Tensor((4, 4), "float32")):
    return each(xs, w)
"""


def test_a_ragged_batch() -> None:
    with without_checks():
        best = rx.optimize(rx.parse(RAGGED), dynamic="capacity")
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((k, 4)).astype(np.float32) for k in (5, 8, 6, 7, 2, 13, 16, 9)]
    w = rng.standard_normal((4, 4)).astype(np.float32)
    found = rx.script.items_of(best(rx.script.list_of(rx.script.List, rows), w))
    for x, y in zip(rows, found, strict=True):
        e = np.exp(x @ w - (x @ w).max(0))
        np.testing.assert_allclose(y, (e / e.sum(0) * x).sum(0), rtol=1e-4, atol=1e-5)
    assert compiled(best) == best.statistics().compilations == 3, str(best.statistics())
