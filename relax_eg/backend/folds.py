"""Runs folds level by level: all nodes of one constructor that stand equally far from their leaves in one XLA program.

The results of all nodes stand in tables, one for each tensor of the result, with a row for each node and a last row
that padding writes. Numbers of nodes are padded to powers of two, so few programs are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from relax_eg.backend.calls.executables import Executables
from relax_eg.backend.lowering.lower import run_at
from relax_eg.dtypes import numpy_dtype
from relax_eg.ir.annotations import Annotation, DataValue, Tensor, Tuple
from relax_eg.ir.module import Module
from relax_eg.vm.folds import DeferredValue, Fold, FoldCase, levels

# chosen: nodes of a level, on average, from which on levels run at once. A chain of 100,000 nodes took twice as long by
# levels as node by node.
WIDTH = 2


class FoldRunner:
    """Runs one fold of a module.

    - `one(args)`: runs the function itself, node by node.
    """

    def __init__(self, module: Module, fold: Fold, executables: Executables, one: Callable[[list[Any]], Any]) -> None:
        self.module = module
        self.fold = fold
        self.one = one
        self.tensors = _tensors(fold.result)
        self._steps = [executables.jit(self._step(c), part=True, donate_argnums=0) for c in fold.cases]

    def __call__(self, roots: Sequence[DataValue], rest: Sequence[Any]) -> list[Any]:
        """Returns the result of the fold for each of `roots`. Linear in the number of their nodes."""
        found = levels(roots, self.fold.cases)
        count = sum(map(len, found))
        if count < WIDTH * len(found):
            at = self.fold.place
            return [self.one([*rest[:at], root, *rest[at:]]) for root in roots]
        rows = _capacity(count)
        tables = tuple(jnp.zeros((rows + 1, *_shape(a)), numpy_dtype(a.dtype or "")) for a in self.tensors)
        place: dict[int, int] = {}
        for nodes in found:
            for i, case in enumerate(self.fold.cases):
                own = [v for v in nodes if v.index == i]
                if own:
                    tables = self._level(i, case, own, rest, tables, place, rows)
        at = np.array([place[id(r)] for r in roots], np.int32)
        chosen = [np.asarray(t)[at] for t in tables]
        leaves = iter(jax.device_put([c[k] for k in range(len(roots)) for c in chosen]))  # in one call
        return [_nested(self.fold.result, leaves) for _ in roots]

    def reads(self, roots: Sequence[DataValue]) -> Iterator[DeferredValue]:
        """The deferred values that running it reads."""
        for v in chain.from_iterable(levels(roots, self.fold.cases)):
            for f in self.fold.cases[v.index].fields:
                yield from _deferred(v.fields[f])

    def _level(
        self, i: int, case: FoldCase, nodes: list[DataValue], rest: Sequence[Any], tables: tuple[Any, ...],
        place: dict[int, int], rows: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        n = _capacity(len(nodes))
        inner = np.zeros((n, len(case.calls)), np.int32)
        places = np.full((n,), rows, np.int32)
        for k, v in enumerate(nodes):
            place[id(v)] = places[k] = len(place)
            for c, f in enumerate(case.calls):
                inner[k, c] = place[id(v.fields[f])]
        fields = tuple(_stacked([v.fields[f] for v in nodes], n) for f in case.fields)
        return self._steps[i](tables, places, inner, fields, tuple(rest[r] for r in case.rest))

    def _step(self, case: FoldCase) -> Callable[..., Any]:
        """One level of one constructor."""
        result = self.fold.result

        def one(constants: tuple[Any, ...], fields: tuple[Any, ...], found: tuple[Any, ...]) -> list[Any]:
            made = run_at(self.module, case.body, [*constants, *fields, *found], {})
            whole = run_at(self.module, self.fold.end, [made], {})
            return jax.tree_util.tree_leaves(whole)

        def step(tables: Any, places: Any, inner: Any, fields: Any, constants: Any) -> Any:
            found = tuple(_nested(result, iter([t[inner[:, c]] for t in tables])) for c in range(len(case.calls)))
            made = jax.vmap(one, in_axes=(None, 0, 0), axis_size=places.shape[0])(constants, fields, found)
            return tuple(t.at[places].set(m) for t, m in zip(tables, made, strict=True))

        return step


def _stacked(values: list[Any], count: int) -> Any:
    """Equal arrays along a new first axis, with zeros up to `count`. What fields hold may be tuples."""
    first = values[0]
    if isinstance(first, tuple):
        return tuple(_stacked([v[i] for v in values], count) for i in range(len(first)))  # type: ignore[reportUnknownArgumentType]
    arrays = [np.asarray(v.value() if isinstance(v, DeferredValue) else v) for v in values]
    made = np.zeros((count, *arrays[0].shape), arrays[0].dtype)
    np.stack(arrays, out=made[: len(arrays)])
    return made


def _deferred(value: Any) -> Iterator[DeferredValue]:
    if isinstance(value, DeferredValue):
        yield value
    elif isinstance(value, tuple):
        for v in value:  # type: ignore[reportUnknownVariableType]
            yield from _deferred(v)


def _capacity(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _shape(a: Tensor) -> tuple[int, ...]:
    return tuple(d.value for d in a.shape or ())


def _tensors(a: Annotation) -> list[Tensor]:
    if isinstance(a, Tuple):
        return [t for f in a.fields for t in _tensors(f)]
    assert isinstance(a, Tensor)
    return [a]


def _nested(a: Annotation, leaves: Any) -> Any:
    return tuple(_nested(f, leaves) for f in a.fields) if isinstance(a, Tuple) else next(leaves)
