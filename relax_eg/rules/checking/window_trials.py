"""The convolutions and poolings on which schemas about windows are tested, beside those of `schema_trials`."""

from __future__ import annotations

from typing import Any

import numpy as np

from relax_eg.dtypes import names_where
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, const, var
from relax_eg.ops import api as op
from relax_eg.ops.codes import saturated
from relax_eg.ops.record import call
from relax_eg.rules.checking.drawing import Drawn, floats_for, one_of
from relax_eg.rules.schemas import Trial, trial_of

_ROUNDED = 1e-4  # chosen: error, as a share of the largest element, of rules that are not as accurate as a sum
_SMALL = 1e-5  # chosen: the same of rules that add in another order
_BYTES = sorted(names_where(lambda d: d.is_integer and d.bits == 8))  # dtypes of codes


def _trial(node: Expr, params: tuple[Expr, ...], args: tuple[Any, ...], tolerance: float = 0.0) -> Trial:
    return trial_of(params, node, args, "numpy", tolerance)


def _pads(rng: np.random.Generator, rank: int) -> list[tuple[int, int]]:
    return [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(rank)]


def _variables(images: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Expr, Expr]:
    return var("x", Tensor(images, "float32")), var("w", Tensor(kernel, "float32"))


def convolutions_by_threes(rng: np.random.Generator) -> Trial:
    """A padded convolution over one to three axes by windows of three."""
    rank = int(rng.integers(1, 4))
    pads = _pads(rng, rank)
    n, channels, out = (int(rng.integers(low, 4)) for low in (0, 1, 1))
    images = (n, channels, *(int(s) for s in rng.integers(3, 9, rank)))
    kernel = (out, channels, *[3] * rank)
    params = _variables(images, kernel)
    args = tuple(rng.standard_normal(shape).astype(np.float32) for shape in (images, kernel))
    return _trial(op.conv(*params, padding=pads), params, args, _ROUNDED)


def convolutions_of_blocks(rng: np.random.Generator) -> Trial:
    """A convolution over one or two axes whose windows are one or two strides long, or a bit less."""
    rank = int(rng.integers(1, 3))
    steps = [2, *(int(n) for n in rng.integers(1, 4, rank - 1))]
    window = [s * int(n) for s, n in zip(steps, rng.integers(1, 3, rank), strict=True)]
    if rng.integers(2):
        window = [max(1, k - int(rng.integers(0, 2))) for k in window]
    pads = _pads(rng, rank)
    n, channels, out = (int(rng.integers(low, 4)) for low in (0, 1, 1))
    sizes = [k + int(rng.integers(0, 6)) for k in window]
    images, kernel = (n, channels, *sizes), (out, channels, *window)
    params = _variables(images, kernel)
    return _trial(op.conv(*params, steps, pads), params, floats_for(rng, params))


