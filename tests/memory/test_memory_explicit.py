"""Explicit memory: printed, read, checked, and interpreted, where it gives what the module gives that it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import arguments, programs, size_bindings

import relax_eg as rx
from relax_eg import ir
from relax_eg.errors import MemoryPlanError, ModuleTextError, OperatorError, WellFormedError
from relax_eg.memory import Place
from relax_eg.memory.lower import lower_plan
from relax_eg.memory.plan import LAYOUTS
from relax_eg.memory.steps import overwritable
from relax_eg.ops.interpret import evaluate


def mlp(x: Any, w: Any, v: Any) -> Any:
    h = jax.nn.silu(x @ w) * (x @ v)
    return jax.nn.softmax(jnp.transpose(h) @ h, axis=-1).reshape(-1), h.sum(), x


def branches(i: Any, x: Any) -> Any:
    y = jax.lax.cond(i > 0, lambda v: jnp.tanh(v) @ v, lambda v: v + 1.0, x)
    return jax.lax.fori_loop(0, 3, lambda _, c: c @ y * 0.1, y) + x


def pair(x: Any) -> Any:
    a, b = jnp.split(jnp.exp(x), 2, axis=-1)
    return {"sum": a + b, "both": (jnp.concatenate([b, a], -1) * 2.0, a.astype(jnp.int32))}


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[dict[str, int], ...]]] = {
    "mlp": (mlp, ("n 4", "4 6", "4 6"), ({"n": 1}, {"n": 5})),
    "branches": (branches, ("@ int32", "n n"), ({"n": 3},)),
    "pair": (pair, ("n 6",), ({"n": 1}, {"n": 4})),
}


def drawn(module: rx.types.Module, sizes: dict[str, int]) -> list[Any]:
    rng = np.random.default_rng(0)
    made: list[Any] = []
    for p in module.main.params:
        shape = tuple(int(d.evaluate(sizes)) for d in p.shape)
        made.append(np.int32(1) if p.dtype == "int32" else rng.standard_normal(shape).astype(p.dtype))
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("results", ["apart", "planned"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_planned_module_computes_the_same(name: str, results: Any, layout: Any) -> None:
    fn, specs, bindings = PROGRAMS[name]
    module = rx.trace(fn, *specs)
    plan = rx.plan_memory(module, results=results, layout=layout, at=bindings[0], check=True)
    explicit = lower_plan(plan, module)
    assert rx.parse(str(explicit)) == explicit
    for sizes in bindings:
        args = drawn(module, sizes)
        wanted, found = evaluate(module, args), evaluate(explicit, args)
        leaves_of = jax.tree.leaves
        assert len(leaves_of(wanted)) == len(leaves_of(found)) > 0
        for a, b in zip(leaves_of(wanted), leaves_of(found), strict=True):
            np.testing.assert_array_equal(a, b)


@settings(max_examples=60)
@given(programs(), st.integers(0, 2**16), st.sampled_from(LAYOUTS))
def test_random_modules_compute_the_same_in_their_memory(module: rx.types.Module, seed: int, layout: Any) -> None:
    rng = np.random.default_rng(seed)
    bindings = size_bindings(module, rng, 3)
    results = ("apart", "planned")[seed % 2]
    plan = rx.plan_memory(module, at=bindings[-1], results=results, layout=layout, check=True)
    explicit = lower_plan(plan, module)
    assert rx.parse(str(explicit)) == explicit
    for sizes in bindings:
        args = arguments(module, sizes, rng)
        with np.errstate(all="ignore"):
            wanted, found = evaluate(module, args), evaluate(explicit, args)
        for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
            # Where in memory an operand lies may change how numpy adds up; memory that was spoiled gives NaN.
            close = np.isclose(b.astype(np.float64), a.astype(np.float64), rtol=1e-2, atol=1e-2, equal_nan=True)
            assert close.all()


def test_a_wrong_plan_computes_something_else() -> None:
    """What the comparison above is worth: with two values in one place, the result differs."""
    from dataclasses import replace

    module = rx.trace(lambda x: jnp.transpose(x @ x) @ jnp.sin(x), "n n")
    plan = rx.plan_memory(module, at={"n": 3}, layout="arena", check=True)
    same = dict.fromkeys(plan.places, Place(0, rx.ops.api.Dim.of(0)))
    wrong = replace(plan, placement=replace(plan.placement, places=same))
    args = drawn(module, {"n": 3})
    assert not np.allclose(evaluate(module, args), evaluate(lower_plan(wrong, module), args), equal_nan=False)


def test_kernels_that_optimize_chose() -> None:
    best = rx.optimize(mlp, "n 8", "8 16", "8 16", at={"n": 8}, execution="kernels")
    module = best.module
    plan = rx.plan_memory(best, at={"n": 8}, check=True)
    explicit = lower_plan(plan, module)
    assert rx.parse(str(explicit)) == explicit
    args = drawn(module, {"n": 5})
    for a, b in zip(evaluate(module, args), evaluate(explicit, args), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_of_all_levels_are_given_their_memory(layout: Any) -> None:
    """A tensor program, an operator that runs over its operand, and a routine of a library, which may not."""
    from examples.figures import cross_level

    module = cross_level.module()
    plan = rx.plan_memory(module, results="planned", layout=layout, at={"n": 3}, check=True)
    assert str(plan.bytes) == "2048*n" and len(set(plan.places.values())) == 2
    explicit = lower_plan(plan, module)
    text = str(explicit)
    assert rx.parse(text) == explicit and "R.alloc_storage(" in text and "R.kill(" in text
    for call in ("R.call_tir(Module.mm, ", "R.relu(", 'R.call_dps_library("cutlass.rms_norm", '):
        assert text.count(f"R.call_into({call}") == 1, text

    def norm(_: Any, operands: Any, sizes: Any) -> Any:
        (x,) = operands
        assert x.shape == (sizes["n"], 256)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    args = drawn(module, {"n": 5})
    wanted = evaluate(module, args, libraries=norm)
    # Where an operand lies may change how numpy adds up; memory that was spoiled gives NaN.
    np.testing.assert_allclose(evaluate(explicit, args, libraries=norm), wanted, rtol=1e-5)
    assert np.isfinite(wanted).all() and wanted.any()


def test_sizes_that_values_decide_have_no_explicit_form() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
    u: R.Tensor(ndim=1, dtype="float32") = R.unique(x)
    return u
"""
    module = rx.parse(text)
    with pytest.raises(MemoryPlanError, match="known only when it runs, so its memory has no explicit form"):
        lower_plan(rx.plan_memory(module), module)


