"""Planned storages: what is planned is what the machines run, and the bytes that they hold are those of the plan."""

from __future__ import annotations

import gc
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.shapes import Scope
from relax_eg.vm.instructions import AllocStorage, Instruction, RunRegion
from relax_eg.vm.storages import planned_bytes
from tests.dynamic.test_growing_loops import at_capacity
from tests.vm.planned_places import ReferenceRunner
from tests.vm.test_language import EXAMPLES, assert_alike, runner

N, ROOM = 41_003, 1 << 16
CHAIN = """
@R.function
def deeper(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int32")) -> R.Tensor((), "float32"):
    if k == 0:
        return R.sum(x)
    a = R.exp(x)
    _ = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    b = R.tanh(a)
    _1 = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    c = R.concat((b, a), axis=0)
    _2 = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    s = R.sum(c)
    d = R.sin(b)
    _3 = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    y = deeper(x, k - 1)
    return y + s + R.sum(d)

@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int32")):
    y = deeper(x, k)
    return y
"""


def instructions(run: Any, name: str, kind: type[Instruction]) -> list[Any]:
    return [i for i in run.compiler.code(name).instructions if isinstance(i, kind)]


def test_what_is_planned_is_what_runs() -> None:
    module, live = parse(CHAIN), list[int]()
    rx.script.register_function("tests.held", lambda: np.int32(live.append(_living()) or 0), replace=True)
    run = runner(module)
    n = 4 * N
    # b is written in the place of nothing, since a is read later; d in that of b, which is read for the last time.
    storages = instructions(run, "deeper", AllocStorage)
    assert [str(i.size) for i in storages] == ["4*n", "4*n", "8*n"]
    assert planned_bytes(run.compiler.code("deeper"), {"n": N}) == 4 * n
    assert [i.donates for i in instructions(run, "deeper", RunRegion) if i.donates]
    x = np.linspace(0.0, 1.0, N).astype(np.float32)
    wanted = evaluate(module, [x, np.int32(1)])
    reference = ReferenceRunner(with_dataflow_blocks(deduce_module(module)), Scope())
    np.testing.assert_allclose(reference.run([x, np.int32(1)]), wanted, rtol=1e-5)
    assert reference.memory.peak == 4 * n
    given = [jax.numpy.asarray(x), jax.numpy.int32(1)]
    run.run(given)
    gc.collect()
    live.clear()
    np.testing.assert_allclose(run.run(given), wanted, rtol=1e-5)
    # Beside x: a; a and b; b and c, as a was freed; d in the place of b, as XLA has no second array there.
    assert [b - n for b in live] == [n, 2 * n, 3 * n, n], live


def _living() -> int:
    return sum(x.nbytes for x in jax.live_arrays() if x.shape in ((N,), (2 * N,), (ROOM,), (2 * ROOM,)))


def test_blocks_at_capacity_take_over_storages() -> None:
    """What only blocks read stays at capacity, and its storage is taken over there as at exact sizes."""
    live = list[int]()
    rx.script.register_function("tests.held", lambda: np.int32(live.append(_living()) or 0), replace=True)
    run, kept = at_capacity(CHAIN)
    assert [i.donates for i in instructions(run, "deeper", RunRegion) if i.donates]
    x = jax.numpy.linspace(0.0, 1.0, N)
    given = [x, jax.numpy.int32(1)]
    wanted = evaluate(parse(CHAIN), [np.asarray(x), np.int32(1)])
    for _ in range(2):
        gc.collect()
        live.clear()
        np.testing.assert_allclose(run.run(given), wanted, rtol=2e-5)
        n = 4 * ROOM
        assert [b - x.nbytes for b in live] == [n, 2 * n, 3 * n, n], live
    assert not x.is_deleted()
    y, made = jax.numpy.linspace(0.0, 1.0, N - 9), kept.compilations
    np.testing.assert_allclose(run.run([y, given[1]]), evaluate(parse(CHAIN), [np.asarray(y), np.int32(1)]), rtol=2e-5)
    assert kept.compilations == made and all(e.buffer_sizes == {"n": ROOM} for _, e in kept.items())


TWICE = """
@R.function
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((4, "n"), "float32")):
    a = R.exp(x)
    _ = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    a2 = R.match_cast(a, R.Tensor(("m",), "float32"))
    b = R.tanh(a) + R.max(a2)
    same = k
    _1 = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    c = R.sin(b)
    d = R.exp(same)
    _2 = R.call_packed("tests.held", sinfo_args=R.Tensor((), "int32"))
    return R.cos(c), R.tanh(d), x, k
"""


@pytest.mark.parametrize("mode", ["exact", "capacity", "auto"])
def test_values_with_two_names_and_arguments_are_not_given_away(mode: str) -> None:
    rx.script.register_function("tests.held", lambda: np.int32(0), replace=True)
    module = parse(TWICE)
    best = rx.optimize(module, rules=rx.RuleSet("none"), dynamic=mode)
    for n in (2000, 2001, 3000):
        given = jax.numpy.linspace(0.0, 1.0, n), jax.numpy.ones((4, n))
        before = [np.array(x) for x in given]
        assert_alike(best(*given), evaluate(module, before))
        for x, y in zip(given, before, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_planned_memory(name: str) -> None:
    module, args = EXAMPLES[name]
    assert_alike(
        ReferenceRunner(with_dataflow_blocks(deduce_module(module)), Scope()).run(args), evaluate(module, args)
    )
