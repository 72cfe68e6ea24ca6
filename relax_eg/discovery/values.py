"""Characteristic values: the values of terms at sample points, by which terms are grouped.

Points are small sizes and, for each, several draws of all variables. Over the reals the draws are quarters, so that
sums and products are exact, with zeros, both signs and ties; for bits they are the draws of special values of the rule
checker. An axis is empty at some sizes. A law is assumed of nothing here: terms with equal values are candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from relax_eg.discovery.conditions import AskedFacts, Condition
from relax_eg.discovery.grammar import Grammar, OperatorForm
from relax_eg.dtypes import is_float, is_integer
from relax_eg.errors import DiscoveryError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, constant_value, var
from relax_eg.ir.origin import SourceLine
from relax_eg.ops.facts import has_fact, with_facts
from relax_eg.ops.libraries import inline_libraries
from relax_eg.rules.checking.samples import integers, special
from relax_eg.rules.pointwise.tables import rounded
from relax_eg.rules.rule import Instance, Rule
from relax_eg.tir.substitute import widened

Array = np.ndarray[Any, Any]

_MOST_POINTS = 16  # limit: draws at one choice of sizes; terms that agree on all are told apart by the checker
_POINTS_OF_FACT = 8  # limit: further draws for a fact that few draws have
_FEW_POINTS = 4  # limit: draws where an axis is empty or has one element
_REACH = 12  # chosen: largest draw over the reals, in quarters
_TIE = 0.25  # chosen: share of draws in which a variable equals an earlier one
_NEAR_ZERO = 1e-10  # chosen: values below it are rounding errors of zero; draws are multiples of 0.25
_SAME_SIZE = 2  # given: the least size at which axes have several elements
_FIRST_SIZE = 2  # chosen: sizes of distinct axes count up from it
_LARGEST_SIZE = 64  # limit: of the first axis, where variables have sizes such as n - 10


class SamplePoints:
    """The sample points of a grammar, and which of them meet which conditions.

    - `bits`: whether values are compared by their bits, in the dtypes of the grammar; otherwise over the reals.
    - `sizes`: the sizes, a dict each.
    - `values`: for each of the sizes, the values of each leaf; the first axis is the draw.

    `facts`: facts under which terms are compared too.
    """

    def __init__(self, grammar: Grammar, bits: bool, seed: int, facts: AskedFacts | None = None) -> None:
        self.grammar, self.bits = grammar, bits
        self._facts = facts or AskedFacts()
        self._given = self._facts.draws(grammar, _POINTS_OF_FACT)
        rng = np.random.default_rng(seed)
        self.sizes = _sizes(grammar)
        self.values: list[list[Array]] = []
        for at in self.sizes:
            plain = min(at.values(), default=_SAME_SIZE) >= _SAME_SIZE
            self.values.append(self._draw(at, _MOST_POINTS if plain else _FEW_POINTS, rng))

    def _draw(self, at: dict[str, int], count: int, rng: np.random.Generator) -> list[Array]:
        draws = [self._values(at, rng, k) for k in range(count)]
        for k, given in enumerate(self._given):
            drawn = self._values(at, rng, k)
            draws.append([with_facts(a, given[i], rng) if i in given and a.size else a for i, a in enumerate(drawn)])
        count = len(draws)
        found: list[Array] = []
        for i, v in enumerate(self.grammar.variables):
            stacked = np.stack([d[i] for d in draws])
            found.append(stacked if self.bits or not is_float(v.dtype) else stacked.astype(np.float64))
        for i in range(self.grammar.variable_count, len(self.grammar.leaves)):
            c = self.grammar.filled[i][0] if i in self.grammar.filled else self.grammar.leaves[i]
            value = constant_value(c)
            value = value if self.bits or not is_float(c.dtype) else value.astype(np.float64)
            shape = tuple(int(d.evaluate(at)) for d in self.grammar.leaves[i].shape)
            found.append(np.broadcast_to(value, (count, *shape)))
        return found

    def _values(self, at: dict[str, int], rng: np.random.Generator, k: int) -> list[Array]:
        if self.bits:
            drawn = special(Instance(_RULE, self.grammar.variables, (), ()), at, rng, k)
            return [np.asarray(drawn[str(v.attr("name"))]) for v in self.grammar.variables]
        found: list[Array] = []
        for i, v in enumerate(self.grammar.variables):
            shape = tuple(int(d.evaluate(at)) for d in v.shape)
            if v.dtype == "bool":
                made = rng.random(shape) < (0.5, 0.8, 0.2)[k % 3]
            elif is_integer(v.dtype):
                made = integers(v.dtype, shape, rng, k)
            else:
                made = np.asarray(rng.integers(-_REACH, _REACH + 1, shape)) / 4
                # A quarter of the draws is positive, and another one nonnegative; in a further one a variable in turn.
                if k % 4 == 1:
                    made = np.abs(made)
                elif k % 4 == 2 or (
                    k % 4 == 3 and (k // 4) % self.grammar.declared_count == i % self.grammar.declared_count
                ):
                    made = np.abs(made) + 0.25
            same = [x for x, w in zip(found, self.grammar.variables, strict=False) if w.annotation == v.annotation]
            if same and k % 4 != 3:
                made = np.where(rng.random(shape) < _TIE, same[-1], made).astype(made.dtype)
            found.append(np.asarray(made))
        return found

    def leaf_type(self, t: tuple[Any, ...]) -> Tensor:
        """The annotation in which values of a type are computed."""
        shape, dtype = t
        return Tensor(shape, dtype if self.bits or not is_float(dtype) else "float64")

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that are tried: no axis is empty; variables have a fact, one of them or all."""
        found: list[Condition] = []
        # The axes of a block have no names in rules.
        names = [n for n in self.grammar.size_variables if "__" not in n]
        if names:
            found += [Condition((f"{n} >= 1",), sizes=frozenset((n,))) for n in names]
            if len(names) > 1:
                found.append(Condition(tuple(f"{n} >= 1" for n in names), sizes=frozenset(names)))
        return (*found, *self._facts.conditions(self.grammar))

    def columns(self, t: tuple[Any, ...], condition: Condition) -> Array:
        """A mask of the columns of `rows` for a type at which a condition holds."""
        pairs = zip(self.sizes, self.values, strict=True)
        return np.concatenate([self.columns_at(t, condition, at, values) for at, values in pairs])

    def columns_at(
        self, t: tuple[Any, ...], condition: Condition, at: dict[str, int], values: Sequence[Array]
    ) -> Array:
        """`columns` at one of the sizes, with the values of the leaves there."""
        count = len(values[0])
        held = np.ones(count, bool) & all(at[n] >= 1 for n in condition.sizes)
        for i, fact in condition.claims:
            held &= [has_fact(fact, v) for v in values[i]]
        return np.repeat(held, int(np.prod([d.evaluate(at) for d in t[0]])) if t[0] else 1)

    def rows(self, values: Sequence[Array], dtype: str) -> Array:
        """Values of many terms of one type, as rows that are equal if the values count as equal. `values`: for each of
        the sizes, an array whose first two axes are the term and the draw."""
        count = len(values[0])
        return np.concatenate([self._canonical(v.reshape(count, -1), dtype) for v in values], axis=1)

    def defined(self, rows: Array, dtype: str) -> Array:
        """For each row, or for one, whether it has a value that is a number. Terms without one say nothing."""
        if not is_float(dtype):
            return np.ones(rows.shape[:-1], bool)
        return np.any(np.isfinite(rows.view(np.float64)), axis=-1)

    def _canonical(self, v: Array, dtype: str) -> Array:
        if not is_float(dtype):
            return v.astype(np.int64)
        with np.errstate(all="ignore"):
            if self.bits:
                wide = np.where(np.isnan(v.astype(np.float64)), np.nan, v.astype(np.float64))
                return np.ascontiguousarray(wide).view(np.int64)
            near = np.where(np.isfinite(v) & (np.abs(v) >= _NEAR_ZERO), v, np.where(np.isfinite(v), 0.0, np.nan))
        return np.ascontiguousarray(rounded(near)).view(np.int64)


