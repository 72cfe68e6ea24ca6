"""What a kernel costs where each is an executable of its own (`execution="kernels"`).

A kernel reads every value it needs from memory once and stores its results once; inside, every value is computed once.
What is computed in one kernel and again in another is paid in both. Kernels are tensor programs, and so are operators,
which as they stand are kernels of one.
"""

from __future__ import annotations

from dataclasses import replace

from relax_eg.extract.amounts import Amounts, counted_once, of_program
from relax_eg.extract.cost import NodeCost, WholeCost
from relax_eg.extract.numbers import Number, choose, larger, smaller
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, CALL_TIR, CONTROL, CORE
from relax_eg.ops import Site, bytes_of
from relax_eg.ops.fused import VIEWS, Placed, called_program, program_at
from relax_eg.shapes import Dim

_NOT_HIDDEN = 0.1  # of the shorter of computing and moving: before the first tile is there, and after the last
VIEW = 1e-9  # seconds of what moves nothing: never quite free, or useless views would pile up


class KernelCost(WholeCost):
    """The model of `execution="kernels"` at one binding: a launch and a dispatch for each kernel, its bytes once."""

    @property
    def folds_transposes(self) -> bool:
        return False

    def kernel(self, contracting: Number, other: Number, moved: Number) -> Number:
        """Seconds of a kernel: contractions overlap with memory, what is computed on single elements adds to it."""
        p = self.profile
        moving = p.move(moved)
        overlapped = larger(contracting, moving) + _NOT_HIDDEN * smaller(contracting, moving)
        # Each is a call, and wakes other cores for itself.
        flops = contracting * p.rate("float32") + other * p.vector_rate
        woken = choose(flops >= p.fork_flops, p.fork, 0.0)
        return p.dispatch + p.launch + woken + overlapped + other

    def bytes(self, annotation: Annotation) -> Number:
        return self._at(bytes_of(annotation))

    def amounts(self, site: Site, result: Annotation) -> Amounts:
        if site.op in VIEWS:
            return Amounts()
        placed = _placed(site, result)
        if placed is not None:
            return of_program(placed, 1)
        found = super().amounts(site, result)
        is_kernel = site.op not in CORE or site.op == CALL_DPS_LIBRARY
        return replace(found, launches=Dim.of(1)) if is_kernel else found

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in VIEWS:
            return NodeCost(seconds=VIEW)
        if self.cost is not None:
            return super()._price(site, result)
        placed = _placed(site, result)
        if placed is not None:
            counted = counted_once(placed.program)
            moved = sum(self.number(d, placed.sizes) for d in (counted.bytes_read, counted.bytes_written))
            effort = self.effort(site.op, placed)
            return NodeCost(effort.flops, moved, 1, self.kernel(effort.contracting, effort.other, moved))
        found = super()._price(site, result)
        if site.op == CALL or (site.op in CORE and site.op not in CONTROL and site.op != CALL_DPS_LIBRARY):
            return found  # what a call runs are kernels of their own
        return NodeCost(found.flops, found.bytes, 1, found.seconds + self.profile.dispatch)

    def _kind(self, site: Site) -> type[WholeCost]:
        return WholeCost if site.op in CONTROL else KernelCost  # a loop is one executable with all that it runs


def _placed(site: Site, result: Annotation) -> Placed | None:
    """The tensor program of one use of an operator, or of the program that is called."""
    if site.op == CALL_TIR:
        return called_program(site.operands, site.attrs)
    return program_at(site.op, site.operands, tuple(site.attrs.items()), result)
