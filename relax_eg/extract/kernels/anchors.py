"""The contractions inside a kernel, and what of their operands and results the kernel computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.extract.cost import Effort
from relax_eg.extract.kernels.cost import Part


@dataclass(frozen=True, slots=True)
class Anchor:
    """A contraction in a kernel: the classes of the operands that are computed inside, and those that are loaded for
    them; whether one of them has exponentials of rows that are reduced inside, or is made of any reduction; whether its
    own value is computed on, and whether it, or what is made of it, is reduced."""

    made: frozenset[int] = frozenset()
    sources: frozenset[int] = frozenset()
    online: bool = False
    staged: bool = False
    read: bool = False
    reduced: bool = False


Anchors = Mapping[int, Anchor]  # by the class of the contraction's value
NO_ANCHOR = Anchor()


def merged(each: Iterable[Anchors]) -> dict[int, Anchor]:
    """The contractions of several states together."""
    found: dict[int, Anchor] = {}
    for anchors in each:
        for x, a in anchors.items():
            b = found.get(x, a)
            found[x] = a if a == b else replace(a, read=a.read or b.read, reduced=a.reduced or b.reduced)
    return found


def part_of(effort: Effort, c: int, anchor: Anchor, sizes: Mapping[int, int] | Sequence[int]) -> Part:
    """The contraction of class `c` as it is priced; `sizes`: bytes of classes."""
    made, sources = (sum(sizes[x] for x in classes) for classes in (anchor.made, anchor.sources))
    result, of = sizes[c] if anchor.read else 0, (effort.own, effort.vector)
    return Part(effort.contracting, made, sources, result, anchor.reduced, anchor.online, anchor.staged, *of)
