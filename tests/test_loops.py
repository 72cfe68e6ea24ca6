"""Control flow end to end: what loops and branches compute, and where rules about functions put the work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_at
from relax_eg.ir import SCAN, functions_of


def array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * 0.3, jnp.float32)


def ops(function: Any) -> list[str]:
    return [e.op for e in function.expressions()]


def recurrent(x, w, u, b):
    def step(c, row):
        c = jnp.tanh(c @ w + row @ u + b)
        return c, c.sum()

    return jax.lax.scan(step, jnp.zeros((x.shape[1], w.shape[0])), x)


def stacked_layers(params, x):
    def layer(h, p):
        return h + jnp.tanh(h @ p["w"]) @ p["v"].T, None

    return jax.lax.scan(layer, x, params)[0]


def iterate(a, b, x):
    """A loop whose body computes, at every step, what is the same at all of them."""
    return jax.lax.fori_loop(0, 40, lambda i, y: y + 0.1 * ((a @ b) @ y), x)


def searching(x, n):
    def unfinished(s):
        return (s[0] < n) & (jnp.abs(s[1]).max() < 100.0)

    return jax.lax.while_loop(unfinished, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))


def choosing(i, x):
    return jax.lax.switch(i, [jnp.sin, lambda y: y * y.shape[0], lambda y: jnp.flip(y)], x)


CASES = {
    "recurrent": (
        recurrent,
        ("t b 8", "16 16", "8 16", "16"),
        (array(5, 3, 8), array(16, 16), array(8, 16), array(16)),
    ),
    "stacked": (
        stacked_layers,
        ({"w": "4 8 8", "v": "4 8 8"}, "n 8"),
        ({"w": array(4, 8, 8), "v": array(4, 8, 8, seed=1)}, array(3, 8)),
    ),
    "iterate": (iterate, ("n 64", "64 n", "n"), (array(6, 64), array(64, 6), array(6))),
    "searching": (searching, ("n", "@ int32"), (array(5), np.int32(7))),
    "choosing": (choosing, ("@ int32", "n"), (np.int32(1), array(5))),
}


@pytest.mark.parametrize("name", CASES)
def test_computes_what_jax_computes(name: str) -> None:
    fn, specs, args = CASES[name]
    best = rx.optimize(fn, *specs)
    assert not best.report.opaque
    assert best.check(*args).passed
    assert rx.parse(str(best.module)) is not None
    for got, want in zip(jax.tree.leaves(jax.jit(rx.jit(fn))(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def test_a_branch_out_of_range_is_the_nearest() -> None:
    best = rx.optimize(choosing, "@ int32", "n")
    for i in (-3, 9):
        np.testing.assert_allclose(best(np.int32(i), array(4)), choosing(i, array(4)), rtol=1e-6)


def test_what_no_step_waits_for_is_done_for_all_at_once() -> None:
    best = rx.optimize(recurrent, "t b 64", "128 128", "64 128", "128", at={"t": 50, "b": 4})
    assert best.report.rules["loop_steps"] > 0
    (loop,) = [e for e in best.module.main.expressions() if e.op == SCAN]
    (body,) = functions_of(loop)
    assert "matmul" in ops(best.module.main) and ops(best.module[body]).count("matmul") == 1
    without = rx.optimize(recurrent, "t b 64", "128 128", "64 128", "128", rules=rx.rules.default - "loops")
    assert "matmul" not in ops(without.module.main)


def test_what_every_step_repeats_leaves_the_loop() -> None:
    best = rx.optimize(iterate, "n 512", "512 n", "n", at={"n": 16}, target="h100")
    assert best.report.rules.get("loop_invariants")
    assert "matmul" in ops(best.module.main)
    assert best.check(array(16, 512), array(512, 16), array(16)).passed
    # On CPUs XLA does that itself: nothing is to be gained.
    assert rx.optimize(iterate, "n 512", "512 n", "n", at={"n": 16}).report.kept_as_written
    # At other sizes two products with a vector are less work than the product of the matrices.
    other = rx.optimize(iterate, "n 16", "16 n", "n", at={"n": 512})
    assert "matmul" not in ops(other.module.main)
    body = next(f for f in other.module if f.name != other.module.main.name)
    assert not other.report.kept_as_written and ops(body).count("matmul") == 2


def test_conditions_are_left_by_what_is_the_same_at_every_step() -> None:
    """XLA leaves it there."""

    def fn(a, x):
        def unfinished(s):
            return (s[0] < 20) & (jnp.abs(s[1]).max() < jnp.linalg.norm(a @ a))

        return jax.lax.while_loop(unfinished, lambda s: (s[0] + 1, jnp.tanh(a @ s[1])), (0, x))

    best = rx.optimize(fn, "64 64", "64")
    assert best.report.rules["loop_invariants"] and "matmul" in ops(best.module.main)
    assert best.check(array(64, 64), array(64)).passed


def test_steps_that_wait_for_none_are_found_where_a_body_is_best_in_one_product() -> None:
    """`x @ w + c @ u` is one product of what stands side by side; for all steps at once `x @ w` is better off alone."""

    def fn(h, xs, w, u):
        return jax.lax.scan(lambda c, x: (jnp.tanh(x @ w + c @ u), None), h, xs)[0]

    best = rx.optimize(fn, "8 256", "50 8 256", "256 256", "256 256")
    assert best.report.rules["loop_steps"] and "matmul" in ops(best.module.main)
    # Small weights: larger ones make a recurrence in which every rounding error grows.
    assert best.check(array(8, 256), array(50, 8, 256), 0.1 * array(256, 256), 0.1 * array(256, 256, seed=1)).passed


def gated(xs, u, h, c):
    """The cell of an LSTM, from the projections of all inputs."""

    def step(state, x):
        i, f, o, z = jnp.split(x + state[0] @ u, 4, -1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(z)
        return (h := jax.nn.sigmoid(o) * jnp.tanh(c), c), h

    return jax.lax.scan(step, (h, c), xs)


def test_parts_of_a_slice_are_slices() -> None:
    """XLA does not vectorise a kernel that reads a step's part of an array at several places."""
    best = rx.optimize(gated, "t b 256", "64 256", "b 64", "b 64", at={"t": 50, "b": 8})
    assert best.report.rules["steps_in_parts"]
    (loop,) = [e for e in best.module.main.expressions() if e.op == SCAN]
    (body,) = functions_of(loop)
    assert [p.annotation.shape[-1].value for p in best.module[body].params[-4:]] == [64] * 4
    assert best.check(array(3, 2, 256), array(64, 256), array(2, 64), array(2, 64, seed=1)).passed


