"""What JAX makes of operators on CPUs, where it lowers a program as it is written and this takes longer than ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relax_eg.extract.costs.numbers import Number, maximum
from relax_eg.extract.costs.sized_device import SizedDevice
from relax_eg.ir.expr import Expr
from relax_eg.shapes import Dim

# measured: times as long as by `transpose_rate` that XLA takes to copy a matrix for a product of two transposed ones
# (`python -m benchmarks.patterns --cases transpose`)
_COPIED = 8.0


@dataclass(frozen=True, slots=True)
class ByJax:
    """What JAX makes of an operator.

    - `slower`: how many times as long as by our lowering it takes.
    - `copied`: the two matrices of which XLA copies the larger one, transposed; () for none.
    """

    slower: float = 1.0
    copied: Sequence[Expr] = ()

    def seconds(self, ours: Number, model: SizedDevice) -> Number:
        """The seconds of the operator. `ours`: those by our lowering."""
        sizes = [math.prod(map(model.evaluate, m.shape)) for m in self.copied]
        copying = _COPIED * maximum(*sizes) / model.profile.transpose_rate if sizes else 0.0
        return ours * self.slower + copying


AS_OURS = ByJax()
AsJaxLowers = Callable[[Expr, bool, Callable[[Dim], float]], ByJax]  # of a node, in a loop or not, and numbers of sizes
