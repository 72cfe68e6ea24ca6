"""Modules that break a rule, and what is said of them."""

from __future__ import annotations

import pytest

from relax_eg import ir
from relax_eg.errors import WellFormedError
from relax_eg.ir import Binding, Block, Function, Module, Tensor, node, var
from relax_eg.shapes import Dim

T4 = Tensor("n 4")
X = var("x", T4)


def op(*args: ir.Expr, annotation: ir.Annotation = T4) -> ir.Expr:
    return node("exp", args, (), annotation)


def bound(name: str, value: ir.Expr) -> Binding:
    return Binding(var(name, value.annotation), value)


def function(*blocks: Block, result: ir.Expr = X, params: tuple[ir.Expr, ...] = (X,), name: str = "main") -> Function:
    return Function(name, params, blocks, result)


def steps(*bindings: Binding) -> Block:
    return Block(bindings, dataflow=False)


IMPURE = ir.call_dps_library("print", [X], T4, pure=False)
CAST = ir.match_cast(X, Tensor("k 4"))
PAIR = var("p", ir.Tuple((T4, T4)))
EFFECTS = function(steps(bound("e", IMPURE)), name="effects")
NO_PLACE = "must be the whole value of a binding outside dataflow blocks"

CASES = [
    (
        function(Block((bound("gv", op(var("y", T4))),))),
        "function `main`, binding `gv`: `y` is not defined before its use",
    ),
    (
        function(steps(bound("a1", op(var("a2", T4))), bound("a2", op(X)))),
        "function `main`, binding `a1`: `a2` is not defined before its use",
    ),
    (
        function(result=op(var("xx", T4))),
        "function `main`, the result: `xx` is not defined before its use; did you mean `x`?",
    ),
    (
        function(result=op(var("x", Tensor("4")))),
        'function `main`, the result: `x` is bound as R.Tensor(("n", 4), dtype="float32") and used as '
        'R.Tensor((4,), dtype="float32")',
    ),
    (
        function(Block((bound("a", op(X)), bound("b", op(var("a", T4)))))),
        "function `main`, binding `b`: `a` is an output of this dataflow block; inside the block its value "
        "is to be used",
    ),
    (function(Block((bound("x", op(X)),))), "function `main`, binding `x`: `x` is bound twice"),
    (function(Block((bound("a", X), bound("a", op(X))))), "function `main`, binding `a`: `a` is bound twice"),
    (function(params=(X, X)), "function `main`, the parameters: `x` is bound twice"),
    (
        function(params=(X, op(X))),
        "function `main`, the parameters: a parameter must be a variable\n"
        '  in exp(x): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(params=(X, var("a.b", T4))),
        "function `main`, the parameters: the variable's name is not an identifier: 'a.b'",
    ),
    (function(name="a b"), "function `a b`, the parameters: the function's name is not an identifier: 'a b'"),
    (
        function(Block((bound("gv", op(IMPURE)),))),
        f'function `main`, binding `gv`: an impure call {NO_PLACE}\n  in print(x): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(steps(bound("e", IMPURE)), Block((bound("gv", IMPURE),))),
        f'function `main`, binding `gv`: an impure call {NO_PLACE}\n  in print(x): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(steps(bound("e", op(CAST)))),
        f'function `main`, binding `e`: match_cast {NO_PLACE}\n  in match_cast(x): R.Tensor(("k", 4), dtype="float32")',
    ),
    (
        function(result=ir.call_function(ir.function_ref(EFFECTS), [X])),
        f"function `main`, the result: a call of `effects`, which has effects, {NO_PLACE}\n"
        '  in call(effects, x): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(result=op(X, annotation=Tensor("nn"))),
        "function `main`, the result: the size `nn` is not known here: no parameter and no earlier match_cast brings "
        'it in; did you mean `n`?\n  in exp(x): R.Tensor(("nn",), dtype="float32")',
    ),
    (
        function(result=node("reshape", (X,), (("shape", (Dim.of("2*q"),)),), Tensor("4"))),
        "function `main`, the result: the size `q` is not known here: no parameter and no earlier match_cast brings "
        'it in\n  in reshape(x): R.Tensor((4,), dtype="float32")',
    ),
    (
        function(Block((bound("gv", op(X, annotation=Tensor("k"))),)), steps(bound("c", CAST))),
        "function `main`, binding `gv`: the size `k` is not known here: no parameter and no earlier match_cast brings "
        'it in\n  in exp(x): R.Tensor(("k",), dtype="float32")',
    ),
    (
        function(result=node(ir.CALL, (node(ir.FUNCTION, (), (("name", "effcts"),), ir.Object()), X), (), T4)),
        "function `main`, the result: the module has no function `effcts`; did you mean `effects`?\n"
        "  in effcts(): R.Object",
    ),
    (
        function(result=node(ir.CALL, (ir.function_ref(EFFECTS),), (), T4), name="f"),
        f"function `f`, the result: a call of `effects`, which has effects, {NO_PLACE}\n"
        '  in call(effects): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(steps(bound("e", node(ir.CALL, (ir.function_ref(EFFECTS),), (), T4)))),
        "function `main`, binding `e`: `effects` takes 1 argument, given: 0\n"
        '  in call(effects): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(result=node(ir.CALL, (X, X), (), T4)),
        'function `main`, the result: `x` is called and is R.Tensor(("n", 4), dtype="float32"), not a function\n'
        '  in call(x, x): R.Tensor(("n", 4), dtype="float32")',
    ),
    (
        function(result=ir.tuple_get(X, 0)),
        'function `main`, the result: a field is taken of R.Tensor(("n", 4), dtype="float32"), which is not a tuple\n'
        "  in tuple_get_item(x): R.Object",
    ),
    (
        function(params=(PAIR,), result=node(ir.TUPLE_GET, (PAIR,), (("index", 2),), T4)),
        "function `main`, the result: there is no field 2 in a tuple of 2\n"
        '  in tuple_get_item(p): R.Tensor(("n", 4), dtype="float32")',
    ),
]


@pytest.mark.parametrize(("broken", "said"), CASES, ids=range(len(CASES)))
def test_broken_rules(broken: Function, said: str) -> None:
    with pytest.raises(WellFormedError) as caught:
        ir.check(Module((EFFECTS, broken)))
    assert str(caught.value) == said


def test_what_is_allowed() -> None:
    shape = var("s", ir.Shape("h"))
    later = op(X, annotation=Tensor("k h"))
    f = function(
        steps(bound("e", IMPURE), bound("e1", IMPURE), bound("c", CAST)),
        Block((bound("gv", later), bound("gv1", op(later)))),
        result=ir.tuple_([var("gv", later.annotation), op(X)]),
        params=(X, shape),
    )
    ir.check(Module((f, EFFECTS)))


def test_the_source_line_is_told() -> None:
    bad = op(X, annotation=Tensor("q"))
    f = Function("main", (X,), (Block((bound("gv", bad),)),), X, {bad: "model.py:31"})
    with pytest.raises(WellFormedError, match=r"^function `main`, binding `gv` \(model\.py:31\): the size `q`"):
        ir.check(Module((f,)))
