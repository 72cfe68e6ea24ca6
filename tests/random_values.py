"""Values of random modules, and the builders of their functions (`random_modules`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relax_eg.dtypes import numpy_dtype

INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = (
    ("int64",) * 5
    + ("int32", "int32", "uint64", "uint64", "uint32", "int8", "uint8", "int16")
    + (("float64",) * 3 + ("float32", "float32", "float16", "bfloat16", "bool", "bool", "complex64", "complex128"))
)
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "complex64": 24, "complex128": 53}
LARGEST = {"float16": 14, "bfloat16": 120, "float32": 120, "float64": 1000, "complex64": 120, "complex128": 1000}
# Tolerance of rounding, relative to the largest value from which a result is computed.
_NEAR = {"float16": 0.03, "bfloat16": 0.2, "float32": 1e-4, "float64": 1e-11, "complex64": 1e-4, "complex128": 1e-11}
PART = {"complex64": "float32", "complex128": "float64"}
_AT_MOST = 5  # the largest size
SIZES = ((3, 2), (1, 4), (5, 3), (2, 5))  # few: executables are shared
LOG_SIZE = math.log2(_AT_MOST)


def bits(dtype: str) -> int:
    return 1 if dtype == "bool" else int("".join(c for c in dtype if c.isdigit()))


def is_integer(dtype: str) -> bool:
    return "int" in dtype


@dataclass(frozen=True)
class Value:
    """A value of a function.

    - `name`, `dtype`, `dims`: its name, dtype and sizes.
    - `size`: log2 of its largest magnitude.
    - `fraction`: it is a multiple of 2 ** -fraction.
    - `peak`: the largest `size` of the values from which it is computed.
    - `exact`: whether it is computed without rounding.
    """

    name: str
    dtype: str
    dims: tuple[str, ...]
    size: float
    fraction: float = 0.0
    peak: float = 0.0
    exact: bool = True

    @property
    def annotation(self) -> str:
        dims = "".join(f"{d}, " for d in self.dims)
        return f'R.Tensor(({dims}), "{self.dtype}")'

    @property
    def decides(self) -> bool:
        return self.exact and self.dtype not in COMPLEX

    def near(self) -> float:
        """The tolerance of the value; 0 if it is exact."""
        return 0.0 if self.exact else _NEAR[self.dtype] * 2.0 ** max(self.peak, 0)


@dataclass(frozen=True)
class Program:
    """A random module.

    - `text`: its text.
    - `params`: the parameters of its entry.
    - `results`: the results of its entry, one or a tuple.
    - `steps`: whether it cannot be one XLA program.
    """

    text: str
    params: tuple[Value, ...]
    results: tuple[Value, ...]
    steps: bool

    def arguments(self, rng: np.random.Generator) -> tuple[list[Any], dict[str, int]]:
        sizes = dict(zip(("n", "m"), SIZES[int(rng.integers(len(SIZES)))], strict=True))
        return [_array(rng, p, [sizes.get(d) or int(d) for d in p.dims]) for p in self.params], sizes


class NoFitError(Exception):
    """A draw does not fit."""


def _array(rng: np.random.Generator, p: Value, shape: list[int]) -> Any:
    if p.dtype == "bool":
        return rng.random(shape) < 0.5
    if is_integer(p.dtype):
        limits = np.iinfo(p.dtype)
        low = max(-(2 ** int(p.size)), limits.min) if limits.min else 0
        high = min(2 ** int(p.size), limits.max)
        found = rng.integers(low, high, shape, np.int64 if limits.min else np.uint64, endpoint=True)
        edges = rng.choice(np.array([low, high, 0, 1], found.dtype), shape)
        return np.where(rng.random(shape) < 0.2, edges, found).astype(p.dtype)
    quarters = rng.integers(-16, 17, shape) / 4
    if p.dtype in COMPLEX:
        quarters = quarters + 1j * rng.integers(-16, 17, shape) / 4
    return np.asarray(quarters).astype(numpy_dtype(p.dtype))


class Text:
    """The builder of a module."""

    def __init__(self, rng: np.random.Generator, steps: bool, prefix: str) -> None:
        self.rng, self.prefix = rng, prefix
        self.functions: list[str] = []
        self.helpers: list[tuple[str, list[Value], list[Value], bool]] = []
        self.steps = steps
        self.stepped = False
        self.names = itertools.count()

    def fresh(self) -> str:
        """A new name for a function."""
        return f"{self.prefix}f{next(self.names)}"

    def one(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def flag(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)


class Body:
    """The builder of a function: its lines and values. `sizes`: the size variables that it knows."""

    def __init__(self, text: Text, params: Sequence[Value], depth: int, indent: str = "    ") -> None:
        self.text, self.depth, self.indent = text, depth, indent
        self.one, self.flag = text.one, text.flag
        self.params = list(params)
        self.values = list(params)
        self.sizes = sorted({d for p in params for d in p.dims if d.isidentifier()})
        self.lines: list[str] = []
        self.count = 0

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def add(self, expression: str, made: Value) -> Value:
        """Writes a line for a new value; NoFitError where it may be too large, or for one of no elements."""
        if made.dtype in DIGITS:
            exact = made.exact and made.size + made.fraction <= DIGITS[made.dtype]
            if made.size > LARGEST[made.dtype]:
                raise NoFitError
        else:
            limit = bits(made.dtype) - (0 if made.dtype.startswith("u") or made.dtype == "bool" else 1)
            exact, made = True, replace(made, size=min(made.size, limit), fraction=0.0, peak=min(made.size, limit))
        made = replace(made, name=self.name(), exact=exact, peak=max(made.peak, made.size))
        self.line(f"{made.name} = {expression}")
        self.values.append(made)
        return made

    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        found = [v for v in self.values if fits(v)]
        if not found:
            raise NoFitError
        return self.one(found + found[-3:])

    def size(self) -> str:
        return self.one([*self.sizes, *self.sizes, "1", "2", "3"])

    # --- pairs ---

    def partner(self, x: Value, same: bool = True) -> tuple[str, Value]:
        """Another operand for `x`: of its dtype, and of a shape that broadcasts; or a number."""

        def fits(v: Value) -> bool:
            return v.dtype == x.dtype and (v.dims == x.dims or (v.dims == () or v.dims == x.dims[-1:]))

        if self.flag(0.25):
            return self.number(x)
        found = self.value(fits)
        return found.name, found

    def number(self, x: Value) -> tuple[str, Value]:
        """A number of the dtype of `x`."""
        dtype = x.dtype
        if dtype == "bool":
            raise NoFitError
        if is_integer(dtype):
            limits = np.iinfo(dtype)
            near = [
                0,
                1,
                2,
                3,
                5,
                7,
                100,
                2**20,
                2**31,
                2**32 + 1,
                2**40,
                limits.max,
                limits.max - 1,
                -1,
                -2,
                limits.min,
            ]
            number = self.one([int(n) for n in near if limits.min <= n <= limits.max])
            size = math.log2(abs(number) + 1)
            return f'R.const({number}, "{dtype}")', Value("", dtype, (), size, 0.0, size)
        number = self.one([0.5, 2.0, -1.0, 0.25, 3.0, 1.0])
        return f'R.const({number}, "{dtype}")', Value("", dtype, (), 2.0, 2.0, 2.0)


def led(*values: Value) -> dict[str, Any]:
    return {"peak": max(v.peak for v in values), "exact": all(v.exact for v in values)}


def broad(x: Value, y: Value) -> tuple[str, ...]:
    return x.dims if len(x.dims) >= len(y.dims) else y.dims


def is_plain(v: Value) -> bool:
    return all(d.isidentifier() or d.isdigit() for d in v.dims)


def function_text(name: str, params: Sequence[Value], body: Body) -> str:
    """A function as text."""
    declared = ", ".join(f"{p.name}: {p.annotation}" for p in params)
    return f"def {name}({declared}):\n" + "\n".join(body.lines) + "\n"
