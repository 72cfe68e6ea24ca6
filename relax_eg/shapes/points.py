"""Points that a scope allows: a sample for refutation, or all of them if they are few."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from relax_eg.shapes.facts import Facts, is_fresh
from relax_eg.shapes.interval import Interval

_TRIES = 24  # limit: points drawn per call of `samples`, by default
_TRIES_NEAR = 200  # limit: points drawn if none near the target size fits
# given: sizes that reveal what small ones hide: (x//3)//4 and x//13 agree below 12.
_LARGE = (13, 24, 63, 64, 97, 127, 128, 255, 1000, 1023, 4096, 65521)


def samples(facts: Facts, names: Sequence[str], tries: int = _TRIES) -> Iterator[dict[str, int]]:
    """Yields values of the free variables `names` at which the facts hold: corners first, then random ones.

    The same in every run. Few or none if random points rarely satisfy the facts.
    """
    ranges = [facts.bound(name) for name in names]
    if any(low is not None and high is not None and low > high for low, high in ranges):
        return  # contradictory assumptions
    chance = random.Random(len(names))
    for attempt in range(tries):
        env = {name: _pick(span, attempt, chance) for name, span in zip(names, ranges, strict=True)}
        if facts.holds(env):
            yield env


def nearby_points(facts: Facts, names: Sequence[str], size: int) -> Iterator[dict[str, int]]:
    """Yields values of the free variables `names` at which the facts hold.

    First points that make sizes about `size`, size/2, size/4, ... 1, then 2*size, 4*size, ...; then the points of
    `samples`.
    """
    for target in (*(size >> shift for shift in range(size.bit_length())), *(size << shift for shift in range(1, 12))):
        env: dict[str, int] = {}
        for name in names:
            scale, rest = _scale_and_offset(facts, name)
            low, high = facts.bound(name)
            value = (target - rest) // scale
            value = value if low is None else max(value, low)
            env[name] = value if high is None else min(value, high)
        if facts.holds(env):
            yield env
    yield from samples(facts, names, _TRIES_NEAR)


def _scale_and_offset(facts: Facts, name: str) -> tuple[int, int]:
    """Returns (scale, offset) where a user's variable is `scale*name + offset`; (1, 0) if `name` is itself one."""
    for value in facts.values.values():
        if len(value.terms) == 1 and name in value.variables:
            ((monomial, c),) = value.terms
            if len(monomial) == 1 and monomial[0].op == "var" and c > 0 and is_fresh(name):
                return c, value.const
    return 1, 0


def enumerate_points(facts: Facts, names: Sequence[str], most: int) -> list[dict[str, int]] | None:
    """Returns all points over `names` at which the facts hold; None if more than `most` candidates would be checked."""
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
    if kind < 0.6:  # small values collide with each other and with the constants of the statement
        return min(least + chance.randrange(1 + 2 * attempt), most)
    if kind < 0.75 and high is not None:
        return max(high - chance.randrange(4), least)
    if kind < 0.9:
        return min(max(chance.choice(_LARGE) + chance.randrange(-1, 2), least), most)
    return chance.randint(least, most)
