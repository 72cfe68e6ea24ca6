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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from relax_eg.backend.lower import run_function
from relax_eg.frontends import Source
from relax_eg.ir.control import group_arguments
from relax_eg.ir.expr import SCAN
from relax_eg.ir.module import Module
from relax_eg.ir.placements import PARTIAL_SUM, REPLICATED, DeviceMesh, Part
from relax_eg.meshes.microbatches import MicrobatchedScan, microbatched_scans

_MOST_PIECES = 4  # limit: pieces of the batch for each stage that are tried; the bubble is then a fifth of the time


@dataclass(frozen=True)
class Pipeline:
    """How a program runs in stages.

    - `axis`: the axis of the mesh along which they are meant to be.
    - `stages`, `pieces`: their number, and that of the pieces of the batch.
    - `loops`: the number of loops that run so.
    """

    axis: str
    stages: int
    pieces: int
    loops: int

    @property
    def bubble(self) -> float:
        """The share of the time in which a stage computes nothing that is read."""
        return (self.stages - 1) / (self.pieces + self.stages - 1)


def pipelines(traced: Source, mesh: DeviceMesh) -> Iterator[tuple[Pipeline, Callable[..., Any]]]:
    """The pipelines to try: for each axis of a mesh, with few and with many pieces. Yields each with the program, as a
    function of JAX with the signature of the traced one."""
    for axis, stages in mesh.axes:
        for pieces in (stages * _MOST_PIECES, stages * 2, stages):
            scans = microbatched_scans(traced.module, stages, pieces) if stages > 1 else []
            if scans:
                yield Pipeline(axis, stages, pieces, len(scans)), pipelined(traced, scans, stages, pieces)


def pipelined(traced: Source, scans: Sequence[MicrobatchedScan], stages: int, pieces: int) -> Callable[..., Any]:
    """A traced program with these loops as pipelines, as a function of JAX."""
    control = {s.scan: functools.partial(_run_pipeline, traced.module, s, stages, pieces) for s in scans}

    @functools.wraps(traced.fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        if traced.arguments.signature is not None:
            bound = traced.arguments.signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        results = run_function(traced.module, traced.module.main, leaves, control)
        return jax.tree_util.tree_unflatten(traced.out_tree, results if isinstance(results, tuple) else (results,))

    return run


def _run_pipeline(module: Module, m: MicrobatchedScan, stages: int, pieces: int, *args: Any) -> tuple[Any, ...]:
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
    staged = [x.reshape(stages, layers, *x.shape[1:]) for x in p.xs]
    slices = [cut(x, d + 2 if isinstance(d, int) else d) for x, d in zip(staged, m.slices, strict=True)]
    fed = [cut(x, d) for x, d in zip(p.carry, m.carry, strict=True)]
    fed = [jnp.pad(x, [(0, stages - 1), *[(0, 0)] * (x.ndim - 1)]) for x in fed]
    n = len(p.carry)

    def stage(constants: Any, carry: Any, slices: Any) -> Any:
        """The layers of one stage, on one piece."""

        def layer(carry: Any, slices: Any) -> Any:
            results = run_function(module, m.body, [*constants, *carry, *slices])
            return list(results[:n]), list(results[n:])

        return jax.lax.scan(layer, carry, slices, reverse=reverse)

    over = lambda parts, whole: [0 if isinstance(d, int) else whole for d in parts]
    batched = jax.vmap(stage, (over(m.constants, None), 0, [0] * len(m.slices)))

    def tick(state: Any, inputs: Any) -> Any:
        arrived, sums = state
        t, first = inputs
        piece = jnp.clip(t - delay, 0, pieces - 1)
        busy = (t >= delay) & (t - delay < pieces)
        own_constants = [_taken(x, piece) if isinstance(d, int) else x for x, d in zip(constants, m.constants, strict=True)]
        own_slices = [
            jax.vmap(_taken, (1, 0))(x, piece) if isinstance(d, int) else x for x, d in zip(slices, m.slices, strict=True)
        ]
        own_carry = [jnp.where(_along(delay == 0, x), f[None], x) for f, x in zip(first, arrived, strict=True)]
        carry, made = batched(own_constants, own_carry, own_slices)
        sums = [
            s if isinstance(d, int) else jnp.where(_along(busy, y), s + y if d == PARTIAL_SUM else y.astype(s.dtype), s)
            for s, y, d in zip(sums, made, m.stacked, strict=True)
        ]
        kept = [y for y, d in zip(made, m.stacked, strict=True) if isinstance(d, int)]
        return ([_shifted(x, reverse) for x in carry], sums), (carry, kept)

    def zeros_of_sums() -> list[Any]:
        shapes = [r.annotation for r in m.body.result.args[n:]]
        return [
            jnp.zeros((stages, layers, *(int(k) for k in a.shape)), _sum_dtype(a.dtype))
            if not isinstance(d, int)
            else jnp.zeros(())
            for a, d in zip(shapes, m.stacked, strict=True)
        ]

    empty = [jnp.zeros((stages, *x.shape[1:]), x.dtype) for x in fed]
    (_, sums), (carries, kept) = jax.lax.scan(tick, (empty, zeros_of_sums()), (jnp.arange(ticks), fed))
    # The last stage has the results. A sum over the stages, of which the others are zero, is one all-reduce.
    last = [jnp.where(_along(delay == stages - 1, x, 1), x, 0).sum(1, dtype=x.dtype) for x in carries]
    results = [joined(x[stages - 1 :], d) for x, d in zip(last, m.carry, strict=True) if isinstance(d, int)]
    stacked = iter(kept)
    for s, d, x in zip(sums, m.stacked, m.body.result.args[n:], strict=True):
        if isinstance(d, int):
            y = jax.vmap(lambda y, q: _taken(y, q + jnp.arange(pieces)), (1, 0))(next(stacked), delay)
            y = joined(y, d + 2, 1)
        else:
            y = s.astype(x.annotation.dtype)
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
    return "float32" if dtype in ("bfloat16", "float16") else dtype
