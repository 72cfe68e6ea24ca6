"""Saturation: a block's e-graph, grown by rules in phases, under budgets.

The phases: simplify to a fixpoint; algebra a few rounds, simplifying after each; merging once; simplify again; layout
once, whose products nothing else looks at. Rounds
are driven from here, so that sizes and the clock can be looked at between them: the engine itself has no way to stop.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from relax_eg.debug import tell
from relax_eg.egraph.demand import Demand, Use
from relax_eg.egraph.engine import Engine
from relax_eg.egraph.patterns import Compiler
from relax_eg.egraph.vocabulary import LEAVES, PRELUDE, Opcode, Vocabulary, declarations
from relax_eg.ir.annotations import FLOATS, Tensor
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.rules import PHASES, Condition, Instance, Rule, RuleSet
from relax_eg.shapes import Dim, Proved, Scope, prove

Progress = Callable[[str, int, int], None]  # phase, nodes, rule matches so far

SIMPLIFY_ROUNDS = 200
ALGEBRA_ROUNDS = 6
SIBLINGS = 3  # a value is merged with at most so many neighbours, itself included


class StopReason(enum.Enum):
    """Why saturation ended."""

    SATURATED = "saturated"
    PHASES_DONE = "phase plan completed"
    NODE_LIMIT = "node limit"
    TIME_LIMIT = "time limit"
    ROUND_LIMIT = "round limit"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on saturation: e-graph nodes, seconds of rule application, and rounds of the algebra phase. They are
    looked at between rounds, nodes first. A budget of 0 nodes or 0 seconds leaves the program as written."""

    nodes: int = 200_000
    seconds: float = 10.0
    rounds: int = ALGEBRA_ROUNDS


@dataclass(slots=True)
class Saturation:
    """What happened: stop reason, nodes, rounds, matches by rule, seconds by phase."""

    stop: StopReason
    nodes: int
    rounds: int
    matches: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict[str, float])


