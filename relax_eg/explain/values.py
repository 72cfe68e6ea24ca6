"""Values for replaying a derivation: small random arguments, and the comparison of results."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.dtypes import is_key, numpy_dtype
from relax_eg.errors import BoundsError, OperatorError
from relax_eg.ir.annotations import Annotation, Shape, Tensor, Tuple, dims_of
from relax_eg.ir.expr import CONSTANT, Expr, constant_value
from relax_eg.ir.module import Function
from relax_eg.ir.partition import missing_sizes
from relax_eg.ops.difference import is_inexact, largest_difference, largest_magnitude
from relax_eg.ops.facts import FACTS, violation
from relax_eg.ops.interpret import as_arrays
from relax_eg.ops.keys import words_from_keys
from relax_eg.rules.checking.samples import adapt_values, limits
from relax_eg.rules.conditions import ValueTest
from relax_eg.rules.facts.parameter_facts import Facts
from relax_eg.shapes import Dim, Scope
from relax_eg.traversal import leaves

Array = np.ndarray[Any, Any]
# limit: largest size that is drawn without a number; largest size near a number of the program; elements of an array
# that has all axes drawn near such numbers.
_LARGEST_SMALL, _LARGEST_SIZE, _MOST_ELEMENTS = 5, 70, 1 << 12
# chosen: largest numbers near which integers and floats are drawn, because an integer may be the number of steps of a
# loop, and exponentials have to be finite.
_LARGEST_NUMBER, _LARGEST_FLOAT = 100, 12.0
_LARGEST_READ = 10**9  # limit: numbers in sizes that are collected are below it
_FEW = 16  # limit: elements of a constant whose numbers are collected
# chosen: allowed difference of float results by numerics class, in units of rounding of their dtype, relative to the
# largest value.
_ROUNDING = {"exact": 64.0, "reassociate": 4096.0, "approximate": 2.0**17, "quantised": 2.0**22}


ParameterFacts = tuple[Collection[str], Collection[ValueTest]]  # facts of a parameter, and the tests that it passes


@dataclass(frozen=True)
class ProgramNumbers:
    """Numbers in programs. Next to them the programs may behave differently.

    - `sizes`: whole numbers that may be sizes of axes.
    - `values`: numbers with which elements may be compared.
    """

    sizes: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def numbers_in(expressions: Iterable[Expr]) -> ProgramNumbers:
    """Returns the numbers in attributes and in constants of few elements, the largest first. `sizes` lacks the constant
    sizes of axes of the expressions, because sizes next to these show nothing new."""
    values: set[float] = set()
    axes: set[int] = set()
    for e in expressions:
        axes |= {d.value for d in dims_of(e.annotation) if d.is_const}
        for v in leaves(tuple(v for _, v in e.attrs), lambda v: v if isinstance(v, tuple) else None):
            if isinstance(v, Dim):
                values |= {v.value} if v.is_const else _numbers_in(v)
            elif isinstance(v, (int, float)):
                values.add(v)
        if e.op == CONSTANT and constant_value(e).size <= _FEW and constant_value(e).dtype.kind in "biuf":
            values |= set(constant_value(e).astype(np.float64).reshape(-1).tolist())
    finite = sorted((v for v in values if math.isfinite(v)), key=abs, reverse=True)
    sizes = [int(v) for v in finite if v == int(v) and _LARGEST_SMALL < v <= _LARGEST_SIZE and v not in axes]
    return ProgramNumbers(tuple(dict.fromkeys(sizes)), tuple(finite))


def draw(
    function: Function, scope: Scope, facts: Facts, seed: int, numbers: ProgramNumbers | None = None
) -> tuple[list[Any], dict[str, int]]:
    """Draws arguments of `function` that have the `facts` of its parameters, and all its sizes. From seed 2 on, sizes
    and elements are near `numbers`. OperatorError if values of a parameter's kind cannot be drawn, or no values with
    all its facts were found."""
    rng = np.random.default_rng(seed)
    some = numbers if numbers is not None and seed > 1 else ProgramNumbers()
    sizes = _sizes(function, scope, seed, some.sizes)
    given: list[Any] = []
    for p in function.params:
        name, held = str(p.attr("name")), facts.get(str(p.attr("name")), ())
        claims = sorted(f for f in held if isinstance(f, str) and f in FACTS)
        tests = [t for t in held if isinstance(t, ValueTest)]
        given.append(_value(p.annotation, (claims, tests), sizes, rng, seed, some.values))
        for fact in claims:
            if wrong := violation(fact, given[-1]):
                raise OperatorError(f"no values of `{name}` are known that are {', '.join(claims)}: {wrong}")
    return given, sizes


def _sizes(function: Function, scope: Scope, seed: int, some: Sequence[int] = ()) -> dict[str, int]:
    """Draws small sizes, different from each other if the scope allows it, because equal sizes hide a transposition.
    The first sizes are next to a number of `some`."""
    names = sorted({*function.size_variables, *missing_sizes(function)})
    found: dict[str, int] = scope.example(names, 3) if names else {}
    fixed: dict[str, int] = {}
    elements = 1
    for i, name in enumerate(names):
        wanted = 2 + (i + seed) % 4
        if some and elements * some[seed % len(some)] < _MOST_ELEMENTS:
            wanted = max(some[seed % len(some)] + 1 - i % 3, 1)
        elements *= wanted
        wish = {**fixed, name: wanted}
        try:
            found, fixed = scope.example(names, 3, wish), wish
        except BoundsError:
            fixed[name] = found[name]
    return found


def _value(
    a: Annotation, facts: ParameterFacts, sizes: Mapping[str, int], rng: Any, seed: int, some: Sequence[float]
) -> Any:
    if isinstance(a, Tuple):
        return tuple(_value(f, ((), ()), sizes, rng, seed, some) for f in a.fields)
    if isinstance(a, Shape) and a.dims is not None:
        return tuple(d.evaluate(dict(sizes)) for d in a.dims)
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None:
        raise OperatorError(f"no values are drawn for a parameter annotated {a}")
    shape = tuple(d.evaluate(dict(sizes)) for d in a.shape)
    return adapt_values(_array(a.dtype, shape, rng, seed, some), *facts, rng)


def _array(dtype: str, shape: tuple[int, ...], rng: Any, seed: int, some: Sequence[float]) -> Array:
    kind = numpy_dtype(dtype)
    if is_key(dtype):
        made = np.empty(shape, kind)
        words_from_keys(made)[...] = rng.integers(0, 1 << 32, words_from_keys(made).shape, dtype=np.uint32)
        return made
    if kind.kind == "b":
        return rng.random(shape) < 0.7
    if kind.kind in "iu" and seed > 1:
        low, high = limits(dtype)
        found = rng.integers(max(low, -3), min(high, _LARGEST_SMALL) + 1, shape).astype(kind)
        fitting = [int(v) for v in some if low < v < high and v == int(v) and abs(v) <= _LARGEST_NUMBER]
        if fitting:
            nearby = np.asarray(fitting, kind)[rng.integers(len(fitting), size=shape)] + rng.integers(-1, 2, shape)
            found = np.where(rng.random(shape) < 0.5, found, nearby).astype(kind)
        return found
    if kind.kind in "iu":
        return rng.integers(0, 2, shape).astype(kind)  # an integer may be an index or the number of steps of a loop
    # Seed 0 draws positive values, where all logarithms and roots are defined; seed 1 small ones, which keep loops
    # finite.
    made = rng.uniform(0.5, 1.5, shape) if seed == 0 else (0.1 if seed == 1 else 1.0) * rng.normal(size=shape)
    fitting = [v for v in some if abs(v) <= _LARGEST_FLOAT]
    if fitting and kind.kind != "c":  # next to a number, or that number itself
        nearby = np.asarray(fitting)[rng.integers(len(fitting), size=shape)] + 0.5 * rng.integers(-1, 2, shape)
        made = np.where(rng.random(shape) < 0.5, made, nearby)
    if kind.kind == "c":
        made = made + 1j * rng.normal(size=shape)
    return np.asarray(made).astype(kind)


def _numbers_in(d: Dim) -> set[float]:
    """Returns the numbers in a size: 30 in `min(n, 30)`."""
    parts = (a for monomial, _ in d.terms for atom in monomial for a in atom.args)
    written = {abs(d.const)} - {0} | {abs(c) for _, c in d.terms} - {1}
    return {float(n) for n in written if n < _LARGEST_READ}.union(*map(_numbers_in, parts))


def compare_values(a: Any, b: Any, numerics: str, near: Sequence[Any] = ()) -> str:
    """Returns the difference of two values as text if the numerics class does not allow it, else "". `near`: the values
    from which they are computed, whose rounding counts too."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b):  # type: ignore[reportUnknownArgumentType]
            return "one is a tuple of other length"
        return next((why for x, y in zip(a, b, strict=True) if (why := compare_values(x, y, numerics, near))), "")  # type: ignore[reportUnknownArgumentType]
    x, y = as_arrays(a), as_arrays(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype.name}{list(x.shape)} against {y.dtype.name}{list(y.shape)}"
    allowed = _ROUNDING[numerics] * _rounding(x)
    return "" if _array_deviation(x, y, near) <= allowed else _first_difference(x, y)


