"""Pipelines: a program whose layers are stages, through which its batch passes in pieces.

A loop over layers becomes a loop over ticks. At each tick all stages compute at once, each on a piece of the batch, as
one computation batched over the stages; then every piece moves to the next stage, as a shift along the axis of stages.
So a pipeline is an ordinary program: where its axis of stages is split over an axis of the mesh, a stage is on its own
devices, and XLA makes a collective-permute of the shift (GSPMD, Xu et al., 2021). The search for placements finds and
prices that like anything else: the bubble is in the program, as ticks at which a stage computes what nobody reads.

The schedule is that of GPipe (Huang et al., 2019): the loop of the backward pass is a pipeline of its own, which begins
when that of the forward pass has ended. Gradients of weights are summed over the pieces, in float32 if they are
narrower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from relax_eg.argument_checks import short_repr
from relax_eg.backend.lowering.lower import run_function
from relax_eg.dtypes import dtype_of
from relax_eg.errors import OptionError
from relax_eg.frontends import Source
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import SCAN
from relax_eg.ir.module import Module
from relax_eg.ir.placements import PARTIAL_SUM, DeviceMesh, Part
from relax_eg.meshes.microbatches import MicrobatchedScan, microbatched_scans

_PIECES = (8, 4, 2, 1)  # limit: pieces of the batch for each stage that are tried; at 8 the bubble is a tenth


@dataclass(frozen=True)
class Pipeline:
    """How a program runs in stages.

    - `axis`: the axis of the mesh along which they are meant to be.
    - `stages`, `pieces`: their number, and that of the pieces of the batch.
    - `scans`: the loops that run so.
    """

    axis: str
    stages: int
    pieces: int
    scans: tuple[MicrobatchedScan, ...]

    @property
    def longer(self) -> float:
        """How many times longer the stages are busy than without the bubble."""
        return (self.pieces + self.stages - 1) / self.pieces

    def __str__(self) -> str:
        layers = ", ".join(dict.fromkeys(str(s.length) for s in self.scans))
        return (
            f"{layers} layers in {self.stages} stages over {self.axis}, {self.pieces} microbatches, GPipe; the bubble "
            f"is {1 - 1 / self.longer:.1%} of the time"
        )


def pipelines(traced: Source, mesh: DeviceMesh, given: Mapping[str, int]) -> Iterator[Pipeline]:
    """The pipelines to try, those with the smallest bubble first.

    `given`: the number of microbatches for stages over an axis; none: any. OptionError if nothing can run so."""
    wanted = dict(given)
    if not set(wanted) <= set(mesh.names):
        raise OptionError(f"pipeline={short_repr(given)}: the axes of the mesh are {', '.join(mesh.names)}")
    found: list[Pipeline] = []
    for axis, stages in mesh.axes:
        counts = [wanted[axis]] if axis in wanted else [] if wanted or stages == 1 else [stages * k for k in _PIECES]
        for pieces in counts:
            scans = microbatched_scans(traced.module, stages, pieces)
            if scans:
                found.append(Pipeline(axis, stages, pieces, tuple(scans)))
    if wanted and not found:
        axis, pieces = next(iter(wanted.items()))
        raise OptionError(
            f"{traced.name}(): no loop over layers can run in {dict(mesh.axes)[axis]} stages over {axis} with {pieces} "
            "microbatches\n  accepted: a scan whose number of steps the stages divide, that carries a batch which the "
            "microbatches divide, and whose steps treat each place of the batch alone"
        )
    yield from sorted(found, key=lambda p: p.longer)


def pipelined(traced: Source, pipeline: Pipeline, mesh: DeviceMesh) -> Callable[..., Any]:
    """A traced program as a pipeline over a mesh: a function of JAX with the signature of the traced one."""
    devices = AbstractMesh(mesh.sizes, mesh.names)

    def on_stages(x: Any) -> Any:
        """`x`, split along its first axis over the axis of the stages. The others are free."""
        spec = PartitionSpec(pipeline.axis, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, NamedSharding(devices, spec))

    of = functools.partial(_run_pipeline, traced.module, pipeline.stages, pipeline.pieces, on_stages)
    control = {s.scan: functools.partial(of, s) for s in pipeline.scans}

    @functools.wraps(traced.fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if traced.arguments.signature is not None:
            bound = traced.arguments.signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        results = run_function(traced.module, traced.module.main, leaves, control)
        return jax.tree_util.tree_unflatten(traced.out_tree, results if isinstance(results, tuple) else (results,))

    return run


def _run_pipeline(
    module: Module, stages: int, pieces: int, on_stages: Callable[[Any], Any], m: MicrobatchedScan, *args: Any
) -> tuple[Any, ...]:
    """The results of a scan with these operands, as a pipeline."""
    p = group_arguments(SCAN, args, dict(m.scan.attrs))
    reverse, layers = bool(m.scan.attr("reverse")), m.length // stages
    ticks = pieces + stages - 1
    # When each stage gets the first piece: the first stage of a reversed loop is the last.
    delay = stages - 1 - jnp.arange(stages) if reverse else jnp.arange(stages)

    def cut(x: Any, d: Part, at: int = 0) -> Any:
        """`x` with an axis of pieces at `at`, if it has a batch. The devices of a split batch keep their places."""
        if not isinstance(d, int):
            return x
        shape = (*x.shape[:d], x.shape[d] // pieces, pieces, *x.shape[d + 1 :])
        return jnp.moveaxis(x.reshape(shape), d + 1, at)

    def joined(x: Any, d: int, at: int = 0) -> Any:
        x = jnp.moveaxis(x, at, d + 1)
        return x.reshape(*x.shape[:d], x.shape[d] * pieces, *x.shape[d + 2 :])

    constants = [cut(x, d) for x, d in zip(p.constants, m.constants, strict=True)]
    staged = [on_stages(x.reshape(stages, layers, *x.shape[1:])) for x in p.xs]
    slices = [cut(x, d + 2 if isinstance(d, int) else d) for x, d in zip(staged, m.slices, strict=True)]
    fed = [cut(x, d) for x, d in zip(p.carry, m.carry, strict=True)]
    fed = [jnp.pad(x, [(0, stages - 1), *[(0, 0)] * (x.ndim - 1)]) for x in fed]
    n = len(p.carry)

    def stage(constants: Any, carry: Any, slices: Any) -> Any:
        """The layers of one stage, on one piece."""

        def layer(carry: Any, slices: Any) -> Any:
            results = run_function(module, m.body, [*constants, *carry, *slices])
            return list(results[:n]), list(results[n:])

        return jax.lax.scan(layer, carry, slices, length=layers, reverse=reverse)

    batched = jax.vmap(stage, ([0 if isinstance(d, int) else None for d in m.constants], 0, [0] * len(m.slices)))

    def tick(state: Any, inputs: Any) -> Any:
        arrived, sums = state
        t, first = inputs
        piece = jnp.clip(t - delay, 0, pieces - 1)
        busy = (t >= delay) & (t - delay < pieces)
        own_constants = [
            _taken(x, piece) if isinstance(d, int) else x for x, d in zip(constants, m.constants, strict=True)
        ]
        own_slices = [
            jax.vmap(_taken, (1, 0))(x, piece) if isinstance(d, int) else x
            for x, d in zip(slices, m.slices, strict=True)
        ]
        own_carry = [jnp.where(_along(delay == 0, x), f[None], x) for f, x in zip(first, arrived, strict=True)]
        carry, made = jax.tree.map(on_stages, batched(own_constants, own_carry, own_slices))
        sums = [
            s if isinstance(d, int) else jnp.where(_along(busy, y), s + y if d == PARTIAL_SUM else y.astype(s.dtype), s)
            for s, y, d in zip(sums, made, m.stacked, strict=True)
        ]
        kept = [y for y, d in zip(made, m.stacked, strict=True) if isinstance(d, int)]
        return ([on_stages(_shifted(x, reverse)) for x in carry], sums), (carry, kept)

    def zeros_of_sums() -> list[Any]:
        return [
            jnp.zeros((stages, layers, *(int(k) for k in a.shape)), _sum_dtype(a.dtype))
            if not isinstance(d, int)
            else jnp.zeros(())
            for a, d in zip(m.results[n:], m.stacked, strict=True)
        ]

    empty = [jnp.zeros((stages, *x.shape[1:]), x.dtype) for x in fed]
    (_, sums), (carries, kept) = jax.lax.scan(tick, (empty, zeros_of_sums()), (jnp.arange(ticks), fed))
    # The last stage has the results. A sum over the stages, of which the others are zero, is one all-reduce.
    last = [jnp.where(_along(delay == stages - 1, x, 1), x, 0).sum(1, dtype=x.dtype) for x in carries]
    results = [joined(x[stages - 1 :], d) for x, d in zip(last, m.carry, strict=True) if isinstance(d, int)]
    stacked = iter(kept)
    for s, d, a in zip(sums, m.stacked, m.results[n:], strict=True):
        if isinstance(d, int):
            y = jax.vmap(lambda y, q: _taken(y, q + jnp.arange(pieces)), (1, 0))(next(stacked), delay)
            y = joined(y, d + 2, 1)
        else:
            y = s.astype(a.dtype)
        results.append(y.reshape(m.length, *y.shape[2:]))
    return tuple(results)


def _taken(x: Any, i: Any) -> Any:
    return jnp.take(x, i, axis=0, mode="clip")


def _along(mask: Any, x: Any, axis: int = 0) -> Any:
    """A mask over an axis of `x`, in a shape that broadcasts."""
    return mask.reshape(*[1] * axis, -1, *[1] * (x.ndim - axis - 1))


def _shifted(x: Any, reverse: bool) -> Any:
    """What every stage has, at the next stage."""
    ends = (-1, 1, 0) if reverse else (1, -1, 0)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [ends, *[(0, 0, 0)] * (x.ndim - 1)])


def _sum_dtype(dtype: str) -> str:
    return "float32" if dtype_of(dtype).is_half else dtype
