"""The kernels that XLA's compiler for CPUs is predicted to make, beside those that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.backend.gpu.hlo import launches
from relax_eg.driver.program_ends import traced_program
from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.profiles.devices import CPU
from relax_eg.extract.report import price_program

pytestmark = pytest.mark.xla_defaults

NONE = rx.RuleSet("none")
GRID, ROW = "512 768", "768"


def shared(x: Any, y: Any) -> Any:
    e = jnp.exp(-(x * x))
    return e + y, e * y


def cheap(x: Any, y: Any) -> Any:
    return (x + y) * 2.0, (x + y) * y


def cross_entropy(p: Any, y: Any) -> Any:
    return jnp.sum(y * jnp.log(p) + (1.0 - y) * jnp.log1p(-p), axis=1)


def norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True)) * scale


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.T * 0.125) @ v


def chain(x: Any, y: Any) -> Any:
    for _ in range(4):
        x = jnp.maximum(x * y, 0.5) - y
    return x


HEADS = ("512 64",) * 3
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "one kernel for a chain": (chain, (GRID, GRID)),
    "a dear value with two readers is stored": (shared, (GRID, GRID)),
    "a cheap one is computed twice": (cheap, (GRID, GRID)),
    "arithmetic below a sum": (lambda x, y: jnp.sum(x * y, 0), (GRID, GRID)),
    "several readers in one kernel": (cross_entropy, (GRID, GRID)),
    "a choice below a sum is stored": (lambda x, y: jnp.sum(jnp.where(x > 0, x, y), 0), (GRID, GRID)),
    "a product for two sums is stored": (lambda x, y: (jnp.sum(x * y, 0), jnp.max(x * y, 1)), (GRID, GRID)),
    "a maximum subtracted from its array": (lambda x: jnp.exp(x - jnp.max(x, 1, keepdims=True)), (GRID,)),
    "a scaled one is apart": (lambda x: x - 0.5 * jnp.max(x, 1, keepdims=True), (GRID,)),
    "softmax": (lambda x: jax.nn.softmax(x), (GRID,)),
    "norm": (norm, (GRID, ROW)),
    "attention": (attention, HEADS),
    "arithmetic before a matmul is stored": (lambda x, w: jnp.exp(x) @ w, (GRID, "768 256")),
    "arithmetic after it": (lambda x, w, b: jnp.tanh(x @ w + b), (GRID, "768 256", "256")),
    "a sum of a matmul": (lambda x, w: jnp.sum(x @ w, 1), (GRID, "768 256")),
    "a transposed left operand": (lambda x, w: x.T @ w, (GRID, "512 256")),
    "one matrix with several": (lambda w, x: w @ x, ("48 512", "4 512 768")),
    "a small sum": (lambda x: jnp.sum(x), ("40",)),
    "a sum of sums": (lambda x: jnp.sum(jnp.sum(x * x, 1)), (GRID,)),
    "a small sum of sums": (lambda x: jnp.sum(jnp.sum(x * x, 1)), ("128 10",)),
    "a maximum of maxima": (lambda x: jnp.max(jnp.max(jnp.exp(x), 1)), (GRID,)),
    "a sum of maxima": (lambda x: jnp.sum(jnp.max(jnp.exp(x), 1)), (GRID,)),
    "a sum over axes of few elements": (lambda x: jnp.sum(x), ("16 10",)),
    "small sums of rows": (lambda x: jnp.sum(x * x, 1), ("128 10",)),
    "a small sum over two axes": (lambda x: jnp.sum(x), ("40 50",)),
    "a sum in three steps": (lambda x: jnp.sum(x), ("2800",)),
    "a reciprocal for many": (lambda x, d: x / d[:, None], (GRID, "512")),
    "parts one after the other": (lambda x, y: jnp.concatenate([jnp.exp(x), y + 1.0]) * 0.5, (GRID, GRID)),
    "parts beside each other": (lambda x, y: jnp.concatenate([jnp.exp(x), y + 1.0], 1) * 0.5, (GRID, GRID)),
    "nine parts": (lambda x: jnp.stack([x * (i + 2.0) for i in range(9)]), (GRID,)),
    "a dear value that is repeated on the way": (lambda x, m: x * (jnp.exp(m) * 2.0 + 1.0)[:, None], (GRID, "512")),
    "a dear value of which parts overlap": (lambda x: (e := jnp.exp(x))[1:] * e[:-1], (GRID,)),
    "a dear value of which parts do not overlap": (lambda x: (e := jnp.exp(x))[:, :384] * e[:, 384:], (GRID,)),
    "a dear value and its transpose": (lambda x: (e := jnp.exp(x)) * e.T, ("512 512",)),
    "a dear value and its neighbours": (lambda x: (e := jnp.exp(x)) * jnp.roll(e, 1, 1), ("512 512",)),
    "reordered axes": (lambda x, y: x.transpose(0, 2, 1) + y, ("4 512 64", "4 64 512")),
}


def kernels(fn: Callable[..., Any], *specs: str) -> tuple[int, int, int, int]:
    """Launches and bytes: predicted, and compiled."""
    module = traced_program(fn, specs).module
    cost = price_program(module.main, WholeCost(CPU, {}, {f.name: f for f in module}))
    shapes = [jax.ShapeDtypeStruct(tuple(map(int, s.split())), jnp.float32) for s in specs]
    made = launches(jax.jit(fn).lower(*shapes).compile().as_text() or "")
    return cost.launches, cost.bytes, sum(k.times for k in made), sum(k.times * k.bytes for k in made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_launches_and_bytes_are_those_that_xla_compiles(name: str) -> None:
    fn, specs = PROGRAMS[name]
    launched, moved, made, compiled = kernels(fn, *specs)
    assert launched == made
    assert moved == pytest.approx(compiled, rel=0.01, abs=1024)


def seconds(fn: Callable[..., Any], *specs: str) -> float:
    return rx.optimize(fn, *specs, rules=NONE, target=CPU).report.before.seconds


def test_a_chain_costs_one_pass() -> None:
    fast = replace(CPU, vector_rate=1e15)
    one = rx.optimize(lambda x, y: x + y, "2048 2048", "2048 2048", rules=NONE, target=fast).report.before.seconds
    many = rx.optimize(chain, "2048 2048", "2048 2048", rules=NONE, target=fast).report.before.seconds
    assert many == pytest.approx(one, rel=0.01)


def test_a_part_of_a_chain_costs_its_part() -> None:
    whole = seconds(lambda x: jnp.exp(x * x + 1.0), "2048 2048")
    part = seconds(lambda x: jnp.exp(x * x + 1.0)[:, :8], "2048 2048")
    before = seconds(lambda x: jnp.exp(x[:, :8] * x[:, :8] + 1.0), "2048 8")
    assert part < whole / 100
    assert part == pytest.approx(before, rel=0.2)


def test_a_transpose_over_many_pages_takes_longer() -> None:
    near, far = (seconds(lambda x: x.T + 1.0, f"{n} {n}") / n**2 for n in (1024, 4096))
    assert far > 1.5 * near


def test_values_hoisted_out_of_a_loop_are_stored() -> None:
    def looped(w: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 64, lambda i, x: x * jnp.exp(w), x)

    once, each = seconds(looped, "512 512", "512 512"), seconds(lambda w, x: x * jnp.exp(w), "512 512", "512 512")
    assert once < 40 * each


def test_a_loop_that_reads_its_slice_at_several_places_runs_one_element_at_a_time() -> None:
    def looped(read: Callable[[Any], Any]) -> float:
        return seconds(lambda xs, h: jax.lax.scan(lambda h, x: (jnp.tanh(read(x) + h), None), h, xs)[0],
                       "50 64 256", "64 128")  # fmt: skip

    once = looped(lambda x: x[:, :128])
    assert looped(lambda x: x[:, :128] * x[:, 128:]) > 3 * once
    assert looped(lambda x: x[:, :128] * x[:, :128]) < 1.5 * once


def anew(fn: Callable[..., Any], *specs: str) -> dict[str, tuple[str, ...]]:
    """By operator, the values that it computes again, each by its operator; and what is not stored."""
    module = traced_program(fn, specs).module
    nodes = list(walk(module.main, WholeCost(CPU, {}, {})))
    assert all(v.place is not None for v in nodes)
    found = {v.node.op: tuple(s.op for s in v.place.anew) for v in nodes if v.place is not None and v.place.anew}
    return found | {"inside": tuple(v.node.op for v in nodes if v.place is not None and not v.place.stored)}


def test_loops_compute_cheap_values_again_that_are_stored_for_others() -> None:
    def scaled(x: Any, w: Any, y: Any) -> Any:
        h = jnp.maximum(x * 2.0, 0.5)
        return h @ w, h - y

    assert anew(scaled, GRID, "768 256", GRID)["subtract"] == ("maximum",)
    of_two = anew(
        lambda x, w, y: ((h := x + y) @ w, h * 0.5), GRID, "768 256", GRID
    )  # two arrays would be read for one
    of_dear = anew(lambda x, w, y: ((h := jnp.exp(x)) @ w, h - y), GRID, "768 256", GRID)
    assert {*of_two} == {*of_dear} == {"inside"}


@pytest.mark.parametrize(("order", "copies"), [("NHWC", False), ("CHWN", True)])
def test_convolutions_compute_cheap_values_while_they_copy_them(order: str, copies: bool) -> None:
    kernel = "HWIO" if order == "NHWC" else "IHWO"

    def convolved(x: Any, w: Any) -> Any:
        h = jnp.maximum(x * 2.0, 0.5)
        return jax.lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=(order, kernel, "NHWC"))

    sizes = dict(zip("NHWCIO", (2, 16, 16, 8, 8, 32), strict=True))
    found = anew(convolved, *(" ".join(str(sizes[c]) for c in names) for names in (order, kernel)))
    assert ("maximum" in found["inside"]) is copies
