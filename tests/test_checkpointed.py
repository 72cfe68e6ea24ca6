"""Gradients of loops that compute the steps of the loop again, segment by segment: the same values in less memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import whole_footprint
from relax_eg.backend.lowering.lower import run_at
from relax_eg.byte_units import parse_bytes
from relax_eg.driver.limits.checkpointed import Checkpoints
from relax_eg.errors import ExtractionError
from relax_eg.ir.module import Module
from relax_eg.ir.wellformed import check as check_module

WIDTH, BATCH, LAYERS = 32, 16, 12
AT = {"b": BATCH}
NO_SEARCH = rx.Budget(nodes=0)
Cell = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array]]


def gru(p: Any, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, r = (jax.nn.sigmoid(x @ p[f"w{g}"] + h @ p[f"u{g}"]) for g in "zr")
    h = (1 - z) * h + z * jnp.tanh(x @ p["wh"] + (r * h) @ p["uh"])
    return h, h


def lstm(p: Any, state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    h, c = state
    i, f, g, o = jnp.split(x @ p["w"] + h @ p["u"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def over(cell: Cell, states: int, reverse: bool = False) -> Callable[..., jax.Array]:
    """All outputs of a cell with one state, or with a tuple of several."""

    def run(p: Any, xs: jax.Array) -> jax.Array:
        zero = jnp.zeros((xs.shape[1], WIDTH))
        first = zero if states == 1 else (zero,) * states
        return jax.lax.scan(lambda s, x: cell(p, s, x), first, xs, reverse=reverse)[1]

    return run


def at_the_end(p: Any, xs: jax.Array) -> jax.Array:
    """A loss of the last state, whose loop stacks nothing but residuals."""
    zero = jnp.zeros((xs.shape[1], WIDTH))
    return jnp.mean(jax.lax.scan(lambda s, x: (lstm(p, s, x)[0], None), (zero, zero), xs)[0][0] ** 2)


def layers(ps: Any, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        q, k, v = (x @ p[n] for n in "qkv")
        x = x + jax.nn.softmax(q @ k.transpose(0, 2, 1) / 5) @ v
        return x + jnp.tanh(x @ p["up"]) @ p["down"], None

    return jnp.mean(jax.lax.scan(layer, x, ps)[0] ** 2)


def stacked(ps: Any, xs: jax.Array) -> jax.Array:
    """A loop over layers, each a loop over places."""

    def layer(xs: jax.Array, p: Any) -> tuple[jax.Array, None]:
        return over(gru, 1)(p, xs), None

    return jnp.mean(jax.lax.scan(layer, xs, ps)[0] ** 2)


def trained(w: jax.Array, xs: jax.Array) -> jax.Array:
    """Steps of training, each with the gradient of a loop."""

    def step(w: jax.Array, _: None) -> tuple[jax.Array, None]:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), xs[0], xs)[0] ** 2)

        return w - 0.1 * jax.grad(loss)(w), None

    return jax.lax.scan(step, w, None, length=3)[0]


def added_up(w: jax.Array, xs: jax.Array) -> jax.Array:
    """Each step calls a routine of JAX that no operator is, which computes the same each time."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        total = jax.lax.reduce(jax.lax.stop_gradient(h), -jnp.inf, jnp.logaddexp, (1,))
        return jnp.tanh(h @ w + x) * total[:, None], None

    return jnp.sum(jax.lax.scan(step, xs[0], xs)[0] ** 2)


def of_its_rows(w: jax.Array, h: jax.Array) -> jax.Array:
    """A matrix is whole in each step, and a step reads a row of it."""
    return jnp.sum(jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), h, w)[0] ** 2)


def dropped(w: jax.Array, key: jax.Array, x: jax.Array) -> jax.Array:
    def step(x: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w) * jax.random.bernoulli(k, 0.9, x.shape), None

    return jnp.mean(jax.lax.scan(step, x, jax.random.split(key, 16))[0] ** 2)


