"""What is assumed of sizes: in `optimize`, in `jit`, in a module and its text. Rules rest on it, calls are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg import ir, op
from relax_eg.errors import BoundsError, ModuleTextError, OptionError, RelaxEgError, SpecError, WellFormedError
from relax_eg.ops.interpret import evaluate

Array = Any

book = rx.RuleSet("eighths")


@book.rule(shapes="x: n", when=("n % 8 == 0",))
def double_negation_of_eighths(x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """-(-x) = x"""
    return op.negative(op.negative(x)), x


def twice(x: Array) -> Array:
    return jnp.negative(jnp.negative(x))


TEXT = """
def main(x: R.Tensor(("n",), "float32")):
    {}
    y = R.negative(R.negative(x))
    return y
"""


def module(line: str = "pass") -> rx.types.Module:
    return rx.parse(TEXT.format(line))


def ones(n: int) -> Array:
    return np.ones(n, np.float32)


def test_rules_rest_on_it_and_calls_are_checked() -> None:
    assumed = {"bounds": "n % 8 == 0", "rules": book}
    for best in (
        rx.optimize(twice, "n", **assumed),
        rx.optimize(module(), **assumed),
        rx.optimize(module('R.func_attr({"assume": ["n % 8 == 0"]})'), rules=book),
        rx.optimize(rx.trace(twice, "n", bounds=["n % 8 == 0"]), rules=book),
        rx.optimize(module('R.func_attr({"assume": ["n % 4 == 0"]})'), rules=book, bounds=["n % 16 == 8"]),
    ):
        assert best.report.matches["double_negation_of_eighths"]
        np.testing.assert_array_equal(best(ones(24)), ones(24))
        assert best.check(ones(24)).passed
        with pytest.raises(BoundsError, match=r"\(\): the assumption `n % \d+ == \d` does not hold at n = 12$"):
            best(ones(12))
        assert best.module.main.assume[-1].startswith("n % ")
        assert rx.parse(str(best.module)) == best.module
    for best in (rx.optimize(twice, "n", rules=book), rx.optimize(module(), rules=book, bounds=["n % 4 == 0"])):
        assert not best.report.matches


def test_operators_rest_on_it_where_their_sizes_do() -> None:
    """JAX writes h - 4 for what is max(0, h - 4) where nothing is assumed."""

    def blurred(x: Array) -> Array:
        return jax.lax.conv(x, jnp.ones((1, 1, 5, 5)), (1, 1), "VALID")

    best = rx.optimize(blurred, "1 1 h w", bounds=("h >= 8", "w >= 8"))
    assert best.report.opaque == ()
    assert best.check(np.ones((1, 1, 9, 8), np.float32)).passed


def test_python_comparisons_rest_on_it() -> None:
    def run(x: Array, y: Array) -> Array:
        return jnp.tanh(x) if x.shape[0] == 2 * y.shape[0] and x.shape[0] >= 8 else x

    traced = rx.trace(run, "n", "m", bounds=["n == 2*m", "n != 12", "m >= 4"])
    assert traced.main.assume == ("n == 2*m", "n != 12", "m >= 4")
    assert rx.parse(str(traced)) == traced
    for best in (rx.optimize(run, "n", "m", bounds=traced.main.assume), rx.optimize(traced)):
        np.testing.assert_allclose(best(ones(10), ones(5)), np.tanh(ones(10)), rtol=1e-6)
        for n, m, text in (
            (10, 6, "the assumption `n == 2[*]m` does not hold at m = 6, n = 10"),
            (12, 6, "the assumption `n != 12` does not hold at n = 12"),
            (6, 3, "m = 3 is below its bound 4"),
        ):
            with pytest.raises(BoundsError, match=text):
                best(ones(n), ones(m))
    fast = rx.jit(run, dims=["n", "m"], bounds=["n == 2*m", "m >= 4"])
    np.testing.assert_allclose(fast(ones(10), ones(5)), np.tanh(ones(10)), rtol=1e-6)


def eighths_doubled(x: Array) -> Array:
    return jnp.cumsum(x @ x.T) * (2 if x.shape[0] % 8 == 0 else 1)


def test_equalities_that_nothing_decides_run_as_written_where_they_hold() -> None:
    """JAX answers them with no for all sizes."""
    best = rx.optimize(eighths_doubled, "n 4")
    x = np.ones((8, 4), np.float32)
    for n in (7, 8, 3, 8):
        np.testing.assert_allclose(best(x[:n]), eighths_doubled(jnp.asarray(x[:n])))
    line = eighths_doubled.__code__.co_firstlineno + 1
    ((at, why),) = best.statistics().exact.items()
    assert at == "eighths_doubled at n = 8" and why.startswith(
        f"another program, first at test_assumed_sizes.py:{line}: "
    )


def test_equalities_are_proved_of_what_is_known() -> None:
    x = np.ones((16, 4), np.float32)
    best = rx.optimize(eighths_doubled, "n 4", bounds="n % 16 == 0")
    assert best.module.main.assume == ("n % 16 == 0",)
    np.testing.assert_allclose(best(x), eighths_doubled(jnp.asarray(x)))
    assert rx.trace(eighths_doubled, "n 4", bounds="n % 8 == 3").main.assume == ("n % 8 == 3",)


def test_inequalities_are_proved_where_jax_gives_up() -> None:
    """A product of two sizes, and a remainder."""

    def few(x: Array) -> Array:
        n, m = x.shape
        return x * 2 if n * m <= 72 and (n % 8) * m <= 63 else x

    best = rx.optimize(few, "n m", bounds=["n <= 8", "m <= 9"])
    np.testing.assert_array_equal(best(np.ones((3, 4), np.float32)), np.full((3, 4), 2, np.float32))


def test_constraints_of_jax_export_stay_with_the_module() -> None:
    (n,) = jax.export.symbolic_shape("n", constraints=["mod(n, 8) == 0", "n <= 64"])
    traced = rx.trace(lambda x: twice(x) if x.shape[0] <= 64 else x, jax.ShapeDtypeStruct((n,), jnp.float32))
    assert traced.main.assume == ("n <= 64", "mod(n, 8) == 0")
    best = rx.optimize(traced, rules=book)
    assert best.report.matches
    with pytest.raises(BoundsError, match=r"main\(\): n = 72 exceeds its bound 64"):
        best(ones(72))


def test_bounds_the_way_relax_has_them() -> None:
    found = module('R.func_attr({"tir_var_upper_bound": {"n": 64}, "tir_var_lower_bound": {"n": 2}})')
    assert found.main.assume == ("n <= 64", "n >= 2")
    with pytest.raises(BoundsError, match=r"n = 65 exceeds its bound 64 \(declared in the assumption `n <= 64`\)"):
        rx.optimize(found)(ones(65))


def test_symbolic_sizes_of_jax_must_be_known_to_satisfy_it() -> None:
    run = jax.jit(rx.optimize(twice, "n", rules=book, bounds=[{"n": (1, 64)}, "n % 8 == 0"]).to_jax())

    def exported(size: str, *constraints: str) -> Any:
        shape = jax.export.symbolic_shape(size, constraints=constraints)
        return jax.export.export(run)(jax.ShapeDtypeStruct(shape, jnp.float32))

    for size, constraints in (("t", ("mod(t, 16) == 0", "t <= 32")), ("8*k", ("k <= 8",))):
        np.testing.assert_array_equal(exported(size, *constraints).call(ones(16)), ones(16))
    for size, constraints, text in (
        ("t", ("t <= 64",), "`n % 8 == 0`, on which it was optimized, is not known of the symbolic sizes n = t"),
        ("8*k", (), "`n <= 64`, on which it was optimized, is not known of the symbolic sizes n = 8*k"),
    ):
        with pytest.raises(BoundsError) as error:
            exported(size, *constraints)
        assert text in str(error.value) and "accepted: jax.export.symbolic_shape(" in str(error.value)


CAST = """
def main(x: R.Tensor(("n",), "float32")):
    R.func_attr({"assume": ["2*m <= n"]})
    u = R.unique(x)
    m = R.match_cast(u, R.Tensor(("m",), "float32"))
    return m
