"""Guards: the conditions (`when=`) that must hold, in addition to a match of the left side, for a rule to fire.

On sizes: comparisons, `"n >= 1"`, `"k % 8 == 0"`. On values: facts, `"positive(x)"` (see `ops.facts`); words on the
origin of a value, `"is_constant(w)"`; tests of constants, `"s > 0"`. On the order of siblings:
`"inputs_in_order(w, v)"`. A rule is tested and proved under its conditions on sizes and facts. Tests of constants are
hypotheses of the test only; the other guards only restrict where a rule fires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relax_eg.errors import OptionError, RuleError, SpecError
from relax_eg.ops.facts import fact_named
from relax_eg.shapes import Dim, Relation
from relax_eg.shapes.relation import MIRRORED, OPERATORS


@dataclass(frozen=True, slots=True)
class InOrder:
    """A guard on the pattern variables `names`: their values are different inputs of the program, in program order.

    Rules that merge siblings need it. Without it they would match every permutation, and also their own results.
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"inputs_in_order({', '.join(self.names)})"


@dataclass(frozen=True, slots=True)
class Claim:
    """A guard on a value: the pattern variable `name` has the fact `fact` (a key of `ops.facts.FACTS`)."""

    fact: str
    name: str

    def __str__(self) -> str:
        return f"{self.fact}({self.name})"


# Words on the origin of a value, with their meanings.
WORDS = {
    "is_constant": "it is made of constants of the program alone",
    "is_weight": "it is made of declared weights and constants alone, so that it is known before the calls",
    "used_once": "one operator of the program as written reads it, once, and it is no result",
}


@dataclass(frozen=True, slots=True)
class OriginGuard:
    """A guard on the origin of the value of the pattern variable `name`; `word` is one of `WORDS`."""

    word: str
    name: str

    def __str__(self) -> str:
        return f"{self.word}({self.name})"


@dataclass(frozen=True, slots=True)
class ValueTest:
    """A guard on a value: the pattern variable `name` is a constant, and each of its elements `x` satisfies
    `x op number`."""

    name: str
    op: str
    number: float

    def __str__(self) -> str:
        return f"{self.name} {self.op} {self.number:g}"

    def holds(self, value: Any) -> bool:
        """Whether every element of `value` passes the test."""
        with np.errstate(over="ignore"):  # a number beyond the dtype's range becomes infinity
            return bool(np.all(OPERATORS[self.op](value, self.number)))


Guard = Relation | InOrder | Claim | OriginGuard | ValueTest
ValueGuard = Claim | OriginGuard | ValueTest
FactKey = str | ValueTest

_CALL = re.compile(r"\s*([\w -]*\w)\s*\((.*)\)\s*")
_COMPARED = re.compile(r"(.*?)(==|!=|<=|>=|<|>)(.*)")
_NAME = re.compile(r"\s*([^\W\d]\w*)\s*")
_ACCEPTED = (
    f"a comparison of sizes, a fact such as positive(x), a word ({', '.join(f'{w}(x)' for w in WORDS)}), a test of a "
    "constant such as s > 0, or inputs_in_order(...)"
)


def parse_guards(texts: Iterable[str], variables: Collection[str], error: Callable[[str], RuleError]) -> list[Guard]:
    """The guards in texts of `when=` over these pattern variables. `error` makes the RuleError for a wrong text."""
    return [_guard(text, variables, lambda what, t=text: error(f"condition {t!r}: {what}")) for text in texts]


def _guard(text: str, variables: Collection[str], error: Callable[[str], RuleError]) -> Guard:
    compared = _COMPARED.fullmatch(text)
    if compared is None:
        return _word(text, error)
    left_text, op, right_text = compared.groups()
    for name, number, way in ((left_text, right_text, op), (right_text, left_text, MIRRORED.get(op, op))):
        found = _NAME.fullmatch(name)
        if found is not None and found[1] in variables:
            try:
                return ValueTest(found[1], way, float(number))
            except ValueError:
                raise error(f"`{found[1]}` is a pattern variable; it can be compared with a number") from None
    if not left_text.strip() or not right_text.strip():
        raise error(f"nothing is compared on one side of {op}")
    try:
        left, right = Dim.of(left_text.strip()), Dim.of(right_text.strip())
    except SpecError as e:
        raise error(str(e)) from None
    if op in (">", ">="):
        left, right, op = right, left, MIRRORED[op]
    return Relation.of(left, op, right)


def _word(text: str, error: Callable[[str], RuleError]) -> Guard:
    found = _CALL.fullmatch(text)
    if found is None:
        raise error(f"accepted: {_ACCEPTED}")
    word, inside = found.groups()
    names = tuple(n.strip() for n in inside.split(","))
    if word == "inputs_in_order":
        return InOrder(names)
    if len(names) != 1 or not names[0].isidentifier():
        raise error(f"{word}(...) takes one pattern variable")
    if word in WORDS:
        return OriginGuard(word, names[0])
    try:
        return Claim(fact_named(word), names[0])
    except OptionError as e:
        raise error(f"{e}, {', '.join(WORDS)}") from None


def names_of(guard: Guard) -> Collection[str]:
    """The size variables of a guard on sizes, the pattern variables of any other."""
    if isinstance(guard, Relation):
        return guard.variables
    return guard.names if isinstance(guard, InOrder) else (guard.name,)


def key_of(guard: ValueGuard) -> FactKey:
    """The requirement of a guard on a value, without the name of the value: a fact, a test, or a word on its origin."""
    if isinstance(guard, Claim):
        return guard.fact
    return replace(guard, name="") if isinstance(guard, ValueTest) else guard.word


def claims_of(guards: Iterable[Guard]) -> dict[str, frozenset[str]]:
    """The facts that guards require of each pattern variable."""
    found: dict[str, frozenset[str]] = {}
    for g in guards:
        if isinstance(g, Claim):
            found[g.name] = found.get(g.name, frozenset()) | {g.fact}
    return found
