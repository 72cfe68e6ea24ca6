"""Which values a program computes again where they are read late, so that it keeps within a limit of bytes.

An order of the steps may contain a step several times. A read is of what the latest run of the writing step made, so a
step that runs again frees its results between their last read before that and the second run. Steps are added one run
at a time: of the values that are alive across a place above the limit, that one is computed again, alone or with the
values that it is computed from, which saves most bytes for each second that it takes. Runs that turn out not to be
needed are taken away at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.memory.liveness import candidates, live_totals
from relax_eg.memory.program import MemoryProgram, leaves
from relax_eg.memory.schedule import PlannedStep, Schedule, planned_bytes

_DEPTHS = (0, 1, 2, 3, 5, 8, 13)  # chosen: how far back values are computed again, in steps
_LOWER = 0.9  # chosen: the peak is lowered by that share at a time
_EXACTLY = 12  # limit: runs whose effect is determined exactly before one is added
_MOST_RUNS = 400  # limit: rounds in which runs are added
_LEAST_SECONDS = 1e-9  # chosen: seconds; the price of a run is at least that


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The runs of the steps of a program, in order.

    - `runs`: the number of the step of each run.
    - `peak`: the most bytes alive at once.
    - `seconds`: what the runs after the first of each step take.
    - `again`: how many these are.
    """

    runs: tuple[int, ...]
    peak: int
    seconds: float = 0.0
    again: int = 0


@dataclass
class ArrangementProblem:
    """A program whose steps may run several times.

    - `program`: the program.
    - `seconds`: what each step takes.
    - `sizes`: the bytes of each value; 0 for arguments and constants.
    - `inside`: the bytes that each step needs beside its operands and results.
    - `results_apart`: whether results have memory of their own from the start, as those of an XLA program have.
    """

    program: MemoryProgram
    seconds: Sequence[float]
    sizes: Sequence[int]
    inside: list[int]
    results_apart: bool = False
    reads: list[tuple[int, ...]] = field(init=False)
    pairs: list[list[tuple[int, int]]] = field(init=False)

    @staticmethod
    def of(program: MemoryProgram, at: Mapping[str, int], seconds: Sequence[float], apart: bool) -> ArrangementProblem:
        sizes = planned_bytes(program, at)
        return ArrangementProblem(
            program, seconds, sizes, [sum(sizes[v] for v in s.workspaces) for s in program.steps], apart
        )

    def __post_init__(self) -> None:
        steps = self.program.steps
        self.reads = [tuple(v for v in s.reads if self.sizes[v]) for s in steps]
        self.pairs = [candidates(self.program, s) for s in steps]
        self.results = {v for v in leaves(self.program.result) if self.sizes[v]}
        self.writer = {v: s.number for s in steps for v in s.writes}

    def timeline(self, runs: Sequence[int]) -> Timeline:
        """What is alive while the steps run in this order."""
        steps = self.program.steps
        events: dict[tuple[int, int], list[int]] = {}
        current: dict[int, int] = {}
        for at, s in enumerate(runs):
            for v in self.reads[s]:
                events[v, current[v]].append(at)
            for v in steps[s].writes:
                current[v] = at
                events[v, at] = [at]
        for v in self.results:
            if v in current:
                events[v, current[v]].append(len(runs))
        spans = [
            (0 if self.results_apart and v in self.results else made, min(ends[-1], len(runs) - 1), self.sizes[v])
            for (v, made), ends in events.items()
        ]
        needed = live_totals(spans, len(runs), 0)
        current.clear()
        for at, s in enumerate(runs):
            needed[at] += self.inside[s]
            taken: set[int] = set()
            for w, r in self.pairs[s]:  # computed in place
                if self.results_apart and w in self.results:
                    continue
                if r in current and w not in taken and r not in taken and events[r, current[r]][-1] == at:
                    needed[at] -= self.sizes[w]
                    taken |= {w, r}
            for v in steps[s].writes:
                current[v] = at
        return Timeline(tuple(runs), needed, events)

    def may_run_again(self, step: int) -> bool:
        """Whether a step may run twice. What a library call does is not known, so it may not."""
        return self.program.steps[step].kernel.op != CALL_DPS_LIBRARY


@dataclass(frozen=True)
class Timeline:
    """What is alive in an order of runs.

    - `runs`: the order.
    - `needed`: the bytes that are needed while each run is under way.
    - `events`: for each value and the run that made it, that run and those that read it. The number of all runs stands
      for the reader of a result.
    """

    runs: tuple[int, ...]
    needed: list[int]
    events: Mapping[tuple[int, int], list[int]]

    @property
    def peak(self) -> int:
        return max(self.needed, default=0)

    def excess(self, limit: int) -> int:
        """The bytes above a limit, summed over the runs."""
        return sum(n - limit for n in self.needed if n > limit)


def arrange(
    problem: ArrangementProblem, order: Sequence[int], limit: int, is_over: Callable[[], bool] = lambda: False
) -> Arrangement:
    """Runs of the steps in `order`, with others between them, that need at most `limit` bytes if such are found, and
    otherwise as few as were found. `is_over`: whether no time is left to look for more."""
    now, schedule = problem.timeline(order), Schedule((), {}, frozenset())
    while now.peak > limit and not is_over():
        then = _lowered(problem, now, max(limit, int(_LOWER * now.peak)), is_over)
        then, schedule = _reordered(problem, then, schedule)
        if then.peak >= now.peak:
            break
        now = then
    now = _without_needless(problem, now, max(limit, now.peak))
    seen: set[int] = set()
    again = [s for s in now.runs if s in seen or seen.add(s)]  # `add` returns None
    return Arrangement(now.runs, now.peak, sum(problem.seconds[s] for s in again), len(again))


