"""What the attribute variables of rules range over: values of operators' attributes, and operators."""

from __future__ import annotations

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
        known = {a.name: a.values for a in record.attributes if a.values is not None}
        if attribute not in known:
            accepted = ", ".join(f"{name}.{a}" for a in sorted(known)) or "none of this operator"
            raise error(f"attrs: {source!r} is not an attribute that a rule can range over; accepted: {accepted}")
        found |= {repr(v): v for v in known[attribute](rank)}
    return list(found.values())
