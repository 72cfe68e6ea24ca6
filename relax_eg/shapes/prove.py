"""`prove`: decides whether a statement about sizes holds for all sizes that a scope allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from relax_eg.argument_checks import BOUNDS, NONE, accepts, did_you_mean, integer, of_types
from relax_eg.errors import BoundsError
from relax_eg.shapes.prover import TIMEOUT_MS
from relax_eg.shapes.relation import Bounds, Relation, read_statement, split_bounds
from relax_eg.shapes.scope import Scope
from relax_eg.shapes.verdict import Proved, Refuted, Unknown, Verdict


@accepts(
    scope=of_types("a Scope", Scope) | NONE,
    bounds=BOUNDS,
    timeout_ms=integer("an integer >= 0 (0 leaves z3 out)", 0),
)
def prove(
    statement: str | Relation,
    scope: Scope | None = None,
    *,
    bounds: Bounds | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> Verdict:
    """Returns `Proved(by)`, `Refuted(counterexample)` or `Unknown(reason)` for a comparison of sizes: `"n*4 == 4*n"`.

    A variable is at least 1 unless `scope` or `bounds` say otherwise. `bounds` applies to this query only: ranges,
    statements, or a list of both, as `[{"n": (0, 64)}, "n % 8 == 0"]`. Divisibility is written `"n % 8 == 0"`. A chain,
    or statements joined by `and`, are proved if each part is. Division by zero has no value: a statement is Proved only
    if it has a value everywhere; if it holds wherever it has a value but lacks one somewhere, it is Unknown.
    `timeout_ms` bounds each z3 query; 0 disables z3.
    """
    relations = (statement,) if isinstance(statement, Relation) else read_statement(statement)
    where = scope if scope is not None else Scope()
    ranges, assumptions = split_bounds(bounds)
    if ranges or assumptions:
        said = [*relations, *(relation for text in assumptions for relation in read_statement(text))]
        _check_names(ranges, where.names.union(*(relation.variables for relation in said)))
        where = where.child()
        for name, bound in ranges.items():
            where.bound(name, bound, "prove(bounds=...)")
        where.assume(*assumptions)
    answer: Verdict | None = None
    for relation in relations:
        found = where.prover.prove(relation, timeout_ms)
        if isinstance(found, Refuted):
            names = sorted(frozenset[str]().union(*(other.variables for other in relations)))
            # No assumption constrains variables that only the other parts mention, so any size works.
            others = {name: where.prover.any_value(name) for name in names if name not in found.counterexample}
            return replace(found, counterexample={**found.counterexample, **others}) if others else found
        if answer is None or isinstance(found, Unknown):
            answer = found
    return answer if answer is not None else Proved("canonical")


def _check_names(bounds: Iterable[str], known: Iterable[str]) -> None:
    """Raises BoundsError for a bound of a variable that nothing else mentions, because it is probably a typo."""
    names = sorted(known)
    for name in bounds:
        if name not in names:
            raise BoundsError(
                f"bounds name `{name}`, which neither the statement nor an assumption does; "
                f"they have {', '.join(names) or 'no variables'}{did_you_mean(name, names)}"
            )
