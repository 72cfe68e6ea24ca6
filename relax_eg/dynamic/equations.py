"""How an operator is computed at capacity, derived from its index equations.

At capacity every loop runs further than it should. Points of the result beyond the true sizes do not matter. At the
other points an equation gives the right value if (1) no index and no number in it depends on a size that moves, and (2)
what reductions read beyond the true sizes is their identity. An operator whose equations satisfy (1) runs unchanged on
arrays at capacity, after the padding of its operands was masked to satisfy (2). Any other operator is computed by its
equations: loops run to capacity, indices use the true sizes, and reductions select valid terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relax_eg.backend.lowering.contractions import factors_of
from relax_eg.backend.lowering.scalar_functions import identity
from relax_eg.backend.lowering.tensor_programs import lower_program
from relax_eg.dtypes import dtype_of, is_float
from relax_eg.dynamic.content import Content, evaluate_content, is_identity, padding_content
from relax_eg.dynamic.layout import Axis, Digit, Moves, TensorLayout, axis_size, unmerge_layout
from relax_eg.dynamic.step import CapacityStep, InnerMask, OperandMask, StepSizes, after_masks
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Apply,
    Buffer,
    Cast,
    Const,
    Index,
    Read,
    Reduce,
    Scalar,
    Select,
    Stage,
    TensorProgram,
    is_loop,
    less,
    loop_of,
    walk,
)
from relax_eg.tir.expr import ReduceKind, joined_by
from relax_eg.tir.program import dims_of
from relax_eg.tir.substitute import rebuild, with_parts

Native = Callable[[StepSizes, Sequence[Any]], Any]


class _NotNative(Exception):
    """The operator's own lowering gives a wrong result at capacity."""


@dataclass(frozen=True)
class _SelectedTerm:
    """A term of a reduction that must be `fill` where a loop is beyond its true size.

    - `stage`: the index of the stage that holds the reduction.
    - `reduce`: the reduction.
    - `term`: the term.
    - `var`: the loop variable.
    - `size`: its true size.
    - `fill`: the identity of the reduction.
    - `reason`: what the reduction needs it for.
    """

    stage: int
    reduce: Reduce
    term: Scalar
    var: Dim
    size: Dim
    fill: Any
    reason: str


def derive_step(
    program: TensorProgram, layouts: Sequence[TensorLayout], moves: Moves, native: Native | None
) -> CapacityStep:
    """The step of an operator with these equations on operands of these layouts.

    `native`: its own lowering, at capacity.
    """
    merged_ones = frozenset(i for i, s in enumerate(layouts) if not s.is_box)
    if native is not None and _is_free_of_sizes(program, moves):
        for boxed in (frozenset[int](), merged_ones):
            try:
                unmerged = [unmerge_layout(s) if i in boxed else s for i, s in enumerate(layouts)]
                return _native_step(program, unmerged, moves, native, boxed)
            except _NotNative:
                if not merged_ones:
                    break
    return _equation_step(program, [unmerge_layout(s) for s in layouts], moves, merged_ones)


def _is_free_of_sizes(program: TensorProgram, moves: Moves) -> bool:
    """Whether no index and no number depends on a size that moves."""
    for stage in program.stages:
        if stage.scans:
            return False
        for term in walk(stage.value):
            if not isinstance(term, Reduce) and any(_mentions(d, moves) for d in dims_of(term)):
                return False
    return True


def _mentions(dim: Dim, moves: Moves) -> bool:
    return any(not is_loop(v) and moves(Dim.var(v)) for v in dim.variables)


# --- the operator's own lowering ---


def _native_step(
    program: TensorProgram, layouts: Sequence[TensorLayout], moves: Moves, native: Native, boxed: frozenset[int]
) -> CapacityStep:
    names = [b.name for b in program.parameters]
    masks: list[OperandMask] = []
    while True:
        current = dict(zip(names, after_masks(layouts, masks), strict=True))
        found = _first_need(program, current, moves)
        if isinstance(found, dict):
            results = tuple(found[name] for name in program.outputs)
            return CapacityStep(native, results[0] if len(results) == 1 else results, tuple(masks), boxed)
        for need in found:
            read = need.term
            if not isinstance(read, Read) or read.buffer not in names or not _is_only_index(read, need.var):
                raise _NotNative
            axis = read.indices.index(need.var)
            operand = names.index(read.buffer)
            digits = current[read.buffer].axes[axis]
            if axis_size(digits) is not need.size:
                raise _NotNative  # the reduction covers only a part of the operand's axis
            moving = [d for d, digit in enumerate(digits) if moves(digit.size)]
            for digit in moving:
                if not is_identity(digits[digit].content, need.fill, need.reduce.kind):
                    masks.append(OperandMask(operand, axis, digit, need.fill, need.reason))


