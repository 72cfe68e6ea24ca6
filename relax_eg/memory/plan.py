"""`plan`: order, storages and offsets of a module's entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relax_eg.ir import Module
from relax_eg.memory.liveness import Liveness, liveness
from relax_eg.memory.proofs import Sizes
from relax_eg.memory.steps import Program, Temporary, program_of
from relax_eg.memory.storages import Aliasing, RuntimePlan, runtime_plan
from relax_eg.shapes import Scope


@dataclass(frozen=True)
class Plan:
    """The memory of a call. `program`: its kernels in the order in which they run; `live`: what is needed when;
    `runtime`: whole storages."""

    program: Program
    live: Liveness
    runtime: RuntimePlan


def plan(
    module: Module,
    at: Mapping[str, int],
    *,
    aliasing: Aliasing = "elements",
    temporary: Temporary | None = None,
) -> Plan:
    """The plan of a call of the entry at the sizes `at`, all of them: what a runtime follows."""
    program = program_of(module, temporary)
    live = liveness(program)
    sizes = Sizes(Scope(), at, only_there=True)
    return Plan(program, live, runtime_plan(live, sizes, aliasing))
