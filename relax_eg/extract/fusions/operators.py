"""The operators of a function as XLA's compilers see them: what each reads, and of which kind it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence

from relax_eg.dtypes import HALF, itemsize
from relax_eg.extract.fusions.gpu_products import Product
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import CALL_DPS_LIBRARY, CONSTANT, MATCH_CAST, TUPLE, TUPLE_GET, VAR, Expr, constant_value
from relax_eg.ir.heads import PASSIVE, RUNNING
from relax_eg.ir.module import Function
from relax_eg.ops import bytes_of, pattern_kind, site_of
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.ops.record import TABLE, movement_operators, operators_run_as, operators_where
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind
from relax_eg.traversal import grouped

_VIEWS = movement_operators("view") | {MATCH_CAST}
ORDERS = movement_operators("order")
PERMUTATIONS = operators_where(lambda o: o.moves == "order" and o.capacity != "flip")
_MAKERS = movement_operators("make")
PARTS = movement_operators("part", "select")
REPEATS = movement_operators("repeat")
MATMULS = operators_run_as("matmul", "transposed_matmul")
(CONV,) = operators_run_as("conv")
SCATTERS = frozenset(("scatter",))  # given: operators that XLA computes in the memory of their first operand
_HEAVY = operators_run_as("factorisation", "solve", "guarded_solve", "conv", "transfer")
_LOOPS = (PatternKind.ELEMENT_WISE, PatternKind.BROADCAST, PatternKind.INJECTIVE)
# given: operators of which XLA takes one element to cost some twenty flops
DEAR = frozenset("divide exp log tanh erf erfc erfinv sqrt rsqrt sin cos tan power sigmoid log1p expm1".split())


class Operators:
    """The operators of a function that run.

    - `nodes`, `order`: they, operands first, and the place of each among them.
    - `readers`: the operators that read a value.
    - `results`: the values that are in memory when the function ends.
    - `free`: the values that take no memory.
    - `products`, `sums`: the matmuls, and those of them that become sums of products.
    - `kernels`: for each operator, the kernels that compute it, each by the operator that names it.
    """

    kernels: dict[Expr, tuple[Expr, ...]]

    def __init__(self, function: Function, expressions: Sequence[Expr], value: Callable[[Dim], float]) -> None:
        self._value = value
        # What is asked of an operator again and again while kernels are formed.
        self._operands: dict[Expr, tuple[Expr, ...]] = {}
        self._elements: dict[Expr, float] = {}
        self._kinds: dict[Expr, PatternKind] = {}
        self._sources: dict[Expr, Expr] = {}
        self._layouts = _layouts(expressions)
        self._permuted: dict[Expr, tuple[Expr, tuple[int, ...]]] = {}
        self._bound = {b.var: b.value for b in function.bindings}
        self.runs = {e for e in expressions if e.op not in PASSIVE and not self._is_view(e)}
        self.nodes = [e for e in expressions if e in self.runs]
        self.order = {e: i for i, e in enumerate(self.nodes)}
        self.results = set(self._leaves(function.result))
        for block in function.blocks:
            self.results |= set() if block.dataflow else {self.source(b.value) for b in block.bindings}
        used = self.results.union(*map(self.operands, self.nodes))
        # A permutation that only others read is a part of these.
        self.nodes = [e for e in self.nodes if e in used or e.op not in PERMUTATIONS]
        self.readers = grouped((s, e) for e in self.nodes for s in self.operands(e))
        self.free = self._free_values()
        self.products = {e: p for e in self.nodes if e.op in MATMULS and (p := self._product(e)) is not None}
        self.sums = {e for e, p in self.products.items() if p.is_sum}

    def source(self, e: Expr) -> Expr:
        """The value that `e` shows under another shape."""
        path: list[Expr] = []
        while e not in self._sources and (e in self._bound or self._is_view(e)):
            path.append(e)
            e = self._bound[e] if e in self._bound else self._shown(e)
        e = self._sources.get(e, e)
        for p in path:
            self._sources[p] = e
        return e

    def members(self) -> dict[Expr, list[Expr]]:
        """The operators in each kernel, operands first."""
        found: dict[Expr, list[Expr]] = {}
        for e in self.nodes:
            for k in self.kernels[e]:
                if k.op not in RUNNING and (k not in self.free or k in self.results):
                    found.setdefault(k, []).append(e)
        return found

    def operands(self, e: Expr) -> tuple[Expr, ...]:
        """The values that an operator reads, each once."""
        if (found := self._operands.get(e)) is None:
            is_moved = e.op in PERMUTATIONS and e in self.runs
            read = [self.permuted(e)[0]] if is_moved else [s for a in e.args for s in self._leaves(a)]
            found = self._operands[e] = tuple(dict.fromkeys(read))
        return found

    def permuted(self, e: Expr) -> tuple[Expr, tuple[int, ...]]:
        """The value whose axes a permutation moves, and their new order. Permutations of permutations are one."""
        if (found := self._permuted.get(e)) is None:
            of, axes = e.args[0], tuple(e.attr("axes"))
            of = self._bound.get(of, of)
            if of.op in PERMUTATIONS:
                base, inner = self.permuted(of)
                found = base, tuple(inner[a] for a in axes)
            else:
                found = self.source(of), axes
            self._permuted[e] = found
        return found

    def _leaves(self, e: Expr) -> Iterable[Expr]:
        e = self._bound.get(e, e)
        if e.op == TUPLE:
            for a in e.args:
                yield from self._leaves(a)
        elif e.op == TUPLE_GET and e.args[0].op == TUPLE:
            yield from self._leaves(e.args[0].args[e.attr("index")])
        elif isinstance(e.annotation, Tensor) or e.op in RUNNING:
            yield self.source(e)

    def _is_view(self, e: Expr) -> bool:
        if e.op in _VIEWS or _plain_maximum(e) is not None:
            return True
        if e.op == TUPLE_GET:
            return e.args[0].op not in (TUPLE, VAR)
        if e.op not in PERMUTATIONS:
            return False
        shape = dims_of(e.annotation)
        moved = [axis for axis, d in zip(self.permuted(e)[1], shape, strict=True) if self._value(d) != 1]
        return moved == sorted(moved) or e in self._layouts

    def _shown(self, e: Expr) -> Expr:
        """The value that a view shows."""
        if e.op in PERMUTATIONS:
            return self.permuted(e)[0]
        found = _plain_maximum(e)
        return e.args[0] if found is None else found

    def bytes(self, e: Expr) -> Dim:
        return bytes_of(e.annotation)

    def size(self, e: Expr) -> float:
        return self._value(self.bytes(e))

    def elements(self, e: Expr) -> float:
        if (found := self._elements.get(e)) is None:
            found = self._elements[e] = math.prod(self._value(d) for d in dims_of(e.annotation))
        return found

    def _free_values(self) -> set[Expr]:
        """What takes no memory: numbers, and what is computed from places and numbers alone."""
        found: set[Expr] = set()
        for e in self.readers:
            if e.op == CONSTANT and self.elements(e) <= 1:
                found.add(e)
        for e in self.nodes:
            if e.op in _MAKERS or (self._is_loop(e) and self._all_free(e, found)):
                found.add(e)
        return found - self.results

    def _all_free(self, e: Expr, free: Collection[Expr]) -> bool:
        return all(s in free for s in self.operands(e))

    def _kind(self, e: Expr) -> PatternKind:
        if (found := self._kinds.get(e)) is None:
            found = self._kinds[e] = self._kind_anew(e)
        return found

    def _kind_anew(self, e: Expr) -> PatternKind:
        if e.op not in TABLE or e.op in _HEAVY or any(is_partial(a.annotation) for a in (e, *e.args)):
            return PatternKind.OPAQUE
        return pattern_kind(site_of(e))

    def _is_loop(self, e: Expr) -> bool:
        return self._kind(e) in _LOOPS

    def _is_reduction(self, e: Expr) -> bool:
        return e in self.sums if e.op in MATMULS else self._kind(e) == PatternKind.REDUCTION

    def _product(self, e: Expr) -> Product | None:
        if any(is_partial(a.annotation) for a in (e, *e.args)):
            return None
        a, b = ([self._value(d) for d in dims_of(x.annotation)] for x in e.args)
        if not a or not b:
            return None
        columns = 1.0 if len(b) == 1 else b[-1] if e.op == "matmul" else b[0]
        elements = self.elements(e)
        batch = math.prod(b[:-2]) if len(b) > 2 else 1.0
        rows = elements / max(1.0, batch * columns)
        written, read = e.annotation, e.args[0].annotation
        assert isinstance(written, Tensor) and isinstance(read, Tensor)
        return Product(batch, rows, columns, a[-1], itemsize(read.dtype or "float32"), itemsize(written.dtype or ""))

    def _sides(self, e: Expr) -> int:
        """The number of axes with more than one element; leading ones, by which matrices are told apart, that stay next
        to each other in a permutation are one, as they are for XLA."""
        shape = dims_of(e.annotation)
        if e.op not in PERMUTATIONS:
            return sum(self._value(d) > 1 for d in shape)
        axes = [a for a, d in zip(self.permuted(e)[1], shape, strict=True) if self._value(d) > 1]
        places = {a: i for i, a in enumerate(sorted(axes))}
        return len(axes) - sum(places[b] == places[a] + 1 for a, b in itertools.pairwise(axes[:-2]))

    def _read_elements(self, e: Expr) -> float:
        return max((self.elements(a) for a in e.args), default=1.0)

    def _is_half(self, e: Expr) -> bool:
        return isinstance(e.annotation, Tensor) and e.annotation.dtype in HALF

    def _is_computed(self, e: Expr) -> bool:
        """Whether more is done to elements than to move or convert them."""
        return e.op not in PARTS | REPEATS | ORDERS and e.op not in ("concat", "astype")

    def _is_transposed(self, e: Expr) -> bool:
        """Whether an operator swaps the last two axes, among others."""
        return e in self.runs and e.op in PERMUTATIONS and self.permuted(e)[1][-1] == len(dims_of(e.annotation)) - 2

    def in_rows(self, e: Expr) -> Expr:
        """The value of which `e` has the rows, in the same or another order."""
        while e in self.runs and e.op in PERMUTATIONS and self.permuted(e)[1][-1] == len(self.permuted(e)[1]) - 1:
            e = self.permuted(e)[0]
        return e


def _layouts(expressions: Sequence[Expr]) -> set[Expr]:
    """The permutations before and after convolutions and routines, which become layouts or are undone inside."""
    found: set[Expr] = set()
    for e in expressions:
        if e.op in (CONV, CALL_DPS_LIBRARY):
            found |= {a for a in e.args if a.op in ORDERS}
        if e.op in ORDERS and e.args[0].op in (CONV, CALL_DPS_LIBRARY):
            found.add(e)
    return found


def _plain_maximum(e: Expr) -> Expr | None:
    """The operand of a maximum with -inf, which XLA leaves out."""
    if e.op != "maximum":
        return None
    sides = [(a, b) for a, b in (e.args, e.args[::-1]) if a.op == CONSTANT and b.shape == e.shape]
    return next((b for a, b in sides if constant_value(a).size == 1 and constant_value(a).item() == -math.inf), None)
