"""Products of codes: what is decoded from bytes and multiplied may be multiplied as bytes, and what is not may be
encoded first.

`integer_product` rewrites products that a program has; the sum of products of bytes in int32 is exact. The other
schemas propose codes of fewer bits for weights that are known ahead. They change values by more than rounding: they are
of the class `quantised`, which is not used unless it is asked for. Prices decide: a product of bytes is faster on
devices with units for it (`Profile.matmul_rate["int8"]`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relax_eg.dtypes import dtype_of
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, postorder
from relax_eg.ir.heads import with_operands
from relax_eg.ir.module import Binding, Block, Function
from relax_eg.ops import api as op
from relax_eg.ops.codes import Coded, Scheme, contracted_axes, decoded, encoded, encoded_rows, why_not_coded
from relax_eg.ops.record import call
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schema_trials import coded_products, products_with_weights
from relax_eg.rules.schemas import ModuleAnswers, ProgramQueries, Schema
from relax_eg.shapes import Dim

_BYTES = ("int8", "uint8")
_WIDE = ("float32", "int32")
_MOST_SUMMED = 1 << 17  # given: products of two bytes whose sum exceeds int32
_DEPTH = 8  # limit: operators between a product and the codes of an operand


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
    if not isinstance(x.annotation, Tensor) or x.annotation.shape is None:
        return None
    return x if x.ndim < -axis or x.shape[axis] == Dim.of(1) else None


def _flat(x: Expr, axis: int) -> Expr:
    """What belongs to the columns of a weight, without the contracted axis."""
    return op.squeeze(x, axis) if x.ndim == 2 else x


def _as_integers(e: Expr, queries: ProgramQueries) -> Expr | None:
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
    y = op.astype(op.matmul(left.codes, codes, out_dtype="int32"), e.dtype)
    zero = None if right.zero is None else _flat(right.zero, axis)
    if left.zero is not None:
        y = y - left.zero * op.astype(op.sum(op.astype(codes, "int32"), 0), e.dtype)
    if zero is not None:
        y = y - op.astype(op.sum(op.astype(left.codes, "int32"), -1, True), e.dtype) * zero
    if left.zero is not None and zero is not None:
        y = y + left.zero * zero * op.dim_value(size, e.dtype)
    for scale in (*left.scales, *(_flat(s, axis) for s in right.scales)):
        y = y * scale
    return y if y.annotation == e.annotation else None


def integers_in(function: Function) -> Function:
    """`function` with `integer_product` applied wherever it can be, whatever that costs."""
    done: dict[Expr, Expr] = {}
    for e in function.expressions():
        args = [done[a] for a in e.args]
        made = e if all(a is b for a, b in zip(args, e.args, strict=True)) else with_operands(e, args)
        proposed = _as_integers(made, ModuleAnswers({})) if made.op in ("matmul", "linear") else None
        done[e] = made if proposed is None else proposed
    blocks = tuple(Block(tuple(Binding(b.var, done[b.value]) for b in k.bindings), k.dataflow) for k in function.blocks)
    return replace(function, blocks=blocks, result=done[function.result])


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
    return made if as_floats else _as_integers(made, queries)


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


quantised = RuleSet(
    "quantised",
    schemas=(
        Schema(
            "integer_product",
            "a product of what two arrays of bytes stand for is a product of bytes, times their scales",
            "reassociate",
            frozenset(("quantised", "integers")),
            _as_integers,
            frozenset(("matmul", "linear")),
            (coded_products,),
        ),
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
