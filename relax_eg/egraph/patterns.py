"""Compiles a rule instance to engine rules: patterns on the left, flat lets and unions on the right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from relax_eg.egraph.demand import Demand, Operands, operands_of
from relax_eg.egraph.facts import FactBase
from relax_eg.egraph.query import Query, QueryAtom
from relax_eg.egraph.vocabulary import Opcode, OpcodeKey, Vocabulary, opcode_key
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, postorder
from relax_eg.ir.heads import LEAVES
from relax_eg.limits import MANY_KEPT
from relax_eg.rules import InOrder, Instance
from relax_eg.rules.conditions import ValueGuard
from relax_eg.shapes import Dim, Relation

Holds = Callable[[Relation, dict[str, Dim]], bool]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule instance as engine commands, with the figures from which `Growth` bounds its growth.

    - `commands`: the engine commands that declare its tables and rules.
    - `atoms`: rows that a match needs.
    - `filters`: the other facts of the left side if the instance has questions for Python; else empty.
    - `facts`: the whole left side as text.
    - `right`: nodes that one match adds at most, operands first.
    - `ground_nodes`: nodes that all matches together add at most, because they do not depend on the match.
    - `leaves`: number of leaves that all matches together add at most.
    - `has_questions`: whether the instance has questions for Python.
    """

    commands: list[str]
    atoms: tuple[QueryAtom, ...]
    filters: tuple[str, ...]
    facts: str
    right: tuple[QueryAtom, ...]
    ground_nodes: tuple[QueryAtom, ...]
    leaves: int
    has_questions: bool


# An operator with the ranks and dtypes of its operands; it does not depend on the e-graph.
OperatorUse = tuple[OpcodeKey, Operands]


@lru_cache(MANY_KEPT)
def required_uses(instance: Instance) -> frozenset[OperatorUse]:
    """Returns the uses of operators that must be present for the left side to match."""
    nodes = [e for e in instance.left_nodes if e.op not in LEAVES]
    return frozenset((key := opcode_key(e)[0], operands_of(key[-1], (a.annotation for a in e.args))) for e in nodes)


# An operator that reads the result of another: the reader, the index of the operand, the operator read.
OperatorEdge = tuple[OpcodeKey, int, OpcodeKey]


@lru_cache(MANY_KEPT)
def operator_edges(instance: Instance) -> frozenset[OperatorEdge]:
    """Returns the pairs of left-side operators of which one reads the other. The left side can match only in a graph
    that has each pair."""
    keys = {e: opcode_key(e)[0] for e in instance.left_nodes if e.op not in LEAVES}
    return frozenset((key, i, keys[a]) for e, key in keys.items() for i, a in enumerate(e.args) if a in keys)


@dataclass(slots=True)
class Compiler:
    """Turns rule instances into engine commands for one e-graph.

    - `words`: the symbols of the e-graph.
    - `demand`, `facts`: the functions and the facts that Python answers.
    - `declare`: returns the commands that declare an opcode; none if it is declared already.
    - `holds`: whether a guard on sizes is proved when its variables have the given values.
    - `fired`: if matches are recorded, for each instance's relation the instance and the names of the sizes it binds;
      else None.
    """

    words: Vocabulary
    demand: Demand
    facts: FactBase
    declare: Callable[[Opcode], list[str]]
    holds: Holds
    fired: dict[str, tuple[Instance, tuple[str, ...]]] | None = None

    def compile(self, instance: Instance, name: str, ruleset: str, demand: str) -> Compiled:
        """Compiles `instance` to a rule of `ruleset` under the engine rule name `name`. The rule that writes its
        questions belongs to the ruleset `demand`."""
        body = _Body(self)
        for e in instance.left_nodes:
            body.match(e)
        for p in instance.params:
            body.annotated(p)
        for left in instance.left:
            body.not_within_itself(left)
        for guard in instance.guards:
            if isinstance(guard, InOrder):
                body.in_order(guard)
        questions, demanded = [*(a.fact for a in body.atoms), *body.facts], _Demanded(body)
        for guard in instance.guards:
            if isinstance(guard, Relation):
                demanded.condition(guard)
            elif not isinstance(guard, InOrder):
                demanded.value(guard)
        for fresh, d in body.compound:
            demanded.facts.append(f"(= {fresh} {demanded.lookup(d)})")
        filters = (*body.facts, *demanded.facts) if demanded.facts else ()
        right = _Right(body, demanded, instance)
        if self.fired is not None:
            right.actions.append(self._record(body, instance))
        facts = " ".join(questions + demanded.facts)
        commands = body.commands + demanded.commands
        if demanded.questions:
            commands.append(f"(rule ({' '.join(questions)}) ({' '.join(demanded.questions)}) :ruleset {demand})")
        commands.append(f'(rule ({facts}) ({" ".join(right.actions)}) :ruleset {ruleset} :name "{name}")')
        made = tuple(right.atoms), tuple(right.ground_nodes), right.leaves
        return Compiled(commands, tuple(body.atoms), filters, facts, *made, bool(demanded.questions))

    def _record(self, body: _Body, instance: Instance) -> str:
        """Returns the action that records a match of `instance`: its variables, and the sizes it binds."""
        assert self.fired is not None
        symbol, sizes = f"fired_{len(self.fired)}_", tuple(body.sizes)
        self.fired[symbol] = (instance, sizes)
        body.commands.append(f"(relation {symbol} ({'T ' * len(instance.params)}{'Dim ' * len(sizes)}))")
        values = [body.names[p] for p in instance.params]
        return f"({' '.join([symbol, *values, *(body.sizes[n] for n in sizes)])})"


