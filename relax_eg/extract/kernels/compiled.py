"""Kernels as XLA compiles them: the operators that XLA gets of each, and what these cost as one program.

A search asks of the same kernel several times: in every selection, in each function that has it, and once more when the
program of kernels is priced. What a kernel costs depends on its expression, its sizes and the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function
from relax_eg.limits import KEPT
from relax_eg.memo import Memo

# From an expression whose operands are variables, and sizes, to a function of the operators that XLA gets of it.
Inside: TypeAlias = Callable[[Expr, Mapping[str, int]], "Function | None"]


@dataclass(eq=False)
class CompiledKernels:
    """The kernels of a search on one device.

    - `operators_inside`: finds the operators that XLA gets of a kernel; None where they are not known.
    - `profile`: the device, without the dispatch of kernels.
    """

    operators_inside: Inside
    profile: Profile
    _costs: Memo[tuple[Expr, tuple[tuple[str, int], ...]], NodeCost | None] = field(default_factory=lambda: Memo(KEPT))

    def program(self, kernel: Expr, sizes: Mapping[str, int]) -> tuple[Function, WholeCost] | None:
        """The XLA program that a kernel is at these sizes, with the model that prices it; None where it is not known.

        - `kernel`: an expression whose operands are variables.
        """
        found = self.operators_inside(kernel, sizes)
        return None if found is None else (found, WholeCost(self.profile, {}))

    def cost(self, kernel: Expr, sizes: Mapping[str, int]) -> NodeCost | None:
        """What that program costs on the device, which may run ahead of its dispatch."""
        return self._costs.get_or_make((kernel, tuple(sizes.items())), lambda: self._cost(kernel, sizes))

    def _cost(self, kernel: Expr, sizes: Mapping[str, int]) -> NodeCost | None:
        program = self.program(kernel, sizes)
        return None if program is None else sum((v.cost for v in walk(*program)), NodeCost())