MATRIX, WIDE = f"{WIDTH} {WIDTH}", f"{WIDTH} {4 * WIDTH}"
GRU: Any = {f"{side}{gate}": MATRIX for side in "wu" for gate in "zrh"}
LSTM: Any = {"w": WIDE, "u": WIDE}
STACK: Any = {n: f"{LAYERS} {MATRIX}" for n in "qkv"} | {
    "up": f"{LAYERS} {WIDE}",
    "down": f"{LAYERS} {4 * WIDTH} {WIDTH}",
}
STACKED: Any = {n: f"{LAYERS} {s}" for n, s in GRU.items()}
CASES: dict[str, tuple[Callable[..., jax.Array], tuple[Any, ...], int, float]] = {
    # the loss, its arguments, the number of loops, and the share of the bytes as written that is kept
    "gru": (lambda p, xs: jnp.mean(over(gru, 1)(p, xs) ** 2), (GRU, f"48 b {WIDTH}"), 1, 0.35),
    "lstm": (at_the_end, (LSTM, f"64 b {WIDTH}"), 1, 0.25),
    "a prime number of steps": (lambda p, xs: jnp.mean(over(lstm, 2)(p, xs)), (LSTM, f"61 b {WIDTH}"), 1, 0.4),
    "the other way": (lambda p, xs: jnp.mean(over(gru, 1, True)(p, xs)), (GRU, f"47 b {WIDTH}"), 1, 0.5),
    "two loops": (
        lambda p, q, xs: jnp.mean(over(gru, 1)(q, over(lstm, 2)(p, xs)) ** 2), (LSTM, GRU, f"49 b {WIDTH}"), 2, 0.3,
    ),
    "both ways": (
        lambda p, q, xs: jnp.mean(over(lstm, 2)(p, xs) * over(gru, 1, True)(q, xs)),
        (LSTM, GRU, f"48 b {WIDTH}"), 2, 0.3,
    ),
    "layers": (layers, (STACK, f"b 24 {WIDTH}"), 1, 0.25),
    "rows of a matrix": (of_its_rows, (f"{WIDTH} {WIDTH}", f"b {WIDTH}"), 1, 0.6),
    "loops in a loop": (stacked, (STACKED, f"16 b {WIDTH}"), 1, 0.5),
    "a routine of JAX": (added_up, (MATRIX, f"48 b {WIDTH}"), 1, 0.6),
    "dropout": (dropped, (MATRIX, "2 @ uint32", f"b {WIDTH}"), 1, 0.6),
}  # fmt: skip


def step_of(name: str) -> Callable[..., Any]:
    loss, specs, *_ = CASES[name]
    weights = [i for i, s in enumerate(specs) if "uint32" not in s and f" b {WIDTH}" not in s]
    return jax.value_and_grad(loss, weights)


def drawn(specs: Any, n: int = 0) -> Any:
    rng = np.random.default_rng(0)

    def one(spec: str) -> jax.Array:
        if "uint32" in spec:
            return jax.random.PRNGKey(0)
        shape = [{**AT, "n": n}.get(d) or int(d) for d in spec.split()]
        return jnp.asarray(0.2 * rng.standard_normal(shape), jnp.float32)

    return jax.tree.map(one, specs)


def bytes_of(module: Module) -> int:
    return whole_footprint(module, set(), AT, FRUGAL).bytes


def assert_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.max(jnp.abs(b)))), np.abs(a - b).max()


@pytest.mark.parametrize("name", CASES)
def test_loops_in_segments(name: str) -> None:
    """All segments give the results as written, and the best need few of the bytes."""
    _, specs, count, share = CASES[name]
    step = step_of(name)
    module = rx.trace(step, *specs)
    found = Checkpoints(module, AT)
    assert len(found.loops) == count
    args = drawn(specs)
    leaves = jax.tree.leaves(args)
    theirs = jax.tree.leaves(step(*args))
    sizes: list[int] = []
    for ways in found.ways():
        for segments in ways:
            made = found.cut(segments)
            assert made is not None and made != module and made == found.cut(segments)
            check_module(made)
            assert rx.parse(str(made)) == made
            assert_equal(run_at(made, made.main, leaves, AT), theirs)
            sizes.append(bytes_of(made))
    assert min(sizes) <= share * bytes_of(module)


