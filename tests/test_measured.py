"""`measure=k`: what is timed, what is chosen, what is remembered. No test asks how long anything took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.clock import measured
from relax_eg.errors import OptionError
from relax_eg.extract.report import MeasuredRow
from relax_eg.measure import choice
from relax_eg.measure.timing import median_ranks
from relax_eg.ops.facts import FACTS, impossible, violation
from relax_eg.reports import CostReport

pytestmark = pytest.mark.xla_defaults

Array = Any
LORA = ("b 256", "256 256", "256 4", "4 256")


def lora(x: Array, w: Array, a: Array, b: Array) -> Array:
    return x @ (w + a @ b)


def arguments(rows: int = 3) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((rows, 256), (256, 256), (256, 4), (4, 256))]


def decided_for(label: str) -> Any:
    """The clock, replaced by a decision: what follows from one is under test here."""

    def fastest(programs: Mapping[str, tuple[Any, float]], _: Any = None) -> tuple[MeasuredRow, ...]:
        for call, _ in programs.values():
            jax.block_until_ready(call())
        return tuple(MeasuredRow(n, p, 1e-3, 1.0, 1.0, 1.0, n == label) for n, (_, p) in programs.items())

    return fastest


def test_what_is_timed_computes_the_same() -> None:
    best = rx.optimize(lora, *LORA, at={"b": 8}, measure=3)
    rows = best.report.measured
    assert [r.label for r in rows][:2] == ["as written", "by price"] and len(rows) <= 5
    assert sum(r.chosen for r in rows) == 1
    assert all(r.low <= r.speedup <= r.high and r.seconds > 0 for r in rows)
    assert best.report.kept_as_written == rows[0].chosen
    assert "measured: as written " in str(best.report)
    assert best.check(*arguments()).passed
    assert CostReport.from_json(best.report.to_json()) == best.report


def sum_times_vector(a: Array, b: Array, c: Array, v: Array) -> Array:
    return (a @ b + a @ c) @ v


@pytest.mark.parametrize("label", ["as written", "by price", "without matmul_vector_associates"])
def test_what_was_decided_runs_and_is_explained(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "fastest", decided_for(label))
    square = ("n n", "n n", "n n", "n")
    best = rx.optimize(sum_times_vector, *square, at={"n": 256}, measure=4, rules=rx.rules.contraction)
    (row,) = [r for r in best.report.measured if r.chosen]
    assert row.label == label
    assert best.report.kept_as_written == (label == "as written")
    assert ("matmul_vector_associates" in best.report.rules) == (label == "by price")
    rng = np.random.default_rng(0)
    assert best.check(*(rng.standard_normal(s).astype(np.float32) for s in ((5, 5), (5, 5), (5, 5), (5,)))).passed
    text = str(best.explain())
    assert ("matmul_vector_associates" in text) == (label == "by price")


def test_a_decision_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "fastest", decided_for("by price"))
    first = rx.optimize(lora, *LORA, at={"b": 8}, measure=2)
    monkeypatch.setattr(measured, "fastest", decided_for("as written"))
    second = rx.optimize(lora, *LORA, at={"b": 8}, measure=2)
    assert second.report.cached and second.report.measured == first.report.measured
    assert second.module == first.module
    assert not rx.optimize(lora, *LORA, at={"b": 8}, measure=3).report.cached


def test_one_program_is_timed_where_one_was_found() -> None:
    best = rx.optimize(jax.numpy.tanh, "n", at={"n": 64}, measure=3)
    assert [r.label for r in best.report.measured] == ["as written", "as written, ynn off"]


def effect(x: Array) -> Array:
    jax.debug.print("{}", x)
    return x @ x


UNIQUE = """
def main(x: R.Tensor(("n",), "float32")):
    y = R.unique(x)
    return y
