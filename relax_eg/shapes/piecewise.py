"""`select`: a size that is one of two, depending on a comparison. Also decides comparisons from sizes known to be >= 0.

A comparison is stored as `d >= 0` or `d == 0`. Only the chosen size must have a value: `select(m == 0, 0, n//m)` has
one for every m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import gcd
from numbers import Integral
from typing import Any

from relax_eg.errors import SpecError
from relax_eg.limits import EXTREMES
from relax_eg.shapes.dim import MEMO, Atom, Dim, atom_of, constant, is_plain, make, product, replace_atoms
from relax_eg.shapes.division import ceildiv, dim_max, dim_min, extreme, floordiv
from relax_eg.shapes.expression import COMPARISONS


def dim_select(left: Dim | int, op: str, right: Dim | int, then: Dim | int, otherwise: Dim | int) -> Dim:
    """Returns `then` where `left op right` holds, else `otherwise`. `op` is one of == != <= < >= >."""
    if op not in COMPARISONS.values():
        raise SpecError(f"`{op}` does not compare sizes; accepted: {' '.join(COMPARISONS.values())}")
    op, difference = normal_comparison(op, Dim.of(left) - Dim.of(right))
    return select(op, difference, Dim.of(then), Dim.of(otherwise))


def normal_comparison(op: str, difference: Dim) -> tuple[str, Dim]:
    """Returns the comparison `difference op 0` with op one of `==`, `!=`, `>=`."""
    match op:
        case "<=":
            return ">=", -difference
        case "<":
            return ">=", -difference - 1
        case ">":
            return ">=", difference - 1
        case _:
            return op, difference


def compare_with_zero(op: str, value: int) -> bool:
    """Whether `value op 0` holds; op is one of `==`, `!=`, `>=`."""
    return value >= 0 if op == ">=" else (value == 0) == (op == "==")


@lru_cache(MEMO)
def select(op: str, d: Dim, then: Dim, otherwise: Dim) -> Dim:
    """Returns `then` where `d op 0` holds, else `otherwise`; op is one of `==`, `!=`, `>=`.

    A comparison and its negation have one form: `d >= 0` with a nonnegative constant in d (else the two sizes swap), or
    `d == 0` with a positive first coefficient. Inside each size the comparison is decided. A select that equals a max
    or a min becomes one.
    """
    if op == "!=":
        op, then, otherwise = "==", otherwise, then
    if d.is_const:
        return then if compare_with_zero(op, d.const) else otherwise
    common = gcd(*(c for _, c in d.terms))
    if op == "==":
        if d.const % common:
            return otherwise
        common = common if d.terms[0][1] > 0 else -common
    d = make(tuple((monomial, c // common) for monomial, c in d.terms), d.const // common)
    if op == ">=" and d.const < 0:
        d, then, otherwise = -d - 1, otherwise, then
    then = _resolve_under(then, (d,) if op == ">=" else (d, -d), None)
    otherwise = _resolve_under(otherwise, (-d - 1,) if op == ">=" else (), d)
    scale, rest = _ratio(then - otherwise, d)
    if op == "==" and rest == 0:  # where the sizes differ, `otherwise` is chosen
        return otherwise
    if op == ">=" and rest is not None:
        if 0 <= rest <= scale:
            return extreme("max", (then, otherwise))
        if 0 <= -rest <= -scale:
            return extreme("min", (then, otherwise))
    return product((atom_of("select", op, (d, then, otherwise)),))


def _resolve_under(dim: Dim, known: tuple[Dim, ...], unequal: Dim | None) -> Dim:
    try:
        return resolve_decided(dim, known, unequal)
    except SpecError:  # no value under the condition, but it may have one elsewhere
        return dim


def _ratio(a: Dim, b: Dim) -> tuple[int, int | None]:
    """Returns the integers with `a == scale*b + rest`; rest is None if there are none. `b` is not constant."""
    if a.is_const:
        return 0, a.const
    if len(a.terms) == len(b.terms):
        scale = a.terms[0][1] // b.terms[0][1]
        if all(m == n and c == scale * d for (m, c), (n, d) in zip(a.terms, b.terms, strict=True)):
            return scale, a.const - scale * b.const
    return 0, None


# A size without a value: stands for a branch of a select that divides by zero after substitution.
_UNDEFINED = product((atom_of("floordiv", "", (constant(1), constant(0))),))


def select_value(atom: Atom, env: Mapping[str, Any]) -> Any:
    """Returns the value of a select for the variables' values `env`."""
    condition, then, otherwise = atom.args
    at = condition.evaluate(env)
    if type(at) is Dim:
        if at.terms:
            return select(atom.name, at, _value_or_undefined(then, env), _value_or_undefined(otherwise, env))
        at = at.const
    if isinstance(at, Integral):
        return (then if compare_with_zero(atom.name, int(at)) else otherwise).evaluate(env)
    return without_selects(product((atom,))).evaluate(env)  # JAX's dimensions have no select


