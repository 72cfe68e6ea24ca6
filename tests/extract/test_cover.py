"""Few programs that are good everywhere, boxes in which each serves, and where two cost the same."""

from __future__ import annotations

import numpy as np

from relax_eg.extract.boundary import boundary
from relax_eg.extract.cover import Partition, choose_programs, cost_ratios


def anything(_: object) -> bool:
    return True


def test_few_programs_cover_all_points() -> None:
    n = np.arange(1, 101)
    costs = np.array([n + 50, 3 * n, 2 * n + 20, 0 * n + 400]) * 1.0
    ratios = costs / costs.min(0)
    chosen, limit, left = choose_programs(ratios, 6, anything)
    assert sorted(chosen) == [0, 1, 2] and limit == 1.01 and not len(left)
    chosen, limit, left = choose_programs(ratios, 2, anything)
    assert len(chosen) == 2 and limit == 1.02 and (ratios[chosen].min(0)[left] > 1.02).all() and len(left)
    assert choose_programs(np.ones((3, 5)), 6, anything)[0] == [0]


def test_programs_that_may_not_be_together() -> None:
    """The best in most places stands in the way of what is needed at one point: others do."""
    ratios = np.array([[1.0] * 99 + [1.3], [1.015] * 99 + [1.3], [1.7] * 99 + [1.0]])
    chosen, _, left = choose_programs(ratios, 6, lambda programs: not {0, 2} <= set(programs))
    assert sorted(chosen) == [1, 2] and not len(left)
    chosen, _, left = choose_programs(ratios, 6, lambda programs: len(programs) == 1)
    assert chosen == [0] and list(left) == [99]


def serving(part: Partition, count: int) -> np.ndarray:
    found = np.full(count, -1)
    for leaf in part.leaves:
        assert (found[leaf.points] == -1).all()
        found[leaf.points] = leaf.program
    return found


def test_boxes_hold_every_point_once_and_their_program_is_near() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(1, 200, (2, 800))
    regions = np.where(a <= 40, 0, np.where(b >= 90, 1, 2))
    ratios = np.where(regions[None, :] == np.arange(3)[:, None], 1.0, 1.5)
    part = Partition(ratios, [a, b], 2, 1.01)
    assert (serving(part, 800) == regions).all() and len(part.leaves) == 3
    for leaf in part.leaves:
        for f, (low, high) in leaf.bounds.items():
            values = [a, b][f][leaf.points]
            assert (low is None or (values >= low).all()) and (high is None or (values <= high).all())


def test_programs_that_are_told_apart_in_two_steps_only() -> None:
    a, b = (x.ravel() for x in np.meshgrid(np.arange(1, 21), np.arange(1, 21)))
    crossed = (a <= 10) == (b <= 10)
    ratios = np.where(np.array([crossed, ~crossed]), 1.0, 2.0)
    part = Partition(ratios, [a, b], 2, 1.01)
    assert (serving(part, len(a)) == ~crossed).all()


def test_so_many_boxes_and_no_more() -> None:
    n = np.arange(1, 129)
    ratios = np.where(np.array([n % 2 == 0, n % 2 == 1]), 1.0, 2.0)
    assert len(Partition(ratios, [n], 1, 1.01, 5).leaves) <= 5
    assert len(Partition(ratios, [n, n % 2], 2, 1.01).leaves) == 2


def test_where_two_programs_cost_the_same() -> None:
    rng = np.random.default_rng(1)
    a, b = np.exp(rng.uniform(0, 7, (2, 2000))).round()
    terms = [np.ones_like(a), a, b, a * b]
    x, y = 3 * a * b + 500 * a + 7000, a * b + 900 * b + 7100
    found = boundary(x, y, terms, (4,))
    assert found is not None and found[0] == 0
    sums = sum(c * t for c, t in zip(found, terms, strict=True))
    # The sum grows with the difference x - y: some number tells on which side of it a size is.
    share = (x - y) / np.minimum(x, y)
    above, below = sums[share > 0.03], sums[share < -0.03]
    cut = (np.quantile(above, 0.02) + np.quantile(below, 0.98)) / 2
    assert (above > cut).mean() > 0.97 and (below < cut).mean() > 0.97
    assert boundary(x, x * 1.2, terms, (4,)) is None
    assert boundary(x, x, terms, (4,)) is None


def test_what_gains_less_than_predictions_can_tell_is_not_near() -> None:
    written, other = [100.0] * 5, [101.0, 99.0, 97.0, 96.0, 90.0]
    told = cost_ratios(np.array([written, other]), 1.05, prices_are_known=True)
    np.testing.assert_allclose(told, [[1, 1, 1, 1, 100 / 90], [1.01, 1, 1, 1, 1]])
    chosen = cost_ratios(np.array([written, other]), 1.05)
    assert list(chosen[0]) == [1, 1, 1, 1, 100 / 90]
    assert list(chosen[1]) == [1.05, 1.05, 1.001, 1.001, 1.0]  # from three percent on it may serve
