"""The choice between Pallas and XLA for tensor programs: as kernels of their own, and inside one XLA program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import jax

from relax_eg.backend.lowering.lower import lowering_programs_by
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.backend.pallas.plan import Chosen, Unsuitable
from relax_eg.backend.pallas.tiles import choose
from relax_eg.backend.pallas.tuning import XLA, Tuner, of_rank
from relax_eg.errors import DeviceError, RelaxEgError
from relax_eg.logs import raise_if_exhausted
from relax_eg.ops.multiprocessors import MULTIPROCESSORS, Multiprocessors, multiprocessors_of
from relax_eg.ops.triton import unsupported_reason
from relax_eg.tir import TensorProgram

if TYPE_CHECKING:
    from relax_eg.backend.pallas.programs import Lowered

log = logging.getLogger("relax_eg")


class Pallas:
    """Chooses, for the kernels of a module, which are lowered through Pallas, and records the choices.

    - `interpret`: whether to run Pallas kernels in its interpreter, which works on any device; for tests.
    - `compiles`: compiles a lowered kernel, which raises where that is not possible; default: for JAX's own device.
    - `lowers`: lowers a function for arrays of these specs, for the device.
    - `tunes`: whether blocks are chosen by the clock, on JAX's own device.
    - `device`: the GPU, whose multiprocessors the blocks of kernels have to fit.
    - `taken`: reason by name of each program that was lowered through Pallas.
    - `left`: reason by name of each program that was left to XLA.
    """

    def __init__(
        self,
        interpret: bool = False,
        compiles: Callable[[Any], Any] | None = None,
        device: Multiprocessors = MULTIPROCESSORS["h100"],
        lowers: Callable[[Callable[..., Any], Sequence[Any]], Any] = lambda fn, specs: jax.jit(fn).lower(*specs),
        tunes: bool = False,
    ) -> None:
        self.interpret, self.device, self.lowers = interpret, device, lowers
        self.compiles = compiles or (lambda lowered: lowered.compile())
        self._compiled: set[Any] = set()
        self.tuner = Tuner.here(lambda *asked: self._lowered_by(*asked).run) if tunes else None
        self.taken: dict[str, str] = {}
        self.left: dict[str, str] = {}

    @classmethod
    def for_default_device(cls, wanted: bool) -> Pallas | None:
        """A new instance for JAX's default device; None where all programs go to XLA: not `wanted`, or no GPU."""
        if not wanted or jax.default_backend() != "gpu":
            return None
        return cls(device=multiprocessors_of(jax.devices()[0].device_kind), tunes=True)

    def _lowered_by(self, program: TensorProgram, sizes: Mapping[str, int], chosen: Chosen) -> Lowered:
        from relax_eg.backend.pallas.programs import lower_pallas  # imports a large part of JAX that CPUs never need

        return lower_pallas(program, sizes, self.device, interpret=self.interpret, chosen=chosen)

    def lower(self, program: TensorProgram, sizes: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
        """Like `lower_program`, through Pallas where that is preferred."""
        try:
            if why := unsupported_reason(program):
                raise Unsuitable(why)
            if not all(isinstance(n, int) for n in sizes.values()):
                raise Unsuitable("its sizes are not known when it is compiled")
            found = None if self.tuner is None else self.tuner.tuned(program, sizes)
            if found is not None and found.rank == XLA:
                raise Unsuitable(f"XLA is faster: {found.why}")
            lowered = self._lowered_by(program, sizes, choose if found is None else of_rank(found.rank))
        except Unsuitable as e:
            self.left[program.name] = str(e)
            log.info("%s is left to XLA: %s", program.name, e)
            return lower_program(program, sizes)
        why = lowered.why if found is None else f"{lowered.why}; {found.why}"
        self.taken[program.name] = why
        log.info("%s is lowered through Pallas: %s", program.name, why)
        return lowered.run

    def lower_inside(self, program: TensorProgram, sizes: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
        """Like `lower`, for a program inside a larger one, which may be differentiated or lowered for another platform.

        A kernel is compiled by itself first, once for arguments of the same types: one that does not compile must not
        take the larger program along. Its derivatives, and what runs where there is no CUDA, are those of XLA's
        lowering.
        """
        run = self.lower(program, sizes)
        if program.name not in self.taken:
            return run

        def checked(*arrays: Any) -> tuple[Any, ...]:
            specs = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
            key = program, tuple(sizes.items()), specs
            if key not in self._compiled:
                try:
                    self.compiles(self.lowers(run, specs))
                except Exception as e:  # as in `Preferred`
                    raise_if_ours(e)
                    self.failed(program.name, e)
                    return lower_program(program, sizes)(*arrays)
                self._compiled.add(key)
            return either(*arrays)

        xlas = lower_program(program, sizes)

        @jax.custom_jvp
        def either(*arrays: Any) -> Any:
            return run(*arrays) if self.interpret else jax.lax.platform_dependent(*arrays, cuda=run, default=xlas)

        @either.defjvp
        def _derivative(primals: Any, tangents: Any) -> Any:  # type: ignore[reportUnusedFunction]
            return jax.jvp(xlas, primals, tangents)

        return checked

    def failed(self, name: str, error: Exception) -> None:
        """Records that a program chosen for Pallas could not be compiled and is left to XLA."""
        reason = f"Pallas failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        self.taken.pop(name, None)
        self.left[name] = reason
        log.warning("%s is left to XLA: %s", name, reason)


class Preferred:
    """A kernel lowered through Pallas, or through XLA if that does not compile.

    It is called and lowered like the result of `jax.jit`.

    - `name`: the name of its program.
    """

    def __init__(self, name: str, pallas: Pallas, through_pallas: Any, through_xla: Any) -> None:
        self.name, self._pallas = name, pallas
        self._pair = through_pallas, through_xla
        self._settled: Any = None

    def __call__(self, *arrays: Any) -> Any:
        return (self._settled or self._settle(arrays))(*arrays)

    def lower(self, *arrays: Any) -> Any:
        return (self._settled or self._settle(arrays)).lower(*arrays)

    def _settle(self, arrays: tuple[Any, ...]) -> Any:
        first, second = self._pair
        try:
            # Compiled before the first call, which may write over donated arguments.
            self._pallas.compiles(first.lower(*arrays))
            self._settled = first
        except Exception as e:  # any error of Pallas, Triton, XLA or the driver: XLA computes the same
            if self.name not in self._pallas.taken:
                raise
            raise_if_ours(e)
            self._pallas.failed(self.name, e)
            self._settled = second
        return self._settled


def raise_if_ours(e: Exception) -> None:
    """Raises an error of the package, but for those of devices, and one of exhausted memory: XLA's lowering would have
    it too."""
    if isinstance(e, RelaxEgError) and not isinstance(e, DeviceError):
        raise e
    raise_if_exhausted(e)


def lowering_through(pallas: Pallas | None) -> AbstractContextManager[None]:
    """A context in which the tensor programs of whole functions are lowered as `pallas` chooses; None: by XLA."""
    return nullcontext() if pallas is None else lowering_programs_by(pallas.lower_inside)
