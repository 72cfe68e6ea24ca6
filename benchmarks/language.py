"""Random programs of the language: the reference interpreter and the executable agree on them.

    python -m benchmarks.language [--quick] [--count 10000] [--first 0] [--xla-every 4]

A program has closures, recursion with fuel, lists, branches and nested functions. Each is printed and read back, run by
the interpreter, and as instructions on numpy arrays in planned storages: as written, and after what is known was
evaluated. Of every fourth program the blocks are compiled, too, and both forms run on XLA: compiling takes three times
as long as the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import jax
import numpy as np
import typer

from benchmarks import Quick
from relax_eg.backend.calls.executables import executables
from relax_eg.backend.steps import Runner
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.frontends.partial_evaluation import partially_evaluated
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate, step_limit
from relax_eg.ops.text import parse
from relax_eg.shapes import Scope
from tests.vm.language_programs import scalars
from tests.vm.planned_places import ReferenceRunner
from tests.vm.test_language import assert_alike
from tests.vm.test_random_language import Program

COUNT = 10_000  # given: the programs for which the project promises agreement
QUICK = 5  # chosen: programs of a quick run
FUEL = 100_000  # chosen: calls of a program; those of the generator make at most thousands
KEPT = 64  # limit: compiled blocks of a program
XLA_EVERY = 4  # chosen: so that 10,000 programs take less than an hour of two cores
SHOWN = 100  # chosen: programs between two lines of progress


def check(seed: int, on_xla: bool = True) -> int:
    """Checks a program, and returns how many calls and choices of it were evaluated ahead. Raises what went wrong.

    - `on_xla`: whether its blocks are compiled and run, too.
    """
    module = parse(Program(seed).text())
    assert parse(str(module)) == module, "the printed text reads back as another module"
    args = [np.float32(0.3), np.float32(-0.7), scalars([0.1, 0.9, 0.4])]
    with step_limit(FUEL):
        wanted = evaluate(module, args)
    arrays = [jax.numpy.asarray(a) if hasattr(a, "dtype") else a for a in args]
    formed = with_dataflow_blocks(deduce_module(module))
    known, spent = partially_evaluated(formed)
    for each in (formed, with_dataflow_blocks(deduce_module(known))):
        assert_alike(ReferenceRunner(each, Scope()).run(args), wanted)
        if on_xla:
            assert_alike(Runner(each, Scope(), executables({}, KEPT)).run(arrays), wanted)
    return spent


def main(
    quick: Quick = False,
    count: int = COUNT,
    first: Annotated[int, typer.Option(min=0)] = 0,
    xla_every: Annotated[int, typer.Option(min=1)] = XLA_EVERY,
) -> None:
    count = QUICK if quick else count
    found: Counter[str] = Counter()
    started = time.perf_counter()
    for i, seed in enumerate(range(first, first + count), 1):
        try:
            on_xla = seed % xla_every == 0
            found["on XLA"] += on_xla
            found["evaluated ahead" if check(seed, on_xla) else "nothing known"] += 1
        except Exception as error:  # any failure is an outcome of the program
            found["differs"] += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        if i % SHOWN == 0:
            jax.clear_caches()
            print(f"{i} of {count} programs, {time.perf_counter() - started:.0f} s", flush=True)
    agree = count - found["differs"]
    print(
        f"{agree} of {count} programs agree, {found['on XLA']} were compiled, too; of {found['evaluated ahead']} "
        "something was evaluated ahead"
    )


if __name__ == "__main__":
    typer.run(main)
