"""Equality bit for bit: both sides are the same scalar term at the same indices.

Float functions are uninterpreted and reductions are folds in order. A list of identities of IEEE arithmetic is used
too; each holds for every bit pattern except the payload of a NaN. The comparison walks both terms at once under facts.
If a condition on indices is undecided, both cases are walked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from typing import TypeVar

from relax_eg.dtypes import dtype_of, is_integer, kind
from relax_eg.rules.verify_formal.compose import Composer, index_dim
from relax_eg.rules.verify_formal.guards import (
    GuardLiteral,
    KnownGuards,
    at_least,
    in_range,
    not_zero,
    simplified,
    zero,
)
from relax_eg.shapes import Dim
from relax_eg.shapes.dim import is_plain
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, ReduceKind, Scalar, Select, walk
from relax_eg.tir.functions import functions_with_trait
from relax_eg.tir.program import dims_of

# Reductions for which a fold of folds is one fold in the same order, because their function is associative on bits. It
# is so for signed zeros too if it gives the first or the last of equals, or the greater bit pattern.
_ASSOCIATIVE = frozenset({"max", "min", "any", "all"})
# The functions that merge two of these folds into one; maximum and minimum change the order of the elements.
_JOINS = {"bitwise_or": "any", "bitwise_and": "all", "maximum": "max", "minimum": "min"}
_DUAL: dict[str, ReduceKind] = {"any": "all", "all": "any", "max": "min", "min": "max"}
_MOST_STEPS = 20_000  # limit: comparisons of terms by one `Folds`
_MOST_ORDERS = 4  # limit: axes of a reduction of which all orders are tried
# Comparisons with 0, or with itself, that facts decide for every element, NaN included.
_TRUTHS: tuple[tuple[str, frozenset[str], bool], ...] = (
    ("greater", frozenset({"positive", "finite"}), True),
    ("greater_equal", frozenset({"nonnegative", "finite"}), True),
    ("less", frozenset({"nonnegative"}), False),
    ("less_equal", frozenset({"positive"}), False),
    ("not_equal", frozenset({"nonzero"}), True),
    ("equal", frozenset({"nonzero"}), False),
    ("not_equal itself", frozenset({"finite"}), False),
    ("equal itself", frozenset({"finite"}), True),
    ("is_finite", frozenset({"finite"}), True),
    ("is_nan", frozenset({"finite"}), False),
)

_EMPTY: frozenset[GuardLiteral] = frozenset()
_T = TypeVar("_T")


class Folds:
    """Compares terms made by one composer.

    - `composer`: the composer.
    - `facts`: the guards that hold at every point considered.
    - `claims`: facts of the buffers that the terms read.
    - `unordered`: whether extremes are those of sets, in any order: the same numbers except for the sign of a zero.
    - `identities`: whether identities of arithmetic may be applied to whole terms; inside a fold they always may.
    - `uses_identities`: whether an identity was applied to whole terms, outside all folds.

    Identities of arithmetic are assumed to be true, so a comparison that needs them is no proof.
    """

    def __init__(
        self,
        composer: Composer,
        facts: KnownGuards,
        claims: Mapping[str, frozenset[str]] | None = None,
        unordered: bool = False,
        identities: bool = True,
    ) -> None:
        self.uses_identities = False
        self._identities = identities
        self._folds = 0  # number of folds around the terms that are being compared
        self._orderless = _ASSOCIATIVE if unordered else frozenset({"any", "all"})
        self.composer = composer
        self.facts = facts
        self._claims = claims or {}
        self._steps = 0

    def same_terms(self, a: Scalar, b: Scalar, extra: frozenset[GuardLiteral] = _EMPTY) -> bool:
        """Whether the terms have the same bits wherever the facts and `extra` hold."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return False
        if a == b:
            return True
        a, b = self.head_normal_form(a, extra), self.head_normal_form(b, extra)
        if a == b:
            return True
        for s in (a, b):
            if isinstance(s, Select):
                guard = self._guard(s.cond)
                if guard is None:
                    if self._same_in_both_cases(s.cond, a, b, extra):
                        return True
                    continue
                for g in (guard, guard.negated()):
                    more = extra | {g}
                    if not self.facts.impossible(more) and not self.same_terms(a, b, more):
                        return False
                return True
        if a.dtype != b.dtype or type(a) is not type(b):
            return False
        if isinstance(a, Read) and isinstance(b, Read):
            return a.buffer == b.buffer and self._equal(a.indices, b.indices, extra)
        if isinstance(a, Index) and isinstance(b, Index):
            return self._equal((a.dim,), (b.dim,), extra)
        if isinstance(a, Cast) and isinstance(b, Cast):
            return a.arg.dtype == b.arg.dtype and self.same_terms(a.arg, b.arg, extra)
        if isinstance(a, Select) and isinstance(b, Select):
            pairs = ((a.cond, b.cond), (a.then, b.then), (a.other, b.other))
            return all(self.same_terms(x, y, extra) for x, y in pairs)
        if isinstance(a, Reduce) and isinstance(b, Reduce):
            return self._same_fold(a, b, extra)
        return isinstance(a, Apply) and isinstance(b, Apply) and self._same_call(a, b, extra)

    def _same_in_both_cases(self, cond: Scalar, a: Scalar, b: Scalar, extra: frozenset[GuardLiteral]) -> bool:
        """Whether the terms are the same where `cond`, a condition on data, holds and where it does not hold."""
        return all(self.same_terms(decided(a, cond, c), decided(b, cond, c), extra) for c in (True, False))

    def _equal(self, xs: Iterable[object], ys: Iterable[object], extra: frozenset[GuardLiteral]) -> bool:
        for x, y in zip(xs, ys, strict=True):
            if not isinstance(x, Dim) or not isinstance(y, Dim):
                return False
            if x is not y and not self._are_equal(x, y, extra):
                return False
        return True

    def _are_equal(self, x: Dim, y: Dim, extra: frozenset[GuardLiteral]) -> bool:
        x, y = simplified(x, self.facts, extra), simplified(y, self.facts, extra)
        return x is y or self.facts.entails(zero(x - y), extra)

    def _same_call(self, a: Apply, b: Apply, extra: frozenset[GuardLiteral]) -> bool:
        if a.fn != b.fn or len(a.args) != len(b.args):
            return False
        if all(self.same_terms(x, y, extra) for x, y in zip(a.args, b.args, strict=True)):
            return True
        return self._may_use_identities() and self._same_by_identity(a, b, extra) and self._used_identity()

    def _same_by_identity(self, a: Apply, b: Apply, extra: frozenset[GuardLiteral]) -> bool:
        if _is_square(a) and _is_square(b) and (turned := _turned_difference(a.args[0])) is not None:
            return self.same_terms(turned, b.args[0], extra)
        return (
            a.fn in functions_with_trait("commutes")
            and self.same_terms(a.args[0], b.args[1], extra)
            and self.same_terms(a.args[1], b.args[0], extra)
        )

    def _same_fold(self, a: Reduce, b: Reduce, extra: frozenset[GuardLiteral]) -> bool:
        if a.kind != b.kind or len(a.over) != len(b.over):
            return False
        if a.kind in self._orderless and 1 < len(a.over) <= _MOST_ORDERS:
            orders = (Reduce(b.kind, over, b.body) for over in permutations(b.over))
            return any(self._same_in_order(a, c, extra) for c in orders)
        return self._same_in_order(a, b, extra)

    def _same_in_order(self, a: Reduce, b: Reduce, extra: frozenset[GuardLiteral]) -> bool:
        if not self._equal([n for _, n in a.over], [n for _, n in b.over], extra):
            return False
        env: dict[str, Dim] = {}
        more = set(extra)
        for (v, n), (w, _) in zip(a.over, b.over, strict=True):
            (name,) = w.variables
            env[name] = v
            more.update(in_range(v, n))
        return self._inside(lambda: self.same_terms(a.body, self.composer.renamed(b.body, env), frozenset(more)))

    # --- identities of arithmetic ---

    def _may_use_identities(self) -> bool:
        return self._identities or self._folds > 0

    def _used_identity(self) -> bool:
        self.uses_identities = self.uses_identities or not self._folds
        return True

    def _inside(self, compare: Callable[[], _T]) -> _T:
        """Returns the result of `compare`, called with one more fold around the terms."""
        self._folds += 1
        try:
            return compare()
        finally:
            self._folds -= 1

    def _guard(self, cond: Scalar) -> GuardLiteral | None:
        """Returns a comparison of indices as a guard; None for any other condition."""
        if isinstance(cond, Apply) and len(cond.args) == 2:
            a, b = cond.args
            if kind(a.dtype) not in "iu":
                return None
            x, y = (index_dim(v, self.composer.name_of) for v in (a, b))
            if x is None or y is None:
                return None
            match cond.fn:
                case "less":
                    return at_least(y - x - 1)
                case "less_equal":
                    return at_least(y - x)
                case "greater":
                    return at_least(x - y - 1)
                case "greater_equal":
                    return at_least(x - y)
                case "equal":
                    return zero(x - y)
                case "not_equal":
                    return not_zero(x - y)
                case _:
                    return None
        return None

    # --- one step of rewriting at the head ---

    def head_normal_form(self, s: Scalar, extra: frozenset[GuardLiteral]) -> Scalar:
        """Returns `s` rewritten at its head until no step applies."""
        while True:
            self.facts.deadline.check()
            t = self._step(s, extra)
            if t is s:
                return s
            s = t

    def _step(self, s: Scalar, extra: frozenset[GuardLiteral]) -> Scalar:
        if isinstance(s, Select):
            return self._select(s, extra)
        if isinstance(s, Reduce):
            return self._fold(s, extra)
        if isinstance(s, Index) and not is_plain(s.dim):
            dim = simplified(s.dim, self.facts, extra)
            return s if dim is s.dim else Index(dim, s.dtype)
        if isinstance(s, Cast):
            if s.arg.dtype == s.dtype:
                return s.arg
            if s.arg.dtype == "bool" and isinstance(known := self.head_normal_form(s.arg, extra), Const):
                return Const(int(bool(known.value)), s.dtype)
            if isinstance(s.arg, Cast) and _is_there_and_back(s.arg, s.dtype) and self._may_use_identities():
                self._used_identity()
                return s.arg.arg
            return Index(s.arg.dim, s.dtype) if isinstance(s.arg, Index) and _wide_enough(s) else s
        return self._call(s, extra) if isinstance(s, Apply) else s

    def _select(self, s: Select, extra: frozenset[GuardLiteral]) -> Scalar:
        if self._says_that_nan_wins(s, extra):
            return s.other
        cond = self.head_normal_form(s.cond, extra)
        if isinstance(cond, Const):
            return s.then if cond.value else s.other
        if isinstance(cond, Apply) and cond.fn == "bitwise_not":
            return Select(cond.args[0], s.other, s.then)
        if isinstance(cond, Apply) and cond.fn == "bitwise_and":
            return Select(cond.args[0], Select(cond.args[1], s.then, s.other), s.other)
        guard = self._guard(cond)
        if guard is not None:
            if self.facts.entails(guard, extra):
                return s.then
            if self.facts.entails(guard.negated(), extra):
                return s.other
        if self.same_terms(s.then, s.other, extra):
            return s.then
        return s if cond == s.cond else Select(cond, s.then, s.other)

    def _says_that_nan_wins(self, s: Select, extra: frozenset[GuardLiteral]) -> bool:
        """Whether `s` is NaN where an element of a maximum or minimum is, else that extreme, which so is all of `s`."""
        extreme = s.other
        if not (isinstance(s.then, Const) and isinstance(s.then.value, float) and math.isnan(s.then.value)):
            return False
        if not (isinstance(extreme, Reduce) and extreme.kind in ("max", "min")):
            return False
        return self.same_terms(Reduce("any", extreme.over, Apply("is_nan", (extreme.body,))), s.cond, extra)

    def _fold(self, s: Reduce, extra: frozenset[GuardLiteral]) -> Scalar:
        inside = extra | {g for v, n in s.over for g in in_range(v, n)}
        body = self._inside(lambda: self.head_normal_form(s.body, inside))
        if s.kind in _ASSOCIATIVE and isinstance(body, Reduce) and body.kind == s.kind:
            return Reduce(s.kind, (*s.over, *body.over), body.body)
        return self._in_two(s, inside) if s.kind in _ASSOCIATIVE else s

    def _in_two(self, s: Reduce, inside: frozenset[GuardLiteral]) -> Reduce:
        """Returns a fold over an index that the body divides by a divisor of the extent as a fold over quotients and
        remainders, which visits the elements in the same order. Returns any other fold unchanged."""
        for n, (v, extent) in enumerate(s.over):
            for by in _divisors_of(s.body, v):
                whole = simplified(extent // by, self.facts, inside)
                if whole == 1 or whole * by is not extent:
                    continue
                if v.variables & by.variables or not self.facts.entails(at_least(by)):
                    continue
                q, r = self.composer.fresh(), self.composer.fresh()
                (name,) = v.variables
                over = (*s.over[:n], (q, whole), (r, by), *s.over[n + 1 :])
                return Reduce(s.kind, over, self.composer.renamed(s.body, {name: q * by + r}))
        return s

    def _call(self, s: Apply, extra: frozenset[GuardLiteral]) -> Scalar:
        args = tuple(self.head_normal_form(a, extra) for a in s.args)
        applied = s if args == s.args else Apply(s.fn, args)
        if applied.dtype == "bool" and (known := self._truth(applied)) is not None:
            return known
        # Complex numbers are left out: (a + bi) * 1 computes b * 0, which is NaN if b is infinite.
        if not self._may_use_identities() or kind(args[0].dtype) == "c":
            return applied
        found = self._identity(applied, extra)
        if found is not applied:
            self._used_identity()
        return found

    def _truth(self, s: Apply) -> Scalar | None:
        """Returns what is known of a comparison of equal places, or of a connective of known truths; else None."""
        if s.fn in ("bitwise_and", "bitwise_or") and s.args[0].dtype == "bool":
            decides = s.fn == "bitwise_or"
            for a, b in (s.args, s.args[::-1]):
                if isinstance(a, Const):
                    return a if bool(a.value) == decides else b
        guard = self._guard(s)
        return None if guard is None or guard.decided is None else Const(guard.decided, "bool")

    def _identity(self, s: Apply, extra: frozenset[GuardLiteral]) -> Scalar:
        """Returns `s` rewritten by an identity of bits, or `s` if none applies. `tests/rules/test_identities.py` tests
        each identity on all special values. A rule that states only an identity is tested on all values of small dtypes
        (`rules.checking.check`)."""
        args = s.args
        x = args[0]
        y = args[1] if len(args) == 2 else None
        match s.fn:
            case "negative" if isinstance(x, Apply) and x.fn == "negative":
                return x.args[0]
            # Of equal elements, such as zeros of either sign, both take the last.
            case "negative" if isinstance(x, Reduce) and x.kind in ("max", "min") and kind(x.dtype) == "f":
                return Reduce(_DUAL[x.kind], x.over, Apply("negative", (x.body,)))
            case "bitwise_not" if isinstance(x, Reduce) and x.kind in ("any", "all") and x.dtype == "bool":
                return Reduce(_DUAL[x.kind], x.over, Apply("bitwise_not", (x.body,)))
            case "clamp" if isinstance(clamped := args[1], Apply) and clamped.fn == "clamp":
                same = (args[0], args[-1]) == (clamped.args[0], clamped.args[-1])
                return clamped if same else s
            case "maximum" | "minimum" if y is not None and _is_least(x, s.fn):
                return y
            case "maximum" | "minimum" if y is not None and _is_least(y, s.fn):
                return x
            case "abs" if isinstance(x, Apply) and x.fn in ("abs", "negative") and kind(x.dtype) in "if":
                return Apply("abs", x.args)
            case "abs" if _is_square(x):
                return x
            case "square":
                return Apply("multiply", (x, x))
            case "integer_pow" if y is not None and _is(y, 2) and kind(x.dtype) == "f":
                return Apply("multiply", (x, x))
            case "greater" | "greater_equal" if y is not None and self._value_by_claims(s.fn, x, y) is None:
                return Apply("less" if s.fn == "greater" else "less_equal", (y, x))
            case "bitwise_not" if isinstance(x, Apply) and x.fn in ("equal", "not_equal"):
                return Apply("equal" if x.fn == "not_equal" else "not_equal", x.args)
            case "multiply" if y is not None and _is(y, 1):
                return x
            case "multiply" if y is not None and _is(x, 1):
                return y
            case "multiply" if y is not None and _negated(x) is not None and _negated(y) is not None:
                return Apply("multiply", (_not_none(_negated(x)), _not_none(_negated(y))))
            case "multiply" if y is not None and _magnitude(x) is not None and _magnitude(y) is not None:
                return Apply("abs", (Apply("multiply", (_not_none(_magnitude(x)), _not_none(_magnitude(y)))),))
            case "multiply" | "divide" if y is not None and _negated(x) is not None and kind(s.dtype) == "f":
                return Apply("negative", (Apply(s.fn, (_not_none(_negated(x)), y)),))
            case "multiply" | "divide" if y is not None and _negated(y) is not None and kind(s.dtype) == "f":
                return Apply("negative", (Apply(s.fn, (x, _not_none(_negated(y)))),))
            # The second operand is the same, so a tie of zeros is broken the same way twice.
            case "maximum" | "minimum" if isinstance(x, Apply) and x.fn == s.fn and x.args[1] == y:
                return x
            case "divide" if y is not None and _is(y, 1):
                return x
            case "subtract" if y is not None and _is(y, 0) and not _is_minus_zero(y):
                return x
            case "add" if y is not None and _is(y, 0) and (kind(s.dtype) in "iu" or _is_minus_zero(y)):
                return x
            case "add" if y is not None and _negated(y) is not None:
                return Apply("subtract", (x, _not_none(_negated(y))))
            case "subtract" if y is not None and _negated(y) is not None:
                return Apply("add", (x, _not_none(_negated(y))))
            case "bitwise_not" if isinstance(x, Apply) and x.fn == "bitwise_not":
                return x.args[0]
            case _ if s.fn in functions_with_trait("idempotent") and y is not None and self.same_terms(x, y, extra):
                return x
            case _ if y is not None and (merged := self._merged_fold(s.fn, x, y, extra)) is not None:
                return merged
            case _:
                found = self._value_by_claims(s.fn, x, y)
                return found if found is not None else s

    def _merged_fold(self, fn: str, x: Scalar, y: Scalar, extra: frozenset[GuardLiteral]) -> Scalar | None:
        """Returns two folds over the same ranges as one fold of both, if the order does not matter; else None."""
        if not isinstance(x, Reduce) or not isinstance(y, Reduce) or x.kind not in self._orderless:
            return None
        if _JOINS.get(fn) != x.kind or y.kind != x.kind or x.dtype != y.dtype or len(x.over) != len(y.over):
            return None
        if not self._equal([n for _, n in x.over], [n for _, n in y.over], extra):
            return None
        env = {next(iter(w.variables)): v for (v, _), (w, _) in zip(x.over, y.over, strict=True)}
        return Reduce(x.kind, x.over, Apply(fn, (x.body, self.composer.renamed(y.body, env))))

    def _value_by_claims(self, fn: str, x: Scalar, y: Scalar | None) -> Scalar | None:
        """Returns the value of a function of an element that follows from the facts of its buffer; None if it does not
        follow."""
        claims = self._claims.get(x.buffer, frozenset[str]()) if isinstance(x, Read) else frozenset[str]()
        if fn in functions_with_trait("rounds"):
            return x if "integral" in claims else None
        if x == y and "finite" in claims:
            if fn == "subtract":
                return Const(0.0, x.dtype)
            if fn == "divide" and "nonzero" in claims:
                return Const(1.0, x.dtype)
        of_itself = " itself" if x == y else ""
        if y is None or of_itself or _is(y, 0):
            for name, needed, truth in _TRUTHS:
                if name == fn + of_itself and needed <= claims:
                    return Const(truth, "bool")
        return None


def _is(s: Scalar, value: int) -> bool:
    return isinstance(s, Const) and s.dtype != "bool" and s.value == value


def _is_minus_zero(s: Scalar) -> bool:
    return isinstance(s, Const) and repr(s.value) == "-0.0"


def _is_least(s: Scalar, fn: str) -> bool:
    """Whether the maximum, or minimum, of any value and `s` is that value, NaN included."""
    return isinstance(s, Const) and s.value == (-math.inf if fn == "maximum" else math.inf)


def _negated(s: Scalar) -> Scalar | None:
    return s.args[0] if isinstance(s, Apply) and s.fn == "negative" else None


def _divisors_of(s: Scalar, v: Dim) -> list[Dim]:
    """Returns the divisors of the index `v` alone in the sizes and indices in `s`."""
    atoms = [a for t in walk(s) for d in dims_of(t) for atoms, _ in d.terms for a in atoms]
    return list(dict.fromkeys(a.args[1] for a in atoms if a.op == "floordiv" and a.args[0] is v))


def _turned_difference(s: Scalar) -> Scalar | None:
    """Returns y - x for x - y, None for other terms. The two have the same square: each is the negative of the other,
    except for the sign of a zero."""
    return Apply("subtract", (s.args[1], s.args[0])) if isinstance(s, Apply) and s.fn == "subtract" else None


def _is_square(s: Scalar) -> bool:
    return isinstance(s, Apply) and s.fn == "multiply" and s.args[0] == s.args[1] and kind(s.dtype) == "f"


def _magnitude(s: Scalar) -> Scalar | None:
    return s.args[0] if isinstance(s, Apply) and s.fn == "abs" and kind(s.dtype) == "f" else None


def decided(s: Scalar, cond: Scalar, holds: bool) -> Scalar:
    """Returns `s` with selects on `cond` resolved, given whether `cond` holds."""
    if isinstance(s, Select):
        if s.cond == cond:
            return decided(s.then if holds else s.other, cond, holds)
        return Select(decided(s.cond, cond, holds), decided(s.then, cond, holds), decided(s.other, cond, holds))
    if isinstance(s, Apply):
        args = tuple(decided(a, cond, holds) for a in s.args)
        return s if args == s.args else Apply(s.fn, args)
    if isinstance(s, Cast):
        return Cast(decided(s.arg, cond, holds), s.dtype)
    if isinstance(s, Reduce) and not cond.free & {v for d, _ in s.over for v in d.variables}:
        return Reduce(s.kind, s.over, decided(s.body, cond, holds))
    return s


def _is_there_and_back(first: Cast, dtype: str) -> bool:
    """Whether a conversion and then one back to `dtype` change nothing: the wider dtype has every value of `dtype`."""
    return first.arg.dtype == dtype and dtype_of(first.dtype).contains(dtype_of(dtype))


def _not_none(s: Scalar | None) -> Scalar:
    assert s is not None
    return s


def _wide_enough(s: Cast) -> bool:
    """Whether an index of the cast's source dtype is the same integer in its result's dtype."""
    return s.dtype == "int64" and is_integer(s.arg.dtype) and dtype_of(s.arg.dtype).bits == 32
