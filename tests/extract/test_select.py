"""Selection on random extraction graphs: sound, never worse than as written, near the optimum on small ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_eg.errors import ExtractionError
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.extract.selection.problem import choice_cost, tree_choice, used_classes
from relax_eg.extract.selection.select import problem_of, select
from relax_eg.ir import Tensor
from relax_eg.ops import Site

SITE = Site("op", (), {})


def graph_of(rows: list[list[tuple[int, ...]]], roots: tuple[int, ...], written: list[int]) -> ExtractionGraph:
    candidates = [[Candidate("op", SITE, children, 0) for children in row] for row in rows]
    return ExtractionGraph(candidates, [Tensor("")] * len(rows), roots, written)


@st.composite
def problems(draw: st.DrawFn) -> tuple[ExtractionGraph, list[list[float]]]:
    """Candidate 0 of every class reads earlier classes only, so the program as written is acyclic; others read any."""
    n = draw(st.integers(2, 7))
    rows: list[list[tuple[int, ...]]] = []
    for c in range(n):
        earlier = st.lists(st.integers(0, c - 1), max_size=3) if c else st.just([])
        row = [tuple(draw(earlier))]
        row += [tuple(x) for x in draw(st.lists(st.lists(st.integers(0, n - 1), max_size=3), max_size=2))]
        rows.append(row)
    costs = [[float(draw(st.integers(0, 20))) for _ in row] for row in rows]
    return graph_of(rows, (n - 1,), [0] * n), costs


def acyclic(graph: ExtractionGraph, choice: list[int]) -> bool:
    done: set[int] = set()
    path: set[int] = set()

    def visit(c: int) -> bool:
        if c in done:
            return True
        if c in path:
            return False
        path.add(c)
        ok = all(visit(x) for x in graph.candidates[c][choice[c]].children)
        path.discard(c)
        done.add(c)
        return ok

    return all(visit(r) for r in graph.roots)


def optimum(graph: ExtractionGraph, costs: list[list[float]]) -> float:
    found = math.inf
    for choice in itertools.product(*(range(len(row)) for row in graph.candidates)):
        if acyclic(graph, list(choice)):
            found = min(found, choice_cost(problem_of(graph, costs), choice))
    return found


@settings(max_examples=400, deadline=None)
@given(problems())
def test_choice_is_sound_and_not_worse_than_written(problem: tuple[ExtractionGraph, list[list[float]]]) -> None:
    graph, costs = problem
    found = select(graph, costs)
    assert acyclic(graph, found.choice)
    assert found.cost == pytest.approx(choice_cost(problem_of(graph, costs), found.choice))
    assert found.cost <= found.written_cost
    assert found.cost >= optimum(graph, costs) - 1e-9
    assert {c for c, k in enumerate(found.choice) if k >= 0} == used_classes(problem_of(graph, costs), found.choice)


def test_near_optimum_on_most_small_graphs() -> None:
    import random

    rng = random.Random(0)
    exact = 0
    for _ in range(200):
        n = rng.randint(3, 7)
        rows = [
            [tuple(rng.sample(range(c), min(c, rng.randint(0, 2))))]
            + [tuple(rng.sample(range(n), rng.randint(0, 2))) for _ in range(rng.randint(0, 2))]
            for c in range(n)
        ]
        costs = [[float(rng.randint(1, 20)) for _ in row] for row in rows]
        graph = graph_of(rows, (n - 1,), [0] * n)
        exact += select(graph, costs).cost <= optimum(graph, costs) + 1e-9
    assert exact >= 190


def test_shared_work_is_paid_once() -> None:
    # class 0 costs 10; the root uses it twice as written, or once something of 11.
    graph = graph_of([[()], [(0,)], [(0,)], [(1, 2), ()]], (3,), [0, 0, 0, 0])
    costs = [[10.0], [1.0], [1.0], [1.0, 12.5]]
    assert select(graph, costs).cost == 12.5
    assert tree_choice(problem_of(graph, costs))[3] == 1
    costs[3][1] = 13.5
    assert select(graph, costs).cost == 13.0  # the tree view (23) would have switched


def test_bad_costs_are_refused() -> None:
    graph = graph_of([[()]], (0,), [0])
    for bad in (math.nan, -1.0):
        with pytest.raises(ExtractionError, match=r"the cost model gave .* for `op`; a number >= 0 is accepted"):
            select(graph, [[bad]])


def test_nothing_executable_is_named() -> None:
    graph = graph_of([[()]], (0,), [0])
    with pytest.raises(ExtractionError, match=r"a result has only candidates op, which nothing executes$"):
        select(graph, [[math.inf]])
