"""Congruence closure over expressions, with reasons for the equality of any two.

After Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (RTA 2005). In addition to the union-find, a forest
holds one reason at each edge. The path between two expressions in the forest shows that they are equal. The path
between two equal expressions never changes, so the paths of the operands on which a congruence relies are older than
the congruence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from relax_eg.explain.record import CanonicalSizes, Signature, signature_of
from relax_eg.explain.steps import CongruenceStep, Equation, Goal, RuleStep, Step
from relax_eg.ir.expr import Expr, postorder
from relax_eg.shapes import Dim
from relax_eg.traversal import leaves, made_from_below

# An equation and the index of a pair in it; None for a congruence, where the operands are equal.
_Reason = tuple[Equation, int] | None


class Closure:
    """A set of expressions and the equalities among them.

    - `terms`: the expressions, by number.
    - `number`: the number of each expression.
    - `changes`: number of unions so far.

    `classes` and `canonical_sizes` are those of a `Recording`. An expression that is in no class there has class -1.
    """

    def __init__(
        self, classes: Mapping[tuple[Signature, tuple[int, ...]], int], canonical_sizes: CanonicalSizes
    ) -> None:
        self.terms: list[Expr] = []
        self.number: dict[Expr, int] = {}
        self._classes = classes
        self._canonical_sizes = canonical_sizes
        self._class: list[int] = []
        self._parts: dict[int, list[int]] = {}  # class -> terms, at least one of each set of equals
        self._counts: Counter[int] = Counter()  # class -> number of terms
        self._members: list[list[int]] = []
        self._parent: list[int] = []
        self._reason_edges: list[tuple[int, _Reason] | None] = []
        self._signatures: list[int] = []
        self._known_signatures: dict[Signature, int] = {}
        self._table: dict[tuple[int, tuple[int, ...]], int] = {}
        self._readers: list[list[int]] = []
        self._goals: dict[tuple[int, int], Goal] = {}
        self.changes = 0

    def find(self, i: int) -> int:
        """Returns the number of the term that stands for all terms equal to `i`."""
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def equal(self, a: Expr, b: Expr) -> bool:
        return self.find(self.add(a)) == self.find(self.add(b))

    def add(self, root: Expr) -> int:
        """Returns the number of an expression, after adding it with all expressions below it. O(new expressions)."""
        found = self.number.get(root)
        if found is not None:
            return found
        for e in postorder((root,), stop=self.number.__contains__):
            if e not in self.number:
                self._append(e)
        return self.number[root]

    def _append(self, e: Expr) -> None:
        i = self.number[e] = len(self.terms)
        args = [self.number[a] for a in e.args]
        sign = signature_of(e, self._canonical_sizes)
        self.terms.append(e)
        where = self._classes.get((sign, tuple(self._class[a] for a in args)), -1)
        self._class.append(where)
        self._parts.setdefault(where, []).append(i)
        self._counts[where] += 1
        self._members.append([i])
        self._parent.append(i)
        self._reason_edges.append(None)
        self._signatures.append(self._known_signatures.setdefault(sign, len(self._known_signatures)))
        self._readers.append([])
        key = self._signatures[i], tuple(map(self.find, args))
        for a in dict.fromkeys(key[1]):
            self._readers[a].append(i)
        equal = self._table.setdefault(key, i)
        if equal != i:
            self._union(i, equal, None)

    def lookup(self, sign: Signature, args: tuple[int, ...]) -> int | None:
        """Returns a node with this signature on these operands, or None."""
        number = self._known_signatures.get(sign)
        return None if number is None else self._table.get((number, args))

    def parts(self, where: int) -> list[int]:
        """Returns one term of each set of equal terms in a class."""
        if where < 0:
            return []
        found = list(dict.fromkeys(map(self.find, self._parts.get(where, ()))))
        self._parts[where] = found
        return found

    def count(self, classes: Iterable[int]) -> int:
        """Returns the number of terms in these classes together."""
        return sum(self._counts[c] for c in classes)

    def members(self, i: int) -> list[int]:
        """Returns the numbers of all terms equal to `i`, `i` included."""
        return self._members[self.find(i)]

    def learn(self, found: Equation) -> None:
        """Makes the two sides of every pair of an equation equal."""
        for k, (left, right) in enumerate(found.pairs):
            self._union(self.add(left), self.add(right), (found, k))

    def _union(self, a: int, b: int, reason: _Reason) -> None:
        pending = [(a, b, reason)]
        while pending:
            x, y, why = pending.pop()
            rx, ry = self.find(x), self.find(y)
            if rx == ry:
                continue
            self.changes += 1
            if len(self._members[rx]) > len(self._members[ry]):
                x, y, rx, ry = y, x, ry, rx
            self._reroot(x)
            self._reason_edges[x] = (y, why)
            self._parent[rx] = ry
            self._members[ry] += self._members[rx]
            self._members[rx] = []
            readers, self._readers[rx] = self._readers[rx], []
            for r in readers:
                key = self._signatures[r], tuple(self.find(self.number[e]) for e in self.terms[r].args)
                other = self._table.setdefault(key, r)
                if other != r:
                    pending.append((r, other, None))
            self._readers[ry] += readers

    def _reroot(self, x: int) -> None:
        """Reverses the edges from `x` to the root of its tree."""
        edge, at = self._reason_edges[x], x
        self._reason_edges[x] = None
        while edge is not None:
            above, why = edge
            edge = self._reason_edges[above]
            self._reason_edges[above] = (at, why)
            at = above

    # --- reasons ---

    def goal(self, a: Expr, b: Expr) -> Goal:
        """Returns the steps from `a` to `b`, which must be equal."""
        paths: dict[tuple[int, int], list[tuple[int, int, _Reason]]] = {}

        def inner(pair: tuple[int, int]) -> list[tuple[int, int]]:
            paths[pair] = self._path(*pair)
            return [p for x, y, why in paths[pair] if why is None for p in self._inner(x, y)]

        def made(pair: tuple[int, int]) -> Goal:
            steps = [(self._step(x, y, why), self.terms[y]) for x, y, why in paths[pair]]
            return Goal(self.terms[pair[0]], self.terms[pair[1]], steps)

        return made_from_below((self.number[a], self.number[b]), inner, made, self._goals)

    def _path(self, a: int, b: int) -> list[tuple[int, int, _Reason]]:
        """Returns the edges from `a` to `b`, which are in one tree."""
        up, down = self._to_root(a), self._to_root(b)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        return up + [(y, x, why) for x, y, why in reversed(down)]

    def _to_root(self, at: int) -> list[tuple[int, int, _Reason]]:
        """Returns the edges from `at` to the root of its tree."""
        found: list[tuple[int, int, _Reason]] = []
        while (edge := self._reason_edges[at]) is not None:
            found.append((at, *edge))
            at = edge[0]
        return found

    def congruent(self, a: Expr, b: Expr) -> CongruenceStep | None:
        """Returns the step from `a` to `b` that only replaces operands; None if the operands are not equal."""
        x, y = self.number[a], self.number[b]
        if self._signatures[x] != self._signatures[y] or len(a.args) != len(b.args):
            return None
        pairs = self._inner(x, y)
        if any(self.find(p) != self.find(q) for p, q in pairs):
            return None
        for p, q in pairs:
            self.goal(self.terms[p], self.terms[q])
        step = self._step(x, y, None)
        return step if isinstance(step, CongruenceStep) else None

    def _inner(self, x: int, y: int) -> list[tuple[int, int]]:
        pairs = zip(self.terms[x].args, self.terms[y].args, strict=True)
        return [(self.number[a], self.number[b]) for a, b in pairs if a is not b]

    def _step(self, x: int, y: int, why: _Reason) -> Step:
        a, b = self.terms[x], self.terms[y]
        if why is not None:
            return RuleStep(why[0], why[1], why[0].pairs[why[1]][0] is a)
        pairs = zip(a.args, b.args, strict=True)
        goals = tuple(None if p is q else self._goals[self.number[p], self.number[q]] for p, q in pairs)
        return CongruenceStep(goals, tuple(sizes_that_differ(a, b)))


def sizes_that_differ(a: Expr, b: Expr) -> list[tuple[Dim, Dim]]:
    """Returns the pairs of sizes that are written differently in the attributes of two nodes of one signature."""

    def parts(both: tuple[Any, Any]) -> list[Any] | None:
        return list(zip(*both, strict=True)) if all(isinstance(x, tuple) for x in both) else None

    values = tuple(dict(a.attrs)[k] for k, _ in b.attrs), tuple(v for _, v in b.attrs)
    found = ((x, y) for x, y in leaves(values, parts) if isinstance(x, Dim) and isinstance(y, Dim) and x != y)
    return list(dict.fromkeys(found))
