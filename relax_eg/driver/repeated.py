"""The functions that loops and calls run: which parameters are the same at every step, and which are known ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relax_eg.extract.costs.operator_cost import ASSUMED_TRIPS
from relax_eg.ir.control import functions_of, runs_of, steps_of
from relax_eg.ir.expr import CALL, Expr
from relax_eg.ir.heads import LOOPS
from relax_eg.ir.module import Function, Module
from relax_eg.ir.partition import static_expressions
from relax_eg.shapes import Dim


@dataclass(frozen=True, slots=True)
class Repeated:
    """A function that loops run, over all of its sites.

    - `constants`: how many of its first parameters are the same at every step.
    - `steps`: the number of steps of the shortest loop.
    - `is_body`: whether it is never a loop's condition.
    """

    constants: int
    steps: int
    is_body: bool


def loop_functions(module: Module, extent: Callable[[Dim], int]) -> dict[str, Repeated]:
    """The bodies and conditions of the loops of a module, by name. `extent`: gives the approximate value of a size."""
    found: dict[str, Repeated] = {}
    for f in module:
        for e in f.expressions():
            if e.op not in LOOPS:
                continue
            attrs = dict(e.attrs)
            length, loop = steps_of(e.op, attrs), runs_of(e.op, e.args, attrs)
            steps = ASSUMED_TRIPS if length is None else max(1, extent(length))
            for run in loop:
                name, is_body, same = (
                    str(run.function.attr("name")),
                    run.function is loop[-1].function,
                    len(run.constants),
                )
                before = found.get(name, Repeated(same, steps, is_body))
                found[name] = Repeated(
                    min(before.constants, same), min(before.steps, steps), before.is_body and is_body
                )
    return found


def ahead_params(entry: Function, weights: set[str]) -> dict[str, tuple[bool, ...]]:
    """For each function that the entry calls and each of its parameters: whether at every call the operand follows from
    the weights alone."""
    static = static_expressions(entry, weights) if weights else set[Expr]()
    found: dict[str, tuple[bool, ...]] = {}
    for e in entry.expressions() if weights else ():
        if e.op == CALL:
            for name in functions_of(e):
                here = tuple(a in static for a in e.args[1:])
                found[name] = tuple(x and y for x, y in zip(found.get(name, here), here, strict=True))
    return found
