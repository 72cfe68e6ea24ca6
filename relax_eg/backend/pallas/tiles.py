"""Chooses the blocks, warps and stages of a kernel by a model of the GPU.

A choice fits if a block's shared memory and the registers of its threads are within the device's. Of those that fit,
the one is chosen whose grid takes fewest clocks: programs run in rounds, as many at once on a multiprocessor as fit
there; a program takes as long as its products on the tensor cores or its loads from the cache, whichever is longer, and
the time of what is computed element by element, but never less than the latency of its loads, which stages hide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from relax_eg.backend.lowering.contractions import factors_of, group_factors, strip_widening_casts
from relax_eg.dtypes import dtype_of, itemsize, kind
from relax_eg.ops.multiprocessors import Multiprocessors
from relax_eg.tir import Apply, Cast, Read, Reduce, Scalar, Select, loop_of, walk

LEAST = 16  # given: least side of a block of the tensor cores, in Triton
_SIDES = (16, 32, 64, 128)  # limit: sides of blocks that are tried
_WIDEST = 256  # limit: columns in one block; a softmax is computed once for all of them
_WARPS = (4, 8)  # limit: warps of a block that are tried
_STAGES = (1, 2, 3)  # limit: stages of loads in shared memory that are tried
_PARTS = (2, 4, 8, 16, 32, 64)  # limit: parts into which the keys of a softmax are split
_ELEMENTS = (16, 32, 64)  # limit: elements of a thread in a block that is reduced element by element
_DEEPEST = 1024  # limit: values of a loop in such a block
_THREADS = 32  # given: threads of a warp
_MOST_BLOCKS = 32  # given: blocks that a multiprocessor runs at once
# measured: `python -m benchmarks.gpu_kernels`, what ptxas tells: registers of a thread beside those of its elements,
# and those of a score; estimated registers up to which nothing is spilled; least bytes of shared memory of a block
_OWN_REGISTERS, _OF_SCORE, MOST_REGISTERS, _OWN_SHARED = 48, 3, 208, 4096
_AFTER = 2  # chosen: registers of an element of the result at the end, beside those that are read with it
_RESERVED = 1024  # given: bytes of shared memory that each block has beside its own
_LOADED = 24  # chosen: bytes that a multiprocessor loads from the level-2 cache in a clock, where all of them load
_SCALARS = 128  # given: float32 operations of a multiprocessor in a clock
_LATENCY = 800  # chosen: clocks until a load from memory is there
_STEP = 200  # chosen: clocks of a step beside its work: barriers, and what threads tell each other
_COMBINED = 6000  # chosen: clocks of the launch that adds up the parts of a split softmax, beside its traffic
_SOFTMAX = 10  # chosen: operations of an element of a softmax
_BUSY = 8  # chosen: warps of a multiprocessor that keep its tensor cores busy
_FULL_ROWS = 64  # given: rows of a product of a group of warps (wgmma, from compute capability 9 on)
_GROUP = 4  # given: warps of such a group
_WIDE_PRODUCTS = 2048  # given: the tensor cores that have it compute so many products in a clock, or more


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of a kernel's blocks.

    - `blocks`: values that a program of the grid computes, of loops of the grid that run in blocks.
    - `keys`: values of the loop of a softmax in one pass.
    - `parts`: parts of that loop, which programs of their own compute.
    - `depth`: values of the loop of a contraction.
    - `inner`: values of the loop of a contraction inside of a softmax.
    - `elements`: most elements of a block that is reduced element by element.
    - `warps`, `stages`: Triton's `num_warps` and `num_stages`.
    """

    blocks: Mapping[str, int]
    keys: int = 64
    parts: int = 1
    depth: int = 64
    inner: int = 128
    elements: int = 4096
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class Need:
    """What a choice takes.

    - `shared_bytes`, `registers`: of a block, and of a thread.
    - `clocks`: of the whole grid; infinite where it does not fit.
    """

    shared_bytes: int
    registers: int
    clocks: float


