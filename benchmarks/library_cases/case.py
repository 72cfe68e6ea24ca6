"""The record of a case of a library, and its arguments.

A case is built at one of two sizes: `SMALL`, where it shows what the function is made of, and `REAL`, where a call
takes as long as calls of such functions do (`benchmarks.library_times`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import array

SIZES = {"b": 3, "n": 5}  # the sizes that small cases are run at; integers are drawn below n
Function = Callable[..., Any]
T = TypeVar("T")


class Size(Enum):
    """How large a case is; called, it picks one of two values."""

    SMALL = "small"
    REAL = "real"

    def __call__(self, small: T, real: T) -> T:
        return small if self is Size.SMALL else real


SMALL, REAL = Size.SMALL, Size.REAL


@dataclass(frozen=True)
class Use:
    """One use of a library.

    - `fn`: the function.
    - `specs`: spec strings, arrays (which are also the values it is run at), or pytrees of both, for its arguments.
    - `wrt`: the argument in which it is differentiated.
    - `batched`: the argument over which it is vmapped.
    - `tolerance`: accepted difference of results, relative to the largest magnitude in an array; looser where the
      computation itself magnifies rounding.
    """

    fn: Function
    specs: tuple[Any, ...]
    wrt: int = 0
    batched: int = -1
    tolerance: float = 1e-4

    def arguments(self, row: int = 0) -> list[Any]:
        """Returns concrete arguments; `row` selects one of a batch in the argument `batched`."""
        rng = np.random.default_rng(0)
        made = [_concrete(spec, rng) for spec in self.specs]
        made[self.batched] = jax.tree.map(lambda x: _moved(x, row), made[self.batched])
        return made

    def of(self, fn: Function) -> Use:
        """The same use of another function."""
        return replace(self, fn=fn)

    def loss(self, *args: Any) -> Any:
        """Returns a number that depends on every element of the result of `fn`."""
        leaves = jax.tree.leaves(self.fn(*args))
        return sum(_mixed(x) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

    def gradient(self, *args: Any) -> Any:
        """The derivative of `loss` in argument `wrt`."""
        return jax.grad(self.loss, self.wrt)(*args)


@dataclass(frozen=True)
class Case:
    """A named use of a library; `make` makes it, of a size."""

    library: str
    name: str
    make: Callable[[Size], Use]

    def build(self, size: Size = SMALL) -> Use:
        return self.make(size)


Make = Callable[[Size], Use]


def case(cases: list[Case], library: str, name: str) -> Callable[[Make], Make]:
    """Decorator: adds the use that a function makes to `cases`."""

    def add(make: Make) -> Make:
        cases.append(Case(library, name, make))
        return make

    return add


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def integers(seed: int, below: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, below, shape), jnp.int32)


def filled(shapes: Any) -> Any:
    """Arrays in the place of the shapes in a pytree, as `jax.eval_shape` gives it: small random floats, smaller along
    long axes, as initialisers have it; else zeros. That spares compiling the functions which initialise parameters."""
    rng = np.random.default_rng(7)

    def fill(s: Any) -> Any:
        if not isinstance(s, jax.ShapeDtypeStruct):
            return s
        floats = jnp.issubdtype(s.dtype, jnp.floating)
        scale = min(0.4, 2 / max(s.shape, default=1) ** 0.5)
        return jnp.asarray(rng.normal(scale=scale, size=s.shape) if floats else np.zeros(s.shape), s.dtype)

    return jax.tree.map(fill, shapes)


def _concrete(spec: Any, rng: np.random.Generator) -> Any:
    return jax.tree.map(lambda leaf: array(leaf, SIZES, rng) if isinstance(leaf, str) else leaf, spec)


def _moved(x: jax.Array, row: int) -> jax.Array:
    return x * (1 + row / 10) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.roll(x, row)


def _mixed(x: jax.Array) -> jax.Array:
    return jnp.vdot(jnp.cos(jnp.arange(x.size, dtype=x.dtype)), x.ravel())