HEAD = 'def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):'
WRONG = {
    "y is used after its end": (
        """s = R.alloc_storage("4*n", "cpu", "uint8")
        y = R.alloc_tensor(s, 0, ("n",), "float32")
        r = R.call_into(R.exp(x), y)
        k = R.kill(y)
        return y""",
        "`y` is used after it is killed",
    ),
    "a tensor that is larger than its storage": (
        """s = R.alloc_storage("4*n", "cpu", "uint8")
        y = R.alloc_tensor(s, 4, ("n",), "float32")
        r = R.call_into(R.exp(x), y)
        return y""",
        "the tensor has bytes 4 to 4*n + 4, its storage `s` has 4*n",
    ),
    "a kernel that gives something else": (
        """s = R.alloc_storage("4*n", "cpu", "uint8")
        y = R.alloc_tensor(s, 0, ("n",), "int32")
        r = R.call_into(R.exp(x), y)
        return x""",
        'the kernel fills R.Tensor(("n",), dtype="float32"); given: R.Tensor(("n",), dtype="int32")',
    ),
    "a destination that nobody allocated": (
        """r = R.call_into(R.exp(x), x)
        return x""",
        "call_into fills `x`; tensors made by alloc_tensor are accepted",
    ),
    "a tensor in what is no storage": (
        """y = R.alloc_tensor(x, 0, ("n",), "float32")
        return y""",
        "`x` is no storage; a variable bound to alloc_storage is accepted",
    ),
    "the end of an argument": (
        """k = R.kill(x)
        return x""",
        "kill of `x`; a tensor made by alloc_tensor is accepted",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_of_memory_are_refused(name: str) -> None:
    body, message = WRONG[name]
    with pytest.raises(WellFormedError) as error:
        rx.parse(f"@R.function\n{HEAD}\n        {body}\n")
    assert message in str(error.value)


def test_allocation_inside_a_dataflow_block_is_refused() -> None:
    text = f"""
@R.function
{HEAD}
    with R.dataflow():
        s = R.alloc_storage("4*n", "cpu", "uint8")
        R.output(s)
    return x
"""
    with pytest.raises(WellFormedError, match="alloc_storage must be the whole value of a binding outside dataflow"):
        rx.parse(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s = R.alloc_storage(4)", 'R.alloc_storage("4*n", "cpu", "uint8"), the size in bytes'),
        ("s = R.alloc_storage(4, 5, 6)", "dtype and device are text"),
        ("s = R.kill()", "R.kill(tensor)"),
        ("s = R.call_into(R.exp(x))", "R.call_into(kernel, tensor, ...)"),
    ],
)
def test_text_that_cannot_be_read(line: str, message: str) -> None:
    with pytest.raises(ModuleTextError) as error:
        rx.parse(f"@R.function\n{HEAD}\n    {line}\n    return x\n")
    assert message in str(error.value)


def test_a_tensor_outside_its_storage_is_found_when_it_runs() -> None:
    text = f"""
@R.function
{HEAD}
    s = R.alloc_storage("2*n + 8", "cpu", "uint8")
    y = R.alloc_tensor(s, 0, ("n",), "float32")
    r = R.call_into(R.exp(x), y)
    return y
"""
    module = rx.parse(text)
    evaluate(module, [np.ones(4, np.float32)])
    with pytest.raises(rx.errors.ShapeError, match="bytes 0 to 20 of a storage that has 18"):
        evaluate(module, [np.ones(5, np.float32)])


def test_explicit_memory_is_not_planned_again() -> None:
    module = rx.trace(lambda x: jnp.abs(jnp.sign(x)), "n")
    explicit = lower_plan(rx.plan_memory(module), module)
    with pytest.raises(MemoryPlanError, match=r"main\(\) allocates its memory itself"):
        rx.plan_memory(explicit)


TWO_IN_ONE = f"""
@R.function
{HEAD}
    s = R.alloc_storage("4*n", "cpu", "uint8")
    y = R.alloc_tensor(s, 0, ("n",), "float32")
    r = R.call_into(R.exp(x), y)
    z = R.alloc_tensor(s, 0, ("n",), "float32")
    q = R.call_into(R.READ, z)
    return RESULT
"""


def test_what_is_in_explicit_memory_becomes_values() -> None:
    module = rx.parse(TWO_IN_ONE.replace("READ", "tanh(y)").replace("RESULT", "z"))
    best = rx.optimize(module)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(best(x), np.tanh(np.exp(x)), rtol=1e-6)
    np.testing.assert_allclose(evaluate(module, [x]), np.tanh(np.exp(x)), rtol=1e-6)


def test_a_tensor_that_another_may_overwrite_is_refused() -> None:
    module = rx.parse(TWO_IN_ONE.replace("READ", "tanh(y)").replace("RESULT", "y"))
    with pytest.raises(
        rx.errors.SpecError, match=r"main\(\) allocates its memory itself, and reads a tensor that another"
    ):
        rx.optimize(module)


def test_memory_holds_no_exact_numbers() -> None:
    module = rx.trace(lambda x: jnp.abs(jnp.sign(x)), "n")
    explicit = lower_plan(rx.plan_memory(module), module)
    with pytest.raises(OperatorError, match="memory holds no exact numbers"):
        evaluate(explicit, [np.ones(2, np.float32)], arithmetic="exact")


IN_PLACE = {
    "exp": (lambda x, y: jnp.exp(x), [True, False]),
    "add": (lambda x, y: x + y, [True, True]),
    "broadcast of one": (lambda x, y: x + y[:1], [True, False]),
    "transpose": (lambda x, y: jnp.transpose(x), [False, False]),
    "twice": (lambda x, y: x * x + y, [True, True]),
    "matmul": (lambda x, y: x @ y, [False, False]),
    "softmax": (lambda x, y: jax.nn.softmax(x, -1), [False, False]),
    "reverse": (lambda x, y: x[::-1], [False, False]),
    "cumsum": (lambda x, y: jnp.cumsum(x, 0), [False, False]),
    "where": (lambda x, y: jnp.where(x > y, x, 0.0), [True, True]),
    "epilogue": (lambda x, y: x @ x + y, [False, True]),
    "read in two ways": (lambda x, y: x + jnp.transpose(x) + y, [False, True]),
    "sum in between": (lambda x, y: (x - x.sum()) * y, [False, True]),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_output_goes_over_operands_that_are_read_element_for_element(name: str) -> None:
    """What the analysis says of kernels of several operators; and that it is so: where it says that operand and output
    go together, another value of one element of the operand changes that element of the output, and no other."""
    fn, wanted = IN_PLACE[name]
    traced = rx.trace(fn, "3 3", "3 3")
    (root,) = [b.value for block in traced.main.blocks for b in block.bindings]
    members = [e for e in ir.postorder([root]) if e.op not in (ir.VAR, ir.CONSTANT)]
    try:
        kernel = rx.ops.fused.fused_call(members, [root])
    except OperatorError:
        kernel = root  # not one kernel
    operands = {a for _, a in overwritable(kernel)}
    x, y = traced.main.params
    found = [x in operands, y in operands]
    assert found == wanted
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((3, 3)).astype(np.float32) for _ in range(2)]
    before = evaluate(traced, args)
    for i, alone in enumerate(found):
        for place in np.ndindex(3, 3) if alone else ():
            other = [a.copy() for a in args]
            other[i][place] += 1.0
            changed = np.argwhere(evaluate(traced, other) != before)
            assert all(tuple(c) == place for c in changed)
