"""Scopes as the prover knows them: assumptions, contradictions, nesting without leaks, constraints of jax.export."""

from __future__ import annotations

import pytest

from relax_eg.errors import BoundsError, RelaxEgError
from relax_eg.shapes import Dim, Proved, Refuted, Scope, Unknown, prove

DEFAULT = "{} >= 1 (every size is at least 1 unless declared otherwise)"
SAID = "n >= 5 (declared in the assumption `n >= 5`)"


def test_assumptions_keep_the_users_words():
    scope = Scope({"b": (1, 8)}, assume=["s %  8==0", "n==2 * m", "b*s <= 4096"])
    assert scope.assumptions == ("s %  8==0", "n==2 * m", "b*s <= 4096")
    with pytest.raises(BoundsError) as error:
        scope.check({"b": 1, "s": 12}, "encode")
    assert str(error.value) == "encode(): the assumption `s %  8==0` does not hold at s = 12"
    scope.check({"b": 1, "s": 16, "n": 2, "m": 1}, "encode")


def test_simple_assumptions_are_bounds():
    scope = Scope(assume=["n >= 2", "n < 64", "0 <= y < 32", "k == 4"])
    assert scope.bounds("n") == (2, 63)
    assert scope.bounds("y") == (0, 31)
    assert scope.bounds("k") == (4, 4)
    with pytest.raises(BoundsError) as error:
        scope.assume("n > 64")
    assert "at least 65 (declared in the assumption `n > 64`)" in str(error.value)
    assert "at most 63 (declared in the assumption `n < 64`)" in str(error.value)
    assert scope.bounds("n") == (2, 63)


@pytest.mark.parametrize(
    ("assume", "core"),
    [
        (["k >= 3", "n % 8 == 0", "m <= 7", "n % 8 == 3"], ["n % 8 == 0", "n % 8 == 3"]),
        (["n == 2*m", "k == m + 1", "n == 2*m + 1"], ["n == 2*m", "n == 2*m + 1"]),
        (["n < m", "m < k", "k < n"], ["n < m", "m < k", "k < n"]),
        (["n*n == 2"], ["n*n == 2"]),
        (["n*m <= 16", "n == m + 16"], [DEFAULT.format("m"), "n*m <= 16", "n == m + 16"]),
        (["n <= m", "m <= 4", "n >= 5"], ["m <= 4 (declared in the assumption `m <= 4`)", SAID, "n <= m"]),
        (["n // m == 2", "m == 0"], [*(["m {} 0 (declared in the assumption `m == 0`)"] * 2), "n // m == 2"]),
        (["n != n"], ["n != n"]),
        (["k == 3", "select(n  <4, n, 3) == 5"], ["select(n  <4, n, 3) == 5"]),
        (["n % 2 == 0", "n == select(m > 4, 3, 5)"], ["n % 2 == 0", "n == select(m > 4, 3, 5)"]),
    ],
)
def test_contradictions_name_their_core(assume, core):
    with pytest.raises(BoundsError) as error:
        Scope(assume=assume)
    core = [part.format(">=" if i == 0 else "<=") for i, part in enumerate(core)]
    lines = ["no sizes satisfy all of", *core, "accepted: assumptions that some sizes satisfy together"]
    assert str(error.value) == "\n  ".join(lines)


@pytest.mark.parametrize(
    ("assume", "text"),
    [
        (["n <= 8", "n > 9"], "at least 10 (declared in the assumption `n > 9`) and at most 8 (declared in the assu"),
        (["n == 3", "n == 4"], "at least 4 (declared in the assumption `n == 4`) and at most 3 (declared in the assu"),
    ],
)
def test_a_variable_with_two_bounds(assume, text):
    """Both hold; where they cannot, both are named."""
    with pytest.raises(BoundsError) as error:
        Scope(assume=assume)
    assert str(error.value).startswith(f"no size satisfies the bounds of `n`: {text}")
    scope = Scope({"n": (1, 64)}, assume=["n <= 32", "n >= 4"])
    scope.declare("n", 8, 100)
    assert scope.bounds("n") == (8, 32)