class _Right:
    """The right side of an engine rule.

    - `actions`: the engine's actions.
    - `atoms`: nodes made for each match.
    - `ground_nodes`: nodes that are the same for all matches.
    - `leaves`: number of leaves; they are the same for all matches.
    """

    def __init__(self, body: _Body, demanded: _Demanded, instance: Instance) -> None:
        words = body.words
        self.actions: list[str] = []
        self.atoms: list[QueryAtom] = []
        self.ground_nodes: list[QueryAtom] = []
        self.leaves = 0
        names: dict[Expr, str] = {}
        fixed: set[Expr] = set()
        for e in postorder(instance.right):
            if e in body.names:
                # A pattern variable, or a subterm that both sides share.
                names[e] = body.names[e]
                continue
            if e.op in LEAVES:
                names[e] = words.leaf(e)
                self.actions.append(f"(has_ann {names[e]} {words.annotation(e.annotation)})")
                fixed.add(e)
                self.leaves += 1
                continue
            opcode, dims = words.opcode(e)
            body.commands += body.compiler.declare(opcode)
            names[e] = f"r{len(names)}"
            sizes = tuple(demanded.lookup(d) for d in dims)
            atom = QueryAtom(opcode.symbol, tuple(names[a] for a in e.args), sizes, names[e])
            self.actions.append(f"(let {atom.output} {atom.row})")
            self.actions.append(f'(set {atom.row.replace("(", "(made_", 1)} "{instance.rule.name}")')
            if all(a in fixed for a in e.args) and all(d.is_const for d in dims):
                fixed.add(e)
                self.ground_nodes.append(atom)
            else:
                self.atoms.append(atom)
        for left, right in zip(instance.left, instance.right, strict=True):
            self.actions.append(f"(union {body.names[left]} {names[right]})")


class _Body(Query):
    """The left side of a rule instance, without the facts that Python answers.

    - `sizes`: for each size variable that an axis binds, its engine variable.
    - `compound`: pairs of an engine variable and the size expression that it must equal.
    - `commands`: the declarations of the operators on the left side.
    """

    def __init__(self, compiler: Compiler) -> None:
        super().__init__()
        self.compiler = compiler
        self.words = compiler.words
        self.sizes: dict[str, str] = {}
        self.compound: list[tuple[str, Dim]] = []
        self.commands: list[str] = []

    def match(self, e: Expr) -> None:
        if e.op in LEAVES:
            self.names[e] = self.words.leaf(e)
            return
        opcode, dims = self.words.opcode(e)
        self.commands += self.compiler.declare(opcode)
        self.row(e, opcode, [self.operand(a) for a in e.args], [self._size(d) for d in dims])

    def annotated(self, p: Expr) -> None:
        annotation = p.annotation
        assert isinstance(annotation, Tensor) and annotation.shape is not None
        sizes = "".join(" " + self._size(d) for d in annotation.shape)
        self.facts.append(f'(has_ann {self.names[p]} (Tensor{len(annotation.shape)}_ "{annotation.dtype}"{sizes}))')

    def not_within_itself(self, left: Expr) -> None:
        """Leaves out matches in which a node equals an operand of the same operator. In `where(c, where(d, x, y), y)`,
        equal to its own operand, conditions could be joined without end, and what the rule makes of it holds more
        than the operand."""
        same = (e for e in postorder((left,)) if e is not left and e.op == left.op and e.op not in LEAVES)
        self.facts += [f"(!= {self.names[left]} {self.names[e]})" for e in same]

    def in_order(self, guard: InOrder) -> None:
        values = [f"v_{n}" for n in guard.names]
        self.atoms += [QueryAtom("in_order", pair) for pair in zip(values, values[1:], strict=False)]

    def _size(self, d: Dim) -> str:
        if d.is_const:
            return self.words.dim(d)
        (name,) = d.variables if len(d.variables) == 1 else ("",)
        if name and d == Dim.var(name):
            return self.sizes.setdefault(name, f"s_{name.replace('.', '_dot_')}")
        fresh = f"c{len(self.compound)}"
        self.compound.append((fresh, d))
        return fresh


class _Demanded:
    """The size expressions and guards of a rule instance that Python answers.

    - `facts`: the facts that look up the answers.
    - `questions`: the actions that write the questions down.
    - `commands`: the declarations of both.
    """

    def __init__(self, body: _Body) -> None:
        self.body = body
        self.facts: list[str] = []
        self.questions: list[str] = []
        self.commands: list[str] = []
        self._known: dict[Dim, str] = {}

    def lookup(self, d: Dim) -> str:
        """Returns the engine variable or term of a size expression over bound sizes."""
        if d.is_const:
            return self.body.words.dim(d)
        names = tuple(sorted(d.variables))
        if len(names) == 1 and d == Dim.var(names[0]):
            return self.body.sizes[names[0]]
        if d not in self._known:
            symbol, commands = self.body.compiler.demand.dim_function(d, names)
            args = " ".join(self.body.sizes[n] for n in names)
            self._known[d] = f"q{len(self._known)}"
            self.commands += commands
            self.facts.append(f"(= {self._known[d]} ({symbol} {args}))")
            self.questions.append(f"(need_{symbol} {args})")
        return self._known[d]

    def condition(self, guard: Relation) -> None:
        names = tuple(sorted(guard.variables))
        holds = self.body.compiler.holds
        symbol, commands = self.body.compiler.demand.condition(str(guard), names, lambda env: holds(guard, env))
        args = " ".join(self.body.sizes[n] for n in names)
        self.commands += commands
        self.facts.append(f"({symbol} {args})")
        self.questions.append(f"(need_{symbol} {args})")

    def value(self, guard: ValueGuard) -> None:
        found, asked, commands = self.body.compiler.facts.lookup(guard, f"v_{guard.name}")
        self.commands += commands
        self.facts.append(found)
        if asked:
            self.questions.append(asked)
