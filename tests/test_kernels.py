"""`optimize(..., execution="kernels")`: which operators go where, and how they run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.kernels import InKernels
from relax_eg.errors import OptionError, ShapeError
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.kernels.selection import STEPS
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CALL_TIR, postorder
from relax_eg.ops.fused import VIEWS
from relax_eg.reports.terminal import rendered_text

Kernels = list[str]


def optimized(fn: Any, *specs: Any, **options: Any) -> InKernels:
    best = rx.optimize(fn, *specs, execution="kernels", **options)
    assert isinstance(best, InKernels)
    return best


def kernels(best: InKernels) -> Kernels:
    """The kernels that run, by the name of the program or the operator."""
    found = best.runner.kernels()
    return [e.attr("program").value.name if e.op == CALL_TIR else e.op for e in found]


def random(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def rms_norm(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 8.0) @ v


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5) * g + b


ONE = {
    "silu": (lambda x: jax.nn.silu(x), ["n m"], [(4, 6)]),
    "gelu": (lambda x: jax.nn.gelu(x), ["n m"], [(4, 6)]),
    "softmax": (lambda x: jax.nn.softmax(x), ["n m"], [(4, 6)]),
    "rms_norm": (rms_norm, ["n m", "m"], [(4, 6), (6,)]),
    "layer_norm": (layer_norm, ["n m", "m", "m"], [(4, 6), (6,), (6,)]),
    "attention": (attention, ["b h s 64", "b h t 64", "b h t 64"], [(2, 2, 5, 64), (2, 2, 7, 64), (2, 2, 7, 64)]),
    "attention of matrices": (attention, ["s 64", "t 64", "t 64"], [(5, 64), (7, 64), (7, 64)]),
    "silu below a matmul": (lambda x, w: jax.nn.silu(x @ w), ["n k", "k m"], [(3, 4), (4, 5)]),
    "gelu below a matmul": (lambda x, w: jax.nn.gelu(x @ w), ["n k", "k m"], [(3, 4), (4, 5)]),
    "bias": (lambda x, w, b: jnp.tanh(x @ w + b), ["n k", "k m", "m"], [(3, 4), (4, 5), (5,)]),
    "residual": (lambda x, w, r: r + x @ w, ["n k", "k m", "n m"], [(3, 4), (4, 5), (3, 5)]),
    "prologue": (lambda x, w: jnp.exp(x) @ w, ["n k", "k m"], [(3, 4), (4, 5)]),
}


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    """Where no library takes them."""
    fn, specs, shapes = ONE[name]
    at = {v: 256 for s in specs for v in s.split() if v.isidentifier()}
    best = optimized(fn, *specs, at=at, rules=rx.rules.default - "library")
    assert len(kernels(best)) == 1
    check = best.check(*random(*shapes))
    assert check.passed, check


# What takes them where library rules are on; of the others no routine knows the pattern, or a kernel is cheaper.
# Attention in half precision is cuDNN's: `test_library_calls.py`.
TAKEN = {
    "silu below a matmul": "xla.matmul_silu",
    "gelu below a matmul": "xla.matmul_gelu",
    "residual": "xla.matmul_residual",
}


@pytest.mark.parametrize("target", ["cpu", "h100"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_library_takes_it(name: str, target: str) -> None:
    fn, specs, shapes = ONE[name]
    at = {v: 256 for s in specs for v in s.split() if v.isidentifier()}
    # With a shorter term for the activation, a generated kernel does less work than this routine.
    rules = rx.rules.default - "pointwise" if name == "gelu below a matmul" else rx.rules.default
    best = optimized(fn, *specs, at=at, target=target, rules=rules)
    (call,) = best.runner.kernels()
    assert call.op == CALL_DPS_LIBRARY and call.attr("name") == TAKEN[name]
    assert best.check(*random(*shapes)).passed


def test_the_table_says_which_operators_went_where() -> None:
    def fn(x: Any, w: Any, g: Any) -> Any:
        return jax.nn.softmax(rms_norm((x + x @ w).reshape(-1, 256), g)).T @ jnp.sin(x)

    # On a GPU this program is no better in kernels than as written, so the rates are those of another platform.
    target = dataclasses.replace(rx.types.PROFILES["h100"], platform="tpu")
    best = optimized(fn, "n 256", "256 256", "256", at={"n": 256}, target=target)
    lines = rendered_text(best.report.kernel_table(), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    sections = [line for line in lines if line.startswith(("library calls", "fused kernels", "single operators"))]
    assert sections[0] == "library calls: 1 (2 operators)"
    assert sections[1].startswith("fused kernels: ")
    where = next(i for i, line in enumerate(lines) if "xla.matmul_residual" in line)
    assert lines[where + 1].split() == ["matmul,", "add"]
    runs = [int(line[30:].split()[-n]) for line in lines for n in (4, 6) if _is_row(line, n)]
    assert sum(runs) == best.report.after.launches
    (row,) = [r for r in best.report.kernels if "rsqrt" in r.operators]
    shown = next(line for line in lines if row.name[:20] in line)
    assert shown.endswith(str(row.saved_launches))


def _is_row(line: str, figures: int) -> bool:
    """Whether a line ends in the figures of a kernel: four, or six where something is saved. A time is two words."""
    words = line[30:].split()
    return len(words) >= figures and words[-figures].isdigit() and words[2 - figures] in ("us", "ms", "s")


def rotated_attention(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
    """Grouped heads with rotary positions and a causal mask, as in Llama."""

    def rotate(x: Any) -> Any:
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    k, v = (jnp.repeat(y, 2, axis=1) for y in (rotate(k), v))
    logits = rotate(q) @ k.transpose(0, 1, 3, 2) * 0.125
    mask = jnp.tril(jnp.ones(logits.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(logits.dtype).min))
    return (weights @ v).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("rules", [rx.rules.fusion, rx.rules.default - "library"], ids=["fusion", "algebra"])
def test_attention_of_a_decoder_is_one_kernel(rules: rx.RuleSet) -> None:
    specs = ("b 4 s 64", "b 2 s 64", "b 2 s 64", "s 32", "s 32")
    best = optimized(rotated_attention, *specs, at={"b": 1, "s": 512}, target="h100", rules=rules)
    assert len(kernels(best)) == 1
    given = random((1, 4, 5, 64), (1, 2, 5, 64), (1, 2, 5, 64), (5, 32), (5, 32))
    assert best.check(*given).passed


def test_more_rules_never_lose() -> None:
    """Fusion of the program as written is found again where the e-graph holds algebra and libraries as well."""
    specs = ("b 4 s 64", "b 2 s 64", "b 2 s 64", "s 32", "s 32")
    options: Any = {"at": {"b": 1, "s": 512}, "target": "h100"}
    alone = optimized(rotated_attention, *specs, rules=rx.rules.fusion, **options)
    joint = optimized(rotated_attention, *specs, **options)
    # As far as selection goes: it stops a thousandth from its bound.
    assert joint.report.after.seconds <= alone.report.after.seconds * (1 + 1e-3)


def test_nothing_moves_over_a_match_cast() -> None:
    module = rx.parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor((8,), "float32"):
        a = R.exp(x)
        b = R.match_cast(a, R.Tensor((8,), "float32"))
        c = R.tanh(b)
        d = R.sin(c)
        return d
""")
    best = rx.optimize(module, execution="kernels", at={"n": 8}, rules=rx.rules.fusion)
    assert isinstance(best, InKernels)
    assert kernels(best) == ["exp", "fused_tanh_sin"]
    (x,) = random((8,))
    assert np.allclose(best(x), np.sin(np.tanh(np.exp(x))), atol=1e-6)
    with pytest.raises(ShapeError, match="match_cast: `b`, axis 0 should be 8, got 5"):
        best(x[:5])


