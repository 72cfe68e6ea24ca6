"""What is known in one scope licenses nothing outside it: not by memo, by order of questions, or by what is shared."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from random_queries import Query, compiled, queries, value

from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes import Dim, Proved, Refuted, Scope, dim_max, dim_select, prove

BOUNDS = {"n": (0, 5), "m": (1, 5), "k": (-2, 3)}
# What a branch, or a match_cast in it, may know. Each is false at some points of the box.
KNOWN = (
    *("n % 2 == 0", "n == 2*m", "n != 3", "n >= m", "k >= 1", "m*k == 2", "max(n, m) <= 3", "n // m == 1"),
    *("select(n < m, n, k) == 1", "n + m == 4", "m % 2 == 1", "k*k == n"),
)


def test_scopes_of_a_tree_keep_to_themselves():
    """A tree of scopes; questions go to all of them in random order, the same question to several. Every answer is
    that of the points the scope allows."""
    chance = random.Random(5)
    asked = [q.statement for q in queries(400, seed=11)]
    wrong = 0
    for _ in range(8):
        scopes: list[tuple[Scope, tuple[str, ...]]] = [(Scope(BOUNDS), ())]
        for turn in range(60):
            parent, known = chance.choice(scopes)
            if len(scopes) < 8 and turn % 4 == 0:
                more = chance.choice(KNOWN)
                child = parent.child()
                try:
                    child.assume(more)
                except BoundsError:
                    assert not _points((*known, more))
                    continue
                scopes.append((child, (*known, more)))
            statement = chance.choice(asked)
            for scope, facts in chance.sample(scopes, min(3, len(scopes))):
                wrong += _is_wrong(scope, facts, statement)
    assert wrong == 0


def _points(known: tuple[str, ...]) -> list[dict[str, int]]:
    codes = [compiled(text) for text in known]
    box = (dict(zip(BOUNDS, at, strict=True)) for at in product(*(range(a, b + 1) for a, b in BOUNDS.values())))
    return [env for env in box if all(value(code, env) for code in codes)]


def _is_wrong(scope: Scope, known: tuple[str, ...], statement: str) -> bool:
    try:
        verdict = prove(statement, scope, timeout_ms=200)
    except SpecError:  # a constant divisor of zero
        return False
    code, points = compiled(statement), _points(known)
    values = [value(code, env) for env in points]
    if isinstance(verdict, Proved):
        return False in values or None in values
    if isinstance(verdict, Refuted):
        env = {name: low for name, (low, _) in BOUNDS.items()} | dict(verdict.counterexample)
        return False not in values or value(code, env) is not False
    return False


def test_answers_do_not_depend_on_what_was_asked_before():
    """A scope that others branched off, and that answered much, answers as a fresh one does."""
    for query in queries(150, seed=21):
        used = Scope(query.bounds)
        inner = used.child()
        if not _assumed(inner, query):
            continue
        deeper = inner.child()
        for scope in (inner, deeper, used, inner):
            _asked(scope, query)
        fresh = Scope(query.bounds)
        assert _kind(_asked(used, query)) == _kind(_asked(fresh, query)), query
        assert used.assumptions == ()
        assert all(used.bounds(name) == bound for name, bound in query.bounds.items())


def _assumed(scope: Scope, query: Query) -> bool:
    try:
        scope.assume(*query.assume, "n % 2 == 1", "n >= 1")
    except BoundsError:
        return False
    return True


def _asked(scope: Scope, query: Query):
    try:
        return prove(query.statement, scope)
    except SpecError as error:
        return error


def _kind(answer) -> object:
    return type(answer)


@pytest.mark.parametrize("outside_first", [True, False])
def test_a_branch_and_its_match_cast(outside_first):
    """The ways in which an assumption is used, each inside, outside and beside."""
    for known, statement in (
        ("n == 2*m", "n % 2 == 0"),  # a change of variables
        ("n % 8 == 0", "n // 8 * 8 == n"),
        ("n <= 4", "max(n, 4) == 4"),  # a bound
        ("n*m <= 6", "n <= 6"),  # kept as it is
        ("n*n == m*m*m", "n*n*n == m*m*m*n"),  # put to z3
        ("select(n < m, n, m) >= 3", "n >= 3"),
        ("n != m", "select(n == m, 1, 2) == 2"),
        ("n < m + 100003", "n//(m + 100003) == 0"),  # outside, false at large sizes only
    ):
        if not outside_first:  # other names, of which nothing was ever asked
            known, statement = (re.sub(r"\b([nm])\b", r"\1_", text) for text in (known, statement))
        function = Scope()
        assert not outside_first or isinstance(prove(statement, function), Refuted), statement
        branch, other = function.child(), function.child()
        branch.assume(known)
        inside = branch.child()  # after a match_cast, which says something else
        inside.assume("q == r + 1")
        for scope in (branch, inside, branch, inside.child()):
            assert isinstance(prove(statement, scope), Proved), (known, statement)
        for scope in (function, other, function.child()):
            assert isinstance(prove(statement, scope), Refuted), (known, statement)
        assert isinstance(prove("q == r + 1", branch), Refuted)
        if "==" in statement:
            left, right = map(Dim.of, statement.rsplit(" == ", 1))
            assert branch.equal(left, right, deep=True) is True
            assert other.equal(left, right, deep=True) is None


def test_a_question_leaves_nothing_for_the_next():
    scope = Scope(assume=["n*m <= 10**9"])
    for _ in range(2):
        for statement, answer in (
            ("(n + m + 1)//(m + 1) == n//(m + 1) + 1", Proved),
            ("n != 100003*m + 54321", Refuted),
            ("(n*m + n + k)//(m + 1) == n + k//(m + 1)", Proved),
            ("n != 100019*m + 54323", Refuted),
        ):
            assert isinstance(prove(f"{statement} + k - k", scope), answer)
            assert isinstance(prove(statement, scope, bounds="k <= 5"), answer)
    assert scope.statistics.asked_z3 >= 8


def test_canonical_forms_know_of_no_scope():
    """Sizes are one object for all scopes, so nothing a scope knows may show in them."""
    n = Dim.var("n")
    inside = Scope(assume=["n <= 4", "n % 2 == 0"])
    size = dim_max(n, 4) + n % 2 + dim_select(n, "<=", 4, 1, 2)
    assert inside.equal(size, 5) is True
    assert inside.interval(size) == (5, 5)
    again = dim_max(4, n) + n % 2 + dim_select(n, ">", 4, 2, 1)
    assert again is size
    assert str(size) == "max(4, n) + select(n <= 4, 1, 2) + n%2"
    assert Scope().equal(size, 5, deep=True) is None
    assert isinstance(prove("max(n, 4) + n % 2 == 4"), Refuted)
