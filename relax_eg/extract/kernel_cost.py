"""What a kernel costs where each is an executable of its own (`execution="kernels"`).

A kernel reads every value it needs from memory once and stores its results once; inside, every value is computed once.
What is computed in one kernel and again in another is paid in both. Kernels are tensor programs, and so are operators,
which as they stand are kernels of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.extract.cost import NodeCost, WholeCost, share_of_peak
from relax_eg.ir.annotations import Annotation, itemsize
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, CALL_TIR, CONTROL, CORE
from relax_eg.ops import Site, bytes_of
from relax_eg.ops.fused import VIEWS, Placed, called_program, program_at
from relax_eg.shapes import Dim
from relax_eg.tir import Contraction, Counts, TensorProgram, Work, count, work

VIEW = 1e-9  # seconds of what moves nothing: never quite free, or useless views would pile up


@dataclass(frozen=True, slots=True)
class Effort:
    """Arithmetic of a part of a kernel at a binding: flops, and the seconds of contractions and of all else."""

    flops: int
    contracting: float
    other: float


class KernelCost(WholeCost):
    """The model of `execution="kernels"` at one binding: a launch and a dispatch for each kernel, its bytes once."""

    def effort(self, op: str, placed: Placed) -> Effort:
        """The arithmetic of a tensor program that is used in operator `op`."""
        done = _work(placed.program)
        rate = self.profile.scalar_rate.get(op, self.profile.vector_rate)
        other = max(0, self.number(done.other_flops, placed.sizes))
        flops = other + sum(self.number(c.flops, placed.sizes) for c in done.contractions)
        seconds = sum(self._contraction(c, placed.sizes) for c in done.contractions)
        return Effort(flops, seconds, other / rate)

    def kernel(self, contracting: float, other: float, moved: int) -> float:
        """Seconds of a kernel: contractions overlap with memory, what is computed on single elements adds to it."""
        p = self.profile
        return p.dispatch + p.kernel(max(contracting, p.move(moved)) + other)

    def number(self, d: Dim, sizes: Mapping[str, Dim]) -> int:
        """A size of a program that is used with these sizes, at the binding."""
        return self._at(d.substitute(sizes) if sizes else d)

    def bytes(self, annotation: Annotation) -> int:
        return self._at(bytes_of(annotation))

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in VIEWS:
            return NodeCost(seconds=VIEW)
        if site.op == CALL_TIR:
            placed = called_program(site.operands, site.attrs)
        else:
            placed = program_at(site.op, site.operands, tuple(site.attrs.items()), result)
        if placed is not None:
            counted = _counts(placed.program)
            moved = sum(self.number(d, placed.sizes) for d in (counted.bytes_read, counted.bytes_written))
            effort = self.effort(site.op, placed)
            return NodeCost(effort.flops, moved, 1, self.kernel(effort.contracting, effort.other, moved))
        found = super()._price(site, result)
        if site.op == CALL or (site.op in CORE and site.op not in CONTROL and site.op != CALL_DPS_LIBRARY):
            return found  # what a call runs are kernels of their own
        return NodeCost(found.flops, found.bytes, 1, found.seconds + self.profile.dispatch)

    def _contraction(self, c: Contraction, sizes: Mapping[str, Dim]) -> float:
        """Seconds of a matmul or convolution with all operands at hand."""
        rows, columns, depth = (self.number(d, sizes) for d in (c.rows, c.columns, c.depth))
        share = share_of_peak((rows, columns, depth), self.profile.matmul_half)
        seconds = self.number(c.flops, sizes) / (self.profile.rate(c.dtype) * share)
        if c.windowed:
            seconds *= self.profile.conv_factor
        elif c.transposed:
            seconds *= self.profile.linear_factor(rows, columns * depth * itemsize(c.dtype))
        return seconds


@lru_cache(1 << 14)
def _work(program: TensorProgram) -> Work:
    return work(program)


@lru_cache(1 << 14)
def _counts(program: TensorProgram) -> Counts:
    return count(program)
