"""Sizes and relations in the syntax of `jax.export.SymbolicScope` constraints.

JAX reads `+ - * ^`, `floordiv(a, b)`, `mod(a, b)`, `max(a, b)`, `min(a, b)`, and the comparisons `== <= >=`. A select
is expressed by max and min.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.limits import KEPT
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.division import dim_max, dim_min
from relax_eg.shapes.expression import fold_expression
from relax_eg.shapes.piecewise import without_selects
from relax_eg.shapes.relation import Relation

# JAX prints floor division and remainder as functions, and a power with `^`.
JAX_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "max": dim_max,
    "min": dim_min,
    "floordiv": lambda a, b: Dim.of(a) // b,
    "mod": lambda a, b: Dim.of(a) % b,
}


@lru_cache(KEPT)
def dim_of_jax(text: str) -> Dim:
    """Returns the size for the text of a symbolic dimension of JAX."""
    return fold_expression(text.replace("^", "**"), Dim.of, Dim.var, JAX_FUNCTIONS)


def constraints_of_jax(scope: str) -> tuple[str, ...]:
    """Returns the constraints in the text of a `jax.export.SymbolicScope`."""
    _, _, text = scope.partition(" with constraints:")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


@dataclass(frozen=True, slots=True)
class _JaxSum:
    """A sum for `Dim.evaluate`, as the texts of its terms. JAX reads no parentheses around a sum."""

    terms: tuple[str, ...]

    @property
    def text(self) -> str:
        return " + ".join(self.terms)

    def __add__(self, other: _JaxSum | int) -> _JaxSum:
        return self if other == 0 else _JaxSum(self.terms + _as_jax_sum(other).terms)

    def __radd__(self, other: int) -> _JaxSum:
        return self if other == 0 else _as_jax_sum(other) + self

    def __mul__(self, other: _JaxSum | int) -> _JaxSum:
        return self if other == 1 else _JaxSum(tuple(f"{a}*{b}" for a in self.terms for b in _as_jax_sum(other).terms))

    def __rmul__(self, other: int) -> _JaxSum:
        return self if other == 1 else _as_jax_sum(other) * self

    def __neg__(self) -> _JaxSum:
        return -1 * self

    def __floordiv__(self, other: _JaxSum | int) -> _JaxSum:
        return _call("floordiv", self, other)

    def __rfloordiv__(self, other: int) -> _JaxSum:
        return _call("floordiv", other, self)

    def __mod__(self, other: _JaxSum | int) -> _JaxSum:
        return _call("mod", self, other)

    def __rmod__(self, other: int) -> _JaxSum:
        return _call("mod", other, self)

    def max(self, other: _JaxSum | int) -> _JaxSum:
        return _call("max", self, other)

    def rmax(self, other: int) -> _JaxSum:
        return _call("max", other, self)

    def min(self, other: _JaxSum | int) -> _JaxSum:
        return _call("min", self, other)

    def rmin(self, other: int) -> _JaxSum:
        return _call("min", other, self)


def _as_jax_sum(value: _JaxSum | int) -> _JaxSum:
    return value if isinstance(value, _JaxSum) else _JaxSum((str(value),))


def _call(function: str, a: _JaxSum | int, b: _JaxSum | int) -> _JaxSum:
    return _JaxSum((f"{function}({_as_jax_sum(a).text}, {_as_jax_sum(b).text})",))


def jax_text(dim: Dim) -> str:
    """Returns `dim` in JAX's syntax."""
    return _as_jax_sum(without_selects(dim).evaluate({name: _JaxSum((name,)) for name in dim.variables})).text


def jax_constraint(relation: Relation) -> str | None:
    """Returns the relation in JAX's syntax, or None if it has none (`!=`)."""
    left, op, right = relation.left, relation.op, relation.right
    match op:
        case "!=":
            return None
        case "<":
            return f"{jax_text(left + 1)} <= {jax_text(right)}"
        case ">":
            return f"{jax_text(left)} >= {jax_text(right + 1)}"
        case _:
            return f"{jax_text(left)} {op} {jax_text(right)}"
