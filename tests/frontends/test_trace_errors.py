"""Functions that cannot be traced: the user's line, JAX's reason in a sentence, what would do."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from relax_eg.errors import TraceError
from relax_eg.frontends import trace
from relax_eg.frontends.trace_errors import undecided_comparison, undecided_extreme


def branch(x):
    if x.sum() > 0:
        return x
    return -x


def size_branch(x):
    return x * 2 if x.shape[0] > 3 else x


def uses_numpy(x):
    return np.sin(x)


def mismatch(x, w):
    return x @ w


def boolean_index(x):
    return x[x > 0]


def returns_text(x):
    return x, "text"


def non_array(x):
    return jnp.sin("a") + x


def loops(x):
    for _ in range(int(x.sum())):
        x = x + 1
    return x


def squeezes(x):
    return jnp.squeeze(x)


def cut_at_size(x, p):
    return x + p[: x.shape[0] - 1]


def root_of_size(x):
    return x / math.sqrt(x.shape[-1])


def power_of_size(x):
    return x * x.shape[-1] ** -0.5


def filled_by_numpy(x):
    return np.zeros(x.shape[0]) + x


def padded_transform(x):
    return jnp.fft.rfft(x, 2 * x.shape[0])


def in_rows(x):
    return jnp.concatenate([x, x[:1]]).reshape(-1, 4)


def numbered(x):
    return x * len(x)


def slope_of_product(x):
    return jax.grad(jnp.prod)(x)


@pytest.mark.parametrize(
    ("fn", "specs", "pieces"),
    [
        (branch, ("n",), ("Attempted boolean conversion", "if x.sum() > 0:", "lax.cond")),
        (size_branch, ("n",), ("'n' > '3' is inconclusive", "if x.shape[0] > 3", "an integer for that size")),
        (uses_numpy, ("n",), ("np.sin(x)", "jax.numpy instead of numpy")),
        (
            mismatch,
            ("n 4", "5 4"),
            ("x @ w", "(4,) and (5,)", "with x (n, 4) float32, w (5, 4) float32", "sizes and dtypes"),
        ),
        (mismatch, ("n k", "m k"), ("x @ w", "equal sizes need equal names")),
        (boolean_index, ("n",), ("x[x > 0]", "jnp.where with three arguments")),
        (returns_text, ("n",), ("result[1] is of type str", "accepted: arrays, numbers")),
        (non_array, ("n",), ('jnp.sin("a") + x', "accepted: arrays, numbers")),
        (loops, ("n",), ("for _ in range(int(x.sum())):", "accepted: ")),
        (
            root_of_size,
            ("n",),
            ("must be real number, not a symbolic size", "math.sqrt(x.shape", "jnp.sqrt(x.shape[-1])"),
        ),
        (power_of_size, ("n",), ("non-integer powers", "x.shape[-1] ** -0.5", "jnp.sqrt(x.shape[-1])")),
        (filled_by_numpy, ("n",), ("got 'n'\n", "np.zeros(x.shape[0]) + x", "jnp.zeros instead of np.zeros")),
        (padded_transform, ("n",), ("as an integer, in JAX's `rfft`\n", "accepted: an integer", "rx.jit without dims")),
        (size_branch, ("n",), ("every size; bounds='n > 3' or bounds='n <= 3', which decides it",)),
        (
            cut_at_size,
            ("n 4", "16 4"),
            ("equal sizes need equal names; bounds='n - 1 <= 16' or bounds='n - 1 > 16', which decides it",),
        ),
        (
            in_rows,
            ("n",),
            ("accepted: `4*n-1` in place of `n` in the specs, so that the division leaves no remainder",),
        ),
        (numbered, ("n",), ("as an integer\n", "x.shape[0] instead of len(x)")),
        (slope_of_product, ("n",), ("return jax.grad(jnp.prod)(x)", "an integer for that size")),
        (squeezes, ("n 1",), ("shape polymorphism", "an integer for that size")),
    ],
)
def test_text(fn, specs, pieces) -> None:
    with pytest.raises(TraceError) as caught:
        trace(fn, *specs)
    text = str(caught.value)
    assert text.startswith(f"cannot trace `{fn.__name__}` (test_trace_errors.py:{fn.__code__.co_firstlineno}): ")
    for piece in pieces:
        assert piece in text, text
    assert caught.value.__cause__ is None
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 4


def test_debug_keeps_the_original(monkeypatch) -> None:
    monkeypatch.setenv("RELAX_EG_DEBUG", "3")
    with pytest.raises(TraceError) as caught:
        trace(branch, "n")
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)


def test_the_functions_own_errors_are_its_own() -> None:
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(fn, "n")
    with pytest.raises(AttributeError, match="has no attribute 'sqrtt'"):
        trace(lambda x: getattr(jnp, "sqr" + "tt")(x), "n")


def test_closed_over_references_are_refused() -> None:
    ref = jax.new_ref(jnp.ones(3))
    with pytest.raises(TraceError, match="closes over"):
        trace(lambda x: ref[...] + x, "3")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("add got incompatible shapes: (4, min(128, n - 1)), (4, n - 1).", ("n - 1 <= 128", "n - 1 > 128")),
        ("(max(n, 2*m), 3) and (n, 3)", ("n <= 2*m", "n > 2*m")),
        ("(min(n, floordiv(m + 3, 4)),)", ("n <= ceildiv(m, 4)", "n > ceildiv(m, 4)")),
        ("(4, 5) and (5, 4)", None),
        ("minimum of (3", None),
        ("min(what, is this)", None),
    ],
)
def test_what_would_decide_shapes_that_do_not_fit(text: str, found: tuple[str, str] | None) -> None:
    assert undecided_extreme(text) == found


def test_what_jax_cannot_decide_is_proved_or_told() -> None:
    (n,) = export.symbolic_shape("n")
    with pytest.raises(Exception, match="inconclusive") as error:
        bool(n * n > 6)
    assert undecided_comparison(error.value) == ("n**2 > 6", "n**2 <= 6")
    assert undecided_comparison(ValueError("no")) is None
    with pytest.raises(Exception, match="divide evenly") as error:
        jax.eval_shape(lambda x: x.reshape(2, -1), jax.ShapeDtypeStruct((3 * n,), "float32"))
    assert undecided_comparison(error.value) == ("mod(3*n, - 2) == 0", "mod(3*n, - 2) != 0")
    rows = trace(lambda x: x.reshape(-1, 8), "(n + -n % 8)")  # a multiple of 8 for all n
    assert str(rows.main.annotation.shape) == str(trace(lambda x: x, "ceildiv(n,8) 8").main.annotation.shape)
    assert rows.main.assume == ()
