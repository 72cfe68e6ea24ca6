"""Registration errors word for word, set algebra, printing, instances."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import jax.numpy as jnp
import pytest

from relax_eg.errors import OperatorError, RuleError
from relax_eg.ops import api as op
from relax_eg.rules import InOrder, Rule, RuleSet
from relax_eg.rules.rule import PHASES, instances
from relax_eg.shapes import Dim, Relation


def refusal(function: Callable[..., Any], shapes: str, **options: Any) -> str:
    """The text of the error that registering a rule raises, without file and line, which it must begin with."""
    with pytest.raises(RuleError) as caught:
        RuleSet("mine").rule(shapes, **options)(function)
    line = function.__code__.co_firstlineno
    prefix = f"test_rule.py:{line} rule `{options.get('name') or function.__name__}`"
    text = str(caught.value)
    assert text.startswith(prefix), text
    return text[len(prefix) :].removeprefix(":").strip()


def product_sum(a: Any, b: Any) -> Any:
    return op.sum(a @ b), op.sum(a * b)


def doubled(a: Any) -> Any:
    return a + a, a * 2.0


def test_a_side_that_cannot_be_formed() -> None:
    assert refusal(product_sum, "a: n k, b: k n") == (
        "a side cannot be formed: multiply((n, k) float32, (k, n) float32): axis -2 does not broadcast: "
        "sizes n and k cannot be shown equal\n  hint: multiply needs equal shapes; is a .T missing?"
    )
    assert refusal(lambda a, b: (a @ b, b), "a: n k, b: n k", name="r").endswith(
        "\n  hint: the inner sizes k and n must agree; is a .T missing?"
    )


def test_a_refuted_rule() -> None:
    def difference(a: Any, b: Any) -> Any:
        return a - b, b - a

    assert refusal(difference, "a: n, b: n") == (
        "is refuted\n  left   a - b      right   b - a\n  at n=1:  a = [0]  b = [1]\n  left = [-1], right = [1]\n"
        "  hint: the sides differ in sign"
    )


def test_sides_that_do_not_fit() -> None:
    assert refusal(lambda a: (a.T, a), "a: n k", name="r") == (
        "the sides differ in shape: left (k, n) float32, right (n, k) float32"
    )
    assert refusal(lambda a: (op.astype(a * 1.0, "float16"), a), "a: n", name="r") == (
        "the sides differ in dtype: left float16, right float32"
    )
    assert refusal(lambda a: (a * 1.0, (a, a)), "a: n", name="r") == (
        "the sides differ in how many results they have: left 1, right 2"
    )


def test_what_is_no_rule() -> None:
    assert refusal(lambda a: (a, a * 1.0), "a: n", name="r") == (
        "the left side is a bare variable: it would match everything"
    )
    assert refusal(lambda a: (-a, -a), "a: n", name="r") == "both sides are the same expression"
    assert refusal(lambda a: (-a, -a), "a: *b", name="r") == (
        "no instance can be formed: both sides are the same expression"
    )
    assert refusal(lambda a: a, "a: n", name="r") == "a rule returns its two sides: `return left, right`"
    assert refusal(lambda a: (a * 1.0, 2), "a: n", name="r") == (
        "a side is int, not an expression over the pattern variables"
    )


@pytest.mark.parametrize(
    ("function", "said", "hint"),
    [
        (lambda a: (1 / 0, a), "its function raised ZeroDivisionError: division by zero, at line ", None),
        (lambda a: (op.softmx(a), a), "rx.op has no `softmx`, at line ", "did you mean rx.op.softmax or "),
        (lambda a: (op.var(a), a), "rx.op has no `var`, at line ", "composes of others (var, logsumexp, ...)"),
        (lambda a: (jnp.sin(a), a), "its function raised TypeError: ", "are those of rx.op, not of jax.numpy"),
        (lambda a: (math.exp(a), a), "its function raised TypeError: ", "are those of rx.op, not of jax.numpy"),
        (lambda a: (a // a, a), "unsupported operand type(s) for //", "variables take + - * / @ ** < <= > >="),
        (lambda a: ((a == 3).astype("int32"), a), "'bool' object has no attribute 'astype'", "rx.op.equal and rx.op."),
        (lambda a: (a.foo(), a), "'Expr' object has no attribute 'foo', at line ", ".T, .sum(), .reshape()"),
        (
            lambda a: (-a if a > 0 else a, a),
            "is not known",
            "rx.op.where; what has to hold for",
        ),
        (lambda a: (op.cumsum(a), a), "missing 1 required positional argument: 'axis', at line ", None),
    ],
)
def test_what_the_function_raises(function: Any, said: str, hint: str | None) -> None:
    first, *more = refusal(function, "a: n", name="r").splitlines()
    assert said in first and first.endswith(f": {inspect.getsource(function).strip()}")
    assert [hint is not None and hint in x for x in more] == [True] * (hint is not None)


def test_a_function_that_returns_nothing() -> None:
    assert refusal(lambda a: None, "a: n", name="r") == (
        "no instance can be formed: its function returned None; `return left, right` is accepted"
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (op.where(a == 3.0, 0.0 * a, a), a * 1.0),  # was proved: the condition was False for all elements
        lambda a: (op.where(op.logical_and(a > 0.0, a != 3.0), -a, a), a * 1.0),
    ],
)
def test_equality_of_expressions_is_no_condition(function: Any) -> None:
    assert "a bool of Python; == and != of expressions" in refusal(function, "a: n", name="r")
    assert "equal(x, y) and not_equal(x, y) compare elements" in refusal(function, "a: n", name="r")


def test_a_decorator_without_options_is_refused() -> None:
    with pytest.raises(RuleError, match=r"shapes=<function doubled.*: the shapes of the variables, such as"):
        RuleSet("mine").rule(doubled)


def test_variables_that_are_not_bound() -> None:
    assert refusal(lambda a, b: (a + a, a + b), "a: n, b: n", name="r") == (
        "variable `b` of the right side does not occur on the left"
    )
    assert refusal(lambda a, b: (a + a, a * 2.0), "a: n, b: n", name="r") == (
        "variable `b` of the signature does not occur on the left"
    )
    assert refusal(doubled, "a: n+1") == (
        "size `n` occurs only inside the expression n + 1: no axis binds it\n  accepted: a name for the whole axis, "
        'and what it has to be as a condition, such as shapes="x: m", when="m % 2 == 0"'
    )
    assert refusal(doubled, "a: n", when="n > m") == (
        "condition m < n: no axis or attribute of the left side binds `m`"
    )
    assert refusal(doubled, "a: n", when="inputs_in_order(a, c)") == (
        "condition inputs_in_order(a, c): the signature lacks `c`"
    )


def test_declarations_that_do_not_fit_the_function() -> None:
    assert refusal(doubled, "b: n") == "its function takes (a); shapes=, attrs= and sizes= declare (b)"
    assert refusal(doubled, "a: n", attrs={"p": "permute_dims.axes"}) == (
        "its function takes (a); shapes=, attrs= and sizes= declare (a, p)"
    )
    assert refusal(doubled, "a: n", sizes="i") == "its function takes (a); shapes=, attrs= and sizes= declare (a, i)"
    assert refusal(lambda a, p: (op.permute_dims(a, p), a), "a: *b", name="r", attrs={"p": "permute_dims.axis"}) == (
        "attrs: 'permute_dims.axis' is not an attribute that a rule can range over; accepted: permute_dims.axes"
    )
    assert refusal(lambda a, p: None, "a: *b", name="r", attrs={"p": "permute_dims.axes"}) == (
        "no instance can be formed: its function declines every value of its attribute variables"
    )
    assert refusal(doubled, "a n").startswith("expected `name: dims`\n  a n\n  ^")
    assert refusal(doubled, "a: n", when="hello") == (
        "condition 'hello': accepted: a comparison of sizes, a fact such as positive(x), a word (is_constant(x), "
        "is_weight(x), used_once(x)), a test of a constant such as s > 0, or inputs_in_order(...)"
    )
    assert refusal(doubled, "a: n", numerics="bitwise") == (
        "numerics='bitwise': one of exact, reassociate, approximate, quantised is accepted"
    )
    assert refusal(doubled, "a: n", phase="late") == f"phase='late': one of {', '.join(PHASES)} is accepted"


def test_a_name_is_taken_once() -> None:
    book = RuleSet("mine")
    book.rule("a: n")(doubled)
    line = doubled.__code__.co_firstlineno
    with pytest.raises(RuleError) as caught:
        book.rule("a: n")(doubled)
    assert str(caught.value) == (
        f"test_rule.py:{line} rule `doubled`: a rule of this name is already in the set (at test_rule.py:{line})"
    )


def library() -> RuleSet:
    book = RuleSet("library")
    book.rule("a: n", name="one", tags=("x",))(lambda a: (a + a, a * 2.0))
    book.rule("a: n", name="two", numerics="exact", both=True)(lambda a: (-a + a * 3.0, a * 3.0 - a))
    return book


def test_sets_combine() -> None:
    book, other = library(), RuleSet("other")
    other.rule("a: n", name="three")(lambda a: (a + 0.0, a))
    assert [r.name for r in book] == ["one", "two", "two_reversed"]
    assert [r.name for r in book + other] == ["one", "two", "two_reversed", "three"]
    assert [r.name for r in book + other - book] == ["three"]
    assert [r.name for r in book - "one"] == ["two", "two_reversed"]
    assert [r.name for r in book - "x"] == ["two", "two_reversed"]
    assert [r.name for r in book - "exact"] == ["one"]
    assert [r.name for r in book.only("exact")] == ["two", "two_reversed"]
    assert "one" in book
    assert len(book + book) == 3
    with pytest.raises(KeyError, match="no rule `tow` in set `library`; did you mean `two`"):
        book["tow"]
    for take in (lambda: book - "tow", lambda: book.only("tow")):
        with pytest.raises(KeyError, match="no rule, tag or numerics class `tow` in set `library`; did you mean `two`"):
            take()


def test_a_rule_is_a_line_of_mathematics() -> None:
    book = RuleSet("mine")

    def show(shapes: str, function: Callable[..., Any], **options: Any) -> str:
        book.rule(shapes, name=f"r{len(book)}", check=False, **options)(function)
        return str(list(book)[-1]).partition(": ")[2]

    assert show("a: n k, b: k n", lambda a, b: (op.trace(a @ b), op.sum(a * b.T))) == "trace(a @ b)  =>  sum(a * b.T)"
    assert show("a: n, b: n, c: n", lambda a, b, c: (a - (b - c), a - b + c)) == "a - (b - c)  =>  a - b + c"
    assert show("a: n, b: n", lambda a, b: (-(a + b) * 2.0, -a)) == "-(a + b) * 2.0  =>  -a"
    assert show("d: n, x: n", lambda d, x: (op.diag(d) @ x, d * x)) == "diag(d) @ x  =>  d * x"
    assert show("x: n m", lambda x: (op.exp(x)[1:, :], op.exp(x[1:, :]))) == "exp(x)[1:, :]  =>  exp(x[1:, :])"
    assert show("x: n m", lambda x: (op.sum(x.T, 0), op.sum(x, 1))) == "sum(x.T, axes=(0,))  =>  sum(x, axes=(1,))"
    assert show("x: n", lambda x: (op.max(op.relu(x)), op.relu(op.max(x))), when="n >= 1") == (
        "max(relu(x))  =>  relu(max(x))   when n >= 1"
    )


def one(shapes: str, function: Callable[..., Any], **options: Any) -> Rule:
    book = RuleSet("mine")
    book.rule(shapes, name="r", check=False, **options)(function)
    return book["r"]


def test_instances_range_over_blocks() -> None:
    found = list(instances(one("x: *b", lambda x: (x + x, x * 2.0))))
    assert [i.params[0].ndim for i in found] == [1, 0, 2, 3]
    found = list(instances(one("x: *b n, y: *c n", lambda x, y: (x + y, y + x))))
    assert sorted({(i.params[0].ndim, i.params[1].ndim) for i in found}) == [
        (m, n) for m in range(1, 5) for n in range(1, 5) if m == 1 or n == 1
    ]


def test_instances_range_over_attributes() -> None:
    def transposed(x: Any, p: Any) -> Any:
        return op.exp(op.permute_dims(x, p)), op.permute_dims(op.exp(x), p)

    rule = one("x: *b", transposed, attrs={"p": "permute_dims.axes"})
    found = list(instances(rule))
    assert {i.right[0].attr("axes") for i in found} == {p for n in range(4) for p in permutations(range(n))}
    assert list(instances(rule, limit=3)) == found[:3]
    assert [i.params[0].ndim for i in instances(rule, ranks=(2,))] == [2, 2]

    def summed(x: Any, axes: Any, keepdims: bool) -> Any:
        return op.sum(-x, axes, keepdims), -op.sum(x, axes, keepdims)

    found = list(instances(one("x: *b", summed, attrs={"axes": "sum.axes", "keepdims": "sum.keepdims"})))
    every = {(i.params[0].ndim, i.right[0].args[0].attr("axes"), i.right[0].args[0].attr("keepdims")) for i in found}
    assert len(every) == len(found) == 2 * (1 + 3 + 7)


def test_instances_are_of_the_asked_dtypes() -> None:
    rule = one("x: n", lambda x: (x + x, x * 2.0))
    assert [i.params[0].dtype for i in instances(rule)] == ["float32"]
    assert [i.params[0].dtype for i in instances(rule, dtypes=("float16", "bfloat16"))] == ["float16", "bfloat16"]
    fixed = one("x: n @ int32", lambda x: (x + x, x * 2))
    assert [i.params[0].dtype for i in instances(fixed, dtypes=("float16", "bfloat16"))] == ["int32"]


def test_further_sizes_reach_the_function() -> None:
    rule = one("x: n", lambda x, i, j: (op.exp(x)[i:j], op.exp(x[i:j])), sizes="i j")
    (instance,) = instances(rule)
    assert str(instance.left[0].shape[0]) == "j - i" or str(instance.left[0].shape[0]) == "-i + j"
    rule = one("x:", lambda x, t: (op.exp(op.broadcast_to(x, t)), op.broadcast_to(op.exp(x), t)), sizes="*t")
    assert [i.left[0].ndim for i in instances(rule)] == [1, 0, 2, 3]


def test_conditions_are_read() -> None:
    rule = one("a: n, b: m", lambda a, b: (op.concat([a, b]), op.concat([a, b, a])[: a.shape[0] + b.shape[0]]),
               when=("n % 8 == 0", "n > m", "inputs_in_order(a, b)"))  # fmt: skip
    (instance,) = instances(rule)
    n, m = Dim.var("n"), Dim.var("m")
    assert instance.guards == (Relation.of(n % 8, "==", 0), Relation.of(m, "<", n), InOrder(("a", "b")))


def test_an_operator_that_refuses_some_ranks_is_no_error() -> None:
    def only_matrices(x: Any) -> Any:
        if x.ndim != 2:
            raise OperatorError("matrices only")
        return op.exp(x.T), op.exp(x).T

    assert [i.params[0].ndim for i in instances(one("x: *b", only_matrices))] == [2]