def test_a_slice_that_is_read_whole_stays_whole() -> None:
    def fn(xs, h):
        return jax.lax.scan(lambda h, x: (h * x[:4] + x[4:], x.sum()), h, xs)

    best = rx.optimize(fn, "20 8", "4")
    assert not best.report.rules.get("steps_in_parts")
    assert best.check(array(20, 8), array(4)).passed


def test_weights_stacked_for_a_loop_are_prepared() -> None:
    specs = ({"w": "12 64 64", "v": "12 64 64"}, "n 64")
    params = {"w": array(12, 64, 64), "v": array(12, 64, 64, seed=1)}
    best = rx.optimize(stacked_layers, *specs, weights=("params",), at={"n": 4})
    ready = best.prepare(params)
    np.testing.assert_allclose(ready(array(4, 64)), stacked_layers(params, array(4, 64)), rtol=2e-5, atol=1e-5)


def test_no_steps_at_all() -> None:
    best = rx.optimize(recurrent, "0 b 64", "128 128", "64 128", "128")
    carry, ys = best(jnp.zeros((0, 3, 64)), array(128, 128), array(64, 128), array(128))
    assert ys.shape == (0,) and not carry.any()


def test_bodies_are_differentiated_and_batched_as_written() -> None:
    fn, specs, args = CASES["recurrent"]
    best = rx.optimize(fn, *specs).to_jax()
    for i in range(4):
        got = jax.grad(lambda *xs: best(*xs)[1].sum(), argnums=i)(*args)
        want = jax.grad(lambda *xs: fn(*xs)[1].sum(), argnums=i)(*args)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    batch = jnp.stack([args[0], 2 * args[0]])
    over = (0, None, None, None)
    np.testing.assert_allclose(
        jax.vmap(best, over)(batch, *args[1:])[1], jax.vmap(fn, over)(batch, *args[1:])[1], rtol=1e-4, atol=1e-5
    )


