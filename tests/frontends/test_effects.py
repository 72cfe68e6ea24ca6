"""Effects: kept, in order, each in a block of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from frontend_support import assert_close, interpret, routines, sample
from jax.experimental import io_callback

from relax_eg.backend.lowering.lower import run_function
from relax_eg.frontends import Traced, trace, trace_function
from relax_eg.ir.module import Function
from relax_eg.ir.wellformed import check

seen: list[float] = []


def record(x: np.ndarray) -> np.ndarray:
    seen.append(round(float(x), 3))
    return np.float32(len(seen))


def kinds(function: Function) -> list[bool]:
    return [b.dataflow for b in function.blocks]


def run(found: Traced, leaves: list) -> list:
    """The traced function under `jax.jit`, waited for."""
    out = jax.jit(lambda *xs: run_function(found.module, found.module.main, xs))(*leaves)
    jax.effects_barrier()
    jax.block_until_ready(out)
    return list(out) if isinstance(out, tuple) else [out]


def test_prints_stay_in_order_and_unused_ones_stay(capfd) -> None:
    def fn(x):
        jax.debug.print("first {}", x.sum(), ordered=True)
        y = jnp.sin(x)
        jax.debug.print("second {}", y.shape[0], ordered=True)
        return y * 2

    found = trace_function(fn, ("n",))
    check(found.module)
    assert found.effectful
    assert sum(not b.dataflow for b in found.module.main.blocks) == 2
    run(found, [jnp.ones(3)])
    assert capfd.readouterr().out.split() == ["first", "3.0", "second", "3"]


def test_values_flow_through_effects() -> None:
    def fn(x):
        shared = jnp.tanh(x)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        a = io_callback(record, scalar, shared.sum(), ordered=True)
        b = io_callback(record, scalar, (shared * a).sum(), ordered=True)
        return shared + b, a

    found = trace_function(fn, ("n",))
    check(found.module)
    assert kinds(found.module.main) == [True, False, True, False, True]
    (leaf,) = sample(found, {"n": 3})
    total = float(jnp.tanh(leaf).sum())
    for way in (interpret, run):
        seen.clear()
        first, second = way(found, [leaf])
        assert seen == [round(total, 3), round(total, 3)]
        assert_close(first, np.tanh(leaf) + 2, 1e-5)
        assert_close(second, np.float32(1), 0)


def test_two_equal_effects_happen_twice() -> None:
    def fn(x):
        for _ in range(2):
            io_callback(record, jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)
        return x

    found = trace_function(fn, ("",))
    assert len(found.module.main.blocks) == 3
    seen.clear()
    interpret(found, [jnp.float32(4)])
    assert seen == [4.0, 4.0]


def test_effects_inside_loops_and_branches() -> None:
    def fn(x):
        def body(i, c):
            io_callback(record, jax.ShapeDtypeStruct((), jnp.float32), c.sum() * c.shape[0], ordered=True)
            return c + 1

        return jax.lax.fori_loop(0, x.shape[0], body, x)

    found = trace_function(fn, ("n",))
    check(found.module)
    assert routines(found.module.main) == set()
    steps = [b.value.op for block in found.module.main.blocks if not block.dataflow for b in block.bindings]
    assert steps == ["while_loop"]
    seen.clear()
    run(found, [jnp.zeros(2)])
    assert seen == [0.0, 4.0]


def test_an_effect_without_results_or_outputs() -> None:
    found = trace_function(lambda x: jax.debug.print("{}", x) or (), ("",))
    check(found.module)
    assert kinds(found.module.main) == [False]


def test_pure_programs_are_one_block() -> None:
    main = trace(lambda x: (x + 1, x, jnp.sin(x)), "n").main
    assert kinds(main) == [True]
    assert len(main.blocks[0].bindings) == 3


def test_references_made_inside() -> None:
    def fn(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...] + 1

    found = trace_function(fn, ("3",))
    check(found.module)
    assert_close(run(found, [jnp.ones(3)])[0], np.full(3, 3, np.float32), 0)
