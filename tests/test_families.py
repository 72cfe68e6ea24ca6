"""Families: several programs, each for the sizes it is best at, with guards that are proved to cover the bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from benchmarks.families import CASES, lora, run
from relax_eg.backend.kernels import InKernels
from relax_eg.driver.families import levels
from relax_eg.driver.options import read_options
from relax_eg.driver.prices import call_seconds, price_at, seconds_at
from relax_eg.driver.program_ends import traced_program
from relax_eg.errors import BoundsError
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.profiles.devices import CPU, WITHOUT_YNN
from relax_eg.ops import counts
from relax_eg.reports import CostReport
from relax_eg.shapes import Dim, Proved
from relax_eg.shapes.guards import Guard, prove_partition

LORA = CASES["lora"].specs
BOUNDS = {"n": (1, 4096)}


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]


def arguments(n: int) -> list[Any]:
    return arrays((768, 768), (768, 8), (8, 768), (n, 768), seed=n)


@pytest.fixture(scope="module")
def adapted() -> rx.types.Optimized:
    return rx.optimize(lora, *LORA, bounds=BOUNDS, target="cpu")


def serving(best: rx.types.Optimized, sizes: Mapping[str, int]) -> int:
    (found,) = [i for i, v in enumerate(best.variants) if Guard.read(v.guard).holds(sizes)]
    return found


def test_an_adapter_is_merged_where_that_is_cheaper(adapted: rx.types.Optimized) -> None:
    few, many = adapted.variants[serving(adapted, {"n": 4})], adapted.variants[serving(adapted, {"n": 4096})]
    assert few.report.rules == {"same_sum_of_products": 4} and many.report.kept_as_written
    assert few.guard.startswith("n <= ") and many.guard.startswith("n >= ")
    assert [v.fallback for v in adapted.variants].count(True) == 1
    for n in (1, 5, 4000):
        args = arguments(n)
        for call in (adapted, jax.jit(adapted.to_jax()), jax.jit(adapted)):
            np.testing.assert_allclose(call(*args), lora(*args), rtol=2e-3, atol=2e-3)
        assert adapted.check(*args).passed
    args = arguments(6)
    grads = [jax.grad(lambda x, f=f: f(*args[:3], x).sum())(args[3]) for f in (adapted, lora)]
    np.testing.assert_allclose(*grads, rtol=2e-3, atol=2e-3)
    assert "same_sum_of_products" in str(adapted.explain())


def test_the_program_that_runs_is_the_one_of_the_guard(adapted: rx.types.Optimized) -> None:
    merged = [str(jax.make_jaxpr(adapted.to_jax())(*arguments(n))).count("dot_general") for n in (4, 4000)]
    assert merged == [3, 2]


def test_symbolic_sizes_have_the_fallback(adapted: rx.types.Optimized) -> None:
    (n,) = jax.export.symbolic_shape("n", constraints=["n <= 4096"])
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments(1)[:3]]
    exported = jax.export.export(jax.jit(adapted.to_jax()))(*specs, jax.ShapeDtypeStruct((n, 768), jnp.float32))
    for size in (3, 3000):
        args = arguments(size)
        np.testing.assert_allclose(exported.call(*args), lora(*args), rtol=2e-3, atol=2e-3)


def test_what_the_report_tells(adapted: rx.types.Optimized) -> None:
    report = adapted.report
    assert report.family is not None and report.family.cover.startswith("proved") and report.family.regret <= 0.02
    assert [v.guard for v in report.variants] == [v.guard for v in adapted.variants]
    assert math.isclose(sum(v.share for v in report.variants), 1.0)
    (curve,) = report.curves
    assert curve.variable == "n" and curve.sizes[0] == 1 and curve.sizes[-1] == 4096
    assert [s.label for s in curve.series] == ["variant 1", "variant 2", "as written"]
    (crossover,) = curve.crossovers
    before, after = (serving(adapted, {"n": crossover.size + d}) for d in (-1, 0))
    assert (crossover.before, crossover.after) == (f"variant {before + 1}", f"variant {after + 1}") and before != after
    assert CostReport.from_json(report.to_json()) == report
    text = str(report)
    assert "family of 2 variants" in text and f"{adapted.variants[0].guard}: same_sum_of_products" in text


def test_cost_at_many_sizes_is_the_cost_at_each(adapted: rx.types.Optimized) -> None:
    for v in adapted.variants:
        for side, cost in (("before", v.report.before), ("after", v.report.after)):
            told = v.report.expressions[side]
            got = [Dim.of(told[k]).evaluate(v.report.at) for k in ("flops", "bytes", "launches")]
            assert got == [cost.flops, cost.bytes, cost.launches]


def scanned(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=5)


def looped(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)


def branched(p: Any, x: Any) -> Any:
    return jax.lax.cond(p, lambda x: x @ x, lambda x: jnp.sort(x) + 1, x)


def imaged(x: Any, k: Any) -> Any:
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def padded(x: Any) -> Any:
    return jnp.pad(x[: x.shape[0] // 2], ((1, 2), (0, 0))).sum(0)


PROGRAMS = {
    "scan": (scanned, ("n n", "n n")),
    "while": (looped, ("n m",)),
    "cond": (branched, ("@ bool", "n n")),
    "conv": (imaged, ("n 3 m m", "8 3 3 3")),
    "halves": (padded, ("n m",)),
    "solve": (lambda a, b: jnp.linalg.solve(a, b), ("n n", "n m")),
    "softmax": (lambda x, w: jax.nn.softmax(x @ w.T), ("n 8", "m 8")),
}


class PerByte:
    """A cost model of somebody else."""

    profile = "cpu"

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        assert all(isinstance(n, int) for n in sizes.values())
        moved = counts(site).bytes_read.evaluate({**dict.fromkeys("nm", 1), **sizes})
        return NodeCost(1, int(moved), 1, moved * 1e-9)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", ["whole", "kernels", "h100", "model"])
def test_columns_of_sizes_cost_what_each_does(name: str, how: str) -> None:
    fn, specs = PROGRAMS[name]
    traced = traced_program(fn, specs)
    kind, target = ("kernels", "cpu") if how == "kernels" else ("whole", "h100" if how == "h100" else "cpu")
    options = read_options(traced, target=PerByte() if how == "model" else target, execution=kind)
    names = options.bindings[0]
    points = [{v: size + 3 * i for i, v in enumerate(names)} for size in (2, 3, 9, 32, 130, 700)]
    columns = {v: np.array([p[v] for p in points]) for v in names}
    each = [call_seconds(price_at(traced.module, options, p), options) for p in points]
    # XLA's kernels are those at the largest sizes: at others a launch or a call of a library may be more or less, and
    # XLA for CPUs makes one kernel of the whole loop at the smallest two.
    rtol = {"h100": {"scan": 0.3, "while": 0.15, "cond": 0.15}, "kernels": {"scan": 0.45, "while": 0.55}}
    rtol["whole"] = rtol["kernels"] | {"softmax": 0.2, "halves": 0.05}
    tolerance = rtol.get(how, {}).get(name, 1e-9)
    np.testing.assert_allclose(seconds_at(traced.module, options, columns), each, rtol=tolerance)


@pytest.mark.parametrize(("name", "most"), [("chain", 14), ("attention", 10), ("rows", 10), ("llama", 5)])
def test_the_variant_is_as_good_as_a_program_for_that_size_alone(name: str, most: int) -> None:
    """At sizes that the family was not made from; the benchmark has 200 of them."""
    found = run(name, most, "cpu", 0, 0.0)
    assert max(found.regrets) <= 0.02
    assert 1 <= len(found.guards) <= 6 and found.cover.startswith("proved")
    assert len(found.points) == most and set(found.points[0].at) == set(CASES[name].bounds)


def test_three_sizes_are_told_apart_by_what_they_multiply_to() -> None:
    best = rx.optimize(CASES["chain"].fn, *CASES["chain"].specs, bounds=CASES["chain"].bounds, target="cpu")
    assert 2 <= len(best.variants) <= 6
    for a, b, c in ((3, 500, 20), (200, 2, 90), (40, 41, 42)):
        args = arrays((512, a), (a, b), (b, c), (c, 64))
        np.testing.assert_allclose(best(*args), CASES["chain"].fn(*args), rtol=2e-3, atol=2e-2 * math.sqrt(a * b * c))


def adapter(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ (params["w"] + params["a"] @ params["b"]))


WEIGHTS = {"w": "256 256", "a": "256 4", "b": "4 256"}


def test_variants_share_what_is_prepared() -> None:
    """A layout that pays at few rows only, over the same merged weight."""
    slow = replace(CPU, linear_penalty=((64.0, 0.25), (5000.0, 4.0)))
    best = rx.optimize(adapter, WEIGHTS, "n 256", bounds={"n": (1, 4096)}, weights=("params",), target=slow)
    first, last = (best.variants[serving(best, {"n": n})] for n in (2, 4000))
    assert "weight_stored_transposed" in first.report.rules and first.module != last.module
    params = dict(zip(WEIGHTS, arrays((256, 256), (256, 4), (4, 256)), strict=True))
    ready = best.prepare(params)
    assert best.report.family is not None
    held = {id(x): x for part in ready.prepared for x in part}
    assert sum(x.nbytes for x in held.values()) >= best.report.family.prepared_bytes
    for n in (3, 900):
        (x,) = arrays((n, 256), seed=n)
        for found in (best(params, x), ready(x)):
            np.testing.assert_allclose(found, adapter(params, x), rtol=2e-3, atol=2e-3)


def test_what_all_variants_prepare_is_limited() -> None:
    """Each layout by itself may be prepared, both beside the merged weight may not."""
    for name in ("llama", "rows"):
        case = CASES[name]
        best = rx.optimize(case.fn, *case.specs, bounds=case.bounds, weights=case.weights, target="cpu")
        traced = traced_program(case.fn, case.specs)
        held = [x.annotation.shape or () for x in traced.leaves if x.argument == case.weights[0]]
        limit = 1.5 * sum(4 * math.prod(d.value for d in shape) for shape in held)
        assert best.report.family is not None and best.report.family.prepared_bytes <= limit


def test_a_family_of_compiler_options() -> None:
    fast = replace(WITHOUT_YNN, changes={"matmul_half": (400.0, 8.0, 16.0), "matmul_rate": {"float32": 9e11}})
    target = replace(CPU, modes=(fast,), calibrated=True, fork=0.0)
    best = rx.optimize(adapter, WEIGHTS, "n 256", bounds={"n": (1, 4096)}, weights=("params",), target=target)
    first, last = (best.variants[serving(best, {"n": n})] for n in (2, 4096))
    assert not first.compiler_options and last.compiler_options == dict(WITHOUT_YNN.options)
    params = dict(zip(WEIGHTS, arrays((256, 256), (256, 4), (4, 256)), strict=True))
    for n in (2, 4096):
        (x,) = arrays((n, 256), seed=n)
        np.testing.assert_allclose(best(params, x), adapter(params, x), rtol=2e-3, atol=2e-3)


def test_a_saved_family_serves_the_same_sizes(adapted: rx.types.Optimized, tmp_path: Path) -> None:
    adapted.save(tmp_path / "lora.rxe")
    loaded = rx.load(tmp_path / "lora.rxe")
    assert [(v.guard, v.fallback, v.module) for v in loaded.variants] == [
        (v.guard, v.fallback, v.module) for v in adapted.variants
    ]
    assert loaded.report == adapted.report
    for n in (4, 4000):
        np.testing.assert_allclose(loaded(*arguments(n)), lora(*arguments(n)), rtol=2e-3, atol=2e-3)


def test_a_family_from_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    first, again = (rx.optimize(lora, *LORA, bounds=BOUNDS, target="cpu") for _ in range(2))
    assert again.report.cached and not first.report.cached
    assert [(v.guard, v.fallback, v.at, v.module) for v in first.variants] == [
        (v.guard, v.fallback, v.at, v.module) for v in again.variants
    ]


def test_several_bindings_and_their_variants() -> None:
    at = [{"n": 4000}, {"n": 2}]
    best = rx.optimize(lora, *LORA, at=at, bounds=BOUNDS, target="cpu")
    assert best.report.at == {"n": 4000} and best.report.kept_as_written and best.module == best.variants[0].module
    assert [v.at for v in best.variants] == [({"n": 4000},), ({"n": 2},)]
    assert len(rx.optimize(lora, *LORA, at={"n": 2}, bounds=BOUNDS).variants) == 1
    assert len(rx.optimize(lora, *LORA, at=at).variants) == 1
    assert rx.optimize(lora, *LORA, bounds={"n": 64}).variants[0].guard == "all sizes"


def test_in_kernels() -> None:
    best = rx.optimize(lora, *LORA, bounds=BOUNDS, target="cpu", execution="kernels")
    assert isinstance(best, InKernels) and len(best.variants) >= 2
    for n in (4, 4000):
        np.testing.assert_allclose(best(*arguments(n)), lora(*arguments(n)), rtol=2e-3, atol=2e-3)
    assert len({r.module for r in best.runners.values()}) == len(best.variants)


def test_sizes_that_are_assumed_to_be_multiples() -> None:
    best = rx.optimize(lora, *LORA, bounds=[BOUNDS, "n % 8 == 0"], target="cpu")
    assert len(best.variants) == 2 and best.report.family is not None
    np.testing.assert_allclose(best(*arguments(16)), lora(*arguments(16)), rtol=2e-3, atol=2e-3)
    assert all(v.at["n"] % 8 == 0 for v in best.report.variants)


class OfWholeBlocks:
    """A device that is fast where a product of matrices has rows in eights."""

    def price(self, site: Any, result: Any, sizes: Mapping[str, int]) -> NodeCost:
        done = counts(site)
        flops, moved = (int(d.evaluate(sizes)) for d in (done.flops, done.bytes_read))
        slow = site.op in ("matmul", "linear") and site.shape(0)[0].evaluate(sizes) % 8 != 0
        return NodeCost(flops, moved, 1, (50.0 if slow else 1.0) * flops * 1e-9 + 1e-7)


def pooled_lora(w: Any, a: Any, b: Any, x: Any) -> Any:
    """The rows of `lora`, and the means of each eight of them."""
    rows, eights = lora(w, a, b, x), x.shape[0] // 8
    return rows, rows[: 8 * eights].reshape(eights, 8, rows.shape[1]).mean(1)


def test_sizes_are_told_apart_by_what_the_program_divides_them_by() -> None:
    """`x @ (w + a @ b)` has one product with n rows, `x @ w + x @ a @ b` has two and a short one."""
    best = rx.optimize(pooled_lora, *LORA, bounds={"n": (8, 512)}, target=OfWholeBlocks())
    assert any("n%8 == 0" in v.guard for v in best.variants), [v.guard for v in best.variants]
    assert serving(best, {"n": 64}) != serving(best, {"n": 63})
    assert best.report.family is not None and best.report.family.cover.startswith("proved")
    for n in (63, 64):
        for got, wanted in zip(best(*arguments(n)), pooled_lora(*arguments(n)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3)
    plain = rx.optimize(lora, *LORA, bounds={"n": (8, 512)}, target=OfWholeBlocks())  # no eights in it
    assert not any("%" in v.guard for v in plain.variants)


def test_sizes_without_an_upper_bound() -> None:
    best = rx.optimize(lora, *LORA, bounds={"n": (1, None)}, target="cpu")
    assert best.variants[1].guard.startswith("n >= ")
    guards = [Guard.read(v.guard) for v in best.variants]
    assert isinstance(prove_partition(guards, traced_program(lora, LORA).arguments.scope), Proved)
    np.testing.assert_allclose(best(*arguments(9000)), lora(*arguments(9000)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bounds": {"n": (9, 3)}}, "the bounds of `n` are empty: (9, 3)"),
        ({"bounds": {"n": (8, 16)}, "at": [{"n": 8}, {"n": 17}]}, "lora(): n = 17 exceeds its bound 16"),
        ({"bounds": {"n": (8, 16)}, "at": [{"n": 8}, {"n": 4}]}, "lora(): n = 4 is below its bound 8"),
        ({"bounds": [{"n": (8, 16)}, "n % 32 == 0"]}, "no sizes satisfy all of"),
        ({"bounds": {"m": (8, 16)}}, "no size is named `m` (bounds={'m': ...}); its sizes are n"),
        (
            {"bounds": {"n": (1, 9)}, "at": [{"n": 8}, {"m": 4}]},
            "no size is named `m` (at={'m': ...}); its sizes are n",
        ),
    ],
)
def test_bad_input(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BoundsError) as e:
        rx.optimize(lora, *LORA, **options)
    assert text in str(e.value)


def test_a_call_outside_of_the_bounds() -> None:
    best = rx.optimize(lora, *LORA, bounds={"n": (1, 64)}, target="cpu")
    with pytest.raises(BoundsError, match=r"lora\(\): n = 65 exceeds its bound 64"):
        best(*arguments(65))


def test_sizes_whose_products_pass_64_bits() -> None:
    big = 1 << 31
    best = rx.optimize(lambda a, b: a @ b @ b, "n k", "k k", bounds={"n": (1, big), "k": (1, big)}, target="cpu")
    assert best.report.family is not None and best.report.family.regret <= 0.02
    assert serving(best, {"n": 1, "k": big}) != serving(best, {"n": big, "k": 1}) or len(best.variants) == 1
    np.testing.assert_allclose(best(*arrays((3, 40), (40, 40))).shape, (3, 40))


def test_levels() -> None:
    assert levels(1, 5, 9) == [1, 2, 3, 4, 5]
    assert levels(1, 1000, 4) == [1, 10, 100, 1000]
    assert levels(1, 1000, 4, small=True) == [1, 2, 10, 100, 1000]


def test_jit_dispatches_while_it_traces() -> None:
    fast = rx.jit(lora, dims=LORA, bounds=BOUNDS, target="cpu")
    for n in (4, 4000):
        np.testing.assert_allclose(fast(*arguments(n)), lora(*arguments(n)), rtol=2e-3, atol=2e-3)
    assert len(fast.optimized[-1].variants) == 2


def test_the_benchmark_goes_on_from_what_it_has() -> None:
    first = run("rows", 3, "cpu", 0, 0.0)
    late = run("rows", 5, "cpu", 0, 0.0, earlier=first, until=0.0)  # begins nothing new
    assert late.points == first.points and len(first.points) == 3
    told: list[int] = []
    whole = run("rows", 5, "cpu", 0, 0.0, earlier=first, told=lambda o: told.append(len(o.points)))
    assert whole.points[:3] == first.points and told == [1, 2, 3, 4, 5]
    other = replace(first, guards=["all sizes"], points=[replace(p, regret=9.0) for p in first.points])
    assert max(run("rows", 2, "cpu", 0, 0.0, earlier=other).regrets) < 9.0  # of another family nothing is kept


@pytest.mark.parametrize("gpu", [*(pytest.param(g, marks=pytest.mark.slow) for g in ("rtx4090", "a100")), "h100"])
def test_routines_that_tie_with_generated_kernels_make_no_family(gpu: str) -> None:
    """The MLP of a decoder's layer over its batch, on data sheets: XLA compiles its routines and generated kernels
    alike, so one program serves all sizes, with calls where a routine has the whole kernel's pattern."""
    case = CASES[f"batch {gpu}"]
    best = rx.optimize(case.fn, *case.specs, bounds=case.bounds, target=gpu, execution="kernels")
    (one,) = best.variants
    assert one.guard == "all sizes"
    calls = {row.name for row in one.report.libraries if row.calls}
    assert calls and all(name.startswith("xla.matmul") for name in calls)
