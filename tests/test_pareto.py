"""Fronts of memory against time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg.backend.footprint import whole_footprint
from relax_eg.cli import app
from relax_eg.driver.clock.measured import Search
from relax_eg.driver.limits import compiled_bytes, limited
from relax_eg.driver.options import read_options
from relax_eg.driver.program_ends import traced_program
from relax_eg.errors import OptionError
from relax_eg.frontends.model import ModelModule
from relax_eg.ir.calls import without_calls

SPECS = ("n 16", "16 128")
AT = {"n": 2048}
PROGRAM = """
import jax
import jax.numpy as jnp

def loss(x, w):
    h = jnp.tanh(x @ w)
    return jnp.sum(h * jnp.exp(h))

step = jax.grad(loss, 1)
"""

CALLED = """
def block(x: R.Tensor(("n", "n"), "float32")):
    with R.dataflow():
        y = R.tanh(R.matmul(x, x))
        R.output(y)
    return y

def main(x: R.Tensor(("n", "n"), "float32")):
    with R.dataflow():
        y = block(x)
        z = block(y)
        R.output(z)
    return z
"""


def step(x: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return jnp.sum(h * jnp.exp(h))

    return jax.grad(loss)(w)


@pytest.fixture(scope="module")
def front() -> rx.types.ParetoFront:
    return rx.pareto(step, *SPECS, at=AT)


def test_no_program_of_a_front_is_beaten(front: rx.types.ParetoFront) -> None:
    """The bytes are those of the executables that run, and all programs compute the same."""
    sizes, times = ([getattr(p, what) for p in front.points] for what in ("bytes", "slower"))
    assert len(sizes) > 1 and sizes == sorted(set(sizes), reverse=True) and times == sorted(set(times))
    assert 0 < front.bound <= sizes[-1] and "needs less than " in str(front)
    assert front.bound >= 16 * 128 * 4
    assert times[0] == 1 and sizes[-1] < 0.3 * front.written[0]
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(0.3 * rng.standard_normal(s), jnp.float32) for s in ((AT["n"], 16), (16, 128)))
    for p in front.points:
        assert np.allclose(p.program(x, w), step(x, w), rtol=1e-4, atol=1e-4)
        assert whole_footprint(p.program.module, set(), AT, p.program.compiler_options).bytes == p.bytes


def test_a_program_is_chosen_by_bytes_or_by_time(front: rx.types.ParetoFront) -> None:
    least = front.points[-1]
    assert front.within_bytes(least.bytes) is least and front.within_bytes("1 GiB") is front.points[0]
    assert front.within_time(1) is front.points[0] and front.within_time(100) is least
    with pytest.raises(OptionError, match=rf"no program found needs 1 KiB or less; accepted: {least.bytes} \("):
        front.within_bytes("1 KiB")
    with pytest.raises(OptionError, match=r"share=0.5: 1, the time of the fastest program, or more is accepted"):
        front.within_time(0.5)


def test_a_front_is_shown(front: rx.types.ParetoFront, tmp_path: Path) -> None:
    text = str(front)
    assert "step(n=2048): memory against time" in text and "accumulated_over_pieces" in text
    assert len([line for line in text.splitlines() if line.startswith("│ ")]) >= 1 + len(front.points)
    pytest.importorskip("matplotlib")
    front.plot(tmp_path / "front.svg")
    assert "predicted time of a call" in (tmp_path / "front.svg").read_text()


def test_an_interrupted_front_has_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def progress(phase: str, done: int, of: int) -> None:
        nonlocal count
        count += phase.startswith("memory: ")
        if count == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(limited, "report_progress", progress)
    front = rx.pareto(step, *SPECS, at=AT)
    assert front.points and count == 6


def test_equal_programs_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated block that is called, and the same program without calls."""
    compiled: list[rx.types.Module] = []

    def counted(module: rx.types.Module, *args: Any) -> Any:
        compiled.append(module)
        return whole_footprint(module, *args)

    monkeypatch.setattr(compiled_bytes, "whole_footprint", counted)
    module = rx.parse(CALLED)
    plain = without_calls(module)
    traced = traced_program(module, (), None)
    search = Search(traced, read_options(traced, at={"n": 64}, execution="whole"))
    entry = replace(search.as_written, found=replace(search.as_written.found, module=plain))
    tries = limited._Limited(search, 1)  # pyright: ignore[reportPrivateUsage]
    called, inlined = (tries.try_program(e) for e in (None, entry))
    assert plain != module and called.footprint == inlined.footprint
    assert len(compiled) == 1


def test_a_front_in_the_shell(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    args = [
        "pareto",
        f"{tmp_path / 'program.py'}:step",
        "--spec",
        "n 8",
        "--spec",
        "8 32",
        "--at",
        "n=512",
        "--measure",
    ]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0 and "memory against time" in result.stdout and "measured" in result.stdout


def test_sizes_are_needed() -> None:
    with pytest.raises(OptionError, match=r"memory_limit: sizes to keep it at are needed"):
        rx.pareto(step, *SPECS)


def test_a_front_of_a_model_in_64_bits(tmp_path: Path) -> None:
    """The weights of a model need not be named, and its programs hold them; 64 bits need no switch."""
    plain = rx.parse("""
@R.function
def tell(x: R.Tensor(("n", 8), "float64"), w: R.Tensor((8, 64), "float64")) -> R.Tensor((64,), "float64"):
    h: R.Tensor(("n", 64), "float64") = R.tanh(R.matmul(x, w))
    return R.sum(R.multiply(h, h), axes=(0,), keepdims=False)
""")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((512, 8)), rng.standard_normal((8, 64))
    model = ModelModule(plain.functions, weights={"w": w}, outputs=("y",))
    front = rx.pareto(model, at={"n": 512})
    for p in front.points:
        np.testing.assert_allclose(p.program(x), np.sum(np.tanh(x @ w) ** 2, axis=0), rtol=1e-12)
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match=r"front.xyz: .*xyz"):
        front.plot(tmp_path / "front.xyz")
