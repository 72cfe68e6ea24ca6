"""An equation of a jaxpr as the translation rules see it, and the small builders they share.

The builders leave out what does nothing: identity permutations, reshapes to the same sizes, empty lists of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.frontends.symbolic import Sizes
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr
from relax_eg.ops.record import call
from relax_eg.shapes import Dim

ONE = Dim.of(1)
ZERO = Dim.of(0)


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation of a jaxpr as the rules see it: operands, parameters, what its outputs are. `inline(closed, args)`
    gives the outputs of a nested jaxpr for these arguments."""

    args: tuple[Expr, ...]
    params: Mapping[str, Any]
    out: tuple[Tensor, ...]
    sizes: Sizes
    inline: Callable[[Any, Sequence[Expr]], list[Expr]]

    @property
    def x(self) -> Expr:
        return self.args[0]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of the only output."""
        return self.out[0].shape or ()

    @property
    def dtype(self) -> str:
        return self.out[0].dtype or ""

    def __getitem__(self, name: str) -> Any:
        return self.params[name]


Rule = Callable[[Equation], "Expr | Sequence[Expr] | None"]


def astype(x: Expr, dtype: str) -> Expr:
    return x if x.dtype == dtype else call("astype", (x,), {"dtype": dtype})


def permuted(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` with its axes in this order."""
    order = tuple(axes)
    return x if order == tuple(range(x.ndim)) else call("permute_dims", (x,), {"axes": order})


def reshaped(x: Expr, shape: Sequence[Dim]) -> Expr:
    sizes = tuple(shape)
    return x if sizes == x.shape else call("reshape", (x,), {"shape": sizes})


def expanded(x: Expr, axes: Sequence[int]) -> Expr:
    """`x` with axes of size one at these positions of the result."""
    return call("expand_dims", (x,), {"axes": tuple(axes)}) if axes else x


def squeezed(x: Expr, axes: Sequence[int]) -> Expr:
    return call("squeeze", (x,), {"axes": tuple(sorted(axes))}) if axes else x


def sliced(x: Expr, begin: Sequence[Dim], end: Sequence[Dim], strides: Sequence[int]) -> Expr:
    if all(b == 0 for b in begin) and tuple(end) == x.shape and set(strides) <= {1}:
        return x
    return call("strided_slice", (x,), {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)})


def broadcast(x: Expr, shape: tuple[Dim, ...], positions: Sequence[int]) -> Expr:
    """`x` with its axes at `positions` of a result of `shape`, repeated along the others: axes of size one where they
    are missing after the first, then a broadcast from the left unless that is all."""
    first = positions[0] if positions else len(shape)
    leading = range(first) if positions and all(d is ONE for d in shape[:first]) else range(first, first)
    missing = [*leading, *(i for i in range(first, len(shape)) if i not in positions)]
    start = 0 if leading else first
    x = expanded(x, [i - start for i in missing])
    return x if x.shape == shape else call("broadcast_to", (x,), {"shape": shape})


def combines_with(jaxpr: Any) -> str | None:
    """The primitive that a combining function of two scalars is: its name, "second" where it gives back the second
    argument, None where it is anything else."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if not inner.eqns:
        return "second" if list(inner.outvars) == [inner.invars[1]] else None
    if len(inner.eqns) > 1:
        return None
    (eqn,) = inner.eqns
    operands, results = list(map(id, eqn.invars)), list(map(id, inner.outvars))
    if operands != list(map(id, inner.invars)) or results != list(map(id, eqn.outvars)):
        return None
    return eqn.primitive.name
