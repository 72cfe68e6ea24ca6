"""Loops that are one kernel on CPUs: what is chosen, what XLA makes of it, and where it stays a loop."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import relax_eg as rx
from relax_eg.backend.lowering.lower import run_function
from relax_eg.ir.module import Module

pytestmark = pytest.mark.xla_defaults
RULES = ("loop_in_one_kernel", "written_loop_in_one_kernel")
ONE = 'xla_cpu_small_call="true"'


def array(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).uniform(-0.5, 0.5, shape), jnp.float32)


def normed(c: Any, w: Any, x: Any) -> Any:
    """Several small kernels: a matrix times a vector, reductions, and what reads their results."""
    y = jax.nn.softmax(w @ c + x)
    return (y - y.mean()) / (y.max() + jnp.abs(c).sum())


def scanned(xs: Any, w: Any) -> Any:
    def step(c: Any, x: Any) -> tuple[Any, Any]:
        return (y := normed(c, w, x)), y

    return lax.scan(step, jnp.zeros(24), xs)[1]


def counted(n: Any, w: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, normed(s[1], w, w[0])), (jnp.int32(0), w[1]))[1]


SPECS, ARRAYS = ("t 24", "24 24"), (array(100, 24), array(24, 24, seed=1))


@pytest.fixture(scope="module")
def best() -> Any:
    return rx.optimize(scanned, *SPECS, at={"t": 100})


def compiled_text(fn: Callable[..., Any], *args: Any) -> str:
    return jax.jit(fn).lower(*args).compile().as_text() or ""


def marked(module: Module) -> list[str]:
    return re.findall(r"R\.(scan|while_loop)\(.*one_kernel=True", str(module))


def as_kernel(fn: Callable[..., Any], *specs: Any) -> Callable[..., Any]:
    """The program of a function, whose loops are marked."""
    text, count = re.subn(r"(R\.(?:scan|while_loop)\(.*)\)", r"\1, one_kernel=True)", str(rx.trace(fn, *specs)))
    assert count
    module = rx.parse(text)
    assert str(module) == text
    return lambda *xs: run_function(module, module.main, xs)


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-5))


def test_a_loop_of_many_small_kernels_is_one(best: Any) -> None:
    assert any(r in best.report.rules for r in RULES) and marked(best.module) == ["scan"]
    assert best.check(*ARRAYS).passed
    assert ONE in compiled_text(best.to_jax(), *ARRAYS)
    (scan,) = (r for r in best.report.after.rows if r.op == "scan")
    assert scan.launches == 1 and best.report.after.launches < best.report.before.launches / 10
    assert sum(p.seconds for p in best.report.after.parts) == pytest.approx(best.report.after.seconds, rel=1e-9)
    assert str(rx.parse(str(best.module))) == str(best.module)
    assert close(best(ARRAYS[0][:37], ARRAYS[1]), scanned(ARRAYS[0][:37], ARRAYS[1]))


def test_without_the_rule_no_loop_is_one() -> None:
    other = rx.optimize(scanned, *SPECS, at={"t": 100}, rules=rx.rules.default - RULES[0] - RULES[1])
    assert not marked(other.module) and ONE not in compiled_text(other.to_jax(), *ARRAYS)


@pytest.mark.parametrize("fn", [scanned, counted])
def test_a_marked_loop_computes_the_same(fn: Callable[..., Any]) -> None:
    args, specs = (ARRAYS, SPECS) if fn is scanned else ((jnp.int32(9), ARRAYS[1]), ("@ int32", "24 24"))
    program = as_kernel(fn, *specs)
    assert ONE in compiled_text(program, *args)
    assert close(jax.jit(program)(*args), fn(*args))


def test_a_loop_in_a_loop_is_part_of_the_kernel() -> None:
    def fn(xs: Any, w: Any) -> Any:
        return lax.scan(lambda c, x: (lax.fori_loop(0, 3, lambda _, d: normed(d, w, x), c), c.sum()), xs[0], xs)

    program = as_kernel(fn, *SPECS)
    assert ONE in compiled_text(program, *ARRAYS)
    assert all(map(close, jax.jit(program)(*ARRAYS), fn(*ARRAYS)))


@pytest.mark.parametrize(
    ("step", "shape"),
    [(lambda c: jnp.tanh(c @ c), "32 32"), (lambda c: jnp.sort(c) * 0.9, "32"), (lambda c: jnp.sin(c) * c, "1000000")],
    ids=["library", "sort", "several cores"],
)
def test_what_one_kernel_cannot_do_stays_a_loop(step: Callable[[Any], Any], shape: str) -> None:
    found = rx.optimize(lambda x: lax.fori_loop(0, 50, lambda _, c: step(c), x), shape)
    assert not marked(found.module)


def test_only_cpus_have_such_kernels() -> None:
    for target in ("h100", "laptop"):
        module = rx.optimize(scanned, *SPECS, at={"t": 100}, target=target).module
        assert bool(marked(module)) == (target == "laptop")


def test_what_xla_refuses_stays_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), c[0]), x, None, length=9)[1]

    program, args = as_kernel(fn, "16 16", "16 16"), (array(16, 16), array(16, 16, seed=1))
    with caplog.at_level(logging.INFO, "relax_eg"):
        assert close(jax.jit(program)(*args), fn(*args))
    assert any("a loop is not one kernel: XLA says" in r.message for r in caplog.records)


def test_derivatives_and_batches_are_those_of_the_loop(best: Any) -> None:
    f = best.to_jax()
    many = array(32, 10, 24), ARRAYS[1]  # of 32 vectors, a library multiplies them
    assert close(jax.vmap(f, (0, None))(*many), jax.vmap(scanned, (0, None))(*many))
    slope, least = (jax.grad(lambda w, fn=fn: (fn(ARRAYS[0], w) ** 2).sum())(ARRAYS[1]) for fn in (f, scanned))
    assert close(slope, least)


def test_it_is_explained(best: Any) -> None:
    steps = str(best.explain())
    assert any(r in steps for r in RULES)


def test_it_is_saved(best: Any, tmp_path: Path) -> None:
    best.save(tmp_path / "scanned.rxe")
    loaded = rx.load(tmp_path / "scanned.rxe")
    assert ONE in compiled_text(loaded.to_jax(), *ARRAYS) and close(loaded(*ARRAYS), scanned(*ARRAYS))


def test_it_is_optimized_again(best: Any) -> None:
    assert rx.optimize(best.to_jax(), "100 24", "24 24").check(*ARRAYS).passed


def test_a_loop_that_xla_makes_one_kernel_is_not_marked() -> None:
    def fn(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(w @ c), c), x, None, length=50)

    found = rx.optimize(fn, "4", "4 4")
    assert not marked(found.module) and ONE in compiled_text(found.to_jax(), array(4), array(4, 4))
    assert found.report.before.launches == 1


@pytest.mark.parametrize("options", [{"execution": "kernels"}, {"memory_limit": "1 MiB"}, {"dynamic": "capacity"}])
def test_other_ways_to_run(options: dict[str, Any]) -> None:
    found = rx.optimize(scanned, *SPECS, at={"t": 100}, **options)
    for t in (100, 37):
        assert close(found(ARRAYS[0][:t], ARRAYS[1]), scanned(ARRAYS[0][:t], ARRAYS[1])), t
