"""Values while an ONNX graph is read: expressions, or arrays that are known now.

Shapes and what is computed of them are known: arrays of whole numbers and sizes (`Dim`), on which numpy does what the
nodes say. So `Shape`, `Gather`, `Concat` and `Reshape` over symbolic sizes leave no trace in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relax_eg.errors import OnnxError
from relax_eg.ir.annotations import is_integer
from relax_eg.ir.expr import Expr, const, np_dtype
from relax_eg.ops import api as op
from relax_eg.ops.sizes import rest
from relax_eg.shapes import Dim, Proved, prove

MOST_KNOWN = 1 << 16  # elements of an array that is computed now

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Known:
    """An array that is known: numbers in its own dtype, or sizes among whole numbers as an array of objects.

    `weight`: gives the parameter that stands for it where the program itself uses it."""

    array: Array
    dtype: str
    weight: Callable[[], Expr] | None = None

    @property
    def is_symbolic(self) -> bool:
        return self.array.dtype == object

    @property
    def expr(self) -> Expr:
        """The array as part of the program."""
        if self.weight is not None:
            return self.weight()
        if not self.is_symbolic:
            return constant(self.array, self.dtype)
        parts = [op.dim_value(Dim.of(d), self.dtype) for d in self.array.reshape(-1)]
        if not self.array.shape:
            return parts[0]
        flat = op.concat([op.reshape(p, (1,)) for p in parts])
        return flat if self.array.ndim == 1 else op.reshape(flat, self.array.shape)


Value = Expr | Known


def constant(array: Array, dtype: str) -> Expr:
    """A constant of a dtype that JAX has switched on: int64 as int32 where that holds the numbers."""
    if is_integer(dtype) and array.size and array.dtype.kind in "iu":
        limits = np.iinfo(np_dtype(dtype))
        if array.min() < limits.min or array.max() > limits.max:
            raise OnnxError(
                f"a constant holds {array.max()}, which is no {dtype}\n"
                "  accepted: numbers in range, or jax.config.update('jax_enable_x64', True) before"
            )
    return const(array.astype(np_dtype(dtype)))


def plain(found: Any) -> Array:
    """An array, or a single size; an array of objects without sizes in it as numbers."""
    array = np.empty((), object) if isinstance(found, Dim) else np.asarray(found)
    if isinstance(found, Dim):
        array[()] = found
    if array.dtype != object:
        return array
    items = [int(d) if isinstance(d, Dim) and d.is_const else d for d in array.reshape(-1)]
    if any(isinstance(d, Dim) for d in items):
        made = np.empty(len(items), object)
        made[:] = items
        return made.reshape(array.shape)
    kind = np.bool_ if items and all(isinstance(d, (bool, np.bool_)) for d in items) else np.int64
    return np.array(items, kind).reshape(array.shape)


def dims(array: Array) -> tuple[Dim, ...]:
    """Sizes in an array of rank 1 or 0."""
    return tuple(d if isinstance(d, Dim) else Dim.of(int(d)) for d in np.atleast_1d(array))


class UndecidedNow(Exception):
    """A question of sizes that has no answer for all of them; the node is computed when the program runs."""


def _equal(a: Any, b: Any) -> bool:
    left, right = (x if isinstance(x, Dim) else Dim.of(int(x)) for x in (a, b))
    if left == right:
        return True
    if isinstance(prove(f"{left} != {right}", timeout_ms=0), Proved):
        return False
    raise UndecidedNow


def _less(a: Any, b: Any) -> bool:
    for text, answer in ((f"{a} < {b}", True), (f"{a} >= {b}", False)):
        if isinstance(prove(text, timeout_ms=0), Proved):
            return answer
    raise UndecidedNow


def _part(a: Any, b: Any) -> Dim:
    """A size divided by another one: what is left of a product, where that is plain."""
    left, right = (x if isinstance(x, Dim) else Dim.of(int(x)) for x in (a, b))
    found = rest((left,), (right,))
    return found if found is not None and found * right == left else left // right


def _divided(a: Array, b: Array) -> Array:
    """Whole numbers are divided towards zero, sizes (which are not negative) down."""
    if a.dtype == object or b.dtype == object:
        return np.asarray(np.frompyfunc(_part, 2, 1)(a, b), object)
    if a.dtype.kind in "iu":
        return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)
    return np.asarray(a / b)


def _objects(f: Callable[[Any, Any], Any], otherwise: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    def apply(a: Array, b: Array) -> Array:
        if a.dtype == object or b.dtype == object:
            return np.asarray(np.frompyfunc(f, 2, 1)(a, b), object)
        return np.asarray(otherwise(a, b))

    return apply


_BINARY: dict[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divided,
    "Equal": _objects(_equal, np.equal), "Less": _objects(_less, np.less),
    "Greater": _objects(lambda a, b: _less(b, a), np.greater),
    "Max": _objects(lambda a, b: b if _less(a, b) else a, np.maximum),
    "Min": _objects(lambda a, b: a if _less(a, b) else b, np.minimum),
}  # fmt: skip


def _slice(x: Array, at: dict[str, Any]) -> Array:
    keys: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(at["axes"], at["starts"], at["ends"], at["steps"], strict=True):
        # An end before the beginning, going backwards, is no end at all to Python.
        keys[axis] = slice(int(start), None if step < 0 and end < -x.shape[axis] else int(end), int(step))
    return x[tuple(keys)]


def computed(kind: str, xs: Sequence[Array], at: dict[str, Any]) -> Any:
    """What a node of this kind gives for known arrays, or None for kinds that are not computed now. `at`: its
    attributes, and what newer versions of ONNX pass as inputs, by name."""
    x = xs[0] if xs else np.zeros(())
    match kind:
        case "Identity":
            return x
        case "Cast":
            to = np_dtype(at["to"])
            return x if x.dtype == object and to.kind in "iu" else None if x.dtype == object else x.astype(to)
        case "Gather":
            return np.take(x, xs[1].astype(np.int64), axis=at["axis"]) if xs[1].dtype != object else None
        case "Concat":
            wide = object if any(a.dtype == object for a in xs) else None
            return np.concatenate([a.astype(wide) if wide else a for a in xs], axis=at["axis"])
        case "Slice":
            return _slice(x, at)
        case "Unsqueeze":
            return np.expand_dims(x, at["axes"])
        case "Squeeze":
            return np.squeeze(x, at["axes"])
        case "Reshape":
            return x.reshape(at["shape"])
        case "Transpose":
            return np.transpose(x, at["perm"])
        case "Where":
            return np.where(xs[0], xs[1], xs[2]) if xs[0].dtype != object else None
        case "ReduceProd" if x.ndim == 1:
            return np.prod(x, keepdims=bool(at["keepdims"]))
        case "Neg":
            return -x
        case _:
            made = _BINARY[kind](*xs) if kind in _BINARY and len(xs) == 2 else None
            return made
