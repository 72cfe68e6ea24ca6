"""What `benchmarks.fidelity` makes of predicted and measured times."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import relax_eg as rx
from benchmarks.fidelity import SAME, Row, Timed, load, repriced, save, show, timed
from benchmarks.fidelity_programs import PROGRAMS
from benchmarks.timing import Estimate
from relax_eg.driver.measured import Search

pytestmark = pytest.mark.xla_defaults


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


def test_what_was_chosen_is_what_optimize_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else that is timed has a lower price: found without a rule, for another device, or as written."""
    by_name = {p.name: p for p in PROGRAMS}
    product, kept = by_name["(A@B)@v"], by_name["sum of (xA)*(xB)"]
    found = timed(kept, kept.at[0], "cpu", 0.0)
    assert found.returned == "as written" and found.chosen is found.timed[0]

    class Mispriced(Search):
        def predicted_seconds(self, v: Any, binding: Any) -> float:
            return 1.0 if v.label == "by price" else 0.1

    monkeypatch.setattr("benchmarks.fidelity.Search", Mispriced)
    found = timed(product, product.at[0], "cpu", 0.0)
    assert min(found.timed, key=lambda t: t.predicted).label != "by price" and found.returned == "by price"


def test_behind_is_within_beyond_or_unsure() -> None:
    def behind(low: float, high: float) -> Row:
        return replace(row((1, 2), (2, 1)), returned="as written", behind=Estimate((low + high) / 2, low, high))

    out = Console(file=StringIO(), width=200)
    assert not show(out, [behind(1.0, 1.05), behind(1.0, 1.2), behind(1.2, 1.3)], 5)
    assert "1 within, 1 unsure, 1 beyond of 3 (33.3% within)" in out.file.getvalue()  # type: ignore[attr-defined]
    assert show(out, [replace(row((2, 2), (1, 1)), returned="by price", behind=SAME)], 5)


def test_what_is_on_file_is_priced_anew(tmp_path: Path) -> None:
    text = str(rx.trace(lambda a, b: a @ b, "n n", "n n"))
    timed = tuple(Timed(label, 0.0, 1.0, text) for label in ("as written", "by price"))
    written = Row("product", {"n": 64}, (), timed, "by price", Estimate(1.0, 0.9, 1.1))
    save(tmp_path / "f.json", [written], "cpu")
    (found,) = load(tmp_path / "f.json")
    assert found == written
    assert repriced(found, "cpu").chosen is None  # nobody knows what is returned at other prices
    small = repriced(found, "cpu").timed[0].predicted
    large = repriced(Row("product", {"n": 1024}, (), found.timed), "cpu").timed[0].predicted
    assert 0 < small < large / 100
    assert repriced(found, "h100").timed[0].predicted != small


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"version": 1, "rows": []}')
    with pytest.raises(SystemExit, match="version 1; 2 is accepted: time the programs anew"):
        load(tmp_path / "f.json")
