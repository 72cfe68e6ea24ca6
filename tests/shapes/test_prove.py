"""`prove`: identities and non-identities, one a line; scopes that nest; what bad questions are told."""

from __future__ import annotations

import pytest

from relax_eg.errors import BoundsError, OptionError, RelaxEgError, SpecError
from relax_eg.shapes import Dim, Proved, Refuted, Relation, Scope, Unknown, prove

# "statement", or "statement | assumption; assumption". Variables are at least 1.
HOLDS = """
max(n, m) + min(n, m) == n + m
4*(n + 1) - 4 == 4*n
(n + m)**2 == n**2 + 2*n*m + m**2
b*n*m == m*n*b
((n + 3)//4)*4 >= n
(32*x + y)//64 == x//2 | 0 <= y < 32
min(y + x, z) - x == min(y, z - x)
(n*m)//m == n
(n*m)//m == n | m >= 1
(n//2)//3 == n//6
n*4 == 4*n
n + m == m + n
(a + b) + c == a + (b + c)
a*(b + c) == a*b + a*c
(n - m)*(n + m) == n**2 - m**2
(n + 1)**3 == n**3 + 3*n**2 + 3*n + 1
n - n == 0
0*n == 0
2*n != 2*m + 1
4*n != 6*m + 1
n + 1 > n
n < n + 1
n >= 1
n > 0
n != 0
n*m >= 1
n*m >= n
b*s >= b
n*m*k >= n + m + k - 2
n*n >= n
n*n >= 2*n - 1
n**2 + m**2 >= 2*n*m
n**2 + m**2 != 3
(n*(n + 1)) % 2 == 0
(n*(n + 1)*(n + 2)) % 6 == 0
n*n % 4 <= 1
n*n % 3 != 2
(n*n*n - n) % 3 == 0
(4*n) % 4 == 0
(4*n + 2) % 4 == 2
(n % 4) % 2 == n % 2
(n % 2) % 4 == n % 2
(n + 4) % 4 == n % 4
(n % 4 + m % 4) % 4 == (n + m) % 4
((n % 4)*(m % 4)) % 4 == (n*m) % 4
n % 4 < 4
n % 4 >= 0
n % 4 <= n
n % m < m
n % m <= n
n % n == 0
n // n == 1
0 // n == 0
n // 1 == n
n % 1 == 0
(n // 4)*4 + n % 4 == n
(n // m)*m + n % m == n
(n // 4)*4 <= n
(n // m)*m <= n
n // m <= n
n // 4 <= n
n // 4 < n
(n + m - 1) // m == ceildiv(n, m)
ceildiv(n, 4) == (n + 3)//4
ceildiv(n, 4)*4 >= n
ceildiv(n, 4)*4 < n + 4
ceildiv(n, m)*m >= n
ceildiv(n, m)*m <= n + m - 1
ceildiv(n, m) >= n // m
ceildiv(n, m) <= n // m + 1
ceildiv(n, m) <= n
ceildiv(n, m) >= 1
ceildiv(4*n, 4) == n
ceildiv(ceildiv(n, 2), 3) == ceildiv(n, 6)
n//2 + ceildiv(n, 2) == n
n//4 + ceildiv(3*n, 4) == n
b - 2*ceildiv(b, 3) <= ceildiv(b, 3)
ceildiv(b, 3) + ceildiv(b, 3) + (b - 2*ceildiv(b, 3)) == b
(n + 4*m)//4 == n//4 + m
(8*n + 4)//4 == 2*n + 1
(8*n + 3)//4 == 2*n
(6*n)//4 == (3*n)//2
(n*m + n)//n == m + 1
(n*m + k)//m == n + k//m
(n*m*k)//(m*k) == n
(b*s*h)//(b*h) == s
(n*m - 1)//m == n - 1
(n*m) % m == 0
(n*m + 1) % m == 1 | m >= 2
(n*m + k) % m == k % m
(n + m)//m == n//m + 1
n // m == 0 | n < m
n % m == n | n < m
n // m == 1 | m <= n; n < 2*m
n // m >= 2 | n >= 2*m
n // m // k == n // (m*k)
(n // 2) // 2 == n // 4
((n // 2) % 3)*2 + n % 2 == n % 6
(n // 8) % 4 == (n % 32) // 8
n // 2 <= m // 2 | n <= m
n // 3 + m // 3 <= (n + m) // 3
max(n, n) == n
max(n, m) == max(m, n)
max(n, 1) == n
max(n, 0) == n
min(n, 1) == 1
min(n, 0) == 0
max(n, n - 3) == n
max(max(n, m), k) == max(n, max(m, k))
max(n, min(n, m)) == n
min(n, max(n, m)) == n
max(n, m) >= n
max(n, m) <= n + m
min(n, m) <= m
max(n, m) - min(n, m) == max(n - m, m - n)
max(n, m)*min(n, m) == n*m
max(n, m)*k == max(n*k, m*k)
max(n + k, m + k) == max(n, m) + k
max(2*n, 2*m) == 2*max(n, m)
max(-n, -m) == -min(n, m)
max(n//2, m//2) == max(n, m)//2
max(n, m) == m | n <= m
min(n, m) == n | n <= m
max(n, 64) == 64 | n <= 64
max(n - m, 0) == n - m | n >= m
min(n, 4) % 5 == min(n, 4)
max(min(n, 8), 4) <= 8
n % 8 == 0 | n % 16 == 0
n % 4 == 0 | n % 8 == 0
n // 4 * 4 == n | n % 8 == 0
(n // 8)*8 == n | n % 8 == 0
n >= 8 | n % 8 == 0
n != 12 | n % 8 == 0
(n*m) % 8 == 0 | n % 8 == 0
(n*m) % 8 == 0 | n % 4 == 0; m % 2 == 0
(n + m) % 8 == 0 | n % 8 == 0; m % 8 == 0
(n // 2) % 4 == 0 | n % 8 == 0
ceildiv(n, 8) == n // 8 | n % 8 == 0
n % 2 == 1 | n % 4 == 3
(n + 1) % 4 == 0 | n % 4 == 3
n % 6 == 4 | n % 2 == 0; n % 3 == 1
n % 2 == 0 | n == 2*m
n == 2*m | n == 2*m
m == n // 2 | n == 2*m
n*k == 2*m*k | n == 2*m
n == 3*k | n == m + k; m == 2*k
n % 2 == 0 | 3*n == 2*m
n + 1 == m | n == m - 1
n == m | n <= m; m <= n
n < k | n < m; m < k
n <= 64 | n <= m; m <= 64
n + m >= 5 | n + k == 4; m > k
n*m <= 4096 | n <= 64; m <= 64
b <= 4096 | b*s <= 4096
b*s + 1 <= 4097 | b*s <= 4096
n % m == 0 | n % m == 0
(n*k) % m == 0 | n % m == 0
n // m * m == n | n % m == 0
n >= m | n % m == 0
m % 2 == 0 | n % 6 == 0; m % n == 0
n // m == k | n == m*k
n*m == k | n*m == k
n*m + 1 > k | n*m == k
n != m | n < m
n != 5 | n != 5
n == 4 | 4 <= n < 5
n == 4 | n >= 4; n <= 4
n*n == 16 | n == 4
x*4 + y < 4*z | 0 <= y < 4; 0 <= x < z
(x*4 + y)//4 == x | 0 <= y < 4; x >= 0
(x*4 + y) % 4 == y | 0 <= y < 4; x >= 0
(x*m + y)//m == x | 0 <= y; y < m; x >= 0
(x*m + y) % m == y | 0 <= y; y < m; x >= 0
1 <= n <= 64 | n <= 64
n >= 1 and m >= 1
mod(n, 8) == floordiv(n, 8)*0 + n % 8
n >= 0 | n >= 0
n*2 >= 0 | n >= 0
7 == 7
2**10 == 1024
"""

