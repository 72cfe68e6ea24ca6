"""The operators of a function as XLA's compiler for GPUs sees them: parts of matmuls, joined matmuls, and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from relax_eg.extract.fusions.gpu_products import SMALL, Product, parts_of_depth
from relax_eg.extract.fusions.operators import (
    MATMULS,
    ORDERS,
    PARTS,
    PERMUTATIONS,
    REPEATS,
    SCATTERS,
    Operators,
)
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.annotations import dims_of
from relax_eg.ir.expr import CONSTANT, Expr
from relax_eg.ir.module import Function
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind
from relax_eg.traversal import reached

_FEW = 2.0  # given: times the bytes of a result up to which its parts are read again rather than stored as their sum
_FRAGMENT = 128  # given: columns of which a matmul of joined operands takes multiples (kMinConcatFragmentSize)
HELD = 0.4 * 65536  # given: elements that a block holds, as a share of its registers (XLA's DoesTileFitsInRegisters)
_MANY = 32  # given: elements that a reduction adds up from which on it asks for its axes innermost: those of a warp


class GpuOperators(Operators):
    """The operators of a function on the GPU `profile`; `expressions` and `value` as in `Operators`.

    - `sliced`: the parameters that are parts of arrays, of which each kernel reads its own part; `sliced` as of the
      model of costs.
    - `joined`: for matmuls that are joined, the first of each group, by matmul.
    - `parts`: into how many parts the depth of a matmul is cut, by matmul that is no sum of products.
    - `turned`: the values that XLA stores with an axis innermost that is not their last one.
    - `keys`: the permutations of matmuls' results that become layouts, so that each slice of theirs adds up its parts.
    - `turned_keys`: those of results of at most `_FEW` times their bytes in parts, which their slices' kernels compute.
    """

    def __init__(
        self,
        function: Function,
        expressions: Sequence[Expr],
        profile: Profile,
        value: Callable[[Dim], float],
        sliced: frozenset[str],
    ) -> None:
        super().__init__(function, expressions, value)
        self.profile = profile
        self.sliced = {p for p in function.params if str(p.attr("name")) in sliced}
        self.joined = self._joined_products()
        self.parts = {e: self._parts(e) for e in self.products if e not in self.sums}
        self.turned = self._turned()
        # Keys are computed in the layout of their transpose.
        behind = [e for k in self.parts for e in self._behind_transpose(k) if e.op in PERMUTATIONS]
        behind = [e for e in behind if all(r.op in PARTS for r in self.readers[e])]
        self.keys = {e for e in behind if self._summed(e) > _FEW}
        self.turned_keys = {e for e in behind if e not in self.keys and any(map(self._is_unfinished, self.operands(e)))}

    def _kind_anew(self, e: Expr) -> PatternKind:
        found = super()._kind_anew(e)
        if e.op in SCATTERS and not is_partial(e.args[1].annotation):
            windows = self.elements(e.args[1]) / len(e.attr("scatter_dims_to_operand_dims"))
            return PatternKind.INJECTIVE if windows == 1 else found  # an update of a slice
        return found

    def _joined_products(self) -> dict[Expr, Expr]:
        """For matmuls that are joined, the first of each group, by matmul."""
        groups: dict[Expr, list[Expr]] = {}
        found: dict[Expr, Expr] = {}
        for e, p in self.products.items():
            if e in self.sums or p.batch > 1 or not self._is_stored(e.args[1]):
                continue
            group = groups.setdefault(self.source(e.args[0]), [])
            first = next((g for g in group if min(p.bytes, self.products[g].bytes) < SMALL), None)
            if first is None:
                group.append(e)
                continue
            found[first], found[e] = first, first
        return found

    def _concatenated(self, k: Expr) -> Dim:
        """The bytes of the second operands of joined matmuls, of which `k` is the first, where XLA stores these side by
        side: where one has columns that its kernel cannot take from an array of its own. 0 elsewhere."""
        members = [m for m, first in self.joined.items() if first == k]
        if all(self.products[m].columns % _FRAGMENT == 0 for m in members):
            return Dim.of(0)
        return sum((self.bytes(m.args[1]) for m in members), Dim.of(0))

    def _lengthened(self, k: Expr) -> tuple[Expr, ...]:
        """The operands of a matmul that XLA stores with zeros at the end of its depth: both, where the parts into which
        it is cut do not divide it."""
        parts = self.parts.get(k, 1)
        return () if parts == 1 or self.products[k].depth % parts == 0 else k.args

    def _is_stored(self, e: Expr) -> bool:
        """Whether a value is in memory before the function runs, but for its dtype and the order of its axes."""
        while (e := self.source(e)) in self.runs and (e.op == "astype" or e.op in PERMUTATIONS):
            e = self.permuted(e)[0] if e.op in PERMUTATIONS else e.args[0]
        return e not in self.runs

    def _turned(self) -> set[Expr]:
        """The values that XLA stores with an axis innermost that is not their last one.

        A reduction of many elements to an array asks for its axes innermost, and all values that are computed from and
        to its operand element by element follow, unless an argument or a result is among them. Of several reductions
        the last one is followed.
        """
        found, seen = set[Expr](), set[Expr]()
        for e in reversed(self.nodes):
            if e.op in MATMULS or not self._is_reduction(e) or "axes" not in dict(e.attrs):
                continue
            whole, axes = self.source(e.args[0]), set(e.attr("axes"))
            if whole in seen:
                continue
            alike = self._alike(whole)
            seen |= alike
            shape = [self._value(d) for d in dims_of(e.args[0].annotation)]
            last = max((i for i, n in enumerate(shape) if n > 1), default=0)
            many = math.prod(shape[i] for i in axes) >= _MANY and len(shape) > len(axes) + 1
            fixed = any(x in self.results or (x not in self.runs and x not in self.free) for x in alike)
            if many and last not in axes and not fixed:
                found |= alike
        return found

    def _alike(self, e: Expr) -> set[Expr]:
        """The values from and to which `e` is computed element by element."""

        def beside(x: Expr) -> Iterator[Expr]:
            above = self._computed_from(x) if x.op not in ORDERS else ()
            below = [r for r in self.readers.get(x, ()) if self._is_loop(r) and r.op not in ORDERS]
            return (s for s in (*above, *below) if self.elements(s) == self.elements(e))

        return set(reached((e,), beside))

    def _parts(self, e: Expr) -> int:
        """Into how many parts the depth of a matmul is cut."""
        p = self.products[e]
        first = self.joined.get(e)
        if first is not None:
            width = sum(self.products[m].columns for m, f in self.joined.items() if f == first)
            p = Product(p.batch, p.rows, width, p.depth, p.itemsize, p.written)
        return parts_of_depth(p, self.profile.name, self.profile.cores)

    def _summed(self, e: Expr) -> float:
        """How many times the bytes of its operand, a matmul's result, the parts have that `e` adds up."""
        return max(
            (self.parts[s] * 4 / self.products[s].written for s in self.operands(e) if s in self.parts), default=0
        )

    def _is_unfinished(self, e: Expr) -> bool:
        """Whether the readers of a matmul add up its parts, or take their part of its result."""
        return self.parts.get(e, 1) > 1 or e in self.joined

    def _turned_tables(self, k: Expr) -> set[Expr]:
        """The arguments that are stored transposed for a matmul: those from which its second operand, a transpose, is
        computed element by element together with another matmul's result. All of it has the layout of the transpose."""
        behind = self._behind_transpose(k)
        if behind.isdisjoint(self.parts):
            return set()
        return {e for e in behind if e not in self.runs and e not in self.free and self._sides(e) > 1}

    def _behind_transpose(self, k: Expr) -> set[Expr]:
        """The values from which a matmul's second operand is computed element by element, if that is a transpose."""
        if k not in self.parts or not self._is_transposed(turned := self.source(k.args[1])):
            return set()
        return set(reached(self.operands(turned), self._computed_from))

    def _is_over_columns(self, k: Expr) -> bool:
        """Whether a kernel reduces the last axis of a value that is stored with another axis innermost."""
        if not self._is_reduction(k) or k.op in MATMULS or "axes" not in dict(k.attrs):
            return False
        return self.source(k.args[0]) in self.turned and len(dims_of(k.args[0].annotation)) - 1 in k.attr("axes")

    def _is_argument(self, e: Expr) -> bool:
        """Whether a value is in memory before the function runs, or is that under another shape, or a number."""
        if e in self.runs:
            return (e.op in REPEATS and self._is_argument(self.source(e.args[0]))) or self._is_number(e)
        return e not in self.sliced

    def _repeated(self, e: Expr) -> Expr:
        """The value whose elements `e` repeats, or `e`."""
        while e in self.runs and e.op in REPEATS and not self._is_number(e):
            e = self.source(e.args[0])
        return e

    def _is_number(self, e: Expr) -> bool:
        """Whether a value is one number, repeated."""
        return e in self.free and (e.op == CONSTANT or (e.op in REPEATS and self._is_number(self.source(e.args[0]))))

    def _chain_above(self, e: Expr, elements: float) -> set[Expr]:
        """The values of so many elements from which `e` is computed element by element."""

        def above(x: Expr) -> list[Expr]:
            return [s for s in self._computed_from(x) if self.elements(s) == elements]

        return set(reached([e] if self.elements(e) == elements else [], above)) - self.free

    def _chain_below(self, e: Expr) -> set[Expr]:
        """The values from which `e` is computed element by element."""
        return set(reached(self.operands(e), self._computed_from))

    def _computed_from(self, e: Expr) -> Sequence[Expr]:
        """The values from which `e` is computed element by element; none if it is not."""
        return self.operands(e) if e in self.runs and self._is_loop(e) else ()

    def _added(self, e: Expr) -> list[Expr]:
        """The matmuls whose parts are added up for each element of `e`."""
        found, todo = list[Expr](), [e]
        while todo:
            for s in self.operands(todo.pop()):
                if self._is_unfinished(s):
                    found.append(s)
                elif s in self.runs and len(self.readers[s]) == 1 and self._is_loop(s):
                    todo += [s] if self.elements(s) == self.elements(e) and s not in self.results else []
        return found

    def _is_held(self, e: Expr, added: Iterable[Expr]) -> bool:
        """Whether the registers of a block hold a row of `e` with the parts of matmuls that are added up there."""
        return self._row(e) * max(self.parts[s] for s in added) <= HELD

    def _row(self, e: Expr) -> float:
        """The elements of a row of `e` in a block: a power of two."""
        return 2 ** math.ceil(math.log2(max(1.0, self._value(dims_of(e.annotation)[-1])))) if e.shape else 1
