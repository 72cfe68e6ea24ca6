"""Operators over windows: convolution, and reductions of windows (pooling).

The sizes of a result are floor divisions; they are 0 where the window is larger than the padded axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax_eg.errors import RuleError
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ops.attribute_values import DILATIONS, STRIDES, window_strides
from relax_eg.ops.contraction import PRECISION_AND_DTYPE, accumulator, contracted, need_precision
from relax_eg.ops.lazy_jax import lax
from relax_eg.ops.partial_annotations import is_unknown
from relax_eg.ops.positions import read_padded
from relax_eg.ops.record import Attribute, Operator, Site, register
from relax_eg.ops.sizes import (
    ONE,
    ZERO,
    Dims,
    at_least_zero,
    dilated,
    need_at_most,
    need_equal,
    need_kind,
    need_length,
    need_same_dtype,
)
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Scalar,
    TensorProgram,
    cast,
    compute,
    const,
    loop,
    program,
    reduce,
    sum_,
)
from relax_eg.tir.expr import Axis, ReduceKind
from relax_eg.tir.functions import FUNCTIONS, REDUCTIONS
from relax_eg.tir.functions import identity as identity_of


def window_count(size: Dim, window: Dim, stride: int) -> Dim:
    """Returns the number of windows that fit into `size` elements."""
    return at_least_zero((size - window) // stride + 1)


class StepComparison(RuleError):
    """Raised where a rule's function asks whether an `AnyStep` equals `value`."""

    def __init__(self, step: AnyStep, value: int) -> None:
        super().__init__(f"{step} is compared with {value}")
        self.step = step
        self.value = value


class AnyStep:
    """A stride or dilation that stands for any integer >= 1 in proofs.

    It can be passed on and compared with an integer. It differs from the integers in `other_than`; comparing it with
    any other integer raises StepComparison.

    - `name`, `index`: the attribute, and the position in it, that it stands for.
    - `dim`: the size variable of the step.
    """

    def __init__(self, name: str, index: int, other_than: frozenset[int] = frozenset()) -> None:
        self.name = name
        self.index = index
        self.other_than = other_than
        self.dim = Dim.var(f"{_ANY}{name}__{index}")

    def differing_from(self, value: int) -> AnyStep:
        """Returns the same step, known to differ from `value`."""
        return AnyStep(self.name, self.index, self.other_than | {value})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            raise RuleError("two steps are compared")
        if other not in self.other_than:
            raise StepComparison(self, other)
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.dim} but {sorted(self.other_than)}>"


_ANY = "any__"


def is_any_step(value: object) -> bool:
    return isinstance(value, Dim) and not value.is_const and all(v.startswith(_ANY) for v in value.variables)


def _need_steps(site: Site, name: str, length: int, of: str) -> tuple[int, ...]:
    """Returns attribute `name`, which must hold an integer >= 1 for each axis."""
    for value in need_length(site, name, length, of):
        if not is_any_step(value) and (not isinstance(value, int) or value < 1):
            raise site.error(f"{name} has {value}; integers >= 1 are accepted")
    return site[name]


def _met(
    site: Site, x: Buffer, at: Sequence[Dim], window: Sequence[Dim], otherwise: Scalar, ahead: tuple[Dim, ...] = ()
) -> Scalar:
    """Returns the element of `x` that place `window` of the window at `at` meets; `otherwise` in the padding. `ahead`:
    the indices of the axes of `x` before those of space."""
    steps = zip(at, site["strides"], window, site["dilation"], strict=True)
    places = (*ahead, *(i * s + k * d for i, s, k, d in steps))
    none, between = (ZERO,) * len(ahead), [d - 1 for d in site["input_dilation"]]
    low, high = ((*none, *site[name]) for name in ("low", "high"))
    return read_padded(x, places, low, high, [0] * len(ahead) + between, otherwise)


# --- convolution ---


def _conv_shape(site: Site) -> Dims:
    x, w = site.shape(0), site.shape(1)
    if len(x) != len(w) or len(x) < 2:
        raise site.error(f"ranks {len(x)} and {len(w)}; both are (batch or out, channels, *spatial)")
    rank = len(x) - 2
    strides = _need_steps(site, "strides", rank, "space")
    around, between = (_need_steps(site, name, rank, "space") for name in ("dilation", "input_dilation"))
    low, high = (need_length(site, name, rank, "space") for name in ("low", "high"))
    groups = site["groups"]
    if not isinstance(groups, int) or groups < 1:
        raise site.error(f"groups is {groups}; an integer >= 1 is needed")
    need_equal(site, x[1], w[1] * groups, "channels, and channels of the kernel times groups")
    if (rest := w[0] % groups) is not ZERO and not is_unknown(rest):
        raise site.error(f"{w[0]} output channels in {groups} groups leave {rest}")
    space: list[Dim] = []
    for axis in range(rank):
        size = low[axis] + dilated(x[2 + axis], between[axis] - 1) + high[axis]
        need_at_most(site, ZERO, size, f"the padded size of axis {2 + axis}")
        space.append(window_count(size, dilated(w[2 + axis], around[axis] - 1), strides[axis]))
    return (x[0], w[0], *space)


def _conv(site: Site) -> Annotation:
    dtype = need_same_dtype(site, (0, 1))
    need_kind(site, "iufcn")
    need_precision(site)
    return Tensor(_conv_shape(site), accumulator(site, dtype))


