"""Optimized models that hold the arrays of their weights, so that calls take the inputs alone."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from relax_eg.backend.calls.held_arrays import HeldArrays
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.ready import Ready
from relax_eg.backend.calls.structured import mixin_class
from relax_eg.backend.compare import Check


class _HoldsWeights:
    """A mixin for an optimized function that has the arrays of its last arguments.

    - `_held`: the arrays.
    - `_results`: makes a named tuple of several results.
    - `_ready`: the function with these weights bound, once it was called.
    """

    _held: HeldArrays
    _results: Any = None
    _ready: Ready | None = None

    def _is_whole(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call passes the weights, too."""
        return not self._held.arrays or len(args) + len(kwargs) > self._held.inputs

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        weights: Sequence[str] = self._weights  # type: ignore[attr-defined]
        if self._is_whole(args, kwargs):
            result = super().__call__(*args, **kwargs)  # type: ignore[misc]
        elif not weights:  # it runs in steps, where nothing is bound
            result = super().__call__(*args, **{**self._held.arrays, **kwargs})  # type: ignore[misc]
        else:
            if self._ready is None:
                self._ready = self.prepare(**{w: self._held.arrays[w] for w in weights})  # type: ignore[attr-defined]
            rest = {name: x for name, x in self._held.arrays.items() if name not in weights}
            result = self._ready(*args, **{**rest, **kwargs})  # type: ignore[misc]
        return result if self._results is None else self._results(result)

    def check(self, /, *args: Any, **kwargs: Any) -> Check:
        given = kwargs if self._is_whole(args, kwargs) else {**self._held.arrays, **kwargs}
        return super().check(*args, **given)  # type: ignore[misc]


def with_weights(best: Optimized, held: HeldArrays) -> Optimized:
    """`best` with the arrays of its weights. Several results get the names of the model's outputs."""
    best.__class__ = mixin_class(type(best), _HoldsWeights)
    best._held = held  # type: ignore[reportPrivateUsage]
    if len(held.outputs) > 1:
        made = namedtuple("Results", held.outputs)._make  # type: ignore[reportUntypedNamedTuple]
        best._results = made  # type: ignore[attr-defined]
    return best
