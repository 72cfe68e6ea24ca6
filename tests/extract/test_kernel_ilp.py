"""Exact selection of kernels: against trying every choice, on random problems with overlapping kernels."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import relax_eg as rx
from relax_eg.extract.kernels import ilp
from relax_eg.extract.kernels.ilp import Overlap, solve_kernels
from relax_eg.extract.selection.problem import Problem, choice_cost, repair_choice, tree_choice
from relax_eg.extract.selection.solve import SolverEffort
from relax_eg.integer_program import LinearProgram, Row, relaxation
from tests.extract.problems import is_acyclic

EXACT = SolverEffort(seconds=20.0, nodes=1000, gap=0.0, candidates=1000)


def overlapping(seed: int) -> tuple[Problem, Overlap]:
    """Values 0 to 6, each with operators on others (circles among them), and kernels that hold some of them: whatever
    of an operand's kernel is taken in makes a new one. Arithmetic is paid in each kernel, a kernel costs 1 more."""
    rng = random.Random(seed)
    operands: dict[tuple[int, int], tuple[int, ...]] = {(0, 0): ()}
    work = {(0, 0): 0.0}
    for c in range(1, 7):
        for k in range(rng.choice((1, 1, 2))):
            others = [x for x in range(7) if x != c] if k else list(range(c))
            operands[c, k] = tuple(sorted(rng.sample(others, min(len(others), rng.choice((1, 1, 2))))))
            work[c, k] = float(rng.choice((0, 1, 5, 20)))
    kernels: list[dict[frozenset[tuple[int, int]], frozenset[int]]] = [{} for _ in range(7)]
    kernels[0] = {frozenset({(0, 0)}): frozenset()}
    for c in range(1, 7):
        for k in (k for x, k in operands if x == c):
            kernels[c][frozenset({(c, k)})] = frozenset(operands[c, k])
    for _ in range(2):
        for c in range(1, 7):
            for held, loads in list(kernels[c].items()):
                for x in loads:
                    for inner, more in list(kernels[x].items())[:2]:
                        classes = [y for y, _ in held | inner]
                        together = (loads - {x}) | more
                        if x and len(set(classes)) == len(classes) and together.isdisjoint(classes):
                            kernels[c].setdefault(held | inner, together)
    reads = [[tuple(sorted(loads)) for loads in row.values()] for row in kernels]

    def cost(held: frozenset[tuple[int, int]], loads: frozenset[int]) -> float:
        return 1.0 + sum(work[m] for m in held) + 0.3 * len(loads)

    costs = [[cost(*kernel) if c else 0.0 for kernel in row.items()] for c, row in enumerate(kernels)]
    members = [[dict(held) for held in row] for row in kernels]
    return Problem(reads, costs, (5, 6)), Overlap(members, operands)


def least(problem: Problem) -> float:
    best = math.inf
    for choice in itertools.product(*(range(len(row)) for row in problem.reads)):
        if is_acyclic(problem, choice):
            best = min(best, choice_cost(problem, choice))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_the_best_choice_and_proves_it(seed: int) -> None:
    problem, overlap = overlapping(seed)
    while math.prod(map(len, problem.reads)) > 3_000:
        seed += 1000
        problem, overlap = overlapping(seed)
    start = repair_choice(problem, tree_choice(problem))
    solved = solve_kernels(problem, overlap, start, EXACT)
    assert is_acyclic(problem, solved.choice)
    assert solved.cost == pytest.approx(choice_cost(problem, solved.choice))
    assert solved.cost == pytest.approx(least(problem))
    assert solved.bound == pytest.approx(solved.cost)
    assert solved.how == "proved optimal"


def test_no_row_has_a_column_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS takes such rows, and some programs with them ended in a segmentation fault."""
    rows: list[Row] = []

    def kept(program: LinearProgram) -> Any:
        rows.extend(program.rows)
        return relaxation(program)

    monkeypatch.setattr(ilp, "relaxation", kept)
    for seed in range(12):
        problem, overlap = overlapping(seed)
        solve_kernels(problem, overlap, repair_choice(problem, tree_choice(problem)), EXACT)
    assert rows and all(columns and len(set(columns)) == len(columns) for columns, _, _ in rows)


def test_beyond_the_candidates_allowed_it_only_bounds() -> None:
    found: set[str] = set()
    for seed in range(8):
        problem, overlap = overlapping(seed)
        start = repair_choice(problem, tree_choice(problem))
        solved = solve_kernels(problem, overlap, start, SolverEffort(candidates=2))
        assert solved.choice == start and 0 < solved.bound <= solved.cost
        assert (solved.how == "proved optimal") == (solved.gap < 1e-6)
        found.add(solved.how)
    assert found == {"greedy", "proved optimal"}


def test_both_halves_of_a_layer_are_closed() -> None:
    def rms(x: Any, g: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g

    def mlp(x: Any, g: Any, gate: Any, up: Any, down: Any) -> Any:
        h = rms(x, g)
        return x + (jax.nn.silu(h @ gate) * (h @ up)) @ down

    def attention(x: Any, g: Any, wq: Any, wk: Any, wv: Any, wo: Any, cos: Any, sin: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.reshape(1, y.shape[1], 4, 64).transpose(0, 2, 1, 3)

        def rotate(y: Any) -> Any:
            a, b = jnp.split(y, 2, -1)
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        h = rms(x, g)
        q, k, v = rotate(heads(h @ wq)), rotate(heads(h @ wk)), heads(h @ wv)
        y = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 8.0) @ v
        return x + y.transpose(0, 2, 1, 3).reshape(x.shape) @ wo

    square = ["256 256"] * 4
    options: Any = {"at": {"s": 512}, "execution": "kernels"}
    alone = rx.debug.options(sharing=False)(rx.optimize)
    for best in (
        alone(mlp, "1 s 256", "256", "256 688", "256 688", "688 256", **options),
        alone(attention, "1 s 256", "256", *square, "s 32", "s 32", **options),
    ):
        (selected,) = best.report.selected
        assert selected.gap <= 1e-3
        assert (
            best.report.after.launches < best.report.before.launches / 2
            and best.report.after.bytes < best.report.before.bytes / 1.5
        )
