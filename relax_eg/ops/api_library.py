"""More operator functions of `rx.op`: running reductions, windows, order, positions, linear algebra, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from relax_eg.errors import OperatorError
from relax_eg.ir.expr import Expr, tuple_get
from relax_eg.ops.data_dependent import call_routine
from relax_eg.ops.libraries import call_library
from relax_eg.ops.operands import Operand, Size, as_dims, normal_axis, operands
from relax_eg.ops.record import call
from relax_eg.ops.shorthand import call_in_short
from relax_eg.ops.sizes import ZERO, dilated
from relax_eg.ops.windows import AnyStep
from relax_eg.shapes import Dim, ceildiv, dim_max

__all__ = (
    "arange_of", "argsort", "argwhere", "avg_pool", "bitcast", "cholesky", "complex", "conj", "conv",
    "count_leading_zeros", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "definite_solve", "digamma",
    "dynamic_slice", "dynamic_update_slice", "eigh", "fft", "flatnonzero", "imag", "lgamma", "library", "lu",
    "masked_select", "max_pool", "nextafter", "non_max_suppression", "nonzero", "population_count", "qr",
    "real", "reduce_window", "right_shift_logical", "scatter", "sort", "svd", "take_along_axis", "top_k",
    "top_k_of", "triangular_solve", "unique",
)  # fmt: skip


def unary(name: str) -> Callable[[Operand], Expr]:
    """Returns the function of an elementwise operator of one operand."""

    def operator(x: Operand) -> Expr:
        return call(name, operands(name, x))

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = f"`{name}` of each element."
    return operator


def binary(name: str) -> Callable[[Operand, Operand], Expr]:
    """Returns the function of an elementwise operator of two operands."""

    def operator(x: Operand, y: Operand) -> Expr:
        return call(name, operands(name, x, y))

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = f"`{name}` of elements, broadcast."
    return operator


lgamma, digamma, real, imag, conj = (unary(n) for n in ("lgamma", "digamma", "real", "imag", "conj"))
population_count, count_leading_zeros = unary("population_count"), unary("count_leading_zeros")
complex, nextafter, right_shift_logical = (binary(n) for n in ("complex", "nextafter", "right_shift_logical"))


def bitcast(x: Operand, dtype: str) -> Expr:
    """The bits of `x` read as another dtype."""
    return call("bitcast", operands("bitcast", x), {"dtype": dtype})


# --- running reductions ---


def _scan(name: str) -> Callable[..., Expr]:
    def operator(x: Operand, axis: int, reverse: bool = False) -> Expr:
        return call_in_short(name, operands(name, x), axis=axis, reverse=reverse)

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = f"`{name}`: running along `axis`, from its end with `reverse`."
    return operator


cumsum, cumprod, cummax, cummin, cumlogsumexp = (
    _scan(n) for n in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
)


# --- windows ---

Padding = str | Sequence[tuple[Size, Size]]
Steps = int | Sequence[int]


def _plain_steps(value: Sequence[int]) -> tuple[int, ...]:
    return tuple(cast("int", s.dim) if isinstance(s, AnyStep) else s for s in value)


def _steps(op: str, value: Steps, rank: int) -> tuple[int, ...]:
    steps = (value,) * rank if isinstance(value, int) else _plain_steps(value)
    if len(steps) != rank:
        raise OperatorError(f"{op}: {len(steps)} steps for {rank} axes of space")
    return steps


def _padding(
    op: str, padding: Padding, space: Sequence[Dim], window: Sequence[Dim], strides: Sequence[int]
) -> tuple[list[Dim], list[Dim]]:
    """Returns widths before and after each axis: 0 for "valid"; "same" gives a result of ceil(space / strides)."""
    if not isinstance(padding, str):
        return [Dim.of(low) for low, _ in padding], [Dim.of(high) for _, high in padding]
    if padding.lower() == "valid":
        return [ZERO] * len(space), [ZERO] * len(space)
    if padding.lower() != "same":
        raise OperatorError(f"{op}: padding {padding!r}; accepted: 'same', 'valid', or a pair of widths for each axis")
    low: list[Dim] = []
    high: list[Dim] = []
    for size, reach, stride in zip(space, window, strides, strict=True):
        missing = reach - 1 if stride == 1 else dim_max(0, (ceildiv(size, stride) - 1) * stride + reach - size)
        low.append(missing // 2)
        high.append(missing - missing // 2)
    return low, high


def conv(
    x: Operand,
    weight: Operand,
    strides: Steps = 1,
    padding: Padding = "valid",
    dilation: Steps = 1,
    groups: int = 1,
    input_dilation: Steps = 1,
    precision: str | None = None,
    out_dtype: str | None = None,
) -> Expr:
    """Convolution of `x` (batch, channels, *space) with `weight` (out, channels / groups, *window), over any number of
    spatial axes. `dilation` spreads the window, `input_dilation` the elements of `x` (transposed convolution)."""
    value, kernel = operands("conv", x, weight)
    rank = value.ndim - 2
    step, around, between = (_steps("conv", s, rank) for s in (strides, dilation, input_dilation))
    reach = [dilated(k, d - 1) for k, d in zip(kernel.shape[2:], around, strict=False)]
    space = [dilated(n, d - 1) for n, d in zip(value.shape[2:], between, strict=True)]
    low, high = _padding("conv", padding, space, reach, step)
    attrs = {
        "strides": step, "low": low, "high": high, "dilation": around, "input_dilation": between, "groups": groups,
        "precision": precision, "out_dtype": out_dtype,
    }  # fmt: skip
    return call("conv", (value, kernel), attrs)


def reduce_window(
    x: Operand,
    kind: str,
    window: Sequence[Size],
    strides: Sequence[int] | None = None,
    padding: Padding = "valid",
    dilation: Sequence[int] | None = None,
) -> Expr:
    """`kind` ("sum", "prod", "max", "min") of every window; the other arguments have one entry for each axis."""
    (value,) = operands("reduce_window", x)
    sizes, ones = as_dims(window), (1,) * value.ndim
    step, around = _plain_steps(strides or ones), _plain_steps(dilation or ones)
    reach = [dilated(k, d - 1) for k, d in zip(sizes, around, strict=False)]
    low, high = _padding("reduce_window", padding, value.shape, reach, step)
    attrs = {"kind": kind, "window": sizes, "strides": step, "low": low, "high": high, "dilation": around}
    return call("reduce_window", (value,), {**attrs, "input_dilation": ones})


def _pool(op: str, kind: str, x: Operand, window: Steps, strides: Steps | None, padding: Padding) -> Expr:
    """Reduces windows over the spatial axes of (batch, channels, *space); strides are the window's sizes by default."""
    (value,) = operands(op, x)
    sizes = _steps(op, window, value.ndim - 2)
    step = sizes if strides is None else _steps(op, strides, value.ndim - 2)
    around = padding if isinstance(padding, str) else [(0, 0), (0, 0), *padding]
    return reduce_window(value, kind, (1, 1, *sizes), (1, 1, *step), around)


