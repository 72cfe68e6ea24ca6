"""On GPUs, a program with kernels through Pallas that stores a small part of what another one stores, as attention does
without its scores, takes its place if it is predicted to take hardly longer: memory is saved for certain, and times
are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relax_eg.backend.family import KERNELS
from relax_eg.driver.measured import CandidateProgram, Search
from relax_eg.driver.options import Sizes
from relax_eg.ir.expr import CALL_TIR

# chosen: how many times as long as another program one may take that stores a small part. Kernels through Pallas took
# 1.1 to 2.4 times as long as the model of blocks says (docs/kernels.md), so predictions differ by more.
_AS_LONG = 1.25
_LARGE = 1 << 26  # chosen: temporary bytes from which on a program that stores less is searched for
_MOVED = 2  # given: times that a byte that is stored goes through memory


def sparing_program(
    search: Search, candidates: Sequence[CandidateProgram], best: CandidateProgram, bindings: Sequence[Sizes]
) -> CandidateProgram:
    """The program that takes the place of `best`, the fastest of the candidates that pay, or `best`."""
    if not search.is_priced_on_gpu or search.is_sparing(best, bindings):
        return best
    if max(search.on_device(best, b)[1] for b in bindings) < _LARGE or not any(map(_has_kernels, candidates)):
        return best
    usual = search.by_price if search.options.execution == KERNELS else search.own_kernels[0]
    less = replace(usual, held=_MOVED / search.options.profile.bandwidth)

    def seconds(v: CandidateProgram) -> list[float]:
        return [search.doubted_seconds(v, b) for b in bindings]

    usually = seconds(best)
    paying = [
        v for v in (*candidates, CandidateProgram(search.entry(less)))
        if search.is_sparing(v, bindings)
        and search.is_worthwhile(v, bindings)
        and all(s <= _AS_LONG * t for s, t in zip(seconds(v), usually, strict=True))
    ]  # fmt: skip
    return min(paying, key=lambda v: sum(seconds(v)), default=best)


def _has_kernels(v: CandidateProgram) -> bool:
    """Whether a candidate may have kernels through Pallas."""
    if v.entry is None or not v.entry.spec.has_kernels:
        return False
    return any(e.op == CALL_TIR for f in v.entry.module for e in f.expressions())
