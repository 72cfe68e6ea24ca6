"""Memory plans of small programs, worked out by hand."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from memory_programs import memory_program, planned_in

import relax_eg as rx
from relax_eg import ir
from relax_eg.memory import Plan, leaves, program_of
from relax_eg.memory.placement import Layout
from relax_eg.memory.plan import LAYOUTS
from relax_eg.rules.book.workspace import workspace
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.shapes import Dim, Proved, Refuted
from relax_eg.tir import parse_program


def storages(plan: Plan) -> list[str]:
    return sorted(str(s.bytes) for s in plan.storages)


def chain(x: Any) -> Any:
    y = jax.nn.relu(jnp.exp(x).reshape(-1))
    return jnp.log(jnp.pad(y + y, 1))


def test_a_chain_with_a_view_and_a_larger_end() -> None:
    plan = rx.plan_memory(rx.trace(chain, "2 4"), check=True)
    assert storages(plan) == ["32", "40"]
    assert plan.static and plan.bytes == 72 == plan.bound_at({})
    (returned,) = leaves(plan.program.result)
    assert plan.program.values[returned].role == "result" and returned not in plan.places
    assert plan.results == 40


def test_the_same_chain_by_tvm() -> None:
    greedy = rx.plan_memory(rx.trace(chain, "2 4"), layout="greedy", check=True)
    assert storages(greedy) == ["32", "40"]  # the second storage grows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_returned_value_is_planned_where_that_is_asked_for(layout: Layout) -> None:
    plan = rx.plan_memory(rx.trace(chain, "2 4"), results="planned", layout=layout, check=True)
    assert plan.results == 0
    # Log is done in place; TVM's planner has a storage for both, the larger of which the second grows to.
    assert plan.bytes == {"storages": 72, "arena": 72, "greedy": 80}[layout]


def test_a_bounded_size_gives_one_number() -> None:
    module = rx.trace(lambda x: jnp.log(jnp.pad(jnp.exp(x), 1)), "2*n")
    plan = rx.plan_memory(module, bounds={"n": (1, 4)}, layout="arena", check=True)
    assert plan.static and plan.bytes == 32 + 40
    assert [int(s.bytes.evaluate({"n": 4})) for s in plan.laid_out("storages").storages] == [32, 40]
    with pytest.raises(rx.errors.BoundsError, match=r"n = 5 exceeds its bound 4 \(declared in plan_memory"):
        plan.bytes_at({"n": 5})


def test_a_lower_bound_leaves_sizes_symbolic() -> None:
    module = rx.trace(lambda x: jnp.log(jnp.pad(jnp.exp(x), 1)), "2*n")
    plan = rx.plan_memory(module, bounds={"n": (3, None)}, check=True)
    assert not plan.static
    assert plan.bytes == Dim.of("8*n") + Dim.of("8*n + 8") == plan.laid_out("arena").bytes
    assert storages(plan) == ["8*n", "8*n + 8"]


@pytest.mark.parametrize("turns", [2, 3, 5])
def test_transposes_take_turns_in_two_storages(turns: int) -> None:
    def run(x: Any) -> Any:
        for _ in range(turns + 1):
            x = jnp.transpose(x, (2, 1, 0)) if x.shape[0] == x.shape[2] else jnp.transpose(x, (1, 2, 0))
        return x

    plan = rx.plan_memory(rx.trace(run, "b n m"), check=True)
    assert len(plan.storages) == 2  # b*n*m, n*m*b, m*b*n are one size
    assert plan.bytes == plan.laid_out("arena").bytes == Dim.of("8*b*n*m")
    assert all(isinstance(r.comparison.verdict, Proved) for r in plan.reuses if r.granted)


def test_a_view_keeps_what_it_is_a_view_of() -> None:
    def run(x: Any, w: Any) -> Any:
        y = jnp.exp(x)
        v = y.reshape(-1)
        z = jnp.transpose(x @ w) @ x  # needs memory while y is only seen through v
        return jnp.sum(z) + jnp.sum(v)

    plan = rx.plan_memory(rx.trace(run, "4 4", "4 4"), reorder=False, check=True)
    (y,) = (x for x in plan.live.lifetimes if plan.program.values[x.values[0]].name == "exp")
    assert plan.program.steps[y.end].name.startswith("sum")


def test_what_a_branch_returns_is_not_planned_inside_it() -> None:
    def run(i: Any, x: Any) -> Any:
        return jax.lax.cond(i > 0, lambda v: v @ v, lambda v: jnp.tanh(v) @ v, x) @ x

    module = rx.trace(run, "@ int32", "n n")
    plan = rx.plan_memory(module, check=True)
    inside = [x for x in plan.live.lifetimes if plan.program.values[x.values[0]].name.endswith(".inside")]
    assert [str(x.bytes) for x in inside] == ["4*n**2"]  # tanh; the product is the caller's


def test_a_loop_needs_its_next_carry_beside_the_last() -> None:
    def run(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, v: v @ v, x) @ x

    plan = rx.plan_memory(rx.trace(run, "n n"), check=True)
    inside = [x.bytes for x in plan.live.lifetimes if plan.program.values[x.values[0]].name.endswith(".inside")]
    assert len(inside) == 1 and inside[0].evaluate({"n": 100}) >= 40_000


@pytest.mark.parametrize(("aliasing", "count"), [("elements", 2), ("dtype", 3), ("bytes", 2), ("fits", 2)])
def test_equal_bytes_of_another_dtype_share_where_the_backend_says_so(aliasing: str, count: int) -> None:
    program = memory_program(
        """
        a: n @ float32 = k(x)
        b: 3 @ float32 = k(a)
        c: n @ int32 = k(b)
        d: 1 = k(c)
        return d
        """
    )
    plan = planned_in(program, aliasing=aliasing)
    assert len(plan.storages) == count


def test_as_many_bytes_of_narrower_elements_do_not_share_for_xla() -> None:
    program = memory_program(
        """
        a: n @ float32 = k(x)
        b: 3 @ float32 = k(a)
        c: 2*n @ float16 = k(b)
        d: 1 = k(c)
        return d
        """
    )
    assert len(planned_in(program).storages) == 3
    assert len(planned_in(program, aliasing="bytes").storages) == 2


ATTENTION = parse_program("""
def attention(Q: rx.Buffer("128 64"), K: rx.Buffer("128 64"), V: rx.Buffer("128 64"), Y: rx.Buffer("128 64")):
    S = rx.script.workspace("128 128")
    S[i, j] = exp(sum(Q[i, k] * K[j, k], over=k) / 8.0)
    Y[i, c] = sum(S[i, j] * V[j, c], over=j) / sum(S[i, l], over=l)
