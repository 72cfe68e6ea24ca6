"""Canonical forms of sums: guards are solved and dropped; variables are split, counted, shifted and renamed.

A *settled* sum is one whose terms no step of `Normalizer` simplifies further.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from relax_eg.rules.verify_formal.compose import Composer, Unsupported
from relax_eg.rules.verify_formal.guards import (
    GuardLiteral,
    Guards,
    KnownGuards,
    at_least,
    in_range,
    simplified,
    zero,
)
from relax_eg.rules.verify_formal.places import Written, few_places
from relax_eg.rules.verify_formal.sums import CanonicalSum, Factor, Sum, Term, guard_variables
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain
from relax_eg.shapes.dim import product as monomial_dim
from relax_eg.tir.expr import is_loop, loop

# limit: orders of bound variables that look alike which are tried to find the canonical one
_MOST_ORDERS = 120
_MOST_ROUNDS = 60  # limit: rounds of simplification of a term
_MOST_WRITTEN_ROUNDS = 4000  # limit: the same if sums are written out; a round makes or simplifies one summand

_ALWAYS: Guards = frozenset()
_ANY = loop("any")
_THIS = loop("this")


class Normalizer:
    """Brings terms to canonical form under facts.

    - `composer`: the composer that made the terms.
    - `facts`: the guards that hold at every point considered.
    - `written`: which sums over few places are written out (`places`). If any is, equal terms are merged at once.
    """

    def __init__(self, composer: Composer, facts: KnownGuards, written: Written = "none") -> None:
        self.composer = composer
        self.facts = facts
        self.written: Written = written
        self._given = set(facts.known)
        self._settled: dict[Term, list[tuple[Term, Fraction]]] = {}
        self._named: dict[Term, Term] = {}  # terms with canonical names
        self._merged: dict[Term, Term] = {}  # by a term with canonical names, the one that stands for its equals

    # --- replacing variables ---

    def factor_with(self, f: Factor, env: Mapping[str, Dim]) -> Factor:
        if not self.composer.closure(f.variables) & env.keys():
            return f
        return Factor(
            f.kind,
            f.name,
            tuple(self.composer.replaced(d, env) for d in f.dims),
            tuple(self.form_with(a, env) for a in f.args),
        )

    def form_with(self, form: CanonicalSum, env: Mapping[str, Dim]) -> CanonicalSum:
        if not self.composer.closure(form.variables) & env.keys():
            return form
        total = Sum()
        for t, c in form.terms:
            total.add(self.term_with(t, env), c)
        return self.canonical_sum(self.settle(total), form.modulus)

    def guard_with(self, g: GuardLiteral, env: Mapping[str, Dim]) -> GuardLiteral:
        if g.of is not None:
            return GuardLiteral(g.op, g.dim, self.factor_with(g.of, env))
        return g.on(self.composer.replaced(g.dim, env))

    def term_with(self, t: Term, env: Mapping[str, Dim]) -> Term:
        """Returns `t` with its free variables replaced."""
        return Term(
            tuple(self.factor_with(f, env) for f in t.factors),
            frozenset(self.guard_with(g, env) for g in t.guards),
            t.bound,
        )

    def with_fresh_names(self, t: Term, names: Iterable[str] | None = None) -> Term:
        """Returns `t` with its bound variables, or those of `names`, renamed to fresh names."""
        env = {n: self.composer.fresh() for n in (t.bound if names is None else names)}
        bound = (t.bound - env.keys()) | {v for d in env.values() for v in d.variables}
        made = self.term_with(t, env)
        return Term(made.factors, made.guards, bound) if env else t

    # --- arithmetic ---

    def product(self, a: Sum, b: Sum) -> Sum:
        total = Sum()
        for t, c, m in a.items():
            for u, d, n in b.items():
                other = self.with_fresh_names(u, t.bound & u.bound)
                factors = tuple(sorted((*t.factors, *other.factors), key=lambda f: f.key))
                total.add(Term(factors, t.guards | other.guards, t.bound | other.bound), c * d, m * n)
        return self.settle(total)

    def settle(self, s: Sum) -> Sum:
        """Returns `s` with its terms simplified until no step applies."""
        total = Sum()
        for t, c, m in s.items():
            for made, by in self._settle_term(t):
                total.add(self._one_of_equals(made) if self.written != "none" else made, c * by, m * abs(by))
        return total

    def _one_of_equals(self, t: Term) -> Term:
        """The term that stands for all terms that are equal to `t` up to the names of bound variables. Its own names
        are fresh, so that no other term has them free."""
        named = self.with_canonical_names(t)
        if named not in self._merged:
            self._merged[named] = self.with_fresh_names(t)
        return self._merged[named]

    def _settle_term(self, term: Term) -> list[tuple[Term, Fraction]]:
        found = self._settled.get(term)
        if found is None:
            done: list[tuple[Term, Fraction]] = []
            todo = [(term, Fraction(1))]
            for _ in range(_MOST_ROUNDS if self.written == "none" else _MOST_WRITTEN_ROUNDS):
                if not todo:
                    break
                t, c = todo.pop()
                self.facts.deadline.check()
                step = self._step(t)
                if step is None:
                    done.append((t, c))
                else:
                    todo.extend((u, c * d) for u, d in step)
            else:
                raise Unsupported("a term does not settle")
            found = self._settled[term] = done
        return found

    def without_implied_guards(self, t: Term, path: Guards = _ALWAYS) -> Term:
        """Returns `t` without guards that follow from its other guards and `path`."""
        guards = t.guards
        for g in sorted(guards, key=lambda g: g.key):
            if g.of is None and len(guards | path) > 1 and self.facts.entails(g, path | guards - {g}):
                guards -= {g}
        return Term(t.factors, guards, t.bound)

    def size_where(self, form: CanonicalSum, path: Guards) -> Dim | None:
        """Returns the size, or number of places, that an integer is where `path` holds; None if it is not shown."""
        for _ in range(2):  # what is counted leaves a guard, that there is anything to count
            if form.dim is not None:
                return form.dim
            total = Sum()
            for t, c in form.terms:
                total.add(self.without_implied_guards(t, path), c)
            form = self.canonical_sum(self.settle(total), form.modulus)
        return form.dim

    def _step(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Returns one simplification of `t`, as a sum; None if there is none."""
        for step in (
            self._guards, self._solve, self._factors, self._split, self._write_out, self._fuse, self._quotient,
            self._count, self._shift,
        ):  # fmt: skip
            found = step(t)
            if found is not None:
                return found
        return None

    def _write_out(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Replaces a sum over few places by its summands, if that is wanted."""
        found = few_places(t, self.written, self.composer.constants) if self.written != "none" else None
        if found is None:
            return None
        name, places = found
        rest = Term(t.factors, t.guards, t.bound - {name})
        return [(self.term_with(rest, {name: Dim.of(i)}), Fraction(1)) for i in places]

    def _guards(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Drops guards that are decided or known. A term whose guards contradict one another is 0."""
        kept: set[GuardLiteral] = set()
        for g in t.guards:
            if g.of is not None:
                if g.negated() in t.guards:
                    return []
                kept.add(g)
                continue
            made = g if is_plain(g.dim) else g.on(simplified(g.dim, self.facts, t.guards - {g}))
            if made != g:  # one at a time: two guards must not each be simplified by the other
                return [(Term(t.factors, (t.guards - {g}) | {made}, t.bound), Fraction(1))]
            if g.decided is not None:
                if not g.decided:
                    return []
                continue
            if g in self._given:
                continue
            if g.negated() in self._given or g.negated() in t.guards:
                return []
            kept.add(g)
        for g in list(kept):
            if g.op != ">=":
                continue
            opposite = at_least(-g.dim)
            if opposite in kept or opposite in self._given:
                kept -= {g, opposite}
                kept.add(zero(g.dim))
        # Of parallel bounds only the tightest is kept.
        for g in list(kept):
            if g.op == ">=" and any(
                h is not g and h.op == ">=" and h.of is None and _less_by_constant(h.dim, g.dim) for h in kept
            ):
                kept.discard(g)
        guards = frozenset(kept)
        return None if guards == t.guards else [(Term(t.factors, guards, t.bound), Fraction(1))]

    def _solve(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Solves an equation for a bound variable, or else for its last loop variable, and replaces that variable
        everywhere else in the term."""
        for g in sorted((g for g in t.guards if g.op == "=="), key=lambda g: g.key):
            loops = sorted(n for n in g.dim.variables if is_loop(n) and n not in self.composer.opaque)
            solvable = [n for n in loops if self.coefficient(g.dim, n) in (1, -1)]
            if not solvable:
                continue
            name = next((n for n in solvable if n in t.bound), solvable[-1])
            v = Dim.var(name)
            solution = v - g.dim * (self.coefficient(g.dim, name) or 1)
            rest = Term(t.factors, t.guards - {g}, t.bound - {name})
            made = self.term_with(rest, {name: solution})
            if name in t.bound:
                return [(made, Fraction(1))]
            if made != rest:
                return [(Term(made.factors, made.guards | {g}, t.bound), Fraction(1))]
        return None

    def _factors(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Simplifies indices, and writes integers as sums of products of atoms."""
        for n, f in enumerate(t.factors):
            dims = tuple(simplified(d, self.facts, t.guards) for d in f.dims)
            others = (*t.factors[:n], *t.factors[n + 1 :])
            if f.kind == "read" and (number := self.composer.number_at(f.name, dims)) is not None:
                return [(self._with(t, others), Fraction(number))] if number else []
            if f.kind == "dim" and (len(dims[0].terms) != 1 or dims[0].const or _power(dims[0]) != 1):
                made: list[tuple[Term, Fraction]] = []
                for atoms, c in (*dims[0].terms, ((), dims[0].const)):
                    if c:
                        written = tuple(Factor("dim", "", (monomial_dim((a,)),)) for a in atoms)
                        made.append((self._with(t, (*others, *written)), Fraction(c)))
                return made
            args = tuple(self._simplified_form(a, t.guards) for a in f.args)
            if dims != f.dims or args != f.args:
                return [(self._with(t, (*others, Factor(f.kind, f.name, dims, args))), Fraction(1))]
        return None

    def _simplified_form(self, form: CanonicalSum, guards: frozenset[GuardLiteral]) -> CanonicalSum:
        """`form` with simplified indices where `guards` hold; those without quotients are as simple as they get."""
        found = [(t, c, self._simplified_indices(t, guards)) for t, c in form.terms]
        if all(made == t.factors for t, _, made in found):
            return form
        total = Sum()
        for t, c, made in found:
            total.add(self._with(t, made), c)
        return self.canonical_sum(self.settle(total), form.modulus)

    def _simplified_indices(self, t: Term, guards: frozenset[GuardLiteral]) -> tuple[Factor, ...]:
        return tuple(
            f
            if f.kind == "dim" or (not f.args and all(map(is_plain, f.dims)))
            else Factor(
                f.kind,
                f.name,
                tuple(d if is_plain(d) else simplified(d, self.facts, guards | t.guards) for d in f.dims),
                tuple(self._simplified_form(a, guards | t.guards) for a in f.args),
            )
            for f in t.factors
        )

    def _with(self, t: Term, factors: Iterable[Factor]) -> Term:
        return Term(tuple(sorted(factors, key=lambda f: f.key)), t.guards, t.bound)

    def _dims(self, t: Term) -> list[Dim]:
        return [d for f in t.factors for d in _indices_of(f)] + [g.dim for g in t.guards]

    def _split(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Writes a bound `v` that is divided by `d` as `q*d + r`."""
        for d in self._dims(t):
            for atoms, _ in d.terms:
                for a in atoms:
                    if a.op != "floordiv":
                        continue
                    top, by = a.args
                    name = next(iter(top.variables)) if len(top.variables) == 1 else ""
                    if name not in t.bound or top is not Dim.var(name) or by.variables & t.bound:
                        continue
                    if not self.facts.entails(at_least(by - 1), t.guards):
                        continue
                    v, q, r = top, self.composer.fresh(), self.composer.fresh()
                    bound = (t.bound - {name}) | q.variables | r.variables
                    # 0 <= v and v < by * e are replaced by bounds on q alone, which say the same.
                    guards = {g for g in t.guards if g.op != ">=" or g.dim is not v}
                    more = {*in_range(r, by)}
                    if len(guards) < len(t.guards):
                        more.add(at_least(q))
                    for g in list(guards):
                        if g.op == ">=" and self.coefficient(g.dim, name) == -1:
                            extent = g.dim + v + 1
                            whole = simplified(extent // by, self.facts, t.guards)
                            if whole * by is extent:
                                guards.discard(g)
                                more.add(at_least(whole - 1 - q))
                    plain = Term(t.factors, frozenset(guards), t.bound - {name})
                    made = self.term_with(plain, {name: q * by + r})
                    return [(Term(made.factors, made.guards | more, bound), Fraction(1))]
        return None

    def _fuse(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Replaces bound `i` and `j`, `0 <= j < e`, that occur only as `i*e + j`, by one variable."""
        ranged = [(n, e) for n in sorted(t.bound) if (e := self._extent(t, n)) is not None]
        for (i, outer), (j, inner) in itertools.permutations(ranged, 2):
            if any((i in d.variables) != (j in d.variables) for f in t.factors for d in f.dims):
                continue
            if {i, j} & (outer.variables | inner.variables) or not any({i, j} <= f.variables for f in t.factors):
                continue
            v, k = Dim.var(i), self.composer.fresh()
            ranges = {*in_range(v, outer), *in_range(Dim.var(j), inner)}
            plain = Term(t.factors, t.guards - ranges, t.bound - {i, j})
            made = self.term_with(plain, {j: k - v * inner})
            if i in self.composer.closure(made.variables) or not self.facts.entails(at_least(inner), made.guards):
                continue
            guards = made.guards | {*in_range(k, outer * inner)}
            return [(Term(made.factors, guards, made.bound | k.variables), Fraction(1))]
        return None

    def _extent(self, t: Term, name: str) -> Dim | None:
        """Returns the extent of a bound variable that runs from 0, else None."""
        v = Dim.var(name)
        bounds = [g.dim + v + 1 for g in t.guards if g.op == ">=" and self.coefficient(g.dim, name) == -1]
        return bounds[0] if len(bounds) == 1 and at_least(v) in t.guards else None

    def coefficient(self, d: Dim, name: str) -> int | None:
        """Returns the coefficient of a variable that occurs linearly in `d`, 0 if it does not occur, else None."""
        found = 0
        for atoms, c in d.terms:
            if len(atoms) == 1 and atoms[0].op == "var" and atoms[0].name == name:
                found = c
            elif any(name in self._within(a.name, a.args) for a in atoms):
                return None
        return found

    def _within(self, name: str, args: tuple[Dim, ...]) -> frozenset[str]:
        return self.composer.closure((name,) if not args else frozenset[str]().union(*(x.variables for x in args)))

    def _quotient(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Drops a bound `v` that is in no factor and has one value, a quotient: `0 <= k - e*v < e`."""
        used = self.composer.closure(frozenset[str]().union(*(f.variables for f in t.factors)))
        for name in sorted(t.bound - used):
            v = Dim.var(name)
            about = [g for g in t.guards if name in self.composer.closure(guard_variables(g))]
            if any(g.op != ">=" or g.of is not None for g in about):
                continue
            for low, high in itertools.permutations(about, 2):
                by = low.dim + high.dim + 1
                top = low.dim + by * v
                if name in self.composer.closure(by.variables | top.variables):
                    continue
                rest = [(g.dim, self.coefficient(g.dim, name)) for g in about if g is not low and g is not high]
                if all(c in (1, -1) for _, c in rest):
                    bounds = {top + (d - v) * by if c == 1 else (d + v + 1) * by - 1 - top for d, c in rest}
                    guards = t.guards.difference(about) | {at_least(d) for d in (by - 1, *bounds)}
                    return [(Term(t.factors, guards, t.bound - {name}), Fraction(1))]
        return None

    def _count(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Counts a bound variable that is in no factor: multiplies its term by the number of its values."""
        used = self.composer.closure(frozenset[str]().union(*(f.variables for f in t.factors)))
        for name in sorted(t.bound - used):
            v = Dim.var(name)
            low: list[Dim] = []
            high: list[Dim] = []
            others: set[GuardLiteral] = set()
            for g in t.guards:
                if name not in self.composer.closure(guard_variables(g)):
                    others.add(g)
                    continue
                c = self.coefficient(g.dim, name) if g.op == ">=" else None
                if c == 1:
                    low.append(v - g.dim)
                elif c == -1:
                    high.append(g.dim + v)
                else:
                    break
            else:
                rest = frozenset(others)
                least, most = self.extreme(low, rest, 1), self.extreme(high, rest, -1)
                if least is None or most is None:
                    continue
                count = most - least + 1
                factors = (*t.factors, Factor("dim", "", (count,)))
                made = Term(factors, rest | {at_least(count)}, t.bound - {name})
                return [(self._with(made, factors), Fraction(1))]
        return None

    def extreme(self, dims: Iterable[Dim], guards: frozenset[GuardLiteral], sign: int) -> Dim | None:
        """Returns the largest of `dims`, or with `sign` -1 the least, if one is shown to be where `guards` hold."""
        dims = list(dims)
        for d in dims:
            if all(d is e or self.facts.entails(at_least((d - e) * sign), guards) for e in dims):
                return d
        return None

    def _shift(self, t: Term) -> list[tuple[Term, Fraction]] | None:
        """Replaces a bound variable that indexes the first tensor it occurs in only as `v + e` or `e - v` by that
        index."""
        reads = sorted(_reads(t.factors), key=lambda f: f.name)
        for name in sorted(t.bound):
            v = Dim.var(name)
            first = next((f.name for f in reads if any(name in d.variables for d in f.dims)), None)
            places = [d for f in reads if f.name == first for d in f.dims]
            if any(d is v for d in places):
                continue
            offsets = [d for d in places if self.coefficient(d, name) in (1, -1)]
            # If other bound variables are in the index, the choice of one to replace is arbitrary: it stays as it is.
            offsets = [d for d in offsets if not (d.variables - {name}) & t.bound]
            if not offsets:
                continue
            d = min(offsets, key=Dim.sort_key)
            c = self.coefficient(d, name)
            w = self.composer.fresh()
            plain = Term(t.factors, t.guards, t.bound - {name})
            made = self.term_with(plain, {name: (w - (d - v * (c or 1))) * (c or 1)})
            return [(Term(made.factors, made.guards, made.bound | w.variables), Fraction(1))]
        return None

    # --- canonical names ---

    def canonical_sum(self, s: Sum, modulus: int = 0) -> CanonicalSum:
        """Returns the canonical form of a settled sum."""
        total: dict[Term, Fraction] = {}
        for t, c, _ in s.items():
            named = self.with_canonical_names(t)
            total[named] = total.get(named, Fraction(0)) + c
        kept = {t: _reduced(c, modulus) for t, c in total.items()}
        return CanonicalSum(tuple(sorted(((t, c) for t, c in kept.items() if c), key=lambda x: x[0].key)), modulus)

    def merge_equal_terms(self, s: Sum) -> Sum:
        """Returns a settled sum with merged terms if they are equal up to the names of bound variables, so that its
        masses show cancellation. Terms of coefficient 0 are kept."""
        total = Sum()
        for t, c, m in s.items():
            total.add(self.with_canonical_names(t), c, m)
        return total

    def with_canonical_names(self, t: Term) -> Term:
        """Returns `t` with canonical names for its bound variables."""
        found = self._named.get(t)
        if found is None:
            found = self._named[t] = self._named_anew(t) if t.bound else self._with(t, t.factors)
        return found

    def _named_anew(self, t: Term) -> Term:
        inner = [f.height for f in t.factors] + [g.of.height for g in t.guards if g.of is not None]
        height = 1 + max(inner, default=0)
        signs = {n: self._signature(t, n) for n in t.bound}
        groups = [
            list(g) for _, g in itertools.groupby(sorted(t.bound, key=lambda n: (signs[n], n)), signs.__getitem__)
        ]
        if math.prod(math.factorial(len(g)) for g in groups) > _MOST_ORDERS:
            raise Unsupported("too many bound variables look alike")
        best: Term | None = None
        for orders in itertools.product(*(itertools.permutations(g) for g in groups)):
            order = [n for g in orders for n in g]
            env = {n: loop(f"b{height}_{i}") for i, n in enumerate(order)}
            made = self.term_with(Term(t.factors, t.guards), env)
            made = self._with(
                Term(made.factors, made.guards, frozenset(loop_name(d) for d in env.values())), made.factors
            )
            if best is None or made.key < best.key:
                best = made
        assert best is not None
        return best

    def _signature(self, t: Term, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        env = dict.fromkeys(t.bound, _ANY) | {name: _THIS}
        used = [f for f in t.factors if name in self.composer.closure(f.variables)]
        guarding = [g for g in t.guards if name in self.composer.closure(guard_variables(g))]
        return (
            tuple(sorted(self.factor_with(f, env).key for f in used)),
            tuple(sorted(self.guard_with(g, env).key for g in guarding)),
        )


def loop_name(d: Dim) -> str:
    (name,) = d.variables
    return name


def _reduced(c: Fraction, modulus: int) -> Fraction:
    if not modulus:
        return c
    if c.denominator != 1:
        raise Unsupported("a fraction among integers")
    c = c % modulus
    return c - modulus if 2 * c > modulus else c


def _indices_of(f: Factor) -> Iterator[Dim]:
    """The indices in a factor, those in its arguments too."""
    yield from f.dims
    for a in f.args:
        for t, _ in a.terms:
            for g in t.factors:
                yield from _indices_of(g)


def _reads(factors: Sequence[Factor]) -> list[Factor]:
    """Returns the elements read by `factors`; if there are none, those read by their arguments."""
    found = [f for f in factors if f.kind == "read"]
    inner = ((f, t) for g in factors for a in g.args for t, _ in a.terms for f in _reads(t.factors))
    return found or [f for f, t in inner if not f.variables & t.bound]


def _power(d: Dim) -> int:
    """Returns the number of atoms in the only term of `d` if its coefficient is 1, else 0."""
    ((atoms, c),) = d.terms
    return len(atoms) if c == 1 else 0


def _less_by_constant(a: Dim, b: Dim) -> bool:
    rest = b - a
    return rest.is_const and rest.value > 0
