"""A function that JAX cannot trace for symbolic sizes, made traceable by its traces for several sizes.

`len(x)`, `np.arange(n)` and `jnp.interp` need numbers. Traced for numbers, such a function is often the same program at
all sizes, in which only numbers differ: where they are the sizes of operands at all of these sizes, or follow from one
by a sum or a product, they are taken for these. That is a guess. `frontends.trace_check` compares the program with the
function's own trace at each combination of sizes that runs it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from relax_eg.errors import TraceError
from relax_eg.frontends.jax.equation import called_jaxpr
from relax_eg.frontends.symbolic import is_symbolic

Values = tuple[Any, ...]  # what stands at one place of each trace

# Floating numbers that are computed from a size, but for a factor: in Python, and by JAX.
_OF_SIZES: Sequence[tuple[Callable[[float], float], Callable[[Any], Any]]] = (
    (float, lambda n: n * 1.0),
    (lambda n: 1 / n, lambda n: 1 / n),
    (math.sqrt, jnp.sqrt),
    (lambda n: 1 / math.sqrt(n), lambda n: 1 / jnp.sqrt(n)),
)
# Sizes that are computed from two others, and the second one by the result and the first one.
_OF_TWO: Sequence[tuple[Callable[[Any, Any], Any], Callable[[int, int], int | None]]] = (
    (operator.mul, lambda v, n: v // n if n and v % n == 0 else None),
    (operator.add, operator.sub),
    (operator.sub, lambda v, n: n - v),
)
_ROUNDED = 1e-6  # chosen: relative difference between numbers that were computed from sizes in float32 and float64


def generalized(fn: Callable[..., Any], examples: Sequence[Sequence[Any]]) -> Callable[..., Any]:
    """`fn`, a function of arrays. Where a size of an argument is symbolic, its results are those of what its traces for
    `examples` have in common. `examples`: several lists of arguments, as shapes and dtypes, of different sizes.

    The function returned raises TraceError where the traces differ in more than numbers.
    """

    @functools.wraps(fn)
    def run(*xs: Any) -> Any:
        if not any(is_symbolic(n) for x in xs for n in np.shape(x)):
            return fn(*xs)
        try:
            traces = [jax.make_jaxpr(fn, return_shape=True)(*arguments) for arguments in examples]
        except Exception as e:
            raise TraceError(f"it raises {type(e).__name__} where it is traced for sizes of earlier calls") from None
        structures = [jax.tree_util.tree_structure(out) for _, out in traces]
        if any(s != structures[0] for s in structures):
            raise _different("the structure of its result")
        if any(closed.effects for closed, _ in traces):
            raise TraceError("it has effects")
        sizes = _Sizes()
        for x, *given in zip(xs, *examples, strict=True):
            sizes.learn(x.shape, [g.shape for g in given])
        return jax.tree_util.tree_unflatten(structures[0], _Common(sizes).applied([closed for closed, _ in traces], xs))

    return run


def _different(what: str) -> TraceError:
    return TraceError(f"its traces for sizes of earlier calls differ in {what}")


class _Sizes:
    """The symbolic sizes that a program has so far, by their values in each trace."""

    def __init__(self) -> None:
        self._known: dict[Values, Any] = {}

    def learn(self, shape: Sequence[Any], at: Sequence[Sequence[int]]) -> None:
        """Takes note of the sizes of a value. `at`: its sizes in each trace."""
        for size, *numbers in zip(shape, *at, strict=True):
            if is_symbolic(size):
                self._known.setdefault(tuple(numbers), size)

    def number(self, values: Values) -> Any:
        """The size with these values, an int where all are equal."""
        if len(set(values)) == 1:
            return values[0]
        found = self._known.get(values)
        if found is None:
            found = self._known[values] = self._derived(values)
        return found

    def _derived(self, values: Values) -> Any:
        known = list(self._known.items())
        lines = [(*line, size) for numbers, size in known if (line := _line(numbers, values)) is not None]
        whole = [(factor, more, size) for factor, more, divisor, size in lines if divisor == 1]
        for factor, more, size in sorted(whole, key=lambda line: (line[0] != 1, line[1] != 0)):
            if factor == 1 or more == 0:
                return size * factor + more
        for of_two, missing in _OF_TWO:
            for numbers, size in known:
                other = self._known.get(tuple(map(missing, values, numbers)))
                if other is not None:
                    return of_two(size, other)
        for factor, more, size in whole:
            return size * factor + more
        for factor, more, divisor, size in lines if len(values) > 2 else ():  # there is one through any two points
            dividend = size * factor + more
            rest = dividend % divisor
            if is_symbolic(rest):
                raise TraceError(f"{rest} may not be 0", (f"{rest} == 0", f"{rest} != 0"))
            return dividend // divisor
        raise _different(f"the numbers {', '.join(map(str, values))}")

    def floating(self, values: Values) -> Any:
        """A floating number that is computed from a size and has these values."""
        if all(v.is_integer() for v in values):
            with suppress(TraceError):
                return self.number(tuple(map(int, values))) * 1.0
        for numbers, size in list(self._known.items()):
            for exact, traced in _OF_SIZES:
                factors = [v / exact(n) if n > 0 else 0.0 for n, v in zip(numbers, values, strict=True)]
                if factors[0] and all(math.isclose(f, factors[0], rel_tol=_ROUNDED) for f in factors):
                    return traced(size) * (1.0 if math.isclose(factors[0], 1, rel_tol=_ROUNDED) else factors[0])
        raise _different(f"the numbers {', '.join(map(str, values))}")


def _line(numbers: Values, values: Values) -> tuple[int, int, int] | None:
    """The integers a, b and c > 0 for which `(a * n + b) / c` takes numbers to values; None if there are none."""
    if numbers[-1] == numbers[0]:
        return None
    slope = Fraction(values[-1] - values[0], numbers[-1] - numbers[0])
    a, c = slope.numerator, slope.denominator
    b = c * values[0] - a * numbers[0]
    return (a, b, c) if all(c * v == a * n + b for n, v in zip(numbers, values, strict=True)) else None


class _Common:
    """What several jaxprs have in common, applied to arrays: the same equations, in which only numbers differ."""

    def __init__(self, sizes: _Sizes) -> None:
        self._sizes = sizes

    def applied(self, functions: Sequence[Any], args: Iterable[Any]) -> list[Any]:
        """The results of the jaxprs `functions`, closed or not, for these operands."""
        jaxprs = [f.jaxpr if isinstance(f, ClosedJaxpr) else f for f in functions]
        if len({(len(j.eqns), len(j.invars), len(j.constvars), len(j.outvars)) for j in jaxprs}) > 1:
            raise _different("their equations")
        consts = [getattr(f, "consts", ()) for f in functions]
        values = [*map(self._constant, zip(*consts, strict=True)), *args]
        envs = [dict(zip([*j.constvars, *j.invars], values, strict=True)) for j in jaxprs]
        for eqns in zip(*(j.eqns for j in jaxprs), strict=True):
            with source_info_util.user_context(eqns[0].source_info.traceback):
                results = self._equation(eqns, [self._read(envs, atoms) for atoms in _aligned(e.invars for e in eqns)])
            for variables, result in zip(_aligned(e.outvars for e in eqns), results, strict=True):
                self._sizes.learn(result.shape, [v.aval.shape for v in variables])
                for env, v in zip(envs, variables, strict=True):
                    env[v] = result
        return [self._read(envs, atoms) for atoms in _aligned(j.outvars for j in jaxprs)]

    def _read(self, envs: Sequence[dict[Any, Any]], atoms: Values) -> Any:
        if all(isinstance(a, Literal) for a in atoms):
            return self._literal(atoms)
        found = [None if isinstance(a, Literal) else env[a] for env, a in zip(envs, atoms, strict=True)]
        if any(x is not found[0] for x in found):
            raise _different("what an equation reads")
        return found[0]

    def _literal(self, atoms: Values) -> Any:
        values, aval = tuple(a.val for a in atoms), atoms[0].aval
        if any(isinstance(v, jax.Array) for v in values):
            return self._constant(values)
        numbers = tuple(np.asarray(v).item() for v in values)
        if len(set(map(repr, numbers))) == 1:
            return values[0]
        if not jnp.issubdtype(aval.dtype, jnp.floating) and not jnp.issubdtype(aval.dtype, jnp.integer):
            raise _different("a number")
        floats = jnp.issubdtype(aval.dtype, jnp.floating)
        made = jnp.asarray(self._sizes.floating(numbers) if floats else self._sizes.number(numbers))
        alike = made.dtype == aval.dtype and jax.typeof(made).weak_type == aval.weak_type
        return made if alike else lax.convert_element_type(made, aval.dtype)

    def _constant(self, values: Values) -> Any:
        """An array that each trace closes over: the same in all, of one number, of numbers at equal distances, or the
        first elements of the largest."""
        if all(v is values[0] for v in values):
            return values[0]
        if any(jnp.issubdtype(v.dtype, jax.dtypes.extended) for v in values):
            raise _different("the keys that they close over")
        arrays = [np.asarray(v) for v in values]
        first = arrays[0]
        if all(np.array_equal(a, first) for a in arrays):
            return values[0]
        shape = [self._sizes.number(ns) for ns in _aligned(a.shape for a in arrays)]
        if all(a.size for a in arrays) and all(np.all(a == first.flat[0]) for a in arrays):
            return lax.full(shape, first.flat[0], first.dtype)
        step = first[1] - first[0] if first.ndim == 1 and first.size > 1 and first.dtype.kind in "iuf" else None
        if step is not None and all(np.array_equal(a, first[0] + step * np.arange(a.size)) for a in arrays):
            return lax.iota(first.dtype, shape[0]) * step + first[0]
        largest = max(arrays, key=lambda a: a.size)
        if all(np.array_equal(a, largest[tuple(map(slice, a.shape))]) for a in arrays):
            for n, most in zip(shape, largest.shape, strict=True):
                if is_symbolic(n) and not n <= most:
                    raise TraceError(f"its traces close over arrays of at most {most}")
            return lax.slice(largest, [0] * largest.ndim, shape)
        raise _different("the arrays that they close over")

    def _equation(self, eqns: Sequence[Any], args: list[Any]) -> Sequence[Any]:
        first, *others = eqns
        if any(e.primitive is not first.primitive for e in others):
            raise _different("their equations")
        called = [called_jaxpr(e) for e in eqns]
        if called[0] is not None:
            return self.applied(called, args)
        params = {k: self._parameter(tuple(e.params[k] for e in eqns)) for k in first.params}
        result = first.primitive.bind(*args, **params)
        return result if first.primitive.multiple_results else [result]

    def _parameter(self, values: Values) -> Any:
        first = values[0]
        if isinstance(first, ClosedJaxpr):
            return self._function(values)
        if type(first) is int or isinstance(first, np.integer):  # bools and members of enumerations are no numbers
            return self._sizes.number(tuple(map(int, values)))
        if isinstance(first, (tuple, list)):
            if len(set(map(len, values))) > 1:
                raise _different("a parameter")
            parts = [self._parameter(x) for x in _aligned(values)]
            return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
        if not all(_is_same(v, first) for v in values):
            raise _different("a parameter")
        return first

    def _function(self, closed: Values) -> Any:
        """The function that a loop or branch runs, for the sizes of its parameters."""
        avals: list[Any] = []
        for given in _aligned(c.in_avals for c in closed):
            shape = tuple(self._sizes.number(ns) for ns in _aligned(a.shape for a in given))
            avals.append(jax.ShapeDtypeStruct(shape, given[0].dtype, weak_type=given[0].weak_type))
        return jax.make_jaxpr(lambda *xs: self.applied(closed, xs))(*avals)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two parameters of equations are the same."""
    if a is b:
        return True
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return str(a) == str(b) if isinstance(a, Jaxpr) else bool(a == b)


def _aligned(lists: Iterable[Iterable[Any]]) -> Iterable[Values]:
    """What stands at the same place of each list. TraceError for lists of different lengths."""
    try:
        return list(zip(*lists, strict=True))
    except ValueError:
        raise _different("their equations") from None