""")


@pytest.mark.parametrize("lift", [False, True])
def test_a_workspace_is_one_allocation_for_each_caller_and_shares(lift: bool) -> None:
    def attended(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        e = ir.call_tir(ATTENTION, (x, y, y))
        found = workspace.schemas[0].propose(e, ModuleAnswers({})) if lift else e
        assert found is not None
        return found

    params = [ir.var(n, ir.Tensor("128 64")) for n in ("q", "k")]
    inner = [ir.var(n, ir.Tensor("128 64")) for n in ("a", "b")]
    f = ir.pure_function("f", inner, [attended(*inner)])
    called = ir.call_function(ir.function_ref(f), (rx.op.exp(attended(*params)), params[1]))
    module = ir.Module((ir.pure_function("main", params, [rx.op.sin(rx.op.matmul(called, called.T))]), f))
    plan = rx.plan_memory(module, layout="arena", check=True)
    spaces = [x for x in plan.live.lifetimes if x.role == "workspace"]
    assert [int(x.bytes) for x in spaces] == [65536, 65536]
    assert len({plan.places[x.values[0]] for x in spaces}) == 1
    whole = plan.laid_out("storages")
    passed = [v for s in whole.program.steps for v in s.workspaces if v in whole.places]
    assert len(passed) == 2 * lift  # hidden ones are the kernel's own
    # The product of 65,536 bytes has the storage of the workspaces, where these are the caller's.
    assert sorted(int(s.bytes) for s in whole.storages) == [32768, 32768, 65536]
    assert whole.check() == []


def test_an_argument_that_is_returned_has_no_place() -> None:
    plan = rx.plan_memory(rx.trace(lambda x: (x, jnp.sin(jnp.cos(x))), "n"), check=True)
    assert storages(plan) == ["4*n"]
    assert [plan.program.values[v].role for v in leaves(plan.program.result)] == ["argument", "result"]


def test_one_value_returned_twice() -> None:
    plan = rx.plan_memory(rx.trace(lambda x: (lambda y: (y, y))(jnp.sin(jnp.cos(x))), "n"), check=True)
    assert plan.results == Dim.of("4*n")


def test_a_softmax_is_not_written_over_what_it_reads() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):
    with R.dataflow():
        a: R.Tensor(("n", "m"), "float32") = R.exp(x)
        b: R.Tensor(("n", "m"), "float32") = R.softmax(a, axis=1)
        c: R.Tensor(("n", "m"), "float32") = R.sin(b)
        R.output(c)
    return c
"""
    assert len(rx.plan_memory(rx.parse(text), check=True).storages) == 2