def _conv_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    x, w = buffers
    shape = _conv_shape(site)
    groups, out = site["groups"], site["out_dtype"] or x.dtype
    c = loop("c")
    window = [loop(f"k{a}") if size is not ONE else ZERO for a, size in enumerate(w.shape[2:])]
    over: list[Axis] = [(c, w.shape[1])]
    over += [(k, size) for k, size in zip(window, w.shape[2:], strict=True) if k is not ZERO]

    def element(*i: Dim) -> Scalar:
        channel = c if groups == 1 or shape[1] is ZERO else i[1] // (shape[1] // groups) * w.shape[1] + c
        read = _met(site, x, i[2:], window, const(0, x.dtype), (i[0], channel))
        return sum_(cast(read, out) * cast(w[(i[1], c, *window)], out), over)

    return program("conv", buffers, compute("out", shape, element))


def jax_conv(
    x: Any, w: Any, order: Any = None, *, strides: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...],
    dilation: tuple[int, ...], input_dilation: tuple[int, ...], groups: int, precision: Any, out_dtype: str | None,
) -> Any:  # fmt: skip
    """Returns a `conv`. `order`: JAX's order of the axes of operands and result; None for the operator's own."""

    def contract(x: Any, w: Any, out: str | None) -> Any:
        return lax.conv_general_dilated(
            x, w, strides, tuple(zip(low, high, strict=True)), lhs_dilation=input_dilation, rhs_dilation=dilation,
            dimension_numbers=order, feature_group_count=groups, precision=precision, preferred_element_type=out,
        )  # fmt: skip

    return contracted(contract, x, w, out_dtype)


# --- reductions of windows ---

# Reductions of a window: accepted kinds of dtype, and the reduction in the equations.
_KINDS: dict[str, tuple[str, ReduceKind]] = {
    "sum": ("iufc", "sum"), "prod": ("iufc", "prod"), "max": ("biuf", "max"), "min": ("biuf", "min"),
    "or": ("iu", "any"), "and": ("iu", "all"), "xor": ("biu", "xor"),
}  # fmt: skip


def window_shape(site: Site, i: int = 0) -> Dims:
    """Returns the number of windows along each axis of operand `i`."""
    shape = site.shape(i)
    window, low, high = (need_length(site, name, len(shape), "the operand") for name in ("window", "low", "high"))
    strides, around, between = (
        _need_steps(site, name, len(shape), "the operand") for name in ("strides", "dilation", "input_dilation")
    )
    sizes: list[Dim] = []
    for axis, size in enumerate(shape):
        padded = low[axis] + dilated(size, between[axis] - 1) + high[axis]
        need_at_most(site, ZERO, padded, f"the padded size of axis {axis}")
        need_at_most(site, ONE, window[axis], f"the window on axis {axis}")
        sizes.append(window_count(padded, dilated(window[axis], around[axis] - 1), strides[axis]))
    return tuple(sizes)


def _reduce_window(site: Site) -> Annotation:
    if site["kind"] not in _KINDS:
        raise site.error(f"kind {site['kind']!r}; accepted: {', '.join(_KINDS)}")
    dtype = need_kind(site, _KINDS[site["kind"]][0])
    return Tensor(window_shape(site), dtype)


def identity(kind: str, dtype: str) -> Any:
    """Returns the value of a reduction over no elements."""
    return identity_of(_KINDS[kind][1], dtype)


def _window_equations(site: Site, buffers: tuple[Buffer, ...]) -> TensorProgram:
    (x,) = buffers
    loops = [loop(f"k{a}") if size is not ONE else ZERO for a, size in enumerate(site["window"])]
    over = [(k, size) for k, size in zip(loops, site["window"], strict=True) if k is not ZERO]

    def element(*i: Dim) -> Scalar:
        read = _met(site, x, i, loops, const(identity(site["kind"], x.dtype), x.dtype))
        return reduce(_KINDS[site["kind"]][1], read, over)

    return program("reduce_window", buffers, compute("out", window_shape(site), element))


def _jax_reduce_window(
    x: Any, *, kind: str, window: tuple[int, ...], strides: tuple[int, ...], low: tuple[int, ...],
    high: tuple[int, ...], dilation: tuple[int, ...], input_dilation: tuple[int, ...],
) -> Any:  # fmt: skip
    combine = getattr(lax, FUNCTIONS[REDUCTIONS[_KINDS[kind][1]].function].primitive)
    start = np.asarray(identity(kind, x.dtype.name)).astype(x.dtype)
    return lax.reduce_window(
        x, start, combine, window, strides, tuple(zip(low, high, strict=True)), input_dilation, dilation
    )


# Attributes of a window without dilation.
WINDOW = (
    Attribute("kind"), Attribute("window", "dims"), Attribute("strides", values=window_strides),
    Attribute("low", "dims"), Attribute("high", "dims"),
)  # fmt: skip
_DILATIONS = (Attribute("dilation", values=DILATIONS), Attribute("input_dilation"))

for _operator in (
    Operator("conv", ("x", "weight"), _conv, jax_conv, _conv_equations,
             (Attribute("strides", values=STRIDES), Attribute("low", "dims"), Attribute("high", "dims"), *_DILATIONS,
              Attribute("groups", default=1), *PRECISION_AND_DTYPE),
             kernel="conv", capacity="conv",
             doc="convolution of (batch, channels, *space) with a kernel (out, channels / groups, *window)"),
    Operator("reduce_window", ("x",), _reduce_window, _jax_reduce_window, _window_equations, (*WINDOW, *_DILATIONS),
             capacity="reduce_window",
             doc="the sum, product, extreme or bits of every window; what is padded counts nothing"),
):  # fmt: skip
    register(_operator)