def test_a_gradient_keeps_what_it_computes_again() -> None:
    def loss(x):
        return jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()

    best = rx.optimize(jax.grad(loss), "n")
    # The sine inside is computed again behind a barrier, as JAX asks for, and not taken from the first time.
    assert [o.name for o in best.report.opaque] == ["jax.optimization_barrier"]
    np.testing.assert_allclose(best(array(5)), jax.grad(loss)(array(5)), rtol=1e-5)


def test_effects_in_a_body_keep_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    def fn(x):
        def step(c, row):
            jax.debug.print("{}", row, ordered=True)
            return c + row @ row, None

        return jax.lax.scan(step, jnp.zeros(()), x.reshape(-1, 1))[0]

    best = rx.optimize(fn, "n")
    best(jnp.arange(3.0)).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["[0.]", "[1.]", "[2.]"]


def refined(w: Any, x: Any, order: Any = None, groups: int = 1) -> Any:
    def step(y: Any, _: Any) -> tuple[Any, None]:
        made = jax.lax.conv_general_dilated(y, w, (1, 1), "SAME", dimension_numbers=order, feature_group_count=groups)
        return jnp.tanh(made) + x, None

    return jax.lax.scan(step, x, None, length=4)[0]


def test_a_loop_with_convolutions_is_replaced_by_the_same_one_with_their_channels_last() -> None:
    """No rule changes it, and the function as written would take 10 times as long on a CPU."""
    best = rx.optimize(refined, "8 8 3 3", "2 8 9 11", target="cpu", rules=rx.RuleSet("none"), measure="off")
    assert best.report.predicted_gain > 5 and not best.report.rules
    w, x = 0.1 * array(8, 8, 3, 3), array(2, 8, 9, 11, seed=1)
    np.testing.assert_allclose(best(w, x), refined(w, x), atol=1e-5)
    assert "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in jax.jit(best).lower(w, x).as_text()
    assert "what is computed is what was written" in str(best.explain())


@pytest.mark.parametrize(
    ("specs", "options", "target"),
    [
        (("3 3 8 8", "2 9 11 8"), {"order": ("NHWC", "HWIO", "NHWC")}, "cpu"),  # channels are last as written
        (("8 1 3 3", "2 8 9 11"), {"groups": 8}, "cpu"),  # nine products each
        (("8 8 3 3", "2 8 9 11"), {}, "h100"),
    ],
)
def test_other_loops_with_convolutions_stay_as_written(specs: Any, options: Any, target: str) -> None:
    def fn(w: Any, x: Any) -> Any:
        return refined(w, x, **options)

    best = rx.optimize(fn, *specs, target=target, rules=rx.RuleSet("none"), measure="off")
    assert best.report.predicted_gain == 1.0 and best.variants[0].chosen is None


@pytest.mark.parametrize(("groups", "strides", "between"), [(1, (1, 1), (1, 1)), (2, (2, 1), (1, 2))])
def test_convolutions_in_loops_have_their_channels_last(groups: int, strides: Any, between: Any) -> None:
    """Unless they have groups, and sum few products for each element."""

    def fn(x: Any, w: Any) -> Any:
        def one(part: Any) -> Any:
            return jax.lax.conv_general_dilated(
                part, w, strides, ((1, 0), (2, 1)), between, (1, 2), feature_group_count=groups
            )

        return jax.lax.map(one, x)

    x, w = array(3, 2, 6, 9, 11), array(8, 6 // groups, 3, 2, seed=1)
    module = rx.optimize(fn, "3 2 6 9 11", " ".join(map(str, w.shape)), rules=rx.RuleSet("none")).module
    run = jax.jit(lambda *arrays: run_at(module, module.main, arrays, {}))
    np.testing.assert_allclose(run(x, w), fn(x, w), atol=1e-5)
    is_last = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]" in run.lower(x, w).as_text()
    assert is_last == (groups == 1)
