"""The exact search against brute force, and every step of it on its own."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.egraphs import KINDS
from relax_eg.extract.selection.ascent import ascent
from relax_eg.extract.selection.foreign import egraph_of
from relax_eg.extract.selection.greedy import dag_greedy
from relax_eg.extract.selection.ilp import SCALE, Model, relax
from relax_eg.extract.selection.loops import Loop, Loops, loops_within
from relax_eg.extract.selection.problem import (
    Problem,
    choice_cost,
    repair_choice,
    tree_choice,
    tree_greedy,
    used_classes,
)
from relax_eg.extract.selection.prune import cheap_enough, prune, strong_components
from relax_eg.extract.selection.search import cheapest_switch, swap_search
from relax_eg.extract.selection.solve import Partner, SolverEffort, parts_of, solve
from tests.extract.problems import is_acyclic, needed, optimum, problems

EXACT = SolverEffort(seconds=60.0, gap=0.0)


def computable(problem: Problem) -> bool:
    tree = tree_choice(problem)
    return all(tree[r] >= 0 for r in problem.roots)


@settings(max_examples=250)
@given(problems())
def test_greedy_finds_a_choice_just_where_there_is_one(problem: Problem) -> None:
    best = optimum(problem)
    assert computable(problem) == (best < math.inf)
    if best < math.inf:
        tree, total = tree_greedy(problem)
        for choice in (tree, dag_greedy(problem)):
            assert is_acyclic(problem, choice)
            assert needed(problem, tuple(choice)) is not None
            assert choice_cost(problem, choice) >= best - 1e-9
        assert choice_cost(problem, tree) <= sum(total[r] for r in problem.roots) + 1e-9


@settings(max_examples=250)
@given(problems())
def test_the_exact_search_finds_the_optimum_and_proves_it(problem: Problem) -> None:
    assume(computable(problem))
    greedy = dag_greedy(problem)
    found = solve(problem, [tree_choice(problem), greedy], EXACT)
    best = optimum(problem)
    assert found.cost == pytest.approx(best, abs=1e-9)
    assert found.bound == pytest.approx(best, abs=1e-5 * max(1.0, best))
    assert found.bound <= found.cost
    assert found.how == "proved optimal"
    assert found.cost <= choice_cost(problem, greedy)
    assert needed(problem, tuple(found.choice)) is not None
    assert found.cost == pytest.approx(choice_cost(problem, found.choice))


@settings(max_examples=250)
@given(problems(most_classes=5))
def test_pruning_keeps_an_optimum(problem: Problem) -> None:
    assume(computable(problem))
    for keep in (None, cheap_enough(problem, tree_choice(problem))):
        pruned = prune(problem, keep)
        cost = pruned.offset
        choice: dict[int, int] = {}
        for part in parts_of(pruned):
            small = part.problem
            cost += optimum(small)
            choice |= part.lift(solve(small, [tree_choice(small)], EXACT).choice)
        best = optimum(problem)
        assert cost == pytest.approx(best, abs=1e-9)
        whole = pruned.complete(choice)
        assert is_acyclic(problem, whole)
        assert choice_cost(problem, whole) == pytest.approx(best, abs=1e-9)


def test_candidates_on_paths_that_are_too_dear_are_dropped() -> None:
    """A choice of cost 3 is known; class 1 costs 4 with what it reads, and class 3 at least 1 + 3."""
    problem = Problem([[(1,), (2,)], [(2,)], [()], [()]], [[1.0, 2.0], [3.0], [1.0], [3.0]], (0,))
    assert cheap_enough(problem, [1, 0, 0, -1]) == [[1], [0], [0], []]
    dearer = Problem(problem.reads, [[1.0, 2.0], [0.5], [1.0], [3.0]], (0,))
    assert cheap_enough(dearer, [1, 0, 0, -1]) == [[1, 0], [0], [0], []]


@settings(max_examples=250)
@given(problems(most_classes=5))
def test_the_ascent_is_a_bound_and_the_relaxation_of_its_cuts_is_no_lower(problem: Problem) -> None:
    assume(computable(problem))
    for part in parts_of(prune(problem)):
        small = part.problem
        best = optimum(small)
        bound, loops = ascent(small)
        assert bound <= best + 1e-9
        assert (bound > 0) == (best > 0) == bool(loops)
        assert all(loop.target in loop.classes and loop.target in small.roots for loop in loops)
        relaxed = relax(Model(small, max(best, 1.0) / SCALE, loops), 1, max(best, 1.0), math.inf)
        assert relaxed is not None
        assert bound - 1e-6 * max(1.0, best) <= relaxed.bound <= best + 1e-6 * max(1.0, best)


def test_the_ascent_pays_once_for_what_is_shared() -> None:
    # Two ways to f: through a and b, which share the dear x, or through c.
    f, a, b, c, x = range(5)
    reads: list[list[tuple[int, ...]]] = [[(a, b), (c,)], [(x,)], [(x,)], [()], [()]]
    problem = Problem(reads, [[0.0, 0.0], [1.0], [1.0], [15.0], [10.0]], (f,))
    bound, loops = ascent(problem)
    assert bound == optimum(problem) == 12.0
    assert [loop.classes for loop in loops] == [{f, a, c}, {f, b, c}, {f, a, x, c}]
    # Without time nothing is known.
    assert ascent(problem, 0.0) == (0.0, [])


@settings(max_examples=150)
@given(problems())
def test_the_relaxation_is_a_bound_and_what_it_leaves_out_is_not_needed(problem: Problem) -> None:
    assume(computable(problem))
    for part in parts_of(prune(problem)):
        small = part.problem
        best = optimum(small)
        model = Model(small, max(best, 1.0) / SCALE)
        relaxed = relax(model, 60, max(best, 1.0), math.inf)
        assert relaxed is not None
        assert relaxed.bound <= best + 1e-6 * max(1.0, best)
        # One more than the optimum, so that an optimal choice has to be left.
        keep = model.candidates_below(relaxed, best + 1.0, tree_choice(small))
        costs = [[x if k in keep[c] else math.inf for k, x in enumerate(row)] for c, row in enumerate(small.costs)]
        assert optimum(Problem(small.reads, costs, small.roots)) == pytest.approx(best)


@settings(max_examples=150)
@given(problems(most_classes=5), st.integers(0, 2**32 - 1))
def test_cuts_hold_for_every_choice_and_cut_off_what_they_are_found_for(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    finder = Loops(problem)
    taken = rng.choice([0.0, 0.5, 1.0], len(finder.owner))
    used = np.minimum(1.0, np.add.reduceat(taken, finder.first[:-1]))
    choices = list(itertools.product(*(range(len(row)) for row in problem.reads)))
    for loop in finder.violated(taken, used, 50):
        supports = finder.supports(loop.classes)
        assert taken[supports].sum() < used[loop.target]
        assert loop.target in loop.classes
        for choice in choices:
            order = needed(problem, choice)
            if order is not None and loop.target in order:
                assert any(finder.first[c] + choice[c] in supports for c in order)


def test_a_circle_is_cut_off_and_parts_keep_their_cuts() -> None:
    problem = Problem([[(1,), ()], [(2,), ()], [(0,)]], [[1.0, 9.0], [1.0, 9.0], [1.0]], (0,))
    finder = Loops(problem)
    (loop, *_) = finder.violated(np.array([1.0, 0.0, 1.0, 0.0, 1.0]), np.ones(3), 50)
    assert loop.classes == {0, 1, 2}
    assert finder.supports(loop.classes) == [1, 3]
    assert finder.violated(np.array([1.0, 0.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0]), 50) == []
    assert loops_within([Loop(frozenset((0, 1, 2)), 1)], [2, 1]) == [Loop(frozenset((0, 1)), 1)]
    assert loops_within([Loop(frozenset((0, 1, 2)), 1)], [0, 2]) == []


@settings(max_examples=150)
@given(problems())
def test_repair_leaves_what_runs_in_no_circle(problem: Problem) -> None:
    assume(computable(problem))
    tree = tree_choice(problem)
    assert repair_choice(problem, tree) == tree
    anything = [0] * len(problem.reads)
    mended = repair_choice(problem, anything)
    assert is_acyclic(problem, mended)
    if needed(problem, tuple(anything)) and choice_cost(problem, anything) < math.inf:
        used = used_classes(problem, anything)
        assert all(mended[c] == 0 for c in used)


@settings(max_examples=150)
@given(problems())
def test_swap_search_only_gains_and_the_second_best_is_dearer(problem: Problem) -> None:
    assume(computable(problem))
    tree = tree_choice(problem)
    choice, cost = swap_search(problem, tree)
    assert cost <= choice_cost(problem, tree) + 1e-9
    assert is_acyclic(problem, choice)
    second = cheapest_switch(problem, repair_choice(problem, choice), 0.5)
    if second is not None:
        assert second[0] >= cost + 0.5
        assert choice_cost(problem, second[3]) == pytest.approx(second[0])
        assert is_acyclic(problem, second[3])


def test_a_group_that_does_not_pay_is_undone_in_circles_too() -> None:
    rng = random.Random(3)
    for _ in range(300):
        n = rng.randint(6, 14)
        reads = [
            [tuple(rng.sample(range(c), min(c, rng.randint(0, 3))))]
            + [tuple(rng.sample(range(n), rng.randint(1, 3))) for _ in range(rng.randint(0, 4))]
            for c in range(n)
        ]
        costs = [[float(rng.randint(0, 9)) for _ in row] for row in reads]
        problem = Problem(reads, costs, (n - 1,))
        tree = tree_choice(problem)
        choice, cost = swap_search(problem, tree)
        assert is_acyclic(problem, choice)
        assert cost <= choice_cost(problem, tree)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_hard_instances_are_solved_better_than_greedily(kind: str) -> None:
    graph = egraph_of(KINDS[kind](120, 1))
    problem = graph.problem
    tree, dag = tree_choice(problem), dag_greedy(problem)
    effort = SolverEffort(seconds=math.inf, nodes=3, neighbourhoods=2)
    found = solve(problem, [tree, dag], effort)
    assert found.cost <= min(choice_cost(problem, tree), choice_cost(problem, dag))
    assert 0 < found.bound <= found.cost
    assert is_acyclic(problem, found.choice)
    assert solve(problem, [tree, dag], effort) == found  # no clock: the same again


@pytest.mark.parametrize("kind", ["bert", "mobilenet", "resnet"])
def test_acyclic_instances_have_no_circles_and_the_others_have(kind: str) -> None:
    circles: list[bool] = []
    for name in (kind, f"{kind}_acyclic"):
        problem = egraph_of(KINDS[name](300, 0)).problem
        components = strong_components({c: set[int]().union(*row) for c, row in enumerate(problem.reads)})
        circles.append(len(set(components.values())) < len(problem.reads))
        assert problem.node_count >= 150
    assert circles == [True, False]


def test_progress_is_told() -> None:
    problem = egraph_of(KINDS["fan_in"](200, 0)).problem
    told: list[tuple[str, float, float]] = []
    tree = tree_choice(problem)
    found = solve(problem, [tree], SolverEffort(), lambda what, cost, bound: told.append((what, cost, bound)))
    assert {what for what, _, _ in told} >= {"greedy", "relaxed"}
    assert all(bound <= cost + 1e-6 for _, cost, bound in told)
    assert found.how == "proved optimal"


def test_without_time_the_best_seed_is_improved_and_a_bound_is_known() -> None:
    problem = egraph_of(KINDS["cyclic"](300, 0)).problem
    tree = tree_choice(problem)
    found = solve(problem, [tree], SolverEffort(seconds=0.0))
    assert found.bound <= found.cost <= choice_cost(problem, tree)
    assert found.how in ("greedy", "ilp")


class Knowing(Partner):
    """Knows a choice of each part from the start, and remembers what it is sent."""

    def __init__(self, choices: dict[int, list[int]]) -> None:
        self.choices = choices
        self.sent: list[tuple[int, list[int] | None]] = []

    def received(self, part: int) -> list[int] | None:
        return self.choices.get(part)

    def send(self, part: int, choice: Sequence[int] | None) -> None:
        self.sent.append((part, None if choice is None else list(choice)))


def test_what_a_partner_finds_is_taken_and_it_is_told_of_what_is_better() -> None:
    problem = egraph_of(KINDS["cyclic"](240, 2)).problem
    tree = tree_choice(problem)
    (part,) = parts_of(prune(problem))
    good = solve(part.problem, [tree_choice(part.problem)], EXACT)
    short = SolverEffort(seconds=math.inf, nodes=0, cut_rounds=1, neighbourhoods=0)
    alone = solve(problem, [tree], short)
    cheaper = prune(problem).offset + good.cost
    assert cheaper < alone.cost
    assert solve(problem, [tree], short, partner=Knowing({0: good.choice})).cost == pytest.approx(cheaper)
    bad = Knowing({0: tree_choice(part.problem)})
    found = solve(problem, [tree], short, partner=bad)
    assert found.cost == alone.cost
    number, sent = bad.sent[0]
    assert number == 0 and sent is not None
    assert prune(problem).offset + choice_cost(part.problem, sent) == pytest.approx(found.cost)
    easy = egraph_of(KINDS["fan_in"](200, 0)).problem
    done = Knowing({})
    assert solve(easy, [tree_choice(easy)], EXACT, partner=done).how == "proved optimal"
    assert done.sent[-1] == (0, None)


def test_the_solver_prints_nothing() -> None:
    # In a process of its own, because HiGHS prints its licence once in a process.
    made = "made = LinearProgram(); made.column(1.0); relaxation(made).run()"
    script = f"from relax_eg.integer_program import LinearProgram, relaxation; {made}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == ran.stderr == ""
