"""Planned storages: what is planned is what the machines run, and the bytes that they hold are those of the plan."""

from __future__ import annotations

import gc
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.in_memory import ReferenceRunner
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.shapes import Scope
from relax_eg.vm.instructions import AllocStorage, Instruction, RunRegion
from relax_eg.vm.storages import planned_bytes
from tests.vm.test_language import EXAMPLES, assert_alike, runner

N = 41_003
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
    rx.register_function("tests.held", lambda: np.int32(live.append(_living()) or 0), replace=True)
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
    return sum(x.nbytes for x in jax.live_arrays() if x.shape in ((N,), (2 * N,)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_in_planned_memory(name: str) -> None:
    module, args = EXAMPLES[name]
    assert_alike(
        ReferenceRunner(with_dataflow_blocks(deduce_module(module)), Scope()).run(args), evaluate(module, args)
    )
