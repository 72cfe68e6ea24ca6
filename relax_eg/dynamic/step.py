"""How one operator runs at capacity: the masks of its operands, its computation, and the layouts of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from relax_eg.dynamic.content import known_content
from relax_eg.dynamic.layout import Layouts, Moves, TensorLayout
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

    def true_size(self, dim: Dim) -> Any:
        """The true size: an integer, or an int32 scalar of JAX."""
        ...

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The true value of each size variable."""
        ...

    def applies_inner_mask(self, inner: int) -> bool:
        """Whether the inner mask of this number is applied; False only in tests of whether each mask is needed."""
        ...

    def valid_mask(self, dim: Dim, places: int) -> Any:
        """Which of `places` positions are below the true size `dim`: a boolean vector."""
        ...


@dataclass(frozen=True)
class OperandMask:
    """A mask on an operand: beyond the true size of a digit of an axis, elements are replaced.

    - `operand`: the index of the operand.
    - `axis`: the axis.
    - `digit`: the index of the digit within the axis.
    - `fill`: the number in place of the elements.
    - `reason`: what the operator needs it for.
    """

    operand: int
    axis: int
    digit: int
    fill: Any
    reason: str


@dataclass(frozen=True)
class InnerMask:
    """A mask inside an operator's own computation, for example on a reduction's terms beyond the true size.

    - `size`: the true size.
    - `reason`: what the operator needs it for.
    """

    size: Dim
    reason: str


Compute = Callable[[StepSizes, Sequence[Any]], Any]


@dataclass(frozen=True)
class CapacityStep:
    """How an operator runs at capacity.

    - `compute`: computes the results from the operands.
    - `result_layouts`: the layouts of the results.
    - `masks`: the masks on operands, which are applied before.
    - `boxed_operands`: the operands that are brought into boxes before they are masked.
    - `inner`: the masks that `compute` applies itself.
    """

    compute: Compute
    result_layouts: Layouts
    masks: tuple[OperandMask, ...] = ()
    boxed_operands: frozenset[int] = frozenset()
    inner: tuple[InnerMask, ...] = ()


@dataclass(frozen=True)
class OperatorUse:
    """One use of an operator.

    - `site`: the operator with the annotations of its operands and its attributes.
    - `operand_layouts`: the layouts of its operands.
    - `moves`: which sizes have a capacity.
    - `constants`: the values of operands that are known numbers.
    """

    site: Site
    operand_layouts: tuple[TensorLayout, ...]
    moves: Moves
    constants: Mapping[int, Any] = field(default_factory=dict[int, Any])

    def moving_axes(self, i: int = 0) -> list[int]:
        """The axes of operand `i` whose size moves."""
        return [a for a, d in enumerate(self.site.shape(i)) if self.moves(d)]

    @property
    def merged_operands(self) -> frozenset[int]:
        """The operands that are not in boxes."""
        return frozenset(i for i, s in enumerate(self.operand_layouts) if not s.is_box)


def after_masks(layouts: Sequence[TensorLayout], masks: Sequence[OperandMask]) -> list[TensorLayout]:
    """The layouts of operands after their masks."""
    out = list(layouts)
    for m in masks:
        out[m.operand] = out[m.operand].with_mask(m.axis, m.digit, known_content(m.fill))
    return out
