"""What our plans are held against: TVM's algorithm, its planner where it is installed, a pool, and what is counted."""

from __future__ import annotations

import random

import pytest
from memory_programs import memory_program, planned_in, random_program
from typer.testing import CliRunner

from benchmarks import memory, memory_tvm
from benchmarks.memory import app, pool, resnet_block

pytestmark = pytest.mark.xla_defaults


def test_a_storage_may_be_a_sixteenth_rounded_down() -> None:
    # 24 // 16 is 1, so that what needs 24 bytes takes over the storage of one byte, which grows.
    program = memory_program("""
        a: 1 = k(x)
        b: 1000 = k(a)
        c: 24 = k(b)
        d: 1 = k(c)
        return d
    """)
    plan = planned_in(program, {}, layout="greedy")
    assert sorted(int(s.bytes) for s in plan.storages) == [24, 1000] and plan.check() == []


@pytest.mark.skipif(not memory_tvm.is_there(), reason="TVM is not installed")
def test_the_algorithm_is_tvms() -> None:
    for seed in range(60):
        program = random_program(random.Random(seed), 1 + seed % 14, symbolic=False)
        plan = planned_in(program, {}, reorder=False, layout="greedy")
        assert memory_tvm.planned_bytes(plan.program, {}) == int(plan.bytes)


def test_a_pool_keeps_blocks_of_the_sizes_asked_for() -> None:
    # a and b at once, then c where a was; the second call, of the same sizes, finds all three; d is handed out.
    program = memory_program("""
        a: 10*n = k(x)
        b: 3*n = k(a)
        c: 10*n = k(b)
        d: n = k(c)
        return d
    """)
    plan = planned_in(program, {"n": 4}, reorder=False)
    assert pool([(plan, {"n": 4})]) == 52
    assert pool([(plan, {"n": 4}), (plan, {"n": 4})]) == 52
    assert pool([(plan, {"n": 4}), (plan, {"n": 5})]) == 52 + 65


def test_what_is_live_in_a_run_is_what_is_planned() -> None:
    told: list[str] = []
    found = memory.row("resnet block", resnet_block([32, 16]), told.append)
    assert found.live == found.planned > found.arena >= found.bound > 0
    assert found.miss == 0 and found.inside > 0 and found.pool >= found.bound
    assert told == ["searched", "called at b=2", "called at b=1", "called at b=2", "planned by others"]


def test_bad_options_of_the_benchmark() -> None:
    for options, said in (
        (["--only", "nothing"], "no program has 'nothing' in its name: minilm, llama layer"),
        (["--sizes", "16,-1"], "'16,-1': positive integers with commas between are accepted"),
    ):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, options)
        assert result.exit_code == 2 and said in result.output
