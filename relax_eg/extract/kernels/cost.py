"""The cost of a kernel if each kernel is an executable of its own (`execution="kernels"`).

A kernel reads every value that it needs from memory once, computes every other value once, and stores its results once.
A value that two kernels compute is paid for in both. Kernels are tensor programs, and an operator by itself is a kernel
of one operator.

The cost of a contraction depends on the device's compiler. XLA's matmuls on CPUs, and cuBLAS, read operands from memory
and store their results. So operands that the same executable computes go through memory, and so do results that it
reads. On CPUs an operand that is decoded from far fewer bytes goes through the cache, tile by tile. Matmuls that XLA
generates for GPUs compute such values inside the kernel, at a share of the rate. Kernels through Pallas do so at
another share. On a GPU, a matrix times a vector is a sum of products, which computes everything inside the kernel and
is limited by reading the matrix.

A GPU computes while the next kernel is dispatched, so a program takes as long as all its kernels or as all their
dispatches, whichever is longer. The price of a kernel is then its own time, or also the time by which its dispatch
takes longer (`KernelCost.waits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from relax_eg.errors import OperatorError
from relax_eg.extract.costs.amounts import Amounts, counts_of, program_amounts, work_of
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.matmuls import cpu_operand_seconds, is_decoded
from relax_eg.extract.costs.numbers import Number, choose, is_column, maximum, minimum, truncate
from relax_eg.extract.costs.operator_cost import OperatorCost
from relax_eg.extract.kernels.compiled import CompiledKernels
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.annotations import Annotation
from relax_eg.ir.expr import CALL_TIR, CONSTANT, VAR, Expr, node, postorder, var
from relax_eg.ir.heads import CONTROL, RUNNING, WITHOUT_KERNEL
from relax_eg.ir.module import Function
from relax_eg.limits import KEPT
from relax_eg.ops import Site, bytes_of, site_of
from relax_eg.ops.fused import VIEWS, ProgramUse, equations_at, fused_call
from relax_eg.ops.libraries import Definition, library_of
from relax_eg.ops.multiprocessors import OwnKernels
from relax_eg.ops.triton import unsupported_reason
from relax_eg.shapes import Dim
from relax_eg.tir import Contraction, TensorProgram

# chosen: share of hidden seconds that is charged, so that of two programs that take equally long, the one with less
# hidden work is chosen
_SHORTER = 1e-3
# chosen: parts of a dispatch by which work that is hidden behind it is told apart; prices of small kernels differ by
# less without one of them being faster
_STEPS = 4
# chosen: share of a price by which a routine is cheaper, so that of a routine and a generated kernel that take equally
# long, the routine is chosen
_TIE = 1e-7
# measured: seconds of a kernel through Pallas over those of its blocks by the model, at a `pallas_share` of 1. On an
# H100, whose share is 0.52, 20 forms of attention took 1.1 to 2.4 times as long, here 1.5.
# `python -m benchmarks.gpu_kernels --run build/kernels`
_BLOCKS_TAKE = 0.78
VIEW = 1e-9  # chosen: seconds of a view: at price 0 the choice would collect useless views


# From a tensor program, its sizes and the name of a GPU to what it takes as kernels through Pallas there, by the blocks
# that fit; None where it is left to XLA.
OwnBlocks: TypeAlias = Callable[[TensorProgram, Mapping[str, int], str], OwnKernels | None]


@dataclass(frozen=True, slots=True)
class ContractionCost:
    """A contraction in a kernel, at a binding.

    - `seconds`: seconds with operands in memory.
    - `made`: bytes of the operands that the kernel computes.
    - `sources`: bytes of the arrays from which it computes them.
    - `result`: bytes of the result, if the kernel reads it; else 0.
    - `reduced`: whether the kernel reduces the result.
    - `online`: whether an operand has exponentials of differences to a maximum over the summed axis.
    - `staged`: whether an operand is computed from the result of a reduction, as in a norm or a softmax.
    - `generated_seconds`: seconds if XLA generates its code; None: `fused_share` of the rate.
    - `vector`: whether it is a matrix times a vector.
    """

    seconds: Number
    made: Number = 0
    sources: Number = 0
    result: Number = 0
    reduced: bool = False
    online: bool = False
    staged: bool = False
    generated_seconds: Number | None = None
    vector: Number = False

    @property
    def stored(self) -> Number:
        """Bytes that go through memory if the contraction reads and writes whole arrays."""
        return self.made + self.result

    @property
    def decoded(self) -> Number:
        """Whether the operands are computed from far fewer bytes than their own."""
        return is_decoded(self.made, self.sources)


class KernelCost(WholeCost):
    """The model of `execution="kernels"` at one binding: each kernel pays a launch, a dispatch, and its bytes once."""

    waits = 0.0  # on a GPU, the share charged of the time by which a kernel's dispatch exceeds the kernel
    own_blocks: OwnBlocks | None = None  # None: nothing is known of blocks
    own_share = 1.0  # share of the price of a kernel through Pallas that it is charged
    # The kernels as XLA compiles them, by which those of GPUs are priced; None: by their equations.
    as_compiled: CompiledKernels | None = None
    by_equations = False  # whether `price` is by equations even so, which takes less time

    @property
    def fuses_into_matmuls(self) -> bool:
        return False

    @property
    def knows_fusions(self) -> bool:
        return False

    @property
    def corrections(self) -> Mapping[str, float]:
        """None: what is learned is learned of operators inside one XLA program."""
        return {}

    def kernel(
        self, parts: Sequence[ContractionCost], other: Number, moved: Number, pallas: bool = True, own: bool = False
    ) -> Number:
        """Seconds of a kernel. Contractions overlap with memory traffic; other arithmetic does not.

        - `parts`: the contractions.
        - `other`: seconds of other arithmetic.
        - `moved`: bytes read and stored.
        - `pallas`: whether contractions that XLA serves badly may go through Pallas.
        - `own`: whether it is known that they do.
        """
        p = self.profile
        contracting: Number = sum(part.seconds for part in parts)
        moving = p.move(moved)
        stored: Number = 0.0
        owned: Number = 0.0
        decoding: Number = 0.0
        badly: Number = own
        for part in parts:
            times = choose(part.made > 0, 1, 0) + choose(part.result > 0, 1, 0)
            # An epilogue is written over the matmul's result, so a prologue costs slightly more. All repeated layers
            # are then divided into kernels in the same way.
            through = p.move(2 * part.stored)
            if p.platform == "cpu":
                in_cache = cpu_operand_seconds(p, part.made, part.sources) + p.move(2 * part.result)
                through = choose(part.decoded, in_cache, through)
            through = times * p.launch + through + _SHORTER * p.move(part.made)
            # A sum of products fuses elementwise operands; each reduction is a launch of its own.
            inside = (part.staged + part.reduced) * p.launch + p.move(2 * part.result * part.reduced)
            stored = stored + choose(part.vector, inside, through)
            own = (
                part.generated_seconds if part.generated_seconds is not None else part.seconds / (p.fused_share or 1.0)
            )
            owned = owned + choose((times > 0) & _not(part.vector), own, part.seconds)
            decoding = decoding + (own if not part.online and not part.reduced else part.seconds / p.pallas_share)
            badly = badly | part.online | (part.decoded & _not(part.vector))
        attention = any(part.online for part in parts) and any(part.reduced for part in parts)
        working = _overlapped(contracting, moving) + stored
        # XLA generates no matmul that reads the result of a reduction in its kernel. A result that is reduced is
        # stored, because no tile contains all of it.
        if p.fused_share and not any(part.staged for part in parts):
            after = sum(p.launch + p.move(2 * part.result) for part in parts if part.reduced)
            working = minimum(working, _overlapped(owned, moving) + after)
        if p.platform == "cpu" and attention:  # one kernel of XLA, which keeps a tile of the scores
            working = _overlapped(contracting, moving)
        elif pallas and p.pallas:
            working = choose(badly, self.own_share * _overlapped(decoding, moving), working)
        # Each kernel is a call of its own and wakes other cores itself.
        flops = contracting * p.rate("float32") + other * p.vector_rate
        woken = choose(flops >= p.fork_flops, p.fork, 0.0)
        return self.with_dispatch(p.launch + woken + working + other)

    def with_dispatch(self, seconds: Number) -> Number:
        """Seconds of an executable including its dispatch; a GPU computes while the next executable is dispatched."""
        p = self.profile
        if p.platform == "cpu":
            return p.dispatch + seconds
        # The kernel's time is hidden where it waits, else that of its dispatch.
        hidden = truncate(_STEPS * minimum(1.0, seconds / p.dispatch)) / _STEPS if p.dispatch and self.waits else 1.0
        return seconds + self.waits * maximum(0.0, p.dispatch - seconds) + _SHORTER * hidden * p.dispatch

    def set_waits(self, waits: float) -> None:
        """Sets `waits` and drops the memoised prices."""
        self.waits = waits
        self._memo.clear()
        self._models.clear()

    def inside(self, function: Function, site: Site, in_one_kernel: bool | None = None) -> OperatorCost:
        model = super().inside(function, site, in_one_kernel)
        if isinstance(model, KernelCost):
            model.own_blocks, model.own_share = self.own_blocks, self.own_share
            model.as_compiled, model.by_equations = self.as_compiled, self.by_equations
            if model.waits != self.waits:
                model.set_waits(self.waits)
        return model

    def bytes(self, annotation: Annotation) -> Number:
        return self.evaluate(bytes_of(annotation))

    def amounts(self, site: Site, result: Annotation) -> Amounts:
        if site.op in VIEWS:
            return Amounts()
        placed = _program_at(site, result)
        if placed is not None:
            return self.as_own(placed, program_amounts(placed, 1))
        found = super().amounts(site, result)
        return found if site.op in WITHOUT_KERNEL else replace(found, launches=Dim.of(1))

    def parts(self, placed: ProgramUse) -> list[ContractionCost]:
        """The contractions of a tensor program."""
        sizes = placed.sizes

        def part(c: Contraction) -> ContractionCost:
            made, sources, result = (self.number(d, sizes) for d in (c.made, c.sources, c.result))
            of = self.contraction(c, sizes)
            return ContractionCost(
                of.seconds, made, sources, result, c.reduced, c.online, c.staged, of.generated_seconds, of.vector
            )

        return [part(c) for c in work_of(placed.program).contractions]

    def _price(self, site: Site, result: Annotation) -> NodeCost:
        if site.op in VIEWS:
            return NodeCost(seconds=VIEW)
        if self.cost is not None:
            return super()._price(site, result)
        compiled = None if self.by_equations else self._price_compiled(site, result)
        if compiled is not None:
            return compiled
        placed = _program_at(site, result)
        if placed is not None:
            return self._price_program(site.op, placed)
        found = self._price_xla_routine(site)
        if found is not None:
            return found
        found = super()._price(site, result)
        if site.op in WITHOUT_KERNEL and site.op not in CONTROL:
            return found  # a call: the operators that it runs are kernels of their own
        return NodeCost(found.flops, found.bytes, 1, self.with_dispatch(found.seconds))

    @property
    def knows_compiled(self) -> bool:
        """Whether kernels have prices of what XLA makes of them."""
        on_gpu = self.profile.platform == "gpu" and self.cost is None
        return self.as_compiled is not None and on_gpu and not self._columns

    def compiled_price(self, site: Site, result: Annotation) -> NodeCost:
        """The cost of a kernel as XLA compiles it, where that is known, whether or not `price` is by equations."""
        return (self._price_compiled(site, result) if self.by_equations else None) or self.price(site, result)

    def _price_compiled(self, site: Site, result: Annotation) -> NodeCost | None:
        if self.as_compiled is None or (kernel := self._kernel_of_xla(site, result)) is None:
            return None
        found = self.as_compiled.cost(kernel, self._sizes)
        return found and replace(found, seconds=self.with_dispatch(found.seconds), wakes=False)

    def _price_program(self, op: str, placed: ProgramUse, pallas: bool = True) -> NodeCost:
        """The cost of a tensor program as an executable. Each of its workspaces adds a launch, because a kernel writes
        it before others read it."""
        counted, p = counts_of(placed.program), self.profile
        moved = sum(self.number(d, placed.sizes) for d in (counted.bytes_read, counted.bytes_written))
        effort = self.effort(op, placed)
        before, parts = len(placed.program.workspaces) * p.launch, self.parts(placed)
        (is_own, blocks), launches = self._through_pallas(placed) if pallas else (False, None), 1
        own = is_own and bool(parts)
        if blocks is not None:
            moved, launches = blocks.bytes, blocks.launches
        seconds = self.kernel(parts, effort.other + before, moved, own, own)
        if own and blocks is not None:
            of_blocks = self.own_share * _BLOCKS_TAKE / p.pallas_share * blocks.seconds
            seconds = maximum(seconds, self.with_dispatch(p.launch + of_blocks))
        return NodeCost(effort.flops, moved, launches, seconds)

    def compiled(self, site: Site, result: Annotation) -> tuple[Function, WholeCost] | None:
        """The XLA program that a kernel on a GPU is, at the binding, with the model that prices it; None where it is
        not known: of loops, and of what does not go through XLA."""
        if self.as_compiled is None or (kernel := self._kernel_of_xla(site, result)) is None:
            return None
        return self.as_compiled.program(kernel, self._sizes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {v: int(n) for v, n in self.binding.items()}

    def _kernel_of_xla(self, site: Site, result: Annotation) -> Expr | None:
        """The kernel over variables, if XLA for GPUs compiles it."""
        if not self.knows_compiled or site.op in RUNNING | VIEWS:
            return None
        if (library := library_of(site)) is not None and not library.name.startswith("xla."):
            return None
        placed = _program_at(site, result)
        if placed is not None and self.is_own(placed):
            return None
        operands = [var(f"p{i}", a) for i, a in enumerate(site.operands)]
        return node(site.op, operands, site.attrs.items(), result)

    def is_own_call(self, call: Expr) -> bool:
        """Whether the kernel that `call` is goes through Pallas."""
        placed = _program_at(site_of(call), call.annotation)
        return placed is not None and self.is_own(placed)

    def is_own(self, placed: ProgramUse) -> bool:
        """Whether a program goes through Pallas, because XLA serves it badly."""
        return self._through_pallas(placed)[0]

    def _through_pallas(self, placed: ProgramUse) -> tuple[bool, OwnKernels | None]:
        """Whether a program goes through Pallas, and what it takes by its blocks, if these are known."""
        if not self.profile.pallas or unsupported_reason(placed.program):
            return False, None
        sizes = {v: self.number(placed.sizes.get(v, Dim.var(v)), {}) for v in placed.program.sizes}
        if self.own_blocks is None or any(is_column(n) for n in sizes.values()):
            return served_badly(self.parts(placed)), None
        found = self.own_blocks(placed.program, {v: int(n) for v, n in sizes.items()}, self.profile.name)
        return found is not None, found

    def as_own(self, placed: ProgramUse, amounts: Amounts) -> Amounts:
        """The amounts of a program, if it goes through Pallas, with the launches, bytes and workspace of its blocks;
        else as they are. What blocks add is of the binding."""
        _, blocks = self._through_pallas(placed)
        if blocks is None:
            return amounts
        more = Dim.of(blocks.bytes - int(self.evaluate(amounts.bytes)))
        workspace = amounts.workspace + Dim.of(blocks.workspace)
        return Amounts(amounts.flops, amounts.bytes + more, Dim.of(blocks.launches), workspace)

    def own_workspace(self, site: Site, result: Annotation) -> int:
        """Bytes that an operator's kernels through Pallas need beside its workspaces, for parts of sums."""
        placed = _program_at(site, result)
        _, blocks = (False, None) if placed is None else self._through_pallas(placed)
        return 0 if blocks is None else blocks.workspace

    def _price_xla_routine(self, site: Site) -> NodeCost | None:
        """The cost of an `xla.` routine as the kernel into which XLA compiles its pattern.

        None for other calls, for routines with a known speed or cost, and for patterns without equations."""
        library = library_of(site)
        if library is None or not library.name.startswith("xla.") or library.cost:
            return None
        if library.name in self.profile.library_speed:
            return None
        definition, sizes = library.sizes_at(site.operands, dict(site["attrs"]))
        program = _pattern(definition)
        if program is None:
            return None
        placed = ProgramUse(program, sizes)
        found = self._price_program(CALL_TIR, placed, pallas=False)
        return replace(found, seconds=found.seconds * (1 - _TIE))

    def _with_memory(self, found: NodeCost, result: Annotation) -> NodeCost:
        return found  # results are in storages that are kept from call to call

    def _model_class(self, site: Site) -> type[WholeCost]:
        return WholeCost if site.op in CONTROL else KernelCost  # a loop and all that it runs is one executable


