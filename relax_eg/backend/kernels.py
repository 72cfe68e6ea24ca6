"""`execution="kernels"`: a module run kernel by kernel, each an executable of its own.

A kernel is a call of a tensor program, an operator that stands alone, a library call or a loop. What moves nothing (a
reshape) is no kernel: whoever reads it reads what it is a view of. For each binding of the sizes the kernels that run
are a flat list that follows the memory plan (`kernel_calls`); what is shared by layers is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.core import Tracer

from relax_eg.backend.checks import Fit, cast_fits
from relax_eg.backend.family import Family, Variant
from relax_eg.backend.footprint import avals
from relax_eg.backend.kernel_calls import Call, Executables
from relax_eg.backend.lower import new_sizes
from relax_eg.backend.optimized import Optimized
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.backend.program import Program, without_notes
from relax_eg.backend.ready import WRITTEN, Ready
from relax_eg.backend.width import in_its_width
from relax_eg.errors import OptionError, RelaxEgError
from relax_eg.explain.text import Explanation
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Module
from relax_eg.memory import Plan, as_it_runs, plan, program_of
from relax_eg.shapes import Scope

_MOST_HELD = 2  # times the storages of the largest binding: what those of all bindings that were called may take


class KernelRunner:
    """Runs the entry of a module on arrays, kernel by kernel. `compiler_options`: XLA's, for each of them; `scope`:
    what must hold of the sizes that a `match_cast` tells; `pallas`: chooses what is lowered through Pallas, and tells
    afterwards what was."""

    def __init__(
        self,
        module: Module,
        compiler_options: Mapping[str, str] | None = None,
        scope: Scope | None = None,
        pallas: Pallas | None = None,
    ) -> None:
        self.pallas = pallas
        self.module = module
        self.wide = module.wide
        self._casts = _casts(module)
        self._scope = scope
        self._executables = Executables(module, compiler_options or {}, pallas)
        self._calls: dict[Any, Call] = {}
        self._temporaries: dict[Any, Mapping[str, int]] = {}

    @in_its_width
    def run(self, args: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        """What the entry returns for these arrays: an array, or a tuple of them."""
        return self.call(sizes, _on_one_device(args)).run(args)

    @in_its_width
    def call(self, sizes: Mapping[str, int], storages: bool = True) -> Call:
        """The call at a binding; with `storages` arrays are kept for the next call."""
        key = (tuple(sizes.values()), storages)
        found = self._calls.pop(key, None)
        if found is None:
            result = self.module.main.result.annotation
            known = self._told(sizes)
            found = Call(self._executables, plan(self.module, known), known, result, storages)
        self._calls[key] = found  # the one that was called last stands last
        if len(self._calls) > 1:
            self._forget(found)
        return found

    def _told(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes of the arguments, and those that the entry's casts tell. ShapeError, BoundsError where what is cast
        does not fit."""
        known = dict(sizes)
        for source, fit in self._casts:
            shape = [d.evaluate(known) for d in source.shape or ()]
            new_sizes(fit, jax.ShapeDtypeStruct(shape, source.dtype), known, self._scope, self.module.main.name)
        return known

    def _forget(self, latest: Call) -> None:
        """Let go of the storages of bindings that were not called for long, where all together are too many."""
        planned = [(c, c.planned_bytes) for c in self._calls.values()]
        allowed = _MOST_HELD * max(n for _, n in planned)
        for c, n in reversed(planned):
            allowed -= n
            if allowed < 0 and c is not latest:
                c.forget()

    @in_its_width
    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """For each kernel of the call at a binding, by its name there, the bytes that its executable allocates for
        itself, at most."""
        key = tuple(sorted(sizes.items()))
        if key not in self._temporaries:
            self._temporaries[key] = self.call(sizes).temporaries(avals(self.module.main, self._told(sizes)))
        return self._temporaries[key]

    def measured_plan(self, sizes: Mapping[str, int]) -> Plan:
        """The memory of the call at a binding as it runs, what executables allocate for themselves among it."""
        return as_it_runs(self.call(sizes).plan, self.temporary_bytes(sizes))

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are kept for calls to come."""
        return sum(c.held_bytes for c in self._calls.values())

    @property
    def compiled_kernels(self) -> int:
        """How many different kernels the calls so far are made of: whatever differs only in what it may write over is
        one."""
        return self._executables.kinds

    def kernels(self, function: str | None = None) -> list[Expr]:
        """The kernels of a function (the entry) in the order in which they run, what it calls left out."""
        name = function or self.module.main.name
        return [s.kernel for s in program_of(self.module, function=name).steps if s.function == name]


def _casts(module: Module) -> list[tuple[Tensor, Fit]]:
    """What each `match_cast` of the entry is of, and what it asserts, in order. OptionError where sizes are only known
    once a kernel has run."""
    found: list[tuple[Tensor, Fit]] = []
    for f in module:
        fits = cast_fits(f)
        sources = {b.var: b.value.args[0].annotation for block in f.blocks for b in block.bindings if b.var in fits}
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


class _Alike:
    """Arguments that were found to fit, and the sizes that they tell: others like them fit as well."""

    __slots__ = ("likes", "sizes")

    def __init__(self, checked: Sequence[Any], sizes: Mapping[str, int]) -> None:
        # Keys have no weak type to look at.
        self.likes = [(type(x), x.shape, x.dtype, getattr(x, "weak_type", None)) for x in checked]
        self.sizes = sizes

    def fit(self, args: Sequence[Any]) -> bool:
        for x, (kind, shape, dtype, weak) in zip(args, self.likes, strict=True):
            if type(x) is not kind or x.shape != shape or x.dtype != dtype:
                return False
            if weak is not None and x.weak_type != weak:
                return False
        return True


class InKernels(Optimized):
    """An optimized function whose kernels run one by one. Traced by JAX, it is one program like any other.

    `runners`: what runs each of its variants, weights being arguments. `pallas`: whether GPUs get what XLA serves badly
    through Pallas, a field of device profiles."""

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, ...],
        weights: tuple[str, ...],
        tolerance: float,
        explained: Callable[[], Explanation],
        pallas: bool = False,
    ) -> None:
        self.pallas = pallas
        # What is kept as it was written runs in kernels, too: one for each of its operators.
        variants = tuple(replace(v, chosen=v.module) for v in variants)
        super().__init__(program, variants, weights, tolerance, explained)
        self.runners = [
            KernelRunner(v.module, v.compiler_options, program.scope, Pallas.here(pallas)) for v in variants
        ]
        self._alike: _Alike | None = None

    @property
    def runner(self) -> KernelRunner:
        """What runs the variant for the first of `at`, its weights being arguments."""
        return self.runners[0]

    def temporary_bytes(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """For each kernel of `module`, at these sizes, the bytes that its executable allocates for itself."""
        return self.runner.temporary_bytes(sizes)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        p = self._program
        leaves = p.leaves(args, kwargs)
        if any(isinstance(x, Tracer) for x in leaves):
            return super()._run(args, kwargs)
        try:
            alike = self._alike
            if alike is None or not alike.fit(leaves):
                leaves = p.check(leaves)
                sizes = p.sizes([x.shape for x in leaves])
                if p.other_at(sizes) is not None:
                    return self._whole(*args, **kwargs)
                alike = self._alike = _Alike(leaves, sizes)
            return p.result(self.runners[self._family.at(alike.sizes)].run(leaves, alike.sizes))
        except RelaxEgError as e:
            raise without_notes(e) from None

    def _bind(self, weights: list[Any]) -> Ready:
        return ReadyInKernels(self._family, self._weight_indices, weights, self.pallas)


class ReadyInKernels(Ready):
    """An optimized function with its weights bound, which runs in kernels. `runners`: what runs each of its
    variants."""

    def __init__(self, family: Family, indices: Sequence[int], weights: list[Any], pallas: bool = False) -> None:
        super().__init__(family, indices, weights)
        pairs = zip(self._of_variant, family.variants, strict=True)
        scope = family.programs[0].scope
        self.runners = [KernelRunner(b.module, v.compiler_options, scope, Pallas.here(pallas)) for b, v in pairs]
        self._alike: _Alike | None = None

    @property
    def runner(self) -> KernelRunner:
        """What runs the variant for the first of `at`, on what is prepared and the other arguments."""
        return self.runners[0]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._wide and self._program.is_elsewhere:
            return self._from_elsewhere(args, kwargs)
        return self.run(self._others(args, kwargs))

    def run(self, others: list[Any]) -> Any:
        if any(isinstance(x, Tracer) for x in others):
            return super().run(others)
        p = self._program
        try:
            alike = self._alike
            if alike is None or not alike.fit(others):
                others = p.check(others, self._others_at)
                if self._variant(others) == WRITTEN:
                    return self._as_written(others)
                alike = self._alike = _Alike(others, p.sizes(self._shapes(others)))
            which = self._family.at(alike.sizes)
            return p.result(self.runners[which].run([*self._of_variant[which].prepared, *others], alike.sizes))
        except RelaxEgError as e:
            raise without_notes(e) from None
