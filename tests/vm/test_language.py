"""Functions as values, recursion, data types, references: read, printed, checked, run by the interpreter and the
machine, saved and loaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend.calls.executables import executables
from relax_eg.backend.steps import Runner
from relax_eg.errors import ModuleTextError, OperatorError, ShapeError, SpecError, WellFormedError
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ir.annotations import DataValue
from relax_eg.ir.data import data_type, items_of
from relax_eg.ir.module import Block, Function, Module
from relax_eg.ir.steps import general_functions
from relax_eg.ir.wellformed import check
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate, step_limit
from relax_eg.ops.text import parse
from relax_eg.rules.checking.check import without_checks
from relax_eg.shapes import Scope
from relax_eg.vm.instructions import CallFunction, CallValue
from tests.vm.language_programs import (
    HEAD,
    HIGHER_ORDER,
    MANDELBROT,
    MUTUAL,
    SCALAR,
    TOTAL,
    examples,
    scalars,
)

EXAMPLES = examples()


def runner(module: rx.types.Module) -> Runner:
    """Returns the machine of a module, without a search."""
    formed = with_dataflow_blocks(deduce_module(module))
    return Runner(formed, Scope(), executables({}, 64))


def plain(value: Any) -> Any:
    """Returns a value with tuples in place of data, and numpy arrays."""
    if isinstance(value, DataValue):
        return (value.constructor, *map(plain, value.fields))
    return tuple(map(plain, value)) if isinstance(value, tuple) else np.asarray(value)


def assert_alike(got: Any, wanted: Any) -> None:
    ours, theirs = jax.tree_util.tree_flatten(plain(got)), jax.tree_util.tree_flatten(plain(wanted))
    assert ours[1] == theirs[1]
    for x, y in zip(ours[0], theirs[0], strict=True):
        if isinstance(y, str):
            assert x == y
        else:
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


GREEDY = """
@R.function
def decode(
    tokens: R.Tensor(ndim=1, dtype="int32"), w: R.Tensor((8, 8), "float32"), left: R.Tensor((), "int32")
) -> R.Tensor(ndim=1, dtype="int32"):
    if left == 0:
        return tokens
    row = R.op.take(w, R.op.sum(tokens) % 8, 0)
    following = R.op.reshape(R.op.argmax(row), (1,))
    more = R.concat(tokens, following, axis=0)
    return decode(more, w, left - 1)

@R.function
def main(tokens: R.Tensor(ndim=1, dtype="int32"), w: R.Tensor((8, 8), "float32"), steps: R.Tensor((), "int32")):
    return decode(tokens, w, steps)
"""

# --- text, interpreter, machine ---


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    module, args = EXAMPLES[name]
    assert parse(str(module)) == module
    assert pickle.loads(pickle.dumps(module)) == module
    assert_alike(
        runner(module).run([jax.numpy.asarray(a) if hasattr(a, "dtype") else a for a in args]), evaluate(module, args)
    )


def test_greedy_decoding_over_tokens_that_grow() -> None:
    module = parse(GREEDY)
    w = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    tokens = np.array([3, 1], np.int32)
    wanted = list(tokens)
    for _ in range(4):
        wanted.append(int(w[sum(wanted) % 8].argmax()))
    args = [tokens, w, np.int32(4)]
    np.testing.assert_array_equal(evaluate(module, args), wanted)
    np.testing.assert_array_equal(runner(module).run([jax.numpy.asarray(a) for a in args]), wanted)


def test_optimized_saved_and_loaded(tmp_path: Path) -> None:
    module, args = EXAMPLES["higher order"]
    with without_checks():
        best = rx.optimize(module)
    wanted = evaluate(module, args)
    assert_alike(best(*args), wanted)
    path = tmp_path / "m.rxe"
    best.save(path)
    assert_alike(rx.load(path)(*args), wanted)
    command = f"""
