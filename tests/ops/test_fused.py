"""Kernels of operators: one call of the composed program gives what the operators give, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import arguments, programs, size_bindings

from relax_eg import op
from relax_eg.errors import OperatorError
from relax_eg.ir import Expr, Module, Tensor, const, node, postorder, pure_function, var
from relax_eg.ir.tensor_calls import call_tir
from relax_eg.ops.fused import fused_call, kernel_name, program_at
from relax_eg.ops.interpret import evaluate


def x(name: str, spec: str) -> Expr:
    return var(name, Tensor(spec))


def members_of(root: Expr) -> list[Expr]:
    return [e for e in postorder([root]) if e.args]


def fused(root: Expr, name: str = "") -> Expr:
    return fused_call(members_of(root), [root], name=name)


def body(call: Expr) -> str:
    return str(call.attr("program").value)


def test_a_chain_is_one_kernel_and_the_constant_becomes_a_parameter() -> None:
    a = x("x", "10 20 1")
    call = fused(op.squeeze(op.exp(op.add(a, const(np.float32(1)))), 2))
    assert [p.op for p in call.args] == ["var", "constant"]
    assert body(call) == (
        "@rx.tensor_program\n"
        'def fused_add_exp(p0: rx.Buffer("10 20 1"), p1: rx.Buffer(""), T_squeeze: rx.Buffer("10 20")):\n'
        "    T_squeeze[i0, i1] = exp(p0[i0, i1, 0] + p1[()])"
    )


def test_what_is_pooled_outside_is_a_parameter() -> None:
    a = x("x", "1 16 32 32")
    pooled = op.max(op.reshape(a, (1, 16, 16, 2, 16, 2)), (3, 5))
    grown = op.reshape(op.broadcast_to(op.reshape(pooled, (1, 16, 16, 1, 16, 1)), (1, 16, 16, 2, 16, 2)), a.shape)
    out = op.add(op.concat([grown, a], 1), const(np.float32(1)))
    outside = set(members_of(pooled))
    call = fused_call([e for e in members_of(out) if e not in outside], [out])
    assert call.args[:2] == (pooled, a) and len(call.attr("program").value.stages) == 1


def test_sizes_stay_symbolic_and_those_that_no_axis_tells_are_passed() -> None:
    a, w = x("x", "n-1 4"), x("w", "4 m")
    call = fused(op.relu(a @ w))
    program = call.attr("program").value
    assert program.passed == ("n",)
    assert dict(call.attr("sizes")).keys() == {"n"}
    assert call.annotation == Tensor("n-1 m")
    module = Module((pure_function("main", [a, w], [call]),))
    args = [np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)]
    assert np.array_equal(evaluate(module, args, sizes={"n": 3}), np.full((2, 3), 4, np.float32))
    bare = fused(op.relu(x("x", "n 4") + x("y", "n 4")))
    assert bare.attr("program").value.passed == ()


def test_a_dynamic_kernel_called_at_static_sizes_becomes_static() -> None:
    dynamic = fused(op.exp(x("x", "n m") + x("y", "n m"))).attr("program").value
    call = fused(op.relu(call_tir(dynamic, [x("a", "2 3"), x("b", "2 3")])))
    assert call.attr("program").value.sizes == frozenset()
    assert call.annotation == Tensor("2 3")


def test_the_same_kernel_twice_has_two_temporaries() -> None:
    rows = fused(op.sum(op.exp(x("x", "n m")), 1, keepdims=True)).attr("program").value
    a = x("x", "n m")
    first = call_tir(rows, [a])
    call = fused(op.add(first, call_tir(rows, [op.multiply(a, first)])))
    names = [s.output.name for s in call.attr("program").value.stages]
    assert len(set(names)) == 3 and len(names) == 3


def test_a_diamond_below_a_matmul_is_computed_once() -> None:
    m = x("x", "n k") @ x("w", "k m")
    call = fused(m * op.sigmoid(m))
    local, first, last = body(call).splitlines()[2:]
    assert local.lstrip().startswith("T_matmul")
    assert "T_matmul[i0, i1] = " in first and "p0[i0, " in first
    assert last == "    T_multiply[i0, i1] = T_matmul[i0, i1] * " + last.split(" * ")[1]
    assert "sigmoid(T_matmul[i0, i1])" in last


def test_the_name_says_what_is_inside() -> None:
    out = op.relu(x("x", "n k") @ x("w", "k m") + x("b", "m"))
    assert kernel_name(members_of(out)) == "fused_matmul_add_relu"


def test_what_has_no_equations_is_refused() -> None:
    out = op.cholesky(x("x", "n n"))
    with pytest.raises(OperatorError, match="has no index equations that a kernel could take in"):
        fused_call([out], [out])


def split_kernels(root_values: list[Expr], rng: np.random.Generator) -> list[Expr]:
    """The values with random connected groups of operators made kernels."""
    env: dict[Expr, Expr] = {}
    order = [e for e in postorder(root_values) if e.args]
    home: dict[Expr, Expr] = {}
    for e in reversed(order):
        readers = {home.get(r, r) for r in order if e in r.args}
        can = program_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation) is not None
        alone = e in root_values or len(readers) != 1 or rng.random() < 0.3
        reader = None if alone else next(iter(readers))
        if can and reader is not None and _fusible(reader):
            home[e] = reader
        else:
            home[e] = e
    for e in order:
        if home[e] is not e:
            continue
        members = [m for m in order if home[m] is e]
        args = [env.get(a, a) for a in e.args]
        if _fusible(e):
            call = fused_call(members, [e])
            env[e] = node(call.op, [env.get(a, a) for a in call.args], call.attrs, call.annotation)
        else:
            env[e] = node(e.op, args, e.attrs, e.annotation)
    return [env.get(r, r) for r in root_values]


def _fusible(e: Expr) -> bool:
    return program_at(e.op, tuple(a.annotation for a in e.args), e.attrs, e.annotation) is not None


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 2**32 - 1))
def test_random_kernels_equal_their_operators(module: Module, seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = module.main
    values = [b.value for b in f.blocks[0].bindings]
    new = split_kernels(values, rng)
    other = Module((pure_function("main", f.params, new),))
    assert other.main.annotation == f.annotation
    for sizes in size_bindings(module, rng, 2):
        args = arguments(module, sizes, rng)
        a = evaluate(module, args, sizes=sizes, arithmetic="exact")
        b = evaluate(other, args, sizes=sizes, arithmetic="exact")
        for p, q in zip(a if isinstance(a, tuple) else [a], b if isinstance(b, tuple) else [b], strict=True):
            u, v = np.asarray(p, object), np.asarray(q, object)
            assert u.shape == v.shape and all(s is t or s == t for s, t in zip(u.flat, v.flat, strict=True))
