"""`AtCapacity`: runs a function at many sizes with few executables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from relax_eg.backend.calls.bound import BoundFamily
from relax_eg.backend.calls.call_keys import UnseenError
from relax_eg.backend.calls.executables import Executables
from relax_eg.backend.calls.runtime import UNSEEN, CallParts, Place, Straight
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.family import Family
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.dynamic.calls import statistics_of
from relax_eg.dynamic.fitting import unpadded
from relax_eg.dynamic.policy import Policy
from relax_eg.dynamic.runtime import ElsewhereError, Predict, Sized
from relax_eg.errors import OptionError
from relax_eg.memo import Memo

_MOST_SIZED = 64  # limit: combinations of shapes of bound weights, each with a `Sized` of its own
REASSOCIATED = 2e-5  # chosen: relative tolerance between results whose sums are taken in different orders


class AtCapacity(Whole):
    """Runs calls in executables of certain capacities, or at exact sizes, as `dynamic` says (`docs/dynamic.md`).

    Traced calls (`to_jax`, grad, vmap, arguments of a `jax.jit`) and calls with arrays on another device than JAX's
    default one run as one XLA program at exact sizes. Prepared values serve all capacities.
    """

    reorder_tolerance = REASSOCIATED

    def __init__(
        self,
        family: Family,
        policy: Policy,
        predict: Predict,
        executables: Executables | None = None,
        shapes: Mapping[int, tuple[int, ...]] | None = None,
        sized: Memo[tuple[Any, ...], Sized] | None = None,
        pallas: Pallas | None = None,
    ) -> None:
        """`sized`: the table that all bindings of one function share; None for a new one. `pallas`: as of `Whole`, at
        exact sizes."""
        super().__init__(family, executables, shapes or {}, pallas)
        self._policy, self._predict = policy, predict
        self._sized = Memo[tuple[Any, ...], Sized](_MOST_SIZED) if sized is None else sized
        self._expects_other_sizes = False

    @functools.cached_property
    def sized(self) -> Sized:
        """What serves the calls; all weights of the same shapes share it."""
        found = self._sized_for(self.bound_family)
        self.call_known = functools.partial(found.call_known, self.prepared_values)
        return found

    def _sized_for(self, bound: BoundFamily) -> Sized:
        def make() -> Sized:
            made = Sized(bound, self._policy, self.executables, self._predict)
            made.served = self._is_served
            made.donated = [i for i, parameter in enumerate(bound.call_indices) if parameter in self._donated]
            loaded = self.executables.loaded
            if loaded is not None and loaded.has_capacities:
                made.assumes_one_size = False  # they are for several
            if self._expects_other_sizes:
                made.assumes_one_size, made.named_sizes = False, []
            return made

        return self._sized.get_or_make(tuple(sorted(bound.shapes.items())), make)

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # until the first call has run
        return UNSEEN

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None:
        return self.sized.straight(self.prepared_values)  # whose executables serve calls of their own sizes only

    def run(self, arguments: list[Any]) -> Any:
        try:
            return self.sized.run(self.prepared_values, arguments)
        except (ElsewhereError, UnseenError):
            return self.run_elsewhere([unpadded(x, None) for x in arguments])

    def for_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> AtCapacity:
        made = AtCapacity(self.family, self._policy, self._predict, self.executables, shapes, self._sized, self._pallas)
        made._expects_other_sizes = self._expects_other_sizes
        return made

    def at_exact_sizes(self) -> Mapping[str, str]:
        asked = self._policy.mode == "capacity"
        if asked and not self._sized:
            self._sized_for(self.bound_family)
        bodies = [b for s in list(self._sized.values()) for b in s.bodies]
        with self.program.width_context():
            for body in bodies if asked else ():
                _ = body.dims
        return {k: v for b in bodies for k, v in b.reasons.items()}

    def compile_ahead(self, at: Sequence[Mapping[str, int]], background: bool, weights: Sequence[int]) -> None:
        params, name = self.program.params, self.program.name
        dims = {i: params[i].tensor.shape or () for i in weights}
        if any(not d.is_const for shape in dims.values() for d in shape):
            raise OptionError(
                f"compile_ahead(): how large the weights of {name}() are is not known yet; "
                "prepare(...).compile_ahead(...) is accepted"
            )
        shapes = {i: tuple(int(d.const) for d in shape) for i, shape in dims.items()}
        bound = BoundFamily(self.family, {**self.bound_family.shapes, **shapes}, self._pallas)
        self._sized_for(bound).compile_ahead(at, background)

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.sized.executable_key(args, kwargs)

    def compile_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        self.sized.compile_call(args, kwargs, key)

    def lowering(self, sizes: Mapping[str, int], place: Place, pallas: Pallas | None) -> CallParts:
        found = self._sized_for(self.bound_family).runs_at(sizes)
        run, given, named = found.taking
        args, kwargs = jax.tree.map(place, given), jax.tree.map(place, named)
        return self.one_program(run, args, kwargs, found.variant, pallas, found.capacities)

    def expect_other_sizes(self) -> None:
        """Makes the first call run at capacity already, with "auto". To be called before the first call.

        Its sizes are not the only ones, and the user did not name the sizes that the program was optimized for.
        """
        self._expects_other_sizes = True

    def statistics(self) -> Statistics:
        sized = list(self._sized.values())
        reasons = (why for s in sized for why in (s.differing_sizes, *(b.reasons for b in s.bodies)))
        exact = {k: v for why in reasons for k, v in why.items()}
        calls = (call for s in sized for call in s.calls)
        return statistics_of(self.program.name, self._policy, self.executables, calls, exact)
