"""Whole models, small: ResNet, a GPT-2 training step, U-Nets. `benchmarks.models` times the real sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import relax_eg as rx
from benchmarks import models
from relax_eg.backend.lowering.lower import run_function
from relax_eg.shapes import Dim, parse_spec

BUDGET = rx.Budget(seconds=60)  # a training step takes 15 to 30 s on a shared core
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, int]]
RESNET = models.resnet_specs(((1, 8), (2, 16)), classes=10)
GPT_2 = models.gpt2_arguments(layers=2, width=32, vocabulary=50, places=16)
UNET = models.unet_specs(channels=8, multiples=(1, 2), blocks=1)


def unet(method: str) -> Case:
    return functools.partial(models.unet, groups=4, method=method), (UNET, "b 8 8 3", "b"), {"b": 2}


CASES: dict[str, Case] = {
    "resnet": (models.resnet, (RESNET, "b 32 32 3"), {"b": 2}),
    "gpt2": (functools.partial(models.gpt2_step, heads=4), GPT_2, {"b": 2, "s": 7}),
    **{f"unet_{method}": unet(method) for method in ("bilinear", "transposed")},
}


def arrays(specs: tuple[Any, ...], at: dict[str, int]) -> tuple[Any, ...]:
    """Random arguments: integers below 50, floats from 0.5 to 1.5."""
    draw = np.random.default_rng(0)

    def one(text: str) -> Any:
        spec = parse_spec(text)
        shape = [int(d.evaluate(at)) for d in spec.dims if isinstance(d, Dim)]
        if spec.dtype == "int32":
            return draw.integers(0, 50, shape).astype(np.int32)
        return (0.5 + draw.random(shape)).astype(np.float32)

    return jax.tree.map(one, specs)


def quick(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` that spends little on compiling."""
    return jax.jit(
        fn, compiler_options={"xla_llvm_disable_expensive_passes": True, "xla_backend_optimization_level": 0}
    )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "unet_bilinear" else ()) for n in CASES]
)
def test_model(name: str, tmp_path: Path) -> None:
    """The program that extraction chose computes what JAX does, whether or not it is kept as written."""
    fn, specs, at = CASES[name]
    with rx.debug.options(dump=tmp_path):
        report = rx.optimize(fn, *specs, at=at, budget=BUDGET).report
    assert report.stop == "saturated"
    assert not report.opaque
    assert report.nodes < 6 * report.before.count  # convolutions have several forms
    (text,) = tmp_path.glob("*/2_candidate.txt")
    candidate = rx.parse(text.read_text())
    given = arrays(specs, at)
    found = quick(lambda *leaves: run_function(candidate, candidate.main, leaves))(*jax.tree.leaves(given))
    wanted = jax.tree.leaves(quick(fn)(*given))
    for x, y in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        assert_allclose(x, y, rtol=2e-3, atol=2e-4 * max(1.0, float(np.abs(y).max())))


def test_weights_of_a_model_are_bound() -> None:
    given = arrays((RESNET, "b 32 32 3"), {"b": 2})
    best = rx.optimize(models.resnet, RESNET, "b 32 32 3", at={"b": 2}, weights=("params",))
    assert best.report.stop == "saturated"
    ready = best.prepare(given[0])
    assert_allclose(quick(ready.to_jax())(ready.prepared, given[1]), quick(models.resnet)(*given), rtol=2e-3)


@pytest.mark.slow
def test_nodes_grow_with_the_layers() -> None:
    """Every further layer adds about the nodes that the one before did."""

    def nodes(layers: int) -> int:
        step = functools.partial(models.gpt2_step, heads=2)
        arguments = models.gpt2_arguments(layers=layers, width=16, vocabulary=20, places=8)
        with rx.debug.options(sharing=False):
            return rx.optimize(step, *arguments).report.nodes

    # A search that gained is asked for sums of products again, which adds nodes; two layers have 1.7 times one's.
    assert nodes(2) <= 2.5 * nodes(1)
