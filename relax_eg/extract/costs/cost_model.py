"""The protocol of cost models: the price of a node, and how a user's model is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from relax_eg.errors import ExtractionError
from relax_eg.extract.costs.numbers import Number, is_column, maximum
from relax_eg.ir.annotations import Annotation
from relax_eg.ops import Site


@dataclass(frozen=True, slots=True)
class NodeCost:
    """The cost of one node at a binding; at many bindings each field is a column (`numbers`).

    - `flops`: flops.
    - `bytes`: bytes moved.
    - `launches`: kernel launches.
    - `seconds`: predicted seconds; infinite if nothing executes the node.
    - `wakes`: whether the node wakes other cores, which a program pays for once.
    """

    flops: Number = 0
    bytes: Number = 0
    launches: Number = 0
    seconds: Number = 0.0
    wakes: Number = False

    def __add__(self, other: NodeCost) -> NodeCost:
        return NodeCost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.launches + other.launches,
            self.seconds + other.seconds,
            self.wakes | other.wakes,
        )

    def scaled(self, times: Number) -> NodeCost:
        """The cost of `times` runs."""
        amounts = (x * times for x in (self.flops, self.bytes, self.launches, self.seconds))
        return NodeCost(*amounts, wakes=self.wakes)

    def without(self, part: NodeCost) -> NodeCost:
        """This cost minus that of a part, each amount at least 0."""
        return NodeCost(
            maximum(0.0, self.flops - part.flops),
            maximum(0.0, self.bytes - part.bytes),
            maximum(0.0, self.launches - part.launches),
            maximum(0.0, self.seconds - part.seconds),
            self.wakes,
        )


class CostModel(Protocol):
    """Any object that can price operators: `optimize(..., target=model)`.

    The model may have an attribute `profile`: the profile of the device that it prices, or the name of a profile. The
    default is that of JAX's device. Kernels are planned, and their bytes and launches are counted, for this device."""

    def price(self, site: Site, result: Annotation, sizes: Mapping[str, int]) -> NodeCost:
        """The cost of one use of an operator at a binding of the size variables; `result` annotates its value.

        Extraction compares `seconds`, which may have any unit. Infinite seconds mean that nothing executes the
        operator. `relax_eg.ops.counts(site)` has flops and bytes as expressions in the sizes. The operators that a
        loop, a branch or a call runs are priced by calls of their own."""
        ...


def price_each_binding(
    model: CostModel, site: Site, result: Annotation, binding: Mapping[str, Number], columns: int
) -> NodeCost:
    """The price by `model`, which is called once per binding.

    - `columns`: number of bindings in `binding`; 0: `binding` is one binding.
    """
    return map_bindings(lambda at: check_cost(site.op, model.price(site, result, at)), columns, binding)


def map_bindings(
    price: Callable[..., NodeCost], columns: int, binding: Mapping[str, Number], *amounts: Number
) -> NodeCost:
    """The result of `price`, which takes numbers only, called once per binding with the amounts there.

    - `columns`: length of the columns in `binding` and `amounts`; 0: there are no columns.
    """
    if not columns:
        return price(binding, *amounts)

    def entry(x: Number, i: int) -> Number:
        return int(x[i]) if is_column(x) else x

    each = [
        price({v: entry(n, i) for v, n in binding.items()}, *(entry(x, i) for x in amounts)) for i in range(columns)
    ]
    return NodeCost(*(np.array([getattr(c, f.name) for c in each]) for f in fields(NodeCost)))


def check_cost(op: str, found: Any) -> NodeCost:
    """`found`, the result of a cost model for an operator. ExtractionError unless it is a NodeCost of seconds >= 0."""
    if not isinstance(found, NodeCost):
        raise ExtractionError(f"the cost model gave {found!r} for `{op}`; a NodeCost is accepted")
    if not found.seconds >= 0:  # a NaN is not
        raise ExtractionError(f"the cost model gave {found.seconds} seconds for `{op}`; a number >= 0 is accepted")
    return found
