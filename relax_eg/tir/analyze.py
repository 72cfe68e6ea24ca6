"""Analyses of a tensor program's equations: pattern kind, arithmetic and memory traffic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from relax_eg.dtypes import itemsize, kind
from relax_eg.shapes import Dim, dim_min
from relax_eg.shapes.dim import Atom
from relax_eg.tir.expr import (
    Apply,
    Cast,
    Const,
    IndexValue,
    Read,
    Reduce,
    Scalar,
    Select,
    is_loop,
    loop_names,
    loop_of,
    walk,
)
from relax_eg.tir.functions import FUNCTIONS
from relax_eg.tir.program import Buffer, Stage, TensorProgram
from relax_eg.tir.scans import plainly_nonnegative
from relax_eg.traversal import grouped, reached

_ONE, _ZERO = Dim.of(1), Dim.of(0)


class PatternKind(IntEnum):
    """Pattern kinds of Relax, Algorithm 1, from the easiest to fuse to the hardest."""

    ELEMENT_WISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    OUTPUT_EWISE_FUSIBLE = 4
    OPAQUE = 5

    def __str__(self) -> str:
        """Returns the paper's spelling."""
        return {4: "OutputWiseFusible"}.get(self, self.name.title().replace("_", ""))


# --- pattern kind ---


def classify(program: TensorProgram) -> PatternKind:
    """Returns the pattern kind, by Relax's Algorithm 1 on the index equations.

    Where the paper's pseudocode is silent or depends on an order:
    - Two stages have the same write indices if their domains are equal; other programs are Opaque.
    - A stage may read a written buffer, its own included, only at the point it writes; otherwise the program is Opaque.
    - The kind of several reads is the weakest of their kinds, except that Broadcast reads beside an ElementWise one do
      not count. If one read is not even Injective, only the reductions decide, as in TVM.
    - A loop of extent 1 is index 0; a reduction over only such loops is not a reduction.
    - ElementWise and Broadcast reads cover the whole axis of the buffer. A slice does not (Injective).
    - A program without reads is ElementWise: it can be computed anywhere.
    - A sum of products is a multiply-add only if the factors depend on different outer loops (matmul, convolution).
      Otherwise nothing is reused, and it is a Reduction (a sum of squares).
    """
    domain = program.stages[0].output.shape
    if any(made.output.shape != domain or made.scans for made in program.stages):
        return PatternKind.OPAQUE
    inputs = {buffer.name for buffer in program.inputs}
    found: set[PatternKind] = set()
    for made in program.stages:
        write = tuple(_first_point(index, extent) for index, extent in zip(made.indices, domain, strict=True))
        extents = dict(zip(made.indices, domain, strict=True))
        single = {name for index, extent in extents.items() if extent == 1 for name in index.variables}
        single |= _unit_loops(made.value)
        for read in _reads(made.value):
            kind = _relation(read, program.buffers[read.buffer], extents, single, write)
            if read.buffer in inputs:
                found.add(kind)
            elif kind is not PatternKind.ELEMENT_WISE:
                return PatternKind.OPAQUE
    reductions = [(made, term) for made in program.stages for term in walk(made.value) if _is_reduction(term)]
    if reductions or PatternKind.OPAQUE in found:
        if any(is_multiply_add(made, term) for made, term in reductions):
            return PatternKind.OUTPUT_EWISE_FUSIBLE
        return PatternKind.REDUCTION if reductions else PatternKind.OPAQUE
    if found == {PatternKind.ELEMENT_WISE, PatternKind.BROADCAST}:
        return PatternKind.ELEMENT_WISE
    return max(found, default=PatternKind.ELEMENT_WISE)


def _first_point(index: Dim, extent: Dim) -> Dim:
    """Returns the index, or 0 if the loop has extent 1."""
    return _ZERO if extent == 1 else index


def _reads(expr: Scalar) -> Iterator[Read]:
    return (term for term in walk(expr) if isinstance(term, Read))


def _is_reduction(term: Scalar) -> bool:
    return isinstance(term, Reduce) and any(extent != 1 for _, extent in term.over)


def _relation(
    read: Read, buffer: Buffer, extents: Mapping[Dim, Dim], single: set[str], write: tuple[Dim, ...]
) -> PatternKind:
    """Relates the indices of `read` to those written: ElementWise, Broadcast, Injective, or else Opaque. `extents`: of
    the outer loops; `single`: the loops of extent 1."""
    zeros = dict.fromkeys(single, 0)
    at: list[IndexValue] = [i.substitute(zeros) if isinstance(i, Dim) and zeros else i for i in read.indices]
    whole = all(
        extent == (extents.get(index, _ONE) if isinstance(index, Dim) and loop_of(index) else _ONE)
        for index, extent in zip(at, buffer.shape, strict=True)
    )
    if whole and tuple(at) == write:
        return PatternKind.ELEMENT_WISE
    places = [write.index(i) if i in write else -1 for i in at if isinstance(i, Dim) and i != 0]
    if whole and _ascending(places) and all(isinstance(i, Dim) for i in at):
        return PatternKind.BROADCAST
    outer = single.union(*(index.variables for index in extents))
    used = frozenset[str]().union(*(loop_names(i) if isinstance(i, Dim) else i.free for i in at))
    return PatternKind.INJECTIVE if used <= outer else PatternKind.OPAQUE


