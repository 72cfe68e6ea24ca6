"""Library calls in programs: chosen, run, looked at when they first run, missing, lowered in parts; attention as people
write it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.lowering import libraries
from relax_eg.errors import LibraryError
from relax_eg.reports import CostReport
from relax_eg.rules.checking.check import without_checks

pytestmark = pytest.mark.usefixtures("no_library_stays")

_DENSE = (lambda x, w, b: x @ w + b, "n 64", "64 128", "128")


def _book(target: Any, name: str = "test.dense", **options: Any) -> rx.RuleSet:
    book = rx.RuleSet("test")

    def dense(a: Any, b: Any, c: Any) -> Any:
        return a @ b + c

    with without_checks():
        book.library(name, shapes="a: m k, b: k n, c: n", target=target, **{"cost": 3.0, **options})(dense)
    return book


class _Changing:
    """A routine that is right when it is tested, and another one, as on another machine, when it runs."""

    def __init__(self, later: Any) -> None:
        self.target, self.later = _right, later

    def __call__(self, *xs: Any) -> Any:
        return self.target(*xs)

    def change(self) -> None:
        self.target = self.later


def _optimized(book: rx.RuleSet, n: int = 2048, **options: Any) -> Any:
    with without_checks():
        fn, *specs = _DENSE
        # At a capacity the pattern runs: what a routine does with padding is not known.
        options = {"dynamic": "exact", **options}
        return rx.optimize(fn, *specs, at={"n": n}, rules=rx.rules.default + book, **options)


def _args(n: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((n, 64), (64, 128), (128,))]


def _right(a: Any, b: Any, c: Any) -> Any:
    return jnp.dot(a, b) + c


def test_a_call_is_chosen_reported_run_explained_and_certified() -> None:
    book = _book(_right)
    best = _optimized(book)
    assert 'R.call_dps_library("test.dense", (x, w, b)' in str(best.module)
    assert "library test.dense: 1 call, in place of 2 operators" in str(best.report)
    again = CostReport.from_json(best.report.to_json())
    assert again.libraries == best.report.libraries
    args = _args()
    np.testing.assert_allclose(best(*args), args[0] @ args[1] + args[2], rtol=1e-5, atol=1e-5)
    assert best.check(*args).passed
    assert "dense" in [s.rule for s in best.explain().steps]
    assert best.certificate().verify(rx.rules.default + book)
    jitted = jax.jit(best.to_jax())
    np.testing.assert_allclose(jitted(*args), best(*args), rtol=1e-6)
    grad = jax.grad(lambda *xs: best.to_jax()(*xs).sum())(*args)
    np.testing.assert_allclose(grad, np.broadcast_to(args[1].sum(1), (4, 64)), rtol=1e-4)


def test_a_call_that_is_not_predicted_faster_is_not_chosen() -> None:
    assert "test.dense" not in str(_optimized(_book(_right, cost=0.5)).module)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, "fast"])
def test_a_cost_that_is_no_number(seconds: Any) -> None:
    with pytest.raises(
        LibraryError, match=r"library `test\.dense` .*: its cost at .* is .*; a finite number of seconds"
    ):
        _optimized(_book(_right, cost=lambda flops, moved, profile: seconds))


def test_a_cost_function_decides() -> None:
    seen: list[tuple[int, int, str]] = []

    def cost(flops: int, moved: int, profile: Any) -> float:
        seen.append((flops, moved, profile.name))
        return 1e-7

    best = _optimized(_book(_right, cost=cost))
    assert "test.dense" in str(best.module)
    assert (2 * 2048 * 64 * 128 + 2048 * 128, 4 * (2048 * 64 + 64 * 128 + 128 + 2048 * 128), "cpu") in seen


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda a, b, c: jnp.dot(a, b) - c, "does not compute its pattern, at "),
        (lambda a, b, c: _right(a, b, c).T, r"gives float32\[\d+, \d+\], annotated float32"),
        (lambda a, b, c: _right(a, b, c).astype("bfloat16"), r"gives bfloat16\[\d+, \d+\], annotated float32"),
        (lambda a, b, c: [a, b], "gives several results, annotated R.Tensor"),
        (lambda a, b: a, "raised TypeError for operands"),
    ],
)
def test_a_wrong_routine_is_caught_when_it_first_runs(
    target: Callable[..., Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    changing = _Changing(target)
    best = _optimized(_book(changing))
    changing.change()
    with pytest.raises(LibraryError, match=message) as caught:
        best(*_args())
    assert "library `test.dense` (" in str(caught.value) and "test_library_calls.py:" in str(caught.value)
    changing = _Changing(target)
    careful = _optimized(_book(changing, first_run="fall back"))
    changing.change()
    args = _args()
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(careful(*args), args[0] @ args[1] + args[2], rtol=1e-5, atol=1e-5)
    assert "its pattern runs instead" in caplog.text


def test_a_wrong_value_shows_both() -> None:
    changing = _Changing(lambda a, b, c: jnp.dot(a, b) - c)
    best = _optimized(_book(changing))
    changing.change()
    with pytest.raises(LibraryError) as caught:
        best(*_args())
    assert "\n  library float32[" in str(caught.value) and "\n  pattern float32[" in str(caught.value)


def test_a_routine_that_is_trusted_is_not_looked_at() -> None:
    args = _args()
    changing = _Changing(lambda a, b, c: jnp.dot(a, b) - c)
    best = _optimized(_book(changing, first_run="trust"))
    changing.change()
    np.testing.assert_allclose(best(*args), args[0] @ args[1] - args[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"target": "no_such_module:dense"}, "there is no module `no_such_module`"),
        ({"requires": "numpy >= 900"}, "numpy >= 900 is needed, found "),
        ({"requires": "no-such-package >= 1"}, "no-such-package >= 1 is needed, and no-such-package is not installed"),
        ({"requires": "platform: tpu"}, "platform tpu is needed, not cpu"),
        ({"requires": "device: H100"}, "device H100 is needed, not cpu"),
        ({"target": "ffi:no_such_target"}, "no ffi target `no_such_target` is registered for cpu"),
    ],
)
def test_a_missing_routine_is_reported(options: dict[str, Any], why: str) -> None:
    best = _optimized(_book(options.pop("target", _right), **options))
    assert "test.dense" not in str(best.module)
    (row,) = [r for r in best.report.libraries if r.name == "test.dense"]
    assert row.why.startswith(why)
    assert "library test.dense is not used: " in str(best.report)


def test_a_module_for_another_machine_runs_its_pattern(caplog: pytest.LogCaptureFixture) -> None:
    book = _book(_right, name="test.elsewhere", requires="platform: gpu")
    best = _optimized(book, 10**6, target="h100")  # a size at which a call is more than its dispatch
    assert "test.elsewhere" in str(best.module)
    args = _args()
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(best(*args), args[0] @ args[1] + args[2], rtol=1e-5, atol=1e-5)
    assert (
        "library `test.elsewhere` is missing: platform gpu is needed, not cpu; its pattern runs instead" in caplog.text
    )


def test_more_is_lowered_later() -> None:
    """Another `optimize` of the module that came out: what was lowered stays."""
    book, more = _book(_right), rx.RuleSet("more")

    @more.library("test.tanh", shapes="x: m n", target=jnp.tanh, cost=30.0)
    def steep(x: Any) -> Any:
        return rx.op.tanh(x)

    with without_checks():
        specs = _DENSE[1:]
        first = rx.optimize(lambda x, w, b: jnp.tanh(x @ w + b), *specs, at={"n": 2048}, rules=rx.rules.default + book)
        second = rx.optimize(first.module, at={"n": 2048}, rules=more)
    assert "test.dense" in str(first.module) and "test.tanh" not in str(first.module)
    assert "test.dense" in str(second.module) and "test.tanh" in str(second.module)
    args = _args()
    np.testing.assert_allclose(second(*args), np.tanh(args[0] @ args[1] + args[2]), rtol=1e-4, atol=1e-5)


def test_calls_and_kernels_live_in_one_module() -> None:
    book = _book(_right, cost=lambda flops, moved, profile: 1e-9)
    with without_checks():
        best = rx.optimize(
            lambda x, w, b: jnp.tanh(x @ w + b) * 2.0 + 1.0, *_DENSE[1:], at={"n": 2048},
            rules=rx.rules.default + book, execution="kernels",
        )  # fmt: skip
    assert "R.call_dps_library" in str(best.module) and "R.call_tir" in str(best.module)
    args = _args()
    np.testing.assert_allclose(best(*args), np.tanh(args[0] @ args[1] + args[2]) * 2 + 1, rtol=1e-4, atol=1e-5)


def test_in_whole_programs_nothing_is_lowered_to_what_xla_compiles_anyway() -> None:
    best = rx.optimize(*_DENSE, at={"n": 2048})
    assert not best.report.libraries and "call_dps_library" not in str(best.module)


# --- attention as people write it ---

_FIRST, _LAST = "b 8 s 64", "b s 8 64"


def _by_jax(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, **options)


def _by_einsum(q: Any, k: Any, v: Any) -> Any:
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, -1), v)


def _by_hand(q: Any, k: Any, v: Any, fill: float = -3e38) -> Any:
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    logits = q @ k.transpose(0, 1, 3, 2) * (1 / math.sqrt(q.shape[-1]))
    n = logits.shape[-1]
    logits = jnp.where(jnp.tril(jnp.ones((n, n), bool)), logits, fill)
    p = jnp.exp(logits - logits.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def _padded(q: Any, k: Any, v: Any, mask: Any) -> Any:
    p = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 8 + mask[:, None, None, :], -1)
    return p @ v


def _flax(q: Any, k: Any, v: Any, mask: Any) -> Any:
    from flax import linen

    return linen.dot_product_attention(q, k, v, mask=mask)


def _wide(q: Any, k: Any, v: Any) -> Any:
    logits = (q @ k.transpose(0, 1, 3, 2)).astype(jnp.float32) * 0.125
    return jax.nn.softmax(logits, -1).astype(q.dtype) @ v


@pytest.mark.parametrize(
    ("routine", "fn", "specs"),
    [
        ("", _by_jax, (_LAST, _LAST, _LAST)),
        ("", _by_jax, (f"{_LAST} @ bfloat16", "b t 4 64 @ bfloat16", "b t 4 64 @ bfloat16")),
        ("_causal", lambda q, k, v: _by_jax(q, k, v, is_causal=True), (_LAST, _LAST, _LAST)),
        ("_causal", lambda q, k, v: _by_jax(q, k, v, is_causal=True), (_LAST, "b s 2 64", "b s 2 64")),
        ("_mask", lambda q, k, v, m: _by_jax(q, k, v, mask=m), (_LAST, _LAST, _LAST, "b 8 s s @ bool")),
        ("_bias", lambda q, k, v, m: _by_jax(q, k, v, bias=m), (_LAST, _LAST, _LAST, "1 1 s s")),
        ("", _by_einsum, (_LAST, _LAST, _LAST)),
        ("_causal", _by_hand, (_FIRST, "b 4 s 64", "b 4 s 64")),
        ("_bias", _padded, (_FIRST, _FIRST, _FIRST, "b s")),
        ("_mask", _flax, (_LAST, _LAST, _LAST, "b 1 s s @ bool")),
        ("", _wide, (f"{_FIRST} @ bfloat16",) * 3),
    ],
)  # fmt: skip
def test_attention_is_recognised(routine: str, fn: Callable[..., Any], specs: tuple[str, ...]) -> None:
    target = rx.types.Profile.from_json(
        rx.types.PROFILES["cpu"]
        .to_json()
        .replace('"library_speed": {}', f'"library_speed": {{"xla.attention{routine}": 1000.0}}')
    )
    at = {"b": 2, "s": 64, "t": 64} if "t" in " ".join(specs).split() else {"b": 2, "s": 64}
    rules = rx.rules.default - "fusion"
    best = rx.optimize(fn, *specs, at=at, rules=rules, target=target, execution="kernels")
    assert f'R.call_dps_library("xla.attention{routine}", ' in str(best.module)
    rng = np.random.default_rng(0)
    sizes = {"b": 1, "s": 5, "t": 7}
    args = []
    for spec in specs:
        dims, _, dtype = spec.partition("@")
        shape = tuple(sizes.get(d) or int(d) for d in dims.split())
        x = rng.standard_normal(shape)
        args.append(jnp.asarray(x > -0.5 if dtype.strip() == "bool" else x, dtype.strip() or "float32"))
    made, wanted = np.asarray(best(*args), np.float32), np.asarray(fn(*args), np.float32)
    np.testing.assert_allclose(
        made, wanted, rtol=0.05 if "bfloat16" in specs[0] else 1e-4, atol=0.02 if "bfloat16" in specs[0] else 1e-5
    )


def test_a_fill_that_a_logit_may_reach_is_lowered_approximately_only() -> None:
    fn, specs = lambda q, k, v: _by_hand(q, k, v, -1e9), (_FIRST, _FIRST, _FIRST)
    found = {
        n: rx.optimize(
            fn, *specs, at={"b": 2, "s": 64}, rules=rx.rules.default - "fusion", execution="kernels",
            numerics=n,
        ).report.matches
        for n in ("reassociate", "approximate")
    }  # fmt: skip
    rare = "xla_attention_mask_by_hand_float32_rare"
    assert rare not in found["reassociate"] and rare in found["approximate"]


@pytest.mark.slow
def test_for_a_gpu_attention_is_cudnns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_has_cudnn", lambda: True)
    specs = ("b s 8 64 @ bfloat16",) * 3
    best = rx.optimize(_by_jax, *specs, at={"b": 4, "s": 1024}, target="h100")
    assert 'R.call_dps_library("cudnn.attention", ' in str(best.module)
    wide = rx.optimize(_by_jax, *("b s 8 192 @ bfloat16",) * 3, at={"b": 4, "s": 1024}, target="h100")
    assert "cudnn" not in str(wide.module)
    assert not wide.report.libraries
    monkeypatch.setattr(libraries, "_has_cudnn", lambda: False)
    best = rx.optimize(_by_jax, *specs, at={"b": 4, "s": 1024}, target="h100")
    assert "cudnn" not in str(best.module)
    told = "is not used: XLA compiles it with nvidia-cudnn-cu12, which is not installed, and no GPU is here"
    assert f"library cudnn.attention {told}" in map(str, best.report.libraries)
    plain = rx.optimize(lambda a, b: a @ b, "n 64", "64 64", at={"n": 64}, target="h100")
    assert not plain.report.libraries