def test_a_contradiction_leaves_the_scope_as_it_was():
    scope = Scope(assume=["n % 8 == 0"])
    with pytest.raises(BoundsError, match="no sizes satisfy all of\n  n % 8 == 0\n  n % 8 == 3\n  accepted:"):
        scope.assume("m >= 5", "n % 8 == 3")
    assert scope.assumptions == ("n % 8 == 0",)
    assert scope.bounds("m") == (1, None)
    assert isinstance(prove("n % 4 == 0", scope), Proved)
    with pytest.raises(BoundsError):
        scope.declare("n", 1, 7)
    assert scope.bounds("n") == (1, None)


def test_children_do_not_leak():
    function = Scope({"n": (1, 64)})
    branch = function.child()
    branch.assume("n % 8 == 0", "n >= 16")
    after_match_cast = branch.child()
    after_match_cast.assume("k == n // 8")
    assert isinstance(prove("n >= 16", after_match_cast), Proved)
    assert isinstance(prove("8*k == n", after_match_cast), Proved)
    assert isinstance(prove("n % 4 == 0", branch), Proved)
    assert isinstance(prove("8*k == n", branch), Refuted)
    for leaked in ("n % 4 == 0", "n >= 16", "8*k == n"):
        assert isinstance(prove(leaked, function), Refuted)
    # Asked again, from memory, in every order.
    assert isinstance(prove("n % 4 == 0", branch), Proved)
    assert isinstance(prove("n % 4 == 0", function), Refuted)
    assert function.bounds("n") == (1, 64)
    assert function.assumptions == ()


def test_siblings_do_not_leak():
    function = Scope()
    then, other = function.child(), function.child()
    then.assume("n <= 8")
    other.assume("n > 8")
    assert isinstance(prove("n//16 == 0", then), Proved)
    assert isinstance(prove("n//16 == 0", other), Refuted)
    assert isinstance(prove("max(n, 8) == n", other), Proved)
    assert isinstance(prove("max(n, 8) == n", then), Refuted)
    assert then.equal(Dim.of("max(n, 8)"), 8) is True
    assert other.equal(Dim.of("max(n, 8)"), 8) is False
    assert function.equal(Dim.of("max(n, 8)"), 8) is None


def test_a_parent_that_learns_later_does_not_tell_its_child():
    function = Scope()
    branch = function.child()
    assert isinstance(prove("n <= 8", branch), Refuted)
    function.declare("n", 1, 8)
    assert isinstance(prove("n <= 8", function), Proved)
    assert isinstance(prove("n <= 8", branch), Refuted)


def test_what_holds_for_one_question_is_forgotten():
    scope = Scope()
    assert isinstance(prove("n % 4 == 0", scope, bounds="n % 8 == 0"), Proved)
    assert isinstance(prove("n % 4 == 0", scope), Refuted)
    assert isinstance(prove("n <= 4", scope, bounds={"n": (1, 4)}), Proved)
    assert isinstance(prove("n <= 4", scope), Refuted)


