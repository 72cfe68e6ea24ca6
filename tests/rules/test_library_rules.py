"""Rules that lower to library calls: how they are written, refused, tested, and what their calls mean."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import OperatorError, RuleError, WellFormedError
from relax_eg.ir.expr import var
from relax_eg.ir.module import pure_function
from relax_eg.ops import routines
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.libraries import call_library, inline_libraries
from relax_eg.rules.book.libraries import KINDS, attention_names
from relax_eg.rules.checking.certificates import known_verdict, status
from relax_eg.rules.checking.verdict import Verdict
from relax_eg.rules.content import content_hash

pytestmark = pytest.mark.usefixtures("no_library_stays")


def _gemm(a: Any, b: Any, c: Any) -> Any:
    return jnp.dot(a, b) + c


def _pattern(a: Any, b: Any, c: Any) -> Any:
    """A B + c"""
    return a @ b + c


def _book(target: Any = _gemm, name: str = "test.gemm", pattern: Any = _pattern, **options: Any) -> rx.RuleSet:
    book = rx.RuleSet("test")
    shapes = options.pop("shapes", "a: m k, b: k n, c: n")
    book.library(name, shapes=shapes, target=target, **options)(pattern)
    return book


def test_a_library_rule_prints_as_mathematics_and_is_tested() -> None:
    book = _book()
    assert str(book["_pattern"]) == "_pattern: a @ b + c  =>  test.gemm(a, b, c)"
    (verdict,) = rx.verify(book)
    assert (verdict.status, verdict.theory.startswith("measured: ")) == ("tested", True)
    assert len(book - "library") == 0


def test_its_calls_mean_its_pattern() -> None:
    _book()
    x, w, c = (var(n, rx.Tensor(s, "float32")) for n, s in (("x", ("n", 3)), ("w", (3, 4)), ("c", (4,))))
    call = call_library("test.gemm", x, w, c)
    assert str(call.annotation) == str((x @ w + c).annotation)
    assert inline_libraries([call]) == [x @ w + c]
    text = (
        "@I.ir_module\nclass Module:\n    @R.function\n"
        '    def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 4), "float32"),'
        ' c: R.Tensor((4,), "float32")):\n'
        '        gv = R.call_dps_library("test.gemm", (x, w, c), out=R.Tensor(("n", 4), "float32"))\n'
        "        return gv\n"
    )
    module = rx.parse(text)
    assert str(rx.parse(str(module))) == str(module)
    args = [np.arange(n, dtype=np.float32).reshape(s) for n, s in ((6, (2, 3)), (12, (3, 4)), (4, (4,)))]
    np.testing.assert_array_equal(evaluate(module, args), args[0] @ args[1] + args[2])


def test_a_target_that_computes_something_else_is_refuted() -> None:
    with pytest.raises(RuleError) as refused:
        _book(lambda a, b, c: jnp.dot(a, b) - c)
    assert "rule `_pattern` is refuted" in str(refused.value)
    assert "test.gemm does not compute its pattern" in str(refused.value)
    assert "left = " in str(refused.value) and "right = " in str(refused.value)


def test_a_target_with_another_result_is_refuted() -> None:
    with pytest.raises(RuleError, match=r"test\.gemm gives \(.*\) float16, its pattern \(.*\) float32"):
        _book(lambda a, b, c: (jnp.dot(a, b) + c).astype(jnp.float16))
    with pytest.raises(RuleError, match=r"test\.gemm gives a tuple of 2, its pattern R\.Tensor"):
        _book(lambda a, b, c: (a, b))


def test_a_target_that_raises_at_some_size_is_refuted_unless_a_condition_keeps_it_away() -> None:
    def no_empty(a: Any, b: Any, c: Any) -> Any:
        if 0 in a.shape + b.shape:
            raise ValueError("empty operands are not supported")
        return _gemm(a, b, c)

    with pytest.raises(RuleError, match=r"test\.gemm raised ValueError: empty operands are not supported"):
        _book(no_empty)
    assert len(_book(no_empty, when=("m >= 1", "k >= 1", "n >= 1"))) == 1


def test_the_numerics_class_is_measured() -> None:
    def coarse(a: Any, b: Any, c: Any) -> Any:
        return _gemm(a.astype(jnp.bfloat16).astype(a.dtype), b, c)

    with pytest.raises(
        RuleError, match=r'measured to be approximate, claimed to be reassociate(.|\n)*claim numerics="approx'
    ):
        _book(coarse)
    (verdict,) = rx.verify(_book(coarse, numerics="approximate"))
    assert verdict.theory == "measured: approximate"


def test_attributes_and_sizes_reach_the_target() -> None:
    seen: list[Any] = []

    def norm(x: Any, g: Any, *, epsilon: float) -> Any:
        seen.append(epsilon)
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * g

    book = rx.RuleSet("test")

    @book.library(
        "test.norm", shapes="x: *b n, g: n", target=norm, attrs={"epsilon": "rms_norm.epsilon"}, when="n >= 1",
        requires="dtype: float32",
    )  # fmt: skip
    def normal(x: Any, g: Any, epsilon: float) -> Any:
        return rx.op.rms_norm(x, g, -1, epsilon)

    assert 1e-5 in seen
    assert rx.verify(book).refuted == ()


def test_several_results() -> None:
    book = rx.RuleSet("test")

    @book.library("test.both", shapes="x: n", target=lambda x: (jnp.sin(x), jnp.cos(x)), cost=4.0)
    def both(x: Any) -> Any:
        return rx.op.sin(x), rx.op.cos(x)

    assert rx.verify(book).refuted == ()
    best = rx.optimize(lambda x: jnp.sin(x) + jnp.cos(x), "n", at={"n": 1 << 20}, rules=book)
    assert "test.both" in str(best.module)
    x = np.linspace(0, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(best(x), np.sin(x) + np.cos(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 3}, 'target=3: a callable on JAX arrays, "module:name", or "ffi:name"'),
        ({"target": "numpy.dot"}, "target='numpy.dot': a callable on JAX arrays"),
        ({"target": "jax.numpy:no_such"}, "jax.numpy has no `no_such`"),
        ({"cost": -1.0}, "cost=-1.0: how many times faster"),
        ({"cost": math.nan}, "cost=nan: how many times faster"),
        ({"cost": 0}, "cost=0: how many times faster"),
        ({"requires": "platform: abacus"}, "'abacus' is none of cpu, gpu, tpu"),
        ({"requires": "scipy == > 1"}, "requires 'scipy == > 1' cannot be read; accepted:"),
        ({"requires": "colour: red"}, "requires 'colour: red' cannot be read; accepted:"),
        ({"numerics": "roughly"}, "numerics='roughly': one of exact, reassociate, approximate, quantised is accepted"),
        ({"first_run": "maybe"}, "first_run='maybe': one of check, fall back, trust is accepted"),
        ({"name": "jax.gemm"}, "`jax.` is taken"),
        ({"name": "two words"}, "its name cannot be that of a library"),
        (
            {"shapes": "a: m k, b: k n, c: n, d: n", "pattern": lambda a, b, c, d: a @ b + c},
            "variable `d` does not occur",
        ),
        ({"pattern": lambda a, b, c: 3.0}, "its pattern returned 3.0"),
    ],
)
def test_bad_declarations(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError) as refused:
        _book(**options)
    assert message in str(refused.value) and "test_library_rules.py:" in str(refused.value)


def test_calls_that_do_not_fit() -> None:
    _book()
    x = var("x", rx.Tensor((2, 3), "float32"))
    with pytest.raises(OperatorError, match=r"library `test\.gemm` takes 3 operands \(a, b, c\), got 1"):
        call_library("test.gemm", x)
    with pytest.raises(OperatorError, match=r"no library `test\.nothing` is registered"):
        call_library("test.nothing", x)
    with pytest.raises(OperatorError, match=r"library `test\.gemm` takes attributes none; got speed"):
        call_library("test.gemm", x, x, x, speed=2)


def test_a_call_that_is_annotated_otherwise_than_its_routine_fills() -> None:
    module = rx.parse(
        "@I.ir_module\nclass Module:\n    @R.function\n"
        '    def main(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 4), "float32")):\n'
        '        gv = R.call_dps_library("xla.matmul", (x, w), out=R.Tensor(("n", 5), "float32"))\n'
        "        return gv\n"
    )
    fills = (
        r'library `xla\.matmul` fills R\.Tensor\(\("n", 4\), dtype="float32"\), and is annotated R\.Tensor\(\("n", 5\)'
    )
    with pytest.raises(WellFormedError, match=f"^function `main`, binding `gv`: {fills}.*axis 1: sizes 4 and 5 differ"):
        rx.optimize(module)


def test_another_library_of_the_same_name_is_refused() -> None:
    with pytest.raises(RuleError, match=r"a library `xla\.matmul` is already registered, at libraries\.py"):
        _book(name="xla.matmul")


def test_a_rule_may_call_a_library_and_is_checked_by_what_that_means() -> None:
    book = _book()
    shapes = "a: m k, b: k n, c: n"
    book.rule(shapes=shapes, phase="library", name="right")(
        lambda a, b, c: (c + a @ b, rx.op.library("test.gemm", a, b, c))
    )
    assert {v.status for v in rx.verify(book)} == {"tested"}
    with pytest.raises(RuleError, match="rule `wrong` is refuted"):
        book.rule(shapes=shapes, name="wrong")(lambda a, b, c: (c - a @ b, rx.op.library("test.gemm", a, b, c)))


def test_what_a_verdict_is_known_by() -> None:
    one, two = _book(), _book(requires="platform: cpu")
    assert content_hash(one["_pattern"]) != content_hash(two["_pattern"])
    three = _book(functools.partial(_gemm))
    assert content_hash(one["_pattern"]) != content_hash(three["_pattern"])


def test_the_book_is_verified() -> None:
    """All but what needs a GPU has a verdict on file."""
    unknown = [r.name for r in rx.rules.libraries if known_verdict(r) is None]
    assert all(n.startswith("cudnn_attention") for n in unknown) and len(unknown) == 4
    assert all(v.status != "refuted" for r in rx.rules.libraries if (v := known_verdict(r)))


def test_a_shipped_library_that_fails_on_this_machine_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed library may have a fault. The warning names the rule; the other rules run."""

    def status_here(rule: Any) -> Verdict:
        found = status(rule)
        return replace(found, status="refuted", problem="off by 0.2") if rule.name == "xla_attention_mask" else found

    monkeypatch.setattr("relax_eg.driver.options.status", status_here)
    with pytest.warns(UserWarning, match="rule `xla_attention_mask`: is refuted and does not run: off by 0.2"):
        best = rx.optimize(lambda a, b, v: (a @ b) @ v, "n n", "n n", "n", at={"n": 64}, execution="kernels")
    assert best.report.after.seconds < best.report.before.seconds


