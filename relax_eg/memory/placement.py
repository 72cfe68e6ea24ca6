"""Placements: the storage of every value and its offset there. Every layout makes one, and the checker reads it."""

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
    """A range of memory that holds values.

    - `bytes`: its size.
    - `itemsize`, `dtype`: bytes of an element, and dtype, of the value for which it was made.
    """

    bytes: Dim
    itemsize: int = 1
    dtype: str = "uint8"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value.

    - `storage`: the number of the storage.
    - `offset`: bytes from the beginning of the storage.
    """

    storage: int
    offset: Dim


# Storages, the place of each value, the reuses with their proofs, and whether no packing is known to be lower.
StorageLayout: TypeAlias = "tuple[tuple[Storage, ...], Mapping[int, Place], tuple[Reuse, ...], bool]"


@dataclass(frozen=True)
class Placement:
    """A plan as plain data: all that a runtime needs to follow it, and the checker to check it.

    - `order`: the steps, by their numbers in the module.
    - `storages`: the storages, by number.
    - `places`: the place of each value that has one.
    - `reuses`: the decisions whether a value reuses another's memory; not in equality.
    - `lowest`: whether no packing is lower at the sizes for which it was made; not in equality.
    """

    order: tuple[int, ...]
    storages: tuple[Storage, ...]
    places: Mapping[int, Place]
    reuses: tuple[Reuse, ...] = field(default=(), compare=False)
    lowest: bool = field(default=False, compare=False)
