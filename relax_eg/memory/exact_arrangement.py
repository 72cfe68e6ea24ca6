"""The arrangement that takes least time within a limit of bytes, for programs of few steps: an integer program.

The steps run for the first time in a given order. Stage t ends with the first run of the t-th step, before which steps
of earlier stages may run again, in the same order. So a run is a stage and a step, and the runs of all stages, whether
they take place or not, are one sequence. A value is in memory at a run if it was at the run before, or is made by this
one; it is there at the runs that make and read it. At no run do the values in memory, and what the step needs beside
them, take more than the limit. Once it is known which runs take place, the linear program decides when values are in
memory, so only runs have columns that take integers.

The formulation is that of Checkmate (Jain et al., MLSys 2020), with the presence of values in place of their ends.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.integer_program import LinearProgram, branch, relaxation
from relax_eg.memory.rematerialization import Arrangement, ArrangementProblem

MOST_STEPS = 26  # limit: steps of a program that is arranged exactly, because columns grow with their cube
_SCALE = 1e3  # chosen: the seconds of all steps in the units that HiGHS gets, because its tolerances are absolute
_GAP = 1e-3  # chosen: gap between the time and its lower bound, as a share of the time, at which the search ends
_NODES = 500  # limit: nodes of the search
_BETTER = 1e-3  # chosen: share of the added time by which a better arrangement is faster

Run = tuple[int, int]  # a stage and a place in the order: that of the stage if the step runs for the first time


def arrange_exactly(problem: ArrangementProblem, known: Arrangement, limit: int, seconds: float) -> Arrangement:
    """The arrangement that takes least time of those that need at most `limit` bytes and run each step for the first
    time in the order of `known`; `known` if it is as good, or if none is found within the `seconds`.

    Programs of more than `MOST_STEPS` steps, and those that keep values on the host, are not arranged exactly.
    """
    order = tuple(dict.fromkeys(known.runs))
    if len(order) > MOST_STEPS or problem.kept or seconds <= 0.0 or (known.peak <= limit and known.seconds <= 0.0):
        return known
    program = _Program(problem, order, limit)
    if program.least > limit:
        return known
    runs = program.solved(known, seconds)
    if runs is None:
        return known
    found = problem.arrangement(problem.timeline(runs))
    is_better = known.peak > limit or found.seconds < known.seconds
    return found if found.peak <= limit and is_better else known


@dataclass
class _Program(LinearProgram):
    """The integer program.

    - `order`: the steps in the order of their first runs.
    - `limit`: bytes.
    - `runs`: the column of each run.
    - `present`: for each value, the column that says whether it is in memory at a run.
    - `last`: for each place in the order, the last stage in which the step may have a use.
    - `always`: bytes of results that have memory of their own from the start; they are not among the other values.
    - `writer`, `readers`: for each value, the places in the order of the step that makes it and of those that read it.
    """

    problem: ArrangementProblem
    order: Sequence[int]
    limit: int
    runs: dict[Run, int] = field(default_factory=dict[Run, int])
    present: dict[int, dict[Run, int]] = field(default_factory=dict[int, dict[Run, int]])
    last: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        super().__init__()
        p, order = self.problem, self.order
        place = {s: i for i, s in enumerate(order)}
        apart = p.results if p.results_apart else set[int]()
        self.always = sum(p.sizes[v] for v in apart if v in p.writer)
        self.writer = {v: place[s] for v, s in p.writer.items() if p.sizes[v] and v not in apart}
        self.readers: dict[int, list[int]] = {v: [] for v in self.writer}
        for i, s in enumerate(order):
            for v in p.reads[s]:
                if v in self.readers:
                    self.readers[v].append(i)

    @property
    def least(self) -> int:
        """Bytes that a step needs, in whatever order: its operands and results, and what is inside of it."""
        p = self.problem

        def of(s: int) -> int:
            ours = {v for v in (*p.reads[s], *p.writes[s]) if v in self.writer}
            return sum(p.sizes[v] for v in ours) + p.inside[s] - sum(p.sizes[w] for w, _ in p.pairs[s])

        return self.always + max(map(of, self.order), default=0)

    def solved(self, known: Arrangement, seconds: float) -> tuple[int, ...] | None:
        """The steps in the order in which they run; None if no arrangement better than `known` was found."""
        deadline = time.monotonic() + seconds
        self._add_runs()
        for v in self.writer:
            self._add_value(v)
        for run, then in itertools.zip_longest(self.runs, [*self.runs][1:]):
            self._add_bytes(run, then)
        unit = sum(self.problem.seconds[s] for s in self.order) / _SCALE
        self.costs = [x / unit for x in self.costs]
        # HiGHS 1.16 may return a known solution that it is given in place of the better one that it found.
        if known.peak <= self.limit:
            self._row({c: x for c, x in enumerate(self.costs) if x}, (1 - _BETTER) * known.seconds / unit)
        columns = [c for (stage, i), c in self.runs.items() if i < stage]
        found = branch(relaxation(self), columns, None, _GAP, _NODES, deadline)
        if found.values is None:
            return None
        return tuple(self.order[i] for (_, i), c in self.runs.items() if found.values[c] > 0.5)

    def _row(self, entry: Mapping[int, float], high: float, low: float = -math.inf) -> None:
        self.row(entry.keys(), entry.values(), low, high)

    def _add_runs(self) -> None:
        """A column for each run. A step runs again only while a later step may need it."""
        p, n = self.problem, len(self.order)
        self.last = [0] * n
        for i in reversed(range(n)):
            made = [v for v in p.writes[self.order[i]] if v in self.writer]
            uses = [max(r, self.last[r]) for v in made for r in self.readers[v]]
            self.last[i] = n - 1 if p.results.intersection(made) else max(uses, default=0)
        for stage in range(n):
            for i in range(stage + 1):
                step = self.order[i]
                if i == stage:
                    self.runs[stage, i] = self.column()
                    self._row({self.runs[stage, i]: 1.0}, 1.0, 1.0)
                elif stage <= self.last[i] and p.may_run_again(step):
                    self.runs[stage, i] = self.column(p.seconds[step])

    def _add_value(self, v: int) -> None:
        """The columns of a value: at a run it is in memory if the run makes or reads it, and only if it was there at
        the run before, or the run makes it."""
        first, end = self.writer[v], max((max(r, self.last[r]) for r in self.readers[v]), default=0)
        is_result, before = v in self.problem.results, -1
        end = len(self.order) - 1 if is_result else max(end, first)
        columns = self.present[v] = {}
        for (stage, i), run in self.runs.items():
            if not first <= stage <= end or (stage == first and i < first):
                continue
            here = columns[stage, i] = self.column()
            kept = {here: 1.0} if before < 0 else {here: 1.0, before: -1.0}
            if i == first:
                kept[run] = -1.0
            if i == first or i in self.readers[v]:
                self._row({run: 1.0, here: -1.0}, 0.0)
            self._row(kept, 0.0)
            before = here
        if is_result:
            self._row({before: 1.0}, 1.0, 1.0)

    def _add_bytes(self, at: Run, then: Run | None) -> None:
        """The bytes at a run are at most the limit. `then`: the run after it, until which an operand may end in whose
        place an output is computed."""
        p, step = self.problem, self.order[at[1]]
        entry = {columns[at]: float(p.sizes[v]) for v, columns in self.present.items() if at in columns}
        if p.inside[step]:
            entry[self.runs[at]] = float(p.inside[step])
        taken: dict[int, list[int]] = {}
        for written, read in p.pairs[step]:
            if written not in self.writer or read not in self.writer or (then is None and read in p.results):
                continue
            in_place = self.column()
            entry[in_place] = -float(p.sizes[written])
            self._row({in_place: 1.0, self.runs[at]: -1.0}, 0.0)
            if then is not None and then in self.present[read]:
                self._row({in_place: 1.0, self.present[read][then]: 1.0}, 1.0)
            for v in (written, read):
                taken.setdefault(v, []).append(in_place)
        for columns in taken.values():
            if len(columns) > 1:
                self._row(dict.fromkeys(columns, 1.0), 1.0)
        unit = float(max(self.limit, 1))
        self._row({c: x / unit for c, x in entry.items() if x}, (self.limit - self.always) / unit)
