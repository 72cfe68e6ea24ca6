"""The decision for one operator: the masks of its operands, its computation at capacity, and the layout of its
results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax_eg.dynamic.content import known_content
from relax_eg.dynamic.layout import Moves, States, TensorLayout
from relax_eg.errors import RelaxEgError
from relax_eg.ops import Site
from relax_eg.shapes import Dim


class NotPredicated(RelaxEgError):
    """An operator's result at true sizes cannot be computed at capacity."""


class StepSizes(Protocol):
    """The sizes at which a step is computed: capacities and true sizes."""

    def capacity(self, dim: Dim) -> int:
        """The largest value of a size."""
        ...

    def true(self, dim: Dim) -> Any:
        """The true size: an integer, or an int32 scalar of JAX."""
        ...

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The true value of each size variable."""
        ...

    def keeps(self, inner: int) -> bool:
        """Whether the inner mask of this number is applied; False only in tests that check whether each mask is
        needed."""
        ...

    def valid(self, dim: Dim, places: int) -> Any:
        """Which of `places` positions are below the true size `dim`: a boolean vector."""
        ...


@dataclass(frozen=True)
class Wanted:
    """A mask on an operand: beyond the true size of a digit of an axis, elements are replaced by `fill`."""

    operand: int
    axis: int
    digit: int
    fill: Any
    reason: str


@dataclass(frozen=True)
class Inner:
    """A mask inside an operator's own computation, for example on a reduction's terms beyond the true size."""

    size: Dim
    reason: str


Compute = Callable[[StepSizes, Sequence[Any]], Any]


@dataclass(frozen=True)
class CapacityStep:
    """How an operator runs at capacity: `compute` takes the operands, those in `unmerged` brought into boxes, masked by
    `masks`."""

    compute: Compute
    states: States
    masks: tuple[Wanted, ...] = ()
    unmerged: frozenset[int] = frozenset()
    inner: tuple[Inner, ...] = ()


@dataclass(frozen=True)
class OperatorUse:
    """One use of an operator, with the layouts of its operands. `moves`: which sizes have a capacity; `constants`:
    operands that are known numbers."""

    site: Site
    states: tuple[TensorLayout, ...]
    moves: Moves
    constants: Mapping[int, Any] = field(default_factory=dict[int, Any])

    def moving(self, i: int = 0) -> list[int]:
        """The axes of operand `i` whose size moves."""
        return [a for a, d in enumerate(self.site.shape(i)) if self.moves(d)]

    @property
    def merged(self) -> frozenset[int]:
        """The operands that are not in boxes."""
        return frozenset(i for i, s in enumerate(self.states) if not s.is_box)


def after_masks(states: Sequence[TensorLayout], masks: Sequence[Wanted]) -> list[TensorLayout]:
    """The layouts of operands after their masks."""
    out = list(states)
    for m in masks:
        out[m.operand] = out[m.operand].with_mask(m.axis, m.digit, known_content(m.fill))
    return out
