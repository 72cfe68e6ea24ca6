"""Tensor programs as text: what is printed reads back to an equal program."""

from hypothesis import given, settings
from tir_strategies import programs

from relax_eg.tir import TensorProgram, parse_program


@settings(max_examples=150)
@given(programs())
def test_random_programs_read_back(program: TensorProgram) -> None:
    assert parse_program(str(program)) == program
