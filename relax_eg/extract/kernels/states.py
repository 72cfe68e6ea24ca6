"""Kernel candidates: for every value, the ways to compute it inside a kernel from loaded operands, built bottom-up.

A *state* of a value consists of the classes that a kernel loads, the operators that it contains, and the phase that it
has reached. A kernel has an outer domain: axes that all values kept inside share, so that each point of the domain is
computed independently. *Pointwise* values, which are functions of single elements, are computed where they are read.
Reductions and contractions are *staged*: their values are kept inside for one outer point and read there.
`StateTable._advance` decides which stage may follow which:

- a reduction may follow reductions (softmax, norms), and so may one contraction that sums over the reduced values;
- a contraction's value is read at the point where it was written; a reduction over it makes its columns inner axes;
- after such a reduction a second contraction may follow (attention), and after that pointwise stages only;
- the values kept for one outer point must fit into memory near a core.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.dtypes import itemsize
from relax_eg.extract.access import FREE, Reading, StageAccess, StageKind
from relax_eg.extract.costs.operator_cost import Effort
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.anchors import NO_ANCHOR, Anchor, Anchors, merge_anchors, part_of
from relax_eg.extract.kernels.cost import ContractionCost, KernelCost, served_badly
from relax_eg.extract.kernels.operations import Operation
from relax_eg.ir.expr import CONSTANT, VAR
from relax_eg.traversal import operands_first

LOCAL_BYTES = 1 << 19  # chosen: bytes that a kernel may keep for one outer point
KEPT = 5  # limit: states kept per value and phase, besides the smallest state and the deepest one
MOST_MEMBERS = 64  # limit: operators of a kernel
OVERSIZED = 3000  # limit: candidates of a graph beyond which only the program as written and the best algebra are fused
_TILE = 256  # chosen: columns of a contraction computed at once; a prologue is repeated for each such block
_PARTIAL = 24  # limit: combinations of the states of the first operands that are combined with the next operand

INLINE_ELEMENTWISE = "inline_elementwise"
INLINE_PROLOGUE = "inline_prologue"
INLINE_EPILOGUE = "inline_epilogue"
FUSE_STAGES = "fuse_stages"

# Phases of a state.
POINTWISE, REDUCED, CONTRACTED, REDUCED_AFTER, CLOSED = range(5)
_AFTER_REDUCTION = {POINTWISE: REDUCED, REDUCED: REDUCED, CONTRACTED: REDUCED_AFTER, REDUCED_AFTER: REDUCED_AFTER}
_AFTER_CONTRACTION = {POINTWISE: CONTRACTED, REDUCED: CONTRACTED, REDUCED_AFTER: CLOSED}

Stage = tuple[int, int, int]  # a class, the number of a candidate, and that of a stage of its program
# For each staged value, by its axes: the axis of the present value that it became; () if only the flat order is left.
Marks = Mapping[Stage, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Local:
    """The position of a value inside a kernel.

    - `phase`: the phase that it has reached.
    - `anchors`: the contractions so far.
    - `outer`: its outer axes.
    - `marks`: the staged values, and how their axes map to its own.
    - `flat`: whether of a staged value only the flat order is left, after which fewer stages may follow.
    """

    phase: int
    anchors: frozenset[Stage]
    outer: frozenset[int]
    marks: Marks
    flat: bool


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A way to compute a value inside a kernel.

    - `loads`: the classes that are read from memory, with their bytes.
    - `members`: the candidate of each class that is computed inside.
    - `anchors`: the contractions among the members.
    - `contracting`, `other`: seconds of contractions and of other arithmetic.
    - `repeated`: additional seconds of repeated arithmetic, which are not in `other`.
    - `local`: the position of the value.
    - `moves`: whether the members only move elements.
    - `kernel_seconds`: seconds of the kernel that stores the value.
    - `computed_loads`: the number of loaded values that another kernel has to compute.
    """

    loads: Mapping[int, int]
    members: Mapping[int, int]
    anchors: Anchors
    contracting: float
    other: float
    repeated: float
    local: Local
    moves: bool
    kernel_seconds: float
    computed_loads: int

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(self.loads)

    def kernel(self, c: int) -> Kernel:
        """The kernel that stores the value of this state, which is of class `c`."""
        return Kernel((c,), self.loads, self.members, self.anchors, self.other + self.repeated)


