"""From chosen kernels to expressions: each kernel one `call_tir`, what is no kernel as it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relax_eg.extract.access import Does
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels import FUSE_SIBLINGS, VIEW_OF_RESHAPE, KernelSelection
from relax_eg.extract.states import Operation, phase_after, step_of
from relax_eg.ir.expr import Expr, tuple_get
from relax_eg.ops.fused import VIEWS, fused_call, kernel_name

Build = Callable[[int, int, Sequence[Expr]], Expr]  # class, candidate and operands to an expression


@dataclass(slots=True)
class Built:
    """The roots' expressions, and how often each fusion step was used; `kernels`: each kernel's expression and the
    operators in it."""

    roots: list[Expr]
    steps: Counter[str] = field(default_factory=Counter[str])
    kernels: list[tuple[Expr, tuple[Expr, ...]]] = field(default_factory=list[tuple[Expr, tuple[Expr, ...]]])


def build_kernels(
    graph: ExtractionGraph,
    selection: KernelSelection,
    build: Build,
    operations: Mapping[tuple[int, int], Operation],
) -> Built:
    """The expressions of the roots: every kernel of more than one operator is one call of its composed program."""
    built = Built([])
    env: dict[int, Expr] = {}
    tuples: dict[int, Expr] = {}
    names = _Names()

    def kernel(outputs: Sequence[int], members: Mapping[int, int], loads: Mapping[int, int]) -> Expr:
        inner = _members(graph, members, {x: env[x] for x in loads}, build)
        made = {x: inner[x] for x in members}
        order = [made[x] for x in inner if x in made]
        call = names.distinct(lambda name: fused_call(order, [inner[c] for c in outputs], name=name), kernel_name(order))
        built.steps.update(_steps(graph, members, operations))
        built.kernels.append((call, tuple(order)))
        return call

    for c, way in selection.ways.items():
        candidate = graph.candidates[c][way.candidate]
        if way.several >= 0:
            several = selection.several[way.several]
            if way.several not in tuples:
                tuples[way.several] = kernel(several.outputs, several.members, several.loads)
                built.steps[FUSE_SIBLINGS] += len(several.outputs) - 1
            env[c] = tuple_get(tuples[way.several], several.outputs.index(c))
        elif way.state is not None and len(way.state.members) > 1:
            env[c] = kernel((c,), way.state.members, way.state.loads)
        else:
            env[c] = build(c, way.candidate, [env[x] for x in candidate.children])
            if way.state is None and candidate.op in VIEWS:
                built.steps[VIEW_OF_RESHAPE] += 1
            elif way.state is not None:
                built.kernels.append((env[c], (env[c],)))
    built.roots = [env[r] for r in graph.roots]
    return built


class _Names:
    """Distinct names for distinct programs: equal programs share one."""

    def __init__(self) -> None:
        self._programs: dict[str, object] = {}

    def distinct(self, make: Callable[[str], Expr], stem: str) -> Expr:
        n = 0
        while True:
            name = f"{stem}_{n}" if n else stem
            call = make(name)
            program = call.attr("program").value
            if self._programs.setdefault(name, program) == program:
                return call
            n += 1


def _members(
    graph: ExtractionGraph, members: Mapping[int, int], loaded: Mapping[int, Expr], build: Build
) -> dict[int, Expr]:
    """The expressions of what is computed inside a kernel, operands first, over what it loads."""
    done: dict[int, Expr] = dict(loaded)
    todo = list(members)
    while todo:
        x = todo[-1]
        children = graph.candidates[x][members[x]].children if x in members else ()
        missing = [y for y in children if y not in done]
        if x not in done and missing:
            todo += missing
            continue
        if x not in done:
            done[x] = build(x, members[x], [done[y] for y in children])
        todo.pop()
    return done


def _steps(
    graph: ExtractionGraph, members: Mapping[int, int], operations: Mapping[tuple[int, int], Operation]
) -> Counter[str]:
    """The fusion steps that put a kernel together: one for each operand that stays inside."""
    found: Counter[str] = Counter()
    phases: dict[int, int] = {}

    def phase(x: int) -> int:
        todo = [x]
        while todo:
            y = todo[-1]
            below = [z for z in graph.candidates[y][members[y]].children if z in members]
            missing = [z for z in below if z not in phases]
            if missing:
                todo += missing
                continue
            phases[y] = phase_after(_does(operations[y, members[y]]), max((phases[z] for z in below), default=0))
            todo.pop()
        return phases[x]

    for x, k in members.items():
        for y in dict.fromkeys(graph.candidates[x][k].children):
            if y in members:
                found[step_of(_does(operations[x, k]), phase(y))] += 1
    return found


def _does(operation: Operation) -> Does:
    return max(s.does for s in operation.stages)
