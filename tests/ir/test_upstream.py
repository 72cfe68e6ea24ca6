"""Relax's own text: each construct reads, prints, reads back and has a value; calls of the host; errors by text."""

from __future__ import annotations

import numpy as np
import pytest

import relax_eg as rx
from benchmarks.script import register, text_of
from benchmarks.script_constructs import CONSTRUCTS
from relax_eg.errors import HostError, ModuleTextError, OptionError
from relax_eg.ir.expr import CALL_TIR
from relax_eg.ir.host_calls import is_host_call
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.text import parse

GROUPS = list(dict.fromkeys(c.group for c in CONSTRUCTS))
X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def program(body: str, more: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f'{more}\n@R.function\ndef main(x: R.Tensor(("n", 8), "float32")):\n    n = T.int64()\n{lines}'


@pytest.mark.parametrize("group", GROUPS)
def test_constructs(group: str) -> None:
    for c in CONSTRUCTS:
        if c.group == group:
            module = parse(text_of([c], "plain"))
            assert parse(str(module)) == module, c.name
            assert evaluate(module, [X]).shape == X.shape, c.name


# What constructs give, by numpy.
VALUES = {
    "R.variance": lambda x: x + x.var(1, keepdims=True),
    "R.std": lambda x: x + x.std(1, keepdims=True),
    "R.floor_mod": lambda x: np.mod(np.abs(x), np.float32(1.5)),
    "R.gather_elements": lambda x: np.sort(x, 1),
    "R.einsum": lambda x: x @ (x.T @ x),
    "R.repeat": lambda x: x,
    "R.split": lambda x: np.concatenate([x[:, 4:], x[:, :4]], 1),
    "R.nn.layer_norm": lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5),
    "R.nn.relu6": lambda x: np.clip(x, 0, 6),
    "R.nn.leakyrelu": lambda x: np.where(x > 0, x, x * np.float32(0.01)),
    "R.nn.softplus": lambda x: np.log1p(np.exp(x)),
    "R.nn.cross_entropy_with_logits": lambda x: x - (x * x).sum() / 2,
    "R.call_inplace_packed": lambda x: np.exp(x) * 2,
    "R.call_tir_inplace": lambda x: np.exp(x) + 1,
    "T.axis.reduce and T.init": lambda x: x + x.sum(1, keepdims=True),
    "a maximum": lambda x: np.exp(x - x.max(1, keepdims=True)),
    "a product of matrices": lambda x: x @ (x.T @ x),
    "a fused loop": np.exp,
    "split loops": np.exp,
    "R.shape_to_tensor": lambda x: x + 10,
    "R.tensor_to_shape": lambda x: x + x.reshape(-1)[:8],
    "recursion": lambda x: np.exp(np.tanh(np.tanh(np.tanh(x)))),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    (c,) = [c for c in CONSTRUCTS if c.name == name]
    np.testing.assert_allclose(evaluate(parse(text_of([c], "plain")), [X]), VALUES[name](X), rtol=2e-5, atol=2e-6)


def test_scatter_elements_updates_and_adds() -> None:
    text = program(
        'i = R.const([[0, 2, 2], [1, 1, 7]], "int64")\n'
        'u = R.const([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")\n'
        'y = R.match_cast(x, R.Tensor((2, 8), "float32"))\n'
        'return R.scatter_elements(y, i, u, axis=1), R.scatter_elements(y, i, u, axis=1, reduction="add")'
    )
    updated, added = X.copy(), X.copy()
    for r, (places, new) in enumerate(zip([[0, 2, 2], [1, 1, 7]], [[1, 2, 3], [4, 5, 6]], strict=True)):
        for p, v in zip(places, new, strict=True):
            updated[r, p] = v
            added[r, p] += v
    found = evaluate(parse(text), [X])
    np.testing.assert_array_equal(found[0], updated)
    np.testing.assert_allclose(found[1], added, rtol=1e-6)


def test_equations_are_found_and_other_programs_are_kept() -> None:
    kinds = {c.name: parse(text_of([c], "plain")) for c in CONSTRUCTS if c.group == "tensor programs"}
    opaque = {n for n, m in kinds.items() if any(is_host_call(e) for f in m for e in f.expressions())}
    assert opaque == {
        "a program that is no index equation", "a while loop", "a store in place", "a fused loop", "split loops",
        "R.call_tir_inplace",
    }  # fmt: skip
    assert all(any(e.op == CALL_TIR for e in m.main.expressions()) for n, m in kinds.items() if n not in opaque)


def test_a_name_may_be_bound_again() -> None:
    module = parse(program("y = R.exp(x)\ny = R.tanh(y)\nx = y\nreturn x"))
    assert parse(str(module)) == module
    np.testing.assert_allclose(evaluate(module, [X]), np.tanh(np.exp(X)), rtol=1e-6)


def test_attributes_of_functions_are_kept() -> None:
    module = parse(program('R.func_attr({"Composite": "our.exp", "sizes": [1, 2], "n": None})\nreturn R.exp(x)'))
    assert dict(module.main.attributes) == {"Composite": "our.exp", "sizes": (1, 2), "n": None}
    assert parse(str(module)) == module


def test_a_name_that_is_not_registered_is_an_error_when_it_runs() -> None:
    text = program('return R.call_pure_packed("bench.nothing", x, sinfo_args=R.Tensor((n, 8), "float32"))')
    module = parse(text)
    assert parse(str(module)) == module
    with pytest.raises(HostError, match=r'no function of the host is named "bench.nothing"; registered are: .*bench'):
        evaluate(module, [X])


def test_a_result_that_differs_from_its_annotation() -> None:
    rx.script.register_function("bench.wide", lambda x: x.astype(np.float64), replace=True)
    text = program('return R.call_pure_packed("bench.wide", x, sinfo_args=R.Tensor((n, 8), "float32"))')
    with pytest.raises(HostError, match=r'"bench.wide" gives float64\[2, 8\], annotated float32 \[2, 8\]'):
        evaluate(parse(text), [X])


def test_a_function_of_the_host_that_raises() -> None:
    @rx.script.register_function("bench.fails", replace=True)
    def fails(x: np.ndarray) -> None:  # type: ignore[type-arg]
        raise ValueError("three is a crowd")

    text = program('return R.call_packed("bench.fails", x, sinfo_args=R.Tensor((n, 8), "float32"))')
    with pytest.raises(HostError, match=r'the host function "bench\.fails" raised ValueError: three is'):
        evaluate(parse(text), [X])
    assert fails.__name__ == "fails"


def test_an_assertion() -> None:
    text = program('_ = R.assert_op(R.greater(R.sum(x), R.const(1e9, "float32")), x, format="x is {}")\nreturn x')
    with pytest.raises(HostError, match="an assertion of the program failed: x is"):
        evaluate(parse(text), [X])


def test_registering() -> None:
    with pytest.raises(OptionError, match="another function has this name; replace=True is accepted"):
        rx.script.register_function("bench.exp", np.tanh)
    with pytest.raises(OptionError, match="a function is accepted"):
        rx.script.register_function("bench.number", 3)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="are this package's"):
        rx.script.register_function("relax_eg.print", np.tanh)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return R.nn.conv4d(x, x)", "there is no operator R.nn.conv4d; did you mean `R.nn.conv"),
        ('return R.nn.pad(x, pad_width=[0, 0, 1, 1], pad_mode="reflect")', "pad_mode='reflect'; constant is accepted"),
        ("return R.split(x)", "split needs attribute `sections`"),
    ],
)
def test_errors_name_the_line(body: str, message: str) -> None:
    with pytest.raises(ModuleTextError, match=message):
        parse(program(body))


def test_a_statement_without_meaning_in_a_prim_func() -> None:
    lines = ["A = T.match_buffer(a, (8,))", "with open('x') as g:", "    A[0] = 1.0"]
    more = "@T.prim_func\ndef f(a: T.handle):\n" + "".join(f"    {line}\n" for line in lines)
    with pytest.raises(ModuleTextError, match="is no statement of a tensor program"):
        parse(program("return x", more))
