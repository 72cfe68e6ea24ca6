"""Llama3-8B, all of its layers: what is planned for it, in and out of bounds."""

from __future__ import annotations

import pytest

from benchmarks.llama import WORKLOADS, kernels_of, planned
from relax_eg.memory import leaves

MIB = 1 << 20


@pytest.mark.parametrize("workload", WORKLOADS)
def test_llama3_8b_needs_less_than_is_published(workload: str) -> None:
    work = WORKLOADS[workload]
    module = kernels_of("llama3-8b", workload)
    plan = planned(module, work)
    arena, bound = plan.bytes_at(plan.at) / MIB, plan.bound_at(plan.at) / MIB
    assert plan.static and len(plan.program.steps) > 32 * 5
    assert arena <= 1.01 * bound
    assert arena < min(work.paper, work.tvm, work.tvm_bound)
    assert plan.check() == []
    # Logits and what attention needs beside its operands are in the arena.
    assert all(v in plan.places for v in leaves(plan.program.result))
    assert sum(x.role == "workspace" for x in plan.live.lifetimes) == 32
    greedy = plan.laid_out("greedy")
    assert int(greedy.bytes) / MIB > 1.2 * arena
    # The peak is told tensor by tensor.
    assert sum(int(x.bytes.evaluate(plan.at)) for x in plan.peak) == plan.bound_at(plan.at)
    free = planned(module, work, bounded=False)
    assert not free.static and len(free.laid_out("storages", results="apart").storages) <= 9
    for size in work.sizes:
        alone = planned(module, work, size)
        assert free.bytes_at(work.at(size)) <= 1.05 * alone.bytes_at(work.at(size))
    assert free.check([work.at(size) for size in (*work.sizes, 1, 17)]) == []
