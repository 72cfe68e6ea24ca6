"""Memory planning with proofs: the liveness, order and layout of the values of a module's entry."""

from relax_eg.memory.liveness import Liveness
from relax_eg.memory.placement import Place
from relax_eg.memory.plan import Plan, PlanOptions
from relax_eg.memory.planner import lifetimes, plan, plan_memory, with_measured_temporaries
from relax_eg.memory.program import MemoryProgram, Step, StoredValues, Tree, Value, leaves, operands_of
from relax_eg.memory.proofs import Reuse
from relax_eg.memory.steps import program_of