def max_pool(x: Operand, window: Steps, strides: Steps | None = None, padding: Padding = "valid") -> Expr:
    """The maximum of every window of (batch, channels, *space); `strides` are the window's sizes by default."""
    return _pool("max_pool", "max", x, window, strides, padding)


def avg_pool(x: Operand, window: Steps, strides: Steps | None = None, padding: Padding = "valid") -> Expr:
    """The mean of every window of (batch, channels, *space); padding counts as zeros."""
    (value,) = operands("avg_pool", x)
    total = _pool("avg_pool", "sum", value, window, strides, padding)
    count = math.prod(_steps("avg_pool", window, value.ndim - 2))
    return call("divide", operands("avg_pool", total, count))


# --- order and positions ---


def sort(x: Operand, axis: int = -1) -> Expr:
    """The elements in ascending order along `axis`, NaN last."""
    return call_in_short("sort", operands("sort", x), axis=axis)


def argsort(x: Operand, axis: int = -1, dtype: str = "int32") -> Expr:
    """The positions that sort `x` in ascending order along `axis`; equal elements keep their order."""
    (value,) = operands("argsort", x)
    along = normal_axis("argsort", axis, value.ndim)
    at = call("iota", (), {"shape": value.shape, "axis": along, "dtype": dtype})
    return tuple_get(call("sort", (value, at), {"axis": along}), 1)


