"""`Dim`: every canonical form against brute force, text that reads back, and the cases the design names."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import jax
import numpy as np
import pytest
from dim_strategies import build, environments, expressions, value
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_eg.errors import BoundsError, ShapeError, SpecError
from relax_eg.frontends.symbolic import to_dim
from relax_eg.shapes import Dim, ceildiv, dim_max, dim_select


@settings(max_examples=1000)
@given(expressions, environments)
# Pulling a common factor out of a symbolic division is wrong when a constant is left and the divisor is negative.
@example(("//", 6, ("*", 16, "m")), {"k": 1, "m": -23, "n": 1})
def test_canonical_form_keeps_the_value(expression, env):
    dim, expected = build(expression), value(expression, env)
    if dim is None or expected is None:
        return
    assert dim.evaluate(env) == expected
    partly = {"n": env["n"]}
    assert dim.substitute(partly).evaluate(env) == expected
    assert dim.substitute(env) == expected


@settings(max_examples=1000)
@given(expressions)
def test_text_reads_back(expression):
    dim = build(expression)
    if dim is not None:
        assert Dim.of(str(dim)) is dim
        assert Dim.of(f"({str(dim).replace(' ', '')})") is dim


@given(expressions, expressions, expressions)
def test_ring_laws_hold_of_canonical_forms(x, y, z):
    a, b, c = build(x), build(y), build(z)
    if a is None or b is None or c is None:
        return
    assert a + b is b + a
    assert (a + b) + c is a + (b + c)
    assert a * b is b * a
    assert (a + b) * c is a * c + b * c
    assert a - a == 0
    assert dim_max(a, dim_max(b, c)) is dim_max(dim_max(c, a), b)


@settings(max_examples=400)
@given(expressions, expressions)
def test_quotient_and_remainder_cancel(x, y):
    a, b = build(x), build(y)
    if a is not None and b is not None and b != 0:
        assert (a // b) * b + a % b is a
        assert ceildiv(a, b) is -((-a) // b)


@given(st.lists(expressions, max_size=6), st.randoms())
def test_the_order_does_not_depend_on_history(several, random):
    dims = [dim for dim in map(build, several) if dim is not None]
    ordered = sorted(dims, key=Dim.sort_key)
    random.shuffle(dims)
    assert sorted(dims, key=Dim.sort_key) == ordered
    for a in dims:
        for b in dims:
            assert (a.sort_key() == b.sort_key()) == (a is b)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("b*n*m", "b*m*n"),
        ("(n+m)**2", "m**2 + 2*m*n + n**2"),
        ("4*(n+1)-4", "4*n"),
        ("(4*n+8)//4", "n + 2"),
        ("(4*n+9)//4", "n + 2"),
        ("(n//2)//3", "n//6"),
        ("((n+1)//2+1)//2", "ceildiv(n, 4)"),
        ("(8*n)%4", "0"),
        ("(n%6)%3", "n%3"),
        ("(n%3)//3", "0"),
        ("(n//4)%2", "(n//4)%2"),
        ("(n%8)//4", "(n//4)%2"),
        ("m*(n//m) + n%m", "n"),
        ("(32*x + y%32)//64", "x//2"),
        ("n//-3", "-ceildiv(n, 3)"),
        ("ceildiv(n, 3)", "ceildiv(n, 3)"),
        ("b - 2*ceildiv(b, 3)", "b - 2*ceildiv(b, 3)"),
        ("4*((n+3)//4)", "4*ceildiv(n, 4)"),
        ("4*((n+3)//4) - n", "(-n)%4"),
        ("(n - k)//2 + 1", "(n - k)//2 + 1"),
        ("max(n, max(m, 3), n + 1, 4)", "max(4, m, n + 1)"),
        ("min(n, n)", "n"),
        ("(n*m)//m", "(m*n)//m"),  # m may be 0
        ("0//m", "0//m"),
        ("m//m", "m//m"),
        ("(2*n)//(2*m)", "n//m"),
        ("(2*n+1)//(2*m)", "(2*n + 1)//(2*m)"),
        ("ceildiv(-n, m)", "-(n//m)"),
        ("5 - n", "5 - n"),
        ("-n", "-n"),
        ("2*(n//3)", "2*(n//3)"),
        ("(n//3)**2", "(n//3)**2"),
        ("n % 8", "n%8"),
        ("n - 8*(n//8)", "n%8"),
        ("(n % 8)*(m % 8)", "(m%8)*(n%8)"),
        ("max(n % 8, m)", "max(m, n%8)"),
        ("-(-n // 8)", "ceildiv(n, 8)"),
        ("(n + 7)//8", "ceildiv(n, 8)"),
        ("(n + 6)//8", "(n + 6)//8"),
        ("(3*n + 7)//8", "ceildiv(3*n, 8)"),
        ("ceildiv(n, m)", "ceildiv(n, m)"),
        ("-(-n // m)", "ceildiv(n, m)"),
        ("select(n <= 4, a, b)", "select(n <= 4, a, b)"),
        ("a if n <= 4 else b", "select(n <= 4, a, b)"),
        ("select(n > 4, b, a)", "select(n <= 4, a, b)"),
        ("select(n < 5, a, b)", "select(n <= 4, a, b)"),
        ("select(2*n >= 9, b, a)", "select(n <= 4, a, b)"),
        ("select(n <= m, a, b)", "select(n <= m, a, b)"),
        ("select(m < n, b, a)", "select(n <= m, a, b)"),
        ("select(n - m <= 3, a, b)", "select(n <= m + 3, a, b)"),
        ("select(n*m > 4096, a, b)", "select(m*n <= 4096, b, a)"),
        ("select(n % 4 == 0, a, b)", "select(n%4 == 0, a, b)"),
        ("select(n != m, a, b)", "select(m == n, b, a)"),
        ("select(3*n == 6, a, b)", "select(n == 2, a, b)"),
        ("select(2*n == 3, a, b)", "b"),
        ("select(3 < 4, a, b)", "a"),
        ("select(n == n + 1, a, b)", "b"),
        ("select(n <= m, a + b, b + a)", "a + b"),
        ("select(n <= m, n, m)", "min(m, n)"),
        ("select(n < m, m, n)", "max(m, n)"),
        ("select(n <= 64, 2*n, 128)", "min(128, 2*n)"),
        ("select(n == m, n, m)", "m"),
        ("select(n == 4, 2*n, 8)", "8"),
        ("select(n <= 4, select(n <= 6, a, b), select(n <= 2, a, b))", "select(n <= 4, a, b)"),
        ("select(n == 4, a, select(n == 4, b, m))", "select(n == 4, a, m)"),
        ("select(n <= m, max(n, m), k)", "select(n <= m, m, k)"),
        ("select(m == 0, 0, n//m)", "select(m == 0, 0, n//m)"),
        ("2*select(n <= 4, a, b) + 1", "2*select(n <= 4, a, b) + 1"),
    ],
)
def test_simplifications(text, printed):
    assert str(Dim.of(text)) == printed
    assert Dim.of(printed) is Dim.of(text)


def test_a_select_looks_at_the_size_that_is_chosen():
    d = Dim.of("select(m == 0, 7, n//m) + 1")
    assert d.evaluate({"n": 6, "m": 0}) == 8
    assert d.evaluate({"n": 6, "m": 2}) == 4
    assert d.substitute({"m": 0}) == 8
    assert str(d.substitute({"m": 2})) == "n//2 + 1"
    # Where the comparison is not decided, a size without a value stays one.
    left = Dim.of("select(n == 4, 1, n//m)").substitute({"m": 0})
    assert left.evaluate({"n": 4}) == 1
    with pytest.raises(BoundsError, match="division of 1 by 0"):
        left.evaluate({"n": 5})
    assert d.variables == {"n", "m"}


def test_ints_and_dims_compare_and_hash_alike():
    four = Dim.of(4)
    assert four == 4
    assert 4 == four  # noqa: SIM300
    assert four == np.int64(4)
    assert four != 5
    assert Dim.var("n") != 4
    assert four != "4"
    assert {4: "x"}[four] == "x"
    assert len({four, 4, Dim.of("2+2")}) == 1


def test_ints_stand_on_either_side():
    n = Dim.var("n")
    assert [str(d) for d in (1 + n, 1 - n, 2 * n, 7 // n, 7 % n, -n, n**2)] == [
        "n + 1",
        "1 - n",
        "2*n",
        "7//n",
        "7%n",
        "-n",
        "n**2",
    ]
    assert n + np.int32(1) is n + 1
    with pytest.raises(TypeError):
        n + True  # pyright: ignore


def test_constants():
    assert Dim.of("2*3 - 1").value == 5
    assert int(Dim.of(7)) == 7
    assert Dim.of(7).is_const
    assert Dim.of("2*n + m").variables == {"n", "m"}
    with pytest.raises(ShapeError) as error:
        int(Dim.of("n + 1"))
    assert str(error.value) == "the size n + 1 is not a constant (variables: n); use .evaluate or .substitute"


def test_no_truth_value_and_no_order():
    with pytest.raises(ShapeError, match="the size n has no truth value; compare it: d == 0"):
        bool(Dim.var("n"))
    with pytest.raises(TypeError):
        _ = Dim.var("n") < 4  # pyright: ignore


def test_a_dim_is_immutable_and_copies_to_itself():
    n = Dim.of("2*n + 1")
    with pytest.raises(AttributeError):
        n.const = 3
    assert copy.deepcopy(n) is n
    assert repr(n) == "Dim('2*n + 1')"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Dim.of("n") // 0, "division by zero: (n)//0"),
        (lambda: Dim.of("n + 1") % 0, "division by zero: (n + 1) % 0"),
        (lambda: Dim.of(1.5), "cannot make a size of 1.5 (float); accepted: an int, a Dim, text like '2*n + 1'"),
        (lambda: Dim.of(True), "cannot make a size of True (bool); accepted: an int, a Dim, text like '2*n + 1'"),
        (lambda: Dim.var("2n"), "`2n` cannot name a variable; accepted: an identifier, no Python keyword, not `_`"),
        (lambda: Dim.var("if"), "`if` cannot name a variable; accepted: an identifier, no Python keyword, not `_`"),
        (lambda: Dim.of("n") ** -1, "(n)**-1 is not an integer; accepted: a power >= 0"),
        (lambda: dim_select(1, "=", 2, 3, 4), "`=` does not compare sizes; accepted: == != <= < >= >"),
        (lambda: Dim(), "a Dim is made by Dim.of(value), Dim.var(name) or arithmetic, not by Dim()"),
    ],
)
def test_refusals(make, text):
    with pytest.raises(SpecError) as error:
        make()
    assert str(error.value) == text


def test_evaluation_refusals():
    with pytest.raises(BoundsError) as error:
        Dim.of("n*m").evaluate({"n": 3, "a": 1})
    assert str(error.value) == "no value for the variable `m`; given: a, n"
    with pytest.raises(BoundsError) as error:
        Dim.of("n//(m - 1)").evaluate({"n": 3, "m": 1})
    assert str(error.value) == "division of n by m - 1, which is zero at m = 1"


def test_evaluates_to_symbolic_dimensions_of_jax():
    b, s = jax.export.symbolic_shape("b, s")
    env = {"n": b, "m": s}
    assert Dim.of("2*n*m + n//2 + 1").evaluate(env) == 2 * b * s + b // 2 + 1
    assert Dim.of("max(n, m)").evaluate(env) == s.max(b)
    assert Dim.of("min(n, 4)").evaluate(env) == b.rmin(4)
    assert Dim.of("n%4").evaluate(env) == b % 4
    for comparison in ("n <= 4", "n > m", "n == 4", "n != m", "n % 4 == 0"):
        text = f"select({comparison}, n + 1, 3*m)"
        theirs = Dim.of(text).evaluate(env)
        assert jax.export.is_symbolic_dim(theirs)
        back = to_dim(theirs)
        for n in range(1, 10):
            for m in range(1, 6):
                assert back.evaluate({"b": n, "s": m}) == Dim.of(text).evaluate({"n": n, "m": m}), (text, n, m)


def test_substitution_is_simultaneous():
    n, m = Dim.var("n"), Dim.var("m")
    assert Dim.of("n - 2*m").substitute({"n": m, "m": n}) is m - 2 * n
    assert Dim.of("max(n, m)").substitute({"n": 4 + m}) is m + 4


def test_unused_dims_are_freed():
    from relax_eg.shapes import dim as module

    def count() -> int:
        gc.collect()
        return len(module._dims)  # pyright: ignore

    before = count()
    for i in range(3 * module.MEMO):
        Dim.of(i + 1_000_000) * 2
    assert count() < before + 3 * module.MEMO


def test_order_and_text_are_the_same_in_every_process():
    code = (
        "from relax_eg.shapes import Dim\n"
        "ds = [Dim.of(t) for t in ['n//2','max(b, a)','a*b + 1','zz','n%4','b*a*c','7','ceildiv(q, r)']]\n"
        "print([str(d) for d in sorted(ds, key=Dim.sort_key)])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
