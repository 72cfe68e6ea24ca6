"""Lowers tensor programs to Pallas kernels, for GPUs through Triton.

Each stage that is stored (the output, and workspaces) is one `pallas_call` over a grid of blocks of its elements; other
stages are computed inside, at the positions of the block (`blocks.py`). Buffers are passed flat. Where a block reaches
beyond an axis, its loads and stores are masked, so blocks need not divide sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import triton

from relax_eg.backend.lowering.loop_values import LoopValue
from relax_eg.backend.lowering.scalar_functions import convert
from relax_eg.backend.lowering.tensor_programs import LARGEST, Lowering
from relax_eg.backend.pallas.blocks import Blocks, block_values
from relax_eg.backend.pallas.plan import Chosen, PallasKernel, pallas_plan
from relax_eg.backend.pallas.tiles import choose
from relax_eg.ops.multiprocessors import Multiprocessors
from relax_eg.tir import TensorProgram

_Array: TypeAlias = tuple[tuple[str, ...], str]  # the loops over which an array is, and its dtype


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tensor program lowered through Pallas.

    - `run`: a function of arrays, as `lower_program` returns.
    - `why`: why it is not left to XLA.
    """

    run: Callable[..., tuple[Any, ...]]
    why: str


def lower_pallas(
    program: TensorProgram,
    sizes: Mapping[str, int],
    device: Multiprocessors,
    *,
    interpret: bool = False,
    chosen: Chosen = choose,
) -> Lowered:
    """`program` at these sizes, as a function that takes one JAX array per parameter and returns a tuple of its output.

    The function can be traced anywhere. It is lowered for GPUs, in blocks that fit `device`, as `chosen` chooses them;
    with `interpret` it runs on any device.

    Sums are accumulated in another order than in the equations, so results differ as `reassociate` allows. float32
    products use the tensor cores in the precision that JAX is set to. Raises `Unsuitable`, with the reason, for a
    program that XLA compiles as well or that a kernel cannot compute.
    """
    plan = pallas_plan(program, sizes, device, chosen)
    checked = Lowering(program, sizes, LARGEST, guarded=False)

    def run(*arrays: Any) -> tuple[Any, ...]:
        checked.check(arrays)
        data = {b.name: jnp.asarray(a) for b, a in zip(program.parameters, arrays, strict=True)}
        for kernel in plan.kernels:
            data[kernel.output.name] = _call_kernel(program, kernel, data, interpret)
        return (data[program.outputs[0]],)

    run.__name__ = program.name
    return Lowered(run, plan.why)


def _call_kernel(program: TensorProgram, kernel: PallasKernel, data: Mapping[str, Any], interpret: bool) -> Any:
    """The array that a kernel writes. Where its keys are split, one launch computes the parts of the sums, and another
    adds them up."""
    name = f"{program.name}_{kernel.output.name}"

    def launched(
        body: Body, kernel: PallasKernel, read: Sequence[str], results: Sequence[_Array], name: str, given: Any = ()
    ) -> Any:
        parts = kernel.parts if body is _parts else 1

        def run(*refs: Any) -> None:
            with jax.enable_x64(True):
                buffers = {n: (ref, tuple(data[n].shape)) for n, ref in zip(read, refs, strict=False)}
                body(_Block(kernel, buffers), refs[len(read) :])

        run.__name__ = name
        call = pallas.pallas_call(
            run,
            out_shape=tuple(
                jax.ShapeDtypeStruct((parts * math.prod(kernel.extents[n] for n in loops),), np.dtype(dtype))
                for loops, dtype in results
            ),
            grid=(kernel.programs, parts),
            interpret=interpret,
            compiler_params=None
            if interpret
            else triton.CompilerParams(num_warps=kernel.tiles.warps, num_stages=kernel.tiles.stages),
            name=name,
        )
        return call(*(lax.reshape(data[n], (math.prod(data[n].shape),)) for n in read), *given)

    first, *last = kernel.read
    written = [(kernel.loops, kernel.output.dtype)]
    if last:
        parts = launched(_parts, kernel, list(first), kernel.kept, f"{name}_parts")
        (found,) = launched(_combined, kernel.combining, list(last[0]), written, name, parts)
    else:
        (found,) = launched(_whole, kernel, list(first), written, name)
    return lax.reshape(found, kernel.shape)


