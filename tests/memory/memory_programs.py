"""Memory programs for tests: written as lines, and drawn at random."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from relax_eg.ir import Object, Tensor, var
from relax_eg.memory import MemoryProgram, Plan, PlanOptions, Step, Value
from relax_eg.memory.planner import make_plan
from relax_eg.memory.proofs import SizeProofs
from relax_eg.shapes import Dim, Scope

LINE = re.compile(r"(?P<name>\w+): (?P<size>[^@=]+?)(?: @ (?P<dtype>\w+))? = (?P<how>\w+)\((?P<reads>[\w, ]*)\)")
UNITS = {"uint8": 1, "float16": 2, "float32": 4, "int32": 4}


def memory_program(text: str) -> MemoryProgram:
    """A program of one kernel a line, `name: elements @ dtype = kernel(operands)`; the dtype is uint8 if left out, so
    that elements are bytes. A kernel called `inplace` reads its operands element for element. The last line `return
    names`."""
    values: list[Value] = []
    steps: list[Step] = []
    number: dict[str, int] = {}
    lines = [line.strip() for line in text.strip().splitlines()]
    returned = lines.pop().removeprefix("return").replace(",", " ").split()
    for line in lines:
        found = LINE.fullmatch(line)
        assert found is not None, line
        name, reads = found["name"], found["reads"].replace(",", " ").split()
        dtype = found["dtype"] or "uint8"
        for r in reads:
            if r not in number:
                number[r] = len(values)
                values.append(Value(len(values), r, Tensor((1,), "uint8"), "argument"))
        number[name] = len(values)
        role = "result" if name in returned else "value"
        values.append(Value(len(values), name, Tensor((Dim.of(found["size"]),), dtype), role))
        operands = tuple(number[r] for r in reads)
        pairs = tuple((number[name], r) for r in operands) if found["how"] == "inplace" else ()
        steps.append(
            Step(
                len(steps), f"{found['how']}_{name}", var("k", Object()), "f", {}, operands, (number[name],), (), pairs
            )
        )
    return made(values, steps, tuple(number[r] for r in returned))


def made(values: Sequence[Value], steps: Sequence[Step], result: tuple[int, ...]) -> MemoryProgram:
    names = sorted({v for x in values for v in (x.bytes.variables if x.bytes is not None else ())})
    return MemoryProgram("f", tuple(values), tuple(steps), result, tuple(names))


def random_program(rng: random.Random, steps: int, symbolic: bool = True) -> MemoryProgram:
    """A program of about as many steps, over sizes n and m: values of all kinds, kernels in place, with workspaces, of
    several outputs, with results in the middle, values that nobody reads, regions."""
    values = [Value(0, "x", Tensor((1,), "uint8"), "argument")]
    made_steps: list[Step] = []
    sizes = ["n", "2*n", "2*n + 2", "n*m", "m*n", "(n + m)*4", "n*n + 1", "m", "16", "40", "1", "max(n, m)", "n//2 + 1"]
    fixed = ["16", "40", "1", "64", "100", "8", "24"]
    region = 0
    for i in range(steps):
        written = [v.number for v in values if v.role != "workspace"]
        near = written[-6:]
        reads = tuple(
            dict.fromkeys(rng.choice(near if rng.random() < 0.7 else written) for _ in range(rng.randint(0, 3)))
        )

        def new(role: str, name: str, known: Sequence[int] = tuple(written)) -> int:
            shape = values[rng.choice(known)].annotation if rng.random() < 0.4 else None
            if shape is None:
                dtype = rng.choice(list(UNITS))
                shape = Tensor((Dim.of(rng.choice(sizes if symbolic else fixed)),), dtype)
            values.append(Value(len(values), name, shape, role))  # type: ignore[arg-type]
            return len(values) - 1

        writes = tuple(
            new("result" if rng.random() < 0.1 else "value", f"v{i}_{k}") for k in range(rng.choice([1, 1, 1, 2]))
        )
        spaces = tuple(new("workspace", f"w{i}") for _ in range(rng.random() < 0.2))
        pairs = tuple(
            (w, r) for w in writes for r in reads
            if values[w].itemsize == values[r].itemsize and rng.random() < 0.5
        )  # fmt: skip
        region += rng.random() < 0.05
        made_steps.append(Step(i, f"k{i}", var("k", Object()), "f", {}, reads, writes, spaces, pairs, region))
    return made(values, made_steps, tuple(v.number for v in values if v.role == "result"))


def planned_in(
    program: MemoryProgram,
    at: Mapping[str, int] | None = None,
    bounds: Mapping[str, tuple[int, int]] | None = None,
    reorder: bool = True,
    also: Sequence[Mapping[str, int]] = (),
    **wanted: Any,
) -> Plan:
    """The plan of a program in bounds, made for the sizes `at`; `wanted`: as in `PlanOptions`."""
    scope = Scope(bounds or {})
    usual = {n: (bounds or {}).get(n, (1, 8))[1] for n in program.variables}
    return make_plan(program, SizeProofs(scope, {**usual, **(at or {})}), PlanOptions(**wanted), reorder, also)
