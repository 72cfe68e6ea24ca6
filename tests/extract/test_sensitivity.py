"""What a choice owes to how many candidates of each value were kept."""

from __future__ import annotations

import math

import pytest

import relax_eg as rx
from relax_eg.extract.selection.problem import Problem
from relax_eg.extract.selection.sensitivity import MOST, sensitivity


def test_what_only_pays_when_shared_is_not_among_the_first() -> None:
    """Three values may each be part of a dear one that is paid once; on its own each is cheaper by itself."""
    reads = [[(1, 2, 3)], [(), (4,)], [(), (4,)], [(), (4,)], [()]]
    costs = [[0.0], [3.0, 1.0], [3.0, 1.0], [3.0, 1.0], [4.0]]
    found = sensitivity(Problem(reads, costs, (0,)), 7.0)
    assert found == ((1, pytest.approx(9 / 7 - 1)),)


def test_where_nothing_is_left_out_nothing_is_told() -> None:
    assert sensitivity(Problem([[()]], [[1.0]], (0,)), 1.0) == ()
    assert sensitivity(Problem([[(), ()]], [[1.0, math.inf]], (0,)), 1.0) == ()
    assert sensitivity(Problem([[()] * (MOST + 1)], [[1.0] * (MOST + 1)], (0,)), 1.0) == ()


def test_the_report_tells() -> None:
    best = rx.optimize(lambda a, b, v: (a @ b) @ v, "512 512", "512 512", "512", target="cpu")
    (row,) = best.report.selected
    assert [n for n, _ in row.fewer] == [1, 2, 4][: len(row.fewer)] and row.fewer
    assert all(extra >= -1e-6 for _, extra in row.fewer)
    assert "keeping at most 1" in str(best.report)
    assert rx.types.CostReport.from_json(best.report.to_json()) == best.report
