"""Which loops can run as pipelines, and that their results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.program_ends import traced_program
from relax_eg.driver.spreads.pipelining import Pipeline, pipelined
from relax_eg.errors import OptionError
from relax_eg.ir.placements import DeviceMesh
from relax_eg.meshes.microbatches import MicrobatchedScan, microbatched_scans

X, W = "8 6", "4 6 6"


def scanned(step: Callable[[Any, Any], Any], reverse: bool = False) -> Callable[..., Any]:
    def program(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, w: (step(h, w), None), x, w, reverse=reverse)[0]

    return program


def scans_of(fn: Callable[..., Any], *specs: str, pieces: int = 4) -> list[MicrobatchedScan]:
    return microbatched_scans(traced_program(fn, specs or (X, W)).module, 2, pieces)


def test_the_batch_is_found_from_what_is_carried() -> None:
    def program(x: Any, w: Any, mask: Any) -> Any:
        def step(h: Any, w: Any) -> Any:
            z = jnp.tanh(h @ w) * mask[:, None]
            return h + z, (z.sum(-1), h.T @ z)

        return jax.lax.scan(step, x, w)

    (found,) = scans_of(program, X, W, "8")
    assert found.constants == (0,) and found.carry == (0,) and found.slices == ("R",)
    assert (
        found.stacked == (0, "P[sum]") and [str(p.annotation.short) for p in found.body.params][1] == "(2, 6) float32"
    )


@pytest.mark.parametrize(
    "step",
    [
        lambda h, w: h @ w - h.mean(0),  # the batch is mixed
        lambda h, w: jnp.cumsum(h, 0) @ w,
        lambda h, w: (h.reshape(4, 12) * 2).sum(1).repeat(2)[:, None] + h @ w,  # two places of the batch in one row
        lambda h, w: jnp.sort(h, 0) @ w,
        lambda h, w: h[::-1] @ w,
    ],
)
def test_loops_that_mix_a_batch_are_no_pipelines(step: Callable[[Any, Any], Any]) -> None:
    assert scans_of(scanned(step)) == []


def test_sizes_decide() -> None:
    def step(h: Any, w: Any) -> Any:
        return jnp.tanh(h @ w)

    assert len(scans_of(scanned(step))) == 1
    assert scans_of(scanned(step), pieces=3) == [] and scans_of(scanned(step), X, "5 6 6") == []
    assert scans_of(scanned(step), "b 6", W) == []


@pytest.mark.parametrize("reverse", [False, True])
def test_results_are_those_of_the_loop(reverse: bool) -> None:
    """With a batch in its second axis, one that does not change, sums over it, and what all pieces share."""

    def program(x: Any, w: Any, seen: Any, mask: Any) -> Any:
        def step(h: Any, xs: Any) -> Any:
            w, seen = xs
            z = jnp.tanh((h * mask[..., None]) @ w) + seen
            return z, (z.max(-1), (h * z).sum((0, 1)), w.sum())

        return jax.lax.scan(step, x, (w, seen), reverse=reverse)

    shapes = (3, 8, 6), (4, 6, 6), (4, 3, 8, 6), (3, 8)
    specs = tuple(" ".join(map(str, s)) for s in shapes)
    traced = traced_program(program, specs)
    scans = microbatched_scans(traced.module, 2, 4)
    assert [s.carry for s in scans] == [(1,)] and scans[0].stacked == (1, "P[sum]", "R")
    run = pipelined(traced, Pipeline("s", 2, 4, tuple(scans)), DeviceMesh.of({"s": 1}))
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for s in shapes]
    found, wanted = jax.jit(run)(*arrays), jax.jit(program)(*arrays)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_given_pipeline_that_is_none_is_an_error() -> None:
    fn = scanned(lambda h, w: jnp.tanh(h @ w))
    with pytest.raises(
        OptionError, match=r"no loop over layers can run in 4 stages over s with 3 microbatches\n  accepted: a scan"
    ):
        rx.spread(fn, X, W, mesh={"s": 4}, target="h100", pipeline={"s": 3})
    with pytest.raises(OptionError, match="the axes of the mesh are s"):
        rx.spread(fn, X, W, mesh={"s": 4}, target="h100", pipeline={"t": 4})
    with pytest.raises(OptionError, match="microbatches for stages over an axis"):
        rx.spread(fn, X, W, mesh={"s": 4}, target="h100", pipeline={"s": 0})
