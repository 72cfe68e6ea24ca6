"""Checks whether the `*b` blocks of a rule pass through its operators unchanged, so that one opaque index stands for a
block of any rank.

The check is made at rank 2. Where a block occurs in a shape it must be one run of axes in order. Every index equation
must read the run of its operands at the run of its result, in order, and use those indices and the block's sizes for
nothing else. The equations then hold for a block of any rank as they hold for two axes. The instances of ranks 1, 2 and
3 must use the same operators; from this the check infers that operators and the rule's function treat all ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, VAR, Expr, postorder
from relax_eg.ops.record import program_of, site_of
from relax_eg.rules.rule import Instance, Rule
from relax_eg.shapes import Dim
from relax_eg.tir import Stage
from relax_eg.tir.expr import Read, walk
from relax_eg.tir.program import dims_of

Run = tuple[int, int] | None  # the positions of a block's axes in a shape


class _NotPassedThrough(Exception):
    """Raised if a block is not passed through unchanged."""


def any_rank(rule: Rule) -> bool:
    """Whether a proof for blocks of ranks 0 to 2 holds for any rank."""
    if not rule.block_names or rule.ranges_over_attributes:
        return False
    return all(_any_rank(rule, operators) for operators in rule.operator_choices)


def _any_rank(rule: Rule, operators: Mapping[str, str]) -> bool:
    """`any_rank` for these values of the variables for operators."""
    try:
        made = [rule.instance(tuple(rank for _ in rule.block_names), attributes=operators) for rank in (1, 2, 3)]
        if operators and not any(made):
            return True  # there is no such instance
        if any(i is None for i in made):
            return False
        heads = {tuple(e.op for e in postorder((*i.left, *i.right))) for i in made if i is not None}
        two = made[1]
        return len(heads) == 1 and two is not None and all(_passes(two, star) for star in rule.block_names)
    except (_NotPassedThrough, RelaxEgError):
        return False


def _passes(instance: Instance, star: str) -> bool:
    block = tuple(Dim.var(f"{star}__{i}") for i in range(2))
    for e in postorder((*instance.left, *instance.right)):
        if isinstance(e.annotation, Tensor):
            _run(e.shape, block)
        elif e.op not in (VAR, CONSTANT):
            return False
        if e.op not in (VAR, CONSTANT):
            _check_node(e, block)
    return True


def _run(shape: tuple[Dim, ...], block: tuple[Dim, ...]) -> Run:
    """Returns the run of the block in a shape. Raises `_NotPassedThrough` if the block occurs in any other way."""
    names = frozenset[str]().union(*(d.variables for d in block))
    at = [i for i, d in enumerate(shape) if d.variables & names]
    if not at:
        return None
    if tuple(shape[at[0] : at[0] + len(block)]) != block or len(at) != len(block):
        raise _NotPassedThrough
    return at[0], at[0] + len(block)


def _check_node(e: Expr, block: tuple[Dim, ...]) -> None:
    program = program_of(site_of(e))
    if program is None:
        raise _NotPassedThrough
    runs = {name: _run(b.shape, block) for name, b in program.buffers.items()}
    for s in program.stages:
        _check_stage(s, runs, block)


def _check_stage(s: Stage, runs: dict[str, Run], block: tuple[Dim, ...]) -> None:
    here = runs[s.output.name]
    loops = s.indices[here[0] : here[1]] if here is not None else ()
    names = frozenset[str]().union(*(d.variables for d in (*loops, *block)))
    for t in walk(s.value):
        if isinstance(t, Read) and (there := runs[t.buffer]) is not None:
            if tuple(t.indices[there[0] : there[1]]) != loops:
                raise _NotPassedThrough
            rest = (*t.indices[: there[0]], *t.indices[there[1] :])
            if any(isinstance(i, Dim) and i.variables & names for i in rest):
                raise _NotPassedThrough
        elif any(d.variables & names for d in dims_of(t)):
            raise _NotPassedThrough