class _Block:
    """The block of one program of the grid.

    - `kernel`: the kernel.
    - `blocks`: the scope of its loops.
    """

    def __init__(self, kernel: PallasKernel, buffers: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
        self.kernel, tiles = kernel, kernel.tiles
        number: Any = pallas.program_id(0)
        at: dict[str, Any] = {}
        for name in reversed(kernel.loops):
            size = tiles.blocks.get(name, 1)
            count = np.int32(-(-kernel.extents[name] // size))
            number, here = lax.div(number, count), lax.rem(number, count)
            at[name] = block_values(here, size) if name in tiles.blocks else here
        axes = {n: tiles.blocks[n] for n in kernel.loops if n in tiles.blocks}
        self.blocks = Blocks(axes, at, kernel.extents, buffers, tiles)
        self._at = at

    def store(self, ref: Any, value: LoopValue, array: _Array, part: Any = None) -> None:
        """Stores the elements of the block in an array over its loops, or in a part of it, if one is given."""
        over, dtype = array
        elements, places, inside = convert(value.array, dtype), self._places(value.loops, over, part), None
        if (mask := self.blocks.mask(value.loops)) is not None:
            # Points outside get a place beyond the buffer: in the interpreter, theirs could be that of another element.
            inside = self.blocks.array_over(mask, value.loops)
            places = lax.select(inside, places, lax.full_like(places, math.prod(ref.shape)))
        triton.store(ref.at[places], elements, mask=inside)

    def load(self, ref: Any, loops: tuple[str, ...], array: _Array, part: Any) -> LoopValue:
        """The elements of the block in a part of an array over its loops, of a value over `loops`."""
        places, mask = self._places(loops, array[0], part), self.blocks.mask(loops)
        if mask is None:
            return LoopValue(triton.load(ref.at[places]), loops)
        inside = self.blocks.array_over(mask, loops)
        return LoopValue(triton.load(ref.at[places], mask=inside, other=np.zeros((), ref.dtype)), loops)

    def _places(self, loops: tuple[str, ...], over: tuple[str, ...], part: Any) -> Any:
        blocks, shape = self.blocks, tuple(self.kernel.extents[n] for n in over)
        place = LoopValue(np.int32(0) if part is None else lax.mul(part, np.int32(math.prod(shape))))
        for name, stride in zip(over, [math.prod(shape[n + 1 :]) for n in range(len(shape))], strict=True):
            along = LoopValue(self._at[name], (name,) if name in loops else ())
            step = blocks.pointwise(lambda x, stride=stride: lax.mul(x, lax.full_like(x, stride)), along)
            place = blocks.pointwise(lax.add, place, step)
        return blocks.array_over(place, loops)


Body = Callable[[_Block, Sequence[Any]], None]


def _whole(block: _Block, refs: Sequence[Any]) -> None:
    kernel, blocks = block.kernel, block.blocks
    for group in kernel.online:
        blocks.set_sums(group, *blocks.one_pass(group, np.int32(0), np.int32(kernel.steps)))
    block.store(refs[0], _everywhere(blocks, blocks.term(kernel.value)), (kernel.loops, kernel.output.dtype))


def _everywhere(blocks: Blocks, value: LoopValue) -> LoopValue:
    loops = tuple(blocks.axes)
    return LoopValue(blocks.array_over(value, loops), loops)


def _parts(block: _Block, refs: Sequence[Any]) -> None:
    """Stores the maximum and the sums of one part of the keys."""
    kernel, (group,) = block.kernel, block.kernel.online
    part: Any = pallas.program_id(1)
    first = lax.mul(part, np.int32(kernel.steps))
    last = lax.min(lax.add(first, np.int32(kernel.steps)), np.int32(kernel.all_steps))
    highest, totals = block.blocks.one_pass(group, first, last)
    for ref, value, array in zip(refs, (highest, *totals), kernel.kept, strict=True):
        block.store(ref, value, array, part)


def _combined(block: _Block, refs: Sequence[Any]) -> None:
    """Adds up the sums of all parts, and stores the value computed with them."""
    kernel, blocks, (group,) = block.kernel, block.blocks, block.kernel.online
    *given, written = refs
    loops = [blocks.loops_of(t) for t in (group.maximum, *group.sums)]

    def step(part: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        part = convert(part, "int32")
        before, *totals = map(LoopValue, carry, loops)
        there, *more = (block.load(ref, k, a, part) for ref, k, a in zip(given, loops, kernel.kept, strict=True))
        now = blocks.pointwise(lax.max, before, there)
        pairs = zip(blocks.corrected(totals, before, now), blocks.corrected(more, there, now), strict=True)
        return (now.array, *(blocks.pointwise(lax.add, x, y).array for x, y in pairs))

    start = tuple(
        blocks.filled(k, ref.dtype, 0 if n else -np.inf) for n, (k, ref) in enumerate(zip(loops, given, strict=True))
    )
    highest, *totals = map(LoopValue, lax.fori_loop(0, kernel.parts, step, start), loops)
    blocks.set_sums(group, highest, totals)
    block.store(written, _everywhere(blocks, blocks.term(kernel.value)), (kernel.loops, kernel.output.dtype))
