"""The search over all axes of a mesh: one axis after the other, the others fixed, until nothing improves.

Descent (`meshes.descent`) goes first, from several starts: data and state placed as textbooks have them, one axis after
the other while the rest divide everything, and all axes taken as one. Integer programs go on from the best. The first
of them chooses the algebra too, if there is a choice; the others keep it. Where the values that are in memory together
exceed the limit of a device, their bytes get a price, and the axis is solved again at several prices. The bound is that
of the first program of one axis, in which the other axes divide everything and send nothing. A program has a few
columns for each strategy of each operand, so its size is linear in that of the e-graph.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.errors import ExtractionError
from relax_eg.extract.costs.cost_model import NodeCost
from relax_eg.extract.profiles.links import Collective, link_for
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.placements import REPLICATED, DeviceMesh, MeshPlacement, Part
from relax_eg.logs import log_at
from relax_eg.meshes.axis import AxisSearch
from relax_eg.meshes.axis_prices import cost_of
from relax_eg.meshes.axis_program import AxisProgram
from relax_eg.meshes.choices import AxisChoice, Demands
from relax_eg.meshes.peak import Peak, order_of, peak_of
from relax_eg.meshes.program import SpreadProgram
from relax_eg.meshes.textbook import following_parts
from relax_eg.shapes import Scope

_BOUND = 1 / 3  # limit: share of the time that is left then for a bound
_DESCENT = 0.5  # limit: share of the time for choices without integer programs
_ALONE = 0.1  # limit: that on a mesh of one axis, for which the first integer program is the last
_TREES = 6  # limit: trees in turn without a gain, in each of many descents
_FAR = 1.2  # chosen: how much dearer than the best start one may be that is improved
_ROOM = 0.5  # chosen: share of a device's memory that state may take where it is whole on each at first
_SWEEPS = 4  # limit: times that all axes are chosen anew
_PRICES = 7  # limit: prices of a byte that are tried where memory does not suffice
_FIRST_PRICE = 0.1  # chosen: the first of them, as a share of the cost over the memory of a device
_STEEPER = 8.0  # chosen: factor from a price to the next
_SHARE = 1 / 3  # limit: of the time for an axis, that for one price of a byte; each begins with the best so far
_CLOSE = 0.02  # limit: what bytes with a price may cost more than without, so that no other price is tried
_NEAR = 3.0  # chosen: factor between prices that are not told apart
# measured: how much dearer a choice may be that leaves values where they follow from the inputs, as XLA itself does, if
# devices are threads of one machine. A choice that was predicted to take 0.90 of the time of that took 1.02
# (`python -m benchmarks.spread_run`).
_DOUBT = 1.2
_GAIN = 1e-4  # chosen: share of the cost that a sweep has to gain to be followed by another


@dataclass(frozen=True, slots=True)
class Sent:
    """A collective of a spread program.

    - `value`: the value that it brings from one part into another.
    - `axes`: the axes of the mesh over which it runs at once.
    - `kind`: which collective.
    - `before`, `after`: the parts.
    - `bytes`: bytes of its result on a device; of an all-to-all and a reduce-scatter too.
    - `times`: how often a call runs it.
    - `seconds`: of all these; of pieces that are sent while others are computed, those beyond computing.
    """

    value: int
    axes: tuple[int, ...]
    kind: Collective
    before: Part
    after: Part
    bytes: float
    times: float
    seconds: float


@dataclass
class Spreading:
    """A program with a placement for every value.

    - `program`, `mesh`, `profile`: what is spread, and over what.
    - `choices`: the choice along each axis of the mesh.
    - `searches`: prices along each axis, given the others.
    - `cost`, `bound`: seconds of a call on each device, and a lower bound for any placement and algebra.
    - `peak`: memory of a device.
    - `seconds`: of the search.
    """

    program: SpreadProgram
    mesh: DeviceMesh
    profile: Profile
    choices: list[AxisChoice]
    searches: list[AxisSearch]
    cost: float
    bound: float
    peak: Peak
    seconds: float = 0.0

    def placement(self, v: int) -> MeshPlacement:
        """The placement in which a value comes about."""
        return MeshPlacement(tuple(c.part(v) for c in self.choices))

    def local_bytes(self, v: int, placement: MeshPlacement) -> float:
        """Bytes of a value on each device."""
        value = self.program.values[v]
        return value.bytes / math.prod(placement.splits(value.rank, self.mesh))

    def sent(self) -> list[Sent]:
        """The collectives, in the order in which values come about."""
        found: list[Sent] = []
        for v in order_of(self.program, self.choices[0]):
            value = self.program.values[v]
            for axis, (choice, search) in enumerate(zip(self.choices, self.searches, strict=True)):
                chosen = choice.chosen[v]
                way, part = value.ways[chosen.way], chosen.strategy.result
                here, often, seconds = search.passed(v, way, chosen.strategy)
                if often:
                    times = value.times * often
                    found.append(Sent(v, (axis,), "collective-permute", part, part, here, times, seconds * value.times))
                for part in sorted(choice.needed.get(v, ()), key=str):
                    before = choice.source(v, part)
                    for c in () if before is None else search.changes(v, before, part):
                        seconds = value.times * c.seconds
                        last = found[-1] if found else None
                        at_once = last is not None and (last.value, last.kind) == (v, c.kind) and last.axes[0] in c.axes
                        if last is not None and at_once and axis not in last.axes:
                            found[-1] = replace(last, axes=(*last.axes, axis), seconds=last.seconds + seconds)
                        else:
                            found.append(Sent(v, (axis,), c.kind, before or part, part, c.bytes, value.times, seconds))
        return found

    def own_cost(self, v: int) -> NodeCost:
        """What computing a value costs in a call, on each device."""
        value, chosen = self.program.values[v], self.choices[0].chosen[v]
        once = self.searches[0].strategy_cost(v, value.ways[chosen.way], chosen.strategy)
        return once.scaled(value.times)

    @property
    def sending(self) -> float:
        """Seconds of all collectives."""
        return sum(s.seconds for s in self.sent())

    @property
    def computing(self) -> float:
        """Seconds of a call without collectives."""
        return max(0.0, self.cost - self.sending)


@dataclass(frozen=True)
class Wanted:
    """What the placements have to keep.

    - `inputs`, `outputs`: given placements, by position.
    - `state`: pairs (input, output), by position, that have to have one placement.
    - `memory`: bytes that a device may have in memory.
    - `way`: the only way to compute each value; None: all ways.
    """

    inputs: Mapping[int, MeshPlacement]
    outputs: Mapping[int, MeshPlacement]
    state: Sequence[tuple[int, int]]
    memory: float = math.inf
    way: Mapping[int, int] | None = None


def spread_over(
    program: SpreadProgram,
    mesh: DeviceMesh,
    profile: Profile,
    binding: Mapping[str, int],
    scope: Scope,
    wanted: Wanted,
    seconds: float,
) -> Spreading:
    """The cheapest placements found for a program. ExtractionError if none keeps what is wanted.

    - `binding`: the sizes at which prices hold.
    - `scope`: what is known of all sizes.
    - `seconds`: after which no further integer program begins.
    """
    started = time.monotonic()
    search = _Search(program, mesh, profile, binding, scope, wanted, started + seconds)
    found = search.run()
    found.seconds = time.monotonic() - started
    return found


class _Search:
    def __init__(
        self,
        program: SpreadProgram,
        mesh: DeviceMesh,
        profile: Profile,
        binding: Mapping[str, int],
        scope: Scope,
        wanted: Wanted,
        deadline: float,
    ) -> None:
        self.program, self.mesh, self.profile = program, mesh, profile
        self.binding, self.scope, self.wanted, self.deadline = binding, scope, wanted, deadline
        self.exact = False  # whether an axis is chosen by an integer program, or by descent alone
        self.each = 0.0  # seconds for one integer program
        self.room = profile.memory if profile.platform == "gpu" else 0.0  # bytes up to which gathers end together
        self.held: dict[int, dict[int, Part]] = {}  # parts of values along an axis, beside those that are wanted
        self.byte_prices: dict[int, tuple[frozenset[int], float]] = {}  # with which memory sufficed, by axis

    def run(self) -> Spreading:
        axes = len(self.mesh.axes)
        best = self._by_descent()
        self.exact = True
        by_program = axes > 1 or any(price for _, price in self.byte_prices.values())
        least = self._least(best, by_program)
        self.each = max(0.0, self.deadline - time.monotonic()) / axes
        if best is None or axes == 1 or any(len(v.ways) > 1 for v in self.program.values):
            found = self._in_turn((), best)  # which chooses the algebra too
            least = least if by_program else max(least, found.choices[0].bound)
            best = self._better(best, found)
        if axes > 1:
            if not self.wanted.state:  # which would stay where it is
                best = self._with_inputs_held(best)
            best = self._improved(best)
        if best.peak.bytes > self.wanted.memory:
            raise ExtractionError(
                f"a device has {self.wanted.memory / 1e9:.4g} GB for this program; the least found on the mesh "
                f"{self.mesh} is {best.peak.bytes / 1e9:.4g} GB, of which inputs take {best.peak.inputs / 1e9:.4g} GB\n"
                "  accepted: a larger memory_limit, more devices, or smaller sizes"
            )
        if not self.profile.links:
            best = self._following_inputs(best)
        best.bound = min(least, best.cost)
        return best

    def _by_descent(self) -> Spreading | None:
        """The best that descent finds from several starts; None if it finds nothing that is possible."""
        best = first = None
        several, deadline = len(self.mesh.axes) > 1, self.deadline
        end = time.monotonic() + (_DESCENT if several else _ALONE) * (self.deadline - time.monotonic())
        books = (functools.partial(self._with_held, parts) for parts in self._textbook())
        starts: Iterable[Callable[[], Spreading | None]]
        starts = itertools.chain(books, [self._in_turn, self._as_one]) if several else [self._in_turn, *books]
        for start in starts:
            if best is not None and time.monotonic() > end:
                break
            self.deadline = deadline if best is None else end
            try:
                found = start()
            except ExtractionError:
                continue
            if found is not None:
                log_at(2, f"start {found.cost:.4g} s, {found.peak.bytes / 1e9:.4g} GB")
                first = self._better(first, found)
                if self._rank(found) <= (self._rank(first)[0], self._rank(first)[1] * _FAR):
                    best = self._better(best, self._improved(found))
        self.deadline = deadline
        return best

    def _better(self, one: Spreading | None, two: Spreading) -> Spreading:
        return two if one is None or self._rank(two) < self._rank(one) else one

    def _rank(self, found: Spreading) -> tuple[bool, float]:
        """What is better is less: first whether memory suffices, then seconds; without enough memory, bytes."""
        over = found.peak.bytes > self.wanted.memory
        return over, found.peak.bytes if over else found.cost

    def _as_one(self) -> Spreading | None:
        """The best choice for all axes taken as one, which each of them then has; None if what is given differs from
        axis to axis."""
        sizes = self.mesh.sizes
        one = DeviceMesh((("all", self.mesh.devices),))
        given = [self.wanted.inputs, self.wanted.outputs]
        if any(len(set(p.parts)) > 1 for g in given for p in g.values()) or self.program.kept:
            return None
        fewer = [{i: MeshPlacement(p.parts[:1]) for i, p in g.items()} for g in given]
        wanted = replace(self.wanted, inputs=fewer[0], outputs=fewer[1])
        inner = _Search(self.program, one, self.profile, self.binding, self.scope, wanted, self.deadline)
        return self._spreading([inner._solve([None], 0, None)] * len(sizes))

    def _textbook(self) -> Iterator[dict[int, dict[int, Part]]]:
        """Yields parts of the inputs of a program with state along each axis, as textbooks have them: the data are
        split along their first dimension over all axes but the fastest, and there along their first or second one, or
        not at all. State is whole along the slower axes; over the fastest it is split as it follows from the data
        (`meshes.textbook`), along its last dimension where that leaves it whole, or it is free there, or free along
        all; where it takes little of a device's memory, it is whole at first. Few placements are left then. For a
        program without state nothing is held."""
        if self.program.kept:
            return
        if not self.wanted.state:
            if len(self.mesh.axes) > 1:
                yield {}
            return
        state = {self.program.inputs[i] for i, _ in self.wanted.state}
        given = {self.program.inputs[i] for i in self.wanted.inputs}
        last = len(self.mesh.axes) - 1
        named = ("split", "whole", "free") if last else ("free",)
        kinds: list[tuple[str, Part]] = [(kind, part) for kind in named for part in (REPLICATED, 0, 1)]
        if last and sum(self.program.values[v].bytes for v in state) < _ROOM * self.wanted.memory:
            kinds.insert(0, ("data", 0))
        for kind, part in kinds:
            held: dict[int, dict[int, Part]] = {axis: {} for axis in range(last + 1)}
            data = {
                v: part if isinstance(part, str) or part < self.program.values[v].rank else REPLICATED
                for v in self.program.inputs if v not in state
            }  # fmt: skip
            found = self._followed(last, data) if kind == "split" else {}
            follows = {v: p for v, p in found.items() if isinstance(p, int)}
            for v in self.program.inputs:
                rank = self.program.values[v].rank
                if v in given or (v in state and (kind == "free" or not rank)):
                    continue
                fast = part if v not in state else REPLICATED if kind == "data" else follows.get(v, rank - 1)
                parts: list[Part] = [REPLICATED if v in state else 0] * last + [fast]
                if all(p < rank for p in parts if isinstance(p, int)) and self._divide(v, parts):
                    whole = last if v in state and kind == "whole" else last + 1
                    for axis, p in enumerate(parts[:whole]):
                        held[axis][v] = p
            yield held

    def _followed(self, axis: int, data: Mapping[int, Part]) -> dict[int, Part]:
        """The parts of values along an axis where those of `data` are given (`meshes.textbook`)."""
        whole = self._searches([None] * len(self.mesh.axes))[axis].whole(Demands(way=self.wanted.way))
        return following_parts(self.program, data, whole, self.mesh.sizes[axis], self.binding)

    def _following_inputs(self, best: Spreading) -> Spreading:
        """Of `best` and the choice in which values follow from where it has the inputs, the latter if `best` gains no
        more than prices are in doubt."""
        kept, self.exact = (self.held, self.exact), False
        given = [{v: c.part(v) for v in self.program.inputs} for c in best.choices]
        self.held = {a: {**self._followed(a, parts), **parts} for a, parts in enumerate(given)}
        try:
            found = self._in_turn((), best)
        except ExtractionError:
            return best
        finally:
            self.held, self.exact = kept
        log_at(2, f"following the inputs {found.cost:.4g} s, chosen {best.cost:.4g} s")
        over = found.peak.bytes > self.wanted.memory
        return best if over or found.cost > best.cost * _DOUBT else found

    def _divide(self, v: int, parts: Sequence[Part]) -> bool:
        """Whether all pieces of a value are equal."""
        value = self.program.values[v]
        pieces = MeshPlacement(tuple(parts)).splits(value.rank, self.mesh)
        return all(self.scope.equal(d % n, 0) is True for d, n in zip(value.shape, pieces, strict=True))

    def _with_held(self, held: dict[int, dict[int, Part]]) -> Spreading:
        """One axis after the other, the slowest first, and improved, with these parts of inputs."""
        self.held = held
        try:
            return self._improved(self._in_turn(range(len(self.mesh.axes))))
        finally:
            self.held = {}

    def _with_inputs_held(self, best: Spreading) -> Spreading:
        """`best`, improved while its inputs stay where they are: programs that are solved in a fraction of the time."""
        kept = self.held
        self.held = {a: {v: c.part(v) for v in self.program.inputs} for a, c in enumerate(best.choices)}
        try:
            return self._improved(best)
        finally:
            self.held = kept

    def _least(self, best: Spreading | None, by_program: bool) -> float:
        """A lower bound: the first axis while the others divide everything and send nothing, in any memory.

        `by_program`: whether an integer program is asked too."""
        search = self._searches([None] * len(self.mesh.axes))[0]
        model = AxisProgram(search, replace(self._demands(0, self.wanted.way), priced=frozenset(), byte_price=0.0))
        left = _BOUND * (self.deadline - time.monotonic())
        least = search.least(model, time.monotonic() + left)
        try:
            found = search.run(model, left, best and best.choices[0]) if by_program else None
        except ExtractionError:
            found = None
        return max(least, 0.0 if found is None else found.bound)

    def _in_turn(self, order: Sequence[int] = (), starts: Spreading | None = None) -> Spreading:
        """One axis after the other, while the others divide everything: those over which the program's author has split
        something, then the fastest first; or in this order. `starts`: what each axis begins with."""
        choices: list[AxisChoice | None] = [None] * len(self.mesh.axes)
        order = order or sorted(range(len(choices)), key=lambda a: (not self.program.splits_along(a), -a))
        for axis in order:
            choices[axis] = self._solve(choices, axis, choices[order[0]], starts and starts.choices[axis])
        return self._spreading([c for c in choices if c is not None])

    def _improved(self, best: Spreading) -> Spreading:
        """`best`, with one axis after the other chosen anew, the fastest first, until nothing improves. An axis is not
        asked again while the others stay as they were."""
        asked: dict[int, list[AxisChoice]] = {}
        for _ in range(_SWEEPS if len(best.choices) > 1 else 0):
            before = self._rank(best)
            for axis in reversed(range(len(best.choices))):
                if time.monotonic() > self.deadline:
                    return best
                again: list[AxisChoice] = list(best.choices)
                others = again[:axis] + again[axis + 1 :]
                if axis in asked and all(x is y for x, y in zip(asked[axis], others, strict=True)):
                    continue
                asked[axis] = others
                try:
                    again[axis] = self._solve(again, axis, again[axis])
                except ExtractionError:
                    continue
                found = self._spreading(again)
                if self._rank(found) < self._rank(best):
                    best = found
            over, value = self._rank(best)
            if over == before[0] and value > before[1] * (1 - _GAIN):
                break
        return best

    def _searches(self, choices: Sequence[AxisChoice | None]) -> list[AxisSearch]:
        """Prices along each axis, given the choices for the others."""
        sizes = self.mesh.sizes
        links = [link_for(self.profile, self.mesh.span(axis), self.mesh.devices) for axis in range(len(sizes))]
        return [
            AxisSearch(self.program, axis, sizes, links, self.profile, self.binding, self.scope, choices)
            for axis in range(len(sizes))
        ]

    def _solve(
        self,
        choices: Sequence[AxisChoice | None],
        axis: int,
        algebra: AxisChoice | None,
        start: AxisChoice | None = None,
    ) -> AxisChoice:
        """The best choice along an axis, the others fixed. ExtractionError if none was found.

        - `algebra`: the choice whose ways it keeps.
        - `start`: what the search begins with, if there is no choice for this axis."""
        ways = self.wanted.way if algebra is None else {v: c.way for v, c in algebra.chosen.items()}
        if algebra is not None:  # nothing else is computed
            ways = {v: ways.get(v, -1) if ways else -1 for v in range(len(self.program.values))}
        demands = self._demands(axis, ways)
        search = self._searches(choices)[axis]
        model = AxisProgram(search, demands)
        start = choices[axis] or start
        best: AxisChoice | None = None
        best_rank, least = (True, math.inf), 0.0  # `least`: seconds where bytes have no price
        low, high = 0.0, math.inf  # prices of a byte at which memory does not suffice, and does
        for _ in range(_PRICES):
            model.price(demands)
            each = max(1.0, min(self.each * (_SHARE if demands.byte_price else 1.0), self.deadline - time.monotonic()))
            try:
                if self.exact:
                    found = search.run(model, each, start)
                else:
                    found = search.descended(model, start, _TREES, self.deadline)
            except ExtractionError:
                found = None
            if found is None:
                break
            if not demands.byte_price:
                least = found.cost
            if self.wanted.memory == math.inf:
                return found
            full = [found if i == axis else c for i, c in enumerate(choices)]
            peak = peak_of(self.program, self.mesh, full, self.wanted.state, self.room)
            over = peak.bytes > self.wanted.memory
            log_at(3, f"axis {axis}: {found.cost:.4g} s, {peak.bytes / 1e9:.4g} GB, {demands.byte_price:.3g} s a byte")
            rank = over, peak.bytes if over else found.cost
            if rank < best_rank:
                best, best_rank = found, rank
                self.byte_prices[axis] = demands.priced, demands.byte_price
            if not over and (self.exact or not demands.byte_price or found.cost <= least * (1 + _CLOSE)):
                break  # descent has tried other prices before
            low, high = (demands.byte_price, high) if over else (low, demands.byte_price)
            late = time.monotonic() > self.deadline and (self.exact or not best_rank[0])
            if late or (not over and high <= low * _NEAR):
                break
            first = _FIRST_PRICE * found.cost / self.wanted.memory
            price = math.sqrt(low * high) if low and high < math.inf else low * _STEEPER if low else high / _STEEPER
            price = price if low or high < math.inf else first
            demands = replace(demands, priced=demands.priced | {v for v, _ in peak.held}, byte_price=price)
            start = best
        if best is None:
            raise ExtractionError(
                f"no placement over {search.n} devices keeps what is demanded\n  accepted: other given placements, a "
                "larger memory_limit, or more devices"
            )
        return best

    def _demands(self, axis: int, ways: Mapping[int, int] | None) -> Demands:
        """What a choice along an axis has to keep. `ways`: the only way of each value; None: all ways."""
        return Demands(
            {self.program.inputs[i]: p.parts[axis] for i, p in self.wanted.inputs.items()} | self.held.get(axis, {}),
            {i: p.parts[axis] for i, p in self.wanted.outputs.items()},
            [(self.program.inputs[i], self.program.outputs[o]) for i, o in self.wanted.state],
            *self.byte_prices.get(axis, (frozenset[int](), 0.0)),
            way=ways,
        )

    def _spreading(self, choices: list[AxisChoice]) -> Spreading:
        searches = self._searches(choices)
        cost = cost_of(searches[0], choices[0])
        peak = peak_of(self.program, self.mesh, choices, self.wanted.state, self.room)
        return Spreading(self.program, self.mesh, self.profile, choices, searches, cost, 0.0, peak)
