"""Executables of a file that run here: loaded by XLA, and called in place of what `jax.jit` would compile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from relax_eg.backend.calls.statistics import StoredRow, Tally
from relax_eg.backend.files.stored import StoredExecutable, StoredProgram
from relax_eg.backend.files.trees import tree_of_data
from relax_eg.errors import DeviceError
from relax_eg.logs import raise_if_exhausted
from relax_eg.ops.keys import argument_dtype
from relax_eg.settings import context_now


def load_executables(program: StoredProgram, codes: Sequence[bytes]) -> tuple[jax.stages.Compiled, ...]:
    """The executables of a program for JAX's default device, called like `jax.jit(...).lower(...).compile()`.

    The machine code is trusted: what it says may run as soon as XLA loads it. DeviceError where XLA or JAX refuse it.
    """
    made: dict[str, jax.stages.Compiled] = {}
    for e in program.executables:
        if repr(e) not in made:
            made[repr(e)] = _loaded(e, codes[e.code])
    return tuple(made[repr(e)] for e in program.executables)


def _loaded(e: StoredExecutable, code: bytes) -> jax.stages.Compiled:
    try:  # jax.extend exports nothing that makes an executable of machine code
        from jax._src.interpreters.pxla import UnloadedMeshExecutable
        from jaxlib.xla_client import DeviceList
    except ImportError as error:
        raise _unknown_jax(str(error)) from error
    device = jax.devices()[0]
    devices, sharding = DeviceList((device,)), SingleDeviceSharding(device)
    taken, given = (
        [ShapedArray(a.shape, argument_dtype(a.dtype), weak_type=a.weak) for a in arrays]
        for arrays in (e.arguments, e.results)
    )
    known: dict[str, Any] = {
        "device_list": devices, "backend": device.client, "name": e.name, "committed": False,
        "input_avals": taken, "input_shardings": [sharding] * len(taken),
        "output_avals": given, "output_shardings": [sharding] * len(given),
        "unordered_effects": [], "ordered_effects": [], "keepalive": [], "host_callbacks": [], "mut": None,
        "kept_var_idx": set(range(len(taken))), "all_args_info": None, "pgle_profiler": None,
        "xla_in_layouts": [None] * len(taken), "dispatch_in_layouts": [None] * len(taken),
        "xla_out_layouts": [None] * len(given),
    }  # fmt: skip
    asked = {f.name for f in fields(UnloadedMeshExecutable)} - {"xla_executable"}
    if new := asked - known.keys():
        raise _unknown_jax(f"it also asks for {', '.join(sorted(new))}")
    in_tree, out_tree = tree_of_data(e.in_tree), tree_of_data(e.out_tree)
    try:
        loaded = device.client.deserialize_executable(code, executable_devices=devices)
        made = UnloadedMeshExecutable(xla_executable=loaded, **{k: known[k] for k in asked}).load()
    except Exception as error:
        raise_if_exhausted(error)
        raise DeviceError(f"XLA does not load `{e.name}`: {type(error).__name__}: {str(error)[:300]}") from error
    return jax.stages.Compiled(made, [], jax.tree_util.tree_unflatten(in_tree, taken), out_tree)


def _unknown_jax(why: str) -> DeviceError:
    return DeviceError(f"JAX {jax.__version__} describes executables in a way that is not known here: {why}")


@dataclass(eq=False)
class LoadedProgram:
    """What calls at some sizes run, from a file.

    - `stored`: what the file says of it.
    - `code_bytes`: bytes of machine code.
    - `why_not`: why it does not run here; "" where it does.
    - `compiled`: its executables, in the order of a call; empty where it does not run here.
    - `context`: the settings of JAX under which it serves calls.
    - `tally`: counts the calls that it served.
    """

    stored: StoredProgram
    code_bytes: int
    why_not: str
    compiled: tuple[Any, ...] = ()
    context: Any = None
    tally: Tally = field(default_factory=Tally)

    @property
    def compile_seconds(self) -> float:
        """Wall time of compiling it, where it was compiled."""
        return sum({e.code: e.compile_seconds for e in self.stored.executables}.values())

    @property
    def row(self) -> StoredRow:
        s, calls = self.stored, self.tally.total
        return StoredRow(s.key.device, s.at, s.capacities, len(s.executables), self.code_bytes, calls, self.why_not)


class LoadedPrograms(tuple[LoadedProgram, ...]):
    """The programs of a file, those that do not run here among them."""

    __slots__ = ()

    def at_exact_sizes(self, weights: Collection[int], variants: Collection[int]) -> list[LoadedProgram]:
        """Those that are one executable for exact sizes, with these parameters bound, of one of these variants."""
        return [p for p in self._of(weights, "whole") if not p.stored.capacities and p.stored.variant in variants]

    def at_capacity(
        self, weights: Collection[int], variant: int, capacities: Mapping[str, int]
    ) -> LoadedProgram | None:
        """The one for buffers of these sizes."""
        fit = (p for p in self._of(weights, "whole") if p.stored.variant == variant)
        return next((p for p in fit if dict(p.stored.capacities) == dict(capacities)), None)

    def in_kernels(self, weights: Collection[int], variant: int, sizes: Mapping[str, int]) -> LoadedProgram | None:
        """The program for these sizes that has an executable for each kernel."""
        fit = (p for p in self._of(weights, "kernels") if p.stored.variant == variant)
        return next((p for p in fit if dict(p.stored.at) == dict(sizes)), None)

    @property
    def has_capacities(self) -> bool:
        return any(p.stored.capacities for p in self if p.compiled)

    @property
    def compile_seconds(self) -> float:
        """Mean wall time of compiling those that run here, where they were compiled; 0 where none runs here."""
        found = [p.compile_seconds for p in self if p.compiled]
        return sum(found) / len(found) if found else 0.0

    def _of(self, weights: Collection[int], execution: str) -> Iterator[LoadedProgram]:
        bound = sorted(weights)
        here = (p for p in self if p.compiled and p.stored.execution == execution)
        return (p for p in here if sorted(p.stored.weights) == bound)


class FromFile:
    """A function whose executables for some arguments come from a file; called and lowered like `jitted`, the result of
    `jax.jit` that serves all other calls: those with other shapes or tracers, and those under other settings of JAX.
    """

    def __init__(self, found: Sequence[tuple[LoadedProgram, int]], jitted: Any, counts: bool = True) -> None:
        """`found`: programs, each with the index of the executable in it. `counts`: whether it counts their calls."""
        self._jitted, self._counts = jitted, counts
        self._by_shapes: dict[tuple[Any, ...] | None, tuple[LoadedProgram, Any]] = {
            tuple(a.shape for a in p.stored.executables[i].arguments): (p, p.compiled[i]) for p, i in found
        }
        self._only = next(iter(self._by_shapes.values())) if len(self._by_shapes) == 1 else None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        found = self._only
        if found is None:
            try:
                shapes = tuple([x.shape for x in jax.tree_util.tree_leaves((args, kwargs))])
            except AttributeError:  # a number, which has no shape
                shapes = None
            found = self._by_shapes.get(shapes)
        if found is None or context_now() != found[0].context:
            return self._jitted(*args, **kwargs)
        program, run = found
        try:
            result = run(*args, **kwargs)
        except (TypeError, ValueError):  # arguments of other types, on another device, or of a trace: nothing ran
            return self._jitted(*args, **kwargs)
        if self._counts:
            program.tally.tick()
        return result

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._jitted.lower(*args, **kwargs)

    def clear_cache(self) -> None:
        """Drops what `jitted` compiled."""
        self._jitted.clear_cache()
