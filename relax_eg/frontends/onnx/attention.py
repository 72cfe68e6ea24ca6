"""Attention as onnxruntime fuses it (`com.microsoft`): projections, masks, caches and grouped heads, as products and a
softmax.

Letters of shapes: B batch, S queries, P keys of the past, T keys, H heads, G heads of keys, D elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from relax_eg.dtypes import dtype_of
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.quantized import matmul_of_integers
from relax_eg.frontends.onnx.rotary import rotate, rows_at
from relax_eg.frontends.onnx.values import Value, greatest
from relax_eg.frontends.onnx.widths import computed_in_float32
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.shapes import Dim

_HIDDEN = -10000.0  # given: what onnxruntime adds to the scores of hidden keys unless a node says otherwise
_UNSEEN = 2.0  # given: half the least number, so that a sum with a score stays finite


def _heads(n: OnnxNode, name: str = "num_heads") -> int:
    found = n.at(name)
    if not isinstance(found, int) or found < 1:
        raise n.error(f"{name}={found}", f"{name} of at least 1")
    return found


def _apart(n: OnnxNode, x: Expr, heads: int) -> Expr:
    """(B, S, H * D) as (B, H, S, D)."""
    if x.ndim != 3 or not x.shape[2].is_const or x.shape[2].value % heads:
        raise n.error(f"{heads} heads of {x.tensor.short}", "rank 3, and a known size that the heads divide")
    b, s, width = x.shape
    return op.permute_dims(op.reshape(x, (b, s, heads, width.value // heads)), (0, 2, 1, 3))


def _together(x: Expr) -> Expr:
    """(B, H, S, D) as (B, S, H * D)."""
    b, h, s, d = x.shape
    return op.reshape(op.permute_dims(x, (0, 2, 1, 3)), (b, s, h * d))


def _lowest(dtype: str) -> float:
    """What is added to the scores of keys behind a query's own place; its exponential is 0 beside any score's."""
    return dtype_of(dtype).least / _UNSEEN


def _as_bias(visible: Expr, hidden: float, dtype: str) -> Expr:
    return op.astype(op.where(visible, 0.0, hidden), dtype)


def _key_mask(n: OnnxNode, mask: Expr, batch: Dim, total: Dim) -> Expr:
    """Which keys are seen, to be broadcast to (B, H, S, T)."""
    places = op.iota((batch, 1, 1, total), 3)
    if mask.ndim == 1 and mask.shape[0] in (batch, batch * 2):
        column = (batch, 1, 1, 1)
        ends = op.reshape(op.getitem(mask, slice(0, batch)), column)
        visible = op.less(places, ends)
        if mask.shape[0] == batch:
            return visible
        starts = op.reshape(op.getitem(mask, slice(batch, batch * 2)), column)
        return op.logical_and(visible, op.greater_equal(places, starts))
    if mask.ndim == 2:
        return op.greater(op.expand_dims(mask, (1, 2)), 0)
    if mask.ndim == 3:
        return op.greater(op.expand_dims(mask, 1), 0)
    accepted = "ends (B), ends and starts (2 * B), or a mask (B, T) or (B, S, T)"
    raise n.error(f"a mask of shape ({', '.join(map(str, mask.shape))}) for a batch of {batch}", accepted)


def _causal(rows: Dim, total: Dim, past: Dim) -> Expr:
    """Which keys (1, 1, S, T) each query sees if it sees none behind its own place."""
    shape = (1, 1, rows, total)
    return op.less_equal(op.iota(shape, 3), op.iota(shape, 2) + op.dim_value(past))


def _softmax(scores: Expr, sink: Expr | None) -> Expr:
    """The softmax over keys. `sink`: for each head, the score of a key that has no value."""
    if sink is None:
        return computed_in_float32(op.softmax, scores)
    b, h, s, total = scores.shape
    column = op.broadcast_to(op.reshape(op.astype(sink, scores.dtype), (1, -1, 1, 1)), (b, h, s, 1))
    whole = computed_in_float32(op.softmax, op.concat([scores, column], 3))
    return op.getitem(whole, (slice(None), slice(None), slice(None), slice(0, total)))


def _products(a: Expr, b: Expr) -> Expr:
    """(B, H, S, K) times (B, G, K, N): each head of `b` serves as many consecutive heads of `a`."""
    batch, h, s, k = a.shape
    groups = b.shape[1]
    if h == groups:
        return op.matmul(a, b)
    each = h.value // groups.value
    y = op.matmul(op.reshape(a, (batch, groups, s * each, k)), b)
    return op.reshape(y, (batch, h, s, b.shape[3]))


def _attend(
    n: OnnxNode, q: Expr, k: Expr, v: Expr, added: Sequence[Expr], softcap: float = 0.0, sink: Expr | None = None
) -> tuple[Expr, Expr, Expr]:
    """The attended values (B, H, S, D), the scores and their softmax (B, H, S, T).

    - `q`: (B, H, S, D). `k`, `v`: (B, G, T, D).
    - `added`: what is added to the scores."""
    scale = n.at("scale") or 1 / math.sqrt(q.shape[3].value)
    scores = _products(q, op.swapaxes(k, 2, 3)) * scale
    if softcap:
        scores = op.tanh(scores / softcap) * softcap
    for each in added:
        scores = scores + each
    weights = _softmax(scores, sink)
    return _products(weights, v), scores, weights


def _with_past(past: Expr | None, new: Expr) -> Expr:
    return new if past is None else op.concat([past, new], 2)


def _fused(n: OnnxNode, qkv: Expr, mask: Expr | None, past: Expr | None, bias: Expr | None) -> list[Value]:
    """Attention of one input: `qkv`: (B, S, hidden) of queries, keys and values side by side."""
    heads = _heads(n)
    width = qkv.shape[2].value
    sizes = list(n.at("qkv_hidden_sizes") or [width // 3] * 3)
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1]:
        raise n.error(f"qkv_hidden_sizes={sizes} of {width}", "three sizes of that sum, the first two equal")
    if n.flag("do_rotary") or n.flag("past_present_share_buffer"):
        raise n.error("do_rotary or past_present_share_buffer", "neither")
    n.ignore_attributes("rotary_embedding_dim")
    q, k, v = (_apart(n, x, heads) for x in op.split(qkv, [sizes[0], sizes[0] + sizes[1]], 2))
    before = Dim.of(0)
    if past is not None:
        before = past.shape[3]
        k, v = _with_past(op.getitem(past, 0), k), _with_past(op.getitem(past, 1), v)
    y = _masked(n, q, k, v, mask, bias, before)[0]
    present = [op.stack([k, v])] if n.output_count > 1 else []
    return [_together(y), *present]


def _masked(
    n: OnnxNode, q: Expr, k: Expr, v: Expr, mask: Expr | None, bias: Expr | None, past: Dim
) -> tuple[Expr, Expr, Expr]:
    """`_attend` with a mask of keys, a bias of scores and the node's own rule of order."""
    batch, _, rows, _ = q.shape
    total, hidden = k.shape[2], n.at("mask_filter_value", _HIDDEN)
    added: list[Expr] = [] if mask is None else [_as_bias(_key_mask(n, mask, batch, total), hidden, q.dtype)]
    if n.flag("unidirectional"):
        if total != past + rows:
            raise n.error(f"unidirectional=1 with {rows} queries and {total} keys", "keys of the past and the queries'")
        added.append(_as_bias(_causal(rows, total, past), _lowest(q.dtype), q.dtype))
    if bias is not None:
        added.append(bias)
    return _attend(n, q, k, v, added)


