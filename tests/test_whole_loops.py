"""Whole programs in loops over pieces of a dimension, such as training steps over micro-batches: found without an
e-graph, so that a large program keeps a limit soon."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.accounting import FRUGAL
from relax_eg.backend.footprint import kernel_footprint, whole_footprint
from relax_eg.backend.lowering.lower import run_at
from relax_eg.byte_units import format_bytes, parse_bytes
from relax_eg.driver.limits import compiled_bytes
from relax_eg.driver.limits.fissioned import Fissions
from relax_eg.errors import ExtractionError
from relax_eg.ir.wellformed import check as check_module

RULE = "accumulated_over_pieces"
LAYERS, WIDTH, BATCH, PLACES = 6, 32, 16, 24
NO_SEARCH = rx.Budget(nodes=0)


def block(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), q @ k.transpose(0, 2, 1) / 5, -1e9)
    x = x + jax.nn.softmax(scores) @ v
    mean = jnp.mean(x, -1, keepdims=True)
    return x + jnp.tanh((x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) @ p["up"]) @ p["down"]


def loss(ps: Any, words: jax.Array, ids: jax.Array) -> jax.Array:
    x = words[ids[:, :-1]]
    for p in ps:
        x = block(p, x)
    picked = jnp.take_along_axis(jax.nn.log_softmax(x @ words.T), ids[:, 1:, None], axis=-1)
    return -jnp.mean(picked)


STEP = jax.value_and_grad(loss, (0, 1))
_LAYER = {name: f"{WIDTH} {WIDTH}" for name in "qkv"} | {"up": f"{WIDTH} {4 * WIDTH}", "down": f"{4 * WIDTH} {WIDTH}"}


def specs(batch: Any = BATCH, layers: int = LAYERS) -> tuple[Any, ...]:
    return [_LAYER] * layers, f"64 {WIDTH}", f"{batch} {PLACES + 1} @ int32"


def arguments(batch: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(batch)

    def drawn(spec: str) -> jax.Array:
        shape = [int(d) for d in spec.split()]
        return jnp.asarray(0.1 * rng.standard_normal(shape), jnp.float32)

    ids = jnp.asarray(rng.integers(0, 64, (batch, PLACES + 1)), jnp.int32)
    return [{k: drawn(s) for k, s in _LAYER.items()} for _ in range(LAYERS)], drawn(f"64 {WIDTH}"), ids


def assert_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3 * float(jnp.max(jnp.abs(b))))


def bytes_as_written(layers: int = LAYERS) -> int:
    return whole_footprint(rx.trace(STEP, *specs(layers=layers)), set(), {}, FRUGAL).bytes


@pytest.mark.parametrize(("batch", "at"), [(BATCH, {}), ("n", {"n": BATCH}), ("n", {"n": 7})])
def test_a_step_is_cut_along_its_batch(batch: Any, at: dict[str, int]) -> None:
    """Every number of pieces gives the results as written, at sizes that it divides and at others, in less memory."""
    module = rx.trace(STEP, *specs(batch))
    found = Fissions(module, at)
    (region, *_) = found.regions
    count = at.get("n", BATCH)
    assert str(region.extent) == str(batch)
    assert found.counts(region)[0] == 2 and found.counts(region)[-1] == count
    args = arguments(count)
    leaves = [jnp.asarray(a) for a in jax.tree.leaves(args)]
    before = whole_footprint(module, set(), at, FRUGAL).bytes
    sizes: list[int] = []
    for pieces in found.counts(region):
        made = found.cut(region, pieces)
        assert made is not None and found.cut(region, pieces) is made
        check_module(made)
        assert "R.scan" in str(made)
        assert_equal(run_at(made, made.main, leaves, at), jax.tree.leaves(STEP(*args)))
        sizes.append(whole_footprint(made, set(), at, FRUGAL).bytes)
    assert sizes[-1] < 0.7 * before and sizes[-1] <= min(sizes)


def test_a_step_with_enlarged_images_is_cut_along_its_batch() -> None:
    """The gradient of enlarging by the nearest adds rows of all images at once."""

    def of_images(w: jax.Array, images: jax.Array) -> jax.Array:
        x = jax.nn.relu(jax.lax.conv_general_dilated(images, w, (2, 2), "SAME"))
        x = jax.image.resize(x, (*x.shape[:2], 16, 16), "nearest")
        return jnp.mean((jax.lax.conv_general_dilated(x, w[:3], (1, 1), "SAME") - images) ** 2)

    step = jax.value_and_grad(of_images)
    module = rx.trace(step, "3 3 3 3", "8 3 16 16")
    assert "R.scatter" in str(module)
    found = Fissions(module, {})
    region = next(r for r in found.regions if r.extent == 8)
    assert not any(x.op == "scatter" for x in region.outputs)
    assert sum(x.op == "scatter" for x in region.dimensions) == sum(
        x.op == "scatter" for x in module.main.expressions()
    )
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((3, 3, 3, 3), (8, 3, 16, 16))]
    for pieces in (2, 8):
        made = found.cut(region, pieces)
        assert made is not None
        assert_equal(run_at(made, made.main, args, {}), jax.tree.leaves(step(*args)))


def test_a_step_keeps_a_limit_without_any_search() -> None:
    """A loop that no e-graph has is a program like others: it is named by its rule, compiled, and kept in the cache."""
    limit = int(0.6 * bytes_as_written())
    rules = rx.rules.default - "computed_again"
    best = rx.optimize(STEP, *specs(), memory_limit=limit, budget=NO_SEARCH, rules=rules)
    assert best.report.memory is not None and best.report.memory.bytes <= limit and RULE in best.report.rules
    args = arguments(BATCH)
    assert_equal(best(*args), STEP(*args))


def small(ws: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


@pytest.mark.parametrize(
    ("rows", "at"), [("128", {}), ("100", {}), pytest.param("n", {"n": 128}, marks=pytest.mark.slow)]
)
def test_a_program_in_a_loop_has_a_derivation(rows: str, at: dict[str, int]) -> None:
    """No search records its steps, which are proved, whether or not the pieces divide the rows; and a certificate."""
    step, given = jax.value_and_grad(small), (["16 16"] * 2, f"{rows} 16", f"{rows} 16")
    limit = int(0.6 * whole_footprint(rx.trace(step, *given), set(), at, FRUGAL).bytes)
    rules = rx.rules.default - "computed_again"
    best = rx.optimize(step, *given, at=at or None, memory_limit=limit, budget=NO_SEARCH, rules=rules)
    assert set(best.report.rules) == {RULE} and "R.scan" in str(best.module)
    told = str(best.explain())
    assert told.count("proved for these shapes and for all values") == 3
    assert best.certificate().verify(rx.rules.default)


def test_in_kernels_a_loop_is_one_of_them() -> None:
    """The limit is below what the kernels as written need, and a loop over pieces is an executable of its own."""
    step, given = jax.value_and_grad(small), (["16 16"] * 2, "256 16", "256 16")
    module = rx.trace(step, *given)
    limit = int(0.3 * kernel_footprint(module, set(), {}, FRUGAL).footprint.bytes)
    best: Any = rx.optimize(module, memory_limit=limit, execution="kernels", budget=NO_SEARCH)
    row = best.report.memory
    found = kernel_footprint(best.module, set(), {}, best.compiler_options).footprint
    assert row is not None and found.bytes == row.bytes <= limit and set(best.report.rules) == {RULE}
    assert [k.op for k in best.runner.kernels()].count("scan") == 1 and "permute_dims" not in str(best.module.main)
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((16, 16), (16, 16), (256, 16), (256, 16))]
    assert_equal(best(*args), step(args[:2], *args[2:]))
    assert str(best.explain()).count("proved for these shapes and for all values") == 3


def test_a_bound_counts_loops_that_no_e_graph_has() -> None:
    """Without them a matmul and its operand would count whole."""
    step, given = jax.value_and_grad(small), (["16 16"] * 2, "256 16", "256 16")
    rules = rx.rules.default - "computed_again"
    with pytest.raises(ExtractionError) as e:
        rx.optimize(step, *given, memory_limit=1024, budget=NO_SEARCH, rules=rules)
    named = re.search(r"no program.* needs less than (.*?):(?s:.*)accepted: memory_limit=(\d+)", str(e.value))
    assert named is not None and parse_bytes(named[1], "bound") <= int(named[2])


def shared_loss(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(x @ a + x @ b) ** 2)


def test_a_program_that_rules_changed_and_then_loops_has_a_derivation() -> None:
    """The search is repeated, and the loops that no e-graph has follow what it found; and a certificate."""
    step, given = jax.value_and_grad(shared_loss, (0, 1)), ("16 16", "16 16", "256 16")
    limit = int(0.35 * whole_footprint(rx.trace(step, *given), set(), {}, FRUGAL).bytes)
    rules = rx.rules.default - "computed_again"
    best = rx.optimize(step, *given, memory_limit=limit, rules=rules)
    assert RULE in best.report.rules and len(best.report.rules) > 1
    told = best.explain()
    assert RULE in {line.rule for line in told.steps} and len({line.rule for line in told.steps}) > 1
    assert "proved for these shapes and for all values" in str(told)
    assert told.derivation.chosen.main == best.module.main and best.certificate().verify(rx.rules.default)


def test_a_program_in_a_stated_order_has_the_derivation_of_the_program_without_it() -> None:
    def deep(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    step, given = jax.grad(deep), (["16 16"] * 6, "256 16")
    limit = int(0.6 * whole_footprint(rx.trace(step, *given), set(), {}, FRUGAL).bytes)
    rules = rx.rules.default - RULE - "computed_in_pieces"
    best = rx.optimize(step, *given, memory_limit=limit, rules=rules)
    assert "computed_again" in best.report.rules
    told = str(best.explain())
    assert "in a stated order" in told and "without `after`, which is the identity, it is the program above" in told
    assert best.certificate().verify(rx.rules.default)


@pytest.mark.slow
def test_what_is_predicted_far_over_the_limit_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a loop is within the limit, the program as written is predicted, and the report says so."""
    batch = 8 * BATCH
    module = rx.trace(STEP, *specs(batch))
    limit = whole_footprint(module, set(), {}, FRUGAL).bytes // 4
    compiled: list[rx.types.Module] = []

    def counted(module: rx.types.Module, *args: Any) -> Any:
        compiled.append(module)
        return whole_footprint(module, *args)

    monkeypatch.setattr(compiled_bytes, "whole_footprint", counted)
    rules = rx.rules.default - "computed_again"
    row = rx.optimize(STEP, *specs(batch), memory_limit=limit, budget=NO_SEARCH, rules=rules).report.memory
    assert row is not None and row.bytes <= limit < row.without // 2 and row.is_predicted
    assert f"without a limit {format_bytes(row.without)} (predicted)" in str(row)
    assert compiled and all("R.scan" in str(m) for m in compiled)