def top_k(x: Operand, k: Size, axis: int = -1) -> tuple[Expr, Expr]:
    """The `k` greatest elements along `axis`, descending, and their positions."""
    made = call_in_short("top_k", operands("top_k", x), k=(Dim.of(k),), axis=axis)
    return tuple_get(made, 0), tuple_get(made, 1)


def dynamic_slice(x: Operand, starts: Sequence[Operand], sizes: Sequence[Size]) -> Expr:
    """A slice of `sizes` at computed `starts`, one for each axis; the slice is moved so that it lies inside `x`."""
    (value,) = operands("dynamic_slice", x)
    at = [e for s in starts for e in operands("dynamic_slice", s)]
    return call("dynamic_slice", (value, *at), {"sizes": as_dims(sizes)})


def dynamic_update_slice(x: Operand, update: Operand, starts: Sequence[Operand]) -> Expr:
    """`x` with `update` in place of a slice at computed `starts`; the slice is moved so that it lies inside `x`."""
    value, new = operands("dynamic_update_slice", x, update)
    at = [e for s in starts for e in operands("dynamic_update_slice", s)]
    return call("dynamic_update_slice", (value, new, *at))


def take_along_axis(x: Operand, indices: Expr, axis: int = -1, mode: str = "fill") -> Expr:
    """`x` at `indices` along `axis`; the other axes of both correspond. `mode` is that of `take`."""
    (value,) = operands("take_along_axis", x)
    along = normal_axis("take_along_axis", axis, value.ndim)
    if indices.ndim != value.ndim:
        raise OperatorError(f"take_along_axis: ranks {value.ndim} and {indices.ndim}; equal ones are needed")
    others = tuple(a for a in range(value.ndim) if a != along)
    attrs = {
        "slice_sizes": (1,) * value.ndim, "mode": mode, "collapsed_slice_dims": (along,), "start_index_map": (along,),
        "operand_batching_dims": others, "start_indices_batching_dims": others,
    }  # fmt: skip
    return call("gather", (value, call("expand_dims", (indices,), {"axes": (value.ndim,)})), attrs)


def scatter(x: Operand, indices: Operand, updates: Operand, kind: str = "add", mode: str = "fill") -> Expr:
    """`x` with `updates` (*k, ...) combined into the rows with numbers `indices` (*k).

    `kind`: "set", "add", "multiply", "min" or "max". Row numbers out of range are ignored with mode "fill" and clamped
    with mode "clip".
    """
    value, new = operands("scatter", x, updates)
    (rows,) = operands("scatter", indices)
    attrs = {
        "kind": kind, "mode": mode, "update_window_dims": tuple(range(rows.ndim, new.ndim)),
        "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
    }  # fmt: skip
    return call("scatter", (value, call("expand_dims", (rows,), {"axes": (rows.ndim,)}), new), attrs)


# --- linear algebra ---


def _parts(value: Expr, count: int) -> tuple[Expr, ...]:
    return tuple(tuple_get(value, i) for i in range(count))


def cholesky(a: Operand) -> Expr:
    """The lower triangle L with L @ L.H = a for a Hermitian, positive definite `a`, whose lower triangle is read."""
    return call("cholesky", operands("cholesky", a))


