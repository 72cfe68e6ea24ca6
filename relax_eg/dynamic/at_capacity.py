"""`AtCapacity`: runs a function at many sizes with few executables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from relax_eg.backend.calls.call_keys import UnseenError
from relax_eg.backend.calls.executables import Executables
from relax_eg.backend.calls.known import Straight
from relax_eg.backend.calls.runtime import CallParts, Place
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.family import Family
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.dynamic.calls import statistics_of
from relax_eg.dynamic.fitting import unpadded
from relax_eg.dynamic.policy import Policy
from relax_eg.dynamic.runtime import ElsewhereError, Predict, Sized
from relax_eg.errors import OptionError

REASSOCIATED = 2e-5  # chosen: relative tolerance between results whose sums are taken in different orders


class AtCapacity(Whole):
    """Runs calls in executables of certain capacities, or at exact sizes, as `dynamic` says (`docs/dynamic.md`).

    Traced calls (`to_jax`, grad, vmap, arguments of a `jax.jit`) and calls with arrays on another device than JAX's
    default one run as one XLA program at exact sizes. Prepared values serve all capacities.
    """

    reorder_tolerance = REASSOCIATED
    serves_all = False

    def __init__(
        self,
        family: Family,
        policy: Policy,
        predict: Predict,
        executables: Executables | None = None,
        shapes: Mapping[int, tuple[int, ...]] | None = None,
        pallas: Pallas | None = None,
    ) -> None:
        """`pallas`: as of `Whole`, at exact sizes."""
        super().__init__(family, executables, shapes or {}, pallas)
        self._policy, self._predict = policy, predict
        self._expects_other_sizes = False
        self._sized: Sized | None = None
        self._lock = threading.Lock()

    @property
    def sized(self) -> Sized:
        """What serves calls that are not known; all weights of the same shapes share it. Made at the first call."""
        if self._sized is None:
            with self._lock:
                self._sized = self._sized or self._new_sized()
        return self._sized

    def _new_sized(self) -> Sized:
        bound, loaded = self.bound_family, self.executables.loaded
        made = Sized(bound, self._policy, self.executables, self._predict, self.known)
        made.donated = [i for i, parameter in enumerate(bound.call_indices) if parameter in self._donated]
        if loaded is not None and loaded.has_capacities:
            made.assumes_one_size = False  # they are for several
        if self._expects_other_sizes:
            made.assumes_one_size, made.named_sizes = False, []
        return made

    @property
    def _all_sized(self) -> list[Sized]:
        """What served calls so far, with weights of any shapes."""
        made = (self, *list(self._by_shapes.values()))
        return [s.sized for s in made if isinstance(s, AtCapacity) and s._sized is not None]

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None:
        found = self.known.only  # its executable serves calls of its own sizes only
        # Under a trace, the outer `jit` decides on the options.
        return None if found is None or found.has_options or not found.begins else found.straight(self.prepared_values)

    def run(self, arguments: list[Any]) -> Any:
        try:
            return self.sized.run(self.prepared_values, arguments)
        except (ElsewhereError, UnseenError):
            return self.run_elsewhere([unpadded(x, None) for x in arguments])

    def for_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> AtCapacity:
        made = AtCapacity(self.family, self._policy, self._predict, self.executables, shapes, self._pallas)
        made._expects_other_sizes = self._expects_other_sizes
        return made

    def _configured(self, shapes: Mapping[int, tuple[int, ...]]) -> Whole:
        made = super()._configured(shapes)
        assert isinstance(made, AtCapacity)
        _ = made.sized  # before it is copied
        return made

    def at_exact_sizes(self) -> Mapping[str, str]:
        asked = self._policy.mode == "capacity"
        if asked and not self._all_sized:
            _ = self.sized
        bodies = [b for s in self._all_sized for b in s.bodies]
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
        shared = self.sharing(shapes) if shapes else self
        assert isinstance(shared, AtCapacity)
        shared.sized.compile_ahead(at, background)

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.sized.executable_key(args, kwargs)

    def compile_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        self.sized.compile_call(args, kwargs, key)

    def lowering(self, sizes: Mapping[str, int], place: Place, pallas: Pallas | None) -> CallParts:
        found = self.sized.runs_at(sizes)
        run, given, named = found.taking
        args, kwargs = jax.tree.map(place, given), jax.tree.map(place, named)
        return self.one_program(run, args, kwargs, found.variant, pallas, found.capacities)

    def expect_other_sizes(self) -> None:
        """Makes the first call run at capacity already, with "auto". To be called before the first call.

        Its sizes are not the only ones, and the user did not name the sizes that the program was optimized for.
        """
        self._expects_other_sizes = True

    def statistics(self) -> Statistics:
        sized = self._all_sized
        reasons = (why for s in sized for why in (s.differing_sizes, *(b.reasons for b in s.bodies)))
        exact = {k: v for why in reasons for k, v in why.items()}
        calls = (call for s in sized for call in s.calls)
        return statistics_of(self.program.name, self._policy, self.executables, calls, exact)