def _first_need(
    program: TensorProgram, buffers: dict[str, TensorLayout], moves: Moves
) -> dict[str, TensorLayout] | list[_SelectedTerm]:
    """The masks that the first reduction with unclean padding needs; without one, the layout of each buffer."""
    known = dict(buffers)
    for n, stage in enumerate(program.stages):
        axes = _axes_of_loops(stage, known, moves)
        for term in walk(stage.value):
            if isinstance(term, Reduce):
                for var, extent in term.over:
                    if moves(extent):
                        for digit, one in enumerate(axes[str(loop_of(var))]):
                            needs = (
                                _needs(n, term, var, extent, (digit, one.size), known, stage) if moves(one.size) else []
                            )
                            if needs:
                                return needs
        known[stage.output.name] = _output_layout(stage, axes, known, moves)
    return known


def _axes_of_loops(stage: Stage, buffers: Mapping[str, TensorLayout], moves: Moves) -> dict[str, Axis]:
    """The digits of each loop variable. Raises _NotAsItIs if a merged axis is indexed by anything but a loop with the
    same digits."""
    axes: dict[str, Axis] = {}
    plain: dict[str, list[Axis]] = {}
    other: set[str] = set()
    for term in walk(stage.value):
        if isinstance(term, Read):
            for axis, i in zip(buffers[term.buffer].axes, term.indices, strict=True):
                name = loop_of(i)
                if name is not None:
                    plain.setdefault(name, []).append(axis)
                    continue
                if len(axis) > 1:
                    raise _NotNative
                if isinstance(i, Dim):
                    other |= i.variables
        elif not isinstance(term, Reduce):
            other |= {v for d in dims_of(term) for v in d.variables}
        elif term.kind in ("argmax", "argmin"):  # its result is a position along the loop
            other |= {str(loop_of(var)) for var, _ in term.over}
    for name, found in plain.items():
        sizes = {tuple(d.size for d in axis) for axis in found}
        if any(len(s) > 1 for s in sizes) and (len(sizes) > 1 or name in other):
            raise _NotNative
        axes[name] = found[0]
    extents = [*zip(stage.indices, stage.output.shape, strict=True)]
    extents += [pair for term in walk(stage.value) if isinstance(term, Reduce) for pair in term.over]
    for var, extent in extents:
        name = str(loop_of(var))
        if name not in axes or len(axes[name]) == 1:
            axes[name] = (Digit(extent, padding_content("float32")),)
        elif axis_size(axes[name]) != extent:
            raise _NotNative
    return axes


def _output_layout(
    stage: Stage, axes: Mapping[str, Axis], buffers: Mapping[str, TensorLayout], moves: Moves
) -> TensorLayout:
    """The layout of what a stage writes, with the contents of its padding."""
    out: list[Axis] = []
    for var in stage.indices:
        digits = axes[str(loop_of(var))]
        out.append(
            tuple(
                Digit(d.size, _content(stage.value, var, n, d.size, buffers)) if moves(d.size) else d
                for n, d in enumerate(digits)
            )
        )
    return TensorLayout(tuple(out), stage.output.dtype)


def _content(term: Scalar, var: Dim, digit: int, size: Dim, buffers: Mapping[str, TensorLayout]) -> Content:
    """The content of `term` where `var` is beyond the true size `size` of one of its digits."""

    def read(at: Read) -> Content:
        layout = buffers.get(at.buffer)
        if layout is not None:
            for axis, i in zip(layout.axes, at.indices, strict=True):
                if i == var and len(axis) > digit and axis[digit].size is size:
                    content = axis[digit].content
                    return content if not content.or_nan or _is_only_index(at, var) else padding_content(at.dtype)
        return padding_content(at.dtype)

    return evaluate_content(term, read)


# --- what a reduction needs ---


