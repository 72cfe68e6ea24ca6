"""Memory footprints of calls: of one XLA program as XLA reports it, of kernels by memory plan and executables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from relax_eg.backend.accounting import allocated_bytes, compiled_for_account, lowered_allocated_bytes
from relax_eg.backend.calls.program import abstract_array
from relax_eg.backend.kernel_calls import Call, Kernels
from relax_eg.backend.lowering.lower import run_at
from relax_eg.backend.pallas.choice import Pallas, lowering_through
from relax_eg.extract.footprint import Footprint
from relax_eg.ir.annotations import Annotation, Tensor, Tuple
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ir.partition import split
from relax_eg.memory import Plan, plan

if TYPE_CHECKING:
    from relax_eg.backend.gpu.target import GpuTarget

_NAMED = 6  # limit: number of largest values that a footprint names


def call_part(module: Module, weights: set[str]) -> Module:
    """The part of a module that runs per call, where the parameters named `weights` are bound before."""
    if not weights:
        return module
    main = split(module.main, weights).main
    return Module((main, *(f for f in module if f.name != module.main.name)))


def whole_footprint(
    module: Module,
    weights: set[str],
    sizes: Mapping[str, int],
    options: Mapping[str, str],
    absent: GpuTarget | None = None,
    pallas: bool = False,
    exactly: bool = True,
) -> Footprint:
    """The footprint of a module as one XLA program, compiled with these options of XLA's: for the device at hand, or
    for an absent one. `pallas`: whether kernels are lowered through Pallas on GPUs. `exactly`: as of
    `compiled_for_account`. DeviceError where XLA does not compile it for an absent device."""
    module = call_part(module, weights)
    f, own = module.main, _pallas(absent, pallas)

    def run(*arrays: Any) -> Any:
        with lowering_through(own):
            return run_at(module, f, arrays, sizes)

    if absent is None:
        lowered = jax.jit(run, keep_unused=True, compiler_options=dict(options) or None).lower(*avals(f, sizes))
        compiled = compiled_for_account(lowered, exactly)
    else:
        with absent.lowering_there():
            compiled = absent.compile(absent.lowered(run, avals(f, sizes)), options, tiles=False).executable
    analysis: Any = compiled.memory_analysis()
    temporary, results = allocated_bytes(compiled), int(analysis.output_size_in_bytes)
    peak = (("XLA's temporary buffers", temporary), ("results", results))
    return Footprint(dict(sizes), 0, results, temporary, peak)


def _pallas(absent: GpuTarget | None, wanted: bool) -> Pallas | None:
    """Chooses the kernels that are lowered through Pallas: for an absent GPU, or for the device at hand."""
    if absent is None:
        return Pallas.for_default_device(wanted)
    return absent.pallas() if wanted else None


def likely_peak_values(module: Module, weights: set[str], sizes: Mapping[str, int]) -> frozenset[tuple[str, Expr]]:
    """The values of one XLA program that are likely live at its memory peak, by function and expression.

    XLA does not report liveness, so they are determined as if each operator stored its result.
    """
    return _peak_values(plan(call_part(module, weights), dict(sizes)))


def _peak_values(found: Plan) -> frozenset[tuple[str, Expr]]:
    steps, writer = found.program.steps, found.program.writer
    at = {w for x in found.peak for v in x.values if (w := writer[v]) is not None}
    return frozenset((steps[w].function, steps[w].kernel) for w in at)


@dataclass(frozen=True)
class KernelFootprint:
    """The footprint of a call that runs in kernels. Kernels are identified by function and expression.

    - `footprint`: the bytes of the call, and its largest values at the peak.
    - `peak_kernels`: kernels whose results are live at the peak, or that allocate most for themselves.
    - `private_bytes`: bytes that the executable of each kernel allocates for itself.
    """

    footprint: Footprint
    peak_kernels: frozenset[tuple[str, Expr]]
    private_bytes: Mapping[tuple[str, Expr], int]


def kernel_footprint(
    module: Module,
    weights: set[str],
    sizes: Mapping[str, int],
    options: Mapping[str, str],
    absent: GpuTarget | None = None,
    pallas: bool = False,
    exactly: bool = True,
    most: float = math.inf,
) -> KernelFootprint:
    """The footprint of a module that runs in kernels, each compiled with these options of XLA's. `absent`, `pallas`,
    `exactly` and errors: as of `whole_footprint`. `most`: if the storages and results take more bytes, no kernel is
    compiled, and the footprint, without temporaries, is predicted: no fewer bytes are needed."""
    module = call_part(module, weights)
    # JAX refuses options of a function that is lowered within another; an absent device compiles with them.
    kernels = Kernels(module, options if absent is None else {}, _pallas(absent, pallas))
    call = Call(kernels, plan(module, dict(sizes)), sizes, module.main.result.annotation)
    program = call.plan.program
    results = sum(int(x.bytes.evaluate(sizes)) for x in program.values if x.role == "result" and x.bytes is not None)
    is_over = call.planned_bytes + results > most
    if is_over:
        own = dict[str, int]()
    elif absent is None:
        own = call.temporaries(
            avals(module.main, sizes),
            allocated=lambda lowered: lowered_allocated_bytes(lowered, kernels.options, exactly),
        )
    else:
        with absent.lowering_there():
            own = call.temporaries(
                avals(module.main, sizes),
                absent.place,
                lambda lowered: allocated_bytes(absent.compile(lowered, options, tiles=False).executable),
            )
    named = [(program.values[x.values[0]].name, int(x.bytes.evaluate(sizes))) for x in call.plan.peak]
    at_peak = {*_peak_values(call.plan)}
    temporary = max(own.values(), default=0)
    for s in program.steps:
        if temporary and own[s.name] == temporary:
            named.append((f"inside {s.name}", temporary))
            at_peak.add((s.function, s.kernel))
    named.sort(key=lambda pair: -pair[1])
    found = Footprint(dict(sizes), call.planned_bytes, results, temporary, tuple(named[:_NAMED]), is_over)
    private_bytes = {(s.function, s.kernel): own[s.name] for s in program.steps if s.name in own}
    return KernelFootprint(found, frozenset(at_peak), private_bytes)


def avals(f: Function, sizes: Mapping[str, int]) -> list[Any]:
    """The arguments of a function at a binding of sizes, as `jax.ShapeDtypeStruct`s."""
    return [_aval(p.annotation, sizes) for p in f.params]


def _aval(a: Annotation, sizes: Mapping[str, int]) -> Any:
    if isinstance(a, Tuple):
        return tuple(_aval(x, sizes) for x in a.fields)
    assert isinstance(a, Tensor) and a.shape is not None and a.dtype is not None
    return abstract_array(a, [int(d.evaluate(sizes)) for d in a.shape])
