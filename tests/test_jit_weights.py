"""`weights=` and `facts=` of `rx.jit`: what is prepared, when, and what is refused."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls.binding import ByIdentity
from relax_eg.backend.calls.bound import BoundProgram
from relax_eg.errors import OptionError

Array = Any

pytestmark = pytest.mark.usefixtures("no_fallback", "shared_searches")


def normal(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def close(x: Any, y: Any) -> None:
    assert jax.tree_util.tree_structure(x) == jax.tree_util.tree_structure(y)
    for p, q in zip(jax.tree_util.tree_leaves(x), jax.tree_util.tree_leaves(y), strict=True):
        assert jax.typeof(p) == jax.typeof(q)
        np.testing.assert_allclose(p, q, rtol=1e-3, atol=1e-3)


def layer(p: dict[str, Any], x: Array, scale: Any = 1.0) -> Array:
    """Two products whose weights are multiplied ahead."""
    return (x @ p["w"]["down"]) @ p["w"]["up"] * scale


def params(seed: int) -> dict[str, Any]:
    return {"w": {"down": normal(seed, 32, 32), "up": normal(seed + 100, 32, 32)}}


P, X = params(0), normal(7, 4, 32)
DIMS = [{"w": {"down": "32 32", "up": "32 32"}}, "n 32", ""]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The weights from which values are prepared, by the identity of the first array."""
    made: list[Any] = []
    original = BoundProgram.prepare

    def counted(self: BoundProgram, weights: Any, *more: Any) -> Any:
        if self.indices:
            made.append(weights[0])
        return original(self, weights, *more)

    monkeypatch.setattr(BoundProgram, "prepare", counted)
    yield made


@pytest.mark.parametrize("options", [{}, {"dims": DIMS}, {"dynamic": "exact"}], ids=["calls", "dims", "exact"])
def test_weights_are_prepared_once(options: dict[str, Any], prepared: list[Any]) -> None:
    fast, layers = rx.jit(layer, weights=["p"], **options), [params(i) for i in range(3)]
    for _ in range(2):
        for p in layers:
            close(fast(p, X), layer(p, X))
            close(fast(dict(p), X), layer(p, X))  # the arrays count, not what they are in
    assert [id(x) for x in prepared] == [id(p["w"]["down"]) for p in layers]
    assert len(fast.optimized) == 1 and "same_sum_of_products" in fast.report.rules
    assert fast.report.after.prepared_values == 1
    assert fast.optimized[0]._executables.executable_count == 1  # all layers share what is compiled


def test_what_is_prepared_goes_with_its_weights(prepared: list[Any]) -> None:
    table = ByIdentity[str](2)
    a, b, c = jnp.zeros(2), jnp.zeros(2), jnp.zeros(2)
    table.put([a, b], "ab")
    assert table.get([a, b]) == "ab" and table.get([b, a]) is None and table.get([a]) is None
    table.put([b, c], "bc")
    assert table.get([a, b]) == "ab"
    del a
    gc.collect()
    assert len(table._known) == 1 and table._latest is None
    table.put([c], "c")
    table.put([b], "b")
    assert table.get([b, c]) is None and table.get([c]) == "c" and table.get([b]) == "b"


@pytest.mark.parametrize("options", [{}, {"dims": DIMS}], ids=["calls", "dims"])
def test_sizes_vary_and_weights_stay(options: dict[str, Any], prepared: list[Any]) -> None:
    fast = rx.jit(layer, weights=[0], **options)
    for n in (4, 6, 4, 9, 6, 1):
        close(fast(P, normal(n, n, 32)), layer(P, normal(n, n, 32)))
    assert len(fast.optimized) == (1 if options else 2) and len(prepared) == len(fast.optimized)
    close(fast(params(5), X), layer(params(5), X))
    assert fast.statistics() is not None


def test_keywords_numbers_and_other_structures() -> None:
    fast = rx.jit(layer, weights=("p",))
    for call in (
        lambda f: f(P, X, 2.0), lambda f: f(P, X, 3.0), lambda f: f(P, X, 3), lambda f: f(x=X, p=P),
        lambda f: f(P, np.asarray(X)), lambda f: f(P, X, jnp.float32(2)),
    ):  # fmt: skip
        close(call(fast), call(jax.jit(layer)))