def _attention(n: OnnxNode) -> list[Value]:
    qkv, offset = op.matmul(n[0], n[1]), n.optional_input(2)
    qkv = qkv if offset is None else qkv + offset
    return _fused(n, qkv, n.optional_input(3), n.optional_input(4), n.optional_input(5))


def _qattention(n: OnnxNode) -> list[Value]:
    whole = matmul_of_integers(n[0], n[1], n.optional_input(6), n.optional_input(7))
    scale = op.reshape(n[3], ()) * (op.reshape(n[4], (-1,)) if n[4].ndim else n[4])
    return _fused(n, op.astype(whole, n.dtype(3)) * scale + n[2], n.optional_input(5), n.optional_input(8), None)


def _multi_head_attention(n: OnnxNode) -> Sequence[Value]:
    heads = _heads(n)
    q, k, v = _given_heads(n, heads)
    pasts = n.optional_input(6), n.optional_input(7)
    before = Dim.of(0) if pasts[0] is None else pasts[0].shape[2]
    k, v = _with_past(pasts[0], k), _with_past(pasts[1], v)
    y, _, weights = _masked(n, q, k, v, n.optional_input(4), n.optional_input(5), before)
    return [_together(y), k, v, weights][: max(n.output_count, 1)]


def _given_heads(n: OnnxNode, heads: int) -> tuple[Expr, Expr, Expr]:
    """Queries, keys and values (B, H, S, D) of a MultiHeadAttention, with the bias of their projections."""
    q, k, v, bias = n[0], n.optional_input(1), n.optional_input(2), n.optional_input(3)
    packed: list[Expr]
    if q.ndim == 5:  # (B, S, H, 3, D)
        packed = [op.permute_dims(op.getitem(q, (slice(None),) * 3 + (i,)), (0, 2, 1, 3)) for i in range(3)]
    elif k is not None and k.ndim == 5:  # (B, T, H, 2, D)
        parts = [op.permute_dims(op.getitem(k, (slice(None),) * 3 + (i,)), (0, 2, 1, 3)) for i in range(2)]
        packed = [_apart(n, q, heads), *parts]
    elif k is not None and v is not None:
        packed = [_apart(n, q, heads), *(x if x.ndim == 4 else _apart(n, x, heads) for x in (k, v))]
    else:
        raise n.error("queries alone", "queries, keys and values; or packed ones of rank 5")
    if bias is not None:
        cuts, last = [x.shape[3] * heads for x in packed], Dim.of(0)
        for i, (x, width) in enumerate(zip(packed, cuts, strict=True)):
            if i == 0 or k is None or k.ndim != 4:  # keys and values of the past have theirs
                part = op.getitem(bias, slice(last, last + width))
                packed[i] = x + op.reshape(part, (1, heads, 1, x.shape[3]))
            last = last + width
    return packed[0], packed[1], packed[2]


