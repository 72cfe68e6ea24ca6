"""Facts about sizes that must come out right: arithmetic, and the sizes that deduction of annotations rests on."""

from __future__ import annotations

import pytest

from relax_eg.shapes import Dim, Proved, Refuted, Scope, Unknown, ceildiv, prove

ARITHMETIC = [
    ("floors nest", "(n//2)//3 == n//6", ()),
    ("the greater and the lesser together are both", "max(n, m) + min(n, m) == n + m", ()),
    ("4(n+1) - 4 = 4n", "4*(n + 1) - 4 == 4*n", ()),
    ("the square of a sum", "(n + m)**2 == n**2 + 2*n*m + m**2", ()),
    ("products commute", "b*n*m == m*n*b", ()),
    ("rounding up reaches n", "((n + 3)//4)*4 >= n", ()),
    ("a remainder below 32 does not carry", "(32*x + y)//64 == x//2", ("0 <= y < 32",)),
    ("min moves with a shift", "min(y + x, z) - x == min(y, z - x)", ()),
    ("a factor of at least 1 cancels", "(n*m)//m == n", ("m >= 1",)),
]


@pytest.mark.parametrize(("statement", "assume"), [case[1:] for case in ARITHMETIC], ids=[c[0] for c in ARITHMETIC])
@pytest.mark.parametrize("least", [1, 0])
def test_arithmetic(statement, assume, least):
    names = Dim.of(statement.split("==")[0].split(">=")[0]).variables - {"y"}
    bounds = {name: (least, None) for name in names if f"{name} >= 1" not in assume}
    assert isinstance(prove(statement, bounds=[bounds, *assume]), Proved)


def test_a_factor_cancels_only_where_it_is_at_least_one():
    answer = prove("(n*m)//m == n", bounds="m >= 0")
    assert answer == Unknown("the divisor m is zero at m = 0, where the statement has no value")
    assert Scope({"m": (0, None)}).equal(Dim.of("(n*m)//m"), Dim.of("n")) is None


def test_a_remainder_of_32_carries():
    assert isinstance(prove("(32*x + y)//64 == x//2", bounds="0 <= y <= 32"), Refuted)


@pytest.mark.parametrize(
    "statement",
    [
        "(a*b*c*d)//(d*c*b) == a",  # reshape of (a, b, c, d) to (d, c, b, -1)
        "(a*b*c*d)//(2*a) == b*c*d//2",  # to (2, -1, a)
        "d*c*b*((a*b*c*d)//(d*c*b)) == a*b*c*d",
        "ceildiv(b, 3) + ceildiv(b, 3) + (b - 2*ceildiv(b, 3)) == b",  # split in 3
        "b - 2*ceildiv(b, 3) <= ceildiv(b, 3)",
        "max(m, 1) == m",  # broadcasting against 1
    ],
)
def test_sizes_of_deduction(statement):
    assert isinstance(prove(statement), Proved)


def test_split_in_three_is_said_as_people_write_it():
    b = Dim.var("b")
    assert [str(ceildiv(b, 3)), str(b - 2 * ceildiv(b, 3))] == ["ceildiv(b, 3)", "b - 2*ceildiv(b, 3)"]


def test_signatures_put_sizes_into_results():
    """f takes a shape [n, m] and gives n*m elements: called with (n, 4) that is 4n, with (n+1, 4) it is 4n + 4."""
    result = Dim.of("n*m")
    n = Dim.var("n")
    assert result.substitute({"n": n, "m": 4}) is 4 * n
    assert str(result.substitute({"n": n + 1, "m": 4})) == "4*n + 4"
