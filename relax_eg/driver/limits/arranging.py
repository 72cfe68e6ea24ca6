"""Programs whose steps run in a stated order, some of them several times, to need less memory in one XLA program.

XLA orders a program by itself and merges a value with its second computation. `arranged` decides both: by the values
that XLA is predicted to store, it looks for an order of low peak and for values to compute again
(`memory.rematerialization`), and states both in the program (`memory.pinned`). The operator that states them is the
identity: without it the program is the one that was extracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.driver.liveness import stored_values
from relax_eg.driver.prices import PriceOptions, cost_model
from relax_eg.extract.costs.walk import walk
from relax_eg.extract.selection.clock import Clock
from relax_eg.ir.calls import without_calls
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ir.origin import UNKNOWN
from relax_eg.ir.partition import static_expressions
from relax_eg.ir.scopes import called_functions
from relax_eg.memory.exact_arrangement import arrange_exactly
from relax_eg.memory.pinned import read_whole, with_order, without_order
from relax_eg.memory.rematerialization import Arrangement, ArrangementProblem, arrange
from relax_eg.memory.schedule import best_order
from relax_eg.memory.steps import program_of
from relax_eg.traversal import reached

_EXACTLY = 1.0  # limit: seconds in which one arrangement is looked for exactly


@dataclass(frozen=True)
class Arranged:
    """A program with an order.

    - `module`: the program.
    - `peak`: the predicted bytes of a call beside its arguments.
    - `again`: the number of steps that run again.
    - `kept`: the values that are kept on the host for a while: each with its name and source line, and its bytes.
    """

    module: Module
    peak: int
    again: int
    kept: tuple[tuple[str, int], ...] = ()


@dataclass
class _Part:
    """A function that is arranged: the entry, or the body of a loop."""

    function: Function
    problem: ArrangementProblem
    order: Sequence[int]
    peak: int


class Arranger:
    """The arrangements of one program.

    - `peak`: the predicted bytes in the order of lowest peak in which nothing runs again.
    - `host_rate`: bytes/s to and from the memory of the host; 0: no value is kept there.
    """

    def __init__(
        self,
        module: Module,
        options: PriceOptions,
        sizes: Mapping[str, int],
        weights: set[str],
        host_rate: float = 0.0,
    ) -> None:
        self.host_rate = host_rate
        self.module = without_calls(module)
        self.sizes = dict(sizes)
        model = cost_model(self.module, options, sizes)
        self.ahead = static_expressions(self.module.main, weights) if weights else set[Expr]()
        self.seconds: dict[tuple[str, Expr], float] = {}
        for v in walk(self.module.main, model, self.ahead):
            key = v.function.name, v.node
            self.seconds[key] = self.seconds.get(key, 0.0) + float(v.cost.seconds)
        stored = stored_values(self.module, model, self.ahead)
        whole = dict.fromkeys((f.name, e) for f in self.module for e in read_whole(f, stored))
        self.stored = replace(stored, nodes={**whole, **stored.nodes})
        self.parts: dict[str, _Part] = {}
        main = self._part(self.module.main)
        self.peak = 0 if main is None else main.peak

    def _part(self, f: Function) -> _Part | None:
        """What is known of a function; None if it cannot be arranged."""
        if f.name in self.parts:
            return self.parts[f.name]
        if not f.is_one_block or not {*f.size_variables} <= self.sizes.keys():
            return None
        is_main = f.name == self.module.main.name
        program = program_of(self.module, None, f.name, self.stored, self.ahead if is_main else ())
        if any(s.function != f.name for s in program.steps):
            return None
        seconds = [self._seconds(f.name, s.kernel) for s in program.steps]
        problem = ArrangementProblem.of(program, self.sizes, seconds, is_main, self.host_rate if is_main else 0.0)
        for s in program.steps:
            for name, _ in called_functions(s.kernel):
                body = self._part(self.module[name])
                if body is not None and len([*called_functions(s.kernel)]) == 1:
                    problem.inside[s.number] = min(problem.inside[s.number], body.peak)
        orders = [tuple(range(len(program.steps))), best_order(program, [self.sizes]).steps]
        peaks = [problem.timeline(o).peak for o in orders]
        best = min(range(2), key=peaks.__getitem__)
        self.parts[f.name] = _Part(f, problem, orders[best], peaks[best])
        return self.parts[f.name]

    def _seconds(self, name: str, e: Expr) -> float:
        """The seconds of a step: of its expression and of those computed inside its kernel."""
        inside = reached((e,), lambda x: [a for a in x.args if (name, a) not in self.stored.nodes])
        return sum(self.seconds.get((name, x), 0.0) for x in inside)

    def within(self, limit: int, clock: Clock) -> Arranged | None:
        """The program with an order in which it is predicted to need at most `limit` bytes, or as few as were found.
        None if no order can be stated."""
        main = self.parts.get(self.module.main.name)
        if main is None:
            return None
        changed: dict[str, tuple[_Part, Arrangement]] = {}
        found = _arranged(main.problem, main.order, limit, clock)
        if found.peak > limit:
            timeline = main.problem.timeline(found.runs)
            for place, step in enumerate(found.runs):
                if not main.problem.is_own(step):
                    continue
                bodies = [*called_functions(main.problem.program.steps[step].kernel)]
                if timeline.needed[place] <= limit or len(bodies) != 1:
                    continue
                body = self.parts.get(bodies[0][0])
                if body is None or body.function.name in changed:
                    continue
                beside = timeline.needed[place] - main.problem.inside[step]
                inner = _arranged(body.problem, body.order, max(limit - beside, 0), clock)
                changed[body.function.name] = body, inner
                main.problem.inside[step] = inner.peak
            if changed:
                found = _arranged(main.problem, main.order, limit, clock)
        changed[main.function.name] = main, found
        for name, part in self.parts.items():
            changed.setdefault(name, (part, Arrangement(tuple(part.order), part.peak)))
        functions: dict[str, Function] = {}
        for name, (part, arrangement) in changed.items():
            for s in part.problem.program.steps:  # the next limit starts anew
                for called, _ in called_functions(s.kernel):
                    if called in self.parts and len([*called_functions(s.kernel)]) == 1:
                        part.problem.inside[s.number] = self.parts[called].peak
            made = with_order(part.function, part.problem, arrangement.runs, arrangement.peak, self.sizes)
            if made is None:
                return None
            functions[name] = made
        module = Module(tuple(functions.get(f.name, f) for f in self.module))
        if without_order(module) != without_order(self.module):
            return None
        kept = tuple((self._named(main, v), main.problem.sizes[v]) for v in found.kept)
        return Arranged(module, found.peak, sum(a.again for _, a in changed.values()), kept)

    def _named(self, part: _Part, v: int) -> str:
        """A value's name with its source line."""
        value = part.problem.program.values[v]
        origin = part.function.origins.get(part.problem.program.steps[part.problem.writer[v]].kernel, UNKNOWN)
        line = next(map(str, origin.lines), "")
        return f"{value.name} {value.annotation.short}{f' at {line}' if line else ''}"


def _arranged(problem: ArrangementProblem, order: Sequence[int], limit: int, clock: Clock) -> Arrangement:
    """Runs of steps that need at most `limit` bytes: those that a local search finds, and of few steps the best."""
    found = arrange(problem, order, limit, clock.is_over)
    return arrange_exactly(problem, found, limit, min(_EXACTLY, clock.left))
