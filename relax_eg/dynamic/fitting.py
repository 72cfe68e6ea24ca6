"""Pads arrays to capacity before a call, and cuts results to the true sizes after it.

`jnp.pad`, slicing and `jnp.asarray` compile once for each size, tens of milliseconds each time, which capacities are
meant to avoid. If XLA's device is the CPU, numpy sees a JAX array without a copy, so padding is one copy into a buffer,
and cutting is a view. On other devices the array would have to be transferred; there both are small programs on the
device, compiled once for each combination of sizes, as long as there is room for them.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from relax_eg.backend.calls.call_keys import UnseenError
from relax_eg.backend.calls.known import UNSEEN
from relax_eg.backend.calls.padded import PaddedArray, is_key_array
from relax_eg.limits import KEPT
from relax_eg.shapes import Dim

try:  # what `jax.device_put` calls in the end; on its way there it spends five times as long in Python
    from jax._src.interpreters.pxla import batched_device_put as _put
except ImportError:
    _put = None

Pattern = Sequence[Dim]
Inside = tuple[slice, ...]
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
Jit = Callable[[Callable[..., Any]], Callable[..., Any]]
# given: bytes: at other addresses XLA's CPU client copies numpy arrays before a call
_ALIGNED = 64
_COPIED = 1 << 14  # chosen: bytes: copying so many takes no longer than to find such an address
_config: Any = jax.config


def unpadded(value: Any, jit: Jit | None) -> Any:
    """Returns a value at its true size."""
    if not isinstance(value, PaddedArray):
        return value
    if jit is None:
        return value.cut()
    return CapacityFit((), ((0, tuple(map(slice, value.shape))),)).cut([value.array], jit)[0]


@dataclass(frozen=True)
class CapacityFit:
    """What a call at certain sizes needs at certain capacities. If both fields are empty, arrays pass unchanged.

    - `pads`: for each operand that grows: its index, its shape at capacity, and the region that the given array fills.
    - `cuts`: for each result that is too large: its index, and the region that is the result.
    """

    pads: tuple[tuple[int, tuple[int, ...], Inside], ...]
    cuts: tuple[tuple[int, Inside], ...]
    _device_programs: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False, compare=False)

    def _on_device(self, run: Callable[..., Any], what: Sequence[Any], arrays: list[Any], jit: Jit) -> list[Any]:
        """Applies `run` to each of the arrays with its item of `what`, compiled for the device."""
        key = run, *(i for i, *_ in what)
        if key not in self._device_programs:
            self._device_programs[key] = jit(lambda xs: [run(x, *more) for x, (_, *more) in zip(xs, what, strict=True)])
        return self._device_programs[key](arrays)

    def pad(self, operands: list[Any], jit: Jit | None, done: Collection[int] = ()) -> list[Any]:
        """The operands at capacity; those that grow are new arrays, padded with zeros. `jit`: compiles the padding for
        the device of the arrays; None if that is the host. `done`: the places of operands that are at capacity."""
        pads = [p for p in self.pads if p[0] not in done] if done else self.pads
        if not pads:
            return operands
        grown = list(operands)
        if jit is not None and any(isinstance(operands[i], jax.Array) for i, _, _ in pads):
            new = self._on_device(_pad_on_device, pads, [operands[i] for i, _, _ in pads], jit)
            for (i, _, _), x in zip(pads, new, strict=True):
                grown[i] = x
            return grown
        for i, shape, inside in pads:
            if is_key_array(operands[i]):
                words = jax.device_put(_pad(jax.random.key_data(operands[i]), shape, inside))
                grown[i] = jax.random.wrap_key_data(words, impl=jax.random.key_impl(operands[i]))
            else:
                grown[i] = _pad(operands[i], shape, inside)
        return grown

    def pad_all(self, operands: list[Any], jit: Jit | None) -> list[Any]:
        """What `pad` returns, for operands some of which may be `PaddedArray`."""
        shapes = {i: shape for i, shape, _ in self.pads}
        done = {i for i, x in enumerate(operands) if isinstance(x, PaddedArray) and x.array.shape == shapes.get(i)}
        given = [x.array if i in done else unpadded(x, jit) for i, x in enumerate(operands)]
        return self.pad(given, jit, done)

    def cut(self, results: Sequence[Any], jit: Jit | None, kept: Collection[int] = ()) -> list[Any]:
        """The results at their true sizes, those at the places `kept` as `PaddedArray`."""
        made = list(results)
        for i, inside in self.cuts if kept else ():
            if i in kept:
                made[i] = PaddedArray(made[i], tuple(s.stop for s in inside))
        cuts = [c for c in self.cuts if c[0] not in kept] if kept else self.cuts
        if jit is not None and cuts:
            new = self._on_device(operator.getitem, cuts, [made[i] for i, _ in cuts], jit)
            for (i, _), x in zip(cuts, new, strict=True):
                made[i] = x
            return made
        for i, inside in cuts:
            made[i] = _cut(made[i], inside)
        return made


def _array_beside(given: Any, values: np.ndarray[Any, Any]) -> Any:
    """The array of JAX with these values, of the dtype of `given` and on its device, which is the default one."""
    if _put is None:
        return jax.device_put(values)
    sharding = given.sharding
    return _put(_aval(values.shape, values.dtype), sharding, [values], sharding.device_set, committed=False)


@functools.lru_cache(KEPT)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any]) -> ShapedArray:
    return ShapedArray(shape, dtype)


class PaddedRun:
    """An executable at capacity as a function of arrays at their true sizes, where there is one device.

    Of the arrays, only those that grow are looked at: the executable itself refuses others that do not fit. Raises
    UnseenError for an array of another shape or dtype; TypeError under a trace of JAX, where numpy is to read the
    result. Returns UNSEEN for each `every`-th call.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        fit: CapacityFit,
        jit: Jit | None,
        trees: tuple[Any, Any],
        dtypes: Sequence[Any],
        tick: Callable[[], object],
        every: int,
    ) -> None:
        """`jit`: as of `CapacityFit.pad`. `trees`: the tree structures of `(args, kwargs)` and of the result. `dtypes`:
        those of the arrays of a call. `tick`: counts a call that ran."""
        self._run, self._fit, self._jit, self._tick = run, fit, jit, tick
        self._pads = [(i, tuple(s.stop for s in inside), dtypes[i], grown, inside) for i, grown, inside in fit.pads]
        self._given, self._gives = trees
        # The usual structures, which need not be taken apart: arrays alone as arguments, one array as the result.
        self._takes_arrays = self._given == jax.tree_util.tree_structure(((0,) * len(dtypes), {}))
        self._gives_array = jit is None and bool(fit.cuts) and jax.tree_util.treedef_is_leaf(self._gives)
        self._is_due = itertools.cycle([False] * (every - 1) + [True]).__next__

    def __call__(self, held: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
        if self._is_due() or _config.jax_debug_nans or _config.jax_debug_infs:
            return UNSEEN
        leaves, tree = (list(args), self._given) if self._takes_arrays else jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._given or len(leaves) < self._given.num_leaves:
            raise UnseenError
        for i, shape, dtype, grown, inside in self._pads:
            x = leaves[i]
            if not isinstance(x, (jax.Array, np.ndarray)) or x.shape != shape or x.dtype != dtype:
                raise UnseenError
            if self._jit is None:
                leaves[i] = _pad(x, grown, inside)
        if self._jit is not None:
            leaves = self._fit.pad(leaves, self._jit)
        if not self._takes_arrays:
            leaves, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
        result = self._run(held, *leaves, **kwargs)
        if self._gives_array:
            result = _cut(result, self._fit.cuts[0][1])
        elif self._fit.cuts:
            result = jax.tree_util.tree_unflatten(
                self._gives, self._fit.cut(jax.tree_util.tree_leaves(result), self._jit)
            )
        self._tick()
        return result


def _cut(made: Any, inside: Inside) -> Any:
    """The region `inside` of a result, on the host."""
    if is_key_array(made) or made.weak_type:  # numpy has neither
        return made[inside]
    whole = np.asarray(made)
    view = whole[inside]
    # JAX may keep a view without copying; a view of a small part would keep the whole buffer alive.
    return _array_beside(made, view if 2 * view.nbytes >= whole.nbytes else view.copy())


def _pad_on_device(x: Any, shape: tuple[int, ...], inside: Inside) -> Any:
    """Like `_pad`, on the array's device; also for key arrays."""
    if is_key_array(x):
        words = jax.random.key_data(x)
        made = _pad_on_device(words, (*shape, *words.shape[x.ndim :]), inside)
        return jax.random.wrap_key_data(made, impl=jax.random.key_impl(x))
    return jnp.zeros(shape, x.dtype).at[inside].set(x)


def _pad(x: Any, shape: tuple[int, ...], inside: Inside) -> np.ndarray[Any, Any]:
    """A new array of this shape, followed by the trailing axes of `x`; `x` fills the region `inside`, the rest is
    zero."""
    held = np.asarray(x)
    buffer = _zeros((*shape, *held.shape[len(shape) :]), held.dtype)
    buffer[inside] = held
    return buffer


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Zeros, many of them at an address of which XLA needs no copy."""
    size = math.prod(shape) * dtype.itemsize
    if size <= _COPIED:
        return np.zeros(shape, dtype)
    raw = np.zeros(size + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)


def make_fit(operands: Sequence[Shapes], results: Sequence[Shapes]) -> CapacityFit:
    """The fit for operands and results; each is given as its true shape and its shape at capacity."""
    pads = [(i, grown, tuple(map(slice, shape))) for i, (shape, grown) in enumerate(operands) if shape != grown]
    cuts = [(i, tuple(map(slice, shape))) for i, (shape, grown) in enumerate(results) if shape != grown]
    return CapacityFit(tuple(pads), tuple(cuts))


def shape_at(dims: Pattern, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape at these sizes."""
    return tuple(int(d.evaluate(sizes)) for d in dims)