import sys
from relax_eg.run import main
assert main([{str(path)!r}, '{{"Cons": [3, {{"Nil": []}}]}}', "2.0", "--profile", "--trace"]) == 0
searching = {{"egglog", "z3", "relax_eg.egraph", "relax_eg.rules", "relax_eg.explain", "relax_eg.frontends"}}
assert not searching & set(sys.modules), "the search is imported"
"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    traced, _, rest = ran.stdout.partition("(Cons(8.0, Nil), ")
    assert "instruction" in rest and "map1:" in rest and "-> float32[]" in rest
    assert traced.splitlines()[0].startswith("main:0 ") and "callfunction function=" in traced


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from relax_eg.run import main

    with without_checks():
        rx.optimize(parse(TOTAL)).save(tmp_path / "m.rxe")
    for given, said in (
        ([], "takes 1 arguments, got 0\n  accepted: xs: List("),
        (['{"Kons": []}'], 'accepted: {"Nil": [0 fields]}, {"Cons": [2 fields]}'),
        (["["], "is no JSON"),
        (['{"Cons": ["x", {"Nil": []}]}'], "argument `xs.Cons[0]` is no R.Tensor"),
    ):
        assert main([str(tmp_path / "m.rxe"), *given]) == 1
        assert said in capsys.readouterr().err


# --- depth ---


def test_deep_recursion() -> None:
    deep = 100_000
    even = runner(parse(MUTUAL))
    calls = [
        i for name in ("even", "odd") for i in even.compiler.code(name).instructions if isinstance(i, CallFunction)
    ]
    assert calls and all(c.is_tail for c in calls)
    xs = rx.script.list_of(rx.script.List, [jax.numpy.float32(1)] * deep)
    total = runner(parse(TOTAL.replace("h + main(t)", "main(t)")))
    assert float(total.run([xs])) == 0.0
    stacked = parse(
        HEAD
        + f"""
@R.function
def main(xs: List({SCALAR})) -> List({SCALAR}):
    match xs:
        case List.Nil():
            return xs
        case List.Cons(h, t):
            rest = main(t)
            return List.Cons(h, rest)
"""
    )
    assert len(items_of(runner(stacked).run([xs]))) == deep
    assert len(items_of(evaluate(stacked, [rx.script.list_of(rx.script.List, [np.float32(1)] * 20_000)]))) == 20_000


def test_recursion_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relax_eg.vm.machine.FRAMES", 1000)
    head = f"@R.function\ndef main(x: {SCALAR}) -> {SCALAR}:\n"
    module = parse(head + "    if x < 0:\n        return x\n    y = main(x)\n    return y + 1.0\n")
    with pytest.raises(OperatorError, match="main\\(\\): functions call one another 1000 deep\n  accepted: recursion"):
        runner(module).run([jax.numpy.float32(1)])
    with step_limit(500), pytest.raises(OperatorError, match="loops and calls make more steps than are evaluated"):
        evaluate(module, [np.float32(1)])
    wanted = r"function `main`: no call of it ends, because it calls main\(\), .*\n  accepted: an `if` or a `match`"
    with pytest.raises(WellFormedError, match=wanted):
        parse(head + "    return main(x + 1.0)\n")
    with pytest.raises(WellFormedError, match="function `main`: no call of it ends, because it calls main_"):
        parse(head + "    if x < 0:\n        return main(x)\n    return main(x + 1.0)\n")


def test_calls_of_values_that_are_last_steps() -> None:
    machine = runner(parse(HIGHER_ORDER))
    assert [i.is_tail for i in machine.compiler.code("compose_lambda").instructions if isinstance(i, CallValue)] == [
        False,
        True,
    ]
    assert all(i.is_tail for i in machine.compiler.code("foldl").instructions if isinstance(i, CallFunction))


# --- scripts ---

List = rx.script.List
F = rx.Tensor((), "float32")
A = rx.script.TypeVar("a")


@rx.function
def reverse(xs: List(A), done: List(A)) -> List(A):  # type: ignore[reportInvalidTypeForm]
    match xs:
        case List.Nil():
            return done
        case List.Cons(h, t):
            return reverse(t, List.Cons(h, done))


@rx.function
def pairs(xs: List(F), k: F):  # type: ignore[reportInvalidTypeForm]
    def each(f: rx.Callable((F,), F), ys: List(F)) -> List(F):  # type: ignore[reportInvalidTypeForm]
        match ys:
            case List.Cons(h, List.Cons(g, t)):
                return List.Cons(f(h) + g, each(f, t))
            case List.Cons(h, List.Nil()):
                return List.Cons(f(h), List.Nil())
            case _:
                return ys

    r = rx.script.new_ref(k)
    rx.script.write_ref(r, rx.script.read_ref(r) + 1.0)
    return reverse(each(lambda x: x * k, xs), List.Nil()), rx.script.read_ref(r)


GUARDED = (
    HEAD
    + f"""
@R.function
def main(xs: List({SCALAR}), n: R.Tensor((), "int32"), k: {SCALAR}) -> {SCALAR}:
    match n:
        case 0 | 1:
            return k
        case 7 if main(xs, n - 1, k) > 1.0:
            return 70.0
        case _:
            match xs:
                case List.Cons(h, List.Cons(2.0, t)) if h > k:
                    return h
                case List.Cons(h, t) if h > k:
                    return main(t, n, k) + h
                case List.Cons(-1.0, _):
                    return -10.0
                case List.Cons(h, List.Nil()):
                    return h * 100.0
                case _:
                    return 5.0
"""
)


@pytest.mark.parametrize(
    ("xs", "n", "wanted"),
    [
        ([9, 2, 3], 0, 1.0),
        ([9, 2, 3], 1, 1.0),
        ([9, 2, 3], 5, 9.0),
        ([9, 3], 5, 17.0),
        ([9, -1, 0], 5, -1.0),
        ([0.5], 5, 50.0),
        ([], 5, 5.0),
        ([9, 2], 7, 70.0),
        ([-1], 7, -10.0),
    ],
)
def test_conditions_and_numbers_of_cases(xs: list[float], n: int, wanted: float) -> None:
    module = parse(GUARDED)
    assert parse(str(module)) == module
    args = [scalars(xs), np.int32(n), np.float32(1)]
    assert float(evaluate(module, args)) == wanted
    arrays = rx.script.list_of(List, [jax.numpy.float32(x) for x in xs]), jax.numpy.int32(n), jax.numpy.float32(1)
    assert float(runner(module).run(arrays)) == wanted


def test_a_script() -> None:
    assert parse(str(pairs)) == pairs
    xs = [1.0, 2.0, 3.0, 4.0, 5.0]
    got, cell = runner(pairs).run([rx.script.list_of(List, map(jax.numpy.float32, xs)), jax.numpy.float32(10)])
    assert [float(x) for x in items_of(got)] == [50.0, 34.0, 12.0] and float(cell) == 11.0


# --- what is refused ---


def body(lines: str) -> str:
    return (
        HEAD
        + f"""
@R.function
def total(xs: List({SCALAR})) -> {SCALAR}:
    return 1.0

@R.function
def main(xs: List({SCALAR}), k: {SCALAR}):
"""
        + "".join(f"    {line}\n" for line in lines.split("\n"))
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "match xs:\n    case List.Cons(h, List.Nil()):\n        return h\n    case List.Nil():\n        return 0.0",
            "line 13: no case of this `match` takes List.Cons(_, List.Cons(_, _))",
        ),
        ("match xs:\n    case List.Nil():\n        return 0.0", "no case of this `match` takes List.Cons(_, _)"),
        (
            "match k:\n    case List.Nil():\n        return 0.0\n    case _:\n        return 1.0",
            '`k` is R.Tensor((), dtype="float32"), and List.Nil makes a List',
        ),
        (
            "match xs:\n    case List.Cons(h):\n        return h\n    case _:\n        return k",
            "List.Cons has 2 fields, this pattern has 1",
        ),
        (
            "match xs:\n    case List.Cons(h, t) if h > k:\n        return h\n    case List.Nil():\n        return k",
            "no case of this `match` takes List.Cons(_, _)\n",
        ),
        ("match k:\n    case 1.0:\n        return k", "no case of this `match` takes _\n"),
        (
            "match k:\n    case None:\n        return k\n    case _:\n        return k",
            "this pattern has no meaning here",
        ),
        ("return List.Cons(k)", "List.Cons has 2 fields, given: 1"),
        ("return List.Kons(k, xs)", "`List` has no constructor `Kons`; did you mean `Cons`?"),
        ("return lambda x: x", "the parameters of this lambda have no annotations"),
        (
            "return List.Cons(k, List.Cons((k, k), List.Nil()))",
            'List.Cons: the type `a` is R.Tensor((), dtype="float32") and also R.Tuple(',
        ),
        (
            'return total(List.Cons(R.const(1, "int32"), List.Nil()))',
            'total: argument 0 should be List(R.Tensor((), dtype="float32")), got List(R.Tensor((), dtype="int32"))',
        ),
        ("r = R.new_ref(k)\nR.write_ref(r, xs)\nreturn k", "write_ref: List("),
        ("return R.read_ref(k)", "the first operand is R.Tensor"),
        ("if k > 0.0:\n    return k\nelse:\n    y = k", "one of its branches returns and another ends"),
        ('h: List(R.Tensor((), "int32"), 3) = xs\nreturn h', "this is not an annotation"),
        ("h: List() = xs\nreturn h", "List takes 1 annotation (a), got 0"),
    ],
)
def test_text_that_is_refused(lines: str, said: str) -> None:
    with pytest.raises(ModuleTextError) as error:
        parse(body(lines))
    assert said in str(error.value)


