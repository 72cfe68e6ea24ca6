"""The protocol of cost models: what the price of a node is, and how somebody's own model is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from relax_eg.errors import ExtractionError
from relax_eg.extract.numbers import Number, is_column
from relax_eg.ir.annotations import Annotation
from relax_eg.ops import Site


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one node at a binding: flops, bytes moved, kernel launches, seconds; and whether it wakes other cores,
    which a program pays once. At many bindings at once each is a column (`numbers`)."""

    flops: Number = 0
    bytes: Number = 0
    launches: Number = 0
    seconds: Number = 0.0
    wakes: Number = False


class CostModel(Protocol):
    """Anything with this method can price operators: `optimize(..., cost=model)`."""

    def price(self, site: Site, result: Annotation, sizes: Mapping[str, int]) -> NodeCost:
        """The cost of one use of an operator at a binding of the size variables; `result` annotates its value.

        Seconds decide, in whatever unit; infinite ones mean that nothing executes it. `relax_eg.ops.counts(site)` has
        flops and bytes as expressions in the sizes. What a loop, a branch or a call runs is asked for by itself."""
        ...


def asked(model: CostModel, site: Site, result: Annotation, binding: Mapping[str, Number], columns: int) -> NodeCost:
    """What a model says, which is asked of one binding at a time. `columns`: how many `binding` holds; 0: it is one."""
    return one_by_one(lambda at: checked(site.op, model.price(site, result, at)), columns, binding)


def one_by_one(
    price: Callable[..., NodeCost], columns: int, binding: Mapping[str, Number], *amounts: Number
) -> NodeCost:
    """What `price` gives for a binding and amounts, of which it takes numbers only. `columns`: how long those are that
    are columns; 0: there are none."""
    if not columns:
        return price(binding, *amounts)

    def entry(x: Number, i: int) -> Number:
        return int(x[i]) if is_column(x) else x

    each = [
        price({v: entry(n, i) for v, n in binding.items()}, *(entry(x, i) for x in amounts)) for i in range(columns)
    ]
    return NodeCost(*(np.array([getattr(c, f.name) for c in each]) for f in fields(NodeCost)))


def checked(op: str, found: Any) -> NodeCost:
    """What a cost model gave for an operator. ExtractionError unless that is a NodeCost of seconds >= 0."""
    if not isinstance(found, NodeCost):
        raise ExtractionError(f"the cost model gave {found!r} for `{op}`; a NodeCost is accepted")
    if not found.seconds >= 0:  # a NaN is not
        raise ExtractionError(f"the cost model gave {found.seconds} seconds for `{op}`; a number >= 0 is accepted")
    return found
