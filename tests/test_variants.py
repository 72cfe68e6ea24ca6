"""Programs, layouts and XLA's options chosen together, size by size: what is chosen runs, is told and is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.driver.clock import measured
from relax_eg.driver.families import nearest_guards
from relax_eg.extract.profiles.devices import CPU, PROFILES, WITHOUT_YNN
from relax_eg.extract.profiles.devices import nearest_profile as nearest_device
from relax_eg.extract.profiles.profile import AS_USUAL, Profile
from relax_eg.extract.report import MeasuredRow
from relax_eg.reports import CostReport
from relax_eg.shapes import Proved, Scope
from relax_eg.shapes.dispatch import Dispatch
from relax_eg.shapes.guards import prove_partition

SPECS = ({"w": "64 64", "a": "64 4", "b": "4 64"}, "n 64")
SIZES = [{"n": 4}, {"n": 64}, {"n": 256}]
OTHER = "whatever is best compiled the other way"
YNN = {"xla_cpu_experimental_ynn_fusion_type": ""}


def adapted(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ (params["w"] + params["a"] @ params["b"]))


def arguments(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    made = {"w": (64, 64), "a": (64, 4), "b": (4, 64)}
    params = {k: jnp.asarray(rng.standard_normal(s), jnp.float32) for k, s in made.items()}
    return params, jnp.asarray(rng.standard_normal((rows, 64)), jnp.float32)


def decide(monkeypatch: pytest.MonkeyPatch, *labels: str, cuts: int = 0) -> list[list[str]]:
    """The clock, replaced by decisions, one for each binding and for sizes between them, so many between two; returns
    what was offered each time."""
    monkeypatch.setattr(measured, "CUTS", cuts)
    left, offered = list(labels), list[list[str]]()

    def fastest(programs: Mapping[str, tuple[Any, float]], _: Any = None) -> tuple[MeasuredRow, ...]:
        offered.append(list(programs))
        wanted = left.pop(0)
        label = next(n for n in programs if n == wanted or (wanted == OTHER and n.endswith("ynn off")))
        for call, _ in programs.values():
            jax.block_until_ready(call())
        return tuple(MeasuredRow(n, p, 1e-3, 1.0, 1.0, 1.0, n == label) for n, (_, p) in programs.items())

    monkeypatch.setattr(measured, "fastest", fastest)
    return offered


def chosen(monkeypatch: pytest.MonkeyPatch, *labels: str, **options: Any) -> rx.types.Optimized:
    decide(monkeypatch, *labels)
    return rx.optimize(adapted, *SPECS, at=SIZES, weights=("params",), measure=8, **options)


def test_every_size_has_the_variant_that_was_fastest_there(monkeypatch: pytest.MonkeyPatch) -> None:
    best = chosen(monkeypatch, OTHER, "by price", "as written")
    assert [v.guard for v in best.variants] == ["n <= 16", "17 <= n <= 128", "n >= 129"]
    assert [dict(v.compiler_options) for v in best.variants] == [YNN, {}, {}]
    assert [v.report.kept_as_written for v in best.variants] == [False, False, True]
    assert best.compiler_options == best.report.compiler_options == YNN
    assert "compiler options: xla_cpu_experimental_ynn_fusion_type=''" in str(best.report)
    assert CostReport.from_json(best.report.to_json()) == best.report
    for rows in (4, 17, 300):
        params, x = arguments(rows)
        expected = adapted(params, x)
        ready = best.prepare(params)
        for found in (best(params, x), ready(x), jax.jit(best.to_jax())(params, x), jax.jit(best)(params, x)):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
        run = jax.jit(ready.to_jax(), compiler_options=dict(ready.compiler_options))
        np.testing.assert_allclose(run(ready.prepared, x), expected, rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(jax.jit(lambda x, r=ready: r(x))(x), expected, rtol=2e-4, atol=2e-4)
    params, x = arguments(5)
    grad = jax.grad(lambda x: best(params, x).sum())(x)
    np.testing.assert_allclose(grad, jax.grad(lambda x: adapted(params, x).sum())(x), rtol=2e-4, atol=2e-4)
    assert best.check(params, x).passed and str(best.explain())


def test_where_a_variant_begins_is_told_by_sizes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4 and 8 the first variant is the fastest, the second from 11 to 76, from 91 on the program as written."""
    labels = [OTHER, "by price", "as written", "by price", OTHER, "by price", "as written", "as written", "by price"]
    offered = decide(monkeypatch, *labels, cuts=3)
    best = rx.optimize(adapted, *SPECS, at=SIZES, weights=("params",), measure=8)
    assert [v.guard for v in best.variants] == ["n <= 9", "10 <= n <= 83", "n >= 84"]
    assert [v.at for v in best.variants] == [({"n": n},) for n in (4, 64, 256)]
    assert {r.at["n"] for v in best.variants for r in v.report.measured} == {4, 8, 11, 16, 64, 76, 91, 128, 256}
    assert [len(o) for o in offered[3:]] == [3, 3, 3, 2, 2, 2]  # as written, and what is the fastest on either side


def test_variants_of_one_program_share_what_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    best = chosen(monkeypatch, OTHER, "by price", "by price")
    assert [v.guard for v in best.variants] == ["n <= 16", "n >= 17"]
    ready = best.prepare(arguments(1)[0])
    assert all(isinstance(x, jax.Array) for x in ready.prepared)
    other = chosen(monkeypatch, "by price", "by price", "as written").prepare(arguments(1)[0])
    assert [len(x) for x in other.prepared] == [len(ready.prepared), 3]


