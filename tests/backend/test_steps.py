"""Modules that XLA cannot take as one program: deduced, checked, and run block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.backend import steps
from relax_eg.errors import BoundsError, OperatorError, OptionError, ShapeError, TraceError
from relax_eg.ops.interpret import evaluate

Array = Any

FIGURE_3 = """
def main(x: R.Tensor(("n", 2, 2), "float32")):
    lv0 = R.reshape(x, shape=(n, 4))
    lv1 = R.reshape(lv0, shape=(-1,))
    lv2 = R.unique(lv1)
    lv3 = R.match_cast(lv2, R.Tensor(("m",), "float32"))
    lv4 = R.exp(lv3)
    return lv4
"""


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(ours: Any, theirs: Any) -> None:
    one, two = jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs)
    for a, b in zip(one, two, strict=True):
        assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def test_figure_3() -> None:
    module = rx.parse(FIGURE_3)
    by_name = {b.name: b.var.annotation for block in module.main.blocks for b in block.bindings}
    assert by_name["lv1"] == rx.Tensor(("4*n",), "float32")
    assert by_name["lv2"] == rx.Tensor(dtype="float32", ndim=1)
    assert by_name["lv4"] == rx.Tensor("m")
    assert rx.parse(str(module)) == module
    best = rx.optimize(module)
    for n in (1, 3, 5):
        x = np.round(normal(n, 2, 2))
        agree(best(x), np.exp(np.unique(x)))
        assert best.check(x).passed
    assert rx.parse(str(best.module)) == best.module


def body(line: str, result: str = "y") -> str:
    return f"""
def main(x: R.Tensor(("n", "k"), "float32"), mask: R.Tensor(("n",), "bool")):
    with R.dataflow():
        z = R.multiply(x, x)
        R.output(z)
    y = {line}
    return {result}
"""


LINES: list[tuple[str, Callable[[Array, Array], Any]]] = [
    ("R.unique(z)", lambda z, m: np.unique(z)),
    ("R.nonzero(z)", lambda z, m: np.stack(np.nonzero(z)).astype("int32")),
    ("R.argwhere(z)", lambda z, m: np.argwhere(z).astype("int32")),
    ("R.flatnonzero(z, dtype='uint8')", lambda z, m: np.flatnonzero(z).astype("uint8")),
    ("R.masked_select(z, mask)", lambda z, m: z[m]),
    ("R.masked_select(x, R.greater(x, 0.0))", lambda z, m: None),
    (
        "R.arange_of(R.astype(R.sum(R.astype(mask, dtype='int32')), dtype='int32'))",
        lambda z, m: np.arange(m.sum(), dtype="int32"),
    ),
    ("R.top_k_of(z, R.minimum(R.sum(R.astype(mask, dtype='int32')), 1))", lambda z, m: _largest(z, min(m.sum(), 1))),
    (
        "R.non_max_suppression(R.concat(x[:, :1], x[:, :1], x[:, :1] + 2.0, x[:, :1] + 2.0, axis=1), z[:, 0])",
        lambda z, m: _boxes(z),
    ),
    ("R.unique(z, return_inverse=True)", lambda z, m: _unique(z, True, False)),
    ("R.unique(z, return_counts=True, return_inverse=True)", lambda z, m: _unique(z, True, True)),
]


def _largest(z: Array, k: int) -> tuple[Array, Array]:
    places = np.argsort(-z, axis=-1, kind="stable")[:, :k].astype("int32")
    return np.take_along_axis(z, places, -1), places


def _boxes(z: Array) -> Array:
    """The boxes of `LINES`: squares of side 2 at x, with the score x * x, pair by pair."""
    x = np.round(normal(*z.shape, seed=len(z)))[:, 0]
    kept: list[int] = []
    for i in np.argsort(-z[:, 0], kind="stable"):
        common = [max(0.0, 2 - abs(float(x[i] - x[j]))) ** 2 for j in kept]
        if all(c <= 0.5 * (8 - c) for c in common):
            kept.append(int(i))
    return np.array(kept, np.int32)


def _unique(z: Array, inverse: bool, counts: bool) -> tuple[Array, ...]:
    found = np.unique(z, return_inverse=inverse, return_counts=counts)
    return (found[0], *(p.astype("int32") for p in found[1:]))


@pytest.mark.parametrize(("line", "meaning"), LINES, ids=[line for line, _ in LINES])
def test_routines(line: str, meaning: Callable[[Array, Array], Any]) -> None:
    module = rx.parse(body(line))
    best = rx.optimize(module)
    for n, k, chosen in ((5, 3, slice(None, None, 2)), (4, 2, slice(0, 0)), (1, 1, slice(None))):
        x = np.round(normal(n, k, seed=n))
        mask = np.zeros(n, bool)
        mask[chosen] = True
        wanted = meaning(x * x, mask) if "greater" not in line else x[x > 0]
        agree(best(x, mask), wanted)
        agree(evaluate(module, [x, mask]), wanted)


SELECTED = """
def main(x: R.Tensor(("n", "d"), "float32"), w: R.Tensor(("d", "d"), "float32"), u: R.Tensor(("d",), "float32")):
    with R.dataflow():
        mask = R.greater(R.sum(x, axes=(1,)), 0.0)
        R.output(mask)
    k = R.match_cast(R.masked_select(x, mask), R.Tensor(("m", "d"), "float32"))
    with R.dataflow():
        y = ((k @ w) @ w) @ u
        R.output(y)
    return (y, mask)
