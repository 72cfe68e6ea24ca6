"""What the loops and calls of a module tell about the functions they run: which parameters are the same at every step,
and which are known ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relax_eg.extract.cost import ASSUMED_TRIPS
from relax_eg.ir.control import functions_of, parts
from relax_eg.ir.expr import CALL, SCAN, WHILE, Expr
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


def repeated(module: Module, extent: Callable[[Dim], int]) -> dict[str, Repeated]:
    """The bodies and conditions of the loops of a module, by name. `extent`: gives the approximate value of a size."""
    found: dict[str, Repeated] = {}
    for f in module:
        for e in f.expressions():
            if e.op not in (SCAN, WHILE):
                continue
            p = parts(e.op, e.args, dict(e.attrs))
            constants = (p.condition_constants, p.constants) if e.op == WHILE else (p.constants,)
            steps = ASSUMED_TRIPS if e.op == WHILE else max(1, extent(e.attr("length")))
            for ref, same in zip(p.functions, constants, strict=True):
                name, is_body = str(ref.attr("name")), ref is p.functions[-1]
                before = found.get(name, Repeated(len(same), steps, is_body))
                found[name] = Repeated(
                    min(before.constants, len(same)), min(before.steps, steps), before.is_body and is_body
                )
    return found


def known_ahead(entry: Function, weights: set[str]) -> dict[str, tuple[bool, ...]]:
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
