"""`Scope` and `Binder`: bounds, intervals against brute force, and what a wrong call is told."""

from __future__ import annotations

import re
import timeit

import pytest
from dim_strategies import NAMES, build, expressions, value
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_eg.errors import BoundsError, ShapeError
from relax_eg.shapes import Binder, Dim, Scope, parse_spec

ACCEPTED = "accepted: (low, high) with low <= high, either may be None, or one integer for a fixed size"


def patterns(*specs: str):
    return [parse_spec(spec).dims for spec in specs]


def bind(specs, sizes):
    return Binder(patterns(*specs), ["x", "y", "z"][: len(specs)], "encode").bind(sizes)


# --- intervals ---

ends = st.none() | st.integers(-6, 12)


@st.composite
def bounded_scopes(draw):
    bounds = {}
    for name in NAMES:
        low, high = draw(st.integers(-6, 12)), draw(st.none() | st.integers(0, 20))
        bounds[name] = (low, None if high is None else low + high)
    return bounds


@settings(max_examples=700)
@given(expressions, bounded_scopes(), st.data())
def test_intervals_hold_every_value(expression, bounds, data):
    dim = build(expression)
    if dim is None:
        return
    low, high = Scope(bounds).interval(dim)
    for _ in range(5):
        env = {n: data.draw(st.integers(lo, lo + 60 if hi is None else hi)) for n, (lo, hi) in bounds.items()}
        size = value(expression, env)
        if size is not None:
            assert low is None or low <= size
            assert high is None or size <= high


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("7", (7, 7)),
        ("s", (1, 4096)),
        ("n", (1, None)),
        ("2*s + 1", (3, 8193)),
        ("s - n", (None, 4095)),
        ("n//2", (0, None)),
        ("n%4", (0, 3)),
        ("n%s", (0, 4095)),
        ("s%n", (0, 4096)),
        ("7%n", (0, 7)),
        ("s%5000", (1, 4096)),
        ("4*((n + 3)//4) - n", (0, 3)),
        ("max(s, n)", (1, None)),
        ("min(s, n)", (1, 4096)),
        ("(s - 5000)//n", (-4999, -1)),
        ("ceildiv(s, n)", (1, 4096)),
        ("z//n", (0, 9)),
        ("(2 - b)*n", (None, -1)),
        ("n//min(s, 0)", (None, None)),  # never defined
        ("n//(b - 3)", (None, None)),
        ("2*(n%min(z, 0))", (None, None)),
        ("select(s <= 64, s, 2*s)", (1, 8192)),
        ("select(s <= 64, s, 65)", (1, 65)),
        ("select(s >= 100, s - 100, 7)", (0, 3996)),
        ("select(b == 3, s, n)", (1, 4096)),
        ("select(s > 4096, n, 5)", (5, 5)),
        ("select(z == 4, z, 11)", (4, 11)),
        ("select(z != 4, 11, 2*z)", (8, 11)),
        ("select(n < s, 1, 0) + select(n < s, 1, 0)", (0, 2)),
        ("select(2*z >= 5, z, 3)", (3, 9)),
        ("select(n <= z, n//(b - 3), 1)", (None, None)),
    ],
)
def test_intervals(text, interval):
    scope = Scope({"s": (1, 4096), "b": 3, "z": (0, 9)})
    assert scope.interval(Dim.of(text)) == interval


def test_equal():
    scope = Scope({"b": 3, "s": (1, 8)})
    n, m = Dim.var("n"), Dim.var("m")
    assert scope.equal(n * m, m * n) is True
    assert scope.equal(n, n + 1) is False
    assert scope.equal(n, n + m) is False
    assert scope.equal(n, m) is None
    assert scope.equal(Dim.var("b"), 3) is True
    assert scope.equal(Dim.var("s"), 9) is False
    assert scope.equal(3, 3) is True


# --- bounds ---