def _needs(
    stage: int,
    term: Reduce,
    var: Dim,
    extent: Dim,
    digit: tuple[int, Dim],
    buffers: Mapping[str, TensorLayout],
    whole: Stage,
) -> list[_SelectedTerm]:
    """The terms of a reduction that must be masked along one loop, in one of its digits (place and size); none if it
    already meets its identity there."""
    neutral = neutral_of(term)
    body = term.body
    if _is_skipped(body, var, extent, {**_extents(whole), **dict(term.over)}, neutral):
        return []

    def content(part: Scalar) -> Content:
        return _content(part, var, *digit, buffers)

    if is_identity(content(body), neutral, term.kind):
        return []
    what = f"{term.kind} over {extent}"
    kinds = {"sum": "multiply", "any": "bitwise_and"}
    factors = factors_of(body, kinds[term.kind]) if term.kind in kinds else [body]
    name = loop_of(var)
    if len(factors) > 1 and not (term.kind == "any" and term.dtype != "bool"):
        with_loop = [f for f in factors if name in f.free]
        if len(with_loop) == len(factors) or all(padding_content(f.dtype).is_finite for f in factors):
            return _of_factors(stage, term, var, extent, with_loop, content, neutral, buffers, what)
    return [_SelectedTerm(stage, term, _inner_read(body, var, neutral), var, extent, neutral, what)]


def _of_factors(
    stage: int, term: Reduce, var: Dim, extent: Dim, factors: Sequence[Scalar], content: Callable[[Scalar], Content],
    neutral: Any, buffers: Mapping[str, TensorLayout], what: str,
) -> list[_SelectedTerm]:  # fmt: skip
    """The masks for a product: each factor that may be anything, because 0 times NaN is NaN; otherwise the smallest
    factor, unless one is zero already."""
    contents = [content(f) for f in factors]
    zeros = [c.equals(neutral, or_nan=term.kind == "sum") for c in contents]
    chosen = [f for f, c, zero in zip(factors, contents, zeros, strict=True) if not (c.is_finite or zero)]
    reason = f"{what}: zero times what is there may be NaN"
    if not chosen and not any(zeros):
        chosen = [min(factors, key=lambda f: _weight(f, buffers))]
        reason = f"{what}: one factor is zero, the others are finite"
    out: list[_SelectedTerm] = []
    for f in dict.fromkeys(chosen):
        out.append(_SelectedTerm(stage, term, _inner_read(f, var, neutral), var, extent, neutral, reason))
    return out


def _weight(factor: Scalar, buffers: Mapping[str, TensorLayout]) -> tuple[int, int]:
    """How large the operands of a factor are: the number of symbolic sizes, then the product of the fixed ones."""
    reads = [t for t in walk(factor) if isinstance(t, Read) and t.buffer in buffers]
    sizes = [axis_size(axis) for r in reads for axis in buffers[r.buffer].axes]
    fixed = 1
    for d in sizes:
        fixed *= d.value if d.is_const else 1
    return sum(not d.is_const for d in sizes), fixed


def neutral_of(term: Reduce) -> Any:
    """The identity of a reduction, as a Python number of the body's dtype; for argmax and argmin that of the
    extreme."""
    kind: ReduceKind = "max" if term.kind == "argmax" else "min" if term.kind == "argmin" else term.kind
    return identity(kind, term.body.dtype).item()


def _inner_read(whole: Scalar, var: Dim, fill: Any) -> Scalar:
    """The read along `var` that `whole` consists of, below casts and selects that preserve `fill`; `whole` if it is no
    such read."""
    term = whole
    while True:
        match term:
            case Cast() if _cast_preserves(fill, term.arg.dtype, term.dtype):
                term = term.arg
            case Select(other=Const() as other) if bool(other.value == fill):
                term = term.then
            case Read() if var in term.indices and _is_only_index(term, var):
                return term
            case _:
                return whole


def _is_only_index(read: Read, var: Dim) -> bool:
    name = loop_of(var)
    others = [i for i in read.indices if not (isinstance(i, Dim) and i == var)]
    mentions = [i.variables if isinstance(i, Dim) else i.free for i in others]
    return len(others) == len(read.indices) - 1 and not any(name in m for m in mentions)


def _cast_preserves(fill: Any, source: str, target: str) -> bool:
    """Whether `fill` is representable in `source` and stays the same when cast to `target`."""
    if fill in (0, 1):
        return True
    return is_float(source) and is_float(target) and not dtype_of(source).is_narrow


def _extents(stage: Stage) -> dict[Dim, Dim]:
    return dict(zip(stage.indices, stage.output.shape, strict=True))


def _is_skipped(body: Scalar, var: Dim, extent: Dim, extents: Mapping[Dim, Dim], neutral: Any) -> bool:
    """Whether a select gives the identity wherever `var` is at `extent` or beyond, with other loops inside their
    extents."""
    if not (isinstance(body, Select) and isinstance(body.other, Const) and bool(body.other.value == neutral)):
        return False
    for at in joined_by(body.cond, "bitwise_and"):
        if isinstance(at, Apply) and at.fn in ("less", "less_equal") and all(isinstance(a, Index) for a in at.args):
            low, high = (a.dim for a in at.args if isinstance(a, Index))
            if _never(high - low - (1 if at.fn == "less" else 0), var, extent, extents):
                return True
    return False


