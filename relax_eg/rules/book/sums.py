"""The order of sums: terms with a common factor become adjacent.

Rules on two terms match only adjacent terms, and associativity with commutativity would enumerate all orders of a sum.
So the schema looks at a whole sum once: it gathers the terms through nested additions, subtractions and negations and
makes those with a common factor adjacent; rules on two terms do the rest. It makes one new sum for each sum of a
program.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from relax_eg.ir.expr import Expr
from relax_eg.ops import api as op
from relax_eg.rules.checking.schema_trials import nested_sums
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema
from relax_eg.traversal import leaves

_SUMS = frozenset(("add", "subtract", "negative"))
_PRODUCTS = frozenset(("matmul", "linear"))
Term = tuple[bool, Expr]  # whether the term is subtracted, and the term


def sums_in_order(e: Expr, queries: ProgramQueries) -> Expr | None:
    """terms of a sum with a common factor become adjacent"""
    if _is_inside_a_sum(e, queries):
        return None
    terms = list(_terms(e, queries))
    if len(terms) < 3:
        return None
    groups = _grouped(terms)
    if len(groups) == len(terms):
        return None
    minus, value = _sum([_sum(g) for g in groups])
    value = op.negative(value) if minus else value
    return None if value is e else value


def _is_inside_a_sum(e: Expr, queries: ProgramQueries) -> bool:
    readers = queries.readers(e)
    return len(readers) == 1 and readers[0].op in _SUMS and readers[0].annotation == e.annotation


def _terms(e: Expr, queries: ProgramQueries) -> Iterator[Term]:
    """Yields the terms of the sum `e`, in order. An inner sum with other readers is one term: it is computed anyway."""

    def parts(term: Term) -> list[Term] | None:
        minus, x = term
        inner = x.op in _SUMS and all(a.annotation == e.annotation for a in x.args)
        if not inner or not (x is e or len(queries.readers(x)) == 1):
            return None
        return [(minus != (x.op == "negative" or (i > 0 and x.op == "subtract")), a) for i, a in enumerate(x.args)]

    yield from leaves((False, e), parts)


def _grouped(terms: Sequence[Term]) -> list[list[Term]]:
    """Returns the terms in groups with a common factor, each term in the first group that it fits. A common factor of
    products comes first in each product. O(factors)."""
    groups: list[list[Term]] = []
    shared: list[set[Hashable]] = []  # factors that all terms of a group have
    by_factor: dict[Hashable, list[int]] = {}
    for term in terms:
        factors = set(_factors(term[1]))
        places = sorted({i for f in factors for i in by_factor.get(f, ()) if f in shared[i]})
        if places:
            at = places[0]
            groups[at].append(term)
            shared[at] &= factors
        else:
            for f in factors:
                by_factor.setdefault(f, []).append(len(groups))
            groups.append([term])
            shared.append(factors)
    return [_with_first(g, s) for g, s in zip(groups, shared, strict=True)]


def _with_first(group: list[Term], shared: set[Hashable]) -> list[Term]:
    common = next((f for f in _factors(group[0][1]) if f in shared and isinstance(f, Expr)), None)
    if common is None or len(group) == 1:
        return group
    return [(minus, op.multiply(common, _without(t, common))) for minus, t in group]


def _factors_of(product: Expr) -> list[Expr]:
    return leaves(product, lambda x: x.args if x.op == "multiply" else None)


def _without(product: Expr, factor: Expr) -> Expr:
    """Returns a product without one of its factors."""
    rest = _factors_of(product)
    rest.remove(factor)
    value = rest[0]
    for x in rest[1:]:
        value = op.multiply(value, x)
    return value


def _factors(t: Expr) -> Iterator[Hashable]:
    """Yields the factors that can be taken out of a term: its first and last matrices, or the factors of a product."""
    factors = _factors_of(t)
    if len(factors) > 1:
        yield from (x for x in factors if x.annotation == t.annotation)
    matrices = [x for x in factors if x.op in _PRODUCTS]
    if len(matrices) == 1 and all(x.ndim == 0 for x in factors if x is not matrices[0]):
        yield from _ends(matrices[0])


def _ends(x: Expr) -> Iterator[Hashable]:
    """Yields the matrices, or products of several, with which a chain of matmuls begins and ends."""
    for side in (0, 1):
        e = x
        while e.op == "matmul":
            e = e.args[side]
            yield side, e
        if e.op == "linear":
            yield side, "linear", e.args[side]


def _sum(terms: Sequence[Term]) -> Term:
    """Returns the signed sum of terms as a balanced tree, which takes few rounds to factor."""
    level = list(terms)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [_plus(a, b) for a, b in pairs] + level[len(level) // 2 * 2 :]
    return level[0]


def _plus(a: Term, b: Term) -> Term:
    if a[0] == b[0]:
        return a[0], op.add(a[1], b[1])
    return False, op.subtract(b[1], a[1]) if a[0] else op.subtract(a[1], b[1])


sums = RuleSet(
    "sums",
    schemas=(schema(sums_in_order, "reassociate", ("sums",), ("add", "subtract"), (nested_sums,)),),
)
