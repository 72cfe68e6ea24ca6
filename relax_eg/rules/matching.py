"""Matching of patterns: the one matcher of rules, of rules about facts, and of nearest matches.

A pattern is an expression. In the left side of a rule, variables are annotated and attributes are given. In the pattern
of a rule about facts (`fact_rules`), annotations are open (`ANY`) and the attribute `TESTS` holds tests of attributes.

A pattern is matched against values: expressions (`Expressions`), or classes of a recorded e-graph (`explain.nearest`).
Subclasses of `Matcher` give access to these values. The engine matches the same patterns as queries
(`egraph.patterns`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from relax_eg.ir.annotations import Annotation, Object, Tensor
from relax_eg.ir.expr import VAR, Expr
from relax_eg.ir.heads import LEAVES
from relax_eg.rules.format import expression_text
from relax_eg.shapes import Dim

ANY = Object()  # annotation of a value that a pattern does not restrict
TESTS = "where"  # attribute of a pattern's node: tests of the attributes of the node that it matches
REST = "..."  # end of the name of a variable that stands for all remaining operands, however many

V = TypeVar("V")  # a value: an expression, or a class

# Whether attributes fit; a number means that they fit if the value has this rank.
Test = Callable[[Mapping[str, Any]], bool | int]


@dataclass
class Match(Generic[V]):
    """A match of a pattern, or a part of one.

    - `nodes`: number of the pattern's nodes that are present.
    - `problems`: what is missing, as texts; empty for a whole match.
    - `variables`: the value of each variable.
    - `variable_lists`: the values of each variable that stands for any number of operands.
    - `sizes`: the size of each size variable.
    """

    nodes: int = 0
    problems: list[str] = field(default_factory=list[str])
    variables: dict[str, V] = field(default_factory=dict[str, V])
    variable_lists: dict[str, Sequence[V]] = field(default_factory=dict[str, Sequence[V]])
    sizes: dict[str, Dim] = field(default_factory=dict[str, Dim])

    def copy(self) -> Match[V]:
        return Match(self.nodes, list(self.problems), dict(self.variables), dict(self.variable_lists), dict(self.sizes))

    @property
    def rank(self) -> tuple[int, int]:
        """The key that orders partial matches, the best last."""
        return self.nodes, -len(self.problems)

    def values(self, name: str) -> Sequence[V]:
        """The values that a variable stands for."""
        return self.variable_lists[name] if name in self.variable_lists else (self.variables[name],)


class Matcher(Generic[V]):
    """Matches patterns against values.

    - `partial`: whether a match continues after a problem, and describes it. Otherwise it ends at the first problem.
    - `most_nodes`: number of nodes of one operator and value that are tried; None for all.
    """

    partial = False
    most_nodes: int | None = None

    # --- access to values ---

    def nodes(self, value: V, op: str) -> Sequence[tuple[Mapping[str, Any], Sequence[V]]]:
        """The nodes of operator `op` that compute `value`: the attributes and the operands of each."""
        raise NotImplementedError

    def annotation(self, value: V) -> Annotation:
        raise NotImplementedError

    def is_leaf(self, value: V, leaf: Expr) -> bool:
        """Whether `value` is this leaf."""
        raise NotImplementedError

    def size_mismatch(self, want: Dim, have: Dim) -> str:
        """Why a size that the pattern needs may differ from the size of the value; empty if they are equal."""
        return "" if want is have else "it may differ"

    def text(self, value: V) -> str:
        """The text of `value` in a message."""
        raise NotImplementedError

    # --- matching ---

    def match(self, pattern: Expr, value: V, at: Match[V] | None = None) -> Match[V]:
        """The match `at`, by default an empty one, extended by a match of `pattern` against `value`. The match is whole
        if it has no problems."""
        found = Match[V]() if at is None else at.copy()
        return self._node(pattern, value, found)

    def _node(self, p: Expr, value: V, at: Match[V]) -> Match[V]:
        if p.op == VAR:
            self._variable(p, value, at)
            return at
        if p.op in LEAVES:
            if self.is_leaf(value, p):
                at.nodes += 1
            else:
                self._lacks(at, lambda: f"needs {expression_text(p)} where there is {self.text(value)}")
            return at
        rest = rest_of(p)
        first = p.args if rest is None else p.args[:-1]
        nodes = self.nodes(value, p.op)
        there = [n for n in nodes if len(n[1]) == len(first) or (rest is not None and len(n[1]) > len(first))]
        if not there:
            self._lacks(at, lambda: f"needs `{p.op}`, as in {expression_text(p)}, where there is {self.text(value)}")
            return at
        found: list[Match[V]] = []
        for attrs, operands in there[: self.most_nodes]:
            inner = at.copy() if len(there) > 1 else at
            inner.nodes += 1
            self._attributes(p, value, attrs, inner)
            for a, x in zip(first, operands, strict=False):
                if inner.problems and not self.partial:
                    break
                inner = self._node(a, x, inner)
            if rest is not None:
                inner.variable_lists[rest] = operands[len(first) :]
            found.append(inner)
        return max(found, key=lambda m: m.rank)

    def _lacks(self, at: Match[V], problem: Callable[[], str]) -> None:
        at.problems.append(problem() if self.partial else "")

    def _variable(self, p: Expr, value: V, at: Match[V]) -> None:
        name = str(p.attr("name"))
        before = at.variables.setdefault(name, value)
        if before != value:
            self._lacks(
                at,
                lambda: (
                    f"needs the same `{name}` in both places: found {self.text(before)} and {self.text(value)}, which "
                    "are different values"
                ),
            )
            return
        if p.annotation is ANY:
            return
        a, wanted = self.annotation(value), p.tensor
        if not isinstance(a, Tensor) or a.shape is None:
            self._lacks(at, lambda: f"`{name}` is {self.text(value)}, of which the shape is not known")
        elif len(a.shape) != p.ndim:
            of, axes = (
                f"{len(a.shape)} {'axis' if len(a.shape) == 1 else 'axes'} {a.short}",
                " ".join(map(str, p.shape)) or "a scalar",
            )
            self._lacks(at, lambda: f"`{name}` should have {p.ndim} axes ({axes}): {self.text(value)} has {of}")
        elif a.dtype != wanted.dtype:
            self._lacks(at, lambda: f"`{name}` should be {wanted.dtype}: {self.text(value)} is {a.dtype}")
        else:
            for i, (want, have) in enumerate(zip(p.shape, a.shape, strict=True)):
                self._size(want, have, f"axis {i} of `{name}`", at)

    def _attributes(self, p: Expr, value: V, attrs: Mapping[str, Any], at: Match[V]) -> None:
        if p.annotation is ANY:
            rank = rank_needed(p, attrs)
            a = self.annotation(value)
            if rank is None or (rank >= 0 and (not isinstance(a, Tensor) or a.ndim != rank)):
                self._lacks(at, lambda: f"`{p.op}` has {dict(attrs)}; {expression_text(p)} is needed")
            return
        for k, want in p.attrs:
            have = attrs.get(k)
            if isinstance(want, tuple) and any(isinstance(d, Dim) for d in want):  # type: ignore[reportUnknownVariableType]
                for d, n in zip(want, have or (), strict=False):  # type: ignore[reportUnknownArgumentType]
                    self._size(d, n, f"{k} of `{p.op}`", at)
            elif want != have:
                self._lacks(at, lambda: f"`{p.op}` has {k}={have}; the rule needs {k}={want}")  # noqa: B023

    def _size(self, want: Dim, have: Dim, what: str, at: Match[V]) -> None:
        free = want.variables - at.sizes.keys()
        if str(want) in free:
            at.sizes[str(want)] = have
        elif not free:
            size = want.substitute(at.sizes)
            why = self.size_mismatch(size, have)
            if why:
                said = f" = {size}" if str(size) != str(want) else ""
                self._lacks(at, lambda: f"{what} should be {want}{said}, it is {have} ({why})")


class Expressions(Matcher[Expr]):
    """Matches patterns against expressions. Only sizes that are single size variables in the pattern are compared."""

    def nodes(self, value: Expr, op: str) -> Sequence[tuple[Mapping[str, Any], Sequence[Expr]]]:
        return ((dict(value.attrs), value.args),) if value.op == op else ()

    def annotation(self, value: Expr) -> Annotation:
        return value.annotation

    def is_leaf(self, value: Expr, leaf: Expr) -> bool:
        return value is leaf

    def text(self, value: Expr) -> str:
        return expression_text(value)

    def _size(self, want: Dim, have: Dim, what: str, at: Match[Expr]) -> None:
        if str(want) in want.variables:
            super()._size(want, have, what, at)


def rest_of(p: Expr) -> str | None:
    """The name of the variable that stands for the remaining operands of a pattern's node."""
    last = p.args[-1] if p.args else None
    name = str(last.attr("name")) if last is not None and last.op == VAR else ""
    return name if name.endswith(REST) else None


def rank_needed(p: Expr, attrs: Mapping[str, Any]) -> int | None:
    """The rank that a value with these attributes must have for the tests of a pattern's node to hold: -1 if any rank
    fits, None if the tests do not hold."""
    rank = -1
    for test in p.attrs[0][1] if p.attrs else ():
        found = test(attrs)
        if found is False:
            return None
        if found is not True:
            rank = found
    return rank
