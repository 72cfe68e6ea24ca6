"""What a kernel costs where each is an executable of its own (`execution="kernels"`).

A kernel reads every value it needs from memory once and stores its results once; inside, every value is computed once.
What is computed in one kernel and again in another is paid in both. Kernels are tensor programs, and so are operators,
which as they stand are kernels of one.

A contraction is what its device's compiler makes of it. XLA's matmuls on CPUs, and cuBLAS, take operands from memory
and store their results, so what is computed before or after one in the same executable goes through memory there; on
CPUs through the cache, tile by tile, where it is decoded from much less; XLA's own matmuls for GPUs compute it, at a
share of the rate; and what goes through Pallas stays inside at another share. A matrix times a vector is a sum of
products on a GPU, which computes all of that inside and is bound by the matrix.

A GPU computes while the next kernel is dispatched: a program takes as long as all its kernels, or as dispatching them.
What a kernel costs is then what it takes by itself, or with what it makes others wait (`KernelCost.waits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from relax_eg.errors import OperatorError
from relax_eg.extract.amounts import Amounts, counted_once, of_program, work_of
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.cost_model import NodeCost
from relax_eg.extract.matmuls import is_decoded, made_on_cpu
from relax_eg.extract.numbers import Number, choose, is_column, larger, smaller
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import CALL, CALL_DPS_LIBRARY, CALL_TIR, CONSTANT, CONTROL, CORE, VAR, postorder
from relax_eg.ir.module import Function
from relax_eg.ops import Site, bytes_of
from relax_eg.ops.fused import VIEWS, Placed, called_program, fused_call, program_at
from relax_eg.ops.libraries import LIBRARIES, Definition
from relax_eg.shapes import Dim
from relax_eg.tir import Contraction, TensorProgram

_SHORTER = 1e-3  # of what is hidden behind something longer: that of two programs which take as long, it has the less
_PREFERRED = 0.98  # of a price, on GPUs: a generated kernel has to be so much faster than a routine that XLA compiles
_AS_FAST = 1 - 1e-7  # of a price: of a routine and a generated kernel that take as long, the routine is called
VIEW = 1e-9  # seconds of what moves nothing: never quite free, or useless views would pile up


@dataclass(frozen=True, slots=True)
class Part:
    """A contraction in a kernel, at a binding: `seconds` with operands at hand; bytes of operands that the kernel
    computes (`made`) and of what it computes them from (`sources`), and of the result where it computes on with it.
    `reduced`: a reduction of the kernel goes over the result; `online`: an operand has exponentials less a maximum over
    what is summed; `staged`: an operand is made of what a reduction left, a norm or a softmax. `own`: seconds where
    XLA's own matmul computes something with it (None: `fused_share` of the rate); `vector`: a matrix times a vector."""

    seconds: Number
    made: Number = 0
    sources: Number = 0
    result: Number = 0
    reduced: bool = False
    online: bool = False
    staged: bool = False
    own: Number | None = None
    vector: Number = False

    @property
    def stored(self) -> Number:
        """Bytes that go through memory where contractions take and give whole arrays."""
        return self.made + self.result

    @property
    def decoded(self) -> Number:
        """Whether an operand is computed from much less than itself."""
        return is_decoded(self.made, self.sources)


