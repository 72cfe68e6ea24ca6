"""Few places, one by one: a sum over few of them is written out, and an index that is divided by a number has one of
few remainders.

The places of a window, the phases of a transposed convolution and the results of a tile are such places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.guards import GuardLiteral, KnownGuards, at_least, simplified
from relax_eg.rules.verify_formal.sums import Factor, Term
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain
from relax_eg.tir.expr import Scalar, loop, walk
from relax_eg.tir.program import dims_of

_MOST_PLACES = 16  # limit: places of a bound variable that are written out
_MOST_REMAINDERS = 64  # limit: cases of the remainders of all indices of a result


# Which sums over few places are written out.
Written = Literal["none", "deciding", "every"]


def few_places(t: Term, written: Written, constants: Mapping[str, object]) -> tuple[str, range] | None:
    """A bound variable of `t` of few places, of those that `written` names, and the places. A place decides something
    if it is added to other variables, divided, or an index of one of the arrays `constants`. None if there is no such
    variable.

    Of several such variables the one of the largest steps comes first: the others may decide nothing then."""
    found: list[tuple[tuple[int, int], str, range]] = []
    least = None if written == "deciding" else (0, 0)
    for name in t.bound:
        places = _places(t, name)
        step = max(_steps(t, name, constants), default=least) if places is not None else None
        if places is not None and step is not None:
            found.append((step, name, places))
    if not found:
        return None
    _, name, places = max(found, key=lambda x: x[:2])
    return name, places


def _places(t: Term, name: str) -> range | None:
    """The places of a bound variable between the numbers by which it is bounded; None if it is not, or has many."""
    v = Dim.var(name)
    low = [-(g.dim - v).const for g in t.guards if g.op == ">=" and g.of is None and (g.dim - v).is_const]
    high = [(g.dim + v).const for g in t.guards if g.op == ">=" and g.of is None and (g.dim + v).is_const]
    if not low or not high:
        return None
    found = range(max(low), min(high) + 1)
    return found if len(found) <= _MOST_PLACES else None


def _steps(t: Term, name: str, constants: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    """By how much a step of a variable moves what its place decides: the degree, and the number."""
    v = Dim.var(name)
    for d, is_constant in _deciding(t.factors, t.guards, constants):
        if name not in d.variables or (d is v and not is_constant):
            continue
        if is_plain(d) and len(d.variables) == 1 and not is_constant:
            continue
        for atoms, c in d.terms:
            if any(a.name == name or any(name in x.variables for x in a.args) for a in atoms):
                yield len(atoms), abs(c)


def _deciding(
    factors: Iterable[Factor], guards: Iterable[GuardLiteral], constants: Mapping[str, object]
) -> Iterator[tuple[Dim, bool]]:
    """The indices of elements, each with whether they are those of a constant, and the sizes in guards."""
    for g in guards:
        yield g.dim, False
        if g.of is not None:
            yield from _deciding((g.of,), (), constants)
    for f in factors:
        if f.kind == "read":
            yield from ((d, f.name in constants) for d in f.dims)
        for form in f.args:
            for u, _ in form.terms:
                yield from _deciding(u.factors, u.guards, constants)


@dataclass(frozen=True)
class RemainderCases:
    """The cases of the remainders of indices.

    - `guards`: guards that hold in every case.
    - `cases`: the indices, each a multiple of a divisor and a remainder, with the guards that they lie in the shape.
    """

    guards: tuple[GuardLiteral, ...]
    cases: tuple[tuple[tuple[Dim, ...], tuple[GuardLiteral, ...]], ...]


def remainder_cases(
    terms: Iterable[Scalar], at: tuple[Dim, ...], shape: tuple[Dim, ...], facts: KnownGuards, written: Written
) -> RemainderCases:
    """The cases of the remainders of indices `at` that `terms` divide by numbers, where `facts` hold. If every sum is
    written out, so is every index of few places. Raises Unsupported if there are too many."""
    divisors = [1] * len(at)
    for d in dict.fromkeys(d for s in terms for t in walk(s) for d in dims_of(t)):
        d = simplified(d, facts, frozenset())
        for axis, (v, n) in enumerate(zip(at, shape, strict=True)):
            if v.is_const or d is v or not v.variables <= d.variables:
                continue
            if written == "every" and n.is_const and 0 < n.value <= _MOST_PLACES:
                divisors[axis] = math.lcm(divisors[axis], n.value)
            for top, by in _divisions(d):
                step = top.substitute({str(v): v + 1}) - top
                if v.variables <= top.variables and step.is_const:
                    divisors[axis] = math.lcm(divisors[axis], by // math.gcd(by, step.value))
    if math.prod(divisors) > _MOST_REMAINDERS:
        raise Unsupported("too many remainders of indices")
    first, *_ = found = [
        [_place(axis, v, n, by, r) for axis, (v, n, by, r) in enumerate(zip(at, shape, divisors, rest, strict=True))]
        for rest in itertools.product(*map(range, divisors))
    ]
    everywhere = tuple(g for d, n in first for g in ((at_least(d), at_least(n - 1 - d)) if not d.is_const else ()))
    cases = [(tuple(d for d, _ in places), tuple(at_least(n - 1 - d) for d, n in places)) for places in found]
    return RemainderCases(everywhere, tuple(c for c in cases if all(g.decided is not False for g in c[1])))


def _place(axis: int, v: Dim, n: Dim, by: int, r: int) -> tuple[Dim, Dim]:
    """Index `v` of an axis of `n` places whose remainder by a divisor is `r`, and `n`."""
    if by == 1:
        return v, n
    return (Dim.of(r) if n.is_const and n.value <= by else loop(f"q{axis}") * by + r), n


def _divisions(d: Dim) -> Iterator[tuple[Dim, int]]:
    """What is divided by a number in a size, and the number."""
    for atoms, _ in d.terms:
        for a in atoms:
            if a.op == "floordiv" and a.args[1].is_const and a.args[1].value > 1:
                yield a.args[0], a.args[1].value
            for x in a.args:
                yield from _divisions(x)
