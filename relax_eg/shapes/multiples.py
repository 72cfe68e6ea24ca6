"""Sizes as multiples of others, so that a division leaves no remainder: with 4*n in place of n, n % 4 is 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from math import lcm, prod

from relax_eg.errors import SpecError
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.relation import Relation, atoms_of

_MOST_TRIED = 64  # limit: combinations of remainders tried without sizes


def deciding_multiples(relation: Relation, at: Mapping[str, int] | None = None) -> dict[str, Dim] | None:
    """Sizes that make an equality about remainders hold by arithmetic, by the variables in whose place they stand;
    None if none were found.

    `n % 4 == 0` gives `4*n` for n, and `(n + 1) % 4 == 0` gives `4*n - 1`. A size takes the place of as few variables
    as possible. All of them are at least 1 where the variable is. `at`: sizes, of which those in the result have to be
    a value; None: the remainders that hold are searched for.
    """
    difference = relation.left - relation.right
    divisors = [a.args[1] for a in atoms_of(difference) if a.op in ("floordiv", "ceildiv")]
    step = lcm(*(abs(d.const) for d in divisors if d.is_const and d.const))
    names = sorted(difference.variables)
    if relation.op != "==" or step == 1:
        return None
    for chosen in (*((name,) for name in names), tuple(names)):
        for rests in _rests(chosen, step, at):
            found = {v: step * Dim.var(v) - rest for v, rest in zip(chosen, rests, strict=True)}
            with suppress(SpecError):  # a divisor is 0
                if difference.substitute(found) == 0:
                    return found
    return None


def _rests(names: tuple[str, ...], step: int, at: Mapping[str, int] | None) -> Iterator[tuple[int, ...]]:
    """How much less than a multiple of `step` each of the sizes is: `at` these sizes, or all possible combinations."""
    if at is not None:
        yield tuple(-at[v] % step for v in names)
    elif prod((step,) * len(names)) <= _MOST_TRIED:
        yield from product(range(step), repeat=len(names))
