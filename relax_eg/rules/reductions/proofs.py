"""The lemmas of which a reduction's form is made, each proved over its own leaves, and remembered by its structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, own_dims, postorder
from relax_eg.ops import api as op
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.schemas import FactsOf
from relax_eg.rules.shared_parts import are_near, why_not_equal_over
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim

_PROVING = 0.5  # limit: seconds of processor time of a proof; most take a hundredth of it
_MOST_STEPS = 3  # limit: operators between a leaf and others of which it is seen to be made
_MOST_OPERATORS = 64  # limit: operators of a lemma; most have fewer than 12


@dataclass(frozen=True, slots=True)
class Lemma:
    """Two expressions that are equal for all values of some expressions in them that have the facts of these."""

    left: Expr
    right: Expr
    leaves: tuple[Expr, ...]


def why_not(lemmas: Sequence[Lemma], facts_of: FactsOf, numerics: Numerics) -> str:
    """Why some of the lemmas is not shown; empty if all are."""
    for lemma in lemmas:
        if lemma.left is not lemma.right and (why := _why_not(lemma, facts_of, numerics)):
            return why
    return ""


def _why_not(lemma: Lemma, facts_of: FactsOf, numerics: Numerics) -> str:
    why = _why_not_over(lemma, facts_of, numerics)
    inner = _with_definitions(lemma.leaves) if why else lemma.leaves
    return why if inner == lemma.leaves else _why_not_over(replace(lemma, leaves=inner), facts_of, numerics)


def _with_definitions(leaves: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Leaves over which those of `leaves` that are made of others by few operators are written out."""
    kept = dict[Expr, None]()
    for f in leaves:
        others = frozenset(leaves) - {f}
        kept.update(dict.fromkeys(_operands_up_to(f, others, _MOST_STEPS) or (f,)))
    return tuple(kept)


def _operands_up_to(e: Expr, leaves: frozenset[Expr], steps: int) -> tuple[Expr, ...]:
    """Of what `e` is made down to some of `leaves`, each by at most `steps` operators; empty if it is made of none.
    What a function returns is not written out: one of the operands of its call is the function."""
    is_made = steps > 0 and all(isinstance(a.annotation, Tensor) for a in e.args)
    below = [(a,) if a in leaves else _operands_up_to(a, leaves, steps - 1) for a in e.args] if is_made else []
    if not any(below):
        return ()
    return tuple(dict.fromkeys(x for a, found in zip(e.args, below, strict=True) for x in found or (a,)))


def _why_not_over(lemma: Lemma, facts_of: FactsOf, numerics: Numerics) -> str:
    if not are_near((lemma.left, lemma.right), lemma.leaves, _MOST_OPERATORS):
        return f"more than {_MOST_OPERATORS} operators are between it and its leaves"
    facts = {x: facts_of(x) for x in lemma.leaves}
    facts |= {_range(n): frozenset((NONEMPTY,)) for n in _sizes(lemma) if NONEMPTY in facts_of(_range(n))}
    return why_not_equal_over(lemma.leaves, lemma.left, lemma.right, _PROVING, numerics, facts)


def _range(size: str) -> Expr:
    """A value whose only axis has a size, so that it is not empty if the size is at least 1."""
    return op.iota((Dim.var(size),))


def _sizes(lemma: Lemma) -> list[str]:
    """The names of the sizes in a lemma."""
    nodes = postorder((lemma.left, lemma.right), stop=lemma.leaves.__contains__)
    return sorted({v for e in nodes for d in own_dims(e) for v in d.variables})
