"""Printing and reading back."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from module_strategies import arrays, attributes, modules, origins, table

from relax_eg import ir
from relax_eg.errors import WellFormedError
from relax_eg.ir.origin import Origin, SourceLine, read_origin
from relax_eg.ops.interpret import evaluate
from relax_eg.ops.record import call
from relax_eg.ops.text import parse
from relax_eg.shapes import Dim

T4 = ir.Tensor("n 4")
PRINTED = """\
# relax_eg module text, version 1
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 8), dtype="float32")) -> R.Tensor(("n", 8), dtype="float32"):
        with R.dataflow():
            lv: R.Tensor(("n", 8), dtype="float32") = R.matmul(x, w)  # model.py:31
            gv: R.Tensor(("n", 8), dtype="float32") = R.exp(lv)
            R.output(gv)
        return gv

    @R.function
    def effects(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 8), dtype="float32")) -> R.Tuple(R.Tensor((), dtype="float32"), R.Tensor(("k",), dtype="int32")):
        with R.inline():
            lv: R.Tensor(("n", 8), dtype="float32") = Module.main(x, w)
        e: R.Tensor((), dtype="float32") = R.call_dps_library("jax.debug_callback", (lv,), out=R.Tensor((), dtype="float32"), attrs={"ordered": True, "sizes": (R.dim("2*n"), 4)}, pure=False)
        k: R.Tensor(("k",), dtype="int32") = R.match_cast(x, R.Tensor(("k",), dtype="int32"))
        return (e, k)
"""  # noqa: E501


def example_module() -> ir.Module:
    x, w = ir.var("x", T4), ir.var("w", ir.Tensor("4 8"))
    product = call("matmul", (x, w))
    main = ir.pure_function("main", (x, w), [ir.node("exp", (product,), (), ir.Tensor("n 8"))])
    main = ir.Function("main", main.params, main.blocks, main.result, {product: Origin((SourceLine("model.py", 31),))})
    inner = ir.node(ir.CALL, (ir.function_ref(main), x, w), (), ir.Tensor("n 8"))
    attrs = [("ordered", True), ("sizes", (Dim.of("2*n"), 4))]
    step = ir.call_dps_library("jax.debug_callback", [inner], ir.Tensor(""), attrs, pure=False)
    cast = ir.match_cast(x, ir.Tensor("k", "int32"))
    bindings = [ir.Binding(ir.var(n, v.annotation), v) for n, v in (("e", step), ("k", cast))]
    result = ir.tuple_(b.var for b in bindings)
    return ir.Module((main, ir.Function("effects", (x, w), (ir.Block(tuple(bindings), dataflow=False),), result)))


def test_the_printed_form() -> None:
    module = example_module()
    assert str(module) == PRINTED
    again = parse(PRINTED)
    assert again == module
    assert dict(again.main.origins) == dict(module.main.origins)
    ir.check(module)
    assert str(module.main) in PRINTED.replace("\n    ", "\n").replace("class Module:\n", "")


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(modules(typed=True))
def test_text_reads_back_to_the_equal_module(module: ir.Module) -> None:
    text = str(module)
    again = ir.parse_module(text, table)
    assert again == module
    assert str(again).count("\n") == text.count("\n")
    for f, g in zip(module, again, strict=True):
        assert g.origins.items() <= f.origins.items()
    ir.check(module)


@settings(max_examples=300)
@given(origins())
def test_the_text_of_an_origin_reads_back(origin: Origin) -> None:
    assert read_origin(str(origin)) == origin


@pytest.mark.parametrize("text", ["", "by", "by ", "a note", "model.py:", ":3", "a.py:1, b", "a.py:1 by "])
def test_a_comment_that_names_no_origin_is_a_comment(text: str) -> None:
    assert read_origin(text) is None
    module = example_module()
    again = parse(PRINTED.replace("# model.py:31", f"# {text}"))
    assert again == module and not again.main.origins


@settings(max_examples=200)
@given(arrays())
@example(np.array(np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]))  # a NaN with a payload
@example(np.array(-0.0, np.float32))
@example(np.array([0, 2**63, 2**64 - 1], np.uint64))
def test_constants_keep_their_bits(array: np.ndarray) -> None:
    c = ir.const(array)
    f = ir.pure_function("main", (), [c])
    assert ir.parse_module(str(f), table).main.blocks[0].bindings[0].value is c


@settings(max_examples=200)
@given(attributes())
def test_library_attributes_keep_their_types(value: object) -> None:
    f = ir.pure_function("main", (), [ir.call_dps_library("f", (), ir.Object(), [("a", value)])])
    assert ir.parse_module(str(f), table) == ir.Module((f,))


def test_constants_are_readable() -> None:
    def text(value: object, dtype: str) -> str:
        return str(ir.pure_function("main", (), [ir.const(value, dtype)])).split(" = ")[1].split("\n")[0]

    assert text(0.1, "float32") == 'R.const(0.1, "float32")'
    assert text([[1, 2], [3, -4]], "int4") == 'R.const([[1, 2], [3, -4]], "int4")'
    assert text([float("nan"), float("-inf"), -0.0], "bfloat16") == (
        'R.const([float("nan"), float("-inf"), -0.0], "bfloat16")'
    )
    assert text(complex(0.0, -0.0), "complex64") == 'R.const(complex(0.0, -0.0), "complex64")'
    assert text(np.zeros(17), "float32").startswith('R.const_data("float32", (17,), "eJx')
    assert text(True, "bool") == 'R.const(True, "bool")'


def test_an_attribute_without_text_is_refused() -> None:
    f = ir.pure_function("main", (), [ir.node("op", (), (("a", b"bytes"),), ir.Object())])
    with pytest.raises(WellFormedError, match=r"an attribute of type builtins\.bytes has no text"):
        str(f)


def test_hand_written_text() -> None:
    f = parse("""
