"""Modules whose entry takes tuples, shapes or ranks, or returns nested tuples: as any other module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import OptionError, ShapeError
from relax_eg.ops.interpret import evaluate


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


PAIR = """
def main(p: R.Tuple(R.Tensor(("n", "n"), "float32"), R.Tensor(("n", "n"), "float32")), v: R.Tensor(("n",), "float32")):
    return (p[0] @ p[1]) @ v
"""
SHAPE = """
def main(x: R.Tensor(("n",), "float32"), s: R.Shape(("n", "m"))):
    z = R.broadcast_to(R.expand_dims(x, axis=1), shape=("n", "m"))
    return R.exp(z)
"""
NESTED = """
def main(x: R.Tensor(("n",), "float32")):
    a = R.exp(x)
    return (a, (R.exp(a), R.shape(("n", "2*n"))))
"""
RANK = """
def main(x: R.Tensor(ndim=2, dtype="float32"), s: R.Shape(ndim=1), v: R.Tensor(("x_0",), "float32")):
    y = R.exp(x)
    return (R.sum(y, axis=1), (v, s))
"""
INSIDE = """
def f(p: R.Tuple(R.Tensor("m"), R.Shape(("k",)))) -> R.Tuple(R.Tensor("m"), R.Shape(("k",))):
    return (R.exp(p[0]), p[1])
def main(q: R.Tuple(R.Tuple(R.Tensor(("n",), "float32"), R.Shape(("k",))), R.Tensor((), "bool"))):
    y = f(q[0])
    if q[1]:
        z = R.cos(y[0])
    else:
        z = y[0]
    return (z, y)
