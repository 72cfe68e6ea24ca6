"""Whether two terms are equal: tested like the sides of a rule, and proved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ops.api import broadcast_to
from relax_eg.ops.facts import FACTS
from relax_eg.rules.checking.check import have_same_values
from relax_eg.rules.conditions import Claim
from relax_eg.rules.pointwise.tables import Facts
from relax_eg.rules.pointwise.terms import Array, is_unrounded, over, sample_array, value_of
from relax_eg.rules.rule import Instance, equality_rule
from relax_eg.rules.verify_formal.guards import Deadline
from relax_eg.rules.verify_formal.prove import why_not_proved
from relax_eg.shapes import Dim

_LENGTH = Dim.of(3)  # chosen: elements of the arrays on which terms are tested


def why_not_same(
    left: Expr,
    right: Expr,
    variables: Sequence[Expr],
    facts: Facts,
    seconds: float,
    same_bits: bool = False,
) -> str:
    """Returns why the scalar expressions are not shown equal for all values of the variables that have these facts, as
    accurate, and with the same special values; empty if they are.

    - `seconds`: of processor time of the proof.
    - `same_bits`: whether they must have the same bits. They have where no operator rounds, so that both are exact for
      finite values, and infinities, NaN and zeros have the same bits where they are tested.
    """
    if same_bits and not (is_unrounded(left) and is_unrounded(right)):
        return "an operator rounds"
    if not _keep_infinities(left, right, variables, facts):
        return "one side is infinite or no number where the other is not"
    instance = _instance(left, right, variables, facts)
    over_reals = replace(instance, rule=equality_rule("approximate"))  # accuracy is tested
    why = why_not_proved(over_reals, Deadline(time.thread_time() + seconds))
    if why:
        return why
    try:
        tested = replace(instance, rule=equality_rule("exact")) if same_bits else instance
        return "" if have_same_values(tested) else "it cannot be tested"
    except RelaxEgError as e:
        return str(e)


def _instance(left: Expr, right: Expr, variables: Sequence[Expr], facts: Facts) -> Instance:
    """The equality of two terms as an instance of a rule, over vectors in place of the variables."""
    params = tuple(var(str(x.attr("name")), Tensor((_LENGTH,), x.dtype)) for x in variables)
    sides = [_of_vectors(e, dict(zip(variables, params, strict=True))) for e in (left, right)]
    named = zip(params, facts, strict=True)
    guards = tuple(Claim(f, str(x.attr("name"))) for x, known in named for f in sorted(known))
    return Instance(equality_rule("reassociate"), params, (sides[0],), (sides[1],), guards)


def _of_vectors(e: Expr, by: Mapping[Expr, Expr]) -> Expr:
    made = over(e, by)
    return made if made.ndim else broadcast_to(made, (_LENGTH,))


# given: infinities and numbers around those at which functions change
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.0)


def _keep_infinities(left: Expr, right: Expr, variables: Sequence[Expr], facts: Facts) -> bool:
    """Whether the right side is no number where the left side is none because a variable is none, and infinite where
    the left side is. The proof is one over the reals; what differences and products of infinities give may change."""
    of_each: list[Array] = []
    for x, known in zip(variables, facts, strict=True):
        tried = sample_array(_SPECIAL, x.dtype) if is_float(x.dtype) else sample_array((0, 1), x.dtype)
        of_each.append(np.array([v for v in tried if all(FACTS[f].find_failure(v[None]) is None for f in known)]))
    points = np.meshgrid(*of_each, indexing="ij")
    values = dict(zip(variables, points, strict=True))
    a, b = (np.broadcast_to(value_of(e, values), points[0].shape) for e in (left, right))
    if a.dtype.kind != "f":
        return bool(np.all(a == b))
    nan = np.any([np.isnan(p) for p in points if p.dtype.kind == "f"] or [np.zeros(a.shape, bool)], axis=0)
    kept = np.where(np.isnan(a), ~nan | np.isnan(b), ~np.isnan(b) & ((a == b) | np.isfinite(a) & np.isfinite(b)))
    return bool(np.all(kept))