class KernelCost(WholeCost):
    """The model of `execution="kernels"` at one binding: a launch and a dispatch for each kernel, its bytes once."""

    waits = 0.0  # of what a kernel's dispatch takes longer than the kernel, on a GPU, the share that it costs

    @property
    def folds_transposes(self) -> bool:
        return False

    def kernel(self, parts: Sequence[Part], other: Number, moved: Number, pallas: bool = True) -> Number:
        """Seconds of a kernel: contractions overlap with memory, what is computed on single elements adds to it.
        `pallas`: whether what XLA serves badly may go through Pallas."""
        p = self.profile
        contracting: Number = sum(part.seconds for part in parts)
        moving = p.move(moved)
        stored: Number = 0.0
        owned: Number = 0.0
        decoding: Number = 0.0
        badly: Number = False
        for part in parts:
            times = choose(part.made > 0, 1, 0) + choose(part.result > 0, 1, 0)
            # What follows a matmul is written over its result: so repeated layers are cut in one way.
            through = p.move(2 * part.stored)
            if p.platform == "cpu":
                in_cache = made_on_cpu(p, part.made, part.sources) + p.move(2 * part.result)
                through = choose(part.decoded, in_cache, through)
            through = times * p.launch + through + _SHORTER * p.move(part.made)
            # A sum of products takes in what is computed element by element; each reduction is a launch of its own.
            inside = (part.staged + part.reduced) * p.launch + p.move(2 * part.result * part.reduced)
            stored = stored + choose(part.vector, inside, through)
            own = part.own if part.own is not None else part.seconds / (p.fused_share or 1.0)
            owned = owned + choose((times > 0) & _not(part.vector), own, part.seconds)
            decoding = decoding + (own if not part.online and not part.reduced else part.seconds / p.pallas_share)
            badly = badly | part.online | (part.decoded & _not(part.vector))
        attention = any(part.online for part in parts) and any(part.reduced for part in parts)
        working = _hidden(contracting, moving) + stored
        # XLA generates no matmul around what a reduction left; what one goes over is stored, no tile has all of it.
        if p.fused_share and not any(part.staged for part in parts):
            after = sum(p.launch + p.move(2 * part.result) for part in parts if part.reduced)
            working = smaller(working, _hidden(owned, moving) + after)
        if p.platform == "cpu" and attention:  # one kernel of XLA's, which keeps a tile of the scores
            working = _hidden(contracting, moving)
        elif pallas and p.pallas:
            working = choose(badly, _hidden(decoding, moving), working)
        # Each is a call, and wakes other cores for itself.
        flops = contracting * p.rate("float32") + other * p.vector_rate
        woken = choose(flops >= p.fork_flops, p.fork, 0.0)
        return self.called(p.launch + woken + working + other)

    def called(self, seconds: Number) -> Number:
        """Seconds of an executable with its dispatch: a GPU computes while the next one is dispatched."""
        p = self.profile
        if p.platform == "cpu":
            return p.dispatch + seconds
        waiting = larger(0.0, p.dispatch - seconds)
        return seconds + _SHORTER * p.dispatch + self.waits * waiting

    def waiting(self, waits: float) -> None:
        """Count so much of what a kernel's dispatch takes longer than the kernel."""
        self.waits = waits
        self._memo.clear()
        self._models.clear()

    def inside(self, function: Function, site: Site) -> WholeCost:
        model = super().inside(function, site)
        if isinstance(model, KernelCost) and model.waits != self.waits:
            model.waiting(self.waits)
        return model

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

    def parts(self, placed: Placed) -> list[Part]:
        """The contractions of a tensor program."""
        sizes = placed.sizes

        def part(c: Contraction) -> Part:
            made, sources, result = (self.number(d, sizes) for d in (c.made, c.sources, c.result))
            of = self.contraction(c, sizes)
            return Part(of.seconds, made, sources, result, c.reduced, c.online, c.staged, of.own, of.vector)

        return [part(c) for c in work_of(placed.program).contractions]

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in VIEWS:
            return NodeCost(seconds=VIEW)
        if self.cost is not None:
            return super()._price(site, result)
        placed = _placed(site, result)
        if placed is not None:
            return self._program(site.op, placed)
        found = self._by_xla(site)
        if found is not None:
            return found
        found = super()._price(site, result)
        if site.op == CALL or (site.op in CORE and site.op not in CONTROL and site.op != CALL_DPS_LIBRARY):
            return found  # what a call runs are kernels of their own
        return NodeCost(found.flops, found.bytes, 1, self.called(found.seconds))

    def _program(self, op: str, placed: Placed, pallas: bool = True) -> NodeCost:
        """What a tensor program costs as an executable. Each of its workspaces is written by a kernel before those
        that read it."""
        counted, p = counted_once(placed.program), self.profile
        moved = sum(self.number(d, placed.sizes) for d in (counted.bytes_read, counted.bytes_written))
        effort = self.effort(op, placed)
        before = len(placed.program.workspaces) * p.launch
        single = pallas and len(placed.program.outputs) == 1
        seconds = self.kernel(self.parts(placed), effort.other + before, moved, single)
        return NodeCost(effort.flops, moved, 1, seconds)

    def _by_xla(self, site: Site) -> NodeCost | None:
        """What XLA makes of the pattern of a routine that it compiles; None where the call is none of such a routine,
        or more is known of its speed."""
        library = LIBRARIES.get(site["name"]) if site.op == CALL_DPS_LIBRARY else None
        if library is None or not library.name.startswith("xla.") or library.cost:
            return None
        if library.name in self.profile.library_speed:
            return None
        definition, sizes = library.sizes_at(site.operands, dict(site["attrs"]))
        program = _pattern(definition)
        if program is None:
            return None
        placed = Placed(program, sizes)
        found = self._program(CALL_TIR, placed, pallas=False)
        if not self.profile.fused_share:
            return replace(found, seconds=found.seconds * _AS_FAST)
        vector = self.effort(CALL_TIR, placed).vector
        # Of a matrix times a vector no library is called, whatever the routine's name.
        return replace(found, seconds=found.seconds * choose(vector, 1 / _PREFERRED, _PREFERRED))

    def _with_memory(self, found: NodeCost, result: Annotation) -> NodeCost:
        return found  # results are in storages that calls keep

    def _kind(self, site: Site) -> type[WholeCost]:
        return WholeCost if site.op in CONTROL else KernelCost  # a loop is one executable with all that it runs


def _placed(site: Site, result: Annotation) -> Placed | None:
    """The tensor program of one use of an operator, or of the program that is called."""
    if site.op == CALL_TIR:
        return called_program(site.operands, site.attrs)
    return program_at(site.op, site.operands, tuple(site.attrs.items()), result)


@lru_cache(1 << 10)
def _pattern(definition: Definition) -> TensorProgram | None:
    """What a routine computes as one tensor program; None where an operator has no equations."""
    members = [e for e in postorder(definition.results) if e.op not in (VAR, CONSTANT)]
    try:
        return fused_call(members, definition.results).attr("program").value
    except OperatorError:
        return None


def _not(x: Number) -> Number:
    """The negation of a truth value, or of a column of them."""
    return ~np.asarray(x, bool) if is_column(x) else not x


def _hidden(a: Number, b: Number) -> Number:
    """Seconds of two things at a time."""
    return larger(a, b) + _SHORTER * smaller(a, b)
