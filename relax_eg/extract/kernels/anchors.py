"""The contractions inside a kernel, and the operators that the kernel fuses with their operands and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.costs.operator_cost import Effort
from relax_eg.extract.kernels.cost import ContractionCost


@dataclass(frozen=True, slots=True)
class Anchor:
    """A contraction in a kernel.

    - `made`: the classes of its operands that the kernel computes.
    - `sources`: the classes that the kernel loads to compute them.
    - `online`: whether such an operand has exponentials and is computed from a reduction in the kernel.
    - `staged`: whether such an operand is computed from a reduction or contraction in the kernel.
    - `read`: whether an operator of the kernel reads the contraction's value.
    - `reduced`: whether the kernel reduces the value, or a value computed from it.
    """

    made: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    online: bool = False
    staged: bool = False
    read: bool = False
    reduced: bool = False


Anchors = Mapping[int, Anchor]  # by the class of the contraction's value
NO_ANCHOR = Anchor()


def merge_anchors(each: Iterable[Anchors]) -> dict[int, Anchor]:
    """The contractions of several states in one kernel."""
    found: dict[int, Anchor] = {}
    for anchors in each:
        for x, a in anchors.items():
            b = found.get(x, a)
            found[x] = a if a == b else replace(a, read=a.read or b.read, reduced=a.reduced or b.reduced)
    return found


def part_of(effort: Effort, c: int, anchor: Anchor, sizes: Mapping[int, int] | Sequence[int]) -> ContractionCost:
    """The contraction of class `c` for pricing. `sizes`: the bytes of each class."""
    made, sources = (sum(sizes[x] for x in classes) for classes in (anchor.made, anchor.sources))
    result, of = sizes[c] if anchor.read else 0, (effort.generated_seconds, effort.vector)
    return ContractionCost(effort.contracting, made, sources, result, anchor.reduced, anchor.online, anchor.staged, *of)
