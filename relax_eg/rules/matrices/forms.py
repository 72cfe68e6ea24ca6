"""Forms of a program in which factors cancel, each shown to be equal to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import Expr, postorder
from relax_eg.rules.matrices import equality
from relax_eg.rules.matrices.determinants import Determinants
from relax_eg.rules.matrices.lifting import Lift, is_factorisation
from relax_eg.rules.matrices.lowering import SolutionWriter
from relax_eg.rules.schemas import FactsOf, ProgramQueries
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.guards import OutOfTime


def forms(e: Expr, queries: ProgramQueries, is_root: bool) -> Iterator[Expr]:
    """Forms of `e`: one in which values with several readers are given, and one in which they are not. If `e` is not
    the root of a program of matrices, one in which its operands are given."""

    def is_shared(x: Expr) -> bool:
        return len(queries.readers(x)) > 1

    for is_cut in (is_shared, _is_nothing) if is_root else (_is_no_factorisation,):
        try:
            form = _form(e, queries, is_cut)
        except (Unsupported, OutOfTime, RelaxEgError):
            continue
        if form is not None:
            yield form


def _form(e: Expr, queries: ProgramQueries, is_cut: Callable[[Expr], bool]) -> Expr | None:
    lift = Lift(queries.facts, is_cut, queries.extent, queries.seconds)
    reduced = lift.reduced(e)
    if not lift.laws:
        return None
    form = SolutionWriter(lift).program(lift.emitted(reduced))
    return form if form is not e and equality.are_same(lift, e, form) else None


def _is_nothing(_: Expr) -> bool:
    return False


def _is_no_factorisation(e: Expr) -> bool:
    return not is_factorisation(e)


def are_same(left: Expr, right: Expr, facts: FactsOf) -> bool:
    """Whether two programs are shown to be equal."""
    there = set(postorder((right,)))
    for is_cut in (_is_nothing, lambda x: x in there and x is not right):
        lift = Lift(facts, is_cut, lambda _: 2, lambda flops, _, __: flops)
        try:
            if equality.are_same(lift, left, right):
                return True
        except (Unsupported, OutOfTime):
            continue
    return False


def determinants(e: Expr, queries: ProgramQueries) -> Expr | None:
    """A form of a determinant by those of the factors of its matrix. Orders of products are chosen by flops, which a
    check of a derivation knows, too."""
    lift = Lift(queries.facts, lambda _: False, queries.extent, lambda flops, moved, contracts: flops)
    try:
        return Determinants(lift).of(e)
    except (Unsupported, OutOfTime, RelaxEgError):
        return None
