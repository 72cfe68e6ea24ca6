"""Contractions: matmul, products of groups of rows, and linear, a matmul whose weight has its output axis first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from relax_eg.dtypes import NUMBERS, dtype_of, kind
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.attribute_values import one_of
from relax_eg.ops.elementwise import read_aligned
from relax_eg.ops.lazy_jax import jnp, lax
from relax_eg.ops.on_cpus import is_at_least, on_cpus
from relax_eg.ops.record import Attribute, Operator, Site, bytes_of, get, operators_run_as, register
from relax_eg.ops.sizes import Dims, broadcast, need_equal, need_kind, need_same_dtype, product
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Counts,
    Index,
    Scalar,
    Stage,
    TensorProgram,
    any_,
    cast,
    compute,
    const,
    less,
    less_equal,
    loop,
    program,
    select,
    sum_,
)

_SUM_BITS = 32  # given: bits of the sums of products of small integers

# Precisions of the products of floats in a contraction: one for both operands, or one for each.
PRECISIONS = ("default", "high", "highest")
# Algorithms of `jax.lax.DotAlgorithmPreset`, named by the dtypes of both operands and of the sum.
ALGORITHMS = (
    "F16_F16_F16", "F16_F16_F32", "BF16_BF16_BF16", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X9", "TF32_TF32_F32", "TF32_TF32_F32_X3", "F32_F32_F32", "F64_F64_F64", "ANY_F8_ANY_F8_F32",
    "ANY_F8_ANY_F8_F32_FAST_ACCUM", "ANY_F8_ANY_F8_ANY", "ANY_F8_ANY_F8_ANY_FAST_ACCUM",
)  # fmt: skip


def _result(site: Site) -> tuple[Dims, Dim]:
    """Returns the result's shape and the contracted size."""
    a, b = site.shape(0), site.shape(1)
    if not a or not b:
        raise site.error("a scalar has no axis to contract; multiply scales")
    inner = b[0] if len(b) == 1 else b[-2]
    need_equal(site, a[-1], inner, f"axis {len(a) - 1} of operand 0 meets axis {max(len(b) - 2, 0)} of operand 1")
    batch = broadcast(site, [a[:-2], b[:-2]])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())), a[-1]


def accumulates(dtype: str, out: str) -> bool:
    """Returns whether XLA permits products of `dtype` to be summed as `out`."""
    if out not in NUMBERS or dtype_of(out).bits < dtype_of(dtype).bits:
        return False
    return kind(out) in {"b": "iufc", "i": "if", "u": "uif", "f": "f", "c": "c"}[kind(dtype)]


def accumulator(site: Site, dtype: str) -> str:
    """Returns the dtype of the result: attribute `out_dtype`, in which products of `dtype` are summed, or `dtype`."""
    out = site["out_dtype"]
    if out is not None and not accumulates(dtype, out):
        raise site.error(f"out_dtype {out!r}; a dtype of the same kind, not narrower, is needed")
    return out or dtype


def need_precision(site: Site, algorithms: Sequence[str] = ()) -> None:
    """Requires attribute `precision` to be None, one of `PRECISIONS`, a pair of them, or one of `algorithms`."""
    asked = site["precision"]
    each = asked if isinstance(asked, tuple) and len(asked) == 2 else (asked,)  # type: ignore[reportUnknownArgumentType]
    if asked is not None and asked not in algorithms and any(p not in PRECISIONS for p in each):
        others = f", or an algorithm such as {algorithms[3]}" if algorithms else ""
        raise site.error(f"precision {asked!r}; accepted: None, {', '.join(PRECISIONS)}, a pair of these{others}")


def _deduce(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "biufcn")
    need_precision(site, ALGORITHMS)
    out = site["out_dtype"]
    if out is not None and not accumulates(dtype, out):
        raise site.error(
            f"out_dtype {out!r}; a dtype of the same kind is needed, or a float for integers, not narrower"
        )
    return Tensor(_result(site)[0], out or dtype)


