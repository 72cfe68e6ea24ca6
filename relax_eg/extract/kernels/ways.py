"""The ways to compute a class if programs are made of kernels, and a choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.states import Kernel, State


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a class.

    - `candidate`: the candidate of the graph, a kernel of its own if the other fields are unset.
    - `state`: the kernel that computes it.
    - `several`: index of the kernel with several outputs that computes it, or -1.
    """

    candidate: int
    state: State | None = None
    several: int = -1


@dataclass(slots=True)
class KernelSelection:
    """A choice of ways for the classes in memory; `cost`, `written_cost`, `bound` and `how` are as in `Selection`.

    - `ways`: the chosen way by class, operands first.
    - `operations`: the candidates that kernels may hold.
    - `kept`: number of candidates in the problem.
    - `fewer`: cost of a program chosen among fewer candidates (`sensitivity`).
    """

    ways: dict[int, Way]
    several: list[Kernel]
    operations: Mapping[tuple[int, int], Operation]
    cost: float
    written_cost: float
    bound: float
    how: str
    kept: int
    fewer: tuple[tuple[int, float], ...]


def members_of(c: int, way: Way) -> Mapping[int, int]:
    """The operators inside a way of computing class `c`: the candidate of each class."""
    if way.state is not None:
        return way.state.members
    return {c: way.candidate} if way.several < 0 else {}


def is_alone(way: Way) -> bool:
    """Whether the way is one operator with one output."""
    return way.several < 0 and (way.state is None or len(way.state.members) == 1)


def is_same_way(a: Way, b: Way | None) -> bool:
    """Whether both are the same candidate in the same kernel."""
    if b is None or a.candidate != b.candidate or a.several != b.several:
        return False
    return a.state is b.state
