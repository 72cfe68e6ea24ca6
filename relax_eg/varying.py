"""`rx.jit` without `dims`: which sizes vary is seen from the calls.

The first call fixes every size. One with other sizes makes those that changed symbolic: axes that had equal sizes in
all calls so far share a name. Should a later call break that, the function is optimized once more, for what then is
known to vary; each time there are fewer sizes to hold on to, so this ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from relax_eg.backend.optimized import Optimized
from relax_eg.debug import tell
from relax_eg.dynamic.at_capacity import AtCapacity

Shapes = tuple[tuple[int, ...], ...]

_MOST_KNOWN = 4096  # combinations of shapes known to fit


class OtherSizesError(Exception):
    """Raised while JAX traces: the function was called before, with arrays of other sizes only."""


class Varying:
    """Calls of a function with arrays of certain ranks and dtypes. `first`: the shapes of the first.

    `optimize` makes the function for specs, one for each array: ShapeDtypeStructs and spec strings, and the sizes to be
    best at.
    """

    def __init__(self, name: str, first: Shapes, optimize: Callable[[list[Any], dict[str, int]], Optimized]) -> None:
        self.first = first
        self._name, self._optimize = name, optimize
        self._seen = [first]
        self._patterns: list[tuple[int | str, ...]] = [*first]
        self._known: set[Shapes] = set()
        self._best: AtCapacity | None = None
        self._gave_up = False
        self._lock = threading.Lock()

    def best_for(self, shapes: Shapes, leaves: Sequence[Any]) -> AtCapacity | None:
        """The function for arrays of these shapes; None where it is not to be had for sizes that vary."""
        if shapes not in self._known:
            with self._lock:
                if not self._gave_up and (self._best is None or not self._fits(shapes)):
                    self._learn(shapes, leaves)
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known.add(shapes)
        return self._best

    def _fits(self, shapes: Shapes) -> bool:
        sizes: dict[str, int] = {}
        pairs = [p for dims, shape in zip(self._patterns, shapes, strict=True) for p in zip(dims, shape, strict=True)]
        return all(n == (sizes.setdefault(d, n) if isinstance(d, str) else d) for d, n in pairs)

    def _learn(self, shapes: Shapes, leaves: Sequence[Any]) -> None:
        self._seen.append(shapes)
        names: dict[tuple[int, ...], str] = {}
        self._patterns = []
        for history in zip(*self._seen, strict=True):
            sizes = list(zip(*history, strict=True))
            self._patterns.append(
                tuple(ns[0] if len(set(ns)) == 1 else names.setdefault(ns, f"n{len(names)}") for ns in sizes)
            )
        specs = [_spec(dims, x) for dims, x in zip(self._patterns, leaves, strict=True)]
        try:
            best = self._optimize(specs, {name: sizes[-1] for sizes, name in names.items()})
        except Exception as e:
            # It may well be that the function does not mean the same for all sizes: it then stays one for each.
            tell(1, f"{self._name} is optimized for each combination of sizes: {type(e).__name__}: {e}")
            best = None
        self._best = best if isinstance(best, AtCapacity) else None
        if self._best is None:
            self._gave_up = True
        else:
            self._best.expect_other_sizes()


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
