"""Random tensor programs: the evaluator and the analysis agree with what is read off element by element."""

import numpy as np
from hypothesis import given, settings
from tir_reference import kind_of_accesses, naive
from tir_strategies import SIZES, arrays_for, programs

from relax_eg.tir import TensorProgram, classify, evaluate


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
