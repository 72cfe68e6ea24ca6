"""A rule instance as engine rules: patterns on the left, flat lets and unions on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relax_eg.egraph.demand import Demand
from relax_eg.egraph.vocabulary import LEAVES, Opcode, Vocabulary
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.rules import Condition, InOrder, Instance
from relax_eg.shapes import Dim

Holds = Callable[[Condition, dict[str, Dim]], bool]


@dataclass(slots=True)
class Compiler:
    """Turns rule instances into engine commands for one e-graph.

    `declare(opcode)` makes sure that an opcode exists in the engine and gives the commands for it.
    """

    words: Vocabulary
    demand: Demand
    declare: Callable[[Opcode], list[str]]
    holds: Holds

    def left_symbols(self, instance: Instance) -> set[str]:
        """Symbols of the opcodes that must be present for the left side to match."""
        return {self.words.opcode(e)[0].symbol for e in instance.left_nodes if e.op not in LEAVES}

    def compile(self, instance: Instance, name: str) -> list[str]:
        """The commands that add `instance` to its phase's ruleset under the engine rule name `name`."""
        body = _Body(self)
        for e in instance.left_nodes:
            body.match(e)
        for p in instance.params:
            body.annotated(p)
        for guard in instance.guards:
            if isinstance(guard, InOrder):
                body.in_order(guard)
        questions, demanded = body.facts, _Demanded(body)
        for guard in instance.guards:
            if isinstance(guard, Condition):
                demanded.condition(guard)
        for fresh, d in body.compound:
            demanded.facts.append(f"(= {fresh} {demanded.lookup(d)})")
        actions = list(self._right(instance, name, body, demanded))
        rule_set = instance.rule.phase
        when = " ".join(questions + demanded.facts)
        commands = body.commands + demanded.commands
        if demanded.asks:
            asks = " ".join(demanded.asks)
            commands.append(f"(rule ({' '.join(questions)}) ({asks}) :ruleset demand)")
        commands.append(f'(rule ({when}) ({" ".join(actions)}) :ruleset {rule_set} :name "{name}")')
        return commands

    def _right(self, instance: Instance, name: str, body: _Body, demanded: _Demanded) -> Iterator[str]:
        names: dict[Expr, str] = {}
        rule_name = instance.rule.name
        for e in postorder(instance.right):
            if e in body.names:
                # A pattern variable, or a subterm that both sides share.
                names[e] = body.names[e]
                continue
            if e.op in LEAVES:
                names[e] = self.words.leaf(e)
                annotation = self.words.annotation(e.annotation)
                yield f"(has_ann {names[e]} {annotation})"
                continue
            opcode, dims = self.words.opcode(e)
            body.commands += self.declare(opcode)
            args = " ".join([names[a] for a in e.args] + [demanded.lookup(d) for d in dims])
            names[e] = f"r{len(names)}"
            yield f"(let {names[e]} ({opcode.symbol} {args}))"
            yield f'(set (made_{opcode.symbol} {args}) "{rule_name}")'
        for left, right in zip(instance.left, instance.right, strict=True):
            yield f"(union {body.names[left]} {names[right]})"


class _Body:
    """The left side of an engine rule, without what it has to ask for."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.words = compiler.words
        self.facts: list[str] = []
        self.names: dict[Expr, str] = {}
        self.sizes: dict[str, str] = {}  # size variable -> engine variable, for those some axis binds
        self.compound: list[tuple[str, Dim]] = []  # engine variable, and the expression it must equal
        self.commands: list[str] = []

    def match(self, e: Expr) -> None:
        if e.op in LEAVES:
            self.names[e] = self.words.leaf(e)
            return
        opcode, dims = self.words.opcode(e)
        self.commands += self.compiler.declare(opcode)
        args = [self._operand(a) for a in e.args] + [self._size(d) for d in dims]
        self.names[e] = f"e{len(self.names)}"
        self.facts.append(f"(= {self.names[e]} ({opcode.symbol} {' '.join(args)}))")

    def _operand(self, e: Expr) -> str:
        if e.op == VAR and e not in self.names:
            self.names[e] = f"v_{e.attr('name')}"
        return self.names[e]

    def annotated(self, p: Expr) -> None:
        annotation = p.annotation
        assert isinstance(annotation, Tensor) and annotation.shape is not None
        sizes = "".join(" " + self._size(d) for d in annotation.shape)
        self.facts.append(f'(has_ann {self.names[p]} (Tensor{len(annotation.shape)} "{annotation.dtype}"{sizes}))')

    def in_order(self, guard: InOrder) -> None:
        values = [f"v_{n}" for n in guard.names]
        self.facts += [f"(in_order {a} {b})" for a, b in zip(values, values[1:], strict=False)]

    def _size(self, d: Dim) -> str:
        if d.is_const:
            return self.words.dim(d)
        (name,) = d.variables if len(d.variables) == 1 else ("",)
        if name and d == Dim.var(name):
            return self.sizes.setdefault(name, f"s_{_plain(name)}")
        fresh = f"c{len(self.compound)}"
        self.compound.append((fresh, d))
        return fresh


class _Demanded:
    """Size expressions and guards that Python answers, as facts, and the questions that ask for them."""

    def __init__(self, body: _Body) -> None:
        self.body = body
        self.facts: list[str] = []
        self.asks: list[str] = []
        self.commands: list[str] = []
        self._known: dict[Dim, str] = {}

    def lookup(self, d: Dim) -> str:
        """The engine variable or term of a size expression over bound sizes."""
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
            self.asks.append(f"(need_{symbol} {args})")
        return self._known[d]

    def condition(self, guard: Condition) -> None:
        names = tuple(sorted(guard.left.variables | guard.right.variables))
        holds = self.body.compiler.holds
        symbol, commands = self.body.compiler.demand.condition(str(guard), names, lambda env: holds(guard, env))
        args = " ".join(self.body.sizes[n] for n in names)
        self.commands += commands
        self.facts.append(f"({symbol} {args})")
        self.asks.append(f"(need_{symbol} {args})")


def _plain(name: str) -> str:
    return name.replace(".", "_dot_")
