"""Optimized functions, which `optimize` returns: they run on XLA and carry their modules and reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import jax

from relax_eg.argument_checks import PATH, accepts, sequence_of, short_repr
from relax_eg.backend.calls.binding import BindsWeights
from relax_eg.backend.calls.checks import bind_sizes
from relax_eg.backend.calls.executables import Executables
from relax_eg.backend.calls.held_arrays import HeldArrays
from relax_eg.backend.calls.ready import Ready
from relax_eg.backend.calls.runtime import CallParts, Runtime, Serving, Settler, Strategy
from relax_eg.backend.calls.statistics import Statistics
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.compare import AS_WRITTEN, ITSELF, Check, compare_results, compare_with_reference
from relax_eg.backend.family import Solution
from relax_eg.backend.files import artifact
from relax_eg.backend.files.loaded import LoadedPrograms
from relax_eg.backend.files.stored import NOTHING
from relax_eg.errors import OptionError, ShapeError
from relax_eg.ir.module import Module
from relax_eg.reports import CostReport

if TYPE_CHECKING:
    from relax_eg.backend.gpu.record import GpuCompilation
    from relax_eg.explain.certificate import UnaidedCertificate
    from relax_eg.explain.text import Explanation


class Optimized(Runtime):
    """An optimized function: call it like the function it came from.

    With `weights`, what depends on them alone is computed at the first call with these very arrays and kept.

    - `variants`: all programs of the family.
    - `module`: the chosen program.
    - `report`: its predicted cost, and why it was chosen.
    - `compiler_options`: the options XLA compiles it with.

    The last three are those of the variant for the first binding of `at`.
    """

    _held: HeldArrays | None = None  # the weights of a model

    def __init__(self, solution: Solution, strategy: Strategy, explained: Callable[[], Explanation]) -> None:
        self._solution, self._explained = solution, explained
        self._explanation: Explanation | None = None
        self.variants = solution.variants
        self._weights = solution.weights
        self._weight_indices = tuple(i for i, a in enumerate(solution.program.arguments) if a in self._weights)
        self._kept = all(v.chosen is None for v in self.variants)
        self._binds = bool(self._weight_indices) and not self._kept
        super().__init__(strategy, BindsWeights(strategy, self._weight_indices) if self._binds else None)
        self._chosen: Serving = self._serving
        # What settles, and how the program as written runs, where the first calls settle which is faster.
        self._settler: Settler | None = None
        self._written: Strategy | None = None
        self._bound = WeakSet[Ready]()

    @property
    def solution(self) -> Solution:
        return self._solution

    def let_settle(self, written: Strategy, settler: Settler) -> None:
        super().let_settle(written, settler)
        self._settler, self._written = settler, written

    @property
    def _strategies(self) -> list[Strategy]:
        return [self.strategy] if self._written is None else [self.strategy, self._written]

    @property
    def module(self) -> Module:
        return self.variants[0].module

    def count_among(self, others: Executables) -> None:
        """Makes its executables count among `others`, too. To be called before the first call of the function."""
        others.register(self._executables)

    def serve_where(self, is_served: Callable[[], bool], elsewhere: Callable[..., Any]) -> None:
        """Serves calls only where `is_served()` is true under the present settings of JAX.

        Other calls go to `elsewhere`, a function of the same arguments. To be called before the first call, and only
        for programs that run as a whole.
        """
        self._wide = False  # a call outside JAX's x64 mode is not brought into it
        for strategy in self._strategies:
            assert isinstance(strategy, Whole)
            strategy.serve_where(is_served, elsewhere)

    def donate(self, parameters: Sequence[int]) -> None:
        """Allows calls to reuse the arrays of these parameters; see `serve_where`."""
        for strategy in self._strategies:
            assert isinstance(strategy, Whole)
            strategy.donate(parameters)

    @property
    def report(self) -> CostReport:
        """The report, with what is known by now: what the first calls measured (`measure`), and what cannot run at
        capacity, if capacities were asked for or it was tried."""
        report, why = self.variants[0].report, self.strategy.at_exact_sizes()
        measured = (*self.measured, *(row for ready in self._bound for row in ready.measured))
        report = replace(report, measured=measured) if measured else report
        return replace(report, at_exact_sizes=why) if why else report

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """The options found best: pass them as `jax.jit(best.to_jax(), compiler_options=...)`."""
        return self.variants[0].compiler_options

    def to_jax(self) -> Callable[..., Any]:
        """The chosen program as a JAX function of the same arguments. It composes with jit, grad, vmap and sharding.

        Its derivatives are those of the function as written. To compile it, `compiler_options` may be passed.
        """
        return self.strategy.to_jax()

    def prepare(self, *weights: Any, **named: Any) -> Ready:
        """Computes what depends on the weights alone, once.

        Takes the arguments declared as `weights`, in their order or by name. The result takes the other arguments.
        OptionError for missing, repeated or other arguments; ShapeError for a weight with the wrong number of arrays.
        """
        if self.strategy.unbindable_reason:
            raise OptionError(f"prepare(): {self.strategy.unbindable_reason}")
        if not self._weights:
            raise OptionError("prepare(): no weights were declared; pass weights=(...) to optimize")
        given = dict(zip(self._weights, weights, strict=False))
        twice = set(given) & set(named)
        given |= named
        if twice or len(weights) > len(self._weights) or set(given) != set(self._weights):
            raise OptionError(
                f"prepare() takes the weights {', '.join(self._weights)}; got {', '.join([*given, *twice]) or 'none'}"
            )
        p = self._program
        leaves: list[Any] = []
        for w in self._weights:
            found = jax.tree_util.tree_leaves(given[w])
            expected = [i for i, a in enumerate(p.arguments) if a == w]
            if len(found) != len(expected):
                raise ShapeError(f"prepare(): `{w}` has {len(found)} arrays, optimized for {len(expected)}")
            leaves += list(zip(expected, found, strict=True))
        leaves.sort(key=lambda pair: pair[0])
        arrays = p.convert_arguments([x for _, x in leaves], [i for i, _ in leaves])
        with p.width_context():
            ready = Ready(self.strategy.bind(self._weight_indices, arrays), self._weight_indices, self.compiler_options)
            if self._settler is not None and self._written is not None:
                ready.let_settle(self._written.bind(self._weight_indices, arrays), self._settler)
                self._bound.add(ready)
        return ready

    def check(self, /, *args: Any, **kwargs: Any) -> Check:
        """Checks the declared facts of these arguments, and compares the results with those as written."""
        arguments = self.strategy.flat_arguments(args, kwargs)
        with self._program.width_context():
            return self._checked(arguments)

    def _checked(self, arguments: list[Any]) -> Check:
        p, near = self._program, max(self._solution.tolerance, self.strategy.reorder_tolerance)
        values = self.strategy.check_arguments(arguments)
        broken = tuple(p.violations(values))
        ours, found = self._chosen.run(arguments), None
        if p.is_as_written and not p.from_function:  # comparing a module with itself would show nothing
            found = compare_with_reference(p.written(), ours, values, near)
        if found is None:
            found = compare_results(
                ours, self.strategy.run_as_written(values), near, ITSELF if self._kept else AS_WRITTEN
            )
        return replace(found, passed=found.passed and not broken, violations=broken)

    def explain(self) -> Explanation:
        """The derivation of the chosen program from the one as written, step by step; printed, it reads like a proof.

        The search is repeated with all matches recorded, and the derivation is replayed: conditions are proved again,
        and every expression is evaluated by the reference interpreter. ExplanationError where a step does not hold, or
        no derivation is found.
        """
        if self._explanation is None:
            with self._program.width_context():
                self._explanation = self._explained()
        return self._explanation

    def certificate(self) -> UnaidedCertificate:
        """The derivation as plain data. `.save(path)` writes it; `relax-eg verify --certificate` checks it without
        repeating the search. Raises what `explain` raises."""
        return self.explain().certificate()

    def is_own(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments runs the optimized program; otherwise it runs the function as written.

        It does where the function, traced for the sizes of these arguments, is the program that was optimized. Raises
        what the function raises at these sizes.
        """
        p = self._program
        return p.difference_at(p.sizes([jax.numpy.shape(x) for x in p.call_arrays(args, kwargs)])) is None

    def sizes_of(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The values of the size variables for these arguments; bounds are not checked.

        ShapeError where the shapes contradict the signature.
        """
        p = self._program
        return bind_sizes(p.name, p.params, [jax.numpy.shape(x) for x in p.call_arrays(args, kwargs)])

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether the bounds and assumptions hold at these sizes, so that a call is not refused."""
        return self._program.allows(sizes)

    def statistics(self) -> Statistics:
        """What the first calls settled; the executables of the file that it was loaded from; of a function that runs
        padded to capacities also its executables with their memory, compile seconds and padding, by size. Print it, or
        use `to_json`."""
        every = (self, *self._bound)
        rows = tuple(row for f in every for row in f.settled)
        stored = tuple(p.row for p in self._executables.loaded or ())
        found = replace(self.strategy.statistics(), settled=rows, stored=stored)
        return replace(found, is_settling=any(f.is_settling for f in every))

    def compile_ahead(self, *at: Mapping[str, int], background: bool = False) -> None:
        """Compiles before the first call what calls with the sizes `at` will run, `{"b": 1, "s": 128}`; without sizes,
        every capacity within the bounds, and the sizes named in `optimize(at=...)` that run exactly. With declared
        `weights`, compiles what runs once these are bound. `background`: returns at once and compiles in threads.

        OptionError, BoundsError; OptionError for a function that does not run padded to capacities.
        """
        self._compile_ahead(at, background, self._weight_indices)

    def compile(
        self,
        device: str | Path | None = None,
        *,
        at: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
        ptx: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> GpuCompilation:
        """What XLA makes of the function for a GPU, which need not be present: kernels by kind, launches, bytes, XLA's
        own estimates of times, and what was left to XLA or fell back. Nothing is run; see `docs/gpu.md`.

        - `device`: "h100", "h200", "a100", "b200", "rtx4090", "l4", or the path of a target-config file of XLA's; None:
          the GPU that JAX runs on.
        - `at`: sizes, one binding or a list; None: those of `optimize(at=...)`. With declared `weights`, what runs once
          these are bound is compiled.
        - `ptx`: whether the kernels in PTX are kept.
        - `progress`: called with the name of each program before it is compiled.

        OptionError for an unknown device, without the packages of `relax-eg[cuda]`, for sizes that are missing, and,
        before anything is compiled, for a program larger than the device's memory; BoundsError; DeviceError where XLA
        does not compile a program.
        """
        from relax_eg.backend.gpu.compile import compile_for  # which programs for the CPU never need

        return compile_for(self._solution, self._strategy_at, device, at, ptx, progress)

    def _strategy_at(self, sizes: Mapping[str, int]) -> Strategy:
        """How calls run at these sizes once the weights are bound."""
        if not self._binds or not isinstance(self.strategy, Whole):
            return self.strategy
        params = self._program.params
        shapes = {i: tuple(int(d.evaluate(sizes)) for d in params[i].tensor.shape or ()) for i in self._weight_indices}
        return self.strategy.for_shapes(shapes)

    @accepts(path=PATH, devices=sequence_of("a list of devices, such as ['h100', 'cpu'],", PATH))
    def save(
        self,
        path: str | Path,
        *,
        devices: Sequence[str | Path] = (),
        at: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    ) -> None:
        """Writes the function to a file, a model with its weights. `rx.load` reads it in any process, and it runs there
        without a search.

        - `devices`: for each of these, what calls run is compiled and kept beside the program: names of GPUs or paths
          of files as `compile` takes them, or "cpu", the CPU at hand. `rx.load(path, executables="trust")` runs them.
        - `at`: the sizes for which it is compiled, one binding or a list; None: those of `optimize(at=...)`.

        ArtifactError where the program holds an object of this process, such as a callback, or where the file cannot be
        written. With `devices`, also what `compile` raises.
        """
        stored = NOTHING
        if devices:
            from relax_eg.backend.gpu.compile import store_for  # which programs for the CPU never need

            stored = store_for(self._solution, self._strategy_at, devices, at)
        elif at is not None:
            raise OptionError(f"save(): at={short_repr(at)} without devices; executables are what sizes are for")
        artifact.save(self._solution, path, stored, self._held)

    def use_loaded(self, loaded: LoadedPrograms) -> None:
        """Lets calls run the executables of the file that the function was loaded from. To be called before the first
        call."""
        self.strategy.use_loaded(loaded)

    def lowering_at(self, sizes: Mapping[str, int]) -> CallParts:
        """What calls at these sizes run here, once the weights are bound."""
        with self._program.width_context():
            return self._strategy_at(sizes).lowering(sizes, lambda spec: spec, None)

    def __repr__(self) -> str:
        r = self.report
        return f"<optimized {r.name}: {r.predicted_gain:.2f}x predicted on {r.target}>"
