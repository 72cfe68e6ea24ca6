"""Sizes that the program does not name run at capacity too."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from relax_eg.errors import ShapeError
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from tests.dynamic.test_growing_loops import at_capacity
from tests.vm.test_language import GREEDY

CHOSEN = """
@R.function
def head(a: R.Tensor(ndim=2, dtype="float32"), w: R.Tensor((4, 8), "float32")):
    return R.softmax(a @ w, axis=0)

@R.function
def main(x: R.Tensor(("n", 4), "float32"), keep: R.Tensor(("n",), "bool"), w: R.Tensor((4, 8), "float32")):
    chosen = R.masked_select(x, keep)
    other = R.masked_select(x * 2.0, keep)
    y = R.exp(chosen) + other
    return head(chosen, w), R.sum(y, axis=0), y
"""


def test_results_of_routines_and_parameters_of_a_rank() -> None:
    run, kept = at_capacity(CHOSEN)
    random = np.random.default_rng(0)
    for n in (17, 20, 30, 25, 28, 31, 19, 22):
        x, w = (random.normal(size=s).astype(np.float32) for s in ((n, 4), (4, 8)))
        args = [x, np.arange(n) % 2 == 1, w]  # from 8 to 15 rows
        for got, wanted in zip(
            run.run([jax.numpy.asarray(a) for a in args]), evaluate(parse(CHOSEN), args), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    # x * 2.0 at 32, and the rest at 8 (the constant 8 of w) and 16
    assert sorted(tuple(e.buffer_sizes.values())[-1] for _, e in kept.items() if "size1" in e.buffer_sizes) == [16]
    assert kept.executable_count <= 3 and run.programs.at_exact_sizes() == {}


def test_recursion_over_a_tensor_of_a_rank() -> None:
    run, kept = at_capacity(GREEDY)
    w = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    args = [np.array([3, 1], np.int32), w, np.int32(40)]
    np.testing.assert_array_equal(run.run([jax.numpy.asarray(a) for a in args]), evaluate(parse(GREEDY), args))
    assert {e.buffer_sizes["size1"] for _, e in kept.items()} == {2, 4, 8, 16, 32, 64}


CHECKED = """
@R.function
def f(x: R.Tensor(("n", 2), "float32")) -> R.Tensor(("n",), "float32"):
    return R.sum(x, axes=(1,))

@R.function
def main(x: R.Tensor({shape}, dtype="float32"), k: R.Tensor((5,), "float32")):
    u = R.unique(k)
    return f(x), u
"""


@pytest.mark.parametrize("shape", ['("a", "b")', "ndim=2"])
def test_what_a_call_gets_is_checked(shape: str) -> None:
    run, _ = at_capacity(CHECKED.format(shape=shape))
    k = jax.numpy.ones(5)
    np.testing.assert_array_equal(run.run([jax.numpy.ones((3, 2)), k])[0], [2, 2, 2])
    for n in (3, 5, 5):
        with pytest.raises(ShapeError, match=rf"f\(\): argument `x`, axis 1 should be 2, got {n}"):
            run.run([jax.numpy.ones((3, n)), k])