def main(x: R.Tensor((n, 4)), y: R.Tensor((n, n), 'float32')):
    "A docstring."
    n = T.int64()
    a = R.add(R.exp(y), y) @ -y / 2 * 1.5 - y**2
    with R.dataflow():
        b, c = T.int64(), T.int64()
        d = R.pad(a, 1, low=(n, 2*n), high=(0, 1), interior=[1, 2])
        R.output(d)
    return (d, x, 1)
""").main
    a, d = f.blocks[0].bindings[0], f.blocks[1].bindings[0]
    assert not f.blocks[0].dataflow and f.blocks[1].dataflow
    assert a.value.op == "subtract" and a.value.args[0].op == "multiply"
    assert a.value.args[0].args[1] is ir.const(1.5, "float32")
    assert dict(d.value.attrs) == {"low": (Dim.of("n"), Dim.of("2*n")), "high": (0, 1), "interior": (1, 2)}
    assert d.value.args == (a.var, ir.const(1.0, "float32"))
    assert f.result is ir.tuple_([d.var, f.params[0], ir.const(1)])


def test_calls_of_functions_in_every_spelling() -> None:
    text = """
from tvm.script import relax as R
def late(x: R.Tensor((n,), "float32")) -> R.Tensor((2*n,), "float32"):
    y: R.Tensor((2*n,), "float32") = R.twice(x)
    return y
@I.ir_module
class Mine:
    @R.function
    def main(z: R.Tensor("m 1 @ float32"), x: R.Tensor("m"), f: R.Callable((R.Object,), R.Object)):
        a = Mine.late(x)
        b = cls.late(x)
        c = late(x)
        d = f(z)
        e = call_dps_library("g", (late,), R.Object(), {"k": None})
        g = match_cast(e, R.Tensor((m,)))
        return (a, b, c, d, g)
"""
    module = ir.parse_module(text, table)
    late, main = module["late"], module["main"]
    a, b, c, d, e, g = main.blocks[0].bindings
    assert a.value is b.value is c.value is ir.call_function(ir.function_ref(late), [main.params[1]])
    assert a.var.annotation == ir.Tensor(("2*m",), "float32")
    assert d.value is ir.call_function(main.params[2], [main.params[0]])
    assert e.value.args == (ir.function_ref(late),) and e.value.attr("attrs") == (("k", None),)
    assert g.value.op == ir.MATCH_CAST
    ir.check(module)


def test_the_operator_table_reads_its_own_modules() -> None:
    x, w = ir.var("x", ir.Tensor("b n 4")), ir.var("w", ir.Tensor("4 8"))
    y = call("reshape", [call("matmul", [x, w])], {"shape": ("b", "2*n", 4)})
    module = ir.Module((ir.pure_function("main", (x, w), [call("sum", [y], {"axes": (1,)})]),))
    assert "R.matmul(x, w)" in str(module) and 'shape=("b", "2*n", 4)' in str(module)
    assert parse(str(module)) == module
    by_hand = """
