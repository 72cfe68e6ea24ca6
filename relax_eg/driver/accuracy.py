"""Which candidates of an extracted program lose accuracy, so that they are refused and the extraction is repeated.

A chosen program is compared with the one as written, value by value (`rules.checking.program_accuracy`). What the
search does not look into, as calls, loops and library routines that only JAX knows, is a variable of the comparison,
the same one for both programs. The lowest values that have lost accuracy tell which candidates did it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from relax_eg.driver.extracting import ExtractedBlock
from relax_eg.egraph import Dump
from relax_eg.extract.graph import Candidate
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_TIR, CONSTANT, VAR, Expr, postorder, var
from relax_eg.ir.heads import PASSIVE, with_operands
from relax_eg.ops.facts import FACTS
from relax_eg.ops.libraries import library_of
from relax_eg.ops.record import TABLE
from relax_eg.rules.checking.program_accuracy import inaccurate_results
from relax_eg.rules.conditions import Claim
from relax_eg.rules.rule import Instance, equality_rule
from relax_eg.shapes.relation import read_statement
from relax_eg.traversal import reached

FactsAmong = Callable[[Collection[str], Expr], Collection[str]]  # the facts among these that an expression has
Refused = frozenset[tuple[int, int]]  # candidates: a class, and the place in it
_MOST_REFUSALS = 8  # limit: extractions of a block that are repeated because what they find loses accuracy
_LARGE = 1 << 8  # limit: elements of a constant whose numbers matter; a larger one is a variable, as a weight is


def accurate_choice(
    read: Dump, chosen: ExtractedBlock, extract: Callable[[Dump], ExtractedBlock], facts: FactsAmong,
    statements: Sequence[str],
) -> tuple[Dump, ExtractedBlock]:  # fmt: skip
    """`chosen`, or what is extracted without the candidates through which it, and what is extracted then, lose
    accuracy, and the tables without these. After `_MOST_REFUSALS` extractions no candidate of a rule is left.

    - `extract`: extracts from tables.
    - `facts`, `statements`: as in `inaccurate_candidates`.
    """
    by_rule = Counter[str]()
    for n in range(_MOST_REFUSALS):
        refused = inaccurate_candidates(read, chosen.taken, facts, statements)
        if not refused:
            break
        rows = read.graph.candidates
        by_rule.update(rows[c][k].made_by for c, k in refused)
        if n == _MOST_REFUSALS - 1:
            refused = frozenset((c, k) for c, row in enumerate(rows) for k, x in enumerate(row) if x.made_by)
        read = read.without(refused)
        chosen = replace(extract(read), refused=by_rule)
    return read, chosen


def inaccurate_candidates(
    read: Dump, taken: Mapping[int, int], facts: FactsAmong, statements: Sequence[str]
) -> Refused:
    """The candidates of rules through which the chosen values lose accuracy; empty if none does. O(nodes).

    - `taken`: the candidate chosen for each class.
    - `facts`: what is known of values as written.
    - `statements`: what is known of sizes.
    """
    graph = read.graph
    if not any(graph.candidates[c][k].made_by for c, k in taken.items()):
        return frozenset()
    choice = [taken.get(c, -1) for c in range(len(graph.candidates))]
    classes = read.decode_with_rules(choice)[2]
    pairs, values = _comparable(read, classes)
    left, right = [w for _, w, _ in pairs], [e for _, _, e in pairs]
    nodes = postorder((*left, *right))
    known = {v for e in nodes for d in getattr(e.annotation, "shape", None) or () for v in d.variables}
    params = tuple(e for e in nodes if e.op == VAR)
    claims = [Claim(f, str(p.attr("name"))) for p in params for f in sorted(facts(FACTS, values.get(p, p)))]
    sizes = [r for s in statements for r in read_statement(s) if r.variables <= known]
    law = equality_rule("reassociate")
    lost = inaccurate_results(Instance(law, params, tuple(left), tuple(right), (*claims, *sizes))) if pairs else ()
    return _nearest_made(read, choice, {pairs[i][0] for i in lost})


def _comparable(read: Dump, classes: Mapping[Expr, int]) -> tuple[list[tuple[int, Expr, Expr]], Mapping[Expr, Expr]]:
    """The classes whose values as written and as chosen differ, with both, operands first; then the values that
    variables stand for. A value that is not looked into is a variable in both; what is chosen over one that the program
    as written does not have is left out."""
    of_written = {w: c for c, values in read.written.items() for w in values}
    pairs = [(c, read.written[c][0], e) for e, c in classes.items() if c in read.written]
    variables: dict[int, Expr] = {}
    inside: dict[Expr, Expr | None] = {}  # a value of either program, as it is compared; None: it is not
    for w in postorder(w for _, w, _ in pairs):
        inside[w] = made = _looked_into(w, inside)
        if made is None and isinstance(w.annotation, Tensor):
            c = of_written[w]
            inside[w] = variables.setdefault(c, var(f"value {c}", w.annotation))
    chosen: dict[Expr, Expr | None] = {}
    for e in postorder(e for _, _, e in pairs):
        c = classes.get(e, -1)
        chosen[e] = variables[c] if c in variables else _looked_into(e, chosen)
    found = [(c, inside[w], chosen[e]) for c, w, e in pairs]
    values = {v: read.written[c][0] for c, v in variables.items()}
    differing = [(c, w, e) for c, w, e in found if w is not None and e is not None and w is not e]
    return [(c, w, e) for c, w, e in differing if isinstance(w.annotation, Tensor)], values


def _looked_into(e: Expr, known: Mapping[Expr, Expr | None]) -> Expr | None:
    """`e` over the operands that are `known`; None if it, or an operand, is not looked into."""
    operands = [known[a] for a in e.args]
    if e.op == VAR or (e.op == CONSTANT and _is_large(e)):
        return e if e.op == VAR and isinstance(e.annotation, Tensor) else None
    is_known = e.op in TABLE or e.op == CALL_TIR or e.op in PASSIVE or library_of(e) is not None
    return with_operands(e, [a for a in operands if a is not None]) if is_known and None not in operands else None


def _is_large(e: Expr) -> bool:
    return isinstance(e.annotation, Tensor) and math.prod(d.value for d in e.shape) > _LARGE


def _nearest_made(read: Dump, choice: Sequence[int], lost: set[int]) -> Refused:
    """The candidates of rules nearest to the lowest of the values that have `lost` accuracy."""

    def taken(c: int) -> Candidate:
        return read.graph.candidates[c][choice[c]]

    found = set[tuple[int, int]]()
    for c in lost:
        below = reached(taken(c).children, lambda k: taken(k).children)
        if lost.isdisjoint(below):
            near = reached((c,), lambda k: () if taken(k).made_by else taken(k).children)
            found |= {(k, choice[k]) for k in near if taken(k).made_by}
    return frozenset(found)