def test_declarations_narrow():
    scope = Scope()
    assert scope.bounds("n") == (1, None)
    scope.declare("n", None, 10)
    scope.declare("n", 0)
    assert scope.bounds("n") == (0, 10)
    scope.declare("n", 2, 20)
    assert scope.bounds("n") == (2, 10)
    scope.declare("n", 1, 5)
    assert scope.bounds("n") == (2, 5)
    with pytest.raises(BoundsError) as error:
        scope.declare("n", 6, source="the signature")
    assert str(error.value) == (
        "no size satisfies the bounds of `n`: at least 6 (declared in the signature) and at most 5 "
        f"(declared in optimize(bounds=...)); {ACCEPTED}"
    )


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((4, 2), "the bounds of `s` are empty: (4, 2)"),
        ((1, 2, 3), "the bounds of `s` are (1, 2, 3)"),
        ((1.5, 2), "the bounds of `s` hold 1.5, which is no integer"),
        ((True, 2), "the bounds of `s` hold True, which is no integer"),
        ("many", "the bounds of `s` hold 'many', which is no integer"),
        (None, "the bounds of `s` are None"),
        (
            (None, 0),
            "no size satisfies the bounds of `s`: at least 1 (every size is at least 1 unless declared otherwise) "
            "and at most 0 (declared in optimize(bounds=...))",
        ),
    ],
)
def test_bounds_that_are_refused(bounds, text):
    with pytest.raises(BoundsError) as error:
        Scope({"s": bounds})
    assert str(error.value) == f"{text}; {ACCEPTED}"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            {"s": 5000},
            "encode(): s = 5000 exceeds its bound 4096 (declared in optimize(bounds=...)); "
            "raise the bound or split the input",
        ),
        (
            {"q": 0},
            "encode(): q = 0 is below its bound 1 (every size is at least 1 unless declared otherwise); "
            "lower the bound or pass a larger input",
        ),
        (
            {"b": 2},
            "encode(): b = 2, and its bounds fix it to 3 (declared in optimize(bounds=...)); "
            "a pair such as (1, 3) accepts all sizes between",
        ),
        (
            {"t": 1},
            "encode(): t = 1 is below its bound 2 (declared in optimize(bounds=...)); "
            "lower the bound or pass a larger input",
        ),
    ],
)
def test_sizes_out_of_bounds(env, text):
    scope = Scope({"s": (1, 4096), "b": 3, "z": (0, None), "t": (2, 9)})
    scope.check({"s": 4096, "b": 3, "z": 0, "q": 1, "t": 2}, "encode")
    with pytest.raises(BoundsError) as error:
        scope.check(env, "encode")
    assert str(error.value) == text


def test_scope_binds_and_checks():
    scope = Scope({"s": (1, 16)})
    assert scope.bind(patterns("b s", "s"), [(2, 8), (8,)], ["x", "y"], "encode") == {"b": 2, "s": 8}
    with pytest.raises(BoundsError, match=r"encode\(\): s = 17 exceeds its bound 16"):
        scope.bind(patterns("s"), [(17,)], ["x"], "encode()")


# --- binding ---


@pytest.mark.parametrize(
    ("specs", "sizes", "env"),
    [
        ([], [], {}),
        (["", "n"], [(), (3,)], {"n": 3}),
        (["b s", "b s", "768 768"], [(2, 24), (2, 24), (768, 768)], {"b": 2, "s": 24}),
        (["2*n+1"], [(25,)], {"n": 12}),
        (["n-5"], [(0,)], {"n": 5}),
        (["10-n"], [(4,)], {"n": 6}),
        (["b*s", "b"], [(24,), (2,)], {"b": 2, "s": 12}),
        (["b*s", "2*b"], [(24,), (4,)], {"b": 2, "s": 12}),
        (["n//2 n+m", "n"], [(3, 9), (7,)], {"n": 7, "m": 2}),
        (["_ n", "n//4+m", "m"], [(9, 8), (5,), (3,)], {"n": 8, "m": 3}),
        (["n", "max(n, 4)"], [(2,), (4,)], {"n": 2}),
    ],
)
def test_binds(specs, sizes, env):
    assert bind(specs, sizes) == env


