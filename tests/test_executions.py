"""`execution="auto"`: whole or in kernels, by predicted time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.kernels import InKernels
from relax_eg.egraph import EGraph
from relax_eg.errors import OptionError


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def capped(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(q @ k.T / 30) * 30) @ v


CAPPED = ("n 64", "n 64", "n 64")


def test_auto_runs_what_is_predicted_to_be_faster() -> None:
    inputs = arrays((96, 64), (96, 64), (96, 64))
    ways = {e: rx.optimize(capped, *CAPPED, at={"n": 2048}, target="h100", execution=e) for e in ("whole", "auto")}
    report = ways["auto"].report
    assert report.execution == "kernels" and isinstance(ways["auto"], InKernels)
    assert 1.5 * report.executions["kernels"] == 1.5 * report.after.call < ways["whole"].report.after.call
    # Among programs of both executions there are modes of the device that one execution alone does not try.
    assert report.executions["whole"] <= 1.001 * ways["whole"].report.after.call
    assert ways["auto"].check(*inputs).passed and "execution: kernels; predicted for a call" in str(report)
    assert (
        ways["auto"].module == rx.optimize(capped, *CAPPED, at={"n": 2048}, target="h100", execution="kernels").module
    )


def test_auto_is_never_slower_than_whole_by_prediction() -> None:
    specs: Any = ("n 512", "512 1024", "1024 512")

    def mlp(x: Any, w1: Any, w2: Any) -> Any:
        return x + jax.nn.silu(x @ w1) @ w2

    for target in ("cpu", "h100"):
        whole, auto = (rx.optimize(mlp, *specs, at={"n": 256}, target=target, execution=e) for e in ("whole", "auto"))
        assert auto.report.execution == "whole" and auto.report.executions.keys() == {"whole", "kernels"}
        assert auto.report.after == whole.report.after and not isinstance(auto, InKernels)


def test_auto_chooses_from_one_saturation(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    saturate = EGraph.saturate
    monkeypatch.setattr(EGraph, "saturate", lambda *args: made.append(1) or saturate(*args))

    def saturations(execution: str) -> int:
        made.clear()
        rx.optimize(capped, *CAPPED, at={"n": 64}, target="h100", execution=execution)
        return len(made)

    assert 1 <= saturations("auto") <= max(saturations("whole"), saturations("kernels"))


def test_a_family_has_variants_of_both_executions(tmp_path: Path) -> None:
    options: Any = {"bounds": {"n": (1, 8192)}, "target": "h100", "execution": "auto"}
    best = rx.optimize(capped, *CAPPED, **options)
    assert {v.execution for v in best.variants} == {"whole", "kernels"}
    best.save(tmp_path / "f.rxe")
    for found in (best, rx.load(tmp_path / "f.rxe")):
        for n in (3, 3, 2500, 3):
            inputs = arrays((n, 64), (n, 64), (n, 64))
            np.testing.assert_allclose(found(*inputs), capped(*inputs), rtol=1e-4, atol=1e-4)
        assert [v.execution for v in found.variants] == [v.execution for v in best.variants]


def test_auto_explains_what_it_chose() -> None:
    best = rx.optimize(capped, *CAPPED, at={"n": 8192}, target="h100", execution="auto")
    assert "fused_" in str(best.explain())


def test_what_auto_refuses() -> None:
    with pytest.raises(OptionError, match="execution='auto': with memory_limit, 'whole' or 'kernels' is accepted"):
        rx.optimize(capped, *CAPPED, at={"n": 8}, execution="auto", memory_limit="1 MiB")
    with pytest.raises(OptionError, match="may run kernel by kernel, which execution='whole' rules out"):
        rx.optimize(capped, *CAPPED, execution="auto", dynamic="capacity")


def test_routines_of_one_execution_are_not_chosen_in_the_other() -> None:
    best = rx.optimize(layer_norm_of, "n 512", "512", "512", at={"n": 64}, target="cpu", execution="auto")
    assert best.report.execution == "whole" and "call_dps_library" not in str(best.module)


def layer_norm_of(x: Any, g: Any, b: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * g + b
