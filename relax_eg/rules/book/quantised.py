"""Products of codes: what is decoded from bytes and multiplied may be multiplied as bytes, and what is not may be
encoded first.

`integer_product` and `integer_convolution` rewrite products that a program has; the sum of products of bytes in int32
is exact. `codes_of_codes` leaves out what decodes bytes, moves their elements and encodes them again. The other schemas
propose codes of fewer bits for weights that are known ahead. They change values by more than rounding: they are of the
class `quantised`, which is not used unless it is asked for. Prices decide: a product of bytes is faster on devices with
units for it (`Profile.matmul_rate["int8"]`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relax_eg.dtypes import dtype_of
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import rebuilt
from relax_eg.ir.expr import CONSTANT, Expr, const, constant_value, postorder
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Function
from relax_eg.ops import api as op
from relax_eg.ops.codes import Coded, Scheme, contracted_axes, decoded, encoded, encoded_rows, why_not_coded
from relax_eg.ops.interpret import evaluate_expr
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, call
from relax_eg.rules.checking.schema_trials import coded_products, products_with_weights
from relax_eg.rules.checking.window_trials import coded_convolutions, codes_again
from relax_eg.rules.index_maps.inward import is_join
from relax_eg.rules.index_maps.views import view_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ModuleAnswers, ProgramQueries, Schema, schema
from relax_eg.rules.windows.channels_last import depthwise, to_first, to_last
from relax_eg.rules.windows.forms import all_ones, is_depthwise, is_known, padded, padding_of, taps_of, window_of
from relax_eg.shapes import Dim

_BYTES = ("int8", "uint8")
_WIDE = ("float32", "int32")
_MOST_SUMMED = 1 << 17  # given: products of two bytes whose sum exceeds int32
_DEPTH = 8  # limit: operators between a product and the codes of an operand
_MOST_PARTS = 49  # limit: places of a window of which patches of codes are made
_MOST_CHANNELS = 1 << 12  # limit: scales that are compared one by one
_AROUND = ("reshape", "astype", "broadcast_to", "squeeze", "expand_dims")  # operators around a constant
Array = np.ndarray[Any, Any]
_LEAST_SCALE = 1e-30  # chosen: the least scale whose product with a byte is surely a normal number


@dataclass(frozen=True)
class _Operand:
    """An operand of a product, read as (codes - zero) * scales.

    - `codes`: int8 or uint8.
    - `zero`: constant along the contracted axis, as are the `scales`; all of the product's dtype.
    """

    codes: Expr
    zero: Expr | None = None
    scales: tuple[Expr, ...] = ()

    def as_int8(self, wide: str) -> _Operand:
        """The same with int8 codes, in a product of dtype `wide`."""
        if self.codes.dtype == "int8":
            return self
        codes = op.astype(op.astype(self.codes, "int32") - 128, "int8")
        offset = const(-128, wide)
        return replace(self, codes=codes, zero=offset if self.zero is None else self.zero + offset)


def _read(e: Expr, axis: int, depth: int = 0) -> _Operand | None:
    """Reads an operand that is contracted along `axis`, counted from the end."""
    if depth > _DEPTH or not isinstance(e.annotation, Tensor):
        return None
    if e.op == "astype":
        return _Operand(e.args[0]) if e.args[0].dtype in _BYTES and e.dtype in _WIDE else None
    if e.op == "permute_dims":
        return _read_permuted(e, axis, depth)
    if e.op == "multiply":
        for inner, by in (e.args, e.args[::-1]):
            scale = _constant_along(by, axis)
            if scale is not None and inner.shape == e.shape:
                found = _read(inner, axis, depth + 1)
                return None if found is None else replace(found, scales=(*found.scales, scale))
    if e.op == "subtract" and e.args[0].shape == e.shape:
        zero, inner = _constant_along(e.args[1], axis), e.args[0]
        if zero is not None and inner.op == "astype":
            found = _read(inner, axis, depth + 1)
            return None if found is None else replace(found, zero=zero)
    return None


def _read_permuted(e: Expr, axis: int, depth: int) -> _Operand | None:
    axes = e.attr("axes")
    found = _read(e.args[0], axes[axis] - e.ndim, depth + 1)
    if found is None:
        return None

    def turned(x: Expr) -> Expr | None:
        return op.permute_dims(x, axes) if x.ndim == e.ndim else x if x.ndim == 0 else None

    codes, *more = (turned(x) for x in (found.codes, *found.scales, *([] if found.zero is None else [found.zero])))
    if codes is None or any(x is None for x in more):
        return None
    kept = [x for x in more if x is not None]
    return _Operand(codes, None if found.zero is None else kept[-1], tuple(kept[: len(found.scales)]))


def _constant_along(x: Expr, axis: int) -> Expr | None:
    """`x`, or what it repeats, if that has one element along `axis`, counted from the end."""
    while x.op == "broadcast_to":
        x = x.args[0]
    if not is_known_tensor(x):
        return None
    return x if x.ndim < -axis or x.shape[axis] == Dim.of(1) else None


def _flat(x: Expr, axis: int) -> Expr:
    """What belongs to the columns of a weight, without the contracted axis."""
    return op.squeeze(x, axis) if x.ndim == 2 else x


def integer_product(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a product of what two arrays of bytes stand for is a product of bytes, times their scales"""
    x, w = e.args
    if e.dtype not in _WIDE or w.ndim != 2 or e.dtype != x.dtype:
        return None
    turned = e.op == "linear"
    size, axis = x.shape[-1], -1 if turned else -2
    if e.dtype == "float32" and (not size.is_const or int(size) >= _MOST_SUMMED):
        return None
    left, right = _read(x, -1), _read(w, axis)
    if left is None or right is None:
        return None
    left, right = left.as_int8(e.dtype), right.as_int8(e.dtype)
    codes = op.permute_dims(right.codes, (1, 0)) if turned else right.codes
    flat = _Operand(codes, None if right.zero is None else _flat(right.zero, axis), _flat_all(right.scales, axis))
    y = _product(left, flat, e.dtype)
    return y if y.annotation == e.annotation else None


