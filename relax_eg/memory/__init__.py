"""Memory planning with proofs: the liveness, order, storages and offsets of the values of a module's entry."""

from relax_eg.memory.liveness import Lifetime, Liveness, liveness
from relax_eg.memory.planner import Plan, as_it_runs, plan, plan_memory
from relax_eg.memory.steps import MemoryProgram, Step, Tree, Value, leaves, operands_of, program_of
from relax_eg.memory.storages import Reuse, RuntimePlan, RuntimeStep, Storage, runtime_plan

__all__ = [
    "Lifetime",
    "Liveness",
    "MemoryProgram",
    "Plan",
    "Reuse",
    "RuntimePlan",
    "RuntimeStep",
    "Step",
    "Storage",
    "Tree",
    "Value",
    "as_it_runs",
    "leaves",
    "liveness",
    "operands_of",
    "plan",
    "plan_memory",
    "program_of",
    "runtime_plan",
]