"""


def test_blocks_are_optimized() -> None:
    apart = "    s = R.masked_select(x, mask)\n    k = R.match_cast(s,"
    text = SELECTED.replace("    k = R.match_cast(R.masked_select(x, mask),", apart)
    best = rx.optimize(rx.parse(text), at={"n": 1000, "m": 500, "d": 256})
    assert not best.report.kept_as_written and best.report.execution == "in steps"
    assert best.report.at == {"d": 256, "m": 500, "n": 1000}
    assert set(best.report.rules) == {"same_sum_of_products"}
    assert [b.dataflow for b in best.module.main.blocks] == [True, False, True]
    for n, d in ((7, 4), (30, 8)):
        args = normal(n, d), normal(d, d, seed=1), normal(d, seed=2)
        mask = args[0].sum(1) > 0
        agree(best(*args), (args[0][mask] @ args[1] @ args[1] @ args[2], mask))
        assert best.check(*args).passed
    nothing = -np.ones((3, 4), np.float32)
    assert best(nothing, normal(4, 4), normal(4))[0].shape == (0,)
    agree(best(w=args[1], u=args[2], x=args[0]), best(*args))


def test_a_step_stands_alone() -> None:
    """What is written inside a step is computed before it."""
    with pytest.raises(rx.errors.WellFormedError, match=r"binding `k`: `relax_eg.masked_select`, the sizes of whose"):
        rx.parse(SELECTED)
    inside = body("R.exp(x)").replace("z = R.multiply(x, x)", "z = R.unique(x)")
    # The lines of a dataflow block in which a step stands are steps.
    assert [b.name for block in rx.parse(inside).main.blocks if not block.dataflow for b in block.bindings] == [
        "z",
        "y",
    ]


# --- what is refused, and when ---


def test_a_cast_is_checked() -> None:
    best = rx.optimize(rx.parse("""
def main(x: R.Tensor(("n", 3), "float32"), y: R.Tensor((), "int32")):
    a = R.unique(x)
    b = R.match_cast(a, R.Tensor(("2*m",), "float32"))
    c = R.nonzero(x)
    d = R.match_cast(c, R.Tensor(("n + 1", "k"), "int32"))
    e = R.masked_select(x, R.greater(x, 1.0))
    f = R.match_cast(e, R.Tensor(("k - 3",), "float32"))
    return (b, d, f)