@pytest.mark.slow
def test_an_interrupted_search_has_a_program_within_the_limit() -> None:
    """A loop is found before rules are applied."""

    def stop(stage: str, *_: Any) -> None:
        if stage == "annotate":
            raise KeyboardInterrupt

    limit = int(0.6 * bytes_as_written(layers=2))
    with rx.debug.options(progress=stop):
        best = rx.optimize(STEP, *specs(layers=2), memory_limit=limit)
    assert best.report.memory is not None and best.report.memory.bytes <= limit and RULE in best.report.rules


@pytest.mark.slow
def test_a_front_has_loops_of_several_numbers_of_pieces() -> None:
    front = rx.pareto(STEP, *specs(), budget=NO_SEARCH)
    assert sum(RULE in p.program.report.rules for p in front.points) > 1
    assert front.points[-1].bytes < 0.6 * front.written[0]


@pytest.mark.parametrize(
    "options", [{"numerics": "exact"}, pytest.param({"rules": rx.rules.default - RULE}, marks=pytest.mark.slow)]
)
def test_a_loop_needs_its_rule(options: dict[str, Any]) -> None:
    limit = int(0.6 * bytes_as_written())
    try:
        best = rx.optimize(STEP, *specs(), memory_limit=limit, budget=NO_SEARCH, **options)
    except ExtractionError:
        return
    assert RULE not in best.report.rules and "R.scan" not in str(best.module)
