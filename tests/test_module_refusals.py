"""Modules that are no programs, and operators as Relax spells them: an error in our words that says the line and what
is accepted, or the meaning that Relax gives."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir, op
from relax_eg.errors import (
    LibraryError,
    ModuleTextError,
    OperatorError,
    RelaxEgError,
    SpecError,
    WellFormedError,
)
from relax_eg.ir.calls import reaching_cycles
from relax_eg.ops.record import TABLE
from relax_eg.rules.checking.check import without_checks

VECTOR = 'R.Tensor(("n",), "float32")'


# --- recursion ---


def test_a_function_that_runs_itself_needs_its_annotation() -> None:
    with pytest.raises(ModuleTextError, match="line 2: what `main` returns is not known yet"):
        rx.parse(f"def main(x: {VECTOR}):\n    y = main(x)\n    return y\n")


def test_recursion_is_found_in_deep_chains() -> None:
    chain = {str(i): [str(i + 1), str(i + 2)] for i in range(30_000)}
    assert reaching_cycles(chain) == set()
    assert reaching_cycles({**chain, "29999": ["29990"]}) == {str(i) for i in range(30_000)}
    assert reaching_cycles({"a": ["b"], "b": ["b", "c"], "c": []}) == {"a", "b"}


# --- functions as values ---

CHOSEN = f"""
def f(x: {VECTOR}) -> {VECTOR}:
    return R.exp(x)
def g(x: {VECTOR}) -> {VECTOR}:
    return R.cos(x)
def main(x: {VECTOR}, c: R.Tensor((), "bool")):
    BODY
"""
BY_IF = "if c:\n        h = f\n    else:\n        h = g\n    return h(x)"


@pytest.mark.parametrize(
    "body", ["return f", "return (x, (x, f))", "h: R.Callable((R.Object,), R.Object) = f\n    return h"]
)
def test_functions_that_the_entry_returns(body: str) -> None:
    said = "the result: a function is returned by the entry of the module\n  accepted: tensors, shapes, data"
    with pytest.raises(WellFormedError, match=said):
        rx.optimize(rx.parse(CHOSEN.replace("BODY", body)))


def test_functions_that_are_called_something_else() -> None:
    hidden = CHOSEN.replace("BODY", "h: R.Object = f\n    return h")
    with pytest.raises(WellFormedError, match="function `main`, the result: a function is returned"):
        rx.optimize(rx.parse(hidden))
    best = rx.optimize(rx.parse(CHOSEN.replace("BODY", "h = f\n    return h(x)")))
    np.testing.assert_allclose(best(np.ones(3, np.float32), True), np.exp(np.ones(3)), rtol=1e-6)
    best = rx.optimize(rx.parse(CHOSEN.replace("BODY", BY_IF)))
    np.testing.assert_allclose(best(np.ones(3, np.float32), False), np.cos(np.ones(3)), rtol=1e-6)


# --- modules without functions ---


def test_a_text_of_tensor_programs_only() -> None:
    text = """
@R.tensor_program
def scale(X: T.Buffer(("n",), "float32"), Y: T.Buffer(("n",), "float32")):
    for i in T.grid(n):
        Y[i] = X[i] * 2.0
