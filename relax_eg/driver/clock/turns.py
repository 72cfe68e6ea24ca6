"""Optimized functions on the clock, in turns with the first one as written."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import jax

from relax_eg.argument_checks import need_sizes
from relax_eg.backend.calls.optimized import Optimized
from relax_eg.backend.steps import InSteps
from relax_eg.errors import OptionError
from relax_eg.extract.report import AS_WRITTEN, MeasuredRow
from relax_eg.measure.choice import fastest, random_argument


def time_in_turns(functions: Mapping[str, Optimized], at: Mapping[str, int]) -> tuple[MeasuredRow, ...]:
    """The measured seconds of functions of the same arguments, by name, and of the first one as written.

    The arguments are random, of the sizes `at` and, where it names none, those at which the first function was priced.
    BoundsError for a size that the first function does not have, or that it refuses; OptionError if it has effects, or
    runs in steps.
    """
    name, first = next(iter(functions.items()))
    program = first.solution.program
    need_sizes(program.name, "at", at, list(first.report.at))
    if program.effectful or isinstance(first.strategy, InSteps):
        why = "does more than compute" if program.effectful else "runs in steps"
        raise OptionError(f"{name}: {program.name}() {why}, and is not timed\n  accepted: one XLA program, or kernels")
    sizes = {**first.report.at, **at}
    with program.width_context():
        leaves = [
            random_argument(p.tensor, sizes, facts, seed)
            for seed, (p, facts) in enumerate(zip(program.params, program.facts, strict=True))
        ]
        args, kwargs = jax.tree_util.tree_unflatten(program.in_tree, leaves)
        written = functools.partial(jax.jit(program.run_as_written), leaves)
        calls = {n: (functools.partial(f, *args, **kwargs), f.report.after.call) for n, f in functions.items()}
        found = fastest({AS_WRITTEN: (written, first.report.before.call), **calls}, time_all=True)
    return tuple(replace(row, at=sizes) for row in found)
