"""Lowers tensor programs to JAX functions, for XLA.

Each stage is computed for all its loop variables at once (`loop_values.py`). Reads become slices, reshapes or gathers
(`reads.py`); sums of products become contractions (`contractions.py`); everything else becomes elementwise operations
and reductions, which XLA fuses. A reduction over more than `LARGEST` points runs in a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from relax_eg.backend.lowering.contractions import lower_contraction
from relax_eg.backend.lowering.convolutions import lower_convolution
from relax_eg.backend.lowering.index_maps import affine, bounds
from relax_eg.backend.lowering.loop_values import Indices, LoopValue, pointwise
from relax_eg.backend.lowering.reads import read_elements
from relax_eg.backend.lowering.scalar_functions import (
    accumulator,
    apply_function,
    combine,
    convert,
    identity,
    reduce_axes,
)
from relax_eg.backend.lowering.tiles import Tiles, tiles
from relax_eg.dtypes import WIDE
from relax_eg.errors import BoundsError, RelaxEgError, ShapeError
from relax_eg.figures import binding_text
from relax_eg.ops.keys import dtype_name
from relax_eg.shapes import Dim
from relax_eg.tir import Apply, Cast, Const, Index, Read, Reduce, Scalar, Select, Stage, TensorProgram, loop_of
from relax_eg.tir.text import index_text
from relax_eg.traversal import operands_first

# limit: points (outer loops times what is reduced) above which a reduction that is no contraction runs in a loop
LARGEST = 1 << 27

Sizes = Mapping[str, Any]


def lower_program(
    program: TensorProgram, sizes: Sizes, *, largest: int = LARGEST, guarded: bool = False, tiled: bool = True
) -> Callable[..., tuple[jax.Array, ...]]:
    """`program` as a function that takes one JAX array per parameter and returns a tuple of its outputs.

    The parameters are the inputs, then the lifted workspaces, whose contents do not matter. The function can be traced
    by `jax.jit`, `jax.vmap` and `jax.export`.

    - `sizes`: the value of each size variable: an integer, or a symbolic dimension of JAX. One that only indices and
      numbers mention may also be an integer scalar of JAX.
    - `largest`: points above which a reduction that is no contraction runs in a loop.
    - `guarded`: whether some points of the outputs may not count; reads there may be out of range.
    - `tiled`: whether operands are computed in tiles on a CPU.

    Arithmetic is that of the dtypes in the equations, whatever JAX's x64 flag is. Without x64 no input and no output
    may have a 64-bit dtype.

    An index out of range that no `select` guards raises BoundsError when the function is traced, if the sizes show it.
    If only values show it, the nearest element is read. What a `select` does not choose has no effect.

    Raises ShapeError for arrays that do not fit the buffers, and BoundsError for sizes at which the program is not
    defined.
    """
    missing = sorted(program.sizes - sizes.keys())
    if missing:
        raise ShapeError(f"{program.name}: no value for the size `{missing[0]}`; given: {', '.join(sizes) or 'none'}")

    def run(*arrays: Any) -> tuple[jax.Array, ...]:
        lowering = Lowering(program, sizes, largest, guarded)
        lowering.check(arrays)
        with jax.enable_x64(True):
            found = lowering.tiles() if tiled and not guarded else None
            if found is None:
                return lowering.run(arrays)
            in_tiles = partial(_in_tiles, found, program, sizes, largest)
            return lax.platform_dependent(*arrays, cpu=in_tiles, default=lambda *xs: lowering.run(xs))

    run.__name__ = program.name
    return run


def _in_tiles(found: Tiles, program: TensorProgram, sizes: Sizes, largest: int, *arrays: Any) -> tuple[Any, ...]:
    """The outputs of `program`, computed tile by tile in a loop."""
    data = {b.name: x for b, x in zip(program.parameters, arrays, strict=True)}
    if found.before is not None:
        data |= zip(found.before.outputs, Lowering(found.before, sizes, largest, False).run(arrays), strict=True)
    outputs = [found.each.buffers[name] for name in found.each.outputs]
    shapes = [tuple(d.evaluate(sizes) for d in program.buffers[b.name].shape) for b in outputs]
    empty = tuple(lax.full(shape, 0, np.dtype(b.dtype)) for shape, b in zip(shapes, outputs, strict=True))

    def step(n: Any, made: tuple[Any, ...]) -> tuple[Any, ...]:
        at = lax.min(n * np.int64(found.stride), np.int64(found.last))
        given: list[Any] = []
        for b in found.each.inputs:
            place, x = found.places.get(b.name), data[b.name]
            given.append(x if place is None else _slice(x, at * place.unit, place.length, place.axis))
        here = sizes if found.step is None else {**sizes, found.step: at}
        parts = Lowering(found.each, here, largest, False).run(given)
        places = [found.places[b.name] for b in outputs]
        return tuple(
            lax.dynamic_update_slice_in_dim(whole, part, at * place.unit, place.axis)
            for whole, part, place in zip(made, parts, places, strict=True)
        )

    tiled = lax.fori_loop(np.int64(0), np.int64(found.count), step, empty)
    data |= {b.name: x for b, x in zip(outputs, tiled, strict=True)}
    return tuple(data[name] for name in program.outputs)


def _slice(x: Any, start: Any, length: int, axis: int) -> Any:
    """`length` elements along an axis.

    On CPUs XLA slices floats of less than four bytes as float32, for which it would convert the whole array first. So
    these are sliced as integers.
    """
    dtype = x.dtype
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    bits = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * dtype.itemsize}")) if narrow else x
    part = lax.dynamic_slice_in_dim(bits, start, length, axis)
    return lax.bitcast_convert_type(part, dtype) if narrow else part


class _Frame:
    """A scope in which terms are computed: the loop variables around them, and the values computed so far.

    - `extents`: extents of the loops that are axes.
    - `fixed`: values of sizes, of loops of one step (0), and of loops that JAX runs over (the current step).
    - `guarded`: whether a `select` may skip the terms computed here.
    - `outside`: the enclosing frame.
    """

    def __init__(
        self, extents: dict[str, Any], fixed: dict[str, Any], guarded: bool = False, outside: _Frame | None = None
    ) -> None:
        self.extents = extents
        self.fixed = fixed
        self.guarded = guarded
        self.outside = outside
        self.new_loops: frozenset[str] = frozenset()  # loop variables bound here and not outside
        self.traced = False  # whether this frame is inside a JAX loop that `outside` is not in
        self.indices = Indices(extents, fixed)
        self.memo: dict[Scalar, LoopValue] = {}
        self._guard: _Frame | None = self if guarded else None
        self.ints = {name: Dim.of(n) for name, n in fixed.items() if isinstance(n, int)}

    def with_loops(self, names: Sequence[str], extents: Sequence[Any]) -> _Frame:
        """A frame inside this one, with more loops."""
        single = {name: 0 for name, n in zip(names, extents, strict=True) if isinstance(n, int) and n == 1}
        more = {name: n for name, n in zip(names, extents, strict=True) if name not in single}
        frame = _Frame(self.extents | more, self.fixed | single, self.guarded, self)
        frame.new_loops = frozenset(names)
        return frame

    def at_step(self, name: str, step: Any) -> _Frame:
        """A frame inside this one and a JAX loop, where the loop variable `name` has the value `step`."""
        rest = {k: n for k, n in self.extents.items() if k != name}
        frame = _Frame(rest, {**self.fixed, name: step}, self.guarded, self)
        frame.new_loops, frame.traced = frozenset({name}), True
        return frame

    @property
    def guard(self) -> _Frame:
        """This frame, for terms that a `select` may skip."""
        if self._guard is None:
            self._guard = _Frame(self.extents, self.fixed, True, self)
        return self._guard

    def outermost_frame(self, term: Scalar) -> _Frame:
        """The outermost frame in which `term` has the same value."""
        frame = self
        while frame.outside is not None and not frame.traced and not (term.free & frame.new_loops):
            if frame.guarded and not frame.outside.guarded and term not in frame.outside.memo:
                break
            frame = frame.outside
        return frame

    def dim(self, dim: Dim) -> Dim:
        """`dim` with known integers substituted."""
        return dim.substitute(self.ints) if dim.variables & self.ints.keys() else dim

    @property
    def empty(self) -> bool:
        return any(isinstance(n, int) and n == 0 for n in self.extents.values())


class Lowering:
    """The lowering of a program at given sizes."""

    def __init__(self, program: TensorProgram, sizes: Sizes, largest: int, guarded: bool) -> None:
        self.program = program
        self.guarded = guarded
        self.sizes = {name: int(n) if isinstance(n, (int, np.integer)) else n for name, n in sizes.items()}
        self.largest = largest
        self.data: dict[str, Any] = {}
        self.sizes_known = not any(isinstance(n, jax.Array) for n in self.sizes.values())  # also excludes tracers

    def check(self, arrays: Sequence[Any]) -> None:
        program = self.program
        if len(arrays) != len(program.parameters):
            raise ShapeError(f"{program.name} takes {len(program.parameters)} arrays, got {len(arrays)}")
        for buffer, array in zip(program.parameters, arrays, strict=True):
            shape = self.shape(buffer.shape)
            if tuple(array.shape) != shape:
                at = binding_text(self.sizes)
                raise ShapeError(f"{program.name}: {buffer} is {shape} at {at or 'these sizes'}; got {array.shape}")
            if dtype_name(array) != buffer.dtype:
                raise ShapeError(f"{program.name}: {buffer} got an array of {dtype_name(array)}")
        if not jax.config.values["jax_enable_x64"]:
            for name in program.outputs:
                if program.buffers[name].dtype in WIDE:
                    raise RelaxEgError(
                        f"{program.name}: the output {program.buffers[name]} has a 64-bit dtype, which JAX has not "
                        "without its x64 mode\n  accepted: jax.config.update('jax_enable_x64', True), or a narrower "
                        "dtype"
                    )

    def tiles(self) -> Tiles | None:
        """The tiles in which the program is best computed on a CPU; None where it is not to be tiled."""
        known = all(isinstance(n, int) for n in self.sizes.values())
        return tiles(self.program, self.sizes) if known else None

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        self.data = {b.name: jnp.asarray(a) for b, a in zip(self.program.parameters, arrays, strict=True)}
        for stage in self.program.stages:
            self.data[stage.output.name] = self.stage(stage)
        return tuple(self.data[name] for name in self.program.outputs)

    def shape(self, dims: Sequence[Dim]) -> tuple[Any, ...]:
        extents = tuple(dim.evaluate(self.sizes) for dim in dims)
        for dim, extent in zip(dims, extents, strict=True):
            if isinstance(extent, int) and extent < 0:
                at = binding_text(self.sizes)
                raise BoundsError(f"{self.program.name}: the size {dim} is {extent} at {at}")
        return extents

    def stage(self, stage: Stage) -> Any:
        extents = self.shape(stage.output.shape)
        names = [str(loop_of(index)) for index in stage.indices]
        if stage.scans:
            return self._scan(stage, extents, names)
        return self._all_points(stage.value, names, extents, {})

    def _all_points(self, expr: Scalar, names: Sequence[str], extents: Sequence[Any], fixed: Mapping[str, Any]) -> Any:
        """The array of `expr` over the loops `names`, with the loop variables in `fixed` at given values."""
        frame = _Frame({}, {**self.sizes, **fixed}, self.guarded).with_loops(names, extents)
        frame.outside = None
        value = self.term(expr, frame)
        single = [n for n, name in enumerate(names) if name not in frame.extents]
        array = value.array_over([name for name in names if name in frame.extents], frame.extents)
        return lax.expand_dims(jnp.asarray(array), single)

    def _scan(self, stage: Stage, extents: tuple[Any, ...], names: Sequence[str]) -> Any:
        """A stage that reads its own earlier elements: a loop over its scan axes, all other axes at once."""
        along = {scan.axis: scan for scan in stage.scans}
        free = [axis for axis in range(len(extents)) if axis not in along]
        start = lax.full(extents, 0, np.dtype(stage.output.dtype))
        name = stage.output.name

        def step(n: Any, made: Any) -> Any:
            at: dict[int, Any] = {}
            for axis in reversed(along):  # the last axis is innermost
                size = np.int64(extents[axis])
                n, place = lax.div(n, size), lax.rem(n, size)
                at[axis] = lax.sub(size - 1, place) if along[axis].reverse else place
            self.data[name] = made
            fixed = {names[axis]: place for axis, place in at.items()}
            value = self._all_points(stage.value, [names[a] for a in free], [extents[a] for a in free], fixed)
            starts = [at.get(axis, np.int64(0)) for axis in range(len(extents))]
            return lax.dynamic_update_slice(made, lax.expand_dims(value, list(along)), starts)

        steps = math.prod(extents[axis] for axis in along)
        return lax.fori_loop(np.int64(0), np.int64(steps), step, start) if 0 not in extents else start

    # --- terms ---

    def term(self, expr: Scalar, frame: _Frame) -> LoopValue:
        """The value of `expr`. Subterms are computed first, so that long chains do not recurse."""

        def parts(at: tuple[Scalar, _Frame]) -> list[tuple[Scalar, _Frame]]:
            return [(part, near.outermost_frame(part)) for part, near in _parts(*at)]

        first = (expr, frame.outermost_frame(expr))
        for at, where in operands_first((first,), lambda x: () if x[0] in x[1].memo else parts(x)):
            if at not in where.memo:
                where.memo[at] = self._term(at, where, [home.memo[part] for part, home in parts((at, where))])
        return first[1].memo[expr]

    def _term(self, expr: Scalar, frame: _Frame, parts: Sequence[LoopValue]) -> LoopValue:
        match expr:
            case Const():
                return LoopValue(np.asarray(expr.value).astype(np.dtype(expr.dtype)))
            case Index():
                if frame.empty:
                    return self._unspecified(expr, np.dtype(expr.dtype), frame)
                value = frame.indices.value(frame.dim(expr.dim))
                return LoopValue(convert(jnp.asarray(value.array), expr.dtype), value.loops)
            case Read():
                return self._read(expr, frame, parts)
            case Apply():
                return self._pointwise(lambda *xs: apply_function(expr.fn, xs, expr.args), parts, frame)
            case Cast():
                return LoopValue(convert(jnp.asarray(parts[0].array), expr.dtype), parts[0].loops)
            case Select():
                return self._pointwise(lax.select, parts, frame)
            case Reduce():
                return self._reduce(expr, frame)
            case _:
                raise TypeError(f"not a scalar expression: {type(expr).__name__}")

    def _pointwise(self, function: Callable[..., Any], parts: Sequence[LoopValue], frame: _Frame) -> LoopValue:
        values = [LoopValue(jnp.asarray(part.array), part.loops) for part in parts]
        return pointwise(function, values, frame.indices.order, frame.extents)

    def _read(self, expr: Read, frame: _Frame, parts: Sequence[LoopValue]) -> LoopValue:
        array, computed = self.data[expr.buffer], iter(parts)
        if frame.empty:
            return self._unspecified(expr, array.dtype, frame)
        index: list[Dim | LoopValue] = [frame.dim(i) if isinstance(i, Dim) else next(computed) for i in expr.indices]
        if not frame.guarded:
            self._check_inside(expr, index, array.shape, frame)
        if 0 in array.shape:
            return self._unspecified(expr, array.dtype, frame)
        return read_elements(array, index, frame.indices, frame.guarded)

    def _unspecified(self, expr: Scalar, dtype: Any, frame: _Frame) -> LoopValue:
        """An array of unspecified values, where there are no points or none that count."""
        loops = tuple(name for name in frame.extents if name in expr.free)
        return LoopValue(lax.empty(tuple(frame.extents[name] for name in loops), dtype), loops)

    def _check_inside(self, expr: Read, index: Sequence[Dim | LoopValue], shape: Sequence[Any], frame: _Frame) -> None:
        """Raises BoundsError where the sizes show that an index leaves its axis."""
        for axis, (i, size, written) in enumerate(zip(index, shape, expr.indices, strict=True)):
            if not isinstance(i, Dim) or not isinstance(size, int) or not frame.extents.keys() >= i.variables:
                continue
            extents = {name: frame.extents[name] for name in i.variables}
            if not all(isinstance(n, int) for n in extents.values()):
                continue
            low, high = bounds(i, extents) if affine(i) is not None else _extremes(i, extents)
            if (low is not None and low < 0) or (high is not None and high >= size):
                wrong = low if low is not None and low < 0 else high
                text = index_text(written) if isinstance(written, Dim) else str(written)
                raise BoundsError(
                    f"{self.program.name}: {expr} reads {expr.buffer} at {text} = {wrong} on axis {axis}, "
                    f"whose extent is {size}"
                )

    # --- reductions ---

    def _reduce(self, expr: Reduce, frame: _Frame) -> LoopValue:
        names = [str(loop_of(var)) for var, _ in expr.over]
        extents = self.shape([extent for _, extent in expr.over])
        if any(isinstance(n, int) and n == 0 for n in extents):
            if expr.kind in ("argmax", "argmin"):
                if frame.guarded:
                    return LoopValue(np.int64(0))
                raise BoundsError(f"{self.program.name}: {expr} is over nothing; {expr.kind} needs an element")
            return LoopValue(identity(expr.kind, expr.dtype))
        inner = frame.with_loops(names, extents)
        wide = accumulator(expr.kind, expr.dtype)
        if expr.kind in ("sum", "any") and not inner.empty:
            found = self._convolved(expr, inner, wide) if expr.kind == "sum" and self.sizes_known else None
            found = found or lower_contraction(expr, inner, wide, self.term)
            if found is not None:
                return LoopValue(convert(found.array, expr.dtype), found.loops)
        return self._reduce_over(expr, inner, tuple(n for n in names if n in inner.extents), wide)

    def _convolved(self, expr: Reduce, inner: _Frame, wide: str) -> LoopValue | None:
        def known(term: Scalar) -> LoopValue:
            with jax.ensure_compile_time_eval():
                return self.term(term, _Frame(inner.extents, inner.fixed))

        return lower_convolution(expr, inner, wide, self.term, known, self.data)

    def _reduce_over(self, expr: Reduce, inner: _Frame, over: tuple[str, ...], wide: str) -> LoopValue:
        """The reduction over the loops `over` of `inner`, in a loop if it has more than `largest` points."""
        outer = tuple(n for n in inner.extents if n in expr.body.free and n not in over)
        points = [inner.extents[n] for n in (*outer, *over)]
        if all(isinstance(n, int) for n in points) and math.prod(points) > self.largest:
            return self._in_a_loop(expr, inner, outer, over, wide)
        return self._at_once(expr, inner, over, wide)

    def _at_once(self, expr: Reduce, inner: _Frame, over: tuple[str, ...], wide: str) -> LoopValue:
        body = self.term(expr.body, inner)
        loops = (*(n for n in body.loops if n not in over), *over)
        array = jnp.asarray(body.array_over(loops, inner.extents))
        kept = loops[: len(loops) - len(over)]
        if expr.kind in ("argmax", "argmin"):
            if not over:
                return LoopValue(lax.full(array.shape, np.int64(0)), kept)
            array = convert(array, accumulator(expr.kind, array.dtype.name))
            return LoopValue(reduce_axes(expr.kind, array, [len(kept)]), kept)
        array = convert(array, wide)
        if over:
            array = reduce_axes(expr.kind, array, range(len(kept), len(loops)))
        return LoopValue(convert(array, expr.dtype), kept)

    def _in_a_loop(
        self, expr: Reduce, inner: _Frame, outer: tuple[str, ...], over: tuple[str, ...], wide: str
    ) -> LoopValue:
        """The reduction, as a JAX loop over one loop variable.

        That is the shortest one that leaves at most `largest` points, an outer one if possible. If none does, it is the
        longest one, and the rest is reduced in the same way.
        """
        total = math.prod(inner.extents[n] for n in (*outer, *over))
        inward = () if expr.kind in ("argmax", "argmin") else over
        candidates = [*((n, True) for n in outer), *((n, False) for n in inward)]
        enough = [c for c in candidates if total // inner.extents[c[0]] <= self.largest]
        choices = sorted(enough, key=lambda c: (not c[1], inner.extents[c[0]]))
        choices = choices or sorted(candidates, key=lambda c: -inner.extents[c[0]])
        if not choices:
            return self._at_once(expr, inner, over, wide)
        name, is_outer = choices[0]
        steps = inner.extents[name]
        rest = tuple(n for n in over if n != name)
        loops: tuple[str, ...] = tuple(n for n in outer if n != name)

        def at(step: Any) -> Any:
            value = self._reduce_over(expr, inner.at_step(name, step), rest, wide)
            return value.array_over(loops, inner.extents)

        if is_outer:
            return _ordered(LoopValue(lax.map(at, lax.iota(np.dtype("int64"), steps)), (name, *loops)), inner)
        shape = tuple(inner.extents[n] for n in loops)
        start = lax.full(shape, identity(expr.kind, wide))

        def step(n: Any, done: Any) -> Any:
            return combine(expr.kind, done, convert(at(n), wide))

        total = lax.fori_loop(np.int64(0), np.int64(steps), step, start)
        return LoopValue(convert(total, expr.dtype), loops)


def _ordered(value: LoopValue, frame: _Frame) -> LoopValue:
    loops = tuple(n for n in frame.extents if n in value.loops)
    return LoopValue(value.array_over(loops, frame.extents), loops)


def _parts(expr: Scalar, frame: _Frame) -> list[tuple[Scalar, _Frame]]:
    """The subterms that `expr` is computed from, each with the frame in which it is needed."""
    if isinstance(expr, Reduce):
        return []
    if isinstance(expr, Select):
        return [(expr.cond, frame), (expr.then, frame.guard), (expr.other, frame.guard)]
    return [(child, frame) for child in expr.children]


def _extremes(index: Dim, extents: Mapping[str, int]) -> tuple[int | None, int | None]:
    """The least and the greatest value of an index that is not affine; (None, None) if it has too many points."""
    if math.prod(extents.values()) > 1 << 16:
        return None, None
    with jax.ensure_compile_time_eval():
        values = np.asarray(Indices(extents, {}).value(index).array)
    return int(values.min()), int(values.max())