def _unit_loops(expr: Scalar) -> set[str]:
    """Returns the loop variables of reductions over extent 1."""
    reduces = (term for term in walk(expr) if isinstance(term, Reduce))
    return {name for term in reduces for var, extent in term.over if extent == 1 for name in var.variables}


def _ascending(places: list[int]) -> bool:
    return -1 not in places and all(a < b for a, b in zip(places, places[1:], strict=False))


def is_multiply_add(made: Stage, term: Scalar) -> bool:
    """Whether `term` sums products of factors that depend on different outer loops. Casts are ignored."""
    if not (isinstance(term, Reduce) and term.kind == "sum"):
        return False
    outer = frozenset[str]().union(*(index.variables for index in made.indices))
    factors = [factor for factor in factors_of(term.body) if any(True for _ in _reads(factor))]
    return len({factor.free & outer for factor in factors}) > 1


def factors_of(expr: Scalar) -> list[Scalar]:
    """Returns the distinct factors of a product in order, looking through casts around products."""

    def parts(at: Scalar) -> Sequence[Scalar]:
        is_inside = isinstance(at, Cast) or (isinstance(at, Apply) and at.fn == "multiply")
        return at.children[::-1] if is_inside else ()

    return [at for at in reached((expr,), parts) if not parts(at)]


# --- counts ---


@dataclass(frozen=True, slots=True)
class Counts:
    """Arithmetic and memory traffic of one run, as expressions in the sizes.

    - `flops`: weighted arithmetic operations (`functions.py`).
    - `bytes_read`, `bytes_written`: bytes moved from and to memory.
    """

    flops: Dim
    bytes_read: Dim
    bytes_written: Dim

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written
        )


def count(program: TensorProgram) -> Counts:
    """Returns flops, bytes read and bytes written.

    Flops: each function of a stage's value costs its weight (`functions.py`) once per value of the loop variables it
    depends on. Equal subterms count once; both branches of a select count. A reduction costs its body plus one flop per
    point. Arithmetic on indices alone is free.

    Bytes: an input element counts once however often it is read; each output is written once. Locals cause no traffic.
    Workspaces do: they are written once and read like inputs. The bytes read of a buffer are an upper bound, exact if
    every index is a loop variable, a multiple of one plus an offset, or a window of consecutive elements. Reads under a
    select are bounded by the buffer.
    """
    flops = sum((stage_flops(made) for made in program.stages), _ZERO)
    reads = (read for made in program.stages for read in scoped_reads(made.value, made.loops))
    touched = grouped(
        (term.buffer, (term.indices, _touched_elements(term, program.buffers[term.buffer], bound, guarded)))
        for term, bound, guarded in reads
    )
    sources = (*program.inputs, *(program.buffers[name] for name in program.workspaces))
    read = sum((_read_bytes(buffer, touched.get(buffer.name, [])) for buffer in sources), _ZERO)
    outputs = (program.buffers[name] for name in (*program.outputs, *program.workspaces))
    written = sum((product(buffer.shape) * itemsize(buffer.dtype) for buffer in outputs), _ZERO)
    return Counts(flops, read, written)


def workspace_bytes(program: TensorProgram) -> dict[str, Dim]:
    """Returns the bytes of each workspace that the program allocates itself, by name."""
    mine = [program.buffers[name] for name in program.workspaces if name not in program.lifted]
    return {buffer.name: product(buffer.shape) * itemsize(buffer.dtype) for buffer in mine}


def product(dims: Iterable[Dim]) -> Dim:
    """Returns the product of sizes."""
    return math.prod(dims, start=_ONE)


def stage_flops(made: Stage) -> Dim:
    """Returns the flops of one stage. A function is computed once per value of the loop variables it depends on.
    Positions at which a buffer is read, and whether they are in range, are no flops."""
    loops, total = made.loops, _ZERO
    seen: set[tuple[Scalar, frozenset[str]]] = set()
    todo: list[tuple[Scalar, dict[str, Dim]]] = [(made.value, loops)]
    while todo:
        term, scope = todo.pop()
        if isinstance(term, Reduce):
            outside = {name: scope[name] for name in scope if name in term.free}
            scope = outside | {str(loop_of(var)): extent for var, extent in term.over}
        if (term, frozenset(scope)) in seen:
            continue
        seen.add((term, frozenset(scope)))
        weight = 1 if isinstance(term, Reduce) else FUNCTIONS[term.fn].flops if isinstance(term, Apply) else 0
        if term.on_indices or isinstance(term, Read):
            continue
        if weight:
            inside = scope if isinstance(term, Reduce) else {n: d for n, d in scope.items() if n in term.free}
            total = total + product(inside.values()) * weight
        todo.extend((child, scope) for child in (term.children[1:] if _is_read_in_range(term) else term.children))
    return total


