"""`PaddedSpread`: functions spread over a mesh whose devices need not divide the sizes of a call.

A size that is padded runs at the next multiple of the number of devices, so every device has equal pieces, and one
executable serves all sizes up to there. The true sizes are arguments of it: what padding must hold follows from index
equations, as for all execution at capacity (`dynamic.plan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.calls.padded import is_key_array
from relax_eg.backend.calls.runtime import Strategy
from relax_eg.backend.calls.whole import Whole
from relax_eg.backend.family import Family
from relax_eg.backend.spread import Spread
from relax_eg.dynamic.lowering import capacity_of
from relax_eg.dynamic.plan import CapacityPlan, plan_most
from relax_eg.errors import OptionError
from relax_eg.ir.annotations import Tensor, Tuple, dims_of
from relax_eg.ir.module import Module
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.memo import Memo
from relax_eg.reports.spread import SpreadReport

_MOST_PROGRAMS = 64  # limit: combinations of variants and capacities whose executables are kept


def plan_over_mesh(name: str, module: Module, padded: Sequence[str]) -> CapacityPlan:
    """The plan of a module for sizes that are padded. OptionError with the operator that cannot be."""
    found, reasons = plan_most(module, padded)
    if found is None or reasons:
        what, why = next(iter(reasons.items()))
        raise OptionError(
            f"{name}(): padded={list(padded)}: {what}: {why}\n  accepted: sizes that are not padded, whose arrays are "
            "split where bounds prove that the devices divide them"
        )
    return found


class PaddedSpread(Spread):
    """A function spread over a mesh, some sizes of which are padded. Traced calls and `to_jax` run at exact sizes; as
    written where a size is smaller than the number of devices."""

    @classmethod
    def padded_over(
        cls, best: Optimized, mesh: DeviceMesh, reports: Sequence[SpreadReport], padded: Sequence[str]
    ) -> PaddedSpread:
        """`best` with the sizes `padded` at multiples of the devices of the mesh. OptionError as `plan_over_mesh`."""
        program = best.solution.program
        plans = [plan_over_mesh(program.name, v.module, padded) for v in best.variants]
        for variant, report in zip(best.variants, reports, strict=True):
            _check_divided(program.name, variant.module, mesh, report, padded)
        strategy = _AtMultiples(Family(program, best.variants))
        made = cls(best.solution, strategy, best.explain)
        made.mesh, made.spreadings = mesh, tuple(reports)
        strategy.run_padded, strategy.least = made._run_padded, dict.fromkeys(padded, mesh.devices)
        made._plans = plans
        made._programs = Memo[Any, Any](_MOST_PROGRAMS)
        return made

    _plans: Sequence[CapacityPlan]
    _programs: Memo[Any, Any]

    def capacities(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The multiples of the devices at which a call of these sizes runs, for each size that is padded."""
        n = self.mesh.devices
        return {v: math.ceil(sizes[v] / n) * n for v in self._plans[0].dims}

    def _placed(self, x: Any, sharding: Any) -> Any:
        return super()._placed(x, sharding) if _is_divided(np.shape(x), sharding) else x

    def _is_elsewhere(self, x: jax.Array, sharding: Any) -> bool:
        return _is_divided(x.shape, sharding) and super()._is_elsewhere(x, sharding)

    def _jitted(self, variant: int, donated: tuple[int, ...]) -> Callable[..., Any]:
        known = list(dict.fromkeys(self._program.arguments))
        names = {known[i] for i in donated}

        def run(*args: Any) -> Any:
            with self._program.width_context():
                return self._run_padded(self._program.check(self._program.call_arrays(args, {})), names)

        return run

    def _run_padded(self, leaves: Sequence[Any], donated: set[str] | frozenset[str] = frozenset()) -> Any:
        """The result of a call with these arrays. Those of the arguments `donated` are reused."""
        program = self._program
        sizes = program.sizes([x.shape for x in leaves])
        variant, at = self.variant_of(leaves), self.capacities(sizes)
        plan = self._plans[variant]
        if not plan.applies(sizes) or program.difference_at(sizes) is not None:
            return program.run_as_written(list(leaves))
        fixed = {v: n for v, n in sizes.items() if v not in at}
        shapes = plan.input_shapes(at, fixed)
        key = variant, tuple(at.items()), tuple(fixed.items()), frozenset(donated)
        run = self._programs.get_or_make(key, lambda: self._executable(variant, at, donated))
        wanted = self.in_shardings_of(variant)
        given = [_enlarged(x, n, s) for x, n, s in zip(leaves, shapes, wanted, strict=True)]
        made = run({v: np.int32(sizes[v]) for v in at}, *given)
        annotation = self.variants[variant].module.main.annotation
        results = annotation.fields if isinstance(annotation, Tuple) else (annotation,)
        return program.result(tuple(_cut(x, a, sizes) for x, a in zip(made, results, strict=True)))

    def _executable(self, variant: int, at: Mapping[str, int], donated: set[str] | frozenset[str]) -> Any:
        run_at_capacity = self._plans[variant].lower(at)

        def run(sizes: Mapping[str, Any], *leaves: Any) -> tuple[Any, ...]:
            found = run_at_capacity(leaves, sizes)
            return tuple(found) if isinstance(found, (tuple, list)) else (found,)

        run.__name__ = self._program.name
        reused = [i + 1 for i, a in enumerate(self._program.arguments) if a in donated]
        options = dict(self.variants[variant].compiler_options) or None
        outs = tuple(self.out_shardings_of(variant))
        return jax.jit(run, out_shardings=outs, donate_argnums=reused, compiler_options=options)