"""


@pytest.mark.parametrize(
    ("program", "specs", "options", "text"),
    [
        (lora, LORA, {}, r"measure: sizes to time at are needed: at=\{...\} with b"),
        (effect, ("8 8",), {}, r"measure: effect\(\) does more than compute, and is not timed"),
        (rx.parse(UNIQUE), (), {"at": {"n": 8}}, r"measure: main\(\) runs in steps, and is not timed"),
    ],
)
def test_what_cannot_be_timed(program: Any, specs: Any, options: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        rx.optimize(program, *specs, measure=2, **options)


@pytest.mark.parametrize("measure", [-1, 17, True, 2.0, "all"])
def test_how_many(measure: Any) -> None:
    with pytest.raises(OptionError, match=r"measure=.*: .*programs to time ahead, 0 to 16, or a Settle, is accepted"):
        rx.optimize(lora, *LORA, at={"b": 8}, measure=measure)


@pytest.mark.parametrize("fact", sorted(FACTS))
def test_arguments_have_the_facts(fact: str) -> None:
    a = rx.Tensor("4 4")
    if not impossible(fact, a):
        x = choice.random_argument(a, {}, [fact], 1)
        assert not violation(fact, np.asarray(x), "x")


def test_arguments_of_all_dtypes() -> None:
    for dtype in ("bool", "int32", "uint8", "float16", "bfloat16", "float32", "complex64"):
        x = choice.random_argument(rx.Tensor("n 3", dtype), {"n": 2}, (), 0)
        assert x.shape == (2, 3) and str(x.dtype) == dtype


def test_what_has_one_shape_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So weights are prepared once for all sizes at which programs are timed."""
    made: list[str] = []
    original = measured.random_argument

    def random_argument(a: Any, *rest: Any) -> Any:
        made.append(a.short)
        return original(a, *rest)

    monkeypatch.setattr(measured, "random_argument", random_argument)
    monkeypatch.setattr(measured, "fastest", decided_for("by price"))
    rx.optimize(lora, *LORA, at=[{"b": 8}, {"b": 16}, {"b": 512}], weights=("w", "a", "b"), measure=1)
    assert len(made) == 3 + 3