"""
    with pytest.raises(ModuleTextError, match="line 3: the text has no function that calls the tensor program `scale`"):
        rx.parse(text)


def test_a_module_without_functions() -> None:
    for run in (rx.optimize, lambda module: module.main, rx.plan_memory):
        with pytest.raises(WellFormedError, match="the module has no functions\n  accepted: a module with a function"):
            run(ir.Module(()))


# --- annotations ---


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        ("R.Tensor((5,))", "x", "axis 0: sizes 5 and 3 differ"),
        ('R.Tensor((3,), "int32")', "x", "dtypes int32 and float32 differ"),
        ('R.Tensor((3,), "float32")', "y", 'its value is R.Tensor(("n",), dtype="float32")'),
        ("R.Tensor((5,))", 'R.const([1.0, 2.0], "float32")', "axis 0: sizes 5 and 2 differ"),
        ("R.Tensor((5,))", "3.0", "ranks 1 and 0 differ"),
        ("R.Shape((4, 5))", "R.shape((4, 6))", "axis 1: sizes 5 and 6 differ"),
        ("R.Tuple(R.Tensor((3,)), R.Tensor((4,)))", "(x, x)", "field 1: axis 0: sizes 4 and 3 differ"),
        ("R.Tuple(R.Tensor((3,)), R.Tensor((4,)))", "R.tuple(x, x)", "field 1: axis 0: sizes 4 and 3 differ"),
        ("R.Tensor((4,))", "(x, y)[0]", "axis 0: sizes 4 and 3 differ"),
        ("R.Tensor((4,))", "-x", "axis 0: sizes 4 and 3 differ"),
        ("R.Tensor((4,))", "x + x", "axis 0: sizes 4 and 3 differ"),
    ],
)
@pytest.mark.parametrize("dataflow", [False, True])
def test_an_annotation_that_does_not_follow(declared: str, value: str, said: str, dataflow: bool) -> None:
    line = f"z: {declared} = {value}"
    inner = f"    with R.dataflow():\n        {line}\n        R.output(z)\n" if dataflow else f"    {line}\n"
    text = f'def main(x: R.Tensor((3,), "float32"), y: {VECTOR}):\n{inner}    return z\n'
    with pytest.raises(ModuleTextError) as error:
        rx.parse(text)
    assert f"line {2 + dataflow}: the name is declared " in str(error.value)
    assert said in str(error.value) and "or R.match_cast(value, annotation)" in str(error.value)


def test_an_annotation_that_says_less() -> None:
    text = (
        'def main(x: R.Tensor((3,), "float32")):\n    z: R.Tensor(ndim=1) = x\n    u: R.Object = (z, x)\n    return u\n'
    )
    module = rx.parse(text)
    assert rx.parse(str(module)) == module


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("R.Tensor(ndim=-2)", "Tensor(ndim=-2): a rank is a whole number >= 0, or -1 where it is unknown"),
        ("R.Shape(ndim=-2)", "Shape(ndim=-2): a rank is a whole number >= 0, or -1 where it is unknown"),
        ("R.Tensor((-3,))", "the size -3 is negative; sizes are at least 0"),
        ("R.Shape((4, -1))", "the size -1 is negative; sizes are at least 0"),
    ],
)
def test_ranks_and_sizes_that_are_none(annotation: str, said: str) -> None:
    with pytest.raises(ModuleTextError) as error:
        rx.parse(f"def main(x: {annotation}):\n    return x\n")
    assert said in str(error.value)


def test_a_rank_that_is_unknown_is_spelled_as_in_relax() -> None:
    assert rx.Tensor(ndim=-1, dtype="float32") == rx.Tensor(dtype="float32")
    with pytest.raises(SpecError, match=r"Tensor\(ndim='a'\): a rank is a whole number"):
        rx.Tensor(ndim="a")  # type: ignore[reportArgumentType]


# --- attributes as Relax spells them ---

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SPELLINGS = [
    ("permute_dims(x)", X.T),
    ("permute_dims(x, axes=None)", X.T),
    ("permute_dims(x, axes=(-1, 0))", X.T),
    ("sum(x)", X.sum()),
    ("sum(x, axis=None, keepdims=True)", X.sum(keepdims=True)),
    ("sum(x, axis=-1)", X.sum(-1)),
    ("max(x, axes=1)", X.max(1)),
    ("mean(x, axis=[0, -1])", X.mean()),
    ("expand_dims(x, axis=-1)", X[..., None]),
    ("expand_dims(x, axis=(0, 1))", X[None, None]),
    ("squeeze(R.reshape(x, shape=(1, 6, 1)))", X.reshape(6)),
    ("squeeze(R.reshape(x, shape=(1, 6, 1)), axis=0)", X.reshape(6, 1)),
    ("flip(x, axis=1)", X[:, ::-1]),
    ("flip(x)", X[::-1, ::-1]),
    ("softmax(x)", np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    ("softmax(x, axis=-2)", np.exp(X) / np.exp(X).sum(0)),
    ("concat(x, x)", np.concatenate([X, X])),
    ("concat(x, x, axis=-1)", np.concatenate([X, X], -1)),
    ("sort(x)", np.sort(X)),
    ("cumsum(R.reshape(x, shape=(6,)), axis=None)", X.reshape(-1).cumsum()),
    ("argmax(x, axis=-1)", X.argmax(-1)),
    ("strided_slice(x, begin=(0, 1), end=(2, 3))", X[0:2, 1:3]),
    ("split(x, sections=2)[1]", X[1:]),
]


@pytest.mark.parametrize(("spelled", "wanted"), SPELLINGS, ids=[s for s, _ in SPELLINGS])
def test_attributes_that_relax_has_defaults_for(spelled: str, wanted: Any) -> None:
    module = rx.parse(f'def main(x: R.Tensor((2, 3), "float32")):\n    y = R.{spelled}\n    return y\n')
    np.testing.assert_allclose(rx.optimize(module)(X), wanted, rtol=1e-5)
    assert rx.parse(str(module)) == module


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("permute_dims(x, axes=(0,))", "axes has 1 entries; 2 are needed"),
        ("sum(x, axes='a')", "axes is 'a'; an axis or several are needed"),
        ("sum(x, axes=(0,), axis=1)", "both `axis` and `axes` are given"),
        ("sum(x, axes=(0, 0))", "axes (0, 0) name an axis twice"),
        ("sum(x, axes=2)", "axis 2 does not exist at rank 2"),
        ("softmax(x, axis='a')", "axis is 'a'; a whole number is needed"),
        ("argmax(x, axis=0, dtype=None)", "dtype is None; a dtype is text"),
        ("sum(x, axes=0, keepdims=3)", "keepdims is 3; True or False is accepted"),
    ],
)
def test_attributes_of_another_kind(call: str, said: str) -> None:
    with pytest.raises(ModuleTextError) as error:
        rx.parse(f'def main(x: R.Tensor((2, 3), "float32")):\n    return R.{call}\n')
    assert "line 2: " in str(error.value) and said in str(error.value)


_VALUES = ["None", "1", "-1", "'a'", "1.5", "()", "(0,)", "('a',)", "(None,)", "True", "99", "((1,),)", 'R.dim("n")']
_GOOD = {"axes": "(0,)", "axis": "0", "shape": "(3,)", "k": "(1,)", "sections": "(1,)", "dtype": "'float32'"}


def test_no_attribute_of_any_operator_raises_what_is_not_ours() -> None:
    """Each attribute of each operator with values of every kind: read, or refused by an error of ours."""
    refused = 0
    for name, operator in TABLE.items():
        count = len(operator.parameters) - operator.variadic + 2 * operator.variadic
        needed = {a.name: _GOOD.get(a.name, "(1, 1)") for a in operator.attributes}
        for attribute in operator.attributes:
            for value in _VALUES:
                given = ", ".join(["x"] * count + [f"{k}={v}" for k, v in {**needed, attribute.name: value}.items()])
                try:
                    rx.parse(f'def main(x: R.Tensor(("n", 3), "float32")):\n    return R.{name}({given})\n')
                except RelaxEgError:
                    refused += 1
    assert refused > 1000


# --- slices that do not fit ---


@pytest.mark.parametrize("options", [{"execution": "kernels"}, {"dynamic": "exact"}])
@pytest.mark.parametrize(("key", "n"), [("1:5", 2), ("4:n", 2), ("n-3:n", 2), ("3", 2), ("3:5:2", 4)])
def test_a_slice_that_does_not_fit(key: str, n: int, options: dict[str, Any]) -> None:
    """In text a slice of a symbolic size must fit: where it does not, the operator, both sizes and the function are
    named."""
    best = rx.optimize(rx.parse(f"def main(x: {VECTOR}):\n    y = x[{key}]\n    return y\n"), **options)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(best(x), eval(f"x[{key}]", {"x": x, "n": 8}))
    with pytest.raises(OperatorError, match=rf"strided_slice\(\({n},\) float32, .*: -?\d+ is more than -?\d+"):
        best(x[:n])


def test_a_slice_that_does_not_fit_names_the_users_line() -> None:
    @rx.function
    def tail(x: rx.Tensor("n")):  # type: ignore[reportInvalidTypeForm]
        return op.exp(x[4:n])  # type: ignore[reportUndefinedVariable]  # noqa: F821

    best = rx.optimize(
        tail, bounds={"n": (1, 64)}, dynamic="exact"
    )  # at 1 to 3 it has less than no elements, which cost nothing
    with pytest.raises(OperatorError, match=r"^tail\(\) \(test_module_refusals\.py:\d+\): strided_slice\(\(2,\)"):
        best(np.ones(2, np.float32))


# --- routines whose call says little of what they fill ---


@pytest.fixture
def dense() -> rx.RuleSet:
    book = rx.RuleSet("routines")

    def product(a: Any, b: Any) -> Any:
        return a @ b + 1.0

    with without_checks():
        target = lambda a, b: jnp.dot(a, b) + 1.0  # noqa: E731
        book.library("refusals.dense", shapes="a: m k, b: k n", target=target, cost=3.0)(product)
    return book


OUT = ['R.Tensor(("n", 4), "float32")', 'R.Tensor(ndim=2, dtype="float32")', "R.Tensor(ndim=2)", "R.Object"]


@pytest.mark.usefixtures("no_library_stays", "dense")
@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("execution", ["whole", "kernels"])
def test_a_routine_whose_call_says_little(out: str, execution: Any) -> None:
    call = f'R.call_dps_library("refusals.dense", (x, w), out={out})'
    params = 'x: R.Tensor(("n", 1), "float32"), w: R.Tensor((1, 4), "float32")'
    module = rx.parse(f"def main({params}):\n    y = {call}\n    return y\n")
    best = rx.optimize(module, execution=execution)
    assert best.module.main.annotation == rx.Tensor("n 4")
    np.testing.assert_allclose(best(np.ones((2, 1), np.float32), np.ones((1, 4), np.float32)), np.full((2, 4), 2.0))


@pytest.mark.usefixtures("no_library_stays", "dense")
@pytest.mark.parametrize("out", OUT[1:3])
def test_a_routine_of_operands_known_in_part(out: str) -> None:
    module = rx.parse(f"""
