"""Propagation of facts through a program: the language of the table in `book/facts.py`, and its meaning on expressions.

A line of the table is a *derivation*: a small pattern of operators, the fact that its value has, and the premises on
its variables.

    multiply(x, y): nonnegative if nonnegative(x), nonnegative(y)
    ~ exp(x): positive
    permute_dims[swaps](x): keeps symmetric orthogonal
    tuple_get_item[0](qr(x)): orthogonal

A line holds for values as they are computed, including NaN, infinities and rounding. A line marked `~` holds only over
the reals, and is used where rules that hold over the reals are allowed. `keeps f g of x, y` stands for one line per
fact: the value has the fact if the named variables have it, or all variables if none are named. A word in brackets
restricts attributes (`WORDS`), `xs...` is any number of operands, and `x == 0` requires a constant of that value. Facts
about matrices are derived for square matrices only.

The e-graph compiles the same derivations to rules of its engine (`egraph.facts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from relax_eg.ir.annotations import FLOATS, Annotation, Tensor, is_complex, is_float
from relax_eg.ir.expr import CONSTANT, TUPLE_GET, Expr, constant_value
from relax_eg.limits import FEW_KEPT
from relax_eg.ops.facts import FACTS, IMPLIED, Fact, facts_of_dtype, holds, impossible
from relax_eg.ops.record import TABLE
from relax_eg.rules.conditions import ValueTest
from relax_eg.shapes import Dim

ONE = Dim.of(1)


@dataclass(frozen=True)
class Pattern:
    """An operator applied to patterns and variables.

    - `words`: restrictions on attributes, keys of `WORDS`.
    - `rest`: name of a variable that stands for any number of further operands; empty if there is none.
    """

    op: str
    words: tuple[str, ...]
    args: tuple[Pattern | str, ...]
    rest: str = ""

    @property
    def variables(self) -> tuple[str, ...]:
        found = [v for a in self.args for v in (a.variables if isinstance(a, Pattern) else (a,))]
        return tuple(dict.fromkeys([*found, *([self.rest] if self.rest else [])]))

    @property
    def nodes(self) -> tuple[Pattern, ...]:
        """The patterns inside this one, then this one."""
        return (*(n for a in self.args if isinstance(a, Pattern) for n in a.nodes), self)

    def __str__(self) -> str:
        args = [*map(str, self.args), *([f"{self.rest}..."] if self.rest else [])]
        return f"{self.op}{'[' + ', '.join(self.words) + ']' if self.words else ''}({', '.join(args)})"


@dataclass(frozen=True)
class FactRule:
    """A line of the table: if `pattern` matches and every `(fact, variable)` of `premises` holds, its value has the
    fact `gives`.

    - `exact`: whether the line holds for values as computed; otherwise it holds over the reals.
    - `floats`: whether it holds for float values only.
    """

    pattern: Pattern
    gives: str
    premises: tuple[tuple[str, str], ...]
    exact: bool
    floats: bool

    def __str__(self) -> str:
        given = f" if {', '.join(f'{f}({v})' for f, v in self.premises)}" if self.premises else ""
        return f"{'' if self.exact else '~ '}{self.pattern}: {self.gives}{given}"


# --- words in brackets: conditions on attributes; a number is the required rank of the value ---

Attributes = Mapping[str, Any]
WORDS: dict[str, Callable[[Attributes], bool | int]] = {
    "swaps": lambda a: a["axes"][-2:] == (len(a["axes"]) - 1, len(a["axes"]) - 2),
    "keeps_matrix": lambda a: a["axes"][-2:] == (len(a["axes"]) - 2, len(a["axes"]) - 1),
    "keeps_last": lambda a: a["axes"][-1:] == (len(a["axes"]) - 1,),
    "even": lambda a: a["y"] % 2 == 0,
    "natural": lambda a: a["y"] >= 0,
    "growing": lambda a: a["y"] > 0,
    "inside": lambda a: a["mode"] in ("clip", "promise"),
    "rows": lambda a: a["axis"] == 0 and len(a["shape"]) == 2,
    "columns": lambda a: a["axis"] == 1 and len(a["shape"]) == 2,
    "along_last": lambda a: a["axis"] == len(a["shape"]) - 1,
    "last": lambda a: a["axis"] + 1,
    "forward": lambda a: not a["reverse"],
    "to_float": lambda a: a["dtype"] in FLOATS,
    "to_wide": lambda a: a["dtype"] in ("bfloat16", "float32", "float64"),
    "at_or_below": lambda a: a["k"] <= 0,
    "at_or_above": lambda a: a["k"] >= 0,
    "main": lambda a: a["k"] == 0,
    "0": lambda a: a["index"] == 0,
    "1": lambda a: a["index"] == 1,
    "2": lambda a: a["index"] == 2,
}

# Facts that only premises of derivations use.
HELPERS: dict[str, Fact] = {
    f.name: f
    for f in (
        Fact("only_lower", 2, "b", "true nowhere above the diagonal", lambda a: _found(np.triu(a, 1))),
        Fact("all_below", 2, "b", "true everywhere below the diagonal", lambda a: _found(np.tril(~a, -1))),
        Fact("only_diagonal", 2, "b", "true nowhere off the diagonal",
             lambda a: _found(np.triu(a, 1) | np.tril(a, -1))),
        Fact("identity_mask", 2, "b", "true on the diagonal alone",
             lambda a: _found(a != np.eye(a.shape[-1], dtype=bool))),
    )
}  # fmt: skip
_HELPERS_IMPLIED = (
    (("identity_mask",), "only_diagonal"),
    (("only_diagonal",), "only_lower"),
)
ALL_IMPLIED = (*IMPLIED, *_HELPERS_IMPLIED)

# What an annotation implies: words that premises use, and facts of dtypes.
OF_ANNOTATIONS = ("is_float", "is_bool", "is_integer", "is_square", "is_nonempty")
OF_DTYPES = ("integral", "finite", "nonnegative", "constant")


def _found(wrong: Any) -> tuple[tuple[int, ...], str] | None:
    at = np.argwhere(wrong)
    return (tuple(at[0]), "") if len(at) else None


def meaning(fact: str) -> Fact:
    """The definition of a fact, including those of `HELPERS`."""
    return FACTS[fact] if fact in FACTS else HELPERS[fact]


def of_annotation(a: Annotation, positive: Callable[[Dim], bool]) -> frozenset[str]:
    """The facts that a value's annotation implies: facts of its dtype, words of `OF_ANNOTATIONS`, its rank as `rank_2`,
    and `constant` for a scalar. `positive` returns whether a size is at least 1."""
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
    if all(map(positive, a.shape)):
        found.add("is_nonempty")
    return frozenset(found)


_PLAIN = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
     "float64")
)  # fmt: skip


# --- reading the table ---

_TOKEN = re.compile(r"\s*([\w.]+|\S)")
_TEST = re.compile(r"(\w+)\s*(==)\s*(-?\d+)")
_SEPARATED = re.compile(r"[,\s]+")
POINTWISE = "pointwise"


class TableError(ValueError):
    """Raised for a line of the table that cannot be parsed: a bug in this package."""


def read(table: str, floats: bool, pointwise: Collection[str] = ()) -> Iterator[FactRule]:
    """The derivations in a table. `floats`: whether they hold for float values only. A pattern whose operator is
    `pointwise` stands for one pattern per operator of the argument `pointwise`. Raises TableError."""
    for line in table.strip().splitlines():
        text = line.split("#")[0].strip()
        if not text:
            continue
        exact = not text.startswith("~")
        head, colon, tail = text.removeprefix("~").partition(":")
        if not colon:
            raise TableError(f"{line!r}: `pattern: facts` is accepted")
        pattern = _pattern(head)
        gives, _, given = tail.partition(" if ")
        premises = tuple(_premise(p) for p in _premises(given))
        for fact, more in _conclusions(gives.strip(), pattern):
            for p in _spread(pattern, pointwise):
                yield FactRule(p, fact, (*premises, *more), exact, floats)


def _conclusions(text: str, pattern: Pattern) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """The facts of a line, each with the premises that `keeps` adds."""
    words, _, of = text.partition(" of ")
    names = [w for w in _SEPARATED.split(words) if w]
    keeps = names[0] == "keeps"
    variables = [v for v in _SEPARATED.split(of) if v] or list(pattern.variables)
    for name in names[keeps:]:
        if name not in FACTS and name not in HELPERS:
            raise TableError(f"{text!r}: no fact {name!r}")
        yield name, tuple((name, v) for v in variables) if keeps else ()


def _premises(text: str) -> list[str]:
    return [p.strip() for p in text.split(",") if p.strip()]


def _premise(text: str) -> tuple[str, str]:
    test = _TEST.fullmatch(text)
    if test is not None:
        return f"{test[2]} {float(test[3])!r}", test[1]
    fact, _, rest = text.partition("(")
    if fact not in FACTS and fact not in HELPERS and fact not in OF_ANNOTATIONS:
        raise TableError(f"{text!r}: no fact {fact!r}")
    return fact, rest.rstrip(")").strip()


def _pattern(text: str) -> Pattern:
    tokens = _TOKEN.findall(text)
    found, at = _parsed(tokens, 0)
    if at != len(tokens) or not isinstance(found, Pattern):
        raise TableError(f"{text!r} is no pattern")
    return found


def _parsed(tokens: list[str], at: int) -> tuple[Pattern | str, int]:
    name, at = tokens[at], at + 1
    words: list[str] = []
    if at < len(tokens) and tokens[at] == "[":
        end = tokens.index("]", at)
        words = [t for t in tokens[at + 1 : end] if t != ","]
        at = end + 1
    if at >= len(tokens) or tokens[at] != "(":
        return name, at
    args: list[Pattern | str] = []
    rest = ""
    at += 1
    while tokens[at] != ")":
        if tokens[at] == ",":
            at += 1
            continue
        arg, at = _parsed(tokens, at)
        if isinstance(arg, str) and arg.endswith("..."):
            rest = arg[:-3]
        else:
            args.append(arg)
    if name not in TABLE and name not in (TUPLE_GET, POINTWISE):
        raise TableError(f"no operator {name!r}")
    for w in words:
        if w not in WORDS:
            raise TableError(f"no word {w!r}")
    return Pattern(name, tuple(words), tuple(args), rest), at + 1


def _spread(pattern: Pattern, pointwise: Collection[str]) -> Iterable[Pattern]:
    if pattern.op != POINTWISE:
        return (pattern,)
    return (Pattern(op, pattern.words, pattern.args, pattern.rest) for op in pointwise)


@lru_cache(1)
def derivations() -> tuple[FactRule, ...]:
    """All derivations of the table."""
    from relax_eg.rules.book import facts

    return tuple(dict.fromkeys(facts.derivations()))


@lru_cache(FEW_KEPT)
def needed(asked: frozenset[str]) -> frozenset[str]:
    """`asked`, and every fact from which one of them may be derived. Words of `OF_ANNOTATIONS` are left out."""
    found = set(asked)
    todo = list(asked)
    while todo:
        fact = todo.pop()
        premises = {p for d in derivations() if d.gives == fact for p, _ in d.premises}
        premises.update(p for given, c in ALL_IMPLIED if c == fact for p in given)
        todo += premises - found
        found |= premises
    return frozenset(found.difference(OF_ANNOTATIONS))


@lru_cache(1 << 14)  # facts times operators, twice
def _towards(fact: str, op: str, exact: bool) -> tuple[FactRule, ...]:
    """The derivations that may give `fact`, directly or by implication, for a value of operator `op`."""
    found = {fact}
    grown = True
    while grown:
        new = {p for given, c in ALL_IMPLIED if c in found for p in given} - found
        found |= new
        grown = bool(new)
    return tuple(d for d in _of_operator(op) if d.gives in found and (d.exact or not exact))


@lru_cache(1 << 10)  # more than there are operators
def _of_operator(op: str) -> tuple[FactRule, ...]:
    return tuple(d for d in derivations() if d.pattern.op == op)


# --- the facts of expressions ---

# Operators that only move elements. A test that every element of a constant passes still holds after them.
MOVES = ("permute_dims", "reshape", "expand_dims", "squeeze", "broadcast_to", "full", "strided_slice")


@dataclass
class KnownFacts:
    """The facts of a program's expressions, computed on demand from a few table lines each.

    - `leaf`: returns whether a variable or constant has a fact, or passes a test of constants such as "== 0.0".
    - `exact`: whether only facts of values as computed count; otherwise facts over the reals count too.
    - `positive`: returns whether a size is at least 1.
    """

    leaf: Callable[[Expr, str], bool]
    exact: bool
    positive: Callable[[Dim], bool]
    _said: dict[Annotation, frozenset[str]] = field(default_factory=dict[Annotation, frozenset[str]])
    _found: dict[tuple[Expr, str], bool] = field(default_factory=dict[tuple[Expr, str], bool])

    def has(self, e: Expr, fact: str) -> bool:
        """Whether `e` is known to have `fact`, or to pass it if it is a test of constants."""
        goals = [(e, fact)]
        while goals:
            goal = goals[-1]
            # If a fact of an operand is unknown, it becomes the next goal; then this goal is attempted again.
            answer = self._found.get(goal)
            if answer is None:
                answer = self._attempt(*goal)
            if isinstance(answer, bool):
                self._found[goal] = answer
                goals.pop()
            else:
                goals.append(answer)
        return self._found[e, fact]

    def _attempt(self, e: Expr, fact: str) -> bool | tuple[Expr, str]:
        """Whether `e` has the fact, or the goal (expression, fact) that must be decided first."""
        said = self._of_annotation(e)
        if fact in said or (not e.args and self.leaf(e, fact)):
            return True
        if is_test(fact):
            if e.op not in MOVES:
                return False
            answer = self._found.get((e.args[0], fact))
            return (e.args[0], fact) if answer is None else answer
        found = closed(set(said))
        for d in _towards(fact, e.op, self.exact) if fact not in found else ():
            if d.gives in found or (d.floats and "is_float" not in said):
                continue
            if meaning(d.gives).axes == 2 and "is_square" not in said:
                continue
            env: dict[str, list[Expr]] = {}
            if not matches(d.pattern, e, env):
                continue
            for premise, x in ((f, x) for f, v in d.premises for x in env[v]):
                if premise in OF_ANNOTATIONS:
                    holds_ = premise in self._of_annotation(x)
                elif (x, premise) in self._found:
                    holds_ = self._found[x, premise]
                else:
                    return x, premise
                if not holds_:
                    break
            else:
                found = closed(found | {d.gives})
                if fact in found:
                    break
        return fact in found

    def _of_annotation(self, e: Expr) -> frozenset[str]:
        said = self._said.get(e.annotation)
        if said is None:
            said = self._said[e.annotation] = of_annotation(e.annotation, self.positive)
        return said


def closed(facts: set[str]) -> set[str]:
    """`facts`, extended in place by the facts that they imply, including those of `HELPERS`."""
    grown = True
    while grown:
        new = {c for given, c in ALL_IMPLIED if c not in facts and facts.issuperset(given)}
        facts |= new
        grown = bool(new)
    return facts


def matches(pattern: Pattern, e: Expr, env: dict[str, list[Expr]]) -> bool:
    """Whether `e` matches `pattern`. If so, `env` maps each variable to the expressions it stands for."""
    rank = rank_needed(pattern, dict(e.attrs)) if e.op == pattern.op else None
    if rank is None or (rank >= 0 and (not isinstance(e.annotation, Tensor) or e.ndim != rank)):
        return False
    if len(e.args) < len(pattern.args) or (len(e.args) > len(pattern.args) and not pattern.rest):
        return False
    for p, a in zip(pattern.args, e.args, strict=False):
        if isinstance(p, Pattern):
            if not matches(p, a, env):
                return False
        elif env.setdefault(p, [a]) != [a]:
            return False
    if pattern.rest:
        env[pattern.rest] = list(e.args[len(pattern.args) :])
    return True


def rank_needed(pattern: Pattern, attrs: Attributes) -> int | None:
    """The rank that a value with these attributes must have for the words of a pattern to hold: -1 if any rank fits,
    None if the words do not hold."""
    rank = -1
    for word in pattern.words:
        found = WORDS[word](attrs)
        if found is False:
            return None
        if found is not True:
            rank = found
    return rank


# limit: elements of a constant that is inspected for facts about matrices.
_LARGEST_MATRIX = 1 << 18


def constant_has(e: Expr, fact: str) -> bool:
    """Whether `e` is a constant whose value has a fact, or passes a test of constants."""
    a = e.annotation
    if e.op != CONSTANT or not isinstance(a, Tensor) or a.dtype not in _PLAIN:
        return False
    value = constant_value(e)
    test = test_named(fact)
    if test is not None:
        return test.holds(value)
    if fact not in FACTS or impossible(fact, a) or (FACTS[fact].axes == 2 and value.size > _LARGEST_MATRIX):
        return False
    return holds(fact, value)


_TEST_NAME = re.compile(r"(==|!=|<=|<|>=|>) (\S+)")


def is_test(key: str) -> bool:
    """Whether a key denotes a test of constants, as "== 0" does."""
    return _TEST_NAME.fullmatch(key) is not None


def test_named(key: str) -> ValueTest | None:
    """The test of constants that a key denotes; None if it denotes none."""
    found = _TEST_NAME.fullmatch(key)
    return None if found is None else ValueTest("", found[1], float(found[2]))