def test_modules_that_are_refused() -> None:
    (made,) = [b for b in parse(body("y = List.Cons(k, xs)\nreturn y")).main.blocks[0].bindings if b.name == "y"]
    f = parse(body("return k")).main
    inside = Function("main", f.params, (Block((made,)),), made.var)
    with pytest.raises(WellFormedError, match="a dataflow block has a construct\n  accepted: tensors there"):
        check(Module((inside,)))
    # Text that says so means steps.
    block = parse(body("with R.dataflow():\n    y = List.Cons(k, xs)\n    R.output(y)\nreturn y")).main.blocks[0]
    assert not block.dataflow
    with pytest.raises(WellFormedError, match="the result: a function is returned by the entry of the module"):
        parse(body("def f(x: R.Tensor((), 'float32')):\n    return x + k\nreturn f"))
    with pytest.raises(WellFormedError, match=r"the result.*: a mutable cell is returned by the entry of the module"):
        parse(body("r = R.new_ref(k)\nreturn List.Cons(r, List.Nil())"))
    cell = parse("@R.function\ndef main(r: R.Ref(R.Tensor((), 'float32'))):\n    return R.read_ref(r)\n")
    with pytest.raises(SpecError, match="`r` is a mutable cell of the module, or may contain one; only functions that"):
        rx.optimize(cell)


