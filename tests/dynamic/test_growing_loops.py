"""Recursion over tensors that grow: loops of XLA at capacity, whose arrays are written in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from relax_eg.backend.calls.executables import Executables, executables
from relax_eg.backend.steps import Runner
from relax_eg.dynamic.policy import Dynamic, read_policy
from relax_eg.dynamic.steps import CapacityPrograms
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.shapes import Scope
from relax_eg.vm.instructions import Advance
from tests.vm.language_programs import cache_program

CACHE = cache_program()


def at_capacity(text: str, scope: Scope | None = None) -> tuple[Runner, Executables]:
    """The machine of a module at capacities, without a search, and its executables."""
    module, scope = with_dataflow_blocks(deduce_module(parse(text))), scope or Scope()
    policy = read_policy("main", module.main.size_variables, scope, Dynamic(mode="capacity"))
    kept = executables({}, 64)
    return Runner(module, scope, kept, partial(CapacityPrograms, policy)), kept


def cached(most: int) -> list[Any]:
    random = np.random.default_rng(0)
    x, *weights = ((random.normal(size=s) / 4).astype(np.float32) for s in ((1, 64), (128, 64), (64, 192), (64, 128)))
    return [x, np.int32(most), *weights]


def loops(run: Runner) -> list[str]:
    return [i.name for f in run.module for i in run.compiler.code(f.name).instructions if isinstance(i, Advance)]


def test_a_cache_that_grows() -> None:
    run, kept = at_capacity(CACHE)
    assert loops(run) == ["decode"]
    (loop,) = run.programs.loops  # type: ignore[attr-defined]
    assert [m.reason for m in loop._step.masks] == ["softmax, max over t + 1"], "zeros of caches are masked again"
    for most in (1, 2, 40, 70):
        args = cached(most)
        np.testing.assert_array_equal(run.run([jax.numpy.asarray(a) for a in args]), evaluate(parse(CACHE), args))
    # Loops at 32, 64 and 128, and the conditions after them; none for each of 70 sizes.
    made = [e for _, e in kept.items()]
    assert len(made) <= 8 and max(e.buffer_sizes["t"] for e in made) == 128
    large = next(e for e in made if e.buffer_sizes["t"] == 128 and e.memory and e.memory[1] > 1000)
    text = large.jitted.lower(*_shapes(large, loop)).compile().as_text()
    body = text.partition("while/body")[0]
    assert "f32[128,64]{1,0} copy" not in body, "a cache is copied at each step"


def _shapes(made: Any, loop: Any) -> Any:
    params = loop.f.params
    kinds = [jax.ShapeDtypeStruct([int(d.evaluate({"t": 128})) for d in p.shape], p.tensor.dtype) for p in params]
    own = [kinds[i] for i in loop._carried]
    return own, (jax.ShapeDtypeStruct((), np.int32),), [k for k in kinds if not any(k is o for o in own)]


LONGER = """
@R.function
def longer(xs: R.Tensor(("s",), "float32"), ys: R.Tensor(("s", "k"), "float32"), left: R.Tensor((), "int32"),
           zs: R.Tensor(("k",), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
    if left <= 0:
        return xs * 2.0
    total = R.sum(xs)
    more = R.concat((xs, R.op.reshape(total, (1,)), R.op.reshape(R.max(ys), (1,))), axis=0)
    rows = R.concat((ys, R.op.reshape(zs, (1, "k")), R.op.reshape(zs * total, (1, "k"))), axis=0)
    return longer(more, rows, left - 1, zs)

@R.function
def main(xs: R.Tensor(("s",), "float32"), ys: R.Tensor(("s", "k"), "float32"), left: R.Tensor((), "int32"),
         zs: R.Tensor(("k",), "float32")):
    return longer(xs, ys, left, zs)
"""


@pytest.mark.parametrize(("size", "left"), [(3, 0), (3, 1), (1, 45)])
def test_two_at_a_step(size: int, left: int) -> None:
    run, _ = at_capacity(LONGER)
    assert loops(run) == ["longer"] and dict(run.programs.loops[0].growth) == {"s": 2}  # type: ignore[attr-defined]
    random = np.random.default_rng(size)
    xs, ys, zs = (random.normal(size=s).astype(np.float32) / 8 for s in ((size,), (size, 3), (3,)))
    args = [xs, ys, np.int32(left), zs]
    np.testing.assert_allclose(run.run([jax.numpy.asarray(a) for a in args]), evaluate(parse(LONGER), args), rtol=1e-4)


PREFIX = """
@R.function
def main(xs: R.Tensor(("s",), "float32"), left: R.Tensor((), "int32")) -> R.Tensor(ndim=1, dtype="float32"):
    if left == 0:
        return xs
    return main({step}, left - 1)
"""


@pytest.mark.parametrize(
    ("step", "found"),
    [
        ("R.concat((xs, xs[:1]), axis=0)", ["main"]),
        ("R.concat((xs[:1] + R.sum(xs), xs), axis=0)", ["main"]),
        ("R.concat((xs, xs), axis=0)", []),  # it grows by itself
        ("xs[1:]", []),  # it becomes shorter
    ],
)
def test_what_grows(step: str, found: list[str]) -> None:
    run, _ = at_capacity(PREFIX.format(step=step))
    assert loops(run) == found
    args = [np.arange(5, dtype=np.float32), np.int32(3)]
    text = parse(PREFIX.format(step=step))
    np.testing.assert_allclose(run.run([jax.numpy.asarray(a) for a in args]), evaluate(text, args), rtol=1e-5)


def test_bounds_end_a_loop() -> None:
    scope = Scope({"s": (1, 40)})
    run, kept = at_capacity(PREFIX.format(step="R.concat((xs, xs[:1]), axis=0)"), scope)
    args = [jax.numpy.arange(5, dtype="float32"), jax.numpy.int32(35)]
    assert run.run(args).shape == (40,)
    assert max(e.buffer_sizes["s"] for _, e in kept.items()) == 40
