"""`jit`: a drop-in replacement for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.argument_checks import NONE, Kind, accepts, of_types, short_repr
from relax_eg.backend.call_keys import MOST_KEYS, NO_KEY, kind_of
from relax_eg.backend.executables import executables
from relax_eg.backend.optimized import Optimized
from relax_eg.driver.optimize import optimize
from relax_eg.driver.options import KINDS, Sizes, Target, device_and_cost
from relax_eg.driver.varying import OtherSizesError, Varying, kinds_of, shapes_of
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.policy import Dynamic, Mode, read_policy
from relax_eg.dynamic.statistics import Statistics
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.extract.cost_model import CostModel, NodeCost
from relax_eg.extract.profile import Profile
from relax_eg.ir.annotations import Annotation
from relax_eg.logs import fallback, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.ops import Site
from relax_eg.reports import CostReport
from relax_eg.rules import Numerics, RuleSet
from relax_eg.settings import settings_now
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import Bounds, read_statement, split_bounds

# Options of `jax.jit` that mean the same at all sizes.
_OF_ARGUMENTS = frozenset(("static_argnums", "static_argnames", "donate_argnums", "donate_argnames"))


@dataclass(frozen=True)
class _CallPath:
    """How a call is run.

    - `run`: the function that runs it.
    - `of_leaves`: whether `run` takes the flattened leaves, not the arguments themselves.
    - `is_reusable`: whether all later calls with arrays of these kinds may use it.
    """

    run: Callable[..., Any]
    of_leaves: bool = False
    is_reusable: bool = False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        return self.run(*leaves) if self.of_leaves else self.run(*args, **kwargs)


@dataclass(frozen=True)
class _ModelWithoutModes:
    """A cost model for a device without its compilation modes.

    - `model`: the cost model.
    - `profile`: the profile of the device, without modes.
    """

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
        # The caller of `jax.jit` decides how it compiles, so no compilation mode is chosen here.
        self._target = options.pop("target")
        self._dims = None if dims is None else tuple(dims)
        self._options = options
        self._warned = False
        # `executables` also bounds how many functions optimized for single sizes or static arguments are kept.
        self._executables = executables({"executables": options["dynamic"].executables})
        self._symbolic = Memo[Any, Optimized](self._executables.limit)
        self.optimized: list[Optimized] = []
        self.__wrapped__ = fn
        self.__name__ = getattr(fn, "__name__", "function")
        self.__doc__ = getattr(fn, "__doc__", None)
        self._traced_once = _as_signature_of(fn, self._trace)
        self._jitted = self._executables.jit(self._traced_once, **jit)
        self._written = self._executables.jit(fn, **jit)
        static, donated = _names(fn, jit, "static"), _names(fn, jit, "donate")
        self._static, self._donated = static or frozenset[str](), donated or frozenset[str]()
        # Other options of `jax.jit` (shardings, ...) are about the concrete arrays of a call.
        unknown = static is None or donated is None or bool(set(jit) - _OF_ARGUMENTS)
        self._exact = options["dynamic"].mode == "exact" or unknown
        self._varies = dims is not None
        self._varying = Memo[Any, Varying](self._executables.limit)
        # How to run calls of sizes seen before: of arrays alone by their kinds, of others by tree structure and kinds
        # of the leaves. Valid under the settings of JAX in `_settings`.
        self._settings: Hashable = None
        self._paths = Memo[Any, _CallPath](MOST_KEYS)
        self._local = threading.local()
        self._lock = threading.RLock()

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
            if self._paths and not kwargs:
                try:
                    way = self._paths.get(tuple(map(kind_of, args)))
                except NO_KEY:
                    way = None
                if way is not None:
                    return way.run(*args)
            return self._at_sizes(args, kwargs)
        except OtherSizesError:  # these sizes were the first ones, under other settings of JAX
            self._forget_paths(settings_now())
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
        except NO_KEY:  # a number, a static argument or a tracer
            return self._path(args, kwargs).call(args, kwargs, leaves)
        only_arrays = not kwargs and len(leaves) == len(args) and all(map(operator.is_, leaves, args))
        key = kinds if only_arrays else (tree, kinds)
        way = self._paths.get(key)
        if way is None:
            way = self._path(args, kwargs)
            if way.is_reusable:
                settings = settings_now()
                if settings != self._settings:
                    self._forget_paths(settings)
                self._paths[key] = way
        return way.call(args, kwargs, leaves)

    def _forget_paths(self, settings: Hashable) -> None:
        self._paths.clear()
        self._settings = settings

    def _elsewhere(self, settings: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that a function made under `settings` did not serve."""
        now = settings_now()
        if now == settings:
            return self._at_exact_shapes(*args, **kwargs)
        self._forget_paths(now)
        return self._at_sizes(args, kwargs)

    def _path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CallPath:
        """How to run a call of a function whose sizes vary."""
        held, leaves, tree = self._flat(args, kwargs)
        if any(isinstance(x, Tracer) for x in leaves):
            return _CallPath(self._at_exact_shapes)
        if self._dims is not None:
            return self._path_by_dims(self._dims, args, kwargs)
        shapes = shapes_of(leaves)
        varying = self._varying.get(_key(held, tree, leaves))
        if varying is None:
            return _CallPath(self._at_exact_shapes)
        if shapes == varying.first:
            return _CallPath(self._jitted, is_reusable=not self._static)
        best = varying.best_for(shapes, leaves)
        if best is None:
            return (
                _CallPath(self._at_exact_shapes, is_reusable=not self._static)
                if varying.is_hot(shapes)
                else _CallPath(self._written)
            )
        if self._static:
            return _CallPath(lambda *_, **__: best(*leaves))
        return _CallPath(best, of_leaves=True, is_reusable=True)

    def _path_by_dims(self, dims: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CallPath:
        def is_fixed(name: str, x: Any) -> bool:
            return name in self._static or not jax.tree_util.tree_leaves(x)

        try:
            best, operands = self._optimize_dims(dims, args, kwargs, is_fixed)
        except Exception as e:
            raise_if_exhausted(e)
            self._exact = True  # tracing turns the error into a warning
            return _CallPath(self._jitted)
        if not isinstance(best.strategy, AtCapacity) or not self._serves(best, operands):
            return _CallPath(self._jitted, is_reusable=not self._static)
        if not kwargs and len(args) == len(operands) and all(map(operator.is_, args, operands)):
            return _CallPath(best, is_reusable=True)
        return _CallPath(lambda *_, **__: best(*operands))

    def _serves(self, best: Optimized, operands: list[Any]) -> bool:
        """Whether the function of `dims` serves a call. ShapeError, BoundsError if `dims` and the options reject it."""
        ranges, statements = split_bounds(self._options["bounds"])
        constrained = frozenset[str]().union(*(r.variables for s in statements for r in read_statement(s)))
        sizes = best.sizes_of(*operands)
        # Without bounds on it, a size may be 0, but programs are made for sizes from 1 on.
        if any(n == 0 and v not in ranges and v not in constrained for v, n in sizes.items()):
            return False
        try:
            return best.is_own(*operands)
        except RelaxEgError:
            raise
        except Exception as e:  # the function's own error, raised again when it is traced for these sizes
            raise_if_exhausted(e)
            return False

    def _at_exact_shapes(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._as_shaped(self._jitted, args, kwargs)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[Any], Any]:
        """The static arguments of a call by name; the leaves of all others, and their tree structure."""
        if not self._static:
            return {}, *jax.tree_util.tree_flatten((args, kwargs))
        call = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        held = {n: call.pop(n) for n in self._static & call.keys()}
        return held, *jax.tree_util.tree_flatten(call)

    @property
    def report(self) -> CostReport | None:
        return self.optimized[-1].report if self.optimized else None

    def _trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Called while `jax.jit` traces: static arguments are plain values, the others tracers."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        dynamic = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
        if self._dims is None and not self._exact:
            self._record_sizes(args, kwargs)
        try:
            if self._dims is None:
                best, operands = self._optimize_shapes(leaves, tree, dynamic), [leaves[i] for i in dynamic]
            else:
                best, operands = self._optimize_dims(self._dims, args, kwargs, lambda _, x: not _is_traced(x))
                if not self._serves(best, operands):
                    best, operands = self._optimize_shapes(leaves, tree, dynamic), [leaves[i] for i in dynamic]
        except Exception as e:
            raise_if_exhausted(e)
            result = self._fn(*args, **kwargs)
            if not self._warned:
                self._warned = True
                fallback(f"{self.__name__} runs as written under jax.jit; it was not optimized", e, warned=True)
            return result
        return best.to_jax()(*operands)

    def _record_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the sizes that a function is traced for. OtherSizesError if it was traced for others before and sizes
        may vary."""
        held, leaves, tree = self._flat(args, kwargs)
        key = _key(held, tree, leaves)
        with self._lock:
            known = self._varying.get(key)
            if known is None:
                optimize = functools.partial(self._optimize_varying, held, tree)
                self._varying[key] = Varying(self.__name__, shapes_of(leaves), optimize)
        if known is not None and known.first != shapes_of(leaves) and not getattr(self._local, "as_shaped", False):
            raise OtherSizesError

    def _optimize_varying(
        self, held: dict[str, Any], tree: Any, specs: list[Any], at: dict[str, int], assume: Sequence[str]
    ) -> Optimized:
        """The function optimized for array specs with symbolic sizes, under the assumptions `assume` about them."""
        signature = inspect.signature(self._fn)

        def arguments(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            given = jax.tree_util.tree_unflatten(tree, xs)
            if not self._static:
                return given
            whole = {**held, **given}
            ordered = OrderedDict((n, whole[n]) for n in signature.parameters if n in whole)
            bound = inspect.BoundArguments(signature, ordered)
            return bound.args, bound.kwargs

        @functools.wraps(self._fn)
        def flat(*xs: Any) -> Any:
            args, kwargs = arguments(xs)
            return self._fn(*args, **kwargs)

        flat.__name__ = self.__name__
        flat.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.VAR_POSITIONAL)])  # type: ignore[reportAttributeAccessIssue]
        ranges, statements = split_bounds(self._options["bounds"])
        options: dict[str, Any] = {**self._options, "at": at, "bounds": [ranges, *statements, *assume]}
        best = optimize(flat, *specs, target=self._device(), **options)
        places = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        by_name = places if self._static else {**dict(zip(signature.parameters, places[0], strict=False)), **places[1]}
        self._connect(best, by_name, arguments)
        self._forget_paths(settings_now())
        return self._keep(best)

    def _connect(self, best: Optimized, places: Mapping[str, Any], arguments: Callable[[Sequence[Any]], Any]) -> None:
        """Prepares a function of sizes that vary to serve calls of this one.

        - `places`: the parameters' numbers, in the structure of each argument.
        - `arguments`: from the arguments of `best` to `(args, kwargs)` of a call of this function.
        """
        strategy, settings = best.strategy, settings_now()
        if not isinstance(strategy, AtCapacity):
            return
        if self._donated:
            strategy.donate(jax.tree_util.tree_leaves([x for n, x in places.items() if n in self._donated]))
        strategy.serve_under_settings(settings, lambda *xs: self._elsewhere(settings, *arguments(xs)))

    def _device(self) -> Target:
        device, cost = device_and_cost(self._target)
        device = replace(device, modes=())
        return device if cost is None else _ModelWithoutModes(cost, device)

    def _optimize_shapes(self, leaves: list[Any], tree: Any, dynamic: list[int]) -> Optimized:
        """The function of the arrays among `leaves`, optimized for exactly these shapes; the other leaves are
        constants."""

        avals = [jax.typeof(leaves[i]) for i in dynamic]
        held = [None if isinstance(x, Tracer) else x for x in leaves]  # no tracer outlives the trace

        @functools.wraps(self._fn)
        def flat(*xs: Any) -> Any:
            full = list(held)
            for i, x in zip(dynamic, xs, strict=True):
                full[i] = x
            args, kwargs = jax.tree_util.tree_unflatten(tree, full)
            return self._fn(*args, **kwargs)

        flat.__name__ = self.__name__
        flat.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.VAR_POSITIONAL)])  # type: ignore[reportAttributeAccessIssue]
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
        return self._keep(optimize(flat, *specs, target=self._device(), **self._options))

    def _keep(self, best: Optimized) -> Optimized:
        """Adds a result to `optimized`, drops the oldest beyond the limit, and counts its executables among this
        function's."""
        best.count_among(self._executables)
        self.optimized.append(best)
        del self.optimized[: -self._executables.limit]
        return best

    def _optimize_dims(
        self, dims: tuple[Any, ...], args: Any, kwargs: Any, is_fixed: Callable[[str, Any], bool]
    ) -> tuple[Optimized, list[Any]]:
        """The function optimized for the sizes in `dims`, and the arguments it takes: those with arrays; the others are
        constants. `is_fixed(name, value)`: whether an argument is one of the others."""
        signature = inspect.signature(self._fn)
        call = signature.bind(*args, **kwargs).arguments
        specs = signature.bind_partial(*dims).arguments
        fixed = {n: x for n, x in call.items() if is_fixed(n, x)}
        taken = {n: x for n, x in call.items() if n not in fixed}
        held, structure = jax.tree_util.tree_flatten(fixed)
        # 1, True and 1.0 are equal in Python.
        key = (structure, tuple((type(x), x) for x in held), jax.tree_util.tree_structure(taken), settings_now())

        def make() -> Optimized:
            missing = [n for n in taken if n not in specs]
            if missing:
                raise OptionError(f"dims has no spec for argument `{missing[0]}`; one for each argument is accepted")

            def arguments(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
                bound = inspect.BoundArguments(signature, OrderedDict({**fixed, **dict(zip(taken, xs, strict=True))}))
                return bound.args, bound.kwargs

            @functools.wraps(self._fn)
            def of_arrays(*xs: Any) -> Any:
                args, kwargs = arguments(xs)
                return self._fn(*args, **kwargs)

            of_arrays.__name__ = self.__name__
            named = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in taken]
            of_arrays.__signature__ = inspect.Signature(named)  # type: ignore[reportAttributeAccessIssue]
            best = optimize(of_arrays, *(specs[n] for n in taken), target=self._device(), **self._options)
            tree = jax.tree_util.tree_structure(list(taken.values()))
            places = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
            self._connect(best, dict(zip(taken, places, strict=True)), arguments)
            return self._keep(best)

        return self._symbolic.get_or_make(key, make), list(taken.values())

    def __repr__(self) -> str:
        return f"<relax_eg.jit of {self.__name__}>"


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
    numerics: Numerics = "reassociate",
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

    The other options are those of `optimize`. It composes with jit, grad and vmap. If the optimizer fails, it warns
    once and runs `fn` as written.
    """
    options: dict[str, Any] = {
        "rules": rules, "target": target, "at": at, "bounds": bounds, "numerics": numerics,
        "dynamic": (policy := Dynamic.of(dynamic)), "budget": budget,
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
    return Jitted(fn, dims, options, jit_options)


def _is_traced(x: Any) -> bool:
    return any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(x))


def _key(held: dict[str, Any], tree: Any, leaves: list[Any]) -> Any:
    # 1, True and 1.0 are equal in Python.
    return tuple((n, type(x), x) for n, x in sorted(held.items())), tree, kinds_of(leaves), settings_now()


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