@pytest.mark.parametrize(
    ("looks", "chosen", "taken"),
    [
        ([(1.0, 12)], "other", 1),  # faster in every round
        ([(1.0, 7), (1.0, 11), (1.0, 12)], "other", 3),  # in 30 of 36, which is beyond doubt; 18 of 24 are not
        ([(1.0, 8)] * 4, "first", 4),  # in 32 of 48: not beyond doubt
        ([(1.0, 2)] * 2, "first", 2),  # the first has the least median, also after the short first look
        ([(1.99, 12)], "first", 1),  # faster in every round, by half a percent
    ],
)
def test_what_is_not_beyond_doubt_is_timed_again(
    looks: list[tuple[float, int]], chosen: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`looks`: how many seconds the other takes, and in how many of 12 rounds; else 3. The first takes 2."""
    left = list(looks)

    def time_interleaved(calls: Any, seconds: float, seed: int = 0) -> Any:
        time, won = left.pop(0)
        return {"first": np.full(12, 2.0), "other": np.array([time] * won + [3.0] * (12 - won))}

    monkeypatch.setattr(choice, "time_interleaved", time_interleaved)
    rows = choice.fastest({"first": (lambda: None, 1.0), "other": (lambda: None, 1.0)})
    assert [r.label for r in rows if r.chosen] == [chosen]
    assert len(looks) - len(left) == taken


def test_price_decides_between_two_of_which_neither_is_faster_beyond_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second beats the first in every round, the third that one in eight of twelve, the fourth in all: then the
    second is out, and the third, which it was cheaper than, is not beaten beyond doubt."""
    times = {"first": np.full(12, 2.0), "second": np.full(12, 1.5), "third": np.array([1.0] * 8 + [1.6] * 4)}
    monkeypatch.setattr(choice, "time_interleaved", lambda calls, *_: {n: times[n] for n in calls})
    rows = choice.fastest({name: (lambda: None, 1.0) for name in times})
    assert [r.label for r in rows if r.chosen] == ["second"]
    times["fourth"] = np.full(12, 1.4)
    rows = choice.fastest({name: (lambda: None, 1.0) for name in times})
    assert [r.label for r in rows if r.chosen] == ["third"]
    times["third"] = np.full(12, 1.45)
    rows = choice.fastest({name: (lambda: None, 1.0) for name in times})
    assert [r.label for r in rows if r.chosen] == ["fourth"]


def test_what_will_not_be_chosen_is_timed_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is slower in every round, one beaten in every round by one that wins; who wants to know of each times all."""
    timed: list[list[str]] = []
    times = {
        "first": np.full(12, 2.0),
        "slower": np.full(12, 2.5),
        "beaten": np.full(12, 1.8),
        "wins": np.full(12, 1.2),
        "now and then": np.array([1.0] * 8 + [3.0] * 4),
    }

    def time_interleaved(calls: Any, *_: Any) -> Any:
        timed.append(list(calls))
        return {n: times[n] for n in calls}

    told: list[str] = []
    monkeypatch.setattr(choice, "time_interleaved", time_interleaved)
    rows = choice.fastest({name: (lambda: None, 1.0) for name in times}, told.append)
    assert [r.label for r in rows if r.chosen] == ["wins"] and [r.label for r in rows] == list(times)
    assert timed[0] == list(times) and timed[1:] == [["first", "wins", "now and then"]] * (len(timed) - 1)
    assert told[:2] == ["5 programs, look 1", "3 programs, look 2"]
    timed.clear()
    choice.fastest({name: (lambda: None, 1.0) for name in times}, time_all=True)
    assert len(timed) > 1 and all(t == list(times) for t in timed)


def test_programs_that_cost_the_same_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the programs that are left without a rule, those of other prices come first."""
    offered: list[list[str]] = []

    def fastest(programs: Mapping[str, tuple[Any, float]], _: Any = None) -> tuple[MeasuredRow, ...]:
        offered.append(list(programs))
        prices = [p for n, (_, p) in programs.items() if not n.startswith("as written") and "ynn" not in n]
        assert all(max(a, b) / min(a, b) > 1 + 1e-6 for i, a in enumerate(prices) for b in prices[:i])
        return tuple(MeasuredRow(n, p, 1e-3, 1.0, 1.0, 1.0, n == "as written") for n, (_, p) in programs.items())

    def layer(x: Array, w: Array, gain: Array, shift: Array) -> Array:
        x = x[None]
        x = x + jax.nn.softmax(x @ w.T, axis=-1) @ w
        mean = jax.numpy.mean(x, -1, keepdims=True)
        deviation = jax.numpy.sqrt(jax.numpy.mean((x - mean) ** 2, -1, keepdims=True) + 1e-6)
        return (x - mean) / deviation * gain + shift

    monkeypatch.setattr(measured, "fastest", fastest)
    rx.optimize(layer, "b 64", "64 64", "64", "64", at={"b": 8}, weights=("w", "gain", "shift"), measure=6)
    rx.optimize(layer, "b 64", "64 64", "64", "64", at={"b": 8}, weights=("w", "gain", "shift"), measure=2)
    every, two = ([n for n in labels if "ynn" not in n] for labels in offered)
    assert every == ["as written", "by price", "without shorter_term", "without softmax_of_shifted_down"]
    assert two == ["as written", "by price", "without softmax_of_shifted_down"]


def test_the_fastest_of_those_beyond_doubt_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of least median is now and then slow, another always a little faster than the first."""
    times = {"first": np.full(12, 2.0), "now and then": np.array([1.0] * 8 + [3.0] * 4), "always": np.full(12, 1.8)}
    monkeypatch.setattr(choice, "time_interleaved", lambda calls, *_: {n: times[n] for n in calls})
    rows = choice.fastest({name: (lambda: None, 1.0) for name in times})
    assert [r.label for r in rows if r.chosen] == ["always"]


@pytest.mark.parametrize(
    ("count", "confidence", "ranks"), [(6, 0.95, (0, 5)), (9, 0.95, (1, 7)), (200, 0.95, (85, 114))]
)
def test_ranks_around_a_median(count: int, confidence: float, ranks: tuple[int, int]) -> None:
    assert median_ranks(count, confidence) == ranks


def test_too_few_samples_enclose_no_median() -> None:
    with pytest.raises(ValueError, match=r"5 samples enclose no median with 95.00%; 6 or more do"):
        median_ranks(5)
