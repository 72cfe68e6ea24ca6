"""Legalisation (Relax's LegalizeOps) as a rule: an operator is a call of the tensor program of its index equations.

The set is not part of `default`. XLA lowers operators itself, and lowers those that it knows by name better than their
equations. With `execution="kernels"` every operator is priced as its tensor program without this rule.
"""

from __future__ import annotations

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ir.tensor_calls import call_with_sizes
from relax_eg.ops.record import TABLE, is_proved_applicable, program_of, site_of
from relax_eg.rules.checking.schema_trials import uses_of
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import ProgramQueries, schema


def legalize(e: Expr, queries: ProgramQueries) -> Expr | None:
    """an operator is a call of the tensor program of its index equations

    Returns the call of the operator's tensor program. Returns None if the sizes decide whether the operator applies,
    or if it asks for a precision of its products, which equations do not express."""
    site = site_of(e)
    if not all(isinstance(a, Tensor) for a in site.operands) or not is_proved_applicable(
        site.op, site.operands, e.attrs
    ):
        return None
    if site.attrs.get("precision") not in (None, "default"):
        return None
    program = program_of(site)
    if program is None:
        return None
    call = call_with_sizes(program, e.args)
    return call if call.annotation == e.annotation else None


_OPERATORS = frozenset(name for name, operator in TABLE.items() if operator.equations is not None)

legalization = RuleSet(
    "legalization",
    schemas=(schema(legalize, "exact", ("legalization",), _OPERATORS, (uses_of(_OPERATORS),)),),
)