def test_xla_is_given_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    original = jax.jit

    def jit(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs.get("compiler_options"))
        return original(*args, **kwargs)

    best = chosen(monkeypatch, OTHER, "by price", OTHER)
    monkeypatch.setattr(jax, "jit", jit)
    params, x = arguments(4)
    best(params, x)
    assert [g for g in given if g] == [YNN]
    best(params, x)
    best(*arguments(64))
    assert [g for g in given if g] == [YNN]


def test_decisions_are_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    first = chosen(monkeypatch, "as written", OTHER, "by price")
    decide(monkeypatch)  # nothing is to be timed
    again = rx.optimize(adapted, *SPECS, at=SIZES, weights=("params",), measure=8)
    assert again.report.cached
    for v, w in zip(first.variants, again.variants, strict=True):
        assert (v.guard, dict(v.compiler_options), v.module, v.at) == (
            w.guard,
            dict(w.compiler_options),
            w.module,
            w.at,
        )
        assert replace(w.report, cached=False, seconds=v.report.seconds) == v.report
    plain = replace(CPU, modes=())
    monkeypatch.undo()
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    decide(monkeypatch, "by price", "by price", "by price")
    other = rx.optimize(adapted, *SPECS, at=SIZES, weights=("params",), measure=8, target=plain)
    assert not other.report.cached  # the ways to compile are part of the key


def test_what_is_offered_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = decide(monkeypatch, *3 * ["as written"])
    rx.optimize(adapted, *SPECS, at=SIZES, weights=("params",), measure=3)
    assert all(o[:2] == ["as written", "by price"] and len(o) <= 5 for o in offered)
    assert all(sum(label.endswith(", ynn off") for label in o) == 1 for o in offered)


def slow_by_default() -> Profile:
    """A machine that was measured, where XLA's other way to compile is ten times faster at matmuls."""
    mode = replace(WITHOUT_YNN, changes={"matmul_rate": {"float32": 1e12}, "fork": 0.0})
    return replace(CPU, matmul_rate={"float32": 1e9}, fork=0.0, modes=(mode,), calibrated=True)


def test_without_measuring_a_calibrated_profile_decides_on_options() -> None:
    at = {"n": 64}
    best = rx.optimize(adapted, *SPECS, at=at, weights=("params",), target=slow_by_default())
    assert best.compiler_options == YNN and not best.report.measured
    params, x = arguments(3)
    np.testing.assert_allclose(best(params, x), adapted(params, x), rtol=2e-4, atol=2e-4)
    guessed = rx.optimize(
        adapted, *SPECS, at=at, weights=("params",), target=replace(slow_by_default(), calibrated=False)
    )
    assert guessed.compiler_options == {}
    jitted = rx.jit(adapted, target=slow_by_default())
    jitted(params, x)
    assert jitted.report is not None and jitted.report.compiler_options == {}


def test_a_layout_is_chosen_with_the_options() -> None:
    """Stored output axis first, a weight is the slow one in one mode and the fast one in the other."""

    def layer(w: Any, x: Any) -> Any:
        return x @ w.T

    other = replace(WITHOUT_YNN, changes={"linear_penalty": ((64.0, 4.0),)})
    turned = replace(CPU, linear_penalty=((64.0, 0.25),), modes=(other,))
    for mode, copies in ((AS_USUAL, 0), (other, 1)):
        best = rx.optimize(layer, "256 256", "n 256", at={"n": 8}, weights=("w",), target=turned.in_mode(mode))
        assert best.report.after.prepared_values == copies


def test_which_sizes_a_variant_serves() -> None:
    def guards(*groups: list[dict[str, int]]) -> list[str]:
        return list(map(str, nearest_guards(groups)))

    bindings = [{"b": 1, "s": s} for s in (8, 32, 128)]
    assert guards(bindings) == ["all sizes"]
    assert guards(bindings[:1], bindings[1:]) == ["s <= 16", "s >= 17"]
    assert guards([bindings[0], bindings[2]], [bindings[1]]) == ["s <= 16 or s >= 65", "17 <= s <= 64"]
    both = [{"b": 1, "s": 8}, {"b": 2, "s": 16}]
    assert guards(both[:1], both[1:]) == ["b <= 1", "b >= 2"]
    crossed = [{"b": b, "s": s} for b, s in ((2, 8), (8, 2), (8, 8), (2, 2))]
    found = nearest_guards([crossed[:2], crossed[2:]])
    assert isinstance(prove_partition(found, Scope()), Proved)
    dispatch = Dispatch(found)
    assert [dispatch.index_of(b) for b in crossed] == [0, 0, 1, 1]
    dispatch = Dispatch(nearest_guards([[b] for b in bindings]))
    assert [dispatch.index_of({"b": 3, "s": s}) for s in (1, 16, 17, 64, 65, 9999)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("platform", "kind", "name"),
    [
        ("cpu", "cpu", "cpu"),
        ("gpu", "NVIDIA H200", "h200, uncalibrated"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100, uncalibrated"),
        ("cuda", "NVIDIA A100-SXM4-80GB", "a100, uncalibrated"),
        ("gpu", "NVIDIA GeForce RTX 4090", "rtx4090, uncalibrated"),
        ("gpu", "NVIDIA L4", "a100, the nearest to NVIDIA L4, uncalibrated"),
    ],
)
def test_the_device_of_jax_is_the_default_target(
    platform: str, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nearest_device(platform, kind)
    assert found.name == name and not found.calibrated
    sheet = PROFILES[name.partition(",")[0]]
    assert replace(found, name=sheet.name) == sheet
    monkeypatch.setattr("relax_eg.driver.options.profile_at_hand", lambda: found)
    assert rx.optimize(lambda x: x @ x, "8 8").report.target == name
    assert rx.optimize(lambda x: x @ x, "8 8", target="cpu").report.target == "cpu"