def deviation(a: Any, b: Any) -> float:
    """Returns the largest difference of two values of one kind, in units of the largest element; infinite if elements
    differ that are not finite floats."""
    if isinstance(a, tuple):
        return max((deviation(x, y) for x, y in zip(a, b, strict=True)), default=0.0)  # type: ignore[reportUnknownArgumentType]
    return _array_deviation(as_arrays(a), as_arrays(b))


def deviation_text(deviation: float) -> str:
    """Returns a deviation as text."""
    return f"off by {deviation:.1g} of the largest value" if deviation else "the same bits"


def _rounding(x: Array) -> float:
    return float(np.finfo(x.dtype).eps) if x.dtype.kind in "fc" else 2.0**-7  # bfloat16 and similar dtypes


def _array_deviation(x: Array, y: Array, near: Sequence[Any] = ()) -> float:
    """Returns the largest difference of two arrays of one shape and dtype, in units of the largest value in them and in
    `near` (`largest_difference`)."""
    others = (as_arrays(v) for v in near if not isinstance(v, tuple))
    return largest_difference(x, y, largest_magnitude(x, y, *others))


def is_informative(value: Any) -> bool:
    """Whether a value has finite elements or none at all; a comparison of values without finite elements shows
    nothing."""
    if isinstance(value, tuple):
        return all(map(is_informative, value))  # type: ignore[reportUnknownArgumentType]
    a = as_arrays(value)
    return not is_inexact(a) or not a.size or bool(np.isfinite(a.astype(np.complex128)).any())


