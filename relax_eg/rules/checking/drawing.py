"""What generators of test programs draw: parameters and their values, one of several choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from relax_eg.dtypes import dtype_of
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.rules.signature import pattern_of
from relax_eg.shapes.spec import parse_signature

T = TypeVar("T")


def one_of(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def variables(signature: str) -> tuple[Expr, ...]:
    """The variables of a signature such as "x: n 2, w: 2 m"; float32 where it names no dtype."""
    return tuple(var(n, pattern_of(n, spec, {}, "float32")) for n, spec in parse_signature(signature).items())


def integers_for(
    rng: np.random.Generator, params: Iterable[Expr], low: int, high: int, **sizes: int
) -> tuple[np.ndarray[Any, Any], ...]:
    """Exact values for parameters at these sizes: integers from `low` to `high`."""
    shapes = ([int(d.evaluate(sizes)) for d in p.shape] for p in params)
    return tuple(np.asarray(rng.integers(low, high + 1, shape), object) for shape in shapes)


def floats_for(
    rng: np.random.Generator, params: Iterable[Expr], low: int = -3, high: int = 3
) -> tuple[np.ndarray[Any, Any], ...]:
    """`integers_for` as float32: the equations of a convolution name a dtype, which exact numbers do not have."""
    return tuple(x.astype(np.float32) for x in integers_for(rng, params, low, high))


@dataclass
class Drawn:
    """Parameters of fixed sizes, and their values, as they are drawn."""

    rng: np.random.Generator
    params: list[Expr] = field(default_factory=list[Expr])
    args: list[np.ndarray[Any, Any]] = field(default_factory=list[np.ndarray[Any, Any]])

    def any_of(self, name: str, shape: Sequence[int], dtype: str) -> Expr:
        """A parameter of any numbers of a dtype of bytes."""
        return self.between(name, shape, dtype, dtype_of(dtype).least, dtype_of(dtype).greatest)

    def between(self, name: str, shape: Sequence[int], dtype: str, low: int, high: int) -> Expr:
        """A parameter of integers from `low` to `high`."""
        self.params.append(var(name, Tensor(tuple(shape), dtype)))
        self.args.append(self.rng.integers(low, high + 1, shape).astype(dtype))
        return self.params[-1]