def main(x: {VECTOR}, w: R.Tensor((1, 4), "float32")):
    u = R.unique(x)
    v = R.expand_dims(u, axis=1)
    y = R.call_dps_library("refusals.dense", (v, w), out={out})
    z: R.Tensor(ndim=2) = R.exp(y)
    return z
""")
    got = rx.optimize(module)(np.array([0, 0, 1], np.float32), np.ones((1, 4), np.float32))
    np.testing.assert_allclose(got, np.exp([[1.0] * 4, [2.0] * 4]), rtol=1e-6)


@pytest.mark.usefixtures("no_library_stays", "dense")
def test_a_routine_that_gives_something_else_is_still_caught() -> None:
    book = rx.RuleSet("routines")

    def product(a: Any, b: Any) -> Any:
        return a @ b

    with without_checks():
        book.library("refusals.wrong", shapes="a: m k, b: k n", target=lambda a, b: (a @ b).T, cost=3.0)(product)
    call = 'R.call_dps_library("refusals.wrong", (x, x), out=R.Object)'
    best = rx.optimize(rx.parse(f'def main(x: R.Tensor((3, 3), "float32")):\n    return {call}\n'))
    with pytest.raises(LibraryError, match="does not compute its pattern"):
        best(np.arange(9, dtype=np.float32).reshape(3, 3))


def test_a_dtype_that_there_is_not() -> None:
    with pytest.raises(ModuleTextError, match=r"line 1: `flot32` is not a dtype(.|\n)*did you mean `float32`\?"):
        rx.parse('def main(x: R.Tensor(("n",), "flot32")):\n    return x\n')
    with pytest.raises(SpecError, match="`float33` is not a dtype"):
        rx.Tensor("n", "float33")
    assert rx.Tensor("n", "f16").dtype == "float16" and rx.Tensor("n", "float8_e4m3b11fnuz").dtype