def test_every_step_is_a_rule_and_can_be_left_out() -> None:
    names = {s.name for s in rx.rules.fusion.schemas}
    assert names == STEPS
    assert names <= {s.name for s in rx.rules.default.schemas}
    assert not any("fusion" in s.tags for s in (rx.rules.default - "fusion").schemas)
    alone = optimized(lambda x: jnp.tanh(jnp.exp(x) + 1.0) * jnp.sin(x), "n m", rules=rx.rules.default - "fusion")
    assert all(not name.startswith("fused_") for name in kernels(alone))
    assert len(kernels(alone)) >= 4
    lines = rendered_text(alone.report.kernel_table()).splitlines()
    assert any(line.startswith("single operators: ") for line in lines)
    assert not any(line.startswith("fused kernels") for line in lines)
    rules = rx.rules.default - "inline_epilogue" - "library"
    less = optimized(lambda x, w: jax.nn.silu(x @ w), "n k", "k m", rules=rules)
    assert kernels(less)[0] in ("matmul", "linear") and len(kernels(less)) == 2


def test_a_value_that_two_read_one_of_them_opaque_is_not_swallowed() -> None:
    def fn(x: Any) -> Any:
        a = jnp.exp(x)
        return jnp.exp(a), jnp.linalg.det(a)

    best = optimized(fn, "256 256", rules=rx.rules.fusion)
    assert "fused_exp_exp" not in kernels(best) or best.report.kernels[0].steps.get("fuse_siblings") == 1
    computed = [name for name in kernels(best) if "exp" in name]
    assert computed in (["exp", "exp"], ["fused_exp_exp"])  # stored for both, or stored as the other is computed
    assert best.check(*random((256, 256))).max_error <= 1e-4


