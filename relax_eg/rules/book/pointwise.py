"""Shorter terms: what computes each element from one element of each of a few values, by the cheapest short term.

One rule in place of spelled laws of lattices, truth values, bits, comparisons and choices, constants, powers, quotients
and transcendental functions. Candidates are found by their values at sample points, tested like a rule, and proved.
"""

from __future__ import annotations

from collections.abc import Iterator

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.memo import Memo
from relax_eg.ops.facts import facts_of_dtype
from relax_eg.ops.record import TABLE
from relax_eg.rules.pointwise.tables import Facts
from relax_eg.rules.pointwise.terms import PointwiseTerm, leaves_in, terms_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, Schema
from relax_eg.rules.value_trials import pointwise_terms

# limit: seconds of processor time of the proof of a form; most take a hundredth of it
_PROVING = 0.5
_CHECKING = 10.0  # limit: seconds of processor time of the proof of a step of a derivation
_MOST_KNOWN = 1 << 14  # limit: terms whose forms are kept; one that is evicted is asked about again
_MOST_FORMS = 2  # limit: forms that are proposed for one value

_FACTS = frozenset(("finite", "integral", "nonnegative", "nonzero", "positive"))
_OPERATORS = frozenset(n for n, o in TABLE.items() if o.equations is not None and o.moves in (None, "convert"))

_known = Memo[tuple[Expr, Facts], Expr | None](_MOST_KNOWN)


def _propose(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    found: dict[Expr, None] = {}
    for term in terms_of(e, lambda x: len(queries.readers(x)) > 1):
        form = _form(term, queries.facts)
        if form is not None and form is not e:
            found[form] = None
            if len(found) == _MOST_FORMS:
                break
    return tuple(found) or None


def _form(term: PointwiseTerm, facts_of: FactsOf) -> Expr | None:
    facts = tuple(_facts(x, facts_of) for x in term.leaves)
    key = term.scalar, facts
    if key not in _known:
        _known[key] = next(_forms_anew(term, facts), None)
    scalar = _known[key]
    try:
        return None if scalar is None else term.of_tensors(scalar)
    except RelaxEgError:  # an operator that takes no operands of these shapes
        return None


def _facts(e: Expr, facts_of: FactsOf) -> frozenset[str]:
    """The facts of `e` that its dtype does not imply."""
    return facts_of(e) & _FACTS - facts_of_dtype(e.dtype)


def _forms_anew(term: PointwiseTerm, facts: Facts) -> Iterator[Expr]:
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.pointwise.proofs import why_not_same
    from relax_eg.rules.pointwise.search import candidates

    dtypes = [x.dtype for x in term.leaves]
    for found in candidates(term.scalar, dtypes, facts):
        if not why_not_same(term.scalar, found, term.variables, facts, _PROVING):
            yield found


def _prove(left: Expr, right: Expr, facts_of: FactsOf) -> str:
    from relax_eg.rules.pointwise.proofs import why_not_same
    from relax_eg.rules.pointwise.terms import over

    there = set(postorder((right,)))
    why = f"{left.op} is not computed element by element"
    for term in terms_of(left, there.__contains__):
        try:
            scalar = over(right, dict(zip(term.leaves, term.variables, strict=True)))
        except RelaxEgError:
            continue
        if leaves_in(scalar) <= set(term.variables):
            facts = tuple(_facts(x, facts_of) for x in term.leaves)
            why = why_not_same(term.scalar, scalar, term.variables, facts, _CHECKING)
            if not why:
                return ""
    return why


pointwise = RuleSet(
    "pointwise",
    schemas=(
        Schema(
            "shorter_term",
            "what computes the same elements in fewer steps is equal",
            "reassociate",
            frozenset(("pointwise",)),
            _propose,
            _OPERATORS,
            (pointwise_terms,),
            asks_again=True,
            facts=_FACTS,
            prove=_prove,
        ),
    ),
)
