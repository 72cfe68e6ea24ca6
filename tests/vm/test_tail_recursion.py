"""Tail recursion on tensors as loops: which functions become one, and that their values stay."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from relax_eg.backend.lowering.lower import run_function
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.frontends.tail_recursion import with_loops
from relax_eg.ir.module import Module
from relax_eg.ir.steps import general_functions
from relax_eg.ir.wellformed import check
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from tests.vm.language_programs import HIGHER_ORDER, MANDELBROT, MUTUAL, SCALAR, TOTAL

INT = 'R.Tensor((), "int32")'
ENTRY = f"""
@R.function
def main(n: {INT}, x: {SCALAR}) -> {SCALAR}:
    if n > 3:
        return main(n - 1, x * 2.0 + 1.0)
    return x - 1.0
"""
SIZES = f"""
@R.function
def grow(x: R.Tensor(("n",), "float32"), k: {INT}) -> R.Tensor(("n",), "float32"):
    if k <= 0:
        return x * R.op.full((), n, "float32")
    return grow(x + 1.0, k - 1)
@R.function
def main(x: R.Tensor(("m",), "float32"), k: {INT}):
    return R.op.sum(grow(x, k))
"""
LARGER = f"""
@R.function
def main(x: R.Tensor(ndim=1, dtype="float32"), k: {INT}) -> R.Tensor(ndim=1, dtype="float32"):
    if k <= 0:
        return x
    return main(R.op.concatenate((x, x)), k - 1)
"""


def looped(text: str) -> tuple[Module, tuple[str, ...]]:
    found, names = with_loops(with_dataflow_blocks(deduce_module(parse(text))))
    found = with_dataflow_blocks(found)
    check(found)
    return found, names


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        (MANDELBROT, "escape", (np.float32(-0.1), np.float32(0.7), np.int32(40))),
        (MANDELBROT, "escape", (np.float32(1), np.float32(0.7), np.int32(40))),
        (ENTRY, "main", (np.int32(9), np.float32(0.5))),
        (ENTRY, "main", (np.int32(0), np.float32(0.5))),
        (SIZES, "grow", (np.arange(3, dtype=np.float32), np.int32(4))),
    ],
)
def test_loops(text: str, name: str, args: tuple[Any, ...]) -> None:
    module, names = looped(text)
    assert names == (name,) and not general_functions(module)
    wanted = evaluate(parse(text), args)
    np.testing.assert_allclose(evaluate(module, args), wanted, rtol=1e-6)
    got = jax.jit(lambda *given: run_function(module, module.main, given))(*args)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        MUTUAL,
        TOTAL,
        HIGHER_ORDER,
        LARGER,
        f"@R.function\ndef main(n: {INT}) -> {INT}:\n    if n < 2:\n        return 1\n    return n * main(n - 1)\n",
    ],
    ids=range(5),
)
def test_what_is_no_loop(text: str) -> None:
    assert looped(text)[1] == ()
