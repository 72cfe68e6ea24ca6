"""Calibration: its fits, which need no clock, and one of this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from relax_eg.cli import app
from relax_eg.driver.clock.calibration import CalibrationReport
from relax_eg.extract.costs.matmuls import Matmul, calling_seconds, matmul_seconds, share_of_peak
from relax_eg.extract.fusions.seconds import SHARED_BYTES, SHARED_ELEMENTS
from relax_eg.extract.profiles.devices import CPU, PROFILES
from relax_eg.extract.profiles.profile import PROFILE_VERSION, Profile
from relax_eg.measure import calibrate, figures, fits, quick, timing
from relax_eg.measure.device import this_machine

pytestmark = pytest.mark.xla_defaults


def test_steps_of_a_penalty() -> None:
    assert fits.merge_factors([(2, 1.5), (4, 1.52), (8, 1.48), (16, 1.2), (32, 1.01), (64, 0.99)]) == (
        (8, 1.5),
        (16, 1.2),
    )
    assert fits.merge_factors([(2, 1.0), (4, 1.02)]) == ()


def test_what_never_rises() -> None:
    assert fits.fit_falling([4.0, 2.0, 1.0]) == pytest.approx([4.0, 2.0, 1.0])
    assert fits.fit_falling([4.0, 1.0, 2.0, 1.0]) == pytest.approx([4.0, 2.0**0.5, 2.0**0.5, 1.0])
    assert fits.fit_falling([1.0, 2.0, 4.0]) == pytest.approx([2.0, 2.0, 2.0])


def test_the_search_finds_what_made_the_times() -> None:
    def error(at: Mapping[str, float]) -> float:
        return (at["x"] - 3.0) ** 2 + (at["y"] - at["x"] - 1.0) ** 2

    grid = [float(i) for i in range(8)]
    assert fits._search(error, {"x": grid, "y": grid}) == {"x": 3.0, "y": 4.0}


def times_of(p: Profile) -> dict[str, float]:
    """What the figures of calibration would take on a device of this very profile."""

    def call(seconds: float, flops: float) -> float:
        return p.call(p.launch + seconds, flops >= p.fork_flops)

    def product(q: Profile, m: int, n: int, k: int, rate: float, factor: float = 1.0) -> float:
        flops, moved = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
        seconds = max(flops / (rate * share_of_peak((m, n, k), q.matmul_half)), q.move(moved))
        called = q.launch + float(calling_seconds(q, Matmul(flops, m, n, k, "float32")))
        return q.call(called + seconds * factor + q.joining(m, flops), flops >= q.fork_flops)

    def chain(q: Profile, rows: int, n: int, factor: float) -> float:
        """A chain of matmuls: one call, in which the other cores are woken once."""
        around = q.call(0.0, 2.0 * rows * n * n >= q.fork_flops)
        return around + figures.chained_weights(n) * (product(q, rows, n, n, q.rate("float32"), factor) - around)

    peak = p.rate("float32")
    turned = figures.transposed_size(p) ** 2 / p.transpose_rate if p.transpose_rate else 0.0
    times = {"dispatch": p.dispatch, "in order": 2e-4, "transposed": 2e-4 + turned}
    kernels = figures.IN_A_CHAIN if figures.has_threads(p) else 1
    for n in (*figures.CHAINS, *figures.FEW_CHAINS, *figures.HANDED):
        times[f"chain {n}"] = float(p.around(False, n * kernels)) + n * kernels * p.launch
    times |= {f"loop {n}": p.dispatch + n * (p.launch + p.step) for n in figures.LOOPS}
    for n in figures.memory_sizes(p):
        around = p.launch + p.move(2.0 * n)
        times[f"read {n}"] = p.call(around, n // 4 >= SHARED_ELEMENTS)
        times[f"copy {n}"] = p.call(around, 2 * n >= SHARED_BYTES)
    times |= {name: call(p.move(2.0 * n) + p.fresh(n), n / 4) for n, name in figures.result_sizes(p)}
    flops = 2.0 * figures.DEPTH * figures.vector_size(p)
    times["elementwise"] = call(flops / p.vector_rate, flops)
    n = figures.rate_side(p)
    for dtype in (*figures.FLOATS, "int32"):
        rate = p.rate(dtype)
        times[f"rate {dtype}"] = product(p, n, n, n, rate) if figures.has_threads(p) else call(2.0 * n**3 / rate, 1e9)

    def convolution(channels: int, out: int, size: int, row: float) -> float:
        rows, depth = figures.images(p) * size * size, 9 * channels
        one = Matmul(2.0 * rows * out * depth, rows, out, depth, "float32")
        turned = ((channels + out) * rows + depth * out) / p.transpose_rate if p.transpose_rate else 0.0
        return call(p.conv_factor * float(matmul_seconds(p, one)) + turned + 3 * rows * row, 1e9)

    for channels, size in figures.CONVOLUTIONS:
        times[f"convolution {channels} {size}"] = convolution(channels, channels, size, 0.0)
    for n in figures.matrix_sides(p):
        rate = peak * p.factor_share * share_of_peak((n,), (p.factor_half,))
        times |= {f"lu {n}": call(n**3 / rate, n**3), f"cholesky {n}": call(n**3 / 2 / rate, n**3)}
    for n, columns in figures.triangular_sizes(p):
        rate = peak * p.solve_share * share_of_peak((n, columns), p.solve_half)
        times[f"solve {n} {columns}"] = call(n * n * columns / rate, n * n * columns)
    times |= {"depthwise": 3e-3, "sort": 1e-3, "argmax": 1e-3, "cumsum": 1e-3}
    flops, moved = fits.taps_amounts()
    thin = {"thin convolution": convolution(*figures.THIN, p.window_row)}
    if p.tap_rate:
        thin["taps"] = call(p.move(moved) + flops / p.tap_rate, flops)
    side = figures.rate_side(p)
    share = share_of_peak((side, side, side), p.matmul_half) if figures.has_threads(p) else 1.0
    of_bytes = {"rate int8": call(2.0 * side**3 / (p.rate("int8") * share), 1e9)}
    if not figures.has_threads(p):
        return times | thin | of_bytes
    for name, q in (("", p), *((f"{m.name}: ", p.in_mode(m)) for m in p.modes)):
        for shape in figures.MATMULS:
            times[f"{name}matmul {' '.join(map(str, shape))}"] = product(q, *shape, q.rate("float32"))
        sides = [(r, n) for r in figures.ROWS for n in (figures.LAYOUT, figures.PAGED)]
        sides += [(1, n) for n in figures.ONE_ROW]
        for rows, n in sides:
            times[f"{name}in x out {rows} {n}"] = chain(q, rows, n, q.in_order_factor(rows, 4.0 * n, 4.0 * n * n))
            times[f"{name}out x in {rows} {n}"] = chain(q, rows, n, q.linear_factor(rows))
        for n in figures.APART:
            one = times[f"{name}as one {n}"] = product(q, figures.APART_ROWS, 3 * n, n, q.rate("float32"))
            times[f"{name}apart {n}"] = one + 2 * q.joining(figures.APART_ROWS, 2.0 * figures.APART_ROWS * n * n)
    kernels = {
        f"loop of {name} {n}": p.dispatch + n * figures.IN_A_STEP * seconds
        for n in figures.LOOPS
        for name, seconds in (
            ("kernels", p.loop_launch),
            ("matmuls", p.loop_launch + p.library_launch),
            ("tiny matmuls", p.loop_launch + p.library_launch + p.tiny_launch),
            ("vectors", p.loop_launch + p.vector_launch),
        )
    }
    return times | thin | of_bytes | kernels


def test_few_figures_tell_the_rates_of_another_machine() -> None:
    other = replace(CPU, dispatch=2e-5, vector_rate=3e10, bandwidth=4e9, transpose_rate=4e8, gemv_gain=1.0)
    other = replace(
        other,
        handoff=9e-6,
        matmul_rate={d: r / 4 for d, r in CPU.matmul_rate.items()},
        linear_penalty=((24, 3.4), (48, 2.4)),
        page_penalty=((8, 1.0), (16, 1.8)),
    )
    times = times_of(other)
    assert {f.name for f in quick.few_figures(CPU)} <= set(times)
    p = fits.fit_few(CPU, times)
    assert (p.dispatch, p.launch, p.handoff) == (about(2e-5), about(CPU.launch), about(9e-6))
    assert {d: p.rate(d) for d in CPU.matmul_rate} == {d: about(r) for d, r in other.matmul_rate.items()}
    assert (p.vector_rate, p.bandwidth, p.transpose_rate) == (about(3e10), about(4e9), about(4e8))
    assert p.linear_factor(8) == about(3.4) and p.matmul_half == CPU.matmul_half
    assert [p.in_order_factor(rows, 4096, 1e6) for rows in (8, 16)] == [about(1.0), about(1.8)]
    assert [p.in_order_factor(*at, 1e6) for at in ((16, 4000), (1, 4096), (64, 4096))] == [1.0, 1.0, 1.0]
    assert (p.conv_factor, p.factor_share, p.scalar_rate) == (CPU.conv_factor, CPU.factor_share, CPU.scalar_rate)


def test_only_disturbed_figures_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry is the lowest time of a call in one pass, in seconds."""
    passes = {"quiet": [1.0, 1.05], "disturbed once": [3.0, 1.0, 1.08], "always": [8.0, 4.0, 2.0, 1.0]}
    left = {name: iter(found) for name, found in passes.items()}
    monkeypatch.setattr(timing, "_repeats", lambda call: 1)
    monkeypatch.setattr(timing, "_samples", lambda call, repeats, seconds: [9.0, next(left[call()])])
    calls = {name: (lambda name=name: name) for name in passes}
    times, unsure = timing.time_until_confirmed(calls, 0.0, 4)
    assert (set(times.values()), unsure) == ({1.0}, ["always"])
    assert all(next(rest, None) is None for rest in left.values())  # each was timed as often as it has entries