def test_the_report_tells_what_is_computed_twice() -> None:
    """Where a value is stored for an opaque reader and computing it again is cheaper than loading it."""

    def fn(x: Any, y: Any) -> Any:
        a = x[:, None] * y
        return jnp.sum(jnp.maximum(a, 0.0), 0), jnp.sort(a)

    best = optimized(fn, "n", "m", at={"n": 2048, "m": 2048})
    assert sorted(kernels(best)) == ["fused_multiply_relu_sum", "multiply", "sort"]
    (row,) = best.report.kernels
    assert row.operators == ("multiply", "relu", "sum")
    counts = {r.op: r.count for r in best.report.after.rows}
    assert counts["multiply"] == 1 and best.report.before.launches == 4 and best.report.after.launches == 3
    assert best.check(*random((5,), (7,))).passed


def test_add_exp_and_squeeze_are_one_kernel_of_which_the_constant_is_a_parameter() -> None:
    best = optimized(lambda x: jnp.squeeze(jnp.exp(x + 1.0), 2), "10 20 1")
    (call,) = best.runner.kernels()
    assert kernels(best) == ["fused_add_exp"] and [a.op for a in call.args] == ["var", "constant"]
    assert best.check(*random((10, 20, 1))).passed


def test_pooling_stays_outside() -> None:
    """What grows its result, puts it beside the input, and adds to both is one kernel, of which it is a parameter."""

    def fn(x: Any) -> Any:
        pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return jnp.concatenate([jnp.repeat(jnp.repeat(pooled, 2, 2), 2, 3), x], 1) + 1.0

    best = optimized(fn, "1 16 32 32")
    assert kernels(best) == ["reduce_window", "fused_add"]
    (row,) = best.report.kernels
    assert "concat" in row.operators and "add" in row.operators
    pool, fused = best.runner.kernels()
    assert any(pool in postorder([a]) for a in fused.args)
    assert best.check(*random((1, 16, 32, 32))).passed


