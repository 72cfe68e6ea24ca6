"""The contractions inside a kernel, and which of their operands and results the kernel computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.cost import Effort
from relax_eg.extract.kernels.cost import ContractionCost


@dataclass(frozen=True, slots=True)
class Anchor:
    """A contraction in a kernel.

    - `made`: classes of the operands that are computed inside.
    - `sources`: classes that are loaded to compute them.
    - `online`: such an operand has exponentials and is made from a reduction inside.
    - `staged`: such an operand is made from any reduction or contraction inside.
    - `read`: the kernel computes on with the contraction's value.
    - `reduced`: the value, or a value made from it, is reduced inside.
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
    """The contractions of several states together."""
    found: dict[int, Anchor] = {}
    for anchors in each:
        for x, a in anchors.items():
            b = found.get(x, a)
            found[x] = a if a == b else replace(a, read=a.read or b.read, reduced=a.reduced or b.reduced)
    return found


def part_of(effort: Effort, c: int, anchor: Anchor, sizes: Mapping[int, int] | Sequence[int]) -> ContractionCost:
    """The contraction of class `c` for pricing; `sizes` are bytes of classes."""
    made, sources = (sum(sizes[x] for x in classes) for classes in (anchor.made, anchor.sources))
    result, of = sizes[c] if anchor.read else 0, (effort.own, effort.vector)
    return ContractionCost(effort.contracting, made, sources, result, anchor.reduced, anchor.online, anchor.staged, *of)
