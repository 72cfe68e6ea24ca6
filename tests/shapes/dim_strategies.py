"""Random dimension expressions, as Dims and by Python's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from relax_eg.errors import SpecError
from relax_eg.shapes import Dim, ceildiv, dim_max, dim_min, dim_select
from relax_eg.shapes.relation import OPERATORS

NAMES = ("k", "m", "n")
BINARY = ("+", "-", "*", "//", "%", "max", "min", "ceildiv")

# An expression: an int, a name, (operator, left, right), or (comparison, left, right, then, otherwise).
_constants = st.integers(-12, 12) | st.sampled_from([16, 24, 64])
expressions = st.recursive(
    _constants | st.sampled_from(NAMES),
    lambda inner: (
        st.tuples(st.sampled_from(BINARY), inner, inner)
        | st.tuples(st.sampled_from(["*", "//", "%", "ceildiv"]), inner, st.sampled_from([2, 3, 4, 6, 12, -2, -3]))
        | st.tuples(st.sampled_from(list(OPERATORS)), inner, inner, inner, inner)
    ),
    max_leaves=8,
)
environments = st.fixed_dictionaries({name: st.integers(-30, 30) for name in NAMES})


def apply(op, a, b):
    """The operator on two ints or two Dims."""
    dims = isinstance(a, Dim) or isinstance(b, Dim)
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "max":
            return dim_max(a, b) if dims else max(a, b)
        case "min":
            return dim_min(a, b) if dims else min(a, b)
        case _:
            return ceildiv(a, b) if dims else -(-a // b)


def build(expression) -> Dim | None:
    """The Dim of an expression; None where it divides by a constant that is zero."""
    if not isinstance(expression, tuple):
        return Dim.of(expression)
    op, left, right, *sizes = expression
    a, b = build(left), build(right)
    if a is None or b is None:
        return None
    if sizes:
        then, otherwise = map(build, sizes)
        return None if then is None or otherwise is None else dim_select(a, op, b, then, otherwise)
    try:
        return apply(op, a, b)
    except SpecError:
        assert op in ("//", "%", "ceildiv")
        return None


def value(expression, env: Mapping[str, int]) -> int | None:
    """The value by Python's own arithmetic; None where it divides by zero."""
    if not isinstance(expression, tuple):
        return env[expression] if isinstance(expression, str) else expression
    op, left, right, *sizes = expression
    a, b = value(left, env), value(right, env)
    if sizes:
        return None if a is None or b is None else value(sizes[not OPERATORS[op](a, b)], env)
    if a is None or b is None or (op in ("//", "%", "ceildiv") and b == 0):
        return None
    return apply(op, a, b)
