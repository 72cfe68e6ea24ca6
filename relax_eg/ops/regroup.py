"""Reshape as index arithmetic: the index of an element in another shape with the same number of elements."""

from __future__ import annotations

from collections.abc import Sequence

from relax_eg.ops.sizes import ONE, ZERO, Dims, product
from relax_eg.shapes import Dim


def regroup(at: Sequence[Dim], shape: Dims, into: Dims) -> list[Dim]:
    """Returns the index in shape `into` of the element at index `at` of `shape`, in row-major order.

    The shapes are cut into the smallest groups of axes with equal products, so an axis that a reshape leaves alone
    keeps its plain index; within a group the flat index is split by division and remainder.
    """
    outer = [i for i, d in enumerate(shape) if d is not ONE]
    inner = [i for i, d in enumerate(into) if d is not ONE]
    index = [ZERO] * len(into)
    if ZERO in into:  # no element is read, and a remainder by 0 does not exist
        return index
    sizes = [shape[i] for i in outer], [into[i] for i in inner]
    for group, parts in groups(*sizes) or [(range(len(outer)), range(len(inner)))]:
        flat = ZERO
        for i in group:
            flat = flat * shape[outer[i]] + at[outer[i]]
        # From the last axis to the first, which needs no remainder.
        for n, i in enumerate(reversed(parts)):
            size = into[inner[i]]
            index[inner[i]] = flat if n == len(parts) - 1 else flat % size
            flat = flat if n == len(parts) - 1 else flat // size
    return index


def groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[range, range]] | None:
    """Returns the shortest runs of axes of `a` and `b` with equal products; None where they do not cover all axes."""
    prefixes = [product(b[:j]) for j in range(len(b) + 1)]
    found: list[tuple[range, range]] = []
    i0 = j0 = 0
    total = ONE
    for i, d in enumerate(a, 1):
        total = total * d
        for j in range(j0 + 1, len(b) + 1):
            if prefixes[j] is total:
                found.append((range(i0, i), range(j0, j)))
                i0, j0 = i, j
                break
    return found if (i0, j0) == (len(a), len(b)) else None