def test_siblings_load_what_they_share_once() -> None:
    best = optimized(lambda x: (jnp.exp(x), jnp.tanh(x)), "n m", at={"n": 2048, "m": 2048})
    assert len(kernels(best)) == 1
    (row,) = best.report.kernels
    assert row.steps == {"fuse_siblings": 1}
    assert (row.saved_bytes, row.saved_launches) == (2048 * 2048 * 4, 1)
    assert best.check(*random((3, 4))).passed


def test_what_a_norm_adds_up_is_stored_where_it_is_read_again() -> None:
    def fn(x: Any, y: Any, g: Any, w: Any) -> Any:
        h = x + y
        return h + rms_norm(h, g) @ w

    best = optimized(fn, "n d", "n d", "d", "d d", at={"n": 1024, "d": 1024})
    assert best.check(*random((3, 8), (3, 8), (8,), (8, 8))).passed
    assert len(kernels(best)) <= 2


def test_a_reshape_is_a_view() -> None:
    best = optimized(lambda x, w: jnp.exp(jnp.tanh(x.reshape(-1, 64) @ w).reshape(x.shape) @ w), "n 4 64", "64 64")
    assert len(kernels(best)) == 2 and "reshape" not in kernels(best)
    assert best.check(*(0.1 * a for a in random((3, 4, 64), (64, 64)))).passed


def test_a_row_that_does_not_fit_is_not_kept_inside() -> None:
    best = optimized(lambda x: x / jnp.sum(x), "n m", at={"n": 4096, "m": 4096})
    assert len(kernels(best)) == 2


def test_a_broadcast_of_a_matmul_is_no_epilogue() -> None:
    at = {"n": 256, "k": 256, "m": 256, "b": 64}
    best = optimized(lambda x, w, y: (x @ w)[None] * y, "n k", "k m", "b n m", at=at)
    assert len(kernels(best)) == 2


def test_equal_kernels_are_one_executable() -> None:
    def fn(x: Any, ws: list[Any]) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return x

    with rx.debug.options(sharing=False):
        best = optimized(fn, "n 64", ["64 64"] * 5, at={"n": 64}, rules=rx.rules.default - "library")
    best(random((8, 64))[0], random(*[(64, 64)] * 5))
    assert len(kernels(best)) == 5
    assert len(set(kernels(best))) == 1
    assert best.runner.executable_count == 2  # the first may not write to the argument, the others take storages over


def test_it_runs_at_other_sizes_inside_jit_and_under_grad() -> None:
    best = optimized(rms_norm, "n m", "m", at={"n": 64, "m": 96})
    for shape in ((3, 4), (7, 2)):
        x, g = random(shape, shape[1:])
        assert np.allclose(best(x, g), rms_norm(x, g), atol=1e-5)
        assert np.allclose(jax.jit(best)(x, g), rms_norm(x, g), atol=1e-5)
        ours, theirs = (jax.grad(lambda x, f=f, g=g: f(x, g).sum())(x) for f in (best, rms_norm))  # type: ignore[misc]
        assert np.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_what_is_rematerialised_is_optimized(execution: Any) -> None:
    """The second run of what a checkpoint keeps no values of stays behind its barrier."""

    def gradient(a: Any, b: Any, w: Any) -> Any:
        layer = jax.checkpoint(lambda w: jnp.sin(jnp.trace(a @ b) * w))
        return jax.grad(lambda w: layer(w).sum())(w)

    best = rx.optimize(gradient, "64 64", "64 64", "8 8", execution=execution)
    assert best.report.predicted_gain > 1.2 and "optimization_barrier" in str(best.module)
    a, b, w = random((64, 64), (64, 64), (8, 8))
    assert np.allclose(best(a / 8, b / 8, w), gradient(a / 8, b / 8, w), atol=1e-4)


def test_typed_keys_are_arguments() -> None:
    def dropped(key: Any, x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0)

    best = optimized(dropped, jax.eval_shape(lambda: jax.random.key(0)), "n 4", rules=rx.rules.fusion)
    (x,) = random((6, 4))
    for seed in (0, 0, 1):
        assert np.array_equal(best(jax.random.key(seed), x), dropped(jax.random.key(seed), x))


