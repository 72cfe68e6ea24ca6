"""`Scope`: the facts about size variables in a function, in a branch, or after a `match_cast`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import cast

from relax_eg.argument_checks import short_repr
from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes.binder import Binder, call_name
from relax_eg.shapes.constraints import jax_constraint
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.interval import ANY, Interval
from relax_eg.shapes.piecewise import normal_comparison
from relax_eg.shapes.prover import Prover
from relax_eg.shapes.relation import Bound, Bounds, Relation, as_statements, read_statement, split_bounds
from relax_eg.shapes.verdict import Proved, ProverStatistics

_DEFAULT_SOURCE = "every size is at least 1 unless declared otherwise"
_ACCEPTED = "accepted: (low, high) with low <= high, either may be None, or one integer for a fixed size"


@dataclass(frozen=True, slots=True)
class _Bound:
    """Bounds of one variable; None for a missing one.

    - `low_source`, `high_source`: where each bound comes from, for error messages.
    """

    low: int | None
    high: int | None
    low_source: str
    high_source: str


_DEFAULT = _Bound(1, None, _DEFAULT_SOURCE, "")


class Scope:
    """Facts about size variables: bounds, and assumptions in text.

    A variable is at least 1 unless declared otherwise. Scopes nest by `child()`: a child starts with the facts its
    parent has at that time; facts added to the child stay in the child.

    - `bounds`: maps a name to `(low, high)`, or to one integer, which fixes the size. None keeps the default of that
      side.
    - `assume`: statements such as `"n % 8 == 0"`, `"n == 2*m"`, `"0 <= y < 32"`.
    - `statistics`: counts the prover's queries; by default a new one, shared with the scope's children.
    """

    def __init__(
        self,
        bounds: Mapping[str, Bound] | None = None,
        *,
        assume: Iterable[str] = (),
        statistics: ProverStatistics | None = None,
    ) -> None:
        self._bounds: dict[str, _Bound] = {}
        self._assumptions: list[Relation] = []
        self._prover: Prover | None = None
        self._statistics = statistics if statistics is not None else ProverStatistics()
        for name, bound in (bounds or {}).items():
            self.bound(name, bound)
        self.assume(*as_statements(assume))

    def child(self) -> Scope:
        """Returns a scope that starts with the facts of this one. Later facts of one do not reach the other."""
        inner = Scope(statistics=self._statistics)
        inner._bounds = dict(self._bounds)
        inner._assumptions = list(self._assumptions)
        # A prover is not changed by queries, so both scopes share it until either adds a fact.
        inner._prover = self._prover
        return inner

    def bound(
        self, name: str, bound: tuple[int | None, int | None] | int, source: str = "optimize(bounds=...)"
    ) -> None:
        """Adds a bound in the form of the `bounds` argument. `source` is named in errors."""
        low, high = _pair(name, bound)
        self.declare(name, low, high, source)

    def declare(
        self, name: str, low: int | None = None, high: int | None = None, source: str = "optimize(bounds=...)"
    ) -> None:
        """Adds `low <= name <= high`; earlier bounds still hold. `source` is named in errors.

        The first lower bound given replaces the default of 1.
        """
        Dim.var(name)
        low, high = _pair(name, (low, high))
        before = self._bounds.get(name, _DEFAULT)
        low_source, high_source = before.low_source, before.high_source
        if low is None or (low_source != _DEFAULT_SOURCE and before.low is not None and before.low >= low):
            low = before.low
        else:
            low_source = f"declared in {source}"
        if high is None or (before.high is not None and before.high <= high):
            high = before.high
        else:
            high_source = f"declared in {source}"
        if low is not None and high is not None and low > high:
            raise BoundsError(
                f"no size satisfies the bounds of `{name}`: at least {low} ({low_source}) "
                f"and at most {high} ({high_source}); {_ACCEPTED}"
            )
        self._set_facts({**self._bounds, name: _Bound(low, high, low_source, high_source)}, self._assumptions)

    def assume(self, *statements: str) -> None:
        """Adds the fact that each statement holds and has a value: `"n % 8 == 0"`, `"b*s <= 4096"`, `"0 <= y < 32"`.

        A statement that compares one variable with an integer declares a bound, so `n >= 0` allows `n` to be 0 if
        nothing was declared about it. If no sizes satisfy all facts, BoundsError names a minimal set of contradictory
        statements, and the scope stays unchanged.
        """
        bounds, assumptions = self._bounds, self._assumptions
        try:
            for statement in statements:
                for relation in read_statement(statement):
                    bound = _as_bound(relation)
                    if bound is None:
                        self._set_facts(self._bounds, [*self._assumptions, relation])
                    else:
                        name, low, high = bound
                        self.declare(name, low, high, f"the assumption `{relation}`")
        except BoundsError:
            self._bounds, self._assumptions, self._prover = bounds, assumptions, None
            raise

    def _set_facts(self, bounds: dict[str, _Bound], assumptions: list[Relation]) -> None:
        fresh = None
        if assumptions:
            known = {name: (bound.low, bound.high) for name, bound in bounds.items()}
            fresh = Prover(known, assumptions, self._statistics)
            if fresh.satisfiable() is False:
                raise BoundsError(_contradiction(bounds, assumptions))
        self._bounds, self._assumptions, self._prover = bounds, assumptions, fresh

    @property
    def statistics(self) -> ProverStatistics:
        """The query counts of this scope, its parents and its children."""
        return self._statistics

    @property
    def prover(self) -> Prover:
        """The prover for the current facts."""
        if self._prover is None:
            self._prover = Prover(
                {name: (bound.low, bound.high) for name, bound in self._bounds.items()},
                self._assumptions,
                self._statistics,
            )
        return self._prover

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as the user wrote them, without bounds."""
        return tuple(map(str, self._assumptions))

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The assumptions as relations."""
        return tuple(self._assumptions)

    @property
    def statements(self) -> tuple[str, ...]:
        """All bounds and assumptions, as statements that `assume` accepts."""
        found: list[str] = []
        for name, bound in self._bounds.items():
            found += [] if bound.low in (None, 1) else [f"{name} >= {bound.low}"]
            found += [] if bound.high is None else [f"{name} <= {bound.high}"]
        return (*found, *self.assumptions)

    @property
    def names(self) -> frozenset[str]:
        """The variables with a declared bound or an assumption."""
        return frozenset(self._bounds).union(*(relation.variables for relation in self._assumptions))

    def bounds(self, name: str) -> Interval:
        """Returns the declared lower and upper bound of the variable `name`; None for a missing one."""
        bound = self._bounds.get(name, _DEFAULT)
        return bound.low, bound.high

    def interval(self, d: Dim | int) -> Interval:
        """Returns bounds of the value of `d` wherever it is defined; None if unknown. Sound, not always tight."""
        facts = self.prover.facts
        try:
            return facts.interval(facts.reduce(Dim.of(d)))
        except SpecError:  # a divisor is always zero, so there is no value to bound
            return ANY

    def determined_variables(self) -> dict[str, Dim]:
        """Returns variables determined by bounds and equalities, each as a number or in terms of others: `n == 2*m`
        gives n as 2*m.

        No value contains a variable that is a key of the result.
        """
        found = {n: Dim.of(b.low) for n, b in self._bounds.items() if b.low is not None and b.low == b.high}
        for relation in self._assumptions:
            left, right = relation.left.substitute(found), relation.right.substitute(found)
            # Try the side that JAX replaces first, so that traced sizes stay unchanged.
            for d, value in ((left, right), (right, left)) if relation.op == "==" and not relation.divisors else ():
                if str(d) in d.variables and str(d) not in value.variables:
                    found = {n: known.substitute({str(d): value}) for n, known in found.items()}
                    found[str(d)] = value
                    break
        return found

    def equal(self, a: Dim | int, b: Dim | int, *, deep: bool = False) -> bool | None:
        """Returns True or False if equality or difference holds for all allowed sizes at which both have a value; else
        None.

        Without `deep`, nothing is searched. With `deep`, the prover searches, finally with z3.
        """
        left, right = Dim.of(a), Dim.of(b)
        difference = left - right
        if difference.is_const:
            return difference.const == 0
        for op, answer in (("==", True), ("!=", False)):
            if isinstance(self.prover.decide(Relation(left, op, right), 0, refute=False), Proved):
                return answer
        if deep:
            found = self.prover.decide(Relation(left, "==", right))
            if isinstance(found, Proved):
                return True
            if isinstance(self.prover.decide(Relation(left, "!=", right)), Proved):
                return False
        return None

    def check(self, env: Mapping[str, int], where: str) -> None:
        """Raises BoundsError for the first size in `env` outside its bounds, and for the first assumption that is
        false.

        `where` names the called function.
        """
        for name, size in env.items():
            bound = self._bounds.get(name, _DEFAULT)
            if bound.low is not None and bound.low == bound.high and size != bound.low:
                raise BoundsError(
                    f"{call_name(where)}: {name} = {size}, and its bounds fix it to {bound.low} ({bound.low_source}); "
                    f"a pair such as (1, {max(bound.low, size)}) accepts all sizes between"
                )
            if bound.high is not None and size > bound.high:
                raise BoundsError(
                    f"{call_name(where)}: {name} = {size} exceeds its bound {bound.high} ({bound.high_source}); "
                    f"raise the bound or split the input"
                )
            if bound.low is not None and size < bound.low:
                raise BoundsError(
                    f"{call_name(where)}: {name} = {size} is below its bound {bound.low} ({bound.low_source}); "
                    f"lower the bound or pass a larger input"
                )
        for relation in self._assumptions:
            if relation.variables <= env.keys() and not relation.holds(env):
                at = ", ".join(f"{name} = {env[name]}" for name in sorted(relation.variables))
                raise BoundsError(f"{call_name(where)}: the assumption `{relation}` does not hold at {at}")

    def unproved_statement(self, env: Mapping[str, Dim], known: Scope) -> str | None:
        """Returns the first statement of this scope that `known` does not prove, or None if all are proved.

        `env`: the value of each variable of this scope, as a size over the variables of `known`.
        """
        for text in self.statements:
            for relation in read_statement(text):
                if not isinstance(known.prover.prove(relation.substitute(env)), Proved):
                    return text
        return None

    def example(self, names: Sequence[str], size: int, fixed: Mapping[str, int] | None = None) -> dict[str, int]:
        """Returns allowed values of the variables `names`, about as large as `size` if possible.

        `fixed`: values that are given. BoundsError if no allowed values were found.
        """
        inner = self.child()
        for name, value in (fixed or {}).items():
            inner.declare(name, value, value, source="at=...")
        found = inner.prover.example(names, size)
        if found is None:
            known = "; ".join(self.assumptions)
            raise BoundsError(
                f"found no sizes {', '.join(names)} that satisfy {known}; accepted: at=... with all of them"
            )
        return found

    def points(self, names: Iterable[str], most: int) -> list[dict[str, int]]:
        """Returns up to `most` allowed assignments of the variables `names`, the same in every run."""
        return self.prover.points(names, most)

    @staticmethod
    def from_constraints(constraints: Iterable[str]) -> Scope:
        """Returns the scope for constraints in the syntax of `jax.export.SymbolicScope`.

        Examples: `"mod(s, 8) == 0"`, `"b*s <= 4096"`.
        """
        scope = Scope()
        statements: dict[object, str] = {}
        for text in as_statements(constraints):
            statement = text.replace("^", "**")
            # JAX adds `8*floordiv(s, 8) == s` before `mod(s, 8) == 0`; the two are equivalent.
            statements[tuple(map(_comparison_key, read_statement(statement)))] = statement
        scope.assume(*statements.values())
        for name in scope._bounds:  # JAX assumes every variable >= 1, in addition to the constraints
            low, _ = scope.bounds(name)
            scope.declare(name, 1 if low is None else max(low, 1), source="jax.export")
        return scope

    def to_constraints(self) -> list[str]:
        """Returns the facts in the syntax of `jax.export.SymbolicScope`.

        `!=` has no such syntax and is left out, so JAX knows less. BoundsError if a variable may be less than 1, which
        JAX does not allow.
        """
        out: list[str] = []
        for name, bound in self._bounds.items():
            if bound.low is None or bound.low < 1:
                raise BoundsError(
                    f"`{name}` may be {bound.low} ({bound.low_source}), and a symbolic dimension of JAX is at least 1; "
                    f"accepted: a lower bound of 1 or more"
                )
            out += [f"{name} >= {bound.low}"] * (bound.low > 1)  # JAX rejects a repeated `>= 1`
            out += [] if bound.high is None else [f"{name} <= {bound.high}"]
        return out + [text for relation in self._assumptions if (text := jax_constraint(relation)) is not None]

    def bind(
        self,
        patterns: Sequence[Sequence[Dim | None]],
        sizes: Sequence[Sequence[int]],
        names: Sequence[str],
        where: str,
    ) -> dict[str, int]:
        """Returns the variables' values for arguments `names` with these `sizes`, checked against the facts.

        ShapeError or BoundsError if the sizes do not fit. To bind many times, keep a `Binder`.
        """
        env = Binder(patterns, names, where).bind(sizes)
        self.check(env, where)
        return env

    def __repr__(self) -> str:
        assumed = f", assume={list(self.assumptions)}" if self._assumptions else ""
        return f"Scope({ {name: self.bounds(name) for name in self._bounds} }{assumed})"


def _comparison_key(relation: Relation) -> tuple[str, frozenset[Dim]]:
    """Returns a key that is equal for two relations that compare the same difference with zero."""
    op, difference = normal_comparison(relation.op, relation.left - relation.right)
    return op, frozenset((difference,) if op == ">=" else (difference, -difference))


def _as_bound(relation: Relation) -> tuple[str, int | None, int | None] | None:
    """Returns the bound that the relation states, if it compares a variable with an integer."""
    a, op, b = relation.left, relation.op, relation.right
    if a.is_const and not b.is_const:
        a, op, b = b, {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}.get(op, op), a
    name = str(a)
    if not b.is_const or op == "!=" or relation.divisors or relation.variables != frozenset({name}):
        return None
    size = b.value
    match op:
        case "==":
            return name, size, size
        case "<=" | "<":
            return name, None, size - (op == "<")
        case _:
            return name, size + (op == ">"), None


def _contradiction(bounds: Mapping[str, _Bound], assumptions: Sequence[Relation]) -> str:
    """Returns the error text for contradictory facts: a minimal contradictory set."""
    sides: list[tuple[str, str, int, str]] = []
    for name in sorted({*bounds, *(name for relation in assumptions for name in relation.variables)}):
        bound = bounds.get(name, _DEFAULT)
        sides += [] if bound.low is None else [(name, ">=", bound.low, bound.low_source)]
        sides += [] if bound.high is None else [(name, "<=", bound.high, bound.high_source)]
    core: list[tuple[str, str, int, str] | Relation] = [*sides, *assumptions]
    # Leave out defaults first, because the user did not write them.
    for item in sorted(core, key=lambda item: isinstance(item, Relation) or item[3] != _DEFAULT_SOURCE):
        rest = [other for other in core if other is not item]
        if _is_contradictory(rest):
            core = rest
    said_so = [
        str(item) if isinstance(item, Relation) else f"{item[0]} {item[1]} {item[2]} ({item[3]})" for item in core
    ]
    return "\n  ".join(["no sizes satisfy all of", *said_so, "accepted: assumptions that some sizes satisfy together"])


def _is_contradictory(items: Sequence[tuple[str, str, int, str] | Relation]) -> bool:
    relations = [item for item in items if isinstance(item, Relation)]
    bounds: dict[str, Interval] = {name: ANY for relation in relations for name in relation.variables}
    for item in items:
        if not isinstance(item, Relation):
            name, op, size, _ = item
            low, high = bounds.get(name, ANY)
            bounds[name] = (size, high) if op == ">=" else (low, size)
    return Prover(bounds, relations).satisfiable() is False


def bounds_as_statements(bounds: Bounds | None) -> tuple[str, ...]:
    """An option `bounds` as statements: `{"n": (1, 64)}` is `n >= 1`, `n <= 64`. BoundsError for wrong ranges."""
    ranges, statements = split_bounds(bounds)
    found: list[str] = []
    for name, bound in ranges.items():
        low, high = _pair(name, bound)
        found += [] if low is None else [f"{name} >= {low}"]
        found += [] if high is None else [f"{name} <= {high}"]
    return (*found, *statements)


def _pair(name: str, bound: object) -> Interval:
    """Returns `bound` as a pair of integers or None. BoundsError for anything else."""
    pair = cast("Sequence[object]", bound) if isinstance(bound, (tuple, list)) else (bound, bound)
    if len(pair) != 2 or bound is None:
        raise BoundsError(f"the bounds of `{name}` are {short_repr(bound)}; {_ACCEPTED}")
    low, high = (_side(name, side) for side in pair)
    if low is not None and high is not None and low > high:
        raise BoundsError(f"the bounds of `{name}` are empty: ({low}, {high}); {_ACCEPTED}")
    return low, high


def _side(name: str, side: object) -> int | None:
    if side is None:
        return None
    if isinstance(side, Integral) and side is not True and side is not False:
        return int(side)
    raise BoundsError(f"the bounds of `{name}` hold {short_repr(side)}, which is no integer; {_ACCEPTED}")
