"""Operators that have another lowering on CPUs: their results are those of JAX's own, and they replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.frontends import trace_function
from relax_eg.ops import get

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16")


def integers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    """Values of the whole range of a dtype."""
    rng, bits = np.random.default_rng(seed), 1 if dtype == "bool" else 8 * np.dtype(dtype).itemsize
    return jnp.asarray(rng.integers(0, 1 << bits, shape)).astype(dtype)


def has_another_form(fn: Callable[..., Any], *given: Any) -> bool:
    """Whether a function has another lowering on CPUs (`ops.on_cpus`)."""
    return "custom_jvp_call" in str(jax.make_jaxpr(fn)(*given))


# --- products of small integers ---

PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((40, 64), (64, 33)),
    "few rows": ((2, 200), (200, 16)),
    "batches": ((3, 5, 70), (3, 70, 20)),
    "batches of rows": ((3, 5, 70), (70, 20)),
    "one batch for all": ((5, 70), (3, 70, 20)),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_small_integers_wrap_as_those_of_jax(name: str, dtype: str) -> None:
    a, b = (integers(dtype, shape, i) for i, shape in enumerate(PRODUCTS[name]))
    matmul = get("matmul").jax_function()
    outs = {"u": (None, "uint32", "int32"), "i": (None, "int32"), "b": (None,)}[np.dtype(dtype).kind]
    for out in outs:

        def ours(a: Any, b: Any, out: Any = out) -> Any:
            return matmul(a, b, precision=None, out_dtype=out)

        def plain(a: Any, b: Any, out: Any = out) -> Any:
            return jnp.matmul(a, b, preferred_element_type=out)

        found, wanted = jax.jit(ours)(a, b), jax.jit(plain)(a, b)
        assert found.dtype == wanted.dtype and jnp.array_equal(found, wanted)
        assert has_another_form(ours, a, b) == (out is None or dtype.startswith("u"))


@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_products_with_a_transposed_weight_are_such_products(dtype: str) -> None:
    x, w, linear = integers(dtype, (9, 100)), integers(dtype, (40, 100), 1), get("linear").jax_function()
    assert jnp.array_equal(jax.jit(linear)(x, w), x @ w.T)
    assert has_another_form(linear, x, w)


@pytest.mark.parametrize(
    ("dtype", "a", "b"),
    [
        ("int8", (1, 512), (512, 512)),
        ("int8", (512, 512), (512,)),
        ("int8", (64, 32), (32, 64)),
        ("int32", (64,) * 2, (64,) * 2),
    ],
)
def test_products_that_loops_compute_sooner_are_left(dtype: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    matmul = get("matmul").jax_function()
    given = integers("int8", a).astype(dtype), integers("int8", b, 1).astype(dtype)
    assert not has_another_form(lambda a, b: matmul(a, b, precision=None, out_dtype=None), *given)


@pytest.mark.parametrize("fn", [jnp.matmul, lambda a, b: jnp.einsum("ij,jk->ki", a, b), lambda a, b: lax.dot(a, b) + a])
def test_programs_with_products_of_bytes_replace_those_as_written(fn: Any) -> None:
    best = rx.optimize(fn, "256 256 @ int8", "256 256 @ int8", target="cpu")
    assert best.report.predicted_gain > 3 and not best.report.kept_as_written
    given = integers("int8", (256, 256)), integers("int8", (256, 256), 1)
    assert jnp.array_equal(best(*given), fn(*given))


def test_products_of_bytes_at_capacity_and_of_symbolic_sizes() -> None:
    best = rx.optimize(jnp.matmul, "n 256 @ int8", "256 64 @ int8", dynamic="capacity", target="cpu")
    matmul, b = get("matmul").jax_function(), integers("int8", (256, 64), 1)
    n = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 256"), jnp.int8)
    exported = jax.export.export(jax.jit(lambda a: matmul(a, b, precision=None, out_dtype=None)))(n)
    for n in (1, 7, 40):
        a = integers("int8", (n, 256), n)
        assert jnp.array_equal(best(a, b), a @ b) and jnp.array_equal(exported.call(a), a @ b)


# --- running reductions ---

RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


def running_values(name: str, dtype: str, shape: tuple[int, ...]) -> jax.Array:
    if np.dtype(dtype).kind in "iu":
        return integers(dtype, shape)
    rng = np.random.default_rng(0)
    values = rng.uniform(0.9, 1.1, shape) if name == "cumprod" else rng.normal(size=shape)
    return jnp.asarray(values + 1j * rng.normal(size=shape) / 9 if dtype == "complex64" else values, dtype)


def wide(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x).astype(np.result_type(np.float64, x.dtype) if np.dtype(x.dtype).kind != "V" else np.float64)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", RUNNING)
def test_running_reductions_are_those_of_jax(name: str, reverse: bool) -> None:
    ours, plain = get(name).jax_function(), getattr(lax, name)
    takes = {"cumlogsumexp": (), "cumsum": ("int8", "uint16", "int32", "complex64"), "cumprod": ("int8", "complex64")}
    dtypes = ("float32", "bfloat16", "float16", *takes.get(name, ("int8", "uint16", "int32")))
    axes = {(3, 70): 1, (64, 5): 0, (16,): 0, (2, 17, 3): 1, (0, 20): 1}
    given = [running_values(name, "float32", shape) for shape in axes]
    given += [running_values(name, dtype, shape) for dtype in dtypes[1:] for shape in ((3, 70), (2, 17, 3))]

    @jax.jit
    def of_all(xs: list[jax.Array]) -> Any:
        return [
            (
                ours(x, axis=axes[x.shape], reverse=reverse),
                plain(x, axes[x.shape], reverse),
                plain(x if x.dtype == "complex64" else x.astype("float32"), axes[x.shape], reverse),
            )
            for x in xs
        ]

    for x, (found, wanted, exact) in zip(given, of_all(given), strict=True):
        assert found.dtype == wanted.dtype
        if np.dtype(x.dtype).kind in "iu" or name in ("cummax", "cummin"):
            assert jnp.array_equal(found, wanted)
            continue
        bound = 4 * float(jnp.finfo(x.dtype).eps) * np.abs(wide(x)).sum(axes[x.shape], keepdims=True).clip(1)
        assert (np.abs(wide(found) - wide(exact)) <= bound).all(), (x.dtype, x.shape)


@pytest.mark.parametrize("name", RUNNING)
def test_running_reductions_of_what_is_not_finite(name: str) -> None:
    ours, plain = get(name).jax_function(), getattr(lax, name)
    specials = ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [-0.0] * 20, [-np.inf] * 20)
    given = [jnp.asarray(v if len(v) == 20 else [*np.ones(9), *v, *np.ones(9)], "float32") for v in specials]
    both = jax.jit(lambda xs: [(ours(x, axis=0, reverse=False), plain(x)) for x in xs])
    for found, wanted in both(given):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        np.testing.assert_allclose(found, wanted, 1e-6)
        if name != "cumlogsumexp":
            zeros = np.asarray(wanted) == 0
            np.testing.assert_array_equal(np.signbit(found)[zeros], np.signbit(wanted)[zeros])


def test_long_running_sums_are_as_accurate_as_those_of_jax() -> None:
    x = jnp.asarray(np.random.default_rng(0).uniform(size=(4, 40_000)), "float32")
    exact = np.cumsum(np.asarray(x, np.float64), 1)
    ours, plain = (
        np.abs(f(x) - exact).max()
        for f in (lambda x: get("cumsum").jax_function()(x, axis=1, reverse=False), lambda x: lax.cumsum(x, 1))
    )
    assert ours <= 1.5 * plain


def test_running_sums_under_transformations_and_at_capacity() -> None:
    ours, x = get("cumsum").jax_function(), jnp.asarray(np.random.default_rng(0).integers(-9, 9, (4, 40)), "float32")
    rows = jax.vmap(lambda row: ours(row, axis=0, reverse=True))
    assert jnp.array_equal(rows(x), lax.cumsum(x, 1, reverse=True))
    assert jnp.array_equal(
        jax.grad(lambda x: (rows(x) ** 2).sum())(x), jax.grad(lambda x: (lax.cumsum(x, 1, True) ** 2).sum())(x)
    )
    best = rx.optimize(lambda x: jnp.cumsum(x, 1), "b n", dynamic="capacity", target="cpu")
    assert all(jnp.array_equal(best(x[:, :n]), jnp.cumsum(x[:, :n], 1)) for n in (1, 7, 40))


@pytest.mark.parametrize(("name", "least"), [("cumsum", 2), ("cummax", 2), ("cumlogsumexp", 5)])
def test_programs_with_running_reductions_replace_those_as_written(name: str, least: float) -> None:
    fn = getattr(lax, name)
    best = rx.optimize(lambda x: fn(x, 1), "64 256", target="cpu")
    assert best.report.predicted_gain > least and not best.report.kept_as_written
    assert rx.optimize(lambda x: fn(x, 1), "64 8", target="cpu").report.kept_as_written


# --- positions of extremes ---


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_are_those_of_jax_at_ties_and_without_numbers(name: str) -> None:
    ours, plain = get(name).jax_function(), getattr(lax, name)
    rng = np.random.default_rng(0)

    def both(v: Any) -> tuple[Any, Any]:
        axis = v.ndim - 1
        return ours(v, axis=axis, keepdims=False, dtype="int32"), plain(v, axis, "int32")

    given: list[Any] = []
    for dtype in ("float32", "float16", "bfloat16", "int8", "uint8"):
        for shape in ((30, 128), (30, 129), (5, 4, 191), (1, 1000)):
            values = rng.integers(-128, 128, shape) if dtype[0] in "iu" else rng.normal(size=shape)
            assert has_another_form(lambda v: both(v)[0], jnp.asarray(values).astype(dtype))
            kinds = [values, np.where(rng.random(shape) < 0.05, 100, values), np.zeros(shape)]
            if dtype[0] not in "iu":
                few = rng.random(shape) < 0.01
                kinds += [np.where(few, v, values) for v in (np.nan, np.inf, -np.inf)] + [np.where(few, -0.0, 0.0)]
                kinds += [np.full(shape, np.nan), np.full(shape, -np.inf)]
            given.append(jnp.asarray(np.stack(kinds)).astype(dtype))
    for x, (found, wanted) in zip(given, jax.jit(lambda vs: [both(v) for v in vs])(given), strict=True):
        assert jnp.array_equal(found, wanted), (x.dtype, x.shape)


@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [("float32", (9, 64), 1), ("float32", (200, 9), 0), ("int32", (9, 200), 1), ("bool", (9, 200), 1)],
)
def test_positions_that_blocks_do_not_find_sooner_are_left(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    argmax = get("argmax").jax_function()
    assert not has_another_form(
        lambda x: argmax(x, axis=axis, keepdims=True, dtype="int32"), integers("int8", shape).astype(dtype)
    )


def test_positions_under_transformations_and_at_capacity() -> None:
    argmax, x = get("argmax").jax_function(), jnp.asarray(np.random.default_rng(0).normal(size=(4, 300)), "float32")

    def greatest(row: Any) -> Any:
        return row[argmax(row, axis=0, keepdims=False, dtype="int32")]

    assert jnp.array_equal(jax.vmap(greatest)(x), x.max(1))
    slopes = jax.jit(jax.grad(lambda x: jax.vmap(greatest)(x).sum()))(x)
    assert jnp.array_equal(slopes, jax.nn.one_hot(x.argmax(1), 300))
    best = rx.optimize(lambda x: jnp.argmax(x, 1), "b n", dynamic="capacity", target="cpu")
    assert all(jnp.array_equal(best(x[:, :n]), jnp.argmax(x[:, :n], 1)) for n in (1, 100, 130, 300))


def test_programs_with_positions_replace_those_as_written() -> None:
    best = rx.optimize(lambda x: jnp.argmax(x, 1), "64 4096", target="cpu")
    assert best.report.predicted_gain > 1.3 and not best.report.kept_as_written
    assert rx.optimize(lambda x: jnp.argmax(x, 0), "64 4096", target="cpu").report.kept_as_written


READ_BACK = [jnp.cos, jnp.argsort, jnp.cumsum, lambda x: jnp.argmax(x, 1), lambda x: jnp.arctan2(x, x)]


@pytest.mark.parametrize("fn", READ_BACK)
def test_what_cpus_run_is_read_back_as_the_operator(fn: Any) -> None:
    """Also where JAX sees a program that we lowered."""
    once = trace_function(fn, ("n 256",)).module
    again = trace_function(lambda x: run_function(once, once.main, [x]), ("n 256",)).module
    assert [e.op for e in again.main.expressions()] == [e.op for e in once.main.expressions()]
