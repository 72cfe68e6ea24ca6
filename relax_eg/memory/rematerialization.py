"""Which values a program computes again or keeps on the host where they are read late, so that it keeps within a limit
of bytes.

An order of the steps may contain a step several times. A read is of what the latest run of the writing step made, so a
step that runs again frees its results between their last read before that and the second run. Two steps that the
program does not have copy a value to the memory of the host and back: the first has run when the copy is complete, and
the second begins another copy. Steps are added a few runs at a time: of the values that are alive across a place above
the limit, that one is computed again, alone or with the values that it is computed from, or kept on the host, which
saves most bytes for each second that it takes. Runs that turn out not to be needed are taken away at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_DPS_LIBRARY
from relax_eg.memory.liveness import candidates, live_totals
from relax_eg.memory.program import MemoryProgram, leaves
from relax_eg.memory.schedule import PlannedStep, Schedule, planned_bytes
from relax_eg.ops.transfers import Engine, last_end
from relax_eg.traversal import grouped

_DEPTHS = (0, 1, 2, 3, 5, 8, 13)  # chosen: how far back values are computed again, in steps
_LOWER = 0.9  # chosen: the peak is lowered by that share at a time
_SHORT = 256  # limit: steps of a program whose peak is also lowered at once
_EXACTLY = 12  # limit: runs whose effect is determined exactly before one is added
_MOST_RUNS = 400  # limit: rounds in which runs are added
_LEAST_KEPT = 1 << 20  # chosen: bytes; smaller values are not kept on the host
_AS_LONG = 1 + 1e-9  # chosen: times that differ by less are equal
_LEAST_SECONDS = 1e-9  # chosen: seconds; the price of a run is at least that


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The runs of the steps of a program, in order.

    - `runs`: the number of the step of each run.
    - `peak`: the most bytes alive at once.
    - `seconds`: what a call takes longer than with each step once.
    - `again`: the number of steps that run after their first time.
    - `kept`: the values that are kept on the host.
    """

    runs: tuple[int, ...]
    peak: int
    seconds: float = 0.0
    again: int = 0
    kept: tuple[int, ...] = ()


@dataclass
class ArrangementProblem:
    """A program whose steps may run several times.

    - `program`: the program.
    - `seconds`: what each step takes.
    - `sizes`: the bytes of each value; 0 for arguments and constants.
    - `inside`: the bytes that each step needs beside its operands and results.
    - `results_apart`: whether results have memory of their own from the start, as those of an XLA program have.
    - `host_rate`: bytes/s of the link to the host, in each direction; 0: no value is kept there.

    Behind the steps of the program there are two for each value that may be kept on the host (`kept`, by the first of
    these steps), with a further value: its copy, which takes no memory here.
    """

    program: MemoryProgram
    seconds: Sequence[float]
    sizes: Sequence[int]
    inside: list[int]
    results_apart: bool = False
    host_rate: float = 0.0
    kept: dict[int, int] = field(init=False, default_factory=dict[int, int])
    reads: list[tuple[int, ...]] = field(init=False)
    writes: list[tuple[int, ...]] = field(init=False)
    pairs: list[list[tuple[int, int]]] = field(init=False)

    @staticmethod
    def of(
        program: MemoryProgram, at: Mapping[str, int], seconds: Sequence[float], apart: bool, host_rate: float = 0.0
    ) -> ArrangementProblem:
        sizes = planned_bytes(program, at)
        inside = [sum(sizes[v] for v in s.workspaces) for s in program.steps]
        return ArrangementProblem(program, seconds, sizes, inside, apart, host_rate)

    def __post_init__(self) -> None:
        steps = self.program.steps
        self.reads = [tuple(v for v in s.reads if self.sizes[v]) for s in steps]
        self.writes = [s.writes for s in steps]
        self.pairs = [candidates(self.program, s) for s in steps]
        self.results = {v for v in leaves(self.program.result) if self.sizes[v]}
        self.writer = {v: s.number for s in steps for v in s.writes}
        self.seconds, self.sizes = [*self.seconds], [*self.sizes]
        for s in steps if self.host_rate else ():
            if len(s.writes) == 1 and isinstance(s.kernel.annotation, Tensor) and s.writes[0] not in self.results:
                (v,) = s.writes
                if self.sizes[v] >= _LEAST_KEPT:
                    self.kept[len(self.reads)] = v
                    self.reads += [(v,), (len(self.sizes),)]
                    self.writes += [(len(self.sizes),), (v,)]
                    self.pairs += [[], []]
                    self.seconds += [0.0, 0.0]
                    self.inside += [0, 0]
                    self.sizes.append(0)
        self.first_copy = {v: s for s, v in self.kept.items()}

    def is_own(self, step: int) -> bool:
        """Whether a step is one of the program, not a copy."""
        return step < len(self.program.steps)

    def transfer(self, v: int) -> float:
        """Seconds in which a value is copied to the host or back."""
        return self.sizes[v] / self.host_rate

    def tasks(self, runs: Sequence[int]) -> Iterator[tuple[Engine | None, float, list[int]]]:
        """What the runs take of the device and of the link to the host (`ops.transfers.last_end`): a copy to the host
        begins when its value exists, and is complete before the next run begins; a copy back begins after the run
        before it."""
        made: dict[int, int] = {}
        sent: list[int] = []
        for at, s in enumerate(runs):
            needs = [made[v] for v in self.reads[s]]
            if self.is_own(s):
                yield "compute", self.seconds[s], needs + sent
                sent = []
            elif s in self.kept:
                yield "to host", self.transfer(self.kept[s]), needs
                sent.append(at)
            else:
                yield "from host", self.transfer(self.kept[s - 1]), needs + [at - 1] * (at > 0)
            made |= dict.fromkeys(self.writes[s], at)

    def timeline(self, runs: Sequence[int]) -> Timeline:
        """What is alive while the steps run in this order."""
        events: dict[tuple[int, int], list[int]] = {}
        current: dict[int, int] = {}
        for at, s in enumerate(runs):
            for v in self.reads[s]:
                events[v, current[v]].append(at)
            for v in self.writes[s]:
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
            for v in self.writes[s]:
                current[v] = at
        return Timeline(self, tuple(runs), needed, events)

    def arrangement(self, timeline: Timeline) -> Arrangement:
        """An order of runs with what it takes."""
        own = [s for s in timeline.runs if self.is_own(s)]
        kept = tuple(self.kept[s] for s in timeline.runs if s in self.kept)
        longer = timeline.seconds - sum(self.seconds[s] for s in set(own))
        return Arrangement(timeline.runs, timeline.peak, longer, len(own) - len(set(own)), kept)

    def may_run_again(self, step: int) -> bool:
        """Whether a step may run twice. What a library call does is not known, so it may not."""
        return self.is_own(step) and self.program.steps[step].kernel.op != CALL_DPS_LIBRARY


