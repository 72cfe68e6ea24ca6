"""`Budget.extraction` bounds the seconds of all stages of extraction together, and who was stopped says so."""

from __future__ import annotations

import time
from typing import Any

import pytest

import relax_eg as rx
from benchmarks.corpus import CORPUS
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.solve import Solved, SolverEffort

DECODER = CORPUS["four_layer_decoder"]
_NONE = rx.Budget(extraction=0.0)


def spend(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_clock_counts_what_runs_inside_it_once() -> None:
    clock = Clock(0.05)
    spend(0.02)
    assert clock.left == 0.05
    with clock.running(), clock.running():
        spend(0.02)
    assert 0.0 < clock.left <= 0.03 and not clock.is_over() and not clock.ran_out
    with clock.running():
        spend(0.03)
        assert clock.left == 0.0
    assert clock.is_over() and clock.ran_out


def test_a_search_is_given_what_is_left() -> None:
    clock, given = Clock(3.0), list[float]()

    def search(effort: SolverEffort) -> Solved:
        given.append(effort.seconds)
        return Solved([], 0.0, 0.0, "ilp", timed_out=len(given) == 2)

    clock.run_search(search, SolverEffort(seconds=1.0))
    assert given == [1.0] and not clock.ran_out
    clock.run_search(search, SolverEffort(seconds=20.0))
    assert given == [1.0, 3.0] and clock.ran_out


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_without_seconds_the_greedy_choice_is_taken_and_told(execution: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    args = DECODER.made_of, *DECODER.specs
    best = rx.optimize(*args, **DECODER.options, **DECODER.keywords, execution=execution, budget=_NONE)
    assert best.report.stop.endswith("extraction time limit")
    assert {row.how for row in best.report.selected} == {"greedy"}
    # The program as written is a start of the search, so nothing that was found is dearer.
    assert best.report.after.seconds <= best.report.before.seconds
    again = rx.optimize(*args, **DECODER.options, **DECODER.keywords, execution=execution, budget=_NONE)
    assert not again.report.cached


def test_a_limit_that_was_not_met_in_time_says_so() -> None:
    with pytest.raises(rx.errors.ExtractionError, match=r"the clock ended extraction: budget=Budget\(extraction=") as e:
        CORPUS["linear_attention"].optimized(
            memory_limit="1 KiB", at=dict.fromkeys("bdest", 8), budget=_NONE, execution="kernels"
        )
    assert "here 0 seconds" in str(e.value)
