"""Random tensor programs: the evaluator and the analysis agree with what is read off element by element, and what is
composed of two does what they do one after the other."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tir_reference import kind_of_accesses, naive
from tir_strategies import SIZES, M, N, arrays_for, programs

from relax_eg.tir import Buffer, TensorProgram, classify, evaluate
from relax_eg.tir.compose import InlinedProgram, compose


@settings(max_examples=60)
@given(programs())
def test_evaluation_is_that_of_single_elements(program: TensorProgram) -> None:
    for sizes in SIZES:
        arrays = arrays_for(program, sizes)
        found = evaluate(program, arrays, sizes, ordered=True)
        for a, b in zip(found, naive(program, arrays, sizes), strict=True):
            np.testing.assert_array_equal(a, b)


@settings(max_examples=100)
@given(programs(most_stages=2, depth=2))
def test_the_pattern_kind_is_that_of_the_elements_read(program: TensorProgram) -> None:
    runs = [(arrays_for(program, sizes, seed), sizes) for sizes in SIZES for seed in range(2)]
    assert classify(program) is kind_of_accesses(program, runs)


SWAPPED = {"n": M, "m": N}  # the second program of a pair has its own n and m


@st.composite
def pairs(draw: Any) -> tuple[TensorProgram, TensorProgram]:
    """A program, mostly without reductions, and one that reads its outputs with n and m swapped."""
    first = draw(programs(most_stages=3, depth=1))
    made = [first.buffers[o] for o in first.outputs]
    given = [Buffer(f"X{k}", tuple(d.substitute(SWAPPED) for d in b.shape), b.dtype) for k, b in enumerate(made)]
    return first, draw(programs(most_stages=2, depth=2, inputs=tuple(given)))


@settings(max_examples=150)
@given(pairs())
def test_what_is_composed_does_one_after_the_other(pair: tuple[TensorProgram, TensorProgram]) -> None:
    first, second = pair
    one, two = (tuple(f"{o}_{name}" for o in p.outputs) for p, name in zip(pair, ("first", "second"), strict=True))
    inputs = first.inputs
    uses = [InlinedProgram(first, tuple(b.name for b in inputs), one), InlinedProgram(second, one, two, SWAPPED)]
    every = compose("both", inputs, uses, one + two)  # the results in between are stored as well
    last = compose("last", inputs, uses, two)  # they are not: inlined, local, or left out
    for sizes in SIZES:
        arrays = arrays_for(first, sizes)
        between = evaluate(first, arrays, sizes, ordered=True)
        swapped = {"n": sizes["m"], "m": sizes["n"]}
        wanted = evaluate(second, between, swapped, ordered=True)
        for composed, results in ((every, [*between, *wanted]), (last, wanted)):
            taken = [array for b, array in zip(inputs, arrays, strict=True) if b in composed.inputs]
            found = evaluate(composed, taken, sizes, ordered=True)
            for a, b in zip(found, results, strict=True):
                np.testing.assert_array_equal(a, b)