@dataclass(frozen=True)
class Timeline:
    """What is alive in an order of runs.

    - `problem`: the program.
    - `runs`: the order.
    - `needed`: the bytes that are needed while each run is under way.
    - `events`: for each value and the run that made it, that run and those that read it. The number of all runs stands
      for the reader of a result.
    """

    problem: ArrangementProblem
    runs: tuple[int, ...]
    needed: list[int]
    events: Mapping[tuple[int, int], list[int]]

    @property
    def peak(self) -> int:
        return max(self.needed, default=0)

    @cached_property
    def seconds(self) -> float:
        """What all runs take, and what they wait for copies."""
        if not self.problem.kept:
            return sum(self.problem.seconds[s] for s in self.runs)
        return last_end(self.problem.tasks(self.runs))

    def excess(self, limit: int) -> int:
        """The bytes above a limit, summed over the runs."""
        return sum(n - limit for n in self.needed if n > limit)


def arrange(
    problem: ArrangementProblem, order: Sequence[int], limit: int, is_over: Callable[[], bool] = lambda: False
) -> Arrangement:
    """Runs of the steps in `order`, with others between them, that need at most `limit` bytes if such are found, and
    otherwise as few as were found. `is_over`: whether no time is left to look for more.

    The peak is lowered little by little, and in short programs also to the limit at once: either may take less time."""
    as_it_is = problem.timeline(order)
    shares = (_LOWER, 0.0) if len(order) <= _SHORT and as_it_is.peak > limit else (_LOWER,)
    found = [_lowered_by(share, problem, as_it_is, limit, is_over) for share in shares]
    return problem.arrangement(min(found, key=lambda t: (max(t.peak, limit), t.seconds)))


def _lowered_by(
    share: float, problem: ArrangementProblem, now: Timeline, limit: int, is_over: Callable[[], bool]
) -> Timeline:
    """`now` with runs added, first as many as lower its peak to that share of it, and so on."""
    schedule = Schedule((), {}, frozenset())
    while now.peak > limit and not is_over():
        then = _lowered(problem, now, max(limit, int(share * now.peak)), is_over)
        then, schedule = _reordered(problem, then, schedule)
        if then.peak >= now.peak:
            break
        now = then
    return _without_needless(problem, now, max(limit, now.peak))


def _reordered(problem: ArrangementProblem, now: Timeline, before: Schedule) -> tuple[Timeline, Schedule]:
    """The runs in an order of lower peak, if the planner finds one in which each run reads what it read; and the
    planner's schedule. Blocks that are as in the schedule `before` are not ordered again."""
    numbers = {key: i for i, key in enumerate(now.events)}
    current: dict[int, int] = {}
    steps: list[PlannedStep] = []
    for at, s in enumerate(now.runs):
        reads = {v: numbers[v, current[v]] for v in problem.reads[s]}
        writes = {v: numbers[v, at] for v in problem.writes[s]}
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
        made |= zip(problem.writes[s], steps[place].writes, strict=True)
    then = problem.timeline([now.runs[place] for place in schedule.order])
    is_better = then.peak < now.peak and (not problem.kept or then.seconds <= now.seconds * _AS_LONG)
    return (then if is_better else now), schedule


