"""Selection with weights: values that depend on weights alone are computed once, ahead of the calls, and are nearly
free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.numbers import LEAST_SECONDS
from relax_eg.extract.costs.pricing import FREE, ONCE, Pricing
from relax_eg.extract.graph import Candidate, ExtractionGraph
from relax_eg.extract.selection.clock import Clock
from relax_eg.extract.selection.select import Selection, select, select_exactly
from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CONSTANT, FUNCTION, VAR, Expr, postorder, tuple_
from relax_eg.ir.module import Function
from relax_eg.ir.partition import has_only_sizes, split
from relax_eg.ops import bytes_of
from relax_eg.traversal import derived

# chosen: shares of what may be prepared, if several programs prepare values and have to fit into it together
FRUGAL = (0.5, 0.25)
_PREPARED_SHARE = 1.5  # limit: bytes of prepared values, as a multiple of the weights' own
# limit: the same where results may be approximate: a window of three elements by three has 36 in Winograd's tiles
_APPROXIMATE_SHARE = 4.0
# limit: bytes that a block may prepare in any case where results may be approximate: the Fourier transform of a window
# is as large as the image
_APPROXIMATE_BYTES = 1 << 25
# chosen: first price of the bytes that may be prepared, as a share of the cost of the program as written
_FIRST_PRICE = 1 / 16
_DEARER = 4  # chosen: factor by which the price is raised
_RAISED = 12  # limit: how often the price is raised

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Preparable:
    """How many bytes may be prepared from weights.

    - `share`: as a multiple of the weights' own bytes.
    - `least`: bytes that may be prepared in any case.
    """

    share: float = _PREPARED_SHARE
    least: float = 0.0

    def bytes_for(self, weights: float) -> float:
        """The limit for weights of so many bytes."""
        return max(self.share * weights, self.least)

    def scaled(self, by: float) -> Preparable:
        return Preparable(by * self.share, by * self.least)


PREPARABLE = Preparable()
APPROXIMATE = Preparable(_APPROXIMATE_SHARE, _APPROXIMATE_BYTES)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selection and its costs.

    - `selection`: the selection.
    - `costs[c][k]`: the cost of candidate `k` of class `c` under which it was made.
    """

    selection: Selection
    costs: list[list[float]]


def cheapest(
    graph: ExtractionGraph,
    decode: Callable[[Sequence[int]], list[Expr]],
    weights: set[str],
    models: Sequence[WholeCost],
    once: float | None = None,
    preparable: Preparable = PREPARABLE,
    pricing: Pricing = FREE,
    clock: Clock | None = None,
) -> Chosen:
    """The cheapest choice over all bindings, each weighed by the cost of the program as written there.

    Bytes of prepared values have a price, which is raised until they fit into what is `preparable`.

    - `decode`: the expressions of the roots under a choice.
    - `weights`: the names of the parameters that are weights.
    - `models`: the cost model of each binding.
    - `once`: if given, `weights` are the values that are the same at every step of a loop. Values that depend on them
      alone cost this share of their seconds, and their bytes have no price.
    - `pricing`: the price of a byte of every other stored value.
    - `clock`: limits the seconds of the exact search.
    """
    clock = clock or Clock()
    static = static_classes(graph, weights) if weights else ()
    priced = replace(pricing, static=static, once=ONCE if once is None else once)

    def choose(price: float) -> Chosen:
        costs = _costs(graph, models, replace(priced, prepared=price))
        return Chosen(select(graph, costs), costs)

    if not weights or once is not None:
        found = choose(0.0)
        return replace(found, selection=select_exactly(graph, found.costs, found.selection, clock))
    limit = PreparedLimit.of(graph, weights, models[0].binding, preparable)
    found = limit.choose_within(
        choose, lambda c: (decode(c.selection.choice), c.selection.written_cost), _DEARER, _RAISED
    )
    exact = select_exactly(graph, found.costs, found.selection, clock)
    # The result of the exact search may prepare more bytes again; its bound holds all the same.
    if exact.choice != found.selection.choice and not limit.allows(decode(exact.choice)):
        exact = replace(found.selection, bound=exact.bound, how="ilp")
    return Chosen(exact, found.costs)