@pytest.mark.parametrize("kind", KINDS)
def test_what_cudnn_is_handed_is_what_its_pattern_reads(kind: str) -> None:
    """Without a device: the routine's operands, computed by `jax.nn` through XLA, give what the pattern says."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, h, n, 8)).astype(jnp.bfloat16) for h, n in ((4, 5), (2, 7), (2, 7)))
    extra = {"mask": [rng.random((2, 4, 5, 7)) < 0.7], "bias": [rng.standard_normal((2, 4, 5, 7)).astype("float32")]}
    args = [q, k, v, *extra.get(kind, ())]
    params = [var(f"x{i}", rx.Tensor(a.shape, a.dtype.name)) for i, a in enumerate(args)]
    module = rx.types.Module((pure_function("main", params, [call_library(attention_names(kind)[1], *params, r=2)]),))
    wanted = np.asarray(evaluate(module, args), np.float32)
    for scale, right in ((1.0, True), (1.5, False)):
        found = routines.attention(q * jnp.bfloat16(scale), *args[1:], r=2, kind=kind, implementation="xla")
        assert np.allclose(np.asarray(found, np.float32), wanted, rtol=0.05, atol=0.02) == right


@pytest.mark.parametrize("kind", KINDS)
def test_what_cudnns_attention_is_lowered_to(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For CUDA on a machine without it: one call of cuDNN, with no scale of its own and the mask of its kind."""
    fused = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    half, keys = (jax.ShapeDtypeStruct((2, h, 16, 64), jnp.bfloat16) for h in (4, 2))
    wide = {"mask": jnp.bool_, "bias": jnp.float32}
    extra = [jax.ShapeDtypeStruct((2, 4, 16, 16), wide[kind])] if kind in wide else []
    run = functools.partial(routines.attention, r=2, kind=kind, implementation="cudnn")
    calls = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(c) for c in calls]
    made = jax.export.export(jax.jit(run), platforms=["cuda"], disabled_checks=allowed)(half, keys, keys, *extra)
    text = made.mlir_module()
    assert [c for c in calls if f"@{c}(" in text] == [calls[bool(extra)]]
    options = text.replace("\\22", '"')
    assert '"fmha_scale": 1.0' in options
    assert f'"mask_type": "{"CAUSAL" if kind == "causal" else "NO_MASK"}"' in options
    (result,) = made.out_avals
    assert (result.shape, result.dtype) == (half.shape, half.dtype)
