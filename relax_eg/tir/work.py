"""What a tensor program has to do, told apart by what does it: contractions, and everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.shapes import Dim
from relax_eg.tir.analyze import factors_of, is_multiply_add, stage_flops
from relax_eg.tir.expr import Read, Reduce, Scalar, is_loop, loop_of, walk
from relax_eg.tir.program import Stage, TensorProgram


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products of two operands: a matmul of `rows` by `depth` by `columns` for each of `batch`; `dtype` is
    what is multiplied. `transposed`: the columns' operand is stored with what is summed over last, as the weight of a
    linear layer. `windowed`: an operand is read at sums of loop variables, as in a convolution."""

    batch: Dim
    rows: Dim
    columns: Dim
    depth: Dim
    dtype: str
    transposed: bool = False
    windowed: bool = False

    @property
    def flops(self) -> Dim:
        return self.batch * self.rows * self.columns * self.depth * 2


@dataclass(frozen=True, slots=True)
class Work:
    """The contractions of a program, and the flops of all that is not one."""

    contractions: tuple[Contraction, ...]
    other_flops: Dim


def work(program: TensorProgram) -> Work:
    """What `program` has to do, as expressions in the sizes."""
    found: list[Contraction] = []
    other = Dim.of(0)
    for made in program.stages:
        mine = [_contraction(made, t) for t in walk(made.value) if isinstance(t, Reduce) and is_multiply_add(made, t)]
        found += mine
        other = other + stage_flops(made)
        for c in mine:
            other = other - c.flops
    return Work(tuple(found), other)


def _contraction(made: Stage, term: Reduce) -> Contraction:
    extents = {str(loop_of(i)): size for i, size in zip(made.indices, made.output.shape, strict=True)}
    outer = frozenset(extents) & term.free
    factors = [f for f in factors_of(term.body) if any(isinstance(t, Read) for t in walk(f))]
    # Two factors that depend on different loops; a scale that depends on fewer belongs to either.
    first = max(factors, key=lambda f: len(f.free & outer))
    second = max(factors, key=lambda f: (len((f.free - first.free) & outer), len((f.free ^ first.free) & outer)))
    if factors.index(second) < factors.index(first):
        first, second = second, first
    a, b = first.free & outer, second.free & outer
    depth = _product([extent for _, extent in term.over])
    reduced = {str(loop_of(var)) for var, _ in term.over}
    return Contraction(
        _product([extents[v] for v in sorted(a & b)]),
        _product([extents[v] for v in sorted(outer - b)]),
        _product([extents[v] for v in sorted(b - a)]),
        depth,
        first.dtype,
        _is_transposed(second, reduced),
        any(_is_windowed(f, reduced) for f in (first, second)),
    )


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


def _product(sizes: Sequence[Dim]) -> Dim:
    total = Dim.of(1)
    for size in sizes:
        total = total * size
    return total
