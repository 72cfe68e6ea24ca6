"""`rx.jit` in the place of `jax.jit`."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import OptionError

Array = Any

pytestmark = pytest.mark.usefixtures("no_fallback")


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def same(x: Any, y: Any) -> None:
    """As `jax.jit` gives it: structure, shapes, dtypes and weak types, values up to rounding."""
    assert jax.tree_util.tree_structure(x) == jax.tree_util.tree_structure(y)
    for p, q in zip(jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y), strict=True):
        assert jax.typeof(p) == jax.typeof(q)
        np.testing.assert_allclose(np.asarray(p, np.float64), np.asarray(q, np.float64), rtol=1e-4, atol=1e-4)


def chain(a: Array, b: Array, v: Array) -> Array:
    """A chain."""
    return (a @ b) @ v


ARGS = normal(0, 64, 64), normal(1, 64, 64), normal(2, 64)


def test_drop_in() -> None:
    fast = rx.jit(chain)
    assert fast.report is None
    same(fast(*ARGS), jax.jit(chain)(*ARGS))
    assert fast.__name__ == "chain" and fast.__doc__ == "A chain." and fast.__wrapped__ is chain
    assert fast.report is not None and fast.report.rules == {"same_sum_of_products": 2}
    assert fast.lower(*ARGS).compile() is not None


def test_what_code_for_jax_jit_asks_of_a_function() -> None:
    fast, plain = rx.jit(chain), jax.jit(chain)
    assert isinstance(fast, jax.stages.Wrapped) and inspect.signature(fast) == inspect.signature(plain)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(fast, name) == getattr(chain, name)
    assert fast.eval_shape(*ARGS) == plain.eval_shape(*ARGS)
    assert not fast.optimized  # the shapes of a result need no search
    same(fast.trace(*ARGS).lower().compile()(*ARGS), plain(*ARGS))
    fast.clear_cache()
    assert not fast.optimized and fast.report is None
    same(fast(*ARGS), plain(*ARGS))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_have_the_options_and_search_for_themselves(again: Any) -> None:
    fast = rx.jit(chain, dims=["m k", "k n", "n"], weights=["a"], numerics="exact", donate_argnames="v")
    fast(ARGS[0], ARGS[1], normal(3, 64))
    other = again(fast)
    assert type(other) is type(fast) and not other.optimized and len(fast.optimized) == 1
    given = normal(3, 64)
    same(other(ARGS[0], ARGS[1], given), chain(ARGS[0], ARGS[1], normal(3, 64)))
    assert other.report.numerics == fast.report.numerics


@pytest.mark.parametrize("options", [{}, {"dims": ["n"]}, {"weights": ["x"]}, {"dims": ["n"], "weights": ["x"]}])
def test_without_jit_the_function_itself_runs(options: Any) -> None:
    seen: list[float] = []

    def doubled(x: Array) -> Array:
        if not isinstance(x, jax.core.Tracer):
            seen.append(float(x[0]))  # as people debug a function: with values
        return x * 2 + 1 - 1

    fast = rx.jit(doubled, **options)
    for n in (3, 3, 3, 4, 5):
        same(fast(jnp.ones(n)), jnp.ones(n) * 2)
        with jax.disable_jit():
            same(fast(jnp.ones(n) * 7), jnp.ones(n) * 14)
    assert seen == [7.0] * 5  # once for each call
    same(fast(jnp.ones(3)), jnp.ones(3) * 2)


def test_one_optimization_for_one_combination_of_shapes() -> None:
    fast = rx.jit(chain)
    for n in (8, 16, 8, 16):
        args = normal(0, n, n), normal(1, n, n), normal(2, n)
        same(fast(*args), chain(*args))
    assert len(fast.optimized) == 2


def test_decorators() -> None:
    @rx.jit
    def plain(x: Array) -> Array:
        return jnp.negative(jnp.negative(x))

    @rx.jit(dims=["n"], at={"n": 1024})
    def with_options(x: Array) -> Array:
        return jnp.negative(jnp.negative(x))

    for fn in (plain, with_options):
        same(fn(normal(0, 5)), normal(0, 5))
        assert len(fn.optimized) == 1


def test_dims_optimize_once_for_all_sizes() -> None:
    fast = rx.jit(chain, dims=["n n", "n n", "n"], at={"n": 512})
    for n in (1, 8, 16):
        args = normal(0, n, n), normal(1, n, n), normal(2, n)
        same(fast(*args), chain(*args))
    assert len(fast.optimized) == 1 and fast.report is not None and fast.report.at == {"n": 512}


def test_dims_with_pytrees_and_keywords() -> None:
    def layer(p: dict[str, Array], x: Array) -> dict[str, Array]:
        return {"y": (x @ p["w"]) @ p["u"]}

    fast = rx.jit(layer, dims=[{"w": "k k", "u": "k k"}, "n k"], at={"n": 1, "k": 256})
    p, x = {"w": normal(0, 8, 8), "u": normal(1, 8, 8)}, normal(2, 3, 8)
    same(fast(p, x), layer(p, x))
    same(fast(p, x=x), layer(p, x))


@pytest.mark.parametrize("dims", [None, ["n n", "n n", "n", None]], ids=["shapes", "dims"])
def test_static_arguments(dims: Any) -> None:
    def program(a: Array, b: Array, v: Array, power: int = 1, *, flip: bool = False) -> Array:
        for _ in range(power):
            v = (a @ b) @ v
        return -v if flip else v

    by_number = rx.jit(program, dims=dims, static_argnums=3, static_argnames="flip")
    by_name = rx.jit(program, dims=dims, static_argnames=("power", "flip"))
    for fast in (by_number, by_name):
        for power in (1, 2):
            same(fast(*ARGS, power), program(*ARGS, power))
            same(fast(*ARGS, power, flip=True), program(*ARGS, power, flip=True))
        assert len(fast.optimized) == 4
    same(by_name(*ARGS, power=2), program(*ARGS, 2))
    same(by_name(*ARGS), program(*ARGS))


def test_donated_arguments() -> None:
    def step(w: Array, g: Array) -> Array:
        return w - 0.1 * g * 1.0

    for options in ({"donate_argnums": 0}, {"donate_argnames": "w"}):
        fast = rx.jit(step, **options)
        w, g = normal(0, 16, 16), normal(1, 16, 16)
        expected = step(w, g)
        same(fast(w, g), expected)
        assert w.is_deleted() and not g.is_deleted()


def test_keywords_pytrees_and_none() -> None:
    def program(p: dict[str, Any], *rest: Array, bias: Array | None = None) -> Any:
        y = p["w"] @ p["v"] + sum(rest)
        return {"y": y if bias is None else y + bias, "none": None}

    fast, slow = rx.jit(program), jax.jit(program)
    p = {"w": ARGS[0], "v": ARGS[2]}
    same(fast(p), slow(p))
    same(fast(p, ARGS[2], ARGS[2], bias=2.0), slow(p, ARGS[2], ARGS[2], bias=2.0))
    same(fast(p, bias=None), slow(p, bias=None))


def test_nested_in_jax_transformations() -> None:
    fast = rx.jit(chain)

    def loss(f: Any) -> Any:
        return lambda *args: jnp.sum(f(*args) ** 2)

    same(jax.jit(fast)(*ARGS), chain(*ARGS))
    same(jax.grad(loss(fast))(*ARGS), jax.grad(loss(chain))(*ARGS))
    same(jax.jit(jax.value_and_grad(loss(fast), 2))(*ARGS), jax.value_and_grad(loss(chain), 2)(*ARGS))
    many = normal(5, 3, 64)
    same(jax.vmap(fast, (None, None, 0))(*ARGS[:2], many), jax.vmap(chain, (None, None, 0))(*ARGS[:2], many))
    same(jax.jvp(fast, ARGS, ARGS), jax.jvp(chain, ARGS, ARGS))
    same(jax.eval_shape(fast, *ARGS).shape, (64,))


def test_a_jitted_function_inside_another() -> None:
    inner = rx.jit(chain)
    outer = rx.jit(lambda a, b, v: inner(a, b, v) @ v)
    same(outer(*ARGS), chain(*ARGS) @ ARGS[2])


def test_a_jitted_gradient() -> None:
    def loss(w: Array, x: Array) -> Array:
        return jnp.mean((x @ w) ** 2)

    w, x = normal(0, 8, 4), normal(1, 16, 8)
    same(rx.jit(jax.grad(loss))(w, x), jax.jit(jax.grad(loss))(w, x))


@pytest.mark.parametrize("value", [2, 2.5, True, np.float32(1.5), jnp.float32(2), 1j], ids=repr)
def test_python_scalars_and_weak_types(value: Any) -> None:
    def program(x: Array, s: Any) -> tuple[Array, ...]:
        return x * s, s * 2, jnp.asarray(s), x + 1

    for dtype in ("float32", "bfloat16", "int32"):
        x = jnp.arange(4).astype(dtype)
        ours, theirs = rx.jit(program)(x, value), jax.jit(program)(x, value)
        assert [jax.typeof(y) for y in ours] == [jax.typeof(y) for y in theirs]
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_constants_and_no_arguments() -> None:
    same(rx.jit(lambda: jnp.arange(3.0) * 1.0)(), jnp.arange(3.0))
    same(rx.jit(lambda x: (3, x))(1.0), jax.jit(lambda x: (3, x))(1.0))


def test_methods() -> None:
    class Model:
        @rx.jit
        def double(x: Array) -> Array:
            return x + x

    same(Model.double(jnp.ones(3)), 2 * jnp.ones(3))


def test_methods_of_an_instance() -> None:
    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, by: Array) -> None:
            self.by = by

        def tree_flatten(self) -> tuple[tuple[Array], None]:
            return (self.by,), None

        @classmethod
        def tree_unflatten(cls, _: None, leaves: tuple[Array]) -> Any:
            return cls(*leaves)

        @rx.jit
        def __call__(self, x: Array) -> Array:
            return self.by * x

        @functools.partial(rx.jit, static_argnums=0)
        def fixed(self, x: Array) -> Array:
            return self.by * x

    for scale in (Scale(jnp.arange(4.0)), Scale(jnp.full(4, 2.0))):
        for n in (3, 5, 5):
            x = jnp.ones((n, 4))
            same(scale(x), scale.by * x)
            same(scale.fixed(x), scale.by * x)


# --- when the optimizer fails ---


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OptionError("no such thing"), "OptionError: no such thing"),
        (ZeroDivisionError("oh"), "internal ZeroDivisionError: oh"),
    ],
)
def test_a_failing_optimizer_warns_once(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    fast = rx.jit(chain)
    monkeypatch.setattr(sys.modules["relax_eg.driver.jitting.jitted"], "optimize", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(fast(*ARGS), chain(*ARGS))
        small = normal(0, 4, 4), normal(1, 4, 4), normal(2, 4)
        same(fast(*small), chain(*small))
    (warning,) = [str(w.message) for w in caught if "runs as written" in str(w.message)]
    assert warning == f"chain runs as written under jax.jit; it was not optimized: {said}"
    assert fast.optimized == []


def test_wrong_options_warn_and_run() -> None:
    texts = {
        "numerics='fast': one of exact, reassociate, approximate, quantised": rx.jit(chain, numerics="fast"),
        "dims has 4 specs, and chain(a: ": rx.jit(chain, dims=["n n", "n n", "n", "n"]),
    }
    for text, fast in texts.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same(fast(*ARGS), chain(*ARGS))
        assert any(f"it was not optimized: OptionError: {text}" in str(w.message) for w in caught)


def test_a_function_that_jax_cannot_trace_raises_what_jax_raises() -> None:
    def branches(x: Array) -> Array:
        return x if x[0] > 0 else -x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(jax.errors.TracerBoolConversionError):
            rx.jit(branches)(jnp.ones(3))


def test_what_the_function_raises_comes_out_as_it_is() -> None:
    def broken(x: Array) -> Array:
        raise KeyError("mine")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyError, match=re.escape("'mine'")):
            rx.jit(broken)(jnp.ones(3))


def test_a_call_that_contradicts_the_dims_raises() -> None:
    fast = rx.jit(chain, dims=["n n", "n n", "n"])
    with pytest.raises(rx.errors.ShapeError, match=re.escape("chain(): argument `v`, axis 0 should be n = 4")):
        fast(normal(0, 4, 4), normal(1, 4, 4), normal(2, 5))


def test_a_call_outside_the_bounds_raises() -> None:
    fast = rx.jit(lambda x: x * 1.0, dims=["n"], bounds={"n": (1, 8)})
    with pytest.raises(rx.errors.BoundsError, match=re.escape("n = 9 exceeds its bound 8")):
        fast(jnp.ones(9))


def test_keys_in_closures_are_read_while_jax_traces() -> None:
    key = jax.random.key(3)

    def noisy(x: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, (8,))

    fast = rx.jit(noisy)
    x = jnp.arange(8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fast(x), jax.jit(noisy)(x))
    assert fast.optimized


def test_calls_of_sizes_seen_before_are_known_by_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first sizes and of others, with arrays in trees and with numbers."""
    fast = rx.jit(lambda tree, k: tree["x"] @ tree["w"] * k)
    w = jnp.ones((3, 2))
    calls = [({"x": jnp.ones((n, 3)), "w": w}, k) for n in (4, 7) for k in (2.0, jnp.float32(3.0))]
    for _ in range(3):
        for tree, k in calls:
            np.testing.assert_array_equal(fast(tree, k), np.full((tree["x"].shape[0], 2), 3 * float(k)))
    monkeypatch.setattr(fast, "_path", None)  # which finds out how calls of other kinds run
    monkeypatch.setattr(fast, "_are_first", None)
    for tree, k in calls:
        np.testing.assert_array_equal(fast(tree, k), np.full((tree["x"].shape[0], 2), 3 * float(k)))
    monkeypatch.undo()
    jax.clear_caches()  # what served the first sizes was compiled for them alone
    for tree, k in calls:
        np.testing.assert_array_equal(fast(tree, k), np.full((tree["x"].shape[0], 2), 3 * float(k)))
    assert fast(calls[0][0], True).dtype == fast(calls[0][0], 2).dtype == jnp.float32


@pytest.mark.parametrize(
    "of_size",
    [
        lambda n: (jnp.ones(n), 2.5),
        lambda n: (jnp.ones(n), 3),
        lambda n: (jnp.ones(n), True),
        lambda n: (jnp.ones(n), np.float64(3)),
        lambda n: (np.ones(n), np.ones(n)),
        lambda n: (np.ones(n), np.arange(n)),
    ],
    ids=["float", "int", "bool", "number of numpy", "float64", "int64"],
)
def test_sizes_vary_beside_numbers_and_arrays_of_64_bits(of_size: Any) -> None:
    """Which JAX traces as arrays of 32 bits."""
    fast = rx.jit(lambda x, k: x * k + 1)
    for n in (4, 7, 5, 6):
        x, k = of_size(n)
        result = fast(x, k)
        np.testing.assert_array_equal(result, x * k + 1)
        assert jax.typeof(result) == jax.typeof(jax.jit(lambda x, k: x * k + 1)(x, k))
    assert len(fast.optimized) == 2
