"""`Jitted`: a function under `jit`, optimized while `jax.jit` traces it, or for sizes that vary."""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.calls.call_keys import MOST_KEYS, NO_KEY, kind_of
from relax_eg.backend.calls.executables import FullError, Jit, executables
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.calls.whole import Whole
from relax_eg.driver.clock.settling import Settle, Settling
from relax_eg.driver.jitting.arguments import (
    Declared,
    Static,
    as_signature_of,
    bound,
    call_key,
    is_traced,
    kind_of_any,
    names_in,
    replaced,
    static_key,
)
from relax_eg.driver.jitting.background import Background, SearchingError, read_search
from relax_eg.driver.jitting.call_path import CallPath, path_of
from relax_eg.driver.jitting.contest import JitContestant, refusing, settling_of_jit
from relax_eg.driver.jitting.face import JitFace
from relax_eg.driver.jitting.thread_marks import is_marked
from relax_eg.driver.jitting.varying import OtherSizesError, Varying, asked_of, shapes_of, spec_of, spec_of_any
from relax_eg.driver.optimize import optimize
from relax_eg.driver.options import without_modes
from relax_eg.dynamic.at_capacity import AtCapacity
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.frontends.specs import NamedSpec, argument_paths
from relax_eg.logs import fallback, raise_if_exhausted
from relax_eg.memo import Memo
from relax_eg.reports import CostReport
from relax_eg.settings import disable_jit, settings_now
from relax_eg.shapes.relation import read_statement, split_bounds

# Options of `jax.jit` that mean the same at all sizes.
_OF_ARGUMENTS = frozenset(("static_argnums", "static_argnames", "donate_argnums", "donate_argnames"))


