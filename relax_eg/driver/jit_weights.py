"""Functions under `jit` with weights: what depends on the weights alone is computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from relax_eg.backend.binding import MOST_BOUND, ByIdentity
from relax_eg.backend.call_keys import MOST_KEYS, NO_KEY, is_tracing, kind_of
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.runtime import UNSEEN
from relax_eg.driver.background import SearchingError
from relax_eg.driver.call_path import CallPath, path_of
from relax_eg.driver.jit_arguments import Static, call_key, kind_of_any, static_key
from relax_eg.driver.jitted import Jitted
from relax_eg.driver.thread_marks import marked
from relax_eg.driver.varying import OtherSizesError, Varying, shapes_of, spec_of, spec_of_any
from relax_eg.logs import raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.settings import disable_jit


class JittedWithWeights(Jitted):
    """A function under `jit` with declared weights. A call whose weights are prepared does not pass through `jax.jit`:
    it goes to a function optimized for these weights' shapes, which keeps what it prepared from them."""

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        super().__init__(fn, dims, options, jit)
        # Functions for single combinations of sizes.
        self._fixed = Memo[Any, Optimized](self._executables.limit)
        # By structure of a call: the places of its weights, and those of its other leaves.
        self._places = Memo[Any, tuple[list[int], list[int]]](MOST_KEYS)
        # What stands in keys for the shapes and dtypes of weights: by these, and by the weights themselves.
        self._kinds = Memo[Any, object](MOST_KEYS)
        self._met = ByIdentity[object](MOST_BOUND)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if disable_jit.value:
            return self._fn(*args, **kwargs)
        if self._first is self._rival and not self._refused:  # nothing is prepared, so that nothing is looked up
            try:
                return self._rival(*args, **kwargs)
            except OtherSizesError:
                self._refused = True
        result = self._with_weights(args, kwargs) if self._prepares and not is_tracing() else UNSEEN
        return super().__call__(*args, **kwargs) if result is UNSEEN else result

    def _with_weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call outside of traces whose weights are arrays of JAX. UNSEEN for any other call."""
        held, leaves, tree = self._split(args, kwargs)
        found = self._places.get(tree)
        if found is None:
            found = self._places[tree] = self._declared.places(self._leaf_paths(held, args, kwargs))
        places, others = found
        weights = [leaves[i] for i in places]
        kinds = self._met.get(weights)
        try:
            if kinds is None:
                if not weights or not all(isinstance(x, jax.Array) for x in weights):
                    return UNSEEN
                kinds = self._kinds.get_or_make(tuple(map(kind_of, weights)), object)
                self._met.put(weights, kinds)
            key = tree, kinds, static_key(held), tuple([kind_of_any(leaves[i]) for i in others])
            path = self._paths.get(key)
        except (*NO_KEY, OverflowError):  # a tracer, or no array
            return UNSEEN
        if path is None:
            try:
                path = self._path_of_weights(held, leaves, tree, kinds, args, kwargs)
            except SearchingError:
                return self._written(*args, **kwargs)
            except Exception as e:
                raise_if_exhausted(e)
                result = super().__call__(*args, **kwargs)
                self._warn("is run without prepared weights", e)
                self._keep_path(key, CallPath(super().__call__, is_reusable=True))
                return result
            self._keep_path(key, path)
        return path.call(args, kwargs, leaves)

    def _path_of_weights(
        self,
        held: Static,
        leaves: list[Any],
        tree: Any,
        kinds: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> CallPath:
        """How to run a call whose weights are prepared. Raises what a search for it raises, and SearchingError while it
        is searched for in the background."""
        if self._dims is not None:
            best, given, named = self._optimize_dims(self._dims, args, kwargs, self._declared.is_constant, True)
            if not self._serves(best, given, named):
                return CallPath(super().__call__)
            return path_of(best, given, named, args, kwargs)
        shapes, key = shapes_of(leaves), (kinds, *call_key(held, tree, leaves))
        make = functools.partial(self._optimize_arrays, held, tree, self._leaf_paths(held, args, kwargs), True)
        varying = self._varying.get_or_make(key, lambda: Varying(self.__name__, shapes, make))
        best = None
        if not self._exact and shapes != varying.first:
            best = self._best_of(varying, shapes, leaves)
            if best is None and not varying.is_hot(shapes):
                return CallPath(self._written)
        if best is None:

            def fixed() -> Optimized:
                return self._fixed.get_or_make((key, shapes), lambda: make(list(map(spec_of, shapes, leaves))))

            given, named = jax.tree_util.tree_map(spec_of_any, (args, kwargs))

            def fixed_and_compiled() -> None:
                if _is_as_written(fixed()) and shapes == varying.first:
                    with marked(self._local, "as_written"):
                        self._rival.lower(*given, **named).compile()

            if (key, shapes) not in self._fixed:
                self._background.need((key, shapes), fixed_and_compiled)
            best = fixed()
            if shapes == varying.first and _is_as_written(best):
                return CallPath(self._begin_as_written, is_reusable=True)
        return CallPath(best, of_leaves=True, is_reusable=True)

    def _begin_as_written(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call of the first sizes, for which the function as written is chosen; it runs later ones, too."""
        key = self._settle_key(args, kwargs)  # a call may give its arrays away
        with marked(self._local, "as_written"):
            result = self._rival(*args, **kwargs)
        self._first, self._first_key = self._rival, key
        return result


def _is_as_written(best: Optimized) -> bool:
    return all(v.chosen is None for v in best.variants)