class WithOwnKernels(WholeCost):
    """The model of one XLA program in which tensor programs that XLA serves badly are kernels through Pallas.

    - `own_blocks`: as of `KernelCost`.
    """

    own_blocks: OwnBlocks | None = None

    def inside(self, function: Function, site: Site, in_one_kernel: bool | None = None) -> OperatorCost:
        model = super().inside(function, site, in_one_kernel)
        if isinstance(model, WithOwnKernels):
            model.own_blocks = self.own_blocks
        return model

    @cached_property
    def _own(self) -> KernelCost:
        """The model of a kernel, which XLA's program launches."""
        found = KernelCost(without_dispatch(self.profile), self.binding, self.functions)
        found.own_blocks = self.own_blocks
        return found

    def amounts(self, site: Site, result: Annotation) -> Amounts:
        placed, found = _program_at(site, result) if site.op == CALL_TIR else None, super().amounts(site, result)
        return found if placed is None else self._own.as_own(placed, found)

    def own_workspace(self, site: Site, result: Annotation) -> int:
        return self._own.own_workspace(site, result) if site.op == CALL_TIR else 0

    def _price_tensor_program(self, site: Site, result: Annotation) -> NodeCost:
        placed, usual = _program_at(site, result), super()._price_tensor_program(site, result)
        if placed is None or not self._own.is_own(placed):
            return usual
        return replace(usual, seconds=self._own.price(site, result).seconds)


