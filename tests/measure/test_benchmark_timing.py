"""Verdicts of benchmarks: within, beyond or unsure, when something is measured again, and how they are counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import dynamic, families, gpu, minilm, patterns, timing
from benchmarks.gpu_pages import CompiledRow, Made
from benchmarks.timing import BEYOND, UNSURE, WITHIN, Estimate, Timings, geometric_mean, settled, tally

ROUNDS = 101
LIMIT = 1.10


def noisy(median: float, spread: float, seed: int = 0, rounds: int = ROUNDS) -> np.ndarray:
    """Samples with this median, about `spread` to both sides."""
    samples = spread * np.random.default_rng(seed).uniform(-1, 1, rounds)
    return samples - np.median(samples) + median


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.9, 1.10, WITHIN), (1.101, 1.2, BEYOND), (1.09, 1.11, UNSURE), (1.10, 1.2, UNSURE)],
)
def test_an_interval_that_holds_the_limit_inside_decides_nothing(low: float, high: float, verdict: str) -> None:
    assert Estimate((low + high) / 2, low, high).against(LIMIT) == verdict


def test_a_median_on_the_good_side_alone_is_not_within() -> None:
    found = Estimate.of(noisy(1.08, 0.5))
    assert found.value < LIMIT and found.against(LIMIT) == UNSURE
    assert Estimate.of(noisy(1.05, 0.01)).against(LIMIT) == WITHIN
    assert Estimate.of(noisy(1.15, 0.01)).against(LIMIT) == BEYOND


def test_decided_verdicts_are_mostly_right() -> None:
    """A true median right at the limit is called decided in at most 5% of experiments."""
    draws = np.random.default_rng(0).lognormal(np.log(LIMIT), 0.3, (400, ROUNDS))
    decided = sum(Estimate.of(samples).against(LIMIT) != UNSURE for samples in draws)
    assert decided <= 0.05 * 400 * 1.5  # 20 expected at most; 30 allows for chance


def test_ratios_the_other_way_round() -> None:
    found = Estimate.of(np.array([2.0] * 40 + [4.0] * 3))
    assert found.inverse.value == 0.5 and found.inverse.low <= found.inverse.value <= found.inverse.high
    timings = Timings({"a": noisy(1, 0.1), "b": noisy(2, 0.1, 1)})
    there, back = timings.speedup("a", over="b"), timings.speedup("b", over="a").inverse
    assert (there.low, there.high) == pytest.approx((back.low, back.high))


def looks(monkeypatch: pytest.MonkeyPatch, *medians: float, spread: float) -> list[float]:
    """Seconds for which `settled` measured, where the ratios of each look have such medians."""
    asked: list[float] = []

    def measure(calls: Iterable[str], seconds: float = 1.0, seed: int = 0) -> Timings:
        asked.append(seconds)
        return Timings({"best": np.ones(ROUNDS), "ours": noisy(medians[seed], spread, seed)})

    monkeypatch.setattr(timing, "measure", measure)
    settled({}, 1.0, lambda t: [(t.speedup("best", over="ours"), LIMIT)])
    return asked


def test_what_is_unsure_is_measured_again_on_both_sides_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks(monkeypatch, LIMIT + 0.02, LIMIT, spread=0.5) == [1.0, timing.AGAIN]
    assert looks(monkeypatch, LIMIT - 0.02, LIMIT, spread=0.5) == [1.0, timing.AGAIN]
    assert looks(monkeypatch, LIMIT + 0.2, LIMIT, spread=0.01) == [1.0]
    assert looks(monkeypatch, LIMIT - 0.2, LIMIT, spread=0.01) == [1.0]


def test_both_looks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(calls: Iterable[str], seconds: float = 1.0, seed: int = 0) -> Timings:
        return Timings({"best": np.ones(ROUNDS), "ours": noisy(LIMIT, 0.5, seed)})

    monkeypatch.setattr(timing, "measure", measure)
    found = settled({}, 1.0, lambda t: [(t.speedup("best", over="ours"), LIMIT)])
    assert len(found.seconds["ours"]) == 2 * ROUNDS


def test_each_verdict_is_counted_by_itself() -> None:
    assert tally([WITHIN, UNSURE, BEYOND, WITHIN], "MISSED") == "2 within, 1 unsure, 1 MISSED of 4"
    assert tally([UNSURE]) == "0 within, 1 unsure, 0 beyond of 1"


def test_a_mean_has_an_interval_too() -> None:
    mean = geometric_mean([Estimate(1, 0.5, 2), Estimate(4, 2, 8)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((2, 1, 4))


def pattern(best: float, behind: tuple[float, float], faster: tuple[float, float], same: bool = False) -> patterns.Row:
    """A row: by how much the best form wins, how many times longer than it ours takes, how much faster ours is."""

    def estimate(ends: tuple[float, float]) -> Estimate:
        return Estimate(sum(ends) / 2, *ends)

    ours = estimate(faster), estimate(behind)
    return patterns.Row("case", 64, 1.0, {"form": best}, "form", Estimate(best, best, best), *ours, same)


def test_patterns_count_what_is_missed_of_small_wins_apart() -> None:
    rows = [
        pattern(2.0, (1.0, 1.05), (2.0, 2.1)),
        pattern(2.0, (1.0, 1.2), (2.0, 2.1)),
        pattern(2.0, (1.2, 1.3), (0.8, 0.9)),
        pattern(1.4, (1.2, 1.3), (0.9, 1.1)),
        pattern(1.0, (0.9, 1.0), (1.0, 1.0), same=True),
    ]
    means, slower, above, below = patterns.summary(rows).splitlines()
    assert means.startswith("geometric mean of the speed-ups: best by hand ")
    assert slower.endswith("3 within, 1 unsure, 1 SLOWER of 5")
    assert above.endswith("1 within, 1 unsure, 1 MISSED of 3")
    assert below.endswith("1 within, 0 unsure, 1 missed of 2")


def test_the_program_as_written_can_be_a_miss() -> None:
    """That XLA compiled both to the same says that ours is not slower, not that there was nothing to find."""
    row = pattern(2.0, (1.9, 2.1), (0.7, 0.8), same=True)
    assert (row.slower, row.missed) == (WITHIN, BEYOND)


def test_rows_of_patterns_are_read_again(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.json", [pattern(2.0, (1.0, 1.2), (2.0, 2.1), same=True)]
    patterns.save(path, rows, [])
    assert patterns.load(path) == rows
    path.write_text(json.dumps({"version": 1, "rows": []}))
    with pytest.raises(SystemExit, match="version 1; 2 is accepted"):
        patterns.load(path)


def compiled(**seconds: float) -> CompiledRow:
    """A program as written and in the ways that are given, with 1 KiB of temporaries, and forms by hand of 2 us."""
    made = {way.replace("_", " "): Made(2, 0, 1 << 10, s, 0) for way, s in seconds.items()}
    hand = {"best": Made(2, 0, 0, 2e-6, 0), "not believed": Made(2, 0, 0, 1e-6, 0, too_short=1)}
    return CompiledRow("f", "float32", "h100", made, ("left",), hand, 1.5, "abc")


def test_programs_for_gpus_are_held_against_forms_by_hand() -> None:
    """The best form counts whose estimate is believed, and where it wins by 1.5."""
    row = compiled(as_written=3e-6, whole=2.1e-6, kernels=2.3e-6)
    assert row.by_hand_wins and row.missed() == ["kernels: 1.15 times as long as best"]
    assert not compiled(as_written=2.9e-6, whole=2.9e-6).by_hand_wins


def test_estimates_that_memory_does_not_allow_are_not_compared() -> None:
    row = compiled(as_written=1e-6, whole=2e-6)
    assert row.speedup("whole") == 0.5 and row.worse() == ["whole: 0.50x"]
    short = replace(row, made={**row.made, "as written": Made(2, 0, 1 << 10, 1e-6, 0, too_short=1)})
    assert short.speedup("whole") is None and short.worse() == [] and "1 too short" in str(short)


def test_rows_of_programs_for_gpus_are_read_again(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.json", [compiled(as_written=3e-6, whole=2e-6), compiled()]
    gpu.save(path, rows)
    assert gpu.rows_of_file(path, fidelity=False)[1] == rows
    path.write_text(json.dumps({"version": 1, "rows": []}))
    with pytest.raises(SystemExit, match="version 1; 2 is accepted"):
        gpu.rows_of_file(path, fidelity=False)


def test_what_is_wanted_of_the_encoder() -> None:
    wanted: Callable[..., float] = minilm.allowed
    assert wanted(16, False, "whole") == 1 / minilm.LOWEST and wanted(64, True, "whole") == 1 / minilm.LOWEST
    assert wanted(32, True, "whole") == 1 / minilm.SHORT_GAIN
    assert (wanted(16, False, "kernels"), wanted(17, True, "kernels")) == (1.5, 1.15)


def test_later_passes_may_be_unsure() -> None:
    def verdicts(ours: float, spread: float) -> set[str]:
        taken = {"jit": noisy(1, 0.001), "hand": noisy(1, 0.001, 1), "ours": noisy(ours, spread, 2)}
        return set(dynamic.limits_of_steady(Timings(taken)).values())

    assert verdicts(0.9, 0.01) == {WITHIN}
    assert verdicts(1.1, 0.9) == {UNSURE}
    assert verdicts(1.3, 0.01) == {BEYOND}


def test_a_first_pass_stands_beside_hand_padding() -> None:
    def figures(hand: float) -> dict[str, Any]:
        return {n: {"first": s, "executables": 5} for n, s in (("jit", 60.0), ("hand", hand), ("ours", 7.0))}

    assert set(dynamic.limits_of_first(figures(8.0)).values()) == {WITHIN}
    found = dynamic.limits_of_first(figures(6.0))
    assert [w for w, v in found.items() if v == BEYOND] == ["ours at least 1.0 times as fast as hand padding"]


def test_families_tell_what_is_unsure(tmp_path: Path) -> None:
    def point(n: int, low: float, high: float, same: bool = False) -> families.Point:
        return families.Point({"n": n}, 0.0, same, Estimate((low + high) / 2, low, high))

    points = [point(1, 1, 1, same=True), point(2, 0.9, 1.05), point(3, 1.0, 1.3), point(4, 1.2, 1.4)]
    outcome = families.Outcome("lora", "cpu", ["n <= 3", "n > 3"], "proved", 1.0, 1e-6, points)
    cells = [next(iter(c.cells)) for c in families._table([outcome]).columns][-6:]
    assert cells == ["4", "3", "1.30 (1.20 to 1.40)", "1", "1", "1"]
    path = tmp_path / "families.json"
    families._write({"lora": outcome}, path)
    (data,) = json.loads(path.read_text())
    assert [families._point(p, path) for p in data["points"]] == points
    with pytest.raises(SystemExit, match="without intervals"):
        families._point({**data["points"][0], "slower": 1.2}, path)