"""))  # fmt: skip
    one = np.int32(1)
    with pytest.raises(ShapeError, match=r"^main\(\), match_cast: `b`, axis 0 should be 2\*m for some m >= 0, got 3$"):
        best(np.array([[1, 2, 3]], np.float32), one)
    text = r"^main\(\), match_cast: `d`, axis 0 should be n \+ 1 = 3 \(n = 2 from argument `x`\), got 2$"
    with pytest.raises(ShapeError, match=text):
        best(np.array([[1, 2, 3], [4, 1, 2]], np.float32), one)
    # `k` is what `d` said it is.
    text = r"^main\(\), match_cast: `f`, axis 0 should be k - 3 = 0 \(k = 3 from `d`\), got 1$"
    with pytest.raises(ShapeError, match=text):
        best(np.array([[1, 1, 2]], np.float32), one)


def test_arguments_are_checked_before_anything_runs() -> None:
    best = rx.optimize(rx.parse(FIGURE_3), bounds={"n": (1, 4), "m": (2, None)})
    with pytest.raises(ShapeError, match=r"main\(\): argument `x`, axis 2 should be 2, got 3"):
        best(np.ones((2, 2, 3), np.float32))
    with pytest.raises(ShapeError, match=r"main\(\): argument `x` should have 3 axes \(n, 2, 2\), got 2: \(2, 2\)"):
        best(np.ones((2, 2), np.float32))
    with pytest.raises(ShapeError, match=r"main\(\): argument `x` should be float32, got int32"):
        best(np.ones((2, 2, 2), np.int32))
    with pytest.raises(ShapeError, match=r"main\(\): .*missing a required argument"):
        best()
    with pytest.raises(BoundsError, match=r"main\(\): n = 5 exceeds its bound 4"):
        best(np.ones((5, 2, 2), np.float32))
    with pytest.raises(
        BoundsError, match=r"main\(\), match_cast `lv3`, the result of `unique`: m = 1 is below its bound 2"
    ):
        best(np.ones((2, 2, 2), np.float32))
    agree(best(np.arange(4, dtype=np.float32).reshape(1, 2, 2)), np.exp(np.arange(4, dtype=np.float32)))


def test_it_is_no_jax_function() -> None:
    best = rx.optimize(rx.parse(FIGURE_3))
    x = np.ones((2, 2, 2), np.float32)
    for use in (best.to_jax, lambda: jax.jit(best)(x), lambda: jax.vmap(best)(x[None]), lambda: jax.grad(best)(x)):
        with pytest.raises(TraceError, match=r"how large `lv2`, the result of `unique`, is depends on values") as error:
            use()
        assert "accepted: a call of what optimize returned, main(...), outside of jax.jit" in str(error.value)
    with pytest.raises(OptionError, match="what runs in steps is not prepared"):
        best.prepare(x)
    with pytest.raises(OptionError, match=r"weights: main\(\) runs in steps"):
        rx.optimize(rx.parse(FIGURE_3), weights=("x",))


def test_a_program_traced_by_jax_says_what_would_do() -> None:
    for fn in (jnp.unique, lambda x: jnp.nonzero(x)[0], jnp.argwhere, jnp.flatnonzero, lambda x: x[x > 0]):
        with pytest.raises(TraceError, match=r"Relax text, where R\.unique, R\.nonzero and R\.masked_select"):
            rx.trace(fn, "n")


def test_sizes_that_decide_are_checked_at_run_time() -> None:
    best = rx.optimize(rx.parse("""
def main(x: R.Tensor(("n", 2), "float32"), y: R.Tensor(("m", 3), "float32"), z: R.Tensor(ndim=2)):
    a = R.concat(x, y, axis=1)
    b = R.reshape(x, shape=(4, -1))
    c = R.exp(z)
    return (a, b, c)
"""))  # fmt: skip
    x, y, z = normal(4, 2), normal(4, 3), normal(2, 3)
    agree(best(x, y, z), (np.concatenate([x, y], 1), x.reshape(4, -1), np.exp(z)))
    half = z.astype(np.float16)
    assert best(x, y, half)[2].dtype == np.float16
    with pytest.raises(OperatorError, match="do not fit together on axis 0: sizes 4 and 5 differ"):
        best(x, normal(5, 3), z)
    with pytest.raises(OperatorError, match="the number of elements changes: sizes 6 and 4 differ"):
        best(normal(3, 2), normal(3, 3), z)
    with pytest.raises(OperatorError, match="operand 0 is int32; float or complex is needed"):
        best(x, y, z.astype(np.int32))


# --- functions, branches and loops with steps inside ---

FIGURE_7 = """
def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), "float32"):
    y = R.reshape(R.full(1.0, shape=("n", "m")), shape=("n*m",))
    return y
