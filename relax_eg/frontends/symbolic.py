"""Converts JAX's symbolic dimensions to `Dim` and back.

The conversion uses the text of the dimensions (`shapes.constraints`), which `jax.export.symbolic_shape` documents and
reads back, and not the private attributes of the expression objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax import export

from relax_eg.errors import BoundsError, SpecError
from relax_eg.limits import TRACED_EXTREMES
from relax_eg.logs import raise_if_exhausted
from relax_eg.shapes import Dim
from relax_eg.shapes.constraints import JAX_FUNCTIONS, constraints_of_jax, dim_of_jax
from relax_eg.shapes.relation import atoms_of, read_statement

_MOST_DIVIDED = 4096  # limit: divisors of a divisor are searched below this number


def is_symbolic(value: Any) -> bool:
    """Whether `value` is a symbolic dimension of JAX."""
    return export.is_symbolic_dim(value)


def to_dim(size: Any) -> Dim:
    """The `Dim` of a JAX dimension: an integer or a symbolic expression."""
    return dim_of_jax(str(size)) if is_symbolic(size) else Dim.of(int(size))


def constraints_of(size: Any) -> tuple[str, ...]:
    """The constraints of the scope of a symbolic dimension of JAX, in their original spelling."""
    return constraints_of_jax(str(size.scope))


def variables_of(constraint: str) -> frozenset[str]:
    """The variables in a constraint in JAX's spelling."""
    return frozenset[str]().union(*(relation.variables for relation in read_statement(constraint.replace("^", "**"))))


class SymbolicSizes:
    """The symbolic dimensions of one trace, all in one JAX scope.

    The inclusive `bounds` become constraints of the scope, so that Python control flow can use the comparisons of sizes
    that they decide. JAX itself assumes that every variable is at least 1.
    """

    def __init__(self, bounds: Mapping[str, tuple[int, int]] | None = None) -> None:
        constraints: list[str] = []
        for name, (low, high) in (bounds or {}).items():
            if high < 1:
                raise BoundsError(f"the upper bound of `{name}` is {high}; a traced program takes sizes >= 1")
            if low > high:
                pair = f"({low}, {high})"
                raise BoundsError(f"the bounds of `{name}` are empty: {pair}; accepted: (low, high) with low <= high")
            if low > 1:  # JAX assumes `>= 1` itself, and rejects it as a constraint
                constraints.append(f"{name} >= {low}")
            constraints.append(f"{name} <= {high}")
        self._constraints = constraints
        self._hints: list[str] = []
        self.scope = export.SymbolicScope(constraints)
        self._variables: dict[str, Any] = {}
        self.annotations: dict[Any, Any] = {}  # cache of the walk of this trace, by shape and dtype

    def constrain(self, constraints: Iterable[str]) -> None:
        """Adds constraints in JAX's spelling. Call it before the first `to_jax` and the first `add_hints`."""
        self._constraints.extend(constraints)
        self.scope = export.SymbolicScope(self._constraints)

    def add_hints(self, constraints: Sequence[str]) -> None:
        """Adds constraints, and the remainders that follow from them. Leaves out constraints that JAX rejects; JAX then
        decides fewer comparisons."""
        for text in (*constraints, *_remainders(constraints)):
            try:
                self.scope = export.SymbolicScope([*self.constraints, text])
            except Exception as e:  # the constraints that JAX accepts and its exception class vary with the version
                raise_if_exhausted(e)
                continue
            self._hints.append(text)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The constraints of the scope, in JAX's spelling."""
        return (*self._constraints, *self._hints)

    @property
    def declared_constraints(self) -> tuple[str, ...]:
        """The constraints that `constrain` or the bounds gave, without those from `add_hints`."""
        return tuple(self._constraints)

    @property
    def names(self) -> tuple[str, ...]:
        """The size variables that `to_jax` has converted so far, sorted."""
        return tuple(sorted(self._variables))

    def to_jax(self, dim: Dim) -> Any:
        """The JAX dimension of `dim`: an int, or an expression over the variables of this trace."""
        if dim.is_const:
            return dim.value
        if (count := _extremes(dim)) > TRACED_EXTREMES:
            raise SpecError(
                f"the size {str(dim)!s:.80} has {count} operands of max, min and select\n"
                f"  accepted: at most {TRACED_EXTREMES} in a size that JAX traces; a name for the others, as a size"
            )
        return dim.evaluate({name: self._variable(name) for name in dim.variables})

    def known_nonnegative(self, dim: Dim) -> bool:
        """Whether JAX can prove that `dim >= 0` for all sizes."""
        if dim.is_const:
            return dim.value >= 0
        try:
            return bool(self.to_jax(dim) >= 0)
        except Exception as e:  # "inconclusive"; the class of this exception varies with the version
            raise_if_exhausted(e)
            return False

    def _variable(self, name: str) -> Any:
        found = self._variables.get(name)
        if found is None:
            if name in JAX_FUNCTIONS:
                raise SpecError(f"`{name}` is a function of sizes in JAX and cannot name one\n  accepted: another name")
            (found,) = export.symbolic_shape(name, scope=self.scope)
            self._variables[name] = found
        return found


def _extremes(dim: Dim) -> int:
    """The number of operands of max, min and select in a size; a select counts 2 more, since JAX needs several."""
    return sum(len(a.args) + 2 * (a.op == "select") for a in atoms_of(dim) if a.op in ("max", "min", "select"))


def _remainders(constraints: Iterable[str]) -> Iterator[str]:
    """The remainders by smaller divisors that follow from a known remainder: `n % 16 == 3` implies `n % 8 == 3`. JAX
    does not derive them itself."""
    for text in constraints:
        found = re.fullmatch(r"mod\((.+), (\d+)\) == (\d+)", text)
        if found is not None:
            divisor, rest = int(found[2]), int(found[3])
            for d in range(2, min(divisor, _MOST_DIVIDED)):
                if divisor % d == 0:
                    yield f"mod({found[1]}, {d}) == {rest % d}"
