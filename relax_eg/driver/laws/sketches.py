"""Sketches: programs with holes, which terms fill so that a sketch computes what a function does, in less time.

A hole is a further argument of the sketch. Terms over the function's arguments are enumerated (`discovery.table`), the
smallest first, without operators that alone take as long as the function. What a filled sketch computes is compared at
sample points; the cheapest that agrees is proved equal for all sizes, and offered as a law.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax_eg.argument_checks import Kind, accepts, of_types
from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.proving import Progress
from relax_eg.discovery.table import EqualPair, TermTable
from relax_eg.discovery.terms import Term, size_of
from relax_eg.discovery.values import SamplePoints
from relax_eg.driver.laws.grammars import grammar_of
from relax_eg.driver.laws.mining import CHEAPER, OPTIONS, Mined, Miner, Offer, program_at, untold
from relax_eg.errors import DiscoveryError, RelaxEgError
from relax_eg.frontends import trace
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import substitute_exprs
from relax_eg.ir.expr import Expr, var
from relax_eg.ir.module import Function, Module
from relax_eg.rules.signature import Numerics

_MOST_FILLINGS = 20_000  # limit: fillings that are compared with the function
_NAMES = "abcdefgh"  # given: names of arguments and holes in laws


def _are_specs(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(isinstance(s, str) for s in x)  # type: ignore[reportUnknownVariableType]


@accepts(
    DiscoveryError,
    sketch=Kind(lambda x: callable(x) or isinstance(x, Module), "a function, or a Module,"),
    holes=Kind(_are_specs, "a list of specs"),
    operators=of_types("names of operators, joined by '|',", str),
    **OPTIONS,
)
def fill(
    function: Callable[..., Any] | Module,
    *specs: Any,
    sketch: Callable[..., Any] | Module,
    holes: Sequence[str],
    operators: str = "",
    at: Mapping[str, int] | None = None,
    target: str = "cpu",
    size: int = 3,
    numerics: Numerics = "reassociate",
    jobs: int = 1,
    tell: Progress | None = None,
) -> Mined:
    """Returns the law by which a function is a filled sketch that takes less time, if one is found and proved.

    - `function`, `specs`, `at`, `target`, `numerics`, `jobs`, `tell`: as in `mine`.
    - `sketch`, `holes`: a function of the same arguments and one for each hole, and the specs of the holes.
    - `operators`: names of operators for holes, joined by `|`; if empty, those of both programs and of their kind.
    - `size`: the largest number of operators in a hole.

    A search that is interrupted by Ctrl-C ends without a law. DiscoveryError if a size is missing in `at`, if function
    and sketch do not fit together, or if they have operators that no grammar has."""
    module, sizes = program_at(function, specs, at)
    outline = sketch if isinstance(sketch, Module) else trace(sketch, *specs, *holes)
    return _filled_by(Miner(target, size, numerics, jobs), module, outline, sizes, operators, tell or untold)


def _filled_by(
    miner: Miner, module: Module, sketch: Module, at: Mapping[str, int], operators: str, tell: Progress
) -> Mined:
    left, params, outline, holes = _named(module, sketch)
    grammar, (program, pattern) = grammar_of([left, outline], params, holes, operators)
    seconds = miner.price(left, params, at)
    asked = {f for o in operators.split("|") if o for f in Grammar(o, grammar.declared_text).forms}
    own = frozenset(n for n, f in enumerate(grammar.forms) if not operators or f in asked)
    affordable = miner.affordable(grammar, seconds, at)
    table = TermTable(grammar, SamplePoints(grammar, False, 0), lambda n, types: n in own and affordable(n, types))
    offers: list[Offer] = []
    unproved: list[str] = []
    tried, stopped = 0, ""
    try:
        for n in range(miner.size + 1):
            if n and table.next_count() > miner.terms:
                stopped = f"there would be {table.next_count():,} terms of {n} operators for a hole"
                break
            if n:
                table.grow()
            found: list[tuple[float, Term]] = []
            for filled in _fillings(table, pattern, holes, n):
                if tried >= _MOST_FILLINGS:
                    stopped = f"{tried:,} fillings were compared"
                    break
                tried += 1
                tell(f"{n} operators in a hole", tried, _MOST_FILLINGS)
                if _agree(table, program, filled):
                    found.append((miner.price(grammar.expression(filled), grammar.declared, at), filled))
            for price, filled in sorted(found, key=lambda x: x[0]):
                if price < CHEAPER * seconds and not offers:
                    miner.offer(table, EqualPair(program, filled), at, "", offers, unproved)
            if offers or stopped:
                break
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Mined(tuple(offers), tried, tuple(unproved), stopped, "fillings")


def _named(module: Module, sketch: Module) -> tuple[Expr, list[Expr], Expr, list[Expr]]:
    """The results and the variables of both programs, with the names of laws. Raises DiscoveryError if they do not fit
    together."""
    of, by = module.main, sketch.main
    if not isinstance(of.result.annotation, Tensor) or by.result.annotation != of.result.annotation:
        raise DiscoveryError(
            f"sketch: it gives {by.result.annotation}, the function {of.result.annotation}; one tensor of equal "
            "annotation is accepted"
        )
    if len(by.params) > len(_NAMES) or any(not isinstance(p.annotation, Tensor) for p in by.params):
        raise DiscoveryError(f"sketch: it has {len(by.params)} arguments; up to {len(_NAMES)} tensors are accepted")
    named = [var(_NAMES[i], p.annotation) for i, p in enumerate(by.params)]
    count = len(of.params)
    if len(by.params) <= count or [p.annotation for p in by.params[:count]] != [p.annotation for p in of.params]:
        raise DiscoveryError(
            f"sketch: it takes {len(by.params)} arguments; the {count} of the function, then one for each hole, are "
            "accepted"
        )
    return _value(of, named), named[:count], _value(by, named), named[count:]


def _value(f: Function, arguments: Sequence[Expr]) -> Expr:
    """The result of a function of these arguments as one expression."""
    known = dict(zip(f.params, arguments, strict=False))
    for binding in f.bindings:
        (known[binding.var],) = substitute_exprs([binding.value], known)
    return substitute_exprs([f.result], known)[0]


def _fillings(table: TermTable, pattern: Term, holes: Sequence[Expr], n: int) -> list[Term]:
    """The sketch with terms in its holes of which the largest has `n` operators."""
    lists = [table.terms_of((h.shape, h.dtype)) for h in holes]
    chosen = itertools.islice((c for c in itertools.product(*lists) if max(map(size_of, c)) == n), _MOST_FILLINGS + 1)
    return [_filled(pattern, c) for c in chosen]


def _filled(t: Term, chosen: Sequence[Term]) -> Any:
    if isinstance(t, int):
        return chosen[-1 - t] if t < 0 else t
    return (t[0], *(_filled(a, chosen) for a in t[1:]))


def _agree(table: TermTable, program: Term, filled: Term) -> bool:
    try:
        return table.agree(EqualPair(program, filled))
    except RelaxEgError:  # it does not exist at some sizes
        return False
