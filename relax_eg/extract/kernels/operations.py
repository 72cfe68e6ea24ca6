"""The operators of a graph that a kernel may contain, with their programs and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.extract.access import StageAccess, StageKind, accesses
from relax_eg.extract.costs.operator_cost import Effort
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.cost import VIEW, KernelCost
from relax_eg.ir.expr import CONSTANT, VAR
from relax_eg.limits import MANY_KEPT
from relax_eg.ops.fused import VIEWS, ProgramUse, program_at
from relax_eg.ops.triton import unsupported_reason
from relax_eg.tir import Apply, Cast, Read, TensorProgram, walk


@dataclass(frozen=True, slots=True)
class Operation:
    """A candidate of the graph that a kernel may contain.

    - `placed`: its program, with the sizes at its site.
    - `stages`: the accesses of its stages.
    - `effort`: its arithmetic.
    - `is_view`: whether it is a view.
    - `contracts`: whether it has a contraction.
    - `moves`: whether it only moves elements.
    - `exponential`: whether it has exponentials.
    - `triton`: whether Triton compiles it.
    """

    placed: ProgramUse
    stages: tuple[StageAccess, ...]
    effort: Effort
    is_view: bool
    contracts: bool
    moves: bool
    exponential: bool
    triton: bool


def operations_of(
    graph: ExtractionGraph,
    model: KernelCost,
    only: Sequence[int] | None,
    known: Mapping[tuple[int, int], Operation],
) -> dict[tuple[int, int], Operation]:
    """The candidates of a graph that a kernel may contain, by class and candidate.

    - `only`: for each class, the only candidate to consider, or -1 for none; None: all candidates.
    - `known`: those that were made before.
    """
    found: dict[tuple[int, int], Operation] = {}
    for c, row in enumerate(graph.candidates):
        for k, candidate in enumerate(row):
            site = candidate.site
            if only is not None and only[c] != k:
                continue
            if (c, k) in known:
                found[c, k] = known[c, k]
                continue
            if not site.operands and not candidate.children and candidate.op in (VAR, CONSTANT):
                continue
            placed = program_at(site.op, site.operands, tuple(site.attrs.items()), graph.annotations[c])
            stages = None if placed is None else accesses(placed.program)
            if placed is not None and stages is not None:
                is_view = site.op in VIEWS
                # A view inside a kernel is slightly dearer than outside, where the kernel has one operator less.
                effort = Effort(0, 0.0, 2 * VIEW) if is_view else model.effort(site.op, placed)
                contracts = any(s.kind is StageKind.CONTRACTION for s in stages)
                triton = not unsupported_reason(placed.program)
                found[c, k] = Operation(
                    placed, stages, effort, is_view, contracts, *_moves_and_exponential(placed.program), triton
                )
    return found


@lru_cache(MANY_KEPT)
def _moves_and_exponential(program: TensorProgram) -> tuple[bool, bool]:
    """Whether a program only moves elements, and whether it has exponentials."""
    values = [made.value for made in program.stages]
    moves = all(isinstance(v.arg if isinstance(v, Cast) else v, Read) for v in values)
    return moves, any(isinstance(t, Apply) and t.fn == "exp" for v in values for t in walk(v))
