"""ONNX nodes that select elements by value, so that the sizes of their results depend on values: all results are
computed in full, and one step each selects from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.dtypes import dtype_of
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.steps import Steps
from relax_eg.frontends.onnx.traced import traced, traced_one
from relax_eg.frontends.onnx.values import Held, KnownArray
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.ops.sizes import product


def _steps(n: OnnxNode) -> Steps:
    if n.entry_steps is None:
        raise n.error("sizes that depend on values, inside a branch or loop", "it in the model's own graph")
    return n.entry_steps


def _nonzero(n: OnnxNode) -> Held:
    value = n.required_input(0)
    if isinstance(value, KnownArray) and not value.is_symbolic and value.weight is None:
        return KnownArray(np.array(np.nonzero(np.atleast_1d(value.array)), np.int64), "int64")
    x = n[0]
    return _steps(n).nonzero(x if x.ndim else op.reshape(x, (1,)))


def _compress(n: OnnxNode) -> Held:
    x, condition, axis = n[0], n.required_input(1), n.at("axis")
    at = 0 if axis is None else n.normal_axis(axis, x.ndim)
    x = op.reshape(x, (-1,)) if axis is None else x
    if isinstance(condition, KnownArray):
        return op.take(x, np.flatnonzero(condition.array).astype(np.int32), at, mode="clip")
    mask, steps = n[1], _steps(n)
    front = op.getitem(_moved(x, at, 0), (slice(0, mask.shape[0]),))
    return _moved(steps.selected(front, mask, steps.new_size()), 0, at)


def _moved(x: Expr, source: int, target: int) -> Expr:
    order = [a for a in range(x.ndim) if a != source]
    order.insert(target, source)
    return op.permute_dims(x, tuple(order))


def _unique(n: OnnxNode) -> Sequence[Held]:
    x, axis, ascending = n[0], n.at("axis"), n.flag("sorted", 1)
    at = 0 if axis is None else n.normal_axis(axis, x.ndim)
    x = op.reshape(x, (-1,)) if axis is None else x
    rows = _moved(x, at, 0)
    if not all(d.is_const for d in rows.shape[1:]):
        raise n.error(f"slices of {', '.join(map(str, rows.shape[1:]))}", "slices of fixed sizes")
    width = int(product(rows.shape[1:]).value)

    def groups(x: Any) -> tuple[Any, ...]:
        keys = x.reshape((x.shape[0], width))
        order = jnp.lexsort([keys[:, i] for i in reversed(range(width))])
        inside, places = keys[order], jnp.arange(x.shape[0], dtype=np.int32)
        starts = (places == 0) | (inside != jnp.roll(inside, 1, axis=0)).any(axis=1)
        group = jnp.cumsum(starts.astype(np.int32)) - 1
        counts = jnp.zeros_like(places).at[group].add(1)[group]
        if ascending:
            return x[order], order, jnp.zeros_like(places).at[order].set(group), counts, starts
        first = jnp.zeros_like(starts).at[order].set(starts)
        firsts = jnp.zeros_like(places).at[group].max(jnp.where(starts, order, 0))
        rank = jnp.cumsum(first.astype(np.int32)) - 1
        inverse = jnp.zeros_like(places).at[order].set(rank[firsts[group]])
        return x, places, inverse, jnp.zeros_like(places).at[order].set(counts), first

    values, indices, inverse, counts, kept = traced(n, groups, rows)
    steps = _steps(n)
    size = steps.new_size()
    made: list[Held] = [_moved(steps.selected(values, kept, size), 0, at)]
    for i, found in ((1, indices), (3, counts)):
        if i < n.output_count:
            made.append(op.astype(steps.selected(found, kept, size), "int64"))
    if n.output_count > 2:
        made.insert(2, op.astype(inverse, "int64"))
    return made


def _non_max_suppression(n: OnnxNode) -> Held:
    boxes, scores, most = n[0], n[1], n.optional_input(2)
    overlap, least = n.optional_input(3), n.optional_input(4)
    centred = n.choice("center_point_box", 0, 0, 1) == 1
    limits = [op.zeros((), "int64") if most is None else op.reshape(most, ())]
    limits += [op.zeros((), "float32") if v is None else op.reshape(v, ()) for v in (overlap, least)]

    def corners(b: Any) -> tuple[Any, Any]:
        if centred:
            return b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
        return jnp.minimum(b[:, :2], b[:, 2:]), jnp.maximum(b[:, :2], b[:, 2:])

    def one(boxes: Any, scores: Any, most: Any, overlap: Any, least: Any) -> tuple[Any, Any]:
        """The boxes of one class by falling score, and which of them are kept."""
        order = jnp.argsort(-scores, stable=True)
        low, high = corners(boxes[order])
        area = jnp.prod(high - low, axis=1)
        sides = jnp.minimum(high[:, None], high[None]) - jnp.maximum(low[:, None], low[None])
        common = jnp.prod(jnp.maximum(sides, 0), axis=2)
        covers = common > overlap * (area[:, None] + area[None] - common)
        enough = scores[order] > least if n.value(4) is not None else jnp.ones_like(order, bool)

        def step(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            kept, count = state
            keep = enough[i] & ~(kept & covers[:, i]).any() & (count < most)
            return kept.at[i].set(keep), count + keep.astype(count.dtype)

        kept, _ = jax.lax.fori_loop(0, order.shape[0], step, (jnp.zeros_like(enough), jnp.zeros_like(most)))
        return order, kept

    def all_classes(boxes: Any, scores: Any, *limits: Any) -> tuple[Any, Any]:
        each = jax.vmap(jax.vmap(one, (None, 0, None, None, None)), (0, 0, None, None, None))
        order, kept = each(boxes, scores, *limits)
        places = [jax.lax.broadcasted_iota(np.int32, order.shape, a) for a in (0, 1)]
        return jnp.stack([*places, order.astype(np.int32)], axis=-1).reshape(-1, 3), kept.reshape(-1)

    found, kept = traced(n, all_classes, boxes, scores, *limits)
    steps = _steps(n)
    return op.astype(steps.selected(found, kept, steps.new_size()), "int64")


def _tf_idf(n: OnnxNode) -> Held:
    """Counts of the n-grams of a pool, whose tokens lie 1 to `max_skip_count` + 1 places apart."""
    x = n[0]
    pool, starts, columns = n.at("pool_int64s"), n.at("ngram_counts"), n.at("ngram_indexes")
    shortest, longest, skips = n.at("min_gram_length"), n.at("max_gram_length"), n.at("max_skip_count")
    mode, weights = n.choice("mode", None, "TF", "IDF", "TFIDF"), n.at("weights")
    if pool is None:
        raise n.error("no pool of integers", "pool_int64s")
    if x.ndim not in (1, 2) or not x.shape[-1].is_const:
        raise n.error(f"tokens of shape ({', '.join(map(str, x.shape))})", "rank 1 or 2, and a fixed number of tokens")
    held = dtype_of(x.dtype)
    tokens, length, width, first = np.array(pool, np.int64), x.shape[-1].value, max(columns) + 1, 0
    terms: list[tuple[np.ndarray[Any, Any], list[int]]] = []  # n-grams of one length, and their columns
    for g, (start, end) in enumerate(zip(starts, [*starts[1:], len(tokens)], strict=True), 1):
        grams = tokens[start:end].reshape(-1, g)
        terms.append((grams, columns[first : first + len(grams)]))
        first += len(grams)
    factor = np.ones(width, np.float32)
    if weights is not None:
        factor[np.array(columns)] = weights

    def counted(x: Any) -> Any:
        y = jnp.zeros((*x.shape[:-1], width), np.float32)
        for g, (grams, places) in enumerate(terms, 1):
            fits = ((grams >= held.least) & (grams <= held.greatest)).all(axis=1)
            if not shortest <= g <= longest or not fits.any():
                continue
            for apart in range(1, 2 if g == 1 else skips + 2):
                count = length - (g - 1) * apart
                if count <= 0:
                    break
                equal = jnp.ones((*x.shape[:-1], count, int(fits.sum())), bool)
                for i in range(g):
                    equal &= x[..., i * apart : i * apart + count, None] == grams[fits, i].astype(x.dtype)
                y = y.at[..., np.array(places)[fits]].add(equal.sum(axis=-2).astype(np.float32))
        if mode == "TF":
            return y
        return (jnp.minimum(y, 1) if mode == "IDF" else y) * factor

    return traced_one(n, counted, x)


HANDLERS: dict[str, Handler] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _nonzero,
    "TfIdfVectorizer": _tf_idf,
    "Unique": _unique,
}