def triangular_solve(
    a: Operand,
    b: Operand,
    lower: bool = False,
    left_side: bool = True,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Expr:
    """x with a @ x = b, or x @ a = b unless `left_side`, for the upper or lower triangle of `a`."""
    attrs = {
        "left_side": left_side, "lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a,
        "unit_diagonal": unit_diagonal,
    }  # fmt: skip
    return call("triangular_solve", operands("triangular_solve", a, b), attrs)


def definite_solve(factor: Operand, b: Operand, a: Operand) -> Expr:
    """x with a @ x = b for a symmetric `a`, by its Cholesky `factor`, or by LU factors where that is NaN."""
    return call("definite_solve", operands("definite_solve", factor, b, a))


def lu(a: Operand) -> tuple[Expr, ...]:
    """Both triangular factors of `a` in one matrix, the row exchanges, and the resulting order of rows."""
    return _parts(call("lu", operands("lu", a)), 3)


def qr(a: Operand, full_matrices: bool = False) -> tuple[Expr, ...]:
    """An orthogonal and an upper triangular factor."""
    return _parts(call("qr", operands("qr", a), {"full_matrices": full_matrices}), 2)


def eigh(a: Operand, lower: bool = True) -> tuple[Expr, ...]:
    """Ascending eigenvalues and their eigenvectors, as numpy.linalg.eigh."""
    vectors, values = _parts(call("eigh", operands("eigh", a), {"lower": lower}), 2)
    return values, vectors


def svd(a: Operand, full_matrices: bool = True) -> tuple[Expr, ...]:
    """Left singular vectors, descending singular values, right singular vectors, as numpy.linalg.svd."""
    values, left, right = _parts(call("svd", operands("svd", a), {"full_matrices": full_matrices}), 3)
    return left, values, right


def fft(x: Operand, kind: str, lengths: Sequence[Size]) -> Expr:
    """The Fourier transform of the last axes; `kind`: "fft", "ifft", "rfft" or "irfft"."""
    return call("fft", operands("fft", x), {"kind": kind, "lengths": as_dims(lengths)})


# --- routines of other libraries ---


def library(name: str, *xs: Operand, **attrs: Any) -> Expr:
    """A call of the library routine registered as `name` (`RuleSet.library`), with its attributes."""
    return call_library(name, *operands(name, *xs), **attrs)


# --- results whose sizes depend on values: steps of their own, outside dataflow blocks ---


def unique(x: Operand, return_inverse: bool = False, return_counts: bool = False) -> Expr:
    """The distinct elements, ascending: a tensor of rank 1 whose size `match_cast` names. The result is a tuple where
    `return_inverse` adds the position of each element of `x` among them, or `return_counts` how often each occurs."""
    flags = {"return_inverse": return_inverse, "return_counts": return_counts}
    return call_routine("unique", tuple(operands("unique", x)), flags)


def nonzero(x: Operand, dtype: str = "int32") -> Expr:
    """The indices of the nonzero elements, in order, with a row for each axis, as in Relax."""
    return call_routine("nonzero", tuple(operands("nonzero", x)), {"dtype": dtype})


def argwhere(x: Operand, dtype: str = "int32") -> Expr:
    """The indices of the nonzero elements, in order, with a column for each axis."""
    return call_routine("argwhere", tuple(operands("argwhere", x)), {"dtype": dtype})


def flatnonzero(x: Operand, dtype: str = "int32") -> Expr:
    """The indices of the nonzero elements of the flattened operand."""
    return call_routine("flatnonzero", tuple(operands("flatnonzero", x)), {"dtype": dtype})


def masked_select(x: Operand, mask: Operand) -> Expr:
    """`x[mask]`: the elements along the mask's axes, in order, where the mask is true."""
    return call_routine("masked_select", (*operands("masked_select", x), *operands("masked_select", mask)), {})


def arange_of(n: Operand, dtype: str = "int32") -> Expr:
    """The numbers 0, 1, ... below `n`, a value: a tensor of rank 1 whose size `match_cast` names."""
    return call_routine("arange_of", tuple(operands("arange_of", n)), {"dtype": dtype})


def top_k_of(x: Operand, k: Operand) -> Expr:
    """The `k` largest elements along the last axis, `k` a value, and their places: a tuple of two tensors."""
    return call_routine("top_k_of", (*operands("top_k_of", x), *operands("top_k_of", k)), {})


def non_max_suppression(
    boxes: Operand,
    scores: Operand,
    iou_threshold: float = 0.5,
    score_threshold: float = float("-inf"),
    most: int | None = None,
) -> Expr:
    """The places, as int32, of the boxes (n, 4) that no box of a better score (n) overlaps, the best one first.

    - `iou_threshold`: the common area divided by that of both from which on two boxes overlap.
    - `score_threshold`: the score that a box has to exceed.
    - `most`: the largest number of boxes; None for all.
    """
    given = {"iou_threshold": iou_threshold, "score_threshold": score_threshold, "most": most}
    return call_routine("non_max_suppression", (*operands("boxes", boxes), *operands("scores", scores)), given)
