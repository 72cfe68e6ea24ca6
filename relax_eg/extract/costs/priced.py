"""Modules with their cost models, and kernels, kept while a search asks several questions about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relax_eg.extract.costs.cost import WholeCost
from relax_eg.extract.costs.cost_model import CostModel
from relax_eg.extract.kernels.compiled import CompiledKernels, Inside
from relax_eg.extract.profiles.profile import Profile
from relax_eg.extract.report import ProgramCost
from relax_eg.ir.module import Module

_MOST = 8  # limit: modules kept; a search compares few programs at a time


@dataclass(frozen=True)
class PricedModule:
    """A module at one binding of its sizes.

    - `profile`, `execution`, `cost`: the device or the cost model that prices it, and how it is executed.
    - `is_written`: whether JAX lowers it, as it is written.
    - `model`: its cost model, which has every node placed in the kernels of its function.
    - `costs`: its prices found so far, by the weights that are known ahead of the calls.
    """

    module: Module
    profile: Profile
    execution: str
    cost: CostModel | None
    is_written: bool
    binding: Mapping[str, int]
    model: WholeCost
    costs: dict[frozenset[str] | None, ProgramCost] = field(default_factory=dict[frozenset[str] | None, ProgramCost])


class PricedModules:
    """The modules priced last, and the kernels of each device. Placing the nodes of a module takes longer than all that
    is asked about it then."""

    def __init__(self) -> None:
        self._kept: tuple[PricedModule, ...] = ()
        self._kernels: tuple[CompiledKernels, ...] = ()

    def kernels(self, profile: Profile, operators_inside: Inside) -> CompiledKernels:
        """The kernels on a device; `profile`: without the dispatch of kernels."""
        found = next((k for k in self._kernels if k.profile == profile), None)
        if found is None:
            found = CompiledKernels(operators_inside, profile)
            self._kernels = (*self._kernels[1 - _MOST :], found)
        return found

    def of(
        self,
        module: Module,
        profile: Profile,
        execution: str,
        cost: CostModel | None,
        is_written: bool,
        binding: Mapping[str, int],
        make: Callable[[], WholeCost],
    ) -> PricedModule:
        """The module with its model, which `make` makes if the module was not priced so before."""
        for each in self._kept:
            if (
                each.module is module
                and each.execution == execution
                and each.cost is cost
                and each.is_written == is_written
                and each.binding == binding
                and each.profile == profile
            ):
                return each
        found = PricedModule(module, profile, execution, cost, is_written, dict(binding), make())
        self._kept = (*self._kept[1 - _MOST :], found)
        return found
