"""Scatter at capacity: invalid updates are sent out of range, where they are dropped, as are those out of range of the
true sizes. A window with invalid elements is split along that axis into separate updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from relax_eg.backend.scalar_functions import identity
from relax_eg.dynamic.moving import plain_result
from relax_eg.dynamic.native import unmasked_step
from relax_eg.dynamic.step import CapacityStep, InnerMask, NotPredicated, OperatorUse, StepSizes
from relax_eg.ops import get
from relax_eg.ops.sizes import ONE


def scatter(use: OperatorUse) -> CapacityStep | None:
    site = use.site
    shape, indices, updates = (site.shape(i) for i in range(3))
    windows, targets = site["update_window_dims"], site["scatter_dims_to_operand_dims"]
    kept = [a for a in range(len(shape)) if a not in site["inserted_window_dims"] + site["operand_batching_dims"]]
    axis_of = dict(zip(kept, windows, strict=True))
    size_in = {a: updates[w] for a, w in axis_of.items()}
    opened = {a: u for a, u in size_in.items() if use.moves(u) and u is not shape[a]}
    batch = [(a, d) for a, d in enumerate(indices[:-1]) if use.moves(d)]
    rooms = {a: shape[a] - size_in.get(a, ONE) for a in targets}
    # A single element beyond the true size needs no guard, since it is written to the padding.
    guarded = [
        a for a, room in rooms.items() if use.moves(room) and (site["mode"] == "clip" or size_in.get(a, ONE) is not ONE)
    ]
    if not batch and not guarded and not opened:
        return unmasked_step(use)
    if not targets and batch and site["kind"] == "set":
        raise NotPredicated("all its updates have one place, and which of them is the last depends on the sizes")
    inner = {("batch", a): InnerMask(d, f"updates beyond {d} are dropped") for a, d in batch}
    if site["mode"] != "promise":
        inner |= {("room", a): InnerMask(shape[a], f"positions are inside the true {shape[a]}") for a in guarded}
    inner |= {("window", a): InnerMask(u, f"windows end at {u}") for a, u in opened.items()}
    number = {key: k for k, key in enumerate(inner)}
    run = get(site.op).jax_function()

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        x, places, new = arrays
        places = _as_int32(places)
        columns = {a: places[..., n] for n, a in enumerate(targets)}
        rows = places.shape[:-1]
        dropped: Any = jnp.zeros(rows, bool)
        for a, room in rooms.items():
            true = a in guarded and site["mode"] != "promise" and at.applies_inner_mask(number["room", a])
            if site["mode"] == "clip":
                columns[a] = jnp.clip(columns[a], 0, at.true_size(room) if true else at.capacity(room))
            elif site["mode"] == "fill" and true:
                dropped = dropped | (columns[a] < 0) | (columns[a] > at.true_size(room))
        for a, d in batch:
            if at.applies_inner_mask(number["batch", a]):
                dropped = dropped | ~lax.broadcast_in_dim(at.valid_mask(d, rows[a]), rows, (a,))
        # One more axis of updates for each window that is split.
        sizes = (*rows, *(new.shape[axis_of[a]] for a in opened))
        dropped = lax.broadcast_in_dim(dropped, sizes, range(len(rows)))
        columns = {a: lax.broadcast_in_dim(c, sizes, range(len(rows))) for a, c in columns.items()}
        for k, (a, u) in enumerate(opened.items(), len(rows)):
            columns[a] = columns.get(a, 0) + lax.broadcasted_iota("int32", sizes, k)
            if at.applies_inner_mask(number["window", a]):
                dropped = dropped | ~lax.broadcast_in_dim(at.valid_mask(u, sizes[k]), sizes, (k,))
        places = jnp.stack([jnp.where(dropped, -1, c) for c in columns.values()], -1) if columns else places
        if not columns:
            keep = lax.broadcast_in_dim(~dropped, new.shape, [a for a in range(new.ndim) if a not in windows])
            new = jnp.where(keep, new, _update_identity(site["kind"], new.dtype))
        whole = [w for a, w in axis_of.items() if a not in opened]
        if opened:
            new = jnp.transpose(
                new, [*(a for a in range(new.ndim) if a not in windows), *(axis_of[a] for a in opened), *whole]
            )
        attrs = {
            **site.attrs,
            "mode": "fill",
            "sorted": False,
            "unique": site["unique"] and not batch and not opened,
            "update_window_dims": tuple(range(new.ndim - len(whole), new.ndim)) if opened else windows,
            "inserted_window_dims": tuple(sorted((*site["inserted_window_dims"], *opened))),
            "scatter_dims_to_operand_dims": tuple(columns),
        }
        return run(x, places, new, **attrs)

    return CapacityStep(compute, plain_result(use), (), use.merged_operands, tuple(inner.values()))


def _update_identity(kind: str, dtype: Any) -> Any:
    name: Any = {"add": "sum", "multiply": "prod"}.get(kind, kind)
    return identity(name, dtype.name)


def _as_int32(places: Any) -> Any:
    top = jnp.iinfo(jnp.int32).max
    if jnp.issubdtype(places.dtype, jnp.unsignedinteger):
        places = jnp.minimum(places, jnp.asarray(min(top, int(jnp.iinfo(places.dtype).max)), places.dtype))
    elif places.dtype.itemsize > 4:
        places = jnp.clip(places, -1, top)
    return places.astype("int32")
