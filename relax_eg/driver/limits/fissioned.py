"""Whole programs in which everything that a dimension runs through is computed in one loop over pieces of it, such as a
training step over micro-batches.

The rules `computed_in_pieces` and `accumulated_over_pieces` propose such loops for single results, in few numbers of
pieces, and extraction chooses among them. In a large program that takes long, and all results have to be chosen from
the same loop. So the loops around the largest values are also made of whole programs, without an e-graph, in any number
of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count

from relax_eg.driver.options import Sizes
from relax_eg.extract.costs.sized_device import ASSUMED_SIZE
from relax_eg.ir.annotations import Tensor
from relax_eg.ir.calls import reachable_functions, substitute_exprs, without_calls
from relax_eg.ir.expr import Expr
from relax_eg.ir.module import Function, Module
from relax_eg.ops import bytes_of
from relax_eg.rules.book.pieces import ANCHORS, FINER, rows_of, saved_by, without_padding
from relax_eg.rules.pieces.fission import BodyAnswers, in_a_loop
from relax_eg.rules.pieces.regions import CutRegion, dimensions_of, joint_region
from relax_eg.rules.schemas import Made, ModuleAnswers, ProgramQueries
from relax_eg.shapes import Dim

# The rules that say that loops over pieces compute the same (`rules.book.pieces`).
IN_PIECES, ACCUMULATED = "computed_in_pieces", "accumulated_over_pieces"
_SHAPES = 6  # limit: large values of different shapes whose dimensions are tried
_REGIONS = 3  # limit: regions that are cut
_MOST_PIECES = 128  # limit: pieces of a dimension


@dataclass
class AnswersAtSizes(ModuleAnswers):
    """The answers about a module at sizes."""

    sizes: Sizes = field(kw_only=True)

    def extent(self, size: Dim) -> int:
        return int(size.evaluate({v: self.sizes.get(v, ASSUMED_SIZE) for v in size.variables}))

    def add(self, function: Function, suffix: str) -> Function:
        stem, known = f"{function.name}_{suffix}", self.functions
        made = replace(function, name=next(n for i in count() if (n := f"{stem}{i or ''}") not in known))
        known[made.name] = made
        return made


@dataclass
class _Answers(BodyAnswers):
    """The answers about all values of a program; what schemas make of them is made once."""

    known: dict[Hashable, object] = field(default_factory=dict[Hashable, object])

    def once(self, key: Hashable, make: Callable[[ProgramQueries], Made]) -> Made:
        if key not in self.known:
            self.known[key] = make(self)
        return self.known[key]  # type: ignore[return-value]


def rule_of(region: CutRegion) -> str:
    """The rule that says that a region computes the same in a loop."""
    adds = any(region.dimensions[x].kind is not None for x in region.outputs)
    return ACCUMULATED if adds else IN_PIECES


class Fissions:
    """The loops of one program.

    - `module`: the program. Its calls are replaced by what they compute.
    - `sizes`: the sizes at which loops are to save memory.
    - `rules`: those that may be used.
    """

    def __init__(self, module: Module, sizes: Sizes, rules: Collection[str] = (IN_PIECES, ACCUMULATED)) -> None:
        self._rules = rules
        self.module = without_calls(module)
        self._at = AnswersAtSizes({f.name: f for f in self.module}, sizes=sizes)
        main = self.module.main
        is_one = main.is_one_block
        self._answers = _Answers(self._at, roots=main.blocks[0].values if is_one else [])
        self._made: dict[tuple[CutRegion, int, bool], Module | None] = {}
        self.loops: dict[Module, dict[Expr, Expr]] = {}  # by the program that was made, its loops' results

    @cached_property
    def regions(self) -> Sequence[CutRegion]:
        """The regions that may be cut, those that save most first."""
        asked, sizes = self._answers, dict[Expr, int]()
        for x in asked.nodes:
            if x.args and isinstance(x.annotation, Tensor) and x.annotation.shape is not None:
                sizes[x] = asked.extent(bytes_of(x.annotation))
        largest: dict[tuple[Dim, ...], Expr] = {}
        for x in sorted(sizes, key=lambda x: -sizes[x]):
            if len(largest) < _SHAPES:
                largest.setdefault(x.shape, x)
        found: dict[tuple[Expr, ...], tuple[int, CutRegion]] = {}
        for x in largest.values():
            for along in dimensions_of(x):
                region = joint_region(None, x, along, asked, ANCHORS)
                if region is None or rule_of(region) not in self._rules or region.outputs in found:
                    continue
                if asked.extent(region.extent) > 1:
                    found[region.outputs] = saved_by(region, asked)[0], region
        best = sorted((f for f in found.values() if f[0] > 0), key=lambda f: -f[0])
        return [region for _, region in best[:_REGIONS]]

    def counts(self, region: CutRegion) -> list[int]:
        """The numbers of pieces in which a region is cut, few first."""
        extent, found, pieces = self._answers.extent(region.extent), list[int](), 2
        while pieces <= min(extent, _MOST_PIECES):
            found.append(without_padding(region.extent, pieces))
            pieces *= 2
        if extent <= _MOST_PIECES and extent not in found:
            found.append(extent)
        return sorted({*found})

    def ways(self, region: CutRegion) -> list[tuple[int, bool]]:
        """The ways to cut a region, as arguments of `cut`."""
        counts = self.counts(region)
        return [*((n, False) for n in counts), *((n, True) for n in counts[-1:])]

    def cut(self, region: CutRegion, pieces: int, is_finest: bool = False) -> Module | None:
        """The program with a region in this many pieces. `is_finest`: whether what a step computes is cut further,
        along other dimensions. None if that cannot be done."""
        key = region, pieces, is_finest
        if key not in self._made:
            self._made[key] = self._cut(*key)
        return self._made[key]

    def _cut(self, region: CutRegion, pieces: int, is_finest: bool) -> Module | None:
        rows, number = rows_of(region.extent, pieces, self._answers.extent(region.extent))
        finer = FINER[ACCUMULATED in self._rules] if is_finest else None
        made = in_a_loop(region, rows, number, self._answers, finer)
        if made is None:
            return None
        main, (block,) = self.module.main, self.module.main.blocks
        main = replace(main, blocks=(block.with_values(substitute_exprs(block.values, made)),))
        needed = reachable_functions(main.expressions(), self._at.functions)
        module = Module((main, *(f for f in needed if f.name != main.name)))
        self.loops[module] = made
        return module
