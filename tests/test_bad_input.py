"""Input that is wrong or strange: an error that says what and what would be accepted, or the correct result."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError, OptionError, RuleError, ShapeError, SpecError, TraceError

Array = Any
CHAIN = ("n n", "n n", "n")


def chain(a: Array, b: Array, v: Array) -> Array:
    return (a @ b) @ v


def ones(*shape: int, dtype: Any = np.float32) -> Array:
    return jnp.ones(shape, dtype)


def says(error: type[Exception], *texts: str) -> Any:
    """The whole message, or (several texts) its parts in order."""
    pattern = ".*".join(map(re.escape, texts)) if len(texts) > 1 else f"^{re.escape(texts[0])}$"
    return pytest.raises(error, match=re.compile(pattern, re.DOTALL))


# --- specs, sizes and options ---


@pytest.mark.parametrize(
    ("specs", "error", "texts"),
    [
        (("n ,n", "n n", "n"), SpecError, ("argument `a`: cannot read the dimension expression `,n`", "accepted:")),
        (("n -1", "n n", "n"), SpecError, ("argument `a`: `-1` is not a dim", "accepted:")),
        (("*n", "n n", "n"), SpecError, ("argument `a`: `*n` stands for any number of axes", "accepted:")),
        (("n n", "n n @ flot32", "n"), SpecError, ("argument `b`: `flot32` is not a dtype", "did you mean `float32`?")),
        (("n n", "n n", "n @ float64"), SpecError, ("argument `v`: float64 is switched off", "accepted: float32, or")),
        ((object(), "n n", "n"), SpecError, ("argument `a`: object is no spec", "accepted: a spec string such as")),
        (
            ("n n", "n n"),
            TraceError,
            ("the specs do not fit `chain(a: ", "missing a required argument: 'v'", "accepted: one spec"),
        ),
        (
            ("n n", "n n", "n", "n"),
            TraceError,
            ("the specs do not fit `chain(a: ", "too many positional arguments", "one spec for each"),
        ),
        (
            (("n n", "n n", "n"),),
            TraceError,
            ("the specs do not fit `chain(a: ", "missing a required argument: 'b'", "write `*specs` for a tuple"),
        ),
        (
            ("n k", "n k", "n"),
            TraceError,
            ("cannot trace `chain` (test_bad_input.py:", "(k,) and (n,)", "a (n, k) float32"),
        ),
    ],
    ids=lambda x: str(x[0]) if isinstance(x, tuple) and isinstance(x[0], str) else None,
)
def test_wrong_specs(specs: tuple[Any, ...], error: type[Exception], texts: tuple[str, ...]) -> None:
    for take in (rx.optimize, rx.trace):
        with says(error, *texts):
            take(chain, *specs)


TARGETS = (
    "target='tpu': one of a100, cpu, h100, h200, laptop, rtx4090, the path of a .json profile, or a Profile is accepted"
)
OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"at": {"m": 3}}, BoundsError, "chain(): no size is named `m` (at={'m': ...}); its sizes are n"),
    ({"at": {"n": 3.5}}, BoundsError, "chain(): at n = 3.5; an integer is accepted"),
    ({"at": {"n": True}}, BoundsError, "chain(): at n = True; an integer is accepted"),
    ({"at": "n=3"}, OptionError, "at='n=3': {'n': 128}, or a list of such, is accepted"),
    ({"at": ["n"]}, OptionError, "at=['n']: {'n': 128}, or a list of such, is accepted"),
    ({"bounds": {"m": (1, 3)}}, BoundsError, "chain(): no size is named `m` (bounds={'m': ...}); its sizes are n"),
    ({"bounds": {"n": (0, 5)}}, BoundsError, "chain(): the lower bound of n is 0; a traced program takes sizes >= 1"),
    (
        {"bounds": [("n", 1)]},
        OptionError,
        "bounds=[('n', 1)]: {'n': (1, 4096)}, a statement such as 'n % 8 == 0', or a list of these, is accepted",
    ),
    ({"weights": ("w",)}, OptionError, "weights: chain has no argument 'w'; its arguments are a, b, v"),
    ({"weights": (3,)}, OptionError, "weights: chain has no argument 3; its arguments are a, b, v"),
    ({"weights": True}, OptionError, "weights=True: a list of argument names or positions is accepted"),
    (
        {"numerics": "fast"},
        OptionError,
        "numerics='fast': one of exact, reassociate, approximate, quantised is accepted",
    ),
    ({"target": "tpu"}, OptionError, TARGETS),
    ({"rules": "all"}, OptionError, "rules='all': a RuleSet is accepted"),
    ({"budget": 100}, OptionError, "budget=100: a Budget is accepted"),
    ({"bounds": [{"n": (1, 5)}, {"n": 3}]}, BoundsError, "bounds: `n` has two ranges, (1, 5) and 3; one is accepted"),
    ({"dynamic": "fast"}, OptionError, "dynamic='fast': one of 'exact', 'capacity', 'auto', or a Dynamic is accepted"),
]


@pytest.mark.parametrize(("options", "error", "text"), OPTIONS, ids=[str(o[0]) for o in OPTIONS])
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with says(error, text):
        rx.optimize(chain, *CHAIN, **options)


def test_sizes_that_contradict_the_bounds() -> None:
    with says(BoundsError, "the bounds of `n`", "5", "3"):
        rx.optimize(chain, *CHAIN, bounds={"n": (5, 3)})
    with says(BoundsError, "the upper bound of `n` is 0; a traced program takes sizes >= 1"):
        rx.optimize(chain, *CHAIN, bounds={"n": (0, 0)})
    with says(BoundsError, "the bounds of `n` hold 'a', which is no integer; accepted: (low, high)", ""):
        rx.optimize(chain, *CHAIN, bounds={"n": ("a", 5)})  # type: ignore[dict-item]
    with says(BoundsError, "chain(): n = 9 exceeds its bound 5 (declared in optimize(bounds=...))", ""):
        rx.optimize(chain, *CHAIN, bounds={"n": (1, 5)}, at={"n": 9})
    with says(BoundsError, "<lambda>(): no size is named `m` (at={'m': ...}); it has no symbolic sizes"):
        rx.optimize(lambda x: x, "3", at={"m": 3})


def test_one_integer_fixes_a_size() -> None:
    assert rx.optimize(chain, *CHAIN, bounds={"n": 5}).report.at == {"n": 5}


def test_what_is_no_function() -> None:
    with says(OptionError, "optimize takes a function or a module, got int"):
        rx.optimize(3, "n")  # type: ignore[arg-type]
    with says(TraceError, "trace takes a function, got int"):
        rx.trace(3, "n")  # type: ignore[arg-type]
    with says(OptionError, "optimize(module) takes no specs: a module's parameters say their own shapes"):
        rx.optimize(rx.trace(chain, *CHAIN), "n")


# --- calls ---


@pytest.fixture(scope="module")
def best() -> rx.types.Optimized:
    return rx.optimize(chain, *CHAIN, at={"n": 64}, bounds={"n": (1, 128)})


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ("rank", (ones(3, 3), ones(3), ones(3)), {}, ShapeError,
     "chain(): argument `b` should have 2 axes (n, n), got 1: (3,)"),
    ("scalar", (1.0, ones(2, 2), ones(2)), {}, ShapeError,
     "chain(): argument `a` should have 2 axes (n, n), got a scalar"),
    ("dtype", (ones(3, 3), ones(3, 3), ones(3, dtype="int32")), {}, ShapeError,
     "chain(): argument `v` should be float32, got int32; convert it, or optimize for that dtype"),
    ("shared", (ones(3, 3), ones(3, 4), ones(3)), {}, ShapeError,
     "chain(): argument `b`, axis 1 should be n = 3 (from argument `a`), got 4"),
    ("bounds", (ones(200, 200), ones(200, 200), ones(200)), {}, BoundsError,
     "chain(): n = 200 exceeds its bound 128 (declared in optimize(bounds=...)); raise the bound or split the input"),
    ("few", (ones(3, 3), ones(3, 3)), {}, ShapeError, "chain(): missing a required argument: 'v'"),
    ("many", (ones(3, 3), ones(3, 3), ones(3), ones(3)), {}, ShapeError, "chain(): too many positional arguments"),
    ("keyword", (ones(3, 3), ones(3, 3), ones(3)), {"w": 1}, ShapeError,
     "chain(): got an unexpected keyword argument 'w'"),
    ("pytree", ({"a": ones(3, 3)}, ones(3, 3), ones(3)), {}, ShapeError,
     "chain(): argument `a` should be an array, got a pytree {'a': *}"),
    ("None", (None, ones(3, 3), ones(3)), {}, ShapeError,
     "chain(): argument `a` should be an array, got a pytree None"),
    ("text", ("hello", ones(3, 3), ones(3)), {}, ShapeError,
     "chain(): argument `a` is of type str; an array or number is accepted"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "kwargs", "error", "text"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_wrong_calls(
    best: rx.types.Optimized, args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], text: str
) -> None:
    with says(error, text):
        best(*args, **kwargs)
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        best.to_jax()(*args, **kwargs)


def test_wrong_calls_of_what_is_kept_as_written() -> None:
    kept = rx.optimize(lambda x, y: jnp.tanh(x) + y, "n", "n")
    assert kept.report.kept_as_written
    with says(ShapeError, "main(): argument `y`, axis 0 should be n = 3 (from argument `x`), got 4"):
        kept(ones(3), ones(4))


def test_float64_of_numpy_is_taken_as_jax_takes_it(best: rx.types.Optimized) -> None:
    assert best(ones(3, 3), ones(3, 3), np.ones(3)).dtype == jnp.float32


def test_wrong_weights() -> None:
    with says(OptionError, "prepare(): no weights were declared; pass weights=(...) to optimize"):
        rx.optimize(chain, *CHAIN).prepare(ones(3, 3))
    best = rx.optimize(chain, *CHAIN, at={"n": 64}, weights=("a", "b"))
    with says(OptionError, "prepare() takes the weights a, b; got a"):
        best.prepare(ones(3, 3))
    with says(OptionError, "prepare() takes the weights a, b; got a, c"):
        best.prepare(ones(3, 3), c=ones(3, 3))
    with says(OptionError, "prepare() takes the weights a, b; got a, b, a"):
        best.prepare(ones(3, 3), ones(3, 3), a=ones(3, 3))
    with says(ShapeError, "argument `b` should be float32, got int32", ""):
        best.prepare(ones(3, 3), ones(3, 3, dtype="int32"))
    with says(ShapeError, "prepare(): argument `a` should have 2 axes (n, n), got 1: (3,)"):
        best.prepare(ones(3), ones(3, 3))
    with says(ShapeError, "prepare(): argument `b`, axis 0 should be n = 3 (from argument `a`), got 4"):
        best.prepare(ones(3, 3), ones(4, 4))
    ready = best.prepare(ones(3, 3), ones(3, 3))
    with says(ShapeError, "chain(): argument `v`, axis 0 should be n = 3 (from argument `a`), got 4"):
        ready(ones(4))
    with says(ShapeError, "chain(): argument `v` should have 1 axis (n), got 2: (3, 3)"):
        ready(ones(3, 3))
    with says(ShapeError, "chain(): missing a required argument: 'v'"):
        ready()
    with says(ShapeError, "chain(): too many positional arguments"):
        ready(ones(3), ones(3))


# --- functions that cannot be traced ---


def test_python_control_flow_on_a_size() -> None:
    def branch(x: Array) -> Array:
        return x if x.shape[0] > 3 else x + 1

    with says(
        TraceError,
        "cannot trace `branch` (test_bad_input.py:",
        "Symbolic dimension comparison 'n' > '3' is inconclusive",
        "return x if x.shape[0] > 3 else x + 1",
        "accepted: an integer for that size in the spec, declared bounds that decide the comparison",
    ):
        rx.optimize(branch, "n")
    assert rx.optimize(branch, "n", bounds={"n": (4, 9)})(ones(4)).shape == (4,)


def test_python_control_flow_on_a_value() -> None:
    def branch(x: Array) -> Array:
        return x if x[0] > 3 else x + 1

    with says(TraceError, "cannot trace `branch`", "return x if x[0] > 3 else x + 1", "accepted: jnp.where"):
        rx.optimize(branch, "n")


def test_numpy_on_a_traced_array() -> None:
    with says(TraceError, "cannot trace `<lambda>` (test_bad_input.py:", "accepted: jax.numpy instead of numpy"):
        rx.optimize(lambda x: np.asarray(x) + 1, "n")


def test_a_result_that_is_no_array() -> None:
    with says(TraceError, "result['y'] is of type str", "accepted: arrays, numbers and pytrees of them"):
        rx.optimize(lambda x: {"y": "no"}, "n")


def test_what_the_function_itself_raises() -> None:
    def broken(x: Array) -> Array:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rx.optimize(broken, "n")


# --- strange, but right ---


def test_size_zero_is_below_the_bound_of_a_symbolic_size(best: rx.types.Optimized) -> None:
    with says(BoundsError, "chain(): n = 0 is below its bound 1", ""):
        best(ones(0, 0), ones(0, 0), ones(0))


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_static_sizes_of_zero(m: int, k: int, n: int) -> None:
    args = ones(m, k), ones(k, n), ones(n)
    found, expected = rx.optimize(chain, *args)(*args), chain(*args)
    assert found.shape == expected.shape and np.array_equal(found, expected)


def test_sizes_of_one(best: rx.types.Optimized) -> None:
    assert best(2 * ones(1, 1), ones(1, 1), ones(1)).tolist() == [2.0]


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_flow_as_in_the_original(special: float) -> None:
    def program(m: Array, v: Array) -> tuple[Array, ...]:
        doubled = jnp.negative(jnp.negative(m)) * 1.0
        return jnp.maximum(doubled, doubled), jnp.where(v > 0, v, v), jnp.abs(-v), (m.T @ m.T).T @ v, jnp.sum(m.T, 0)

    best = rx.optimize(program, "n n", "n", at={"n": 512})
    assert not best.report.kept_as_written
    m = np.arange(16, dtype=np.float32).reshape(4, 4) + 1
    m[1, 2] = special
    v = np.array([1, 2, 3, 4], np.float32)
    for ours, theirs in zip(best(m, v), jax.jit(program)(m, v), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    v[3] = special
    for ours, theirs in zip(best(np.ones_like(m), v), jax.jit(program)(np.ones_like(m), v), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_scalars() -> None:
    best = rx.optimize(lambda x, y: x * 1.0 + y, "", "")
    for x, y in ((1.0, 2), (np.float32(1), 2.0), (ones(), ones() + 1)):
        assert best(x, y) == 3.0 and best(x, y).dtype == jnp.float32
        assert best.to_jax()(x, y) == 3.0
    with says(ShapeError, "main(): argument `y` should be float32, got complex64; ", ""):
        best(1.0, 2j)
    whole = rx.optimize(lambda x: x + 1, "@ int32")
    for run in (whole, whole.to_jax()):
        with says(ShapeError, "main(): argument `x` should be int32, got float32; ", ""):
            run(2.5)


def test_empty_pytrees_and_no_results() -> None:
    assert rx.optimize(lambda p, x: (p, x * 1.0), {}, "n")({}, ones(2))[0] == {}
    assert rx.optimize(lambda x: None, "n")(ones(2)) is None
    assert rx.optimize(lambda x: (), "n")(ones(2)) == ()
    assert rx.optimize(lambda: jnp.ones(3))().tolist() == [1, 1, 1]
    assert rx.optimize(lambda x: x, "n")(ones(2)).tolist() == [1, 1]
    assert rx.optimize(lambda x: [x, x, {"x": x}], "n")(ones(1))[2]["x"].tolist() == [1]


@pytest.mark.parametrize("budget", [rx.Budget(nodes=0), rx.Budget(seconds=0)])
def test_budget_zero_keeps_the_program(budget: rx.Budget) -> None:
    best = rx.optimize(chain, *CHAIN, at={"n": 512}, budget=budget)
    assert best.report.kept_as_written and best.report.rules == {}
    assert best.report.stop in ("node limit", "time limit")
    assert best(ones(2, 2), ones(2, 2), ones(2)).tolist() == [4, 4]


def test_no_rules_keep_the_program() -> None:
    best = rx.optimize(chain, *CHAIN, at={"n": 512}, rules=rx.RuleSet("none"))
    assert best.report.kept_as_written
    assert best(ones(2, 2), ones(2, 2), ones(2)).tolist() == [4, 4]


def test_a_refuted_rule_does_not_run() -> None:
    book = rx.RuleSet("bad")

    @book.rule("a: n n, b: n n", check=False)
    def commutes(a: Array, b: Array) -> Any:
        """A B = B A"""
        return a @ b, b @ a

    with says(
        RuleError, "test_bad_input.py:", "rule `commutes`: is refuted and does not run", "a @ b", "b @ a", "at n="
    ):
        rx.optimize(chain, *CHAIN, rules=rx.rules.default + book)
