"""`call_tir`: what a tensor program fills follows from its buffers at the sizes of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir
from relax_eg.errors import OperatorError, WellFormedError
from relax_eg.ir import Annotation, Tensor, Tuple
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.shapes import Dim
from relax_eg.tir import Buffer, Stage, TensorProgram, loops

N, M, K = map(Dim.var, "nmk")
P, Q = loops("p q")
A, B, D = (Buffer("A", (N, M), "float32"), Buffer("B", (M, N), "float32"), Buffer("D", (N,), "float32"))
TRANSPOSE = TensorProgram("transpose", (A,), (Stage(B, (P, Q), A[Q, P]),), ("B",)).validate()
BOTH = TensorProgram("both", (A,), (Stage(B, (P, Q), A[Q, P]), Stage(D, (P,), A[P, 0])), ("B", "D")).validate()
# Flat elements, of which no axis tells how they are to stand (Relax, Fig. 8).
FLAT = Buffer("F", (N * M,), "float32")
UNFLATTEN = TensorProgram("unflatten", (FLAT,), (Stage(A, (P, Q), FLAT[P * M + Q]),), ("A",)).validate()


def x(spec: str) -> ir.Expr:
    return ir.var("x", Tensor(spec))


DEDUCED: list[tuple[Callable[[], ir.Expr], Annotation]] = [
    (lambda: ir.call_tir(TRANSPOSE, [x("a b")]), Tensor("b a")),
    (lambda: ir.call_tir(TRANSPOSE, [x("m n+1")]), Tensor("n+1 m")),  # its own n and m are not the caller's
    (lambda: ir.call_tir(TRANSPOSE, [x("3 4")]), Tensor("4 3")),
    (lambda: ir.call_tir(BOTH, [x("a 4")]), Tuple((Tensor("4 a"), Tensor("a")))),
    (lambda: ir.call_tir(TRANSPOSE, [ir.var("u", Tensor(ndim=2))]), Tensor(dtype="float32", ndim=2)),
    (lambda: ir.call_tir(UNFLATTEN, [x("2*k")], sizes={"n": 2, "m": "k"}), Tensor("2 k")),
]


@pytest.mark.parametrize(("build", "wanted"), DEDUCED, ids=range(len(DEDUCED)))
def test_what_is_filled(build: Callable[[], ir.Expr], wanted: Annotation) -> None:
    assert build().annotation == wanted


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ir.call_tir(TRANSPOSE, []), "call_tir: `transpose` takes 1 arguments (A: (n, m) float32), got 0"),
    (lambda: ir.call_tir(TRANSPOSE, [x("a")]), 'argument 1 should be R.Tensor(("n", "m"), dtype="float32"), got'),
    (lambda: ir.call_tir(TRANSPOSE, [x("a b @int32")]), "dtypes float32 and int32 differ"),
    (lambda: ir.call_tir(UNFLATTEN, [x("a")]), "no argument tells its size `m`; sizes={'m': ...} passes it"),
    (lambda: ir.call_tir(TRANSPOSE, [x("a b")], Tensor("b a+1")), "`transpose` fills"),
    (lambda: ir.call_tir(UNFLATTEN, [x("2*k+1")], sizes={"n": 2, "m": "k"}), "sizes 2*k and 2*k + 1 differ"),
]


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refused(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(OperatorError) as error:
        build()
    assert str(error.value).startswith("call_tir: `") and text in str(error.value)


def module(call: ir.Expr) -> rx.types.Module:
    (argument,) = call.args
    return rx.types.Module((ir.pure_function("main", [argument], [call]),))


def test_modules() -> None:
    good = module(ir.call_tir(TRANSPOSE, [x("a b")]))
    assert deduce_module(good) == good and rx.parse(str(good)) == good
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(good, [data]), data.T)
    flat = module(ir.call_tir(UNFLATTEN, [x("2*k")], sizes={"n": 2, "m": "k"}))
    np.testing.assert_array_equal(evaluate(flat, [data.ravel()]), data)
    assert rx.parse(str(flat)) == flat
    call = ir.call_tir(TRANSPOSE, [x("a b")])
    false = ir.node(call.op, call.args, call.attrs, Tensor("b a+1"))
    with pytest.raises(WellFormedError, match=r"call_tir: .* is filled, and annotated .*: axis 1: sizes a and a \+ 1"):
        deduce_module(module(false))
