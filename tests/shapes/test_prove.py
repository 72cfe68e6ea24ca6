"""`prove`: the tables of identities and non-identities, division by zero, verdicts, what bad questions are told."""

from __future__ import annotations

import pytest
from random_queries import compiled, value
from statements import FAILS, HOLDS, lines
from typer.testing import CliRunner

from relax_eg.cli import app
from relax_eg.errors import BoundsError, OptionError, RelaxEgError, SpecError
from relax_eg.shapes import Dim, Proved, Refuted, Relation, Scope, Unknown, prove


def ids(table):
    return [f"{statement}|{';'.join(assumed)}" for statement, assumed in lines(table)]


@pytest.mark.parametrize(("statement", "assume"), lines(HOLDS), ids=ids(HOLDS))
def test_holds(statement, assume):
    assert isinstance(prove(statement, bounds=assume), Proved)


@pytest.mark.parametrize(("statement", "assume"), lines(FAILS), ids=ids(FAILS))
def test_fails(statement, assume):
    verdict = prove(statement, bounds=assume)
    assert isinstance(verdict, Refuted)
    env = dict(verdict.counterexample)
    assert value(compiled(statement), env) is False
    for text in assume:
        assert value(compiled(text), env), text


def test_the_tables_are_long():
    assert len(lines(HOLDS)) + len(lines(FAILS)) >= 150 + 10


# --- division by what may be zero ---


def test_a_division_needs_a_divisor_that_is_not_zero():
    assert isinstance(prove("(n*m)//m == n"), Proved)
    assert prove("(n*m)//m == n", bounds="m >= 0") == Unknown(
        "the divisor m is zero at m = 0, where the statement has no value"
    )
    # Also one that the canonical form has dropped.
    assert isinstance(prove("n//m - n//m == 0", bounds={"m": (0, 3)}), Unknown)
    assert isinstance(prove("n//(n - m) == n//(n - m)"), Unknown)
    assert isinstance(prove("n//(n - m) >= 1", bounds="n > m"), Proved)
    assert isinstance(prove("n//m == 5", bounds={"m": (0, 3)}), Refuted)  # it has a value, and fails, at others
    assert isinstance(prove("1//m == 1", bounds={"m": 0}), Unknown)
    # An assumption that divides says that it has a value.
    assert isinstance(prove("m >= 1", bounds=["m >= 0", "n // m >= 0"]), Proved)


def test_a_division_in_a_select_counts_where_it_is_chosen():
    zero_too = {"m": (0, None)}
    assert isinstance(prove("select(m == 0, 0, n//m) <= n", bounds=zero_too), Proved)
    assert isinstance(prove("select(m == 0, 0, n//m) == select(m >= 1, n//m, 0)", bounds=zero_too), Proved)
    assert prove("select(m == 1, 0, n//m) <= n", bounds=zero_too) == Unknown(
        "the divisor m is zero at m = 0, where the statement has no value"
    )
    # An assumption has a value, but not in the part that is not chosen.
    assert isinstance(prove("m >= 1", bounds=[zero_too, "select(m <= 5, 0, n//m) == 0"]), Refuted)
    assert isinstance(prove("m >= 1", bounds=[zero_too, "select(n//m <= 5, 0, 1) == 0"]), Proved)


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
        ("select(n, 1, 2) == 1", "`n` does not compare two sizes by == != <= < >= >\n  select(n, 1, 2) == 1\n  "),
        ("1 if n < 2 else 3 == 4", "a statement compares two sizes"),
        (f"n < {'1' * 5000}", "an integer of 5000 digits\n  n < 1111"),
        (5, "a statement is text such as 'n*4 == 4*n', got 5 (int)"),
    ],
)
def test_statements_that_cannot_be_read(statement, text):
    with pytest.raises(SpecError) as error:
        prove(statement)
    assert text in str(error.value)


def test_timeouts():
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(OptionError, match="an integer >= 0 \\(0 leaves z3 out\\) is accepted"):
            prove("n == n", timeout_ms=wrong)
    hard = "(n + m + 1)//(m + 1) == n//(m + 1) + 1"
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bounds": 3}, "bounds=3: {'n': (1, 4096)}, a statement such as 'n % 8 == 0', or a list of these, is"),
        ({"bounds": [3]}, "bounds=[3]: {'n': (1, 4096)}, a statement such as 'n % 8 == 0', or a list of these, is"),
        ({"bounds": {"n": "1:4"}}, "the bounds of `n` hold '1:4', which is no integer; accepted: (low, high)"),
        ({"bounds": {"n": (5, 4)}}, "the bounds of `n` are empty: (5, 4); accepted: (low, high) with low <= high"),
        ({"scope": 3}, "scope=3: a Scope is accepted"),
        ({"bounds": [{"n": (1, 4)}, "n >= 8"]}, "at least 8 (declared in the assumption `n >= 8`) and at most"),
        ({"bounds": "n // (m - m) == 1"}, "division by zero: (n)//0\n  n // (m - m) == 1\n"),
    ],
)
def test_options_that_are_none(options, text):
    with pytest.raises(RelaxEgError) as error:
        prove("n + m == m + n", **options)
    assert text in str(error.value)


# --- the command line ---


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["n*4 == 4*n", "--bounds", "n >= 2", "--bounds", "n=1:4096"], 0, "proved (canonical)"),
        (["n % 8 == 0", "--bounds", "n % 4 == 0"], 1, "refuted at n = 4: 4 == 0 is false"),
        (["n//m >= 0", "--bounds", "m=0:4"], 1, "unknown: the divisor m is zero at m = 0, where"),
        (["n = m"], 1, "cannot read the statement; equality is `==`"),
        (
            ["n == n", "--bounds", "n = m"],
            1,
            "--bounds 'n = m': name=low:high is accepted, as in s=1:4096, or a statement such",
        ),
        (["n // 0 == 1"], 1, "division by zero: (n)//0"),
        (["n % m >= 0", "--bounds", "m >= 0"], 1, "unknown: the divisor m is zero at m = 0, where"),
        ([f"n < {'1' * 5000}"], 1, "an integer of 5000 digits"),
        (["n == n", "--bounds", "m=1:4"], 1, "bounds name `m`, which neither the statement nor an assumption does"),
        (["n == n", "--bounds", "n=5:4"], 1, "the bounds of `n` are empty: (5, 4)"),
        (["n == n", "--bounds", "n=1:4", "--bounds", "n=1:5"], 1, "`n` has other bounds already"),
        (["n == n", "--bounds", "n=1:4", "--bounds", "n >= 8"], 1, "no size satisfies the bounds of `n`: at least 8"),
        (["n == n", "--bounds", "n=few"], 1, "name=low:high is accepted"),
        (["n == n", "--timeout", "-1"], 1, "timeout_ms=-1: an integer >= 0 (0 leaves z3 out) is"),
        (["n == m", "--bounds", "n < m", "--bounds", "m < n"], 1, "no sizes satisfy all of"),
        (
            ["(n + m + 1)//(m + 1) == n//(m + 1) + 1", "--timeout", "0"],
            1,
            "unknown: a timeout of 0 ms leaves z3 no time",
        ),
    ],
)
def test_the_command(arguments, status, text):
    result = CliRunner().invoke(app, ["prove", *arguments])
    assert result.exit_code == status
    assert text in result.output.replace("\n", "")
    assert "Traceback" not in result.output and not isinstance(result.exception, RelaxEgError)
