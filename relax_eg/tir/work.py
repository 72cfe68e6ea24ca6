"""The work of a tensor program, split into contractions and everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relax_eg.dtypes import itemsize
from relax_eg.shapes import Dim
from relax_eg.tir.analyze import factors_of, is_multiply_add, product, stage_flops
from relax_eg.tir.expr import Apply, Cast, Read, Reduce, Scalar, is_loop, loop_of, walk
from relax_eg.tir.program import Stage, TensorProgram

# chosen: a computed operand with this many times the bytes of its sources should never be written as a whole
DECODED = 2
# chosen: bytes below which a computed operand is written as a whole on a CPU, whatever its sources are
LEAST_BYTES = 1 << 17
_NONE = Dim.of(0)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two operands: a matmul of `rows` by `depth` by `columns` for each of `batch`.

    - `dtype`: dtype of the operands.
    - `transposed`: the columns' operand is stored with the summed axis last, like the weight of a linear layer.
    - `windowed`: an operand is read at sums of loop variables, as in a convolution.
    - `made`: bytes of the operands that the equation computes.
    - `sources`: bytes of the buffers read to compute these operands.
    - `result`: bytes of the value if the program computes further with it, else 0.
    - `reduced`: a later reduction goes over the value.
    - `online`: an operand contains exponentials minus a maximum over the summed axis.
    - `staged`: an operand is computed from the result of a reduction of the program.
    """

    batch: Dim
    rows: Dim
    columns: Dim
    depth: Dim
    dtype: str
    transposed: bool = False
    windowed: bool = False
    made: Dim = _NONE
    sources: Dim = _NONE
    result: Dim = _NONE
    reduced: bool = False
    online: bool = False
    staged: bool = False

    @property
    def flops(self) -> Dim:
        return self.batch * self.rows * self.columns * self.depth * 2


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a program.

    - `contractions`: its sums of products.
    - `other_flops`: flops of everything else.
    """

    contractions: tuple[Contraction, ...]
    other_flops: Dim


def work(program: TensorProgram) -> Work:
    """Returns the work of `program`, as expressions in the sizes."""
    found: list[Contraction] = []
    other = _NONE
    there = set(program.workspaces)  # these are in memory in any case
    uses = _Uses(
        _computed_on(program) - there,
        _reduced_later(program) - there,
        _exponentials(program),
        _reduction_results(program),
    )
    for made in program.stages:
        terms = [t for t in walk(made.value) if isinstance(t, Reduce) and is_multiply_add(made, t)]
        mine = [_contraction(program, made, t, uses) for t in terms]
        found += mine
        other = other + stage_flops(made)
        for c in mine:
            other = other - c.flops
    return Work(tuple(found), other)


def _computed_on(program: TensorProgram) -> set[str]:
    """Returns the buffers whose readers compute with them rather than only move them."""
    return {
        t.buffer
        for made in program.stages
        if not isinstance(_uncast(made.value), Read)
        for t in walk(made.value)
        if isinstance(t, Read)
    }


def _reduced_later(program: TensorProgram) -> set[str]:
    """Returns the buffers whose elements, or values computed from them, a later stage reduces."""
    found: set[str] = set()
    for made in reversed(program.stages):
        terms = list(walk(made.value))
        over = any(isinstance(t, Reduce) for t in terms)
        if over or made.output.name in found:
            found |= {t.buffer for t in terms if isinstance(t, Read)}
    return found


def _exponentials(program: TensorProgram) -> set[str]:
    """Returns the maxima from which exponentials are computed, and the buffers that hold such exponentials."""
    maxima, found = set[str](), set[str]()
    for made in program.stages:
        terms = list(walk(made.value))
        read = {t.buffer for t in terms if isinstance(t, Read)}
        less = any(isinstance(t, Reduce) and t.kind == "max" for t in terms)
        if less:
            maxima.add(made.output.name)
        if (less or read & maxima) and any(isinstance(t, Apply) and t.fn == "exp" for t in terms):
            found |= {made.output.name} | read & maxima
    return found


def _reduction_results(program: TensorProgram) -> set[str]:
    """Returns the buffers that hold results of reductions, or values computed from these."""
    found = set[str]()
    for made in program.stages:
        terms = list(walk(made.value))
        if any(isinstance(t, Reduce) or (isinstance(t, Read) and t.buffer in found) for t in terms):
            found.add(made.output.name)
    return found


def _uncast(term: Scalar) -> Scalar:
    while isinstance(term, Cast):
        term = term.arg
    return term


@dataclass(frozen=True, slots=True)
class _Uses:
    """Buffers of a program by use.

    - `computed`: something is computed with them where they are read.
    - `reduced`: a later stage reduces them.
    - `exponentials`: hold exponentials minus a maximum, or such a maximum.
    - `reduction_results`: hold results of reductions, or values computed from these.
    """

    computed: set[str]
    reduced: set[str]
    exponentials: set[str]
    reduction_results: set[str]


def _contraction(program: TensorProgram, made: Stage, term: Reduce, uses: _Uses) -> Contraction:
    extents = made.loops
    outer = frozenset(extents) & term.free
    factors = [f for f in factors_of(term.body) if any(isinstance(t, Read) for t in walk(f))]
    # Two factors that depend on different loops. A scale that depends on fewer loops belongs to either.
    first = max(factors, key=lambda f: len(f.free & outer))
    second = max(factors, key=lambda f: (len((f.free - first.free) & outer), len((f.free ^ first.free) & outer)))
    if factors.index(second) < factors.index(first):
        first, second = second, first
    a, b = first.free & outer, second.free & outer
    depth = product([extent for _, extent in term.over])
    reduced = {str(loop_of(var)) for var, _ in term.over}
    every = extents | {str(loop_of(var)): extent for var, extent in term.over}
    groups = _groups(factors)
    # A single group (a matrix and a vector) is multiplied and summed at once; it is not a matmul.
    computed = [g for g in groups if len(groups) > 1 and (len(g) > 1 or not isinstance(_uncast(g[0]), Read))]
    sources = {t.buffer for g in computed for f in g for t in _reads(f)}
    on = made.output.name in uses.computed or _uncast(made.value) is not term
    return Contraction(
        product([extents[v] for v in sorted(a & b)]),
        product([extents[v] for v in sorted(outer - b)]),
        product([extents[v] for v in sorted(b - a)]),
        depth,
        first.dtype,
        _is_transposed(second, reduced),
        any(_is_windowed(f, reduced) for f in (first, second)),
        _total(product([every[v] for v in sorted(g[0].free & every.keys())]) * itemsize(g[0].dtype) for g in computed),
        _total(product(program.buffers[b].shape) * itemsize(program.buffers[b].dtype) for b in sorted(sources)),
        product(made.output.shape) * itemsize(term.dtype) if on else _NONE,
        made.output.name in uses.reduced,
        bool(sources & uses.exponentials),
        bool(sources & uses.reduction_results),
    )


def _groups(factors: Sequence[Scalar]) -> list[list[Scalar]]:
    """Groups the factors that are multiplied before the summation: each joins the first group whose loops include its
    own."""
    groups: list[list[Scalar]] = []
    for f in sorted(factors, key=lambda f: -len(f.free)):
        wider = next((g for g in groups if f.free <= g[0].free), None)
        if wider is None:
            groups.append([f])
        else:
            wider.append(f)
    return groups


def _reads(factor: Scalar) -> list[Read]:
    return [t for t in walk(factor) if isinstance(t, Read)]


def _is_transposed(factor: Scalar, reduced: set[str]) -> bool:
    reads = [r for r in _reads(factor) if len(r.indices) == 2]
    return len(reads) == 1 and loop_of(reads[0].indices[1]) in reduced


def _is_windowed(factor: Scalar, reduced: set[str]) -> bool:
    for read in _reads(factor):
        for i in read.indices:
            loops = {v for v in i.variables if is_loop(v)} if isinstance(i, Dim) else set[str]()
            if len(loops) > 1 and loops & reduced:
                return True
    return False


def _total(sizes: Iterable[Dim]) -> Dim:
    return sum(sizes, _NONE)
