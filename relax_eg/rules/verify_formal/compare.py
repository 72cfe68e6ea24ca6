"""Comparison of two sums: terms are grouped by their factors; where guards differ, z3 decides whether the difference of
a group is zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from relax_eg.dtypes import is_float
from relax_eg.rules.verify_formal.accuracy import is_tame, keeps_precision
from relax_eg.rules.verify_formal.compose import Composer, Unsupported
from relax_eg.rules.verify_formal.folds import decided
from relax_eg.rules.verify_formal.guards import GuardLiteral, KnownGuards, Summand
from relax_eg.rules.verify_formal.places import Written
from relax_eg.rules.verify_formal.sums import Factor, Sum, Term
from relax_eg.rules.verify_formal.terms import Normalizer
from relax_eg.rules.verify_formal.values import TermValues, modulus_of
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Read, Reduce, Scalar, Select, walk

# chosen: largest allowed ratio of the absolute sum of the right side's summands to that of the left side's.
_MASS = 2
_MOST_CHOICES = 3  # limit: truth values of the data of which both cases are tried


@dataclass(frozen=True)
class Sides:
    """The values of both sides under facts, from one normalizer."""

    left: TermValues
    right: TermValues

    @staticmethod
    def of(composer: Composer, facts: KnownGuards, written: Written = "none") -> Sides:
        normal = Normalizer(composer, facts, written)
        return Sides(TermValues(composer, facts, normal), TermValues(composer, facts, normal))


def equal_values(a: Scalar, b: Scalar, sides: Sides, facts: KnownGuards, accurately: bool) -> str:
    """Returns why the terms are not shown equal, equally defined, and the right one as accurate where `facts` hold; ""
    if they are."""
    left, right, normal = sides.left, sides.right, sides.left.normal
    x, y = left.sum_of(a), right.sum_of(b)
    if left.hazards != right.hazards:
        return "not shown equally defined"
    floats = is_float(a.dtype)
    why = same_sums(x, y, facts, normal, modulus_of(a.dtype), floats and accurately)
    if why or not accurately:
        return why
    if not keeps_precision(a, b):
        return "the right side computes in a coarser float"
    if right.fragile or (floats and not is_tame(normal.merge_equal_terms(y)) and a != b):
        return "equal over the reals; nothing is known of the right side's accuracy"
    return ""


def equal_by_choices(a: Scalar, b: Scalar, sides: Sides, facts: KnownGuards, accurately: bool, depth: int = 0) -> str:
    """Returns why the terms are not shown equal where truth values of the data that decide whole sums hold, and where
    they do not; "" if they are."""
    try:
        why = equal_values(a, b, sides, facts, accurately)
    except Unsupported as e:
        why = str(e)
        if (cond := _choice(a, b)) is None:
            raise
    else:
        cond = _choice(a, b) if why else None
    if cond is None or depth >= _MOST_CHOICES:
        return why
    for holds in (True, False):
        own = Sides.of(sides.left.composer, sides.left.facts, sides.left.normal.written)
        x, y = (decided(s, cond, holds) for s in (a, b))
        if why := equal_by_choices(x, y, own, facts, accurately, depth + 1):
            return why
    return ""


def _choice(a: Scalar, b: Scalar) -> Scalar | None:
    """Returns a truth value of the data, the same for all that is added up, by which something in a sum is chosen."""
    for t in (*walk(a), *walk(b)):
        for s in walk(t.body) if isinstance(t, Reduce) else ():
            if isinstance(s, Select) and isinstance(s.cond, Read) and s.cond.free <= a.free | b.free:
                return s.cond
    return None


class _Group:
    """Terms that differ only in guards and integer factors: the coefficients and masses of both sides."""

    def __init__(self) -> None:
        self.left: list[Summand] = []
        self.right: list[Summand] = []
        self.left_mass: list[Summand] = []
        self.right_mass: list[Summand] = []


def same_sums(left: Sum, right: Sum, facts: KnownGuards, normal: Normalizer, modulus: int, accurately: bool) -> str:
    """Returns why the settled sums `left` and `right` are not shown equal; "" if they are. With `accurately`, the right
    side must also not add up larger summands than the left side (`_is_lighter`)."""
    groups: dict[tuple[tuple[str, ...], frozenset[str]], _Group] = {}
    for side, s in (("left", left), ("right", right)):
        for t, c, m in s.items():
            named = normal.with_canonical_names(t)
            plain, dim = _without_dims(named)
            group = groups.setdefault((tuple(f.key for f in plain), named.bound), _Group())
            getattr(group, side).append((c, dim, named.guards))
            getattr(group, f"{side}_mass").append((m, dim, named.guards))
    for key, group in groups.items():
        difference = _collected(group.left, group.right, modulus)
        if difference and not facts.sum_is("==", difference):
            return f"not shown equal: the terms with factors {' * '.join(key[0]) or '1'}"
        if accurately and not _is_lighter(group, facts):
            return f"the right side sums and cancels terms with factors {' * '.join(key[0]) or '1'}"
    return ""


def _without_dims(t: Term) -> tuple[list[Factor], Dim]:
    dim = Dim.of(1)
    plain: list[Factor] = []
    for f in t.factors:
        if f.kind == "dim":
            dim = dim * f.dims[0]
        else:
            plain.append(f)
    return plain, dim


def _collected(left: Iterable[Summand], right: Iterable[Summand], modulus: int = 0) -> list[Summand]:
    total: dict[tuple[Dim, frozenset[GuardLiteral]], Fraction] = {}
    for sign, side in ((1, left), (-1, right)):
        for c, d, g in side:
            total[d, g] = total.get((d, g), Fraction(0)) + sign * c
    if modulus:
        total = {k: c % modulus for k, c in total.items()}
        total = {k: c - modulus if 2 * c > modulus else c for k, c in total.items()}
    return [(c, d, g) for (d, g), c in total.items() if c]


def _is_lighter(group: _Group, facts: KnownGuards) -> bool:
    """Whether the right side's mass is at most `_MASS` times the left's at every point that the facts allow."""
    rest = _collected([(_MASS * c, d, g) for c, d, g in group.left_mass], group.right_mass)
    if all(c > 0 for c, _, _ in rest):
        return True
    return facts.sum_is(">=", rest)
