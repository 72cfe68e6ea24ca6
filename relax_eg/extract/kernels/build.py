"""Builds expressions from chosen kernels: a kernel of several operators becomes one `call_tir`; all other operators
stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from relax_eg.extract.costs.pricing import Members
from relax_eg.extract.graph import ExtractionGraph
from relax_eg.extract.kernels.cost import KernelCost
from relax_eg.extract.kernels.operations import Operation
from relax_eg.extract.kernels.rows import Composed
from relax_eg.extract.kernels.selection import FUSE_SIBLINGS, VIEW_OF_RESHAPE
from relax_eg.extract.kernels.states import phase_after, step_of
from relax_eg.extract.kernels.ways import KernelSelection
from relax_eg.extract.report import KernelRow
from relax_eg.ir.expr import Expr, tuple_get, var
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import site_of
from relax_eg.ops.fused import VIEWS, fused_call, kernel_name, operator_name
from relax_eg.traversal import operands_first

Build = Callable[[int, int, Sequence[Expr]], Expr]  # class, candidate and operands to an expression


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel of several operators.

    - `call`: the call of its program.
    - `operators`: its operators, operands first.
    - `steps`: how often each fusion step was used for it.
    """

    call: Expr
    operators: tuple[Expr, ...]
    steps: Counter[str]


@dataclass(slots=True)
class Built:
    """The expressions built from a selection of kernels.

    - `roots`: the expressions of the roots.
    - `operators`: the same expressions without fusion.
    - `stored`: the class of each value in memory.
    - `members`: the operators of each kernel.
    - `kernels`: the kernels of several operators.
    - `made`: how often each rule made an operator, and how often each fusion step was used.
    - `classes`: the classes that each expression computes, that of its result last.
    - `rules`: the rules and fusion steps that made each expression.
    """

    roots: list[Expr]
    operators: list[Expr] = field(default_factory=list[Expr])
    stored: dict[Expr, int] = field(default_factory=dict[Expr, int])
    members: dict[Expr, Members] = field(default_factory=dict[Expr, Members])
    kernels: list[BuiltKernel] = field(default_factory=list[BuiltKernel])
    made: Counter[str] = field(default_factory=Counter[str])
    classes: dict[Expr, tuple[int, ...]] = field(default_factory=dict[Expr, tuple[int, ...]])
    rules: dict[Expr, tuple[str, ...]] = field(default_factory=dict[Expr, tuple[str, ...]])

    def rows(self, function: str, model: KernelCost) -> tuple[KernelRow, ...]:
        """One row per distinct kernel: its operators, and the bytes and launches that it saves."""
        found: dict[tuple[str, tuple[str, ...]], KernelRow] = {}
        for k in self.kernels:
            name, words = operator_name(k.call), tuple(operator_name(e) for e in k.operators if e.op not in VIEWS)
            old = found.get((name, words))
            if old is not None:
                found[name, words] = replace(old, times=old.times + 1)
                continue
            mine = model.price(site_of(k.call), k.call.annotation)
            alone = [model.price(site_of(e), e.annotation) for e in k.operators]
            saved = sum(x.bytes for x in alone) - mine.bytes, sum(x.launches for x in alone) - mine.launches
            found[name, words] = KernelRow(function, name, words, dict(k.steps), 1, mine.bytes, *saved)
        return tuple(found.values())


def build_kernels(
    graph: ExtractionGraph,
    selection: KernelSelection,
    build: Build,
    names: Names | None = None,
    is_wanted: Callable[[Expr], bool] | None = None,
) -> Built:
    """The expressions of the roots, in which every kernel of more than one operator is one call of its composed
    program.

    - `names`: the names of the programs so far, if several graphs become one module.
    - `is_wanted`: of the call of a kernel with a contraction; the operators of other kernels stay operators. None: all
      kernels are wanted.
    """
    built = Built([])
    env: dict[int, Expr] = {}
    plain: dict[int, Expr] = {}  # the same values without fusion
    tuples: dict[int, Expr | None] = {}
    called = names or Names()

    def inside(c: int, members: Mapping[int, int], loads: Mapping[int, int]) -> Expr:
        return _members(graph, members, {x: plain[x] for x in loads}, build)[c]

    def kernel(outputs: Sequence[int], members: Mapping[int, int], loads: Mapping[int, int]) -> Expr | None:
        loaded = {x: env[x] for x in loads}
        if is_wanted is not None:
            contracts = any(selection.operations[m].contracts for m in members.items())
            if not contracts or not is_wanted(kernel_of(graph, outputs, members, loaded, build, Names()).call):
                return None
        made = kernel_of(graph, outputs, members, loaded, build, called)
        made.steps.update(_steps(graph, members, selection.operations))
        if len(outputs) > 1:
            made.steps[FUSE_SIBLINGS] = len(outputs) - 1
        built.kernels.append(made)
        built.members[made.call] = frozenset(members.items())
        built.made.update(made.steps)
        rules = [rule for x, k in members.items() if (rule := count_rule(x, k))]
        keep_origin(made.call, tuple(members), tuple(dict.fromkeys([*rules, *made.steps])))
        return made.call

    def count_rule(c: int, k: int) -> str:
        rule = graph.candidates[c][k].made_by
        if rule:
            built.made[rule] += 1
        return rule

    def keep_origin(e: Expr, classes: tuple[int, ...], rules: tuple[str, ...]) -> None:
        built.classes[e] = (*built.classes.get(e, ()), *classes)
        built.rules.setdefault(e, rules)

    def operators(c: int, members: Mapping[int, int], loads: Mapping[int, int]) -> Expr:
        made = _members(graph, members, {x: env[x] for x in loads}, build)
        for x, k in members.items():
            rule = count_rule(x, k)
            keep_origin(made[x], (x,), (rule,) if rule else ())
        return made[c]

    for c, way in selection.ways.items():
        candidate = graph.candidates[c][way.candidate]
        if way.several >= 0:
            several = selection.several[way.several]
            if way.several not in tuples:
                tuples[way.several] = kernel(several.outputs, several.members, several.loads)
            of = tuples[way.several]
            if of is None:
                env[c] = operators(c, several.members, several.loads)
            else:
                env[c] = tuple_get(of, several.outputs.index(c))
            plain[c] = inside(c, several.members, several.loads)
        elif way.state is not None and len(way.state.members) > 1:
            made = kernel((c,), way.state.members, way.state.loads)
            env[c] = operators(c, way.state.members, way.state.loads) if made is None else made
            plain[c] = inside(c, way.state.members, way.state.loads)
        else:
            env[c] = build(c, way.candidate, [env[x] for x in candidate.children])
            plain[c] = build(c, way.candidate, [plain[x] for x in candidate.children])
            rule = count_rule(c, way.candidate)
            keep_origin(env[c], (c,), (rule,) if rule else ())
            if way.state is None and candidate.op in VIEWS:
                built.made[VIEW_OF_RESHAPE] += 1
    built.roots = [env[r] for r in graph.roots]
    built.operators = [plain[r] for r in graph.roots]
    built.stored = {e: c for c, e in env.items()}
    return built