"""
CASES: dict[str, tuple[str, Any, dict[str, int]]] = {
    "pair": (PAIR, lambda n: ((ones(n, n), ones(n, n) / 2), ones(n)), {"n": 64}),
    "shape": (SHAPE, lambda n: (ones(n), (n, 3)), {"n": 64, "m": 32}),
    "nested": (NESTED, lambda n: (ones(n),), {"n": 64}),
    "rank": (RANK, lambda n: (ones(n, 2), (n,), ones(4)), {"x_0": 64}),
    "inside": (INSIDE, lambda n: (((ones(n), (7,)), np.bool_(n % 2)),), {"n": 64, "k": 4}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "exact": {"dynamic": "exact"},
    "capacity": {"dynamic": "capacity"},
    "kernels": {"execution": "kernels"},
    "limit": {"memory_limit": "64 MiB"},
    "measure": {"measure": 1},
    "family": {"bounds": {}},
}


def agree(got: Any, wanted: Any) -> None:
    one, two = jax.tree_util.tree_flatten(got), jax.tree_util.tree_flatten(wanted)
    assert one[1] == two[1]
    for a, b in zip(one[0], two[0], strict=True):
        assert isinstance(b, np.ndarray) or a == b
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", CASES)
def test_they_get_what_other_modules_get(case: str, options: str, tmp_path: Path) -> None:
    text, args, sizes = CASES[case]
    module, given = rx.parse(text), dict(OPTIONS[options])
    if options in ("limit", "measure"):
        every = rx.optimize(module).module.main.size_variables
        given["at"] = {v: sizes.get(v, 4) for v in every}
    if options == "family":
        given["bounds"] = {next(iter(sizes)): (1, 64)}
    best = rx.optimize(module, **given)
    assert "in steps" not in str(best.report).split("\n")[0]
    for n in (3, 5, 8):
        agree(best(*args(n)), evaluate(module, args(n)))
    assert best.check(*args(3)).passed
    agree(best.to_jax()(*args(4)), evaluate(module, args(4)))
    best.save(tmp_path / "best")
    loaded = rx.load(tmp_path / "best")
    agree(loaded(*args(6)), evaluate(module, args(6)))
    assert loaded.check(*args(3)).passed


@pytest.mark.parametrize("case", CASES)
def test_weights_are_prepared(case: str) -> None:
    text, args, _ = CASES[case]
    module = rx.parse(text)
    best = rx.optimize(module, weights=(0,))
    first, *rest = args(3)
    agree(best.prepare(first)(*rest), evaluate(module, args(3)))
    agree(best(*args(3)), evaluate(module, args(3)))


def test_a_pair_is_optimized() -> None:
    best = rx.optimize(rx.parse(PAIR), at={"n": 512})
    assert best.report.predicted_gain > 5
    assert [p.attr("name") for p in best.module.main.params] == ["p_0", "p_1", "v"]
    assert rx.parse(str(best.module)) == best.module
    agree(best([ones(3, 3), ones(3, 3)], v=ones(3)), ones(3) * 9)  # a list for a tuple, as before
    gradient = jax.grad(lambda p, v: best.to_jax()(p, v).sum())((ones(2, 2), ones(2, 2)), ones(2))
    assert [g.shape for g in gradient] == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("case", "args", "said"),
    [
        ("pair", (ones(3, 3), ones(3)), r"main\(\): argument `p` should be a tuple of 2, got ndarray"),
        ("pair", ((ones(3, 3),), ones(3)), r"argument `p` should be a tuple of 2, got tuple of 1"),
        (
            "pair",
            ((ones(3, 3), ones(3, 4)), ones(3)),
            r"argument `p_1`, axis 1 should be n = 3 \(from argument `p_0`\), got 4",
        ),
        ("shape", (ones(3), (4, 3)), r"argument `s`, axis 0 should be n = 3 \(from argument `x`\), got 4"),
        ("shape", (ones(3), (3,)), r"argument `s` should have 2 axes \(n, m\), got 1: \(3,\)"),
        ("shape", (ones(3), (3, -1)), r"argument `s` should be a shape \(a tuple of integers\), got tuple \(3, -1\)"),
        ("shape", (ones(3), ones(3)), r"argument `s` should be a shape \(a tuple of integers\), got float32"),
        ("shape", (ones(3), (3, 2**62)), r"shapes of fewer than 2\*\*62 elements"),
        ("rank", (ones(3), (1,), ones(3)), r"argument `x` should have 2 axes .*got 1: \(3,\)"),
    ],
)
def test_arguments_that_do_not_fit(case: str, args: Any, said: str) -> None:
    best = rx.optimize(rx.parse(CASES[case][0]))
    with pytest.raises(ShapeError, match=said):
        best(*args)


def test_a_shape_that_is_traced() -> None:
    best = rx.optimize(rx.parse(SHAPE))
    with pytest.raises(ShapeError, match="argument `s` is a shape, whose sizes JAX traces here; name it in "):
        jax.jit(best.to_jax())(ones(3), (3, 2))
    agree(jax.jit(best.to_jax(), static_argnums=1)(ones(3), (3, 2)), np.exp(ones(3, 2)))


def test_a_rank_says_nothing_of_its_sizes() -> None:
    """Sizes that have a name are at least 1; those of a rank have none, and are called otherwise than those that do."""
    best = rx.optimize(rx.parse(RANK))
    assert best.module.main.size_variables == ("s_0", "x_0", "x_0_", "x_1")
    agree(best(ones(0, 2), (0,), ones(4)), (np.zeros(0, np.float32), (ones(4), (0,))))
    assert best(ones(3, 0), (0,), ones(4))[0].shape == (3,)


def test_what_only_sizes_tell_of_a_rank_still_runs_in_steps() -> None:
    """Whether x and y broadcast, no rank tells."""
    text = "def main(x: R.Tensor(ndim=1, DTYPE), y: R.Tensor(ndim=1, DTYPE)):\n    return x + y\n"
    best = rx.optimize(rx.parse(text.replace("DTYPE", 'dtype="float32"')))
    agree(best(ones(3), ones(1)), ones(3) * 2)
    with pytest.raises(OptionError, match=r"execution='kernels': main\(\) runs in steps; .*only the rank is said"):
        rx.optimize(rx.parse(text.replace("DTYPE", 'dtype="float32"')), execution="kernels")
    untyped = "def main(x: R.Tensor(ndim=1)):\n    return R.exp(x)\n"
    with pytest.raises(OptionError, match=r"of `x` not all is said: R.Tensor\(ndim=1\)\n  accepted: its dtype"):
        rx.optimize(rx.parse(untyped), execution="kernels")
