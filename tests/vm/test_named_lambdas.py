"""Lambdas and nested functions without annotations: one function for each use."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import ModuleTextError
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from tests.vm.language_programs import SCALAR, scalars
from tests.vm.test_language import assert_alike, plain

List = rx.script.List
F = rx.Tensor((), "float32")
A, B = rx.script.TypeVar("a"), rx.script.TypeVar("b")


@rx.function
def mapped(f: rx.Callable((A,), B), xs: List(A)) -> List(B):  # type: ignore[reportInvalidTypeForm]
    match xs:
        case List.Nil():
            return List.Nil()
        case List.Cons(h, t):
            return List.Cons(f(h), mapped(f, t))


@rx.function
def named(x: F, n: rx.Tensor((), "int32"), xs: List(F)):  # type: ignore[reportInvalidTypeForm]
    ident = lambda v: v  # noqa: E731
    pair = lambda p, q: (p, ident(q))  # noqa: E731
    k = x * 2.0
    scale = lambda v: v * k  # noqa: E731

    def twice(v):  # type: ignore[reportMissingParameterType]
        return ident(v) + ident(v)

    def inner(y: F) -> F:
        return scale(y) + twice(y)

    match rx.script.Option.Some(inner(x)):
        case rx.script.Option.Some(found):
            return pair(x, n), twice(n), found, mapped(scale, xs), (lambda u: u * u)(x)
        case rx.script.Option.Nothing():
            return pair(x, n), twice(n), x, xs, x


@rx.function
def lines(x: F, n: rx.Tensor((), "int32"), o: rx.script.Option(F)):  # type: ignore[reportInvalidTypeForm]
    k = x * 2.0

    def at_least(v, low):  # type: ignore[reportMissingParameterType]
        if v < low:
            return low
        w = v + v
        return w

    def or_else(o, other):  # type: ignore[reportMissingParameterType]
        match o:
            case rx.script.Option.Some(v):
                return v * k
            case rx.script.Option.Nothing():
                return other

    def twice(a):  # type: ignore[reportMissingParameterType]
        def inner(b):  # type: ignore[reportMissingParameterType]
            c = b * a
            return c + a

        return inner(inner(a))

    return at_least(x, 1.0), at_least(n, 4), or_else(o, x), twice(x), twice(n)


def test_functions_of_several_lines_without_annotations() -> None:
    assert parse(str(lines)) == lines and "lines_at_least1" in str(lines)
    args = np.float32(2), np.int32(3), rx.script.Option.Some(np.float32(3))
    wanted = (4.0, 4, 12.0, 14.0, 39)
    assert tuple(x.item() for x in evaluate(lines, args)) == wanted
    assert_alike(rx.optimize(lines, rules=rx.RuleSet("none"))(*args), evaluate(lines, args))


def test_lambdas_without_annotations_have_names() -> None:
    assert parse(str(named)) == named
    args = np.float32(2), np.int32(3), scalars([1.0, 2.0])
    wanted = ((2.0, 3), 6, 12.0, ("Cons", 4.0, ("Cons", 8.0, ("Nil",))), 4.0)
    got = plain(evaluate(named, args))
    assert jax.tree_util.tree_map(lambda x: x if isinstance(x, str) else x.item(), got) == wanted
    assert_alike(rx.optimize(named, rules=rx.RuleSet("none"))(*args), evaluate(named, args))
    head = f"@R.function\ndef main(x: {SCALAR}, k: {SCALAR}):\n    s = lambda v: v * k\n"
    wanted = (
        "line 5: `s` reads `k`, which is another value here\n.*\n.*\n  expected: another name for that value, or def"
    )
    with pytest.raises(ModuleTextError, match=wanted):
        parse(head + f"    def h(k: {SCALAR}) -> {SCALAR}:\n        return s(k)\n    return h(x)\n")
    with pytest.raises(ModuleTextError, match="the parameters of this lambda have no annotations"):
        parse(head + "    return s\n")
    lines = "".join(f"    f{i + 1} = lambda v: f{i}(f{i}(v))\n" for i in range(30))
    with pytest.raises(ModuleTextError, match=r"the uses of `f\d+` and of other lambdas .* are too long together"):
        parse(head + f"    f0 = lambda v: v + 1.0\n{lines}    return f30(x)\n")
