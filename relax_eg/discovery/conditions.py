"""The conditions under which terms may be equal: facts of variables, and sizes that are at least 1."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax_eg.discovery.grammar import Grammar
from relax_eg.dtypes import is_float, numpy_dtype
from relax_eg.errors import DiscoveryError, OptionError
from relax_eg.ir.expr import Expr
from relax_eg.ops.facts import FACTS, facts_named, has_fact, impossible, with_facts, with_implied

Array = np.ndarray[Any, Any]
Random = np.random.Generator
Facts = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_FREQUENT = ("nonnegative", "positive", "nonzero", "finite")  # given: facts that many draws have
# limit: arrays among which one with all facts of a variable is looked for. Facts that few arrays have are drawn by
# `with_facts`, so one of the first few has them unless they contradict each other.
_ARRAYS = 96
_SIZE = 2  # given: the least size of an axis at which matrices have elements off the diagonal
_REACH = 12  # chosen: the largest element of these arrays, in quarters


@dataclass(frozen=True)
class Condition:
    """A condition on variables or sizes under which terms may be equal.

    - `when`: the texts of the rule's conditions.
    - `claims`: pairs of a variable and a fact that it has; empty for a condition on sizes.
    - `sizes`: the sizes that are at least 1.
    """

    when: tuple[str, ...]
    claims: frozenset[tuple[int, str]] = frozenset()
    sizes: frozenset[str] = frozenset()

    @property
    def variables(self) -> frozenset[int]:
        return frozenset(v for v, _ in self.claims)

    def facts_of(self, variable: int) -> frozenset[str]:
        """The facts that a variable has under the condition, also those that follow."""
        return with_implied(f for v, f in self.claims if v == variable)

    def implies(self, other: Condition) -> bool:
        """Whether the other condition holds wherever this one does."""
        return other.sizes <= self.sizes and all(f in self.facts_of(v) for v, f in other.claims)


@dataclass(frozen=True)
class AskedFacts:
    """The facts under which laws are looked for.

    - `single`: keys of facts that are tried one at a time, of any variable that can have them.
    - `together`: for some variables, the keys of facts that they may have at once.
    """

    single: tuple[str, ...] = ()
    together: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])

    def conditions(self, grammar: Grammar) -> list[Condition]:
        """The conditions that are tried, the weaker ones first."""
        found: dict[Condition, None] = {}
        for fact in self.single:
            own = able(fact, grammar)
            for group in [(i,) for i in own] + ([tuple(own)] if len(own) > 1 else []):
                found[condition_of(grammar, [(i, fact) for i in group])] = None
        every = [(i, f) for i, facts in self.together.items() for f in facts]
        for claim in every:
            found[condition_of(grammar, [claim])] = None
        for i, facts in self.together.items():
            found[condition_of(grammar, [(i, f) for f in facts])] = None
        if every:
            found[condition_of(grammar, every)] = None
        return list(found)

    def draws(self, grammar: Grammar, count: int) -> list[dict[int, tuple[str, ...]]]:
        """For each of some further draws, the facts that variables are given: those that few draws have anyway.
        `count`: of the draws of a fact of any variable, or of the facts together."""
        found: list[dict[int, tuple[str, ...]]] = []
        asked = [dict.fromkeys(able(f, grammar), (f,)) for f in self.single if f not in _FREQUENT]
        asked += [{i: (f,)} for i, facts in self.together.items() for f in facts if f not in _FREQUENT]
        for given in (*asked, *([dict(self.together)] if self.together else [])):
            own = list(given)
            # Every second draw is of one variable, so that it does not follow what others have.
            found += [given if k % 2 else {v: given[v] for v in (own[k // 2 % len(own)],)} for k in range(count)]
        return found

    def plain(self, grammar: Grammar) -> list[Any]:
        """As plain data."""
        return [*self.single, *([str(grammar.variables[i].attr("name")), *f] for i, f in self.together.items())]


def able(fact: str, grammar: Grammar) -> list[int]:
    """The declared float variables that can have a fact."""
    return [i for i, v in enumerate(grammar.declared) if is_float(v.dtype) and not impossible(fact, v.tensor)]


def condition_of(grammar: Grammar, claims: Iterable[tuple[int, str]]) -> Condition:
    """The condition that variables have facts: pairs of a variable and a key of a fact."""
    claims = tuple(claims)
    when = tuple(f"{FACTS[f].name}({grammar.variables[i].attr('name')})" for i, f in claims)
    return Condition(when, frozenset(claims))


def read_facts(facts: Facts, grammar: Grammar) -> AskedFacts:
    """The facts in words, or for variables: {"d": "diagonal positive"}, or "d: diagonal positive, x: nonzero".

    Raises DiscoveryError for what is no fact, for a fact that a variable cannot have, and for facts of a variable that
    contradict each other.
    """
    try:
        if isinstance(facts, str) and ":" in facts:
            facts = _by_variable(facts)
        if isinstance(facts, Mapping):
            return AskedFacts(together=dict(_together(facts, grammar)))
        texts = [facts] if isinstance(facts, str) else list(facts)
        found = tuple(dict.fromkeys(k for text in texts if text.strip() for k in facts_named(text)))
    except OptionError as e:
        raise DiscoveryError(f"facts: {e}") from None
    for key in found:
        why = {str(v.attr("name")): impossible(key, v.tensor) for v in grammar.declared if is_float(v.dtype)}
        if all(why.values()):
            reason = next((f"`{n}`: {w}" for n, w in why.items()), "there is no float variable")
            raise DiscoveryError(f"facts: no variable can be {FACTS[key].name}; {reason}")
    return AskedFacts(single=found)


def _by_variable(text: str) -> dict[str, str]:
    """The facts of each variable in a text such as `d: diagonal positive, x: nonzero`. A part without a colon goes on
    with the variable before."""
    found: dict[str, str] = {}
    name = ""
    for part in text.split(","):
        head, colon, words = part.partition(":")
        name, words = (head.strip(), words) if colon else (name, part)
        if not name or not words.strip():
            raise DiscoveryError(f"facts: {text!r}; accepted: facts after each variable, as in 'd: diagonal positive'")
        found[name] = f"{found[name]}, {words}" if name in found else words
    return found


def _together(facts: Mapping[str, str | Sequence[str]], grammar: Grammar) -> Iterable[tuple[int, tuple[str, ...]]]:
    numbers = {str(v.attr("name")): i for i, v in enumerate(grammar.declared)}
    for name, given in facts.items():
        if name not in numbers:
            near = difflib.get_close_matches(str(name), numbers, 1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise DiscoveryError(f"facts: no variable `{name}`; {hint}accepted: {', '.join(numbers)}")
        v = grammar.declared[numbers[name]]
        texts = [given] if isinstance(given, str) else list(given)
        keys = tuple(dict.fromkeys(k for text in texts for k in facts_named(text)))
        for key in keys:
            if why := impossible(key, v.tensor):
                raise DiscoveryError(f"facts: `{name}` cannot be {FACTS[key].name}: {why}")
        if apart := contradiction(keys, v):
            words = " and ".join(FACTS[k].name for k in apart)
            raise DiscoveryError(
                f"facts: they contradict each other: `{name}` cannot be {words} at once; none of {_ARRAYS} arrays drawn"
                f" for it, with axes of {_SIZE} elements, is; accepted: facts that an array has together"
            )
        yield numbers[name], keys


def contradiction(facts: Collection[str], v: Expr) -> tuple[str, ...]:
    """The fewest facts that no array of the type of a variable has at once, as far as draws tell; none where an array
    has all. Arrays have axes of two elements, where the variable names their sizes."""
    shape = tuple(int(d.evaluate(dict.fromkeys(d.variables, _SIZE))) for d in v.shape)

    def have(some: Collection[str]) -> bool:
        rng = np.random.default_rng(0)
        drawn = (with_facts(_drawn(v, shape, rng, k), some, rng) for k in range(_ARRAYS))
        return any(all(has_fact(f, a) for f in some) for a in itertools.chain(_simple(v, shape), drawn))

    if 0 in shape or have(facts):
        return ()
    parts = itertools.chain.from_iterable(itertools.combinations(facts, n) for n in range(2, len(facts)))
    return next((some for some in parts if not have(some)), tuple(facts))


def _simple(v: Expr, shape: tuple[int, ...]) -> list[Array]:
    """Zeros, ones, and identities where matrices are square, of either sign."""
    found = [np.zeros(shape), np.ones(shape)]
    if len(shape) > 1 and shape[-1] == shape[-2]:
        found.append(np.broadcast_to(np.eye(shape[-1]), shape))
    signs = (1, -1) if is_float(v.dtype) else (1,)
    return [(a * s).astype(np.float64 if is_float(v.dtype) else numpy_dtype(v.dtype)) for a in found for s in signs]


def _drawn(v: Expr, shape: tuple[int, ...], rng: Random, k: int) -> Array:
    made = np.asarray(rng.integers(-_REACH, _REACH + 1, shape) if k % 3 else rng.choice((-1, 0, 1), shape))
    made = np.abs(made) if k % 4 == 1 or v.dtype == "bool" else -np.abs(made) if k % 4 == 3 else made
    return made / 4 if is_float(v.dtype) else made.astype(numpy_dtype(v.dtype))
