"""`Dim`: a symbolic integer in canonical form, the size of an axis.

A `Dim` is a polynomial with integer coefficients over variables and five kinds of atom: floor division, ceiling
division, max, min and select (`piecewise`). Equal canonical forms are one object (weak hash-consing), so `==` is
identity and hashing costs nothing. The remainder is not an atom: `x % c` is `x - c*(x//c)`, so every identity between
quotient and remainder reduces to cancelling. The printer and the bounds recover remainders
(`division.split_remainders`).

Properties of the canonical form:
- Ring laws are exact: two polynomials over the same atoms are equal iff they are the same object.
- Simplifications of atoms are sound and cheap, but not complete; `Scope.equal` and the prover decide the rest.
- The value is preserved wherever both forms are defined. Cancelling may drop a division (`n//m - n//m` is 0), but no
  rule assumes that a symbolic divisor is nonzero: `(n*m)//m` stays.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral
from typing import Any, TypeAlias

from relax_eg.argument_checks import short_repr
from relax_eg.errors import BoundsError, ShapeError, SpecError
from relax_eg.limits import PRODUCTS, SIZE_BITS, SIZE_PARTS
from relax_eg.memo import Interned
from relax_eg.shapes.expression import fold_expression

# limit: arithmetic results kept per operator. Bounded, because a compiler run uses a few thousand distinct sizes.
MEMO = 1 << 14

Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "tuple[tuple[Monomial, int], ...]"


class Atom:
    """A variable (`op` is "var") or an operation on `args`. Interned and compared by identity.

    - `op`: "var", "floordiv", "ceildiv", "max", "min" or "select".
    - `name`: the name of a variable; for a select, the comparison (">=" or "==") of `args[0]` with zero. A select is
      `args[1]` if the comparison holds, else `args[2]`.
    - `parts`: number of names, numbers and operations in the atom.
    """

    __slots__ = ("__weakref__", "args", "key", "name", "op", "parts")

    op: str
    parts: int
    name: str
    args: tuple[Dim, ...]
    key: tuple[Any, ...]

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Returns the value of the atom for the variables' values `env`."""
        if self.op == "var":
            try:
                return env[self.name]
            except KeyError:
                given = ", ".join(sorted(env)) or "none"
                raise BoundsError(f"no value for the variable `{self.name}`; given: {given}") from None
        if self.op in ("floordiv", "ceildiv"):
            return _divided(self.op, self.args[0], self.args[1], env)
        if self.op == "select":
            return piecewise.select_value(self, env)
        first, *others = (arg.evaluate(env) for arg in self.args)
        for other in others:
            first = division.extreme_value(self.op, first, other)
        return first

    def __str__(self) -> str:
        return str(product((self,)))

    def __repr__(self) -> str:
        return f"Atom({str(self)!r})"