FAILS = """
n == m
n == n + 1
n == 2*n
n != m
n < n
n > 1
n >= 2
n <= 4096
n*m > n
n*n == n
n*m == n + m
(n + m)**2 == n**2 + m**2
2*n == 2*m + 2
3*n != 5*m
n // 2 * 2 == n
n // 4 == n / / 4 if False else n // 4 + 0*n == n // 5
(n // 3) // 4 == n // 13
(n + 3)//4 == n//4
(n + 2)//4*4 >= n
ceildiv(n, 4) == n//4 + 1
ceildiv(n, m) == n // m
ceildiv(ceildiv(n, 2), 3) == ceildiv(n, 5)
n % 4 == n % 8
(n % 6) % 4 == n % 4
n % 4 == 0
n % m == m % n
n % m == n
(n*m) % 4 == 0
(n + m) % 4 == n % 4 + m % 4
(n + m)//4 == n//4 + m//4
(n*m)//4 == (n//4)*m
(n*m)//(m + 1) == n
(32*x + y)//64 == x//2
(32*x + y)//64 == x//2 | 0 <= y < 33
n // m == 0
n // m >= 1
n // m // k == n // (m + k)
max(n, m) == n
max(n, m) == n + m
max(n, m) < n + m - 1
min(n, m) >= 2
max(n, m) == min(n, m)
max(n, 2) == n
min(n, 64) == n
max(n, m)*min(n, k) == n*m
max(n - m, 0) == n - m
n % 16 == 0 | n % 8 == 0
n % 8 == 0 | n % 4 == 0
n >= 9 | n % 8 == 0
(n*m) % 16 == 0 | n % 4 == 0; m % 2 == 0
(n // 2) % 8 == 0 | n % 8 == 0
n % 4 == 0 | n == 2*m
n == m | n <= m
n < m | n <= m
n <= 63 | n <= m; m <= 64
n == 0 | n >= 0
n >= 1 | n >= 0
n == 4 | 4 <= n < 6
b <= 4095 | b*s <= 4096
b*s < 4096 | b*s <= 4096
n > m | n % m == 0
n % 4 == 0 | n % 6 == 0; m % n == 0
x*4 + y < 4*z | 0 <= y < 5; 0 <= x < z
(x*m + y)//m == x | 0 <= y; y <= m; x >= 0
1 <= n <= 63 | n <= 64
n >= 1 and m >= 2
n*n % 4 == 0
n*n % 3 == 1
(n*n - n) % 3 == 0
n**2 != 2*m**2 - 1
7 == 8
"""


