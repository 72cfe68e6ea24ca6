"""Size keys: hashable values, read from a few arrays of a call, that determine its sizes.

A call should cost no more than a call of `jax.jit`, whose C++ code finds the executable. Python only decides which of
several functions to call; Python code takes ten times as long after a large kernel, which has evicted it from the
caches. The shapes of one or two arrays decide that, usually of arrays that are arguments themselves; the arguments are
not flattened. The other arrays are not inspected, so the key is a guess: a function kept under a key must either serve
all calls or refuse those that do not fit (`check_traced_arguments` keeps `jax.jit` from tracing it for others).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from relax_eg.ir.expr import Expr
from relax_eg.memo import Memo


@functools.lru_cache(1)
def _trace_state() -> tuple[Callable[[], Any], Any]:
    """What returns JAX's state of tracing, and the state in which nothing is traced."""
    from jax.extend.core import get_opaque_trace_state  # imports Pallas; a program of instructions never asks

    state = functools.partial(get_opaque_trace_state, convention="nnx")
    found: list[Any] = []
    fresh = Thread(target=lambda: found.append(state()))  # in which nothing is traced, whatever happens here
    fresh.start()
    fresh.join()
    return state, found[0]


# By type of argument met so far, which are few: whether it is an array type of JAX; None: it is no type of arrays.
_array_types = Memo[type, bool | None](64)
NO_KEY = (LookupError, AttributeError, TypeError)
# limit: size keys that a function remembers: all combinations of two sizes up to 64, one or two MiB
MOST_KEYS = 4096

SizeKey = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


class UnseenError(Exception):
    """Raised for a call that the tried function was not made for; another function serves it."""


def kind_of(x: Any) -> Any:
    """Shape and dtype of a JAX or numpy array, as a hashable value. LookupError for anything else, such as a tracer."""
    try:
        is_jax = _array_types[type(x)]
    except KeyError:
        is_array = isinstance(x, (jax.Array, np.ndarray)) and not isinstance(x, Tracer)
        is_jax = _array_types[type(x)] = not isinstance(x, np.ndarray) if is_array else None
    if is_jax is None:
        raise LookupError
    array: Any = x
    return array.aval if is_jax else (array.shape, array.dtype)


def is_tracing() -> bool:
    """Whether JAX is tracing now. Arguments without tracers do not show that: they may be constants of the trace."""
    state, none = _trace_state()
    return state() != none


def size_key_function(params: Sequence[Expr], tree: Any) -> SizeKey:
    """A function from the `(args, kwargs)` of a call to its size key: a hashable value that determines the sizes.

    The calls have the structure `tree`, whose leaves are `params`. For a call of another structure, or with leaves that
    are no arrays (`kind_of`), the function raises one of `NO_KEY` or returns a key that no valid call has.
    """
    numbered = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    names = numbered[1].keys()
    telling = _size_parameters(params, [len(path) for path in paths])

    # The usual case: one argument determines all sizes.
    if not names and len(telling) == 1 and len(paths[telling[0]]) == 2:
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


def check_traced_arguments(leaves: Sequence[jax.ShapeDtypeStruct], tree: Any, given: Any) -> list[Any]:
    """The leaves of `given`, the arguments of a function that `jax.jit` traces.

    UnseenError unless they have the structure `tree` and the shapes, dtypes and weak types of `leaves`. Under other
    settings JAX traces the function again, for the same arguments.
    """
    found, structure = jax.tree_util.tree_flatten(given)
    if structure != tree:
        raise UnseenError
    for x, declared in zip(found, leaves, strict=True):
        aval: Any = jax.typeof(x)
        weak = bool(getattr(aval, "weak_type", False))
        if aval.shape != declared.shape or aval.dtype != declared.dtype or weak != bool(declared.weak_type):
            raise UnseenError
    return found


def _size_parameters(params: Sequence[Expr], depths: Sequence[int]) -> list[int]:
    """The indices of a few parameters whose shapes determine all sizes.

    Greedily takes the parameter with most of the remaining sizes as axes; of equals the one of least depth in the
    arguments. If some size is no axis of any parameter, all parameters whose shapes depend on sizes.
    """
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
    """A path of a pytree as pairs (is it an attribute, name or key); None where only JAX can follow it."""
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