def _flat_all(scales: Sequence[Expr], axis: int) -> tuple[Expr, ...]:
    return tuple(_flat(s, axis) for s in scales)


def _product(left: _Operand, right: _Operand, wide: str) -> Expr:
    """The product of int8 codes, summed in int32, as numbers of dtype `wide`. The right codes are (depth, columns), and
    their zero and scales have a place for each column. Both may be batched."""
    y = op.astype(op.matmul(left.codes, right.codes, out_dtype="int32"), wide)
    if left.zero is not None:
        y = y - left.zero * op.astype(op.sum(op.astype(right.codes, "int32"), -2, right.codes.ndim > 2), wide)
    if right.zero is not None:
        y = y - op.astype(op.sum(op.astype(left.codes, "int32"), -1, True), wide) * right.zero
    if left.zero is not None and right.zero is not None:
        y = y + left.zero * right.zero * op.dim_value(left.codes.shape[-1], wide)
    return _scaled(y, (*left.scales, *right.scales))


def _scaled(y: Expr, scales: Sequence[Expr]) -> Expr:
    for scale in scales:
        y = y * scale
    return y


def integer_convolution(e: Expr, queries: ProgramQueries) -> Expr | None:
    """a convolution of what bytes stand for is one of bytes, as a product of patches or by taps, scaled

    Proposes a product of the patches of an image of codes, for one zero of the image and its scale, or one scale of
    each image; with groups a product for each. That of a depthwise convolution is a sum over taps."""
    x, w = e.args
    if not is_known(e) or e.dtype != "float32" or x.dtype != "float32":
        return None
    groups = e.attr("groups")
    window = window_of(e)
    if not window or not all_ones(e, "input_dilation") or not all(d.is_const for d in w.shape):
        return None
    if not 1 <= math.prod(window) <= _MOST_PARTS or math.prod(d.value for d in w.shape[1:]) >= _MOST_SUMMED:
        return None
    image, kernel = _read_image(x), _read_kernel(w)
    if image is None or kernel is None:
        return None
    if groups > 1 and is_depthwise(e):
        return _taps_of_integers(e, image, kernel, window)
    image, kernel = image.as_int8("float32"), kernel.as_int8("float32")
    last, rank = to_last(e.ndim), e.ndim - 2
    fill = const(0, "int8") if image.zero is None else op.astype(image.zero, "int8")
    codes = padded(op.permute_dims(image.codes, last), e, e.ndim - 1, fill)
    parts = taps_of(e, codes, itertools.product(*map(range, window)), e.ndim - 1)
    o, n, front = w.shape[0].value, e.shape[0], () if groups == 1 else (groups,)
    own, at = o // groups, len(front)
    if front:  # rows, groups, channels of a group
        rows = n * math.prod(e.shape[2:], start=Dim.of(1))
        parts = [op.reshape(p, (rows, groups, w.shape[1])) for p in parts]
    patches = parts[0] if len(parts) == 1 else op.concat(parts, parts[0].ndim - 1)
    columns = op.reshape(kernel.codes, (groups, own, *w.shape[1:])) if front else kernel.codes
    columns = op.permute_dims(columns, (*range(at), *range(at + 2, at + e.ndim), at + 1, at))
    columns = op.reshape(columns, (*front, patches.shape[-1], own))

    def of_columns(v: Expr, shape: Sequence[Dim | int]) -> Expr:
        return op.reshape(v, shape if v.ndim == e.ndim and v.shape[0] == o else ())

    zero = None if kernel.zero is None else of_columns(kernel.zero, (groups, 1, own) if front else (o,))
    made = _product(
        _Operand(op.permute_dims(patches, (1, 0, 2)) if front else patches, image.zero),
        _Operand(columns, zero), "float32",
    )  # fmt: skip
    if front:
        made = op.reshape(op.permute_dims(made, (1, 0, 2)), (n, *e.shape[2:], o))
    made = _scaled(made, (*image.scales, *(of_columns(s, (o,)) for s in kernel.scales)))
    made = op.permute_dims(made, to_first(e.ndim))
    return made if rank and made.annotation == e.annotation else None


