"""Rotary embeddings of onnxruntime (`com.microsoft`)."""

from __future__ import annotations

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op


def rows_at(n: OnnxNode, places: Expr, cos: Expr, sin: Expr) -> tuple[Expr, Expr]:
    """The rows of both tables at `places` (B, S), as (B, 1, S, R / 2)."""
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise n.error(f"tables of {cos.tensor.short} and {sin.tensor.short}", "two of one shape (positions, R / 2)")
    rows = (op.take(table, op.astype(places, "int32"), 0, mode="clip") for table in (cos, sin))
    first, second = (op.expand_dims(r, 1) for r in rows)
    return first, second


def rotate(n: OnnxNode, x: Expr, tables: tuple[Expr, Expr], interleaved: bool) -> Expr:
    """The first R elements of each head of `x` (B, H, S, D), taken as pairs and turned."""
    cos, sin = tables
    half, width = cos.shape[3], x.shape[3]
    if not (half.is_const and width.is_const) or 2 * half.value > width.value:
        raise n.error(f"tables of {half} columns for heads of {width}", "at most half as many columns, all known")
    every = (slice(None),) * 3
    count = half.value
    if interleaved:
        a, b = (op.getitem(x, (*every, slice(i, 2 * count, 2))) for i in (0, 1))
    else:
        a, b = (op.getitem(x, (*every, slice(i, i + count))) for i in (0, count))
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        whole = op.reshape(op.stack([first, second], 4), (*x.shape[:3], 2 * count))
    else:
        whole = op.concat([first, second], 3)
    return whole if 2 * count == width.value else op.concat([whole, op.getitem(x, (*every, slice(2 * count, None)))], 3)


def _rotary(n: OnnxNode) -> Expr:
    x, places, cos, sin = n[0], n[1], n[2], n[3]
    if n.at("scale", 1.0) != 1.0 or n.flag("is_packed_batching"):
        raise n.error("scale or is_packed_batching", "neither")
    part, heads = n.at("rotary_embedding_dim", 0), n.at("num_heads", 0)
    interleaved = n.flag("interleaved")
    whole = x
    if x.ndim == 3:
        b, s, width = x.shape
        each = width.value // heads if part else 2 * cos.shape[1].value
        whole = op.permute_dims(op.reshape(x, (b, s, width.value // each, each)), (0, 2, 1, 3))
    elif x.ndim != 4:
        raise n.error(f"rank {x.ndim}", "rank 3 or 4")
    batch, _, rows, _ = whole.shape
    if places.ndim == 1:
        places = op.reshape(places, (1, 1)) + op.iota((batch, rows), 1, places.dtype)
    y = rotate(n, whole, rows_at(n, places, cos, sin), interleaved)
    return op.reshape(op.permute_dims(y, (0, 2, 1, 3)), x.shape) if x.ndim == 3 else y


HANDLERS: dict[str, Handler] = {"com.microsoft.RotaryEmbedding": _rotary}