def main(x: R.Tensor("b n 4"), w: R.Tensor("4 8")):
    with R.dataflow():
        gv = R.sum(R.reshape(x @ w, shape=("b", "2*n", 4)), axes=(1,))
        R.output(gv)
    return gv
"""
    assert parse(by_hand) == module


def chain(length: int) -> ir.Module:
    x = e = ir.var("x", T4)
    for i in range(length):
        e = ir.node("add" if i % 2 else "multiply", (e, x), (("k", i),), T4)
    return ir.Module((ir.pure_function("main", (x,), [e]),))


def calls(action: Callable[[], object]) -> int:
    """Python and C functions called by `action`: work that can be counted, where time on a shared machine cannot."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_thousands_of_operators_deep() -> None:
    module = chain(3_000)
    assert ir.parse_module(str(module), table) == module
    ir.check(module)


def test_work_grows_with_the_program() -> None:
    counts: list[tuple[int, int, int]] = []
    for length in (150, 600):
        module = chain(length)
        text = str(module)
        steps = (lambda m=module: str(m), lambda t=text: ir.parse_module(t, table), lambda m=module: ir.check(m))
        counts.append(tuple(map(calls, steps)))  # type: ignore[arg-type]
    short, long = counts
    # Four times as long: 16 would be quadratic.
    assert all(b < 5 * a for a, b in zip(short, long, strict=True)), counts


def test_deep_graphs_outside_dataflow_blocks() -> None:
    f = chain(3_000).main
    deep = f.blocks[0].bindings[0].value
    steps = [ir.Binding(ir.var(f"s{i}", T4), ir.call_dps_library("f", [deep], T4, pure=False)) for i in range(300)]
    module = ir.Module((ir.Function("main", f.params, (ir.Block(tuple(steps), dataflow=False),), deep),))
    text = str(module)
    assert text.count("R.inline") == 1 and text.count("\n") == 3_000 + 300 + 7
    assert ir.parse_module(text, table) == module
    ir.check(module)


CHOSEN = [
    ("x += 1\n    x *= x\n    return x", lambda x: (x + 1) ** 2),
    ("return x * 2 if R.sum(x) > 0 else x + 1", lambda x: x * 2 if x.sum() > 0 else x + 1),
    ("y = R.exp(x if R.sum(x) > 0 else (x * 3 if R.max(x) > 0 else x * 4)) + x\n    return y",
     lambda x: np.exp(x if x.sum() > 0 else x * 3 if x.max() > 0 else x * 4) + x),
    ("a, b = R.split(x if R.sum(x) > 0 else x + 1, 2, axis=1)\n    return a + b",
     lambda x: sum(np.split(x if x.sum() > 0 else x + 1, 2, 1))),
    ("with R.dataflow():\n        y = R.exp(x)\n        z = y if R.sum(x) > 0 else x\n        R.output(z)\n"
     "    return z",
     lambda x: np.exp(x) if x.sum() > 0 else x),
    ("if (R.sum(x) > 0 if n > 2 else R.sum(x) < 0):\n        x -= 1\n    else:\n        x += 1\n    return x",
     lambda x: x - 1 if x.sum() > 0 else x + 1),
    ("f = lambda v: v if R.sum(v) > 0 else v + 1\n    return f(x)", lambda x: x if x.sum() > 0 else x + 1),
]  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), CHOSEN)
def test_conditional_expressions_and_augmented_lines(body: str, wanted: Callable[..., object]) -> None:
    module = parse(f'@R.function\ndef main(x: R.Tensor(("n", 4), "float32")):\n    {body}\n')
    assert parse(str(module)) == module
    for x in (np.ones((3, 4), np.float32), -np.ones((3, 4), np.float32), np.eye(4, dtype=np.float32) - 0.5):
        np.testing.assert_allclose(evaluate(module, [x]), wanted(x), rtol=1e-6)


def test_only_the_chosen_side_of_a_conditional_expression_is_computed() -> None:
    scalar = 'R.Tensor((), "float32")'
    line = "return x if x > 9 else (0.0 if x < 0 else Module.main(x * 2))"
    text = f"@R.function\ndef main(x: {scalar}) -> {scalar}:\n    {line}"
    assert [float(evaluate(parse(text), [np.float32(x)])) for x in (3, 10, -1)] == [12.0, 10.0, 0.0]