def test_weights_that_may_change_or_are_traced_are_not_kept(prepared: list[Any]) -> None:
    fast = rx.jit(layer, weights=["p"])
    close(jax.jit(lambda x: fast(P, x))(X), layer(P, X))
    close(jax.jit(fast)(P, X), layer(P, X))
    close(jax.vmap(lambda x: fast(P, x[None])[0])(X), layer(P, X))
    close(jax.vmap(fast, (0, None))(jax.tree.map(lambda x: x[None], P), X)[0], layer(P, X))
    held = jax.tree.map(np.array, P)
    close(fast(held, X), layer(P, X))
    held["w"]["up"] *= 2
    close(fast(held, X), 2 * layer(P, X))
    assert prepared == []
    assert all(b.report.after.prepared_values == 0 for b in fast.optimized)  # nothing is priced as if it were free
    close(fast(P, X), layer(P, X))
    assert len(prepared) == 1


@pytest.mark.parametrize("kind", ["jit", "optimize"])
def test_derivatives_are_those_of_the_function_as_written(kind: str) -> None:
    def stopped(p: dict[str, Any], x: Array) -> Array:
        return layer(p, jax.lax.stop_gradient(x)) + x

    fast: Any = rx.jit(stopped, weights=["p"]) if kind == "jit" else rx.optimize(stopped, P, X, weights=["p"])

    def loss(f: Any) -> Any:
        return lambda p, x: (f(p, x) ** 2).sum()

    wanted = jax.grad(loss(stopped), (0, 1))(P, X)
    for _ in range(2):  # before and after the weights are prepared
        close(jax.grad(loss(fast), (0, 1))(P, X), wanted)
        close(jax.grad(lambda x: loss(fast)(P, x))(X), wanted[1])
        close(jax.jit(jax.grad(lambda x: loss(fast)(P, x)))(X), wanted[1])
        close(jax.grad(jax.jit(lambda x: loss(fast)(P, x)))(X), wanted[1])
        close(fast(P, X), stopped(P, X))


def test_what_is_prepared_in_a_trace_belongs_to_none() -> None:
    best = rx.optimize(layer, P, X, 1.0, weights=["p"])
    close(jax.jit(lambda x: best.prepare(P)(x, 1.0))(X), layer(P, X))
    close(jax.jit(lambda x: best(P, x, 1.0))(X), layer(P, X))
    close(best(P, X, 1.0), layer(P, X))


def test_donated_and_static_arguments(prepared: list[Any]) -> None:
    def step(p: dict[str, Any], state: Array, x: Array, power: int = 1) -> Array:
        return state + layer(p, x) * power

    for donated in ({"donate_argnums": 1}, {"donate_argnames": "state"}):
        fast = rx.jit(step, weights=["p"], static_argnames="power", **donated)
        for n in (4, 4, 6):
            for power in (1, 2):
                state, x = normal(1, n, 32), normal(2, n, 32)
                wanted = step(P, state, x, power)
                close(fast(P, state, x, power=power), wanted)
                assert state.is_deleted() == (n == 4)  # at capacity a padded copy is used up
        assert not any(x.is_deleted() for x in jax.tree.leaves((P, x)))
    assert prepared


def test_other_settings_of_jax(prepared: list[Any]) -> None:
    fast = rx.jit(layer, weights=["p"])
    close(fast(P, X), layer(P, X))
    with jax.default_matmul_precision("highest"):
        close(fast(P, X), layer(P, X))
        close(fast(P, X), layer(P, X))
    with jax.debug_nans(True):
        close(fast(P, X), layer(P, X))
    close(fast(P, X), layer(P, X))


def test_methods_and_the_rest_of_the_arguments() -> None:
    def total(x: Array, *ws: Array, **more: Array) -> Array:
        for w in ws:
            x = x @ w
        return x @ more["last"]

    ws = normal(1, 32, 32), normal(2, 32, 32)
    for weights in (["ws", "last"], [1, 2, "last"], ["ws[0]", "ws[1]", "last"]):
        fast = rx.jit(total, weights=weights, facts={"last": "finite"})
        close(fast(X, *ws, last=ws[0]), total(X, *ws, last=ws[0]))
        assert fast.report is not None and fast.report.after.prepared_values == 1

    class Model:
        @rx.jit(weights=["w"], static_argnums=0)
        def apply(self, w: tuple[Array, Array], x: Array) -> Array:
            return (x @ w[0]) @ w[1]

    close(Model().apply(ws, X), X @ ws[0] @ ws[1])


# --- facts ---


def definite(n: int) -> Array:
    a = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
    return jnp.asarray(a @ a.T + np.eye(n, dtype=np.float32))


def solved(p: dict[str, Array], b: Array, bias: Array | None = None) -> Array:
    x = jnp.linalg.solve(p["a"], b)
    return x if bias is None else x + bias


