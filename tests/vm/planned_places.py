"""The reference machine: the instructions of a module on numpy arrays, in the storages that are planned.

XLA allocates its arrays itself. This machine puts each planned value at its place, and overwrites the place when the
value's life ends. So a wrong plan shows in the results, and the bytes that are held are those of the plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from relax_eg.backend.calls.executables import executables
from relax_eg.backend.steps import Runner, StepPrograms
from relax_eg.dtypes import numpy_dtype
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.calls import call_function, function_ref
from relax_eg.ir.expr import Expr, constant_value
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ops.interpret import SPOILED, SharedValues
from relax_eg.shapes import Scope
from relax_eg.vm.compile import RegionProgram
from relax_eg.vm.machine import PlannedMemory


class Storages(PlannedMemory):
    """Storages as arrays of bytes, and how many bytes are held.

    - `held`, `peak`: the bytes of the storages now, and the most so far.
    """

    def __init__(self) -> None:
        self.held = self.peak = 0
        self._living: dict[int, weakref.ref[Any]] = {}  # the tensor that is in each storage

    def storage(self, size: int) -> Any:
        made = np.full(size, SPOILED, np.uint8)
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(made, self._freed, size, id(made))
        return made

    def _freed(self, size: int, key: int) -> None:
        self.held -= size
        self._living.pop(key, None)

    def tensor(self, storage: Any, shape: tuple[int, ...], dtype: str) -> Any:
        kind = numpy_dtype(dtype)
        made = storage[: int(np.prod(shape, dtype=np.int64)) * kind.itemsize].view(kind).reshape(shape)
        self._living[id(storage)] = weakref.ref(made)
        return made

    def fill(self, tensor: Any, value: Any) -> Any:
        tensor[...] = value
        return tensor

    def kill(self, value: Any) -> None:
        living = self._living.get(id(getattr(value, "base", None)))
        if living is not None and living() is value:
            value.base[...] = SPOILED


class _ReferencePrograms(StepPrograms):
    """Runs blocks and functions by the reference interpreter."""

    def region(
        self, function: Function, block: Block, known: Sequence[str], device: str | None = None
    ) -> RegionProgram:
        exact = super().region(function, block, known)

        def run(values: list[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
            told = [e.annotation for e in exact.reads]
            bound = {**_sizes_of(told, values), **sizes}
            found = SharedValues(self.module, dict(zip(exact.reads, values, strict=True)), bound)
            made = [found.of(b.value) for b in block.bindings]
            return jax.tree_util.tree_map(np.array, made)

        return RegionProgram(run, exact.reads, exact.sizes, lambda *_: run)

    def whole(self, function: Function) -> Callable[[list[Any], Mapping[str, int]], Any]:
        called = call_function(function_ref(function), function.params)
        return lambda values, sizes: SharedValues(
            self.module, dict(zip(function.params, values, strict=True)), sizes
        ).of(called)

    def constant(self, e: Expr) -> Any:
        return constant_value(e)


def _sizes_of(annotations: Sequence[Annotation], values: Sequence[Any]) -> Mapping[str, int]:
    """The size variables that are sizes of these values."""
    pairs = [
        (d, n)
        for a, v in zip(annotations, values, strict=True)
        if isinstance(a, Tensor)
        for d, n in zip(a.shape or (), v.shape, strict=False)
    ]
    return {str(d): int(n) for d, n in pairs if [*d.variables] == [str(d)]}


class ReferenceRunner(Runner):
    """Runs the entry of a module on numpy arrays.

    - `memory`: its storages.
    """

    def __init__(self, module: Module, scope: Scope) -> None:
        super().__init__(module, scope, executables({}, 1), _ReferencePrograms)
        self.compiler.folds = {}  # node by node
        self.memory = self.machine.memory = Storages()

    def copied(self, value: Any, device: str) -> Any:
        return value

    def library(self, call: Expr, args: list[Any], sizes: Mapping[str, int]) -> Any:
        return SharedValues(self.module, dict(zip(call.args, args, strict=True)), sizes).of(call)
