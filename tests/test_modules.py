"""`optimize` on modules: as they are, not traced again; each function and block within what is known of its sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir, op
from relax_eg.errors import BoundsError, OperatorError, OptionError, ShapeError, SpecError, TraceError, WellFormedError
from relax_eg.frontends.modules import with_dataflow_blocks
from relax_eg.ops.deduction import deduce_module
from relax_eg.ops.interpret import evaluate

Array = Any


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(ours: Any, theirs: Any) -> None:
    one, two = jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs)
    for a, b in zip(one, two, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


# --- structure ---

LAYERS = """
def layer(x: R.Tensor(("s", "d"), "float32"), w: R.Tensor(("d", "d"), "float32")) -> R.Tensor(("s", "d"), "float32"):
    with R.dataflow():
        y = R.softmax(x @ w, axis=1)
        R.output(y)
    return y
def main(x: R.Tensor(("s", "d"), "float32"), w: R.Tensor(("d", "d"), "float32"), v: R.Tensor(("d",), "float32")):
    with R.dataflow():
        a = layer(x, w)
        b = layer(a, w)
        c = ((b @ w) @ w) @ v
        R.output(c)
    return c
"""


def test_functions_and_operators_stay_what_they_are() -> None:
    best = rx.optimize(rx.parse(LAYERS), at={"s": 64, "d": 256})
    assert not best.report.kept_as_written
    calls = [e for e in best.module.main.expressions() if e.op == ir.CALL]
    assert len(calls) == 2 and {e.args[0].attr("name") for e in calls} == {"layer"}
    assert [e.op for e in best.module["layer"].expressions() if e.args] == ["matmul", "softmax"]
    x, w, v = normal(3, 4), normal(4, 4, seed=1), normal(4, seed=2)
    assert best.check(x, w, v).passed
    assert best.check(x=x, w=w, v=v).passed
    agree(jax.jit(best.to_jax())(x, w, v), best(x, w, v))
    ready = rx.optimize(rx.parse(LAYERS), at={"s": 64, "d": 256}, weights=("w", "v")).prepare(w, v)
    agree(ready(x), best(x, w, v))


def test_plain_lines_are_optimized_like_dataflow_blocks() -> None:
    text = """
def main(x: R.Tensor(("n", "n"), "float32"), v: R.Tensor(("n",), "float32")):
    a = R.matmul(x, x)
    b = R.matmul(a, x)
    with R.dataflow():
        c = R.matmul(b, v)
        R.output(c)
    return R.tanh(c)
"""
    best = rx.optimize(rx.parse(text), at={"n": 512})
    assert best.report.predicted_gain > 5 and len(best.module.main.blocks) == 1
    x, v = normal(5, 5), normal(5)
    agree(best(x, v), np.tanh(x @ x @ x @ v))
    assert rx.parse(str(best.module)) == best.module


def test_what_is_needed_later_is_bound() -> None:
    formed = with_dataflow_blocks(
        rx.parse("""
def main(x: R.Tensor(("n",), "float32")):
    a = R.exp(x)
    b = R.add(a, a)
    u = R.unique(b)
    f = R.negative(b)
    g = R.match_cast(u, R.Tensor(("m",), "float32"))
    h = R.exp(g)
    return (f, R.exp(h), g)
""")
    ).main
    blocks = [(block.dataflow, [b.name for b in block.bindings]) for block in formed.blocks]
    assert blocks == [(True, ["b"]), (False, ["u"]), (True, ["f"]), (False, ["g"]), (True, ["result"])]
    assert [e.op for e in formed.expressions() if e.args].count("exp") == 3


def test_traced_modules_are_left_as_they_are() -> None:
    def program(x: Array, w: Array) -> Array:
        def step(c: Array, _: Any) -> tuple[Array, None]:
            return jax.numpy.tanh(c @ w), None

        return jax.lax.scan(step, x, None, length=3)[0]

    module = rx.trace(program, "n n", "n n")
    assert deduce_module(with_dataflow_blocks(module)) == module


# --- annotations ---


def test_annotations_are_deduced_anew() -> None:
    module = rx.parse("""
