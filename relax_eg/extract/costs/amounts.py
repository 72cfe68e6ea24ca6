"""Flops, bytes and launches of operators and tensor programs, as expressions in the sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

from relax_eg.ir.annotations import Annotation
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import Site, bytes_of
from relax_eg.ops.fused import ProgramUse
from relax_eg.shapes import Dim
from relax_eg.shapes.division import dim_max
from relax_eg.tir import Counts, PatternKind, TensorProgram, Work, classify, count, work
from relax_eg.tir.analyze import workspace_bytes
from relax_eg.tir.expr import Read, walk

NONE = Dim.of(0)


@dataclass(frozen=True, slots=True)
class Amounts:
    """The work of a node, as expressions in the sizes.

    - `flops`: flops.
    - `bytes`: bytes moved.
    - `launches`: kernel launches.
    - `workspace`: bytes of workspace inside tensor programs.
    """

    flops: Dim = NONE
    bytes: Dim = NONE
    launches: Dim = NONE
    workspace: Dim = NONE

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Amounts)))

    def map(self, change: Callable[[Dim], Dim]) -> Amounts:
        return Amounts(*(change(getattr(self, f.name)) for f in fields(Amounts)))


@lru_cache(MANY_KEPT)
def work_of(program: TensorProgram) -> Work:
    """`work(program)`, cached."""
    return work(program)


@lru_cache(MANY_KEPT)
def kind_of(program: TensorProgram) -> PatternKind:
    """`classify(program)`, cached."""
    return classify(program)


@lru_cache(MANY_KEPT)
def counts_of(program: TensorProgram) -> Counts:
    """`count(program)`, cached."""
    return count(program)


@lru_cache(MANY_KEPT)
def adds_neighbours(program: TensorProgram) -> bool:
    """Whether the program reads an operand at several places for each element, and all operands along the last axis of
    the result, so that neighbours in memory are computed together."""
    if len(program.stages) != 1:
        return False
    (stage,) = program.stages
    reads = [r for r in walk(stage.value) if isinstance(r, Read)]
    last = stage.indices[-1] if stage.indices else None
    along = all(r.indices and r.indices[-1] == last for r in reads)
    return along and len({r.buffer for r in reads}) < len(set(reads))


def program_amounts(placed: ProgramUse, launches: int) -> Amounts:
    """The amounts of a tensor program that is called with `placed.sizes` and takes so many `launches`."""
    counted, done = counts_of(placed.program), work_of(placed.program)
    other = done.other_flops
    is_plain = other.const >= 0 and all(c >= 0 and all(x.op == "var" for x in monomial) for monomial, c in other.terms)
    flops = sum((c.flops for c in done.contractions), other if is_plain else dim_max(other, 0))
    workspace = sum(workspace_bytes(placed.program).values(), NONE)
    found = Amounts(flops, counted.bytes_read + counted.bytes_written, Dim.of(launches), workspace)
    return found.map(lambda d: d.substitute(placed.sizes)) if placed.sizes else found


def bytes_moved(site: Site, result: Annotation) -> Dim:
    """Bytes of the operands and the result, each counted once."""
    return sum((bytes_of(a) for a in (*site.operands, result)), NONE)