def test_an_operand_that_is_needed_later_is_not_written_over() -> None:
    program = program_of(rx.trace(lambda x: (lambda y: jnp.cos(y) * jnp.sin(y))(jnp.exp(x)), "n"))
    plan = planned_in(program)
    assert len(plan.storages) == 2


def test_an_operand_twice_under_two_names_is_not_written_over_by_mistake() -> None:
    # The kernel reads one value element for element and as a matrix: through a call with the same value twice.
    text = """
@I.ir_module
class Module:
    @R.tensor_program
    def mix(a: R.Buffer("n n"), b: R.Buffer("n n"), y: R.Buffer("n n")):
        y[i, j] = a[i, j] + R.sum(b[i, k] * b[k, j], over=(k, n))

    @R.function
    def main(x: R.Tensor(("n", "n"), "float32")) -> R.Tensor(("n", "n"), "float32"):
        with R.dataflow():
            e: R.Tensor(("n", "n"), "float32") = R.exp(x)
            y: R.Tensor(("n", "n"), "float32") = Module.f(e, e)
            z: R.Tensor(("n", "n"), "float32") = R.sin(y)
            R.output(z)
        return z

    @R.function
    def f(a: R.Tensor(("n", "n"), "float32"), b: R.Tensor(("n", "n"), "float32")) -> R.Tensor(("n", "n"), "float32"):
        with R.dataflow():
            y: R.Tensor(("n", "n"), "float32") = R.call_tir(Module.mix, (a, b), out=R.Tensor(("n", "n"), "float32"))
            R.output(y)
        return y
"""
    plan = rx.plan_memory(rx.parse(text), check=True)
    (mix,) = (s for s in plan.program.steps if s.name.endswith("mix"))
    assert mix.overwritable == () and len(plan.storages) == 2


def test_layers_that_are_called_are_planned_as_if_written_out() -> None:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) @ w + x

    def run(x: Any, ws: list[Any]) -> Any:
        for w in ws:
            x = layer(x, w)
        return x

    whole = rx.trace(run, "n 8", ["8 8"] * 6)
    plan = rx.plan_memory(whole, check=True)
    assert len(plan.storages) == 3 and plan.bytes == Dim.of("96*n") == plan.laid_out("arena").bytes


def test_a_function_that_is_passed_is_one_kernel() -> None:
    # The callable variable has the name of a function of the module, which is not what is called.
    tensor = ir.Tensor("n")
    x, a, g = ir.var("x", tensor), ir.var("a", tensor), ir.var("f", ir.Callable((tensor,), tensor))
    f = ir.pure_function("f", [a], [rx.op.exp(rx.op.cos(a))])
    main = ir.pure_function("main", [x, g], [rx.op.sin(ir.call_function(g, [x]))])
    assert [s.name for s in program_of(ir.Module((main, f))).steps] == ["call", "sin"]


