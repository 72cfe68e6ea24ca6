"""`rx.jit` without `dims`: which sizes vary is seen from the calls.

The first call fixes every size. One with other sizes makes those that changed symbolic: axes that had equal sizes in
all calls so far share a name. Should a later call break that, the function is optimized once more, for what then is
known to vary; each time there are fewer sizes to hold on to, so this ends.

A function may mean something else at other sizes: `x[:128]` is all of a short `x`, and Python may compare sizes. What
the trace then needs is assumed as it holds for the call at hand, and calls for which it does not hold get a program of
their own, traced for them. And a program serves a combination of sizes only where the function, traced for these, is
this very program (`frontends.own`); at others it runs as written, and is searched for once that is worth it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from relax_eg.backend.optimized import Optimized
from relax_eg.debug import fallback, tell
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.errors import TraceError
from relax_eg.shapes.relation import read_statement

Shapes = tuple[tuple[int, ...], ...]
Pattern = tuple[int | str, ...]
Optimize = Callable[[list[Any], dict[str, int], Sequence[str]], Optimized]

_MOST_KNOWN = 4096  # combinations of shapes of which it is known what runs them
_MOST_ASSUMED = 16  # statements about sizes that a trace may need
_MOST_PROGRAMS = 4  # for sizes at which the function means different things
_HOT = 16  # calls after which a combination of sizes that no program serves is worth a search of its own


class OtherSizesError(Exception):
    """Raised while JAX traces: the function was called before, with arrays of other sizes only."""


class Varying:
    """Calls of a function with arrays of certain ranks and dtypes. `first`: the shapes of the first.

    `optimize` makes the function for specs, one for each array: ShapeDtypeStructs and spec strings; the sizes to be
    best at; and what may be assumed of sizes.
    """

    def __init__(self, name: str, first: Shapes, optimize: Optimize) -> None:
        self.first = first
        self._name, self._optimize = name, optimize
        self._seen = [first]
        self._patterns: list[Pattern] = [*first]
        self._programs: list[AtCapacity] = []
        self._known: dict[Shapes, AtCapacity | None] = {}
        self._gave_up = False
        self._calls: Counter[Shapes] = Counter()
        self._lock = threading.Lock()

    def best_for(self, shapes: Shapes, leaves: Sequence[Any]) -> AtCapacity | None:
        """The function for arrays of these shapes; None where it is not to be had for sizes that vary."""
        try:
            return self._known[shapes]
        except KeyError:
            pass
        with self._lock:
            if shapes not in self._known:  # another thread may have looked meanwhile
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[shapes] = self._found(shapes, leaves)
            return self._known[shapes]

    def is_hot(self, shapes: Shapes) -> bool:
        """Counts a call with shapes that no program for sizes that vary serves: whether there were so many that a
        search for these very sizes is in place."""
        with self._lock:
            if len(self._calls) >= _MOST_KNOWN:
                self._calls.clear()
            self._calls[shapes] += 1
            return self._calls[shapes] > _HOT

    def _found(self, shapes: Shapes, leaves: Sequence[Any]) -> AtCapacity | None:
        if self._gave_up:
            return None
        sizes = _bound(self._patterns, shapes)
        if sizes is None:
            self._generalize(shapes)
            sizes = _bound(self._patterns, shapes)
            assert sizes is not None
        for program in self._programs:
            if program.allows(sizes):
                return self._shown(program, leaves)
        found = self._learn(sizes, leaves)
        return None if found is None else self._shown(found, leaves)

    def _shown(self, program: AtCapacity, leaves: Sequence[Any]) -> AtCapacity | None:
        """A program, if it is the function's own at the sizes of these arrays. What the function raises at them, it
        raises when it runs as written."""
        try:
            return program if program.is_own(*leaves) else None
        except Exception as e:
            tell(1, f"{self._name} raises {type(e).__name__} where it is traced for arrays of these sizes")
            return None

    def _generalize(self, shapes: Shapes) -> None:
        """Makes those sizes symbolic that are not the same in all calls so far, and this one."""
        self._seen.append(shapes)
        names: dict[tuple[int, ...], str] = {}
        self._patterns = []
        for history in zip(*self._seen, strict=True):
            axes = list(zip(*history, strict=True))
            self._patterns.append(
                tuple(ns[0] if len(set(ns)) == 1 else names.setdefault(ns, f"n{len(names)}") for ns in axes)
            )
        self._programs.clear()
        self._known.clear()

    def _learn(self, sizes: dict[str, int], leaves: Sequence[Any]) -> AtCapacity | None:
        """A program that serves `sizes`, and as many others as the function allows."""
        if len(self._programs) >= _MOST_PROGRAMS:
            return None
        specs = [_spec(dims, x) for dims, x in zip(self._patterns, leaves, strict=True)]
        assume: list[str] = []
        while True:
            try:
                best = self._optimize(specs, sizes, assume)
                break
            except TraceError as e:
                holding = [s for s in e.undecided or () if all(r.holds(sizes) for r in read_statement(s))]
                if holding and holding[0] not in assume and len(assume) < _MOST_ASSUMED:
                    assume.append(holding[0])
                    continue
                best = self._refused(e)
                break
            except Exception as e:
                best = self._refused(e)
                break
        if not isinstance(best, AtCapacity):
            self._gave_up = not self._programs
            return None
        best.expect_other_sizes()
        self._programs.append(best)
        return best

    def _refused(self, error: Exception) -> None:
        fallback(f"{self._name} is compiled for each combination of sizes", error)


def _bound(patterns: Sequence[Pattern], shapes: Shapes) -> dict[str, int] | None:
    """The sizes by name at which arrays of these shapes fit the patterns; None where they do not."""
    sizes: dict[str, int] = {}
    for dims, shape in zip(patterns, shapes, strict=True):
        for d, n in zip(dims, shape, strict=True):
            if n != (sizes.setdefault(d, n) if isinstance(d, str) else d):
                return None
    return sizes


def shapes_of(leaves: Sequence[Any]) -> Shapes:
    return tuple([np.shape(x) for x in leaves])


def kinds_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What must be equal for calls to be of the same function whatever their sizes: ranks and dtypes."""
    return tuple([
        (len(x.shape), x.dtype, getattr(x, "weak_type", False)) if hasattr(x, "dtype") else type(x) for x in leaves
    ])  # fmt: skip


def _spec(dims: Sequence[int | str], x: Any) -> Any:
    aval: Any = jax.typeof(x)
    if all(isinstance(d, int) for d in dims):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
    return f"{' '.join(map(str, dims))} @ {aval.dtype}"