def _taps_of_integers(e: Expr, image: _Operand, kernel: _Operand, window: Sequence[int]) -> Expr | None:
    """Depthwise convolution `e` of codes without their zeros, as a sum over taps in int32."""
    if not _is_whole(kernel):
        return None

    def numbers(x: _Operand) -> Expr:
        codes = op.astype(x.codes, "int32")
        return codes if x.zero is None else codes - op.astype(x.zero, "int32")

    attrs = e.attr("strides"), padding_of(e), e.attr("dilation"), e.attr("groups")
    whole = op.conv(numbers(image), numbers(kernel), *attrs)
    codes = padded(op.permute_dims(whole.args[0], to_last(e.ndim)), e, e.ndim - 1)
    made = op.astype(op.permute_dims(depthwise(whole, codes, window), to_first(e.ndim)), "float32")
    own = (op.reshape(scale, (scale.shape[0], *[1] * (e.ndim - 2))) if scale.ndim else scale for scale in kernel.scales)
    made = _scaled(made, (*image.scales, *own))
    return made if made.annotation == e.annotation else None


def _read_image(x: Expr) -> _Operand | None:
    """Reads an image, contracted along all axes but the first. Its zero is one for all images, because patches are
    filled with it."""
    found = _read(x, -(x.ndim - 1))
    if found is None or not _is_code(found):
        return None
    plain = all(s.ndim == 0 or (s.ndim == x.ndim and all(d == 1 for d in s.shape[1:])) for s in found.scales)
    return found if plain else None


def _is_code(x: _Operand) -> bool:
    """Whether the zero of an operand is a single code."""
    return x.zero is None or (x.zero.ndim == 0 and _is_whole(x))


def _is_whole(x: _Operand) -> bool:
    """Whether each zero of an operand is a code."""
    if x.zero is None or (x.zero.op == "astype" and x.zero.args[0].dtype == x.codes.dtype):
        return True
    value, held = _number(x.zero), dtype_of(str(x.codes.dtype))
    return value is not None and value == round(value) and held.least <= value <= held.greatest


def _read_kernel(w: Expr) -> _Operand | None:
    """Reads the kernel of a convolution: zero and scales are those of all output channels, or of each."""
    found = _read(w, -(w.ndim - 1))
    if found is None:
        return None
    more = [*found.scales, *([] if found.zero is None else [found.zero])]
    ok = all(s.ndim == 0 or (s.ndim == w.ndim and all(d == 1 for d in s.shape[1:])) for s in more)
    return found if ok else None


# --- codes that are decoded and encoded again ---


