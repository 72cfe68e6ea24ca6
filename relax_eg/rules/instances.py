"""The instances of a rule: its block ranks and attribute values, enumerated in a fixed order.

An attribute variable `operator.attribute` ranges over the values of that attribute on operands of up to
`MAX_OPERAND_RANK` axes. There is no instance where the rule's function returns None or its sides cannot be formed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relax_eg.errors import OperatorError, RuleError
from relax_eg.ops.record import get
from relax_eg.rules.rule import Instance, Rule

MAX_OPERAND_RANK = 4  # limit: axes of an operand
# limit: attribute values tried in one group, and how many of them without any instance end the group.
_MOST_VALUES = 64
_FRUITLESS = 8  # limit: as above
# given: the most informative ranks come first, because a rule is printed with the first, and a short test covers few.
_OPERAND_RANKS = (2, 1, 3, 0, 4)
_BLOCK_RANKS = (1, 0, 2, 3)  # given: as above, of a block

Values = list[Any]


def _permutations(rank: int) -> Values:
    # Reversed: the identity, which is the least informative, comes last.
    return list(itertools.permutations(range(rank)))[::-1]


def _axis(rank: int) -> Values:
    return list(range(rank))


def _axes(rank: int) -> Values:
    return [c for n in range(1, rank + 1) for c in itertools.combinations(range(rank), n)]


def _trailing_axes(rank: int) -> Values:
    return [tuple(range(i, rank)) for i in reversed(range(rank))]


def _per_axis(*choices: Any) -> Callable[[int], Values]:
    return lambda rank: list(itertools.product(choices, repeat=rank))[::-1]


def _pool_steps(rank: int) -> Values:
    # Pooling windows move along the spatial axes, which are the last.
    space = max(rank - 2, 0)
    return [(1,) * (rank - space) + c for c in _per_axis(1, 2, 3)(space)] + _per_axis(1, 2)(rank)


def _one_of(*values: Any) -> Callable[[int], Values]:
    return lambda rank: list(values)


_FLAG = _one_of(False, True)
# By attribute name; an entry `operator.attribute` takes precedence.
_DOMAINS: dict[str, Callable[[int], Values]] = {
    "permute_dims.axes": _permutations,
    "layer_norm.axes": _trailing_axes,
    "rms_norm.axes": _trailing_axes,
    "axes": _axes,
    "axis": _axis,
    "keepdims": _FLAG,
    "reverse": _FLAG,
    "reduce_window.strides": _pool_steps,
    "strides": _per_axis(1, 2, 3),
    "dilation": _per_axis(1, 2),
    "interior": _per_axis(0, 1),
    "y": _one_of(2, 3, 1, 0, -1, -2, 4),
    "k": _one_of(0, 1, -1, 2, -2),
    "method": _one_of("to_even", "away"),
    "mode": _one_of("clip", "fill", "promise"),
    "precision": _one_of(None, "default", "high", "highest"),
    "out_dtype": _one_of(None, "float32", "float64"),
    "dtype": _one_of("float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool"),
    "epsilon": _one_of(1e-5, 1e-6, 0.0, 0.5),
}  # fmt: skip


def attribute_values(rule: Rule, source: str, rank: int) -> Values:
    """The values of attribute `source` (`operator.attribute`) on operands of `rank` axes. Raises RuleError if a rule
    cannot range over it."""
    op, _, name = source.partition(".")
    try:
        known = [a.name for a in get(op).attributes if a.kind == "static"]
    except OperatorError as e:
        raise rule.error(f"attrs: {source!r}: {e}") from None
    domain = _DOMAINS.get(source) or _DOMAINS.get(name)
    if name not in known or domain is None:
        accepted = (
            ", ".join(f"{op}.{a}" for a in known if a in _DOMAINS or f"{op}.{a}" in _DOMAINS) or "none of this operator"
        )
        raise rule.error(f"attrs: {source!r} is not an attribute that a rule can range over; accepted: {accepted}")
    return domain(rank)


@dataclass(slots=True)
class _Group:
    """The instances with one choice of block ranks, dtype and operand ranks.

    - `values`: attribute values that are left to try.
    """

    blocks: tuple[int, ...]
    dtype: str
    values: Iterator[dict[str, Any]]
    tries: int = 0
    formed: int = 0

    def next(self, rule: Rule, seen: set[int]) -> tuple[Instance | None, bool]:
        """The next new instance, if there is one, and whether there may be more."""
        for attributes in self.values:
            self.tries += 1
            instance = rule.instance(self.blocks, self.dtype, attributes)
            # One value may belong to several operand ranks. An instance with equal sides is useless.
            if instance is not None and id(instance) not in seen and instance.left != instance.right:
                seen.add(id(instance))
                self.formed += 1
                return instance, True
            if not self.formed and self.tries >= _FRUITLESS:
                break
        return None, False


def _groups(rule: Rule, ranks: Iterable[int], dtypes: Sequence[str]) -> Iterator[_Group]:
    allowed = set(ranks)
    order = [r for r in _BLOCK_RANKS if r in allowed] + sorted(allowed.difference(_BLOCK_RANKS))
    blocks = sorted(itertools.product(order, repeat=len(rule.stars)), key=lambda b: sum(map(order.index, b)))
    # Several attribute variables mostly belong to operands of equal rank, so these combinations come first.
    operands = sorted(
        itertools.product(_OPERAND_RANKS, repeat=len(rule.attributes)),
        key=lambda o: (max(o, default=0) - min(o, default=0), sum(map(_OPERAND_RANKS.index, o))),
    )
    domains = {
        o: [attribute_values(rule, s, r) for s, r in zip(rule.attributes.values(), o, strict=True)] for o in operands
    }
    for o, dtype, b in itertools.product(operands, dtypes, blocks):
        yield _Group(b, dtype, _combinations(rule, domains[o]))


def _combinations(rule: Rule, domains: list[Values]) -> Iterator[dict[str, Any]]:
    """Combinations of attribute values, the first values first; a fixed random sample if there are many."""
    size = 1
    for d in domains:
        size *= len(d)
    if size <= _MOST_VALUES:
        chosen: Iterable[tuple[Any, ...]] = itertools.product(*domains)
    else:
        rng = random.Random(size)
        chosen = [tuple(d[0] for d in domains)] + [tuple(map(rng.choice, domains)) for _ in range(_MOST_VALUES)]
    for values in chosen:
        yield dict(zip(rule.attributes, values, strict=True))


def instances(
    rule: Rule, limit: int | None = None, ranks: Iterable[int] = range(4), dtypes: Sequence[str] | None = None
) -> Iterator[Instance]:
    """Instances of `rule`, at most `limit`, the most informative first, in a fixed order.

    They are taken in turn from the combinations of block ranks (`ranks`), dtypes (`rule.dtypes` unless given; without
    effect on a rule without open dtypes) and operand ranks, so that a few instances already cover many kinds. Raises
    RuleError if the sides of an instance disagree in shape or dtype.
    """
    floats = tuple(dtypes or rule.dtypes) if rule.has_open_dtype else ("float32",)
    live = list(_groups(rule, ranks, floats))
    seen: set[int] = set()
    while live and (limit is None or len(seen) < limit):
        more: list[_Group] = []
        for group in live:
            instance, go_on = group.next(rule, seen)
            if instance is not None:
                yield instance
                if limit is not None and len(seen) >= limit:
                    return
            if go_on:
                more.append(group)
        live = more


def need_instance(rule: Rule) -> Instance:
    """The first instance. Raises RuleError if the rule has none."""
    found = next(instances(rule, limit=1), None)
    if found is None:
        raise RuleError(f"{rule.where} rule `{rule.name}`: no instance can be formed{_why(rule)}")
    return found


def _why(rule: Rule) -> str:
    """The reason why the first instance cannot be formed, as text."""
    blocks = tuple(1 for _ in rule.stars)
    attributes = {n: next(iter(attribute_values(rule, s, 2)), None) for n, s in rule.attributes.items()}
    problem = rule.problem(blocks, rule.dtypes[0], attributes)
    if problem:
        return f": {problem}"
    if rule.instance(blocks, rule.dtypes[0], attributes) is not None:
        return ": both sides are the same expression"
    if not rule.attributes and not rule.sizes:
        return ": its function returned None; `return left, right` is accepted"
    return ": its function declines every value of its attribute variables"