class Dim:
    """An immutable canonical symbolic integer: `const` plus the sum of coefficient times monomial in `terms`.

    A monomial is a sorted tuple of atoms, repeated for powers. `terms` are sorted, highest degree first, without zero
    coefficients. Dims are built only by `Dim.of`, `Dim.var` and arithmetic. `d == 4` compares with ints; `<` and `bool`
    are not defined: ask a `Scope`.
    """

    __slots__ = ("__weakref__", "_hash", "_key", "_text", "_variables", "const", "is_const", "parts", "terms")

    terms: Terms
    const: int
    is_const: bool
    parts: int
    _hash: int
    _key: tuple[Any, ...] | None
    _text: str | None
    _variables: frozenset[str] | None

    def __new__(cls) -> Dim:
        raise SpecError("a Dim is made by Dim.of(value), Dim.var(name) or arithmetic, not by Dim()")

    @staticmethod
    def of(value: int | str | Dim) -> Dim:
        """Returns the Dim of an integer, of expression text such as `"2*n + 1"`, or of a Dim (itself)."""
        if type(value) is Dim:
            return value
        if isinstance(value, str):
            return _read(value)
        dim = _coerce(value)
        if dim is None:
            kind = type(value).__name__
            raise SpecError(
                f"cannot make a size of {short_repr(value)} ({kind}); accepted: an int, a Dim, text like '2*n + 1'"
            )
        return dim

    @staticmethod
    def var(name: str) -> Dim:
        """Returns the variable `name`."""
        return _variable(name)

    @property
    def value(self) -> int:
        """The integer value. ShapeError if the size has terms."""
        if self.terms:
            names = ", ".join(sorted(self.variables)) or "none"
            raise ShapeError(f"the size {self} is not a constant (variables: {names}); use .evaluate or .substitute")
        return self.const

    def __int__(self) -> int:
        return self.value

    @property
    def variables(self) -> frozenset[str]:
        found = self._variables
        if found is None:
            names: set[str] = set()
            for monomial, _ in self.terms:
                for atom in monomial:
                    names.update((atom.name,) if atom.op == "var" else ())
                    names.update(*(arg.variables for arg in atom.args))
            found = frozenset(names)
            object.__setattr__(self, "_variables", found)
        return found

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """Returns the value for the variables' values `env`: ints, Dims, or objects with `+ * // %` such as JAX's
        symbolic dimensions.

        Max and min use the objects' `.max`, `.rmax`, `.min`, `.rmin`. A select of JAX dimensions uses these too, so
        both its sizes must have a value. BoundsError for a missing variable or a zero divisor.
        """
        # Evaluate remainders as remainders, because JAX does not see that b - 4*(b//4) is b%4.
        rest, remainders = division.split_remainders(self) if self.terms else (self, ())
        total: Any = rest.const
        for monomial, coefficient in rest.terms:
            summand: Any = coefficient
            for atom in monomial:
                summand = summand * atom.evaluate(env)
            total = total + summand
        for factor, dividend, modulus in remainders:
            value = _divided("%", dividend, modulus, env)
            total = total + factor.evaluate(env) * value
        return total

    def substitute(self, env: Mapping[str, Dim | int]) -> Dim:
        """Replaces all variables in `env` at once. Other variables stay."""
        mine = {name: Dim.of(env[name]) if name in env else Dim.var(name) for name in self.variables}
        return Dim.of(self.evaluate(mine))

    def sort_key(self) -> tuple[Any, ...]:
        """Returns a key for a total order that is the same in every run: constants first by value, then by terms."""
        key = self._key
        if key is None:
            terms = tuple((*_monomial_key(monomial), coefficient) for monomial, coefficient in self.terms)
            key = (len(terms), terms, self.const)
            object.__setattr__(self, "_key", key)
        return key

    def __add__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return _add(self, dim) if dim is not None else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return make(tuple((monomial, -coefficient) for monomial, coefficient in self.terms), -self.const)

    def __sub__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return _add(self, -dim) if dim is not None else NotImplemented

    def __rsub__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return _add(dim, -self) if dim is not None else NotImplemented

    def __mul__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return _multiply(self, dim) if dim is not None else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return division.floordiv(self, dim) if dim is not None else NotImplemented

    def __rfloordiv__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return division.floordiv(dim, self) if dim is not None else NotImplemented

    def __mod__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return division.mod(self, dim) if dim is not None else NotImplemented

    def __rmod__(self, other: Dim | int) -> Dim:
        dim = _coerce(other)
        return division.mod(dim, self) if dim is not None else NotImplemented

    def __pow__(self, exponent: int) -> Dim:
        if exponent < 0:
            raise SpecError(f"({self})**{exponent} is not an integer; accepted: a power >= 0")
        power = constant(1)
        for _ in range(exponent):
            power = _multiply(power, self)
        return power

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Dim:
            return False  # equal canonical forms are one object
        if type(other) is int or isinstance(other, Integral):
            return not self.terms and self.const == int(other)
        return NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise ShapeError(f"the size {self} has no truth value; compare it: d == 0")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Dim is immutable: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim.of, (str(self),)  # makes copies the same object

    def __str__(self) -> str:
        text = self._text
        if text is None:
            from relax_eg.shapes.text import dim_text  # imported late, because the printer uses Dim

            text = dim_text(self)
            object.__setattr__(self, "_text", text)
        return text

    def __repr__(self) -> str:
        return f"Dim({str(self)!r})"


_dims = Interned[tuple[Terms, int], Dim]()
_atoms = Interned[tuple[str, str, tuple[Dim, ...]], Atom]()


def make(terms: Terms, const: int) -> Dim:
    """Returns the interned Dim with these sorted terms."""
    key = (terms, const)
    dim = _dims.get(key)
    if dim is not None:
        return dim
    if const.bit_length() > SIZE_BITS or any(c.bit_length() > SIZE_BITS for _, c in terms):
        raise SpecError(f"a size with an integer of more than {SIZE_BITS} bits; at most as many are accepted")
    parts = 1 + sum([atom.parts for monomial, _ in terms for atom in monomial])
    if parts > SIZE_PARTS:
        raise SpecError(f"a size of {parts} names, numbers and operations; at most {SIZE_PARTS} are accepted")
    fresh: Dim = object.__new__(Dim)
    put = object.__setattr__
    put(fresh, "terms", terms)
    put(fresh, "const", const)
    put(fresh, "_hash", hash(key) if terms else hash(const))  # a constant has the hash of the int it equals
    put(fresh, "is_const", not terms)
    put(fresh, "parts", parts)
    for lazy in ("_key", "_text", "_variables"):
        put(fresh, lazy, None)
    return _dims.add(key, fresh)


