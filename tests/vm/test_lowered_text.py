"""Relax's text after its shapes and calls were lowered: heaps of sizes, closures and memory of the virtual machine."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import ModuleTextError, ShapeError
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.frontends.partial_evaluation import partially_evaluated
from relax_eg.ir import CALL_DPS_LIBRARY, MATCH_CAST
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from tests.vm.test_language import assert_alike, runner

SIZES = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def shape_func(H: T.Buffer((T.int64(4),), "int64")):
        T.func_attr({"tir.is_host_func": T.bool(True)})
        H[T.int64(3)] = H[T.int64(2)] * H[T.int64(1)] + T.int64(1)

    @R.function
    def main(x: R.Tensor(("n", "m"), dtype="float32"), y: R.Tensor(ndim=3, dtype="float32")):
        R.func_attr({"relax.force_pure": True})
        cls = Module
        heap: R.Object = R.call_builtin_with_ctx("vm.builtin.alloc_shape_heap", [R.prim_value(4)])
        _: R.Tuple = R.call_packed("vm.builtin.check_tensor_info", x, R.prim_value(2), R.dtype("float32"), R.str("x"))
        R.call_packed("vm.builtin.check_tensor_info", y, R.prim_value(3), R.dtype(""), R.str(""), sinfo_args=(R.Tuple,))
        R.call_packed("vm.builtin.match_shape", x, heap, R.prim_value(2), R.prim_value(1), R.prim_value(0), 1, 1, "")
        _1: R.Tuple = R.call_packed("vm.builtin.match_shape", y, heap, R.prim_value(3), 1, 2, 3, 1, 2, 0, R.str(""))
        _2: R.Tuple = cls.shape_func(heap)
        _3 = R.call_packed("vm.builtin.match_shape", y, heap, 3, MS.NO_OP, 0, MS.NO_OP, 0, MS.ASSERT_EQUAL_TO_LOAD, 3)
        s: R.Shape(ndim=3) = R.call_packed("vm.builtin.make_shape", heap, R.prim_value(3), 1, 3, 1, 1, 0, 2)
        return s, R.sum(y)
"""

CALLS = """
@I.ir_module
class Module:
    @T.prim_func
    def exp(A: T.handle, B: T.handle, n: T.int64):
        X = T.match_buffer(A, (n,), "float32")
        Y = T.match_buffer(B, (n,), "float32")
        for i in range(n):
            with T.block("b"):
                vi = T.axis.spatial(n, i)
                Y[vi] = T.exp(X[vi])

    @R.function(private=True)
    def lifted(x1: R.Tensor(("n",), "float32"), c1: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        r: R.Tensor(("n",), "float32") = R.subtract(x1, c1)
        return r

    @R.function
    def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), "float32"):
        heap: R.Tensor(dtype="int64", ndim=1) = R.call_builtin_with_ctx("vm.builtin.alloc_shape_heap", (R.prim_value(2),))
        R.call_packed("vm.builtin.match_shape", x, heap, R.prim_value(1), R.prim_value(1), R.prim_value(0), R.str(""))
        Module.size(heap)
        a: R.Shape(ndim=1) = R.call_packed("vm.builtin.make_shape", heap, R.prim_value(1), R.prim_value(1), R.prim_value(1))
        storage: R.Object = R.call_builtin_with_ctx(
            "vm.builtin.alloc_storage", (a, R.prim_value(0), R.dtype("uint8"), R.str("global")), sinfo_args=(R.Object,)
        )
        b: R.Shape(ndim=1) = R.call_packed("vm.builtin.make_shape", heap, R.prim_value(1), R.prim_value(1), R.prim_value(0))
        alloc: R.Tensor(dtype="float32") = R.call_packed(
            "vm.builtin.alloc_tensor", storage, R.prim_value(0), b, R.dtype("float32"), R.prim_value(0)
        )
        _: R.Tuple = R.call_packed("vm.builtin.call_tir_dyn", Module.exp, x, alloc, b, sinfo_args=(R.Tuple,))
        f: R.Object = R.call_packed("vm.builtin.make_closure", Module.lifted, x, sinfo_args=(R.Object,))
        y: R.Tensor(dtype="float32", ndim=1) = R.call_builtin_with_ctx(
            "vm.builtin.invoke_closure", (f, alloc), sinfo_args=(R.Tensor(dtype="float32", ndim=1),)
        )
        z: R.Tensor(("n",), "float32") = R.match_cast(y, R.Tensor(("n",), "float32"))
        return z

    @T.prim_func(private=True)
    def size(H: T.Buffer((T.int64(2),), "int64")):
        H[T.int64(1)] = H[T.int64(0)] * T.int64(4)
"""  # noqa: E501


