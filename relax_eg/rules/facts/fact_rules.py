"""Rules about facts: if a value has a given form and its operands have given facts, then it has a fact.

    reals.gives(p.exp(x), POSITIVE)
    floats.gives(p.divide(x, y), NONNEGATIVE, has(x, NONNEGATIVE), has(y, POSITIVE))
    anything.keeps((SYMMETRIC, ORTHOGONAL), p.permute_dims(x, where=swaps))

A form is a pattern (`matching`): an operator applied to patterns and variables. `where` tests its attributes. The
premises are conditions like those of rewrite rules (`conditions`). Facts about matrices are derived for square matrices
only. `book/facts.py` holds the rules that ship, `propagation` derives facts of expressions by them, and
`egraph.facts` compiles them to rules of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from relax_eg.ir.expr import TUPLE_GET, VAR, Expr, node, postorder
from relax_eg.ir.expr import var as variable
from relax_eg.ops.facts import Fact
from relax_eg.ops.record import TABLE
from relax_eg.rules.conditions import Claim, ValueTest
from relax_eg.rules.matching import ANY, TESTS, Test

Premise = Claim | ValueTest

# Words for properties of a value that follow from its annotation; premises use them like facts.
NONEMPTY = "is_nonempty"  # every axis has a place
ANNOTATION_WORDS = ("is_float", "is_bool", "is_integer", "is_square", NONEMPTY)


@dataclass(frozen=True)
class FactRule:
    """A rule about facts: a value that `pattern` matches has the fact if the premises hold.

    - `pattern`: the form of the value.
    - `fact`: a key of `ops.facts.FACTS` or `HELPERS`.
    - `premises`: the conditions on the variables of the pattern.
    - `exact`: whether the rule holds for values as computed, including NaN, infinities and rounding. Otherwise it holds
      over the reals, and is used where rules that hold over the reals are allowed.
    - `floats`: whether it holds for float values only.
    """

    pattern: Expr
    fact: str
    premises: tuple[Premise, ...]
    exact: bool
    floats: bool

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(str(e.attr("name")) for e in postorder((self.pattern,)) if e.op == VAR)

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """The nodes of the pattern, operands first."""
        return tuple(e for e in postorder((self.pattern,)) if e.op != VAR)

    def __str__(self) -> str:
        given = f" if {', '.join(map(str, self.premises))}" if self.premises else ""
        return f"{'' if self.exact else '~ '}{_text(self.pattern)}: {self.fact}{given}"


def _text(p: Expr) -> str:
    if p.op == VAR:
        return str(p.attr("name"))
    tests = ", ".join(t.__name__ for t in tests_of(p))
    return f"{p.op}{f'[{tests}]' if tests else ''}({', '.join(map(_text, p.args))})"


def tests_of(p: Expr) -> tuple[Test, ...]:
    """The tests of attributes of a pattern's node."""
    return p.attr(TESTS) if p.attrs else ()


def var(name: str) -> Expr:
    """A variable of a form. A variable whose name ends with `...` stands for all remaining operands."""
    return variable(name, ANY)


class FactForms:
    """The operators, as functions of patterns: `p.add(x, y)`, `p.permute_dims(x, where=swaps)`."""

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        if op not in TABLE and op != TUPLE_GET:
            raise AttributeError(f"no operator {op!r}")

        def made(*args: Expr, where: Test | tuple[Test, ...] = ()) -> Expr:
            return form(op, args, where if isinstance(where, tuple) else (where,))

        return made

    def each(self, ops: str, *args: Expr) -> tuple[Expr, ...]:
        """One form for each of several operators: `p.each("exp sigmoid", x)`."""
        return tuple(getattr(self, op)(*args) for op in ops.split())


def form(op: str, args: Iterable[Expr], where: Iterable[Test] = ()) -> Expr:
    """The pattern of an operator on patterns and variables."""
    tests = tuple(where)
    return node(op, args, ((TESTS, tests),) if tests else (), ANY)


# --- premises ---


def has(x: Expr, *facts: Fact) -> tuple[Premise, ...]:
    """The premises that a variable has facts."""
    return tuple(Claim(f.key, str(x.attr("name"))) for f in facts)


def equals(x: Expr, number: float) -> tuple[Premise, ...]:
    """The premise that a variable is a constant, each of whose elements is `number`."""
    return (ValueTest(str(x.attr("name")), "==", float(number)),)


def annotated(x: Expr, word: str) -> tuple[Premise, ...]:
    """The premise that `word`, one of `ANNOTATION_WORDS`, follows from the annotation of a variable."""
    if word not in ANNOTATION_WORDS:
        raise ValueError(f"no word {word!r} of annotations")
    return (Claim(word, str(x.attr("name"))),)


# --- rules ---


@dataclass(frozen=True)
class Domain:
    """The values for which rules hold: `exact` and `floats` as in `FactRule`."""

    exact: bool
    floats: bool

    def gives(
        self, forms: Expr | Iterable[Expr], facts: Fact | Iterable[Fact], *premises: tuple[Premise, ...]
    ) -> Iterator[FactRule]:
        """The rules that values of the forms have the facts if the premises hold."""
        flat = tuple(p for group in premises for p in group)
        for pattern in (forms,) if isinstance(forms, Expr) else forms:
            for f in (facts,) if isinstance(facts, Fact) else facts:
                yield FactRule(pattern, f.key, flat, self.exact, self.floats)

    def keeps(self, forms: Expr | Iterable[Expr], facts: Fact | Iterable[Fact], *of: Expr) -> Iterator[FactRule]:
        """The rules that values of the forms have each fact that all the variables `of` have; by default these are all
        variables of the form."""
        for pattern in (forms,) if isinstance(forms, Expr) else forms:
            names = of or [e for e in postorder((pattern,)) if e.op == VAR]
            for f in (facts,) if isinstance(facts, Fact) else facts:
                yield from self.gives(pattern, f, *(has(x, f) for x in names))


# Values of every dtype; float values as computed; float values over the reals.
anything, floats, reals = Domain(True, False), Domain(True, True), Domain(False, True)
