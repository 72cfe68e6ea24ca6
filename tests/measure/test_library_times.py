"""`benchmarks.library_times`: what it compares and what it tells."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import library_times
from benchmarks.library_cases import CASES, REAL
from benchmarks.library_times import BEGIN, DOCUMENT, END, Row, difference
from benchmarks.timing import Estimate

ROWS = [
    Row(
        "optax: lion", 0.002, Estimate(1.2, 1.1, 1.3), 0.2, 0.3, 0.22, 0.04, 0.8, predicted=1.1, found="chosen, settled"
    ),
    Row(
        "optax: lion, gradient", 0.004, Estimate(0.9, 0.88, 0.92), 0.2, 0.1, 0.21, 0.04, 0.8, trial=1.01, difference=3.0
    ),
    Row("optax: muon", error="no result in 300 s"),
]


def test_differences_are_in_units_of_what_is_accepted() -> None:
    want = {"a": jnp.array([0.0, 10.0]), "i": jnp.array([1, 2]), "tiny": jnp.array([1e-6])}
    assert difference(want, want, 1e-3) == 0
    assert difference({**want, "a": jnp.array([0.02, 10.0])}, want, 1e-3) == pytest.approx(2.0)
    # What is small is compared with a thousandth of the largest.
    assert difference({**want, "tiny": jnp.array([1.1e-5])}, want, 1e-3) == pytest.approx(1.0, rel=1e-3)
    assert difference({**want, "i": jnp.array([1, 3])}, want, 1e-3) > 1
    assert difference({**want, "a": jnp.array([np.nan, 10.0])}, want, 1e-3) == np.inf
    assert difference({**want, "a": jnp.array([0.0])}, want, 1e-3) == np.inf
    nans = {"a": jnp.array([np.nan, np.inf])}
    assert difference(nans, nans, 1e-3) == 0
    keys = jax.random.split(jax.random.key(0))
    assert difference(keys[0], keys[0], 1e-3) == 0 and difference(keys[0], keys[1], 1e-3) > 1


def test_rows_on_file_read_back(tmp_path: Path) -> None:
    library_times.save(tmp_path / "rows.json", ROWS)
    assert library_times.load(tmp_path / "rows.json") == ROWS


def test_the_document_has_a_line_for_each_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(library_times, "DOCUMENT", path)
    library_times.write(library_times.markdown(ROWS, "a machine"))
    lines = path.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("before", BEGIN, END, "after") and "old" not in lines
    kept = "- calls at least 0.97 times as fast as jax.jit: 1 within, 0 unsure, 1 SLOWER of 2"
    assert kept in lines
    late = "- first calls with the search in the background: median 1.07 times as long, longest 1.1; 2 of 2 at most 1.3"
    assert late in lines
    assert "- results differ by more than is accepted: 1; no result: 1" in lines
    first = "| optax: lion | 2.00 ms | 1.20 (1.10 to 1.30) |  | chosen, settled | 1.10 |  | 200 ms | 1.50 | 1.10 |"
    assert first in lines
    assert "| optax: muon |  |  | no result in 300 s |  |  |  |  |  |  |" in lines
    assert "| optax: lion, gradient | 4.00 ms | 0.90 (0.88 to 0.92) | DIFFERS by 3 |" in "\n".join(lines[-5:])


def test_the_document_is_of_these_functions() -> None:
    text = DOCUMENT.read_text()
    lines = text[text.index(BEGIN) : text.index(END)].splitlines()
    told = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")} - {"function", "---"}
    assert told <= set(library_times.functions()) and len(told) >= 40, (
        "run `python -m benchmarks.library_times --write`"
    )


def test_real_sizes_are_larger() -> None:
    """Of cases that take no time to build."""
    for case in CASES:
        if case.library in ("equinox", "lineax", "blackjax"):
            small, real = case.build(), case.build(REAL)
            sizes = [sum(x.size for x in jax.tree.leaves(u.arguments()) if hasattr(x, "size")) for u in (small, real)]
            assert sizes[1] > 10 * sizes[0], case.name
