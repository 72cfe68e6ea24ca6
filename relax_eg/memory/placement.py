"""Placements: in which storage every value lies, and at which offset; what all layouts make and what is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from relax_eg.memory.proofs import Reuse
from relax_eg.shapes import Dim

# How values are given memory. "storages": whole storages, each for one value at a time, as execution="kernels" runs;
# "arena": one storage, with an offset for each value; "greedy": the storages of TVM's planner, for comparison.
Layout = Literal["storages", "arena", "greedy"]


@dataclass(frozen=True, slots=True)
class Storage:
    """A range of memory that holds values. `itemsize`, `dtype`: those of the value it was made for."""

    bytes: Dim
    itemsize: int = 1
    dtype: str = "uint8"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value: `offset` bytes from the beginning of the storage of this number."""

    storage: int
    offset: Dim


# Storages, the place of each value, the reuses with their proofs, and whether no packing is known to be lower.
Laid: TypeAlias = "tuple[tuple[Storage, ...], Mapping[int, Place], tuple[Reuse, ...], bool]"


@dataclass(frozen=True)
class Placement:
    """A plan as plain data: what is needed to follow it and to check it.

    - `order`: the steps, by their numbers in the module.
    - `storages`: by number.
    - `places`: the place of each value that has one.
    - `reuses`: which value was given whose memory, and which was not; not in equality.
    - `lowest`: whether no packing is lower at the sizes that it was made for; not in equality.
    """

    order: tuple[int, ...]
    storages: tuple[Storage, ...]
    places: Mapping[int, Place]
    reuses: tuple[Reuse, ...] = field(default=(), compare=False)
    lowest: bool = field(default=False, compare=False)
