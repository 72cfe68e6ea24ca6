"""Library calls in programs: chosen, run, looked at when they first run, missing, lowered in parts; attention as people
write it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import LibraryError
from relax_eg.extract.report import CostReport
from relax_eg.ops.libraries import LIBRARIES
from relax_eg.rules.check import unchecked

_DENSE = (lambda x, w, b: x @ w + b, "n 64", "64 128", "128")


@pytest.fixture(autouse=True)
def no_library_stays() -> Iterator[None]:
    known = dict(LIBRARIES)
    yield
    LIBRARIES.clear()
    LIBRARIES.update(known)


def _book(target: Any, name: str = "test.dense", **options: Any) -> rx.RuleSet:
    book = rx.RuleSet("test")

    def dense(a: Any, b: Any, c: Any) -> Any:
        return a @ b + c

    with unchecked():  # as if it was tested on another machine
        book.library(name, shapes="a: m k, b: k n, c: n", target=target, **{"cost": 3.0, **options})(dense)
    return book


def _optimized(book: rx.RuleSet, **options: Any) -> Any:
    with unchecked():
        fn, *specs = _DENSE
        return rx.optimize(fn, *specs, at={"n": 2048}, rules=rx.rules.default + book, cache=False, **options)


def _args(n: int = 4) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((n, 64), (64, 128), (128,))]


def _right(a: Any, b: Any, c: Any) -> Any:
    return jnp.dot(a, b) + c


def test_a_call_is_chosen_reported_run_explained_and_certified() -> None:
    book = _book(_right)
    best = _optimized(book)
    assert 'R.call_dps_library("test.dense", (x, w, b)' in str(best.module)
    assert "library test.dense: 1 calls, in place of 2 operators" in str(best.report)
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
    with pytest.raises(LibraryError, match=r"library `test\.dense` .*: its cost at .* is .*; a finite number of seconds"):
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
    best = _optimized(_book(target))
    with pytest.raises(LibraryError, match=message) as caught:
        best(*_args())
    assert "library `test.dense` (" in str(caught.value) and "test_library_calls.py:" in str(caught.value)
    careful = _optimized(_book(target, first_run="fall back"))
    args = _args()
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(careful(*args), args[0] @ args[1] + args[2], rtol=1e-5, atol=1e-5)
    assert "its pattern runs instead" in caplog.text


def test_a_wrong_value_shows_both() -> None:
    with pytest.raises(LibraryError) as caught:
        _optimized(_book(lambda a, b, c: jnp.dot(a, b) - c))(*_args())
    assert "\n  library float32[" in str(caught.value) and "\n  pattern float32[" in str(caught.value)


def test_a_routine_that_is_trusted_is_not_looked_at() -> None:
    args = _args()
    best = _optimized(_book(lambda a, b, c: jnp.dot(a, b) - c, first_run="trust"))
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
    best = _optimized(book, target="h100")
    assert "test.elsewhere" in str(best.module)
    args = _args()
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(best(*args), args[0] @ args[1] + args[2], rtol=1e-5, atol=1e-5)
    assert "library `test.elsewhere` is missing: platform gpu is needed, not cpu; its pattern runs instead" in caplog.text


def test_more_is_lowered_later() -> None:
    """Another `optimize` of the module that came out: what was lowered stays."""
    book, more = _book(_right), rx.RuleSet("more")

    @more.library("test.tanh", shapes="x: m n", target=jnp.tanh, cost=30.0)
    def steep(x: Any) -> Any:
        return rx.op.tanh(x)

    with unchecked():
        specs = _DENSE[1:]
        first = rx.optimize(
            lambda x, w, b: jnp.tanh(x @ w + b), *specs, at={"n": 2048}, rules=rx.rules.default + book, cache=False
        )
        second = rx.optimize(first.module, at={"n": 2048}, rules=more, cache=False)
    assert "test.dense" in str(first.module) and "test.tanh" not in str(first.module)
    assert "test.dense" in str(second.module) and "test.tanh" in str(second.module)
    args = _args()
    np.testing.assert_allclose(second(*args), np.tanh(args[0] @ args[1] + args[2]), rtol=1e-4, atol=1e-5)


def test_calls_and_kernels_live_in_one_module() -> None:
    book = _book(_right)
    with unchecked():
        best = rx.optimize(
            lambda x, w, b: jnp.tanh(x @ w + b) * 2.0 + 1.0, *_DENSE[1:], at={"n": 2048},
            rules=rx.rules.default - "library" + book, execution="kernels", cache=False,
        )  # fmt: skip
    assert "R.call_dps_library" in str(best.module) and "R.call_tir" in str(best.module)
    args = _args()
    np.testing.assert_allclose(best(*args), np.tanh(args[0] @ args[1] + args[2]) * 2 + 1, rtol=1e-4, atol=1e-5)


def test_in_whole_programs_nothing_is_lowered_to_what_xla_compiles_anyway() -> None:
    best = rx.optimize(*_DENSE, at={"n": 2048}, cache=False)
    assert not best.report.libraries and "call_dps_library" not in str(best.module)