class Jitted(JitFace):
    """A function under `jit`, called like the function it wraps.

    The first call traces and optimizes; later calls with the same shapes run under `jax.jit`. If sizes vary, because of
    `dims` or because calls show it, the function is optimized for all of them and run as `dynamic` says. `optimized`
    lists the latest results, at most `executables` of them, the newest last; `report` is the newest one's report.
    """

    def __init__(
        self, fn: Callable[..., Any], dims: Sequence[Any] | None, options: dict[str, Any], jit: dict[str, Any]
    ) -> None:
        super().__init__(fn, dims, options, jit)
        options = dict(options)
        # The caller of `jax.jit` decides how it compiles, so no compilation mode is chosen here.
        self._target = options.pop("target")
        self._dims = None if dims is None else tuple(dims)
        static, donated = names_in(fn, jit, "static"), names_in(fn, jit, "donate")
        self._static, self._donated = static or frozenset[str](), donated or frozenset[str]()
        weights, facts = options.pop("weights"), options.pop("facts")
        self._declared = Declared(fn, self.__name__, weights, facts, self._static, self._donated)
        self._background = Background(read_search(options.pop("search")))
        self._options = options
        self._warned = False
        # `executables` also bounds how many functions optimized for single sizes or static arguments are kept.
        self._executables = executables({"executables": options["dynamic"].executables})
        self._found = Memo[Any, Optimized](self._executables.limit)  # by what they were optimized for
        self.optimized: list[Optimized] = []
        self._traced_once = as_signature_of(fn, self._trace)
        self._jitted = self._executables.jit(self._traced_once, **jit)
        self._written = self._executables.jit(fn, **jit)
        # What runs the function optimized for the very shapes of a call.
        self._exactly: Any = self._exactly_once_searched if self._background.is_on else self._jitted
        self._settle, self._measured, self._settled_rows = Settle.of(options["measure"]), (), ()
        self._settling: Settling[JitContestant] | None = None
        # What runs calls of the first sizes, and their key: the optimized function, or, where that was found slower or
        # is the one as written, `_rival`.
        self._first: Any = self._jitted
        self._first_key: Any = None
        self._refused = False  # whether `_first` refused a call
        self._straight: Jit | None = None  # what calls begin with: what ran the last one, as long as it refuses none
        # Other options of `jax.jit` (shardings, ...) are about the concrete arrays of a call.
        unknown = static is None or donated is None or bool(set(jit) - _OF_ARGUMENTS)
        self._exact = options["dynamic"].mode == "exact" or unknown
        self._prepares = not unknown
        self._varies = dims is not None
        self._varying = Memo[Any, Varying](self._executables.limit)
        # How to run calls of sizes seen before: of arrays alone by their kinds, of others by tree structure and kinds
        # of the leaves. Valid under the settings of JAX in `_settings`. What such a call finds here is an optimized
        # function, which has a table of known calls of its own; nothing declares which arrays tell the sizes.
        self._settings: Hashable = None
        self._paths = Memo[Any, CallPath](MOST_KEYS)
        self._only_arrays = self._has_numbers = False  # whether some calls gave arrays as all arguments, or numbers
        self._local = threading.local()
        self._lock = threading.RLock()
        # The function as written, which refuses other sizes and settings than those for which it was compiled.
        self._rival = self._executables.jit(refusing(fn, self._local), **jit)
        if self._settle.mode != "off" and not unknown:
            self._settling = settling_of_jit(
                self._run, self._rival, self._local, self._settle, self._settle_key,
                lambda: self.optimized[-1] if self.optimized else None, self._settled, self._search, self._background,
            )  # fmt: skip

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if disable_jit.value:
            return self._fn(*args, **kwargs)
        straight = self._straight
        if straight is not None:
            try:
                return straight.jitted(*args, **kwargs)
            except (OtherSizesError, FullError):
                self._straight = None
        settling = self._settling  # another thread may end it
        if settling is not None:
            return settling(args, kwargs)
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._exact:
            return self._run_first(args, kwargs)
        if not self._varies:
            try:
                return self._run_first(args, kwargs)
            except OtherSizesError:
                pass
            self._varies = True
        try:
            if self._only_arrays and not kwargs:
                try:
                    path = self._paths.get(tuple(map(kind_of, args)))
                except NO_KEY:
                    path = None
                if path is not None:
                    return path.run(*args)
            return self._at_sizes(args, kwargs)
        except OtherSizesError:  # these sizes were the first ones, under other settings of JAX
            self._forget_paths(settings_now())
            return self._at_sizes(args, kwargs)

    def _run_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of the first sizes. OtherSizesError for other sizes."""
        first = self._first
        if first is not self._jitted and (not self._refused or self._are_first(args, kwargs)):
            try:
                return self._run_by(first, args, kwargs)
            except OtherSizesError:
                self._refused = True
        return self._run_by(self._exactly, args, kwargs)

    def _run_by(self, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call. The next ones begin with what ran this one, where nothing is left to be found out."""
        result = run(*args, **kwargs)
        if self._settling is None and not self._varies and not self._refused and isinstance(run, Jit):
            self._straight = run
        return result

    def _run_known(self, first: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call that is known to be one of those that `first` serves, if JAX still has what it compiled."""
        try:
            return first(*args, **kwargs)
        except OtherSizesError:
            return self._exactly(*args, **kwargs)

    def _are_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether arguments are like those of the calls that `_first` serves."""
        try:
            return self._first_key == self._settle_key(args, kwargs)
        except NO_KEY:
            return False

    def _exactly_once_searched(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function optimized for the very shapes of a call; as written while that is searched for."""
        return (self._jitted if self._is_searched(args, kwargs) else self._written)(*args, **kwargs)

    def _is_searched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether `_jitted` may run a call: it was compiled for such arguments, or the call waits for that."""
        try:
            key = self._settle_key(args, kwargs)
        except NO_KEY:
            return True
        as_shaped = is_marked(self._local, "as_shaped")
        given, named = jax.tree_util.tree_map(spec_of_any, (args, kwargs))

        def make() -> None:
            lower = self._jitted.lower
            (self._as_shaped(lower, given, named) if as_shaped else lower(*given, **named)).compile()

        return self._background.has((key, as_shaped), make)

    def _search(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable) -> None:
        """Makes what calls with arguments of these shapes and dtypes need. `key`: their key (`_settle_key`)."""
        if self._exact or not self._varies:
            self._background.make((key, False), lambda: self._jitted.lower(*args, **kwargs).compile())
        else:
            with self._background.waiting():
                self._path(args, kwargs)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until what is searched for in the background was found; returns whether it was, within `seconds`."""
        return self._background.wait(seconds)

    def _settled(self, faster: Any) -> None:
        """Takes note of what runs calls of the first sizes from now on: a `jax.jit`; None: the optimized function."""
        assert self._settling is not None
        over, self._settling = self._settling, None
        self._measured, self._settled_rows = over.rows, over.settled
        if faster is not None:
            self._first, self._first_key = faster, over.first_key
        self._forget_paths(settings_now())  # of the first sizes

    def _settle_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        held, leaves, tree = self._split(args, kwargs)
        try:
            return tree, static_key(held), tuple([kind_of_any(x) for x in leaves])
        except OverflowError:
            raise LookupError from None

    def statistics(self) -> Statistics | None:
        """Statistics of the newest function optimized for sizes that vary, else of the newest one, with what the first
        calls settled; None before the first call."""
        if not self.optimized:
            return None
        varying = [best for best in self.optimized if isinstance(best.strategy, AtCapacity)]
        found, settling = (varying or self.optimized)[-1].statistics(), self._settling
        rows = self._settled_rows if settling is None else settling.settled
        is_settling = found.is_settling or (settling is not None and settling.is_begun)
        return replace(found, settled=(*rows, *found.settled), is_settling=is_settling)

    def _at_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call of a function whose sizes vary."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        try:
            kinds = tuple(map(kind_of_any if self._has_numbers else kind_of, leaves))
        except (*NO_KEY, OverflowError):  # a number, a static argument or a tracer
            self._has_numbers = not self._static
            return self._path(args, kwargs).call(args, kwargs, leaves)
        only_arrays = not kwargs and len(leaves) == len(args) and all(map(operator.is_, leaves, args))
        key = kinds if only_arrays else (tree, kinds)
        path = self._paths.get(key)
        if path is None:
            path = self._keep_path(key, self._path(args, kwargs))
            self._only_arrays |= only_arrays
        return path.call(args, kwargs, leaves)

    def _keep_path(self, key: Any, path: CallPath) -> CallPath:
        if path.is_reusable:
            if (settings := settings_now()) != self._settings:
                self._forget_paths(settings)
            self._paths[key] = path
        return path

    def _forget_paths(self, settings: Hashable) -> None:
        self._paths.clear()
        self._settings = settings

    def _elsewhere(self, settings: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that a function made under `settings` did not serve."""
        now = settings_now()
        if now == settings:
            return self._at_exact_shapes(*args, **kwargs)
        self._forget_paths(now)
        return self(*args, **kwargs)

    def _path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPath:
        """How to run a call of a function whose sizes vary."""
        try:
            return self._found_path(args, kwargs)
        except SearchingError:
            return CallPath(self._written)

    def _found_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPath:
        held, leaves, tree = self._split(args, kwargs)
        if any(isinstance(x, Tracer) for x in leaves):
            return CallPath(self._at_exact_shapes)
        if self._dims is not None:
            return self._path_by_dims(self._dims, args, kwargs)
        shapes = shapes_of(leaves)
        varying = self._varying.get(call_key(held, tree, leaves))
        if varying is None:
            return CallPath(self._at_exact_shapes)
        if shapes == varying.first:
            own = self._first is not self._jitted and self._are_first(args, kwargs)
            run = functools.partial(self._run_known, self._first) if own else self._exactly
            return CallPath(run, is_reusable=not self._static)
        best = self._best_of(varying, shapes, leaves)
        if best is None:
            return (
                CallPath(self._at_exact_shapes, is_reusable=not self._static)
                if varying.is_hot(shapes)
                else CallPath(self._written)
            )
        if self._static:
            return CallPath(lambda *_, **__: best(*leaves))
        return CallPath(best, of_leaves=True, is_reusable=True)

    def _best_of(self, varying: Varying, shapes: Any, leaves: list[Any]) -> Optimized | None:
        """`varying.best_for`. SearchingError while it is searched for in the background."""
        if not varying.is_known(shapes):
            self._background.need((varying, shapes), lambda: varying.best_for(shapes, leaves))
        return varying.best_for(shapes, leaves)

    def _path_by_dims(self, dims: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPath:
        try:
            best, given, named = self._optimize_dims(dims, args, kwargs, self._declared.is_constant, False)
        except SearchingError:
            raise
        except Exception as e:
            raise_if_exhausted(e)
            self._exact = True  # tracing turns the error into a warning
            return CallPath(self._exactly)
        if not isinstance(best.strategy, AtCapacity) or not self._serves(best, given, named):
            return CallPath(self._exactly, is_reusable=not self._static)
        return path_of(best, given, named, args, kwargs)

    def _serves(self, best: Optimized, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the function of `dims` serves a call. ShapeError, BoundsError if `dims` and the options reject it."""
        ranges, statements = split_bounds(self._options["bounds"])
        constrained = frozenset[str]().union(*(r.variables for s in statements for r in read_statement(s)))
        sizes = best.sizes_of(*args, **kwargs)
        # Without bounds on it, a size may be 0, but programs are made for sizes from 1 on.
        if any(n == 0 and v not in ranges and v not in constrained for v, n in sizes.items()):
            return False
        try:
            return best.is_own(*args, **kwargs)
        except RelaxEgError:
            raise
        except Exception as e:  # the function's own error, raised again when it is traced for these sizes
            raise_if_exhausted(e)
            return False

    def _at_exact_shapes(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._as_shaped(self._exactly, args, kwargs)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Static, list[Any], Any]:
        """The static arguments of a call by position or name; the leaves of all others, and the tree structure of a
        call with None in place of the static ones."""
        if not self._static:
            return {}, *jax.tree_util.tree_flatten((args, kwargs))
        names = enumerate(zip(args, self._declared.parameters, strict=False))
        held: Static = {i: x for i, (x, name) in names if name in self._static}
        held |= {name: kwargs[name] for name in sorted(self._static & kwargs.keys())}
        return held, *jax.tree_util.tree_flatten(replaced(args, kwargs, dict.fromkeys(held)))

    def _leaf_paths(self, held: Static, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str]]:
        """Argument and path of each leaf of a call, without those of its static arguments."""
        return argument_paths(self._fn, *replaced(args, kwargs, dict.fromkeys(held)))

    @property
    def report(self) -> CostReport | None:
        if not self.optimized:
            return None
        report = self.optimized[-1].report
        settling = self._settling
        measured = self._measured if settling is None else settling.rows
        return replace(report, measured=measured) if measured and len(self.optimized) == 1 else report

    def _trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Called while `jax.jit` traces: static arguments are plain values, the others tracers."""
        if self._dims is None and not self._exact:
            self._record_sizes(args, kwargs)
        try:
            best, given, named = self._for_trace(args, kwargs)
        except Exception as e:
            raise_if_exhausted(e)
            result = self._fn(*args, **kwargs)
            self._warn("runs as written under jax.jit; it was not optimized", e)
            return result
        return best.to_jax()(*given, **named)

    def _warn(self, instead: str, error: Exception) -> None:
        """Warns once that something slower runs."""
        if not self._warned:
            self._warned = True
            fallback(f"{self.__name__} {instead}", error, warned=True)

    def _for_trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Optimized, tuple[Any, ...], Any]:
        """The function for a call that `jax.jit` traces, and its arguments."""
        if self._dims is not None:
            best, given, named = self._optimize_dims(self._dims, args, kwargs, lambda _, x: not is_traced(x), False)
            if self._serves(best, given, named):
                return best, given, named
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        arrays = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
        # The other leaves are constants. No tracer outlives the trace.
        held: Static = {i: x for i, x in enumerate(leaves) if not isinstance(x, Tracer)}
        paths = argument_paths(self._fn, args, kwargs)

        def call(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full = {**held, **dict(zip(arrays, xs, strict=True))}
            return jax.tree_util.tree_unflatten(tree, [full[i] for i in range(len(full))])

        operands = [leaves[i] for i in arrays]
        specs = [NamedSpec(*paths[i], spec_of(jax.typeof(leaves[i]).shape, leaves[i])) for i in arrays]
        return self._optimize_flat(call, specs, False), tuple(operands), {}

    def _record_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the sizes that a function is traced for. OtherSizesError if it was traced for others before and sizes
        may vary."""
        held, leaves, tree = self._split(args, kwargs)
        key = call_key(held, tree, leaves)
        with self._lock:
            known = self._varying.get(key)
            if known is None:
                optimize = functools.partial(
                    self._optimize_arrays, held, tree, self._leaf_paths(held, args, kwargs), False
                )
                self._varying[key] = Varying(self.__name__, shapes_of(leaves), optimize)
        if known is not None and known.first != shapes_of(leaves) and not is_marked(self._local, "as_shaped"):
            raise OtherSizesError

    def _optimize_arrays(
        self,
        held: Static,
        tree: Any,
        paths: Sequence[tuple[str, str]],
        prepares: bool,
        specs: Sequence[Any],
        *asked: Any,
    ) -> Optimized:
        """The function of a call's arrays, optimized for array specs.

        - `held`, `tree`: the static arguments and the structure of the call, as `_split` returns them.
        - `paths`: argument and path of each array.
        - `prepares`: whether its weights are prepared.
        - `asked`: as of `asked_of`.
        """

        def call(xs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = jax.tree_util.tree_unflatten(tree, xs)
            return replaced(args, kwargs, held)

        named = [NamedSpec(argument, path, spec) for (argument, path), spec in zip(paths, specs, strict=True)]
        best = self._optimize_flat(call, named, prepares, *asked)
        self._connect(best, lambda *xs: call(xs))
        self._forget_paths(settings_now())
        return best

    def _optimize_flat(
        self,
        call: Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]],
        specs: Sequence[NamedSpec],
        prepares: bool,
        *asked: Any,
    ) -> Optimized:
        """This function as one of flat arrays, optimized. `call`: from the arrays to `(args, kwargs)`. `asked`: as of
        `asked_of`."""

        @functools.wraps(self._fn)
        def flat(*xs: Any) -> Any:
            args, kwargs = call(xs)
            return self._fn(*args, **kwargs)

        flat.__name__ = self.__name__
        flat.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.VAR_POSITIONAL)])  # type: ignore[reportAttributeAccessIssue]
        declared = self._declared.of([spec.argument for spec in specs], prepares)
        of, options = asked_of(flat, {**self._options, **declared}, *asked)
        return self._keep(optimize(of, *specs, target=without_modes(self._target), **options))

    def _connect(self, best: Optimized, call: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        """Lets an optimized function serve calls of this one. `call`: from its arguments to `(args, kwargs)`."""
        strategy, settings = best.strategy, settings_now()
        if not isinstance(strategy, Whole):
            return
        arguments = strategy.program.arguments
        donated = [i for i, a in enumerate(arguments) if a.partition("[")[0] in self._donated]
        if donated:
            best.donate(donated)

        def elsewhere(*args: Any, **kwargs: Any) -> Any:
            return self._elsewhere(settings, *call(*args, **kwargs))

        best.serve_where(lambda: settings_now() == settings, elsewhere)

    def _keep(self, best: Optimized) -> Optimized:
        """Adds a result to `optimized`, drops the oldest beyond the limit, and counts its executables among this
        function's."""
        best.count_among(self._executables)
        self.optimized.append(best)
        del self.optimized[: -self._executables.limit]
        return best

    def _optimize_dims(
        self,
        dims: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_fixed: Callable[[str, Any], bool],
        prepares: bool,
    ) -> tuple[Optimized, tuple[Any, ...], dict[str, Any]]:
        """The function optimized for the sizes in `dims`, and the arguments it takes: those with arrays; the others are
        constants. `is_fixed(name, value)`: whether an argument is one of the others. `prepares`: whether its weights
        are prepared. SearchingError while it is searched for in the background."""
        signature = inspect.signature(self._fn)
        given = signature.bind(*args, **kwargs).arguments
        try:
            specs = signature.bind_partial(*dims).arguments
        except TypeError:
            raise OptionError(
                f"dims has {len(dims)} specs, and {self.__name__}{signature} takes fewer positional arguments; one for "
                "each is accepted"
            ) from None
        fixed = {n: x for n, x in given.items() if is_fixed(n, x)}
        taken = {n: x for n, x in given.items() if n not in fixed}
        remaining = signature.replace(parameters=[p for n, p in signature.parameters.items() if n in taken])
        held, structure = jax.tree_util.tree_flatten(fixed)
        # 1, True and 1.0 are equal in Python.
        constants = tuple((type(x), x) for x in held)
        key = (structure, constants, jax.tree_util.tree_structure(taken), prepares, settings_now())

        def make() -> Optimized:
            missing = [n for n in taken if n not in specs]
            if missing:
                raise OptionError(f"dims has no spec for argument `{missing[0]}`; one for each argument is accepted")

            def call(*xs: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return bound(signature, {**fixed, **remaining.bind(*xs, **named).arguments})

            @functools.wraps(self._fn)
            def of_arrays(*xs: Any, **named: Any) -> Any:
                args, kwargs = call(*xs, **named)
                return self._fn(*args, **kwargs)

            of_arrays.__name__ = self.__name__
            of_arrays.__signature__ = remaining  # type: ignore[reportAttributeAccessIssue]
            described, named = bound(remaining, {n: specs[n] for n in taken})
            declared = self._declared.of([a for a, _ in argument_paths(of_arrays, described, named)], prepares)
            options: dict[str, Any] = {**self._options, **declared, "target": without_modes(self._target)}
            best = optimize(of_arrays, *described, specs=named, **options)
            self._connect(best, call)
            return self._keep(best)

        if key not in self._found:
            self._background.need(key, lambda: self._found.get_or_make(key, make))
        return self._found.get_or_make(key, make), *bound(remaining, taken)
