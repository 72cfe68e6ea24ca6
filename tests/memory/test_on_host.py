"""Values that are kept in the memory of the host: what that saves and takes, as planned, priced and compiled."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.footprint import avals, whole_footprint
from relax_eg.backend.gpu.target import plugin_version, target_for
from relax_eg.backend.lowering.lower import run_at
from relax_eg.driver.limits.arranging import Arranged, Arranger
from relax_eg.driver.prices import WAITING_FOR_HOST, ByProfile, price_at
from relax_eg.extract.profiles.devices import profile
from relax_eg.extract.selection.clock import Clock
from relax_eg.ir import Module, Tensor, pure_function, var
from relax_eg.ir.wellformed import check
from relax_eg.memory.pinned import without_order
from relax_eg.ops import api as op
from relax_eg.ops.transfers import FROM_HOST, ON_HOST, last_end

H100 = ByProfile(profile("h100"))
LAYERS, ROWS, WIDTH = 6, 65536, 4096
with_plugin = pytest.mark.skipif(not plugin_version(), reason="relax-eg[cuda] is not installed")


def loss(ws: Any, x: Any, y: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


STEP = jax.value_and_grad(loss)


def traced(rows: int = ROWS, width: int = WIDTH) -> Module:
    return rx.trace(STEP, [f"{width} {width}"] * LAYERS, f"{rows} {width}", f"{rows} {width}")


def arranged(share: float, rate: float, module: Module | None = None) -> tuple[Arranger, Arranged]:
    made = Arranger(module or traced(), H100, {}, set(), rate)
    found = made.within(int(share * made.peak), Clock())
    assert found is not None
    return made, found


def transfers(module: Module) -> list[str]:
    return [e.op for e in module.main.expressions() if e.op in (ON_HOST, FROM_HOST)]


def test_engines_work_side_by_side() -> None:
    copied = [("compute", 2.0, []), ("to host", 5.0, [0]), ("compute", 3.0, [0])]
    assert last_end(copied) == 7.0  # a copy of five seconds begins after two
    assert last_end([*copied, ("from host", 5.0, [1, 2]), ("compute", 1.0, [3])]) == 13.0
    assert last_end([*copied, ("to host", 5.0, [2])]) == 12.0  # one copy after the other
    assert last_end([("compute", 1.0, []), (None, 0.0, [0]), ("compute", 1.0, [])]) == 2.0


def test_what_is_kept_on_the_host_is_named_and_no_longer_on_the_device() -> None:
    made, found = arranged(0.7, H100.profile.host_rate)
    assert found.kept and found.peak < 0.75 * made.peak
    names, sizes = zip(*found.kept, strict=True)
    assert {*sizes} == {ROWS * WIDTH * 4} and all(re.match(r"tanh[.\d]* .*test_on_host", n) for n in names)
    assert transfers(found.module).count(FROM_HOST) >= len(found.kept) == transfers(found.module).count(ON_HOST)
    assert without_order(found.module) == without_order(made.module)
    check(found.module)
    assert rx.parse(str(found.module)) == found.module
    _, without = arranged(0.7, 0.0)
    assert not without.kept and not transfers(without.module) and without.again > found.again


def test_a_slow_link_is_not_used() -> None:
    """Copies that nothing hides take longer than computing again."""
    _, found = arranged(0.7, H100.profile.host_rate / 1e4)
    assert not found.kept and found.again


def seconds_and_waits(module: Module) -> tuple[float, float]:
    cost = price_at(module, H100, {})
    return cost.seconds, sum(r.seconds for r in cost.rows if r.op == WAITING_FOR_HOST)


def test_a_copy_costs_what_computing_does_not_hide() -> None:
    """A value of 1 GiB goes to the host and back beside matmuls, of which each takes about 4.5 ms."""

    def program(between: int) -> Module:
        x, w = var("x", Tensor((ROWS, WIDTH), "float32")), var("w", Tensor((WIDTH, WIDTH), "float32"))
        early = held = op.tanh(op.matmul(x, w))
        for i in range(between):
            held = op.tanh(op.matmul(held, op.add(w, float(i))))
            if i == between // 2 - 1:
                back = op.from_host(op.after(op.on_host(early), held))
        return Module((pure_function("main", [x, w], [op.add(held, back)]),))

    copy = ROWS * WIDTH * 4 / H100.profile.host_rate
    short, long = (seconds_and_waits(program(n)) for n in (2, 20))
    assert long[1] == 0.0
    assert 1.2 * copy < short[1] <= 2 * copy
    plain = seconds_and_waits(without_order(program(2)))
    assert plain[1] == 0.0 and short[0] - plain[0] == pytest.approx(short[1], rel=0.1)


def test_a_cpu_is_its_own_host() -> None:
    """Where nothing is copied the program computes the same; and searches drop the operators."""
    module = traced(64, 16)
    small = Arranger(module, H100, {}, set(), 0.0)
    assert not small.within(small.peak // 2, Clock()).kept  # type: ignore[union-attr]
    x, w = var("x", Tensor("n 16", "float32")), var("w", Tensor("16 16", "float32"))
    first = op.tanh(op.matmul(x, w))
    late = op.matmul(first, w)
    node = op.add(op.from_host(op.after(op.on_host(first), late)), op.after(late, op.on_host(first)))
    kept = Module((pure_function("main", [x, w], [node]),))
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((5, 16), (16, 16))]
    expected = run_at(without_order(kept), kept.main, args, {"n": 5})
    found = jax.jit(lambda *a: run_at(kept, kept.main, a, {"n": 5}))(*args)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # one program, and one for each operator
    best = rx.optimize(kept, at={"n": 512}, memory_limit="1 MiB")
    assert best.check(*args).passed and not transfers(best.module)


@with_plugin
@pytest.mark.xla_defaults
def test_xla_copies_beside_kernels_and_frees_the_memory() -> None:
    target = target_for("h100")
    _, found = arranged(0.75, H100.profile.host_rate)
    written, kept = (whole_footprint(m, set(), {}, {}, target).bytes for m in (traced(), found.module))
    assert kept < 0.9 * written
    main = found.module.main
    with target.lowering_there():
        lowered = target.lowered(lambda *xs: run_at(found.module, main, xs, {}), avals(main, {}))
    lines = target.compile(lowered, {}).executable.as_text().splitlines()
    begins, ends = ([i for i, x in enumerate(lines) if f" copy-{k}(" in x] for k in ("start", "done"))
    assert len(begins) == len(ends) == len(transfers(found.module))
    computed = [i for i, x in enumerate(lines) if " fusion(" in x]
    for begin, end in zip(begins, ends, strict=True):
        assert any(begin < i < end for i in computed)  # matmuls run meanwhile


@with_plugin
@pytest.mark.slow
@pytest.mark.xla_defaults
def test_a_limit_is_kept_on_an_absent_gpu_with_the_host() -> None:
    specs = ([f"{WIDTH} {WIDTH}"] * 8, f"{ROWS} {WIDTH}", f"{ROWS} {WIDTH}")
    rules = rx.rules.default - "accumulated_over_pieces" - "computed_in_pieces"
    best = rx.optimize(STEP, *specs, target="h100", memory_limit="6.6 GiB", rules=rules)
    row = best.report.memory
    assert row.bytes <= row.limit < row.without and row.kept and "kept on the host: tanh" in str(row)
    assert best.report.rules["kept_on_host"] == len(row.kept)
    assert whole_footprint(best.module, set(), {}, {}, target_for("h100")).bytes == row.bytes
    without = rx.optimize(STEP, *specs, target="h100", memory_limit="6.6 GiB", rules=rules - "kept_on_host")
    assert not without.report.memory.kept and row.slower < without.report.memory.slower
