"""Proofs that two expressions are equal for all values of some expressions in them, or of what they share.

Proofs are kept by their structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder, var
from relax_eg.ir.heads import CORE
from relax_eg.rules.answer_cache import AnswerCache, checked_reason
from relax_eg.rules.signature import Numerics
from relax_eg.traversal import reached

_MOST_KNOWN = 1 << 14  # limit: proofs that are kept; one that is evicted is asked for again
_known = AnswerCache[str]("proofs", _MOST_KNOWN, str, checked_reason)


def why_not_equal_over_shared(
    left: Expr, right: Expr, seconds: float, numerics: Numerics = "reassociate", most: float = math.inf
) -> str:
    """Why two expressions are not shown equal for all values of what they share, within `seconds` of processor time;
    empty if they are. `numerics`: the class that is shown. `most`: operators above what they share of which a proof is
    tried."""
    why = "they share nothing"
    for leaves in _shared(left, right):
        is_near = are_near((left, right), leaves, most)
        why = why_not_equal_over(leaves, left, right, seconds, numerics) if is_near else "they share too little"
        if not why:
            return ""
    return why


def why_not_equal_over(
    leaves: Sequence[Expr],
    left: Expr,
    right: Expr,
    seconds: float,
    numerics: Numerics = "reassociate",
    facts: Mapping[Expr, Collection[str]] | None = None,
) -> str:
    """Why two expressions are not shown equal for all values of `leaves`, within `seconds` of processor time; empty if
    they are. `numerics`, `facts`: as of `verify_formal.prove.why_not_equal`."""
    variables = {x: var(f"leaf {i}", x.annotation) for i, x in enumerate(leaves)}
    a, b = substitute_exprs((left, right), variables)
    known = {variables.get(x, x): f for x, f in (facts or {}).items() if f}
    others = [x for x in known if x not in variables.values()]

    def prove() -> str:
        # z3 and the prover are imported by nothing else here.
        from relax_eg.rules.verify_formal.prove import why_not_equal

        try:
            return why_not_equal(a, b, tuple(variables.values()), seconds, numerics, known)
        except RelaxEgError as e:
            return str(e)

    asked = a, b, *variables.values(), *others
    about = tuple(tuple(sorted(known.get(x, ()))) for x in asked[2:]), len(others), numerics, seconds
    return _known.answer(asked, about, seconds, prove)


def are_near(values: Sequence[Expr], leaves: Sequence[Expr], most: float) -> bool:
    """Whether at most `most` operators are between values and leaves; stops at the first that is too many."""
    seen, work = set(leaves), [*values]
    while work and len(seen) <= most + len(leaves):
        e = work.pop()
        if e not in seen:
            seen.add(e)
            work += e.args
    return not work


def _shared(left: Expr, right: Expr) -> Iterator[tuple[Expr, ...]]:
    """The largest expressions that both sides have; then the same with positions expanded."""
    both = set(postorder((left,))) & set(postorder((right,)))
    tried: set[tuple[Expr, ...]] = set()
    for is_expanded in (lambda _: False, lambda x: not _is_float(x)):

        def is_leaf(x: Expr, is_expanded: Callable[[Expr], bool] = is_expanded) -> bool:
            is_array = x.ndim > 0 if x.op == CONSTANT else x.op == VAR or x.op in CORE
            return x in both and (is_array or (bool(x.args) and not is_expanded(x)))

        found = tuple(x for x in reached((left, right), lambda x: () if is_leaf(x) else x.args) if is_leaf(x))
        if found not in tried:
            tried.add(found)
            yield found


def _is_float(e: Expr) -> bool:
    return isinstance(e.annotation, Tensor) and is_float(e.dtype)