def test_equal_uses_what_is_known():
    n, m = Dim.var("n"), Dim.var("m")
    scope = Scope(assume=["n % 8 == 0", "m == 2*k"])
    assert scope.equal(n // 8 * 8, n) is True
    assert scope.equal(m, 2 * Dim.var("k")) is True
    assert scope.equal(m, n) is None
    assert scope.equal(n, m * 4 + 1) is False
    # Deep questions are put to z3.
    hard, same = (n + m + 1) // (m + 1), n // (m + 1) + 1
    assert Scope().equal(hard, same) is None
    assert Scope().equal(hard, same, deep=True) is True
    assert Scope().equal(hard, same + 1, deep=True) is False
    assert Scope().equal(n, m, deep=True) is None


def test_intervals_use_what_is_known():
    scope = Scope({"m": (1, 64)}, assume=["n % 8 == 0", "n <= m"])
    assert scope.interval(Dim.var("n")) == (8, 64)
    assert scope.interval(Dim.of("n//8")) == (1, 8)


@pytest.mark.parametrize(
    ("bounds", "assume", "fixed", "sizes"),
    [
        ({}, [], {}, {"n": 128, "m": 128}),
        ({"n": (1, 64), "m": (1000, None)}, [], {}, {"n": 64, "m": 1000}),
        ({}, ["n % 48 == 0"], {}, {"n": 96, "m": 128}),
        ({}, ["n*m <= 4096"], {}, {"n": 64, "m": 64}),
        ({}, ["n*m <= 4096"], {"n": 100}, {"n": 100, "m": 40}),
        ({}, ["n == 2*m", "m % 3 == 1"], {}, {"n": 128, "m": 64}),
        ({}, ["n*n == m*m*m", "n >= 2"], {}, {"n": 8, "m": 4}),
        ({}, ["n == select(m <= 100, 7, 9)"], {}, {"n": 9, "m": 128}),
    ],
)
def test_examples(bounds, assume, fixed, sizes):
    """Sizes that are allowed together, about as large as they were asked for."""
    scope = Scope(bounds, assume=assume)
    found = scope.example(["n", "m"], 128, fixed)
    assert found == sizes
    scope.check(found, "f")


def test_statistics():
    scope = Scope()
    prove("n*4 == 4*n", scope)
    prove("n*4 == 4*n", scope)
    prove("n == m", scope.child())
    prove("(n + m + 1)//(m + 1) == n//(m + 1) + 1", scope)
    found = scope.statistics
    assert found.queries["canonical"] == 1
    assert found.queries["memo"] == 1
    assert found.queries["points"] == 1
    assert found.asked_z3 == 1
    assert found.total >= 4
    assert "canonical 1" in str(found)


def test_a_multiple_of_a_divisor_needs_no_search():
    scope = Scope()
    for multiple in (
        "(n + m)//m == n//m + 1",
        "(n*m*k + 3*m*k + n)//(m*k) == n + 3 + n//(m*k)",
        "ceildiv(n + m, m) == ceildiv(n, m) + 1",
    ):
        assert isinstance(prove(multiple, scope, timeout_ms=0), Proved)
    assert isinstance(prove("(n + m)//m == n//m + 1", bounds={"m": (0, None)}), Unknown)
    assert isinstance(prove("(n + m)//m == n//m + 2", scope), Refuted)


# --- constraints of jax.export ---


def test_constraints_are_read():
    scope = Scope.from_constraints(["s >= 1", "mod(s, 8) == 0", "b*s <= 4096", "floordiv(n, 2)^2 >= m", "b >= 0"])
    assert isinstance(prove("s % 4 == 0", scope), Proved)
    assert isinstance(prove("b <= 512", scope), Proved)
    assert isinstance(prove("(n//2)**2 >= m", scope), Proved)
    assert scope.bounds("b") == (1, None)  # JAX's dimensions are
    with pytest.raises(RelaxEgError):
        Scope.from_constraints(["s => 1"])


def test_constraints_are_written():
    scope = Scope(
        {"b": (1, 16), "h": (2, None)},
        assume=["s % 8 == 0", "b*s < 4096", "n == 2*m", "k != 3", "max(s, 7)*ceildiv(s, 2) >= h**2 - 3"],
    )
    written = scope.to_constraints()
    assert written == [
        "b <= 16",
        "h >= 2",
        "mod(s, 8) == 0",
        "1 + b*s <= 4096",
        "n == 2*m",
        "floordiv(1 + s, 2)*max(7, s) >= -3 + h*h",
    ]
    again = Scope.from_constraints(written)
    assert again.to_constraints() == written
    with pytest.raises(BoundsError, match="a symbolic dimension of JAX is at least 1"):
        Scope({"n": (0, 4)}).to_constraints()


def test_jax_reads_what_is_written():
    export = pytest.importorskip("jax.export")
    scope = Scope(
        {"b": (1, 16)},
        assume=[
            *("s % 8 == 0", "b*s < 4096", "n == 2*m", "max(s, 7)*ceildiv(s, 2) >= b", "ceildiv(n + k, m)*b >= 2 - b"),
            *("select(n <= m + 2, b + n, 2*s) >= 1", "ceildiv(select(n == 4, s, b), m) <= 99"),
        ],
    )
    theirs = export.SymbolicScope(scope.to_constraints())
    b, s = export.symbolic_shape("b, s", scope=theirs)
    assert b <= 16
    assert s % 8 == 0