# --- grouped heads ---


def _grouped(n: OnnxNode) -> list[Value]:
    heads, groups = _heads(n), _heads(n, "kv_num_heads")
    if heads % groups:
        raise n.error(f"{heads} heads in {groups} groups", "groups that divide the heads")
    n.choice("sliding_window_cache", 0, 0)
    for name in ("k_quant_type", "v_quant_type"):
        n.choice(name, "NONE", "NONE")
    n.ignore_attributes("kv_cache_bit_width", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon")
    q, k, v = _grouped_parts(n, heads, groups)
    batch, _, rows, _ = q.shape
    total = n.one_size(6, "total_sequence_length", "a number or a size")  # it determines a shape
    seen = op.reshape(op.astype(n[5], "int32"), (batch, 1)) + 1  # the keys of each row of the batch, with the new ones
    counted = n.optional_input(16)
    new = (
        op.minimum(seen, op.dim_value(rows)) if counted is None else op.reshape(op.astype(counted, "int32"), (batch, 1))
    )
    past = seen - new
    places = op.iota((batch, rows), 1) + past  # of the queries
    if n.flag("do_rotary"):
        given = n.optional_input(9)
        if given is not None and rows == total:  # of a prompt, the first position is read, and others follow it
            given = op.iota((batch, rows), 1, given.dtype) + op.getitem(given, (0, 0))
        at = places if given is None else given
        interleaved = n.flag("rotary_interleaved")
        q, k = (rotate(n, x, rows_at(n, at, n[7], n[8]), interleaved) for x in (q, k))
    else:
        n.ignore_attributes("rotary_interleaved")
        for i in (7, 8, 9):
            n.value(i)
    caches = n.optional_input(3), n.optional_input(4)
    k, v = (_cached(n, cache, x, past, total) for cache, x in zip(caches, (k, v), strict=True))
    visible, softcap = _grouped_mask(n, places, seen, k.shape[2]), n.at("softcap", 0.0)
    bias, sink = n.optional_input(10), n.optional_input(11)
    if bias is not None and bias.shape[3] != k.shape[2]:
        raise n.error(f"an attention_bias of {bias.tensor.short} for {k.shape[2]} keys", "a column for each key")
    if sink is None and n.at("smooth_softmax", -1) == 1:
        sink = op.zeros((heads,), q.dtype)
    added = [*([] if bias is None else [bias]), _as_bias(visible, _lowest(q.dtype), q.dtype)]
    y, scores, weights = _attend(n, q, k, v, added, softcap, sink)
    told = n.choice("qk_output", 0, 0, 1, 2)
    return [_together(y), k, v, *([scores if told == 1 else weights] if told else [])]


def _grouped_parts(n: OnnxNode, heads: int, groups: int) -> tuple[Expr, Expr, Expr]:
    """Queries (B, H, S, D), and keys and values (B, G, S, D), of a GroupQueryAttention."""
    q, k, v = n[0], n.optional_input(1), n.optional_input(2)
    if k is None or v is None:
        each = q.shape[2].value // (heads + 2 * groups)
        q, k, v = op.split(q, [heads * each, (heads + groups) * each], 2)
    k, v = (x if x.ndim == 4 else _apart(n, x, groups) for x in (k, v))
    return _apart(n, q, heads), k, v


def _cached(n: OnnxNode, cache: Expr | None, new: Expr, past: Expr, total: Dim) -> Expr:
    """The keys or values (B, G, T, D) of the past and behind them the new ones, at places that each row of the batch
    has of its own."""
    batch, groups, rows, width = new.shape
    if cache is None:
        if new.shape[2] != total:
            raise n.error(f"total_sequence_length={total} with {new.shape[2]} keys and no past", "as many keys")
        return new
    length = cache.shape[2]
    size = greatest(length, total)
    places = op.iota((batch, size), 1)
    old = op.pad(cache, [(0, 0), (0, 0), (0, size - length), (0, 0)])
    at = op.minimum(op.maximum(places - past, 0), op.dim_value(rows) - 1)
    shape = (batch, groups, size, width)
    moved = op.take_along_axis(new, op.broadcast_to(op.reshape(at, (batch, 1, size, 1)), shape), 2, mode="clip")
    is_new = op.logical_and(op.greater_equal(places, past), op.less(places, past + op.dim_value(rows)))
    return op.where(op.reshape(is_new, (batch, 1, size, 1)), moved, old)


def _grouped_mask(n: OnnxNode, places: Expr, seen: Expr, total: Dim) -> Expr:
    """Which keys each query sees, (B, 1, S, T)."""
    batch, rows = places.shape
    query, key = op.reshape(places, (batch, 1, rows, 1)), op.iota((1, 1, 1, total), 3)
    window = n.at("local_window_size", -1)
    if not n.flag("causal", 1):
        return op.less(key, op.reshape(seen, (batch, 1, 1, 1)))
    visible = op.less_equal(key, query)
    return visible if window < 0 else op.logical_and(visible, op.greater(key, query - window))


HANDLERS: dict[str, Handler] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.GroupQueryAttention": _grouped,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
    "com.microsoft.QAttention": _qattention,
}
