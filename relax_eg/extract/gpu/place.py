"""What an operator adds to the kernels of its function."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_eg.ops.record import TABLE
from relax_eg.shapes import Dim


@dataclass(slots=True)
class KernelPlace:
    """What an operator adds to the kernels of its function.

    - `launches`: the kernels that begin with it.
    - `bytes`: what these kernels read and write.
    - `stored`: whether its value is stored.
    - `workspace`: bytes that its kernel needs besides its result.
    - `kept`: the bytes of its value in memory, where they are others than those of its type.
    """

    launches: int = 0
    bytes: Dim = field(default_factory=lambda: Dim.of(0))
    stored: bool = False
    workspace: Dim = field(default_factory=lambda: Dim.of(0))
    kept: Dim | None = None


def is_placed(op: str) -> bool:
    """Whether the bytes and launches of an operator are those of its place; those of all others are their own."""
    return op in TABLE
