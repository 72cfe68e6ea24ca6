"""Compares two traces equation by equation, which takes a fraction of the time of two canonical forms (`walk`).

Most traces of one function for symbolic sizes and for numbers are the same equations in the same order, but for those
that compute with sizes alone. An equation of both that has the same parameters and the same operands has the same
results, and needs no node. What is computed from sizes alone, and equations that differ in their parameters, are read
as nodes of the canonical form, in which the results may be the same all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from relax_eg.frontends.canonical.nodes import Form, Nodes
from relax_eg.frontends.canonical.walk import WITHOUT_MEANING, CanonicalWalk
from relax_eg.frontends.jax.equation import STATEFUL, called_jaxpr
from relax_eg.frontends.symbolic import is_symbolic


def is_same_aligned(nodes: Nodes, general: Any, special: Any, sizes: Callable[[Any], Any]) -> bool:
    """Whether two closed jaxprs are found to be the same program, equation by equation. False says nothing.

    - `general`: the trace for symbolic sizes; `sizes(n)` returns the number of a size.
    - `special`: the trace for these numbers.
    """
    walks = CanonicalWalk(nodes, sizes), CanonicalWalk(nodes, None)
    pair = _Pair(nodes, walks)
    given = [w.inputs(closed) for w, closed in zip(walks, (general, special), strict=True)]
    try:
        results = pair.applied((general, special), given)
    except _UnalignedError:
        return False
    forms = [
        Form(tuple(pair.number(side, x) for x in results[side]), (), walks[side].types(closed))
        for side, closed in enumerate((general, special))
    ]
    return nodes.difference(*forms) is None


class _UnalignedError(Exception):
    """Raised where the traces have other equations, or effects."""


class _Same:
    """A value that is the same in both traces, and has no node unless an equation that is read as nodes needs it."""

    __slots__ = ("aval", "number")

    def __init__(self, aval: Any) -> None:
        self.aval, self.number = aval, -1


Value = Any  # a node number, a _Same, or a Literal that no equation has needed as a node


class _Pair:
    """Two traces, read in step. Where two of something are given, the first is of the trace for symbolic sizes."""

    def __init__(self, nodes: Nodes, walks: tuple[CanonicalWalk, CanonicalWalk]) -> None:
        self._nodes, self._walks = nodes, walks
        self._size = walks[0].size

    def applied(self, functions: Sequence[Any], args: Sequence[Sequence[Value]]) -> tuple[list[Value], list[Value]]:
        """The results of two jaxprs, closed or not, for these operands. _UnalignedError"""
        read = [w.environment(*given) for w, *given in zip(self._walks, functions, args, strict=True)]
        steps = [self._steps(i, jaxpr.eqns, env) for i, (jaxpr, env) in enumerate(read)]
        for step in zip_longest(*steps):
            if None in step:
                raise _UnalignedError
            (mine, xs), (other, ys) = step
            results = self._equations(mine, other, xs, ys)
            for (_, env), eqn, values in zip(read, (mine, other), results, strict=True):
                env.update(zip(eqn.outvars, values, strict=True))
        mine, other = ([_read(env, a) for a in jaxpr.outvars] for jaxpr, env in read)
        return mine, other

    def number(self, side: int, value: Value) -> int:
        """The node number of a value of one of the traces."""
        if type(value) is int:
            return value
        if type(value) is not _Same:
            return self._walks[side].literal(value)
        if value.number < 0:
            kind = self._walks[1].forms.type_of(value.aval)
            value.number = self._nodes.add(("same", value), (), *kind)
        return value.number

    def _steps(self, side: int, eqns: Sequence[Any], env: dict[Any, Value]) -> Iterator[tuple[Any, list[Value]]]:
        """The equations of one trace with their operands, without those whose operands are known numbers: these are
        read as nodes."""
        walk = self._walks[side]
        for eqn in eqns:
            if eqn.effects or eqn.primitive.name in STATEFUL:
                raise _UnalignedError
            args = [_read(env, a) for a in eqn.invars]
            if all(map(self._is_known, args)):
                env.update(zip(eqn.outvars, walk.equation(eqn, [self.number(side, x) for x in args]), strict=True))
            else:
                yield eqn, args

    def _is_known(self, value: Value) -> bool:
        return type(value) is not _Same and (type(value) is not int or self._nodes.all[value].value is not None)

    def _equations(
        self, mine: Any, other: Any, xs: list[Value], ys: list[Value]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """The results of two equations."""
        if mine.primitive is not other.primitive:
            raise _UnalignedError
        alike = len(xs) == len(ys) and all(map(_is_same, xs, ys))
        if alike and self._has_same_params(mine.params, other.params):
            same = [_Same(v.aval) for v in other.outvars]
            return same, same
        called = called_jaxpr(mine), called_jaxpr(other)
        if called[0] is not None and called[1] is not None:
            return self.applied(called, (xs, ys))
        first, second = (
            walk.equation(eqn, [self.number(i, x) for x in args])
            for i, (walk, eqn, args) in enumerate(zip(self._walks, (mine, other), (xs, ys), strict=True))
        )
        return first, second

    def _has_same_params(self, mine: dict[str, Any], other: dict[str, Any]) -> bool:
        if mine.keys() != other.keys():
            return False
        return all(v is (w := other[k]) or k in WITHOUT_MEANING or self._is_same_param(v, w) for k, v in mine.items())

    def _is_same_param(self, mine: Any, other: Any) -> bool:
        kind = type(mine)
        if mine is other:
            return True
        if kind is not type(other):
            return type(other) is int and is_symbolic(mine) and self._size(mine) == other
        if kind is tuple:
            return len(mine) == len(other) and all(map(self._is_same_param, mine, other))
        if kind in (int, str):
            return mine == other
        if kind in (ClosedJaxpr, Jaxpr):
            return False  # read equation by equation where it is called, and as nodes elsewhere
        return self._walks[0].token(mine) == self._walks[1].token(other)


def _read(env: dict[Any, Value], atom: Any) -> Value:
    return atom if isinstance(atom, Literal) else env[atom]


def _is_same(mine: Value, other: Value) -> bool:
    if mine is other:
        return True
    if type(mine) is int:
        return type(other) is int and mine == other
    if type(mine) is not Literal or type(other) is not Literal:
        return False
    x, y, kinds = mine.val, other.val, (mine.aval, other.aval)
    if type(x) is not type(y) or isinstance(x, (jax.Array, Tracer)) or kinds[0] != kinds[1]:
        return False
    return np.asarray(x).tobytes() == np.asarray(y).tobytes()
