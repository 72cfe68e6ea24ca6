"""Expressions: one interned node type.

A program inside a dataflow block is a graph of `Expr`. Building the same expression twice returns the same object, so
`==` is identity, hashing costs nothing, and common subexpressions are shared by construction. The intern table holds
nodes weakly. Every graph walk here is iterative, because real graphs are thousands of nodes deep.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from relax_eg.argument_checks import FLAG, TEXT, Kind, accepts, of_types
from relax_eg.dtypes import DEFAULTS, numpy_dtype
from relax_eg.errors import OperatorError, UnknownShapeError
from relax_eg.ir.annotations import Annotation, Object, Shape, Tensor, Tuple, dims_in, dims_of
from relax_eg.memo import Interned
from relax_eg.shapes import Dim
from relax_eg.traversal import operands_first

# Heads that are not in the operator table.
VAR = "var"
CONSTANT = "constant"
TUPLE = "tuple"
TUPLE_GET = "tuple_get_item"
SHAPE = "shape"
FUNCTION = "function"  # reference to a module function, by name
CALL = "call"  # call of a module function or of a callable value; args[0] is the callee
CALL_TIR = "call_tir"
CALL_DPS_LIBRARY = "call_dps_library"
BARRIER = "jax.optimization_barrier"  # library call that only keeps the compiler from optimizing across it
MATCH_CAST = "match_cast"
COND = "cond"  # runs one of several functions, chosen by index (see `control`)
WHILE = "while_loop"
SCAN = "scan"
MATCH = "match"  # runs one of several functions, chosen by a value's constructor
CLOSURE = "make_closure"  # a function with its last arguments
CONSTRUCT = "construct"  # a value of a data type
NEW_REF = "new_ref"  # mutable cells
READ_REF = "read_ref"
WRITE_REF = "write_ref"
SHARD_MAP = "shard_map"
ALLOC_STORAGE = "alloc_storage"  # explicit memory (see `memory`)
ALLOC_TENSOR = "alloc_tensor"
CALL_INTO = "call_into"
KILL = "kill"

Attrs = tuple[tuple[str, Any], ...]


class Expr:
    """One value of a program: an operator or core head applied to other values.

    Do not construct it directly: use `node`, `var`, `const` or the operator functions.

    - `op`: the head.
    - `args`: the operands.
    - `attrs`: attributes as (name, value) pairs. Values are hashable: numbers, text, `Dim`s, annotations and tuples of
      these.
    - `annotation`: the facts about the value that are known at compile time.
    """

    __slots__ = ("__weakref__", "annotation", "args", "attrs", "op")
    op: str
    args: tuple[Expr, ...]
    attrs: Attrs
    annotation: Annotation

    def __init__(self) -> None:
        raise TypeError("Expr is interned: build it with relax_eg.ir.node, var, const or the operator functions")

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self  # interned and immutable

    def attr(self, name: str) -> Any:
        """Returns the value of attribute `name`. KeyError if the node has none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def tensor(self) -> Tensor:
        """The annotation if it is a `Tensor`; TypeError otherwise."""
        if not isinstance(self.annotation, Tensor):
            raise TypeError(f"{self.op} is {self.annotation}, not a tensor")
        return self.annotation

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of a tensor. UnknownShapeError if the shape is not known."""
        shape = self.tensor.shape
        if shape is None:
            raise UnknownShapeError(f"the shape of this {self.op} is not known: {self.annotation}")
        return shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype or "unknown"

    @property
    def ndim(self) -> int:
        ndim = self.tensor.ndim
        if ndim is None:
            raise UnknownShapeError(f"the rank of this {self.op} is not known")
        return ndim

    def __repr__(self) -> str:
        if self.op == VAR:
            return f"{self.attr('name')}: {self.annotation}"
        return f"<{self.op}({', '.join(_atom(a) for a in self.args)}): {self.annotation}>"

    # Arithmetic operators. The operator table installs the builders they call (see `install`).
    def __add__(self, other: Any) -> Expr:
        return _built("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return _built("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return _built("subtract", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _built("subtract", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _built("multiply", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _built("multiply", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _built("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _built("divide", other, self)

    def __pow__(self, other: Any) -> Expr:
        return _built("power", self, other)

    def __matmul__(self, other: Any) -> Expr:
        return _built("matmul", self, other)

    def __neg__(self) -> Expr:
        return _built("negative", self)

    def __lt__(self, other: Any) -> Expr:
        return _built("less", self, other)

    def __le__(self, other: Any) -> Expr:
        return _built("less_equal", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _built("greater", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _built("greater_equal", self, other)

    def __getitem__(self, key: Any) -> Expr:
        if isinstance(self.annotation, Tuple) and isinstance(key, int):
            return tuple_get(self, key)
        return _built("getitem", self, key)

    def __iter__(self) -> Iterator[Expr]:
        if isinstance(self.annotation, Tuple):
            return iter(tuple_get(self, i) for i in range(len(self.annotation.fields)))
        raise TypeError(f"a {self.annotation} is not iterable; index or slice it")

    def __bool__(self) -> bool:
        raise TypeError(f"the value of {self!r} is not known while the program is being built")

    __array_priority__ = 1000  # makes numpy scalars on the left defer to these methods

    @property
    def T(self) -> Expr:
        """The tensor with its axes reversed."""
        return _built("permute_dims", self)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Expr:
        return _built("sum", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Expr:
        return _built("reshape", self, shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, Dim)) else shape)

    def astype(self, dtype: str) -> Expr:
        return _built("astype", self, dtype)


Builder = Callable[..., Expr]
_builders: dict[str, Builder] = {}


def install(name: str, builder: Builder) -> None:
    """Makes `Expr`'s methods build operator `name` with `builder`. The operator table calls this once per spelling."""
    _builders[name] = builder