def f(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(ndim=2):
    y: R.Tensor(ndim=2) = R.exp(x)
    return y
def main(x: R.Tensor(("k", 4), "float32")):
    a = f(x)
    b = R.sum(a, axes=(1,))
    c: R.Object = R.exp(b)
    return (a, b)
""")
    assert module.main.annotation == rx.Tuple((rx.Tensor(ndim=2), rx.Tensor(ndim=1)))
    assert deduce_module(module).main.annotation == rx.Tuple((rx.Tensor("k 4"), rx.Tensor("k")))


def lying(value: ir.Expr, annotation: ir.Annotation) -> ir.Module:
    (x,) = [e for e in ir.postorder([value]) if e.op == ir.VAR]
    false = ir.node(value.op, value.args, value.attrs, annotation)
    return ir.Module((ir.pure_function("main", [x], [false]),))


X = ir.var("x", rx.Tensor("n 4"))
LIES = [
    (op.exp(X), rx.Tensor("n 5"), "it is annotated .* axis 1: sizes 5 and 4 differ"),
    (op.exp(X), rx.Tensor("n 4 @int32"), "dtypes int32 and float32 differ"),
    (op.exp(X), rx.Tensor("n"), "ranks 1 and 2 differ"),
    (op.concat([X, ir.var("x", rx.Tensor("n 4"))], 0), rx.Tensor("n 4"), "annotated .*n.* and is .*2[*]n"),
]


@pytest.mark.parametrize(("value", "annotation", "text"), LIES, ids=range(len(LIES)))
def test_annotations_that_do_not_follow(value: ir.Expr, annotation: ir.Annotation, text: str) -> None:
    with pytest.raises(WellFormedError, match=text) as error:
        rx.optimize(lying(value, annotation))
    assert str(error.value).startswith("function `main`, binding `gv`: ")


def test_an_annotation_that_says_more_is_a_match_cast() -> None:
    joined = op.concat([ir.var("x", rx.Tensor("n 4")), X], 1)
    coarser = ir.node(joined.op, joined.args, joined.attrs, rx.Tensor(ndim=2, dtype="float32"))
    module = ir.Module((ir.pure_function("main", [X], [ir.node("exp", (coarser,), (), rx.Tensor("n 8"))]),))
    assert deduce_module(module).main.annotation == rx.Tensor("n 8")  # what is declared too coarse is found out
    unknown = ir.var("u", rx.Tensor(ndim=2, dtype="float32"))
    module = ir.Module((ir.pure_function("main", [unknown, X], [ir.node("exp", (unknown,), (), rx.Tensor("n 8"))]),))
    with pytest.raises(WellFormedError, match="match_cast asserts more"):
        rx.optimize(module)
    cast = ir.Binding(ir.var("y", rx.Tensor("n 5")), ir.match_cast(X, rx.Tensor("n 5")))
    never = ir.Function("main", (X,), (ir.Block((cast,), dataflow=False),), X)
    with pytest.raises(WellFormedError, match=r"a value annotated .* is never .*: axis 1: sizes 4 and 5 differ"):
        rx.optimize(ir.Module((never,)))


def test_deduction_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator of a long chain is asked about once."""
    from relax_eg.ops import deduction, record

    asked: list[str] = []
    deduce = record.deduce

    def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return deduce(name, *args, **kwargs)

    x = e = ir.var("x", rx.Tensor("n 4"))
    for i in range(10_000):
        e = op.add(e, x) if i % 3 else op.exp(e)
    module = ir.Module((ir.pure_function("main", (x,), [e]),))
    monkeypatch.setattr(deduction, "deduce", counted)
    assert deduction.deduce_module(module) == module
    assert len(asked) == 10_000


# --- sizes: nothing leaks ---

book = rx.RuleSet("small")


@book.rule(shapes="x: n", when=("n <= 8",))
def double_negation_of_few(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """-(-x) = x"""
    return op.negative(op.negative(x)), x


def applies(text: str, bounds: Any = None) -> bool:
    """Whether the rule for at most 8 elements finds a place."""
    return bool(rx.optimize(rx.parse(text), rules=book, bounds=bounds).report.matches)


def only(text: str, place: int) -> str:
    """`text` with `--v` as two negations at one of its places, and exponentials at the others."""
    pieces = re.split(r"--(\w+)", text)
    negated = [f"R.negative(R.negative({v}))" if i == place else f"R.exp({v})" for i, v in enumerate(pieces[1::2])]
    return "".join(x for pair in zip(pieces[::2], [*negated, ""], strict=True) for x in pair)


CALLED = """
def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    with R.dataflow():
        y = R.negative(R.negative(x))
        R.output(y)
    return y
def main(x: R.Tensor(("n",), "float32"), k: R.Tensor(("k",), "float32")):
    with R.dataflow():
        y = f({})
        R.output(y)
    return y
"""


@pytest.mark.parametrize(
    ("argument", "known"),
    [("x", True), ("f(x)", True), ("k", False), ("R.concat(x, x, axis=0)", False), ("f(k)", False)],
)
def test_bounds_of_the_caller_are_no_bounds_of_other_sizes(argument: str, known: bool) -> None:
    assert applies(CALLED.format(argument), {"n": (1, 8)}) is known


CAST = """
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
    with R.dataflow():
        a = --x
        R.output(a)
    b = R.match_cast(a, R.Tensor((SIZE,), "float32"))
    with R.dataflow():
        c = --y
        R.output(c)
    return (b, c)
"""


@pytest.mark.parametrize(
    ("size", "bounds", "before", "after"),
    [
        ("8", None, False, True),
        ("9", None, False, False),
        ('"m"', {"m": (1, 8)}, False, True),  # which is n
        ('"m"', {"n": (1, 8)}, True, True),
        ('"m"', None, False, False),
    ],
)
def test_what_a_cast_asserts_holds_after_it(size: str, bounds: Any, before: bool, after: bool) -> None:
    text = CAST.replace("SIZE", size)
    assert [applies(only(text, i), bounds) for i in range(2)] == [before, after]


BRANCH = """
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    if c:
        a = R.match_cast(x, R.Tensor((8,), "float32"))
        y = --x
    else:
        y = --x
    z = --y
    return z
"""


def test_what_a_branch_asserts_holds_in_it() -> None:
    assert [applies(only(BRANCH, i)) for i in range(3)] == [True, False, False]
    assert not applies(only(BRANCH.replace("(8,)", "(9,)"), 0))
    best = rx.optimize(rx.parse(only(BRANCH, 0)), rules=book)
    agree(best(normal(8), True), np.exp(normal(8)))
    agree(best(normal(5), False), np.exp(np.exp(normal(5))))
    with pytest.raises(ShapeError, match=r"main_then\(\), match_cast: `a`, axis 0 should be 8, got 5"):
        best(normal(5), True)
    with pytest.raises(TraceError, match="which branch runs, or how often a loop does, decides about sizes or what"):
        best.to_jax()


@book.rule(shapes="x: n m", when=("n <= 8",))
def double_negation_of_few_rows(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """-(-x) = x"""
    return op.negative(op.negative(x)), x


def repeated(first: str, last: str, doubled: bool) -> str:
    """A dataflow block of 20 equal layers from `first` to `last`, which is long enough to be found."""
    lines, x = ["    with R.dataflow():"], first
    for i in range(20):
        y = last if i == 19 else f"{last}{i}"
        negated = f"R.negative(R.negative({y}c))" if doubled else f"R.exp(R.abs({y}c))"
        lines += [
            f"        {y}a = R.tanh(R.matmul({x}, w))",
            f"        {y}b = R.add(R.exp(R.negative(R.abs({y}a))), R.cos(R.sin({y}a)))",
            f"        {y}c = R.multiply(R.sqrt(R.abs({y}b)), R.sigmoid(R.floor({y}b)))",
            f"        {y}d = R.subtract({negated}, R.maximum(R.ceil({y}c), {x}))",
            f"        {y} = R.add({y}d, {x})",
        ]
        x = y
    return "\n".join([*lines, f"        R.output({last})", ""])


def shared(before: bool, after: bool, line: str = "pass") -> str:
    return f"""
def main(x: R.Tensor(("n", 4), "float32"), z: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
    {line}
{repeated("x", "a", before)}    b = R.match_cast(a, R.Tensor((8, 4), "float32"))
{repeated("z", "c", after)}    return (b, c)
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "known"),
    [
        (True, False, "pass", False),
        (True, False, 'R.func_attr({"assume": ["n <= 9"]})', False),
        (True, False, 'R.func_attr({"assume": ["n <= 8"]})', True),
        (False, True, 'R.func_attr({"assume": ["n <= 8"]})', True),
    ],
)
def test_shared_blocks_know_what_holds_where_they_are_called(before: bool, after: bool, line: str, known: bool) -> None:
    """What a match_cast asserts licenses nothing in the shared blocks before it."""
    best = rx.optimize(rx.parse(shared(before, after, line)), rules=book)
    assert any("double" in name for name in best.report.matches) is known


def test_blocks_are_shared_there() -> None:
    from relax_eg.ir.outline import outline

    names = iter(f"block{i}" for i in range(9))
    _, made = outline(with_dataflow_blocks(rx.parse(shared(True, True))).main, lambda _: next(names))
    assert len(made) >= 2


def test_a_block_with_a_node_that_stays_in_place_is_not_shared() -> None:
    from relax_eg.ir.outline import outline

    main = with_dataflow_blocks(rx.parse(shared(True, True))).main
    same, made = outline(main, lambda _: "block", stays=lambda e: e.op == "matmul")
    assert same is main and not made


LOOP = """
def more(x: R.Tensor(("n",), "float32"), i: R.Tensor((), "int32")) -> R.Tensor((), "bool"):
    return R.less(i, 3)
def step(x: R.Tensor("n"), i: R.Tensor("@int32")) -> R.Tuple(R.Tensor("n"), R.Tensor("@int32")):
    y = R.match_cast(x, R.Tensor((8,), "float32"))
    with R.dataflow():
        z = R.exp(x)
        j = R.add(i, 1)
        R.output(z, j)
    return (z, j)
def main(x: R.Tensor("n"), i: R.Tensor("@int32")):
    y = R.while_loop(more, step, x, i, condition_constants=0, body_constants=0)
    return y[0]
"""


def test_a_loop_that_makes_no_step_asserts_nothing() -> None:
    best = rx.optimize(rx.parse(LOOP))
    agree(best(normal(8), np.int32(1)), np.exp(np.exp(normal(8))))
    agree(best(normal(5), np.int32(3)), normal(5))
    with pytest.raises(ShapeError, match=r"step\(\), match_cast: `y`, axis 0 should be 8, got 5"):
        best(normal(5), np.int32(2))


# --- what is refused ---


def test_options() -> None:
    module = rx.parse(LAYERS)
    with pytest.raises(OptionError, match=r"optimize\(module\) takes no specs"):
        rx.optimize(module, "n n")
    with pytest.raises(BoundsError, match=r"no size is named `q`.*its sizes are d, s"):
        rx.optimize(module, bounds={"q": (1, 4)})
    with pytest.raises(BoundsError, match="lower bound of s is 0; a traced program takes sizes >= 1"):
        rx.optimize(module, bounds={"s": (0, 4)})
    takes = 'def main(f: R.Callable((R.Tensor("n"),), R.Tensor("n")), x: R.Tensor("n")):\n    return f(x)'
    with pytest.raises(SpecError, match="`f` is a function of the module, or may contain one; only functions"):
        rx.optimize(rx.parse(takes))


def test_functions_with_steps_as_values() -> None:
    text = """
def apply(f: R.Callable((R.Tensor("n"),), R.Tensor(ndim=1)), x: R.Tensor("n")):
    return f(x)
def few(x: R.Tensor("n")) -> R.Tensor(ndim=1, dtype="float32"):
    y = R.unique(x)
    return y
def main(x: R.Tensor("n")):
    return apply(few, x)
"""
    module = rx.parse(text)
    assert rx.parse(str(module)) == module
    x = np.array([3, 1, 3], np.float32)
    agree(rx.optimize(module)(x), evaluate(module, [x]))


AT_CALLS = {
    "sizes of a call": (
        'a: R.Tensor(("p", "p"), "float32"), b: R.Tensor(("q", "p"), "float32"), v: R.Tensor(("p",), "float32")',
        "mm(a, b) @ v",
        {"p": 3, "q": 3},
        {"p": 3, "q": 4},
        (ShapeError, "mm(): argument `b`, axis 0 should be n = 3 (from argument `a`), got 4"),
    ),
    "a slice": (
        'a: R.Tensor(("p",), "float32"), b: R.Tensor(("q",), "float32"), v: R.Tensor(("p",), "float32")',
        "R.strided_slice(a + v, begin=[4], end=[p])",
        {"p": 6, "q": 3},
        {"p": 2, "q": 3},
        (OperatorError, "begin and end on axis 0: 4 is more than 2"),
    ),
}


@pytest.mark.parametrize("name", AT_CALLS)
@pytest.mark.parametrize("runs", ["auto", "capacity", "exact", "kernels", "prepared", "loaded"])
def test_what_only_a_call_can_tell_is_an_error_however_it_runs(name: str, runs: str, tmp_path: Path) -> None:
    """Algebra, padding or preparation may have dropped the very step that does not fit."""
    params, result, good, bad, (error, text) = AT_CALLS[name]
    module = rx.parse(f"""
@R.function
def mm(a: R.Tensor(("k", "n"), "float32"), b: R.Tensor(("n", "j"), "float32")):
    return R.matmul(a, b)

@R.function
def main({params}):
    return {result}
""")
    options: dict[str, Any] = {"dynamic": runs if runs in ("auto", "capacity") else "exact"}
    options |= {"execution": "kernels"} if runs == "kernels" else {}
    options |= {"weights": ("a",)} if runs == "prepared" else {}
    best = rx.optimize(module, **options)

    def arrays(sizes: dict[str, int]) -> list[Any]:
        shapes = [tuple(d.evaluate(sizes) for d in p.tensor.shape or ()) for p in module.main.params]
        return [jax.numpy.ones(s, "float32") for s in shapes]

    if runs == "loaded":
        best.save(tmp_path / "saved")
        best = rx.load(tmp_path / "saved")
    for sizes in ({v: n + 1 for v, n in good.items()}, good):
        assert best(*arrays(sizes)).shape
    with pytest.raises(error, match=re.escape(text)):
        best(*arrays(bad))
    assert best(*arrays(good)).shape
