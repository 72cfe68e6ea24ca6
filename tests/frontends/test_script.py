"""Scripted Relax: what is read of it, what surrounds it, what is said of mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import op
from relax_eg.errors import BoundsError, RelaxEgError, ScriptError
from relax_eg.ir import CALL_DPS_LIBRARY, CALL_TIR, COND, MATCH_CAST
from relax_eg.ops.interpret import evaluate

HIDDEN, SCALE = 8, 0.5
W = np.arange(32, dtype=np.float32).reshape(4, 8) / 32
CONFIG = SimpleNamespace(heads=2, bias=np.ones(8, np.float32), dtype=jnp.float16)


@rx.tensor_program
def double(X: rx.Buffer("n m"), Y: rx.Buffer("n m")):
    Y[i, j] = X[i, j] * 2  # noqa: F821


@rx.function
def layer(x: rx.Tensor("n 4")) -> rx.Tensor("n 8"):
    return op.relu(x @ W)


def run(module: rx.types.Module, *args):
    """A module as it is, not optimized, on arrays."""
    best = rx.optimize(module, rules=rx.RuleSet("none"))
    return best(*args)


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_operators_infix_constants_and_sizes() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4")):
        h = rx.op.softmax(x @ W + CONFIG.bias, axis=-1) * SCALE - 1 / 4
        h = h.reshape(x.shape[0], CONFIG.heads, HIDDEN // CONFIG.heads)
        top = h[:, 0, 1:] ** 2
        return -top, h.astype(CONFIG.dtype), rx.op.sum(h, axis=(1, 2)) / x.shape[0]

    assert rx.parse(str(main)) == main
    z = X @ W + 1
    h = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) * 0.5 - 0.25).reshape(3, 2, 4)
    for found, wanted in zip(run(main, X), (-(h[:, 0, 1:] ** 2), h.astype(np.float16), h.sum((1, 2)) / 3), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3 if wanted.dtype == np.float16 else 2e-5, atol=1e-6)


def test_other_functions_programs_and_libraries_come_along() -> None:
    @rx.function
    def main(x: rx.Tensor(("n", 4), "f32")):
        n = rx.script.sym_var()
        with rx.dataflow():
            h = rx.call_tir(double, [layer(x)], rx.Tensor((n, HIDDEN)))
            y = rx.call_dps_library("my.norm", (h,), rx.Tensor("n 8"), attrs={"eps": 1e-5})
        return y

    assert [f.name for f in main] == ["main", "layer"]
    calls = [e.op for e in main.main.expressions() if e.op.startswith("call_")]
    assert calls == [CALL_TIR, CALL_DPS_LIBRARY]
    assert rx.parse(str(main)) == main


def test_what_is_called_is_computed() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4")):
        with rx.dataflow():
            y = rx.call_tir(double, (layer(x),))
            rx.script.output(y)
        return y

    wanted = 2 * np.maximum(X @ W, 0)
    np.testing.assert_allclose(evaluate(main, [X]), wanted, rtol=1e-5)
    np.testing.assert_allclose(run(main, X), wanted, rtol=1e-5)
    np.testing.assert_allclose(rx.optimize(layer, at={"n": 64})(X), wanted / 2, rtol=1e-5)


def test_words_are_read_whatever_stands_before_them() -> None:
    from relax_eg import script
    from relax_eg.script import output

    @rx.function
    def main(x: rx.Tensor("n 4")):
        m = script.sym_var()
        with rx.dataflow():
            y = rx.match_cast(x, rx.Tensor((m, 4), "float32"))
            z = rx.op.reshape(y, (4, m))
            output(z)
        match script.Option.Some(z):
            case rx.script.Option.Some(found):
                return found
            case rx.script.Option.Nothing():
                return z

    assert rx.parse(str(main)) == main
    np.testing.assert_allclose(run(main, X), X.reshape(4, 3))


def test_the_error_about_an_old_name_in_a_script_says_the_new_one() -> None:
    says = r"`rx.List.Nil` is not there: .* no attribute 'List'; it is relax_eg.script.List now"
    with pytest.raises(ScriptError, match=says):

        @rx.function
        def main(x: rx.Tensor("n 4")):
            match rx.List.Nil():
                case _:
                    return x


def test_names_may_be_bound_again_and_fields_unpacked() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4")):
        with rx.dataflow():
            a, b = rx.op.split(x, 2, axis=1)
            a = a + b
            a *= 3
        x = a - x[:, :2]
        return x

    assert rx.parse(str(main)) == main
    np.testing.assert_allclose(run(main, X), 3 * (X[:, :2] + X[:, 2:]) - X[:, :2], rtol=1e-5)


def test_if_joins_what_it_binds_again() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4")):
        y = x + 1
        if rx.op.sum(x) > 0:
            y = y * 2
            z = y
        else:
            z = x
        if rx.op.sum(x) < 0:
            z = z - 5
        return y, z

    assert rx.parse(str(main)) == main
    assert sum(e.op == COND for e in main.main.expressions()) == 2
    for x in (X + 1, X - 1):
        y = (x + 1) * 2 if x.sum() > 0 else x + 1
        z = y if x.sum() > 0 else x - 5
        for found, wanted in zip(run(main, x), (y, z), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_match_cast_names_sizes_that_depend_on_values() -> None:
    @rx.function
    def main(x: rx.Tensor("n @ int32")):
        u = rx.op.unique(x)
        v = rx.match_cast(u, rx.Tensor(("m",), "int32"))
        return v + v.shape[0]

    assert any(e.op == MATCH_CAST for e in main.main.expressions())
    assert rx.parse(str(main)) == main
    np.testing.assert_array_equal(run(main, np.array([3, 1, 3], np.int32)), [3, 5])


def test_assumptions_are_checked_at_calls() -> None:
    @rx.function(assume="n % 8 == 0")
    def main(x: rx.Tensor("n")):
        return x + 1

    assert main.main.assume == ("n % 8 == 0",)
    with pytest.raises(BoundsError, match="n % 8"):
        rx.optimize(main)(np.zeros(9, np.float32))


def test_functions_of_one_name_are_kept_apart() -> None:
    def made(k: int) -> rx.types.Module:
        @rx.function
        def step(x: rx.Tensor("n")):
            return x * k

        @rx.function
        def twice(x: rx.Tensor("n")):
            return step(step(x))

        return twice

    two, three = made(2), made(3)

    @rx.function
    def main(x: rx.Tensor("n")):
        return two(x), three(x), two(x)

    assert [f.name for f in main] == ["main", "twice", "step", "twice1", "step1"]
    x = np.ones(2, np.float32)
    assert [float(y[0]) for y in run(main, x)] == [4, 9, 4]


def test_lines_of_the_file_are_kept() -> None:
    @rx.function
    def main(x: rx.Tensor("n 4")):
        h = rx.op.exp(x) + 1
        return h * 2

    text = Path(__file__).read_text().splitlines()
    line = 1 + text.index("        h = rx.op.exp(x) + 1")
    told = {e.op: str(origin) for e, origin in main.main.origins.items()}
    name = Path(__file__).name
    assert told == {"exp": f"{name}:{line}", "add": f"{name}:{line}", "multiply": f"{name}:{line + 1}"}


def test_text_is_script_with_another_prefix() -> None:
    text = '@R.function\ndef main(x: R.Tensor("n 4")):\n    y = R.op.sum(x[:, 1:], axis=-1)\n    return y * 2\n'
    module = rx.parse(text)
    np.testing.assert_allclose(run(module, X), X[:, 1:].sum(-1) * 2, rtol=1e-5)


def helper(x):
    return x


BAD = [
    ("y = jnp.exp(x)", "`jnp.exp` is a function of Python, which is not run", "functions under @rx.function"),
    ("y = helper(x)", "`helper` is a function of Python, which is not run", "functions under @rx.function"),
    ("y = rx.op.softmx(x)", "there is no operator function R.op.softmx; did you mean `softmax`", "`relax_eg.op`"),
    ("y = rx.op.sum(x, axes=1)", "R.op.sum: got an unexpected keyword argument 'axes'", "axis=None, keepdims=False)"),
    ("y = rx.op.sum(x, axis=2)", "sum: axis 2 does not exist at rank 2; axes are -2 to 1", "R.op.sum"),
    ("y = x @ x", "sizes 4 and n cannot be shown equal", "R.match_cast(value, annotation) before"),
    ("y = z + 1", "`z` is not defined", "a parameter, an earlier binding or a function of the module"),
    ("for i in range(3):\n        y = x", "loops are not read as Python has them", "a function that calls itself"),
    ("x[0] = 1", "this line binds no name", "`name = expression`"),
    ("y = x.relu()", "a value has no method `relu`", "squeeze, sum, swapaxes, transpose; an operator R.name"),
    ("y = x.shapes", "a value has no attribute `shapes`; did you mean `shape`", "T, dtype, ndim, shape"),
    ("y = x > 0 and x < 1", "`and` and `or` take truth values of Python", "a & b, a | b of bool tensors"),
    ("y = x if x > 0 else x", "the condition is R.Tensor((\"n\", 4), dtype=\"bool\")", "a bool scalar"),
    ("y: rx.Tensor('n 5') = x + 1", "the name is declared R.Tensor((\"n\", 5)", "R.match_cast"),
    ("y = rx.call_tir(double, [x, x])", "takes 1 arguments", "what double takes and fills"),
    ("y = rx.call_tir(rx.op.relu, [x])", "no tensor program", "R.tensor_program"),
    ("y = x[0, 0, 0]", "3 indices for rank 2", "R.op.getitem"),
    ("y = n", "`n` is not defined", ""),
    ("y = 1 < x < 2", "this comparison has no operator", "== != of two values"),
    ("pass", "`y` is not defined", ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "accepted"), BAD, ids=[b[0][:24] for b in BAD])
def test_errors_name_file_line_and_what_would_do(line: str, problem: str, accepted: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import jax.numpy as jnp\nimport relax_eg as rx\nfrom tests_of_scripts import double, helper\n\n"
        f"@rx.function\ndef main(x: rx.Tensor('n 4')):\n    {line}\n    return y\n"
    )
    with pytest.raises(ScriptError) as caught:
        _load(path)
    said = str(caught.value)
    assert re.match(rf"main \({re.escape(str(path))}:[78]:\d+\): ", said), said
    assert problem in said and accepted in said.partition("\n  accepted: ")[2], said


def _load(path: Path) -> None:
    import sys

    sys.modules["tests_of_scripts"] = SimpleNamespace(double=double, helper=helper)  # type: ignore[assignment]
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "bad"})
    finally:
        del sys.modules["tests_of_scripts"]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ScriptError, match="got a int\n  accepted: a function, whose text is read"):
        rx.function(3)  # type: ignore[call-overload]
    with pytest.raises(ScriptError, match="a lambda"):
        rx.function(lambda x: x)
    with pytest.raises(ScriptError, match=r"has no annotation\n.*\n.*\n  accepted: parameters such as"):

        @rx.function
        def main(x):
            return x

    with pytest.raises(ScriptError, match="`dataflow` has a meaning only where it is read"):
        rx.dataflow()
    with pytest.raises(RelaxEgError, match="its text is not at hand"):
        exec("@rx.function\ndef f(x: rx.Tensor('n')):\n    return x\n", {"rx": rx})


def test_shapes_are_values_of_operators_as_in_the_paper() -> None:
    @rx.function
    def main(x: rx.Tensor(("n", 2, 2), "float32")) -> rx.Tensor(("n * 4",), "float32"):
        n = rx.script.sym_var()
        with rx.dataflow():
            s = rx.script.shape(n, 4)
            lv0 = rx.op.reshape(x, s)
            lv1 = rx.op.reshape(lv0 + rx.op.broadcast_to(1.0, s) + rx.op.full(rx.script.shape(n, 4), 2.0), (n * 4,))
        return rx.match_cast(lv1, rx.Tensor((n * 4,), "float32"))

    x = X.reshape(3, 2, 2)
    np.testing.assert_allclose(run(main, x), x.reshape(-1) + 3, rtol=1e-6)
    with pytest.raises(ScriptError, match="is not iterable; index or slice it"):

        @rx.function
        def unknown(x: rx.Tensor("n"), s: rx.Shape(ndim=1)):
            return rx.op.broadcast_to(x, s)


def test_tuples_are_annotated_as_they_are_printed() -> None:
    one = rx.Tensor("n")
    assert rx.Tuple(one, one) == rx.Tuple((one, one)) == rx.Tuple([one, one]) and rx.Tuple(one) == rx.Tuple((one,))
    assert hash(rx.Tuple(one, one)) == hash(rx.Tuple((one, one))) and rx.Tuple() == rx.Tuple(())
    with pytest.raises(RelaxEgError, match="is no annotation; accepted: Tensor, Shape, Tuple"):
        rx.Tuple(one, 3)

    @rx.function
    def main(t: rx.Tuple(rx.Tensor("n"), rx.Tensor("n"))):
        a, b = t
        return a + b

    np.testing.assert_allclose(run(main, (X[0], X[1])), X[0] + X[1], rtol=1e-6)
