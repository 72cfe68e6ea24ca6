"""What is kept for weights: the values prepared from them, found by the identity of their arrays.

This is no table of known calls (`known`): it finds the strategy that holds the prepared values, whose known calls those
of all weights of these shapes are. An entry goes when its arrays go.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
from jax.core import Tracer

from relax_eg.backend.calls.call_keys import UnseenError, is_tracing
from relax_eg.backend.calls.known import UNSEEN, Straight
from relax_eg.backend.calls.runtime import Strategy
from relax_eg.memo import Memo

V = TypeVar("V")

MOST_BOUND = 128  # limit: weights whose prepared values are kept at the same time, such as the layers of a deep model


class ByIdentity(Generic[V]):
    """A table of values by arrays, which are compared by identity; at most `most` entries, the oldest goes first.

    It keeps no array alive: once one of its arrays is garbage-collected, an entry is dropped.
    """

    def __init__(self, most: int) -> None:
        self._latest: tuple[list[weakref.ref[Any]], V] | None = None
        self._known = Memo[tuple[int, ...], tuple[list[weakref.ref[Any]], V]](most)

    def get(self, arrays: Sequence[Any]) -> V | None:
        """The value of exactly these arrays, in this order; None where there is none."""
        found = self._latest
        if found is None or not _are_same_arrays(found[0], arrays):
            found = self._known.get(tuple(map(id, arrays)))
            if found is None or not _are_same_arrays(found[0], arrays):
                return None
            self._latest = found
        return found[1]

    @property
    def latest(self) -> V | None:
        """The value that was asked for last."""
        return None if self._latest is None else self._latest[1]

    def put(self, arrays: Sequence[Any], value: V) -> None:
        key, table = tuple(map(id, arrays)), weakref.ref(self)

        def drop(dead: weakref.ref[Any]) -> None:
            if (mine := table()) is not None:
                found = mine._known.get(key)
                if found is not None and dead in found[0]:
                    mine._known.pop(key, None)
                if mine._latest is not None and dead in mine._latest[0]:
                    mine._latest = None

        self._latest = self._known[key] = [weakref.ref(x, drop) for x in arrays], value


class BindsWeights:
    """Serves calls with all arguments of a function with declared weights.

    What depends on the weights alone is computed at the first call with these very arrays, and kept for later calls.
    While JAX traces, nothing is kept: values would be those of the trace, and derivatives those of the chosen program.
    """

    def __init__(self, strategy: Strategy, indices: Sequence[int]) -> None:
        """`indices`: the places of the weights among the parameters."""
        self._strategy, self._indices = strategy, tuple(indices)
        held = frozenset(indices)
        self._others = [i for i in range(len(strategy.program.params)) if i not in held]
        self._places, self._tree = _places_of(strategy.program.in_tree, indices)
        self._at = frozenset(self._places)
        self._bound = ByIdentity[Strategy](MOST_BOUND)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...]] | None:
        """The weights of a call, flattened, and its other arguments; None where these cannot be told apart quickly."""
        places = self._places
        if not places or kwargs or len(args) <= places[-1]:
            return None
        held, tree = jax.tree_util.tree_flatten([args[i] for i in places])
        return (held, tuple([x for i, x in enumerate(args) if i not in self._at])) if tree == self._tree else None

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        split = None if is_tracing() else self._split(args, kwargs)
        bound = None if split is None else self._bound.get(split[0])
        return UNSEEN if split is None or bound is None else bound.call_known(split[1], {})

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `Strategy.executable_key`; that of the strategy with these weights bound."""
        split = self._split(args, kwargs)
        bound = None if split is None else self._bound.get(split[0])
        if split is None or bound is None:
            raise LookupError
        return bound.executable_key(split[1], {})

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None:
        """See `Strategy.straight`; for calls with the weights of the last one."""
        strategy = self._bound.latest
        found = None if strategy is None else strategy.straight(key, closes)
        if strategy is None or found is None:
            return None
        inner = [found.run]  # holds the values prepared from the weights, and is dropped with them
        bound = weakref.ref(strategy, lambda _: inner.clear())

        def run(*args: Any) -> Any:
            split = self._split(args, {})
            if split is None or self._bound.get(split[0]) is not bound() or not inner:
                raise UnseenError
            for x in jax.tree_util.tree_leaves(split[1]):
                if isinstance(x, Tracer):  # derivatives are those of the function as written
                    raise UnseenError
            return inner[0](*split[1])

        return Straight(run, found.tick)

    def run(self, arguments: list[Any]) -> Any:
        held = [arguments[i] for i in self._indices]
        # Identity is a safe key for immutable arrays only: numpy arrays may change.
        if is_tracing() or any(not isinstance(x, jax.Array) or isinstance(x, Tracer) for x in held):
            return self._strategy.run(arguments)
        bound = self._bound.get(held)
        if bound is None:
            bound = self._strategy.bind(self._indices, held)
            self._bound.put(held, bound)
        return bound.run([arguments[i] for i in self._others])


def _places_of(tree: Any, weights: Sequence[int]) -> tuple[tuple[int, ...], Any]:
    """The places of the weights among the positional arguments of calls with structure `tree`, and the structure of the
    list of these arguments. No places unless these arguments consist of exactly the weights, in order."""
    args, _ = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    places = [i for i, a in enumerate(args) if not set(jax.tree_util.tree_leaves(a)).isdisjoint(weights)]
    given = [args[i] for i in places]
    if not places or jax.tree_util.tree_leaves(given) != list(weights):
        return (), None
    return tuple(places), jax.tree_util.tree_structure(given)


def _are_same_arrays(refs: Sequence[weakref.ref[Any]], arrays: Sequence[Any]) -> bool:
    """Whether `refs` refer to exactly these arrays, by identity."""
    return len(refs) == len(arrays) and all(map(operator.is_, [r() for r in refs], arrays))
