"""`Facts`: the assumptions of a scope, solved as far as that is cheap.

Equalities and divisibilities become a change of variables: `n == 2*m` replaces n by 2*m, `n % 8 == 0` replaces n by 8*q
with a new q. In the new variables, canonical forms and intervals decide most consequences of the assumptions. Unsolved
facts stay as a list of expressions that are >= 0, == 0 or != 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from relax_eg.errors import SpecError
from relax_eg.shapes.dim import Dim, Monomial, product
from relax_eg.shapes.division import split_remainders
from relax_eg.shapes.interval import Interval, interval_of
from relax_eg.shapes.piecewise import normal_comparison
from relax_eg.shapes.relation import Relation

# given: bounds of a size without facts: an axis of at least one element
AXIS: Interval = (1, None)

# limit: rounds of tightening bounds by each other. `n <= m, m <= k, k <= 64` needs one round per link. Consequences
# that need more rounds are left to z3.
_ROUNDS = 3


class Facts:
    """The facts about variables when the `assumptions` hold and have values. A variable without `bounds` has
    `default`.

    - `values`: value of each eliminated variable, in terms of the free variables.
    - `bounds`: bounds of the free variables.
    - `nonnegative`, `zero`, `nonzero`: expressions of the free variables for which further facts hold.
    """

    def __init__(
        self, bounds: Mapping[str, Interval], assumptions: Iterable[Relation] = (), default: Interval = AXIS
    ) -> None:
        self.default = default
        self.values: dict[str, Dim] = {}
        self.bounds: dict[str, Interval] = dict(bounds)
        self.nonnegative: list[Dim] = []
        self.zero: list[Dim] = []
        self.nonzero: list[Dim] = []
        self.contradictory = False  # True if a contradiction was detected; False proves nothing
        for name, (low, high) in bounds.items():
            if low is not None and low == high:
                self.values[name] = Dim.of(low)
        try:
            self._add_assumptions(assumptions)
        except SpecError:  # a divisor is zero wherever the other facts hold
            self.contradictory = True
        self.variables = frozenset().union(*(d.variables for d in self.unsolved))

    def _add_assumptions(self, assumptions: Iterable[Relation]) -> None:
        equal: list[Dim] = []
        for relation in assumptions:
            op, dim = normal_comparison(relation.op, relation.left - relation.right)
            (equal if op == "==" else self.nonnegative if op == ">=" else self.nonzero).append(dim)
            self.nonzero.extend(relation.divisors)
        if equal:
            self._solve(equal)
        self.nonnegative = self._reduced(self.nonnegative)
        self.nonzero = self._reduced(self.nonzero)
        if self.nonnegative or self.zero:
            self._tighten()
        self.nonnegative = [d for d in self.nonnegative if not _at_least(self.plain_interval(d), 0)]

    @property
    def unsolved(self) -> list[Dim]:
        """The expressions of all facts that no change of variables expresses."""
        return [*self.nonnegative, *self.zero, *self.nonzero]

    def bound(self, name: str) -> Interval:
        return self.bounds.get(name, self.default)

    def reduce(self, dim: Dim) -> Dim:
        """Returns `dim` in terms of the free variables."""
        return dim.substitute(self.values) if self.values and dim.variables & self.values.keys() else dim

    def plain_interval(self, dim: Dim) -> Interval:
        return interval_of(dim, self.bound)

    def interval(self, dim: Dim) -> Interval:
        """Returns bounds of `dim`, which is in free variables.

        Uses interval arithmetic twice: directly, and with every variable shifted by its lower bound. The shift shows
        that `b*s - b` is not negative: (b + 1)*(s + 1) - (b + 1) = b*s + s.
        """
        low, high = self.plain_interval(dim)
        if (low is not None and high is not None) or len(dim.terms) < 2 or all(len(m) == 1 for m, _ in dim.terms):
            return low, high
        shifts: dict[str, Dim | int] = {}
        moved: dict[str, Interval] = {}
        for name in dim.variables:
            least, most = self.bound(name)
            moved[name] = (least, most)
            if least:
                shifts[name] = Dim.var(name) + least
                moved[name] = (0, None if most is None else most - least)
        if not shifts:
            return low, high
        try:
            other = interval_of(dim.substitute(shifts), moved.__getitem__)
        except SpecError:
            return low, high
        return _meet((low, high), other)

    def holds(self, env: Mapping[str, int]) -> bool:
        """Whether the free variables' values `env` satisfy the unsolved facts. False if one has no value."""
        try:
            return (
                all(d.evaluate(env) >= 0 for d in self.nonnegative)
                and all(d.evaluate(env) == 0 for d in self.zero)
                and all(d.evaluate(env) != 0 for d in self.nonzero)
            )
        except ValueError:  # BoundsError (a ValueError): division by zero
            return False

    # --- solving ---

    def _solve(self, equal: list[Dim]) -> None:
        waiting = [self._unremaindered(dim) for dim in equal]
        progress = True
        while progress:
            progress = False
            for i, dim in enumerate(waiting):
                reduced = self.reduce(dim)
                if reduced == 0:
                    del waiting[i]
                    progress = True
                    break
                if self._eliminate(reduced):
                    del waiting[i]
                    progress = True
                    break
        self.zero = [reduced for dim in waiting if (reduced := self.reduce(dim)) != 0]

    def _unremaindered(self, dim: Dim) -> Dim:
        """Returns the equation `dim == 0` with one remainder replaced: `x % y == t` becomes `x == y*q + t` with a new
        q."""
        dim = self.reduce(dim)
        rest, remainders = split_remainders(dim)
        if len(remainders) != 1:
            return dim
        ((factor, dividend, modulus),) = remainders
        if not factor.is_const or rest.const % factor.const or rest.terms:
            return dim
        left = -rest.const // factor.const
        quotient = dividend // modulus
        names = quotient.variables
        if quotient.is_const or (modulus.is_const and not 0 <= left < modulus.const):
            return dim
        if not modulus.is_const and left:
            return dim  # the new equation would also have to state that the modulus exceeds the remainder
        name = _fresh(names, str(modulus), self.values.keys() | self.bounds.keys())
        low, high = self.plain_interval(quotient)
        x, y = self.plain_interval(dividend), self.plain_interval(modulus)
        if left == 0 and _at_least(x, 1) and _at_least(y, 1):
            low = max(low or 1, 1)
        self._bound(name, (low, high))
        return dividend - modulus * Dim.var(name) - left

    def _eliminate(self, dim: Dim) -> bool:
        """Solves `dim == 0` for a variable if it is linear in one with a coefficient that divides the rest."""
        content = gcd(*(c for _, c in dim.terms))
        if not content or dim.const % content:
            return False  # no integer solution
        dim = dim // content
        choices: list[tuple[tuple[bool, ...], str, Dim]] = []
        for monomial, c in dim.terms:
            if len(monomial) != 1 or monomial[0].op != "var":
                continue
            name = monomial[0].name
            rest = dim - product(monomial, c)
            if name in rest.variables:
                continue
            if abs(c) == 1:
                low, high = self.bound(name)
                # Prefer a variable whose bounds carry the least information, and keep variables made by `_fresh`.
                choices.append(((is_fresh(name), high is not None, low != 1), name, -c * rest))
            elif (congruence := self._congruence(name, c, rest)) is not None:
                self._replace(name, congruence)
                return self._eliminate(self.reduce(dim))
        if not choices:
            return False
        _, name, value = min(choices, key=lambda choice: choice[:2])
        self._replace(name, value)
        return True

    def _congruence(self, name: str, c: int, rest: Dim) -> Dim | None:
        """Returns the value of v from `c*v + a*w + b == 0`, which implies `v == a'*q + r`. Needs a rest with one linear
        term."""
        if len(rest.terms) != 1 or len(rest.terms[0][0]) != 1 or rest.terms[0][0][0].op != "var":
            return None
        _, a = rest.terms[0]
        step = gcd(c, a)
        if rest.const % step:
            return None
        modulus = abs(a) // step
        if modulus == 1:
            return None
        residue = (-rest.const // step) * pow(c // step, -1, modulus) % modulus
        fresh = _fresh(frozenset({name}), str(modulus), self.values.keys() | self.bounds.keys())
        low, high = self.bound(name)
        least = None if low is None else -((residue - low) // modulus)
        self._bound(fresh, (least, None if high is None else (high - residue) // modulus))
        return Dim.var(fresh) * modulus + residue

    def _replace(self, name: str, value: Dim) -> None:
        low, high = self.bound(name)
        for known, old in self.values.items():
            if name in old.variables:
                self.values[known] = old.substitute({name: value})
        self.values[name] = value
        if low is not None:
            self.nonnegative.append(value - low)
        if high is not None:
            self.nonnegative.append(high - value)

    # --- bounds by bounds ---

    def _bound(self, name: str, interval: Interval) -> None:
        low, high = interval
        if low is not None and high is not None and low > high:
            self.contradictory = True
            interval = (low, None)  # interval arithmetic needs a nonempty interval
        self.bounds[name] = interval

    def _reduced(self, dims: list[Dim]) -> list[Dim]:
        return list(dict.fromkeys(self.reduce(dim) for dim in dims))

    def _tighten(self) -> None:
        sources = [*self.nonnegative, *self.zero, *(-d for d in self.zero)]
        for _ in range(_ROUNDS):
            before = dict(self.bounds)
            for dim in sources:
                for monomial, c in dim.terms:
                    self._tighten_by(dim, monomial, c)
            if before == self.bounds:
                return

    def _tighten_by(self, dim: Dim, monomial: Monomial, c: int) -> None:
        """Derives a bound of v from `c*v*w + rest >= 0`, if w is at least 1."""
        if any(atom.op != "var" for atom in monomial):
            return
        _, most = self.plain_interval(dim - product(monomial, c))
        if most is None:
            return
        for i, atom in enumerate(monomial):
            others = monomial[:i] + monomial[i + 1 :]
            low, high = self.bound(atom.name)
            if not others and c > 0:
                self._bound(atom.name, _meet((low, high), (-(most // c), None)))
            elif c < 0 and (not others or most >= 0):
                weight = 1
                for other in others:
                    least, _ = self.bound(other.name)
                    weight *= 0 if least is None or least < 1 else least
                if weight:
                    self._bound(atom.name, _meet((low, high), (None, most // (-c * weight))))


def is_fresh(name: str) -> bool:
    """Whether `_fresh` made `name`."""
    return "·" in name


def _fresh(names: Iterable[str], by: str, taken: Iterable[str]) -> str:
    """Returns a new variable name that no user would type."""
    stem = "·".join([*sorted(names), by if by.isalnum() else "x"])
    name, known = stem, set(taken)
    while name in known:
        name += "·"
    return name


def _at_least(interval: Interval, least: int) -> bool:
    return interval[0] is not None and interval[0] >= least


def _meet(a: Interval, b: Interval) -> Interval:
    lows = [low for low in (a[0], b[0]) if low is not None]
    highs = [high for high in (a[1], b[1]) if high is not None]
    return max(lows, default=None), min(highs, default=None)