def codes_of_codes(e: Expr, queries: ProgramQueries) -> Expr | None:
    """codes of what codes stand for, with the same scale and zero, are these codes, moved alike

    Proposes the codes for what encodes their values again, with only views between.
    """
    encoding = _read_encoding(e)
    if encoding is None:
        return None
    y, scale, zero = encoding
    return _moved_codes(y, e.dtype, scale, zero, 0)


def _read_encoding(e: Expr) -> tuple[Expr, Array, Array] | None:
    """The values, the scale and the zero of what `ops.codes.saturated` encodes with numbers that are constants."""
    if e.op != "astype" or e.dtype not in _BYTES:
        return None
    low, high = dtype_of(e.dtype).least, dtype_of(e.dtype).greatest
    most, below = _with_numbers(e.args[0], "minimum")
    least, rounded = _with_numbers(below, "maximum")
    if most is None or least is None or most.ndim or least.ndim or most != high or least != low:
        return None
    while rounded.op == "round" and rounded.args[0].op in ("round", "add"):
        rounded = rounded.args[0]
    zero = np.zeros(())
    if rounded.op == "add":
        found, rounded = _with_numbers(rounded, "add")
        if found is None or np.any(found != np.round(found)):
            return None
        zero = found
    if rounded.op != "round" or rounded.attr("method") != "to_even" or rounded.args[0].op != "divide":
        return None
    y, by = rounded.args[0].args
    scale = _numbers(by, y)
    # Beyond these a product with a byte is not a normal number.
    if scale is None or y.dtype != "float32" or not np.all((scale >= _LEAST_SCALE) & (scale <= 1 / _LEAST_SCALE)):
        return None
    return y, scale, zero


def _with_numbers(e: Expr, operator: str) -> tuple[Array | None, Expr]:
    """The constant operand of an operator with two, and the other one; None and the expression itself for others."""
    if e.op == operator:
        for numbers, other in (e.args, e.args[::-1]):
            if other.shape == e.shape and (found := _numbers(numbers, other)) is not None:
                return found, other
    return None, e


def _number(x: Expr) -> float | None:
    """The value of a constant with one element, behind views and conversions."""
    while x.op in _AROUND and x.args:
        x = x.args[0]
    return float(constant_value(x).reshape(-1)[0]) if x.op == CONSTANT and constant_value(x).size == 1 else None


def _numbers(x: Expr, of: Expr) -> Array | None:
    """The value of a constant, behind views and conversions, that each element of `of` meets: of no axes if it is one
    number, else of as many axes as `of`."""
    if (single := _number(x)) is not None:
        return np.asarray(single)
    while x.op == "broadcast_to":
        x = x.args[0]
    inner = x
    while inner.op in _AROUND and inner.args:
        inner = inner.args[0]
    if inner.op != CONSTANT or constant_value(inner).size > _MOST_CHANNELS or x.ndim > of.ndim:
        return None
    if any(not d.is_const for d in x.shape):
        return None
    value = np.asarray(evaluate_expr(x, {}, {}), np.float64)
    return value.reshape(*[1] * (of.ndim - x.ndim), *value.shape) if value.size <= _MOST_CHANNELS else None


def _moved_codes(y: Expr, dtype: str, scale: Array, zero: Array, depth: int) -> Expr | None:
    """The codes of `dtype` of which `y` is decoded with this scale and zero, moved as it moves their values."""
    if depth > _DEPTH or not is_known_tensor(y):
        return None
    if y.op == "multiply":
        return _own_codes(y, dtype, scale, zero)
    record = TABLE.get(y.op)
    if record is None or not y.args:
        return None

    def moved(x: Expr, scale: Array, zero: Array) -> Expr | None:
        return _moved_codes(x, dtype, scale, zero, depth + 1)

    if is_join(y):
        axis = y.attr("axis")
        if any(v.ndim and v.shape[axis] != 1 for v in (scale, zero)):
            return None  # each part has channels of its own
        parts = [moved(a, scale, zero) for a in y.args]
        return None if any(m is None for m in parts) else call(y.op, [m for m in parts if m is not None], dict(y.attrs))
    if len(y.args) != 1 or not (record.moves == "view" or view_of(y) is not None):
        return None
    if scale.ndim or zero.ndim:  # of other views it is not known where they place channels
        if y.op != "permute_dims":
            return None
        before = np.argsort([a % y.ndim for a in y.attr("axes")])
        scale, zero = (v.transpose(before) if v.ndim else v for v in (scale, zero))
    inner = moved(y.args[0], scale, zero)
    return None if inner is None else call(y.op, (inner,), dict(y.attrs))