"""


def test_it_may_speak_of_sizes_that_a_cast_brings_in() -> None:
    best = rx.optimize(rx.parse(CAST))
    np.testing.assert_array_equal(best(np.array([1, 1, 2, 2], np.float32)), [1, 2])
    with pytest.raises(BoundsError, match=r"the assumption `2[*]m <= n` does not hold at m = 3, n = 4"):
        best(np.array([1, 1, 2, 3], np.float32))


def test_the_interpreter_checks_it() -> None:
    even = module('R.func_attr({"assume": ["n % 2 == 0"]})')
    np.testing.assert_array_equal(evaluate(even, [ones(4)]), ones(4))
    with pytest.raises(BoundsError, match=r"main\(\): the assumption `n % 2 == 0` does not hold at n = 3"):
        evaluate(even, [ones(3)])


HELPER = 'def f(x: R.Tensor("n")):\n    R.func_attr({"assume": ["n <= 8"]})\n    return R.exp(x)\n'

REFUSED: list[tuple[Callable[[], Any], type[RelaxEgError], str]] = [
    (lambda: rx.optimize(twice, "n", bounds="q <= 4"), BoundsError,
     "twice(): no size is named `q` (bounds='q <= 4'); its sizes are n"),
    (lambda: rx.optimize(twice, "4", bounds="q <= 4"), BoundsError, "it has no symbolic sizes"),
    (lambda: rx.optimize(module(), bounds="q <= 4"), BoundsError, "main(): no size is named `q` (bounds='q <= 4')"),
    (lambda: rx.optimize(twice, "n", bounds="n = 4"), SpecError, "cannot read the statement; equality is `==`"),
    (lambda: rx.optimize(twice, "n", bounds=[4]), OptionError, "bounds=[4]: {'n': (1, 4096)}, a statement such as"),
    (lambda: rx.optimize(twice, "n", bounds=["n % 8 == 0", "n == 12"]), BoundsError,
     "no sizes satisfy all of\n  n >= 12 (declared in the assumption `n == 12`)\n  n <= 12"),
    (lambda: rx.optimize(twice, "n", bounds="n % 8 == 0", at={"n": 12}), BoundsError, "`n % 8 == 0` does not hold at"),
    (lambda: rx.optimize(twice, "n", bounds=[{"n": (8, 9)}, "n <= 4"]), BoundsError, "at least 8 (declared in"),
    (lambda: rx.optimize(twice, "n", bounds="n >= 0"), BoundsError, "`n` may be 0 (declared in the assumption `n >="),
    (lambda: rx.optimize(module(), bounds="n >= 0"), BoundsError, "the lower bound of n is 0; a traced program takes"),
    (lambda: module('R.func_attr({"assume": ["k <= 4"]})'), WellFormedError, "`k <= 4`: no size is named `k`"),
    (lambda: module('R.func_attr({"assume": ["n = 4"]})'), WellFormedError, "what it assumes: cannot read the"),
    (lambda: rx.parse(HELPER + TEXT.format("pass")), WellFormedError,
     "function `f`, what it assumes: `n <= 8`: only the entry of a module assumes; match_cast asserts inside"),
    (lambda: module('R.func_attr({"tir_var_upper_bound": {"n": "4"}})'), ModuleTextError, "is no attribute of a"),
    (lambda: module("R.func_attr(n)"), ModuleTextError, "these are no attributes of a function"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refused(make: Callable[[], Any], kind: type[RelaxEgError], text: str) -> None:
    with pytest.raises(kind) as error:
        make()
    assert text in str(error.value)
