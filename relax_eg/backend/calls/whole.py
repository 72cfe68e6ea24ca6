"""`Whole`: each call runs one XLA program, which `jax.jit` compiles for the shapes of its arguments."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.calls.bound import BoundFamily, other_program
from relax_eg.backend.calls.call_keys import NO_KEY, SizeKey, UnseenError, is_tracing
from relax_eg.backend.calls.executables import Executables, Jit
from relax_eg.backend.calls.known import KnownCall, KnownCalls, Straight
from relax_eg.backend.calls.program import abstract_array
from relax_eg.backend.calls.runtime import CallPart, CallParts, Place, Strategy
from relax_eg.backend.family import Family
from relax_eg.backend.files.loaded import FromFile, LoadedPrograms
from relax_eg.backend.pallas.choice import Pallas, lowering_through
from relax_eg.ir.expr import Expr
from relax_eg.memo import Memo

WRITTEN = -1  # given: stands for the function as written, in place of the index of a variant
_MOST_SHAPES = 64  # limit: combinations of shapes of bound arrays, each with programs of its own
_NONE: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Whole(Strategy):
    """Runs calls as one XLA program, at exact sizes.

    - `bound_family`: the programs, with the parameters that are bound.
    - `prepared_values`: for each of these programs, the values prepared for it.
    - `known`: the calls that are known.
    - `serves_all`: whether one `jax.jit` may serve all calls, without a look at their sizes.
    """

    serves_all = True

    def __init__(
        self,
        family: Family,
        executables: Executables | None = None,
        shapes: Mapping[int, tuple[int, ...]] = _NONE,
        pallas: Pallas | None = None,
    ) -> None:
        """`shapes`: those of the arrays that will be bound, by the places of their parameters.

        `executables`: None for a new cache. `pallas`: chooses the tensor programs that are lowered through Pallas;
        None: none.
        """
        program = family.programs[0]
        self.program, self.family = program, family
        self.executables = executables or self.new_executables(program)
        b = BoundFamily(family, shapes, pallas)
        self._pallas = pallas
        self.bound_family, self.names = b, b.names
        self._weight_refs: list[Callable[[], Any]] = []
        self._takes_prepared = bool(b.indices)
        self.known = KnownCalls(self.key_function(), b.keywords)
        self._use_prepared([()] * len(b.programs))
        # By shapes of the bound arrays: what all bindings of such arrays share, among it what is compiled.
        self._by_shapes = Memo[tuple[Any, ...], Whole](_MOST_SHAPES)
        self._elsewhere: Callable[..., Any] | None = None
        self._donated: Sequence[int] = ()
        # A program is passed only the arrays prepared for it: each array of a call costs time. Where nothing is bound,
        # one `jax.jit` serves all variants.
        self._joint = len(b.programs) == 1 or not b.indices
        self._options = any(v.compiler_options for v in family.variants)
        # By program (None: the one that serves the sizes) and, where variants have compiler options, variant.
        self._jits = Memo[tuple[int | None, int | None], Any](2 * len(family.variants))
        self._renew_jits()

    def key_function(self) -> SizeKey:
        """The function whose values are the keys of known calls."""
        return self.bound_family.size_key

    def _use_prepared(self, values: list[tuple[Any, ...]]) -> None:
        self.prepared_values = values
        self.call_known = functools.partial(self.known.call, values)

    def _renew_jits(self) -> None:
        self._jits.clear()
        if self.serves_all and self._joint and not self._options:  # there is only one executable for each shape
            self.known.only = self.executable(0)

    def _jit(self, which: int | None, variant: int | None) -> Any:
        """What runs the program `which`; with its compiler options, for calls that only this variant serves, if one is
        given."""
        b, loaded = self.bound_family, self.executables.loaded
        places = [i for i, parameter in enumerate(b.call_indices) if parameter in self._donated]
        donation = b.donation(places, int(self._takes_prepared)) if places else {}
        options = {} if variant is None else dict(self.family.variants[variant].compiler_options)
        made = self.executables.jit(self._program_function(which), compiler_options=options or None, **donation)
        served = [i for i, w in enumerate(b.program_indices) if which in (None, w) and variant in (None, i)]
        found = [] if loaded is None else loaded.at_exact_sizes(b.indices, served)
        return FromFile([(p, 0) for p in found], made) if found else made

    @property
    def bound(self) -> frozenset[int]:
        return self.bound_family.indices

    def use_loaded(self, loaded: LoadedPrograms) -> None:
        super().use_loaded(loaded)
        self._renew_jits()

    def serve_where(self, is_served: Callable[[], bool], elsewhere: Callable[..., Any]) -> None:
        """Serves calls only where `is_served()` is true under the present settings of JAX.

        Other calls go to `elsewhere`, a function of all arguments, the bound ones among them. To be called before the
        first call.
        """
        self.known.is_served, self._elsewhere = is_served, elsewhere

    def donate(self, parameters: Sequence[int]) -> None:
        """Allows calls to reuse the arrays of these parameters, as `donate_argnums` of `jax.jit` does.

        To be called before the first call.
        """
        self._donated = tuple(parameters)
        self._renew_jits()

    def _program_function(self, which: int | None) -> Callable[..., Any]:
        """A program as a function of its prepared values, if parameters are bound, and the other arguments. None: the
        one that serves them."""
        b, known = self.bound_family, self.known

        def run(*given: Any, **kwargs: Any) -> Any:
            if not known.is_served():
                raise UnseenError
            prepared, args = (given[0], given[1:]) if b.indices else ((), given)
            return b.run_main(prepared, b.call_arrays(args, kwargs), which)

        run.__name__ = self.program.name
        return run

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None:
        found = self.known.only
        if found is None and len(self.family.variants) == 1:
            try:
                found = self.known.at(key())
            except NO_KEY:
                return None
        if found is None or not isinstance(found.run, Jit):
            return None
        if closes or self.known.only is None:
            found.run.close()
        return found.straight(self.prepared_values, found.run.jitted)

    def flat_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        b = self.bound_family
        return self.program.convert_arguments(b.call_arrays(args, kwargs), b.call_indices)

    def call_arguments(self, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return jax.tree_util.tree_unflatten(self.bound_family.tree, arguments)

    def run_whole(self, arguments: list[Any], remembers: bool = True) -> Any:
        """The result of a call of the programs as a whole. `remembers`: whether calls like it are then known."""
        args, kwargs = self.call_arguments(arguments)
        variant = self._variant(arguments)
        if variant == WRITTEN:
            return self._as_written(arguments)
        found = self.executable(variant)
        result = found.run(*found.leading(self.prepared_values), *args, **kwargs)
        if remembers and found.has_options == self._options:
            self.known.put(args, kwargs, found)
        return result

    def run(self, arguments: list[Any]) -> Any:
        try:
            return self.run_whole(arguments)
        except UnseenError:
            return self.run_elsewhere(arguments)

    def run_elsewhere(self, arguments: list[Any]) -> Any:
        """Runs a call that these executables must not serve."""
        if self._elsewhere is None:
            return self.run_whole(arguments, remembers=False)
        args, kwargs = jax.tree_util.tree_unflatten(self.program.in_tree, self._with_bound(arguments))
        return self._elsewhere(*args, **kwargs)

    def _variant(self, arguments: Sequence[Any]) -> int:
        """The index of the variant for these arguments; `WRITTEN` where the function is another program at their sizes
        than the one its weights were prepared for. ShapeError or BoundsError for shapes that do not fit."""
        b = self.bound_family
        sizes = b.sizes([jax.numpy.shape(x) for x in arguments])
        found = self.family.variant_at(sizes)
        if b.indices and not b.variant_program(found).is_as_written and self.program.difference_at(sizes) is not None:
            return WRITTEN
        return found

    def executable(self, variant: int) -> KnownCall:
        """What runs a variant, under `jax.jit`."""
        which = self.bound_family.program_indices[variant]
        has_options = self._options and not is_tracing()  # under a trace, the outer `jit` decides on them
        key = (which, variant) if has_options else (None if self._joint else which, None)
        run = self._jits.get_or_make(key, lambda: self._jit(*key))
        return KnownCall(run, which if self._takes_prepared else None, has_options=has_options)

    def _as_written(self, arguments: Sequence[Any]) -> Any:
        """Calls the function as written. OtherProgramError where its weights were garbage-collected."""
        return self._written(self.program.check(self._with_bound(arguments)))

    def _with_bound(self, arguments: Sequence[Any]) -> list[Any]:
        """The arrays of all parameters. OtherProgramError where those bound were garbage-collected."""
        b, p = self.bound_family, self.program
        weights = [x() for x in self._weight_refs]
        if any(x is None for x in weights):
            sizes = b.sizes([jax.numpy.shape(x) for x in arguments])
            raise other_program(p.name, sizes, p.difference_at(sizes) or "")
        held, rest = iter(weights), iter(arguments)
        return [next(held if i in b.indices else rest) for i in range(len(p.params))]

    @functools.cached_property
    def _written(self) -> Any:
        return self.executables.jit(self.program.run_as_written)

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.known.key(args, kwargs)

    def compile_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        found = self.executable(self._variant(self.flat_arguments(args, kwargs)))
        found.run.lower(*found.leading(self.prepared_values), *args, **kwargs).compile()

    def lowering(self, sizes: Mapping[str, int], place: Place, pallas: Pallas | None) -> CallParts:
        b, variant = self.bound_family, self.family.variant_at(sizes)
        which = b.program_indices[variant]
        prepared, others = self.call_specs(sizes, which, place)
        args, kwargs = jax.tree_util.tree_unflatten(b.tree, others)
        given = (prepared, *args) if self._takes_prepared else args
        return self.one_program(self._program_function(which), given, kwargs, variant, pallas)

    def one_program(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        variant: int,
        pallas: Pallas | None,
        capacities: Mapping[str, int] | None = None,
    ) -> CallParts:
        """What calls run that the program `run` of a variant serves. `args`, `kwargs`: specs of what it takes."""
        name, served = self.program.name, self.family.variants[variant]

        def parts() -> Iterator[CallPart]:
            with lowering_through(pallas):
                lowered = jax.jit(run, keep_unused=True).lower(*args, **kwargs)
            yield CallPart(name, "", lowered, served.compiler_options)

        leaves = jax.tree_util.tree_leaves((args, kwargs))
        return CallParts(parts, lambda: [(name, leaves)], served.chosen is None, variant, capacities=capacities or {})

    def call_specs(self, sizes: Mapping[str, int], which: int, place: Place) -> tuple[tuple[Any, ...], list[Any]]:
        """Specs of the values prepared for a program and of the other arguments of a call, each given to `place`."""
        b, params = self.bound_family, self.program.params

        def spec(i: int) -> Any:
            tensor = params[i].tensor
            shape = [int(d.evaluate(sizes)) for d in tensor.shape or ()]
            return place(abstract_array(tensor, shape, self.program.weak_in[i]))

        weights = [spec(i) for i in sorted(b.indices)]
        prepared = jax.eval_shape(lambda *given: b.programs[which].prepare(given, b.fixed, {}), *weights)
        return jax.tree.map(place, prepared), [spec(i) for i in b.call_indices]

    def check_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        return self.bound_family.check(arguments)

    def run_as_written(self, checked: list[Any]) -> Any:
        return jax.jit(lambda *xs: self.program.run_as_written(list(xs)))(*checked)

    def for_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> Whole:
        """The same strategy for bound arrays of these shapes, by the places of their parameters."""
        return Whole(self.family, self.executables, shapes, self._pallas)

    def bind(self, indices: Sequence[int], weights: list[Any]) -> Whole:
        # Values prepared while JAX traces something else belong to the process, not to that trace.
        concrete = not any(isinstance(x, Tracer) for x in weights)
        with jax.ensure_compile_time_eval() if concrete else nullcontext():
            checked = self.program.check(weights, indices)
            shapes = {i: x.shape for i, x in zip(indices, checked, strict=True)}
            made = copy.copy(self.sharing(shapes))
            made._weight_refs = [_weak_getter(x) for x in weights]
            b, new = made.bound_family, dict[Expr, Any]()
            made._use_prepared([p.prepare(checked, b.fixed, new) for p in b.programs])
            made.prepared = made.prepared_values[0] if made._joint else tuple(made.prepared_values)
        return made

    def sharing(self, shapes: Mapping[int, tuple[int, ...]]) -> Whole:
        """What all bindings of arrays of these shapes share, by the places of their parameters. It serves the same
        calls and reuses the same arguments as this strategy."""
        return self._by_shapes.get_or_make(tuple(sorted(shapes.items())), lambda: self._configured(shapes))

    def _configured(self, shapes: Mapping[int, tuple[int, ...]]) -> Whole:
        made = self.for_shapes(shapes)
        made.known.is_served, made._elsewhere = self.known.is_served, self._elsewhere
        if self._donated:
            made.donate(self._donated)
        return made

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


def _weak_getter(x: Any) -> Callable[[], Any]:
    """A function that returns `x`, or None once an array `x` is not referenced elsewhere.

    So weights are not held twice. A number, which has no weak references, is always returned.
    """
    try:
        return weakref.ref(x)
    except TypeError:
        return lambda: x
