"""Scalar terms as sums: over the reals, or modulo 2^w for integers.

A function that is not polynomial stays an opaque function of canonical forms. A point at which a function has no value,
such as 0 for 1/x, is recorded as a *hazard*: a term whose only factor names the function and its argument. Two sides
are equally defined if their hazards are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from relax_eg.dtypes import dtype_of, is_float, kind
from relax_eg.rules.verify_formal.accuracy import has_no_rounding, is_tame
from relax_eg.rules.verify_formal.compose import Composer, Unsupported, counted_in, index_dim
from relax_eg.rules.verify_formal.guards import (
    Condition,
    GuardLiteral,
    Guards,
    KnownGuards,
    at_least,
    both_hold,
    case_of,
    in_range,
    one_holds,
    zero,
)
from relax_eg.rules.verify_formal.sums import (
    CanonicalSum,
    Factor,
    Sum,
    Term,
    is_extreme,
    root_of_number,
    scaled_to_one,
    unscaled,
    without_inverses,
)
from relax_eg.rules.verify_formal.terms import Normalizer, loop_name
from relax_eg.shapes import Dim
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, ReduceKind, Scalar, Select
from relax_eg.tir.functions import Trait, functions_with_trait

_NOTHING: Guards = frozenset()
_TRUE: Condition = ((_NOTHING,), ())
_FALSE: Condition = ((), (_NOTHING,))
_ZERO = Dim.of(0)
_MOST_PATHS = 32  # limit: cases of one comparison
_LARGEST_POWER = 6  # limit: whole exponents that are multiplied out

# Functions that have a value or not by the sign of their argument alone.
_OF_SIGN = frozenset({"sqrt", "log", "reciprocal"})
# Functions that give NaN, not infinity, where they have no value.
_MAKES_NAN = frozenset({"sqrt", "constant nan"})


def modulus_of(dtype: str) -> int:
    """Returns 2^w for integers of width w, else 0."""
    return 2 ** dtype_of(dtype).bits if kind(dtype) in "iu" else 0


# given: the extreme that a decreasing function makes of another
_OPPOSITE: Mapping[str, ReduceKind] = {"max": "min", "min": "max"}


def _has_trait(fn: str, trait: Trait) -> bool:
    return fn in functions_with_trait(trait)


class TermValues:
    """Evaluates the terms of one side.

    - `composer`: the composer that made the terms.
    - `facts`: the guards that hold at every point considered.
    - `normal`: the normalizer of sums.
    - `hazards`: the hazards of the terms evaluated so far.
    - `fragile`: whether an argument of a function was summed with cancellation, or an argument of a discontinuous
      function was computed, so that nothing is known of the accuracy.
    """

    def __init__(self, composer: Composer, facts: KnownGuards, normalizer: Normalizer) -> None:
        self.composer = composer
        self.facts = facts
        self.normal = normalizer
        self.hazards: set[CanonicalSum] = set()
        self.fragile = False
        self._memo: dict[tuple[Scalar, Guards, frozenset[str], int], Sum] = {}
        self._bound: frozenset[str] = frozenset()
        # Number of functions around the term that is evaluated. They may have a value where the term has none.
        self._inside = 0
        # Number of these functions that may have a value for NaN too.
        self._swallowing = 0

    def sum_of(self, s: Scalar, path: Guards = _NOTHING) -> Sum:
        """Returns `s` as a settled sum, at points where `path` holds."""
        self.facts.deadline.check()
        key = (s, path, self._bound, (self._inside > 0) + (self._swallowing > 0))
        if key not in self._memo:
            self._memo[key] = self._sum(s, path)
        return self._memo[key]

    def form_of(self, s: Scalar, path: Guards, jumps: bool = False, swallows: bool = False) -> CanonicalSum:
        """Returns `s` as the argument of a function. `jumps`: whether the function is discontinuous; `swallows`:
        whether it may give a number for NaN."""
        if jumps and not has_no_rounding(s) and not modulus_of(s.dtype):
            self.fragile = True
        self._inside += 1
        self._swallowing += swallows
        try:
            total = self.sum_of(s, path)
        finally:
            self._inside -= 1
            self._swallowing -= swallows
        modulus = modulus_of(s.dtype)
        if not modulus and not is_tame(self.normal.merge_equal_terms(total)):
            self.fragile = True
        return self.normal.canonical_sum(total, modulus)

    def _one(self, f: Factor) -> Sum:
        total = Sum()
        total.add(Term((f,)), Fraction(1))
        return self.normal.settle(total)

    def _constant(self, value: Fraction | int) -> Sum:
        total = Sum()
        if value:
            total.add(Term(), Fraction(value))
        return total

    def _where(self, paths: Iterable[Guards]) -> Sum:
        """Returns the sum that is 1 where one of `paths` holds."""
        total = Sum()
        for p in paths:
            total.add(Term((), p), Fraction(1))
        return self.normal.settle(total)

    def _sum(self, s: Scalar, path: Guards) -> Sum:
        if s.dtype == "bool":
            return self._where(self.condition(s, path)[0])
        if isinstance(s, Const):
            value = s.value
            if isinstance(value, complex):
                if value.imag:
                    raise Unsupported("a complex constant")
                value = value.real
            if isinstance(value, float) and not math.isfinite(value):
                if math.isinf(value):  # sums and products with it do not follow the laws of numbers
                    raise Unsupported(f"arithmetic with {value}")
                self._hazard(f"constant {value!r}", (), path)
                return Sum()
            return self._constant(Fraction(value))
        if isinstance(s, Index):
            return self._one(Factor("dim", "", (s.dim,)))
        if isinstance(s, Read):
            return self._one(Factor("read", s.buffer, tuple(i for i in s.indices if isinstance(i, Dim))))
        if isinstance(s, Select):
            return self._select(s, path)
        if isinstance(s, Cast):
            return self._cast(s, path)
        if isinstance(s, Reduce):
            return self._reduce(s, path)
        assert isinstance(s, Apply)
        return self._apply(s, path)

    def _select(self, s: Select, path: Guards) -> Sum:
        yes, no = self.condition(s.cond, path)
        total = Sum()
        for paths, branch in ((yes, s.then), (no, s.other)):
            for p in paths:
                guarded = Sum()
                guarded.add(Term((), p), Fraction(1))
                total = total.plus(self.normal.product(guarded, self.sum_of(branch, path | p)))
        return total

    def _cast(self, s: Cast, path: Guards) -> Sum:
        source = s.arg.dtype
        if source == "bool":
            return self._where(self.condition(s.arg, path)[0])
        if source == s.dtype:
            return self.sum_of(s.arg, path)
        if isinstance(s.arg, Index):
            return self.sum_of(Index(s.arg.dim, s.dtype), path)
        if is_float(source) and is_float(s.dtype):  # `accuracy.keeps_precision` checks the rounding
            return self.sum_of(s.arg, path)
        if is_float(s.dtype) and (count := counted_in(s.arg, s.dtype)) is not None:
            return self.sum_of(count, path)
        return self._one(Factor("apply", f"cast {source} {s.dtype}", (), (self.form_of(s.arg, path, True, True),)))

    # --- functions ---

    def _apply(self, s: Apply, path: Guards) -> Sum:
        args = s.args
        match s.fn:
            case "add" | "subtract":
                return self.sum_of(args[0], path).plus(self.sum_of(args[1], path), 1 if s.fn == "add" else -1)
            case "negative":
                return self.sum_of(args[0], path).scaled(Fraction(-1))
            case "multiply":
                return self.normal.product(self.sum_of(args[0], path), self.sum_of(args[1], path))
            case "square":
                x = self.sum_of(args[0], path)
                return self.normal.product(x, x)
            case "integer_pow":
                return self._power(s, path)
            case "divide":
                return self._quotient(self.sum_of(args[0], path), self._inverse(args[1], path))
            case "reciprocal":
                return self._inverse(args[0], path)
            case "rsqrt":
                return self._inverse(Apply("sqrt", args), path)
            case "maximum" | "minimum" if s.dtype != "bool":
                which = "max" if s.fn == "maximum" else "min"
                values = [self._values(a, which, path) for a in args]
                return self._extreme(which, s.dtype, values[0].plus(values[1]))
            case _:
                return self._opaque(s, path)

    def _power(self, s: Apply, path: Guards) -> Sum:
        x, exponent = s.args
        assert isinstance(exponent, Const) and isinstance(exponent.value, int)
        if abs(exponent.value) > _LARGEST_POWER:
            return self._opaque(s, path)
        base = self.sum_of(x, path) if exponent.value >= 0 else self._inverse(x, path)
        total = self._constant(1)
        for _ in range(abs(exponent.value)):
            total = self.normal.product(total, base)
        return total

    def _inverse(self, x: Scalar, path: Guards) -> Sum:
        form = self.form_of(x, path)
        if form.constant:
            return self._constant(1 / form.constant)
        number = Fraction(1)
        if len(form.terms) == 1 or not self._is_positive_size(form, path):
            number, form = scaled_to_one(form)
        if not self._is_positive_size(form, path) and not self._has_claim(form, "nonzero"):
            self._hazard("reciprocal", (form,), path)
        return self._one(Factor("apply", "reciprocal", (), (form,))).scaled(1 / number)

    def _has_claim(self, form: CanonicalSum, claim: str) -> bool:
        """Whether `form` is one element of a buffer with a fact."""
        if len(form.terms) != 1 or form.modulus:
            return False
        ((t, c),) = form.terms
        reads = [f for f in t.factors if f.kind == "read"]
        return c == 1 and len(t.factors) == len(reads) == 1 and claim in self.composer.claims.get(reads[0].name, ())

    def _quotient(self, total: Sum, inverse: Sum) -> Sum:
        """Returns `total` times the inverse of a value; a positive size cancels where it is a factor."""
        return self._without_inverses(self.normal.product(total, inverse))

    def _without_inverses(self, total: Sum) -> Sum:
        found = Sum()
        for t, c, m in total.items():
            found.add(without_inverses(t, lambda d, t=t: self.facts.entails(at_least(d - 1), t.guards)), c, m)
        return found

    def _opaque(self, s: Apply, path: Guards) -> Sum:
        if kind(s.args[0].dtype) == "c":  # traits are those of functions of real numbers
            return self._one(
                Factor("apply", f"{s.fn} complex", (), tuple(self.form_of(a, path, True, True) for a in s.args))
            )
        forms = [
            self.form_of(a, path, s.fn in functions_with_trait("jumps"), s.fn not in functions_with_trait("nan"))
            for a in s.args
        ]
        if s.fn in functions_with_trait("commutes"):
            forms.sort(key=lambda f: f.key)
        if s.fn in functions_with_trait("idempotent") and forms[0] == forms[1]:
            return self.sum_of(s.args[0], path)
        divides = s.fn in ("int_divide", "remainder", "floor_divide", "floor_mod")
        if s.fn not in functions_with_trait("total") and not (divides and forms[1].constant):
            self._hazard(s.fn, forms, path)
        # The name has the dtype: the same function of integers of another width is another function.
        name = f"{s.fn} {s.dtype}" if kind(s.dtype) in "iu" else s.fn
        if s.fn == "sqrt" and (root := root_of_number(forms[0])) != 1:
            return self._one(Factor("apply", name, (), (unscaled(forms[0]),))).scaled(root)
        return self._one(Factor("apply", name, (), tuple(forms)))

    def _hazard(self, fn: str, args: Sequence[CanonicalSum], path: Guards) -> None:
        """Records the hazard of `fn(args)` where `path` holds, for all values of the variables bound around it."""
        total = Sum()
        if fn in _OF_SIGN:
            args = [unscaled(a) for a in args]
        total.add(Term((Factor("apply", f"hazard {fn}", (), tuple(args)),), path, self._bound), Fraction(1))
        settled = self.normal.settle(total)
        if not settled.terms:
            return
        if self._swallowing or (self._inside and fn not in _MAKES_NAN):
            raise Unsupported(f"{fn} may have no value inside of another function")
        if len(settled.terms) == 1:
            ((t, count),) = settled.terms.items()
            if count <= 0:
                raise Unsupported("a negative count")
            settled = Sum()
            settled.add(self._without_counts(t), Fraction(1))
        self.hazards.add(self.normal.canonical_sum(settled))

    def _without_counts(self, t: Term) -> Term:
        """Returns `t` without integer factors, which do not matter if they are 1 or more; guards are added that say
        this."""
        guards = set(t.guards)
        for f in t.factors:
            if f.kind == "dim":
                positive = at_least(f.dims[0] - 1)
                if not self.facts.entails(positive, t.guards):
                    guards.add(positive)
        return Term(tuple(f for f in t.factors if f.kind != "dim"), frozenset(guards), t.bound)

    def _is_positive_size(self, form: CanonicalSum, path: Guards) -> bool:
        """Whether `form` is an integer made of sizes that is shown to be positive where `path` holds."""
        size = form.dim
        return size is not None and self.facts.entails(at_least(size - 1), path)

    # --- reductions ---

    def _reduce(self, s: Reduce, path: Guards) -> Sum:
        if s.kind.startswith("arg"):
            raise Unsupported("positions of extrema")
        variables = frozenset(loop_name(v) for v, _ in s.over)
        ranges = frozenset(g for v, n in s.over for g in in_range(v, n))
        if s.kind in ("max", "min"):
            # Over an empty axis it is infinite, which real arithmetic does not cover.
            for _, n in s.over:
                if not self.facts.entails(at_least(n - 1), path):
                    raise Unsupported(f"a {s.kind} over an axis that may be empty")
            if (known := self._known_extreme(s)) is not None:
                return self.sum_of(known, path)
        around = self._bound
        self._bound = around | variables
        try:
            if s.kind == "sum":
                return self._summed_over(self.sum_of(s.body, path | ranges), ranges, variables)
            if s.kind in ("max", "min"):
                return self._extreme_over(s, path, ranges, variables)
            body = self._one(Factor("apply", "value", (), (self.form_of(s.body, path | ranges, False, True),)))
        finally:
            self._bound = around
        # Any other kind is a function of the unordered values: of their formal sum, in which each is a term.
        total = self.normal.canonical_sum(self._summed_over(body, ranges, variables))
        return self._one(Factor("apply", f"{s.kind} {s.dtype}", (), (total,)))

    def _known_extreme(self, s: Reduce) -> Scalar | None:
        """Returns the extreme, over nonempty axes, of a monotone function or of a sorted row, as another term; None for
        any other extreme."""
        x = s.body
        if isinstance(x, Apply) and is_float(s.dtype) and (kind := self._extreme_of_argument(s.kind, x)) is not None:
            return Apply(x.fn, (*x.args[:-1], Reduce(kind, s.over, x.args[-1])))
        if not isinstance(x, Read) or len(s.over) != 1 or "sorted" not in self.composer.claims.get(x.buffer, ()):
            return None
        ((v, n),) = s.over
        *others, last = x.indices
        if last is not v or any(not isinstance(i, Dim) or v.variables & self.composer.free(i) for i in others):
            return None
        return Read(x.buffer, (*others, n - 1 if s.kind == "max" else _ZERO), x.dtype)

    def _extreme_of_argument(self, kind: ReduceKind, x: Apply) -> ReduceKind | None:
        """The extreme of its last argument at which `x` has its own one; None if that is not known."""
        arg = x.args[-1]
        claims = self.composer.claims.get(arg.buffer, ()) if isinstance(arg, Read) else ()
        if len(x.args) == 2:  # a positive number divided by a positive one
            first = x.args[0]
            is_number = isinstance(first, Const) and isinstance(first.value, (int, float)) and first.value > 0
            return _OPPOSITE[kind] if x.fn == "divide" and is_number and "positive" in claims else None
        if len(x.args) > 2:
            return None
        if _has_trait(x.fn, "increasing") or (_has_trait(x.fn, "rises") and "nonnegative" in claims):
            return kind
        if _has_trait(x.fn, "decreasing") or (_has_trait(x.fn, "falls") and "positive" in claims):
            return _OPPOSITE[kind]
        return None

    def _summed_over(self, body: Sum, ranges: Guards, variables: frozenset[str]) -> Sum:
        """Returns `body` summed over variables and their ranges."""
        total = Sum()
        for t, c, m in body.items():
            total.add(Term(t.factors, t.guards | ranges, t.bound | variables), c, m)
        return self._without_inverses(self.normal.settle(total))

    def _extreme_over(self, s: Reduce, path: Guards, ranges: Guards, variables: frozenset[str]) -> Sum:
        """Returns a maximum or minimum over nonempty axes; summands that all values share are pulled out."""
        form = self.form_of(s.body, path | ranges, False, True)
        scale, form = self._scale(form, variables)
        common = [(t, c) for t, c in form.terms if not self.composer.closure(t.variables) & variables]
        rest, kind, number = Sum(), s.kind, Fraction(1)
        if common and not form.modulus and len(common) < len(form.terms):
            for t, c in common:
                rest.add(self.normal.with_fresh_names(t), c)
            form = CanonicalSum(tuple((t, c) for t, c in form.terms if (t, c) not in common))
        is_scaled = len(form.terms) == 1 and not form.modulus and form.terms[0][1] != 1
        if is_scaled:  # by a number
            ((t, number),) = form.terms
            form = CanonicalSum(((t, Fraction(1)),))
            kind = kind if number > 0 else _OPPOSITE[kind]
        if is_scaled or scale or rest.terms:
            values = self._one(Factor("apply", "value", (), (form,)))
        else:
            values = self._values(s.body, s.kind, path | ranges)
        found = self._extreme(kind, s.dtype, self._summed_over(values, ranges, variables)).scaled(number).plus(rest)
        for f in scale:
            found = self.normal.product(self._one(f), found)
        return found

    def _scale(self, form: CanonicalSum, variables: frozenset[str]) -> tuple[list[Factor], CanonicalSum]:
        """Returns the nonnegative elements that scale a single product, and the rest of the product. Such elements can
        be pulled out of its extremes."""
        if len(form.terms) != 1 or form.modulus:
            return [], form
        ((t, c),) = form.terms
        scale = [
            f for f in t.factors if self._is_scale(f) and not self.composer.closure(f.variables) & (variables | t.bound)
        ]
        if not scale or t.guards:
            return [], form
        rest = Term(tuple(f for f in t.factors if f not in scale), t.guards, t.bound)
        return scale, CanonicalSum(((rest, c),))

    def _is_scale(self, f: Factor) -> bool:
        """Whether a factor is shown to be nonnegative."""
        if f.kind == "read":
            return "nonnegative" in self.composer.claims.get(f.name, ())
        return f.kind == "apply" and f.name == "reciprocal" and self._has_claim(f.args[0], "positive")

    def _values(self, s: Scalar, which: str, path: Guards) -> Sum:
        """Returns the formal sum of the values whose extreme is `s`; of `s` alone if it is no extreme."""
        if isinstance(s, Select):
            return self._values_of_cases(s, which, path)
        form = self.form_of(s, path, False, True)
        extremes = [(t, c) for t, c in form.terms if c == 1 and is_extreme(t, f"{which} {s.dtype}")]
        if len(extremes) != 1 or (form.modulus and len(form.terms) > 1):
            return self._one(Factor("apply", "value", (), (form,)))
        total = Sum()
        for u, d in (
            extremes[0][0].factors[0].args[0].terms
        ):  # what is added to an extreme is added to each of its values
            u = self.normal.with_fresh_names(u)
            if len(form.terms) > 1:
                value = Sum()
                for t, c in (*u.factors[0].args[0].terms, *(x for x in form.terms if x != extremes[0])):
                    value.add(self.normal.with_fresh_names(t), c)
                factor = Factor("apply", "value", (), (self.normal.canonical_sum(value),))
                u = Term((factor,), u.guards, u.bound)
            total.add(u, d)
        return total

    def _values_of_cases(self, s: Select, which: str, path: Guards) -> Sum:
        """Returns the values of both cases, each where it is chosen."""
        total = Sum()
        for paths, x in zip(self.condition(s.cond, path), (s.then, s.other), strict=True):
            for p in paths:
                for t, c, m in self._values(x, which, path | p).items():
                    total.add(Term(t.factors, t.guards | p, t.bound), c, m)
        return self.normal.settle(total)

    def _extreme(self, which: str, dtype: str, values: Sum) -> Sum:
        """Returns the extreme of a formal sum of values. How often a value occurs does not matter."""
        found: dict[Term, Fraction] = {}
        for t, c, _ in self.normal.settle(values).items():
            if c <= 0:
                raise Unsupported("a negative count")
            value = self.normal.without_implied_guards(self._without_counts(t))
            found[self.normal.with_canonical_names(value)] = Fraction(1)
        total = Sum()
        for t in found:
            total.add(t, Fraction(1))
        form = self.normal.canonical_sum(total)
        if len(form.terms) == 1:
            (t, _) = form.terms[0]
            if not t.guards and not t.bound and len(t.factors) == 1 and t.factors[0].name == "value":
                rest = Sum()
                for u, c in t.factors[0].args[0].terms:
                    rest.add(self.normal.with_fresh_names(u), c)
                return rest
        return self._one(Factor("apply", f"{which} {dtype}", (), (form,)))

    def condition(self, s: Scalar, path: Guards) -> Condition:
        """Returns the cases in which the boolean `s` holds, and those in which it does not."""
        yes, no = self._condition(s, path)
        if len(yes) > _MOST_PATHS or len(no) > _MOST_PATHS:
            raise Unsupported("a condition of too many parts")
        return yes, no

    def _condition(self, s: Scalar, path: Guards) -> Condition:
        if isinstance(s, Const):
            return _TRUE if s.value else _FALSE
        if isinstance(s, Read):
            return case_of(
                GuardLiteral("true", _ZERO, Factor("read", s.buffer, tuple(i for i in s.indices if isinstance(i, Dim))))
            )
        if isinstance(s, Select):
            c, a, b = (self.condition(x, path) for x in (s.cond, s.then, s.other))
            return one_holds(both_hold(c, a), both_hold((c[1], c[0]), b))
        if isinstance(s, Apply):
            match s.fn:
                case "bitwise_not":
                    yes, no = self.condition(s.args[0], path)
                    return no, yes
                case "bitwise_and" | "bitwise_or":
                    a, b = (self.condition(x, path) for x in s.args)
                    return both_hold(a, b) if s.fn == "bitwise_and" else one_holds(a, b)
                case "equal" | "not_equal" | "less" | "less_equal" | "greater" | "greater_equal":
                    return self._comparison(s, path)
                case _:
                    raise Unsupported(f"the condition {s.fn}")
        if isinstance(s, Cast) and s.arg.dtype == "bool":
            return self.condition(s.arg, path)
        if isinstance(s, Reduce) and s.kind in ("any", "all"):
            nowhere = _FALSE if s.kind == "any" else _TRUE
            if self.condition(s.body, path | {g for v, n in s.over for g in in_range(v, n)}) == nowhere:
                return nowhere
        raise Unsupported(f"a condition of kind {type(s).__name__}")

    def _comparison(self, s: Apply, path: Guards) -> Condition:
        a, b = s.args
        if a.dtype == "bool":
            raise Unsupported("a comparison of truth values")
        fn = s.fn
        if fn in ("greater", "greater_equal"):
            a, b, fn = b, a, {"greater": "less", "greater_equal": "less_equal"}[fn]
        x, y = (index_dim(v, self.composer.name_of) for v in (a, b))
        if x is not None and y is not None and kind(a.dtype) in "iu":
            if fn == "less":
                return case_of(at_least(y - x - 1))
            return case_of(at_least(y - x)) if fn == "less_equal" else case_of(zero(x - y), fn == "equal")
        if fn == "less_equal":  # not b < a, as no number is unordered
            yes, no = self._ordered("less", b, a, path)
            return no, yes
        if fn == "not_equal":
            yes, no = self._ordered("equal", a, b, path)
            return no, yes
        return self._ordered(fn, a, b, path)

    def _ordered(self, fn: str, a: Scalar, b: Scalar, path: Guards) -> Condition:
        is_fragile = self.fragile
        forms = [self.form_of(v, path, True, True) for v in (a, b)]
        if forms[0] == forms[1]:
            if a == b:  # whatever is rounded
                self.fragile = is_fragile
            return _TRUE if fn == "equal" else _FALSE
        if modulus_of(a.dtype):
            x, y = (self.normal.size_where(f, path) for f in forms)
            if x is not None and y is not None:
                return case_of(zero(x - y) if fn == "equal" else at_least(y - x - 1))
        if fn in functions_with_trait("commutes"):
            forms.sort(key=lambda f: f.key)
        return case_of(GuardLiteral("true", _ZERO, Factor("apply", f"{fn} {a.dtype}", (), tuple(forms))))
