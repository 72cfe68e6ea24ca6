"""What is decided of one operator: which masks its operands get, how it is computed at capacity, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax_eg.dynamic.content import known
from relax_eg.dynamic.layout import Moves, State, States
from relax_eg.errors import RelaxEgError
from relax_eg.ops import Site
from relax_eg.shapes import Dim


class NotPredicated(RelaxEgError):
    """What an operator gives at true sizes cannot be had at capacity."""


class At(Protocol):
    """Where a step is computed: sizes at capacity, and true ones."""

    def capacity(self, dim: Dim) -> int:
        """The most that a size can be."""
        ...

    def true(self, dim: Dim) -> Any:
        """The true size: an integer, or an int32 scalar of JAX."""
        ...

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The true value of each size variable."""
        ...

    def keeps(self, inner: int) -> bool:
        """Whether the inner mask of this number is applied; all are, but in tests that look whether each is needed."""
        ...

    def valid(self, dim: Dim, places: int) -> Any:
        """Which of `places` positions are below the true size `dim`: a vector of booleans."""
        ...


@dataclass(frozen=True)
class Wanted:
    """A mask on an operand: beyond the true size of a digit of an axis, `fill` instead of what is there."""

    operand: int
    axis: int
    digit: int
    fill: Any
    reason: str


@dataclass(frozen=True)
class Inner:
    """A mask inside of an operator's own computation: a reduction's terms beyond the true size, say."""

    size: Dim
    reason: str


Compute = Callable[[At, Sequence[Any]], Any]


@dataclass(frozen=True)
class Step:
    """`compute` takes the operands, those in `unmerged` brought into boxes, masked as `masks` say."""

    compute: Compute
    states: States
    masks: tuple[Wanted, ...] = ()
    unmerged: frozenset[int] = frozenset()
    inner: tuple[Inner, ...] = ()


@dataclass(frozen=True)
class Use:
    """One use of an operator, with how its operands lie in their arrays. `moves`: which sizes capacities stand for;
    `constants`: operands that are known numbers."""

    site: Site
    states: tuple[State, ...]
    moves: Moves
    constants: Mapping[int, Any] = field(default_factory=dict[int, Any])

    def moving(self, i: int = 0) -> list[int]:
        """Axes of operand `i` whose size is not fixed."""
        return [a for a, d in enumerate(self.site.shape(i)) if self.moves(d)]

    @property
    def merged(self) -> frozenset[int]:
        """Operands that do not lie in boxes."""
        return frozenset(i for i, s in enumerate(self.states) if not s.is_box)


def after_masks(states: Sequence[State], masks: Sequence[Wanted]) -> list[State]:
    """How operands lie after their masks."""
    out = list(states)
    for m in masks:
        out[m.operand] = out[m.operand].with_mask(m.axis, m.digit, known(m.fill))
    return out
