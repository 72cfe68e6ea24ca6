"""What of a call tells its sizes, read without taking the call apart.

A call costs what `jax.jit` costs where its own C++ finds the executable. Between the call and that only one question is
left to Python: which of several executables. The shapes of one or two arrays answer it, mostly those of arguments by
themselves. That is a guess about a call whose other arrays nobody looked at, so whatever is kept under such a key
either serves all calls or refuses (`jax.jit` traces it for no others, see `only_for`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from relax_eg.ir.expr import Expr

_trace_state = functools.partial(get_opaque_trace_state, convention="nnx")
_NO_TRACE = _trace_state()

_array_types: dict[type, bool] = {}  # types of arrays met so far: whether they are JAX's
NOT_SHOWN = (LookupError, AttributeError, TypeError)
MOST_SHOWN = 4096  # keys that are kept

Shown = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


class UnseenError(Exception):
    """A call that what was tried is not made for; something else serves it."""


def kind_of(x: Any) -> Any:
    """Shape and dtype of an array of JAX or numpy, as something hashable; LookupError for all else, such as what JAX
    traces."""
    is_jax = _array_types.get(type(x))
    if is_jax is None:
        if isinstance(x, Tracer) or not isinstance(x, (jax.Array, np.ndarray)):
            raise LookupError
        is_jax = _array_types[type(x)] = not isinstance(x, np.ndarray)
    array: Any = x
    return array.aval if is_jax else (array.shape, array.dtype)


def is_tracing() -> bool:
    """Whether JAX traces what runs now, be it with constants."""
    return _trace_state() != _NO_TRACE


def shown(params: Sequence[Expr], tree: Any) -> Shown:
    """For calls whose `(args, kwargs)` have the structure `tree`, with these parameters as leaves: `(args, kwargs) -> `
    something hashable that tells the sizes. It raises what `NOT_SHOWN` has, or gives what no call has, where arrays are
    not where they should be; see `kind_of` for what is an array."""
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    names = numbered[1].keys()
    telling = _telling(params, [len(path) for path in paths])

    if not names and len(telling) == 1 and len(paths[telling[0]]) == 2:  # mostly one array by itself tells all
        place = paths[telling[0]][1].idx

        def of_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            if kwargs:
                raise LookupError
            return kind_of(args[place])

        return of_one

    steps = [_steps(paths[i]) for i in telling]

    def of_all(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.keys() != names:
            raise LookupError
        return tuple([kind_of(_at(path, (args, kwargs))) for path in steps])

    def of_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        return tuple([kind_of(leaves[i]) for i in telling])

    return of_leaves if None in steps else of_all


def remember(found: dict[Any, Any], key: Any, value: Any) -> None:
    """Keeps what was found for a call; where there are too many, the others go."""
    if len(found) >= MOST_SHOWN:
        found.clear()
    found[key] = value


def only_for(leaves: Sequence[jax.ShapeDtypeStruct], tree: Any, given: Any) -> list[Any]:
    """The leaves of what `jax.jit` traces, `given`; UnseenError where it has not this structure with such leaves. Under
    other settings of JAX it is traced again, for the same."""
    found, structure = jax.tree_util.tree_flatten(given)
    if structure != tree:
        raise UnseenError
    for x, declared in zip(found, leaves, strict=True):
        aval: Any = jax.typeof(x)
        weak = bool(getattr(aval, "weak_type", False))
        if aval.shape != declared.shape or aval.dtype != declared.dtype or weak != bool(declared.weak_type):
            raise UnseenError
    return found


def _telling(params: Sequence[Expr], depths: Sequence[int]) -> list[int]:
    """Parameters whose shapes tell all sizes: few that have each size as an axis of its own, those that are arguments
    by themselves first; all that depend on sizes where some size is no axis."""
    shapes = [p.tensor.shape or () for p in params]
    left = {v for dims in shapes for d in dims for v in d.variables}
    found: list[int] = []
    while left:
        own = [{str(d) for d in dims} & left for dims in shapes]
        best = max(range(len(own)), key=lambda i: (len(own[i]), -depths[i]))
        if not own[best]:
            return [i for i, dims in enumerate(shapes) if any(not d.is_const for d in dims)]
        found.append(best)
        left -= own[best]
    return sorted(found)


def _steps(path: Sequence[Any]) -> list[tuple[bool, Any]] | None:
    """How to get at a place of a pytree: attributes and keys, in turn; None where only JAX can take it apart."""
    found: list[tuple[bool, Any]] = []
    for k in path:
        if not isinstance(k, (SequenceKey, DictKey, GetAttrKey)):
            return None
        key: Any = k.name if isinstance(k, GetAttrKey) else k.key if isinstance(k, DictKey) else k.idx
        found.append((isinstance(k, GetAttrKey), key))
    return found


def _at(path: Any, value: Any) -> Any:
    for is_attribute, key in path:
        value = getattr(value, key) if is_attribute else value[key]
    return value
