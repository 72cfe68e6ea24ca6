"""`jit`: a drop-in replacement for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from relax_eg.accepted import NONE, Kind, accepts, of_types, short_repr
from relax_eg.backend.binding import MOST_BOUND, ByIdentity
from relax_eg.backend.call_keys import MOST_SHOWN, NOT_SHOWN, is_tracing, kind_of
from relax_eg.backend.executables import executables
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.runtime import UNSEEN
from relax_eg.backend.whole import Whole
from relax_eg.driver.optimize import optimize
from relax_eg.driver.options import (
    KINDS,
    Facts,
    Sizes,
    Target,
    device_and_cost,
    no_argument,
    no_weight,
    read_facts,
)
from relax_eg.driver.varying import OtherSizesError, Varying, kinds_of, shapes_of, spec_of
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.policy import Dynamic, Mode, read_policy
from relax_eg.dynamic.statistics import Statistics
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.extract.cost_model import CostModel, NodeCost
from relax_eg.extract.profile import Profile
from relax_eg.frontends.specs import NamedSpec, argument_paths
from relax_eg.ir.annotations import Annotation
from relax_eg.logs import fallback, unless_exhausted
from relax_eg.memo import Memo
from relax_eg.ops import Site
from relax_eg.reports import CostReport
from relax_eg.rules import Numerics, RuleSet
from relax_eg.settings import settings_now
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import Bounds, read_statement, split_bounds

_Static = dict[int | str, Any]  # arguments of a call, by position or name

# Options of `jax.jit` that mean the same at all sizes.
_OF_ARGUMENTS = frozenset(("static_argnums", "static_argnames", "donate_argnums", "donate_argnames"))


@dataclass(frozen=True)
class _Way:
    """How a call is run: by `run`, on the flattened leaves or on the arguments themselves. `lasts`: all later calls
    with arrays of these kinds may use it."""

    run: Callable[..., Any]
    of_leaves: bool = False
    lasts: bool = False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        return self.run(*leaves) if self.of_leaves else self.run(*args, **kwargs)


@dataclass(frozen=True)
class _PricedBy:
    """A cost model for a device without its compilation modes."""

    model: CostModel
    profile: Profile

    def price(self, site: Site, result: Annotation, sizes: Sizes) -> NodeCost:
        return self.model.price(site, result, sizes)


class Jitted:
    """A function under `jit`, called like the function it wraps.

    The first call traces and optimizes; later calls with the same shapes run under `jax.jit`. If sizes vary, because of
    `dims` or because calls show it, the function is optimized for all of them and run as `dynamic` says. `optimized`
    lists the latest results, at most `executables` of them, the newest last; `report` is the newest one's report.
    """

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        self._fn = fn
        self.__wrapped__ = fn
        self.__name__ = getattr(fn, "__name__", "function")
        self.__doc__ = getattr(fn, "__doc__", None)
        # The caller of `jax.jit` decides how it compiles, so no compilation mode is chosen here.
        self._target = options.pop("target")
        self._dims = None if dims is None else tuple(dims)
        static, donated = _names(fn, jit, "static"), _names(fn, jit, "donate")
        self._static, self._donated = static or frozenset[str](), donated or frozenset[str]()
        self._parameters = _parameters(fn)
        weights: Any = options.pop("weights")
        self._weights = frozenset(map(self._weight, (weights,) if isinstance(weights, str) else weights))
        facts = read_facts(options.pop("facts") or {})
        self._facts = {self._argument(k, no_argument): words for k, words in facts.items()}
        self._options = options
        self._warned = False
        # `executables` also bounds how many functions optimized for single sizes or static arguments are kept.
        self._executables = executables({"executables": options["dynamic"].executables})
        self._symbolic = Memo[Any, Optimized](self._executables.limit)
        self.optimized: list[Optimized] = []
        self._traced_once = _as_signature_of(fn, self._trace)
        self._jitted = self._executables.jit(self._traced_once, **jit)
        self._written = self._executables.jit(fn, **jit)
        # Other options of `jax.jit` (shardings, ...) are about the concrete arrays of a call.
        unknown = static is None or donated is None or bool(set(jit) - _OF_ARGUMENTS)
        self._exact = options["dynamic"].mode == "exact" or unknown
        self._prepares = not unknown
        self._varies = dims is not None
        self._varying = Memo[Any, Varying](self._executables.limit)
        # How to run calls of sizes seen before: of arrays alone by their kinds, of others by tree structure and kinds
        # of the leaves. Valid under the settings of JAX in `_settings`.
        self._settings: Hashable = None
        self._ways = Memo[Any, _Way](MOST_SHOWN)
        self._local = threading.local()
        self._lock = threading.RLock()

    def _weight(self, given: str | int) -> str:
        """The name of a weight. OptionError for an argument that this function does not have, or does not keep."""
        name, known = self._argument(given, no_weight), self._parameters or {}
        kinds = {p.kind: n for n, p in known.items()}
        rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        is_open = not known or inspect.Parameter.VAR_KEYWORD in kinds
        if not isinstance(name, str) or not (is_open or name in known or name.partition("[")[0] == rest):
            raise no_weight(self.__name__, given, list(known))
        for names, what in (
            (self._static, "static, and nothing is prepared from a constant"),
            (self._donated, "donated, and what is prepared from it is for later calls"),
        ):
            if name.partition("[")[0] in names:
                raise OptionError(f"weights: `{name}` of {self.__name__} is {what}; accepted: one of the two")
        return name

    def _argument(self, key: Any, error: Callable[[str, Any, Sequence[str]], OptionError]) -> Any:
        """The argument at a position, counted as `static_argnums` counts, by name; a name as it is. `error` for a
        position that this function does not have."""
        known = self._parameters
        if known is None or not isinstance(key, int) or isinstance(key, bool):
            return key
        names = list(known)
        rest = next((i for i, p in enumerate(known.values()) if p.kind is p.VAR_POSITIONAL), None)
        if rest is not None and key >= rest:
            return f"{names[rest]}[{key - rest}]"
        if not -len(names) <= key < len(names) or (rest is not None and key < 0):
            raise error(self.__name__, key, names)
        return names[key]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._exact:
            return self._jitted(*args, **kwargs)
        if not self._varies:
            try:
                return self._jitted(*args, **kwargs)
            except OtherSizesError:
                pass
            self._varies = True
        try:
            if self._ways and not kwargs:
                try:
                    way = self._ways.get(tuple(map(kind_of, args)))
                except NOT_SHOWN:
                    way = None
                if way is not None:
                    return way.run(*args)
            return self._at_sizes(args, kwargs)
        except OtherSizesError:  # these sizes were the first ones, under other settings of JAX
            self._forget_ways(settings_now())
            return self._at_sizes(args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds the function as a method, as `jax.jit` does; `static_argnums=0` makes the instance static."""
        return self if instance is None else MethodType(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like `jax.jit(fn).lower`, for the optimized function."""
        return self._as_shaped(self._jitted.lower, args, kwargs)

    def statistics(self) -> Statistics | None:
        """Statistics of the newest function optimized for sizes that vary; None if there is none."""
        found = [best for best in self.optimized if isinstance(best.strategy, AtCapacity)]
        return found[-1].statistics() if found else None

    def _as_shaped(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `call` for exactly the shapes of its arguments, whatever shapes were seen before."""
        before = getattr(self._local, "as_shaped", False)
        self._local.as_shaped = True
        try:
            return call(*args, **kwargs)
        finally:
            self._local.as_shaped = before

    def _at_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of a function whose sizes vary."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        try:
            kinds = tuple(map(kind_of, leaves))
        except NOT_SHOWN:  # a number, a static argument or a tracer
            return self._way(args, kwargs).call(args, kwargs, leaves)
        only_arrays = not kwargs and len(leaves) == len(args) and all(map(operator.is_, leaves, args))
        key = kinds if only_arrays else (tree, kinds)
        way = self._ways.get(key)
        if way is None:
            way = self._keep_way(key, self._way(args, kwargs))
        return way.call(args, kwargs, leaves)

    def _keep_way(self, key: Any, way: _Way) -> _Way:
        if way.lasts:
            settings = settings_now()
            if settings != self._settings:
                self._forget_ways(settings)
            self._ways[key] = way
        return way

    def _forget_ways(self, settings: Hashable) -> None:
        self._ways.clear()
        self._settings = settings

    def _elsewhere(self, settings: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that a function made under `settings` did not serve."""
        now = settings_now()
        if now == settings:
            return self._at_these(*args, **kwargs)
        self._forget_ways(now)
        return self(*args, **kwargs)

    def _way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Way:
        """How to run a call of a function whose sizes vary."""
        held, leaves, tree = self._split(args, kwargs)
        if any(isinstance(x, Tracer) for x in leaves):
            return _Way(self._at_these)
        if self._dims is not None:
            return self._way_by_dims(self._dims, args, kwargs)
        shapes = shapes_of(leaves)
        varying = self._varying.get(_key(held, tree, leaves))
        if varying is None:
            return _Way(self._at_these)
        if shapes == varying.first:
            return _Way(self._jitted, lasts=not self._static)
        best = varying.best_for(shapes, leaves)
        if best is None:
            return _Way(self._at_these, lasts=not self._static) if varying.is_hot(shapes) else _Way(self._written)
        if self._static:
            return _Way(lambda *_, **__: best(*leaves))
        return _Way(best, of_leaves=True, lasts=True)

    def _way_by_dims(self, dims: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Way:
        try:
            best, given, named = self._of_dims(dims, args, kwargs, self._is_constant, False)
        except Exception as e:
            unless_exhausted(e)
            self._exact = True  # tracing turns the error into a warning
            return _Way(self._jitted)
        if not isinstance(best.strategy, AtCapacity) or not self._is_for(best, given, named):
            return _Way(self._jitted, lasts=not self._static)
        return _way_of(best, given, named, args, kwargs)

    def _is_constant(self, name: str, x: Any) -> bool:
        """Whether an argument is a constant of the program: it is static, or has no arrays."""
        return name in self._static or not jax.tree_util.tree_leaves(x)

    def _is_for(self, best: Optimized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the function of `dims` serves a call. ShapeError, BoundsError if `dims` and the options reject it."""
        ranges, statements = split_bounds(self._options["bounds"])
        told = frozenset[str]().union(*(r.variables for s in statements for r in read_statement(s)))
        sizes = best.sizes_of(*args, **kwargs)
        # Without bounds on it, a size may be 0, but programs are made for sizes from 1 on.
        if any(n == 0 and v not in ranges and v not in told for v, n in sizes.items()):
            return False
        try:
            return best.is_own(*args, **kwargs)
        except RelaxEgError:
            raise
        except Exception as e:  # the function's own error, raised again when it is traced for these sizes
            unless_exhausted(e)
            return False

    def _at_these(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._as_shaped(self._jitted, args, kwargs)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Static, list[Any], Any]:
        """The static arguments of a call by position or name; the leaves of all others, and the tree structure of a
        call with None in place of the static ones."""
        if not self._static:
            return {}, *jax.tree_util.tree_flatten((args, kwargs))
        names = enumerate(zip(args, self._parameters or {}, strict=False))
        held: _Static = {i: x for i, (x, name) in names if name in self._static}
        held |= {name: kwargs[name] for name in sorted(self._static & kwargs.keys())}
        return held, *jax.tree_util.tree_flatten(_replaced(args, kwargs, dict.fromkeys(held)))

    def _paths(self, held: _Static, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str]]:
        """Argument and path of each leaf of a call, without those of its static arguments."""
        return argument_paths(self._fn, *_replaced(args, kwargs, dict.fromkeys(held)))

    @property
    def report(self) -> CostReport | None:
        return self.optimized[-1].report if self.optimized else None

    def _trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Called while `jax.jit` traces: static arguments are plain values, the others tracers."""
        if self._dims is None and not self._exact:
            self._note(args, kwargs)
        try:
            best, given, named = self._traced(args, kwargs)
        except Exception as e:
            unless_exhausted(e)
            result = self._fn(*args, **kwargs)
            self._warn("runs as written under jax.jit; it was not optimized", e)
            return result
        return best.to_jax()(*given, **named)

    def _warn(self, instead: str, error: Exception) -> None:
        """Warns once that something slower runs."""
        if not self._warned:
            self._warned = True
            fallback(f"{self.__name__} {instead}", error, warned=True)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Optimized, tuple[Any, ...], Any]:
        """The function for a call that `jax.jit` traces, and its arguments."""
        if self._dims is not None:
            best, given, named = self._of_dims(self._dims, args, kwargs, lambda _, x: not _is_traced(x), False)
            if self._is_for(best, given, named):
                return best, given, named
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        arrays = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
        # The other leaves are constants. No tracer outlives the trace.
        held: _Static = {i: x for i, x in enumerate(leaves) if not isinstance(x, Tracer)}
        paths = argument_paths(self._fn, args, kwargs)

        def call(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full = {**held, **dict(zip(arrays, xs, strict=True))}
            return jax.tree_util.tree_unflatten(tree, [full[i] for i in range(len(full))])

        operands = [leaves[i] for i in arrays]
        specs = [NamedSpec(*paths[i], spec_of(jax.typeof(leaves[i]).shape, leaves[i])) for i in arrays]
        return self._optimized_for(call, specs, False), tuple(operands), {}

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the sizes that a function is traced for. OtherSizesError if it was traced for others before and sizes
        may vary."""
        held, leaves, tree = self._split(args, kwargs)
        key = _key(held, tree, leaves)
        with self._lock:
            known = self._varying.get(key)
            if known is None:
                optimize = functools.partial(self._of_arrays, held, tree, self._paths(held, args, kwargs), False)
                self._varying[key] = Varying(self.__name__, shapes_of(leaves), optimize)
        if known is not None and known.first != shapes_of(leaves) and not getattr(self._local, "as_shaped", False):
            raise OtherSizesError

    def _of_arrays(
        self,
        held: _Static,
        tree: Any,
        paths: Sequence[tuple[str, str]],
        prepares: bool,
        specs: Sequence[Any],
        at: dict[str, int] | None = None,
        assume: Sequence[str] = (),
    ) -> Optimized:
        """The function of a call's arrays, optimized for array specs under the assumptions `assume` about sizes.

        - `held`, `tree`: the static arguments and the structure of the call, as `_split` returns them.
        - `paths`: argument and path of each array.
        - `prepares`: whether its weights are prepared.
        """

        def call(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = jax.tree_util.tree_unflatten(tree, xs)
            return _replaced(args, kwargs, held)

        more: dict[str, Any] = {}
        if at is not None:
            ranges, statements = split_bounds(self._options["bounds"])
            more = {"at": at, "bounds": [ranges, *statements, *assume]}
        named = [NamedSpec(argument, path, spec) for (argument, path), spec in zip(paths, specs, strict=True)]
        best = self._optimized_for(call, named, prepares, **more)
        self._serve(best, lambda *xs: call(xs))
        self._forget_ways(settings_now())
        return best

    def _optimized_for(
        self,
        call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
        specs: Sequence[NamedSpec],
        prepares: bool,
        **options: Any,
    ) -> Optimized:
        """This function as one of flat arrays, optimized. `call`: from the arrays to `(args, kwargs)`."""

        @functools.wraps(self._fn)
        def flat(*xs: Any) -> Any:
            args, kwargs = call(xs)
            return self._fn(*args, **kwargs)

        flat.__name__ = self.__name__
        flat.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.VAR_POSITIONAL)])  # type: ignore[reportAttributeAccessIssue]
        declared = self._declared([spec.argument for spec in specs], prepares)
        best = optimize(flat, *specs, target=self._device(), **{**self._options, **declared, **options})
        return self._keep(best)

    def _serve(self, best: Optimized, call: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        """Prepares an optimized function to serve calls of this one. `call`: from its arguments to `(args, kwargs)`."""
        strategy, settings = best.strategy, settings_now()
        if not isinstance(strategy, Whole):
            return
        arguments = strategy.program.arguments
        donated = [i for i, a in enumerate(arguments) if a.partition("[")[0] in self._donated]
        if donated:
            strategy.donate(donated)

        def elsewhere(*args: Any, **kwargs: Any) -> Any:
            return self._elsewhere(settings, *call(*args, **kwargs))

        strategy.serve_under(settings, elsewhere)

    def _declared(self, arguments: Sequence[str], prepares: bool) -> dict[str, Any]:
        """The options `weights` and `facts` for a call with arrays in these arguments. What is declared of arguments
        that the call leaves out, or of static ones, does not count."""
        there = {*arguments, *(a.partition("[")[0] for a in arguments)}
        absent = (self._parameters or {}).keys() - there

        facts = {k: f for k, f in self._facts.items() if not isinstance(k, str) or _head(k) not in absent}
        weights = [w for w in self._weights if w in there] if prepares else []
        return {"weights": weights, "facts": facts}

    def _device(self) -> Target:
        device, cost = device_and_cost(self._target)
        device = replace(device, modes=())
        return device if cost is None else _PricedBy(cost, device)

    def _keep(self, best: Optimized) -> Optimized:
        """Adds a result to `optimized`, drops the oldest beyond the limit, and counts its executables among this
        function's."""
        best.count_among(self._executables)
        self.optimized.append(best)
        del self.optimized[: -self._executables.limit]
        return best

    def _of_dims(
        self,
        dims: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_fixed: Callable[[str, Any], bool],
        prepares: bool,
    ) -> tuple[Optimized, tuple[Any, ...], dict[str, Any]]:
        """The function optimized for the sizes in `dims`, and the arguments it takes: those with arrays; the others are
        constants. `is_fixed(name, value)`: whether an argument is one of the others. `prepares`: whether its weights
        are prepared."""
        signature = inspect.signature(self._fn)
        given = signature.bind(*args, **kwargs).arguments
        specs = signature.bind_partial(*dims).arguments
        fixed = {n: x for n, x in given.items() if is_fixed(n, x)}
        taken = {n: x for n, x in given.items() if n not in fixed}
        shown = signature.replace(parameters=[p for n, p in signature.parameters.items() if n in taken])
        held, structure = jax.tree_util.tree_flatten(fixed)
        # 1, True and 1.0 are equal in Python.
        told = structure, tuple((type(x), x) for x in held), jax.tree_util.tree_structure(taken)
        key = (*told, prepares, settings_now())

        def make() -> Optimized:
            missing = [n for n in taken if n not in specs]
            if missing:
                raise OptionError(f"dims has no spec for argument `{missing[0]}`; one for each argument is accepted")

            def call(*xs: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return _bound(signature, {**fixed, **shown.bind(*xs, **named).arguments})

            @functools.wraps(self._fn)
            def of_arrays(*xs: Any, **named: Any) -> Any:
                args, kwargs = call(*xs, **named)
                return self._fn(*args, **kwargs)

            of_arrays.__name__ = self.__name__
            of_arrays.__signature__ = shown  # type: ignore[reportAttributeAccessIssue]
            described, named = _bound(shown, {n: specs[n] for n in taken})
            declared = self._declared([a for a, _ in argument_paths(of_arrays, described, named)], prepares)
            options: dict[str, Any] = {**self._options, **declared, "target": self._device()}
            best = optimize(of_arrays, *described, specs=named, **options)
            self._serve(best, call)
            return self._keep(best)

        return self._symbolic.made(key, make), *_bound(shown, taken)

    def __repr__(self) -> str:
        return f"<relax_eg.jit of {self.__name__}>"


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
        self._places = Memo[Any, tuple[list[int], list[int]]](MOST_SHOWN)
        # What stands in keys for the shapes and dtypes of weights: by these, and by the weights themselves.
        self._kinds = Memo[Any, object](MOST_SHOWN)
        self._met = ByIdentity[object](MOST_BOUND)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self._with_weights(args, kwargs) if self._prepares and not is_tracing() else UNSEEN
        return super().__call__(*args, **kwargs) if result is UNSEEN else result

    def _with_weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call outside of traces whose weights are arrays of JAX. UNSEEN for any other call."""
        held, leaves, tree = self._split(args, kwargs)
        found = self._places.get(tree)
        if found is None:
            found = self._places[tree] = self._places_of_weights(self._paths(held, args, kwargs))
        places, others = found
        weights = [leaves[i] for i in places]
        kinds = self._met.get(weights)
        try:
            if kinds is None:
                if not weights or not all(isinstance(x, jax.Array) for x in weights):
                    return UNSEEN
                kinds = self._kinds.made(tuple(map(kind_of, weights)), object)
                self._met.put(weights, kinds)
            key = tree, kinds, _static_key(held), tuple([_kind_of_any(leaves[i]) for i in others])
            way = self._ways.get(key)
        except (*NOT_SHOWN, OverflowError):  # a tracer, or no array
            return UNSEEN
        if way is None:
            try:
                way = self._way_of_weights(held, leaves, tree, kinds, args, kwargs)
            except Exception as e:
                unless_exhausted(e)
                result = super().__call__(*args, **kwargs)
                self._warn("is run without prepared weights", e)
                self._keep_way(key, _Way(super().__call__, lasts=True))
                return result
            self._keep_way(key, way)
        return way.call(args, kwargs, leaves)

    def _way_of_weights(
        self,
        held: _Static,
        leaves: list[Any],
        tree: Any,
        kinds: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Way:
        """How to run a call whose weights are prepared. Raises what a search for it raises."""
        if self._dims is not None:
            best, given, named = self._of_dims(self._dims, args, kwargs, self._is_constant, True)
            if not self._is_for(best, given, named):
                return _Way(super().__call__)
            return _way_of(best, given, named, args, kwargs)
        shapes, key = shapes_of(leaves), (kinds, *_key(held, tree, leaves))
        make = functools.partial(self._of_arrays, held, tree, self._paths(held, args, kwargs), True)
        varying = self._varying.made(key, lambda: Varying(self.__name__, shapes, make))
        best = None
        if not self._exact and shapes != varying.first:
            best = varying.best_for(shapes, leaves)
            if best is None and not varying.is_hot(shapes):
                return _Way(self._written)
        if best is None:
            best = self._fixed.made((key, shapes), lambda: make(list(map(spec_of, shapes, leaves))))
        return _Way(best, of_leaves=True, lasts=True)

    def _places_of_weights(self, paths: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """The places of the weights among the leaves of a call, and those of the other leaves."""
        weights = [not self._weights.isdisjoint((name, name.partition("[")[0])) for name, _ in paths]
        return [i for i, x in enumerate(weights) if x], [i for i, x in enumerate(weights) if not x]


def _as_signature_of(fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with the signature of `fn`, which `jax.jit` needs to resolve the names of static and donated arguments."""

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return traced


@accepts(
    **{k: v for k, v in KINDS.items() if k != "numerics"},  # a search that fails warns, and the function runs
    fn=Kind(lambda x: x is None or callable(x), "a function"),
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

    The other options are those of `optimize`. It composes with jit, grad and vmap. If the optimizer fails, it warns
    once and runs `fn` as written.
    """
    options: dict[str, Any] = {
        "rules": rules, "target": target, "at": at, "bounds": bounds, "weights": weights, "numerics": numerics,
        "facts": facts, "dynamic": (policy := Dynamic.of(dynamic)), "budget": budget,
    }  # fmt: skip
    if fn is None:
        return functools.partial(jit, dims=dims, **options, **jit_options)
    # Wrong values are reported here, at the decoration; what depends on the names of sizes, at the first call.
    capacities = policy.capacities
    read_policy("jit", list(capacities) if isinstance(capacities, Mapping) else ["n"], Scope({"n": (1, 1)}), policy)
    if dims is None and isinstance(capacities, Mapping):
        raise OptionError(
            f"jit: capacities={short_repr(capacities)} names sizes, and without dims there are no names; pass dims"
        )
    return (JittedWithWeights if len(weights) else Jitted)(fn, dims, options, jit_options)


def _is_traced(x: Any) -> bool:
    return any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(x))


def _way_of(best: Optimized, given: tuple[Any, ...], named: dict[str, Any], args: Any, kwargs: Any) -> _Way:
    """The way of a call with `args` and `kwargs` to a function whose arguments are then `given` and `named`."""
    if not kwargs and not named and len(args) == len(given) and all(map(operator.is_, args, given)):
        return _Way(best, lasts=True)
    return _Way(lambda *_, **__: best(*given, **named))


def _bound(signature: inspect.Signature, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, by position and by name. `arguments`: those of each parameter."""
    found = inspect.BoundArguments(signature, OrderedDict(arguments))
    return found.args, found.kwargs


def _replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], by: Mapping[int | str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with some of them replaced, by position or name."""
    if not by:
        return args, kwargs
    return tuple(by.get(i, x) for i, x in enumerate(args)), {k: by.get(k, x) for k, x in kwargs.items()}


def _key(held: _Static, tree: Any, leaves: list[Any]) -> tuple[Any, ...]:
    return _static_key(held), tree, kinds_of(leaves), settings_now()


def _static_key(held: _Static) -> tuple[Any, ...]:
    # 1, True and 1.0 are equal in Python.
    return tuple([(n, type(x), x) for n, x in held.items()])


def _kind_of_any(x: Any) -> Any:
    """`kind_of`, also of a number. LookupError for a tracer; TypeError, OverflowError for what JAX does not take."""
    return kind_of(x) if isinstance(x, (jax.Array, np.ndarray)) else jax.typeof(x)


def _head(key: str) -> str:
    """The argument at the beginning of a path, `p` in "p['w']"."""
    return re.split(r"\W", key, maxsplit=1)[0]


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function; None if they cannot be determined."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None


def _names(fn: Callable[..., Any], jit: dict[str, Any], what: str) -> frozenset[str] | None:
    """The arguments that `jax.jit` takes as static, or as donated; None if they cannot be determined."""
    named, numbered = jit.get(f"{what}_argnames") or (), jit.get(f"{what}_argnums")
    names = {named} if isinstance(named, str) else set(named)
    numbers = [] if numbered is None else [numbered] if isinstance(numbered, int) else list(numbered)
    try:
        parameters = list(inspect.signature(fn).parameters)
        names |= {parameters[i] for i in numbers}
    except (TypeError, ValueError, IndexError):
        return frozenset[str]() if not names and not numbers else None
    return frozenset(names) if names <= set(parameters) else None
