"""Shorter terms: what computes each element from one element of each of a few values, by the cheapest short term.

One rule in place of spelled laws of lattices, truth values, bits, comparisons and choices, constants, powers, quotients
and transcendental functions. Candidates are found by their values at sample points, tested like a rule, and proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.module import Function
from relax_eg.ops.facts import facts_of_dtype
from relax_eg.ops.record import TABLE
from relax_eg.rules.answer_cache import AnswerCache, data_as_expressions, expressions_as_data
from relax_eg.rules.checking.value_trials import pointwise_terms
from relax_eg.rules.pointwise.tables import Facts
from relax_eg.rules.pointwise.terms import PointwiseTerm, is_unrounded, leaves_in, terms_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, Propose, Schema, schema
from relax_eg.rules.signature import Numerics

# limit: seconds of processor time of the proof of a form; most take a hundredth of it
_PROVING = 0.5
_CHECKING = 10.0  # limit: seconds of processor time of the proof of a step of a derivation
_MOST_KNOWN = 1 << 14  # limit: terms whose forms are kept; one that is evicted is asked about again
_MOST_FORMS = 2  # limit: forms that are proposed for one value

_FACTS = frozenset(("finite", "integral", "nonnegative", "nonzero", "positive"))
_OPERATORS = frozenset(n for n, o in TABLE.items() if o.equations is not None and o.moves in (None, "convert"))

# Forms of a term: the best one, and the best one with the same bits.
_Forms = tuple[Expr | None, ...]
_known = AnswerCache[_Forms]("shorter terms", _MOST_KNOWN, expressions_as_data, data_as_expressions)


def _propose(e: Expr, queries: ProgramQueries, has_same_bits: bool) -> tuple[Expr, ...] | None:
    found: dict[Expr, None] = {}
    for term, facts in queries.once(("terms", e), lambda q: _terms_with_facts(e, q)):  # both schemas ask
        form = _form(term, facts, has_same_bits)
        if form is not None and form is not e:
            found[form] = None
            if len(found) == _MOST_FORMS:
                break
    return tuple(found) or None


def _terms_with_facts(e: Expr, queries: ProgramQueries) -> tuple[tuple[PointwiseTerm, Facts], ...]:
    """The terms with root `e`, with the facts of their leaves."""
    terms = terms_of(e, lambda x: len(queries.readers(x)) > 1)
    return tuple((t, tuple(_facts(x, queries.facts) for x in t.leaves)) for t in terms)


def _form(term: PointwiseTerm, facts: Facts, has_same_bits: bool) -> Expr | None:
    """The form with the same bits; or another form, where that one is not the best."""
    about = tuple(tuple(sorted(known)) for known in facts)
    asked = term.scalar, *term.variables
    best, with_same_bits = _known.answer(asked, about, _PROVING, lambda: _forms_anew(term, facts))
    scalar = with_same_bits if has_same_bits else best if best is not with_same_bits else None
    try:
        return None if scalar is None else term.of_tensors(scalar)
    except RelaxEgError:  # an operator that takes no operands of these shapes
        return None


def _facts(e: Expr, facts_of: FactsOf) -> frozenset[str]:
    """The facts of `e` that its dtype does not imply."""
    return facts_of(e) & _FACTS - facts_of_dtype(e.dtype)


def _forms_anew(term: PointwiseTerm, facts: Facts) -> _Forms:
    # z3 and the prover are imported by nothing else here.
    from relax_eg.rules.pointwise.proofs import why_not_same
    from relax_eg.rules.pointwise.search import candidates

    best: Expr | None = None
    asked = term.variables, facts, _PROVING
    may_have_same_bits = is_unrounded(term.scalar)
    for found in candidates(term.scalar, [x.dtype for x in term.leaves], facts):
        if may_have_same_bits and not why_not_same(term.scalar, found, *asked, same_bits=True):
            return found if best is None else best, found
        if best is None and not why_not_same(term.scalar, found, *asked):
            best = found
        if best is not None and not may_have_same_bits:
            break
    return best, None


def _prove(left: Expr, right: Expr, facts_of: FactsOf, functions: Mapping[str, Function], has_same_bits: bool) -> str:
    from relax_eg.rules.pointwise.proofs import why_not_same
    from relax_eg.rules.pointwise.terms import over

    there = set(postorder((right,)))
    why = f"{left.op} is not computed element by element"
    for term in terms_of(left, there.__contains__):
        try:
            scalar = over(right, dict(zip(term.leaves, term.variables, strict=True)))
        except RelaxEgError:
            continue
        if leaves_in(scalar) <= set(term.variables) and not scalar.shape:  # positions are no function of the leaves
            facts = tuple(_facts(x, facts_of) for x in term.leaves)
            why = why_not_same(term.scalar, scalar, term.variables, facts, _CHECKING, has_same_bits)
            if not why:
                return ""
    return why


def shorter_exact_term(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """what computes the same bits in fewer steps is equal"""
    return _propose(e, queries, True)


def shorter_term(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """what computes the same elements in fewer steps is equal"""
    return _propose(e, queries, False)


def _schema(propose: Propose, numerics: Numerics) -> Schema:
    return schema(
        propose, numerics, ("pointwise",), _OPERATORS, (pointwise_terms,), asks_again=True, facts=_FACTS,
        prove=partial(_prove, has_same_bits=numerics == "exact"),
    )  # fmt: skip


pointwise = RuleSet("pointwise", schemas=(_schema(shorter_exact_term, "exact"), _schema(shorter_term, "reassociate")))
