"""How facts spread through a program: the language of the table in `book/facts.py`, and its meaning on expressions.

A line of the table is a *derivation*: a small pattern of operators, the fact its value has, and what must hold of its
variables.

    multiply(x, y): nonnegative if nonnegative(x), nonnegative(y)
    ~ exp(x): positive
    permute_dims[swaps](x): keeps symmetric orthogonal
    tuple_get_item[0](qr(x)): orthogonal

Lines hold of values as they are computed, NaN, infinities and rounding included; those marked `~` hold over the
reals, and are used where rules may be too. `keeps f g of x, y` is a line for each fact: it holds if it holds of all
these, of all variables unless some are named. A word in brackets restricts attributes (`WORDS`), `xs...` is any number
of operands, and `x == 0` asks for a constant of that value. Facts of matrices are derived of square ones only.

The e-graph compiles the same derivations to rules of its engine (`egraph.facts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from relax_eg.ir.annotations import FLOATS, Annotation, Tensor, is_complex, is_float
from relax_eg.ir.expr import CONSTANT, TUPLE_GET, Expr, constant_value
from relax_eg.ops.facts import FACTS, IMPLIED, Fact, facts_of_dtype, holds, impossible
from relax_eg.ops.record import TABLE
from relax_eg.rules.conditions import ValueTest
from relax_eg.shapes import Dim

ONE = Dim.of(1)


@dataclass(frozen=True)
class Pattern:
    """An operator applied to patterns and variables; `rest` names a variable for any number of operands."""

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
        """Itself and the patterns inside, itself last."""
        return (*(n for a in self.args if isinstance(a, Pattern) for n in a.nodes), self)

    def __str__(self) -> str:
        args = [*map(str, self.args), *([f"{self.rest}..."] if self.rest else [])]
        return f"{self.op}{'[' + ', '.join(self.words) + ']' if self.words else ''}({', '.join(args)})"


@dataclass(frozen=True)
class Derivation:
    """One line of the table: where `pattern` matches and every `(fact, variable)` of `premises` holds, its value has
    the fact `gives`. `exact`: of values as computed; else over the reals. `floats`: of float values only."""

    pattern: Pattern
    gives: str
    premises: tuple[tuple[str, str], ...]
    exact: bool
    floats: bool

    def __str__(self) -> str:
        given = f" if {', '.join(f'{f}({v})' for f, v in self.premises)}" if self.premises else ""
        return f"{'' if self.exact else '~ '}{self.pattern}: {self.gives}{given}"


# --- words in brackets: what attributes must be; a number is the rank the value must have ---

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

# Facts that only derivations ask for.
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

# What is known of a value by its annotation: words that derivations ask for, and facts.
OF_ANNOTATIONS = ("is_float", "is_bool", "is_integer", "is_square", "is_nonempty")
OF_DTYPES = ("integral", "finite", "nonnegative", "constant")


def _found(wrong: Any) -> tuple[tuple[int, ...], str] | None:
    at = np.argwhere(wrong)
    return (tuple(at[0]), "") if len(at) else None


def meaning(fact: str) -> Fact:
    """The definition of a fact, one that derivations alone ask for included."""
    return FACTS[fact] if fact in FACTS else HELPERS[fact]


def of_annotation(a: Annotation, positive: Callable[[Dim], bool]) -> frozenset[str]:
    """What a value's annotation says of it: facts of its dtype, words of `OF_ANNOTATIONS`, its rank as `rank_2`, and
    that a scalar is constant. `positive` tells whether a size is at least 1."""
    if not isinstance(a, Tensor) or a.shape is None or a.dtype is None or is_complex(a.dtype):
        return frozenset()
    if a.dtype not in _PLAIN:
        return frozenset()
    found = set(facts_of_dtype(a.dtype))
    found.add(f"rank_{len(a.shape)}")
    found.add("is_float" if is_float(a.dtype) else "is_bool" if a.dtype == "bool" else "is_integer")
    if not a.shape:
        found.add("constant")
    # A matrix of literal size 1 broadcasts against others: facts of matrices are of no use for it.
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
    """A line of the table that cannot be read: a mistake of ours."""


def read(table: str, floats: bool, pointwise: Collection[str] = ()) -> Iterator[Derivation]:
    """The derivations of a table's lines; `floats`: they are of float values only. A pattern of `pointwise` stands for
    one of each of these operators."""
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
                yield Derivation(p, fact, (*premises, *more), exact, floats)


def _conclusions(text: str, pattern: Pattern) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Each fact with the premises that `keeps` adds."""
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