@lru_cache(MEMO)
def _variable(name: str) -> Dim:
    name = unicodedata.normalize("NFKC", name)  # as Python does, so that printed text reads back
    if not name.isidentifier() or keyword.iskeyword(name) or name == "_":
        raise SpecError(f"`{name}` cannot name a variable; accepted: an identifier, no Python keyword, not `_`")
    return product((atom_of("var", name, ()),))


@lru_cache(MEMO)
def constant(value: int) -> Dim:
    return make((), value)


def atom_of(op: str, name: str, args: tuple[Dim, ...]) -> Atom:
    key = (op, name, args)
    atom = _atoms.get(key)
    if atom is not None:
        return atom
    fresh = Atom()
    fresh.op, fresh.name, fresh.args = op, name, args
    fresh.parts = 1 + sum([arg.parts for arg in args])
    fresh.key = (op != "var", op, name, tuple(arg.sort_key() for arg in args))  # variables sort first
    return _atoms.add(key, fresh)


def product(monomial: Monomial, coefficient: int = 1) -> Dim:
    return make(((monomial, coefficient),), 0) if monomial else constant(coefficient)


def _monomial_key(monomial: Monomial) -> tuple[Any, ...]:
    return -len(monomial), tuple(atom.key for atom in monomial)


def from_sum(coefficients: dict[Monomial, int], const: int) -> Dim:
    kept = [(monomial, c) for monomial, c in coefficients.items() if c]
    if len(kept) > 1:
        kept.sort(key=lambda term: _monomial_key(term[0]))
    return make(tuple(kept), const)


def is_plain(dim: Dim) -> bool:
    """Whether `dim` is a polynomial: no division, max, min or select."""
    return all(atom.op == "var" for monomial, _ in dim.terms for atom in monomial)


def replace_atoms(dim: Dim, stands_for: Callable[[Atom], Dim]) -> Dim:
    """Returns `dim` with every atom replaced by `stands_for(atom)`."""
    total = constant(dim.const)
    for monomial, c in dim.terms:
        summand = constant(c)
        for atom in monomial:
            summand = summand * stands_for(atom)
        total = total + summand
    return total


def _divided(op: str, a: Dim, b: Dim, env: Mapping[str, Any]) -> Any:
    x, y = a.evaluate(env), b.evaluate(env)
    try:
        return x // y if op == "floordiv" else -(-x // y) if op == "ceildiv" else x % y
    except ZeroDivisionError:
        sizes = ", ".join(f"{name} = {env[name]}" for name in sorted(b.variables))
        raise BoundsError(f"division of {a} by {b}, which is zero at {sizes}") from None


def _coerce(value: object) -> Dim | None:
    if type(value) is Dim:
        return value
    if type(value) is int:
        return constant(value)
    if isinstance(value, Integral) and value is not True and value is not False:
        return constant(int(value))
    return None


@lru_cache(MEMO)
def _add(a: Dim, b: Dim) -> Dim:
    if not b.terms:
        return make(a.terms, a.const + b.const)
    total = dict(a.terms)
    for monomial, coefficient in b.terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    return from_sum(total, a.const + b.const)


@lru_cache(MEMO)
def _multiply(a: Dim, b: Dim) -> Dim:
    total: dict[Monomial, int] = {}
    if len(a.terms) * len(b.terms) > PRODUCTS:
        count = f"{len(a.terms)} and {len(b.terms)} terms"
        raise SpecError(f"sizes of {count} are multiplied; at most {PRODUCTS} products of two terms are accepted")
    for m, c in (*a.terms, ((), a.const)):
        for n, d in (*b.terms, ((), b.const)):
            monomial = tuple(sorted(m + n, key=lambda atom: atom.key)) if m and n else m or n
            total[monomial] = total.get(monomial, 0) + c * d
    const = total.pop((), 0)
    return from_sum(total, const)


@lru_cache(MEMO)
def _read(text: str) -> Dim:
    return fold_expression(text, Dim.of, Dim.var, piecewise.FUNCTIONS)


# Imported last, because these modules use Dim; their functions are looked up at call time.
from relax_eg.shapes import division, piecewise  # noqa: E402