def without_selects(dim: Dim) -> Dim:
    """Returns `dim` with every select expressed by max and min. It has a value where both sizes of each select have
    one."""
    if is_plain(dim):
        return dim
    return replace_atoms(dim, _without_select)


def _without_select(atom: Atom) -> Dim:
    if atom.op == "var":
        return product((atom,))
    args = [without_selects(arg) for arg in atom.args]
    if atom.op != "select":
        return with_arguments(atom, args)
    condition, then, otherwise = args
    chooser = _one_where_at_least_zero(condition)
    if atom.name == "==":
        chooser = chooser * _one_where_at_least_zero(-condition)
    return otherwise + (then - otherwise) * chooser


def _one_where_at_least_zero(d: Dim) -> Dim:
    return dim_min(dim_max(d + 1, 0), 1)


def _value_or_undefined(dim: Dim, env: Mapping[str, Any]) -> Dim:
    try:
        return Dim.of(dim.evaluate(env))
    except SpecError:
        return _UNDEFINED


def with_arguments(atom: Atom, args: Sequence[Dim]) -> Dim:
    """Returns the operation of `atom`, which must not be a variable, on other operands."""
    match atom.op:
        case "floordiv":
            return floordiv(args[0], args[1])
        case "ceildiv":
            return ceildiv(args[0], args[1])
        case "select":
            return select(atom.name, args[0], args[1], args[2])
        case _:
            return extreme(atom.op, tuple(args))


# --- deciding comparisons ---


def implied_comparison(op: str, d: Dim, known: Sequence[Dim]) -> bool | None:
    """Whether `d op 0` (op is `==` or `>=`) holds if all of `known` are >= 0; None if no single one decides it."""
    if d.is_const:
        return compare_with_zero(op, d.const)

    def above(dim: Dim) -> bool:
        return any(_follows(dim, other) for other in known)

    if op == ">=":
        return True if above(d) else False if above(-d - 1) else None
    if above(d) and above(-d):
        return True
    return False if above(d - 1) or above(-d - 1) else None


def _follows(dim: Dim, known: Dim) -> bool:
    """Whether `dim` is a multiple of `known` plus something >= 0."""
    if known.is_const or dim.is_const:
        return dim.is_const and dim.const >= 0
    scale, rest = _ratio(dim, known)
    return rest is not None and scale > 0 and rest >= 0


def resolve_decided(dim: Dim, known: Sequence[Dim], unequal: Dim | None = None) -> Dim:
    """Returns `dim` with each max, min and select resolved if it is decided by `known` >= 0 and `unequal` != 0.

    SpecError if `dim` divides by zero under these conditions.
    """
    if is_plain(dim):
        return dim
    return replace_atoms(dim, lambda atom: _resolve_atom(atom, known, unequal))


def _resolve_atom(atom: Atom, known: Sequence[Dim], unequal: Dim | None) -> Dim:
    if atom.op == "var":
        return product((atom,))
    if atom.op == "select":
        condition = resolve_decided(atom.args[0], known, unequal)
        truth = False if atom.name == "==" and condition is unequal else implied_comparison(atom.name, condition, known)
        if truth is not None:
            return resolve_decided(atom.args[1] if truth else atom.args[2], known, unequal)
        then, otherwise = (_resolve_under(arg, tuple(known), unequal) for arg in atom.args[1:])
        return select(atom.name, condition, then, otherwise)
    args = [resolve_decided(arg, known, unequal) for arg in atom.args]
    if atom.op in ("max", "min") and len(args) <= EXTREMES:
        args = undominated_arguments(atom.op, args, lambda gap: implied_comparison(">=", gap, known) is True)
    return with_arguments(atom, args)


def undominated_arguments(op: str, args: Sequence[Dim], nonnegative: Callable[[Dim], bool]) -> list[Dim]:
    """Returns the arguments of a max or min without those that another argument dominates."""
    kept: list[Dim] = []
    for arg in args:
        gap = (lambda x, y: x - y) if op == "max" else (lambda x, y: y - x)
        if any(nonnegative(gap(other, arg)) for other in kept):
            continue
        kept = [other for other in kept if not nonnegative(gap(arg, other))]
        kept.append(arg)
    return kept


# The functions that text may call. `select` gets the parts of its comparison and callables for the two sizes, so that
# with plain integers only the chosen size is computed.
FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "max": dim_max,
    "min": dim_min,
    "ceildiv": ceildiv,
    "select": lambda op, left, right, then, otherwise: dim_select(left, op, right, then(), otherwise()),
}
