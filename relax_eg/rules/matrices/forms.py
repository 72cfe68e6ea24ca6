"""Forms of a program in which factors cancel, each shown to be equal to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, TUPLE_GET, VAR, Expr, postorder, var
from relax_eg.ir.heads import with_operands
from relax_eg.ir.origin import SourceLine
from relax_eg.ops.facts import FACTS
from relax_eg.ops.record import TABLE
from relax_eg.rules.check import keeps_accuracy
from relax_eg.rules.conditions import Claim
from relax_eg.rules.matrices.determinants import Determinants
from relax_eg.rules.matrices.lifting import Lift, is_factorisation
from relax_eg.rules.matrices.lowering import SolutionWriter
from relax_eg.rules.rule import Instance, Rule
from relax_eg.rules.schemas import FactsOf, ProgramQueries
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.guards import OutOfTime

# The rule of which an equality of two programs is an instance.
_EQUALITY = Rule(
    "equality", lambda: None, {}, {}, "reassociate", "algebra", (), frozenset(), "", SourceLine.of(keeps_accuracy)
)


def accurate(e: Expr, made: Iterable[Expr], facts: FactsOf) -> Iterator[Expr]:
    """Those of `made`, forms of `e`, that are about as accurate as `e` for given values of what both compute, by
    test."""
    for form in made:
        params = {x: x if x.op == VAR else var(f"leaf {i}", x.annotation) for i, x in enumerate(_given(e, form))}
        over: dict[Expr, Expr] = dict(params)
        for x in postorder((e, form), stop=over.__contains__):
            if x not in over:
                over[x] = with_operands(x, tuple(over[a] for a in x.args)) if x.args else x
        named = [(str(p.attr("name")), facts(x)) for x, p in params.items()]
        guards = tuple(Claim(f, name) for name, known in named for f in sorted(known & FACTS.keys()))
        if keeps_accuracy(Instance(_EQUALITY, tuple(params.values()), (over[e],), (over[form],), guards)):
            yield form


def _given(e: Expr, form: Expr) -> list[Expr]:
    """The largest values that both compute and that depend on data, and all other leaves."""
    both = set(postorder((e,))) & set(postorder((form,)))
    depends: dict[Expr, bool] = {}
    for x in postorder((e, form)):
        depends[x] = x.op != CONSTANT and (not _is_inside(x) or any(depends[a] for a in x.args))

    def is_given(x: Expr) -> bool:
        is_shared = x not in (e, form) and x in both and isinstance(x.annotation, Tensor)
        return depends[x] and (is_shared or not _is_inside(x))

    return [x for x in postorder((e, form), stop=is_given) if is_given(x)]


def _is_inside(e: Expr) -> bool:
    return e.op in TABLE or e.op in (CONSTANT, TUPLE_GET)


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
    return form if form is not e and lift.are_same(e, form) else None


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
            if lift.are_same(left, right):
                return True
        except (Unsupported, OutOfTime):
            continue
    return False


def determinants(e: Expr, queries: ProgramQueries) -> Expr | None:
    """A form of a determinant by those of the factors of its matrix."""
    lift = Lift(queries.facts, lambda _: False, queries.extent, queries.seconds)
    try:
        return Determinants(lift).of(e)
    except (Unsupported, OutOfTime, RelaxEgError):
        return None
