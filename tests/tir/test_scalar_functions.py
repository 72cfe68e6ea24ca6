"""The table of scalar functions: dtypes, corner cases, and agreement with what they are lowered to."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from compiling import CLAMPING, QUICKLY
from jax import lax

from relax_eg.backend.lowering.scalar_functions import apply_function
from relax_eg.errors import ShapeError
from relax_eg.tir import FUNCTIONS

APART = {
    "floor_divide", "floor_mod", "trunc", "round", "round_away", "integer_pow", "complex", "reduce_precision",
    "less_total", "less_equal_total", "equal_total", *(name for name in FUNCTIONS if name.startswith("bits_as_")),
}  # fmt: skip
DTYPES = {
    "b": ["bool"],
    "i": ["int8", "int16", "int32"],
    "u": ["uint8", "uint16", "uint32"],
    "f": ["float16", "bfloat16", "float32"],
    "c": ["complex64"],
}
VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 1e-3, 100.0, np.inf, -np.inf, np.nan]
INTEGERS = [0, 1, 2, 7, 8, 31, 32, 100, 127, 40_000, 2**31 - 1, -1, -7, -127, -128, -(2**31)]
PAIRS = [(name, dtype) for name, f in FUNCTIONS.items() if name not in APART for k in f.accepts for dtype in DTYPES[k]]


SERIES = {
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a"), lambda a, x: np.isfinite(a)),
    "betainc": lambda a, b, x: x < 1,
    "zeta": lambda x, q: x > 1,
    "polygamma": lambda n, x: n == np.round(n),
}


def samples(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([False, True])
    if "int" in dtype:
        return np.array(INTEGERS, np.int64).astype(dtype)
    values = [v for v in VALUES if np.isfinite(v)] if dtype == "complex64" else VALUES
    return (np.array(values) + (0.5j if dtype == "complex64" else 0)).astype(np.dtype(dtype))


def arguments(name: str, dtype: str) -> list[np.ndarray]:
    one = samples(dtype)
    args = [array.reshape(-1) for array in np.meshgrid(*[one] * FUNCTIONS[name].arity, indexing="ij")]
    if name == "clamp":  # elsewhere it depends on the order of min and max
        return [array[args[0].astype(float) <= args[2].astype(float)] for array in args]
    return args


@lru_cache(20)
def by_xla(dtype: str) -> dict[str, np.ndarray]:
    """What each function gives for its arguments of this dtype; all functions are one XLA program."""
    args = {name: arguments(name, dtype) for name, d in PAIRS if d == dtype}
    together = jax.jit(
        lambda given: {name: apply_function(name, given[name], ()) for name in given},
        compiler_options=CLAMPING if dtype == "bool" else QUICKLY,
    )
    return {name: np.asarray(found) for name, found in together(args).items()}


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_agrees_with_xla(name: str, dtype: str) -> None:
    function = FUNCTIONS[name]
    args = arguments(name, dtype)
    result = function(args, function.dtype([dtype] * function.arity))
    expected = by_xla(dtype)[name]
    assert result.dtype == expected.dtype
    if result.dtype.kind in "biu":
        np.testing.assert_array_equal(result, expected)
        return
    tolerance = 1e-4 if name in ("digamma", "lgamma", "tan") else 2e-5
    if dtype in ("bfloat16", "float16"):
        tolerance = 1 if name == "exp2" else 2e-2  # XLA's own exp2(100) is a power of e, rounded to bfloat16
    wide = np.complex128 if result.dtype.kind == "c" else np.float64
    if name in ("lgamma", "digamma"):  # at poles and beyond XLA's own answers vary
        keep = args[0].astype(np.float64) > 0
        result, expected = result[keep], expected[keep]
    if name in SERIES:  # and where a series has not converged, or there is nothing to sum
        wide_args = [array.astype(np.float64) for array in args]
        keep = np.logical_and.reduce([(a > 0) & (a < 50) for a in wide_args]) & SERIES[name](*wide_args)
        assert keep.any()
        result, expected, tolerance = result[keep], expected[keep], max(tolerance, 1e-4)
    np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=tolerance, atol=1e-6)


def test_the_rest_of_the_table() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.7], np.float32)
    y = np.full_like(x, 2)
    for name, expected in {
        "round": jnp.round(x), "round_away": lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), "trunc": jnp.trunc(x),
    }.items():  # fmt: skip
        np.testing.assert_array_equal(FUNCTIONS[name]([x], "float32"), expected)
    np.testing.assert_array_equal(FUNCTIONS["floor_divide"]([x, y], "float32"), jnp.floor_divide(x, y))
    np.testing.assert_array_equal(FUNCTIONS["floor_mod"]([x, y], "float32"), jnp.mod(x, y))
    for exponent in (-3, -1, 0, 1, 5, 12):
        power = FUNCTIONS["integer_pow"]([x, np.array([exponent], np.int32)], "float32")
        np.testing.assert_allclose(power, lax.integer_pow(x, exponent), rtol=1e-6)
    assert FUNCTIONS["is_nan"]([np.array([np.nan, 1, np.inf], np.float32)], "bool").tolist() == [True, False, False]
    made = FUNCTIONS["complex"]([np.array([1, np.inf], np.float32), np.array([np.inf, 2], np.float32)], "complex64")
    np.testing.assert_array_equal(made.real, [1, np.inf])
    np.testing.assert_array_equal(made.imag, [np.inf, 2])


def test_every_function_is_reached_by_a_test() -> None:
    assert {name for name, _ in PAIRS} | APART == set(FUNCTIONS)


def test_low_precision_rounds_each_operation() -> None:
    x = np.array([1, 256], ml_dtypes.bfloat16)
    assert FUNCTIONS["add"]([x, np.array([1, 1], ml_dtypes.bfloat16)], "bfloat16").astype(float).tolist() == [2, 256]


def test_dtypes() -> None:
    assert FUNCTIONS["less"].dtype(["float32", "float32"]) == "bool"
    assert FUNCTIONS["abs"].dtype(["complex64"]) == "float32"
    assert FUNCTIONS["complex"].dtype(["float64", "float64"]) == "complex128"
    assert FUNCTIONS["integer_pow"].dtype(["bfloat16", "int32"]) == "bfloat16"
    for name, *args in [
        ("exp", "int32"),
        ("add", "float32", "float64"),
        ("add", "bool", "bool"),
        ("sin",),
        ("exp", "key<fry>"),
        ("complex", "float16", "float16"),
        ("complex", "bfloat16", "bfloat16"),
        ("integer_pow", "float32", "float32"),
        ("reduce_precision", "int32", "int32", "int32"),
    ]:
        with pytest.raises(ShapeError):
            FUNCTIONS[name].dtype(args)


def test_jax_computes_in_32_bits_here() -> None:
    assert not jax.config.jax_enable_x64  # test_agrees_with_xla has no 64-bit dtypes