def _own_codes(y: Expr, dtype: str, scale: Array, zero: Array) -> Expr | None:
    """The codes that product `y` decodes with this scale and zero."""
    for inner, by in (y.args, y.args[::-1]):
        if inner.shape == y.shape and _are_equal(_numbers(by, y), scale):
            own: Array | None = np.zeros(())
            if inner.op == "subtract" and inner.args[0].shape == inner.shape:
                own, inner = _numbers(inner.args[1], inner), inner.args[0]
            codes = inner.args[0] if inner.op == "astype" else None
            return codes if codes is not None and codes.dtype == dtype and _are_equal(own, zero) else None
    return None


def _are_equal(a: Array | None, b: Array) -> bool:
    return a is not None and bool(np.all(a == b)) and (a.shape == b.shape or 1 in (a.size, b.size))


_INTEGERS = {"matmul": integer_product, "linear": integer_product, "conv": integer_convolution}


def integers_in(function: Function) -> Function:
    """`function` with products of integers wherever there can be, whatever that costs."""

    def of_integers(e: Expr, args: tuple[Expr, ...]) -> Expr:
        made = with_operands(e, args)
        propose = _INTEGERS.get(made.op)
        proposed = None if propose is None else propose(made, ModuleAnswers({}))
        return made if proposed is None else proposed

    return rebuilt(function, of_integers)


def quantised_product(e: Expr, coded: Coded, scheme: Scheme, x: Expr) -> Expr:
    """`e`, a product, with a weight that is decoded from `coded` and the first operand `x`."""
    axes = contracted_axes(e)
    return call(e.op, (x, decoded(coded, e.args[1], scheme, axes)), dict(e.attrs))


def decoded_rows(x: Expr) -> Expr:
    """`x` rounded to what int8 codes of its rows stand for."""
    c = encoded_rows(x)
    return op.astype(op.astype(c.codes, "float32") * c.scale, x.dtype)


def _coded(scheme: Scheme, e: Expr, queries: ProgramQueries) -> Expr | None:
    x, w = e.args
    if e.dtype != "float32" or w.ndim != 2 or not queries.is_known_ahead(w) or queries.is_known_ahead(x):
        return None
    if any(a.op == "astype" and dtype_of(a.dtype).bits <= 8 for a in postorder((w,))):
        return None  # it stands for codes already
    axes = contracted_axes(e)
    if why_not_coded(w, scheme, axes):
        return None
    as_floats = scheme.activations == "none"
    made = quantised_product(e, encoded(w, scheme, axes), scheme, x if as_floats else decoded_rows(x))
    return made if as_floats else integer_product(made, queries)


def _schema(name: str, doc: str, scheme: Scheme) -> Schema:
    def propose(e: Expr, queries: ProgramQueries) -> Expr | None:
        return _coded(scheme, e, queries)

    return Schema(
        name,
        doc,
        "quantised",
        frozenset(("quantised",)),
        propose,
        frozenset(("matmul", "linear")),
        (products_with_weights(scheme.kind),),
    )


_INTEGER_TAGS = ("quantised", "integers")
quantised = RuleSet(
    "quantised",
    schemas=(
        schema(integer_product, "reassociate", _INTEGER_TAGS, ("matmul", "linear"), (coded_products,)),
        schema(integer_convolution, "reassociate", (*_INTEGER_TAGS, "conv"), ("conv",), (coded_convolutions,)),
        schema(codes_of_codes, "reassociate", _INTEGER_TAGS, ("astype",), (codes_again,)),
        _schema("bytes_for_weights", "a weight that is known ahead as bytes, with a scale for each column", Scheme()),
        _schema(
            "bytes_for_operands",
            "a product with a weight that is known ahead as a product of bytes: each row and column has a scale",
            Scheme(activations="dynamic"),
        ),
        _schema("nibbles_for_weights", "a weight as codes of four bits, 32 to a scale", Scheme("int4")),
        _schema("floats_of_eight_bits", "a weight as float8_e4m3fn, with a scale for each column", Scheme("fp8")),
    ),
)
