"""Improving choices without a bound: annealing, crossing, neighbourhoods, and the second process."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.egraphs import KINDS
from relax_eg.extract.selection import helper
from relax_eg.extract.selection.anneal import Annealer
from relax_eg.extract.selection.foreign import egraph_of
from relax_eg.extract.selection.helper import start_helper
from relax_eg.extract.selection.neighbours import Improver
from relax_eg.extract.selection.problem import (
    Problem,
    Subproblem,
    choice_cost,
    repair_choice,
    tree_choice,
    used_classes,
)
from relax_eg.extract.selection.prune import prune
from relax_eg.extract.selection.search import swap_search
from relax_eg.extract.selection.solve import SolverEffort, improver_of, initial_choice, ordered_parts
from tests.extract.problems import is_acyclic, needed, optimum, problems


@settings(max_examples=150)
@given(problems(), st.integers(0, 2**32 - 1))
def test_annealing_stays_acyclic_and_counts_what_it_changes(problem: Problem, seed: int) -> None:
    tree = tree_choice(problem)
    assume(all(tree[r] >= 0 for r in problem.roots))
    for part in ordered_parts(problem)[1]:
        small = part.problem
        start = tree_choice(small)
        annealer = Annealer(small, start, random.Random(seed))
        cost = choice_cost(small, start)
        for _ in range(30 if annealer.open else 0):
            cost += annealer._step(3.0)  # pyright: ignore[reportPrivateUsage]
            choice = annealer.program.choice
            assert needed(small, tuple(choice)) is not None
            assert cost == pytest.approx(choice_cost(small, choice))
            assert {c for c, n in enumerate(annealer.program.uses) if n} == used_classes(small, choice)
        found = annealer.round(math.inf)
        assert is_acyclic(small, found)
        assert optimum(small) - 1e-9 <= annealer.cost <= choice_cost(small, start)
        assert annealer.cost == pytest.approx(choice_cost(small, annealer.best))


def test_annealing_finds_what_pays_only_when_several_classes_switch_at_once() -> None:
    # Eight products of one input, each dear; a pair is the concatenation of two, or one product cheaper than both,
    # and both are its halves. The choice of the pair by its parts, free where they are used, hides the other.
    reads: list[list[tuple[int, ...]]] = [[()]]
    costs: list[list[float]] = [[0.0]]
    for i in range(0, 16, 3):
        a, b, pair = i + 1, i + 2, i + 3
        reads += [[(0,), (pair,)], [(0,), (pair,)], [(a, b), (0,)]]
        costs += [[10.0, 0.1], [10.0, 0.1], [1.0, 15.0]]
    products = [c for c in range(1, len(reads)) if c % 3]
    reads.append([tuple(products)])
    costs.append([0.0])
    problem = Problem(reads, costs, (len(reads) - 1,))
    start = tree_choice(problem)
    assert choice_cost(problem, start) == 120.0
    annealer = Annealer(problem, start, random.Random(0))
    annealer.round(math.inf)
    assert annealer.cost == pytest.approx(6 * 15.2)


@pytest.mark.parametrize("kind", ["cyclic", "sharing"])
def test_steps_gain_on_swap_search_and_are_the_same_again(kind: str) -> None:
    problem = ordered_parts(egraph_of(KINDS[kind](500, 0)).problem)[1][-1].problem
    tree = tree_choice(problem)
    swapped, cost = swap_search(problem, tree)

    def solver(part: Subproblem, start: Sequence[int], until: float) -> list[int]:
        assert until > 0
        return swap_search(part.problem, repair_choice(part.problem, start))[0]

    def improved() -> list[int]:
        improver = Improver(problem, swapped, solver, 3)
        for _ in range(40):
            improver.step(math.inf)
        assert is_acyclic(problem, improver.best)
        assert improver.cost == pytest.approx(choice_cost(problem, improver.best))
        return improver.best

    best = improved()
    assert choice_cost(problem, best) < cost
    assert improved() == best


def test_what_is_offered_is_taken_where_it_is_better() -> None:
    problem = ordered_parts(egraph_of(KINDS["cyclic"](500, 0)).problem)[1][-1].problem
    tree = tree_choice(problem)
    good, cost = initial_choice(problem, tree)
    used = used_classes(problem, good)
    improver = improver_of(problem, tree, SolverEffort())
    assert improver.cost > cost
    improver.offer([k if c in used else -1 for c, k in enumerate(good)])
    assert improver.cost == pytest.approx(cost) and is_acyclic(problem, improver.best)
    improver.offer(tree)
    assert improver.cost == pytest.approx(cost)


def test_a_helper_tells_of_better_choices_and_takes_them() -> None:
    problem = egraph_of(KINDS["cyclic"](600, 1)).problem
    tree = tree_choice(problem)
    (part,) = ordered_parts(problem)[1]
    _, first = initial_choice(part.problem, part.project(tree))
    with start_helper(problem, tree, SolverEffort()) as partner:
        assert isinstance(partner, helper.Helper)
        heard = None
        end = time.monotonic() + 60  # a loaded machine takes its time to start a process
        while time.monotonic() < end:
            heard = partner.received(0)
            if heard is not None and choice_cost(part.problem, heard) < first:
                break
            time.sleep(0.05)
        assert heard is not None
        assert choice_cost(part.problem, heard) < first and is_acyclic(part.problem, heard)
        partner.send(0, heard)
        partner.send(0, None)
    # It has ended: what it is told is lost, and nothing fails.
    partner.send(0, heard)


def test_where_no_process_can_be_started_there_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper.sys, "executable", "/nowhere/python")
    problem = egraph_of(KINDS["cyclic"](200, 1)).problem
    with start_helper(problem, tree_choice(problem), SolverEffort()) as partner:
        assert partner is None
    assert prune(problem).node_count > 0


def test_two_choices_are_crossed_exactly() -> None:
    # Two halves, each cheap in one of the choices: the best of both is neither.
    reads = [[(), ()], [(), ()], [(0, 1)]]
    problem = Problem(reads, [[1.0, 5.0], [5.0, 1.0], [0.0]], (2,))
    improver = improver_of(problem, [0, 0, 0], SolverEffort())
    improver.combine([1, 1, 0], math.inf)
    assert improver.best == [0, 1, 0] and improver.cost == 2.0