def lines(table):
    for line in table.strip().splitlines():
        if " if False" in line:
            continue
        statement, _, assumed = line.partition("|")
        yield statement.strip(), [text.strip() for text in assumed.split(";") if text.strip()]


def ids(table):
    return [f"{statement}|{';'.join(assumed)}" for statement, assumed in lines(table)]


@pytest.mark.parametrize(("statement", "assume"), lines(HOLDS), ids=ids(HOLDS))
def test_holds(statement, assume):
    assert isinstance(prove(statement, assume=assume), Proved)


@pytest.mark.parametrize(("statement", "assume"), lines(FAILS), ids=ids(FAILS))
def test_fails(statement, assume):
    verdict = prove(statement, assume=assume)
    assert isinstance(verdict, Refuted)
    env = dict(verdict.counterexample)
    python = {"max": max, "min": min, "ceildiv": lambda a, b: -(-a // b)}
    assert not eval(statement, python, env)
    for text in assume:
        assert eval(text, python, env), text


def test_the_tables_are_long():
    assert len(list(lines(HOLDS))) + len(list(lines(FAILS))) >= 150 + 10


# --- division by what may be zero ---


def test_a_division_needs_a_divisor_that_is_not_zero():
    assert isinstance(prove("(n*m)//m == n"), Proved)
    assert prove("(n*m)//m == n", assume="m >= 0") == Unknown(
        "the divisor m is zero at m = 0, where the statement has no value"
    )
    # Also one that the canonical form has dropped.
    assert isinstance(prove("n//m - n//m == 0", bounds={"m": (0, 3)}), Unknown)
    assert isinstance(prove("n//(n - m) == n//(n - m)"), Unknown)
    assert isinstance(prove("n//(n - m) >= 1", assume="n > m"), Proved)
    assert isinstance(prove("n//m == 5", bounds={"m": (0, 3)}), Refuted)  # it has a value, and fails, at others
    assert isinstance(prove("1//m == 1", bounds={"m": 0}), Unknown)
    # An assumption that divides says that it has a value.
    assert isinstance(prove("m >= 1", assume=["m >= 0", "n // m >= 0"]), Proved)


def test_a_constant_divisor_of_zero_is_an_error():
    with pytest.raises(SpecError, match="division by zero"):
        prove("n//0 == 1")


# --- verdicts ---


def test_verdicts_have_no_truth_value():
    for verdict in (prove("n == n"), prove("n == m"), prove("n//m == n//m", bounds={"m": (0, 3)})):
        with pytest.raises(TypeError, match="has no truth value"):
            bool(verdict)


def test_verdicts_read_well():
    assert str(prove("n*4 == 4*n")) == "proved (canonical)"
    assert str(prove("n >= 2")) == "refuted at n = 1: 1 >= 2 is false"
    assert str(prove("7 == 8")) == "refuted: 7 == 8 is false"
    match prove("n == m"):
        case Refuted(counterexample):
            assert counterexample["n"] != counterexample["m"]
        case _:
            pytest.fail("not refuted")


def test_relations_of_dims():
    n, m = Dim.var("n"), Dim.var("m")
    assert isinstance(prove(Relation.of(n * m, "==", m * n)), Proved)
    assert isinstance(prove(Relation.of(n // m, "<=", n)), Proved)
    assert isinstance(prove(Relation.of(n // m, "<=", n), bounds={"m": (0, None)}), Unknown)
    assert str(Relation.of(n, "<", 2 * m)) == "n < 2*m"
    with pytest.raises(SpecError, match="does not compare"):
        Relation.of(n, "=", m)


# --- bad questions ---


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("n", "a statement compares two sizes\n  n\n  ^\n  accepted: two sizes compared by == != <= < >= >"),
        ("n = m", "cannot read the statement; equality is `==`\n  n = m\n"),
        ("n == ", "cannot read the statement\n  n == \n"),
        ("", "cannot read the statement"),
        ("n / 2 == m", "`/` is not defined on sizes; use `//` (floor) or ceildiv(a, b)\n  n / 2 == m\n  ^\n"),
        ("n == f(m)", "cannot read `f(m)` in a dimension expression\n  n == f(m)\n       ^\n"),
        ("m <= n == 2.5", "cannot read `2.5` in a dimension expression"),
        ("n in m", "cannot read `n in m`"),
        ("n == 1 or n == 2", "a statement compares two sizes"),
        ("n == 2*m**99", "the power 99 is not an integer from 0 to 16"),
        (5, "a statement is text such as 'n*4 == 4*n', got 5 (int)"),
    ],
)
def test_statements_that_cannot_be_read(statement, text):
    with pytest.raises(SpecError) as error:
        prove(statement)
    assert text in str(error.value)


def test_timeouts():
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(OptionError, match="an integer >= 0 is accepted"):
            prove("n == n", timeout_ms=wrong)
    hard = "(n + m)//m == n//m + 1"
    assert prove(hard, timeout_ms=0) == Unknown("a timeout of 0 ms leaves z3 no time, and nothing quicker decides it")
    assert isinstance(prove("n*4 == 4*n", timeout_ms=0), Proved)
    scope = Scope()
    assert isinstance(prove(hard, scope, timeout_ms=0), Unknown)
    assert isinstance(prove(hard, scope), Proved)  # more time is not answered from memory
    assert isinstance(prove(hard, scope, timeout_ms=0), Proved)  # but what is known is known


def test_what_is_too_hard_is_unknown():
    verdict = prove("n**2 != 2*m**2", timeout_ms=50)  # the square root of 2 is irrational
    assert isinstance(verdict, Unknown)
    assert "z3 gave up after 50 ms" in verdict.reason


def test_large_constants():
    huge = "((10**16)**16)**16"
    assert isinstance(prove(f"n < {huge}"), Refuted)
    assert isinstance(prove(f"n < {huge}", bounds={"n": (1, 2**63)}), Proved)
    assert isinstance(prove(f"n + {2**64} > {2**64}"), Proved)
    assert isinstance(prove(f"{2**64}*n // {2**64} == n"), Proved)
    assert isinstance(prove(f"n % {2**64} < {2**64}"), Proved)
    assert not isinstance(prove(f"n*m < ({huge})**16"), Proved)  # more digits than Python prints


def test_bounds_of_variables_that_nothing_mentions():
    with pytest.raises(BoundsError) as error:
        prove("seq >= 1", bounds={"sq": (1, 4)})
    assert "bounds name `sq`" in str(error.value)
    assert "did you mean `seq`?" in str(error.value)


# --- scopes ---


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
        (["n*m <= 16", "n == m + 16"], ["m >= 1 (every size is at least 1 unless declared otherwise)"]),
        (["n <= m", "m <= 4", "n >= 5"], ["n >= 5 (declared in the assumption `n >= 5`)", "n <= m"]),
        (["n // m == 2", "m == 0"], ["n // m == 2"]),
        (["n != n"], ["n != n"]),
    ],
)
def test_contradictions_name_their_core(assume, core):
    with pytest.raises(BoundsError) as error:
        Scope(assume=assume)
    text = str(error.value)
    for part in core:
        assert part in text
    for other in set(assume) - set(core):
        if not any(other in part for part in core) and "<= 4" not in other and "16" not in other and "==" in other:
            assert other not in text or "m == 0" in other


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
    assert isinstance(prove("n % 4 == 0", scope, assume="n % 8 == 0"), Proved)
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
    hard, same = (n + m) // m, n // m + 1
    assert Scope().equal(hard, same) is None
    assert Scope().equal(hard, same, deep=True) is True
    assert Scope().equal(hard, same + 1, deep=True) is False
    assert Scope().equal(n, m, deep=True) is None


def test_intervals_use_what_is_known():
    scope = Scope({"m": (1, 64)}, assume=["n % 8 == 0", "n <= m"])
    assert scope.interval(Dim.var("n")) == (8, 64)
    assert scope.interval(Dim.of("n//8")) == (1, 8)


def test_statistics():
    scope = Scope()
    prove("n*4 == 4*n", scope)
    prove("n*4 == 4*n", scope)
    prove("n == m", scope.child())
    prove("(n + m)//m == n//m + 1", scope)
    found = scope.statistics
    assert found.queries["canonical"] == 1
    assert found.queries["memo"] == 1
    assert found.queries["points"] == 1
    assert found.asked_z3 == 1
    assert found.total >= 4
    assert "canonical 1" in str(found)


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
        "floordiv(1 + s, 2)*max(s, 7) >= -3 + h*h",
    ]
    again = Scope.from_constraints(written)
    assert again.to_constraints() == written
    with pytest.raises(BoundsError, match="a symbolic dimension of JAX is at least 1"):
        Scope({"n": (0, 4)}).to_constraints()


def test_jax_reads_what_is_written():
    export = pytest.importorskip("jax.export")
    scope = Scope({"b": (1, 16)}, assume=["s % 8 == 0", "b*s < 4096", "n == 2*m", "max(s, 7)*ceildiv(s, 2) >= b"])
    theirs = export.SymbolicScope(scope.to_constraints())
    b, s = export.symbolic_shape("b, s", scope=theirs)
    assert b <= 16
    assert s % 8 == 0
