"""Loops of StableHLO as scans. `jax.lax.scan` is written as a loop that counts, reads rows of its arrays at the count
and writes rows of its results there; such a loop is a scan again.

A loop is a scan if it counts from 0 to a known number of steps. An array that no step changes, and of which each step
reads only its own row, is scanned. An array of which each step only writes its own row is a result of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

_Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class _Line:
    """An integer `by * count + start` of a step."""

    by: int
    start: int


_Scalar = _Line | bool  # what is known of a scalar at every step
_COUNT = _Line(1, 0)


def as_scan(condition: _Function, body: _Function, carry: Sequence[Any], known: Sequence[Any]) -> list[Any] | None:
    """The results of a loop as those of a scan; None if it is none.

    - `carry`: the values before the first step.
    - `known`: those of them that are known as arrays; None for the others.
    """
    shapes = [jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in carry]
    test, step = jax.make_jaxpr(condition)(*shapes), jax.make_jaxpr(lambda *xs: list(body(*xs)))(*shapes)
    found = _count(test, known)
    if found is None:
        return None
    at, steps = found
    scalars = _scalars(step, at, steps)
    if _known(step.jaxpr.outvars[at], scalars) != _Line(1, 1):
        return None
    return _Scan(step, at, steps, scalars).run(carry)


def _count(test: ClosedJaxpr, known: Sequence[Any]) -> tuple[int, int] | None:
    """The place of the count in the carry, and the number of steps, of a condition `count < steps`."""
    if len(test.jaxpr.eqns) != 1 or test.jaxpr.outvars != test.jaxpr.eqns[0].outvars:
        return None
    (eqn,) = test.jaxpr.eqns
    if eqn.primitive.name != "lt" or not isinstance(eqn.invars[1], Literal) or isinstance(eqn.invars[0], Literal):
        return None
    at, steps = test.jaxpr.invars.index(eqn.invars[0]), eqn.invars[1].val
    start = known[at]
    if np.shape(steps) or start is None or start.dtype == object or int(start) != 0:
        return None
    return at, max(int(steps), 0)


def _known(atom: Any, scalars: Mapping[Any, _Scalar]) -> _Scalar | None:
    if isinstance(atom, Literal):
        if np.shape(atom.val) or np.asarray(atom.val).dtype.kind not in "iub":
            return None
        return bool(atom.val) if np.asarray(atom.val).dtype == bool else _Line(0, int(atom.val))
    return scalars.get(atom)


def _scalars(step: ClosedJaxpr, at: int, steps: int) -> dict[Any, _Scalar]:
    """What is known of scalars: lines over the count, and comparisons that hold at every step or at none."""
    found: dict[Any, _Scalar] = {step.jaxpr.invars[at]: _COUNT}
    for var, value in zip(step.jaxpr.constvars, step.consts, strict=True):
        if not np.shape(value) and isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iu":
            found[var] = _Line(0, int(value))
    for eqn in step.jaxpr.eqns:
        given = [_known(a, found) for a in eqn.invars]
        made: _Scalar | None = None
        match eqn.primitive.name, given:
            case "add", [_Line(a, b), _Line(c, d)]:
                made = _Line(a + c, b + d)
            case "sub", [_Line(a, b), _Line(c, d)]:
                made = _Line(a - c, b - d)
            case "lt", [_Line(a, b), _Line(c, d)]:
                ends = [(a - c) * i + b - d < 0 for i in (0, max(steps - 1, 0))]
                made = ends[0] if ends[0] == ends[1] else None
            case "select_n", [bool(chosen), no, yes]:
                made = yes if chosen else no
            case (("convert_element_type" | "copy"), [_Line() as line]):
                made = line if eqn.outvars[0].aval.dtype.kind in "iu" else None
            case _:
                pass
        if made is not None:
            found[eqn.outvars[0]] = made
    return found


class _Scan:
    """The parts of a loop that counts.

    - `scanned`: for each place of the carry that is an array to be scanned, the equations that read its rows.
    - `written`: for each place that is a result of each step, the equation that writes its row.
    - `fixed`: the places that no step changes.
    """

    def __init__(self, step: ClosedJaxpr, at: int, steps: int, scalars: Mapping[Any, _Scalar]) -> None:
        self.step, self.at, self.steps, self.scalars = step, at, steps, scalars
        jaxpr = step.jaxpr
        uses: dict[Any, list[Any]] = {}
        for eqn in jaxpr.eqns:
            for atom in {id(a): a for a in eqn.invars if not isinstance(a, Literal)}.values():
                uses.setdefault(atom, []).append(eqn)
        returned = [v for v in jaxpr.outvars if not isinstance(v, Literal)]
        lines: set[_Line] = set()
        self.fixed = [i for i, (p, r) in enumerate(zip(jaxpr.invars, jaxpr.outvars, strict=True)) if p is r]
        self.scanned: dict[int, list[Any]] = {}
        self.written: dict[int, Any] = {}
        for i, (param, result) in enumerate(zip(jaxpr.invars, jaxpr.outvars, strict=True)):
            readers = uses.get(param, [])
            if i in self.fixed:
                rows = [self._row(e, "dynamic_slice", 1) for e in readers]
                if readers and None not in rows and len(set(rows)) == 1:
                    self.scanned[i] = readers
                    lines |= {r for r in rows if r is not None}
            elif len(readers) == 1 and readers[0].outvars[0] is result and param not in returned:
                row = self._row(readers[0], "dynamic_update_slice", 2)
                if row is not None and result not in uses and returned.count(result) == 1:
                    self.written[i] = readers[0]
                    lines.add(row)
        self.backwards = lines == {_Line(-1, steps - 1)}
        if not self.backwards and lines - {_COUNT}:  # rows of both orders
            self.scanned, self.written = {}, {}
        self.state = [i for i in range(len(jaxpr.invars)) if i != at and i not in (*self.fixed, *self.written)]

    def _row(self, eqn: Any, name: str, skipped: int) -> _Line | None:
        """The place of the row that an equation reads or writes: one row of the first of its operands, whole."""
        shape = eqn.invars[0].aval.shape
        if eqn.primitive.name != name or not shape or shape[0] != self.steps:
            return None
        part = eqn.outvars[0].aval.shape if skipped == 1 else eqn.invars[1].aval.shape
        first, *others = [_known(a, self.scalars) for a in eqn.invars[skipped:]]
        if part != (1, *shape[1:]) or any(o != _Line(0, 0) for o in others) or len(others) != len(shape) - 1:
            return None
        return first if first in (_COUNT, _Line(-1, self.steps - 1)) else None

    def _needed(self) -> list[Any]:
        """The equations that the state and the rows depend on, in order."""
        jaxpr, rows = self.step.jaxpr, {id(e) for es in self.scanned.values() for e in es}
        wanted: set[Any] = {jaxpr.outvars[i] for i in self.state if not isinstance(jaxpr.outvars[i], Literal)}
        wanted |= {e.invars[1] for e in self.written.values() if not isinstance(e.invars[1], Literal)}
        kept: list[Any] = []
        for eqn in reversed(jaxpr.eqns):
            if id(eqn) not in {id(e) for e in self.written.values()} and wanted & set(eqn.outvars):
                kept.append(eqn)
                if id(eqn) not in rows:
                    wanted |= {a for a in eqn.invars if not isinstance(a, Literal)}
        self.counts = jaxpr.invars[self.at] in wanted
        return kept[::-1]

    def run(self, carry: Sequence[Any]) -> list[Any]:
        jaxpr, kept = self.step.jaxpr, self._needed()
        readers = {id(e): i for i, es in self.scanned.items() for e in es}
        outside = dict(zip(jaxpr.constvars, self.step.consts, strict=True))
        outside |= {jaxpr.invars[i]: carry[i] for i in self.fixed}
        start = jnp.asarray(carry[self.at])

        def step(state: tuple[Any, ...], rows: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            own, (*count, given) = rows, rows
            env = {**outside, **{jaxpr.invars[i]: x for i, x in zip(self.state, state, strict=True)}}
            if count:
                env[jaxpr.invars[self.at]] = own[0]
            by_place = dict(zip(self.scanned, given, strict=True))

            def value(atom: Any) -> Any:
                return atom.val if isinstance(atom, Literal) else env[atom]

            for eqn in kept:
                if id(eqn) in readers:
                    env[eqn.outvars[0]] = by_place[readers[id(eqn)]][None]
                    continue
                made = eqn.primitive.bind(*map(value, eqn.invars), **eqn.primitive.get_bind_params(eqn.params))
                env.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made], strict=True))
            written = tuple(value(e.invars[1])[0] for e in self.written.values())
            return tuple(value(jaxpr.outvars[i]) for i in self.state), written

        counted = jnp.arange(self.steps, dtype=start.dtype)
        rows: tuple[Any, ...] = (tuple(carry[i] for i in self.scanned),)
        if self.counts:
            rows = (lax.rev(counted, (0,)) if self.backwards else counted, *rows)
        first = tuple(carry[i] for i in self.state)
        last, made = lax.scan(step, first, rows, length=self.steps, reverse=self.backwards)
        results = list(carry)
        results[self.at] = jnp.full((), self.steps, start.dtype)
        for i, x in (*zip(self.state, last, strict=True), *zip(self.written, made, strict=True)):
            results[i] = x
        return results