@pytest.mark.parametrize("key", ["p", 0, "p['a']"])
def test_facts_let_rules_fire(key: Any) -> None:
    fast = rx.jit(solved, facts={key: "positive definite", "bias": "finite"})
    for n in (40, 41):
        close(fast({"a": definite(n)}, jnp.ones(n)), solved({"a": definite(n)}, jnp.ones(n)))
    close(jax.jit(fast)({"a": definite(39)}, jnp.ones(39)), solved({"a": definite(39)}, jnp.ones(39)))
    assert len(fast.optimized) == 3
    assert all("solve_definite" in b.report.matches for b in fast.optimized)
    assert fast.optimized[0]._program.facts == (("positive_definite",), ())
    (said,) = fast.optimized[0].check(-definite(40), jnp.ones(40)).violations
    assert said.startswith("`p['a']` is declared positive definite, but")


def test_facts_with_dims_and_weights() -> None:
    fast = rx.jit(solved, facts={"p": "positive definite"}, weights=["p"], dims=[{"a": "n n"}, "n", None])
    for n in (40, 41):
        close(fast({"a": definite(n)}, jnp.ones(n)), solved({"a": definite(n)}, jnp.ones(n)))
    assert len(fast.optimized) == 1 and "solve_definite" in fast.optimized[0].report.matches


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": ["q"]}, "weights: layer has no argument 'q'; its arguments are p, x, scale"),
        ({"weights": [True]}, "weights: layer has no argument True; its arguments are p, x, scale"),
        ({"weights": [3]}, "weights: layer has no argument 3; its arguments are p, x, scale"),
        ({"weights": ["p['w']"]}, "weights: layer has no argument \"p['w']\"; its arguments are p, x, scale"),
        ({"weights": 1}, "weights=1: a list of argument names or positions is accepted"),
        (
            {"weights": ["scale"], "static_argnames": "scale"},
            "weights: `scale` of layer is static, and nothing is prepared from a constant; accepted: one of the two",
        ),
        (
            {"weights": [0], "donate_argnums": 0},
            "weights: `p` of layer is donated, and what is prepared from it is for later calls; accepted: one of the",
        ),
        ({"facts": {"x": "postive"}}, "'postive' is no fact; did you mean positive? accepted: positive, nonnegative, "),
        ({"facts": {"x": 3}}, "facts['x'] = 3: a fact such as 'positive', or a list of such, is accepted"),
        ({"facts": {5: "positive"}}, "facts: layer has no argument 5; it has: p, x, scale"),
        ({"facts": "positive"}, "facts='positive': {'x': 'positive'} is accepted"),
    ],
)
def test_options_refused_where_they_are_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        rx.jit(layer, **options)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"y": "positive"}, "facts: layer has no argument 'y'; it has: p, x, p['w']['down'], p['w']['up']"),
        ({"x": "diagonal"}, "facts: layer: `x` cannot be diagonal: its matrices are 4 by 32; square ones can be"),
    ],
)
@pytest.mark.parametrize("weights", [[], ["p"]])
def test_facts_that_the_arrays_refuse_warn(facts: Any, said: str, weights: list[str]) -> None:
    fast = rx.jit(layer, facts=facts, weights=weights)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            close(fast(P, X), layer(P, X))
    (warning,) = [str(w.message) for w in caught if "layer" in str(w.message)]
    assert said in warning


def test_what_the_function_raises_comes_out_as_it_is() -> None:
    def broken(p: Array, x: Array) -> Array:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="'mine'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rx.jit(broken, weights=["p"])(X, X)


def test_weights_are_not_looked_up_where_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is kept as written costs a call of `jax.jit`; other sizes are searched for as before."""

    def layer(w, x):  # type: ignore[no-untyped-def]
        return jnp.tanh(x @ w)

    fast = rx.jit(layer, weights=["w"])
    w, x = jnp.ones((64, 64)) / 64, jnp.ones((8, 64))
    np.testing.assert_allclose(fast(w, x), layer(w, x), rtol=1e-5)
    assert fast.report is not None and fast.report.kept_as_written
    with monkeypatch.context() as m:
        m.setattr(fast, "_with_weights", lambda *_: pytest.fail("weights are looked up"))
        np.testing.assert_allclose(fast(2 * w, x), layer(2 * w, x), rtol=1e-5)
    for rows in (5, 8, 5, 8):
        np.testing.assert_allclose(fast(w, jnp.ones((rows, 64))), layer(w, jnp.ones((rows, 64))), rtol=1e-5)
    g = jax.grad(lambda w: fast(w, x).sum())(w)
    np.testing.assert_allclose(g, jax.grad(lambda w: layer(w, x).sum())(w), rtol=1e-5)
