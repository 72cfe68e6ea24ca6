"""Tiling of tensor programs that contract an operand which they compute themselves.

XLA's matmuls on CPUs read their operands from memory. So an operand that the program decodes, scales or converts is
stored as a whole at every call. With tiles along an axis of the output, one tile of the operand is stored at a time,
and stays in cache. This file derives the program of one tile; `tensor_programs` runs it in a loop. Summed axes are not
tiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.backend.lowering.contractions import factors_of, group_factors
from relax_eg.backend.lowering.index_maps import bounds, is_inside, simplify_index
from relax_eg.dtypes import itemsize
from relax_eg.processor import cores
from relax_eg.shapes import Dim
from relax_eg.shapes.relation import atoms_of
from relax_eg.tir import (
    Buffer,
    Index,
    Read,
    Reduce,
    Scalar,
    Stage,
    TensorProgram,
    apply,
    is_loop,
    loop_of,
    rebuild,
    walk,
    with_parts,
)
from relax_eg.tir.work import DECODED, LEAST_BYTES

TILE_BYTES = 1 << 20  # chosen: bytes of the computed operand in a tile, per core: about the size of its own cache
_LARGE = 1 << 22  # chosen: least bytes of a tiled operand that is not `DECODED` times as large as its sources
_LANES = 64  # chosen: least elements of a tile's axis: a matmul of fewer columns is slow
_STEP = "tile"


@dataclass(frozen=True, slots=True)
class TilePlace:
    """How a buffer is cut into tiles. The tile that begins at `b` has the elements from `unit * b` on.

    - `axis`: the axis that is cut.
    - `unit`: elements per step of `b`.
    - `length`: elements of a tile along the axis.
    """

    axis: int
    unit: int
    length: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tiled program. Tile `n` of `count` begins at `min(n * stride, last)`, so the last two tiles may overlap.

    - `before`: the program of the stages that are computed as a whole, if there are any.
    - `each`: the program that computes a tile of the outputs, from tiles of inputs and of outputs of `before`.
    - `places`: how buffers are cut, by name. A buffer without an entry is not cut.
    - `step`: the size variable of `each` that is the beginning of the tile; None if no equation mentions it.
    - `count`: the number of tiles.
    - `stride`: the distance between the beginnings of two tiles.
    - `last`: the beginning of the last tile.
    """

    before: TensorProgram | None
    each: TensorProgram
    places: Mapping[str, TilePlace]
    step: str | None
    count: int
    stride: int
    last: int


def tiles(program: TensorProgram, sizes: Mapping[str, int]) -> Tiles | None:
    """How to compute `program` in tiles on a CPU.

    None if no operand of a contraction is computed, if the operand is small, or if the buffers from which it is
    computed cannot be cut with it.
    """
    if program.workspaces or any(made.scans for made in program.stages):
        return None
    extents = _extents(program, sizes)
    computed = list(_computed(program, sizes, extents))
    if not computed:
        return None
    largest = max(computed, key=lambda c: c.n_bytes)
    program = _with_other_operand_stored(program, sizes, extents, largest)
    for name in reversed(program.outputs):
        shape = [d.evaluate(sizes) for d in program.buffers[name].shape]
        for axis in sorted(range(len(shape)), key=lambda a: -shape[a]):
            found = _Tiling(program, sizes, name, axis, largest).find_tiles()
            if found is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class _ComputedOperand:
    """A computed operand of a contraction.

    - `stage`: the output of the stage that holds the contraction.
    - `term`: the contraction.
    - `factors`: the factors of the computed operand.
    - `other`: the factors of the other operand.
    - `n_bytes`: bytes of the computed operand.
    """

    stage: str
    term: Reduce
    factors: tuple[Scalar, ...]
    other: tuple[Scalar, ...]
    n_bytes: int

    @property
    def loops(self) -> frozenset[str]:
        return _loops(self.factors[0])


