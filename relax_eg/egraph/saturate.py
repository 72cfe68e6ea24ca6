"""Saturation: grows a block's e-graph by rules in phases, within budgets.

The phases are: simplify to a fixpoint; a few rounds of algebra, with simplify after each; merge once; simplify again;
layout once; and last library, the rules that lead to library calls, whose results no rule of another phase matches.
`EGraph` runs the rounds one by one and checks the number of nodes and the clock between them, because the engine has
no way to stop inside a round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from relax_eg.dtypes import FLOATS, has_short_range
from relax_eg.egraph.budget import Budget, LeftOut, RoundFigures, RuleFigures, Saturation, StopReason
from relax_eg.egraph.demand import Demand
from relax_eg.egraph.engine import Engine, EngineError, TableRow, Value
from relax_eg.egraph.facts import FactBase
from relax_eg.egraph.growth import SMALL_GRAPH, Forecast, Growth
from relax_eg.egraph.patterns import Compiler, OperatorEdge, OperatorUse, operator_edges, required_uses
from relax_eg.egraph.sizes import EqualSizes
from relax_eg.egraph.vocabulary import PRELUDE, Opcode, OpcodeKey, Vocabulary, declarations
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.ir.heads import LEAVES
from relax_eg.limits import LARGEST_INT64, MANY_KEPT
from relax_eg.logs import log, log_at, report_progress, stage
from relax_eg.ops.partial_annotations import MAX_RANK
from relax_eg.rules import PHASES, Instance, Rule, RuleSet
from relax_eg.rules.attribute_variables import read_source
from relax_eg.rules.book.contraction import SCALES
from relax_eg.rules.book.recognised import RECOGNISED, asked_values
from relax_eg.rules.facts.parameter_facts import DeclaredFacts
from relax_eg.shapes import Dim, Proved, Relation, Scope, Unknown, prove
from relax_eg.shapes.dim import is_plain

# limit: most rounds of the phases that have several; "library" prepares patterns, makes calls to routines, and matches
# these calls.
ROUNDS = {"simplify": 200, "library": 6}
APPLIED_PER_SECOND = 150_000.0  # chosen: matches, until a round of at least `SPEED_SAMPLE` measures the speed
SPEED_SAMPLE = 1_000  # chosen: matches of a round that are enough to measure the speed of application
# limit: new nodes that a rule may make in the merge phase, or as many as the graph has if that is more. Where algebra
# found many ways to compute two values, a rule may merge all pairs of them, and unchosen nodes are priced too.
MERGE_NODES = 10_000
LEAST_GROWN = 2_000  # limit: nodes that algebra may find whatever `Budget.growth` says
_TICK = 1e-6  # chosen: seconds; a lower bound, because the clock may not have moved
_SPEED_MARGIN = 2  # chosen: factor on the time left, because the speed is an estimate and leaving a rule out is final
SIBLINGS = 3  # limit: siblings, itself included, in the window in which an input is paired with others


class EGraph:
    """The e-graph of one dataflow block.

    - `roots`: the block's results.
    - `rules`, `scope`: the rules of the search, and what is assumed of sizes.
    - `alternatives`: (node, equal expression, rule) for the proposals of rules about functions; the expressions are
      in the node's class from the start.
    - `makers`: the rules that made the nodes of `alternatives` that are not in the program as written.
    - `declared`: what is known of the values of parameters.
    - `record`: whether every match is kept, so that results can be explained (`egraph.recording`).
    - `warns`: whether a rule that is left out is a warning.
    """

    @stage("insert")
    def __init__(
        self,
        roots: Iterable[Expr],
        rules: RuleSet,
        scope: Scope,
        alternatives: Sequence[tuple[Expr, Expr, str]] = (),
        declared: DeclaredFacts | None = None,
        record: bool = False,
        makers: Mapping[Expr, str] | None = None,
        warns: bool = True,
    ) -> None:
        self._warns = warns
        self.roots = tuple(roots)
        self.words = Vocabulary()
        self.engine = Engine()
        self.demand = Demand(self.engine, self.words)
        self._scope = scope
        self._solved = scope.determined_variables()
        self._declared: set[str] = set()
        self._rules = rules
        self._rule_of: dict[str, str] = {}  # engine rule name -> our rule's name
        self._rulesets: dict[str, dict[str, str]] = {p: {} for p in PHASES}  # by phase: rule's name -> its ruleset
        self._question_rulesets: dict[str, str] = {}  # rule's name -> the ruleset of its questions
        self._last = ""  # the last phase while it runs, else ""; rules of other phases then ask nothing any more
        self._growth = Growth(self.engine, self.words.by_symbol)
        self._left_out: dict[str, LeftOut] = {}
        self._budget = Budget()
        self._grown = 0.0  # nodes of the graph from which on algebra finds no more
        self._started = 0.0
        self._speed = APPLIED_PER_SECOND
        self._tables: dict[str, list[TableRow]] | None = None
        self._known: set[Instance] = set()
        self._waiting: dict[Instance, frozenset[OperatorUse]] = {}  # instances not compiled yet -> uses they need
        self._present: tuple[frozenset[str], tuple[int, ...]] | None = None
        self._questions_read: dict[str, int] = {}
        self._edges: set[OperatorEdge] = set()  # the graph's operator edges when it had the figures `_edges_at`
        self._edges_at: tuple[int, ...] = ()  # number of matches, and rows of each operator's table
        self._equal_sizes = EqualSizes(scope)
        self._sizes_compared = 0
        self.matches: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._changes = 0
        self._unproved: dict[str, None] = {}
        self.engine.run(PRELUDE)
        self.written = postorder(self.roots)
        self.number = {e: i for i, e in enumerate(self.written)}
        self.facts = FactBase(self.engine, self.words, scope, declared or DeclaredFacts(), self.roots, self.number)
        self.fired: dict[str, tuple[Instance, tuple[str, ...]]] = {}  # relation of matches -> instance, sizes it binds
        kept = self.fired if record else None
        self._compiler = Compiler(self.words, self.demand, self.facts, self._declare, self._holds, kept)
        self._insert(self.written)
        for asked, proposed, rule in alternatives:
            new = [e for e in postorder([asked, proposed], stop=self.number.__contains__) if e not in self.number]
            self.number |= {e: len(self.number) + i for i, e in enumerate(new)}
            self._insert(new, rule, makers or {})
        self.engine.run(f"(union (node {self.number[a]}) (node {self.number[b]}))" for a, b, _ in alternatives)
        self._load()
        for _, _, rule in alternatives:
            self.matches[rule] = self.matches.get(rule, 0) + 1

    def __enter__(self) -> EGraph:
        return self

    def __exit__(self, *_: object) -> None:
        """Frees the engine at once: another thread must not collect it later."""
        self.engine.close()

    def simple_form(self, size: Dim) -> Dim:
        """Returns an equal size without the variables that equalities determine, and, if the facts about sizes say so,
        without extremes and quotients."""
        solved = size.substitute(self._solved) if self._solved else size
        simple = solved if is_plain(solved) else self._scope.prover.simplify(solved)
        return simple if is_plain(simple) else solved

    def _declare(self, o: Opcode) -> list[str]:
        if o.symbol in self._declared:
            return []
        self._declared.add(o.symbol)
        return [*declarations(o), *self.demand.annotation_of(o)]

    def _holds(self, guard: Relation, env: dict[str, Dim]) -> bool:
        """Whether a guard is proved for all sizes that the scope allows; unknown counts as no."""
        relation = guard.substitute(env)
        verdict = prove(relation, self._scope)
        if isinstance(verdict, Unknown):
            self._unproved[str(relation)] = None
        return isinstance(verdict, Proved)

    def _insert(self, nodes: Sequence[Expr], rule: str = "", makers: Mapping[Expr, str] | None = None) -> None:
        """Inserts nodes of the program as written, or those that `rule` proposes unless other rules are their `makers`.
        O(nodes)."""
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
                if made_by := (makers or {}).get(e, rule):
                    commands.append(f'(set (made_{opcode.symbol} {" ".join(args)}) "{made_by}")')
                operands = tuple(a.annotation for a in e.args)
                if opcode.annotation is None and not self.demand.is_known(opcode, operands, dims):
                    commands.append(self.demand.annotation_entry(opcode, operands, dims, e.annotation))
        self.engine.run(declared)
        self.engine.run(commands)

    def _load(self) -> None:
        """Loads the annotations of the inserted nodes, and the pairs of inputs that are siblings. O(nodes)."""
        annotations = {a: k for k, a in enumerate(dict.fromkeys(e.annotation for e in self.number))}
        self.engine.run(f"(set (annotation {k}) {self.words.annotation(a)})" for a, k in annotations.items())
        self.engine.load("row_has_ann", ((i, annotations[e.annotation]) for e, i in self.number.items()))
        self.engine.load("row_in_order", self._siblings())
        self.engine.step("load")

    def _siblings(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of program inputs that the same operator combines with the same first operand, in program order.

        These are the inputs that rules may merge (`InOrder`). Each input is paired with the next `SIBLINGS` - 1 only,
        because a fan-out of thousands has millions of pairs.
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

    @stage("saturate")
    def saturate(self, budget: Budget) -> Saturation:
        """Runs the phases. The result is deterministic unless the limit on this thread's computing time ends them."""
        self._budget, self._started, self._tables = budget, time.thread_time(), None
        self._growth.allow(budget.seconds)
        seconds: dict[str, float] = {}
        rounds = peak = 0
        if budget.nodes == 0 or budget.seconds == 0:
            stop = StopReason.NODE_LIMIT if budget.nodes == 0 else StopReason.TIME_LIMIT
            nodes = self.nodes(self.engine.sizes())
            return Saturation(stop, nodes, nodes, 0, self._figures())

        def over() -> StopReason | None:
            nonlocal peak
            nodes = self.nodes(self._sizes)
            peak = max(peak, nodes)
            report_progress(phase, nodes, sum(self.matches.values()))
            if nodes > budget.nodes:
                return StopReason.NODE_LIMIT
            return StopReason.TIME_LIMIT if self._seconds_left() < 0 else None

        phase = "annotate"
        self._annotate_and_answer()
        stop = over()
        self._grown = max(LEAST_GROWN, budget.growth * self.nodes(self._sizes))
        growth = [RoundFigures(phase, self.nodes(self._sizes), 0)]
        plan = ["simplify", *(["algebra", "simplify"] * budget.rounds), "merge", "simplify", "layout", "library"]
        saturated = False
        skip_to_merge = False
        simplified = -1  # matches made when simplify last reached its fixpoint
        for phase in plan if stop is None else ():
            self._last = phase if phase == plan[-1] else ""
            if (phase == "algebra" and skip_to_merge) or (phase == "simplify" and self._changes == simplified):
                continue
            # The engine matches only against what is new, so a round without matches is a fixpoint.
            before, began, at_first = self._changes, time.thread_time(), self.nodes(self._sizes)
            fitted = len(self._left_out)
            for _ in range(ROUNDS.get(phase, 1)):
                at = self._changes
                self._round(phase)
                rounds += 1
                growth.append(RoundFigures(phase, self.nodes(self._sizes), self._changes - at))
                log_at(4, f"  round {rounds}: {self.nodes(self._sizes)} nodes, {self._changes - at} matches")
                stop = over()
                if stop is not None or self._changes == at:
                    break
            if phase == "simplify":
                simplified = self._changes
            spent = time.thread_time() - began
            seconds[phase] = seconds.get(phase, 0.0) + spent
            nodes, found = self.nodes(self._sizes), self._changes - before
            log_at(2, f"{phase}: {nodes} nodes, {found} matches, {1000 * spent:.1f} ms")
            if stop is not None:
                break
            if phase == "algebra":
                # Where the algebra rules found nothing new, further rounds would repeat this one.
                saturated = self._changes == before
                # The next round is taken to multiply the nodes by as much as this one. Where a rule did not fit, it
                # would be one of what the others made, which grows as well.
                skip_to_merge = saturated or len(self._left_out) > fitted or nodes * nodes > self._grown * at_first
        if stop is None:
            stop = StopReason.SATURATED if saturated else StopReason.PHASES_DONE
            stop = next((x.reason for x in self._left_out.values()), stop)
        nodes, rules = self.nodes(self._sizes), self._figures()
        log_at(2, f"saturated: {stop.value}, {nodes} nodes, {rounds} rounds")
        log_at(3, "matches: " + ", ".join(f"{r} x{f.matches}, {f.nodes} nodes" for r, f in rules.items()))
        reported = tuple(self._left_out.values()), tuple(growth), tuple(self._unproved)
        return Saturation(stop, nodes, peak, rounds, rules, seconds, *reported)

    def are_equal(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are in one class now. Inserts their nodes that the graph lacks."""
        new = [e for e in postorder((a, b), stop=self.number.__contains__) if e not in self.number]
        self.number |= {e: len(self.number) + i for i, e in enumerate(new)}
        self._insert(new)
        try:
            self.engine.run([f"(check (= (node {self.number[a]}) (node {self.number[b]})))"])
        except EngineError:
            return False
        return True

    def tables(self) -> dict[str, list[TableRow]]:
        """Returns the engine's tables after saturation, read once."""
        if self._tables is None:
            self._tables = self.engine.tables()
        return self._tables

    def _figures(self) -> dict[str, RuleFigures]:
        made: Counter[str] = Counter()
        for symbol in self.words.by_symbol:
            for name, n in Counter(r.output for r in self.tables().get(f"made_{symbol}", ())).items():
                made[self.engine.text(name)] += n
        spent = dict.fromkeys(self.matches, 0.0)
        for name, ms in self.engine.milliseconds().items():
            rule = self._rule_of.get(name)
            if rule in spent:
                spent[rule] += ms
        return {r: RuleFigures(n, made[r], round(spent[r], 3)) for r, n in sorted(self.matches.items())}

    def nodes(self, sizes: dict[str, int]) -> int:
        """Returns the number of operator and leaf nodes, given the table sizes."""
        return sizes.get("Leaf", 0) + sum(sizes.get(s, 0) for s in self.words.by_symbol)

    def _seconds_left(self) -> float:
        return self._budget.seconds - (time.thread_time() - self._started)

    def _round(self, phase: str) -> None:
        """Runs the rules of `phase` once: all at once if their possible growth fits, else one by one, without those
        that do not fit, until the node budget is spent. So no round ends beyond twice that budget. Where rules of
        algebra run one by one, they have to fit what algebra may find, so that one of them does not use up the budget.
        """
        self._growth.begin()
        self._instantiate()
        rules = list(self._rulesets[phase])
        nodes, room = self._room(phase)
        if self._growth.forecast(rules, self._sizes, nodes, room).fits(room):
            self._apply(phase, rules)
        else:
            for rule in rules:
                nodes, room = self._room(phase)
                if nodes > self._budget.nodes or self._seconds_left() < 0:
                    break
                if phase == "algebra":
                    room = Forecast(room.matches, int(min(room.nodes, max(self._grown - nodes, 0))))
                forecast = self._growth.forecast_alone(rule, self._sizes, nodes, room)
                if forecast.fits(room):
                    self._apply(phase, [rule])
                    self.engine.saturate("annotate")
                    self._sizes = self.engine.sizes()
                else:
                    reason = StopReason.NODE_LIMIT if forecast.nodes > room.nodes else StopReason.TIME_LIMIT
                    self._leave_out(LeftOut(rule, forecast.matches, forecast.nodes, nodes, reason))
        self._annotate_and_answer()

    def _room(self, phase: str) -> tuple[int, Forecast]:
        """Returns the present number of nodes, and the matches and nodes that a round of `phase`, or a rule in it, may
        add."""
        nodes = self.nodes(self._sizes)
        most = min(max(_SPEED_MARGIN * self._speed * self._seconds_left(), SPEED_SAMPLE), LARGEST_INT64)
        new = 2 * self._budget.nodes - nodes
        return nodes, Forecast(int(most), min(new, max(nodes, MERGE_NODES)) if phase == "merge" else new)

    def _leave_out(self, unfit: LeftOut) -> None:
        self._left_out[unfit.rule] = unfit
        for rulesets in (self._question_rulesets, *self._rulesets.values()):
            rulesets.pop(unfit.rule, None)
        if self._warns:
            log.warning("%s", unfit)

    def _apply(self, phase: str, rules: list[str]) -> None:
        began, before = time.thread_time(), self._changes
        found = self.engine.step(*(self._rulesets[phase][r] for r in rules))
        self._growth.record_run(rules)
        for name, n in found.items():
            if n:
                rule = self._rule_of[name]
                self.matches[rule] = self.matches.get(rule, 0) + n
                self._changes += n
        if self._changes - before >= SPEED_SAMPLE:
            self._speed = (self._changes - before) / max(time.thread_time() - began, _TICK)

    def _annotate_and_answer(self) -> None:
        """Annotates new nodes and answers the questions of rules, to a fixpoint."""
        if self._rules_with_questions():
            self._sizes = self.engine.sizes()
            self._drop_endless_questions()
        while True:
            self.engine.saturate("annotate")
            self._write_questions()
            answered = self.demand.answer_questions(self._sizes, self._questions_read)
            if not self._union_sizes() and not answered:
                break
        self.facts.answer_questions(self._sizes)

    def _union_sizes(self) -> bool:
        """Unions sizes that are proved equal. Returns whether there were any."""
        new = self.words.dims_from(self._sizes_compared)
        self._sizes_compared += len(new)
        found = self._equal_sizes.proved(new)
        self.engine.run(f"(union {self.words.dim(a)} {self.words.dim(b)})" for a, b in found)
        for a, b in found:
            log_at(3, f"sizes proved equal: {a} = {b}")
        return bool(found)

    def _write_questions(self) -> None:
        """Runs the rulesets that write the questions of rules into tables."""
        self.engine.step(*(self._question_rulesets[rule] for rule in self._rules_with_questions()))
        self._sizes = self.engine.sizes()

    def _rules_with_questions(self) -> list[str]:
        """Returns the rules whose questions have to be answered: in the last phase those of this phase only."""
        return [rule for rule in self._question_rulesets if not self._last or rule in self._rulesets[self._last]]

    def _drop_endless_questions(self) -> None:
        """Leaves out rules whose left sides have too many matches to be counted, because questions are matched too."""
        nodes = self.nodes(self._sizes)
        for rule in self._rules_with_questions():
            found = self._growth.uncountable_matches(rule, self._sizes, nodes)
            if found:
                self._leave_out(LeftOut(rule, found, 0, nodes, StopReason.TIME_LIMIT))

    def _instantiate(self) -> None:
        """Compiles the rule instances whose left-side operators are all present by now, at those ranks and dtypes."""
        present = {s for s in self.words.by_symbol if self._sizes.get(s, 0)}
        ranks, dtypes = self._ranks_and_dtypes()
        seen = (frozenset(present), tuple(ranks))
        if seen != self._present:
            self._present = seen
            operators = {self.words.by_symbol[s].op for s in present}
            for rule in self._rules:
                if rule.name not in self._left_out and rule.left_operators <= operators:
                    for instance in self._instances(rule, ranks, dtypes, present):
                        if instance not in self._known:
                            self._known.add(instance)
                            self._waiting[instance] = required_uses(instance)
        present_uses = {(self.words.keys[symbol], operands) for symbol, operands in self.demand.uses}
        commands: list[str] = []
        ready = [i for i, uses in self._waiting.items() if uses <= present_uses]
        if ready and self.nodes(self._sizes) <= SMALL_GRAPH:
            figures = self._changes, *(self._sizes.get(s, 0) for s in self.words.by_symbol)
            if figures != self._edges_at:
                self._edges_at, self._edges = figures, self._operator_edges()
            ready = [i for i in ready if operator_edges(i) <= self._edges]
        for instance in ready:
            del self._waiting[instance]
            if instance.rule.name not in self._left_out and self.facts.is_relevant(instance):
                commands += self._compiled(instance)
        self.engine.run(commands)
        if commands:
            self._drop_endless_questions()
            self._write_questions()
            while self.demand.answer_questions(self._sizes, self._questions_read):
                self._sizes = self.engine.sizes()
            self.facts.answer_questions(self._sizes)

    def _operator_edges(self) -> set[OperatorEdge]:
        """Returns the pairs of operators of which one reads a class that holds the other. O(rows of tables times
        members of classes).

        A rule costs the engine about a millisecond before it matches anything. A small graph therefore gets only the
        rules whose operators read each other in it."""
        rows = [(key, row) for s, key in self.words.keys.items() for row in self._growth.tables().get(s, ())]
        members: dict[Value, set[OpcodeKey]] = {}
        for key, row in rows:
            members.setdefault(row.output, set()).add(key)
        return {(key, i, inner) for key, row in rows for i, x in enumerate(row.inputs) for inner in members.get(x, ())}

    def _compiled(self, instance: Instance) -> list[str]:
        """Returns the engine commands of an instance; all instances of a rule share one ruleset."""
        rule, commands = instance.rule, list[str]()
        rulesets = self._rulesets[rule.phase]
        if rule.name not in rulesets:
            rulesets[rule.name] = f"rule_{len(self._rule_of)}"
            commands.append(f"(ruleset {rulesets[rule.name]})")
        name, questions = f"{rule.name}/{len(self._rule_of)}", f"asks_{rulesets[rule.name]}"
        compiled = self._compiler.compile(instance, name, rulesets[rule.name], questions)
        if compiled.has_questions and rule.name not in self._question_rulesets:
            self._question_rulesets[rule.name] = questions
            commands.append(f"(ruleset {questions})")
        self._rule_of[name] = rule.name
        self._growth.add(rule.name, instance.params, compiled)
        return commands + compiled.commands

    def _ranks_and_dtypes(self) -> tuple[list[int], list[str]]:
        ranks = [r for r in range(MAX_RANK + 1) if self._sizes.get(f"Tensor{r}_", 0)]
        found = {a.dtype for a in (e.annotation for e in self.written) if isinstance(a, Tensor)}
        return ranks, [d for d in FLOATS if d in found]

    def _instances(self, rule: Rule, ranks: list[int], dtypes: list[str], present: set[str]) -> Iterable[Instance]:
        choices = tuple(tuple(self._attribute_values(rule, source, present)) for source in rule.attributes.values())
        return _instances_at(rule, tuple(ranks), tuple(dtypes) if rule.has_open_dtype else ("float32",), choices)

    def _attribute_values(self, rule: Rule, source: str, present: set[str]) -> list[Any]:
        operators, attribute = read_source(source)
        values: dict[Any, None] = {}
        for symbol, o in self.words.by_symbol.items():
            if o.op in operators and symbol in present:
                values.setdefault(dict(o.static)[attribute] if attribute else o.op)
        if RECOGNISED in rule.tags:
            values |= dict.fromkeys(v for r in self._rules if r is not rule for v in asked_values(r, source))
        return list(values)


@lru_cache(MANY_KEPT)
def _instances_at(
    rule: Rule, ranks: tuple[int, ...], dtypes: tuple[str, ...], choices: tuple[tuple[Any, ...], ...]
) -> tuple[Instance, ...]:
    """Returns the instances of a rule for operands of these ranks and float dtypes, at these attribute values. Programs
    with the same ranks, dtypes and values share them."""
    found: list[Instance] = []
    for block_ranks in product(range(max(ranks, default=0) + 1), repeat=len(rule.block_names)):
        if not rule.operand_ranks(block_ranks).issubset(ranks):
            continue
        for dtype in dtypes:
            if SCALES in rule.tags and has_short_range(dtype):
                continue
            for values in product(*choices):
                instance = rule.usable_instance(block_ranks, dtype, dict(zip(rule.attributes, values, strict=True)))
                if instance is not None:
                    found.append(instance)
    return tuple(found)