def test_arguments_that_are_refused() -> None:
    with without_checks():
        best = rx.optimize(parse(TOTAL))
    other = data_type("Other", Nothing=())
    for value, said in (
        (other.Nothing(), "main(): argument `xs` should be a List, got Other"),
        (np.float32(1), "main(): argument `xs` should be a List, got float32 1"),
        (rx.script.list_of(List, [np.int32(1)]), "argument `xs`.Cons[0] should be float32, got int32"),
        (rx.script.list_of(List, [np.ones(2, np.float32)]), "`xs`.Cons[0] should be () float32, got (2,) float32"),
    ):
        with pytest.raises(ShapeError) as error:
            best(value)
        assert said in str(error.value).replace("np.float32(1.0)", "1")


@pytest.mark.parametrize(
    ("head", "fields", "said"),
    [
        ("2x", {"A": ()}, "'2x' is no name of a data type"),
        ("T(a", {"A": ()}, "'T(a' is no name of a data type"),
        ("T", {}, "it has no constructor"),
        ("T(a)", {"A": ("b",)}, "T: the field 'b' is no annotation"),
    ],
)
def test_definitions_that_are_refused(head: str, fields: dict[str, Sequence[Any]], said: str) -> None:
    with pytest.raises(rx.errors.SpecError) as error:
        data_type(head, **fields)
    assert said in str(error.value)


def test_what_is_general() -> None:
    module = parse(MANDELBROT)
    assert general_functions(module) == {"main", "escape", "escape_else"}
    assert not general_functions(parse(f"@R.function\ndef main(x: {SCALAR}):\n    return x + 1.0\n"))


