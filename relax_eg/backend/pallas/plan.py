"""Selects the tensor programs that are lowered through Pallas, and lays out their loops.

XLA compiles three kinds badly: a contraction with an operand that is decoded from much fewer bytes than it has (a 4-bit
weight), which XLA writes to memory first; a softmax before a contraction, which it writes to memory, too; a reduction
that its author has split over a workspace. They are recognized by their index equations alone. All sizes are known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from relax_eg.backend.lowering.contractions import factors_of
from relax_eg.backend.lowering.index_maps import is_inside
from relax_eg.backend.pallas.tiles import LEAST, MOST_REGISTERS, BlockModel, BlockSizes, Need, choose, kept_of
from relax_eg.byte_units import format_bytes
from relax_eg.dtypes import FLOATS, itemsize
from relax_eg.limits import KEPT, LARGEST_INT32
from relax_eg.ops.multiprocessors import Multiprocessors, OwnKernels, multiprocessors_of
from relax_eg.shapes import Dim
from relax_eg.tir import (
    Apply,
    Buffer,
    Cast,
    Read,
    Reduce,
    Scalar,
    Select,
    Stage,
    TensorProgram,
    apply,
    cast,
    loop,
    loop_of,
    rebuild,
    substitute,
    walk,
    with_parts,
)
from relax_eg.tir.compose import inline_stages
from relax_eg.tir.work import DECODED
from relax_eg.traversal import reached

Chosen: TypeAlias = Callable[[BlockModel], tuple[BlockSizes, Need]]


class Unsuitable(Exception):
    """Raised for a tensor program that is left to XLA; the message says why."""


@dataclass(frozen=True, slots=True)
class Online:
    """Sums that each have a factor exp(x - M), where M is the maximum of x over a loop of the same extent.

    They are computed in one pass; when the running maximum grows, the sums are corrected.

    - `maximum`: the maximum M.
    - `sums`: the sums.
    """

    maximum: Reduce
    sums: tuple[Reduce, ...]

    @property
    def scores(self) -> Scalar:
        """The term x, over the loop of `maximum`."""
        return self.maximum.body

    @property
    def keys(self) -> str:
        """The loop of `maximum`."""
        return str(loop_of(self.maximum.over[0][0]))


@dataclass(frozen=True, slots=True)
class PallasKernel:
    """One `pallas_call`, which computes `output[loops] = value`.

    - `output`: the buffer that it writes.
    - `loops`: the loop variables of the output's axes.
    - `value`: the term of an element; it reads only buffers that are in memory.
    - `extents`: extents of all loops, including those of reductions.
    - `tiles`: the sizes of blocks. A program of the grid computes one value of each loop that runs in none.
    - `online`: groups of sums that are computed in one pass.
    - `clocks`: of the grid, by the model that chooses blocks.
    """

    output: Buffer
    loops: tuple[str, ...]
    value: Scalar
    extents: Mapping[str, int]
    tiles: BlockSizes
    online: tuple[Online, ...]
    clocks: float

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extents[name] for name in self.loops)

    @property
    def programs(self) -> int:
        """Number of programs in the grid, for each part of the keys."""
        return math.prod(-(-self.extents[name] // self.tiles.blocks.get(name, 1)) for name in self.loops)

    @property
    def all_steps(self) -> int:
        """Blocks of keys of a softmax in one pass."""
        return max((-(-self.extents[o.keys] // self.tiles.keys) for o in self.online), default=1)

    @property
    def steps(self) -> int:
        """Blocks of keys of a part."""
        return -(-self.all_steps // self.tiles.parts)

    @property
    def parts(self) -> int:
        """Parts of the keys; none of them is empty."""
        return -(-self.all_steps // self.steps)

    @property
    def kept(self) -> list[tuple[tuple[str, ...], str]]:
        """The loops and the dtype of each array of parts: of the maximum, and of the sums; none where there is one
        part."""
        return [k for o in self.online for k in kept_of(self.loops, o.scores, o.sums)] if self.tiles.parts > 1 else []

    @property
    def kept_bytes(self) -> int:
        """Bytes of the arrays of parts."""
        each = (math.prod(self.extents[n] for n in loops) * itemsize(dtype) for loops, dtype in self.kept)
        return self.parts * sum(each)

    @property
    def read(self) -> list[dict[str, None]]:
        """The buffers that each launch reads: the first one, and the one that adds up the parts, if there is one."""
        if not self.kept:
            return [_buffers_of([self.value])]
        (group,) = self.online
        return [_buffers_of([group.maximum, *group.sums]), _buffers_of([self.value], frozenset(group.sums))]

    @property
    def combining(self) -> PallasKernel:
        """The kernel that adds up the parts, in blocks that it can hold several of."""
        *rows, last = self.tiles.blocks
        blocks = {**dict.fromkeys(rows, LEAST), last: self.tiles.blocks[last]}
        return replace(self, tiles=replace(self.tiles, blocks=blocks, warps=4))


@dataclass(frozen=True, slots=True)
class PallasPlan:
    """The kernels that replace a tensor program.

    - `why`: what XLA would compile badly.
    - `kernels`: the kernels, in order.
    """

    why: str
    kernels: tuple[PallasKernel, ...]


def pallas_plan(
    program: TensorProgram, sizes: Mapping[str, int], device: Multiprocessors, chosen: Chosen = choose
) -> PallasPlan:
    """The kernels of `program` at these sizes on a GPU, in blocks as `chosen` chooses them.

    Unsuitable, with the reason, for a program that is left to XLA.
    """
    return _planned(program, tuple(sorted(sizes.items())), device, chosen)


@lru_cache(KEPT)
def _planned(
    program: TensorProgram, at: tuple[tuple[str, int], ...], device: Multiprocessors, chosen: Chosen
) -> PallasPlan:
    sizes = dict(at)
    known = {name: Dim.of(n) for name, n in sizes.items()}
    buffers = {b.name: tuple(d.evaluate(sizes) for d in b.shape) for b in program.buffers.values()}
    for b in program.buffers.values():
        if not 0 < math.prod(buffers[b.name]) <= LARGEST_INT32:
            raise Unsuitable(f"{b.name} has {math.prod(buffers[b.name])} elements")
    stored = {*program.outputs, *program.workspaces, *program.lifted}
    inlined: dict[str, Stage] = {}
    laid: list[_LaidOut] = []
    reasons: list[str] = []
    for made in program.stages:
        if made.scans:
            raise Unsuitable(f"{made.output.name} reads what it wrote before")
        value = inline_stages(_distinct(substitute(made.value, known), made.output.name), inlined)
        if made.output.name not in stored:
            inlined[made.output.name] = Stage(made.output, made.indices, value)
            continue
        loops = tuple(str(loop_of(i)) for i in made.indices)
        laid.append(_laid_out(made.output, loops, value, buffers))
        reasons += laid[-1].why
    if len(laid) > 1 and any(isinstance(t, Reduce) for k in laid for t in walk(k.value)):
        reasons.append("a reduction split over a workspace")
    if not reasons:
        raise Unsuitable("no decoded operand, no softmax before a contraction, no workspace")
    return PallasPlan(", ".join(dict.fromkeys(reasons)), tuple(_in_blocks(k, device, chosen) for k in laid))


def own_kernels(program: TensorProgram, sizes: Mapping[str, int], device: str) -> OwnKernels | None:
    """What a program at these sizes takes as kernels through Pallas on the GPU of this name, by the model of `tiles`;
    None where it is left to XLA."""
    return _own_kernels(program, tuple(sorted(sizes.items())), multiprocessors_of(device))


@lru_cache(KEPT)
def _own_kernels(
    program: TensorProgram, sizes: tuple[tuple[str, int], ...], device: Multiprocessors
) -> OwnKernels | None:
    try:
        kernels = pallas_plan(program, dict(sizes), device).kernels
    except Unsuitable:
        return None
    at = dict(sizes)
    bytes_of = {n: itemsize(b.dtype) * math.prod(d.evaluate(at) for d in b.shape) for n, b in program.buffers.items()}
    kept = [k.kept_bytes for k in kernels]
    moved = 2 * sum(kept) + sum(
        bytes_of[k.output.name] + sum(bytes_of[n] for read in k.read for n in read) for k in kernels
    )
    seconds, launches = sum(k.clocks for k in kernels) / device.clock, sum(len(k.read) for k in kernels)
    return OwnKernels(seconds, launches, moved, max(kept))


def _distinct(value: Scalar, name: str) -> Scalar:
    """`value` with the bound loops of its reductions renamed, so that no other stage has loops of the same names."""
    number = itertools.count()

    def renamed(term: Scalar) -> Scalar:
        if not isinstance(term, Reduce):
            return term
        n = next(number)
        over = tuple((loop(f"{str(loop_of(var))[:-1]}_{name}_{n}"), extent) for var, extent in term.over)
        new = {str(loop_of(var)): fresh for (var, _), (fresh, _) in zip(term.over, over, strict=True)}
        return Reduce(term.kind, over, substitute(term.body, new))

    return _rewritten(value, {}, renamed)


def _rewritten(value: Scalar, instead: Mapping[Scalar, Scalar], change: Callable[[Scalar], Scalar]) -> Scalar:
    """`value` rebuilt bottom-up: the outermost terms in `instead` are replaced by it, every other term by `change`."""
    return rebuild(value, lambda at, done: change(with_parts(at, done)), instead)


# --- one kernel ---


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """A kernel before its blocks are chosen, which takes longer than all else.

    - `output`, `loops`, `value`, `extents`, `online`: as of `PallasKernel`.
    - `main`: the sum with most products outside of others, if there is a sum.
    - `sides`: the loops that run in blocks.
    - `why`: the reasons why XLA would compile it badly.
    """

    output: Buffer
    loops: tuple[str, ...]
    value: Scalar
    extents: Mapping[str, int]
    online: tuple[Online, ...]
    main: Reduce | None
    sides: Sequence[str]
    why: Sequence[str]


def _laid_out(
    output: Buffer, loops: tuple[str, ...], value: Scalar, buffers: Mapping[str, tuple[int, ...]]
) -> _LaidOut:
    """The kernel that writes `output`."""
    extents = dict(zip(loops, buffers[output.name], strict=True))
    for term in walk(value):
        if isinstance(term, Reduce):
            extents.update({str(loop_of(var)): size.const for var, size in term.over})
    _check(value, extents, buffers)
    value, online = _online(value, extents)
    sums = [t for t in _outermost(value) if t.kind == "sum"]
    main = max(sums, key=lambda t: math.prod(extents[n] for n in (*t.free, *t.bound)), default=None)
    sides, decoded = _sides(main, loops, extents, buffers)
    why: list[str] = []
    if any(len(factors_of(s.body, "multiply")) > 1 for o in online for s in o.sums):
        between = any(_holds_contraction(o.scores) for o in online)
        why.append(f"a softmax {'between contractions' if between else 'before a contraction'}")
    if main is not None and decoded and not any(isinstance(t, Reduce) and t.free & main.bound for t in walk(main.body)):
        why.append("a contraction with a decoded operand")
    return _LaidOut(output, loops, value, extents, online, main, sides, why)


def _in_blocks(k: _LaidOut, device: Multiprocessors, chosen: Chosen) -> PallasKernel:
    """The kernel in the blocks that are chosen for it."""
    passes = [(o.scores, o.keys, o.sums) for o in k.online]
    after = [t for t in _outside_reductions(k.value) if isinstance(t, Read)]
    tiles, need = chosen(BlockModel(k.extents, k.loops, k.sides, passes, k.main, after, device))
    if math.isinf(need.clocks):
        raise Unsuitable(
            f"no block of it fits: the least takes {format_bytes(need.shared_bytes)} of shared memory and "
            f"{need.registers} registers of a thread; there are {format_bytes(device.block_shared_bytes)} and "
            f"{MOST_REGISTERS}"
        )
    return PallasKernel(k.output, k.loops, k.value, k.extents, tiles, k.online, need.clocks)


def _check(value: Scalar, extents: Mapping[str, int], buffers: Mapping[str, tuple[int, ...]]) -> None:
    """Raises Unsuitable where a loop has extent 0, or a read is not shown to be inside its buffer."""
    if not all(extents.values()):
        raise Unsuitable("there is a loop of no step")
    for read in _unguarded(value):
        for i, size in zip(read.indices, buffers[read.buffer], strict=True):
            if isinstance(i, Dim) and not is_inside(i, size, extents):
                raise Unsuitable(f"{read} is not shown to be inside {read.buffer}")


def _unguarded(value: Scalar) -> Iterator[Read]:
    """The reads that are made regardless of what `Select`s choose."""
    terms = reached((value,), lambda at: (at.cond,) if isinstance(at, Select) else at.children)
    return (at for at in terms if isinstance(at, Read))


def _buffers_of(values: Sequence[Scalar], known: frozenset[Scalar] = frozenset()) -> dict[str, None]:
    """The buffers that `values` read, in order, without what they read for the `known` terms alone."""
    terms = reached(values, lambda at: () if at in known else at.children)
    return {at.buffer: None for at in terms if isinstance(at, Read) and at not in known}


def _outermost(value: Scalar) -> list[Reduce]:
    """The reductions in `value` that are inside no other reduction."""
    return [t for t in _outside_reductions(value) if isinstance(t, Reduce)]


def _outside_reductions(value: Scalar) -> list[Scalar]:
    """The terms of `value`, without those inside of reductions."""
    return list(reached((value,), lambda at: () if isinstance(at, Reduce) else at.children))


def _holds_contraction(term: Scalar) -> bool:
    return any(
        isinstance(t, Reduce) and t.kind == "sum" and len(factors_of(t.body, "multiply")) > 1 for t in walk(term)
    )


def _sides(
    main: Reduce | None, loops: Sequence[str], extents: Mapping[str, int], buffers: Mapping[str, tuple[int, ...]]
) -> tuple[list[str], bool]:
    """The loops that run in blocks, and whether an operand of the main contraction is decoded.

    For each operand of the main contraction, the longest loop that the other one does not have. Without a contraction,
    the last loop of extent above 1.
    """
    open_loops = [n for n in loops if extents[n] > 1]
    if main is None:
        return open_loops[-1:], False
    factors = factors_of(main.body, "multiply")
    decoded = any(_is_decoded(f, extents, buffers) for f in factors)
    sides = sorted({frozenset(f.free) & set(open_loops) for f in factors}, key=lambda side: (len(side), sorted(side)))
    left = sides[-1]
    decoded &= len(sides) > 1  # else no element is read again, as in a sum of squares
    # The other operand is the factor with most loops that the first does not have.
    right = max(sides, key=lambda side: (len(side - left), sorted(side)))
    chosen: list[str] = []
    for own in (left - right, right - left):
        names = [n for n in open_loops if n in own]
        if names:
            chosen.append(max(names, key=lambda n: (extents[n], loops.index(n))))
    chosen.sort(key=loops.index)
    if not chosen and open_loops:
        chosen = [open_loops[-1]]
    return chosen, decoded


def _is_decoded(factor: Scalar, extents: Mapping[str, int], buffers: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a factor has `DECODED` times the bytes of the buffers it is computed from. Plain reads, which XLA
    broadcasts, are not decoded."""
    if (isinstance(factor, Read) and not factor.children) or any(isinstance(t, Reduce) for t in walk(factor)):
        return False
    made = math.prod(extents[n] for n in factor.free) * itemsize(factor.dtype)
    reads = {t.buffer: itemsize(t.dtype) * math.prod(buffers[t.buffer]) for t in walk(factor) if isinstance(t, Read)}
    return made >= DECODED * sum(reads.values()) and made > 1


