"""The table of terms: one term of each class of equal values, by type and number of operators.

A term of n operators is an operator on terms of the table with n - 1 operators together. So the number of terms of a
size follows from the number of classes below it, and is known before they are made (`next_count`). Time and memory grow
with that number times the sample points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from relax_eg.discovery.conditions import Condition
from relax_eg.discovery.grammar import Grammar
from relax_eg.discovery.terms import Order, Term, leaves_of, order
from relax_eg.discovery.values import SamplePoints, operand, use
from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.expr import VAR, Expr, postorder
from relax_eg.ops.interpret import evaluate_points

Array = np.ndarray[Any, Any]
Type = tuple[Any, ...]
_Use = tuple[int, tuple[tuple[Type, int], ...], Type]  # operator, lists of operands, type

_APART = 1e-3  # chosen: difference beyond rounding, relative to the first side, or to 1
_AT_ONCE = 1 << 20  # limit: elements of the results of one evaluation


@dataclass
class KeptTerms:
    """The terms of one type and size.

    - `terms`: the terms.
    - `values`: for each of the sizes of the sample points, their values; the first axis is the term.
    """

    terms: list[Term] = field(default_factory=list[Term])
    values: list[list[Array]] = field(default_factory=list[list[Array]])

    def stacked(self, at: int) -> Array:
        return np.stack([v[at] for v in self.values])


@dataclass(frozen=True)
class EqualPair:
    """Two terms that agree at the sample points, the larger one first.

    - `left`, `right`: the terms.
    - `condition`: where they agree; None for everywhere.
    """

    left: Term
    right: Term
    condition: Condition | None = None


class TermTable:
    """The classes of terms of a grammar with equal values.

    - `allowed`: whether an operator, given by number, is used on operands of these types; None for wherever it applies.
    - `size`: the number of operators up to which it has terms.
    """

    def __init__(
        self, grammar: Grammar, points: SamplePoints, allowed: Callable[[int, tuple[Type, ...]], bool] | None = None
    ) -> None:
        self.grammar, self.points, self._allowed = grammar, points, allowed
        self.size = 0
        self._kept: dict[tuple[Type, int], KeptTerms] = {}
        self._rank: dict[bytes, Term] = {}
        self._rows: dict[Type, list[tuple[Term, Array]]] = {}
        self._reducible: dict[Condition, set[Term]] = {c: set() for c in points.conditions}
        self._conditional: dict[tuple[Condition, Type], dict[bytes, Term]] = {}
        self._next: list[_Use] | None = None  # the uses that make the terms of the next size, once they were counted
        for i, leaf in enumerate(grammar.leaves):
            t = leaf.shape, leaf.dtype
            values = [v[i] for v in points.values]
            row = points.rows([v[None] for v in values], leaf.dtype)[0]
            if i in grammar.operands:
                self._keep(i, t, 0, values, row)
            elif i in grammar.filled and self._rank.setdefault(_key(t, row), i) == i:
                self._rows.setdefault(t, []).append((i, row))

    @property
    def classes(self) -> int:
        return len(self._rank)

    def _keep(self, term: Term, t: Type, size: int, values: Sequence[Array], row: Array) -> Term | None:
        """Adds a term unless one with its values is there, which is returned."""
        known = self._rank.setdefault(_key(t, row), term)
        if known is not term:
            return known
        kept = self._kept.setdefault((t, size), KeptTerms())
        kept.terms.append(term)
        kept.values.append(list(values))
        self._rows.setdefault(t, []).append((term, row))
        return None

    def _uses(self, size: int) -> Iterator[_Use]:
        """The uses of operators on kept terms that make terms of this size: operator, lists of operands, type."""
        lists = sorted(self._kept, key=lambda k: (k[1], repr(k[0])))
        for number, form in enumerate(self.grammar.forms):
            for chosen in itertools.product(lists, repeat=form.arity):
                if sum(s for _, s in chosen) == size - 1:
                    types = tuple(t for t, _ in chosen)
                    made = self.grammar.use(number, types)
                    if made is not None and (self._allowed is None or self._allowed(number, types)):
                        yield number, chosen, made

    def next_count(self) -> int:
        """The number of terms of the next size, before they are made."""
        found = 0
        self._next = list(self._uses(self.size + 1))
        for _, chosen, _ in self._next:
            found += math.prod(len(self._kept[key].terms) for key in chosen)
        return found

    def grow(self) -> list[EqualPair]:
        """Makes the terms of the next size. Returns the pairs of terms with equal values, without conditions, the
        smallest first."""
        self.size += 1
        made: list[tuple[Order, Term, Type, list[Array], Array]] = []
        uses, self._next = self._uses(self.size) if self._next is None else self._next, None
        for number, chosen, t in uses:
            made += self._evaluate(number, chosen, t)
        made.sort(key=lambda m: m[0])
        found: list[EqualPair] = []
        for _, term, t, values, row in made:
            known = self._keep(term, t, self.size, values, row)
            if known is not None:
                found.append(EqualPair(term, known))
        return found

    def equal_to(self, term: Term) -> Term | None:
        """The term of the table that has the values of `term` at the sample points; None if there is none."""
        shape, dtype = self.grammar.type_of(term)
        row = self.points.rows([v[None] for v in self._values_of(term)], dtype)[0]
        return self._rank.get(_key((shape, dtype), row))

    def values_of(self, root: Expr) -> tuple[list[Array], Type]:
        """The values of an expression on variables of the grammar, which has float64 in place of other floats, and its
        type in the table."""
        numbers = {v.attr("name"): i for i, v in enumerate(self.grammar.declared)}
        leaves = [e for e in postorder((root,)) if e.op == VAR]
        found: list[Array] = []
        for values, at in zip(self.points.values, self.points.sizes, strict=True):
            env = {e: values[numbers[e.attr("name")]] for e in leaves}
            found.append(self._computed(root, env, at, len(values[0])))
        return found, (root.shape, "float32" if is_float(root.dtype) else root.dtype)

    def with_row(self, row: Array, t: Type) -> Term | None:
        """The term of the table that has these values; None if there is none."""
        return self._rank.get(_key(t, row))

    def forget(self) -> None:
        """Leaves out the values of terms, which a table needs to grow, but not to be asked."""
        self._rows, self._next = {}, None
        for kept in self._kept.values():
            kept.values.clear()

    def agree(self, pair: EqualPair) -> bool:
        """Whether the sides of a pair have equal values at the sample points at which its condition holds."""
        shape, dtype = t = self.grammar.type_of(pair.left)
        if self.grammar.type_of(pair.right) != t:
            return False
        values = [self._values_of(side) for side in (pair.left, pair.right)]
        left, right = (self.points.rows([v[None] for v in vs], dtype)[0] for vs in values)
        held = slice(None) if pair.condition is None else self.points.columns((shape, dtype), pair.condition)
        return bool(np.array_equal(left[held], right[held]) and self.points.defined(left[held], dtype))

    def terms_of(self, t: Type) -> list[Term]:
        """The terms of a type, of which no two have equal values, the smallest first."""
        return [x for (of, _), kept in sorted(self._kept.items(), key=lambda k: k[0][1]) if of == t for x in kept.terms]

    def smallest(self, most: int) -> list[list[Term]]:
        """For each type, up to `most` terms, of which no two have equal values, the smallest first."""
        found: dict[Type, list[Term]] = {}
        for (t, _), kept in sorted(self._kept.items(), key=lambda x: x[0][1]):
            own = found.setdefault(t, [])
            own += kept.terms[: most - len(own)]
        return list(found.values())

    def difference(self, a: Term, b: Term) -> str:
        """Where two terms of one type differ, as text; empty where they do not, or hardly, as far as sample points
        tell."""
        sides = zip(self._values_of(a), self._values_of(b), strict=True)
        for values, (x, y) in zip(self.points.values, sides, strict=True):
            with np.errstate(all="ignore"):
                apart = x != y
                if is_float(self.grammar.type_of(a)[1]):
                    apart = np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) > _APART * np.maximum(np.abs(x), 1))
            if not apart.any():
                continue
            place = tuple(int(i) for i in np.argwhere(apart)[0])
            used = sorted(v for v in {*leaves_of(a), *leaves_of(b)} if v < self.grammar.variable_count)
            given = ", ".join(
                f"{self.grammar.variables[v].attr('name')} = {values[v][place[0]].tolist()}" for v in used
            )
            index = f" at {list(place[1:])}" if place[1:] else ""
            return f"for {given} its sides are {x[place]:g} and {y[place]:g}{index}"
        return ""

    def separate(self, term: Term) -> None:
        """Makes a term a class of its own after all: it was told apart from the one with the same values."""
        t = self.grammar.type_of(term)
        self._kept.setdefault((t, self.size), KeptTerms())
        values = self._values_of(term)
        kept, self._next = self._kept[t, self.size], None
        if term not in kept.terms:
            kept.terms.append(term)
            kept.values.append(values)

    def _values_of(self, term: Term) -> list[Array]:
        if isinstance(term, int):
            return [v[term] for v in self.points.values]
        inner = [self._values_of(a) for a in term[1:]]
        types = [self.grammar.type_of(a) for a in term[1:]]
        params = [operand(self.points, t, i) for i, t in enumerate(types)]
        root = use(self.points, self.grammar.forms[term[0]], params)
        found: list[Array] = []
        for b, at in enumerate(self.points.sizes):
            env = {p: np.asarray(v[b]) for p, v in zip(params, inner, strict=True)}
            found.append(self._computed(root, env, at, len(self.points.values[b][0])))
        return found

    def _computed(self, root: Expr, env: Mapping[Expr, Array], at: Mapping[str, int], draws: int) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(evaluate_points((root,), env, at, draws, ordered=self.points.bits)[0])

    def _evaluate(
        self, number: int, chosen: tuple[tuple[Type, int], ...], t: Type
    ) -> list[tuple[Order, Term, Type, list[Array], Array]]:
        """The uses of an operator on all combinations of operands from these lists, with their values."""
        lists = [self._kept[key] for key in chosen]
        count = math.prod(len(k.terms) for k in lists)
        params = [operand(self.points, key[0], i) for i, key in enumerate(chosen)]
        root = use(self.points, self.grammar.forms[number], params)
        stacks = [[k.stacked(b) for b in range(len(self.points.sizes))] for k in lists]
        elements = max(
            sum(len(v[0]) * _elements(t, at) for v, at in zip(self.points.values, self.points.sizes, strict=True)), 1
        )
        found: list[tuple[Order, Term, Type, list[Array], Array]] = []
        step = max(_AT_ONCE // elements, 1)
        for start in range(0, count, step):
            places = np.unravel_index(np.arange(start, min(start + step, count)), [len(k.terms) for k in lists])
            values = [self._at(root, params, stacks, places, b) for b in range(len(self.points.sizes))]
            if any(v is None for v in values):
                continue
            whole = [v for v in values if v is not None]
            rows = self.points.rows(whole, t[1])
            defined = self.points.defined(rows, t[1])
            for i, operands in enumerate(zip(*places, strict=True)):
                term = (number, *(k.terms[int(n)] for k, n in zip(lists, operands, strict=True)))
                if not defined[i] or self._is_ground(term):
                    continue
                found.append((order(term, self.grammar), term, t, [v[i] for v in whole], rows[i]))
        return found

    def _is_ground(self, term: Term) -> bool:
        if isinstance(term, int):
            return term >= self.grammar.variable_count
        return all(map(self._is_ground, term[1:]))

    def _at(self, root: Any, params: Sequence[Any], stacks: Any, places: Any, b: int) -> Array | None:
        """The values at one choice of sizes; the first axes are the term and the draw. None if it does not exist."""
        at, draws, n = self.points.sizes[b], len(self.points.values[b][0]), len(places[0])
        env: dict[Any, Array] = {}
        for p, stack, place in zip(params, stacks, places, strict=True):
            taken = stack[b][place]
            env[p] = taken.reshape(n * draws, *taken.shape[2:])
        try:
            made = self._computed(root, env, at, n * draws)
        except (RelaxEgError, IndexError):  # it reads out of range, or has dimension numbers for other ranks
            return None
        return made.reshape(n, draws, *made.shape[1:])

    # --- equality under conditions ---

    def conditional(self) -> list[EqualPair]:
        """The pairs of classes that agree where a condition holds, of which the larger one has the size of the table.
        Its operands are least under the condition; what contains others follows from smaller pairs."""
        found: list[EqualPair] = []
        for condition in self.points.conditions:
            reducible = self._reducible[condition]
            weaker = [r for c, r in self._reducible.items() if c is not condition and condition.implies(c)]
            for t, rows in self._rows.items():
                known = self._conditional.setdefault((condition, t), {})
                mask = self.points.columns(t, condition)
                for term, row in rows:
                    operands = () if isinstance(term, int) else term[1:]
                    if any(a in reducible for a in operands) or any(term in r for r in weaker):
                        reducible.add(term)
                        continue
                    inside = np.ascontiguousarray(row[mask])
                    if not self.points.defined(inside, t[1]):
                        reducible.add(term)
                        continue
                    other = known.setdefault(_key(t, inside), term)
                    if other is not term and self._concerns(condition, term, other):
                        reducible.add(term)
                        found.append(EqualPair(term, other, condition))
        self._rows = {}
        return found

    def _concerns(self, condition: Condition, left: Term, right: Term) -> bool:
        """Whether the left side has the variables that a condition names, and the sizes."""
        leaves = set(leaves_of(left))
        sizes = {v for i in leaves for d in self.grammar.leaves[i].shape for v in d.variables}
        return condition.variables <= leaves and condition.sizes <= sizes


def _elements(t: Type, at: dict[str, int]) -> int:
    return math.prod(int(d.evaluate(at)) for d in t[0])


def _key(t: Type, row: Array) -> bytes:
    return blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16, person=str(hash(t) % 10**8).encode()).digest()
