"""Constant folding of ONNX nodes: their results for arrays that are known while the graph is read, such as shapes and
values computed from shapes.

A node has one meaning, that of its handler. The expression that the handler makes of known arrays is evaluated: on
numbers by the reference interpreter, on sizes by `_ON_SIZES`. An operator that moves elements moves sizes as it moves
the numbers of their places. What the sizes do not decide is None, which a later node may not need.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relax_eg.dtypes import is_float
from relax_eg.frontends.onnx.nodes import Handler, OnnxNode
from relax_eg.frontends.onnx.values import (
    MOST_KNOWN,
    MOST_SIZES,
    Array,
    KnownArray,
    Ratio,
    is_known,
    known_value,
    plain_fraction,
)
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import CONSTANT, Expr, constant_value, own_dims, postorder, var
from relax_eg.ir.module import Module
from relax_eg.ops.interpret import SharedValues
from relax_eg.ops.record import movement_operators
from relax_eg.ops.sizes import remaining_size
from relax_eg.shapes import Dim
from relax_eg.tir.functions import FUNCTIONS

# Nodes by which exporters compute shapes. Others of known inputs, such as `Expand`, are short programs of long results.
_OF_SHAPES = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Mod", "Neg", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater",
        "GreaterOrEqual", "Not", "And", "Or", "Xor", "Where", "Cast", "ReduceProd", "ReduceSum", "ReduceMax",
        "ReduceMin", "Gather", "Concat", "Split", "Slice", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Floor",
        "Ceil",
    )
)  # fmt: skip
_MOVES = movement_operators("view", "order", "part", "repeat", "select", "join") | {"split"}
_HOLD_SIZES = ("int32", "int64")  # sizes are assumed to fit into these


class NotFoldable(Exception):
    """Raised if a node cannot be folded: its result depends on the sizes, or is too large to be computed now. The node
    is then computed when the program runs."""


def fold_node(node: OnnxNode, handler: Handler) -> list[KnownArray] | None:
    """The results of a node if all its inputs are known and small and it can be folded; otherwise None, and the program
    computes the node."""
    known: dict[Expr, Array] = {}
    inputs: list[KnownArray | None] = []
    of_sizes = any(isinstance(v, KnownArray) and v.is_symbolic for v in node.inputs)
    for i, v in enumerate(node.inputs):
        if v is None:
            inputs.append(None)
            continue
        if not isinstance(v, KnownArray) or v.array.size > (MOST_SIZES if v.is_symbolic else MOST_KNOWN):
            return None
        if v.array.dtype.kind not in "iubO" and not of_sizes and (node.kind != "Cast" or v.weight is not None):
            return None
        variable = var(f"x{i}", Tensor(v.array.shape, v.dtype))
        known[variable] = v.array
        inputs.append(replace(v, weight=lambda x=variable: x))
    if node.kind not in _OF_SHAPES or not known or (node.kind == "Mod" and node.flag("fmod")):
        return None
    made = handler(replace(node, inputs=tuple(inputs)))
    results = list(made) if isinstance(made, Sequence) else [made]
    exprs = [r for r in results if isinstance(r, Expr)]
    try:
        return [known_value(x, e.dtype) for x, e in zip(_evaluated(exprs, known), exprs, strict=True)]
    except NotFoldable:
        return None


def _evaluated(results: Sequence[Expr], known: dict[Expr, Array]) -> list[Array]:
    for e in postorder(results):
        if e not in known:
            known[e] = _value(e, [known[a] for a in e.args])
    for e in results:
        if known[e].dtype.kind not in "iubfO" or any(x is None for x in known[e].reshape(-1)):
            raise NotFoldable
    return [known[e] for e in results]


def _value(e: Expr, args: list[Any]) -> Any:
    if e.op == CONSTANT:
        return constant_value(e)
    if e.op == "dim_value":
        made = np.empty((), object)
        made[()] = e.attr("dim")[0]
        return made
    symbolic = any(isinstance(a, np.ndarray) and a.dtype == object for a in args)
    most = MOST_SIZES if symbolic else MOST_KNOWN
    if any(not d.is_const for d in own_dims(e)) or math.prod(d.value for d in dims_of(e.annotation)) > most:
        raise NotFoldable
    if not symbolic:
        return _computed(e, args)
    match e.op:
        case "astype":
            if e.dtype not in (*_HOLD_SIZES, "float32", "float64"):
                raise NotFoldable
            return args[0] if is_float(e.dtype) else _settled(np.frompyfunc(_floor, 1, 1)(args[0]), e.dtype)
        case "sum" | "prod" if not is_float(e.dtype):
            function = np.sum if e.op == "sum" else np.prod
            return np.asarray(function(args[0], e.attr("axes"), keepdims=e.attr("keepdims")), object)
        case _:
            in_floats = any(is_float(a.dtype) for a in e.args if isinstance(a.annotation, Tensor))
            f = (_ON_RATIOS if in_floats else _ON_SIZES).get(e.op)
            return _moved(e, args) if f is None else _settled(np.frompyfunc(f, len(args), 1)(*args), e.dtype)


def _computed(e: Expr, args: Sequence[Any]) -> Any:
    """The value of a node by the reference interpreter, on arrays of numbers."""
    return SharedValues(Module(()), dict(zip(e.args, args, strict=True)), {}).of(e)


def _settled(found: Any, dtype: str) -> Array:
    """An array in which no size is left, as numbers."""
    array = np.asarray(found, object)
    plain = all(isinstance(x, bool | int | float | np.generic) for x in array.reshape(-1))
    return array.astype(dtype) if plain else array


def _moved(e: Expr, args: list[Any]) -> Any:
    """The value of an operator that moves sizes: it is computed of the numbers of their places, from which follows
    where each of its elements is from."""
    moved = args[:1] if e.op == "take" else args
    if e.op not in _MOVES or any(a.dtype not in (object, *_HOLD_SIZES, "float32", "float64") for a in moved):
        raise NotFoldable
    starts = np.cumsum([0, *(a.size for a in moved)])
    places: list[Any] = [np.arange(a.size).reshape(a.shape) + n for a, n in zip(moved, starts, strict=False)]
    numbers = [p.astype(x.dtype) for p, x in zip(places, e.args, strict=False)]
    elements = np.concatenate([a.reshape(-1).astype(object) for a in moved])
    found = _computed(e, [*numbers, *args[len(moved) :]])
    parts = found if isinstance(found, tuple) else (found,)
    made = [elements[f.reshape(-1).astype(int)].reshape(f.shape) for f in parts]
    return tuple(made) if isinstance(found, tuple) else made[0]


# --- functions of sizes ---


def _dim(x: Any) -> Dim:
    return x if isinstance(x, Dim) else Dim.of(int(x))


def _of_sizes(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: None if any(x is None for x in xs) else f(*map(_dim, xs))


def _decided(relation: str, opposite: str) -> Callable[..., Any]:
    """Whether a relation of sizes holds; None where the sizes decide."""

    def holds(a: Dim, b: Dim) -> bool | None:
        return True if is_known(a, relation, b) else False if is_known(a, opposite, b) else None

    return _of_sizes(holds)


def _quotient(a: Dim, b: Dim) -> Dim:
    """A size divided by another size: the remaining factors if the division is plain, otherwise a quotient rounded to
    0, as ONNX divides integers. What may have both signs, such as `n - 3`, is a size where the model has a meaning, so
    it is rounded as one that is not negative."""
    found = remaining_size((a,), (b,))
    if found is not None and found * b == a:
        return found
    zero = Dim.of(0)
    return -(-a // b) if is_known(a, "<=", zero) and is_known(b, ">", zero) else a // b


def _chosen(truth: Any, a: Any, b: Any) -> Any:
    return (a if a is b else None) if truth is None else a if truth else b


# --- functions of ratios of sizes, as exporters compute them in floats ---


def _ratio(x: Any) -> Ratio:
    """A number of a model that is computed in floats. A float is the plain fraction that it stands for."""
    if isinstance(x, float):
        near = plain_fraction(x)
        return Ratio(Dim.of(near.numerator), near.denominator)
    return x if isinstance(x, Ratio) else Ratio(_dim(x), 1)


def _as_number(size: Dim, by: int) -> Any:
    """`size / by` as a float, if that is known, as a size, if it is one, or as a ratio."""
    if size.is_const:
        return size.value / by
    found = remaining_size((size,), (Dim.of(by),))
    return found if found is not None and found * by == size else Ratio(size, by)


def _of_ratios(f: Callable[..., Any]) -> Callable[..., Any]:
    def found(*xs: Any) -> Any:
        finite = all(x is not None and not (isinstance(x, float) and not math.isfinite(x)) for x in xs)
        return f(*map(_ratio, xs)) if finite else None

    return found


def _divided(a: Ratio, b: Ratio) -> Any:
    over, under = a.size * b.by, b.size * a.by
    if under.is_const:
        sign = 1 if under.value > 0 else -1
        return _as_number(over * sign, under.value * sign) if under.value else None
    found = remaining_size((over,), (under,))
    return _as_number(found, 1) if found is not None and found * under == over else None


def _floor(x: Any) -> Any:
    return x if x is None or isinstance(x, Dim | int) else math.floor(x) if isinstance(x, float) else x.size // x.by


_ON_RATIOS: Mapping[str, Callable[..., Any]] = {
    "add": _of_ratios(lambda a, b: _as_number(a.size * b.by + b.size * a.by, a.by * b.by)),
    "subtract": _of_ratios(lambda a, b: _as_number(a.size * b.by - b.size * a.by, a.by * b.by)),
    "multiply": _of_ratios(lambda a, b: _as_number(a.size * b.size, a.by * b.by)),
    "divide": _of_ratios(_divided), "negative": _of_ratios(lambda a: _as_number(-a.size, a.by)),
    "floor": _of_ratios(_floor), "ceil": _of_ratios(lambda a: -(-a.size // a.by)),
}  # fmt: skip
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient,
}  # fmt: skip
_less = _decided("<", ">=")
_ON_SIZES: Mapping[str, Callable[..., Any]] = {
    **{f.name: _of_sizes(_ARITHMETIC[f.symbol]) for f in FUNCTIONS.values() if f.symbol in _ARITHMETIC},
    **{f.name: _decided(f.symbol, _OPPOSITES[f.symbol]) for f in FUNCTIONS.values() if f.symbol in _OPPOSITES},
    "negative": _of_sizes(operator.neg), "remainder": _of_sizes(operator.mod),
    "maximum": lambda a, b: _chosen(_less(a, b), b, a), "minimum": lambda a, b: _chosen(_less(a, b), a, b),
    "where": _chosen, "logical_and": lambda a, b: False if a is False or b is False else _chosen(a, b, None),
}  # fmt: skip
