"""The ways in which a class can be computed where programs are made of kernels, and a choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.states import Several, State


@dataclass(frozen=True, slots=True)
class Way:
    """How a class is computed: as candidate `candidate` of the graph on its own, by the kernel `state`, or as one
    output of kernel number `several`."""

    candidate: int
    state: State | None = None
    several: int = -1


@dataclass(slots=True)
class KernelSelection:
    """The chosen ways, by class that is in memory, operands first; prices are as in `Selection`. `operations`: the
    candidates that kernels may hold; `kept`: candidates in the problem; `fewer`: what a program costs that is chosen
    among fewer (`sensitivity`)."""

    ways: dict[int, Way]
    several: list[Several]
    operations: Mapping[tuple[int, int], Operation]
    cost: float
    written_cost: float
    bound: float
    how: str
    kept: int
    fewer: tuple[tuple[int, float], ...]


def members_of(c: int, way: Way) -> Mapping[int, int]:
    """The operators that a way of computing class `c` holds: of each class the candidate."""
    if way.state is not None:
        return way.state.members
    return {c: way.candidate} if way.several < 0 else {}


def is_alone(way: Way) -> bool:
    """Whether it is one operator, and nothing else comes out."""
    return way.several < 0 and (way.state is None or len(way.state.members) == 1)


def same(a: Way, b: Way | None) -> bool:
    """Whether both are the same candidate in the same kernel."""
    if b is None or a.candidate != b.candidate or a.several != b.several:
        return False
    return a.state is b.state
