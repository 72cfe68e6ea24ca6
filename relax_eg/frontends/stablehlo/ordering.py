"""StableHLO's sorts. A sort is given by a region that says whether one element is before another; `jax.lax.sort` has
keys, by which it sorts lexicographically. The keys and their directions are read from the region: each comparison of a
term of one element with the same term of the other one is a key, and what the region returns is evaluated for the
orders that two elements may have in each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import numpy as np
from jax import lax

from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.combining import mapped, part_of
from relax_eg.frontends.stablehlo.parsing import HloRegion
from relax_eg.frontends.stablehlo.sizes import LOGICAL
from relax_eg.frontends.stablehlo.use import Use, word_in

# A term: ("param", i), ("constant", its bits), ("outside", number), or an operation's name, its direction if it
# compares, and the terms of its operands.
_Term = tuple[Any, ...]
# limit: operations of a term written out as a tree, as which terms are walked, and its depth. The comparison that
# `jax.lax.sort` writes for eight keys has 359, of depth 19.
_MOST_OPERATIONS, _DEEPEST = 1 << 12, 128
_HOLDS: Mapping[str, Callable[[int], bool]] = {
    "LT": lambda o: o < 0, "LE": lambda o: o <= 0, "GT": lambda o: o > 0, "GE": lambda o: o >= 0,
    "EQ": lambda o: o == 0, "NE": lambda o: o != 0,
}  # fmt: skip


@dataclass(frozen=True)
class _Key:
    """A key of a sort.

    - `term`: what is compared, of the first element.
    - `falls`: whether greater keys come first.
    """

    term: _Term
    falls: bool


def _terms(region: HloRegion) -> dict[int, _Term]:
    """The terms of the parameters and results of a region, by their numbers. What is larger than the limits is a term
    from outside, which is no key."""
    found: dict[int, _Term] = {p: ("param", i) for i, p in enumerate(region.params)}
    extents: dict[int, tuple[int, int]] = {}  # operations and depth of each term, by number
    for op in region.ops:
        below = [extents.get(x, (1, 1)) for x in op.operands]
        size, depth = 1 + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)
        extents |= dict.fromkeys(op.results, (size, depth))
        word = word_in(op.at("comparison_direction")) if op.name == "stablehlo.compare" else ""
        if op.name == "stablehlo.constant":
            term: _Term = ("constant", np.asarray(op.at("value")).tobytes())
        elif op.regions or size > _MOST_OPERATIONS or depth > _DEEPEST:
            term = ("outside", op.results)
        else:
            texts = str(sorted((k, str(v)) for k, v in op.attributes.items()))
            term = (op.name, word, texts, *(found.get(x, ("outside", x)) for x in op.operands))
        for i, r in enumerate(op.results):
            found[r] = term if len(op.results) == 1 else ("result", i, term)
    return found


def _params(term: _Term) -> set[int]:
    if term[0] == "param":
        return {term[1]}
    return set().union(*(_params(cast("_Term", t)) for t in term[1:] if isinstance(t, tuple)), set[int]())


def _of_other(term: _Term) -> _Term:
    """The same term of the other element."""
    if term[0] == "param":
        return ("param", term[1] ^ 1)
    return tuple(_of_other(cast("_Term", t)) if isinstance(t, tuple) else t for t in term)


def _plain(term: _Term) -> _Term:
    """A term without what JAX writes around keys: one zero and one NaN, which is how `jax.lax.sort` compares."""
    if term[:2] != ("stablehlo.select", "") or term[3][:1] != ("stablehlo.compare",):
        return term
    (_, _, _, (_, word, _, a, b), chosen, other) = term
    if chosen[0] == "constant" and word == "NE" and a == b and _plain(other) == _plain(a):
        return _plain(other)
    if chosen[0] == "constant" and word == "EQ" and b == chosen and not any(b[1][:-1]) and other == a:
        return _plain(other)
    return term


def _atom(term: _Term) -> tuple[_Term, int] | None:
    """The key that a comparison is about, of the first element, and 1 or -1 if it compares it with that of the second
    or the other way round; None for another term."""
    if term[0] != "stablehlo.compare":
        return None
    a, b = term[3:]
    sides = {p % 2 for p in _params(a)}
    if len(sides) != 1 or b != _of_other(a):
        return None
    return (_plain(a), 1) if sides == {0} else (_plain(b), -1)


def _atoms(term: _Term) -> list[_Term]:
    """The keys that a truth value depends on, in order."""
    found = _atom(term)
    if found is not None:
        return [found[0]]
    parts = [_atoms(cast("_Term", t)) for t in term[1:] if isinstance(t, tuple)]
    return list(dict.fromkeys(k for part in parts for k in part))


def _value(term: _Term, orders: Mapping[_Term, int]) -> bool | None:
    """A truth value where the first element is before (-1), equal to (0) or behind (1) the second in some keys; None if
    that does not decide it."""
    found = _atom(term)
    if found is not None:
        key, sign = found
        return _HOLDS[term[1]](sign * orders[key]) if key in orders else None
    if term[0] == "constant":
        return any(term[1])
    operation = LOGICAL.get(term[0].removeprefix("stablehlo."))
    return None if operation is None else operation.known(*(_value(t, orders) for t in term[3:]))


def _keys(result: _Term) -> list[_Key] | None:
    """The keys by which a comparison orders, the one that decides first at first; None if it is no such order."""
    left, keys, equal = _atoms(result), list[_Key](), dict[_Term, int]()
    while left:
        for term in left:
            before, behind = (_value(result, {**equal, term: order}) for order in (-1, 1))
            if before is not None and behind is not None and before != behind:
                keys.append(_Key(term, behind))
                break
        else:
            return None
        left.remove(keys[-1].term)
        equal[keys[-1].term] = 0
    return _whole(keys) if keys and _value(result, equal) is not None else None


def _whole(keys: Sequence[_Key]) -> list[_Key]:
    """The keys, where a complex number is one key in place of two."""
    made: list[_Key] = []
    for key in keys:
        real = ("stablehlo.real", *key.term[1:])
        if key.term[0] == "stablehlo.imag" and made[-1:] == [_Key(real, key.falls)]:
            made[-1] = _Key(key.term[3], key.falls)
        else:
            made.append(key)
    return made


def sort(u: Use) -> list[Any]:
    """The operands of a `stablehlo.sort`, sorted. Equal elements keep their order."""
    region, axis = u.op.regions[0], int(u.at("dimension", -1)) % len(u.args[0].shape)
    terms = _terms(region)
    keys = _keys(terms[region.ops[-1].operands[0]])
    if keys is None:
        raise StableHloError(
            "stablehlo.sort by a comparison that is no order by keys\n  accepted: comparisons of a term of one element "
            "with the same term of the other, joined so that one key decides after another"
        )
    columns = list(u.args)
    places: list[int] = []
    for key in keys:
        if key.term[0] == "param":
            places.append(key.term[1] // 2)
        else:
            places.append(len(columns))
            columns.append(_column(u, region, terms, key.term))
    for falls, group in reversed([(f, [*g]) for f, g in groupby(range(len(keys)), lambda i: keys[i].falls)]):
        columns = _sorted(columns, list(dict.fromkeys(places[i] for i in group)), axis, falls)
    return columns[: len(u.args)]


def _column(u: Use, region: HloRegion, terms: Mapping[int, _Term], term: _Term) -> Any:
    """A key of all elements."""
    number = next(n for n, t in terms.items() if _plain(t) == term)
    part = part_of(region, region.params[::2], [number])
    assert part is not None, "a key depends on one element"
    return mapped(u.function(part), len(u.args[0].shape))(*u.args)[0]


def _sorted(columns: Sequence[Any], keys: Sequence[int], axis: int, falls: bool) -> list[Any]:
    """The columns sorted by some of them. Reversed before and after, falling ones keep the order of equal elements."""
    order = [*keys, *(i for i in range(len(columns)) if i not in keys)]
    given = [lax.rev(columns[i], (axis,)) if falls else columns[i] for i in order]
    found = lax.sort(tuple(given), dimension=axis, is_stable=True, num_keys=len(keys))
    back = [lax.rev(x, (axis,)) if falls else x for x in found]
    return [back[order.index(i)] for i in range(len(columns))]
