"""Lowers tensor programs to Pallas kernels, for GPUs through Triton.

Each stage that is stored (the output, and workspaces) is one `pallas_call` over a grid of blocks of its elements; other
stages are computed inside, at the positions of the block (`blocks.py`). Buffers are passed flat. Where a block reaches
beyond an axis, its loads and stores are masked, so blocks need not divide sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import triton

from relax_eg.backend.loop_values import LoopValue
from relax_eg.backend.pallas.blocks import Blocks, block_values
from relax_eg.backend.pallas.plan import PallasKernel, pallas_plan
from relax_eg.backend.scalar_functions import convert
from relax_eg.backend.tensor_programs import LARGEST, Lowering
from relax_eg.tir import Read, TensorProgram, walk


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tensor program lowered through Pallas.

    - `run`: a function of arrays, as `lower_program` returns.
    - `why`: why it is not left to XLA.
    """

    run: Callable[..., tuple[Any, ...]]
    why: str


def lower_pallas(program: TensorProgram, sizes: Mapping[str, int], *, interpret: bool = False) -> Lowered:
    """`program` at these sizes, as a function that takes one JAX array per parameter and returns a tuple of its output.

    The function can be traced anywhere. It is lowered for GPUs; with `interpret` it runs on any device.

    Sums are accumulated in another order than in the equations, so results differ as `reassociate` allows. float32
    products use the tensor cores in the precision that JAX is set to. Raises `Unsuitable`, with the reason, for a
    program that XLA compiles as well or that a kernel cannot compute.
    """
    plan = pallas_plan(program, sizes)
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
    """The array that a kernel writes."""
    names = dict.fromkeys(t.buffer for t in walk(kernel.value) if isinstance(t, Read))
    shapes = {name: tuple(data[name].shape) for name in names}
    out = kernel.output

    def body(*refs: Any) -> None:
        *given, written = refs
        with jax.enable_x64(True):
            _block(kernel, {name: (ref, shapes[name]) for name, ref in zip(names, given, strict=True)}, written)

    body.__name__ = f"{program.name}_{out.name}"
    call = pallas.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((math.prod(kernel.shape),), np.dtype(out.dtype)),
        grid=(kernel.programs,),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=4, num_stages=2),
        name=body.__name__,
    )
    return lax.reshape(call(*(lax.reshape(data[n], (math.prod(shapes[n]),)) for n in names)), kernel.shape)


def _block(kernel: PallasKernel, buffers: Mapping[str, tuple[Any, tuple[int, ...]]], written: Any) -> None:
    """The body of one program of the grid: computes and stores the elements of one block."""
    number: Any = pallas.program_id(0)
    at: dict[str, Any] = {}
    for name in reversed(kernel.loops):
        size = kernel.blocks.get(name, 1)
        count = np.int32(-(-kernel.extents[name] // size))
        number, here = lax.div(number, count), lax.rem(number, count)
        at[name] = block_values(here, size) if name in kernel.blocks else here
    blocks = Blocks({n: kernel.blocks[n] for n in kernel.loops if n in kernel.blocks}, at, kernel.extents, buffers)
    for group in kernel.online:
        blocks.online(group)
    value = blocks.term(kernel.value)
    loops, place = tuple(blocks.axes), LoopValue(np.int32(0))
    for name, stride in zip(kernel.loops, _strides(kernel.shape), strict=True):
        along = LoopValue(at[name], (name,) if name in blocks.axes else ())
        step = blocks.pointwise(lambda x, stride=stride: lax.mul(x, lax.full_like(x, stride)), along)
        place = blocks.pointwise(lax.add, place, step)
    array, places = convert(blocks.array_over(value, loops), kernel.output.dtype), blocks.array_over(place, loops)
    mask = blocks.mask(loops)
    if mask is None:
        triton.store(written.at[places], array)
        return
    inside = blocks.array_over(mask, loops)
    # Points outside get a place beyond the buffer: in the interpreter, theirs could be the place of another element.
    places = lax.select(inside, places, lax.full_like(places, math.prod(kernel.shape)))
    triton.store(written.at[places], array, mask=inside)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]
