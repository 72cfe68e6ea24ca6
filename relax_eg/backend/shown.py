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
from jax.extend.core import get_opaque_trace_state
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from relax_eg.ir.expr import Expr

_trace_state = functools.partial(get_opaque_trace_state, convention="nnx")
_NO_TRACE = _trace_state()

MOST_SHOWN = 4096  # keys that are kept

Shown = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


class UnseenError(Exception):
    """A call that what was tried is not made for; something else serves it."""


def is_tracing() -> bool:
    """Whether JAX traces what runs now, be it with constants."""
    return _trace_state() != _NO_TRACE


def shown(params: Sequence[Expr], tree: Any) -> Shown:
    """For calls whose `(args, kwargs)` have the structure `tree`, with these parameters as leaves: `(args, kwargs) -> `
    the shapes that tell the sizes, hashable. It raises LookupError, TypeError or AttributeError, or gives shapes that
    no call has, where arrays are not where they should be, and for what is neither an array of JAX nor one of numpy:
    JAX's tracers are neither."""
    with jax.ensure_compile_time_eval():
        kinds = frozenset((type(jax.numpy.zeros(())), np.ndarray))
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    names = numbered[1].keys()
    telling = _telling(params, [len(path) for path in paths])

    if not names and len(telling) == 1 and len(paths[telling[0]]) == 2:  # mostly one array by itself tells all
        place = paths[telling[0]][1].idx

        def of_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            x = args[place]
            if kwargs or type(x) not in kinds:
                raise LookupError
            return x.shape

        return of_one

    steps = [_steps(paths[i]) for i in telling]

    def of_all(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.keys() != names:
            raise LookupError
        arrays = [_at(path, (args, kwargs)) for path in steps]
        if any([type(x) not in kinds for x in arrays]):
            raise LookupError
        return tuple([x.shape for x in arrays])

    def of_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves = jax.tree_util.tree_leaves((args, kwargs))
        if kwargs.keys() != names or any(type(leaves[i]) not in kinds for i in telling):
            raise LookupError
        return tuple([leaves[i].shape for i in telling])

    return of_leaves if None in steps else of_all


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
    """How to get at a place of a pytree: attributes and keys, in turn; None where it is in a type that only JAX can take
    apart."""
    found: list[tuple[bool, Any]] = []
    for k in path:
        if not isinstance(k, (SequenceKey, DictKey, GetAttrKey)):
            return None
        found.append((True, k.name) if isinstance(k, GetAttrKey) else (False, getattr(k, "key", getattr(k, "idx", None))))
    return found


def _at(path: Any, value: Any) -> Any:
    for is_attribute, key in path:
        value = getattr(value, key) if is_attribute else value[key]
    return value