@dataclass(frozen=True, slots=True)
class PreparedLimit:
    """The limit of the bytes that a program may prepare from weights.

    - `weights`: the names of the parameters that are weights.
    - `binding`: the binding at which bytes are counted.
    - `bytes`: the limit.
    """

    weights: set[str]
    binding: Mapping[str, int]
    bytes: float

    @staticmethod
    def of(
        graph: ExtractionGraph, weights: set[str], binding: Mapping[str, int], preparable: Preparable
    ) -> PreparedLimit:
        """The limit for the weights of a graph."""
        rows = zip(graph.candidates, graph.annotations, strict=True)
        held = (a for row, a in rows for x in row if x.op == VAR and x.site.attrs["name"] in weights)
        own = sum(int(bytes_of(a).evaluate(binding)) for a in held)
        return PreparedLimit(weights, binding, preparable.bytes_for(own))

    def allows(self, values: Sequence[Expr]) -> bool:
        """Whether a program with these results prepares at most so many bytes."""
        params = tuple(e for e in postorder(values) if e.op == VAR)
        cut = split(Function("block", params, (), tuple_(values)), self.weights).prepare.result.args
        return prepared_bytes(cut, self.binding) <= self.bytes

    def choose_within(
        self,
        choose: Callable[[float], Found],
        results_of: Callable[[Found], tuple[Sequence[Expr], float]],
        dearer: float,
        raised: int,
    ) -> Found:
        """The result of `choose` at the least tried price of a prepared byte at which the limit is kept, or at the
        highest tried price. The price is a Lagrange multiplier and starts at 0.

        - `choose`: chooses a program at a price of a prepared byte.
        - `results_of`: the results of the chosen program, and the cost of the program as written.
        - `dearer`, `raised`: the factor by which the price is raised, and how often at most.
        """
        found = choose(0.0)
        values, written_cost = results_of(found)
        price = written_cost / max(self.bytes, 1.0) * _FIRST_PRICE
        for _ in range(raised):
            if self.allows(values):
                break
            found, price = choose(price), price * dearer
            values, _ = results_of(found)
        return found


def prepared_bytes(cut: Iterable[Expr], binding: Mapping[str, int]) -> int:
    """Bytes of the prepared values."""
    return sum(int(bytes_of(e.annotation).evaluate(binding)) for e in cut)


def _costs(graph: ExtractionGraph, models: Sequence[WholeCost], pricing: Pricing) -> list[list[float]]:
    """The costs of every candidate: its seconds, summed over the bindings in units of the program as written, and the
    prices of its bytes."""
    weigh = [1.0]
    if len(models) > 1:
        weigh = [1.0 / max(_written_seconds(graph, pricing.static, m), LEAST_SECONDS) for m in models]
    costs: list[list[float]] = []
    for c, row in enumerate(graph.candidates):
        prices: list[float] = []
        for candidate in row:
            per_model = [m.price(candidate.site, graph.annotations[c]) for m in models]
            seconds = sum(w * p.seconds for w, p in zip(weigh, per_model, strict=True))
            size = 0
            if pricing.is_ahead((c,), candidate.children):
                size = per_model[0].bytes  # of results and of operands, which are read ahead of the calls
            elif pricing.held and per_model[0].launches:
                size = _bytes(graph.annotations[c], models[0].binding)
            prices.append(pricing.price_of((c,), candidate.children, seconds, (size,)))
        costs.append(prices)
    return costs


def _bytes(a: Annotation, binding: Mapping[str, int]) -> int:
    size = bytes_of(a)
    return int(size.evaluate(binding)) if size.variables <= binding.keys() else 0


def _written_seconds(graph: ExtractionGraph, static: Sequence[bool], model: WholeCost) -> float:
    return sum(
        model.price(graph.candidates[c][k].site, graph.annotations[c]).seconds
        for c, k in enumerate(graph.as_written)
        if k >= 0 and not (static and static[c])
    )


def static_classes(graph: ExtractionGraph, weights: set[str]) -> list[bool]:
    """For each class, whether a candidate computes it from weights, their sizes and constants alone. Takes O(nodes)."""
    known = {
        v
        for c, row in enumerate(graph.candidates)
        for x in row
        if x.op == VAR and x.site.attrs["name"] in weights
        for d in dims_of(graph.annotations[c])
        for v in d.variables
    }

    def is_known(x: Candidate) -> bool:
        """Whether a candidate without operands is. A library call may return anything; iota and full are constants."""
        named = x.op == VAR and x.site.attrs["name"] in weights
        return named or x.op in (CONSTANT, FUNCTION) or x.op not in (VAR, CALL_DPS_LIBRARY)

    static = derived(
        (c, set(x.children))
        for c, row in enumerate(graph.candidates)
        for x in row
        if has_only_sizes(x.site.attrs.values(), known) and (x.children or is_known(x))
    )
    return [c in static for c in range(len(graph.candidates))]
