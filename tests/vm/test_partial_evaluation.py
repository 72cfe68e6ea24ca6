"""What is known when a program is compiled is evaluated: closures, constructors, conditions; effects are kept."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls.executables import executables
from relax_eg.backend.steps import Runner
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.frontends.partial_evaluation import partially_evaluated
from relax_eg.ir.steps import general_functions
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse
from relax_eg.shapes import Scope
from tests.vm.language_programs import HEAD, HIGHER_ORDER, PRELUDE, examples, scalars
from tests.vm.test_language import assert_alike
from tests.vm.test_random_language import Program

POWER = """
@R.function
def power(x: R.Tensor((), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((), "float32"):
    if n == 0:
        return 1.0
    return x * power(x, n - 1)
"""
STATIC_LIST = (
    PRELUDE
    + """
@R.function
def main(x: R.Tensor((), "float32"), y: R.Tensor((), "float32")):
    xs = List.Cons(x, List.Cons(y, List.Cons(x, List.Nil())))
    return foldl(lambda a, b: a + b, 0.0, map(lambda q: q * q, xs))
"""
)
EFFECTS = (
    PRELUDE
    + """
@R.function
def main(x: R.Tensor((), "float32")):
    r = R.new_ref(x)
    def bump(k: R.Tensor((), "float32")):
        R.write_ref(r, R.read_ref(r) * k - 1.0)
        return k
    ys = map(bump, List.Cons(2.0, List.Cons(3.0, List.Nil())))
    return R.read_ref(r), foldl(lambda a, b: a + b, 0.0, ys)
"""
)
ENDLESS = """
@R.function
def count(x: R.Tensor((), "float32"), n: R.Tensor((), "int32")) -> R.Tensor((), "float32"):
    if n < 0:
        return x
    return count(x + 1.0, n + 1)

@R.function
def main(x: R.Tensor((), "float32")):
    if x > 1.0:
        y = count(x, R.const(0, "int32"))
    else:
        y = x
    return y
"""


def main_of(body: str) -> str:
    return HEAD + POWER + f"\n@R.function\ndef main(x: R.Tensor((), 'float32')):\n    {body}\n"


def evaluated(module: rx.types.Module) -> tuple[rx.types.Module, int]:
    formed, spent = partially_evaluated(with_dataflow_blocks(deduce_module(module)))
    return with_dataflow_blocks(deduce_module(formed)), spent


def check(module: rx.types.Module, args: list[Any]) -> tuple[rx.types.Module, int]:
    """Evaluates a module ahead, and compares both with the interpreter and the machine."""
    made, spent = evaluated(module)
    wanted = evaluate(module, args)
    assert_alike(evaluate(made, args), wanted)
    arrays = [jax.numpy.asarray(a) if hasattr(a, "dtype") else a for a in args]
    assert_alike(Runner(made, Scope(), executables({}, 64)).run(arrays), wanted)
    return made, spent


def test_known_recursion_is_unrolled() -> None:
    made, spent = check(parse(main_of("return power(x, R.const(5, 'int32'))")), [np.float32(1.5)])
    assert [f.name for f in made] == ["main"]
    assert spent >= 6
    assert sum(e.op == "multiply" for e in made.main.expressions()) == 5


def test_what_is_not_known_stays() -> None:
    module = parse(POWER + '\n@R.function\ndef main(x: R.Tensor((), "float32"), n: R.Tensor((), "int32")):\n'
                   "    return power(x, n)\n")  # fmt: skip
    made, spent = check(module, [np.float32(1.5), np.int32(4)])
    assert spent == 0
    assert "power" in general_functions(made)


def test_lists_of_known_structure_are_gone() -> None:
    made, _ = check(parse(STATIC_LIST), [np.float32(1.5), np.float32(2)])
    assert not general_functions(made)


def test_effects_are_kept_in_order() -> None:
    made, _ = check(parse(EFFECTS), [np.float32(1.5)])
    steps = [b.value.op for block in made.main.blocks if not block.dataflow for b in block.bindings]
    assert steps == ["new_ref", "read_ref", "write_ref", "read_ref", "write_ref", "read_ref"]


@pytest.mark.parametrize(("text", "args"), [(HIGHER_ORDER, [scalars([1, 2, 3]), np.float32(10)])])
def test_higher_order_functions_of_known_functions_are_first_order(text: str, args: list[Any]) -> None:
    made, _ = check(parse(text), args)
    assert not any(e.op == "make_closure" for f in made for e in f.expressions())


SIZED = (
    HEAD
    + """
@R.function
def twice(
    g: R.Callable((R.Tensor(("k",), "float32"),), R.Tensor(("k",), "float32")), x: R.Tensor(("k",), "float32")
) -> R.Tensor(("k",), "float32"):
    return g(g(x))

@R.function
def larger(f: R.Callable((R.Tensor(("m",), "float32"),), R.Tensor(("m",), "bool")), x: R.Tensor(("m",), "float32")):
    chosen = R.masked_select(x, f(x))
    y = R.match_cast(chosen, R.Tensor(("j",), "float32"))
    return R.sum(R.exp(y))

@R.function
def each(
    f: R.Callable((R.Tensor(("k",), "float32"),), R.Tensor(("k",), "float32")), xs: List(R.Tensor(("k",), "float32"))
) -> List(R.Tensor(("k",), "float32")):
    match xs:
        case List.Nil():
            return List.Nil()
        case List.Cons(h, t):
            y = each(f, t)
            return List.Cons(f(h), y)

@R.function
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor(("n",), "float32"), xs: List(R.Tensor(("n",), "float32"))):
    y = twice(lambda v: R.exp(v) * c, x)
    z = twice(lambda v: v + 1.0, R.concat(x, c, axis=0))
    a = larger(lambda v: v > c, x)
    b = larger(lambda v: v < c, x)
    return y, z, a, b, each(lambda v: v * c, xs)
"""
)


def test_bodies_have_the_sizes_of_their_callers() -> None:
    """Functions have names of their own for sizes, and `match_cast`s that are evaluated twice name two."""
    x, c = np.float32([0.5, 0.1, 0.3]), np.float32([0.2, 0.4, 0.1])
    made, spent = check(parse(SIZED), [x, c, rx.script.list_of(rx.script.List, [x, c])])
    assert spent >= 8
    assert not any(e.op == "make_closure" for f in made for e in f.expressions())
    assert {f.name for f in made}.isdisjoint({"twice", "larger"})
    assert len(made.main.cast_variables) == 2
    assert parse(str(made)) == made


def test_calls_that_check_their_arguments_stay() -> None:
    text = SIZED.replace('main(x: R.Tensor(("n",), "float32"), c', 'main(x: R.Tensor(ndim=1, dtype="float32"), c')
    lines = text.split("    y = twice(")[0] + "    return twice(lambda v: v + 1.0, x)\n"
    x = np.float32([0.5, 0.1, 0.3])
    made, _ = check(parse(lines), [x, x, rx.script.list_of(rx.script.List, [])])
    assert "twice" in {f.name for f in made}


def test_examples() -> None:
    known = examples()
    for name in ("rnn", "mutual", "total"):
        check(*known[name])


def test_fuel_ends_what_does_not() -> None:
    made, spent = evaluated(parse(ENDLESS))
    assert 0 < spent <= 1000
    assert float(evaluate(made, [np.float32(0.5)])) == 0.5


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_programs(seed: int) -> None:
    check(parse(Program(seed).text()), [np.float32(0.3), np.float32(-0.7), scalars([0.1, 0.9, 0.4])])
