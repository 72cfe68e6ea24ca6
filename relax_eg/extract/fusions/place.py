"""What an operator adds to the kernels of its function."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax_eg.ir.expr import Expr
from relax_eg.ops.record import TABLE
from relax_eg.shapes import Dim


@dataclass(slots=True)
class KernelPlace:
    """What an operator adds to the kernels of its function.

    - `launches`: the kernels that begin with it.
    - `bytes`: what these kernels read and write.
    - `stored`: whether its value is stored.
    - `workspace`: bytes that its kernel needs besides its result.
    - `copied`: bytes of what it copies first, whose time is in its own price.
    - `kept`: the bytes of its value in memory, where they are others than those of its type.
    - `anew`: on CPUs, stored values of other kernels that its kernels do not read, but compute again.
    - `beside`: the matmul with which it is joined, if its kernel begins with that one.
    - `is_library`: whether it is in a kernel of a library, which computes operator by operator, block by block.
    - `inside`: on CPUs, for an operator that ends a kernel, the others in it, each with its elements that are computed.
    - `in_order`: whether it is a transpose of which XLA leaves the last axis in place.
    - `in_turn`: whether its kernels on a CPU compute one element after the other, without vectors.
    - `computed`: the elements of its value that are computed, by all kernels together, where they are others than those
      of its type.
    """

    launches: int = 0
    bytes: Dim = field(default_factory=lambda: Dim.of(0))
    stored: bool = False
    workspace: Dim = field(default_factory=lambda: Dim.of(0))
    copied: Dim = field(default_factory=lambda: Dim.of(0))
    kept: Dim | None = None
    anew: tuple[Expr, ...] = ()
    beside: Expr | None = None
    is_library: bool = False
    inside: tuple[tuple[Expr, Dim], ...] = ()
    in_order: bool = False
    in_turn: bool = False
    computed: Dim | None = None


def is_placed(op: str) -> bool:
    """Whether the bytes and launches of an operator are those of its place; those of all others are their own."""
    return op in TABLE
