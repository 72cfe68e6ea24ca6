"""Programs that are chosen where constants are scaled, as JSON: for a process of its own.

Arguments: a JSON list of rows (module, name, factor), and the name of one of `PROGRAMS` where it alone is wanted.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.constants import Scaled


@dataclass(frozen=True)
class Asked:
    """A case of `benchmarks.families`.

    - `case`: its name.
    - `at`: the sizes at which it is optimized.
    - `target`, `execution`: options of `optimize`.
    - `family`: whether one search serves all sizes.
    """

    case: str
    at: Sequence[Mapping[str, int]]
    target: str = "cpu"
    execution: str = "whole"
    family: bool = False


PROGRAMS = {
    "family": Asked("lora", [{"n": n} for n in (1, 16, 300, 450, 8192)], family=True),
    "layout": Asked("rows", [{"n": 4}]),
    "chain": Asked("chain", [{"a": 64, "b": 900, "c": 8}]),
    "kernels": Asked("attention", [{"n": 512, "m": 700}], execution="kernels"),
    "gpu": Asked("batch h100", [{"b": 4}], "h100", "kernels"),
}


def random_problem(rng: random.Random, classes: int = 120) -> Any:
    """Classes that read two of those below them, or now and then above, in one to four ways; all can be computed."""
    reads: list[list[tuple[int, ...]]] = []
    for c in range(classes):
        row = [tuple(sorted({rng.randrange(c) for _ in range(2)})) if c else ()]
        for _ in range(rng.randrange(4)):
            row.append(tuple(sorted({min(classes - 1, rng.randrange(c + 3)) for _ in range(2)})))
        reads.append(row)
    costs = [[rng.uniform(1, 10) for _ in row] for row in reads]
    from relax_eg.extract.selection.problem import Problem

    return Problem(reads, costs, (classes - 1, classes - 2))


def chosen_programs(only: str = "") -> dict[str, Any]:
    """By case, as text, the program that serves each size that is asked about; bytes of a plan; costs of choices.
    `only`: of this case alone the programs."""
    import relax_eg as rx
    from benchmarks.families import CASES
    from relax_eg.extract.selection.problem import choice_cost, tree_choice
    from relax_eg.extract.selection.solve import SolverEffort, solve
    from relax_eg.shapes.guards import Guard

    found: dict[str, Any] = {}
    for name in [only] if only else PROGRAMS:
        p = PROGRAMS[name]
        case = CASES[p.case]
        at = {"bounds": case.bounds} if p.family else {"at": p.at[0]}
        best = rx.optimize(case.fn, *case.specs, **at, weights=case.weights, target=p.target, execution=p.execution)
        of_sizes = [next(v.module for v in best.variants if Guard.read(v.guard).holds(n)) for n in p.at]
        found[name] = [str(m) for m in of_sizes]
    if only:
        return found
    case, at = CASES["batch h100"], {"b": 4}
    found["bytes"] = rx.memory.plan(rx.trace(case.fn, *case.specs), at).bytes_at(at)
    for seed in (1, 2):
        problem = random_problem(random.Random(seed))
        effort = SolverEffort(seconds=3.0, nodes=50, gap=1e-3, neighbourhoods=20)
        found[f"choice {seed}"] = choice_cost(problem, solve(problem, [tree_choice(problem)], effort).choice)
    return found


if __name__ == "__main__":
    Scaled({(module, name): factor for module, name, factor in json.loads(sys.argv[1])}).install()
    print(json.dumps(chosen_programs(*sys.argv[2:])))