def _contraction(x: Scalar, y: Scalar, axis: tuple[Dim, Dim]) -> Scalar:
    """The sum of products along an axis, or of truth values whether any product is true."""
    return any_(x & y, axis) if x.dtype == "bool" else sum_(x * y, axis)


def _equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    a, b = buffers
    shape, inner = _result(site)
    out = site["out_dtype"] or a.dtype
    k = loop("k")

    def element(*i: Dim) -> Scalar:
        rank = len(shape) - min(a.rank - 1, 1) - min(b.rank - 1, 1)
        batch, rest = i[:rank], i[rank:]
        row, column = rest[: min(a.rank - 1, 1)], rest[min(a.rank - 1, 1) :]
        lead = shape[:rank]
        x = read_aligned(a, (*batch, *row, k)[-a.rank :], (*lead, *a.shape[-2:])[-a.rank :])
        y = read_aligned(b, (*batch, k, *column)[-b.rank :], (*lead, *b.shape[-2:])[-b.rank :])
        return _contraction(cast(x, out), cast(y, out), (k, inner))

    return program("matmul", buffers, compute("out", shape, element))


def contracted(contract: Callable[[Any, Any, str | None], Any], a: Any, b: Any, out_dtype: str | None) -> Any:
    """A contraction of two arrays, in a wider dtype where XLA has none: for some dtypes of fewer than 8 bits it has
    none, for others none with another dtype of the result. `contract`: it, with its `preferred_element_type`."""
    dtype = dtype_of(a.dtype.name)
    wide = dtype.wider
    if dtype.bits >= 8 or (dtype.is_contracted and out_dtype in (None, dtype.name)):
        return contract(a, b, out_dtype)
    # Without the barrier XLA puts the conversions into the contraction, and then refuses it.
    a, b = lax.optimization_barrier((a.astype(wide.name), b.astype(wide.name)))
    return contract(a, b, out_dtype).astype(out_dtype or dtype.name)


# measured: sizes of a product of small integers from which on loops take longer than a library, and how often they take
# as long where it is at most so deep (`python -m benchmarks.patterns --cases integers`)
_ROWS, _COLUMNS, _DEPTH, _DEPTH_IN_LOOPS, _MOST_SLOWER = 2, 16, 64, 16, 20


def _is_in_loops(dtype: str, out: str | None, rows: Any, columns: Any, depth: Any) -> bool:
    """Whether XLA for CPUs multiplies matrices of `dtype`, with a result of dtype `out`, one element after the other,
    and longer than its library takes: it calls that for signed results of 32 bits only (jax 0.10.2)."""
    given, result = dtype_of(dtype), dtype_of(out or dtype)
    if given.kind not in "biu" or given.bits not in (8, 16) or result.kind not in "biu" or result.bits > _SUM_BITS:
        return False
    if given.kind != "u" and given is not result:
        return False
    return is_at_least(rows, _ROWS) and is_at_least(columns, _COLUMNS) and is_at_least(depth, _DEPTH)


