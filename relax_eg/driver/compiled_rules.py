"""Verdicts on rules of routines for GPUs, from what XLA compiles for a GPU that need not be there.

Without the GPU a routine cannot run. But XLA compiles a call of it, and the compiled program shows whether it is what
the rule says: one call of cuDNN that takes the operands of the routine, and nothing else that multiplies matrices.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relax_eg.backend.calls.program import abstract_array
from relax_eg.backend.gpu.hlo import CUDNN, custom_calls, launches, multiplies
from relax_eg.backend.gpu.target import GpuTarget, target_for
from relax_eg.backend.lowering.libraries import unavailable_reason
from relax_eg.errors import DeviceError
from relax_eg.figures import binding_text
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import postorder
from relax_eg.ops.libraries import Library, library_of
from relax_eg.ops.library_needs import RoutinePlace
from relax_eg.rules.checking import samples as draws
from relax_eg.rules.rule import Instance, Rule, instances

_INSTANCES = 4  # limit: instances of a rule that are compiled
_CAUSAL = "CAUSAL"  # given: XLA's name of the mask
_SIZES = 2  # limit: bindings of sizes for each instance


@dataclass(frozen=True)
class CompiledVerdict:
    """A verdict on the rule of a routine, which was not run.

    - `rule`: the rule.
    - `status`: "compiled" if what XLA compiles is what the rule says, "refuted" if it is not, "missing" if it cannot be
      compiled here.
    - `samples`: bindings of sizes at which it was compiled.
    - `text`: what was compiled; or what is wrong, or missing.
    """

    rule: Rule
    status: Literal["compiled", "refuted", "missing"]
    samples: int
    text: str

    def __str__(self) -> str:
        told = (
            f"compiled at {self.samples} sizes {self.text}"
            if self.status == "compiled"
            else f"{self.status}: {self.text}"
        )
        return f"{self.rule.name}: {told}"


def verify_compiled(rules: Iterable[Rule], device: str | Path) -> tuple[CompiledVerdict, ...]:
    """Verdicts on the rules of routines that only a GPU runs, from programs that are compiled for a device. OptionError
    as for `best.compile(device)`."""
    target = target_for(device)
    return tuple(_verdict(r, r.library, target) for r in rules if r.library is not None and _needs_gpu(r.library))


def _needs_gpu(library: Library) -> bool:
    return library.requires.platforms == ("gpu",)


def _verdict(rule: Rule, library: Library, target: GpuTarget) -> CompiledVerdict:
    why = unavailable_reason(library, RoutinePlace("gpu", target.gpu.kind))
    if why:
        return CompiledVerdict(rule, "missing", 0, why)
    rng = np.random.default_rng(zlib.crc32(library.name.encode()))
    tested, shown = 0, ""
    for instance in instances(rule, limit=_INSTANCES):
        for sizes in draws.draw_sizes(instance, rng, _SIZES, least=2):
            at = binding_text(sizes)
            try:
                text = _compiled(instance, library, sizes, target)
            except DeviceError as e:
                return CompiledVerdict(rule, "refuted", tested, f"at {at}: {e}")
            shown, problem = _judged(instance, text)
            if problem:
                return CompiledVerdict(rule, "refuted", tested, f"at {at}: {problem}")
            tested += 1
    return CompiledVerdict(rule, "compiled", tested, f"for {target.gpu.name} to {shown}")


def _compiled(instance: Instance, library: Library, sizes: dict[str, int], target: GpuTarget) -> str:
    """The text of the program that XLA makes of a call of the routine."""
    call = next(e for e in postorder(instance.right) if library_of(e) is library)
    specs: list[Any] = []
    for p in instance.params:
        assert isinstance(p.annotation, Tensor) and p.annotation.shape is not None
        shape = [int(d.evaluate(sizes)) for d in p.annotation.shape]
        specs.append(abstract_array(p.annotation, shape))
    lowered = target.lowered(lambda *xs: library.run(call, xs, sizes), specs)
    return target.compile(lowered, {}, tiles=False).executable.as_text() or ""


def _judged(instance: Instance, text: str) -> tuple[str, str]:
    """What a compiled call of a routine is, and what is wrong with it."""
    calls = [c for c in custom_calls(text) if "cudnn" in c.target]
    kinds = [k.kind for k in launches(text)]
    if len(calls) != 1 or kinds.count(CUDNN) != 1:
        return "", f"it has {len(calls)} calls of cuDNN, and one is meant; launches: {', '.join(kinds) or 'none'}"
    if multiplies(text):
        return "", "other kernels multiply matrices, too"
    (call,) = calls
    wanted = len(instance.params)
    if len(call.operands) != wanted:
        return "", f"{call.target} takes {', '.join(call.operands)}, and the routine has {wanted} operands"
    is_causal = any(e.op == "iota" for e in postorder(instance.left))
    if is_causal != (call.mask == _CAUSAL):
        return (
            "",
            f"{call.target} has the mask {call.mask or 'none'}, and the pattern is{'' if is_causal else ' not'} causal",
        )
    return f"{call.target} of {', '.join(call.operands)}{', causal' if call.mask == _CAUSAL else ''}", ""