UNARY = (jnp.tanh, jnp.sin, jax.nn.sigmoid, lambda x: x * x / (1 + x * x), lambda x: jnp.where(x > 0, x, 0.1 * x))


@st.composite
def cells(draw: st.DrawFn) -> tuple[Callable[..., jax.Array], tuple[str, ...], int]:
    """A loss of a loop whose step is random, the shapes of its arguments, and the number of steps."""
    steps, carried = draw(st.integers(2, 40)), draw(st.integers(1, 3))
    reverse, unroll = draw(st.booleans()), draw(st.integers(1, 3))
    reads_xs, is_stacked, ends = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    choices = [draw(st.tuples(*[st.integers(0, 11)] * 4)) for _ in range(draw(st.integers(1, 6)))]

    def loss(w: jax.Array, u: jax.Array, first: jax.Array, xs: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, ...], x: jax.Array) -> tuple[tuple[jax.Array, ...], Any]:
            values = [*state, x @ u] if reads_xs else [*state]
            for a, b, kind, f in choices:
                left, right = values[a % len(values)], values[b % len(values)]
                new = (left @ w, left * right, left + right)[kind % 3]
                values.append(UNARY[f % len(UNARY)](new))
            following = tuple(jnp.tanh(v) for v in values[-carried:])
            return (following + state)[: len(state)], values[-1] if is_stacked else None

        last, ys = jax.lax.scan(step, (first,) * carried, xs, reverse=reverse, unroll=unroll)
        total = jnp.sum(jnp.stack(last)) if ends or not is_stacked else jnp.zeros(())
        return total + jnp.sum(jnp.cos(ys)) if is_stacked else total

    return loss, ("5 5", "3 5", "4 5", f"{steps} 4 3"), steps


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(cells())
def test_random_cells(is_known: bool, case: tuple[Callable[..., jax.Array], tuple[str, ...], int]) -> None:
    """Segments of any number of steps, also such as would not be offered, give the results as written, whatever the
    number of steps is where that is not known."""
    loss, specs, steps = case
    specs = specs if is_known else (*specs[:-1], "n 4 3")
    module = rx.trace(jax.value_and_grad(loss, (0, 1, 2, 3)), *specs)
    found = Checkpoints(module, {"n": steps})
    for number in {1, 2, 3, steps // 2, *(s for x in found.loops for s in x.segments)}:
        if found.loops and 1 <= number <= steps // 2:
            made = found.cut(dict.fromkeys(found.loops, number))
            assert made is not None
            check_module(made)
            for n in (steps,) if is_known else (steps, steps + 1, 1):
                leaves, at = jax.tree.leaves(drawn(specs, n)), {} if is_known else {"n": n}
                assert_equal(run_at(made, made.main, leaves, at), run_at(module, module.main, leaves, at))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gru", "the other way"])
def test_the_number_of_steps_need_not_be_known(loss: str) -> None:
    """Segments that need least at some number of steps serve all of them: those left over may be none, or all."""
    specs = (GRU, f"n b {WIDTH}")
    step = step_of(loss)
    module = rx.trace(step, *specs)
    found = Checkpoints(module, {"n": 48, **AT})
    (loop,) = found.loops
    made = found.cut({loop: loop.segments[-1]})
    assert made is not None
    check_module(made)
    for n in (47, 1):
        args, at = drawn(specs, n), {"n": n, **AT}
        assert_equal(run_at(made, made.main, jax.tree.leaves(args), at), jax.tree.leaves(step(*args)))
    written, less = (whole_footprint(m, set(), {"n": 48, **AT}, FRUGAL).bytes for m in (module, made))
    assert less <= 0.4 * written
    best = rx.optimize(module, at={"n": 48, **AT}, memory_limit=written // 2, execution="whole", budget=NO_SEARCH)
    args = drawn(specs, 45)
    assert best.report.rules == {"computed_again": 1}
    assert_equal(best(*jax.tree.leaves(args)), jax.tree.leaves(step(*args)))


def test_gradients_in_the_steps_of_a_loop() -> None:
    """The loop whose steps run again is one in the body of another."""
    specs = (MATRIX, f"48 b {WIDTH}")
    module, args = rx.trace(trained, *specs), drawn(specs)
    found = Checkpoints(module, AT)
    (loop,) = found.loops
    assert loop.function != module.main.name
    made = found.cut({loop: loop.segments[-1]})
    assert made is not None
    check_module(made)
    assert_equal(run_at(made, made.main, jax.tree.leaves(args), AT), [trained(*args)])
    assert bytes_of(made) <= 0.4 * bytes_of(module)


@pytest.mark.parametrize("share", [0.8, 0.5, 0.25])
def test_a_limit_is_kept(share: float) -> None:
    """What is called needs no more than the limit, by XLA's own account."""
    module = rx.trace(step_of("lstm"), *CASES["lstm"][1])
    limit = int(share * bytes_of(module))
    best = rx.optimize(module, at=AT, memory_limit=limit, execution="whole", budget=NO_SEARCH)
    assert best.report.rules == {"computed_again": 1}
    found, row = whole_footprint(best.module, set(), AT, best.compiler_options), best.report.memory
    assert row is not None and found.bytes == row.bytes <= limit
    leaves = jax.tree.leaves(drawn(CASES["lstm"][1]))
    assert_equal(best(*leaves), run_at(module, module.main, leaves, AT))
    said = str(best.explain())
    assert "kept as written\nthe program that runs computes the steps of loops again in segments" in said
    (loop,) = Checkpoints(module, AT).loops
    count, steps = map(int, re.findall(r"64 steps: (\d+) segments of (\d+) steps", said)[0])
    assert count * steps == 64 and steps in loop.segments
    needed, kept = (parse_bytes(x, "said") for x in re.findall(r"about (.*) in place of (.*) of what", said)[0])
    assert re.search(r"`scan` at \S*test_checkpointed.py:\d+ in `at_the_end`", said) and needed < kept


@pytest.mark.slow
def test_the_segments_that_need_least_are_offered_last() -> None:
    """Of two loops what is carried at the starts of all segments exists at once, and the residuals of one segment."""
    module = rx.trace(step_of("two loops"), *CASES["two loops"][1])
    limit = int(0.27 * bytes_of(module))
    best = rx.optimize(module, at=AT, memory_limit=limit, execution="whole", budget=NO_SEARCH)
    assert best.report.rules == {"computed_again": 2}


def test_nothing_is_computed_again_without_the_rule() -> None:
    step, specs = step_of("lstm"), CASES["lstm"][1]
    limit = int(0.25 * bytes_of(rx.trace(step, *specs)))
    rules = rx.rules.default - "computed_again"
    with pytest.raises(ExtractionError, match="memory_limit is"):
        rx.optimize(step, *specs, at=AT, memory_limit=limit, execution="whole", rules=rules, budget=NO_SEARCH)


def test_a_front_has_segments_and_a_bound_that_holds() -> None:
    step, specs = step_of("gru"), CASES["gru"][1]
    front = rx.pareto(step, *specs, at=AT, budget=NO_SEARCH)
    least = front.points[-1]
    assert least.program.report.rules == {"computed_again": 1}
    assert front.bound <= least.bytes <= 0.35 * front.written[0]


def test_loops_that_are_not_computed_again() -> None:
    """Loops over one or no steps, one without residuals, and one whose steps draw other numbers each time."""
    step = step_of("gru")
    assert not Checkpoints(rx.trace(step, GRU, f"n b {WIDTH}"), {"n": 1, **AT}).loops
    assert not Checkpoints(rx.trace(step, GRU, f"0 b {WIDTH}"), AT).loops
    assert not Checkpoints(rx.trace(CASES["gru"][0], *CASES["gru"][1]), AT).loops

    def noisy(w: jax.Array, xs: jax.Array) -> jax.Array:
        def one(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w + x) * jax.lax.rng_uniform(0.0, 1.0, x.shape), None

        return jnp.sum(jax.lax.scan(one, xs[0], xs)[0] ** 2)

    module = rx.trace(jax.value_and_grad(noisy), MATRIX, f"48 {BATCH} {WIDTH}")
    assert str(module).count("call_dps_library") == 1 and str(module).count("R.scan") == 2
    assert not Checkpoints(module, AT).loops