def transposed_convolutions(rng: np.random.Generator) -> Trial:
    """A transposed convolution over one or two axes, padded in any way."""
    rank = int(rng.integers(1, 3))
    between = [int(n) for n in rng.integers(1, 4, rank)]
    window = [int(n) for n in rng.integers(1, 6, rank)]
    pads = [(int(rng.integers(0, k + 1)), int(rng.integers(0, k + 2))) for k in window]
    n, channels, out = (int(rng.integers(low, 4)) for low in (0, 1, 1))
    sizes = [max(1, -(-k // s)) + int(rng.integers(0, 4)) for k, s in zip(window, between, strict=True)]
    images, kernel = (n, channels, *sizes), (out, channels, *window)
    params = _variables(images, kernel)
    return _trial(op.conv(*params, 1, pads, input_dilation=between), params, floats_for(rng, params))


def separable_convolutions(rng: np.random.Generator) -> Trial:
    """A convolution over two axes, dense or depthwise, by a product of two kernels or a constant one of low rank."""
    pads, channels, steps = _pads(rng, 2), int(rng.integers(1, 4)), [int(n) for n in rng.integers(1, 3, 2)]
    window, is_depthwise = [int(n) for n in rng.integers(2, 6, 2)], bool(rng.integers(2))
    out = channels if is_depthwise else int(rng.integers(1, 4))
    depth, groups = (1, channels) if is_depthwise else (channels, 1)
    images = (int(rng.integers(0, 3)), channels, *(k + int(rng.integers(0, 4)) for k in window))
    x = var("x", Tensor(images, "float32"))
    column, row = (out, 1, window[0], 1), (out, depth, 1, window[1])
    if rng.integers(2):
        params = x, var("u", Tensor(column, "float32")), var("v", Tensor(row, "float32"))
        node = op.conv(x, op.multiply(*params[1:]), steps, pads, groups=groups)
        return _trial(node, params, floats_for(rng, params), _SMALL)
    u, v = floats_for(rng, _variables(column, row))
    node = op.conv(x, const(u * v), steps, pads, groups=groups)
    return _trial(node, (x,), floats_for(rng, (x,)), _ROUNDED)


def windows_over_axes(rng: np.random.Generator) -> Trial:
    """A reduction of padded windows over two to four axes, with any strides, apart or not, of floats or integers."""
    rank, dtype = int(rng.integers(2, 5)), ("float32", *_BYTES)[int(rng.integers(1 + len(_BYTES)))]
    kinds = ["sum", "prod", "max", "min", *(["or", "and", "xor"] if dtype in _BYTES else [])]
    window, steps, apart, between = ([int(n) for n in rng.integers(1, most, rank)] for most in (4, 3, 3, 3))
    sizes = tuple(a * (k - 1) + 1 + int(rng.integers(0, 3)) for k, a in zip(window, apart, strict=True))
    x = var("x", Tensor(sizes, dtype))
    e = op.reduce_window(x, kinds[int(rng.integers(len(kinds)))], window, steps, _pads(rng, rank), apart)
    e = call(e.op, e.args, {**dict(e.attrs), "input_dilation": tuple(between)})
    return _trial(e, (x,), tuple(a.astype(dtype) for a in floats_for(rng, (x,))), _SMALL)


def large_convolutions(rng: np.random.Generator) -> Trial:
    """A convolution by a large window over one to three axes, dense or depthwise."""
    rank, channels, is_depthwise = int(rng.integers(1, 4)), int(rng.integers(1, 4)), bool(rng.integers(2))
    window = [int(n) for n in rng.integers(*((25, 33), (5, 9), (3, 5))[rank - 1], rank)]
    pads, steps, apart = _pads(rng, rank), [int(n) for n in rng.integers(1, 3, rank)], int(rng.integers(1, 3))
    images = (int(rng.integers(1, 3)), channels, *(apart * k + int(rng.integers(0, 5)) for k in window))
    kernel = (channels, 1, *window) if is_depthwise else (int(rng.integers(1, 4)), channels, *window)
    params = _variables(images, kernel)
    node = op.conv(*params, steps, pads, apart, channels if is_depthwise else 1)
    return _trial(node, params, tuple(rng.standard_normal(s).astype(np.float32) for s in (images, kernel)), _ROUNDED)


def coded_convolutions(rng: np.random.Generator) -> Trial:
    """A convolution of an image and a kernel that stand for bytes, with or without zeros, scaled or not; dense,
    depthwise or in groups."""
    rank, depth, out = int(rng.integers(1, 3)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    groups = (1, 1, 1, depth, 2, 3)[int(rng.integers(6))]
    depth, out = (1, groups) if groups == depth > 1 else (depth, groups * out)
    channels = groups * depth
    window = [int(n) for n in rng.integers(1, 4, rank)]
    images = (int(rng.integers(1, 3)), channels, *(k + int(rng.integers(2, 5)) for k in window))
    drawn = Drawn(rng)

    def operand(name: str, shape: tuple[int, ...], zero: tuple[int, ...], scale: tuple[int, ...]) -> Expr:
        dtype = one_of(rng, _BYTES)
        made = op.astype(drawn.any_of(name, shape, dtype), "float32")
        if rng.integers(2):
            made = op.subtract(made, op.astype(drawn.any_of(f"{name}_zero", zero, dtype), "float32"))
        return op.multiply(made, drawn.between(f"{name}_scale", scale, "float32", 1, 3)) if rng.integers(2) else made

    of_images, of_kernels = (images[0], *[1] * (rank + 1)), (out, *[1] * (rank + 1))
    x = operand("x", images, (), of_images if rng.integers(2) else ())
    w = operand("w", (out, depth, *window), *[of_kernels if rng.integers(2) else ()] * 2)
    steps, apart = ([int(n) for n in rng.integers(1, 3, rank)] for _ in range(2))
    around = [(p[0] + (k - 1) * (a - 1), p[1]) for p, k, a in zip(_pads(rng, rank), window, apart, strict=True)]
    return _trial(op.conv(x, w, steps, around, apart, groups), tuple(drawn.params), tuple(drawn.args), _SMALL)


def codes_again(rng: np.random.Generator) -> Trial:
    """Bytes that are decoded, moved, joined and encoded again, mostly with the same scale and zero, or one for each
    channel."""
    if rng.integers(3) == 0:
        return _codes_of_channels(rng)
    dtype, drawn = one_of(rng, _BYTES), Drawn(rng)
    rows, columns = (int(rng.integers(1, 4)) for _ in range(2))
    x = drawn.any_of("x", (rows, 2 * columns), dtype)
    scale, zero = float(rng.uniform(1e-3, 10)), int(rng.integers(0, 100))
    wide = op.astype(x, "float32")
    value = op.multiply(op.subtract(wide, const(zero, "float32")) if zero % 2 else wide, const(scale, "float32"))
    moves = (
        lambda v: op.permute_dims(v, (1, 0)), lambda v: op.reshape(v, (columns, 2 * rows)), lambda v: op.flip(v, 0),
        lambda v: op.concat([v, value], 0) if v.shape[1:] == value.shape[1:] else v,
        lambda v: op.strided_slice(v, (0, 1), v.shape),
    )  # fmt: skip
    y = value
    for _ in range(int(rng.integers(0, 3))):
        y = moves[int(rng.integers(len(moves)))](y) if y.shape == value.shape else y
    again = op.round(op.divide(y, const(scale, "float32")))
    node = saturated(op.add(again, const(float(zero), "float32")) if zero % 2 else again, dtype)
    return _trial(node, (x,), tuple(drawn.args))


def _codes_of_channels(rng: np.random.Generator) -> Trial:
    """Bytes with a scale and a zero for each channel, transposed, joined and mostly encoded again with the same."""
    dtype, sizes, drawn = one_of(rng, _BYTES), tuple(int(n) for n in rng.integers(2, 4, 3)), Drawn(rng)
    x, axis = drawn.any_of("x", sizes, dtype), int(rng.integers(3))
    shape = [sizes[axis] if a == axis else 1 for a in range(3)]
    scale = rng.uniform(1e-3, 10, shape).astype(np.float32)
    zero = rng.integers(-3, 4, shape).astype(np.float32)
    wide = op.subtract(op.astype(x, "float32"), const(zero))
    y, axes = op.multiply(wide, const(scale)), tuple(int(a) for a in rng.permutation(3))
    other = int(rng.integers(3))
    if other != axis:
        y = op.concat([y, y], other)
    y = op.permute_dims(y, axes)
    turned = int(rng.integers(4) == 0)
    own_scale, own_zero = (np.roll(v, turned, axis).transpose(axes) for v in (scale, zero))
    node = saturated(op.add(op.round(op.divide(y, const(own_scale))), const(own_zero)), dtype)
    return _trial(node, (x,), tuple(drawn.args))
