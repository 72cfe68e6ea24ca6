"""What the attribute variables of rules range over: values of operators' attributes, and operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from relax_eg.dtypes import NUMBERS
from relax_eg.errors import OperatorError, RuleError
from relax_eg.ir.expr import Expr
from relax_eg.limits import MANY_KEPT
from relax_eg.ops import api
from relax_eg.ops.record import TABLE, call, get

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


def _placements(rank: int) -> Values:
    return [*(f"S[{d}]" for d in range(rank)), "R"]


_FLAG = _one_of(False, True)
# By attribute name; an entry `operator.attribute` takes precedence.
_DOMAINS: dict[str, Callable[[int], Values]] = {
    "permute_dims.axes": _permutations, "mesh": _one_of("x=1"), "placement": _placements,
    "layer_norm.axes": _trailing_axes, "rms_norm.axes": _trailing_axes, "axes": _axes, "axis": _axis,
    "keepdims": _FLAG, "reverse": _FLAG,
    "reduce_window.strides": _pool_steps,
    "strides": _per_axis(1, 2, 3), "dilation": _per_axis(1, 2), "interior": _per_axis(0, 1),
    "y": _one_of(2, 3, 1, 0, -1, -2, 4), "k": _one_of(0, 1, -1, 2, -2),
    "method": _one_of("to_even", "away"), "mode": _one_of("clip", "fill", "promise"),
    "precision": _one_of(None, "default", "high", "highest"), "out_dtype": _one_of(None, "float32", "float64"),
    "dtype": _one_of("float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool"),
    "epsilon": _one_of(1e-5, 1e-6, 0.0, 0.5),
}  # fmt: skip


def attribute_domain(op: str, attribute: str) -> Callable[[int], Values] | None:
    """The values of an operator's attribute on operands of a rank; None if rules do not range over it."""
    return _DOMAINS.get(f"{op}.{attribute}") or _DOMAINS.get(attribute)


# given: the numbers of operands in these words
_ARITIES = {"unary": 1, "binary": 2}


@lru_cache(MANY_KEPT)
def read_source(source: str) -> tuple[tuple[str, ...], str]:
    """What an attribute variable ranges over: operators, and the name of their attribute; "" for the operators
    themselves.

    `"sum.axes"` are the axes of sums, `"sum | max.axes"` of sums and maxima, `"add | multiply"` are two operators, and
    `"unary"` and `"binary"` are all that compute each element from one element of each of one or two operands.
    """
    names, _, attribute = source.partition(".")
    arity = _ARITIES.get(names)
    return (tuple(n.strip() for n in names.split("|")) if arity is None else _pointwise(arity, len(TABLE))), attribute


@lru_cache(MANY_KEPT)
def _pointwise(arity: int, known: int) -> tuple[str, ...]:
    """The operators of so many operands that are functions of elements. `known`: the number of all operators."""
    from relax_eg.rules.pointwise.tables import operators, usable

    own = (n for n, count in operators() if count == arity)
    return tuple(n for n in own if any(usable(n, (d,) * arity) is not None for d in NUMBERS))


def operator_function(name: str) -> Callable[..., Expr]:
    """The operator of this name as a function (`ops.api`)."""
    return getattr(api, name, None) or (lambda *args, **attributes: call(name, args, attributes))


def attribute_values(error: Callable[[str], RuleError], source: str, rank: int) -> Values:
    """The values of `source` (`read_source`) on operands of `rank` axes. Raises `error(text)` if a rule cannot range
    over it."""
    names, attribute = read_source(source)
    try:
        records = [get(n) for n in names]
    except OperatorError as e:
        raise error(f"attrs: {source!r}: {e}") from None
    if not attribute:
        return list(names)
    found: dict[str, Values] = {}
    for name, record in zip(names, records, strict=True):
        known = {a.name for a in record.attributes if a.kind == "static"}
        known &= {a for a in known if attribute_domain(name, a) is not None}
        if attribute not in known:
            accepted = ", ".join(f"{name}.{a}" for a in sorted(known)) or "none of this operator"
            raise error(f"attrs: {source!r} is not an attribute that a rule can range over; accepted: {accepted}")
        domain = attribute_domain(name, attribute)
        assert domain is not None
        found |= {repr(v): v for v in domain(rank)}
    return list(found.values())