# The rule of which the draws of special values are made.
_RULE = Rule("points", lambda: None, {}, {}, "exact", "algebra", (), frozenset(), "", SourceLine.of(SamplePoints))


def _sizes(grammar: Grammar) -> list[dict[str, int]]:
    """Sizes that tell axes apart, the other way round, all one, and each axis empty while the others are not; without
    those at which a variable does not exist. DiscoveryError if none is left."""
    names, dims = grammar.size_variables, {d for v in grammar.variables for d in v.shape}
    if not names:
        return [{}]
    for first in range(_FIRST_SIZE, _LARGEST_SIZE + 1):
        up = {n: first + i for i, n in enumerate(names)}
        down = dict(zip(names, reversed(up.values()), strict=True))
        found = [up, *([down] if len(names) > 1 else [{n: first + 1 for n in names}]), dict.fromkeys(names, 1)]
        found += [{m: 0 if m == n else first for m in names} for n in names]
        there = [at for at in found if all(d.evaluate(at) >= 0 for d in dims)]
        if up in there:
            return there
    raise DiscoveryError(
        f"variables: {grammar.declared_text}: no array has these sizes where axes have {_FIRST_SIZE} to "
        f"{_LARGEST_SIZE} elements; accepted: sizes such as n, 2*n and n - 1"
    )


def in_float64(attributes: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Attributes with float64 in place of other dtypes of floats."""
    return tuple((k, "float64" if k in ("dtype", "out_dtype") and v and is_float(v) else v) for k, v in attributes)


def operand(points: SamplePoints, t: tuple[Any, ...], i: int) -> Expr:
    """The variable for operand number `i` of a use whose values are computed."""
    return var(f"x{i}", points.leaf_type(t))


def use(points: SamplePoints, form: OperatorForm, params: Sequence[Expr]) -> Expr:
    """The use of a form on variables as it is computed at the points: over the reals, tensor programs have float64; a
    library routine is its definition."""
    if not points.bits:
        program = None if form.program is None else widened(form.program)
        form = replace(form, attributes=in_float64(form.attributes), program=program)
    (made,) = inline_libraries([form.on(params)])
    return made
