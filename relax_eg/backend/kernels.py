"""`execution="kernels"`: runs a module kernel by kernel, each an executable of its own.

A kernel is a call of a tensor program, a single operator, a library call or a loop. A view (such as a reshape) is no
kernel: its readers read the array that it is a view of. For each binding of the sizes, the kernels are a flat list that
follows the memory plan (`kernel_calls`). Kernels that several layers share are compiled once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer

from relax_eg.backend.calls.call_keys import MOST_KEYS, SizeKey, kind_of
from relax_eg.backend.calls.checks import Fit, cast_fits, check_addressable
from relax_eg.backend.calls.executables import PARTS, Executables, tick
from relax_eg.backend.calls.known import KnownCall
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.runtime import CallPart, CallParts, Place, Strategy
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.family import KERNELS, Family, Solution
from relax_eg.backend.files.loaded import LoadedProgram
from relax_eg.backend.footprint import avals
from relax_eg.backend.kernel_calls import Call, Kernels
from relax_eg.backend.lowering.lower import new_sizes
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.width import run_in_width
from relax_eg.errors import OptionError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module
from relax_eg.memo import Memo
from relax_eg.memory import Plan, plan, program_of, with_measured_temporaries
from relax_eg.shapes import Scope

if TYPE_CHECKING:
    from relax_eg.explain.text import Explanation

_MOST_HELD = 2  # limit: storages kept for all bindings together, as a multiple of those of the largest binding


class KernelRunner:
    """Runs the entry of a module on arrays, kernel by kernel.

    - `compiler_options`: XLA's options for each kernel.
    - `scope`: bounds and assumptions, checked of the sizes that a `match_cast` binds.
    - `pallas`: chooses the programs that are lowered through Pallas, and records them.
    - `executables`: the cache in which its kernels count. To make room, the least recently called binding is dropped
      with its kernels; the one called last is kept.
    - `of_file`: returns what the file that the function was loaded from has for a binding of sizes; None for nothing.
    """

    def __init__(
        self,
        module: Module,
        compiler_options: Mapping[str, str] | None = None,
        scope: Scope | None = None,
        pallas: Pallas | None = None,
        executables: Executables | None = None,
        of_file: Callable[[Mapping[str, int]], LoadedProgram | None] = lambda sizes: None,
    ) -> None:
        self.pallas, self._of_file = pallas, of_file
        self._executables = executables or Executables(PARTS)
        self._executables.register(self)
        self.module = module
        self.wide = module.wide
        self._casts = _casts(module)
        self._scope = scope
        self._kernels = Kernels(module, compiler_options or {}, pallas)
        self._calls: dict[Any, Call] = {}  # bounded by the limit that `executables` has for kernels
        self._lock = threading.RLock()
        self._temporaries = Memo[Any, Mapping[str, int]](MOST_KEYS)

    @run_in_width
    def run(self, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """The result of the entry for these arrays: an array or a tuple of arrays."""
        return self.call(sizes, _on_one_device(args)).run(args)

    @run_in_width
    def call(self, sizes: Mapping[str, int], storages: bool = True) -> Call:
        """The call at a binding of sizes. `storages`: whether it keeps arrays for the next call."""
        key = (tuple(sizes.values()), storages)
        with self._lock:
            found = self._calls.pop(key, None)
            is_new = found is None
            if found is None:
                result = self.module.main.result.annotation
                known = self._with_cast_sizes(sizes)
                found = Call(self._kernels, plan(self.module, known), known, result, storages)
                if storages and (program := self._of_file(sizes)) is not None:
                    found.use_loaded(program)
            self._calls[key] = found  # the dict is ordered by last use
        found.used = tick()
        if is_new:
            self._executables.make_room(0)
        if len(self._calls) > 1:
            self._release_storages(found)
        return found

    @property
    def executable_count(self) -> int:
        """Number of kernels that are compiled, or will be when they first run."""
        return len(self._kernels)

    @property
    def oldest_use(self) -> int | None:
        """Time of the last call of the least recently called binding; None where there is only one."""
        calls = list(self._calls.values())
        return calls[0].used if len(calls) > 1 else None

    def evict_oldest(self) -> None:
        """Drops the least recently called binding."""
        self._calls.pop(next(iter(list(self._calls))), None)

    def _with_cast_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The given sizes and those that the entry's `match_cast`s bind.

        ShapeError or BoundsError where a cast value does not fit.
        """
        known = dict(sizes)
        for source, fit in self._casts:
            shape = [d.evaluate(known) for d in source.shape or ()]
            new_sizes(fit, jax.ShapeDtypeStruct(shape, source.dtype), known, self._scope, self.module.main.name)
        return known

    def _release_storages(self, latest: Call) -> None:
        """Releases the storages of the least recently called bindings, where all storages together exceed the limit."""
        planned = [(c, c.planned_bytes) for c in list(self._calls.values())]
        allowed = _MOST_HELD * max(n for _, n in planned)
        for c, n in reversed(planned):
            allowed -= n
            if allowed < 0 and c is not latest:
                c.release_arrays()

    @run_in_width
    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """For each kernel of the call at a binding, by name, an upper bound on the bytes that its executable allocates
        for itself."""
        key = tuple(sorted(sizes.items()))

        def allocated() -> Mapping[str, int]:
            check_addressable(f"{self.module.main.name}()", self.module.main.params, sizes)
            return self.call(sizes).temporaries(avals(self.module.main, self._with_cast_sizes(sizes)))

        return self._temporaries.get_or_make(key, allocated)

    def measured_plan(self, sizes: Mapping[str, int]) -> Plan:
        """The memory plan of the call at a binding, including what executables allocate for themselves."""
        return with_measured_temporaries(self.call(sizes).plan, self.temporary_bytes(sizes))

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are kept for later calls."""
        return sum(c.held_bytes for c in self._calls.values())

    def kernels(self, function: str | None = None) -> list[Expr]:
        """The kernels of a function (by default the entry) in the order in which they run, without those of functions
        that it calls."""
        name = function or self.module.main.name
        return [s.kernel for s in program_of(self.module, function=name).steps if s.function == name]


def why_not_in_kernels(module: Module) -> str:
    """Why a module cannot run kernel by kernel; empty where it can."""
    try:
        _casts(module)
    except OptionError as e:
        return str(e)
    return ""


def _casts(module: Module) -> list[tuple[Tensor, Fit]]:
    """For each `match_cast` of the entry, in order, the annotation of its operand and its check.

    OptionError where the sizes of an operand are only known once kernels have run.
    """
    found: list[tuple[Tensor, Fit]] = []
    for f in module:
        fits = cast_fits(f)
        sources = {b.var: b.value.args[0].annotation for b in f.bindings if b.var in fits}
        for var, fit in fits.items():
            source = sources[var]
            if f is not module.main or not isinstance(source, Tensor) or source.shape is None or source.dtype is None:
                raise OptionError(
                    f"execution='kernels': what the match_cast of `{var.attr('name')}` in {f.name}() is of, {source}, "
                    "has its sizes only once kernels ran; 'whole' is accepted"
                )
            found.append((source, fit))
    return found


def _on_one_device(args: Sequence[Any]) -> bool:
    return jax.device_count() == 1 or all(len(x.sharding.device_set) == 1 for x in args if isinstance(x, jax.Array))


class ByKernel(Whole):
    """Runs the kernels of a call one by one, if the variant that serves it is executed so. Under a trace of JAX, calls
    are one program.

    - `pallas`: whether programs that XLA compiles badly are lowered through Pallas on GPUs; a field of device profiles.
    - `runners`: for each variant that is executed in kernels, by index: its runner on the prepared values and the other
      arguments.
    """

    default_limit = PARTS
    serves_all = False

    def __init__(
        self,
        family: Family,
        pallas: bool = False,
        executables: Executables | None = None,
        shapes: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(family, executables, shapes or {}, Pallas.for_default_device(pallas))
        self.pallas = pallas
        scope, b = self.program.scope, self.bound_family
        self.runners = {
            i: KernelRunner(
                b.variant_program(i).module,
                v.compiler_options,
                scope,
                Pallas.for_default_device(pallas),
                self.executables,
                functools.partial(self._of_file, i),
            )
            for i, v in enumerate(family.variants)
            if v.execution == KERNELS
        }

    def key_function(self) -> SizeKey:
        """The kinds of all arrays: kernels do not check what they are given."""
        b = self.bound_family
        return lambda args, kwargs: tuple(map(kind_of, b.call_arrays(args, kwargs)))

    def _of_file(self, variant: int, sizes: Mapping[str, int]) -> LoadedProgram | None:
        loaded = self.executables.loaded
        return None if loaded is None else loaded.in_kernels(self.bound_family.indices, variant, sizes)

    straight = Strategy.straight

    def run(self, arguments: list[Any]) -> Any:
        if any(isinstance(x, Tracer) for x in arguments):
            return self.run_whole(arguments)
        b, program = self.bound_family, self.program
        arguments = b.check(arguments)
        sizes = b.sizes([x.shape for x in arguments])
        variant = self.family.variant_at(sizes)
        if variant not in self.runners or program.difference_at(sizes) is not None:
            return self.run_whole(arguments)
        runner = self.runners[variant]

        def run(prepared: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
            return program.result(runner.run([*prepared, *b.call_arrays(args, kwargs)], sizes))

        found, (args, kwargs) = KnownCall(run, b.program_indices[variant]), self.call_arguments(arguments)
        result = run(*found.leading(self.prepared_values), *args, **kwargs)
        self.known.put(args, kwargs, found)
        return result

    def lowering(self, sizes: Mapping[str, int], place: Place, pallas: Pallas | None) -> CallParts:
        b, variant = self.bound_family, self.family.variant_at(sizes)
        if variant not in self.runners:
            return super().lowering(sizes, place, pallas)
        which, options = b.program_indices[variant], self.family.variants[variant].compiler_options
        prepared, others = self.call_specs(sizes, which, place)
        # The options are for the compiler of each part.
        runner = KernelRunner(b.variant_program(variant).module, {}, self.program.scope, pallas)
        call = runner.call(sizes)

        def parts() -> Iterator[CallPart]:
            for name, program, lowered in call.lowered([*prepared, *others], place):
                yield CallPart(name, program, lowered, options)

        def takes() -> Sequence[tuple[str, Sequence[Any]]]:
            return call.taken([*prepared, *others])

        written = b.programs[which].is_as_written
        return CallParts(parts, takes, written, variant, KERNELS, storage_bytes=call.planned_bytes)

    def for_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> ByKernel:
        return ByKernel(self.family, self.pallas, self.executables, shapes)


class InKernels(Optimized):
    """An optimized function with variants whose kernels run one by one. Under a trace of JAX it is one program.

    - `runners`: for each variant that is executed in kernels, by index: its runner, with weights as arguments.
    - `pallas`: whether programs that XLA compiles badly are lowered through Pallas on GPUs; a field of device profiles.
    """

    def __init__(self, solution: Solution, explained: Callable[[], Explanation]) -> None:
        # A variant that is kept as written runs in kernels, too: one per operator.
        variants = tuple(replace(v, chosen=v.module) if v.execution == KERNELS else v for v in solution.variants)
        program = replace(solution.program, module=variants[0].chosen)
        self.pallas = solution.pallas
        strategy = ByKernel(Family(program, variants), self.pallas)
        self.runners = strategy.runners
        super().__init__(replace(solution, program=program, variants=variants), strategy, explained)

    @property
    def runner(self) -> KernelRunner:
        """The runner of the variant for the first binding of `at`, with weights as arguments. OptionError if that
        variant is not executed in kernels."""
        if 0 not in self.runners:
            raise OptionError("runner: the variant for the first of `at` is one executable; accepted: runners[i]")
        return self.runners[0]

    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """For each kernel of `module`, by name, the bytes that its executable allocates for itself at these sizes."""
        return self.runner.temporary_bytes(sizes)