def test_a_lower_peak_by_another_order() -> None:
    def run(x: Any) -> Any:
        wide = [jnp.sin(x[:, None] * (jnp.arange(64.0) + i)) for i in range(6)]
        return sum(jnp.sum(w @ jnp.transpose(w), axis=1) for w in wide)

    module = rx.trace(run, "n")
    plan = rx.plan_memory(module, at={"n": 8}, check=True)
    assert plan.order.after <= plan.order.before
    args = [np.linspace(0, 1, 8, dtype=np.float32)]
    assert np.isfinite(rx.ops.interpret.evaluate(module, args)).all()


def test_kernels_own_temporaries_are_planned() -> None:
    module = rx.trace(lambda x: jnp.sin(jnp.cos(x) @ x), "n n")
    asked = {"matmul": Dim.of("n*n*8")}
    plan = rx.plan_memory(module, temporary=lambda s: asked.get(s.name), layout="arena", check=True)
    assert plan.bytes == Dim.of("16*n**2")  # the operand, the product, and what the kernel asked for
    whole = plan.laid_out("storages")  # to which it comes on top
    assert whole.bytes == Dim.of("8*n**2") and whole.peak_at({"n": 4}) == plan.peak_at({"n": 4}) == 16 * 16
    assert isinstance(rx.prove("n*n*8 <= 4*n*n"), Refuted)


def test_a_size_that_values_decide_is_not_planned() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("k",), dtype="float32"):
    with R.dataflow():
        s: R.Tensor(("n",), dtype="float32") = R.sin(x)
        R.output(s)
    u: R.Tensor(ndim=1, dtype="float32") = R.unique(s)
    c: R.Tensor(("k",), dtype="float32") = R.match_cast(u, R.Tensor(("k",), dtype="float32"))
    with R.dataflow():
        e: R.Tensor(("k",), dtype="float32") = R.exp(c)
        y: R.Tensor(("k",), dtype="float32") = R.cos(e)
        R.output(y)
    return y
"""
    module = rx.parse(text)
    plan = rx.memory.plan(module, {"n": 10})
    names = [plan.program.values[v].name for v in plan.live.unsized]
    assert names == ["u", "exp", "y"]
    assert len(plan.storages) == 1 and plan.check([{"n": 10}]) == []


@pytest.mark.parametrize(
    ("bounds", "error", "told"),
    [
        ({"n": (-1, 4)}, rx.errors.BoundsError, "the lower bound of `n` is -1; a size is at least 0"),
        ({"n": -3}, rx.errors.BoundsError, "the lower bound of `n` is -3; a size is at least 0"),
        ({"n": (4, 1)}, rx.errors.BoundsError, "the bounds of `n` are empty: "),
        ({"n": (1.5, 4)}, rx.errors.BoundsError, "hold 1.5, which is no integer"),
        ({"m": (1, 4)}, rx.errors.BoundsError, "bounds name `m`, which is no size"),
        ([("n", 4)], rx.errors.OptionError, "{'n': (1, 4096)}, a statement such as"),
        (5, rx.errors.OptionError, "bounds=5: {'n': (1, 4096)}, a statement such as"),
    ],
)
def test_bounds_that_are_none(bounds: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=re.escape(told)):
        rx.plan_memory(rx.trace(lambda x: x + 1.0, "n"), bounds=bounds)


def test_what_is_prepared_from_weights_is_not_planned() -> None:
    def adapted(w: Any, a: Any, b: Any, x: Any) -> Any:
        return jnp.tanh(x @ (w + a @ b))

    specs, at = ("512 512", "512 16", "16 512", "n 512"), {"n": 8}
    best = rx.optimize(adapted, *specs, weights=("w", "a", "b"), at=at, target="cpu")
    assert not best.report.kept_as_written
    ready = best.prepare(*(jnp.ones(s) for s in ((512, 512), (512, 16), (16, 512))))
    whole, call = (rx.plan_memory(m, at=at, layout="arena", results="planned", check=True) for m in (best, ready))
    assert whole.bytes_at(at) > call.bytes_at(at) == call.bound_at(at) == 4 * 8 * 512
    assert len(call.program.steps) == 2  # the product and its tanh, which is written over it
