"""Propagation of facts through a program: the facts of expressions, derived by the rules of `book/facts.py`.

The e-graph compiles the same rules to rules of its engine (`egraph.facts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from relax_eg.dtypes import is_complex, is_float, names_where
from relax_eg.ir.annotations import Annotation, Tensor
from relax_eg.ir.expr import CONSTANT, VAR, Expr, constant_value
from relax_eg.limits import FEW_KEPT
from relax_eg.ops.facts import ALL_IMPLIED, FACTS, HELPERS, Fact, facts_of_dtype, has_fact, impossible, with_implied
from relax_eg.ops.record import movement_operators
from relax_eg.rules.book.facts import derivations
from relax_eg.rules.conditions import FactKey, ValueTest, key_of
from relax_eg.rules.facts.fact_rules import ANNOTATION_WORDS, FactRule
from relax_eg.rules.matching import Expressions
from relax_eg.shapes import Dim
from relax_eg.traversal import reached

Facts = Mapping[str, frozenset[FactKey]]  # by the name of a parameter

ONE = Dim.of(1)
ANNOTATION_FACTS = ("integral", "finite", "nonnegative", "constant")  # facts that annotations imply
_EXPRESSIONS = Expressions()


def meaning(fact: str) -> Fact:
    """The definition of a fact, including those of `HELPERS`."""
    return FACTS[fact] if fact in FACTS else HELPERS[fact]


def annotation_facts(a: Annotation, is_positive: Callable[[Dim], bool]) -> frozenset[str]:
    """The facts that a value's annotation implies: facts of its dtype, some of `ANNOTATION_WORDS`, its rank as
    `rank_2`, and `constant` for a scalar. `is_positive` returns whether a size is at least 1."""
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None or is_complex(a.dtype):
        return frozenset()
    if a.dtype not in _PLAIN:
        return frozenset()
    found = set(facts_of_dtype(a.dtype))
    found.add(f"rank_{len(a.shape)}")
    found.add("is_float" if is_float(a.dtype) else "is_bool" if a.dtype == "bool" else "is_integer")
    if not a.shape:
        found.add("constant")
    # A matrix of literal size 1 broadcasts against others, so facts about matrices are not derived for it.
    if len(a.shape) >= 2 and a.shape[-1] is a.shape[-2] and a.shape[-1] is not ONE:
        found.add("is_square")
    if all(map(is_positive, a.shape)):
        found.add("is_nonempty")
    return frozenset(found)


_PLAIN = names_where(lambda d: d.kind in "biuf" and not d.is_narrow)


@lru_cache(FEW_KEPT)
def required_facts(asked: frozenset[FactKey]) -> frozenset[FactKey]:
    """`asked`, and every fact from which one of them may be derived. `ANNOTATION_WORDS` are left out."""

    def premises(fact: FactKey) -> Iterator[FactKey]:
        yield from (key_of(p) for d in derivations() if d.fact == fact for p in d.premises)
        yield from (p for sources, c in ALL_IMPLIED if c == fact for p in sources)

    return frozenset(reached(asked, premises)).difference(ANNOTATION_WORDS)


@lru_cache(1 << 14)  # facts times operators, twice
def _derivations_for(fact: FactKey, op: str, exact: bool) -> tuple[FactRule, ...]:
    """The derivations that may give `fact`, directly or by implication, for a value of operator `op`."""
    found = reached((fact,), lambda f: [p for sources, implied in ALL_IMPLIED if implied == f for p in sources])
    return tuple(d for d in _of_operator(op) if d.fact in found and (d.exact or not exact))


@lru_cache(1 << 10)  # more than there are operators
def _of_operator(op: str) -> tuple[FactRule, ...]:
    return tuple(d for d in derivations() if d.pattern.op == op)


# --- the facts of expressions ---

# Operators that only move elements. A test that every element of a constant passes still holds after them.
MOVES = movement_operators("view", "order", "part", "repeat")


@dataclass
class KnownFacts:
    """The facts of a program's expressions, computed on demand.

    - `leaf_has`: returns whether a variable or constant has a fact, or passes a test of constants.
    - `exact`: whether only facts of values as computed count; otherwise facts over the reals count too.
    - `is_positive`: returns whether a size is at least 1.
    """

    leaf_has: Callable[[Expr, FactKey], bool]
    exact: bool
    is_positive: Callable[[Dim], bool]
    _annotation_facts: dict[Annotation, frozenset[str]] = field(default_factory=dict[Annotation, frozenset[str]])
    _found: dict[tuple[Expr, FactKey], bool] = field(default_factory=dict[tuple[Expr, FactKey], bool])

    def among(self, facts: Iterable[str], e: Expr) -> frozenset[str]:
        """Those of `facts` that `e` is known to have."""
        return frozenset(f for f in facts if self.has(e, f))

    def has(self, e: Expr, fact: FactKey) -> bool:
        """Whether `e` is known to have `fact`, or to pass it if it is a test of constants."""
        goals: list[tuple[Expr, FactKey]] = [(e, fact)]
        while goals:
            goal = goals[-1]
            # If a fact of an operand is undecided, it becomes the next goal; then this goal is attempted again.
            answer = self._found.get(goal)
            if answer is None:
                answer = self._attempt(*goal)
            if isinstance(answer, bool):
                self._found[goal] = answer
                goals.pop()
            else:
                goals.append(answer)
        return self._found[e, fact]

    def _attempt(self, e: Expr, fact: FactKey) -> bool | tuple[Expr, FactKey]:
        """Whether `e` has the fact, or the goal (expression, fact) that must be decided first."""
        words = self._facts_of_annotation(e)
        if fact in words or (not e.args and self.leaf_has(e, fact)):
            return True
        if isinstance(fact, ValueTest):
            if e.op not in MOVES:
                return False
            answer = self._found.get((e.args[0], fact))
            return (e.args[0], fact) if answer is None else answer
        found = _closed(frozenset[FactKey](words))
        for d in _derivations_for(fact, e.op, self.exact) if fact not in found else ():
            if d.fact in found or (d.floats and "is_float" not in words):
                continue
            if meaning(d.fact).axes == 2 and "is_square" not in words:
                continue
            match = _EXPRESSIONS.match(d.pattern, e)
            if match.problems:
                continue
            for premise, x in ((key_of(p), x) for p in d.premises for x in match.values(p.name)):
                if premise in ANNOTATION_WORDS:
                    is_held = premise in self._facts_of_annotation(x)
                elif (x, premise) in self._found:
                    is_held = self._found[x, premise]
                else:
                    return x, premise
                if not is_held:
                    break
            else:
                found = _closed(found | {d.fact})
                if fact in found:
                    break
        return fact in found

    def _facts_of_annotation(self, e: Expr) -> frozenset[str]:
        words = self._annotation_facts.get(e.annotation)
        if words is None:
            words = self._annotation_facts[e.annotation] = annotation_facts(e.annotation, self.is_positive)
        return words


@lru_cache(1 << 12)  # more than there are sets of facts in a program
def _closed(facts: frozenset[FactKey]) -> frozenset[FactKey]:
    return with_implied(facts, ALL_IMPLIED)


# limit: elements of a constant that is inspected for facts about matrices.
_LARGEST_MATRIX = 1 << 18


def constant_has(e: Expr, fact: FactKey) -> bool:
    """Whether `e` is a constant whose value has a fact, or passes a test of constants."""
    a = e.annotation
    if e.op != CONSTANT or not isinstance(a, Tensor) or a.dtype not in _PLAIN:
        return False
    value = constant_value(e)
    if isinstance(fact, ValueTest):
        return fact.holds(value)
    if fact not in FACTS or impossible(fact, a) or (FACTS[fact].axes == 2 and value.size > _LARGEST_MATRIX):
        return False
    return has_fact(fact, value)


class Leaves:
    """The facts of a function's leaves: those of variables are given by name, constants are inspected."""

    def __init__(self, facts: Facts) -> None:
        self._facts = {name: _closed(frozenset[FactKey](f)) for name, f in facts.items()}

    def have_fact(self, e: Expr, fact: FactKey) -> bool:
        """Whether leaf `e` has `fact`, or passes it if it is a test of constants."""
        # Facts about matrices do not apply to a matrix of literal size 1, which broadcasts (`annotation_facts`).
        words = annotation_facts(e.annotation, is_positive_number)
        if isinstance(fact, str) and fact in FACTS and FACTS[fact].axes == 2 and "is_square" not in words:
            return False
        return fact in self._facts.get(str(e.attr("name")), ()) if e.op == VAR else constant_has(e, fact)


def is_positive_number(d: Dim) -> bool:
    return d.is_const and d.value >= 1
