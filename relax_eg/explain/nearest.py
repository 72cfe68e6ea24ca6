"""Finds the largest partial match of a rule in an e-graph, and what prevents a whole match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from typing import Any

from relax_eg.errors import OperatorError
from relax_eg.explain.record import LEAVES, Recording, leaf_signature, signature_of
from relax_eg.ir.annotations import FLOATS, Tensor
from relax_eg.ir.expr import TUPLE_GET, VAR, Expr, node, postorder, tuple_get, var
from relax_eg.ops import TABLE, call
from relax_eg.rules import Claim, Condition, InOrder, Instance, Rule, ValueTest
from relax_eg.rules.conditions import WORDS, Guard, key_of
from relax_eg.rules.format import expression_text
from relax_eg.rules.instances import instances
from relax_eg.rules.propagation import KnownFacts
from relax_eg.shapes import Dim, Proved, Scope, prove

_MOST_INSTANCES = 256  # limit: instances of a rule that are tried
_MOST_ROWS = 8  # limit: nodes of one operator in a class that are tried
_LARGEST_RANK = 4  # limit: axes of a block of a rule's operand

Row = tuple[str, Mapping[str, Any], tuple[int, ...]]


class Graph:
    """A recorded e-graph with an expression for every class: one of the program as `written` if the class has any."""

    def __init__(self, recording: Recording, written: Sequence[Expr]) -> None:
        self.recording = recording
        self.rows: dict[int, list[Row]] = {}
        for (sign, children), c in recording.classes.items():
            if sign[0] != "leaf":
                self.rows.setdefault(c, []).append((sign[0], dict(sign[1]), children))
        self.class_of: dict[Expr, int] = {}
        self.shown: dict[int, Expr] = {}
        self.written: set[int] = set()
        for e in postorder(written):
            key = signature_of(e, recording.one), tuple(self.class_of[a] for a in e.args)
            c = self.class_of[e] = recording.classes[key]
            self.shown.setdefault(c, e)
            self.written.add(c)
        self._show_the_others()

    def _show_the_others(self) -> None:
        """Finds an expression for the classes that rules made. O(nodes)."""
        readers: dict[int, list[tuple[Any, tuple[int, ...], int]]] = {}
        ready: list[tuple[Any, tuple[int, ...], int]] = []
        for (sign, children), c in self.recording.classes.items():
            entry = (sign, children, c)
            if all(k in self.shown for k in children):
                ready.append(entry)
            for k in set(children):
                readers.setdefault(k, []).append(entry)
        while ready:
            sign, children, c = ready.pop()
            if c in self.shown or not all(k in self.shown for k in children):
                continue
            try:
                self.shown[c] = _made(sign, [self.shown[k] for k in children])
            except OperatorError:  # this node cannot be formed; its class may have another
                continue
            ready += readers.get(c, ())

    @cached_property
    def operators(self) -> dict[str, list[int]]:
        """By operator, the classes that have a node of it, those as written first."""
        found: dict[str, dict[int, None]] = {}
        for c in sorted(self.rows, key=lambda c: c not in self.written):
            for op, _, _ in self.rows[c]:
                found.setdefault(op, {})[c] = None
        return {op: [c for c in classes if c in self.shown] for op, classes in found.items()}


def _made(sign: Any, args: list[Expr]) -> Expr:
    if sign[0] == "leaf":
        return sign[1]
    op, items, _, annotation = sign
    if op == TUPLE_GET:
        return tuple_get(args[0], dict(items)["index"])
    return call(op, args, dict(items)) if op in TABLE else node(op, args, items, annotation)


@dataclass
class Attempt:
    """A partial match.

    - `root`: the class it starts from.
    - `nodes`: nodes of the left side that are present.
    - `problems`: what is missing.
    """

    instance: Instance
    pattern: Expr
    root: int
    nodes: int = 0
    problems: list[str] = field(default_factory=list[str])
    bound: dict[str, int] = field(default_factory=dict[str, int])
    sizes: dict[str, Dim] = field(default_factory=dict[str, Dim])

    def copy(self) -> Attempt:
        more = list(self.problems), dict(self.bound), dict(self.sizes)
        return Attempt(self.instance, self.pattern, self.root, self.nodes, *more)

    @property
    def rank(self) -> tuple[int, int]:
        return self.nodes, -len(self.problems)


class Nearest:
    """Finds the nearest match of a rule in an e-graph. `known` tells facts, `scope` sizes."""

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
            best.problems += self._guards(best)
        return best

    def _attempts(self, instance: Instance, pattern: Expr) -> Iterator[Attempt]:
        whole = pattern in instance.left
        for c in self.graph.operators.get(pattern.op, ()):
            found = self._match(pattern, c, Attempt(instance, pattern, c))
            for other in instance.left if whole else ():
                if other is not pattern:
                    tried = [self._match(other, k, found) for k in self.graph.operators.get(other.op, ()) if k != c]
                    missing = found.copy()
                    missing.problems.append(f"needs `{expression_text(other)}` as well: there is none")
                    found = max([*tried, missing], key=lambda a: a.rank)
            if not whole:
                found.problems.append(self._outside(pattern, c, instance))
            yield found

    def _outside(self, pattern: Expr, c: int, instance: Instance) -> str:
        """Returns a text: what should read this part of the left side, and what does."""
        wanted = next((e for e in instance.left_nodes if pattern in e.args), pattern)
        here = [e for e, k in self.graph.class_of.items() if k == c]
        readers = dict.fromkeys(e.op for e in self.graph.class_of if any(a in here for a in e.args))
        found = f"only {', '.join(readers)} reads this" if readers else "nothing reads this"
        return f"needs `{wanted.op}`, as in {expression_text(wanted)}: {found}"

    def _instances(self) -> Iterator[Instance]:
        """Yields instances of the rule that may fit: with ranks, dtypes and attribute values of the e-graph."""
        annotations = {e.annotation for e in self.graph.shown.values()}
        tensors = [a for a in annotations if isinstance(a, Tensor) and a.shape is not None]
        top = min(max((len(a.shape or ()) for a in tensors), default=0), _LARGEST_RANK)
        dtypes = [d for d in FLOATS if any(a.dtype == d for a in tensors)] or ["float32"]
        values = [self._values(source) for source in self.rule.attributes.values()]
        if all(values):
            ranks = product(range(top + 1), repeat=len(self.rule.stars))
            for blocks, dtype in product(ranks, dtypes if self.rule.has_open_dtype else dtypes[:1]):
                for chosen in product(*values):
                    attributes = dict(zip(self.rule.attributes, chosen, strict=True))
                    instance = self.rule.instance(blocks, dtype, attributes)
                    if instance is not None:
                        yield instance
        else:
            yield from instances(self.rule, limit=32)

    def _values(self, source: str) -> list[Any]:
        op, _, name = source.partition(".")
        rows = (row for c in self.graph.operators.get(op, ()) for row in self.graph.rows[c] if row[0] == op)
        return list(dict.fromkeys(attrs[name] for _, attrs, _ in rows))

    # --- matching ---

    def _match(self, p: Expr, c: int, at: Attempt) -> Attempt:
        """Returns `at` with the pattern `p` matched against class `c` as far as possible."""
        at = at.copy()
        if p.op == VAR:
            self._bind(p, c, at)
            return at
        if p.op in LEAVES:
            if self.graph.recording.classes.get((leaf_signature(p), ())) != c:
                at.problems.append(f"needs {expression_text(p)} where there is {self.text(c)}")
            else:
                at.nodes += 1
            return at
        rows = [row for row in self.graph.rows.get(c, ()) if row[0] == p.op and len(row[2]) == len(p.args)]
        if not rows:
            at.problems.append(f"needs `{p.op}`, as in {expression_text(p)}, where there is {self.text(c)}")
            return at
        found: list[Attempt] = []
        for _, attrs, children in rows[:_MOST_ROWS]:
            inner = at.copy()
            inner.nodes += 1
            self._attributes(p, attrs, inner)
            for a, k in zip(p.args, children, strict=True):
                inner = self._match(a, k, inner)
            found.append(inner)
        return max(found, key=lambda a: a.rank)

    def _bind(self, p: Expr, c: int, at: Attempt) -> None:
        name = str(p.attr("name"))
        before = at.bound.setdefault(name, c)
        if before != c:
            x, y = self.text(before), self.text(c)
            at.problems.append(f"needs the same `{name}` in both places: found {x} and {y}, which are different values")
            return
        a, wanted = self.graph.shown[c].annotation, p.tensor
        if not isinstance(a, Tensor) or a.shape is None:
            at.problems.append(f"`{name}` is {self.text(c)}, of which the shape is not known")
        elif len(a.shape) != p.ndim:
            of = f"{len(a.shape)} axes {a.short}"
            at.problems.append(f"`{name}` should have {p.ndim} axes ({_dims(p.shape)}): {self.text(c)} has {of}")
        elif a.dtype != wanted.dtype:
            at.problems.append(f"`{name}` should be {wanted.dtype}: {self.text(c)} is {a.dtype}")
        else:
            for i, (want, have) in enumerate(zip(p.shape, a.shape, strict=True)):
                self._size(want, have, f"axis {i} of `{name}`", at)

    def _attributes(self, p: Expr, attrs: Mapping[str, Any], at: Attempt) -> None:
        for k, want in p.attrs:
            have = attrs.get(k)
            if isinstance(want, tuple) and any(isinstance(d, Dim) for d in want):  # type: ignore[reportUnknownVariableType]
                for d, n in zip(want, have or (), strict=False):  # type: ignore[reportUnknownArgumentType]
                    self._size(d, n, f"{k} of `{p.op}`", at)
            elif want != have:
                at.problems.append(f"`{p.op}` has {k}={have}; the rule needs {k}={want}")

    def _size(self, want: Dim, have: Dim, what: str, at: Attempt) -> None:
        free = want.variables - at.sizes.keys()
        if str(want) in free:
            at.sizes[str(want)] = have
        elif not free:
            size = want.substitute(at.sizes)
            answer = prove(f"{size} == {have}", self.scope)
            if not isinstance(answer, Proved):
                said = f" = {size}" if str(size) != str(want) else ""
                at.problems.append(f"{what} should be {want}{said}, it is {have} ({answer})")

    # --- conditions ---

    def _guards(self, at: Attempt) -> Iterable[str]:
        """Yields the conditions that do not hold of a whole match."""
        values = {name: self.graph.shown[c] for name, c in at.bound.items()}
        for said, g in zip(self.rule.when, at.instance.guards, strict=True):
            why = self._guard(said, g, values, at.sizes)
            if why:
                yield why

    def _guard(self, said: str, g: Guard, values: Mapping[str, Expr], sizes: Mapping[str, Dim]) -> str:
        if isinstance(g, Condition):
            left, right = g.left.substitute(dict(sizes)), g.right.substitute(dict(sizes))
            answer = prove(f"{left} {g.op} {right}", self.scope)
            used = ", ".join(f"{v} = {sizes[v]}" for v in sorted(g.left.variables | g.right.variables))
            return "" if isinstance(answer, Proved) else f"its condition {said}, with {used}: {answer}"
        if isinstance(g, InOrder):
            shown = ", ".join(self.text(self.graph.class_of.get(values[n], -1), values[n]) for n in g.names)
            ordered = all(values[n].op == VAR for n in g.names)
            why = "they are met in another order" if ordered else "not all are inputs of the program"
            return f"its condition {said}: {shown}: {why}, or no neighbours below one operand"
        value = values[g.name]
        shown = self.text(-1, value)
        if isinstance(g, Claim):
            if self.known.has(value, key_of(g)):
                return ""
            fact = g.fact.replace("_", " ")
            hint = f"; facts={{{shown!r}: {fact!r}}} declares it" if value.op == VAR else ""
            return f"its condition {said}: {shown} is not known to be {fact}{hint}"
        if isinstance(g, ValueTest):
            if self.known.has(value, key_of(g)):
                return ""
            return f"its condition {said}: {shown} is no constant of which it holds"
        return f"its condition {said}: {WORDS[g.word]}; {shown} is not such"

    def text(self, c: int, e: Expr | None = None) -> str:
        """Returns class `c`, or `e`, as short text."""
        shown = self.graph.shown[c] if e is None else e
        return clipped(shown)


def clipped(e: Expr, depth: int = 2) -> str:
    """Returns `e` in infix notation; nodes deeper than `depth` are shown as `...`."""
    text = expression_text(_clipped(e, depth))
    return text if len(text) <= 100 else f"{text[:97]}..."


def _clipped(e: Expr, depth: int) -> Expr:
    if not e.args or e.op == VAR:
        return e if e.op in LEAVES or e.op in TABLE else var(e.op, e.annotation)
    if depth == 0:
        return var("...", e.annotation)
    return node(e.op, [_clipped(a, depth - 1) for a in e.args], e.attrs, e.annotation)


def _dims(dims: Sequence[Dim]) -> str:
    return " ".join(map(str, dims)) or "a scalar"
