"""Scripts that call scripts which follow them."""

from __future__ import annotations

import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import ScriptError
from relax_eg.ops.interpret import evaluate

INT, BOOL = rx.Tensor((), "int32"), rx.Tensor((), "bool")
F = rx.Tensor((), "float32")
Rose, Forest = rx.script.data_types({
    "Rose(a)": {"Node": ("a", "Forest(a)")},
    "Forest(a)": {"End": (), "More": ("Rose(a)", "Forest(a)")},
})  # fmt: skip


@rx.function
def even(n: INT) -> BOOL:
    if n == 0:
        return True
    return odd(n - 1)


@rx.function
def odd(n: INT) -> BOOL:
    if n == 0:
        return False
    return even(n - 1)


def test_two_scripts_call_one_another() -> None:
    assert [f.name for f in even] == ["even", "even_then", "even_else", "odd", "odd_then", "odd_else"]
    assert {f.name for f in odd} == {f.name for f in even} and odd.main.name == "odd"
    assert rx.parse(str(even)) == even and rx.parse(str(odd)) == odd
    for n in (0, 3, 4):
        assert bool(evaluate(even, [np.int32(n)])) is (n % 2 == 0)
        assert bool(evaluate(odd, [np.int32(n)])) is (n % 2 == 1)


def test_what_a_later_script_assumes_holds_where_it_is_the_entry() -> None:
    @rx.function
    def whole(x: rx.Tensor("n")) -> rx.Tensor("n"):
        return halves(x)

    @rx.function(assume="n % 2 == 0")
    def halves(x: rx.Tensor("n")) -> rx.Tensor("n"):
        return x * 2

    assert whole["halves"].assume == () and halves.main.assume == ("n % 2 == 0",)


def test_in_a_function_and_over_data() -> None:
    scale = np.float32(3)

    @rx.function
    def of_rose(t: Rose(F)) -> F:
        match t:
            case Rose.Node(x, f):
                return x + of_forest(f)

    @rx.function
    def of_forest(f: Forest(F)) -> F:
        match f:
            case Forest.End():
                return 0.0
            case Forest.More(t, r):
                return of_rose(t) * scale + of_forest(r)

    leaf = Rose.Node(np.float32(2), Forest.End())
    assert float(evaluate(of_rose, [Rose.Node(np.float32(1), Forest.More(leaf, Forest.End()))])) == 7


def test_an_earlier_function_of_the_name_is_meant() -> None:
    @rx.function
    def step(x: F) -> F:
        return x + 1

    @rx.function
    def main(x: F) -> F:
        return step(x)

    @rx.function
    def step(x: F) -> F:  # noqa: F811
        return x + 2

    assert float(evaluate(main, [np.float32(1)])) == 2


def test_what_it_returns_has_to_be_said() -> None:
    with pytest.raises(
        ScriptError, match=r"what `after` returns is not known yet\n.*\n.*\n  accepted: `def after"
    ) as e:

        @rx.function
        def before(x: F):
            return after(x)

        @rx.function
        def after(x: F):
            return x + 1

    assert "test_later_scripts.py:" in str(e.value)


def test_steps_are_bound_wherever_they_are_written() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4"), kept: rx.Tensor("n", "bool"), n: INT):
        return rx.op.sum(x[kept], axis=0), rx.op.sum(rx.op.arange(n))

    assert rx.parse(str(main)) == main
    total, count = evaluate(main, [np.ones((3, 4), np.float32), np.array([True, False, True]), np.int32(5)])
    assert total.tolist() == [2, 2, 2, 2] and count == 10