def _never(gap: Dim, var: Dim, extent: Dim, extents: Mapping[Dim, Dim]) -> bool:
    """Whether `gap >= 0` is impossible where `var >= extent`. `gap` must be linear in the loops, else False."""
    most = gap
    for name in gap.variables:
        if not is_loop(name):
            continue
        at = Dim.var(name)
        slope = gap.substitute({name: 1}) - gap.substitute({name: 0})
        if not slope.is_const or gap != gap.substitute({name: 0}) + slope * at:
            return False
        if at == var:
            if slope.value > 0:
                return False
            most = most.substitute({name: extent})
        elif at not in extents:
            return False
        else:
            most = most.substitute({name: extents[at] - 1 if slope.value > 0 else 0})
    return most.is_const and most.value < 0


# --- computed by the equations ---


def _equation_step(
    program: TensorProgram, layouts: Sequence[TensorLayout], moves: Moves, boxed: frozenset[int]
) -> CapacityStep:
    known = {b.name: s for b, s in zip(program.parameters, layouts, strict=True)}
    selected: list[_SelectedTerm] = []
    for n, stage in enumerate(program.stages):
        for term in walk(stage.value):
            if isinstance(term, Reduce):
                for var, extent in term.over:
                    if moves(extent):
                        selected += _needs(n, term, var, extent, (0, extent), known, stage)
        axes = {str(loop_of(v)): (Digit(d, padding_content(stage.output.dtype)),) for v, d in _extents(stage).items()}
        known[stage.output.name] = _output_layout(stage, axes, known, moves)
    results = tuple(known[name] for name in program.outputs)

    def compute(at: StepSizes, arrays: Sequence[Any]) -> Any:
        kept = [s for i, s in enumerate(selected) if at.applies_inner_mask(i)]
        ready = _at_capacity(_with_selects(program, kept), at)
        out = lower_program(ready, at.sizes, guarded=True)(*arrays)
        return out[0] if len(out) == 1 else out

    inner = tuple(InnerMask(s.size, s.reason) for s in selected)
    return CapacityStep(compute, results[0] if len(results) == 1 else results, (), boxed, inner)


def _with_selects(program: TensorProgram, selected: Sequence[_SelectedTerm]) -> TensorProgram:
    stages = list(program.stages)
    for n, stage in enumerate(stages):
        mine = [s for s in selected if s.stage == n]
        if mine:
            stages[n] = replace(stage, value=_rebuilt(stage.value, functools.partial(_selecting, selected=mine)))
    return replace(program, stages=tuple(stages))


def _selecting(
    term: Reduce, made: Reduce, done: Mapping[Scalar, Scalar], *, selected: Sequence[_SelectedTerm]
) -> Reduce:
    """The reduction `made`, which was rebuilt from `term`, with its needed terms selected inside the true sizes
    only."""
    env: dict[Scalar, Scalar] = {}
    for s in selected:
        if s.reduce == term:
            at = done[s.term]
            env[at] = Select(less(Index(s.var), Index(s.size)), env.get(at, at), Const(s.fill, at.dtype))
    return replace(made, body=rebuild(made.body, with_parts, env)) if env else made


_RebuildReduction = Callable[[Reduce, Reduce, Mapping[Scalar, Scalar]], Reduce]


def _rebuilt(term: Scalar, reduction: _RebuildReduction) -> Scalar:
    """`term` with every reduction in it replaced, inner ones first. `reduction` gets the old reduction, the same with
    its body rebuilt, and the replacement of every subterm."""

    def made(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
        new = with_parts(at, done)
        return reduction(at, new, done) if isinstance(at, Reduce) and isinstance(new, Reduce) else new

    return rebuild(term, made)


def _at_capacity(program: TensorProgram, at: StepSizes) -> TensorProgram:
    """The program with buffers and loops at capacity. Its indices and numbers still use the true sizes."""

    def buffer(b: Buffer) -> Buffer:
        return replace(b, shape=tuple(Dim.of(at.capacity(d)) for d in b.shape))

    def reduction(_: Reduce, r: Reduce, done: Mapping[Scalar, Scalar]) -> Reduce:
        return replace(r, over=tuple((v, Dim.of(at.capacity(d))) for v, d in r.over))

    stages = tuple(Stage(buffer(s.output), s.indices, _rebuilt(s.value, reduction)) for s in program.stages)
    return replace(program, inputs=tuple(map(buffer, program.inputs)), stages=stages)