def main(x: R.Tensor(("n",), "float32"), y: R.Shape(ndim=2)):
    f0: R.Callable((R.Shape(["n", "m"]),), R.Tensor(("n * m",), "float32")) = subfn
    lv0 = f0(R.shape([n, 4]))
    lv1 = subfn(R.shape([3, 4]))
    lv2 = subfn(R.shape([n + 1, 4]))
    lv3 = subfn(y)
    return (lv0, lv1, lv2, lv3)
"""


def test_figure_7() -> None:
    module = rx.parse(FIGURE_7)
    found = {b.name: b.var.annotation for block in module.main.blocks for b in block.bindings}
    assert found["f0"] == rx.Callable((rx.Shape("n m"),), rx.Tensor(("n*m",), "float32"))
    wanted = (rx.Tensor("4*n"), rx.Tensor("12"), rx.Tensor("4*n+4"), rx.Tensor(dtype="float32", ndim=1))
    assert tuple(found[f"lv{i}"] for i in range(4)) == wanted
    assert rx.parse(str(module)) == module
    best = rx.optimize(module)
    agree(best(normal(5), (2, 3)), tuple(np.ones(k, np.float32) for k in (20, 12, 24, 6)))
    agree(best(normal(2), [7, 0]), tuple(np.ones(k, np.float32) for k in (8, 12, 12, 0)))
    with pytest.raises(ShapeError, match=r"main\(\): argument `y` should have 2 axes \(_, _\), got 3: \(1, 2, 3\)"):
        best(normal(5), (1, 2, 3))
    with pytest.raises(ShapeError, match=r"argument `y` should be a shape \(a tuple of integers\), got float32"):
        best(normal(5), normal(2))
    agree(jax.jit(best.to_jax(), static_argnums=1)(normal(5), (2, 3)), best(normal(5), (2, 3)))


def test_functions_as_arguments() -> None:
    module = rx.parse("""
def twice(f: R.Callable((R.Tensor("k"),), R.Tensor("2*k")), x: R.Tensor("k")):
    return f(f(x))
def double(x: R.Tensor(("n",), "float32")) -> R.Tensor(("2*n",), "float32"):
    return R.concat(x, x, axis=0)
def main(x: R.Tensor(("n",), "float32")):
    return twice(double, x)
""")
    assert module.main.annotation == rx.Tensor(("4*n",), "float32")
    best = rx.optimize(module)
    x = normal(3)
    agree(best(x), np.tile(x, 4))
    agree(jax.jit(best.to_jax())(x), np.tile(x, 4))
    agree(evaluate(module, [x]), np.tile(x, 4))


def test_figure_8() -> None:
    module = rx.parse("""
def fused_add_relu(x: R.Tensor(("n * 2",), "float32"), y: R.Tensor(("n * 2",), "float32"), s: R.Shape(["n"])) -> R.Tensor(("n * 2",), "float32"):
    with R.dataflow():
        lv1 = R.relu(R.add(x, y))
        R.output(lv1)
    return lv1
def main(x: R.Tensor(("n", 2), "float32")):
    with R.dataflow():
        lv0 = R.reshape(x, shape=(-1,))
        lv1 = fused_add_relu(lv0, lv0, R.shape([n]))
        R.output(lv1)
    return lv1
