"""The kernels that XLA's compiler for GPUs makes beside the one of an operator, for that operator alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relax_eg.dtypes import itemsize
from relax_eg.extract.fusions.gpu_operators import GpuOperators
from relax_eg.extract.fusions.operators import CONV, MATMULS, ORDERS, PARTS, REPEATS, SCATTERS
from relax_eg.ir.annotations import Tensor, dims_of
from relax_eg.ir.expr import Expr
from relax_eg.ops.sorting import SORTS
from relax_eg.shapes import Dim

# given: elements of one reduction that a block adds, of the last axis and of another one; above them two kernels add
# (XLA's ReductionIsRaceFree)
_LONGEST_ROW, _LONGEST_COLUMN = 16384, 4096
_PART = 16  # given: elements that one step of a running sum adds (XLA's ReduceWindowRewriter)
_LEFT = 4  # given: sums of parts up to which the step before adds them itself
_NOTHING = Dim.of(0)
_MOVES = PARTS | ORDERS | REPEATS | {"concat"}
RUNNING_SUMS = frozenset(("cumsum", "cumprod"))  # given: those that XLA computes in parts


@dataclass(frozen=True, slots=True)
class Further:
    """What an operator takes beside its own kernel.

    - `launches`: of kernels.
    - `bytes`: that these read and write.
    - `workspace`: bytes that they leave for it.
    """

    launches: int = 0
    bytes: Dim = _NOTHING
    workspace: Dim = _NOTHING

    def __add__(self, other: Further) -> Further:
        return Further(self.launches + other.launches, self.bytes + other.bytes, self.workspace + other.workspace)


class GpuFurther(GpuOperators):
    """The operators of a function on a GPU, with what each takes beside its own kernel.

    - `after`: the operators that the kernel of a convolution, a reduction or a running sum takes in after it, each with
      that one.
    - `ends`: the last one of them, by the first.
    - `barred`: operators that other kernels take in.
    """

    after: dict[Expr, Expr]
    ends: dict[Expr, Expr]
    barred: set[Expr]

    def further(self, k: Expr) -> Further:
        """What the operator that begins a kernel takes beside it."""
        if k.op == CONV:
            return self._of_convolution(k)
        if k.op in SCATTERS and not self._is_loop(k):
            operand = self.source(k.args[0])
            # It writes over its first operand: over zeros that are stored for it, or over a copy of an argument.
            is_given = operand in self.free or operand not in self.runs
            return Further(1, 2 * self.bytes(operand)) if is_given else Further()
        if k.op in SORTS and k.attr("stable"):
            places = Dim.of(4 * int(self.elements(k.args[0])))
            return Further(0, places, places)
        if k.op in RUNNING_SUMS:
            return self._of_running_sum(k)
        return self._of_reduction(k) if self._is_reduction(k) and k.op not in MATMULS else Further()

    def _of_reduction(self, k: Expr) -> Further:
        """Two kernels add where one block would add too many elements, or over axes that others separate."""
        assert isinstance(k.annotation, Tensor)
        length, size = self._read_elements(k) / max(1.0, self.elements(k)), itemsize(k.annotation.dtype or "float32")
        if self._is_apart(k):
            shape, last = dims_of(k.args[0].annotation), max(k.attr("axes"))
            partial = Dim.of(size * math.prod(int(self._value(d)) for d in shape[:last]))
            return Further(1, 2 * partial)
        if length <= (_LONGEST_ROW if self._is_over_rows(k) else _LONGEST_COLUMN):
            return Further()
        partial = Dim.of(size * int(self.elements(k)) * _stages(int(length)))
        return Further(1, 2 * partial, partial)

    def _is_over_rows(self, k: Expr) -> bool:
        """Whether a reduction adds neighbours in memory."""
        if "axes" not in dict(k.attrs):
            return True
        shape = [self._value(d) for d in dims_of(k.args[0].annotation)]
        last = max((i for i, n in enumerate(shape) if n > 1), default=0)
        return (last in k.attr("axes")) != (self.source(k.args[0]) in self.turned)

    def _is_apart(self, e: Expr) -> bool:
        """Whether a reduction is over axes that others separate: XLA reduces the last ones first."""
        if "axes" not in dict(e.attrs):
            return False
        shape = dims_of(e.args[0].annotation)
        axes = [i for i in e.attr("axes") if self._value(shape[i]) > 1]
        kept = [i for i in range(len(shape)) if i not in e.attr("axes") and self._value(shape[i]) > 1]
        return any(a < k < b for a in axes for k in kept for b in axes)

    def _of_running_sum(self, k: Expr) -> Further:
        """Sums of parts, their running sums, and so on; the last kernel adds these to the parts."""
        steps, left = 0, self._value(dims_of(k.args[0].annotation)[k.attr("axis")])
        while left > _PART:
            steps, left = steps + 1, math.ceil(left / _PART)
        if not steps:
            return Further()
        read, parts = self.bytes(k.args[0]), Dim.of(int(self.size(k.args[0])) // _PART)
        return Further(steps - (left <= _LEFT), read + 2 * min(steps, 2) * parts, parts)

    # --- convolutions ---

    def _of_convolution(self, k: Expr) -> Further:
        """Its weight and its operands with their channels last, and its result in the order that others read."""
        found, end = Further(), self.ends.get(k, k)
        is_copied = self._is_with_channels_first(k, end)
        if self._is_reordered(k):
            found += _copied(self.bytes(k.args[1]))
        if self._is_padded(k) or self._is_turned_for(k):
            # Where the result is copied, its memory holds the image before.
            image = self.bytes(k.args[0])
            found += Further(1, 2 * image) if is_copied else _copied(image)
        if end.op == "maximum" and not any(e.op == "add" for e, first in self.after.items() if first == k):
            found += Further(1, Dim.of(2 * itemsize(_dtype(k))) * dims_of(k.annotation)[1])  # a bias of zeros
        return found + _copied(self.bytes(end)) if is_copied else found

    def _is_reordered(self, k: Expr) -> bool:
        """Whether a convolution's weight is stored anew, with its input channels last: not if they are, and its window
        is 1."""
        shape = [self._value(d) for d in dims_of(k.args[1].annotation)]
        return k.args[1].op in ORDERS or (shape[1] > 1 and math.prod(shape[2:]) > 1)

    def _is_padded(self, k: Expr) -> bool:
        """Whether a kernel writes the image of a convolution with its margins, which differ at both ends."""
        margins = zip(k.attr("low"), k.attr("high"), strict=True)
        uneven = any(self._value(a) != self._value(b) for a, b in margins)
        return uneven and self.source(k.args[0]) not in self.runs

    def _is_turned_for(self, k: Expr) -> bool:
        """Whether the image of a convolution is an argument with its channels first. Of several convolutions of an
        image, the first stores it anew."""
        image, shape = k.args[0], [self._value(d) for d in dims_of(k.args[0].annotation)]
        if image.op in ORDERS or self.source(image) in self.runs or shape[1] <= 1 or math.prod(shape[2:]) <= 1:
            return False
        readers = [r for r in self.readers.get(self.source(image), ()) if r.op == CONV]
        return readers[:1] == [k]

    def _is_with_channels_first(self, k: Expr, end: Expr) -> bool:
        """Whether the result of a convolution is read in the order of its axes: by who calls, or by a matmul."""
        shape = [self._value(d) for d in dims_of(k.annotation)]
        if shape[1] <= 1 or math.prod(shape[2:]) <= 1:
            return False
        if any(shown.args[0] == k for shown in self._layouts):
            return False
        return end in self.results or any(r.op in MATMULS for r in self.readers.get(end, ()))

    # --- what a kernel takes in after its operator ---

    def take_after(self, k: Expr) -> None:
        """Finds what the kernel of a convolution, a reduction or a running sum takes in after it."""
        last, taken = k, set[str]()
        while last not in self.results and len(readers := self.readers.get(last, [])) == 1:
            (r,) = readers
            if not self._is_loop(r) or r.op in _MOVES or r in self.barred or self.elements(r) != self.elements(k):
                break
            others = [s for s in self.operands(r) if s != last]
            if k.op == CONV:
                if (role := self._role(r, others)) is None or role in taken or "relu" in taken:
                    break
                taken.add(role)
            elif others and k.op not in RUNNING_SUMS:
                break
            self.after[r], last = k, r
        if last != k:
            self.ends[k] = last

    def _role(self, r: Expr, others: Sequence[Expr]) -> str | None:
        """What an operator after a convolution is to cuDNN; None if its kernel does not take it in."""
        (other,) = others if len(others) == 1 else (None,)
        if other is None or r.op not in ("add", "maximum"):
            return None
        if r.op == "maximum":
            return "relu" if self._is_number(other) else None
        if self.elements(other) == self.elements(r):
            return "side"
        return "bias" if self.elements(self._repeated(other)) == self._value(dims_of(r.annotation)[1]) else None


def _copied(size: Dim) -> Further:
    return Further(1, 2 * size, size)


def _dtype(e: Expr) -> str:
    return e.annotation.dtype or "float32" if isinstance(e.annotation, Tensor) else "float32"


def _stages(length: int) -> int:
    """The parts of a sum of so many elements that a first kernel adds: about the root, if it can be a power of two."""
    root = math.isqrt(length)
    power = 1 << (root.bit_length() - 1)
    return power if length % power == 0 else root
