"""Selection with weights: values that depend on weights alone are computed once, ahead of the calls, and priced so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.clock import Clock
from relax_eg.extract.cost import WholeCost
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.numbers import LEAST_SECONDS
from relax_eg.extract.pricing import FREE, ONCE, Pricing
from relax_eg.extract.select import Selection, select, select_exactly
from relax_eg.ir.annotations import Annotation, dims_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CONSTANT, FUNCTION, VAR, Expr, postorder, tuple_
from relax_eg.ir.module import Function
from relax_eg.ir.partition import sizes_in, split
from relax_eg.ops import bytes_of

FRUGAL = (0.5, 0.25)  # chosen: of `PREPARED_SHARE`, if several programs prepare values and all together have to fit
PREPARED_SHARE = 1.5  # limit: bytes of prepared values, as a multiple of the weights' own
# chosen: first price of the bytes that may be prepared, as a share of the cost of the program as written
FIRST_PRICE = 1 / 16
_DEARER = 4  # chosen: times the price before
_RAISED = 12  # limit: how often the price is raised


@dataclass(frozen=True, slots=True)
class Chosen:
    """A selection, and the costs under which it was made."""

    selection: Selection
    costs: list[list[float]]


def cheapest(
    graph: ExtractionGraph,
    decode: Callable[[Sequence[int]], list[Expr]],
    weights: set[str],
    models: Sequence[WholeCost],
    once: float | None = None,
    share: float = PREPARED_SHARE,
    pricing: Pricing = FREE,
    clock: Clock | None = None,
) -> Chosen:
    """The cheapest choice over all bindings, with one model each; the program as written weighs every binding.

    Bytes of prepared values have a price, which is raised until they fit into `share` times the bytes of the weights.

    - `once`: if given, `weights` are the values that are the same at every step of a loop: values that follow from them
      alone cost this share of their seconds, and their bytes have no price.
    - `pricing`: price of a byte of every other stored value.
    - `clock`: bounds the seconds of the exact search.
    """
    clock = clock or Clock()
    static = static_classes(graph, weights) if weights else [False] * len(graph.candidates)
    costs = _costs(graph, static, models, once=ONCE if once is None else once, pricing=pricing)
    selection = select(graph, costs)
    if not weights or once is not None:
        return Chosen(select_exactly(graph, costs, selection, clock), costs)
    binding = models[0].binding
    limit = share * weight_bytes(graph, weights, binding)
    price = selection.written_cost / max(limit, 1.0) * FIRST_PRICE

    def fits(selection: Selection) -> bool:
        return prepared_of(decode(selection.choice), weights, binding) <= limit

    for _ in range(_RAISED):
        if fits(selection):
            break
        costs = _costs(graph, static, models, price, pricing=pricing)
        selection = select(graph, costs)
        price *= _DEARER
    exact = select_exactly(graph, costs, selection, clock)
    # The result of the exact search may prepare more bytes again; its bound holds all the same.
    if exact.choice != selection.choice and not fits(exact):
        exact = replace(selection, bound=exact.bound, how="ilp")
    return Chosen(exact, costs)


def prepared_of(values: Sequence[Expr], weights: set[str], binding: Mapping[str, int]) -> int:
    """Bytes of the values that a program with these results prepares from `weights`."""
    params = tuple(e for e in postorder(values) if e.op == VAR)
    cut = split(Function("block", params, (), tuple_(values)), weights).prepare.result.args
    return prepared_bytes(cut, binding)


def prepared_bytes(cut: Iterable[Expr], binding: Mapping[str, int]) -> int:
    """Bytes of the prepared values."""
    return sum(int(bytes_of(e.annotation).evaluate(binding)) for e in cut)


def _costs(
    graph: ExtractionGraph,
    static: Sequence[bool],
    models: Sequence[WholeCost],
    price: float = 0.0,
    once: float = ONCE,
    pricing: Pricing = FREE,
) -> list[list[float]]:
    """Seconds of every candidate, summed over the bindings in units of the program as written.

    - `price`: price of a prepared byte.
    - `once`: share of its seconds that prepared work costs.
    - `pricing`: price of a byte of other stored values.
    """
    weigh = [1.0]
    if len(models) > 1:
        weigh = [1.0 / max(_written_seconds(graph, static, m), LEAST_SECONDS) for m in models]
    costs: list[list[float]] = []
    for c, row in enumerate(graph.candidates):
        prices: list[float] = []
        for candidate in row:
            per_model = [m.price(candidate.site, graph.annotations[c]) for m in models]
            seconds = sum(w * p.seconds for w, p in zip(weigh, per_model, strict=True))
            runs_once = static[c] and all(static[k] for k in candidate.children)
            if runs_once:
                prices.append(once * seconds + price * per_model[0].bytes)
            else:
                size = _bytes(graph.annotations[c], models[0].binding) if pricing.held and per_model[0].launches else 0
                prices.append(pricing.of((c,), candidate.children, seconds, (size,)))
        costs.append(prices)
    return costs


def _bytes(a: Annotation, binding: Mapping[str, int]) -> int:
    size = bytes_of(a)
    return int(size.evaluate(binding)) if size.variables <= binding.keys() else 0


def _written_seconds(graph: ExtractionGraph, static: Sequence[bool], model: WholeCost) -> float:
    return sum(
        model.price(graph.candidates[c][k].site, graph.annotations[c]).seconds
        for c, k in enumerate(graph.as_written)
        if k >= 0 and not static[c]
    )


def weight_bytes(graph: ExtractionGraph, weights: set[str], binding: Mapping[str, int]) -> int:
    """Bytes of the weights."""
    return sum(
        int(bytes_of(graph.annotations[c]).evaluate(binding))
        for c, row in enumerate(graph.candidates)
        for x in row
        if x.op == VAR and x.site.attrs["name"] in weights
    )


def static_classes(graph: ExtractionGraph, weights: set[str]) -> list[bool]:
    """For each class, whether a candidate computes it from weights, their sizes and constants alone. O(nodes)."""
    known = {
        v
        for c, row in enumerate(graph.candidates)
        for x in row
        if x.op == VAR and x.site.attrs["name"] in weights
        for d in dims_of(graph.annotations[c])
        for v in d.variables
    }
    static = [False] * len(graph.candidates)
    users: list[list[tuple[int, int]]] = [[] for _ in graph.candidates]
    waiting: dict[tuple[int, int], int] = {}
    work: list[int] = []
    for c, row in enumerate(graph.candidates):
        for k, candidate in enumerate(row):
            children = set(candidate.children)
            if not sizes_in(candidate.site.attrs.values(), known):
                continue
            waiting[c, k] = len(children)
            for child in children:
                users[child].append((c, k))
            leaf_is_static = candidate.op in (CONSTANT, FUNCTION) or (
                candidate.op == VAR and candidate.site.attrs["name"] in weights
            )
            # Operators without operands (iota, full) are constants too; a library call may return anything.
            if not children and (leaf_is_static or candidate.op not in (VAR, CALL_DPS_LIBRARY)):
                work.append(c)
    while work:
        c = work.pop()
        if static[c]:
            continue
        static[c] = True
        for user in users[c]:
            waiting[user] -= 1
            if waiting[user] == 0 and not static[user[0]]:
                work.append(user[0])
    return static
