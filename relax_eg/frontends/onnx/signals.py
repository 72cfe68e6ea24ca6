"""ONNX nodes of signal processing. A complex number is a last axis of two: its real and its imaginary part."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.traced import traced_one
from relax_eg.frontends.onnx.values import KnownArray
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim


def _complex(x: Any) -> Any:
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(x: Any, dtype: Any) -> Any:
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1).astype(dtype)


def _scalar(n: OnnxNode, i: int, what: str) -> int | None:
    found = n.known_array(i, what)
    if found is None:
        return None
    value = found.reshape(()).item()
    if isinstance(value, Dim):
        raise n.error(f"{what} of {value}", "a fixed number")
    return int(value)


def _dft(n: OnnxNode) -> Expr:
    x = n[0]
    length = _scalar(n, 1, "the length")
    axis = n.at("axis", 1) if n.opset < 20 else _scalar(n, 2, "the axis")
    axis = n.normal_axis(-2 if axis is None else axis, x.ndim)
    inverse, onesided = n.flag("inverse"), n.flag("onesided")

    def transformed(x: Any) -> Any:
        signal = _complex(x)
        if inverse and onesided:
            return jnp.fft.irfft(signal, length, axis)[..., None].astype(x.dtype)
        if inverse:
            return _parts(jnp.fft.ifft(signal, length, axis), x.dtype)
        if onesided and not jnp.iscomplexobj(signal):
            return _parts(jnp.fft.rfft(signal, length, axis), x.dtype)
        found = jnp.fft.fft(signal, length, axis)
        if onesided:
            found = jnp.take(found, jnp.arange(found.shape[axis] // 2 + 1), axis)
        return _parts(found, x.dtype)

    return traced_one(n, transformed, x)


def _stft(n: OnnxNode) -> Expr:
    x, window = n[0], n.optional_input(2)
    step, length = _scalar(n, 1, "the step"), _scalar(n, 3, "the length of a frame")
    onesided = n.flag("onesided", 1)
    if length is None and window is not None and window.shape[0].is_const:
        length = window.shape[0].value
    if step is None or length is None or not x.shape[1].is_const:
        raise n.error("frames of unknown length or number", "a known signal length, frame_step and frame_length")
    count = (x.shape[1].value - length) // step + 1
    at = np.arange(count)[:, None] * step + np.arange(length)

    def transformed(x: Any, window: Any) -> Any:
        frames = _complex(x)[:, at.astype(np.int32)]
        frames = frames if window is None else frames * window
        if onesided and not jnp.iscomplexobj(frames):
            return _parts(jnp.fft.rfft(frames), x.dtype)
        found = jnp.fft.fft(frames)
        return _parts(found[..., : length // 2 + 1] if onesided else found, x.dtype)

    return traced_one(n, transformed, x, window)


_MEL_SLOPE, _MEL_START = 2595.0, 700.0  # given: ONNX's formula of the mel scale


def _mel_weights(n: OnnxNode) -> KnownArray:
    bands, length, rate = (_scalar(n, i, "a size") for i in range(3))
    limits = [n.known_array(i, "a frequency") for i in (3, 4)]
    dtype = n.at("output_datatype", 1)
    if dtype != 1:
        raise n.error(f"output_datatype={dtype}", "float32")
    assert bands is not None and length is not None and rate is not None
    low, high = (_MEL_SLOPE * math.log10(1 + float(v.reshape(())) / _MEL_START) for v in limits if v is not None)
    spectrum = length // 2 + 1
    mels = low + np.arange(bands + 2) * ((high - low) / (bands + 2))
    frequencies = _MEL_START * (10 ** (mels / _MEL_SLOPE) - 1)
    bins = ((length + 1) * frequencies // rate).astype(np.int64)
    weights = np.zeros((spectrum, bands), np.float32)
    for i in range(bands):
        first, middle, last = bins[i : i + 3]
        if middle == first:
            weights[middle, i] = 1
        else:
            for j in range(first, middle + 1):
                weights[j, i] = (j - first) / (middle - first)
        if last > middle:
            for j in range(middle, last):
                weights[j, i] = (last - j) / (last - middle)
    return KnownArray(weights, "float32")


HANDLERS: dict[str, Handler] = {"DFT": _dft, "MelWeightMatrix": _mel_weights, "STFT": _stft}
