"""Choosing few programs that are good everywhere, and boxes of sizes in which each of them serves.

Both work on a table: what each program costs at each of many sample points, as a ratio to the best there. A program is
near at a point where its ratio is at most a limit. First few programs are chosen of which one is near at each point;
then the points are split by comparisons of sizes, a decision tree, until one program is near at all points of a box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Table = np.ndarray  # programs x points
Interval = tuple[int | None, int | None]

LIMITS = (1.01, 1.02)  # what is near, at best and at most
LEAVES = 48  # boxes of a family at most
NEARER = 0.005  # of the cost: by so much a program has to be nearer where none may be near
GAINING = 0.6  # of what a change has to gain: where it gains as much it may be taken, if that makes boxes simpler
_CHANGE = 1e-3  # of the cost: by so much it counts as worse there
_PENALTY = 0.003  # of the points: by so many more must a later group of features tell programs apart


def beside(costs: Table, pays: float, told: bool = False) -> Table:
    """The ratios of a table of costs: to what would be chosen for a point alone. That is the cheapest program, or the
    first, the one as written, where nothing is more than `pays` times cheaper. There others count as far off, however
    cheap they are, unless they are about to gain as much: less is not what predictions can tell. `told`: they count as
    what they cost."""
    least = costs.min(0)
    stays = costs[0] <= pays * least
    found = np.maximum(costs / np.maximum(np.where(stays, costs[0], least), 1e-300), 1.0)
    if not told:
        found[1:, stays] += _CHANGE
        doubtful = costs[0] < (1 + GAINING * (pays - 1)) * costs[1:]
        found[1:] = np.where(stays & doubtful, np.maximum(found[1:], pays), found[1:])
    return found


def few(ratios: Table, most: int, fits: Callable[[Sequence[int]], bool]) -> tuple[list[int], float, np.ndarray]:
    """At most `most` programs, a limit, and the points at which no program is within the limit: none of them where
    greedy covering finds such programs. `fits`: whether programs may be chosen together; a single one always may."""
    strict, loose = LIMITS
    chosen = _covering(ratios, ratios <= strict, most, fits, [])
    if (ratios[chosen].min(0) <= strict).all():
        return chosen, strict, np.zeros(0, np.int64)
    # What is best in most places may stand in the way of what is needed in the others.
    near = ratios <= loose
    tried = [_covering(ratios, near, most, fits, first) for first in ([], *([p] for p in range(len(ratios))))]
    beyond = [float(np.maximum(ratios[c].min(0) - loose, 0.0).sum()) for c in tried]
    chosen = tried[int(np.argmin(beyond))]
    return chosen, loose, np.flatnonzero(~near[chosen].any(0))


def _covering(
    ratios: Table, near: Table, most: int, fits: Callable[[Sequence[int]], bool], first: list[int]
) -> list[int]:
    chosen = list(first)
    mean = np.minimum(ratios, 10.0).mean(1)
    open_ = ~near[chosen].any(0)
    while open_.any() and len(chosen) < most:
        gains = (near & open_).sum(1)
        order = sorted(range(len(ratios)), key=lambda p: (-gains[p], mean[p], p))
        best = next((p for p in order if gains[p] and (not chosen or fits([*chosen, p]))), None)
        if best is None:
            break
        chosen.append(best)
        open_ &= ~near[best]
    while open_.any() and len(chosen) < most:  # where none may be near, one that is nearer helps
        least = ratios[chosen].min(0)[open_]
        gains = np.maximum(least - ratios[:, open_], 0.0).sum(1) / open_.sum()
        order = sorted(range(len(ratios)), key=lambda p: (-gains[p], mean[p], p))
        best = next((p for p in order if gains[p] >= NEARER and fits([*chosen, p])), None)
        if best is None:
            break
        chosen.append(best)
    return _needed(ratios, near, chosen, fits)


def _needed(ratios: Table, near: Table, chosen: list[int], fits: Callable[[Sequence[int]], bool]) -> list[int]:
    """The chosen programs without those that came to be needless when others joined."""
    covered, least = near[chosen].any(0), ratios[chosen].min(0)
    for p in list(reversed(chosen)):  # what came later may have made one needless
        rest = [q for q in chosen if q != p]
        if not rest or not fits(rest):
            continue
        as_near = np.where(covered, near[rest].any(0), ratios[rest].min(0) <= least * (1 + NEARER))
        chosen = rest if as_near.all() else chosen
    return chosen


@dataclass(slots=True)
class Leaf:
    """A box: bounds by feature, the points in it, the program that serves it, and at how many it is not near."""

    bounds: dict[int, Interval]
    points: np.ndarray
    program: int
    misses: int


@dataclass
class Partition:
    """Boxes that together hold every point once. `ratios`: of the programs that may serve; `features`: a column of
    values for each expression of the sizes that may be compared; `plain`: how many of them, the first ones, are
    preferred; `limit`: what is near; `steps`: of some features the last values before something changes at once."""

    ratios: Table
    features: Sequence[np.ndarray]
    plain: int
    limit: float
    most: int = LEAVES
    steps: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    leaves: list[Leaf] = field(init=False)

    def __post_init__(self) -> None:
        # Where none is within the limit, those are near that are as good as the best.
        self._near = self.ratios <= np.maximum(self.limit, self.ratios.min(0) * (1 + NEARER)) * (1 + 1e-9)
        self.leaves = [self._leaf({}, np.arange(self.ratios.shape[1]))]
        done: list[Leaf] = []
        while self.leaves and len(self.leaves) + len(done) < self.most:
            self.leaves.sort(key=lambda leaf: leaf.misses)
            leaf = self.leaves.pop()
            parts = self._parts(leaf) if leaf.misses else None
            if parts is None:
                done.append(leaf)
            else:
                self.leaves += parts
        self.leaves = _merged([*done, *self.leaves])

    def _leaf(self, bounds: dict[int, Interval], points: np.ndarray) -> Leaf:
        near, ratios = self._near[:, points], self.ratios[:, points]
        misses = (~near).sum(1)
        # Of programs that are near everywhere the one that is best on the whole; else the one that fails least.
        worst, mean = ratios.max(1), ratios.mean(1)
        program = min(range(len(misses)), key=lambda p: (misses[p], worst[p] if misses[p] else 0.0, mean[p], p))
        return Leaf(bounds, points, program, int(misses[program]))

    def _parts(self, leaf: Leaf) -> list[Leaf] | None:
        """The leaf in two, by the comparison after which most points have a near program; where none has more of them,
        by the one that tells programs apart best (as Gini's impurity does). None where nothing can be compared."""
        near = self._near[:, leaf.points]
        hard = ~near.all(0)  # where any program will do, nothing is to be told apart
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
            ties = np.flatnonzero(scores >= top * (1 - 1e-9))
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
    """Where to cut between two sizes: by their geometric mean, as sizes differ by how many times."""
    return min(max(low, math.isqrt(max(low, 0) * high)), high - 1)


def _merged(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The same boxes, those of one program put together where they differ in one feature and touch there."""
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
        left.append(Leaf(bounds, np.concatenate([a.points, b.points]), a.program, a.misses + b.misses))


def _touching(a: Leaf, b: Leaf) -> int | None:
    """The one feature in which two boxes of one program differ, if they touch there."""
    if a.program != b.program or a.bounds.keys() != b.bounds.keys():
        return None
    differing = [f for f in a.bounds if a.bounds[f] != b.bounds[f]]
    if len(differing) != 1:
        return None
    (low, end), (start, high) = a.bounds[differing[0]], b.bounds[differing[0]]
    touches = (end is not None and start == end + 1) or (high is not None and low == high + 1)
    return differing[0] if touches else None
