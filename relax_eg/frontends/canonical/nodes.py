"""A canonical form of jaxprs. Two traces of one function have the same form if they are the same program.

`frontends.trace_check` compares the trace for symbolic sizes with the trace at certain sizes. The traces differ in how
they were made. The first computes values from sizes at run time (`dim_as_value`), the second has them as literals. A
loop up to a size is a `while` in the first and a `scan` in the second. The second leaves out operations that do nothing
at its sizes. So both are read as nodes, operators over nodes, in which

* symbolic sizes are numbers, and values that depend only on sizes are computed;
* functions that are only called are inlined, and loop bodies use loop-invariant values as they are outside the loop;
* reshapes, slices and the like that change nothing are left out, and a reshape of a reshape is one reshape.

Equal nodes have equal numbers. Two nodes of an operator unknown here are equal only if their parameters and operands
are equal.
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

from relax_eg.memo import Memo
from relax_eg.ops.keys import words_of_keys
from relax_eg.traversal import reached

_SMALL = 64  # limit: elements of an array that is folded here, such as a shape or what it indexes
# limit: elements of an array of integers or booleans that is folded, since it may hold positions along an axis; and
# their number over the length of the longest axis
_PLACES, _PLACES_FACTOR = 1 << 16, 8
_ULPS = 8  # chosen: ulps by which two numbers computed from sizes may differ: Python uses 64 bits, JAX 32


@dataclass(frozen=True, slots=True)
class CanonicalNode:
    """An operator over other nodes.

    - `key`: name and parameters.
    - `args`: the node numbers of the operands, and of the results of functions that the operator runs.
    - `shape`, `dtype`: of the result, if there is exactly one.
    - `value`: the elements, if they are few and known.
    - `eqn`: an equation that the node stands for.
    """

    key: Hashable
    args: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    value: Any = None
    eqn: Any = None


@dataclass(frozen=True, slots=True)
class Form:
    """The canonical form of a function.

    - `results`: the node numbers of its results.
    - `effects`: the node numbers of its effects, in order.
    - `types`: the types of its results.
    """

    results: tuple[int, ...]
    effects: tuple[int, ...]
    types: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two forms.

    - `eqns`: the equations that only one of the forms has, in order. Empty if both compute the same values but return
      them in another way.
    """

    eqns: tuple[Any, ...]


class Nodes:
    """The nodes of both traces, numbered in one sequence.

    - `exact`: whether every bit counts. Otherwise numbers computed from sizes may differ by rounding, and zeros by
      their signs.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.all: list[CanonicalNode] = []
        self._numbers: dict[Hashable, int] = {}
        self._constants: dict[int, tuple[Any, int]] = {}
        self.host_arrays: dict[int, np.ndarray[Any, Any]] = {}  # those that numpy made, by node
        self.kept_objects: list[Any] = []  # keeps alive the objects that nodes name by `id`

    def add(self, key: Hashable, args: Sequence[int], shape: Sequence[int], dtype: Any, eqn: Any = None) -> int:
        """The number of a node; adds the node if it is new."""
        named = (key, tuple(args))
        found = self._numbers.get(named)
        if found is None:
            found = self._numbers[named] = len(self.all)
            self.all.append(CanonicalNode(key, tuple(args), tuple(shape), dtype, None, eqn))
        return found

    def small_array(self, array: np.ndarray[Any, Any], eqn: Any = None) -> int:
        """The number of the node of a small array; adds the node if it is new."""
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.all)
            self.all.append(CanonicalNode(key, (), array.shape, array.dtype, array, eqn))
        return found

    def constant(self, x: Any) -> int:
        """The node number of an array that a function holds as a constant; arrays of equal content share a node."""
        lasting = isinstance(x, (jax.Array, Tracer))  # immutable, so its content is read once
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
        # A tracer of a transformation around both traces, or a reference: identified by `id`.
        if isinstance(x, Tracer) or not isinstance(aval, ShapedArray):
            self.kept_objects.append(x)
            return self.add(("object", id(x)), (), shape, dtype)
        keys = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
        array = words_of_keys(x) if keys else np.asarray(x, dtype)
        if not keys and is_small(shape, dtype):
            return self.small_array(array)
        found = self.add(("constant", str(dtype), shape, _digest(x, array)), (), shape, dtype)
        if not isinstance(x, jax.Array):
            self.host_arrays[found] = array
        return found

    def difference(self, a: Form, b: Form) -> Difference | None:
        """The difference between two forms; None if they are the same program."""
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
                if self.exact or not _close(x.value, y.value):
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
        return set(reached((*form.results, *form.effects), lambda i: self.all[i].args))


# Digests of large arrays that functions hold, by `id` while the array lives, so that each array is read once.
_MOST_DIGESTS = 1024  # limit: arrays whose digests are kept
_digests = Memo[int, tuple[weakref.ref[Any], bytes]](_MOST_DIGESTS)


def _digest(x: Any, array: np.ndarray[Any, Any]) -> bytes:
    """The digest of the elements of `x`; `array` holds these elements."""
    known = _digests.get(id(x))
    if known is not None and known[0]() is x:
        return known[1]
    found = blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=32).digest()
    if isinstance(x, jax.Array):  # immutable
        _digests[id(x)] = weakref.ref(x), found
    return found


def _close(x: Any, y: Any) -> bool:
    """Whether two known arrays are equal up to rounding (`_ULPS`)."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return x.tobytes() == y.tobytes()
    a, b = (v.astype(np.complex128 if np.iscomplexobj(v) else np.float64) for v in (x, y))
    close = np.abs(a - b) <= _ULPS * float(jax.numpy.finfo(x.dtype).eps) * np.abs(a)
    return bool(np.all(close | (a == b) | (np.isnan(a) & np.isnan(b))))


def is_small(shape: Sequence[Any], dtype: Any) -> bool:
    """Whether an array of this shape and dtype is small enough to be folded."""
    if (size := count(shape)) <= _SMALL:
        return True
    is_places = jax.dtypes.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.bool_)
    return bool(is_places) and size <= min(_PLACES, _PLACES_FACTOR * max(shape))


def count(shape: Sequence[Any]) -> Any:
    return math.prod(shape)
