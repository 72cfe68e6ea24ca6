"""The kernels that XLA's compiler for GPUs makes of a function, and what each reads and writes.

The compiler works in this order, and so does `GpuKernels`:

- A small matrix times a vector becomes a sum of products. Matmuls of one operand are joined if one of them is small.
- A matmul takes transposes and elementwise operators into its kernel: those of its result while each has one reader and
  no other operand than arguments, and those of its operands that read one array of full size. A matmul whose depth is
  cut into parts takes none of its result: whoever reads it adds up the parts.
- A reduction over the last axis stays in one kernel with the elementwise operators around it, if its result meets the
  array that it reduced (softmax, norms) and a block holds a row. Any other reduction begins a kernel with what it
  reads, and takes in the functions of its result alone; a running sum takes in all that is elementwise, and a
  convolution a bias, another array and a ReLU.
- All other operators that compute or move elements are computed inside each of their readers, if all of these can and
  it takes less time than storing the value once.
- Kernels that read the same array, none of them another's result, are joined if they are reductions of equal sizes or
  loops over equal elements. So is a reduction with the loop that stores the array it reduces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from relax_eg.extract.fusions.gpu_further import RUNNING_SUMS, GpuFurther
from relax_eg.extract.fusions.gpu_operators import HELD
from relax_eg.extract.fusions.gpu_products import block_bandwidth, generation_of
from relax_eg.extract.fusions.operators import CONV, DEAR, MATMULS, ORDERS, PARTS, PERMUTATIONS, REPEATS, SCATTERS
from relax_eg.extract.fusions.place import KernelPlace
from relax_eg.extract.profiles.profile import Profile
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import CONSTANT, Expr
from relax_eg.ir.module import Function
from relax_eg.ops.record import TABLE
from relax_eg.shapes import Dim
from relax_eg.traversal import made_from_below, reached

_IN_BRANCHES = "erfc"  # given: the function that XLA computes in branches, each with its operand
_DEAR_FLOPS = 20.0  # chosen: flops of an element of these
_HALF = 3.0  # chosen: flops of an element in 16 bits, which XLA converts to float32 and back
_LAUNCH = 2e-6  # chosen: seconds that a kernel less saves; XLA's model of fusions has 1e-6 for the launch alone
_LAUNCHED = 1e-6  # given: seconds of a launch in XLA's model of fusions (kKernelLaunchOverhead)
_MOST_SIDES = 3  # given: axes of an array that a matmul's kernel reads or writes in another order
_SMALL_BYTES = 1024  # given: bytes by which a matmul's operands may grow by taking an operator into its kernel


class GpuKernels(GpuFurther):
    """The kernels of a function on the GPU `profile`; `expressions` and `value` as in `Operators`, `sliced` as in
    `GpuOperators`."""

    def __init__(
        self,
        function: Function,
        expressions: Sequence[Expr],
        profile: Profile,
        value: Callable[[Dim], float],
        sliced: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(function, expressions, profile, value, sliced)
        self.flops = self._flops_inside()
        self.inline: set[Expr] = set()
        self.meets: set[Expr] = set()  # the operators in which the result of such a reduction meets its array
        for e in self.nodes:
            self.inline |= self._between(e) if self._is_reduction(e) else set()
        self.after, self.ends, self.barred = {}, {}, set()
        for e in self.nodes:
            if e.op == CONV:
                self.take_after(e)
        self.home: dict[Expr, Expr] = {}  # the matmul whose kernel an operator is in, by operator
        self.last: dict[Expr, Expr] = {}  # for a matmul, the operator whose result its kernel stores
        for e in self.parts:
            self._take_result(e)
            self._take_operands(e)
        self.barred = {*self.home, *self.inline, *self.after}
        for e in self.nodes:
            if e.op in RUNNING_SUMS or (self._is_reduction(e) and e not in self.inline):
                self.take_after(e)
        # The most elements of what a value is computed from element by element, down to arguments; inf if from others.
        self.widest: dict[Expr, float] = {}
        self.once: set[Expr] = set()  # what a kernel computes once for each element, whatever it loops over
        self.rows: set[Expr] = set()  # the kernels with a reduction that meets its array
        self.kernels = {}
        self.computed: dict[tuple[Expr, Expr], float] = {}  # the elements of an operator that a kernel computes
        for e in reversed(self.nodes):
            self.kernels[e] = self._kernels_of(e)
            self.computed |= {(e, k): self._demand(e, k) for k in self.kernels[e]}

    def _flops_inside(self) -> dict[Expr, float]:
        """The flops of an element of each value, with its share of those of what it is computed from; the parts of a
        matmul are added up there."""
        found: dict[Expr, float] = {}
        for e in self.nodes:
            plain = 0.0 if not self._is_computed(e) else _HALF if self._is_half(e) else 1.0
            found[e] = _DEAR_FLOPS if e.op in DEAR else plain
            for s in self.operands(e):
                if s in self.parts:
                    found[e] += self.parts[s]
                elif s in found and s not in self.results and self._is_loop(s):
                    found[e] += found[s] / len(self.readers[s])
        return found

    def _between(self, e: Expr) -> set[Expr]:
        """If the result of a reduction over the last axis meets the array that it reduced, row by row: the reduction,
        and the operators from there to the array."""
        if e in self.results or e.op in MATMULS or "axes" not in dict(e.attrs):
            return set()
        whole = e.args[0]
        if tuple(e.attr("axes")) != (len(dims_of(whole.annotation)) - 1,) or self.elements(e) <= 1:
            return set()
        if self.source(whole) in self.turned or self._row(whole) > HELD:
            return set()
        above = self._chain_above(self.source(whole), self.elements(whole))
        found = {e}
        return found if above and self._reaches(e, above, self.elements(whole), found) else set()

    def _reaches(self, e: Expr, above: set[Expr], elements: float, found: set[Expr]) -> bool:
        """Whether all readers of `e`, through operators on as few elements, meet a value of `above`. Adds these
        operators to `found`."""
        readers = self.readers.get(e, [])
        for r in readers:
            if not self._is_loop(r) or len(readers) > 1:
                return False
            if self.elements(r) == elements and r.op not in REPEATS:
                if not any(self.in_rows(s) in above for s in self.operands(r) if s != e):
                    return False
                whole = self.source(r.args[0])
                if r.op == whole.op == "divide" and not self._is_number(self.source(whole.args[1])):
                    return False  # (a / b) / c becomes a / (b * c)
                self.meets.add(r)
            elif r in self.results or not self._reaches(r, above, elements, found):
                return False
            else:
                found.add(r)
        return bool(readers)

    # --- matmuls ---

    def _take_result(self, e: Expr) -> None:
        """The operators on a matmul's result that its kernel takes in."""
        self.home[e] = self.last[e] = last = e
        while last not in self.results and not self._is_unfinished(e):
            readers = self.readers.get(last, [])
            if len(readers) != 1 or not self._is_loop(readers[0]) or readers[0] in self.home:
                return
            r = readers[0]
            same = self.elements(r) == self.elements(last) and (r.op not in PARTS | REPEATS)
            others = [s for s in self.operands(r) if s != last]
            if not same or not all(self._is_argument(s) for s in others) or r.op in ("where", "concat"):
                return
            if sum(map(self.size, self.operands(r))) < self.size(r) - _SMALL_BYTES:
                return
            if r.op in ORDERS and self._sides(r) > _MOST_SIDES:
                return
            self.home[r] = e
            self.last[e] = last = r

    def _take_operands(self, e: Expr) -> None:
        """The operators on a matmul's operands that its kernel takes in."""
        todo = [s for s in self.operands(e)]
        while todo:
            s = todo.pop()
            is_apart = s in self.results or s in self.home or s in self.after
            if s in self.runs and not is_apart and self._is_taken(s):
                self.home[s] = e
                todo += self.operands(s)

    def _is_taken(self, e: Expr) -> bool:
        """Whether a matmul computes an operand inside its kernel."""
        if not self._is_loop(e) or e.op in PARTS or e.op in ("where", "concat", "iota"):
            return False
        if e.op in REPEATS and not self._is_number(e):
            return False
        if any(self._is_unfinished(s) or s in self.inline for s in self.operands(e)):
            return False
        if e.op in ORDERS and self._sides(e) > _MOST_SIDES:
            return False
        readers = self.readers.get(e, [])
        if not all(
            (r in self.home and r.op not in ORDERS) or (r.op in MATMULS and r not in self.sums) for r in readers
        ):
            return False
        read = [self._repeated(s) for s in self.operands(e) if not self._is_number(s)]
        if any(s in self.free for s in read):
            return False
        if sum(self.size(s) for s in read) <= self.size(e) + _SMALL_BYTES:
            return True
        large = [s for s in read if self.elements(s) == self.elements(e)]
        if len(large) <= 1 and len(read) > 1:
            return True
        return len(readers) == 1 and all(s not in self.runs and len(self.readers[s]) == 1 for s in read)

    # --- kernels ---

    def _kernels_of(self, e: Expr) -> tuple[Expr, ...]:
        """The kernels that compute an operator, each by the operator that begins it."""
        home = self.home.get(e)
        readers = self.readers.get(e, [])
        if home is not None and e.op not in MATMULS:
            taken = [r for r in readers if r.op in MATMULS]
            return tuple(dict.fromkeys(taken)) if taken and self.last[home] != e else (home,)
        if e in self.after:
            return (self.after[e],)
        if not self._is_loop(e) and e not in self.inline:
            return self._appends(e) or (e,)
        if e in self.results or not readers:
            return (e,)
        if not all(self._takes(r, e) for r in readers):
            return (e,)
        kernels = tuple(dict.fromkeys(k for r in readers for k in self.kernels[r]))
        if len(kernels) == 1 and all(r.op in SCATTERS and not self._is_loop(r) for r in readers):
            return kernels
        if self._is_repeated(e) or self._is_stored_for(e, kernels):
            return (e,)
        if e.op in PARTS and not self.keys.isdisjoint(self.operands(e)):
            return (e,)
        if e.op in ORDERS and any(self._is_unfinished(s) for s in self.operands(e)):
            return kernels if e in self.keys or e in self.turned_keys else (e,)
        if e.op == "concat" and self._is_joint_repeated(e, kernels):
            return (e,)
        if any(map(self._is_plain, kernels)) and self._meets_rows(e):
            return (e,)
        if e in self.meets and len(kernels) > 1 and any(map(self._is_plain, kernels)):
            return (e,)
        in_rows = any(k in self.rows or self._is_reduction(k) for k in kernels)
        added = self._added(e) if in_rows else []
        if added and not self._is_held(e, added):
            return (e,)
        if added and len(kernels) > 1:
            return kernels if self._is_added_again(e, kernels, added) else (e,)
        if e in self.inline:
            self.rows |= {*kernels}
        if self._is_weight_of_rows(e) or (self.rows.issuperset(kernels) and self._is_of_arguments(e)):
            self.once.add(e)
            return kernels
        return kernels if e in self.free or e in self.inline or self._is_worth(e, kernels) else (e,)

    def _appends(self, e: Expr) -> tuple[Expr, ...]:
        """The kernel that computes a sum of products because it appends that to an array; empty if there is none."""
        if e not in self.sums or e in self.results:
            return ()
        kernels = {k for r in self.readers.get(e, ()) for k in self.kernels[r]}
        return tuple(kernels) if len(kernels) == 1 and all(k.op == "concat" for k in kernels) else ()

    def _is_joint_repeated(self, e: Expr, kernels: Sequence[Expr]) -> bool:
        """Whether kernels would compute a joint several times over for a reduction, or from keys in another order."""
        if all(self._demand(e, k) <= self.elements(e) for k in kernels):
            return False
        below = self._chain_below(e) if self.turned_keys else set[Expr]()
        return any(map(self._is_reduction, kernels)) or not self.turned_keys.isdisjoint(below)

    def _is_of_arguments(self, e: Expr) -> bool:
        """Whether a value is computed element by element from arguments of no more elements: a kernel of rows computes
        it once for each of them."""

        def below(x: Expr) -> Sequence[Expr]:
            return [] if self._is_argument(x) or not self._is_loop(x) else self.operands(x)

        def widest(x: Expr) -> float:
            alone = 0.0 if self._is_argument(x) else self.elements(x) if self._is_loop(x) else math.inf
            return max([alone, *(self.widest[s] for s in below(x))])

        return made_from_below(e, below, widest, self.widest) <= self.elements(e)

    def _is_stored_for(self, e: Expr, kernels: Sequence[Expr]) -> bool:
        """Whether a value is stored because a kernel reduces an array that is computed from it: where it meets what an
        earlier reduction left, that, if the array is large; otherwise, if columns are reduced, the array there, and
        where it leaves the layout of what it is computed from."""
        found = [k for k in kernels if self._is_plain(k)]
        whole = max((self.size(self.source(a)) for k in found for a in k.args), default=0.0)
        is_large = 3 * whole / self.profile.bandwidth > _LAUNCH
        if e not in self.turned:
            return is_large and self.size(e) < whole and self._is_reduced(e)
        if not any(map(self._is_over_columns, found)):
            return False
        less = [s for s in self.operands(e) if self.elements(s) < self.elements(e) and not self._is_argument(s)]
        return (bool(less) and not is_large) or self._is_from_rows(e)

    def _is_plain(self, k: Expr) -> bool:
        """Whether a kernel reduces, and no more than that meets the array that it reduces."""
        return self._is_reduction(k) and k not in self.rows and k not in self.inline

    def _meets_rows(self, e: Expr) -> bool:
        """Whether a permutation that moves the last axis meets another array of its size: a kernel that reduces reads
        no columns beside rows. Alone it is a layout."""
        if e.op not in PERMUTATIONS or self.in_rows(e) is not e:
            return False
        x = e
        while len(readers := self.readers.get(x, [])) == 1 and self._is_loop(readers[0]):
            (r,) = readers
            others = [s for s in self.operands(r) if s != x and s not in self.free]
            if any(self.elements(s) == self.elements(e) for s in others):
                return True
            x = r
        return False

    def _is_reduced(self, e: Expr) -> bool:
        """Whether a value is computed from the result of a reduction with a kernel of its own, and from numbers."""
        while e in self.runs and self._is_loop(e):
            read = [s for s in self.operands(e) if not self._is_number(s)]
            if len(read) != 1:
                return False
            e = read[0]
        return e in self.runs and self._is_reduction(e) and e.op not in MATMULS and e not in self.inline

    def _is_from_rows(self, e: Expr) -> bool:
        """Whether a value is computed from a matmul's result, or from parts of arrays, which only it reads."""

        def below(s: Expr) -> Sequence[Expr]:
            is_only_here = s in self.turned and s in self.runs and len(self.readers[s]) == 1
            return self.operands(s) if is_only_here and self._is_loop(s) else ()

        found = reached(self.operands(e), below)
        return any(s in self.parts or s in self.home or s.op in PARTS for s in found)

    def _is_repeated(self, e: Expr) -> bool:
        """Whether the parts of a matmul are added up for `erfc`, in each branch of which XLA would add them again. It
        does so if the value has two axes."""
        if len(dims_of(e.annotation)) <= 2 or not any(map(self._is_unfinished, self.operands(e))):
            return False

        def above(r: Expr) -> Sequence[Expr]:
            is_of_one = self._is_loop(r) and sum(not self._is_number(s) for s in self.operands(r)) == 1
            return self.readers.get(r, ()) if is_of_one else ()

        return any(r.op == _IN_BRANCHES for r in reached(self.readers[e], above))

    def _is_weight_of_rows(self, e: Expr) -> bool:
        """Whether `e` is a softmax by which only a sum of products over its rows weighs others: XLA computes it there
        through Triton. On Hopper it does not in 16 bits."""
        readers = self.readers[e]
        summed = readers[0] if len(readers) == 1 and readers[0] in self.sums else None
        if summed is None or self.source(summed.args[0]) != e or self.products[summed].rows > 1:
            return False
        if self._is_half(e) and generation_of(self.profile.name) == "hopper":
            return False
        above = self._chain_above(e, self.elements(e))
        return any(s in self.inline for x in above if x in self.runs for s in self.operands(x))

    def _is_added_again(self, e: Expr, kernels: Sequence[Expr], added: Iterable[Expr]) -> bool:
        """Whether adding up the parts of matmuls in each kernel takes no longer than storing the sums. A kernel of rows
        has a block for each; the first of two kernels that reduce stores the sums beside its result."""
        if sum(k in self.rows or self._is_reduction(k) for k in kernels) > 1:
            return False
        memory, size = self.profile.bandwidth, self.size(e)
        parts = sum(self._partial(s) * self.size(s) for s in added)
        parts += sum(self.size(s) for s in self.operands(e) if s not in added and not self._is_number(s))
        rows = self.elements(e) / max(1.0, self._value(dims_of(e.annotation)[-1]))
        in_rows = min(memory, rows * block_bandwidth(self.profile.name))
        each = [in_rows if k in self.rows else memory for k in kernels]
        return sum(parts / b for b in each) <= _LAUNCHED + (parts + size) / memory + sum(size / b for b in each)

    def _takes(self, reader: Expr, e: Expr) -> bool:
        """Whether a kernel of `reader` computes its operand `e`."""
        if e in self.free and reader.op in TABLE:
            return True
        if reader.op in MATMULS and reader not in self.sums:
            return False
        if reader.op in SCATTERS and not self._is_loop(reader):
            return self._is_loop(e) and e != self.source(reader.args[0])
        if self.home.get(reader) is not None and self.home[reader] != self.home.get(e):
            return e.op in REPEATS and self._is_argument(e)
        return self._is_loop(reader) or self._is_reduction(reader)

    def _is_worth(self, e: Expr, kernels: Sequence[Expr]) -> bool:
        """Whether computing a value in each kernel that reads it takes no longer than storing it."""
        computed = sum(max(self.elements(e), self._demand(e, k)) for k in kernels)
        if len(kernels) == 1 and computed <= self.elements(e):
            return True
        bandwidth, rate = self.profile.bandwidth, self.profile.vector_rate
        read = sum(min(self.size(s), self.size(e) if e.op in PARTS else math.inf) for s in self.operands(e))
        read -= sum(self.size(s) for s in self.operands(e) if s in self.free)
        flops = self.flops[e]
        work = computed - self.elements(e)
        again = (len(kernels) - 1) * read / bandwidth + work * flops / rate
        return again <= _LAUNCH + (len(kernels) + 1) * self.size(e) / bandwidth

    def _demand(self, e: Expr, k: Expr) -> float:
        """How many elements of a value a kernel computes that its readers there are in, unless it reads the value."""
        if e in self.once:
            return self.elements(e)
        if e == k:
            return self._most_elements((k,))
        demands = (
            self.computed[r, k] * (self.elements(e) / max(1.0, self.elements(r)) if r.op == "concat" else 1.0)
            for r in self.readers.get(e, ())
            if (r, k) in self.computed
        )
        return max(demands, default=self._most_elements((k,)))

    def _most_elements(self, kernels: Iterable[Expr]) -> float:
        """The most elements over which one of these kernels loops."""
        loops = ((k,) if k.op in PARTS else (k, *k.args) for k in kernels)
        return max(self.elements(x) for over in loops for x in over if isinstance(x.annotation, Tensor))

    # --- what kernels read and write ---

    def places(self) -> dict[Expr, KernelPlace]:
        members, found = self.members(), {e: KernelPlace() for e in self.nodes}
        lead = self._joined_kernels(members)
        for k, inside in members.items():
            place, first = found[k], lead.get(k, k)
            end = self.last.get(k, self.ends.get(k, k))
            place.stored = end == k
            further = self.further(k)
            place.launches = int(first == k) + further.launches
            if k in self.joined and self.joined[k] != k:
                place.launches, place.beside = 0, self.joined[k]
            known = self._reads(members[first]) if first != k else dict[Expr, Dim]()
            reads = {s: d for s, d in self._reads(inside).items() if s not in known and lead.get(s, s) != first}
            if self.joined.get(k, k) != k:
                reads.pop(self.source(k.args[0]), None)
            place.bytes = sum(reads.values(), self._written(k) + further.bytes)
            found[end].workspace = further.workspace
            found[end].stored = True
            if self._is_unfinished(k):
                self._finish(k, place)
            if (beside := self._concatenated(k)) != 0:
                place.launches += 1
                place.bytes, place.workspace = place.bytes + 2 * beside, place.workspace + beside
            longer = self._lengthened(k)
            place.workspace = sum(map(self.bytes, longer), place.workspace)
            for copied in (*self._turned_tables(k), *longer):
                place.launches += 1
                place.bytes = place.bytes + 2 * self.bytes(copied)
        return found

    def _reads(self, inside: Sequence[Expr]) -> dict[Expr, Dim]:
        """The bytes of each value that a kernel with these operators reads."""
        found: dict[Expr, Dim] = {}
        here = set(inside)
        whole: set[Expr] = set()
        for e in inside:
            for s in self.operands(e):
                if s in here or s in self.free or (s.op == CONSTANT and self.elements(s) <= 1):
                    continue
                if e.op in PARTS and self.source(e.args[0]) == s and s not in whole:
                    found[s] = found.get(s, Dim.of(0)) + self._partial(s) * self.bytes(e)
                else:
                    whole.add(s)
                    found[s] = self._partial(s) * self.bytes(s)
        return found

    def _partial(self, e: Expr) -> int:
        """How many times the bytes of a value its readers read: the parts of a matmul are float32."""
        if e not in self.parts or not self._is_read_in_parts(e):
            return 1
        return self.parts[e] * (4 // self.products[e].written) if self.parts[e] > 1 else 1

    def _is_read_in_parts(self, e: Expr) -> bool:
        readers = self.readers.get(e, [])
        takes = all(self._is_loop(r) or self._is_reduction(r) for r in readers)
        few = len({k for r in readers for k in self.kernels.get(r, ())}) <= 4
        return e not in self.results and bool(readers) and takes and few

    def _written(self, k: Expr) -> Dim:
        written = self.bytes(self.last.get(k, self.ends.get(k, k)))
        parts = self.parts.get(k, 1)
        return parts * (4 // self.products[k].written) * written if parts > 1 else written

    def _finish(self, k: Expr, place: KernelPlace) -> None:
        """Adds the kernel that adds up the parts of a matmul, if its readers do not; if they do, the parts are stored
        in place of the result."""
        written, is_read = self._written(k), self._is_read_in_parts(k)
        place.kept = written if is_read else None
        if self.joined.get(k, k) == k:
            widths = [self._written(m) for m, first in self.joined.items() if first == k] or [written]
            place.workspace = sum(widths, -1 * written if is_read else Dim.of(0))
        if not is_read:
            place.launches += 1
            place.bytes = place.bytes + written + self.bytes(k)

    def _joined_kernels(self, members: dict[Expr, list[Expr]]) -> dict[Expr, Expr]:
        """For kernels that another one takes in, that one."""
        lead: dict[Expr, Expr] = {}
        open_to: dict[tuple[Expr, float, bool], Expr] = {}
        for k in members:
            if k in self.home:
                continue
            reads = [s for s in self._reads(members[k]) if s in self.runs]
            is_reduction = self._is_reduction(k)
            if not is_reduction and not self._is_loop(k):
                continue
            extent = self._read_elements(k) if is_reduction else self.elements(k)
            if not is_reduction and any(e.op in PARTS | ORDERS for e in members[k]):
                continue
            newest = max((self.order[s] for s in reads), default=-1)
            for s in self._reads(members[k]):
                key = (s, extent, is_reduction)
                first = open_to.get(key)
                if first is not None and newest < self.order[first] and first not in lead:
                    lead[k] = first
                    break
                open_to.setdefault(key, k)
            stores = [s for s in reads if self.elements(s) == extent and self.order[s] == newest]
            for s in stores[:1]:
                joins = self._is_loop(s) and s.op not in PERMUTATIONS and s in members and s not in self.home
                joins = joins and s not in self.rows
                joins = joins and not self._is_over_columns(k) and not (self.elements(k) <= 1 and self._added(s))
                first = _first(lead, s)
                if k not in lead and first != k and joins and (is_reduction or s in self.results):
                    lead[k] = first
        return {k: _first(lead, k) for k in lead}


def _first(lead: Mapping[Expr, Expr], k: Expr) -> Expr:
    """The kernel that takes in `k`, or one that takes in that one, and so on; `k` if none does."""
    while k in lead:
        k = lead[k]
    return k
