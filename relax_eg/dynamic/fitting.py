"""Arrays brought to capacity before a call, and results cut to the true sizes after it.

`jnp.pad` and slicing compile once for each size, tens of milliseconds at a time, which is what capacities are there to
avoid. Where XLA's device is the CPU, numpy sees an array of JAX without a copy, so that padding is one copy into a
buffer and cutting a view. On any other device an array would have to travel: there, both are small programs of the
device's own, compiled once for each combination of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.shapes import Dim

Pattern = Sequence[Dim]
Inside = tuple[slice, ...]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Fit:
    """What a call at certain sizes needs at certain capacities. `pads`: for each operand that is to grow its place, the
    shape it has then, and where in it what was given goes; `cuts`: for each result that is larger than it should be its
    place, and what of it is the result. Without any of both, arrays pass as they are."""

    pads: tuple[tuple[int, tuple[int, ...], Inside], ...]
    cuts: tuple[tuple[int, Inside], ...]

    @cached_property
    def _pad(self) -> Callable[[list[Any]], list[Any]]:
        def pad(arrays: list[Any]) -> list[Any]:
            pairs = zip(arrays, self.pads, strict=True)
            return [_grown_there(x, shape, inside) for x, (_, shape, inside) in pairs]

        return jax.jit(pad)

    @cached_property
    def _cut(self) -> Callable[[list[Any]], list[Any]]:
        return jax.jit(lambda arrays: [x[inside] for x, (_, inside) in zip(arrays, self.cuts, strict=True)])

    def padded(self, operands: list[Any], on_host: bool) -> list[Any]:
        """The operands at capacity; those that grow are new arrays, zero where nothing was given."""
        if not self.pads:
            return operands
        grown = list(operands)
        if not on_host and any(isinstance(operands[i], jax.Array) for i, _, _ in self.pads):
            new = self._pad([operands[i] for i, _, _ in self.pads])
            for (i, _, _), x in zip(self.pads, new, strict=True):
                grown[i] = x
            return grown
        for i, shape, inside in self.pads:
            if is_key_array(operands[i]):
                words = jnp.asarray(_grown(jax.random.key_data(operands[i]), shape, inside))
                grown[i] = jax.random.wrap_key_data(words, impl=jax.random.key_impl(operands[i]))
            else:
                grown[i] = _grown(operands[i], shape, inside)
        return grown

    def cut(self, results: Sequence[Any], on_host: bool) -> list[Any]:
        """The results at their true sizes."""
        made = list(results)
        if not on_host and self.cuts:
            new = self._cut([made[i] for i, _ in self.cuts])
            for (i, _), x in zip(self.cuts, new, strict=True):
                made[i] = x
            return made
        for i, inside in self.cuts:
            if is_key_array(made[i]):
                made[i] = made[i][inside]
                continue
            whole = np.asarray(made[i])
            view = whole[inside]
            # JAX may keep a view as it is; one of a small part would hold all of the buffer for as long as it lives.
            made[i] = jnp.asarray(view if 2 * view.nbytes >= whole.nbytes else view.copy())
        return made


def is_key_array(x: Any) -> bool:
    """Whether `x` is an array of typed PRNG keys, which numpy cannot hold."""
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _grown_there(x: Any, shape: tuple[int, ...], inside: Inside) -> Any:
    """As `_grown`, where the array is; keys are, too."""
    if is_key_array(x):
        words = jax.random.key_data(x)
        made = _grown_there(words, (*shape, *words.shape[x.ndim :]), inside)
        return jax.random.wrap_key_data(made, impl=jax.random.key_impl(x))
    return jnp.zeros(shape, x.dtype).at[inside].set(x)


def _grown(x: Any, shape: tuple[int, ...], inside: Inside) -> np.ndarray[Any, Any]:
    """A new array of this shape, and what follows it in `x`, which lies `inside` of it; zero elsewhere."""
    held = np.asarray(x)
    buffer = np.zeros((*shape, *held.shape[len(shape) :]), held.dtype)
    buffer[inside] = held
    return buffer


def fit(operands: Sequence[Shapes], results: Sequence[Shapes]) -> Fit:
    """The fit for operands and results, for each of which its shape and that of its array at capacity are given."""
    pads = [(i, grown, tuple(map(slice, shape))) for i, (shape, grown) in enumerate(operands) if shape != grown]
    cuts = [(i, tuple(map(slice, shape))) for i, (shape, grown) in enumerate(results) if shape != grown]
    return Fit(tuple(pads), tuple(cuts))


def at(dims: Pattern, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape at these sizes."""
    return tuple(int(d.evaluate(sizes)) for d in dims)