class _AtMultiples(Whole):
    """Runs calls through `run_padded`, which a `PaddedSpread` sets, and traced ones at exact sizes, as written where a
    size is below `least`."""

    run_padded: Callable[[Sequence[Any]], Any]
    least: Mapping[str, int]

    serves_all = False
    straight = Strategy.straight

    def run(self, arguments: list[Any]) -> Any:
        if any(isinstance(x, Tracer) for x in arguments):
            args, kwargs = self.call_arguments(arguments)
            return self.to_jax()(*args, **kwargs)
        return self.run_padded(self.check_arguments(arguments))

    def to_jax(self) -> Callable[..., Any]:
        chosen, program = super().to_jax(), self.program

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = program.call_arrays(args, kwargs)
            sizes = program.sizes([np.shape(x) for x in leaves])
            if any(isinstance(sizes[v], int) and sizes[v] < n for v, n in self.least.items()):
                return program.run_as_written(leaves)
            return chosen(*args, **kwargs)

        run.__name__ = program.name
        return run


def _is_divided(shape: Sequence[int], sharding: Any) -> bool:
    """Whether the devices divide an array of this shape."""
    sizes = sharding.mesh.shape
    names = [() if p is None else p if isinstance(p, tuple) else (p,) for p in sharding.spec]
    return all(n % math.prod(sizes[a] for a in over) == 0 for n, over in zip(shape, names, strict=False))


def _enlarged(x: Any, shape: Sequence[int], sharding: Any) -> Any:
    """`x` in a larger shape, where it is to be; zeros stand after it."""
    widths = [(0, n - m) for n, m in zip(shape, x.shape, strict=True)]
    if not any(w for _, w in widths):
        return jax.device_put(x, sharding)
    if is_key_array(x):
        data = jnp.asarray(np.pad(np.asarray(jax.random.key_data(x)), [*widths, (0, 0)]))
        return jax.device_put(jax.random.wrap_key_data(data, impl=jax.random.key_impl(x)), sharding)
    return jax.device_put(np.pad(np.asarray(x), widths), sharding)


def _cut(x: Any, annotation: Any, sizes: Mapping[str, int]) -> Any:
    assert isinstance(annotation, Tensor)
    shape = tuple(int(d.evaluate(sizes)) for d in annotation.shape or ())
    return x if x.shape == shape else x[tuple(map(slice, shape))]


def _check_divided(name: str, module: Module, mesh: DeviceMesh, report: SpreadReport, padded: Sequence[str]) -> None:
    """OptionError for an argument or result that is split along a size which is no multiple of the devices where the
    sizes `padded` are: the capacity of `16 - b` is 15."""
    made = module.main.annotation
    annotations = [p.annotation for p in module.main.params], made.fields if isinstance(made, Tuple) else (made,)
    at = dict.fromkeys(padded, mesh.devices)
    for rows, given in zip((report.arguments, report.results), annotations, strict=True):
        for row, a in zip(rows, given, strict=True):
            pieces = MeshPlacement.parse(row.placement).splits(len(dims_of(a)), mesh)
            for d, n in zip(dims_of(a), pieces, strict=True):
                if n > 1 and d.variables and d.variables <= set(padded) and capacity_of(d, at) % n:
                    raise OptionError(
                        f"{name}(): padded={list(padded)}: {row.name} is split along {d}, which at capacity is no "
                        f"multiple of {n}\n  accepted: R as its placement"
                    )