# --- softmax in one pass ---


def _online(value: Scalar, extents: Mapping[str, int]) -> tuple[Scalar, tuple[Online, ...]]:
    """`value` with divisors that do not vary over a sum moved out of it, and the groups of sums of one pass."""
    value = _rewritten(value, {r: _divided_last(r) for r in _outermost(value) if r.kind == "sum"}, lambda term: term)
    groups: dict[Reduce, list[Reduce]] = {}
    for r in _outermost(value):
        maximum = _exponent_of(r, extents)
        if maximum is not None:
            groups.setdefault(maximum, []).append(r)
    return value, tuple(Online(m, tuple(dict.fromkeys(sums))) for m, sums in groups.items())


def _single(r: Reduce, extents: Mapping[str, int]) -> str:
    """The only loop that a reduction runs over; "" where there are several, or its extent is 1."""
    name = str(loop_of(r.over[0][0]))
    return name if len(r.over) == 1 and extents[name] > 1 else ""


def _exponent_of(r: Reduce, extents: Mapping[str, int]) -> Reduce | None:
    """The maximum M, if `r` is a sum with a factor exp(x - M), where M is the maximum of x; otherwise None."""
    stream = _single(r, extents) if r.kind == "sum" else ""
    for factor in factors_of(r.body, "multiply") if stream else ():
        inner = factor.arg if isinstance(factor, Cast) else factor
        if not (isinstance(inner, Apply) and inner.fn == "exp" and isinstance(inner.args[0], Apply)):
            continue
        difference = inner.args[0]
        if difference.fn != "subtract" or not isinstance(difference.args[1], Reduce):
            continue
        x, m = difference.args
        assert isinstance(m, Reduce)
        over = _single(m, extents)
        alike = m.kind == "max" and over and extents[over] == extents[stream] and stream not in m.free
        if alike and substitute(m.body, {over: Dim.var(stream)}) == x:
            return m
    return None


def _divided_last(r: Reduce) -> Scalar:
    """A sum of quotients by the same divisor as the quotient of the sum; other sums unchanged."""
    divisors: list[Scalar] = []
    factors: list[Scalar] = []
    for f in factors_of(r.body, "multiply"):
        quotient = f.arg if isinstance(f, Cast) else f
        if isinstance(quotient, Apply) and quotient.fn == "divide" and not quotient.args[1].free & r.bound:
            divisors.append(cast(quotient.args[1], f.dtype))
            factors.append(cast(quotient.args[0], f.dtype))
        else:
            factors.append(f)
    if not divisors or r.dtype not in FLOATS:
        return r
    body = factors[0]
    for f in factors[1:]:
        body = apply("multiply", body, f)
    total: Scalar = Reduce(r.kind, r.over, body)
    for d in divisors:
        total = apply("divide", total, d)
    return total
