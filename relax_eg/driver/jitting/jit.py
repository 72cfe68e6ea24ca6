"""`jit`: a drop-in replacement for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from relax_eg.argument_checks import NONE, Kind, accepts, of_types, short_repr
from relax_eg.backend.calls.binding import MOST_BOUND, ByIdentity
from relax_eg.backend.calls.call_keys import MOST_KEYS, NO_KEY, is_tracing, kind_of
from relax_eg.backend.calls.known import UNSEEN
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.byte_units import parse_bytes
from relax_eg.driver.clock.settling import FIRST_CALLS, Settle, SettleMode
from relax_eg.driver.jitting.arguments import Static, call_key, kind_of_any, static_key
from relax_eg.driver.jitting.background import Search, SearchingError, read_search
from relax_eg.driver.jitting.call_path import CallPath, path_of
from relax_eg.driver.jitting.jitted import Jitted
from relax_eg.driver.jitting.thread_marks import marked
from relax_eg.driver.jitting.varying import OtherSizesError, Varying, shapes_of, spec_of, spec_of_any
from relax_eg.driver.limits.time_limit import TimeLimit
from relax_eg.driver.options import KINDS, Facts, Sizes, Target
from relax_eg.dynamic.policy import Dynamic, Mode, read_policy
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError
from relax_eg.ir.module import Module
from relax_eg.logs import raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.rules import Numerics, RuleSet
from relax_eg.settings import disable_jit
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import Bounds

# Functions under `jit` with weights: what depends on the weights alone is computed once.


class JittedWithWeights(Jitted):
    """A function under `jit` with declared weights. A call whose weights are prepared does not pass through `jax.jit`:
    it goes to a function optimized for these weights' shapes, which keeps what it prepared from them."""

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        super().__init__(fn, dims, options, jit)
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
                return self._found.get_or_make((key, shapes), lambda: make(list(map(spec_of, shapes, leaves))))

            given, named = jax.tree_util.tree_map(spec_of_any, (args, kwargs))

            def fixed_and_compiled() -> None:
                if _is_as_written(fixed()) and shapes == varying.first:
                    with marked(self._local, "as_written"):
                        self._rival.lower(*given, **named).compile()

            if (key, shapes) not in self._found:
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


@accepts(
    **{k: v for k, v in KINDS.items() if k not in ("numerics", "measure")},  # a search that fails warns, and `fn` runs
    measure=FIRST_CALLS,
    fn=Kind(lambda x: x is None or callable(x) or isinstance(x, Module), "a function"),
    dims=of_types("a list of specs, one for each argument,", list, tuple) | NONE,
)
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    dims: Sequence[Any] | None = None,
    rules: RuleSet | None = None,
    target: Target | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    weights: Sequence[str | int] = (),
    numerics: Numerics = "reassociate",
    facts: Facts | None = None,
    dynamic: Mode | Dynamic = "auto",
    measure: SettleMode | Settle | None = None,
    search: Search = "first call",
    memory_limit: int | str | None = None,
    time_limit: float | str | None = None,
    budget: Budget | None = None,
    **jit_options: Any,
) -> Any:
    """A drop-in for `jax.jit` that optimizes: `fast = rx.jit(fn)` or `@rx.jit(dims=["b s 768"])`.

    - `jit_options`: `static_argnums`, `donate_argnames` and the other options of `jax.jit`.
    - `dims`: one spec per argument (anything for a static one); the function is then optimized once for symbolic sizes.
      Without `dims` it is optimized for the shapes of the first call, and once more when others come: the sizes that
      changed are then symbolic (`docs/dynamic.md`).
    - `dynamic`: "exact" optimizes and compiles each combination of shapes, as `jax.jit` compiles. The same happens to
      calls that are traced, and with `jit_options` other than static and donated arguments. Otherwise a combination of
      sizes runs the program for all sizes only after the function, traced for it, was found to be that program; other
      combinations have executables of their own. `Dynamic(trust=True)` skips this check: the caller promises that it
      would succeed.
    - `weights`: arguments known ahead of the calls, by name or by position as in `static_argnums`. What depends on them
      alone is computed at the first call with these very arrays of JAX and kept as long as the arrays are. It is not
      kept for numpy arrays, which may change, nor where JAX traces the call.
    - `facts`: what is known of the values of arguments, as `optimize` takes it; positions count as in `static_argnums`.
    - `measure`: that of `optimize`, which alone times programs ahead of the calls.
    - `search`: "first call" searches when a call needs a program. "background" runs such calls as written, under
      `jax.jit`, until a thread has found and compiled it; `fast.wait()` waits for that. Calls that JAX traces search
      themselves.

    The other options are those of `optimize`. With `memory_limit` or `time_limit`, and without `at`, each combination
    of sizes is optimized for itself, as with `dynamic="exact"`. It composes with jit, grad and vmap. If the optimizer
    fails, it warns once and runs `fn` as written.
    """
    options: dict[str, Any] = {
        "rules": rules, "target": target, "at": at, "bounds": bounds, "weights": weights, "numerics": numerics,
        "facts": facts, "dynamic": (policy := Dynamic.of(dynamic)), "measure": measure, "search": search,
        "memory_limit": memory_limit, "time_limit": time_limit, "budget": budget,
    }  # fmt: skip
    if isinstance(fn, Module) and not callable(fn):
        raise OptionError(
            "jit: a module is no function; accepted: rx.optimize(module, at=...), which returns one for all its sizes, "
            "or rx.jit of a function that calls what rx.optimize returned"
        )
    if fn is None:
        return functools.partial(jit, dims=dims, **options, **jit_options)
    if memory_limit is not None:
        parse_bytes(memory_limit, "memory_limit")
    if time_limit is not None:
        TimeLimit.of(time_limit)
    # Wrong values are reported here, at the decoration; what depends on the names of sizes, at the first call.
    read_search(search)
    if policy.padded or policy.donated:
        raise OptionError("jit: Dynamic(padded=, donated=): rx.optimize takes them, and rx.jit takes donate_argnames")
    capacities = policy.capacities
    read_policy("jit", list(capacities) if isinstance(capacities, Mapping) else ["n"], Scope({"n": (1, 1)}), policy)
    if dims is None and isinstance(capacities, Mapping):
        raise OptionError(
            f"jit: capacities={short_repr(capacities)} names sizes, and without dims there are no names; pass dims"
        )
    if at is None and (memory_limit, time_limit) != (None, None):  # limits are kept at known sizes
        options["dynamic"] = replace(policy, mode="exact")
    return (JittedWithWeights if len(weights) else Jitted)(fn, dims, options, jit_options)
