"""The prover against brute force: random statements over small ranges, every point of them looked at.

`RELAX_EG_QUERIES=100000` for the long run; `-s` shows its table.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from random_queries import Query, compiled, queries, value

from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes import Proved, ProverStatistics, Refuted, Scope, Unknown, prove, prover

COUNT = int(os.environ.get("RELAX_EG_QUERIES", "600"))


def test_no_wrong_answers(monkeypatch):
    """Bounded scopes, where the truth is known, with the enumeration switched off that would make it easy."""
    monkeypatch.setattr(prover, "_ENUMERATED_POINTS", 0)
    counts: Counter[tuple[str, str]] = Counter()
    statistics = ProverStatistics()
    for query in queries(COUNT, seed=1):
        holds, defined, points = query.truth()
        kind = "linear" if query.linear else "nonlinear"
        scope = Scope(query.bounds, statistics=statistics)
        verdict = _asked(query, scope)
        if verdict is None:
            assert not points, f"contradictory, and {points} points satisfy it: {query}"
            counts[kind, "contradictory"] += 1
        elif isinstance(verdict, Proved):
            assert holds and defined, query
            counts[kind, "proved"] += 1
        elif isinstance(verdict, Refuted):
            assert not holds, query
            _assert_refutes(query, verdict, scope)
            counts[kind, "refuted"] += 1
        else:
            truth = "false" if not holds else "true" if defined else "without a value somewhere"
            counts[kind, f"unknown, and {truth}"] += 1
    print(f"\n{COUNT} queries")
    for key, n in sorted(counts.items()):
        print(*key, n)
    print(statistics, f"{statistics.asked_z3} put to z3")
    for kind, most in (("linear", 0.02), ("nonlinear", 0.10)):
        open_, shown = counts[kind, "unknown, and true"], counts[kind, "proved"]
        print(f"{kind}: {open_} of {open_ + shown} true statements unknown ({open_ / max(open_ + shown, 1):.2%})")
        assert open_ <= most * (open_ + shown), kind


def test_no_wrong_answers_without_upper_bounds():
    """A proof must hold on the small box inside, and a counterexample be in the scope."""
    for query in queries(COUNT // 3, seed=2):
        scope = _open(query)
        verdict = _asked(query, scope)
        holds, defined, points = query.truth()
        if verdict is None:
            assert not points, query
        elif isinstance(verdict, Proved):
            assert holds and defined, query
        elif isinstance(verdict, Refuted):
            _assert_refutes(query, verdict, scope)


def test_no_wrong_answers_by_enumeration():
    for query in queries(COUNT // 10, seed=3):
        holds, defined, _ = query.truth()
        verdict = _asked(query, Scope(query.bounds))
        if isinstance(verdict, Proved):
            assert holds and defined, query
        elif isinstance(verdict, Refuted):
            assert not holds, query


def test_no_wrong_answers_from_one_scope():
    """What a scope remembers of one question must not spoil another."""
    bounds, assume = {"n": (0, 6), "m": (1, 5), "k": (-1, 4)}, ("n % 2 == 0", "n + k >= 2")
    scope = Scope(bounds, assume=assume)
    for asked in queries(COUNT // 3, seed=4):
        query = Query(asked.statement, bounds, assume, asked.linear)
        holds, defined, _ = query.truth()
        for statement in (query.statement, f"{query.statement} + k - k"):
            try:
                verdict = prove(statement, scope)
            except SpecError:  # a constant divisor of zero
                continue
            if isinstance(verdict, Proved):
                assert holds and defined, query
            elif isinstance(verdict, Refuted):
                assert not holds, query
                _assert_refutes(query, verdict, scope)


def _open(query: Query) -> Scope:
    return Scope({name: (low, None) for name, (low, _) in query.bounds.items()})


def _asked(query: Query, scope: Scope) -> Proved | Refuted | Unknown | None:
    """The verdict; None where the assumptions contradict each other."""
    try:
        return prove(query.statement, scope, bounds=query.assume)
    except BoundsError as error:
        assert "no size" in str(error), error
        return None
    except SpecError as error:  # a constant divisor of zero
        assert "division by zero" in str(error), error
        return Unknown("it has no value anywhere")


def _assert_refutes(query: Query, verdict: Refuted, asked: Scope) -> None:
    """The counterexample, completed by variables of which nothing but bounds is known, is allowed and refutes."""
    scope = asked.child()
    scope.assume(*query.assume)
    env = {name: scope.bounds(name)[0] for name in query.bounds} | dict(verdict.counterexample)
    assert value(compiled(query.statement), env) is False, (query, verdict)
    for name, size in env.items():
        low, high = asked.bounds(name)
        assert low <= size and (high is None or size <= high), (query, verdict)
    for text in query.assume:
        assert value(compiled(text), env), (query, verdict, text)


if __name__ == "__main__":
    pytest.main([__file__, "-s"])
