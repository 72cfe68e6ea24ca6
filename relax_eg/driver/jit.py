"""`jit`: a drop-in for `jax.jit` that optimizes."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.accepted import NONE, Kind, accepts, of, shown
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.shown import MOST_SHOWN, NOT_SHOWN, kind_of
from relax_eg.driver.optimize import optimize
from relax_eg.driver.options import KINDS, Bounds, Sizes
from relax_eg.driver.varying import OtherSizesError, Varying, kinds_of, shapes_of
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.dynamic.policy import EXECUTABLES, POWERS, Capacities, Dynamic, read_policy
from relax_eg.dynamic.statistics import Statistics
from relax_eg.egraph import Budget
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.extract.devices import profile
from relax_eg.extract.profile import Profile
from relax_eg.measure.device import here
from relax_eg.reports import CostReport
from relax_eg.rules import Numerics, RuleSet
from relax_eg.settings import settings_now
from relax_eg.shapes import Scope
from relax_eg.shapes.relation import as_statements, read_statement

# Options of `jax.jit` that are the same for all sizes.
_OF_ARGUMENTS = frozenset(("static_argnums", "static_argnames", "donate_argnums", "donate_argnames"))


@dataclass(frozen=True)
class _Way:
    """What runs a call: `run`, of the leaves or of the arguments as they are. `lasts`: it is to run all calls with such
    arrays."""

    run: Callable[..., Any]
    of_leaves: bool = False
    lasts: bool = False

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Any:
        return self.run(*leaves) if self.of_leaves else self.run(*args, **kwargs)


class Jitted:
    """A function under `jit`: called like the function it came from.

    The first call traces and optimizes; later calls with the same shapes are those of `jax.jit`. Where sizes vary, by
    `dims` or as calls show, the function is optimized for all of them and run as `dynamic` says. `optimized` lists what
    was optimized so far, the latest last; `report` is the latest one's report.
    """

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        self._fn = fn
        # Who calls `jax.jit` decides how it compiles: another way to compile is not ours to choose.
        self._target = options.pop("target")
        self._dims = None if dims is None else tuple(dims)
        self._options = options
        self._warned = False
        self._symbolic: dict[Any, Optimized] = {}
        self.optimized: list[Optimized] = []
        self.__wrapped__ = fn
        self.__name__ = getattr(fn, "__name__", "function")
        self.__doc__ = getattr(fn, "__doc__", None)
        self._traced_once = _as_signature_of(fn, self._trace)
        self._jitted = jax.jit(self._traced_once, **jit)
        self._written = jax.jit(fn, **jit)
        static, donated = _names(fn, jit, "static"), _names(fn, jit, "donate")
        self._static, self._donated = static or frozenset[str](), donated or frozenset[str]()
        # What else `jax.jit` is told (shardings, ...) is about the very arrays of a call.
        unknown = static is None or donated is None or bool(set(jit) - _OF_ARGUMENTS)
        self._exact = options["dynamic"] == "exact" or unknown
        self._varies = dims is not None
        self._varying: dict[Any, Varying] = {}
        # What runs calls of sizes that were seen, by structure and leaves, of nothing but arrays by these alone; all
        # under the settings of JAX with which they were seen.
        self._settings: Hashable = None
        self._ways: dict[Any, _Way] = {}
        self._of_arrays: dict[tuple[Any, ...], Callable[..., Any]] = {}
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
            if self._of_arrays and not kwargs:
                try:
                    run = self._of_arrays.get(tuple(map(kind_of, args)))
                except NOT_SHOWN:
                    run = None
                if run is not None:
                    return run(*args)
            return self._at_sizes(args, kwargs)
        except OtherSizesError:  # these sizes were the first ones, under other settings of JAX
            self._forget_ways(settings_now())
            return self._at_sizes(args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method of a class, which `jax.jit` may decorate too: `static_argnums=0` makes the instance static."""
        return self if instance is None else MethodType(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(fn).lower`, of the optimized function."""
        return self._as_shaped(self._jitted.lower, args, kwargs)

    def statistics(self) -> Statistics | None:
        """What the function did for sizes that vary, as optimized last; None as long as none do."""
        found = [best for best in self.optimized if isinstance(best, AtCapacity)]
        return found[-1].statistics() if found else None

    def _as_shaped(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for the very shapes of its arguments, whatever others there were."""
        before = getattr(self._local, "as_shaped", False)
        self._local.as_shaped = True
        try:
            return call(*args, **kwargs)
        finally:
            self._local.as_shaped = before

    def _at_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a function whose sizes vary."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        try:
            kinds = tuple(map(kind_of, leaves))
        except NOT_SHOWN:  # a number, a static argument, what JAX traces
            return self._way(args, kwargs).call(args, kwargs, leaves)
        way = self._ways.get((tree, kinds))
        if way is None:
            way = self._way(args, kwargs)
            if way.lasts:
                settings = settings_now()
                if len(self._ways) >= MOST_SHOWN or settings != self._settings:
                    self._forget_ways(settings)
                self._ways[tree, kinds] = way
                if len(leaves) == len(args) and all(map(operator.is_, leaves, args)):
                    self._of_arrays[kinds] = way.run
        return way.call(args, kwargs, leaves)

    def _forget_ways(self, settings: Hashable) -> None:
        self._ways.clear()
        self._of_arrays.clear()
        self._settings = settings

    def _elsewhere(self, settings: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that a function which serves calls under these settings did not serve."""
        now = settings_now()
        if now == settings:
            return self._at_these(*args, **kwargs)
        self._forget_ways(now)
        return self._at_sizes(args, kwargs)

    def _way(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Way:
        """What runs a call of a function whose sizes vary."""
        held, leaves, tree = self._flat(args, kwargs)
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
        def is_fixed(name: str, x: Any) -> bool:
            return name in self._static or not jax.tree_util.tree_leaves(x)

        try:
            with self._lock:
                best, operands = self._of_dims(dims, args, kwargs, is_fixed)
        except Exception:
            self._exact = True  # there the error becomes a warning
            return _Way(self._jitted)
        if not isinstance(best, AtCapacity) or not self._is_for(best, operands):
            return _Way(self._jitted, lasts=not self._static)
        if not kwargs and len(args) == len(operands) and all(map(operator.is_, args, operands)):
            return _Way(best, lasts=True)
        return _Way(lambda *_, **__: best(*operands))

    def _is_for(self, best: Optimized, operands: list[Any]) -> bool:
        """Whether the function of `dims` serves a call. ShapeError, BoundsError where `dims` and options refuse it."""
        given = self._options["bounds"] or {}
        told = frozenset[str]().union(*(r.variables for s in as_statements(self._options["assume"])
                                        for r in read_statement(s)))  # fmt: skip
        sizes = best.sizes_of(*operands)
        # Nothing is said of how small a size may be, and programs are made for sizes from 1 on.
        if any(n == 0 and v not in given and v not in told for v, n in sizes.items()):
            return False
        try:
            return best.is_own(*operands)
        except RelaxEgError:
            raise
        except Exception:  # the function's own, which comes when it is traced for these sizes
            return False

    def _at_these(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._as_shaped(self._jitted, args, kwargs)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[Any], Any]:
        """The static arguments of a call by name; the leaves of all others, and the structure of these."""
        if not self._static:
            return {}, *jax.tree_util.tree_flatten((args, kwargs))
        call = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        held = {n: call.pop(n) for n in self._static & call.keys()}
        return held, *jax.tree_util.tree_flatten(call)

    @property
    def report(self) -> CostReport | None:
        return self.optimized[-1].report if self.optimized else None

    def _trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs while `jax.jit` traces: static arguments are plain values here, the others tracers."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        dynamic = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
        if self._dims is None and not self._exact:
            self._note(args, kwargs)
        try:
            if self._dims is None:
                best, operands = self._of_shapes(leaves, tree, dynamic), [leaves[i] for i in dynamic]
            else:
                best, operands = self._of_dims(self._dims, args, kwargs, lambda _, x: not _is_traced(x))
                if not self._is_for(best, operands):
                    best, operands = self._of_shapes(leaves, tree, dynamic), [leaves[i] for i in dynamic]
        except Exception as e:
            result = self._fn(*args, **kwargs)
            if not self._warned:
                self._warned = True
                text = f"{'' if isinstance(e, RelaxEgError) else 'internal '}{type(e).__name__}: {e}"
                warnings.warn(
                    f"{self.__name__} runs as written under jax.jit; it was not optimized: {text}", stacklevel=2
                )
            return result
        return best.to_jax()(*operands)

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What sizes a function is traced for. OtherSizesError where it was for others, and may vary."""
        held, leaves, tree = self._flat(args, kwargs)
        key = _key(held, tree, leaves)
        with self._lock:
            known = self._varying.get(key)
            if known is None:
                optimize = functools.partial(self._of_varying, held, tree)
                self._varying[key] = Varying(self.__name__, shapes_of(leaves), optimize)
        if known is not None and known.first != shapes_of(leaves) and not getattr(self._local, "as_shaped", False):
            raise OtherSizesError

    def _of_varying(
        self, held: dict[str, Any], tree: Any, specs: list[Any], at: dict[str, int], assume: Sequence[str]
    ) -> Optimized:
        """The function of the arrays that calls give, of specs that have symbolic sizes, of which `assume` holds."""
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
        told = (*as_statements(self._options["assume"]), *assume)
        options: dict[str, Any] = {**self._options, "at": at, "assume": told}
        best = optimize(flat, *specs, target=self._device(), **options)
        places = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
        by_name = places if self._static else {**dict(zip(signature.parameters, places[0], strict=False)), **places[1]}
        self._donate(best, by_name)
        if isinstance(best, AtCapacity):
            settings = settings_now()

            def elsewhere(*xs: Any) -> Any:
                return self._elsewhere(settings, *arguments(xs))

            best.serve_under(settings, elsewhere)
        self.optimized.append(best)
        self._forget_ways(settings_now())
        return best

    def _donate(self, best: Optimized, places: Mapping[str, Any]) -> None:
        """Lets calls use up what is donated. `places`: the parameters' numbers, as each argument is structured."""
        if isinstance(best, AtCapacity) and self._donated:
            best.donate(jax.tree_util.tree_leaves([x for n, x in places.items() if n in self._donated]))

    def _device(self) -> Profile:
        return replace(here() if self._target is None else profile(self._target), modes=())

    def _of_shapes(self, leaves: list[Any], tree: Any, dynamic: list[int]) -> Optimized:
        """The function of the arrays among `leaves`, the others as they are, optimized for these very shapes."""

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
        self.optimized.append(optimize(flat, *specs, target=self._device(), **self._options))
        return self.optimized[-1]

    def _of_dims(
        self, dims: tuple[Any, ...], args: Any, kwargs: Any, is_fixed: Callable[[str, Any], bool]
    ) -> tuple[Optimized, list[Any]]:
        """The function of the arguments that have arrays in them, the others (static ones, None) as they are, optimized
        for the sizes `dims` tells; and those arguments. `is_fixed`: tells the others, by name and value."""
        signature = inspect.signature(self._fn)
        call = signature.bind(*args, **kwargs).arguments
        specs = signature.bind_partial(*dims).arguments
        fixed = {n: x for n, x in call.items() if is_fixed(n, x)}
        taken = {n: x for n, x in call.items() if n not in fixed}
        held, structure = jax.tree_util.tree_flatten(fixed)
        # 1, True and 1.0 are equal in Python.
        key = (structure, tuple((type(x), x) for x in held), jax.tree_util.tree_structure(taken), settings_now())
        if key not in self._symbolic:
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
            self._donate(best, dict(zip(taken, places, strict=True)))
            if isinstance(best, AtCapacity):
                settings = settings_now()

                def elsewhere(*xs: Any) -> Any:
                    return self._elsewhere(settings, *arguments(xs))

                best.serve_under(settings, elsewhere)
            self._symbolic[key] = best
            self.optimized.append(best)
        return self._symbolic[key], list(taken.values())

    def __repr__(self) -> str:
        return f"<relax_eg.jit of {self.__name__}>"


def _as_signature_of(fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` under the signature of `fn`, which `jax.jit` needs to resolve names of static and donated arguments."""

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return traced


@accepts(
    **{k: v for k, v in KINDS.items() if k != "numerics"},  # a search that fails warns, and the function runs
    fn=Kind(lambda x: x is None or callable(x), "a function"),
    dims=of("a list of specs, one for each argument,", list, tuple) | NONE,
)
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    dims: Sequence[Any] | None = None,
    rules: RuleSet | None = None,
    target: str | Profile | None = None,
    at: Sizes | Sequence[Sizes] | None = None,
    bounds: Bounds | None = None,
    assume: str | Sequence[str] = (),
    numerics: Numerics = "reassociate",
    budget: Budget | None = None,
    cache: bool = True,
    dynamic: Dynamic = "auto",
    capacities: Capacities = POWERS,
    executables: int = EXECUTABLES,
    background: bool = False,
    trust: bool = False,
    **jit_options: Any,
) -> Any:
    """A drop-in for `jax.jit` that optimizes: `fast = rx.jit(fn)` or `@rx.jit(dims=["b s 768"])`.

    `jit_options` (`static_argnums`, `donate_argnames`, ...) are those of `jax.jit`. With `dims`, one spec per argument
    (anything for a static one), the function is optimized once for symbolic sizes; without, once for the shapes of the
    first call, and once more when others come: what changed is then symbolic (`docs/dynamic.md`). With
    `dynamic="exact"` each combination of shapes is optimized and compiled, as `jax.jit` compiles; so is what is traced,
    and what is called with other `jit_options` than static and donated arguments. A combination of sizes runs what
    was optimized for all only after the function, traced for it, was found to be that program; others have executables
    of their own. `trust=True` leaves this out: whoever says it promises it. It composes with jit, grad, vmap.
    Where the optimizer fails it warns once and runs `fn` as written. The other options are those of `optimize`.
    """
    options: dict[str, Any] = {
        "rules": rules, "target": target, "at": at, "bounds": bounds, "assume": assume, "numerics": numerics,
        "budget": budget, "cache": cache, "dynamic": dynamic, "capacities": capacities, "executables": executables,
        "background": background, "trust": trust,
    }  # fmt: skip
    if fn is None:
        return functools.partial(jit, dims=dims, **options, **jit_options)
    # What is wrong with these is said where they are written; what depends on sizes' names, at the first call.
    read_policy("jit", list(capacities) if isinstance(capacities, Mapping) else ["n"], Scope({"n": (1, 1)}), dynamic,
                capacities, executables, background)  # fmt: skip
    if dims is None and isinstance(capacities, Mapping):
        raise OptionError(
            f"jit: capacities={shown(capacities)} names sizes, and without dims there are no names; pass dims"
        )
    return Jitted(fn, dims, options, jit_options)


def _is_traced(x: Any) -> bool:
    return any(isinstance(v, Tracer) for v in jax.tree_util.tree_leaves(x))


def _key(held: dict[str, Any], tree: Any, leaves: list[Any]) -> Any:
    # 1, True and 1.0 are equal in Python.
    return tuple((n, type(x), x) for n, x in sorted(held.items())), tree, kinds_of(leaves), settings_now()


def _names(fn: Callable[..., Any], jit: dict[str, Any], what: str) -> frozenset[str] | None:
    """The arguments that `jax.jit` is to take as static, or donated; None where they cannot be told."""
    named, numbered = jit.get(f"{what}_argnames") or (), jit.get(f"{what}_argnums")
    names = {named} if isinstance(named, str) else set(named)
    numbers = [] if numbered is None else [numbered] if isinstance(numbered, int) else list(numbered)
    try:
        parameters = list(inspect.signature(fn).parameters)
        names |= {parameters[i] for i in numbers}
    except (TypeError, ValueError, IndexError):
        return frozenset[str]() if not names and not numbers else None
    return frozenset(names) if names <= set(parameters) else None