def joined_states(states: Iterable[State]) -> tuple[dict[int, int], dict[int, int]] | None:
    """The loads and members of several states together; None if they compute a class in two ways."""
    loads: dict[int, int] = {}
    members: dict[int, int] = {}
    for s in states:
        for x, n in s.loads.items():
            loads[x] = max(loads.get(x, 0), n)
        if any(members.setdefault(x, way) != way for x, way in s.members.items()):
            return None
    return loads, members


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, of one output or of several.

    - `outputs`: the classes that it stores.
    - `loads`, `members`, `anchors`: as in `State`.
    - `other`: seconds of arithmetic besides contractions, repeated arithmetic included.
    """

    outputs: tuple[int, ...]
    loads: Mapping[int, int]
    members: Mapping[int, int]
    anchors: Anchors
    other: float


class StateTable:
    """The states of all classes of a graph.

    - `model`: the cost model that prices states.
    - `steps`: the names of the allowed fusion steps.
    - `waits`: that of the model when the table was made; all states are priced with it.
    - `operations`: the candidates of which states were made, or may be.
    - `bytes[c]`: the bytes of the value of class `c`.
    - `states[c]`: the states of class `c`, made by `fill`.
    - `prices[c]`: the price of having class `c` in memory, set by `fill`.
    """

    def __init__(self, graph: ExtractionGraph, model: KernelCost, steps: frozenset[str]) -> None:
        self.graph = graph
        self.model = model
        self.waits = model.waits
        self.steps = steps
        self.operations: dict[tuple[int, int], Operation] = {}
        self.bytes = [model.bytes(a) for a in graph.annotations]
        self._is_input = [any(k.op in (VAR, CONSTANT) for k in row) for row in graph.candidates]
        # For each staged value: its extents, and the bytes of an element.
        self._shapes: dict[Stage, tuple[tuple[int, ...], int]] = {}
        # By (class, reading class, candidate): the bytes of the class that the candidate reads.
        self._read_sizes: dict[tuple[int, int, int], int] = {}
        # By operator: the results of `_sizes_of`.
        self._sizes: dict[tuple[int, int], list[tuple[tuple[int, ...], list[float]]]] = {}
        self._placements: dict[tuple[int, int, tuple[State | None, ...]], State | None] = {}  # independent of prices
        # The results of `_estimate` at the present prices.
        self._estimates: dict[State, float] = {}
        self.states: list[list[State]] = []
        self.prices: Sequence[float] = ()

    def fill(
        self,
        order: Iterable[int],
        ways: Sequence[Sequence[int]],
        prices: Sequence[float],
        operations: Mapping[tuple[int, int], Operation],
    ) -> None:
        """Makes the states of the classes in `order` from those of the candidates `ways[c]` that are among
        `operations`. In `order`, operands come before their readers as far as cycles allow."""
        self.prices, self._estimates = prices, {}
        self.states = [[] for _ in self.graph.candidates]
        for c in order:
            found: list[State] = []
            for k in ways[c]:
                operation = operations.get((c, k))
                if operation is not None:
                    found += self._of_candidate(c, k, operation)
            self.states[c] = self._prune_states(found)

    def single_operator_state(self, c: int, k: int) -> State | None:
        """The state of the kernel that contains this candidate only; None if the candidate is no kernel."""
        operation = self.operations[c, k]
        children = self.graph.candidates[c][k].children
        return self._state_of(c, k, operation, dict.fromkeys(children))

    def seconds(self, kernel: Kernel, model: KernelCost) -> float:
        """Seconds of a kernel by `model`."""
        outputs, loads, members, anchors = kernel.outputs, kernel.loads, kernel.members, kernel.anchors
        single = len(outputs) == 1 and self._triton(members)
        if model is self.model:
            moved = sum(loads.values()) + sum(self.bytes[c] for c in outputs)
            return model.kernel(self._contractions(members, anchors), kernel.other, moved, single)
        efforts = {x: self._effort(x, k, model) for x, k in members.items()}
        sizes = {x: model.bytes(self.graph.annotations[x]) for x in (*loads, *members)}
        parts = [part_of(efforts[x], x, anchors.get(x, NO_ANCHOR), sizes) for x in members]
        moved = sum(sizes[x] for x in (*loads, *outputs))
        return model.kernel(parts, sum(e.other for e in efforts.values()), moved, single)

    def private_bytes(self, kernel: Kernel) -> int:
        """An estimate of the bytes that only a kernel's executable has in memory: its members that are not outputs and
        are contractions or are read more than once. A kernel through Pallas has none."""
        outputs, members = kernel.outputs, kernel.members
        if len(outputs) == 1 and self._triton(members) and served_badly(self._contractions(members, kernel.anchors)):
            return 0
        reads: Counter[int] = Counter()
        for x, k in members.items():
            reads.update(self.graph.candidates[x][k].children)
        kept = {
            x for x, k in members.items()
            if x not in outputs and (reads[x] > 1 or self.operations[x, k].effort.contracting > 0)
        }  # fmt: skip
        for x in sorted(kept):  # written over an operand that nothing else reads
            kept -= {y for y in self.graph.candidates[x][members[x]].children if reads[y] == 1}
        return sum(self.bytes[x] for x in kept)

    def _triton(self, members: Mapping[int, int]) -> bool:
        """Whether a kernel may go through Pallas: on a GPU, if Triton compiles all its members."""
        return self.model.profile.pallas and all(self.operations[x, k].triton for x, k in members.items())

    def _effort(self, c: int, k: int, model: KernelCost) -> Effort:
        return model.effort(self.graph.candidates[c][k].op, self.operations[c, k].placed)

    def _contractions(self, members: Mapping[int, int], anchors: Anchors) -> list[ContractionCost]:
        """The contractions of a kernel, priced at the table's binding."""
        return [part_of(self.operations[x, members[x]].effort, x, a, self.bytes) for x, a in anchors.items()]

    def with_inlined_loads(self, c: int, state: State, inside: Mapping[int, State]) -> State | None:
        """The state of class `c` that computes the classes `inside`, which `state` loads, in the kernel; None if that
        is no kernel."""
        env: dict[int, State] = dict(inside)

        def below(x: int) -> Sequence[int]:
            return [y for y in self.graph.candidates[x][state.members[x]].children if y in state.members]

        for x in operands_first((c,), below):
            k = state.members[x]
            children = self.graph.candidates[x][k].children
            made = self._state_of(x, k, self.operations[x, k], {y: env.get(y) for y in children})
            if made is None:
                return None
            env[x] = made
        return env[c]

    def _of_candidate(self, c: int, k: int, operation: Operation) -> list[State]:
        children = list(dict.fromkeys(self.graph.candidates[c][k].children))
        partial: list[tuple[float, dict[int, State | None]]] = [(0.0, {})]
        for child in children:
            apart = [s for s in self.states[child] if c not in s.members and c not in s.loads]
            options: list[tuple[State | None, float]] = [(None, self.prices[child])]
            options += [(s, self._estimate(s)) for s in apart]
            grown = [(cost + price, chosen, s) for cost, chosen in partial for s, price in options]
            # The combination that loads all operands stays.
            loaded = next(g for g in grown if g[2] is None and not any(g[1].values()))
            grown.sort(key=lambda g: g[0])
            kept = grown[:_PARTIAL]
            kept += [] if any(g is loaded for g in kept) else [loaded]
            partial = [(cost, {**chosen, child: s}) for cost, chosen, s in kept]
        combined = [chosen for _, chosen in partial]
        deepest = {child: self._deepest(child, c) for child in children}
        if deepest not in combined:
            combined.append(deepest)
        made = (self._state_of(c, k, operation, chosen) for chosen in combined)
        return [s for s in made if s is not None]

    def _deepest(self, child: int, reader: int) -> State | None:
        """The state of an operand that loads fewest computed values; None if to load the operand itself is fewer."""
        inside = (s for s in self.states[child] if reader not in s.members and reader not in s.loads)
        best = min(inside, key=lambda s: s.computed_loads, default=None)
        return best if best is not None and best.computed_loads <= (not self._is_input[child]) else None

    def _estimate(self, state: State) -> float:
        """Seconds of the kernel of a state plus the prices of its loads."""
        found = self._estimates.get(state)
        if found is None:
            found = self._estimates[state] = state.kernel_seconds + sum([self.prices[x] for x in state.loads])
        return found

    def _state_of(self, c: int, k: int, operation: Operation, chosen: Mapping[int, State | None]) -> State | None:
        """The state of class `c` with candidate `k`. Each operand is computed in its state in `chosen`, or loaded if
        that is None. None if this is no kernel."""
        key = c, k, tuple(chosen.values())
        if key not in self._placements:
            self._placements[key] = self._compose_state(c, k, operation, chosen)
        return self._placements[key]

    def _compose_state(self, c: int, k: int, operation: Operation, chosen: Mapping[int, State | None]) -> State | None:
        joined = joined_states([s for s in chosen.values() if s is not None])
        if joined is None:
            return None
        loads, members = joined
        for child in (x for x, s in chosen.items() if s is None):
            loads[child] = max(loads.get(child, 0), self._bytes_read(child, c, k))
        members[c] = k
        if len(members) > MOST_MEMBERS or not members.keys().isdisjoint(loads):
            return None
        for x, n in loads.items():
            if n < self.bytes[x]:  # the members may read different parts of it
                parts = ((y, way) for y, way in members.items() if x in self.graph.candidates[y][way].children)
                loads[x] = min(self.bytes[x], sum(self._bytes_read(x, y, way) for y, way in parts))
        children = self.graph.candidates[c][k].children
        names = [b.name for b in operation.placed.program.inputs]
        inside = {name: chosen[child] for name, child in zip(names, children, strict=True)}
        locals_: dict[str, Local | None] = {name: None if s is None else s.local for name, s in inside.items()}
        again = 0.0
        local: Local | None = None
        sizes = self._sizes_of(c, k, operation)
        for n, stage in enumerate(operation.stages):
            extents, each = sizes[n]
            for r, times in zip(stage.readings, each, strict=True):
                s = inside.get(r.buffer)
                if s is not None and s.local.phase == POINTWISE:
                    again += s.repeated * times + s.other * (times - 1)
            local = self._advance((c, k, n), stage, locals_, inside.keys(), operation, extents)
            if local is None:
                return None
            locals_[stage.output.name] = local
        assert local is not None
        efforts = [self.operations[x, way].effort for x, way in members.items()]
        contracting = sum(e.contracting for e in efforts)
        # A value that several operands read is counted once.
        other = sum(e.other for e in efforts)
        staged = sum(s.repeated for s in {id(s): s for s in chosen.values() if s is not None}.values() if s.local.phase)
        moved = sum(loads.values()) + self.bytes[c]
        below = {x: s for x, s in chosen.items() if s is not None}
        anchors = self._anchors(c, operation, below)
        parts = self._contractions(members, anchors)
        repeated = again + staged
        own = self.model.kernel(parts, other + repeated, moved, self._triton(members))
        moves = operation.moves and all(s.moves for s in below.values())
        computed = sum(not self._is_input[x] for x in loads)
        return State(loads, members, anchors, contracting, other, repeated, local, moves, own, computed)

    def _sizes_of(self, c: int, k: int, operation: Operation) -> list[tuple[tuple[int, ...], list[float]]]:
        """For each stage of an operator: the extents of its value, and for each of its readings how often a pointwise
        operand is computed per element."""
        found = self._sizes.get((c, k))
        if found is None:
            operands = {b.name for b in operation.placed.program.inputs}
            found = self._sizes[c, k] = [
                (
                    tuple(self._number(d, operation) for d in stage.output.shape),
                    [self._times(stage, r, operation) if r.buffer in operands else 1.0 for r in stage.readings],
                )
                for stage in operation.stages
            ]
        return found

    def _anchors(self, c: int, operation: Operation, inside: Mapping[int, State]) -> Anchors:
        """The contractions of a kernel whose last operation computes class `c` from the states `inside`."""
        found = merge_anchors(s.anchors for s in inside.values())
        if not operation.moves:
            reduces = any(stage.kind is not StageKind.POINTWISE for stage in operation.stages)
            found = {x: replace(a, read=True, reduced=a.reduced or reduces) for x, a in found.items()}
        if operation.contracts:
            made = {x: s for x, s in inside.items() if not s.moves}
            sources = frozenset(y for s in made.values() for y in s.loads)
            staged = any(s.local.phase != POINTWISE for s in made.values())
            online = any(s.local.phase != POINTWISE and self._exponential(s) for s in made.values())
            found = {**found, c: Anchor(frozenset(made), sources, online, staged)}
        return found

    def _exponential(self, state: State) -> bool:
        return any(self.operations[x, k].exponential for x, k in state.members.items())

    def _bytes_read(self, child: int, c: int, k: int) -> int:
        """Bytes of a loaded operand that an operator reads."""
        found = self._read_sizes.get((child, c, k))
        if found is not None:
            return found
        operation = self.operations[c, k]
        names = [b.name for b in operation.placed.program.inputs]
        mine = {n for n, x in zip(names, self.graph.candidates[c][k].children, strict=True) if x == child}
        whole = self.bytes[child]
        buffer = next(b for b in operation.placed.program.inputs if b.name in mine)
        elements = math.prod(self._number(d, operation) for d in buffer.shape)
        read = 0
        for stage in operation.stages:
            for r in stage.readings:
                if r.buffer in mine:
                    read += math.prod(self._number(d, operation) for d in r.loops)
        found = self._read_sizes[child, c, k] = min(whole, whole * read // elements) if elements else 0
        return found

    def _number(self, d: object, operation: Operation) -> int:
        return self.model.number(d, operation.placed.sizes)  # type: ignore[arg-type]

    def _times(self, stage: StageAccess, r: Reading, operation: Operation) -> float:
        """How often a pointwise operand is computed per element if it is computed where the stage reads it."""
        buffer = next(b for b in operation.placed.program.buffers.values() if b.name == r.buffer)
        elements = math.prod(self._number(d, operation) for d in buffer.shape)
        points = math.prod(self._number(d, operation) for d in r.loops)
        times = 1.0 if r.injective else max(1.0, points / max(1, elements))
        # Without a `fused_share` the operand is stored before the matmul.
        if stage.kind is StageKind.CONTRACTION and self.model.profile.fused_share:
            others = (d for y, d in enumerate(stage.output.shape) if y not in r.axes)
            times *= math.ceil(math.prod(self._number(d, operation) for d in others) / _TILE)
        return times

    def _advance(
        self,
        place: Stage,
        stage: StageAccess,
        values: Mapping[str, Local | None],
        operands: Container[str],
        operation: Operation,
        extents: tuple[int, ...],
    ) -> Local | None:
        """The position of the value of a stage; None if this is no kernel.

        - `place`, `stage`: the stage.
        - `values`: the position of each buffer's value; None for a loaded one.
        - `operands`: the buffers that are operands of the operator.
        - `extents`: the extents of the stage's value.
        """
        shape = stage.output.shape
        units = {y for y, d in enumerate(shape) if d == 1}
        wanted = set(range(len(shape))) - units
        outer = set(range(len(shape)))
        marks: dict[Stage, tuple[int, ...]] = {}
        phase, anchors, most = POINTWISE, frozenset[Stage](), 0
        for r in stage.readings:
            v = values[r.buffer]
            if v is None:
                continue
            if r.buffer in operands and step_of(stage.kind, v.phase) not in self.steps:
                return None
            if v.phase == POINTWISE:
                continue
            reshaped = operation.is_view and _reduces_axis(r)
            if v.phase in (CONTRACTED, CLOSED) and not reshaped:
                bijective = wanted <= set(r.axes) and (stage.kind is StageKind.REDUCTION or not _reduces_axis(r))
                if not bijective or (stage.kind is not StageKind.POINTWISE and v.phase == CLOSED):
                    return None
            if reshaped and (v.phase != CONTRACTED or any(y not in v.outer for y in range(len(r.axes)))):
                return None
            if not reshaped:
                outer &= {r.axes[a] for a in v.outer} | units
            for sid, mark in v.marks.items():
                if reshaped or mark == ():
                    if not (reshaped or r.identity) or marks.get(sid, ()) != ():
                        return None
                    marks[sid] = ()
                    continue
                new = tuple(r.axes[x] if x >= 0 else x for x in mark)
                old = marks.setdefault(sid, new)
                if old == ():
                    return None
                if old != new:
                    differ = [(p, q) for p, q in zip(old, new, strict=True) if p != q]
                    outer -= {a for pair in differ for a in pair}
                    marks[sid] = tuple(p if p == q else FREE for p, q in zip(old, new, strict=True))
            phase, anchors, most = max(phase, v.phase), anchors | v.anchors, max(most, len(v.anchors))
        if len(anchors) > most:
            return None  # neither of two contractions reads the other
        staged = phase != POINTWISE
        after = phase_after(stage.kind, phase)
        if after < 0:
            return None
        size = itemsize(stage.output.dtype)
        if staged and not self._fits(extents, size, outer, marks):
            return None
        if stage.kind is not StageKind.POINTWISE:
            self._shapes[place] = extents, size
            marks[place] = tuple(range(len(shape)))
            if stage.kind is StageKind.CONTRACTION:
                anchors |= {place}
        return Local(after, anchors, frozenset(outer), marks, () in marks.values())

    def _fits(self, extents: tuple[int, ...], size: int, outer: set[int], marks: Marks) -> bool:
        """Whether the values kept for one outer point, and the value computed from them, fit into memory near a core.

        - `extents`, `size`: the extents of the computed value, and the bytes of an element.
        """
        total = math.prod(d for y, d in enumerate(extents) if y not in outer) * size
        for sid, mark in marks.items():
            shape, item = self._shapes[sid]
            inner = () if mark == () else (d for d, y in zip(shape, mark, strict=True) if y not in outer)
            total += item * math.prod(inner)
        return total <= LOCAL_BYTES

    def _prune_states(self, found: list[State]) -> list[State]:
        """The states to keep: the cheapest of each phase, without those that another state beats in every respect."""
        found.sort(key=lambda s: (self._estimate(s), len(s.loads), len(s.members)))
        # The smallest state of each kind stays too, because larger ones may reach the limits of a kernel before its
        # last stages. So does the state that loads fewest computed values, because other kernels may share the values
        # that it computes.
        small: dict[tuple[int, bool], State] = {}
        deep: dict[tuple[int, bool], State] = {}
        for s in found:
            kind = s.local.phase, s.local.flat
            if kind not in small or len(s.members) < len(small[kind].members):
                small[kind] = s
            if kind not in deep or s.computed_loads < deep[kind].computed_loads:
                deep[kind] = s
        kept: list[State] = []
        seen: set[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = set()
        count: Counter[tuple[int, bool]] = Counter()
        for s in found:
            kind = s.local.phase, s.local.flat
            if count[kind] >= KEPT and s is not small[kind] and s is not deep[kind]:
                continue
            key = tuple(sorted(s.loads)), tuple(sorted(s.members.items()))
            if key in seen or any(_dominates(t, s) for t in kept):
                continue
            seen.add(key)
            count[kind] += 1
            kept.append(s)
        return kept


def _reduces_axis(r: Reading) -> bool:
    """Whether an axis of the buffer that is read follows no axis of the output."""
    return FREE in r.axes


def phase_after(kind: StageKind, phase: int) -> int:
    """The phase of the value of a stage of this kind that reads values of `phase` at most; -1 if the stage cannot
    follow."""
    if kind is StageKind.POINTWISE:
        return phase
    return (_AFTER_REDUCTION if kind is StageKind.REDUCTION else _AFTER_CONTRACTION).get(phase, -1)


def step_of(kind: StageKind, phase: int) -> str:
    """The fusion step by which a stage of this kind reads a value of `phase` in the same kernel."""
    if phase == POINTWISE:
        return INLINE_ELEMENTWISE if kind is StageKind.POINTWISE else INLINE_PROLOGUE
    return INLINE_EPILOGUE if kind is StageKind.POINTWISE and phase in (CONTRACTED, CLOSED) else FUSE_STAGES


def _dominates(a: State, b: State) -> bool:
    """Whether `a` is at least as good as `b` in every respect."""
    return (
        a.local.phase <= b.local.phase
        and a.local.outer >= b.local.outer
        and a.local.flat <= b.local.flat
        and a.loads.keys() <= b.loads.keys()
        and a.contracting + a.other + a.repeated <= b.contracting + b.other + b.repeated
    )