def kernel_of(
    graph: ExtractionGraph,
    outputs: Sequence[int],
    members: Mapping[int, int],
    loaded: Mapping[int, Expr],
    build: Build,
    names: Names,
) -> BuiltKernel:
    """The kernel that computes the classes `outputs` with its `members` from the `loaded` expressions."""
    inner = _members(graph, members, loaded, build)
    order = [inner[x] for x in inner if x in members]
    results = [inner[c] for c in outputs]
    call = names.distinct(lambda name: fused_call(order, results, name=name), kernel_name(order))
    return BuiltKernel(call, tuple(order), Counter())


def composed_seconds(graph: ExtractionGraph, build: Build, models: Sequence[KernelCost]) -> Composed:
    """A function that returns the seconds of the composed program of a kernel at each binding, as it is compiled where
    that is known."""

    def composed(outputs: tuple[int, ...], members: Mapping[int, int], loads: Mapping[int, int]) -> Expr:
        # Loads are named by their places in the kernel, so that kernels that compute the same are one expression.
        order = operands_first(outputs, lambda x: graph.candidates[x][members[x]].children if x in members else ())
        loaded = {x: var(f"x{i}", graph.annotations[x]) for i, x in enumerate(x for x in order if x in loads)}
        inner = _members(graph, members, loaded, build)
        if len(members) == 1:  # a one-operator kernel stays an operator
            return inner[outputs[0]]
        return _composed(frozenset(inner[x] for x in members), tuple(inner[c] for c in outputs))

    def seconds(outputs: tuple[int, ...], members: Mapping[int, int], loads: Mapping[int, int]) -> list[float]:
        key = outputs, frozenset(members.items())
        if key not in graph.composed:
            graph.composed[key] = composed(outputs, members, loads)
        call = graph.composed[key]
        site = site_of(call)
        return [m.compiled_price(site, call.annotation).seconds for m in models]

    return seconds


@lru_cache(MANY_KEPT)
def _composed(members: frozenset[Expr], results: tuple[Expr, ...]) -> Expr:
    return fused_call(members, results)


class Names:
    """The names of tensor programs: different programs have different names, and equal programs share one."""

    def __init__(self, known: Names | None = None) -> None:
        self._programs: dict[str, object] = {} if known is None else dict(known._programs)

    def add(self, others: Names) -> None:
        self._programs |= others._programs

    def distinct(self, make: Callable[[str], Expr], stem: str) -> Expr:
        """The call that `make` makes with the first free name of `stem`, `stem_1`, ..., which it thereby takes."""
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
    """The expressions that a kernel loads, then those that it computes from them, operands first; by class."""
    done: dict[int, Expr] = dict(loaded)

    def below(x: int) -> list[int]:
        return [y for y in reversed(graph.candidates[x][members[x]].children) if y in members]

    for x in operands_first(reversed(list(members)), below):
        done[x] = build(x, members[x], [done[y] for y in graph.candidates[x][members[x]].children])
    return done


def _steps(
    graph: ExtractionGraph, members: Mapping[int, int], operations: Mapping[tuple[int, int], Operation]
) -> Counter[str]:
    """How often each fusion step was used for a kernel: once for each operand that the kernel computes."""
    found: Counter[str] = Counter()
    phases: dict[int, int] = {}

    def below(x: int) -> list[int]:
        return [y for y in dict.fromkeys(graph.candidates[x][members[x]].children) if y in members]

    for x in operands_first(members, below):
        kind = max(s.kind for s in operations[x, members[x]].stages)
        phases[x] = phase_after(kind, max((phases[y] for y in below(x)), default=0))
        found.update(step_of(kind, phases[y]) for y in below(x))
    return found