def test_a_disturbed_machine_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    everything, names = times_of(CPU), [f.name for f in quick.few_figures(CPU)]
    times = {name: everything[name] for name in names}
    monkeypatch.setattr(quick, "few_figures", lambda p: [])
    for unsure, notes in ((names[:1], "measured in seconds"), (names[:9], quick.DISTURBED)):
        monkeypatch.setattr(quick, "time_until_confirmed", lambda calls, *a, unsure=unsure: (times, unsure))
        p = quick.calibrate_quickly()
        assert p.notes.startswith(notes) and bool(p.doubts) == (notes != quick.DISTURBED)


def test_every_figure_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = SimpleNamespace(standard_normal=np.zeros, integers=lambda low, high, shape: np.zeros(shape, int))
    monkeypatch.setattr(np.random, "default_rng", lambda seed: zeros)  # drawing what nobody computes with takes seconds
    assert {f.name for f in figures.figures(CPU)} <= set(times_of(CPU))


def about(value: float) -> Any:
    return pytest.approx(value, rel=0.35)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_profile_comes_back_from_its_times(noise: float) -> None:
    """Also where a machine is noisy, and one figure in ten takes three times as long."""
    rng = np.random.default_rng(1)
    made = {
        name: t * math.exp(noise * rng.standard_normal()) * (3.0 if noise and rng.random() < 0.1 else 1.0)
        for name, t in times_of(replace(CPU, fork=3e-5)).items()
    }
    p = fits.fit_profile(CPU, made)
    assert 1e-5 <= p.fork <= 6e-5 and 300 <= p.fork_flops <= 20000
    assert p.rate("float32") == about(CPU.rate("float32"))
    assert p.rate("float64") <= p.rate("float32")
    # Of what is in cache, waking cores takes most of the time.
    assert p.bandwidth == about(CPU.bandwidth) and 1.0 <= p.cache_bandwidth / p.bandwidth <= 12.0
    assert [f for _, f in p.linear_penalty] == sorted((f for _, f in p.linear_penalty), reverse=True)
    penalty = {rows: (p.linear_factor(rows), CPU.linear_factor(rows)) for rows in figures.ROWS}
    assert all(1.0 <= found <= 2.5 * true for found, true in penalty.values())
    assert [m.name for m in p.modes] == ["ynn off"]
    assert p.in_mode(p.modes[0]).linear_factor(8) > 2.0
    assert Profile.from_json(p.to_json()) == p