def _lowered(problem: ArrangementProblem, now: Timeline, limit: int, is_over: Callable[[], bool]) -> Timeline:
    """`now` with runs added until nothing is above the limit, or until no run lowers the bytes above it. The timeline
    of lowest peak on the way."""
    least = now
    for _ in range(_MOST_RUNS):
        excess = now.excess(limit)
        if not excess or is_over():
            break
        best: tuple[float, Timeline] | None = None
        for more in _proposals(problem, now, limit):
            then = problem.timeline(_with_runs(now.runs, more))
            gain = (excess - then.excess(limit)) / max(then.seconds - now.seconds, _LEAST_SECONDS)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, then
        if best is None:
            break
        now = best[1]
        least = min(now, least, key=lambda t: t.peak)
    return least


Added = tuple[tuple[int, tuple[int, ...]], ...]  # runs to add: before which run, and the steps


def _with_runs(runs: tuple[int, ...], more: Added) -> tuple[int, ...]:
    """`runs` with others between them."""
    for place, steps in reversed(more):
        runs = (*runs[:place], *steps, *runs[place:])
    return runs


def _proposals(problem: ArrangementProblem, now: Timeline, limit: int) -> list[Added]:
    """The most promising runs to add."""
    above = [0]  # how many of the first runs are above the limit
    for n in now.needed:
        above.append(above[-1] + (n > limit))
    versions = grouped(now.events)

    def version(v: int, place: int) -> int:
        """The run that made the value `v` as the run at `place` reads it."""
        return max(m for m in versions[v] if m < place)

    sent = {problem.kept[s]: at for at, s in enumerate(now.runs) if s in problem.kept}
    clock = [0.0, *accumulate(problem.seconds[s] for s in now.runs)] if problem.kept else []

    def on_host(v: int, made: int, before: int, place: int) -> Iterator[tuple[Added, float]]:
        """Ways to keep a value, which the run `made` makes, on the host between its reads `before` and `place`: at
        once, or for as long as the runs beside the copies hide these. Each with the bytes above the limit that it saves
        for each second of the copies that is not hidden, about."""
        copy, takes = problem.first_copy[v], problem.transfer(v)
        gone = max(before + 1, bisect_left(clock, clock[made + 1] + takes))
        back = min(place, bisect_right(clock, clock[place] - takes) - 1)
        for leave, arrive in sorted({(before + 1, place), (gone, back), (before + 1, back), (gone, place)}):
            leave = before + 1 if v in sent else leave
            if leave > arrive or sent.get(v, leave - 1) >= leave:
                continue
            saved = problem.sizes[v] * (above[arrive] - above[leave])
            late = max(0.0, clock[made + 1] + takes - clock[leave]) * (v not in sent)
            late += max(0.0, takes - (clock[place] - clock[arrive]))
            if saved > 0:
                more: Added = ((arrive, (copy + 1,)),)
                yield more if v in sent else ((leave, (copy,)), *more), saved / max(late, _LEAST_SECONDS)

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
        if not problem.may_run_again(s) or any(u in sent for u in problem.writes[s]):
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

    scored: dict[Added, float] = {}
    for (v, first), events in now.events.items():
        if v in problem.results or v not in problem.writer:
            continue
        for before, place in zip(events, events[1:], strict=False):
            if above[place] == above[before + 1]:
                continue
            if v in problem.first_copy:
                scored |= on_host(v, first, before, place)
            for depth in _DEPTHS:
                found: dict[int, None] = {}
                cost = steps(v, place, depth, found)
                if cost is None:
                    break
                key: Added = ((place, tuple(found)),)
                if key in scored:
                    break  # going back further changes nothing
                made = {w for s in found for w in problem.writes[s] if problem.sizes[w]}
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
        if s in seen or s - 1 in problem.kept:
            again.append((s, counts[s]))
        seen.add(s)
    for s, which in sorted(again, key=lambda x: (-_saved_by_leaving(problem, x[0]), -x[1])):
        places = [i for i, r in enumerate(now.runs) if r == s]
        if which > len(places):
            continue
        left = {places[which - 1]}
        if not problem.is_own(s) and len(places) == 1:
            left.add(now.runs.index(s - 1))  # nothing reads the copy
        then = problem.timeline([r for i, r in enumerate(now.runs) if i not in left])
        if then.peak <= limit:
            now = then
    return now


def _saved_by_leaving(problem: ArrangementProblem, step: int) -> float:
    """About the seconds that a run of a step takes."""
    return problem.seconds[step] if problem.is_own(step) else problem.transfer(problem.kept[step - 1])
