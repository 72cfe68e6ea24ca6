"""The ways to compute a class if programs are made of kernels, and a choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.states import Kernel, State


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a class.

    - `candidate`: the candidate of the graph. If the other fields are unset, it runs by itself.
    - `state`: the kernel with one output that computes the class; None if there is none.
    - `several`: the index of the kernel with several outputs that computes the class, or -1.
    """

    candidate: int
    state: State | None = None
    several: int = -1


@dataclass(slots=True)
class KernelSelection:
    """A choice of ways for the classes in memory.

    - `ways`: the chosen way of each class, operands first.
    - `several`: the kernels with several outputs, to which ways refer.
    - `operations`: the candidates that kernels may contain.
    - `cost`, `written_cost`, `bound`, `how`: as in `Selection`.
    - `kept`: the number of candidates in the problem.
    - `fewer`: the cost of programs chosen among fewer candidates (`sensitivity`).
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
    """The operators in a way to compute class `c`: the candidate of each class; empty for a result of a kernel with
    several outputs."""
    if way.state is not None:
        return way.state.members
    return {c: way.candidate} if way.several < 0 else {}


def is_single_operator(way: Way) -> bool:
    """Whether the way is one operator with one output."""
    return way.several < 0 and (way.state is None or len(way.state.members) == 1)


def is_same_way(a: Way, b: Way | None) -> bool:
    """Whether two ways are the same candidate in the same kernel."""
    if b is None or a.candidate != b.candidate or a.several != b.several:
        return False
    return a.state is b.state
