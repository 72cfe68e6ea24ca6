"""Operators commute with index maps: one rule from the index equations for transposes, slices, rows taken at indices,
flips, paddings, joints, repetitions and shapes, through whatever is computed row by row or element by element.

A view goes towards inputs, where less is then computed or two views cancel; a map that makes elements goes towards
results; joined results of one function become the function of joined operands. Each proposal is predicted to cost less
and is proved equal for all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CONSTANT, Expr, postorder
from relax_eg.ir.heads import CORE
from relax_eg.ir.module import Function
from relax_eg.memo import Memo
from relax_eg.ops import api as op
from relax_eg.ops.record import TABLE, call, counts, movement_operators, site_of
from relax_eg.rules.checking.value_trials import moved_values
from relax_eg.rules.index_maps.inward import Inward, Undecided, is_join, is_padded, is_pointwise
from relax_eg.rules.index_maps.outward import mapped
from relax_eg.rules.index_maps.stacks import FEWEST, stacked
from relax_eg.rules.index_maps.views import AxisMap, IndexView, made_of, view_of, whole
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, schema
from relax_eg.rules.shared_parts import why_not_equal_over_shared
from relax_eg.shapes import Dim
from relax_eg.tir.functions import functions_with_trait
from relax_eg.traversal import leaves

_PROVING = 0.5  # limit: seconds of processor time of the proof of a form; most take a hundredth of it
_CHECKING = 10.0  # limit: seconds of processor time of the proof of a step of a derivation
_CHEAPER = 0.999  # limit: share of the cost as written below which a form of as many operators is proposed
# limit: operators of a form and of its value, down to what both have; a slice of two layers of a network has 76. Proofs
# of more mostly fail, and take a second.
_MOST_OPERATORS = 80
_MOST_CHOICES = 32  # limit: pairs of values between which one proposal chooses
_MOST_OPERANDS = 16  # limit: operands of nested uses of a function that are put in another order
_MOST_KNOWN = 1 << 14  # limit: values of which it is kept whether they follow from positions alone

_FREE = movement_operators("view", "repeat")
_SELECTIONS = movement_operators("select")
_SCATTERED = 2  # chosen: how much longer an element takes that is read at a computed position
_OPERATORS = frozenset(n for n, o in TABLE.items() if o.equations is not None and o.moves != "make")


def same_elements(e: Expr, queries: ProgramQueries) -> tuple[Expr, ...] | None:
    """an operator of values at other places is the operator's value at these places"""
    found: dict[Expr, None] = {}
    for form in _forms(e, queries):
        is_new = form is not e and form not in found and form.annotation == e.annotation
        if is_new and _gains(e, form, queries) and not _why_not_equal(e, form, _PROVING):
            found[form] = None
    return tuple(found) or None


