"""What the `jax.export` scopes of symbolic dimensions say is known of the arguments, and checked when they come."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relax_eg as rx
from relax_eg.errors import BoundsError, SpecError
from relax_eg.frontends import trace_function
from relax_eg.shapes import Proved, prove


def structs(text: str, *constraints: str) -> list[jax.ShapeDtypeStruct]:
    """One matrix for each pair of sizes in `text`, all of one scope."""
    dims = jax.export.symbolic_shape(text, constraints=constraints)
    return [jax.ShapeDtypeStruct(dims[i : i + 2], jnp.float32) for i in range(0, len(dims), 2)]


def double(x):
    return x + x


def twice_transposed(x):
    return (x.T @ jnp.ones((x.shape[0], 4))).T


def test_constraints_are_read() -> None:
    (x,) = structs("b, s", "mod(s, 8) == 0", "b*s <= 4096", "s >= 16")
    scope = trace_function(double, (x,)).arguments.scope
    assert "mod(s, 8) == 0" in scope.assumptions
    assert "b*s <= 4096" in scope.assumptions
    assert scope.bounds("s") == (16, None)
    assert isinstance(prove("s % 4 == 0", scope), Proved)
    assert isinstance(prove("b <= 256", scope), Proved)
    assert trace_function(double, ("b s",)).arguments.scope.assumptions == ()


def test_a_function_may_compare_sizes_that_constraints_decide() -> None:
    def padded(x):
        return x if x.shape[1] >= 16 and x.shape[1] % 8 == 0 else jnp.pad(x, ((0, 0), (0, 8)))

    (x,) = structs("b, s", "mod(s, 8) == 0", "s >= 16")
    assert rx.trace(padded, x).main.result.annotation == rx.Tensor("b s")
    with pytest.raises(rx.errors.TraceError, match="comparison 's' >= '16' is inconclusive"):
        rx.trace(padded, "b s")


def test_guards_of_rules_use_them() -> None:
    book = rx.RuleSet("guarded")

    @book.rule("x: m n", when="n <= 64", numerics="exact")
    def narrow_double_transpose(x):
        """A'' = A, told only of narrow matrices"""
        return x.T.T, x

    def fired(spec) -> bool:
        report = rx.optimize(lambda x: jnp.tanh(x).T.T, spec, rules=book).report
        return bool(report.matches.get("narrow_double_transpose"))

    (free,) = structs("m, n")
    (narrow,) = structs("m, n", "n <= 64")
    (product,) = structs("m, n", "m*n <= 64")
    assert not fired(free)
    assert fired(narrow)
    assert fired(product)


def test_calls_are_checked() -> None:
    x, _ = structs("b, s, s, 4", "mod(s, 8) == 0", "b*s <= 4096")
    best = rx.optimize(double, x)
    np.testing.assert_array_equal(best(np.ones((2, 16), np.float32)), np.full((2, 16), 2))
    with pytest.raises(BoundsError) as error:
        best(np.ones((2, 12), np.float32))
    assert str(error.value) == "double(): the assumption `mod(s, 8) == 0` does not hold at s = 12"
    with pytest.raises(BoundsError, match=r"the assumption `b\*s <= 4096` does not hold at b = 64, s = 128"):
        best(np.ones((64, 128), np.float32))


def test_sizes_that_are_assumed_satisfy_them() -> None:
    (x,) = structs("b, s", "mod(s, 48) == 0", "b*s <= 4096")
    assert rx.optimize(double, x).report.at == {"b": 64, "s": 48}
    assert rx.optimize(double, x, at={"b": 80}).report.at == {"b": 80, "s": 48}
    with pytest.raises(BoundsError) as error:
        rx.optimize(double, x, at={"b": 100})
    assert str(error.value).split("\n  ") == [
        "no sizes satisfy all of",
        "b >= 100 (declared in at=...)",
        "s >= 1 (every size is at least 1 unless declared otherwise)",
        "mod(s, 48) == 0",
        "b*s <= 4096",
        "accepted: assumptions that some sizes satisfy together",
    ]
    with pytest.raises(BoundsError, match=r"double\(\): the assumption `mod\(s, 48\) == 0` does not hold at s = 64"):
        rx.optimize(double, x, at={"s": 64})


def test_they_meet_the_bounds_that_are_given() -> None:
    (x,) = structs("b, s", "s >= 16", "mod(s, 8) == 0")
    best = rx.optimize(double, x, bounds={"s": (1, 64), "b": (1, 4)})
    assert best.report.at == {"b": 4, "s": 64}
    with pytest.raises(BoundsError) as error:
        rx.optimize(double, x, bounds={"s": (1, 8)})
    assert str(error.value).startswith(
        "no size satisfies the bounds of `s`: at least 16 (declared in the assumption `s >= 16`) "
        "and at most 8 (declared in optimize(bounds=...))"
    )


def test_equalities_and_nested_arguments() -> None:
    n, m, k = jax.export.symbolic_shape("n, m, k", constraints=["n == 2*m", "floordiv(k, 2) == m"])
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, k), (k, m)))
    traced = trace_function(lambda params, *, x: x @ params["w"], ({"w": w},), {"x": x})
    assert [leaf.annotation for leaf in traced.leaves] == [rx.Tensor("k m"), rx.Tensor("2*m k")]
    # JAX has put 2*m for n, which no argument has: what is said of n cannot be checked.
    assert "n == 2*m" not in traced.arguments.scope.assumptions
    assert isinstance(prove("k >= 2*m", traced.arguments.scope), Proved)


def test_what_no_argument_tells_is_not_believed() -> None:
    b, _, _ = jax.export.symbolic_shape("b, s, n", constraints=["s <= b", "b <= n", "n <= 8"])
    scope = trace_function(double, (jax.ShapeDtypeStruct((b,), jnp.float32),)).arguments.scope
    assert scope.assumptions == ()
    assert scope.bounds("b") == (1, None)
    rx.optimize(double, jax.ShapeDtypeStruct((b,), jnp.float32))(np.ones(100, np.float32))
    with pytest.raises(rx.errors.TraceError, match="comparison 'b' <= '8' is inconclusive"):
        rx.trace(lambda x: x if x.shape[0] <= 8 else -x, jax.ShapeDtypeStruct((b,), jnp.float32))


def test_constraints_that_contradict_each_other() -> None:
    (x,) = structs("b, s", "mod(s, 8) == 3", "s >= 4", "mod(s, 4) == 1")
    with pytest.raises(BoundsError) as error:
        rx.optimize(double, x)
    assert str(error.value).split("\n  ")[:3] == ["no sizes satisfy all of", "mod(s, 8) == 3", "mod(s, 4) == 1"]


def test_two_scopes_with_one_name() -> None:
    (x,), (y,) = structs("n, 4", "n >= 2"), structs("n, 4", "n >= 3")
    (other,) = structs("m, 4", "m <= 7")
    with pytest.raises(SpecError) as error:
        rx.trace(lambda x, y: (x, y), x, y)
    assert str(error.value) == (
        "argument `y`: `n` is of another jax.export.SymbolicScope than the `n` of argument `x`\n"
        "  accepted: symbolic_shape(..., scope=scope) with the same scope for both"
    )
    scope = trace_function(lambda x, y: (x, y), (x, other)).arguments.scope
    assert scope.bounds("n") == (2, None)
    assert scope.bounds("m") == (1, 7)


def test_a_function_under_jit_exports_with_constraints() -> None:
    (x,) = structs("b, s", "mod(s, 8) == 0", "s <= 64")
    exported = jax.export.export(jax.jit(rx.jit(double)))(x)
    np.testing.assert_array_equal(exported.call(np.ones((2, 16), np.float32)), np.full((2, 16), 2))


def test_ours_go_to_jax_and_come_back() -> None:
    scope = rx.shapes.Scope(
        {"b": (1, 16), "s": (8, None)},
        assume=["s % 8 == 0", "b*s < 4096", "max(s, 7)*ceildiv(s, 2) >= b", "select(b <= 4, s, 2*s) >= 16"],
    )
    (x,) = structs("b, s", *scope.to_constraints())
    back = trace_function(double, (x,)).arguments.scope
    for statement in ("s % 4 == 0", "b <= 16", "s <= 4095", "select(b <= 4, s, 2*s) >= 16"):
        assert isinstance(prove(statement, back), Proved), statement