def _extents(program: TensorProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """The extent of each loop variable; the largest where several loops have one name."""
    found: dict[str, int] = {}
    for made in program.stages:
        pairs = list(zip(made.indices, made.output.shape, strict=True))
        pairs += [pair for t in walk(made.value) if isinstance(t, Reduce) for pair in t.over]
        for var, extent in pairs:
            name = str(loop_of(var))
            found[name] = max(found.get(name, 0), extent.evaluate(sizes))
    return found


def _computed(
    program: TensorProgram, sizes: Mapping[str, int], extents: Mapping[str, int]
) -> Iterator[_ComputedOperand]:
    """The computed operands for which tiling pays."""
    inputs = {b.name: b for b in program.inputs}
    for made in program.stages:
        outer = frozenset(str(loop_of(i)) for i in made.indices)
        for term in walk(made.value):
            if not isinstance(term, Reduce) or term.kind != "sum":
                continue
            reads = [t for t in walk(term.body) if isinstance(t, Read)]
            if any(_is_windowed(r, outer, term.bound) for r in reads):
                continue  # a convolution, for which XLA has an operator
            groups = group_factors([(f, _loops(f)) for f in factors_of(term.body, "multiply")])
            if len(groups) != 2:
                continue
            for group, other in (groups, groups[::-1]):
                mine, read_again = _bytes_of(group, extents), _bytes_of(other, extents)
                buffers = {t.buffer for f in group for t in walk(f) if isinstance(t, Read)}
                if _is_plain(group) or not buffers or not buffers <= inputs.keys() or mine < LEAST_BYTES:
                    continue
                sources = sum(_size(inputs[b], sizes) for b in buffers)
                tiled = mine // (TILE_BYTES * cores())
                if mine >= DECODED * sources or (mine >= _LARGE and read_again * tiled <= mine):
                    yield _ComputedOperand(made.output.name, term, tuple(group), tuple(other), mine)


def _is_plain(factors: Sequence[Scalar]) -> bool:
    """Whether an operand is a plain read of a buffer, so that it is in memory already."""
    (first, *more) = factors
    return not more and isinstance(first, Read) and all(isinstance(i, Dim) for i in first.indices)


def _with_other_operand_stored(
    program: TensorProgram, sizes: Mapping[str, int], extents: Mapping[str, int], computed: _ComputedOperand
) -> TensorProgram:
    """The program with the other operand in a buffer, if it is computed too: once, not for every tile.

    Unchanged where a read of that operand is not shown to be in range: a `select` may skip it.
    """
    reads = [t for f in computed.other for t in walk(f) if isinstance(t, Read)]
    inside = all(
        is_inside(i.substitute(sizes), d.evaluate(sizes), extents)
        for r in reads
        for i, d in zip(r.indices, program.buffers[r.buffer].shape, strict=True)
        if isinstance(i, Dim)
    )
    if _is_plain(computed.other) or not inside:
        return program
    at = next(n for n, made in enumerate(program.stages) if made.output.name == computed.stage)
    made = program.stages[at]
    bound = {loop_of(i): (i, d) for i, d in zip(made.indices, made.output.shape, strict=True)}
    bound |= {loop_of(i): (i, d) for i, d in computed.term.over}
    if not _loops(computed.other[0]) <= bound.keys():  # it varies over a loop of an enclosing sum
        return program
    loops = [bound[name] for name in bound if name in _loops(computed.other[0])]
    name = "other"
    while name in program.buffers:
        name += "_"
    value = _product(computed.other)
    buffer = Buffer(name, tuple(d for _, d in loops), value.dtype)
    before = Stage(buffer, tuple(i for i, _ in loops), value)
    read = Read(name, before.indices, value.dtype)
    term = replace(computed.term, body=_product((*computed.factors, read)))
    after = Stage(made.output, made.indices, rebuild(made.value, with_parts, {computed.term: term}))
    return replace(program, stages=(*program.stages[:at], before, after, *program.stages[at + 1 :]))


def _product(factors: Sequence[Scalar]) -> Scalar:
    product = factors[0]
    for factor in factors[1:]:
        product = apply("multiply", product, factor)
    return product


def _loops(term: Scalar) -> frozenset[str]:
    return frozenset(v for v in term.free if is_loop(v))


def _bytes_of(group: Sequence[Scalar], extents: Mapping[str, int]) -> int:
    return math.prod(extents[v] for v in _loops(group[0])) * itemsize(group[0].dtype)


def _size(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    return math.prod(d.evaluate(sizes) for d in buffer.shape) * itemsize(buffer.dtype)


def _is_windowed(read: Read, outer: frozenset[str], bound: frozenset[str]) -> bool:
    return any(isinstance(i, Dim) and i.variables & outer and i.variables & bound for i in read.indices)


class _Tiling:
    """The tiling of a program along an axis of an output."""

    def __init__(
        self, program: TensorProgram, sizes: Mapping[str, int], output: str, axis: int, computed: _ComputedOperand
    ) -> None:
        self.program, self.sizes, self.output, self.axis, self.computed = program, sizes, output, axis, computed
        self.extents = _extents(program, sizes)
        self.places: dict[str, TilePlace] = {}
        self.entire: set[str] = set()  # buffers that every tile reads as a whole
        step = _STEP
        while step in program.sizes:
            step += "_"
        self.step = step
        self.stepped = False  # whether an equation computes with the begin of its tile

    def find_tiles(self) -> Tiles | None:
        size = self._shape(self.output)[self.axis]
        unit = self._unit(size)
        length = None if unit is None else self._length(size, unit)
        if unit is None or length is None:
            return None
        self.last = (size - length) // unit
        self.places[self.output] = TilePlace(self.axis, unit, length)
        stages: list[Stage] = []
        whole: list[Stage] = []
        for made in reversed(self.program.stages):
            if made.output.name in self.places:
                cut = self._stage(made)
                if cut is None:
                    return None
                stages.append(cut)
            else:
                whole.append(made)
        if not self._serves(whole):
            return None
        before, each = self._programs(whole[::-1], stages[::-1])
        step = self.step if self.stepped else None
        return Tiles(before, each, self.places, step, _ceil(size, length), length // unit, self.last)

    def _serves(self, whole: Sequence[Stage]) -> bool:
        """Whether the operand is cut, and no stage in `whole` reads a buffer that is computed in tiles."""
        place = self.places.get(self.computed.stage)
        if place is None:
            return False
        made = next(m for m in self.program.stages if m.output.name == self.computed.stage)
        inside = {m.output.name for m in self.program.stages if m.output.name in self.places}
        read = {t.buffer for m in whole for t in walk(m.value) if isinstance(t, Read)}
        return loop_of(made.indices[place.axis]) in self.computed.loops and not read & inside

    def _shape(self, name: str) -> list[int]:
        return [d.evaluate(self.sizes) for d in self.program.buffers[name].shape]

    # --- how long a tile is ---

    def _unit(self, size: int) -> int | None:
        """The unit of which tiles must begin at multiples, so that quotients in indices are cut between their values.

        It is the least common multiple of `_divisors`. None where it does not divide the size of the axis.
        """
        (made,) = (m for m in self.program.stages if m.output.name == self.output)
        name = str(loop_of(made.indices[self.axis]))
        unit = 1
        for term in walk(made.value):
            for dim in tuple(i for i in term.indices if isinstance(i, Dim)) if isinstance(term, Read) else ():
                for by in _divisors(dim.substitute(self.sizes), name):
                    unit = math.lcm(unit, by)
        return unit if size % unit == 0 else None

    def _length(self, size: int, unit: int) -> int | None:
        """The length of a tile along the axis, a multiple of `unit`; None where there would be one tile only."""
        each = math.lcm(unit, _LANES)
        each = each if each <= size // 2 else unit
        fitting = size * TILE_BYTES * cores() // self.computed.n_bytes
        length = max(min(fitting // each, _ceil(size, 2 * each)), 1) * each
        even = _ceil(_ceil(size, _ceil(size, length)), each) * each  # the same number of tiles, of similar lengths
        return even if even < size else None

    # --- equations ---

    def _stage(self, made: Stage) -> Stage | None:
        """The equation of a stage for one tile; None where a buffer that it reads cannot be cut."""
        place = self.places[made.output.name]
        name = str(loop_of(made.indices[place.axis]))
        extents = self.extents | {name: place.length, self.step: self.last + 1}
        moved = {name: place.unit * Dim.var(self.step) + Dim.var(name)}
        fits = True

        def cut(at: Scalar, done: Mapping[Scalar, Scalar]) -> Scalar:
            nonlocal fits
            if isinstance(at, Index) and name in at.dim.variables:
                self.stepped = True
                return Index(at.dim.substitute(moved), at.dtype)
            at = with_parts(at, done)
            if isinstance(at, Read):
                indices = self._read(at, moved, extents)
                fits = fits and indices is not None
                return at if indices is None else Read(at.buffer, indices, at.dtype)
            return at

        value = rebuild(made.value, cut)
        if not fits:
            return None
        shape = (*made.output.shape[: place.axis], Dim.of(place.length), *made.output.shape[place.axis + 1 :])
        return Stage(Buffer(made.output.name, shape, made.output.dtype), made.indices, value)

    def _read(
        self, read: Read, moved: Mapping[str, Dim], extents: Mapping[str, int]
    ) -> tuple[Dim | Scalar, ...] | None:
        """The indices of a read within a tile, relative to the tile of its buffer; None where it cannot be cut."""
        indices: list[Dim | Scalar] = []
        place: TilePlace | None = None
        for axis, i in enumerate(read.indices):
            if not isinstance(i, Dim) or not i.variables & moved.keys():
                indices.append(i)
                continue
            at = simplify_index(i.substitute({**self.sizes, **moved}), extents)
            unit = sum(c for monomial, c in at.terms if len(monomial) == 1 and monomial[0].name == self.step)
            rest = at - unit * Dim.var(self.step)
            low, high = bounds(rest, extents)
            if self.step in rest.variables or unit <= 0 or low is None or low < 0 or high is None or place is not None:
                return None
            place = TilePlace(axis, unit, high + 1)
            indices.append(rest)
        if place is None:
            self.entire.add(read.buffer)
            return None if read.buffer in self.places else tuple(indices)
        return tuple(indices) if self._place(read.buffer, place) else None

    def _place(self, name: str, place: TilePlace) -> bool:
        """Cuts a buffer at `place`. Returns whether that agrees with all reads of the buffer so far and its size."""
        known = self.places.get(name)
        if name in self.entire or (known is not None and (known.axis, known.unit) != (place.axis, place.unit)):
            return False
        length = max(place.length, known.length if known else 0)
        size = self._shape(name)[place.axis]
        if name not in {b.name for b in self.program.inputs}:
            whole = self.places[self.output]
            most = place.unit * (whole.length // whole.unit)
            if length > most or size != place.unit * (self.last + whole.length // whole.unit):
                return False
            length = most
        self.places[name] = TilePlace(place.axis, place.unit, length)
        return place.unit * self.last + length <= size

    def _programs(self, whole: list[Stage], stages: list[Stage]) -> tuple[TensorProgram | None, TensorProgram]:
        program = self.program
        written = {m.output.name for m in stages}
        reads = {t.buffer for m in stages for t in walk(m.value) if isinstance(t, Read)} - written
        inputs = [self._given(b) for b in program.buffers.values() if b.name in reads]
        outputs = tuple(name for name in program.outputs if name in written)
        each = TensorProgram(program.name, tuple(inputs), tuple(stages), outputs)
        asked = [m.output.name for m in whole if m.output.name in reads or m.output.name in program.outputs]
        before = TensorProgram(program.name, program.inputs, tuple(whole), tuple(asked)) if asked else None
        return before, each

    def _given(self, buffer: Buffer) -> Buffer:
        place = self.places.get(buffer.name)
        if place is None:
            return buffer
        shape = (*buffer.shape[: place.axis], Dim.of(place.length), *buffer.shape[place.axis + 1 :])
        return Buffer(buffer.name, shape, buffer.dtype)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _divisors(dim: Dim, name: str) -> Iterator[int]:
    """For each quotient in `dim`, the number of consecutive values of the loop `name` with the same quotient."""
    for atom in atoms_of(dim):
        if atom.op in ("floordiv", "ceildiv") and name in atom.args[0].variables and atom.args[1].is_const:
            by = atom.args[1].const
            stride = next((c for m, c in atom.args[0].terms if len(m) == 1 and m[0].name == name), 1)
            yield by // math.gcd(by, stride)
