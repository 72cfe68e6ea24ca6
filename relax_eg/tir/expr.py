"""Scalar expressions: the right-hand sides of index equations.

An *index* is a `Dim` over loop variables and sizes, or a `Scalar` of integer dtype (data-dependent). A loop variable is
a `Dim` variable made by `loop`; its name ends in a mark that no size name has, so the two never clash.

Expressions are immutable and interned: building the same expression twice returns the same object, so `==` is identity
(`equal` builds the comparison), and a walk meets a shared term once. Dtypes must agree; there is no promotion. A Python
number or a `Dim` beside a Scalar takes the Scalar's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from relax_eg.dtypes import dtype_of, kind
from relax_eg.errors import ShapeError
from relax_eg.limits import FEW_KEPT, MANY_KEPT
from relax_eg.memo import Interned
from relax_eg.shapes import Dim
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.traversal import leaves

_LOOP_MARK = "\u00b7"  # a middle dot: valid in a Dim's variable name, but not used in size names
INDEX_DTYPE = "int64"

ReduceKind: TypeAlias = Literal["sum", "prod", "max", "min", "any", "all", "xor", "argmax", "argmin"]
IndexValue: TypeAlias = "Dim | Scalar"
Number: TypeAlias = bool | int | float | complex
ScalarLike: TypeAlias = "Scalar | Dim | bool | int | float | complex"
Axis: TypeAlias = tuple[Dim, Dim]  # a loop variable and its extent


def loop(name: str) -> Dim:
    """Returns the loop variable `name`."""
    return Dim.var(name + _LOOP_MARK)


def loops(names: str) -> tuple[Dim, ...]:
    """Returns loop variables for a string of names: `i, j = loops("i j")`."""
    return tuple(map(loop, names.split()))


def axes(rank: int, prefix: str = "i") -> tuple[Dim, ...]:
    """Returns `rank` loop variables `i0`, `i1`, ..."""
    return tuple(loop(f"{prefix}{n}") for n in range(rank))


def is_loop(name: str) -> bool:
    """Whether the Dim variable `name` is a loop variable."""
    return name.endswith(_LOOP_MARK)


def loop_names(dim: Dim) -> frozenset[str]:
    """Returns the loop variables in `dim`."""
    return frozenset(filter(is_loop, dim.variables))


def loop_of(dim: IndexValue) -> str | None:
    """Returns the variable name if `dim` is a bare loop variable, else None."""
    return _loop_of(dim) if isinstance(dim, Dim) else None


@lru_cache(MANY_KEPT)
def _loop_of(dim: Dim) -> str | None:
    if len(dim.variables) != 1:
        return None
    (name,) = dim.variables
    return name if is_loop(name) and dim == Dim.var(name) else None


class _Terms(type):
    """The class of the classes of terms, whose calls return the term that was built before of the same parts."""

    def __call__(cls, *parts: Any, **named: Any) -> Any:
        if not named and (found := _TERMS.get((cls, *parts))) is not None:
            return found
        made: Scalar = super().__call__(*parts, **named)
        key = (cls, *made.key)
        found = _TERMS.get(key)
        if found is None:
            # Now, while the caches of its children are filled, to avoid deep recursion later.
            _ = made.free, made.binders, made.on_indices
            found = _TERMS.add(key, made)
        return found


class Scalar(metaclass=_Terms):
    """Base class of scalar expressions.

    - `dtype`: name of the dtype.
    - `free`: loop variables that the expression does not bind itself.
    """

    dtype: str

    @property
    def children(self) -> tuple[Scalar, ...]:
        """Direct subexpressions, including those in indices."""
        return ()

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset[str]().union(*(child.free for child in self.children))

    @cached_property
    def binders(self) -> int:
        """Maximum number of loop variables bound at once inside the expression."""
        return max((child.binders for child in self.children), default=0)

    @cached_property
    def on_indices(self) -> bool:
        """Whether it computes, without a cast, on constants and integer indices only."""
        return False

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes the term from others of its class: the arguments that build it."""
        return self.__reduce__()[1]

    def __reduce__(self) -> tuple[type[Scalar], tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in _arguments(type(self))])

    def __add__(self, other: ScalarLike) -> Scalar:
        return apply("add", self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return apply("add", other, self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return apply("subtract", self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return apply("subtract", other, self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return apply("multiply", self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return apply("multiply", other, self)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return apply("divide", self, other)

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return apply("divide", other, self)

    def __floordiv__(self, other: ScalarLike) -> Scalar:
        return apply("floor_divide", self, other)

    def __mod__(self, other: ScalarLike) -> Scalar:
        return apply("floor_mod", self, other)

    def __pow__(self, other: ScalarLike) -> Scalar:
        return integer_pow(self, other) if isinstance(other, int) else apply("power", self, other)

    def __neg__(self) -> Scalar:
        return apply("negative", self)

    def __abs__(self) -> Scalar:
        return apply("abs", self)

    def __lt__(self, other: ScalarLike) -> Scalar:
        return apply("less", self, other)

    def __le__(self, other: ScalarLike) -> Scalar:
        return apply("less_equal", self, other)

    def __gt__(self, other: ScalarLike) -> Scalar:
        return apply("greater", self, other)

    def __ge__(self, other: ScalarLike) -> Scalar:
        return apply("greater_equal", self, other)

    def __and__(self, other: ScalarLike) -> Scalar:
        return apply("bitwise_and", self, other)

    def __or__(self, other: ScalarLike) -> Scalar:
        return apply("bitwise_or", self, other)

    def __xor__(self, other: ScalarLike) -> Scalar:
        return apply("bitwise_xor", self, other)

    def __invert__(self) -> Scalar:
        return apply("bitwise_not", self)

    def __lshift__(self, other: ScalarLike) -> Scalar:
        return apply("shift_left", self, other)

    def __rshift__(self, other: ScalarLike) -> Scalar:
        """Shifts unsigned integers logically, signed ones arithmetically."""
        return apply("shift_right_logical" if kind(self.dtype) == "u" else "shift_right_arithmetic", self, other)

    def __bool__(self) -> bool:
        raise ShapeError(f"{self} has no truth value while equations are built; use select, & and |")

    def __str__(self) -> str:
        from relax_eg.tir.text import scalar_text

        return scalar_text(self)


@dataclass(frozen=True, eq=False, repr=False)
class Const(Scalar):
    """A constant, rounded to `dtype`. Equality distinguishes 0.0 from -0.0, and different dtypes."""

    value: Number
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _round_to_dtype(self.value, self.dtype))

    @cached_property
    def on_indices(self) -> bool:
        return True

    @property
    def key(self) -> tuple[Any, ...]:
        return self.dtype, repr(self.value)  # repr distinguishes the sign of zero, NaN and infinities


@dataclass(frozen=True, eq=False, repr=False)
class Index(Scalar):
    """The value of an index or a size, as a number of dtype `dtype`."""

    dim: Dim
    dtype: str = INDEX_DTYPE

    @cached_property
    def on_indices(self) -> bool:
        return kind(self.dtype) in "iu"

    @cached_property
    def free(self) -> frozenset[str]:
        return loop_names(self.dim)


@dataclass(frozen=True, eq=False, repr=False)
class Read(Scalar):
    """The element of `buffer` at `indices`."""

    buffer: str
    indices: tuple[IndexValue, ...]
    dtype: str

    def __post_init__(self) -> None:
        for index in self.indices:
            if isinstance(index, Scalar) and kind(index.dtype) not in "iu":
                raise ShapeError(f"{self.buffer} is indexed by {index}, of dtype {index.dtype}; an integer is needed")

    @property
    def children(self) -> tuple[Scalar, ...]:
        return tuple(index for index in self.indices if isinstance(index, Scalar))

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset[str]().union(*(loop_names(i) if isinstance(i, Dim) else i.free for i in self.indices))


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Scalar):
    """An application of a function of the table `FUNCTIONS`. Built by `apply`, which also turns numbers into
    constants."""

    fn: str
    args: tuple[Scalar, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.fn not in FUNCTIONS:
            raise ShapeError(f"no scalar function `{self.fn}`; there are: {', '.join(FUNCTIONS)}")
        if self.fn == "integer_pow" and not all(isinstance(exponent, Const) for exponent in self.args[1:]):
            raise ShapeError(f"integer_pow of {self.args[0]}: the exponent must be a constant; `power` takes any")
        if self.fn == "reduce_precision" and not all(isinstance(bits, Const) for bits in self.args[1:]):
            raise ShapeError(f"reduce_precision of {self.args[0]}: the numbers of bits must be constants")
        object.__setattr__(self, "dtype", FUNCTIONS[self.fn].dtype([arg.dtype for arg in self.args]))

    @property
    def children(self) -> tuple[Scalar, ...]:
        return self.args

    @cached_property
    def on_indices(self) -> bool:
        return all(arg.on_indices for arg in self.args)


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Scalar):
    """`arg` converted to `dtype`. Floats to integers truncate and saturate, NaN becomes 0; integers wrap; to bool is
    `!= 0`."""

    arg: Scalar
    dtype: str

    def __post_init__(self) -> None:
        kind(self.dtype)  # raises ShapeError for an unknown dtype

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.arg,)


@dataclass(frozen=True, eq=False, repr=False)
class Select(Scalar):
    """`then` where `cond`, else `other`. Lazy: reads in the branch not selected may be out of range."""

    cond: Scalar
    then: Scalar
    other: Scalar
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.cond.dtype != "bool":
            raise ShapeError(f"select on {self.cond}, of dtype {self.cond.dtype}; a bool is needed")
        if self.then.dtype != self.other.dtype:
            raise ShapeError(f"select between {self.then.dtype} and {self.other.dtype}; cast one side")
        object.__setattr__(self, "dtype", self.then.dtype)

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.cond, self.then, self.other)


@dataclass(frozen=True, eq=False, repr=False)
class Reduce(Scalar):
    """`body` reduced over all values of the loop variables in `over`; the last one runs fastest.

    any, all and xor combine the bits of integers, and are the logical connectives on bool. An empty reduction is the
    identity: 0 for sum, 1 for prod, the least value of the dtype for max and the greatest for min (infinite for
    floats), no bit for any, every bit for all, no bit for xor. argmax and argmin are int64 positions along one axis,
    the first among equals; NaN wins, as in numpy; an empty one has no value.
    """

    kind: ReduceKind
    over: tuple[Axis, ...]
    body: Scalar
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        dtype, letter = self.body.dtype, kind(self.body.dtype)
        if not self.over or (self.kind.startswith("arg") and len(self.over) != 1):
            wanted = "one" if self.kind.startswith("arg") else "one or more"
            raise ShapeError(f"{self.kind} over {len(self.over)} axes; accepted: {wanted}")
        bits = dict.fromkeys(("any", "all", "xor"), "biu")
        accepted = {**bits, "sum": "iufc", "prod": "iufc"}.get(self.kind, "biuf")
        if letter not in accepted:
            raise ShapeError(f"{self.kind} of {self.body}: dtype {dtype} is not accepted")
        names = [loop_of(var) for var, _ in self.over]
        if None in names or len(set(names)) < len(names):
            over = ", ".join(str(var) for var, _ in self.over)
            raise ShapeError(f"{self.kind} over {over}: distinct loop variables are needed")
        object.__setattr__(self, "dtype", INDEX_DTYPE if self.kind.startswith("arg") else dtype)

    @property
    def children(self) -> tuple[Scalar, ...]:
        return (self.body,)

    @cached_property
    def free(self) -> frozenset[str]:
        return self.body.free - self.bound

    @cached_property
    def binders(self) -> int:
        return self.body.binders + len(self.over)

    @property
    def bound(self) -> frozenset[str]:
        """The loop variables that this reduction binds."""
        return frozenset[str]().union(*(var.variables for var, _ in self.over))


_TERMS = Interned[tuple[Any, ...], Scalar]()


@lru_cache(FEW_KEPT)
def _arguments(of: type[Any]) -> tuple[str, ...]:
    """The fields that a dataclass is built of."""
    return tuple(f.name for f in fields(of) if f.init)


def walk(expr: Scalar) -> Iterator[Scalar]:
    """Yields every distinct subexpression of `expr` once, including those in indices; parents before children."""
    seen = {expr}
    todo = [expr]
    while todo:
        at = todo.pop()
        yield at
        for child in reversed(at.children):
            if child not in seen:
                seen.add(child)
                todo.append(child)


def joined_by(expr: Scalar, *names: str, most: float = math.inf) -> list[Scalar]:
    """Returns the terms that functions of these names join, in order: factors of a product, conditions that hold
    together. `most`: as in `traversal.leaves`."""
    return leaves(expr, lambda x: x.args if isinstance(x, Apply) and x.fn in names else None, most)


def scalar(value: ScalarLike, dtype: str) -> Scalar:
    """Returns `value` as a Scalar: a Python number becomes a `Const`, a `Dim` an `Index`, of dtype `dtype`."""
    if isinstance(value, Scalar):
        return value
    return Index(value, dtype) if isinstance(value, Dim) else Const(value, dtype)


def const(value: Number, dtype: str) -> Const:
    return Const(value, dtype)


def index(dim: Dim | int, dtype: str = INDEX_DTYPE) -> Index:
    return Index(Dim.of(dim), dtype)


def apply(fn: str, *args: ScalarLike) -> Scalar:
    """Applies the function `fn` of `FUNCTIONS`. Numbers and Dims take the dtype of the first Scalar, else int64."""
    dtype = next((arg.dtype for arg in args if isinstance(arg, Scalar)), INDEX_DTYPE)
    return Apply(fn, tuple(scalar(arg, dtype) for arg in args))


def cast(arg: Scalar, dtype: str) -> Scalar:
    """Returns `arg` cast to `dtype`, or `arg` itself if it has that dtype."""
    return arg if arg.dtype == dtype else Cast(arg, dtype)


def select(cond: Scalar, then: ScalarLike, other: ScalarLike) -> Scalar:
    """Returns `then` where `cond`, else `other`. One of the two must be a Scalar."""
    dtype = next((arg.dtype for arg in (then, other) if isinstance(arg, Scalar)), None)
    if dtype is None:
        raise ShapeError("select between two numbers: give one of them a dtype with const(value, dtype)")
    return Select(cond, scalar(then, dtype), scalar(other, dtype))


def integer_pow(x: Scalar, exponent: int) -> Scalar:
    """Returns `x` to a constant integer power, computed by repeated multiplication."""
    return Apply("integer_pow", (x, Const(exponent, "int32")))


def _round_to_dtype(value: Any, dtype: str) -> Number:
    """Returns `value` rounded to `dtype`, as a Python number of that kind."""
    letter = kind(dtype)
    if letter == "b":
        return bool(value)
    if letter in "iu":
        if value != int(value):
            raise ShapeError(f"the constant {value} is not an integer, as dtype {dtype} needs")
        record = dtype_of(dtype)
        if not record.least <= value <= record.greatest:
            raise ShapeError(f"the constant {value} does not fit {dtype}")
        return int(value)
    with np.errstate(over="ignore"):
        held = np.asarray(value).astype(np.dtype(dtype))
    return complex(held) if letter == "c" else float(held)
