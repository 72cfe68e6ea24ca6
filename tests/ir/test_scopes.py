"""What is known of sizes where: nothing leaks out of a branch, a function, or from behind a `match_cast`."""

from __future__ import annotations

import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ir.scopes import scopes_of
from relax_eg.shapes import Proved, Scope, prove

EXP = "R.exp({})"


def scopes(text: str, scope: Scope | None = None) -> dict[str, list[Scope]]:
    return scopes_of(with_dataflow_blocks(rx.parse(text)), scope or Scope())


def holds(statement: str, scope: Scope) -> bool:
    return isinstance(prove(statement, scope), Proved)


def test_a_match_cast_is_known_of_after_it_only() -> None:
    found = scopes("""
def main(x: R.Tensor(("n + 2",), "float32")):
    a = R.exp(x)
    b = R.match_cast(a, R.Tensor(("m",), "float32"))
    c = R.exp(b)
    d = R.match_cast(c, R.Tensor((8,), "float32"))
    e = R.exp(d)
    return e
""")["main"]
    assert len(found) == 5
    assert [holds("m == n + 2", s) for s in found] == [False, False, True, True, True]
    assert [holds("n == 6", s) for s in found] == [False, False, False, False, True]


def test_how_much_there_is_may_be_nothing() -> None:
    (before, _, after) = scopes("""
def main(x: R.Tensor(("n",), "float32")):
    with R.dataflow():
        y = R.exp(x)
        R.output(y)
    a = R.unique(y)
    b = R.match_cast(a, R.Tensor(("m",), "float32"))
    return R.exp(b)
""")["main"]
    for s in (before, after):
        assert holds("n >= 1", s) and holds("m >= 0", s) and not holds("m >= 1", s)


BRANCHES = """
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    if c:
        a = R.match_cast(x, R.Tensor((8,), "float32"))
        y = R.sum(a, axes=(0,))
    else:
        y = R.sum(x, axes=(0,))
    z = R.exp(y)
    return z
"""


def test_a_branch_keeps_what_it_asserts() -> None:
    found = scopes(BRANCHES)
    assert [holds("n == 8", s) for s in found["main_then"]] == [False, True]
    assert not any(holds("n == 8", s) for name in ("main", "main_else") for s in found[name])


CALLER = """
def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    return R.exp(x)
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")):
{}
    return a
"""
KNOWN = Scope({"n": (4, 8)}, assume=["n % 2 == 0", "n <= k"])


@pytest.mark.parametrize(
    ("calls", "same", "least"),
    [
        ("    a = f(x)", True, 4),
        ("    b = f(x)\n    a = f(b)", True, 4),
        ("    a = f(y)", False, 4),  # k >= n
        ("    b = f(x)\n    a = f(y)", False, 4),
        ("    a = f(R.concat(x, x, axis=0))", False, 8),
        ("    u = R.unique(x)\n    m = R.match_cast(u, R.Tensor(('m',), 'float32'))\n    a = f(m)", False, 0),
        ("    u = R.unique(x)\n    a = f(u)", False, 0),
        ("    g = f\n    a = g(x)", True, 4),
    ],
)
def test_a_size_of_a_function_is_its_own(calls: str, same: bool, least: int) -> None:
    found = scopes(CALLER.format(calls), KNOWN)
    (inner,) = found["f"]
    assert holds("n <= 8", inner) is holds("n % 2 == 0", inner) is same
    assert holds(f"n >= {least}", inner) and not holds(f"n >= {least + 1}", inner)
    assert not holds("n <= k", inner)
    assert all(holds("n <= k", s) for s in found["main"])


def test_a_function_that_is_passed_on_may_be_called_with_anything() -> None:
    (inner,) = scopes("""
def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    return R.exp(x)
def twice(g: R.Callable((R.Tensor(("k",), "float32"),), R.Tensor(("k",), "float32")), x: R.Tensor(("k",), "float32")):
    return g(g(x))
def main(x: R.Tensor(("n",), "float32")):
    a = f(x)
    b = twice(f, a)
    return b
""", KNOWN)["f"]  # fmt: skip
    assert not holds("n <= 8", inner) and not holds("n >= 1", inner)


def test_a_function_of_the_same_sizes_shares_the_scope() -> None:
    found = scopes(CALLER.format("    a = f(x)"), Scope({"n": (4, 8)}))
    assert found["f"][0] is found["main"][0]


def test_a_cast_that_contradicts_what_is_declared() -> None:
    text = """
def main(x: R.Tensor(("n",), "float32")):
    a = R.match_cast(x, R.Tensor((9,), "float32"))
    return a
"""
    with pytest.raises(BoundsError, match=r"at most 8 .* at least 9|at least 9 .* at most 8"):
        scopes(text, Scope({"n": (1, 8)}))
    # In a branch that may never run it is no error.
    assert scopes(BRANCHES, Scope({"n": (1, 4)}))
