"""What `benchmarks.fidelity` makes of predicted and measured times."""

from __future__ import annotations

from pathlib import Path

import pytest

import relax_eg as rx
from benchmarks.fidelity import Row, Timed, load, repriced, save


def row(*pairs: tuple[float, float]) -> Row:
    labels = ["as written", "by price", "without a", "without b"]
    timed = [Timed(label, p, s, "") for label, (p, s) in zip(labels, pairs, strict=False)]
    return Row("product", {"n": 64}, (), tuple(timed))


def test_tau_counts_pairs_that_differ() -> None:
    assert row((3, 3), (1, 1), (2, 2)).tau == 1.0
    assert row((3, 1), (1, 3), (2, 2)).tau == -1.0
    assert row((1, 1), (3, 1.05)).tau is None  # too near to tell
    assert row((3, 3), (2, 1), (1, 2)).tau == pytest.approx(1 / 3)
    assert row((1, 1), (1, 2)).tau == 0.0  # equal prices say nothing


def test_what_was_chosen_is_what_optimize_would_run() -> None:
    assert row((2, 3), (1, 2), (1.5, 1)).chosen.label == "by price"
    assert row((2, 3), (1, 2), (1.5, 1)).behind == 2.0
    assert row((1.04, 3), (1, 2)).chosen.label == "as written"  # a gain of 4% is less than is asked for
    assert row((2, 3), (1, 2), (0.9999, 1)).chosen.label == "by price"


def test_what_is_on_file_is_priced_anew(tmp_path: Path) -> None:
    text = str(rx.trace(lambda a, b: a @ b, "n n", "n n"))
    timed = tuple(Timed(label, 0.0, 1.0, text) for label in ("as written", "by price"))
    save(tmp_path / "f.json", [Row("product", {"n": 64}, (), timed)], "cpu")
    (found,) = load(tmp_path / "f.json")
    small = repriced(found, "cpu").timed[0].predicted
    large = repriced(Row("product", {"n": 1024}, (), found.timed), "cpu").timed[0].predicted
    assert 0 < small < large / 100
    assert repriced(found, "h100").timed[0].predicted != small
