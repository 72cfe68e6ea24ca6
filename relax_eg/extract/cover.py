"""Chooses a small number of programs that together are good at all sizes, and the boxes of sizes that each serves.

Both steps work on a table of cost ratios: the cost of each program at each of many sample points over the best cost
there. A program is *near* at a point if its ratio is at most a limit. The first step chooses programs so that at least
one is near at each point. The second step is a decision tree. It splits the points by comparisons of sizes until one
program is near at all points of a box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax_eg.extract.costs.numbers import TINY

Table = np.ndarray  # programs x points
Interval = tuple[int | None, int | None]

LIMITS = (1.01, 1.02)  # given: times the best, as documented for users: limits of "near", preferred and at most
LEAVES = 48  # limit: boxes of a family
# chosen: share of the cost: the least improvement for which a program is added at points where none is near
NEARER = 0.005
# given: share of the required gain, as documented for users, from which on a change may be taken if boxes get simpler
GAINING = 0.6
# chosen: share of the cost that is added to every other program at points where the program as written stays
_CHANGE = 1e-3
# chosen: share of the points by which a feature beyond the `plain` ones must separate more points than those
_PENALTY = 0.003
_FAR = 10.0  # chosen: times the best: larger ratios count alike in means
_ROUNDING = 1e-9  # chosen: a share: rounding error between sums in different orders


def cost_ratios(costs: Table, pays: float, prices_are_known: bool = False) -> Table:
    """The ratios of a table of costs to the cost of the program that would be chosen for each point alone.

    That program is the cheapest one, or the program as written (the first row) if no program is more than `pays` times
    cheaper. At points of the second kind, another program that gains less than `GAINING` of the required gain has a
    ratio of at least `pays`, because predictions cannot resolve smaller gains.

    - `prices_are_known`: whether costs are exact, so that all ratios follow from costs alone.
    """
    least = costs.min(0)
    stays = costs[0] <= pays * least
    found = np.maximum(costs / np.maximum(np.where(stays, costs[0], least), TINY), 1.0)
    if not prices_are_known:
        found[1:, stays] += _CHANGE
        doubtful = costs[0] < (1 + GAINING * (pays - 1)) * costs[1:]
        found[1:] = np.where(stays & doubtful, np.maximum(found[1:], pays), found[1:])
    return found


def choose_programs(
    ratios: Table, most: int, fits: Callable[[Sequence[int]], bool]
) -> tuple[list[int], float, np.ndarray]:
    """The chosen programs, at most `most`; the limit of `LIMITS` that they keep; and the points at which no chosen
    program is within the limit. Without such points, greedy covering found a near program for every point.

    - `fits`: whether programs may be chosen together; a single program always may.
    """
    strict, loose = LIMITS
    chosen = _greedy_cover(ratios, ratios <= strict, most, fits, [])
    if (ratios[chosen].min(0) <= strict).all():
        return chosen, strict, np.zeros(0, np.int64)
    # If the program that covers most points is chosen first, those that cover the other points may no longer fit.
    near = ratios <= loose
    tried = [_greedy_cover(ratios, near, most, fits, first) for first in ([], *([p] for p in range(len(ratios))))]
    beyond = [float(np.maximum(ratios[c].min(0) - loose, 0.0).sum()) for c in tried]
    chosen = tried[int(np.argmin(beyond))]
    return chosen, loose, np.flatnonzero(~near[chosen].any(0))


def _greedy_cover(
    ratios: Table, near: Table, most: int, fits: Callable[[Sequence[int]], bool], first: list[int]
) -> list[int]:
    chosen = list(first)
    mean = np.minimum(ratios, _FAR).mean(1)
    open_ = ~near[chosen].any(0)
    while open_.any() and len(chosen) < most:
        gains = (near & open_).sum(1)
        order = sorted(range(len(ratios)), key=lambda p: (-gains[p], mean[p], p))
        best = next((p for p in order if gains[p] and (not chosen or fits([*chosen, p]))), None)
        if best is None:
            break
        chosen.append(best)
        open_ &= ~near[best]
    while open_.any() and len(chosen) < most:  # if none may be near, a nearer program helps
        least = ratios[chosen].min(0)[open_]
        gains = np.maximum(least - ratios[:, open_], 0.0).sum(1) / open_.sum()
        order = sorted(range(len(ratios)), key=lambda p: (-gains[p], mean[p], p))
        best = next((p for p in order if gains[p] >= NEARER and fits([*chosen, p])), None)
        if best is None:
            break
        chosen.append(best)
    return _without_redundant(ratios, near, chosen, fits)


def _without_redundant(
    ratios: Table, near: Table, chosen: list[int], fits: Callable[[Sequence[int]], bool]
) -> list[int]:
    """The chosen programs without those that later ones made unnecessary."""
    covered, least = near[chosen].any(0), ratios[chosen].min(0)
    for p in list(reversed(chosen)):
        rest = [q for q in chosen if q != p]
        if not rest or not fits(rest):
            continue
        as_near = np.where(covered, near[rest].any(0), ratios[rest].min(0) <= least * (1 + NEARER))
        chosen = rest if as_near.all() else chosen
    return chosen


@dataclass(slots=True)
class CoverBox:
    """A box of sizes and the program that serves it.

    - `bounds`: the interval (low, high) of each feature that is bounded, both ends included; None: no bound.
    - `points`: indices of the sample points in the box.
    - `program`: the row of the program in the table.
    - `misses`: number of points at which the program is not near.
    """

    bounds: dict[int, Interval]
    points: np.ndarray
    program: int
    misses: int


@dataclass
class Partition:
    """A partition of the sample points into boxes.

    - `ratios`: the cost ratios, a row for each program that may serve.
    - `features`: the values at the points of each expression of the sizes that may be compared.
    - `plain`: number of the first features, which are preferred.
    - `limit`: the largest ratio of a program that is near.
    - `most`: the most boxes.
    - `steps`: per feature, the last values before a sudden change of costs.
    - `leaves`: the boxes.
    """

    ratios: Table
    features: Sequence[np.ndarray]
    plain: int
    limit: float
    most: int = LEAVES
    steps: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    leaves: list[CoverBox] = field(init=False)

    def __post_init__(self) -> None:
        # If no program is within the limit, those about as good as the best count as near.
        self._near = self.ratios <= np.maximum(self.limit, self.ratios.min(0) * (1 + NEARER)) * (1 + _ROUNDING)
        self.leaves = [self._leaf({}, np.arange(self.ratios.shape[1]))]
        done: list[CoverBox] = []
        while self.leaves and len(self.leaves) + len(done) < self.most:
            self.leaves.sort(key=lambda leaf: leaf.misses)
            leaf = self.leaves.pop()
            parts = self._split(leaf) if leaf.misses else None
            if parts is None:
                done.append(leaf)
            else:
                self.leaves += parts
        self.leaves = _merge_boxes([*done, *self.leaves])

    def _leaf(self, bounds: dict[int, Interval], points: np.ndarray) -> CoverBox:
        near, ratios = self._near[:, points], self.ratios[:, points]
        misses = (~near).sum(1)
        # The program that is best on average among those near everywhere, else the one that misses least.
        worst, mean = ratios.max(1), ratios.mean(1)
        program = min(range(len(misses)), key=lambda p: (misses[p], worst[p] if misses[p] else 0.0, mean[p], p))
        return CoverBox(bounds, points, program, int(misses[program]))

    def _split(self, leaf: CoverBox) -> list[CoverBox] | None:
        """The two boxes into which one comparison splits the leaf; None if no feature differs within it.

        The comparison is the one after which the programs of the two boxes are near at most points. If none improves on
        the whole leaf, it is the one that separates programs best (by Gini impurity)."""
        near = self._near[:, leaf.points]
        hard = ~near.all(0)  # points at which every program is near give no information
        near, points = near[:, hard], leaf.points[hard]
        counts = near.sum(1, keepdims=True)
        whole, count = int(counts.max()), len(points)
        best: tuple[tuple[float, float], int, int] | None = None
        for f, column in enumerate(self.features):
            values = column[points]
            order = np.argsort(values, kind="stable")
            below = np.cumsum(near[:, order], 1)
            ends = np.flatnonzero(np.diff(values[order]))  # the last place of each value but the largest
            if not len(ends):
                continue
            left, right = below[:, ends], counts - below[:, ends]
            reached = left.max(0) + right.max(0)
            pure = (left**2).sum(0) / (ends + 1) + (right**2).sum(0) / (count - ends - 1)
            scores = reached * count + pure if int(reached.max()) > whole else pure
            top = float(scores.max())
            ties = np.flatnonzero(scores >= top * (1 - _ROUNDING))
            end = ends[ties[len(ties) // 2]]
            late = _PENALTY * len(leaf.points) if f >= self.plain else 0.0
            score = (float(reached.max()) - whole - late, top)
            if best is None or score > best[0]:
                low, high = int(values[order][end]), int(values[order][end + 1])
                known = [n for n in self.steps.get(f, ()) if low <= n < high]
                best = (score, f, known[0] if known else _between(low, high))
        if best is None:
            return None
        _, f, cut = best
        low, high = leaf.bounds.get(f, (None, None))
        values = self.features[f][leaf.points]
        return [
            self._leaf({**leaf.bounds, f: (low, cut)}, leaf.points[values <= cut]),
            self._leaf({**leaf.bounds, f: (cut + 1, high)}, leaf.points[values > cut]),
        ]


def _between(low: int, high: int) -> int:
    """The cut between two values: their geometric mean, because sizes differ by factors."""
    return min(max(low, math.isqrt(max(low, 0) * high)), high - 1)


def _merge_boxes(leaves: Sequence[CoverBox]) -> list[CoverBox]:
    """The boxes after merging each pair of one program that differs in one feature and touches there."""
    left = list(leaves)
    while True:
        pair = next(
            ((a, b, f) for i, a in enumerate(left) for b in left[i + 1 :] if (f := _touching(a, b)) is not None), None
        )
        if pair is None:
            return left
        a, b, f = pair
        (low, end), (start, high) = a.bounds[f], b.bounds[f]
        outer = (low, high) if end is not None and start == end + 1 else (start, end)
        bounds = {**a.bounds, f: outer}
        if outer == (None, None):
            del bounds[f]
        left = [x for x in left if x is not a and x is not b]
        left.append(CoverBox(bounds, np.concatenate([a.points, b.points]), a.program, a.misses + b.misses))


def _touching(a: CoverBox, b: CoverBox) -> int | None:
    """The one feature in which two boxes of one program differ, if they touch there; else None."""
    if a.program != b.program or a.bounds.keys() != b.bounds.keys():
        return None
    differing = [f for f in a.bounds if a.bounds[f] != b.bounds[f]]
    if len(differing) != 1:
        return None
    (low, end), (start, high) = a.bounds[differing[0]], b.bounds[differing[0]]
    touches = (end is not None and start == end + 1) or (high is not None and low == high + 1)
    return differing[0] if touches else None
