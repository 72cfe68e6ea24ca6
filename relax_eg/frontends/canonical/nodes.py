"""What a jaxpr computes, in a form that two traces of one function share where they are one program.

The trace for symbolic sizes is held against the trace at certain sizes (`frontends.own`). They differ in how they were
made: what the one computes from sizes while it runs (`dim_as_value`), the other has as a literal; a loop to a size is a
`while` in the one and a `scan` in the other; what does nothing at some size is left out there. So both are read as
nodes, operators over nodes, in which

* symbolic sizes are numbers, and what depends on sizes alone is computed;
* functions that are only called are inlined, and bodies of loops see what stays the same as it is outside of them;
* reshapes, slices and the like that change nothing are left out, and reshapes of reshapes are one.

Equal nodes have equal numbers. What is not known here is equal to itself with equal parameters and operands only.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray, Tracer

_SMALL = 64  # elements of an array that is computed with here: a few sizes, or what a few sizes index
_PLACES, _FEW = 1 << 16, 8  # of integers, which may be places along an axis: elements, and such axes side by side
_ULPS = 8  # by which numbers may differ that Python computed from sizes in 64 bits, and JAX in 32


@dataclass(frozen=True, slots=True)
class Node:
    """An operator over other nodes. `key`: its name and parameters; `args`: the numbers of its operands, and of the
    results of functions that it runs; `shape`, `dtype`: of its result, if it has one; `value`: its elements, where they
    are few and known; `eqn`: an equation it stands for."""

    key: Hashable
    args: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    value: Any = None
    eqn: Any = None


@dataclass(frozen=True, slots=True)
class Form:
    """What a function computes: its results, what it does besides, in order, and the types of its results."""

    results: tuple[int, ...]
    effects: tuple[int, ...]
    types: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two forms are two programs. `eqns`: the equations that one has and the other has not, the first one first; none
    where both compute the same values, and return them otherwise."""

    eqns: tuple[Any, ...]


class Nodes:
    """Nodes of both traces, numbered in one sequence. `exact`: whether every bit counts; otherwise numbers that were
    computed from sizes may differ by their rounding, and zeros by their signs."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.all: list[Node] = []
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[int, tuple[Any, int]] = {}
        self.alive: list[Any] = []  # what nodes name by its identity

    def add(self, key: Hashable, args: Sequence[int], shape: Sequence[int], dtype: Any, eqn: Any = None) -> int:
        """The number of a node."""
        named = (key, tuple(args))
        found = self._numbers.get(named)
        if found is None:
            found = self._numbers[named] = len(self.all)
            self.all.append(Node(key, tuple(args), tuple(shape), dtype, None, eqn))
        return found

    def known(self, array: np.ndarray[Any, Any], eqn: Any = None) -> int:
        """The number of a small array."""
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.all)
            self.all.append(Node(key, (), array.shape, array.dtype, array, eqn))
        return found

    def constant(self, x: Any) -> int:
        """The number of an array that a function holds, by its content."""
        lasting = isinstance(x, (jax.Array, Tracer))  # it cannot change, so one look is enough
        held = self._constants.get(id(x)) if lasting else None
        if held is not None:
            return held[1]
        found = self._constant(x)
        if lasting:
            self._constants[id(x)] = (x, found)
        return found

    def _constant(self, x: Any) -> int:
        aval: Any = jax.typeof(x)
        shape, dtype = getattr(aval, "shape", ()), getattr(aval, "dtype", None)
        if isinstance(x, Tracer) or not isinstance(aval, ShapedArray):  # of a transformation around both; a reference
            self.alive.append(x)
            return self.add(("object", id(x)), (), shape, dtype)
        keys = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(x) if keys else x, None if keys else dtype)
        if not keys and is_small(shape, dtype):
            return self.known(array)
        return self.add(("constant", str(dtype), shape, _digest(x, array)), (), shape, dtype)

    def difference(self, a: Form, b: Form) -> Difference | None:
        """None where two forms are one program."""
        if a.types != b.types or len(a.effects) != len(b.effects):
            return self._first_of(a, b)
        work = [*zip(a.results, b.results, strict=True), *zip(a.effects, b.effects, strict=True)][::-1]
        seen: set[tuple[int, int]] = set()
        while work:
            pair = work.pop()
            if pair[0] == pair[1] or pair in seen:
                continue
            seen.add(pair)
            x, y = self.all[pair[0]], self.all[pair[1]]
            if x.value is not None and y.value is not None:
                if self.exact or not _near(x.value, y.value):
                    return self._first_of(a, b)
            elif x.key != y.key or len(x.args) != len(y.args):
                return self._first_of(a, b)
            else:
                work.extend(list(zip(x.args, y.args, strict=True))[::-1])
        return None

    def _first_of(self, a: Form, b: Form) -> Difference:
        new = sorted(self._reached(a) ^ self._reached(b))
        return Difference(tuple(n.eqn for n in map(self.all.__getitem__, new) if n.eqn is not None))

    def _reached(self, form: Form) -> set[int]:
        seen: set[int] = set()
        work = [*form.results, *form.effects]
        while work:
            i = work.pop()
            if i not in seen:
                seen.add(i)
                work += self.all[i].args
        return seen


# Of large arrays that functions hold, so that each is read once: by identity, while they live.
_digests: dict[int, tuple[weakref.ref[Any], bytes]] = {}
_MOST_DIGESTS = 1024


def _digest(x: Any, array: np.ndarray[Any, Any]) -> bytes:
    """Of the elements of `x`, which are `array`."""
    known = _digests.get(id(x))
    if known is not None and known[0]() is x:
        return known[1]
    found = blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=32).digest()
    if isinstance(x, jax.Array):  # nobody can write to it
        if len(_digests) >= _MOST_DIGESTS:
            _digests.clear()
        _digests[id(x)] = weakref.ref(x), found
    return found


def _near(x: Any, y: Any) -> bool:
    """Whether two known arrays are equal up to how they were rounded."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return x.tobytes() == y.tobytes()
    a, b = (v.astype(np.complex128 if np.iscomplexobj(v) else np.float64) for v in (x, y))
    close = np.abs(a - b) <= _ULPS * float(jax.numpy.finfo(x.dtype).eps) * np.abs(a)
    return bool(np.all(close | (a == b) | (np.isnan(a) & np.isnan(b))))


def is_small(shape: Sequence[Any], dtype: Any) -> bool:
    """Whether an array of this shape is computed with here."""
    if (size := count(shape)) <= _SMALL:
        return True
    is_places = jax.dtypes.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.bool_)
    return bool(is_places) and size <= min(_PLACES, _FEW * max(shape))


def count(shape: Sequence[Any]) -> Any:
    return math.prod(shape)