class EGraph:
    """The e-graph of one dataflow block.

    `alternatives`: (node, equal expression, rule) for what rules about functions propose; they stand beside what they
    are equal to from the start."""

    def __init__(
        self,
        roots: Iterable[Expr],
        rules: RuleSet,
        scope: Scope,
        alternatives: Sequence[tuple[Expr, Expr, str]] = (),
    ) -> None:
        self.roots = tuple(roots)
        self.words = Vocabulary()
        self.engine = Engine()
        self.demand = Demand(self.engine, self.words)
        self._scope = scope
        self._declared: set[str] = set()
        self._rules = rules
        self._rule_of: dict[str, str] = {}  # engine rule name -> our rule's name
        self._known: set[Instance] = set()
        self._waiting: dict[Instance, set[Use]] = {}  # instances whose operators are not all present yet
        self._present: tuple[frozenset[str], tuple[int, ...]] | None = None
        self._compiler = Compiler(self.words, self.demand, self._declare, self._holds)
        self._read: dict[str, int] = {}
        self.matches: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._changes = 0
        self.engine.run(PRELUDE)
        self.engine.run(f"(ruleset {p})" for p in PHASES)
        self.written = postorder(self.roots)
        self.number = {e: i for i, e in enumerate(self.written)}
        self._insert(self.written)
        for _, proposed, rule in alternatives:
            new = [e for e in postorder([proposed], stop=self.number.__contains__) if e not in self.number]
            self.number |= {e: len(self.number) + i for i, e in enumerate(new)}
            self._insert(new, rule)
        self.engine.run(f"(union (node {self.number[a]}) (node {self.number[b]}))" for a, b, _ in alternatives)
        self._load()
        for _, _, rule in alternatives:
            self.matches[rule] = self.matches.get(rule, 0) + 1

    def __enter__(self) -> EGraph:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the engine go here and now: it must not be collected later, by another thread."""
        self.engine.close()

    def _declare(self, o: Opcode) -> list[str]:
        if o.symbol in self._declared:
            return []
        self._declared.add(o.symbol)
        return [*declarations(o), *self.demand.annotation_of(o)]

    def _holds(self, guard: Condition, env: dict[str, Dim]) -> bool:
        """Whether a guard is proved for all sizes the scope allows; unknown means no."""
        left, right = guard.left.substitute(env), guard.right.substitute(env)
        return isinstance(prove(f"{left} {guard.op} {right}", self._scope), Proved)

    def _insert(self, nodes: Sequence[Expr], rule: str = "") -> None:
        """Nodes of the program as written, or of what `rule` proposes. O(nodes)."""
        declared: list[str] = []
        commands: list[str] = []
        for e in nodes:
            i = self.number[e]
            if e.op in LEAVES:
                commands.append(f"(set (node {i}) {self.words.leaf(e)})")
            else:
                opcode, dims = self.words.opcode(e)
                declared += self._declare(opcode)
                args = [f"(node {self.number[a]})" for a in e.args] + [self.words.dim(d) for d in dims]
                commands.append(f"(set (node {i}) ({opcode.symbol} {' '.join(args)}))")
                if rule:
                    commands.append(f'(set (made_{opcode.symbol} {" ".join(args)}) "{rule}")')
                operands = tuple(a.annotation for a in e.args)
                if opcode.annotation is None and not self.demand.is_known(opcode, operands, dims):
                    commands.append(self.demand.annotation_entry(opcode, operands, dims, e.annotation))
        self.engine.run(declared)
        self.engine.run(commands)

    def _load(self) -> None:
        """The annotations of what was inserted, and which inputs are siblings. O(nodes)."""
        annotations = {a: k for k, a in enumerate(dict.fromkeys(e.annotation for e in self.number))}
        self.engine.run(f"(set (annotation {k}) {self.words.annotation(a)})" for a, k in annotations.items())
        self.engine.load("row_has_ann", ((i, annotations[e.annotation]) for e, i in self.number.items()))
        self.engine.load("row_in_order", self._siblings())
        self.engine.step("load")

    def _siblings(self) -> Iterator[tuple[int, int]]:
        """Pairs of program inputs that the same operator combines with the same first operand, in program order.

        What rules may merge (`InOrder`). Of many siblings only near neighbours are paired: all pairs of a fan-out of
        thousands would be millions.
        """
        groups: dict[tuple[str, Expr], list[Expr]] = {}
        for e in self.written:
            for a in e.args[1:]:
                if a.op == VAR:
                    groups.setdefault((e.op, e.args[0]), []).append(a)
        pairs: dict[tuple[int, int], None] = {}
        for group in groups.values():
            members = sorted(set(group), key=self.number.__getitem__)
            for n, a in enumerate(members):
                for b in members[n + 1 : n + SIBLINGS]:
                    pairs[self.number[a], self.number[b]] = None
        yield from pairs

    def saturate(self, budget: Budget, progress: Progress | None = None) -> Saturation:
        """Run the phases. Deterministic unless the clock ends it."""
        started = time.perf_counter()
        seconds: dict[str, float] = {}
        rounds = 0
        stop: StopReason | None = None
        if budget.nodes <= 0 or budget.seconds <= 0:
            stop = StopReason.NODE_LIMIT if budget.nodes <= 0 else StopReason.TIME_LIMIT
            return Saturation(stop, self.nodes(self.engine.sizes()), 0, {}, {})

        def over() -> StopReason | None:
            nodes = self.nodes(self._sizes)
            if progress is not None:
                progress(phase, nodes, sum(self.matches.values()))
            if nodes > budget.nodes:
                return StopReason.NODE_LIMIT
            return StopReason.TIME_LIMIT if time.perf_counter() - started > budget.seconds else None

        phase = "annotate"
        self._settle()
        plan = ["simplify", *(["algebra", "simplify"] * budget.rounds), "merge", "simplify", "layout"]
        saturated = False
        skip_to_merge = False
        simplified = -1  # matches made when simplification was last at its fixpoint
        for phase in plan:
            if (phase == "algebra" and skip_to_merge) or (phase == "simplify" and self._changes == simplified):
                continue
            # The engine matches only against what is new, so a round without matches is a fixpoint.
            before, began = self._changes, time.perf_counter()
            for _ in range(SIMPLIFY_ROUNDS if phase == "simplify" else 1):
                at = self._changes
                self._round(phase)
                rounds += 1
                tell(4, f"  round {rounds}: {self.nodes(self._sizes)} nodes, {self._changes - at} matches")
                stop = over()
                if stop is not None or self._changes == at:
                    break
            if phase == "simplify":
                simplified = self._changes
            spent = time.perf_counter() - began
            seconds[phase] = seconds.get(phase, 0.0) + spent
            nodes, found = self.nodes(self._sizes), self._changes - before
            tell(2, f"{phase}: {nodes} nodes, {found} matches, {1000 * spent:.1f} ms")
            if stop is not None:
                break
            if phase == "algebra" and self._changes == before:
                # Nothing new is to be had from the algebra rules: further rounds would only repeat this one.
                skip_to_merge = saturated = True
        if stop is None:
            stop = StopReason.SATURATED if saturated else StopReason.PHASES_DONE
        nodes = self.nodes(self._sizes)
        tell(2, f"saturated: {stop.value}, {nodes} nodes, {rounds} rounds")
        tell(3, "matches: " + ", ".join(f"{r} x{n}" for r, n in sorted(self.matches.items())))
        return Saturation(stop, nodes, rounds, dict(sorted(self.matches.items())), seconds)

    def nodes(self, sizes: dict[str, int]) -> int:
        """Nodes of operators and leaves, given the table sizes."""
        return sizes.get("Leaf", 0) + sum(sizes.get(s, 0) for s in self.words.by_symbol)

    def _round(self, phase: str) -> None:
        self._instantiate()
        found = self.engine.step(phase)
        for name, n in found.items():
            if n:
                rule = self._rule_of[name]
                self.matches[rule] = self.matches.get(rule, 0) + n
                self._changes += n
        self._settle()

    def _settle(self) -> None:
        """Annotate new nodes and answer what rules ask, to a fixpoint."""
        while True:
            self.engine.saturate("annotate")
            self.engine.step("demand")
            self._sizes = self.engine.sizes()
            if not self.demand.drain(self._sizes, self._read):
                break

    def _instantiate(self) -> None:
        """Compile the rule instances whose left sides' operators are now all present, at those ranks and dtypes."""
        present = {s for s in self.words.by_symbol if self._sizes.get(s, 0)}
        ranks, dtypes = self._seen()
        seen = (frozenset(present), tuple(ranks))
        if seen != self._present:
            self._present = seen
            operators = {self.words.by_symbol[s].op for s in present}
            for rule in self._rules:
                if rule.left_operators <= operators:
                    for instance in self._instances(rule, ranks, dtypes, present):
                        if instance not in self._known:
                            self._known.add(instance)
                            self._waiting[instance] = self._compiler.uses(instance)
        commands: list[str] = []
        for instance in [i for i, uses in self._waiting.items() if uses <= self.demand.uses]:
            del self._waiting[instance]
            name = f"{instance.rule.name}/{len(self._rule_of)}"
            self._rule_of[name] = instance.rule.name
            commands += self._compiler.compile(instance, name)
        self.engine.run(commands)
        if commands:
            self.engine.step("demand")
            self._sizes = self.engine.sizes()
            while self.demand.drain(self._sizes, self._read):
                self._sizes = self.engine.sizes()

    def _seen(self) -> tuple[list[int], list[str]]:
        ranks = [r for r in range(13) if self._sizes.get(f"Tensor{r}", 0)]
        found = {a.dtype for a in (e.annotation for e in self.written) if isinstance(a, Tensor)}
        return ranks, [d for d in FLOATS if d in found]

    def _instances(self, rule: Rule, ranks: list[int], dtypes: list[str], present: set[str]) -> Iterable[Instance]:
        choices = [self._attribute_values(source, present) for source in rule.attributes.values()]
        top = max(ranks, default=0)
        for block_ranks in product(range(top + 1), repeat=len(rule.stars)):
            if not rule.operand_ranks(block_ranks).issubset(ranks):
                continue
            for dtype in dtypes if rule.has_open_dtype else ["float32"]:
                for values in product(*choices):
                    instance = rule.instance(block_ranks, dtype, dict(zip(rule.attributes, values, strict=True)))
                    if instance is not None:
                        yield instance

    def _attribute_values(self, source: str, present: set[str]) -> list[Any]:
        op, _, name = source.partition(".")
        values: dict[Any, None] = {}
        for symbol, o in self.words.by_symbol.items():
            if o.op == op and symbol in present:
                values.setdefault(dict(o.static)[name])
        return list(values)