def _forms(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    makers = (_outward, _associated) if is_pointwise(e) else (_inward, _outward, _joined, _without_padding)
    if e.op == "where" and all(x.op not in CORE for x in e.args[1:]):
        makers = (*makers, _chosen)
    for make in makers:
        try:
            yield from make(e, queries)
        except (RelaxEgError, Undecided):  # an operator that does not exist at all sizes
            continue


def _inward(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    view = view_of(e)
    if view is None or e.op in _FREE:
        return
    (x, *_) = e.args
    yield Inward(_never).at(x, view)
    yield Inward(lambda a: a is not x and len(queries.readers(a)) > 1).at(x, view)


def _never(e: Expr) -> bool:
    return False


def _outward(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    if is_pointwise(e) or view_of(e) is not None or is_padded(e) or TABLE[e.op].moves == "view":
        yield mapped(e).expression()


def _joined(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    if is_join(e):
        made = Inward(_never).joined(e.args, e.attr("axis"))
        yield made
        if is_join(made):
            yield from stacked(made.args, made.attr("axis"), queries.batched)


def _without_padding(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    """The operator of values before they are padded, for one that reduces the padded axes; the proof decides."""
    if TABLE[e.op].moves is None and any(map(is_padded, e.args)):
        yield call(e.op, tuple(a.args[0] if is_padded(a) else a for a in e.args), dict(e.attrs))


def _chosen(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    """The function of a choice for a choice between values of the function."""
    condition, x, y = e.args
    made = _choice_inside(condition, x, y, {})
    if made is not None:
        yield made


def _choice(condition: Expr, x: Expr, y: Expr, known: dict[tuple[Expr, Expr], Expr]) -> Expr:
    if x is y:
        return x
    if (x, y) not in known:
        known[x, y] = op.where(condition, x, y)
        made = _choice_inside(condition, x, y, known) if len(known) <= _MOST_CHOICES else None
        if made is not None:
            known[x, y] = made
    return known[x, y]


def _choice_inside(condition: Expr, x: Expr, y: Expr, known: dict[tuple[Expr, Expr], Expr]) -> Expr | None:
    """The choice between two values of one function as its value; None if they are none. With one condition for all
    elements, this is so of every function. `known`: the choices that were made of pairs of values."""
    if x.op != y.op or x.attrs != y.attrs or len(x.args) != len(y.args) or not x.args or x.op not in TABLE:
        return None
    xs, ys = x.args, y.args
    if not is_pointwise(x) and (
        condition.ndim or any(a.annotation != b.annotation for a, b in zip(xs, ys, strict=True))
    ):
        return None
    if _commutes(x.op) and (xs[0] is ys[1] or xs[1] is ys[0]):
        ys = ys[::-1]
    args = tuple(_choice(condition, a, b, known) for a, b in zip(xs, ys, strict=True))
    made = call(x.op, args, dict(x.attrs))
    return made if made.annotation == x.annotation == y.annotation else None


def _commutes(name: str) -> bool:
    return name in functions_with_trait("commutes")


# --- operands with fewer axes first ---


def _associated(e: Expr, queries: ProgramQueries) -> Iterator[Expr]:
    """The same operands of nested uses of one function, those that vary along fewer axes first."""
    if not _commutes(e.op) or any(r.op == e.op for r in queries.readers(e)) or all(a.op != e.op for a in e.args):
        return
    inner = leaves(e, lambda x: x.args if x.op == e.op else None, _MOST_OPERANDS)
    operands = [_narrow(a, e) for a in inner]
    groups: dict[frozenset[int], Expr] = {}
    for axes, a in operands:
        groups[axes] = call(e.op, (groups[axes], a)) if axes in groups else a
    if len(groups) == 1 or len(groups) == len(operands):
        return
    by_size = sorted(groups, key=len)
    made = groups[by_size[0]]
    for axes in by_size[1:]:
        made = call(e.op, (groups[axes], made))
    yield made


def _narrow(a: Expr, e: Expr) -> tuple[frozenset[int], Expr]:
    """The axes of `e` along which an operand varies, and the operand with size 1 along the others."""
    view = view_of(a)
    off = e.ndim - a.ndim
    axes = {i for i, d in enumerate(a.shape) if d != 1}
    if view is not None and (repeated := axes - {m.out for m in view.maps}):
        axes -= repeated
        shape = tuple(Dim.of(1) if i in repeated else d for i, d in enumerate(view.shape))
        a = made_of(IndexView(view.maps, shape), a.args[0])
    return frozenset(i + off for i in axes), a


# --- cost ---


def _gains(e: Expr, form: Expr, queries: ProgramQueries) -> bool:
    """Whether a form is predicted to cost less than `e`. What others read too is paid in part."""
    old, new = set(postorder((e,))), set(postorder((form,)))
    readers = old - new
    before = 0.0
    for x in readers:
        all_of_x = queries.readers(x) if x is not e else ()
        share = sum(r in readers for r in all_of_x) / len(all_of_x) if all_of_x else 1.0
        before += share * _cost(x, queries)
    after = sum(_cost(x, queries) for x in new - old)
    return after < (before if len(new - old) < len(readers) else _CHEAPER * before)


def _cost(e: Expr, queries: ProgramQueries) -> float:
    if e.op in _FREE or not e.args or e.op not in TABLE or not isinstance(e.annotation, Tensor) or _is_known(e):
        return 0.0
    found = counts(site_of(e))
    moved = queries.extent(found.bytes_read) + queries.extent(found.bytes_written)
    contracts = TABLE[e.op].kernel is not None and TABLE[e.op].kernel != "copy"
    if e.op in _SELECTIONS:
        moved *= _SCATTERED
    return queries.seconds(queries.extent(found.flops), moved, contracts)


_known_values = Memo[Expr, bool](_MOST_KNOWN)


def _is_known(e: Expr) -> bool:
    """Whether `e` follows from positions and numbers alone, which are computed where they are read."""
    for x in postorder((e,), stop=_known_values.__contains__):
        if x not in _known_values:
            is_number = x.op == CONSTANT and not x.ndim
            _known_values[x] = is_number or (x.op in TABLE and all(_known_values.get(a, False) for a in x.args))
    return _known_values.get(e, False)


# --- proofs ---


def _why_not_equal(left: Expr, right: Expr, seconds: float) -> str:
    """Why two expressions are not shown equal for all values of what they share; empty if they are. Many joined parts
    are proved one by one: the proof of a join grows faster than the number of its parts."""
    if not is_join(left) or len(left.args) < FEWEST:
        return why_not_equal_over_shared(left, right, seconds, most=_MOST_OPERATORS)
    axis, start = left.attr("axis"), Dim.of(0)
    for part in left.args:
        maps, shape = list(whole(right.shape).maps), list(right.shape)
        maps[axis], shape[axis] = AxisMap(axis, start), part.shape[axis]
        of_part = made_of(IndexView(tuple(maps), tuple(shape)), right)
        why = why_not_equal_over_shared(part, of_part, seconds, most=_MOST_OPERATORS)
        if why:
            return why
        start = start + part.shape[axis]
    return ""


def _prove(left: Expr, right: Expr, facts: FactsOf, functions: Mapping[str, Function]) -> str:
    return _why_not_equal(left, right, _CHECKING)


index_maps = RuleSet(
    "index_maps",
    schemas=(
        schema(
            same_elements, "reassociate", ("index_maps",), _OPERATORS, (moved_values,), asks_again=True, prove=_prove
        ),
    ),
)