def without_dispatch(p: Profile) -> Profile:
    """The profile of kernels that one program launches."""
    return replace(p, dispatch=0.0)


def served_badly(parts: Sequence[ContractionCost]) -> bool:
    """Whether XLA serves a kernel with these contractions badly."""
    return any(part.online or bool(np.any(part.decoded)) for part in parts)


def _program_at(site: Site, result: Annotation) -> ProgramUse | None:
    """The tensor program of one use of an operator, or the one that a `call_tir` calls."""
    return equations_at(site.op, site.operands, tuple(site.attrs.items()), result)


@lru_cache(KEPT)
def _pattern(definition: Definition) -> TensorProgram | None:
    """The pattern of a routine as one tensor program; None if an operator has no equations."""
    members = [e for e in postorder(definition.results) if e.op not in (VAR, CONSTANT)]
    try:
        return fused_call(members, definition.results).attr("program").value
    except OperatorError:
        return None


def _not(x: Number) -> Number:
    """The negation of a truth value, or of a column of them."""
    return ~np.asarray(x, bool) if is_column(x) else not x


def _overlapped(a: Number, b: Number) -> Number:
    """Seconds of two activities that overlap: the longer one, and `_SHORTER` of the hidden one."""
    return maximum(a, b) + _SHORTER * minimum(a, b)
