"""Range checks of the reads of an equation: proved, refuted at some sizes, or left to run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import BoundsError
from relax_eg.shapes import Dim, Proved, Refuted, Relation, Scope, prove
from relax_eg.tir.analyze import scoped_reads
from relax_eg.tir.expr import Apply, Const, Index, Read, Reduce, Scalar, Select, is_loop, loop_of
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.program import Buffer, TensorProgram
from relax_eg.tir.text import index_text
from relax_eg.traversal import reached

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_RELATION = {f.name: f.symbol for f in FUNCTIONS.values() if f.symbol in _OPPOSITE}
TIMEOUT_MS = 1000  # limit: milliseconds of z3 per bound


@dataclass(frozen=True)
class Finding:
    """An index of a read that is not proved to be in range.

    - `read`, `axis`: the read, and the axis that the index selects on.
    - `text`: the condition that must hold.
    - `counterexample`: sizes and loop variables at which the index is out of range; empty if undecided.
    """

    read: Read
    axis: int
    text: str
    counterexample: Mapping[str, int]


def obligations(program: TensorProgram) -> list[str]:
    """Returns the conditions under which every read is in range, except those proved.

    They concern data-dependent indices and sizes that the prover cannot decide. The reference evaluator checks them.
    """
    found: dict[str, None] = {}
    for made in program.stages:
        for finding in out_of_range(made.value, made.loops, program.buffers):
            found[f"{made.output.name}: {finding.text}"] = None
    return list(found)


def out_of_range(value: Scalar, loops: Mapping[str, Dim], buffers: Mapping[str, Buffer]) -> Iterator[Finding]:
    """Yields the indices of reads in `value` that are not proved in range. `loops`: extents of the loops around
    `value`."""

    def inside(at: tuple[Scalar, frozenset[tuple[str, Dim]], tuple[Relation, ...], bool]) -> list[Any]:
        term, scope, known, certain = at
        if isinstance(term, Reduce):
            scope |= {(str(loop_of(var)), extent) for var, extent in term.over}
        if not isinstance(term, Select):
            return [(child, scope, known, certain) for child in reversed(term.children)]
        yes, no = _relations(term.cond)
        return [
            (term.other, scope, (*known, *(no or ())), certain and no is not None),
            (term.then, scope, (*known, *(yes or ())), certain and yes is not None),
            (term.cond, scope, known, certain),
        ]

    for term, scope, known, certain in reached([(value, frozenset(loops.items()), (), True)], inside):
        if isinstance(term, Read):
            yield from _check_read(term, buffers[term.buffer], dict(scope), known, certain)


def margins(program: TensorProgram) -> list[Dim]:
    """Returns sizes that must not be negative for the reads of `program` to be in range.

    For each read that no select may skip: the distance of its least index from 0, and of its greatest index from the
    last element. Covers only indices that are linear in the loops with constant steps.
    """
    found: dict[Dim, None] = {}
    for made in program.stages:
        for read, scope, guarded in scoped_reads(made.value, made.loops):
            for index, size in zip(read.indices, program.buffers[read.buffer].shape, strict=True):
                if not guarded and isinstance(index, Dim) and scope.get(loop_of(index) or "") != size:
                    found |= dict.fromkeys(d for d in _margins(index, size, scope) if not d.is_const)
    return list(found)


def _margins(index: Dim, size: Dim, loops: Mapping[str, Dim]) -> list[Dim]:
    low = high = index
    for name in filter(is_loop, index.variables):
        slope = index.substitute({name: 1}) - index.substitute({name: 0})
        if index != index.substitute({name: 0}) + slope * Dim.var(name) or not slope.is_const:
            return []
        ends = (0, loops[name] - 1) if slope.value > 0 else (loops[name] - 1, 0)
        low, high = low.substitute({name: ends[0]}), high.substitute({name: ends[1]})
    return [low, size - 1 - high]


def _check_read(
    read: Read, buffer: Buffer, loops: Mapping[str, Dim], known: tuple[Relation, ...], certain: bool
) -> Iterator[Finding]:
    for axis, (index, size) in enumerate(zip(read.indices, buffer.shape, strict=True)):
        if not isinstance(index, Dim):
            yield Finding(read, axis, f"0 <= {index} < {size} in {read}", {})
            continue
        if loops.get(loop_of(index) or "") == size:
            continue
        said = f"0 <= {index_text(index)} < {size} in {read}"
        scope = _scope(index, size, loops, known)
        if scope is None:  # no point satisfies the conditions, so nothing is read
            continue
        answers = [prove(r, scope, timeout_ms=TIMEOUT_MS) for r in _within(index, size)]
        wrong = next((a for a in answers if isinstance(a, Refuted)), None)
        if wrong is not None and certain:
            env = {str(index_text(Dim.var(name))): n for name, n in wrong.counterexample.items()}
            yield Finding(read, axis, said, dict(sorted(env.items())))
        elif not all(isinstance(a, Proved) for a in answers):
            yield Finding(read, axis, said, {})


def _within(index: Dim, size: Dim) -> tuple[Relation, Relation]:
    return Relation.of(index, ">=", 0), Relation.of(index, "<", size)


def _scope(index: Dim, size: Dim, loops: Mapping[str, Dim], known: tuple[Relation, ...]) -> Scope | None:
    """Returns the facts where the index is computed: loop variables are below their extents, and select conditions
    hold.

    None if no point satisfies them.
    """
    scope = Scope()
    names = set(index.variables | size.variables)
    for relation in known:
        names |= relation.variables
    try:
        for name in sorted(filter(is_loop, names)):
            extent = loops[name]
            scope.declare(name, 0, extent.value - 1 if extent.is_const else None, "a loop")
            if not extent.is_const:
                scope.assume(str(Relation.of(Dim.var(name), "<", extent)))
        for relation in known:
            scope.assume(str(relation))
    except BoundsError:
        return None
    return scope


def _relations(cond: Scalar) -> tuple[tuple[Relation, ...] | None, tuple[Relation, ...] | None]:
    """Returns the relations of indices that hold where `cond` is true, and where it is false; None for a side not
    expressible."""
    if isinstance(cond, Apply) and cond.fn == "bitwise_and":
        (a, not_a), (b, not_b) = map(_relations, cond.args)
        both = (*a, *b) if a is not None and b is not None else None
        either = not_b if a == () else not_a if b == () else None
        return both, either
    if isinstance(cond, Apply) and cond.fn == "bitwise_not":
        yes, no = _relations(cond.args[0])
        return no, yes
    if isinstance(cond, Apply) and cond.fn in _RELATION:
        sides = [_dim(arg) for arg in cond.args]
        a, b = sides
        if a is not None and b is not None:
            op = _RELATION[cond.fn]
            return (Relation.of(a, op, b),), (Relation.of(a, _OPPOSITE[op], b),)
    return None, None


def _dim(arg: Scalar) -> Dim | None:
    if isinstance(arg, Index):
        return arg.dim
    return Dim.of(arg.value) if isinstance(arg, Const) and type(arg.value) is int else None
