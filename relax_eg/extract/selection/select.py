"""Selection: the cheapest program in an extraction graph, with shared values counted once.

Swap search improves every seed: the program as written, and the greedy choices without and with sharing. The exact
search starts from the best (`solve`). The result therefore never costs more than the program as written. A rule only
adds candidates to a graph, so with more rules the result of an exact search that finishes is never more expensive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from relax_eg.errors import ExtractionError, NotExecutableError
from relax_eg.extract.costs.numbers import TINY
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.report import RunnerUp
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.greedy import dag_greedy
from relax_eg.extract.selection.problem import (
    Problem,
    choice_cost,
    impossible_classes,
    repair_choice,
    tree_choice,
    used_classes,
)
from relax_eg.extract.selection.search import GAIN, best_of, cheapest_switch, swap_search
from relax_eg.extract.selection.solve import SolverEffort, solve
from relax_eg.logs import stage

# limit: inside `optimize`: the limit of nodes ends the search before the clock does, and prices are not accurate to a
# thousandth.
EFFORT = SolverEffort(seconds=20.0, nodes=20, gap=1e-3, candidates=1500, cut_rounds=10, neighbourhoods=0)
_RULES = 4  # limit: rules left out, one at a time
_REASONS = 3  # limit: operators named as reasons of the runner-up


@dataclass(slots=True)
class Selection:
    """A choice of candidates and its cost.

    - `choice`: the candidate of each class; -1 if the class is not used.
    - `cost`: its cost.
    - `written_cost`: the cost of the program as written.
    - `seed`: the name of the choice from which the search found it.
    - `bound`: a lower bound on the cost of any choice of these candidates.
    - `how`: "greedy" (greedy choices and swap search), "ilp" (the exact search stopped early) or "proved optimal".
    """

    choice: list[int]
    cost: float
    written_cost: float
    seed: str
    bound: float = 0.0
    how: str = "greedy"


def check_costs(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> None:
    """ExtractionError unless every cost is a number >= 0 (infinite: not executable)."""
    for c, row in enumerate(costs):
        for k, cost in enumerate(row):
            if math.isnan(cost) or cost < 0:
                raise ExtractionError(
                    f"the cost model gave {cost} for `{graph.candidates[c][k].op}`; a number >= 0 is accepted"
                )


def problem_of(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> Problem:
    """The selection problem of the graph. A class that a node reads twice is in its reads once."""
    reads = [[tuple(dict.fromkeys(k.children)) for k in row] for row in graph.candidates]
    return Problem(reads, costs, tuple(dict.fromkeys(graph.roots)))


@stage("select")
def select(graph: ExtractionGraph, costs: Sequence[Sequence[float]]) -> Selection:
    """The cheapest choice that swap search finds. `costs[c][k]`: seconds of candidate `k` of class `c`.

    ExtractionError and NotExecutableError as in `check_costs` and `check_executable`."""
    check_costs(graph, costs)
    problem = problem_of(graph, costs)
    tree = tree_choice(problem)
    check_executable(graph, problem, tree)
    written = [w if w >= 0 else t for w, t in zip(graph.as_written, tree, strict=True)]
    written_cost = choice_cost(problem, written)
    first = repair_choice(problem, written) if written_cost < math.inf else tree
    choice, cost, place = best_of(problem, (first, tree, dag_greedy(problem)))
    return Selection(_used(problem, choice), cost, written_cost, ("as written", "tree-greedy", "DAG-greedy")[place])


@stage("select exactly")
def select_exactly(
    graph: ExtractionGraph, costs: Sequence[Sequence[float]], found: Selection, clock: Clock
) -> Selection:
    """`found`, or a better choice that the exact search finds before the clock runs out, with a lower bound on the cost
    of any choice."""
    if clock.is_over():
        return found
    problem = problem_of(graph, costs)
    solved = clock.run_search(lambda effort: solve(problem, [found.choice], effort), EFFORT)
    return replace(found, choice=_used(problem, solved.choice), cost=solved.cost, bound=solved.bound, how=solved.how)


def _used(problem: Problem, choice: Sequence[int]) -> list[int]:
    used = used_classes(problem, choice)
    return [k if c in used else -1 for c, k in enumerate(choice)]


def check_executable(graph: ExtractionGraph, problem: Problem, tree: Sequence[int]) -> None:
    """NotExecutableError if a result needs operators that nothing executes; the error names them and the rules that
    proposed others. ExtractionError if a result can only be computed from itself."""
    reached = impossible_classes(problem, tree)
    if not reached:
        return
    dear = [c for c in sorted(reached) if all(x == math.inf for x in problem.costs[c])]
    if not dear:
        ops = sorted({k.op for c in reached for k in graph.candidates[c]})
        raise ExtractionError(
            f"no executable program: {len(reached)} values ({', '.join(ops)}) can only be computed from themselves"
        )
    ops = sorted({k.op for c in dear for k in graph.candidates[c]})
    rules = sorted({k.made_by for c in dear for k in graph.candidates[c] if k.made_by})
    tried = f"; {', '.join(rules)} proposed candidates, none of them executable" if rules else ""
    text = f"no executable program: a result has only candidates {', '.join(ops)}, which nothing executes{tried}"
    raise NotExecutableError(text, ops)


def without_one_rule(
    graph: ExtractionGraph, problem: Problem, best: Sequence[int]
) -> Iterator[tuple[str, list[int], float]]:
    """Yields the rules that make the most expensive part of `best`, each with the cheapest choice that swap search
    finds without it, and its cost."""
    choice, costs = repair_choice(problem, best), problem.costs
    paid: dict[str, float] = {}
    for c, k in enumerate(best):
        rule = graph.candidates[c][k].made_by if k >= 0 else ""
        if rule:
            paid[rule] = paid.get(rule, 0.0) + costs[c][k]
    for rule in sorted(paid, key=lambda r: (-paid[r], r))[:_RULES]:
        less = [
            [math.inf if candidate.made_by == rule else x for candidate, x in zip(row, costs[c], strict=True)]
            for c, row in enumerate(graph.candidates)
        ]
        rest = Problem(problem.reads, less, problem.roots)
        start = repair_choice(rest, choice)
        if all(start[r] >= 0 for r in problem.roots):
            yield rule, *swap_search(rest, start)


def second_best(
    graph: ExtractionGraph, costs: Sequence[Sequence[float]], best: Selection, function: str, bindings: int
) -> RunnerUp | None:
    """The cheapest program found that differs from `best` by a rule and costs measurably more; None if there is none.

    The candidates are the programs without one of the most expensive rules that `best` uses, and the programs in which
    one value is computed in another way.

    - `function`: the name of the function of the graph.
    - `bindings`: the number of bindings over which costs are summed; the costs in reasons are means over them.
    """
    problem = problem_of(graph, costs)
    choice = repair_choice(problem, best.choice)
    least = max(EFFORT.gap * best.cost, TINY)
    without = without_one_rule(graph, problem, best.choice)
    found = [(cost, 0, rule, "", other) for rule, other, cost in without if cost - best.cost >= least]
    switch = cheapest_switch(problem, choice, least)
    if switch is not None:
        cost, c, k, other = switch
        found.append((cost, 1, "", graph.candidates[c][k].made_by, other))
    if not found:
        return None
    cost, _, without_rule, with_rule, other = min(found, key=lambda f: f[:4])
    extra = (cost - best.cost) / best.cost if best.cost > 0 else 0.0
    reasons = _reasons(graph, costs, problem, choice, other)
    why = tuple((op, x / bindings, y / bindings) for op, x, y in reasons)
    # Over several bindings, costs are sums of shares of the program as written.
    return RunnerUp(function, without_rule, with_rule, extra, why, bindings == 1)


def _reasons(
    graph: ExtractionGraph,
    costs: Sequence[Sequence[float]],
    problem: Problem,
    best: Sequence[int],
    other: Sequence[int],
) -> tuple[tuple[str, float, float], ...]:
    totals: dict[str, list[float]] = {}
    for side, choice in enumerate((best, other)):
        for c in sorted(used_classes(problem, choice)):
            row = totals.setdefault(graph.candidates[c][choice[c]].op, [0.0, 0.0])
            row[side] += costs[c][choice[c]]
    differing = [(op, x, y) for op, (x, y) in totals.items() if abs(x - y) > GAIN * max(x, y)]
    return tuple(sorted(differing, key=lambda d: (-abs(d[1] - d[2]), d[0]))[:_REASONS])