def _reordered(problem: ArrangementProblem, now: Timeline, before: Schedule) -> tuple[Timeline, Schedule]:
    """The runs in an order of lower peak, if the planner finds one in which each run reads what it read; and the
    planner's schedule. Blocks that are as in the schedule `before` are not ordered again."""
    numbers = {key: i for i, key in enumerate(now.events)}
    current: dict[int, int] = {}
    steps: list[PlannedStep] = []
    for at, s in enumerate(now.runs):
        reads = {v: numbers[v, current[v]] for v in problem.reads[s]}
        writes = {v: numbers[v, at] for v in problem.program.steps[s].writes}
        pairs = tuple((writes[w], reads[r]) for w, r in problem.pairs[s] if r in reads)
        steps.append(PlannedStep(tuple(reads.values()), tuple(writes.values()), problem.inside[s], pairs))
        current |= dict.fromkeys(writes, at)
    sizes = {i: problem.sizes[v] for (v, _), i in numbers.items()}
    results = frozenset(numbers[v, current[v]] for v in problem.results if v in current)
    schedule = before.changed(steps, sizes, results)
    made: dict[int, int] = {}
    for place in schedule.order:
        s = now.runs[place]
        if any(made.get(v) != i for v, i in zip(problem.reads[s], steps[place].reads, strict=True)):
            return now, schedule
        made |= zip(problem.program.steps[s].writes, steps[place].writes, strict=True)
    then = problem.timeline([now.runs[place] for place in schedule.order])
    return (then if then.peak < now.peak else now), schedule


def _lowered(problem: ArrangementProblem, now: Timeline, limit: int, is_over: Callable[[], bool]) -> Timeline:
    """`now` with runs added until nothing is above the limit, or until no run lowers the bytes above it. The timeline
    of lowest peak on the way."""
    least = now
    for _ in range(_MOST_RUNS):
        excess = now.excess(limit)
        if not excess or is_over():
            break
        best: tuple[float, Timeline] | None = None
        for place, more in _proposals(problem, now, limit):
            then = problem.timeline((*now.runs[:place], *more, *now.runs[place:]))
            gain = (excess - then.excess(limit)) / max(sum(problem.seconds[s] for s in more), _LEAST_SECONDS)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, then
        if best is None:
            break
        now = best[1]
        least = min(now, least, key=lambda t: t.peak)
    return least


def _proposals(problem: ArrangementProblem, now: Timeline, limit: int) -> list[tuple[int, tuple[int, ...]]]:
    """The most promising runs to add: before which run, and the steps."""
    above = [0]  # how many of the first runs are above the limit
    for n in now.needed:
        above.append(above[-1] + (n > limit))
    versions: dict[int, list[int]] = {}
    for v, made in now.events:
        versions.setdefault(v, []).append(made)

    def version(v: int, place: int) -> int:
        """The run that made the value `v` as the run at `place` reads it."""
        return max(m for m in versions[v] if m < place)

    def freed(v: int, place: int) -> int:
        """Bytes above the limit that are saved if the value is made again before `place`: between its last event before
        and that."""
        ends = now.events[v, version(v, place)]
        if ends[-1] < place:
            return 0
        before = max(e for e in ends if e < place)
        return problem.sizes[v] * (above[place] - above[before + 1])

    def steps(v: int, place: int, depth: int, found: dict[int, None]) -> int | None:
        """Adds the steps that make `v` again at `place`; returns the bytes that longer lives of operands cost, or None
        if a step may not run again."""
        s = problem.writer[v]
        if s in found:
            return 0
        if not problem.may_run_again(s):
            return None
        cost = 0
        for u in problem.reads[s]:
            end = now.events[u, version(u, place)][-1]
            if end >= place or problem.writer[u] in found:
                continue
            deeper = steps(u, place, depth - 1, found) if depth else None
            cost += problem.sizes[u] * (above[place] - above[end + 1]) if deeper is None else deeper
        found[s] = None
        return cost

    scored: dict[tuple[int, tuple[int, ...]], float] = {}
    for (v, _), events in now.events.items():
        if v in problem.results:
            continue
        for before, place in zip(events, events[1:], strict=False):
            if above[place] == above[before + 1]:
                continue
            for depth in _DEPTHS:
                found: dict[int, None] = {}
                cost = steps(v, place, depth, found)
                if cost is None:
                    break
                key = place, tuple(found)
                if key in scored:
                    break  # going back further changes nothing
                made = {w for s in found for w in problem.program.steps[s].writes if problem.sizes[w]}
                saved = sum(freed(w, place) for w in made) - cost
                if saved > 0:
                    scored[key] = saved / max(sum(problem.seconds[s] for s in found), _LEAST_SECONDS)
    return sorted(scored, key=lambda k: (-scored[k], k))[:_EXACTLY]


def _without_needless(problem: ArrangementProblem, now: Timeline, limit: int) -> Timeline:
    """The runs without those that are not needed to keep the limit, dearest first."""
    seen: set[int] = set()
    again: list[tuple[int, int]] = []  # step, and which run of it
    counts: dict[int, int] = {}
    for s in now.runs:
        counts[s] = counts.get(s, 0) + 1
        if s in seen:
            again.append((s, counts[s]))
        seen.add(s)
    for s, which in sorted(again, key=lambda x: (-problem.seconds[x[0]], -x[1])):
        places = [i for i, r in enumerate(now.runs) if r == s]
        if which > len(places):
            continue
        place = places[which - 1]
        then = problem.timeline((*now.runs[:place], *now.runs[place + 1 :]))
        if then.peak <= limit:
            now = then
    return now
