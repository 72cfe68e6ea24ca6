"""Points a scope allows: a few to refute with, or all of them where they are few."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from relax_eg.shapes.facts import Facts
from relax_eg.shapes.interval import Interval

Point = Mapping[str, int]

_TRIES = 24
# Sizes that bring out what small ones hide: (x//3)//4 and x//13 agree below 13.
_LARGE = (13, 24, 63, 64, 97, 127, 128, 255, 1000, 1023, 4096, 65521)


def samples(facts: Facts, names: Sequence[str], tries: int = _TRIES) -> Iterator[dict[str, int]]:
    """Values of the free variables `names` at which the facts hold: corners first, then random ones, the same in
    every run. Few or none where the facts are hard to meet by chance."""
    ranges = [facts.bound(name) for name in names]
    if any(low is not None and high is not None and low > high for low, high in ranges):
        return  # assumptions that contradict each other
    chance = random.Random(len(names))
    for attempt in range(tries):
        env = {name: _pick(span, attempt, chance) for name, span in zip(names, ranges, strict=True)}
        if facts.holds(env):
            yield env


def everywhere(facts: Facts, names: Sequence[str], most: int) -> list[dict[str, int]] | None:
    """All points over `names` at which the facts hold; None where there are more than `most` to look at."""
    spans: list[range] = []
    count = 1
    for name in names:
        low, high = facts.bound(name)
        if low is None or high is None:
            return None
        spans.append(range(low, high + 1))
        count *= max(high + 1 - low, 0)
        if count > most:
            return None
    points = (dict(zip(names, values, strict=True)) for values in product(*spans))
    return [env for env in points if facts.holds(env)]


def _pick(span: Interval, attempt: int, chance: random.Random) -> int:
    low, high = span
    if low is None and high is None:
        low, high = (0, 3) if attempt == 0 else (-40, 40)
    least = low if low is not None else (high or 0) - 4096
    most = high if high is not None else least + max(1 << 17, 2 * abs(least))
    if attempt == 0:
        return least
    if attempt == 1:
        return most if high is not None else least + 1
    kind = chance.random() if attempt > 8 else 0.0
    if kind < 0.6:  # small ones collide with each other, and with the constants of the statement
        return min(least + chance.randrange(1 + 2 * attempt), most)
    if kind < 0.75 and high is not None:
        return max(high - chance.randrange(4), least)
    if kind < 0.9:
        return min(max(chance.choice(_LARGE) + chance.randrange(-1, 2), least), most)
    return chance.randint(least, most)
