"""Calibration: its fits, which need no clock, and one of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relax_eg.cli import app
from relax_eg.extract.profile import PROFILE_VERSION, Profile
from relax_eg.measure import calibrate, fits


def test_steps_of_a_penalty() -> None:
    assert fits.steps([(2, 1.5), (4, 1.52), (8, 1.48), (16, 1.2), (32, 1.01), (64, 0.99)]) == (
        (8, 1.5),
        (16, 1.2),
    )
    assert fits.steps([(2, 1.0), (4, 1.02)]) == ()


def test_the_search_finds_what_made_the_times() -> None:
    def error(at: Mapping[str, float]) -> float:
        return (at["x"] - 3.0) ** 2 + (at["y"] - at["x"] - 1.0) ** 2

    grid = [float(i) for i in range(8)]
    assert fits._search(error, {"x": grid, "y": grid}) == {"x": 3.0, "y": 4.0}


@pytest.mark.slow
def test_a_calibration_of_this_machine() -> None:
    told: list[tuple[str, int, int]] = []
    p = calibrate.calibrate(seconds=0.002, progress=lambda *step: told.append(step))
    assert p.calibrated and p.label == "cpu, calibrated" and "jax" in p.measured
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {of for _, _, of in told} == {len(told)}
    assert Profile.from_json(p.to_json()) == p
    assert p.matmul_rate["float32"] > p.vector_rate > 0 and p.cache_bandwidth >= p.bandwidth
    assert json.loads(p.to_json())["relax_eg profile"] == PROFILE_VERSION


def test_the_command_refuses_nonsense(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["calibrate", str(tmp_path / "p.json"), "--seconds", "0"])
    assert found.exit_code != 0 and "--seconds 0: a number above 0, at most 10, is accepted" in found.output
    assert not (tmp_path / "p.json").exists()


@pytest.mark.slow
def test_the_command_writes_a_profile(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["calibrate", str(tmp_path / "p.json"), "--seconds", "0.001", "--name", "here"])
    assert found.exit_code == 0, found.output
    p = Profile.from_json(tmp_path / "p.json")
    assert p.label == "here, calibrated" and "optimize(target=" in found.output and "matmul, Gflop/s" in found.output