@cache
def derivations() -> tuple[Derivation, ...]:
    """All of them."""
    from relax_eg.rules.book import facts

    return tuple(dict.fromkeys(facts.derivations()))


@lru_cache(64)
def needed(asked: frozenset[str]) -> frozenset[str]:
    """`asked` and every fact from which one of them may be derived."""
    found = set(asked)
    todo = list(asked)
    while todo:
        fact = todo.pop()
        premises = {p for d in derivations() if d.gives == fact for p, _ in d.premises}
        premises.update(p for given, c in ALL_IMPLIED if c == fact for p in given)
        todo += premises - found
        found |= premises
    return frozenset(found.difference(OF_ANNOTATIONS))


@lru_cache(None)
def _towards(fact: str, op: str, exact: bool) -> tuple[Derivation, ...]:
    """The derivations that may tell, of a value of operator `op`, that it has `fact`: by itself, or by implication."""
    found = {fact}
    grown = True
    while grown:
        new = {p for given, c in ALL_IMPLIED if c in found for p in given} - found
        found |= new
        grown = bool(new)
    return tuple(d for d in _of_operator(op) if d.gives in found and (d.exact or not exact))


@lru_cache(None)
def _of_operator(op: str) -> tuple[Derivation, ...]:
    return tuple(d for d in derivations() if d.pattern.op == op)


# --- the facts of expressions ---

# Operators that only move elements: what each element of a constant is, it stays.
MOVES = ("permute_dims", "reshape", "expand_dims", "squeeze", "broadcast_to", "full", "strided_slice")


@dataclass
class Known:
    """The facts of a program's expressions, found when they are asked for: a few table lines for each.

    `leaf`: whether a variable or constant has a fact, or passes a test of constants such as "== 0.0". `exact`: only
    what holds of values as they are computed counts. `positive`: whether a size is at least 1.
    """

    leaf: Callable[[Expr, str], bool]
    exact: bool
    positive: Callable[[Dim], bool]
    _said: dict[Annotation, frozenset[str]] = field(default_factory=dict[Annotation, frozenset[str]])
    _found: dict[tuple[Expr, str], bool] = field(default_factory=dict[tuple[Expr, str], bool])

    def has(self, e: Expr, fact: str) -> bool:
        """Whether `e` is known to have a fact, or to pass a test of constants."""
        goals = [(e, fact)]
        while goals:
            goal = goals[-1]
            # What is not known yet of an operand is found first; then the goal is looked at again.
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
        """Whether `e` has the fact, or what must be found first."""
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
    """`facts` with what they imply, helpers included."""
    grown = True
    while grown:
        new = {c for given, c in ALL_IMPLIED if c not in facts and facts.issuperset(given)}
        facts |= new
        grown = bool(new)
    return facts


def matches(pattern: Pattern, e: Expr, env: dict[str, list[Expr]]) -> bool:
    """Whether `e` is of this form; `env` then tells what each variable stands for."""
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
    """The rank that a value of these attributes must have for the words of a pattern to hold, -1 where any will do;
    None where they do not hold."""
    rank = -1
    for word in pattern.words:
        found = WORDS[word](attrs)
        if found is False:
            return None
        if found is not True:
            rank = found
    return rank


# Constants of more elements than this are not looked into for facts of matrices.
_LARGEST_MATRIX = 1 << 18


def constant_has(e: Expr, fact: str) -> bool:
    """Whether a constant has a fact, or passes a test, by inspection."""
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
    """Whether a key stands for a test of constants, as "== 0" does."""
    return _TEST_NAME.fullmatch(key) is not None


def test_named(key: str) -> ValueTest | None:
    """The test of constants that a key stands for."""
    found = _TEST_NAME.fullmatch(key)
    return None if found is None else ValueTest("", found[1], float(found[2]))