""")  # noqa: E501
    assert module.main.annotation == rx.Tensor(("2*n",), "float32")
    best = rx.optimize(module)
    assert best.report.execution == "whole"
    x = normal(3, 2)
    agree(best(x), np.maximum(2 * x.reshape(-1), 0))


def test_a_function_cannot_know_its_sizes_without_help() -> None:
    text = 'def main(x: R.Tensor(("n*m",), "float32"){}):\n    return R.reshape(x, shape=("n", "m"))'
    with pytest.raises(rx.errors.WellFormedError, match=r"cannot tell `m` and `n` from argument `x`, axis 0") as error:
        rx.parse(text.format(""))
    assert "or add a parameter that is a shape of them, as s: R.Shape((...))" in str(error.value)
    best = rx.optimize(rx.parse(text.format(', s: R.Shape(("n", "m"))')))
    agree(best(normal(6), (2, 3)), normal(6).reshape(2, 3))
    with pytest.raises(
        ShapeError, match=r"main\(\): argument `x`, axis 0 should be m\*n = 8 \(m = 4 from argument `s`"
    ):
        best(normal(6), (2, 4))


CALLED = """
def rows(x: R.Tensor(("n",), "float32"), k: R.Tensor(("m",), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
    u = R.unique(x)
    v = R.match_cast(u, R.Tensor(("m",), "float32"))
    return R.add(v, k)
def main(x: R.Tensor(("m",), "float32"), y: R.Tensor(("n",), "float32")):
    a = rows(x, y)
    return a
"""


def test_a_called_function_has_steps_and_sizes_of_its_own() -> None:
    best = rx.optimize(rx.parse(CALLED))
    x, y = np.array([1, 1, 2], np.float32), np.array([10, 20], np.float32)
    agree(best(x, y), np.array([11, 22], np.float32))
    text = r"^rows\(\), match_cast: `v`, axis 0 should be m = 3 \(from argument `k`\), got 2$"
    with pytest.raises(ShapeError, match=text):
        best(x, np.zeros(3, np.float32))
    with pytest.raises(TraceError, match=r"how large `u`, the result of `unique` in rows\(\), is depends on values"):
        best.to_jax()


def test_a_called_function_checks_what_it_gets() -> None:
    module = rx.parse("""
def f(x: R.Tensor(("n", 2), "float32"), y: R.Tensor(("2*n",), "float32")) -> R.Tensor(("n",), "float32"):
    return R.sum(x, axes=(1,))
def main(x: R.Tensor(ndim=2), y: R.Tensor(ndim=1)):
    return f(x, y)
""")
    assert module.main.annotation == rx.Tensor(ndim=1, dtype="float32")
    best = rx.optimize(module)
    agree(best(np.ones((3, 2), np.float32), normal(6)), np.full(3, 2, np.float32))
    for args, text in [
        ((normal(3, 3), normal(6)), r"^f\(\): argument `x`, axis 1 should be 2, got 3$"),
        ((normal(3, 2), normal(5)), r"`y`, axis 0 should be 2\*n = 6 \(n = 3 from argument `x`\), got 5$"),
        ((np.ones((3, 2), np.int32), normal(6)), r"^f\(\): argument `x` should be float32, got int32$"),
    ]:
        with pytest.raises(ShapeError, match=text):
            best(*args)


BRANCHES = """
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    if c:
        with R.dataflow():
            a = R.exp(x)
            y = R.add(a, a)
            R.output(y)
        z = R.unique(x)
    else:
        y = R.full(0.0, shape=(n,))
        w = R.concat(x, x, axis=0)
        z = w
    t = R.multiply(y, y)
    return (t, z)
"""


def test_branches_that_give_other_sizes() -> None:
    module = rx.parse(BRANCHES)
    assert module.main.annotation == rx.Tuple((rx.Tensor("n"), rx.Tensor(dtype="float32", ndim=1)))
    best = rx.optimize(module)
    x = np.array([3, 1, 1], np.float32)
    for c in (True, False):
        wanted = ((2 * np.exp(x)) ** 2, np.unique(x)) if c else (np.zeros(3, np.float32), np.tile(x, 2))
        agree(best(x, c), wanted)
        agree(evaluate(module, [x, np.array(c)]), wanted)


def test_only_the_branch_that_is_taken_decides_about_sizes() -> None:
    text = """
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    if c:
        y = x
    else:
        y = R.concat(x, x, axis=0)
    return y
"""
    best = rx.optimize(rx.parse(text))
    agree((best(normal(2), True), best(normal(2), False)), (normal(2), np.tile(normal(2), 2)))
    with pytest.raises(TraceError, match="which branch runs, or how often a loop does, decides about sizes"):
        best.to_jax()
    inside = rx.parse("""
def a(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32")):
    return (x,)
def b(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("2*n",), "float32")):
    return (R.concat(x, x, axis=0),)
def main(x: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    with R.dataflow():
        y = R.cond(c, a, b, x, branches=2)[0]
        R.output(y)
    return y
""")
    functions = (*inside.functions[2:], *inside.functions[:2])
    text = r"^cond: branch `a` gives \(2,\) float32, branch `b` gives \(4,\) float32\n  accepted: branches that agree"
    with pytest.raises(ShapeError, match=text):
        rx.optimize(rx.types.Module(functions))(normal(2), True)


LOOPS = """
def more(x: R.Tensor(("n",), "float32"), i: R.Tensor((), "int32")) -> R.Tensor((), "bool"):
    return R.less(i, 3)
def step(x: R.Tensor("n"), i: R.Tensor("@int32")) -> R.Tuple(R.Tensor("n"), R.Tensor("@int32")):
    u = R.unique(x)
    m = R.match_cast(u, R.Tensor(("m",), "float32"))
    with R.dataflow():
        total = R.sum(m, axes=(0,))
        y = R.add(x, total)
        j = R.add(i, 1)
        R.output(y, j)
    return (y, j)
def row(c: R.Tensor(""), x: R.Tensor("n")) -> R.Tuple(R.Tensor(""), R.Tensor("")):
    u = R.unique(x)
    m = R.match_cast(u, R.Tensor(("m",), "float32"))
    with R.dataflow():
        t = R.sum(m, axes=(0,))
        d = R.add(c, t)
        R.output(t, d)
    return (d, t)
def main(x: R.Tensor(("k", "n"), "float32"), v: R.Tensor(("n",), "float32")):
    a = R.while_loop(more, step, v, R.const(0, "int32"))
    b = R.scan(row, R.const(0.0, "float32"), x, carry=1, length=k, reverse={reverse})
    y = a[0]
    c = b[0]
    d = b[1]
    return (y, c, d)
"""


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_with_steps_inside(reverse: bool) -> None:
    module = rx.parse(LOOPS.replace("{reverse}", str(reverse)))
    module = rx.types.Module((module["main"], *(f for f in module if f.name != "main")))
    best = rx.optimize(module)
    x, v = np.round(normal(3, 4)), np.array([1, 1, 2], np.float32)[[0, 1, 2, 0]]
    wanted = v
    for _ in range(3):
        wanted = wanted + np.unique(wanted).sum()
    sums = np.array([np.unique(r).sum() for r in x], np.float32)
    agree(best(x, v), (wanted, sums.sum(), sums))
    agree(evaluate(module, [x, v]), (wanted, sums.sum(), sums))


# --- how it runs ---


def test_a_block_is_compiled_once_for_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[int] = []
    run_block = steps.run_block

    def counted(module: Any, block: Any, env: Any, sizes: Any) -> Any:
        traced.append(1) if any(isinstance(v, jax.core.Tracer) for v in env.values()) else None
        return run_block(module, block, env, sizes)

    monkeypatch.setattr(steps, "run_block", counted)
    best = rx.optimize(rx.parse(FIGURE_3), dynamic="exact")
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    best(x)
    assert len(traced) == 2
    best(x + 1)
    assert len(traced) == 2
    best(np.ones((2, 2, 2), np.float32))  # other sizes after `unique` only
    assert len(traced) == 3


def test_checks_are_settled_before_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call compares sizes; what to compare is found out once."""
    from relax_eg.backend.calls import checks

    made: list[str] = []
    binder = checks.Binder

    def counted(patterns: Any, names: Any, where: str) -> Any:
        made.append(where)
        return binder(patterns, names, where)

    monkeypatch.setattr(checks, "Binder", counted)
    checks.signature_fit.cache_clear()
    best = rx.optimize(rx.parse(CALLED))
    for _ in range(5):
        best(np.array([1, 1, 2], np.float32), np.zeros(2, np.float32))
    assert sorted(made) == ["main", "rows", "rows(), match_cast"]
