"""Points a scope allows: a few to refute with, or all of them where they are few."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from relax_eg.shapes.facts import Facts, is_made
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


def near(facts: Facts, names: Sequence[str], size: int) -> Iterator[dict[str, int]]:
    """Values of the free variables `names` at which the facts hold: those that make sizes about as large as `size`, or
    half of it, and so on, or twice as large, and so on; then whatever `samples` finds."""
    for target in (*(size >> shift for shift in range(size.bit_length())), *(size << shift for shift in range(1, 12))):
        env: dict[str, int] = {}
        for name in names:
            scale, rest = _told(facts, name)
            low, high = facts.bound(name)
            value = (target - rest) // scale
            value = value if low is None else max(value, low)
            env[name] = value if high is None else min(value, high)
        if facts.holds(env):
            yield env
    yield from samples(facts, names, 200)


def _told(facts: Facts, name: str) -> tuple[int, int]:
    """The integers with `size == scale*name + rest` for a variable of the user's; 1 and 0 where `name` is one."""
    for value in facts.values.values():
        if len(value.terms) == 1 and name in value.variables:
            ((monomial, c),) = value.terms
            if len(monomial) == 1 and monomial[0].op == "var" and c > 0 and is_made(name):
                return c, value.const
    return 1, 0


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