def test_derivatives_are_refused() -> None:
    with without_checks():
        text = TOTAL.replace("xs: List", "k: R.Tensor((), 'float32'), xs: List").replace("main(t)", "main(k, t) * k")
        best = rx.optimize(parse(text))
    xs = scalars([1, 2])
    for call in (lambda k: jax.grad(lambda y: best(y, xs))(k), lambda k: jax.jit(lambda y: best(y, xs))(k)):
        with pytest.raises(rx.errors.TraceError) as error:
            call(jax.numpy.float32(1))
        assert "main() runs in steps and is no JAX function: it recurs, or has function values" in str(error.value)
        assert "no derivatives and is no part of a jax.jit\n  accepted: a call of what optimize returned" in str(
            error.value
        )


ROSES = """
@R.data
class Forest(a):
    End = ()
    More = (Rose(a), Forest(a))

@R.data
class Pair(a):
    Two = (Forest(a), a)

@R.data
class Rose(a):
    Node = (a, Forest(a))

@R.function
def total(r: Rose(R.Tensor((), "float32"))) -> R.Tensor((), "float32"):
    match r:
        case Rose.Node(x, Forest.End()):
            return x
        case Rose.Node(x, inner):
            return x + totals(inner)

@R.function
def totals(f: Forest(R.Tensor((), "float32"))) -> R.Tensor((), "float32"):
    match f:
        case Forest.End():
            return 0.0
        case Forest.More(r, rest):
            return total(r) + totals(rest)

@R.function
def main(p: Pair(R.Tensor((), "float32"))):
    match p:
        case Pair.Two(f, x):
            grown = Forest.More(Rose.Node(x, f), f)
            return totals(grown), grown
"""


def test_types_that_mention_each_other(tmp_path: Path) -> None:
    module = parse(ROSES)
    assert parse(str(module)) == module and pickle.loads(pickle.dumps(module)) == module
    forest, pair, rose = (next(d for d in module.data_types if d.name == n) for n in ("Forest", "Pair", "Rose"))
    made = rx.script.data_types({
        "Forest(a)": {"End": (), "More": ("Rose(a)", "Forest(a)")}, "Rose(a)": {"Node": ("a", "Forest(a)")}
    })  # fmt: skip
    assert made == (forest, rose)
    one, two = np.float32(1), np.float32(2)
    leaf = rose.Node(one, forest.End())
    args = [
        pair.Two(forest.More(leaf, forest.More(rose.Node(two, forest.More(leaf, forest.End())), forest.End())), two)
    ]
    wanted = evaluate(module, args)
    assert float(wanted[0]) == 10.0
    with without_checks():
        best = rx.optimize(module)
    assert_alike(best(*args), wanted)
    best.save(tmp_path / "m.rxe")
    again = rx.load(tmp_path / "m.rxe")
    assert again.module == best.module
    assert_alike(again(*args), wanted)
    with pytest.raises(ShapeError, match=r"argument `p`.Two\[0\] should be a Forest, got Rose"):
        best(pair.Two(leaf, two))
    with pytest.raises(ModuleTextError, match=r"no case of this `match` takes Forest\.More"):
        parse(ROSES.replace("        case Forest.More(r, rest):\n            return total(r) + totals(rest)\n", ""))
    with pytest.raises(rx.errors.SpecError, match="Rose: the field 'Forrest' is no annotation"):
        rx.script.data_types({"Rose": {"Node": ("Forrest",)}, "Forest": {"End": ("Rose",)}})


def test_a_script_of_types_that_mention_each_other() -> None:
    assert parse(str(evens)) == evens
    xs = Odd.Odd(np.float32(1), Even.Even(np.float32(2), Odd.Nothing()))
    assert float(evaluate(evens, [xs])) == 3.0


Even, Odd = rx.script.data_types({
    "Even(a)": {"Empty": (), "Even": ("a", "Odd(a)")}, "Odd(a)": {"Nothing": (), "Odd": ("a", "Even(a)")}
})  # fmt: skip


@rx.function
def evens(xs: Odd(F)) -> F:  # type: ignore[reportInvalidTypeForm]
    match xs:
        case Odd.Odd(x, Even.Even(y, rest)):
            return x + y + evens(rest)
        case _:
            return 0.0