@dataclass(frozen=True, slots=True)
class _Counts:
    """What blocks of given sizes take, whatever the warps, stages and parts.

    - `loaded`, `anew`: bytes that a step loads, and that it loads again in steps inside of it.
    - `kept`: bytes of shared memory beside those of loads.
    - `held`: registers of all threads.
    - `side`: elements of the result.
    - `products`, `scalars`: of a step, on the tensor cores and elsewhere.
    - `again`: steps inside of a step.
    """

    loaded: int
    anew: int
    kept: int
    held: int
    side: int
    products: int
    scalars: int
    again: int


def power_of_two(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


def block_of(extent: int, most: int) -> int:
    """The number of values of a loop in a block: a power of two, no more than are needed."""
    return min(max(power_of_two(extent), LEAST), most)


def stream_of(r: Reduce, extents: Mapping[str, int]) -> str:
    """The loop of a reduction that runs in blocks: its longest."""
    return max((str(loop_of(var)) for var, _ in r.over), key=lambda n: extents[n])


def kept_of(grid: Sequence[str], scores: Scalar, sums: Sequence[Reduce]) -> list[tuple[tuple[str, ...], str]]:
    """The loops of the grid and the dtype of each array that keeps the parts of a softmax with split keys: of the
    maximum of `scores`, and of `sums`."""
    kept = [(scores.free, scores.dtype), *((r.free, dtype_of(r.dtype).wider.name) for r in sums)]
    return [(tuple(n for n in grid if n in loops), dtype) for loops, dtype in kept]


def operands_of(r: Reduce, stream: str, blocked: frozenset[str]) -> list[list[Scalar]] | None:
    """The factors of a sum as two operands for the tensor cores, each over `stream` and one loop of its own of
    `blocked`, the loops that run in blocks. None where the sum has no such form."""
    axes = blocked | {stream}
    groups = group_factors([(f, f.free & axes) for f in factors_of(r.body, "multiply")])
    if r.kind != "sum" or len(groups) != 2 or kind(r.dtype) != "f":
        return None
    sides = [frozenset[str]().union(*(f.free for f in g)) & axes for g in groups]
    own = [side - {stream} for side in sides]
    good = all(stream in side and len(mine) == 1 for side, mine in zip(sides, own, strict=True))
    return groups if good and own[0] != own[1] else None


class BlockModel:
    """The choices for one kernel.

    - `extents`: extents of its loops.
    - `grid`: the loops of the grid.
    - `sides`: those of them that run in blocks.
    - `passes`: for each softmax in one pass its scores, their loop, and the sums that go with it.
    - `main`: the longest sum, where there is no softmax.
    - `after`: the reads that are outside of all sums.
    - `device`: the GPU.
    - `at_end`: registers of an element of the result at the end, beside those of `after`.
    - `key`: equal for models with equal choices.
    """

    def __init__(
        self,
        extents: Mapping[str, int],
        grid: Sequence[str],
        sides: Sequence[str],
        passes: Sequence[tuple[Scalar, str, Sequence[Reduce]]],
        main: Reduce | None,
        after: Sequence[Read],
        device: Multiprocessors,
        at_end: int = _AFTER,
    ) -> None:
        self.extents, self.grid, self.sides, self.device, self._at_end = extents, grid, sides, device, at_end
        over = tuple((scores, own, tuple(sums)) for scores, own, sums in passes)
        self.key = tuple(extents.items()), tuple(grid), tuple(sides), over, main, tuple(after), device, at_end
        self.scores = [scores for scores, _, _ in passes]
        kept = [(loops, itemsize(dtype)) for scores, _, sums in passes for loops, dtype in kept_of(grid, scores, sums)]
        self._kept = sum(math.prod(extents[n] for n in loops) * size for loops, size in kept)  # bytes of a part
        self.sums = [r for _, _, sums in passes for r in sums] or ([main] if main is not None else [])
        self.main, self.after = None if passes else main, after
        # Loops over keys; of the same loop, each sum has one under its own name.
        self.keys = {own for _, own, _ in passes} | {self.stream(r) for _, _, sums in passes for r in sums}
        blocked = frozenset(sides)
        held = {r: None for scores in self.scores for r in walk(scores) if isinstance(r, Reduce)}
        pairs = {r: operands_of(r, self.stream(r), blocked) for r in self.sums}
        within = {r: operands_of(r, self.stream(r), blocked | self.keys) for r in held}
        self.outer = {r: pair for r, pair in pairs.items() if pair is not None}
        self.inner = {r: pair for r, pair in within.items() if pair is not None}
        self.others = [r for r in held if r not in self.inner]
        terms = self._terms()
        self.reads = [t for t in terms if isinstance(t, Read)]
        on_cores = {r: strip_widening_casts(pair) for r, pair in (*self.outer.items(), *self.inner.items())}
        groups = [g for pair in on_cores.values() for g in pair]
        self.plain = {g[0] for g in groups if len(g) == 1 and isinstance(g[0], Read)}
        # The tensor cores multiply operands, and widen them.
        parts = {r: {t for g in pair for f in g for t in walk(f)} for r, pair in on_cores.items()}
        there = {t for r in on_cores for t in walk(r.body) if t not in parts[r]}
        self.work = [t for t in terms if isinstance(t, Apply | Cast | Select) and t not in there]
        # Operands that are computed: their loops, and the bytes of an element.
        self.made = [
            (frozenset[str]().union(*(f.free for f in g)), itemsize(g[0].dtype))
            for g in groups
            if len(g) > 1 or not isinstance(g[0], Read)
        ]
        self._known: dict[tuple[tuple[str, int], ...], _Counts] = {}  # by the sizes of blocks

    def stream(self, r: Reduce) -> str:
        """The loop of a reduction that runs in blocks: its longest."""
        return stream_of(r, self.extents)

    def _terms(self) -> list[Scalar]:
        """The terms that a step computes. A sum's copy of the scores, under the name of its own loop, is the scores."""
        roots = [*self.scores]
        for r in self.sums:
            factors = factors_of(r.body, "multiply")
            roots += [f for f in factors if not self.scores or not any(isinstance(t, Reduce) for t in walk(f))]
        return list(dict.fromkeys(t for root in roots for t in walk(root) if t.free))

    # --- the choices ---

    def candidates(self) -> Iterator[BlockSizes]:
        """Yields the choices."""
        for warps, sizes in itertools.product(_WARPS, itertools.product(*(self._widths(n) for n in self.sides))):
            blocks = dict(zip(self.sides, sizes, strict=True))
            for each in _ELEMENTS:
                base = BlockSizes(blocks, warps=warps, elements=each * _THREADS * warps)
                if self.scores:
                    yield from self._of_softmax(base)
                elif self.outer:
                    deep = max(self.extents[self.stream(r)] for r in self.outer)
                    depths = sorted({block_of(deep, most) for most in _SIDES[1:]})
                    for depth, stages in itertools.product(depths, _STAGES):
                        yield replace(base, depth=depth, stages=stages)
                else:
                    yield base
                if self.outer and (self.inner or not self.scores):
                    break  # nothing long is reduced element by element

    def _of_softmax(self, base: BlockSizes) -> Iterator[BlockSizes]:
        longest = max(self.extents[n] for n in self.keys)
        inside = max((self.extents[self.stream(r)] for r in self.inner), default=LEAST)
        inners = sorted({block_of(inside, most) for most in (_SIDES[-1], _WIDEST)})
        is_idle = self._programs(base) < self.device.count
        for keys, inner, stages in itertools.product(_up_to(longest), inners, _STAGES):
            yield replace(base, keys=keys, inner=inner, stages=stages)
            for parts in _PARTS if is_idle and len(self.scores) == 1 else ():
                if 2 * parts * keys <= longest:
                    yield replace(base, keys=keys, inner=inner, stages=stages, parts=parts)

    def _widths(self, name: str) -> list[int]:
        """The numbers of values of a loop of the grid in a block."""
        extent = self.extents[name]
        if self.scores and not any(name in scores.free for scores in self.scores):
            return sorted({block_of(extent, most) for most in (_WIDEST // 2, _WIDEST)})
        return _up_to(extent) if self.sums else [block_of(extent, _WIDEST)]

    def _programs(self, tiles: BlockSizes) -> int:
        return tiles.parts * math.prod(-(-self.extents[n] // tiles.blocks.get(n, 1)) for n in self.grid)

    # --- what a choice takes ---

    def need(self, tiles: BlockSizes) -> Need:
        """What a choice takes."""
        sizes = self._sizes(tiles)
        key = tuple(sizes.items())
        counts = self._known.get(key)
        if counts is None:
            counts = self._known[key] = self._counts(sizes)
        shared = _OWN_SHARED
        if self.outer or self.inner:
            shared += max(tiles.stages * counts.loaded + counts.kept, 4 * counts.side)
        registers = _OWN_REGISTERS + -(-counts.held // (_THREADS * tiles.warps))
        if shared > self.device.block_shared_bytes or registers > MOST_REGISTERS:
            return Need(shared, registers, math.inf)
        return Need(shared, registers, self._clocks(tiles, sizes, shared, registers, counts))

    def _counts(self, sizes: Mapping[str, int]) -> _Counts:
        """What blocks of these sizes take."""

        def count(loops: frozenset[str]) -> int:
            return math.prod([sizes[n] for n in loops if n in sizes])

        streamed, again = self._streamed(sizes), self._inner_steps(sizes)
        inner = frozenset(self.stream(r) for r in self.inner)
        reads = [(t, count(t.free), itemsize(t.dtype)) for t in self.reads]
        loaded = sum(n * size for t, n, size in reads if t.free & streamed)
        anew = sum(n * size for t, n, size in reads if t.free & inner) * (again - 1)
        once = sum(n * size for t, n, size in reads if t in self.plain and not t.free & streamed)
        scores = sum(count(s.free) for s in self.scores)
        made = sum(count(loops) for loops, _ in self.made) - scores
        sums = sum(count(r.free) for r in self.sums)
        held = sums + _OF_SCORE * scores + max(0, made)
        side = count(frozenset(self.sides))
        if self.outer or self.inner:
            # The tensor cores take float32 from registers. Elsewhere, each element is loaded from a place of its own.
            held += sum(count(t.free) for t in self.plain if itemsize(t.dtype) > 2)
            held += 2 * sum(n for t, n, _ in reads if t not in self.plain and t.free & streamed)
        else:
            held += loaded // 4 + max((count(t.free) for t in self.work), default=0)
        held = max(held, side * (self._at_end + sum(set(self.sides) <= t.free for t in self.after)))
        on_cores = (*self.outer, *self.inner)
        products = sum(count(r.free | r.bound) * _width(r) * (again if r in self.inner else 1) for r in on_cores)
        scalars = sum(count(t.free) for t in self.work if t.free & streamed)
        if self.scores:  # the sums are corrected at every step
            scalars += _SOFTMAX * scores + 2 * sums
        kept = once + sum(count(loops) * size for loops, size in self.made)
        return _Counts(loaded, anew, kept, held, side, products, scalars, again)

    def _clocks(
        self, tiles: BlockSizes, sizes: Mapping[str, int], shared: int, registers: int, counts: _Counts
    ) -> float:
        d, threads, programs = self.device, _THREADS * tiles.warps, self._programs(tiles)
        at_once = d.shared_bytes // (shared + _RESERVED), d.registers // (registers * threads), d.threads // threads
        resident = max(1, min(*at_once, _MOST_BLOCKS))
        used = min(resident, -(-programs // d.count))
        computing = counts.products / self._products(tiles, used)
        loading = (counts.loaded + counts.anew) / _LOADED
        overlapped = computing + loading if tiles.stages == 1 else max(computing, loading)
        step = overlapped + counts.scalars / _SCALARS + _STEP * counts.again
        steps, waiting = self._steps(tiles, sizes), _LATENCY * counts.again / tiles.stages
        rounds = -(-programs // (d.count * resident))
        combining = _COMBINED + 2 * tiles.parts * self._kept / (_LOADED * d.count) if tiles.parts > 1 else 0.0
        return rounds * steps * max(used * step, waiting) + combining

    def _products(self, tiles: BlockSizes, used: int) -> float:
        """The products that a multiprocessor computes in a clock on its tensor cores, with so many blocks at once."""
        rate = self.device.products * min(1.0, used * tiles.warps / _BUSY)
        rows, groups = max((tiles.blocks.get(n, 1) for n in self.sides[:1]), default=1), tiles.warps // _GROUP
        if self.device.products < _WIDE_PRODUCTS or rows >= _FULL_ROWS * groups:
            return rate
        # Too few rows for all groups of warps: products are narrower. Where the next product reads this one's rows,
        # only the groups that have rows multiply.
        busy = max(1, rows // _FULL_ROWS) if self.inner else groups
        return rate / 2 * busy / groups

    def _sizes(self, tiles: BlockSizes) -> dict[str, int]:
        """The number of values in a block of each loop that runs in blocks."""
        sizes = {**tiles.blocks, **dict.fromkeys(self.keys, tiles.keys)}
        for r in self.inner:
            sizes[self.stream(r)] = block_of(self.extents[self.stream(r)], tiles.inner)
        for r in (*self.others, *(() if self.scores else self.sums)):
            stream = self.stream(r)
            most = tiles.depth if r in self.outer else elementwise(tiles, math.prod(sizes.get(n, 1) for n in r.free))
            sizes[stream] = block_of(self.extents[stream], most)
        return sizes

    def _streamed(self, sizes: Mapping[str, int]) -> set[str]:
        """The loops of which a step has other values than the one before."""
        again = {self.stream(r) for r in self.inner} if self._inner_steps(sizes) > 1 else set[str]()
        return again | (self.keys or {self.stream(r) for r in self.sums})

    def _inner_steps(self, sizes: Mapping[str, int]) -> int:
        """The steps of the contraction inside of a softmax."""
        loops = [self.stream(r) for r in (*self.inner, *self.others)]
        return max((-(-self.extents[n] // sizes[n]) for n in loops), default=1)

    def _steps(self, tiles: BlockSizes, sizes: Mapping[str, int]) -> int:
        """The steps of a program's longest loop."""
        if self.keys:
            name = next(iter(self.keys))
            return -(-self.extents[name] // (sizes[name] * tiles.parts))
        over = [str(loop_of(v)) for v, _ in self.main.over] if self.main is not None else []
        return math.prod(-(-self.extents[n] // sizes.get(n, 1)) for n in over)


def _up_to(extent: int) -> list[int]:
    """Sides of blocks of a loop."""
    return sorted({block_of(extent, most) for most in _SIDES})


def _width(r: Reduce) -> int:
    """Products of 16-bit floats that take as long as one of the operands' own: those of float32 run as TF32."""
    factors = [f.arg if isinstance(f, Cast) else f for f in factors_of(r.body, "multiply")]
    return max((itemsize(f.dtype) for f in factors if kind(f.dtype) == "f"), default=itemsize(r.dtype)) // 2


def elementwise(tiles: BlockSizes, others: int) -> int:
    """The values of a loop in a block that is reduced element by element, beside `others` values of other loops."""
    return max(LEAST, min(_DEEPEST, tiles.elements // others))


def choose(model: BlockModel) -> tuple[BlockSizes, Need]:
    """The choice that takes fewest clocks, and what it takes; of several the first. Infinite clocks: none fits."""
    found = ((t, model.need(t)) for t in model.candidates())
    return min(found, key=lambda each: (each[1].clocks, each[1].shared_bytes))