def test_loops_are_kernels_of_their_own() -> None:
    def fn(x: Any, ws: Any) -> Any:
        def step(h: Any, w: Any) -> tuple[Any, None]:
            return jnp.tanh(h @ w), None

        return jnp.exp(jax.lax.scan(step, x, ws)[0]) * 2.0

    best = optimized(fn, "n 16", "5 16 16")
    assert kernels(best)[0] == "scan"
    assert best.check(*random((3, 16), (5, 16, 16))).passed


def test_repeated_blocks_are_fused_once() -> None:
    def block(x: Any, p: dict[str, Any]) -> Any:
        return x + jax.nn.silu(rms_norm(x, p["g"]) @ p["w1"]) @ p["w2"]

    def fn(x: Any, ps: list[Any]) -> Any:
        for p in ps:
            x = block(x, p)
        return x

    best = optimized(fn, "n 32", [{"g": "32", "w1": "32 64", "w2": "64 32"}] * 8, at={"n": 64})
    assert len(best.report.selected) <= 4
    x, *rest = random((4, 32), *[(32,), (32, 64), (64, 32)] * 8)
    ps = [dict(zip(("g", "w1", "w2"), rest[i : i + 3], strict=True)) for i in range(0, 24, 3)]
    ps = [{k: v * 0.1 for k, v in p.items()} for p in ps]
    assert best.check(x, ps).passed


def test_the_report_says_what_went_where() -> None:
    best = optimized(lambda x, w: jnp.tanh(x @ w), "n k", "k m", at={"n": 64, "k": 64, "m": 64})
    (row,) = best.report.kernels
    assert row.name == "fused_matmul_tanh"
    assert row.operators == ("matmul", "tanh")
    assert row.steps == {"inline_epilogue": 1}
    assert (row.saved_bytes, row.saved_launches) == (2 * 64 * 64 * 4, 1)
    assert "fused: 2 operators in 1 kernel, 32.8kB moved and 1 launch less; inline_epilogue x1" in str(best.report)
    assert best.report.execution == "kernels"
    again = type(best.report).from_json(best.report.to_json())
    assert again.kernels == best.report.kernels


def test_a_kernel_costs_what_it_is_composed_to() -> None:
    def fn(x: Any, y: Any, w: Any) -> Any:
        return jax.nn.relu(jnp.concatenate([jnp.tanh(x), jnp.exp(y)], -1) @ w)

    best = optimized(fn, "n 256", "n 256", "512 64", at={"n": 4096})
    (selected,) = best.report.selected
    assert best.report.after.seconds == pytest.approx(selected.cost)
    assert best.report.predicted_gain > 1.1
    assert best.check(*(0.1 * a for a in random((3, 256), (3, 256), (512, 64)))).passed


def test_in_an_oversized_graph_the_best_algebra_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh((x @ w) @ v) * 2.0

    specs, at = ("n 512", "512 512", "512"), {"n": 512}
    monkeypatch.setattr("relax_eg.extract.kernels.selection.OVERSIZED", 5)
    best = optimized(fn, *specs, at=at)
    assert "same_sum_of_products" in best.report.rules and len(kernels(best)) == 2
    algebra = optimized(fn, *specs, at=at, rules=rx.rules.default - "fusion")
    phased = optimized(algebra.module, rules=rx.rules.fusion, at=at)
    assert best.report.after.seconds <= phased.report.after.seconds * (1 + 1e-9)


def test_what_was_found_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path))
    first, again = (optimized(rms_norm, "n m", "m", at={"n": 64, "m": 96}) for _ in range(2))
    assert not first.report.cached and again.report.cached
    assert str(again.module) == str(first.module) and kernels(again) == kernels(first)
    assert again.report.kernels == first.report.kernels
    assert again.check(*random((3, 4), (4,))).passed


def test_views_are_no_kernels() -> None:
    assert {"reshape", "expand_dims", "squeeze"} <= VIEWS