def _is_read_in_range(term: Scalar) -> bool:
    """Whether `term` is an element of a buffer where integers are in range, and a number elsewhere."""
    if not isinstance(term, Select) or not isinstance(term.then, Read) or not isinstance(term.other, Const):
        return False
    compared = [a for s in walk(term.cond) if isinstance(s, Apply) for a in s.args]
    return bool(compared) and all(kind(a.dtype) in "iub" for a in compared)


def scoped_reads(value: Scalar, loops: dict[str, Dim]) -> Iterator[tuple[Read, dict[str, Dim], bool]]:
    """Yields every read with the loops around it and whether a select may skip it."""

    def inside(at: tuple[Scalar, frozenset[tuple[str, Dim]], bool]) -> list[Any]:
        term, scope, guarded = at
        if isinstance(term, Reduce):
            scope |= {(str(loop_of(var)), extent) for var, extent in term.over}
        return [(c, scope, guarded or (isinstance(term, Select) and c is not term.cond)) for c in term.children]

    for term, scope, guarded in reached([(value, frozenset(loops.items()), False)], inside):
        if isinstance(term, Read):
            yield term, dict(scope), guarded


def _touched_elements(read: Read, buffer: Buffer, loops: dict[str, Dim], guarded: bool) -> Dim:
    """Returns an upper bound on the number of elements of `buffer` that the read touches."""
    total, names, joint = _ONE, frozenset[str](), False
    for index, size in zip(read.indices, buffer.shape, strict=True):
        mine = loop_names(index) if isinstance(index, Dim) else index.free
        reached = _touched_axis(index, size, {name: loops[name] for name in mine}, guarded)
        joint = joint or reached is None or not names.isdisjoint(mine)
        names |= mine
        total = total * (size if reached is None else reached)
    return _smaller(product(loops[name] for name in names), total) if joint else total


def _touched_axis(index: IndexValue, size: Dim, loops: dict[str, Dim], guarded: bool) -> Dim | None:
    """Returns the number of positions of an axis of extent `size` that an index reaches; None if only the axis bounds
    it."""
    points = product(loops.values())
    if not isinstance(index, Dim):
        return _smaller(points, size)
    strides = _strides(index)
    if strides is None:
        return None
    reached = points if len(loops) == 1 else _progression(strides, loops)
    if reached is None:
        return _smaller(points, size)
    return _smaller(reached, size) if guarded else reached


def _strides(index: Dim) -> dict[str, int] | None:
    """Returns the factor of each loop variable in an affine index, 0 for a symbolic factor; None if the index is not
    affine."""
    strides: dict[str, int] = {}
    for monomial, coefficient in index.terms:
        loops = [atom for atom in monomial if any(map(is_loop, (atom.name, *_atom_variables(atom))))]
        if not loops:
            continue
        if len(loops) > 1 or loops[0].op != "var":
            return None
        name = loops[0].name
        strides[name] = coefficient if len(monomial) == 1 and name not in strides else 0
    return strides


def _atom_variables(atom: Atom) -> frozenset[str]:
    return frozenset[str]().union(*(arg.variables for arg in atom.args))


def _progression(strides: dict[str, int], loops: dict[str, Dim]) -> Dim | None:
    """Returns the number of values of a sum of strides times loop variables, or None if that is hard to determine.

    In order of increasing stride, each loop variable must either fill or extend the run of values so far, or step clear
    of it.
    """
    ordered = sorted((abs(stride), name) for name, stride in strides.items())
    if not ordered or ordered[0][0] == 0:
        return None if ordered else _ONE
    step, reached = ordered[0][0], loops[ordered[0][1]]
    span = reached  # from the least value to the greatest, in steps
    for stride, name in ordered[1:]:
        times, rest = divmod(stride, step)
        grown = span + (loops[name] - 1) * times
        if not rest and reached == span and plainly_nonnegative(span - times):
            reached = grown
        elif not rest and plainly_nonnegative(times - span):
            reached = reached * loops[name]
        else:
            return None
        span = grown
    return reached


def _read_bytes(buffer: Buffer, reads: list[tuple[tuple[IndexValue, ...], Dim]]) -> Dim:
    """Returns the bytes of the elements of an input that its reads touch together."""
    elements = product(buffer.shape)
    distinct = dict(reads)
    if elements in distinct.values():
        return elements * itemsize(buffer.dtype)
    total = sum(distinct.values(), _ZERO)
    if len(distinct) > 1:
        total = _smaller(total, elements)
    return total * itemsize(buffer.dtype)


def _smaller(a: Dim, b: Dim) -> Dim:
    """Returns the smaller of two sizes, without a `min` if the sign of their difference is known."""
    return a if plainly_nonnegative(b - a) else b if plainly_nonnegative(a - b) else dim_min(a, b)