def test_a_heap_of_sizes_becomes_sizes() -> None:
    module = rx.parse(SIZES)
    assert rx.parse(str(module)) == module
    casts = [e for e in module.main.expressions() if e.op == MATCH_CAST]
    assert str(casts[0].annotation).startswith('R.Tensor(("size0", "m", "size1")')
    assert not any(e.op == CALL_DPS_LIBRARY for e in module.main.expressions())
    x, y = np.ones((2, 3), np.float32), np.ones((5, 3, 16), np.float32)
    best = rx.optimize(module, rules=rx.RuleSet("none"))
    for run in (lambda *args: evaluate(module, args), best):
        assert run(x, y)[0] == (16, 3, 2) and run(x, y)[1] == 240
        with pytest.raises(ShapeError, match=r"axis 2 should be .*16.*, got 3"):
            run(x, y[:, :, :3])
        with pytest.raises(ShapeError, match=r"axis 1 should be .*3.*, got 2"):
            run(x, y[:, :2])


def test_closures_memory_and_calls() -> None:
    module = rx.parse(CALLS)
    assert rx.parse(str(module)) == module
    x = np.arange(3, dtype=np.float32)
    for run in (lambda x: evaluate(module, [x]), rx.optimize(module, rules=rx.RuleSet("none"))):
        np.testing.assert_allclose(run(x), np.exp(x) - x, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("(3), 1, 2, 3, 1, 2, 0,", "(3), 1, 2, 3, 3, 2, 0,", r"slot 3 of `heap` has no size yet \(\[0, 1, 2\] have\)"),
        ('make_shape", heap,', 'make_shape", heaps,', "`heaps` is no heap of sizes"),
        ("cls.shape_func(heap)", 'R.call_packed("f", heap)', "`heap` is a heap of sizes, which is no value"),
        ("(0), 1, 1,", "(0), 1,", r"`''` is no number"),
        ("x, heap, R.prim_value(2)", "x, heap, R.prim_value(1)", "`x` is R.Tensor.*, and 1 sizes are matched"),
        ("MS.NO_OP, 0, MS.NO_OP", "MS.NOTHING, 0, MS.NO_OP", "`MS.NOTHING` is no number"),
        ("* H[T.int64(1)]", "* T.exp(1)", "cannot read .* in a dimension expression"),
        ("H[T.int64(3)] = H", "x = H", "`shape_func` computes sizes in another way: x = H"),
    ],
)
def test_errors(old: str, new: str, problem: str) -> None:
    assert old in SIZES
    with pytest.raises(ModuleTextError, match=rf"line \d+: (?:{problem})") as e:
        rx.parse(SIZES.replace(old, new, 1))
    assert "\n  expected: " in str(e.value)


def test_a_closure_captures_the_last_arguments_as_in_relax() -> None:
    module = parse(
        """
@R.function
def f(a: R.Tensor((), "float32"), b: R.Tensor((), "float32"), c: R.Tensor((), "float32")):
    return (a - b) / c

@R.function
def main(x: R.Tensor((), "float32"), y: R.Tensor((), "float32")):
    g = R.make_closure(f, (y,))
    h = R.make_closure(g, (x,))
    return h(y), g(x, y)
"""
    )
    args = [np.float32(3), np.float32(5)]
    wanted = (np.float32(0.4), np.float32(-0.4))
    assert_alike(evaluate(module, args), wanted)
    assert_alike(runner(module).run([jax.numpy.asarray(a) for a in args]), wanted)
    known, _ = partially_evaluated(with_dataflow_blocks(deduce_module(module)))
    assert_alike(evaluate(known, args), wanted)


def test_a_cast_that_rounds_stays() -> None:
    text = '@R.function\ndef main(x: R.Tensor((2,), "float32")):\n    y = R.astype(x, "float16")\n'
    module = rx.parse(text + '    return R.astype(y, "float32")\n')
    x = np.float32([0.1, 3.14159])
    best = rx.optimize(module, measure="off")
    np.testing.assert_array_equal(best(x), x.astype(np.float16).astype(np.float32))
