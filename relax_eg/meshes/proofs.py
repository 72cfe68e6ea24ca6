"""Statements that a strategy computes what its operator computes, as equalities of two expressions, and their proofs.

A part of a result is compared with the operator on parts of its operands, for an interval of any place and length: so
the statement holds of each device, for any number of devices, and for pieces that are not equal. A partial result is
compared in two parts of any lengths; more of them follow one after the other. The sizes are variables where the
annotations have variables.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Annotation, Tensor, substitute
from relax_eg.ir.expr import Attrs, Expr, var
from relax_eg.ir.placements import PARTIAL, PARTIAL_SUM
from relax_eg.limits import MANY_KEPT
from relax_eg.meshes.choices import ChosenWay
from relax_eg.meshes.program import SpreadProgram
from relax_eg.meshes.strategies import SplitStrategy
from relax_eg.ops import api as op
from relax_eg.ops.record import call
from relax_eg.rules.answer_cache import AnswerCache, checked_reason
from relax_eg.shapes import Dim

_JOINED = {PARTIAL["sum"]: op.add, PARTIAL["max"]: op.maximum, PARTIAL["min"]: op.minimum}
_BEFORE, _OWN, _AFTER = (Dim.var(f"places_{name}") for name in ("before", "own", "after"))
_SECONDS = 1.0  # limit: processor time of a proof
_NO_STATEMENT = "no statement"
_KEPT = AnswerCache("strategy", MANY_KEPT, str, checked_reason)
Statement = tuple[Expr, Expr, tuple[Expr, ...]]  # two sides, and what they hold for all values of


def statement(name: str, operands: Sequence[Annotation], attrs: Attrs, strategy: SplitStrategy) -> Statement | None:
    """The statement that a strategy of operator `name` is right; None if there is none here: of what reads rows of
    neighbours, goes round in pieces (which follows from two others), or is split along a size of 0 or 1."""
    known = all(isinstance(a, Tensor) and a.shape is not None for a in operands)
    if strategy.halo or strategy.ring is not None or not known:
        return None
    of = _passing if strategy.passes else _split
    try:
        found = of(name, operands, attrs, strategy)
    except RelaxEgError:  # the operator is not defined on the parts
        return None
    return None if found is None or any(d == 0 for e in (found[0], *found[2]) for d in e.shape) else found


@dataclass(frozen=True)
class Evidence:
    """What is known of the strategies of a spread program.

    - `proved`: how many are proved.
    - `tested`: the others, by operator and why.
    """

    proved: int
    tested: Mapping[str, int]


def evidence_of(program: SpreadProgram, chosen: Sequence[Mapping[int, ChosenWay]], seconds: float) -> Evidence:
    """What is known of the strategies that are chosen along each axis. Answers are kept; new proofs end after
    `seconds`."""
    end, each = time.monotonic() + seconds, dict[Hashable, tuple[str, str]]()
    for v, c in ((v, c) for choice in chosen for v, c in choice.items()):
        value = program.values[v]
        way = value.ways[c.way]
        if way.candidate < 0 or (c.strategy.whole and not c.strategy.passes):
            continue
        k = program.graphs[value.function].graph.candidates[value.number][way.candidate]
        operands, attrs = tuple(k.site.operands), tuple(k.site.attrs.items())
        if (key := (k.op, operands, attrs, c.strategy)) not in each:
            said = statement(k.op, operands, attrs, c.strategy)
            why = _NO_STATEMENT if said is None else _known(said, end)
            each[key] = k.op, why
    return Evidence(
        sum(not why for _, why in each.values()), dict(Counter(f"{op} ({why})" for op, why in each.values() if why))
    )


def _known(said: Statement, end: float) -> str:
    """Why a statement is not proved, in a few words; empty if it is."""
    left, right, leaves = said
    late = time.monotonic() > end

    def find() -> str:
        if late:
            raise _LateError
        return "not proved" if why_not_proved(said, _SECONDS) else ""

    try:
        return _KEPT.answer((left, right, *leaves), _SECONDS, _SECONDS, find)
    except _LateError:
        return "no time for a proof"


class _LateError(Exception):
    pass


def why_not_proved(said: Statement, seconds: float) -> str:
    """Why a statement is not proved within `seconds` of processor time; empty if it is."""
    from relax_eg.rules.verify_formal.prove import why_not_equal  # z3 and the prover: nothing else here needs them

    left, right, leaves = said
    return why_not_equal(left, right, leaves, seconds)


def _passing(name: str, operands: Sequence[Annotation], attrs: Attrs, strategy: SplitStrategy) -> Statement:
    """An operator of sums of operands is the sum of the operator."""
    one, two = ([var(f"{side}{i}", a) for i, a in enumerate(operands)] for side in "xy")
    summed = [p == PARTIAL_SUM for p in strategy.operands]
    total = [op.add(x, y) if s else x for x, y, s in zip(one, two, summed, strict=True)]
    rest = [y if s else x for x, y, s in zip(one, two, summed, strict=True)]
    leaves = (*one, *(y for y, s in zip(two, summed, strict=True) if s))
    return call(name, total, dict(attrs)), op.add(call(name, one, dict(attrs)), call(name, rest, dict(attrs))), leaves


def _split(name: str, operands: Sequence[Annotation], attrs: Attrs, strategy: SplitStrategy) -> Statement | None:
    if not strategy.extents:
        return None
    extent, is_part = strategy.extents[0], isinstance(strategy.result, int)
    # Each device has a place; what lies before and after may be empty, if the parts are not to make up the whole.
    before, own, after = _BEFORE + (0 if is_part else 1), _OWN + 1, _AFTER
    whole = before + own + after if is_part else before + own
    full, given = list(operands), dict(attrs)
    if str(extent) in extent.variables:
        sizes = {str(extent): whole}
        full = [substitute(a, sizes) for a in operands]
        given = {k: _substituted(v, sizes) for k, v in attrs}
    elif extent.is_const and int(extent) > 1:  # any other size does as well
        full = [
            _resized(a, p, extent, whole) if isinstance(p, int) else a
            for a, p in zip(operands, strategy.operands, strict=True)
        ]
        made = call(name, [var(f"x{i}", a) for i, a in enumerate(operands)], given)
        if isinstance(strategy.result, int):
            d = made.shape[strategy.result]
            given = {k: _changed(v, made.shape, strategy.result, d // extent * whole) for k, v in attrs}
    else:
        return None
    leaves = [var(f"x{i}", a) for i, a in enumerate(full)]
    # What a sum adds to: each part has a share of that.
    others = [
        var(f"y{i}", a) if p == PARTIAL_SUM else x
        for i, (a, p, x) in enumerate(zip(full, strategy.operands, leaves, strict=True))
    ]
    result = call(name, [x if x is y else op.add(x, y) for x, y in zip(leaves, others, strict=True)], given)

    def interval(x: Expr, axis: int, start: Dim, length: Dim) -> Expr:
        each = x.shape[axis] // whole  # places of the axis for each that is split
        begin, end = [Dim.of(0)] * x.ndim, list(x.shape)
        begin[axis], end[axis] = start * each, (start + length) * each
        return op.strided_slice(x, begin, end)

    def on(of: Sequence[Expr], start: Dim, length: Dim) -> Expr:
        parts = [
            interval(x, p, start, length) if isinstance(p, int) else x
            for x, p in zip(of, strategy.operands, strict=True)
        ]
        mine = dict(given)
        if isinstance(strategy.result, int):
            places = result.shape[strategy.result] // whole * length
            mine = {k: _changed(v, result.shape, strategy.result, places) for k, v in given.items()}
        return call(name, parts, mine)

    if isinstance(strategy.result, int):
        return interval(result, strategy.result, before, own), on(leaves, before, own), tuple(leaves)
    joined = _JOINED[strategy.result](on(leaves, Dim.of(0), before), on(others, before, own))
    return result, joined, tuple(dict.fromkeys((*leaves, *others)))


def _substituted(value: Any, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(value, Dim):
        return value.substitute(sizes)
    return tuple(_substituted(v, sizes) for v in value) if isinstance(value, tuple) else value


def _resized(a: Annotation, axis: int, extent: Dim, whole: Dim) -> Annotation:
    """An annotation with an axis of so many times `whole` places as it has of `extent`."""
    assert isinstance(a, Tensor) and a.shape is not None
    return Tensor((*a.shape[:axis], a.shape[axis] // extent * whole, *a.shape[axis + 1 :]), a.dtype)


def _changed(value: Any, shape: Sequence[Dim], axis: int, size: Dim) -> Any:
    """An attribute that has the sizes of the result, with another size along an axis."""
    sizes = isinstance(value, tuple) and len(value) == len(shape) and all(isinstance(v, Dim) for v in value)
    if not sizes or value[axis] != shape[axis]:
        return value
    return (*value[:axis], size, *value[axis + 1 :])
