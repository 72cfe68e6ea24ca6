"""Routines whose results are as large as values say: what is deduced of them, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir, op
from relax_eg.errors import OperatorError
from relax_eg.ir import Annotation, Tensor, Tuple
from relax_eg.ops.data_dependent import BY_LIBRARY, ROUTINES
from relax_eg.ops.interpret import evaluate

X = ir.var("x", Tensor("n 3"))
U = ir.var("u", Tensor())
MASK = ir.var("mask", Tensor("n @bool"))
SOME, PLACES = Tensor(dtype="float32", ndim=1), Tensor(dtype="int32", ndim=1)

DEDUCED: list[tuple[Callable[[], ir.Expr], Annotation]] = [
    (lambda: op.unique(X), SOME),
    (lambda: op.unique(U), Tensor(ndim=1)),
    (lambda: op.unique(X, return_counts=True), Tuple((SOME, PLACES))),
    (lambda: op.unique(X, return_inverse=True), Tuple((SOME, Tensor("n 3 @int32")))),
    (lambda: op.nonzero(X), Tensor(dtype="int32", ndim=2)),
    (lambda: op.argwhere(U, "int64"), Tensor(dtype="int64", ndim=2)),
    (lambda: op.flatnonzero(X), PLACES),
    (lambda: op.masked_select(X, MASK), Tensor(dtype="float32", ndim=2)),
    (lambda: X[MASK], Tensor(dtype="float32", ndim=2)),
    (lambda: X[np.ones((4, 3), bool)], SOME),
    (lambda: op.masked_select(X, X > 0), SOME),
    (lambda: op.masked_select(U, MASK), Tensor()),
    (lambda: op.arange_of(ir.var("n", Tensor((), "int32"))), Tensor(dtype="int32", ndim=1)),
    (lambda: op.non_max_suppression(ir.var("b", Tensor("n 4")), X[:, 0]), Tensor(dtype="int32", ndim=1)),
]


@pytest.mark.parametrize(("build", "wanted"), DEDUCED, ids=range(len(DEDUCED)))
def test_rank_and_dtype_are_known(build: Callable[[], ir.Expr], wanted: Annotation) -> None:
    e = build()
    assert e.op == ir.CALL_DPS_LIBRARY and e.annotation == wanted
    assert e.attr("pure") and BY_LIBRARY[e.attr("name")].doc


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: op.arange_of(X), "the number of elements, is R.Tensor"),
    (lambda: op.top_k_of(X, X[:, 0]), "operand 1, the number of elements, is R.Tensor"),
    (lambda: op.non_max_suppression(X, X[:, 0]), "4 numbers are needed for each: two corners"),
    (lambda: op.masked_select(X, X), "masked_select((n, 3) float32, (n, 3) float32): operand 1, the mask, is float32"),
    (lambda: op.masked_select(X, ir.var("m", Tensor("n 4 @bool"))), "axis 1 of operand and mask: sizes 3 and 4 differ"),
    (lambda: op.masked_select(X, ir.var("m", Tensor("n 3 1 @bool"))), "the mask has rank 3; 1 to the rank of operand"),
    (lambda: op.masked_select(X, ir.var("m", Tensor("@bool"))), "the mask has rank 0"),
    (lambda: X[MASK, 0], "None and ... are; `take` gathers, a boolean tensor as the only index selects"),
    (lambda: X[X], "is not an index"),
    (lambda: op.nonzero(X, "float32"), "positions of dtype 'float32'; an integer dtype is needed"),
    (lambda: op.unique(ir.var("z", Tensor("n @complex64"))), "operand 0 is complex64; a dtype with an order is needed"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refused(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(OperatorError) as error:
        build()
    assert text in str(error.value)


def test_text_names_routines_like_operators() -> None:
    text = """
def main(x: R.Tensor(("n", 3), "float32")):
    a: R.Tensor(ndim=1, dtype="float32") = R.unique(x)
    b: R.Tensor(ndim=2) = R.nonzero(x)
    return (a, b)
"""
    module = rx.parse(text)
    assert [b.value.attr("name") for b in module.main.blocks[0].bindings] == ["relax_eg.unique", "relax_eg.nonzero"]
    assert rx.parse(str(module)) == module
    for wrong, why in [
        ("R.Tensor(ndim=2)", "ranks 2 and 1 differ"),
        ('R.Tensor(("n",), "float32")', "an annotation that follows, or R.match_cast(value, annotation)"),
    ]:
        with pytest.raises(rx.errors.ModuleTextError) as error:
            rx.parse(text.replace('R.Tensor(ndim=1, dtype="float32")', wrong))
        assert why in str(error.value)
    with pytest.raises(rx.errors.ModuleTextError, match="unique has no attribute `rising`; it has: return_counts"):
        rx.parse(text.replace("R.unique(x)", "R.unique(x, rising=True)"))


def test_an_operand_that_does_not_fit_its_mask_is_told_when_it_runs() -> None:
    mask = ir.var("mask", Tensor(dtype="bool", ndim=1))
    call = ir.Binding(ir.var("y", Tensor(dtype="float32", ndim=2)), op.masked_select(X, mask))
    module = rx.types.Module((ir.Function("main", (X, mask), (ir.Block((call,), dataflow=False),), call.var),))
    best = rx.optimize(module)
    x = np.ones((2, 3), np.float32)
    assert best(x, np.array([True, False])).shape == (1, 3)
    for run in (lambda m: best(x, m), lambda m: evaluate(module, [x, m])):
        with pytest.raises(OperatorError, match=r"a mask of shape \(3,\) does not fit an operand of shape \(2, 3\)"):
            run(np.array([True, False, True]))


def test_all_are_operators_of_the_api() -> None:
    assert all(hasattr(op, name) for name in ROUTINES)