def _built(name: str, *operands: Any, **attributes: Any) -> Expr:
    builder = _builders.get(name)
    if builder is None:
        raise TypeError(f"no operator is installed for `{name}`: import relax_eg first")
    return builder(*operands, **attributes)


_table = Interned[tuple[Any, ...], Expr]()


def node(op: str, args: Iterable[Expr], attrs: Iterable[tuple[str, Any]], annotation: Annotation) -> Expr:
    """Returns the interned expression with these parts. O(number of parts)."""
    arg_tuple = tuple(args)
    attr_tuple = tuple(attrs)
    key = (op, tuple(map(id, arg_tuple)), tuple((k, _key(v)) for k, v in attr_tuple), annotation)
    found = _table.get(key)
    if found is None:
        fresh = object.__new__(Expr)
        fresh.op = op
        fresh.args = arg_tuple
        fresh.attrs = attr_tuple
        fresh.annotation = annotation
        found = _table.add(key, fresh)
    return found


def _key(value: Any) -> Any:
    # Python treats 1, True and 1.0 as equal, and 0.0 and -0.0 too; as attributes they are different.
    if isinstance(value, tuple):
        return (type(value), *(_key(v) for v in value))  # type: ignore[reportUnknownVariableType]
    if isinstance(value, np.generic):
        return (type(value), value.dtype.name, value.tobytes())
    if isinstance(value, float):
        return (float, value.hex() if math.isfinite(value) else repr(value))
    return (type(value), value)


def var(name: str, annotation: Annotation) -> Expr:
    """Returns a variable: a parameter or the name of a binding."""
    return node(VAR, (), (("name", name),), annotation)


def unused_name(stem: str, taken: Container[str], joint: str = "", first: int = 1) -> str:
    """Returns the first of `stem`, `stem1`, `stem2`, ... that is not in `taken`. `joint` stands before the numbers,
    which begin with `first`."""
    numbered = (f"{stem}{joint}{i}" for i in itertools.count(first))
    return stem if stem not in taken else next(name for name in numbered if name not in taken)


def fresh_name(stem: str, taken: set[str], joint: str = "", first: int = 1) -> str:
    """Returns `unused_name(...)`, and adds it to `taken`."""
    taken.add(name := unused_name(stem, taken, joint, first))
    return name


class ConstantData:
    """An array as an attribute value. Compared by dtype, shape and bytes, so NaNs and signed zeros compare exactly."""

    __slots__ = ("array", "key")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
        array.setflags(write=False)
        self.array = array
        self.key = (array.dtype.name, array.shape, array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantData) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __deepcopy__(self, memo: Any) -> ConstantData:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ConstantData, (self.array,)

    def __repr__(self) -> str:
        return f"<{self.array.dtype.name}{list(self.array.shape)}>"


def const(value: Any, dtype: str | None = None) -> Expr:
    """Returns a constant tensor for a number or an array.

    Without `dtype`, Python floats become float32, ints int32 and complex numbers complex64.
    """
    if dtype is None and not hasattr(value, "dtype"):
        dtype = DEFAULTS.get(np.asarray(value).dtype.kind)
    array = np.asarray(value, dtype=None if dtype is None else numpy_dtype(dtype))
    return node(CONSTANT, (), (("data", ConstantData(array)),), Tensor(array.shape, array.dtype.name))


