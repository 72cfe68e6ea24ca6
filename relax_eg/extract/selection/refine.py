"""Refinement: switches of single classes that make a selected program cheaper by the price of the whole program.

A selection adds up prices of operators, which know nothing of the kernels that XLA makes of them
(`extract.fusions`). Of programs that cost nearly the same by these, the price of the whole decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from relax_eg.extract.selection.problem import Problem, choice_cost, repair_choice, used_classes
from relax_eg.extract.selection.search import CountedChoice
from relax_eg.extract.selection.select import Selection

_LARGEST = 40  # limit: classes of a program; in larger ones a launch more or less is a small share
_TRIED = 24  # limit: programs that are priced
_NEAR = 0.1  # chosen: share of a program's price that a switch may cost by the prices of operators
_GAIN = 1e-3  # chosen: share of the price that a switch must save


def refined(problem: Problem, found: Selection, price: Callable[[Sequence[int]], float]) -> Selection:
    """`found`, or a choice that differs from it by switches and has a lower price.

    - `price`: the price of the program of a choice, which is -1 for classes that are not used.
    """
    if sum(k >= 0 for k in found.choice) > _LARGEST:
        return found
    best, tried = found.choice, {tuple(found.choice)}
    least: float | None = None
    improves = True
    while improves:
        improves = False
        for choice in _switched(problem, best, _NEAR * found.cost):
            if tuple(choice) in tried:
                continue
            if len(tried) > _TRIED:
                break
            tried.add(tuple(choice))
            least = price(best) if least is None else least
            cost = price(choice)
            if cost < least * (1 - _GAIN):
                best, least, improves = choice, cost, True
                break
    if best == found.choice:
        return found
    return replace(found, choice=best, cost=choice_cost(problem, repair_choice(problem, best)), how="ilp")


def _switched(problem: Problem, choice: Sequence[int], most: float) -> Iterator[list[int]]:
    """The choices that differ in the candidate of one class and cost at most `most` more, the cheapest first."""
    program = CountedChoice(problem, repair_choice(problem, choice))
    found: list[tuple[float, int, int]] = []
    for c, row in enumerate(program.costs):
        if not program.uses[c]:
            continue
        for k, x in enumerate(row):
            children = program.reads[c][k]
            if k == program.choice[c] or not math.isfinite(x) or program.needs_impossible(children):
                continue
            if program.classes_to_move(children, c) is not None and (change := program.change(c, k)) <= most:
                found.append((change, c, k))
    for _, c, k in sorted(found):
        other = list(program.choice)
        other[c] = k
        used = used_classes(problem, other)
        yield [k if c in used else -1 for c, k in enumerate(other)]