def test_refused() -> None:
    with pytest.raises(OptionError, match="execution='kernel': one of whole, kernels, auto is accepted"):
        rx.optimize(rms_norm, "n m", "m", execution="kernel")  # type: ignore[arg-type]


def test_what_depends_on_weights_alone_is_prepared() -> None:
    def fn(p: dict[str, Any], x: Any) -> Any:
        return jnp.tanh(x @ (p["w"] + p["a"] @ p["b"])) * jnp.exp(p["g"])

    specs = {"w": "256 256", "a": "256 16", "b": "16 256", "g": "256"}
    best = optimized(fn, specs, "n 256", at={"n": 8}, weights=("p",))
    w, a, b, g, x = (jnp.asarray(0.1 * v) for v in random((256, 256), (256, 16), (16, 256), (256,), (8, 256)))
    p = {"w": w, "a": a, "b": b, "g": g}
    ready = best.prepare(p)
    assert best.report.after.prepared_values >= 1
    assert len(ready.strategy.runners[0].kernels()) == 1  # type: ignore[attr-defined]
    for _ in range(2):
        assert np.allclose(ready(x), fn(p, x), atol=1e-5) and np.allclose(best(p, x), fn(p, x), atol=1e-5)
    assert np.allclose(jax.jit(lambda p, x: best(p, x))(p, x), fn(p, x), atol=1e-5)
    assert best.check(p, x).passed


def test_repeated_blocks_prepare_their_weights() -> None:
    def fn(ps: list[Any], x: Any) -> Any:
        for p in ps:
            x = x + jnp.tanh(x @ (p["a"] @ p["b"])) * jnp.exp(p["g"])
        return x

    specs = [{"a": "64 64", "b": "64 64", "g": "64"}] * 6
    best = optimized(fn, specs, "n 64", at={"n": 8}, weights=("ps",))
    x, *rest = (jnp.asarray(0.1 * v) for v in random((8, 64), *[(64, 64), (64, 64), (64,)] * 6))
    ps = [dict(zip(("a", "b", "g"), rest[i : i + 3], strict=True)) for i in range(0, 18, 3)]
    ready = best.prepare(ps)
    assert np.allclose(ready(x), fn(ps, x), atol=1e-5)
    assert best.report.after.prepared_values >= 6
    assert len(ready.strategy.runners[0].call({"n": 8}).plan.program.steps) <= 6  # type: ignore[attr-defined]


def test_a_derivation_ends_in_operators_and_tells_the_kernels() -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh((x @ w) @ v) * 2.0

    best = optimized(fn, "n 64", "64 64", "64", at={"n": 64})
    found = best.explain()
    assert "same_sum_of_products" in {s.rule for s in found.steps}
    assert "in kernels, each composed of the equations of its operators" in str(found)
    assert any("tanh" in line for line in found.kernels)


def test_the_clock_may_decide() -> None:
    best = optimized(rms_norm, "n m", "m", at={"n": 64, "m": 256}, measure=1)
    rows = best.report.measured
    assert {r.label for r in rows} >= {"as written", "by price in kernels"} and sum(r.chosen for r in rows) == 1
    assert best.check(*random((64, 256), (256,))).passed


def test_a_cost_model_prices_kernels_as_programs() -> None:
    class Launches:
        """Every kernel costs the same."""

        def price(self, site: Any, result: Any, sizes: Any) -> NodeCost:
            return NodeCost(flops=1, bytes=1, launches=1, seconds=1.0)

    def fn(x: Any, w: Any) -> Any:
        return jnp.sin(jnp.exp(x) + 1.0) @ w

    best = optimized(fn, "n 32", "32 32", at={"n": 64}, target=Launches())
    assert len(kernels(best)) == 1 and best.report.after.seconds == pytest.approx(1.0)
    assert best.check(*(0.1 * a for a in random((8, 32), (32, 32)))).passed