def _matrix_sizes(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Rows, columns and depth of the product of arrays of these shapes, of which a matrix on the right has one."""
    return math.prod(a[:-1]) if len(b) <= 2 else math.prod(a[-2:-1]), math.prod(b[1:][-1:]), a[-1]


def _slower_product(site: Site, size: Callable[[Dim], float]) -> float:
    a, b = ([size(d) for d in site.shape(i)] for i in (0, 1))
    rows, columns, depth = _matrix_sizes(a, b if site.op == "matmul" else b[::-1])
    is_slow = _is_in_loops(site.dtype(0), site.attrs.get("out_dtype"), rows, columns, depth)
    return min(depth / _DEPTH_IN_LOOPS, _MOST_SLOWER) if is_slow else 1.0


def _product(
    contract: Callable[[Any, Any, str | None], Any], a: Any, b: Any, out_dtype: str | None, b_shape: Any
) -> Any:
    """The product of two arrays by `contract`, in whose `b_shape` the depth is the first of the last two axes. Small
    integers are summed in int32 on CPUs, and then cut: sums modulo a power of two are those modulo a greater one."""

    def plain(a: Any, b: Any) -> Any:
        return contracted(contract, a, b, out_dtype)

    def in_int32(a: Any, b: Any) -> Any:
        dtype, out = a.dtype.name, out_dtype or a.dtype.name
        narrow = "int8" if dtype_of(dtype).bits <= 8 and dtype == out else "int32"
        found = contract(a.astype(narrow), b.astype(narrow), "int32")
        return found != 0 if out == "bool" else found.astype(out)

    is_slow = _is_in_loops(a.dtype.name, out_dtype, *_matrix_sizes(a.shape, b_shape))
    return on_cpus(in_int32, plain)(a, b) if is_slow else plain(a, b)


def _lower(a: Any, b: Any, *, precision: Any, out_dtype: str | None) -> Any:
    def contract(a: Any, b: Any, out: str | None) -> Any:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=out)

    return _product(contract, a, b, out_dtype, b.shape)


PRECISION_AND_DTYPE = (
    Attribute("precision", default=None, values=one_of(None, "default", "high", "highest")),
    Attribute("out_dtype", default=None, values=one_of(None, "float32", "float64")),
)

register(
    Operator(
        "matmul",
        ("a", "b"),
        _deduce,
        _lower,
        _equations,
        PRECISION_AND_DTYPE,
        kernel="matmul",
        slower=_slower_product,
        doc="numpy.matmul: leading axes are batches, which broadcast; a vector is a row left, a column right",
    )
)


# --- a matrix for each group of rows ---


def _ragged_operands(site: Site, rank: int) -> tuple[str, Dims, Dims, Dims]:
    """Requires a matrix, an operand of this rank and the sizes of groups. Returns the dtype of both and the shapes."""
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "iufc")
    need_kind(site, "iu", 2)
    need_precision(site)
    x, y, groups = (site.shape(i) for i in range(3))
    if (len(x), len(y), len(groups)) != (2, rank, 1):
        raise site.error(f"ranks {len(x)}, {len(y)} and {len(groups)}; 2, {rank} and 1 are needed")
    return dtype, x, y, groups


def _ragged(site: Site) -> Annotation:
    dtype, x, w, groups = _ragged_operands(site, 3)
    need_equal(site, x[1], w[1], "axis 1 of operand 0 meets axis 1 of operand 1")
    need_equal(site, w[0], groups[0], "the matrices, and the sizes of groups")
    return Tensor((x[0], w[2]), accumulator(site, dtype))


def _ends(sizes: Buffer) -> Stage:
    """Returns the stage that computes the first row after each group."""
    h = loop("h")

    def end(i: Dim) -> Scalar:
        before = cast(sizes[h], "int64")
        return sum_(select(less_equal(Index(h), Index(i)), before, const(0, "int64")), (h, sizes.shape[0]))

    return compute("ends", sizes.shape, end)


def _in_group(ends: Stage, sizes: Buffer, group: Dim, row: Dim) -> Scalar:
    """Returns whether a row belongs to a group."""
    after = ends[group]
    return less_equal(after - cast(sizes[group], "int64"), Index(row)) & less(Index(row), after)


def _ragged_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, w, sizes = buffers
    out = site["out_dtype"] or x.dtype
    g, k = loop("g"), loop("k")
    ends = _ends(sizes)

    def element(i: Dim, j: Dim) -> Scalar:
        product = cast(x[i, k], out) * cast(w[g, k, j], out)
        inside = _in_group(ends, sizes, g, i)
        return sum_(select(inside, product, const(0, out)), [(g, w.shape[0]), (k, x.shape[1])])

    return program("ragged_dot", buffers, ends, compute("out", (x.shape[0], w.shape[2]), element))


def _ragged_outer(site: Site) -> Annotation:
    dtype, x, y, groups = _ragged_operands(site, 2)
    need_equal(site, x[0], y[0], "axis 0 of operand 0 meets axis 0 of operand 1")
    return Tensor((groups[0], x[1], y[1]), accumulator(site, dtype))


def _ragged_outer_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, y, sizes = buffers
    out = site["out_dtype"] or x.dtype
    k = loop("k")
    ends = _ends(sizes)

    def element(g: Dim, i: Dim, j: Dim) -> Scalar:
        product = cast(x[k, i], out) * cast(y[k, j], out)
        return sum_(select(_in_group(ends, sizes, g, k), product, const(0, out)), (k, x.shape[0]))

    made = compute("out", (sizes.shape[0], x.shape[1], y.shape[1]), element)
    return program("ragged_outer", buffers, ends, made)


def _ragged_outer_lower(x: Any, y: Any, sizes: Any, *, precision: Any, out_dtype: str | None) -> Any:
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )

    def contract(x: Any, y: Any, out: str | None) -> Any:
        return lax.ragged_dot_general(x, y, sizes, numbers, precision=precision, preferred_element_type=out)

    return contracted(contract, x, y, out_dtype)


def _ragged_cost(site: Site) -> Counts:
    # The equations visit every group for each row; this counts the one group that a row belongs to.
    read = bytes_of(site.operands[0]) + bytes_of(site.operands[1]) + bytes_of(site.operands[2])
    return Counts(product((*site.shape(0), site.shape(1)[-1])) * 2, read, bytes_of(get(site.op).deduce(site)))


def _ragged_lower(x: Any, w: Any, sizes: Any, *, precision: Any, out_dtype: str | None) -> Any:
    def contract(x: Any, w: Any, out: str | None) -> Any:
        return lax.ragged_dot(x, w, sizes, precision=precision, preferred_element_type=out)

    return contracted(contract, x, w, out_dtype)


for _operator in (
    Operator("ragged_dot", ("x", "weights", "sizes"), _ragged, _ragged_lower, _ragged_equations, PRECISION_AND_DTYPE,
             cost=_ragged_cost,
             doc="rows of x in groups of the given sizes, each group times its own matrix; 0 for rows of no group"),
    Operator("ragged_outer", ("x", "y", "sizes"), _ragged_outer, _ragged_outer_lower, _ragged_outer_equations,
             PRECISION_AND_DTYPE, cost=_ragged_cost,
             doc="x.T @ y for each group of rows of the given sizes"),
):  # fmt: skip
    register(_operator)


def _linear_result(site: Site) -> tuple[Dims, Dim]:
    x, w = site.shape(0), site.shape(1)
    if not x or len(w) != 2:
        raise site.error(f"an operand of rank 1 or more and a matrix are needed, got ranks {len(x)} and {len(w)}")
    need_equal(site, x[-1], w[1], f"axis {len(x) - 1} of operand 0 meets axis 1 of operand 1")
    return (*x[:-1], w[0]), x[-1]


def _linear_deduce(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "biufcn")
    return Tensor(_linear_result(site)[0], dtype)


def _linear_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, w = buffers
    shape, inner = _linear_result(site)
    k = loop("k")

    def element(*i: Dim) -> Scalar:
        return _contraction(x[(*i[:-1], k)], w[i[-1], k], (k, inner))

    return program("linear", buffers, compute("out", shape, element))


def _linear_lower(x: Any, weight: Any) -> Any:
    def contract(x: Any, weight: Any, _: str | None) -> Any:
        # Of several rows written with the transpose, which XLA reads in place. Where one row is added to a vector, XLA
        # would copy the transposed weight at every call (`extract.costs.implied_matmuls`).
        if all(isinstance(n, int) and n == 1 for n in x.shape[:-1]):
            return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
        return x @ weight.T

    return _product(contract, x, weight, None, weight.shape[::-1])


register(
    Operator(
        "linear",
        ("x", "weight"),
        _linear_deduce,
        _linear_lower,
        _linear_equations,
        kernel="transposed_matmul",
        slower=_slower_product,
        doc="x @ weight.T for a weight (out, in): the same product, read along the other axis of memory",
    )
)

MATMULS, LINEARS = operators_run_as("matmul"), operators_run_as("transposed_matmul")