def test_a_gpu_keeps_its_tiles_and_gets_its_rates() -> None:
    """Matmuls large enough for the work to outweigh the dispatch give the rates of all dtypes; tiles are not fitted."""
    sheet = PROFILES["h100"]
    true = replace(sheet, matmul_rate={d: r * 0.7 for d, r in sheet.matmul_rate.items()}, dispatch=57e-6, launch=3e-6)
    p = fits.fit_profile(sheet, times_of(true))
    assert (p.tiles, p.matmul_half) == (sheet.tiles, sheet.matmul_half)
    assert p.launch == pytest.approx(3e-6) and p.dispatch == pytest.approx(57e-6)
    assert {d: p.rate(d) / true.rate(d) for d in ("float32", "bfloat16", "float16")} == {
        d: pytest.approx(1.0, rel=0.02) for d in ("float32", "bfloat16", "float16")
    }
    assert p.conv_factor == about(sheet.conv_factor) and p.bandwidth == about(sheet.bandwidth)
    assert Profile.from_json(p.to_json()) == p


def test_what_is_learned_of_linear_algebra_and_of_matmuls_apart() -> None:
    """These are differences of times, and shares at many sizes: exact where the times are."""
    p = fits.fit_profile(CPU, times_of(CPU))
    assert p.window_row == pytest.approx(CPU.window_row, 0.1)
    assert p.tap_rate == about(CPU.tap_rate)
    assert p.join == about(CPU.join) and 0.5 <= p.join_flops / CPU.join_flops <= 2.0
    for n in figures.matrix_sides(CPU):
        assert p.factor_share / (n + p.factor_half) == about(CPU.factor_share / (n + CPU.factor_half))
    for n, columns in figures.triangular_sizes(CPU):
        found, true = (q.solve_share * share_of_peak((n, columns), q.solve_half) for q in (p, CPU))
        assert found == about(true)


