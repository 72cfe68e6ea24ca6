"""Reductions of bits, functions that look at bits, and PRNG keys, which equations move and nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relax_eg.dtypes import numpy_dtype
from relax_eg.errors import ShapeError
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, PatternKind, apply, classify, compute, const, evaluate, loop, program, select
from relax_eg.tir import count as counts
from relax_eg.tir import reduce as reduction

N, M = Dim.of("n"), Dim.of("m")


@pytest.mark.parametrize(("kind", "ufunc"), [("any", np.bitwise_or), ("all", np.bitwise_and), ("xor", np.bitwise_xor)])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool"])
def test_reductions_of_bits(kind: str, ufunc: np.ufunc, dtype: str) -> None:
    x, k = Buffer("x", (N, M), dtype), loop("k")
    made = program("bits", (x,), compute("out", (N,), lambda i: reduction(kind, x[i, k], (k, M))))
    rng = np.random.default_rng(3)
    array = rng.integers(0, 2, (5, 4)).astype(bool) if dtype == "bool" else rng.integers(-99, 99, (5, 4)).astype(dtype)
    for domain in ("numpy", "exact"):
        (got,) = evaluate(made, [array], {"n": 5, "m": 4}, arithmetic=domain)  # type: ignore[arg-type]
        assert got.tolist() == ufunc.reduce(array, axis=1).tolist()
    (nothing,) = evaluate(made, [array[:, :0]], {"n": 5, "m": 0})
    assert nothing.dtype == dtype and nothing.tolist() == [ufunc.reduce(np.zeros(0, dtype))] * 5
    assert classify(made) is PatternKind.REDUCTION


def test_reductions_of_bits_are_not_for_floats() -> None:
    x, k = Buffer("x", (N,), "float32"), loop("k")
    with pytest.raises(ShapeError, match=r"xor of .*: dtype float32 is not accepted"):
        reduction("xor", x[k], (k, N))


def test_precision_is_reduced_to_the_nearest_even() -> None:
    x = Buffer("x", (N,), "float32")
    bits = const(4, "int32"), const(3, "int32")
    made = program("e4m3", (x,), compute("out", (N,), lambda i: apply("reduce_precision", x[i], *bits)))
    values = np.array([1.0625, 1.1875, 300.0, 1e-3, -500.0, np.nan, np.inf, -0.0, 239.9], np.float32)
    (got,) = evaluate(made, [values], {"n": 9})
    np.testing.assert_array_equal(got, np.array([1, 1.25, np.inf, 0, -np.inf, np.nan, np.inf, -0.0, 240], np.float32))
    assert np.signbit(got[7])
    with pytest.raises(ShapeError, match="the numbers of bits must be constants"):
        apply("reduce_precision", x[loop("i")], apply("negative", bits[0]), bits[1])


def test_functions_of_bits_are_not_widened() -> None:
    half = np.array([1, -1, 0], ml_dtypes.bfloat16)
    x = Buffer("x", (N,), "bfloat16")
    made = program("next", (x,), compute("out", (N,), lambda i: apply("nextafter", x[i], const(2, "bfloat16"))))
    assert evaluate(made, [half], {"n": 3})[0].astype(float).tolist() == [1.0078125, -0.99609375, 2.0**-133]
    made = program("bits", (x,), compute("out", (N,), lambda i: apply("bits_as_int16", x[i])))
    assert evaluate(made, [half], {"n": 3})[0].tolist() == half.view(np.int16).tolist()
    assert classify(made) is PatternKind.ELEMENT_WISE


def test_total_order() -> None:
    values = [-np.nan, -np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan]
    array = np.array(values, np.float32)
    array[0] = -np.float32(np.nan) if np.signbit(np.float32(-np.nan)) else np.copysign(np.float32(np.nan), -1)
    x = Buffer("x", (N,), "float32")
    made = program("order", (x,), compute("out", (N, N), lambda i, j: apply("less_total", x[i], x[j])))
    (got,) = evaluate(made, [array], {"n": 8})
    np.testing.assert_array_equal(got, np.arange(8)[:, None] < np.arange(8))


def test_keys_are_moved_only() -> None:
    dtype = numpy_dtype("key<fry>")
    keys = np.zeros((3, 2), dtype)
    keys["fry"] = np.arange(12).reshape(3, 2, 2)
    x = Buffer("x", (N, M), "key<fry>")
    turned = program("turned", (x,), compute("out", (M, N), lambda j, i: select(apply("less", j, i), x[i, j], x[0, 0])))
    (got,) = evaluate(turned, [keys], {"n": 3, "m": 2})
    assert got.dtype == dtype and got["fry"][0, 2].tolist() == keys["fry"][2, 0].tolist()
    assert got["fry"][1, 1].tolist() == [0, 1]
    assert classify(program("t", (x,), compute("out", (M, N), lambda j, i: x[i, j]))) is PatternKind.INJECTIVE
    assert counts(turned).bytes_written.evaluate({"n": 3, "m": 2}) == 6 * 8
    with pytest.raises(ShapeError, match="key<fry> is not accepted"):
        apply("add", x[0, 0], x[0, 0])
    with pytest.raises(ShapeError, match="unknown dtype 'key<mine>'"):
        program("mine", (Buffer("x", (N,), "key<mine>"),), compute("out", (N,), lambda i: const(0, "int32")))
