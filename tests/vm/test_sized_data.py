"""Sizes of tensors inside of data."""

from __future__ import annotations

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import HostError, ModuleTextError, ShapeError
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.vm.instructions import BindSizes
from tests.vm.language_programs import HEAD
from tests.vm.test_language import assert_alike, runner

SIZED = (
    HEAD
    + """
@R.function
def total(xs: List(R.Tensor(("n", 4), "float32")), z: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    match xs:
        case List.Nil():
            return z
        case List.Cons(h, t):
            return h + total(t, z)

@R.function
def main(xs: List(R.Tensor(("n", 4), "float32")), z: R.Tensor(("n", 4), "float32")):
    return total(xs, z)
"""
)


def test_tensors_inside_of_data_have_the_sizes_that_are_said() -> None:
    best = rx.optimize(parse(SIZED), rules=rx.RuleSet("none"))
    z, one = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    assert np.all(best(rx.script.list_of(rx.script.List, [z, z]), z) == 3)
    wanted = r"main\(\): `xs`\.Cons\[1\]\.Cons\[0\], axis 0 should be n = 3 \(from argument `z`\), got 1"
    with pytest.raises(ShapeError, match=wanted):
        best(rx.script.list_of(rx.script.List, [z, one]), z)
    without = (
        SIZED.replace(', z: R.Tensor(("n", 4), "float32")', "").replace("(xs, z)", "(xs)").replace("(t, z)", "(t)")
    )
    wanted = r"line \d+: `n` is a size inside of data, which no argument tells\n.*\n.*\n  expected: another parameter"
    with pytest.raises(ModuleTextError, match=wanted):
        parse(without.replace("return z", 'return R.zeros((n, 4), "float32")'))


List = rx.script.List
ROWS = List(rx.Tensor("n 4"))


@rx.function
def centred(xs: ROWS) -> ROWS:  # type: ignore[reportInvalidTypeForm]
    def total(ys: ROWS, z: rx.Tensor("n 4")) -> rx.Tensor("n 4"):  # type: ignore[reportInvalidTypeForm]
        match ys:
            case List.Nil():
                return z
            case List.Cons(h, t):
                return total(t, h + z)

    whole = total(xs, rx.op.zeros((n, 4), "float32"))  # type: ignore[name-defined]  # noqa: F821

    def each(ys: ROWS) -> ROWS:  # type: ignore[reportInvalidTypeForm]
        match ys:
            case List.Nil():
                return List.Nil()
            case List.Cons(h, t):
                return List.Cons(h - whole, each(t))

    return each(xs)


@pytest.mark.parametrize("mode", ["exact", "capacity"])
def test_sizes_that_only_data_tells(mode: str) -> None:
    assert parse(str(centred)) == centred
    best = rx.optimize(centred, rules=rx.RuleSet("none"), dynamic=mode)
    for n in (2, 3):
        xs = rx.script.list_of(List, [np.full((n, 4), k, np.float32) for k in (1, 2)])
        wanted = rx.script.list_of(List, [np.full((n, 4), k, np.float32) for k in (-2, -1)])
        assert_alike(evaluate(centred, [xs]), wanted)
        assert_alike(best(xs), wanted)
    empty = rx.script.list_of(List, [])
    for run in (lambda: evaluate(centred, [empty]), lambda: best(empty)):
        with pytest.raises(ShapeError, match=r"no tensor in .* tells the size `n`, which is needed"):
            run()
    with pytest.raises(ShapeError, match=r"centred\(\): `xs`.*axis 0 should be n = 1 .*, got 2"):
        best(rx.script.list_of(List, [np.ones((2, 4), np.float32), np.ones((1, 4), np.float32)]))


def test_sizes_of_data_follow_from_those_of_arguments() -> None:
    """An empty list tells no size, and where none is needed that is no error."""
    text = (
        HEAD
        + """
@R.function
def each(xs: List(R.Tensor(("n", 4), "float32"))) -> List(R.Tensor(("n", 4), "float32")):
    match xs:
        case List.Nil():
            return xs
        case List.Cons(h, t):
            y = each(t)
            return List.Cons(R.exp(h), y)

@R.function
def main(xs: List(R.Tensor(("m", 4), "float32"))) -> List(R.Tensor(("m", 4), "float32")):
    return each(xs)
"""
    )
    module = parse(text)
    assert parse(str(module)) == module and not module.main.cast_variables
    for xs in ([], [np.ones((3, 4), np.float32)]):
        data = rx.script.list_of(List, xs)
        assert_alike(rx.optimize(module, rules=rx.RuleSet("none"))(data), evaluate(module, [data]))


def test_data_is_checked_where_a_function_says_more_of_it() -> None:
    """A list of any rows gets to a function that names their number: it is looked at once, before the first call."""
    module = parse(
        SIZED.replace(
            'main(xs: List(R.Tensor(("n", 4), "float32"))', 'main(xs: List(R.Tensor(ndim=2, dtype="float32"))'
        )
    )
    checks = [i for i in runner(module).compiler.code("main").instructions if isinstance(i, BindSizes)]
    assert len(checks) == 1
    best = rx.optimize(module, rules=rx.RuleSet("none"))
    z, one = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    assert np.all(best(rx.script.list_of(List, [z, z]), z) == 3)
    with pytest.raises(ShapeError, match=r"total\(\): `argument 0`\.Cons\[1\].*, axis 0 should be n = 3 .*, got 1"):
        best(rx.script.list_of(List, [z, one]), z)


def test_data_that_functions_of_the_host_return() -> None:
    module = parse(
        HEAD
        + """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    y = R.call_pure_packed("tests.rows", x, sinfo_args=List(R.Tensor((n,), "float32")))
    return y
"""
    )
    x, best = np.ones(3, np.float32), rx.optimize(module, rules=rx.RuleSet("none"))
    for given, said in (
        (
            lambda x: rx.script.list_of(List, [x, x[:1]]),
            r"result\.Cons\[1\]\.Cons\[0\]: float32\[1\], annotated .* \[3\]",
        ),
        (
            lambda x: rx.script.list_of(List, [np.float64(x)]),
            r"result\.Cons\[0\]: float64\[3\], annotated float32 \[3\]",
        ),
        (lambda x: x, r"its result should be a List, got ndarray"),
    ):  # fmt: skip
        rx.script.register_function("tests.rows", given, replace=True)
        for run in (lambda: evaluate(module, [x]), lambda: best(x)):
            with pytest.raises(HostError, match=said):
                run()
    rx.script.register_function("tests.rows", lambda x: rx.script.list_of(List, [x, x]), replace=True)
    assert_alike(best(x), rx.script.list_of(List, [x, x]))