def test_stalls_of_libraries_threads_are_left_out() -> None:
    times = times_of(CPU)
    stalled = {"solve 256 16": 7e-3, "solve 512 16": 8e-3, "solve 512 512": 8e-2, "cholesky 512": 0.3}
    p = fits.fit_profile(CPU, {**times, **stalled})
    for n, columns in figures.triangular_sizes(CPU):
        found, true = (q.solve_share * share_of_peak((n, columns), q.solve_half) for q in (p, CPU))
        assert found == about(true)
    every = {name: 1.0 for name in times if name.partition(" ")[0] in ("lu", "cholesky", "solve")}
    p = fits.fit_profile(CPU, {**times, **every})
    assert (p.factor_half, p.solve_half) == (CPU.factor_half, CPU.solve_half)


def test_memory_that_comes_page_by_page() -> None:
    p = fits.fit_profile(CPU, times_of(CPU))
    assert p.fresh_bytes == CPU.fresh_bytes and p.fresh_rate == about(CPU.fresh_rate)
    kept = fits.fit_profile(CPU, times_of(replace(CPU, fresh_bytes=math.inf)))
    assert kept.fresh_bytes == math.inf and kept.fresh(1 << 40) == 0
    assert figures.result_sizes(PROFILES["h100"]) == [] and PROFILES["h100"].fresh(1 << 30) == 0


def test_a_device_without_a_step_in_its_times_wakes_nobody() -> None:
    p = fits.fit_profile(CPU, times_of(replace(CPU, fork=0.0)))
    assert p.fork < 2e-6


@pytest.mark.slow
def test_a_calibration_of_this_machine() -> None:
    told: list[tuple[str, int, int]] = []
    p, times = calibrate.calibrate(seconds=0.002, progress=lambda *step: told.append(step))
    assert p.calibrated and p.label == "cpu, calibrated" and "jax" in p.measured
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {of for _, _, of in told} == {len(told)}
    assert Profile.from_json(p.to_json()) == p and p.machine == this_machine()
    assert fits.fit_profile(CPU, times).vector_rate == p.vector_rate
    assert p.matmul_rate["float32"] > p.vector_rate > 0 and p.cache_bandwidth >= p.bandwidth
    assert json.loads(p.to_json())["relax_eg profile"] == PROFILE_VERSION


def test_the_command_refuses_nonsense(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["calibrate", str(tmp_path / "p.json"), "--seconds", "0"])
    assert found.exit_code != 0 and "--seconds 0: a number above 0, at most 10, is accepted" in found.output
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize("where", ["p", "nowhere/p.json", "folder.json"])
def test_the_command_refuses_paths_before_it_measures(where: str, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    found = CliRunner().invoke(app, ["calibrate", str(tmp_path / where)])
    assert found.exit_code != 0
    assert "a file that ends in .json, in a folder that exists, is accepted" in " ".join(found.output.split())


def test_the_command_refuses_a_report_nowhere(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        app, ["calibrate", str(tmp_path / "p.json"), "--report", str(tmp_path / "no" / "r.json")]
    )
    assert found.exit_code != 0 and "a file in a folder that exists is accepted" in " ".join(found.output.split())


@pytest.mark.slow
def test_the_command_writes_a_profile(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["calibrate", str(tmp_path / "p.json"), "--seconds", "0.001", "--name", "here",
                                      "--report", str(tmp_path / "r.json")])  # fmt: skip
    assert CalibrationReport.from_json(tmp_path / "r.json").profile.label == "here, calibrated"
    assert found.exit_code == 0, found.output
    p = Profile.from_json(tmp_path / "p.json")
    assert p.label == "here, calibrated" and "optimize(target=" in found.output and "matmul, Gflop/s" in found.output
