"""Finds the largest partial match of a rule in an e-graph, and the problems that prevent a whole match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

from relax_eg.dtypes import FLOATS
from relax_eg.errors import OperatorError
from relax_eg.explain.infix import short_infix_text
from relax_eg.explain.record import Recording, build_node, leaf_signature, signature_of
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.ir.heads import LEAVES
from relax_eg.rules import Claim, InOrder, Instance, Rule, ValueTest
from relax_eg.rules.attribute_variables import read_source
from relax_eg.rules.conditions import WORDS, Guard, key_of
from relax_eg.rules.facts.propagation import KnownFacts
from relax_eg.rules.format import expression_text
from relax_eg.rules.matching import Match, Matcher
from relax_eg.rules.rule import instances
from relax_eg.shapes import Dim, Proved, Relation, Scope, prove
from relax_eg.traversal import grouped

_MOST_INSTANCES = 256  # limit: instances of a rule that are tried
_MOST_ROWS = 8  # limit: nodes of one operator in a class that are tried
_LARGEST_RANK = 4  # limit: axes of a block of a rule's operand

Row = tuple[str, Mapping[str, Any], tuple[int, ...]]  # a node: its operator, attributes, and classes of its operands


class Graph:
    """A recorded e-graph with an expression for every class, from the program as written if the class has one there.

    - `rows`: the nodes of each class.
    - `class_of`: the class of each expression of the program as written.
    - `expressions`: the expression of each class.
    - `written`: the classes that the program as written has.
    """

    def __init__(self, recording: Recording, written: Sequence[Expr]) -> None:
        self.recording = recording
        classes = ((sign, children, c) for (sign, children), c in recording.classes.items() if sign[0] != "leaf")
        self.rows = grouped((c, (sign[0], dict(sign[1]), children)) for sign, children, c in classes)
        self.class_of: dict[Expr, int] = {}
        self.expressions: dict[int, Expr] = {}
        self.written: set[int] = set()
        for e in postorder(written):
            key = signature_of(e, recording.canonical_sizes), tuple(self.class_of[a] for a in e.args)
            c = self.class_of[e] = recording.classes[key]
            self.expressions.setdefault(c, e)
            self.written.add(c)
        self._find_other_expressions()

    def _find_other_expressions(self) -> None:
        """Finds expressions for the classes that only rules made. O(nodes)."""
        readers: dict[int, list[tuple[Any, tuple[int, ...], int]]] = {}
        ready: list[tuple[Any, tuple[int, ...], int]] = []
        for (sign, children), c in self.recording.classes.items():
            entry = (sign, children, c)
            if all(k in self.expressions for k in children):
                ready.append(entry)
            for k in set(children):
                readers.setdefault(k, []).append(entry)
        while ready:
            sign, children, c = ready.pop()
            if c in self.expressions or not all(k in self.expressions for k in children):
                continue
            try:
                self.expressions[c] = _made(sign, [self.expressions[k] for k in children])
            except OperatorError:  # this node cannot be formed; its class may have another
                continue
            ready += readers.get(c, ())

    @cached_property
    def operators(self) -> dict[str, list[int]]:
        """The classes that have a node of an operator, by operator, those of the program as written first."""
        found: dict[str, dict[int, None]] = {}
        for c in sorted(self.rows, key=lambda c: c not in self.written):
            for op, _, _ in self.rows[c]:
                found.setdefault(op, {})[c] = None
        return {op: [c for c in classes if c in self.expressions] for op, classes in found.items()}


def _made(sign: Any, args: list[Expr]) -> Expr:
    if sign[0] == "leaf":
        return sign[1]
    op, items, _, annotation = sign
    return build_node(op, args, dict(items), annotation)


@dataclass
class Attempt:
    """A partial match of a rule.

    - `instance`: the instance of the rule.
    - `pattern`: the node of the left side at which the match begins.
    - `root`: the class that this node matches.
    - `match`: the match.
    """

    instance: Instance
    pattern: Expr
    root: int
    match: Match[int]

    @property
    def problems(self) -> list[str]:
        """The problems that prevent a whole match, as text."""
        return self.match.problems

    @property
    def rank(self) -> tuple[int, int]:
        return self.match.rank


class Nearest(Matcher[int]):
    """Finds the nearest match of a rule in an e-graph.

    - `scope`: what is assumed of sizes.
    - `known`: the facts of expressions.
    """

    partial = True
    most_nodes = _MOST_ROWS

    def __init__(self, graph: Graph, rule: Rule, scope: Scope, known: KnownFacts) -> None:
        self.graph = graph
        self.rule = rule
        self.scope = scope
        self.known = known

    def find(self) -> Attempt | None:
        """Returns the best attempt, or None if no node of the left side is present."""
        best: Attempt | None = None
        made = list(islice(self._instances(), _MOST_INSTANCES))
        depth = max((len(i.left_nodes) for i in made), default=0)
        for inner in range(depth):
            # The whole left side is tried first, then its inner nodes.
            for instance in made:
                patterns = [e for e in reversed(instance.left_nodes) if e.op not in LEAVES]
                if inner >= len(patterns):
                    continue
                for found in self._attempts(instance, patterns[inner]):
                    if best is None or found.rank > best.rank:
                        best = found
            if best is not None:
                break
        if best is not None and not best.problems:
            best.problems.extend(self._guards(best))
        return best

    def _attempts(self, instance: Instance, pattern: Expr) -> Iterator[Attempt]:
        whole = pattern in instance.left
        for c in self.graph.operators.get(pattern.op, ()):
            found = self.match(pattern, c)
            for other in instance.left if whole else ():
                if other is not pattern:
                    tried = [self.match(other, k, found) for k in self.graph.operators.get(other.op, ()) if k != c]
                    missing = found.copy()
                    missing.problems.append(f"needs `{expression_text(other)}` as well: there is none")
                    found = max([*tried, missing], key=lambda m: m.rank)
            if not whole:
                found.problems.append(self._outside(pattern, c, instance))
            yield Attempt(instance, pattern, c, found)

    def _outside(self, pattern: Expr, c: int, instance: Instance) -> str:
        """Returns the problem of a match of an inner node as text: the operator that should read it, and those that
        do."""
        wanted = next((e for e in instance.left_nodes if pattern in e.args), pattern)
        here = [e for e, k in self.graph.class_of.items() if k == c]
        readers = dict.fromkeys(e.op for e in self.graph.class_of if any(a in here for a in e.args))
        found = f"only {', '.join(readers)} reads this" if readers else "nothing reads this"
        return f"needs `{wanted.op}`, as in {expression_text(wanted)}: {found}"

    def _instances(self) -> Iterator[Instance]:
        """Yields instances of the rule with ranks, dtypes and attribute values that occur in the e-graph; if it lacks
        an attribute's operator, other instances."""
        annotations = {e.annotation for e in self.graph.expressions.values()}
        tensors = [a for a in annotations if isinstance(a, Tensor) and a.shape is not None]
        top = min(max((len(a.shape or ()) for a in tensors), default=0), _LARGEST_RANK)
        dtypes = [d for d in FLOATS if any(a.dtype == d for a in tensors)] or ["float32"]
        values = [self._values(source) for source in self.rule.attributes.values()]
        if all(values):
            ranks = product(range(top + 1), repeat=len(self.rule.block_names))
            for blocks, dtype in product(ranks, dtypes if self.rule.has_open_dtype else dtypes[:1]):
                for chosen in product(*values):
                    attributes = dict(zip(self.rule.attributes, chosen, strict=True))
                    instance = self.rule.instance(blocks, dtype, attributes)
                    if instance is not None:
                        yield instance
        else:
            yield from instances(self.rule, limit=32)

    def _values(self, source: str) -> list[Any]:
        operators, attribute = read_source(source)
        there = [o for o in operators if self.graph.operators.get(o)]
        if not attribute:
            return there
        rows = (row for o in there for c in self.graph.operators[o] for row in self.graph.rows[c] if row[0] == o)
        return list(dict.fromkeys(attrs[attribute] for _, attrs, _ in rows))

    # --- the values: classes of the e-graph ---

    def nodes(self, value: int, op: str) -> Sequence[tuple[Mapping[str, Any], Sequence[int]]]:
        return [(attrs, operands) for o, attrs, operands in self.graph.rows.get(value, ()) if o == op]

    def annotation(self, value: int) -> Annotation:
        return self.graph.expressions[value].annotation

    def is_leaf(self, value: int, leaf: Expr) -> bool:
        return self.graph.recording.classes.get((leaf_signature(leaf), ())) == value

    def size_mismatch(self, want: Dim, have: Dim) -> str:
        answer = prove(Relation.of(want, "==", have), self.scope)
        return "" if isinstance(answer, Proved) else str(answer)

    # --- conditions ---

    def _guards(self, at: Attempt) -> Iterable[str]:
        """Yields the conditions that do not hold of a whole match."""
        values = {name: self.graph.expressions[c] for name, c in at.match.variables.items()}
        for text, g in zip(self.rule.when, at.instance.guards, strict=True):
            why = self._guard(text, g, values, at.match.sizes)
            if why:
                yield why

    def _guard(self, text: str, g: Guard, values: Mapping[str, Expr], sizes: Mapping[str, Dim]) -> str:
        """Returns why a condition, which the rule writes as `text`, does not hold; "" if it holds."""
        if isinstance(g, Relation):
            answer = prove(g.substitute(sizes), self.scope)
            used = ", ".join(f"{v} = {sizes[v]}" for v in sorted(g.variables))
            return "" if isinstance(answer, Proved) else f"its condition {text}, with {used}: {answer}"
        if isinstance(g, InOrder):
            shown = ", ".join(short_infix_text(values[n]) for n in g.names)
            ordered = all(values[n].op == VAR for n in g.names)
            why = "they are met in another order" if ordered else "not all are inputs of the program"
            return f"its condition {text}: {shown}: {why}, or no neighbours below one operand"
        value = values[g.name]
        shown = short_infix_text(value)
        if isinstance(g, Claim):
            if self.known.has(value, key_of(g)):
                return ""
            fact = g.fact.replace("_", " ")
            hint = f"; facts={{{shown!r}: {fact!r}}} declares it" if value.op == VAR else ""
            return f"its condition {text}: {shown} is not known to be {fact}{hint}"
        if isinstance(g, ValueTest):
            if self.known.has(value, key_of(g)):
                return ""
            return f"its condition {text}: {shown} is no constant of which it holds"
        return f"its condition {text}: {WORDS[g.word]}; {shown} does not meet this"

    def text(self, value: int) -> str:
        return short_infix_text(self.graph.expressions[value])
