"""The kernels that XLA's compiler for CPUs makes of a function, and what each reads and writes.

The compiler works in this order, and so does `CpuKernels` (jax 0.10.2, by the text of compiled programs):

- A sum, maximum or minimum of floats is a kernel of YNN's together with the arithmetic on what it reduces, as far up as
  each value has one reader, and a matmul at its top. If the result is repeated along the reduced axes, the arithmetic
  on that is in the kernel, too, until a value has several readers (`x - max(x)`, `exp` of it).
- A reduction of a reduction of the same kind is one over the axes of both. Where the inner one has other readers, too,
  prices count two that follow each other.
- All other matmuls, reductions and routines are kernels of their own, which read and write arrays. XLA's own code
  reduces windows of 32 along each axis; if none is longer, and the last one is reduced, arithmetic below is inside.
- All other operators that compute or move elements are computed inside their readers, if all of these can: inside each
  reader, but for dear functions, which are stored if several kernels or several elements of one would compute them.
- If some readers cannot, the value is stored for these. The others compute it again if it follows from one array, and
  from vectors, without dear functions. So does a convolution that copies an operand to bring its axes into order. This
  decides what memory is needed; the operations that are done twice have no price.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from relax_eg.dtypes import itemsize, kind
from relax_eg.extract.costs.implied_matmuls import LEAST_ELEMENTS
from relax_eg.extract.fusions.operators import CONV, DEAR, MATMULS, PARTS, PERMUTATIONS, REPEATS, Operators
from relax_eg.extract.fusions.place import KernelPlace
from relax_eg.extract.fusions.seconds import ARITHMETIC, LIBRARY_SUMS, PLAIN_SUMS, sum_steps
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import CONSTANT, Expr
from relax_eg.ir.module import Function
from relax_eg.ops import get, program_of, site_of
from relax_eg.ops.partial_annotations import is_partial
from relax_eg.ops.record import TABLE
from relax_eg.shapes import Dim
from relax_eg.tir import PatternKind

# given: the functions that YNN has, and those that are made of them
_LIBRARY_FUNCTIONS = frozenset(
    "add subtract multiply divide maximum minimum negative abs sign square reciprocal integer_pow power sqrt rsqrt exp "
    "expm1 log log1p tanh erf sigmoid floor ceil round relu silu gelu gelu_tanh astype".split()
)
_MOST_PARTS = 8  # given: parts up to which a concatenation is fused
_MOST_KERNELS = 16  # limit: kernels that compute a cheap value again; with it the work grows with the program


class CpuKernels(Operators):
    """The kernels of a function on a CPU.

    - `expressions`, `value`: as in `Operators`.
    - `implied`, `inside`: the sums of products that are matmuls, and what is computed inside matmuls
      (`extract.costs.implied_matmuls`).
    - `hoisted`: the number of loops that XLA hoists an expression out of.
    - `has_library`: whether XLA may use YNN.
    - `sliced`: as in `OperatorCost`.
    """

    def __init__(
        self,
        function: Function,
        expressions: Sequence[Expr],
        value: Callable[[Dim], float],
        implied: Collection[Expr],
        inside: Collection[Expr],
        hoisted: Mapping[Expr, int],
        has_library: bool,
        sliced: Collection[str] = (),
    ) -> None:
        self.inside = inside
        self.sliced = {p for p in function.params if str(p.attr("name")) in sliced}
        super().__init__(function, expressions, value)
        # What XLA hoists out of a loop is in memory for what it does not.
        for e in self.nodes if hoisted else ():
            if any(hoisted.get(r, 0) < hoisted.get(e, 0) for r in self.readers.get(e, ())):
                self.results.add(e)
        self.outer = self._outer_reductions()
        self.home: dict[Expr, Expr] = {}  # the reduction in whose kernel of the library an operator is
        self.last: dict[Expr, Expr] = {}  # for such a reduction, the operator whose result its kernel stores
        for e in self.nodes if has_library else ():
            if e not in self.home and e not in implied and self._is_library_sum(e):
                self._take_around(e)
        self.kernels = {}
        self.repeated: set[tuple[Expr, Expr]] = set()  # an operator, and a kernel that repeats its elements
        self.stored_cheaply: set[Expr] = set()  # values that are stored for some readers, and that others compute again
        self.computed: dict[tuple[Expr, Expr], Dim] = {}  # the elements of an operator that a kernel computes
        for e in reversed(self.nodes):
            self.kernels[e] = self._kernels_of(e)
            self.computed |= {(e, k): self._demand(e, k) for k in self.kernels[e]}

    def _is_view(self, e: Expr) -> bool:
        is_turned = e in self.inside and get(e.op).moves is not None
        return is_turned or super()._is_view(e) or self._unbounded(e) is not None

    def _shown(self, e: Expr) -> Expr:
        found = self._unbounded(e)
        return super()._shown(e) if found is None else found

    def _unbounded(self, e: Expr) -> Expr | None:
        """The value of which `e` is the maximum with minus infinity, which XLA drops."""
        if e.op != "maximum":
            return None
        a, b = (self._bound.get(x, x) for x in e.args)
        found = b if _is_lowest(a) else a if _is_lowest(b) else None
        return found if found is not None and found.annotation == e.annotation else None

    def _outer_reductions(self) -> dict[Expr, Expr]:
        """By a reduction that XLA makes one with its reader: the reader."""
        found: dict[Expr, Expr] = {}
        for e in self.nodes:
            readers = self.readers.get(e, [])
            if e.op in PLAIN_SUMS and self._is_reduction(e) and len(readers) == 1 and e not in self.results:
                (r,) = readers
                if r.op == e.op and r.args == (e,) and self._is_reduction(r):
                    found[e] = r
        return found

    def _read_elements(self, e: Expr) -> float:
        inner = e.args[0] if e.args and self.outer.get(e.args[0]) == e else None
        return super()._read_elements(e) if inner is None else self._read_elements(inner)

    # --- kernels of the library ---

    def _is_library_sum(self, e: Expr) -> bool:
        """Whether a kernel of the library begins with a reduction: with its own, or with the first one inside it."""
        read = e.args[0].annotation if e.op in TABLE and len(e.args) == 1 and e not in self.outer else None
        if not isinstance(read, Tensor) or not _is_float(read):
            return False
        if self._read_elements(e) < LEAST_ELEMENTS:
            return False
        return (e.op in LIBRARY_SUMS and self._is_reduction(e)) or self._is_normalised(e)

    def _steps(self, e: Expr) -> int:
        """The kernels in which XLA's own code reduces."""
        if self._is_own_reduction(e):
            return max((sum_steps(self._value(n)) for n, _ in self._reduced(e)), default=1)
        if e in self.products and self.products[e].rows * self.products[e].columns == 1:
            return 1 + sum_steps(self.products[e].depth)
        return 1

    def _is_own_reduction(self, e: Expr) -> bool:
        """Whether XLA's own code reduces: a window of each axis at a time."""
        return e.op in PLAIN_SUMS and self._is_reduction(e) and e not in self.home

    def _reduced(self, e: Expr) -> list[tuple[Dim, bool]]:
        """Of each axis that a reduction reduces, with those of a reduction that is a part of it: its size, and whether
        it is the last one."""
        shape = dims_of(e.args[0].annotation)
        found = [(shape[i], i % len(shape) == len(shape) - 1) for i in e.attr("axes")]
        return found + self._reduced(e.args[0]) if self.outer.get(e.args[0]) == e else found

    def _take_around(self, e: Expr) -> None:
        """Takes what is computed around a reduction into its kernel."""
        self.home[e] = self.last[e] = last = e
        taken, is_repeated = [e], False
        while last not in self.results and len(readers := self.readers.get(last, [])) == 1:
            (r,) = readers
            grows = self.elements(r) > self.elements(last)
            if r in self.home or not self._is_arithmetic(r) or (r.op == "divide" and grows):
                break
            if not (is_repeated or grows):
                break
            is_repeated, self.home[r] = True, e
            self.last[e] = last = r
            taken.append(r)
        self._take_below(e, taken)

    def _take_below(self, e: Expr, taken: Sequence[Expr]) -> None:
        """Takes what is computed for the operators `taken` into the kernel of the reduction `e`."""
        below = {s for t in taken for s in self.operands(t)}
        todo = [(-self.order[s], s) for s in below if s in self.order]
        heapify(todo)
        while todo:
            _, s = heappop(todo)  # after all of its readers
            if s in self.home or s in self.results or any(self.home.get(r) != e for r in self.readers[s]):
                continue
            if self._is_arithmetic(s) or s in self.outer:
                self.home[s] = e
                for below in self.operands(s):
                    if below in self.order:
                        heappush(todo, (-self.order[below], below))
            elif s.op in MATMULS:
                self.home[s] = e

    def _is_arithmetic(self, e: Expr) -> bool:
        """Whether a kernel of the library takes an operator in."""
        if e.op in REPEATS:
            return True
        is_known = e.op in _LIBRARY_FUNCTIONS and isinstance(e.annotation, Tensor) and _is_float(e.annotation)
        return is_known and self._kind(e) in ARITHMETIC

    # --- loops ---

    def _kernels_of(self, e: Expr) -> tuple[Expr, ...]:
        """The kernels that compute an operator, each by the operator whose result it stores."""
        if e in self.home:
            return (self.last[self.home[e]],)
        readers = self.readers.get(e, [])
        if e in self.outer or (e in self.inside and len(readers) == 1):
            return self.kernels[readers[0]]
        if e in self.results or not readers or not self._is_loop(e):
            return (e,)
        if not all(self._takes(r, e) for r in readers):
            self.stored_cheaply |= {e} if self._is_cheap(e) else set()
            return (e,)
        kernels = tuple(dict.fromkeys(k for r in readers for k in self.kernels[r]))
        is_repeated = self._is_computed_again(e, kernels)
        if self._is_dear(e) and (len(kernels) > 1 or is_repeated):
            return (e,)
        return kernels if len(kernels) <= _MOST_KERNELS else (e,)

    def _is_dear(self, e: Expr) -> bool:
        """Whether XLA computes an element of it once only. Division by a constant is a multiplication."""
        by_constant = e.op == "divide" and self.source(e.args[1]) in self.free
        return e.op in DEAR and e not in self.free and not by_constant

    def _takes(self, reader: Expr, e: Expr) -> bool:
        """Whether a kernel of `reader` computes its operand `e`. A product with a vector reads a transpose so."""
        if e in self.free and reader.op in TABLE:
            return True
        if e.op in PERMUTATIONS and (product := self.products.get(reader)) is not None:
            return min(product.rows, product.columns) == 1 and len(dims_of(e.annotation)) == 2
        if reader in self.home:
            return False
        whole = self.outer.get(reader, reader)
        if whole is not reader:
            return self._takes(whole, e)
        is_one = self._is_own_reduction(reader) and self._steps(reader) == 1
        return self._is_loop(reader) or (is_one and any(is_last for _, is_last in self._reduced(reader)))

    def _is_loop(self, e: Expr) -> bool:
        """Whether an operator may be computed inside its readers. A concatenation copies its parts, unless they are few
        and follow each other in memory."""
        if e.op != "concat":
            return super()._is_loop(e)
        return len(e.args) <= _MOST_PARTS and all(self._value(d) == 1 for d in dims_of(e.annotation)[: e.attr("axis")])

    def _is_computed_again(self, e: Expr, kernels: Sequence[Expr]) -> bool:
        """Whether a kernel that takes `e` in would compute an element of it once for each place where it, or what is
        computed of it on the way, is repeated. Parts that overlap do not count."""
        readers = self.readers[e]
        if any(self._repeats(r, e) for r in readers):
            self.repeated |= {(e, k) for k in kernels}
        self.repeated |= {(e, k) for k in kernels if any((r, k) in self.repeated for r in readers)}
        return any((e, k) in self.repeated for k in kernels)

    def _repeats(self, reader: Expr, e: Expr) -> bool:
        """Whether `reader` reads an element of `e` for several of its own."""
        return 1 < self.elements(e) < self.elements(reader) and reader.op != "concat" and self._divisor(reader) != e

    def _demand(self, e: Expr, k: Expr) -> Dim:
        """How many elements of a value a kernel computes, once for each place at which one of its operators reads
        it."""
        if e == k or e in self.home or e in self.inside:
            return self._count(e)
        whole, parts = Dim.of(0), Dim.of(0)
        for r in self.readers.get(e, ()):
            found = self.computed.get((r, k))
            if found is None:
                continue
            if r.op in PARTS:
                parts = parts + found
            elif r.op == "concat" or self._divisor(r) == e or not self._is_loop(r):
                whole = self._larger(whole, self._count(e))
            else:
                whole = self._larger(whole, found)
        return self._larger(whole, parts)

    def _divisor(self, e: Expr) -> Expr | None:
        """The divisor that an operator divides several elements by."""
        if e.op != "divide" or self.elements(e.args[1]) == self.elements(e):
            return None
        divisor = self.source(e.args[1])
        return None if divisor in self.free else divisor

    def _count(self, e: Expr) -> Dim:
        found = Dim.of(1)
        for d in dims_of(e.annotation):
            found = found * d
        return found

    def _larger(self, a: Dim, b: Dim) -> Dim:
        return a if self._value(a) >= self._value(b) else b

    # --- what kernels read and write ---

    def places(self) -> dict[Expr, KernelPlace]:
        found = {e: KernelPlace() for e in self.nodes}
        for k, inside in self.members().items():
            place = found[k]
            place.stored, place.launches = True, self._steps(k)
            place.inside = tuple((e, self.computed[e, k]) for e in inside if e != k and e not in self.inside)
            place.bytes = self.bytes(k) + self._read(k, inside)
            if self._is_normalised(k):  # one value in between is stored, and read by the sum and by the result
                place.launches, place.bytes = place.launches + 3, place.bytes + 3 * self.bytes(k)
            for a in self._copied(k):
                place.copied = place.copied + self.bytes(a)
            if self._is_spread(k):  # one matmul of a copy of its second operand, and a copy of its result
                place.launches, place.workspace = place.launches + 2, self.bytes(k.args[1]) + self.bytes(k)
                place.bytes = place.bytes + 2 * place.workspace
            for e in inside:
                if (divisor := self._divisor(e)) is not None:  # its reciprocal has a kernel
                    place.launches, place.bytes = place.launches + 1, place.bytes + 2 * self.bytes(divisor)
        for e in self.stored_cheaply:
            again = [r for r in self.readers[e] if self._takes(r, e) or e in self._copied(r)]
            for r in again:
                found[r].anew = (*found[r].anew, e)
            found[e].stored = len(again) < len(self.readers[e])
        for k, inside in self.members().items():
            if self.sliced and self._runs_in_turn(k, inside):
                for e in inside:
                    found[e].in_turn = True
        for e in self.nodes:
            found[e].is_library, found[e].in_order = e in self.home, self._is_turned_back(e)
            if e in self.home or e in self.inside or self.kernels[e] == (e,):
                continue
            total = Dim.of(0)
            for k in self.kernels[e]:
                total = total + self.computed[e, k]
            found[e].computed = total
        return found

    def _is_cheap(self, e: Expr) -> bool:
        """Whether loops over elements compute a stored value again instead of reading it: XLA fuses it into them if it
        has at most one operand that is as large, as one value would be read otherwise, too."""
        large = [a for a in self.operands(e) if self.elements(a) >= self.elements(e) and a.op not in REPEATS]
        return e not in self.free and len(large) <= 1 and not self._is_dear(e)

    def _copied(self, e: Expr) -> list[Expr]:
        """The operands that a convolution copies: it reads images with their channels last, and a kernel with its
        output channels last and its input channels before."""
        if e.op != CONV:
            return []
        rank = len(dims_of(e.annotation))
        space = range(2, rank)
        found: dict[Expr, bool] = {}
        for a, order in zip(e.args, ((0, *space, 1), (*space, 1, 0)), strict=True):
            a, axes = self._bound.get(a, a), tuple(range(rank))
            source = self.source(a)
            if a.op in PERMUTATIONS:
                source, axes = self.permuted(a)
            shape = dims_of(a.annotation)
            there = [axes[i] for i in order if self._value(shape[i]) != 1]
            found[source] = found.get(source, True) and there != sorted(there)
        return [s for s, is_copied in found.items() if is_copied]

    def _runs_in_turn(self, k: Expr, inside: Sequence[Expr]) -> bool:
        """Whether a kernel reads a step's part of an array, for one of its elements, at several places.

        XLA takes the part where it is read. At several places that is a function of its own, which reads the number
        of the step; LLVM moves this load into the loop without saying that no store changes it, so nothing is
        vectorised."""
        if k in self.home or not self._is_loop(k):
            return False
        # Two of the places at which an operator is computed, each as the operators on the way that move elements.
        places: dict[Expr, set[tuple[Expr, ...]]] = {k: {()}}
        for e in reversed(inside):
            for s in self.operands(e):
                found = places.setdefault(s, set())
                same = self._kind(e) == PatternKind.ELEMENT_WISE and self.elements(s) == self.elements(e)
                found |= {p if same else (*p, e) for p in places.get(e, ())}
                places[s] = set(itertools.islice(found, 2))
        stepping = [s for s in self.sliced if len(places.get(s, ())) > 1]
        return any(all(self._takes(r, s) for r in self.readers[s]) for s in stepping)

    def _is_normalised(self, e: Expr) -> bool:
        """Whether an operator reduces and repeats the result along what it reduced, as softmax does. One that takes
        less work than its equations is computed otherwise."""
        if e.op not in TABLE or get(e.op).kernel or get(e.op).cost is not None or self._is_loop(e):
            return False
        if any(is_partial(x.annotation) for x in (e, *e.args)):
            return False
        if self.elements(e) != self._read_elements(e):
            return False
        program = program_of(site_of(e))
        return program is not None and len(program.stages) > 1 and not any(s.scans for s in program.stages)

    def _is_spread(self, e: Expr) -> bool:
        """Whether a matmul multiplies one matrix with several."""
        if e not in self.products:
            return False
        left, right = (dims_of(a.annotation) for a in e.args)
        return len(left) == 2 < len(right) and any(self._value(d) > 1 for d in right[:-2])

    def _is_turned_back(self, e: Expr) -> bool:
        """Whether only matmuls read a transpose that moves the last axis to the place before: they take it as it was
        before."""
        rank, readers = len(dims_of(e.annotation)), self.readers.get(e, [])
        if e.op not in PERMUTATIONS or rank < 3 or e.attr("axes")[-2] != rank - 1:
            return False
        return bool(readers) and all(r.op in MATMULS for r in readers)

    def _read(self, k: Expr, inside: Sequence[Expr]) -> Dim:
        """The bytes that a kernel with these operators reads: of a value the parts that they take, at most all."""
        taken: dict[Expr, Dim] = {}
        here = set(inside)
        for e in inside:
            for s in self.operands(e):
                if s not in here and s not in self.free and isinstance(s.annotation, Tensor):
                    part = self._taken(s, self.computed[e, k]) if self._is_loop(e) else self.bytes(s)
                    taken[s] = taken.get(s, Dim.of(0)) + part
        total = Dim.of(0)
        for s, n in taken.items():
            whole = self.bytes(s)
            total = total + (n if self._value(n) < self._value(whole) else whole)
        return total

    def _taken(self, s: Expr, elements: Dim) -> Dim:
        """The bytes of as many elements of a value."""
        assert isinstance(s.annotation, Tensor)
        return elements * itemsize(s.annotation.dtype or "float32")


def _is_float(a: Tensor) -> bool:
    """Whether YNN computes with elements of this dtype."""
    return a.dtype is not None and kind(a.dtype) == "f"


def _is_lowest(e: Expr) -> bool:
    """Whether a value is minus infinity."""
    return e.op == CONSTANT and bool(np.all(np.asarray(e.attr("data").array) == -np.inf))
