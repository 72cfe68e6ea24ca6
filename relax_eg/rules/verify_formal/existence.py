"""Whether the right side of an instance exists wherever the left side does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from relax_eg.ir.expr import Expr, postorder
from relax_eg.ops.record import operators_run_as
from relax_eg.rules.rule import Instance
from relax_eg.rules.verify_formal.compose import Unsupported, promised_indices, size_conditions, unknown_promises
from relax_eg.rules.verify_formal.guards import GuardLiteral, KnownGuards

_MOST_ALTERNATIVES = 4  # limit: conditions on sizes with alternatives, all cases of which are tried
_HIGHEST = "highest"  # given: the precision with which a contraction is as exact as its dtype


def require_sizes(instance: Instance, facts: KnownGuards) -> None:
    """Raises Unsupported unless the right side's sizes are possible wherever those of the left side are, and its
    contractions ask for the same precisions, or for the highest one if no bits are claimed."""
    held = set(size_conditions(instance.left))
    for needed in size_conditions(instance.right):
        if needed in held or any(facts.entails(g) for g in needed):
            continue
        fails = [g.negated() for g in needed]
        if not all(facts.impossible([*fails, *case]) for case in _cases_of_sizes(instance.left)):
            raise Unsupported(f"the right side may not exist: {' or '.join(g.key for g in needed)}")
    asked, given = _precisions(instance.left) or {"None"}, _precisions(instance.right)
    others = given if instance.rule.numerics == "exact" else given - {_HIGHEST}
    if given != asked and others and others != asked:
        raise Unsupported("the matmuls of the sides ask for other precisions")


def _cases_of_sizes(left: Sequence[Expr]) -> Iterator[tuple[GuardLiteral, ...]]:
    """The cases that alternatives among the conditions of the left side leave."""
    alternatives = [c for c in size_conditions(left) if len(c) > 1]
    return itertools.product(*alternatives[:_MOST_ALTERNATIVES])


def require_operators(instance: Instance, facts: KnownGuards) -> None:
    """Raises Unsupported unless the right side's operators exist on all values on which those of the left side do. Only
    operators on promised positions do not exist on all values."""
    if not unknown_promises(instance.right) <= unknown_promises(instance.left):
        raise Unsupported("the right side uses an operator, the left does not, whose preconditions are not known here")
    if not promised_indices(instance.right, facts.entails) <= promised_indices(instance.left, facts.entails):
        raise Unsupported("the right side promises more of indices than the left")


_LINEAR = operators_run_as("transposed_matmul")  # contractions that ask for no precision


def _precisions(results: tuple[Expr, ...]) -> set[str]:
    """Returns the precisions that contractions ask for; index equations do not mention them."""
    attributes = [(e.op, dict(e.attrs)) for e in postorder(results)]
    return {str(a.get("precision")) for op, a in attributes if op in _LINEAR or "precision" in a}