def _first_difference(x: Array, y: Array) -> str:
    at = next(iter(np.argwhere(x != y)), np.zeros(x.ndim, int))
    index = tuple(int(i) for i in at)
    return f"{x[index]} became {y[index]} at index {index}"


def stand_in_value(call: Expr, operands: list[Any], sizes: Mapping[str, int]) -> Any:
    """Returns a value for a library call that cannot be computed: a smooth function of its operands. Equal operands
    give equal results; nothing more is assumed of the routine."""
    given: Any = tuple(as_arrays(operands))
    numbers = (x for x in leaves(given, lambda v: v if isinstance(v, tuple) else None) if x.dtype.kind in "fiub")
    total = sum(float(np.sum(x.astype(np.float64))) for x in numbers)
    return _stand_in(call.annotation, 1e-3 * total + len(str(call.attr("name"))), dict(sizes))


def _stand_in(a: Annotation, seed: float, sizes: dict[str, int]) -> Any:
    if isinstance(a, Tuple):
        return tuple(_stand_in(f, seed + i, sizes) for i, f in enumerate(a.fields))
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None or is_key(a.dtype):
        raise OperatorError(f"a library call gives {a}, for which no value can stand in")
    shape = tuple(d.evaluate(sizes) for d in a.shape)
    count = np.arange(int(np.prod(shape))).reshape(shape)
    kind = numpy_dtype(a.dtype)
    return (count % 2).astype(kind) if kind.kind in "biu" else np.cos(seed + count).astype(kind)
