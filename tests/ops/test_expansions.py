"""Scalar functions by arithmetic give what numpy gives in float64, or XLA of integers, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg.backend.lowering.scalar_functions import apply_function
from relax_eg.ops import get, integers
from relax_eg.ops.expansions import EXPANSIONS, expansion_of

NUMPY = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "cbrt": np.cbrt, "remainder": np.fmod,
}  # fmt: skip
QUOTIENTS = {"divide": integers.quotient, "remainder": integers.remainder}
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
# given: what a sine in float64 and one rounding leave, in units in the last place; XLA's own: 0.56
CLOSE = 0.51


def ours(name: str) -> Callable[..., Any]:
    return jax.jit(get(name).jax_function())


def floats(seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal float32 numbers of all exponents, and what lies next to multiples of π/2, with both signs."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0x00800000, 0x7F800000, 1 << 16).astype(np.uint32).view(np.float32)
    turns = np.float32(np.pi / 2) * np.arange(1, 1 << 14).astype(np.float32)
    # 16367173 * 2**72 is the float32 next to a multiple of π/2
    x = np.concatenate([bits, turns, rng.normal(size=1 << 14).astype(np.float32), np.float32([16367173 * 2.0**72])])
    return np.concatenate([x, -x])


def units(found: Any, wanted: np.ndarray[Any, Any]) -> float:
    """The greatest error in units in the last place of float32."""
    last = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(np.asarray(found, np.float64) - wanted) / last))


def arguments(name: str) -> list[np.ndarray[Any, Any]]:
    """Arguments of all sizes; what `atan2` and `remainder` take second is in another order."""
    x = floats()
    x = x / np.max(np.abs(x)) if name in ("asin", "acos") else x
    x = np.concatenate([x, np.tanh(floats(1)[-5000:])])
    return [x, np.random.default_rng(2).permuted(x)][: len(get(name).parameters)]


@pytest.mark.parametrize("name", NUMPY)
def test_floats_are_rounded_correctly_for_all_arguments(name: str) -> None:
    xs = arguments(name)
    wanted = NUMPY[name](*(x.astype(np.float64) for x in xs))
    found, is_normal = np.asarray(ours(name)(*xs)), np.abs(wanted) >= np.finfo("float32").tiny
    assert units(found[is_normal], wanted[is_normal]) <= CLOSE
    assert np.abs(found[~is_normal]).max(initial=0) <= np.finfo("float32").tiny


ENDS = np.float32([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -4.0, 1e30, -1e30, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("name", NUMPY)
def test_floats_at_the_ends_of_the_domain(name: str) -> None:
    xs = [np.resize(x, 6000) for x in np.meshgrid(*[ENDS] * len(get(name).parameters))]
    with np.errstate(all="ignore"):
        wanted = NUMPY[name](*(x.astype(np.float64) for x in xs)).astype(np.float32)
    found = np.asarray(ours(name)(*xs))
    np.testing.assert_array_max_ulp(found, wanted, 1)
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(wanted[there]))


def test_numbers_below_the_normal_ones() -> None:
    x = np.resize(np.float32([1e-39, -1e-39, 1e-45, -1e-45]), 6000)
    for name in ("sin", "tan", "asin", "atan", "cbrt"):
        np.testing.assert_array_equal(ours(name)(x), x)
    assert np.isnan(ours("remainder")(np.ones_like(x), x)).all()  # as by 0, and as XLA's
    np.testing.assert_array_equal(ours("atan2")(x, np.ones_like(x)), np.copysign(np.float32(0), x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NUMPY)
def test_halves_are_those_of_float32(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    xs = [jnp.asarray(rng.normal(size=6000), dtype) for _ in get(name).parameters]
    wide = ours(name)(*(x.astype("float32") for x in xs))
    np.testing.assert_array_equal(ours(name)(*xs).astype("float32"), wide.astype(dtype).astype("float32"))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_are_exact(name: str, dtype: str) -> None:
    """Also by 0, of the least integer by -1, and by a row, of which XLA may take the reciprocal."""
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    ends = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, info.max // 2 + 1, 0, 1, 2, 3, 7, 10]
    ends += [-1, -2, -3] if info.min else []
    values = np.array([*ends, *rng.integers(info.min, info.max, 200, endpoint=True)]).astype(dtype)
    every, small = np.meshgrid(values, values), rng.integers(1, 100, (50, 1000)).astype(dtype)
    for x, y in (every, (values[:, None], values), (rng.permuted(small), small), (small * 1, small[:1])):
        np.testing.assert_array_equal(ours(name)(x, y), jax.jit(QUOTIENTS[name])(*np.broadcast_arrays(x, y)))


def test_floored_quotients_of_programs_are_exact() -> None:
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.integers(-1000, 1000, (128, 128)), jnp.int32) for _ in range(2))
    y = jnp.where(y == 0, 1, y)
    best = rx.optimize(lambda x, y: (x // y, x % y), x, y, target="cpu")
    assert not best.report.kept_as_written
    for one, two in zip(best(x, y), (np.floor_divide(x, y), np.mod(x, y)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_other_dtypes_and_single_divisors_are_left_to_jax() -> None:
    assert expansion_of("sin", "float32") and expansion_of("divide", "int32") and expansion_of("remainder", "int8")
    for name, dtype in (("sin", "float64"), ("cos", "complex64"), ("divide", "float32"), ("remainder", "int64")):
        assert expansion_of(name, dtype) is None
    assert expansion_of("divide", "int32", by_number=True) is None and expansion_of("exp", "float32") is None
    x = jnp.arange(6000, dtype=jnp.int32)
    lowered = ours("divide").lower(x, jnp.int32(7)).as_text()
    assert "f64" not in lowered and "f64" in ours("divide").lower(x, x).as_text()


@pytest.mark.parametrize("function", EXPANSIONS)
def test_few_elements_are_left_to_jax(function: str) -> None:
    operator = get("divide" if function == "int_divide" else function)
    for row in EXPANSIONS[function]:
        dtype = "float32" if "float32" in row.dtypes else "int32"
        few, many = ([jnp.ones(n, dtype)] * len(operator.parameters) for n in (4999, 5000))
        assert "f64" not in ours(operator.name).lower(*few).as_text()
        assert "f64" in ours(operator.name).lower(*many).as_text()


def test_under_transformations() -> None:
    x = jax.random.normal(jax.random.key(0), (4, 6000))
    sin = get("sin").jax_function()
    assert jnp.allclose(jax.grad(lambda x: sin(x).sum())(x), jnp.cos(x), atol=1e-6)
    assert jnp.allclose(jax.jit(jax.jacfwd(sin))(x[0]).diagonal(), jnp.cos(x[0]), atol=1e-6)
    assert jnp.allclose(jax.jit(jax.vmap(jax.jit(sin)))(x), jnp.sin(x), atol=1e-6)
    assert jnp.allclose(lax.scan(lambda c, row: (c, sin(row)), 0, x)[1], jnp.sin(x), atol=1e-6)
    exported = jax.export.export(jax.jit(sin))(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n"), jnp.float32))
    assert jnp.allclose(exported.call(x), jnp.sin(x), atol=1e-6)


def rotated(x: Any, places: Any) -> Any:
    angles = places[:, None] * jnp.exp(-jnp.arange(16.0))
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (jnp.sin, ("n n",)),
        (lambda x: jnp.cos(x) * x + 1, ("n n",)),
        (rotated, ("8 n 32", "n")),
        (jnp.arctan2, ("n n",) * 2),
        (lax.rem, ("n n @ int32",) * 2),
        (jnp.mod, ("n n",) * 2),
    ],
)
def test_programs_replace_those_as_written(fn: Any, specs: tuple[str, ...]) -> None:
    best = rx.optimize(fn, *specs, at={"n": 512}, target="cpu")
    assert best.report.predicted_gain > 1.3 and not best.report.kept_as_written
    few = rx.optimize(
        fn, *(spec.replace("n", "4") if "int" not in spec else "4 4 @ int32" for spec in specs), target="cpu"
    )
    assert few.report.kept_as_written


def test_lengths_that_are_not_known_at_capacity() -> None:
    best = rx.optimize(
        lambda x, y: (jnp.sin(x).sum(-1), y // (y + 1)), "b n", "b n @ int32", dynamic="capacity", target="cpu"
    )
    for n in (1, 7, 2500):
        x, y = jax.random.normal(jax.random.key(n), (3, n)), jnp.arange(3 * n, dtype=jnp.int32).reshape(3, n)
        assert jnp.allclose(best(x, y)[0], jnp.sin(x).sum(-1), atol=1e-3)
        assert (best(x, y)[1] == y // (y + 1)).all()


def test_tensor_programs_use_them_and_kernels_of_pallas_do_not() -> None:
    x = jnp.ones(6000)
    for in_kernel in (False, True):
        lowered = jax.jit(lambda x, k=in_kernel: apply_function("sin", (x,), (), in_kernel=k)).lower(x).as_text()
        assert ("f64" in lowered) is not in_kernel
