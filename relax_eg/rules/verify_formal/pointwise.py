"""Equality of terms without reductions, by z3 over the reals: roots, logarithms, quotients under hypotheses.

Both sides become real terms over the elements that they read; the facts that a rule requires are assumed of these
elements. A root, a quotient or a logarithm is a new unknown, defined by an equation where its argument allows a value.
The laws of exp and log are added only for the products, quotients and powers that occur. The proof shows that one side
has a value exactly where the other has one, and that the values are equal there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import z3

from relax_eg.dtypes import kind
from relax_eg.limits import KEPT
from relax_eg.memo import Memo
from relax_eg.rules.verify_formal.accuracy import doubtful_terms
from relax_eg.rules.verify_formal.choices import (
    MOST_CASES,
    ChosenTerms,
    PlainTerms,
    Premises,
    inner_terms,
    is_positive,
    next_condition,
    terms_under,
)
from relax_eg.rules.verify_formal.compose import Unsupported
from relax_eg.rules.verify_formal.exponentials import linear, same_quotients
from relax_eg.rules.verify_formal.guards import Deadline
from relax_eg.tir.expr import Apply, Const, Read, Scalar, Select, walk
from relax_eg.tir.functions import functions_with_trait
from relax_eg.traversal import reached

_STEPS = 4_000_000  # limit: steps in z3's own count, which is the same on every machine
_MILLISECONDS = 3_000  # limit: time of z3 for one question
_MEMORY_MB = 1_500  # limit: memory of z3
_LARGEST_POWER = 6  # limit: whole exponents that are multiplied out

Term = Any
Formula = Any


def same_elements(
    left: Scalar, right: Scalar, claims: Mapping[str, frozenset[str]], deadline: Deadline, accurately: bool = False
) -> str:
    """Returns why the terms are not shown equal and equally defined; empty if they are. `claims`: facts of buffers.
    `accurately`: also that the right term neither cancels nor overflows where the left one does not."""
    deadline.check()
    plain = PlainTerms(claims)
    a, b = plain.term(left), plain.term(right)
    key = a, b, frozenset(plain.claims.items()), accurately
    return _ANSWERS.get_or_make(key, lambda: _same_numbers(a, b, plain.claims, accurately, deadline))


_ANSWERS: Memo[tuple[Scalar, Scalar, frozenset[tuple[str, frozenset[str]]], bool], str] = Memo(KEPT)


def _same_numbers(
    left: Scalar, right: Scalar, claims: Mapping[str, frozenset[str]], accurately: bool, deadline: Deadline
) -> str:
    try:
        todo, count = [terms_under(left, right, {})], 0
        while todo:
            deadline.check()
            case = todo.pop()
            condition = next_condition(case)
            why = "" if condition is not None else _same_in_case(case, claims, accurately)
            if isinstance(why, Scalar):
                condition = why
            elif why:
                return why
            if condition is None:
                continue
            count += 1
            if count > MOST_CASES:
                return "too many cases of conditions"
            for holds in (True, False):
                more = terms_under(left, right, {**case.premises.truths, condition: holds})
                if not _RealTheory(claims).contradicts(more.premises):
                    todo.append(more)
        return ""
    except z3.Z3Exception as e:
        raise Unsupported(f"z3: {e}") from None


def _same_in_case(case: ChosenTerms, claims: Mapping[str, frozenset[str]], accurately: bool) -> str | Scalar:
    """Returns why the terms of a case are not shown equal; empty if they are; or a condition that is to be decided
    first."""
    theory = _RealTheory(claims)
    a, b = theory.term(case.left), theory.term(case.right)
    theory.assume(case.premises)
    theory.laws()
    sides = (case.left, case.right)
    for t in dict.fromkeys((*inner_terms(case), *(t for s in sides for t in _swallowed(s)))):
        if not theory.follows([], theory.defined([t])):
            if isinstance(t, Apply) and t.fn == "log" and is_positive(t.args[0]) not in case.premises.truths:
                return is_positive(t.args[0])
            return "a function may have no value inside of another"
    if not all(theory.follows([], theory.term(t) >= 0) for t in case.premises.zeros):
        return "a logarithm of what may be negative inside of another function"
    x, y = (theory.defined(walk(s)) for s in sides)
    if not theory.follows([x], y):
        return "the right side may have no value where the left has one"
    if not theory.follows([y], x):
        return "the left side may have no value where the right has one"
    if not same_quotients(*sides) and not theory.follows([x, y], a == b):
        return "the values are not shown equal"
    if accurately and not all(theory.is_mild(t, *sides) for t in doubtful_terms(*sides)):
        return "equal over the reals; the right side may cancel or overflow where the left does not"
    return ""


def _swallowed(s: Scalar) -> set[Scalar]:
    """Returns the terms inside functions that may have a value where these terms have none."""

    def name(t: Scalar) -> str:
        return t.fn if isinstance(t, Apply) else ""

    def inside(at: tuple[Scalar, str]) -> list[tuple[Scalar, str]]:
        (t, how), fn = at, name(at[0])
        below = "nan" if fn in functions_with_trait("nan") and how != "lost" else "lost"
        keeps = fn in functions_with_trait("infinite")
        return [(a, how if keeps and not (fn == "divide" and i) else below) for i, a in enumerate(t.children)]

    # How a missing value of a term shows in the result: always ("seen"), only as NaN ("nan"), or not ("lost").
    found = reached([(s, "seen")], inside)
    return {t for t, how in found if how == "lost" or (how == "nan" and name(t) != "sqrt")}


class _RealTheory:
    """The real terms of both sides, and the formulas that are known of them (`known`). Choices, and what is one by
    comparisons, were decided before (`choices`)."""

    def __init__(self, claims: Mapping[str, frozenset[str]]) -> None:
        self._claims = claims
        self.known: list[Formula] = []
        self._terms: dict[Scalar, Term] = {}
        self._obligations: dict[Scalar, Formula] = {}
        self._exp: Any = z3.Function("exp", z3.RealSort(), z3.RealSort())
        self._log: Any = z3.Function("log", z3.RealSort(), z3.RealSort())
        # Arguments of exp and their values.
        self._powers: list[tuple[Term, Term]] = [(z3.RealVal(0), z3.RealVal(1))]
        self._sin: Any = z3.Function("sin", z3.RealSort(), z3.RealSort())
        self._cos: Any = z3.Function("cos", z3.RealSort(), z3.RealSort())
        self._angles: list[Term] = []
        self._count = 0

    def follows(self, premises: list[Formula], wanted: Formula) -> bool:
        """Whether z3 shows that `wanted` follows from what is known and `premises`."""
        solver = z3.Solver()
        solver.set("rlimit", _STEPS)
        solver.set("timeout", _MILLISECONDS)
        solver.set("max_memory", _MEMORY_MB)
        solver.add(*self.known, *premises, z3.Not(wanted))
        return solver.check() == z3.unsat

    def assume(self, premises: Premises) -> None:
        """Adds what holds in a case."""
        for s in (*premises.numbers, *premises.zeros):
            self.term(s)
        self.known += [self.term(c) == z3.BoolVal(holds) for c, holds in premises.truths.items()]

    def contradicts(self, premises: Premises) -> bool:
        """Whether nothing fulfils the conditions of a case."""
        self.assume(premises)
        return self.follows([], z3.BoolVal(False))

    def is_mild(self, s: Apply, left: Scalar, right: Scalar) -> bool:
        """Whether a sum, power or exponential of `right` neither cancels nor overflows where those of `left` do not.

        Summands of one sign do not cancel. An exponent may be a sum of the terms of an exponent of `left`, each as
        often; it does not overflow if it is at most zero, or at most the largest exponent if those of `left` and all
        logarithms are."""
        exponents = [t.args[0] for t in walk(left) if isinstance(t, Apply) and t.fn == "exp"]
        if s.fn in ("add", "subtract"):
            x, y = map(self.term, s.args)
            y = y if s.fn == "add" else -y
            if self.follows([], z3.And(x >= 0, y >= 0)) or self.follows([], z3.And(x <= 0, y <= 0)):
                return True
            outside = reached((right,), lambda t: () if isinstance(t, Apply) and t.fn == "exp" else t.children)
            return s not in outside and any(_is_part(s, e) for e in exponents)
        if s.fn != "exp":
            return False
        x, most = self.term(s.args[0]), self.fresh()
        logs = [v for v, _ in self._powers if z3.is_app(v) and v.decl().eq(self._log)]
        bounds = [most >= 0, *(self.term(e) <= most for e in exponents)]
        bounds += [z3.And(v <= most, v >= -most) for v in logs]
        return self.follows([], x <= 0) or self.follows(bounds, x <= most)

    def defined(self, terms: Iterable[Scalar]) -> Formula:
        """Returns the formula that says that every one of `terms` has a value if its arguments have."""
        return z3.And(*(self._obligations[t] for t in terms if t in self._obligations))

    def fresh(self) -> Term:
        """Returns a new unknown number."""
        self._count += 1
        return z3.Real(f"u{self._count}")

    def term(self, s: Scalar) -> Term:
        if s not in self._terms:
            self._terms[s] = self._made(s)
        return self._terms[s]

    def _made(self, s: Scalar) -> Term:
        if isinstance(s, Read):
            return self._element(s)
        if isinstance(s, Const):
            if s.dtype == "bool":
                return z3.BoolVal(bool(s.value))
            if isinstance(s.value, complex) or s.value != s.value or s.value in (float("inf"), float("-inf")):
                raise Unsupported(f"the constant {s.value!r}")
            exact = Fraction(s.value)
            return z3.RealVal(f"{exact.numerator}/{exact.denominator}")
        if isinstance(s, Select):  # the other branch may have no value; `_swallowed` collects such terms
            return z3.If(self.term(s.cond), self.term(s.then), self.term(s.other))
        if isinstance(s, Apply) and kind(s.args[0].dtype) in "bf":
            make = (_FUNCTIONS if kind(s.args[0].dtype) == "f" else _CONNECTIVES).get(s.fn)
            if make is not None:
                return make(self, s)
        raise Unsupported(f"{s.fn if isinstance(s, Apply) else type(s).__name__.lower()} of this dtype, over the reals")

    def _element(self, s: Read) -> Term:
        if s.dtype == "bool":
            return z3.Bool(str(s))
        if kind(s.dtype) != "f":
            raise Unsupported("elements that are no floats")
        x = z3.Real(str(s))
        claims = self._claims.get(s.buffer, frozenset())
        for fact, formula in (
            ("positive", x > 0), ("nonnegative", x >= 0), ("nonzero", x != 0), ("integral", z3.IsInt(x)),
        ):  # fmt: skip
            if fact in claims:
                self.known.append(formula)
        return x

    # --- functions that are defined by an equation ---

    def require(self, s: Apply, holds: Formula) -> None:
        """Notes that `s` has a value only where `holds`."""
        self._obligations[s] = holds

    def quotient(self, s: Apply, x: Term, y: Term, exists: Formula | None = None) -> Term:
        q = self.fresh()
        self.require(s, y != 0 if exists is None else exists)
        self.known.append(z3.Implies(y != 0, q * y == x))
        return q

    def root(self, s: Apply) -> Term:
        x, r = self.term(s.args[0]), self.fresh()
        self._obligations[s] = x >= 0
        self.known.append(z3.Implies(x >= 0, z3.And(r >= 0, r * r == x)))
        return r

    def reciprocal_root(self, s: Apply) -> Term:
        x, r = self.term(s.args[0]), self.fresh()
        self._obligations[s] = x > 0
        self.known.append(z3.Implies(x > 0, z3.And(r > 0, r * r * x == 1)))
        return r

    def power(self, x: Term, n: int) -> Term:
        if abs(n) > _LARGEST_POWER:
            raise Unsupported(f"the power {n}")
        total: Term = z3.RealVal(1)
        for _ in range(abs(n)):
            total = total * x
        return total

    def exp(self, x: Term) -> Term:
        value = self._exp(x)
        self.known += [value > 0, self._log(value) == x]
        self._powers.append((x, value))
        return value

    def log(self, s: Apply) -> Term:
        return self.logarithm(s, s.args[0])

    def logarithm(self, s: Apply, of: Scalar) -> Term:
        x = self.term(of)
        self._obligations[s] = x > 0
        value = self._log(x)
        self.known.append(z3.Implies(x > 0, self._exp(value) == x))
        self._powers.append((value, self._exp(value)))
        self._logarithm(of)
        return value

    def cube_root(self, s: Apply) -> Term:
        x, r = self.term(s.args[0]), self.fresh()
        self.known.append(r * r * r == x)
        return r

    def angle(self, x: Term) -> tuple[Term, Term]:
        """Returns the sine and the cosine of x."""
        found = self._sin(x), self._cos(x)
        if not any(x is a for a in self._angles):
            self._angles.append(x)
            self.known.append(found[0] * found[0] + found[1] * found[1] == 1)
            self.known += [self._sin(-x) == -found[0], self._cos(-x) == found[1]]
        return found

    def odd(self, s: Apply) -> Term:
        """Returns the value of a function about which only f(-x) = -f(x) is used."""
        x = self.term(s.args[0])
        f: Any = z3.Function(s.fn, z3.RealSort(), z3.RealSort())
        self.known.append(f(-x) == -f(x))
        return f(x)

    def _logarithm(self, s: Scalar) -> None:
        """Adds the laws of the logarithm for the function that `s` applies."""
        if not isinstance(s, Apply):
            return
        x, law = self.term(s), self._log
        args = [self.term(a) for a in s.args if not (isinstance(a, Const) and kind(a.dtype) != "f")]
        match s.fn:
            case "multiply":
                total = law(args[0]) + law(args[1])
            case "divide":
                total = law(args[0]) - law(args[1])
            case "reciprocal":
                total = -law(args[0])
            case "sqrt":
                total = law(args[0]) / 2
            case "rsqrt":
                total = -law(args[0]) / 2
            case "integer_pow":
                total = law(args[0]) * _exponent(s)
            case "square":
                total = law(args[0]) * 2
            case _:
                return
        self.known.append(z3.Implies(z3.And(*(a > 0 for a in args)), law(x) == total))
        for a in s.args:
            self._logarithm(a)

    def laws(self) -> None:
        """Adds exp(a + b) = exp(a) exp(b) for the arguments that occur, that exp increases, log(1) = 0, exp(0) = 1, and
        the laws of double angles."""
        self.known.append(self._log(z3.RealVal(1)) == 0)
        self.known.append(self._exp(z3.RealVal(0)) == 1)
        for a, b in itertools.permutations(self._angles, 2):
            sine, cosine = self._sin(b), self._cos(b)
            twice = [self._sin(a) == 2 * sine * cosine, self._cos(a) == cosine * cosine - sine * sine]
            self.known.append(z3.Implies(a == 2 * b, z3.And(*twice)))
        for a, x in self._powers:
            for b, y in self._powers:
                self.known.append(z3.Implies(a < b, x < y))
                for c, z in self._powers:
                    if c is not a and c is not b:
                        self.known.append(z3.Implies(c == a + b, z == x * y))


def _is_part(s: Scalar, of: Scalar) -> bool:
    """Whether the sum `s` adds up no more of any term than the sum `of`."""
    whole = linear(of, mass=True)
    return all(by <= whole.get(t, 0) for t, by in linear(s, mass=True).items())


def _exponent(s: Apply) -> int:
    exponent = s.args[1]
    if not isinstance(exponent, Const) or not isinstance(exponent.value, int):
        raise Unsupported("a power that is not constant")
    return exponent.value


def _integer_pow(w: _RealTheory, s: Apply) -> Term:
    x, n = w.term(s.args[0]), _exponent(s)
    return w.power(x, n) if n >= 0 else w.quotient(s, z3.RealVal(1), w.power(x, n))


def _real_power(w: _RealTheory, s: Apply) -> Term:
    """Returns exp(y log(x)), or a power of x or of its root if y is a multiple of 1/2. Raises Unsupported if y is not
    and x may not be positive."""
    x, y = (w.term(a) for a in s.args)
    exponent = s.args[1].value if isinstance(s.args[1], Const) else None
    if isinstance(exponent, float) and (2 * exponent).is_integer():
        n = int(2 * exponent)
        base = x if n % 2 == 0 else w.root(Apply("sqrt", (s.args[0],)))
        power = w.power(base, abs(n) // 2 if n % 2 == 0 else abs(n))
        if n % 2:
            w.require(s, x >= 0)
        return power if n >= 0 else w.quotient(s, z3.RealVal(1), power, x > 0 if n % 2 else x != 0)
    if not w.follows([], x > 0):
        raise Unsupported("a real power of what may not be positive")
    log = Apply("log", (s.args[0],))
    return w.exp(y * w.log(log))


def _rounded(w: _RealTheory, s: Apply) -> Term:
    x = w.term(s.args[0])
    below: Term = z3.ToReal(z3.ToInt(x))
    match s.fn:
        case "floor":
            return below
        case "ceil":
            return z3.If(below == x, x, below + 1)
        case _:
            raise Unsupported(s.fn)


def _one_plus(w: _RealTheory, s: Apply) -> Term:
    (x,) = s.args
    return w.logarithm(s, Apply("add", (Const(1.0, x.dtype), x)))


def _sigmoid(w: _RealTheory, s: Apply) -> Term:
    q, e = w.fresh(), w.exp(-w.term(s.args[0]))
    w.known.append(q * (1 + e) == 1)
    return q


def _hyperbolic_tangent(w: _RealTheory, s: Apply) -> Term:
    t, x = w.odd(s), w.term(s.args[0])
    up, down = w.exp(x), w.exp(-x)
    w.known.append(t * (up + down) == up - down)
    return t


def _tangent(w: _RealTheory, s: Apply) -> Term:
    sine, cosine = w.angle(w.term(s.args[0]))
    return w.quotient(s, sine, cosine)


def _arc_tangent(w: _RealTheory, s: Apply) -> Term:
    x, angle = w.term(s.args[0]), w.fresh()
    sine, cosine = w.angle(angle)
    w.known += [cosine > 0, sine == x * cosine]
    return angle


def _inverse_sinh(w: _RealTheory, s: Apply) -> Term:
    x, y = w.term(s.args[0]), w.fresh()
    w.known.append(w.exp(y) - w.exp(-y) == 2 * x)
    return y


def _unary_of(make: Callable[[_RealTheory, Term], Term]) -> Callable[[_RealTheory, Apply], Term]:
    return lambda w, s: make(w, w.term(s.args[0]))


def _unary(make: Callable[[Term], Term]) -> Callable[[_RealTheory, Apply], Term]:
    return lambda w, s: make(w.term(s.args[0]))


def _binary(make: Callable[[Term, Term], Term]) -> Callable[[_RealTheory, Apply], Term]:
    return lambda w, s: make(w.term(s.args[0]), w.term(s.args[1]))


_FUNCTIONS: dict[str, Callable[[_RealTheory, Apply], Term]] = {
    "add": _binary(lambda x, y: x + y),
    "subtract": _binary(lambda x, y: x - y),
    "multiply": _binary(lambda x, y: x * y),
    "negative": _unary(lambda x: -x),
    "square": _unary(lambda x: x * x),
    "floor": _rounded,
    "ceil": _rounded,
    "divide": lambda w, s: w.quotient(s, w.term(s.args[0]), w.term(s.args[1])),
    "reciprocal": lambda w, s: w.quotient(s, z3.RealVal(1), w.term(s.args[0])),
    "integer_pow": _integer_pow,
    "sqrt": lambda w, s: w.root(s),
    "rsqrt": lambda w, s: w.reciprocal_root(s),
    "exp": lambda w, s: w.exp(w.term(s.args[0])),
    "expm1": lambda w, s: w.exp(w.term(s.args[0])) - 1,
    "log": lambda w, s: w.log(s),
    "log1p": _one_plus,
    "sigmoid": _sigmoid,
    "tanh": _hyperbolic_tangent,
    "sinh": _unary_of(lambda w, x: (w.exp(x) - w.exp(-x)) / 2),
    "cosh": _unary_of(lambda w, x: (w.exp(x) + w.exp(-x)) / 2),
    "sin": _unary_of(lambda w, x: w.angle(x)[0]),
    "cos": _unary_of(lambda w, x: w.angle(x)[1]),
    "tan": _tangent,
    "atan": _arc_tangent,
    "asinh": _inverse_sinh,
    "cbrt": lambda w, s: w.cube_root(s),
    "erf": lambda w, s: w.odd(s),
    "erfc": lambda w, s: 1 - w.odd(Apply("erf", s.args)),
    "power": _real_power,
    "less": _binary(lambda x, y: x < y),
    "equal": _binary(lambda x, y: x == y),
}

_CONNECTIVES: dict[str, Callable[[_RealTheory, Apply], Term]] = {
    "bitwise_and": _binary(lambda x, y: z3.And(x, y)),
    "bitwise_or": _binary(lambda x, y: z3.Or(x, y)),
    "bitwise_xor": _binary(lambda x, y: z3.Xor(x, y)),
    "bitwise_not": _unary(lambda x: z3.Not(x)),
}
