"""Schedules after local changes are those planned anew, and take little time."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from hypothesis import given, settings

import relax_eg as rx
from relax_eg.memory.schedule import LONGEST, PlannedStep, Schedule, best_order, freeing_first
from relax_eg.memory.steps import program_of


def drawn(rng: random.Random, n: int, reach: int = 4) -> tuple[list[PlannedStep], dict[int, int]]:
    """Steps that each write one value and read a few that were written shortly before, and now and then one from long
    before, as backward passes do."""
    steps: list[PlannedStep] = []
    for i in range(n):
        near = range(max(0, i - reach), i)
        reads = set(rng.sample(near, min(len(near), rng.randint(1, 2))))
        if i and rng.random() < 0.05:
            reads.add(rng.randrange(i))
        pairs = tuple((i, r) for r in reads if rng.random() < 0.3)
        steps.append(PlannedStep(tuple(sorted(reads)), (i,), rng.choice((0, 0, 4)), pairs))
    return steps, {i: rng.choice((1, 2, 4, 8, 16)) for i in range(n)}


def changed(rng: random.Random, schedule: Schedule, fresh: int) -> tuple[int, int, list[PlannedStep], dict[int, int]]:
    """A local change: a step runs again for its last reader, reads another value, or needs other bytes inside."""
    steps = schedule.steps
    at = rng.randrange(len(steps))
    kind = rng.randrange(3)
    readers = [i for i, s in enumerate(steps) if at < i and set(s.reads) & set(steps[at].writes)]
    if kind == 0 and readers:
        last, v = readers[-1], steps[at].writes[0]
        again = replace(steps[at], writes=(fresh,), pairs=())
        reader = steps[last]
        reader = replace(reader, reads=tuple(fresh if r == v else r for r in reader.reads), pairs=())
        return last, last + 1, [again, reader], {fresh: schedule.sizes[v]}
    if kind == 1 and at:
        v = steps[rng.randrange(max(0, at - 8), at)].writes[0]
        return at, at + 1, [replace(steps[at], reads=tuple(sorted({*steps[at].reads, v})))], {}
    return at, at + 1, [replace(steps[at], inside=rng.choice((0, 8, 32)))], {}


@given(st.integers(0, 10**9), st.integers(2, 120))
@settings(max_examples=60, deadline=None)
def test_a_schedule_after_changes_is_the_one_planned_anew(seed: int, n: int) -> None:
    rng = random.Random(seed)
    steps, sizes = drawn(rng, n)
    results = frozenset(rng.sample(range(n), min(n, 3)))
    schedule = Schedule(tuple(steps), sizes, results)
    for i in range(8):
        assert sorted(schedule.order) == list(range(len(schedule.steps)))
        start, end, more, fresh = changed(rng, schedule, 10_000 + i)
        schedule = schedule.replaced(start, end, more, fresh)
        anew = Schedule(schedule.steps, schedule.sizes, results)
        assert schedule.order == anew.order and schedule.peak == anew.peak
        made: set[int] = set()
        for s in (schedule.steps[k] for k in schedule.order):
            assert all(v in made for v in s.reads)
            made.update(s.writes)


@given(st.integers(0, 10**9), st.integers(2, 120))
@settings(max_examples=60, deadline=None)
def test_steps_that_free_memory_run_as_early_as_they_can(seed: int, n: int) -> None:
    """All steps once, after what they read, in the order of their regions; where the order leaves that of the text, a
    step frees at least the bytes that it makes, with its share of what only steps that can run have yet to read."""
    rng = random.Random(seed)
    steps, sizes = drawn(rng, n)
    steps = [replace(s, region=3 * i // n) for i, s in enumerate(steps)]
    results = frozenset(rng.sample(range(n), min(n, 3)))
    order = freeing_first(steps, sizes, results)
    assert sorted(order) == list(range(n))
    regions = [steps[i].region for i in order]
    assert regions == sorted(regions)
    readers = {v: {i for i, s in enumerate(steps) if v in s.reads} for v in range(n)}
    ran: set[int] = set()
    for i in order:
        assert all(v in ran for v in steps[i].reads)
        made, freed = sizes[i] if readers[i] or i in results else 0, 0
        for v in {*steps[i].reads} - results:
            left = readers[v] - ran
            freed += sizes[v] // len(left) if all(ran.issuperset(steps[j].reads) for j in left) else 0
        assert made <= freed or i == min({*range(n)} - ran)
        ran.add(i)


def test_steps_that_free_a_value_together_run_early() -> None:
    """The gradients of a weight and of a bias read one value, and neither of them alone frees it."""
    text = [(), (0,), (1,), (2,), (0,), (1,), (0,), (1,)]
    steps = [PlannedStep(reads, (i,), 0) for i, reads in enumerate(text)]
    sizes = {i: 100 if i < 4 else 1 for i in range(len(text))}
    assert freeing_first(steps, sizes, frozenset((3, 4, 5, 6, 7))) == [0, 4, 6, 1, 5, 7, 2, 3]


def test_gradients_at_the_end_of_a_long_text_are_computed_early() -> None:
    """A backward pass whose gradients of weights are all at the end, further away than a block is long."""
    layers = LONGEST // 2

    def step(ws: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        kept = [x]
        for w in ws:
            kept.append(jnp.tanh(kept[-1] * w))
        back, found = [kept[-1]], list[jax.Array]()
        for w in reversed(ws):
            back.append(jnp.sin(back[-1] * w))
        for x, d in zip(kept, reversed(back), strict=True):
            found.append(jnp.sum(x * d))
        return found

    module = rx.trace(step, ["4"] * layers, "4096 4")
    order = best_order(program_of(module), [{}])
    assert order.after < 0.6 * order.before


def test_changes_of_4000_steps_take_30_ms() -> None:
    """2,000 schedules a minute. Seconds are those of the processor, at the median."""
    rng = random.Random(0)
    steps, sizes = drawn(rng, 4000)
    schedule = Schedule(tuple(steps), sizes, frozenset({3999}))
    _ = schedule.peak
    taken: list[float] = []
    for i in range(40):
        start, end, more, fresh = changed(rng, schedule, 10_000 + i)
        began = time.process_time()
        schedule = schedule.replaced(start, end, more, fresh)
        _ = schedule.order, schedule.peak
        taken.append(time.process_time() - began)
    assert sorted(taken)[len(taken) // 2] < 0.03, taken
