"""Workspace lifting: one kernel with one more parameter, one allocation in each caller."""

from __future__ import annotations

from typing import Any

import numpy as np

import relax_eg as rx
from relax_eg import ir
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.ir import Expr, Function, Module, Tensor, postorder, pure_function, var
from relax_eg.ops.interpret import evaluate
from relax_eg.rules.book.workspace import workspace
from relax_eg.rules.schemas import ModuleAnswers
from relax_eg.tir import TensorProgram, parse_program, workspace_bytes

(LIFTING,) = workspace.schemas
NONE = ModuleAnswers({})

# 16,384 float32 scores, kept between the two passes of a softmax.
ATTENTION = parse_program("""
def attention(Q: rx.Buffer("128 64"), K: rx.Buffer("128 64"), V: rx.Buffer("128 64"), Y: rx.Buffer("128 64")):
    S = rx.script.workspace("128 128")
    S[i, j] = exp(sum(Q[i, k] * K[j, k], over=k) / 8.0)
    Y[i, c] = sum(S[i, j] * V[j, c], over=j) / sum(S[i, l], over=l)
""")
SPLIT_K = parse_program("""
def mm_split_k(X: rx.Buffer("n 2048"), W: rx.Buffer("2048 64"), Y: rx.Buffer("n 64")):
    P = rx.script.workspace("8 n 64")
    P[s, i, j] = sum(X[i, s*256 + k] * W[s*256 + k, j], over=(k, 256))
    Y[i, j] = sum(P[s, i, j], over=(s, 8))
""")
STREAM_K = parse_program("""
def mm_stream_k(X: rx.Buffer("n 32*k"), W: rx.Buffer("32*k m"), k: int, Y: rx.Buffer("n m")):
    P = rx.script.workspace("2 n m")
    P[0, i, j] = sum(X[i, r] * W[r, j], over=(r, 8*k))
    P[1, i, j] = sum(X[i, 8*k + r] * W[8*k + r, j], over=(r, 24*k))
    Y[i, j] = P[0, i, j] + P[1, i, j]
""")
TWO_PASS = parse_program("""
def variance(X: rx.Buffer("n m"), Y: rx.Buffer("n")):
    Mean = rx.script.workspace("n")
    T = rx.script.local("n")
    Mean[i] = sum(X[i, r], over=r) / float32(m)
    T[i] = sum((X[i, r] - Mean[i])**2, over=(r, m))
    Y[i] = T[i] / float32(m)
""")


def lifted(e: Expr) -> Expr:
    found = LIFTING.propose(e, NONE)
    assert found is not None
    return found


def calls(module: Module) -> list[Expr]:
    return [e for f in module for e in f.expressions() if e.op == ir.CALL_TIR]


def caller(name: str, kernel: TensorProgram, *specs: str, sizes: dict[str, str] | None = None) -> tuple[Function, Expr]:
    params = [var(f"{name}_{i}", Tensor(spec)) for i, spec in enumerate(specs)]
    call = ir.call_tir(kernel, params, sizes=sizes)
    return pure_function(name, params, [call]), call


def test_the_rule_is_tested() -> None:
    (verdict,) = rx.verify(workspace)
    assert verdict.status == "tested" and verdict.samples >= 40


def test_a_workspace_of_65536_bytes_called_from_two_functions() -> None:
    assert [b.value for b in workspace_bytes(ATTENTION).values()] == [65536]
    made: list[Function] = []
    for name in ("prefill", "decode"):
        f, call = caller(name, ATTENTION, "128 64", "128 64", "128 64")
        made.append(pure_function(name, f.params, [lifted(call)]))
    module = Module(tuple(made))
    (kernel,) = module.programs  # one, though called twice
    assert [b.name for b in kernel.parameters] == ["Q", "K", "V", "S"] and kernel.lifted == ("S",)
    assert workspace_bytes(kernel) == {} and all(len(c.args) == 4 for c in calls(module))
    allocations = [e for f in module for e in f.expressions() if e.op == "full"]
    assert [e.annotation for e in allocations] == [Tensor((128, 128), "float32")] * 2
    assert rx.parse(str(module)) == module
    assert 'S: R.workspace("128 128")' in str(module)


class _Lifted:
    """A device on which a kernel that is passed its workspace is the faster one."""

    def price(self, site: Any, result: Any, sizes: Any) -> NodeCost:
        if site.op != ir.CALL_TIR:
            return NodeCost(seconds=0.0 if site.op == "full" else 1.0)
        return NodeCost(launches=1, seconds=1.0 if dict(site.attrs)["program"].value.lifted else 3.0)


def test_where_lifting_pays_optimize_chooses_it_in_each_function() -> None:
    params, inner = ([var(name, Tensor("128 64")) for name in names] for names in ("qk", "ab"))
    f = pure_function("f", inner, [ir.call_tir(ATTENTION, (inner[0], inner[1], inner[1]))])
    attended = rx.op.exp(ir.call_tir(ATTENTION, (params[0], params[1], params[1])))
    main = pure_function("main", params, [ir.call_function(ir.function_ref(f), (attended, params[1]))])
    module = Module((main, f))
    best = rx.optimize(module, rules=rx.rules.workspace, target=_Lifted())
    assert list(best.report.rules) == ["workspace_lifting"]
    (kernel,) = best.module.programs
    assert kernel.lifted == ("S",) and [b.name for b in kernel.parameters] == ["Q", "K", "V", "S"]
    for made in best.module:
        assert [e.annotation for e in made.expressions() if e.op == "full"] == [Tensor("128 128")]
    args = [0.1 * np.random.default_rng(n).normal(size=(128, 64)).astype(np.float32) for n in range(2)]
    np.testing.assert_allclose(best(*args), evaluate(module, args), rtol=1e-4, atol=1e-5)


def test_figure_11_keeps_the_symbolic_size() -> None:
    f, call = caller("main", SPLIT_K, "n 2048", "2048 64")
    after = lifted(call)
    assert after.args[-1].annotation == Tensor("8 n 64") and after.annotation == Tensor("n 64")
    assert LIFTING.propose(after, NONE) is None  # there is nothing left to lift
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s).astype(np.float32) for s in ((3, 2048), (2048, 64))]
    before, now = (evaluate(Module((pure_function("main", f.params, [e]),)), args) for e in (call, after))
    np.testing.assert_array_equal(before, now)


def test_other_kernels_with_workspaces() -> None:
    rng = np.random.default_rng(0)
    for kernel, specs, sizes, space in (
        (STREAM_K, ("a 32*b", "32*b 5"), {"k": "b"}, "2 a 5"),
        (TWO_PASS, ("a b",), None, "a"),
    ):
        f, call = caller("main", kernel, *specs, sizes=sizes)
        after = lifted(call)
        assert after.args[-1].annotation == Tensor(space)
        shapes = ((3, 64), (64, 5)) if kernel is STREAM_K else ((3, 7),)
        args = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        before, now = (evaluate(Module((pure_function("main", f.params, [e]),)), args) for e in (call, after))
        np.testing.assert_array_equal(before, now)
        expected = args[0] @ args[1] if kernel is STREAM_K else args[0].var(1)
        np.testing.assert_allclose(now, expected, rtol=1e-4, atol=1e-5)


def test_a_call_whose_sizes_are_not_known_stays() -> None:
    x, w = var("x", Tensor(ndim=2)), var("w", Tensor("2048 64"))
    assert LIFTING.propose(ir.call_tir(SPLIT_K, [x, w]), NONE) is None
    assert postorder([x]) == [x]