@pytest.mark.parametrize(
    ("specs", "sizes", "text"),
    [
        (["b s", "b s"], [(2, 24), (2, 25)], "argument `y`, axis 1 should be s = 24 (from argument `x`), got 25"),
        (["n n"], [(3, 4)], "argument `x`, axis 1 should be n = 3 (from axis 0), got 4"),
        (["n 768"], [(3, 512)], "argument `x`, axis 1 should be 768, got 512"),
        (
            ["n", "2*n+1"],
            [(24,), (25,)],
            "argument `y`, axis 0 should be 2*n + 1 = 49 (n = 24 from argument `x`), got 25",
        ),
        (["2*n+1"], [(24,)], "argument `x`, axis 0 should be 2*n + 1 for some n >= 0, got 24"),
        (["10-n"], [(12,)], "argument `x`, axis 0 should be 10 - n for some n >= 0, got 12"),
        (
            ["b*s", "b"],
            [(25,), (2,)],
            "argument `x`, axis 0 should be b*s for some s >= 0 (b = 2 from argument `y`), got 25",
        ),
        (
            ["b*s", "b"],
            [(0,), (0,)],
            "argument `x`, axis 0 is b*s = 0, which does not tell `s` (b = 0 from argument `y`); "
            "give `s` as an axis of its own",
        ),
        (
            ["2*n", "n+1"],
            [(8,), (6,)],
            "argument `y`, axis 0 should be n + 1 = 5 (n = 4 from argument `x`), got 6",
        ),
        (["b s"], [(3,)], "argument `x` should have 2 axes (b, s), got 1: (3,)"),
        (["_"], [(3, 4)], "argument `x` should have 1 axis (_), got 2: (3, 4)"),
        ([""], [(3,)], "argument `x` should be a scalar, got 1: (3,)"),
        (["n"], [()], "argument `x` should have 1 axis (n), got a scalar"),
        (["n", "n"], [(3,)], "takes 2 arguments (x, y), got 1"),
        (["n"], [], "takes 1 argument (x), got 0"),
        (
            ["n//2"],
            [(3,)],
            "cannot tell `n` from argument `x`, axis 0, which is n//2; "
            "let some axis be n alone, or linear in it as 2*n + 1 is",
        ),
        (
            ["n", "b*s"],
            [(3,), (4,)],
            "cannot tell `b` and `s` from argument `y`, axis 0, which is b*s; "
            "let some axis be b and another s alone, or linear in it as 2*b + 1 is",
        ),
        (
            ["n", "n//m"],
            [(3,), (4,)],
            "cannot tell `m` from argument `y`, axis 0, which is n//m; "
            "let some axis be m alone, or linear in it as 2*m + 1 is",
        ),
    ],
)
def test_calls_that_do_not_fit(specs, sizes, text):
    with pytest.raises(ShapeError) as error:
        bind(specs, sizes)
    assert str(error.value) == f"encode(): {text}"


def test_a_division_by_zero_names_the_function():
    with pytest.raises(BoundsError) as error:
        bind(["n m", "n//m"], [(3, 0), (2,)])
    assert str(error.value) == "encode(): division of n by m, which is zero at m = 0"


def test_where_that_is_no_name_is_taken_as_it_is():
    with pytest.raises(ShapeError, match=r"^rule `r`: argument `x`"):
        Binder(patterns("4"), ["x"], "rule `r`").bind([(3,)])


@given(st.lists(expressions, min_size=1, max_size=4), st.fixed_dictionaries({n: st.integers(0, 30) for n in NAMES}))
def test_binding_finds_the_sizes_again(several, env):
    """Where the sizes come from values of the variables, binding gives those values and refuses any other size."""
    pairs = [(build(e), value(e, env)) for e in several]
    kept = [(dim, size) for dim, size in pairs if dim is not None and size is not None]
    axes = [*kept, *((Dim.var(name), size) for name, size in env.items())]
    binder = Binder([[dim for dim, _ in axes]], ["x"], "f")
    sizes = [size for _, size in axes]
    assert binder.bind([sizes]) == env
    for place in range(len(kept)):
        wrong = [size + (i == place) for i, size in enumerate(sizes)]
        bare = kept[place][0] in [Dim.var(name) for name in NAMES]
        with pytest.raises(ShapeError) if not bare else pytest.raises((ShapeError, BoundsError)):
            binder.bind([wrong])


def test_binding_three_arguments_is_fast():
    binder = Binder(patterns("b s", "b s", "768 768"), ["ids", "mask", "w"], "encode")
    sizes = ((2, 24), (2, 24), (768, 768))
    seconds = min(timeit.repeat(lambda: binder.bind(sizes), number=2000, repeat=10)) / 2000
    assert seconds < 15e-6  # 1.3 us on a quiet machine; the limit only catches a slow path taken by mistake


def test_a_size_that_bounds_fix_is_told_so() -> None:
    """One integer fixes a size; who meant "up to" is told what says that."""
    scope = Scope()
    scope.bound("n", 32, "optimize(bounds=...)")
    scope.check({"n": 32}, "main")
    for size, pair in ((5, "(1, 32)"), (40, "(1, 40)")):
        told = rf"n = {size}, and its bounds fix it to 32 \(declared in .*{re.escape(pair)}"
        with pytest.raises(BoundsError, match=told):
            scope.check({"n": size}, "main")
