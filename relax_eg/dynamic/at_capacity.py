"""`AtCapacity`: an optimized function that runs at many sizes with few executables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relax_eg.backend.call_keys import UnseenError
from relax_eg.backend.executables import Executables
from relax_eg.backend.family import Family, Variant
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.program import Program, in_order, without_notes
from relax_eg.backend.ready import Ready
from relax_eg.dynamic.policy import Policy
from relax_eg.dynamic.runtime import UNSEEN, ElsewhereError, Predict, Sized
from relax_eg.dynamic.statistics import ExecutableRow, Statistics
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.explain.text import Explanation
from relax_eg.memo import Memo
from relax_eg.reports.report import CostReport

_MOST_SIZED = 64  # limit: combinations of shapes of bound weights, each with a `Sized` of its own
REASSOCIATED = 2e-5  # chosen: relative tolerance between results whose sums are taken in different orders


def at_sizes(
    program: Program,
    variants: tuple[Variant, ...],
    weights: tuple[str, ...],
    tolerance: float,
    explained: Callable[[], Explanation],
    policy: Policy,
    predict: Predict,
) -> Optimized:
    """The `Optimized` for a function that is one XLA program. `tolerance`: 0 if results must be bit-exact."""
    # Sums over a padded axis are taken in another order: with exact numerics, capacities must be asked for.
    ways = ("capacity",) if tolerance == 0 else ("capacity", "auto")
    if policy.dynamic in ways and policy.ladders and not program.effectful:
        return AtCapacity(program, variants, weights, tolerance, explained, policy, predict)
    return Optimized(program, variants, weights, tolerance, explained)


class AtCapacity(Optimized):
    """An optimized function whose sizes vary: called like the function it came from, it runs in executables of certain
    capacities, or at exact sizes, as `dynamic` says (`docs/dynamic.md`).

    Traced calls (`to_jax`, grad, vmap, arguments of a `jax.jit`) and calls with arrays on another device than JAX's
    default one run at exact sizes.
    """

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, ...],
        weights: tuple[str, ...],
        tolerance: float,
        explained: Callable[[], Explanation],
        policy: Policy,
        predict: Predict,
    ) -> None:
        super().__init__(program, variants, weights, tolerance, explained)
        self._policy, self._predict = policy, predict
        self._sized = Memo[tuple[Any, ...], Sized](_MOST_SIZED)
        self._bare: Sized | None = None  # serves calls without bound weights, from the first one on
        self._nothing: tuple[tuple[Any, ...], ...] = ((),) * len(variants)
        self._settings: Hashable = None
        self._elsewhere: Callable[..., Any] | None = None

    @property
    def report(self) -> CostReport:
        """The report, with what cannot run at capacity, if that is already known or capacities were asked for."""
        report = super().report
        if self._policy.dynamic == "capacity" and not self._sized:
            self._sized_for({})
        bodies = [b for s in self._sized.values() for b in s.bodies]
        with self._program.width():
            for body in bodies if self._policy.dynamic == "capacity" else ():
                _ = body.dims
        why = {k: v for b in bodies for k, v in b.reasons.items()}
        return replace(report, at_exact_sizes=why) if why else report

    @property
    def _near(self) -> float:
        return max(self._tolerance, REASSOCIATED)

    def _sized_for(self, weight_shapes: Mapping[int, tuple[int, ...]]) -> Sized:
        """The `Sized` for bound weights of these shapes; all weights of the same shapes share it."""
        key = tuple(sorted(weight_shapes.items()))

        def make() -> Sized:
            others_at = [i for i in range(len(self._program.params)) if i not in weight_shapes]
            tree = self._program.tree_without(frozenset(weight_shapes))
            made = Sized(self._family, others_at, weight_shapes, tree, self._policy, self._executables, self._predict)
            made.settings = self._settings
            return made

        return self._sized.made(key, make)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        if self._bare is not None and not (self._wide and self._program.is_elsewhere):
            if kwargs:
                args, kwargs = in_order(self._names, args, kwargs)
            result = self._bare.straight(self._nothing, args, kwargs)
            if result is not UNSEEN:
                return result
        return super().__call__(*args, **kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sized = self._sized_for({})
        if not self._binds:
            self._bare = sized
        try:
            return sized.run(self._nothing, self._program.leaves(args, kwargs))
        except (ElsewhereError, UnseenError):
            return super()._run(args, kwargs) if self._elsewhere is None else self._elsewhere(*args, **kwargs)
        except RelaxEgError as e:
            raise without_notes(e) from None

    def prepare(self, *weights: Any, **named: Any) -> ReadyAtCapacity:
        ready = super().prepare(*weights, **named)
        assert isinstance(ready, ReadyAtCapacity)
        return ready

    def _bind(self, weights: list[Any]) -> Ready:
        return ReadyAtCapacity(self._family, self._executables, self._weight_indices, weights, self._sized_for)

    def compile_ahead(self, *at: Mapping[str, int], background: bool = False) -> None:
        """Compile before the first call what calls with the sizes `at` will run, `{"b": 1, "s": 128}`; without sizes,
        every capacity within the bounds, and the sizes named in `optimize(at=...)` that run exactly. With declared
        `weights`, compile what runs once these are bound. `background`: return at once and compile in threads.
        OptionError, BoundsError."""
        program = self._program
        weights = {i: program.params[i].tensor.shape or () for i in self._weight_indices}
        if any(not d.is_const for dims in weights.values() for d in dims):
            raise OptionError(
                f"compile_ahead(): how large the weights of {program.name}() are is not known yet; "
                "prepare(...).compile_ahead(...) is accepted"
            )
        shapes = {i: tuple(int(d.const) for d in dims) for i, dims in weights.items()}
        with program.width():
            self._sized_for(shapes).compile_ahead(at, background)

    def expect_other_sizes(self) -> None:
        """With "auto", let the first call already run at capacity: its sizes are not the only ones, and the user did
        not name the sizes that the program was optimized for."""
        sized = self._sized_for({})
        sized.alone, sized.named = False, []

    def serve_under(self, settings: Hashable, elsewhere: Callable[..., Any]) -> None:
        """Serve calls only under these settings of JAX (`settings.settings_now`). Other calls go to `elsewhere`, a
        function of the same arguments."""
        self._settings, self._elsewhere = settings, elsewhere
        for sized in self._sized.values():
            sized.settings = settings

    def donate(self, parameters: Sequence[int]) -> None:
        """Allow calls to reuse the arrays of these parameters, as `donate_argnums` of `jax.jit` does. At capacity only
        parameters of fixed shape are donated: others are padded into other arrays, or copied."""
        self._sized_for({}).donated = tuple(parameters)

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether the bounds and assumptions hold at these sizes, so that a call is not refused."""
        return self._program.allows(sizes)

    def statistics(self) -> Statistics:
        """Executables with their memory, compile seconds and padding, by size; print it, or use `to_json`."""
        executables = self._executables
        rows: list[ExecutableRow] = []
        for _, e in executables.items():
            kind = "exact" if e.exact else "capacity"
            rows.append(ExecutableRow(e.at, kind, e.why, e.calls, e.compile_seconds, e.seconds, e.memory))
        sized = list(self._sized.values())
        return Statistics(
            self._program.name,
            self._policy.dynamic,
            {v: str(ladder) for v, ladder in self._policy.ladders.items()},
            tuple(rows),
            tuple(r for s in sized for r in s.rows()),
            executables.compilations,
            executables.compile_seconds,
            executables.evicted,
            {k: v for s in sized for why in (s.others, *(b.reasons for b in s.bodies)) for k, v in why.items()},
        )


class ReadyAtCapacity(Ready):
    """Like `Ready`; the prepared values serve all capacities."""

    def __init__(
        self,
        family: Family,
        executables: Executables,
        indices: Sequence[int],
        weights: list[Any],
        sized_for: Callable[..., Sized],
    ) -> None:
        super().__init__(family, executables, indices, weights)
        self._sized = sized_for(self._weight_shapes)
        self._held = [b.prepared for b in self._bound]

    def compile_ahead(self, *at: Mapping[str, int], background: bool = False) -> None:
        """Like `AtCapacity.compile_ahead`, for these weights and all others of the same shapes."""
        with self._program.width():
            self._sized.compile_ahead(at, background)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._wide and self._program.is_elsewhere:
            return self._from_elsewhere(args, kwargs)
        if kwargs:
            args, kwargs = in_order(self._names, args, kwargs)
        result = self._sized.straight(self._held, args, kwargs)
        return self.run(self._others(args, kwargs)) if result is UNSEEN else result

    def run(self, others: list[Any]) -> Any:
        try:
            return self._sized.run(self._held, others)
        except (ElsewhereError, UnseenError):
            return super().run(others)
        except RelaxEgError as e:
            raise without_notes(e) from None
