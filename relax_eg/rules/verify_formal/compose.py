"""Makes one scalar term for an element of a program, by substituting the operators' index equations into one another.

The term reads only pattern variables, each index is a `Dim`, and all bound variables are distinct. An index that
depends on data becomes an *opaque* variable. `Composer.opaque` holds its definition, a scalar term; equal definitions
have one variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from relax_eg.dtypes import kind, names_where
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.expr import CALL_TIR, CONSTANT, TUPLE_GET, VAR, Expr, constant_value, own_dims, postorder
from relax_eg.ir.heads import CORE
from relax_eg.ops.record import TABLE, definition_of, movement_operators, position_promises, program_of, site_of
from relax_eg.rules.checking.samples import size_preconditions
from relax_eg.rules.verify_formal.guards import GuardLiteral, at_least, guard, not_zero
from relax_eg.shapes import Dim, dim_max, dim_min
from relax_eg.shapes.interval import ANY, Interval, interval_of
from relax_eg.shapes.relation import divisors_of
from relax_eg.tir.expr import (
    Apply,
    Cast,
    Const,
    Index,
    IndexValue,
    Read,
    Reduce,
    Scalar,
    Select,
    is_loop,
    loop,
    walk,
)
from relax_eg.tir.program import dims_of
from relax_eg.traversal import reached

ZERO = Dim.of(0)
ONE = Dim.of(1)
# Sizes and positions are assumed to fit these dtypes; results computed from them are assumed to fit only the wide one.
_INDEX_DTYPES = names_where(lambda d: d.is_integer and d.bits >= 32)
_WIDE = "int64"
_NEAR = 2**20  # limit: constant that is added to or subtracted from a position: no axis is that long

# What is compared with 0, and whether the comparison holds if that does.
_COMPARED = {"less": (">=", False), "greater_equal": (">=", True), "equal": ("==", True), "not_equal": ("==", False)}
# The comparison by which the first of two operands is the extreme, and that by which the second is.
_EXTREMES = {"maximum": ("greater_equal", "less_equal"), "minimum": ("less_equal", "greater_equal")}
_MIRRORED = {"greater": "less", "less_equal": "greater_equal"}
_DATA = "data"  # stands for what depends on data

Reader = Callable[[str, tuple[Dim, ...], str], Scalar]


class Unsupported(Exception):
    """Raised if a program cannot be expressed or a step cannot be made; the proof ends as unknown."""


class Composer:
    """Makes terms. One composer serves both sides of an instance, so that they share names of bound and opaque
    variables.

    - `shared_names`: names of expressions that are not expanded; reads of these names stand for their elements.
    - `claims`: facts of matrices and rows that pattern variables have; terms are made under them.
    - `opaque`: the definition of each opaque variable.
    - `constants`: the values of the constant tensors that terms read, by the names of these reads.
    """

    def __init__(
        self, shared_names: Mapping[Expr, str] | None = None, claims: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self.shared_names = dict(shared_names or {})
        self.claims = dict(claims or {})
        self.opaque: dict[str, Scalar] = {}
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[Scalar, str] = {}
        self._constant_names: dict[Expr, str] = {}
        self._count = 0
        self._natural: set[str] = set()  # loop variables that are not negative
        self._extents: dict[str, Dim] = {}  # by loop variable that is below it
        self._memo: dict[tuple[Expr, int, tuple[Dim, ...]], Scalar] = {}

    def fresh(self, prefix: str = "v") -> Dim:
        self._count += 1
        return loop(f"{prefix}{self._count}")

    def element(self, e: Expr, at: Sequence[Dim], output: int = 0) -> Scalar:
        """Returns element `at` of `e`, or of its result number `output`. `at` are positions in it, and loop variables
        in `at` are not negative."""
        self._natural.update(v for d in at for v in d.variables)
        if isinstance(e.annotation, Tensor):
            self._extents.update((str(d), n) for d, n in zip(at, e.shape, strict=True) if is_loop(str(d)))
        return self._element_at(e, at, output)

    def _element_at(self, e: Expr, at: Sequence[Dim], output: int = 0) -> Scalar:
        key = (e, output, tuple(at))
        if key not in self._memo:
            self._memo[key] = self._element(e, tuple(at), output)
        return self._memo[key]

    def _element(self, e: Expr, at: tuple[Dim, ...], output: int) -> Scalar:
        if e.op == VAR:
            return claimed_element(e, at, self.claims.get(str(e.attr("name")), frozenset()))
        if e.op == "argmax" and (position := self._position(e, at)) is not None:
            return position
        if e in self.shared_names:
            return Read(self.shared_names[e], at, e.dtype)
        if e.op == CONSTANT:
            return self._constant(e, at)
        if e.op == TUPLE_GET and e.args[0].op == VAR:  # a field of a parameter
            return Read(f"{e.args[0].attr('name')}[{e.attr('index')}]", at, e.dtype)
        if e.op == TUPLE_GET:
            return self._element_at(e.args[0], at, e.attr("index"))
        if e.op in CORE and e.op != CALL_TIR:
            raise Unsupported(e.op)
        if _promises_unknown(e):
            raise Unsupported(f"a promise of {e.op}")
        made = program_of(site_of(e)) or definition_of(site_of(e))
        if made is None:
            raise Unsupported(f"{e.op} has no index equations")
        inputs = {b.name: a for b, a in zip(made.inputs, e.args, strict=True)} if made.inputs else {}
        stages = {s.output.name: s for s in made.stages}

        def read(name: str, indices: tuple[Dim, ...], dtype: str) -> Scalar:
            if name in inputs:
                return self._element_at(inputs[name], indices)
            s = stages[name]
            env = {next(iter(v.variables)): i for v, i in zip(s.indices, indices, strict=True)}
            return self.translate(s.value, env, read)

        name = made.outputs[output]
        return read(name, at, made.buffers[name].dtype)

    def _constant(self, e: Expr, at: tuple[Dim, ...]) -> Scalar:
        """Returns an element of a constant: a number where its place is known."""
        value = constant_value(e)
        if not value.ndim:
            return Const(value.item(), e.dtype)
        if e not in self._constant_names:
            if kind(e.dtype) != "f" or not np.all(np.isfinite(value)):
                raise Unsupported("a constant tensor")
            self._constant_names[e] = f"constant {len(self.constants)}"
            self.constants[self._constant_names[e]] = value
        name = self._constant_names[e]
        number = self.number_at(name, at)
        return Read(name, at, e.dtype) if number is None else Const(number, e.dtype)

    def number_at(self, name: str, at: Sequence[Dim]) -> float | None:
        """Returns the element of a constant at a known place; None for another place or another tensor."""
        value = self.constants.get(name)
        if value is None or not all(d.is_const and 0 <= d.value < n for d, n in zip(at, value.shape, strict=True)):
            return None
        return float(value[tuple(d.value for d in at)])

    def _position(self, e: Expr, at: tuple[Dim, ...]) -> Scalar | None:
        """Returns the position of the one in a one-hot row; None for any other argmax."""
        (x,) = e.args
        last = e.attr("axis") == x.ndim - 1 and not e.attr("keepdims") and e.attr("dtype") == _PLACE
        if x.op != VAR or not last or "one_hot" not in self.claims.get(str(x.attr("name")), frozenset()):
            return None
        return _place_of_one(x, at)

    def translate(self, s: Scalar, env: Mapping[str, Dim], read: Reader) -> Scalar:
        """Returns `s` with its loop variables replaced by `env` and its reads replaced by `read`."""
        if isinstance(s, Const):
            return s
        if isinstance(s, Index):
            return Index(self.replaced(s.dim, env), s.dtype)
        if isinstance(s, Read):
            at = tuple(self._index(i, env, read) for i in s.indices)
            return read(s.buffer, at, s.dtype)
        if isinstance(s, Apply):
            args = tuple(self.translate(a, env, read) for a in s.args)
            if s.fn in _EXTREMES:
                for i, fn in enumerate(_EXTREMES[s.fn]):
                    if self._decided(Apply(fn, args)):
                        return args[i]
            return Apply(s.fn, args)
        if isinstance(s, Cast):
            return Cast(self.translate(s.arg, env, read), s.dtype)
        if isinstance(s, Select):
            cond = self.translate(s.cond, env, read)
            chosen = self._decided(cond)
            if chosen is not None:
                return self.translate(s.then if chosen else s.other, env, read)
            return Select(cond, self.translate(s.then, env, read), self.translate(s.other, env, read))
        assert isinstance(s, Reduce)
        inner = dict(env)
        over: list[tuple[Dim, Dim]] = []
        for v, extent in s.over:
            (name,) = v.variables
            size = self.replaced(extent, env)
            # An axis of one element has index 0. Reductions to positions keep such axes, because it matters for them
            # whether axes are empty.
            if size is ONE and not s.kind.startswith("arg"):
                inner[name] = ZERO
                continue
            inner[name] = self.fresh()
            self._natural.update(inner[name].variables)
            self._extents[str(inner[name])] = size
            over.append((inner[name], size))
        body = self.translate(s.body, inner, read)
        return Reduce(s.kind, tuple(over), body) if over else body

    def _index(self, i: IndexValue, env: Mapping[str, Dim], read: Reader) -> Dim:
        return self.replaced(i, env) if isinstance(i, Dim) else self.as_dim(self.translate(i, env, read))

    def _decided(self, cond: Scalar) -> bool | None:
        """Returns whether a comparison of positions holds at all positions; None if it depends on them, or on data.

        Sizes and the loops of results and reductions are not negative. A variable that normalization makes may be, and
        so may an opaque one."""
        if not isinstance(cond, Apply) or len(cond.args) != 2:
            return None
        a, b = (index_dim(x, lambda _: _DATA) for x in cond.args)
        fn = cond.fn
        if fn in _MIRRORED:
            fn, a, b = _MIRRORED[fn], b, a
        if fn not in _COMPARED or a is None or b is None or _DATA in a.variables | b.variables:
            return None
        op, holds = _COMPARED[fn]
        low, high = self._interval(a - b)
        if op == ">=":
            known = True if low is not None and low >= 0 else False if high is not None and high < 0 else None
        else:
            known = True if low == high == 0 else False if (low or 0) > 0 or (high or 0) < 0 else None
        return None if known is None else known == holds

    def _interval(self, d: Dim) -> Interval:
        def bounds(name: str) -> Interval:
            return (0, None) if name in self._natural or not is_loop(name) else ANY

        low, high = interval_of(d, bounds)
        if low is None:
            low, _ = interval_of(self._extreme(d, -1), bounds)
        if high is None:
            _, high = interval_of(self._extreme(d, 1), bounds)
        return low, high

    def _extreme(self, d: Dim, sign: int) -> Dim:
        """An upper bound of `d` if `sign` is 1, a lower bound if it is -1: variables that increase the value in this
        direction have their largest value."""
        for v in sorted(d.variables & self._extents.keys()):
            step = d.substitute({v: Dim.var(v) + 1}) - d
            if step.is_const and step.value * sign > 0:
                d = d.substitute({v: self._extents[v] - 1})
        return d

    def as_dim(self, s: Scalar) -> Dim:
        """Returns the integer `s` as a Dim, with opaque variables for the parts that depend on data."""
        found = index_dim(s, self.name_of)
        return Dim.var(self.name_of(s)) if found is None else found

    def name_of(self, s: Scalar) -> str:
        """Returns the opaque variable that stands for `s`."""
        if s not in self._names:
            (name,) = self.fresh("o").variables
            self._names[s], self.opaque[name] = name, s
        return self._names[s]

    def free(self, d: Dim) -> frozenset[str]:
        """Returns the variables of `d`, including those in definitions of opaque ones."""
        return self.closure(d.variables)

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """Returns `names` and the variables in the definitions of the opaque ones among them."""

        def inside(name: str) -> list[str]:
            terms = walk(self.opaque[name]) if name in self.opaque else ()
            return [v for t in terms for d in dims_of(t) for v in d.variables]

        return frozenset(reached(names, inside))

    def replaced(self, d: Dim, env: Mapping[str, Dim]) -> Dim:
        """Returns `d` with variables replaced, also in the definitions of its opaque ones."""
        mine: dict[str, Dim] = {}
        for n in d.variables:
            if n in env:
                mine[n] = env[n]
            elif n in self.opaque and self.closure((n,)) & env.keys():
                mine[n] = self.as_dim(self.renamed(self.opaque[n], env))
        return d.substitute(mine) if mine else d

    def renamed(self, s: Scalar, env: Mapping[str, Dim]) -> Scalar:
        """Returns `s` with its free variables replaced."""
        return self.translate(s, env, lambda name, at, dtype: Read(name, at, dtype))


POSITION = "the place of the one of "
_PLACE = "int32"


def _place_of_one(e: Expr, at: tuple[Dim, ...]) -> Scalar:
    return Read(f"{POSITION}{e.attr('name')}", at, _PLACE)


def claimed_element(e: Expr, at: tuple[Dim, ...], claims: frozenset[str]) -> Scalar:
    """Returns element `at` of a pattern variable that has the facts `claims`."""
    if "one_hot" in claims:
        here = Apply("equal", (Index(at[-1], _PLACE), _place_of_one(e, at[:-1])))
        return Cast(here, e.dtype)
    if "symmetric" in claims:
        at = (*at[:-2], *sorted(at[-2:], key=Dim.sort_key))
    read = Read(str(e.attr("name")), at, e.dtype)
    rows, columns = (Index(i) for i in at[-2:]) if len(at) >= 2 else (None, None)
    if rows is None or columns is None:
        return read
    zero_ = Const(0.0, e.dtype)
    if "diagonal" in claims:
        return Select(Apply("equal", (rows, columns)), read, zero_)
    if "lower_triangular" in claims:
        return Select(Apply("less_equal", (columns, rows)), read, zero_)
    if "upper_triangular" in claims:
        return Select(Apply("less_equal", (rows, columns)), read, zero_)
    return read


_NEUTRAL = {"add": 0, "multiply": 1}  # given: arithmetic


def index_dim(s: Scalar, name_of: Callable[[Scalar], str]) -> Dim | None:
    """Returns the integer term `s` as a Dim if that is exact, with reads as opaque variables; else None."""
    if isinstance(s, Const):
        return Dim.of(int(s.value)) if kind(s.dtype) in "iu" and isinstance(s.value, int) else None
    if isinstance(s, Index):
        return s.dim if s.dtype in _INDEX_DTYPES else None
    if isinstance(s, Read):
        return Dim.var(name_of(s)) if kind(s.dtype) in "iu" else None
    if isinstance(s, Cast):
        widens = s.dtype == _WIDE and kind(s.arg.dtype) in "iu" and s.arg.dtype != "uint64"
        return index_dim(s.arg, name_of) if widens else None
    if isinstance(s, Apply) and s.fn in _NEUTRAL:
        for a, b in (s.args, s.args[::-1]):
            if isinstance(a, Const) and a.value == _NEUTRAL[s.fn]:
                return index_dim(b, name_of)
    if isinstance(s, Apply) and s.fn in ("add", "subtract") and s.dtype in ("int32", _WIDE) and _has_no_data(s):
        a, b = (index_dim(x, name_of) for x in s.args)
        if a is not None and b is not None and (a.is_const or b.is_const):
            near = a + b if s.fn == "add" else a - b
            if abs(near.const) <= _NEAR:
                return near
    if isinstance(s, Apply) and s.dtype in ("int32", _WIDE) and len(s.args) == 2:
        a, b = (index_dim(x, name_of) for x in s.args)
        if a is None or b is None:
            return None
        match s.fn:
            case "maximum":
                return dim_max(a, b)
            case "minimum":
                return dim_min(a, b)
            case "add" | "subtract" | "multiply" if s.on_indices and s.dtype == _WIDE:  # on data they might wrap
                return a + b if s.fn == "add" else a - b if s.fn == "subtract" else a * b
            case _:
                return None
    return None


def counted_in(s: Scalar, dtype: str) -> Scalar | None:
    """Returns a number of true values, an integer, as the same number of dtype `dtype`; None for other integers. Such
    numbers are assumed to fit, as sizes are."""
    if isinstance(s, Cast) and s.arg.dtype == "bool" and s.dtype in _INDEX_DTYPES:
        return Cast(s.arg, dtype)
    if isinstance(s, Reduce) and s.kind == "sum" and (body := counted_in(s.body, dtype)) is not None:
        return Reduce("sum", s.over, body)
    return None


def _has_no_data(s: Scalar) -> bool:
    """Whether `s` is computed from positions and sizes alone."""
    return not any(isinstance(t, (Read, Reduce)) for t in walk(s))


# --- conditions under which programs exist ---

# The mode of an operator on positions that promises them to be in range.
_PROMISE = "promise"


def size_conditions(results: Sequence[Expr]) -> list[tuple[GuardLiteral, ...]]:
    """Returns the conditions on sizes under which `results` exist: at least one guard in each tuple holds."""
    found = {tuple(guard(sign, d) for sign, d in p): None for p in size_preconditions(tuple(results))}
    for e in postorder(results):
        if isinstance(e.annotation, Tensor):
            found.update(dict.fromkeys((not_zero(by),) for by in divisors_of(*own_dims(e))))
    return [c for c in found if not any(g.decided for g in c)]


# Operators whose result has each element of their operand once, in other places.
_REARRANGED = movement_operators("view", "order")


def promised_indices(results: Sequence[Expr], entails: Callable[[GuardLiteral], bool]) -> set[tuple[Expr, Dim]]:
    """Returns the index tensors that are promised to be in range, each with the extent. A promise about a tensor is a
    promise about its elements, in any order. Indices that are in range by the guards that `entails` decides are left
    out."""
    found = {(_elements(e), extent) for e, extent in position_promises(results)}
    return {(e, extent) for e, extent in found if not _is_position(e, extent, entails)}


def unknown_promises(results: Sequence[Expr]) -> set[Expr]:
    """Returns the expressions that promise positions to be in range and that `promised_indices` does not cover."""
    return {e for e in postorder(results) if _promises_unknown(e)}


def _promises_unknown(e: Expr) -> bool:
    return e.op in TABLE and TABLE[e.op].promised is None and dict(e.attrs).get("mode") == _PROMISE


def _elements(e: Expr) -> Expr:
    """Returns a tensor of the same elements, in any order: an operand below movements."""
    while e.op in _REARRANGED:
        (e,) = e.args
    return e


def _is_position(e: Expr, extent: Dim, entails: Callable[[GuardLiteral], bool]) -> bool:
    """Whether every element is a position in an axis of this extent. The position of an extreme is one if the axis is
    not empty (a separate condition), and `iota` yields positions if its axis is not longer."""
    if e.op not in TABLE or not isinstance(e.annotation, Tensor) or e.dtype not in _INDEX_DTYPES:
        return False
    below = TABLE[e.op].below
    return below is not None and entails(at_least(extent - below(site_of(e))))


def indices_of(e: Expr) -> tuple[Dim, ...]:
    """The indices of an element of `e`: a loop variable for each axis, 0 for an axis of size 1."""
    return tuple(Dim.of(0) if n == 1 else loop(f"i{axis}") for axis, n in enumerate(e.shape))
