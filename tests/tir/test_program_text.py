"""Tensor programs as text: what is printed reads back to an equal program."""

from hypothesis import given, settings
from tir_strategies import programs

from relax_eg.shapes import Dim
from relax_eg.tir import (
    Buffer,
    Stage,
    TensorProgram,
    compute,
    exp,
    loops,
    parse_program,
    sigmoid,
    sum_,
    tanh,
)


@settings(max_examples=150)
@given(programs())
def test_random_programs_read_back(program: TensorProgram) -> None:
    assert parse_program(str(program)) == program


def test_what_stands_in_several_places_is_written_once() -> None:
    n = Dim.var("n")
    i, k = loops("i k")
    x = Buffer("X", (n, n), "float32")
    deep = x[i, k] * 1.25
    for _ in range(40):  # a tree of 2**40 leaves
        deep = deep * sigmoid(deep)
    total = sum_(deep, over=(k, n))
    for _ in range(20):
        total = tanh(total) + total * 0.5
    both = (compute("Y", (n,), lambda i: total), compute("Z", (n,), lambda i: total * total))
    program = TensorProgram("p", (x,), both, ("Y", "Z")).validate()
    text = str(program)
    assert len(text) < 20_000 and parse_program(text) == program
    names = [line.split(" = ")[0].strip() for line in text.split("\n") if line.startswith("    t")]
    assert len(names) == len(set(names)) > 20
    named = program_of_names("t0", "X")  # a buffer that is called as a value would be
    assert parse_program(str(named)) == named


def program_of_names(buffer: str, other: str) -> TensorProgram:
    a, b = (Buffer(name, (Dim.var("n"),), "float32") for name in (buffer, other))
    (i,) = loops("t1")
    value = tanh(a[i] + b[i] + exp(a[i]) + exp(b[i]) + exp(exp(a[i])) + exp(exp(b[i])))
    return TensorProgram("p", (a, b), (Stage(Buffer("Y", a.shape, "float32"), (i,), value * value),), ("Y",)).validate()
