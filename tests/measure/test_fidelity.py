"""What `benchmarks.fidelity` makes of predicted and measured times."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import relax_eg as rx
from benchmarks.fidelity import (
    SAME,
    Row,
    Timed,
    learned,
    load,
    regret,
    repriced,
    row_kinds,
    save,
    show,
    teach,
    timed,
    wrong,
)
from benchmarks.fidelity_programs import PROGRAMS
from benchmarks.timing import Estimate
from relax_eg.driver.clock.measured import Search
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.profiles.learned import corrected

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


def rows_of_a_machine(factors: dict[str, float]) -> list[Row]:
    """A product in two orders, and a sum of a product in two forms, on a machine that takes `factors` times as long."""
    pairs = [
        (
            rx.trace(lambda a, b, v: (a @ b) @ v, "n n", "n n", "n"),
            rx.trace(lambda a, b, v: a @ (b @ v), "n n", "n n", "n"),
        ),
        (rx.trace(lambda a, b: (a @ b).sum(), "n n", "n n"), rx.trace(lambda a, b: a.sum(0) @ b.sum(1), "n n", "n n")),
    ]
    rows: list[Row] = []
    for n in (64, 128, 200, 300, 500, 700):
        for i, modules in enumerate(pairs):
            found = Row(f"program {i}", {"n": n}, (), tuple(Timed("", 1.0, 1.0, str(m)) for m in modules))
            seconds = [corrected(kinds, factors) for kinds in row_kinds(found, CPU)]
            rows.append(
                replace(found, timed=tuple(replace(t, seconds=s) for t, s in zip(found.timed, seconds, strict=True)))
            )
    return rows


def test_what_is_learned_from_a_wrong_profile() -> None:
    rows, p = rows_of_a_machine({}), wrong(CPU)
    before, after = ([regret(r, q) for r in rows] for q in (p, learned(rows, p)))
    errors = [float(np.median([e for f in found for e in f.errors])) for found in (before, after)]
    assert errors[0] > np.log(1.5) and errors[1] < np.log(1.2)
    assert all(f.kept >= 0.97 for f in (*before, *after))
    out = Console(file=StringIO(), width=200)
    teach(out, rows, p)
    shown = [line for line in out.file.getvalue().splitlines() if "learned from" in line]  # type: ignore[attr-defined]
    assert len(shown) == 2


def test_a_choice_by_prices_alone_is_regretted() -> None:
    """On a machine on which products with vectors are very slow."""
    (slow,) = [r for r in rows_of_a_machine({"matmul, few rows": 1e5}) if r.key == "program 1, n=500"]
    found = regret(slow, CPU)
    assert found.alone > 2 and not found.is_settled and found.kept < 0.97
    unsure = regret(slow, replace(CPU, doubts={"kinds": 9.0}))
    assert unsure.is_settled and unsure.kept == 1.0
