"""Values inside a program on given data, as calibration sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.backend.lowering.lower import run_function
from relax_eg.ir.expr import Expr, tuple_
from relax_eg.ir.module import Function, Module

Arrays = Sequence[Any]
_BINS = 2048  # chosen: bins of a histogram, 16 for each magnitude of an int8 code


def flat_arguments(tree: Any, call: tuple[Any, ...]) -> list[Any] | None:
    """The arrays in the positional arguments of a call, in order; None if they have another structure than `tree`."""
    leaves, found = jax.tree_util.tree_flatten((call, {}))
    return leaves if found == tree else None


class Converted:
    """Arrays of numpy, and numbers, as arrays of JAX, each converted once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # by identity, with the array, which keeps it

    def of(self, x: Any) -> Any:
        if isinstance(x, jax.Array):
            return x
        found = self._known.get(id(x))
        if found is None:
            found = self._known[id(x)] = x, jnp.asarray(x)
        return found[1]


def computed(
    module: Module, values: Sequence[Expr], params: Sequence[Expr] = ()
) -> Callable[[Arrays], tuple[Any, ...]]:
    """A compiled function from the arrays of the entry's parameters, and of `params`, to `values`, expressions of its
    entry."""
    main = module.main
    inside = replace(main, params=(*main.params, *params), result=tuple_(values))
    others = tuple(f for f in module if f is not main)
    return compiled(Module((inside, *others)), inside)


def compiled(module: Module, function: Function) -> Callable[[Arrays], Any]:
    """A function of a module, under `jax.jit`."""
    return jax.jit(lambda arrays: run_function(module, function, arrays))


def limits(values: Callable[[Arrays], tuple[Any, ...]]) -> Callable[[Arrays], Any]:
    """The least and largest elements of each of some values: (values, 2)."""
    return jax.jit(lambda arrays: jnp.stack([jnp.stack([v.min(), v.max()]) for v in values(arrays)]))


def histograms(values: Callable[[Arrays], tuple[Any, ...]], ranges: np.ndarray[Any, Any]) -> Callable[[Arrays], Any]:
    """The histogram of each of some values over its row of `ranges`: (values, bins)."""

    def counts(arrays: Arrays) -> Any:
        found = zip(values(arrays), ranges, strict=True)
        return jnp.stack([jnp.histogram(v, _BINS, (float(low), float(high)))[0] for v, (low, high) in found])

    return jax.jit(counts)
