"""What comes out of reductions, over any axes of values of any rank.

Laws by what records say of operators and scalar functions:
- scales and shifts that are constant along reduced axes come out, cancel in what is centred, and meet in quotients;
- monotone functions come out of extremes, and a reduction's own operator is exchanged with it;
- elements that are only moved are reduced where they are: copies are counted, parts are reduced one by one.

Each step is a lemma that is proved for all sizes and values before anything is proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from relax_eg.dtypes import is_float
from relax_eg.errors import RelaxEgError
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import Expr, var
from relax_eg.ops import api as op
from relax_eg.ops.facts import FACTS
from relax_eg.ops.partial_annotations import is_known_tensor
from relax_eg.ops.record import TABLE, call, movement_operators
from relax_eg.ops.regroup import groups
from relax_eg.rules.checking.value_trials import reductions as trials
from relax_eg.rules.checking.value_trials import searches
from relax_eg.rules.facts.fact_rules import NONEMPTY
from relax_eg.rules.pointwise.terms import constant_in, equation_of
from relax_eg.rules.reductions.forms import aligned, expression, extents, narrowed, number_in, settled, varies, viewed
from relax_eg.rules.reductions.proofs import Lemma, why_not
from relax_eg.rules.reductions.reading import FormReader, may_cancel
from relax_eg.rules.rule_set import RuleSet
from relax_eg.rules.schemas import FactsOf, ProgramQueries, schema
from relax_eg.rules.signature import Numerics
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Read, Scalar
from relax_eg.tir.functions import functions_with_trait

Axes = tuple[int, ...]
_ONE = Dim.of(1)
_VIEWS = movement_operators("view")
_JOINS = movement_operators("join")
_DEEPEST = 8  # limit: steps by which one reduction becomes others

# given: the operator that reduces two values
_OPERATOR: dict[str, Callable[[Expr, Expr], Expr]] = {
    "sum": op.add, "prod": op.multiply, "max": op.maximum, "min": op.minimum, "any": op.logical_or,
    "all": op.logical_and,
}  # fmt: skip
# given: the reduction that an order-reversing function makes of another
_OTHER = {"max": "min", "min": "max", "any": "all", "all": "any"}
# Reductions that copies of a value do not change.
_IDEMPOTENT = frozenset(_OTHER)


@dataclass(frozen=True)
class _Part:
    """The reduction `kind` of `value` over `axes`."""

    kind: str
    value: Expr
    axes: Axes

    @property
    def expression(self) -> Expr:
        return call(self.kind, (self.value,), {"axes": self.axes, "keepdims": False}) if self.axes else self.value


@dataclass(frozen=True)
class _Step:
    """A reduction as a combination of others. `lemma`: why, if not for the reason that the combination says."""

    parts: tuple[_Part, ...]
    combine: Callable[[Sequence[Expr]], Expr]
    lemma: Lemma | None = None


def _pushed(
    facts_of: FactsOf, kind: str, x: Expr, axes: Axes, depth: int = _DEEPEST
) -> tuple[Expr, tuple[Lemma, ...]] | None:
    """What remains of a reduction, without its axes, and the lemmas that say so; None if it stays as it is."""
    if depth == 0 or x.op not in TABLE or not x.args:
        return None
    for law in _LAWS:
        try:
            step = law(kind, x, axes)
        except RelaxEgError:  # an operator that takes no operands of these shapes
            continue
        if step is None:
            continue
        plain = [p.expression for p in step.parts]
        whole = _Part(kind, x, axes).expression
        lemma = step.lemma or Lemma(whole, step.combine(plain), tuple(dict.fromkeys(p.value for p in step.parts)))
        if why_not((lemma,), facts_of, "reassociate"):
            continue
        found = [_pushed(facts_of, p.kind, p.value, p.axes, depth - 1) if p.axes else None for p in step.parts]
        values = [p if f is None else f[0] for p, f in zip(plain, found, strict=True)]
        return step.combine(values), (lemma, *(m for f in found if f is not None for m in f[1]))
    return None


# --- what only moves ---


def _of_one(kind: str, x: Expr, axes: Axes) -> _Step | None:
    """Over an axis of size 1 nothing is reduced."""
    rest = tuple(a for a in axes if x.shape[a] is not _ONE)
    if len(rest) == len(axes):
        return None
    shape = _without(x.shape, axes)
    return _Step((_Part(kind, x, rest),), lambda r: viewed(r[0], shape))


def _of_copies(kind: str, x: Expr, axes: Axes) -> _Step | None:
    v = narrowed(x)
    if v is x:
        return None
    first = x.ndim - v.ndim
    inner = aligned(v.shape, x.ndim)
    rest = tuple(a - first for a in axes if inner[a] is not _ONE)
    count = extents((a for a in axes if inner[a] is _ONE), x.shape)
    if kind not in (*_IDEMPOTENT, "sum"):
        return None
    small, shape = _without(inner, axes), _without(x.shape, axes)

    def combine(reduced: Sequence[Expr]) -> Expr:
        made = viewed(reduced[0], small)
        made = made if kind != "sum" or count is _ONE else op.multiply(made, op.astype(op.dim_value(count), made.dtype))
        return made if made.shape == shape else op.broadcast_to(made, shape)

    return _Step((_Part(kind, v, rest),), combine)


def _of_view(kind: str, x: Expr, axes: Axes) -> _Step | None:
    """A reshape that merges or splits reduced axes among themselves, and others among themselves."""
    if x.op not in _VIEWS:
        return None
    (y,) = x.args
    outer = [a for a in range(x.ndim) if x.shape[a] is not _ONE]
    inner = [a for a in range(y.ndim) if y.shape[a] is not _ONE]
    found = groups([y.shape[a] for a in inner], [x.shape[a] for a in outer])
    if found is None:
        return None
    reduced: list[int] = []
    for of_y, of_x in found:
        gone = {outer[i] in axes for i in of_x}
        if len(gone) > 1:
            return None
        if gone == {True}:
            reduced += [inner[i] for i in of_y]
    shape = _without(x.shape, axes)
    return _Step((_Part(kind, y, tuple(reduced)),), lambda r: _reshaped(r[0], shape))


def _of_order(kind: str, x: Expr, axes: Axes) -> _Step | None:
    (y, *others), order = x.args, dict(x.attrs).get("axes")
    if others or order is None:
        return None
    if x.op == "permute_dims":
        inner = tuple(sorted(order[a] for a in axes))
        kept = [a for a in order if a not in inner]
        back = tuple(sorted(kept).index(a) for a in kept)
        return _Step(
            (_Part(kind, y, inner),), lambda r: r[0] if back == tuple(range(len(back))) else op.permute_dims(r[0], back)
        )
    if x.op == "flip" and any(a in axes for a in order):
        still = tuple(a - sum(b < a for b in axes) for a in order if a not in axes)
        return _Step((_Part(kind, y, axes),), lambda r: op.flip(r[0], still) if still else r[0])
    return None


def _of_parts(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if x.op not in _JOINS or x.attr("axis") not in axes or kind not in _OPERATOR:
        return None
    whole = _whole(x)
    if whole is not None:
        y, lemma = whole[0], _in_any_order(kind, x, axes, whole[1])
        return _Step((_Part(kind, y, axes),), lambda r: r[0], lemma)
    if len(x.args) > _MOST_PARTS:
        return None
    return _Step(tuple(_Part(kind, a, axes) for a in x.args), lambda r: _folded(kind, r))


_MOST_PARTS = 4  # limit: parts that are reduced one by one, since each is a kernel of its own


def _whole(x: Expr) -> tuple[Expr, list[int]] | None:
    """The value whose slices a concatenation puts in another order, and the places of the slices in it."""
    axis: int = x.attr("axis")
    y = x.args[0].args[0] if x.args[0].args else x
    if y.annotation != x.annotation or any(a.args != (y,) or "begin" not in dict(a.attrs) for a in x.args):
        return None
    ends: dict[Dim, tuple[int, Dim]] = {}
    for i, a in enumerate(x.args):
        begin, end = a.attr("begin"), a.attr("end")
        others = [k for k in range(x.ndim) if k != axis]
        if any(s != 1 for s in a.attr("strides")) or any(begin[k] != 0 or end[k] != y.shape[k] for k in others):
            return None
        ends[begin[axis]] = i, end[axis]
    places, at = [0] * len(x.args), Dim.of(0)
    for n in range(len(x.args)):
        if at not in ends:
            return None
        i, at = ends.pop(at)
        places[i] = n
    return (y, places) if at == y.shape[axis] else None


def _in_any_order(kind: str, x: Expr, axes: Axes, places: Sequence[int]) -> Lemma:
    """The lemma that the order of slices does not matter, for slices of any lengths."""
    axis: int = x.attr("axis")
    lengths = [Dim.var(f"part{i}") for i in range(len(places))]
    shape = [sum(lengths, Dim.of(0)) if a == axis else n for a, n in enumerate(x.shape)]
    y = var("whole", Tensor(tuple(shape), x.dtype))
    slices: list[Expr] = []
    for n in places:
        begin = sum(lengths[:n], Dim.of(0))
        starts = [begin if a == axis else Dim.of(0) for a in range(x.ndim)]
        slices.append(
            op.strided_slice(y, starts, [begin + lengths[n] if a == axis else m for a, m in enumerate(shape)])
        )
    return Lemma(_Part(kind, op.concat(slices, axis), axes).expression, _Part(kind, y, axes).expression, (y,))


def _of_padded(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if x.op != "pad" or kind not in _OPERATOR:
        return None
    y, value = x.args
    low, high = x.attr("low"), x.attr("high")
    padded = [a for a in range(x.ndim) if low[a] != 0 or high[a] != 0]
    if any(n != 0 for n in x.attr("interior")) or not set(padded) <= set(axes):
        return None
    number = constant_in(value)
    neutral = number is not None and kind == "sum" and (m := number_in(number)) is not None and not m.number

    def combine(reduced: Sequence[Expr]) -> Expr:
        if neutral:
            return reduced[0]
        if kind == "sum":
            count = op.astype(op.dim_value(extents(axes, x.shape) - extents(axes, y.shape)), x.dtype)
            return op.add(reduced[0], op.multiply(value, count))
        return _OPERATOR[kind](reduced[0], value)

    return None if kind == "prod" else _Step((_Part(kind, y, axes),), combine)


# --- what is computed ---


def _of_reduction(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if x.op != kind:
        return None
    (y,) = x.args
    inner: Axes = x.attr("axes")
    kept = range(y.ndim) if x.attr("keepdims") else [a for a in range(y.ndim) if a not in inner]
    both = tuple(sorted({*inner, *(kept[a] for a in axes)}))
    shape = _without(x.shape, axes)
    return _Step((_Part(kind, y, both),), lambda r: viewed(r[0], shape))


def _of_monotone(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if kind not in ("max", "min") or not is_float(x.dtype):
        return None
    found = equation_of(x.op, tuple(a.dtype for a in x.args), x.attrs)
    varying = [i for i, a in enumerate(x.args) if constant_in(a) is None]
    if found is None or len(varying) != 1 or not is_float(x.args[varying[0]].dtype):
        return None
    (at,) = varying
    y = x.args[at]
    direction = _direction(found, TABLE[x.op].parameters[at])
    if not direction or y.shape != x.shape:
        return None
    constants = [a if (c := constant_in(a)) is None else c for a in x.args]

    def combine(reduced: Sequence[Expr]) -> Expr:
        return call(x.op, tuple(reduced[0] if i == at else c for i, c in enumerate(constants)), dict(x.attrs))

    return _Step((_Part(kind if direction > 0 else _OTHER[kind], y, axes),), combine)


def _direction(s: Scalar, name: str) -> int:
    """1 where a function of one buffer may increase with it on some domain, -1 where it may decrease, else 0."""
    if isinstance(s, Read):
        return int(s.buffer == name)
    if not isinstance(s, Apply):
        return 0
    inner = [_direction(a, name) for a in s.args]
    if len(inner) == 1:
        up = any(s.fn in functions_with_trait(t) for t in ("increasing", "rises"))
        down = any(s.fn in functions_with_trait(t) for t in ("decreasing", "falls"))
        return inner[0] if up else -inner[0] if down else 0
    if s.fn == "divide":
        return 0 if inner[0] else -inner[1]
    return sum(inner) if s.fn in ("maximum", "minimum") else 0


def _of_own_operator(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if len(x.args) != 2 or kind == "sum" or kind not in _OPERATOR or x.op != _OPERATOR[kind](*x.args).op:
        return None
    shape = _without(x.shape, axes)
    parts: list[_Part] = []
    shapes: list[tuple[Dim, ...]] = []
    for a in x.args:
        z = narrowed(a)
        inner = aligned(z.shape, x.ndim)
        if kind not in _IDEMPOTENT and inner != x.shape:
            return None
        first = x.ndim - z.ndim
        parts.append(_Part(kind, z, tuple(i - first for i in axes if i >= first and inner[i] is not _ONE)))
        shapes.append(_without(inner, axes))

    def combine(reduced: Sequence[Expr]) -> Expr:
        made = _OPERATOR[kind](*(viewed(r, s) for r, s in zip(reduced, shapes, strict=True)))
        return made if made.shape == shape else op.broadcast_to(made, shape)

    return _Step(tuple(parts), combine)


def _of_not(kind: str, x: Expr, axes: Axes) -> _Step | None:
    if x.dtype != "bool" or len(x.args) != 1 or x.op != op.logical_not(x.args[0]).op:
        return None
    return _Step((_Part(_OTHER[kind], x.args[0], axes),), lambda r: op.logical_not(r[0]))


_LAWS = (
    _of_one, _of_copies, _of_view, _of_order, _of_parts, _of_padded, _of_reduction, _of_monotone, _of_own_operator,
    _of_not,
)  # fmt: skip


def _without(shape: Sequence[Dim], axes: Axes) -> tuple[Dim, ...]:
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _reshaped(e: Expr, shape: tuple[Dim, ...]) -> Expr:
    long = [[n for n in s if n is not _ONE] for s in (e.shape, shape)]
    return viewed(e, shape) if long[0] == long[1] else op.reshape(e, shape)


def _folded(kind: str, values: Sequence[Expr]) -> Expr:
    made, *rest = values
    for v in rest:
        made = _OPERATOR[kind](made, v)
    return made


# --- the schemas ---

_FACTS = frozenset((*FACTS.keys() & {"finite", "nonnegative", "nonzero", "positive"}, NONEMPTY))
_REDUCTIONS = frozenset(_OPERATOR)
_CANCELS = frozenset(("subtract", "divide"))


def out_of_reductions(e: Expr, queries: ProgramQueries) -> Expr | None:
    """what is constant, monotone or only moved comes out of reductions"""
    return next(_forms(e, queries.facts, "reassociate"), None)


def out_of_reductions_over_reals(e: Expr, queries: ProgramQueries) -> Expr | None:
    """what is constant, monotone or only moved comes out of reductions, however it rounds"""
    return next(_forms(e, queries.facts, "approximate"), None)


def _forms(e: Expr, facts_of: FactsOf, numerics: Numerics) -> Iterator[Expr]:
    if not is_known_tensor(e):
        return
    facts_of = partial(_facts, facts_of)
    push = partial(_pushed, facts_of)
    if (e.op in _REDUCTIONS and not is_float(e.dtype)) or e.op == "prod":
        found = push(e.op, e.args[0], e.attr("axes"))
        if found is not None:
            yield viewed(found[0], e.shape)
        return
    if not is_float(e.dtype) or (e.op in _CANCELS and not may_cancel(e)):
        return
    reading = FormReader(facts_of, push).read(e)
    if reading.gains:
        made = expression(settled(reading.form), e.shape, e.dtype)
        if made is not None and not why_not(reading.lemmas, facts_of, numerics):
            yield made


def _facts(facts_of: FactsOf, e: Expr) -> frozenset[str]:
    return facts_of(e) & _FACTS


def position_of_increasing(e: Expr, queries: ProgramQueries) -> Expr | None:
    """the extreme of an increasing function is where the extreme of its argument is"""
    facts_of = partial(_facts, queries.facts)
    kind, axis = e.op, e.attr("axis")
    reader = FormReader(facts_of, partial(_pushed, facts_of))
    z, lemmas = e.args[0], list[Lemma]()
    for _ in range(_DEEPEST):
        inner = _increasing(z)
        if inner is not None:
            z = inner
            continue
        if not is_float(z.dtype):
            break
        reading = reader.read(z)
        form = reading.form
        if any(varies(f, (axis,), z.ndim) for t in (form.scale, *form.shifts) for f in t.values):
            form = settled(form)
        if form.core is None or form.core is z or form.core.shape != z.shape:
            break
        outside = (*form.scale.powers, *((f, 0) for t in form.shifts for f in t.values))
        if not all(_comes_out(f, k, axis, z.ndim, facts_of) for f, k in outside) or not form.scale.number:
            break
        kind = kind if form.scale.number > 0 else _OTHER_POSITION[kind]
        lemmas += reading.lemmas
        z = form.core
    if z is e.args[0] or why_not(lemmas, facts_of, "approximate"):
        return None
    return call(kind, (z,), dict(e.attrs))


# given: the position that a decreasing function makes of another
_OTHER_POSITION = {"argmax": "argmin", "argmin": "argmax"}


def _comes_out(f: Expr | Dim, k: int, axis: int, rank: int, facts_of: FactsOf) -> bool:
    """Whether elements along an axis are in the same order with a power of `f` in their scale, or with `f` among their
    shifts where `k` is 0."""
    return isinstance(f, Dim) or (not varies(f, (axis,), rank) and ("positive" if k else "finite") in facts_of(f))


def _increasing(e: Expr) -> Expr | None:
    """The operand of which `e` is a strictly increasing function."""
    if len(e.args) != 1 or not is_float(e.dtype) or e.args[0].dtype != e.dtype:
        return None
    found = equation_of(e.op, (e.dtype,), e.attrs)
    is_strict = isinstance(found, Apply) and len(found.args) == 1 and isinstance(found.args[0], Read) and all(
        found.fn in functions_with_trait(t) for t in ("increasing", "smooth")
    )  # fmt: skip
    return e.args[0] if is_strict else None


_schema = partial(schema, tags=("reductions",), asks_again=True, facts=_FACTS)
reductions = RuleSet(
    "reductions",
    schemas=(
        _schema(out_of_reductions, "reassociate", operators=_REDUCTIONS | _CANCELS, trials=(trials,)),
        _schema(out_of_reductions_over_reals, "approximate", operators=_REDUCTIONS | _CANCELS, trials=(trials,)),
        _schema(position_of_increasing, "approximate", operators=_OTHER_POSITION, trials=(searches,)),
    ),
)
