"""Tensor programs in modules: legalisation as a rule, and every way to run a `call_tir`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import relax_eg as rx
from relax_eg import ir
from relax_eg.cli import app
from relax_eg.ir.expr import CALL_TIR
from relax_eg.ops.interpret import evaluate
from relax_eg.tir import Buffer, TensorProgram, compute, loops, program, sum_

N = rx.shapes.Dim.var("n")
R = loops("r")[0]


def operators(module: rx.types.Module) -> list[str]:
    return [e.op for f in module for e in f.expressions() if e.args]


def layer(x: Any, w: Any, b: Any) -> Any:
    h = jax.nn.relu(x @ w + b)
    h = jax.nn.softmax(h - h.mean(-1, keepdims=True))
    return jnp.cumsum(h, 0), h.T.reshape(-1)[:4]


def arrays(n: int = 5) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype("float32") for s in ((n, 8), (8, 6), (6,))]


def test_operators_become_calls_of_their_equations() -> None:
    module = rx.trace(layer, "n 8", "8 6", "6")
    made = rx.debug.legalize(module)
    # What is done with less work than its equations say stays.
    assert set(operators(module)) > {"matmul", "exp", "cumsum"}
    assert set(operators(made)) == {CALL_TIR, "cumsum", "tuple"}
    for got, want in zip(evaluate(made, arrays()), evaluate(module, arrays()), strict=True):
        np.testing.assert_array_equal(got, want)
    assert rx.parse(str(made)) == made
    best = rx.optimize(made, at={"n": 5})
    for n in (5, 1, 7):
        for got, want in zip(best(*arrays(n)), layer(*arrays(n)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for got, want in zip(jax.jit(best.to_jax())(*arrays()), layer(*arrays()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert best.check(*arrays()).passed


def test_a_requested_precision_is_kept() -> None:
    module = rx.trace(lambda x, y: jnp.matmul(x, y, precision="highest"), "n 8", "8 6")
    assert rx.debug.legalize(module) == module
    assert CALL_TIR in operators(rx.debug.legalize(rx.trace(jnp.matmul, "n 8", "8 6")))


def test_the_rule_is_on_demand_and_extraction_decides() -> None:
    assert "legalize" not in rx.rules.default and "legalize" in rx.rules.legalization
    module = rx.trace(layer, "n 8", "8 6", "6")
    plain = rx.optimize(module, at={"n": 5})
    assert CALL_TIR not in operators(plain.module)
    best = rx.optimize(module, rules=rx.rules.default + rx.rules.legalization, at={"n": 5})
    for got, want in zip(best(*arrays()), layer(*arrays()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def row_sums(dtype: str = "float32") -> TensorProgram:
    x = Buffer("X", (N, rx.shapes.Dim.of(3)), dtype)
    return program("row_sums", (x,), compute("Y", (N,), lambda i: sum_(x[i, R], (R, 3))))


def main_of(*values: ir.Expr) -> rx.types.Module:
    params = [e for e in ir.postorder(values) if e.op == ir.VAR]
    return rx.types.Module((ir.pure_function("main", params, values),))


def test_a_call_among_operators() -> None:
    """What surrounds a call is rewritten, the call itself priced by its equations."""
    a, b, x = (ir.var(name, ir.Tensor(spec)) for name, spec in (("a", "k k"), ("b", "k n"), ("x", "n 3")))
    module = main_of(rx.op.matmul(rx.op.matmul(a, b), ir.call_tir(row_sums(), [x])))
    best = rx.optimize(module, at={"n": 256, "k": 512})
    assert [e.ndim for e in best.module.main.expressions() if e.op == "matmul"] == [1, 1]
    (row,) = [r for r in best.report.after.rows if r.op == CALL_TIR]
    assert (row.flops, row.bytes) == (256 * 3, 4 * (256 * 3 + 256))
    shapes = ((4, 4), (4, 5), (5, 3))
    a, b, x = (np.random.default_rng(i).uniform(1, 2, s).astype("float32") for i, s in enumerate(shapes))
    np.testing.assert_allclose(best(a, b, x), a @ b @ x.sum(1), rtol=1e-5)


def test_calls_that_do_not_fit() -> None:
    x = ir.var("x", ir.Tensor("n m"))
    best = rx.optimize(main_of(ir.call_tir(row_sums(), [x])), at={"n": 4, "m": 3})
    np.testing.assert_allclose(best(np.ones((4, 3), np.float32)), 3)
    with pytest.raises(rx.errors.ShapeError, match=r"call_tir of `row_sums`.*`X`, axis 1 should be 3, got 2"):
        best(np.ones((4, 2), np.float32))
    wide = main_of(ir.call_tir(row_sums("float64"), [ir.var("x", ir.Tensor("n 3 @ float64"))]))
    thirds = np.ones((4, 3)) / 3
    found = rx.optimize(wide, at={"n": 4})(thirds)  # 64 bits, whatever JAX has switched on
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, thirds.sum(1), 1e-15)


def running_sum(x: Any) -> Any:
    return jnp.cumsum(x)


def test_a_certificate_holds_tensor_programs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A derivation around and into tensor programs is written down, read back and checked; so is the cache's entry."""
    a, b, x = (ir.var(name, ir.Tensor(spec)) for name, spec in (("a", "k k"), ("b", "k n"), ("x", "n 3")))
    module = main_of(rx.op.matmul(rx.op.matmul(a, b), ir.call_tir(row_sums(), [x])))
    best = rx.optimize(module, at={"n": 256, "k": 512})
    best.certificate().save(tmp_path / "c.json")
    found = rx.types.Certificate.load(tmp_path / "c.json").verify(rx.rules.default)
    assert not found.not_evaluated and "row_sums" in (tmp_path / "c.json").read_text()
    monkeypatch.setenv("RELAX_EG_CACHE", "1")
    monkeypatch.setenv("RELAX_EG_CACHE_DIR", str(tmp_path / "cache"))
    rules = rx.rules.legalization
    slow = replace(rx.types.PROFILES["cpu"], name="slow scans", scalar_rate={"cumsum": 1e6})
    best, again = (rx.optimize(running_sum, "n", rules=rules, at={"n": 5}, target=slow) for _ in range(2))
    assert again.report.cached and again.module == best.module and CALL_TIR in operators(best.module)
    np.testing.assert_allclose(again(np.ones(7, np.float32)), np.arange(1, 8))
    assert "legalize" in str(best.explain())
    best.certificate().verify(rules)


def test_the_command_line_runs_modules(tmp_path: Any) -> None:
    text = str(rx.debug.legalize(rx.trace(jax.nn.relu, "n 4")))
    path = tmp_path / "with_programs.py"
    path.write_text(f"import relax_eg as rx\n\nmodule = rx.parse({text!r})\n")
    result = CliRunner().invoke(app, ["optimize", f"{path}:module", "--at", "n=4"])
    assert result.exit_code == 0 and CALL_TIR in result.output
