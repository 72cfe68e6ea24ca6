"""Reference semantics of tensor programs: vectorised evaluation on numpy arrays, typed or exact.

Every loop variable of a stage has an axis. A term's value is an array with all of these axes, of extent 1 where the
term does not depend on the variable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from relax_eg.dtypes import dtype_of, kind, numpy_dtype
from relax_eg.errors import BoundsError, ShapeError
from relax_eg.limits import FEW_KEPT, MANY_KEPT
from relax_eg.shapes import Dim
from relax_eg.tir.exact import UNDEFINED, to_exact, uninterpreted_value
from relax_eg.tir.expr import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, joined_by, loop_of
from relax_eg.tir.functions import FUNCTIONS, REDUCTIONS, Array, exact_function, identity, widen
from relax_eg.tir.program import Stage, TensorProgram
from relax_eg.tir.text import index_text
from relax_eg.traversal import operands_first

# Sizes and casts on numpy arrays, typed and exact; used by the evaluator of tensor programs.


def dim_values(dim: Dim, env: Mapping[str, Any]) -> Any:
    """Returns the value of `dim` for variables that are arrays, which `Dim.evaluate` cannot compare."""
    total: Any = dim.const
    for monomial, coefficient in dim.terms:
        product: Any = coefficient
        for atom in monomial:
            if atom.op == "var":
                product = product * atom.evaluate(env)
                continue
            first, *others = (np.asarray(dim_values(arg, env)) for arg in atom.args)
            if atom.op == "select":
                product = product * np.where(first >= 0 if atom.name == ">=" else first == 0, *others)
                continue
            for other in others:
                match atom.op:
                    case "max":
                        first = np.maximum(first, other)
                    case "min":
                        first = np.minimum(first, other)
                    case "floordiv":
                        first = first // other
                    case _:
                        first = -(-first // other)
            product = product * first
        total = total + product
    return total


def convert(x: Array, dtype: str) -> Array:
    """Converts `x` as XLA does. From float to integer it saturates, and NaN becomes 0."""
    to = np.dtype(dtype)
    if x.dtype == to:
        return x
    source, target = kind(x.dtype.name), kind(dtype)
    with np.errstate(all="ignore"):
        if source == "c" and target != "c":
            x = x.real
        if target == "b":
            return widen(x) != 0
        if source not in "fc" or target not in "iu":
            return x.astype(to)
        x, low, high = widen(x), dtype_of(dtype).least, dtype_of(dtype).greatest
        below, above = x <= float(low), x >= float(high)
        inside = np.where(below | above | np.isnan(x), 0, x).astype(np.int64 if high < 2**63 else np.uint64)
        return np.where(below, low, np.where(above, high, inside)).astype(to)


def to_exact_array(x: Array) -> Array:
    return np.asarray(np.frompyfunc(to_exact, 1, 1)(x), dtype=object)


def _wrap(value: Any, dtype: str) -> Any:
    """Returns an exact value as `dtype` holds it: integers wrap, other values are unchanged."""
    if kind(dtype) not in "iu" or value is UNDEFINED or isinstance(value, float):
        return value
    held = dtype_of(dtype)
    return (int(value) - held.least) % (1 << held.bits) + held.least


@lru_cache(FEW_KEPT)
def exact_ufunc(fn: str, argument: str, dtype: str) -> Any:
    function = exact_function(FUNCTIONS[fn], argument)

    def call(*args: Any) -> Any:
        return UNDEFINED if any(arg is UNDEFINED for arg in args) else _wrap(function(*args), dtype)

    return np.frompyfunc(call, FUNCTIONS[fn].arity, 1)


@lru_cache(FEW_KEPT)
def exact_conversion(source: str, target: str) -> Any:
    letters = kind(source) + kind(target)

    def call(x: Any) -> Any:
        if x is UNDEFINED:
            return x
        if letters[1] == "b":
            return x != 0
        if letters[0] == "c" and letters[1] != "c":
            x = uninterpreted_value("real", x)
        if letters[1] in "iu":
            if letters[0] in "iub":
                return _wrap(int(x), target)
            low, high = dtype_of(target).least, dtype_of(target).greatest
            return low if x <= low else high if x >= high else math.trunc(x)
        return int(x) if letters[0] == "b" else x

    return np.frompyfunc(call, 1, 1)


def evaluate(
    program: TensorProgram,
    arrays: Sequence[Any],
    sizes: Mapping[str, int],
    *,
    arithmetic: Literal["numpy", "exact"] = "numpy",
    ordered: bool = False,
) -> list[Array]:
    """Returns the program's outputs on `arrays`, for size variables with the values `sizes`.

    - `arrays`: one for each of `program.parameters`. The contents of a workspace passed by the caller do not matter.
    - `arithmetic="numpy"`: arrays of the buffers' dtypes, computed as XLA does (NaN propagates, integers wrap). Sums
      use the dtype of the summed values, but low-precision floats are summed in float32 and rounded once.
    - `arithmetic="exact"`: object arrays. Floats and complex are ints, Fractions, infinities or UNDEFINED
      (see `exact.py`); integers wrap to their dtype; casts between floats do nothing. Inputs may be numeric or object
      arrays.
    - `ordered=True`: reductions are left folds in the dtype itself, from the first element, with the last axis of
      `over` running fastest. The result then depends on the equations alone.

    BoundsError, with buffer, index and extent, for a read out of range that no `select` guards.
    """
    if len(arrays) != len(program.parameters):
        raise ShapeError(f"{program.name} takes {len(program.parameters)} arrays, got {len(arrays)}")
    run = _Run(program, sizes, arithmetic == "exact", ordered)
    for buffer, given in zip(program.parameters, arrays, strict=True):
        array = np.asarray(given)
        shape = run.shape(buffer.shape)
        if array.shape != shape:
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ShapeError(f"{program.name}: {buffer} is {shape} at {at or 'these sizes'}; got {array.shape}")
        if run.exact:
            array = to_exact_array(array)
        elif array.dtype != numpy_dtype(buffer.dtype):
            raise ShapeError(f"{program.name}: {buffer} got an array of {array.dtype}")
        run.data[buffer.name] = array
    for stage in program.stages:
        run.data[stage.output.name] = run.stage(stage)
    return [run.data[name] for name in program.outputs]


_NOWHERE = (-1, -1)  # given: axis and extent of a loop that no frame has; no axis has this size


@dataclass(eq=False)
class _Frame:
    """The context of a term's evaluation: axes and extents of the bound loop variables, and the points that count.

    - `loops`: axis and extent of each loop variable.
    - `rank`: number of axes of every value.
    - `used`: number of bound axes.
    - `active`: the points whose value is needed, None for all.
    - `memo`: values already computed in this frame.
    - `fixed`: loop variables with a fixed value.
    """

    loops: dict[str, tuple[int, int]]
    rank: int
    used: int
    active: Array | None = None
    memo: dict[Scalar, Array] = field(default_factory=dict[Scalar, Array])
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def empty(self) -> bool:
        """Whether the frame has no points."""
        return any(extent == 0 for _, extent in self.loops.values())

    @cached_property
    def values(self) -> dict[str, Array]:
        """The values of the loop variables, each along its own axis."""
        still = {name: np.full((1,) * self.rank, value) for name, value in self.fixed.items()}
        return still | {
            name: np.arange(extent).reshape([extent if at == axis else 1 for at in range(self.rank)])
            for name, (axis, extent) in self.loops.items()
        }

    def restricted_to(self, mask: Array) -> _Frame:
        """Returns this frame restricted to the points in `mask`."""
        active = mask if self.active is None else self.active & mask
        return _Frame(self.loops, self.rank, self.used, active, fixed=self.fixed)

    def with_loops(self, names: Sequence[str], extents: Sequence[int]) -> _Frame:
        """Returns this frame with more loop variables bound, on the next axes."""
        bound = {name: (self.used + n, extent) for n, (name, extent) in enumerate(zip(names, extents, strict=True))}
        return _Frame(self.loops | bound, self.rank, self.used + len(bound), self.active, fixed=self.fixed)


class _Run:
    """One evaluation of a program."""

    def __init__(self, program: TensorProgram, sizes: Mapping[str, int], exact: bool, ordered: bool) -> None:
        self.program = program
        self.sizes = sizes
        self.exact = exact
        self.ordered = ordered
        self.data: dict[str, Array] = {}
        self._extents: dict[Dim, int] = {}

    def shape(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(map(self._extent, dims))

    def _extent(self, dim: Dim) -> int:
        found = self._extents.get(dim)
        if found is None:
            found = self._extents[dim] = int(dim.evaluate(self.sizes))
            if found < 0:
                raise BoundsError(f"{self.program.name}: the size {dim} is {found} at {dict(self.sizes)}")
        return found

    def stage(self, stage: Stage) -> Array:
        extents = self.shape(stage.output.shape)
        names = [str(loop_of(index)) for index in stage.indices]
        if stage.scans:
            return self._scan(stage, extents, names)
        rank = max(1, len(extents) + stage.value.binders)  # numpy turns arrays without axes into scalars
        frame = _Frame({}, rank, 0).with_loops(names, extents)
        value = self.term(stage.value, frame)
        full = (*extents, *(1,) * (rank - len(extents)))
        return np.array((value if value.shape == full else np.broadcast_to(value, full)).reshape(extents))

    def _scan(self, stage: Stage, extents: tuple[int, ...], names: Sequence[str]) -> Array:
        """Evaluates a stage that reads what it wrote earlier: stepwise along its scans, vectorised along the other
        axes."""
        dtype = np.dtype(object) if self.exact else numpy_dtype(stage.output.dtype)
        made = self.data[stage.output.name] = np.zeros(extents, dtype)
        along = [scan.axis for scan in stage.scans]
        free = [axis for axis in range(len(extents)) if axis not in along]
        rank = max(1, len(free) + stage.value.binders)
        steps = [range(extents[scan.axis])[:: -1 if scan.reverse else 1] for scan in stage.scans]
        for point in itertools.product(*steps):
            fixed = {names[axis]: value for axis, value in zip(along, point, strict=True)}
            frame = _Frame({}, rank, 0, fixed=fixed).with_loops([names[a] for a in free], [extents[a] for a in free])
            value = self.term(stage.value, frame)
            shape = tuple(extents[axis] for axis in free)
            value = np.broadcast_to(value, (*shape, *(1,) * (rank - len(free)))).reshape(shape)
            where = dict(zip(along, point, strict=True))
            made[tuple(where.get(axis, slice(None)) for axis in range(len(extents)))] = value
        return made

    def term(self, expr: Scalar, frame: _Frame) -> Array:
        memo = frame.memo
        if expr not in memo:
            for x in _parts_first(expr):
                if x not in memo:
                    memo[x] = self._term(x, frame)
        return memo[expr]

    def _term(self, expr: Scalar, frame: _Frame) -> Array:
        match expr:
            case Const():
                return self._number(expr.value, expr.dtype, frame)
            case Index():
                value = self._dim(expr.dim, frame)
                return to_exact_array(value) if self.exact else value.astype(np.dtype(expr.dtype))
            case Read():
                return self._read(expr, frame)
            case Apply():
                return self._call(expr.fn, [frame.memo[arg] for arg in expr.args], expr.args[0].dtype, expr.dtype)
            case Cast():
                arg = frame.memo[expr.arg]
                if self.exact:
                    return exact_conversion(expr.arg.dtype, expr.dtype)(arg)
                return convert(arg, expr.dtype)
            case Select():
                return self._select(expr, frame)
            case Reduce():
                return self._reduce(expr, frame)
            case _:
                raise TypeError(f"not a scalar expression: {type(expr).__name__}")

    def _number(self, value: Any, dtype: str, frame: _Frame) -> Array:
        if self.exact:
            return np.full((1,) * frame.rank, to_exact(value), object)
        with np.errstate(over="ignore"):
            return np.full((1,) * frame.rank, value).astype(np.dtype(dtype))

    def _dim(self, dim: Dim, frame: _Frame) -> Array:
        """Returns the value of `dim` at every point."""
        if frame.empty:
            return np.zeros((1,) * frame.rank, np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.asarray(dim_values(dim, {**self.sizes, **frame.values}))
        return value if value.ndim == frame.rank else value.reshape((1,) * frame.rank)

    def _call(self, fn: str, args: Sequence[Array], argument: str, dtype: str) -> Array:
        """Applies the function `fn`, whose first argument has dtype `argument` and whose result has dtype `dtype`."""
        if self.exact:
            with np.errstate(all="ignore"):  # numpy warns where infinities give UNDEFINED
                return np.asarray(exact_ufunc(fn, argument, dtype)(*args), dtype=object)
        return FUNCTIONS[fn](args, dtype)

    def _read(self, expr: Read, frame: _Frame) -> Array:
        data = self.data[expr.buffer]
        if not expr.indices:
            return data.reshape((1,) * frame.rank)
        shape, axes = [1] * frame.rank, list[int]()
        for index, size in zip(expr.indices, data.shape, strict=True):
            axis, extent = frame.loops.get(loop_of(index) or "", _NOWHERE)
            if extent != size or axis in axes:
                return self._gather(expr, data, frame)
            axes.append(axis)
            shape[axis] = extent
        order = sorted(axes)
        return (data if axes == order else data.transpose([axes.index(axis) for axis in order])).reshape(shape)

    def _gather(self, expr: Read, data: Array, frame: _Frame) -> Array:
        indices: list[Array] = []
        undefined: Array | None = None
        for axis, index in enumerate(expr.indices):
            value = self._dim(index, frame) if isinstance(index, Dim) else self.term(index, frame)
            if value.dtype == object:
                unknown = value == UNDEFINED
                undefined = unknown if undefined is None else undefined | unknown
                value = np.where(unknown, 0, value)
            value, extent = value.astype(np.int64), data.shape[axis]
            outside = (value < 0) | (value >= extent)
            if frame.active is not None:
                outside = outside & frame.active
            if outside.any() and not frame.empty:
                wrong = np.broadcast_to(value, outside.shape)[outside][0]
                text = index_text(index) if isinstance(index, Dim) else str(index)
                raise BoundsError(
                    f"{self.program.name}: {expr} reads {expr.buffer} at {text} = {wrong} on axis {axis}, "
                    f"whose extent is {extent}"
                )
            indices.append(np.clip(value, 0, max(extent - 1, 0)))
        if not data.size:  # all points are inactive, so any value works
            return np.zeros(np.broadcast_shapes(*(index.shape for index in indices)), data.dtype)
        value = data[tuple(indices)]
        return value if undefined is None else np.where(undefined, UNDEFINED, value)  # type: ignore[call-overload]

    def _select(self, expr: Select, frame: _Frame) -> Array:
        cond = frame.memo[expr.cond]
        mask = (cond == True).astype(bool) if self.exact else cond  # noqa: E712 (elementwise)
        if mask.all():
            return self.term(expr.then, frame)
        other_mask = (cond == False).astype(bool) if self.exact else ~mask  # noqa: E712
        if other_mask.all():
            return self.term(expr.other, frame)
        then = self.term(expr.then, frame.restricted_to(mask))
        other = self.term(expr.other, frame.restricted_to(other_mask))
        value = np.where(mask, then, other)
        if self.exact:
            value = np.where(mask | other_mask, value, UNDEFINED)  # type: ignore[call-overload]
        return value

    def _reduce(self, expr: Reduce, frame: _Frame) -> Array:
        extents = self.shape([extent for _, extent in expr.over])
        inner = frame.with_loops([str(loop_of(var)) for var, _ in expr.over], extents)
        first, last = frame.used, inner.used
        in_order = self.exact or self.ordered
        if expr.kind == "sum" and 0 not in extents and not in_order:
            value = self._sum_of_products(expr.body, inner, first)
            if value is not None:
                return value.astype(np.dtype(expr.dtype))
        body = self.term(expr.body, inner)
        shape = (*body.shape[:first], math.prod(extents), *(1,) * (frame.rank - first - 1))
        body = np.broadcast_to(body, (*body.shape[:first], *extents, *body.shape[last:])).reshape(shape)
        if not math.prod(extents):
            return np.full((*shape[:first], 1, *shape[first + 1 :]), self._identity(expr))
        if expr.kind in ("argmax", "argmin"):
            return self._position(expr.kind, body, first)
        function = REDUCTIONS[expr.kind].function
        if in_order:
            steps = np.moveaxis(body, first, 0)
            value = steps[0]
            for step in steps[1:]:
                value = self._call(function, (value, step), expr.dtype, expr.dtype)
            return np.expand_dims(value, first)
        with np.errstate(all="ignore"):
            wide = widen(body, sums=True)
            value = getattr(np, function).reduce(wide, axis=first, keepdims=True, dtype=wide.dtype)
        return np.asarray(value).astype(np.dtype(expr.dtype))

    def _sum_of_products(self, body: Scalar, inner: _Frame, first: int) -> Array | None:
        """Sums a product over the axes from `first`, contracted without forming the product; None if `body` is not a
        product."""
        factors = _factors(body)
        if len(factors) < 2:
            return None
        values = [widen(self.term(factor, inner), sums=True) for factor in factors]
        shape = np.broadcast_shapes(*(value.shape for value in values))
        scale = math.prod(extent for axis, extent in inner.loops.values() if axis >= first and shape[axis] == 1)
        operands: list[Any] = []
        for value in values:
            kept = [axis for axis in range(inner.rank) if value.shape[axis] != 1]
            operands += [value.reshape([value.shape[axis] for axis in kept]), kept]
        kept = [axis for axis in range(first) if shape[axis] != 1]
        with np.errstate(all="ignore"):
            total = np.asarray(np.einsum(*operands, kept, optimize=True))
            total = total if scale == 1 else total * values[0].dtype.type(scale)
        return total.reshape([shape[axis] if axis < first else 1 for axis in range(inner.rank)])

    def _identity(self, expr: Reduce) -> Any:
        """Returns the value of an empty reduction."""
        if expr.kind in ("argmax", "argmin"):
            raise BoundsError(f"{self.program.name}: {expr} is over nothing; {expr.kind} needs an element")
        if self.exact and expr.kind in ("max", "min") and kind(expr.dtype) == "f":
            return self._scalar(math.inf if expr.kind == "min" else -math.inf, expr.dtype)
        return self._scalar(identity(expr.kind, expr.dtype), expr.dtype)

    def _scalar(self, value: Any, dtype: str) -> Any:
        return np.asarray(value).astype(np.dtype(dtype))[()] if not self.exact else np.array(value, object)

    def _position(self, which: str, body: Array, axis: int) -> Array:
        if not self.exact:
            find = np.argmax if which == "argmax" else np.argmin
            return np.asarray(find(widen(body), axis=axis, keepdims=True), np.int64)
        steps = np.moveaxis(body, axis, 0)
        best, at = steps[0], np.zeros(steps.shape[1:], object)
        better = exact_ufunc("greater" if which == "argmax" else "less", "float32", "bool")
        for n, step in enumerate(steps[1:], 1):
            wins = better(step, best)
            unknown = wins == UNDEFINED
            at = np.where(unknown, UNDEFINED, np.where(wins == True, n, at))  # type: ignore[call-overload] # noqa: E712
            best = np.where(unknown, UNDEFINED, np.where(wins == True, step, best))  # type: ignore[call-overload] # noqa: E712
        return np.expand_dims(at, axis)


@lru_cache(MANY_KEPT)
def _parts_first(expr: Scalar) -> tuple[Scalar, ...]:
    """Returns `expr`, and what it needs at exactly the points where it is needed, each term after its parts."""
    return tuple(operands_first((expr,), _parts))


def _parts(expr: Scalar) -> tuple[Scalar, ...]:
    """Returns the subterms that `expr` needs at exactly the points where it is needed."""
    if isinstance(expr, Reduce):
        return ()
    return (expr.cond,) if isinstance(expr, Select) else expr.children


def _factors(expr: Scalar) -> list[Scalar]:
    """Returns the factors of a product in order. Stops at 8, because a power of a product has any number of factors."""
    return joined_by(expr, "multiply", most=8)