def constant_value(e: Expr) -> np.ndarray[Any, Any]:
    """Returns the array of a constant node."""
    data: ConstantData = e.attr("data")
    return data.array


def tuple_(fields: Iterable[Expr]) -> Expr:
    """Returns a tuple value."""
    items = tuple(fields)
    return node(TUPLE, items, (), Tuple(tuple(f.annotation for f in items)))


def tuple_get(e: Expr, index: int) -> Expr:
    """Returns field `index` of a tuple value. If `e` is a `tuple` node, the result is the operand itself."""
    if e.op == TUPLE:
        return e.args[index]
    if isinstance(e.annotation, Tuple) and not 0 <= index < len(e.annotation.fields):
        raise IndexError(f"field {index} of a tuple of {len(e.annotation.fields)}")
    annotation = e.annotation.fields[index] if isinstance(e.annotation, Tuple) else Object()
    return node(TUPLE_GET, (e,), (("index", index),), annotation)


def shape_value(dims: Sequence[int | str | Dim]) -> Expr:
    """Returns a first-class shape value."""
    sizes = tuple(Dim.of(d) for d in dims)
    return node(SHAPE, (), (("dims", sizes),), Shape(sizes))


# Every element of a list or tuple is checked. An iterator is accepted unchecked, because it can be read only once.
VALUES = Kind(
    lambda x: isinstance(x, Iterator) or (isinstance(x, (list, tuple)) and all(isinstance(v, Expr) for v in x)),  # type: ignore[reportUnknownVariableType]
    "a list of values",
)


@accepts(
    OperatorError,
    name=TEXT,
    args=VALUES,
    out=of_types("an annotation, such as rx.Tensor('n 4'),", Annotation),
    attrs=Kind(lambda x: isinstance(x, Iterable) and not isinstance(x, (str, bytes)), "attributes by name"),
    pure=FLAG,
)
def call_dps_library(
    name: str,
    args: Iterable[Expr],
    out: Annotation,
    attrs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    pure: bool = True,
) -> Expr:
    """Returns a call of library routine `name` in destination-passing style (Relax 3.3). `out` annotates what it
    fills."""
    pairs = tuple(attrs.items() if isinstance(attrs, Mapping) else attrs)
    return node(CALL_DPS_LIBRARY, args, (("name", name), ("attrs", pairs), ("pure", pure)), out)


@accepts(
    OperatorError,
    value=of_types("a value", Expr),
    annotation=of_types("an annotation, such as rx.Tensor('n 4'),", Annotation),
)
def match_cast(value: Expr, annotation: Annotation) -> Expr:
    """Returns `value` with a run-time check that it fits `annotation`. New size variables in `annotation` are defined
    by the check (Relax 3.2)."""
    return node(MATCH_CAST, (value,), (), annotation)


def postorder(roots: Iterable[Expr], stop: Callable[[Expr], bool] | None = None) -> list[Expr]:
    """Returns every node under `roots` once, operands before users, in a deterministic order. O(nodes + edges).

    A node for which `stop(node)` is true is listed, but its operands are not visited.
    """
    return operands_first(roots, _operands if stop is None else lambda e: () if stop(e) else e.args)


_operands: Callable[[Expr], tuple[Expr, ...]] = operator.attrgetter("args")


def own_dims(e: Expr) -> tuple[Dim, ...]:
    """Returns the sizes that a node itself mentions: those of its annotation, then those in its attributes."""
    return (*dims_of(e.annotation), *dims_in(e.attrs))


def rebuild(
    roots: Sequence[Expr],
    replace: Callable[[Expr, tuple[Expr, ...]], Expr],
    instead: Mapping[Expr, Expr] = MappingProxyType({}),
) -> list[Expr]:
    """Rebuilds `roots` bottom-up. `replace(old, new_args)` returns the node that replaces `old`. Operands of the
    expressions for which others stand `instead` are not visited."""
    done = dict(instead)
    for e in postorder(roots, stop=instead.__contains__):
        if e not in done:
            done[e] = replace(e, tuple(done[a] for a in e.args))
    return [done[r] for r in roots]


def _atom(e: Expr) -> str:
    return str(e.attr("name")) if e.op == VAR else e.op
