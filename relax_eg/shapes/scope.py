"""`Scope`: what is known of the variables of a function, a branch, or what follows a `match_cast`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import cast

from relax_eg.accepted import shown
from relax_eg.errors import BoundsError, SpecError
from relax_eg.shapes.binder import Binder, said
from relax_eg.shapes.constraints import jax_constraint
from relax_eg.shapes.dim import Dim
from relax_eg.shapes.interval import ANY, Interval
from relax_eg.shapes.piecewise import normal
from relax_eg.shapes.prover import TIMEOUT_MS, Prover
from relax_eg.shapes.relation import Relation, as_statements, read_statement
from relax_eg.shapes.verdict import Proved, Statistics

_DEFAULT_SAID = "every size is at least 1 unless declared otherwise"
_ACCEPTED = "accepted: (low, high) with low <= high, either may be None, or one integer for a fixed size"


@dataclass(frozen=True, slots=True)
class _Bound:
    """What one variable may be, and who said so."""

    low: int | None
    high: int | None
    low_said: str
    high_said: str


_DEFAULT = _Bound(1, None, _DEFAULT_SAID, "")


class Scope:
    """What is known of variables: bounds, and assumptions in text. A variable is at least 1 unless declared otherwise.

    `bounds` maps a name to `(low, high)`, where None leaves that side as it is by default, or to one integer, which
    fixes the size. Each of `assume` is a statement such as `"n % 8 == 0"`, `"n == 2*m"`, `"0 <= y < 32"`.

    `statistics` is where its questions are counted; by default it counts its own and its children's.

    Scopes nest by `child()`: a child knows what its parent knew when it was made, and what it learns stays in it.
    """

    def __init__(
        self,
        bounds: Mapping[str, tuple[int | None, int | None] | int] | None = None,
        *,
        assume: Iterable[str] = (),
        statistics: Statistics | None = None,
    ) -> None:
        self._bounds: dict[str, _Bound] = {}
        self._assumptions: list[Relation] = []
        self._prover: Prover | None = None
        self._statistics = statistics if statistics is not None else Statistics()
        for name, bound in (bounds or {}).items():
            self.bound(name, bound)
        self.assume(*as_statements(assume))

    def child(self) -> Scope:
        """A scope that starts with what this one knows; neither hears what the other learns later."""
        inner = Scope(statistics=self._statistics)
        inner._bounds = dict(self._bounds)
        inner._assumptions = list(self._assumptions)
        # A prover does not change with the questions put to it, so both may ask the same one until either learns more.
        inner._prover = self._prover
        return inner

    def bound(
        self, name: str, bound: tuple[int | None, int | None] | int, said_by: str = "optimize(bounds=...)"
    ) -> None:
        """Adds a bound as `bounds` of a scope gives it; `said_by` is named in errors."""
        low, high = _pair(name, bound)
        self.declare(name, low, high, said_by)

    def declare(
        self, name: str, low: int | None = None, high: int | None = None, said_by: str = "optimize(bounds=...)"
    ) -> None:
        """Adds that `low <= name <= high`; what was declared before still holds. `said_by` is named in errors.

        The first lower bound that is given replaces the default of 1.
        """
        Dim.var(name)
        low, high = _pair(name, (low, high))
        before = self._bounds.get(name, _DEFAULT)
        low_said, high_said = before.low_said, before.high_said
        if low is None or (low_said != _DEFAULT_SAID and before.low is not None and before.low >= low):
            low = before.low
        else:
            low_said = f"declared in {said_by}"
        if high is None or (before.high is not None and before.high <= high):
            high = before.high
        else:
            high_said = f"declared in {said_by}"
        if low is not None and high is not None and low > high:
            raise BoundsError(
                f"no size satisfies the bounds of `{name}`: at least {low} ({low_said}) "
                f"and at most {high} ({high_said}); {_ACCEPTED}"
            )
        self._change({**self._bounds, name: _Bound(low, high, low_said, high_said)}, self._assumptions)

    def assume(self, *statements: str) -> None:
        """Adds that each of `statements` holds and has a value: `"n % 8 == 0"`, `"b*s <= 4096"`, `"0 <= y < 32"`.

        A statement that compares one variable with an integer declares a bound, so `n >= 0` allows an `n` of which
        nothing was declared to be 0. BoundsError where no sizes satisfy all that is known, naming the least set of
        statements that contradict each other; the scope then stays as it was.
        """
        bounds, assumptions = self._bounds, self._assumptions
        try:
            for statement in statements:
                for relation in read_statement(statement):
                    bound = _as_bound(relation)
                    if bound is None:
                        self._change(self._bounds, [*self._assumptions, relation])
                    else:
                        name, low, high = bound
                        self.declare(name, low, high, f"the assumption `{relation}`")
        except BoundsError:
            self._bounds, self._assumptions, self._prover = bounds, assumptions, None
            raise

    def _change(self, bounds: dict[str, _Bound], assumptions: list[Relation]) -> None:
        fresh = None
        if assumptions:
            known = {name: (bound.low, bound.high) for name, bound in bounds.items()}
            fresh = Prover(known, assumptions, self._statistics)
            if fresh.satisfiable() is False:
                raise BoundsError(_contradiction(bounds, assumptions))
        self._bounds, self._assumptions, self._prover = bounds, assumptions, fresh

    @property
    def statistics(self) -> Statistics:
        """The count of the questions put to this scope, its parents and its children."""
        return self._statistics

    @property
    def prover(self) -> Prover:
        """What decides relations by what is known now."""
        if self._prover is None:
            self._prover = Prover(
                {name: (bound.low, bound.high) for name, bound in self._bounds.items()},
                self._assumptions,
                self._statistics,
            )
        return self._prover

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions in the words they were given in; bounds are not among them."""
        return tuple(map(str, self._assumptions))

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The assumptions as comparisons."""
        return tuple(self._assumptions)

    @property
    def statements(self) -> tuple[str, ...]:
        """All that was declared and assumed, as statements that `assume` takes."""
        found: list[str] = []
        for name, bound in self._bounds.items():
            found += [] if bound.low in (None, 1) else [f"{name} >= {bound.low}"]
            found += [] if bound.high is None else [f"{name} <= {bound.high}"]
        return (*found, *self.assumptions)

    @property
    def names(self) -> frozenset[str]:
        """The variables of which something was declared or assumed."""
        return frozenset(self._bounds).union(*(relation.variables for relation in self._assumptions))

    def bounds(self, name: str) -> Interval:
        """The lower and upper bound of the variable `name` as declared; None where there is none."""
        bound = self._bounds.get(name, _DEFAULT)
        return bound.low, bound.high

    def interval(self, d: Dim | int) -> Interval:
        """Bounds of the value of `d` wherever it is defined; None where none is known. Sound, not always tight."""
        facts = self.prover.facts
        try:
            return facts.interval(facts.reduce(Dim.of(d)))
        except SpecError:  # a divisor is fixed at zero: there is no value to enclose
            return ANY

    def solved(self) -> dict[str, Dim]:
        """The variables that bounds and equalities give, each as a number or in the others: `n == 2*m` gives n as 2*m.
        None of those given is in what they are given as."""
        found = {n: Dim.of(b.low) for n, b in self._bounds.items() if b.low is not None and b.low == b.high}
        for relation in self._assumptions:
            left, right = relation.left.substitute(found), relation.right.substitute(found)
            # The side that JAX replaces goes first, so that what it traced stays as it is.
            for d, value in ((left, right), (right, left)) if relation.op == "==" and not relation.divisors else ():
                if str(d) in d.variables and str(d) not in value.variables:
                    found = {n: known.substitute({str(d): value}) for n, known in found.items()}
                    found[str(d)] = value
                    break
        return found

    def equal(self, a: Dim | int, b: Dim | int, *, deep: bool = False) -> bool | None:
        """True or False where equality or difference, for all sizes allowed, is plain to see; else None. Sizes are
        compared where both have a value. `deep` searches, by z3 in the end; without it nothing is searched."""
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
        """BoundsError for the first size in `env` outside its bounds, and the first assumption that does not hold;
        `where` names the function that was called."""
        for name, size in env.items():
            bound = self._bounds.get(name, _DEFAULT)
            if bound.low is not None and bound.low == bound.high and size != bound.low:
                raise BoundsError(
                    f"{said(where)}: {name} = {size}, and its bounds fix it to {bound.low} ({bound.low_said}); "
                    f"a pair such as (1, {max(bound.low, size)}) accepts all sizes between"
                )
            if bound.high is not None and size > bound.high:
                raise BoundsError(
                    f"{said(where)}: {name} = {size} exceeds its bound {bound.high} ({bound.high_said}); "
                    f"raise the bound or split the input"
                )
            if bound.low is not None and size < bound.low:
                raise BoundsError(
                    f"{said(where)}: {name} = {size} is below its bound {bound.low} ({bound.low_said}); "
                    f"lower the bound or pass a larger input"
                )
        for relation in self._assumptions:
            if relation.variables <= env.keys() and not relation.holds(env):
                at = ", ".join(f"{name} = {env[name]}" for name in sorted(relation.variables))
                raise BoundsError(f"{said(where)}: the assumption `{relation}` does not hold at {at}")

    def unproved(self, env: Mapping[str, Dim], known: Scope) -> str | None:
        """The first statement of this scope that is not proved where its variables are the sizes `env` of which `known`
        says more; None where all are."""
        for text in self.statements:
            for relation in read_statement(text):
                moved = Relation.of(relation.left.substitute(env), relation.op, relation.right.substitute(env))
                by = (*moved.divisors, *(d.substitute(env) for d in relation.divisors))
                if not isinstance(known.prover.prove(replace(moved, divisors=by), TIMEOUT_MS), Proved):
                    return text
        return None

    def example(self, names: Sequence[str], size: int, fixed: Mapping[str, int] | None = None) -> dict[str, int]:
        """Values of the variables `names` that are allowed together, about as large as `size` where that goes, with
        those in `fixed` as given. BoundsError where there are none, or none were found.
        """
        inner = self.child()
        for name, value in (fixed or {}).items():
            inner.declare(name, value, value, said_by="at=...")
        found = inner.prover.example(names, size)
        if found is None:
            known = "; ".join(self.assumptions)
            raise BoundsError(
                f"found no sizes {', '.join(names)} that satisfy {known}; accepted: at=... with all of them"
            )
        return found

    def points(self, names: Iterable[str], most: int) -> list[dict[str, int]]:
        """Up to `most` values of the variables `names` that are allowed together, the same in every run."""
        return self.prover.points(names, most)

    @staticmethod
    def from_constraints(constraints: Iterable[str]) -> Scope:
        """The scope of constraints in the spelling of `jax.export.SymbolicScope`: `"mod(s, 8) == 0"`,
        `"b*s <= 4096"`."""
        scope = Scope()
        statements: dict[object, str] = {}
        for text in as_statements(constraints):
            statement = text.replace("^", "**")
            # To `mod(s, 8) == 0` JAX adds `8*floordiv(s, 8) == s` in front, which says the same in other words.
            statements[tuple(map(_meaning, read_statement(statement)))] = statement
        scope.assume(*statements.values())
        for name in scope._bounds:  # JAX takes every variable to be at least 1, whatever else is said
            low, _ = scope.bounds(name)
            scope.declare(name, 1 if low is None else max(low, 1), said_by="jax.export")
        return scope

    def to_constraints(self) -> list[str]:
        """What is known, as `jax.export.SymbolicScope` takes it. `!=` has no spelling there and is left out, so JAX
        knows less. BoundsError where a variable may be less than 1, which JAX rules out."""
        out: list[str] = []
        for name, bound in self._bounds.items():
            if bound.low is None or bound.low < 1:
                raise BoundsError(
                    f"`{name}` may be {bound.low} ({bound.low_said}), and a symbolic dimension of JAX is at least 1; "
                    f"accepted: a lower bound of 1 or more"
                )
            out += [f"{name} >= {bound.low}"] * (bound.low > 1)  # JAX refuses to hear `>= 1` again
            out += [] if bound.high is None else [f"{name} <= {bound.high}"]
        return out + [text for relation in self._assumptions if (text := jax_constraint(relation)) is not None]

    def bind(
        self,
        patterns: Sequence[Sequence[Dim | None]],
        sizes: Sequence[Sequence[int]],
        names: Sequence[str],
        where: str,
    ) -> dict[str, int]:
        """The variables' values at which the arguments `names` have these `sizes`, checked against the bounds.

        ShapeError and BoundsError say what does not fit. To bind many times, keep a `Binder`.
        """
        env = Binder(patterns, names, where).bind(sizes)
        self.check(env, where)
        return env

    def __repr__(self) -> str:
        assumed = f", assume={list(self.assumptions)}" if self._assumptions else ""
        return f"Scope({ {name: self.bounds(name) for name in self._bounds} }{assumed})"


def _meaning(relation: Relation) -> tuple[str, frozenset[Dim]]:
    """Equal for two relations that compare the same difference with zero."""
    op, difference = normal(relation.op, relation.left - relation.right)
    return op, frozenset((difference,) if op == ">=" else (difference, -difference))


def _as_bound(relation: Relation) -> tuple[str, int | None, int | None] | None:
    """The bound that the relation is, if it compares a variable with an integer."""
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
    """The error text for assumptions that no sizes satisfy: those of which none can be left out."""
    sides: list[tuple[str, str, int, str]] = []
    for name in sorted({*bounds, *(name for relation in assumptions for name in relation.variables)}):
        bound = bounds.get(name, _DEFAULT)
        sides += [] if bound.low is None else [(name, ">=", bound.low, bound.low_said)]
        sides += [] if bound.high is None else [(name, "<=", bound.high, bound.high_said)]
    core: list[tuple[str, str, int, str] | Relation] = [*sides, *assumptions]
    # What the user did not say is left out first.
    for item in sorted(core, key=lambda item: isinstance(item, Relation) or item[3] != _DEFAULT_SAID):
        rest = [other for other in core if other is not item]
        if _clash(rest):
            core = rest
    said_so = [
        str(item) if isinstance(item, Relation) else f"{item[0]} {item[1]} {item[2]} ({item[3]})" for item in core
    ]
    return "\n  ".join(["no sizes satisfy all of", *said_so, "accepted: assumptions that some sizes satisfy together"])


def _clash(items: Sequence[tuple[str, str, int, str] | Relation]) -> bool:
    relations = [item for item in items if isinstance(item, Relation)]
    bounds: dict[str, Interval] = {name: ANY for relation in relations for name in relation.variables}
    for item in items:
        if not isinstance(item, Relation):
            name, op, size, _ = item
            low, high = bounds.get(name, ANY)
            bounds[name] = (size, high) if op == ">=" else (low, size)
    return Prover(bounds, relations).satisfiable() is False


def _pair(name: str, bound: object) -> Interval:
    """`bound` as a pair of integers or None; BoundsError for anything else."""
    pair = cast("Sequence[object]", bound) if isinstance(bound, (tuple, list)) else (bound, bound)
    if len(pair) != 2 or bound is None:
        raise BoundsError(f"the bounds of `{name}` are {shown(bound)}; {_ACCEPTED}")
    low, high = (_side(name, side) for side in pair)
    if low is not None and high is not None and low > high:
        raise BoundsError(f"the bounds of `{name}` are empty: ({low}, {high}); {_ACCEPTED}")
    return low, high


def _side(name: str, side: object) -> int | None:
    if side is None:
        return None
    if isinstance(side, Integral) and side is not True and side is not False:
        return int(side)
    raise BoundsError(f"the bounds of `{name}` hold {shown(side)}, which is no integer; {_ACCEPTED}")
