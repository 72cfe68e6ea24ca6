"""One use of a StableHLO operation, as the functions that make calls of `jax.lax` of it read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import StableHloError
from relax_eg.frontends.stablehlo.parsing import HloOp, HloRegion

Shape = tuple[Any, ...]  # sizes: integers, and JAX's symbolic dimensions


@dataclass(frozen=True)
class Use:
    """One use of an operation.

    - `args`: its operands as arrays.
    - `known`: its operands that are known as arrays of sizes; None for the others.
    - `function(region)`: a region as a function of arrays that returns a list.
    - `is_truth_value`: whether the first operand is a truth value as a number.
    - `makers`: the operations that made the operands; None for those made outside the region.
    """

    op: HloOp
    args: Sequence[Any]
    known: Sequence[np.ndarray[Any, Any] | None]
    function: Callable[[HloRegion], Callable[..., list[Any]]]
    is_truth_value: bool
    makers: Sequence[HloOp | None]

    def made_by(self, i: int, *names: str) -> HloOp | None:
        """The operation that made operand `i`, if it is one of these."""
        found = self.makers[i]
        return found if found is not None and found.name.removeprefix("stablehlo.") in names else None

    def at(self, name: str, default: Any = None) -> Any:
        return self.op.at(name, default)

    @property
    def dtype(self) -> str:
        kind = self.op.types[0]
        assert kind is not None
        return kind.dtype

    @property
    def shape(self) -> Shape:
        """The declared shape of the first result."""
        kind = self.op.types[0]
        if kind is None or None in kind.shape:
            raise StableHloError(f"{self.op.name} of a result whose sizes are not known\n  accepted: known sizes")
        return kind.shape

    def sizes(self, i: int, name: str = "", default: Any = ()) -> Shape:
        """Operand `i` as sizes; the attribute `name` where there is no such operand."""
        if i >= len(self.args):
            return tuple(_size(d) for d in np.asarray(self.at(name, default)).reshape(-1))
        found = self.known[i]
        if found is None:
            raise StableHloError(f"{self.op.name} to sizes that depend on values\n  accepted: sizes of shapes")
        return tuple(map(_size, found.reshape(-1)))


def _size(value: Any) -> Any:
    """A size as `jax.lax` takes it: an integer of Python, or a symbolic dimension."""
    return int(value) if isinstance(value, np.integer) else value


def pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The padding of each axis, low and high, of a flat sequence of both."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def word_in(value: Any) -> str:
    """The word in an attribute such as `#stablehlo<comparison_direction LT>`."""
    return str(value).rstrip(">").split(" ")[-1]
