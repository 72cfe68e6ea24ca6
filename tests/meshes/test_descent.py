"""Descent beside the integer program, on drawn programs: the same constraints, and nearly the same prices."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.profiles.devices import PROFILES
from relax_eg.extract.profiles.links import Link
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.placements import REPLICATED
from relax_eg.meshes.axis import MOST_TREES, AxisSearch
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import Demands
from relax_eg.meshes.program import SpreadProgram, SpreadValue, ValueWay, any_part
from relax_eg.meshes.strategies import SplitStrategy, strategies
from relax_eg.ops import api as op
from relax_eg.ops import bytes_of
from relax_eg.shapes import Dim, Scope

SIZES = 64, 128
RATE = 1e12  # flops/s of the device here, on which sending and computing take about as long


def tensor(name: str, *shape: int) -> Expr:
    return var(name, Tensor(tuple(Dim.of(n) for n in shape), "float32"))


def drawn(seed: int, steps: int = 14) -> SpreadProgram:
    """A program of matmuls and operators between them, many of whose values are read more than once."""
    rng = random.Random(seed)
    inputs = [tensor("x", 64, 128), *(tensor(f"w{i}", 128, 128) for i in range(3))]
    made = list(inputs)
    for _ in range(steps):
        a, b = (made[-1 - min(int(rng.expovariate(0.7)), len(made) - 1)] for _ in range(2))
        kind = rng.randrange(5)
        if kind < 2 and a.annotation.shape[-1] == b.annotation.shape[0]:  # type: ignore[union-attr]
            made.append(op.matmul(a, b))
        elif kind == 2 and a.annotation == b.annotation:
            made.append(op.add(a, b))
        elif kind == 3:
            made.append(op.softmax(a, -1))
        else:
            made.append(op.tanh(a) if kind == 4 else op.permute_dims(a, (1, 0)))
    found, number = SpreadProgram(), dict[Expr, int]()

    def add(e: Expr) -> int:
        if e in number:
            return number[e]
        children = tuple(add(x) for x in e.args)
        value = SpreadValue(e.annotation, float(bytes_of(e.annotation).evaluate({})), 1.0, "f", len(number))
        if e in inputs:
            value.ways.append(ValueWay("var", (), tuple(SplitStrategy((), p) for p in any_part(value.rank))))
        else:
            flops = 2.0 * 128 * value.bytes / 4 if e.op == "matmul" else 4 * value.bytes
            ways = strategies(e.op, [x.annotation for x in e.args], e.attrs, e.annotation)
            value.ways.append(ValueWay(e.op, children, ways, NodeCost(seconds=flops / RATE), candidate=0))
        number[e] = len(found.values)
        found.values.append(value)
        return number[e]

    found.inputs = [add(e) for e in inputs]
    found.outputs = [add(made[-1]), add(made[-2])]
    found.graphs["f"] = SimpleNamespace(taken={})  # type: ignore[assignment]
    return found


def search_of(program: SpreadProgram) -> AxisSearch:
    return AxisSearch(program, 0, [4], [Link(8, 1e11, 1e-9)], PROFILES["h100"], {}, Scope(), [None])


@pytest.mark.parametrize("price", [pytest.param(0.0, marks=pytest.mark.slow), 1e-12])
def test_descent_is_close_to_the_integer_program(price: float) -> None:
    """A price of bytes counts too. On most programs both find the same."""
    ratios: list[float] = []
    for seed in range(12):
        program = drawn(seed)
        search = search_of(program)
        given = Demands({program.inputs[0]: 0}, {0: REPLICATED}, (), frozenset(range(len(program.values))), price)
        model = AxisProgram(search, given)
        descended = search.descended(model, None, MOST_TREES, time.monotonic() + 10)
        exact = search.run(model, 10.0)
        assert descended is not None and exact is not None
        assert descended.part(program.inputs[0]) == 0 and descended.outputs[0] == REPLICATED
        ratios.append(model.priced(descended) / model.priced(exact))
    assert all(r >= 1 - 6e-3 for r in ratios), ratios  # given: the gap of the integer program
    assert sum(r < 1.01 for r in ratios) >= 10 and max(ratios) < 1.1, ratios


def test_what_is_not_possible_is_not_found() -> None:
    """Neither finds a placement of an input that has no such dimension."""
    program = drawn(0)
    search = search_of(program)
    model = AxisProgram(search, Demands({program.inputs[0]: 7}))
    deadline: Any = time.monotonic() + 5
    assert search.descended(model, None, MOST_TREES, deadline) is None


def test_the_bound_from_messages_is_one_and_is_close() -> None:
    """No choice costs less, and on most programs one costs little more."""
    ratios: list[float] = []
    for seed in range(16):
        program = drawn(seed, 4 + seed % 8)
        search = search_of(program)
        model = AxisProgram(search, Demands({program.inputs[0]: 0}, {0: REPLICATED}) if seed % 2 else Demands())
        exact = search.run(model, 10.0)
        assert exact is not None
        ratios.append(search.least(model, time.monotonic() + 10) / exact.cost)
    assert max(ratios) <= 1 + 1e-9, ratios
    assert sum(r > 0.9 for r in ratios) >= 12, ratios


def test_there_is_no_bound_from_messages_over_several_algebras() -> None:
    program = drawn(1)
    made = next(v for v in program.values if v.ways[0].children)
    made.ways.append(made.ways[0])
    search = search_of(program)
    assert search.least(AxisProgram(search, Demands()), time.monotonic() + 10) == 0.0
