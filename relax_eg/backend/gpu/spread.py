"""What XLA makes of a spread function for described GPUs: the collectives that it inserts, and each device's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from relax_eg.backend.calls.program import Program
from relax_eg.backend.gpu.hlo import HloCollective, collectives
from relax_eg.backend.gpu.target import described_devices
from relax_eg.errors import DeviceError
from relax_eg.ir.placements import DeviceMesh, MeshPlacement
from relax_eg.ops.placing import jax_sharding, on_devices


@dataclass(frozen=True)
class SpreadCompilation:
    """What XLA made of a spread function.

    - `device`: the device.
    - `collectives`: the collectives of a call on each device.
    - `arguments`, `results`, `temporary`, `shared`: bytes on each device; `shared` are those of results in donated
      arguments.
    - `text`: the optimized HLO.
    """

    device: str
    collectives: tuple[HloCollective, ...]
    arguments: int
    results: int
    temporary: int
    shared: int
    text: str

    @property
    def memory(self) -> int:
        """Bytes that a call takes on each device."""
        return self.arguments + self.results + self.temporary - self.shared

    def bytes_by_kind(self, beside: bool = False) -> dict[str, float]:
        """Bytes of the results of all collectives of a call, by kind. `beside`: only of those beside which XLA launches
        kernels, so that their sending overlaps with computing."""
        found: dict[str, float] = {}
        for c in self.collectives:
            if c.beside or not beside:
                found[c.kind] = found.get(c.kind, 0.0) + c.bytes * c.times
        return found


def compile_spread(
    fn: Callable[..., Any],
    program: Program,
    mesh: DeviceMesh,
    inputs: Sequence[MeshPlacement],
    outputs: Sequence[MeshPlacement],
    device: str,
    at: Mapping[str, int],
    donated: Sequence[int] = (),
    compiler_options: Mapping[str, str] = MappingProxyType({}),
) -> SpreadCompilation:
    """What XLA makes of a function for as many devices as a mesh has. "cpu" stands for the CPUs that JAX has.

    - `fn`: the function, of the arguments of `program`.
    - `inputs`, `outputs`: the placements of the arrays of arguments and results.
    - `at`: the sizes.
    - `donated`: the positions of the arguments whose arrays are reused.
    - `compiler_options`: those of XLA.
    """
    devices = jax.devices("cpu") if device == "cpu" else described_devices(device, mesh.devices)
    with on_devices(devices):
        specs = [
            jax.ShapeDtypeStruct(
                tuple(int(d.evaluate(at)) for d in p.annotation.shape),  # type: ignore[union-attr]
                np.dtype(p.annotation.dtype) if p.annotation.dtype in np.sctypeDict else p.annotation.dtype,  # type: ignore[union-attr]
                sharding=jax_sharding(mesh, place, p.annotation.ndim),  # type: ignore[union-attr]
            )
            for p, place in zip(program.params, inputs, strict=True)
        ]
        args, kwargs = jax.tree_util.tree_unflatten(program.in_tree, specs)
        ranks = [max((x + 1 for x in p.parts if isinstance(x, int)), default=0) for p in outputs]
        wanted = [jax_sharding(mesh, p, r) for p, r in zip(outputs, ranks, strict=True)]
        outs = jax.tree_util.tree_unflatten(program.out_tree, wanted)
        made = jax.jit(fn, out_shardings=outs, donate_argnums=tuple(donated))
        lowered = made.lower(*args, **kwargs)
    options: dict[str, str | bool] = dict(compiler_options)
    if device != "cpu":
        options["xla_gpu_autotune_level"] = "0"
    try:
        executable = lowered.compile(compiler_options=options)
    except Exception as e:
        first = (str(e).strip().splitlines() or [type(e).__name__])[0][:300]  # limit: letters of XLA's error
        raise DeviceError(f"XLA does not compile {program.name}() for {mesh.devices} x {device}: {first}") from e
    text, memory = executable.as_text() or "", executable.memory_analysis()
    if memory is None:
        raise DeviceError(f"XLA tells no memory of {program.name}() for {mesh.devices} x {device}")
    return SpreadCompilation(
        device,
        tuple(collectives(text)),
        int(memory.argument_size_in_bytes),
        int(memory.output_size_in_bytes),
        int(memory.temp_size_in_bytes),
        int(memory.alias_size_in_bytes),
        text,
    )
