"""`Whole`: each call runs one XLA program, which `jax.jit` compiles for the shapes of its arguments."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.bound import BoundFamily, other_program
from relax_eg.backend.call_keys import MOST_KEYS, NO_KEY, is_tracing
from relax_eg.backend.executables import Executables
from relax_eg.backend.family import Family
from relax_eg.backend.runtime import UNSEEN, Strategy
from relax_eg.errors import OtherProgramError
from relax_eg.ir.expr import Expr
from relax_eg.memo import Memo

WRITTEN = -1  # given: stands for the function as written, in place of the index of a variant


class Whole(Strategy):
    """Runs calls as one XLA program, at exact sizes.

    - `bound_family`: the programs, with the parameters that are bound.
    - `prepared_values`: for each of these programs, the values prepared for it.
    """

    def __init__(
        self,
        family: Family,
        executables: Executables | None = None,
        indices: Sequence[int] = (),
        weights: Sequence[Any] = (),
    ) -> None:
        """`weights`: the arrays bound to the parameters at `indices`. `executables`: None for a new cache."""
        program = family.programs[0]
        self.program, self.family = program, family
        self.executables = executables or self.new_executables(program)
        checked = program.check(weights, indices) if indices else []
        b = BoundFamily(family, {i: x.shape for i, x in zip(indices, checked, strict=True)})
        self.bound_family, self.names = b, b.names
        self._weight_refs = [_weak_getter(x) for x in weights]
        made: dict[Expr, Any] = {}
        self.prepared_values = [p.prepare(checked, b.fixed, made) for p in b.programs]
        # A program is passed only the arrays prepared for it: each array of a call costs time. Where nothing is bound,
        # one `jax.jit` serves all variants.
        self._joint = len(b.programs) == 1 or not indices
        self.prepared = self.prepared_values[0] if self._joint else tuple(self.prepared_values)
        whole = [None] if self._joint else range(len(b.programs))
        self._whole = [self.executables.jit(self._program_function(i)) for i in whole]
        self._options = any(v.compiler_options for v in family.variants)
        self._compiled = Memo[int, Any](len(family.variants))  # by variant, where variants have compiler options
        self._keywords = b.keywords
        # Serves all calls whose arguments are split as the specs were, if there is only one executable for each shape.
        self._only = self._whole[0] if self._joint and not self._options else None
        self._known = Memo[Any, int](MOST_KEYS)  # by key: the variant that serves such calls, or `WRITTEN`

    def _program_function(self, which: int | None) -> Callable[..., Any]:
        """A program as a function of its prepared values and the other arguments. None: the one that serves them."""
        b = self.bound_family

        def run(prepared: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
            return b.run_main(prepared, b.call_arrays(args, kwargs), which)

        run.__name__ = self.program.name
        return run

    def call_known_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (kwargs or self._keywords) and kwargs.keys() != self._keywords:
            return UNSEEN
        run, prepared = self._only, self.prepared_values[0]
        if run is None:
            try:
                found = self._known.get(self.bound_family.size_key(args, kwargs))
            except NO_KEY:
                return UNSEEN
            if found is None or found == WRITTEN:
                return UNSEEN
            run, prepared = self.executable(found)
        try:
            return run(prepared, *args, **kwargs)
        except OtherProgramError:
            self._only = None  # from now on each call has to choose
            return UNSEEN

    call_known = call_known_whole

    def flat_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        b = self.bound_family
        return self.program.convert_arguments(b.call_arrays(args, kwargs), b.call_indices)

    def call_arguments(self, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return jax.tree_util.tree_unflatten(self.bound_family.tree, arguments)

    def run_whole(self, arguments: list[Any]) -> Any:
        args, kwargs = self.call_arguments(arguments)
        if self._only is not None:
            result = self.call_known_whole(args, kwargs)
            if result is not UNSEEN:
                return result
        variant = self._variant(args, kwargs, arguments)
        if variant == WRITTEN:
            return self._as_written(arguments)
        run, prepared = self.executable(variant)
        return run(prepared, *args, **kwargs)

    run = run_whole

    def _variant(self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Sequence[Any]) -> int:
        """The index of the variant for these arguments; `WRITTEN` where the function is another program at their sizes
        than the one its weights were prepared for. ShapeError or BoundsError for shapes that do not fit."""
        b, shapes = self.bound_family, [jax.numpy.shape(x) for x in arguments]
        try:
            key: Any = b.size_key(args, kwargs)
        except NO_KEY:  # tracers, among others
            key = tuple(shapes)
        found = self._known.get(key)
        if found is None:
            sizes = b.sizes(shapes)
            found = self.family.variant_at(sizes)
            if (
                b.indices
                and not b.variant_program(found).is_as_written
                and self.program.difference_at(sizes) is not None
            ):
                found = WRITTEN
            self._known[key] = found
        return found

    def executable(self, variant: int) -> tuple[Any, tuple[Any, ...]]:
        """The function `(prepared, *others)` that runs a variant, under `jax.jit`, and the values prepared for it."""
        which = self.bound_family.program_indices[variant]
        if not self._options or is_tracing():  # under a trace, the outer `jit` decides on the options
            return self._whole[0 if self._joint else which], self.prepared_values[which]
        options = dict(self.family.variants[variant].compiler_options) or None
        run = self._compiled.get(variant) or self._compiled.get_or_make(
            variant, lambda: self.executables.jit(self._program_function(which), compiler_options=options)
        )
        return run, self.prepared_values[which]

    def _as_written(self, arguments: Sequence[Any]) -> Any:
        """Calls the function as written. OtherProgramError where its weights were garbage-collected."""
        b, p = self.bound_family, self.program
        sizes = b.sizes([jax.numpy.shape(x) for x in arguments])
        weights = [x() for x in self._weight_refs]
        if any(x is None for x in weights):
            raise other_program(p.name, sizes, p.difference_at(sizes) or "")
        held, rest = iter(weights), iter(arguments)
        return self._written(p.check([next(held if i in b.indices else rest) for i in range(len(p.params))]))

    @functools.cached_property
    def _written(self) -> Any:
        return self.executables.jit(self.program.run_as_written)

    def check_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        return self.bound_family.check(arguments)

    def run_as_written(self, checked: list[Any]) -> Any:
        return jax.jit(lambda *xs: self.program.run_as_written(list(xs)))(*checked)

    def bind(self, indices: Sequence[int], weights: list[Any]) -> Whole:
        return Whole(self.family, self.executables, indices, weights)

    def to_jax(self) -> Callable[..., Any]:
        b, program = self.bound_family, self.program

        def run(prepared: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            others = self.flat_arguments(args, kwargs)
            with program.width_context():
                return b.run_main(prepared, others)

        def optimized(*args: Any, **kwargs: Any) -> Any:
            return run((), args, kwargs)

        def ready(prepared: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
            return run(prepared, args, kwargs)

        found = ready if b.indices else optimized
        found.__name__ = program.name
        return found


class BindsWeights:
    """Serves calls with all arguments of a function with declared weights.

    What depends on the weights alone is computed at the first call with these very arrays, and kept for the next.
    """

    def __init__(self, strategy: Strategy, indices: Sequence[int]) -> None:
        """`indices`: the places of the weights among the parameters."""
        self._strategy, self._indices = strategy, tuple(indices)
        self._places, self._tree = _places_of(strategy.program.in_tree, indices)
        self._latest: tuple[Strategy, list[weakref.ref[Any]]] | None = None  # bound to the weights of the latest call

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        places, latest = self._places, self._latest
        if latest is None or places is None or kwargs or len(args) <= places[-1]:
            return UNSEEN
        held, tree = jax.tree_util.tree_flatten([args[i] for i in places])
        if tree != self._tree or not _are_same_arrays(latest[1], held):
            return UNSEEN
        return latest[0].call_known(tuple([x for i, x in enumerate(args) if i not in places]), {})

    def run(self, arguments: list[Any]) -> Any:
        held = [arguments[i] for i in self._indices]
        # Identity is a safe key for immutable arrays only: numpy arrays may change, and tracers end with their trace.
        if any(not isinstance(x, jax.Array) or isinstance(x, Tracer) for x in held):
            return self._strategy.run(arguments)
        latest = self._latest
        if latest is None or not _are_same_arrays(latest[1], held):
            bound = self._strategy.bind(self._indices, held)
            latest = self._latest = bound, [weakref.ref(x) for x in held]
        return latest[0].run([x for i, x in enumerate(arguments) if i not in self._indices])


def _weak_getter(x: Any) -> Callable[[], Any]:
    """A function that returns `x`, or None once an array `x` is not referenced elsewhere.

    So weights are not held twice. A number, which has no weak references, is always returned.
    """
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x


def _places_of(tree: Any, weights: Sequence[int]) -> tuple[tuple[int, ...] | None, Any]:
    """The places of the weights among the positional arguments of calls with structure `tree`, and the structure of the
    list of these arguments. (None, None) unless these arguments consist of exactly the weights, in order."""
    args, _ = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    places = [i for i, a in enumerate(args) if not set(jax.tree_util.tree_leaves(a)).isdisjoint(weights)]
    given = [args[i] for i in places]
    if not places or jax.tree_util.tree_leaves(given) != list(weights):
        return None, None
    return tuple(places), jax.tree_util.tree_structure(given)


def _are_same_arrays(refs: Sequence[weakref.ref[Any]], arrays: Sequence[Any]) -> bool:
    """Whether `refs` refer to exactly these arrays, by identity."""
    return len(refs) == len(arrays) and all(map(operator.is_, [r() for r in refs], arrays))
